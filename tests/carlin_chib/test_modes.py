"""Classes with several modes: all are found, drawn from exactly, and what is missed is seen."""

from __future__ import annotations

import dataclasses
import logging
import warnings

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import Independence, RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.base import Mixtures, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.diagnostics import ClassIndexWarning, class_index_summary
from pymc_mcoem.diagnostics.pseudo_priors import pseudo_prior_draws
from pymc_mcoem.laplace import dispersed_starts as dispersed
from pymc_mcoem.laplace.climbing import climb
from tests.helpers.checks import LIMIT, agreement, chain_agreement
from tests.helpers.given import Given
from tests.helpers.interpreted import judged_by_few_sweeps
from tests.helpers.representatives import by_default

#: Four Monte Carlo errors, as estimated by batch means of 40 batches.
FOUR = 4.0


def sampled(model, step, rng, draws=1_200, chains=4, tune=300, **options):
    with model:
        return pm.sample(
            step=step,
            tune=tune,
            draws=draws,
            chains=chains,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
            **options,
        )


def summary_of(tree):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        return class_index_summary(tree, "k")


def errors_of(values, expected, n_batches=40):
    """Return by how many Monte Carlo errors each chain's average ``(chain, draw)`` is off."""
    batches = values.reshape(len(values), n_batches, -1).mean(axis=2)
    error = batches.std(axis=1, ddof=1) / np.sqrt(n_batches)
    return np.abs(values.mean(axis=1) - expected) / error


# -- the class with two modes --------------------------------------------------------------------


def folded(initval=None):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 0.5, 3.0, initval=initval)
        mean = pm.math.switch(pm.math.eq(k, 0), 0.6 * x, pm.math.abs(x))
        pm.Normal("y", mean, 0.15, observed=3.0)
    return model


def folded_answer():
    """Return P(k = 1 | y) and P(x < 0 | y) by the trapezoid rule."""
    grid = np.linspace(-20.0, 20.0, 400_001)
    prior = stats.norm.pdf(grid, 0.5, 3.0)
    mass = [prior * stats.norm.pdf(3.0, mean, 0.15) for mean in (0.6 * grid, np.abs(grid))]
    total = sum(np.trapezoid(each, grid) for each in mass)
    left = grid <= 0.0
    return (
        np.trapezoid(mass[1], grid) / total,
        sum(np.trapezoid(each[left], grid[left]) for each in mass) / total,
    )


@pytest.mark.parametrize(
    ("move", "initval"),
    by_default(
        [(RandomWalk(), None), (RandomWalk(), -1.0), (None, None), (None, -1.0)],
        [(RandomWalk(), None), (None, -1.0)],
    ),
    ids=["walk-None", "walk--1.0", "no move-None", "no move--1.0"],
)
def test_every_chain_has_both_modes_of_a_class(rng, initval, move):
    probability, negative = folded_answer()
    assert probability == pytest.approx(0.691, abs=5e-4)
    model = folded(initval)
    tree = sampled(model, CarlinChib(model=model, within_class=move), rng, draws=2_000, chains=2)
    k, x = tree["posterior"]["k"].values, tree["posterior"]["x"].values
    assert (errors_of(k == 1, probability) < FOUR).all()
    assert (errors_of(x < 0.0, negative) < FOUR).all()
    assert summary_of(tree).ok


def test_one_start_alone_misses_a_mode_and_the_checks_above_see_it(rng):
    probability, _ = folded_answer()
    model = folded()
    rule = Laplace(race=None, n_prior_draws=0)
    tree = sampled(model, CarlinChib(model=model, pseudo_priors=rule), rng, chains=2)
    k, x = tree["posterior"]["k"].values, tree["posterior"]["x"].values
    assert (errors_of(k == 1, probability) > FOUR).all()
    assert (x > 0.0).all()


