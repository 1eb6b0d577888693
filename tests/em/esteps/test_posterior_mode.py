"""The E-step of a point: the right point, and the bias that a point has."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.optimize import minimize

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.em.esteps.posterior_mode import PosteriorMode
from pymc_mcoem.em.family import Family
from tests.helpers.e_step_runs import assert_runs_and_is_stored, split
from tests.helpers.interpreted import interpreted
from tests.helpers.linear_normal import LinearNormal
from tests.helpers.models import ScaledMixture, SkewedMixture
from tests.helpers.quadrature import Quadrature
from tests.helpers.toy_families import NormalMixture

PRECISE = PosteriorMode(Laplace(tolerance=1e-12, race=None))


@pytest.fixture(scope="module")
def linear():
    family = LinearNormal()
    return family, PosteriorMode().compile(family)


def run(e_step, case):
    return e_step(*case, np.random.default_rng(0), {}, draws=1, tune=0)


@pytest.mark.parametrize("kind", [SkewedMixture, ScaledMixture])
def test_it_is_the_point_of_the_highest_density(kind):
    """Against another optimizer on the density as it is written without PyMC."""
    family = kind()
    found = run(PRECISE.compile(family), split(family))
    start = family.model.initial_point(0)
    first = np.array([start[v.name] for v in family.model.continuous_value_vars]).ravel()
    searches = [
        minimize(lambda x, j=j: -family.log_density(j, x), first, method="BFGS", tol=1e-9)
        for j in range(3)
    ]
    best = int(np.argmin([search.fun for search in searches]))
    np.testing.assert_array_equal(found.statistics["class_weight"], np.arange(3) == best)
    for name, value in family.statistics_of(searches[best].x).items():
        np.testing.assert_allclose(found.statistics[name][best], value, atol=1e-5)
        assert (np.delete(found.statistics[name], best, axis=0) == 0).all()
    assert found.troubles == {}
    assert found.class_index is None


def test_linear_normal_modes_are_means(linear):
    family, e_step = linear
    data, theta = family.case
    log_evidence, means, covariances = family.posterior(data, theta)
    found = run(e_step, (data, theta))
    height = log_evidence - 0.5 * np.linalg.slogdet(2 * np.pi * covariances)[1]
    best = int(height.argmax())
    np.testing.assert_allclose(found.statistics["x"][best], means[best], atol=1e-3)
    assert found.log_evidence == pytest.approx(family.log_evidence(data, theta), abs=1e-6)
    probability = e_step.class_probability(data, theta, None, draws=1, tune=0)
    np.testing.assert_array_equal(probability, np.arange(3) == best)


# -- its known bias ------------------------------------------------------------------------------


def test_bias_the_posterior_variance_is_missing(linear):
    family, e_step = linear
    data, theta = family.case
    theta = theta | {"weights": np.array([1e-12, 1e-12, 1.0 - 2e-12])}
    exact = family.exact(data, theta)
    found = run(e_step, (data, theta)).statistics
    np.testing.assert_allclose(found["class_weight"], exact["class_weight"], atol=1e-10)
    np.testing.assert_allclose(found["x"], exact["x"], atol=1e-3)
    _, _, covariances = family.posterior(data, theta)
    np.testing.assert_allclose(exact["outer"][2] - found["outer"][2], covariances[2], atol=1e-3)


def test_bias_a_narrow_class_beats_a_probable_one(linear):
    family, e_step = linear
    data, theta = family.case
    theta = theta | {"weights": np.array([0.75, 0.05, 0.2]), "spread": np.array([0.8, 0.1, 1.1])}
    probability = family.exact(data, theta)["class_weight"]
    assert probability.argmax() == 0
    assert probability[1] < 0.15
    found = run(e_step, (data, theta)).statistics["class_weight"]
    np.testing.assert_array_equal(found, [0, 1, 0])


def test_bias_overlapping_classes_have_all_or_nothing():
    family = SkewedMixture()
    exact = Quadrature(family, 1000).statistics()
    found = run(PosteriorMode().compile(family), split(family)).statistics
    # The mode is in the second class, which has a third of the weight.
    np.testing.assert_array_equal(found["class_weight"], [0, 1, 0])
    assert exact["class_weight"][1] == pytest.approx(0.351, abs=0.002)
    assert np.abs(found["level"] - exact["level"]).max() > 0.3


class Spread(Family):
    """y is a normal latent of unknown variance plus noise of variance 1, in twin classes."""

    observation = ("y",)

    def __init__(self):
        with pm.Model() as self.model:
            variance = pm.Data("variance", 1.0)
            y = pm.Data("y", 0.0)
            self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
            x = pm.Normal("x", 0.0, variance**0.5 + 0.0 * self.class_index)
            pm.Normal("value", x, 1.0, observed=y)
        self.statistics = {"square": x**2}


@pytest.mark.parametrize(("truth", "limit"), [(2.0, 0.0), (4.0, (3 + np.sqrt(5)) / 2)])
def test_bias_a_learned_variance_shrinks_or_vanishes(truth, limit):
    """EM on one observation with the mean square 1 + γ², whose maximum likelihood is γ².

    The recursion γ² ← (γ² / (γ² + 1))² y² has its fixed points where (γ² + 1)² = γ² y²: none
    but zero while y² < 4, that is while the true γ² is below three times the noise.
    """
    with interpreted():
        family = Spread()
        e_step = PRECISE.compile(family)
        learned = truth
        for _ in range(60):
            theta = {"variance": np.array(learned)}
            found = run(e_step, (family.encode(np.sqrt(1 + truth)), theta))
            learned = float(found.statistics["square"].sum())
            if learned < 1e-3:
                break
    assert learned == pytest.approx(limit, abs=2e-3)


# -- what a driver relies on -----------------------------------------------------------------


def test_online_em_runs_and_is_stored(rng, tmp_path):
    em = assert_runs_and_is_stored(PosteriorMode(), rng, tmp_path / "run.nc")
    weights = em.history["observations"]["class_weight"].values
    assert set(np.unique(weights)) == {0.0, 1.0}


def test_no_density_anywhere_is_an_error(linear):
    family, e_step = linear
    data, theta = family.case
    with pytest.raises(FloatingPointError, match="posterior mode: the log-density is not finite"):
        run(e_step, (data, theta | {"noise": np.array(np.nan)}))


def test_an_unfinished_search_is_named():
    with interpreted():
        family = SkewedMixture()
        e_step = PosteriorMode(Laplace(max_iterations=1, race=None)).compile(family)
        assert run(e_step, split(family)).troubles == {"mode search: not converged": 3}


def test_a_family_without_latents_is_refused():
    with pytest.raises(ValueError, match="latents: there are none that jump with the class"):
        PosteriorMode().compile(NormalMixture())
