"""Pareto k of importance ratios: how heavy their tail is.

ArviZ's `psislw` gives the same number. It is repeated here because every process computes it when
tuning ends, and importing ArviZ took up to two seconds.
"""

from __future__ import annotations

import numpy as np

__all__ = ["pareto_k"]

#: With fewer draws the tail, a fifth of them, would have fewer than five.
_MIN_DRAWS = 25

#: Log-ratios that differ by less are the same up to rounding.
_SAME = 1e-6


def pareto_k(log_ratio: np.ndarray) -> float:
    """Return the shape of a generalized Pareto distribution fitted to the largest ratios.

    Parameters
    ----------
    log_ratio : ndarray of shape (n,)
        Logarithms of target over proposal at draws of the proposal, up to a constant. NaN values
        are ignored; minus infinity is a draw without density.

    Returns
    -------
    float
        NaN with fewer than 25 draws, or if all draws with density have the same ratio and others
        have no density; minus infinity if all ratios, or all of the largest, are the same.

    Notes
    -----
    This is the posterior mean of Zhang and Stephens (2009), shrunk toward a half with the weight
    of ten observations (Vehtari, Simpson, Gelman, Yao and Gabry 2024).

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> round(pareto_k(-0.8 * np.log(rng.random(4_000))), 1)
    0.7
    """
    ratios = log_ratio[~np.isnan(log_ratio)]
    finite = np.isfinite(ratios)
    if len(ratios) < _MIN_DRAWS or not finite.any():
        return np.nan
    lowest, highest = ratios[finite].min(), ratios.max()
    if highest - lowest < _SAME:
        # All ratios are the same, or those of all draws that have a density.
        return -np.inf if finite.all() else np.nan
    ordered = np.sort(np.where(finite, ratios, lowest - 700.0) - highest)
    n = int(3 * np.sqrt(len(ordered))) if len(ordered) > 225 else len(ordered) // 5
    if ordered[-1] - ordered[-n] < np.finfo(float).tiny:
        return -np.inf
    excess = np.exp(ordered[-n:]) - np.exp(ordered[-n - 1])
    quartile = excess[int(n / 4 + 0.5) - 1]
    if quartile <= excess[0]:
        return np.nan
    n_points = 30 + int(np.sqrt(n))
    with np.errstate(all="ignore"):
        points = 1 - np.sqrt(n_points / (np.arange(1, n_points + 1) - 0.5))
        points = points / (3 * quartile) + 1 / excess[-1]
        shapes = np.log1p(-points[:, None] * excess).mean(axis=1)
        log_likelihood = n * (np.log(-points / shapes) - shapes - 1)
        weights = np.exp(log_likelihood - log_likelihood.max())
        weights /= weights.sum()
        # weights that are mere rounding would count if a shape is nan
        known = weights >= 10 * np.finfo(float).eps
        mean = (points[known] * weights[known]).sum() / weights[known].sum()
        shape = (n * np.log1p(-mean * excess).mean() + 5.0) / (n + 10)
    return float("inf") if np.isnan(shape) else float(shape)
