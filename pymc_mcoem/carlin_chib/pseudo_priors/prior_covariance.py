"""Pseudo-priors as wide as the prior, whose covariance is estimated if the model has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.pseudo_priors.base import CompiledPseudoPriors, PseudoPriors
from pymc_mcoem.compiling.backends import interpreted_mode, without_jax
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.density.prior_draws import PriorDraws
from pymc_mcoem.laplace.modes import Modes, positive_definite
from pymc_mcoem.laplace.schedule import Cooling
from pymc_mcoem.laplace.search import ModeSearch

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["PriorCovariance", "compile_prior_covariance"]


@dataclass(frozen=True)
class PriorCovariance:
    """Normal(X*_j, prior covariance of class j): the paper's choice for its curves.

    Parameters
    ----------
    n_prior_draws : int
        Number of prior draws that estimate the prior covariance, if the model does not declare it.
    tolerance, max_iterations, cooling
        Settings of the mode search, as in `Laplace`.

    Examples
    --------
    The model of `Laplace`'s example has the same modes here, and variances of 1 instead of 0.5.

    >>> import pymc as pm
    >>> from pymc_mcoem.density.class_density import ClassDensity
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
        search = ModeSearch.by_geometry(
            density,
            geometry,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            cooling=self.cooling,
            mode=mode,
        )
        starts = geometry.follow_starts(density)
        covariances = compile_prior_covariance(density, geometry, self.n_prior_draws, mode)

        def prior_covariance(
            data: Mapping[str, np.ndarray],
            rng: np.random.Generator,
            others: Sequence[np.ndarray] = (),
        ) -> PseudoPriors:
            modes: Modes = search(starts(), data, others)
            return PseudoPriors.from_covariance(
                modes.mean, covariances(data, rng, others), modes.log_evidence, modes.troubles()
            )

        return prior_covariance


def compile_prior_covariance(
    density: ClassDensity, geometry: LatentGeometry, n_prior_draws: int, mode: Any
) -> Any:
    """Return a function of (data, rng, others) to prior covariances ``(n_classes, d, d)``.

    They come from the model's expression if it has one, else from prior draws of the latents
    given the model's present data and the initial values of its other variables.
    """
    n_classes, n = density.n_classes, density.n_latents
    if geometry.prior_covariance is not None:
        expression = geometry.prior_covariance
        zeros = density.ravel(density.model.initial_point(random_seed=0))
        k = pt.scalar("class_index", dtype="int64")
        # a few calls an observation are not worth the seconds of compiling
        function = compile_with_data(
            density, [k], density.place(expression, k, zeros), interpreted_mode()
        )

        def from_expression(
            data: Mapping[str, np.ndarray],
            rng: np.random.Generator,
            others: Sequence[np.ndarray] = (),
        ) -> np.ndarray:
            values = density.arguments(data, others)
            return np.array([function(np.asarray(j), *values) for j in range(n_classes)])

        return from_expression

    draw = PriorDraws(density, without_jax(mode))

    def from_draws(
        data: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        others: Sequence[np.ndarray] = (),
    ) -> np.ndarray:
        draw.reseed(rng)
        values = density.arguments(data, others)
        found = np.empty((n_classes, n, n))
        for j in range(n_classes):
            draws = draw(j, values, n_prior_draws)
            found[j] = positive_definite(np.atleast_2d(np.cov(draws, rowvar=False))).matrix
        return found

    return from_draws
