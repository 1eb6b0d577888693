"""A model of three classes with a block of latents each, and its exact posterior."""

from __future__ import annotations

from functools import cache

import numpy as np
import pymc as pm
from scipy import stats
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.checks import agreement
from tests.helpers.given import Given

COVARIATE = np.linspace(-1.0, 1.0, 8)
VALUES = np.array([-0.9, 0.4, -0.7, 0.3, 0.9, 0.2, 1.6, 0.8])
WEIGHTS = np.array([0.25, 0.3, 0.45])


def nested_model() -> pm.Model:
    """Level, line, or level with a spread of its own: three classes of unequal dimension.

    The first block is part of the third, and the spread's posterior is skewed.
    """
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS)
        level = pm.Normal("level", 0.0, 1.0)
        line = pm.Normal("line", 0.0, [0.8, 1.2], shape=2)
        spread = pm.Gamma("spread", 3.0, 2.0)
        center = pm.math.switch(pm.math.eq(k, 1), line[0] + line[1] * COVARIATE, level)
        pm.Normal("y", center, pm.math.switch(pm.math.eq(k, 2), spread, 1.0), observed=VALUES)
    return model


BLOCKS = {0: ["level"], 1: ["line"], 2: ["level", "spread"]}


@cache
def nested() -> pm.Model:
    """Return the one model of tests that do not change it."""
    return nested_model()


@cache
def laplace() -> Given:
    """Return a rule that hands out Laplace pseudo-priors of the model, fitted once."""
    engine = CarlinChib(model=nested(), blocks=BLOCKS)._engine
    return Given(engine.fit(np.random.default_rng(0), []))


def log_likelihood(center, spread):
    return stats.norm.logpdf(VALUES, center, spread).sum(axis=-1)


def exact() -> dict[str, np.ndarray]:
    """Return class probabilities, and means given the class of what is active there."""
    grid = np.linspace(-5.0, 5.0, 401)
    evidence, means = np.empty(3), {}

    log_p = stats.norm.logpdf(grid) + log_likelihood(grid[:, None], 1.0)
    evidence[0] = logsumexp(log_p) + np.log(grid[1] - grid[0])
    means["level", 0] = np.exp(log_p - logsumexp(log_p)) @ grid

    first, second = np.meshgrid(grid, grid, indexing="ij")
    log_p = stats.norm.logpdf(first, 0, 0.8) + stats.norm.logpdf(second, 0, 1.2)
    log_p = log_p + log_likelihood(first[..., None] + second[..., None] * COVARIATE, 1.0)
    evidence[1] = logsumexp(log_p) + 2 * np.log(grid[1] - grid[0])
    means["slope", 1] = (np.exp(log_p - logsumexp(log_p)) * second).sum()

    spreads = np.linspace(1e-3, 9.0, 601)
    first, second = np.meshgrid(grid, spreads, indexing="ij")
    log_p = stats.norm.logpdf(first) + stats.gamma.logpdf(second, 3.0, scale=0.5)
    log_p = log_p + log_likelihood(first[..., None], second[..., None])
    evidence[2] = logsumexp(log_p) + np.log(grid[1] - grid[0]) + np.log(spreads[1] - spreads[0])
    p = np.exp(log_p - logsumexp(log_p))
    means["level", 2], means["spread", 2] = (p * first).sum(), (p * second).sum()

    log_weight = evidence + np.log(WEIGHTS)
    return {"weight": np.exp(log_weight - logsumexp(log_weight)), **means}


def features(posterior, chain):
    """Return functions of one chain's draws, (n_draws, n_features), with their expectations."""
    truth = exact()
    k, level, spread = (posterior[name].values[chain] for name in ("k", "level", "spread"))
    line = posterior["line"].values[chain]
    weight = truth["weight"]
    rows = {f"k = {j}": (k == j, weight[j]) for j in range(3)}
    for name, values, j in (
        ("level", level, 0),
        ("level", level, 2),
        ("slope", line[:, 1], 1),
        ("spread", spread, 2),
    ):
        rows[f"{name} in {j}"] = (np.where(k == j, values, 0.0), weight[j] * truth[name, j])
    # Where they are off, the model's own priors.
    rows["level off"] = (np.where(k == 1, level**2, 0.0), weight[1] * 1.0)
    rows["slope off"] = (np.where(k != 1, line[:, 1] ** 2, 0.0), (1 - weight[1]) * 1.44)
    rows["spread off"] = (np.where(k != 2, spread, 0.0), (1 - weight[2]) * 1.5)
    rows["spread off, squared"] = (np.where(k != 2, spread**2, 0.0), (1 - weight[2]) * 3.0)
    values, expected = zip(*rows.values(), strict=True)
    return np.stack(values, axis=1).astype(float), np.array(expected)


def sample(step, model, rng, draws=4_000, chains=1, **options):
    """Return the draws of chains that begin where the step lets them."""
    with model:
        return pm.sample(
            step=step,
            tune=300,
            draws=draws,
            chains=chains,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            compute_convergence_checks=False,
            **options,
        )["posterior"]


def largest_z(posterior):
    worst = 0.0
    for chain in range(posterior.sizes["chain"]):
        values, expected = features(posterior, chain)
        batches = values.reshape(50, -1, values.shape[1]).mean(axis=1)
        worst = max(worst, agreement(batches, expected).largest_z)
    return worst
