"""Pseudo-priors κ_j: what the latents of the inactive classes are drawn from.

Section ``subsec:pseudo`` of the paper. Here they are normal on the scale on which PyMC samples
the latents, or mixtures of normals where a class has several modes; the target does not depend on
them, only the mixing does. They may depend on θ, on the observation and on variables sampled
elsewhere, never on the chain's present latents: no search below starts at the chain's position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pymc_mcoem.carlin_chib.dispersed import DispersedSearch, given_starts
from pymc_mcoem.carlin_chib.geometry import LatentGeometry
from pymc_mcoem.carlin_chib.mixtures import Mixtures
from pymc_mcoem.laplace import square_roots
from pymc_mcoem.mode_plan import Cooling, Race
from pymc_mcoem.mode_search import ModeSearch
from pymc_mcoem.modes import Modes, cholesky_factors
from pymc_mcoem.numbers import is_whole

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
    """Normal pseudo-priors of all classes, as arrays; or mixtures of normals.

    Attributes
    ----------
    mean : ndarray of shape (n_classes, n_latents)
        Of the heaviest component, as the next three, where there are mixtures.
    scale, whiten : ndarray of shape (n_classes, n_latents, n_latents)
        A square root of each covariance, and its inverse.
    log_normalizer : ndarray of shape (n_classes,)
    log_evidence : ndarray of shape (n_classes,)
        Estimates of log p(y, I = j) where the rule gives them; a chain draws its first class
        from them. nan where there are none.
    troubles : dict of str to int
        Named troubles of the rule that made them.
    mixtures : Mixtures or None
        Where some class has several components.

    Notes
    -----
    What knows of no mixtures takes the heaviest component of each class, by the same attributes
    as ever. `placed_in` says how a sweep draws from mixtures.

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
    mixtures: Mixtures | None = None

    def __eq__(self, other: object) -> bool:
        # PyMC compares the states of step methods, which hold pseudo-priors, field by field.
        if not isinstance(other, PseudoPriors):
            return NotImplemented
        mine, theirs = (
            [*each.as_list(), each.log_evidence, *(each.mixtures.arrays() if each.mixtures else [])]
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
        return cls.from_precision(mean, np.linalg.inv(covariance), log_evidence, troubles)

    @classmethod
    def from_modes(cls, found: Sequence[Modes]) -> PseudoPriors:
        """Make pseudo-priors from the distinct modes of each class, the heaviest of a class first.

        Components are weighed by their evidence, but for a tenth of the weight, which they have
        alike, for Laplace's evidence errs.
        """
        best = Modes.joined([modes.rows([0]) for modes in found])
        n_components = max(len(modes.status) for modes in found)
        plain = cls.from_factors(best.mean, best.factors, best.log_evidence, best.troubles())
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
        """Return log κ_j(U_j), shape ``(n_classes,)``, of positions ``(n_classes, n_latents)``."""
        if self.mixtures is not None:
            return self.mixtures.log_density(positions)
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
            mixtures=None if self.mixtures is None else self.mixtures.restricted(active),
        )

    def as_list(self) -> list[np.ndarray]:
        """Return the arrays in the order in which compiled functions take them."""
        return [self.mean, self.scale, self.whiten, self.log_normalizer]

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw from the pseudo-prior of every class, ``(n_classes, n_latents)``."""
        if self.mixtures is not None:
            return self.mixtures.draw(rng)
        noise = rng.standard_normal(self.mean.shape)
        drawn: np.ndarray = self.mean + np.einsum("jab,jb->ja", self.scale, noise)
        return drawn

    def placed_in(
        self, moves: PseudoPriors, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what makes a sweep of other normals one of these pseudo-priors.

        Parameters
        ----------
        moves : PseudoPriors
            The normals of the sweep, which moves within a class go by too: these pseudo-priors
            themselves where only their heaviest components are to be mixtures.
        positions : ndarray of shape (n_classes, n_latents)
            Draws of the pseudo-priors, and in the active class the chain's position.

        Returns
        -------
        noise : ndarray of shape (n_classes, n_latents)
            z in U_j = m_j + L_j z of `moves`, by which a sweep is given the positions.
        log_excess : ndarray of shape (n_classes,)
            By how much `moves` have more log-density there than the pseudo-priors: what is to be
            added to the logarithms of a sweep's weights.
        """
        noise = np.einsum("jab,jb->ja", moves.whiten, positions - moves.mean)
        log_moves = moves.log_normalizer - 0.5 * (noise**2).sum(axis=1)
        return noise, log_moves - self.log_density(positions)

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
        if self.mixtures is not None:
            return chosen, self.mixtures.draw(rng)[chosen]
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

    Where a class has several modes its pseudo-prior is a mixture of such normals, weighed by
    Laplace's evidence. They are looked for by `CarlinChib`, and wherever else the data are the
    model's own; a burst, which takes data as they come, has the highest mode that its family's
    starting points lead to, and a plate one mode for each row and class.

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
    starts : sequence of mapping of str to array, optional
        Further points to search from in every class, each by names of latents with values as in
        ``initvals`` of `pymc.sample`, as ``[{"x": -3.0}, {"x": 3.0}]``. Latents that one leaves
        out have the model's initial values. A plate takes none.
    n_prior_draws : int
        Draws of the latents from their prior, given the values of all other variables, that
        searches start from in every class, besides the model's initial point and `starts`. Each
        chain has its own. There are fewer, but eight at least, where an array of the model holds
        more than 1,500 numbers or there are more than 170 latents. On a plate they are four of
        each row, and sixteen in a class where one of them has led some row to another mode. 0:
        none, and none where the model declares starting points, as the ready-made families do.

    Raises
    ------
    ValueError
        If `n_prior_draws` is no whole number or negative; when compiled, if `starts` name no latent
        or hold a value of another shape or outside of the support.

    Notes
    -----
    Of the prior draws in a class, two dozen climb together by steps that look at gradients only:
    those of most density, and as many others. A search in earnest follows from the highest that is
    near no mode known, a few times. Two
    modes are one where they are less than a standard deviation apart under the curvatures of
    both. Where a prior cannot be drawn from, Cauchy variables around the model's initial point
    take its place. No covariance is wider than four times the prior draws', and where no mode is
    found a normal is fitted by importance sampling that starts from them, if there are five draws
    for each latent: so it is of a covariance and of effects drawn with it, whose density has no
    highest point. A mode whose surroundings prior draws seldom hit may be missed by some chains,
    which then disagree, or by all, which nobody can see: give `starts` where you know better.
    Cost, in interpreted code: for three latents a tenth of a second a fit.

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
    starts: Sequence[Mapping[str, Any]] | None = None
    n_prior_draws: int = 128

    def __post_init__(self) -> None:
        if not is_whole(self.n_prior_draws) or self.n_prior_draws < 0:
            raise ValueError(
                f"n_prior_draws: got {self.n_prior_draws!r}; give a whole number, or 0 for none."
            )

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
        search = self._compile_search(density, geometry, mode)
        starts, given = self._starts(density, geometry)
        looks_further = search.takes_many_points and geometry.starts is None
        if looks_further and (len(given) or self.n_prior_draws):
            dispersed = DispersedSearch(density, search, given, self.n_prior_draws)

            def of_distinct_modes(
                data: Mapping[str, np.ndarray],
                rng: np.random.Generator,
                others: Sequence[np.ndarray] = (),
            ) -> PseudoPriors:
                return PseudoPriors.from_modes(dispersed(starts(), rng, others))

            return of_distinct_modes

        def laplace(
            data: Mapping[str, np.ndarray],
            rng: np.random.Generator,
            others: Sequence[np.ndarray] = (),
        ) -> PseudoPriors:
            modes = search(np.concatenate([starts(), given]), data, others)
            return PseudoPriors.from_factors(
                modes.mean, modes.factors, modes.log_evidence, modes.troubles()
            )

        return laplace

    def compile_modes(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any = None
    ) -> Callable[..., Modes]:
        """Compile the mode search alone: a function of (data, others) to each class's mode."""
        search = self._compile_search(density, geometry, mode)
        starts, given = self._starts(density, geometry)

        def modes(*args: Any, **kwargs: Any) -> Modes:
            return search(np.concatenate([starts(), given]), *args, **kwargs)

        return modes

    def _compile_search(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any
    ) -> ModeSearch:
        return ModeSearch(
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

    def _starts(
        self, density: ClassDensity, geometry: LatentGeometry
    ) -> tuple[Callable[[], np.ndarray], np.ndarray]:
        """Return what gives the model's or family's starting points, and those given here."""
        starts = geometry.follow_starts(density)
        return lambda: starts()[: self.n_starts], given_starts(density, self.starts)
