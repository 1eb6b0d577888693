"""Saved runs: one netCDF file with the state, the settings and the history.

Layout of a file, format 5::

    /               format, format_version, digest, library, version, seed, settings,
                    family and counters as JSON
    /online_em      path of the parameters (as in `OnlineEM.history`)
    /observations   records of the observations
    /skipped        records that were left out, where there were any
    /run/...        parameters, statistics, average, e_step_state, fit, pending, start: a group each

Nothing in a file is code, and floats are stored as they are, so that a run goes on with the same
bits. The digest is of all that the file holds: a file that was altered is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import xarray as xr

from pymc_mcoem.em.esteps.kept import compiled_for
from pymc_mcoem.em.fingerprint import Fingerprint
from pymc_mcoem.em.run_state import Arrays, Pending, RunState
from pymc_mcoem.em.settings import NotStored, decode_settings

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = [
    "SavedRun",
    "arrays_of",
    "content_digest",
    "dataset_of",
    "describe_family",
    "differences",
    "named_damage",
    "read_datatree",
    "read_run",
    "require_family",
    "settings_of",
    "write_datatree",
    "write_run",
]

FORMAT = "pymc_mcoem online EM run"
FORMAT_VERSION = 8
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
        "statistics": {
            name: list(family.statistics[name].type.shape) for name in sorted(family.statistics)
        },
        "variables": {
            variable.name: type(variable.owner.op).__name__ for variable in model.basic_RVs
        },
        "made with": family.describe(),
        "numbers": compiled_for(family, Fingerprint()),
    }


def write_run(path: str | os.PathLike[str], run: SavedRun) -> None:
    """Write a run of `OnlineEM`; see `write_datatree`."""
    write_datatree(path, _to_datatree(run))


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


def read_run(path: str | os.PathLike[str]) -> SavedRun:
    """Read what `write_run` wrote; see `read_datatree` for what is refused."""
    tree = read_datatree(path, "OnlineEM", FORMAT, FORMAT_VERSION)
    with named_damage(path):
        return _from_datatree(tree)


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


#: How a difference is told, where it is not one of shapes.
_DIFFERENCES = {
    "made with": "{} of the family is",
    "variables": "variable {} is",
    "numbers": "{} at one and the same point is",
}


def differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Return sentences that say where two descriptions of families differ."""
    found = []
    for name in sorted({*saved, *present}):
        before, now = saved.get(name), present.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            says = _DIFFERENCES.get(name, f"{name} {{}} has shape")
            found += [
                f"{says.format(key)} {before.get(key)} in the file, {now.get(key)} here"
                for key in sorted({*before, *now})
                if not _same(before.get(key), now.get(key))
            ]
        elif before != now:
            found.append(f"{name} is {before} in the file, {now} here")
    return found


def _same(before: Any, now: Any) -> bool:
    """Say whether two values are the same, numbers up to what versions of libraries may change."""
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=1e-6, abs_tol=1e-9)
    return bool(before == now)


def require_family(path: str | os.PathLike[str], saved: Mapping[str, Any], family: Family) -> None:
    """Refuse a family that is not the one a run was saved with.

    Raises
    ------
    ValueError
        If it differs; the message says in what.
    """
    found = differences(saved, describe_family(family))
    if found:
        raise ValueError(
            f"family: the run in {os.fspath(path)!r} is of another family: {'; '.join(found)}. "
            "Give a family made as that one was; to go on with another, make a new driver with "
            "parameters= those of the run."
        )


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
