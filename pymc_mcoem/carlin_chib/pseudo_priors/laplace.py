"""Laplace pseudo-priors: normals at the modes of every class, the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.base import CompiledPseudoPriors, PseudoPriors
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.laplace.dispersed_starts import DispersedSearch, given_starts
from pymc_mcoem.laplace.modes import Modes
from pymc_mcoem.laplace.schedule import Cooling, Race
from pymc_mcoem.laplace.search import ModeSearch
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["Laplace"]


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
    >>> from pymc_mcoem.density.class_density import ClassDensity
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
