"""Carlin-Chib in plain NumPy on normal classes, with pseudo-priors as good or bad as one likes."""

from __future__ import annotations

import numpy as np


def toy_carlin_chib(rng, n_chains, n_draws, evidence, mean, spread, start=0):
    """Sample a class index whose class j has evidence Z_j and posterior Normal(0, 1) of a latent.

    Parameters
    ----------
    evidence : sequence of float, or one for each chain
    mean, spread : sequence of float
        Of the pseudo-priors; 0 and 1 are perfect.
    start : int or sequence of int
        Class in which each chain starts.

    Returns
    -------
    codes : ndarray of shape (n_chains, n_draws)
    log_weight : ndarray of shape (n_chains, n_draws, n_classes)
        Normalized.
    latent : ndarray of shape (n_chains, n_draws, n_classes)
        Posterior draws in the active class, pseudo-prior draws elsewhere.
    log_ratio : ndarray of shape (n_chains, n_draws, n_classes)
        Of target over pseudo-prior; NaN where the class was active before the sweep.
    """
    mean, spread = np.asarray(mean, dtype=float), np.asarray(spread, dtype=float)
    n_classes = len(mean)
    shape = (n_chains, n_draws)
    codes = np.empty(shape, dtype=np.int64)
    log_weight, latent, log_ratio = (np.empty((*shape, n_classes)) for _ in range(3))
    chains, log_evidence = np.arange(n_chains), np.log(evidence)
    active = np.broadcast_to(start, n_chains).copy()
    x = rng.standard_normal(n_chains)
    for t in range(n_draws):
        u = rng.normal(mean, spread, size=(n_chains, n_classes))
        u[chains, active] = x
        # of one normal density to another, by hand: SciPy's take most of the time
        ratio = log_evidence + np.log(spread) + 0.5 * (((u - mean) / spread) ** 2 - u**2)
        weight = ratio - np.logaddexp.reduce(ratio, axis=1)[:, None]
        ratio[chains, active] = np.nan
        threshold = rng.random((n_chains, 1))
        active = (np.exp(weight).cumsum(axis=1) < threshold).sum(axis=1).clip(max=n_classes - 1)
        x = rng.standard_normal(n_chains)
        u[chains, active] = x
        codes[:, t], log_weight[:, t], latent[:, t], log_ratio[:, t] = active, weight, u, ratio
    return codes, log_weight, latent, log_ratio