def test_a_class_that_is_never_left_has_all_its_modes(rng):
    with pm.Model() as model:
        k = pm.Categorical("k", [1e-9, 1.0 - 1e-9])
        x = pm.Normal("x", 0.5, 3.0)
        mean = pm.math.switch(pm.math.eq(k, 0), 0.6 * x, pm.math.abs(x))
        pm.Normal("y", mean, 0.15, observed=3.0)
    tree = sampled(model, CarlinChib(model=model), rng, chains=2)
    x, grid = tree["posterior"]["x"].values, np.linspace(-20.0, 20.0, 400_001)
    mass = stats.norm.pdf(grid, 0.5, 3.0) * stats.norm.pdf(3.0, np.abs(grid), 0.15)
    negative = np.trapezoid(mass[grid <= 0.0], grid[grid <= 0.0]) / np.trapezoid(mass, grid)
    assert (tree["posterior"]["k"].values == 1).all()
    assert (errors_of(x < 0.0, negative) < FOUR).all()
    assert np.abs(np.diff(np.sign(x), axis=1)).sum(axis=1).min() > 150


# -- other shapes of modes -----------------------------------------------------------------------

#: Center, spread and weight of each mode of class 1; prior spread; its probability.
SHAPES = {
    "three": ([[-4.0], [0.0], [5.0]], [0.3, 0.3, 0.3], [0.2, 0.5, 0.3], 3.0, 0.6),
    "unequal widths": ([[-3.0], [3.0]], [0.1, 1.0], [0.5, 0.5], 3.0, 0.5),
    "two latents": ([[-2.0, 1.0], [2.0, -3.0], [2.0, 3.0]], [0.2, 0.3, 0.4], [0.3] * 3, 3.0, 0.3),
    "five latents": ([[-2.0] * 5, [2.0] * 5], [0.4, 0.5], [0.6, 0.4], 2.0, 0.7),
}


def several(centers, spreads, weights, prior_spread, probability):
    """Return a model whose class 1 is exactly a mixture of normals."""
    centers, weights = np.array(centers), np.array(weights) / np.sum(weights)
    n = centers.shape[1]
    with pm.Model() as model:
        k = pm.Categorical("k", [1.0 - probability, probability])
        x = pm.Normal("x", 0.0, prior_spread, shape=n)
        squares = ((x[None] - centers) ** 2).sum(axis=1) / np.array(spreads) ** 2
        logs = np.log(weights) - n * np.log(np.array(spreads)) - 0.5 * squares
        own = pm.math.logsumexp(logs) + 0.5 * (x**2).sum() / prior_spread**2
        own += n * np.log(prior_spread)
        other = -0.5 * ((x - 1.0) ** 2).sum() + 0.5 * (x**2).sum() / prior_spread**2
        other += n * np.log(prior_spread)
        pm.Potential("evidence", pm.math.switch(pm.math.eq(k, 1), own, other))
    return model, centers, weights


@pytest.mark.parametrize("name", by_default(SHAPES, {"two latents"}))
def test_modes_of_other_numbers_widths_and_dimensions(rng, name):
    shape = SHAPES[name]
    model, centers, weights = several(*shape)
    tree = sampled(model, CarlinChib(model=model), rng, chains=2)
    k, x = tree["posterior"]["k"].values, tree["posterior"]["x"].values
    assert (errors_of(k == 1, shape[-1]) < FOUR).all()
    nearest = np.argmin(
        ((x[:, :, None] - centers) ** 2).sum(axis=3) / np.array(shape[1]) ** 2, axis=2
    )
    for mode in (0, len(centers) - 1):
        # of class 1 nearly all draws are nearest to the mode that they are of
        share = np.where(k == 1, nearest == mode, False)
        assert (errors_of(share, shape[-1] * weights[mode]) < FOUR + 1.0).all()


