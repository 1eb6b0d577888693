"""Plot of the live error rate of one or several runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr
from arviz_plots.plot_collection import PlotCollection

from pymc_mcoem.plots.drawing import draw_band, draw_curve
from pymc_mcoem.plots.layers import Layers, make_wrap

__all__ = ["plot_error_rate"]

_VISUALS = ("recent", "band", "cumulative", "xlabel", "ylabel", "legend")
_DRAWN = ("recent", "lower", "upper", "cumulative")
_BELOW = {
    "observation": "observations classified, then learned",
    "seconds": "seconds of learning",
}


def plot_error_rate(
    rates: xr.Dataset | Mapping[Hashable, xr.Dataset],
    *,
    x: Literal["observation", "seconds"] = "observation",
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    aes_by_visuals: Mapping[str, Sequence[str]] | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw the error rate of observations that were classified before they were learned.

    A solid line shows the rate among the last observations, with a band for its chance variation,
    and a dashed line the rate since the beginning.

    Parameters
    ----------
    rates : Dataset or mapping of {str : Dataset}
        Result of `live_error_rate` or `predict_then_learn`, or those of several runs by name.
    x : {"observation", "seconds"}
        Horizontal axis: observations, or the time spent on learning them.
    plot_collection : PlotCollection, optional
        With one plot.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Default: all aesthetics for ``recent``, ``band`` and ``cumulative``.
    visuals : mapping of {str : mapping or bool}, optional
        False omits a visual. Valid keys:

        * recent, cumulative -> passed to the back end's ``line``
        * band -> passed to ``fill_between_y``
        * xlabel, ylabel -> passed to ``xlabel`` and ``ylabel``
        * legend -> passed to `arviz_plots.PlotCollection.add_legend`; several runs only
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError
        If `rates` is neither a Dataset nor a mapping.
    ValueError
        If a Dataset is not from `live_error_rate`, there is none, `x` is unknown, or `x` is
        "seconds" and a Dataset has none.

    Notes
    -----
    The paper's figures of error rates over processed images, section ``subsec:5:2``, count errors
    on other images instead.

    Examples
    --------
    >>> from pymc_mcoem.classification.error_rate import live_error_rate
    >>> rate = live_error_rate([0, 1, 1, 0], [1, 1, 1, 0])
    >>> collection = plot_error_rate({"templates": rate, "k-means": rate}, backend="none")
    >>> collection.viz["recent"]["error_rate"].sizes["run"]
    2

    Draw it against time, if this was measured:

    >>> timed = live_error_rate([0, 1, 1, 0], [1, 1, 1, 0], seconds=[0.0, 0.4, 0.9, 1.3])
    >>> collection = plot_error_rate(timed, x="seconds", backend="none")
    >>> collection.viz["recent"]["error_rate"].item()["x"]
    array([0. , 0.4, 0.9, 1.3])
    """
    layers = Layers(_VISUALS, visuals, aes_by_visuals)
    if x not in _BELOW:
        raise ValueError(f"x: got {x!r}; give one of {list(_BELOW)}.")
    if not isinstance(rates, (xr.Dataset, Mapping)):
        raise TypeError(
            f"rates: got {type(rates).__name__}; give what live_error_rate returned, or a mapping "
            "of it by the names of runs."
        )
    runs = {"run": rates} if isinstance(rates, xr.Dataset) else dict(rates)
    if not runs:
        raise ValueError("rates: got none; give what live_error_rate returned.")
    for name, rate in runs.items():
        if not isinstance(rate, xr.Dataset) or not {"recent", "lower", "upper"} <= set(rate):
            raise ValueError(
                f"rates: that of {name!r} lacks recent, lower or upper; give what "
                "live_error_rate returned."
            )
        if x not in rate.variables:
            raise ValueError(
                f"x: got {x!r}, and the rate of {name!r} has none; give live_error_rate the "
                "seconds= of that run, or draw it against observations."
            )
    names = [each for each in _DRAWN if all(each in rate.variables for rate in runs.values())]
    # Runs may have different lengths, and may have classified different observations.
    together = xr.concat(
        [rate[[*names, *({x} - {"observation"})]] for rate in runs.values()],
        dim="run",
        join="outer",
        combine_attrs="override",
    ).assign_coords(run=[str(name) for name in runs])
    together = together.set_coords([x])
    bounds = xr.concat([together["lower"], together["upper"]], dim="bound")
    bounds = bounds.assign_coords(bound=["lower", "upper"])
    frame = xr.Dataset({"error_rate": together["recent"]})
    if plot_collection is None:
        aes: dict[str, list[Hashable]] = {"color": ["run"]}
        plot_collection = make_wrap(frame, backend, pc_kwargs, aes=aes, cols=[])
    used = list(plot_collection.aes_set)
    layers.draw(
        plot_collection, "band", draw_band, bounds.to_dataset(name="error_rate"), aes=used, x=x
    )
    layers.draw(plot_collection, "recent", _draw_known, frame, aes=used, x=x)
    if "cumulative" in together:
        since = xr.Dataset({"error_rate": together["cumulative"]})
        layers.draw(
            plot_collection, "cumulative", _draw_known, since, aes=used, x=x, linestyle="C1"
        )
    windows = {rate.attrs.get("window") for rate in runs.values()}
    window = windows.pop() if len(windows) == 1 else None
    among = ", last observations" if window is None else f", last {window} observations"
    below = f"{_BELOW[x]}\n(band: chance; dashed: since the beginning)"
    layers.write(plot_collection, "xlabel", lambda *_: below)
    layers.write(plot_collection, "ylabel", lambda *_: f"error rate{among}")
    if len(runs) > 1:
        layers.add_legend(plot_collection, dim="run", title="")
    return plot_collection


def _draw_known(da: xr.DataArray, target: Any, *, x: Hashable, **options: Any) -> Any:
    """Draw a line that skips observations which only other runs classified."""
    known = da.isel({da.dims[0]: np.isfinite(da.values)})
    return draw_curve(known, target, x=x, **options)
