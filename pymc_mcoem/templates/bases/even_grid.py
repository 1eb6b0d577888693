"""Gaussian kernels on an evenly spaced grid, whose values are products of factors by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

    def factors(self, points: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return the kernels of each axis at the points, (length, n_points)."""
        return [
            pt.exp(pt.sqr(self.axis(index)[:, None] - column[None, :]) * (-1.0 / self.bandwidth**2))
            for index, column in enumerate(points)
        ]
