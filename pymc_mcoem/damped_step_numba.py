"""`pymc_mcoem.damped_step.DampedStep` on the numba back end.

LAPACK's factorisation through numba would allocate, copy and clear its matrix; below is one that
ends where the matrix is found not to be positive definite, which half of them are not. Sums are
taken as they are written: with fast math a process that compiles and one that finds it compiled
have other last bits.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key

from pymc_mcoem.damped_step import MOST_DAMPING, DampedStep
from pymc_mcoem.operators import version_of

__all__ = ["NumbaDampedStep", "factorise", "solve"]


@numba.njit(fastmath=False, error_model="numpy")
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


@numba.njit(fastmath=False, error_model="numpy")
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


@numba.njit(fastmath=False, error_model="numpy")
def solve(upper: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the solution of a system whose matrix has this factor of `factorise`."""
    n = len(right)
    found = right.copy()
    for i in range(n):
        row, rest = upper[i, i:], found[i:]
        value = rest[0] * row[0]
        for j in range(row.size):
            rest[j] -= value * row[j]
        rest[0] = value
    for i in range(n - 1, -1, -1):
        total = 0.0
        for j in range(i + 1, n):
            total += upper[i, j] * found[j]
        found[i] = (found[i] - total) * upper[i, i]
    return found


@numba.njit(fastmath=False, error_model="numpy")
def _squared_length(metric: np.ndarray, vector: np.ndarray) -> float:
    """Return vᵀ M v of a symmetric M."""
    across = np.zeros(len(vector))
    for i in range(len(vector)):
        value, row = vector[i], metric[i]
        for j in range(row.size):
            across[j] += value * row[j]
    total = 0.0
    for j in range(len(vector)):
        total += across[j] * vector[j]
    return total


class NumbaDampedStep(DampedStep):
    """`DampedStep` with the functions of this module."""


@register_funcify_default_op_cache_key(NumbaDampedStep)
def _compile(op: NumbaDampedStep, node: Any = None, **kwargs: Any) -> Any:
    least, raising, most = float(op.least), float(op.raising), MOST_DAMPING

    @numba.njit(error_model="numpy")
    def step(matrix: Any, metric: Any, gradient: Any, damping: Any) -> Any:
        used = damping.item()
        upper = np.empty(matrix.shape)
        found = np.full(len(gradient), np.nan)
        while used <= most:
            if factorise(matrix, metric, used, upper):
                found = solve(upper, gradient)
                break
            used = max(raising * used, least)
        return found, np.asarray(used), np.asarray(_squared_length(metric, found))

    return step, version_of(__name__)
