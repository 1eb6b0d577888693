"""Callbacks of the drivers: when they are called, what they see, and what ends with them."""

from __future__ import annotations

import os
import pickle
import re
import threading

import numpy as np
import pytest
import xarray as xr

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from tests.helpers.toy_families import EvidentMixture, Noisy, mixture_stream
from tests.helpers.toy_runs import THETA, WAYS, assert_same, driver


def batch(family, **settings):
    given = {"e_step": Exact(), "parameters": THETA, "random_seed": 1, "progressbar": False}
    return SAEM(family, **(given | settings))


def without_times(em):
    return {
        group: em.history[group].to_dataset().drop_vars("seconds")
        for group in ("steps", "observations")
    }


def assert_same_batch(one, other):
    xr.testing.assert_identical(one.parameters, other.parameters)
    for group, found in without_times(one).items():
        xr.testing.assert_identical(found, without_times(other)[group])


class Stop:
    """Ends the call after so many observations, by StopIteration or another exception."""

    def __init__(self, after, error=StopIteration):
        self.after, self.error = after, error

    def __call__(self, update):
        if update[-1].number >= self.after and self.error is not None:
            raise self.error


@pytest.mark.parametrize("way", WAYS)
def test_a_callback_sees_the_run_as_after_each_step(family, stream, way):
    seen, last = [], []
    em = driver(family, callbacks=[lambda update: seen.append(look(update))], **WAYS[way])

    def look(update):
        assert update.driver is em
        state = em.run.state
        last[:] = [em.learned_parameters]
        return state.n_steps, state.n_learned, [record.number for record in update]

    em.partial_fit(stream[:31]).partial_fit(stream[31:])
    size = em.run.settings.batch_size
    assert [step for step, *_ in seen] == list(range(1, em.run.state.n_steps + 1))
    for step, learned, numbers in seen:
        assert numbers == list(range((step - 1) * size + 1, step * size + 1))
        assert learned == numbers[-1]
    xr.testing.assert_identical(last[0], em.learned_parameters)
    assert_same(em, driver(family, **WAYS[way]).partial_fit(stream))


def test_records_are_those_of_the_history(family, stream):
    records = []
    em = driver(family, parameters=THETA, callbacks=[records.extend], batch_size=4)
    em.partial_fit(stream)
    found = np.array([record.class_weight for record in records])
    np.testing.assert_array_equal(found, em.history["observations"]["class_weight"])


def test_an_update_is_a_sequence_of_records(family, stream):
    updates = []
    driver(family, parameters=THETA, callbacks=[updates.append], batch_size=4).partial_fit(stream)
    first = updates[0]
    assert len(first) == 4
    assert [record.number for record in first] == [1, 2, 3, 4]
    assert first[-1].number == 4
    assert first[1:3] == first.records[1:3]
    with pytest.raises(AttributeError):
        first.driver = None


def test_an_update_of_a_batch_run_is_an_iteration(family, stream):
    seen = []

    def look(update):
        saem = update.driver
        xr.testing.assert_identical(saem.learned_parameters, saem.parameters)
        seen.append((saem.n_iterations, [record.number for record in update]))

    saem = batch(family, callbacks=[look]).fit(stream[:7], 2).fit(stream[:7], 1)
    assert seen == [(k + 1, list(range(7 * k + 1, 7 * k + 8))) for k in range(3)]
    assert_same_batch(saem, batch(family).fit(stream[:7], 3))


def test_they_are_called_in_order(family, stream):
    called, names = [], ["first", "second"]
    em = driver(
        family,
        parameters=THETA,
        callbacks=[lambda _, name=name: called.append(name) for name in names],
    )
    em.partial_fit(stream[:2])
    assert called == names * 2


def test_reading_and_preparing_call_nothing(family, stream):
    called = []
    em = driver(family, parameters=THETA, batch_size=4, callbacks=[called.append])
    em.prepare(stream[0])
    em.partial_fit(stream[:3])
    assert em.parameters is not None
    assert em.learned_parameters is not None
    assert called == []


def test_stopping_is_as_if_the_stream_ended_there(family, stream):
    called = []
    em = driver(family, n_start=20, callbacks=[Stop(13), lambda update: called.append(len(update))])
    source = iter(stream)
    # within the observations that were held for the start
    em.partial_fit(source)
    assert (em.n_learned, em.n_seen, em.position) == (13, 20, 20)
    assert len(called) == 13  # those after the one that stops are called as well
    assert next(source) == stream[20]
    em.callbacks = [Stop(44)]
    em.partial_fit(stream, skip=em.position)
    assert (em.n_learned, em.position) == (44, 44)
    assert_same(em, driver(family, n_start=20).partial_fit(stream[:44]))
    em.callbacks = ()
    assert_same(em.partial_fit(stream[44:]), driver(family, n_start=20).partial_fit(stream))


