"""Bounds from the prior on a class's normal approximation if the curvature at a mode is too flat.

A density may be flatter than its prior at a mode, or have no mode at all: the density of a
covariance and of effects drawn with it is unbounded as both go to zero. A normal with such a
curvature extends to regions without mass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pymc_mcoem.laplace.modes import Modes, ModeStatus, cholesky_factors

__all__ = ["bounded", "bounded_rows", "importance_fit"]

#: Largest ratio of a variance to that of the prior draws, which are few.
_SLACK = 4.0

#: Fewest finite draws per latent for which the prior is used.
_FEWEST_DRAWS = 5

#: Rounds of a fit, and the effective draws per latent that a round needs.
_N_ROUNDS, _EFFECTIVE = 6, 5

#: Fewest draws for variances alone, and the share of a round's points that is to be effective.
_FEWEST_FOR_VARIANCES, _SHARE_EFFECTIVE = 20, 0.2


def bounded(modes: Modes, draws: np.ndarray) -> Modes:
    """Return modes with covariances that are bounded by the prior's in every direction.

    Parameters
    ----------
    draws : ndarray of shape (n_draws, n_latents)
        Draws of the prior. With fewer than five per latent nothing is bounded.

    Examples
    --------
    >>> one = np.ones((1, 1, 1))
    >>> flat = Modes(
    ...     np.zeros((1, 1)),
    ...     1e-4 * one,
    ...     1e-2 * one,
    ...     np.zeros(1),
    ...     np.zeros(1),
    ...     np.ones(1),
    ...     (ModeStatus.CONVERGED,),
    ... )
    >>> draws = np.random.default_rng(1).standard_normal((100, 1))
    >>> bool(1 / bounded(flat, draws).precision[0, 0, 0] < 5.0)
    True
    """
    if len(draws) < _FEWEST_DRAWS * draws.shape[1]:
        return modes
    factor = np.linalg.cholesky(_covariance(draws))
    precision = np.stack([_within(own, factor) for own in modes.precision])
    if np.array_equal(precision, modes.precision):
        return modes
    return replace(modes, precision=precision, factors=cholesky_factors(precision))


def bounded_rows(precision: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return precisions of rows whose covariances are bounded by the prior's in every direction.

    Parameters
    ----------
    precision : ndarray of shape (n, n_rows, n_latents, n_latents)
        Precisions of n modes of each row.
    draws : ndarray of shape (n_draws, n_rows, n_latents)
        Draws of the rows' prior. With fewer than five per latent nothing is bounded.

    Returns
    -------
    ndarray of shape (n, n_rows, n_latents, n_latents)

    Examples
    --------
    >>> draws = np.random.default_rng(1).standard_normal((100, 2, 1))
    >>> bounded_rows(np.array([1e-4, 1.0])[None, :, None, None], draws).round(1).ravel()
    array([0.3, 1. ])
    """
    if len(draws) < _FEWEST_DRAWS * draws.shape[-1]:
        return precision
    factors = np.linalg.cholesky([_covariance(each) for each in np.swapaxes(draws, 0, 1)])
    in_units = np.swapaxes(factors, -1, -2) @ precision @ factors
    found = precision.copy()
    for place, row in np.argwhere(np.linalg.eigvalsh(in_units)[..., 0] < 1.0 / _SLACK):
        found[place, row] = _within(precision[place, row], factors[row])
    return found


def _within(precision: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return a precision that is bounded by the prior's, given the factor of its covariance."""
    values, vectors = np.linalg.eigh(factor.T @ precision @ factor)
    if values[0] >= 1.0 / _SLACK:
        return precision
    back = np.linalg.solve(factor.T, vectors)
    found: np.ndarray = (back * np.maximum(values, 1.0 / _SLACK)) @ back.T
    return found


def importance_fit(
    evaluate: Callable[[np.ndarray], np.ndarray],
    draws: np.ndarray,
    n_points: int,
    rng: np.random.Generator,
    status: ModeStatus,
) -> Modes | None:
    """Fit a normal to a density by rounds of importance sampling, starting from its prior's normal.

    With fewer than five draws a latent its coordinates are independent.

    Parameters
    ----------
    evaluate : callable
        Takes points ``(n, d)`` and returns log-densities ``(n,)``.
    draws : ndarray of shape (n_draws, d)
        Draws of the prior.
    n_points : int
        Points of a round.
    status : ModeStatus
        Status of the search that found no mode. The fit keeps it, so that it is reported.

    Returns
    -------
    Modes or None
        One row, whose evidence is that of the last round's weights. None if draws are too few or
        the density is finite nowhere.
    """
    d, n = draws.shape[1], min(len(draws), n_points)
    is_diagonal = n < _FEWEST_DRAWS * d
    if is_diagonal and n < _FEWEST_FOR_VARIANCES:
        return None
    enough = _SHARE_EFFECTIVE * n_points if is_diagonal else _EFFECTIVE * d
    mean, covariance = draws.mean(axis=0), _covariance(draws)
    if is_diagonal:
        covariance *= np.eye(d)
    log_evidence = -np.inf
    for _ in range(_N_ROUNDS):
        factor = np.linalg.cholesky(covariance)
        noise = rng.standard_normal((n_points, d))
        points = mean + noise @ factor.T
        log_kappa = -0.5 * (noise**2).sum(axis=1) - np.log(np.diagonal(factor)).sum()
        log_weight = evaluate(points) - log_kappa + 0.5 * d * np.log(2 * np.pi)
        if not np.isfinite(log_weight).any():
            return None
        log_evidence = float(np.logaddexp.reduce(log_weight) - np.log(n_points))
        relative = log_weight - log_weight.max()
        power = 1.0
        # Weights are tempered while a few of them dominate.
        while True:
            weight = np.exp(power * relative)
            weight /= weight.sum()
            effective = 1.0 / float((weight**2).sum())
            if effective >= enough or power < 1e-3:
                break
            power *= 0.7
        mean = weight @ points
        away = points - mean
        found = (weight[:, None] * away).T @ away
        if is_diagonal:
            found *= np.eye(d)
        # the last round's counts as much as draws of the number of its unknowns
        n_last = 1 if is_diagonal else d
        covariance = (effective * found + n_last * covariance) / (effective + n_last)
    precision = np.linalg.inv(covariance)[None]
    factors = cholesky_factors(0.5 * (precision + np.swapaxes(precision, 1, 2)))
    height = log_evidence - 0.5 * d * np.log(2 * np.pi) + np.log(np.diagonal(factors[0])).sum()
    return Modes(
        mean[None],
        precision,
        factors,
        np.array([height]),
        np.full(1, np.nan),
        np.array([_N_ROUNDS]),
        (status,),
    )


def _covariance(draws: np.ndarray) -> np.ndarray:
    """Return the covariance of draws, with variance 1 for constant, inactive coordinates."""
    found = np.atleast_2d(np.cov(draws, rowvar=False))
    variances = np.diagonal(found)
    still = variances < 1e-12 * np.maximum(1.0, (draws**2).mean(axis=0))
    size = np.where(still, 1.0, variances)
    positive: np.ndarray = found + np.diag(np.where(still, 1.0, 1e-9 * size))
    return positive
