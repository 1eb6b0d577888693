"""Encoding of one observation, with NaN for missing points, as the arrays that a model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.stream import as_values
from pymc_mcoem.validation import LARGEST

__all__ = [
    "drop_missing_points",
    "encode_observation",
    "encode_own_points",
    "goes_below_zero",
    "pad_points",
]

#: Values below zero by more than this share of an observation's largest are not taken for noise.
BELOW = 0.1


def encode_observation(
    observation: Any, shape: tuple[int, ...], has_channels: bool = False
) -> dict[str, np.ndarray]:
    """Return values and mask of one observation; see `TemplateMixture.encode`.

    With channels the last axis of the shape is theirs, and an error may say so.

    Examples
    --------
    >>> encode_observation([1.0, float("nan")], (2,))["observed_mask"]
    array([1., 0.])
    """
    if isinstance(observation, Mapping):
        observation = _joined(observation)
    array = as_values("observation", observation)
    if array.shape != shape:
        raise ValueError(
            f"observation has shape {array.shape}, the mixture expects {shape}; "
            f"{_reshaped(array.shape, shape, has_channels)}."
        )
    given = np.array(array.filled(np.nan))
    observed = ~np.isnan(given)
    values = np.where(observed, given, 0.0)
    largest = float(np.abs(values).max(initial=0.0))
    if largest == np.inf:
        raise ValueError(
            f"observation holds {int(np.isinf(values).sum())} infinite values; mark missing "
            "points with NaN."
        )
    if largest > LARGEST:
        raise ValueError(
            f"observation holds {largest:.3g}; beyond {LARGEST:g} sums of "
            "squares may not be finite. Scale the observation, or mark missing points with NaN."
        )
    if not observed.any():
        raise ValueError(
            "observation has all its points missing (NaN); leave it out of the stream."
        )
    return {
        "observed_values": values,
        "observed_mask": observed.astype(np.float64),
    }


def _reshaped(found: tuple[int, ...], shape: tuple[int, ...], has_channels: bool) -> str:
    """Return what to write for an observation of another shape."""
    if found and found[-1] == np.prod(shape, dtype=int):
        return f"give flat ones as observations.reshape(-1, {', '.join(map(str, shape))})"
    if found[:-1] == shape and not has_channels:
        return (
            f"make the mixture with channels={found[-1]}, or give one of its channels, "
            "observations[..., 0], or observations.mean(axis=-1)"
        )
    if has_channels and found == shape[-1:] + shape[:-1]:
        return "move its channels to the last axis, np.moveaxis(observation, 0, -1)"
    if has_channels and found == shape[:-1]:
        return f"give all its {shape[-1]} channels along the last axis"
    if found == shape[::-1]:
        return "transpose it, or make the mixture with the other order of axes"
    remedy = "resize it"
    if len(shape) == 1:
        remedy = "if it has points of its own, make the mixture with own_points= and pass (points, "
        remedy += "values)"
    return f"{remedy}, or pass several observations as an array (n, *shape) or an iterable"


def encode_own_points(
    observation: Any,
    grid: np.ndarray,
    most: int,
    check: Callable[[np.ndarray], None],
    channels: tuple[int, ...] = (),
) -> dict[str, np.ndarray]:
    """Return points, values and mask of one observation; see `TemplateMixture.encode`.

    Parameters
    ----------
    grid : ndarray of shape (n_grid,)
        Points of observations that bring none.
    most : int
        Length of the returned arrays. Entries beyond the observation's points are missing and lie
        at its first point.
    check : callable
        Raises ValueError if points (n, 1) lie where they must not.
    channels : tuple of int
        Their number, if an observation has an axis of them.

    Examples
    --------
    >>> found = encode_own_points([[0.1, 0.7], [5.0, 6.0]], np.arange(3), 3, lambda points: None)
    >>> found["own_points"], found["observed_mask"]
    (array([0.1, 0.7, 0.1]), array([1., 1., 0.]))
    """
    if isinstance(observation, Mapping):
        if "own_points" in observation:  # a result of this function
            encoded = dict(observation)
            observation = {"points": encoded.pop("own_points"), "values": _joined(encoded)}
        if set(observation) != {"points", "values"}:
            raise ValueError(
                f"observation: got {sorted(map(str, observation))}; give points and values."
            )
        observation = [observation["points"], observation["values"]]
    if isinstance(observation, (list, tuple)) and len(observation) == 2:
        rows = [as_values("observation", row) for row in observation]
        if rows[0].ndim > 1 or rows[1].shape != rows[0].shape + channels:
            told = f"a row of {channels[0]} channels" if channels else "one value"
            raise ValueError(
                f"observation has points of shape {rows[0].shape} and values of shape "
                f"{rows[1].shape}; give {told} for each point."
            )
        observation = np.ma.vstack([rows[0], rows[1].T]) if rows[0].ndim else observation
    array = as_values("observation", observation)
    table = np.array(array.filled(np.nan))
    if table.shape == grid.shape + channels:
        table = np.vstack([grid, table.T])
    n_rows = 1 + int(np.prod(channels))
    if table.ndim != 2 or len(table) != n_rows or not table.size:
        raise ValueError(
            f"observation has shape {array.shape}; give points above values, ({n_rows}, n) with n "
            f"from 1 to own_points, {most}, or the values at the mixture's {len(grid)} points."
        )
    # points without a value are dropped, wherever they are
    table = table[:, ~np.isnan(table[1:]).all(axis=0)]
    if table.shape[1] > most:
        raise ValueError(
            f"observation has {table.shape[1]} values; the mixture takes up to {most}: make it "
            "with a larger own_points."
        )
    points = table[0]
    if points.size and not (np.isfinite(points).all() and (np.diff(points) > 0).all()):
        raise ValueError(
            f"observation has the points {points}, which do not increase; sort them with their "
            "values and average the values at equal points."
        )
    try:
        check(points[:, None])
    except ValueError as error:
        raise ValueError(f"observation: {error}") from error
    short = np.full((most, n_rows - 1), np.nan)
    short[: points.size] = table[1:].T
    shape = (most, *channels)
    encoded = encode_observation(short.reshape(shape), shape)
    return {**encoded, "own_points": pad_points(points, most)}


def goes_below_zero(values: np.ndarray) -> bool:
    """Return whether values are below zero by more than a tenth of the largest.

    Examples
    --------
    >>> goes_below_zero(np.array([1.0, -0.05])), goes_below_zero(np.array([1.0, -0.2]))
    (False, True)
    """
    return bool(np.nanmin(values) < -BELOW * max(float(np.nanmax(values)), 0.0))


def pad_points(points: np.ndarray, length: int) -> np.ndarray:
    """Return points (n,) followed by copies of the first, up to the length."""
    return np.concatenate([points, np.full(length - len(points), points[0])])


def drop_missing_points(idata: xr.DataTree) -> xr.DataTree:
    """Return draws and log-likelihoods with the missing points left out.

    ArviZ's LOO counts every point of the grid as an observation. Missing points do not change
    its estimate, but they change its standard error.

    Parameters
    ----------
    idata : DataTree
        With a group ``log_likelihood`` (``pymc.compute_log_likelihood``) and a group
        ``constant_data`` that contains ``observed_mask``, as ``pymc.sample`` writes it.

    Returns
    -------
    DataTree
        The same groups, with ``observation`` of the log-likelihood stacked to one dim
        ``observed_point``, whose labels count the points of the grid in C order.

    Raises
    ------
    ValueError
        If a group is missing or the log-likelihood is not pointwise.

    Examples
    --------
    >>> import xarray as xr
    >>> values = xr.DataArray(np.zeros((1, 5, 3)), dims=("chain", "draw", "point"))
    >>> mask = xr.DataArray([1.0, 0.0, 1.0], dims="point")
    >>> idata = xr.DataTree.from_dict(
    ...     {
    ...         "log_likelihood": xr.Dataset({"observation": values}),
    ...         "constant_data": xr.Dataset({"observed_mask": mask}),
    ...     }
    ... )
    >>> drop_missing_points(idata)["log_likelihood"]["observation"].shape
    (1, 5, 2)
    """
    try:
        likelihood: xr.DataArray = idata["log_likelihood"].to_dataset()["observation"]
        mask: xr.DataArray = idata["constant_data"].to_dataset()["observed_mask"]
    except KeyError as error:
        raise ValueError(
            f"idata has no {error}; run pymc.compute_log_likelihood on draws from pymc.sample."
        ) from None
    if likelihood.shape[likelihood.ndim - mask.ndim :] != mask.shape:
        raise ValueError(
            f"idata: the log-likelihood has shape {likelihood.shape} and the mask {mask.shape}; "
            "under a noise correlation there is no pointwise log-likelihood."
        )
    sample_dims = likelihood.dims[: likelihood.ndim - mask.ndim]
    seen = np.flatnonzero(mask.values > 0)
    flat = likelihood.values.reshape(*(likelihood.sizes[dim] for dim in sample_dims), -1)
    stacked = xr.DataArray(
        flat[..., seen],
        dims=(*sample_dims, "observed_point"),
        coords={
            "observed_point": seen,
            **{dim: likelihood[dim] for dim in sample_dims if dim in likelihood.coords},
        },
    )
    groups = {name: node.to_dataset() for name, node in idata.children.items()}
    groups["log_likelihood"] = xr.Dataset({"observation": stacked})
    result: xr.DataTree = xr.DataTree.from_dict(groups)
    return result


def _joined(observation: Mapping[str, Any]) -> np.ndarray:
    """Return an encoded observation as an array with NaN."""
    if set(observation) != {"observed_values", "observed_mask"}:
        raise ValueError(
            f"observation: got {sorted(map(str, observation))}; pass an array, or both "
            "observed_values and observed_mask."
        )
    values = as_values("observation: observed_values", observation["observed_values"])
    mask = as_values("observation: observed_mask", observation["observed_mask"])
    if values.shape != mask.shape:
        raise ValueError(
            f"observation: observed_values has shape {values.shape} and observed_mask "
            f"{mask.shape}; give one entry of the mask for each value."
        )
    return np.where(mask.filled(0.0) > 0, values.filled(np.nan), np.nan)
