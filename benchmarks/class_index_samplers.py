"""Compare speed and error of `CarlinChib` with other samplers of a class index.

Four models have class probabilities that are known exactly:

* ``identical``: two identical models with an index, as in pymc issue 1534 and
  docs/notebooks/frozen_index.md: a mean and a standard deviation each, vague priors, 100 data;
* ``levels``: an easier pair, each with a level with the prior Normal(0, 1), 20 data;
* ``regressions``: five nested regressions of dimensions 1 to 5;
* ``plate``: 500 indices.

The fifth, ``digit``, is one noisy handwritten two of 16 × 16 pixels under four templates, with 78
latents and a twentieth of the learned deformation variance (with more, posteriors are so far from
normal that no reference is known to be right). Its class probabilities come from annealed
importance sampling that begins at Laplace approximations.

Samplers take turns on the same data:

* ``CarlinChib`` on the model as a user writes it, with ``RandomWalk(n_moves=2)`` and
  ``index_move="metropolized"``, which were chosen on the issue's model and the data that are timed
  here; and with its defaults. On the digit: its defaults, and annealed jumps;
* ``pm.sample`` with its defaults on the same model;
* the same defaults on the model with pseudo-priors written into it by hand, normal and
  independent, with the exact posterior moments of each class (better than a person would know; on
  the issue's model by quadrature, on the digit those that ``CarlinChib`` fits);
* NumPyro's ``DiscreteHMCGibbs``, and ``MixedHMC`` with one and with twenty updates of the index in
  a trajectory, if NumPyro is installed.

Three figures are reported for each. Compilation is not counted.

1. Effective draws per second of the worst class as ArviZ estimates them from the chains, the median
   over repeats. ArviZ does not notice a constant chain, and counts n draws as n log10(n) at most,
   which a chain that visits its classes in turn exceeds.
2. Effective draws per second of the worst class by squared error. With the exact probability p,

       p (1 − p) / mean squared error of the share of visits, over chains and repeats,

   which a wrong sampler cannot raise. Chains that never leave a class of half the probability are
   worth one draw each by this measure, for any length. A share of n draws is known to half a draw
   at best, so its squared error counts as at least (1 / 2n)². With R repeats the mean squared error
   has a relative standard error of √(1 / 2R), and its inverse a larger one.
3. The largest error of a class probability in any chain.

On the digit the reference itself has a standard error of 0.02, so a good sampler gets too low a
figure there.

    python benchmarks/class_index_samplers.py --draws 2000 --repeats 3
    python benchmarks/class_index_samplers.py --only plate --draws 300 --repeats 1

Every model has its own data, which do not depend on ``--only``. The two pairs take a minute or two
each. The digit's reference takes five minutes. NumPyro's chains on it take minutes for a hundred
draws, those of ``MixedHMC`` more than half an hour: skip them by ``--skip``, or request fewer
draws. On the plate PyMC's own step for indices tries row after row, and one repeat of 300 draws
takes nine minutes.
"""

from __future__ import annotations

import itertools
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from scipy import stats
from scipy.special import logsumexp
from timing import begin, console, tell_table

import pymc_mcoem as mcoem
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors

N_CHAINS = 4


@dataclass(frozen=True)
class Draws:
    """Class indices of all chains and the seconds of sampling."""

    class_index: np.ndarray
    seconds: float


#: A function of the number of draws, the number of tuning steps, and a seed.
Sampler = Callable[[int, int, int], Draws]


@dataclass(frozen=True)
class Problem:
    """A model with known class probabilities, ``(n_classes,)`` or ``(n_rows, n_classes)``."""

    name: str
    exact: np.ndarray
    samplers: dict[str, Sampler]


def with_pymc(model: pm.Model, step: Callable[[], object] | None, name: str = "k") -> Sampler:
    """Return a sampler that makes its step method once; `name` is the name of the class index."""
    made: list[object] = []

    def sample(draws: int, tune: int, seed: int) -> Draws:
        with model:
            if step is not None and not made:
                made.append(step())
            tree = pm.sample(
                draws=draws,
                tune=tune,
                chains=N_CHAINS,
                cores=1,
                step=made[0] if made else None,
                random_seed=seed,
                progressbar=False,
                compute_convergence_checks=False,
            )
        posterior = tree["posterior"]
        return Draws(posterior[name].values, float(posterior.attrs["sampling_time"]))

    return sample


