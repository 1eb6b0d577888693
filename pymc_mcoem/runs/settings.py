"""Settings of a run: dataclasses as text and back, seeds, versions."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import platform
import secrets
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from pymc_mcoem.compiling.backends import backend_of, known_mode, require_backend

__all__ = [
    "NotStored",
    "decode_settings",
    "encode_settings",
    "on_backend",
    "package_version",
    "run_attributes",
    "seed_entropy",
    "stored_alike",
]

PACKAGE = __name__.split(".")[0]
#: What the numbers of a run may depend on beside this package.
BELOW = ("pymc", "pytensor", "numba", "numpy", "scipy", "xarray")


class NotStored:
    """Stands for a setting that text cannot hold: a function, or a class from elsewhere."""

    def __init__(self, description: str) -> None:
        self.description = description

    def __repr__(self) -> str:
        """Return what the setting looked like."""
        return self.description


def encode_settings(settings: Any) -> str:
    """Return settings, a mapping or a dataclass, as JSON.

    Plain values, tuples, lists, dicts with text keys, arrays, and dataclasses defined in this
    package are stored; anything else only by its ``repr``, and has to be given again.

    Examples
    --------
    >>> from pymc_mcoem.em.schedules import StepSize
    >>> text = encode_settings({"step_size": StepSize(0.7), "function": len})
    >>> decode_settings(text)
    {'step_size': StepSize(exponent=0.7, offset=0.0, floor=0.0), 'function': <built-in ...>}
    """
    if is_dataclass(settings):
        settings = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return json.dumps({name: _encode(value) for name, value in settings.items()})


def decode_settings(text: str) -> dict[str, Any]:
    """Return the settings in `text`, with a `NotStored` for each that it only describes.

    No code from the text is run: a class is looked up in this package and must be a dataclass.

    Raises
    ------
    ValueError
        If the text is none of ours, or names a class that this package does not have.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"settings: got the text {text[:80]!r}; a JSON object is expected.")
    return {name: _decode(value) for name, value in found.items()}


def stored_alike(text: str, settings: Mapping[str, Any], name: str) -> bool:
    """Say whether a setting is the one in a text, or the text cannot tell.

    Examples
    --------
    >>> text = encode_settings({"sweeps": 3, "function": len})
    >>> [
    ...     stored_alike(text, {"sweeps": 4, "function": max}, name)
    ...     for name in ("sweeps", "function")
    ... ]
    [False, True]
    """
    if isinstance(decode_settings(text).get(name), NotStored):
        return True
    given: bool = _encode(settings[name]) == _renamed(json.loads(text).get(name))
    return given


def on_backend(e_step: Any, recorded: str) -> Any:
    """Return an E-step that goes on on the back end of a saved run, where it names none itself.

    It is left as it is where PyTensor's default is that back end, as it mostly is: the default and
    the mode of that name differ in how they rewrite graphs, and so in last digits.

    Parameters
    ----------
    e_step : EStep
    recorded : str
        As from `run_attributes`.

    Examples
    --------
    >>> from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
    >>> [on_backend(CarlinChibBurst(), name).backend for name in ("numba", "c")]
    [None, 'c']
    >>> on_backend(CarlinChibBurst(backend="jax"), "c").backend
    'jax'
    """
    names_none = is_dataclass(e_step) and getattr(e_step, "backend", "") is None
    if names_none and known_mode(recorded) is not None and backend_of(None) != recorded:
        return replace(e_step, backend=recorded)
    return e_step


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(item) for key, item in value.items()}}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": value.tolist(), "dtype": value.dtype.str}
    kind = type(value)
    if is_dataclass(value) and kind.__module__.split(".")[0] == PACKAGE:
        given = {field.name: _encode(getattr(value, field.name)) for field in _given(kind)}
        return {"class": _name_of(kind), "fields": given}
    return {"not stored": repr(value)}


