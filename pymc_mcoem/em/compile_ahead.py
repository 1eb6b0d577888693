"""What a first call compiles, compiled by two processes where that takes long.

numba compiles a function when it is first called, on one core, and keeps the result on disk. So
while this process compiles the first part of an E-step, another one can compile the rest, which
this one then finds on disk. Compiling two parts of one thing in two threads would gain nothing:
numba compiles one function at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import IO, Any, Protocol, runtime_checkable
from weakref import WeakSet

import cloudpickle
import numpy as np
import pytensor

from pymc_mcoem.backends import backend_of
from pymc_mcoem.em.threads import one_blas_thread
from pymc_mcoem.em.workers import leave_with

__all__ = ["HasTwoParts", "InTwoParts", "compile_ahead", "lend_a_hand"]

type Arrays = Mapping[str, np.ndarray]

#: Seconds until a second process is started; what lies on disk is loaded in less.
PATIENCE = 0.75
#: Seconds of the first part below which the second process, which takes some five until it begins
#: to compile, is not waited for.
WORTH = 12.0
#: PyTensor's settings on which compiled code depends and that may be others here than by default.
FLAGS = ("mode", "linker", "floatX")
_PROGRAM = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from pymc_mcoem.em.compile_ahead import lend_a_hand; lend_a_hand(sys.stdin.buffer)"
)

_compiled: WeakSet[Any] = WeakSet()
_is_helper = False


@runtime_checkable
class InTwoParts(Protocol):
    """Something compiled that can be made to compile one part of it, and the other.

    Attributes
    ----------
    mode : str or None
        PyTensor's mode that it was compiled with.
    """

    @property
    def mode(self) -> str | None:
        """PyTensor's mode."""
        ...

    def compile_first(self, data: Arrays, parameters: Arrays) -> None:
        """Make every call of the first part that a call for an observation makes."""
        ...

    def compile_rest(self, data: Arrays, parameters: Arrays) -> None:
        """Make every call of the rest, without calling the first part."""
        ...


class HasTwoParts(Protocol):
    """Something compiled that may be in two parts."""

    @property
    def two_parts(self) -> InTwoParts | None:
        """What can be compiled in two parts, if anything."""
        ...


def compile_ahead(
    make: Callable[[], HasTwoParts], parts: InTwoParts, data: Arrays, parameters: Arrays
) -> None:
    """Let a first call find all that it needs compiled.

    Parameters
    ----------
    make : callable
        Makes what has such parts, in a process of its own; it is pickled.
    parts : InTwoParts
        Made here, and not called yet.
    data, parameters : mapping of str to ndarray
        What the first call will be given.

    Notes
    -----
    The second process is started after `PATIENCE` seconds, and waited for if the first part took
    `WORTH` seconds, no longer than that took; else it is ended. It takes a second core and as much
    memory as this process. There is none in workers of a pool, which all compile the same, nor
    where numba keeps nothing on disk: ``pytensor.config.numba__cache = False`` switches it off.
    What goes wrong in either is passed over: the call itself compiles what is missing, and says
    what is wrong.
    """
    if _is_helper:
        # what is sent by reference is imported there, with all that its module does
        os._exit(1)
    if _is_known(parts) or not _may_help(parts):
        return
    helper = _Helper(make, data, parameters)
    began = perf_counter()
    try:
        helper.start_after(PATIENCE)
        with suppress(Exception):
            parts.compile_first(data, parameters)
        taken = perf_counter() - began
        if taken > WORTH:
            helper.wait(taken)
    finally:
        helper.end()
    with suppress(TypeError):  # not to be hashed: it is looked at again next time
        _compiled.add(parts)


def _is_known(parts: InTwoParts) -> bool:
    """Say whether this was compiled before."""
    try:
        return parts in _compiled
    except TypeError:
        return False


def _may_help(parts: InTwoParts) -> bool:
    """Say whether a second process could compile anything for this one."""
    return (
        pytensor.config.numba__cache
        and backend_of(parts.mode) == "numba"
        and bool(sys.executable)
        and not getattr(sys, "frozen", False)
        and multiprocessing.parent_process() is None
        and cpu_count() > 1
    )


class _Helper:
    """A process that compiles the rest; it is started late, or not at all."""

    def __init__(self, make: Callable[[], HasTwoParts], data: Arrays, parameters: Arrays) -> None:
        flags = {name: getattr(pytensor.config, name) for name in FLAGS}
        self._content: bytes | None = None
        with suppress(Exception):  # what cannot be sent is compiled here
            # not by the timer's thread: it would wait for locks that this one holds
            sent = cloudpickle.dumps((make, dict(data), dict(parameters)))
            self._content = pickle.dumps(sys.path) + pickle.dumps((os.getpid(), flags)) + sent
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._ended = False

    def start_after(self, seconds: float) -> None:
        """Start the process then, unless it is ended before."""
        if self._content is None:
            return
        timer = threading.Timer(seconds, self._start)
        timer.daemon = True
        with suppress(RuntimeError):  # no more threads may be had
            timer.start()
            self._timer = timer

    def _start(self) -> None:
        with self._lock:
            if self._ended:
                return
            with suppress(OSError):
                self._process = subprocess.Popen(
                    [sys.executable, "-W", "ignore", "-c", _PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        process, content = self._process, self._content
        if process is not None and process.stdin is not None and content is not None:
            with suppress(OSError), process.stdin as sink:
                sink.write(content)

    def wait(self, seconds: float) -> None:
        """Wait until it has done what it can, if it was started, and no longer than so many."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)

    def end(self) -> None:
        """Leave nothing of it behind."""
        with self._lock:
            self._ended = True
            process = self._process
        if self._timer is not None:
            self._timer.cancel()
        if process is not None:
            process.kill()
            process.wait()
        if self._timer is not None:
            # it may still have been writing to the process
            self._timer.join()


def lend_a_hand(source: IO[bytes]) -> None:
    """Do, in the second process, what the first one asks for.

    Parameters
    ----------
    source : binary file
        Gives, pickled, the number of the asking process and PyTensor's settings, then how to make
        the compiled object and the arguments of its first call.
    """
    global _is_helper
    _is_helper = True
    driver, flags = pickle.load(source)
    # The parent may be a launcher of this Python; or, by now, whoever takes care of orphans.
    leave_with(os.getppid())
    if os.name == "posix":
        os.kill(driver, 0)  # an error if it is gone, which ends this one too
    make, data, parameters = pickle.load(source)
    with pytensor.config.change_flags(**flags), one_blas_thread():
        parts = make().two_parts
        assert parts is not None
        parts.compile_rest(data, parameters)


def cpu_count() -> int:
    """Return how many cores this process may use."""
    from joblib import cpu_count as counted  # a tenth of a second, which is not spent on import

    return int(counted())
