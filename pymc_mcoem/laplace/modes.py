"""Results of a search for the modes of a density."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

__all__ = [
    "FINE",
    "ModeStatus",
    "Modes",
    "PositiveDefinite",
    "cholesky_factors",
    "positive_definite",
    "precision_factors",
    "search_troubles",
    "square_roots",
]


#: A class whose log evidence is this many nats below the best has no weight.
_NEGLIGIBLE = 20.0


class ModeStatus(enum.Enum):
    """How a mode search ended."""

    CONVERGED = "the mode was found and its curvature is positive definite"
    NOT_CONVERGED = "the search ran out of iterations or got stuck; its last point is used"
    INDEFINITE = "the curvature at the mode is not positive definite; a ridge was added"
    NO_DENSITY = "the density is not finite at the starting point"
    OUT_OF_RACE = "another class was far ahead, so the search stopped early, as it was asked to"

    @property
    def trouble(self) -> str:
        """The name under which searches with this status are counted among troubles."""
        return f"mode search: {self.name.lower().replace('_', ' ')}"


#: Statuses that are not counted as troubles.
FINE = (ModeStatus.CONVERGED, ModeStatus.OUT_OF_RACE)


@dataclass(frozen=True)
class Modes:
    """Modes of a density, one for every requested class.

    Attributes
    ----------
    mean : ndarray of shape (n, n_latents)
    precision : ndarray of shape (n, n_latents, n_latents)
        Always positive definite; `status` says where a ridge was needed.
    factors : ndarray of shape (n, n_latents, n_latents)
        Lower Cholesky factors of the precisions.
    log_density : ndarray of shape (n,)
        Log-density at the mode.
    gradient_norm : ndarray of shape (n,)
        Largest absolute component of the gradient at the mode.
    n_iterations : ndarray of int of shape (n,)
    missed_share : float
        For the distinct modes of one class, the share of its evidence in other modes.
    """

    mean: np.ndarray
    precision: np.ndarray
    factors: np.ndarray
    log_density: np.ndarray
    gradient_norm: np.ndarray
    n_iterations: np.ndarray
    status: tuple[ModeStatus, ...]
    missed_share: float = 0.0

    @cached_property
    def log_evidence(self) -> np.ndarray:
        """Laplace's approximation of log ∫ exp(log-density), shape ``(n,)``."""
        n = self.mean.shape[1]
        half_log_det = np.log(np.diagonal(self.factors, axis1=1, axis2=2))
        found: np.ndarray = (
            self.log_density + 0.5 * n * np.log(2 * np.pi) - half_log_det.sum(axis=1)
        )
        return found

    def rows(self, which: Sequence[int]) -> Modes:
        """Return some of the modes, in the given order."""
        rows = list(which)
        return Modes(
            self.mean[rows],
            self.precision[rows],
            self.factors[rows],
            self.log_density[rows],
            self.gradient_norm[rows],
            self.n_iterations[rows],
            tuple(self.status[row] for row in rows),
        )

    @classmethod
    def joined(cls, modes: Sequence[Modes]) -> Modes:
        """Return one object with the modes of several."""
        return cls(
            np.concatenate([part.mean for part in modes]),
            np.concatenate([part.precision for part in modes]),
            np.concatenate([part.factors for part in modes]),
            np.concatenate([part.log_density for part in modes]),
            np.concatenate([part.gradient_norm for part in modes]),
            np.concatenate([part.n_iterations for part in modes]),
            tuple(status for part in modes for status in part.status),
        )

    def troubles(self) -> dict[str, int]:
        """Count the searches that failed, as `search_troubles` does."""
        return search_troubles(self.status, self.log_evidence)


def search_troubles(status: Sequence[ModeStatus], log_evidence: np.ndarray) -> dict[str, int]:
    """Count the searches that failed, by name of the failure, in the classes that matter.

    The mode of a class without weight may be found roughly.
    """
    counts: dict[str, int] = {}
    best = np.max(log_evidence, where=np.isfinite(log_evidence), initial=-np.inf)
    for each, value in zip(status, log_evidence, strict=True):
        fine = each in FINE
        far = np.isfinite(value) and value < best - _NEGLIGIBLE
        if not fine and not far:
            counts[each.trouble] = counts.get(each.trouble, 0) + 1
    return counts


