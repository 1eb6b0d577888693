"""Sums of Gaussian kernels on an evenly spaced grid, as operators that back ends can do better.

Where the numba back end compiles one, `separable_numba` takes its place: kernels along an evenly
spaced axis are a geometric recurrence from two exponentials a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile import optdb
from pytensor.graph.rewriting.basic import graph_rewriter

from pymc_mcoem.operators import PlainGraph

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = [
    "EvenGrid",
    "kernel_bends",
    "kernel_moments",
    "kernel_slopes",
    "kernel_sums",
    "kernel_values",
]


@dataclass(frozen=True)
class EvenGrid:
    """Centres of Gaussian kernels at all combinations of evenly spaced coordinates in the plane.

    Attributes
    ----------
    start, spacing : tuple of (float, float)
        First coordinate on each axis, and the distance to the next one.
    length : tuple of (int, int)
        Number of coordinates on each axis.
    bandwidth : float
        ν of φ(u) = exp(−|u − r|² / ν²).
    """

    start: tuple[float, float]
    spacing: tuple[float, float]
    length: tuple[int, int]
    bandwidth: float

    @classmethod
    def from_axes(cls, axes: Sequence[np.ndarray], bandwidth: float) -> EvenGrid | None:
        """Return the grid of two axes, or None where they are not two or not evenly spaced.

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
        return self.start[index] + self.spacing[index] * np.arange(self.length[index])

    @property
    def overlaps(self) -> bool:
        """Whether neighboring kernels have a product that is a number above zero."""
        return max(map(abs, self.spacing)) < 30.0 * self.bandwidth

    def halved(self) -> EvenGrid:
        """Return the grid of the products of two kernels: halfway between any two centres.

        φ_p φ_q = exp(−(p − q)²/2ν²) exp(−2 (u − (p + q)/2)²/ν²) on each axis: a constant times a
        kernel of bandwidth ν/√2 around the middle, of which there are only 2n − 1.
        """
        return EvenGrid(
            self.start,
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


class SeparableOp(PlainGraph):
    """An operator on a grid's kernels.

    Parameters
    ----------
    grid : EvenGrid
    inputs : sequence of TensorVariable
        Two vectors of coordinates and one of coefficients or weights.
    """

    def __init__(self, grid: EvenGrid, inputs: Sequence[TensorVariable]) -> None:
        self.grid = grid
        super().__init__(inputs)

    def for_numba(self, *inputs: TensorVariable) -> list[TensorVariable] | None:
        """Return the outputs of the recurrence; None for one point, which might be broadcast."""
        if any(each.type.shape == (1,) for each in inputs[:2]):
            return None
        # imported where it is used: numba takes a second to import
        from pymc_mcoem.templates.separable_numba import recurrence

        return recurrence(self, inputs)


class KernelValues(SeparableOp):
    """(first, second, coefficients) → Σ_l α_l φ_l(u_s), (n_points,)."""

    def plain(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the outputs as a graph of elementary operators."""
        grid = self.grid
        first, second, coefficients = inputs
        factors = grid.factors([first, second])
        table = coefficients.reshape(grid.length)
        return [(factors[0] * pt.dot(table, factors[1])).sum(axis=0)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[TensorVariable]:
        """Return the cotangents of the inputs by the other operators."""
        (*columns, coefficients), (cotangent,) = inputs, cotangents
        slopes = kernel_slopes(self.grid, columns, coefficients)
        return [
            *(cotangent * slope for slope in slopes),
            kernel_sums(self.grid, columns, cotangent).ravel(),
        ]


class KernelSlopes(SeparableOp):
    """(first, second, coefficients) → derivatives by first and second, (n_points,) each."""

    def plain(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the outputs as a graph of elementary operators."""
        grid = self.grid
        first, second, coefficients = inputs
        factors = grid.factors([first, second])
        steep = [
            factor * ((-2.0 / grid.bandwidth**2) * (column[None, :] - grid.axis(index)[:, None]))
            for index, (column, factor) in enumerate(zip((first, second), factors, strict=True))
        ]
        table = coefficients.reshape(grid.length)
        return [
            (steep[0] * pt.dot(table, factors[1])).sum(axis=0),
            (factors[0] * pt.dot(table, steep[1])).sum(axis=0),
        ]


class KernelBends(SeparableOp):
    """(first, second, coefficients) → second derivatives: first twice, both, second twice."""

    def plain(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the outputs as a graph of elementary operators."""
        grid = self.grid
        first, second, coefficients = inputs
        factors = grid.factors([first, second])
        steepness = 2.0 / grid.bandwidth**2
        away = [
            column[None, :] - grid.axis(index)[:, None] for index, column in enumerate(inputs[:2])
        ]
        steep = [-steepness * factor * each for factor, each in zip(factors, away, strict=True)]
        bent = [
            factor * (steepness**2 * pt.sqr(each) - steepness)
            for factor, each in zip(factors, away, strict=True)
        ]
        table = coefficients.reshape(grid.length)
        return [
            (bent[0] * pt.dot(table, factors[1])).sum(axis=0),
            (steep[0] * pt.dot(table, steep[1])).sum(axis=0),
            (factors[0] * pt.dot(table, bent[1])).sum(axis=0),
        ]


class KernelSums(SeparableOp):
    """(first, second, weights) → Σ_s w_s φ_l(u_s), a table (n_first, n_second)."""

    def plain(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the outputs as a graph of elementary operators."""
        grid = self.grid
        first, second, weights = inputs
        factors = grid.factors([first, second])
        return [pt.dot(factors[0] * weights[None, :], factors[1].T)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[TensorVariable]:
        """Return the cotangents of the inputs by the other operators."""
        (*columns, weights), (cotangent,) = inputs, cotangents
        slopes = kernel_slopes(self.grid, columns, cotangent.ravel())
        return [
            *(weights * slope for slope in slopes),
            kernel_values(self.grid, columns, cotangent.ravel()),
        ]


def kernel_values(
    grid: EvenGrid, points: Sequence[TensorVariable], coefficients: TensorVariable
) -> TensorVariable:
    """Return Σ_l α_l φ_l(u_s), (n_points,); `points` are two vectors of coordinates."""
    inputs = [*points, coefficients]
    values: TensorVariable = KernelValues(grid, inputs)(*inputs)
    return values


def kernel_slopes(
    grid: EvenGrid, points: Sequence[TensorVariable], coefficients: TensorVariable
) -> list[TensorVariable]:
    """Return the two derivatives of `kernel_values` by the coordinates, (n_points,) each."""
    inputs = [*points, coefficients]
    slopes: list[TensorVariable] = KernelSlopes(grid, inputs)(*inputs)
    return slopes


def kernel_bends(
    grid: EvenGrid, points: Sequence[TensorVariable], coefficients: TensorVariable
) -> list[TensorVariable]:
    """Return the second derivatives of `kernel_values`, (n_points,) each.

    By the first coordinate twice, by both, and by the second one twice.
    """
    inputs = [*points, coefficients]
    bends: list[TensorVariable] = KernelBends(grid, inputs)(*inputs)
    return bends


def kernel_sums(
    grid: EvenGrid, points: Sequence[TensorVariable], weights: TensorVariable
) -> TensorVariable:
    """Return Σ_s w_s φ_l(u_s) as a table of the grid's lengths."""
    inputs = [*points, weights]
    sums: TensorVariable = KernelSums(grid, inputs)(*inputs)
    return sums


def kernel_moments(
    grid: EvenGrid, points: Sequence[TensorVariable], weights: TensorVariable
) -> TensorVariable:
    """Return Σ_s w_s φ_p(u_s) φ_q(u_s) as sums over the kernels of `EvenGrid.halved`.

    Returns
    -------
    TensorVariable of shape (2 n_first − 1, 2 n_second − 1)
        Entry (a, b) belongs to all pairs of kernels whose numbers add up to a and b.
    """
    return kernel_sums(grid.halved(), points, weights)


@graph_rewriter
def _share_factors(fgraph: Any) -> None:
    from pymc_mcoem.templates.separable_numba import share_factors

    share_factors(fgraph)


# After the first merge, so that what is the same is one variable.
optdb.register("mcoem_share_factors", _share_factors, "numba", position=0.05)
