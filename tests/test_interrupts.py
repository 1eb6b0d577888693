"""Ctrl-C at any instant: nothing is lost, and no record is blamed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from itertools import product
from pathlib import Path

import numpy as np
import pymc as pm
import pytest

import pymc_mcoem as mcoem
from pymc_mcoem.carlin_chib.pseudo_priors import plate
from pymc_mcoem.density.plate import PlateDensity
from pymc_mcoem.em import burst_chains, fingerprint
from pymc_mcoem.em import stream as streams
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.interrupts import (
    deferred,
    import_whole,
    raise_if_interrupted,
    require_own_fault,
    with_retries,
)
from pymc_mcoem.laplace import dispersed_starts as dispersed
from pymc_mcoem.runs import executor as executor_module
from pymc_mcoem.runs import file_lock
from pymc_mcoem.runs.datatree_files import named_damage
from tests.helpers.faults import chosen, fault_at, without_hdf5
from tests.helpers.pressing import Pressing, Spinning, press, press_not_yet
from tests.helpers.representatives import by_default
from tests.helpers.toy_families import CompiledNoisy, Noisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import THETA, WAYS, assert_same, driver

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def listening():
    """Ctrl-C is heard, also where the tests were started in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    press_not_yet()
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_what_the_helper_does_is_what_compiled_code_does():
    with pytest.raises(SystemError, match="returned a result with an exception set") as raised:
        press()
    assert isinstance(raised.value.__cause__, KeyboardInterrupt)


@pytest.mark.parametrize(
    ("way", "saved", "times", "on_error"),
    by_default(
        [
            (way, saved, times, on_error)
            for way, saved in (*((way, False) for way in WAYS), ("held start", True))
            for times in (1, 2)
            for on_error in ("raise", "skip")
        ],
        {
            *((way, False, 2, "skip") for way in WAYS),
            *product(["held start"], [True], [1, 2], ["raise", "skip"]),
        },
    ),
)
def test_pressed_in_compiled_code_nothing_is_lost(
    family, stream, tmp_path, on_error, times, saved, way
):
    e_step = Pressing(presses={3: times, 30: times, 60: times})
    em = driver(family, e_step=e_step, on_error=on_error, **WAYS[way])
    settings = {"checkpoint": tmp_path / "run.nc"} if saved else {}
    interrupted = 0
    for _ in range(7):
        try:
            em.partial_fit(stream, skip=em.position, **settings)
            break
        except KeyboardInterrupt:
            interrupted += 1
            if saved:
                there = OnlineEM.load(tmp_path / "run.nc", family, e_step=Noisy())
                assert (there.position, there.n_seen) == (em.position, em.n_seen)
    assert 1 <= interrupted <= 6
    assert_learned_alike(em, driver(family, **WAYS[way]).partial_fit(stream))


def assert_learned_alike(em, clean):
    for one, other in ((em.parameters, clean.parameters), (em.n_seen, clean.n_seen)):
        assert one.identical(other) if hasattr(one, "identical") else one == other
    if em.run.settings.on_error == "raise":
        assert "skipped" not in em.history.children


def test_the_first_waits_for_the_observation_at_work_and_a_second_does_not(family, stream):
    for times, learned in ((1, 5), (2, 4)):
        em = driver(family, e_step=Pressing(presses={5: times}), parameters=THETA)
        with pytest.raises(KeyboardInterrupt):
            em.partial_fit(stream)
        assert (em.n_learned, em.position) == (learned, 5)
        assert_same(
            em.partial_fit(stream, skip=5), driver(family, parameters=THETA).partial_fit(stream)
        )


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(("times", "iterations"), [(1, 3), (2, 2)])
@pytest.mark.parametrize("batch_size", [1.0, 0.5])
def test_of_saem_the_first_waits_for_its_iteration(
    family, stream, on_error, times, iterations, batch_size
):
    at = 150 if batch_size == 1 else 100
    settings = {"draws": 5, "random_seed": 1, "progressbar": False, "on_error": on_error}
    settings["batch_size"] = batch_size
    saem = SAEM(family, e_step=Pressing(presses={at: times}), **settings)
    with pytest.raises(KeyboardInterrupt):
        saem.fit(stream, 6)
    assert saem.n_iterations == iterations
    saem.fit(stream, 6 - iterations)
    clean = SAEM(family, e_step=Noisy(), **settings).fit(stream, 6)
    assert saem.parameters.identical(clean.parameters)
    assert "skipped" not in saem.history.children


def test_reading_the_parameters_blames_nothing(family, stream):
    em = driver(family, e_step=Pressing(presses={2: 1}), n_start=10, on_error="skip")
    em.partial_fit(stream[:5])
    with pytest.raises(KeyboardInterrupt):
        _ = em.parameters
    clean = driver(family, n_start=10).partial_fit(stream[:5])
    assert em.parameters.identical(clean.parameters)