def test_a_mode_that_no_prior_draw_hits_is_found_from_starts_alone(rng):
    model, *_ = several([[1.0], [60.0]], [0.3, 0.3], [0.5, 0.5], 3.0, 0.5)
    everywhere = Laplace(race=None, starts=[{"x": [60.0]}])
    step = CarlinChib(model=model, pseudo_priors=everywhere, within_class=RandomWalk(n_moves=4))
    tree = sampled(model, step, rng, draws=1_000, chains=2)
    assert summary_of(tree).ok
    assert (errors_of(tree["posterior"]["k"].values == 1, 0.5) < FOUR).all()
    step = CarlinChib(model=model, within_class=RandomWalk(n_moves=4))
    missed = sampled(model, step, rng, draws=1_000, chains=2)
    assert (missed["posterior"]["x"].values < 30.0).all()
    # nobody can know, and nobody says more
    assert repr(summary_of(missed)).endswith("No problem found in what 2 chains visited.")


def test_chains_that_miss_a_mode_disagree_with_those_that_found_it(rng):
    """A hill that a prior draw begins on once in a hundred times, and few draws a chain."""
    model, *_ = several([[-3.0], [3.0]], [0.01, 1.0], [0.5, 0.5], 3.0, 0.5)
    rule = Laplace(race=None, n_prior_draws=24)
    step = CarlinChib(model=model, pseudo_priors=rule, within_class=RandomWalk(n_moves=4))
    tree = sampled(model, step, rng, draws=2_000)
    found = (tree["posterior"]["x"].values < -2.8).mean(axis=(1, 2)) > 0.1
    assert 0 < found.sum() < 4
    summary = summary_of(tree)
    assert not summary.ok
    assert "R-hat" in " ".join(summary.flags)


# -- exactness -----------------------------------------------------------------------------------


def overlapping(quadrature):
    """Return mixtures that are poor in each class in another way, and overlap."""
    mean, covariance = quadrature.moments()
    spread = np.sqrt(covariance[:, 0, 0])
    shifts = np.array([[-1.5, 1.0, 2.5], [0.5, -1.0, 0.0], [2.0, -1.0, 0.0]])
    widths = np.array([[0.7, 1.5, 1.0], [1.2, 2.0, 1.0], [1.0, 1.5, 1.0]])
    shares = np.array([[0.5, 0.3, 0.2], [0.8, 0.2, 0.0], [0.6, 0.4, 0.0]])
    means = mean[:, :1] + shifts * spread[:, None]
    variances = (widths * spread[:, None]) ** 2
    heaviest = PseudoPriors.from_covariance(
        means[:, :1], variances[:, :1, None], quadrature.log_evidence
    )
    normals = PseudoPriors.from_covariance(means.reshape(-1, 1), variances.reshape(-1, 1, 1))
    with np.errstate(divide="ignore"):
        mixtures = Mixtures(np.log(shares), normals)
    return dataclasses.replace(heaviest, mixtures=mixtures)


VARIANTS = {
    "gibbs": {"within_class": RandomWalk(n_moves=3)},
    "metropolized": {"within_class": RandomWalk(n_moves=3), "index_move": "metropolized"},
    "hamiltonian": {"within_class": Hamiltonian(n_moves=1, n_leapfrog=4)},
    "independence": {"within_class": Independence(n_moves=2)},
    "frozen": {"within_class": RandomWalk(n_moves=3), "auxiliaries": "frozen"},
}


@pytest.mark.parametrize("name", by_default(VARIANTS, {"independence", "frozen"}))
def test_mixtures_leave_the_exact_posterior(skewed, rng, name):
    model, given = skewed.family.model, Given(overlapping(skewed.quadrature))
    step = CarlinChib(model=model, pseudo_priors=given, **VARIANTS[name])
    tree = sampled(model, step, rng, draws=4_000, chains=1)
    posterior = tree["posterior"]
    found = chain_agreement(
        posterior["class_index"].values[0],
        posterior["level"].values[0][:, None],
        skewed.quadrature,
    )
    assert found.largest_z < LIMIT
    assert found.effective_sample_size > 300


