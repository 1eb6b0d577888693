"""Mode searches of a class from points spread over its prior.

Searches from a single point find one mode of a density with several. Here each class is searched
from the model's initial point, from starts given by the user, and from draws of the latents' prior,
and all distinct modes are kept. A mode that no start leads to is missed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.initial_point import make_initial_point_fn
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.density.prior_draws import PriorDraws
from pymc_mcoem.interrupts import require_own_fault
from pymc_mcoem.laplace.climbing import climb, evaluated, spread_of
from pymc_mcoem.laplace.found_modes import FoundModes
from pymc_mcoem.laplace.modes import Modes, ModeStatus
from pymc_mcoem.laplace.prior_bounds import bounded, importance_fit

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.laplace.search import ModeSearch

__all__ = ["DispersedSearch", "affordable_draws", "given_starts"]

_log = logging.getLogger("pymc_mcoem")

#: Prior draws of a class that climb: half of them the highest, the rest the first of the others.
N_CLIMBING = 24

#: Largest number of full searches per class from prior draws that find nothing new, each of some
#: ten milliseconds, and of the latents of these searches together. At least one is made.
N_FRUITLESS, _SEARCHED_LATENTS = 6, 60

#: Factor of this number if searches find further modes; number of modes from which on all prior
#: draws climb; and number of times that as many draws climb again.
_MORE_SEARCHES, _SEVERAL, _MORE_ROUNDS = 16, 3, 4

#: Draws are enough if the last of them added less than this share of a class's evidence.
_LEAST_GROWTH = 0.01

#: If this share of the last draws led to new modes, the number of modes is not estimated.
_UNCOUNTED = 0.5

#: Largest size of the model's largest array, and of the curvatures, for all prior draws together,
#: and the fewest draws in any case.
_EVALUATED, _CURVED, _FEWEST = 200_000, 4_000_000, 8

#: Points of each round of a fit that replaces a mode search without a mode.
_N_FITTED = 512

#: Statuses of searches that found no mode.
_NO_MODE = (ModeStatus.NOT_CONVERGED, ModeStatus.INDEFINITE, ModeStatus.NO_DENSITY)


class DispersedSearch:
    """Find distinct modes of every class.

    Parameters
    ----------
    density : ClassDensity
        A density without inputs for data.
    search : ModeSearch
        A search that evaluates many points together.
    given : ndarray of shape (n_given, n_latents)
        Further starts.
    n_prior_draws : int
        Prior draws for each class and call.
    """

    def __init__(
        self, density: ClassDensity, search: ModeSearch, given: np.ndarray, n_prior_draws: int
    ) -> None:
        self._density = density
        self._search = search
        self._given = given
        self._n_prior_draws = min(n_prior_draws, affordable_draws(density))
        self._n_fruitless = max(1, min(N_FRUITLESS, _SEARCHED_LATENTS // max(density.n_latents, 1)))
        self._prior: PriorDraws | None = None
        try:
            self._prior = (
                PriorDraws(density, interpreted_mode(in_place=True)) if n_prior_draws else None
            )
        except Exception as error:  # as in `_drawn`
            require_own_fault(error)
            _no_draws(error)

    def __call__(
        self, starts: np.ndarray, rng: np.random.Generator, others: Sequence[np.ndarray]
    ) -> list[Modes]:
        """Return the distinct modes of each class in order of decreasing evidence.

        Parameters
        ----------
        starts : ndarray of shape (n_starts, n_latents)
            Starting points of the first search of each class.
        rng : numpy.random.Generator
            The generator of the chain. It is not advanced, so that for a class with one mode the
            draws of a chain do not depend on whether its prior was searched.
        """
        own_rng = np.random.default_rng(deepcopy(rng).integers(2**63))
        first = self._search(starts, {}, others)
        if self._prior is not None:
            self._prior.reseed(own_rng)
        found = []
        for j in range(self._density.n_classes):
            modes = FoundModes(first.rows([j]), n_given=len(self._given))
            for start in self._given:
                self._add(modes, j, start, others)
            if self._n_prior_draws:
                found.append(self._dispersed(modes, j, starts[0], own_rng, others))
            else:
                found.append(modes.best(np.zeros(0), 0.0))
        return found

    def _within_prior(
        self,
        modes: Modes,
        class_index: int,
        draws: np.ndarray,
        rng: np.random.Generator,
        others: Sequence[np.ndarray],
    ) -> Modes:
        """Return modes with covariances that the prior bounds, or a fit if there is no mode."""
        if self._prior is None:
            return modes
        if modes.status[0] in _NO_MODE:

            def evaluate(where: np.ndarray) -> np.ndarray:
                heights, _ = self._search.at_points(class_index, where, others)
                return np.where(np.isnan(heights), -np.inf, heights)

            n_points = min(_N_FITTED, affordable_draws(self._density))
            fit = importance_fit(evaluate, draws, n_points, rng, modes.status[0])
            modes = modes if fit is None else fit
        return bounded(modes, draws)

    def _add(
        self, modes: FoundModes, class_index: int, start: np.ndarray, others: Sequence[np.ndarray]
    ) -> bool:
        """Add the mode that a start leads to; return whether it is new and matters."""
        place = np.array([class_index])
        return modes.add(self._search(start[None], {}, others, classes=place))

    def _dispersed(
        self,
        modes: FoundModes,
        class_index: int,
        start: np.ndarray,
        rng: np.random.Generator,
        others: Sequence[np.ndarray],
    ) -> Modes:
        """Add the modes that prior draws lead to, and return those to keep.

        A class with few modes is done with the draws that climb first. Where there are several,
        all draws climb, and further ones as long as these add to the evidence.
        """

        def evaluate(where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self._search.at_points(class_index, where, others)

        drawn = self._drawn(class_index, start, rng, others)
        spread = spread_of(drawn)
        n_left = _MORE_SEARCHES * self._n_fruitless
        unknown, growth, is_countable = np.zeros(0), 0.0, True

        def batches() -> Iterator[np.ndarray]:
            first, rest = _by_height(drawn, spread, evaluate)
            yield first
            if modes.n_that_matter < _SEVERAL:
                return
            if len(rest):
                yield rest
            for _ in range(_MORE_ROUNDS):
                if growth < _LEAST_GROWTH:
                    return
                yield self._drawn(class_index, start, rng, others)

        for points in batches():
            n_before = modes.n_found
            ends, heights = climb(evaluate, points, spread, modes.explain)
            n_apart = int((np.isfinite(heights) & ~modes.explain(ends, heights)).sum())
            n_left, unknown = self._search_from(modes, class_index, ends, heights, n_left, others)
            growth = modes.share_since(n_before)
            n_new = n_apart if unknown.size else modes.n_found - n_before
            is_countable = n_new < _UNCOUNTED * len(points)
            if not n_left:
                break
        if is_settled := modes.n_that_matter < _SEVERAL or growth < _LEAST_GROWTH:
            growth = 0.0
        is_countable |= is_settled and not unknown.size
        best = modes.best(unknown, growth, is_countable=is_countable)
        return self._within_prior(best, class_index, drawn, rng, others)

    def _search_from(
        self,
        modes: FoundModes,
        class_index: int,
        ends: np.ndarray,
        heights: np.ndarray,
        n_left: int,
        others: Sequence[np.ndarray],
    ) -> tuple[int, np.ndarray]:
        """Search from ends near no known mode, the highest first, while that finds new ones.

        Returns
        -------
        int
            Searches that are left of `n_left`.
        ndarray
            Heights of ends near no known mode if no searches are left, else empty: with many
            latents, ends are often not near the mode that they lead to.
        """
        order = np.argsort(-heights, kind="stable")
        ends, heights = ends[order], heights[order]
        n_fruitless = 0
        while n_fruitless < self._n_fruitless:
            apart = np.isfinite(heights) & ~modes.explain(ends, heights)
            if not apart.any():
                break
            if not n_left:
                return 0, heights[apart]
            place = int(np.argmax(apart))
            n_left -= 1
            is_new = self._add(modes, class_index, ends[place], others)
            n_fruitless = 0 if is_new else n_fruitless + 1
            # No search starts there again, whether or not it found a mode.
            heights[place] = -np.inf
        return n_left, np.zeros(0)

    def _drawn(
        self,
        class_index: int,
        start: np.ndarray,
        rng: np.random.Generator,
        others: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return the finite ones of `n_prior_draws` draws ``(n_draws, n_latents)`` as starts."""
        n_draws = self._n_prior_draws
        drawn = start + rng.standard_cauchy((n_draws, len(start)))
        if self._prior is not None:
            try:
                drawn = self._prior(class_index, self._density.arguments({}, others), n_draws)
            # A distribution that cannot be drawn from may raise anything. Starts are optional, and
            # the model itself is valid.
            except Exception as error:
                require_own_fault(error)
                _no_draws(error)
        found = drawn[np.isfinite(drawn).all(axis=1)]
        return np.array(
            [self._density.without_inactive(class_index, point) for point in found]
        ).reshape(len(found), len(start))


