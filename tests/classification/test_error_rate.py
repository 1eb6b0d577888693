"""Live error rates against worked values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad

from pymc_mcoem import live_error_rate


def test_rates_by_hand():
    rate = live_error_rate(list("abba"), list("bbba"), window=2)
    np.testing.assert_array_equal(rate["observation"], [1, 2, 3, 4])
    np.testing.assert_allclose(rate["cumulative"], [1, 1 / 2, 1 / 3, 1 / 4])
    np.testing.assert_allclose(rate["recent"], [1, 1 / 2, 0, 0])


def test_bounds_leave_out_equal_tails_of_the_posterior():
    # one error among five: the density is proportional to p^(1/2) (1 - p)^(7/2)
    last = live_error_rate([1, 0, 0, 0, 0], np.zeros(5, int)).isel(observation=-1)
    shares = [
        quad(lambda p: p**0.5 * (1 - p) ** 3.5, *ends)[0]
        for ends in ((0, last["lower"]), (last["upper"], 1), (0, 1))
    ]
    np.testing.assert_allclose(np.array(shares[:2]) / shares[2], 0.025, atol=1e-7)
    none = live_error_rate(np.zeros(5, int), np.zeros(5, int)).isel(observation=-1)
    assert none["lower"] == 0


def test_labels_may_be_renamed(rng):
    actual, predicted = rng.integers(4, size=(2, 200))
    names = np.array(["d", "a", "c", "b"])
    first, second = (
        live_error_rate(predicted, actual),
        live_error_rate(names[predicted], names[actual]),
    )
    assert first.identical(second)


def test_time_is_kept_and_changes_nothing():
    plain = live_error_rate(list("abba"), list("bbba"))
    timed = live_error_rate(list("abba"), list("bbba"), seconds=[0, 0, 1.5, 2])
    assert "seconds" not in plain
    np.testing.assert_array_equal(timed["seconds"], [0, 0, 1.5, 2])
    assert timed.drop_vars("seconds").identical(plain)


def test_coverage_of_a_constant_rate(rng):
    # averaged over rates the interval of Jeffreys covers what it says
    rates = rng.uniform(0, 1, size=400)
    errors = rng.random((400, 50)) < rates[:, None]
    covered = [
        (last["lower"] <= rate <= last["upper"]).item()
        for row, rate in zip(errors, rates, strict=True)
        for last in [live_error_rate(row, np.zeros(50, bool), window=50).isel(observation=-1)]
    ]
    standard_error = np.sqrt(0.95 * 0.05 / len(covered))
    assert abs(np.mean(covered) - 0.95) < 5 * standard_error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"actual": [1]}, "actual"),
        ({"actual": [], "predicted": []}, "actual"),
        ({"window": 0}, "window: got 0"),
        ({"window": True}, "window: got True"),
        ({"probability": 1.0}, "probability"),
        ({"seconds": [1.0]}, r"seconds: have shape \(1,\) for 2"),
        ({"seconds": [2.0, 1.0]}, "seconds: some are not finite or less"),
        ({"seconds": [0.0, np.nan]}, "seconds: some are not finite or less"),
        ({"seconds": ["a", "b"]}, "seconds is .* give real numbers"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        live_error_rate(**({"predicted": [1, 2], "actual": [1, 2]} | arguments))
