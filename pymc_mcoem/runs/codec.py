"""Encoding and decoding of dataclasses: settings as text, the state of a run as a dataset.

No code is stored. A class is stored by name, looked up in this package, and must be a dataclass.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import xarray as xr

__all__ = [
    "NotStored",
    "dataset_of",
    "decode_settings",
    "encode_settings",
    "is_of",
    "stored_alike",
    "value_in",
]

PACKAGE = __name__.partition(".")[0]
#: Where public classes are, whose names in files stay when modules are moved.
PUBLIC = (
    PACKAGE,
    *(f"{PACKAGE}.{name}" for name in ("esteps", "moves", "pseudo_priors", "schedules")),
)
#: Variable of a dataset that holds everything except arrays, as JSON in bytes.
STRUCTURE = "structure"


class NotStored:
    """Placeholder for a setting that text cannot hold: a function, or a class from elsewhere."""

    def __init__(self, description: str) -> None:
        self.description = description

    def __repr__(self) -> str:
        """Return the ``repr`` of the setting."""
        return self.description


def encode_settings(settings: Any) -> str:
    """Return settings, a mapping or a dataclass, as JSON.

    Plain values, tuples, lists, dicts with text keys, arrays, and dataclasses defined in this
    package are stored. Anything else is stored only as its ``repr`` and has to be given again.

    Examples
    --------
    >>> from pymc_mcoem.em.schedules import StepSize
    >>> text = encode_settings({"step_size": StepSize(0.7), "function": len})
    >>> decode_settings(text)
    {'step_size': StepSize(exponent=0.7, offset=0.0, floor=0.0), 'function': <built-in ...>}
    """
    if is_dataclass(settings):
        settings = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return json.dumps({name: _encode(value, _in_text) for name, value in settings.items()})


def decode_settings(text: str) -> dict[str, Any]:
    """Return the settings in `text`, with a `NotStored` for each stored only as its ``repr``."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"settings: got the text {text[:80]!r}; a JSON object is expected.")
    return {name: _decode(value, _from_text) for name, value in found.items()}


def stored_alike(text: str, settings: Mapping[str, Any], name: str) -> bool:
    """Return whether a setting equals the one in a text, or the text cannot tell.

    Examples
    --------
    >>> text = encode_settings({"draws": 3, "function": len})
    >>> [stored_alike(text, {"draws": 4, "function": max}, name) for name in ("draws", "function")]
    [False, True]
    """
    if isinstance(decode_settings(text).get(name), NotStored):
        return True
    given: bool = _encode(settings[name], _in_text) == json.loads(text).get(name)
    return given


def dataset_of(value: Any) -> xr.Dataset:
    """Return a dataset that holds a value, such as the state of a run, for a file.

    All arrays of one dtype are concatenated in one variable.

    Parameters
    ----------
    value : object
        A dataclass of this package, or a value that `encode_settings` stores. Arrays are restored
        bitwise.

    Examples
    --------
    >>> value_in(dataset_of({"a": np.array([[1.0, -0.0]]), "b": (1, "text")}))
    {'a': array([[ 1., -0.]]), 'b': (1, 'text')}
    """
    pieces: dict[str, list[np.ndarray]] = {}
    sizes: dict[str, int] = {}

    def put(array: np.ndarray) -> dict[str, Any]:
        kind = array.dtype.name
        pieces.setdefault(kind, []).append(np.ravel(array))
        begin = sizes.get(kind, 0)
        sizes[kind] = begin + array.size
        return {"array": kind, "at": [begin, *array.shape]}

    text = json.dumps(_encode(value, put)).encode()
    columns = {kind: np.concatenate(each) for kind, each in pieces.items()}
    columns[STRUCTURE] = np.frombuffer(text, np.uint8)
    return xr.Dataset({name: (f"{name}_index", column) for name, column in columns.items()})


