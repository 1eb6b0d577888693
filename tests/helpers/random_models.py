"""Small models made at random, whose answers are known by quadrature, and some to be refused.

Everything that the oracle knows it knows from SciPy: a latent is its prior's quantile function of
a uniform variable, so that evidence is the mean of the likelihood over a grid of uniforms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from scipy import stats

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.step import CarlinChib

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

#: Of so heavy tails that no number of draws tells a mean.
HEAVY: dict[str, tuple[Any, dict[str, tuple[float, float]], Any]] = {
    "Cauchy": (
        pm.Cauchy,
        {"alpha": (-2, 2), "beta": (0.4, 1.2)},
        lambda m, b: stats.cauchy(m, b),
    ),
    "StudentT, 2": (
        lambda name, **o: pm.StudentT(name, 2.0, **o),
        {"mu": (-2, 2), "sigma": (0.4, 1.2)},
        lambda m, s: stats.t(2.0, m, s),
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

#: Those under which a latent has two modes, or more.
TWO_MODES: dict[str, tuple[Any, Any]] = {
    "folded": (
        lambda x, **o: pm.Normal("y", pt.abs(x), 0.3, **o),
        lambda x: stats.norm(np.abs(x), 0.3),
    ),
    "narrowly folded": (
        lambda x, **o: pm.Normal("y", pt.abs(x), 0.12, **o),
        lambda x: stats.norm(np.abs(x), 0.12),
    ),
    "wave": (
        lambda x, **o: pm.Normal("y", 2 * pt.sin(1.5 * x), 0.4, **o),
        lambda x: stats.norm(2 * np.sin(1.5 * x), 0.4),
    ),
}

#: Likelihoods that take a latent as far out as heavy tails put it.
_FAR = ("Normal", "narrow", "StudentT", "Laplace")

_GRID = 4_000


@dataclass(frozen=True)
class RandomModel:
    """A model with what is exact of it.

    Attributes
    ----------
    model : pymc.Model
    words : str
        What it is made of.
    indices : tuple of str
        Its class indices.
    steps : callable
        Makes the steps that it is sampled with, in its context.
    values : callable
        Of draws, a Dataset by chain and draw, the functions ``(n_chains, n_draws, n)`` whose
        expectations are known, each between -1 and 1.
    expected : ndarray of shape (n,)
    weight : ndarray of shape (n,)
        Of each function the probability of what it is an indicator of.
    """

    model: pm.Model
    words: str
    indices: tuple[str, ...]
    steps: Callable[[], Any]
    values: Callable[[xr.Dataset], np.ndarray]
    expected: np.ndarray
    weight: np.ndarray


def nodes(prior: Any, near: float) -> tuple[np.ndarray, np.ndarray]:
    """Return values of a latent, most `near` ones and about zero, and the prior of each."""
    wide, close = np.linspace(-8.0, 8.0, 1_601), np.linspace(-3.0, 3.0, 601)
    u = np.concatenate([(np.arange(_GRID) + 0.5) / _GRID, prior.cdf(wide)])
    u = np.unique(np.concatenate([u, prior.cdf(near + close), prior.cdf(close - near)]))
    # the value of a probability that is nearly 1 can be infinite
    u = u[(u > 0.0) & (u < 1.0) & np.isfinite(prior.ppf(u))]
    weight = np.diff(np.concatenate([[0.0], (u[1:] + u[:-1]) / 2, [1.0]]))
    return prior.ppf(u), weight


def integrals(prior: Any, seen: Any, y: float) -> np.ndarray:
    """Return evidence, and the integral of tanh(x) with it."""
    x, weight = nodes(prior, y)
    of_y = seen(x)
    density = of_y.pmf(y) if hasattr(of_y.dist, "pmf") else of_y.pdf(y)
    return np.array([(weight * density).sum(), (weight * density * np.tanh(x)).sum()])


def by_class(posterior: xr.Dataset, n_classes: int, index: str = "k") -> np.ndarray:
    """Return indicators and indicators times tanh(x), by row and class, (chain, draw, n)."""
    k, x = posterior[index].values, posterior["x"].values
    k, x = k.reshape(*k.shape[:2], -1), x.reshape(*x.shape[:2], -1)[..., : k[0, 0].size]
    member = k[..., None] == np.arange(n_classes)
    values = np.stack([member, member * np.tanh(x)[..., None]], axis=-1)
    return values.reshape(*k.shape[:2], -1)


def walk(**options: Any) -> Any:
    """Return a step with short walks, which are not to be better than they have to."""
    return CarlinChib(within_class=RandomWalk(n_moves=4), **options)


def _drawn(rng: np.random.Generator, priors: Any, likelihoods: Any) -> tuple[Any, ...]:
    prior = rng.choice(list(priors))
    likelihood = rng.choice([n for n in likelihoods if prior not in HEAVY or n in _FAR])
    return prior, priors[prior], likelihood, likelihoods[likelihood]


def random_model(
    rng: np.random.Generator,
    n_rows: int | None,
    *,
    priors: Any = PRIORS,
    likelihoods: Any = LIKELIHOODS,
    tilted: bool = False,
    as_data: bool = False,
) -> RandomModel:
    """Make a mixture: two or three classes of one prior family, one likelihood, perhaps rows."""
    prior, (make, ranges, frozen), likelihood, (observe, seen) = _drawn(rng, priors, likelihoods)
    rows, n_classes = n_rows or 1, int(rng.integers(2, 4))
    tables = [rng.uniform(*ends, size=(n_classes, rows)) for ends in ranges.values()]
    p = rng.dirichlet(np.full(n_classes, 3.0))
    truth = rng.choice(n_classes, p=p, size=rows)
    mine = [table[truth, np.arange(rows)] for table in tables]
    latent = frozen(*mine).rvs(size=rows, random_state=rng)
    y = seen(latent).rvs(size=rows, random_state=rng)

    with pm.Model() as model:
        shape = {} if n_rows is None else {"shape": n_rows}
        k = pm.Categorical("k", p, **shape)
        held = [t if n_rows else t[:, 0] for t in tables]
        if as_data:
            held = [pm.Data(f"table_{i}", t) for i, t in enumerate(held)]
        at = (k, np.arange(rows)) if n_rows else (k,)
        given = {n: pt.as_tensor(t)[at] for n, t in zip(ranges, held, strict=True)}
        x = make("x", **shape, **given)
        values = y if n_rows else y[0]
        observe(x, observed=pm.Data("seen", values) if as_data else values)

    found = np.empty((rows, n_classes, 2))
    for row, j in np.ndindex(rows, n_classes):
        prior_of_class = frozen(*(table[j, row] for table in tables))
        found[row, j] = p[j] * integrals(prior_of_class, seen, y[row])
    found /= found[..., 0].sum(axis=1)[:, None, None]
    words = f"{prior} prior, {likelihood} likelihood, {n_classes} classes, {n_rows} rows"
    words += ", tilted" * tilted + ", pm.Data" * as_data
    return RandomModel(
        model,
        words,
        ("k",),
        lambda: walk(**({"equalize_visits": True} if tilted else {})),
        lambda posterior: by_class(posterior, n_classes),
        found.ravel(),
        np.repeat(found[..., 0].ravel(), 2),
    )


def with_blocks(rng: np.random.Generator, **tables: Any) -> RandomModel:
    """Make two classes, each with a latent and a prior family of its own."""
    likelihoods = tables.get("likelihoods", LIKELIHOODS)
    _, _, likelihood, (observe, seen) = _drawn(rng, PRIORS, likelihoods)
    names = rng.choice(list(PRIORS), size=2)
    drawn = [[rng.uniform(*ends) for ends in PRIORS[n][1].values()] for n in names]
    frozen = [PRIORS[n][2](*values) for n, values in zip(names, drawn, strict=True)]
    p = rng.dirichlet([3.0, 3.0])
    y = seen(frozen[rng.choice(2, p=p)].rvs(random_state=rng)).rvs(random_state=rng)
    with pm.Model() as model:
        k = pm.Categorical("k", p)
        a, b = (
            PRIORS[name][0](letter, **dict(zip(PRIORS[name][1], values, strict=True)))
            for letter, name, values in zip("ab", names, drawn, strict=True)
        )
        observe(pt.switch(pt.eq(k, 0), a, b), observed=y)
    found = np.stack(
        [share * integrals(prior, seen, y) for share, prior in zip(p, frozen, strict=True)]
    )
    found /= found[:, 0].sum()

    def values(posterior):
        k = posterior["k"].values[..., None]
        member = k == np.arange(2)
        latents = np.stack([posterior["a"].values, posterior["b"].values], axis=-1)
        return np.stack([member, member * np.tanh(latents)], axis=-1).reshape(*k.shape[:2], -1)

    return RandomModel(
        model,
        f"blocks, {names[0]} and {names[1]} priors, {likelihood} likelihood",
        ("k",),
        lambda: walk(blocks={0: ["a"], 1: ["b"]}),
        values,
        found.ravel(),
        np.repeat(found[:, 0], 2),
    )


def with_two_indices(rng: np.random.Generator, *, shared: bool, **tables: Any) -> RandomModel:
    """Make two indices, one step each, that share a latent or have each its own."""
    p, q = rng.dirichlet([3.0, 3.0], size=2)
    if shared:
        prior, (make, ranges, frozen), likelihood, (observe, seen) = _drawn(
            rng, tables.get("priors", PRIORS), tables.get("likelihoods", LIKELIHOODS)
        )
        parts = [rng.uniform(*ends, size=(2, 2)) for ends in ranges.values()]
        truth = rng.choice(2, p=p), rng.choice(2, p=q)
        x = frozen(*(t[truth] for t in parts)).rvs(random_state=rng)
        y = seen(x).rvs(random_state=rng)
        found = np.empty((2, 2))
        for cell in np.ndindex(2, 2):
            found[cell] = integrals(frozen(*(t[cell] for t in parts)), seen, y)[0]
        words = f"two indices of one latent, {prior} prior, {likelihood} likelihood"
        with pm.Model() as model:
            k, j = pm.Categorical("k", p), pm.Categorical("j", q)
            given = {n: pt.constant(t)[k, j] for n, t in zip(ranges, parts, strict=True)}
            observe(make("x", **given), observed=y)
    else:
        centers, spread = rng.uniform(-3, 3, size=(2, 2)), rng.uniform(0.2, 0.8, size=2)
        sign, noise = rng.choice([-1.0, 1.0]), rng.choice([0.15, 0.8])
        mean = centers[0][:, None] + sign * centers[1]
        sd = np.sqrt(noise**2 + (spread**2).sum())
        y = rng.normal(mean[rng.integers(2), rng.integers(2)], sd)
        found = stats.norm.pdf(y, mean, sd)
        words = f"two indices, each with a latent, noise {noise}"
        with pm.Model() as model:
            k, j = pm.Categorical("k", p), pm.Categorical("j", q)
            x = pm.Normal("x", pt.constant(centers[0])[k], spread[0])
            z = pm.Normal("z", pt.constant(centers[1])[j], spread[1])
            pm.Normal("y", x + sign * z, noise, observed=y)
    found = found * p[:, None] * q
    found /= found.sum()

    def steps():
        other = "x" if shared else "z"
        return [walk(vars=["k", "x"], class_index="k"), walk(vars=["j", other], class_index="j")]

    def values(posterior):
        pair = 2 * posterior["k"].values + posterior["j"].values
        return pair[..., None] == np.arange(4)

    return RandomModel(model, words, ("k", "j"), steps, values, found.ravel(), found.ravel())


def with_shared_covariance(rng: np.random.Generator, *, folded: bool, apart: bool) -> RandomModel:
    """Make vector latents, of classes that share a covariance of which the scale is not known.

    Given the scale all is normal, but for a first coordinate that may be folded: then the scale
    is known and the plane is integrated over.
    """
    n_classes, noise = int(rng.integers(2, 4)), 0.5
    p, centers = rng.dirichlet(np.full(n_classes, 3.0)), rng.uniform(-2, 2, size=(n_classes, 2))
    r = rng.uniform(-0.9, 0.9)
    root = np.linalg.cholesky([[1.0, r], [r, 1.0]])
    x = centers[rng.choice(n_classes, p=p)] + root @ rng.standard_normal(2)
    y = np.abs(x) * [1.0, np.sign(x[1])] if folded else x
    y = y + noise * rng.standard_normal(2)
    with pm.Model() as model:
        k = pm.Categorical("k", p)
        scale = 1.0 if folded else pm.LogNormal("scale", 0.0, 0.4)
        x = pm.MvNormal("x", pt.constant(centers)[k], chol=scale * pt.constant(root))
        mean = pt.stack([pt.abs(x[0]), x[1]]) if folded else x
        pm.Normal("y", mean, noise, observed=y)
    if folded:
        axis = np.linspace(-9.0, 9.0, 901)
        plane = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
        seen = stats.norm.pdf(y[0], np.abs(plane[..., 0]), noise)
        seen = seen * stats.norm.pdf(y[1], plane[..., 1], noise)
        prior = np.stack([stats.multivariate_normal.pdf(plane, c, root @ root.T) for c in centers])
        mass = p[:, None, None] * prior * seen
        moment = mass * np.tanh(plane[..., 0])
        found = np.stack([mass.sum(axis=(1, 2)), moment.sum(axis=(1, 2))], axis=-1)
    else:
        scales = stats.lognorm(0.4).ppf((np.arange(400) + 0.5) / 400)
        t, weight = np.polynomial.hermite_e.hermegauss(40)
        found = np.zeros((n_classes, 2))
        for (j, center), s in ((pair, s) for pair in enumerate(centers) for s in scales):
            prior = s**2 * root @ root.T
            total = prior + noise**2 * np.eye(2)
            gain = prior @ np.linalg.inv(total)
            mean, spread = (center + gain @ (y - center))[0], (prior - gain @ prior)[0, 0]
            here = p[j] * stats.multivariate_normal.pdf(y, center, total)
            tanh = (weight * np.tanh(mean + np.sqrt(spread) * t)).sum() / weight.sum()
            found[j] += here * np.array([1.0, tanh])
    found /= found[:, 0].sum()

    def steps():
        if folded or not apart:
            return walk()
        return [walk(vars=["k", "x"]), pm.Slice([model["scale"]])]

    words = f"vectors of {n_classes} classes, {'folded' if folded else 'one unknown scale'}"
    return RandomModel(
        model,
        words + ", scale by a step of its own" * (apart and not folded),
        ("k",),
        steps,
        lambda posterior: by_class(posterior, n_classes),
        found.ravel(),
        np.repeat(found[:, 0], 2),
    )


def coupled_plate(rng: np.random.Generator) -> tuple[pm.Model, str]:
    """Make a plate whose rows are not independent, though they seem so at its initial point."""
    n = int(rng.integers(2, 7))
    couplings: dict[str, Callable[[Any, Any], Any]] = {
        "lag": lambda x, c: x + c * pt.concatenate([pt.zeros(1), x[:-1]]),
        "roll": lambda x, c: x + c * pt.roll(x, 1),
        "mean": lambda x, c: x - c * x.mean(),
        "cumulative sum": lambda x, c: x + c * pt.cumsum(x),
        "largest": lambda x, c: x + c * x.max(),
        "matrix": lambda x, c: x + c * pt.dot(pt.ones((n, n)), x),
        "reverse": lambda x, c: x + c * x[::-1],
        "first": lambda x, c: x + c * x[0],
        "sorted": lambda x, c: x + c * pt.sort(x),
        "softmax": lambda x, c: x + c * pt.special.softmax(x, axis=0),
        "norm": lambda x, c: x * (1 + c * pt.sqrt((x**2).sum())),
        "taken": lambda x, c: x + c * pt.take(x, (np.arange(n) + 1) % n),
        "blocks": lambda x, c: x + c * pt.repeat(x[: (n + 1) // 2], 2)[:n],
    }
    coupling = rng.choice(list(couplings))
    coefficient = rng.choice(["free", "data", "fixed", "of the latents"])
    where = rng.choice(["mean", "potential", "prior", "index"])
    with pm.Model() as model:
        k = pm.Categorical("k", [0.4, 0.6], shape=n)
        x = pm.Normal("x", pt.constant([-1.0, 1.0])[k], 1.0, shape=n, initval=np.zeros(n))
        c = {
            "free": lambda: pm.Normal("c", 0.0, 1.0, initval=0.0),
            "data": lambda: pm.Data("c", 0.0),
            "fixed": lambda: 0.3,
            "of the latents": lambda: x,
        }[coefficient]()
        change = couplings[coupling]
        mean = change(x, c)
        if where == "potential":
            pm.Potential("tie", -((mean - 0.5) ** 2).sum())
            mean = x
        elif where == "prior":
            z = pm.Normal("z", mean, 1.0, shape=n)
            mean = z
        elif where == "index":
            mean = x + change(1.0 * k, c)
        pm.Normal("y", mean, 0.8, observed=rng.standard_normal(n))
    return model, f"{n} rows, {coupling}, coefficient {coefficient}, in the {where}"
