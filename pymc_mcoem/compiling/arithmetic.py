"""Compiled code whose results do not depend on what was compiled before it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytensor
from pytensor.compile.mode import Mode, get_mode
from pytensor.link.c.basic import CLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.link.vm import VMLinker

__all__ = ["StrictNumbaLinker", "strict_arithmetic", "strict_mode"]


def strict_arithmetic() -> AbstractContextManager[Any]:
    """Return a context in which PyTensor compiles sums in the order in which they are written.

    By default PyTensor lets the compiler reorder sums. The order then depends on which functions
    are compiled together: a process that loads a function from the cache on disk gets other last
    bits than the process that compiled it, and a run that is killed and restarted would not end
    with the same bytes. Results still differ between kinds of processors, because BLAS and the
    factorizations of mode searches add up in the order that suits the processor.

    Examples
    --------
    >>> with strict_arithmetic():
    ...     pytensor.config.numba__fastmath
    False
    """
    context: AbstractContextManager[Any] = pytensor.config.change_flags(numba__fastmath=False)
    return context


class StrictNumbaLinker(NumbaLinker):
    """PyTensor's numba linker with strict arithmetic in every process.

    A function that is sent to another process is compiled again there, outside the context of
    `strict_arithmetic`. Its linker is sent with it.
    """

    def create_jitable_thunk(self, *arguments: Any, **named: Any) -> Any:
        """Compile as `NumbaLinker` does, with sums in the order in which they are written."""
        with strict_arithmetic():
            return super().create_jitable_thunk(*arguments, **named)


def strict_mode(mode: Any) -> Any:
    """Return a mode for numba with strict arithmetic, for C without a wrong rewrite, or unchanged.

    For C, PyTensor 3.3.7 merges ``y - (X @ b + k)`` into one call of BLAS and loses k if it is an
    integer, as a class index is. That rewrite is excluded.

    Examples
    --------
    >>> strict_mode("NUMBA").linker
    StrictNumbaLinker()
    >>> strict_mode("JAX")
    'JAX'
    """
    found = get_mode(mode)
    if type(found) is Mode and type(found.linker) is NumbaLinker:
        return Mode(StrictNumbaLinker(), found.provided_optimizer)
    if isinstance(found.linker, CLinker | VMLinker):
        return found.excluding("gemm_optimizer")
    return mode
