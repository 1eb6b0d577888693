"""What is written by h5py alone is what xarray writes, and reads, through h5netcdf."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.runs.atomic_files import write_whole
from pymc_mcoem.runs.datatree_files import bytes_of, read_datatree

ROOT = {"format": "a run", "format_version": 3, "note": "", "π": [1.5, 2.5]}


@pytest.fixture
def tree():
    arrays = xr.Dataset(
        {
            "grid": (("step", "class"), [[0.0, -0.0, np.nan], [np.inf, 1e-320, 0.1]]),
            "flag": ("step", [True, False], {"units": "none"}),
            "text": ("class", np.array(["a", "é ß", ""], dtype=object)),
            "bytes": ("width", np.arange(4, dtype=np.uint8)),
            "nothing": ("none", np.empty(0)),
            "scalar": ((), 3),
        },
        coords={"step": [4, 7], "class": ["x", "y", "z"], "other": ("step", [0.5, 1.5])},
    )
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=ROOT), "inner": arrays})


def test_xarray_reads_what_is_written(tree, tmp_path):
    path = tmp_path / "run.nc"
    path.write_bytes(bytes_of(tree))
    with xr.open_datatree(path, engine="h5netcdf") as opened:
        xr.testing.assert_identical(opened.load(), tree)


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_xarray_has_written_is_read(tree, tmp_path, is_ours):
    path = tmp_path / "run.nc"
    if not is_ours:
        tree.to_netcdf(path, engine="h5netcdf")
    write_whole(path, bytes_of(tree) if is_ours else path.read_bytes())
    found = read_datatree(path, "OnlineEM", "a run", 3)
    found.attrs["π"] = list(found.attrs["π"])
    xr.testing.assert_identical(found, tree)
    assert np.signbit(found["inner"]["grid"].values[0, 1])
    for name, array in tree["inner"].data_vars.items():
        assert found["inner"][name].dtype == array.dtype
