"""Models with a class index whose exact answers are known, written as users of PyMC write them.

Each function returns a `PublishedModel`: the model with its index, the blocks of latents if classes
have latents of their own, and the exact probabilities of the classes by a closed form, enumeration
or quadrature that does not use the package. `model_index.py` samples them all; the small ones are
tests as well.

Models whose answers take grids of up to four dimensions are in `published_on_grids.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats
from scipy.special import betaln, gammaln, logsumexp

import pymc_mcoem as mcoem


@dataclass(frozen=True)
class PublishedModel:
    """A model and the exact posterior probabilities of its class indices.

    Attributes
    ----------
    source : str
        Who wrote it.
    model : pymc.Model
    exact : mapping of str to ndarray of shape (n_classes,)
        By name of the index.
    blocks : mapping of str to mapping, optional
        By name of the index, as `CarlinChib` takes them; the index alone if all latents are shared.
    log_evidence : ndarray of shape (n_classes,), optional
        Log-evidences, where they are published.
    """

    source: str
    model: pm.Model
    exact: Mapping[str, np.ndarray]
    blocks: Mapping[str, Mapping[int, Sequence[str]]] = field(default_factory=dict)
    log_evidence: np.ndarray | None = None

    def steps(self) -> list[mcoem.CarlinChib]:
        """Return one step with default settings for each index."""
        with self.model:
            return [
                mcoem.CarlinChib(class_index=name, blocks=self.blocks.get(name))
                for name in self.exact
            ]


def probabilities(log_evidence: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return posterior probabilities of classes."""
    log_weight = log_evidence + np.log(prior)
    return np.exp(log_weight - logsumexp(log_weight))


