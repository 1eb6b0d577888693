"""Plot of the candidates for the number of classes: prediction and agreement of starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots.plot_collection import PlotCollection
from arviz_plots.visuals import set_xticks

from pymc_mcoem.em.number_of_classes import ClassCount
from pymc_mcoem.plots.drawing import draw_curve, draw_points
from pymc_mcoem.plots.layers import Layers, make_wrap

__all__ = ["plot_class_count"]

_VISUALS = ("line", "limits", "errors", "starts", "named", "title", "xlabel")
_TITLES = {
    "log_evidence": "log-evidence of an observation\nbefore it was learned, nats",
    "least_class": "share in common of the class\non which two starts agree least",
    "between": "share of observations\nbetween classes",
}


def plot_class_count(
    found: ClassCount,
    *,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    aes_by_visuals: Mapping[str, Sequence[str]] | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw what `choose_classes` found: how candidates predict, and whether their starts agree.

    The first plot has the mean log-evidence of each start as a point, and a line through the best
    starts with errors of their differences from the number that is named: two standard errors to
    either side. The others have what decides whether a candidate can be named, with the limits
    dashed. The number that is named has a large point.

    Parameters
    ----------
    found : ClassCount
    plot_collection : PlotCollection, optional
        With a plot for each of ``log_evidence``, ``least_class`` and ``between``.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    aes_by_visuals : mapping of {str : sequence of str}, optional
    visuals : mapping of {str : mapping or bool}, optional
        False omits a visual. Valid keys:

        * line, limits, errors -> passed to the back end's ``line``
        * starts, named -> passed to ``scatter``
        * title, xlabel -> passed to ``title`` and ``xlabel``
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError
        If `found` is not what `choose_classes` returned.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame(
    ...     {
    ...         "log_evidence": [-3.0, -1.0],
    ...         "error": [0.1, 0.0],
    ...         "least_class": [1.0, 0.9],
    ...         "between": [0.0, 0.01],
    ...     },
    ...     index=pd.Index([1, 2], name="n_classes"),
    ... )
    >>> dims = "n_classes", "start", "observation"
    >>> evidence = xr.Dataset({"log_evidence": (dims, np.ones((2, 2, 3)))}, {"n_classes": [1, 2]})
    >>> found = ClassCount(2, None, table, None, None, evidence, {}, {}, ())
    >>> sorted(plot_class_count(found, backend="none").viz["plot"].data_vars)
    ['between', 'least_class', 'log_evidence']
    """
    layers = Layers(_VISUALS, visuals, aes_by_visuals)
    if not isinstance(found, ClassCount):
        raise TypeError(
            f"found: got {type(found).__name__}; give what choose_classes returned, a ClassCount."
        )
    table = found.table
    data = xr.Dataset(
        {name: ("n_classes", table[name].to_numpy(dtype=np.float64)) for name in _TITLES},
        coords={"n_classes": table.index.to_numpy()},
    )
    if plot_collection is None:
        plot_collection = make_wrap(data, backend, pc_kwargs, cols=["__variable__"], col_wrap=3)
    error = 2 * table["error"].to_numpy()
    middle = data["log_evidence"].values
    # one broken line for all errors
    bars = xr.DataArray(
        np.stack([middle - error, middle + error, np.full(len(middle), np.nan)], axis=1).ravel(),
        dims="end",
        coords={"place": ("end", np.repeat(table.index.to_numpy(), 3))},
    )
    means = found.scored["log_evidence"].mean("observation").stack(run=("n_classes", "start"))
    starts = xr.DataArray(
        means.values, dims="run", coords={"place": ("run", means["n_classes"].values)}
    )
    at = data.sel(n_classes=[_named(found)])
    layers.draw(plot_collection, "line", draw_curve, data, x="n_classes")
    limits = data[[name for name in _TITLES if name in table.attrs]]
    if limits:
        limits = xr.Dataset({name: 0 * limits[name] + table.attrs[str(name)] for name in limits})
        layers.draw(plot_collection, "limits", draw_curve, limits, x="n_classes", linestyle="C1")
    errors = bars.to_dataset(name="log_evidence")
    layers.draw(plot_collection, "errors", draw_curve, errors, x="place", color="C0")
    layers.draw(
        plot_collection,
        "starts",
        draw_points,
        starts.to_dataset(name="log_evidence"),
        x="place",
        color="C0",
    )
    layers.draw(plot_collection, "named", draw_points, at, x="n_classes", size=80, color="C1")
    layers.write(plot_collection, "title", lambda name, _: _TITLES[name])
    layers.write(plot_collection, "xlabel", lambda *_: "number of classes")
    numbers_of_classes = table.index.tolist()
    plot_collection.map(
        set_xticks,
        store_artist=False,
        values=numbers_of_classes,
        labels=[str(number) for number in numbers_of_classes],
    )
    return plot_collection


def _named(found: ClassCount) -> int:
    """Return the candidate that is named, which differs from the number if classes are empty."""
    runs = [number for number, run in found.runs.items() if run is found.winner]
    return runs[0] if runs else found.number
