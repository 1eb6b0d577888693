"""Dask and Zarr arrays that workers read where they lie: the same bytes as in memory."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
from functools import partial

import dask.array as da
import numpy as np
import pymc as pm
import pytest
import xarray as xr
import zarr

from pymc_mcoem.em.addresses import Address, addresses_in
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.family import Family
from pymc_mcoem.em.merging import merge_runs
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.passes import Passes
from pymc_mcoem.em.read_by_workers import read_by
from pymc_mcoem.em.stream import Unreadable
from pymc_mcoem.runs.executor import WorkerLost
from pymc_mcoem.runs.outliers import LEAST
from pymc_mcoem.runs.workers import ExecutorError
from tests.helpers.executors import AtOnce
from tests.helpers.representatives import by_default
from tests.helpers.sources import N_POINTS, Levels
from tests.helpers.toy_families import Failing, Noisy
from tests.helpers.toy_runs import THETA, WAYS, assert_same, driver


def stored(folder, values, chunk=7, with_dask=True):
    """Return a Dask or Zarr array of values that lie on the disk."""
    place = str(folder / "values.zarr")
    da.from_array(values, chunks=(chunk, *values.shape[1:])).to_zarr(place)
    return da.from_zarr(place) if with_dask else zarr.open_array(place, mode="r")


def in_memory(values, chunk=7):
    """Return a Zarr array in memory."""
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=values.shape,
        chunks=(chunk, *values.shape[1:]),
        dtype=values.dtype,
    )
    array[:] = values
    return array


def noted(values, *, folder):
    """Read values, and note in which process."""
    (folder / str(os.getpid())).touch()
    return values


def unreadable(values):
    """Read values, of which 700 cannot be read."""
    if (values == 700).any():
        raise ValueError("700 is unreadable")
    return values


def deadly(values):
    """Read values, of which 700 kills who reads it."""
    if (values == 700).any():
        os.kill(os.getpid(), signal.SIGKILL)
    return values


class Breaking(AtOnce):
    """An executor that does not work after some calls."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def submit(self, function, /, *arguments, **named):
        if len(self.sent) == self.calls:
            raise ConnectionError("the scheduler is gone")
        return super().submit(function, *arguments, **named)


# The same bytes ----------------------------------------------------------------------------------


# by the way in which a start and mini-batches are held, and by updates that fall between them
@pytest.mark.parametrize("with_dask", [True, False], ids=["Dask", "Zarr"])
@pytest.mark.parametrize(
    "way", by_default(WAYS, {"held start, mini-batches, average", "paper's updates"})
)
def test_a_run_is_the_same_to_the_last_bit_whoever_reads(family, stream, way, with_dask, tmp_path):
    found = driver(family, **WAYS[way], executor=AtOnce())
    found.partial_fit(stored(tmp_path, stream, with_dask=with_dask))
    assert_same(found, driver(family, **WAYS[way]).partial_fit(stream))


def test_processes_read_what_their_e_steps_take(family, stream, tmp_path, pool):
    (tmp_path / "reads").mkdir()
    lying = stored(tmp_path, stream)
    # with `meta`, Dask does not try the function here to learn the type
    lying = lying.map_blocks(noted, folder=tmp_path / "reads", meta=np.zeros(0))
    settings = {"parameters": THETA, "batch_size": 16}
    found = driver(family, **settings, executor=pool).partial_fit(lying)
    assert_same(found, driver(family, **settings).partial_fit(stream))
    assert {int(each.name) for each in (tmp_path / "reads").iterdir()} == set(pool._processes)


KINDS = {
    "chunked otherwise": lambda lying: lying.rechunk((5, 2)),
    "DataArray": lambda lying: xr.DataArray(lying, dims=("n", "age")),
    "DataArray, turned": lambda lying: xr.DataArray(lying.T, dims=("age", "n")),
    "computed": lambda lying: da.concatenate([2 * lying[:9] - lying[:9], lying[9:]]),
    "passes": lambda lying: Passes(lying, 2, random_seed=5),
    "passes over a DataArray": lambda lying: Passes(KINDS["DataArray"](lying), 2, random_seed=5),
    "DataArray in memory": lambda lying: KINDS["DataArray"](lying.compute()),
    "Zarr in memory": lambda lying: in_memory(lying.compute()),
}


