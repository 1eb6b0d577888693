"""Posterior expectations of small families by the trapezoid rule on a grid.

On smooth densities that vanish at the ends of the grid the rule converges faster than any power
of the spacing: halving the spacing changes nothing that a Monte Carlo test could see, and
`test_exact_posterior` checks that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from tests.helpers.models import N_CLASSES, OracleFamily


class Quadrature:
    """Exact posterior of a family at the values that its model holds now.

    Parameters
    ----------
    family : OracleFamily
    n_points : int
        On each axis.

    Attributes
    ----------
    grid : ndarray of shape (n_points ** n_latents, n_latents)
    weight : ndarray of shape (n_classes, n_points ** n_latents)
        Posterior probability of each class at each point; all of them sum to one.
    log_evidence : ndarray of shape (n_classes,)
        log p(y, I = j).
    """

    def __init__(self, family: OracleFamily, n_points: int) -> None:
        axes = [np.linspace(low, high, n_points) for low, high in family.bounds]
        mesh = np.meshgrid(*axes, indexing="ij")
        self.family = family
        self.grid = np.stack([axis.ravel() for axis in mesh], axis=1)
        cell = np.prod([axis[1] - axis[0] for axis in axes])
        log_density = np.stack([family.log_density(j, self.grid) for j in range(N_CLASSES)])
        top = log_density.max()
        mass = np.exp(log_density - top) * cell
        self.weight = mass / mass.sum()
        self.log_evidence = np.log(mass.sum(axis=1)) + top

    @cached_property
    def class_probability(self) -> np.ndarray:
        """Return p(I = j | y), shape ``(n_classes,)``."""
        return self.weight.sum(axis=1)

    def expectation(self, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return E[f(I, X) | y] of a function of classes ``(n,)`` and positions ``(n, d)``."""
        total: np.ndarray = sum(
            self.weight[j] @ function(np.full(len(self.grid), j), self.grid)
            for j in range(N_CLASSES)
        )
        return total

    def statistics(self) -> dict[str, np.ndarray]:
        """Return E[δ_{I,j} S(X) | y], each ``(n_classes, *shape)``, and the class weights."""
        values = self.family.statistics_of(self.grid)
        found = {
            name: np.tensordot(self.weight, value, axes=(1, 0)) for name, value in values.items()
        }
        return {"class_weight": self.class_probability, **found}

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return means ``(n_classes, d)`` and covariances ``(n_classes, d, d)`` within classes."""
        share = self.weight / self.class_probability[:, None]
        mean = share @ self.grid
        centered = self.grid[None] - mean[:, None]
        return mean, np.einsum("jn,jna,jnb->jab", share, centered, centered)

    def good_pseudo_priors(self) -> PseudoPriors:
        """Return the normal densities with the posterior's own moments."""
        mean, covariance = self.moments()
        return PseudoPriors.from_covariance(mean, covariance, self.log_evidence)

    def poor_pseudo_priors(self) -> PseudoPriors:
        """Return pseudo-priors that are too wide and sit beside the posterior.

        Another shift and width in each class, so that no error can cancel among them.
        """
        mean, covariance = self.moments()
        spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        shift = np.array([1.5, -1.0, 0.5])[:, None] * spread
        width = np.array([1.5, 3.0, 2.0])[:, None, None] ** 2
        return PseudoPriors.from_covariance(mean + shift, width * covariance)
