"""Small models as PyMC's users write them, each with the exact probabilities of its index."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered
from pymc.exceptions import ImputationWarning
from scipy import special, stats

from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.density.joint_index import join_indices


@dataclass(frozen=True)
class WrittenModel:
    """A model, the names that its steps take (one step for each list), and the exact answer.

    Attributes
    ----------
    model : pymc.Model
    exact : mapping of str to ndarray of shape (n_classes,)
        By name of the index.
    steps_of : sequence of sequence of str, optional
        Empty for one step of all that is continuous, or in `blocks`.
    blocks : mapping of int to sequence of str, optional
    """

    model: pm.Model
    exact: Mapping[str, np.ndarray]
    steps_of: Sequence[Sequence[str]] = ()
    blocks: Mapping[int, Sequence[str]] | None = None

    def steps(self) -> list[CarlinChib]:
        """Return the model's steps, with default settings."""
        with self.model:
            if not self.steps_of:
                return [CarlinChib(blocks=self.blocks)]
            return [CarlinChib([self.model[name] for name in names]) for names in self.steps_of]


MEANS = (-1.0, 0.0, 2.0)
OFFSETS = (0.0, 1.5)
FIRST, SECOND = np.array([0.3, 0.7]), np.array([0.6, 0.4])


def _normalized(weights: np.ndarray) -> np.ndarray:
    return np.asarray(weights) / np.sum(weights)


def _integral(function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    x = np.linspace(low, high, 20_001)
    return float(np.trapezoid(function(x), x))


def dirichlet_weights() -> WrittenModel:
    """Weights with a prior of their own, drawn by NUTS in the same call."""
    with pm.Model(coords={"kind": ["a", "b", "c"]}) as model:
        weights = pm.Dirichlet("weights", [1.0, 2.0, 3.0], dims="kind")
        k = pm.Categorical("k", weights)
        x = pm.Normal("x", pt.as_tensor(MEANS)[k], 0.7)
        pm.Normal("y", x, 1.0, observed=[0.3, 2.2])
    joint = stats.multivariate_normal
    covariance = np.eye(2) + 0.49
    evidence = [joint.pdf([0.3, 2.2], [mean, mean], covariance) for mean in MEANS]
    exact = _normalized(np.array([1, 2, 3]) * evidence)
    return WrittenModel(model, {"k": exact}, [["k", "x"]])


def _pair_probabilities() -> np.ndarray:
    means = np.array([-1.0, 1.0])[:, None] + np.array(OFFSETS)
    return _normalized(FIRST[:, None] * SECOND * stats.norm.pdf(0.8, means, np.sqrt(1.25)))


def two_indices() -> WrittenModel:
    """Two indices that share what was observed, with a step each."""
    with pm.Model() as model:
        first, second = pm.Categorical("first", FIRST), pm.Categorical("second", SECOND)
        x = pm.Normal("x", pt.as_tensor([-1.0, 1.0])[first], 1.0)
        pm.Normal("y", x + pt.as_tensor(OFFSETS)[second], 0.5, observed=0.8)
    exact = _pair_probabilities()
    steps_of = [["first", "x"], ["second", "x"]]
    return WrittenModel(model, {"first": exact.sum(axis=1), "second": exact.sum(axis=0)}, steps_of)


def joint_index() -> WrittenModel:
    """Two indices that have to change together, with one step for both."""
    weights = np.array([0.3, 0.3, 0.4]), np.array([0.5, 0.2, 0.3])
    shifts = np.array([-4.0, 0.0, 5.0])
    with pm.Model() as model:
        first, second = (
            pm.Categorical(*each) for each in zip(("first", "second"), weights, strict=True)
        )
        x = pm.Normal("x", pt.as_tensor(shifts)[first], 1.0)
        pm.Normal("y", x - pt.as_tensor(shifts)[second], 0.3, observed=0.2)
    means = shifts[:, None] - shifts
    exact = _normalized(np.outer(*weights) * stats.norm.pdf(0.2, means, np.sqrt(1.09)))
    answers = {
        "first_second": exact.ravel(),
        "first": exact.sum(axis=1),
        "second": exact.sum(axis=0),
    }
    return WrittenModel(join_indices(model), answers)


def joint_predictors() -> WrittenModel:
    """Two correlated predictors, in or out, the second rather where the first is; one step."""
    share_of_second = np.array([0.2, 0.6])
    x = np.array([[0.5, 0.9], [-1.0, -0.7], [1.5, 1.2], [-0.4, -1.1], [0.2, 0.6]])
    y = np.array([0.9, -1.3, 1.8, -0.2, 0.1])
    with pm.Model() as model:
        first = pm.Bernoulli("first", 0.4)
        second = pm.Bernoulli("second", pt.as_tensor(share_of_second)[first])
        slopes = [pm.Normal(name, 0.0, 1.0) for name in ("a", "b")]
        parts = [
            pt.switch(pt.eq(index, 1), slope * column, 0.0)
            for index, slope, column in zip((first, second), slopes, x.T, strict=True)
        ]
        pm.Normal("y", parts[0] + parts[1], 0.5, observed=y)
    exact = np.empty((2, 2))
    for i, j in np.ndindex(2, 2):
        used = x * [i, j]
        prior = stats.bernoulli.pmf(i, 0.4) * stats.bernoulli.pmf(j, share_of_second[i])
        covariance = used @ used.T + 0.25 * np.eye(len(y))
        exact[i, j] = prior * stats.multivariate_normal.pdf(y, cov=covariance)
    blocks: dict[int, list[str]] = {0: [], 1: ["b"], 2: ["a"], 3: ["a", "b"]}
    return WrittenModel(
        join_indices(model, name="which"), {"which": _normalized(exact.ravel())}, blocks=blocks
    )


def missing_values() -> WrittenModel:
    """A value that was not observed beside blocks, which NUTS draws."""
    y = np.array([0.5, np.nan, 1.0, -0.4])
    centers, spreads = np.array([0.0, 1.0]), np.array([1.0, 0.4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImputationWarning)
        with pm.Model() as model:
            k = pm.Categorical("k", FIRST)
            a, b = (pm.Normal(*each) for each in zip("ab", centers, spreads, strict=True))
            pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b), 0.7, observed=y)
    seen = y[np.isfinite(y)]
    evidence = [
        stats.multivariate_normal.pdf(seen, np.full(3, m), 0.49 * np.eye(3) + s**2)
        for m, s in zip(centers, spreads, strict=True)
    ]
    return WrittenModel(model, {"k": _normalized(FIRST * evidence)}, blocks={0: ["a"], 1: ["b"]})


