"""What numba is asked to compile, found on disk or not: a warm disk hides what a cold one costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher
from numba.core.sigutils import normalize_signature


@contextmanager
def requested() -> Iterator[list[Callable[..., Any]]]:
    """Collect the Python functions that are compiled, or read from disk, within the block."""
    compile_or_read = Dispatcher.compile
    asked: list[Callable[..., Any]] = []

    def watched(dispatcher: Dispatcher, signature: Any) -> Any:
        if tuple(normalize_signature(signature)[0]) not in dispatcher.overloads:
            asked.append(dispatcher.py_func)
        return compile_or_read(dispatcher, signature)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Dispatcher, "compile", watched)
        yield asked
