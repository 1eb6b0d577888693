"""Published models whose evidences are integrals over up to four dimensions.

They are written as in `published_models.py`. Those of galaxies are computed on grids of nodes, and
those of a robust regression by importance sampling, without the package.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from published_models import PublishedModel, nodes, probabilities
from scipy import stats
from scipy.special import logsumexp

GALAXIES = (
    np.array(
        """
        9172 9350 9483 9558 9775 10227 10406 16084 16170 18419 18552 18600 18927 19052 19070 19330
        19343 19349 19440 19473 19529 19541 19547 19663 19846 19856 19863 19914 19918 19973 19989
        20166 20175 20179 20196 20215 20221 20415 20629 20795 20821 20846 20875 20986 21137 21492
        21701 21814 21921 21960 22185 22209 22242 22249 22314 22374 22495 22746 22747 22888 22914
        23206 23241 23263 23484 23538 23542 23666 23706 23711 24129 24285 24289 24366 24717 24990
        25633 26960 26995 32065 32789 34279
        """.split(),
        dtype=float,
    )
    / 1000
)
"""Velocities of 82 galaxies near Corona Borealis, in 1,000 km/s (Roeder 1990)."""

SPREAD = 3.5
"""Standard deviation of each component of the galaxies' velocities."""


def galaxies(n_nodes: int = 24) -> PublishedModel:
    """Return one to four equally heavy normals of one known spread, with the lowest mean and gaps.

    A mixture has as many modes as its components have orders. Gaps between means leave one order.
    """
    blocks = {}
    with pm.Model() as model:
        k = pm.Categorical("k", np.full(4, 0.25))
        parts = []
        for j in range(4):
            means = pm.Normal(f"lowest_{j}", 15, 5)[None]
            blocks[j] = [f"lowest_{j}"]
            if j:
                gaps = pm.Exponential(f"gaps_{j}", scale=6, shape=j)
                blocks[j].append(f"gaps_{j}")
                means = pt.concatenate([means, means + pt.cumsum(gaps)])
            each = pm.logp(pm.Normal.dist(means, SPREAD), GALAXIES[:, None])
            parts.append(pm.math.logsumexp(each, axis=1).sum() - len(GALAXIES) * np.log(j + 1))
        pm.Potential(
            "velocities", sum(pm.math.switch(pm.math.eq(k, j), parts[j], 0.0) for j in range(4))
        )
    log_evidence = np.array([galaxy_evidence(j + 1, n_nodes) for j in range(4)])
    return PublishedModel(
        "Roeder 1990, one to four components",
        model,
        {"k": probabilities(log_evidence, np.full(4, 0.25))},
        {"k": blocks},
        log_evidence,
    )


def galaxy_evidence(n_components: int, n_nodes: int) -> float:
    """Return the log-evidence of a mixture of `n_components` normals, by quadrature.

    There are `n_nodes` in each dimension of four components, and more where they cost little.
    """
    n_nodes *= {1: 8, 2: 4, 3: 2, 4: 1}[n_components]
    lowest, weight = nodes(2.0, 28.0 - 2 * n_components, n_nodes)
    weight = weight + stats.norm.logpdf(lowest, 15, 5)
    gaps, gap_weight = nodes(0.0, 32.0 - 4 * n_components, n_nodes)
    gap_weight = gap_weight + stats.expon.logpdf(gaps, scale=6)
    found = []
    # the last gap is left to an inner sum, and the others are a loop
    for places in itertools.product(range(n_nodes), repeat=max(n_components - 2, 0)):
        means = lowest[:, None]
        log_p = weight
        if n_components > 1:
            first = lowest + 0.0
            inner = [first]
            for place in places:
                inner.append(inner[-1] + gaps[place])
            log_p = weight + sum(gap_weight[place] for place in places)
            ends = inner[-1][:, None] + gaps
            means = np.stack([*np.broadcast_arrays(*(each[:, None] for each in inner), ends)], -1)
            log_p = log_p[:, None] + gap_weight
        # (..., n_galaxies, n_components), summed over components
        density = np.exp(-0.5 * ((GALAXIES[:, None] - means[..., None, :]) / SPREAD) ** 2)
        with np.errstate(divide="ignore"):
            log_p = log_p + np.log(density.sum(axis=-1)).sum(axis=-1)
        found.append(logsumexp(log_p))
    constant = np.log(n_components * SPREAD) + 0.5 * np.log(2 * np.pi)
    return float(logsumexp(found) - len(GALAXIES) * constant)