def parent_of_counts() -> WrittenModel:
    """An index that is a parent of discrete variables, which other steps draw."""
    weights, shift, share, rate = (0.5, 0.3, 0.2), (0.0, 1.0, 3.0), (0.2, 0.5, 0.9), (1.0, 3.0, 6.0)
    with pm.Model() as model:
        k = pm.Categorical("k", weights)
        x = pm.Normal("x", pt.as_tensor(shift)[k], 1.0)
        event = pm.Bernoulli("event", pt.as_tensor(share)[k])
        count = pm.Poisson("count", pt.as_tensor(rate)[k])
        pm.Normal("y", x + 2.0 * event + 0.5 * count, 1.0, observed=3.5)
    n = np.arange(60)
    exact = [
        weights[j]
        * sum(
            stats.bernoulli.pmf(z, share[j])
            * (
                stats.poisson.pmf(n, rate[j])
                * stats.norm.pdf(3.5, shift[j] + 2 * z + 0.5 * n, np.sqrt(2))
            ).sum()
            for z in (0, 1)
        )
        for j in range(3)
    ]
    return WrittenModel(model, {"k": _normalized(exact)})


def ordered_vector() -> WrittenModel:
    """An ordered vector whose means depend on the class."""
    means, y = np.array([[0.0, 1.0], [-1.0, 0.5]]), np.array([-0.3, 0.9])
    with pm.Model() as model:
        k = pm.Categorical("k", SECOND)
        x = pm.Normal("x", pt.as_tensor(means)[k], 1.0, transform=ordered, initval=[-0.5, 0.5])
        pm.Normal("y", x, 0.8, observed=y)
    # given y without the order x is two independent normals
    shrunk = (means * 0.64 + y) / 1.64
    in_order = stats.norm.cdf((shrunk[:, 1] - shrunk[:, 0]) / np.sqrt(2 * 0.64 / 1.64))
    evidence = stats.norm.pdf(y, means, np.sqrt(1.64)).prod(axis=1) * in_order
    return WrittenModel(model, {"k": _normalized(SECOND * evidence)})


