"""Compiled Gibbs sweeps of the class and shared latents, for `PlainGibbs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.compiled_sweeps import CompiledSweeps
from pymc_mcoem.carlin_chib.kernel import PseudoPriorSymbols, SweepInfo, SweepState, draw_class
from pymc_mcoem.carlin_chib.moves.within_class import ClassProposal
from pymc_mcoem.carlin_chib.sweep_graph import SweepGraph
from pymc_mcoem.em.burst import Burst

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove

__all__ = ["GibbsBurst"]


class GibbsBurst(Burst):
    """A burst of Gibbs sweeps: the class given the latents, then the latents given the class.

    Notes
    -----
    The class is drawn given the latents only, independently of the chain's present class.
    """

    def _compile(self, move: WithinClassMove, mode: Any) -> tuple[int, CompiledSweeps]:
        density = self.density

        def build(
            state: SweepState,
            noise: Any,
            normal: PseudoPriorSymbols,
            gain: Any,
            log_offset: Any,
            move_scale: Any,
        ) -> tuple[SweepState, SweepInfo]:
            log_p = pytensor.scan(
                lambda j, x: density.log_density(j, x),
                sequences=[pt.arange(density.n_classes)],
                non_sequences=[state.position],
                return_updates=False,
            )
            log_p = pt.switch(pt.isnan(log_p), -np.inf, log_p)
            log_weight = log_p + log_offset
            chosen = pt.cast(draw_class(log_weight, noise[:2]), "int64")
            moved = move.build(
                density,
                chosen,
                state.position,
                log_p[chosen],
                noise[2:],
                ClassProposal(move_scale[chosen], normal.mean[chosen], normal.whiten[chosen]),
                state.log_step[chosen],
            )
            error = moved.step_size_error(move.target_acceptance)
            log_step = pt.inc_subtensor(state.log_step[chosen], gain * error)
            position = pt.repeat(state.position[None], density.n_classes, axis=0)
            return (
                SweepState(chosen, moved.position, log_step),
                SweepInfo(log_weight, position, moved.acceptance),
            )

        size = 2 + move.noise_size(density.n_latents)
        return size, SweepGraph(density, build, size, self.keep_auxiliaries, mode)
