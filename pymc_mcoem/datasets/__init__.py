"""Loaders of real data, and simulators with known truth."""

from pymc_mcoem.datasets.digits import load_digits, load_usps
from pymc_mcoem.datasets.growth import growth_velocity, load_growth
from pymc_mcoem.datasets.simulators import simulate_curves, simulate_images
from pymc_mcoem.datasets.tables import read_curves

__all__ = [
    "growth_velocity",
    "load_digits",
    "load_growth",
    "load_usps",
    "read_curves",
    "simulate_curves",
    "simulate_images",
]