def nodes(low: float, high: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes of Gauss-Legendre quadrature and the logarithms of their weights, each (n,)."""
    x, weight = np.polynomial.legendre.leggauss(n)
    half = (high - low) / 2
    return low + half * (x + 1), np.log(half * weight)


# -- two regressions -------------------------------------------------------------------------------

PINES = """
29.2 25.4 3040, 24.7 22.2 2470, 32.3 32.2 3610, 31.3 31.0 3480, 31.5 30.9 3810, 24.5 23.9 2330,
19.9 19.2 1800, 27.3 27.2 3110, 27.1 26.3 3160, 24.0 23.9 2310, 33.8 33.2 4360, 21.5 21.0 1880,
32.2 29.0 3670, 22.5 22.0 1740, 27.5 23.8 2250, 25.6 25.3 2650, 34.5 34.2 4970, 26.2 25.7 2620,
26.7 26.4 2900, 21.1 20.0 1670, 24.1 23.9 2540, 30.7 30.7 3840, 32.7 32.6 3800, 32.6 32.5 4600,
22.1 20.8 1900, 25.3 23.1 2530, 30.8 29.8 2920, 38.9 38.1 4990, 22.1 21.3 1670, 29.2 28.5 3310,
30.1 29.2 3450, 31.4 31.4 3600, 26.7 25.9 2850, 22.1 21.4 1590, 30.3 29.8 3770, 32.0 30.6 3850,
23.2 22.6 2480, 30.3 30.3 3570, 29.9 23.8 2620, 20.8 18.4 1890, 33.2 29.4 3030, 28.2 28.2 3030
"""
"""Density, density adjusted for resin, and strength of 42 specimens of radiata pine."""


def pines(n_nodes: int = 200) -> PublishedModel:
    """Return Carlin and Chib's own example: strength by density, or by adjusted density."""
    data = np.array([row.split() for row in PINES.strip().split(",")], dtype=float)
    *covariates, strength = data.T
    covariates = [each - each.mean() for each in covariates]
    prior = np.array([0.9995, 0.0005])
    with pm.Model() as model:
        k = pm.Categorical("k", prior)
        first = pm.math.eq(k, 0)
        alpha, gamma = pm.Normal("alpha", 3000, 1000), pm.Normal("gamma", 3000, 1000)
        beta, delta = pm.Normal("beta", 185, 100), pm.Normal("delta", 185, 100)
        variance = [pm.InverseGamma(f"variance_{j}", 3, 2 * 300**2) for j in range(2)]
        line = pm.math.switch(first, alpha + beta * covariates[0], gamma + delta * covariates[1])
        spread = pm.math.sqrt(pm.math.switch(first, *variance))
        pm.Normal("strength", line, spread, observed=strength)
    log_evidence = np.empty(2)
    log_variance, log_weight = nodes(np.log(300**2) - 6, np.log(300**2) + 6, n_nodes)
    for j, x in enumerate(covariates):
        design = np.stack([np.ones_like(x), x], axis=1)
        shared = design @ np.diag([1000.0**2, 100.0**2]) @ design.T
        terms = [
            stats.multivariate_normal.logpdf(
                strength, design @ [3000, 185], shared + v * np.eye(len(x))
            )
            + stats.invgamma.logpdf(v, 3, scale=2 * 300**2)
            + np.log(v)
            for v in np.exp(log_variance)
        ]
        log_evidence[j] = logsumexp(terms + log_weight)
    return PublishedModel(
        "Carlin and Chib 1995, BUGS examples, volume 2",
        model,
        {"k": probabilities(log_evidence, prior)},
        {"k": {0: ["alpha", "beta", "variance_0"], 1: ["gamma", "delta", "variance_1"]}},
        log_evidence,
    )


# -- small pairs -----------------------------------------------------------------------------------


def coin() -> PublishedModel:
    """Return fifty heads in a hundred tosses, under a flat prior or one for a fair coin."""
    heads = np.repeat([1, 0], [50, 50])
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        flat, fair = pm.Beta("flat", 1, 1), pm.Beta("fair", 30, 30)
        pm.Bernoulli("heads", pm.math.switch(pm.math.eq(k, 0), flat, fair), observed=heads)
    log_evidence = np.array([betaln(a + 50, a + 50) - betaln(a, a) for a in (1, 30)])
    return PublishedModel(
        "PyMC's examples, Bayes factors",
        model,
        {"k": probabilities(log_evidence, np.full(2, 0.5))},
        {"k": {0: ["flat"], 1: ["fair"]}},
        log_evidence,
    )


def identical() -> PublishedModel:
    """Return two identical models with vague priors: each has probability one half."""
    values = np.random.default_rng(1534).normal(0.5, 1.0, size=100)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        first = pm.math.eq(k, 0)
        mean = [pm.Normal(f"mean_{j}", 0, 100) for j in range(2)]
        sd = [pm.HalfCauchy(f"sd_{j}", 5) for j in range(2)]
        pm.Normal("y", pm.math.switch(first, *mean), pm.math.switch(first, *sd), observed=values)
    return PublishedModel(
        "pymc issue 1534",
        model,
        {"k": np.array([0.5, 0.5])},
        {"k": {j: [f"mean_{j}", f"sd_{j}"] for j in range(2)}},
    )


def sinh_arcsinh() -> PublishedModel:
    """Return a skewed density of one dimension with weight 1/4, of two dimensions with 3/4.

    There are no data: the class's posterior probability is its prior. The density is that of
    sinh((arcsinh(z) + ε) / δ) with a standard normal z, in two dimensions with correlation 0.99.
    """
    correlated = np.linalg.cholesky([[1.0, 0.99], [0.99, 1.0]])

    def distribution(
        name: str, epsilon: Sequence[float], delta: Sequence[float], scale: np.ndarray
    ) -> pt.TensorVariable:
        e, d, inverse = np.array(epsilon), np.array(delta), np.linalg.inv(scale)

        def logp(x: pt.TensorVariable, *_: object) -> pt.TensorVariable:
            u = d * pt.arcsinh(x) - e
            z = pt.dot(inverse, pt.sinh(u))
            jacobian = pt.log(d) + pt.log(pt.cosh(u)) - 0.5 * pt.log1p(x**2)
            normal = -0.5 * (z**2).sum() - 0.5 * len(e) * np.log(2 * np.pi)
            return normal + jacobian.sum() + np.linalg.slogdet(inverse)[1]

        def random(
            *_: object, rng: np.random.Generator | None = None, size: object = None
        ) -> np.ndarray:
            z = scale @ rng.standard_normal(len(e))
            return np.sinh((np.arcsinh(z) + e) / d)

        return pm.CustomDist(name, np.zeros(len(e)), logp=logp, random=random, signature="(n)->(n)")

    prior = np.array([0.25, 0.75])
    with pm.Model() as model:
        pm.Categorical("k", prior)
        distribution("one", [-2.0], [1.0], np.eye(1))
        distribution("two", [1.5, -2.0], [1.0, 1.5], correlated)
    return PublishedModel(
        "daviesl/trjp, examples/sas", model, {"k": prior}, {"k": {0: ["one"], 1: ["two"]}}
    )


# -- change points ---------------------------------------------------------------------------------

DISASTERS = np.array(
    [
        int(count)
        for count in "45401434063340263354531441553425223421322111130010110031"
        "0322011101010002100011023311211112420014000100000100101"
    ]
)
"""Disasters in British coal mines in each of the years 1851 to 1961, as in PyMC 2's examples.

PyMC's present examples leave two of these years missing, those of 2 in 1890 and of 1 in 1934. With
zeros in their place the log-evidences of no to three changes are -205.923, -176.804, -175.400 and
-175.212.
"""

N_PLACES = len(DISASTERS) - 1


def change_point_evidence(n_changes: int, *, distinct: bool) -> float:
    """Return the log-evidence of change points at uniform places between years, by enumeration.

    Rates are Exponential(1), so that each stretch of years has a closed form. Either all sets of
    different places are equally probable (`distinct`), or places are independent.
    """
    total = np.append(0, np.cumsum(DISASTERS))
    start, end = np.arange(N_PLACES + 2)[:, None], np.arange(N_PLACES + 2)
    count, length = total[end] - total[start], end - start
    with np.errstate(invalid="ignore"):
        stretch = gammaln(count + 1) - (count + 1) * np.log(1 + np.maximum(length, 0))
    # Sum over first places, then second places, ...: `before` is by the place of the last one.
    # Places in order have n! arrangements, fewer if some are equal.
    if distinct:
        before = np.where(length[0] > 0, stretch[0], -np.inf)[1:-1]
        inner = np.where(length > 0, stretch, -np.inf)[1:-1, 1:-1]
        for _ in range(n_changes - 1):
            before = logsumexp(before[:, None] + inner, axis=0)
        ways = gammaln(N_PLACES + 1) - gammaln(n_changes + 1) - gammaln(N_PLACES - n_changes + 1)
    else:
        # Equal places leave empty stretches, whose evidence is 1; the arrangements of m equal
        # places are one, not m!.
        sizes = range(1, n_changes + 1)
        state = {(0, 0): 0.0}  # (place, number of changes up to it): logarithm of sum over m!
        for place in range(1, N_PLACES + 1):
            new: dict[tuple[int, int], float] = {}
            for (last, done), value in state.items():
                for m in sizes:
                    if done + m <= n_changes:
                        term = value + stretch[last, place] - gammaln(m + 1)
                        key = (place, done + m)
                        new[key] = np.logaddexp(new.get(key, -np.inf), term)
            state |= new
        before = np.array(
            [state.get((place, n_changes), -np.inf) for place in range(1, N_PLACES + 1)]
        )
        ways = n_changes * np.log(N_PLACES) - gammaln(n_changes + 1)
    constant = -gammaln(DISASTERS + 1).sum()
    if not n_changes:
        return float(stretch[0, -1] + constant)
    return float(logsumexp(before + stretch[1:-1, -1]) - ways + constant)


def log_likelihood_of_rates(rates: pt.TensorVariable, n_changes: int) -> pt.TensorVariable:
    """Return the log-likelihood of rates (n_changes + 1,), summed over all sets of places."""
    total, constant = np.cumsum(DISASTERS), -gammaln(DISASTERS + 1).sum()
    years = np.arange(1, len(DISASTERS) + 1)
    # Of all years up to each, under each rate.
    up_to = [pt.log(rates[j]) * total - rates[j] * years for j in range(n_changes + 1)]
    if not n_changes:
        return up_to[0][-1] + constant
    log_sum = up_to[0][:-1]  # by the place of the last change
    for j in range(1, n_changes):
        stretch = up_to[j][:-1] - up_to[j][:-1, None]
        log_sum = pt.logsumexp(
            pt.switch(np.tri(N_PLACES, k=-1).T, log_sum[:, None] + stretch, -1e30), axis=0
        )
    log_sum += up_to[n_changes][-1] - up_to[n_changes][:-1]
    ways = gammaln(N_PLACES + 1) - gammaln(n_changes + 1) - gammaln(N_PLACES - n_changes + 1)
    return pt.logsumexp(log_sum) - ways + constant


def coal_mining() -> PublishedModel:
    """Return no to three changes of the rate of disasters, with their places summed out.

    `CarlinChib` moves continuous latents, and the places are integers. Given the rates their sum
    is a running sum over the years, which is how PyMC's users write such models for NUTS.
    """
    with pm.Model() as model:
        k = pm.Categorical("k", np.full(4, 0.25))
        parts = 0.0
        for j in range(4):
            rates = pm.Exponential(f"rates_{j}", 1.0, shape=j + 1)
            parts += pm.math.switch(pm.math.eq(k, j), log_likelihood_of_rates(rates, j), 0.0)
        pm.Potential("disasters", parts)
    log_evidence = np.array([change_point_evidence(j, distinct=True) for j in range(4)])
    return PublishedModel(
        "Jarrett 1979; PyMC's first example, with one change",
        model,
        {"k": probabilities(log_evidence, np.full(4, 0.25))},
        {"k": {j: [f"rates_{j}"] for j in range(4)}},
        log_evidence,
    )


def coal_mining_places() -> PublishedModel:
    """Return the same with places as uniform latents, rounded down to years.

    This is how one writes it at first. The density is a staircase in the places, so that no
    normal pseudo-prior fits it.
    """
    years = np.arange(len(DISASTERS))
    blocks = {}
    with pm.Model() as model:
        k = pm.Categorical("k", np.full(4, 0.25))
        rate = 0.0
        for j in range(4):
            rates = pm.Exponential(f"rates_{j}", 1.0, shape=j + 1)
            blocks[j] = [f"rates_{j}"]
            own = rates[0]
            if j:
                where = pm.Uniform(f"where_{j}", 0, 1, shape=j)
                blocks[j].append(f"where_{j}")
                place = 1 + pt.floor(N_PLACES * where)
                own = rates[(place[:, None] <= years).sum(axis=0)]
            rate += pm.math.switch(pm.math.eq(k, j), own, 0.0)
        pm.Poisson("disasters", rate, observed=DISASTERS)
    log_evidence = np.array([change_point_evidence(j, distinct=False) for j in range(4)])
    return PublishedModel(
        "the same, places rounded down",
        model,
        {"k": probabilities(log_evidence, np.full(4, 0.25))},
        {"k": blocks},
        log_evidence,
    )


# -- counts and errors -----------------------------------------------------------------------------

HORSE_KICKS = np.repeat([0, 1, 2, 3, 4], [109, 65, 22, 3, 1])
"""Deaths by horse kicks in 200 years of Prussian army corps (Bortkiewicz 1898)."""


def zero_inflated(n_nodes: int = 100) -> PublishedModel:
    """Return Poisson counts, counts with more zeros, or a hurdle before the first one."""
    with pm.Model() as model:
        k = pm.Categorical("k", np.full(3, 1 / 3))
        rate = [pm.Gamma(f"rate_{j}", 2, 1) for j in range(3)]
        share = [pm.Uniform(f"share_{j}", 0, 1) for j in (1, 2)]
        kinds = [
            pm.Poisson.dist(rate[0]),
            pm.ZeroInflatedPoisson.dist(share[0], rate[1]),
            pm.HurdlePoisson.dist(share[1], rate[2]),
        ]
        parts = [pm.logp(kind, HORSE_KICKS).sum() for kind in kinds]
        pm.Potential(
            "kicks", sum(pm.math.switch(pm.math.eq(k, j), parts[j], 0.0) for j in range(3))
        )
    rates, log_weight = nodes(0.0, 4.0, n_nodes)
    log_weight = log_weight + stats.gamma.logpdf(rates, 2)
    shares, log_share = nodes(0.0, 1.0, n_nodes)
    n, zeros = len(HORSE_KICKS), (HORSE_KICKS == 0).sum()
    positive = HORSE_KICKS[HORSE_KICKS > 0]
    seen = stats.poisson.logpmf(positive, rates[:, None]).sum(axis=1)
    log_zero = np.log(shares[:, None] * np.exp(-rates) + 1 - shares[:, None])
    inflated = zeros * log_zero + (n - zeros) * np.log(shares[:, None]) + seen
    hurdle = seen - (n - zeros) * np.log(-np.expm1(-rates)) + log_weight
    log_evidence = np.array(
        [
            logsumexp(seen - zeros * rates + log_weight),
            logsumexp(inflated + log_weight + log_share[:, None]),
            # the share of the positive has a beta integral of its own
            logsumexp(hurdle) + betaln(n - zeros + 1, zeros + 1),
        ]
    )
    return PublishedModel(
        "Bortkiewicz 1898",
        model,
        {"k": probabilities(log_evidence, np.full(3, 1 / 3))},
        {"k": {0: ["rate_0"], 1: ["rate_1", "share_1"], 2: ["rate_2", "share_2"]}},
        log_evidence,
    )


MAIZE = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48])
"""Crossed minus selfed heights of Darwin's fifteen pairs of maize, in eighths of an inch."""