@pytest.mark.parametrize(
    "kind",
    by_default(
        KINDS,
        {"computed", "DataArray, turned", "passes over a DataArray", "DataArray in memory"},
    ),
)
def test_kinds_of_arrays(rng, tmp_path, kind):
    curves = rng.normal(size=(23, N_POINTS)) + rng.choice([-2.0, 2.0], size=(23, 1))
    given = KINDS[kind](stored(tmp_path, curves, chunk=4))
    settings = {"n_start": 5, "batch_size": 3, "e_step": Exact()}
    found = driver(Levels(), **settings, executor=AtOnce()).partial_fit(given)
    expected = Passes(curves, 2, random_seed=5) if isinstance(given, Passes) else curves
    assert_same(found, driver(Levels(), **settings).partial_fit(expected))


def test_labels_and_skipped_records(family, stream, tmp_path):
    labels = np.where(np.arange(60) % 3, np.nan, np.digitize(stream, [-1.5, 1.2]))
    settings = {"parameters": THETA, "batch_size": 6}
    found = driver(family, **settings, executor=AtOnce())
    found.partial_fit(stored(tmp_path, stream), labels, skip=11)
    assert_same(found, driver(family, **settings).partial_fit(stream[11:], labels[11:]))


def test_absurd_records_are_refused_whoever_reads_them(family, stream, tmp_path):
    """One among the first ten, of which the driver has the values, and one later."""
    records = np.insert(stream, [3, 40], 1e30)
    settings = {"parameters": THETA, "batch_size": 6, "on_error": "skip"}
    found = driver(family, **settings, executor=AtOnce()).partial_fit(stored(tmp_path, records))
    assert_same(found, driver(family, **settings).partial_fit(records))
    assert found.history["skipped"]["position"].values.tolist() == [3, 41]


class Wide(Family):
    """Images of 80 kB, of which the mean is learned."""

    observation = ("image",)

    def __init__(self):
        with pm.Model() as self.model:
            level = pm.Data("level", np.zeros(2))
            image = pm.Data("image", np.zeros((100, 100)))
            self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
            pm.Normal("y", level[self.class_index], 1.0, observed=image)
        self.statistics = {"mean": image.mean()}

    def maximize(self, statistics, *, effective_size):
        return {"level": statistics["mean"]}

    def exact(self, data, parameters):
        return {"class_weight": np.full(2, 0.5), "mean": np.full(2, 0.5 * data["image"].mean())}


class Weighing(AtOnce):
    """An executor that weighs questions and answers."""

    def __init__(self):
        super().__init__()
        self.answered = []

    def submit(self, function, /, *arguments, **named):
        future = super().submit(function, *arguments, **named)
        self.answered.append(len(pickle.dumps(future.result())))
        return future


@pytest.mark.parametrize("with_dask", [True, False], ids=["Dask", "Zarr"])
def test_only_addresses_and_statistics_travel(rng, tmp_path, with_dask):
    images = rng.normal(size=(40, 100, 100))
    executor = Weighing()
    em = driver(Wide(), n_start=3, batch_size=8, e_step=Exact(), executor=executor)
    em.partial_fit(stored(tmp_path, images, chunk=5, with_dask=with_dask))
    assert_same(em, driver(Wide(), n_start=3, batch_size=8, e_step=Exact()).partial_fit(images))
    # Values of the first ten, three of them for the start, come here; they and no others go out
    # again. The family goes out once, with an image of zeros.
    assert sum(executor.answered) < (LEAST + 1) * 80_000
    assert sum(size > 40_000 for size in executor.sent) == LEAST + 1
    assert min(executor.sent) < 5_000


# What fails --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way", by_default(WAYS, {"held start, mini-batches, average", "random start"})
)
def test_what_fails_is_left_out_for_the_same_reasons(family, stream, way, tmp_path):
    """700 cannot be read, infinity and 1e9 are refused, the E-step fails at 888 and 999."""
    for at, value in {13: 700, 25: np.inf, 26: 888, 31: 1e9, 40: 999, 41: 700, 59: np.inf}.items():
        stream[at] = value
    lying = da.from_array(stream, chunks=1).map_blocks(unreadable, dtype=float)
    settings = {"e_step": Failing(), "on_error": "skip", "n_start": 5, **WAYS[way]}
    found = driver(family, **settings, executor=AtOnce()).partial_fit(lying)
    expected = driver(family, **settings).partial_fit(lying)
    assert_same(found, expected)
    skipped = [each.history["skipped"].to_dataset() for each in (found, expected)]
    assert skipped[0].identical(skipped[1])
    assert skipped[0].sizes["position"] == 7


