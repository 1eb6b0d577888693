"""Saved runs of `OnlineEM` and `SAEM`: one netCDF file with state, settings and history.

Layout of a file::

    /               format, format_version, written_by, library, version, random_seed, settings
    /steps          path of the parameters (as in `OnlineEM.history`)
    /observations   records of the observations
    /skipped        records that were skipped, if there were any
    /run            everything else, as `dataset_of` lays it out

Files are written and read by `pymc_mcoem.runs.atomic_files` and `datatree_files`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import xarray as xr

from pymc_mcoem.runs.codec import NotStored, dataset_of, decode_settings, is_of, value_in
from pymc_mcoem.runs.datatree_files import bytes_of, named_damage, read_datatree

__all__ = ["SavedRun", "read_run", "run_bytes", "stored_settings", "with_overrides"]

#: The attribute ``format`` of files, by driver.
FORMATS = {"OnlineEM": "pymc_mcoem online EM run", "SAEM": "pymc_mcoem SAEM run"}
FORMAT_VERSION = 11


@dataclass(frozen=True)
class SavedRun:
    """The contents of a file besides the history and the settings.

    Attributes
    ----------
    state : OnlineState or SAEMState
        State of the run.
    random_seed : int or list of int
        The seed.
    family : dict
        Description of the family, as from `describe_family`.
    strides : dict of str to int
        Strides by which the path and the records of observations are thinned.
    """

    state: Any
    random_seed: int | list[int]
    family: dict[str, Any]
    strides: dict[str, int]


def run_bytes(driver: str, run: SavedRun, history: xr.DataTree, written_by: str) -> bytes:
    """Return the bytes of a file with a saved run."""
    attributes = {
        **history.attrs,
        "format": FORMATS[driver],
        "format_version": FORMAT_VERSION,
        "written_by": written_by,
    }
    groups = {name: node.to_dataset() for name, node in history.children.items()}
    root = xr.Dataset(attrs=attributes)
    return bytes_of(xr.DataTree.from_dict({"/": root, **groups, "run": dataset_of(run)}))


def read_run(path: str | os.PathLike[str], driver: str) -> tuple[SavedRun, xr.DataTree]:
    """Return a saved run and its history; `read_datatree` says which files are refused."""
    tree = read_datatree(path, driver, FORMATS[driver], FORMAT_VERSION)
    with named_damage(path):
        found: SavedRun = value_in(tree["run"].to_dataset())
        if not is_of(found, SavedRun):
            raise ValueError("it has values of other kinds than a saved run")
        if "settings" not in tree.attrs:
            raise ValueError("it has no settings")
        return found, tree


def stored_settings(text: str, kind: type) -> dict[str, Any]:
    """Return the settings that a file holds of a driver."""
    stored, known = decode_settings(text), {field.name for field in fields(kind)}
    if set(stored) != known:
        raise ValueError(f"its settings are {sorted(stored)}, expected {sorted(known)}")
    return stored


def with_overrides(stored: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which a saved driver is made again."""
    settings = {"progressbar": True, "executor": None, "callbacks": (), **stored}
    unknown = sorted(set(overrides) - set(settings))
    if unknown:
        raise TypeError(f"overrides: got {unknown}; a saved run has {sorted(settings)}.")
    settings |= overrides
    for name, value in settings.items():
        if isinstance(value, NotStored):
            raise ValueError(
                f"{name}: the run was saved with {value}, which a file cannot hold; pass "
                f"{name}= to load."
            )
    return settings