def value_in(dataset: xr.Dataset) -> Any:
    """Return the value that `dataset_of` stored in a dataset."""
    columns = {str(name): variable.values for name, variable in dataset.data_vars.items()}

    def take(stored: Mapping[str, Any]) -> np.ndarray:
        begin, *shape = stored["at"]
        size, column = int(np.prod(shape, dtype=int)), columns[stored["array"]]
        if column.dtype.name != stored["array"]:
            raise ValueError(f"state: got {column.dtype} where {stored['array']} is expected.")
        found: np.ndarray = column[begin : begin + size].reshape(shape).copy()
        return found

    return _decode(json.loads(columns[STRUCTURE].tobytes()), take)


def is_of(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type, as deep as the annotations of dataclasses tell.

    Numbers count as arrays, since arrays without axes may be stored as numbers.

    Examples
    --------
    >>> is_of({"a": np.zeros(2)}, dict[str, np.ndarray] | None), is_of(("x",), tuple[int, ...])
    (True, False)
    """
    kind = getattr(kind, "__value__", kind)  # what a type alias stands for
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(is_of(value, each) for each in inner)
    if origin is dict:
        return isinstance(value, dict) and all(is_of(each, inner[1]) for each in value.values())
    if origin in (list, tuple):
        return isinstance(value, origin) and all(is_of(each, inner[0]) for each in value)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if kind is np.ndarray:
        # larger numbers make arrays of objects
        is_small = not isinstance(value, int) or -(2**63) <= value < 2**63
        return isinstance(value, (np.ndarray, int, float)) and is_small
    if not isinstance(value, kind):
        return False
    own: Any = type(value)
    annotations = _annotations(own) if is_dataclass(value) else {}
    return all(is_of(getattr(value, name), each) for name, each in annotations.items())


@cache
def _annotations(kind: type) -> dict[str, Any]:
    found = get_type_hints(kind)
    return {field.name: found[field.name] for field in fields(kind)}


def _in_text(array: np.ndarray) -> dict[str, Any]:
    return {"array": array.tolist(), "dtype": array.dtype.str}


def _from_text(stored: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype(stored["dtype"])
    if dtype.kind not in "biuf":
        raise ValueError(f"settings: got an array of {dtype.str!r}; numbers are expected.")
    return np.array(stored["array"], dtype=dtype)


def _encode(value: Any, put: Callable[[np.ndarray], Any]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if isinstance(value, list):
        return [_encode(item, put) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, put) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(item, put) for key, item in value.items()}}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return put(value)
    kind: Any = type(value)
    if is_dataclass(value) and kind.__module__.split(".")[0] == PACKAGE:
        given = {
            field.name: _encode(getattr(value, field.name), put)
            for field in fields(kind)
            if field.init
        }
        return {"class": _name_of(kind), "fields": given}
    if put is not _in_text:
        raise TypeError(
            f"the state of a run has {value!r}, which a file cannot hold; keep arrays of real "
            "numbers, and plain values."
        )
    return {"not stored": repr(value)}


def _decode(value: Any, take: Callable[[Mapping[str, Any]], np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_decode(item, take) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_decode(item, take) for item in value["tuple"])
    if "dict" in value:
        return {key: _decode(item, take) for key, item in value["dict"].items()}
    if "array" in value:
        return take(value)
    if "not stored" in value:
        return NotStored(str(value["not stored"]))
    kind = _find(str(value.get("class")))
    given = {name: _decode(item, take) for name, item in value["fields"].items()}
    missing = next((item for item in given.values() if isinstance(item, NotStored)), None)
    if missing is not None:
        return NotStored(f"{kind.__name__} with {missing}")
    return kind(**given)


@cache
def _name_of(kind: type) -> str:
    """Return a class's name in files: the public one, which stays when modules are moved."""
    for place in PUBLIC:
        if getattr(importlib.import_module(place), kind.__name__, None) is kind:
            return f"{place}:{kind.__qualname__}"
    return f"{kind.__module__}:{kind.__qualname__}"


@cache
def _find(name: str) -> type:
    module, _, attribute = name.partition(":")
    kind: Any = None
    if module.split(".")[0] == PACKAGE and attribute.isidentifier():
        try:
            kind = getattr(importlib.import_module(module), attribute, None)
        except ImportError:
            pass
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise ValueError(
            f"settings: the class {name!r} is none of {PACKAGE}'s settings; use the version of "
            "the package that the run was saved with."
        )
    return kind
