"""How latents mixed within the classes: R-hat and effective sample sizes, of their tails too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats

from pymc_mcoem.diagnostics.chains import IndexChains
from pymc_mcoem.diagnostics.indicators import ess_reached_by_chance, rhat_reached_by_chance
from pymc_mcoem.diagnostics.latents import (
    along_the_plate,
    draws_by_row,
    latents_along_the_plate,
)
from pymc_mcoem.diagnostics.pseudo_priors import GOOD_PARETO_K

__all__ = ["LatentMixing", "latent_mixing", "unmixed_latents", "worst_latents"]

#: A chain with fewer draws of a class tells nothing of how latents mix in it.
_MIN_VISITS = 25

#: More latents than this, rows and classes counted, are looked at in part.
_MAX_LOOKED_AT = 5_000

#: Below so many draws a hundredth of them is too few to be counted.
_MIN_FOR_FAR_TAILS = 400


@dataclass(frozen=True)
class LatentMixing:
    """How a latent mixed within a class, over the draws in which the class was active.

    Attributes
    ----------
    row, class_number : int
    name : str
        Of the latent, with its place in an array.
    n_draws : int
    share : float
        Of all draws.
    rhat, ess, tail_ess : float
        Rank-normalised, as of Vehtari et al. (2021); tails are the outer twentieths, and the outer
        hundredths where draws are many.
    pareto_k : float
        Of the draws' own tails: above 0.7 no number of draws tells their mean.
    """

    row: int
    class_number: int
    name: str
    n_draws: int
    share: float
    rhat: float
    ess: float
    tail_ess: float
    pareto_k: float


def latent_mixing(
    chains: IndexChains, variables: xr.Dataset, latents: Sequence[str] | None = None
) -> tuple[list[LatentMixing], int]:
    """Look at latents within the classes that were visited often enough.

    Parameters
    ----------
    chains : IndexChains
    variables : Dataset
        Of the group that the index is of.
    latents : sequence of str, optional
        Default as of `class_latents`.

    Returns
    -------
    found : list of LatentMixing
    n_left_out : int
        How many were not looked at, for there are too many.

    Raises
    ------
    ValueError
        If a latent is not there or does not lie along the plate.
    """
    if latents is None:
        latents = latents_along_the_plate(chains, variables)
    drawn = {
        name: draws_by_row(chains, along_the_plate(chains, variables, name))[0] for name in latents
    }
    places = [
        (row, k, name, column)
        for row, k in np.ndindex(len(chains.codes), chains.n_classes)
        for name, values in drawn.items()
        for column in range(values.shape[-1])
    ]
    looked_at = places[:: -(-len(places) // _MAX_LOOKED_AT)] if places else []
    found = []
    for row, k, name, column in looked_at:
        active = chains.codes[row] == k
        draws = _of_equal_lengths(drawn[name][row, ..., column], active)
        if draws is None or np.ptp(draws) == 0 or not np.isfinite(draws).all():
            continue
        place = "" if drawn[name].shape[-1] == 1 else f"[{column}]"
        n, share = int(active.sum()), float(active.mean())
        found.append(LatentMixing(row, k, f"{name}{place}", n, share, *_mixing(draws)))
    return found, len(places) - len(looked_at)


def _of_equal_lengths(x: np.ndarray, active: np.ndarray) -> np.ndarray | None:
    """Return the last draws of a class in the chains that visited it, ``(n_chains, n)``.

    Chains that were there for less than half as long as most are left out.
    """
    visits = active.sum(axis=1)
    if visits.max() < _MIN_VISITS:
        return None
    kept = visits >= max(_MIN_VISITS, np.median(visits[visits > 0]) / 2)
    length = int(visits[kept].min())
    return np.stack([x[chain, active[chain]][-length:] for chain in np.flatnonzero(kept)])


def _mixing(draws: np.ndarray) -> tuple[float, float, float, float]:
    """Return R-hat, bulk and tail effective sample sizes, and Pareto k of the draws' tails."""
    axes: dict[str, Any] = {"chain_axis": 0, "draw_axis": 1}
    if (np.ptp(draws, axis=1) == 0).any():
        return np.inf, float(len(draws)), float(len(draws)), np.nan
    tails = [(0.05, 0.95)] + [(0.01, 0.99)] * (draws.size >= _MIN_FOR_FAR_TAILS)
    with np.errstate(all="ignore"):
        rhat = array_stats.rhat(draws, method="rank", **axes) if len(draws) > 1 else np.nan
        ess = array_stats.ess(draws, method="bulk", **axes)
        tail = [array_stats.ess(draws, method="tail", prob=prob, **axes) for prob in tails]
        k = array_stats.pareto_khat(draws, **axes) if draws.size >= _MIN_FOR_FAR_TAILS else np.nan
    return float(rhat), float(ess), float(np.nanmin(tail)), float(k)


