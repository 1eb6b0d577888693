"""Latents of classes, summarised where their class is active."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats

from pymc_mcoem.diagnostics.chains import IndexChains, read_chains

__all__ = ["along_the_plate", "class_latents", "draws_by_row", "latents_along_the_plate"]

_STATISTICS = ("mean", "sd", "mcse_mean", "ess", "lower", "upper")


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
    r"""Summarise latents class by class, over the draws in which the class was active.

    What a trace holds of a latent while its class is not active is not about that class: draws
    of another class's posterior, of the prior, or of a pseudo-prior.

    Parameters
    ----------
    data : DataTree
    var_name : str, optional
        The class index, see `class_index_summary`.
    latents : sequence of str, optional
        Default: all variables of floats of the group; on a plate those along it: with its
        dimensions, or with first axes as long as the plate's where PyMC named either of the two.
    blocks : mapping of class to sequence of str, optional
        The latents of each class, as `CarlinChib` takes them; all others are NaN in that class.
    probability : float
        Of the equal-tailed interval.
    classes : sequence, optional
    group : str

    Returns
    -------
    Dataset
        For every latent an array by plate, ``class``, ``summary`` and the latent's own
        dimensions; ``summary`` is mean, sd, mcse_mean, ess, lower, upper. And ``active``, by
        plate and ``class``: the share of draws in which the class was active. Draws of tilted
        chains are weighed back; an index's own tilt changes its latents' shares, not what they are
        given their class, but that of another index does. NaN for a class that was active in fewer
        than two draws.

    Raises
    ------
    ValueError
        As `class_index_summary`; if a latent is not there, does not have the plate's dimensions,
        or `probability` is not between 0 and 1.

    Notes
    -----
    The mean over the draws of a class is a ratio of two averages, so its Monte Carlo error is that
    of the average of :math:`1_k(x - \bar x_k)`, divided by the class's share; the gaps between
    visits count.

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
        found[name] = _summarise(chains, latent, outside, probability)
    return xr.Dataset(found)


def latents_along_the_plate(chains: IndexChains, variables: xr.Dataset) -> list[str]:
    """Name the variables of floats that have a value at every draw, on a plate for every row."""
    return [
        str(name)
        for name, values in variables.items()
        if values.dtype.kind == "f"
        and name != chains.name
        and {"chain", "draw", *chains.plate.dims} <= set(_renamed(chains, values).dims)
    ]


def along_the_plate(chains: IndexChains, variables: xr.Dataset, name: str) -> xr.DataArray:
    """Return a latent with the plate's dimensions.

    Parameters
    ----------
    chains : IndexChains
    variables : Dataset
    name : str

    Raises
    ------
    ValueError
        If there is no such variable or it does not lie along the plate.
    """
    wanted = ("chain", "draw", *chains.plate.dims)
    latent = _renamed(chains, variables[name]) if name in variables else None
    if latent is None or not {*wanted} <= set(latent.dims):
        raise ValueError(
            f"latents: got {name!r}; name variables of the group with the dimensions of "
            f"{chains.name}, {wanted}."
        )
    return latent


def _renamed(chains: IndexChains, latent: xr.DataArray) -> xr.DataArray:
    """Give a latent the plate's dimensions where PyMC named its own, or the plate's, by number."""
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


def _summarise(
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
            # as the mean square over n - 1 where all draws weigh alike
            sd = np.sqrt(np.average((here - mean) ** 2, weights=own_weights) * _ddof(own_weights))
            ess = (sd / error) ** 2 if error > 0 else np.nan
            quantiles = np.quantile(here, tails, weights=own_weights, method="inverted_cdf")
            if chains.log_importance is None:
                quantiles = np.quantile(here, tails)
            table[row, k, :, column] = [mean, sd, error, ess, *quantiles]
    sizes = tuple(latent.sizes[dim] for dim in own)
    labelled = chains.label(
        table.reshape(*shape[:-1], *sizes), "class", "summary", *(str(dim) for dim in own)
    ).assign_coords(summary=list(_STATISTICS))
    return labelled.assign_coords({dim: latent[dim] for dim in own if dim in latent.coords})


def _ddof(weights: np.ndarray) -> float:
    share = weights / weights.sum()
    left: float = 1.0 - (share**2).sum()
    return 1.0 / left if left > 0 else np.nan


def _error_of_mean(x: np.ndarray, weight: np.ndarray, mean: float) -> float:
    """Return the Monte Carlo error of a mean over the draws of a class, weighed by `weight`."""
    residual = np.where(weight > 0, weight * (x - mean), 0.0)
    if np.ptp(residual) == 0 or residual.shape[1] < 4:
        return np.nan
    with np.errstate(all="ignore"):
        error = array_stats.mcse(residual, chain_axis=0, draw_axis=1)
    return float(error / weight.mean())
