"""Records that are left out of a stream: counted, named, and without a trace in the parameters."""

from __future__ import annotations

import logging
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from pymc_mcoem import Passes
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.history import MAX_SKIPPED
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.revival import Revival
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.em.schedules import BurstLength, BurstSize, StepSize, UpdateSchedule
from pymc_mcoem.runs.failed_records import MOST_IN_A_ROW
from pymc_mcoem.templates import TemplateMixture
from tests.helpers.bad_records import BAD, Disk, Spoilt, Unreadable, source_of
from tests.helpers.properties import steady
from tests.helpers.representatives import by_default
from tests.helpers.sources import Levels
from tests.helpers.toy_families import Failing, Noisy, NormalMixture, Towering, mixture_stream
from tests.helpers.toy_runs import THETA, WAYS, assert_same, driver, what_counts


def equal_but_for_positions(em, clean):
    for name, dataset in what_counts(clean)[0].items():
        xr.testing.assert_identical(what_counts(em)[0][name], dataset)
    assert em.n_seen == clean.n_seen


def loaded_record(path):
    """Return the arrays of a record that was skipped."""
    with np.load(path) as file:
        return dict(file)


@pytest.mark.parametrize(
    ("way", "kind"),
    by_default(
        product(WAYS, BAD),
        {
            *product(["held start, mini-batches, average"], BAD),
            *product(WAYS, ["unreadable", "not finite"]),
        },
    ),
)
def test_a_bad_record_leaves_no_trace_but_in_the_history(family, stream, way, kind):
    bad, reason = BAD[kind]
    options = {"e_step": Failing(), "on_error": "skip", **WAYS[way]}
    em = driver(family, **options)
    em.partial_fit(source_of([*stream[:25], bad, *stream[25:40], bad, *stream[40:]]))
    equal_but_for_positions(em, driver(family, e_step=Failing(), **WAYS[way]).partial_fit(stream))
    assert em.position == 62
    skipped = em.history["skipped"]["reason"]
    assert skipped["position"].values.tolist() == [25, 41]
    for found in skipped.values:
        assert re.match(reason, str(found)), found


def test_all_kinds_at_once_and_over_a_save(family, stream, tmp_path, caplog):
    options = {"e_step": Failing(), "n_start": 9, "batch_size": 3}
    records = list(stream)
    for number, (bad, _) in enumerate(BAD.values()):
        records.insert(5 * number + 2, bad)
    with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
        em = driver(family, on_error="skip", **options).partial_fit(source_of(records[:33]))
        em.save(tmp_path / "run.nc")
        em = OnlineEM.load(tmp_path / "run.nc", family, e_step=Failing(), progressbar=False)
        em.partial_fit(source_of(records[33:]))
    equal_but_for_positions(em, driver(family, **options).partial_fit(stream))
    skipped = em.history["skipped"]["reason"]
    assert skipped["position"].values.tolist() == [5 * number + 2 for number in range(len(BAD))]
    assert em.position - em.n_seen == skipped.size
    # told once
    assert sum("is skipped" in record.message for record in caplog.records) == 1
    em.history.to_netcdf(tmp_path / "history.nc", engine="h5netcdf")


def test_the_reason_is_kept_too_where_an_error_is_raised(family, stream):
    em = driver(family, parameters=THETA)
    with pytest.raises(ValueError, match="was refused"):
        em.partial_fit([*stream[:3], np.inf])
    assert em.history["skipped"]["position"].values.tolist() == [3]


def test_a_generator_that_raises_has_ended(family, stream):
    def breaking():
        yield from stream[:30]
        raise OSError("disk")

    em = driver(family, n_start=7, on_error="skip").partial_fit(breaking())
    assert (em.n_seen, em.position) == (30, 31)
    equal_but_for_positions(em, driver(family, n_start=7).partial_fit(stream[:30]))
    assert "OSError: disk" in str(em.history["skipped"]["reason"].values[0])


def test_a_sequence_goes_on_behind_what_cannot_be_read(family, stream):
    disk = Disk(stream, broken=[0, 17, 18, 59])
    em = driver(family, n_start=7, on_error="skip").partial_fit(disk)
    left = np.delete(stream, [0, 17, 18, 59])
    equal_but_for_positions(em, driver(family, n_start=7).partial_fit(left))
    assert em.history["skipped"]["position"].values.tolist() == [0, 17, 18, 59]
    # with an error the record is not counted: what cannot be read today may be tomorrow
    disk, em = Disk(stream, broken=[17]), driver(family, n_start=7)
    with pytest.raises(OSError, match="sector 17"):
        em.partial_fit(disk)
    assert em.position == 17
    disk.broken.clear()
    assert_same(
        em.partial_fit(disk, skip=em.position), driver(family, n_start=7).partial_fit(stream)
    )


