"""Diagnosis of what chains did not reach: classes, modes, and any other class than the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats
from scipy.special import expit, softmax

from pymc_mcoem.diagnostics.chains import IndexChains
from pymc_mcoem.diagnostics.pseudo_priors import GOOD_PARETO_K, pareto_k

__all__ = [
    "UnmovedChains",
    "missed_share_flags",
    "unmoved_chains",
    "unmoved_flags",
    "unvisited_flags",
]

#: Verdicts in words; the first two are flagged, the others are notes.
_PHRASES = {
    "stuck": "never switched and could not",
    "unknown": "never switched and may be stuck",
    "chance": "never switched, by chance",
    "no weight": "never switched",
}

#: More chains than this are counted, not named.
_MAX_NAMED = 8

#: Expected draws of a class, which all fail to come with a probability of exp(-5).
N_DUE = 5.0

#: A class that is visited this many times more seldom than a search expects is flagged. The search
#: uses Laplace's approximation, which is not exact.
MUCH_RARER = 10.0

#: Smallest share of unvisited modes of other variables that is flagged; it is approximate.
LEAST_MODE = 0.02

#: Smallest probability that counts as chance: that of no switch if five are expected.
LEAST_PROBABLE = float(np.exp(-N_DUE))

#: Smallest posterior probability of missed modes that is flagged.
_LEAST_MISSED = 0.01

#: A share above this stands for an unknown one.
_UNKNOWN = 0.999


Verdict = Literal["no weight", "chance", "stuck", "unknown"]


@dataclass(frozen=True)
class UnmovedChains:
    """Chains of one row that never left their class.

    Attributes
    ----------
    row : int
        Row of the plate.
    chains : tuple of int
        Positions of the chains.
    verdict : {"no weight", "chance", "stuck", "unknown"}
        "no weight": no chain moved, and by the step's weights the other classes have almost
        none; its pseudo-priors show no fault, and every other discrete variable visited all its
        classes. "chance": other chains leave this class so rarely that chains which never do are
        no surprise. "stuck": the other classes have weight, or the pseudo-priors are too bad to
        tell. "unknown": weights were not recorded, or the evidence of the pseudo-priors
        contradicts them, or they depend on another discrete variable that never visited or never
        left one of its classes.
    reason : str
    """

    row: int
    chains: tuple[int, ...]
    verdict: Verdict
    reason: str


def unmoved_chains(chains: IndexChains) -> list[UnmovedChains]:
    """Return the chains that never switched, with a verdict and its reason.

    Parameters
    ----------
    chains : IndexChains

    Returns
    -------
    list of UnmovedChains
        At most one for each row.

    Notes
    -----
    A chain that stayed in class a learns of class j only through draws of j's pseudo-prior. Their
    importance ratios estimate the odds of j without bias, and are reliable where their Pareto k is
    at most 0.7.
    """
    found = []
    for row, codes in enumerate(chains.codes):
        still = (codes == codes[:, :1]).all(axis=1)
        if still.any():
            verdict, reason = _verdict(chains, row, still)
            positions = tuple(np.flatnonzero(still).tolist())
            found.append(UnmovedChains(row, positions, verdict, reason))
    return found


def _unvisited_mode_flags(chains: IndexChains) -> list[str]:
    found = chains.unvisited_mode_log_odds
    if found is None or np.isnan(found).all():
        return []
    share = expit(np.nanmax(found))
    if share < LEAST_MODE:
        return []
    return [
        "a search over all variables finds modes of those that other steps draw, which a chain did "
        f"not visit, with a share of about {share:.2g}: shares of classes are those of the modes "
        "that were visited; start chains in the others by initvals to see them, and choose a "
        "parametrization or steps of the other variables that go from mode to mode, or for several "
        "indices one step, by join_indices"
    ]


def unvisited_flags(chains: IndexChains) -> list[str]:
    """Return flags about classes that chains hardly visited, although they may have weight.

    A step weighs a class given the variables that other steps draw. A class is flagged if a search
    over all variables finds that it has weight elsewhere. If the search has no answer, or on a
    plate, which has no search, it is flagged if another discrete variable did not go through all
    its classes either, in the same row. Indices that never switched are left to `unmoved_flags`.
    Unvisited modes of the variables that other steps draw are flagged too.
    """
    of_modes = _unvisited_mode_flags(chains)
    odds = np.full(chains.n_classes, np.nan)
    if chains.plate.ndim:
        return of_modes + _together_flags(chains, odds)
    codes = chains.codes[0]
    share = np.bincount(codes.ravel(), minlength=chains.n_classes) / codes.size
    found = chains.unvisited_log_odds
    if found is not None and not np.isnan(found).all():
        # a chain that is stuck in a poor class would find all others heavy
        odds = np.ma.median(np.ma.masked_invalid(found), axis=0).filled(np.nan)
        odds[
            (np.isneginf(found) | np.isnan(found)).all(axis=0) & np.isneginf(found).any(axis=0)
        ] = -np.inf
    expected = expit(odds)
    due = (expected * codes.size > N_DUE) & (share < expected / MUCH_RARER)
    flags = of_modes + [
        f"class {chains.classes[j]} was {'hardly' if share[j] else 'never'} visited, although a "
        f"search over all variables finds it with a share of about {expected[j]:.2g}: chains do "
        "not get there, for variables that other steps draw would have to move with the class; let "
        "CarlinChib draw them too, other indices by join_indices"
        for j in np.flatnonzero(due)
    ]
    return flags + _together_flags(chains, odds)


def _together_flags(chains: IndexChains, log_odds: np.ndarray) -> list[str]:
    """Return a flag about unvisited classes that another index may reach together with this one.

    Classes whose log-odds are known are skipped, as are those of a plate that never had weight.
    """
    found = []
    for row, codes in enumerate(chains.codes):
        beside = [name for name, narrow in chains.companions.items() if narrow[row]]
        if not beside or (codes == codes[:, :1]).all():
            continue
        unknown = np.isnan(log_odds) & ~np.isin(np.arange(chains.n_classes), codes)
        if chains.plate.ndim and chains.log_weight is not None:
            unknown &= np.isfinite(chains.log_weight[row]).any(axis=(0, 1))
        if unknown.any():
            found.append((chains.row_label(row), chains.classes[unknown].tolist(), beside))
    if not found:
        return []
    where, classes, beside = found[0]
    text = (
        f"classes {classes}{' of ' + where if where else ''} were never visited, and neither did "
        f"{', '.join(beside)} go through all its classes: they may have weight together; start "
        "chains there with initvals, or give both one step, by join_indices"
    )
    more = f" (likewise in {len(found) - 1} more indices of the plate)" if len(found) > 1 else ""
    return [text + more]


def unmoved_flags(chains: IndexChains) -> tuple[list[str], list[str]]:
    """Return flags and notes about chains that never switched, one for each verdict."""
    flags: list[str] = []
    notes: list[str] = []
    found = unmoved_chains(chains)
    for verdict, phrase in _PHRASES.items():
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
            text += f" (likewise in {len(alike) - 1} more indices of the plate)"
        (flags if verdict in ("stuck", "unknown") else notes).append(text)
    return flags, notes


def _verdict(chains: IndexChains, row: int, still: np.ndarray) -> tuple[Verdict, str]:
    """Return verdict and reason for the unmoved chains of a row; `still` is ``(n_chains,)``."""
    codes = chains.codes[row]
    stays = np.unique(codes[still, 0])
    if len(stays) > 1:
        return "stuck", f"they stayed in different classes, {chains.classes[stays].tolist()}"
    if still.all():
        if chains.log_weight is not None:
            return _verdict_by_weights(chains, row, still, int(stays[0]))
        return "unknown", "no chain moved, and there are no weights of classes"
    # Other chains decide first, because a chain's weights miss what it does not visit. The rate
    # is that of all chains, since the rate of those that moved would be too high.
    before, after = codes[:, :-1], codes[:, 1:]
    here = before == stays[0]
    rate = (np.sum(after[here] != stays[0]) + 0.5) / (here.sum() + 1)
    expected = rate * (codes.shape[1] - 1)
    elsewhere = not (codes[~still] == stays[0]).any()
    if elsewhere or not _may_be_chance(expected, still, len(chains.codes)):
        return "stuck", "other chains left that class"
    if chains.log_weight is not None:
        found = _verdict_by_weights(chains, row, still, int(stays[0]))
        if found[0] == "stuck":
            return found
    return "chance", f"a chain leaves that class {expected:.1g} times on average"


def _may_be_chance(expected: float, still: np.ndarray, n_rows: int) -> bool:
    """Return whether so many chains may lack the expected switches in one of the rows."""
    probability = stats.binom.sf(int(still.sum()) - 1, len(still), np.exp(-expected))
    return bool(probability >= LEAST_PROBABLE / n_rows)


def _verdict_by_weights(
    chains: IndexChains, row: int, still: np.ndarray, stay: int
) -> tuple[Verdict, str]:
    """Return verdict and reason from the weights that the step gave to the other classes."""
    assert chains.log_weight is not None
    # The class before the first recorded draw is not in the trace.
    log_weight = chains.log_weight[row][still, 1:]
    log_odds = log_weight - log_weight[..., stay : stay + 1]
    others = [
        j for j in range(chains.n_classes) if j != stay and np.isfinite(log_odds[..., j]).any()
    ]
    k = pareto_k(log_odds[..., others])
    limit = _pareto_k_by_chance(log_odds[..., 0].size, len(chains.codes))
    bad = [j for j, value in zip(others, k, strict=True) if not value <= limit]
    if bad:
        worst = max((value for value in k if not np.isnan(value)), default=np.nan)
        return "stuck", (
            f"pseudo-priors do not show the weight of classes {chains.classes[bad].tolist()}: "
            f"Pareto k up to {worst:.2f}, sound up to {limit:.2g}; start chains there by initvals, "
            "or try a parametrization in which the latents are closer to normal"
        )
    expected = log_weight.shape[1] * np.mean(-np.expm1(np.minimum(log_weight[..., stay], 0.0)))
    if not _may_be_chance(float(expected), still, len(chains.codes)):
        return "stuck", f"by its weights {expected:.1f} switches per chain were due"
    if chains.believed is not None and len(chains.codes) == 1:
        due = float(np.nansum(chains.believed[still, 1:], axis=1).mean())
        if not _may_be_chance(due, still, len(chains.codes)):
            return "unknown", (
                f"by its weights {expected:.1g} switches per chain were due, by the evidence "
                f"of its pseudo-priors {due:.1f}"
            )
    beside = [name for name, narrow in chains.companions.items() if narrow[row]]
    if beside:
        return "unknown", (
            f"the other classes have no weight where {', '.join(beside)} was, which did not go "
            "through all its classes either: the two may have weight together"
        )
    return "no weight", (
        f"the other classes have no weight ({expected:.1g} switches per chain were expected) "
        "and no fault of the pseudo-priors is seen"
    )


def _pareto_k_by_chance(n_draws: int, n_rows: int) -> float:
    """Return roughly the median of the largest estimate in rows whose Pareto k are all 0.7.

    An estimate from the m largest ratios has a standard error of (1 + k) / √m.
    """
    n_tail = max(min(n_draws / 5, 3 * np.sqrt(n_draws)), 1.0)
    error = (1 + GOOD_PARETO_K) / np.sqrt(n_tail)
    # For one row the limit is that of Vehtari et al., independent of the error of the estimate.
    return float(GOOD_PARETO_K + error * stats.norm.isf(0.5 / n_rows))


def missed_share_flags(chains: IndexChains) -> list[str]:
    """Return messages about classes whose pseudo-priors are known to miss modes with some weight.

    If a class's share of the chain's weight is w and its pseudo-prior misses a share s of its
    evidence, the missed modes have the odds w s / (1 - s) against all others. If s is unknown, w
    may be small for that reason. On a plate the step has multiplied by the weight in each row and
    recorded the largest product. Without the statistics of `CarlinChib` there is no message.
    """
    if chains.missed_share is None or chains.log_weight is None:
        return []
    share = np.nan_to_num(chains.missed_share.mean(axis=1)).clip(0.0, 1.0)
    weight = np.ones_like(share)
    if len(chains.codes) == 1:
        log_weight = chains.log_weight[0]
        if chains.equalizing_log_weight is not None:
            log_weight = log_weight - chains.equalizing_log_weight
        weight = softmax(log_weight, axis=-1).mean(axis=1)
    odds = weight * share / np.maximum(1.0 - share, 1e-9)
    missed = odds / (1.0 + odds)  # (n_chains, n_classes)
    flags = []
    for j in np.flatnonzero(missed.max(axis=0) > _LEAST_MISSED):
        n_chains = int((missed[:, j] > _LEAST_MISSED).sum())
        flags.append(
            f"class {chains.classes[j]} has more modes than its pseudo-prior holds: in {n_chains} "
            f"of {len(chains.chain)} chains {_about(share[:, j].max())} of its evidence was "
            "missed, so that its share may be too small; name the places of its modes by "
            "pseudo_priors=Laplace(starts=...), run more chains, or write the model without the "
            "symmetry that repeats them"
        )
    return flags


def _about(share: float) -> str:
    return "an unknown part" if share > _UNKNOWN else f"about {share:.0%}"
