"""From one observation, NaN where points are missing, to the numbers that a model takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

__all__ = ["drop_missing_points", "encode_observation"]


def encode_observation(observation: Any, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Check one observation and return its values and its mask.

    Parameters
    ----------
    observation : array_like of shape `shape`, or mapping
        NaN, or an entry masked in a masked array, is a missing point. What this function
        returned is accepted too.
    shape : tuple of int

    Returns
    -------
    dict of str to ndarray
        ``observed_values`` with zeros where points are missing and ``observed_mask`` with ones
        where they are not.

    Raises
    ------
    TypeError
        If the values are not real numbers.
    ValueError
        If the shape is another, a value is infinite, or all points are missing.

    Examples
    --------
    >>> encode_observation([1.0, float("nan")], (2,))["observed_mask"]
    array([1., 0.])
    """
    if isinstance(observation, Mapping):
        observation = _joined(observation)
    array = np.ma.asanyarray(observation)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"observation has dtype {array.dtype}; convert it to real numbers first.")
    if array.shape != shape:
        raise ValueError(
            f"observation has shape {array.shape}, the mixture expects "
            f"{shape}; resize it, or pass several observations as an "
            "array (n, *shape) or an iterable."
        )
    values = array.astype(np.float64).filled(np.nan)
    if np.isinf(values).any():
        raise ValueError(
            f"observation holds {int(np.isinf(values).sum())} infinite values; mark missing "
            "points with NaN."
        )
    observed = ~np.isnan(values)
    if not observed.any():
        raise ValueError(
            "observation has all its points missing (NaN); leave it out of the stream."
        )
    return {
        "observed_values": np.where(observed, values, 0.0),
        "observed_mask": observed.astype(np.float64),
    }


def drop_missing_points(idata: xr.DataTree) -> xr.DataTree:
    """Return draws and log-likelihoods with the missing points left out.

    ArviZ's LOO counts every point of the grid as an observation. Missing ones add nothing to
    its estimate, but they do to its standard error; this leaves them out.

    Parameters
    ----------
    idata : DataTree
        With a group ``log_likelihood`` (``pymc.compute_log_likelihood``) and a group
        ``constant_data`` that holds ``observed_mask``, as ``pymc.sample`` writes it.

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
    kept = np.flatnonzero(mask.values > 0)
    flat = likelihood.values.reshape(*(likelihood.sizes[dim] for dim in sample_dims), -1)
    stacked = xr.DataArray(
        flat[..., kept],
        dims=(*sample_dims, "observed_point"),
        coords={
            "observed_point": kept,
            **{dim: likelihood[dim] for dim in sample_dims if dim in likelihood.coords},
        },
    )
    groups = {name: node.to_dataset() for name, node in idata.children.items()}
    groups["log_likelihood"] = xr.Dataset({"observation": stacked})
    result: xr.DataTree = xr.DataTree.from_dict(groups)
    return result


def _joined(observation: Mapping[str, Any]) -> np.ndarray:
    """Return the array with NaN that an encoded observation stands for."""
    if set(observation) != {"observed_values", "observed_mask"}:
        raise ValueError(
            f"observation: got {sorted(map(str, observation))}; pass an array, or both "
            "observed_values and observed_mask."
        )
    return np.where(
        np.asarray(observation["observed_mask"]) > 0, observation["observed_values"], np.nan
    )
