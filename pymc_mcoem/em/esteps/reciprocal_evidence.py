"""Evidences of classes from draws within each, for `AuxiliaryChains`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, logsumexp

from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.em.esteps.class_fits import effective_share

__all__ = ["ReciprocalEvidence"]


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