def test_a_call_that_stops_among_what_was_held_reads_nothing(family, stream):
    em = driver(family, n_start=20).partial_fit(stream[:5])
    em.callbacks = [Stop(2)]
    em.partial_fit(stream[5:20])
    assert em.n_learned == 2

    def unread():
        raise AssertionError("the source was asked")
        yield

    em.callbacks = [Stop(3)]
    em.partial_fit(unread())
    assert (em.n_learned, em.position) == (3, 20)


def test_a_batch_run_stops_after_an_iteration(family, stream):
    saem = batch(family, callbacks=[Stop(3 * 60)]).fit(stream, 10)
    assert saem.n_iterations == 3
    assert_same_batch(saem, batch(family).fit(stream, 3))


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_loses_nothing(tmp_path, family, stream, way):
    path, settings = tmp_path / "run.nc", WAYS[way]
    em = driver(family, callbacks=[Stop(23, OSError(28, "no space"))], **settings)
    with pytest.raises(OSError, match="no space"):
        em.partial_fit(stream, checkpoint=path)
    size = settings.get("batch_size", 1)
    assert em.n_learned == -(-23 // size) * size
    saved = OnlineEM.load(path, family, e_step=Noisy(), progressbar=False)
    assert saved.position == em.position
    for found in (em, saved):
        found.callbacks = ()
        found.partial_fit(stream, skip=found.position)
        assert_same(found, driver(family, **settings).partial_fit(stream))


def test_an_exception_loses_no_iteration(tmp_path, family, stream):
    path = tmp_path / "run.nc"
    saem = batch(family, callbacks=[Stop(2 * 60, ZeroDivisionError)])
    with pytest.raises(ZeroDivisionError):
        saem.fit(stream, 5, checkpoint=path)
    for found in (saem, SAEM.load(path, family, progressbar=False)):
        found.callbacks = ()
        assert found.n_iterations == 2
        assert_same_batch(found.fit(stream, 3), batch(family).fit(stream, 5))


@pytest.mark.parametrize("make", [driver, batch])
def test_a_callback_cannot_let_its_driver_learn(family, stream, make):
    learn = {
        driver: lambda em: em.partial_fit(stream[:3]),
        batch: lambda saem: saem.fit(stream, 1),
    }[make]
    em = make(family, parameters=THETA, callbacks=[lambda update: learn(update.driver)])
    with pytest.raises(RuntimeError, match="called from within itself, by its source or a callb"):
        learn(em)
    em.callbacks = ()
    n = em.run.state.n_steps
    assert n == 1
    learn(em)
    assert em.run.state.n_steps > n


def test_a_callback_may_save_and_copy_its_driver(tmp_path, family, stream):
    path, copies = tmp_path / "run.nc", []

    def keep(update):
        if update[-1].number == 30:
            update.driver.save(path)
            copies.append(pickle.loads(pickle.dumps(update.driver)))

    driver(family, parameters=THETA, callbacks=[keep]).partial_fit(stream)
    for found in (OnlineEM.load(path, family, e_step=Noisy(), progressbar=False), *copies):
        assert found.callbacks == ()
        assert_same(found, driver(family, parameters=THETA).partial_fit(stream[:30]))


def test_files_and_copies_hold_no_callbacks(tmp_path, family, stream):
    lock = threading.Lock()  # cannot be pickled
    settings = {"parameters": THETA, "callbacks": [lambda _: lock.locked()]}
    em, other = driver(family, **settings), driver(family, parameters=THETA)
    for run in (em, other):
        run.partial_fit(stream)
    assert em.history.attrs == other.history.attrs
    assert pickle.loads(pickle.dumps(em)).callbacks == ()
    em.save(tmp_path / "run.nc")
    called = []
    more = {"e_step": Noisy(), "progressbar": False, "callbacks": [called.append]}
    found = OnlineEM.load(tmp_path / "run.nc", family, **more)
    found.partial_fit(stream[:2])
    assert len(called) == 2


def test_workers_call_nothing(family, stream, pool):
    where = []

    def look(update):
        where.append((os.getpid(), threading.get_ident()))

    em = driver(family, parameters=THETA, batch_size=6, executor=pool, callbacks=[look])
    em.partial_fit(stream)
    assert where == [(os.getpid(), threading.get_ident())] * 10


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (print, "callbacks: got <built-in function print>; give a list of functions, as [print]."),
        (3, "callbacks: got 3; give a list of functions of an update."),
        ("LivePlot", "callbacks: got 'LivePlot'; give a list of functions of an update."),
        ([None], "callbacks: got None among them; give functions of an update."),
        ([Stop], "callbacks: got the class Stop; create an instance, as Stop()."),
    ],
)
@pytest.mark.parametrize("make", [driver, batch])
def test_what_are_no_callbacks_is_refused(family, make, callbacks, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make(family, callbacks=callbacks)


def test_runs_that_compete_call_them_each(rng):
    values = mixture_stream(rng, 40)
    numbers = []
    mcoem.compete(
        EvidentMixture(),
        values,
        n_runs=2,
        e_step=Exact(),
        random_seed=1,
        progressbar=False,
        callbacks=[lambda update: numbers.append(update[-1].number)],
    )
    assert numbers == [*range(1, 41)] * 2
