"""Logarithms of the probabilities of classes, with Monte Carlo errors of their odds, and bounds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy.special import logsumexp
from scipy.stats import chi2

from pymc_mcoem.diagnostics.chains import IndexChains
from pymc_mcoem.diagnostics.pseudo_priors import jump_pareto_k
from pymc_mcoem.diagnostics.shares import mcse_of_mean

__all__ = [
    "bounds_of_shares",
    "errors_of_log_odds",
    "log_mean",
    "log_series",
    "log_visits",
    "pareto_k_of_series",
]


def log_series(chains: IndexChains) -> np.ndarray:
    """Return logarithms of the values whose means are the probabilities of the classes.

    These are the probabilities from which the index was drawn, or indicators of visits if there are
    none or if draws have importance weights: (n_rows, n_chains, n_draws, n_classes).
    """
    if chains.log_weight is not None and chains.log_importance is None:
        return chains.log_weight
    return log_visits(chains)


def log_visits(chains: IndexChains) -> np.ndarray:
    """Return logarithms of indicators of visits, times the draws' importance weights.

    The shape is that of `log_series`.
    """
    indicator = chains.codes[..., None] == np.arange(chains.n_classes)
    with np.errstate(divide="ignore"):
        found: np.ndarray = np.log(indicator * chains.weights[..., None])
    return found


def log_mean(log_values: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """Return the logarithm of the mean of values, from their logarithms, over some axes."""
    n = np.prod([log_values.shape[each] for each in axis])
    with np.errstate(divide="ignore"):
        found: np.ndarray = logsumexp(log_values, axis=axis) - np.log(n)
    return found


def pareto_k_of_series(chains: IndexChains) -> np.ndarray:
    """Return Pareto k of the weights that are averaged, (n_rows, n_classes), nan for visits."""
    if chains.log_weight is None or chains.log_importance is not None:
        return np.full((len(chains.codes), chains.n_classes), np.nan)
    return jump_pareto_k(chains)


def errors_of_log_odds(
    log_values: np.ndarray, log_share: np.ndarray, is_bounded: np.ndarray
) -> np.ndarray:
    """Return the Monte Carlo errors of the log odds of all pairs of classes of one row.

    `log_values` are one row of `log_series`, and `log_share` the logarithms of their means. Errors
    are NaN where one of the two classes is bounded.
    """
    found = np.full((len(log_share),) * 2, np.nan)
    np.fill_diagonal(found, 0.0)
    relative = {j: np.exp(log_values[..., j] - log_share[j]) for j in np.flatnonzero(~is_bounded)}
    for i, j in combinations(relative, 2):
        found[i, j] = found[j, i] = _mcse(relative[i] - relative[j])
    return found


def _mcse(series: np.ndarray) -> float:
    # The probabilities are the same at all draws if the pseudo-priors are the posteriors.
    return 0.0 if np.ptp(series) < 1e-9 else mcse_of_mean(series)


def bounds_of_shares(
    log_share: np.ndarray, n_visits: np.ndarray, is_bounded: np.ndarray, ess: float, tail: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds of the logarithms of the classes' probabilities.

    Parameters
    ----------
    log_share : ndarray of shape (n_classes,)
    n_visits : ndarray of shape (n_classes,)
    is_bounded : ndarray of bool, shape (n_classes,)
        Other classes have their value as both bounds.
    ess : float
        Effective number of independent draws of the chains.
    tail : float
        Probability beyond each bound.

    Returns
    -------
    low, high : ndarray of shape (n_classes,)

    Notes
    -----
    By Markov's inequality, an unbiased estimate of a probability is more than 1 / `tail` times too
    large with probability at most `tail`. The upper bound is that of a Poisson mean after
    `n_visits` visits.
    """
    low, high = log_share.copy(), log_share.copy()
    low[is_bounded] += np.log(tail)
    most = chi2.isf(tail, 2 * (n_visits[is_bounded] + 1)) / 2
    high[is_bounded] = np.minimum(np.log(most / ess), 0.0)
    return low, high
