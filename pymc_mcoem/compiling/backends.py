"""Which of PyTensor's back ends computes: by PyMC's names at the doors, as modes within."""

from __future__ import annotations

import importlib.util
from typing import Any

from pytensor.compile.mode import Mode, get_mode
from pytensor.link.vm import VMLinker

__all__ = [
    "backend_of",
    "interpreted_mode",
    "known_mode",
    "pytensor_mode",
    "require_backend",
    "uses_jax",
    "without_jax",
]

_MODES = {"numba": "NUMBA", "c": "CVM", "jax": "JAX"}

#: Names of PyTensor's linkers as people know them.
_LINKERS = {
    "CLinker": "c",
    "CVMLinker": "c",
    "JAXLinker": "jax",
    "NumbaLinker": "numba",
    "StrictNumbaLinker": "numba",
    "VMLinker": "c",
}


def require_backend(backend: str | None) -> None:
    """Refuse what is no back end; whether it is installed is seen when something is compiled.

    Parameters
    ----------
    backend : str or None
        ``"numba"``, ``"c"`` or ``"jax"`` as in ``pm.sample``, or a mode of PyTensor for one of
        them. None: PyTensor's own default, which is numba unless its configuration says otherwise.

    Raises
    ------
    ValueError
        If there is no such back end.
    """
    if backend is not None and known_mode(backend) is None:
        raise ValueError(
            f"backend: got {backend!r}; give one of {sorted(_MODES)}, or None for PyTensor's "
            "default."
        )


def pytensor_mode(backend: str | None) -> str | None:
    """Return PyTensor's mode of a back end.

    Parameters
    ----------
    backend : str or None
        As in `require_backend`.

    Returns
    -------
    str or None

    Raises
    ------
    ValueError
        If there is no such back end.
    ModuleNotFoundError
        If it is JAX and that is not installed.

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
    """Return PyTensor's mode of a back end, installed or not; None where there is no such."""
    if backend is None:
        return None
    mode = _MODES.get(str(backend).lower(), str(backend))
    try:
        linker = get_mode(mode).linker
    except Exception:  # PyTensor raises a bare one
        return None
    return mode if type(linker).__name__ in _LINKERS else None


def backend_of(mode: Any) -> str:
    """Return the name of the back end that a mode of PyTensor compiles for.

    Examples
    --------
    >>> backend_of(None)
    'numba'
    """
    linker = type(get_mode(mode).linker).__name__
    return _LINKERS.get(linker, linker)


def uses_jax(mode: Any) -> bool:
    """Return whether a mode of PyTensor compiles for JAX."""
    return backend_of(mode) == "jax"


def without_jax(mode: Any) -> Any:
    """Return a mode of PyTensor, or numba's where it is JAX's.

    For what is called a few times a chain and JAX cannot compile: loops whose length it does not
    know, generators of PyTensor.

    Examples
    --------
    >>> without_jax("JAX"), without_jax("CVM")
    ('NUMBA', 'CVM')
    """
    return "NUMBA" if uses_jax(mode) else mode


def interpreted_mode() -> Mode:
    """Return a mode in which PyTensor compiles nothing: Python calls NumPy, operator by operator.

    Made in a tenth of a second where numba takes many, and run in milliseconds: for what runs a few
    hundred times. Graphs are rewritten to be exact in floating point, as they are for all back
    ends, but operators are not fused: to Python a fused one is a loop over single numbers.
    """
    linker = VMLinker(use_cloop=False, c_thunks=False)
    mode: Mode = Mode(linker, "fast_run").excluding("fusion", "inplace", "cxx_only", "BlasOpt")
    return mode
