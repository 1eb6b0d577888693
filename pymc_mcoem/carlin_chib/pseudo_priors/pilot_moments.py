"""Pseudo-priors with the moments of a pilot chain: the paper's choice for digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.carlin_chib.class_chains import ClassChains
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.base import CompiledPseudoPriors, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.prior_covariance import compile_prior_covariance
from pymc_mcoem.compiling.backends import without_jax

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.density.geometry import LatentGeometry

__all__ = ["PilotMoments"]


@dataclass(frozen=True)
class PilotMoments:
    """Sample mean and covariance of a pilot chain in each class: the paper's choice for digits.

    Parameters
    ----------
    n_steps : int
        Length of the pilot chain; the paper takes 100.
    n_prior_draws : int
        As in `PriorCovariance`.

    Notes
    -----
    The chain starts at the family's first starting point. Its increments are shaped like the
    prior covariance and tuned to 40 % acceptance throughout. The first half is dropped. A hundred
    correlated draws give no full-rank covariance in 78 dimensions, so the sample covariance S is
    replaced by (n S + d · diag V) / (n + d), where n is the number of draws that are not dropped,
    d the number of latents, and V the mean of the sample and the prior variances.

    Examples
    --------
    >>> from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
    >>> CarlinChibBurst.as_in_paper().pseudo_priors
    PilotMoments(n_steps=100, n_prior_draws=2000)
    """

    n_steps: int = 100
    n_prior_draws: int = 2_000

    def __post_init__(self) -> None:
        if self.n_steps < 4:
            raise ValueError(f"n_steps: got {self.n_steps}; a pilot chain needs at least 4 steps.")

    def compile(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any = None
    ) -> CompiledPseudoPriors:
        """Compile the pilot chain."""
        n_classes, n = density.n_classes, density.n_latents
        chains = ClassChains(density, RandomWalk(n_moves=1), mode=without_jax(mode))
        starts = geometry.follow_starts(density)
        covariances = compile_prior_covariance(density, geometry, self.n_prior_draws, mode)
        gains = 2.0 / np.sqrt(np.arange(1, self.n_steps + 1))

        def pilot_moments(
            data: Mapping[str, np.ndarray],
            rng: np.random.Generator,
            others: Sequence[np.ndarray] = (),
        ) -> PseudoPriors:
            prior, start = covariances(data, rng, others), np.tile(starts()[0], (n_classes, 1))
            shaped = PseudoPriors.from_covariance(start, prior)
            found = chains(rng, start, chains.initial_log_step, shaped, gains, data, others)
            draws = found.position[:, self.n_steps // 2 :]
            mean = draws.mean(axis=1)
            centered = draws - mean[:, None]
            n_draws = draws.shape[1]
            sample = np.einsum("jta,jtb->jab", centered, centered) / n_draws
            variances = 0.5 * (
                np.diagonal(sample, axis1=1, axis2=2) + np.diagonal(prior, axis1=1, axis2=2)
            )
            covariance = (n_draws * sample + n * np.einsum("ja,ab->jab", variances, np.eye(n))) / (
                n_draws + n
            )
            return PseudoPriors.from_covariance(mean, covariance)

        return pilot_moments
