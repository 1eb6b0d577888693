"""Seeds of a run, and the attributes that record how a result was made."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import secrets
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from pymc_mcoem.compiling.backends import backend_of, known_mode, require_backend
from pymc_mcoem.runs.codec import PACKAGE, encode_settings

__all__ = ["on_backend", "package_version", "run_attributes", "seed_entropy"]

#: Packages besides this one on which the results of a run may depend.
BELOW = ("pymc", "pytensor", "numba", "numpy", "scipy", "xarray")


def on_backend(e_step: Any, recorded: str) -> Any:
    """Return an E-step that continues on the back end of a saved run, unless it names one itself.

    The E-step is unchanged if PyTensor's default is that back end, because the default and the
    mode of that name rewrite graphs differently and results would differ in their last digits.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Burst:
    ...     backend: str | None = None
    >>> [on_backend(Burst(), name).backend for name in ("numba", "c")]
    [None, 'c']
    >>> on_backend(Burst("jax"), "c").backend
    'jax'
    """
    names_none = is_dataclass(e_step) and getattr(e_step, "backend", "") is None
    if names_none and known_mode(recorded) is not None and backend_of(None) != recorded:
        return replace(e_step, backend=recorded)
    return e_step


def seed_entropy(random_seed: Any) -> int | list[int]:
    """Return a seed as plain integers, which can be saved.

    Parameters
    ----------
    random_seed : int, sequence of int, or None
        None takes a fresh seed from the operating system.

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
    entropy = [int(word) for word in words]
    return entropy[0] if alone else entropy


def run_attributes(driver: str, random_seed: int | list[int], settings: Any) -> dict[str, str]:
    """Return the attributes of a result that record how it was made.

    Returns
    -------
    dict of str to str
        ``library``, ``version``, ``versions`` (of the dependencies, as JSON), ``backend``
        (PyTensor's back end of the E-step), ``driver``, ``random_seed`` and ``settings`` (both as
        JSON).

    Examples
    --------
    >>> found = run_attributes("OnlineEM", 1, {})
    >>> sorted(found)
    ['backend', 'driver', 'library', 'random_seed', 'settings', 'version', 'versions']
    >>> found["backend"]
    'numba'
    """
    backend = getattr(getattr(settings, "e_step", None), "backend", None)
    name = _backend_name(backend)
    below = (*BELOW, "jax") if name == "jax" and importlib.util.find_spec("jax") else BELOW
    versions = {package: _version(package) for package in below}
    return {
        "library": PACKAGE,
        "version": package_version(),
        "versions": json.dumps({"python": platform.python_version(), **versions}),
        "backend": name,
        "driver": driver,
        "random_seed": json.dumps(random_seed),
        "settings": encode_settings(settings),
    }


def _backend_name(backend: Any) -> str:
    """Return the name of an E-step's back end; custom E-steps may have any name."""
    try:
        require_backend(backend)
    except ValueError:
        return str(backend)
    return backend_of(known_mode(backend))


@cache
def _version(package: str) -> str:
    """Return the version of a package, whose record takes a millisecond to read."""
    return importlib.metadata.version(package)


def package_version() -> str:
    """Return the version of this package; ``"unknown"`` if it is not installed."""
    try:
        return _version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
