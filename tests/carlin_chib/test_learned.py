"""Pseudo-priors learned while tuning: their maps, when they are learned, and that draws are exact."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from benchmarks import published_models as published
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pilots import overlap
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.conditional_scale import ConditionalScale
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.learned import (
    LearnedMap,
    LearnedPseudoPriors,
    candidate_maps,
)
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
    maps = dict(candidate_maps(draws, np.ones(1, bool), seed=0))
    return before, LearnedPseudoPriors(before, {1: maps["sinh-arcsinh"]}), draws


def test_densities_are_those_of_the_draws(rng):
    _, learned, _ = learned_in_class_1(rng)
    x = np.sinh(np.linspace(-9, 9, 20_001))
    density = np.exp(learned.log_density(np.stack([x, x], axis=-1)[..., None])[:, 1])
    assert trapezoid(density, x) == pytest.approx(1, abs=1e-4)
    cumulative = np.append(0, np.cumsum(np.diff(x) * (density[1:] + density[:-1]) / 2))
    drawn = np.array([learned.draw(rng)[1, 0] for _ in range(4_000)])
    assert stats.kstest(np.interp(drawn, x, cumulative), "uniform").pvalue > 1e-5
    # a density of a wrong slope is told apart
    assert stats.kstest(np.interp(1.15 * drawn, x, cumulative), "uniform").pvalue < 1e-5


def test_other_classes_and_inactive_coordinates_stay(rng):
    before, learned, _ = learned_in_class_1(rng)
    at = rng.standard_normal((5, 2, 1))
    np.testing.assert_array_equal(learned.log_density(at)[:, 0], before.log_density(at)[:, 0])
    (_, of_first), *_ = candidate_maps(rng.normal(3, 1, (500, 2)), np.array([True, False]), seed=0)
    at = np.array([[3.0, -2.0], [3.0, 1.0]])
    difference = np.subtract(*of_first.log_density(at))
    assert difference == pytest.approx(np.subtract(*stats.norm.logpdf([-2.0, 1.0])))
    drawn = np.array([of_first.draw(rng) for _ in range(2_000)])[:, 1]
    assert stats.kstest(drawn, "norm").pvalue > 1e-5
