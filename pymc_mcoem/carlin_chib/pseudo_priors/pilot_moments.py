"""Pseudo-priors with the moments of a pilot chain: the paper's choice for digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.moves.within_class import ClassProposal, RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.base import CompiledPseudoPriors, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.prior_covariance import compile_prior_covariance
from pymc_mcoem.compiling.backends import without_jax
from pymc_mcoem.compiling.data_functions import compile_with_data

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
        mode = without_jax(mode)
        n_classes, n = density.n_classes, density.n_latents
        starts = geometry.follow_starts(density)
        covariances = compile_prior_covariance(density, geometry, self.n_prior_draws, mode)
        move = RandomWalk(n_moves=1)

        def one_step(noise: Any, gain: Any, x: Any, log_step: Any, k: Any, scale: Any) -> Any:
            log_p, proposal = density.log_density(k, x), ClassProposal(scale)
            moved = move.build(density, k, x, log_p, noise, proposal, log_step)
            new_log_step = log_step + gain * moved.step_size_error(move.target_acceptance)
            return pt.specify_shape(moved.position, (n,)), new_log_step

        def one_class(noise: Any, k: Any, scale: Any, x0: Any, log_step: Any, gains: Any) -> Any:
            positions, _ = pytensor.scan(
                one_step,
                sequences=[noise, gains],
                outputs_info=[x0, log_step],
                non_sequences=[k, scale],
                return_updates=False,
            )
            return positions

        size = move.noise_size(n)
        noise = pt.tensor("noise", dtype="float64", shape=(n_classes, self.n_steps, size))
        scale = pt.tensor("scale", dtype="float64", shape=(n_classes, n, n))
        x0 = pt.tensor("start", dtype="float64", shape=(n,))
        log_step = pt.scalar("log_step", dtype="float64")
        gains = pt.tensor("gains", dtype="float64", shape=(self.n_steps,))
        chains = pytensor.scan(
            one_class,
            sequences=[noise, pt.arange(n_classes), scale],
            non_sequences=[x0, log_step, gains],
            return_updates=False,
        )
        pilot = compile_with_data(density, [noise, scale, x0, log_step, gains], chains, mode)
        robbins_monro = 2.0 / np.sqrt(np.arange(1, self.n_steps + 1))

        def pilot_moments(
            data: Mapping[str, np.ndarray],
            rng: np.random.Generator,
            others: Sequence[np.ndarray] = (),
        ) -> PseudoPriors:
            prior = covariances(data, rng, others)
            draws = pilot(
                rng.standard_normal((n_classes, self.n_steps, size)),
                np.linalg.cholesky(prior),
                starts()[0],
                np.asarray(move.initial_log_step(n)),
                robbins_monro,
                *density.arguments(data, others),
            )[:, self.n_steps // 2 :]
            mean = draws.mean(axis=1)
            centered = draws - mean[:, None]
            n_kept = draws.shape[1]
            sample = np.einsum("jta,jtb->jab", centered, centered) / n_kept
            variances = 0.5 * (
                np.diagonal(sample, axis1=1, axis2=2) + np.diagonal(prior, axis1=1, axis2=2)
            )
            covariance = (n_kept * sample + n * np.einsum("ja,ab->jab", variances, np.eye(n))) / (
                n_kept + n
            )
            return PseudoPriors.from_covariance(mean, covariance)

        return pilot_moments
