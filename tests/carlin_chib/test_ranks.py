"""Ranks of prior draws among draws of the whole step, in the shapes and variants that it has.

Parameters are drawn from the prior and data given them, by NumPy; then the rank of each function of
parameters and data among draws of its posterior is uniform. Kernels that are wrong on purpose fail
by the very same function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytest
from pymc.step_methods.compound import CompoundStep
from scipy import stats

import pymc_mcoem.carlin_chib.chain_fits as chain_fits
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.step import CarlinChib

N_RANKS, TUNE = 9, 40

#: Searches from draws of the prior take most of the time of a short chain, and where classes have
#: one mode each they change no bit.
ONE_SEARCH = Laplace(n_prior_draws=0)

#: A right step has a smaller p once in 2,000 runs of these tests: five, each of ten at most.
LEAST_P = 1e-5


@pytest.fixture(autouse=True)
def without_judgement(monkeypatch):
    """Leave out the sweeps by which pseudo-priors are judged, which change no chain."""
    monkeypatch.setattr(chain_fits, "N_CHECKED", 0)


@dataclass(frozen=True)
class Case:
    """A model, its step method, and its prior written a second time.

    Attributes
    ----------
    model : pymc.Model
        Its data are called "seen".
    step : CarlinChib
    sweep : CarlinChib or CompoundStep
        What makes a draw: the step, with NUTS where there are hyperparameters.
    simulate : callable
        Of a generator: a point of the prior, by value-variable name, and data given it.
    quantities : callable
        Of point and data: what is ranked, ``(n_quantities,)``.
    thin : int
        Sweeps between ranked draws, so many that these are nearly independent.
    n_runs : int
        Prior draws; fifteen to be expected at each rank, or more.
    """

    model: pm.Model
    step: CarlinChib
    sweep: Any
    simulate: Callable[[np.random.Generator], tuple[dict[str, Any], np.ndarray]]
    quantities: Callable[[dict[str, Any], np.ndarray], np.ndarray]
    thin: int
    n_runs: int = 200


def smallest_p(case: Case, rng: np.random.Generator) -> float:
    """Return the least p-value of uniform ranks, over quantities, of many calibration runs."""
    ranks, start = [], case.model.initial_point(0)
    for _ in range(case.n_runs):
        truth, seen = case.simulate(rng)
        with case.model:
            pm.set_data({"seen": seen})
        draws = N_RANKS * case.thin
        case.sweep.setup_chain(rng, TUNE, draws)
        if isinstance(case.sweep, CompoundStep):
            case.sweep.reset_tuning()
        point = start
        found = []
        for t in range(TUNE + draws):
            if t == TUNE:
                case.sweep.stop_tuning()
            point = case.sweep.step(point)[0]
            if t >= TUNE and (t - TUNE) % case.thin == case.thin - 1:
                found.append(case.quantities(point, seen))
        true = case.quantities(truth, seen)
        below, ties = (found < true).sum(axis=0), (found == true).sum(axis=0)
        # ties, as of an index, are broken at random
        ranks.append(below + rng.integers(ties + 1))
    counts = [np.bincount(r, minlength=N_RANKS + 1) for r in np.array(ranks).T]
    return float(min(stats.chisquare(each).pvalue for each in counts))


def without_normalizer(case, monkeypatch):
    """Leave the normalizing constants of the pseudo-priors out of the weights."""
    fit = case.step._engine.fit

    def fitted(rng, others):
        found = fit(rng, others)
        return replace(found, log_normalizer=np.zeros_like(found.log_normalizer))

    monkeypatch.setattr(case.step._engine, "fit", fitted)


def at_the_last_fit(case, monkeypatch):
    """Keep to the hyperparameters for which the pseudo-priors were last fitted."""
    step, others, kept = case.step, case.step._density.others, {}

    def values(point):
        if step.chain.pseudo_priors is None or step.chain._must_refit(step.tune):
            kept["values"] = others(point)
        return kept["values"]

    monkeypatch.setattr(step._density, "others", values)


# -- latents that all classes share ----------------------------------------------------------------

PLAIN_WEIGHTS, LEVELS = np.array([0.5, 0.3, 0.2]), np.array([-0.5, 0.3, 1.0])
SHAPES = np.array([3.0, 2.0, 4.0])


@pytest.fixture(scope="module")
def plain():
    """Three classes that overlap, and two latents, one skewed."""
    with pm.Model() as model:
        seen = pm.Data("seen", np.zeros(3))
        k = pm.Categorical("k", PLAIN_WEIGHTS)
        level = pm.Normal("level", pm.math.stack(list(LEVELS))[k], 0.8)
        spread = pm.Gamma("spread", pm.math.stack(list(SHAPES))[k], 3.0)
        pm.Normal("y", level, spread, observed=seen)
        step = CarlinChib(pseudo_priors=ONE_SEARCH, within_class=RandomWalk(n_moves=4))

    def simulate(rng):
        k = rng.choice(3, p=PLAIN_WEIGHTS)
        level, spread = rng.normal(LEVELS[k], 0.8), rng.gamma(SHAPES[k], 1 / 3)
        point = {"k": k, "level": level, "spread_log__": np.log(spread)}
        return point, rng.normal(level, spread, size=3)

    def quantities(point, seen):
        k, level, log_spread = (float(point[name]) for name in ("k", "level", "spread_log__"))
        log_p = stats.norm.logpdf(seen, level, np.exp(log_spread)).sum()
        return np.array([k, level, log_spread, log_p, level * (k == 1)])

    return Case(model, step, step, simulate, quantities, thin=12, n_runs=300)


# by default frozen auxiliaries stand for latents that are shared, and `test_variants` has others
@pytest.mark.slow
def test_shared_latents(plain, rng):
    assert smallest_p(plain, rng) > LEAST_P


@pytest.mark.slow
def test_shared_latents_without_the_constant_of_one_class_fail(plain, rng, monkeypatch):
    fit = plain.step._engine.fit

    def without_one(rng, others):
        found = fit(rng, others)
        return replace(found, log_normalizer=found.log_normalizer + np.array([0.0, 2.5, 0.0]))

    monkeypatch.setattr(plain.step._engine, "fit", without_one)
    assert smallest_p(plain, rng) < LEAST_P


def test_pseudo_priors_follow_the_data_of_the_next_chain(plain):
    found = []
    for y in (-1.0, 2.0, -1.0):
        with plain.model:
            pm.set_data({"seen": np.full(3, y)})
        plain.step.setup_chain(np.random.default_rng(0), tune=10, draws=10)
        plain.step.step(plain.model.initial_point(0))
        found.append(plain.step.chain.pseudo_priors)
    assert found[0] == found[2]
    assert found[1].mean[0, 0] > found[0].mean[0, 0] + 1.0


# -- nested blocks ------------------------------------------------------------------------------

PLACES = np.linspace(-1.0, 1.0, 6)
BLOCK_WEIGHTS = np.array([0.15, 0.2, 0.3, 0.35])


def curve(level, slope, spread, k):
    """Return mean and spread of the data in class k: nothing, level, line, line with a spread."""
    return level * (k > 0) + slope * PLACES * (k > 1), spread if k == 3 else 1.0


@pytest.fixture(scope="module")
def nested():
    """Four classes with 0, 1, 2 and 3 latents, each block part of the next."""
    with pm.Model() as model:
        seen = pm.Data("seen", np.zeros(len(PLACES)))
        k = pm.Categorical("k", BLOCK_WEIGHTS)
        level, slope = pm.Normal("level", 0.5, 1.5), pm.Normal("slope", -0.5, 2.0)
        spread = pm.Gamma("spread", 3.0, 5.0)
        switch, has = pm.math.switch, pm.math.ge
        center = switch(has(k, 1), level, 0.0) + switch(has(k, 2), slope, 0.0) * PLACES
        pm.Normal("y", center, switch(has(k, 3), spread, 1.0), observed=seen)
        step = CarlinChib(
            blocks={0: [], 1: [level], 2: [level, slope], 3: [level, slope, spread]},
            pseudo_priors=ONE_SEARCH,
            within_class=RandomWalk(n_moves=5),
        )

    def simulate(rng):
        k = rng.choice(4, p=BLOCK_WEIGHTS)
        level, slope, spread = rng.normal(0.5, 1.5), rng.normal(-0.5, 2.0), rng.gamma(3.0, 1 / 5)
        point = {"k": k, "level": level, "slope": slope, "spread_log__": np.log(spread)}
        return point, rng.normal(*curve(level, slope, spread, k), size=len(PLACES))

    def quantities(point, seen):
        k, level, slope = int(point["k"]), float(point["level"]), float(point["slope"])
        log_spread = float(point["spread_log__"])
        log_p = stats.norm.logpdf(seen, *curve(level, slope, np.exp(log_spread), k)).sum()
        # what is off as well, of which the trace promises draws of its prior
        on, off = (level * (k > 0), slope * (k > 1), log_spread * (k > 2)), (slope * (k < 2),)
        return np.array([k, level, slope, log_spread, log_p, *on, *off, log_spread * (k < 3)])

    return Case(model, step, step, simulate, quantities, thin=8, n_runs=150)


def test_blocks_of_unequal_dimension(nested, rng):
    assert smallest_p(nested, rng) > LEAST_P


@pytest.mark.slow
def test_blocks_without_the_pseudo_priors_constants_fail(nested, rng, monkeypatch):
    without_normalizer(nested, monkeypatch)
    assert smallest_p(nested, rng) < LEAST_P


def test_what_is_off_drawn_from_a_pseudo_prior_fails(nested, rng, monkeypatch):
    """Of the largest class, where all is on."""
    step = nested.step

    def from_pseudo_prior(class_index, position, others, rng):
        all_on = step.chain.pseudo_priors.mean[3], step.chain.pseudo_priors.scale[3]
        drawn = all_on[0] + all_on[1] @ rng.standard_normal(len(position))
        return np.where(step._density.active[class_index], position, drawn)

    monkeypatch.setattr(step._engine, "_inactive", from_pseudo_prior)
    assert smallest_p(nested, rng) < LEAST_P


# -- a plate beside hyperparameters --------------------------------------------------------------

N_ROWS = 8
ROW_WEIGHTS, ROW_CENTERS = np.array([0.5, 0.3, 0.2]), np.array([-1.2, 0.4, 1.6])
ROW_SCALES = np.array([1.0, 0.4, 1.6])


@pytest.fixture(scope="module")
def plate():
    """A common shift and a common spread of all rows' latents, moved by NUTS."""
    with pm.Model() as model:
        seen = pm.Data("seen", np.zeros(N_ROWS))
        shift = pm.Normal("shift", 0.3, 0.8)
        spread = pm.Gamma("spread", 8.0, 16.0)
        k = pm.Categorical("k", ROW_WEIGHTS, shape=N_ROWS)
        center, scale = (pm.math.stack(list(each))[k] for each in (ROW_CENTERS, ROW_SCALES))
        x = pm.Normal("x", shift + center, spread * scale, shape=N_ROWS)
        pm.Normal("y", x, 0.3, observed=seen, shape=N_ROWS)
        step = CarlinChib(within_class=RandomWalk(n_moves=3))
        sweep = CompoundStep([step, pm.NUTS([shift, spread])])

    def simulate(rng):
        shift, spread = rng.normal(0.3, 0.8), rng.gamma(8.0, 1 / 16)
        k = rng.choice(3, p=ROW_WEIGHTS, size=N_ROWS)
        x = rng.normal(shift + ROW_CENTERS[k], spread * ROW_SCALES[k])
        point = {"shift": shift, "spread_log__": np.log(spread), "k": k, "x": x}
        return point, rng.normal(x, 0.3)

    def quantities(point, seen):
        k, x = point["k"], point["x"]
        log_p = stats.norm.logpdf(seen, x, 0.3).sum()
        common = float(point["shift"]), float(point["spread_log__"])
        counts = np.bincount(k, minlength=3)
        return np.array([*common, *counts, k[0], x[0], x.sum(), log_p, common[0] * k[1]])

    return Case(model, step, sweep, simulate, quantities, thin=8)