def worst_latents(
    chains: IndexChains, looked_at: Sequence[LatentMixing]
) -> dict[str, xr.DataArray]:
    """Return by class the largest R-hat of its latents and their least effective sample sizes.

    Parameters
    ----------
    chains : IndexChains
    looked_at : sequence of LatentMixing
    """
    if not looked_at:
        return {}
    rhat, ess, tail_ess = np.full((3, len(chains.codes), chains.n_classes), np.nan)
    for each in looked_at:
        place = each.row, each.class_number
        rhat[place] = np.fmax(rhat[place], each.rhat)
        ess[place] = np.fmin(ess[place], each.ess)
        tail_ess[place] = np.fmin(tail_ess[place], each.tail_ess)
    named = {"latent_rhat": rhat, "latent_ess": ess, "latent_tail_ess": tail_ess}
    return {name: chains.label(values, "class") for name, values in named.items()}


def unmixed_latents(
    chains: IndexChains,
    looked_at: Sequence[LatentMixing],
    *,
    rhat_max: float,
    ess_min: float,
    significance: float,
) -> list[str]:
    """Return what is wrong with latents within classes, the worst of each kind in words.

    Parameters
    ----------
    chains : IndexChains
    looked_at : sequence of LatentMixing
    rhat_max, ess_min, significance
        As of `class_index_summary`.
    """
    if not looked_at:
        return []
    rhat, ess, tail_ess, k, share = (
        np.array([getattr(each, name) for each in looked_at])
        for name in ("rhat", "ess", "tail_ess", "pareto_k", "share")
    )
    due = ess_min * share
    # Where tails are that heavy what is out there decides, and a small share is no excuse.
    due_in_tails = np.where(k > GOOD_PARETO_K, ess_min, due)
    reached = rhat_reached_by_chance(ess, due, 2 * len(chains.chain), significance, len(looked_at))
    limit = np.maximum(rhat_max, reached)
    if len(chains.codes) > 1:
        due = ess_reached_by_chance(due, significance, len(looked_at))
        due_in_tails = ess_reached_by_chance(due_in_tails, significance, len(looked_at))
    flags = []
    for excess, words, values, limits in (
        (rhat / limit, "an R-hat of {:.3g}, above {:.3g}", rhat, limit),
        (due / ess, "{:.0f} effective draws, below {:.0f}", ess, due),
        (
            due_in_tails / tail_ess,
            "{:.0f} effective draws of its tails, below {:.0f}",
            tail_ess,
            due_in_tails,
        ),
    ):
        n_bad = int((excess > 1.0).sum())
        if not n_bad:
            continue
        worst = int(np.nanargmax(excess))
        each = looked_at[worst]
        row = chains.row_label(each.row)
        flags.append(
            f"{each.name}{' of ' + row if row else ''} in class "
            f"{chains.classes[each.class_number]} has {words.format(values[worst], limits[worst])}"
            f"{f' (and {n_bad - 1} more)' if n_bad > 1 else ''}"
        )
    return flags