def test_passes_go_on_too(family, stream):
    passes = Passes(Disk(stream, broken=[4]), n_passes=3, random_seed=1)
    em = driver(family, n_start=7, on_error="skip").partial_fit(passes)
    assert (em.n_seen, em.position) == (177, 180)


def test_a_source_that_gives_nothing_but_errors_ends(family):
    class Dead:
        def __iter__(self):
            return self

        def __next__(self):
            raise OSError("gone")

    em = driver(family, parameters=THETA, on_error="skip")
    with pytest.raises(OSError, match="gone"):
        em.partial_fit(Dead())
    assert em.position == MOST_IN_A_ROW


def test_what_is_no_source_is_refused_all_the_same(family):
    em = driver(family, parameters=THETA, on_error="skip")
    for wrong in (None, "text", object()):
        with pytest.raises(TypeError, match="observations: got"):
            em.partial_fit(wrong)
    assert em.position == 0


def test_reasons_are_kept_of_the_last_records(family, stream):
    em = driver(family, parameters=THETA, on_error="skip")
    em.partial_fit([np.inf] * (MAX_SKIPPED + 5))
    positions = em.history["skipped"]["position"].values
    assert positions.tolist() == list(range(5, MAX_SKIPPED + 5))
    assert em.position == MAX_SKIPPED + 5


def test_on_error_is_one_of_two_words(family):
    with pytest.raises(
        ValueError, match=r"on_error: got 'ignore'; choose one of \('raise', 'skip'"
    ):
        driver(family, on_error="ignore")


class Unsteady(Levels):
    """A family whose M-step fails once, at the third update."""

    n_updates = 0

    def maximize(self, statistics, *, effective_size):
        self.n_updates += 1
        if self.n_updates == 3:
            return {"levels": np.full((2, 3), np.nan)}
        return super().maximize(statistics, effective_size=effective_size)


def test_parameters_of_a_failed_update_are_never_taken(rng):
    curves = rng.normal(size=(30, 3))
    options = {"e_step": Exact(), "random_seed": 1, "progressbar": False, "n_start": 5}
    em = OnlineEM(Unsteady(), on_error="skip", **options).partial_fit(curves)
    lost = em.history["skipped"]
    assert lost.sizes["position"] == 1
    assert "learning it failed: ValueError: parameters: levels" in str(lost["reason"].values[0])
    left = np.delete(curves, lost["position"].values, axis=0)
    clean = OnlineEM(Levels(), **options).partial_fit(left)
    assert em.parameters.identical(clean.parameters)


@pytest.mark.parametrize("updates", [UpdateSchedule(), UpdateSchedule.paper()])
def test_sums_that_overflow_are_refused_whether_or_not_an_update_is_due(family, stream, updates):
    options = {"parameters": THETA, "batch_size": 4, "update_schedule": updates}
    options["e_step"] = Towering()
    records = [*stream[:8], *[555.0] * 4, *stream[8:]]  # each of them alone is finite
    em = driver(family, on_error="skip", **options).partial_fit(records)
    np.testing.assert_array_equal(em.history["skipped"]["position"], [8, 9, 10, 11])
    assert "learning it failed" in str(em.history["skipped"]["reason"].values[0])
    equal_but_for_positions(em, driver(family, **options).partial_fit(stream))


