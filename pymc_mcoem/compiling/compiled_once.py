"""Functions that numba compiles once for all models and caches in PyTensor's folder.

Importing this module imports numba.
"""

from __future__ import annotations

import inspect
import sys
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import numba
from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS

__all__ = ["compiled_once"]


def compiled_once(
    signature: Any = None, *, inner: bool = False, uses: Sequence[ModuleType] = ()
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator for functions of a module that numba compiles when they are first called.

    Parameters
    ----------
    signature : numba signature, optional
        Required for functions that are passed to others as arguments.
    inner : bool
        Whether only other compiled functions call it. The wrapper through which Python would call
        it is then not compiled.
    uses : sequence of module, optional
        Other modules whose functions it calls.

    Notes
    -----
    Compiled code is cached on disk under the source of the whole module, so that it is compiled
    again when a function that it calls has changed. Sums are taken in the order in which they are
    written, so that a process that compiles and one that reads the cache get the same last bits.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        modules = [sys.modules[function.__module__], *uses]
        source = zlib.crc32("".join(map(inspect.getsource, modules)).encode())
        # As PyTensor registers the functions that it caches in its folder.
        CACHED_SRC_FUNCTIONS[function] = f"{function.__module__}.{function.__name__}.{source}"
        compiled = numba.njit(
            cache=True,
            fastmath=False,
            error_model="numpy",
            no_cpython_wrapper=inner,
            # A function with a signature is called by its address.
            no_cfunc_wrapper=inner and signature is None,
        )(function)
        return compiled if signature is None else _Typed(compiled, signature)

    return decorate


class _Typed:
    """A function that is compiled for its one signature on first use."""

    def __init__(self, compiled: Any, signature: Any) -> None:
        self._compiled, self._signature = compiled, signature

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return self.function(*arguments)

    @cached_property
    def function(self) -> Any:
        """The function as compiled by numba."""
        self._compiled.compile(self._signature)
        self._compiled.disable_compile()
        return self._compiled