def robust_errors(n_nodes: int = 60) -> PublishedModel:
    """Return normal errors, or Student's with unknown degrees of freedom."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        mean, spread = pm.Normal("mean", 0, 50), pm.HalfNormal("spread", 50)
        degrees = pm.Gamma("degrees", 2, 0.1)
        normal = pm.logp(pm.Normal.dist(mean, spread), MAIZE).sum()
        student = pm.logp(pm.StudentT.dist(nu=degrees, mu=mean, sigma=spread), MAIZE).sum()
        pm.Potential("difference", pm.math.switch(pm.math.eq(k, 0), normal, student))
    means, log_mean = nodes(-80.0, 120.0, n_nodes)
    log_spread, weight_spread = nodes(np.log(1.0), np.log(400.0), n_nodes)
    log_degrees, weight_degrees = nodes(np.log(1e-3), np.log(300.0), n_nodes)
    spreads, freedom = np.exp(log_spread), np.exp(log_degrees)
    grid = means[:, None, None], spreads[:, None]
    prior = (
        (log_mean + stats.norm.logpdf(means, 0, 50))[:, None]
        + weight_spread
        + log_spread
        + stats.halfnorm.logpdf(spreads, 0, 50)
    )
    normal = stats.norm.logpdf(MAIZE, *grid).sum(axis=-1) + prior
    of_degrees = weight_degrees + log_degrees + stats.gamma.logpdf(freedom, 2, scale=10)
    student = [logsumexp(stats.t.logpdf(MAIZE, nu, *grid).sum(axis=-1) + prior) for nu in freedom]
    log_evidence = np.array([logsumexp(normal), logsumexp(student + of_degrees)])
    return PublishedModel(
        "Box and Tiao 1973, Darwin's data",
        model,
        {"k": probabilities(log_evidence, np.full(2, 0.5))},
        {"k": {0: ["mean", "spread"], 1: ["mean", "spread", "degrees"]}},
        log_evidence,
    )


# -- spike and slab --------------------------------------------------------------------------------


def regression_data(n_predictors: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated predictors (n, n_predictors) and responses (n,), some hard to tell."""
    rng = np.random.default_rng(10)
    shared = rng.standard_normal((n, 1))
    x = np.sqrt(0.5) * shared + np.sqrt(0.5) * rng.standard_normal((n, n_predictors))
    slopes = np.resize([1.0, 0.3, 0.0, -0.4, 0.0], n_predictors)
    return x, x @ slopes + rng.normal(0, 1.0, size=n)


