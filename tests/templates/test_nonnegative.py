"""The M-step and the starts under coefficients that are not negative."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from pymc_mcoem.templates import TemplateMixture, TemplatePriors

AGES = np.linspace(2, 18, 15)
OPTIONS = {"n_landmarks": 9, "n_warp_kernels": 4}


def some_statistics(rng, n_classes=2, size=9):
    """Running means of noisy curves whose best real coefficients are partly negative."""
    designs = rng.uniform(0, 1, size=(n_classes, 40, size))
    curves = designs @ rng.normal(0.1, 2, size=size) + rng.normal(0, 0.1, size=(n_classes, 40))
    mass = np.array([0.6, 0.4])
    return {
        "class_weight": mass,
        "template_projection": mass[:, None] * np.einsum("jsl,js->jl", designs, curves),
        "template_gram": mass[:, None, None] * (designs.transpose(0, 2, 1) @ designs),
        "deformation_outer": mass[:, None, None] * 0.1 * np.eye(4),
        "squared_norm": mass * np.square(curves).sum(axis=1),
        "observed_points": mass * 40,
    }


@pytest.mark.parametrize("strength", [0.0, 0.1])
def test_templates_solve_the_quadratic_program(strength, rng):
    priors = TemplatePriors(template_strength=strength, template_mean=0.2)
    mixture = TemplateMixture.for_curves(AGES, 2, priors=priors, **OPTIONS)
    real = TemplateMixture.for_curves(AGES, 2, priors=priors, coefficients="real", **OPTIONS)
    statistics = some_statistics(rng)
    found = mixture.maximize(statistics, effective_size=50.0)
    assert real.maximize(statistics, effective_size=50.0)["templates"].min() < -0.01
    precision = priors.precision(mixture.gram) / 50.0
    for index, template in enumerate(found["templates"]):
        matrix = statistics["template_gram"][index] + precision
        right = statistics["template_projection"][index] + precision @ np.full(9, 0.2)
        assert template.min() >= 0
        # Karush, Kuhn and Tucker: no slope where positive, none downwards at zero
        slope = matrix @ template - right
        assert np.abs(slope[template > 0]).max() < 1e-9
        assert slope.min() > -1e-9
        lower = np.linalg.cholesky(matrix)
        other = lsq_linear(lower.T, np.linalg.solve(lower, right), (0, np.inf), tol=1e-12).x
        np.testing.assert_allclose(template, other, atol=1e-6)


def test_where_no_bound_holds_it_is_the_closed_form(rng):
    statistics = some_statistics(rng)
    statistics["template_projection"] = np.einsum(
        "jlk,jk->jl", statistics["template_gram"], rng.uniform(1, 2, size=(2, 9))
    )
    priors = TemplatePriors(template_strength=1e-6)
    results = [
        TemplateMixture.for_curves(AGES, 2, priors=priors, coefficients=word, **OPTIONS).maximize(
            statistics, effective_size=50.0
        )["templates"]
        for word in ("real", "nonnegative")
    ]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-8)


@pytest.mark.parametrize("start", ["kmeans", "random"])
@pytest.mark.parametrize("own", [False, True])
def test_starts_are_not_negative(start, own, rng):
    mixture = TemplateMixture.for_curves(AGES, 3, **OPTIONS, **({"own_points": 15} if own else {}))
    curves = rng.uniform(2, 8, size=(12, 15))
    given = [(AGES[k % 3 :], row[k % 3 :]) for k, row in enumerate(curves)] if own else list(curves)
    parameters = mixture.check_parameters(mixture.initialize(given, rng, start))
    templates = parameters["templates"]
    assert templates.min() >= 0
    assert templates.max() > 0
    levels = (templates @ mixture.mean_design().T).mean(axis=1)
    np.testing.assert_allclose(levels, 5, atol=1.5)


def test_kmeans_start_does_not_depend_on_how_points_are_given(rng):
    curves = rng.uniform(2, 8, size=(12, 15))
    plain = TemplateMixture.for_curves(AGES, 2, **OPTIONS)
    own = TemplateMixture.for_curves(AGES, 2, own_points=20, **OPTIONS)
    generators = [np.random.default_rng(1) for _ in range(2)]
    expected = plain.initialize(list(curves), generators[0], "kmeans")
    found = own.initialize([(AGES, curve) for curve in curves], generators[1], "kmeans")
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-10, err_msg=name)
