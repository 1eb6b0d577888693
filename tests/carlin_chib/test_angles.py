"""Angles: exact on the whole circle, also where the posterior lies about ±π."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

from pymc_mcoem.carlin_chib.engines import Engine
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.checks import LIMIT, agreement
from tests.helpers.nested_blocks import sample

WEIGHTS = np.array([0.3, 0.3, 0.4])
CENTERS, CONCENTRATIONS = np.array([0.5, 2.0, -2.8]), np.array([2.0, 0.7, 4.0])
#: What is observed in each row; the angle is known best where the first is.
SEEN = np.array([3.1, 0.2, -2.5])
CIRCLE = np.linspace(-np.pi, np.pi, 4_000, endpoint=False)


def of_angle(angle, seen):
    """Return the log-likelihood of an angle, as an expression: it is not symmetric."""
    return 2.0 * pt.cos(seen - angle) - 0.5 * (1.2 - 2.0 * pt.sin(angle)) ** 2


def shared():
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS)
        angle = pm.VonMises("angle", pt.as_tensor(CENTERS)[k], pt.as_tensor(CONCENTRATIONS)[k])
        pm.Potential("seen", of_angle(angle, SEEN[0]))
        return model, [CarlinChib()]


def another_step_turns():
    model, _ = shared()
    with model:
        return model, [CarlinChib(within_class=None), pm.NUTS([model["angle"]])]


def blocks():
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS)
        pairs = zip(CENTERS, CONCENTRATIONS, strict=True)
        angles = [pm.VonMises(f"angle_{j}", *each) for j, each in enumerate(pairs)]
        angle = pt.switch(pt.eq(k, 2), angles[2], pt.switch(pt.eq(k, 1), angles[1], angles[0]))
        pm.Deterministic("angle", angle)
        pm.Potential("seen", of_angle(angle, SEEN[0]))
        return model, [CarlinChib(blocks={j: [f"angle_{j}"] for j in range(3)})]


def plate():
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS, shape=3)
        angle = pm.VonMises("angle", pt.as_tensor(CENTERS)[k], pt.as_tensor(CONCENTRATIONS)[k])
        pm.Potential("seen", of_angle(angle, SEEN))
        return model, [CarlinChib()]


def exact(seen):
    """Return E[1{k = j} f(angle)], (3, 3), for f = 1, cos, sin."""
    log_likelihood = of_angle(pt.as_tensor(CIRCLE), seen).eval()
    prior = stats.vonmises.pdf(CIRCLE, CONCENTRATIONS[:, None], loc=CENTERS[:, None])
    joint = WEIGHTS[:, None] * prior * np.exp(log_likelihood)
    joint /= joint.sum()
    return joint @ np.stack([np.ones_like(CIRCLE), np.cos(CIRCLE), np.sin(CIRCLE)], axis=1)


def largest_z(made, rng, draws=4_000):
    """Return the largest error of a chain's averages, in standard errors, over all rows."""
    model, steps = made
    posterior = sample(steps, model, rng, draws=draws, chains=2)
    assert np.abs(posterior["angle"]).max() <= np.pi
    index, angle = posterior["k"].values, posterior["angle"].values
    n_chains = len(index)
    index, angle = index.reshape(n_chains, draws, -1), angle.reshape(n_chains, draws, -1)
    worst = 0.0
    for chain in range(n_chains):
        for row in range(index.shape[-1]):
            k, x = index[chain, :, row, None], angle[chain, :, row, None]
            functions = np.stack([np.ones_like(x), np.cos(x), np.sin(x)], axis=-1)
            values = ((k == np.arange(3))[..., None] * functions).reshape(40, -1, 9).mean(axis=1)
            worst = max(worst, agreement(values, exact(SEEN[row]).ravel()).largest_z)
    return worst


@pytest.mark.parametrize("make", [shared, another_step_turns, blocks, plate])
def test_every_chain_has_the_exact_posterior(make, rng):
    share = exact(SEEN[0])[:, 0]
    assert share.min() > 0.05 and share.max() < 0.7  # classes overlap
    assert largest_z(make(), rng) < LIMIT


@pytest.mark.parametrize(("make", "module"), [(shared, "class_density"), (plate, "plate")])
def test_weights_that_do_not_add_to_one_are_noticed(make, module, rng, monkeypatch):
    """A normal's density alone makes the angle proper too, but changes its posterior."""
    place = f"pymc_mcoem.density.{module}.log_turn_weight"
    monkeypatch.setattr(place, lambda x: -0.5 * (x / 0.8) ** 2)
    assert largest_z(make(), rng) > 2 * LIMIT