def test_a_start_that_is_interrupted_is_no_records_fault(stream):
    class Slow(NormalMixture):
        left = 1

        def initialize(self, *arguments):
            if Slow.left:
                Slow.left -= 1
                press(), press()
            return super().initialize(*arguments)

    em = driver(Slow(), n_start=10, on_error="skip")
    with pytest.raises(KeyboardInterrupt):
        em.partial_fit(stream)
    assert_same(
        em.partial_fit(stream, skip=em.position), driver(Slow(), n_start=10).partial_fit(stream)
    )


def test_a_source_that_is_interrupted_in_compiled_code(family, stream):
    class Source:
        pressed = False

        def __len__(self):
            return len(stream)

        def __getitem__(self, index):
            if index == 20 and not self.pressed:
                self.pressed = True
                press(), press()
            return stream[index]

    source, em = Source(), driver(family, parameters=THETA, on_error="skip")
    with pytest.raises(KeyboardInterrupt):
        em.partial_fit(source)
    assert em.position == 20
    assert_same(
        em.partial_fit(source, skip=em.position),
        driver(family, parameters=THETA).partial_fit(stream),
    )


def test_the_users_own_handler_is_asked_between_observations(family, stream):
    heard = []

    def own(number, frame):
        heard.append(em.n_seen)

    signal.signal(signal.SIGINT, own)
    em = driver(family, e_step=Pressing(presses={5: 1}), parameters=THETA)
    assert em.partial_fit(stream).n_seen == 60
    assert heard == [5]
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is own


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_classifier_blames_nothing(on_error, rng):
    mixture = mcoem.TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    classifier = mcoem.Classifier(
        mixture,
        mixture.parameters,
        e_step=mcoem.esteps.FixedLatents(),
        on_error=on_error,
        progressbar=False,
    )
    compiled, images, calls = classifier.executor.compiled, rng.random((12, 3, 3)), []
    expected = classifier.class_probabilities(images)

    class Pressed:
        def class_probability(self, *arguments, **options):
            calls.append(1)
            for _ in range(times if len(calls) == 4 else 0):
                press()
            return compiled.class_probability(*arguments, **options)

    classifier.executor.__dict__["compiled"] = Pressed()
    for times in (1, 2):  # noqa: B007
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            classifier.class_probabilities(images)
        assert (len(calls), classifier.skipped) == (4, {})
    calls.extend([1] * 4)
    np.testing.assert_array_equal(classifier.class_probabilities(images), expected)


def test_sample_burst_ends_as_interrupted(monkeypatch):
    class Pressed(executor_module.Dispatcher):
        def prepare(self):
            pass

        def answers(self, orders):
            press()

    monkeypatch.setattr(burst_chains, "Dispatcher", Pressed)
    monkeypatch.setattr(burst_chains, "ModelScale", lambda _: None)
    monkeypatch.setattr(burst_chains, "family_density", lambda _: None)
    mixture = mcoem.TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    with pytest.raises(KeyboardInterrupt):
        mcoem.sample_burst(mixture, np.ones((3, 3)), progressbar=False)


def test_pm_sample_keeps_the_draws_that_it_has(monkeypatch, without_compiler):
    with pm.Model() as model:
        index = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 2.0 * index, 1.0)
        pm.Normal("y", x, 1.0, observed=1.0)
    step = mcoem.CarlinChib(
        model=model, within_class=mcoem.moves.RandomWalk(2), compile_kwargs={"mode": "FAST_COMPILE"}
    )
    swept, calls = step._engine.sweep, []

    def pressed(*arguments, **options):
        calls.append(1)
        if len(calls) == 31:
            press()
        return swept(*arguments, **options)

    monkeypatch.setattr(step._engine, "sweep", pressed)
    with model:
        found = pm.sample(
            step=step, tune=0, draws=60, chains=1, cores=1, random_seed=1, progressbar=False
        )
    assert 25 <= found["posterior"].sizes["draw"] <= 30


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_the_end_of_the_program_is_no_records_fault(family, stream, on_error):
    class Exiting(Noisy):
        def compile(self, family):
            return CompiledExiting(family, False)

    class CompiledExiting(CompiledNoisy):
        calls = 0

        def __call__(self, *arguments, **options):
            CompiledExiting.calls += 1
            if CompiledExiting.calls == 7:
                sys.exit(3)
            if CompiledExiting.calls == 17:
                raise SystemError("returned a result with an exception set") from SystemExit(4)
            return super().__call__(*arguments, **options)

    em = driver(family, e_step=Exiting(), parameters=THETA, on_error=on_error)
    for code in (3, 4):
        with pytest.raises(SystemExit, match=f"{code}"):
            em.partial_fit(stream, skip=em.position)
    assert_same(
        em.partial_fit(stream, skip=em.position),
        driver(family, parameters=THETA).partial_fit(stream),
    )


