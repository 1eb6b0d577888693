"""Sums of Gaussian kernels on an evenly spaced grid in JAX, as polynomials.

Kernels along an evenly spaced axis are a geometric sequence: at a distance t from the first center,
in bandwidths, and for a spacing a, the k-th is e^{−t²} (e^{2at})^k e^{−a²k²}. A sum of them is a
polynomial, which takes two exponentials for each point and axis, and no table of kernels. Barriers
keep XLA from computing exponentials and coefficients again in each term.

Importing this module imports JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.jax.dispatch import jax_funcify

from pymc_mcoem.templates.bases.even_grid import EvenGrid

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["MOST_KERNELS", "polynomial"]

#: Kernels of a grid whose polynomials are written out; more take XLA long to compile.
MOST_KERNELS = 400
#: Keeps values from being computed again where they are used.
_once: Any = lax.optimization_barrier


def polynomial(name: str, grid: EvenGrid, inputs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return the outputs of the operator of that name, which takes these inputs, for JAX."""
    found = KernelPolynomial(grid, with_slopes=name == "KernelSlopes")(*inputs)
    return list(found) if isinstance(found, list) else [found]


class KernelPolynomial(Op):
    """(first, second, coefficients) → sums of kernels at points, or their two derivatives."""

    __props__ = ("grid", "with_slopes")

    def __init__(self, grid: EvenGrid, with_slopes: bool) -> None:
        self.grid, self.with_slopes = grid, with_slopes

    def make_node(self, first: Any, second: Any, coefficients: Any) -> Apply:
        """Return the operator applied."""
        n_outputs = 2 if self.with_slopes else 1
        return Apply(self, [first, second, coefficients], [first.type() for _ in range(n_outputs)])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        """Refuse: only JAX computes it."""
        raise NotImplementedError("KernelPolynomial: it is made for JAX alone.")


@jax_funcify.register(KernelPolynomial)  # type: ignore[untyped-decorator]
def _funcify(op: KernelPolynomial, **_: Any) -> Any:
    grid = op.grid

    def values(first: Any, second: Any, coefficients: Any) -> Any:
        table = coefficients.reshape(grid.length)
        outer = _segments(grid, 0, first)
        inner = _segments(grid, 1, second)
        total = jnp.zeros_like(first)
        for one in outer:
            for two in inner:
                block = _block(table, one, two)
                rows = [two.envelope * _horner(list(row), two.ratio) for row in block]
                total = total + one.envelope * _horner(rows, one.ratio)
        return _once(total)

    def slopes(first: Any, second: Any, coefficients: Any) -> tuple[Any, Any]:
        table = coefficients.reshape(grid.length)
        outer = _segments(grid, 0, first)
        inner = _segments(grid, 1, second)
        found = [jnp.zeros_like(first), jnp.zeros_like(first)]
        for one in outer:
            for two in inner:
                block = _block(table, one, two)
                both = [_horner_with_slope(list(row), two.ratio) for row in block]
                rows = [two.envelope * value for value, _ in both]
                height, slope = _horner_with_slope(rows, one.ratio)
                along = _horner([two.envelope * slope for _, slope in both], one.ratio)
                for axis, (each, steep) in enumerate(((one, slope), (two, along))):
                    bent = each.growth * each.ratio * steep - 2.0 * each.distance * height
                    found[axis] = found[axis] + one.envelope * bent / grid.bandwidth
        first_slope, second_slope = _once((found[0], found[1]))
        return first_slope, second_slope

    return slopes if op.with_slopes else values


@dataclass(frozen=True)
class _Segment:
    """Consecutive kernels of an axis at points.

    Attributes
    ----------
    part : slice
        Which kernels.
    distance, envelope, ratio : array of shape (n_points,)
        t, e^{−t²} and e^{2at}.
    constants : ndarray of shape (n_kernels,)
        e^{−a²k²}.
    growth : float
        2a.
    """

    part: slice
    distance: Any
    envelope: Any
    ratio: Any
    constants: np.ndarray
    growth: float


def _segments(grid: EvenGrid, axis: int, points: Any) -> list[_Segment]:
    """Return an axis in segments so short that no power of a ratio leaves the range of numbers."""
    limits = np.finfo(points.dtype)
    # beyond this distance from all its centers a kernel is nothing beside one
    margin = float(np.sqrt(-np.log(limits.eps))) + 0.2
    longest = float(np.sqrt(0.9 * np.log(limits.max))) - margin
    spacing, length = grid.spacing[axis] / grid.bandwidth, grid.length[axis]
    most = max(int(longest / abs(spacing)) + 1, 1)
    n_segments = -(-length // most)
    bounds = np.linspace(0, length, n_segments + 1).astype(int)
    found = []
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        center = grid.origin[axis] + grid.spacing[axis] * begin
        reach = spacing * (end - begin - 1)
        distance = jnp.clip(
            (points - center) / grid.bandwidth, min(0.0, reach) - margin, max(0.0, reach) + margin
        )
        envelope, ratio = _once((jnp.exp(-(distance**2)), jnp.exp(2.0 * spacing * distance)))
        found.append(
            _Segment(
                slice(begin, end),
                distance,
                envelope,
                ratio,
                np.exp(-((spacing * np.arange(end - begin)) ** 2)),
                2.0 * spacing,
            )
        )
    return found


def _block(table: Any, one: _Segment, two: _Segment) -> Any:
    """Return the coefficients of two segments' polynomials."""
    return _once(table[one.part, two.part] * np.outer(one.constants, two.constants))


def _horner(coefficients: list[Any], at: Any) -> Any:
    """Return the polynomial Σ_k c_k x^k."""
    value = coefficients[-1]
    for each in coefficients[-2::-1]:
        value = value * at + each
    return value


def _horner_with_slope(coefficients: list[Any], at: Any) -> tuple[Any, Any]:
    """Return the polynomial and its derivative."""
    value, slope = coefficients[-1], jnp.zeros_like(at)
    for each in coefficients[-2::-1]:
        slope = slope * at + value
        value = value * at + each
    return value, slope
