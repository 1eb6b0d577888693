"""Where observations come from: passes, arrays in memory and elsewhere, loaders of batches."""

from __future__ import annotations

import itertools
import logging
from itertools import product

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from distributed import Client
from scipy import stats

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.passes import Passes
from pymc_mcoem.em.stream import count_observations
from tests.helpers.representatives import by_default
from tests.helpers.sources import N_POINTS, Dataset, Levels, Loader, Stored, Tensor
from tests.helpers.toy_families import NormalMixture
from tests.helpers.toy_runs import assert_same


@pytest.fixture(scope="module")
def family():
    return Levels()


@pytest.fixture
def curves(rng):
    return rng.normal(size=(23, N_POINTS)) + rng.choice([-2.0, 2.0], size=(23, 1))


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def learn(family, observations, **settings):
    given = {"e_step": Exact(), "random_seed": 1, "progressbar": False}
    return OnlineEM(family, **(given | settings)).partial_fit(observations)


# Passes ------------------------------------------------------------------------------------------


def test_a_pass_is_a_permutation_and_depends_on_seed_and_number_alone():
    whole = list(Passes(range(50), 3, random_seed=4))
    passes = [whole[:50], whole[50:100], whole[100:]]
    assert all(sorted(each) == list(range(50)) for each in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert list(Passes(range(50), 2, random_seed=4)) == whole[:100]
    endless = Passes(range(50), None, random_seed=4)
    assert list(itertools.islice(endless, 150)) == whole
    assert list(Passes(range(50), 3, random_seed=5)) != whole


@pytest.mark.parametrize("replace", [False, True])
def test_iterating_again_gives_the_same(replace):
    passes = Passes(range(20), 2, replace=replace)  # a seed of the operating system's
    half = list(itertools.islice(passes, 7))
    whole = list(passes)
    assert whole == list(passes)
    assert whole[:7] == half


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("n_passes", [3, None])
def test_from_position_is_what_is_left_and_reads_nothing_before(replace, n_passes):
    n = 7
    passes = Passes(range(n), n_passes, replace=replace, random_seed=2)
    whole = list(itertools.islice(passes, 3 * n))
    for position in range(3 * n + 1):
        found = passes.from_position(position)
        assert list(itertools.islice(found, 3 * n - position)) == whole[position:]
    stored = Stored(np.arange(n))
    stream = Passes(stored, 3, replace=replace, random_seed=2).from_position(2 * n + 3)
    assert stored.n_read == 0
    assert next(stream) == whole[2 * n + 3]
    assert stored.n_read == 1


def test_draws_with_return_are_uniform_and_independent():
    n, n_passes = 8, 500
    found = np.array(list(Passes(range(n), n_passes, replace=True, random_seed=3)))
    counts = np.bincount(found, minlength=n)
    assert stats.chisquare(counts).pvalue > 1e-3
    pairs = np.histogram2d(found[:-1], found[1:], bins=n)[0]
    assert stats.chi2_contingency(pairs).pvalue > 1e-3
    # A pass with return leaves some out; without, none.
    shares = [len(set(each)) / n for each in found.reshape(n_passes, n)]
    expected = 1 - (1 - 1 / n) ** n
    assert abs(np.mean(shares) - expected) < 4 * np.std(shares) / np.sqrt(n_passes)


def test_every_order_of_a_pass_is_equally_likely():
    found = np.array(list(Passes(range(3), 1200, random_seed=6))).reshape(-1, 3)
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_passes_remember_a_seed_that_was_drawn():
    passes = Passes(range(20), 2)
    assert list(Passes(range(20), 2, random_seed=passes.random_seed)) == list(passes)


def test_the_orders_are_not_the_drivers_own_numbers(family):
    # One seed for both is what people will give; bursts and orders must not share generators.
    em = OnlineEM(family, random_seed=1)
    for number in range(5):
        bits = em.run.generator(number).bit_generator.state
        passes = Passes(range(9), random_seed=1)
        seed = np.random.SeedSequence(passes.random_seed, spawn_key=(1, number))
        assert np.random.default_rng(seed).bit_generator.state != bits
        np.testing.assert_array_equal(
            passes._order(number), np.random.default_rng(seed).permutation(9)
        )


def test_lengths(family):
    assert len(Passes(range(5), 3)) == 15
    assert count_observations(family, Passes(np.zeros((5, 3)), 3)) == 15
    endless = Passes(np.zeros((5, 3)), None)
    with pytest.raises(TypeError, match="n_passes is None: these passes have no end"):
        len(endless)
    assert count_observations(family, endless) is None
    assert repr(endless) == "Passes(5 observations, endless, replace=False)"
    assert repr(Passes([1], 2, replace=True)) == "Passes(1 observations, n_passes=2, replace=True)"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((iter([1]),), TypeError, r"observations: got list_iterator; pass an array, or a sequence"),
        (({"a": 1},), TypeError, "observations: got dict; pass an array"),
        (("text",), TypeError, "observations: got str"),
        (
            (np.array(1.0),),
            TypeError,
            r"ndarray of shape \(\), whose length is not kn",
        ),
        (([],), ValueError, "observations: got none"),
        (([1], 0), ValueError, "n_passes: got 0; give a whole number from 1, or None"),
        (([1], 1.5), ValueError, "n_passes: got 1.5"),
        (([1], True), ValueError, "n_passes: got True"),
    ],
)
def test_what_passes_refuse(arguments, kind, message):
    with pytest.raises(kind, match=message):
        Passes(*arguments)


