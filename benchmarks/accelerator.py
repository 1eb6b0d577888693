"""Compare bursts of many observations and chains at once on an accelerator with processor cores.

JAX runs the package's own graphs, the density with its gradient and curvature, the Carlin-Chib
sweep and the statistics, in step for a whole mini-batch of observations and several chains of each.
That fills an accelerator; without one JAX runs the same on the processor. The results are compared
with the package's own burst: modes by their log-density, sweeps by the draws from the same noise,
whole bursts by their means over many. Each chain has its own tuning, and the kept draws are
divided among the chains.

The reference is the E-step as `OnlineEM` calls it, in the given number of processes, on the same
machine and in the same run. Images of 16 × 16 pixels under four classes show discs with noise 0.2.
Bursts have 100 draws after 50 of tuning, with 20 random-walk moves per sweep.

    python benchmarks/accelerator.py                              # JAX's default device
    JAX_PLATFORMS=cpu python benchmarks/accelerator.py --batches 8 --rounds 1

Observations per second include the mode search, the sweeps and the statistics. Compilation comes
before and is not counted.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from cost_growth import discs, theta_of
from threadpoolctl import threadpool_limits
from timing import begin, console, tell_table

import pymc_mcoem as mcoem
from pymc_mcoem.carlin_chib.kernel import PseudoPriorSymbols, SweepState, build_sweep
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.em.burst import adaptation_gains

SIDE, N_CLASSES, NOISE = 16, 4, 0.2
DRAWS, TUNE = 100, 50
#: Newton steps of every search. The package's own searches stop after 5 to 15.
N_STEPS = 20


@cache
def setting() -> tuple[mcoem.TemplateMixture, dict[str, np.ndarray], np.ndarray]:
    """Return the mixture, θ at which its templates show discs, and these images."""
    rng = np.random.default_rng(1)
    mixture = mcoem.TemplateMixture.for_images((SIDE, SIDE), n_classes=N_CLASSES)
    shown = discs(SIDE, N_CLASSES, rng)
    return mixture, theta_of(mixture, shown), shown


def observations(n: int) -> np.ndarray:
    """Return noisy images, (n, side, side)."""
    rng = np.random.default_rng(2)
    _, _, shown = setting()
    clean = shown[rng.integers(N_CLASSES, size=n)]
    return clean + NOISE * rng.standard_normal(clean.shape)


@cache
def compiled_burst() -> Any:
    """Return the package's own E-step, compiled once in every process."""
    return mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk()).compile(setting()[0])


def explain(images: np.ndarray) -> int:
    """Run the package's E-step for each observation; return the number of observations."""
    mixture, theta, _ = setting()
    e_step = compiled_burst()
    rng = np.random.default_rng(3)
    with threadpool_limits(1):
        for image in images:
            e_step(
                mixture.encode(image),
                theta,
                rng,
                e_step.initial_state(),
                draws=DRAWS,
                tune=TUNE,
            )
    return len(images)


