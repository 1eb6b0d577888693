"""Calls of one compiled object: made in this process, or by the workers of an executor.

A worker is sent how to make the object once, makes it, and keeps it. From then on a call carries
its arguments and nothing else. It is a worker that says what it lacks: the driver knows neither
how many there are nor when one was started anew, which holds for every kind of executor.
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
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import one_blas_thread, one_call_at_a_time
from pymc_mcoem.interrupts import ignore_in_worker, patiently, raise_if_interrupted
from pymc_mcoem.runs.failed_records import said

__all__ = [
    "Answers",
    "ExecutorError",
    "Failed",
    "Limit",
    "Order",
    "Parcel",
    "Unknown",
    "begin_worker",
    "perform",
    "received",
]

#: Objects that a worker keeps: of a mixture for each digit, say, the last ones used.
CAPACITY = 16
#: Seconds after which a worker notices at the latest that its driver is gone.
WATCH_SECONDS = 2.0

_made: OrderedDict[str, Any] = OrderedDict()
#: How objects are made, by token, in workers of pools of our own.
_known: dict[str, bytes] = {}
#: Objects that have been called here.
_called: set[str] = set()


class ExecutorError(RuntimeError):
    """Workers, or the executor, fail by no fault of an observation."""


@dataclass(frozen=True)
class Order:
    """A call to be made: ``function(compiled, *arguments)``.

    Attributes
    ----------
    function : callable
        Defined at the top of a module, so that workers can import it.
    arguments : tuple
        Plain data: arrays, numbers, generators.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def made_by(self, compiled: Any) -> Any:
        """Make the call, and make it again where memory or a disk fails it."""
        drawn_from = [each for each in self.arguments if isinstance(each, np.random.Generator)]
        states = [each.bit_generator.state for each in drawn_from]

        def set_back() -> None:
            for each, state in zip(drawn_from, states, strict=True):
                each.bit_generator.state = state

        return patiently(lambda: self.function(compiled, *self.arguments), set_back)


@dataclass(frozen=True)
class Parcel:
    """How a worker makes the object that calls are for.

    Attributes
    ----------
    content : bytes
        A function without arguments, pickled with what it needs.
    token : str
        What workers know the object by.

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
    """How long a call may take before its worker ends itself.

    Attributes
    ----------
    seconds : float
    first : float
        More for a worker's first call of an object, which compiles.
    driver : int
        Number of the driver's process, which never ends itself.
    """

    seconds: float
    first: float
    driver: int

    @contextmanager
    def kept(self, token: str) -> Iterator[None]:
        """End this process if what is done inside takes longer.

        What hangs in compiled code holds Python's lock, which a thread of Python's would wait for:
        the system's own alarm ends the process, where there is one.
        """
        if os.getpid() == self.driver:
            yield
            return
        seconds = self.seconds + (0.0 if token in _called else self.first)
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
        _called.add(token)


@dataclass(frozen=True)
class Unknown:
    """A worker's answer when it does not have the object."""


@dataclass(frozen=True)
class Failed:
    """A worker's answer when the call raised an exception, or the object could not be made."""

    error: Exception
    made: bool


@dataclass(frozen=True)
class Answers:
    """What a worker returns of several calls, and the number of its process."""

    process: int
    found: list[Any]


def perform(
    token: str, content: bytes | None, orders: Sequence[Order], limit: Limit | None = None
) -> Answers | Unknown:
    """Make calls in a worker.

    Parameters
    ----------
    token : str
        Of the `Parcel`.
    content : bytes or None
        Of the `Parcel`, where the worker may not have it yet.
    orders : sequence of Order
    limit : Limit, optional
        Of each call.

    Returns
    -------
    Answers or Unknown
        What each call returned, or `Failed` in its place; nothing after one that failed because
        the object could not be made.
    """
    ignore_in_worker()
    # a worker that was forked in the middle of a call would write to its driver's terminal
    with telling(enabled=False), one_call_at_a_time(), one_blas_thread():
        content = _known.get(token) if content is None else content
        if token in _made:
            _made.move_to_end(token)
        elif content is None:
            return Unknown()
        answers = []
        for order in orders:
            with nullcontext() if limit is None else limit.kept(token):
                answers.append(_answer(token, content, order))
            if token not in _made:  # nor will it be for the next one
                break
        return Answers(os.getpid(), answers)


def _answer(token: str, content: bytes | None, order: Order) -> Any:
    """Return what a call returned, or `Failed`."""
    try:
        if token not in _made:
            assert content is not None
            _made[token] = cloudpickle.loads(content)()
            while len(_made) > CAPACITY:
                _made.popitem(last=False)
        return order.made_by(_made[token])
    except Exception as error:
        # of an interrupt, or the end of the program, no call is at fault, and its answer is lost
        raise_if_interrupted(error)
        return Failed(_portable(error), made=token in _made)


def begin_worker(driver: int, parcel: Parcel) -> None:
    """Begin as a worker of a pool of our own.

    It ends when its driver does, also one that was killed and said nothing. Ctrl-C is the driver's
    affair: a terminal sends it to all processes, and a worker finishes what it is at.

    Parameters
    ----------
    driver : int
        Number of the driver's process, the worker's parent.
    parcel : Parcel
        Of the object that calls will be for, which is made with the first of them. It does not
        go the way of the calls: whoever fills that as a worker dies waits for ever.
    """
    _known[parcel.token] = parcel.content
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def received(answer: Any) -> Any:
    """Return what a call returned, or raise what it raised.

    Parameters
    ----------
    answer : object
        Of `perform`.

    Raises
    ------
    ExecutorError
        If the worker could not make the object that the call is for.
    """
    if isinstance(answer, Failed):
        if answer.made:
            raise answer.error
        raise ExecutorError(
            f"executor: a worker could not compile what it is to run ({answer.error}); see that "
            "workers have the same versions installed, and what the family is made of."
        ) from answer.error
    return answer


def _portable(error: Exception) -> Exception:
    """Return an exception that can be sent and read, with the place where it arose."""
    place = "In a worker:\n" + "".join(traceback.format_exception(error))
    with suppress(Exception):
        error.add_note(place)
    # Some exceptions are sent and cannot be made again from what was sent; whatever that raises,
    # their text is sent in another's place.
    with suppress(Exception):
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    kind = FloatingPointError if isinstance(error, ArithmeticError) else RuntimeError
    sent = kind(f"{type(error).__name__}: {said(error)}")
    sent.add_note(place)
    return sent