def test_errors_are_raised_where_an_array_in_memory_raises_them(family, stream, tmp_path):
    stream[[20, 30]] = np.inf, 700
    lying = da.from_array(stream, chunks=1).map_blocks(unreadable, dtype=float)
    runs = [
        driver(family, parameters=THETA, batch_size=6, **how)
        for how in ({}, {"executor": AtOnce()})
    ]
    for message in ("observation 20 .* was refused", "700 is unreadable"):
        told = []
        for em in runs:
            with pytest.raises(ValueError, match=message) as caught:
                em.partial_fit(lying, skip=em.position)
            told.append(str(caught.value))
            if "unreadable" in message:
                em.partial_fit(lying, skip=em.position + 1)
        assert told[0] == told[1]
    assert_same(*runs)


def test_a_source_that_gives_nothing_but_errors_ends(family, tmp_path):
    lying = da.full(300, 700.0, chunks=50).map_blocks(unreadable, dtype=float)
    em = driver(family, parameters=THETA, batch_size=6, on_error="skip", executor=AtOnce())
    with pytest.raises(ValueError, match="700 is unreadable"):
        em.partial_fit(lying)
    assert em.position == 100


def test_functions_and_folders_get_the_values(family, stream, tmp_path):
    stream[[30, 40]] = np.inf, 888
    lying, left = stored(tmp_path, stream), []
    settings = {"parameters": THETA, "batch_size": 6, "e_step": Failing(), "executor": AtOnce()}
    driver(family, **settings, on_error=left.append).partial_fit(lying)
    assert [(each.position, float(each.observation)) for each in left] == [(30, np.inf), (40, 888)]
    driver(family, **settings, on_error=tmp_path / "left").partial_fit(lying)
    files = sorted((tmp_path / "left").iterdir())
    assert [float(np.load(file)["observation"]) for file in files] == [np.inf, 888]


class Losing:
    """A dispatcher that loses the workers of one observation."""

    is_remote = True

    def __init__(self, deadly):
        self.deadly = deadly

    def answers(self, orders):
        for order in orders:
            addresses, _ = order.arguments
            if self.deadly in [each.index for each in addresses]:
                raise WorkerLost("worker: it died")
            yield [each.index for each in addresses]


@pytest.mark.parametrize("deadly", [0, 7, 8, 19])
def test_the_record_is_found_that_kills_its_reader(deadly):
    found = read_by(Losing(deadly), [Address(b"", index) for index in range(20)], in_whole=True)
    assert isinstance(found.pop(deadly), Unreadable)
    assert found == [index for index in range(20) if index != deadly]


@pytest.mark.slow
def test_a_record_that_kills_its_reader_is_left_out(family, stream):
    stream[30] = 700
    lying = da.from_array(stream, chunks=1).map_blocks(deadly, dtype=float)
    em = driver(family, parameters=THETA, batch_size=16, on_error="skip", executor=2)
    em.partial_fit(lying)
    assert "WorkerLost" in str(em.history["skipped"]["reason"].sel(position=30).item())
    clean = driver(family, parameters=THETA, batch_size=16).partial_fit(np.delete(stream, 30))
    assert em.parameters.identical(clean.parameters)


# Runs that stop ----------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", by_default([6, 20, 40, 60], {6, 40}))
def test_a_run_whose_executor_broke_is_resumed_from_its_file(family, stream, tmp_path, calls):
    """Also if it was saved while it held observations of which it had only the addresses."""
    lying, settings = stored(tmp_path, stream), {"parameters": THETA, "batch_size": 6}
    expected = driver(family, **settings).partial_fit(stream)
    em = driver(family, **settings, executor=Breaking(calls))
    with pytest.raises(ExecutorError, match="the scheduler is gone"):
        em.partial_fit(lying, checkpoint=tmp_path / "run.nc")
    loaded = OnlineEM.load(tmp_path / "run.nc", family, e_step=Noisy(), executor=AtOnce())
    assert loaded.position <= em.position
    loaded.partial_fit(lying, skip=loaded.position)
    assert_same(loaded, expected)


