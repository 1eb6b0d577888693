"""Plot of the chains of a class index as a raster, beside their transition matrix."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import rcParams
from arviz_base.labels import BaseLabeller
from arviz_plots.plot_collection import PlotCollection, backend_from_object
from arviz_plots.plots.utils import set_grid_layout

from pymc_mcoem.diagnostics.chains import IndexChains, find_index, read_chains
from pymc_mcoem.diagnostics.shares import class_shares
from pymc_mcoem.diagnostics.transitions import class_transitions
from pymc_mcoem.plots.layers import Layers, class_colors

__all__ = ["plot_class_index"]

_VISUALS = ("raster", "matrix", "matrix_text", "title", "xlabel", "ylabel", "ticks", "legend")

#: Largest number of classes for which numbers in the cells of the matrix are legible.
_MAX_NUMBERED = 12

#: Half the height of a chain's band.
_HALF = 0.42


def plot_class_index(
    data: Any,
    var_name: str | None = None,
    *,
    classes: Sequence[Hashable] | None = None,
    group: str = "posterior",
    coords: Mapping[Any, Any] | None = None,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    labeller: BaseLabeller | None = None,
    aes_by_visuals: Mapping[str, Sequence[str]] | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw the chains of a class index over their draws, beside the transition matrix.

    Each chain is a band colored by class: a chain that is stuck has one color, one that is
    sticky has long blocks, chains that agree look alike. The matrix has the share of steps from
    each class (row) to each class (column) in all chains. Both show how chains move, without
    correction for equalized visits; `class_index_summary` reweights the draws of such chains.

    Parameters
    ----------
    data : DataTree, Dataset or DataArray
        See `class_index_summary`.
    var_name : str, optional
        The class index.
    classes : sequence, optional
        Labels of all classes.
    group : str
        Group of the DataTree.
    coords : mapping, optional
        Indices of a plate to draw; each has a row of the figure. Default: all, or, if ArviZ's
        ``plot.max_subplots`` has no room for all, those with the fewest effective draws.
    plot_collection : PlotCollection, optional
        With facet dimension ``column``, of raster and transitions, and the plate's dimensions.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    labeller : labeller, optional
        Labels the plate's indices in titles.
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Default: all aesthetics for ``raster``, none for the others.
    visuals : mapping of {str : mapping or bool}, optional
        False omits a visual. Valid keys:

        * raster -> passed to the back end's ``fill_between_y``, called for each class and chain
        * matrix -> passed to ``fill_between_y``, called for each cell; ``alpha``, 0.7 by default,
          multiplies the probability
        * matrix_text -> passed to ``text``; off by default above 12 classes
        * title -> passed to ``title``
        * xlabel -> passed to ``xlabel``
        * ylabel -> passed to ``ylabel``
        * ticks -> passed to ``xticks`` and ``yticks``
        * legend -> passed to `arviz_plots.PlotCollection.add_legend`
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.grid`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        As `class_index_summary`; if `coords` name more indices than ArviZ's ``plot.max_subplots``
        has room for, or a key of a visual is not valid.

    Warns
    -----
    UserWarning
        If only some indices of a plate are drawn.

    Examples
    --------
    >>> index = xr.DataArray([[0, 1, 1, 0], [1, 1, 0, 1]], dims=("chain", "draw"), name="k")
    >>> collection = plot_class_index(index, backend="none")
    >>> collection.viz["plot"].sizes["column"]
    2
    """
    layers = Layers(_VISUALS, visuals, aes_by_visuals)
    chains = read_chains(data, var_name, classes=classes, group=group)
    if coords:
        index = find_index(data, var_name, group)[0].sel(coords)
        chains = read_chains(index, classes=chains.classes.tolist())
    elif plot_collection is None:
        chains = _that_fit(chains)
    backend = rcParams["plot.backend"] if backend is None else backend
    if plot_collection is None:
        plot_collection = _grid(chains, backend, pc_kwargs)
    layers.draw(
        plot_collection,
        "raster",
        _draw_bands,
        _indicators(chains),
        at={"column": "raster"},
        aes=list(plot_collection.aes_set),
        artist_dims={"chain": len(chains.chain)},
    )
    n = chains.n_classes
    for visual, draw, default in (
        ("matrix", _draw_cells, True),
        ("matrix_text", _write_cells, n <= _MAX_NUMBERED),
    ):
        layers.draw(
            plot_collection,
            visual,
            draw,
            _probabilities(chains),
            at={"column": "transitions"},
            default=default,
            artist_dims={"cell_from": n, "cell_to": n},
        )
    words = {
        "title": {"raster": chains.name, "transitions": "transitions"},
        "xlabel": {"raster": "draw", "transitions": "to class"},
        "ylabel": {"raster": "chain", "transitions": "from class"},
    }
    maker = BaseLabeller() if labeller is None else labeller
    for visual, text in words.items():
        writer = partial(_write_label, visual=visual, text=text, labeller=maker)
        layers.draw(plot_collection, visual, writer, subset_info=True)
    set_ticks = partial(_set_ticks, chains=chains)
    layers.draw(plot_collection, "ticks", set_ticks, store=False, subset_info=True)
    layers.add_legend(plot_collection, dim="class")
    return plot_collection


