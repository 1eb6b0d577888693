"""Pseudo-priors κ_j, from which the latents of the inactive classes are drawn.

See section ``subsec:pseudo`` of the paper. Here they are normal on the scale on which PyMC samples
the latents, or mixtures of normals if a class has several modes. They affect the mixing, but not
the target. They may depend on θ, on the observation and on variables sampled elsewhere, but never
on the chain's present latents: no search below starts at the chain's position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.laplace.modes import Modes, cholesky_factors, precision_factors, square_roots

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = [
    "N_STARTS",
    "CompiledPseudoPriors",
    "Mixed",
    "Mixtures",
    "PseudoPriorRule",
    "PseudoPriors",
    "class_shares",
    "draw_class",
]

#: Largest number of starts drawn from pseudo-priors, which may reach beyond the support.
N_STARTS = 50


class Mixed(Protocol):
    """Pseudo-priors that are not all normal, as `PseudoPriors.mixtures`."""

    @property
    def is_mixed(self) -> np.ndarray:
        """Whether draws of a class's pseudo-prior are proposed in it, ``(n_classes,)``."""
        ...

    @property
    def has_several_modes(self) -> np.ndarray:
        """Whether each class was fitted at several modes, ``(n_classes,)``."""
        ...

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """Return log κ_j(U_j), ``(..., n_classes)``, of ``(..., n_classes, n_latents)``."""
        ...

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw from every class's pseudo-prior, ``(n_classes, n_latents)``."""
        ...

    def restricted(self, active: np.ndarray) -> Mixed:
        """Return pseudo-priors in which inactive latents are independent standard normals."""
        ...

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that are equal in equal pseudo-priors."""
        ...


@dataclass(frozen=True, eq=False)
class PseudoPriors:
    """Normal pseudo-priors of all classes, as arrays; or mixtures of normals.

    Attributes
    ----------
    mean : ndarray of shape (n_classes, n_latents)
        For a mixture, this and the next three describe its heaviest component.
    scale, whiten : ndarray of shape (n_classes, n_latents, n_latents)
        A square root of each covariance, and its inverse.
    log_normalizer : ndarray of shape (n_classes,)
    log_evidence : ndarray of shape (n_classes,)
        Estimates of log p(y, I = j), from which a chain draws its first class; nan if the rule
        gives none.
    troubles : dict of str to int
        Counts of troubles of the rule that made them, by name.
    mixtures : Mixed or None
        `Mixtures` if some class has several components, or `LearnedPseudoPriors`.
    missed_share : ndarray of shape (n_classes,), or None
        Share of each class's evidence in modes that its pseudo-prior misses, as far as is known;
        None for none.

    Notes
    -----
    Code that does not handle mixtures uses the heaviest component of each class, through the same
    attributes. `noise_of` says how a sweep draws from mixtures.

    Examples
    --------
    >>> import numpy as np
    >>> pseudo_priors = PseudoPriors.from_covariance(np.zeros((2, 1)), np.full((2, 1, 1), 4.0))
    >>> pseudo_priors.log_density(np.zeros((2, 1))).round(4)
    array([-1.6121, -1.6121])
    """

    mean: np.ndarray
    scale: np.ndarray
    whiten: np.ndarray
    log_normalizer: np.ndarray
    log_evidence: np.ndarray
    troubles: dict[str, int] = field(default_factory=dict)
    mixtures: Mixed | None = None
    missed_share: np.ndarray | None = None

    def __eq__(self, other: object) -> bool:
        # PyMC compares the states of step methods, which hold pseudo-priors, field by field.
        if not isinstance(other, PseudoPriors):
            return NotImplemented
        mine, theirs = (
            [
                *each.as_list(),
                each.log_evidence,
                *(each.mixtures.arrays() if each.mixtures else []),
                *([] if each.missed_share is None else [each.missed_share]),
            ]
            for each in (self, other)
        )
        return (
            self.troubles == other.troubles
            and len(mine) == len(theirs)
            and all(
                np.array_equal(one, two, equal_nan=True)
                for one, two in zip(mine, theirs, strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_precision(
        cls,
        mean: np.ndarray,
        precision: np.ndarray,
        log_evidence: np.ndarray | None = None,
        troubles: Mapping[str, int] | None = None,
    ) -> PseudoPriors:
        """Make pseudo-priors from means ``(n, d)`` and precisions ``(n, d, d)``."""
        return cls.from_factors(mean, cholesky_factors(precision), log_evidence, troubles)

    @classmethod
    def from_factors(
        cls,
        mean: np.ndarray,
        factors: np.ndarray,
        log_evidence: np.ndarray | None = None,
        troubles: Mapping[str, int] | None = None,
    ) -> PseudoPriors:
        """Make pseudo-priors from means ``(n, d)`` and precisions' lower factors ``(n, d, d)``."""
        scale, whiten = square_roots(factors)
        half_log_det = np.log(np.diagonal(whiten, axis1=1, axis2=2)).sum(axis=1)
        return cls(
            np.array(mean, dtype=np.float64),
            scale,
            whiten,
            half_log_det - 0.5 * mean.shape[1] * np.log(2 * np.pi),
            np.full(len(mean), np.nan) if log_evidence is None else log_evidence,
            dict(troubles or {}),
        )

    @classmethod
    def from_covariance(
        cls,
        mean: np.ndarray,
        covariance: np.ndarray,
        log_evidence: np.ndarray | None = None,
        troubles: Mapping[str, int] | None = None,
    ) -> PseudoPriors:
        """Make pseudo-priors from means ``(n, d)`` and covariances ``(n, d, d)``."""
        return cls.from_factors(mean, precision_factors(covariance), log_evidence, troubles)

    @classmethod
    def from_modes(cls, found: Sequence[Modes]) -> PseudoPriors:
        """Make pseudo-priors from the distinct modes of each class, heaviest mode first.

        Nine tenths of the weight follow the components' evidence; one tenth is divided equally,
        because Laplace's evidence is inexact.
        """
        best = Modes.joined([modes.rows([0]) for modes in found])
        n_components = max(len(modes.status) for modes in found)
        plain = replace(
            cls.from_factors(best.mean, best.factors, best.log_evidence, best.troubles()),
            missed_share=np.array([modes.missed_share for modes in found]),
        )
        if n_components == 1:
            return plain
        log_share = np.full((len(found), n_components), -np.inf)
        log_evidence, padded = np.empty(len(found)), []
        for j, modes in enumerate(found):
            n_own, evidence = len(modes.status), modes.log_evidence
            log_evidence[j] = np.logaddexp.reduce(evidence)
            if n_own == 1:
                log_share[j, 0] = 0.0
            else:
                believed = np.exp(evidence - log_evidence[j])
                log_share[j, :n_own] = np.log(0.9 * believed + 0.1 / n_own)
            padded.append(modes.rows([*range(n_own), *[0] * (n_components - n_own)]))
        rows = Modes.joined(padded)
        mixtures = Mixtures(log_share, cls.from_factors(rows.mean, rows.factors))
        return replace(plain, log_evidence=log_evidence, mixtures=mixtures)

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """Return log κ_j(U_j), ``(..., n_classes)``, of ``(..., n_classes, n_latents)``."""
        if self.mixtures is not None:
            return self.mixtures.log_density(positions)
        standard = np.einsum("jab,...jb->...ja", self.whiten, positions - self.mean)
        values: np.ndarray = self.log_normalizer - 0.5 * (standard**2).sum(axis=-1)
        return values

    def restricted(self, active: np.ndarray) -> PseudoPriors:
        """Return pseudo-priors that make a class's inactive latents independent standard normals.

        Parameters
        ----------
        active : ndarray of bool, shape (n_classes, n_latents)
        """
        covariance = self.scale @ np.swapaxes(self.scale, 1, 2)
        both = active[:, :, None] & active[:, None, :]
        found = PseudoPriors.from_covariance(
            np.where(active, self.mean, 0.0),
            np.where(both, covariance, np.eye(active.shape[1])),
            self.log_evidence,
            self.troubles,
        )
        # exact zeros and ones, because inactive latents have to cancel exactly
        identity = np.eye(active.shape[1])
        return replace(
            found,
            scale=np.where(both, found.scale, identity),
            whiten=np.where(both, found.whiten, identity),
            mixtures=None if self.mixtures is None else self.mixtures.restricted(active),
            missed_share=self.missed_share,
        )

    def as_list(self) -> list[np.ndarray]:
        """Return the arrays in the order in which compiled functions take them."""
        return [self.mean, self.scale, self.whiten, self.log_normalizer]

    @property
    def is_mixed(self) -> np.ndarray:
        """Whether each class has several components, ``(n_classes,)``."""
        n_classes = len(self.mean)
        return np.zeros(n_classes, bool) if self.mixtures is None else self.mixtures.is_mixed

    @property
    def has_several_modes(self) -> np.ndarray:
        """Whether each class was fitted at several modes, ``(n_classes,)``."""
        return self.is_mixed if self.mixtures is None else self.mixtures.has_several_modes

    def standardized(self, at: tuple[int], position: np.ndarray) -> np.ndarray:
        """Return a position ``(n_latents,)`` in units of the normal of a class."""
        found: np.ndarray = self.whiten[at] @ (position - self.mean[at])
        return found

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw from the pseudo-prior of every class, ``(n_classes, n_latents)``."""
        if self.mixtures is not None:
            return self.mixtures.draw(rng)
        noise = rng.standard_normal(self.mean.shape)
        drawn: np.ndarray = self.mean + np.einsum("jab,jb->ja", self.scale, noise)
        return drawn

    def noise_of(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return noise and weights that make a sweep with normals use these mixtures.

        A sweep draws U_j = m_j + L_j z from the only or heaviest normals.

        Parameters
        ----------
        positions : ndarray of shape (..., n_classes, n_latents)
            Draws from the pseudo-priors, and in the active class the chain's position.

        Returns
        -------
        noise : ndarray of shape (..., n_classes, n_latents)
            The z that gives these positions.
        log_excess : ndarray of shape (..., n_classes)
            Log-density of the normals minus that of the pseudo-priors there, which is to be added
            to the logarithms of a sweep's weights.
        """
        noise = np.einsum("jab,...jb->...ja", self.whiten, positions - self.mean)
        log_normals = self.log_normalizer - 0.5 * (noise**2).sum(axis=-1)
        return noise, log_normals - self.log_density(positions)

    def draw_start(self, rng: np.random.Generator) -> tuple[int, np.ndarray]:
        """Draw a class (by evidence, if there is any) and a position from its pseudo-prior.

        Parameters
        ----------
        rng : numpy.random.Generator

        Returns
        -------
        class_index : int
        position : ndarray of shape (n_latents,)
        """
        chosen, n = draw_class(self.log_evidence, rng), self.mean.shape[1]
        if self.mixtures is not None:
            return chosen, self.mixtures.draw(rng)[chosen]
        return chosen, self.mean[chosen] + self.scale[chosen] @ rng.standard_normal(n)