class JaxBurst:
    """The package's burst in JAX, for a batch of observations and several chains of each.

    Parameters
    ----------
    n_chains : int
        Chains of each observation, among which its kept draws are divided.
    """

    def __init__(self, n_chains: int = 1) -> None:
        import jax

        self.mixture, theta, _ = setting()
        own = compiled_burst()
        self.density, self.move = own.density, own.settings.within_class
        self.n_chains = n_chains
        self.names = list(self.density.data_inputs)
        self.theta = theta
        # θ is one for all observations
        self.data_axes = [None if name in theta else 0 for name in self.names]
        self.noise_size = own.burst.noise_size
        self.log_step = own.burst.initial_log_step
        self.starts = np.asarray(self.mixture.geometry.starts)
        self.evaluate = self._graph(self._evaluation)
        self.sweep = self._graph(self._sweep)
        self.statistics = self._graph(self._statistics)
        self.find_modes = jax.jit(self._find_modes)
        self.run = jax.jit(self._run, static_argnums=(0, 1))

    def _graph(self, build: Callable[[], tuple[list[Any], list[Any]]]) -> Any:
        """Return a graph of the package as a function that JAX can trace."""
        inputs, outputs = build()
        function = compile_with_data(self.density, inputs, outputs, "JAX").function
        n_given = len(inputs) + len(self.density.inputs)
        # the model's constants are the last arguments
        constants = [each.storage[0] for each in function.input_storage[n_given:]]
        return lambda *arguments: function.vm.jit_fn(*arguments, *constants)

    def _evaluation(self) -> tuple[list[Any], list[Any]]:
        k, x = pt.scalar("k", dtype="int64"), self._vector("x", self.density.n_latents)
        density = self.density
        given = [self.mixture.geometry.gauss_newton, self.mixture.geometry.prior_precision]
        return [k, x], [
            density.log_density(k, x),
            density.gradient(k, x),
            *density.place(given, k, x),
        ]

    def _sweep(self) -> tuple[list[Any], list[Any]]:
        n = self.density.n_latents
        noise, gain = self._vector("noise", self.noise_size), pt.scalar("gain", dtype="float64")
        k, x = pt.scalar("k", dtype="int64"), self._vector("x", n)
        log_step = self._vector("log_step", N_CLASSES)
        symbols = PseudoPriorSymbols.create(N_CLASSES, n)
        state, info = build_sweep(
            self.density, SweepState(k, x, log_step), noise, symbols, gain, self.move
        )
        outputs = [state.class_index, state.position, state.log_step, info.log_weight]
        return [noise, gain, k, x, log_step, *symbols.as_list()], outputs

    def _statistics(self) -> tuple[list[Any], list[Any]]:
        k, x = pt.scalar("k", dtype="int64"), self._vector("x", self.density.n_latents)
        expressions = [
            pt.cast(pt.as_tensor_variable(value), "float64")
            for value in self.mixture.statistics.values()
        ]
        return [k, x], self.density.place(expressions, k, x)

    @staticmethod
    def _vector(name: str, size: int) -> Any:
        return pt.tensor(name, dtype="float64", shape=(size,))

    def encode(self, images: np.ndarray) -> list[Any]:
        """Return the data of a batch on the device, in the order in which graphs take them."""
        import jax.numpy as jnp

        encoded = [self.mixture.encode(image) for image in images]
        values = []
        for name in self.names:
            value = self.theta[name] if name in self.theta else np.stack([e[name] for e in encoded])
            values.append(jnp.asarray(np.asarray(value, self.density.data_inputs[name].dtype)))
        return values

    def _find_modes(self, data: list[Any]) -> tuple[Any, ...]:
        """Return mean, scale, whiten, log_normalizer, log_evidence, each (n, n_classes, ...)."""
        import jax
        import jax.numpy as jnp

        n = self.density.n_latents

        def search(k: Any, start: Any, *values: Any) -> tuple[Any, ...]:
            def improve(state: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
                x, log_p, gradient, curvature, metric, damping = state
                factor = jnp.linalg.cholesky(curvature + damping * metric)
                step = jax.scipy.linalg.cho_solve((factor, True), gradient)
                candidate = x + jnp.nan_to_num(step)
                found = self.evaluate(k, candidate, *values)
                better = ~jnp.isnan(step[0]) & jnp.isfinite(found[0]) & (found[0] >= log_p)
                kept = [
                    jnp.where(better, new, old)
                    for new, old in zip(
                        (candidate, *found), (x, log_p, gradient, curvature, metric), strict=True
                    )
                ]
                lowered = jnp.where(damping < 1e-6, 0.0, damping / 8)
                raised = jnp.maximum(damping * 8, 1e-4)
                return (*kept, jnp.where(better, lowered, raised)), None

            begin = (start, *self.evaluate(k, start, *values), jnp.asarray(1e-3))
            return jax.lax.scan(improve, begin, None, length=N_STEPS)[0][:4]

        axes = self.data_axes
        of_starts = jax.vmap(search, in_axes=(None, 0, *[None] * len(axes)))
        of_classes = jax.vmap(of_starts, in_axes=(0, None, *[None] * len(axes)))
        of_all = jax.vmap(of_classes, in_axes=(None, None, *axes))
        x, log_p, _, precision = of_all(jnp.arange(N_CLASSES), jnp.asarray(self.starts), *data)
        best = jnp.argmax(log_p, axis=2)[:, :, None]
        x, log_p = (
            jnp.take_along_axis(x, best[..., None], axis=2)[:, :, 0],
            jnp.take_along_axis(log_p, best, axis=2)[:, :, 0],
        )
        precision = jnp.take_along_axis(precision, best[..., None, None], axis=2)[:, :, 0]
        whiten = jnp.swapaxes(jnp.linalg.cholesky(precision), -1, -2)
        identity = jnp.broadcast_to(jnp.eye(n), whiten.shape)
        scale = jax.scipy.linalg.solve_triangular(whiten, identity, lower=False)
        half_log_det = jnp.log(jnp.diagonal(whiten, axis1=-2, axis2=-1)).sum(axis=-1)
        normalizer = half_log_det - 0.5 * n * jnp.log(2 * jnp.pi)
        return x, scale, whiten, normalizer, log_p - normalizer

    def _run(
        self, draws: int, tune: int, key: Any, pseudo_priors: tuple[Any, ...], data: list[Any]
    ) -> list[Any]:
        """Return shares of visits and mean statistics, (n, n_classes, ...) each."""
        import jax
        import jax.numpy as jnp

        mean, scale, whiten, normalizer, log_evidence = pseudo_priors
        n_observations, n = len(mean), self.density.n_latents
        shape = (n_observations, self.n_chains)
        keys = jax.random.split(key, 3)
        first = jax.random.categorical(keys[0], log_evidence[:, None], shape=shape)
        rows = jnp.arange(n_observations)[:, None]
        standard = jax.random.normal(keys[1], (*shape, n))
        position = mean[rows, first] + jnp.einsum("ocij,ocj->oci", scale[rows, first], standard)
        log_step = jnp.broadcast_to(jnp.asarray(self.log_step), (*shape, N_CLASSES))

        def over_all(function: Any, n_own: int, n_given: int = 0, n_pseudo: int = 0) -> Any:
            """Map over `n_own` arguments of each chain and `n_pseudo` of each observation."""
            chains = (*[0] * n_own, *[None] * (n_given + n_pseudo + len(self.names)))
            every = (*[0] * n_own, *[None] * n_given, *[0] * n_pseudo, *self.data_axes)
            return jax.vmap(jax.vmap(function, in_axes=chains), in_axes=every)

        def sweep(*arguments: Any) -> Any:
            noise, k, x, ls, gain, *others = arguments
            return self.sweep(noise, gain, k, x, ls, *others)

        sweeps = over_all(sweep, 4, 1, 4)
        statistics_of = over_all(self.statistics, 2)

        def move(state: tuple[Any, ...], given: tuple[Any, Any]) -> tuple[Any, None]:
            k, x, ls = state
            key, gain = given
            noise = jax.random.normal(key, (*shape, self.noise_size))
            moved = sweeps(noise, k, x, ls, gain, mean, scale, whiten, normalizer, *data)
            return tuple(moved[:3]), None

        def add(state: tuple[Any, Any], key: Any) -> tuple[Any, None]:
            chain, total = state
            chain, _ = move(chain, (key, 0.0))
            active = jax.nn.one_hot(chain[0], N_CLASSES)
            values = statistics_of(chain[0], chain[1], *data)
            added = [
                sums + jnp.einsum("ocj,oc...->oj...", active, value)
                for sums, value in zip(total[1:], values, strict=True)
            ]
            return (chain, [total[0] + active.sum(axis=1), *added]), None

        sizes = jax.eval_shape(statistics_of, first, position, *data)
        total = [jnp.zeros((n_observations, N_CLASSES))]
        total += [jnp.zeros((n_observations, N_CLASSES, *each.shape[2:])) for each in sizes]
        kept = -(-draws // self.n_chains)
        keys = jax.random.split(keys[2], tune + kept)
        gains = jnp.asarray(adaptation_gains(tune, tune))
        chain = jax.lax.scan(move, (first, position, log_step), (keys[:tune], gains))[0]
        _, total = jax.lax.scan(add, (chain, total), keys[tune:])[0]
        return [sums / (kept * self.n_chains) for sums in total]


def check(burst: JaxBurst, images: np.ndarray) -> str:
    """Compare modes, and sweeps from the same noise, with the package's own."""
    own, rng = compiled_burst(), np.random.default_rng(4)
    data = burst.encode(images)
    found = [np.asarray(each) for each in burst.find_modes(data)]
    behind, apart, unlike = [], [], []
    for row, image in enumerate(images):
        values = {**burst.theta, **burst.mixture.encode(image)}
        pseudo_priors = own.pseudo_priors(values, rng)
        best = int(np.argmax(pseudo_priors.log_evidence))
        behind.append(float(pseudo_priors.log_evidence[best] - found[4][row, best]))
        noise = np.random.default_rng(row).standard_normal((5, burst.noise_size))
        start, ls = (best, pseudo_priors.mean[best]), burst.log_step
        gains = adaptation_gains(5, 5)
        theirs = own.burst(np.random.default_rng(row), start, ls, pseudo_priors, gains, values)
        k, x = np.int64(start[0]), start[1]
        one = [
            each if axis is None else each[row]
            for each, axis in zip(data, burst.data_axes, strict=True)
        ]
        for t in range(5):
            k, x, ls, _ = burst.sweep(noise[t], gains[t], k, x, ls, *pseudo_priors.as_list(), *one)
            apart.append(float(np.abs(np.asarray(x) - theirs.position[t]).max()))
            apart.append(float(int(k) != theirs.class_index[t]))
        summed = own.statistics(np.array([int(k)]), np.asarray(x)[None], np.ones(1), values)
        for name, value in zip(own.statistics.names, burst.statistics(k, x, *one), strict=True):
            unlike.append(float(np.abs(np.asarray(value) - summed[name][int(k)]).max()))
    return (
        f"evidence of the best mode, package minus JAX: {min(behind):.1e} to {max(behind):.1e}; "
        f"draws from the same noise differ by at most {max(apart):.1e}, their statistics by "
        f"{max(unlike):.1e}"
    )


def compare(n_images: int = 3, n_runs: int = 24, n_chains: int = 2) -> str:
    """Compare whole bursts on ambiguous images by their Monte Carlo errors.

    Nine pixels in ten are missing. Both sides run the same number of bursts for each image. The
    greatest difference of mean class weights and of mean statistics is given in standard errors.
    """
    own, burst = compiled_burst(), JaxBurst(n_chains)
    images = observations(n_images)
    images[np.random.default_rng(5).random(images.shape) < 0.9] = np.nan
    import jax

    data = burst.encode(np.repeat(images, n_runs, axis=0))
    modes = burst.find_modes(data)
    found = [np.asarray(each) for each in burst.run(DRAWS, TUNE, jax.random.key(7), modes, data)]
    rng, worst, spread = np.random.default_rng(8), 0.0, 0.0
    for row, image in enumerate(images):
        mine = slice(row * n_runs, (row + 1) * n_runs)
        theirs = [
            own(
                burst.mixture.encode(image),
                burst.theta,
                rng,
                own.initial_state(),
                draws=DRAWS,
                tune=TUNE,
            ).statistics
            for _ in range(n_runs)
        ]
        for place, name in enumerate(["class_weight", *own.statistics.names]):
            one = found[place][mine].reshape(n_runs, N_CLASSES, -1).sum(axis=2)
            other = np.stack([each[name].reshape(N_CLASSES, -1).sum(axis=1) for each in theirs])
            error = np.sqrt((one.var(axis=0, ddof=1) + other.var(axis=0, ddof=1)) / n_runs)
            apart = np.abs(one.mean(axis=0) - other.mean(axis=0))
            worst = max(worst, float(np.max(apart / np.maximum(error, 1e-9 * np.abs(other).max()))))
            if not place:
                spread = max(spread, float(np.min(np.maximum(other.mean(axis=0), 1e-9).max())))
    return (
        f"whole bursts, {n_chains} chains, {n_images} images with 9 pixels of 10 missing (greatest "
        f"class weight at most {spread:.2f}): means differ by at most {worst:.1f} standard errors"
    )


@contextmanager
def workers(n: int) -> Iterator[Callable[[np.ndarray], float]]:
    """Yield a function that runs E-steps in processes and returns observations per second."""
    with ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("spawn")) as pool:

        def measure(images: np.ndarray) -> float:
            began = time.perf_counter()
            done = sum(pool.map(explain, np.array_split(images, n)))
            return done / (time.perf_counter() - began)

        measure(observations(2 * n))  # compiles
        yield measure


def main() -> None:
    """Check, measure in turn, and print."""
    given = begin(__doc__, batches=[16, 64, 256, 1_024], chains=[1, 4], processes=2, rounds=3)
    import jax

    device = jax.devices()[0]
    console.print(f"JAX {jax.__version__} on {device.device_kind} ({device.platform})")
    console.print(check(JaxBurst(), observations(4)))
    console.print(compare())
    rows = []
    with workers(given.processes) as on_cores:
        for n_chains in given.chains:
            burst = JaxBurst(n_chains)
            run = partial(burst.run, DRAWS, TUNE)
            for size in given.batches:
                images = observations(size)
                key = jax.random.key(1)
                began = time.perf_counter()
                data = burst.encode(images)
                jax.block_until_ready(run(key, burst.find_modes(data), data))
                compiling = time.perf_counter() - began
                spent: list[tuple[float, float, float, float]] = []
                for round_ in range(given.rounds):
                    began = time.perf_counter()
                    data = burst.encode(images)
                    modes = jax.block_until_ready(burst.find_modes(data))
                    found = time.perf_counter()
                    jax.block_until_ready(run(jax.random.key(round_), modes, data))
                    done = time.perf_counter()
                    cores = on_cores(images[: 8 * given.processes])
                    spent.append((found - began, done - found, size / (done - began), cores))
                middle = [statistics.median(each) for each in zip(*spent, strict=True)]
                rows.append(
                    (
                        str(size),
                        str(n_chains),
                        f"{compiling:.0f}",
                        f"{1e3 * middle[0]:.0f}",
                        f"{1e3 * middle[1]:.0f}",
                        f"{middle[2]:.0f}",
                        f"{middle[3]:.1f}",
                        f"{middle[2] / middle[3]:.1f}",
                    )
                )
                console.print(f"batch {size}, {n_chains} chains: {middle[2]:.1f} a second")
    headings = ("batch", "chains", "compiling, s", "modes, ms", "sweeps, ms", "a second")
    tell_table(
        (*headings, f"{given.processes} cores, a second", "ratio"),
        rows,
        f"Bursts of {DRAWS} draws after {TUNE}, C = {N_CLASSES}, {SIDE} × {SIDE}",
    )


if __name__ == "__main__":
    main()
