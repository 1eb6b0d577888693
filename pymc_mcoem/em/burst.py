"""Bursts of Carlin-Chib sweeps for one observation, and sums of statistics over their draws.

The sweeps are one compiled function and the sums another. This costs the memory of the positions
and has three advantages: draws are grouped by class before they are summed, so that no array of
all classes is carried through the loop; every other E-step uses the same sums; and a class that
is not visited costs nothing.

The kernel is that of the step method (`pymc_mcoem.carlin_chib.kernel`): a burst makes the same
draws as ``pm.sample`` with the step method, given the same generator and pseudo-priors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from pymc_mcoem.carlin_chib.kernel import noise_size
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.sweeps import compile_sweeps
from pymc_mcoem.compiling.backends import backend_of, interpreted_mode, uses_jax
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.compiling.flat_functions import FlatFunction, NotFlatError, WrittenOut
from pymc_mcoem.compiling.loops import compile_loop
from pymc_mcoem.compiling.messages import compiling
from pymc_mcoem.density.class_density import as_argument

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.em.family import Family

__all__ = ["Burst", "WeightedStatistics", "adaptation_gains"]

#: Number of sweeps whose noise is drawn at once. For all of 50,000 sweeps, with four classes and
#: 78 latents, it would take 160 MB.
_AT_ONCE = 1_000


def adaptation_gains(n_sweeps: int, tune: int) -> np.ndarray:
    """Return Robbins-Monro gains of a burst, ``(n_sweeps,)``: 2/√t while tuning, then 0.

    A kernel that keeps adapting does not leave its target invariant, so the gain is exactly
    zero for every draw after tuning.
    """
    t = np.arange(1, n_sweeps + 1)
    return np.where(t <= tune, 2.0 / np.sqrt(t), 0.0)


class Burst:
    """Compiled burst of Carlin-Chib sweeps.

    Parameters
    ----------
    shared_latents : bool
        Whether the latents are those of all classes, as in `build_sweep`: plain Gibbs.
    keep_auxiliaries : bool
        Whether the auxiliaries are returned too. Rao-Blackwell statistics need them.
    mode : str or None
        PyTensor's compilation mode.

    Notes
    -----
    Cost: a sweep evaluates the density once for each class, plus the cost of its move.
    Memory: twice the size of the result, plus ``noise_size`` numbers for each of a thousand
    sweeps. JAX compiles anew for every length, so it runs all sweeps, with their noise, at once.
    """

    def __init__(
        self,
        density: ClassDensity,
        move: WithinClassMove,
        *,
        shared_latents: bool = False,
        keep_auxiliaries: bool = False,
        mode: Any = None,
    ) -> None:
        n_classes, n = density.n_classes, density.n_latents
        self.density = density
        self.keep_auxiliaries = keep_auxiliaries
        self._in_one_piece = uses_jax(mode)
        self.initial_log_step = np.full(n_classes, move.initial_log_step(n))
        self.noise_size = noise_size(n_classes, n, move, shared_latents=shared_latents)
        self._sweeps = compile_sweeps(
            density,
            move,
            shared_latents=shared_latents,
            keep_auxiliaries=keep_auxiliaries,
            mode=mode,
        )

    def __call__(
        self,
        rng: np.random.Generator,
        start: tuple[int, np.ndarray],
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        gains: np.ndarray,
        data: Mapping[str, np.ndarray],
    ) -> Sweeps:
        """Run ``len(gains)`` sweeps.

        Parameters
        ----------
        rng : numpy.random.Generator
            ``(n_sweeps, noise_size)`` standard normals are drawn from it.
        start : (int, ndarray of shape (n_latents,))
            Class and position to start from.
        log_step : ndarray of shape (n_classes,)
        gains : ndarray of shape (n_sweeps,)
            As from `adaptation_gains`.
        data : mapping of str to ndarray
            Values of the density's `data_inputs`.
        """
        index, position = start
        chunks: list[Sweeps] = []
        arguments = self.density.arguments(data)
        at_once = len(gains) if self._in_one_piece else _AT_ONCE
        for first in range(0, len(gains), at_once):
            now = gains[first : first + at_once]
            found = self._sweeps(
                rng.standard_normal((len(now), self.noise_size)),
                now,
                index,
                position,
                log_step,
                None,
                pseudo_priors,
                arguments,
            )
            index, position = int(found.class_index[-1]), found.position[-1]
            log_step = found.log_step
            chunks.append(found)
        return chunks[0] if len(chunks) == 1 else Sweeps.joined(chunks)


class WeightedStatistics:
    """Compiled Σ_t w_t S(x_t, y) over draws x_t of one class."""

    def __init__(self, family: Family, density: ClassDensity, *, mode: Any = None) -> None:
        self.density = density
        self.names = tuple(family.statistics)
        expressions = [
            pt.cast(pt.as_tensor_variable(family.statistics[name]), "float64")
            for name in self.names
        ]
        weights = pt.tensor("weights", dtype="float64", shape=(None,))
        positions = pt.tensor("positions", dtype="float64", shape=(None, density.n_latents))
        k = pt.scalar("class_index", dtype="int64")
        self._padded = False
        self._function: Any = None
        self._written_out: WrittenOut | None = None
        self._statistic_shapes: list[tuple[int, ...]] = []
        if not self.names:
            return
        point = density.model.initial_point(random_seed=0)
        zeros = density.ravel(point)
        placed = density.place(expressions, pt.constant(0, dtype="int64"), zeros)
        shapes = compile_with_data(
            density, [], [graph.shape for graph in placed], interpreted_mode()
        )
        arguments = density.arguments(
            {name: density.model[name].get_value() for name in density.data_inputs}
        )
        self._statistic_shapes = [
            tuple(int(size) for size in shape) for shape in shapes(*arguments)
        ]

        self._padded = uses_jax(mode)
        if backend_of(mode) == "numba":
            known = density.written_out
            if known is not None and known.statistics == family.statistics:
                self._written_out = known
                return
            with suppress(NotFlatError):
                self._function = _FlatSums(density, expressions, self._statistic_shapes)
                return

        def add(w: Any, x: Any, *rest: Any) -> list[Any]:
            sums, index = rest[:-1], rest[-1]
            values = density.place(expressions, index, x)
            return [
                pt.specify_shape(total + w * value, shape)
                for total, value, shape in zip(sums, values, self._statistic_shapes, strict=True)
            ]

        self._function = compile_loop(
            density,
            add,
            inputs=[k, weights, positions],
            sequences=[weights, positions],
            carried=[pt.zeros(shape, dtype="float64") for shape in self._statistic_shapes],
            fixed=[k],
            last=range(len(self._statistic_shapes)),
            mode=mode,
        )

    def zeros(self) -> dict[str, np.ndarray]:
        """Return statistics that are all zero, each ``(n_classes, *shape)``."""
        return {
            name: np.zeros((self.density.n_classes, *shape))
            for name, shape in zip(self.names, self._statistic_shapes, strict=True)
        }

    def __call__(
        self,
        class_index: np.ndarray,
        positions: np.ndarray,
        weights: np.ndarray,
        data: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Return Σ_t w_t δ_{I_t,j} S(x_t, y) for every class j.

        Parameters
        ----------
        class_index : ndarray of int of shape (n,)
        positions : ndarray of shape (n, n_latents)
        weights : ndarray of shape (n,)
            Weights that sum to one give a mean.

        Returns
        -------
        dict of str to ndarray of shape (n_classes, *shape)
            ``"class_weight"`` among them.
        """
        total = self.zeros()
        total["class_weight"] = np.bincount(
            class_index, weights=weights, minlength=self.density.n_classes
        )
        if not self.names:
            return total
        arguments = self.density.arguments(data)
        for j in np.unique(class_index):
            chosen = class_index == j
            own_weights, own_positions = weights[chosen], positions[chosen]
            if self._padded:
                own_weights, own_positions = _padded(own_weights, own_positions)
            if self._written_out is not None:
                sums = self._written_out.sums(own_weights, own_positions, data)
            else:
                sums = self._function(
                    as_argument(j, np.int64),
                    as_argument(own_weights),
                    as_argument(own_positions),
                    *arguments,
                )
            for name, value in zip(self.names, sums, strict=True):
                total[name][j] = value
        return total

    def at_one_position(
        self, position: np.ndarray, weights: np.ndarray, data: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return w_j S(x, y) for every class j, at one `position` of shape (n_latents,)."""
        if self._written_out is None:
            chosen = np.flatnonzero(weights > 0)
            positions = np.broadcast_to(position, (len(chosen), len(position)))
            return self(chosen, positions, weights[chosen], data)
        # hand-written statistics do not depend on the class
        sums = self._written_out.sums(np.ones(1), position[None], data)
        total, chosen = self.zeros(), np.flatnonzero(weights > 0)
        for name, value in zip(self.names, sums, strict=True):
            total[name][chosen] = np.multiply.outer(weights[chosen], value)
        return {**total, "class_weight": weights}


class _FlatSums:
    """Weighted sums of statistics by the loop of `sums_numba`."""

    def __init__(
        self,
        density: ClassDensity,
        expressions: Sequence[Any],
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        # imported where it is used: numba takes a second to import
        from pymc_mcoem.em import sums_numba

        self._flat = FlatFunction(
            density,
            lambda k, x, _: density.place(list(expressions), k, x),
            "sufficient statistics",
            returns=False,
        )
        self._sum = sums_numba.weighted_sum
        self._statistic_shapes = shapes
        self._stops = np.cumsum([int(np.prod(shape)) for shape in shapes])
        with compiling("sums, once for all models"):
            self._held = sums_numba.hold(self._flat.function)
            nothing = np.zeros(0)
            self._sum(
                self._held,
                0,
                nothing,
                np.zeros((0, density.n_latents)),
                nothing,
                np.zeros(0, dtype=np.int64),
                0,
            )

    def __call__(
        self, k: np.ndarray, weights: np.ndarray, positions: np.ndarray, *arguments: np.ndarray
    ) -> list[np.ndarray]:
        """Return the sums, each of its shape."""
        packed = self._flat.pack(arguments)
        total = self._sum(self._held, int(k), weights, positions, *packed, int(self._stops[-1]))
        sums = np.split(total, self._stops[:-1])
        return [
            part.reshape(shape) for part, shape in zip(sums, self._statistic_shapes, strict=True)
        ]


def _padded(weights: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Repeat the last draw with weight 0 up to a power of two, so that JAX compiles few lengths."""
    missing = (1 << (len(weights) - 1).bit_length()) - len(weights)
    return np.pad(weights, (0, missing)), np.pad(positions, ((0, missing), (0, 0)), mode="edge")
