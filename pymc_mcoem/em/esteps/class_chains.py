"""Markov chains in every class, and evidences from their draws, for `AuxiliaryChains`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import chdtri, logsumexp

from pymc_mcoem.carlin_chib.kernel import noise_size
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.sweeps import compile_sweeps
from pymc_mcoem.em.esteps.class_fits import effective_share

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["ClassChains", "ClassDraws", "ReciprocalEvidence"]


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
        Logarithms of the step sizes at the end.
    """

    position: np.ndarray
    log_density: np.ndarray
    acceptance: np.ndarray
    log_step: np.ndarray


class ClassChains:
    """Compiled sweeps of within-class moves, with one chain per class.

    Parameters
    ----------
    density : ClassDensity
    move : WithinClassMove
    mode : str or None
        PyTensor's compilation mode.
    """

    def __init__(self, density: ClassDensity, move: WithinClassMove, *, mode: Any = None) -> None:
        n = density.n_latents
        self.density = density
        self.initial_log_step = np.full(density.n_classes, move.initial_log_step(n))
        self.noise_size = move.noise_size(n)
        self._size = noise_size(density.n_classes, n, move, shared_latents=True)
        # A chain within one class: sweeps in which no other class has weight.
        self._sweeps = compile_sweeps(density, move, shared_latents=True, mode=mode)

    def __call__(
        self,
        rng: np.random.Generator,
        starts: np.ndarray,
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        gains: np.ndarray,
        data: Mapping[str, np.ndarray],
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
        arguments, n_sweeps = self.density.arguments(data), len(gains)
        position, log_density, acceptance, final = [], [], [], log_step.copy()
        # one class at a time, because the noise of a long chain takes much memory
        for j, start in enumerate(starts):
            noise = np.zeros((n_sweeps, self._size))
            noise[:, self._size - self.noise_size :] = rng.standard_normal(
                (n_sweeps, self.noise_size)
            )
            only = np.where(np.arange(len(starts)) == j, 0.0, -np.inf)
            found = self._sweeps(noise, gains, j, start, log_step, only, pseudo_priors, arguments)
            # weights are those of the positions before, which are densities here
            last = self._sweeps.log_densities(j, found.position[-1:], arguments)
            own = np.concatenate([found.log_weight[1:, j], last])
            position.append(found.position)
            log_density.append(np.where(np.isnan(own), -np.inf, own))
            acceptance.append(found.acceptance)
            final[j] = found.log_step[j]
        return ClassDraws(np.array(position), np.array(log_density), np.array(acceptance), final)


@dataclass(frozen=True)
class ReciprocalEvidence:
    """Evidences of classes by the reciprocal importance formula.

    Attributes
    ----------
    log_evidence : ndarray of shape (n_classes,)
        Estimates of log p(y, I = j).
    effective_share : ndarray of shape (n_classes,)
        Effective shares of the ratios that each estimate averages.
    whole : ndarray of bool of shape (n_classes,)
        Whether no draw was in the ellipsoid, so that the pseudo-prior was not truncated.

    Examples
    --------
    A density that is twice the pseudo-prior has evidence 2, whatever the draws:

    >>> unit = PseudoPriors.from_covariance(np.zeros((1, 1)), np.ones((1, 1, 1)))
    >>> draws = np.linspace(-1, 1, 5).reshape(1, 5, 1)
    >>> log_density = np.log(2 * np.exp(-(draws[..., 0] ** 2) / 2) / np.sqrt(2 * np.pi))
    >>> found = ReciprocalEvidence.of(unit, draws, log_density, coverage=1.0)
    >>> np.exp(found.log_evidence).round(6), found.effective_share
    (array([2.]), array([1.]))
    """

    log_evidence: np.ndarray
    effective_share: np.ndarray
    whole: np.ndarray

    @classmethod
    def of(
        cls,
        pseudo_priors: PseudoPriors,
        position: np.ndarray,
        log_density: np.ndarray,
        coverage: float,
    ) -> ReciprocalEvidence:
        """Return estimates from draws of every class.

        Parameters
        ----------
        pseudo_priors : PseudoPriors
        position : ndarray of shape (n_classes, n_draws, n_latents)
        log_density : ndarray of shape (n_classes, n_draws)
        coverage : float
            Probability of the ellipsoid to which each pseudo-prior is truncated; 1: not truncated.
        """
        n_draws, n = position.shape[1:]
        centered = position - pseudo_priors.mean[:, None]
        squares = (np.einsum("jab,jtb->jta", pseudo_priors.whiten, centered) ** 2).sum(axis=2)
        inside = squares <= (np.inf if coverage == 1 else chdtri(n, 1 - coverage))
        whole = ~inside.any(axis=1)
        log_share = np.where(whole, 0.0, np.log(coverage))[:, None]
        log_kappa = pseudo_priors.log_normalizer[:, None] - 0.5 * squares - log_share
        log_kappa = np.where(inside | whole[:, None], log_kappa, -np.inf)
        # a chain that never found a point with density has no evidence
        log_ratio = np.where(np.isneginf(log_density), np.inf, log_kappa - log_density)
        return cls(
            np.log(n_draws) - logsumexp(log_ratio, axis=1), effective_share(log_ratio), whole
        )