def with_numpyro(
    model: Callable[[Any, Any, Any], None], kernel: Callable[[Callable[[], None]], Any]
) -> Sampler:
    """Return a sampler that compiles a whole chain before the clock starts.

    NumPyro's own driver compiles at every run, even if it is repeated. The model is a function of
    the modules ``numpyro``, ``numpyro.distributions`` and ``jax.numpy``.
    """

    def sample(draws: int, tune: int, seed: int) -> Draws:
        import jax
        import numpyro

        made = kernel(lambda: model(numpyro, numpyro.distributions, jax.numpy))
        keys = jax.random.split(jax.random.PRNGKey(seed), N_CHAINS)
        starts = [made.init(key, tune, None, (), {}) for key in keys]

        def one_draw(state: Any, _: None) -> Any:
            state = made.sample(state, (), {})
            return state, state.z["k"]

        def whole(state: Any) -> Any:
            return jax.lax.scan(one_draw, state, length=tune + draws)[1]

        chain = jax.jit(whole).lower(starts[0]).compile()
        began = time.perf_counter()
        found = [np.asarray(chain(start)) for start in starts]
        seconds = time.perf_counter() - began
        return Draws(np.stack(found)[:, tune:], seconds)

    return sample


def numpyro_samplers(model: Callable[[Any, Any, Any], None]) -> dict[str, Sampler]:
    """Return NumPyro's samplers of mixed models, or none if it is not installed."""
    try:
        from numpyro.infer import HMC, NUTS, DiscreteHMCGibbs, MixedHMC
    except ImportError:
        return {}
    kernels = {
        "NumPyro DiscreteHMCGibbs": lambda model: DiscreteHMCGibbs(NUTS(model), modified=True),
        "NumPyro MixedHMC": lambda model: MixedHMC(HMC(model, trajectory_length=1.2)),
        # As in NumPyro's documentation: with one update of the index in a trajectory, the default,
        # MixedHMC can stay in the wrong class.
        "NumPyro MixedHMC, 20 updates": lambda model: MixedHMC(
            HMC(model, trajectory_length=1.2), num_discrete_updates=20
        ),
    }
    return {name: with_numpyro(model, kernel) for name, kernel in kernels.items()}


def all_samplers(
    plain: pm.Model,
    by_hand: pm.Model,
    numpyro_model: Callable[[Any, Any, Any], None],
    **options: Any,
) -> dict[str, Sampler]:
    """Return all samplers of a model; options are those of ``CarlinChib`` that the model needs."""
    tuned = {"within_class": mcoem.moves.RandomWalk(n_moves=2), "index_move": "metropolized"}
    return {
        "CarlinChib": with_pymc(plain, lambda: mcoem.CarlinChib(**tuned, **options)),
        "CarlinChib, defaults": with_pymc(plain, lambda: mcoem.CarlinChib(**options)),
        "pm.sample defaults": with_pymc(plain, None),
        "pseudo-priors by hand": with_pymc(by_hand, None),
        **numpyro_samplers(numpyro_model),
    }


