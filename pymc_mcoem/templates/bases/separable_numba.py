"""Replacements of the operators of `pymc_mcoem.templates.bases.separable` for numba."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import xor
from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from pymc_mcoem.compiling.inlined_operators import version_of
from pymc_mcoem.templates import image_loops_numba, template_loops_numba
from pymc_mcoem.templates.bases.even_grid import EvenGrid
from pymc_mcoem.templates.image_loops_numba import FAR, kernels

__all__ = [
    "RecurrentBends",
    "RecurrentSlopes",
    "RecurrentSums",
    "RecurrentValues",
    "recurrence",
    "share_factors",
]

# Without flags of its own, a function that is compiled during the compilation of another one
# inherits its flags. PyTensor's flags allow reordering sums, which would undo the rounding of
# exponentials.


@numba.njit(fastmath=False)
def limited(value: float, most: float) -> float:
    """Return a number limited to the range from -most to most; NaN stays NaN."""
    if value > most:
        return most
    if value < -most:
        return -most
    return value


@numba.njit(fastmath=False)
def check_sizes(first: np.ndarray, second: np.ndarray, others: int, expected: int) -> None:
    """Refuse arrays that compiled loops would read beyond their ends."""
    if first.size != second.size:
        raise ValueError("points: the coordinates on both axes need the same length.")
    if others != expected:
        raise ValueError("coefficients or weights: there must be one for each kernel or point.")


@numba.njit(fastmath=False)
def kernel_factor(
    column: np.ndarray, origin: float, spacing: float, length: int, bandwidth: float
) -> np.ndarray:
    """Return exp(−(r_a − u_s)² / ν²) of evenly spaced centers r_a, (length, n_points)."""
    out = np.empty(length * column.size)
    kernels(np.ascontiguousarray(column), origin, spacing, bandwidth, out)
    return out.reshape((length, column.size))


@numba.njit(fastmath=False)
def kernel_factors(
    first: np.ndarray,
    second: np.ndarray,
    origin: tuple[float, float],
    spacing: tuple[float, float],
    length: tuple[int, int],
    bandwidth: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return `kernel_factor` of both axes."""
    return (
        kernel_factor(first, origin[0], spacing[0], length[0], bandwidth),
        kernel_factor(second, origin[1], spacing[1], length[1], bandwidth),
    )


@numba.njit(fastmath=False)
def weighted_sum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return Σ_a left[a, s] right[a, s]."""
    length, n = left.shape
    out = np.zeros(n)
    for a in range(length):
        first, second = left[a], right[a]
        for s in range(n):
            out[s] += first[s] * second[s]
    return out


@numba.njit(fastmath=False)
def values_and_slopes(
    first: np.ndarray,
    second: np.ndarray,
    coefficients: np.ndarray,
    origin: tuple[float, float],
    spacing: tuple[float, float],
    length: tuple[int, int],
    bandwidth: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Σ_l α_l φ_l and its derivatives by the first and the second coordinate."""
    check_sizes(first, second, coefficients.size, length[0] * length[1])
    left, right = kernel_factors(first, second, origin, spacing, length, bandwidth)
    n_first, n_second = length
    n = first.size
    # Distances are from the middle of the grid, so that little cancels, and limited to where
    # kernels are not zero.
    middle_first = 0.5 * spacing[0] * (n_first - 1)
    middle_second = 0.5 * spacing[1] * (n_second - 1)
    # Derivatives are the kernels times the distance to their center. Tables weighted by the
    # centers' coordinates give them by one matrix product for the second axis.
    table = np.empty((2 * n_first, n_second))
    for a in range(n_first):
        for b in range(n_second):
            alpha = coefficients[a * n_second + b]
            table[a, b] = alpha
            table[n_first + a, b] = alpha * (b * spacing[1] - middle_second)
    summed = np.dot(table, right)
    values, along_first, along_second = np.zeros(n), np.zeros(n), np.zeros(n)
    for a in range(n_first):
        center = a * spacing[0] - middle_first
        kernel, plain, weighted = left[a], summed[a], summed[n_first + a]
        for s in range(n):
            product = kernel[s] * plain[s]
            values[s] += product
            along_first[s] += product * center
            along_second[s] += kernel[s] * weighted[s]
    steep = 2.0 / (bandwidth * bandwidth)
    for s in range(n):
        away = limited(first[s] - origin[0] - middle_first, abs(middle_first) + FAR * bandwidth)
        along_first[s] = steep * (along_first[s] - values[s] * away)
        away = limited(second[s] - origin[1] - middle_second, abs(middle_second) + FAR * bandwidth)
        along_second[s] = steep * (along_second[s] - values[s] * away)
    return values, along_first, along_second


