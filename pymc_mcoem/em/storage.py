"""Saved runs: one netCDF file with the state, the settings and the history.

Layout of a file, format 1::

    /               format, format_version, library, version, seed, settings,
                    family and counters as JSON
    /online_em      path of the parameters (as in `OnlineEM.history`)
    /observations   records of the observations
    /run/...        parameters, statistics, average, e_step_state, pending: a group each

Nothing in a file is code, and floats are stored as they are, so that a run goes on with the same
bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.run_state import Arrays, Pending, RunState

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["SavedRun", "describe_family", "differences", "read_run", "write_run"]

FORMAT = "pymc_mcoem online EM run"
FORMAT_VERSION = 1
ENGINE: Any = "h5netcdf"
COUNTERS = (
    "n_learnt",
    "n_steps",
    "n_updates",
    "n_averaged",
    "position",
    "inverse_effective_size",
    "troubles",
)
GROUPS = ("parameters", "statistics", "average", "e_step_state")


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


def describe_family(family: Family) -> dict[str, Any]:
    """Return the name of a family's class and the shapes that a run depends on."""
    model = family.model

    def shapes(names: Iterable[str]) -> dict[str, list[int]]:
        return {name: list(model[name].get_value(borrow=True).shape) for name in names}

    return {
        "class": type(family).__qualname__,
        "number of classes": family.n_classes,
        "parameters": shapes(family.parameter_names),
        "observation": shapes(family.observation),
        "statistics": sorted(family.statistics),
    }


def write_run(path: str | os.PathLike[str], run: SavedRun) -> None:
    """Write a run to a file that is there whole or not at all.

    It is written beside `path` and then takes its place in one move.

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    """
    target = Path(path)
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(
            f"path: the folder of {str(target)!r} does not exist; create it, or name another."
        )
    beside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        _to_datatree(run).to_netcdf(beside, engine=ENGINE)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def read_run(path: str | os.PathLike[str]) -> SavedRun:
    """Read what `write_run` wrote.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not a saved run, is damaged, or has another format version.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"path: there is no file {str(source)!r}; save a run there first.")
    try:
        with xr.open_datatree(source, engine=ENGINE) as opened:
            tree = opened.load()
    except Exception as error:
        raise ValueError(
            f"path: {str(source)!r} cannot be read as netCDF ({error}); it is no saved run, or "
            "damaged."
        ) from error
    if tree.attrs.get("format") != FORMAT:
        raise ValueError(
            f"path: {str(source)!r} is no saved run of OnlineEM; give a file that `save` wrote."
        )
    version = int(tree.attrs.get("format_version", 0))
    if version != FORMAT_VERSION:
        raise ValueError(
            f"path: {str(source)!r} has format version {version}, this is for {FORMAT_VERSION}; "
            f"load it with pymc_mcoem {tree.attrs.get('version')}."
        )
    try:
        return _from_datatree(tree)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"path: {str(source)!r} is damaged: {error}.") from error


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
    for name in GROUPS:
        arrays = getattr(state, name)
        if arrays is not None:
            nodes[f"/run/{name}"] = _dataset(arrays)
    if state.pending:
        held: Arrays = {"position": np.array([item.position for item in state.pending])}
        for number, item in enumerate(state.pending):
            if isinstance(item.observation, np.ndarray):
                held[f"{number}"] = item.observation
            else:
                held |= {f"{number}:{name}": value for name, value in item.observation.items()}
        nodes["/run/pending"] = _dataset(held)
    for dataset in nodes.values():
        for variable in dataset.variables.values():
            variable.encoding = {"_FillValue": None} if variable.dtype.kind == "f" else {}
    return xr.DataTree.from_dict(nodes)


def _from_datatree(tree: xr.DataTree) -> SavedRun:
    attributes = tree.attrs
    counters: dict[str, Any] = json.loads(attributes["counters"])
    if set(counters) != set(COUNTERS):
        raise ValueError(f"its counters are {sorted(counters)}, expected {sorted(COUNTERS)}")
    groups: dict[str, Any] = {name: _arrays(tree, f"/run/{name}") for name in GROUPS}
    entropy = json.loads(attributes["seed"])
    return SavedRun(
        state=RunState(**groups, **counters, pending=_pending(_arrays(tree, "/run/pending"))),
        settings=attributes["settings"],
        entropy=entropy if isinstance(entropy, int) else [int(word) for word in entropy],
        family=json.loads(attributes["family"]),
        history=xr.DataTree.from_dict(
            {name: tree[name].to_dataset() for name in ("/online_em", "/observations")}
        ),
        strides=json.loads(attributes["strides"]),
    )


def _dataset(arrays: Mapping[str, np.ndarray]) -> xr.Dataset:
    # Dims are named by axis and length: few of them, and never one twice in a variable. Arrays
    # are numbered, since a name may hold what netCDF does not allow.
    variables = {}
    for number, value in enumerate(arrays.values()):
        dims = [f"axis_{axis}_of_{size}" for axis, size in enumerate(np.shape(value))]
        variables[f"array_{number}"] = (dims, np.asarray(value))
    return xr.Dataset(variables, attrs={"names": json.dumps(list(arrays))})


def _arrays(tree: xr.DataTree, group: str) -> Arrays | None:
    if group not in tree.groups:
        return None
    dataset = tree[group].to_dataset()
    names = json.loads(dataset.attrs["names"])
    return {name: np.array(dataset[f"array_{number}"].values) for number, name in enumerate(names)}


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


def differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Return sentences that say where two descriptions of families differ."""
    found = []
    for name in sorted({*saved, *present}):
        before, now = saved.get(name), present.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            found += [
                f"{name} {key} has shape {before.get(key)} in the file, {now.get(key)} here"
                for key in sorted({*before, *now})
                if before.get(key) != now.get(key)
            ]
        elif before != now:
            found.append(f"{name} is {before} in the file, {now} here")
    return found
