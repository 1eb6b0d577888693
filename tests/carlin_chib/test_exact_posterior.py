"""Long chains against quadrature: the class posterior and the latents' moments in every class.

The answer must not depend on the pseudo-priors; only the mixing may.
"""

from __future__ import annotations

import numpy as np
import pytest

from pymc_mcoem.em.burst import adaptation_gains
from tests.helpers.checks import LIMIT, chain_agreement, features
from tests.helpers.models import N_CLASSES
from tests.helpers.quadrature import Quadrature
from tests.helpers.representatives import by_default

TUNE, DRAWS = 500, 40_000


def test_quadrature_has_converged(case):
    coarse = Quadrature(case.family, 500 if case.family.n_latents == 1 else 60)
    np.testing.assert_allclose(
        coarse.expectation(features), case.quadrature.expectation(features), atol=1e-5
    )
    np.testing.assert_allclose(coarse.log_evidence, case.quadrature.log_evidence, atol=1e-5)


def test_the_classes_overlap_and_are_unequal(case):
    probability = case.quadrature.class_probability
    assert probability.min() > 0.1
    assert probability.max() > 1.8 * probability.min()


def run(case, pseudo_priors, rng, start=None):
    gains = adaptation_gains(TUNE + DRAWS, TUNE)
    start = pseudo_priors.draw_start(rng) if start is None else start
    return case.burst(rng, start, case.burst.initial_log_step, pseudo_priors, gains, case.data)


@pytest.mark.parametrize("kind", ["laplace", "good", "poor"])
def test_a_long_chain_has_the_exact_posterior(case, rng, kind):
    draws = run(case, case.pseudo_priors(kind), rng)
    found = chain_agreement(draws.class_index[TUNE:], draws.position[TUNE:], case.quadrature)
    assert found.largest_z < LIMIT
    assert found.effective_sample_size > 1000


def test_good_pseudo_priors_mix_faster_than_poor_ones(case, rng):
    def switches(kind):
        draws = run(case, case.pseudo_priors(kind), rng)
        return np.mean(np.diff(draws.class_index) != 0)

    assert switches("good") > 1.2 * switches("poor")


@pytest.mark.parametrize("k", by_default(range(N_CLASSES), [2]))
def test_a_chain_forgets_where_it_started(scaled, rng, k):
    """Ten posterior standard deviations away, in a class of the test's choosing."""
    mean, covariance = scaled.quadrature.moments()
    far = mean[k] + 10 * np.sqrt(np.diagonal(covariance[k]))
    draws = run(scaled, scaled.pseudo_priors("good"), rng, start=(k, far))
    found = chain_agreement(draws.class_index[TUNE:], draws.position[TUNE:], scaled.quadrature)
    assert found.largest_z < LIMIT


def test_weights_estimate_the_evidence(case, rng):
    """For j ≠ I the weight is an unbiased estimate of p(y, I = j): importance sampling."""
    pseudo_priors = case.pseudo_priors("poor")
    draws = run(case, pseudo_priors, rng)
    before = draws.class_index[:-1]
    for j in range(N_CLASSES):
        inactive = draws.log_weight[1:][before != j, j]
        weight = np.exp(inactive - case.quadrature.log_evidence[j])
        error = weight.std() / np.sqrt(len(weight))
        assert abs(weight.mean() - 1) < LIMIT * error
        assert error < 0.05
