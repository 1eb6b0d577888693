"""One BLAS thread around numerical steps, and locks around compiled functions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import threadpoolctl

__all__ = ["OneAtATime", "ThreadGuard", "one_blas_thread", "one_call_at_a_time"]


@cache
def _controller() -> threadpoolctl.ThreadpoolController:
    # Finding the loaded libraries takes milliseconds; setting their threads takes 0.1 ms.
    return threadpoolctl.ThreadpoolController()


class _Shared:
    """State shared by the threads of this process; a forked process has its own."""

    def __init__(self) -> None:
        self.call_lock = threading.RLock()
        self.limits = threading.Lock()
        self.limited = 0
        self.limit: Any = None


_shared = _Shared()


def _limit() -> Any:
    """Set BLAS to one thread and return the limit, which `_lift` undoes."""
    _listen_to_any_thread()
    return _controller().limit(limits=1, user_api="blas")


def _lift(limit: Any) -> None:
    """Give BLAS its threads back."""
    _listen_to_any_thread()
    limit.restore_original_limits()
    _listen_to_any_thread()


def _listen_to_any_thread() -> None:
    # From version 3.8 on, threadpoolctl accepts changes only from the first thread that made one,
    # as long as that thread lives. Here the last thread to leave makes them.
    openblas = getattr(threadpoolctl, "OpenBLASController", None)
    release = getattr(openblas, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


def _begin_anew() -> None:
    # A thread that holds a lock while its process is forked is not there to release it.
    global _shared
    limit, _shared = _shared.limit, _Shared()
    if limit is not None:
        _lift(limit)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, since results depend on the number of threads in the last bits.

    The limit holds for the whole process: the first thread that enters sets it, and the last that
    leaves restores it. The limit of OpenMP, which k-means uses, is separate for each thread.

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
    """Return a context in which no other thread compiles or calls compiled functions.

    Compiled functions own their memory, so two threads must not call one at once. Pools of threads,
    workers with several threads, and two runs in threads of one program would do so. Compilation
    temporarily changes PyTensor's configuration and the model's data.

    Examples
    --------
    >>> with one_call_at_a_time(), one_call_at_a_time():
    ...     pass
    """
    return _shared.call_lock


class OneAtATime:
    """Allow one call at a time on an object and refuse a second.

    Parameters
    ----------
    name : str
        Name of the call, for the message.

    Examples
    --------
    >>> alone = OneAtATime("OnlineEM.partial_fit")
    >>> with alone.call(), alone.call():
    ...     pass
    Traceback (most recent call last):
        ...
    RuntimeError: OnlineEM.partial_fit: it was called from within itself, by its source or a ...
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._at_work: dict[str, list[int]] = {}

    @contextmanager
    def call(self, *, within: bool = False) -> Iterator[None]:
        """Return a context in which no other call on the object is allowed.

        Parameters
        ----------
        within : bool
            Whether it may be part of a call that this thread makes.
        """
        # A single operation takes the lock and records its owner, so that it is never held without
        # a known owner. A generator releases it even if the call that ends it runs out of memory.
        own = [threading.get_ident()]
        try:
            first = self._at_work.setdefault("call", own)
            if first is not own and not (within and first == own):
                where = (
                    "it was called from within itself, by its source or a callback perhaps; let "
                    "the first call end"
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
        """Give a copy its own lock."""
        return OneAtATime, (self._name,)


class ThreadGuard:
    """Refuse work on one object in two threads; it belongs to the last that called `begin`.

    Parameters
    ----------
    name : str
        Name of the object, for the message.

    Notes
    -----
    There is no context manager, because it would slow down every draw of a chain.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._began_in: int | None = None
        self._at_work: int | None = None

    def begin(self) -> None:
        """Give the object to this thread; refuse if another one is at work with it."""
        self._began_in = self._here_unless(self._at_work)

    def enter(self) -> None:
        """Begin a piece of work, which `leave` ends; refuse if another thread has the object."""
        self._at_work = self._here_unless(self._began_in)

    def leave(self) -> None:
        """End a piece of work."""
        self._at_work = None

    def _here_unless(self, other: int | None) -> int:
        here = threading.get_ident()
        if other not in (None, here):
            raise RuntimeError(
                f"{self._name}: another thread is at work with the same object; make one for each "
                "thread."
            )
        return here

    def __reduce__(self) -> tuple[type[ThreadGuard], tuple[str]]:
        """Return a copy that belongs to no thread."""
        return ThreadGuard, (self._name,)