def subset_probabilities(x: np.ndarray, y: np.ndarray, n_nodes: int = 100) -> np.ndarray:
    """Return the posterior probabilities of all subsets of predictors, (2,) * n_predictors.

    Coefficients are standard normal, predictors are in with probability one half, and the
    spread of the errors is HalfNormal(2), by quadrature.
    """
    n, n_predictors = x.shape
    spread, log_weight = nodes(0.3, 4.0, n_nodes)
    log_weight = log_weight + stats.halfnorm.logpdf(spread, 0, 2)
    variance = spread**2
    log_evidence = np.empty((2,) * n_predictors)
    for subset in itertools.product((0, 1), repeat=n_predictors):
        chosen = x[:, np.flatnonzero(subset)]
        values, vectors = np.linalg.eigh(chosen.T @ chosen)
        projected = vectors.T @ (chosen.T @ y)
        sums = variance + values[:, None]  # (n_chosen, n_nodes)
        squares = (y @ y - (projected[:, None] ** 2 / sums).sum(axis=0)) / variance
        log_determinant = (n - len(values)) * np.log(variance) + np.log(sums).sum(axis=0)
        log_p = -0.5 * (n * np.log(2 * np.pi) + log_determinant + squares)
        log_evidence[subset] = logsumexp(log_p + log_weight)
    return np.exp(log_evidence - logsumexp(log_evidence))


