"""Compiled code whose numbers do not depend on what was compiled before it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytensor
from pytensor.compile.mode import Mode, get_mode
from pytensor.link.numba.linker import NumbaLinker

__all__ = ["StrictNumbaLinker", "strict_arithmetic", "strict_mode"]


def strict_arithmetic() -> AbstractContextManager[Any]:
    """Return a context in which PyTensor compiles sums as they are written.

    By default it lets the compiler change their order. What becomes of that depends on what is
    compiled together with what: a process that finds a part in the cache on disk has other last
    bits than the one that put it there, and a run that is killed and started again would not end
    with the same bytes. Between processors of different kinds numbers differ all the same: BLAS,
    and the factorisations of searches for modes, add up in the order that suits each.

    Examples
    --------
    >>> with strict_arithmetic():
    ...     pytensor.config.numba__fastmath
    False
    """
    context: AbstractContextManager[Any] = pytensor.config.change_flags(numba__fastmath=False)
    return context


class StrictNumbaLinker(NumbaLinker):
    """PyTensor's linker for numba with strict arithmetic, wherever it compiles.

    A function that is sent to another process is compiled there once more, outside of any context
    of ours; its linker goes with it.
    """

    def create_jitable_thunk(self, *arguments: Any, **named: Any) -> Any:
        """Compile as numba's linker does, sums in the order in which they are written."""
        with strict_arithmetic():
            return super().create_jitable_thunk(*arguments, **named)


def strict_mode(mode: Any) -> Any:
    """Return a mode of PyTensor with strict arithmetic where it is numba's, else as it is.

    Parameters
    ----------
    mode : Mode, str or None

    Examples
    --------
    >>> strict_mode("NUMBA").linker
    StrictNumbaLinker()
    >>> strict_mode("CVM")
    'CVM'
    """
    found = get_mode(mode)
    if type(found) is Mode and type(found.linker) is NumbaLinker:
        return Mode(StrictNumbaLinker(), found.provided_optimizer)
    return mode