@dataclass(frozen=True)
class PositiveDefinite:
    """A positive definite matrix and its lower Cholesky factor, both ``(n, n)``.

    `ridged` says whether something was added to its diagonal.
    """

    matrix: np.ndarray
    factor: np.ndarray
    ridged: bool


def cholesky_factors(matrices: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factors of matrices ``(n, d, d)``, three times as fast as NumPy.

    Raises
    ------
    numpy.linalg.LinAlgError
        If one of them is not positive definite.
    """
    found = np.empty(matrices.shape)
    for place, matrix in enumerate(matrices):
        found[place], failed = dpotrf(matrix, lower=True, clean=True)
        if failed:
            raise np.linalg.LinAlgError(f"matrices: number {place} is not positive definite.")
    return found


def precision_factors(covariances: np.ndarray) -> np.ndarray:
    """Return the lower factors of the inverses of covariances ``(n, d, d)``.

    Rounding may leave the covariance of a narrow ridge, as of a hierarchy's, without an inverse.
    Then the smallest sufficient share of its diagonal is added.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix is no covariance: also with a hundredth of its diagonal.

    Examples
    --------
    >>> precision_factors(np.array([[[4.0]]]))
    array([[[0.5]]])
    """
    try:
        return cholesky_factors(np.linalg.inv(covariances))
    except np.linalg.LinAlgError:
        return np.concatenate([_wider_factor(each) for each in covariances])


def _wider_factor(covariance: np.ndarray) -> np.ndarray:
    """Return the factor of one matrix ``(d, d)``, as `precision_factors` does, ``(1, d, d)``."""
    diagonal = np.diag(np.diagonal(covariance))
    for share in (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4):
        with suppress(np.linalg.LinAlgError):
            return cholesky_factors(np.linalg.inv(covariance + share * diagonal)[None])
    return cholesky_factors(np.linalg.inv(covariance + 1e-2 * diagonal)[None])


def square_roots(factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (scale, whiten) of normal densities given by the factors of their precisions.

    Parameters
    ----------
    factors : ndarray of shape (n, d, d)
        Lower, as from `cholesky_factors`.

    Returns
    -------
    scale, whiten : ndarray of shape (n, d, d)
        scale scaleᵀ is the covariance, and whiten is the inverse of scale.
    """
    whiten = np.ascontiguousarray(np.swapaxes(factors, 1, 2))
    # A transpose has the memory order that LAPACK needs; its inverse is transposed back.
    scale = np.stack([dtrtri(upper.T, lower=True)[0].T for upper in whiten])
    return scale, whiten


def positive_definite(precision: np.ndarray) -> PositiveDefinite:
    """Return a precision that can be factorized, and its factor.

    Parameters
    ----------
    precision : ndarray of shape (n, n)

    Returns
    -------
    PositiveDefinite
        The same matrix up to rounding, or with the smallest sufficient ridge of a geometric
        sequence.
    """
    symmetric = 0.5 * (precision + precision.T)
    if not np.isfinite(symmetric).all():
        identity = np.eye(len(symmetric))
        return PositiveDefinite(identity, identity, ridged=True)
    factor, failed = _factor(symmetric)
    if not failed:
        return PositiveDefinite(symmetric, factor, ridged=False)
    size = max(float(np.abs(np.diagonal(symmetric)).max(initial=0.0)), 1e-8)
    for power in range(-6, 3):
        candidate = symmetric + size * 10.0**power * np.eye(len(symmetric))
        factor, failed = _factor(candidate)
        if not failed:
            return PositiveDefinite(candidate, factor, ridged=True)
    identity = np.eye(len(symmetric))
    return PositiveDefinite(size * identity, np.sqrt(size) * identity, ridged=True)


def _factor(symmetric: np.ndarray) -> tuple[np.ndarray, bool]:
    # The transpose is the same matrix, in the memory order that LAPACK takes without a copy.
    factor, failed = dpotrf(symmetric.T, lower=True, clean=True)
    return factor, bool(failed)
