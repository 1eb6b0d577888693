"""Reading and writing of netCDF groups by h5py alone.

Libraries above it look an array up again for each of its properties, and a run has hundreds: h5py
saves a run in a fifth of their time and loads it in a third.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count
from typing import Any

import h5py
import numpy as np
import xarray as xr
from xarray.conventions import cf_encoder, encode_dataset_coordinates

from pymc_mcoem.runs.file_limits import NO_VARIABLE

__all__ = ["read_group", "write_groups"]

#: Attributes by which netCDF marks dimensions, which are no attributes of the data.
OF_NETCDF = {
    "CLASS",
    "DIMENSION_LIST",
    "NAME",
    "REFERENCE_LIST",
    "_NCProperties",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
}


def write_groups(tree: xr.DataTree, file: h5py.File) -> None:
    """Write a tree as the groups of a netCDF file.

    Parameters
    ----------
    file : h5py.File
        Empty, and made with ``track_order=True``, as netCDF has it.
    """
    dimension_ids = count()
    for node in tree.subtree:
        group = file if node.path == "/" else file.create_group(node.path, track_order=True)
        dataset = node.to_dataset(inherit=False)
        variables, attributes = cf_encoder(*encode_dataset_coordinates(dataset))
        _set_attributes(group, attributes)
        scales = {}
        for name, size in dataset.sizes.items():
            if name in variables:
                scales[name] = _write(group, name, variables[name])
                label = name
            else:
                growing = {} if size else {"maxshape": (None,)}
                scales[name] = group.create_dataset(
                    name, (size,), ">f4", track_order=True, **growing
                )
                label = f"{NO_VARIABLE.decode()}.{size:10d}"
            scales[name].make_scale(label)
            scales[name].attrs["_Netcdf4Dimid"] = np.int32(next(dimension_ids))
        for name, variable in variables.items():
            if name not in scales:
                written = _write(group, name, variable)
                for axis, dimension in enumerate(variable.dims):
                    written.dims[axis].attach_scale(scales[dimension])


def _write(group: h5py.Group, name: Hashable, variable: xr.Variable) -> h5py.Dataset:
    values, options = variable.values, {}
    if values.dtype.kind in "OU":
        values, options["dtype"] = values.astype(object), h5py.string_dtype()
    if not values.size:  # a dimension of length 0 can grow in netCDF
        options["maxshape"] = tuple(size or None for size in values.shape)
    written = group.create_dataset(name, data=values, track_order=True, **options)
    _set_attributes(written, variable.attrs)
    return written


def _set_attributes(part: h5py.Group | h5py.Dataset, attributes: dict[Any, Any]) -> None:
    for name, value in attributes.items():
        part.attrs[name] = value if isinstance(value, str) else np.atleast_1d(value)


def read_group(group: h5py.Group) -> xr.Dataset:
    """Return the arrays and attributes of a group of a netCDF file, without its groups."""
    variables = {}
    for name, part in group.items():
        if isinstance(part, h5py.Dataset) and not _stands_for_a_dimension(part):
            is_text = h5py.check_string_dtype(part.dtype) is not None
            values = (part.asstr() if is_text else part)[()]
            variables[name] = xr.Variable(_dimensions(part, name), values, _attributes(part))
    return xr.decode_cf(xr.Dataset(variables, attrs=_attributes(group)))


def _stands_for_a_dimension(part: h5py.Dataset) -> bool:
    name = part.attrs.get("NAME", b"")
    return isinstance(name, bytes) and name.startswith(NO_VARIABLE)


def _dimensions(part: h5py.Dataset, name: str) -> list[str]:
    """Return the names of an array's dimensions; an array without any is a dimension itself."""
    if "DIMENSION_LIST" not in part.attrs:
        return [name] * part.ndim
    return [part.file[scale].name.rpartition("/")[2] for (scale,) in part.attrs["DIMENSION_LIST"]]


def _attributes(part: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    found = {name: value for name, value in part.attrs.items() if name not in OF_NETCDF}
    return {
        name: value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
        for name, value in found.items()
    }