# by default frozen auxiliaries stand for hyperparameters, and `test_step_statistics` for a plate
@pytest.mark.slow
def test_a_plate_beside_hyperparameters(plate, rng):
    assert smallest_p(plate, rng) > LEAST_P


@pytest.mark.slow
def test_a_plate_without_the_pseudo_priors_constants_fails(plate, rng, monkeypatch):
    without_normalizer(plate, monkeypatch)
    assert smallest_p(plate, rng) < LEAST_P


@pytest.mark.slow
def test_a_plate_that_does_not_follow_its_hyperparameters_fails(plate, rng, monkeypatch):
    at_the_last_fit(plate, monkeypatch)
    assert smallest_p(plate, rng) < LEAST_P


# -- frozen auxiliaries beside a hyperparameter ----------------------------------------------------

FROZEN_WEIGHTS, FROZEN_CENTERS = np.array([0.25, 0.5, 0.25]), np.array([-0.8, 0.3, 1.0])
FROZEN_SPREADS, TIGHT_SPREADS = np.array([0.9, 0.4, 0.6]), np.array([1.0, 0.1, 0.6])
FROZEN_NOISE = np.array([1.2, 1.5])


class Wide:
    """A rule: Laplace approximations of one and a half times their width, which fit no class."""

    def compile(self, density, geometry, mode=None):
        laplace = Laplace(race=None, n_prior_draws=0).compile(density, geometry, mode)

        def rule(data, rng, others=()):
            found = laplace(data, rng, others)
            return replace(
                found,
                scale=1.5 * found.scale,
                whiten=found.whiten / 1.5,
                log_normalizer=found.log_normalizer - np.log(1.5),
            )

        return rule


