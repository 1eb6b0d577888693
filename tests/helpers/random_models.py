"""Small models made at random, whose class probabilities are known by quadrature.

Everything that the oracle knows it knows from SciPy: a latent is its prior's quantile function of
a uniform variable, so that evidence is the mean of the likelihood over a grid of uniforms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats

#: Priors: PyMC's class, its parameters, where those are drawn between, and SciPy's distribution.
PRIORS: dict[str, tuple[Any, dict[str, tuple[float, float]], Any]] = {
    "Normal": (pm.Normal, {"mu": (-2, 2), "sigma": (0.4, 1.5)}, lambda m, s: stats.norm(m, s)),
    "StudentT": (
        pm.StudentT,
        {"nu": (5, 20), "mu": (-2, 2), "sigma": (0.4, 1.2)},
        lambda n, m, s: stats.t(n, m, s),
    ),
    "Laplace": (pm.Laplace, {"mu": (-2, 2), "b": (0.4, 1.0)}, lambda m, b: stats.laplace(m, b)),
    "Logistic": (pm.Logistic, {"mu": (-2, 2), "s": (0.3, 0.8)}, lambda m, s: stats.logistic(m, s)),
    "Gumbel": (pm.Gumbel, {"mu": (-2, 1), "beta": (0.4, 1)}, lambda m, b: stats.gumbel_r(m, b)),
    "SkewNormal": (
        pm.SkewNormal,
        {"mu": (-2, 2), "sigma": (0.5, 1.5), "alpha": (-3, 3)},
        lambda m, s, a: stats.skewnorm(a, m, s),
    ),
    "Gamma": (pm.Gamma, {"alpha": (1.5, 5), "beta": (1, 3)}, lambda a, b: stats.gamma(a, 0, 1 / b)),
    "Weibull": (
        pm.Weibull,
        {"alpha": (1.3, 3), "beta": (0.7, 2)},
        lambda a, b: stats.weibull_min(a, 0, b),
    ),
    "LogNormal": (
        pm.LogNormal,
        {"mu": (-0.5, 0.7), "sigma": (0.3, 0.8)},
        lambda m, s: stats.lognorm(s, 0, np.exp(m)),
    ),
    "InverseGamma": (
        pm.InverseGamma,
        {"alpha": (3, 6), "beta": (2, 5)},
        lambda a, b: stats.invgamma(a, 0, b),
    ),
    "Exponential": (pm.Exponential, {"scale": (0.5, 2)}, lambda s: stats.expon(0, s)),
    "HalfNormal": (pm.HalfNormal, {"sigma": (0.6, 2)}, lambda s: stats.halfnorm(0, s)),
    "Beta": (pm.Beta, {"alpha": (1.5, 5), "beta": (1.5, 5)}, lambda a, b: stats.beta(a, b)),
    "Uniform": (
        pm.Uniform,
        {"lower": (-2, 0), "upper": (0.5, 3)},
        lambda a, b: stats.uniform(a, b - a),
    ),
    "TruncatedNormal": (
        pm.TruncatedNormal,
        {"mu": (-1, 1), "sigma": (0.5, 1.5), "lower": (-2, -1)},
        lambda m, s, a: stats.truncnorm((a - m) / s, np.inf, m, s),
    ),
}

#: Likelihoods of one number given a latent: PyMC's observed variable, SciPy's distribution.
LIKELIHOODS: dict[str, tuple[Any, Any]] = {
    "Normal": (lambda x, **o: pm.Normal("y", x, 0.8, **o), lambda x: stats.norm(x, 0.8)),
    "narrow": (lambda x, **o: pm.Normal("y", x, 0.2, **o), lambda x: stats.norm(x, 0.2)),
    "StudentT": (
        lambda x, **o: pm.StudentT("y", 4.0, mu=x, sigma=0.6, **o),
        lambda x: stats.t(4.0, x, 0.6),
    ),
    "Laplace": (lambda x, **o: pm.Laplace("y", x, 0.6, **o), lambda x: stats.laplace(x, 0.6)),
    "curved": (
        lambda x, **o: pm.Normal("y", pt.exp(x / 2), 0.7, **o),
        lambda x: stats.norm(np.exp(x / 2), 0.7),
    ),
    "Poisson": (
        lambda x, **o: pm.Poisson("y", pt.log1p(pt.exp(x)), **o),
        lambda x: stats.poisson(np.log1p(np.exp(x))),
    ),
    "Bernoulli": (
        lambda x, **o: pm.Bernoulli("y", logit_p=x, **o),
        lambda x: stats.bernoulli(1 / (1 + np.exp(-x))),
    ),
    "Binomial": (
        lambda x, **o: pm.Binomial("y", 6, logit_p=x, **o),
        lambda x: stats.binom(6, 1 / (1 + np.exp(-x))),
    ),
    "Uniform": (
        lambda x, **o: pm.Uniform("y", x - 0.9, x + 0.9, **o),
        lambda x: stats.uniform(x - 0.9, 1.8),
    ),
}

_GRID = 20_000


@dataclass(frozen=True)
class RandomModel:
    """A mixture of rows, or of one row without a plate, with what is exact of it.

    Attributes
    ----------
    model : pymc.Model
        With index ``k``, latent ``x`` and what was observed, ``y``.
    words : str
        What it is made of.
    weight : ndarray of shape (n_rows, n_classes)
        Posterior class probabilities.
    mean : ndarray of shape (n_rows, n_classes)
        Posterior means of tanh(x) in each class, times its probability.
    """

    model: pm.Model
    words: str
    weight: np.ndarray
    mean: np.ndarray


def random_model(rng: np.random.Generator, n_rows: int | None) -> RandomModel:
    """Make a model at random: two or three classes of one prior family, one likelihood."""
    prior, likelihood = rng.choice(list(PRIORS)), rng.choice(list(LIKELIHOODS))
    rows, n_classes = n_rows or 1, int(rng.integers(2, 4))
    make, ranges, frozen = PRIORS[prior]
    tables = [rng.uniform(*ends, size=(n_classes, rows)) for ends in ranges.values()]
    p = rng.dirichlet(np.full(n_classes, 3.0))
    observe, seen = LIKELIHOODS[likelihood]
    truth = rng.choice(n_classes, p=p, size=rows)
    mine = [table[truth, np.arange(rows)] for table in tables]
    latent = frozen(*mine).rvs(size=rows, random_state=rng)
    y = seen(latent).rvs(size=rows, random_state=rng)

    with pm.Model() as model:
        if n_rows is None:
            k = pm.Categorical("k", p)
            given = {n: pt.constant(t[:, 0])[k] for n, t in zip(ranges, tables, strict=True)}
            x = make("x", **given)
            observe(x, observed=y[0])
        else:
            k = pm.Categorical("k", p, shape=n_rows)
            each = np.arange(n_rows)
            given = {n: pt.constant(t)[k, each] for n, t in zip(ranges, tables, strict=True)}
            x = make("x", shape=n_rows, **given)
            observe(x, observed=y)

    u = (np.arange(_GRID) + 0.5) / _GRID
    evidence, moment = np.empty((2, rows, n_classes))
    for row, j in np.ndindex(evidence.shape):
        grid = frozen(*(table[j, row] for table in tables)).ppf(u)
        of_y = seen(grid)
        density = of_y.pmf(y[row]) if hasattr(of_y.dist, "pmf") else of_y.pdf(y[row])
        evidence[row, j] = p[j] * density.mean()
        moment[row, j] = p[j] * (density * np.tanh(grid)).mean()
    total = evidence.sum(axis=1, keepdims=True)
    words = f"{prior} prior, {likelihood} likelihood, {n_classes} classes, {rows} rows"
    return RandomModel(model, words, evidence / total, moment / total)
