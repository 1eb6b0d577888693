"""Climb a log-density from many points together, by steps that use gradients only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["climb", "evaluated", "spread_of"]


def climb(
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    points: np.ndarray,
    spread: np.ndarray,
    leads_to_known: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    n_iterations: int = 40,
    tolerance: float = 2e-3,
) -> tuple[np.ndarray, np.ndarray]:
    """Move many points up a log-density together, to near its modes.

    The steps are those of Broyden, Fletcher, Goldfarb and Shanno in units of `spread`, at most one
    unit long, so that a point usually ends on the hill on which it begins.

    Parameters
    ----------
    evaluate : callable
        Takes points ``(n, d)`` and returns log-densities ``(n,)`` and gradients ``(n, d)``.
    points : ndarray of shape (n, d)
    spread : ndarray of shape (d,)
    leads_to_known : callable, optional
        Takes points ``(n, d)`` and their log-densities ``(n,)`` and returns which of them are near
        a known mode, ``(n,)``. These stop.
    tolerance : float
        A point stops when its next step promises a smaller gain in log-density.

    Returns
    -------
    ends : ndarray of shape (n, d)
    heights : ndarray of shape (n,)
        Log-densities at `ends`, minus infinity for points that began outside the support.

    Examples
    --------
    >>> ends, _ = climb(
    ...     lambda x: (-0.5 * (x**2).sum(axis=1), -x), np.array([[3.0], [-2.0]]), np.ones(1)
    ... )
    >>> bool(np.abs(ends).max() < 0.5)
    True
    """
    n, d = points.shape
    z = points / spread
    heights, slopes = evaluated(evaluate, z, spread)
    inverse = np.tile(np.eye(d), (n, 1, 1))
    is_first = np.ones(n, dtype=bool)
    size = np.ones(n)
    moving = np.isfinite(heights)
    for _ in range(n_iterations):
        rows = np.flatnonzero(moving)
        if not rows.size:
            break
        direction = np.einsum("nab,nb->na", inverse[rows], slopes[rows])
        length = np.linalg.norm(direction, axis=1)
        direction *= np.minimum(1.0, 1.0 / np.maximum(length, 1e-300))[:, None]
        promised = (direction * slopes[rows]).sum(axis=1)
        step = size[rows, None] * direction
        new_heights, new_slopes = evaluated(evaluate, z[rows] + step, spread)
        better = new_heights >= heights[rows] + 1e-4 * size[rows] * promised
        up = rows[better]
        bend = slopes[up] - new_slopes[better]
        inverse[up] = _updated(inverse[up], step[better], bend, is_first[up])
        is_first[up] = False
        z[up] += step[better]
        heights[up], slopes[up] = new_heights[better], new_slopes[better]
        size[up] = 1.0
        size[rows[~better]] *= 0.25
        moving[rows] = np.where(better, 0.5 * promised > tolerance, size[rows] > 1e-6)
        if leads_to_known is not None:
            moving[rows] &= ~leads_to_known(z[rows] * spread, heights[rows])
    return z * spread, heights


def evaluated(
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    z: np.ndarray,
    spread: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return heights, minus infinity if not finite, and slopes in units of `spread`."""
    if not len(z):
        return np.zeros(0), np.zeros_like(z)
    values, slopes = evaluate(z * spread)
    is_fine = np.isfinite(values) & np.isfinite(slopes).all(axis=1)
    return np.where(is_fine, values, -np.inf), np.where(is_fine[:, None], slopes * spread, 0.0)


def _updated(
    inverse: np.ndarray, step: np.ndarray, bend: np.ndarray, is_first: np.ndarray
) -> np.ndarray:
    """Return updated inverse curvatures, unchanged where the density is convex."""
    product = (step * bend).sum(axis=1)
    squares = (bend**2).sum(axis=1)
    is_fine = product > 1e-10 * np.sqrt((step**2).sum(axis=1) * squares)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(is_first & is_fine, product / squares, 1.0)
        rho = np.where(is_fine, 1.0 / product, 0.0)
    identity = np.eye(step.shape[1])
    now = np.where((is_first & is_fine)[:, None, None], first[:, None, None] * identity, inverse)
    across = np.einsum("nab,nb->na", now, bend)
    both = np.einsum("na,nb->nab", step, across)
    weight = rho * (1.0 + rho * (across * bend).sum(axis=1))
    found: np.ndarray = (
        now
        - rho[:, None, None] * (both + np.swapaxes(both, 1, 2))
        + weight[:, None, None] * np.einsum("na,nb->nab", step, step)
    )
    return found


def spread_of(points: np.ndarray) -> np.ndarray:
    """Return a scale of points in each coordinate, from their interquartile range."""
    if not len(points):
        return np.ones(points.shape[1])
    low, high = np.quantile(points, [0.25, 0.75], axis=0)
    found = (high - low) / 1.35
    usual: np.ndarray = np.where(found > 1e-10 * np.maximum(1.0, np.abs(high)), found, 1.0)
    return usual
