"""Sweeps that run the kernel's graph in a loop of the back end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from pymc_mcoem.carlin_chib.kernel import (
    PseudoPriorSymbols,
    SweepState,
    build_sweep,
    noise_size,
)
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.compiling.loops import compile_loop
from pymc_mcoem.density.class_density import as_argument

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
    from pymc_mcoem.carlin_chib.pseudo_priors.plate import PlatePseudoPriors
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.density.plate import PlateDensity

__all__ = ["SweepGraph"]


class SweepGraph:
    """Sweeps that run the graph of `build_sweep` in a loop of the back end."""

    def __init__(
        self,
        density: ClassDensity | PlateDensity,
        move: WithinClassMove,
        metropolized: bool,
        shared_latents: bool,
        keep_auxiliaries: bool,
        mode: Any,
    ) -> None:
        n_classes, shape = density.n_classes, density.position_shape
        rows = shape[:-1]
        size = noise_size(n_classes, shape[-1], move, metropolized, shared_latents)
        noise = pt.tensor("noise", dtype="float64", shape=(None, *rows, size))
        gains = pt.tensor("gains", dtype="float64", shape=(None,))
        index = pt.tensor("class_index", dtype="int64", shape=rows)
        position = pt.tensor("position", dtype="float64", shape=shape)
        log_step = pt.tensor("log_step", dtype="float64", shape=(n_classes,))
        log_offset = pt.tensor("log_offset", dtype="float64", shape=(n_classes, *rows))
        symbols = PseudoPriorSymbols.create(n_classes, *shape)
        move_scale = symbols.scale.type("move_scale")
        fixed = [log_offset, move_scale, *symbols.as_list()]

        def sweep(
            noise: Any, gain: Any, k: Any, x: Any, ls: Any, offset: Any, scale: Any, *fitted: Any
        ) -> Any:
            state, info = build_sweep(
                density,
                SweepState(k, x, ls),
                noise,
                PseudoPriorSymbols(*fitted),
                gain,
                move,
                metropolized=metropolized,
                shared_latents=shared_latents,
                log_offset=offset,
                move_scale=scale,
            )
            return [
                pt.specify_shape(state.class_index, rows),
                pt.specify_shape(state.position, shape),
                pt.specify_shape(state.log_step, (n_classes,)),
                pt.moveaxis(info.log_weight, 0, -1),
                info.acceptance,
                *([info.auxiliaries] if keep_auxiliaries else []),
            ]

        self._no_offset = np.zeros((n_classes, *rows))
        self._density = density
        self._value: Any = None
        self._function = compile_loop(
            density,
            sweep,
            inputs=[noise, gains, index, position, log_step, *fixed],
            sequences=[noise, gains],
            carried=[index, position, log_step],
            n_emitted=2 + keep_auxiliaries,
            fixed=fixed,
            last={2},
            mode=mode,
        )

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
        """Make as many sweeps as there is noise for.

        Parameters
        ----------
        noise : ndarray of shape (n_sweeps, *rows, noise_size)
        gains : ndarray of shape (n_sweeps,)
        class_index : int, or ndarray of int of shape (n_rows,)
        position : ndarray of shape (*rows, n_latents)
        log_step : ndarray of shape (n_classes,)
            Logarithms of the step sizes.
        log_offset : ndarray of shape (n_classes, *rows) or None
            Added to the logarithms of the weights.
        arguments : sequence of ndarray
            Values of the density's `inputs`.
        move_scale : ndarray of shape (n_classes, *rows, n_latents, n_latents), optional
            Scales that moves within a class use in place of the pseudo-priors'.
        """
        indices, positions, final, log_weights, acceptance, *rest = self._function(
            as_argument(noise),
            as_argument(gains),
            as_argument(class_index, np.int64),
            as_argument(position),
            as_argument(log_step),
            self._no_offset if log_offset is None else as_argument(log_offset),
            as_argument(pseudo_priors.scale if move_scale is None else move_scale),
            *map(as_argument, pseudo_priors.as_list()),
            *arguments,
        )
        return Sweeps(indices, positions, log_weights, rest[0] if rest else None, acceptance, final)

    def log_densities(
        self,
        class_index: int | np.ndarray,
        points: np.ndarray,
        arguments: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return log p(y, I, X) at points ``(n, *rows, n_latents)``, shape ``(n, *rows)``.

        Interpreted, because few models need it.
        """
        if self._value is None:
            shape = self._density.position_shape
            k = pt.tensor("class_index", dtype="int64", shape=shape[:-1])
            x = pt.tensor("position", dtype="float64", shape=shape)
            log_p = self._density.log_density(k, x)
            self._value = compile_with_data(self._density, [k, x], log_p, interpreted_mode())
        index = np.asarray(class_index, dtype=np.int64)
        with np.errstate(all="ignore"):
            return np.array([self._value(index, x, *arguments) for x in as_argument(points)])
