"""What fails by no fault of a record: Ctrl-C, the end of a program, memory, disks and networks.

An exception that a signal handler raises inside compiled code comes up as a `SystemError`, with
what was raised some causes above it. So the kind of an exception does not say whose fault it is.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from types import FrameType
from typing import Any

__all__ = [
    "Interrupts",
    "as_interrupts",
    "deferred",
    "ignore_in_worker",
    "patiently",
    "raise_if_interrupted",
    "require_own_fault",
    "require_readable",
    "was_interrupted",
]

#: Seconds to wait before what failed by memory or a disk is tried again.
WAITS = (0.02, 0.2)
#: Errors of a file that another try does not change.
LASTING = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
#: Errors of reading that say nothing about what is read: the machine, or the way to another one.
ELSEWHERE = frozenset(
    getattr(errno, name)
    for name in (
        "EAGAIN EBUSY EDQUOT EHOSTDOWN EHOSTUNREACH EINTR EMFILE ENETDOWN ENETRESET ENETUNREACH "
        "ENFILE ENOBUFS ENOMEM ENOSPC ENOTCONN ESTALE ETIMEDOUT"
    ).split()
    if hasattr(errno, name)
)


def _stop_behind(error: BaseException) -> BaseException | None:
    """Return the exception that was to end the program and came up as another.

    Causes are followed, and of a `SystemError` also what was at work when it arose: PyTensor
    raises it anew to add to its text. Other contexts are not, for whoever calls from within an
    ``except KeyboardInterrupt`` has that one behind every error.
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
    """Raise what was to end the program, if that is what an exception comes from.

    Parameters
    ----------
    error : BaseException, optional
        What was caught. Not given: only an interrupt that `deferred` has let through counts.

    Raises
    ------
    KeyboardInterrupt, SystemExit
        What is behind it. After an interrupt was let through every failure is its doing, and so
        may be what seems to have come out well.

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
    """Say whether the same call may succeed when it is made again."""
    return isinstance(error, (MemoryError, OSError)) and not isinstance(error, LASTING)


def require_own_fault(error: Exception) -> None:
    """Raise what is no fault of the record that was computed with.

    Raises
    ------
    KeyboardInterrupt, SystemExit
        As `raise_if_interrupted`.
    MemoryError, OSError
        The exception itself, if it is of memory, a disk or a network.
    """
    raise_if_interrupted(error)
    if _may_pass(error):
        raise error


def require_readable(error: Exception) -> None:
    """Raise what is no fault of the record that was read; one on a bad sector is at fault.

    Raises
    ------
    KeyboardInterrupt, SystemExit
        As `raise_if_interrupted`.
    MemoryError, OSError
        The exception itself, if it is of memory, or of a machine or network that is not there.
    """
    raise_if_interrupted(error)
    if any(map(_is_elsewhere, _beneath(error))):
        raise error


def _is_elsewhere(error: BaseException) -> bool:
    gone = (MemoryError, ConnectionError, TimeoutError, socket.gaierror)
    return isinstance(error, gone) or (isinstance(error, OSError) and error.errno in ELSEWHERE)


def _beneath(error: BaseException) -> list[BaseException]:
    """Return an exception, and those within one of a client of the network, which has no number.

    `urllib.error.URLError` has it as its reason, that of requests in what it was raised from. Of
    other kinds nothing is followed: who reads within an ``except`` has that error behind all.
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


def patiently[Found](call: Callable[[], Found], again: Callable[[], Any] = lambda: None) -> Found:
    """Make a call, and make it again twice where memory, a disk or a network fails it.

    Parameters
    ----------
    call : callable
    again : callable
        Called before another try.

    Examples
    --------
    >>> answers = iter([OSError(5, "Input/output error"), "read"])
    >>> def read():
    ...     found = next(answers)
    ...     if isinstance(found, Exception):
    ...         raise found
    ...     return found
    >>> patiently(read)
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
    """Let what ends the program inside compiled code come up as itself.

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
    """A signal that is kept back in the main thread, and whom it is given to; see `deferred`."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any], unit: str) -> None:
        self.handler = handler
        self.let_through = False
        self._pid = os.getpid()
        self._unit = unit
        self._kept = False
        self._given = False

    @classmethod
    def active(cls) -> Interrupts | None:
        """Return what keeps signals back here: in the main thread of the process it began in."""
        if threading.current_thread() is threading.main_thread():
            found = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
            if isinstance(found, cls) and found._pid == os.getpid():
                return found
        return None

    @property
    def is_kept(self) -> bool:
        """Whether a signal waits."""
        return self._kept

    def between(self) -> None:
        """Let a signal that was kept do what it does, at a place where the work can stop."""
        if not self._kept:
            return
        self._kept, self._given = False, True
        try:
            self.handler(signal.SIGINT, None)
        except KeyboardInterrupt as stop:
            stop.args = stop.args or (f"stopped between two {self._unit}",)
            raise

    def note(self, number: int, frame: FrameType | None) -> None:
        """Keep the first signal; let the second one through at once."""
        if not (self._kept or self._given):
            self._kept = True
            return
        try:
            # that handler may wait for a second one, as this one does
            if self._kept:
                self._kept, self._given = False, True
                self.handler(number, frame)
            self.handler(number, frame)
        except BaseException:
            self.let_through = True
            raise


class _Nothing:
    """Nothing is kept back here, or by a context further up."""

    def between(self) -> None:
        """Do nothing."""


@contextmanager
def deferred(unit: str = "steps") -> Iterator[Interrupts | _Nothing]:
    """Keep Ctrl-C back until the work comes to a place where it can stop.

    Parameters
    ----------
    unit : str
        What it stops between, for the message.

    Notes
    -----
    In the main thread the first signal is kept, and given to the handler that was there, Python's
    own mostly, when the work calls `between`, or when the context ends. A second one is given to
    it at once. Elsewhere, and inside another such context, nothing is done about signals. What
    ends the program inside compiled code leaves the context as itself. The context comes first:
    what others before it would hold, a lock or a file, a signal could keep them from letting go.

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
    kept = Interrupts(handler, unit)
    try:
        try:
            signal.signal(signal.SIGINT, kept.note)
            with as_interrupts():
                yield kept
        finally:
            # unless another took its place meanwhile
            if signal.getsignal(signal.SIGINT) == kept.note:
                signal.signal(signal.SIGINT, handler)
    except Exception:
        # one that was kept is not lost, nor hidden behind an error
        kept.between()
        raise
    kept.between()


def was_interrupted(*, or_will_be: bool = False) -> bool:
    """Say whether an interrupt was let through here, in mid-work.

    Parameters
    ----------
    or_will_be : bool
        Whether one that is kept back counts too.
    """
    active = Interrupts.active()
    return active is not None and (active.let_through or (or_will_be and active.is_kept))


def ignore_in_worker() -> None:
    """Leave Ctrl-C to the driver, in a process of a pool.

    A terminal sends it to all processes. A worker finishes what it is at; a handler that its
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
