"""Conversions between PyMC's names of back ends and PyTensor's compilation modes."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from pytensor.compile.mode import Mode, get_mode

from pymc_mcoem.compiling.interpreter import InterpretingLinker

__all__ = [
    "backend_of",
    "interpreted_mode",
    "known_mode",
    "mode_of",
    "pytensor_mode",
    "require_backend",
    "uses_jax",
    "without_jax",
]

_MODES = {"numba": "NUMBA", "c": "CVM", "jax": "JAX"}

#: Back end of each of PyTensor's linkers, by PyMC's name.
_LINKERS = {
    "CLinker": "c",
    "CVMLinker": "c",
    "JAXLinker": "jax",
    "NumbaLinker": "numba",
    "StrictNumbaLinker": "numba",
    "VMLinker": "c",
}


def require_backend(backend: str | None) -> None:
    """Raise an error if there is no such back end, without checking that it is installed.

    Parameters
    ----------
    backend : str or None
        ``"numba"``, ``"c"`` or ``"jax"`` as in ``pm.sample``, or a PyTensor mode for one of them.
        None means PyTensor's default, which is numba unless its configuration says otherwise.
    """
    if backend is not None and known_mode(backend) is None:
        raise ValueError(
            f"backend: got {backend!r}; give one of {sorted(_MODES)}, or None for PyTensor's "
            "default."
        )


def pytensor_mode(backend: str | None) -> str | None:
    """Return the PyTensor mode of a back end.

    Parameters
    ----------
    backend : str or None
        As in `require_backend`.

    Examples
    --------
    >>> pytensor_mode("c"), pytensor_mode(None)
    ('CVM', None)
    """
    if backend is None:
        return None
    require_backend(backend)
    mode = known_mode(backend)
    if uses_jax(mode) and importlib.util.find_spec("jax") is None:
        raise ModuleNotFoundError(
            f"backend: got {backend!r}, and JAX is not installed; install it with "
            "pip install 'pymc_mcoem[jax]', or take 'numba'."
        )
    return mode


def known_mode(backend: Any) -> str | None:
    """Return the PyTensor mode of a back end, installed or not, or None if it is unknown."""
    if backend is None:
        return None
    mode = _MODES.get(str(backend).lower(), str(backend))
    try:
        linker = get_mode(mode).linker
    except Exception:  # PyTensor raises a bare Exception
        return None
    return mode if type(linker).__name__ in _LINKERS else None


def backend_of(mode: Any) -> str:
    """Return the name of the back end that a PyTensor mode compiles for.

    Examples
    --------
    >>> backend_of(None)
    'numba'
    """
    linker = type(get_mode(mode).linker).__name__
    return _LINKERS.get(linker, linker)


def uses_jax(mode: Any) -> bool:
    """Return whether a PyTensor mode compiles for JAX."""
    return backend_of(mode) == "jax"


def without_jax(mode: Any) -> Any:
    """Return the mode unchanged, or numba's mode in place of JAX's.

    Used for functions that are called a few times per chain and that JAX cannot compile: loops of
    unknown length and PyTensor's random generators.

    Examples
    --------
    >>> without_jax("JAX"), without_jax("CVM")
    ('NUMBA', 'CVM')
    """
    return "NUMBA" if uses_jax(mode) else mode


def interpreted_mode(*, in_place: bool = False) -> Mode:
    """Return a mode in which Python calls NumPy operator by operator and nothing is compiled.

    A function is made in a tenth of a second, where numba takes many seconds, and runs in
    milliseconds. The mode suits functions that run a few hundred times. Graphs are rewritten to be
    exact in floating point, as for all back ends, but operators are not fused, because Python runs
    a fused operator as a loop over single numbers.

    Parameters
    ----------
    in_place : bool
        Whether operators may overwrite their inputs. Functions are made more slowly, but random
        draws are three times as fast, because their generators are not copied.
    """
    # The last two find fewer operators for as much time as all others, and save no time in a call.
    excluded = ("fusion", "cxx_only", "BlasOpt", "specialize", "uncanonicalize")
    mode: Mode = Mode(InterpretingLinker(), "fast_run").excluding(*excluded)
    return mode if in_place else mode.excluding("inplace")


def mode_of(compile_kwargs: Mapping[str, Any] | None) -> Any:
    """Return PyTensor's mode from PyMC's ``compile_kwargs``."""
    given = dict(compile_kwargs or {})
    mode, backend = given.pop("mode", None), given.pop("backend", None)
    if given or (mode is not None and backend is not None):
        raise ValueError(
            f"compile_kwargs: got {sorted(compile_kwargs or {})}; give 'backend' or 'mode', not "
            "both, and nothing else."
        )
    return mode if backend is None else pytensor_mode(backend)
