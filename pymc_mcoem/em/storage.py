"""Saved runs: one netCDF file with the state, the settings and the history.

Layout of a file::

    /               format, format_version, written_by, library, version, seed, settings,
                    family and counters as JSON
    /online_em      path of the parameters (as in `OnlineEM.history`)
    /observations   records of the observations
    /skipped        records that were left out, where there were any
    /run/...        parameters, statistics, average, e_step_state, fit, recent, pending, start: a
                    group each

How it is written and read is in `pymc_mcoem.runs.atomic_files` and `datatree_files`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.checks import check_layout
from pymc_mcoem.em.family import CLASS_WEIGHT
from pymc_mcoem.em.reading import admit
from pymc_mcoem.em.run_state import Pending, RunState
from pymc_mcoem.labelling import Arrays
from pymc_mcoem.runs.datatree_files import (
    arrays_of,
    bytes_of,
    dataset_of,
    named_damage,
    read_datatree,
)
from pymc_mcoem.runs.settings import NotStored, decode_settings
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = [
    "SavedRun",
    "entropy_in",
    "read_run",
    "require_counts",
    "require_sound",
    "run_bytes",
    "settings_of",
    "stored_settings",
]

FORMAT = "pymc_mcoem online EM run"
FORMAT_VERSION = 9
COUNTERS = (
    "n_learnt",
    "n_steps",
    "n_updates",
    "n_averaged",
    "position",
    "inverse_effective_size",
    "troubles",
)
GROUPS = ("parameters", "statistics", "average", "e_step_state", "fit", "recent")
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
        As in `OnlineEM.history`; of what is read, of its attributes the back end alone.
    strides : dict of str to int
        How far the path and the records of observations are thinned.
    """

    state: RunState
    settings: str
    entropy: int | list[int]
    family: dict[str, Any]
    history: xr.DataTree
    strides: dict[str, int]


def run_bytes(run: SavedRun, written_by: str) -> bytes:
    """Return a file that holds a run of `OnlineEM`.

    Parameters
    ----------
    run : SavedRun
    written_by : {"checkpoint", "save"}
        Who asks for it.
    """
    return bytes_of(_to_datatree(run, written_by))


def read_run(path: str | os.PathLike[str]) -> SavedRun:
    """Read what `run_bytes` gave; see `read_datatree` for what is refused."""
    tree = read_datatree(path, "OnlineEM", FORMAT, FORMAT_VERSION)
    with named_damage(path):
        return _from_datatree(tree)


def _to_datatree(run: SavedRun, written_by: str) -> xr.DataTree:
    state = run.state
    nodes: dict[str, xr.Dataset] = {
        "/": xr.Dataset(
            attrs={
                **run.history.attrs,
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "written_by": written_by,
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
    for name, rows in (groups["recent"] or {}).items():
        if rows.ndim != 2 or rows.shape[1] != 3 or not np.isfinite(rows).all():
            raise ValueError(
                f"recent observations, {name}, have shape {rows.shape}, expected (n, 3), or are "
                "not finite"
            )
    held: dict[str, Any] = {name: _pending(arrays_of(tree, f"/run/{name}")) for name in HELD}
    return SavedRun(
        state=RunState(**groups, **counters, **held),
        settings=attributes["settings"],
        entropy=entropy_in(tree),
        family=dict(json.loads(attributes["family"])),
        history=xr.DataTree.from_dict(
            {"/": xr.Dataset(attrs={"backend": attributes.get("backend", "")})}
            | {
                name: tree[name].to_dataset()
                for name in ("/online_em", "/observations", "/skipped")
                if name in tree.groups
            }
        ),
        strides=dict(json.loads(attributes["strides"])),
    )


def entropy_in(tree: xr.DataTree) -> int | list[int]:
    """Return the seed in a file."""
    entropy = json.loads(tree.attrs["seed"])
    return entropy if isinstance(entropy, int) else [int(word) for word in entropy]


def require_sound(state: RunState, family: Family) -> None:
    """Refuse a state that no run over observations of a family can have come to.

    Raises
    ------
    ValueError, TypeError
        If numbers of the file are missing, of another shape, not finite, or do not agree.
    """
    require_counts(state, [name for name in COUNTERS if name.startswith("n_")] + ["position"])
    for arrays in (state.parameters, state.average):
        if arrays is not None:
            family.check_parameters(arrays)
    if state.statistics is not None:
        check_layout(family, state.statistics)
    share = state.inverse_effective_size
    if not isinstance(share, float) or not 0 <= share <= 1:
        raise ValueError(f"its inverse_effective_size is {share!r}")
    agree = {
        "statistics": (state.statistics is not None) == bool(state.n_steps) == bool(share),
        "average": (state.average is not None) == bool(state.n_averaged),
        "parameters": state.parameters is not None or not state.n_learnt,
        "position": state.position >= state.n_seen,
        "fit": state.fit is None
        or {name: value.shape for name, value in state.fit.items()}
        == dict.fromkeys((CLASS_WEIGHT, "log_evidence", "last"), (family.n_classes,)),
        "e_step_state": all(np.isfinite(v).all() for v in (state.e_step_state or {}).values()),
    }
    wrong = [name for name, is_so in agree.items() if not is_so]
    if wrong:
        raise ValueError(f"its {', '.join(wrong)} are such as no run has")
    for item in (*state.pending, *state.start):
        admit(family, item.observation, item.position)


def require_counts(state: Any, names: Iterable[str]) -> None:
    """Refuse a state whose counters, troubles among them, are no counts.

    Raises
    ------
    ValueError, TypeError
    """
    if not isinstance(state.troubles, dict):
        raise TypeError(f"its troubles are {state.troubles!r}")
    counts = {name: getattr(state, name) for name in names} | state.troubles
    for name, value in counts.items():
        if not is_whole(value) or not 0 <= value < 1 << 62:
            raise ValueError(f"its count of {name!r} is {value!r}")


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


def stored_settings(text: str, kind: type) -> dict[str, Any]:
    """Return the settings in a file, which are those of a class and no others.

    Parameters
    ----------
    text : str
        As from `encode_settings`.
    kind : type
        A dataclass: `RunSettings`, or another driver's.

    Raises
    ------
    ValueError
        If one is missing, or one is there that no file has, such as an executor.
    """
    found, known = decode_settings(text), {field.name for field in fields(kind)}
    if set(found) != known:
        raise ValueError(f"its settings are {sorted(found)}, expected {sorted(known)}")
    return found


def settings_of(stored: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a driver is made anew with.

    Parameters
    ----------
    stored : mapping of str to object
        As from `stored_settings`.
    overrides : mapping of str to object
        What takes the place of saved ones, or of what a file cannot hold.

    Raises
    ------
    TypeError
        If `overrides` names what a run does not have.
    ValueError
        If something is neither in the file nor given.
    """
    settings = {"progressbar": True, "executor": None, **stored}
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
