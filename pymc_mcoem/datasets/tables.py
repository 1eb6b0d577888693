"""Curves from tables, labeled arrays, lists of pairs, and the containers of other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.validation import as_numbers

__all__ = ["read_curves"]

#: Curves are put on one grid if it has at most this many times the points of the longest curve.
SPARSE = 1.5


def read_curves(
    table: Any,
    *,
    curve: str | None = None,
    time: str | None = None,
    value: str | None = None,
    points: Any = None,
    units: Mapping[str, str] | None = None,
) -> xr.DataArray:
    """Return curves as `TemplateMixture.for_curves` and `OnlineEM.partial_fit` take them.

    Parameters
    ----------
    table : object
        One of

        - a DataFrame with a row for each measurement, a *long* table, with `curve`, `time` and
          `value`;
        - a DataFrame with a row for each curve and a column for each point, named by numbers;
        - a DataArray of two dims, or a Dataset with `value`;
        - pairs ``(times, values)``, of any lengths, in a list or in a mapping by label;
        - an ``FDataGrid`` or ``FDataIrregular`` of scikit-fda;
        - an array (n_curves, n_points), or (n_curves, 1, n_points) as in aeon, or
          (n_curves, n_points, 1) as in tslearn, or a list of such curves of any lengths.
    curve : str, optional
        Column of a long table that says which curve a measurement is of. Otherwise the name of the
        curves' dim, ``curve`` by default.
    time : str, optional
        Column of a long table with the points, or dim of a DataArray along which curves run, by
        default its last. Otherwise the name of the axis, ``time`` by default.
    value : str, optional
        Column of a long table, or variable of a Dataset, with the values. Otherwise their name.
    points : array_like of shape (n_points,), optional
        Points of arrays, which have none of their own. Default: counts from zero.
    units : mapping of str to str, optional
        Units by name, as ``{"time": "ms", "potential": "mV"}``.

    Returns
    -------
    DataArray
        Values (curve, time) on the points of all curves, NaN where a curve has none. Where these
        would be more than one and a half times as many as any curve has, curves keep points of
        their own, (curve, part, own_point): points above values, NaN after the last.

    Raises
    ------
    TypeError
        If `table` is none of these.
    ValueError
        If a column is missing, there are several channels, or a curve has two values at one point.

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
    """
    names = {"curve": curve, "time": time, "value": value}
    if isinstance(table, xr.Dataset):
        if value not in table:
            raise ValueError(f"value is {value!r}; name one of the variables {list(table)}.")
        table = table[value]
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
        found = _on_grid(_one_channel(table), None, points, names)
    else:
        raise TypeError(
            f"table is a {type(table).__name__}; give a DataFrame, a DataArray, pairs of times and "
            "values, or an array with a row for each curve."
        )
    return _with_units(found, units)


def _of_labeled(given: xr.DataArray, names: Mapping[str, str | None], points: Any) -> xr.DataArray:
    axis = names["time"] or given.dims[-1]
    if axis not in given.dims or given.ndim != 2:
        raise ValueError(
            f"table has the dims {given.dims}; give two, curves and {axis!r}, and of several "
            "channels one, as table.sel(channel=...)."
        )
    (over,) = (dim for dim in given.dims if dim != axis)
    found = given.transpose(over, axis)
    if points is not None or axis not in found.coords:
        places = np.arange(found.sizes[axis]) if points is None else points
        found = found.assign_coords({axis: as_numbers("points", places)})
    return found.sortby(axis).rename(names["value"] or given.name)


def _of_table(table: Any, names: Mapping[str, str | None]) -> xr.DataArray:
    columns = list(table.columns)
    if names["value"] in columns:
        for role, column in names.items():
            if column not in columns:
                raise ValueError(
                    f"{role} is {column!r}; name one of the columns {columns}: a table with a row "
                    "for each measurement needs curve=, time= and value=."
                )
        groups = list(table.groupby(names["curve"], sort=False))
        pairs = [(group[names["time"]], group[names["value"]]) for _, group in groups]
        return _together(pairs, [label for label, _ in groups], names)
    try:
        points = np.array([float(column) for column in columns])
    except (TypeError, ValueError):
        raise ValueError(
            f"table has the columns {columns}, which are no points; of a table with a row for each "
            f"measurement name three, curve=, time= and value= (got {[*names.values()]}), of one "
            "with a row for each curve give the columns of points alone."
        ) from None
    told = {
        **names,
        "curve": names["curve"] or table.index.name,
        "time": names["time"] or table.columns.name,
    }
    return _on_grid(table.to_numpy(np.float64), table.index.to_numpy(), points, told)


def _of_functions(given: Any, names: Mapping[str, str | None]) -> xr.DataArray:
    """Return the curves of scikit-fda's containers."""
    told = {
        **names,
        "time": names["time"] or given.argument_names[0],
        "value": names["value"] or given.coordinate_names[0],
    }
    labels = [label for label in given.sample_names if label is not None]
    sizes = given.dim_domain, given.dim_codomain
    if sizes != (1, 1):
        raise ValueError(
            f"table has functions of {sizes[0]} arguments with {sizes[1]} values; give one of "
            "each, as table.coordinates[0]."
        )
    n_curves = len(given)
    known = labels if len(labels) == n_curves else None
    if hasattr(given, "data_matrix"):
        return _on_grid(given.data_matrix[..., 0], known, given.grid_points[0], told)
    cuts = np.asarray(given.start_indices)[1:]
    pairs = zip(np.split(given.points[:, 0], cuts), np.split(given.values[:, 0], cuts), strict=True)
    return _together(list(pairs), known or list(range(n_curves)), told)


