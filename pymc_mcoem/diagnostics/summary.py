"""One table that says whether a class index was sampled well."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike

from pymc_mcoem.diagnostics.chains import IndexChains, read_chains
from pymc_mcoem.diagnostics.homogeneity import Dependence, homogeneity_test, within_chain_tests
from pymc_mcoem.diagnostics.indicators import (
    class_shares,
    ess_reached_by_chance,
    rao_blackwell_shares,
    rhat_reached_by_chance,
)
from pymc_mcoem.diagnostics.latent_mixing import latent_mixing, unmixed_latents, worst_latents
from pymc_mcoem.diagnostics.latents import latents_along_the_plate
from pymc_mcoem.diagnostics.pseudo_priors import GOOD_PARETO_K, jump_pareto_k, pareto_k
from pymc_mcoem.diagnostics.stationary import stationary_distribution
from pymc_mcoem.diagnostics.switching import unmoved_chains
from pymc_mcoem.diagnostics.transitions import class_transitions

__all__ = ["ClassIndexSummary", "ClassIndexWarning", "class_index_summary"]

#: More chains than this are counted, not named.
_MAX_NAMED = 8

#: More lines than this of a plate are left out in print.
_MAX_PRINTED = 40

_FORMATS = {
    "share": "{:.3f}",
    "mcse": "{:.2g}",
    "ess": "{:.0f}",
    "rhat": "{:.3f}",
    "weight": "{:.3g}",
    "weight_mcse": "{:.2g}",
    "stationary": "{:.3f}",
    "stationary_sd": "{:.2g}",
    "pareto_k": "{:.2f}",
    "latent_rhat": "{:.3f}",
    "latent_ess": "{:.0f}",
    "latent_tail_ess": "{:.0f}",
}


class ClassIndexWarning(UserWarning):
    """A chain of a class index was not sampled well: see `class_index_summary`."""


@dataclass(frozen=True)
class ClassIndexSummary:
    """What `class_index_summary` found. Printing it shows one row a class.

    Attributes
    ----------
    table : Dataset
        By plate and ``class``: ``share`` of visits, its Monte Carlo error ``mcse``, ``ess`` and
        ``rhat``; ``stationary`` and ``stationary_sd`` from the transition matrix, but for tilted
        chains; with the step's
        own statistics ``weight`` and ``weight_mcse``, the mean probability of the class, and
        ``pareto_k`` of its pseudo-prior; with latents beside the index ``latent_rhat``,
        ``latent_ess`` and ``latent_tail_ess``, the worst of them in the class.
    chains : Dataset
        By plate and ``chain``: ``n_switches``, ``p_within`` of the test of its beginning against
        its end, and by ``class`` too ``chain_share``.
    transitions : Dataset
        By plate, ``class_from`` and ``class_to``: ``count``, ``probability`` and, with the step's
        own statistics, ``jump_probability``; by ``chain`` too ``chain_count``.
    overall : Dataset
        By plate: ``ess``, the least of the classes visited; ``transition_ess``, from the
        transition matrix; ``rhat``, the largest; ``p_between`` of the test of chains. Its attribute
        ``p_limit`` is `significance` over the number of tests.
    flags : tuple of str
        What is wrong, in words; empty if nothing is.
    notes : tuple of str
        What is worth knowing and not wrong.
    name : str
        Of the class index.
    """

    table: xr.Dataset
    chains: xr.Dataset
    transitions: xr.Dataset
    overall: xr.Dataset
    flags: tuple[str, ...]
    notes: tuple[str, ...]
    name: str

    @property
    def ok(self) -> bool:
        """Say whether nothing was flagged."""
        return not self.flags

    def to_dataframe(self) -> pd.DataFrame:
        """Return the table with a row a class, on a plate a row for each index and class."""
        order = [*(dim for dim in self.table.dims if dim != "class"), "class"]
        return self.table.to_dataframe(dim_order=order)[list(self.table.data_vars)]

    def __repr__(self) -> str:
        table = [self._formatted().to_string(), *self._left_out()]
        return "\n".join([self._headline(), *self._in_order(table, self._remarks())])

    def _repr_html_(self) -> str:
        table = [
            self._formatted().to_html(),
            *(f"<p>{escape(line)}</p>" for line in self._left_out()),
        ]
        remarks = [f"<p>{escape(remark)}</p>" for remark in self._remarks()]
        headline = f"<p><b>{escape(self._headline())}</b></p>"
        return "\n".join([headline, *self._in_order(table, remarks)])

    def _in_order(self, table: list[str], remarks: list[str]) -> list[str]:
        """Put the verdict first where there is a plate, whose table may fill the screen."""
        return [*remarks, *table] if self.overall.dims else [*table, *remarks]

    def _headline(self) -> str:
        sizes = self.chains.sizes
        rows = int(np.prod([self.overall.sizes[dim] for dim in self.overall.dims], dtype=int))
        plate = f", {rows} indices" if self.overall.dims else ""
        n_switches = self.chains["n_switches"]
        per_chain = (
            "/".join(str(n) for n in n_switches.values)
            if not self.overall.dims and sizes["chain"] <= 12
            else f"{int(n_switches.min())} to {int(n_switches.max())}"
        )
        return (
            f"{self.name}{plate}: {sizes['chain']} chains of {self.chains.attrs['n_draws']} draws; "
            f"switches per chain {per_chain}; transition ESS "
            f"{_span(self.overall['transition_ess'], '{:.0f}')}; p between chains "
            f"{_span(self.overall['p_between'], '{:.2g}')} (flagged below "
            f"{self.overall.attrs['p_limit']:.2g})"
        )

    def _formatted(self) -> pd.DataFrame:
        frame = self.to_dataframe().head(_MAX_PRINTED)
        columns = {
            name: [_format(value, _FORMATS[str(name)]) for value in frame[name]]
            for name in frame.columns
        }
        return pd.DataFrame(columns, index=frame.index)

    def _left_out(self) -> list[str]:
        more = int(np.prod([*self.table.sizes.values()], dtype=int)) - _MAX_PRINTED
        return [f"... and {more} rows more: see to_dataframe()"] if more > 0 else []

    def _remarks(self) -> list[str]:
        if self.ok:
            n_chains = self.chains.sizes["chain"]
            which = "the chain" if n_chains == 1 else f"{n_chains} chains"
            # it is no more than that: nothing tells of a mode where no chain was
            verdict = f"No problem found in what {which} visited."
            return [verdict, *(f"Note: {note}." for note in self.notes)]
        return [*(f"Warning: {flag}." for flag in self.flags), *(f"Note: {n}." for n in self.notes)]


def class_index_summary(
    data: Any,
    var_name: str | None = None,
    *,
    classes: Sequence[Hashable] | None = None,
    superchain_ids: Sequence[int] | None = None,
    log_ratio: ArrayLike | None = None,
    rhat_max: float = 1.01,
    ess_min: float | None = None,
    significance: float = 0.01,
    dependence: Dependence = "markov",
    random_seed: int = 0,
    latents: Sequence[str] | None = None,
    group: str = "posterior",
) -> ClassIndexSummary:
    """Say how well a class index was sampled, by `CarlinChib` or by any other step.

    Everything is computed on indicators of classes, counts and transitions, never on codes:
    renaming the classes changes no number.

    Parameters
    ----------
    data : DataTree, Dataset or DataArray
        With dimensions ``chain`` and ``draw``; all other dimensions of the index are a plate, each
        of whose indices is looked at by itself.
    var_name : str, optional
        The class index. Default: ``class_index``, or else the only integer variable there is.
    classes : sequence, optional
        Labels of all classes; needed to see those that were never visited. Names, as
        ``["peak", "step"]``, are taken for the codes 0, 1, ... Default: 0 to n_classes - 1 where
        `CarlinChib` kept their weights, else those visited.
    superchain_ids : sequence of int, shape (n_chains,), optional
        For many short chains: the group, started at one point, of each chain. R-hat is then the
        nested one, and a group counts as one chain.
    log_ratio : array_like of shape (n_chains, n_draws, n_classes), optional
        Log-ratios of target to pseudo-prior, see `pareto_k`. Default: the step's own weights, of
        which ``pareto_k`` is that of the odds of a jump.
    rhat_max : float
        R-hat above it is flagged; on a plate, and of latents, only where chance does not take
        one of so many there with probability `significance`.
    ess_min : float, optional
        An effective sample size below it is flagged, on a plate only where chance does not
        take one of so many there; default 100 for each chain. Of latents within
        a class it is as much of that as the class has of the draws.
    significance : float
        Of the tests of equal distributions, all of them together (Bonferroni).
    dependence : {"markov", "ndarma"}
        How the tests allow for autocorrelation, see `homogeneity_test`.
    random_seed : int
        Of the draws of the stationary distribution.
    latents : sequence of str, optional
        Variables to be looked at within classes, over the draws in which each was active. Default:
        all variables of floats beside the index, on a plate those along it; none if empty.
    group : str
        Of the DataTree.

    Returns
    -------
    ClassIndexSummary

    Raises
    ------
    TypeError
        If `data` is of another type or the variable not one of categories.
    ValueError
        If the variable or a dimension is missing, `classes` leave out a class, `superchain_ids` or
        `log_ratio` have another shape, or there are fewer than two draws.

    Warns
    -----
    ClassIndexWarning
        Once, if anything is flagged: a chain that never switched although other classes have
        weight, or about which nothing can be told; R-hat, effective sample size and tests beyond
        their limits; latents that did not mix within a class, or whose tails were hardly reached. A
    chain that never switched because the other classes have no weight, and
        in whose pseudo-priors Pareto k sees no fault, is a note of the summary; that takes the
        statistics of `CarlinChib`.

    Notes
    -----
    What is called sound is what the chains visited. No diagnostic sees a class, or a mode within a
    class, that no chain found and of which nothing is recorded. A mode that some chains found and
    others did not makes R-hat large. Where a
    class's pseudo-prior lies far from its posterior and is very narrow, Pareto k may be low by
    chance with few draws.

    References
    ----------
    Heck, Overstall, Gronau and Wagenmakers (2019), Statistics and Computing 29, 631-643.
    Deonovic and Smith (2017), arXiv:1706.04919.
    Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Bayesian Analysis 16, 667-718.

    Examples
    --------
    >>> draws = np.random.default_rng(5).choice(3, p=[0.5, 0.3, 0.2], size=(4, 500))
    >>> summary = class_index_summary(xr.DataArray(draws, dims=("chain", "draw"), name="k"))
    >>> summary.ok
    True
    >>> summary.table["share"].values.round(1)
    array([0.5, 0.3, 0.2])
    """
    chains = read_chains(data, var_name, classes=classes, group=group)
    shares = class_shares(chains, superchain_ids)
    transitions = class_transitions(chains)
    table = shares[["share", "mcse", "ess", "rhat"]]
    tilted = chains.log_importance is not None
    mean, sd, transition_ess = _stationary(chains, random_seed)
    if not tilted:
        table = table.assign(stationary=mean, stationary_sd=sd)
    if chains.log_weight is not None:
        table = table.assign(rao_blackwell_shares(chains).data_vars)
    k = _pareto_k(chains, log_ratio)
    if k is not None:
        table = table.assign(pareto_k=k)
    p_between, p_within = _tests(chains, dependence)
    if tilted:
        # every chain has a tilt of its own, so that they do differ
        p_between = xr.full_like(p_between, np.nan)
    per_chain = xr.Dataset(
        {
            "n_switches": transitions["n_switches"],
            "p_within": p_within,
            "chain_share": shares["chain_share"],
        },
        attrs={"n_draws": len(chains.draw)},
    )
    overall = xr.Dataset(
        {
            "ess": table["ess"].min("class"),
            "transition_ess": transition_ess,
            "rhat": table["rhat"].max("class"),
            "p_between": p_between,
        }
    )
    groups = None if superchain_ids is None else np.asarray(superchain_ids)
    flags, notes = _unmoved(chains, groups)
    n_groups = len(chains.chain) if groups is None else len(np.unique(groups))
    least = 100.0 * n_groups if ess_min is None else ess_min
    n_tests = np.isfinite(p_between.values).sum() + np.isfinite(p_within.values).sum()
    overall.attrs["p_limit"] = significance / max(int(n_tests), 1)
    too_far = _too_far(chains, table, n_groups, rhat_max, least, significance)
    flags += _beyond(chains, overall, p_within, too_far, rhat_max, least, significance)
    flags += _unjudged(chains, overall)
    variables = _beside(data, group)
    beside = [n for n, v in ({} if variables is None else variables).items() if v.dtype.kind == "f"]
    if groups is not None and beside:
        notes.append("latents were not looked at, for superchain_ids are of the index alone")
    elif variables is not None:
        looked_at, n_left_out = latent_mixing(chains, variables, latents)
        table = table.assign(worst_latents(chains, looked_at))
        flags += unmixed_latents(
            chains, looked_at, rhat_max=rhat_max, ess_min=least, significance=significance
        )
        if latents is None and beside and not latents_along_the_plate(chains, variables):
            notes.append(
                f"no latent was looked at, for none of {beside} lies along {chains.name}; name "
                "those that do in latents, with its dimensions"
            )
        if n_left_out:
            notes.append(
                f"{n_left_out} latents were not looked at, for there are many; name those that "
                "matter in latents"
            )
    if len(chains.chain) == 1:
        notes.append("one chain alone has no R-hat; run several, started apart")
    if k is not None and (k > GOOD_PARETO_K).any():
        bad = _some(chains, (k.values > GOOD_PARETO_K).reshape(len(chains.codes), -1))
        notes.append(f"Pareto k above {GOOD_PARETO_K}: {bad}; jumps are rarer than they could be")
    if tilted:
        notes.append(
            "the chains have a posterior tilted by class_tilt; shares, errors and R-hat are those "
            "of draws weighed back"
        )
    if flags:
        warnings.warn(
            f"{chains.name}: " + "; ".join(flags) + ". See class_index_summary.",
            ClassIndexWarning,
            stacklevel=2,
        )
    return ClassIndexSummary(
        table=table,
        chains=per_chain,
        transitions=transitions.drop_vars("n_switches"),
        overall=overall,
        flags=tuple(flags),
        notes=tuple(notes),
        name=chains.name,
    )


def _stationary(
    chains: IndexChains, random_seed: int
) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    counts = class_transitions(chains)["chain_count"].values
    counts = counts.reshape(len(chains.codes), len(chains.chain), *counts.shape[-2:]).sum(axis=1)
    found = [stationary_distribution(matrix, random_seed=random_seed) for matrix in counts]
    return (
        chains.label(np.stack([each.mean for each in found]), "class"),
        chains.label(np.stack([each.sd for each in found]), "class"),
        chains.label(np.array([each.ess for each in found])),
    )


def _pareto_k(chains: IndexChains, log_ratio: ArrayLike | None) -> xr.DataArray | None:
    if log_ratio is not None:
        ratios = np.asarray(log_ratio, dtype=np.float64)
        if ratios.ndim != 3 or ratios.shape[-1] != chains.n_classes or len(chains.codes) > 1:
            raise ValueError(
                f"log_ratio: got an array of shape {ratios.shape} for {len(chains.codes)} indices "
                f"of {chains.n_classes} classes; give (n_chains, n_draws, n_classes) for one "
                "index, and for a plate call pareto_k row by row."
            )
        return chains.label(pareto_k(ratios)[None], "class")
    if chains.log_weight is None:
        return None
    return chains.label(jump_pareto_k(chains), "class")


def _tests(chains: IndexChains, dependence: Dependence) -> tuple[xr.DataArray, xr.DataArray]:
    n_classes = chains.n_classes
    between = [
        homogeneity_test(codes, n_classes, dependence=dependence).p_value for codes in chains.codes
    ]
    within = [
        [test.p_value for test in within_chain_tests(codes, n_classes, dependence=dependence)]
        for codes in chains.codes
    ]
    return chains.label(np.array(between)), chains.label(np.array(within), "chain")


def _unmoved(chains: IndexChains, groups: np.ndarray | None) -> tuple[list[str], list[str]]:
    """Return flags and notes about chains that never switched, alike ones together."""
    words = {
        "stuck": "never switched and could not",
        "unknown": "never switched and may be stuck",
        "chance": "never switched, by chance",
        "no weight": "never switched",
    }
    flags: list[str] = []
    notes: list[str] = []
    found = unmoved_chains(chains, groups)
    for verdict, phrase in words.items():
        alike = [each for each in found if each.verdict == verdict]
        if not alike:
            continue
        first = alike[0]
        which = ", ".join(str(chains.chain[position]) for position in first.chains[:_MAX_NAMED])
        if len(first.chains) > _MAX_NAMED:
            which += f" and {len(first.chains) - _MAX_NAMED} more"
        where = chains.row_label(first.row)
        chain = "chain" if len(first.chains) == 1 else "chains"
        text = f"{chain} {which}{' of ' + where if where else ''} {phrase}: {first.reason}"
        if len(alike) > 1:
            text += f" (and so in {len(alike) - 1} more indices of the plate)"
        (flags if verdict in ("stuck", "unknown") else notes).append(text)
    return flags, notes


def _too_far(
    chains: IndexChains,
    table: xr.Dataset,
    n_groups: int,
    rhat_max: float,
    ess_min: float,
    significance: float,
) -> np.ndarray:
    """Say in which rows some R-hat is beyond its limit, (n_rows,).

    Of a single index that is `rhat_max`. Of the many of a plate some pass it by chance.
    """
    shape = len(chains.codes), chains.n_classes
    rhat, ess = table["rhat"].values.reshape(shape), table["ess"].values.reshape(shape)
    limit = np.full(shape, rhat_max)
    if len(rhat) > 1:
        n_parts = 2 * n_groups if n_groups == len(chains.chain) else n_groups
        reached = rhat_reached_by_chance(
            ess, ess_min, n_parts, significance, np.isfinite(rhat).sum()
        )
        limit = np.maximum(limit, reached)
    return np.asarray((rhat > limit).any(axis=1))


def _beside(data: Any, group: str) -> xr.Dataset | None:
    """Return the variables beside the index, where there are any."""
    if isinstance(data, xr.DataTree):
        return data[group].to_dataset()
    return data if isinstance(data, xr.Dataset) else None


def _beyond(
    chains: IndexChains,
    overall: xr.Dataset,
    p_within: xr.DataArray,
    too_far: np.ndarray,
    rhat_max: float,
    ess_min: float,
    significance: float,
) -> list[str]:
    """Return what is beyond its limit."""
    flags = []
    rhat, ess = overall["rhat"].values.ravel(), overall["ess"].values.ravel()
    if too_far.any():
        many = ", and more than chance makes of so many" if len(rhat) > 1 else ""
        flags.append(
            f"R-hat is {_largest(rhat[too_far]):.3g}, above {rhat_max:g}{many}"
            f"{_rows(chains, too_far)}"
        )
    least = ess_min
    if len(ess) > 1:
        least = float(ess_reached_by_chance(np.array(ess_min), significance, len(ess)))
    if np.any(ess < least):
        many = ", and less than chance makes of so many" if len(ess) > 1 else ""
        flags.append(
            f"the effective sample size is {np.nanmin(ess):.0f}, below {ess_min:.0f}{many}"
            f"{_rows(chains, ess < least)}"
        )
    between = overall["p_between"].values.ravel()
    within = p_within.values.reshape(len(between), -1)
    limit = overall.attrs["p_limit"]
    if np.any(between < limit):
        flags.append(
            f"chains differ in their shares of classes (p = {np.nanmin(between):.2g})"
            f"{_rows(chains, between < limit)}"
        )
    if np.any(within < limit):
        flags.append(
            "beginning and end of a chain differ in their shares of classes "
            f"(p = {np.nanmin(within):.2g}){_rows(chains, (within < limit).any(axis=1))}"
        )
    return flags


def _unjudged(chains: IndexChains, overall: xr.Dataset) -> list[str]:
    """Return what could not be computed though several classes were visited."""
    several = np.array([len(np.unique(codes)) > 1 for codes in chains.codes])
    no_ess = np.isnan(overall["ess"].values.ravel()) & several
    no_rhat = np.isnan(overall["rhat"].values.ravel()) & several & ~no_ess
    flags = []
    if no_ess.any():
        flags.append(
            f"chains of {len(chains.draw)} draws are too short to be judged: there is no effective "
            f"sample size and no R-hat{_rows(chains, no_ess)}"
        )
    if no_rhat.any() and len(chains.chain) > 1:
        flags.append(f"R-hat could not be computed{_rows(chains, no_rhat)}")
    return flags


def _rows(chains: IndexChains, bad: np.ndarray) -> str:
    """Say in which rows of a plate; nothing without a plate."""
    if not chains.plate.ndim:
        return ""
    rows = np.flatnonzero(bad)
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f" at {chains.row_label(rows[0])}{more}"


def _some(chains: IndexChains, bad: np.ndarray) -> str:
    """Name classes, (n_rows, n_classes), on a plate their number."""
    if chains.plate.ndim:
        return f"{int(bad.sum())} of {bad.size} classes of the plate"
    return "classes " + ", ".join(str(label) for label in chains.classes[bad[0]])


def _largest(values: np.ndarray) -> float:
    return float(np.nanmax(values))


def _format(value: float, pattern: str) -> str:
    return "-" if np.isnan(value) else pattern.format(value)


def _span(values: xr.DataArray, pattern: str) -> str:
    known = values.values[np.isfinite(values.values)]
    if not known.size:
        return "-"
    low, high = _format(known.min(), pattern), _format(known.max(), pattern)
    return low if values.ndim == 0 or low == high else f"{low} to {high}"
