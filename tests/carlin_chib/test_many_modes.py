"""Classes with many modes, or with one that few draws hit: found, or flagged as left out."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.integrate import quad

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.plate import PlateLaplace
from pymc_mcoem.carlin_chib.pseudo_priors.plate_valleys import PlateHeights, is_beyond_valley
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.density.plate import PlateDensity
from pymc_mcoem.diagnostics import ClassIndexWarning, class_index_summary
from pymc_mcoem.laplace import dispersed_starts as dispersed
from pymc_mcoem.laplace.found_modes import MAX_MODES, FoundModes
from pymc_mcoem.laplace.modes import Modes, ModeStatus
from tests.helpers.checks import LIMIT, agreement

GRID = np.linspace(-20.0, 20.0, 400_001)


def wave(frequency):
    """Return a model whose class 1 has two modes in each period of a sine."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 0.0, 2.0)
        mean = pm.math.switch(pm.math.eq(k, 0), 0.5 * x, pt.sin(frequency * x))
        pm.Normal("y", mean, 0.1, observed=0.5)
    return model


def folded(n_latents):
    """Return a model whose class 1 has two modes in each latent."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", shape=n_latents)
        mean = pm.math.switch(pm.math.eq(k, 0), 0.8 * x, pm.math.abs(x))
        pm.Normal("y", mean, 0.15, observed=np.full(n_latents, 1.5))
    return model


def fits(model, seeds, **options):
    """Return what the rule finds with each seed, compiled once."""
    density = ClassDensity(model, model["k"], [model["x"]])
    rule = Laplace(race=None, **options).compile(density, LatentGeometry())
    return [rule({}, np.random.default_rng(seed)) for seed in seeds]


def fitted(model, seed, **options):
    return fits(model, [seed], **options)[0]


def n_modes(found):
    return [1] * 2 if found.mixtures is None else np.isfinite(found.mixtures.log_share).sum(axis=1)


def some_seeds(rng, n=3):
    return rng.integers(2**31, size=n).tolist()


# -- many modes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("frequency", [5, 20])
def test_all_modes_of_a_wave_are_found(frequency, rng):
    """Twenty-one or some eighty matter; a class has the evidence of all of them."""
    prior = stats.norm.pdf(GRID, 0.0, 2.0)
    means = 0.5 * GRID, np.sin(frequency * GRID)
    exact = [0.5 * np.trapezoid(prior * stats.norm.pdf(0.5, mean, 0.1), GRID) for mean in means]
    for found in fits(wave(frequency), some_seeds(rng)):
        # what is not found is below what the last draws may add, a hundredth, and modes are bent
        np.testing.assert_allclose(np.exp(found.log_evidence), exact, rtol=0.05)
        assert (found.missed_share < 0.02).all()


def test_all_eight_modes_of_three_folded_latents_are_found(rng):
    for found in fits(folded(3), some_seeds(rng)):
        assert n_modes(found).tolist() == [1, 8]
        assert found.missed_share.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("n_latents", [6, 8, 20])
def test_modes_beyond_those_that_are_kept_are_told(n_latents, rng):
    found = fitted(folded(n_latents), *some_seeds(rng, 1))
    assert n_modes(found).tolist() == [1, MAX_MODES]
    assert found.missed_share[0] == 0.0
    # half of 64, seven eighths of 256: those are not all counted
    assert found.missed_share[1] == pytest.approx(0.5, abs=0.1) if n_latents == 6 else 1.0


def test_all_modes_that_are_given_are_kept(rng):
    corners = [{"x": list(signs)} for signs in itertools.product([-1.5, 1.5], repeat=6)]
    found = fitted(folded(6), *some_seeds(rng, 1), starts=corners)
    assert n_modes(found).tolist() == [1, 64]
    assert found.missed_share.tolist() == [0.0, 0.0]


def test_a_class_with_more_modes_than_are_kept_is_flagged(rng):
    with folded(8) as model:
        step = CarlinChib(within_class=RandomWalk(n_moves=1))
        tree = pm.sample(
            step=step,
            tune=10,
            draws=100,
            chains=2,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
    assert model["k"] in model.free_RVs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        summary = class_index_summary(tree, "k")
    (flag,) = (flag for flag in summary.flags if "more modes" in flag)
    assert flag.startswith("class 1 has more modes than its pseudo-prior holds: in 2 of 2 chains")
    assert "starts=" in flag and "symmetry" in flag


def test_a_class_with_one_mode_is_searched_as_often_as_ever(rng, monkeypatch):
    """Also if no end of a climb is known to be near it, as with many latents."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0 * k, 1.0, shape=2)
        pm.Normal("y", x, 1.0, observed=[1.0, 2.0])
    climbed, climb = [], dispersed.climb

    def counted(evaluate, points, *rest):
        climbed.append(len(points))
        return climb(evaluate, points, *rest)

    searched, add = [], dispersed.DispersedSearch._add
    monkeypatch.setattr(
        dispersed.DispersedSearch, "_add", lambda *of: searched.append(1) or add(*of)
    )
    monkeypatch.setattr(dispersed, "climb", counted)
    fitted(model, *some_seeds(rng, 1))
    assert (climbed, len(searched)) == ([24, 24], 0)
    monkeypatch.setattr(
        FoundModes, "explain", lambda self, ends, _: np.zeros(len(ends), dtype=bool)
    )
    found = fitted(model, *some_seeds(rng, 1))
    assert (climbed[2:], len(searched)) == ([24, 24], 2 * 6)
    assert found.missed_share.tolist() == [0.0, 0.0]