@pytest.mark.parametrize(
    ("batch_size", "places", "kind"),
    by_default(
        product(
            [1, 6, 30],
            [(0,), (7,), (19,), (3, 4, 18), (18, 19, 20, 21)],
            ["not finite", "singular"],
        ),
        {
            (1, (0,), "not finite"),
            (1, (18, 19, 20, 21), "singular"),
            (6, (7,), "singular"),
            (6, (3, 4, 18), "not finite"),
            (30, (19,), "not finite"),
        },
    ),
)
def test_what_cannot_be_learned_stays_in_the_start_and_leaves_no_other_trace(
    family, stream, tmp_path, kind, places, batch_size
):
    """Over a restart too, and where errors are raised; a quantile of the start would tell."""
    options = {"e_step": Failing(), "batch_size": batch_size}
    records = list(stream)
    for place in places:
        records.insert(place, BAD[kind][0])
    generator = np.random.default_rng(np.random.SeedSequence(1, spawn_key=(0,)))
    start = family.initialize(records[:20], generator, "kmeans")
    clean = driver(family, parameters=start, **options).partial_fit(stream)
    options["n_start"] = 20
    em = driver(family, on_error="skip", **options).partial_fit(records)
    equal_but_for_positions(em, clean)
    assert em.history["skipped"]["position"].values.tolist() == list(places)
    for cut in (12, 19, 20, 24):
        em = driver(family, on_error="skip", **options).partial_fit(records[:cut])
        em.save(tmp_path / "run.nc")
        em = OnlineEM.load(tmp_path / "run.nc", family, e_step=Failing(), progressbar=False)
        equal_but_for_positions(em.partial_fit(records[cut:]), clean)
    # where errors are raised the next call goes on behind the record, in the same way
    em = driver(family, **options)
    while em.position < len(records):
        with suppress(FloatingPointError, RuntimeError):
            em.partial_fit(records, skip=em.position)
    equal_but_for_positions(em, clean)


class Picky(NormalMixture):
    """A family that no start can be found for where an observation is 444."""

    def initialize(self, observations, rng, start):
        if 444.0 in np.ravel(observations):
            raise np.linalg.LinAlgError("no start")
        return super().initialize(observations, rng, start)


@pytest.mark.parametrize("places", [(0,), (9,), (2, 10)])
def test_an_observation_that_spoils_the_start_is_left_out(stream, places):
    records = list(stream)
    for place in places:
        records.insert(place, 444.0)
    options = {"n_start": 10}
    clean = driver(Picky(), **options).partial_fit(stream)
    em = driver(Picky(), on_error="skip", **options)
    em.partial_fit(records)
    equal_but_for_positions(em, clean)
    assert em.history["skipped"]["position"].values.tolist()[0] == places[0]
    assert "the start fails with it: RuntimeError: start: 'kmeans'" in str(
        em.history["skipped"]["reason"].values[0]
    )


def test_an_observation_that_spoils_the_start_is_named(stream):
    em = driver(Picky(), n_start=10)
    with pytest.raises(RuntimeError, match=r"observation 4 of the stream.* is skipped, since"):
        em.partial_fit([*stream[:4], 444.0, *stream[4:]])
    em.partial_fit(stream[em.position - 1 :])
    clean = driver(Picky(), n_start=10).partial_fit(stream)
    equal_but_for_positions(em, clean)


@pytest.mark.parametrize("value", [1e101, -1e200, np.finfo(float).max])
@pytest.mark.parametrize("start", ["kmeans", "random"])
def test_what_is_too_large_to_be_squared_is_refused(rng, start, value):
    """One such image among those that are held for the start stopped a run for good."""
    images = rng.random((14, 3, 3))
    spoilt = np.insert(images, 3, images[3], axis=0)
    spoilt[3, 0, 0] = value
    mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    options = {"e_step": FixedLatents(), "n_start": 10, "start": start, "random_seed": 1}
    em = OnlineEM(mixture, on_error="skip", progressbar=False, **options).partial_fit(spoilt)
    clean = OnlineEM(mixture, progressbar=False, **options).partial_fit(images)
    equal_but_for_positions(em, clean)
    assert "refused: ValueError: observation holds" in str(em.history["skipped"]["reason"].values)


@dataclass(frozen=True)
class Odd:
    """The exact E-step but for observations of 333, with which `spoil` does something."""

    spoil: object

    def compile(self, family):
        exact, spoil = Exact().compile(family), self.spoil

        class Compiled:
            initial_state = staticmethod(lambda: {"scale": np.ones(1)})

            def __call__(self, data, parameters, rng, state, **options):
                found = replace(exact(data, parameters, rng, {}, **options), state=dict(state))
                return spoil(found) if data["value"] == 333 else found

        return Compiled()


def longer(found):
    return with_statistics(found, value=np.ones((3, 2)))


def imaginary(found):
    return with_statistics(found, value=found.statistics["value"] + 1j)


def without_a_future(found):
    return replace(found, state={"scale": np.array([np.nan])})


class Dumb(Exception):
    def __str__(self):
        raise TypeError("no words")

    def add_note(self, note):
        raise TypeError("no notes")


def wordless(found):
    raise Dumb


