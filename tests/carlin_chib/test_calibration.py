"""The whole step, seen from outside: ranks of prior draws, and the model with its index summed out.

Simulation-based calibration: if parameters are drawn from the prior and data given them, the rank
of each parameter among independent draws of its posterior is uniform.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import islice

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_mcoem.carlin_chib.chain_fits as chain_fits
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.checks import LIMIT
from tests.helpers.nested_blocks import BLOCKS, nested_model

N_RUNS, N_RANKS, THIN, TUNE = 300, 9, 12, 100

#: A right step has a smaller p once in 20,000 runs of these tests.
LEAST_P = 1e-5


def calibration_model():
    """Return a model of three overlapping classes, one latent skewed, and its data's name."""
    with pm.Model() as model:
        seen = pm.Data("seen", np.zeros(3))
        k = pm.Categorical("k", [0.5, 0.3, 0.2])
        level = pm.Normal("level", pm.math.stack([-0.5, 0.3, 1.0])[k], 0.8)
        spread = pm.Gamma("spread", pm.math.stack([3.0, 2.0, 4.0])[k], 3.0)
        pm.Normal("y", level, spread, observed=seen)
    return model


def simulate(rng):
    k = rng.choice(3, p=[0.5, 0.3, 0.2])
    level = rng.normal([-0.5, 0.3, 1.0][k], 0.8)
    spread = rng.gamma([3.0, 2.0, 4.0][k], 1 / 3)
    return k, level, spread, rng.normal(level, spread, 3)


def quantities(k, level, log_spread, y):
    """Return functions of parameters and data whose ranks are looked at."""
    log_likelihood = stats.norm.logpdf(y, level, np.exp(log_spread)).sum()
    return np.array([k, level, log_spread, log_likelihood, level * (k == 1)])


def chain_of(model, step, rng, y, draws):
    """Yield the points of a new chain after tuning."""
    with model:
        pm.set_data({"seen": y})
    step.setup_chain(rng, tune=TUNE, draws=draws)
    point = model.initial_point(0)
    for t in range(TUNE + draws):
        if t == TUNE:
            step.stop_tuning()
        point = step.step(point)[0]
        if t >= TUNE:
            yield point


def smallest_p(model, step, rng):
    """Return the least p-value of uniform ranks, over quantities, of many calibration runs."""
    ranks = []
    for _ in range(N_RUNS):
        k, level, spread, y = simulate(rng)
        draws = [
            quantities(point["k"], point["level"], point["spread_log__"], y)
            for point in islice(chain_of(model, step, rng, y, N_RANKS * THIN), THIN - 1, None, THIN)
        ]
        truth, draws = quantities(k, level, np.log(spread), y), np.array(draws)
        below, ties = (draws < truth).sum(axis=0), (draws == truth).sum(axis=0)
        # ties, as of the index, are broken at random
        ranks.append(below + rng.integers(ties + 1))
    # thirty runs to be expected at each rank
    counts = [np.bincount(r, minlength=N_RANKS + 1) for r in np.array(ranks).T]
    return min(stats.chisquare(each).pvalue for each in counts)


@pytest.fixture(autouse=True)
def without_judgement(monkeypatch):
    """Leave out the sweeps by which pseudo-priors are judged, which change no chain."""
    monkeypatch.setattr(chain_fits, "N_CHECKED", 0)


@pytest.fixture(scope="module")
def calibrated():
    model = calibration_model()
    with model:
        # classes have one mode each, for which searches from draws of the prior change no bit
        rule = Laplace(n_prior_draws=0)
        return model, CarlinChib(pseudo_priors=rule, within_class=RandomWalk(n_moves=4))


def test_ranks_are_uniform(calibrated, rng):
    assert smallest_p(*calibrated, rng) > LEAST_P


def test_ranks_of_a_wrong_step_are_not(calibrated, rng, monkeypatch):
    model, step = calibrated
    fit = step._engine.fit

    def without_normalizer(rng, others):
        found = fit(rng, others)
        return replace(found, log_normalizer=found.log_normalizer + np.array([0.0, 2.5, 0.0]))

    monkeypatch.setattr(step._engine, "fit", without_normalizer)
    assert smallest_p(model, step, rng) < LEAST_P


def test_pseudo_priors_follow_the_data_of_the_next_chain(calibrated):
    model, step = calibrated
    found = []
    for y in (-1.0, 2.0, -1.0):
        with model:
            pm.set_data({"seen": np.full(3, y)})
        step.setup_chain(np.random.default_rng(0), tune=10, draws=10)
        step.step(model.initial_point(0))
        found.append(step.chain.pseudo_priors)
    assert found[0] == found[2]
    assert found[1].mean[0, 0] > found[0].mean[0, 0] + 1.0


