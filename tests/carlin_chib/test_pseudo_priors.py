"""Pseudo-priors: normal densities as arrays, and the rules that find them."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors, class_shares, draw_class
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.carlin_chib.pseudo_priors.plate import PlateLaplace
from pymc_mcoem.carlin_chib.pseudo_priors.prior_covariance import PriorCovariance
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.geometry import LatentGeometry, declare_geometry, geometry_of
from pymc_mcoem.density.plate import PlateDensity
from pymc_mcoem.laplace.search import ModeSearch
from tests.helpers.checks import LIMIT
from tests.helpers.models import N_CLASSES, ScaledMixture, SkewedMixture
from tests.helpers.quadrature import Quadrature
from tests.helpers.representatives import by_default

N_PRIOR_DRAWS = 800


# -- the densities -------------------------------------------------------------------------------


@pytest.fixture
def covariance(rng):
    factor = rng.normal(size=(3, 2, 2))
    return factor @ np.swapaxes(factor, 1, 2) + 0.5 * np.eye(2)


def test_log_density_is_scipys(rng, covariance):
    mean, positions = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    made = {
        "covariance": PseudoPriors.from_covariance(mean, covariance),
        "precision": PseudoPriors.from_precision(mean, np.linalg.inv(covariance)),
    }
    expected = [
        stats.multivariate_normal(m, c).logpdf(x)
        for m, c, x in zip(mean, covariance, positions, strict=True)
    ]
    for pseudo_priors in made.values():
        np.testing.assert_allclose(pseudo_priors.log_density(positions), expected, rtol=1e-10)
        scale = pseudo_priors.scale
        np.testing.assert_allclose(scale @ np.swapaxes(scale, 1, 2), covariance, rtol=1e-10)


def test_a_chain_starts_in_a_class_drawn_by_evidence(rng):
    n = 4000
    evidence = np.log([0.1, 0.6, 0.3]) - 700
    mean = np.array([[0.0], [10.0], [20.0]])
    pseudo_priors = PseudoPriors.from_covariance(mean, np.full((3, 1, 1), 4.0), evidence)
    starts = [pseudo_priors.draw_start(rng) for _ in range(n)]
    k = np.array([index for index, _ in starts])
    x = np.array([position for _, position in starts])
    share = np.array([0.1, 0.6, 0.3])
    error = np.sqrt(share * (1 - share) / n)
    assert (np.abs(np.bincount(k) / n - share) < LIMIT * error).all()
    standard = (x[:, 0] - mean[k, 0]) / 2
    assert abs(standard.mean()) < LIMIT / np.sqrt(n)
    assert abs((standard**2).mean() - 1) < LIMIT * np.sqrt(2 / n)


def test_shares_of_many_are_those_of_each_and_draw_what_numpy_draws(rng):
    evidence = rng.normal(size=(20, 9)) * 3
    summed = class_shares(evidence)
    for at, (own, one) in enumerate(zip(summed, evidence, strict=True)):
        np.testing.assert_array_equal(own, class_shares(one))
        first, second = np.random.default_rng(at), np.random.default_rng(at)
        assert draw_class(one, first) == second.choice(9, p=special.softmax(one))
        assert first.random() == second.random()


@pytest.mark.parametrize(
    ("evidence", "possible"),
    [
        ([np.nan, np.nan, np.nan], {0, 1, 2}),
        ([-np.inf, -np.inf, -np.inf], {0, 1, 2}),
        ([np.nan, -3.0, -np.inf], {1}),
        ([-1e300, -1.0, -1.5], {1, 2}),
    ],
)
def test_evidence_that_is_not_known_everywhere(rng, evidence, possible):
    pseudo_priors = PseudoPriors.from_covariance(
        np.zeros((3, 1)), np.ones((3, 1, 1)), np.array(evidence)
    )
    assert {pseudo_priors.draw_start(rng)[0] for _ in range(100)} == possible


def test_pseudo_priors_are_equal_by_value(covariance):
    def make(troubles=None):
        return PseudoPriors.from_covariance(np.zeros((3, 2)), covariance, troubles=troubles)

    assert make() == make()
    assert make() != make({"mode search: indefinite": 1})
    assert make() != PseudoPriors.from_covariance(np.ones((3, 2)), covariance)
    assert make() != 1


# -- the rules -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def family(module_without_compiler):
    return ScaledMixture()


@pytest.fixture(scope="module")
def density(family):
    names = (*family.parameter_names, *family.observation)
    return ClassDensity(family.model, family.class_index, family.latents, inputs=names)


@pytest.fixture(scope="module")
def data(family, density):
    return {name: np.asarray(family.values[name]) for name in density.data_inputs}


@pytest.fixture(scope="module")
def rules(density):
    """Return the three rules, compiled once, with small numbers of draws."""
    origin = LatentGeometry(starts=np.zeros((1, 3)))
    return {
        "laplace": Laplace(race=None).compile(density, origin),
        "prior": PriorCovariance(n_prior_draws=N_PRIOR_DRAWS).compile(density, origin),
        "pilot": PilotMoments(n_steps=60, n_prior_draws=100).compile(density, origin),
    }


@pytest.fixture(scope="module")
def modes(density, data):
    return ModeSearch(density, tolerance=1e-3)(np.zeros((1, 3)), data)


def prior_covariance_of(family):
    """Return the prior covariances of `ScaledMixture` in closed form, ``(n_classes, 3, 3)``."""
    v = family.values
    found = np.zeros((N_CLASSES, 3, 3))
    first, second = (v["spread"] ** 2).T
    found[:, 0, 0] = first
    found[:, 0, 1] = found[:, 1, 0] = v["slope"] * first
    found[:, 1, 1] = v["slope"] ** 2 * first + second
    # Of the logarithm of a Gamma variable.
    found[:, 2, 2] = special.polygamma(1, v["gamma"][0])
    return found


def covariance_of(pseudo_priors):
    return pseudo_priors.scale @ np.swapaxes(pseudo_priors.scale, 1, 2)


def test_laplace_is_mode_and_curvature(rules, data, modes, rng):
    found = rules["laplace"](data, rng)
    np.testing.assert_allclose(found.mean, modes.mean, atol=1e-12)
    np.testing.assert_allclose(covariance_of(found) @ modes.precision, [np.eye(3)] * 3, atol=1e-9)
    np.testing.assert_allclose(found.log_evidence, modes.log_evidence, rtol=1e-12)
    assert found.troubles == {}


def test_laplace_says_what_went_wrong(rng):
    family = SkewedMixture()
    density = ClassDensity(family.model, family.class_index, family.latents)
    rule = Laplace(max_iterations=1, race=None).compile(density, LatentGeometry())
    assert rule({}, rng).troubles == {"mode search: not converged": N_CLASSES}


def test_hasty_searches_end_early_and_near_the_modes(density, data, modes, rng):
    origin = LatentGeometry(starts=np.zeros((1, 3)))
    rule = Laplace.hasty(race=None)
    assert rule == replace(Laplace.hasty(), race=None)
    search, starts = rule.compile_search(density, origin)
    found = search(starts, data)
    assert found.n_iterations.sum() < modes.n_iterations.sum()
    # the last step was to gain less than the tolerance, and gained most of what there was
    np.testing.assert_array_less(modes.log_density - found.log_density, rule.tolerance)
    assert rule.compile(density, origin)(data, rng).troubles == {}


def test_laplace_takes_as_many_starts_as_it_is_told(rng, module_without_compiler):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0, 3.0)
        pm.Normal("y", x**2 + 0.01 * k, 0.5, observed=4.0)
    density = ClassDensity(model, k, [x])
    geometry = LatentGeometry(starts=np.array([[-3.0], [3.0]]))
    for n_searches, mode in ((1, -2.0), (None, 2.0)):
        found = Laplace(n_searches=n_searches).compile(density, geometry)({}, rng)
        np.testing.assert_allclose(found.mean, mode, atol=0.1)


# the test after this one has a pilot by default
@pytest.mark.parametrize(
    ("rule", "draws"),
    by_default(
        [("laplace", False), ("prior", True), ("pilot", True)],
        [("laplace", False), ("prior", True)],
    ),
)
def test_a_rule_makes_the_same_from_the_same_generator(rules, data, rule, draws):
    first, second, third = (rules[rule](data, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == second
    assert (first != third) == draws


def test_compiled_rules_are_seeded_too(skewed):
    """The random numbers inside a compiled graph are the back end's own, and must be reseeded."""
    rule = PilotMoments(n_steps=20, n_prior_draws=20).compile(
        skewed.e_step.density, LatentGeometry()
    )
    first, second, third = (rule(skewed.data, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == second
    assert first != third


def test_prior_covariance_from_draws(family, rules, data, modes, rng):
    found = rules["prior"](data, rng)
    np.testing.assert_allclose(found.mean, modes.mean, atol=1e-2)
    expected = prior_covariance_of(family)
    # Of a normal sample: var S_ab = (Σ_aa Σ_bb + Σ_ab²) / n. The kurtosis of log Gamma adds to it.
    diagonal = np.diagonal(expected, axis1=1, axis2=2)
    error = np.sqrt((diagonal[:, :, None] * diagonal[:, None] + expected**2) / N_PRIOR_DRAWS)
    kurtosis = special.polygamma(3, 3.0) / special.polygamma(1, 3.0) ** 2
    error[:, 2, 2] *= np.sqrt((2 + kurtosis) / 2)
    assert (np.abs(covariance_of(found) - expected) < LIMIT * error).all()


def test_prior_covariance_follows_the_data(rules, data, rng):
    wide = data | {"spread": 10 * data["spread"]}
    ratio = covariance_of(rules["prior"](wide, rng)) / covariance_of(rules["prior"](data, rng))
    # Each of the two sample variances has a relative error of sqrt(2 / n).
    assert (np.abs(np.log(ratio[:, 0, 0] / 100)) < LIMIT * np.sqrt(4 / N_PRIOR_DRAWS)).all()


def test_prior_covariance_that_the_family_declares(family, density, data, modes, rng):
    model, k = family.model, family.class_index
    with model:
        declared = pm.math.stack(
            [model["spread"][k, 0] ** 2, model["spread"][k, 1] ** 2, model["gamma"][0]]
        )
        geometry = LatentGeometry(prior_covariance=pm.math.eye(3) * declared)
    found = PriorCovariance().compile(density, geometry)(data, rng)
    v = family.values
    expected = [np.diag([*spread**2, v["gamma"][0]]) for spread in v["spread"]]
    np.testing.assert_allclose(covariance_of(found), expected, rtol=1e-10)
    np.testing.assert_allclose(found.mean, modes.mean, atol=1e-2)


def test_pilot_moments_are_near_those_of_the_posterior(family, rules, data, rng):
    pilots = [rules["pilot"](data, rng) for _ in range(4)]
    mean, covariance = Quadrature(family, 50).moments()
    spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    found = np.mean([pilot.mean for pilot in pilots], axis=0)
    # Half of sixty steps, worth six independent draws or more, in each of four pilots.
    assert (np.abs(found - mean) < LIMIT * spread / np.sqrt(24)).all()
    for pilot in pilots:
        np.linalg.cholesky(covariance_of(pilot))
        assert np.isnan(pilot.log_evidence).all()


def test_a_pilot_starts_where_the_geometry_says_and_takes_its_first_starting_point(
    family, density, data, rng
):
    # From very far away four steps lead nowhere near the posterior.
    far = LatentGeometry(starts=np.array([[40.0, 40.0, 0.0], [0.0, 0.0, 0.0]]))
    found = PilotMoments(n_steps=4, n_prior_draws=50).compile(density, far)(data, rng)
    assert (found.mean[:, :2] > 20).all()


def test_a_pilot_of_too_few_steps():
    with pytest.raises(ValueError, match="n_steps: got 3; a pilot chain needs at least 4 steps"):
        PilotMoments(n_steps=3)


def test_prior_draws_are_conditioned_by_other_variables(rng, module_without_compiler):
    with pm.Model() as model:
        spread = pm.HalfNormal("spread", 1.0)
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 0.0, spread * (1 + k))
        pm.Normal("y", x, 1.0, observed=0.3)
    density = ClassDensity(model, k, [x])
    assert [value.name for value in density.other_values] == ["spread_log__"]
    n = 1000
    rule = PriorCovariance(n_prior_draws=n).compile(density, LatentGeometry())
    found = covariance_of(rule({}, rng, [np.asarray(np.log(5.0))]))[:, 0, 0]
    np.testing.assert_allclose(found, [25.0, 100.0], rtol=LIMIT * np.sqrt(2 / n))


def test_prior_draws_of_a_model_without_an_index(rng, module_without_compiler):
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0)
        pm.Normal("y", x, 1.0, observed=0.3)
    density = ClassDensity(model, None, [x])
    n = 1000
    rule = PriorCovariance(n_prior_draws=n).compile(density, LatentGeometry())
    found = covariance_of(rule({}, rng))
    np.testing.assert_allclose(found, [[[9.0]]], rtol=LIMIT * np.sqrt(2 / n))


