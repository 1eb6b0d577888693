"""Trees of arrays in netCDF files that are there whole or not at all, and refused if altered.

Nothing in a file is code, and floats are stored as they are, so that a run goes on with the same
bits. The digest is of all that the file holds.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from pymc_mcoem.em.run_state import Arrays

__all__ = [
    "arrays_of",
    "content_digest",
    "dataset_of",
    "named_damage",
    "read_datatree",
    "require_file_name",
    "write_datatree",
]

ENGINE: Any = "h5netcdf"


def write_datatree(path: str | os.PathLike[str], tree: xr.DataTree) -> None:
    """Write a tree to a file that is there whole or not at all.

    It is written beside `path` and then takes its place in one move.

    Raises
    ------
    OSError
        If the folder does not exist, or something that is no file has the name.
    """
    target = require_file_name(path)
    # One name, so that what a killed process left behind is written over by the next.
    beside = target.with_name(f".{target.name}.partial")
    tree.attrs.pop("digest", None)
    try:
        _without_fill_values(tree).to_netcdf(beside, engine=ENGINE)
        # The digest is of what is read from the file: types may change on the way, as dates do.
        with xr.open_datatree(beside, engine=ENGINE) as opened:
            digest = content_digest(opened.load())
        with h5py.File(beside, "r+") as written:
            written.attrs["digest"] = digest
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def named_damage(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of what a file should hold into one that names the file."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"path: {os.fspath(path)!r} is damaged: {error}.") from error


def read_datatree(
    path: str | os.PathLike[str], driver: str, kind: str, version: int
) -> xr.DataTree:
    """Read what `write_datatree` wrote, if it is of this kind and version.

    Parameters
    ----------
    path : path-like
    driver : str
        Whose runs are of this kind.
    kind : str
        The attribute ``format`` of the file.
    version : int
        The attribute ``format_version``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not a saved run, is damaged, or has another format version.
    """
    source = _as_path(path)
    if source.is_dir():
        raise IsADirectoryError(f"path: {str(source)!r} is a folder; name a file in it.")
    if not source.is_file():
        raise FileNotFoundError(f"path: there is no file {str(source)!r}; save a run there first.")
    try:
        elsewhere = _leads_elsewhere(source)
        if not elsewhere:
            with xr.open_datatree(source, engine=ENGINE) as opened:
                tree = opened.load()
    except Exception as error:
        raise ValueError(
            f"path: {str(source)!r} cannot be read as netCDF ({error}); it is no saved run, or "
            "damaged."
        ) from error
    if elsewhere:
        raise ValueError(
            f"path: {elsewhere!r} in {str(source)!r} is kept in another place, which no saved run "
            "does; only the file that is named is read."
        )
    if tree.attrs.get("format") != kind:
        raise ValueError(
            f"path: {str(source)!r} is no saved run of {driver}; give a file that `save` wrote."
        )
    found = tree.attrs.get("format_version")
    if found != version:
        raise ValueError(
            f"path: {str(source)!r} has format version {found}, this is for {version}; "
            f"load it with pymc_mcoem {tree.attrs.get('version')}."
        )
    if tree.attrs.pop("digest", None) != content_digest(tree):
        raise ValueError(
            f"path: {str(source)!r} is damaged: what it holds is not what was written (its digest "
            "differs). Take an older file, as a Checkpoint keeps beside it."
        )
    return tree


def _leads_elsewhere(path: Path) -> str | None:
    """Return the first part of a file that is a link or lies in other files, if there is one.

    HDF5 would follow these to whatever the file names.
    """
    with h5py.File(path, "r") as file:
        waiting: list[h5py.Group] = [file]
        known = set()
        while waiting:
            group = waiting.pop()
            for name in group:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    return f"{group.name.rstrip('/')}/{name}"
                part = group[name]
                if isinstance(part, h5py.Dataset) and (part.external or part.is_virtual):
                    return str(part.name)
                place = h5py.h5o.get_info(part.id).addr
                if isinstance(part, h5py.Group) and place not in known:
                    known.add(place)
                    waiting.append(part)
    return None


def content_digest(tree: xr.DataTree) -> str:
    """Return a digest of the names, shapes, values and attributes of a tree, but its digest.

    Examples
    --------
    >>> one, other = (xr.DataTree(xr.Dataset({"a": ("n", [value])})) for value in (0.0, -0.0))
    >>> content_digest(one) == content_digest(one), content_digest(one) == content_digest(other)
    (True, False)
    """
    found = hashlib.sha256()

    def add(*words: Any) -> None:
        found.update(json.dumps([str(word) for word in words]).encode())

    for node in sorted(tree.subtree, key=lambda node: node.path):
        add(node.path)
        for name in sorted(map(str, node.attrs)):
            if name != "digest":
                add(name, node.attrs[name])
        for name in sorted(map(str, node.variables)):
            variable = node.variables[name]
            values = np.asarray(variable.values)
            add(name, *variable.dims, *values.shape)
            if values.dtype.kind in "OSU":
                add(*values.ravel())
            else:
                # bytes as they lie in the file, whatever the machine's own order
                plain = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
                found.update(plain.dtype.str.encode() + plain.tobytes())
    return found.hexdigest()


def require_file_name(path: Any) -> Path:
    """Return where a file can be written; of a link, where it leads to.

    Raises
    ------
    TypeError
        If it is no name.
    FileNotFoundError
        If the folder does not exist.
    PermissionError
        If it cannot be written in.
    OSError
        If a folder, a device or something else that is no file has the name.
    """
    target = _as_path(path)
    if target.is_symlink():
        target = target.resolve()
    if target.is_dir():
        raise IsADirectoryError(f"path: {str(target)!r} is a folder; name a file in it.")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(
            f"path: the folder of {str(target)!r} does not exist; create it, or name another."
        )
    if not os.access(folder, os.W_OK):
        raise PermissionError(
            f"path: nothing can be written in the folder of {str(target)!r}; change its "
            "permissions, or name another."
        )
    if target.exists() and not target.is_file():
        raise OSError(f"path: {str(target)!r} is no file that can be replaced; name another.")
    return target


def _as_path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path: got {path!r}; give the name of a file.")
    return Path(path)


def _without_fill_values(tree: xr.DataTree) -> xr.DataTree:
    """Say that every NaN in a file stands for itself."""
    for node in tree.subtree:
        for variable in node.variables.values():
            variable.encoding = {"_FillValue": None} if variable.dtype.kind == "f" else {}
    return tree


def dataset_of(arrays: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Return a group of a file that holds arrays by name, whatever the names."""
    # Dims are named by axis and length: few of them, and never one twice in a variable. Arrays
    # are numbered, since a name may hold what netCDF does not allow.
    variables = {}
    for number, value in enumerate(arrays.values()):
        dims = [f"axis_{axis}_of_{size}" for axis, size in enumerate(np.shape(value))]
        variables[f"array_{number}"] = (dims, np.asarray(value))
    return xr.Dataset(variables, attrs={"names": json.dumps(list(arrays))})


def arrays_of(tree: xr.DataTree, group: str) -> Arrays | None:
    """Return the arrays that `dataset_of` put into a group, None where there is no such group."""
    if group not in tree.groups:
        return None
    dataset = tree[group].to_dataset()
    names = json.loads(dataset.attrs["names"])
    return {name: np.array(dataset[f"array_{number}"].values) for number, name in enumerate(names)}
