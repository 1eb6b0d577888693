"""Curves from tables, labeled arrays, lists of pairs, and the containers of other libraries."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.validation import as_numbers

__all__ = ["read_curves"]

#: Names of curve, time, value and channel, and labels of channels.
type _Names = dict[str, Any]

#: Curves are put on one grid if it has at most this many times the points of the longest curve.
SPARSE = 1.5


def read_curves(
    table: Any,
    *,
    curve: str | None = None,
    time: str | None = None,
    value: str | Sequence[str] | None = None,
    points: Any = None,
    units: Mapping[str, str] | None = None,
    channel: str | None = None,
) -> xr.DataArray:
    """Return curves as `TemplateMixture.for_curves` and `OnlineEM.partial_fit` take them.

    Parameters
    ----------
    table : object
        One of

        - a DataFrame with a row for each measurement, a *long* table, with `curve`, `time` and
          `value`;
        - a DataFrame with a row for each curve and a column for each point, named by numbers, and
          if `curve` names one, a column of labels;
        - a DataArray of two dims, or of three, if one of them is that of channels, or a Dataset
          with `value`;
        - pairs ``(times, values)``, of any lengths, in a list or in a mapping by label, with values
          (n_times,) or (n_times, n_channels);
        - an ``FDataGrid`` or ``FDataIrregular`` of scikit-fda;
        - an array (n_curves, n_points), or (n_curves, n_channels, n_points) as in aeon, or
          (n_curves, n_points, n_channels) as in tslearn, with fewer channels than points, or a list
          of such curves; of one channel they may differ in length.
    curve : str, optional
        Column of a long table that says which curve a measurement is of. Otherwise the name of the
        curves' dim, ``curve`` by default.
    time : str, optional
        Column of a long table with the points, or dim of a DataArray along which curves run, by
        default ``time`` or ``point``, the one whose labels are floats that increase if the other
        has none, or the last. Otherwise the name of the axis, ``time`` by default.
    value : str or list of str, optional
        Column of a long table, or variable of a Dataset, with the values; several of them are
        channels. Otherwise their name.
    points : array_like of shape (n_points,), optional
        Points of arrays, which have none of their own. Default: counts from zero.
    units : mapping of str to str, optional
        Units by name, as ``{"time": "ms", "potential": "mV"}``. Channels may have their own, by
        label, as ``{"knee": "°", "force": "N"}``.
    channel : str, optional
        Name of the dim of channels, ``channel`` by default.

    Returns
    -------
    DataArray
        Values (curve, time) on the points of all curves, NaN where a curve has none. Where these
        would be more than one and a half times as many as any curve has, curves keep points of
        their own, (curve, part, own_point): points above values, NaN after the last. Values of
        several channels are (curve, time, channel), or a part each.

    Raises
    ------
    TypeError
        If `table` is none of these.
    ValueError
        If a column is missing, or a curve has two values at one point.

    Examples
    --------
    >>> pairs = [([0, 20, 40], [1.0, 4.0, 2.0]), ([0, 20, 60], [1.0, 3.0, 0.5])]
    >>> curves = read_curves(pairs, value="potential", units={"time": "ms", "potential": "mV"})
    >>> curves.dims, curves.shape, curves.time.values
    (('curve', 'time'), (2, 4), array([ 0., 20., 40., 60.]))
    >>> import pandas as pd
    >>> table = pd.DataFrame({"who": ["a", "a", "b"], "ms": [0, 20, 0], "mV": [1.0, 4.0, 2.0]})
    >>> read_curves(table, curve="who", time="ms", value="mV").who.values.tolist()
    ['a', 'b']

    Two angles of a gait:

    >>> table = pd.DataFrame({"walk": [1, 1], "%": [0, 50], "knee": [5, 60], "hip": [30, -5]})
    >>> both = read_curves(table, curve="walk", time="%", value=["knee", "hip"], channel="angle")
    >>> both.dims, both.angle.values.tolist()
    (('walk', '%', 'angle'), ['knee', 'hip'])
    """
    levels = getattr(getattr(table, "index", None), "names", ())
    if len(levels) > 1 and (table.ndim == 1 or {curve, time} & {*levels} - {None}):
        # levels that are not asked for are no columns of a table with a row for each curve
        table = table.reset_index([at for at in levels if table.ndim == 1 or at in (curve, time)])
    several = None if value is None or isinstance(value, str) else [str(each) for each in value]
    names: _Names = {"curve": curve, "time": time, "value": None if several else value}
    names |= {"channel": channel, "channels": several}
    if isinstance(table, xr.Dataset):
        wanted: list[Any] = several or [value]
        if any(each not in table for each in wanted):
            raise ValueError(f"value is {value!r}; name one of the variables {list(table)}.")
        over = channel or "channel"
        table = (
            table[several].to_dataarray(over).rename(None) if several is not None else table[value]
        )
    if isinstance(table, xr.DataArray):
        found = _of_labeled(table, names, points)
    elif hasattr(table, "columns") and hasattr(table, "groupby"):
        found = _of_table(table, names)
    elif hasattr(table, "argument_names"):
        found = _of_functions(table, names)
    elif isinstance(table, Mapping):
        found = _together([*table.values()], [*table], names)
    elif isinstance(table, Sequence) and not isinstance(table, str) and len(table):
        found = _of_list(table, names, points)
    elif hasattr(table, "shape") and hasattr(table, "ndim"):
        found = _on_grid(_points_first(as_numbers("table", table), points), None, points, names)
    else:
        raise TypeError(
            f"table is a {type(table).__name__}; give a DataFrame, a DataArray, pairs of times and "
            "values, or an array with a row for each curve."
        )
    return _with_units(found, units)


def _of_labeled(given: xr.DataArray, names: _Names, points: Any) -> xr.DataArray:
    channel = names["channel"] or "channel"
    has_channels = given.ndim == 3 and channel in given.dims
    others = [dim for dim in given.dims if not has_channels or dim != channel]
    axis = names["time"] or _axis_of(given, others)
    if axis not in others or len(others) != 2:
        raise ValueError(
            f"table has the dims {given.dims}; give two, curves and {axis!r}, and of several "
            "channels name their dim, as channel='lead'."
        )
    (over,) = (dim for dim in others if dim != axis)
    found = given.transpose(over, axis, *([channel] if has_channels else []))
    if axis in found.coords:
        _refuse_dates(str(axis), found[axis])
    if points is not None or axis not in found.coords:
        places = np.arange(found.sizes[axis]) if points is None else points
        found = found.assign_coords({axis: as_numbers("points", places)})
    return found.sortby(axis).rename(names["value"] or given.name)


def _axis_of(given: xr.DataArray, dims: list[Hashable]) -> Hashable:
    """Return the dim along which curves run, where it is not told."""
    called = [dim for dim in dims if dim in ("time", "point")]
    labeled = [dim for dim in dims if dim in given.coords]
    if len(called) == 1:
        return called[0]
    # numbers of curves are whole
    if len(labeled) == 1 and given[labeled[0]].dtype.kind == "f":
        places = given[labeled[0]].values
        return labeled[0] if (np.diff(places) > 0).all() else dims[-1]
    return dims[-1]


def _refuse_dates(name: str, times: Any) -> None:
    kind = times.dtype if hasattr(times, "dtype") else np.asarray(times).dtype
    if kind.kind in "mM":
        raise ValueError(
            f"{name} has dates or durations, {kind}; give numbers, as (times - first) / "
            "pd.Timedelta('1s') with the first time of each curve, or durations / "
            "pd.Timedelta('1s')."
        )


def _of_table(table: Any, names: _Names) -> xr.DataArray:
    columns = list(table.columns)
    of_values = names["channels"] or names["value"]
    if names["channels"] or names["value"] in columns:
        required = [("curve", names["curve"]), ("time", names["time"])]
        required += [("value", each) for each in names["channels"] or []]
        for role, column in required:
            if column not in columns:
                raise ValueError(
                    f"{role} is {column!r}; name one of the columns {columns}: a table with a row "
                    "for each measurement needs curve=, time= and value=."
                )
        groups = list(table.groupby(names["curve"], sort=False))
        pairs = [(group[names["time"]], group[of_values]) for _, group in groups]
        return _together(pairs, [label for label, _ in groups], names)
    if names["curve"] in columns and names["time"] not in columns:
        table = table.set_index(names["curve"])
    _refuse_dates("table.columns", table.columns)
    try:
        points = np.array([float(column) for column in table.columns])
    except (TypeError, ValueError):
        raise ValueError(
            f"table has the columns {columns}, which are no points; of a table with a row for each "
            "measurement name three, curve=, time= and value= (got "
            f"{[names['curve'], names['time'], names['value']]}), of one "
            "with a row for each curve give the columns of points alone, and one of labels as "
            "curve=."
        ) from None
    completed: _Names = {
        **names,
        "curve": names["curve"] or table.index.name,
        "time": names["time"] or table.columns.name,
    }
    return _on_grid(table.to_numpy(np.float64), table.index.to_numpy(), points, completed)


def _of_functions(given: Any, names: _Names) -> xr.DataArray:
    """Return the curves of scikit-fda's containers."""
    completed: _Names = {
        **names,
        "time": names["time"] or given.argument_names[0],
        "value": names["value"] or given.coordinate_names[0],
    }
    n_channels = given.dim_codomain
    if n_channels > 1:
        known = [*given.coordinate_names]
        completed["value"] = names["value"]
        completed["channels"] = None if None in known or len({*known}) < n_channels else known
    labels = [label for label in given.sample_names if label is not None]
    if given.dim_domain != 1:
        raise ValueError(
            f"table has functions of {given.dim_domain} arguments; give curves, which have one."
        )
    n_curves = len(given)
    names_of_curves = labels if len(labels) == n_curves else None
    which = slice(None) if n_channels > 1 else 0
    if hasattr(given, "data_matrix"):
        values = given.data_matrix[..., which]
        return _on_grid(values, names_of_curves, given.grid_points[0], completed)
    cuts = np.asarray(given.start_indices)[1:]
    times = np.split(given.points[:, 0], cuts)
    values = np.split(given.values[:, which], cuts)
    return _together(
        list(zip(times, values, strict=True)), names_of_curves or list(range(n_curves)), completed
    )