def with_statistics(found, **statistics):
    return replace(found, statistics={**found.statistics, **statistics})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (longer, r"ValueError: statistics: value from the E-step has shape \(3, 2\), expected"),
        (imaginary, "TypeError: statistics: value from the E-step has dtype complex128"),
        (without_a_future, "FloatingPointError: state: scale, which the E-step hands on"),
        (wordless, "(RuntimeError: )?Dumb: it has no text"),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 30])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor], ids=["here", "elsewhere"])
def test_whatever_an_e_step_gives_is_looked_at(
    family, stream, spoil, reason, place, batch_size, executor
):
    """From the first step on, whoever works."""
    options = {"parameters": THETA, "e_step": Odd(spoil), "batch_size": batch_size}
    with executor(1) if executor else nullcontext() as pool:
        em = driver(family, on_error="skip", executor=pool, **options)
        em.partial_fit([*stream[:place], 333.0, *stream[place:]])
    equal_but_for_positions(em, driver(family, **options).partial_fit(stream))
    assert re.match(f"learning it failed: {reason}", str(em.history["skipped"]["reason"].values[0]))


def test_failures_are_counted_by_records(family, stream):
    em = driver(family, parameters=THETA, e_step=Towering(), batch_size=4, on_error="skip")
    with pytest.raises(FloatingPointError, match="finite"):
        em.partial_fit([*stream[:8], *[555.0] * (MOST_IN_A_ROW + 4)])
    assert em.n_seen == 8


STEP_SIZES = [StepSize(), StepSize(0.9), StepSize(0.7, offset=3.0, floor=0.05)]
UPDATES = [
    UpdateSchedule(),
    UpdateSchedule([3, 9], every=4),
    UpdateSchedule.never(),
    UpdateSchedule([12], every=0),
]


@steady(12)
@given(
    seed=st.integers(0, 5),
    way=st.sampled_from(sorted(WAYS)),
    schedules=st.fixed_dictionaries(
        {},
        optional={
            "step_size": st.sampled_from(STEP_SIZES),
            "update_schedule": st.sampled_from(UPDATES),
            "burst_length": st.just(BurstLength(8, 2, later=((15, 12),))),
            "average_from": st.integers(1, 20),
            "revival": st.builds(Revival, wait=st.integers(1, 5), share=st.just(0.9)),
            "keep": st.just(7),
            "thin": st.integers(1, 2),
        },
    ),
    bad=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(sorted(BAD))), max_size=8),
    cuts=st.lists(st.integers(1, 47), max_size=2).map(sorted),
)
def test_whatever_is_bad_and_wherever_it_is_cut(
    family, tmp_path_factory, seed, way, schedules, bad, cuts
):
    """Any mixture of records, ways to run and cuts over a file: the clean run's numbers."""
    options = WAYS[way] | schedules
    values = mixture_stream(np.random.default_rng(seed), 40)
    records = list(values)
    # What fails only when it is learned has a part in the start, and counts as seen while held
    # for a mini-batch. An array with an axis more is a batch if it is first.
    placed = []
    for place, kind in bad:
        late = BAD[kind][1].startswith("learning")
        placed.append((min(max(place, 20), 28) if late else max(place, kind == "shape"), kind))
    for place, kind in sorted(placed, reverse=True):
        records.insert(place, BAD[kind][0])
    em = driver(family, e_step=Failing(), on_error="skip", **options)
    path = tmp_path_factory.mktemp("runs") / "run.nc"
    for stop in [*(cut for cut in cuts if cut < len(records)), len(records)]:
        em.partial_fit(source_of(records[em.position : stop]), skip=0)
        em.save(path)
        em = OnlineEM.load(path, family, e_step=Failing(), progressbar=False)
    equal_but_for_positions(em, driver(family, e_step=Failing(), **options).partial_fit(values))
    assert em.position == len(records)


@pytest.fixture(scope="module")
def mixture():
    return TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)


@pytest.fixture(scope="module")
def compiled(mixture):
    return FixedLatents().compile(mixture)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("deformation_outer", -1.0, "deformation_outer of class 1 is not positive semidefinite"),
        ("template_gram", -50.0, "template_gram of class 1 is not positive semidefinite"),
        ("squared_norm", -50.0, "squared_norm is negative"),
        ("class_weight", -2.0, "class_weight is -"),
        ("template_projection", np.inf, "template_projection from the E-step holds values that"),
    ],
)
def test_statistics_that_cannot_be_never_reach_the_parameters(
    mixture, compiled, rng, name, value, reason
):
    images = rng.normal(size=(20, 3, 3))

    def learned(observations):
        em = OnlineEM(
            mixture,
            parameters=mixture.parameters,
            e_step=Spoilt(compiled, name, value),
            on_error="skip",
            random_seed=1,
            progressbar=False,
        )
        return em.partial_fit(observations)

    em = learned(np.insert(images, 12, np.ones((3, 3)), axis=0))
    assert em.history["skipped"]["position"].values.tolist() == [12]
    assert reason in str(em.history["skipped"]["reason"].values[0])
    assert em.parameters.identical(learned(images).parameters)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 100_000, "é ß"])
