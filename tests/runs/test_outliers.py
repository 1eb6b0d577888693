"""Records that are finite and absurd are refused; heavy tails and rare kinds of records are not."""

from __future__ import annotations

import logging
from itertools import product

import numpy as np
import pytest

import pymc_mcoem as mcoem
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.runs.outliers import IN_A_ROW, LEAST, remembered, require_plausible, span
from tests.helpers.representatives import by_default
from tests.helpers.toy_families import Noisy
from tests.helpers.toy_runs import THETA, WAYS, assert_same, driver


def assert_learned_without(em, clean, places):
    assert em.parameters.identical(clean.parameters)
    assert em.n_seen == clean.n_seen
    skipped = em.history["skipped"]["reason"]
    assert skipped["position"].values.tolist() == places
    for reason in skipped.values:
        assert str(reason).startswith("refused: Absurd: observation reaches ")


@pytest.mark.parametrize(
    ("way", "place", "value"),
    by_default(
        product(WAYS, [LEAST, 25, 60], [1e30, -1e99, 99999.0]),
        {
            *product(WAYS, [25], [1e30]),
            *product(["held start"], [LEAST, 25, 60], [1e30, -1e99, 99999.0]),
        },
    ),
)
def test_one_absurd_record_is_refused(family, stream, way, place, value):
    em = driver(family, on_error="skip", **WAYS[way])
    em.partial_fit(np.insert(stream, place, value))
    assert_learned_without(em, driver(family, **WAYS[way]).partial_fit(stream), [place])


@pytest.mark.parametrize("places", [(0,), (3, 9), (0, 1, 2)])
def test_the_first_ones_are_looked_at_again_before_the_start(family, stream, places):
    records = list(stream)
    for place in places:
        records.insert(place, 1e30)
    clean = driver(family, n_start=20).partial_fit(stream)
    em = driver(family, n_start=20, on_error="skip").partial_fit(records)
    assert_learned_without(em, clean, list(places))
    em = driver(family, n_start=20)
    with pytest.raises(ValueError, match=rf"observation {places[0]}.* was refused: observation"):
        em.partial_fit(records)
    em.partial_fit(records, skip=em.position)
    assert_learned_without(em, clean, list(places))


def test_it_is_raised_by_name_and_can_be_switched_off(family, stream):
    em = driver(family, parameters=THETA).partial_fit(stream[:30])
    with pytest.raises(ValueError, match=r"observation 0 .*refused: observation reaches 1e\+30"):
        em.partial_fit([1e30])
    assert (em.position, em.n_seen) == (31, 30)
    em = driver(family, parameters=THETA, refuse_beyond=None).partial_fit([*stream, 1e30])
    assert em.n_seen == 61
    assert em.parameters["noise_variance"] > 1e50
    for wrong in (1, 0.5, "far", np.nan, -3.0):
        with pytest.raises(ValueError, match=r"refuse_beyond: got .*above 1"):
            driver(family, refuse_beyond=wrong)


def test_the_bound_is_saved_with_the_run(family, stream, tmp_path):
    records = np.insert(stream, 40, 1e30)
    whole = driver(family, parameters=THETA, on_error="skip").partial_fit(records)
    em = driver(family, parameters=THETA, on_error="skip").partial_fit(records[:40])
    em.save(tmp_path / "run.nc")
    em = OnlineEM.load(tmp_path / "run.nc", family, e_step=Noisy(), progressbar=False)
    em.partial_fit(records[40:])
    assert_learned_without(em, whole, [40])
    for name, rows in whole.run.state.recent.items():
        np.testing.assert_array_equal(em.run.state.recent[name], rows)


def test_many_in_a_row_warn_that_the_stream_may_have_changed(family, stream, caplog):
    em = driver(family, parameters=THETA, on_error="skip")
    with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
        em.partial_fit([*stream[:30], *[1e9] * (IN_A_ROW - 1), *stream[30:40]])
        assert not [each for each in caplog.records if "may have changed" in each.message]
        em.partial_fit(1e6 * stream)
    told = [each for each in caplog.records if "may have changed" in each.message]
    assert [each.args[0] for each in told] == [IN_A_ROW]


def test_reading_the_parameters_while_records_are_held_tells_nothing(family, stream, caplog):
    em = driver(family, n_start=50, on_error="skip")
    with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
        for record in [*[1e9] * IN_A_ROW, *stream[:15]]:
            em.partial_fit([record])
            assert em.parameters
        assert not caplog.records
        em.partial_fit(stream[15:])
    told = [each for each in caplog.records if "may have changed" in each.message]
    assert [each.args[0] for each in told] == [IN_A_ROW]


