"""Measure the costs of a driver with workers for each observation and each step in this process.

The data are postal digits of 16 × 16 pixels, or enlarged ones, with noise. The first run uses an
executor that works immediately in this process but pickles all messages as other executors do, so
that bursts, bytes and pickling are those of a real run. Then each part of the driver is timed
alone. The last runs have processes that work or sleep. `many_workers` prints the figures and
simulates from them.

Times are processor times, so that other programs on the machine do not count.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from copy import copy
from dataclasses import astuple, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from enlarged_digits import enlarged
from joblib.externals.loky import ProcessPoolExecutor
from threadpoolctl import threadpool_limits
from timing import console, seconds_of

import pymc_mcoem as mcoem
from pymc_mcoem.em.checks import check_layout, check_shapes
from pymc_mcoem.em.contributions import added
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.worker_calls import CheckedEStep, simulate, summed
from pymc_mcoem.em.maximization import maximize_family
from pymc_mcoem.em.online_run import CALL_SIZE
from pymc_mcoem.runs.workers import Answers, Order, Parcel, perform, received

#: Batch size of the real runs.
REAL_BATCH = 8
#: Workers of real runs that sleep for the time of a burst, each with four observations per batch.
SLEEPING = (2, 8, 16)
#: Number of answers that an E-step without cost gives in turn.
N_ANSWERS = 10
#: The same if they are sent to each worker.
FEW = 3

#: Descriptions of `CallCosts`, of a call without work that has the size of a real one.
CALL_WORDS = {
    "send": "pickling it",
    "handing": "through a pool of processes and back",
    "dask": "the same through Dask, its scheduler in the driver's process",
    "receive": "unpickling the answer",
    "add": "comparing the shapes of its statistics, and adding them",
    "bytes_out": "sent",
    "bytes_in": "received",
}
#: Descriptions of the other `Costs`. The cost of a step excludes its M-step.
WORDS = {
    "accept": "reading, checking, holding a record; its history",
    "order": "encoding it for a call, its generator",
    "maximize": "an M-step",
    "step": "other work of a step",
    "save": "saving the run once",
    "bytes_whole": "its statistics in the driver's memory, one at a time",
}


@dataclass(frozen=True)
class CallCosts:
    """Measured seconds and bytes of a call; see `CALL_WORDS`."""

    send: float
    handing: float
    dask: float
    receive: float
    add: float
    bytes_out: float
    bytes_in: float

    @property
    def driver(self) -> float:
        """Seconds of the driver for the call."""
        return self.send + self.handing + self.receive + self.add


@dataclass(frozen=True)
class Costs:
    """Measured seconds and bytes, per observation unless `WORDS` says otherwise.

    Attributes
    ----------
    bursts : tuple of float
        Processor seconds of each burst.
    single, together : CallCosts
        Of a call of one observation and of `CALL_SIZE`.
    """

    bursts: tuple[float, ...]
    accept: float
    order: float
    maximize: float
    step: float
    save: float
    bytes_whole: int
    single: CallCosts
    together: CallCosts

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Costs:
        calls = {name: CallCosts(**stored[name]) for name in ("single", "together")}
        return cls(**(stored | calls))

    @property
    def burst(self) -> float:
        return float(np.mean(self.bursts))

    def call(self, size: int) -> CallCosts:
        """Return costs of a call of some observations, interpolated."""
        share = (size - 1) / (CALL_SIZE - 1)
        single, together = (np.array(astuple(each)) for each in (self.single, self.together))
        return CallCosts(*(single + share * (together - single)))

    def driver(self, call_size: int) -> float:
        """Seconds of the driver for an observation, without steps."""
        return self.accept + self.order + self.call(call_size).driver / call_size


class Wire(Executor):
    """An executor that works immediately in this process and pickles messages as others do."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.returned: list[int] = []
        self.processor: list[float] = []
        self.answers: list[Any] = []

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        message = pickle.dumps((function, arguments))
        function, arguments = pickle.loads(message)
        begun = time.thread_time()
        answer = function(*arguments)
        self.processor.append(time.thread_time() - begun)
        content = pickle.dumps(answer)
        self.sent.append(len(message))
        self.returned.append(len(content))
        given = answer.found if isinstance(answer, Answers) else [answer]
        self.answers += given
        future: Future[Any] = Future()
        future.set_result(pickle.loads(content))
        return future