def simplex() -> WrittenModel:
    """A point of the simplex whose Dirichlet prior depends on the class."""
    counts, priors = np.array([3, 5, 2]), np.array([[1.0, 1.0, 1.0], [2.0, 8.0, 2.0]])
    with pm.Model() as model:
        k = pm.Categorical("k", FIRST)
        shares = pm.Dirichlet("shares", pt.as_tensor(priors)[k])
        pm.Multinomial("y", 10, shares, observed=counts)

    def log_beta(a: np.ndarray) -> np.ndarray:
        return special.gammaln(a).sum(axis=-1) - special.gammaln(a.sum(axis=-1))

    exact = FIRST * np.exp(log_beta(priors + counts) - log_beta(priors))
    return WrittenModel(model, {"k": _normalized(exact)})


def cholesky_factor() -> WrittenModel:
    """Independent or correlated normals, with an LKJ prior."""
    y = np.random.default_rng(1).multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=12)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        factor, _, _ = pm.LKJCholeskyCov("L", n=2, eta=1.0, sd_dist=pm.Exponential.dist(1.0))
        covariance = pt.switch(pt.eq(k, 0), pt.eye(2), factor @ factor.T)
        pm.MvNormal("y", np.zeros(2), cov=covariance, observed=y)
    # of two standard deviations and the correlation, whose density is a half
    (r, of_r), (s, of_s) = (np.polynomial.legendre.leggauss(n) for n in (80, 120))
    s, of_s = 5.0 * (s + 1), 5.0 * of_s
    first, second, r = s[:, None, None], s[None, :, None], r[None, None]
    (xx, xy), (_, yy) = y.T @ y
    squares = xx / first**2 - 2 * r * xy / (first * second) + yy / second**2
    log_likelihood = -0.5 * squares / (1 - r**2) - 6 * np.log(1 - r**2)
    log_likelihood = log_likelihood - 12 * np.log(first * second)
    volume = of_s[:, None, None] * of_s[None, :, None] * of_r[None, None] / 2
    correlated = (np.exp(log_likelihood - first - second) * volume).sum()
    return WrittenModel(model, {"k": _normalized([np.exp(-0.5 * (xx + yy)), correlated])})


def bounds_by_class() -> WrittenModel:
    """A latent whose support depends on the class."""
    low, high = np.array([0.0, -2.0]), np.array([1.0, 2.0])
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Uniform("x", pt.as_tensor(low)[k], pt.as_tensor(high)[k])
        pm.Normal("y", x, 0.5, observed=0.6)
    inside = stats.norm.cdf(high, 0.6, 0.5) - stats.norm.cdf(low, 0.6, 0.5)
    return WrittenModel(model, {"k": _normalized(inside / (high - low))})


def observed_later() -> WrittenModel:
    """A model that was given its data by `pm.observe`, and a variable by `pm.do`."""
    with pm.Model() as written:
        k = pm.Categorical("k", [0.5, 0.5])
        shift = pm.Normal("shift", 0.0, 1.0)
        x = pm.Normal("x", pt.as_tensor(OFFSETS)[k] + shift, 1.0)
        pm.Normal("y", x, 1.0)
    model = pm.do(pm.observe(written, {"y": 1.9}), {"shift": 1.0})
    exact = stats.norm.pdf(1.9, np.array(OFFSETS) + 1.0, np.sqrt(2))
    return WrittenModel(model, {"k": _normalized(exact)})