def draw_class(log_evidence: np.ndarray, rng: np.random.Generator) -> int:
    """Draw a class by evidence ``(n_classes,)``, if there is any."""
    return int(class_shares(log_evidence).searchsorted(rng.random(), side="right"))


def class_shares(log_evidence: np.ndarray) -> np.ndarray:
    """Return cumulative sums of the classes' shares of the evidence, (..., n_classes).

    All classes have the same share where none has evidence.
    """
    known = np.where(np.isnan(log_evidence), -np.inf, log_evidence)
    highest = known.max(axis=-1, keepdims=True)
    has_any = np.isfinite(log_evidence).any(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shares = np.where(has_any, np.exp(known - highest), 1.0)
    summed = np.cumsum(shares / shares.sum(axis=-1, keepdims=True), axis=-1)
    found: np.ndarray = summed / summed[..., -1:]
    return found


@dataclass(frozen=True, eq=False)
class Mixtures:
    """A mixture of normals for each class: κ_j = Σ_c share_jc Normal(mean_jc, covariance_jc).

    Attributes
    ----------
    log_share : ndarray of shape (n_classes, n_components)
        Logarithms of the shares; minus infinity where a class has fewer components.
    normals : PseudoPriors
        The components, as n_classes * n_components rows, class by class.

    Examples
    --------
    >>> from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
    >>> normals = PseudoPriors.from_covariance(np.array([[-2.0], [2.0]]), np.ones((2, 1, 1)))
    >>> mixtures = Mixtures(np.log([[0.25, 0.75]]), normals)
    >>> mixtures.log_density(np.array([[2.0]])).round(4)
    array([-1.2065])
    """

    log_share: np.ndarray
    normals: PseudoPriors

    @cached_property
    def is_mixed(self) -> np.ndarray:
        """Whether each class has several components, ``(n_classes,)``."""
        found: np.ndarray = np.isfinite(self.log_share).sum(axis=1) > 1
        return found

    @property
    def has_several_modes(self) -> np.ndarray:
        """The same: each mode has a component."""
        return self.is_mixed

    @cached_property
    def _cumulative(self) -> np.ndarray:
        return np.cumsum(np.exp(self.log_share), axis=1)

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """Return log κ_j(U_j), ``(..., n_classes)``, of ``(..., n_classes, n_latents)``."""
        n_components = self.log_share.shape[1]
        of_components = self.normals.log_density(np.repeat(positions, n_components, axis=-2))
        shape = (*positions.shape[:-1], n_components)
        found: np.ndarray = np.logaddexp.reduce(
            self.log_share + of_components.reshape(shape), axis=-1
        )
        return found

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw from every class's mixture, ``(n_classes, n_latents)``."""
        n_classes, n_components = self.log_share.shape
        cumulative = self._cumulative
        threshold = rng.random(n_classes) * cumulative[:, -1]
        chosen = (cumulative <= threshold[:, None]).sum(axis=1)
        rows = np.arange(n_classes) * n_components + np.minimum(chosen, n_components - 1)
        noise = rng.standard_normal((n_classes, self.normals.mean.shape[1]))
        scaled = np.einsum("jab,jb->ja", self.normals.scale[rows], noise)
        drawn: np.ndarray = self.normals.mean[rows] + scaled
        return drawn

    def restricted(self, active: np.ndarray) -> Mixtures:
        """Return mixtures that make a class's inactive latents independent standard normals."""
        repeated = np.repeat(active, self.log_share.shape[1], axis=0)
        return Mixtures(self.log_share, self.normals.restricted(repeated))

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that are equal in equal mixtures."""
        return [self.log_share, *self.normals.as_list()]


class CompiledPseudoPriors(Protocol):
    """A rule compiled for one density."""

    def __call__(
        self,
        data: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        others: Sequence[np.ndarray] = (),
    ) -> PseudoPriors:
        """Return the pseudo-priors for one observation and θ."""
        ...


class PseudoPriorRule(Protocol):
    """Rule for finding pseudo-priors; `compile` turns it into a function for one density."""

    def compile(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any = None
    ) -> CompiledPseudoPriors:
        """Compile for `density`, in one of PyTensor's modes.

        With JAX's mode, anything not compiled by `pymc_mcoem.compiling.loops` may have to be left
        to numba (`pymc_mcoem.compiling.backends.without_jax`).
        """
        ...