ELSEWHERE = [MemoryError("no memory"), OSError(5, "Input/output error"), ConnectionResetError()]


@pytest.mark.parametrize("executor", [None, "at once"])
@pytest.mark.parametrize("on_error", by_default(["raise", "skip"], {"skip"}))
@pytest.mark.parametrize("error", ELSEWHERE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("lasts", [2, 3])
def test_memory_and_disks_that_come_and_go(family, stream, on_error, error, lasts, executor):
    """What passes is tried again, with the same numbers; what lasts is raised."""
    failing = [True] * lasts

    class Failing(Noisy):
        def compile(self, family):
            return CompiledFailing(family, False)

    class CompiledFailing(CompiledNoisy):
        def __call__(self, data, parameters, rng, *arguments, **options):
            rng.normal()
            if float(data["value"]) == stream[20] and failing:
                failing.pop()
                raise error
            return super().__call__(data, parameters, rng, *arguments, **options)

    given = Threads() if executor else None
    settings = {"parameters": THETA, "on_error": on_error, "batch_size": 4}
    em = driver(family, e_step=Failing(), **settings, executor=given)
    if lasts > 2:
        with pytest.raises(type(error)):
            em.partial_fit(stream)
        assert (em.position, em.n_learned) == (24, 20)
    em.partial_fit(stream, skip=em.position)
    clean = driver(family, e_step=Failing(), **settings).partial_fit(stream)
    assert_same(em, clean)


def Threads():
    from tests.helpers.executors import AtOnce

    class InThisProcess(AtOnce):
        def submit(self, function, /, *arguments, **named):
            from concurrent.futures import Future

            future = Future()
            future.set_result(function(*arguments))
            return future

    return InThisProcess()


@pytest.mark.parametrize("error", [*ELSEWHERE, OSError("no number")])
def test_of_a_sequence_what_cannot_be_read_is_asked_for_again(family, stream, error):

    class Disk:
        def __init__(self):
            self.bad = {7: 1, 20: 2, 40: 2}

        def __len__(self):
            return len(stream)

        def __getitem__(self, index):
            if self.bad.get(index, 0):
                self.bad[index] -= 1
                raise error
            return stream[index]

    clean = driver(family, parameters=THETA).partial_fit(stream)
    em = driver(family, parameters=THETA, on_error="skip")
    assert_same(em.partial_fit(Disk()), clean)
    passes = [driver(family, parameters=THETA, on_error="skip") for _ in range(2)]
    for run, source in zip(passes, (Disk(), stream), strict=True):
        run.partial_fit(mcoem.Passes(source, n_passes=2, random_seed=1))
    assert_same(*passes)


def nested(error, within, how):
    """Return what a client of the network makes of an error: it has no number of its own."""
    if how == "reason":
        error.reason = within
    else:
        setattr(error, how, within)
    return error


GONE = [
    TimeoutError("no answer"),
    nested(OSError("<urlopen error>"), socket.gaierror(-2, "no such name"), "reason"),
    nested(
        OSError("as requests says it"),
        nested(RuntimeError("retries"), OSError(errno.EHOSTUNREACH, "no route"), "reason"),
        "__context__",
    ),
    nested(OSError("as another does"), ConnectionRefusedError(111, "refused"), "__cause__"),
]


@pytest.mark.parametrize("error", GONE, ids=str)
def test_a_machine_that_is_gone_is_no_records_fault(family, stream, error):
    em = driver(family, parameters=THETA, on_error="skip")

    class Remote:
        down = True

        def __len__(self):
            return len(stream)

        def __getitem__(self, index):
            if index >= 30 and self.down:
                raise error
            return stream[index]

    source = Remote()
    with pytest.raises(type(error)) as raised:
        em.partial_fit(source)
    assert (raised.value, em.position) == (error, 30)
    source.down = False
    em.partial_fit(source, skip=30)
    assert_same(em, driver(family, parameters=THETA).partial_fit(stream))


def test_an_error_within_the_handling_of_an_interrupt_is_one():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        try:
            raise ValueError("its own")
        except ValueError as error:
            require_own_fault(error)
            raise_if_interrupted(error)
    with pytest.raises(KeyboardInterrupt):
        try:
            try:
                raise SystemError from KeyboardInterrupt()
            except SystemError:
                raise SystemError("as PyTensor says it anew")  # noqa: B904
        except SystemError as error:
            require_own_fault(error)


SLOW_TO_IMPORT = """
import builtins, time
builtins.imports_of_it = getattr(builtins, "imports_of_it", 0) + 1
for _ in range(50):
    time.sleep(0.01)
is_whole = True
"""


def test_an_import_goes_on_when_its_caller_is_interrupted(tmp_path, monkeypatch):
    """A compiled module that was half imported may never work again in the process."""
    (tmp_path / "slow_to_import.py").write_text(SLOW_TO_IMPORT)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt), Pressed(0.1):
        import_whole("slow_to_import")
    import_whole("slow_to_import")
    found = sys.modules.pop("slow_to_import")
    assert found.is_whole and found.builtins.imports_of_it == 1
    del found.builtins.imports_of_it