def test_tilted_chains_with_mixtures_are_exact_when_weighed_back(skewed, rng):
    model = skewed.family.model
    step = CarlinChib(
        model=model,
        pseudo_priors=Given(overlapping(skewed.quadrature)),
        within_class=RandomWalk(n_moves=3),
        equalize_visits=True,
    )
    tree = sampled(model, step, rng, draws=4_000, chains=1)
    weight = np.exp(tree["sample_stats"]["class_log_importance"].values[0])
    k = tree["posterior"]["class_index"].values[0]
    expected = skewed.quadrature.class_probability
    # a ratio's deviation, batch by batch
    away = weight[:, None] * ((k[:, None] == np.arange(3)) - expected)
    assert agreement(away.reshape(40, -1, 3).mean(axis=1), np.zeros(3)).largest_z < LIMIT


def no_excess(self, positions):
    """Weigh auxiliaries by one component alone."""
    noise = np.einsum("jab,...jb->...ja", self.whiten, positions - self.mean)
    return noise, np.zeros(noise.shape[:-1])


def heaviest_drawn(self, rng):
    """Draw from one component alone, and weigh by the mixture."""
    noise = rng.standard_normal(self.mean.shape)
    return self.mean + np.einsum("jab,jb->ja", self.scale, noise)


@pytest.mark.parametrize(("method", "broken"), [("noise_of", no_excess), ("draw", heaviest_drawn)])
def test_broken_mixtures_fail_the_same_check(skewed, rng, monkeypatch, method, broken):
    model = skewed.family.model
    step = CarlinChib(
        model=model,
        pseudo_priors=Given(overlapping(skewed.quadrature)),
        within_class=RandomWalk(n_moves=3),
    )
    monkeypatch.setattr(PseudoPriors, method, broken)
    posterior = sampled(model, step, rng, draws=4_000, chains=1)["posterior"]
    found = chain_agreement(
        posterior["class_index"].values[0],
        posterior["level"].values[0][:, None],
        skewed.quadrature,
    )
    assert found.largest_z > LIMIT


def drawn_on(seed, mode):
    model = folded()
    step = CarlinChib(
        model=model, within_class=RandomWalk(n_moves=2), compile_kwargs={"mode": mode}
    )
    with judged_by_few_sweeps():
        tree = sampled(model, step, np.random.default_rng(seed), draws=100, tune=50, chains=1)
    return [tree["posterior"][name].values for name in "kx"]


@pytest.mark.parametrize("mode", by_default(["FAST_COMPILE", "CVM", "JAX"], {"FAST_COMPILE"}))
def test_back_ends_draw_the_same_from_mixtures(rng, run_apart, request, mode):
    if mode == "CVM":
        request.getfixturevalue("c_compiler")
    seed = int(rng.integers(2**31))
    k, x = drawn_on(seed, "NUMBA")
    other_k, other_x = run_apart(drawn_on, seed, mode)
    np.testing.assert_array_equal(other_k, k)
    np.testing.assert_allclose(other_x, x, rtol=1e-9)
    assert (x < 0).any()


def test_one_mode_costs_no_bit(rng):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.3, 0.2])
        x = pm.Normal("x", 2.0 * k, 1.0)
        pm.Normal("y", x, 1.0, observed=1.3)
    seed, found = int(rng.integers(2**31)), []
    for n in (0, 128):
        step = CarlinChib(model=model, pseudo_priors=Laplace(race=None, n_prior_draws=n))
        found.append(sampled(model, step, np.random.default_rng(seed), draws=100, chains=1))
        assert step.chain.pseudo_priors.mixtures is None
    np.testing.assert_array_equal(found[0]["posterior"]["x"], found[1]["posterior"]["x"])


# -- pseudo-priors and searches ------------------------------------------------------------------


def fitted(model, *names, seed=1, **options):
    density = ClassDensity(model, model["k"], [model[name] for name in names])
    rule = Laplace(race=None, **options).compile(density, LatentGeometry())
    return rule({}, np.random.default_rng(seed))


