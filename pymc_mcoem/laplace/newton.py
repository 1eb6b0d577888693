"""Damped Newton steps towards a mode of a log-density.

(P + μ M) δ = g of gradient g and curvature P. M measures how long a step is. μ follows the ratio of
what a step gained and what it was to gain, and grows at once where P + μ M is not positive
definite.

Searches take a step each before any takes the next, so that what is NumPy's of their densities can
be computed together. In Python, for an iteration costs some twenty microseconds beside the
evaluation, and numba took longer to compile the loop than a first image should wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    rows: Iterable[int],
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
    rows : iterable of int
        Which of them go on; those that are done do not.
    settings : ndarray of float
        Tolerance, temperature, share of the residuals; then the least damping that helps, how it
        rises, and what is as good as none.
    limit : int
        Of evaluations of each.
    """
    least, raising = settings[3:5].tolist()
    rows = [row for row in rows if not searches.done[row]]
    for _ in range(limit):
        steps = {}
        for row in rows:
            step, used = np.zeros_like(searches.position[row]), 0.0
            if searches.log_density[row] > -np.inf:
                step, used = solve(
                    searches.matrix[row],
                    searches.lengths[row],
                    searches.gradient[row],
                    float(searches.damping[row]),
                    least,
                    raising,
                )
            if used < np.inf:
                steps[row] = step, used
        if not steps:
            return
        tried = list(steps)
        searches.n_iterations[tried] += 1
        candidates = searches.position[tried] + [step for step, _ in steps.values()]
        found = evaluate(searches.classes[tried], candidates, searches.matrix[tried], settings)
        answers = zip(*found, strict=True)
        rows = [
            row
            for (row, step), answer in zip(steps.items(), answers, strict=True)
            if _goes_on(searches, row, *step, settings, *answer)
        ]


def _goes_on(
    searches: Searches,
    row: int,
    step: np.ndarray,
    used: float,
    settings: np.ndarray,
    value: float,
    *found: np.ndarray,
) -> bool:
    """Take or refuse a step, change the damping, and return whether the search goes on."""
    log_p, value = float(searches.log_density[row]), float(value)
    if log_p == -np.inf:
        searches.gradient[row], searches.matrix[row], searches.lengths[row] = found
        if np.isfinite(value):
            searches.log_density[row] = value
        return bool(np.isfinite(value))
    tolerance, free = float(settings[0]), float(settings[5])
    gain = 0.5 * float(searches.gradient[row] @ step)
    length = float(step @ (searches.lengths[row] @ step))
    # δᵀg − δᵀPδ / 2, of (P + μM) δ = g
    expected = gain + 0.5 * used * length
    gained = value - log_p if np.isfinite(value) else 0.0
    # what is lost in the rounding of the density is believed
    rounding = 1e-14 * (1.0 + abs(log_p))
    ratio = 1.0
    if expected > rounding:
        ratio = min(max(gained / expected, -1e3), 1e3)
    # A damped step promises too little: only one that damping hardly shortens may end the
    # search. Without a slope it says nothing, for on a saddle there is none either.
    hardly = used * length <= 0.2 * gain and gain > 0.0
    ends = gain < tolerance and (hardly or used < free)
    if np.isfinite(value) and gained >= -rounding:
        searches.position[row] += step
        searches.gradient[row], searches.matrix[row], searches.lengths[row] = found
        searches.log_density[row] = value
        # where the density is as quadratic as a nearly free step takes it to be, damping only
        # delays
        lowest = 0.0 if abs(ratio - 1.0) < 0.05 and used < free else 0.2
        damping = used * max(lowest, 1.0 - (2.0 * ratio - 1.0) ** 3)
        searches.damping[row] = 0.0 if damping < 1e-6 else damping
        searches.growth[row] = 2.0
    else:
        searches.damping[row] = max(used, 1e-3) * searches.growth[row]
        searches.growth[row] *= 2.0
    searches.done[row] = ends
    return not ends


def solve(
    matrix: np.ndarray,
    lengths: np.ndarray,
    gradient: np.ndarray,
    damping: float,
    least: float,
    raising: float,
) -> tuple[np.ndarray, float]:
    """Return a damped step and the damping that it took, infinite where none helps; see `iterate`.

    Both matrices are symmetric.
    """
    used = damping
    while used <= MOST_DAMPING:
        # the transpose is the same matrix in the order that LAPACK takes without a copy
        damped = (matrix + used * lengths).T
        factor, failed = dpotrf(damped, lower=True, clean=False, overwrite_a=True)
        if not failed:
            step, _ = dpotrs(factor, gradient, lower=True)
            if np.isfinite(step).all():
                return step, used
        used = max(raising * used, least)
    return gradient, np.inf
