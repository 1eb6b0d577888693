"""A small run in which each call in turn runs out of memory, or fails to read or write."""

from __future__ import annotations

import errno
import signal

import numpy as np
import pytest

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.runs import file_lock
from pymc_mcoem.runs.checkpoint import Checkpoint
from tests.helpers.faults import OF_HDF5, chosen, disk_error, fault_at, without_hdf5
from tests.helpers.toy_families import Noisy, mixture_stream
from tests.helpers.toy_runs import assert_same, driver

FAULTS = {"memory": MemoryError, "input and output": lambda: disk_error(errno.EIO)}
OPTIONS = {"e_step": Noisy(), "progressbar": False}


@pytest.fixture(scope="module")
def stream():
    return mixture_stream(np.random.default_rng(5), 14)


def cases(some):
    """Return of each kind of fault which calls of a run meet it: by default a few."""
    return [
        ("memory", some),
        *(
            pytest.param(k, which, marks=pytest.mark.slow)
            for k in FAULTS
            for which in ("all", "files")
        ),
    ]


def meeting(made, rng, which):
    """Return the numbers of the calls that fail in turn."""
    if which == "files":
        return sorted({1 + made.index(name) for name in made if name.startswith(OF_HDF5)})
    return chosen(len(made), rng, None if which == "all" else which)


@pytest.fixture
def files(request, monkeypatch):
    """Have simpler files where all calls fail in turn."""
    if request.node.callspec.params["some"] == "all":
        without_hdf5(monkeypatch)


def online(family, path, stream, em=None):
    em = driver(family, n_start=4, batch_size=2) if em is None else em
    return em.partial_fit(
        stream, skip=em.position, checkpoint=Checkpoint(path, observations=5, keep=2)
    )


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("kind", "some"), cases(4))
def test_a_stream_loses_nothing_to_a_call_that_fails(family, stream, tmp_path, rng, kind, some):
    for folder in (tmp_path / "first", tmp_path / "again"):  # when nothing is made anew
        folder.mkdir()
        with fault_at(None) as made:
            online(family, folder / "run.nc", stream)
    assert len(made) > 500
    made_without: dict[tuple[int, ...], OnlineEM] = {}
    before = signal.getsignal(signal.SIGINT)
    for number in meeting(made, rng, some):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "run.nc"
        em = driver(family, n_start=4, batch_size=2)
        try:
            with fault_at(number, FAULTS[kind]()) as called:
                online(family, path, stream, em)
        except Exception as error:
            text = f"{number} {called[-1]}: {error!r}"
        else:
            text = f"{number} {called[-1]}: not raised"
        assert signal.getsignal(signal.SIGINT) is before and not file_lock._held, text
        # what was left out is named, and there is no trace of it
        out = em.history["skipped"]["position"].values.tolist() if "skipped" in em.history else []
        saved = [each for each in folder.iterdir() if not each.name.startswith(".")]
        for each in saved:
            found = OnlineEM.load(each, family, **OPTIONS)
            assert found.n_seen <= em.n_seen, text
        online(family, path, stream, em)
        assert (em.position, em.n_seen) == (14, 14 - len(out)), text
        if (clean := made_without.get(tuple(out))) is None:
            clean = driver(family, n_start=4, batch_size=2).partial_fit(np.delete(stream, out))
            made_without[tuple(out)] = clean
        try:
            assert em.parameters.identical(clean.parameters), text
            if path.exists():
                found = OnlineEM.load(path, family, **OPTIONS)
                online(family, path, stream, found)
                assert_same(found, em)
        except AssertionError as error:
            raise AssertionError(text) from error


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("kind", "some"), cases(2))
def test_a_batch_run_loses_nothing_to_a_call_that_fails(family, stream, tmp_path, rng, kind, some):
    def batch(path, saem=None, left=3):
        saem = SAEM(family, draws=4, random_seed=1, **OPTIONS) if saem is None else saem
        if left > saem.n_iterations:
            checkpoint = Checkpoint(path, observations=10)
            saem.fit(stream, left - saem.n_iterations, checkpoint=checkpoint)
        return saem

    for folder in (tmp_path / "first", tmp_path / "again"):  # when nothing is made anew
        folder.mkdir()
        with fault_at(None) as made:
            clean = batch(folder / "run.nc")
    for number in meeting(made, rng, some):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "run.nc"
        saem = None
        try:
            with fault_at(number, FAULTS[kind]()) as called:
                saem = SAEM(family, draws=4, random_seed=1, **OPTIONS)
                batch(path, saem)
        except Exception as error:
            text = f"{number} {called[-1]}: {error!r}"
        else:
            text = f"{number} {called[-1]}: not raised"
        if path.exists():
            found = SAEM.load(path, family, **OPTIONS)
            assert batch(path, found).parameters.identical(clean.parameters), text
            path.unlink()
            (folder / "run.1.nc").unlink(missing_ok=True)
        assert batch(path, saem).parameters.identical(clean.parameters), text


@pytest.mark.parametrize("some", [15, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_file_is_read_or_not_whatever_call_fails(family, stream, tmp_path, rng, kind, some):
    path = tmp_path / "run.nc"
    em = online(family, path, stream)
    content = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with fault_at(None) as made:
        OnlineEM.load(path, family, **OPTIONS)
    for number in chosen(len(made), rng, some):
        try:
            with fault_at(number, FAULTS[kind]()):
                OnlineEM.load(path, family, **OPTIONS)
        except Exception:
            pass
        assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == content
    assert_same(OnlineEM.load(path, family, **OPTIONS), em)