def _of_list(given: Sequence[Any], names: _Names, points: Any) -> xr.DataArray:
    if all(isinstance(each, tuple) and len(each) == 2 for each in given):
        return _together(given, list(range(len(given))), names)
    rows = [np.squeeze(np.asarray(each, dtype=np.float64)) for each in given]
    is_told = not any(isinstance(each, list) for each in given) and not all(
        row.ndim == 2 and len(row) == 2 and (np.diff(row[0]) > 0).all() for row in rows
    )
    # otherwise these may be times above values
    if is_told and all(row.ndim == 2 and row.shape == rows[0].shape for row in rows):
        return _on_grid(_points_first(np.stack(rows), points), None, points, names)
    if any(row.ndim != 1 for row in rows):
        raise ValueError(
            f"table has curves of shapes {sorted({np.shape(each) for each in given})[:3]}; give "
            "pairs (times, values), as tuples, [(times, values) for times, values in table], with "
            "values (n_times, n_channels)."
        )
    longest = max(map(len, rows))
    filled = [np.pad(row, (0, longest - len(row)), constant_values=np.nan) for row in rows]
    return _on_grid(np.stack(filled), None, points, names)


def _points_first(values: np.ndarray, points: Any) -> np.ndarray:
    """Return curves (n_curves, n_points) or (n_curves, n_points, n_channels) of an array.

    Points are the axis of their length, or the longer one. An axis of one channel is left out.
    """
    if values.ndim == 3 and 1 in values.shape[1:]:
        values = values[:, 0] if values.shape[1] == 1 else values[:, :, 0]
    if values.ndim == 3:
        middle, last = values.shape[1:]
        n_points = max(middle, last) if points is None else np.size(points)
        if middle == last or n_points not in (middle, last):
            raise ValueError(
                f"table has shape {values.shape}, in which points and channels cannot be told "
                "apart; give a DataArray with channel= and time= as the names of their dims."
            )
        return values if middle == n_points else values.swapaxes(1, 2)
    if values.ndim != 2:
        raise ValueError(
            f"table has shape {values.shape}; give a row for each curve, and of several channels "
            "(n_curves, n_points, n_channels)."
        )
    return values