def test_modes_are_weighed_by_evidence():
    model, centers, weights = several(*SHAPES["three"])
    found = fitted(model, "x")
    assert found.mixtures is not None
    rows = found.mixtures.normals.mean.reshape(2, 3, 1)[1]
    order = np.argsort(rows[:, 0])
    np.testing.assert_allclose(rows[order], centers, atol=0.02)
    believed = 0.9 * weights + 0.1 / 3
    np.testing.assert_allclose(np.exp(found.mixtures.log_share[1])[order], believed, atol=0.02)
    np.testing.assert_allclose(np.exp(found.mixtures.log_share[0]), [1.0, 0.0, 0.0])
    # what knows of no mixtures has the heaviest
    np.testing.assert_array_equal(found.mean[1], rows[0])
    evidence = np.exp(found.log_evidence - logsumexp(found.log_evidence))
    np.testing.assert_allclose(evidence, [0.4, 0.6], atol=0.01)


def test_mixtures_are_normalised_and_drawn_as_they_are_dense(rng):
    normals = PseudoPriors.from_covariance(
        np.array([[-2.0], [1.0], [0.0], [0.0]]), np.array([1.0, 0.25, 4.0, 4.0])[:, None, None]
    )
    with np.errstate(divide="ignore"):
        mixtures = Mixtures(np.log([[0.7, 0.3], [1.0, 0.0]]), normals)
    grid = np.linspace(-20.0, 20.0, 20_001)
    density = np.exp([mixtures.log_density(np.full((2, 1), x)) for x in grid])
    np.testing.assert_allclose(np.trapezoid(density, grid, axis=0), 1.0, atol=1e-9)
    draws = np.array([mixtures.draw(rng)[:, 0] for _ in range(4_000)])
    cumulative = np.cumsum(density, axis=0) * (grid[1] - grid[0])
    for j in range(2):
        found = stats.kstest(draws[:, j], lambda x, j=j: np.interp(x, grid, cumulative[:, j]))
        assert found.pvalue > 1e-4


def test_blocks_keep_inactive_latents_standard_normal_in_mixtures(rng):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a, b = pm.Normal("a", 0.0, 2.0), pm.Normal("b", 0.5, 3.0)
        mean = pm.math.switch(pm.math.eq(k, 0), a, pm.math.abs(b))
        pm.Normal("y", mean, 0.15, observed=3.0)
        step = CarlinChib(blocks={0: [a], 1: [b]})
    tree = sampled(model, step, rng, chains=2)
    assert step.chain.pseudo_priors.mixtures is not None
    grid = np.linspace(-20.0, 20.0, 400_001)
    priors = stats.norm.pdf(grid, 0.0, 2.0), stats.norm.pdf(grid, 0.5, 3.0)
    mass = [
        np.trapezoid(prior * stats.norm.pdf(3.0, mean, 0.15), grid)
        for prior, mean in zip(priors, (grid, np.abs(grid)), strict=True)
    ]
    ones = tree["posterior"]["k"].values == 1
    assert (errors_of(ones, mass[1] / sum(mass)) < FOUR).all()
    below = stats.norm.pdf(3.0, np.abs(grid), 0.15) * priors[1]
    negative = np.trapezoid(below[grid <= 0], grid[grid <= 0]) / sum(mass)
    assert (errors_of(ones & (tree["posterior"]["b"].values < 0), negative) < FOUR).all()


def test_frozen_auxiliaries_say_that_they_draw_from_one_mode(rng, caplog):
    model = folded()
    with caplog.at_level(logging.WARNING, "pymc_mcoem"):
        sampled(model, CarlinChib(model=model, auxiliaries="frozen"), rng, draws=2, chains=1)
    assert "a class has several modes" in caplog.text


def test_pseudo_prior_draws_are_of_all_modes():
    found = pseudo_prior_draws(folded(), draws=200)
    assert 0.2 < float((found["x"].sel({"class": 1}) < 0).mean()) < 0.7


def test_a_prior_that_cannot_be_drawn_from_is_searched_around_the_start():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Flat("x", initval=2.0)
        mean = pm.math.switch(pm.math.eq(k, 0), 0.6 * x, pm.math.abs(x))
        pm.Normal("y", mean, 0.15, observed=3.0)
    found = fitted(model, "x")
    assert found.mixtures is not None
    assert found.mixtures.is_mixed.tolist() == [False, True]


