"""One line of versions, which every benchmark tells first: figures are of these."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console

__all__ = ["tell_versions"]

PACKAGES = ("pymc_mcoem", "pymc", "pytensor", "numba", "numpy", "arviz", "jax", "numpyro")


def tell_versions() -> None:
    """Print versions of Python and of what figures depend on, and the number of cores."""
    Console(highlight=False, soft_wrap=True).print(
        ", ".join(
            [
                f"Python {platform.python_version()}",
                *(f"{name} {_version(name)}" for name in PACKAGES),
                f"{os.cpu_count()} cores",
            ]
        )
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"