def test_a_signal_is_not_hidden_behind_an_error():
    with pytest.raises(KeyboardInterrupt), deferred():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("a record that is refused")
    assert with_retries(lambda: 3) == 3


class Pressed:
    """Presses Ctrl-C once, so many seconds from now, in a process of its own time."""

    def __init__(self, seconds):
        self._timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))

    def __enter__(self):
        self._timer.start()

    def __exit__(self, *_):
        self._timer.cancel()
        self._timer.join()


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("size", [None, 2])
def test_templates_at_forty_instants(rng, on_error, size):
    images = rng.normal(size=(300, 6, 6)) + rng.choice([0.0, 2.0], size=(300, 1, 1))
    mixture = mcoem.TemplateMixture.for_images((6, 6), n_classes=2, n_landmarks=2)

    def learner(executor):
        return OnlineEM(
            mixture,
            n_start=6,
            batch_size=4,
            on_error=on_error,
            random_seed=1,
            progressbar=False,
            executor=executor,
        )

    clean, em = learner(None).partial_fit(images), learner(size)
    em.partial_fit(images[:8])  # compiled before the clock runs
    heard = 0
    for number in range(1, 41):
        try:
            with Pressed(rng.uniform(0.0, 0.2)):
                em.partial_fit(images[: 8 + 7 * number], skip=em.position)
                time.sleep(0.25)
        except KeyboardInterrupt:
            heard += 1
    assert heard == 40
    em.partial_fit(images, skip=em.position)
    assert "skipped" not in em.history.children
    assert_same(em, clean)


def once(call):
    """Return what makes a call the first time that it is asked."""
    left = [call]
    return lambda: left.pop()() if left else None


@pytest.mark.slow
def test_chains_at_forty_instants(rng):
    """At any instant from the first draw on; before it PyMC has no draws to return."""
    with pm.Model():
        index = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 2.0 * index, 1.0)
        pm.Normal("y", x, 1.0, observed=1.0)
        settings = {
            "step": mcoem.CarlinChib(),
            "tune": 0,
            "draws": 20_000,
            "chains": 1,
            "cores": 1,
            "random_seed": 1,
            "progressbar": False,
        }
        drawn = []
        whole = pm.sample(callback=lambda **_: drawn.append(time.monotonic()), **settings)
        whole, longest, lengths = whole["posterior"], drawn[-1] - drawn[0], []
        for _ in range(40):
            pressed = Pressed(rng.uniform(0.0, 0.9 * longest))
            began = once(pressed.__enter__)
            try:
                found = pm.sample(callback=lambda began=began, **_: began(), **settings)
            finally:
                pressed.__exit__()
            found = found["posterior"]
            lengths.append(found.sizes["draw"])
            assert found.equals(whole.isel(draw=slice(lengths[-1])))
    assert np.median(lengths) < 20_000


class PressedInAll(Pressed):
    """Presses Ctrl-C as a terminal does: in this process, and in those that it has started."""

    def __init__(self, seconds):
        self._timer = threading.Timer(seconds, self._press)

    def _press(self):
        # as a set, for to ask for the active ones would collect those that have ended
        for pid in [os.getpid(), *(child.pid for child in set(multiprocessing.process._children))]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)


