"""The doors of OnlineEM: cuts, held observations, readings, errors, interrupts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.esteps.posterior_mode import PosteriorMode
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.schedules import BurstLength, BurstSize, StepSize, UpdateSchedule
from pymc_mcoem.templates import TemplateMixture
from tests.helpers.representatives import by_default
from tests.helpers.toy_families import Failing, NormalMixture
from tests.helpers.toy_runs import (
    EARLY,
    THETA,
    WAYS,
    assert_classes_turned,
    assert_same,
    driver,
    image_mixture,
    turned,
    what_counts,
)


@pytest.mark.parametrize("way", WAYS)
def test_cuts_change_nothing(family, stream, way):
    whole = driver(family, **WAYS[way]).partial_fit(stream)
    for cuts in ([1], [7], [19, 20, 21], [3, 30, 59], list(range(1, 60))):
        em = driver(family, **WAYS[way])
        for first, last in itertools.pairwise([0, *cuts, 60]):
            em.partial_fit(stream[first:last])
        assert_same(em, whole)


@pytest.mark.parametrize(
    "way", by_default(WAYS, {"held start, mini-batches, average", "paper's updates"})
)
def test_reading_changes_nothing(family, stream, way):
    quiet, curious = driver(family, **WAYS[way]), driver(family, **WAYS[way])
    for n, value in enumerate(stream, start=1):
        quiet.partial_fit(value)
        curious.partial_fit(value)
        before = curious.parameters
        assert curious.parameters.identical(before)
        assert curious.last_parameters is not before
        _ = curious.history
        if n % 13 == 0:
            assert_same(curious, quiet)
    assert_same(curious, quiet)


@pytest.mark.parametrize("n", [1, 4, 12, 33])
def test_reading_answers_as_if_the_stream_ended(family, stream, n):
    held = driver(family, n_start=50, update_schedule=UpdateSchedule([50]))
    held.partial_fit(stream[:n])
    assert held.n_seen == n
    assert held.history["steps"].sizes["step"] == 0
    # The same stream, where the start and the first update are due with its last observation.
    ended = driver(family, n_start=n, update_schedule=UpdateSchedule([n]))
    assert held.parameters.identical(ended.partial_fit(stream[:n]).parameters)


def test_ten_images_make_one_template_whichever_comes_first(rng):
    """The first update waits until several have come, also if every class is soon ready."""
    mixture = TemplateMixture.for_images((4, 4), n_classes=1, n_landmarks=2)
    images, start = rng.normal(size=(10, 4, 4)), mixture.parameters
    settings = {"e_step": FixedLatents(), "step_size": StepSize(1), "progressbar": False}
    found = [
        OnlineEM(mixture, parameters=start, **settings).partial_fit(each).parameters
        for each in (images, images[::-1])
    ]
    xr.testing.assert_allclose(*found)
    assert not np.allclose(found[0].templates, start.templates)


@pytest.mark.parametrize(
    "settings", [{}, {"batch_size": 4, "average_from": 10}], ids=["default", "mini-batches"]
)
def test_turned_classes_change_nothing_but_names(family, stream, settings):
    """With an E-step that draws nothing; two of the classes wait at first."""
    settings = settings | {"e_step": Exact()}
    plain = driver(family, parameters=EARLY, **settings).partial_fit(stream)
    for order in ([2, 0, 1], [2, 1, 0]):
        other = driver(family, parameters=turned(family, EARLY, order), **settings)
        assert_classes_turned(other.partial_fit(stream), plain, order)
    assert plain.history["steps"]["waiting"].values.any()


@pytest.mark.parametrize(
    "e_step", [FixedLatents(), PosteriorMode()], ids=lambda e: type(e).__name__
)
def test_turned_classes_of_templates_change_nothing_but_names(e_step, rng):
    mixture, images, start = image_mixture(rng)
    other_start = turned(mixture, start, [1, 2, 0])
    plain = driver(mixture, parameters=start, e_step=e_step).partial_fit(images)
    other = driver(mixture, parameters=other_start, e_step=e_step).partial_fit(images)
    assert_classes_turned(other, plain, [1, 2, 0])


def test_an_incomplete_batch_is_read_as_a_smaller_one(family, stream):
    em = driver(family, parameters=THETA, batch_size=10, e_step=Exact(), step_size=StepSize(1))
    em.partial_fit(stream[:13])
    state = em.run.ended_state()
    first = family.batch(stream[:10], THETA)
    second = family.batch(stream[10:13], em.run.state.parameters)
    for name, value in state.statistics.items():
        np.testing.assert_allclose(value, (first[name] + second[name]) / 2, rtol=1e-12)
    assert state.effective_size == pytest.approx(1 / (0.25 / 10 + 0.25 / 3))
    assert em.n_learned == 10


def test_kinds_of_streams_are_the_same(family, stream):
    whole = driver(family, n_start=9).partial_fit(stream)
    for kind in (
        list(stream),
        iter(stream),
        (value for value in stream),
        tuple(stream),
        xr.DataArray(stream, dims="observation"),
        ({"value": value} for value in stream),
        xr.DataArray(stream, dims="observation").to_series(),
    ):
        assert_same(driver(family, n_start=9).partial_fit(kind), whole)


def test_partial_fit_takes_one_observation(family):
    em = driver(family, parameters=THETA)
    for one in (1.5, np.array(1.5), np.float64(1.5), {"value": 1.5}, xr.DataArray(1.5), [1.5], 1):
        assert em.partial_fit(one) is em
    assert em.n_seen == 7


def test_streams_are_read_no_further_than_learned(family, stream):
    em = driver(family, parameters=THETA)
    seen_before = []

    def lazy():
        for value in stream:
            seen_before.append(em.n_seen)
            yield value

    em.partial_fit(lazy())
    assert seen_before == list(range(60))


def test_buffers_may_be_used_again(family, stream):
    def reused():
        buffer = np.empty(())
        for value in stream:
            buffer[...] = value
            yield buffer

    for way in ("held start", "mini-batches"):
        assert_same(
            driver(family, **WAYS[way]).partial_fit(reused()),
            driver(family, **WAYS[way]).partial_fit(stream),
        )


def test_model_holds_the_last_parameters_and_is_not_read(stream):
    family = NormalMixture()
    first = driver(family, parameters=THETA, average_from=1).partial_fit(stream)
    for name in family.parameter_names:
        np.testing.assert_array_equal(
            family.model[name].get_value(), first.last_parameters[name].values
        )
    # Another driver on the same family starts from what was declared, not from the first's θ.
    second = driver(family, n_start=5).partial_fit(stream)
    fresh = driver(NormalMixture(), n_start=5).partial_fit(stream)
    assert_same(second, fresh)
    first.partial_fit(stream[:1])
    again = driver(NormalMixture(), parameters=THETA, average_from=1)
    assert_same(first, again.partial_fit(stream).partial_fit(stream[:1]))


def test_seeds(family, stream):
    one = driver(family, random_seed=3).partial_fit(stream).parameters
    assert driver(family, random_seed=3).partial_fit(stream).parameters.identical(one)
    assert not driver(family, random_seed=4).partial_fit(stream).parameters.identical(one)
    for seed in (None, [1, 2], np.int64(5)):
        driver(family, random_seed=seed).partial_fit(stream)
    for seed in (-1, 1.5, "one", True, []):
        with pytest.raises(ValueError, match="random_seed: got"):
            driver(family, random_seed=seed)


@pytest.mark.parametrize("empty", [[], np.empty(0), iter(())])
@pytest.mark.parametrize("way", WAYS)
def test_an_empty_stream_is_refused(family, stream, way, empty):
    em = driver(family, **WAYS[way])
    with pytest.raises(ValueError, match="observations: got none; pass at least one"):
        em.partial_fit(empty)
    em.partial_fit(stream[:30])
    with pytest.raises(ValueError, match="observations: got none"):
        em.partial_fit([])
    em.partial_fit(stream[30:])
    assert_same(em, driver(family, **WAYS[way]).partial_fit(stream))


def test_nothing_seen_and_nothing_given(family):
    with pytest.raises(ValueError, match=r"nothing was seen and none were given.*partial_fit"):
        _ = driver(family).parameters
    given = driver(family, parameters=THETA)
    np.testing.assert_array_equal(given.parameters["means"], THETA["means"])
    assert given.n_seen == 0


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        (np.inf, ValueError, "not finite"),
        (np.zeros(3), ValueError, r"shape \(3,\), the model expects \(\)"),
        ("text", TypeError, "dtype <U4"),
        (1 + 2j, TypeError, "dtype complex"),
        (None, TypeError, "dtype object"),
        ({"other": 1.0}, ValueError, r"\['other'\]; give one value for each of \['value'\]"),
        (np.ma.masked_array(1.0, mask=True), ValueError, "masked"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_bad_observation_is_named_and_left_out(family, stream, way, bad, kind, message):
    em = driver(family, **WAYS[way])
    source = iter([*stream[:25], bad, *stream[25:]])
    with pytest.raises(kind, match=rf"observation 25 \(counted from 0\) was refused: .*{message}"):
        em.partial_fit(source)
    assert (em.n_seen, em.position) == (25, 26)
    # The generator goes on after it, and the result is that of a stream without it.
    em.partial_fit(source)
    assert em.position == 61
    clean = driver(family, **WAYS[way]).partial_fit(stream)
    assert em.n_seen == clean.n_seen
    for name, dataset in what_counts(clean)[0].items():
        xr.testing.assert_identical(what_counts(em)[0][name], dataset)


def test_a_bad_observation_of_a_later_call_is_named_twice(family, stream):
    em = driver(family, parameters=THETA).partial_fit(stream[:10])
    with pytest.raises(ValueError, match=r"observation 2 \(counted from 0, 12 of the whole stre"):
        em.partial_fit([0.0, 1.0, np.nan])
    assert em.n_seen == 12


def test_an_error_in_the_users_iterator_keeps_what_was_learned(family, stream):
    def breaking():
        yield from stream[:30]
        raise OSError("disk")

    em = driver(family, n_start=7)
    with pytest.raises(OSError, match="disk"):
        em.partial_fit(breaking())
    np.testing.assert_array_equal(
        family.model["means"].get_value(), em.last_parameters["means"].values
    )
    em.partial_fit(stream[30:])
    assert_same(em, driver(family, n_start=7).partial_fit(stream))


@pytest.mark.parametrize("way", ["given start", "mini-batches"])
@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [(999, FloatingPointError, "square .* not finite"), (888, RuntimeError, "singular")],
)
def test_a_failed_step_leaves_its_observation_out(family, stream, way, bad, kind, message):
    em = driver(family, e_step=Failing(), **WAYS[way])
    source = iter([*stream[:25], float(bad), *stream[25:]])
    with pytest.raises(kind, match=f"observation 25 of the stream.*skipped.*{message}"):
        em.partial_fit(source)
    em.partial_fit(source)
    clean = driver(family, **WAYS[way]).partial_fit(stream)
    assert (em.n_seen, em.position) == (60, 61)
    for name, dataset in what_counts(clean)[0].items():
        xr.testing.assert_identical(what_counts(em)[0][name], dataset)


def test_a_failed_step_of_a_held_observation_does_not_block(family, stream):
    em = driver(family, e_step=Failing(), n_start=10)
    em.partial_fit([*stream[:4], 999.0])
    with pytest.raises(
        FloatingPointError, match=r"observation 4 .* is held, and cannot be learned"
    ):
        _ = em.parameters
    with pytest.raises(FloatingPointError, match=r"observation 4 .* is skipped"):
        em.partial_fit(stream[4:10])
    em.partial_fit(stream[10:])
    assert (em.n_seen, em.n_learned) == (59, 59)


def test_an_update_that_fails_leaves_the_driver_as_it_was(stream):
    class Fragile(NormalMixture):
        def maximize(self, statistics, *, effective_size):
            found = super().maximize(statistics, effective_size=effective_size)
            if statistics["value"].sum() > 50:
                found["noise_variance"] = np.asarray(np.inf)
            return found

    em = driver(Fragile(), parameters=THETA).partial_fit(stream[:30])
    before = em.parameters
    with pytest.raises(RuntimeError, match=r"observation 30 .*noise_variance.*not finite"):
        em.partial_fit(1e4)
    assert em.parameters.identical(before)
    em.partial_fit(stream[30:])
    clean = driver(NormalMixture(), parameters=THETA).partial_fit(stream)
    assert em.parameters.identical(clean.parameters)


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        ({"class_weight": np.ones(3)}, r"returned \['class_weight'\]"),
        (
            {"class_weight": np.ones(3), "value": np.ones(2), "square": np.ones(3)},
            r"value from the E-step has shape \(2,\)",
        ),
        (
            {"class_weight": np.ones((3, 1)), "value": np.ones(3), "square": np.ones(3)},
            r"class_weight from the E-step has shape \(3, 1\)",
        ),
    ],
)
def test_statistics_of_another_shape_are_refused(statistics, message):
    class Wrong(NormalMixture):
        def exact(self, data, parameters):
            return statistics

    with pytest.raises(RuntimeError, match=message):
        driver(Wrong(), e_step=Exact(), parameters=THETA).partial_fit(1.0)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"start": "best"}, ValueError, "start: got 'best'"),
        ({"n_start": 0}, ValueError, "n_start: got 0"),
        ({"batch_size": 1.5}, ValueError, "batch_size: got 1.5"),
        ({"average_from": 0}, ValueError, "average_from: got 0"),
        ({"keep": 1}, ValueError, "keep: got 1"),
        ({"step_size": 0.6}, TypeError, r"step_size: got 0.6; give a schedule, as StepSize\(0.6"),
        ({"step_size": lambda n: 0.5}, ValueError, "first gain must be 1"),
        ({"update_schedule": 10}, TypeError, r"update_schedule: got 10; .* UpdateSchedule"),
        ({"burst_length": 100}, TypeError, r"burst_length: got 100; .* BurstLength\(100\)"),
        ({"e_step": "exact"}, TypeError, "e_step: got 'exact'"),
        ({"e_step": Exact}, TypeError, "e_step: got <class .*; give an E-step such as Carlin"),
        ({"parameters": {"means": np.zeros(3)}}, ValueError, "parameters: got"),
        ({"parameters": THETA | {"means": np.zeros(4)}}, ValueError, "means has shape"),
        ({"parameters": THETA | {"means": np.full(3, np.nan)}}, ValueError, "not finite"),
    ],
)
def test_bad_settings_are_refused(family, arguments, kind, message):
    with pytest.raises(kind, match=message):
        driver(family, **arguments)


def test_plain_functions_are_schedules(family, stream):
    given = driver(
        family,
        parameters=THETA,
        step_size=lambda n: n**-0.6,
        update_schedule=lambda n: n % 10 == 0,
        burst_length=lambda n: BurstSize(draws=100, tune=50),
    ).partial_fit(stream)
    expected = driver(family, parameters=THETA, update_schedule=UpdateSchedule([10], every=10))
    assert given.parameters.identical(expected.partial_fit(stream).parameters)


def test_a_gain_out_of_range_is_refused_when_it_comes(family, stream):
    em = driver(family, parameters=THETA, step_size=lambda n: 1.0 if n < 5 else 1.5)
    with pytest.raises(ValueError, match=r"step_size: gave 1\.5 for step 5"):
        em.partial_fit(stream)
    # no fault of the fifth observation, which is held
    assert (em.n_learned, em.n_seen) == (4, 5)


def test_as_in_paper(family):
    em = OnlineEM.as_in_paper(family, random_seed=3)
    settings = em.run.settings
    assert settings.update_schedule == UpdateSchedule.paper()
    assert settings.start == "random"
    assert settings.burst_length(101).draws == 400
    assert type(settings.e_step).__name__ == "CarlinChibBurst"
    assert settings.e_step == type(settings.e_step).as_in_paper()
    other = OnlineEM.as_in_paper(family, e_step=Exact(), start="kmeans").run.settings
    assert (other.e_step, other.start) == (Exact(), "kmeans")


def test_the_papers_kernel_and_schedules_learn(stream):
    mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    images = np.random.default_rng(5).normal(size=(60, 3, 3))
    em = OnlineEM.as_in_paper(
        mixture, random_seed=3, burst_length=BurstLength(10, 5), progressbar=False
    ).partial_fit(images)
    path = em.history["steps"].to_dataset()
    # the first M-step comes at 50, the next would at 75
    assert path["updated"].values.nonzero()[0].tolist() == [50]
    assert all(np.isfinite(value).all() for value in em.parameters.values())


def test_axes_of_a_dataarray_are_known_by_their_names():
    mixture = TemplateMixture.for_images((2, 3), n_classes=1, n_landmarks=2)
    images = np.arange(24.0).reshape(4, 2, 3)
    turned = xr.DataArray(np.moveaxis(images, 0, -1), dims=("row", "column", "n"))
    np.testing.assert_array_equal(list(mixture.iterate(turned)), images)
    single = xr.DataArray(images[1].T, dims=("column", "row"))
    np.testing.assert_array_equal(mixture.encode(single)["observed_values"], images[1])
    np.testing.assert_array_equal(list(mixture.iterate(single)), images[1:2])
    unnamed = xr.DataArray(images, dims=("n", "y", "x"))
    np.testing.assert_array_equal(list(mixture.iterate(unnamed)), images)
    with pytest.raises(ValueError, match=r"a DataArray with dims \('n', 'row', 'x'\); the model"):
        list(mixture.iterate(xr.DataArray(images, dims=("n", "row", "x"))))


def test_a_dataarray_of_one_axis_for_a_family_of_ones_own(family):
    ys = xr.DataArray([1.0, 2.0], dims="time")
    np.testing.assert_array_equal(list(family.iterate(ys)), [1.0, 2.0])
    assert family.encode(ys[0]).popitem()[1] == 1.0


def test_repr(family, stream):
    assert repr(driver(family).partial_fit(stream[:3])) == "OnlineEM(NormalMixture, n_seen=3)"