def test_what_positions_refuse():
    passes = Passes([1, 2], 2, random_seed=1)
    for wrong in (-1, 1.0, None):
        with pytest.raises(ValueError, match=f"position: got {wrong}; give a whole number from 0"):
            passes.from_position(wrong)
    with pytest.raises(ValueError, match="got 5, and 2 passes over 2 observations have 4 records"):
        passes.from_position(5)
    with pytest.raises(ValueError, match="random_seed: got -1"):
        Passes([1], random_seed=-1)


def test_a_length_that_dask_does_not_know():
    values = da.from_array(np.arange(12.0).reshape(4, 3), chunks=1)
    some = values[values[:, 0] > 2]
    with pytest.raises(TypeError, match=r"\(nan, 3\), whose length is not known.*of Dask"):
        Passes(some)
    some.compute_chunk_sizes()
    assert len(Passes(some)) == 3


def test_learning_from_passes_is_learning_from_the_records(family, curves):
    for replace in (False, True):
        passes = Passes(curves, 2, replace=replace, random_seed=3)
        assert_same(learn(family, passes), learn(family, np.stack(list(passes))))
        cut = learn(family, itertools.islice(passes, 30)).partial_fit(passes.from_position(30))
        assert_same(cut, learn(family, passes))


# Kinds of sources --------------------------------------------------------------------------------


def in_zarr(curves):
    store = zarr.create_array(
        zarr.storage.MemoryStore(), shape=curves.shape, chunks=(4, 3), dtype=float
    )
    store[:] = curves
    return store


def opened_from_zarr(curves):
    store = zarr.storage.MemoryStore()
    with_name = xr.Dataset({"curve": (("n", "age"), curves)})
    with_name.to_zarr(store, consolidated=False)
    return xr.open_zarr(store, chunks=None, consolidated=False)["curve"]


def turned(curves):
    return xr.DataArray(curves, dims=("n", "age")).transpose("age", "n")


