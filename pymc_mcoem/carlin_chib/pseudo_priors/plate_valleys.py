"""Draws of a plate's rows from which no known mode can be reached without crossing a valley.

If a point is on the hill of a mode, the density hardly falls along the line to the top (the test of
Ursem 1999). This takes evaluations only, of all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import vectorize_graph

from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.interrupts import require_own_fault

if TYPE_CHECKING:
    from pymc_mcoem.density.plate import PlateDensity

__all__ = ["PlateHeights", "affordable_draws", "is_beyond_valley"]

#: Where the density is evaluated between two points: unevenly, so as not to miss waves.
_BETWEEN = 0.07, 0.19, 0.34, 0.55, 0.81

#: A fall by fewer nats along the line is no valley.
_SHALLOW = 0.5

#: Largest size of the array of a plate's draws, and the fewest draws in any case.
_DRAWN, _FEWEST = 50_000, 16

#: Numbers that are evaluated together.
_TOGETHER = 50_000


def affordable_draws(shape: tuple[int, ...], most: int) -> int:
    """Return how many draws of all rows are evaluated, for positions of a shape."""
    return min(most, max(_FEWEST, _DRAWN // max(int(np.prod(shape)), 1)))


class PlateHeights:
    """Log-densities of all rows at many positions, interpreted."""

    def __init__(self, density: PlateDensity) -> None:
        k = pt.scalar("class_index", dtype="int64")
        x = pt.tensor("position", dtype="float64", shape=density.position_shape)
        points = pt.tensor("positions", dtype="float64", shape=(None, *density.position_shape))
        of_one = density.log_density(k, x)
        self._takes_many = True
        try:
            many = vectorize_graph(of_one, {x: points})
            self._function = compile_with_data(density, [k, points], many, interpreted_mode())
        except Exception as error:  # an operation that takes one position alone may raise anything
            require_own_fault(error)
            self._takes_many = False
            self._function = compile_with_data(density, [k, x], of_one, interpreted_mode())

    def __call__(self, j: int, points: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
        """Return log-densities ``(n, n_rows)`` of class j at points ``(n, n_rows, n_latents)``."""
        n_at_once = max(1, _TOGETHER // max(points[0].size, 1))
        chunks = list(points)
        if self._takes_many:
            chunks = [points[i : i + n_at_once] for i in range(0, len(points), n_at_once)]
        with np.errstate(all="ignore"):  # a density may overflow somewhere
            each = [np.asarray(self._function(np.asarray(j), part, *others)) for part in chunks]
        found = np.concatenate(each) if self._takes_many else np.stack(each)
        return np.where(np.isnan(found), -np.inf, found)


def is_beyond_valley(
    heights: PlateHeights,
    j: int,
    points: np.ndarray,
    at_points: np.ndarray,
    top: np.ndarray,
    others: Sequence[np.ndarray],
) -> np.ndarray:
    """Return which points a valley separates from their row's top, ``(n, n_rows)``.

    Parameters
    ----------
    points : ndarray of shape (n, n_rows, n_latents)
    at_points : ndarray of shape (n, n_rows)
        Log-densities there.
    top : ndarray of shape (n_rows, n_latents)
    """
    found = np.zeros(at_points.shape, dtype=bool)
    last = at_points
    for share in (*_BETWEEN, 1.0):
        now = heights(j, points + share * (top - points), others)
        with np.errstate(invalid="ignore"):
            found |= now < last - _SHALLOW
        last = now
    return found
