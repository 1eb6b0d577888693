"""Bayes factors between the classes of an index, with Monte Carlo errors and a verdict in words."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import norm

from pymc_mcoem.carlin_chib.step_statistics import read_prior
from pymc_mcoem.diagnostics.chains import IndexChains, find_index, read_chains
from pymc_mcoem.diagnostics.log_odds import (
    bounds_of_shares,
    errors_of_log_odds,
    log_mean,
    log_series,
    log_visits,
    pareto_k_of_series,
)
from pymc_mcoem.diagnostics.printed_table import PrintedTable
from pymc_mcoem.diagnostics.pseudo_priors import FINITE_VARIANCE, GOOD_PARETO_K
from pymc_mcoem.diagnostics.summary import (
    ClassIndexSummary,
    ClassIndexWarning,
    class_index_summary,
)
from pymc_mcoem.diagnostics.switching import unmoved_chains

__all__ = ["BayesFactors", "bayes_factors"]

#: Fewer draws of a class, or effective draws, do not determine the logarithm of its share.
_MIN_VISITS = 10

#: R-hat above which a Monte Carlo error is not given: between chains, means then vary by a fifth of
#: the variance within them, and a few chains do not show by how much more.
_RHAT_OF_ERRORS = 1.1

_FORMATS = {
    "against": "{}",
    "log_bf": "{:.5g}",
    "mcse": "{:.2g}",
    "lower": "{:.5g}",
    "upper": "{:.5g}",
    "bf": "{:.4g}",
    "log_prior_odds": "{:.3f}",
    "log_posterior_odds": "{:.3f}",
    "chain_low": "{:.5g}",
    "chain_high": "{:.5g}",
    "n_visits": "{:.0f}",
}


@dataclass(frozen=True, repr=False)
class BayesFactors(PrintedTable):
    """Result of `bayes_factors`. Printing it shows one row for each class.

    Attributes
    ----------
    table : DataFrame
        One row for each ``class``, for a plate by index and class, with columns ``against``, the
        class that it is compared with; ``log_bf``, the logarithm of the Bayes factor of the class
        against that one, its Monte Carlo error ``mcse`` and interval ``lower`` to ``upper``;
        ``bf``, its exponential; ``log_prior_odds`` and ``log_posterior_odds``; ``chain_low`` and
        ``chain_high``, the range of ``log_bf`` over the chains; ``n_visits``, the number of draws
        of the class.
    pairs : Dataset
        By plate, ``class`` and ``against``, for all pairs: ``log_bf``, ``mcse``, ``lower``,
        ``upper``, ``log_posterior_odds``, ``log_prior_odds``, and, also by ``chain``,
        ``chain_log_bf``.
    flags : tuple of str
        Messages about problems; empty if there are none.
    notes : tuple of str
        Messages that do not point to a problem.
    name : str
        Name of the class index.
    probability : float
        Probability of the intervals.
    """

    table: pd.DataFrame
    pairs: xr.Dataset
    flags: tuple[str, ...]
    notes: tuple[str, ...]
    name: str
    probability: float

    _formats: ClassVar[dict[str, str]] = _FORMATS

    def _headline(self) -> str:
        return (
            f"{self.name}: Bayes factors of each class against the class named; intervals of "
            f"probability {self.probability:g}"
        )

    def _n_chains(self) -> int:
        return int(self.pairs.sizes["chain"])


def bayes_factors(
    data: Any,
    var_name: str | None = None,
    *,
    prior: Any = None,
    against: Hashable | None = None,
    classes: Sequence[Hashable] | None = None,
    probability: float = 0.94,
    latents: Sequence[str] | None = None,
    group: str = "posterior",
) -> BayesFactors:
    r"""Compare the classes of an index by Bayes factors, on the log scale.

    Parameters
    ----------
    data : DataTree, Dataset or DataArray
        With dimensions ``chain`` and ``draw``; all others are a plate, whose indices are compared
        one by one.
    var_name : str, optional
        The class index. Default: ``class_index``, or else the only integer variable.
    prior : array_like of shape ``(n_classes,)`` or ``(*plate, n_classes)``, optional
        Prior probabilities of the classes, up to a factor. Default: those of the model, which
        `CarlinChib` records if they are constants.
    against : optional
        Label of the class with which the table compares all others. Default: the most probable
        class, for a plate of each index.
    classes : sequence, optional
        Labels of all classes, see `class_index_summary`.
    probability : float
        Probability of the intervals.
    latents : sequence of str, optional
        Variables whose mixing within each class is checked, see `class_index_summary`.
    group : str
        Group of the DataTree.

    Returns
    -------
    BayesFactors

    Raises
    ------
    TypeError, ValueError
        As `class_index_summary`. ValueError also if `prior` is missing and was not recorded, or is
        not positive or of another shape, if `against` is not a class, or if `probability` is not
        between 0 and 1.

    Warns
    -----
    ClassIndexWarning
        Once, if anything is flagged: all that `class_index_summary` flags, and classes whose
        Bayes factors the chains do not determine.

    Notes
    -----
    The Bayes factor of class i against class j is their posterior odds divided by their prior
    odds, :math:`p(y | I = i) / p(y | I = j)`. If the prior probabilities are random themselves,
    as with a Dirichlet prior, the prior odds are those of the probabilities' prior means; they
    have to be given. A Potential counts as part of the likelihood.

    The posterior probability of a class is the average of the probabilities
    from which `CarlinChib` drew the index, ``class_log_weight``. It is the average of visits
    if there are no such statistics, or if the draws have importance weights
    because visits were equalized. With :math:`S_i` for these probabilities or indicators, the
    variance of the log odds is that of the mean of
    :math:`S_i / \bar S_i - S_j / \bar S_j` by the delta method, with the effective sample size of
    this series in these chains. So autocorrelation within chains and differences between chains
    are part of the error.

    No error is given, ``mcse``, ``lower`` and ``upper`` are NaN, if chains disagree: if R-hat is
    above 1.1, a test shows that chains or their halves differ, or a chain is stuck.

    Classes with fewer than ten draws rest on the weights alone. Their errors are given if Pareto k
    of the weights is at most 0.7, and are rough above 0.5. If k is larger, or if there are no
    weights, there is no error but an interval of bounds: an average of unbiased estimates of a
    probability is rarely many times too large (Markov's inequality), and a class with a larger
    probability would have been visited more often.

    Errors of all other classes come from the weights too. Where Pareto k is above 0.5 a note says
    what the error of the visits alone would be. It is larger, and safer where no pseudo-prior
    covers a part of a class's posterior and chains seldom enter it, as the neck of a funnel.

    Examples
    --------
    >>> draws = np.random.default_rng(5).choice(2, p=[0.8, 0.2], size=(4, 500))
    >>> index = xr.DataArray(draws, dims=("chain", "draw"), name="k")
    >>> found = bayes_factors(index, prior=[0.5, 0.5])
    >>> found.table["bf"].round(2).tolist()
    [1.0, 0.24]
    >>> found.ok
    True
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability: got {probability}; give a number between 0 and 1.")
    chains = read_chains(data, var_name, classes=classes, group=group)
    log_prior = _log_prior(chains, prior, *find_index(data, var_name, group))
    if against is not None and against not in chains.classes.tolist():
        raise ValueError(
            f"against: got {against!r}, and {chains.name} has the classes "
            f"{chains.classes.tolist()}; name one of them."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        summary = class_index_summary(data, var_name, classes=classes, latents=latents, group=group)
    flags, notes = list(summary.flags), list(summary.notes)
    log_values = log_series(chains)
    n_rows, n_classes = len(chains.codes), chains.n_classes
    trusted = _rows_with_errors(chains, summary)
    if not trusted.all():
        where = "" if n_rows == 1 else f" at {chains.row_label(int(np.flatnonzero(~trusted)[0]))}"
        more = int((~trusted).sum()) - 1
        flags.append(
            f"no errors are given{where}{f' and {more} more' if more else ''}: chains disagree or "
            "were stuck, and the Bayes factors may be wrong by any factor. Sample longer, or see "
            "class_index_summary"
        )
    log_share, chain_log_share = log_mean(log_values, (1, 2)), log_mean(log_values, (2,))
    with np.errstate(invalid="ignore"):
        posterior_odds = log_share[:, :, None] - log_share[:, None, :]
        chain_odds = chain_log_share[..., :, None] - chain_log_share[..., None, :]
        prior_odds = log_prior[:, :, None] - log_prior[:, None, :]
    # a class has odds of one against itself even if it was never seen
    posterior_odds[:, np.arange(n_classes), np.arange(n_classes)] = 0.0
    mcse = np.full(posterior_odds.shape, np.nan)
    lower, upper = mcse.copy(), mcse.copy()
    n_visits = np.stack([(chains.codes == k).sum(axis=(1, 2)) for k in range(n_classes)], axis=-1)
    pareto_k = pareto_k_of_series(chains)
    seldom = (n_visits < _MIN_VISITS) & trusted[:, None]
    is_bounded = seldom & ~((pareto_k <= GOOD_PARETO_K) & np.isfinite(log_share))
    tail = (1 - probability) / 2
    for row in np.flatnonzero(trusted):
        mcse[row] = errors_of_log_odds(log_values[row], log_share[row], is_bounded[row])
        half = norm.isf(tail) * mcse[row]
        low, high = bounds_of_shares(
            log_share[row], n_visits[row], is_bounded[row], _effective(summary, row), tail
        )
        by_bounds = np.isnan(mcse[row])
        lower[row] = np.where(by_bounds, low[:, None] - high, posterior_odds[row] - half)
        upper[row] = np.where(by_bounds, high[:, None] - low, posterior_odds[row] + half)
    flags += _flags_of_rare_classes(chains, is_bounded, n_visits, pareto_k)
    flags += _flags_of_vague_classes(chains, mcse, log_share.argmax(axis=1))
    notes += _notes_on_rare_classes(chains, seldom & ~is_bounded, n_visits, pareto_k)
    notes += _notes_on_rough_errors(chains, mcse, log_share.argmax(axis=1), n_visits, pareto_k)
    with np.errstate(invalid="ignore"):
        found = {
            "log_bf": posterior_odds - prior_odds,
            "mcse": mcse,
            "lower": lower - prior_odds,
            "upper": upper - prior_odds,
            "log_posterior_odds": posterior_odds,
            "log_prior_odds": prior_odds,
        }
        of_chains = chain_odds - prior_odds[:, None]
    labeled = {name: chains.label(values, "class", "against") for name, values in found.items()}
    labeled["chain_log_bf"] = chains.label(of_chains, "chain", "class", "against")
    pairs = xr.Dataset(labeled).assign_coords(against=chains.classes)
    if flags:
        warnings.warn(
            f"{chains.name}: " + "; ".join(flags) + ". See bayes_factors.",
            ClassIndexWarning,
            stacklevel=2,
        )
    return BayesFactors(
        table=_table(chains, pairs, log_share, n_visits, against),
        pairs=pairs,
        flags=tuple(flags),
        notes=tuple(notes),
        name=chains.name,
        probability=probability,
    )


def _log_prior(chains: IndexChains, prior: Any, index: xr.DataArray, stats: Any) -> np.ndarray:
    """Return logarithms of the prior probabilities, (n_rows, n_classes)."""
    shape = (*chains.plate.shape, chains.n_classes)
    if prior is None:
        recorded = read_prior(stats, index)
        if recorded is None or len(recorded) != chains.n_classes:
            raise ValueError(
                f"prior: got none, and no prior probabilities of {chains.name} were recorded; "
                "give those of its classes, as prior=[0.6, 0.4]: the shares of the index among the "
                "draws of pm.sample_prior_predictive."
            )
        if np.isnan(recorded).any():
            raise ValueError(
                f"prior: got none, and the prior probabilities of {chains.name} depend on other "
                "random variables, or differ along its plate. Give their prior means, as "
                f"prior=[0.6, 0.4]: the shares of {chains.name} among the draws of "
                "pm.sample_prior_predictive."
            )
        prior = recorded
    given = np.asarray(prior, dtype=np.float64)
    try:
        probabilities = np.broadcast_to(given, shape)
    except ValueError:
        probabilities = np.empty(0)
    if not probabilities.size or given.shape[-1:] != shape[-1:] or not (given >= 0).all():
        raise ValueError(
            f"prior: got {given.tolist()} for the {chains.n_classes} classes "
            f"{chains.classes.tolist()} of {chains.name}; give each class its prior probability."
        )
    with np.errstate(divide="ignore"):
        log_prior: np.ndarray = np.log(probabilities.reshape(-1, chains.n_classes))
    return log_prior


def _rows_with_errors(chains: IndexChains, summary: ClassIndexSummary) -> np.ndarray:
    """Return in which rows chains agree well enough for a Monte Carlo error, (n_rows,) of bool."""
    n_rows = len(chains.codes)
    limit = summary.overall.attrs["p_limit"]
    rhat = summary.overall["rhat"].values.reshape(n_rows)
    between = summary.overall["p_between"].values.reshape(n_rows)
    within = summary.chains["p_within"].values.reshape(n_rows, -1)
    bad = (rhat > _RHAT_OF_ERRORS) | (between < limit) | (within < limit).any(axis=1)
    ess = summary.overall["ess"].values.reshape(n_rows)
    moved = np.array([len(np.unique(codes)) > 1 for codes in chains.codes])
    # With one chain alone there is no R-hat, and a few effective draws have no error either.
    bad |= moved & ~(ess >= _MIN_VISITS * len(chains.chain))
    for unmoved in unmoved_chains(chains):
        bad[unmoved.row] |= unmoved.verdict in ("stuck", "unknown")
    return np.asarray(~bad)


def _effective(summary: ClassIndexSummary, row: Any) -> float:
    """Return the smallest effective sample size of a class, or the number of chains without one."""
    ess = float(summary.overall["ess"].values.reshape(-1)[row])
    return float(summary.chains.sizes["chain"]) if np.isnan(ess) else ess


def _flags_of_rare_classes(
    chains: IndexChains, is_bounded: np.ndarray, n_visits: np.ndarray, pareto_k: np.ndarray
) -> list[str]:
    found = np.argwhere(is_bounded).tolist()
    if not found:
        return []
    row, j = found[0]
    why = "nothing else determines its probability"
    if not np.isnan(pareto_k[row, j]):
        why = f"Pareto k of its weights is {pareto_k[row, j]:.2f}, above {GOOD_PARETO_K}"
    return [
        f"{_class(chains, row, j)} was visited {n_visits[row, j]} times, and {why}: there are only "
        f"bounds for it{_more(found)}. Sample longer, or try CarlinChib's equalize_visits"
    ]


def _flags_of_vague_classes(
    chains: IndexChains, mcse: np.ndarray, reference: np.ndarray
) -> list[str]:
    error = np.nan_to_num(mcse[np.arange(len(mcse)), :, reference])
    found = np.argwhere(error > 1 / np.sqrt(_MIN_VISITS)).tolist()
    if not found:
        return []
    row, j = np.unravel_index(error.argmax(), error.shape)
    return [
        f"the log Bayes factor of {_class(chains, row, j)} has an error of {error[row, j]:.2g}, as "
        f"of fewer than {_MIN_VISITS} independent visits{_more(found)}; its interval is rough. "
        "Sample longer, or try CarlinChib's equalize_visits"
    ]


def _notes_on_rare_classes(
    chains: IndexChains, by_weights: np.ndarray, n_visits: np.ndarray, pareto_k: np.ndarray
) -> list[str]:
    if not by_weights.any():
        return []
    found = np.argwhere(by_weights).tolist()
    # The worst of them; of weights that do not vary, k is minus infinity.
    row, j = found[int(pareto_k[by_weights].argmax())]
    k = pareto_k[row, j]
    rough = ", so that its error is rough" if k > FINITE_VARIANCE else ""
    of_weights = f"Pareto k of the weights is {k:.2f}" if k > -np.inf else "the weights are equal"
    return [
        f"{_class(chains, row, j)} was visited {n_visits[row, j]} times: its Bayes factor comes "
        "from the weights of jumps into it, and is right if its pseudo-prior covers its posterior; "
        f"{of_weights}{rough}{_more(found)}"
    ]


def _notes_on_rough_errors(
    chains: IndexChains,
    mcse: np.ndarray,
    reference: np.ndarray,
    n_visits: np.ndarray,
    pareto_k: np.ndarray,
) -> list[str]:
    """Say what the visits' own error is, where weights have no variance."""
    rows = np.arange(len(mcse))
    compared = mcse[rows, :, reference]
    worse = np.fmax(pareto_k, pareto_k[rows, reference][:, None])
    is_rough = (worse > FINITE_VARIANCE) & (compared > 0) & (n_visits >= _MIN_VISITS)
    if not is_rough.any():
        return []
    row, j = np.unravel_index(np.where(is_rough, worse, -np.inf).argmax(), is_rough.shape)
    visits = log_visits(chains)[row][..., [j, reference[row]]]
    error = errors_of_log_odds(visits, log_mean(visits, (0, 1)), np.zeros(2, dtype=bool))[0, 1]
    return [
        f"Pareto k of the weights of {_class(chains, row, j)}, or of class "
        f"{chains.classes[reference[row]]}, is {worse[row, j]:.2f}, above {FINITE_VARIANCE}: the "
        f"error of its log Bayes factor, {compared[row, j]:.2g}, is rough. Its "
        f"{n_visits[row, j]} visits alone give {error:.2g}, which is safer if a posterior has a "
        f"part that chains seldom enter{_more(np.argwhere(is_rough).tolist())}"
    ]


def _class(chains: IndexChains, row: Any, j: Any) -> str:
    where = chains.row_label(int(row))
    return f"class {chains.classes[j]}{' of ' + where if where else ''}"


def _more(found: list[Any]) -> str:
    return f" (likewise {len(found) - 1} more)" if len(found) > 1 else ""


def _table(
    chains: IndexChains,
    pairs: xr.Dataset,
    log_share: np.ndarray,
    n_visits: np.ndarray,
    against: Hashable | None,
) -> pd.DataFrame:
    if against is None:
        positions = log_share.argmax(axis=1)
    else:
        positions = np.full(len(chains.codes), chains.classes.tolist().index(against))
    chosen = chains.label(chains.classes[positions])
    one = pairs.sel(against=chosen).drop_vars("against")
    table = xr.Dataset(
        {
            "against": chosen.expand_dims({"class": chains.classes}, axis=-1),
            **{name: one[name] for name in ("log_bf", "mcse", "lower", "upper")},
            "bf": np.exp(one["log_bf"]),
            "log_prior_odds": one["log_prior_odds"],
            "log_posterior_odds": one["log_posterior_odds"],
            "chain_low": one["chain_log_bf"].min("chain"),
            "chain_high": one["chain_log_bf"].max("chain"),
            "n_visits": chains.label(n_visits, "class"),
        }
    )
    order = [*chains.plate.dims, "class"]
    return table.to_dataframe(dim_order=order)[list(table.data_vars)]