def test_whatever_a_reason_says_the_run_can_be_saved(family, stream, tmp_path, text):
    def fails(*_, **__):
        raise OSError(text)

    class Source:
        def __init__(self):
            self.left = iter(range(20))

        def __iter__(self):
            return self

        def __next__(self):
            number = next(self.left)
            return stream[number] if number != 9 else fails()

    em = driver(family, parameters=THETA, on_error="skip").partial_fit(Source())
    em.save(tmp_path / "run.nc")
    found = OnlineEM.load(tmp_path / "run.nc", family, e_step=Noisy(), progressbar=False)
    (reason,) = found.history["skipped"]["reason"].values
    assert str(reason).startswith("reading it failed: OSError: ")
    assert len(str(reason)) < 400


@pytest.mark.parametrize(
    "options",
    [
        {"step_size": lambda n: 1.0 if n < 5 else 0.0},
        {"burst_length": lambda n: BurstSize(draws=5, tune=1) if n < 5 else 1 / 0},
        {"update_schedule": lambda n: n < 5 or 1 / 0},
    ],
    ids=["step size", "burst length", "update schedule"],
)
def test_a_setting_that_fails_is_no_records_fault(family, stream, options):
    em = driver(family, parameters=THETA, on_error="skip", **options)
    with pytest.raises((ValueError, ZeroDivisionError)):
        em.partial_fit(stream)
    assert em.position == 5
    assert "skipped" not in em.history.children


def test_a_run_in_which_nothing_can_be_learned_any_more_ends(family, stream):
    em = driver(family, parameters=THETA, on_error="skip", e_step=Failing())
    with pytest.raises(RuntimeError, match="singular"):
        em.partial_fit([*stream[:9], *[888.0] * 500])
    assert em.position < 120


def test_class_weights_that_do_not_sum_to_one_are_never_learned(family, stream):
    class Lost(Failing):
        """As fixed latents do where no class has a likelihood above zero: nothing is left."""

        def compile(self, family):
            compiled = super().compile(family)

            def call(data, *arguments, **sizes):
                found = compiled(data, *arguments, **sizes)
                share = 0.0 if data["value"] == 6.0 else 1.0
                kept = {name: share * value for name, value in found.statistics.items()}
                return replace(found, statistics=kept)

            call.initial_state = compiled.initial_state
            return call

    em = driver(family, e_step=Lost(), on_error="skip", parameters=THETA)
    em.partial_fit(np.insert(stream, 20, 6.0))
    assert em.position - em.n_seen == 1
    assert "class_weight sums to 0" in str(em.history["skipped"]["reason"].values[0])
    equal_but_for_positions(
        em, driver(family, e_step=Failing(), parameters=THETA).partial_fit(stream)
    )


def test_a_function_gets_every_record_that_is_left_out(family, stream):
    records = list(stream)
    for number, (bad, _) in enumerate(BAD.values()):
        records.insert(5 * number + 2, bad)
    kept = []
    em = driver(family, e_step=Failing(), on_error=kept.append, n_start=9)
    em.partial_fit(source_of(records))
    clean = driver(family, e_step=Failing(), n_start=9).partial_fit(stream)
    equal_but_for_positions(em, clean)
    kept.sort(key=lambda each: each.position)
    assert [each.position for each in kept] == [5 * number + 2 for number in range(len(BAD))]
    for each, (bad, reason) in zip(kept, BAD.values(), strict=True):
        assert re.match(reason, each.reason)
        if isinstance(bad, Unreadable):
            assert each.observation is None
        elif isinstance(bad, float):
            np.testing.assert_array_equal(each.observation, bad)
        else:
            assert each.observation is bad


