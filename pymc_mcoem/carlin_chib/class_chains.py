"""Markov chains within each class: sweeps in which no other class has weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.carlin_chib.kernel import noise_size
from pymc_mcoem.carlin_chib.sweeps import compile_sweeps

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["ClassChains", "ClassDraws"]


@dataclass(frozen=True)
class ClassDraws:
    """All sweeps of the chains, tuning included.

    Attributes
    ----------
    position : ndarray of shape (n_classes, n_sweeps, n_latents)
    log_density : ndarray of shape (n_classes, n_sweeps)
        log p(y, I = j, X_j) at each position.
    acceptance : ndarray of shape (n_classes, n_sweeps)
    log_step : ndarray of shape (n_classes,)
        Logarithms of the step sizes at the end; for a class without density, those given.
    """

    position: np.ndarray
    log_density: np.ndarray
    acceptance: np.ndarray
    log_step: np.ndarray


class ClassChains:
    """Compiled sweeps of within-class moves, with one chain per class."""

    def __init__(self, density: ClassDensity, move: WithinClassMove, *, mode: Any = None) -> None:
        n = density.n_latents
        self.density = density
        self.initial_log_step = np.full(density.n_classes, move.initial_log_step(n))
        self.noise_size = move.noise_size(n)
        self._size = noise_size(density.n_classes, n, move, shared_latents=True)
        self._sweeps = compile_sweeps(density, move, shared_latents=True, mode=mode)

    def __call__(
        self,
        rng: np.random.Generator,
        starts: np.ndarray,
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        gains: np.ndarray,
        data: Mapping[str, np.ndarray],
        others: Sequence[np.ndarray] = (),
    ) -> ClassDraws:
        """Run ``len(gains)`` sweeps in every class.

        Parameters
        ----------
        rng : numpy.random.Generator
            Standard normals are drawn from it, as many for each class and sweep as a move consumes.
        starts : ndarray of shape (n_classes, n_latents)
        log_step : ndarray of shape (n_classes,)
        pseudo_priors : PseudoPriors
            They shape the moves.
        gains : ndarray of shape (n_sweeps,)
            As from `adaptation_gains`.
        data : mapping of str to ndarray
            Values of the density's `data_inputs`.
        """
        arguments, n_sweeps = self.density.arguments(data, others), len(gains)
        position, log_density, acceptance, final = [], [], [], log_step.copy()
        # one class at a time, because the noise of a long chain takes much memory
        for j, start in enumerate(starts):
            noise = np.zeros((n_sweeps, self._size))
            noise[:, self._size - self.noise_size :] = rng.standard_normal(
                (n_sweeps, self.noise_size)
            )
            only = np.where(np.arange(len(starts)) == j, 0.0, -np.inf)
            found = self._sweeps(noise, gains, j, start, log_step, only, pseudo_priors, arguments)
            # log-weights are log-densities here, of the position before each sweep
            last = self._sweeps.log_densities(j, found.position[-1:], arguments)
            own = np.concatenate([found.log_weight[1:, j], last])
            position.append(found.position)
            log_density.append(np.where(np.isnan(own), -np.inf, own))
            acceptance.append(found.acceptance)
            # without density every proposal is rejected, which says nothing about step sizes
            if np.isfinite(own).any():
                final[j] = found.log_step[j]
        return ClassDraws(np.array(position), np.array(log_density), np.array(acceptance), final)
