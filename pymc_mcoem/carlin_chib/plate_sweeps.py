"""The sweep of `pymc_mcoem.carlin_chib.kernel` for all rows of a plate at once.

It needs as many evaluations as with a single index, each linear in the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.kernel import draw_class, draw_other_class, index_noise_size
from pymc_mcoem.carlin_chib.moves.within_class import log_uniform
from pymc_mcoem.compiling.backends import backend_of, interpreted_mode
from pymc_mcoem.compiling.flat_functions import FlatFunction, NotFlatError
from pymc_mcoem.compiling.linear_algebra import matrix_vector
from pymc_mcoem.compiling.messages import compiling
from pymc_mcoem.density.class_density import as_argument

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
    from pymc_mcoem.carlin_chib.pseudo_priors.plate import PlatePseudoPriors
    from pymc_mcoem.density.plate import PlateDensity

__all__ = ["PlateSweep"]


class PlateSweep:
    """One compiled Carlin-Chib sweep of all rows.

    Parameters
    ----------
    density : PlateDensity
    move : RandomWalk
    mode : str or None
        PyTensor's compilation mode.
    metropolised : bool
        Draw indices by Metropolized Gibbs.

    Attributes
    ----------
    noise_size : int
        Number of standard normals of one row: those of the auxiliaries of all classes and of the
        index, and an increment and two more for each random-walk move.
    """

    def __init__(
        self,
        density: PlateDensity,
        move: RandomWalk,
        mode: Any = None,
        *,
        metropolised: bool = False,
    ) -> None:
        n_classes, n_rows, n = density.n_classes, density.n_rows, density.n_latents
        n_index = index_noise_size(metropolised)
        self.noise_size = n_classes * n + n_index + move.n_moves * (n + 2)
        self._settings = metropolised, move.n_moves, move.target_acceptance
        self.n_rows = n_rows
        self._density = density
        self._value: Any = None
        self._flat: FlatFunction | None = None
        if backend_of(mode) == "numba":
            # a density that needs more than arrays of numbers is left to the graph
            with suppress(NotFlatError):
                self._compile_flat(density)
                return
        self._compile_graph(density, move, mode, metropolised)

    def _compile_flat(self, density: PlateDensity) -> None:
        """Compile the sweep of `plate_sweeps_numba`."""
        # imported where it is used: numba takes a second to import
        from pymc_mcoem.carlin_chib import plate_sweeps_numba

        flat = FlatFunction(
            density,
            lambda k, x, _: [density.log_density(k, x)],
            "the log-density of all rows",
            returns=False,
        )
        self._sweep = plate_sweeps_numba.sweep
        self._flat = flat
        is_metropolised, n_moves, target_acceptance = self._settings
        with compiling("sweeps, once for all plates"):
            self._held = plate_sweeps_numba.hold(flat.function)
            # call with no class and no row, so that forked processes find the compiled code
            self._sweep(
                self._held,
                is_metropolised,
                0 * n_moves,
                target_acceptance,
                np.zeros((0, 0)),
                0.0,
                np.zeros(0, dtype=np.int64),
                np.zeros((0, 0)),
                np.zeros(0),
                np.zeros((0, 0, 0)),
                np.zeros((0, 0, 0, 0)),
                np.zeros((0, 0, 0, 0)),
                np.zeros((0, 0)),
                np.zeros(0),
                np.zeros(0, dtype=np.int64),
            )

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self._flat is not None:
            # compiled code contains addresses of this process
            for name in ("_flat", "_held", "_sweep"):
                del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_function" not in state:
            self._compile_flat(self._density)

    def _compile_graph(
        self, density: PlateDensity, move: RandomWalk, mode: Any, metropolised: bool
    ) -> None:
        """Compile the sweep as a graph."""
        n_classes, n_rows, n = density.n_classes, density.n_rows, density.n_latents
        n_index = index_noise_size(metropolised)
        noise = pt.tensor("noise", dtype="float64", shape=(n_rows, self.noise_size))
        gain = pt.scalar("gain", dtype="float64")
        index = pt.tensor("class_index", dtype="int64", shape=(n_rows,))
        position = pt.tensor("position", dtype="float64", shape=(n_rows, n))
        log_step = pt.tensor("log_step", dtype="float64", shape=(n_classes,))
        mean = pt.tensor("mean", dtype="float64", shape=(n_classes, n_rows, n))
        scale = pt.tensor("scale", dtype="float64", shape=(n_classes, n_rows, n, n))
        whiten = pt.tensor("whiten", dtype="float64", shape=(n_classes, n_rows, n, n))
        log_normalizer = pt.tensor("log_normalizer", dtype="float64", shape=(n_classes, n_rows))

        rows = np.arange(n_rows)
        split = n_classes * n
        fresh = noise[:, :split].reshape((n_rows, n_classes, n)).transpose((1, 0, 2))
        drawn = mean + matrix_vector(scale, fresh)
        auxiliaries = pt.set_subtensor(drawn[index, rows], position)
        standard = matrix_vector(whiten[index, rows], position - mean[index, rows])
        squares = pt.set_subtensor((fresh**2).sum(axis=-1)[index, rows], (standard**2).sum(axis=-1))
        log_target = pytensor.scan(
            lambda j, u: density.log_density(pt.full((n_rows,), j, dtype="int64"), u),
            sequences=[pt.arange(n_classes), auxiliaries],
            return_updates=False,
        )
        log_target = pt.switch(pt.isnan(log_target), -np.inf, log_target)
        log_weight = log_target - (log_normalizer - 0.5 * squares)
        pairs = noise[:, split : split + n_index].T
        if metropolised:
            chosen = draw_other_class(log_weight, index, pairs)
        else:
            chosen = draw_class(log_weight, pairs)
        chosen = pt.cast(chosen, "int64")

        x, acceptance = auxiliaries[chosen, rows], pt.full((n_rows,), np.nan)
        new_log_step = log_step
        if move.n_moves:
            walk = noise[:, split + n_index :].reshape((n_rows, move.n_moves, n + 2))
            walk = walk.transpose((1, 0, 2))
            increments = matrix_vector(scale[chosen, rows], walk[:, :, :n])
            increments = pt.exp(log_step[chosen])[None, :, None] * increments

            def one_move(step: Any, log_u: Any, x: Any, log_p: Any, accepted: Any, k: Any) -> Any:
                proposed = density.log_density(k, x + step)
                accept = pt.lt(log_u, proposed - log_p)
                return [
                    pt.specify_shape(pt.switch(accept[:, None], x + step, x), (n_rows, n)),
                    pt.specify_shape(pt.switch(accept, proposed, log_p), (n_rows,)),
                    pt.specify_shape(accepted + accept, (n_rows,)),
                ]

            positions, _, counts = pytensor.scan(
                one_move,
                sequences=[increments, log_uniform(walk[:, :, n:].transpose((2, 0, 1)))],
                outputs_info=[
                    pt.specify_shape(x, (n_rows, n)),
                    log_target[chosen, rows],
                    pt.zeros((n_rows,)),
                ],
                non_sequences=[chosen],
                return_updates=False,
            )
            x, acceptance = positions[-1], counts[-1] / move.n_moves
            member = pt.eq(pt.arange(n_classes)[:, None], chosen[None, :])
            error = (member * (acceptance - move.target_acceptance)[None, :]).sum(axis=1)
            new_log_step = log_step + gain * error / pt.maximum(member.sum(axis=1), 1)
        self._function = density.compile(
            [noise, gain, index, position, log_step, mean, scale, whiten, log_normalizer],
            [
                chosen,
                x,
                new_log_step,
                log_weight.T,
                acceptance,
            ],
            mode,
        )

    def __call__(
        self,
        rng: np.random.Generator,
        gain: float,
        class_index: np.ndarray,
        position: np.ndarray,
        log_step: np.ndarray,
        pseudo_priors: PlatePseudoPriors,
        others: Sequence[np.ndarray],
        auxiliaries: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Return index, position, log steps, normalized and raw log-weights, and acceptance."""
        noise = rng.standard_normal((self.n_rows, self.noise_size))
        if auxiliaries is not None:
            noise[:, : auxiliaries[0].size] = auxiliaries.reshape(self.n_rows, -1)
        given = [
            as_argument(class_index, np.int64),
            as_argument(position),
            as_argument(log_step),
            *map(as_argument, pseudo_priors.as_list()),
        ]
        if self._flat is None:
            found = self._function(noise, np.asarray(gain), *given, *others)
        else:
            packed = self._flat.pack(others)
            found = self._sweep(self._held, *self._settings, noise, gain, *given, *packed)
        index, moved, new_log_step, log_weight, acceptance = map(np.asarray, found)
        normalised = log_weight - logsumexp(log_weight, axis=-1, keepdims=True)
        return [index, moved, new_log_step, normalised, log_weight, acceptance]

    def log_densities(
        self, class_index: np.ndarray, position: np.ndarray, others: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return log p(y_i, I_i, x_i) of every row, ``(n_rows,)``; used if rows have mixtures."""
        k, x = as_argument(class_index, np.int64), as_argument(position)
        if self._flat is not None:
            found = np.empty(self.n_rows)
            self._flat.function(k, x, *self._flat.pack(others), found)
            return found
        if self._value is None:
            symbols = [
                pt.tensor("class_index", dtype="int64", shape=k.shape),
                pt.tensor("position", dtype="float64", shape=x.shape),
            ]
            self._value = self._density.compile(
                symbols, self._density.log_density(*symbols), interpreted_mode()
            )
        with np.errstate(all="ignore"):
            return np.asarray(self._value(k, x, *others))
