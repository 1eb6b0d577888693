"""Plot of the templates along a run."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from arviz_base.labels import BaseLabeller
from arviz_plots.plot_collection import PlotCollection

from pymc_mcoem.plots.drawing import draw_curve, is_color
from pymc_mcoem.plots.histories import read_path, sequential_colors, snapshots
from pymc_mcoem.plots.layers import (
    Layers,
    labels,
    make_grid,
    make_wrap,
    plain_label,
    with_unit,
    with_unit_of_channel,
)
from pymc_mcoem.plots.templates import draw_images, require_drawable
from pymc_mcoem.templates.images import template_images

if TYPE_CHECKING:
    from pymc_mcoem.templates.mixture import TemplateMixture

__all__ = ["plot_template_history"]

_VISUALS = ("curve", "image", "title", "xlabel", "ylabel", "legend", "ticks")


def plot_template_history(
    history: xr.DataTree,
    mixture: TemplateMixture,
    *,
    n_snapshots: int = 6,
    steps: Sequence[int] | None = None,
    coords: Mapping[Any, Any] | None = None,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    labeller: BaseLabeller | None = None,
    aes_by_visuals: Mapping[str, Sequence[str]] | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw the templates after increasing numbers of observations.

    Images have a row for each class and a column for each number of observations. Curves have a
    plot for each class, with darker lines for more observations.

    Parameters
    ----------
    history : DataTree
        `OnlineEM.history`, or a saved run as `xarray.open_datatree` opens it.
    mixture : TemplateMixture
        The mixture of the run.
    n_snapshots : int
        Largest number of states to draw, at least 2: the start, the last one, and others whose
        numbers of observations grow geometrically, since templates change most at first.
    steps : sequence of int, optional
        Steps of the run to draw instead; the nearest steps that the history keeps are drawn.
    coords : mapping, optional
        Classes to draw, as ``{"class": [0, 2]}``.
    plot_collection : PlotCollection, optional
        For images with facet dimensions ``class`` and ``snapshot``, for curves with ``class``.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    labeller : labeller, optional
        Labels the classes.
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Default: all aesthetics for ``curve``, none for the others.
    visuals : mapping of {str : mapping or bool}, optional
        False omits a visual. Valid keys:

        * curve -> passed to the back end's ``line``
        * image -> passed to ``contourf``; ``cmap`` is "viridis" by default
        * title -> passed to ``title``
        * xlabel, ylabel -> passed to ``xlabel`` and ``ylabel``
        * legend -> passed to `arviz_plots.PlotCollection.add_legend`; curves only
        * ticks -> False keeps the axes of images
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.grid`, for curves to ``wrap``.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `history` is not the history of a run in which something was learned, or of another
        mixture, `n_snapshots` is less than 2, or `steps` are not whole numbers.

    Notes
    -----
    Long runs keep every second, fourth, ... step (`OnlineEM`'s ``keep``); the nearest kept steps
    are drawn.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((4, 6), n_classes=2, n_landmarks=2)
    >>> start = mixture.parameters.expand_dims(step=[0, 1])
    >>> path = start.assign_coords(observation=("step", [0, 1]))
    >>> history = xr.DataTree.from_dict({"steps": path})
    >>> collection = plot_template_history(history, mixture, backend="none")
    >>> dict(collection.viz["plot"].sizes)
    {'class': 2, 'snapshot': 2}
    """
    layers = Layers(_VISUALS, visuals, aes_by_visuals)
    path = read_path(history)
    axes = require_drawable(mixture)
    path = path.isel(step=snapshots(path, n_snapshots, steps))
    counts = path["observation"].values
    states = [template_images({"templates": row}, mixture) for row in path["templates"].values]
    snapshot = xr.DataArray([f"n = {count}" for count in counts], dims="snapshot", name="snapshot")
    templates = xr.concat(states, dim="snapshot").assign_coords(snapshot=snapshot.values)
    if "class" in path.coords:
        templates = templates.assign_coords({"class": path["class"].values})
    chosen = {name: np.atleast_1d(value) for name, value in (coords or {}).items()}
    data = xr.Dataset({"template": templates.sel(chosen)})
    names = dict(zip(data["class"].values.tolist(), labels(data, "class", labeller), strict=True))
    every = (*axes, *mixture.settings.channel_dims)
    if len(axes) == 1:
        return _draw_curves(data, every, names, layers, plot_collection, backend, pc_kwargs)
    over = every[2:] if not is_color(data["template"], every) else ()
    if plot_collection is None:
        plot_collection = make_grid(
            data, backend, pc_kwargs, rows=["class", *over], cols=["snapshot"], square=True
        )
    draw_images(layers, plot_collection, data, every)
    first = {dim: data[dim].values[0] for dim in ("class", "snapshot", *over)}
    layers.write(
        plot_collection,
        "title",
        lambda _, sel: (
            str(sel["snapshot"])
            if all(sel[dim] == first[dim] for dim in ("class", *over))
            else None
        ),
    )
    layers.write(
        plot_collection,
        "ylabel",
        lambda _, sel: (
            ", ".join(
                [
                    f"class {names[plain_label(sel['class'])]}",
                    *(with_unit_of_channel(data, dim, sel[dim]) for dim in over),
                ]
            )
            if sel["snapshot"] == first["snapshot"]
            else None
        ),
    )
    return plot_collection


def _draw_curves(
    data: xr.Dataset,
    axes: Sequence[str],
    names: Mapping[Any, str],
    layers: Layers,
    plot_collection: PlotCollection | None,
    backend: str | None,
    pc_kwargs: Mapping[str, Any],
) -> PlotCollection:
    axis, *over = axes
    if plot_collection is None:
        aes: dict[str, list[Hashable]] = {"color": ["snapshot"]}
        shades = sequential_colors(data.sizes["snapshot"])
        plot_collection = make_wrap(
            data, backend, {"color": shades, **pc_kwargs}, aes=aes, cols=["class", *over]
        )
    layers.draw(
        plot_collection, "curve", draw_curve, data, aes=list(plot_collection.aes_set), x=axis
    )
    layers.write(
        plot_collection,
        "title",
        lambda _, sel: ", ".join(
            [f"class {names[plain_label(sel['class'])]}"]
            + [with_unit_of_channel(data, dim, sel[dim]) for dim in over]
        ),
    )
    layers.write(plot_collection, "xlabel", lambda *_: with_unit(data[axis], axis))
    first = data["class"].values[0]
    beside = with_unit(data["template"], "template")
    layers.write(
        plot_collection, "ylabel", lambda _, sel: beside if sel["class"] == first else None
    )
    layers.add_legend(plot_collection, dim="snapshot", title="observations learned")
    return plot_collection
