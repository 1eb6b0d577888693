"""Damped Newton steps towards a mode of a log-density.

(P + μ M) δ = g of gradient g and curvature P. M measures how long a step is. μ follows the ratio of
what a step gained and what it was to gain, and grows at once where P + μ M is not positive
definite.

In Python, for an iteration costs some twenty microseconds beside the evaluation of the density and
its derivatives, and numba took longer to compile the loop than a first image should wait.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

__all__ = ["MOST_DAMPING", "iterate", "solve"]

#: Damping beyond which no step is tried.
MOST_DAMPING = 1e12


def iterate(
    evaluate: Callable[..., float],
    k: int,
    x: np.ndarray,
    state: np.ndarray,
    gradient: np.ndarray,
    matrix: np.ndarray,
    lengths: np.ndarray,
    settings: np.ndarray,
    limit: int,
) -> int:
    """Go on with a search, and return how many points were evaluated.

    Parameters
    ----------
    evaluate : callable
        Of a class, a position, what is guessed of P there, `settings`, and the gradient, P and M
        to write; returns the log-density.
    k : int
        Class.
    x, gradient : ndarray of shape (n_latents,)
        Where the search is; both are changed.
    state : ndarray of shape (4,)
        Log-density at `x`, minus infinity where nothing is known yet; damping; whether the search
        has come to its end; by how much damping grows where the next step fails. Changed.
    matrix, lengths : ndarray of shape (n_latents, n_latents)
        P and M at `x`, or what is guessed of P where nothing is known yet; changed.
    settings : ndarray of float
        Tolerance, temperature, share of the residuals; then the least damping that helps, how it
        rises, and what is as good as none.
    limit : int
        Of evaluations.
    """
    tolerance, least, raising, free = settings[0], *settings[3:6]
    for count in range(limit):
        log_p, damping, _, growth = state.tolist()
        if log_p == -np.inf:
            value = evaluate(k, x, matrix, settings, gradient, matrix, lengths)
            if not np.isfinite(value):
                return count + 1
            state[0] = value
            continue
        step, used = solve(matrix, lengths, gradient, damping, least, raising)
        if used == np.inf:
            return count
        candidate = x + step
        found = np.empty_like(gradient), np.empty_like(matrix), np.empty_like(lengths)
        value = evaluate(k, candidate, matrix, settings, *found)
        gain, length = 0.5 * float(gradient @ step), float(step @ (lengths @ step))
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
            x[:] = candidate
            gradient[:], matrix[:], lengths[:] = found
            log_p = value
            # where the density is as quadratic as a nearly free step takes it to be, damping only
            # delays
            lowest = 0.0 if abs(ratio - 1.0) < 0.05 and used < free else 0.2
            damping = used * max(lowest, 1.0 - (2.0 * ratio - 1.0) ** 3)
            damping = 0.0 if damping < 1e-6 else damping
            growth = 2.0
        else:
            damping = max(used, 1e-3) * growth
            growth *= 2.0
        state[:] = log_p, damping, ends, growth
        if ends:
            return count + 1
    return limit


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