# -- robust regression -----------------------------------------------------------------------------

#: Columns of the regressors in each of the models; the last two go in and out together.
SUBSETS = [[0], [0, 1], [0, 2, 3], [0, 1, 2, 3]]
#: Log-evidences that the authors report, means of eleven runs of sequential Monte Carlo. They leave
#: out a constant of each of the 80 responses.
BY_SMC = np.array([-143.308, -142.744, -141.905, -140.897]) - 80 * np.log(2 * np.sqrt(2 * np.pi))


def robust_data() -> tuple[np.ndarray, np.ndarray]:
    """Return four regressors (n, 4), the first constant, and responses (n,) with outliers."""
    table = np.loadtxt(Path(__file__).with_name("robust_regression.csv"), delimiter=",")
    return np.column_stack([np.ones(len(table)), table[:, 1:]]), table[:, 0]


def log_robust(residuals: np.ndarray) -> np.ndarray:
    """Return the log-density of errors, of which one half are ten times as wide."""
    found: np.ndarray = np.logaddexp(
        stats.norm.logpdf(residuals), stats.norm.logpdf(residuals, 0, 10)
    ) - np.log(2)
    return found


def robust_subsets() -> PublishedModel:
    """Return a robust regression whose regressors are in or out, in blocks."""
    x, y = robust_data()
    blocks = {}
    with pm.Model() as model:
        k = pm.Categorical("k", np.full(4, 0.25))
        slopes = [pm.Normal(f"slope_{a}", 0, 10) for a in range(4)]
        mean = 0.0
        for a in range(4):
            owners = [j for j, subset in enumerate(SUBSETS) if a in subset]
            is_in = sum(pm.math.eq(k, j) for j in owners)
            mean += pm.math.switch(is_in, slopes[a], 0.0) * x[:, a]
        errors = [pm.logp(pm.Normal.dist(mean, spread), y) for spread in (1.0, 10.0)]
        pm.Potential("responses", (pm.math.logaddexp(*errors) - np.log(2)).sum())
    for j, subset in enumerate(SUBSETS):
        blocks[j] = [f"slope_{a}" for a in subset]
    return PublishedModel(
        "daviesl/trjp, examples/vs",
        model,
        {"k": probabilities(BY_SMC, np.full(4, 0.25))},
        {"k": blocks},
        BY_SMC,
    )


def robust_evidence(x: np.ndarray, y: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Return the log-evidence of a regression and its error, by adaptive importance sampling.

    Slopes have several modes, which a grid around one of them would miss.
    """
    rng, n = np.random.default_rng(seed), x.shape[1]
    mean, covariance = np.zeros(n), 4.0 * np.eye(n)
    for n_draws in (100_000, 100_000, 100_000, 400_000):
        proposal = stats.multivariate_t(mean, covariance, df=5, seed=rng)
        slopes = proposal.rvs(n_draws).reshape(n_draws, n)
        log_weight = stats.norm.logpdf(slopes, 0, 10).sum(axis=1) - proposal.logpdf(slopes)
        for row, response in zip(x, y, strict=True):
            log_weight += log_robust(response - slopes @ row)
        weight = np.exp(log_weight - log_weight.max())
        mean = np.average(slopes, axis=0, weights=weight)
        covariance = np.atleast_2d(np.cov(slopes.T, aweights=weight))
    error = weight.std() / weight.mean() / np.sqrt(n_draws)
    return float(logsumexp(log_weight) - np.log(n_draws)), float(error)


MODELS: dict[str, Callable[[], PublishedModel]] = {
    "galaxies": galaxies,
    "robust subsets": robust_subsets,
}
