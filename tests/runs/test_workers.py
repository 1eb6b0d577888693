"""Executors: the same bytes whoever works, workers that die, and what is nobody's fault."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import threadpoolctl
import xarray as xr

import pymc_mcoem as mcoem
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.em import online_run
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.em.schedules import BurstLength
from pymc_mcoem.runs import executor as executor_module
from pymc_mcoem.runs import workers
from pymc_mcoem.runs.executor import WINDOW, Dispatcher, WorkerLost
from pymc_mcoem.runs.workers import ExecutorError, Order, Parcel, Unknown, perform
from tests.helpers.executors import AtOnce, Deadly, lives
from tests.helpers.pressing import Hanging, HangingToCompile, hang
from tests.helpers.representatives import by_default
from tests.helpers.toy_families import Noisy, mixture_stream
from tests.helpers.toy_runs import THETA, WAYS, assert_same, driver, what_counts


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(workers, "_made", type(workers._made)())
    return AtOnce()


class Forked(ProcessPoolExecutor):
    """Stands for a pool of our own: its processes need not import for seconds what is needed."""

    def __init__(self, *, timeout, **options):
        super().__init__(mp_context=multiprocessing.get_context("fork"), **options)

    def shutdown(self, wait=True, *, cancel_futures=False, kill_workers=False):
        if kill_workers:
            for process in list((self._processes or {}).values()):
                process.kill()
        super().shutdown(wait, cancel_futures=cancel_futures)


@pytest.fixture
def forked(monkeypatch):
    """Fork the processes of our own pools, and compile before what they hang in."""
    monkeypatch.setattr("joblib.externals.loky.ProcessPoolExecutor", Forked)
    hang.compile(())


# the pool of all others is of processes that are spawned
@pytest.mark.parametrize("method", by_default(multiprocessing.get_all_start_methods(), {"fork"}))
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_of_any_kind_give_the_same_bytes(family, stream, method):
    settings = {"parameters": THETA, "batch_size": 6}
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        em = driver(family, **settings, executor=pool).partial_fit(stream)
    assert_same(em, driver(family, **settings).partial_fit(stream))


@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_the_same_to_the_last_bit_whoever_works(family, stream, way, at_once):
    assert_same(
        driver(family, **WAYS[way], executor=at_once).partial_fit(stream),
        driver(family, **WAYS[way]).partial_fit(stream),
    )
    # How to make the E-step is sent with the first calls, until one has been answered.
    batch = WAYS[way].get("batch_size", 1)
    assert max(at_once.sent[batch:]) < min(at_once.sent[:batch])


@pytest.mark.parametrize("options", [{}, {"batch_size": 0.4}, {"e_step": Exact()}], ids=str)
def test_saem_is_the_same_whoever_works(family, stream, options, at_once):
    def fitted(executor):
        settings = {"e_step": Noisy(), "random_seed": 1, "progressbar": False} | options
        return SAEM(family, **settings, executor=executor).fit(stream, 5)

    found, expected = fitted(at_once), fitted(None)
    assert found.parameters.identical(expected.parameters)
    assert at_once.sent


@pytest.mark.parametrize("calls", [online_run.CALLS, 2])
def test_pools_of_processes_and_threads_give_the_same(family, stream, pool, calls, monkeypatch):
    monkeypatch.setattr(online_run, "CALLS", calls)
    expected = driver(family, parameters=THETA, batch_size=6).partial_fit(stream)
    found = driver(family, parameters=THETA, batch_size=6, executor=pool).partial_fit(stream)
    assert_same(found, expected)
    with ThreadPoolExecutor(3) as threads:
        found = driver(family, parameters=THETA, batch_size=6, executor=threads)
        assert_same(found.partial_fit(stream), expected)


@pytest.mark.parametrize(("size", "most"), [(64, 1), (300, 2), (1_100, 8)])
def test_workers_add_the_statistics_of_large_mini_batches(
    family, rng, at_once, size, most, monkeypatch
):
    """Each observation has its record; θ differs by rounding from that of single calls."""
    monkeypatch.setattr(online_run, "CALLS", 128)
    stream = mixture_stream(rng, size)
    settings = {"parameters": THETA, "batch_size": size}
    em = driver(family, **settings, executor=at_once).partial_fit(stream)
    assert len(at_once.sent) == -(-size // most)
    assert_same(em, driver(family, **settings).partial_fit(stream))
    monkeypatch.setattr(online_run, "CALL_SIZE", 1)
    (found, *_), (expected, *_) = (
        what_counts(em),
        what_counts(driver(family, **settings).partial_fit(stream)),
    )
    xr.testing.assert_allclose(found["parameters"], expected["parameters"], rtol=1e-12)
    xr.testing.assert_identical(found["observations"], expected["observations"])


def _threads(made):
    pools = threadpoolctl.threadpool_info()
    return {pool["num_threads"] for pool in pools if pool["user_api"] == "blas"}


def test_workers_have_one_blas_thread(at_once):
    dispatcher = Dispatcher(lambda: None, at_once)
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        outside = _threads(None)
        (inside,) = dispatcher.answers([Order(_threads, ())])
    assert inside == {1}
    if outside == {1}:
        pytest.skip("this machine's BLAS has one thread in any case")


def _compilations(made):
    return os.getpid(), made.nth


class _Counted:
    n_made = 0

    def __init__(self):
        type(self).n_made += 1
        self.nth = type(self).n_made


def test_a_worker_compiles_once(pool):
    dispatcher = Dispatcher(_Counted, pool)
    found = [
        found for _ in range(3) for found in dispatcher.answers([Order(_compilations, ())] * 8)
    ]
    assert os.getpid() not in {process for process, _ in found}
    assert {nth for _, nth in found} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5])
def test_templates_are_the_same_for_any_number_of_workers(size, rng):
    mixture = mcoem.TemplateMixture.for_images((4, 4), n_classes=3, n_landmarks=2)
    images = rng.normal(size=(20, 4, 4))

    def learned(executor):
        em = OnlineEM(
            mixture,
            random_seed=1,
            n_start=5,
            batch_size=5,
            burst_length=BurstLength(20, 5),
            progressbar=False,
            executor=executor,
        )
        return em.partial_fit(images)

    alone, together = learned(None), learned(size)
    assert together.parameters.identical(alone.parameters)
    classified = [
        mcoem.Classifier(mixture, alone.parameters, progressbar=False, executor=each, draws=10)
        for each in (None, size)
    ]
    first, second = (each.class_probabilities(images[:6]) for each in classified)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("calls", [online_run.CALLS, 2])
@pytest.mark.parametrize("kind", by_default(["forked", "number", "pool"], {"forked"}))
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_worker_killed_in_mid_burst_changes_nothing(
    family, stream, tmp_path, kind, calls, caplog, request, monkeypatch
):
    monkeypatch.setattr(online_run, "CALLS", calls)
    if kind == "forked":
        request.getfixturevalue("forked")
    stream[20] = 7.0
    settings = {"parameters": THETA, "batch_size": 6}
    expected = driver(family, e_step=Deadly(lives(tmp_path / "none", 0)), **settings)
    expected.partial_fit(stream)
    e_step = Deadly(lives(tmp_path / "two", 2))
    with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
        if kind != "pool":
            em = driver(family, e_step=e_step, **settings, executor=2).partial_fit(stream)
        else:
            with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as given:
                em = driver(family, e_step=e_step, **settings, executor=given).partial_fit(stream)
    assert_same(em, expected)
    assert sum("a worker died" in record.message for record in caplog.records) == 2
    assert not list((tmp_path / "two").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("calls", [online_run.CALLS, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_observation_that_kills_every_worker_is_named(
    family, stream, tmp_path, on_error, calls, monkeypatch
):
    monkeypatch.setattr(online_run, "CALLS", calls)
    spoilt = np.insert(stream, 20, 7.0)
    e_step = Deadly(lives(tmp_path / "many", 100))
    settings = {"parameters": THETA, "batch_size": 6}
    em = driver(family, e_step=e_step, **settings, executor=2, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(RuntimeError, match=r"observation 20 of the stream.*it died each time"):
            em.partial_fit(spoilt)
        em.partial_fit(spoilt, skip=em.position)
    else:
        em.partial_fit(spoilt)
    assert (em.n_seen, em.position) == (60, 61)
    clean = driver(family, **settings).partial_fit(stream)
    assert em.parameters.identical(clean.parameters)


class Refusing(Noisy):
    """An E-step that cannot be compiled but where the run began."""

    def compile(self, family):
        raise ImportError("no such library here")


def test_a_worker_that_cannot_compile_is_no_observations_fault(family, stream, at_once):
    em = driver(family, parameters=THETA, e_step=Refusing(), executor=at_once, on_error="skip")
    with pytest.raises(ExecutorError, match=r"could not compile .*no such library here"):
        em.partial_fit(stream)
    assert (em.n_seen, em.position) == (1, 1)
    assert "skipped" not in em.history.children


def test_an_executor_that_was_closed_says_so_and_loses_nothing(family, stream):
    with ThreadPoolExecutor(1) as threads:
        em = driver(family, parameters=THETA, executor=threads).partial_fit(stream[:5])
    with pytest.raises(ExecutorError, match=r"executor: .* takes no more work .*keep it open"):
        em.partial_fit(stream[5:])
    assert em.n_seen == 6


@pytest.mark.parametrize(
    ("wrong", "kind"), [(0, ValueError), (True, TypeError), ("two", TypeError), (2.0, TypeError)]
)
def test_what_is_no_executor_is_refused(family, wrong, kind):
    with pytest.raises(kind, match=f"executor: got {wrong!r}; give "):
        driver(family, executor=wrong)


class Sized(Exception):
    """An exception that can be sent and cannot be read."""

    def __init__(self, size, unit):
        super().__init__(f"{size} {unit}")


def fail(_, kind, *arguments):
    raise kind(*arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "seen"),
    [
        (FloatingPointError, ("too large",), FloatingPointError),
        (Sized, (3, "meters"), RuntimeError),
        (np.linalg.LinAlgError, ("singular",), np.linalg.LinAlgError),
    ],
)
def test_what_a_worker_raises_is_raised_with_its_place(at_once, kind, arguments, seen):
    dispatcher = Dispatcher(dict, at_once)
    # where exceptions are sent by other means than pickle alone, it arrives as it is
    with pytest.raises((seen, kind), match=str(kind(*arguments))) as caught:
        list(dispatcher.answers([Order(fail, (kind, *arguments))]))
    assert "in fail" in "".join(caught.value.__notes__)


def test_a_worker_that_was_started_anew_asks_for_what_it_lacks(at_once):
    dispatcher = Dispatcher(lambda: [1, 2, 3], at_once)
    assert list(dispatcher.answers([Order(len), Order(sum)])) == [3, 6]
    workers._made.clear()
    assert list(dispatcher.answers([Order(sum)])) == [6]
    assert perform("of something else", None, [Order(len)]) == Unknown()


def test_a_worker_keeps_a_limited_number_of_objects(monkeypatch):
    monkeypatch.setattr(workers, "_made", type(workers._made)())
    parcels = [Parcel.of(lambda number=number: [number]) for number in range(workers.CAPACITY + 3)]
    for parcel in parcels:
        perform(parcel.token, parcel.content, [Order(len)])
        perform(parcels[0].token, parcels[0].content, [Order(len)])
    assert len(workers._made) == workers.CAPACITY
    assert parcels[0].token in workers._made  # used all the time
    assert parcels[1].token not in workers._made


def test_rows_of_zeros_are_not_sent_and_every_bit_returns():
    statistics = {
        "class_weight": np.array([0.0, 1.0, 0.0]),
        "y": np.array([[0.0, 0.0], [1.0, -2.0], [-0.0, 0.0]]),
    }
    result = EStepResult(statistics, class_index=np.arange(9))
    assert result.__reduce__()[1][1]["statistics"].classes.tolist() == [
        1,
        2,
    ]  # the sign of a zero is something
    found = pickle.loads(pickle.dumps(result))
    for name, value in statistics.items():
        assert found.statistics[name].tobytes() == value.tobytes()
    assert found.class_index.tolist() == list(range(9))


def test_no_more_is_read_than_was_handed_out(at_once):
    read = []

    def orders():
        for number in range(1_000):
            read.append(number)
            yield Order(pow, (number,))

    answers = Dispatcher(lambda: 2, at_once).answers(orders())
    assert [next(answers) for _ in range(3)] == [1, 2, 4]
    assert len(read) <= 3 + WINDOW
    answers.close()


def test_a_call_that_kills_alone_is_given_up():
    class Breaking(Executor):
        def submit(self, function, token, content, orders):
            if any(order.function in deadly for order in orders):
                raise BrokenProcessPool("gone")
            future = Future()
            future.set_result(perform(token, content, orders))
            return future

    dispatcher = Dispatcher(dict, 2)
    dispatcher._pool = lambda size: Breaking()
    deadly = {len}
    with pytest.raises(WorkerLost, match="it died each time"):
        list(dispatcher.answers([Order(len)]))
    # where workers die whatever they are given, no call is to blame
    deadly |= {len, id}
    with pytest.raises(ExecutorError, match="die before they have done anything"):
        list(dispatcher.answers([Order(len)]))


class Counting(AtOnce):
    """Notes how many calls are sent at once."""

    def submit(self, function, token, content, orders):
        self.groups = [*getattr(self, "groups", []), len(orders)]
        return super().submit(function, token, content, orders)


@pytest.mark.parametrize(("groups", "together"), [(16, 1), (3, 2), (2, 3), (1, 7)])
def test_calls_that_are_sent_together_have_the_answers_they_have_alone(
    groups, together, monkeypatch
):
    monkeypatch.setattr(workers, "_made", type(workers._made)())
    monkeypatch.setattr(executor_module, "GROUPS", groups)
    executor = Counting()
    dispatcher = Dispatcher(lambda: 2, 1)
    dispatcher._pool = lambda size: executor
    orders = [Order(pow, (number,)) for number in range(7)]
    assert list(dispatcher.answers(orders, total=7)) == [2**n for n in range(7)]
    assert executor.groups == [together] * (7 // together) + [7 % together] * (7 % together > 0)
    # a worker that is new says so, whatever it was sent
    workers._made.clear()
    assert list(dispatcher.answers(orders, total=7)) == [2**n for n in range(7)]
    # one that fails does so in its turn, after the answers of those before it
    bad = [*orders[:4], Order(fail, (ValueError, "no")), *orders[:2]]
    answers = dispatcher.answers(bad, total=7)
    assert [next(answers) for _ in range(4)] == [1, 2, 4, 8]
    with pytest.raises(ValueError, match="no"):
        next(answers)
    # and nobody minds who goes before the end
    answers = dispatcher.answers(orders, total=7)
    assert next(answers) == 1
    answers.close()


def test_nothing_is_tried_again_where_the_object_cannot_be_made(monkeypatch):
    monkeypatch.setattr(workers, "_made", type(workers._made)())
    monkeypatch.setattr(executor_module, "GROUPS", 1)
    parcel = Parcel.of(lambda: 1 / 0)
    assert len(perform(parcel.token, parcel.content, [Order(len)] * 5).found) == 1
    with pytest.raises(ExecutorError, match="could not compile"):
        list(Dispatcher(lambda: 1 / 0, AtOnce()).answers([Order(len)] * 5, total=5))


@pytest.mark.parametrize(("n_workers", "together"), [(1, 8), (2, 8), (4, 6), (20, 1), (300, 1)])
def test_all_workers_have_enough_to_do(n_workers, together):
    executor = Counting()
    dispatcher = Dispatcher(dict, n_workers)
    dispatcher._pool = lambda size: executor
    list(dispatcher.answers([Order(len)] * 400, total=400))
    assert executor.groups[0] == together
    # a stream without an end, and an executor that was given, whose size is not known
    assert dispatcher._together(WINDOW, None) == 1
    assert Dispatcher(dict, executor)._together(WINDOW, 400) == 1


@pytest.mark.parametrize("where", ["submit", "future"])
def test_one_that_kills_among_those_sent_together_is_found(where, monkeypatch):
    monkeypatch.setattr(executor_module, "GROUPS", 3)

    class Breaking(AtOnce):
        def submit(self, function, token, content, orders):
            if any(order.function is len for order in orders):
                if where == "submit":
                    raise BrokenProcessPool("gone")
                future = Future()
                future.set_exception(BrokenProcessPool("gone"))
                return future
            return super().submit(function, token, content, orders)

    dispatcher = Dispatcher(lambda: 2, 1)
    dispatcher._pool = lambda size: Breaking()
    orders = [Order(pow, (number,)) for number in range(6)]
    answers = dispatcher.answers([*orders, Order(len), *orders], total=13)
    assert [next(answers) for _ in range(6)] == [2**n for n in range(6)]
    with pytest.raises(WorkerLost, match="it died each time"):
        next(answers)


class Odd(Executor):
    """An executor whose futures fail after some calls."""

    def __init__(self, calls, how):
        self.calls, self.how = calls, how

    def submit(self, function, /, *arguments, **named):
        future, self.calls = Future(), self.calls - 1
        if self.calls >= 0:
            future.set_result(function(*arguments))
        elif self.how is None:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_exception(self.how)
        return future


@pytest.mark.parametrize("how", [None, ModuleNotFoundError("pymc_mcoem"), OSError("no socket")])
def test_what_the_executor_raises_is_no_observations_fault(family, stream, how):
    em = driver(family, parameters=THETA, executor=Odd(5, how), on_error="skip")
    with pytest.raises(ExecutorError, match=r"executor: .* failed .*; the run stands as before"):
        em.partial_fit(stream)
    assert (em.n_seen, em.position) == (6, 6)
    assert "skipped" not in em.history.children
    # what was held is learned when there is somebody to learn it
    em.run.executor = driver(family, parameters=THETA).run.executor
    em.partial_fit(stream, skip=em.position)
    assert_same(em, driver(family, parameters=THETA).partial_fit(stream))


def test_an_interrupt_of_a_worker_is_a_lost_call(family, stream):
    class Once(Odd):
        def submit(self, function, /, *arguments, **named):
            future = super().submit(function, *arguments, **named)
            self.calls = 1_000 if self.calls < 0 else self.calls
            return future

    em = driver(family, parameters=THETA, executor=Once(7, KeyboardInterrupt()))
    assert_same(em.partial_fit(stream), driver(family, parameters=THETA).partial_fit(stream))


def feeding():
    return [each for each in threading.enumerate() if each.name == "QueueFeederThread"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
def test_dead_workers_leave_no_threads_and_no_open_files(family, stream, tmp_path):
    stream[::20] = 7.0
    more_than_a_pipe_holds = bytes(300_000)
    others, counts = feeding(), []
    for number in range(3):
        e_step = Deadly(lives(tmp_path / f"{number}", 2), more_than_a_pipe_holds)
        em = driver(family, e_step=e_step, parameters=THETA, batch_size=6, executor=2)
        em.partial_fit(stream[:30])
        assert not list(Path(e_step.folder).iterdir())
        del em
        gc.collect()
        deadline = time.monotonic() + 20.0  # a pool ends in a thread of its own
        while set(feeding()) - set(others) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert set(feeding()) <= set(others)
        time.sleep(0.5)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[2] <= counts[0]


def test_an_executor_that_broke_before_it_answered_has_one_process_instead(at_once):
    class Gone(Executor):
        def submit(self, function, /, *arguments, **named):
            raise BrokenProcessPool("gone")

    dispatcher, sizes = Dispatcher(dict, Gone()), []
    dispatcher._pool = lambda size: sizes.append(size) or at_once
    assert list(dispatcher.answers([Order(len)])) == [0]
    assert sizes == [1]


class Bent(mcoem.Family):
    """A family with a distribution of its own, which PyMC registers in this process alone."""

    observation = ("y",)

    def __init__(self):
        def normal(value, center):
            return -0.5 * (value - center) ** 2 - 0.5 * np.log(2 * np.pi)

        with pm.Model() as self.model:
            weights = pm.Data("weights", [0.5, 0.5])
            y = pm.Data("y", 0.0)
            self.class_index = pm.Categorical("class_index", p=weights)
            x = pm.CustomDist("x", 4.0 * self.class_index - 2.0, logp=normal)
            pm.Normal("value", x, 1.0, observed=y)
        self.statistics = {}
        self.geometry = LatentGeometry(starts=np.zeros((1, 1)), prior_covariance=pt.eye(1))

    def maximize(self, statistics, *, effective_size):
        return {"weights": statistics["class_weight"]}


@pytest.mark.slow
def test_a_distribution_of_the_models_own_is_known_to_workers(rng):
    values = rng.normal(size=12)

    def learned(executor):
        em = OnlineEM(
            Bent(),
            parameters={"weights": [0.5, 0.5]},
            e_step=mcoem.esteps.LaplaceGaussian(),
            batch_size=4,
            random_seed=1,
            progressbar=False,
            executor=executor,
        )
        return em.partial_fit(values)

    assert learned(1).parameters.identical(learned(None).parameters)


ORPHANS = """
import os, time
from pymc_mcoem.runs.executor import Dispatcher
from pymc_mcoem.runs.workers import Order

