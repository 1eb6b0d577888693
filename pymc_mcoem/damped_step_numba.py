"""`pymc_mcoem.damped_step.DampedStep` on the numba back end.

LAPACK's factorisation through numba would allocate, copy and clear its matrix; below is one that
ends where the matrix is found not to be positive definite, which half of them are not. Sums are
taken as they are written: with fast math a process that compiles and one that finds it compiled
have other last bits, and what it gains is a tenth of a factorisation.
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
def factorise(matrix: np.ndarray, metric: np.ndarray, damping: float, lower: np.ndarray) -> bool:
    """Write the Cholesky factor of ``matrix + damping * metric`` into `lower`, if there is one.

    Returns whether there is. On the diagonal stand inverses. Four columns at a time, for what they
    share.
    """
    n = len(matrix)
    for i in range(n):
        row, of_matrix, of_metric = lower[i], matrix[i], metric[i]
        j = 0
        while j + 4 <= i:
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            first, second, third, fourth = lower[j], lower[j + 1], lower[j + 2], lower[j + 3]
            for t in range(j):
                value = row[t]
                a += value * first[t]
                b += value * second[t]
                c += value * third[t]
                d += value * fourth[t]
            a = (of_matrix[j] + damping * of_metric[j] - a) * first[j]
            b = of_matrix[j + 1] + damping * of_metric[j + 1] - b - a * second[j]
            b *= second[j + 1]
            c = of_matrix[j + 2] + damping * of_metric[j + 2] - c - a * third[j] - b * third[j + 1]
            c *= third[j + 2]
            d = of_matrix[j + 3] + damping * of_metric[j + 3] - d
            d -= a * fourth[j] + b * fourth[j + 1] + c * fourth[j + 2]
            d *= fourth[j + 3]
            row[j], row[j + 1], row[j + 2], row[j + 3] = a, b, c, d
            j += 4
        while j < i:
            total = 0.0
            for t in range(j):
                total += row[t] * lower[j, t]
            row[j] = (of_matrix[j] + damping * of_metric[j] - total) * lower[j, j]
            j += 1
        total = 0.0
        for t in range(i):
            total += row[t] * row[t]
        rest = of_matrix[i] + damping * of_metric[i] - total
        if not (rest > 0.0 and rest < np.inf):
            return False
        row[i] = 1.0 / np.sqrt(rest)
    return True


@numba.njit(fastmath=False, error_model="numpy")
def solve(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the solution of a system whose matrix has this factor of `factorise`."""
    n = len(right)
    found = np.empty(n)
    for i in range(n):
        total = 0.0
        for t in range(i):
            total += lower[i, t] * found[t]
        found[i] = (right[i] - total) * lower[i, i]
    for i in range(n - 1, -1, -1):
        value = found[i] * lower[i, i]
        found[i] = value
        for t in range(i):
            found[t] -= lower[i, t] * value
    return found


@numba.njit(fastmath=False, error_model="numpy")
def _squared_length(metric: np.ndarray, vector: np.ndarray) -> float:
    total = 0.0
    for i in range(len(vector)):
        inner = 0.0
        for j in range(len(vector)):
            inner += metric[i, j] * vector[j]
        total += vector[i] * inner
    return total


class NumbaDampedStep(DampedStep):
    """`DampedStep` with the functions of this module."""


@register_funcify_default_op_cache_key(NumbaDampedStep)
def _compile(op: NumbaDampedStep, node: Any = None, **kwargs: Any) -> Any:
    least, raising, most = float(op.least), float(op.raising), MOST_DAMPING

    @numba.njit(error_model="numpy")
    def step(matrix: Any, metric: Any, gradient: Any, damping: Any) -> Any:
        used = damping.item()
        lower = np.empty(matrix.shape)
        found = np.full(len(gradient), np.nan)
        while used <= most:
            if factorise(matrix, metric, used, lower):
                found = solve(lower, gradient)
                break
            used = max(raising * used, least)
        return found, np.asarray(used), np.asarray(_squared_length(metric, found))

    return step, version_of(__name__)
