"""One BLAS thread around numerical steps: bytes depend on how many there are."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread"]


@cache
def _controller() -> ThreadpoolController:
    # Finding the loaded libraries takes milliseconds, setting their threads a tenth of one.
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS uses one thread.

    Examples
    --------
    >>> import numpy as np
    >>> with one_blas_thread():
    ...     product = np.eye(2) @ np.ones(2)
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limit