def left_over(seconds=10.0):
    """Return the processes that are still there after so many seconds at most."""
    end = time.monotonic() + seconds
    while (found := multiprocessing.active_children()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(
    ("most", "tells"),
    by_default(product([2, 40], [Pressed, PressedInAll]), {(2, PressedInAll)}),
    ids=["2-button", "2-terminal", "40-button", "40-terminal"],
)
def test_chains_in_processes_end_as_those_of_pymc_do(tells, most, rng, capfd):
    """At any instant from the first draw on: draws that are a whole chain's first, no worker left.

    Before it PyMC starts processes, which it leaves waiting if it is interrupted between two of
    them, whatever the step method.
    """
    with pm.Model():
        index = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 2.0 * index, 1.0)
        pm.Normal("y", x, 1.0, observed=1.0)
        settings = {
            "step": mcoem.CarlinChib(),
            "tune": 100,
            "draws": 1_500,
            "chains": 2,
            "cores": 2,
            "mp_ctx": "fork",
            "random_seed": 1,
            "progressbar": False,
            "compute_convergence_checks": False,
        }
        drawn = []
        whole = pm.sample(callback=lambda **_: drawn.append(time.monotonic()), **settings)
        whole, longest, ends = whole["posterior"].to_dataset(), drawn[-1] - drawn[0], []
        for _ in range(most):
            pressed = tells(rng.uniform(0.0, longest))
            began = once(pressed.__enter__)
            try:
                found = pm.sample(callback=lambda began=began, **_: began(), **settings)
                pressed.__exit__()  # here, for it may be pressed when the chains are through
            except KeyboardInterrupt:
                ends.append("interrupt")
            except ValueError as error:  # PyMC's own word for it
                assert "Not enough samples" in str(error)
                ends.append("none")
            else:
                found = found["posterior"].to_dataset()
                ends.append(found.sizes["draw"])
                first = whole["x"].isel(draw=slice(ends[-1])).values
                # of one that is left PyMC does not say which it is
                numbers = [np.flatnonzero((first == own).all(axis=1)) for own in found["x"].values]
                for chain, (number,) in enumerate(numbers):
                    expected = whole.isel(chain=number, draw=slice(ends[-1]))
                    assert (
                        found["k"].isel(chain=chain).values.tolist()
                        == expected["k"].values.tolist()
                    )
            finally:
                pressed.__exit__()
            assert not left_over()
    assert any(end != whole.sizes["draw"] for end in ends), ends
    assert "SystemError" not in "".join(capfd.readouterr())


SCRIPT = """
import multiprocessing, os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor
import numpy as np
from pymc_mcoem.runs.workers import ExecutorError
from tests.helpers.pressing import Spinning, press_not_yet
from tests.helpers.toy_families import NormalMixture
from tests.helpers.toy_runs import THETA, driver

kind, on_error, path, folder = sys.argv[1:5]


def main():
    values = np.load(folder + "/values.npy")
    family, times = NormalMixture(), 0
    press_not_yet()
    executor = None if kind == "none" else 2
    if kind in ("fork", "spawn", "forkserver"):
        executor = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(kind))
    settings = {"e_step": Spinning(), "batch_size": 4, "on_error": on_error, "executor": executor}
    em, done = driver(family, parameters=THETA, **settings), False
    saved = {"checkpoint": path} if path != "-" else {}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("ready", flush=True)
    while not done:
        try:
            while not done:
                em.partial_fit(values, skip=em.position, **saved)
                done = True
        except (KeyboardInterrupt, ExecutorError):  # a server of forks that dies as it begins
            times += 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert "skipped" not in em.history.children
    em.save(folder + "/end.nc")
    print(times, flush=True)
    os._exit(0)  # a pool that a signal has broken may not end


if __name__ == "__main__":
    main()
"""


def interrupted_run(kind, on_error, saved, rng, folder, most, values):
    """Press Ctrl-C as a terminal does, at random instants; return how often the run heard it."""
    np.save(folder / "values.npy", values)
    (folder / "script.py").write_text(SCRIPT)
    path = str(folder / "run.nc") if saved else "-"
    process = subprocess.Popen(
        [sys.executable, str(folder / "script.py"), kind, on_error, path, str(folder)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        process_group=0,
        text=True,
    )
    try:
        with process.stdout:
            assert process.stdout.readline() == "ready\n"
            for _ in range(most):
                time.sleep(rng.uniform(0.0, 0.1))
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGINT)
            heard = process.stdout.readline()
            process.wait(300)
    finally:
        # workers of a pool that broke are of its group too
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0
    return int(heard)


KINDS = ["none", "number", "fork", "spawn", "forkserver"]


@pytest.mark.parametrize(
    ("kind", "on_error", "saved", "most"),
    [
        pytest.param("none", "skip", False, 8, marks=pytest.mark.slow),
        ("fork", "raise", True, 8),
        *(
            pytest.param(kind, on_error, saved, 40, marks=pytest.mark.slow)
            for kind in KINDS
            for on_error in ("raise", "skip")
            for saved in (False, True)
        ),
    ],
)
def test_at_any_instant_nothing_is_lost(kind, on_error, saved, most, rng, tmp_path):
    values = mixture_stream(rng, 40 * most)
    heard = interrupted_run(kind, on_error, saved, rng, tmp_path, most, values)
    assert heard >= most / 4
    found = OnlineEM.load(
        tmp_path / "end.nc", NormalMixture(), e_step=Spinning(), progressbar=False
    )
    clean = driver(NormalMixture(), parameters=THETA, batch_size=4).partial_fit(values)
    assert_same(found, clean)


def drivers(family, stream):
    """Return calls of which each learns all of a stream, and what it has learned."""

    def online(path):
        em = driver(family, n_start=4)
        return lambda: em.partial_fit(stream, skip=em.position, checkpoint=path).parameters

    def batch(path):
        saem = SAEM(family, e_step=Noisy(), draws=4, random_seed=1, progressbar=False)

        def fit():
            left = 2 - saem.n_iterations
            return (saem.fit(stream, left, checkpoint=path) if left else saem).parameters

        return fit

    return {"online": online, "saem": batch}


