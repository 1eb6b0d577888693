"""Pseudo-priors κ_j: what the latents of the inactive classes are drawn from.

Section ``subsec:pseudo`` of the paper. Here they are normal on the scale on which PyMC samples
the latents; the target does not depend on them, only the mixing does. They may depend on θ, on
the observation and on variables sampled elsewhere, never on the chain's present latents: no
search below starts at the chain's position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pymc_mcoem.carlin_chib.geometry import LatentGeometry
from pymc_mcoem.laplace import square_roots
from pymc_mcoem.mode_plan import Cooling, Race
from pymc_mcoem.mode_search import ModeSearch
from pymc_mcoem.modes import Modes, cholesky_factors

if TYPE_CHECKING:
    from pymc_mcoem.density import ClassDensity

__all__ = [
    "N_STARTS",
    "CompiledPseudoPriors",
    "Laplace",
    "PseudoPriorRule",
    "PseudoPriors",
]

#: How often a chain draws a start from its pseudo-priors, which may reach beyond the support.
N_STARTS = 50


@dataclass(frozen=True, eq=False)
class PseudoPriors:
    """Normal pseudo-priors of all classes, as arrays.

    Attributes
    ----------
    mean : ndarray of shape (n_classes, n_latents)
    scale, whiten : ndarray of shape (n_classes, n_latents, n_latents)
        A square root of each covariance, and its inverse.
    log_normalizer : ndarray of shape (n_classes,)
    log_evidence : ndarray of shape (n_classes,)
        Estimates of log p(y, I = j) where the rule gives them; a chain draws its first class
        from them. nan where there are none.
    troubles : dict of str to int
        Named troubles of the rule that made them.

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

    def __eq__(self, other: object) -> bool:
        # PyMC compares the states of step methods, which hold pseudo-priors, field by field.
        if not isinstance(other, PseudoPriors):
            return NotImplemented
        return self.troubles == other.troubles and all(
            np.array_equal(mine, theirs, equal_nan=True)
            for mine, theirs in zip(
                [*self.as_list(), self.log_evidence],
                [*other.as_list(), other.log_evidence],
                strict=True,
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
        return cls.from_precision(mean, np.linalg.inv(covariance), log_evidence, troubles)

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """Return log κ_j(U_j), shape ``(n_classes,)``, of positions ``(n_classes, n_latents)``."""
        standard = np.einsum("jab,jb->ja", self.whiten, positions - self.mean)
        values: np.ndarray = self.log_normalizer - 0.5 * (standard**2).sum(axis=1)
        return values

    def restricted(self, active: np.ndarray) -> PseudoPriors:
        """Return the same, standard normal and independent where a class is not active.

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
        # exact zeros and ones: what is inactive has to cancel to the last bit
        identity = np.eye(active.shape[1])
        return replace(
            found,
            scale=np.where(both, found.scale, identity),
            whiten=np.where(both, found.whiten, identity),
        )

    def as_list(self) -> list[np.ndarray]:
        """Return the arrays in the order in which compiled functions take them."""
        return [self.mean, self.scale, self.whiten, self.log_normalizer]

    def start(self, rng: np.random.Generator) -> tuple[int, np.ndarray]:
        """Draw a class (by evidence, where there is one) and a position from its pseudo-prior.

        Parameters
        ----------
        rng : numpy.random.Generator

        Returns
        -------
        class_index : int
        position : ndarray of shape (n_latents,)
        """
        n_classes, n = self.mean.shape
        if np.isfinite(self.log_evidence).any():
            log_p = np.where(np.isnan(self.log_evidence), -np.inf, self.log_evidence)
            p = np.exp(log_p - log_p.max())
        else:
            p = np.ones(n_classes)
        chosen = int(rng.choice(n_classes, p=p / p.sum()))
        return chosen, self.mean[chosen] + self.scale[chosen] @ rng.standard_normal(n)


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
    """How pseudo-priors are found; `compile` turns the rule into functions for one density."""

    def compile(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any = None
    ) -> CompiledPseudoPriors:
        """Compile for `density`, in one of PyTensor's modes.

        With JAX's, what is not compiled by `pymc_mcoem.loops` may have to be left to numba
        (`pymc_mcoem.backends.without_jax`).
        """
        ...


@dataclass(frozen=True)
class Laplace:
    """Normal(X*_j, P_j⁻¹): mode and curvature of each class's density (the default).

    Parameters
    ----------
    tolerance : float
        Of the mode search, in units of the log-density; a pseudo-prior needs no exact mode.
    max_iterations : int
    n_starts : int or None
        How many of the family's starting points are used; None: all of them.
    race : Race or None
        How starts and classes compete before modes are sought in earnest; None: every search
        runs to its end.
    cooling : Cooling or None
        Enlarged noise that searches from the first starting point begin with, in models that name
        their noise's variance.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_mcoem.density import ClassDensity
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     x = pm.Normal("x", 2.0 * k, 1.0)
    ...     y = pm.Normal("y", x, 1.0, observed=1.0)
    >>> rule = Laplace().compile(ClassDensity(model, k, [x]), LatentGeometry())
    >>> rule({}, np.random.default_rng(1)).mean
    array([[0.5],
           [1.5]])
    """

    tolerance: float = 1e-3
    max_iterations: int = 60
    n_starts: int | None = None
    race: Race | None = field(default_factory=Race)
    cooling: Cooling | None = field(default_factory=Cooling)

    @classmethod
    def hasty(cls, **overrides: Any) -> Laplace:
        """Return settings for the shortest bursts: searches that end early, races that lose more.

        On postal digits a burst of one to four draws with them is worth what the paper's is at a
        fortieth of its time; the default's modes are higher, and such a burst takes a fifth longer
        (``benchmarks/burst_accuracy.py``).

        Parameters
        ----------
        **overrides
            Settings in place of these.

        Examples
        --------
        >>> Laplace.hasty().race
        Race(n_iterations=3, margins=(50.0, 30.0, 15.0), trust=0.0)
        """
        settings: dict[str, Any] = {
            "tolerance": 0.5,
            "max_iterations": 12,
            "race": Race(n_iterations=3, margins=(50.0, 30.0, 15.0), trust=0.0),
        }
        return cls(**{**settings, **overrides})

    def compile(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any = None
    ) -> CompiledPseudoPriors:
        """Compile the mode search."""
        search = self.compile_modes(density, geometry, mode)

        def laplace(
            data: Mapping[str, np.ndarray],
            rng: np.random.Generator,
            others: Sequence[np.ndarray] = (),
        ) -> PseudoPriors:
            modes = search(data, others)
            return PseudoPriors.from_factors(
                modes.mean, modes.factors, modes.log_evidence, modes.troubles()
            )

        return laplace

    def compile_modes(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any = None
    ) -> Callable[..., Modes]:
        """Compile the mode search alone: a function of (data, others) to the modes."""
        search = ModeSearch(
            density,
            geometry.gauss_newton,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            race=self.race,
            curvature=geometry.curvature,
            noise_variance=geometry.noise_variance,
            metric=geometry.step_metric(),
            cooling=self.cooling,
            mode=mode,
        )
        starts = geometry.follow_starts(density)

        def modes(*args: Any, **kwargs: Any) -> Modes:
            return search(starts()[: self.n_starts], *args, **kwargs)

        return modes
