"""Failures that are not due to a record: Ctrl-C, the end of a program, memory, disks, networks.

An exception that a signal handler raises inside compiled code surfaces as a `SystemError`, with
the original one among its causes. So the type of an exception does not show its cause.
"""

from __future__ import annotations

import errno
import importlib
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from time import sleep
from types import FrameType
from typing import Any

__all__ = [
    "Interrupts",
    "as_interrupts",
    "deferred",
    "ignore_in_worker",
    "import_whole",
    "raise_if_interrupted",
    "require_own_fault",
    "require_readable",
    "was_interrupted",
    "with_retries",
]

#: Seconds to wait before a call that failed by memory or a disk is tried again.
WAITS = (0.02, 0.2)
#: File errors for which another try is useless.
LASTING = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
#: Reading errors that are due to the machine or the network, not to the record.
ELSEWHERE = frozenset(
    getattr(errno, name)
    for name in (
        "EAGAIN EBUSY EDQUOT EHOSTDOWN EHOSTUNREACH EINTR EMFILE ENETDOWN ENETRESET ENETUNREACH "
        "ENFILE ENOBUFS ENOMEM ENOSPC ENOTCONN ESTALE ETIMEDOUT"
    ).split()
    if hasattr(errno, name)
)


def _stop_behind(error: BaseException) -> BaseException | None:
    """Return the exception behind `error` that was meant to end the program, if there is one.

    Causes are followed, and the context of a `SystemError`, which PyTensor raises again to add to
    its text. Other contexts are not followed, because every error within an
    ``except KeyboardInterrupt`` has the interrupt as its context.
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if not isinstance(at, Exception):
            return at
        seen.add(id(at))
        at = at.__cause__ or (at.__context__ if isinstance(at, SystemError) else None)
    return None


def raise_if_interrupted(error: BaseException | None = None) -> None:
    """Raise the exception that was meant to end the program, if `error` comes from one.

    Parameters
    ----------
    error : BaseException, optional
        The caught exception. By default, only an interrupt that `deferred` has let through counts.

    Raises
    ------
    KeyboardInterrupt, SystemExit
        The exception behind `error`. After an interrupt was let through, every failure is due to
        it, and results that look complete may not be.

    Examples
    --------
    >>> try:
    ...     try:
    ...         raise SystemExit(3)
    ...     except SystemExit as leaving:
    ...         raise SystemError("CPUDispatcher(...) returned a result") from leaving
    ... except SystemError as error:
    ...     raise_if_interrupted(error)
    Traceback (most recent call last):
        ...
    SystemExit: 3
    """
    stop = None if error is None else _stop_behind(error)
    if isinstance(stop, SystemExit):
        raise SystemExit(stop.code) from error
    if stop is not None and not isinstance(stop, KeyboardInterrupt):
        raise stop
    if stop is not None or was_interrupted():
        raise KeyboardInterrupt from error


def _may_pass(error: Exception) -> bool:
    """Return whether the same call may succeed when it is repeated."""
    return isinstance(error, (MemoryError, OSError)) and not isinstance(error, LASTING)


def require_own_fault(error: Exception) -> None:
    """Raise `error` unless it is due to the record of a computation.

    Raises
    ------
    KeyboardInterrupt, SystemExit
        As by `raise_if_interrupted`.
    MemoryError, OSError
        The exception itself, if it is due to memory, a disk or a network.
    """
    raise_if_interrupted(error)
    if _may_pass(error):
        raise error


def require_readable(error: Exception) -> None:
    """Raise `error` unless it is due to the record that was read, such as one on a bad sector.

    Raises
    ------
    KeyboardInterrupt, SystemExit
        As by `raise_if_interrupted`.
    MemoryError, OSError
        The exception itself, if it is due to memory or to an unreachable machine or network.
    """
    raise_if_interrupted(error)
    if any(map(_is_elsewhere, _inner_errors(error))):
        raise error


def _is_elsewhere(error: BaseException) -> bool:
    gone = (MemoryError, ConnectionError, TimeoutError, socket.gaierror)
    return isinstance(error, gone) or (isinstance(error, OSError) and error.errno in ELSEWHERE)


def _inner_errors(error: BaseException) -> list[BaseException]:
    """Return an exception and, for an OSError of a network client without a number, those inside.

    `urllib.error.URLError` has the inner exception as its reason; with requests, it is the cause
    or context. Other exceptions are not followed, because every error within an ``except`` has
    that one as its context.
    """
    found, waiting = [], [error]
    while waiting:
        at = waiting.pop()
        found.append(at)
        if isinstance(error, OSError) and error.errno is None:
            inner = (getattr(at, "reason", None), at.__cause__, at.__context__)
            waiting += [
                each for each in inner if isinstance(each, BaseException) and each not in found
            ]
    return found


def with_retries[Found](
    call: Callable[[], Found], again: Callable[[], Any] = lambda: None
) -> Found:
    """Make a call, and repeat it up to twice if memory, a disk or a network fails.

    Parameters
    ----------
    call : callable
    again : callable
        Called before each repetition.

    Examples
    --------
    >>> answers = iter([OSError(5, "Input/output error"), "read"])
    >>> def read():
    ...     found = next(answers)
    ...     if isinstance(found, Exception):
    ...         raise found
    ...     return found
    >>> with_retries(read)
    'read'
    """
    for seconds in WAITS:
        try:
            return call()
        except Exception as error:
            raise_if_interrupted(error)
            if not _may_pass(error):
                raise
        sleep(seconds)
        again()
    return call()


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Let exceptions that end the program inside compiled code surface as themselves.

    Examples
    --------
    >>> with as_interrupts():
    ...     raise SystemError from SystemExit(3)
    Traceback (most recent call last):
        ...
    SystemExit: 3
    """
    try:
        yield
    except Exception as error:
        raise_if_interrupted(error)
        raise