def _together(pairs: Sequence[Any], labels: Sequence[Any], names: _Names) -> xr.DataArray:
    """Return curves of points and values, on one grid or on points of their own."""
    found = []
    for label, (times, values) in zip(labels, pairs, strict=True):
        _refuse_dates("times", times)
        places, heights = as_numbers("times", times), as_numbers("values", values)
        if places.shape != heights.shape[:1] or places.ndim != 1 or heights.ndim > 2:
            raise ValueError(
                f"curve {label!r} has times of shape {places.shape} and values of shape "
                f"{heights.shape}; give two vectors of one length, or a row of values for each "
                "time."
            )
        missing = np.isnan(heights)
        known = ~(np.isnan(places) | (missing.all(axis=1) if missing.ndim == 2 else missing))
        order = np.argsort(places[known], kind="stable")
        places, heights = places[known][order], heights[known][order]
        if not known.any() or (np.diff(places) == 0).any():
            raise ValueError(
                f"curve {label!r} has no value, or two at one point; drop it, or average the "
                "values at equal points."
            )
        found.append((places, heights))
    shapes = {heights.shape[1:] for _, heights in found}
    if len(shapes) > 1:
        raise ValueError("table has curves of different numbers of channels; give all the same.")
    (channels,) = shapes
    grid = np.unique(np.concatenate([places for places, _ in found]))
    longest = max(len(places) for places, _ in found)
    if len(grid) <= SPARSE * longest:
        rows = np.full((len(found), len(grid), *channels), np.nan)
        for row, (places, heights) in zip(rows, found, strict=True):
            row[np.searchsorted(grid, places)] = heights
        return _on_grid(rows, labels, grid, names)
    value_names = [names["value"] or "value"]
    if channels:
        value_names = [str(label) for label in names["channels"] or range(*channels)]
    own_grids = np.full((len(found), 1 + len(value_names), longest), np.nan)
    for rows, (places, heights) in zip(own_grids, found, strict=True):
        rows[:, : len(places)] = np.vstack([places, heights.T])
    return xr.DataArray(
        own_grids,
        dims=(names["curve"] or "curve", "part", "own_point"),
        coords={
            names["curve"] or "curve": list(labels),
            "part": [names["time"] or "time", *value_names],
        },
        name=names["value"],
        attrs={"channel": names["channel"] or "channel"} if channels else {},
    )


