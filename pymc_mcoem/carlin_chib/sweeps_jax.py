"""Sweeps of the Carlin-Chib kernel for many observations in lockstep, in JAX.

The kernel is that of `pymc_mcoem.carlin_chib.kernel` with the moves `RandomWalk` and `Hamiltonian`.
From the same noise it makes the same draws, up to rounding. All classes of all observations are
evaluated together, and products with a pseudo-prior's matrices are products of matrices.

Importing this module imports JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.kernel import index_noise_size
from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk, WithinClassMove
from pymc_mcoem.compiling.graphs_jax import JaxGraph

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.laplace.search_jax import Fits

__all__ = ["Chains", "Drawn", "LockstepSweeps", "takes_move"]

#: Moves of a walk, and steps of a trajectory, that are written out one after the other for an
#: accelerator, where an iteration of a loop costs as much as several kernels.
_MOVES, _STEPS = 10, 2
#: Keeps a value from being computed again where it is used.
_once: Any = jax.lax.optimization_barrier


def takes_move(move: WithinClassMove) -> bool:
    """Return whether sweeps in lockstep take a move; a subclass may move otherwise."""
    return type(move) in (RandomWalk, Hamiltonian) and bool(move.noise_size(1))


class Chains(NamedTuple):
    """Classes, positions and step sizes of the chains of n observations.

    Attributes
    ----------
    class_index : array of int of shape (n,)
    position : array of shape (n, n_latents)
    log_step : array of shape (n, n_classes)
    """

    class_index: Any
    position: Any
    log_step: Any


class Drawn(NamedTuple):
    """Results of consecutive sweeps, as in `Sweeps`, with an axis for the n observations.

    Attributes
    ----------
    class_index : array of int of shape (n_sweeps, n)
    position : array of shape (n_sweeps, n, n_latents)
    log_weight : array of shape (n_sweeps, n, n_classes)
    acceptance : array of shape (n_sweeps, n)
    """

    class_index: Any
    position: Any
    log_weight: Any
    acceptance: Any


class LockstepSweeps:
    """Sweeps of the chains of many observations.

    Parameters
    ----------
    is_shared : tuple of bool
        Whether each of the density's data is the same for all observations.
    """

    def __init__(
        self, density: ClassDensity, move: WithinClassMove, is_shared: tuple[bool, ...]
    ) -> None:
        self._n_classes, self._n = density.n_classes, density.n_latents
        self._move = move
        on_processor = jax.default_backend() == "cpu"
        self._at_once = (1, 1) if on_processor else (_MOVES, _STEPS)
        k = pt.scalar("class_index", dtype="int64")
        x = pt.tensor("position", dtype="float64", shape=(self._n,))
        graphs = [density.log_density(k, x)]
        if isinstance(move, Hamiltonian):
            graphs.append(density.gradient(k, x))
        self.value = JaxGraph(density, [k, x], graphs[:1])
        self.slope = JaxGraph(density, [k, x], graphs[1:]) if graphs[1:] else self.value
        own = tuple(None if same else 0 for same in is_shared)
        #: Axes of data by observation, and by class of an observation.
        self._axes = (0, 0, *own), (0, 0, *[None] * len(own))

    def shared(self) -> tuple[list[Any], list[Any]]:
        """Return the values of the model's data that are not arguments; see `JaxGraph.shared`."""
        return self.value.shared(), self.slope.shared()

    def __call__(
        self,
        chains: Chains,
        noise: Any,
        gains: Any,
        fits: Fits,
        values: list[Any],
        shared: tuple[list[Any], list[Any]],
    ) -> tuple[Chains, Drawn]:
        """Make sweeps; traced by JAX.

        Parameters
        ----------
        noise : array of shape (n_sweeps, n, noise_size), or keys of shape (n,)
            Standard normals, or JAX's keys that they are made from, sweep by sweep.
        gains : array of shape (n_sweeps, n)
        values, shared : list of array
            The density's data, ``(n, ...)`` or those of all observations, and what `shared` gives.
        """
        n, size = len(chains.class_index), self.noise_size
        are_keys = jnp.issubdtype(noise.dtype, jax.dtypes.prng_key)
        of_value, of_slope = shared

        def height(k: Any, x: Any) -> Any:
            return self._evaluated(self.value, k, x, values, of_value)

        def slope(k: Any, x: Any) -> Any:
            return self._evaluated(self.slope, k, x, values, of_slope)

        def sweep(at: Chains, given: tuple[Any, Any]) -> tuple[Chains, Drawn]:
            which, gain = given
            if are_keys:
                keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(noise, which)
                which = jax.vmap(lambda key: jax.random.normal(key, (size,)))(keys)
            return self._sweep(at, which, gain, fits, height, slope)

        drawn_from = jnp.arange(len(gains)) if are_keys else noise
        assert are_keys or noise.shape[1:] == (n, size)
        found: tuple[Chains, Drawn] = jax.lax.scan(sweep, chains, (drawn_from, gains))
        return found

    @property
    def noise_size(self) -> int:
        """Number of standard normals of one sweep."""
        own = self._move.noise_size(self._n)
        return self._n_classes * self._n + index_noise_size(False) + own

    def _evaluated(
        self, graph: JaxGraph, k: Any, x: Any, values: list[Any], shared: list[Any]
    ) -> Any:
        """Evaluate at positions (n, n_latents), or at those of each class."""

        def one(k: Any, x: Any, *values: Any) -> Any:
            return graph(k, x, *values, *shared)[0]

        by_observation, by_class = self._axes
        if x.ndim == 3:
            one, k = jax.vmap(one, in_axes=by_class), jnp.broadcast_to(k, x.shape[:2])
        return jax.vmap(one, in_axes=by_observation)(k, x, *values)

    def _sweep(
        self,
        at: Chains,
        noise: Any,
        gain: Any,
        fits: Fits,
        height: Callable[..., Any],
        slope: Callable[..., Any],
    ) -> tuple[Chains, Drawn]:
        """Make one sweep of every chain; see `kernel.build_sweep`."""
        k, x, log_step = at
        n_classes, n, rows = self._n_classes, self._n, jnp.arange(len(k))
        split = n_classes * n
        own = noise[:, :split].reshape((-1, n_classes, n))
        drawn = fits.mean + jnp.einsum("bcij,bcj->bci", fits.scale, own)
        auxiliaries = drawn.at[rows, k].set(x)
        standard = jnp.einsum("bij,bj->bi", fits.whiten[rows, k], x - fits.mean[rows, k])
        squares = (own**2).sum(axis=-1).at[rows, k].set((standard**2).sum(axis=-1))
        log_target = height(jnp.arange(n_classes), auxiliaries)
        log_target = jnp.where(jnp.isnan(log_target), -jnp.inf, log_target)
        log_weight = log_target - (fits.log_normalizer - 0.5 * squares)
        n_index = index_noise_size(False)
        highest = log_weight.max(axis=1, keepdims=True)
        cumulative = jnp.cumsum(jnp.exp(log_weight - highest), axis=1)
        threshold = jnp.exp(_log_uniform(noise[:, split : split + 2])) * cumulative[:, -1]
        chosen = jnp.minimum((cumulative < threshold[:, None]).sum(axis=1), n_classes - 1)
        chosen = jnp.where(highest[:, 0] == -jnp.inf, k, chosen).astype(k.dtype)
        moves = self._walk if isinstance(self._move, RandomWalk) else self._swing
        position, acceptance, error = moves(
            chosen,
            auxiliaries[rows, chosen],
            log_target[rows, chosen],
            noise[:, split + n_index :],
            fits.scale[rows, chosen],
            log_step[rows, chosen],
            height,
            slope,
        )
        error = jnp.where(jnp.isnan(error), 0.0, error)
        following = Chains(chosen, position, log_step.at[rows, chosen].add(gain * error))
        return following, Drawn(chosen, position, log_weight, acceptance)

    def _walk(
        self,
        k: Any,
        x: Any,
        log_p: Any,
        noise: Any,
        scale: Any,
        log_step: Any,
        height: Callable[..., Any],
        slope: Callable[..., Any],
    ) -> tuple[Any, Any, Any]:
        """Make random-walk moves; see `RandomWalk.build`."""
        move, n = self._move, self._n
        assert isinstance(move, RandomWalk)
        moves = noise.reshape((len(k), move.n_moves, n + 2))
        increments = jnp.einsum("bij,bmj->mbi", scale, moves[..., :n])
        increments = jnp.exp(log_step)[:, None] * increments
        log_uniforms = _log_uniform(moves[..., n:]).T

        def go_on(state: tuple[Any, Any, Any], given: tuple[Any, Any]) -> tuple[Any, None]:
            x, log_p, accepted = state
            increment, log_u = given
            proposal = x + increment
            proposed = height(k, proposal)
            accept = log_u < proposed - log_p
            x = jnp.where(accept[:, None], proposal, x)
            return (x, jnp.where(accept, proposed, log_p), accepted + accept), None

        begun = x, log_p, jnp.zeros_like(log_p)
        given = increments, log_uniforms
        x, _, accepted = jax.lax.scan(go_on, begun, given, unroll=self._at_once[0])[0]
        acceptance = accepted / move.n_moves
        return x, acceptance, acceptance - move.target_acceptance

    def _swing(
        self,
        k: Any,
        x: Any,
        log_p: Any,
        noise: Any,
        scale: Any,
        log_step: Any,
        height: Callable[..., Any],
        slope: Callable[..., Any],
    ) -> tuple[Any, Any, Any]:
        """Make Hamiltonian moves; see `Hamiltonian.build`."""
        move, n = self._move, self._n
        assert isinstance(move, Hamiltonian)
        longest = move.longest_log_step
        moves = jnp.moveaxis(noise.reshape((len(k), move.n_moves, n + 4)), 1, 0)
        tuned = jnp.exp(jnp.minimum(log_step, longest))
        steps = tuned * (0.5 + jnp.exp(_log_uniform(moves[..., n + 2 :])))
        log_uniforms = _log_uniform(moves[..., n : n + 2])

        def go_on(state: tuple[Any, Any, Any], given: tuple[Any, Any, Any]) -> tuple[Any, None]:
            x, log_p, accepted = state
            momentum, log_u, step = given
            step = step[:, None]

            def leapfrog(_: Any, at: tuple[Any, Any]) -> tuple[Any, Any]:
                z, p = at
                middle = z + 0.5 * step * p
                # once, and not for each element of the product
                gradient = _once(slope(k, x + jnp.einsum("bij,bj->bi", scale, middle)))
                kicked = p + step * jnp.einsum("bij,bi->bj", scale, gradient)
                return middle + 0.5 * step * kicked, kicked

            begun = jnp.zeros_like(momentum), momentum
            turn = self._at_once[1]
            z, p = jax.lax.fori_loop(0, move.n_leapfrog, leapfrog, begun, unroll=turn)
            proposal = x + jnp.einsum("bij,bj->bi", scale, z)
            proposed = height(k, proposal)
            kinetic = 0.5 * (momentum**2).sum(axis=1) - 0.5 * (p**2).sum(axis=1)
            accept = log_u < proposed - log_p + kinetic
            x = jnp.where(accept[:, None], proposal, x)
            return (x, jnp.where(accept, proposed, log_p), accepted + accept), None

        begun = x, log_p, jnp.zeros_like(log_p)
        x, _, accepted = jax.lax.scan(go_on, begun, (moves[..., :n], log_uniforms, steps))[0]
        acceptance = accepted / move.n_moves
        error = acceptance - move.target_acceptance
        return x, acceptance, jnp.where(log_step >= longest, jnp.minimum(error, 0.0), error)


def _log_uniform(pairs: Any) -> Any:
    """Return logarithms of uniforms of pairs of normals, the last axis; see `log_uniform`."""
    return -0.5 * (pairs[..., 0] ** 2 + pairs[..., 1] ** 2)
