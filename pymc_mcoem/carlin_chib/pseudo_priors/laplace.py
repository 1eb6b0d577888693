"""Laplace pseudo-priors: normals at the modes of every class, the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.base import CompiledPseudoPriors, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.plate import PlateLaplace
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.density.plate import PlateDensity
from pymc_mcoem.laplace.dispersed_starts import DispersedSearch, given_starts
from pymc_mcoem.laplace.schedule import Cooling, Race
from pymc_mcoem.laplace.search import ModeSearch
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["Laplace"]


@dataclass(frozen=True)
class Laplace:
    """Normal(X*_j, P_j⁻¹): mode and curvature of each class's density (the default).

    If a class has several modes, its pseudo-prior is a mixture of such normals, weighted by
    Laplace's evidence. `CarlinChib` searches for several modes, and so does everything else that
    uses the model's own data; on a plate they are found for each row. A burst, whose data change
    from call to call, uses the highest mode that its family's starting points lead to.

    Parameters
    ----------
    tolerance : float
        Tolerance of the mode search, in units of the log-density; a pseudo-prior needs no exact
        mode.
    max_iterations : int
        Most iterations of a mode search.
    n_searches : int or None
        Number of mode searches in each class, from the first of the family's starting points;
        None: one from each.
    race : Race or None
        How starts and classes compete before the full mode searches; None: every search runs to
        its end.
    cooling : Cooling or None
        Enlarged noise that searches from the first starting point begin with, in models that name
        their noise's variance.
    starts : sequence of mapping of str to array, optional
        Further points to search from in every class. Each maps names of latents to values as in
        ``initvals`` of `pymc.sample`: ``[{"x": -3.0}, {"x": 3.0}]``. Latents that a point does not
        name have the model's initial values. A plate accepts none.
    n_prior_draws : int
        Number of draws of the latents from their prior, given the values of all other variables,
        that searches start from in every class, in addition to the model's initial point and
        `starts`. Each chain has its own draws. There are fewer, but at least eight, if an array of
        the model holds more than 1,500 numbers or there are more than 170 latents. On a plate,
        searches start from four draws for each row, and from sixteen in a class in which one of the
        four has led some row to another mode. Of further draws, fewer in plates of more than some
        hundred rows, they start from those that a valley of the density separates from all modes
        found. There are none with 0, or if the model declares starting points, as the ready-made
        families do.

    Raises
    ------
    ValueError
        If `n_prior_draws` is negative or not a whole number; when compiled, if `starts` name no
        latent or hold a value of another shape or outside the support.

    Notes
    -----
    Two dozen of the prior draws in a class climb together by steps that use gradients
    only: the twelve with the highest density, and twelve others. Full searches then start from the
    highest of them that is near no mode found so far: a few times, and longer as long as they find
    new modes. If they find three or more, all draws climb, and further ones until they add less
    than a hundredth of the evidence. Two modes count as one if they are less than a standard
    deviation apart under the curvatures of both. Up to 32 modes are kept, of a single latent 128,
    and as many as there are `starts`; the share known to be missed is recorded as the sampler
    statistic ``class_missed_share``, and `class_index_summary` flags it. If a prior cannot be drawn
    from, Cauchy variables around the model's initial point take its place. No covariance is wider
    than four times that of the prior draws. If no mode is found, a normal is fitted by importance
    sampling that starts from the prior draws, provided there are five draws for each latent; an
    example is a covariance with effects drawn with it, whose density has no highest point. A mode
    whose surroundings prior draws seldom hit may be missed by some chains, which then disagree, or
    by all, which cannot be detected: give `starts` if you know better. Cost, in interpreted code: a
    tenth of a second per fit for three latents.

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
    n_searches: int | None = None
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
        """Return settings for the shortest bursts: searches end early, and races drop more.

        On postal digits a burst of one to four draws with them is as accurate as the paper's in a
        fortieth of its time; the default finds higher modes, and such a burst takes a fifth longer
        (``benchmarks/burst_accuracy.py``).

        Parameters
        ----------
        **overrides
            Settings that replace these.

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
        self, density: ClassDensity | PlateDensity, geometry: LatentGeometry, mode: Any = None
    ) -> CompiledPseudoPriors:
        """Compile the mode search."""
        if isinstance(density, PlateDensity):
            of_rows = PlateLaplace(
                density,
                tolerance=self.tolerance,
                max_iterations=self.max_iterations,
                n_prior_draws=self.n_prior_draws,
            )
            return lambda data, rng, others=(): of_rows(others, rng)
        search, starts, given = self._search(density, geometry, mode)
        looks_further = search.evaluations.takes_many_points and geometry.starts is None
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

    def compile_search(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any = None
    ) -> tuple[ModeSearch, np.ndarray]:
        """Compile only the mode search; return it with its starts, ``(n_starts, n_latents)``."""
        search, starts, given = self._search(density, geometry, mode)
        return search, np.concatenate([starts(), given])

    def _search(
        self, density: ClassDensity, geometry: LatentGeometry, mode: Any
    ) -> tuple[ModeSearch, Callable[[], np.ndarray], np.ndarray]:
        """Return the search, the function that gives the default starts, and the user's starts."""
        search = ModeSearch.by_geometry(
            density,
            geometry,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            race=self.race,
            cooling=self.cooling,
            mode=mode,
        )
        starts = geometry.follow_starts(density)
        return search, lambda: starts()[: self.n_searches], given_starts(density, self.starts)