def _renamed(value: Any) -> Any:
    """Return what was encoded with the names that classes have today."""
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _renamed(item) for key, item in value.items()}
    if set(value) == {"class", "fields"}:
        found["class"] = _name_of(_find(value["class"]))
    return found


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_decode(item) for item in value["tuple"])
    if "dict" in value:
        return {key: _decode(item) for key, item in value["dict"].items()}
    if "array" in value:
        dtype = np.dtype(value["dtype"])
        if dtype.kind not in "biuf":
            raise ValueError(f"settings: got an array of {dtype.str!r}; numbers are expected.")
        return np.array(value["array"], dtype=dtype)
    if "not stored" in value:
        return NotStored(str(value["not stored"]))
    kind = _find(str(value.get("class")))
    given = {name: _decode(item) for name, item in value["fields"].items()}
    missing = next((item for item in given.values() if isinstance(item, NotStored)), None)
    if missing is not None:
        return NotStored(f"{kind.__name__} with {missing}")
    return kind(**given)


def _given(kind: type) -> list[Any]:
    return [field for field in fields(kind) if field.init]


def _name_of(kind: type) -> str:
    """Return a class's name in files: the public one, which stays where modules are moved."""
    public = getattr(importlib.import_module(PACKAGE), kind.__name__, None) is kind
    return f"{PACKAGE if public else kind.__module__}:{kind.__qualname__}"


def _find(name: str) -> type:
    module, _, attribute = name.partition(":")
    if module.split(".")[0] == PACKAGE and attribute.isidentifier():
        # a module that an older file names may have been divided
        for place in (module, PACKAGE):
            try:
                kind = getattr(importlib.import_module(place), attribute)
            except (ImportError, AttributeError):
                continue
            if isinstance(kind, type) and is_dataclass(kind):
                return kind
    raise ValueError(
        f"settings: the class {name!r} is none of {PACKAGE}'s settings; use the version of "
        "the package that the run was saved with."
    )


def seed_entropy(random_seed: Any) -> int | list[int]:
    """Return a seed as numbers that can be written down.

    Parameters
    ----------
    random_seed : int, sequence of int, or None
        None takes a fresh one from the operating system.

    Raises
    ------
    ValueError
        If it is none of these, or a number is negative.

    Examples
    --------
    >>> seed_entropy(7), seed_entropy((7, 8))
    (7, [7, 8])
    """
    if random_seed is None:
        return secrets.randbits(128)
    alone = not isinstance(random_seed, (list, tuple, np.ndarray))
    words = [random_seed] if alone else list(random_seed)
    if not words or any(
        isinstance(word, bool) or not isinstance(word, (int, np.integer)) or word < 0
        for word in words
    ):
        raise ValueError(
            f"random_seed: got {random_seed!r}; give a whole number from 0, a sequence of them, "
            "or None."
        )
    numbers = [int(word) for word in words]
    return numbers[0] if alone else numbers


def run_attributes(driver: str, entropy: int | list[int], settings: Any) -> dict[str, str]:
    """Return what a result says of where it came from.

    Parameters
    ----------
    driver : str
        Name of the driver's class.
    entropy : int or list of int
        The seed.
    settings : dataclass or mapping

    Returns
    -------
    dict of str to str
        ``library``, ``version``, ``versions`` (of what the numbers rest on, as JSON),
        ``backend`` (PyTensor's, which the E-step is compiled by), ``driver``, ``seed`` and
        ``settings`` (both as JSON).

    Examples
    --------
    >>> found = run_attributes("OnlineEM", 1, {})
    >>> sorted(found)
    ['backend', 'driver', 'library', 'seed', 'settings', 'version', 'versions']
    >>> found["backend"]
    'numba'
    """
    backend = getattr(getattr(settings, "e_step", None), "backend", None)
    name = _backend_name(backend)
    below = (*BELOW, "jax") if name == "jax" and importlib.util.find_spec("jax") else BELOW
    versions = {package: importlib.metadata.version(package) for package in below}
    return {
        "library": PACKAGE,
        "version": package_version(),
        "versions": json.dumps({"python": platform.python_version(), **versions}),
        "backend": name,
        "driver": driver,
        "seed": json.dumps(entropy),
        "settings": encode_settings(settings),
    }


def _backend_name(backend: Any) -> str:
    """Return the name of an E-step's back end; one of its own may call it what it likes."""
    try:
        require_backend(backend)
    except ValueError:
        return str(backend)
    return backend_of(known_mode(backend))


def package_version() -> str:
    """Return the version of this package, ``"unknown"`` where it is not installed."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
