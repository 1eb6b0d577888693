"""Trees of arrays in sealed netCDF files.

Files contain no code, and floats are stored bitwise, so that a run continues with the same bits.
HDF5, the format below netCDF, works only in memory here, because it ends the process when a disk
is full.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xarray as xr

from pymc_mcoem.interrupts import import_whole, require_own_fault
from pymc_mcoem.runs.atomic_files import DamagedFileError, older_names, read_whole, temporary_beside

__all__ = ["bytes_of", "named_damage", "read_datatree", "require_file_name"]

_log = logging.getLogger("pymc_mcoem")


def bytes_of(tree: xr.DataTree) -> bytes:
    """Return a tree as the bytes of a netCDF file.

    Examples
    --------
    >>> tree = xr.DataTree(xr.Dataset({"a": ("n", [1.0, -0.0])}))
    >>> bytes_of(tree)[1:4]
    b'HDF'
    """
    # imported where it is used, here and below: a session that saves nothing needs no HDF5
    import_whole("h5py")
    import h5py

    from pymc_mcoem.runs.netcdf_groups import write_groups

    size = sum(node.to_dataset(inherit=False).nbytes for node in tree.subtree)
    # All of it is one block of memory. The name is unique and not that of a file on the disk.
    with h5py.File(
        f"{secrets.token_hex(8)}.nc",
        "w",
        driver="core",
        backing_store=False,
        block_size=size + (1 << 20),
        track_order=True,  # as in netCDF
    ) as file:
        write_groups(_without_fill_values(tree), file)
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


@contextmanager
def named_damage(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any exception while reading a file's content into an error that names the file.

    Raises
    ------
    DamagedFileError
    KeyboardInterrupt, SystemExit, MemoryError, OSError
        Failures that are not due to the file; see `require_own_fault`. HDF5, which reads from
        memory, raises an OSError without a number for invalid bytes; errors of the disk have one.
    """
    try:
        yield
    except DamagedFileError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) or error.errno is not None:
            require_own_fault(error)
        # the text of a KeyError is only the key
        what = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise DamagedFileError(
            f"path: {os.fspath(path)!r} is damaged: {what.removesuffix('.')}."
        ) from error


def read_datatree(
    path: str | os.PathLike[str], driver: str, kind: str, version: int
) -> xr.DataTree:
    """Read a tree whose bytes were written by `write_whole`, with this format and version.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    DamagedFileError
        If the file is not a saved run, is damaged, or has another format version.

    Notes
    -----
    If the newest file of a checkpoint is damaged, as its checksum shows, the first undamaged one of
    the older files is read instead, and the log says so.
    """
    source = _as_path(path)
    if source.is_dir():
        raise IsADirectoryError(f"path: {str(source)!r} is a folder; name a file in it.")
    if not source.is_file():
        raise FileNotFoundError(f"path: there is no file {str(source)!r}; save a run there first.")
    try:
        content = read_whole(source)
    except DamagedFileError as damage:
        older = _older_checkpoint(source, driver, kind, version)
        if older is None:
            raise
        _log.warning("%s The run goes on from the checkpoint before it, %r.", damage, str(older[0]))
        return older[1]
    return _tree_in(content, source, driver, kind, version)


def _older_checkpoint(
    source: Path, driver: str, kind: str, version: int
) -> tuple[Path, xr.DataTree] | None:
    """Return the newest undamaged file of a checkpoint before a damaged one, if there is one."""
    for older in older_names(source.resolve()):
        try:
            tree = _tree_in(read_whole(older), older, driver, kind, version)
        except (DamagedFileError, FileNotFoundError):
            continue
        # a file that was saved by hand under such a name may be of any run
        if tree.attrs.get("written_by") == "checkpoint":
            return older, tree
    return None


def _tree_in(content: bytes, source: Path, driver: str, kind: str, version: int) -> xr.DataTree:
    """Return the tree in a file's bytes."""
    import_whole("h5py")
    import h5py

    from pymc_mcoem.runs.file_limits import bounded_groups
    from pymc_mcoem.runs.netcdf_groups import read_group

    with named_damage(source):
        with h5py.File(h5py.h5f.open_file_image(content)) as file:
            groups = bounded_groups(file, len(content))
            tree = xr.DataTree.from_dict({group: read_group(file[group]) for group in groups})
        if tree.attrs.get("format") != kind:
            raise DamagedFileError(
                f"path: {str(source)!r} is no saved run of {driver}; give a file that `save` wrote."
            )
        found = tree.attrs.get("format_version")
        if found != version:
            raise DamagedFileError(
                f"path: {str(source)!r} has format version {found}, this is for {version}; "
                f"load it with pymc_mcoem {tree.attrs.get('version')}."
            )
    return tree


def require_file_name(path: Any) -> Path:
    """Return a path at which a file can be written; links are resolved."""
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
    try:
        os.lstat(temporary_beside(target))
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        spare = len(temporary_beside(target).name) - len(target.name)
        raise OSError(
            error.errno,
            f"path: {str(target)!r} is too long a name: while it is written it has {spare} letters "
            "more; shorten it.",
        ) from error
    return target


def _as_path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path: got {path!r}; give the name of a file.")
    return Path(path)


def _without_fill_values(tree: xr.DataTree) -> xr.DataTree:
    """Set encodings without fill values, so that NaN stays NaN."""
    for node in tree.subtree:
        for variable in node.variables.values():
            variable.encoding = {"_FillValue": None} if variable.dtype.kind == "f" else {}
    return tree
