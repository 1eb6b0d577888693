"""Saved runs: one netCDF file with the state, the settings and the history.

Layout of a file::

    /               format, format_version, digest, library, version, seed, settings,
                    family and counters as JSON
    /online_em      path of the parameters (as in `OnlineEM.history`)
    /observations   records of the observations
    /skipped        records that were left out, where there were any
    /run/...        parameters, statistics, average, e_step_state, fit, pending, start: a group each

How it is written and read is in `pymc_mcoem.em.datatree_files`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.datatree_files import (
    arrays_of,
    dataset_of,
    named_damage,
    read_datatree,
    write_datatree,
)
from pymc_mcoem.em.run_state import Arrays, Pending, RunState
from pymc_mcoem.em.settings import NotStored, decode_settings

__all__ = ["SavedRun", "read_run", "settings_of", "write_run"]

FORMAT = "pymc_mcoem online EM run"
FORMAT_VERSION = 8
COUNTERS = (
    "n_learnt",
    "n_steps",
    "n_updates",
    "n_averaged",
    "position",
    "inverse_effective_size",
    "troubles",
)
GROUPS = ("parameters", "statistics", "average", "e_step_state", "fit")
HELD = ("pending", "start")


@dataclass(frozen=True)
class SavedRun:
    """What a file holds.

    Attributes
    ----------
    state : RunState
        Where the run stands.
    settings : str
        Settings as text, see `encode_settings`.
    entropy : int or list of int
        The seed.
    family : dict
        What the family was, see `describe_family`.
    history : xarray.DataTree
        As in `OnlineEM.history`.
    strides : dict of str to int
        How far the path and the records of observations are thinned.
    """

    state: RunState
    settings: str
    entropy: int | list[int]
    family: dict[str, Any]
    history: xr.DataTree
    strides: dict[str, int]


def write_run(path: str | os.PathLike[str], run: SavedRun) -> None:
    """Write a run of `OnlineEM`; see `write_datatree`."""
    write_datatree(path, _to_datatree(run))


def read_run(path: str | os.PathLike[str]) -> SavedRun:
    """Read what `write_run` wrote; see `read_datatree` for what is refused."""
    tree = read_datatree(path, "OnlineEM", FORMAT, FORMAT_VERSION)
    with named_damage(path):
        return _from_datatree(tree)


def _to_datatree(run: SavedRun) -> xr.DataTree:
    state = run.state
    nodes: dict[str, xr.Dataset] = {
        "/": xr.Dataset(
            attrs={
                **run.history.attrs,
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "seed": json.dumps(run.entropy),
                "settings": run.settings,
                "family": json.dumps(run.family),
                "counters": json.dumps({name: getattr(state, name) for name in COUNTERS}),
                "strides": json.dumps(run.strides),
            }
        ),
        "/online_em": run.history["online_em"].to_dataset(),
        "/observations": run.history["observations"].to_dataset(),
    }
    if "skipped" in run.history.children:
        nodes["/skipped"] = run.history["skipped"].to_dataset()
    for name in GROUPS:
        arrays = getattr(state, name)
        if arrays is not None:
            nodes[f"/run/{name}"] = dataset_of(arrays)
    for name in HELD:
        items: tuple[Pending, ...] = getattr(state, name)
        if items:
            nodes[f"/run/{name}"] = dataset_of(_held(items))
    return xr.DataTree.from_dict(nodes)


def _from_datatree(tree: xr.DataTree) -> SavedRun:
    attributes = tree.attrs
    counters: dict[str, Any] = json.loads(attributes["counters"])
    if set(counters) != set(COUNTERS):
        raise ValueError(f"its counters are {sorted(counters)}, expected {sorted(COUNTERS)}")
    groups: dict[str, Any] = {name: arrays_of(tree, f"/run/{name}") for name in GROUPS}
    held: dict[str, Any] = {name: _pending(arrays_of(tree, f"/run/{name}")) for name in HELD}
    entropy = json.loads(attributes["seed"])
    return SavedRun(
        state=RunState(**groups, **counters, **held),
        settings=attributes["settings"],
        entropy=entropy if isinstance(entropy, int) else [int(word) for word in entropy],
        family=json.loads(attributes["family"]),
        history=xr.DataTree.from_dict(
            {
                name: tree[name].to_dataset()
                for name in ("/online_em", "/observations", "/skipped")
                if name in tree.groups
            }
        ),
        strides=json.loads(attributes["strides"]),
    )


def _held(items: tuple[Pending, ...]) -> Arrays:
    """Return the arrays that observations and their positions are kept as."""
    held: Arrays = {"position": np.array([item.position for item in items])}
    for number, item in enumerate(items):
        if isinstance(item.observation, np.ndarray):
            held[f"{number}"] = item.observation
        else:
            held |= {f"{number}:{name}": value for name, value in item.observation.items()}
    return held


def _pending(held: Arrays | None) -> tuple[Pending, ...]:
    if held is None:
        return ()
    found: list[Pending] = []
    for number, position in enumerate(held["position"].tolist()):
        named = {
            name.partition(":")[2]: value
            for name, value in held.items()
            if name.partition(":")[0] == f"{number}" and ":" in name
        }
        found.append(Pending(named or held[f"{number}"], position))
    return tuple(found)


def settings_of(text: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a driver is made anew with.

    Parameters
    ----------
    text : str
        As from `encode_settings`.
    overrides : mapping of str to object
        What takes the place of saved ones, or of what a file cannot hold.

    Raises
    ------
    TypeError
        If `overrides` names what a run does not have.
    ValueError
        If something is neither in the file nor given.
    """
    settings = {"progressbar": True, "executor": None, **decode_settings(text)}
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