def _of_list(given: Sequence[Any], names: Mapping[str, str | None], points: Any) -> xr.DataArray:
    if all(isinstance(each, tuple) and len(each) == 2 for each in given):
        return _together(given, list(range(len(given))), names)
    rows = [np.squeeze(np.asarray(each, dtype=np.float64)) for each in given]
    if any(row.ndim != 1 for row in rows):
        raise ValueError(
            f"table has curves of shapes {sorted({np.shape(each) for each in given})[:3]}; give "
            "pairs (times, values), as tuples, or values of one channel."
        )
    longest = max(map(len, rows))
    filled = [np.pad(row, (0, longest - len(row)), constant_values=np.nan) for row in rows]
    return _on_grid(np.stack(filled), None, points, names)


def _one_channel(given: Any) -> np.ndarray:
    """Return curves (n_curves, n_points) of an array that may have an axis of one channel."""
    values = as_numbers("table", given)
    if values.ndim == 3 and 1 in values.shape[1:]:
        values = values[:, 0] if values.shape[1] == 1 else values[:, :, 0]
    if values.ndim != 2:
        raise ValueError(
            f"table has shape {values.shape}; give a row for each curve, and of several channels "
            "one: table[:, 0] of (n_curves, n_channels, n_points)."
        )
    return values


def _together(
    pairs: Sequence[Any], labels: Sequence[Any], names: Mapping[str, str | None]
) -> xr.DataArray:
    """Return curves of points and values, on one grid or on points of their own."""
    found = []
    for label, (times, values) in zip(labels, pairs, strict=True):
        places, heights = as_numbers("times", times), as_numbers("values", values)
        if places.shape != heights.shape or places.ndim != 1:
            raise ValueError(
                f"curve {label!r} has times of shape {places.shape} and values of shape "
                f"{heights.shape}; give two vectors of one length."
            )
        known = ~(np.isnan(places) | np.isnan(heights))
        order = np.argsort(places[known], kind="stable")
        places, heights = places[known][order], heights[known][order]
        if not known.any() or (np.diff(places) == 0).any():
            raise ValueError(
                f"curve {label!r} has no value, or two at one point; drop it, or average the "
                "values at equal points."
            )
        found.append((places, heights))
    grid = np.unique(np.concatenate([places for places, _ in found]))
    longest = max(len(places) for places, _ in found)
    if len(grid) <= SPARSE * longest:
        rows = np.full((len(found), len(grid)), np.nan)
        for row, (places, heights) in zip(rows, found, strict=True):
            row[np.searchsorted(grid, places)] = heights
        return _on_grid(rows, labels, grid, names)
    own_grids = np.full((len(found), 2, longest), np.nan)
    for part, pair in zip(own_grids, found, strict=True):
        part[:, : len(pair[0])] = pair
    return xr.DataArray(
        own_grids,
        dims=(names["curve"] or "curve", "part", "own_point"),
        coords={
            names["curve"] or "curve": list(labels),
            "part": [names["time"] or "time", names["value"] or "value"],
        },
        name=names["value"],
    )


def _on_grid(
    values: np.ndarray, labels: Any, points: Any, names: Mapping[str, str | None]
) -> xr.DataArray:
    places = np.arange(values.shape[1]) if points is None else as_numbers("points", points)
    if places.shape != values.shape[1:]:
        raise ValueError(
            f"points has shape {places.shape}; give one for each of {values.shape[1]} columns."
        )
    over, axis = names["curve"] or "curve", names["time"] or "time"
    return xr.DataArray(
        values,
        dims=(over, axis),
        coords={over: np.arange(len(values)) if labels is None else labels, axis: places},
        name=names["value"],
    ).sortby(axis)


def _with_units(found: xr.DataArray, units: Mapping[str, str] | None) -> xr.DataArray:
    told = dict(units or {})
    if "part" in found.dims:
        own = [str(name) for name in found["part"].values]
        known = {**dict.fromkeys(own, ""), **told}
        found = found.assign_attrs(units=[known[name] for name in own])
    else:
        own = [str(found.dims[-1]), str(found.name or "value")]
        if own[0] in told:
            found[own[0]].attrs["units"] = told[own[0]]
        if own[1] in told:
            found = found.assign_attrs(units=told[own[1]])
    unknown = sorted(set(told) - set(own))
    if unknown:
        raise ValueError(f"units: got {unknown}; the names here are {own}.")
    return found