@pytest.mark.parametrize("kind", ["online", "saem"])
@pytest.mark.parametrize("some", [6, pytest.param(None, marks=pytest.mark.slow)])
def test_pressed_as_any_function_is_called_nothing_is_lost_or_held(
    kind, some, tmp_path, rng, monkeypatch
):
    """Locks, files and the handler are given back, and the same call goes on to the same end."""
    if some is None:
        without_hdf5(monkeypatch)
    stream = mixture_stream(rng, 10)
    make = drivers(NormalMixture(), stream)[kind]
    for name in ("first", "again"):  # when nothing is made anew
        clean = make(tmp_path / f"{name}.nc")
        with fault_at(None) as made:
            expected = clean()
    # those behind the handler are heard by nobody
    for number in chosen(len(made), rng, some):
        folder = tmp_path / str(number)
        folder.mkdir()
        call = make(folder / "run.nc")
        with suppress(KeyboardInterrupt), fault_at(number, lambda: signal.raise_signal(2)):
            call()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert not file_lock._held
        assert not any(each.name.startswith(".") for each in folder.iterdir())
        assert call().identical(expected), made[number - 1]


@pytest.mark.parametrize("saved", [False, True])
def test_of_a_held_start_the_first_waits_for_one_observation(family, stream, tmp_path, saved):
    em = driver(family, e_step=Pressing(presses={3: 1}), n_start=50)
    with pytest.raises(KeyboardInterrupt, match="stopped between two observations"):
        em.partial_fit(stream, checkpoint=tmp_path / "run.nc" if saved else None)
    assert em.n_learned == 3


def test_with_a_checkpoint_too_a_handler_is_asked_and_an_error_hides_nothing(family, tmp_path):
    def source():
        yield 0.5
        signal.raise_signal(signal.SIGINT)
        raise ValueError("the source's own")

    em = driver(family, parameters=THETA)
    with pytest.raises(KeyboardInterrupt):
        em.partial_fit(source(), checkpoint=tmp_path / "run.nc")
    heard = []

    def own(*_):
        heard.append(em.n_seen)

    signal.signal(signal.SIGINT, own)
    em = driver(family, e_step=Pressing(presses={5: 1}), parameters=THETA)
    em.partial_fit(np.linspace(-1.0, 1.0, 9), checkpoint=tmp_path / "other.nc")
    assert (heard, em.n_seen) == ([5], 9)
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is own


def test_reading_a_batch_run_can_be_ended(family, stream, tmp_path):
    read = []

    def source():
        for value in stream:
            read.append(value)
            if len(read) == 5:
                signal.raise_signal(signal.SIGINT)
            yield value

    saem = SAEM(family, e_step=Noisy(), random_seed=1, progressbar=False)
    with pytest.raises(KeyboardInterrupt):
        saem.fit(source(), 1, checkpoint=tmp_path / "run.nc")
    assert (len(read), saem.n_iterations) == (5, 0)


def ended_at(monkeypatch, where, name, error):
    def ended(*_, **__):
        raise error

    monkeypatch.setattr(where, name, ended)


STOPS = [SystemError("interrupted"), MemoryError(), OSError(errno.EIO, "Input/output error")]
STOPS[0].__cause__ = KeyboardInterrupt()


@pytest.mark.parametrize("stop", STOPS, ids=lambda error: type(error).__name__)
def test_nothing_is_concluded_from_what_passes(family, tmp_path, stop, monkeypatch):
    expected = KeyboardInterrupt if isinstance(stop, SystemError) else type(stop)
    driver(family).partial_fit([0.1, 0.2]).save(tmp_path / "run.nc")
    with pytest.raises(expected), named_damage("run.nc"):
        raise stop
    with monkeypatch.context() as patched:
        ended_at(patched, fingerprint, "_evaluated", stop)
        with pytest.raises(expected):
            fingerprint.Fingerprint().compile(family)
    with monkeypatch.context() as patched:
        ended_at(patched, streams, "_prepared", stop)
        # a record on a bad sector is at fault itself, and the next one is asked
        with nullcontext() if isinstance(stop, OSError) else pytest.raises(expected):
            assert not streams._has_batches(family, iter([0.5]))
    dispersed_search = object.__new__(dispersed.DispersedSearch)
    dispersed_search._n_prior_draws, dispersed_search._density = 1, FakeDensity()
    dispersed_search._prior = lambda *_: (_ for _ in ()).throw(stop)
    with pytest.raises(expected):
        dispersed_search._drawn(0, np.zeros(2), np.random.default_rng(1), [])
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=3)
        x = pm.Normal("x", 1.0 * k, 1.0, shape=3)
    density = PlateDensity(model, k, [x])
    search = plate.PlateLaplace(density)
    search._prior = FakeDraws(stop)
    with pytest.raises(expected):
        search(density.others(model.initial_point()), np.random.default_rng(1))
    ended_at(monkeypatch, plate, "PriorDraws", stop)
    with pytest.raises(expected):
        plate.PlateLaplace(density)


