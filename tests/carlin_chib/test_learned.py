"""Pseudo-priors learned while tuning: their maps, when they are learned, and exact draws."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.integrate import trapezoid

import pymc_mcoem.carlin_chib.chain_fits as chain_fits
import pymc_mcoem.carlin_chib.pilots as pilots
from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump
from pymc_mcoem.carlin_chib.pilots import learn
from pymc_mcoem.carlin_chib.pseudo_prior_checks import PseudoPriorCheck
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.conditional_scale import ConditionalScale
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.learned import LearnedPseudoPriors, candidate_maps
from pymc_mcoem.carlin_chib.pseudo_priors.sinh_arcsinh import SinhArcsinh
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.checks import LIMIT, agreement


def funnel(rng, n=4_000):
    """Return draws of a variable and two others whose width depends on it, the last skewed."""
    h = rng.standard_normal(n)
    first = np.exp(0.8 * h) * rng.standard_normal(n)
    return np.stack([h, first, np.exp(0.5 * rng.standard_normal(n)) + 0.5 * h], axis=1)


LAYERS = {
    "sinh-arcsinh": lambda draws: SinhArcsinh.fitted(draws),
    "conditional scale": lambda draws: ConditionalScale.fitted(draws),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_inverse_agree_and_its_slope_is_its_derivative(name, rng):
    layer = LAYERS[name](funnel(rng))
    x = funnel(rng, 20)
    z, log_slope = layer.to_normal(x)
    np.testing.assert_allclose(layer.from_normal(z), x, rtol=1e-9, atol=1e-9)
    for point, value in zip(x, log_slope, strict=True):
        shifted = point + 1e-6 * np.concatenate([np.eye(3), -np.eye(3)])
        moved = layer.to_normal(shifted)[0]
        jacobian = (moved[:3] - moved[3:]) / 2e-6
        assert value == pytest.approx(np.linalg.slogdet(jacobian)[1], abs=1e-5)


def test_a_funnel_becomes_normal(rng):
    z, _ = ConditionalScale.fitted(funnel(rng)).to_normal(funnel(rng))
    assert stats.kurtosis(z[:, 1]) < 0.5 < stats.kurtosis(funnel(rng)[:, 1])
    assert abs(np.corrcoef(z[:, 0], np.log(z[:, 1] ** 2))[0, 1]) < 0.1


def learned_in_class_1(rng):
    """Return pseudo-priors of two classes and one latent, the second learned from skewed draws."""
    before = PseudoPriors.from_covariance(np.zeros((2, 1)), np.full((2, 1, 1), 0.5))
    draws = np.sinh((np.arcsinh(rng.standard_normal((4_000, 1))) + 0.8) / 0.6)
    maps = dict(candidate_maps(draws[:3_000], draws[3_000:], np.ones(1, bool), seed=0))
    return before, LearnedPseudoPriors(before, {1: maps["sinh-arcsinh"]}), draws


def test_densities_are_those_of_the_draws(rng):
    _, learned, _ = learned_in_class_1(rng)
    x = np.sinh(np.linspace(-9, 9, 20_001))
    density = np.exp(learned.log_density(np.stack([x, x], axis=-1)[..., None])[:, 1])
    assert trapezoid(density, x) == pytest.approx(1, abs=1e-4)
    cumulative = np.append(0, np.cumsum(np.diff(x) * (density[1:] + density[:-1]) / 2))
    drawn = np.array([learned.draw(rng)[1, 0] for _ in range(4_000)])
    assert stats.kstest(np.interp(drawn, x, cumulative), "uniform").pvalue > 1e-5
    # draws of another width are told apart
    assert stats.kstest(np.interp(1.3 * drawn, x, cumulative), "uniform").pvalue < 1e-5


def test_other_classes_and_inactive_coordinates_stay(rng):
    before, learned, _ = learned_in_class_1(rng)
    at = rng.standard_normal((5, 2, 1))
    np.testing.assert_array_equal(learned.log_density(at)[:, 0], before.log_density(at)[:, 0])
    draws, active = rng.normal(3, 1, (500, 2)), np.array([True, False])
    (_, of_first), *_ = candidate_maps(draws, draws, active, seed=0)
    at = np.array([[3.0, -2.0], [3.0, 1.0]])
    difference = np.subtract(*of_first.log_density(at))
    assert difference == pytest.approx(np.subtract(*stats.norm.logpdf([-2.0, 1.0])))
    drawn = np.array([of_first.draw(rng) for _ in range(2_000)])[:, 1]
    assert stats.kstest(drawn, "norm").pvalue > 1e-5


# -- the step --------------------------------------------------------------------------------------

WEIGHTS = np.array([0.2, 0.5, 0.3])
SKEW, TAIL = np.array([0.0, 1.5, -0.5]), np.array([1.0, 0.7, 0.45])


def skewed_model():
    """Return three classes of one latent, the second skewed and the third with heavy tails."""
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS)
        x = pm.Normal("x", 0, 10)
        t = pt.constant(TAIL)[k] * pt.arcsinh(x) - pt.constant(SKEW)[k]
        slope = pt.log(pt.constant(TAIL)[k]) + pt.log(pt.cosh(t)) - 0.5 * pt.log1p(x**2)
        pm.Potential("p", pm.logp(pm.Normal.dist(), pt.sinh(t)) + slope)
        pm.Potential("no prior", -pm.logp(pm.Normal.dist(0, 10), x))
    return model


def standardized(k, x):
    """Return what is standard normal given the class."""
    return np.sinh(TAIL[k] * np.arcsinh(x) - SKEW[k])


def run(model, step, seed, tune, draws):
    """Return class indices and latents of one chain."""
    step.setup_chain(np.random.default_rng(seed), tune=tune, draws=draws)
    point, found = model.initial_point(0), []
    for t in range(tune + draws):
        if t == tune:
            step.stop_tuning()
        point = step.step(point)[0]
        found.append((int(point["k"]), float(point["x"])))
    k, x = np.array(found[tune:]).T
    return k.astype(int), x


def largest_z(k, x, n_batches=50):
    """Return the largest error of shares of classes, and of moments within them."""
    member = (k[:, None] == np.arange(3)).astype(float)
    z = standardized(k, x)
    seen = np.concatenate([member, member * z[:, None], member * (z**2 - 1)[:, None]], axis=1)
    exact = np.concatenate([WEIGHTS, np.zeros(6)])
    return agreement(seen.reshape(n_batches, -1, 9).mean(axis=1), exact).largest_z


@pytest.fixture(scope="module")
def skewed():
    model = skewed_model()
    with model:
        return model, CarlinChib()


@pytest.fixture
def asked(monkeypatch):
    """Explore all classes, whatever the sweeps before say."""
    monkeypatch.setattr(PseudoPriorCheck, "worth_learning", lambda *_, **__: [0, 1, 2])


def test_draws_are_exact_and_pseudo_priors_are_learned_where_they_were_poor(
    skewed, caplog, rng, asked
):
    model, step = skewed
    with caplog.at_level(logging.INFO, "pymc_mcoem"):
        k, x = run(model, step, rng.integers(1_000), 1_000, 5_000)
    assert "learned a pseudo-prior of class 1" in caplog.text
    assert "learned a pseudo-prior of class 0" not in caplog.text
    assert largest_z(k, x) < LIMIT
    np.testing.assert_allclose(
        np.exp(step.chain.pseudo_priors.log_evidence[1]), WEIGHTS[1], rtol=0.25
    )


def test_a_learned_density_that_leaves_out_its_slope_is_noticed(skewed, monkeypatch, rng, asked):
    model, step = skewed
    log_density = LearnedPseudoPriors.log_density

    def wrong(self, positions):
        found = log_density(self, positions)
        found[..., 1] -= 0.5 * np.arcsinh(positions[..., 1, 0])
        return found

    monkeypatch.setattr(LearnedPseudoPriors, "log_density", wrong)
    assert largest_z(*run(model, step, rng.integers(1_000), 1_000, 5_000)) > LIMIT


def test_the_same_seed_learns_the_same_and_states_can_be_stored(skewed):
    model, step = skewed
    first = run(model, step, 7, 400, 100)
    learned = step.chain.pseudo_priors
    assert isinstance(learned.mixtures, LearnedPseudoPriors)
    assert pickle.loads(pickle.dumps(learned)) == learned
    state = step.sampling_state
    np.testing.assert_array_equal(run(model, step, 7, 400, 100), first)
    assert step.sampling_state.chain.fits.by_values == state.chain.fits.by_values


def test_nothing_is_learned_where_pseudo_priors_are_good(monkeypatch):
    asked = []
    monkeypatch.setattr(chain_fits, "learn", lambda *_: asked.append(None))
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS)
        x = pm.Normal("x", 2.0 * k, 1.0)
        pm.Normal("y", x, 1.0, observed=1.5)
        step = CarlinChib()
    run(model, step, 1, 1_000, 1)
    assert asked == []


@pytest.mark.parametrize(
    "settings",
    [
        {"pseudo_priors": Laplace(n_prior_draws=0)},
        {"auxiliaries": "frozen"},
        {"jump": AnnealedJump(2)},
        {"within_class": None},
    ],
)
def test_what_was_asked_for_stays(skewed, settings, monkeypatch):
    asked = []
    monkeypatch.setattr(chain_fits.ChainFits, "learn", lambda *_: asked.append(None))
    model, as_it_is = skewed
    with model:
        made_otherwise = CarlinChib(**settings)
    for step in (as_it_is, made_otherwise):
        run(model, step, 1, 8, 1)
        assert len(asked) == 1


def test_a_hierarchy_is_learned_by_conditional_scales(rng):
    with pm.Model():
        pm.Categorical("k", [0.4, 0.6])
        h = pm.Normal("h", 0, 0.8)
        effects = pm.Normal("effects", 0, pm.math.exp(h), shape=4)
        flat = pm.Normal("flat", shape=2)
        step = CarlinChib(blocks={0: [h, effects], 1: [flat]})
    engine = step._engine
    found, learned = learn(
        engine, rng, engine.fit(rng, []), [], engine.initial_log_step, classes=[0]
    )
    (of_hierarchy,) = learned
    assert of_hierarchy.name == "conditional scales and sinh-arcsinh"
    assert of_hierarchy.before < 0.1 < 0.4 < of_hierarchy.after
    assert found.log_evidence[0] == pytest.approx(np.log(0.4), abs=0.3)


def test_a_funnel_is_sampled_exactly(rng, monkeypatch):
    """Its mode is so narrow that draws written in its units would lose their digits.

    Pilot draws are independent here, so that the map is a good one.
    """
    with pm.Model() as model:
        pm.Categorical("k", [0.5, 0.5])
        h = pm.Normal("h", 0, 1.5)
        effects = pm.Normal("effects", 0, pm.math.exp(h), shape=9)
        flat = pm.Normal("flat")
        step = CarlinChib(blocks={0: [h, effects], 1: [flat]})

    def independent(engine, rng, pseudo_priors, others, log_step, class_number):
        found = rng.standard_normal((4, 1_000, 11))
        found[..., 0] *= 1.5
        found[..., 1:10] *= np.exp(found[..., :1])
        return [*found]

    monkeypatch.setattr(pilots, "_pilot_draws", independent)
    monkeypatch.setattr(PseudoPriorCheck, "worth_learning", lambda *_, **__: [0])
    step.setup_chain(rng, tune=1_000, draws=2_000)
    point, seen = model.initial_point(0), []
    for t in range(3_000):
        if t == 1_000:
            step.stop_tuning()
        point = step.step(point)[0]
        # in the class that leaves it out, h is a draw of its prior
        h_or_none = float(point["h"]) / 1.5 if point["k"] == 0 else 0.0
        size = np.mean((point["effects"] / np.exp(point["h"])) ** 2) - 1 if point["k"] == 0 else 0.0
        seen.append([float(point["k"] == 0), h_or_none, h_or_none**2, size])
    batches = np.array(seen[1_000:]).reshape(40, -1, 4).mean(axis=1)
    assert agreement(batches, np.array([0.5, 0.0, 0.5, 0.0])).largest_z < LIMIT
    assert batches[:, 0].std() < 0.2


def run_of(model, step, rng, tune=200):
    step.setup_chain(rng, tune=tune, draws=1)
    point = model.initial_point(0)
    for _ in range(tune):
        point = step.step(point)[0]
    return point


def test_a_class_without_latents_is_passed_over(rng):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a = pm.Normal("a")
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 1), a, 0.0), 0.2, observed=0.9)
        step = CarlinChib(blocks={0: [], 1: [a]})
    engine = step._engine
    fitted = engine.fit(rng, [])
    found, learned = learn(engine, rng, fitted, [], engine.initial_log_step, [0])
    assert found is fitted
    assert learned == []
    run_of(model, step, rng)


def test_a_support_that_no_draw_hits_leaves_things_as_they_were(rng):
    with pm.Model() as model:
        pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", shape=10, initval=np.arange(10.0))
        pm.Potential("in order", pm.math.switch(pm.math.all(x[1:] > x[:-1]), 0.0, -np.inf))
        step = CarlinChib()
    engine = step._engine
    # normals from which an ordered draw comes once in millions
    fitted = PseudoPriors.from_covariance(np.zeros((2, 10)), np.tile(np.eye(10), (2, 1, 1)))
    found, learned = learn(engine, rng, fitted, [], engine.initial_log_step, [0, 1])
    assert found is fitted
    assert learned == []
    assert np.all(np.diff(run_of(model, step, rng)["x"]) > 0)


@pytest.mark.parametrize("kind", ["constant", "few", "collinear"])
def test_draws_that_support_no_map_give_none_or_a_proper_one(kind, rng):
    draws = rng.standard_normal((200, 2))
    if kind == "constant":
        draws[:, 1] = 3.0
    elif kind == "few":
        draws = draws[:2].repeat(100, axis=0)
    else:
        draws[:, 1] = 1e8 * draws[:, 0]
    with np.errstate(all="ignore"):
        for _, found in candidate_maps(draws, draws, np.ones(2, bool), seed=0):
            assert not np.isnan(found.log_density(draws)).any()


def test_a_chain_that_rightly_stays_learns_nothing(caplog, rng):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.9995, 0.0005])
        x = pm.Normal("x", 2.0 * k, 1.0)
        pm.Normal("y", x, 1.0, observed=0.0)
        step = CarlinChib()
    with caplog.at_level(logging.INFO, "pymc_mcoem"):
        run_of(model, step, rng, tune=600)
    assert "learned" not in caplog.text
