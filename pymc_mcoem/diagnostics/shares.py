"""Shares of the classes with R-hat, effective sample size, Monte Carlo error and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from scipy.stats import chi2, norm

from pymc_mcoem.diagnostics.chains import IndexChains

__all__ = ["Limits", "class_shares", "mcse_of_mean", "rao_blackwell_shares", "share_flags"]

#: With fewer draws ArviZ has no R-hat and no effective sample size.
_MIN_DRAWS = 4


def class_shares(chains: IndexChains) -> xr.Dataset:
    """Return the share of visits of each class and its Monte Carlo accuracy.

    Everything is computed from the indicator of the class, 0 or 1, so that renaming the classes
    changes nothing.

    Parameters
    ----------
    chains : IndexChains

    Returns
    -------
    Dataset
        By plate and ``class``: ``share``, ``mcse``, ``ess``, ``rhat``; the last three are NaN
        for a constant indicator. Chains that are each constant, and not all equal, have an
        infinite R-hat and one effective draw for each chain. By plate, ``chain`` and ``class``:
        ``chain_share``. With equalized visits the indicator is multiplied by the draw's weight,
        so that everything refers to the model's posterior.

    Notes
    -----
    Ranks of a variable with two values are an affine map of it. Rank normalization therefore
    has no effect, and split R-hat is the rank-normalized R-hat of Vehtari et al. (2021).

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat, Bayesian Analysis 16.

    Examples
    --------
    >>> from pymc_mcoem.diagnostics.chains import read_chains
    >>> codes = np.random.default_rng(1).integers(2, size=(4, 500))
    >>> shares = class_shares(read_chains(xr.DataArray(codes, dims=("chain", "draw"))))
    >>> shares["share"].values.round(2)
    array([0.49, 0.51])
    """
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
            for name, value in _statistics(indicator).items():
                found[name][row, k] = value
            if chains.log_importance is not None and np.ptp(indicator) > 0:
                # The share is a ratio of two averages, so its error is that of the residual.
                share = indicator.mean()
                error = mcse_of_mean(indicator - weights * share)
                found["mcse"][row, k] = error
                found["ess"][row, k] = share * (1 - share) / error**2
    shares = {name: (values, "class") for name, values in found.items()}
    return chains.labeled({**shares, "chain_share": (chain_share, "chain", "class")})


def rao_blackwell_shares(chains: IndexChains) -> xr.Dataset:
    """Return the mean of the probabilities from which the index was drawn, by class.

    Parameters
    ----------
    chains : IndexChains
        Chains with log-weights.

    Returns
    -------
    Dataset
        By plate and ``class``: ``weight`` and ``weight_mcse``, also for classes that were never
        drawn. If visits of this index or another were equalized, the weights are those
        of the model.

    Raises
    ------
    ValueError
        If the chains have no log-weights.
    """
    log_weight = chains.require_log_weight()
    probability = np.exp(log_weight)
    residual = probability
    if chains.log_importance is not None:
        probability = probability * chains.weights_within_classes[..., None]
        if chains.equalizing_log_weight is not None:
            # The weight of a draw is averaged over the index as well.
            probability = probability * np.exp(
                -chains.equalizing_log_weight + chains.equalizing_log_weight.max()
            )
        total = probability.sum(axis=-1, keepdims=True)
        mean = total.mean(axis=2, keepdims=True)
        probability, total = probability / mean, total / mean
        residual = probability - total * probability.mean(axis=(1, 2), keepdims=True)
    error = np.full((len(probability), chains.n_classes), np.nan)
    if len(chains.draw) >= _MIN_DRAWS:
        for row, k in np.ndindex(error.shape):
            values = residual[row, ..., k]
            if np.ptp(values) > 0:
                error[row, k] = mcse_of_mean(values)
    return xr.Dataset(
        {
            "weight": chains.label(probability.mean(axis=(1, 2)), "class"),
            "weight_mcse": chains.label(error, "class"),
        }
    )


@dataclass(frozen=True)
class Limits:
    r"""Limits beyond which a quantity is flagged, widened where one of many exceeds them by chance.

    Attributes
    ----------
    rhat_max, ess_min, significance : float
        As for `class_index_summary`.
    n_pieces : int
        Chains, or halves of chains, that R-hat compares.

    Notes
    -----
    The means of m parts of e effective draws each vary, relative to the variance within parts, by
    :math:`χ^2_{m-1} / ((m - 1) e)`. R-hat squared exceeds one by this amount. A sum of
    autocorrelations over a window of M lags has a relative variance of :math:`2 (2M + 1) / n`
    (Sokal 1997), which is about 8 over the effective sample size for a window of two
    autocorrelation times. For indicators of rare classes, which are far from normal, it is twice
    that. The limit uses this value, on the logarithm.

    References
    ----------
    Sokal (1997), Monte Carlo methods in statistical mechanics: foundations and new algorithms.

    Examples
    --------
    >>> limits = Limits(rhat_max=1.01, ess_min=400.0, significance=0.01, n_pieces=8)
    >>> limits.rhat(np.array([400.0, 4000.0]), 400.0, 1000).round(3)
    array([1.049, 1.01 ])
    >>> limits.ess(np.array([400.0]), 500).round()
    array([176.])
    """

    rhat_max: float
    ess_min: float
    significance: float
    n_pieces: int

    def rhat(self, ess: np.ndarray, least: float | np.ndarray, n_tests: int) -> np.ndarray:
        """Return the limit of R-hat for each of `n_tests` quantities, by Bonferroni's correction.

        `ess` are effective sample sizes of all parts together. `least` replaces smaller or missing
        ones, which are flagged separately.
        """
        each = np.fmax(ess, least) / self.n_pieces
        degrees = self.n_pieces - 1
        excess = chi2.isf(self.significance / max(n_tests, 1), degrees) / degrees / each
        return np.asarray(np.maximum(self.rhat_max, np.sqrt(1.0 + excess)))

    def ess(self, due: np.ndarray, n_tests: int) -> np.ndarray:
        """Return the limit of each of `n_tests` effective sample sizes; `due` are required."""
        z = norm.isf(self.significance / max(n_tests, 1))
        return np.asarray(due * np.exp(-z * np.sqrt(16.0 / due)))


def share_flags(
    chains: IndexChains, shares: xr.Dataset, tests: xr.Dataset, limits: Limits, p_limit: float
) -> list[str]:
    """Return messages about R-hat, effective sample size and tests of shares beyond their limits.

    `shares` are those of `class_shares`. `tests` are ``p_between`` by plate and ``p_within`` by
    plate and ``chain``, and those below `p_limit` are flagged.
    """
    n_rows = len(chains.codes)
    rhat = shares["rhat"].values.reshape(n_rows, -1)
    by_class = shares["ess"].values.reshape(n_rows, -1)
    with np.errstate(all="ignore"):
        ess = np.fmin.reduce(by_class, axis=1)
    # A single index has the given limits; in a plate some rows exceed them by chance.
    many = n_rows > 1
    n_tests = int(np.isfinite(rhat).sum())
    rhat_limit = limits.rhat(by_class, limits.ess_min, n_tests) if many else limits.rhat_max
    ess_limit = limits.ess(np.array(limits.ess_min), n_rows) if many else limits.ess_min
    flags = []
    if (too_far := (rhat > rhat_limit).any(axis=1)).any():
        flags.append(
            f"R-hat is {np.nanmax(rhat[too_far]):.3g}, above {limits.rhat_max:g}"
            f"{', and more than chance explains for so many' if many else ''}"
            f"{_rows(chains, too_far)}"
        )
    if (too_few := ess < ess_limit).any():
        flags.append(
            f"the effective sample size is {np.nanmin(ess):.0f}, below {limits.ess_min:.0f}"
            f"{', and less than chance explains for so many' if many else ''}"
            f"{_rows(chains, too_few)}"
        )
    between = tests["p_between"].values.reshape(n_rows)
    within = tests["p_within"].values.reshape(n_rows, -1)
    if (differ := between < p_limit).any():
        flags.append(
            f"chains differ in their shares of classes (p = {np.nanmin(between):.2g})"
            f"{_rows(chains, differ)}"
        )
    if (change := (within < p_limit).any(axis=1)).any():
        flags.append(
            "beginning and end of a chain differ in their shares of classes "
            f"(p = {np.nanmin(within):.2g}){_rows(chains, change)}"
        )
    # A quantity that could not be computed is flagged if several classes were visited.
    several = np.array([len(np.unique(codes)) > 1 for codes in chains.codes])
    no_ess = np.isnan(ess) & several
    no_rhat = np.isnan(rhat).all(axis=1) & several & ~no_ess
    if no_ess.any():
        flags.append(
            f"chains of {len(chains.draw)} draws are too short to be checked: there is no "
            f"effective sample size and no R-hat{_rows(chains, no_ess)}"
        )
    if no_rhat.any() and len(chains.chain) > 1:
        flags.append(f"R-hat could not be computed{_rows(chains, no_rhat)}")
    return flags


def _rows(chains: IndexChains, bad: np.ndarray) -> str:
    """Return text that names rows of a plate; empty without a plate."""
    if not chains.plate.ndim:
        return ""
    rows = np.flatnonzero(bad)
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f" at {chains.row_label(rows[0])}{more}"


def mcse_of_mean(values: np.ndarray) -> float:
    """Return the Monte Carlo error of the mean of (n_chains, n_draws) values."""
    with np.errstate(all="ignore"):
        return float(array_stats.mcse(values, method="mean", chain_axis=0, draw_axis=1))


def _statistics(indicator: np.ndarray) -> dict[str, float]:
    """Return the accuracy of a ``(n_chains, n_draws)`` indicator; nothing if it is constant."""
    n_chains, n_draws = indicator.shape
    if np.ptp(indicator) == 0 or n_draws < _MIN_DRAWS:
        return {}
    if (np.ptp(indicator, axis=1) == 0).all():
        share = indicator.mean()
        error = float(np.sqrt(share * (1 - share) / n_chains))
        return {"mcse": error, "ess": float(n_chains), "rhat": np.inf}
    axes: dict[str, Any] = {"chain_axis": 0, "draw_axis": 1}
    with np.errstate(all="ignore"):
        rhat = np.nan if n_chains == 1 else array_stats.rhat(indicator, method="split", **axes)
        return {
            "mcse": mcse_of_mean(indicator),
            "ess": float(array_stats.ess(indicator, method="mean", **axes)),
            "rhat": float(rhat),
        }
