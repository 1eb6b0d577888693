"""Saved runs that are changed by one who knows how they are sealed."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import h5py
import xarray as xr

from pymc_mcoem.runs.atomic_files import read_whole, write_whole
from pymc_mcoem.runs.datatree_files import bytes_of


@contextmanager
def edited(path):
    """Yield a saved run as an open HDF5 file, and seal what has become of it."""
    path = Path(path)
    path.write_bytes(read_whole(path))
    with h5py.File(path, "r+") as file:
        yield file
    write_whole(path, path.read_bytes())


def rewrite(path, **attributes):
    """Change attributes of a saved run."""
    with xr.open_datatree(path, engine="h5netcdf") as opened:
        tree = opened.load()
    tree.attrs |= attributes
    write_whole(Path(path), bytes_of(tree))
