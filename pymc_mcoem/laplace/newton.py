"""Damped Newton steps towards a mode of a log-density.

(P + μ M) δ = g of gradient g and curvature P. M measures how long a step is. μ follows the ratio of
what a step gained and what it was to gain, and grows at once where P + μ M is not positive
definite.

Searches take a step each before any takes the next, so that what is NumPy's of their densities can
be computed together. In Python, for an iteration costs some twenty microseconds beside the
evaluation, and numba took longer to compile the loop than a first image should wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

if TYPE_CHECKING:
    from pymc_mcoem.laplace.schedule import Searches

__all__ = ["MOST_DAMPING", "iterate", "solve"]

#: Damping beyond which no step is tried.
MOST_DAMPING = 1e12


def iterate(
    evaluate: Callable[..., tuple[np.ndarray, ...]],
    searches: Searches,
    rows: np.ndarray,
    settings: np.ndarray,
    limit: int,
) -> None:
    """Go on with searches, all of them a step at a time.

    Parameters
    ----------
    evaluate : callable
        Of classes (n,), positions (n, n_latents), what is guessed of P there, and `settings`;
        returns log-densities (n,), gradients, and P and M, (n, n_latents, n_latents).
    searches : Searches
        Changed.
    rows : ndarray of int
        Which of them go on, of known density; those that are done do not.
    settings : ndarray of float
        Tolerance, temperature, share of the residuals; then the least damping that helps, how it
        rises, and what is as good as none.
    limit : int
        Of evaluations of each.
    """
    tolerance, least, raising, free = settings[0], *settings[3:6].tolist()
    for _ in range(limit):
        rows = rows[~searches.done[rows]]
        lengths, gradient = searches.lengths[rows], searches.gradient[rows]
        matrix, damping = searches.matrix[rows], searches.damping[rows]
        step, used = solve(matrix, lengths, gradient, damping, least, raising)
        if not (helps := used < np.inf).all():
            rows, step, used, gradient = rows[helps], step[helps], used[helps], gradient[helps]
            matrix, lengths = matrix[helps], lengths[helps]
        if not rows.size:
            return
        candidate, log_p = searches.position[rows] + step, searches.log_density[rows]
        value, *found = evaluate(searches.classes[rows], candidate, matrix, settings)
        searches.n_iterations[rows] += 1
        gain = 0.5 * (gradient * step).sum(axis=1)
        length = (step * (lengths @ step[:, :, None])[:, :, 0]).sum(axis=1)
        # δᵀg − δᵀPδ / 2, of (P + μM) δ = g
        expected = gain + 0.5 * used * length
        gained = np.where(np.isfinite(value), value - log_p, -np.inf)
        # what is lost in the rounding of the density is believed
        rounding = 1e-14 * (1.0 + np.abs(log_p))
        ratio = np.ones(len(rows))
        np.divide(gained, expected, out=ratio, where=expected > rounding)
        # A damped step promises too little: only one that damping hardly shortens may end the
        # search. Without a slope it says nothing, for on a saddle there is none either.
        hardly = (used * length <= 0.2 * gain) & (gain > 0.0)
        searches.done[rows] = (gain < tolerance) & (hardly | (used < free))
        # where the density is as quadratic as a nearly free step takes it to be, damping only
        # delays
        lowest = np.where((np.abs(ratio - 1.0) < 0.05) & (used < free), 0.0, 0.2)
        lower = used * np.maximum(lowest, 1.0 - (2.0 * ratio.clip(-1e3, 1e3) - 1.0) ** 3)
        taken = gained >= -rounding
        growth = searches.growth[rows]
        searches.damping[rows] = np.where(
            taken, np.where(lower < 1e-6, 0.0, lower), np.maximum(used, 1e-3) * growth
        )
        searches.growth[rows] = np.where(taken, 2.0, 2.0 * growth)
        better = rows[taken]
        searches.position[better] = candidate[taken]
        searches.know(better, value[taken], *(each[taken] for each in found))


def solve(
    matrix: np.ndarray,
    lengths: np.ndarray,
    gradient: np.ndarray,
    damping: np.ndarray,
    least: float,
    raising: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return damped steps of n searches and the damping that each took; see `iterate`.

    Damping is infinite where none helps. All matrices (n, n_latents, n_latents) are symmetric.
    """
    step, used, left = np.empty_like(gradient), damping.copy(), np.arange(len(damping))
    while left.size:
        damped = matrix[left] + used[left, None, None] * lengths[left]
        for row, each in zip(left.tolist(), damped, strict=True):
            # the transpose is the same matrix in the order that LAPACK takes without a copy
            factor, failed = dpotrf(each.T, lower=True, clean=False, overwrite_a=True)
            step[row] = np.nan if failed else dpotrs(factor, gradient[row], lower=True)[0]
        left = left[~np.isfinite(step[left]).all(axis=1)]
        raised = np.maximum(raising * used[left], least)
        used[left] = np.where(raised <= MOST_DAMPING, raised, np.inf)
        left = left[raised <= MOST_DAMPING]
    return step, used