@dataclass(frozen=True)
class Given:
    """An E-step that takes no time and returns earlier results of bursts in turn."""

    results: Iterator[EStepResult]

    def compile(self, family: mcoem.Family) -> Given:
        return self

    def initial_state(self) -> dict[str, np.ndarray]:
        return next(self.results).state

    def __call__(self, *arguments: Any, **options: Any) -> EStepResult:
        return next(self.results)


@dataclass(frozen=True)
class Asleep:
    """An E-step that sleeps for the time of a burst and returns earlier results of bursts."""

    answers: Sequence[Any]
    bursts: Sequence[float]

    def compile(self, family: mcoem.Family) -> Asleep:
        return self

    def initial_state(self) -> dict[str, np.ndarray]:
        return received(self.answers[0]).state

    def __call__(
        self, data: Any, parameters: Any, rng: np.random.Generator, *arguments: Any, **options: Any
    ) -> EStepResult:
        time.sleep(rng.choice(self.bursts))
        return received(self.answers[rng.integers(len(self.answers))])


def nothing(_: Any, content: bytes, n_bytes: int) -> bytes:
    """Answer a call with a given number of bytes."""
    return content[:1] * n_bytes


def add_up(total: dict[str, np.ndarray], statistics: dict[str, np.ndarray]) -> None:
    for name, value in total.items():
        value += statistics[name]


def driver_seconds(
    mixture: mcoem.TemplateMixture,
    parameters: dict[str, np.ndarray],
    results: Sequence[EStepResult],
    images: np.ndarray,
    folder: Path,
) -> tuple[float, float, float]:
    """Return seconds of `OnlineEM` itself per observation, per step, and for saving."""
    unchecked = copy(mixture)  # workers check the statistics
    unchecked.check_statistics = lambda statistics: None  # type: ignore[method-assign]
    taken = {}
    for size in (1, 20):
        em = mcoem.OnlineEM(
            unchecked,
            parameters=parameters,
            e_step=Given(cycle(results)),
            batch_size=size,
            random_seed=1,
            progressbar=False,
        )
        em.partial_fit(images[:40])  # the schedule updates at every step from here on
        began = time.process_time()
        em.partial_fit(images[40:])
        taken[size] = (time.process_time() - began) / (len(images) - 40)
    step = (taken[1] - taken[20]) / (1 - 1 / 20)
    file = folder / "many_workers.nc"
    saved = seconds_of(lambda: em.save(file), 3, time.perf_counter)
    file.unlink()
    return taken[1] - step, step, saved


def handing_seconds(pool: Executor, n_out: int, n_in: int, n_calls: int = 100) -> float:
    """Return seconds of this process for a call without work through an executor."""
    parcel, content = Parcel.of(dict), bytes(n_out)

    def call() -> Any:
        orders = (Order(nothing, (content, n_in)),)
        return pool.submit(perform, parcel.token, parcel.content, orders)

    def calls() -> None:
        for future in [call() for _ in range(n_calls)]:
            future.result()

    calls()
    return seconds_of(calls, 7) / n_calls


def dask_seconds(n_out: int, n_in: int) -> float:
    """Return the same for Dask's executor."""
    cluster = LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
    )
    with cluster, Client(cluster) as client:
        return handing_seconds(client.get_executor(pure=False), n_out, n_in)


def call_costs(
    parcel: Parcel, orders: Sequence[Order], running: dict[str, np.ndarray]
) -> CallCosts:
    """Return the costs of one call of `OnlineEM` for some orders."""
    call = summed(orders) if len(orders) > 1 else orders[0]
    message = (perform, (parcel.token, None, (call,)))
    answer = pickle.dumps(perform(parcel.token, None, [call]))
    n_out, n_in = len(pickle.dumps(message)), len(answer)
    found = pickle.loads(answer).found[0]
    last = received(found[-1] if len(orders) > 1 else found)

    def add() -> None:
        check_shapes(last.to_add, running)
        added(running, last.to_add)

    with ProcessPoolExecutor(max_workers=1) as pool:
        handing = handing_seconds(pool, n_out, n_in)
    return CallCosts(
        send=seconds_of(lambda: pickle.dumps(message)),
        handing=handing,
        dask=dask_seconds(n_out, n_in),
        receive=seconds_of(lambda: pickle.loads(answer)),
        add=seconds_of(add),
        bytes_out=n_out,
        bytes_in=n_in,
    )


