"""Gaussian kernels on an evenly spaced grid, whose values are products of factors by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["EvenGrid"]


@dataclass(frozen=True)
class EvenGrid:
    """Centers of Gaussian kernels at all combinations of evenly spaced coordinates in the plane.

    Attributes
    ----------
    origin, spacing : tuple of (float, float)
        First coordinate on each axis, and the distance to the next one.
    length : tuple of (int, int)
        Number of coordinates on each axis.
    bandwidth : float
        ν of φ(u) = exp(−|u − r|² / ν²).
    """

    origin: tuple[float, float]
    spacing: tuple[float, float]
    length: tuple[int, int]
    bandwidth: float

    @classmethod
    def from_axes(cls, axes: Sequence[np.ndarray], bandwidth: float) -> EvenGrid | None:
        """Return the grid of two axes, or None if they are not two or not evenly spaced.

        Examples
        --------
        >>> EvenGrid.from_axes([np.arange(3.0), np.arange(4.0)], 1.5).length
        (3, 4)
        >>> EvenGrid.from_axes([np.arange(3.0), np.array([0.0, 1.0, 3.0])], 1.5)
        """
        if len(axes) != 2:
            return None
        spacing = []
        for axis in axes:
            step = float(axis[-1] - axis[0]) / max(axis.size - 1, 1) or bandwidth
            even = axis[0] + step * np.arange(axis.size)
            if np.abs(axis - even).max() > 1e-10 * min(abs(step), bandwidth):
                return None
            spacing.append(step)
        first, second = axes
        return cls(
            (float(first[0]), float(second[0])),
            (spacing[0], spacing[1]),
            (first.size, second.size),
            bandwidth,
        )

    def axis(self, index: int) -> np.ndarray:
        """Return the coordinates on an axis."""
        return self.origin[index] + self.spacing[index] * np.arange(self.length[index])

    @property
    def overlaps(self) -> bool:
        """Whether neighboring kernels have a product that is a number above zero."""
        return max(map(abs, self.spacing)) < 30.0 * self.bandwidth

    def halved(self) -> EvenGrid:
        """Return the grid of the products of two kernels, with points halfway between centers.

        φ_p φ_q = exp(−(p − q)²/2ν²) exp(−2 (u − (p + q)/2)²/ν²) on each axis is a constant times
        a kernel of bandwidth ν/√2 around the middle. There are only 2n − 1 different middles.
        """
        return EvenGrid(
            self.origin,
            (self.spacing[0] / 2.0, self.spacing[1] / 2.0),
            (2 * self.length[0] - 1, 2 * self.length[1] - 1),
            self.bandwidth / np.sqrt(2.0),
        )

    @property
    def reach(self) -> int:
        """Width of the bands in which matrices of products of two kernels have their entries.

        A product is exp(−d²/2ν²), with d the distance of the centers, times a sum of squares. What
        is left out beyond the bands is rounding beside these.
        """
        most = np.sqrt(-2.0 * np.log(np.finfo(float).eps)) * self.bandwidth
        first, second = (
            min(int(most / abs(step)), n - 1)
            for step, n in zip(self.spacing, self.length, strict=True)
        )
        return first * self.length[1] + second

    def gram_bands(self, sums: np.ndarray, width: int) -> np.ndarray:
        """Return the bands of the matrices that sums of products of kernels represent.

        Parameters
        ----------
        sums : ndarray of shape (..., 2 n_first − 1, 2 n_second − 1)
        width : int

        Returns
        -------
        ndarray of shape (..., n_basis, width + 1)
            As those of `symmetric_bands`.
        """
        starts, steps, constants = _band_places(self, width)
        sums = np.asarray(sums, dtype=np.float64)
        flat = np.ascontiguousarray(sums).reshape(*sums.shape[:-2], -1)
        # places beyond the last sum are behind the last column
        found: np.ndarray = flat.take(starts + steps, axis=-1, mode="clip")
        found *= constants
        return found.reshape(*sums.shape[:-2], -1, width + 1)

    def factors(self, points: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return the kernels of each axis at the points, (length, n_points)."""
        return [
            pt.exp(pt.sqr(self.axis(index)[:, None] - column[None, :]) * (-1.0 / self.bandwidth**2))
            for index, column in enumerate(points)
        ]


@cache
def _band_places(grid: EvenGrid, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where sums of products lie, and what multiplies them, for `EvenGrid.gram_bands`.

    The places are the sums (n_first, 1, 1) + (n_second, width + 1).
    """
    n_first, n_second = grid.length
    second = np.arange(n_second)[:, None]
    rows, columns = np.divmod(second + np.arange(width + 1), n_second)
    n_sums = 2 * n_second - 1
    distances = (
        np.array([rows, columns - second]) * np.array(grid.spacing)[:, None, None] / grid.bandwidth
    )
    return (
        2 * n_sums * np.arange(n_first)[:, None, None],
        rows * n_sums + columns + second,
        np.exp(-0.5 * np.square(distances).sum(axis=0)),
    )