dispatcher = Dispatcher(dict, 2)
dispatcher.prepare()
list(dispatcher.answers([Order(len)]))
print(*[process.pid for process in dispatcher._executor._processes.values()], flush=True)
time.sleep(600)
"""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
def test_a_driver_that_is_killed_takes_its_workers_along():
    process = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    with process.stdout:
        pids = process.stdout.readline().split()
        assert len(pids) == 2
        assert all(map(is_running, pids))
        process.kill()
        process.wait()
    for _ in range(100):
        if not any(map(is_running, pids)):
            return
        time.sleep(0.3)
    raise AssertionError(f"workers {pids} outlived their driver")


def rest(_, file):
    """Say who works, and take longer than anyone waits."""
    file.write_text(str(os.getpid()))
    time.sleep(600)


def wait_for(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
def test_a_dispatcher_that_is_closed_ends_what_its_workers_are_at(tmp_path):
    dispatcher, file = Dispatcher(dict, 1), tmp_path / "worker"
    dispatcher.close()  # nothing yet
    dispatcher._submit((Order(rest, (file,)),), whole=True)
    wait_for(lambda: file.exists() and file.read_text())
    worker = file.read_text()
    assert is_running(worker)
    dispatcher.close()
    wait_for(lambda: not is_running(worker))
    assert list(dispatcher.answers([Order(len)])) == [0]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
def test_workers_end_with_a_block_that_an_error_ends(tmp_path):
    """Also those that are at a call, which the answers' own end had cancelled."""
    dispatcher, file = Dispatcher(dict, 2), tmp_path / "worker"
    orders = [Order(fail, (ValueError, "no")), *[Order(rest, (file,))] * 40]
    with pytest.raises(ValueError, match="no"), dispatcher.closing():
        answers = dispatcher.answers(orders)
        dispatcher._submit((Order(rest, (file,)),), whole=True)
        wait_for(lambda: file.exists() and file.read_text())
        worker = file.read_text()
        list(answers)
    wait_for(lambda: not is_running(worker))
    dispatcher.close()


