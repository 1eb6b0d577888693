"""Sums of Gaussian kernels on an evenly spaced grid, as operators that back ends can replace.

The numba back end replaces each by one of `separable_numba`: kernels along an evenly spaced axis
are a geometric recurrence from two exponentials for each point. On JAX values and slopes are
polynomials, by `separable_jax`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytensor.tensor as pt
from pytensor.compile import optdb
from pytensor.graph.rewriting.basic import graph_rewriter

from pymc_mcoem.compiling.inlined_operators import PlainGraph
from pymc_mcoem.templates.bases.even_grid import EvenGrid

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["KernelBends", "KernelSlopes", "KernelSums", "KernelValues"]


class SeparableOp(PlainGraph):
    """Base class of operators on a grid, of two vectors of coordinates and one of weights."""

    def __init__(self, grid: EvenGrid, inputs: Sequence[TensorVariable]) -> None:
        self.grid = grid
        super().__init__(inputs)

    @classmethod
    def of(cls, grid: EvenGrid, points: Sequence[Any], weights: Any) -> Any:
        """Return the outputs at points, two vectors of coordinates."""
        inputs = [*points, weights]
        return cls(grid, inputs)(*inputs)

    def for_numba(self, *inputs: TensorVariable) -> list[TensorVariable] | None:
        """Return the outputs by recurrence, or None for one point, which might be broadcast."""
        if any(each.type.shape == (1,) for each in inputs[:2]):
            return None
        # imported here because importing numba takes a second
        from pymc_mcoem.templates.bases.separable_numba import recurrence

        return recurrence(type(self).__name__, self.grid, inputs)


class PolynomialOp(SeparableOp):
    """Base class of operators that JAX computes as polynomials."""

    def for_jax(self, *inputs: TensorVariable) -> list[TensorVariable] | None:
        """Return the outputs as polynomials, or None for one point, or for a large grid."""
        if any(each.type.shape == (1,) for each in inputs[:2]):
            return None
        # imported here because it imports JAX
        from pymc_mcoem.templates.bases.separable_jax import MOST_KERNELS, polynomial

        if self.grid.length[0] * self.grid.length[1] > MOST_KERNELS:
            return None
        return polynomial(type(self).__name__, self.grid, inputs)


class KernelValues(PolynomialOp):
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
        slopes = KernelSlopes.of(self.grid, columns, coefficients)
        return [
            *(cotangent * slope for slope in slopes),
            KernelSums.of(self.grid, columns, cotangent).ravel(),
        ]


class KernelSlopes(PolynomialOp):
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
    """(first, second, coefficients) → second derivatives: by first twice, both, second twice."""

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
        slopes = KernelSlopes.of(self.grid, columns, cotangent.ravel())
        return [
            *(weights * slope for slope in slopes),
            KernelValues.of(self.grid, columns, cotangent.ravel()),
        ]


@graph_rewriter
def _share_factors(fgraph: Any) -> None:
    from pymc_mcoem.templates.bases.separable_numba import share_factors

    share_factors(fgraph)


# Registered after the first merge, by which equal variables are one.
optdb.register("mcoem_share_factors", _share_factors, "numba", position=0.05)
