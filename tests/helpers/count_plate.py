"""A plate of six counts in three classes, its exact posterior, and chains held to it."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats
from scipy.special import logsumexp

from tests.helpers.checks import agreement

WEIGHTS = np.array([0.5, 0.3, 0.2])
LOG_RATE, LOG_SPREAD = np.array([-0.5, 0.6, 1.4]), np.array([0.9, 0.5, 0.7])
CENTER = np.array([[-0.5, 0.0], [0.6, 0.4], [0.3, -0.9]])
COUNTS = np.array([0, 1, 2, 3, 5, 9])
PLACES = np.array([[-0.4, 0.1], [0.2, 0.2], [0.5, 0.6], [0.2, -0.7], [0.9, 0.3], [-1.0, -1.1]])
N_ROWS = len(COUNTS)


def counts_model() -> pm.Model:
    """Counts with a log-rate (a skewed posterior) and a place in the plane, by class."""
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS, shape=N_ROWS)
        log_rate, log_spread, center = map(pt.constant, (LOG_RATE, LOG_SPREAD, CENTER))
        rate = pm.LogNormal("rate", log_rate[k], log_spread[k], shape=N_ROWS)
        place = pm.Normal("place", center[k], 0.6, shape=(N_ROWS, 2))
        pm.Poisson("count", rate, observed=COUNTS)
        pm.Normal("seen", place, 0.8, observed=PLACES)
    return model


def exact() -> tuple[np.ndarray, np.ndarray]:
    """Return P(k_i = j) and E[rate_i 1(k_i = j)], each (n_rows, 3)."""
    grid = np.linspace(-6.0, 6.0, 4_001)
    log_p = stats.norm.logpdf(grid[:, None], LOG_RATE, LOG_SPREAD)[None]
    log_p = log_p + stats.poisson.logpmf(COUNTS[:, None, None], np.exp(grid)[None, :, None])
    apart = np.sqrt(0.6**2 + 0.8**2)
    log_p = log_p + stats.norm.logpdf(PLACES[:, None, None], CENTER, apart).sum(axis=-1)
    log_p = log_p + np.log(WEIGHTS)
    p = np.exp(log_p - logsumexp(log_p, axis=(1, 2), keepdims=True))
    return p.sum(axis=1), (p * np.exp(grid)[None, :, None]).sum(axis=1)


def largest_z(step, model, rng, draws=3_000, chains=1) -> float:
    """Return by how many errors a mean of a chain is off, at most, over chains and rows."""
    with model:
        posterior = pm.sample(
            step=step,
            tune=200,
            draws=draws,
            chains=chains,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            compute_convergence_checks=False,
        )["posterior"]
    weight, rate = exact()
    worst = 0.0
    for chain in range(chains):
        member = posterior["k"].values[chain][:, :, None] == np.arange(3)
        values = np.concatenate([member, member * posterior["rate"].values[chain][..., None]], 2)
        batches = values.reshape(50, -1, N_ROWS * 6).mean(axis=1)
        expected = np.concatenate([weight, rate], axis=1).ravel()
        worst = max(worst, agreement(batches, expected).largest_z)
    return worst
