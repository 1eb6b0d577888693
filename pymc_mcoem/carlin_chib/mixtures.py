"""Pseudo-priors that are mixtures of normals, for classes whose densities have several modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.pseudo_priors import PseudoPriors

__all__ = ["Mixtures"]


@dataclass(frozen=True, eq=False)
class Mixtures:
    """A mixture of normals for each class: κ_j = Σ_c share_jc Normal(mean_jc, covariance_jc).

    Attributes
    ----------
    log_share : ndarray of shape (n_classes, n_components)
        Minus infinity where a class has fewer components.
    normals : PseudoPriors
        Of n_classes n_components rows, class by class.

    Examples
    --------
    >>> from pymc_mcoem.carlin_chib.pseudo_priors import PseudoPriors
    >>> normals = PseudoPriors.from_covariance(np.array([[-2.0], [2.0]]), np.ones((2, 1, 1)))
    >>> mixtures = Mixtures(np.log([[0.25, 0.75]]), normals)
    >>> mixtures.log_density(np.array([[2.0]])).round(4)
    array([-1.2065])
    """

    log_share: np.ndarray
    normals: PseudoPriors

    @property
    def is_mixed(self) -> np.ndarray:
        """Which classes have several components, ``(n_classes,)``."""
        found: np.ndarray = np.isfinite(self.log_share).sum(axis=1) > 1
        return found

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """Return log κ_j(U_j), shape ``(n_classes,)``, of positions ``(n_classes, n_latents)``."""
        n_components = self.log_share.shape[1]
        parts = self.normals.log_density(np.repeat(positions, n_components, axis=0))
        found: np.ndarray = np.logaddexp.reduce(
            self.log_share + parts.reshape(self.log_share.shape), axis=1
        )
        return found

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw from every class's mixture, ``(n_classes, n_latents)``."""
        n_classes, n_components = self.log_share.shape
        cumulative = np.cumsum(np.exp(self.log_share), axis=1)
        threshold = rng.random(n_classes) * cumulative[:, -1]
        chosen = (cumulative <= threshold[:, None]).sum(axis=1)
        rows = np.arange(n_classes) * n_components + np.minimum(chosen, n_components - 1)
        noise = rng.standard_normal((n_classes, self.normals.mean.shape[1]))
        scaled = np.einsum("jab,jb->ja", self.normals.scale[rows], noise)
        drawn: np.ndarray = self.normals.mean[rows] + scaled
        return drawn

    def restricted(self, active: np.ndarray) -> Mixtures:
        """Return the same, standard normal and independent where a class is not active."""
        repeated = np.repeat(active, self.log_share.shape[1], axis=0)
        return Mixtures(self.log_share, self.normals.restricted(repeated))

    def arrays(self) -> list[np.ndarray]:
        """Return what two equal mixtures have equal."""
        return [self.log_share, *self.normals.as_list()]