def _on_grid(values: np.ndarray, labels: Any, points: Any, names: _Names) -> xr.DataArray:
    places = np.arange(values.shape[1]) if points is None else as_numbers("points", points)
    if places.shape != values.shape[1:2]:
        raise ValueError(
            f"points has shape {places.shape}; give one for each of {values.shape[1]} columns."
        )
    over, axis = names["curve"] or "curve", names["time"] or "time"
    dims, coords = [over, axis], {over: np.arange(len(values)) if labels is None else labels}
    coords[axis] = places
    if values.ndim == 3:
        dims.append(names["channel"] or "channel")
        known = names["channels"]
        coords[dims[2]] = np.arange(values.shape[2]) if known is None else known
    return xr.DataArray(values, dims=dims, coords=coords, name=names["value"]).sortby(axis)


def _with_units(found: xr.DataArray, units: Mapping[str, str] | None) -> xr.DataArray:
    given = {str(each): unit for each, unit in (units or {}).items()}
    name, over = str(found.name or "value"), None
    if "part" in found.dims:
        axis, *channels = [str(label) for label in found["part"].values]
    else:
        axis, channels = str(found.dims[1]), []
        if found.ndim == 3:
            over = str(found.dims[2])
            channels = [str(label) for label in found[over].values]
    known = [*dict.fromkeys([axis, name, *channels])]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"units: got {unknown}; the names here are {known}.")
    of_values = given.get(name, "")
    of_channels = [given.get(label, of_values) for label in channels]
    if over is None and channels:
        return found.assign_attrs(units=[given.get(axis, ""), *of_channels])
    if axis in given:
        found[axis].attrs["units"] = given[axis]
    if name in given:
        found = found.assign_attrs(units=of_values)
    if over is not None and set(channels) & set(given):
        found = found.assign_coords({f"{over}_units": (over, of_channels)})
    return found
