"""The odds of two models, seen from outside, over many data: calibrated, as the ranks are.

Simulation-based calibration: if parameters are drawn from the prior and data given them, the rank
of each parameter among independent draws of its posterior is uniform.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_mcoem.carlin_chib.chain_fits as chain_fits
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.checks import LIMIT

N_REPLICATES, N_RANKS, TUNE = 500, 9, 100

#: A right step has a smaller p once in 20,000 runs of these tests.
LEAST_P = 1e-5
X = np.linspace(-1.0, 1.0, 6)


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


@pytest.fixture(autouse=True)
def without_judgement(monkeypatch):
    """Leave out the sweeps by which pseudo-priors are judged, which change no chain."""
    monkeypatch.setattr(chain_fits, "N_CHECKED", 0)


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
