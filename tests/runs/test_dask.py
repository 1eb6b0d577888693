"""Dask's executor on a cluster of processes, one of whose workers is killed."""

from __future__ import annotations

import logging
import os
import signal
from concurrent.futures import Executor, Future
from types import SimpleNamespace

import dask.array as da
import pytest
import zarr
from distributed import Client, LocalCluster

from pymc_mcoem.em.passes import Passes
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.runs import executor
from pymc_mcoem.runs.workers import ExecutorError
from tests.helpers.executors import Deadly, lives
from tests.helpers.toy_families import Noisy
from tests.helpers.toy_runs import THETA, assert_same, driver


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",  # another cluster may have the usual port
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_a_cluster_gives_the_same_bytes(family, stream, client):
    settings = {"parameters": THETA, "batch_size": 6}
    found = driver(family, **settings, executor=client.get_executor(pure=False)).partial_fit(stream)
    assert_same(found, driver(family, **settings).partial_fit(stream))

    def fitted(executor):
        saem = SAEM(family, e_step=Noisy(), random_seed=1, progressbar=False, executor=executor)
        return saem.fit(stream, 3)

    assert fitted(client.get_executor(pure=False)).parameters.identical(fitted(None).parameters)


@pytest.mark.slow
def test_a_worker_killed_in_mid_burst_changes_nothing(family, stream, client, tmp_path):
    stream[20] = 7.0
    settings = {"parameters": THETA, "batch_size": 6}
    e_step = Deadly(lives(tmp_path / "one", 1))
    found = driver(family, e_step=e_step, **settings, executor=client.get_executor(pure=False))
    found.partial_fit(stream)
    assert not list((tmp_path / "one").iterdir())
    clean = driver(family, e_step=Deadly(lives(tmp_path / "none", 0)), **settings)
    assert_same(found, clean.partial_fit(stream))


@pytest.mark.slow
def test_a_worker_killed_between_bursts_is_replaced(family, stream, client):
    settings = {"parameters": THETA, "batch_size": 6}
    found = driver(family, **settings, executor=client.get_executor(pure=False)).partial_fit(
        stream[:30]
    )
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    found.partial_fit(stream[30:])
    assert_same(found, driver(family, **settings).partial_fit(stream))


class Lost(Executor):
    """An executor of Dask whose client has lost the scheduler, and whose futures wait forever."""

    _client = SimpleNamespace(status="closed")

    def submit(self, function, /, *arguments, **named):
        return Future()


def test_a_scheduler_that_is_lost_is_not_waited_for(family, stream, monkeypatch):
    monkeypatch.setattr(executor, "ALIVE", 0.01)
    found = driver(family, parameters=THETA, batch_size=6, executor=Lost())
    with pytest.raises(ExecutorError, match="its client has lost the scheduler"):
        found.partial_fit(stream)
    assert found.n_seen == 6


@pytest.mark.slow
def test_workers_read_an_array_on_the_disk(family, stream, client, tmp_path):
    """Also if one of them is killed, through passes, and without Dask's array."""
    place = str(tmp_path / "stream.zarr")
    da.from_array(stream, chunks=7).to_zarr(place)
    lying = da.from_zarr(place)
    settings = {"parameters": THETA, "batch_size": 6}
    found = driver(family, **settings, executor=client.get_executor(pure=False)).partial_fit(
        lying[:30]
    )
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    found.partial_fit(lying, skip=found.position)
    assert_same(found, driver(family, **settings).partial_fit(stream))

    passed = driver(family, **settings, executor=client.get_executor(pure=False))
    passed.partial_fit(Passes(lying, 2, random_seed=1))
    expected = driver(family, **settings).partial_fit(Passes(stream, 2, random_seed=1))
    assert_same(passed, expected)

    opened = driver(family, **settings, executor=client.get_executor(pure=False))
    opened.partial_fit(zarr.open_array(place, mode="r"))
    assert_same(opened, driver(family, **settings).partial_fit(stream))


@pytest.mark.slow
def test_an_array_in_the_memory_of_workers(family, stream, client):
    lying = client.persist(da.from_array(stream, chunks=7))
    settings = {"parameters": THETA, "batch_size": 6}
    found = driver(family, **settings, executor=client.get_executor(pure=False)).partial_fit(lying)
    assert_same(found, driver(family, **settings).partial_fit(stream))
