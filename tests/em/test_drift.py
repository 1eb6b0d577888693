"""A stream whose classes move: a floored step size follows, a falling one is left behind.

Two normals far apart, so that the E-step knows the class of every value, and a location is a
weighted mean of the values of its class. With gains ϱ the weight of observation k after n is
ϱ_k ∏_{k<i≤n} (1 − ϱ_i). Given the classes, the tracked location is then normal around the same
mean of the true locations, with a variance that is known: the tolerance follows from it.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.family import Family
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.schedules import StepSize
from tests.helpers.representatives import by_default

N, BEGIN = 1_500, 500
#: Both classes move by so much at every observation, of either class.
SPEED = 0.02
APART = 40.0
FLOORS = (0.02, 0.05, 0.2)


class Locations(Family):
    """Two normals of equal weight and variance 1 around unknown locations."""

    observation = ("y",)

    def __init__(self):
        with pm.Model() as self.model:
            locations = pm.Data("locations", [0.0, APART])
            y = pm.Data("y", 0.0)
            self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
            pm.Normal("value", locations[self.class_index], 1.0, observed=y)
        self.statistics = {"y": y}

    def maximize(self, statistics, *, effective_size):
        return {"locations": statistics["y"] / statistics["class_weight"]}

    def exact(self, data, parameters):
        distance = (data["y"] - parameters["locations"]) ** 2
        odds = np.exp(-0.5 * (distance - distance.min()))
        return {"class_weight": odds / odds.sum(), "y": odds / odds.sum() * data["y"]}


@pytest.fixture(scope="module")
def family():
    return Locations()


@pytest.fixture
def stream(rng):
    """Values (n,), classes (n,), and the true locations at each moment (n, 2)."""
    classes = rng.integers(2, size=N)
    truth = np.array([0.0, APART]) + SPEED * np.arange(N)[:, None]
    return truth[np.arange(N), classes] + rng.normal(size=N), classes, truth


def track(family, values, step_size):
    """Return the locations after each observation from BEGIN on, (n, 2)."""
    em = OnlineEM(
        family,
        parameters={"locations": [0.0, APART]},
        e_step=Exact(),
        step_size=step_size,
        random_seed=1,
        progressbar=False,
    ).partial_fit(values)
    return em.history["steps"]["locations"].values[BEGIN + 1 :]


def weights(gains, classes):
    """Return the weight of each observation in each class's location, (n, class, observation)."""
    rows = np.empty((N, N))
    row = np.zeros(N)
    for n, gain in enumerate(gains):
        row *= 1 - gain
        row[n] = gain
        rows[n] = row
    own = rows[BEGIN:, None, :] * (classes == np.arange(2)[:, None])
    return own / own.sum(axis=2, keepdims=True)


def lag_and_error(found, truth):
    """Return by how much the locations are behind, mean over classes and moments."""
    return float(np.mean(truth[BEGIN:] - found))


def expected(step_size, classes, truth):
    """Return the mean lag given the classes, and its standard deviation."""
    own = weights([step_size(n) for n in range(1, N + 1)], classes)
    means = np.stack([own[:, j] @ truth[:, j] for j in range(2)], axis=1)
    of_each = own.mean(axis=(0, 1))  # a value of either class weighs in one location alone
    return lag_and_error(means, truth), float(np.sqrt(np.sum(of_each**2)))


@pytest.mark.parametrize("floor", by_default(FLOORS, {0.05}))
def test_a_floor_follows_within_its_bound_and_the_default_falls_behind(family, stream, floor):
    values, classes, truth = stream
    lags, errors = {}, {}
    for name, step_size in {"floor": StepSize(floor=floor), "default": StepSize()}.items():
        lags[name] = lag_and_error(track(family, values, step_size), truth)
        lag, errors[name] = expected(step_size, classes, truth)
        assert abs(lags[name] - lag) < 4 * errors[name]
    # The mean age of what a location is made of, in observations, is (1 − f)/f; where the classes
    # come at random it is so up to a share of f, for the location is a ratio.
    bound = SPEED / floor
    assert lags["floor"] < bound + 4 * errors["floor"]
    assert lags["floor"] == pytest.approx((1 - floor) * bound, rel=floor, abs=4 * errors["floor"])
    both = np.hypot(*errors.values())
    assert lags["default"] > lags["floor"] + 4 * both


def test_the_default_falls_behind_ever_more(family, stream):
    values, classes, truth = stream
    found = track(family, values, StepSize())
    behind = (truth[BEGIN:] - found).mean(axis=1)
    # behind by v n^0.6 and more, in the long run: the mean of a gain n^−0.6
    own = weights([StepSize()(n) for n in range(1, N + 1)], classes)
    for n in (0, (N - BEGIN) // 2, N - BEGIN - 1):
        lag = np.mean([truth[BEGIN + n, j] - own[n, j] @ truth[:, j] for j in range(2)])
        spread = 0.5 * np.sqrt(np.sum(own[n] ** 2))
        assert abs(behind[n] - lag) < 4 * spread
    last = 0.5 * np.sqrt(np.sum(own[-1] ** 2))
    assert behind[-1] > behind[0] + 4 * np.hypot(last, 0.5 * np.sqrt(np.sum(own[0] ** 2)))
    assert behind[-1] > SPEED / 0.05


def test_what_a_floor_costs_at_rest(family, rng):
    # Where nothing moves, a floor keeps the variance f/(2 − f) of a mean of all; each class has
    # half of the observations.
    classes = rng.integers(2, size=N)
    values = np.array([0.0, APART])[classes] + rng.normal(size=N)
    away = {
        floor: track(family, values, StepSize(floor=floor)) - np.array([0.0, APART])
        for floor in (0.0, 0.2)
    }
    own = weights([StepSize(floor=0.2)(n) for n in range(1, N + 1)], classes)
    variance = np.sum(own**2, axis=2)
    ratio = np.mean(away[0.2] ** 2 / variance)
    # the variance of a mean of squares of correlated normals
    spread = 0.0
    for j in range(2):
        scaled = own[:, j] / np.sqrt(variance[:, j, None])
        spread += 2 * np.sum((scaled @ scaled.T) ** 2) / variance.size**2
    assert abs(ratio - 1) < 4 * np.sqrt(spread)
    # twice f/(2 − f), for each class has half of the observations, and more where it is scarce
    assert variance.mean() == pytest.approx(2 * 0.2 / 1.8, rel=0.2)
    assert np.mean(away[0.0] ** 2) < 0.5 * np.mean(away[0.2] ** 2)


def test_a_step_size_that_forgets_its_floor_fails_these_checks(family, stream):
    values, classes, truth = stream
    found = lag_and_error(track(family, values, lambda n: StepSize()(n)), truth)
    lag, error = expected(StepSize(floor=0.05), classes, truth)
    assert abs(found - lag) > 4 * error
    assert found > SPEED / 0.05 + 4 * error
