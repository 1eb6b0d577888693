"""Bursts of many observations in lockstep, in JAX: searches, sweeps and statistics.

Each compiled function is called once for each chunk of observations. On a processor, chunks fit
into its caches and run in threads; on an accelerator, they fit into its memory. The last chunk is
padded to a power of two, at least a quarter of a chunk, so that few shapes are compiled. The
results of an observation do not depend on the others of its chunk, up to rounding.

On a processor, noise comes from each observation's generator, in the order of a single burst, so
that draws are those of the other back ends. An accelerator makes its noise from a key that the
observation's generator gives.

Importing this module imports JAX.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from joblib import cpu_count

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors, class_shares
from pymc_mcoem.carlin_chib.sweeps_jax import Chains, LockstepSweeps
from pymc_mcoem.compiling.graphs_jax import JaxGraph, compiled, precision, require_own_process
from pymc_mcoem.compiling.messages import compiling
from pymc_mcoem.em.esteps.burst_calls import BurstCall, BurstResult
from pymc_mcoem.laplace.modes import FINE, ModeStatus, search_troubles
from pymc_mcoem.laplace.search_jax import Fits, LockstepSearch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.laplace.search import ModeSearch

__all__ = ["LockstepBursts"]

#: Largest number of observations in a chunk on a processor, whose caches hold no more. Fewer than
#: twice as many are halved for two threads, down to the second number.
_ON_PROCESSOR, _HALVED = 32, 16
#: Largest number of observations in a chunk on an accelerator, and their share of its memory.
_ON_ACCELERATOR, _MEMORY_SHARE = 1_024, 0.3
#: Bytes of noise that a chunk may have.
_NOISE = 2**28
#: Numbers that an evaluation of the density holds, for each class and each number of the
#: observation's data. Matrices and results are counted separately.
_WITHIN = 200


class LockstepBursts:
    """Bursts of Carlin-Chib sweeps with Laplace pseudo-priors, of many observations at once.

    Parameters
    ----------
    starts : ndarray of shape (n_starts, n_latents)
    statistics : mapping of str to TensorVariable
        Expressions in variables of the model.
    observation : collection of str
        Names of the data that hold the observation.
    at_once : int, optional
        Largest number of observations of a chunk.
    dtype : str
        ``"float64"`` or ``"float32"``.
    own_noise : bool, optional
        Whether noise comes from the observations' generators and not from the device. Default: on
        a processor.
    sweeps : type
        Class of the sweeps, if not `LockstepSweeps`.
    """

    def __init__(
        self,
        density: ClassDensity,
        search: ModeSearch,
        starts: np.ndarray,
        move: WithinClassMove,
        statistics: Mapping[str, Any],
        observation: Sequence[str],
        *,
        at_once: int | None = None,
        dtype: str = "float64",
        own_noise: bool | None = None,
        sweeps: type[LockstepSweeps] = LockstepSweeps,
    ) -> None:
        self._density, self._dtype = density, dtype
        self._on_processor = jax.default_backend() == "cpu"
        self.own_noise = self._on_processor if own_noise is None else own_noise
        self._n_threads = cpu_count() if self._on_processor else 1
        self._is_shared = tuple(name not in observation for name in density.data_inputs)
        self._names = tuple(statistics)
        with precision(dtype), _untold():
            self._search = LockstepSearch(search, starts, self._is_shared)
            self._sweeps = sweeps(density, move, self._is_shared)
            k = pt.scalar("class_index", dtype="int64")
            x = pt.tensor("position", dtype="float64", shape=(density.n_latents,))
            expressions = [
                pt.cast(pt.as_tensor_variable(value), "float64") for value in statistics.values()
            ]
            self._statistics = JaxGraph(density, [k, x], density.place(expressions, k, x))
        self._run = compiled(self._all_sweeps)
        self._averaged = compiled(self._all_means, static_argnums=0)
        self._chosen = compiled(_packed)
        self._announced: set[Any] = set()
        #: Total seconds of each part; set it to an empty dictionary to measure them.
        self.seconds: dict[str, float] | None = None
        self.at_once = at_once or (
            _ON_PROCESSOR if self._on_processor else self._that_fit(len(starts))
        )

    def _that_fit(self, n_starts: int) -> int:
        """Return how many observations fit into the accelerator's memory, a power of two."""
        density = self._density
        n, n_rows = density.n_latents, density.n_classes * n_starts
        sizes = [np.prod(density.model[name].get_value().shape) for name in density.data_inputs]
        own = sum(size for size, same in zip(sizes, self._is_shared, strict=True) if not same)
        n_floats = n_rows * (10 * n * n + _WITHIN * own)
        limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 8 * 2**30)
        most = int(_MEMORY_SHARE * limit / (8 * n_floats))
        return int(np.clip(1 << (max(most, 1).bit_length() - 1), 1, _ON_ACCELERATOR))

    def _with_noise(self, n_sweeps: int) -> int:
        """Return how many observations may have noise at once, a power of two."""
        if not self.own_noise:
            return self.at_once
        most = _NOISE // (8 * max(n_sweeps, 1) * self._sweeps.noise_size)
        return 1 << (max(most, 1).bit_length() - 1)

    def __call__(
        self,
        calls: Sequence[BurstCall],
        tune: int,
        *,
        keeps_fit: bool = False,
        summed: bool = True,
    ) -> list[BurstResult | None]:
        """Run the bursts of observations that have the same θ.

        Parameters
        ----------
        calls : sequence of BurstCall
            All have the same number of sweeps; either all or none have a `fit`.
        tune : int
            Sweeps before the first draw.
        keeps_fit : bool
            Whether the pseudo-priors are returned.
        summed : bool
            Whether statistics are returned, or else the positions of the draws.

        Returns
        -------
        list of BurstResult or None
            None for an observation without density at some sweep, which has to be run alone.
        """
        require_own_process()
        with _untold():
            return self._all(calls, tune, keeps_fit, summed)

    def _all(
        self, calls: Sequence[BurstCall], tune: int, keeps_fit: bool, summed: bool
    ) -> list[BurstResult | None]:
        size = min(self.at_once, self._with_noise(len(calls[0].gains)))
        if self._on_processor:
            # whatever the number of cores, since results depend on the size by rounding
            half = -(-len(calls) // 2)
            size = min(size, max(1 << (half - 1).bit_length(), _HALVED))
        chunks = [calls[at : at + size] for at in range(0, len(calls), size)]
        run_chunk = partial(self._chunk, size=size, tune=tune, keeps_fit=keeps_fit, summed=summed)
        key = len(calls[0].gains), tune, len(chunks[0]), summed
        if key not in self._announced:
            # the first chunk compiles, in one thread
            with compiling("bursts for JAX"):
                first = run_chunk(chunks.pop(0))
            self._announced.add(key)
        else:
            first = []
        if self._n_threads == 1 or len(chunks) < 2:
            return [*first, *(each for chunk in chunks for each in run_chunk(chunk))]
        with ThreadPoolExecutor(min(self._n_threads, len(chunks))) as pool:
            return [*first, *(each for found in pool.map(run_chunk, chunks) for each in found)]

    def _chunk(
        self, calls: Sequence[BurstCall], *, size: int, tune: int, keeps_fit: bool, summed: bool
    ) -> list[BurstResult | None]:
        """Run the bursts of one chunk."""
        with precision(self._dtype):
            laps = _Laps(self.seconds)
            n = max(1 << (len(calls) - 1).bit_length(), 1 << (max(size // 4, 1).bit_length() - 1))
            padded = [*calls, *[calls[-1]] * (n - len(calls))]
            values = self._values(padded)
            laps.end("data", values)
            fits = self._fitted(padded, values)
            log_evidence, status = jax.device_get((fits.log_evidence, fits.status))
            log_evidence = _in_double(log_evidence)[: len(calls)]
            laps.end("searches", fits)
            starts = self._starts(calls, padded, log_evidence)
            gains = np.stack([each.gains for each in padded], axis=1)
            noise = self._noise(calls, n, len(gains))
            laps.end("starts and noise", ())
            end, drawn = self._run(starts, noise, gains, fits, values, self._sweeps.shared())
            laps.end("sweeps", drawn)
            means = None
            if summed:
                means = self._averaged(tune, *drawn[:2], values, self._statistics.shared())
                laps.end("statistics", means)
                # chains whose statistics are summed need only their last position
                drawn = drawn._replace(position=end.position[None])
            end, drawn = jax.device_get((end, drawn))
            index = np.ascontiguousarray(drawn.class_index.T, dtype=np.int64)
            counts = _counts(index[:, tune:], self._density.n_classes)
            if means is not None:
                means = self._fetched(means, counts > 0)
            fitted = list(map(_in_double, fits[:5])) if keeps_fit else None
            laps.end("results", ())
        position, log_weight, acceptance = (
            _in_double(each).swapaxes(0, 1)
            for each in (drawn.position, drawn.log_weight, drawn.acceptance)
        )
        log_step = _in_double(end.log_step)
        has_density = np.isfinite(log_weight.max(axis=2)).all(axis=1)
        has_troubles = ~np.isin(status, [_STATUSES.index(each) for each in FINE]).all(axis=1)
        found: list[BurstResult | None] = []
        for row, each in enumerate(calls):
            if not has_density[row]:
                found.append(None)
                continue
            sweeps = Sweeps(
                index[row],
                position[row],
                log_weight[row],
                None,
                acceptance[row],
                log_step[row].copy(),
            )
            statistics: dict[str, np.ndarray] = {}
            if means is not None:
                # in the order of `WeightedStatistics`
                statistics.update(zip(self._names, (mean[row] for mean in means), strict=True))
                statistics["class_weight"] = counts[row] / (index.shape[1] - tune)
            troubles: dict[str, int] = {}
            if has_troubles[row] and each.fit is None:
                statuses = [_STATUSES[place] for place in status[row]]
                troubles = search_troubles(statuses, log_evidence[row])
            fit = None if fitted is None else PseudoPriors(*(part[row] for part in fitted))
            found.append(BurstResult(statistics, sweeps, log_evidence[row], troubles, fit))
        return found

    def _values(self, calls: Sequence[BurstCall]) -> list[Any]:
        """Return the density's data of a chunk on the device."""
        found = []
        for (name, symbol), same in zip(
            self._density.data_inputs.items(), self._is_shared, strict=True
        ):
            arrays = [each.values[name] for each in calls[: 1 if same else None]]
            value = arrays[0] if same else np.stack(arrays)
            found.append(jnp.asarray(np.asarray(value, dtype=symbol.dtype)))
        return found

    def _fitted(self, calls: Sequence[BurstCall], values: list[Any]) -> Fits:
        """Return pseudo-priors on the device: those that were kept, or new ones."""
        fits = [each.fit for each in calls if each.fit is not None]
        if fits:
            arrays = [[*each.as_list(), each.log_evidence] for each in fits]
            known = [jnp.asarray(np.stack(alike)) for alike in zip(*arrays, strict=True)]
            return Fits._make([*known, jnp.zeros(known[-1].shape, dtype=int)])
        return self._search(len(calls), values, self._search.graph.shared())

    def _starts(
        self, calls: Sequence[BurstCall], padded: Sequence[BurstCall], log_evidence: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return arrays that say where chains start or continue; see `PseudoPriors.draw_start`.

        Classes, normals to draw positions from, whether chains continue, their positions, step
        sizes.
        """
        n, size = len(padded), self._density.n_latents
        index, normals = np.zeros(n, dtype=np.int64), np.zeros((n, size))
        goes_on, given = np.zeros(n, dtype=bool), np.zeros((n, size))
        shares = class_shares(log_evidence)
        for row, each in enumerate(calls):
            if each.start is not None:
                goes_on[row], (index[row], given[row]) = True, each.start
            else:
                index[row] = shares[row].searchsorted(each.rng.random(), side="right")
                each.rng.standard_normal(out=normals[row])
        log_step = np.stack([each.log_step for each in padded])
        return index, normals, goes_on, given, log_step

    def _noise(self, calls: Sequence[BurstCall], n: int, n_sweeps: int) -> np.ndarray:
        """Return standard normals (n, n_sweeps, noise_size), or words that make keys (n, 2)."""
        if not self.own_noise:
            words = np.zeros(n, dtype=np.uint64)
            words[: len(calls)] = [each.rng.bit_generator.random_raw() for each in calls]
            return words.view(np.uint32).reshape((n, 2))
        noise = np.zeros((n, n_sweeps, self._sweeps.noise_size))
        for row, each in enumerate(calls):
            each.rng.standard_normal(out=noise[row])
        return noise

    def _all_sweeps(
        self, starts: Any, noise: Any, gains: Any, fits: Fits, values: Any, shared: Any
    ) -> Any:
        if noise.dtype == jnp.uint32:
            noise = jax.random.wrap_key_data(noise, impl="threefry2x32")
        else:
            noise = jnp.swapaxes(noise, 0, 1)
        index, normals, goes_on, given, log_step = starts
        drawn = _positions(fits.mean, fits.scale, index, normals)
        position = jnp.where(goes_on[:, None], given, drawn)
        chains = Chains(index, position, log_step)
        return self._sweeps(chains, noise, gains, fits, values, shared)

    def _all_means(
        self, tune: int, index: Any, position: Any, values: list[Any], shared: list[Any]
    ) -> Any:
        """Return means of statistics over the draws after `tune`, each (n, n_classes, *shape)."""
        index, position = index[tune:], position[tune:]
        n_draws, n = index.shape
        axes = [None if same else 0 for same in self._is_shared]

        def one(k: Any, x: Any, *values: Any) -> list[Any]:
            return self._statistics(k, x, *values, *shared)

        every = jax.vmap(one, in_axes=(0, 0, *axes))
        rows = jnp.arange(n)

        def add(total: list[Any], drawn: tuple[Any, Any]) -> tuple[list[Any], None]:
            k, x = drawn
            found = every(k, x, *values)
            return [
                each.at[rows, k].add(value) for each, value in zip(total, found, strict=True)
            ], None

        sizes = jax.eval_shape(every, index[0], position[0], *values)
        total = [jnp.zeros((n, self._density.n_classes, *each.shape[1:])) for each in sizes]
        # divided on the device: on the host, one by one, it takes as long as the searches
        return [each / n_draws for each in jax.lax.scan(add, total, (index, position))[0]]

    def _fetched(self, means: list[Any], visited: np.ndarray) -> list[np.ndarray]:
        """Return means from the device, of which only those of visited classes are not zero."""
        if not means:
            return []
        rows, classes = np.nonzero(visited)
        unit = max(len(visited) // 4, 1)  # so that few sizes are compiled
        places = np.zeros((2, -(-len(rows) // unit) * unit), dtype=np.int64)
        places[:, : len(rows)] = rows, classes
        # one array: every transfer waits for the device
        chosen = _in_double(self._chosen(means, *places))[: len(rows)]
        shapes = [each.shape[2:] for each in means]
        stops = np.cumsum([int(np.prod(shape)) for shape in shapes])
        found = []
        for shape, part in zip(shapes, np.split(chosen, stops[:-1], axis=1), strict=True):
            whole = np.zeros((*visited.shape, *shape))
            whole[rows, classes] = part.reshape((-1, *shape))
            found.append(whole)
        return found


class _Laps:
    """Timer of consecutive parts, which waits for the device only if seconds are measured."""

    def __init__(self, seconds: dict[str, float] | None) -> None:
        self._seconds, self._begun = seconds, perf_counter()

    def end(self, name: str, values: Any) -> None:
        """Add the seconds since the last part to those of this one."""
        if self._seconds is None:
            return
        wait: Any = jax.block_until_ready
        wait(values)
        now = perf_counter()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._begun
        self._begun = now


@contextmanager
def _untold() -> Iterator[None]:
    """Hide JAX's warnings about double precision, which graphs ask for in single precision too.

    To be used outside of threads, because threads share the filters of warnings.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        yield


def _in_double(value: Any) -> np.ndarray:
    return np.asarray(value, dtype=np.float64)


#: In the order of `Fits.status`.
_STATUSES = tuple(ModeStatus)


def _positions(mean: Any, scale: Any, index: Any, normals: Any) -> Any:
    """Return a draw of each chain's pseudo-prior, (n, n_latents)."""
    rows = jnp.arange(len(index))
    return mean[rows, index] + jnp.einsum("bij,bj->bi", scale[rows, index], normals)


def _packed(means: list[Any], rows: Any, classes: Any) -> Any:
    """Return means of some classes of some observations, side by side, (n_rows, n_numbers)."""
    return jnp.concatenate([each[rows, classes].reshape((len(rows), -1)) for each in means], axis=1)


def _counts(index: np.ndarray, n_classes: int) -> np.ndarray:
    """Return how often each class occurs in each row of an array, (n_rows, n_classes)."""
    n = len(index)
    places = index + n_classes * np.arange(n)[:, None]
    return np.bincount(places.ravel(), minlength=n * n_classes).reshape((n, n_classes))
