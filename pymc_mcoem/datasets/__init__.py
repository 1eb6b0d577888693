"""Real data by name, and simulators with known truth."""

from pymc_mcoem.datasets.digits import load_digits, load_usps
from pymc_mcoem.datasets.simulators import simulate_curves, simulate_images

__all__ = ["load_digits", "load_usps", "simulate_curves", "simulate_images"]
