"""Common parts of plots of a run's history: its groups, snapshots, and lines along the run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots.plot_collection import backend_from_object

from pymc_mcoem.validation import require_whole

__all__ = ["draw_path", "read_path", "sequential_colors", "snapshots"]

#: Colors of early and late snapshots: one hue, so that darkness shows the order.
_EARLY, _LATE = (184, 212, 236), (8, 38, 92)


def read_path(history: Any) -> xr.Dataset:
    """Return the path of the parameters in a DataTree, with ``observation`` along ``step``."""
    if not isinstance(history, xr.DataTree):
        raise TypeError(
            f"history: got a {type(history).__name__}; give the DataTree that is em.history."
        )
    if "steps" not in history.children or "step" not in history["steps"].dims:
        raise ValueError(
            f"history: has the groups {sorted(history.children)} and no path 'steps'; "
            "give em.history of a driver, or a saved run opened by xarray.open_datatree."
        )
    path = history["steps"].to_dataset()
    if path.sizes["step"] < 2:
        raise ValueError("history: nothing was learned yet; call partial_fit first.")
    return path.set_coords("observation")


def snapshots(path: xr.Dataset, n: int, chosen: Sequence[int] | None = None) -> np.ndarray:
    """Return positions of at most `n` steps: the start, the first M-step, ..., the last.

    Distances between them increase. If steps are `chosen`, return the nearest to these instead.

    Examples
    --------
    >>> path = xr.Dataset(coords={"step": np.arange(101)})
    >>> snapshots(path, 4)
    array([  0,   1,  10, 100])
    """
    require_whole("n_snapshots", n, 2)
    steps = path["step"].values
    if chosen is not None:
        given = np.asarray(chosen)
        if given.ndim != 1 or not given.size or given.dtype.kind not in "iu" or given.min() < 0:
            raise ValueError(f"steps: got {chosen!r}; give a list of whole numbers from 0 on.")
        return np.unique(np.abs(steps[:, None] - given).argmin(axis=0))
    updated = steps[path["updated"].values.astype(bool)] if "updated" in path else steps[1:]
    first = updated[0] if len(updated) else 1
    wanted = np.concatenate([steps[:1], np.geomspace(first, steps[-1], n - 1)])
    if n == 2:
        wanted[-1] = steps[-1]
    return np.unique(np.abs(steps[:, None] - wanted).argmin(axis=0))


def sequential_colors(n: int) -> list[str]:
    """Return n shades of one hue, from bright to dark.

    Examples
    --------
    >>> sequential_colors(2)
    ['#b8d4ec', '#08265c']
    """
    shares = np.linspace(0, 1, n)[:, None] if n > 1 else np.ones((1, 1))
    shades = np.rint((1 - shares) * np.array(_EARLY) + shares * np.array(_LATE)).astype(int)
    return ["#" + "".join(f"{part:02x}" for part in shade) for shade in shades]


def draw_path(
    da: xr.DataArray, target: Any, *, x: Hashable, along: Sequence[Hashable], **options: Any
) -> Any:
    """Draw one line along a run for each element of an array, with gaps of NaN between lines."""
    rows = da.transpose(*along, ...).values.reshape(da.sizes[along[0]], -1)
    gap = np.full((1, rows.shape[1]), np.nan)
    lines = np.concatenate([rows, gap]).T.ravel()
    places = np.append(np.asarray(da[x].values, dtype=np.float64), np.nan)
    return backend_from_object(target).line(
        np.tile(places, rows.shape[1]), lines, target, **{"color": "B1", **options}
    )
