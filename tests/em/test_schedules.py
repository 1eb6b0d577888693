"""Schedules alone: values, sums, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_mcoem.em.schedules import (
    BurstLength,
    BurstSize,
    StepSize,
    UpdateSchedule,
    update_is_due,
)


def due_times(schedule, until=30, batch_size=1):
    """Walk through a stream and return after which observations there was an update."""
    times = []
    for after in range(0, until, batch_size):
        if update_is_due(schedule, after, after + batch_size):
            times.append(after + batch_size)
    return times


def test_default_step_size():
    step_size = StepSize()
    numbers = np.arange(1, 50)
    np.testing.assert_allclose([step_size(n) for n in numbers], numbers**-0.6, rtol=1e-14)
    assert step_size(1) == 1
    assert StepSize.paper() == step_size


def test_exponent_one_is_exactly_one_over_n():
    assert [StepSize(exponent=1)(n) for n in range(1, 200)] == [1 / n for n in range(1, 200)]


@pytest.mark.parametrize("offset", [0.0, 10.0])
@pytest.mark.parametrize("exponent", [0.51, 0.6, 1.0])
def test_gains_sum_to_infinity_and_their_squares_do_not(exponent, offset):
    step_size = StepSize(exponent=exponent, offset=offset)
    gains = np.array([step_size(n) for n in range(1, 2**14 + 1)])
    assert step_size(1) == 1
    assert (np.diff(gains) < 0).all()
    # Between n and 2n a convergent series adds ever less, by a constant factor; a divergent one
    # does not add less.
    octaves = [slice(2**k, 2 ** (k + 1)) for k in (11, 12, 13)]
    sums = [gains[octave].sum() for octave in octaves]
    squares = [(gains[octave] ** 2).sum() for octave in octaves]
    assert sums[1] > 0.99 * sums[0] and sums[2] > 0.99 * sums[1]
    expected = 2.0 ** (1 - 2 * exponent)
    assert squares[1] / squares[0] < 1 and squares[2] / squares[1] < 1
    np.testing.assert_allclose(squares[2] / squares[1], expected, rtol=0.02)


def test_floor_holds_the_gain_up():
    step_size = StepSize(floor=0.05)
    assert step_size(1) == 1
    assert step_size(10_000) == 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exponent": 0.5}, "exponent: got 0.5"),
        ({"exponent": 1.1}, "exponent: got 1.1"),
        ({"exponent": float("nan")}, "exponent: got nan"),
        ({"offset": -1.0}, "offset: got -1.0"),
        ({"offset": float("inf")}, "offset: got inf"),
        ({"floor": 1.0}, "floor: got 1.0"),
    ],
)
def test_step_size_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        StepSize(**arguments)


@pytest.mark.parametrize("schedule", [StepSize(), UpdateSchedule(), BurstLength()])
def test_numbers_are_counted_from_one(schedule):
    with pytest.raises(ValueError, match="n: got 0"):
        schedule(0)


def test_paper_updates():
    expected = [50, 75, *range(100, 121)]
    assert [n for n in range(1, 121) if UpdateSchedule.paper()(n)] == expected
    assert due_times(UpdateSchedule.paper(), until=120) == expected


def test_updates_at_given_times():
    assert due_times(UpdateSchedule([10, 15, 20]), until=23) == [
        10,
        15,
        20,
        21,
        22,
        23,
    ]
    assert due_times(UpdateSchedule([4], every=10), until=30) == [4, 14, 24]
    assert due_times(UpdateSchedule([1]), until=4) == [1, 2, 3, 4]


def test_never():
    assert due_times(UpdateSchedule.never()) == []


def test_default_waits_for_ten_observations():
    assert due_times(UpdateSchedule(), until=22) == [10, 15, 20, 21, 22]


def test_a_batch_that_steps_over_a_time_updates_once():
    assert due_times(UpdateSchedule([10, 15]), until=28, batch_size=4) == [
        12,
        16,
        20,
        24,
        28,
    ]
    assert due_times(lambda n: n % 7 == 0, until=28, batch_size=4) == [8, 16, 24, 28]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"times": (10, 10)}, r"times: got \(10, 10\)"),
        ({"times": (0, 3)}, r"times: got \(0, 3\)"),
        ({"every": -1}, "every: got -1"),
    ],
)
def test_update_schedule_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        UpdateSchedule(**arguments)


def test_paper_bursts_count_the_burn_in():
    paper = BurstLength.paper()
    for n, total in ((1, 200), (100, 200), (101, 500), (5_000, 500)):
        size = paper(n)
        assert size.tune == 100
        assert size.draws + size.tune == total


def test_burst_length_changes_where_told():
    schedule = BurstLength(draws=5, tune=0, later=((3, 7), (6, 9)))
    assert [schedule(n).draws for n in range(1, 8)] == [5, 5, 7, 7, 7, 9, 9]
    assert schedule(1) == BurstSize(draws=5, tune=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": 0}, "draws: got 0"),
        ({"tune": -1}, "tune: got -1"),
        ({"later": ((5, 10), (5, 20))}, "later: got"),
        ({"later": ((5, 0),)}, "draws: got"),
    ],
)
def test_burst_length_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        BurstLength(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepSize("a"), "exponent: got a; choose one"),
        (lambda: StepSize(None), "exponent: got None"),
        (lambda: StepSize(offset="a"), "offset: got a"),
        (lambda: StepSize(floor="a"), "floor: got a"),
        (lambda: BurstLength("a"), "draws: got 'a'"),
        (lambda: BurstLength(10, 2.5), "tune 2.5; give whole numbers"),
    ],
)
def test_what_is_no_number_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
