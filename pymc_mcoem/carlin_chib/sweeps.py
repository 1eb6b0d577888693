"""Compile sweeps of the Carlin-Chib kernel, for the step method and for bursts.

On numba they are loops, shared by all models, around the density's functions; on the other back
ends, and for custom moves, they are the graph of `pymc_mcoem.carlin_chib.kernel`. On a plate all
rows make a sweep together.

Notes
-----
The graph would serve numba too, but README's first model then takes 30 s of processor time until
its first draws instead of 6 s, the five regressions of ``benchmarks/start_up.py`` 49 s instead of 9
s, and a plate of 500 rows 54 s instead of 12 s. Later it makes 0.8, 0.6 to 1.0 and 1.2 times as
many draws a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from pymc_mcoem.carlin_chib.kernel import noise_size
from pymc_mcoem.carlin_chib.sweep_graph import SweepGraph
from pymc_mcoem.compiling.backends import backend_of
from pymc_mcoem.compiling.flat_functions import N_SETTINGS, FlatFunction, NotFlatError
from pymc_mcoem.compiling.messages import compiling
from pymc_mcoem.density.class_density import as_argument
from pymc_mcoem.density.plate import PlateDensity

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
    from pymc_mcoem.carlin_chib.pseudo_priors.plate import PlatePseudoPriors
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["compile_sweeps"]


def compile_sweeps(
    density: ClassDensity | PlateDensity,
    move: WithinClassMove,
    *,
    metropolized: bool = False,
    shared_latents: bool = False,
    keep_auxiliaries: bool = False,
    mode: Any = None,
) -> _FlatSweeps | SweepGraph:
    """Compile sweeps for one density and move.

    Parameters
    ----------
    move : WithinClassMove
        On a plate `RandomWalk`.
    metropolized, shared_latents : bool
        As in `build_sweep`. Shared latents have no auxiliaries to return, and are not of a plate.
    keep_auxiliaries : bool
        Whether the sweeps return their auxiliaries.
    """
    if _has_kernel(move) and backend_of(mode) == "numba":
        try:
            return _FlatSweeps(density, move, metropolized, shared_latents, keep_auxiliaries)
        except NotFlatError:  # the density needs something that is not an array of numbers
            pass
    return SweepGraph(density, move, metropolized, shared_latents, keep_auxiliaries, mode)


def _has_kernel(move: WithinClassMove) -> bool:
    """Return whether a move has a kernel for its graph, which a subclass may have overridden."""
    for kind in type(move).__mro__:
        if "kernel" in vars(kind):
            return True
        if "build" in vars(kind):
            return False
    return False


class _FlatSweeps:
    """Sweeps that use the loops of `sweeps_numba`.

    One call at a time, because calls share the arrays that loops overwrite. Pseudo-priors are not
    changed in place between calls.
    """

    def __init__(
        self,
        density: ClassDensity | PlateDensity,
        move: WithinClassMove,
        metropolized: bool,
        shared_latents: bool,
        keep_auxiliaries: bool,
    ) -> None:
        # imported where it is used: numba takes a second to import
        from pymc_mcoem.carlin_chib import plate_sweeps_numba, sweeps_numba

        self._made_of = density, move, metropolized, shared_latents, keep_auxiliaries
        kernel = move.kernel  # type: ignore[attr-defined]
        is_plate = isinstance(density, PlateDensity)
        assert not (shared_latents and (is_plate or keep_auxiliaries))
        self._n_auxiliaries = 0 if shared_latents else density.n_classes
        value = FlatFunction(
            density,
            lambda k, x, _: [density.log_density(k, x)],
            "the log-density",
            returns=not is_plate,
            written_out=density.written_out,
        )
        slope: FlatFunction = value
        if kernel.needs_gradient:
            slope = FlatFunction(
                density,
                lambda k, x, _: [density.log_density(k, x), density.gradient(k, x)],
                "the gradient",
                written_out=density.written_out,
            )
        self._density, self._value = density, value
        self._keep_auxiliaries = keep_auxiliaries
        self._kind = (metropolized,) if is_plate else (metropolized, shared_latents)
        self._settings = np.array([0.0, move.target_acceptance, *kernel.settings])
        n_classes, n, rows = density.n_classes, density.n_latents, density.position_shape[:-1]
        self._rows, self._active = rows, None
        if density.active is not None and not kernel.moves_all:
            self._active = as_argument(density.active)[..., None]
        self._no_offset = np.zeros((n_classes, *rows))
        self._last: tuple[Any, Any, list[np.ndarray]] = None, None, []
        with compiling(f"sweeps, once for all {'plates' if is_plate else 'models'}"):
            if is_plate:
                self._sweeps = plate_sweeps_numba.sweeps
                self._held = plate_sweeps_numba.hold(value.function)
                self._work = plate_sweeps_numba.work(n_classes, rows[0], n)
            else:
                self._sweeps = sweeps_numba.sweeps
                self._work = sweeps_numba.work(n_classes, n)
                self._held = sweeps_numba.hold(
                    value.function, slope.function, getattr(sweeps_numba, kernel.name).function
                )
            self._compile(noise_size(n_classes, n, move, metropolized, shared_latents))

    def _compile(self, size: int) -> None:
        """Call with zero sweeps to compile, so that forked processes find the compiled code."""
        n_classes, *_, n = shape = (self._density.n_classes, *self._density.position_shape)
        normals = [np.zeros(shape), *np.zeros((2, *shape, n)), np.zeros(shape[:-1])]
        self._call(
            np.zeros((0, *self._rows, size)),
            np.zeros(0),
            0,
            np.zeros(shape[1:]),
            np.zeros(n_classes),
            self._no_offset,
            self._arranged(*normals),
            np.zeros(N_SETTINGS),
            np.zeros(0, dtype=np.int64),
        )

    def _arranged(
        self,
        mean: np.ndarray,
        scale: np.ndarray,
        whiten: np.ndarray,
        log_normalizer: np.ndarray,
        move_scale: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Return pseudo-priors and the scales of moves as the loops take them."""
        moved = as_argument(scale if move_scale is None else move_scale)
        if self._active is not None:
            moved = as_argument(self._active * moved)
        transposed, moved_transposed = (
            as_argument(each.swapaxes(-1, -2)) for each in (scale, moved)
        )
        return [mean, transposed, whiten, log_normalizer, moved, moved_transposed]

    def _call(
        self,
        noise: np.ndarray,
        gains: np.ndarray,
        class_index: int | np.ndarray,
        position: np.ndarray,
        log_step: np.ndarray,
        log_offset: np.ndarray,
        arranged: Sequence[np.ndarray],
        reals: np.ndarray,
        integers: np.ndarray,
    ) -> Sweeps:
        n_sweeps, n_classes, rows = len(gains), len(log_step), self._rows
        indices = np.empty((n_sweeps + 1, *rows), dtype=np.int64)
        positions = np.empty((n_sweeps + 1, *position.shape))
        indices[0], positions[0] = class_index, position
        log_step = log_step.copy()
        log_weights = np.empty((n_sweeps, *rows, n_classes))
        acceptance = np.empty((n_sweeps, *rows))
        auxiliaries = np.empty((n_sweeps, self._n_auxiliaries, *position.shape))
        self._sweeps(
            self._held,
            *self._kind,
            self._settings,
            noise,
            gains,
            indices,
            positions,
            log_step,
            log_weights,
            acceptance,
            auxiliaries,
            log_offset,
            *arranged,
            *self._work,
            reals,
            integers,
        )
        return Sweeps(
            indices[1:],
            positions[1:],
            log_weights,
            auxiliaries if self._keep_auxiliaries else None,
            acceptance,
            log_step,
        )

    def __reduce__(self) -> Any:
        # compiled code contains addresses of this process
        return _FlatSweeps, self._made_of

    def __call__(
        self,
        noise: np.ndarray,
        gains: np.ndarray,
        class_index: int | np.ndarray,
        position: np.ndarray,
        log_step: np.ndarray,
        log_offset: np.ndarray | None,
        pseudo_priors: PseudoPriors | PlatePseudoPriors,
        arguments: Sequence[np.ndarray],
        move_scale: np.ndarray | None = None,
    ) -> Sweeps:
        """Make as many sweeps as there is noise for; see `SweepGraph`."""
        # most calls of the step method have the pseudo-priors of the one before
        *last, arranged = self._last
        if last[0] is not pseudo_priors or last[1] is not move_scale:
            mean, scale, whiten, log_normalizer = map(as_argument, pseudo_priors.as_list())
            arranged = self._arranged(mean, scale, whiten, log_normalizer, move_scale)
            self._last = pseudo_priors, move_scale, arranged
        return self._call(
            as_argument(noise),
            as_argument(gains),
            class_index,
            as_argument(position),
            as_argument(log_step),
            self._no_offset if log_offset is None else as_argument(log_offset),
            arranged,
            *self._value.pack(arguments),
        )

    def log_densities(
        self,
        class_index: int | np.ndarray,
        points: np.ndarray,
        arguments: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return log p(y, I, X) at points."""
        packed, nothing = self._value.pack(arguments), np.zeros(0)
        value = self._value.function
        if np.ndim(class_index):
            index, found = as_argument(class_index, np.int64), np.empty(points.shape[:2])
            for x, out in zip(as_argument(points), found, strict=True):
                value(index, x, *packed, out)
            return found
        return np.array([value(class_index, x, *packed, nothing) for x in as_argument(points)])
