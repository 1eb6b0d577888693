"""Pseudo-priors with the moments of a chain within each class, for posteriors far from normal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import ClassProposal
from pymc_mcoem.carlin_chib.pseudo_priors.base import CompiledPseudoPriors, Mixtures, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.compiling.backends import without_jax
from pymc_mcoem.compiling.data_functions import compile_with_data

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.density.geometry import LatentGeometry

__all__ = ["ChainMoments"]


@dataclass(frozen=True)
class ChainMoments:
    """Mean and covariance of a Hamiltonian chain in each class, shrunk towards `Laplace`.

    Parameters
    ----------
    n_steps : int
        Length of the chain in each class; the first half is dropped. At least 10.
    shrinkage : float
        Share, between 0 and 1, that the curvature at the mode keeps in the covariance.
    move : Hamiltonian
        How the chain moves.

    Raises
    ------
    ValueError
        If `n_steps` is less than 10 or `shrinkage` is not between 0 and 1.

    Notes
    -----
    Classes with several modes keep the mixture that `Laplace` makes of them, for a chain stays on
    one. The chains of the others start at their modes and move on the scale of the Laplace
    approximation. Where posteriors are skewed, or flat in some directions, as those of
    deformations are, they lie far from what a normal density at the mode covers: a chain then
    hardly ever leaves its class, because where it is the pseudo-prior of its own class has next to
    no density.
    ``benchmarks/pseudo_priors.py`` measures it. Cost: `n_steps` moves in every class at each fit,
    so this is a rule for `CarlinChib`, which fits a few times a chain, and not for bursts.

    Examples
    --------
    >>> ChainMoments(n_steps=500).shrinkage
    0.3
    """

    n_steps: int = 1_000
    shrinkage: float = 0.3
    move: Hamiltonian = field(default_factory=Hamiltonian)

    def __post_init__(self) -> None:
        if self.n_steps < 10:
            raise ValueError(f"n_steps: got {self.n_steps}; moments take at least 10 steps.")
        if not 0 < self.shrinkage <= 1:
            raise ValueError(
                f"shrinkage: got {self.shrinkage}; give a share above 0, which keeps the "
                "covariance from being singular, and at most 1."
            )

    def compile(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any = None
    ) -> CompiledPseudoPriors:
        """Compile the mode search and the chains."""
        laplace = Laplace(race=None).compile(density, geometry, mode)
        mode = without_jax(mode)
        n_classes, n, move = density.n_classes, density.n_latents, self.move
        size = move.noise_size(n)

        def one_step(
            noise: Any, gain: Any, x: Any, log_step: Any, k: Any, scale: Any
        ) -> tuple[Any, Any]:
            log_p = density.log_density(k, x)
            moved = move.build(density, k, x, log_p, noise, ClassProposal(scale), log_step)
            error = moved.step_size_error(move.target_acceptance)
            return pt.specify_shape(moved.position, (n,)), log_step + gain * error

        noise = pt.tensor("noise", dtype="float64", shape=(self.n_steps, size))
        gains = pt.tensor("gains", dtype="float64", shape=(self.n_steps,))
        scale = pt.tensor("scale", dtype="float64", shape=(n, n))
        start = pt.tensor("start", dtype="float64", shape=(n,))
        # a vector of one, for numba is slow to take in arrays without an axis
        index = pt.tensor("class_index", dtype="int64", shape=(1,))
        positions, _ = pytensor.scan(
            one_step,
            sequences=[noise, gains],
            outputs_info=[start, pt.constant(move.initial_log_step(n), dtype="float64")],
            non_sequences=[index[0], scale],
            return_updates=False,
        )
        chain = compile_with_data(density, [noise, gains, scale, start, index], positions, mode)
        robbins_monro = 1.0 / np.sqrt(np.arange(1, self.n_steps + 1))

        def chain_moments(
            data: Mapping[str, np.ndarray],
            rng: np.random.Generator,
            others: Sequence[np.ndarray] = (),
        ) -> PseudoPriors:
            fitted = laplace(data, rng, others)
            values = density.arguments(data, others)
            mean, covariance = np.empty((n_classes, n)), np.empty((n_classes, n, n))
            mixtures = fitted.mixtures
            is_mixed = np.zeros(n_classes, bool) if mixtures is None else mixtures.is_mixed
            for j in range(n_classes):
                at_mode = fitted.scale[j] @ fitted.scale[j].T
                if is_mixed[j]:
                    mean[j], covariance[j] = fitted.mean[j], at_mode
                    continue
                draws = chain(
                    rng.standard_normal((self.n_steps, size)),
                    robbins_monro,
                    np.ascontiguousarray(fitted.scale[j]),
                    np.ascontiguousarray(fitted.mean[j]),
                    np.array([j]),
                    *values,
                )[self.n_steps // 2 :]
                mean[j] = draws.mean(axis=0)
                own = np.atleast_2d(np.cov(draws, rowvar=False))
                covariance[j] = (1 - self.shrinkage) * own + self.shrinkage * at_mode
            moments = PseudoPriors.from_covariance(
                mean, covariance, fitted.log_evidence, fitted.troubles
            )
            if mixtures is None:
                return moments
            n_components = mixtures.log_share.shape[1]
            class_of = np.repeat(np.arange(n_classes), n_components)
            kept = [
                np.where(
                    is_mixed[class_of].reshape(-1, *[1] * (own.ndim - 1)), own, found[class_of]
                )
                for own, found in zip(mixtures.normals.as_list(), moments.as_list(), strict=True)
            ]
            mean, scale, whiten, log_normalizer = kept
            normals = PseudoPriors(
                mean, scale, whiten, log_normalizer, mixtures.normals.log_evidence
            )
            return replace(moments, mixtures=Mixtures(mixtures.log_share, normals))

        return chain_moments