class FakeDensity:
    def arguments(self, *_):
        return []


class FakeDraws:
    def __init__(self, stop):
        self.stop = stop

    def reseed(self, _):
        raise self.stop


def test_a_burst_returns_the_chains_that_are_done(monkeypatch, caplog):
    mixture = mcoem.TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    options = {"draws": 20, "tune": 5, "random_seed": 1, "progressbar": False}
    whole = mcoem.sample_burst(mixture, np.ones((3, 3)), **options)

    class Pressed(executor_module.Dispatcher):
        def answers(self, orders):
            found = super().answers(orders)
            yield next(found)
            yield next(found)
            press()

    monkeypatch.setattr(burst_chains, "Dispatcher", Pressed)
    found = mcoem.sample_burst(mixture, np.ones((3, 3)), **options)
    assert found["posterior"].equals(whole["posterior"].isel(chain=slice(2)))
    assert "interrupted; 2 of 4 chains are done" in caplog.text


OTHERS = """
import asyncio, multiprocessing, os, signal, sys, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import numpy as np
import pymc_mcoem as mcoem
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.runs.workers import ExecutorError
from tests.helpers.pressing import Spinning, press_not_yet
from tests.helpers.toy_families import NormalMixture
from tests.helpers.toy_runs import THETA, driver

kind, workers, folder, most = *sys.argv[1:4], int(sys.argv[4])


def made():
    if workers == "processes":
        return 2
    if workers == "loky":
        from joblib.externals.loky import ProcessPoolExecutor as Loky

        return Loky(2)
    if workers == "threads":
        return ThreadPoolExecutor(2)
    if workers == "dask":
        from distributed import Client

        client = Client(n_workers=2, threads_per_worker=1, dashboard_address=None)
        return client.get_executor(pure=False)
    return None


def work(executor):
    rng = np.random.default_rng(5)
    values = np.load(folder + "/values.npy")
    if kind == "online":
        em = driver(
            NormalMixture(), parameters=THETA, e_step=Spinning(), batch_size=4, executor=executor
        )
        return lambda: em.partial_fit(values, skip=em.position).parameters.to_array().values
    if kind == "saem":
        family = NormalMixture()
        options = {"e_step": Spinning(), "random_seed": 1, "progressbar": False}
        saem = SAEM(family, **options, on_error="skip", executor=executor)

        def fit():
            if (left := most // 2 - saem.n_iterations) > 0:
                saem.fit(values[:60], left)
            assert "skipped" not in saem.history.children
            return saem.parameters.to_array().values

        return fit
    images = rng.random((40 * most, 3, 3))
    mixture = mcoem.TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    if kind == "classifier":
        classifier = mcoem.Classifier(
            mixture,
            mixture.parameters,
            e_step=mcoem.esteps.FixedLatents(),
            on_error="skip",
            random_seed=1,
            progressbar=False,
            executor=executor,
        )
        found = []

        def classify():  # in pieces, or it would never end
            while len(found) < most:
                at = 40 * len(found)
                one = classifier.class_probabilities(images[at : at + 40])
                assert not classifier.skipped
                found.append(one)
            return np.concatenate(found)

        return classify
    bursts = []

    def sample():
        while len(bursts) < 4:  # workers of a burst are made anew, and compile
            whole = mcoem.sample_burst(
                mixture,
                images[0],
                draws=20_000,
                chains=2,
                random_seed=len(bursts),
                progressbar=False,
                executor=executor,
            )["posterior"]["class_index"].values
            if len(whole) < 2:  # interrupted behind the first: what is there is whole
                raise KeyboardInterrupt
            bursts.append(whole)
        return np.stack(bursts)

    return sample


def main():
    press_not_yet()
    call, times = work(made()), 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("ready", flush=True)
    found = None
    while found is None:
        try:  # twice, for one may be pressed as another is counted
            while found is None:
                try:
                    while found is None:
                        found = call()
                except (KeyboardInterrupt, ExecutorError):
                    times += 1
        except KeyboardInterrupt:
            times += 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    np.save(folder + "/found.npy", found)
    print(times, flush=True)
    os._exit(0)


async def cell():
    main()


if __name__ == "__main__":
    # as a kernel runs a cell: within a loop, in the main thread, under Python's own handler
    asyncio.new_event_loop().run_until_complete(cell()) if workers == "notebook" else main()
"""