def test_an_executor_that_was_given_is_not_closed(pool):
    dispatcher = Dispatcher(dict, pool)
    dispatcher.close()
    assert list(dispatcher.answers([Order(len)])) == [0]


@pytest.mark.parametrize(
    ("kind", "times", "on_error"),
    [
        ("forked", 2, "skip"),
        ("fork", 1, "raise"),
        pytest.param("number", 2, "skip", marks=pytest.mark.slow),
        *(
            pytest.param(kind, times, on_error, marks=pytest.mark.slow)
            for kind in ("number", "spawn")
            for times in (1, 100)
            for on_error in ("raise", "skip")
        ),
    ],
)
@pytest.mark.parametrize("calls", [online_run.CALLS, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_worker_that_hangs_is_ended(
    family, stream, tmp_path, kind, times, on_error, calls, monkeypatch, request
):
    """Once: the same bytes. At every try: left out by name, and nothing else is."""
    monkeypatch.setattr(online_run, "CALLS", calls)
    # whoever forks has all that is needed; others import and compile it at their first call
    first, seconds = (1.0, 1.0) if kind in ("fork", "forked") else (10.0, 3.0)
    if kind in ("fork", "forked"):
        request.getfixturevalue("forked")
    monkeypatch.setattr(executor_module, "FIRST", first)
    stream[20] = 7.0
    settings = {"parameters": THETA, "batch_size": 6}
    e_step = Hanging(folder=lives(tmp_path / "left", times))
    pool = 2
    if kind not in ("number", "forked"):
        pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(kind))
    em = driver(
        family,
        e_step=e_step,
        **settings,
        on_error=on_error,
        executor=workers.Workers(pool, seconds),
    )
    if times == 1:
        em.partial_fit(stream)
        clean = driver(family, **settings).partial_fit(stream)
        assert_same(em, clean)
        return
    said = f"no answer to this observation in {seconds:g} seconds, nor did another"
    if on_error == "raise":
        with pytest.raises(RuntimeError, match=f"observation 20 of the stream.*{said}"):
            em.partial_fit(stream)
        em.partial_fit(stream, skip=em.position)
    else:
        em.partial_fit(stream)
        assert said in str(em.history["skipped"]["reason"].values)
    assert em.history["skipped"]["position"].values.tolist() == [20]
    clean = driver(family, **settings).partial_fit(np.delete(stream, 20))
    assert em.parameters.identical(clean.parameters)


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_saem_ends_a_worker_that_hangs(family, stream, tmp_path, times, monkeypatch):
    """Once: the same bytes. At both tries: left out by name, and nothing else is."""
    monkeypatch.setattr(executor_module, "FIRST", 10.0)
    stream[20] = 7.0
    settings = {"parameters": THETA, "random_seed": 1, "progressbar": False, "on_error": "skip"}
    saem = SAEM(
        family,
        e_step=Hanging(folder=lives(tmp_path / "left", times)),
        executor=workers.Workers(1, 1.0),
        **settings,
    ).fit(stream, 2)
    lost = [20] if times == 2 else []
    clean = SAEM(family, e_step=Noisy(), **settings).fit(np.delete(stream, lost), 2)
    assert saem.parameters.identical(clean.parameters)
    assert ("skipped" in saem.history.children) == bool(lost)
    if lost:
        skipped = saem.history["skipped"]
        assert skipped["position"].values.tolist() == lost
        assert "no answer to this observation in 1 seconds" in str(skipped["reason"].values)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_that_hang_as_they_compile_are_no_records_fault(
    family, stream, forked, monkeypatch
):
    monkeypatch.setattr(executor_module, "FIRST", 0.3)
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    em = driver(
        family,
        e_step=HangingToCompile(),
        parameters=THETA,
        on_error="skip",
        executor=workers.Workers(pool, 0.3),
    )
    with pytest.raises(executor_module.ExecutorError, match="die before they have done anything"):
        em.partial_fit(stream[:3])
    assert (em.position, em.n_seen) == (1, 1) and "skipped" not in em.history.children
    em.run.executor.close()


def test_what_no_timeout_can_end_is_refused():
    for wrong in (None, ThreadPoolExecutor(1)):
        with pytest.raises(ValueError, match=r"executor: got .*a timeout ends processes"):
            workers.Workers(wrong, 1.0)
    for wrong in (0, -1.0, np.nan, np.inf, "3"):
        with pytest.raises(ValueError, match=r"timeout: got .*positive number of seconds"):
            workers.Workers(2, wrong)