def test_climbing_ends_on_the_hill_that_it_began_on(rng):
    def two_hills(x):
        far = np.stack([x[:, 0] + 3.0, x[:, 0] - 3.0])
        logs = -0.5 * (far / 0.3) ** 2
        share = np.exp(logs - logsumexp(logs, axis=0))
        slope = -(share * far).sum(axis=0) / 0.09
        return logsumexp(logs, axis=0), slope[:, None]

    points = np.concatenate([rng.uniform(-6, -1, 20), rng.uniform(1, 6, 20)])[:, None]
    ends, heights = climb(two_hills, points, np.array([3.0]))
    np.testing.assert_allclose(ends[:, 0], 3.0 * np.sign(points[:, 0]), atol=0.05)
    assert (heights > -0.01).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_saddle_point_is_no_mode_that_points_lead_to(seed):
    """Class 1 has one where its search begins, so flat that all prior draws are near it."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x")
        own = 0.51 * x**2 - 4.2e-6 * x**4  # with the prior: modes at ±34.5
        pm.Potential("evidence", pm.math.switch(pm.math.eq(k, 1), own, 0.0))
    found = fitted(model, "x", seed=seed)
    assert found.troubles == {}
    assert found.mixtures is not None and found.mixtures.is_mixed.tolist() == [False, True]
    modes = found.mixtures.normals.mean.reshape(2, -1)[1]
    np.testing.assert_allclose(np.sort(modes), [-34.5, 34.5], atol=0.05)


@pytest.mark.parametrize(
    ("n_values", "n_latents", "expected"), [(4_000, 2, 50), (10, 600, 11), (10**6, 2, 8)]
)
def test_there_are_fewer_draws_where_each_is_dear(n_values, n_latents, expected):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", shape=n_latents)
        pm.Normal("y", k + x.sum(), 1.0, observed=np.zeros(n_values))
    assert dispersed.affordable_draws(ClassDensity(model, k, [x])) == expected


# -- starts that are given -----------------------------------------------------------------------


def test_starts_that_are_given_lead_to_modes():
    alone = fitted(folded(), "x", n_prior_draws=0)
    assert alone.mixtures is None
    found = fitted(folded(), "x", n_prior_draws=0, starts=[{"x": -2.0}])
    assert found.mixtures is not None
    assert found.mixtures.normals.mean.min() == pytest.approx(-3.0, abs=0.02)


def test_starts_are_on_the_scale_of_the_model():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        s = pm.Gamma("s", 2.0, 1.0)
        pm.Normal("y", 0.0, s * (1 + k), observed=1.0)
    density = ClassDensity(model, k, [s])
    np.testing.assert_allclose(dispersed.given_starts(density, [{"s": 4.0}]), [[np.log(4.0)]])


@pytest.mark.parametrize(
    ("starts", "words"),
    [
        ({"x": 1.0}, "starts: got .*; give a list of mappings"),
        ([3.0], "starts: number 0 is 3.0; give a mapping"),
        ([{"x": 1.0}, {"z": 1.0}], r"starts: number 1 names \['z'\]; name latents"),
        ([{"k": 1}], r"starts: number 0 names \['k'\]; name latents"),
        ([{"x": [1.0, 2.0]}], "starts: number 0 has values of the shapes"),
        ([{"x": np.inf}], "starts: number 0, .*, is outside of the support"),
    ],
)
def test_starts_that_are_none_are_refused(starts, words):
    with pytest.raises(ValueError, match=words):
        fitted(folded(), "x", starts=starts)


@pytest.mark.parametrize("n", [-1, 2.5, True])
def test_numbers_of_prior_draws_that_are_none_are_refused(n):
    with pytest.raises(ValueError, match="n_prior_draws: got"):
        Laplace(n_prior_draws=n)


def test_a_plate_takes_no_starts():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=3)
        x = pm.Normal("x", 2.0 * k, 1.0, shape=3)
        pm.Normal("y", x, 1.0, observed=np.zeros(3))
    with pytest.raises(ValueError, match="leave out starts"):
        CarlinChib(model=model, pseudo_priors=Laplace(starts=[{"x": np.zeros(3)}]))
