"""PyTensor without a compiler: for tests that evaluate many small graphs a few times each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytensor


@contextmanager
def interpreted() -> Iterator[None]:
    """Run every graph that is compiled inside in the Python interpreter.

    A graph takes a second instead of half a minute the first time, and milliseconds instead of
    microseconds each time after.
    """
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"):
        yield