def test_a_file_does_not_tell_of_records_behind_its_position(family, stream, tmp_path):
    """They are met again, and those that were repaired meanwhile are learned."""
    bad = stream.copy()
    bad[[20, 33]] = np.inf
    settings = {"parameters": THETA, "batch_size": 6, "on_error": "skip"}
    em = driver(family, **settings, executor=Breaking(40))
    with pytest.raises(ExecutorError):
        em.partial_fit(stored(tmp_path, bad), checkpoint=tmp_path / "run.nc")
    assert em.history["skipped"]["position"].values.tolist() == [20, 33]
    loaded = OnlineEM.load(tmp_path / "run.nc", family, e_step=Noisy())
    assert 20 < loaded.position <= 33 < em.position
    assert loaded.history["skipped"]["position"].values.tolist() == [20]
    loaded.partial_fit(stream, skip=loaded.position)
    assert loaded.history["skipped"]["position"].values.tolist() == [20]
    assert (loaded.n_seen, loaded.position) == (59, 60)


def test_a_run_goes_on_with_what_it_held(family, stream, tmp_path):
    executor = Breaking(30)
    em = driver(family, parameters=THETA, batch_size=6, executor=executor)
    lying = stored(tmp_path, stream)
    with pytest.raises(ExecutorError):
        em.partial_fit(lying)
    assert em.run.state.holds_addresses
    executor.calls = None
    em.partial_fit(lying, skip=em.position)
    assert_same(em, driver(family, parameters=THETA, batch_size=6).partial_fit(stream))


@pytest.mark.parametrize("n", by_default([14, 16, 45], {16}))
def test_what_is_held_at_the_end_is_saved(family, stream, tmp_path, n):
    em = driver(family, parameters=THETA, batch_size=6, executor=AtOnce())
    em.partial_fit(stored(tmp_path, stream)[:n])
    em.save(tmp_path / "run.nc")
    loaded = OnlineEM.load(tmp_path / "run.nc", family, e_step=Noisy())
    assert (loaded.n_seen, loaded.position) == (n, n)
    expected = driver(family, parameters=THETA, batch_size=6).partial_fit(stream)
    assert_same(loaded.partial_fit(stream[n:]), expected)


def test_runs_that_hold_addresses_are_merged(family, stream, tmp_path):
    executor = Breaking(30)
    em = driver(family, parameters=THETA, batch_size=6, executor=executor)
    with pytest.raises(ExecutorError):
        em.partial_fit(stored(tmp_path, stream))
    executor.calls = None
    other = driver(family, parameters=THETA, batch_size=6).partial_fit(stream)
    merged = merge_runs([em, other])
    assert not merged.run.state.holds_addresses
    assert merged.n_seen == em.n_seen + 60


# Addresses ---------------------------------------------------------------------------------------


def test_every_observation_has_an_address_and_lies_there(rng, tmp_path):
    values = rng.normal(size=(11, 3, 2))
    lying = stored(tmp_path, values, chunk=4)
    opened = zarr.open_array(str(tmp_path / "values.zarr"), mode="r")
    for array in (lying, lying[5:], lying[::-1], lying.rechunk((9, 1, 2)), opened):
        address = addresses_in(array)
        for index in rng.permutation(array.shape[0]):
            found = address(int(index))
            assert isinstance(found, Address)
            np.testing.assert_array_equal(found.read(), np.asarray(array[index]))


def test_a_zarr_array_that_a_worker_does_not_see_is_not_read_as_zeros(family, stream, tmp_path):
    lying = stored(tmp_path, stream, with_dask=False)
    shutil.move(tmp_path / "values.zarr", tmp_path / "elsewhere.zarr")
    em = driver(family, parameters=THETA, batch_size=6, executor=AtOnce())
    with pytest.raises(RuntimeError, match="No array found"):
        em.partial_fit(lying)


def test_what_has_the_data_in_itself_has_no_address(family, stream):
    wide = np.zeros((50, 10_000))
    assert addresses_in(da.from_array(wide, chunks=(10, 10_000)))(0) is None
    noise = np.random.default_rng(1).normal(size=(50, 10_000))  # zeros are stored in few bytes
    assert addresses_in(in_memory(noise))(0) is None
    # nor has what cannot be pickled
    locked = da.ones(5, chunks=5).map_blocks(partial(lambda lock, block: block, threading.Lock()))
    assert addresses_in(locked)(0) is None
    assert_same(
        driver(family, parameters=THETA, executor=AtOnce()).partial_fit(
            da.from_array(stream, chunks=20).map_blocks(
                partial(lambda lock, block: block, threading.Lock()), dtype=float
            )
        ),
        driver(family, parameters=THETA).partial_fit(stream),
    )
