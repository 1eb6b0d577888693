"""Batches of a stream that cannot be read, and mini-batches of which an observation fails."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem import Passes
from pymc_mcoem.em import online_run
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.stream import Unreadable, read
from pymc_mcoem.runs import workers
from tests.helpers.executors import AtOnce
from tests.helpers.sources import N_POINTS, Levels
from tests.helpers.toy_families import CompiledNoisy, Failing, Noisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import assert_same, driver, what_counts


@pytest.fixture(scope="module")
def family():
    return Levels()


@pytest.fixture
def curves(rng):
    return rng.normal(size=(23, N_POINTS)) + rng.choice([-2.0, 2.0], size=(23, 1))


def learner(family, **settings):
    given = {"e_step": Exact(), "random_seed": 1, "progressbar": False, "n_start": 5}
    return OnlineEM(family, **(given | settings))


class Unloadable:
    """What a loader gives of a file that is broken: it has a shape, and no values."""

    shape, ndim = (4, N_POINTS), 2

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error

    def __getitem__(self, index):
        return Unloadable(self.error)


class Later(Unloadable):
    """One that is read as a whole, and of which a record cannot be."""

    def __array__(self, dtype=None, copy=None):
        raise ValueError("only one by one")

    def __getitem__(self, index):
        if index == 1:
            raise self.error
        return np.full(N_POINTS, float(index))


#: What is bad, how many records it counts as, and the reason of the first.
BAD = {
    "reading raises": (Unloadable(OSError("sector 7")), 1, "reading it failed: OSError: sector 7"),
    "wrong shape": (np.zeros((4, N_POINTS + 2)), 4, "refused: ValueError: observation: curve has"),
    "too many axes": (np.zeros((2, 4, N_POINTS)), 1, "refused: ValueError: observation: curve has"),
    "no array": ("text", 1, "refused: TypeError: observation: curve has dtype"),
}


class Asked:
    """An iterator that raises instead of giving what is an exception."""

    def __init__(self, records):
        self.left = iter(records)

    def __iter__(self):
        return self

    def __next__(self):
        record = next(self.left)
        if isinstance(record, Exception):
            raise record
        return record


class Shelf:
    """A sequence of batches, read when they are asked for."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        if isinstance(record, Exception):
            raise record
        return record


class Loader:
    """An iterable over batches whose iterator goes on behind an error."""

    def __init__(self, records):
        self.records = records

    def __iter__(self):
        return Asked(self.records)


SOURCES = {
    "list": list,
    "iterator": Asked,
    "loader": Loader,
    "sequence": Shelf,
    "passes": lambda records: Ordered(Shelf(records)),
}


class Ordered(Passes):
    """One pass in the order in which they lie."""

    def _order(self, number):
        return np.arange(len(self.observations))


@pytest.mark.parametrize(
    ("kind", "bad"),
    [(kind, bad) for kind in SOURCES for bad in [*BAD, *(["raises itself"] * (kind != "list"))]],
)
def test_a_batch_that_cannot_be_read_is_passed_and_counted(family, curves, kind, bad):
    if bad == "raises itself":
        spoilt, size, reason = OSError("gone"), 1, "reading it failed: OSError: gone"
    else:
        spoilt, size, reason = BAD[bad]
    batches = [curves[:4], curves[4:9], spoilt, curves[9:17], spoilt, curves[17:]]
    source = SOURCES[kind]
    em = learner(family, on_error="skip").partial_fit(source(batches))
    clean = learner(family).partial_fit(curves)
    xr.testing.assert_identical(em.parameters, clean.parameters)
    assert (em.n_seen, em.position) == (23, 23 + 2 * size)
    skipped = em.history["skipped"]["reason"]
    first, second = range(9, 9 + size), range(17 + size, 17 + 2 * size)
    assert skipped["position"].values.tolist() == [*first, *second]
    assert all(str(one).startswith(reason) for one in skipped.values)
    # wherever it was cut, the same when it is given again
    for position in range(em.position + 1):
        again = [
            found if not isinstance(found, Unreadable) else None
            for found in read(family, source(batches), position)
        ]
        whole = [
            found if not isinstance(found, Unreadable) else None
            for found in islice(read(family, source(batches)), position, None)
        ]
        assert len(again) == len(whole)
        for one, other in zip(again, whole, strict=True):
            assert (one is None) == (other is None)
            assert one is None or np.array_equal(one, other)


def test_a_record_of_a_batch_that_cannot_be_read_costs_no_other(family, curves):
    batches = [curves[:4], Later(OSError("page 1")), curves[4:]]
    expected = np.concatenate([curves[:4], np.outer([0.0, 2.0, 3.0], np.ones(3)), curves[4:]])
    em = learner(family, on_error="skip").partial_fit(batches)
    assert em.history["skipped"]["position"].values.tolist() == [5]
    assert "reading it failed: OSError: page 1" in str(em.history["skipped"]["reason"].values[0])
    assert em.parameters.identical(learner(family).partial_fit(expected).parameters)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_record_with_an_axis_too_many_is_none_wherever_the_run_is_gone_on_with(
    family, curves, kind
):
    """The first record says whether a stream is one of batches, also when it is given again."""
    if kind == "list":
        records = [*curves[:10], curves[10:13], *curves[13:]]
    else:
        # and behind one that raises
        records = [*curves[:9], OSError("gone"), curves[10:13], *curves[13:]]
    source = SOURCES[kind]
    whole = learner(family, on_error="skip").partial_fit(source(records))
    assert whole.position == len(records) == 21
    for stop in (9, 10, 11, 21):
        em = learner(family, on_error="skip")
        for record in islice(read(family, source(records)), stop):
            em.run.accept(record, 0)
            list(em.run.learn())
        em.partial_fit(source(records), skip=stop)
        assert_same(em, whole)
        assert em.history["skipped"].identical(whole.history["skipped"])