# -- a search that stops short ---------------------------------------------------------------------


def test_a_density_has_the_same_modes_however_it_is_written(rng):
    """Two means that may change places: a search from between them crosses a long saddle."""
    y, sd = np.array([-2.1, -1.9, -2.0, 2.0, 2.1, 1.9, 2.05]), 0.4
    found = {}
    for is_naive in (True, False):
        with pm.Model() as model:
            k = pm.Categorical("k", [0.5, 0.5])
            x = pm.Normal("x", 0.0, 3.0, shape=2)
            logs = [-0.5 * ((y - x[i]) / sd) ** 2 - np.log(sd * np.sqrt(8 * np.pi)) for i in (0, 1)]
            both = pt.log(pt.exp(logs[0]) + pt.exp(logs[1])) if is_naive else pt.logaddexp(*logs)
            one = pt.sum(pm.logp(pm.Normal.dist(x[0], 2.0), y))
            pm.Potential("likelihood", pm.math.switch(pm.math.eq(k, 0), one, both.sum()))
        found[is_naive] = fitted(model, *some_seeds(rng, 1))
    for each in found.values():
        assert n_modes(each).tolist() == [1, 2]
    np.testing.assert_allclose(found[True].log_evidence, found[False].log_evidence, atol=1e-3)


def at(place, status=ModeStatus.CONVERGED, height=0.0):
    one = np.ones((1, 1, 1))
    zero = np.zeros(1)
    return Modes(np.array([[place]]), one, one, zero + height, zero, zero, (status,))


def test_a_mode_that_the_first_search_just_missed_is_kept():
    modes = FoundModes(at(2.9, ModeStatus.NOT_CONVERGED, height=-0.005))
    assert modes.add(at(3.0))
    assert not modes.add(at(3.1))
    assert modes.add(at(-3.0))
    assert not modes.add(at(9.0, height=-20.0))
    assert not modes.add(at(20.0, ModeStatus.INDEFINITE))
    kept = modes.best(np.zeros(0), 0.0)
    np.testing.assert_array_equal(kept.mean[:, 0], [3.0, -3.0])
    assert kept.missed_share == pytest.approx(0.0, abs=1e-8)


def test_points_that_lead_elsewhere_are_weighed_as_the_modes_are():
    modes = FoundModes(at(0.0))
    assert modes.best(np.array([0.0]), 0.0).missed_share == pytest.approx(0.5)
    assert modes.best(np.array([-8.0]), 0.0).missed_share == 0.0
    assert modes.best(np.zeros(0), 0.25).missed_share == pytest.approx(0.2)
    assert modes.best(np.zeros(0), 0.25, is_countable=False).missed_share == 1.0


# -- plates ----------------------------------------------------------------------------------------