def test_a_folder_gets_more_than_a_thousand_records_which_can_be_learned_later(
    family, stream, tmp_path
):
    """What is left out for its fault today may be good tomorrow: here a unit was wrong."""
    folder = tmp_path / "left_out"
    wrong = np.linspace(1e150, 1e160, MAX_SKIPPED + 5)
    em = driver(family, parameters=THETA, on_error=folder)
    em.partial_fit([*stream[:10], *wrong, "text", {"value": np.inf}, *stream[10:]])
    files = sorted(folder.iterdir())
    assert len(files) == MAX_SKIPPED + 7
    found = [loaded_record(file) for file in files]
    assert [int(each["position"]) for each in found] == list(range(10, 10 + len(files)))
    assert str(found[0]["reason"]).startswith("refused: ValueError")
    assert str(found[-2]["observation"]) == "'text'"
    assert found[-1]["observation:value"] == np.inf
    np.testing.assert_array_equal([each["observation"] for each in found[:-2]], wrong)
    em.partial_fit([each["observation"] / 1e155 for each in found[:-2]])
    assert em.n_seen == 60 + wrong.size
    # again, as after a restart: nothing twice
    driver(family, parameters=THETA, on_error=folder).partial_fit([*stream[:10], *wrong])
    assert sorted(folder.iterdir()) == files


def test_a_function_that_fails_loses_no_record(family, stream):
    kept, broken = [], [True]

    def keep(record):
        if broken:
            raise OSError("disk full")
        kept.append(record.position)

    em = driver(family, e_step=Failing(), on_error=keep, parameters=THETA)
    records = [*stream[:5], np.inf, *stream[5:9], 888.0, *stream[9:]]
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            em.partial_fit(records, skip=em.position)
        assert em.position == 5
    broken.clear()
    em.partial_fit(records, skip=em.position)
    assert kept == [5, 10]
    equal_but_for_positions(em, driver(family, parameters=THETA).partial_fit(stream))


def test_what_saem_leaves_out_is_handed_over_too(family, stream, tmp_path):
    records = [*stream[:10], np.inf, 888.0, *stream[10:]]
    settings = {"e_step": Failing(), "random_seed": 1, "progressbar": False}
    saem = SAEM(family, on_error=tmp_path / "left", **settings).fit(records, 3)
    found = [loaded_record(file) for file in sorted((tmp_path / "left").iterdir())]
    assert [(int(each["position"]), *list(each)[2:]) for each in found] == [
        (10, "observation"),
        (11, "observation:value"),
    ]
    clean = SAEM(family, on_error="skip", **settings).fit(records, 3)
    assert saem.parameters.identical(clean.parameters)


def test_what_records_are_handed_to_is_given_again_with_a_saved_run(family, stream, tmp_path):
    """A file is not trusted with the name of a folder to write in."""
    em = driver(family, parameters=THETA, on_error=tmp_path / "left").partial_fit(stream[:5])
    em.save(tmp_path / "run.nc")
    with pytest.raises(ValueError, match=r"on_error: .*a file cannot hold; pass on_error= to load"):
        OnlineEM.load(tmp_path / "run.nc", family, e_step=Noisy())
    em = OnlineEM.load(tmp_path / "run.nc", family, e_step=Noisy(), on_error="skip")
    assert em.n_seen == 5


@pytest.mark.parametrize("what", ["folder", "above", "file"])
def test_a_folder_that_goes_under_way_is_made_again_or_named(family, stream, tmp_path, what):
    above = tmp_path / "above"
    above.mkdir()
    folder = above / "left"

    def source():
        yield from [*stream[:5], np.inf, *stream[5:9]]
        shutil.rmtree(folder if what == "folder" else above)
        if what == "file":
            above.mkdir()
            folder.touch()
        yield from records[10:]

    records = [*stream[:5], np.inf, *stream[5:9], np.inf, *stream[9:]]
    em = driver(family, parameters=THETA, on_error=folder)
    if what != "folder":
        said = "the folder that .* does not exist" if what == "above" else "left' is no folder"
        with pytest.raises(OSError, match=f"on_error: .*{said}"):
            em.partial_fit(source())
        assert em.position == 10
        folder.unlink(missing_ok=True)
        above.mkdir(exist_ok=True)
        em.partial_fit(records, skip=em.position)
    else:
        em.partial_fit(source())
    assert [file.name for file in folder.iterdir()] == ["000000000010.npz"]
    equal_but_for_positions(em, driver(family, parameters=THETA).partial_fit(stream))


def test_a_folder_that_cannot_be_is_refused(family, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"on_error: .*file' is no folder"):
        driver(family, on_error=tmp_path / "file")
    with pytest.raises(FileNotFoundError, match=r"on_error: the folder that .* does not exist"):
        driver(family, on_error=tmp_path / "none" / "left")
