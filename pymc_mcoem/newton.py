"""Damped Newton steps towards a mode of a log-density.

(P + μ M) δ = g of gradient g and curvature P. M measures how long a step is. μ follows the ratio of
what a step gained and what it was to gain, and grows at once where P + μ M is not positive
definite.

One piece of code in two forms: Python runs it where a search is made a few times, as when a chain
of ``pm.sample`` starts, and numba compiles it (`newton_numba`) where it is made for every
observation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

__all__ = ["MOST_DAMPING", "evaluate", "iterate", "solve"]

#: Damping beyond which no step is tried.
MOST_DAMPING = 1e12


def iterate(
    density: Any,
    k: int,
    x: np.ndarray,
    state: np.ndarray,
    gradient: np.ndarray,
    matrix: np.ndarray,
    lengths: np.ndarray,
    settings: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
    limit: int,
) -> int:
    """Go on with a search, and return how many points were evaluated.

    Parameters
    ----------
    density : callable
        As `evaluate` takes it.
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
    reals, integers : ndarray
        For a compiled density.
    limit : int
        Of evaluations.
    """
    n = len(x)
    tolerance, least, raising, free = settings[0], settings[3], settings[4], settings[5]
    log_p, damping, growth = state[0], state[1], state[3]
    new_gradient, step = np.empty(n), np.empty(n)
    new_matrix, new_lengths = np.empty((n, n)), np.empty((n, n))
    spread = np.empty(n)
    for count in range(limit):
        # how far apart differences of gradients are taken
        for a in range(n):
            size = max(1.0, abs(x[a]))
            bend = abs(matrix[a, a])
            spread[a] = min(max(1.0 / np.sqrt(bend) if bend > 0.0 else size, 1e-6 * size), size)
        if log_p == -np.inf:
            value = evaluate(
                density, k, x, spread, settings, reals, integers, gradient, matrix, lengths
            )
            if not np.isfinite(value):
                return count + 1
            log_p = value
            state[0] = log_p
            continue
        used = solve(matrix, lengths, gradient, damping, least, raising, step)
        if used == np.inf:
            return count
        candidate = x + step
        value = evaluate(
            density,
            k,
            candidate,
            spread,
            settings,
            reals,
            integers,
            new_gradient,
            new_matrix,
            new_lengths,
        )
        gain, length = 0.0, 0.0
        for a in range(n):
            gain += 0.5 * gradient[a] * step[a]
            across = 0.0
            for b in range(n):
                across += lengths[a, b] * step[b]
            length += step[a] * across
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
            x[:], gradient[:] = candidate, new_gradient
            matrix[:], lengths[:] = new_matrix, new_lengths
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
        state[0], state[1], state[3] = log_p, damping, growth
        if ends:
            state[2] = 1.0
            return count + 1
    return limit


def evaluate(
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
) -> float:
    """Return a log-density, and write its gradient, its curvature and what measures steps.

    `spread` is how far apart differences of gradients may be taken, in each coordinate.
    """
    value: float = density(k, x, spread, settings, gradient, matrix, lengths)
    return value


def solve(
    matrix: np.ndarray,
    lengths: np.ndarray,
    gradient: np.ndarray,
    damping: float,
    least: float,
    raising: float,
    step: np.ndarray,
) -> float:
    """Write a damped step by LAPACK, and return the damping that it took; see `iterate`."""
    used = damping
    while used <= MOST_DAMPING:
        factor, failed = dpotrf(matrix + used * lengths, lower=True)
        if not failed and np.isfinite(factor).all():
            step[:], _ = dpotrs(factor, gradient, lower=True)
            return used
        used = max(raising * used, least)
    return np.inf