def spike_and_slab() -> PublishedModel:
    """Return ten predictors that are in or out, with an index and a step for each.

    One index of all subsets would have 1,024 classes, each with its own pseudo-prior.
    """
    x, y = regression_data(10)
    with pm.Model() as model:
        spread = pm.HalfNormal("spread", 2)
        mean = 0.0
        for j in range(10):
            is_in, slope = pm.Categorical(f"in_{j}", [0.5, 0.5]), pm.Normal(f"slope_{j}")
            mean += pm.math.switch(pm.math.eq(is_in, 1), slope, 0.0) * x[:, j]
        pm.Normal("y", mean, spread, observed=y)
    exact = subset_probabilities(x, y)
    inside = [exact.sum(axis=tuple(set(range(10)) - {j})) for j in range(10)]
    return PublishedModel(
        "George and McCulloch 1993",
        model,
        {f"in_{j}": each for j, each in enumerate(inside)},
        {f"in_{j}": {0: [], 1: [f"slope_{j}"]} for j in range(10)},
    )


def few_predictors() -> PublishedModel:
    """Return three predictors that are in or out, with one index of the eight subsets."""
    x, y = regression_data(3)
    subsets = list(itertools.product((0, 1), repeat=3))
    table = np.array(subsets)
    with pm.Model() as model:
        k = pm.Categorical("k", np.full(8, 1 / 8))
        spread = pm.HalfNormal("spread", 2)
        mean = 0.0
        for j in range(3):
            is_in = sum(pm.math.eq(k, c) for c in np.flatnonzero(table[:, j]))
            mean += pm.math.switch(is_in, pm.Normal(f"slope_{j}"), 0.0) * x[:, j]
        pm.Normal("y", mean, spread, observed=y)
    blocks = {
        c: ["spread", *(f"slope_{j}" for j in np.flatnonzero(subset))]
        for c, subset in enumerate(subsets)
    }
    return PublishedModel(
        "the same, three predictors",
        model,
        {"k": subset_probabilities(x, y).ravel()},
        {"k": blocks},
    )


