"""Summaries of latents within each class, over the draws in which the class was active."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats

from pymc_mcoem.diagnostics.chains import IndexChains, read_chains
from pymc_mcoem.diagnostics.pseudo_priors import FINITE_VARIANCE, GOOD_PARETO_K, jump_pareto_k
from pymc_mcoem.diagnostics.shares import Limits

__all__ = [
    "LatentMixing",
    "class_latents",
    "last_visits",
    "latent_mixing",
    "latents_along_the_plate",
    "unmixed_latents",
    "worst_latents",
]

_STATISTICS = ("mean", "sd", "mcse_mean", "ess", "lower", "upper")

#: Smallest number of draws of a class from which mixing of its latents is computed.
_MIN_VISITS = 25

#: Largest number of latents, times rows and classes, that are checked; of more, a subset is.
_MAX_LOOKED_AT = 5_000

#: Latents of a class whose weights of jumps have no variance need this many times the effective
#: draws: where an index needs one effective draw of ten, they need four of ten of the class.
_TIMES_IF_HEAVY = 4.0

#: Smallest number of draws from which the outer hundredths are estimated.
_MIN_FOR_FAR_TAILS = 400


def class_latents(
    data: xr.DataTree,
    var_name: str | None = None,
    latents: Sequence[str] | None = None,
    *,
    blocks: Mapping[Any, Sequence[str]] | None = None,
    probability: float = 0.94,
    classes: Sequence[Hashable] | None = None,
    group: str = "posterior",
) -> xr.Dataset:
    r"""Summarize latents by class, over the draws in which the class was active.

    While a class is not active, a trace contains draws of its latents from another class's
    posterior, the prior, or a pseudo-prior. These say nothing about the class.

    Parameters
    ----------
    data : DataTree
    var_name : str, optional
        The class index, see `class_index_summary`.
    latents : sequence of str, optional
        Default: all float variables of the group; for a plate those along it, which have its
        dimensions, or first axes of the plate's lengths if PyMC named the dimensions of either.
    blocks : mapping of class to sequence of str, optional
        The latents of each class, as for `CarlinChib`; all others are NaN in that class.
    probability : float
        Probability of the equal-tailed interval.
    classes : sequence, optional
    group : str

    Returns
    -------
    Dataset
        For every latent an array by plate, ``class``, ``summary`` and the latent's own
        dimensions; ``summary`` is mean, sd, mcse_mean, ess, lower, upper. ``active``, by
        plate and ``class``, is the share of draws in which the class was active. Draws of
        chains with equalized visits are reweighted. An index's own equalizing weights change the
        shares of its classes but not the latents given a class; those of another index change
        both. Summaries are NaN for a class that was active in fewer than two draws.

    Raises
    ------
    ValueError
        As `class_index_summary`; if a latent is missing or does not have the plate's dimensions,
        or `probability` is not between 0 and 1.

    Notes
    -----
    The mean over the draws of a class is a ratio of two averages, so its Monte Carlo error is that
    of the average of :math:`1_k(x - \bar x_k)`, divided by the class's share. It includes the gaps
    between visits.

    Examples
    --------
    >>> index = xr.DataArray([[0, 1, 1, 0, 1, 1]], dims=("chain", "draw"))
    >>> x = xr.DataArray([[5.0, 1.0, 2.0, 6.0, 3.0, 2.0]], dims=("chain", "draw"))
    >>> posterior = xr.Dataset({"class_index": index, "x": x})
    >>> found = class_latents(xr.DataTree.from_dict({"posterior": posterior}))
    >>> found["x"].sel(summary="mean").values
    array([5.5, 2. ])
    >>> found["active"].values.round(2)
    array([0.33, 0.67])
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability: got {probability}; give a number between 0 and 1.")
    chains = read_chains(data, var_name, classes=classes, group=group)
    variables = data[group].to_dataset()
    if latents is None:
        latents = latents_along_the_plate(chains, variables)
    known = set(chains.classes.tolist())
    if blocks is not None and not set(blocks) <= known:
        raise ValueError(
            f"blocks: got classes {sorted(set(blocks) - known)}, and the index has "
            f"{sorted(known)}; name classes by their labels."
        )
    active = np.stack([chains.codes == k for k in range(chains.n_classes)], axis=-1)
    shares = (active * chains.weights[..., None]).mean(axis=(1, 2))
    found = {"active": chains.label(shares, "class")}
    for name in latents:
        latent = along_the_plate(chains, variables, name)
        outside = [
            position
            for position, label in enumerate(chains.classes.tolist())
            if blocks is not None and name not in blocks.get(label, ())
        ]
        found[name] = _summarize(chains, latent, outside, probability)
    return xr.Dataset(found)


