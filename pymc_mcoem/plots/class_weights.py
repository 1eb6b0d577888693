"""Plot of the weights of the classes along a run, learned and of recent observations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots.plot_collection import PlotCollection

from pymc_mcoem.plots.histories import draw_path, read_path
from pymc_mcoem.plots.layers import Layers, make_wrap
from pymc_mcoem.validation import require_whole

__all__ = ["plot_class_weights"]

_VISUALS = ("weights", "observed", "xlabel", "ylabel", "legend")


def plot_class_weights(
    history: xr.DataTree,
    *,
    window: int = 50,
    coords: Mapping[Any, Any] | None = None,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    aes_by_visuals: Mapping[str, Sequence[str]] | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw the weights of the classes over the observations learned.

    A strong line shows the learned weight ω_j, and a faint one the mean posterior weight of the
    class in the last observations. If a class is being lost, both fall to zero. If the faint line
    differs from the strong one for long, the stream has changed or the gains have become too small
    to follow.

    Parameters
    ----------
    history : DataTree
        `OnlineEM.history`, or a saved run as `xarray.open_datatree` opens it.
    window : int
        Number of records of observations in the mean of the faint line, which begins after half
        of them.
    coords : mapping, optional
        Classes to draw, as ``{"class": [0, 1]}``.
    plot_collection : PlotCollection, optional
        With one plot.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Default: all aesthetics for both lines.
    visuals : mapping of {str : mapping or bool}, optional
        False omits a visual. Valid keys:

        * weights, observed -> passed to the back end's ``line``
        * xlabel, ylabel -> passed to ``xlabel`` and ``ylabel``
        * legend -> passed to `arviz_plots.PlotCollection.add_legend`
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `history` is not the history of a run in which something was learned, or `window` is
        less than 1.

    Notes
    -----
    A family without a parameter ``weights`` has only the faint line. Long runs keep every second,
    fourth, ... record of observations, and the window counts the kept records.

    Examples
    --------
    >>> path = xr.Dataset(
    ...     {"weights": (("step", "class"), [[0.5, 0.5], [0.4, 0.6]])},
    ...     coords={"step": [0, 1], "observation": ("step", [0, 1]), "class": [0, 1]},
    ... )
    >>> seen = xr.Dataset(
    ...     {"class_weight": (("observation", "class"), [[0.1, 0.9]])}, {"observation": [1]}
    ... )
    >>> history = xr.DataTree.from_dict({"steps": path, "observations": seen})
    >>> plot_class_weights(history, backend="none").viz["weights"]["weight"].sizes["class"]
    2
    """
    layers = Layers(_VISUALS, visuals, aes_by_visuals)
    require_whole("window", window, 1)
    path = read_path(history)
    if "observations" not in history.children or "class_weight" not in history["observations"]:
        raise ValueError(
            f"history: has the groups {sorted(history.children)} and no 'observations' with "
            "'class_weight'; give the whole of em.history, not a part of it."
        )
    chosen = {
        name: value if isinstance(value, slice) else np.atleast_1d(value)
        for name, value in (coords or {}).items()
    }
    observed = history["observations"]["class_weight"]
    (class_dim,) = (dim for dim in observed.dims if dim != "observation")
    if class_dim not in observed.coords:
        observed = observed.assign_coords({class_dim: np.arange(observed.sizes[class_dim])})
    recent = observed.rolling(observation=window, min_periods=(window + 1) // 2).mean()
    drawn = xr.Dataset({"weight": recent}).sel(chosen)
    if plot_collection is None:
        aes: dict[str, list[Hashable]] = {"color": [class_dim]}
        plot_collection = make_wrap(drawn, backend, pc_kwargs, aes=aes, cols=[])
    layers.draw(
        plot_collection,
        "observed",
        draw_path,
        drawn,
        aes=list(plot_collection.aes_set),
        x="observation",
        along=["observation"],
        alpha=0.35,
    )
    if "weights" in path and path["weights"].dims == ("step", class_dim):
        learned = xr.Dataset({"weight": path["weights"]}).sel(chosen)
        layers.draw(
            plot_collection,
            "weights",
            draw_path,
            learned.assign_coords({class_dim: drawn[class_dim].values}),
            aes=list(plot_collection.aes_set),
            x="observation",
            along=["step"],
            width=2,
        )
    lines = f"(strong: weight; faint: mean of the last {window} observations)"
    layers.write(plot_collection, "xlabel", lambda *_: f"observations learned\n{lines}")
    layers.write(plot_collection, "ylabel", lambda *_: "weight of the class")
    layers.add_legend(plot_collection, dim=class_dim)
    return plot_collection