def lopsided(n_rows):
    """Return a plate whose class 1 has a mode on which a draw in twelve begins, a quarter of it."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.15, 0.85], shape=n_rows)
        x = pm.Normal("x", 1.4, 1.0, shape=n_rows)
        bent = pt.switch(x < 0, -x, 3.0 * x)
        mean = pm.math.switch(pm.math.eq(k, 0), 0.9 * x, bent)
        pm.Normal("y", mean, 0.1, observed=np.full(n_rows, 0.9))
    return model


def plate_search(model):
    return PlateLaplace(PlateDensity(model, model["k"], [model["x"]]))


def test_a_mode_of_rows_that_few_draws_hit_is_found(rng):
    search = plate_search(lopsided(2))
    prior = stats.norm.pdf(GRID, 1.4, 1.0)
    bent = np.where(GRID < 0, -GRID, 3.0 * GRID)
    exact = 0.85 * np.trapezoid(prior * stats.norm.pdf(0.9, bent, 0.1), GRID)
    for seed in some_seeds(rng, 10):
        found = search([], np.random.default_rng(seed))
        assert found.is_mixed.tolist() == [[False] * 2, [True] * 2]
        # a normal, cut off nowhere near
        np.testing.assert_allclose(np.exp(found.log_evidence[1]), exact, rtol=1e-3)
        assert (found.missed_share == 0.0).all()


def test_rows_with_one_mode_are_searched_as_often_as_ever(rng, monkeypatch):
    y = rng.normal(size=20)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=20)
        x = pm.StudentT("x", nu=4, mu=2.0 * k - 1.0, sigma=0.8, shape=20)
        pm.Normal("y", x, 0.8, observed=y)
    search = plate_search(model)
    asked, of_rows = [], search._search
    monkeypatch.setattr(search, "_search", lambda j, *rest: asked.append(j) or of_rows(j, *rest))
    found = search([], rng)
    assert asked == [0] * 5 + [1] * 5
    assert not found.is_mixed.any() and not found.missed_share.any()


def test_rows_with_more_modes_than_are_searched_for_are_told(rng):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=3)
        x = pm.Normal("x", 0.0, 2.0, shape=3)
        mean = pm.math.switch(pm.math.eq(k, 0), 0.5 * x, pt.sin(20.0 * x))
        pm.Normal("y", mean, 0.1, observed=np.full(3, 0.5))
    found = plate_search(model)([], rng)
    assert (found.missed_share[0] == 0.0).all() and (found.missed_share[1] > 0.1).all()
    assert found != replace(found, missed_share=np.zeros_like(found.missed_share))


def test_valleys_are_between_hills_alone():
    """Heights of a plate of two rows, |x| = 1 and x = 1, from places and to x = 1."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=2)
        x = pm.Normal("x", 0.0, 2.0, shape=2)
        mean = pt.switch(np.array([True, False]), pm.math.abs(x), x) + 0.0 * k
        pm.Normal("y", mean, 0.1, observed=np.ones(2))
    heights = PlateHeights(PlateDensity(model, model["k"], [model["x"]]))
    points = np.repeat([-4.0, -1.0, -0.2, 0.4, 1.0, 5.0], 2).reshape(6, 2, 1)
    at_points = heights(0, points, [])
    found = is_beyond_valley(heights, 0, points, at_points, np.ones((2, 1)), [])
    np.testing.assert_array_equal(found[:, 0], [True, True, True, False, False, False])
    assert not found[:, 1].any()


def test_a_row_far_out_in_heavy_tails_has_all_its_classes(rng):
    """The hill at the datum is the tip of a cusp, where the search ends in one class only."""
    y, weights = np.array([-10.0, 0.5]), np.array([0.5, 0.3, 0.2])
    centers, spreads, noise = np.array([-0.5, 0.4, 1.0]), np.array([1.0, 0.4, 0.3]), 0.8
    with pm.Model() as model:
        k = pm.Categorical("k", weights, shape=2)
        center, spread = (pm.math.stack(list(each))[k] for each in (centers, spreads))
        x = pm.Cauchy("x", center, spread, shape=2)
        pm.Laplace("y", x, noise, observed=y, shape=2)
        step = CarlinChib(within_class=RandomWalk(n_moves=3))
    step.setup_chain(rng, 0, 4_000)
    point, drawn = model.initial_point(0), []
    for _ in range(4_000):
        point, _ = step.step(point)
        drawn.append(point["k"])
    exact = np.zeros((2, 3))
    for row, j in np.ndindex(2, 3):

        def joint(x, row=row, j=j):
            prior = stats.cauchy.pdf(x, centers[j], spreads[j])
            return weights[j] * prior * stats.laplace.pdf(y[row], x, noise)

        ends = np.sort([-60.0, y[row], centers[j], 60.0])
        exact[row, j] = sum(quad(joint, *pair, limit=200)[0] for pair in itertools.pairwise(ends))
    exact /= exact.sum(axis=1, keepdims=True)
    assert exact[0].min() > 0.02
    visits = (np.array(drawn)[..., None] == np.arange(3)).reshape(40, 100, 6).mean(axis=1)
    assert agreement(visits, exact.ravel()).largest_z < LIMIT, visits.mean(axis=0)
