"""Calls of one compiled object, made in this process or by the workers of an executor.

A worker is sent a function that makes the object; it makes the object once and keeps it. From then
on a call carries only its arguments. A worker without the object answers `Unknown`, because with
most executors the driver does not know how many workers there are or when one was restarted.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import pickle
import signal
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import one_blas_thread, one_call_at_a_time
from pymc_mcoem.interrupts import ignore_in_worker, raise_if_interrupted, with_retries
from pymc_mcoem.runs.failed_records import said
from pymc_mcoem.validation import is_number, is_whole

__all__ = [
    "Answers",
    "ExecutorError",
    "Failed",
    "Limit",
    "Order",
    "Parcel",
    "Unknown",
    "Workers",
    "begin_worker",
    "check_executor",
    "perform",
    "portable",
    "received",
]

#: Number of objects that a worker keeps, the last ones used.
CAPACITY = 16
#: Beginning of the note on an exception from a worker.
_IN_A_WORKER = "In a worker:\n"
#: Seconds within which a worker notices that its driver is gone.
WATCH_SECONDS = 2.0

_made: OrderedDict[str, Any] = OrderedDict()
#: Contents of parcels, by token, in workers of our own pools.
_known: dict[str, bytes] = {}
#: Calls made in this process: token of the object, and function.
_called: set[tuple[str, Callable[..., Any]]] = set()


@dataclass(frozen=True)
class Workers:
    """An executor with a time limit for each observation.

    Parameters
    ----------
    executor : concurrent.futures.Executor or int
        Processes of this or other machines; a number stands for a pool of as many.
    timeout : float
        Time limit in seconds. A worker that takes longer is ended, and another one gets the
        observation; if that one is lost too, the observation cannot be learned. A worker's first
        observation, for which it compiles, may take ten minutes longer; two minutes if `executor`
        is a number and another worker has answered before.

    Raises
    ------
    TypeError, ValueError
        If there is no executor, if it uses threads, which cannot be ended, or if the timeout is
        not positive.

    Notes
    -----
    A worker ends itself, even if compiled code hangs, but not if its machine has suspended it.
    Under MPI all processes end with it.

    Examples
    --------
    >>> Workers(8, timeout=60.0)
    Workers(executor=8, timeout=60.0)
    """

    executor: Executor | int
    timeout: float

    def __post_init__(self) -> None:
        """Check the values."""
        check_executor(self.executor)
        if self.executor is None or isinstance(self.executor, (ThreadPoolExecutor, Workers)):
            raise ValueError(
                f"executor: got {self.executor!r}; a timeout ends processes: give a number of "
                "them, or an executor that has some."
            )
        if not is_number(self.timeout) or not 0 < self.timeout < float("inf"):
            raise ValueError(f"timeout: got {self.timeout!r}; give a positive number of seconds.")


def check_executor(executor: Any) -> None:
    """Check that `executor` is None, an executor or a number of processes.

    Raises
    ------
    TypeError
        If it is something else.
    ValueError
        If it is a number below 1.

    Examples
    --------
    >>> check_executor(0)
    Traceback (most recent call last):
        ...
    ValueError: executor: got 0; give at least one process, or None to work in this one.
    """
    if executor is None or isinstance(executor, (Executor, Workers)):
        return
    if not is_whole(executor):
        raise TypeError(
            f"executor: got {executor!r}; give a concurrent.futures.Executor, as "
            "ProcessPoolExecutor(2) or Dask's client.get_executor(), a number of processes, or "
            "None."
        )
    if executor < 1:
        raise ValueError(
            f"executor: got {executor}; give at least one process, or None to work in this one."
        )


class ExecutorError(RuntimeError):
    """A failure of workers or of the executor that is not due to an observation."""


@dataclass(frozen=True)
class Order:
    """A call to be made: ``function(compiled, *arguments)``.

    Attributes
    ----------
    function : callable
        Defined at the top of a module, so that workers can import it.
    arguments : tuple
        Plain data: arrays, numbers, generators.
    size : int
        Number of observations, each of which has the time limit.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    size: int = 1

    def made_by(self, compiled: Any) -> Any:
        """Make the call, and repeat it if memory or a disk fails."""
        drawn_from = list(_generators(self.arguments))
        states = [each.bit_generator.state for each in drawn_from]

        def set_back() -> None:
            for each, state in zip(drawn_from, states, strict=True):
                each.bit_generator.state = state

        return with_retries(lambda: self.function(compiled, *self.arguments), set_back)


def _generators(arguments: tuple[Any, ...]) -> Iterator[np.random.Generator]:
    """Yield the generators among arguments, also of several calls in one."""
    for each in arguments:
        if isinstance(each, np.random.Generator):
            yield each
        elif isinstance(each, tuple):
            yield from _generators(each)