def test_turns_that_are_not_drawn_are_noticed(rng, monkeypatch):
    """Another step turns the angle as it likes, and the weights are not those of its turn."""
    monkeypatch.setattr(Engine, "turned", lambda self, rng, index, position, others: position)
    assert largest_z(another_step_turns(), rng, draws=20_000) > 2 * LIMIT


def test_an_angle_that_is_not_known_at_all(rng):
    """Its density on the line is that of the weights; the chain still goes all around."""
    with pm.Model() as model:
        pm.Categorical("k", WEIGHTS)
        pm.VonMises("angle", 0.0, 1e-6)
        steps = [CarlinChib()]
    posterior = sample(steps, model, rng, draws=4_000, chains=2)
    for chain in posterior["angle"].values:
        turned = np.stack([np.cos(chain), np.sin(chain), np.cos(2 * chain)], axis=-1)
        assert agreement(turned.reshape(40, -1, 3).mean(axis=1), np.zeros(3)).largest_z < LIMIT


def test_many_angles_about_a_common_one(rng):
    """All lie about ±π, where each could be on either side: 4,096 modes if turns were alike."""
    n, places, seen = 12, np.array([3.1, 2.7]), 3.05 + 0.5 * rng.standard_normal(12)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        common = pm.VonMises("common", pt.as_tensor(places)[k], 20.0)
        angles = pm.VonMises("angles", common, 6.0, shape=n)
        pm.VonMises("seen", angles, 5.0, observed=np.angle(np.exp(1j * seen)))
        steps = [CarlinChib()]
    posterior = sample(steps, model, rng, draws=4_000, chains=2)
    grid = CIRCLE[::4]
    of_angle = stats.vonmises.pdf(grid, 6.0, loc=grid[:, None])
    of_seen = stats.vonmises.pdf(seen[:, None], 5.0, loc=grid)
    log_likelihood = np.log(of_angle @ of_seen.T).sum(axis=1)
    prior = stats.vonmises.pdf(grid, 20.0, loc=places[:, None])
    joint = prior * np.exp(log_likelihood - log_likelihood.max())
    joint /= joint.sum()
    expected = np.array([joint[1].sum(), joint[:, grid < 0].sum()])
    assert 0.1 < expected.min() and expected.max() < 0.9
    for index, angle in zip(posterior["k"].values, posterior["common"].values, strict=True):
        values = np.stack([index == 1, angle < 0], axis=-1).astype(float)
        assert agreement(values.reshape(40, -1, 2).mean(axis=1), expected).largest_z < LIMIT


def test_an_angle_of_another_step_has_no_mode_for_each_turn(rng):
    """NUTS turns it as it likes, and the summary does not take turns for unvisited modes."""
    with pm.Model():
        k = pm.Categorical("k", WEIGHTS)
        angle = pm.VonMises("angle", 3.0, 4.0)
        x = pm.Normal("x", pt.as_tensor([-1.0, 0.0, 1.5])[k] + pt.sin(angle), 1.0)
        pm.Normal("y", x, 1.0, observed=0.4)
        steps = [CarlinChib([k, x])]
        idata = pm.sample(
            step=steps,
            tune=500,
            draws=500,
            chains=2,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
        )
    odds = idata["sample_stats"]["class_unvisited_mode_log_odds"].values
    assert not (odds > -10.0).any()


def test_a_restored_state_knows_where_the_angles_are(rng):
    """The same draws follow in the same step, in a new one, and in one that ran another chain."""
    model, (step,) = shared()
    start = model.initial_point()
    step.setup_chain(np.random.default_rng(1), tune=20, draws=10)
    point = start
    for _ in range(30):
        point, _ = step.step(point)
    state = step.sampling_state
    assert np.abs(state.chain.angle_modes).max() > 1.0
    expected = step.step(point)[0]
    with model:
        other = CarlinChib()
    other.sampling_state = state
    assert other.step(point)[0] == expected
    other.setup_chain(np.random.default_rng(2), tune=20, draws=10)
    other.step(start)
    other.sampling_state = state
    np.testing.assert_array_equal(
        other._density.angle_centers.get_value(), step._density.angle_centers.get_value()
    )
    assert other.step(point)[0] == expected