# -- geometry ------------------------------------------------------------------------------------


def test_a_geometry_that_is_declared_is_found_and_starts_modes(module_without_compiler):
    family = SkewedMixture()
    assert geometry_of(family.model) == LatentGeometry()
    declared = LatentGeometry(starts=np.array([[1.5], [2.5]]))
    declare_geometry(family.model, declared)
    assert geometry_of(family.model) is declared
    density = ClassDensity(family.model, family.class_index, family.latents)
    np.testing.assert_array_equal(declared.starts_of(density), [[1.5], [2.5]])
    np.testing.assert_array_equal(LatentGeometry().starts_of(density), [[-0.8]])


def test_a_geometry_keeps_no_model_alive(module_without_compiler):
    gc.freeze()  # what there is already takes seconds to look through
    model = SkewedMixture().model
    declare_geometry(model, LatentGeometry(prior_covariance=model["spread"].reshape((1, 3))))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def counts_around_data(shape):
    """Return a model of counts whose latents are where its data say, and what is in it."""
    with pm.Model() as model:
        center = pm.Data("center", 0.0)
        k = pm.Categorical("k", [0.5, 0.5], shape=shape)
        x = pm.Normal("x", center, 1.0, shape=shape)
        seen = 2 if shape is None else np.full(shape, 2)
        pm.Poisson("y", pm.math.exp(x - center + k), observed=seen)
    return model, k, x


@pytest.mark.parametrize("rule", [Laplace(), PriorCovariance(100), PilotMoments(), "plate"])
def test_searches_start_where_the_data_now_put_the_model(rule):
    """Two thousand away Newton's steps would begin where every count has no density at all."""
    is_plate = rule == "plate"
    model, k, x = counts_around_data(3 if is_plate else None)
    if is_plate:
        find = PlateLaplace(PlateDensity(model, k, [x]))
    else:
        compiled = rule.compile(ClassDensity(model, k, [x]), LatentGeometry())

        def find(others):
            return compiled({}, np.random.default_rng(1), others)

    near = find([])
    with model:
        pm.set_data({"center": -2000.0})
    far = find([])
    assert far.troubles == {}
    np.testing.assert_allclose(far.mean + 2000.0, near.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(far.scale, near.scale, rtol=1e-5)