def latents_along_the_plate(chains: IndexChains, variables: xr.Dataset) -> list[str]:
    """Return the names of float variables with a value at every draw, for a plate in every row."""
    return [
        str(name)
        for name, values in variables.items()
        if values.dtype.kind == "f"
        and name != chains.name
        and {"chain", "draw", *chains.plate.dims} <= set(_renamed(chains, values).dims)
    ]


def along_the_plate(chains: IndexChains, variables: xr.Dataset, name: str) -> xr.DataArray:
    """Return a latent with the plate's dimensions; refuse it by name if it lacks them."""
    wanted = ("chain", "draw", *chains.plate.dims)
    latent = _renamed(chains, variables[name]) if name in variables else None
    if latent is None or not {*wanted} <= set(latent.dims):
        raise ValueError(
            f"latents: got {name!r}; name variables of the group with the dimensions of "
            f"{chains.name}, {wanted}."
        )
    return latent


def _renamed(chains: IndexChains, latent: xr.DataArray) -> xr.DataArray:
    """Rename dimensions of a latent to the plate's where PyMC named either of them by number."""
    own = [dim for dim in latent.dims if dim not in ("chain", "draw")]
    new = {}
    for i, (mine, plates) in enumerate(zip(own, chains.plate.dims, strict=False)):
        nameless = mine == f"{latent.name}_dim_{i}" or plates == f"{chains.name}_dim_{i}"
        if (
            nameless
            and plates not in latent.dims
            and latent.sizes[mine] == chains.plate.sizes[plates]
        ):
            new[mine] = plates
    return latent.drop_vars([dim for dim in new if dim in latent.coords]).rename(new)


def draws_by_row(chains: IndexChains, latent: xr.DataArray) -> tuple[np.ndarray, list[Hashable]]:
    """Return draws ``(n_rows, n_chains, n_draws, size)`` and the latent's own dimensions."""
    plate_dims = chains.plate.dims
    own = [dim for dim in latent.dims if dim not in ("chain", "draw", *plate_dims)]
    values = latent.transpose(*plate_dims, "chain", "draw", *own).values
    return values.reshape(*chains.codes.shape, -1), own


def _summarize(
    chains: IndexChains, latent: xr.DataArray, outside: Sequence[int], probability: float
) -> xr.DataArray:
    values, own = draws_by_row(chains, latent)
    n_rows = len(chains.codes)
    shape = (n_rows, chains.n_classes, len(_STATISTICS), values.shape[-1])
    table = np.full(shape, np.nan)
    weights = chains.weights_within_classes
    for row, k in np.ndindex(n_rows, chains.n_classes):
        active = chains.codes[row] == k
        if k in outside or active.sum() < 2:
            continue
        tails = [(1 - probability) / 2, (1 + probability) / 2]
        for column in range(values.shape[-1]):
            x = values[row, ..., column]
            here, own_weights = x[active], weights[active]
            mean = np.average(here, weights=own_weights)
            error = _error_of_mean(x, active * weights, mean)
            # with equal weights the sum of squares over n - 1
            sd = np.sqrt(np.average((here - mean) ** 2, weights=own_weights) * _ddof(own_weights))
            ess = (sd / error) ** 2 if error > 0 else np.nan
            quantiles = np.quantile(here, tails, weights=own_weights, method="inverted_cdf")
            if chains.log_importance is None:
                quantiles = np.quantile(here, tails)
            table[row, k, :, column] = [mean, sd, error, ess, *quantiles]
    sizes = tuple(latent.sizes[dim] for dim in own)
    labeled = chains.label(
        table.reshape(*shape[:-1], *sizes), "class", "summary", *(str(dim) for dim in own)
    ).assign_coords(summary=list(_STATISTICS))
    return labeled.assign_coords({dim: latent[dim] for dim in own if dim in latent.coords})


def _ddof(weights: np.ndarray) -> float:
    share = weights / weights.sum()
    left: float = 1.0 - (share**2).sum()
    return 1.0 / left if left > 0 else np.nan


def _error_of_mean(x: np.ndarray, weight: np.ndarray, mean: float) -> float:
    """Return the Monte Carlo error of a mean over the draws of a class, weighted by `weight`."""
    residual = np.where(weight > 0, weight * (x - mean), 0.0)
    if np.ptp(residual) == 0 or residual.shape[1] < 4:
        return np.nan
    with np.errstate(all="ignore"):
        error = array_stats.mcse(residual, chain_axis=0, draw_axis=1)
    return float(error / weight.mean())