def moments_by_quadrature(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return posterior means and standard deviations of the mean and log_sd of `identical`."""
    n = len(y)
    # The mass beyond eight standard deviations to each side is negligible.
    reach = np.linspace(-8.0, 8.0, 801)
    mean = (y.mean() + y.std() / np.sqrt(n) * reach)[:, None]
    log_sd = (np.log(y.std()) + reach / np.sqrt(2 * n))[None, :]
    squares = n * (y.var() + (y.mean() - mean) ** 2)
    log_weight = (
        stats.norm.logpdf(mean, 0.0, 100.0)
        + stats.norm.logpdf(log_sd)
        - n * log_sd
        - 0.5 * squares * np.exp(-2 * log_sd)
    )
    weight = np.exp(log_weight - logsumexp(log_weight))
    first = [(weight * value).sum() for value in (mean, log_sd)]
    second = [
        (weight * (value - center) ** 2).sum()
        for value, center in zip((mean, log_sd), first, strict=True)
    ]
    return np.array(first), np.sqrt(second)


def identical(rng: np.random.Generator) -> Problem:
    """Return two identical models with vague priors, as in docs/notebooks/frozen_index.md.

    They have equal weight. Each class has probability 1/2 by symmetry, for any data.
    """
    y = rng.normal(0.5, 1.0, size=100)
    centers, spreads = moments_by_quadrature(y)

    def model(by_hand: bool) -> pm.Model:
        with pm.Model() as built:
            k = pm.Categorical("k", [0.5, 0.5])

            def latent(name: str, j: int, spread: float, which: int) -> pt.TensorVariable:
                if not by_hand:
                    return pm.Normal(f"{name}_{j}", 0.0, spread)
                on = pm.math.eq(k, j)
                return pm.Normal(
                    f"{name}_{j}",
                    pm.math.switch(on, 0.0, centers[which]),
                    pm.math.switch(on, spread, spreads[which]),
                )

            mean = [latent("mean", j, 100.0, 0) for j in range(2)]
            log_sd = [latent("log_sd", j, 1.0, 1) for j in range(2)]
            first = pm.math.eq(k, 0)
            pm.Normal(
                "y",
                pm.math.switch(first, *mean),
                pm.math.exp(pm.math.switch(first, *log_sd)),
                observed=y,
            )
        return built

    def numpyro_model(numpyro: Any, dist: Any, jnp: Any) -> None:
        k = numpyro.sample("k", dist.Categorical(jnp.array([0.5, 0.5])))
        mean = [numpyro.sample(f"mean_{j}", dist.Normal(0.0, 100.0)) for j in range(2)]
        log_sd = [numpyro.sample(f"log_sd_{j}", dist.Normal(0.0, 1.0)) for j in range(2)]
        center, spread = jnp.where(k == 0, *mean), jnp.exp(jnp.where(k == 0, *log_sd))
        numpyro.sample("y", dist.Normal(center, spread), obs=y)

    blocks = {j: [f"mean_{j}", f"log_sd_{j}"] for j in range(2)}
    return Problem(
        "two identical models",
        np.array([0.5, 0.5]),
        all_samplers(model(by_hand=False), model(by_hand=True), numpyro_model, blocks=blocks),
    )


def levels(rng: np.random.Generator) -> Problem:
    """Return an easy case: two identical models of equal weight, one level each, no vague prior."""
    y = rng.normal(0.5, 1.0, size=20)
    variance = 1 / (1 + len(y))
    mean = variance * y.sum()

    def model(by_hand: bool) -> pm.Model:
        with pm.Model() as built:
            k = pm.Categorical("k", [0.5, 0.5])
            both = []
            for j in range(2):
                on = pm.math.eq(k, j)
                center = pm.math.switch(on, 0.0, mean) if by_hand else 0.0
                spread = pm.math.switch(on, 1.0, np.sqrt(variance)) if by_hand else 1.0
                both.append(pm.Normal(f"level_{j}", center, spread))
            pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), *both), 1.0, observed=y)
        return built

    def numpyro_model(numpyro: Any, dist: Any, jnp: Any) -> None:
        k = numpyro.sample("k", dist.Categorical(jnp.array([0.5, 0.5])))
        a = numpyro.sample("level_0", dist.Normal(0.0, 1.0))
        b = numpyro.sample("level_1", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.where(k == 0, a, b), 1.0), obs=y)

    blocks = {0: ["level_0"], 1: ["level_1"]}
    return Problem(
        "two identical levels",
        np.array([0.5, 0.5]),
        all_samplers(model(by_hand=False), model(by_hand=True), numpyro_model, blocks=blocks),
    )


def regressions(rng: np.random.Generator) -> Problem:
    """Return polynomials of degree 0 to 4, each with its own coefficients."""
    x = np.linspace(-1.0, 1.0, 40)
    designs = [np.stack([x**power for power in range(j + 1)], axis=1) for j in range(5)]
    y = 0.3 + 0.5 * x + 0.9 * x**2 + rng.normal(0.0, 1.0, size=len(x))
    weights = np.array([0.1, 0.15, 0.2, 0.25, 0.3])
    log_weight = np.log(weights)
    moments = []
    for j, design in enumerate(designs):
        covariance = design @ design.T + np.eye(len(x))
        log_weight[j] += stats.multivariate_normal.logpdf(y, np.zeros(len(x)), covariance)
        posterior = np.linalg.inv(design.T @ design + np.eye(j + 1))
        moments.append((posterior @ design.T @ y, np.sqrt(np.diag(posterior))))

    def model(by_hand: bool) -> pm.Model:
        with pm.Model() as built:
            k = pm.Categorical("k", weights)
            center = 0.0
            for j, design in enumerate(designs):
                on = pm.math.eq(k, j)
                mean, spread = moments[j]
                coefficients = pm.Normal(
                    f"coefficients_{j}",
                    pm.math.switch(on, 0.0, mean) if by_hand else 0.0,
                    pm.math.switch(on, 1.0, spread) if by_hand else 1.0,
                    shape=j + 1,
                )
                center = center + pm.math.switch(on, pm.math.dot(design, coefficients), 0.0)
            pm.Normal("y", center, 1.0, observed=y)
        return built

    def numpyro_model(numpyro: Any, dist: Any, jnp: Any) -> None:
        k = numpyro.sample("k", dist.Categorical(jnp.asarray(weights)))
        lines = [
            jnp.asarray(design)
            @ numpyro.sample(f"coefficients_{j}", dist.Normal(0.0, 1.0).expand([j + 1]))
            for j, design in enumerate(designs)
        ]
        numpyro.sample("y", dist.Normal(jnp.stack(lines)[k], 1.0), obs=y)

    blocks = {j: [f"coefficients_{j}"] for j in range(5)}
    return Problem(
        "five regressions of dimensions 1 to 5",
        np.exp(log_weight - logsumexp(log_weight)),
        all_samplers(model(by_hand=False), model(by_hand=True), numpyro_model, blocks=blocks),
    )


def plate(rng: np.random.Generator, n_rows: int = 500) -> Problem:
    """Return observations, each with an index and a latent."""
    weights, centers = np.array([0.5, 0.3, 0.2]), np.array([-1.5, 0.0, 2.0])
    truth = rng.choice(3, p=weights, size=n_rows)
    y = centers[truth] + rng.normal(0.0, np.sqrt(0.36 + 0.25), size=n_rows)
    log_weight = np.log(weights) + stats.norm.logpdf(y[:, None], centers, np.sqrt(0.61))
    exact = np.exp(log_weight - logsumexp(log_weight, axis=1, keepdims=True))
    variance = 1 / (1 / 0.36 + 1 / 0.25)
    means = variance * (centers / 0.36 + y[:, None] / 0.25)
    with pm.Model() as plain:
        k = pm.Categorical("k", weights, shape=n_rows)
        latent = pm.Normal("latent", pm.math.stack(list(centers))[k], 0.6, shape=n_rows)
        pm.Normal("y", latent, 0.5, observed=y)
    with pm.Model() as by_hand:
        k = pm.Categorical("k", weights, shape=n_rows)
        on = pt.eq(k[:, None], np.arange(3))
        latents = pm.Normal(
            "latents",
            pt.switch(on, centers, means),
            pt.switch(on, 0.6, np.sqrt(variance)),
            shape=(n_rows, 3),
        )
        pm.Normal("y", latents[np.arange(n_rows), k], 0.5, observed=y)

    def numpyro_model(numpyro: Any, dist: Any, jnp: Any) -> None:
        with numpyro.plate("rows", n_rows):
            k = numpyro.sample("k", dist.Categorical(jnp.asarray(weights)))
            latent = numpyro.sample("latent", dist.Normal(jnp.asarray(centers)[k], 0.6))
            numpyro.sample("y", dist.Normal(latent, 0.5), obs=y)

    return Problem(
        f"a plate of {n_rows} indices",
        exact,
        all_samplers(plain, by_hand, numpyro_model),
    )


def annealed(
    slope: Callable[..., list[np.ndarray]],
    fitted: PseudoPriors,
    j: int,
    rng: np.random.Generator,
    n_particles: int = 500,
    n_temperatures: int = 1_000,
    n_leapfrog: int = 4,
    step: float = 0.25,
) -> np.ndarray:
    """Return log-weights of annealed importance sampling from a pseudo-prior to its class.

    Their exponentials are unbiased estimates of p(y, I = j). The moves are Hamiltonian, on the
    scale on which the pseudo-prior is standard normal.
    """
    mean, scale = fitted.mean[j], fitted.scale[j]
    temperatures = np.linspace(0.0, 1.0, n_temperatures + 1) ** 1.5
    log_weights = np.zeros(n_particles)

    def at(z: np.ndarray) -> tuple[float, np.ndarray]:
        log_p, gradient = slope(j, mean + scale @ z)
        # Relative to the pseudo-prior, whose log-density at z is log_normalizer - |z|² / 2.
        return float(log_p) - fitted.log_normalizer[j] + 0.5 * float(z @ z), scale.T @ gradient + z

    for particle in range(n_particles):
        z = rng.standard_normal(len(mean))
        ratio, gradient = at(z)
        for before, t in itertools.pairwise(temperatures):
            log_weights[particle] += (t - before) * ratio
            if t == 1.0:
                break
            momentum = rng.standard_normal(len(mean))
            energy = t * ratio - 0.5 * float(z @ z) - 0.5 * float(momentum @ momentum)
            new, new_ratio, new_gradient = z, ratio, gradient
            momentum = momentum + 0.5 * step * (t * new_gradient - new)
            for turn in range(n_leapfrog):
                new = new + step * momentum
                new_ratio, new_gradient = at(new)
                part = 1.0 if turn < n_leapfrog - 1 else 0.5
                momentum = momentum + part * step * (t * new_gradient - new)
            change = t * new_ratio - 0.5 * float(new @ new) - 0.5 * float(momentum @ momentum)
            if np.log(rng.random()) < change - energy:
                z, ratio, gradient = new, new_ratio, new_gradient
    return log_weights


def most_ambiguous(mixture: Any, parameters: xr.Dataset, images: np.ndarray) -> np.ndarray:
    """Return the image whose two best classes have the closest evidence by Laplace."""
    rule = mcoem.esteps.CarlinChibBurst().compile(mixture).pseudo_priors
    theta = {name: np.asarray(value) for name, value in parameters.items()}
    gaps = []
    for image in images:
        fitted = rule({**theta, **mixture.encode(image)}, np.random.default_rng(0))
        last, best = np.sort(fitted.log_evidence)[-2:]
        gaps.append(best - last)
    return images[int(np.argmin(gaps))]


def ambiguous_digit(share: float) -> pm.Model:
    """Return an image under four templates learned from sixty others; two can explain it.

    `share` is the deformation variance over the one that was learned.
    """
    digits = mcoem.datasets.load_usps()
    images = digits["images"].values[digits["labels"].values == 2][:156]
    images = images + 0.2 * np.random.default_rng(2).standard_normal(images.shape)
    mixture = mcoem.TemplateMixture.for_images(
        (16, 16), n_classes=4, rigid_weight=None, priors=mcoem.TemplatePriors()
    )
    e_step = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk())
    em = mcoem.OnlineEM(mixture, e_step=e_step, random_seed=1, progressbar=False)
    em.partial_fit(images[:60])
    learned = em.parameters
    tight = learned.assign(deformation_variance=share * learned["deformation_variance"])
    return mixture.condition(most_ambiguous(mixture, tight, images[60:]), tight)


def digit(rng: np.random.Generator) -> Problem:
    """Return an image that two of four templates can explain."""
    model = ambiguous_digit(0.05)
    with model:
        step = mcoem.CarlinChib()
    density = step._density
    step.setup_chain(rng, 0, 1)
    step.step(model.initial_point(0))
    fitted = step.chain.pseudo_priors

    n = density.n_latents
    k, x = pt.scalar("k", dtype="int64"), pt.vector("x", shape=(n,))
    slope = pytensor.function([k, x], [density.log_density(k, x), density.gradient(k, x)])
    best = fitted.log_evidence.max()
    log_evidence = np.full(density.n_classes, -np.inf)
    for j in np.flatnonzero(fitted.log_evidence > best - 15.0):
        log_weight = annealed(slope, fitted, int(j), rng)
        log_evidence[j] = logsumexp(log_weight) - np.log(len(log_weight))
        weight = np.exp(log_weight - log_weight.max())
        error = weight.std(ddof=1) / weight.mean() / np.sqrt(len(weight))
        logging.getLogger("benchmark").warning(
            "class %d: log-evidence %.2f +- %.2f", j, log_evidence[j], error
        )
    exact = np.exp(log_evidence - logsumexp(log_evidence))

    with pm.Model() as by_hand:
        k = pm.Categorical("class_index", np.full(density.n_classes, 1 / density.n_classes))
        u = pm.Normal("u", shape=(density.n_classes, n))
        x = pt.constant(fitted.mean)[k] + pt.constant(fitted.scale)[k] @ u[k]
        pm.Potential(
            "image",
            density.log_density(k, x)
            - pt.constant(fitted.log_normalizer)[k]
            + 0.5 * (u[k] ** 2).sum(),
        )

    def numpyro_model(numpyro: Any, dist: Any, jnp: Any) -> None:
        from pymc.sampling.jax import get_jaxified_logp

        cached = numpyro_model.__dict__
        if not cached:
            names = [value.name for value in model.value_vars]
            cached["density"] = (get_jaxified_logp(model, negative_logp=False), names)
        logp, names = cached["density"]
        k = numpyro.sample("k", dist.Categorical(jnp.full(4, 0.25)))
        x = numpyro.sample("x", dist.Normal(jnp.zeros(n), 1.0).to_event(1))
        point = {"class_index": k, "deformation": x}
        prior = dist.Normal(jnp.zeros(n), 1.0).to_event(1).log_prob(x)
        numpyro.factor("image", logp([point[name] for name in names]) - prior)

    return Problem(
        "one 16 × 16 digit, four templates",
        exact,
        {
            "CarlinChib": with_pymc(model, mcoem.CarlinChib, "class_index"),
            "CarlinChib, annealed jumps": with_pymc(
                model,
                lambda: mcoem.CarlinChib(
                    within_class=mcoem.moves.Hamiltonian(n_moves=1, n_leapfrog=8),
                    jump=mcoem.moves.AnnealedJump(n_temperatures=30),
                ),
                "class_index",
            ),
            "pm.sample defaults": with_pymc(model, None, "class_index"),
            "pseudo-priors by hand": with_pymc(by_hand, None, "class_index"),
            **numpyro_samplers(numpyro_model),
        },
    )


@dataclass(frozen=True)
class Verdict:
    """Figures of one run of a sampler.

    ``shares`` are of shape (n_chains, n_classes) or (n_chains, n_rows, n_classes).
    """

    shares: np.ndarray
    n_draws: int
    seconds: float
    estimated_size: float
    error: float


def likely(exact: np.ndarray) -> np.ndarray:
    """Return which classes occur often enough to be compared."""
    return (exact > 0.02) & (exact < 0.98)


def verdict_of(draws: Draws, exact: np.ndarray) -> Verdict:
    """Return shares, the worst class's effective sample size, and the largest error of a chain."""
    member = draws.class_index[..., None] == np.arange(exact.shape[-1])
    shares = member.mean(axis=1)
    flat = member.reshape(*member.shape[:2], -1).astype(float)
    sizes = []
    for column in np.flatnonzero(likely(exact).ravel())[:60]:
        values = flat[:, :, column]
        frozen = (values.std(axis=1) == 0).any()
        data = xr.DataArray(values, dims=("chain", "draw"))
        sizes.append(0.0 if frozen else float(az.ess(data)))
    error = float(np.abs(shares - exact).max())
    return Verdict(shares, draws.class_index.shape[1], draws.seconds, min(sizes), error)


def size_by_error(verdicts: list[Verdict], exact: np.ndarray) -> float:
    """Return effective draws per second of the worst class, by squared error; rows are summed."""
    shares = np.concatenate([verdict.shares for verdict in verdicts])
    least = 0.25 / min(verdict.n_draws for verdict in verdicts) ** 2
    squared = np.maximum(((shares - exact) ** 2).mean(axis=0), least)
    counted = likely(exact)
    rows = tuple(range(exact.ndim - 1))
    spread = np.where(counted, exact * (1.0 - exact), 0.0).sum(axis=rows)
    missed = np.where(counted, squared, 0.0).sum(axis=rows)
    size = (spread[missed > 0] / missed[missed > 0]).min()
    return float(N_CHAINS * size / np.median([verdict.seconds for verdict in verdicts]))


def main() -> None:
    """Let the samplers take turns and print a table."""
    given = begin(
        __doc__,
        draws=2_000,
        tune=500,
        repeats=3,
        rows=(500, "rows of the plate"),
        only={"choices": ["identical", "levels", "regressions", "plate", "digit"]},
        skip=({"action": "append", "default": []}, "a sampler to skip"),
    )
    warnings.simplefilter("ignore")
    problems: dict[str, Callable[[np.random.Generator], Problem]] = {
        "identical": identical,
        "levels": levels,
        "regressions": regressions,
        "plate": lambda rng: plate(rng, given.rows),
        "digit": digit,
    }
    for number, (name, make) in enumerate(problems.items()):
        if given.only not in (None, name):
            continue
        # Each problem has its own generator, so that --only does not change the data.
        problem = make(np.random.default_rng([1534, number]))
        found: dict[str, list[Verdict]] = {name: [] for name in problem.samplers}
        for name, sampler in problem.samplers.items():
            if name not in given.skip and not name.startswith("NumPyro"):
                sampler(10, 10, 0)  # compiles; NumPyro's samplers compile before their clock starts
        for repeat in range(given.repeats):
            for name, sampler in problem.samplers.items():
                if name not in given.skip:
                    drawn = sampler(given.draws, given.tune, 10 * repeat + 1)
                    verdict = verdict_of(drawn, problem.exact)
                    found[name].append(verdict)
                    console.print(
                        f"{name}: {verdict.estimated_size / verdict.seconds:.3g}, "
                        f"{verdict.error:.3f}; {verdict.seconds:.1f} s"
                    )
        tell(problem, found, given.draws)


def tell(problem: Problem, found: dict[str, list[Verdict]], draws: int) -> None:
    """Print the table of one problem."""
    compared = {name: verdicts for name, verdicts in found.items() if verdicts}
    estimated = {
        name: float(np.median([each.estimated_size / each.seconds for each in verdicts]))
        for name, verdicts in compared.items()
    }
    true = {name: size_by_error(verdicts, problem.exact) for name, verdicts in compared.items()}
    first = next(iter(compared))  # CarlinChib, unless it was skipped
    rows = []
    for name, verdicts in compared.items():
        speed = estimated[name]
        ratio = f"{estimated[first] / speed:.1f}" if speed > 0 else "a chain froze"
        rows.append(
            (
                name,
                f"{speed:.4g}",
                ratio,
                f"{true[name]:.4g}",
                f"{true[first] / true[name]:.1f}",
                f"{max(each.error for each in verdicts):.3f}",
            )
        )
    headings = ("sampler", "ESS/s, ArviZ", "ours over it", "ESS/s, by error", "ours over it")
    title = f"{problem.name}: {N_CHAINS} chains of {draws} draws"
    tell_table((*headings, "largest error"), rows, title)


if __name__ == "__main__":
    main()
