"""Normal approximations as an E-step: exact on normal models, biased elsewhere, or weighted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from tests.helpers.checks import LIMIT
from tests.helpers.e_step_runs import assert_runs_and_is_stored, largest_z, repeated, split
from tests.helpers.interpreted import interpreted
from tests.helpers.linear_normal import LinearNormal
from tests.helpers.models import ScaledMixture, SkewedMixture
from tests.helpers.quadrature import Quadrature


@pytest.fixture(scope="module")
def skewed():
    return Curved(SkewedMixture(), 1000)


@pytest.fixture(scope="module")
def scaled():
    return Curved(ScaledMixture(), 80)


class Curved:
    """A family, its exact posterior, and the E-step without and with importance weights."""

    def __init__(self, family, n_points):
        self.case = split(family)
        self.quadrature = Quadrature(family, n_points)
        self.plain = LaplaceGaussian().compile(family)
        self.weighted = LaplaceGaussian(importance=True).compile(family)


def test_exact_on_a_linear_normal_model(rng):
    family = LinearNormal()
    e_step = LaplaceGaussian().compile(family)
    exact = family.exact(*family.case)
    results = repeated(e_step, family.case, rng, draws=200)
    for result in results[:3]:
        weight = result.statistics["class_weight"]
        np.testing.assert_allclose(weight, exact["class_weight"], atol=1e-9)
        assert result.log_evidence == pytest.approx(family.log_evidence(*family.case), abs=1e-9)
        assert result.troubles == {}
    found = largest_z(results, exact)
    assert found["x"] < LIMIT
    assert found["outer"] < LIMIT
    probability = e_step.class_probability(*family.case, rng, draws=1, tune=0)
    np.testing.assert_allclose(probability, exact["class_weight"], atol=1e-9)


def test_importance_weights_are_constant_on_a_linear_normal_model(rng):
    family = LinearNormal()
    with interpreted():
        e_step = LaplaceGaussian(importance=True).compile(family)
        found = e_step(*family.case, rng, {}, draws=5, tune=0)
    weight = family.exact(*family.case)["class_weight"]
    np.testing.assert_allclose(found.statistics["class_weight"], weight, atol=1e-9)
    assert found.log_evidence == pytest.approx(family.log_evidence(*family.case), abs=1e-9)


def test_importance_weights_make_it_exact(skewed, rng):
    results = repeated(skewed.weighted, skewed.case, rng, draws=2000)
    for name, z in largest_z(results, skewed.quadrature.statistics()).items():
        assert z < LIMIT, name
    evidence = np.exp([result.log_evidence for result in results])
    exact = np.exp(logsumexp(skewed.quadrature.log_evidence))
    # Of the evidence itself importance sampling is unbiased.
    assert abs(evidence.mean() - exact) < LIMIT * evidence.std() / np.sqrt(len(evidence))
    assert evidence.std() < 0.02 * exact
    assert all(result.troubles == {} for result in results)


def test_class_probability_with_importance_weights_is_exact(skewed, rng):
    found = np.array(
        [
            skewed.weighted.class_probability(*skewed.case, rng, draws=2000, tune=0)
            for _ in range(50)
        ]
    )
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    exact = skewed.quadrature.class_probability
    assert (np.abs(found.mean(axis=0) - exact) < LIMIT * error).all()


@pytest.mark.parametrize("name", ["skewed", "scaled"])
def test_bias_without_importance_weights(name, request, rng):
    """Weights are off by their own approximation, means by tens of standard errors."""
    case = request.getfixturevalue(name)
    exact = case.quadrature.statistics()
    results = repeated(case.plain, case.case, rng, draws=2000)
    weights = np.array([result.statistics["class_weight"] for result in results])
    np.testing.assert_allclose(weights, weights[:1].repeat(100, axis=0), atol=1e-12)
    assert 0.005 < np.abs(weights[0] - exact["class_weight"]).max() < 0.1
    found = largest_z(results, exact)
    del found["class_weight"]
    assert min(found.values()) > 2 * LIMIT


def test_limit_heavy_tails_leave_importance_weights_without_a_variance(scaled, rng):
    """The logarithm of a Gamma latent falls off exponentially: twenty times the draws do not help.

    With a variance the spread would fall by the square root of twenty, 4.5.
    """
    spread = {}
    for draws in (500, 10_000):
        results = repeated(scaled.weighted, scaled.case, rng, draws=draws, repeats=60)
        weights = np.array([result.statistics["class_weight"] for result in results])
        spread[draws] = weights.std(axis=0).max()
    assert spread[10_000] > spread[500] / 3
    # And yet it is nearer to the truth than the normal densities alone are.
    exact = scaled.quadrature.statistics()
    plain = repeated(scaled.plain, scaled.case, rng, draws=10_000, repeats=10)
    for name, expected in exact.items():
        error, error_of_plain = (
            np.abs(np.mean([each.statistics[name] for each in found], axis=0) - expected).max()
            for found in (results, plain)
        )
        assert error < error_of_plain, name


def test_draws_are_counted_by_class_and_weighed_by_density_over_normal_density(rng):
    """Against the same sums in NumPy."""
    family = SkewedMixture()
    case = split(family)
    with interpreted():
        e_step = LaplaceGaussian(importance=True).compile(family)
        found = e_step(*case, np.random.default_rng(6), {}, draws=40, tune=7)
        normal = e_step.approximation(case[0] | case[1], rng)
    noise = np.random.default_rng(6).standard_normal((3, 40, 1))
    position = normal.mean[:, None] + normal.scale[:, :, 0][:, None] * noise
    log_weight = np.stack(
        [
            family.log_density(j, position[j])
            - [normal.log_density(np.tile(x, (3, 1)))[j] for x in position[j]]
            for j in range(3)
        ]
    )
    assert found.log_evidence == pytest.approx(logsumexp(log_weight) - np.log(40))
    weight = np.exp(log_weight - logsumexp(log_weight))
    np.testing.assert_allclose(found.statistics["class_weight"], weight.sum(axis=1))
    for name, value in family.statistics_of(position).items():
        expected = (weight * value).sum(axis=1)
        np.testing.assert_allclose(found.statistics[name], expected, rtol=1e-8)


def test_few_effective_draws_are_named(rng):
    """A search stopped at its first step leaves normal densities that miss the posterior."""
    family = ScaledMixture()
    data, theta = split(family)
    sharp = theta | {"noise": np.array(0.01)}
    with interpreted():
        hasty = Laplace(max_iterations=1, race=None)
        e_step = LaplaceGaussian(importance=True, search=hasty).compile(family)
        poor = e_step(data, sharp, rng, {}, draws=50, tune=0)
        # Without importance weights nothing shows but the search's own trouble.
        blind = LaplaceGaussian(search=hasty).compile(family)
        found = blind(data, sharp, rng, {}, draws=50, tune=0)
    assert "importance weights: few draws count" in poor.troubles
    assert all(name.startswith("mode search") for name in found.troubles)


def test_classes_without_weight_have_statistics_of_zero(rng):
    family = LinearNormal()
    data, theta = family.case
    theta = theta | {"center": np.array([[-0.6, 0.2], [0.5, -0.4], [60.0, 90.0]])}
    with interpreted():
        found = LaplaceGaussian().compile(family)(data, theta, rng, {}, draws=10, tune=0)
    assert found.statistics["class_weight"][2] == 0.0
    assert (found.statistics["outer"][2] == 0.0).all()
    assert found.statistics["class_weight"].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("importance", [False, True])
def test_online_em_runs_and_is_stored(importance, rng, tmp_path):
    em = assert_runs_and_is_stored(LaplaceGaussian(importance=importance), rng, tmp_path / "run.nc")
    assert np.isfinite(em.history["observations"]["log_evidence"]).all()


def test_no_density_anywhere_is_an_error(rng):
    family = LinearNormal()
    data, theta = family.case
    wrong = theta | {"noise": np.array(np.nan)}
    with interpreted():
        for importance in (False, True):
            e_step = LaplaceGaussian(importance=importance).compile(family)
            with pytest.raises(FloatingPointError, match="Laplace-Gaussian: the log-density is"):
                e_step(data, wrong, rng, {}, draws=5, tune=0)