def _that_fit(chains: IndexChains) -> IndexChains:
    """Return the indices with the fewest effective draws, if not all of a plate fit a figure."""
    n_rows, most = len(chains.codes), int(rcParams["plot.max_subplots"]) // 2
    if chains.plate.ndim != 1 or n_rows <= most:
        return chains
    # An index that never moved in any chain has no effective draws, and nothing to show.
    ess = class_shares(chains)["ess"].min("class").fillna(np.inf).values
    chosen = np.sort(np.argsort(ess, kind="stable")[:most])
    (dim,) = chains.plate.dims
    warnings.warn(
        f"{chains.name}: of {n_rows} indices the {most} with the fewest effective draws are drawn; "
        f"choose others by coords, as coords={{{dim!r}: [0, 1]}}, or raise ArviZ's "
        "rcParams['plot.max_subplots'].",
        stacklevel=3,
    )
    plate = chains.plate
    if dim not in plate.coords:
        # titles name the positions in the whole plate
        plate = plate.assign_coords({dim: np.arange(n_rows)})
    return replace(
        chains, codes=chains.codes[chosen], log_weight=None, plate=plate.isel({dim: chosen})
    )


def _grid(chains: IndexChains, backend: str, pc_kwargs: dict[str, Any]) -> PlotCollection:
    """Return an empty figure for raster and matrix side by side, with a row for each index."""
    back_end = import_module(f"arviz_plots.backend.{backend}")
    shape = (len(chains.codes), chains.n_classes, 2)
    frame = chains.label(np.zeros(shape), "class", "column")
    frame = frame.assign_coords(column=["raster", "transitions"])
    pc_kwargs = {**pc_kwargs, "figure_kwargs": dict(pc_kwargs.get("figure_kwargs", {}))}
    pc_kwargs["figure_kwargs"].setdefault("width_ratios", [2, 1])
    pc_kwargs["aes"] = dict(pc_kwargs.get("aes", {}))
    pc_kwargs["aes"].setdefault("color", ["class"])
    pc_kwargs.setdefault("cols", ["column"])
    pc_kwargs.setdefault("rows", list(chains.plate.dims))
    data = xr.Dataset({chains.name: frame})
    if backend == "matplotlib":
        # Without it titles, labels and the legend outside overlap or are cut off.
        pc_kwargs["figure_kwargs"].setdefault("layout", "constrained")
    pc_kwargs.setdefault("color", class_colors(chains.n_classes))
    # Rows must be high enough for titles, and the figure for the legend.
    n_rows = max(1.4 * len(chains.codes), chains.n_classes / 8)
    pc_kwargs = set_grid_layout(pc_kwargs, back_end, data, num_rows=n_rows)
    return PlotCollection.grid(data, backend=backend, **pc_kwargs)


def _indicators(chains: IndexChains) -> xr.Dataset:
    """Return 1 where a chain was in a class, by plate, chain, draw and class."""
    active = np.eye(chains.n_classes)[chains.codes]
    labeled = chains.label(active, "chain", "draw", "class").assign_coords(draw=chains.draw)
    return xr.Dataset({chains.name: labeled})


def _probabilities(chains: IndexChains) -> xr.Dataset:
    found = class_transitions(chains)["probability"]
    # -1 replaces NaN, because arviz-plots omits data that are all NaN.
    return xr.Dataset({chains.name: found.fillna(-1.0)})