def _by_height(
    points: np.ndarray,
    spread: np.ndarray,
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the points that climb first, and the rest.

    Few draws hit a narrow hill, but those are high. Draws on a wide hill are often low, and are
    found among the others.
    """
    if len(points) <= N_CLIMBING:
        return points, points[:0]
    heights, _ = evaluated(evaluate, points / spread, spread)
    order = np.argsort(-heights, kind="stable")
    highest, rest = np.split(order, [N_CLIMBING // 2])
    chosen = np.concatenate([highest, np.sort(rest)[: N_CLIMBING - len(highest)]])
    return points[chosen], np.delete(points, chosen, axis=0)


def affordable_draws(density: ClassDensity) -> int:
    """Return the number of prior draws at which a density can be evaluated in a short time."""
    graph = density.log_density(0, np.zeros(density.n_latents))
    n_values = max((_size(variable) for variable in ancestors([graph])), default=1)
    most = min(_EVALUATED // max(n_values, 1), _CURVED // max(density.n_latents, 1) ** 2)
    return max(_FEWEST, most)


def _size(variable: Any) -> int:
    """Return the size of an array that is shared or constant in a graph, else 0."""
    if isinstance(variable, SharedVariable):
        return int(np.size(variable.get_value(borrow=True)))
    return int(np.size(variable.data)) if isinstance(variable, Constant) else 0


def _no_draws(error: Exception) -> None:
    _log.info("Laplace: searches start around the initial point, without prior draws: %s", error)


def given_starts(density: ClassDensity, starts: Sequence[Mapping[str, Any]] | None) -> np.ndarray:
    """Return starts given by names of latents as positions ``(n_starts, n_latents)``."""
    if starts is None:
        return np.zeros((0, density.n_latents))
    if isinstance(starts, Mapping) or not isinstance(starts, Sequence):
        raise ValueError(f"starts: got {starts!r}; give a list of mappings, as [{{'x': 0.0}}].")
    known = {str(rv.name): rv for rv in density.latents}
    default = density.model.initial_point(random_seed=0)
    found = np.empty((len(starts), density.n_latents))
    for place, start in enumerate(starts):
        if not isinstance(start, Mapping):
            raise ValueError(
                f"starts: number {place} is {start!r}; give a mapping, as {{'x': 0.0}}."
            )
        unknown = [name for name in start if name not in known]
        if unknown:
            raise ValueError(
                f"starts: number {place} names {unknown}; name latents that jump with the class "
                f"index, {sorted(known)}, by their names in the model."
            )
        overrides = {name: np.asarray(value, known[name].dtype) for name, value in start.items()}
        try:
            point = make_initial_point_fn(model=density.model, overrides=overrides)(0)
            fits = [np.shape(point[name]) == np.shape(default[name]) for name in default]
        except (TypeError, ValueError):
            fits = [False]
        if not all(fits):
            shapes = {name: value.shape for name, value in overrides.items()}
            raise ValueError(
                f"starts: number {place} has values of the shapes {shapes}; give each the shape "
                "that its variable has in the model."
            )
        found[place] = density.ravel(point)
        if not np.isfinite(found[place]).all():
            raise ValueError(
                f"starts: number {place}, {dict(start)!r}, is outside of the support of a latent; "
                "give values inside of it."
            )
    return found
