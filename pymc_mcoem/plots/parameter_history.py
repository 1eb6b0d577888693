"""Plot of the path of the parameters along a run, with its gains."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_base.labels import BaseLabeller
from arviz_plots.plot_collection import PlotCollection, backend_from_object

from pymc_mcoem.em.history import recorded_names
from pymc_mcoem.plots.histories import draw_path, read_path
from pymc_mcoem.plots.layers import Layers, make_wrap

__all__ = ["plot_parameter_history"]

_VISUALS = ("path", "shared_path", "title", "xlabel", "yscale", "legend")

#: Largest number of elements of a parameter that is drawn by default.
_MAX_SCALARS = 60


def plot_parameter_history(
    history: xr.DataTree,
    var_names: str | Sequence[str] | None = None,
    *,
    coords: Mapping[Any, Any] | None = None,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    labeller: BaseLabeller | None = None,
    aes_by_visuals: Mapping[str, Sequence[str]] | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw parameters, gains and other records of a run over the observations learned.

    There is a plot for each variable, with a line for each of its elements, colored by class.

    Parameters
    ----------
    history : DataTree
        `OnlineEM.history`, or a saved run as `xarray.open_datatree` opens it.
    var_names : str or sequence of str, optional
        Variables of the group ``steps``. Default: the parameters with at most 60 elements, and
        ``gain``; see `plot_template_history` for templates.
    coords : mapping, optional
        Coordinates to draw, as ``{"class": [0, 1], "step": slice(100, None)}``.
    plot_collection : PlotCollection, optional
        With a plot for each variable.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    labeller : labeller, optional
        Labels the variables in titles.
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Default: all aesthetics for ``path``, none for the others.
    visuals : mapping of {str : mapping or bool}, optional
        False omits a visual. Valid keys:

        * path -> passed to the back end's ``line``; for variables by class
        * shared_path -> passed to ``line``; for all others
        * title -> passed to ``title``
        * xlabel -> passed to ``xlabel``
        * yscale -> False keeps gains and variances on a linear scale
        * legend -> passed to `arviz_plots.PlotCollection.add_legend`
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `history` is not the history of a run in which something was learned.
    KeyError
        If the history does not contain a variable or a key of `coords`.

    Notes
    -----
    Gains ϱ_n and variances have a logarithmic scale if the back end supports it, as matplotlib
    does. A path that still has a trend when the gains are small has not converged.

    Examples
    --------
    >>> path = xr.Dataset(
    ...     {"noise_variance": ("step", [1.0, 0.5]), "gain": ("step", [np.nan, 1.0])},
    ...     coords={"step": [0, 1], "observation": ("step", [0, 1])},
    ... )
    >>> history = xr.DataTree.from_dict({"steps": path})
    >>> collection = plot_parameter_history(history, backend="none")
    >>> sorted(collection.viz["plot"].data_vars)
    ['gain', 'noise_variance']
    """
    layers = Layers(_VISUALS, visuals, aes_by_visuals)
    path = read_path(history)
    if isinstance(var_names, str):
        var_names = [var_names]
    names = _default_names(path) if var_names is None else list(var_names)
    missing = [name for name in names if name not in path]
    if missing:
        raise KeyError(f"var_names: {missing} are not in the history, which has {list(path)}.")
    data = path[names].astype(np.float64).sel(dict(coords or {}))
    if plot_collection is None:
        aes: dict[str, list[Hashable]] = {"color": ["class"]} if "class" in data.dims else {}
        # Otherwise variables without classes would add a class to the legend.
        frame = data.broadcast_like(data["class"]) if "class" in data.dims else data
        plot_collection = make_wrap(
            frame, backend, pc_kwargs, aes=aes, cols=["__variable__"], col_wrap=2
        )
    by_class = [name for name in names if "class" in data[name].dims]
    for visual, drawn, used in (
        ("path", by_class, list(plot_collection.aes_set)),
        ("shared_path", [name for name in names if name not in by_class], []),
    ):
        if drawn:
            layers.draw(
                plot_collection,
                visual,
                draw_path,
                data[drawn],
                aes=used,
                x="observation",
                along=["step"],
            )
    layers.draw(plot_collection, "yscale", _set_scale, data, store=False)
    maker = BaseLabeller() if labeller is None else labeller
    layers.write(plot_collection, "title", lambda name, _: maker.var_name_to_str(name))
    layers.write(plot_collection, "xlabel", lambda *_: "observations learned")
    if "class" in data.dims:
        layers.add_legend(plot_collection, dim="class")
    return plot_collection


def _default_names(path: xr.Dataset) -> list[str]:
    steps = path.sizes["step"]
    records = recorded_names()
    names = [
        str(name)
        for name, values in path.data_vars.items()
        if name not in records and values.size // steps <= _MAX_SCALARS
    ]
    return [*names, *(["gain"] if "gain" in path else [])]


def _set_scale(da: xr.DataArray, target: Any, **_: Any) -> None:
    """Set a logarithmic scale for positive gains and variances."""
    known = da.values[np.isfinite(da.values)]
    name = str(da.name)
    if (name == "gain" or "variance" in name) and known.size and (known > 0).all():
        backend_from_object(target).yscale(target, "log")