def _draw_bands(da: xr.DataArray, target: Any, **options: Any) -> np.ndarray:
    """Fill the band of each chain while it was in the class; None if it never was."""
    active = da.transpose("chain", "draw").values > 0
    draws = da["draw"].values.astype(np.float64)
    artists = np.full(len(active), None, dtype=object)
    back_end = backend_from_object(target)
    for position, here in enumerate(active):
        if not here.any():
            continue
        starts = np.flatnonzero(np.diff(here, prepend=not here[0]))
        step = np.median(np.diff(draws)) / 2
        edges = np.append(draws[starts] - step, draws[-1] + step)
        bottom = len(active) - 1 - position - _HALF
        # A step function with few corners, at the left and right edge of each run of draws.
        top = np.repeat(np.where(here[starts], bottom + 2 * _HALF, bottom), 2)
        x = np.repeat(edges, 2)[1:-1]
        artists[position] = back_end.fill_between_y(
            x, np.full_like(x, bottom), top, target, **options
        )
    return artists


def _draw_cells(da: xr.DataArray, target: Any, **options: Any) -> np.ndarray:
    """Fill each cell of the matrix, the more opaque the more probable."""
    back_end = backend_from_object(target)
    options = {"color": "B2", **options}
    strength = options.pop("alpha", 0.7)
    values = da.transpose("class_from", "class_to").values
    artists = np.full(values.shape, None, dtype=object)
    for (i, j), value in np.ndenumerate(values):
        if value > 0:
            middle = len(values) - 1 - i
            x = np.array([j - 0.5, j + 0.5])
            artists[i, j] = back_end.fill_between_y(
                x,
                np.full(2, middle - 0.5),
                np.full(2, middle + 0.5),
                target,
                alpha=float(strength * value),
                **options,
            )
    return artists


def _write_cells(da: xr.DataArray, target: Any, **options: Any) -> np.ndarray:
    """Write each probability into its cell; a dash if no step began in the class."""
    back_end = backend_from_object(target)
    options = {"color": "B1", **options}
    values = da.transpose("class_from", "class_to").values
    artists = np.full(values.shape, None, dtype=object)
    for (i, j), value in np.ndenumerate(values):
        artists[i, j] = back_end.text(j, len(values) - 1 - i, _number(value), target, **options)
    return artists


def _number(value: float) -> str:
    if value < 0:
        return "–"
    if value in (0.0, 1.0):
        return str(int(value))
    return "<0.01" if value < 0.005 else ">0.99" if value >= 0.995 else f"{value:.2f}"


def _write_label(
    da: xr.DataArray,
    target: Any,
    *,
    visual: str,
    text: Mapping[str, str],
    labeller: BaseLabeller,
    var_name: str,
    sel: Mapping[Any, Any],
    isel: Mapping[Any, Any],
    **options: Any,
) -> Any:
    """Write a title or the label of an axis; titles include the index of a plate."""
    back_end = backend_from_object(target)
    words = text[sel["column"]]
    if visual == "title":
        options = {"color": "B1", **options}
        own = {key: value for key, value in sel.items() if key != "column"}
        at = {key: value for key, value in isel.items() if key != "column"}
        if own and sel["column"] == "raster":
            words = labeller.make_label_flat(var_name, own, at)
    return getattr(back_end, visual)(words, target, **options)


def _set_ticks(
    da: xr.DataArray,
    target: Any,
    *,
    chains: IndexChains,
    var_name: str,
    sel: Mapping[Any, Any],
    isel: Mapping[Any, Any],
    **options: Any,
) -> None:
    """Label chains and classes at the axes, and remove margins."""
    back_end = backend_from_object(target)
    if sel["column"] == "raster":
        names = chains.chain
        step = np.median(np.diff(chains.draw)) / 2
        back_end.xlim((chains.draw[0] - step, chains.draw[-1] + step), target)
    else:
        names = chains.classes
        back_end.xticks(np.arange(len(names)), [str(name) for name in names], target, **options)
        back_end.xlim((-0.5, len(names) - 0.5), target)
    # The first is at the top, as in a matrix.
    back_end.yticks(np.arange(len(names)), [str(name) for name in names[::-1]], target, **options)
    back_end.ylim((-0.5, len(names) - 0.5), target)