def frozen_case(model, step, sweep, spreads):
    """Return a case of the model below, with its data "spreads" as given."""

    def simulate(rng):
        drift, k = rng.normal(), rng.choice(3, p=FROZEN_WEIGHTS)
        x = rng.normal(drift + FROZEN_CENTERS[k], spreads[k])
        return {"drift": drift, "k": k, "x": x}, rng.normal([x, drift], FROZEN_NOISE)

    def quantities(point, seen):
        k, x, drift = int(point["k"]), float(point["x"]), float(point["drift"])
        log_p = stats.norm.logpdf(seen, [x, drift], FROZEN_NOISE).sum()
        away = x - drift
        return np.array([k, k == 1, x, drift, log_p, *(away * (k == j) for j in range(3))])

    return Case(model, step, sweep, simulate, quantities, thin=8, n_runs=150)


@pytest.fixture(scope="module")
def frozen():
    """A drift that the latent's prior follows in every class, moved by NUTS."""
    with pm.Model() as model:
        seen, spreads = pm.Data("seen", np.zeros(2)), pm.Data("spreads", FROZEN_SPREADS)
        drift = pm.Normal("drift", 0.0, 1.0)
        k = pm.Categorical("k", FROZEN_WEIGHTS)
        x = pm.Normal("x", pm.math.stack(list(FROZEN_CENTERS))[k] + drift, spreads[k])
        pm.Normal("y", pm.math.stack([x, drift]), FROZEN_NOISE, observed=seen)
        step = CarlinChib(
            [k, x],
            pseudo_priors=Wide(),
            within_class=RandomWalk(n_moves=2),
            auxiliaries="frozen",
        )
        sweep = CompoundStep([step, pm.NUTS([drift])])
    return frozen_case(model, step, sweep, FROZEN_SPREADS)


