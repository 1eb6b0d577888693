"""Dispatch of a run's calls to this process or to the workers of an executor."""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager, nullcontext
from functools import cached_property
from itertools import islice
from typing import Any

from pymc_mcoem.compiling.messages import compiling
from pymc_mcoem.compiling.threads import one_call_at_a_time
from pymc_mcoem.interrupts import raise_if_interrupted, was_interrupted
from pymc_mcoem.runs.workers import (
    ExecutorError,
    Limit,
    Order,
    Parcel,
    Unknown,
    Workers,
    begin_worker,
    check_executor,
    perform,
    received,
)

__all__ = ["Dispatcher", "WorkerLost"]

_log = logging.getLogger("pymc_mcoem")

#: Largest number of unanswered calls submitted to an executor, and of calls read ahead.
WINDOW = 256
#: Largest number of calls sent to a worker at once, and smallest number of groups per worker.
TOGETHER, GROUPS = 8, 16
#: Seconds between checks that a Dask client still has its scheduler.
ALIVE = 5.0
#: Seconds after which idle workers of our own pool exit.
IDLE = 300
#: Seconds that the first call of a worker may take beyond the timeout, because it compiles.
FIRST = 600.0
#: The same for a worker of our own pool after another one has answered: what that one compiled is
#: on the disk, but not what JAX compiles.
LATER = 120.0
#: Largest numbers of losses after which a call is still sent with others, and is still sent:
#: without a time limit, and with one, since each loss may have taken all of that time.
LOSSES, SLOW_LOSSES = (2, 4), (0, 1)


class WorkerLost(RuntimeError):
    """A call whose worker died or hung each time."""


class _CallLost(Exception):
    """A call whose worker died, in an executor that still works."""