@dataclass(frozen=True)
class Parcel:
    """A pickled function with which workers make the object that is called.

    Attributes
    ----------
    content : bytes
        A function without arguments, pickled with everything it needs.
    token : str
        Identifies the object in workers.

    Examples
    --------
    >>> parcel = Parcel.of(lambda: [1, 2])
    >>> perform(parcel.token, parcel.content, [Order(len)]).found
    [2]
    >>> perform(parcel.token, None, [Order(sum), Order(max)]).found
    [3, 2]
    """

    content: bytes
    token: str

    @classmethod
    def of(cls, make: Callable[[], Any]) -> Parcel:
        """Pack a function that makes the object."""
        content = cloudpickle.dumps(make)
        return cls(content, hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class Limit:
    """Time limit of a call, after which its worker ends itself.

    Attributes
    ----------
    seconds : float
        For each observation of the call.
    first : float
        Additional seconds for a worker's first call of an object by a function, which compiles.
    driver : int
        Id of the driver's process, which never ends itself.
    """

    seconds: float
    first: float
    driver: int

    @contextmanager
    def enforced(self, token: str, order: Order) -> Iterator[None]:
        """End this process if the work inside the context takes longer.

        Compiled code that hangs holds Python's lock, for which a Python thread would wait.
        Therefore the system's alarm ends the process, if there is one.
        """
        if os.getpid() == self.driver:
            yield
            return
        known = (token, order.function) in _called
        seconds = order.size * self.seconds + (0.0 if known else self.first)
        alarm = getattr(signal, "SIGALRM", None)  # Windows has none
        if alarm is not None and signal.getsignal(alarm) is signal.SIG_DFL:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
        else:
            faulthandler.dump_traceback_later(seconds, exit=True)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
        _called.add((token, order.function))


@dataclass(frozen=True)
class Unknown:
    """A worker's answer if it does not have the object."""


@dataclass(frozen=True)
class Failed:
    """A worker's answer if the call raised an exception or the object could not be made."""

    error: Exception
    made: bool

    def __reduce__(self) -> tuple[Any, ...]:
        """Send an exception that can be sent."""
        return Failed, (portable(self.error), self.made)


@dataclass(frozen=True)
class Answers:
    """A worker's answers to several calls, and the id of its process."""

    process: int
    found: list[Any]


def perform(
    token: str, content: bytes | None, orders: Sequence[Order], limit: Limit | None = None
) -> Answers | Unknown:
    """Make calls in a worker.

    Parameters
    ----------
    token : str
        Token of the `Parcel`.
    content : bytes or None
        Content of the `Parcel`, if the worker may not have it yet.
    limit : Limit, optional
        Time limit of each call.

    Returns
    -------
    Answers or Unknown
        The result of each call, or `Failed` in its place. Answers end with the first call for
        which the object could not be made.
    """
    ignore_in_worker()
    # otherwise a worker forked during a call would write to its driver's terminal
    with telling(enabled=False), one_call_at_a_time(), one_blas_thread():
        content = _known.get(token) if content is None else content
        if token in _made:
            _made.move_to_end(token)
        elif content is None:
            return Unknown()
        answers = []
        for order in orders:
            with nullcontext() if limit is None else limit.enforced(token, order):
                answers.append(_answer(token, content, order))
            if token not in _made:  # the next call would fail in the same way
                break
        return Answers(os.getpid(), answers)


def _answer(token: str, content: bytes | None, order: Order) -> Any:
    """Return the result of a call, or `Failed`."""
    try:
        if token not in _made:
            assert content is not None
            _made[token] = cloudpickle.loads(content)()
            while len(_made) > CAPACITY:
                _made.popitem(last=False)
        return order.made_by(_made[token])
    except Exception as error:
        # an interrupt or the end of the program is not due to the call, whose answer is lost
        raise_if_interrupted(error)
        return Failed(portable(error), made=token in _made)


def begin_worker(driver: int, parcel: Parcel) -> None:
    """Initialize a worker of our own pool.

    The worker ends when its driver does, even if the driver is killed. It ignores Ctrl-C, which a
    terminal sends to all processes, and finishes its current call.

    Parameters
    ----------
    driver : int
        Id of the driver's process, the worker's parent.
    parcel : Parcel
        Parcel of the object to be called, which is made at the first call. It is not sent with the
        calls, because a driver that fills their pipe while a worker dies would wait forever.
    """
    _known[parcel.token] = parcel.content
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def received(answer: Any) -> Any:
    """Return the result of a call, or raise its exception.

    Raises
    ------
    ExecutorError
        If the worker could not make the object that is called.
    """
    if isinstance(answer, Failed):
        if answer.made:
            raise answer.error
        raise ExecutorError(
            f"executor: a worker could not compile what it is to run ({answer.error}); check that "
            "workers have the same versions installed, and what the family is made of."
        ) from answer.error
    return answer


def portable(error: Exception) -> Exception:
    """Return an exception that can be pickled, with its traceback in the worker as a note."""
    place = _IN_A_WORKER + "".join(traceback.format_exception(error))
    with suppress(Exception):
        if not any(note.startswith(_IN_A_WORKER) for note in getattr(error, "__notes__", ())):
            error.add_note(place)
    # Some exceptions cannot be unpickled, and raise anything when tried. Their text is then sent in
    # another exception.
    with suppress(Exception):
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    kind = FloatingPointError if isinstance(error, ArithmeticError) else RuntimeError
    sent = kind(f"{type(error).__name__}: {said(error)}")
    sent.add_note(place)
    return sent