def ended_run(kind, workers, rng, folder, most, pressed):
    """Return what a run ends with that is interrupted, or not, and how often it was."""
    (folder / "others.py").write_text(OTHERS)
    process = subprocess.Popen(
        [sys.executable, str(folder / "others.py"), kind, workers, str(folder), str(most)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        process_group=0,
        text=True,
    )
    try:
        with process.stdout:
            assert process.stdout.readline() == "ready\n"
            longest = 1.0 if kind == "burst" else 0.15
            for _ in range(most if pressed else 0):
                time.sleep(rng.uniform(0.0, longest))
                if process.poll() is None:
                    # A kernel's stop button tells the kernel, a terminal all of its programs.
                    # Dask's workers would end at it, and Dask would wait for new ones.
                    tell = os.kill if workers in ("notebook", "dask") else os.killpg
                    tell(process.pid, signal.SIGINT)
            heard = process.stdout.readline()
            process.wait(300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0
    return np.load(folder / "found.npy"), int(heard)


@pytest.mark.parametrize(
    ("kind", "workers", "most"),
    [
        ("saem", "none", 6),
        *(
            pytest.param(kind, workers, 40, marks=pytest.mark.slow)
            for kind in ("saem", "classifier", "burst")
            for workers in ("none", "processes")
        ),
        *(
            pytest.param("online", workers, 40, marks=pytest.mark.slow)
            for workers in ("loky", "threads", "dask", "notebook")
        ),
    ],
)
def test_whoever_works_nothing_is_lost_at_any_instant(kind, workers, most, rng, tmp_path):
    if workers == "dask":
        pytest.importorskip("distributed")
    np.save(tmp_path / "values.npy", mixture_stream(rng, 40 * most))
    expected, none = ended_run(kind, "none", rng, tmp_path, most, pressed=False)
    found, heard = ended_run(kind, workers, rng, tmp_path, most, pressed=True)
    assert (none, found.shape) == (0, expected.shape)
    assert heard >= most / 8
    np.testing.assert_array_equal(found, expected)


class ExitingAt7(Noisy):
    """An E-step that ends its worker's program at 7, as often as there are files to remove."""

    def compile(self, family):
        return CompiledExitingAt7(family, False)


class CompiledExitingAt7(CompiledNoisy):
    def __call__(self, data, *arguments, **options):
        if float(data["value"]) == 7.0:
            sys.exit(3)
        return super().__call__(data, *arguments, **options)


@pytest.mark.parametrize("on_error", by_default(["raise", "skip"], {"skip"}))
def test_sys_exit_inside_a_worker_is_no_records_fault(family, stream, on_error):
    em = driver(family, e_step=ExitingAt7(), parameters=THETA, on_error=on_error, executor=2)
    with pytest.raises(SystemExit, match="3"):
        em.partial_fit([*stream[:5], 7.0])
    em.run.executor.close()
    assert (em.position, em.n_learned) == (6, 5)
    assert "skipped" not in em.history.children


CELL = """
import numpy as np
from pymc_mcoem.em.online import OnlineEM
from tests.helpers.pressing import Spinning, press_not_yet
from tests.helpers.toy_families import NormalMixture
from tests.helpers.toy_runs import THETA, driver

values = np.load("values.npy")
press_not_yet()
settings = {{"e_step": Spinning(), "batch_size": 4, "executor": {executor}}}
em = driver(NormalMixture(), parameters=THETA, **settings).partial_fit(values[:8])
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", [None, 2])
def test_a_notebooks_stop_button_loses_nothing(executor, rng, tmp_path):
    """That of a kernel, which tells the workers too."""
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    values, heard = mixture_stream(rng, 1600), 0
    np.save(tmp_path / "values.npy", values)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    server, client = manager.start_new_kernel(env=environment, cwd=str(tmp_path))

    def run(cell, press=False):
        """Return the error that a cell ends with, or None."""
        number = client.execute(cell)
        if press:
            time.sleep(rng.uniform(0.0, 0.15))
            server.interrupt_kernel()
        try:
            while (reply := client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != number:
                pass
        except queue.Empty:
            if not press:
                raise
            return run(cell)  # interrupted as it took up a cell, a kernel may forget the cell
        if reply["content"]["status"] == "aborted":  # what comes right after an error is not run
            return run(cell)
        return reply["content"].get("ename")

    try:
        assert run(CELL.format(executor=executor)) is None
        for _ in range(40):
            found = run("em.partial_fit(values, skip=em.position)", press=True)
            assert found in (None, "KeyboardInterrupt")
            heard += found is not None
        assert run("em.partial_fit(values, skip=em.position)") is None
        assert run("em.save('end.nc'); em.run.executor.close()") is None
    finally:
        client.stop_channels()
        server.shutdown_kernel(now=True)
    assert heard >= 10
    end = OnlineEM.load(tmp_path / "end.nc", NormalMixture(), e_step=Spinning(), progressbar=False)
    assert_same(end, driver(NormalMixture(), parameters=THETA, batch_size=4).partial_fit(values))