@dataclass(frozen=True)
class LatentMixing:
    """Mixing of one latent within a class, over the draws in which the class was active.

    Attributes
    ----------
    name : str
        Name of the latent, with its position in an array.
    share : float
        Share of all draws.
    rhat, ess, tail_ess : float
        Rank-normalized, after Vehtari et al. (2021); tails are the outer twentieths, and also the
        outer hundredths if there are many draws.
    pareto_k : float
        Pareto k of the tails of the draws: above 0.7 no number of draws determines the mean.
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
    """Return the mixing of latents within the classes that were visited often enough.

    It also returns the number of latents that were skipped because there are too many. `variables`
    are those of the group of the index, and `latents` are by default those of `class_latents`.
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
        if active.sum(axis=1).max() < _MIN_VISITS:
            continue
        chain, last = last_visits(active, _MIN_VISITS)
        draws = drawn[name][row, chain[:, None], last, column]
        if np.ptp(draws) == 0 or not np.isfinite(draws).all():
            continue
        place = "" if drawn[name].shape[-1] == 1 else f"[{column}]"
        n, share = int(active.sum()), float(active.mean())
        found.append(LatentMixing(row, k, f"{name}{place}", n, share, *_mixing(draws)))
    return found, len(places) - len(looked_at)


def last_visits(active: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the chains that visited a class, and their last draws of it, equally many per chain.

    `active`, (n_chains, n_draws), says where the class was active. Chains with less than half of
    the median number of visits, or fewer than `least`, are skipped.
    """
    visits = active.sum(axis=1)
    visited = np.flatnonzero(visits >= max(least, np.median(visits[visits > 0]) / 2))
    length = int(visits[visited].min())
    return visited, np.stack([np.flatnonzero(active[chain])[-length:] for chain in visited])


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
        k = _pareto_k_of_tails(draws) if draws.size >= _MIN_FOR_FAR_TAILS else np.nan
    return float(rhat), float(ess), float(np.nanmin(tail)), k


def _pareto_k_of_tails(draws: np.ndarray) -> float:
    """Return Pareto k of the tails of (n_chains, n_draws) values, NaN if a tail is one value."""
    try:
        return float(array_stats.pareto_khat(draws, chain_axis=0, draw_axis=1))
    except ValueError:
        # ArviZ refuses a tail of equal values, as of a chain that stood still at an end.
        return np.nan


def worst_latents(
    chains: IndexChains, looked_at: Sequence[LatentMixing]
) -> dict[str, xr.DataArray]:
    """Return the largest R-hat and the smallest effective sample sizes of latents by class."""
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


def _due_share(
    chains: IndexChains, looked_at: Sequence[LatentMixing], share: np.ndarray
) -> np.ndarray:
    """Return shares (n_latents,) of their classes, raised where they rest on how latents mix.

    Where a pseudo-prior misses a part of its class's posterior, jumps hardly ever lead into that
    part, and the class has its right share only if its latents go there by themselves.
    """
    if chains.log_weight is None or chains.log_importance is not None:
        return share
    k = jump_pareto_k(chains)
    heavy = np.array([k[each.row, each.class_number] > FINITE_VARIANCE for each in looked_at])
    return np.where(heavy, np.minimum(1.0, _TIMES_IF_HEAVY * share), share)


def unmixed_latents(
    chains: IndexChains, looked_at: Sequence[LatentMixing], limits: Limits
) -> list[str]:
    """Return messages about latents that did not mix within a class, the worst of each kind."""
    if not looked_at:
        return []
    rhat, ess, tail_ess, k, share = (
        np.array([getattr(each, name) for each in looked_at])
        for name in ("rhat", "ess", "tail_ess", "pareto_k", "share")
    )
    due = limits.ess_min * share
    # Heavy tails determine the mean, so a small share of the class does not lower this limit.
    due_in_tails = np.where(k > GOOD_PARETO_K, limits.ess_min, due)
    limit = limits.rhat(ess, due, len(looked_at))
    due = limits.ess_min * _due_share(chains, looked_at, share)
    if len(chains.codes) > 1:
        due = limits.ess(due, len(looked_at))
        due_in_tails = limits.ess(due_in_tails, len(looked_at))
    flags = []
    for excess, words, values, beyond in (
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
            f"{chains.classes[each.class_number]} has {words.format(values[worst], beyond[worst])}"
            f"{f' (and {n_bad - 1} more)' if n_bad > 1 else ''}"
        )
    return flags
