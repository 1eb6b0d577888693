"""A table that shows how well a class index was sampled, with messages about problems."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from pymc_mcoem.diagnostics.chains import IndexChains, read_chains
from pymc_mcoem.diagnostics.latents import (
    latent_mixing,
    latents_along_the_plate,
    unmixed_latents,
    worst_latents,
)
from pymc_mcoem.diagnostics.necks import neck_flags
from pymc_mcoem.diagnostics.printed_table import PrintedTable, formatted
from pymc_mcoem.diagnostics.pseudo_priors import GOOD_PARETO_K, jump_pareto_k
from pymc_mcoem.diagnostics.shares import Limits, class_shares, rao_blackwell_shares, share_flags
from pymc_mcoem.diagnostics.switching import missed_share_flags, unmoved_flags, unvisited_flags
from pymc_mcoem.diagnostics.transitions import (
    class_transitions,
    count_transitions,
    homogeneity_test,
    stationary_distribution,
    within_chain_tests,
)

__all__ = ["ClassIndexSummary", "ClassIndexWarning", "class_index_summary"]

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
    """Warning that a class index was not sampled well: see `class_index_summary`."""


@dataclass(frozen=True, repr=False)
class ClassIndexSummary(PrintedTable):
    """Result of `class_index_summary`. Printing it shows one row for each class.

    Attributes
    ----------
    table : DataFrame
        One row for each ``class``, for a plate by index and class, with columns ``share`` of
        visits, its Monte Carlo error ``mcse``, ``ess`` and ``rhat``; ``stationary`` and
        ``stationary_sd`` from the transition matrix, unless visits are equalized; with the
        statistics of `CarlinChib` ``weight`` and ``weight_mcse``, the mean probability of the
        class, and ``pareto_k`` of its pseudo-prior; if there are latents, ``latent_rhat``,
        ``latent_ess`` and ``latent_tail_ess``, the worst of them in the class.
    chains : Dataset
        By plate and ``chain``: ``n_switches``, ``p_within`` of the test of its beginning against
        its end, and, also by ``class``, ``chain_share``.
    transitions : Dataset
        By plate, ``class_from`` and ``class_to``: ``count``, ``probability`` and, with the
        statistics of `CarlinChib`, ``jump_probability``; also by ``chain``, ``chain_count``.
    overall : Dataset
        By plate: ``ess``, the smallest of the classes visited; ``transition_ess``, from the
        transition matrix; ``rhat``, the largest; ``p_between`` of the test of chains. Its attribute
        ``p_limit`` is `significance` over the number of tests.
    flags : tuple of str
        Messages about problems; empty if there are none.
    notes : tuple of str
        Messages that do not point to a problem.
    name : str
        Name of the class index.
    """

    table: pd.DataFrame
    chains: xr.Dataset
    transitions: xr.Dataset
    overall: xr.Dataset
    flags: tuple[str, ...]
    notes: tuple[str, ...]
    name: str

    _formats: ClassVar[dict[str, str]] = _FORMATS

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

    def _n_chains(self) -> int:
        return int(self.chains.sizes["chain"])


def class_index_summary(
    data: Any,
    var_name: str | None = None,
    *,
    classes: Sequence[Hashable] | None = None,
    rhat_max: float = 1.01,
    ess_min: float | None = None,
    significance: float = 0.01,
    random_seed: int = 0,
    latents: Sequence[str] | None = None,
    group: str = "posterior",
) -> ClassIndexSummary:
    """Summarize how well a class index was sampled, by `CarlinChib` or by any other step.

    Everything is computed from indicators of classes, counts and transitions. Renaming the
    classes therefore changes no number.

    Parameters
    ----------
    data : DataTree, Dataset or DataArray
        With dimensions ``chain`` and ``draw``. All other dimensions of the index are a plate, whose
        indices are summarized one by one.
    var_name : str, optional
        The class index. Default: ``class_index``, or else the only integer variable.
    classes : sequence, optional
        Labels of all classes, also of those that were never visited. Names such as
        ``["peak", "step"]`` stand for the codes 0, 1, ... Default: 0 to n_classes - 1 if
        `CarlinChib` recorded their weights, else the labels that were visited.
    rhat_max : float
        R-hat above it is flagged. For a plate and for latents it is raised to the value that one
        of so many exceeds by chance with probability `significance`.
    ess_min : float, optional
        An effective sample size below it is flagged; default 100 for each chain. For a plate it is
        lowered to the value below which one of so many falls by chance. For latents within a class
        it is multiplied by the share of the class; by four times that, at most one, if Pareto k of
        the weights of jumps into the class is above 0.5, but not in tails. Its pseudo-prior may
        then miss a part of its posterior, and its share rests on how its latents mix.
    significance : float
        Level of all tests of equal distributions together (Bonferroni).
    random_seed : int
        Seed of the draws of the stationary distribution. The default is not None, so that
        the same draws always have the same summary.
    latents : sequence of str, optional
        Variables to check within each class, over the draws in which the class was active.
        Default: all float variables, for a plate those along it. An empty sequence checks none.
    group : str
        Group of the DataTree.

    Returns
    -------
    ClassIndexSummary

    Raises
    ------
    TypeError
        If `data` has another type or the variable is not categorical.
    ValueError
        If the variable or a dimension is missing, `classes` do not contain a class that was
        visited, or there are fewer than two draws.

    Warns
    -----
    ClassIndexWarning
        Once, if anything is flagged: a class that was never visited, or a chain that never
        switched, although other classes have weight or may have it; a class with more modes than
        its pseudo-prior holds; R-hat, effective sample size and tests beyond their limits; latents
        that did not mix within a class, or whose tails were hardly reached; the outer twentieth of
        a latent, if moves there are accepted less than a quarter as often as in the whole class. A
        chain that never switched because the other classes have no weight is a note, if
        Pareto k shows no fault of its pseudo-priors. This needs the statistics of `CarlinChib`.

    Notes
    -----
    The verdict covers what the chains visited. No diagnostic detects a class, or a mode within a
    class, that no chain found and of which nothing is recorded. A mode that only some chains found
    makes R-hat large. If a class's pseudo-prior lies far from its posterior and is very narrow,
    Pareto k may be low by chance with few draws.

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
    >>> summary.table["share"].round(1).tolist()
    [0.5, 0.3, 0.2]
    """
    chains = read_chains(data, var_name, classes=classes, group=group)
    n_chains, is_equalized = len(chains.chain), chains.log_importance is not None
    shares, transitions = class_shares(chains), class_transitions(chains)
    table = shares[["share", "mcse", "ess", "rhat"]]
    stationary = _stationary(chains, random_seed)
    if not is_equalized:
        table = table.assign(stationary[["stationary", "stationary_sd"]].data_vars)
    if chains.log_weight is not None:
        table = table.assign(rao_blackwell_shares(chains).data_vars)
        table = table.assign(pareto_k=chains.label(jump_pareto_k(chains), "class"))
    # Each chain has its own equalizing weights, so that chains differ.
    tests = _tests(chains, between=not is_equalized)
    n_tests = sum(int(np.isfinite(tests[name].values).sum()) for name in tests)
    overall = xr.Dataset(
        {
            "ess": table["ess"].min("class"),
            "transition_ess": stationary["ess"],
            "rhat": table["rhat"].max("class"),
            "p_between": tests["p_between"],
        },
        attrs={"p_limit": significance / max(n_tests, 1)},
    )
    limits = Limits(
        rhat_max=rhat_max,
        ess_min=100.0 * n_chains if ess_min is None else ess_min,
        significance=significance,
        n_pieces=2 * n_chains,
    )
    flags, notes = unmoved_flags(chains)
    flags += unvisited_flags(chains)
    for other in _indices_beside(chains, data, group):
        # classes that another index has not visited change the shares of both
        flags += [f"other index {other.name}: {flag}" for flag in unvisited_flags(other)]
    flags += missed_share_flags(chains)
    flags += share_flags(chains, shares, tests, limits, overall.attrs["p_limit"])
    variables = data[group].to_dataset() if isinstance(data, xr.DataTree) else data
    if isinstance(variables, xr.Dataset):
        found, of_latents, notes_on_latents = _latents(chains, variables, latents, limits)
        table = table.assign(found)
        flags += of_latents
        flags += neck_flags(chains, variables, latents)
        notes += notes_on_latents
    searched = chains.unvisited_mode_log_odds
    if _has_other_steps(data) and (searched is None or np.isnan(searched).any()):
        notes.append(
            "other steps draw variables too: modes of these that no chain visited are not looked "
            "for; start chains at different initvals to see them"
        )
    if n_chains == 1:
        notes.append("one chain alone has no R-hat; run several from different starting points")
    if "pareto_k" in table and (bad := table["pareto_k"].values > GOOD_PARETO_K).any():
        names = f"{int(bad.sum())} of {bad.size} classes of the plate"
        if not chains.plate.ndim:
            names = "classes " + ", ".join(str(label) for label in chains.classes[bad])
        notes.append(f"Pareto k above {GOOD_PARETO_K}: {names}; jumps are rarer than they could be")
    if is_equalized:
        notes.append(
            "the chains visit classes by class_equalizing_log_weight; shares, errors and R-hat are "
            "those of reweighted draws"
        )
    if flags:
        warnings.warn(
            f"{chains.name}: " + "; ".join(flags) + ". See class_index_summary.",
            ClassIndexWarning,
            stacklevel=2,
        )
    order = [*chains.plate.dims, "class"]
    return ClassIndexSummary(
        table=table.to_dataframe(dim_order=order)[list(table.data_vars)],
        chains=xr.Dataset(
            {
                "n_switches": transitions["n_switches"],
                "p_within": tests["p_within"],
                "chain_share": shares["chain_share"],
            },
            attrs={"n_draws": len(chains.draw)},
        ),
        transitions=transitions.drop_vars("n_switches"),
        overall=overall,
        flags=tuple(flags),
        notes=tuple(notes),
        name=chains.name,
    )


def _indices_beside(chains: IndexChains, data: Any, group: str) -> list[IndexChains]:
    """Return the chains of other indices whose steps searched for hardly visited classes."""
    if chains.unvisited_log_odds is None or not isinstance(data, xr.DataTree):
        return []
    found = [
        read_chains(data, str(name), group=group)
        for name, values in data[group].to_dataset().items()
        if name != chains.name
        and values.dtype.kind in "iu"
        and set(values.dims) == {"chain", "draw"}
    ]
    return [each for each in found if each.unvisited_log_odds is not None]


def _has_other_steps(data: Any) -> bool:
    """Return whether steps other than `CarlinChib` drew variables too, by their statistics."""
    if not isinstance(data, xr.DataTree) or "sample_stats" not in data.children:
        return False
    names = list(map(str, data["sample_stats"].data_vars))
    is_own = [name.startswith("class_") for name in names]
    return any(is_own) and not all(is_own)


def _stationary(chains: IndexChains, random_seed: int) -> xr.Dataset:
    """Return ``stationary`` and ``stationary_sd`` by plate and class, and ``ess`` by plate."""
    counts = count_transitions(chains.codes, chains.n_classes).sum(axis=1)
    found = [stationary_distribution(matrix, random_seed=random_seed) for matrix in counts]
    return chains.labeled(
        {
            "stationary": (np.stack([each.mean for each in found]), "class"),
            "stationary_sd": (np.stack([each.sd for each in found]), "class"),
            "ess": (np.array([each.ess for each in found]),),
        }
    )


def _tests(chains: IndexChains, *, between: bool) -> xr.Dataset:
    """Return p-values: ``p_between`` by plate, ``p_within`` by plate and chain."""
    n_classes = chains.n_classes
    within = [
        [test.p_value for test in within_chain_tests(codes, n_classes)] for codes in chains.codes
    ]
    equal = [
        homogeneity_test(codes, n_classes).p_value if between else np.nan for codes in chains.codes
    ]
    return chains.labeled(
        {"p_between": (np.array(equal),), "p_within": (np.array(within), "chain")}
    )


def _latents(
    chains: IndexChains,
    variables: xr.Dataset,
    latents: Sequence[str] | None,
    limits: Limits,
) -> tuple[dict[str, xr.DataArray], list[str], list[str]]:
    """Return columns of the table, flags and notes about latents within the classes."""
    beside = [str(name) for name, values in variables.items() if values.dtype.kind == "f"]
    looked_at, n_left = latent_mixing(chains, variables, latents)
    notes = []
    if latents is None and beside and not latents_along_the_plate(chains, variables):
        notes.append(
            f"no latent was checked, because none of {beside} lies along {chains.name}; name "
            "those that do in latents, with its dimensions"
        )
    if n_left:
        notes.append(
            f"{n_left} latents were not checked, because there are many; name those that "
            "matter in latents"
        )
    return worst_latents(chains, looked_at), unmixed_latents(chains, looked_at, limits), notes


def _span(values: xr.DataArray, pattern: str) -> str:
    known = values.values[np.isfinite(values.values)]
    if not known.size:
        return "-"
    low, high = formatted(known.min(), pattern), formatted(known.max(), pattern)
    return low if values.ndim == 0 or low == high else f"{low} to {high}"
