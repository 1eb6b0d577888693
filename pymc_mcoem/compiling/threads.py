"""Threads: one for BLAS around numerical steps, and one at a time for what is compiled."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import threadpoolctl

__all__ = ["OneAtATime", "one_blas_thread", "one_call_at_a_time"]


@cache
def _controller() -> threadpoolctl.ThreadpoolController:
    # Finding the loaded libraries takes milliseconds, setting their threads a tenth of one.
    return threadpoolctl.ThreadpoolController()


class _Shared:
    """What the threads of this process share; a process that is forked from it has its own."""

    def __init__(self) -> None:
        self.calls = threading.RLock()
        self.limits = threading.Lock()
        self.limited = 0
        self.limit: Any = None


_shared = _Shared()


def _limit() -> Any:
    """Set BLAS to one thread; return what sets it back."""
    _listen_to_any_thread()
    return _controller().limit(limits=1, user_api="blas")


def _lift(limit: Any) -> None:
    """Give BLAS its threads back."""
    _listen_to_any_thread()
    limit.restore_original_limits()
    _listen_to_any_thread()


def _listen_to_any_thread() -> None:
    # From version 3.8 on threadpoolctl takes orders from the first thread alone that gave any, as
    # long as that lives. Here it is the last one to leave that gives them.
    openblas = getattr(threadpoolctl, "OpenBLASController", None)
    release = getattr(openblas, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


def _begin_anew() -> None:
    # The thread that holds a lock as its process is forked is not there to let go of it.
    global _shared
    limit, _shared = _shared.limit, _Shared()
    if limit is not None:
        _lift(limit)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread, since bytes depend on how many there are.

    The number is the process's, not the thread's: the first thread that enters sets it, and the
    last that leaves sets it back. That of OpenMP, which k-means uses, is each thread's own.

    Examples
    --------
    >>> import numpy as np
    >>> with one_blas_thread():
    ...     product = np.eye(2) @ np.ones(2)
    """
    shared = _shared
    with shared.limits:
        if not shared.limited:
            shared.limit = _limit()
        shared.limited += 1
    own = _controller().limit(limits=1, user_api="openmp")
    try:
        yield
    finally:
        own.restore_original_limits()
        with shared.limits:
            shared.limited -= 1
            if not shared.limited and shared.limit is not None:
                _lift(shared.limit)
                shared.limit = None


def one_call_at_a_time() -> AbstractContextManager[Any]:
    """Return a context in which no other thread compiles, or calls what is compiled.

    Compiled functions own their memory and cannot be called by two threads at once, which pools of
    threads, workers with several of them, and two runs in threads of one program would do.
    Compiling sets PyTensor's configuration, and the model's data, for as long as it takes.

    Examples
    --------
    >>> with one_call_at_a_time(), one_call_at_a_time():
    ...     pass
    """
    return _shared.calls


class OneAtATime:
    """Lets one call work with an object and refuses a second.

    Parameters
    ----------
    name : str
        What the call is, for the message.

    Examples
    --------
    >>> alone = OneAtATime("OnlineEM.partial_fit")
    >>> with alone.call(), alone.call():
    ...     pass
    Traceback (most recent call last):
        ...
    RuntimeError: OnlineEM.partial_fit: it was called from within itself, by its source perhaps; ...
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._at_work: dict[str, list[int]] = {}

    @contextmanager
    def call(self) -> Iterator[None]:
        """Work with the object, alone.

        Raises
        ------
        RuntimeError
            Where a call is at work already, in another thread or further up in this one.
        """
        # One operation takes it and says whose it is, so that at no instant it is taken and
        # nobody knows. A generator lets go also where memory fails the call that is to end it.
        own = [threading.get_ident()]
        try:
            first = self._at_work.setdefault("call", own)
            if first is not own:
                where = (
                    "it was called from within itself, by its source perhaps; let the first call "
                    "end"
                    if first == own
                    else "another thread is at work with the same object; wait for it, or make an "
                    "object for each thread"
                )
                raise RuntimeError(f"{self._name}: {where}. Nothing was changed.")
            yield
        finally:
            if self._at_work.get("call") is own:
                self._at_work.clear()

    def __reduce__(self) -> tuple[type[OneAtATime], tuple[str]]:
        """Let a copy have its own."""
        return OneAtATime, (self._name,)
