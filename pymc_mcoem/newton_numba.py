"""The search of `pymc_mcoem.newton`, compiled by numba once for all models.

LAPACK's factorisation through numba would allocate, copy and clear its matrix; below is one that
ends where the matrix is found not to be positive definite, which half of them are not.

Importing this module imports numba.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numba import extending, types
from numba.experimental import structref

from pymc_mcoem import newton
from pymc_mcoem.compiled_once import compiled_once
from pymc_mcoem.newton import MOST_DAMPING

__all__ = ["NewtonFunctions", "factorise", "hold", "no_bend", "no_slope", "search"]

_REALS, _INTEGERS, _MATRIX = types.float64[::1], types.int64[::1], types.float64[:, ::1]

#: (class, position, settings, reals, integers, gradient to write) → log-density.
SLOPE = types.FunctionType(types.float64(types.int64, _REALS, _REALS, _REALS, _INTEGERS, _REALS))
#: The same, which writes curvature and metric too.
BEND = types.FunctionType(
    types.float64(types.int64, _REALS, _REALS, _REALS, _INTEGERS, _REALS, _MATRIX, _MATRIX)
)


@structref.register
class _FunctionsType(types.StructRef):
    """Type of `NewtonFunctions`."""


class NewtonFunctions(structref.StructRefProxy):
    """The functions that a search calls, of which one stands for none."""


structref.define_boxing(_FunctionsType, NewtonFunctions)
_FUNCTIONS = _FunctionsType([("slope", SLOPE), ("bend", BEND), ("is_bent", types.boolean)])


@compiled_once(_FUNCTIONS(SLOPE, BEND, types.boolean))
def hold(slope: Any, bend: Any, is_bent: bool) -> Any:
    """Return functions held together."""
    held = structref.new(_FUNCTIONS)
    held.slope, held.bend, held.is_bent = slope, bend, is_bent
    return held


@compiled_once(SLOPE.signature)
def no_slope(k: Any, x: Any, settings: Any, reals: Any, integers: Any, gradient: Any) -> Any:
    """Stand where the curvature is written out."""
    return np.nan


@compiled_once(BEND.signature)
def no_bend(
    k: Any,
    x: Any,
    settings: Any,
    reals: Any,
    integers: Any,
    gradient: Any,
    matrix: Any,
    lengths: Any,
) -> Any:
    """Stand where the curvature is not written out."""
    return np.nan


def _evaluate(
    density: Any,
    k: int,
    x: np.ndarray,
    spread: np.ndarray,
    settings: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
    gradient: np.ndarray,
    matrix: np.ndarray,
    lengths: np.ndarray,
) -> Any:
    """Evaluate density, gradient and curvature: as written out, or by differences of gradients."""
    if density.is_bent:
        return density.bend(k, x, settings, reals, integers, gradient, matrix, lengths)
    slope, n = density.slope, len(x)
    value = slope(k, x, settings, reals, integers, gradient)
    away, above, below = x.copy(), np.empty(n), np.empty(n)
    for a in range(n):
        step = 1e-4 * spread[a]
        away[a] = x[a] + step
        is_ahead = np.isfinite(slope(k, away, settings, reals, integers, above))
        away[a] = x[a] - step
        is_behind = np.isfinite(slope(k, away, settings, reals, integers, below))
        away[a] = x[a]
        # Of a kink, or a bound, between two points one side knows nothing: it is believed.
        ahead, behind = abs(gradient[a] - above[a]), abs(below[a] - gradient[a])
        weight = 0.5
        if abs(ahead - behind) > 0.5 * max(ahead, behind):
            weight = 1.0 if ahead < behind else 0.0
        if is_ahead != is_behind:
            weight = 1.0 if is_ahead else 0.0
        for b in range(n):
            found = 0.0
            if weight > 0.0:
                found += weight * (gradient[b] - above[b]) / step
            if weight < 1.0:
                found += (1.0 - weight) * (below[b] - gradient[b]) / step
            matrix[a, b] = found
    for a in range(n):
        for b in range(n):
            lengths[a, b] = 0.0
        for b in range(a):
            mean = 0.5 * (matrix[a, b] + matrix[b, a])
            matrix[a, b], matrix[b, a] = mean, mean
        lengths[a, a] = max(abs(matrix[a, a]), 1e-10)
    return value


@compiled_once()
def factorise(matrix: np.ndarray, metric: np.ndarray, damping: float, upper: np.ndarray) -> bool:
    """Write U with ``UᵀU = matrix + damping * metric`` into the rows of `upper`, if there is one.

    Returns whether there is. Both matrices are symmetric; only their upper triangles are read. On
    the diagonal of U stand inverses, and what is below it is not to be read.
    Four rows at a time, for what they share. Every inner loop runs along rows and adds up nothing
    within one, so that the compiler makes vector instructions of it although sums are strict; it
    does so for views that begin at zero, and not for an index that might be negative.
    """
    n = len(matrix)
    first = 0
    while first < n:
        size = min(4, n - first)
        for k in range(size):
            row = upper[first + k, first:]
            of_matrix, of_metric = matrix[first + k, first:], metric[first + k, first:]
            for j in range(row.size):
                row[j] = of_matrix[j] + damping * of_metric[j]
        if size == 4:
            _subtract_rows(upper, first)
        else:
            for k in range(size):
                row = upper[first + k, first:]
                for t in range(first):
                    above = upper[t, first:]
                    for j in range(row.size):
                        row[j] -= above[k] * above[j]
        for k in range(size):
            row = upper[first + k, first:]
            for t in range(k):
                above = upper[first + t, first:]
                for j in range(row.size):
                    row[j] -= above[k] * above[j]
            rest = row[k]
            if not (rest > 0.0 and rest < np.inf):
                return False
            inverse = 1.0 / np.sqrt(rest)
            for j in range(row.size):
                row[j] *= inverse
            row[k] = inverse
        first += 4
    return True


@compiled_once()
def _subtract_rows(upper: np.ndarray, first: int) -> None:
    """Subtract from four rows what the rows above them, a multiple of four, make of them."""
    o, p, q, r = (
        upper[first, first:],
        upper[first + 1, first:],
        upper[first + 2, first:],
        upper[first + 3, first:],
    )
    for t in range(0, first, 4):
        a, b, c, d = (
            upper[t, first:],
            upper[t + 1, first:],
            upper[t + 2, first:],
            upper[t + 3, first:],
        )
        a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
        b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
        c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
        d0, d1, d2, d3 = d[0], d[1], d[2], d[3]
        for j in range(o.size):
            x, y, z, w = a[j], b[j], c[j], d[j]
            o[j] -= a0 * x + b0 * y + c0 * z + d0 * w
            p[j] -= a1 * x + b1 * y + c1 * z + d1 * w
            q[j] -= a2 * x + b2 * y + c2 * z + d2 * w
            r[j] -= a3 * x + b3 * y + c3 * z + d3 * w


def _solve(
    matrix: np.ndarray,
    lengths: np.ndarray,
    gradient: np.ndarray,
    damping: float,
    least: float,
    raising: float,
    step: np.ndarray,
) -> Any:
    """Write a damped step, and return the damping that it took; see `newton.iterate`."""
    n = len(gradient)
    upper, used = np.empty((n, n)), damping
    while used <= MOST_DAMPING:
        if factorise(matrix, lengths, used, upper):
            step[:] = gradient
            for i in range(n):
                row, rest = upper[i, i:], step[i:]
                value = rest[0] * row[0]
                for j in range(row.size):
                    rest[j] -= value * row[j]
                rest[0] = value
            for i in range(n - 1, -1, -1):
                total = 0.0
                for j in range(i + 1, n):
                    total += upper[i, j] * step[j]
                step[i] = (step[i] - total) * upper[i, i]
            return used
        used = max(raising * used, least)
    return np.inf


def _always(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """Return what numba asks which implementation suits some types: this one suits all."""

    @wraps(implementation)
    def choose(*types: Any) -> Callable[..., Any]:
        return implementation

    return choose


extending.overload(newton.evaluate)(_always(_evaluate))
extending.overload(newton.solve)(_always(_solve))
search = compiled_once(uses=[newton, sys.modules[__name__]])(newton.iterate)
