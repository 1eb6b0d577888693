"""The exact E-step that benchmarks measure others against."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from benchmarks import shifted_curves as curves


@pytest.fixture
def observed(rng):
    return curves.simulate(curves.TRUTH, 40, rng)


def as_parameters(vector):
    weights = np.append(vector[:2], 1 - vector[:2].sum())
    return {
        "weights": weights,
        "templates": vector[2:17].reshape(3, 5),
        "noise_variance": vector[17],
        "shift_variance": vector[18],
    }


def test_likelihood_is_that_of_the_model(observed, without_compiler):
    family = curves.ShiftedCurves(curves.TRUTH)
    shifts = np.linspace(-2.4, 2.4, 201)
    density = family.model.compile_logp()
    for curve in observed[:2]:
        family.model["curve"].set_value(curve)
        joint = [density({"class_index": k, "shift": x}) for k in range(3) for x in shifts]
        found = curves.posterior(curve[None], curves.TRUTH).log_likelihood[0]
        expected = logsumexp(joint) + np.log(shifts[1] - shifts[0])
        np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_scores_are_gradients_of_the_likelihood(observed):
    at = curves.free_vector(curves.TRUTH)
    found = curves.scores(curves.posterior(observed, curves.TRUTH).statistics, curves.TRUTH)
    for index in range(len(at)):
        step = 1e-5 * np.eye(len(at))[index]
        up, down = (
            curves.posterior(observed, as_parameters(at + sign * step)).log_likelihood
            for sign in (1, -1)
        )
        np.testing.assert_allclose(found[:, index], (up - down) / 2e-5, atol=1e-5)


def test_an_iteration_of_em_does_not_lower_the_likelihood(observed):
    family, theta = curves.ShiftedCurves(curves.TRUTH), dict(curves.TRUTH)
    last = -np.inf
    for _ in range(5):
        found = curves.posterior(observed, theta)
        assert found.log_likelihood.sum() > last
        last = found.log_likelihood.sum()
        means = {name: value.mean(axis=0) for name, value in found.statistics.items()}
        theta = family.maximize(means, effective_size=len(observed))