def test_the_summed_out_model_agrees(rng):
    """`pymc_extras.marginalize` gives the same latents and the same class probabilities."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pmx = pytest.importorskip("pymc_extras")
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.3, 0.2])
        level = pm.Normal("level", 0.0, 1.5)
        shift = pm.math.stack([-1.0, 0.5, 2.0])[k]
        pm.Normal("y", level + shift, 0.7, observed=[0.2, 0.9, 0.4])
    options = {
        "tune": 500,
        "draws": 5_000,
        "chains": 2,
        "cores": 1,
        "random_seed": int(rng.integers(2**31)),
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    with model:
        ours = pm.sample(step=CarlinChib(), **options)["posterior"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        marginal = pmx.marginalize(model, ["k"])
        with marginal:
            theirs = pm.sample(nuts_sampler="pymc", **options)
            recovered = pmx.recover_marginals(theirs, random_seed=1)
    recovered = getattr(recovered, "posterior", recovered)
    for values in (
        lambda p: p["level"].values,
        lambda p: p["level"].values ** 2,
        *(lambda p, j=j: (p["k"].values == j).astype(float) for j in range(3)),
    ):
        means = []
        for posterior in (ours, recovered):
            batches = values(posterior).reshape(50, -1).mean(axis=1)
            means.append((batches.mean(), batches.std(ddof=1) / np.sqrt(50)))
        (a, error_a), (b, error_b) = means
        assert abs(a - b) < LIMIT * np.hypot(error_a, error_b)


def test_the_nested_model_is_left_as_it_was():
    """The step adds nothing to the model that is given to it."""
    model = nested_model()
    before = [variable.name for variable in model.named_vars.values()]
    with model:
        CarlinChib(blocks=BLOCKS, within_class=None)
    assert [variable.name for variable in model.named_vars.values()] == before


# -- two models, and the odds between them ---------------------------------------------------------

N_REPLICATES = 500
X = np.linspace(-1.0, 1.0, 6)


@pytest.fixture(scope="module")
def compared():
    """Return a level, or a line with a spread of its own; each from its prior half of the time."""
    with pm.Model() as model:
        seen = pm.Data("seen", np.zeros(len(X)))
        k = pm.Categorical("k", [0.5, 0.5])
        level = pm.Normal("level", 0.0, 1.0)
        line = pm.Normal("line", 0.0, 1.0, shape=2)
        spread = pm.Gamma("spread", 3.0, 3.0)
        is_line = pm.math.eq(k, 1)
        mean = pm.math.switch(is_line, line[0] + line[1] * X, level)
        pm.Normal("y", mean, pm.math.switch(is_line, spread, 1.0), observed=seen)
        step = CarlinChib(blocks={0: [level], 1: [line, spread]})
    return model, step


def simulate_either(rng):
    if rng.random() < 0.5:
        level = rng.standard_normal()
        return 0, np.array([level, 0.0]), rng.normal(level, 1.0, len(X))
    line, spread = rng.standard_normal(2), rng.gamma(3.0, 1 / 3)
    return 1, line, rng.normal(line[0] + line[1] * X, spread)


def calibration(model, step, rng):
    """Return the largest z of the odds, and the least p-value of uniform ranks.

    Where classes and data are drawn from the prior, the class less its posterior probability has
    a mean of zero, whatever function of the data it is multiplied with. A chain's error of the
    probability has too, and only makes the standard error larger.
    """
    excess, ranks = [], []
    for _ in range(N_REPLICATES):
        k, parameters, y = simulate_either(rng)
        points = [*chain_of(model, step, rng, y, 30 * N_RANKS)]
        p = np.mean([int(point["k"]) for point in points])
        excess.append((k - p) * np.array([1.0, np.log(y.var()), np.log(np.abs(y @ X))]))
        draws = []
        for point in points[29::30]:
            own = int(point["k"])
            a, b = point["line"] if own else (float(point["level"]), 0.0)
            draws.append([own, a, b, b * y[-1]])
        truth, draws = np.array([k, *parameters, parameters[1] * y[-1]]), np.array(draws)
        below, ties = (draws < truth).sum(axis=0), (draws == truth).sum(axis=0)
        ranks.append(below + rng.integers(ties + 1))
    excess = np.array(excess)
    z = np.sqrt(len(excess)) * excess.mean(axis=0) / excess.std(axis=0, ddof=1)
    counts = [np.bincount(r, minlength=N_RANKS + 1) for r in np.array(ranks).T]
    return np.abs(z).max(), min(stats.chisquare(each).pvalue for each in counts)


@pytest.mark.slow
def test_odds_of_two_models_are_calibrated(compared, rng):
    largest_z, least_p = calibration(*compared, rng)
    assert largest_z < LIMIT
    assert least_p > LEAST_P


@pytest.mark.slow
def test_odds_without_the_normalizer_of_a_pseudo_prior_are_not(compared, rng, monkeypatch):
    model, step = compared
    fit = step._engine.fit

    def without_normalizer(rng, others):
        found = fit(rng, others)
        shift = np.array([0.0, 1.5])
        wrong = replace(found, log_normalizer=found.log_normalizer + shift)
        if found.mixtures is None:
            return wrong
        log_share = found.mixtures.log_share + shift[:, None]
        return replace(wrong, mixtures=replace(found.mixtures, log_share=log_share))

    monkeypatch.setattr(step._engine, "fit", without_normalizer)
    largest_z, least_p = calibration(model, step, rng)
    assert largest_z > LIMIT
    assert least_p < LEAST_P