@pytest.mark.parametrize("n_absurd", [IN_A_ROW - 1, IN_A_ROW])
def test_many_in_a_row_warn_at_a_start_and_in_saem(family, stream, caplog, n_absurd):
    records = [*[1e9] * n_absurd, *stream]
    expected = [IN_A_ROW] * (n_absurd == IN_A_ROW)
    for fit in (
        lambda: driver(family, n_start=30, on_error="skip").partial_fit(records),
        lambda: SAEM(family, e_step=Noisy(), on_error="skip", progressbar=False).fit(records, 1),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
            run = fit()
        told = [each for each in caplog.records if "may have changed" in each.message]
        assert [each.args[0] for each in told] == expected
        assert len(run.history["skipped"]["position"]) == n_absurd


def test_saem_refuses_too(family, stream):
    settings = {"e_step": Noisy(), "random_seed": 1, "progressbar": False}
    records = np.insert(stream, [3, 40], 1e30)
    clean = SAEM(family, **settings).fit(stream, 3)
    saem = SAEM(family, on_error="skip", **settings).fit(records, 2).fit(records, 1)
    assert saem.parameters.identical(clean.parameters)
    assert saem.history["skipped"]["position"].values.tolist() == [3, 41]
    with pytest.raises(ValueError, match=r"observation 3 \(counted from 0\) was refused"):
        SAEM(family, **settings).fit(records, 1)
    assert SAEM(family, refuse_beyond=None, **settings).fit(records, 1).n_iterations == 1


@pytest.mark.parametrize(
    "kind", ["normal", "student", "rare", "blank", "constant", "rounded", "counts"]
)
def test_what_is_strange_but_no_error_is_taken(kind, rng):
    """The bound is for absurdities: a Student t with two degrees of freedom keeps inside it."""
    n = 5_000
    values = {
        "normal": rng.normal(size=(n, 4)),
        "student": rng.standard_t(2, size=(n, 4)),
        "rare": np.where(rng.random((n, 1)) < 0.01, 1_000.0, 0.0) + rng.normal(size=(n, 4)),
        "blank": np.where(rng.random((n, 1)) < 0.1, rng.random((n, 4)), 0.0),
        "constant": np.ones((n, 4)),
        "rounded": np.where(rng.random((n, 1)) < 0.01, 0.5, 1.0 + 1e-15 * rng.random((n, 4))),
        "counts": rng.poisson(0.01, size=(n, 4)).astype(float),
    }[kind]
    recent = None
    for value in values:
        row = span(value)
        require_plausible(row, recent, 10_000.0)
        recent = remembered(recent, row)


def test_parts_of_a_record_are_looked_at_each_by_itself(rng):
    recent = None
    for _ in range(30):
        record = {"age": 1e6 + rng.normal(size=5), "height": 1e-6 * rng.normal(size=7)}
        require_plausible(span(record), recent, 1_000.0)
        recent = remembered(recent, span(record))
    with pytest.raises(ValueError, match="observation:height reaches 1, "):
        require_plausible(span(record | {"height": np.array([np.nan, 1.0])}), recent, 1_000.0)
    with pytest.raises(ValueError, match="observation:age reaches 0"):
        require_plausible(span(record | {"age": np.zeros(3)}), recent, 1_000.0)
    # nothing but missing points says nothing
    require_plausible(span({"height": np.full(2, np.nan)}), recent, 1_000.0)


@pytest.mark.parametrize("place", [0, 1, 2, 3, 9])
def test_with_a_given_start_one_among_the_first_is_refused_too(family, stream, place):
    em = driver(family, parameters=THETA, on_error="skip")
    em.partial_fit(np.insert(stream, place, 1e30))
    assert_learned_without(em, driver(family, parameters=THETA).partial_fit(stream), [place])


@pytest.mark.parametrize(
    ("n_start", "place"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (5, 0), (5, 2), (5, 4)]
)
def test_of_a_short_start_and_a_small_set_too(family, stream, n_start, place):
    records = np.insert(stream, place, 1e30)
    em = driver(family, n_start=n_start, on_error="skip").partial_fit(records)
    assert_learned_without(em, driver(family, n_start=n_start).partial_fit(stream), [place])
    settings = {"e_step": Noisy(), "random_seed": 1, "progressbar": False, "on_error": "skip"}
    n = n_start + 1
    saem = SAEM(family, **settings).fit(records[: n + 1], 2)
    assert saem.parameters.identical(SAEM(family, **settings).fit(stream[:n], 2).parameters)


@pytest.mark.parametrize("n_start", [1, 2])
def test_a_start_of_one_or_two_is_compared_with_what_the_model_declares(family, stream, n_start):
    """Its largest number is 2. What was learned before, and written to the model, says nothing."""
    family.set_model_parameters({**THETA, "means": np.array([0.0, 1.0, 1e30])})
    em = driver(family, n_start=n_start)
    records = [*stream[: n_start - 1], 1e30]
    with pytest.raises(
        ValueError, match=r"1e\+30, 5e\+29 times as far from 0 as the largest of th"
    ):
        em.partial_fit(records)
    assert (em.position, em.n_seen) == (n_start, n_start - 1)
    em.partial_fit(stream[n_start - 1 :])
    assert em.parameters.identical(driver(family, n_start=n_start).partial_fit(stream).parameters)
    # a thousand times as large is not absurd, and with None nothing is
    for scale in (1.0, 1e3):
        em = driver(family, n_start=n_start).partial_fit(scale * stream)
        free = driver(family, n_start=n_start, refuse_beyond=None).partial_fit(scale * stream)
        assert_same(em, free)
        assert em.n_seen == 60
    assert driver(family, n_start=n_start, refuse_beyond=None).partial_fit(records).n_seen


def test_what_is_read_while_records_are_held_is_as_if_the_stream_ended(family, stream):
    records = [*stream[:5], 1e30]
    em = driver(family, on_error="skip").partial_fit(records)
    clean = driver(family).partial_fit(stream[:5])
    assert em.parameters.identical(clean.parameters)
    assert em.n_seen == 6
    em = driver(family).partial_fit(records)
    with pytest.raises(ValueError, match=r"observation 5 .* is held, and cannot be learned: obser"):
        _ = em.parameters
    with pytest.raises(ValueError, match="nothing was seen and none were given"):
        _ = driver(family, on_error="skip").partial_fit([1e30]).parameters


@pytest.mark.parametrize("dark", [0.0, 0.3])
def test_records_that_are_all_alike_bound_what_comes_behind_them(family, dark, stream):
    records = np.concatenate([np.full(20, dark), [1e30], [60_000.0], stream])
    em = driver(family, parameters=THETA, on_error="skip").partial_fit(records)
    assert em.history["skipped"]["position"].values.tolist() == [20]


@pytest.mark.parametrize("level", [0.0, 0.3])
@pytest.mark.parametrize(
    ("n_start", "places"), [(3, (2,)), (4, (0,)), (12, (5,)), (50, (49,)), (50, (0, 11, 12))]
)
def test_of_a_start_whose_records_are_all_alike_too(family, level, n_start, places, stream):
    alike = np.full(n_start, level)
    records = list(alike)
    for place in places:
        records.insert(place, 1e30)
    em = driver(family, n_start=n_start, on_error="skip").partial_fit([*records, *stream])
    clean = driver(family, n_start=n_start).partial_fit([*alike, *stream])
    assert_learned_without(em, clean, list(places))
    settings = {"e_step": Noisy(), "random_seed": 1, "progressbar": False, "on_error": "skip"}
    saem = SAEM(family, **settings).fit(records, 2)
    assert saem.parameters.identical(SAEM(family, **settings).fit(alike, 2).parameters)
    # those that differ from the others by what may be are learned
    some = np.append(alike, [60_000.0, 5.0])
    assert driver(family, n_start=n_start + 2).partial_fit(some).n_seen == n_start + 2


@pytest.mark.parametrize("value", [-99999.0, 1e6])
@pytest.mark.parametrize("place", [0, 1, 9])
def test_what_a_given_start_predicts_is_the_first_measure(family, stream, place, value):
    records = np.insert(stream, place, value)
    em = driver(family, parameters=THETA, on_error="skip").partial_fit(records)
    clean = driver(family, parameters=THETA).partial_fit(stream)
    assert em.parameters.identical(clean.parameters)
    (skipped,) = em.history["skipped"]["reason"]
    assert skipped["position"] == place
    assert "times as far as what the parameters predict (10000 are allowed)" in str(skipped.values)
    # switched off, it is learned
    em = driver(family, parameters=THETA, refuse_beyond=None).partial_fit(records)
    assert em.n_seen == 61
    # what is a thousand times as far as predicted may be so: the start is a guess
    assert driver(family, parameters=THETA).partial_fit([2_000.0, *stream]).n_seen == 61


def test_of_images_minus_9999_is_refused_from_the_first_record_on(rng):
    mixture = mcoem.TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    images = rng.random((4, 3, 3))
    images[0, 1, 1] = -9999.0
    em = OnlineEM(
        mixture,
        parameters=mixture.parameters,
        e_step=mcoem.esteps.FixedLatents(),
        random_seed=1,
        progressbar=False,
    )
    with pytest.raises(ValueError, match=r"refused: observation:observed_values reaches -9999"):
        em.partial_fit(images)
    assert em.partial_fit(images[1:2]).n_seen == 1
