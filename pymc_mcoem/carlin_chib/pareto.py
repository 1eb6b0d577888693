"""Pareto k of importance ratios: how heavy their tail is.

ArviZ's `psislw` gives the same number. Here it is again, for a chain asks when its tuning ends, in
every process, and waited up to two seconds for what ArviZ imports.
"""

from __future__ import annotations

import numpy as np

__all__ = ["pareto_k"]

#: A tail is a fifth of the draws, and five at least.
_MIN_DRAWS = 25

#: Log-ratios that differ by less are the same, but for rounding.
_SAME = 1e-6


def pareto_k(log_ratio: np.ndarray) -> float:
    """Return the shape of a generalised Pareto distribution fitted to the largest ratios.

    Parameters
    ----------
    log_ratio : ndarray of shape (n,)
        Logarithms of target over proposal at draws of the proposal, up to a constant. NaN draws
        are left out; minus infinity is a draw without density.

    Returns
    -------
    float
        NaN of fewer than 25 draws, or of draws without density beside one value; minus infinity
        where all ratios, or all of the largest, are the same.

    Notes
    -----
    Posterior mean of Zhang and Stephens (2009), drawn towards a half as by ten observations more
    (Vehtari, Simpson, Gelman, Yao and Gabry 2024).

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> round(pareto_k(-0.8 * np.log(rng.random(4_000))), 1)
    0.7
    """
    kept = log_ratio[~np.isnan(log_ratio)]
    finite = np.isfinite(kept)
    if len(kept) < _MIN_DRAWS or not finite.any():
        return np.nan
    lowest, highest = kept[finite].min(), kept.max()
    if highest - lowest < _SAME:
        # One value, or one value beside draws without any density.
        return -np.inf if finite.all() else np.nan
    ordered = np.sort(np.where(finite, kept, lowest - 700.0) - highest)
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
        # those that are rounding alone would count where a shape is not a number
        known = weights >= 10 * np.finfo(float).eps
        mean = (points[known] * weights[known]).sum() / weights[known].sum()
        shape = (n * np.log1p(-mean * excess).mean() + 5.0) / (n + 10)
    return float("inf") if np.isnan(shape) else float(shape)