KINDS = {
    "array": lambda curves: curves,
    "other memory order": np.asfortranarray,
    "masked array with nothing masked": np.ma.masked_array,
    "list": list,
    "list of lists": lambda curves: curves.tolist(),
    "generator": lambda curves: (curve for curve in curves),
    "mappings": lambda curves: ({"curve": curve} for curve in curves),
    "DataFrame": pd.DataFrame,
    "DataArray": lambda curves: xr.DataArray(curves, dims=("n", "age")),
    "DataArray, turned": turned,
    "DataArrays": lambda curves: list(xr.DataArray(curves, dims=("n", "age"))),
    "Dask": lambda curves: da.from_array(curves, chunks=(1, 3)),
    "Dask, odd chunks": lambda curves: da.from_array(curves, chunks=(5, 2)),
    "Dask arrays": lambda curves: list(da.from_array(curves, chunks=(5, 3))),
    "DataArray over Dask": lambda curves: xr.DataArray(curves, dims=("n", "age")).chunk(n=4),
    "DataArray over Dask, turned": lambda curves: turned(curves).chunk(n=4),
    "Zarr": in_zarr,
    "DataArray over Zarr": opened_from_zarr,
    "array elsewhere": Stored,
    "tensor": Tensor,
    "data set": Dataset,
    "loader": lambda curves: Loader(Dataset(curves), 5),
    "loader with batches of one": lambda curves: Loader(Dataset(curves), 1),
    "loader of single records": lambda curves: (Tensor(curve) for curve in curves),
    "batches": lambda curves: iter([curves[:2], curves[2:2], curves[2:20], curves[20:]]),
    "batches of DataArrays": lambda curves: iter([turned(curves[:9]), turned(curves[9:])]),
    "batches of Dask arrays": lambda curves: [da.from_array(curves[:9]), da.from_array(curves[9:])],
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_learned_to_the_same_numbers(family, curves, kind):
    expected = learn(family, curves)
    source = KINDS[kind](curves)
    found = list(family.iterate(KINDS[kind](curves)))
    np.testing.assert_array_equal([family.encode(one)["curve"] for one in found], curves)
    assert_same(learn(family, source), expected)


@pytest.mark.parametrize(
    ("position", "kind"),
    by_default(product([9, 23], KINDS), {*product([9], KINDS), (23, next(iter(KINDS)))}),
)
def test_all_kinds_are_gone_on_with(family, curves, kind, position):
    """Given again from the beginning, and what was learned passed over."""
    em = learn(family, curves[:position])
    em.partial_fit(KINDS[kind](curves), skip=position)
    assert_same(em, learn(family, curves))


def test_passes_are_gone_on_with(family, curves):
    passes = Passes(curves, 2, random_seed=1)
    em = learn(family, itertools.islice(passes, 9)).partial_fit(passes, skip=9)
    assert_same(em, learn(family, passes))


@pytest.mark.parametrize(
    "kind",
    [
        "array",
        "list",
        "DataFrame",
        "DataArray",
        "Dask",
        "DataArray over Dask",
        "Zarr",
        "DataArray over Zarr",
        "tensor",
        "data set",
    ],
)
def test_passes_over_all_kinds_are_the_same(family, curves, kind):
    expected = learn(family, Passes(curves, 2, random_seed=5))
    assert_same(learn(family, Passes(KINDS[kind](curves), 2, random_seed=5)), expected)


@pytest.fixture(scope="module")
def client():
    with Client(
        processes=False,
        n_workers=1,
        threads_per_worker=1,
        dashboard_address=None,
        silence_logs=logging.ERROR,
    ) as client:
        yield client


@pytest.mark.slow
def test_a_dask_array_on_a_cluster(family, curves, client):
    with dask.config.set(scheduler=client):
        found = learn(family, da.from_array(curves, chunks=(4, 3)))
        again = learn(family, Passes(da.from_array(curves, chunks=(1, 3)), random_seed=5))
    assert_same(found, learn(family, curves))
    assert_same(again, learn(family, Passes(curves, random_seed=5)))


def test_scalars_in_batches():
    family = NormalMixture()
    values = np.linspace(-2, 2, 12)
    batches = Loader(Dataset(values), 5)
    np.testing.assert_array_equal([np.asarray(one) for one in family.iterate(batches)], values)


def test_the_first_record_says_whether_there_are_batches(family, curves):
    # after a single record a larger one is a mistake, and refused by name
    em = OnlineEM(family, e_step=Exact(), random_seed=1, progressbar=False)
    with pytest.raises(ValueError, match=r"observation 1 .* curve has shape \(4, 3\), the model"):
        em.partial_fit([curves[0], curves[1:5]])
    assert em.n_seen == 1
    # in a stream of batches a single record is one
    found = list(family.iterate([curves[:4], curves[4]]))
    np.testing.assert_array_equal(found, curves[:5])
    # two axes more are no batch
    with pytest.raises(ValueError, match=r"curve has shape \(1, 4, 3\)"):
        learn(family, [curves[None, :4]])


def test_curves_on_points_of_their_own_in_batches(rng):
    mixture = mcoem.TemplateMixture.for_curves(np.linspace(0, 1, 6), n_classes=1, own_points=7)
    points = np.sort(rng.uniform(size=(4, 5)), axis=1)
    pairs = np.stack([points, rng.normal(size=(4, 5))], axis=1)
    for source in (pairs, list(pairs), iter([pairs[:3], pairs[3:]])):
        np.testing.assert_array_equal(list(mixture.iterate(source)), pairs)


def test_pairs_of_image_and_label_are_refused_with_the_cure(family, curves):
    pairs = [(curve, 1) for curve in curves]
    with pytest.raises(ValueError, match=r"curve is a tuple that makes no array.*first of a pair"):
        learn(family, pairs)
    assert learn(family, (curve for curve, _ in pairs)).n_seen == 23


def test_a_tensor_that_numpy_cannot_read(family):
    class Tracked(Tensor):
        def __array__(self, dtype=None):
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    message = r"observation 0 .*refused: .*curve is a Tracked that makes no array.*requires grad"
    with pytest.raises(TypeError, match=message):
        learn(family, [Tracked(np.zeros(3))])


def test_arrays_by_name_are_refused_with_their_names(family, tmp_path):
    group = zarr.open_group(tmp_path / "group.zarr", mode="w")
    group.create_array("beats", data=np.zeros((3, N_POINTS)))
    with pytest.raises(TypeError, match=r"got Group with \['beats'\]; pass one of these"):
        learn(family, group)


def test_a_reader_that_fails_is_no_fault_of_the_record(family, curves):
    class Broken(Stored):
        def __getitem__(self, index):
            if index == 4:
                raise OSError("disk")
            return super().__getitem__(index)

    em = OnlineEM(family, e_step=Exact(), random_seed=1, n_start=2, progressbar=False)
    with pytest.raises(OSError, match="disk"):
        em.partial_fit(Broken(curves))
    assert (em.n_seen, em.position) == (4, 4)


def test_dims_in_a_mapping_are_not_guessed():
    mixture = mcoem.TemplateMixture.for_images((2, 2), n_classes=1, n_landmarks=2)

    class Plain(Levels):
        def __init__(self):
            super().__init__()
            self.model = mixture.model
            self.observation = ("observed_values",)

    plain = Plain()
    square = xr.DataArray(np.arange(4.0).reshape(2, 2), dims=("column", "row"))
    with pytest.raises(ValueError, match=r"observed_values has dims \('column', 'row'\), the mode"):
        plain.encode({"observed_values": square})
    np.testing.assert_array_equal(
        plain.encode(square)["observed_values"], np.arange(4).reshape(2, 2).T
    )


def test_a_turned_square_image_in_a_list_is_learned_as_it_is_meant():
    mixture = mcoem.TemplateMixture.for_images((2, 2), n_classes=1, n_landmarks=2)
    image = xr.DataArray(np.arange(4.0).reshape(2, 2), dims=("row", "column"))
    for given in (image, image.T):
        (found,) = mixture.iterate([given])
        np.testing.assert_array_equal(np.array(found), image.values)
    assert count_observations(mixture, image.expand_dims(n=5).transpose("row", "column", "n")) == 5
    (found,) = mixture.iterate([image.rename(row="line")])
    with pytest.raises(ValueError, match=r"name all of these dims, or none"):
        mixture.encode(found)


@pytest.mark.parametrize("length", ["unknown", "raises"])
def test_lengths_that_are_not_known(family, curves, length):
    if length == "unknown":
        values = da.from_array(curves, chunks=(5, 3))
        source = values[values[:, 0] > -100]
        for act in (count_observations, learn):
            with pytest.raises(ValueError, match=r"whose length is not known; call its compute_ch"):
                act(family, source)
        source.compute_chunk_sizes()
    else:

        class Streamed(Loader):
            """A loader over a data set that can only be iterated."""

            def __len__(self):
                raise TypeError("object of type 'IterableDataset' has no len()")

        source = Streamed(Dataset(curves), 4)
        assert count_observations(family, source) is None
    assert_same(learn(family, source), learn(family, curves))


# Back-pressure -----------------------------------------------------------------------------------


class Watched(Levels):
    """Notes how much was read each time that an observation is explained."""

    def __init__(self, n_read):
        super().__init__()
        self.n_read = n_read
        self.seen = []

    def exact(self, data, parameters):
        self.seen.append(self.n_read())
        return super().exact(data, parameters)


@pytest.mark.parametrize("kind", ["array elsewhere", "data set", "Dask", "passes", "generator"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_no_more_is_read_than_is_processed(curves, kind, batch_size):
    stored = Dataset(curves) if kind == "data set" else Stored(curves)
    source = stored
    if kind == "Dask":
        pieces = [
            da.from_delayed(dask.delayed(stored.__getitem__)(index), shape=(3,), dtype=float)
            for index in range(len(curves))
        ]
        source = da.stack(pieces)
    elif kind == "passes":
        source = Passes(stored, random_seed=1)
    elif kind == "generator":
        source = (stored[index] for index in range(len(curves)))
    watched = Watched(lambda: stored.n_read)
    theta = {"levels": np.outer([-2.0, 2.0], np.ones(3))}
    em = OnlineEM(
        watched,
        parameters=theta,
        e_step=Exact(),
        batch_size=batch_size,
        random_seed=1,
        progressbar=False,
    )
    assert stored.n_read == 0
    em.partial_fit(source)
    # At the n-th explanation its own mini-batch was read, and nothing behind it.
    n_whole = len(curves) - len(curves) % batch_size
    expected = [batch_size * (n // batch_size + 1) for n in range(n_whole)]
    assert watched.seen == expected
    assert stored.n_read == len(curves)


def test_of_a_loader_one_batch_is_read_at_a_time(curves):
    dataset = Dataset(curves)
    watched = Watched(lambda: dataset.n_read)
    learn(watched, Loader(dataset, 5), parameters={"levels": np.eye(2, 3)})
    assert watched.seen == [min(5 * (n // 5 + 1), 23) for n in range(23)]


def test_what_is_refused_stops_the_reading(family, curves):
    curves[6] = np.inf
    for make in (Stored, lambda records: Passes(Stored(records), random_seed=2)):
        source = make(curves)
        stored = getattr(source, "observations", source)
        with pytest.raises(ValueError, match=r"was refused: .*not finite"):
            learn(family, source)
        position = list(Passes(range(23), random_seed=2)).index(6) if source is not stored else 6
        assert stored.n_read == position + 1
