"""Compiled code whose numbers do not depend on what was compiled before it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytensor

__all__ = ["strict_arithmetic"]


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