class Dispatcher:
    """Makes calls of one compiled object and yields the answers in order.

    Parameters
    ----------
    make : callable
        Makes the object; called once in each process that runs calls.
    executor : concurrent.futures.Executor, int, Workers or None
        Executor of the calls. A number stands for a pool of as many processes, which is started
        at the first call, and again when it breaks. None: this process.

    Notes
    -----
    A worker that dies breaks a standard pool. Unanswered calls are then sent to a new pool of the
    same size or, if an executor was given, of as many processes as have answered. The answers are
    the same, since a call carries everything that it depends on.
    A call that was lost three times is sent alone; after five times it raises `WorkerLost`. With
    the timeout of `Workers`, it is sent alone after one loss, and raises it after two.

    Examples
    --------
    >>> dispatcher = Dispatcher(lambda: 10)
    >>> list(dispatcher.answers(Order(pow, (exponent,)) for exponent in range(3)))
    [1, 10, 100]
    """

    def __init__(
        self, make: Callable[[], Any], executor: Executor | int | Workers | None = None
    ) -> None:
        check_executor(executor)
        self._timeout: float | None = None
        if isinstance(executor, Workers):
            self._timeout = float(executor.timeout)
            executor = executor.executor
        self._make = make
        self._size = None if executor is None or isinstance(executor, Executor) else int(executor)
        self._executor = executor if isinstance(executor, Executor) else None
        self._answered = False
        #: Ids of the processes that have answered.
        self._processes: set[int] = set()
        self._end_pool: Callable[[], Any] | None = None
        self._ends_pool = False

    @property
    def is_remote(self) -> bool:
        """Whether calls run in workers and not in this process."""
        return self._executor is not None or self._size is not None

    @property
    def has_timeout(self) -> bool:
        """Whether workers are ended that take too long."""
        return self._timeout is not None

    @cached_property
    def compiled(self) -> Any:
        """The object, made in this process at its first use."""
        return self._make()

    @cached_property
    def _parcel(self) -> Parcel:
        return Parcel.of(self._make)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle; a copy compiles, and starts workers, when it needs them."""
        if self._executor is not None and self._end_pool is None:
            raise TypeError(
                f"executor: got {self._executor!r}, which cannot be pickled or copied; save the "
                "run, which can be loaded with another executor, or give a number of processes."
            )
        made = ("compiled", "_parcel")
        state = {name: value for name, value in vars(self).items() if name not in made}
        return state | {"_executor": None, "_end_pool": None, "_answered": False}

    def prepare(self) -> None:
        """Make the object here, or the parcel that workers are sent, before the first call.

        Errors are then raised before any observation counts.
        """
        _ = self._parcel if self.is_remote else self.compiled

    def answers(
        self, orders: Iterable[Order], window: int = WINDOW, total: int | None = None
    ) -> Iterator[Any]:
        """Make calls and yield what they return, in order.

        Parameters
        ----------
        orders : iterable of Order
            Consumed as calls are submitted.
        window : int
            Largest number of unanswered calls.
        total : int, optional
            Number of calls. Give it for calls that take at most a few times the millisecond that
            an executor needs to send one. If the pool is our own, so that its size is known, and
            there are several groups for each worker, several calls are then sent at once. After
            losses calls are sent one by one.

        Raises
        ------
        Exception
            The exception of a call, in its turn; calls after it are dropped.
        WorkerLost
            If a call kills each of its workers.
        ExecutorError
            If the executor accepts no work, or its workers cannot make the object or send an
            answer; answers to be sent with it are lost.
        """
        if not self.is_remote:
            for order in orders:
                # the compiled object may be in use in another thread
                with one_call_at_a_time():
                    found = order.made_by(self.compiled)
                # the result of an interrupted call may look complete
                raise_if_interrupted()
                yield found
            return
        source = iter(orders)
        under_way: deque[_Sent] = deque()
        together = self._together(window, total)
        suspects = 0  # number of calls to be sent one by one
        most_in_company, most = LOSSES if self._timeout is None else SLOW_LOSSES
        try:
            while True:
                room = 1 if suspects else max(window // together, 1)
                while len(under_way) < room and (some := tuple(islice(source, together))):
                    under_way.append(_Sent(some))
                if not under_way:
                    return
                try:
                    for sent in islice(under_way, room):
                        if sent.future is None:
                            sent.tried = True
                            sent.future = self._submit(sent.orders, whole=not self._answered)
                    found = self._answer(under_way[0])
                except (BrokenExecutor, _CallLost) as error:
                    if was_interrupted(or_will_be=True):
                        # a terminal interrupts the workers too: do not start new ones now
                        raise KeyboardInterrupt from error
                    if isinstance(error, BrokenExecutor):
                        self._replace(error)
                    for sent in under_way:
                        sent.forget_loss()
                    if room == 1 and len(under_way[0].orders) == 1 and under_way[0].losses > most:
                        self._probe()
                        raise self._lost() from error
                    if any(sent.losses > most_in_company for sent in under_way):
                        # send each call alone to find out which one it was
                        under_way = deque(each for sent in under_way for each in sent.alone())
                        together, suspects = 1, len(under_way)
                    continue
                self._answered = True
                suspects = max(suspects - 1, 0)
                under_way.popleft()
                yield from map(received, found)
        finally:
            for sent in under_way:
                # loky's own thread fails at a cancelled future if workers are then killed
                if sent.future is not None and not self._ends_pool:
                    sent.future.cancel()

    def _lost(self) -> WorkerLost:
        """Return the error for a call whose workers are lost each time."""
        if self._timeout is None:
            return WorkerLost(
                "worker: it died each time that it had this observation, perhaps for lack of "
                "memory; remove the observation, or give workers more."
            )
        return WorkerLost(
            f"worker: it died or gave no answer to this observation in {self._timeout:g} seconds, "
            "nor did another, and both were ended."
        )

    def _together(self, window: int, total: int | None) -> int:
        """Return how many calls to send at once so that no worker waits long for the others."""
        if total is None or self._size is None:
            return 1
        return max(min(TOGETHER, total // (GROUPS * self._size), window // (4 * self._size)), 1)

    def _answer(self, sent: _Sent) -> Any:
        assert sent.future is not None
        # workers have no line of their own, and compile at their first call
        with nullcontext() if self._answered else compiling("in the workers"):
            found = self._result(sent.future)
        if isinstance(found, Unknown):
            sent.future = self._submit(sent.orders, whole=True)
            found = self._result(sent.future)
        self._processes.add(found.process)
        return found.found

    def _result(self, future: Future[Any]) -> Any:
        """Wait for answers. Exceptions here are due to the executor, never to a call.

        `perform` turns every exception of a call into an answer.
        """
        # Dask leaves some futures waiting forever when its client has lost the scheduler. Its
        # executor has no public name for the client, and another client may be the current one.
        client = getattr(self._executor, "_client", None)
        try:
            while client is not None and wait([future], timeout=ALIVE).not_done:
                if getattr(client, "status", None) == "closed":
                    raise ConnectionError("its client has lost the scheduler")
            return future.result()
        except BrokenExecutor:
            raise
        except KeyboardInterrupt:
            # Ctrl-C in a terminal reaches workers too; a worker's interrupt is a lost call.
            raise_if_interrupted()
            if future.done() and not future.cancelled() and future.exception() is not None:
                raise _CallLost("interrupted") from None
            raise
        except Exception as error:
            # Dask has tried the call on several workers, and may blame the wrong one of many calls.
            if type(error).__name__ == "KilledWorker":
                raise _CallLost(str(error)) from error
            raise ExecutorError(
                f"executor: {self._executor!r} failed ({type(error).__name__}: {error}); the run "
                "stands as before, give it one that works."
            ) from error

    def _probe(self) -> None:
        """Check that workers can make the object, before a call is blamed for their deaths.

        Raises
        ------
        ExecutorError
            If they cannot.
        """
        try:
            (found,) = self._result(self._submit((Order(id),), whole=True)).found
            received(found)
        except (BrokenExecutor, _CallLost) as error:
            raise ExecutorError(
                f"executor: workers of {self._executor!r} die before they have done anything "
                f"({error}), perhaps for lack of memory while compiling; the run stands as before."
            ) from error

    def _submit(self, orders: tuple[Order, ...], *, whole: bool) -> Future[Any]:
        parcel = self._parcel
        is_compiled = self._size is not None and bool(self._processes)
        first = min(FIRST, LATER) if is_compiled else FIRST
        limit = () if self._timeout is None else (Limit(self._timeout, first, os.getpid()),)
        try:
            if self._executor is None:
                assert self._size is not None
                self._executor = self._pool(self._size)
            # workers of our own pool have the parcel from the beginning
            content = parcel.content if whole and self._end_pool is None else None
            return self._executor.submit(perform, parcel.token, content, orders, *limit)
        except BrokenExecutor:
            raise
        except Exception as error:
            raise ExecutorError(
                f"executor: {self._executor!r} takes no more work ({error}); keep it open as long "
                "as the run goes on, or give a number of processes."
            ) from error

    def _replace(self, error: BrokenExecutor) -> None:
        """Start a new pool in place of one that lost a worker."""
        # The size of a given executor is not known, only the ids of processes that have answered,
        # which include restarted ones.
        from joblib import cpu_count

        size = self._size or max(min(len(self._processes), cpu_count()), 1)
        _log.warning(
            "executor: a worker died (%s). A new pool of %d processes gets the unanswered calls; "
            "results do not change.",
            str(error).splitlines()[0] if str(error) else type(error).__name__,
            size,
        )
        self.close()
        self._size, self._executor, self._answered = size, None, False

    @contextmanager
    def closing(self) -> Iterator[None]:
        """End the workers of our own pool at the end of the block, also during calls."""
        self._ends_pool = self._size is not None
        try:
            yield
        finally:
            self.close()
            self._ends_pool = False

    def close(self) -> None:
        """End the workers of our own pool at once, even during a call; a given executor stays.

        Otherwise idle workers exit by themselves, and all exit when this object is gone.
        """
        if self._end_pool is not None:
            self._end_pool()
            self._end_pool, self._executor, self._answered = None, None, False

    def _pool(self, size: int) -> Any:
        # loky's workers start without the memory of this process and, unlike those of the standard
        # library, without running the user's script again.
        from joblib.externals.loky import ProcessPoolExecutor

        pool = ProcessPoolExecutor(
            max_workers=size,
            timeout=IDLE,
            initializer=begin_worker,
            initargs=(os.getpid(), self._parcel),
        )
        self._end_pool = weakref.finalize(self, pool.shutdown, wait=False, kill_workers=True)
        return pool


class _Sent:
    """Orders that a worker gets at once and, once they are submitted, their future."""

    def __init__(self, orders: tuple[Order, ...], losses: int = 0) -> None:
        self.orders = orders
        self.losses = losses
        self.future: Future[Any] | None = None
        #: Whether they were submitted, perhaps in vain.
        self.tried = False

    def alone(self) -> Iterable[_Sent]:
        """Return these orders as they are if answered, and one by one if not."""
        if self.future is not None:
            return (self,)
        return [_Sent((order,), self.losses) for order in self.orders]

    def forget_loss(self) -> None:
        """Count a loss and let the orders be submitted again, unless they were answered before."""
        future = self.future
        # a cancelled future has no exception to ask for
        answered = (
            future is not None
            and future.done()
            and not future.cancelled()
            and future.exception() is None
            and not isinstance(future.result(), Unknown)
        )
        if self.tried and not answered:
            self.future, self.tried, self.losses = None, False, self.losses + 1