@numba.njit(fastmath=False)
def values_to_bends(
    first: np.ndarray,
    second: np.ndarray,
    coefficients: np.ndarray,
    origin: tuple[float, float],
    spacing: tuple[float, float],
    length: tuple[int, int],
    bandwidth: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return Σ_l α_l φ_l, its two derivatives, and its second derivatives (11, 12 and 22).

    As `values_and_slopes`, with tables also weighted by the squares of the centers' coordinates.
    """
    check_sizes(first, second, coefficients.size, length[0] * length[1])
    left, right = kernel_factors(first, second, origin, spacing, length, bandwidth)
    n_first, n_second = length
    n = first.size
    middle_first = 0.5 * spacing[0] * (n_first - 1)
    middle_second = 0.5 * spacing[1] * (n_second - 1)
    table = np.empty((3 * n_first, n_second))
    for a in range(n_first):
        for b in range(n_second):
            alpha = coefficients[a * n_second + b]
            center = b * spacing[1] - middle_second
            table[a, b] = alpha
            table[n_first + a, b] = alpha * center
            table[2 * n_first + a, b] = alpha * center * center
    summed = np.dot(table, right)
    values, along_first, along_second = np.zeros(n), np.zeros(n), np.zeros(n)
    twice_first, both, twice_second = np.zeros(n), np.zeros(n), np.zeros(n)
    for a in range(n_first):
        center = a * spacing[0] - middle_first
        kernel, plain = left[a], summed[a]
        weighted, squared = summed[n_first + a], summed[2 * n_first + a]
        for s in range(n):
            product = kernel[s] * plain[s]
            values[s] += product
            along_first[s] += product * center
            twice_first[s] += product * center * center
            product = kernel[s] * weighted[s]
            along_second[s] += product
            both[s] += product * center
            twice_second[s] += kernel[s] * squared[s]
    steep = 2.0 / (bandwidth * bandwidth)
    for s in range(n):
        x = limited(first[s] - origin[0] - middle_first, abs(middle_first) + FAR * bandwidth)
        y = limited(second[s] - origin[1] - middle_second, abs(middle_second) + FAR * bandwidth)
        value, moment_first, moment_second = values[s], along_first[s], along_second[s]
        along_first[s] = steep * (moment_first - value * x)
        along_second[s] = steep * (moment_second - value * y)
        from_first = twice_first[s] - (2.0 * moment_first - value * x) * x
        from_second = twice_second[s] - (2.0 * moment_second - value * y) * y
        crossed = both[s] - moment_first * y - moment_second * x + value * x * y
        twice_first[s] = steep * (steep * from_first - value)
        both[s] = steep * steep * crossed
        twice_second[s] = steep * (steep * from_second - value)
    return values, along_first, along_second, twice_first, both, twice_second


@numba.njit(fastmath=False)
def values_alone(
    first: np.ndarray,
    second: np.ndarray,
    coefficients: np.ndarray,
    origin: tuple[float, float],
    spacing: tuple[float, float],
    length: tuple[int, int],
    bandwidth: float,
) -> np.ndarray:
    """Return Σ_l α_l φ_l(u_s)."""
    check_sizes(first, second, coefficients.size, length[0] * length[1])
    left, right = kernel_factors(first, second, origin, spacing, length, bandwidth)
    table = np.ascontiguousarray(coefficients).reshape(length)
    values: np.ndarray = weighted_sum(left, np.dot(table, right))
    return values


@numba.njit(fastmath=False)
def sums_of_kernels(
    first: np.ndarray,
    second: np.ndarray,
    weights: np.ndarray,
    origin: tuple[float, float],
    spacing: tuple[float, float],
    length: tuple[int, int],
    bandwidth: float,
) -> np.ndarray:
    """Return Σ_s w_s φ_l(u_s) as a table."""
    check_sizes(first, second, weights.size, first.size)
    left, right = kernel_factors(first, second, origin, spacing, length, bandwidth)
    for a in range(left.shape[0]):
        row = left[a]
        for s in range(row.size):
            row[s] *= weights[s]
    sums: np.ndarray = np.dot(left, right.T)
    return sums


class _Recurrence(Op):
    """An operator on an evenly spaced grid; see `pymc_mcoem.templates.bases.separable.EvenGrid`."""

    __props__: tuple[str, ...] = ("origin", "spacing", "length", "bandwidth")
    #: The compiled function, of three vectors and the grid's numbers.
    function: Any
    #: Its outputs, each a vector as long as the first.
    n_outputs = 1

    def __init__(self, grid: EvenGrid) -> None:
        self.origin, self.spacing = grid.origin, grid.spacing
        self.length, self.bandwidth = grid.length, grid.bandwidth

    def make_node(self, first: Any, second: Any, weights: Any) -> Apply:
        """Return the node for three vectors."""
        inputs = [pt.as_tensor_variable(each) for each in (first, second, weights)]
        return Apply(self, inputs, self.output_variables(inputs[0]))

    def output_variables(self, column: Any) -> list[Any]:
        """Return new outputs for points whose first coordinates are the column."""
        return [pt.tensor(dtype="float64", shape=column.type.shape) for _ in range(self.n_outputs)]

    def infer_shape(self, node: Any, shapes: Any) -> list[Any]:
        """Return the shapes of the outputs."""
        return [shapes[0]] * self.n_outputs

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        """Compute the outputs, when PyTensor folds constants."""
        vectors = (np.ascontiguousarray(value) for value in inputs)
        found = self.function(*vectors, self.origin, self.spacing, self.length, self.bandwidth)
        for storage, value in zip(
            outputs, found if isinstance(found, tuple) else (found,), strict=True
        ):
            storage[0] = value


class RecurrentValues(_Recurrence):
    """Σ_l α_l φ_l(u_s)."""

    function = staticmethod(values_alone)


class RecurrentSlopes(_Recurrence):
    """Σ_l α_l φ_l(u_s) and its derivatives by the two coordinates."""

    function = staticmethod(values_and_slopes)
    n_outputs = 3


class RecurrentBends(_Recurrence):
    """Σ_l α_l φ_l(u_s), its derivatives, and its second derivatives (11, 12 and 22)."""

    function = staticmethod(values_to_bends)
    n_outputs = 6


class RecurrentSums(_Recurrence):
    """Σ_s w_s φ_l(u_s)."""

    function = staticmethod(sums_of_kernels)

    def output_variables(self, column: Any) -> list[Any]:
        """Return a table of the grid's lengths."""
        return [pt.tensor(dtype="float64", shape=self.length)]

    def infer_shape(self, node: Any, shapes: Any) -> list[Any]:
        """Return the grid's lengths."""
        return [tuple(pt.constant(size, dtype="int64") for size in self.length)]


@register_funcify_default_op_cache_key(_Recurrence)
def _compile(op: _Recurrence, node: Any = None, **kwargs: Any) -> tuple[Any, int]:
    function, origin, spacing = op.function, op.origin, op.spacing
    length, bandwidth = op.length, op.bandwidth

    @numba_njit
    def compiled(first: Any, second: Any, weights: Any) -> Any:
        return function(first, second, weights, origin, spacing, length, bandwidth)

    modules = __name__, image_loops_numba.__name__, template_loops_numba.__name__
    return compiled, reduce(xor, map(version_of, modules))


def recurrence(name: str, grid: EvenGrid, inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of the replacement of the operator of that name."""
    if name == "KernelValues":
        return [RecurrentValues(grid)(*inputs)]
    if name == "KernelSums":
        return [RecurrentSums(grid)(*inputs)]
    if name == "KernelBends":
        bends: list[Any] = RecurrentBends(grid)(*inputs)[3:]
        return bends
    assert name == "KernelSlopes"
    slopes: list[Any] = RecurrentSlopes(grid)(*inputs)[1:]
    return slopes


def _settings(op: Any) -> tuple[Any, ...]:
    return tuple(getattr(op, name) for name in op.__props__)


def share_factors(fgraph: Any) -> None:
    """Replace several operators on the same inputs by the one with the most outputs.

    The outputs of `RecurrentBends` begin with those of `RecurrentSlopes`, and these with those of
    `RecurrentValues`.
    """
    kinds = RecurrentValues, RecurrentSlopes, RecurrentBends
    most: dict[Any, Any] = {}
    for kind in kinds:
        for node in fgraph.apply_nodes:
            if type(node.op) is kind:
                most[(_settings(node.op), *node.inputs)] = node
    for node in [node for node in fgraph.apply_nodes if isinstance(node.op, kinds)]:
        found = most[(_settings(node.op), *node.inputs)]
        if found is not node:
            pairs = list(zip(node.outputs, found.outputs, strict=False))
            fgraph.replace_all_validate(pairs, reason="share_factors")