class Interrupts:
    """Defers a signal in the main thread and passes it to its handler later; see `deferred`."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any], unit: str) -> None:
        self.handler = handler
        self.let_through = False
        self._pid = os.getpid()
        self._unit = unit
        self._pending = False
        self._given = False

    @classmethod
    def active(cls) -> Interrupts | None:
        """Return the active instance, if this is the main thread of the process it began in."""
        if threading.current_thread() is threading.main_thread():
            found = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
            if isinstance(found, cls) and found._pid == os.getpid():
                return found
        return None

    @property
    def is_pending(self) -> bool:
        """Whether a deferred signal waits."""
        return self._pending

    def between(self) -> None:
        """Pass a deferred signal to its handler, at a place where the work can stop."""
        if not self._pending:
            return
        self._pending, self._given = False, True
        try:
            self.handler(signal.SIGINT, None)
        except KeyboardInterrupt as stop:
            stop.args = stop.args or (f"stopped between two {self._unit}",)
            raise

    def note(self, number: int, frame: FrameType | None) -> None:
        """Defer the first signal; let the second one through at once."""
        if not (self._pending or self._given):
            self._pending = True
            return
        try:
            # the handler may wait for a second signal, as this one does
            if self._pending:
                self._pending, self._given = False, True
                self.handler(number, frame)
            self.handler(number, frame)
        except BaseException:
            self.let_through = True
            raise


class _Nothing:
    """Stands in for `Interrupts` where no signal is deferred, or an outer context defers it."""

    def between(self) -> None:
        """Do nothing."""


@contextmanager
def deferred(unit: str = "steps") -> Iterator[Interrupts | _Nothing]:
    """Defer Ctrl-C until the work reaches a place where it can stop.

    Parameters
    ----------
    unit : str
        Name of the units between which the work stops, for the message.

    Notes
    -----
    In the main thread the first signal is deferred. The previous handler, usually Python's, gets
    it when the work calls `between` or when the context ends. A second signal goes to the handler
    at once. In other threads and inside another such context, signals are not changed. Exceptions
    that end the program inside compiled code leave the context as themselves. Enter this context
    before others: a signal could keep an outer one from releasing a lock or a file.

    Examples
    --------
    >>> with deferred() as interrupts:
    ...     for _ in range(3):
    ...         interrupts.between()
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and callable(handler)) or Interrupts.active() is not None:
        with as_interrupts():
            yield _Nothing()
        return
    interrupts = Interrupts(handler, unit)
    try:
        try:
            signal.signal(signal.SIGINT, interrupts.note)
            with as_interrupts():
                yield interrupts
        finally:
            # unless another handler was set meanwhile
            if signal.getsignal(signal.SIGINT) == interrupts.note:
                signal.signal(signal.SIGINT, handler)
    except Exception:
        # a deferred signal is neither lost nor hidden by an error
        interrupts.between()
        raise
    interrupts.between()


def was_interrupted(*, or_will_be: bool = False) -> bool:
    """Return whether an interrupt was let through during the work.

    Parameters
    ----------
    or_will_be : bool
        Whether a deferred one counts too.
    """
    active = Interrupts.active()
    return active is not None and (active.let_through or (or_will_be and active.is_pending))


def ignore_in_worker() -> None:
    """Ignore Ctrl-C in a process of a pool, and leave it to the driver.

    A terminal sends it to all processes. A worker finishes its current call. A handler that the
    user has set stays.
    """
    if multiprocessing.parent_process() is None:
        return
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    ours = str(getattr(handler, "__module__", "")).startswith(__name__.partition(".")[0])
    if handler is signal.default_int_handler or ours:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@cache
def import_whole(name: str) -> None:
    """Import a module so that Ctrl-C may end the call, but not the import.

    A compiled module whose import was interrupted may fail for as long as the process lives, as
    h5py does. Python handles signals in the main thread only, so the import is made in another.

    Parameters
    ----------
    name : str

    Examples
    --------
    >>> import_whole("string")
    """
    with ThreadPoolExecutor(1, "import") as importer:
        importer.submit(importlib.import_module, name).result()
