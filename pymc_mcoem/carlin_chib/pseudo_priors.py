"""Pseudo-priors κ_j: what the latents of the inactive classes are drawn from.

Section ``subsec:pseudo`` of the paper. Here they are normal on the scale on which PyMC samples
the latents; the target does not depend on them, only the mixing does. They may depend on θ, on
the observation and on variables sampled elsewhere, never on the chain's present latents: no
search below starts at the chain's position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.type import RandomType

from pymc_mcoem.backends import without_jax
from pymc_mcoem.carlin_chib.geometry import LatentGeometry
from pymc_mcoem.carlin_chib.within_class import ClassProposal, RandomWalk
from pymc_mcoem.laplace import square_roots
from pymc_mcoem.loops import compile_with_data
from pymc_mcoem.mode_plan import Cooling, Race
from pymc_mcoem.mode_search import ModeSearch
from pymc_mcoem.modes import Modes, positive_definite

if TYPE_CHECKING:
    from pymc_mcoem.density import ClassDensity

__all__ = [
    "CompiledPseudoPriors",
    "Laplace",
    "PilotMoments",
    "PriorCovariance",
    "PseudoPriorRule",
    "PseudoPriors",
]


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
        scale, whiten = square_roots(precision)
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

        On postal digits a burst of four draws with them is worth what the paper's is at a thirtieth
        of its time or less, in every statistic; the default's modes are higher, and such a burst
        takes a quarter longer (``benchmarks/burst_accuracy.py``).

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
            return PseudoPriors.from_precision(
                modes.mean, modes.precision, modes.log_evidence, modes.troubles()
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
        return partial(search, geometry.starts_of(density)[: self.n_starts])


@dataclass(frozen=True)
class PriorCovariance:
    """Normal(X*_j, prior covariance of class j): the paper's choice for its curves.

    Parameters
    ----------
    n_prior_draws : int
        Where the model does not say its prior covariance, how many prior draws estimate it.
    tolerance, max_iterations, cooling
        Of the mode search, as in `Laplace`.

    Examples
    --------
    The model of `Laplace`'s example: the same modes, and variances of 1 instead of 0.5.

    >>> import pymc as pm
    >>> from pymc_mcoem.density import ClassDensity
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     x = pm.Normal("x", 2.0 * k, 1.0)
    ...     y = pm.Normal("y", x, 1.0, observed=1.0)
    >>> rule = PriorCovariance().compile(ClassDensity(model, k, [x]), LatentGeometry())
    >>> found = rule({}, np.random.default_rng(1))
    >>> found.mean.ravel(), (found.scale**2).ravel().round()
    (array([0.5, 1.5]), array([1., 1.]))
    """

    n_prior_draws: int = 2_000
    tolerance: float = 1e-3
    max_iterations: int = 60
    cooling: Cooling | None = field(default_factory=Cooling)

    def compile(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any = None
    ) -> CompiledPseudoPriors:
        """Compile the mode search and the prior covariance."""
        search = ModeSearch(
            density,
            geometry.gauss_newton,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            curvature=geometry.curvature,
            noise_variance=geometry.noise_variance,
            metric=geometry.step_metric(),
            cooling=self.cooling,
            mode=mode,
        )
        starts = geometry.starts_of(density)
        covariances = compile_prior_covariance(density, geometry, self.n_prior_draws, mode)

        def prior_covariance(
            data: Mapping[str, np.ndarray],
            rng: np.random.Generator,
            others: Sequence[np.ndarray] = (),
        ) -> PseudoPriors:
            modes: Modes = search(starts, data, others)
            return PseudoPriors.from_covariance(
                modes.mean, covariances(data, rng, others), modes.log_evidence, modes.troubles()
            )

        return prior_covariance


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
    The chain starts at the family's first starting point, its increments are shaped like the
    prior covariance and tuned to 40 % acceptance all along; the first half is dropped. A hundred
    correlated draws give no full-rank covariance in 78 dimensions: the sample covariance S enters
    as (n S + d · diag V) / (n + d), with n the number of draws kept, d that of latents and V the
    mean of the sample and the prior variances.

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
        start = geometry.starts_of(density)[0]
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
                start,
                np.asarray(move.initial_log_step(n)),
                robbins_monro,
                *density.arguments(data, others),
            )[:, self.n_steps // 2 :]
            mean = draws.mean(axis=1)
            centred = draws - mean[:, None]
            n_kept = draws.shape[1]
            sample = np.einsum("jta,jtb->jab", centred, centred) / n_kept
            variances = 0.5 * (
                np.diagonal(sample, axis1=1, axis2=2) + np.diagonal(prior, axis1=1, axis2=2)
            )
            covariance = (n_kept * sample + n * np.einsum("ja,ab->jab", variances, np.eye(n))) / (
                n_kept + n
            )
            return PseudoPriors.from_covariance(mean, covariance)

        return pilot_moments


def compile_prior_covariance(
    density: ClassDensity, geometry: LatentGeometry, n_prior_draws: int, mode: Any
) -> Any:
    """Return a function of (data, rng, others) to prior covariances ``(n_classes, d, d)``.

    From the model's own expression where it has one, else from prior draws of the latents, which
    the model's present data and the initial values of its other variables condition.
    """
    mode = without_jax(mode)
    n_classes, n = density.n_classes, density.n_latents
    if geometry.prior_covariance is not None:
        expression = geometry.prior_covariance
        zeros = density.ravel(density.model.initial_point(random_seed=0))

        covariances = pytensor.scan(
            lambda k: density.place(expression, k, zeros),
            sequences=[pt.arange(n_classes)],
            return_updates=False,
        )
        function = compile_with_data(density, [], covariances, mode)

        def from_expression(
            data: Mapping[str, np.ndarray],
            rng: np.random.Generator,
            others: Sequence[np.ndarray] = (),
        ) -> np.ndarray:
            found: np.ndarray = function(*density.arguments(data, others))
            return found

        return from_expression

    draw = compile_prior_draw(density, mode)

    def from_draws(
        data: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        others: Sequence[np.ndarray] = (),
    ) -> np.ndarray:
        pm.pytensorf.reseed_rngs(
            [shared for shared in draw.get_shared() if isinstance(shared.type, RandomType)],
            int(rng.integers(2**31)),
        )
        values = density.arguments(data, others)
        found = np.empty((n_classes, n, n))
        for j in range(n_classes):
            draws = np.stack([draw(np.asarray(j), *values) for _ in range(n_prior_draws)])
            found[j], _ = positive_definite(np.atleast_2d(np.cov(draws, rowvar=False)))
        return found

    return from_draws


def compile_prior_draw(density: ClassDensity, mode: Any) -> Any:
    """Return a function of (class index, data, others) that draws the latents from their prior."""
    model = density.model
    k = pt.scalar("class_index", dtype="int64")
    replacement: dict[Any, Any] = dict(density.data_replacement)
    if density.class_index is not None:
        replacement[density.class_index] = pt.cast(k, density.class_index.dtype)
    for value in density.other_values:
        rv = model.values_to_rvs[value]
        transform = model.rvs_to_transforms[rv]
        replacement[rv] = (
            value if transform is None else transform.backward(value, *rv.owner.inputs)
        )
    parts = []
    for rv in density.latents:
        transform = model.rvs_to_transforms[rv]
        drawn = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
        parts.append(pt.cast(drawn.ravel(), "float64"))
    vector = clone_replace(pt.concatenate(parts), replacement, rebuild_strict=False)
    return compile_with_data(density, [k], vector, mode)