# -- hierarchies of proportions --------------------------------------------------------------------


def beta_binomial(
    counts: np.ndarray, n_trials: int, n_nodes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log-likelihood of each group of `counts` by its mean and concentration.

    With it, (n_groups, n_nodes, n_nodes), come the logarithms of the quadrature weights times the
    priors Beta(1, 1) of the mean and Gamma(1, 0.1) of the concentration.
    """
    mean, log_mean = nodes(0.0, 1.0, n_nodes)
    log_kappa, log_weight = nodes(np.log(1e-3), np.log(500.0), n_nodes)
    kappa = np.exp(log_kappa)
    a, b = mean[:, None] * kappa, (1 - mean[:, None]) * kappa
    found = np.zeros((len(counts), n_nodes, n_nodes))
    for group, values in enumerate(counts):
        for count, times in zip(*np.unique(values, return_counts=True), strict=True):
            found[group] += times * stats.betabinom.logpmf(count, n_trials, a, b)
    return found, log_mean, log_weight + log_kappa + stats.expon.logpdf(kappa, scale=10)


def proportions(
    counts: np.ndarray, n_trials: int, *, varies: str, source: str, n_nodes: int
) -> PublishedModel:
    """Return groups of subjects with proportions, with one parameter in common or one each.

    `counts` are (n_groups, n_subjects). `varies`, "mean" or "concentration", is the parameter that
    all groups have in common in class 1; the other is each group's own.
    """
    n_groups, n_subjects = counts.shape
    group = np.repeat(np.arange(n_groups), n_subjects)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        if varies == "mean":
            own = pm.Gamma("kappa", 1.0, 0.1, shape=n_groups)[group]
            pairs = [
                (pm.Beta("mu_each", 1, 1, shape=n_groups)[group], own),
                (pm.Beta("mu_all", 1, 1), own),
            ]
            names = ["kappa"], "mu_each", "mu_all"
        else:
            own = pm.Beta("mu", 1, 1, shape=n_groups)[group]
            pairs = [
                (own, pm.Gamma("kappa_each", 1.0, 0.1, shape=n_groups)[group]),
                (own, pm.Gamma("kappa_all", 1.0, 0.1)),
            ]
            names = ["mu"], "kappa_each", "kappa_all"
        theta = [
            pm.Beta(f"theta_{j}", mu * kappa, (1 - mu) * kappa, shape=len(group))
            for j, (mu, kappa) in enumerate(pairs)
        ]
        p = pm.math.switch(pm.math.eq(k, 0), *theta)
        pm.Binomial("correct", n_trials, p, observed=counts.ravel())
    log_p, log_mean, log_kappa = beta_binomial(counts, n_trials, n_nodes)
    each = logsumexp(log_p + log_mean[:, None] + log_kappa, axis=(1, 2)).sum()
    if varies == "mean":
        common = logsumexp(logsumexp(log_p + log_kappa, axis=2).sum(axis=0) + log_mean)
    else:
        common = logsumexp(logsumexp(log_p + log_mean[:, None], axis=1).sum(axis=0) + log_kappa)
    log_evidence = np.array([each, common])
    shared, of_each, of_all = names
    return PublishedModel(
        source,
        model,
        {"k": probabilities(log_evidence, np.full(2, 0.5))},
        {"k": {0: [*shared, of_each, "theta_0"], 1: [*shared, of_all, "theta_1"]}},
        log_evidence,
    )


def one_odd_group(n_nodes: int = 150) -> PublishedModel:
    """Return four groups of twenty subjects, with one mean in common or one each."""
    rng = np.random.RandomState(47401)  # the author's
    counts = np.array([rng.binomial(20, p, size=20) for p in (0.61, 0.50, 0.49, 0.51)])
    return proportions(
        counts,
        20,
        varies="mean",
        source="Kruschke 2011, chapter 12",
        n_nodes=n_nodes,
    )


def filtration_condensation(n_nodes: int = 150) -> PublishedModel:
    """Return four groups of forty subjects, with one concentration in common or one each."""
    path = Path(__file__).with_name("filtration_condensation.csv")
    condition, trials, correct = np.loadtxt(path, delimiter=",", dtype=int).T
    (n_trials,) = np.unique(trials)
    return proportions(
        np.array([correct[condition == group] for group in np.unique(condition)]),
        int(n_trials),
        varies="concentration",
        source="Kruschke 2011, chapter 10",
        n_nodes=n_nodes,
    )


# -- a hierarchy -----------------------------------------------------------------------------------


def centered_hierarchy(n_nodes: int = 400) -> PublishedModel:
    """Return six measurements of one level, or of levels of their own about it, centered.

    Levels that hardly differ are the neck of a funnel, which chains seldom enter.
    """
    y, error = np.array([1.1, 1.5, 1.25, 1.4, 1.3, 1.2]), 0.15
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        level, width = pm.Normal("level"), pm.HalfNormal("width", 1)
        levels = pm.Normal("levels", level, width, shape=6)
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), level, levels), error, observed=y)

    def log_likelihood(spread: float) -> float:
        covariance = np.ones((6, 6)) + (error**2 + spread**2) * np.eye(6)
        return float(stats.multivariate_normal.logpdf(y, np.zeros(6), covariance))

    spreads, log_weight = nodes(0.0, 6.0, n_nodes)
    varied = np.array([log_likelihood(spread) for spread in spreads])
    log_evidence = np.array(
        [log_likelihood(0.0), logsumexp(varied + stats.halfnorm.logpdf(spreads) + log_weight)]
    )
    return PublishedModel(
        "ours, as the eight schools are written first",
        model,
        {"k": probabilities(log_evidence, np.full(2, 0.5))},
        {"k": {0: ["level"], 1: ["level", "width", "levels"]}},
        log_evidence,
    )


# -- an index alone --------------------------------------------------------------------------------


def capture_recapture() -> pm.Model:
    """Return animals that are there or not (M0 of Kéry and Schaub 2012): indices without latents.

    Of their animals, `M0_data` of posteriordb, 37, 38 and 12 were caught once, twice and three
    times on three occasions, and 150 that were never seen are added.
    """
    caught = np.repeat([1, 2, 3, 0], [37, 38, 12, 150])
    with pm.Model() as model:
        there, p = pm.Uniform("there", 0, 1), pm.Uniform("p", 0, 1)
        weights = pm.math.stack([1 - there, there])
        z = pm.Categorical("z", weights, shape=len(caught))
        pm.Binomial("caught", 3, z * p, observed=caught)
    return model


MODELS: dict[str, Callable[[], PublishedModel]] = {
    "pines": pines,
    "coin": coin,
    "identical": identical,
    "sinh-arcsinh": sinh_arcsinh,
    "coal mining": coal_mining,
    "coal mining, places": coal_mining_places,
    "horse kicks": zero_inflated,
    "robust errors": robust_errors,
    "few predictors": few_predictors,
    "spike and slab": spike_and_slab,
    "one odd group": one_odd_group,
    "filtration-condensation": filtration_condensation,
    "centered hierarchy": centered_hierarchy,
}