def test_shuffled_passes_are_gone_on_with_at_a_record_with_an_axis_too_many(family, curves):
    records = [*curves[:10], curves[10:13], *curves[13:]]
    passes = Passes(records, 3, random_seed=3)
    whole = learner(family, on_error="skip").partial_fit(passes)
    bad = whole.history["skipped"]["position"].values.tolist()
    assert len(bad) == 3
    for stop in [*bad, *(position + 1 for position in bad)]:
        em = learner(family, on_error="skip").partial_fit(islice(passes, stop))
        assert em.position == stop
        assert_same(em.partial_fit(passes, skip=stop), whole)


def test_passes_over_batches_are_gone_on_with(family, curves):
    passes = Passes([curves[:4], curves[4:9], curves[9:]], 2, random_seed=3)
    whole = learner(family).partial_fit(passes)
    assert whole.n_seen == 46
    for stop in (0, 3, 9, 23, 40, 46):
        em = learner(family)
        for record in islice(read(family, passes), stop):
            em.run.accept(record, 0)
            list(em.run.learn())
        assert_same(em.partial_fit(passes, skip=stop), whole)


# Mini-batches ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counting(Noisy):
    """Notes which values it explains, and fails at 888."""

    def compile(self, family):
        return CompiledCounting(family, self.troubled)


@dataclass(frozen=True)
class CompiledCounting(CompiledNoisy):
    seen: ClassVar[list[float]] = []

    def __call__(self, data, *arguments, **options):
        value = float(data["value"])
        self.seen.append(value)
        if value == 888.0:
            raise np.linalg.LinAlgError("singular")
        return super().__call__(data, *arguments, **options)


@pytest.fixture
def seen(monkeypatch):
    found = []
    monkeypatch.setattr(CompiledCounting, "seen", found)
    return found


#: Where in the stream the failing observations are put: first, amid and last of a mini-batch.
PLACES = [(20,), (23,), (25,), (20, 21, 22), (22, 24, 25, 33), (27, 58, 59)]


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("on_error", ["skip", "raise"])
@pytest.mark.parametrize("calls", [online_run.CALLS, 2])
def test_of_a_mini_batch_with_failures_the_others_are_learned_as_without(
    rng, seen, places, on_error, calls, monkeypatch
):
    monkeypatch.setattr(online_run, "CALLS", calls)
    stream = mixture_stream(rng, 60)
    records = list(stream)
    for place in places:
        records.insert(place, 888.0)
    family, options = NormalMixture(), {"n_start": 8, "batch_size": 6, "average_from": 10}
    em = driver(family, e_step=Counting(), on_error=on_error, **options)
    while em.position < len(records):
        try:
            em.partial_fit(records, skip=em.position)
        except RuntimeError:
            assert on_error == "raise"
    # each once more for every failure that it waits with, and those that fail once
    assert seen.count(888.0) == len(places)
    assert max(map(seen.count, stream)) <= 1 + len(places)
    clean = driver(family, e_step=Failing(), **options).partial_fit(stream)
    for name, dataset in what_counts(clean)[0].items():
        xr.testing.assert_identical(what_counts(em)[0][name], dataset)


@pytest.mark.parametrize("calls", [online_run.CALLS, 2])
def test_with_workers_too(rng, seen, calls, monkeypatch):
    """What is behind one that fails moves up, and has the generator of its new number."""
    monkeypatch.setattr(online_run, "CALLS", calls)
    monkeypatch.setattr(workers, "_made", type(workers._made)())
    stream = mixture_stream(rng, 60)
    records = [*stream[:27], 888.0, *stream[27:]]
    family, options = NormalMixture(), {"n_start": 6, "batch_size": 6}
    em = driver(family, e_step=Counting(), on_error="skip", executor=AtOnce(), **options)
    em.partial_fit(records)
    # workers have a class of their own, sent by value or by name; of the latter we see the notes
    assert seen.count(888.0) == 1
    clean = driver(family, e_step=Failing(), **options).partial_fit(stream)
    for name, dataset in what_counts(clean)[0].items():
        xr.testing.assert_identical(what_counts(em)[0][name], dataset)


def test_looking_at_the_parameters_changes_nothing(rng, seen, tmp_path):
    stream = mixture_stream(rng, 60)
    records = [*stream[:27], 888.0, *stream[27:]]
    family, options = NormalMixture(), {"n_start": 6, "batch_size": 6}
    clean = driver(family, e_step=Failing(), **options).partial_fit(stream)
    em = driver(family, e_step=Counting(), on_error="skip", **options)
    for record in records:
        em.partial_fit(record)
        assert np.isfinite(em.parameters["means"].values).all()
    assert em.parameters.identical(clean.parameters)
    # nor does a file, which does not hold it
    em = driver(family, e_step=Counting(), on_error="skip", **options).partial_fit(records[:30])
    em.save(tmp_path / "run.nc")
    em = OnlineEM.load(tmp_path / "run.nc", family, e_step=Counting(), progressbar=False)
    assert em.partial_fit(records, skip=30).parameters.identical(clean.parameters)
