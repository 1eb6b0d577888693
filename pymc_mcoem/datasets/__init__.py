"""Loaders of real data, and simulators with known truth."""

from pymc_mcoem.datasets.digits import load_digits, load_usps
from pymc_mcoem.datasets.growth import growth_velocity, load_growth
from pymc_mcoem.datasets.simulators import simulate_curves, simulate_images

__all__ = [
    "growth_velocity",
    "load_digits",
    "load_growth",
    "load_usps",
    "simulate_curves",
    "simulate_images",
]
