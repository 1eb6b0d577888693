"""Functions shared by E-steps: a family's density, stored fits, effective shares of draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.density.class_density import ClassDensity

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
    from pymc_mcoem.em.burst import WeightedStatistics
    from pymc_mcoem.em.family import Family

__all__ = [
    "FEW",
    "NEGLIGIBLE",
    "effective_share",
    "family_density",
    "fit_to_keep",
    "require_density",
    "require_moves",
    "statistics_of_draws",
    "stored_fit",
]

#: Weights below this share do not enter statistics; together they change a mean by less than
#: n_classes times as much.
NEGLIGIBLE = 1e-9

#: Effective shares of weighted draws below this are reported as troubles.
FEW = 0.1

#: Arrays of pseudo-priors that are stored with a chain.
_FIT = ("mean", "scale", "whiten", "log_normalizer", "log_evidence")


def family_density(family: Family, *, needs_latents: bool = True) -> ClassDensity:
    """Return the density of a family, with its parameters and observation as inputs."""
    density = ClassDensity(
        family.model,
        family.class_index,
        family.latents,
        inputs=(*family.parameter_names, *family.observation),
    )
    if needs_latents:
        density.require_latents()
    known = family.written_out
    if known is not None and known.model is family.model:
        density.written_out = known
    return density


def require_moves(move: WithinClassMove, density: ClassDensity) -> None:
    """Refuse a move that does not move the latents."""
    if move.noise_size(density.n_latents) == 0:
        raise ValueError(
            f"within_class: {move} never moves the latents, and nothing else in this E-step does; "
            "give at least one move."
        )


def require_density(log_density: Any, name: str) -> None:
    """Check that the density of at least one class is finite.

    Parameters
    ----------
    log_density : array_like of shape (..., n_classes)
    name : str
        Name of the E-step, for the message.
    """
    if not np.isfinite(log_density).any(axis=-1).all():
        raise FloatingPointError(
            f"{name}: the log-density is not finite for any class; check the observation and the "
            "parameters, which lie where the model has no density."
        )


def effective_share(log_weight: np.ndarray) -> np.ndarray:
    """Return (Σ w)² / (n Σ w²) along the last axis: 1 for equal weights, 1/n for a single one.

    Parameters
    ----------
    log_weight : ndarray of shape (..., n)

    Returns
    -------
    ndarray of shape (...)
        0 where every weight is zero.

    Examples
    --------
    >>> effective_share(np.array([[0.0, 0.0], [0.0, -np.inf]]))
    array([1. , 0.5])
    """
    with np.errstate(invalid="ignore"):
        log_share = 2 * logsumexp(log_weight, axis=-1) - logsumexp(2 * log_weight, axis=-1)
    share: np.ndarray = np.exp(log_share) / log_weight.shape[-1]
    return np.where(np.isnan(share), 0.0, share)


def statistics_of_draws(
    statistics: WeightedStatistics,
    positions: np.ndarray,
    weights: np.ndarray,
    values: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Return Σ_j Σ_t w_jt δ_j S(x_jt) over draws of every class, without negligible ones.

    Parameters
    ----------
    positions : ndarray of shape (n_classes, n_draws, n_latents)
    weights : ndarray of shape (n_classes, n_draws)
        Weights, which sum to one in all.
    values : mapping of str to ndarray
        Observation and parameters.
    """
    index, draw = np.nonzero(weights > NEGLIGIBLE / weights.shape[1])
    chosen = weights[index, draw]
    return statistics(index, positions[index, draw], chosen / chosen.sum(), values)


def fit_to_keep(pseudo_priors: PseudoPriors) -> dict[str, np.ndarray]:
    """Return pseudo-priors as arrays to store with a chain between visits."""
    return {name: getattr(pseudo_priors, name) for name in _FIT}


def continued_chain(
    chain: Mapping[str, np.ndarray], **shapes: tuple[int, ...]
) -> Mapping[str, np.ndarray]:
    """Return `chain` if an E-step can continue it, and an empty one if its shapes differ.

    Parameters
    ----------
    chain : mapping of str to ndarray
        Chain of an observation's last visit, perhaps by another E-step, since a file cannot
        always tell which.
    **shapes : tuple of int
        Shapes of the arrays in this E-step's chains.

    Examples
    --------
    >>> continued_chain({"position": np.zeros((2, 3))}, position=(3,))
    {}
    """
    fits = all(name in chain and chain[name].shape == shape for name, shape in shapes.items())
    return chain if fits else {}


def stored_fit(chain: Mapping[str, np.ndarray]) -> PseudoPriors | None:
    """Return the pseudo-priors stored with a chain, or None; their troubles are already counted."""
    if "mean" not in chain:
        return None
    mean, scale, whiten, log_normalizer, log_evidence = (chain[name] for name in _FIT)
    return PseudoPriors(mean, scale, whiten, log_normalizer, log_evidence)
