"""What a first call compiles, compiled by two processes where that takes long.

numba compiles a function when it is first called, on one core, and keeps the result on disk. So
while this process compiles the first part of an E-step, another one can compile the rest, which
this one then finds on disk. Compiling two parts of one thing in two threads would gain nothing:
numba compiles one function at a time.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import IO, Protocol, runtime_checkable

import cloudpickle
import numpy as np
import pytensor

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


@runtime_checkable
class InTwoParts(Protocol):
    """Something compiled that can be made to compile one part of it, and the other."""

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
    `WORTH` seconds; else it is ended. It needs a second core, as much memory as this process, and a
    compiler that keeps its work on disk (``pytensor.config.numba__cache``). What goes wrong in
    either is passed over: the call itself compiles what is missing, and says what is wrong.
    """
    if _cores() < 2 or not pytensor.config.numba__cache or not sys.executable:
        return
    helper = _Helper(make, data, parameters)
    began = perf_counter()
    helper.start_after(PATIENCE)
    try:
        with suppress(Exception):
            parts.compile_first(data, parameters)
        if perf_counter() - began > WORTH:
            helper.wait()
    finally:
        helper.end()


class _Helper:
    """A process that compiles the rest; it is started late, or not at all."""

    def __init__(self, make: Callable[[], HasTwoParts], data: Arrays, parameters: Arrays) -> None:
        self._sent = make, dict(data), dict(parameters)
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None

    def start_after(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._start)
        self._timer.daemon = True
        self._timer.start()

    def _start(self) -> None:
        flags = {name: getattr(pytensor.config, name) for name in FLAGS}
        with suppress(Exception):  # what cannot be sent is compiled here
            content = cloudpickle.dumps((os.getpid(), flags, *self._sent))
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            assert self._process.stdin is not None
            with self._process.stdin as sink:
                sink.write(pickle.dumps(sys.path) + content)

    def wait(self) -> None:
        """Wait until it has done what it can, if it was started."""
        self._decide()
        if self._process is not None:
            self._process.wait()

    def end(self) -> None:
        """Leave nothing of it behind."""
        self._decide()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _decide(self) -> None:
        """See that it is started by now or never will be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None


def lend_a_hand(source: IO[bytes]) -> None:
    """Do, in the second process, what the first one asks for.

    Parameters
    ----------
    source : binary file
        Gives the pickled number of the asking process, PyTensor's settings, how to make the
        compiled object, and the arguments of its first call.
    """
    driver, flags, make, data, parameters = pickle.load(source)
    leave_with(driver)
    with pytensor.config.change_flags(**flags), one_blas_thread():
        parts = make().two_parts
        assert parts is not None
        parts.compile_rest(data, parameters)


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
