"""Draws of one class, in a form that ArviZ's tables and plots take."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.diagnostics.chains import read_chains
from pymc_mcoem.diagnostics.latents import last_visits

__all__ = ["class_draws"]


def class_draws(
    data: xr.DataTree,
    label: Hashable,
    var_name: str | None = None,
    *,
    blocks: Mapping[Any, Sequence[str]] | None = None,
    group: str = "posterior",
) -> xr.DataTree:
    """Return the draws in which a class was active, for ArviZ's tables and plots.

    A mean over all draws mixes a class's posterior with the draws of its parameters while another
    class was active, and the mean of an index says nothing. Means, intervals and predictive checks
    of the returned draws are conditional on the class.

    Parameters
    ----------
    data : DataTree
        As `pymc.sample` and `pymc.sample_posterior_predictive` return it.
    label : hashable
        Label of the class.
    var_name : str, optional
        The class index, see `class_index_summary`.
    blocks : mapping of class to sequence of str, optional
        The latents of each class, as for `CarlinChib`: those of other blocks are dropped.
    group : str
        Group of the index.

    Returns
    -------
    DataTree
        The same groups. Variables along chain and draw have the last draws of the class in each
        chain, equally many from each, numbered from 0. The index is dropped, and so are chains with
        less than half of the median number of visits.

    Raises
    ------
    TypeError
        If `data` is not a DataTree.
    ValueError
        As `class_index_summary`; if the index is a plate, the class was hardly visited,
        or visits of another index were equalized, so that draws of the class differ in weight.

    Notes
    -----
    Effective sample sizes of these draws ignore the gaps between visits; `class_latents` includes
    them.

    Examples
    --------
    >>> index = xr.DataArray([[0, 1, 1, 0], [1, 1, 0, 1]], dims=("chain", "draw"))
    >>> x = xr.DataArray([[9.0, 1.0, 2.0, 9.0], [3.0, 4.0, 9.0, 5.0]], dims=("chain", "draw"))
    >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"k": index, "x": x})})
    >>> class_draws(tree, 1)["posterior"]["x"].values
    array([[1., 2.],
           [4., 5.]])
    """
    if not isinstance(data, xr.DataTree):
        raise TypeError(f"data: got a {type(data).__name__}; give a DataTree, as of pm.sample.")
    chains = read_chains(data, var_name, group=group)
    if chains.plate.ndim:
        raise ValueError(
            f"var_name: {chains.name} is a plate, whose indices are in different classes at the "
            "same draw; use class_latents, which summarizes each by itself."
        )
    if label not in chains.classes.tolist():
        raise ValueError(
            f"label: got {label!r}, and {chains.name} has the classes {chains.classes.tolist()}; "
            "name one of them."
        )
    if np.ptp(chains.weights_within_classes) > 1e-9:
        raise ValueError(
            f"data: visits of another index than {chains.name} were equalized, so that draws of "
            "one class differ in weight; use class_latents, which weighs them."
        )
    active = chains.codes[0] == chains.classes.tolist().index(label)
    if not active.any():
        raise ValueError(f"label: class {label!r} of {chains.name} was never visited.")
    visited, draws = last_visits(active, 1)
    at_chain = xr.DataArray(visited, dims="chain")
    at_draw = xr.DataArray(draws, dims=("chain", "draw"))

    def of_class(variables: xr.Dataset) -> xr.Dataset:
        sizes = {dim: variables.sizes.get(dim) for dim in ("chain", "draw")}
        if sizes != {"chain": len(chains.chain), "draw": len(chains.draw)}:
            return variables
        coords = {"chain": chains.chain[visited], "draw": np.arange(draws.shape[1])}
        along = variables.drop_vars(["chain", "draw"], errors="ignore")
        return along.isel(chain=at_chain, draw=at_draw).assign_coords(coords)

    found = {name: of_class(child.to_dataset()) for name, child in data.children.items()}
    off = {chains.name}
    if blocks is not None:
        of_classes = {key: {str(each) for each in block} for key, block in blocks.items()}
        off |= set().union(*of_classes.values()) - of_classes.get(label, set())
    found[group] = found[group].drop_vars([name for name in off if name in found[group]])
    return xr.DataTree.from_dict(found)
