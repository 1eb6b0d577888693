"""Share of visits, R-hat, effective sample size and Monte Carlo error, by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from scipy.stats import chi2, norm

from pymc_mcoem.diagnostics.chains import IndexChains

__all__ = [
    "class_shares",
    "ess_reached_by_chance",
    "rao_blackwell_shares",
    "rhat_reached_by_chance",
]

#: Below this many draws ArviZ has no R-hat and no effective sample size.
_MIN_DRAWS = 4


def class_shares(chains: IndexChains, superchain_ids: Sequence[int] | None = None) -> xr.Dataset:
    """Return the share of visits of each class, and how well the chains know it.

    Everything is computed on the indicator of the class, 0 or 1, never on codes, and so does not
    change when classes are renamed.

    Parameters
    ----------
    chains : IndexChains
    superchain_ids : sequence of int, shape (n_chains,), optional
        The group of chains, started at one point, that each chain belongs to, in equal numbers:
        R-hat is then the nested one, for many short chains (Margossian et al. 2024).

    Returns
    -------
    Dataset
        By plate and ``class``: ``share``, ``mcse``, ``ess``, ``rhat``. NaN for what a constant
        indicator cannot tell. Chains that are each constant, and not all alike, have an infinite
        R-hat and one effective draw a chain. By plate, ``chain`` and ``class``: ``chain_share``.
        Of tilted chains everything is of the indicator times the draw's weight, and so about the
        model's posterior.

    Raises
    ------
    ValueError
        If `superchain_ids` has another length or groups of different sizes.

    Notes
    -----
    Ranks of a variable with two values are an affine map of it, so that rank normalisation
    changes nothing: plain split R-hat is the rank-normalised one of Vehtari et al. (2021).

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat, Bayesian Analysis 16.
    Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari and Gelman (2024), Nested R-hat, Bayesian
    Analysis.

    Examples
    --------
    >>> from pymc_mcoem.diagnostics.chains import read_chains
    >>> codes = np.random.default_rng(1).integers(2, size=(4, 500))
    >>> shares = class_shares(read_chains(xr.DataArray(codes, dims=("chain", "draw"))))
    >>> shares["share"].values.round(2)
    array([0.49, 0.51])
    """
    groups = None if superchain_ids is None else _superchains(superchain_ids, len(chains.chain))
    n_rows = len(chains.codes)
    names = ("share", "mcse", "ess", "rhat")
    found = {name: np.full((n_rows, chains.n_classes), np.nan) for name in names}
    chain_share = np.empty((n_rows, len(chains.chain), chains.n_classes))
    weights = chains.weights
    for row, codes in enumerate(chains.codes):
        for k in range(chains.n_classes):
            indicator = weights * (codes == k)
            chain_share[row, :, k] = indicator.mean(axis=1)
            found["share"][row, k] = indicator.mean()
            for name, value in _statistics(indicator, groups).items():
                found[name][row, k] = value
            if chains.log_importance is not None and np.ptp(indicator) > 0:
                # a ratio of two averages: its error is that of what it leaves over
                share = indicator.mean()
                error = _mcse(indicator - weights * share)
                found["mcse"][row, k] = error
                found["ess"][row, k] = share * (1 - share) / error**2
    shares = {name: chains.label(values, "class") for name, values in found.items()}
    shares["chain_share"] = chains.label(chain_share, "chain", "class")
    return xr.Dataset(shares)


def rao_blackwell_shares(chains: IndexChains) -> xr.Dataset:
    """Return the mean of the probabilities from which the index was drawn.

    Parameters
    ----------
    chains : IndexChains
        With log-weights.

    Returns
    -------
    Dataset
        By plate and ``class``: ``weight`` and ``weight_mcse``. A class that was never drawn has
        a weight too. Of tilted chains, this index or another, the weights are the model's.

    Raises
    ------
    ValueError
        If the chains have no log-weights.
    """
    if chains.log_weight is None:
        raise ValueError(
            f"chains: {chains.name} came without the classes' log-weights; give a DataTree of a "
            "run with CarlinChib."
        )
    probability = np.exp(chains.log_weight)
    residual = probability
    if chains.log_importance is not None:
        probability = probability * chains.weights_within_classes[..., None]
        if chains.log_tilt is not None:
            # what the draws weigh is averaged over the index as well
            probability = probability * np.exp(-chains.log_tilt + chains.log_tilt.max())
        total = probability.sum(axis=-1, keepdims=True)
        mean = total.mean(axis=2, keepdims=True)
        probability, total = probability / mean, total / mean
        residual = probability - total * probability.mean(axis=(1, 2), keepdims=True)
    error = np.full((len(probability), chains.n_classes), np.nan)
    if len(chains.draw) >= _MIN_DRAWS:
        for row, k in np.ndindex(error.shape):
            values = residual[row, ..., k]
            if np.ptp(values) > 0:
                error[row, k] = _mcse(values)
    return xr.Dataset(
        {
            "weight": chains.label(probability.mean(axis=(1, 2)), "class"),
            "weight_mcse": chains.label(error, "class"),
        }
    )


def rhat_reached_by_chance(
    ess: np.ndarray, least: float | np.ndarray, n_parts: int, significance: float, n_tests: int
) -> np.ndarray:
    r"""Return the R-hat that one of many healthy quantities passes with a given probability.

    Parameters
    ----------
    ess : ndarray
        Effective sample sizes of all parts together.
    least : float or ndarray
        Taken for smaller sizes, and where there are none: those are flagged as such.
    n_parts : int
        Chains, or halves of chains, that are compared.
    significance : float
        Of all tests together (Bonferroni).
    n_tests : int

    Returns
    -------
    ndarray

    Notes
    -----
    The means of m parts of e effective draws each vary, relative to the variance within parts, by
    :math:`χ^2_{m-1} / ((m - 1) e)`, which is what R-hat squared exceeds one by.

    Examples
    --------
    >>> rhat_reached_by_chance(np.array([400.0, 4000.0]), 400.0, 8, 0.01, 1000).round(3)
    array([1.049, 1.005])
    """
    each = np.fmax(ess, least) / n_parts
    excess = chi2.isf(significance / max(n_tests, 1), n_parts - 1) / (n_parts - 1) / each
    reached: np.ndarray = np.sqrt(1.0 + excess)
    return reached


def ess_reached_by_chance(ess: np.ndarray, significance: float, n_tests: int) -> np.ndarray:
    r"""Return what one of many effective sample sizes is estimated below with a given probability.

    Parameters
    ----------
    ess : ndarray
        What they are.
    significance : float
        Of all together (Bonferroni).
    n_tests : int

    Returns
    -------
    ndarray

    Notes
    -----
    A sum of autocorrelations over a window of M lags has a relative variance of :math:`2 (2M +
    1) / n` (Sokal 1997): some 8 over the effective sample size at a window of two autocorrelation
    times. Of indicators of rare classes, which are far from normal, it is twice that, and that is
    taken; the logarithm is the more normal.

    References
    ----------
    Sokal (1997), Monte Carlo methods in statistical mechanics: foundations and new algorithms.

    Examples
    --------
    >>> ess_reached_by_chance(np.array([400.0]), 0.01, 500).round()
    array([176.])
    """
    z = norm.isf(significance / max(n_tests, 1))
    reached: np.ndarray = ess * np.exp(-z * np.sqrt(16.0 / ess))
    return reached


def _mcse(values: np.ndarray) -> float:
    """Return the Monte Carlo error of the mean of (n_chains, n_draws) values."""
    with np.errstate(all="ignore"):
        return float(array_stats.mcse(values, method="mean", chain_axis=0, draw_axis=1))


def _statistics(indicator: np.ndarray, groups: np.ndarray | None) -> dict[str, float]:
    """Return what a ``(n_chains, n_draws)`` indicator tells; nothing if it is constant."""
    n_chains, n_draws = indicator.shape
    if np.ptp(indicator) == 0 or n_draws < _MIN_DRAWS:
        return {}
    if groups is None and (np.ptp(indicator, axis=1) == 0).all():
        share = indicator.mean()
        error = float(np.sqrt(share * (1 - share) / n_chains))
        return {"mcse": error, "ess": float(n_chains), "rhat": np.inf}
    axes: dict[str, Any] = {"chain_axis": 0, "draw_axis": 1}
    with np.errstate(all="ignore"):
        if n_chains == 1:
            rhat = np.nan
        elif groups is None:
            rhat = float(array_stats.rhat(indicator, method="split", **axes))
        else:
            rhat = float(array_stats.rhat_nested(indicator, groups, method="split", **axes))
        return {
            "mcse": _mcse(indicator),
            "ess": float(array_stats.ess(indicator, method="mean", **axes)),
            "rhat": rhat,
        }


def _superchains(superchain_ids: Sequence[int], n_chains: int) -> np.ndarray:
    given = np.asarray(superchain_ids)
    groups, codes = np.unique(given, return_inverse=True)
    sizes = np.bincount(codes)
    if given.shape != (n_chains,) or len(groups) < 2 or np.ptp(sizes) > 0:
        raise ValueError(
            f"superchain_ids: got groups of {sizes.tolist()} chains for {n_chains} chains; give "
            "each chain a group, at least two groups of one size."
        )
    return codes