def potential() -> WrittenModel:
    """A likelihood that is a `pm.Potential` of the index and the latent."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", pt.as_tensor(OFFSETS)[k], 1.0)
        pm.Potential("seen", -0.5 * pt.sqr(x - 2.0) - 0.4 * k)
    exact = stats.norm.pdf(2.0, OFFSETS, np.sqrt(2)) * np.exp([0.0, -0.4])
    return WrittenModel(model, {"k": _normalized(exact)})


def custom_distribution() -> WrittenModel:
    """A latent with a `pm.CustomDist`, a hyperbolic secant."""

    def logp(value: pt.TensorVariable, center: pt.TensorVariable) -> pt.TensorVariable:
        return -pt.log(pt.cosh(value - center)) - np.log(np.pi)

    def random(center, rng=None, size=None):
        return center + np.log(np.tan(0.5 * np.pi * rng.uniform(size=size)))

    with pm.Model() as model:
        k = pm.Categorical("k", FIRST)
        center = pt.as_tensor(OFFSETS)[k]
        x = pm.CustomDist("x", center, logp=logp, random=random)
        pm.Normal("y", x, 1.0, observed=1.1)
    evidence = [
        _integral(
            lambda x, at=at: stats.hypsecant.pdf(x - at) * stats.norm.pdf(1.1, x), -30.0, 30.0
        )
        for at in OFFSETS
    ]
    return WrittenModel(model, {"k": _normalized(FIRST * evidence)})


def censored() -> WrittenModel:
    """Data of which some are known to be at least 1.5."""
    with pm.Model() as model:
        k = pm.Categorical("k", FIRST)
        x = pm.Normal("x", pt.as_tensor(OFFSETS)[k], 1.0)
        normal = pm.Normal.dist(x, 1.0)
        pm.Censored("y", normal, lower=None, upper=1.5, observed=[0.2, 1.5, 1.5])
    evidence = [
        _integral(
            lambda x, at=at: (
                stats.norm.pdf(x, at) * stats.norm.pdf(0.2, x) * stats.norm.sf(1.5, x) ** 2
            ),
            -12.0,
            14.0,
        )
        for at in OFFSETS
    ]
    return WrittenModel(model, {"k": _normalized(FIRST * evidence)})


COUNTS = np.array([4, 5, 3, 6, 4, 1, 0, 2, 1, 1])


def _change_points(model: pm.Model) -> WrittenModel:
    def evidence(y: np.ndarray) -> float:
        log_p = special.gammaln(y.sum() + 1) - (y.sum() + 1) * np.log(len(y) + 1)
        return float(np.exp(log_p - special.gammaln(y + 1).sum()))

    changed = np.mean([evidence(COUNTS[:t]) * evidence(COUNTS[t:]) for t in range(1, 10)])
    return WrittenModel(model, {"k": _normalized([evidence(COUNTS), changed])})


def change_point() -> WrittenModel:
    """No change of a rate, or one at an integer place that PyMC's Metropolis draws."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        rate = pm.Exponential("rate", 1.0)
        rates = pm.Exponential("rates", 1.0, shape=2)
        place = pm.DiscreteUniform("place", 1, 9)
        changed = pt.switch(np.arange(10) < place, rates[0], rates[1])
        pm.Poisson("y", pm.math.switch(pm.math.eq(k, 0), rate, changed), observed=COUNTS)
    return _change_points(model)


def change_point_summed_out() -> WrittenModel:
    """The same with the place summed out."""
    before = np.arange(10) < np.arange(1, 10)[:, None]
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        rate = pm.Exponential("rate", 1.0)
        rates = pm.Exponential("rates", 1.0, shape=2)
        without = pm.logp(pm.Poisson.dist(rate), COUNTS).sum()
        by_place = pm.logp(pm.Poisson.dist(pt.switch(before, rates[0], rates[1])), COUNTS)
        changed = pm.math.logsumexp(by_place.sum(axis=1)) - np.log(9)
        pm.Potential("y", pm.math.switch(pm.math.eq(k, 0), without, changed))
    return _change_points(model)


MODELS: dict[str, Callable[[], WrittenModel]] = {
    make.__name__: make
    for make in (
        dirichlet_weights,
        two_indices,
        joint_index,
        joint_predictors,
        missing_values,
        parent_of_counts,
        ordered_vector,
        simplex,
        cholesky_factor,
        bounds_by_class,
        observed_later,
        potential,
        custom_distribution,
        censored,
        change_point,
        change_point_summed_out,
    )
}
