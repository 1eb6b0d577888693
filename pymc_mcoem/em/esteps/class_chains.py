"""Markov chains in every class, and evidences from their draws, for `AuxiliaryChains`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from scipy.special import chdtri, logsumexp

from pymc_mcoem.carlin_chib.moves.within_class import ClassProposal
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.compiling.loops import compile_loop
from pymc_mcoem.density.class_density import as_argument
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
        self.noise_size = move.noise_size(n)
        self.initial_log_step = np.full(density.n_classes, move.initial_log_step(n))
        noise = pt.tensor("noise", dtype="float64", shape=(None, self.noise_size))
        gains = pt.tensor("gains", dtype="float64", shape=(None,))
        k = pt.scalar("class_index", dtype="int64")
        start = pt.tensor("start", dtype="float64", shape=(n,))
        log_step = pt.scalar("log_step", dtype="float64")
        mean = pt.tensor("mean", dtype="float64", shape=(n,))
        scale, whiten = (
            pt.tensor(name, dtype="float64", shape=(n, n)) for name in ("scale", "whiten")
        )

        def log_density(k: Any, x: Any) -> Any:
            value = density.log_density(k, x)
            # Moves from a point without density to one with density are always accepted.
            return pt.switch(pt.isnan(value), -np.inf, value)

        def sweep(
            noise: Any, gain: Any, x: Any, log_p: Any, log_step: Any, k: Any, *proposal: Any
        ) -> list[Any]:
            shaped = ClassProposal(*proposal)
            moved = move.build(density, k, x, log_p, noise, shaped, log_step)
            return [
                pt.specify_shape(moved.position, (n,)),
                log_density(k, moved.position),
                log_step + gain * moved.step_size_error(move.target_acceptance),
                moved.acceptance,
            ]

        self._function = compile_loop(
            density,
            sweep,
            inputs=[noise, gains, k, start, log_step, scale, mean, whiten],
            sequences=[noise, gains],
            carried=[start, log_density(k, start), log_step],
            n_emitted=1,
            fixed=[k, scale, mean, whiten],
            last={2},
            mode=mode,
        )

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
            ``(n_sweeps, noise_size)`` standard normals per class are drawn from it.
        starts : ndarray of shape (n_classes, n_latents)
        log_step : ndarray of shape (n_classes,)
        pseudo_priors : PseudoPriors
            They shape the moves.
        gains : ndarray of shape (n_sweeps,)
            As from `adaptation_gains`.
        data : mapping of str to ndarray
            Values of the density's `data_inputs`.
        """
        arguments = self.density.arguments(data)
        # one class at a time, because the noise of a long chain takes much memory
        chains = [
            self._function(
                rng.standard_normal((len(gains), self.noise_size)),
                as_argument(gains),
                np.asarray(j, dtype=np.int64),
                as_argument(starts[j]),
                as_argument(log_step[j]),
                as_argument(pseudo_priors.scale[j]),
                as_argument(pseudo_priors.mean[j]),
                as_argument(pseudo_priors.whiten[j]),
                *arguments,
            )
            for j in range(self.density.n_classes)
        ]
        position, log_density, final, acceptance = (
            np.stack(parts) for parts in zip(*chains, strict=True)
        )
        return ClassDraws(position, log_density, acceptance, final)


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