def measure(n_classes: int, side: int, n_real: int, folder: Path) -> tuple[Costs, dict[str, Any]]:
    """Measure everything for one number of classes and one size.

    Real runs, of `n_real` observations or more, are included.
    """
    images, _ = enlarged(400, side, np.random.default_rng(1))
    mixture = mcoem.TemplateMixture.for_images(
        (side, side), n_classes=n_classes, rigid_weight=None, priors=mcoem.TemplatePriors()
    )
    parameters = mixture.initialize(list(images[:200]), np.random.default_rng(1), "kmeans")
    parameters = mixture.check_parameters(parameters)
    parcel = Parcel.of(partial(CheckedEStep.of, mixture, mcoem.esteps.CarlinChibBurst()))
    length = mcoem.schedules.BurstLength()(1)

    def order(number: int) -> Order:
        rng = np.random.default_rng(np.random.SeedSequence(1, spawn_key=(number,)))
        data = mixture.encode(images[number])
        return Order(simulate, (data, parameters, rng, None, length.draws, length.tune))

    console.print(f"C = {n_classes}, {side} × {side}: compiling ...")
    with threadpool_limits(1):
        perform(parcel.token, parcel.content, [order(0)])
        wire = Wire()
        real = {"none": run_real(mixture, parameters, images, n_real, wire)}
        real |= {str(size): run_real(mixture, parameters, images, n_real, size) for size in (1, 2)}
        found = wire.answers[-n_real:]
        results = [received(each) for each in found[:N_ANSWERS]]
        running = {name: value.copy() for name, value in results[0].statistics.items()}
        mean = {name: np.zeros_like(value) for name, value in running.items()}
        for each in found:
            add_up(mean, received(each).statistics)
        for value in mean.values():
            value /= n_real
        maximize = seconds_of(
            lambda: maximize_family(mixture, mean, effective_size=200.0, present=parameters)
        )
        observation, step, save = driver_seconds(mixture, parameters, results, images, folder)
        ordering = seconds_of(lambda: order(1))
        single = call_costs(parcel, [order(1)], running)
        together = call_costs(parcel, [order(number) for number in range(CALL_SIZE)], running)
        layout = seconds_of(lambda: check_layout(mixture, results[0].statistics))
        here = ordering + layout + single.add
        costs = Costs(
            bursts=tuple(wire.processor[-n_real:]),
            accept=max(observation - here, 0.0),
            order=ordering,
            maximize=maximize,
            step=max(step - maximize, 0.0),
            save=save,
            bytes_whole=sum(value.nbytes for value in mean.values()),
            single=single,
            together=together,
        )
        asleep = Asleep(found[:FEW], costs.bursts)
        slept = {
            str(size): run_real(mixture, parameters, images, n_real, size, asleep, 4 * size)
            for size in SLEEPING
        }
    return costs, {"bursts": real, "sleeping": slept}


def run_real(
    mixture: mcoem.TemplateMixture,
    parameters: dict[str, np.ndarray],
    images: np.ndarray,
    n_real: int,
    executor: Executor | int,
    e_step: Any = None,
    batch_size: int = REAL_BATCH,
) -> float:
    """Return observations per second after all processes have begun."""
    em = mcoem.OnlineEM(
        mixture,
        parameters=parameters,
        e_step=e_step,
        batch_size=batch_size,
        executor=executor,
        random_seed=1,
        progressbar=False,
    )
    em.partial_fit(images[: 2 * batch_size])  # every process has compiled
    n_images = max(n_real, 4 * batch_size)
    began = time.perf_counter()
    em.partial_fit(images[:n_images])
    return n_images / (time.perf_counter() - began)
