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
from pymc_mcoem.templates.image_loops_numba import kernels, template_values

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
def write_values(
    first: np.ndarray,
    second: np.ndarray,
    coefficients: np.ndarray,
    origin: tuple[float, float],
    spacing: tuple[float, float],
    length: tuple[int, int],
    bandwidth: float,
    out: np.ndarray,
) -> None:
    """Write Σ_l α_l φ_l and, where there is room, its derivatives: see `template_values`."""
    check_sizes(first, second, coefficients.size, length[0] * length[1])
    left, right = kernel_factors(first, second, origin, spacing, length, bandwidth)
    degree = 0 if out.shape[0] == 1 else 1 if out.shape[0] == 3 else 2
    template_values(
        left.ravel(),
        right.ravel(),
        np.concatenate((first, second)),
        np.ascontiguousarray(coefficients),
        np.array([origin[0], origin[1], spacing[0], spacing[1], bandwidth]),
        length[0],
        degree,
        np.empty((degree + 1) * left.size),
        out.ravel(),
    )


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
    out = np.empty((1, first.size))
    write_values(first, second, coefficients, origin, spacing, length, bandwidth, out)
    values: np.ndarray = out[0]
    return values


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
    out = np.empty((3, first.size))
    write_values(first, second, coefficients, origin, spacing, length, bandwidth, out)
    return out[0], out[1], out[2]


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
    """Return Σ_l α_l φ_l, its two derivatives, and its second derivatives (11, 12 and 22)."""
    out = np.empty((6, first.size))
    write_values(first, second, coefficients, origin, spacing, length, bandwidth, out)
    return out[0], out[1], out[2], out[3], out[4], out[5]


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
