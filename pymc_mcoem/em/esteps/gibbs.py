"""Gibbs sweeps of class and shared latents, compiled: what `PlainGibbs` sums up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.kernel import PseudoPriorSymbols, draw_class
from pymc_mcoem.carlin_chib.moves.within_class import ClassProposal
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.sweeps import Sweeps
from pymc_mcoem.compiling.loops import compile_loop
from pymc_mcoem.density.class_density import as_argument

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["GibbsChain"]


class GibbsChain:
    """Compiled sweeps: the class given the latents, then the latents given the class.

    Parameters
    ----------
    density : ClassDensity
    move : WithinClassMove
    mode : str or None
        PyTensor's compilation mode.

    Notes
    -----
    The class is drawn from the latents alone, so that these are all of the chain's state.
    """

    def __init__(self, density: ClassDensity, move: WithinClassMove, *, mode: Any = None) -> None:
        n, n_classes = density.n_latents, density.n_classes
        self.density = density
        self.noise_size = 2 + move.noise_size(n)
        self.initial_log_step = np.full(n_classes, move.initial_log_step(n))
        noise = pt.tensor("noise", dtype="float64", shape=(None, self.noise_size))
        gains = pt.tensor("gains", dtype="float64", shape=(None,))
        start = pt.tensor("start", dtype="float64", shape=(n,))
        log_step = pt.tensor("log_step", dtype="float64", shape=(n_classes,))
        symbols = PseudoPriorSymbols.create(n_classes, n)

        def sweep(noise: Any, gain: Any, x: Any, log_step: Any, *proposals: Any) -> list[Any]:
            normal = PseudoPriorSymbols(*proposals)
            log_weight = pytensor.scan(
                lambda j, x: density.log_density(j, x),
                sequences=[pt.arange(n_classes)],
                non_sequences=[x],
                return_updates=False,
            )
            log_weight = pt.switch(pt.isnan(log_weight), -np.inf, log_weight)
            chosen = pt.cast(draw_class(log_weight, noise[:2]), "int64")
            moved = move.build(
                density,
                chosen,
                x,
                log_weight[chosen],
                noise[2:],
                ClassProposal(normal.scale[chosen], normal.mean[chosen], normal.whiten[chosen]),
                log_step[chosen],
            )
            error = moved.step_size_error(move.target_acceptance)
            return [
                pt.specify_shape(moved.position, (n,)),
                pt.specify_shape(pt.inc_subtensor(log_step[chosen], gain * error), (n_classes,)),
                chosen,
                log_weight,
                moved.acceptance,
            ]

        self._function = compile_loop(
            density,
            sweep,
            inputs=[noise, gains, start, log_step, *symbols.as_list()],
            sequences=[noise, gains],
            carried=[start, log_step],
            n_emitted=3,
            fixed=symbols.as_list(),
            last={1},
            mode=mode,
        )

    def __call__(
        self,
        rng: np.random.Generator,
        start: np.ndarray,
        log_step: np.ndarray,
        proposals: PseudoPriors,
        gains: np.ndarray,
        data: Mapping[str, np.ndarray],
    ) -> Sweeps:
        """Run ``len(gains)`` sweeps.

        Parameters
        ----------
        rng : numpy.random.Generator
            Gives ``(n_sweeps, noise_size)`` standard normals.
        start : ndarray of shape (n_latents,)
        log_step : ndarray of shape (n_classes,)
        proposals : PseudoPriors
            What moves are shaped like.
        gains : ndarray of shape (n_sweeps,)
            As from `adaptation_gains`.
        data : mapping of str to ndarray
            Values of the density's `data_inputs`.
        """
        positions, final, indices, log_weights, acceptance = self._function(
            rng.standard_normal((len(gains), self.noise_size)),
            as_argument(gains),
            as_argument(start),
            as_argument(log_step),
            *map(as_argument, proposals.as_list()),
            *self.density.arguments(data),
        )
        return Sweeps(indices, positions, log_weights, None, acceptance, final)