@pytest.fixture
def tight(frozen):
    """The same with a class so tight that its latent must follow the drift closely."""
    with frozen.model:
        pm.set_data({"spreads": TIGHT_SPREADS})
        yield frozen_case(frozen.model, frozen.step, frozen.sweep, TIGHT_SPREADS)
        pm.set_data({"spreads": FROZEN_SPREADS})


def test_frozen_auxiliaries_beside_a_hyperparameter(frozen, rng):
    assert smallest_p(frozen, rng) > LEAST_P


@pytest.mark.slow
def test_a_step_that_does_not_follow_its_hyperparameter_fails(tight, rng, monkeypatch):
    at_the_last_fit(tight, monkeypatch)
    assert smallest_p(tight, rng) < LEAST_P


@pytest.mark.slow
@pytest.mark.parametrize("is_standardized", [True, False])
def test_frozen_auxiliaries_follow_pseudo_priors_that_follow_a_hyperparameter(
    tight, rng, monkeypatch, is_standardized
):
    """Pseudo-priors may be refitted at every sweep if auxiliaries are kept standardized only."""
    step, fit = tight.step, tight.step._engine.fit

    def refitted(rng, others):
        found, before = fit(rng, others), step.chain.pseudo_priors
        if not is_standardized and before is not None:
            kept = before.mean + np.einsum(
                "jab,jb->ja", before.scale, step.chain.frozen_auxiliaries
            )
            step.chain.frozen_auxiliaries = np.einsum("jab,jb->ja", found.whiten, kept - found.mean)
        return found

    monkeypatch.setattr(step._engine, "fit", refitted)
    monkeypatch.setattr(step.chain, "_must_refit", lambda tune: True)
    p = smallest_p(tight, rng)
    assert p > LEAST_P if is_standardized else p < LEAST_P
