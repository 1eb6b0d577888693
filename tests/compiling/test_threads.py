"""What the threads of one program share, and what a forked process must not inherit."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytensor
import pytest
import threadpoolctl

import pymc_mcoem as mcoem
from pymc_mcoem.compiling.threads import OneAtATime, one_blas_thread, one_call_at_a_time
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from tests.helpers.toy_families import CompiledNoisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import assert_same, driver

WAIT = 20.0


def blas_threads():
    found = threadpoolctl.threadpool_info()
    return {each["num_threads"] for each in found if each["user_api"] == "blas"}


@pytest.fixture
def two_blas_threads():
    with threadpoolctl.threadpool_limits(2):
        yield blas_threads()


def test_the_last_thread_that_leaves_gives_blas_its_threads_back(two_blas_threads):
    inside, left = threading.Event(), threading.Event()

    def first():
        with one_blas_thread():
            inside.set()
            assert left.wait(WAIT)
            return blas_threads()

    with ThreadPoolExecutor(1) as pool:
        with one_blas_thread():
            found = pool.submit(first)
            assert inside.wait(WAIT)
        # one has left, the other is still within
        assert blas_threads() == {1}
        left.set()
        assert found.result() == {1}
    assert blas_threads() == two_blas_threads


def test_blas_has_its_threads_back_after_an_error(two_blas_threads):
    with pytest.raises(ZeroDivisionError), one_blas_thread(), one_blas_thread():
        raise ZeroDivisionError
    assert blas_threads() == two_blas_threads


def _call(answer):
    with one_call_at_a_time(), one_blas_thread():
        answer.put(1)


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here"
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_forked_while_another_thread_works_can_work_too():
    inside, done = threading.Event(), threading.Event()

    def work():
        with one_call_at_a_time(), one_blas_thread():
            inside.set()
            assert done.wait(WAIT)

    context = multiprocessing.get_context("fork")
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        assert inside.wait(WAIT)
        answer = context.SimpleQueue()
        process = context.Process(target=_call, args=(answer,))
        process.start()
        process.join(WAIT)
        alive = process.is_alive()
        process.kill()
        done.set()
        working.result()
    assert not alive
    assert answer.get() == 1


@dataclass(frozen=True)
class Slow:
    """Takes its time to compile, and tells with what."""

    number: int
    found: list = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def compile(self, family):
        self.begun.set()
        assert self.go_on.wait(WAIT)
        self.found.append(family.model["means"].get_value())
        self.found.append(pytensor.config.numba__fastmath)
        return CompiledNoisy(family, False)


def test_two_threads_compile_one_after_the_other_and_for_the_declared_model():
    family = NormalMixture()
    declared = family.declared_parameters()["means"]
    family.set_model_parameters(family.declared_parameters() | {"means": np.full(3, 9.0)})
    first, second = Slow(1), Slow(2)
    before = pytensor.config.numba__fastmath
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(compiled_for, family, first)
        assert first.begun.wait(WAIT)
        other = pool.submit(compiled_for, family, second)
        second.go_on.set()
        # the second waits for the first, and does not find the model as the first one has it
        assert not second.begun.wait(0.2)
        first.go_on.set()
        one.result(), other.result()
    for means, fastmath in (first.found, second.found):
        np.testing.assert_array_equal(means, declared)
        assert not fastmath
    assert pytensor.config.numba__fastmath == before
    np.testing.assert_array_equal(family.model["means"].get_value(), np.full(3, 9.0))


def learner(kind, **options):
    """Return an object that learns or classifies small images, and its call."""
    mixture = mcoem.TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    given = {"e_step": mcoem.esteps.FixedLatents(), "random_seed": 1, "progressbar": False}
    given, theta = given | options, mixture.parameters
    if kind == "classifier":
        classifier = mcoem.Classifier(mixture, theta, **given)
        return classifier, classifier.class_probabilities
    if kind == "saem":
        saem = mcoem.SAEM(mixture, parameters=theta, **given)
        return saem, lambda source: saem.fit(source, 1).parameters
    em = mcoem.OnlineEM(mixture, parameters=theta, **given)
    return em, lambda source: em.partial_fit(source).parameters


@pytest.mark.parametrize("kind", ["online", "saem", "classifier"])
def test_a_second_call_of_one_object_is_refused(kind, rng):
    """From another thread or from within itself; the first one loses nothing."""
    images = rng.random((9, 3, 3))
    expected = learner(kind)[1](images)
    _, call = learner(kind)
    heard = []

    def again():
        try:
            call(images)
        except RuntimeError as error:
            heard.append(str(error))

    def source():
        for number, image in enumerate(images):
            if number == 4:
                again()
                thread = threading.Thread(target=again)
                thread.start()
                thread.join()
            yield image

    found = call(source())
    if isinstance(found, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found.identical(expected)
    within, elsewhere = heard
    assert "called from within itself" in within
    assert "another thread is at work with the same object" in elsewhere
    # and the first one has let go
    assert call(images) is not None


@pytest.mark.parametrize("kind", ["online", "saem", "classifier"])
def test_what_is_at_work_is_pickled_whole_or_not_at_all(kind, rng):
    """With workers of its own; a run by its own thread only, in which it stands still."""
    images, copies, heard = rng.random((9, 3, 3)), [], []
    made, call = learner(kind, executor=1)

    def pickled():
        try:
            copies.append(pickle.dumps(made))
        except RuntimeError as error:
            heard.append(str(error))

    def source():
        for number, image in enumerate(images):
            if number == 4:
                pickled()
                thread = threading.Thread(target=pickled)
                thread.start()
                thread.join()
            yield image

    call(source())
    if kind == "classifier":
        assert len(copies) == 2 and not heard
    else:
        (said,) = heard
        assert "another thread is at work with the same object" in said
    pickled()
    dispatcher = getattr(made, "run", made).executor
    dispatcher.close()
    for one in map(pickle.loads, copies):
        again = getattr(one, "run", one).executor
        assert again.is_remote and again._executor is None
    if kind != "classifier":
        assert one.parameters.identical(made.parameters)


def test_a_run_of_a_model_of_ones_own_is_pickled(rng):
    em = driver(NormalMixture(), n_start=4).partial_fit(mixture_stream(rng, 9))
    other, more = pickle.loads(pickle.dumps(em)), mixture_stream(rng, 9)
    assert_same(other.partial_fit(more), em.partial_fit(more))


@pytest.mark.parametrize("kind", ["online", "saem", "classifier"])
def test_an_executor_that_cannot_be_pickled_is_named(kind):
    with ThreadPoolExecutor(1) as pool:
        made, _ = learner(kind, executor=pool)
        with pytest.raises(
            TypeError, match=r"executor: got .*ThreadPoolExecutor.* a number of pro"
        ):
            pickle.dumps(made)


def test_a_copy_of_a_driver_that_is_at_work_has_a_guard_of_its_own():
    guard = OneAtATime("this")
    with guard.call():
        for other in (copy.deepcopy(guard), pickle.loads(pickle.dumps(guard))):
            with other.call():
                pass
