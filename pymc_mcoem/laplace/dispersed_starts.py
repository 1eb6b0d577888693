"""Mode searches of a class from points spread over its prior.

Searches from a single point find one mode of a density with several. Here each class is searched
from the model's initial point, from starts given by the user, and from draws of the latents' prior,
and all distinct modes are kept. A mode that no start leads to is missed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
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
from pymc_mcoem.laplace.modes import Modes, ModeStatus
from pymc_mcoem.laplace.prior_bounds import bounded, importance_fit

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.laplace.search import ModeSearch

__all__ = ["DispersedSearch", "affordable_draws", "climb", "given_starts"]

_log = logging.getLogger("pymc_mcoem")

#: Prior draws of a class that climb: half of them the highest, the rest the first of the others.
N_CLIMBING = 24

#: Most full searches per class from prior draws, each of some ten milliseconds, and most latents of
#: all these searches together. At least one search is made.
MAX_SEARCHES, _SEARCHED_LATENTS = 6, 60

#: Most numbers of all prior draws together, in the model's largest array and in the curvatures, and
#: the fewest draws in any case.
_EVALUATED, _CURVED, _FEWEST = 200_000, 4_000_000, 8

#: Points of each round of a fit that replaces a mode search without a mode.
_N_FITTED = 512

#: Most distinct modes that are kept for a class.
MAX_MODES = 8

#: Statuses of searches that found no mode.
_NO_MODE = (ModeStatus.NOT_CONVERGED, ModeStatus.INDEFINITE, ModeStatus.NO_DENSITY)

#: A mode is dropped if its log evidence is this many nats below the best of its class.
MAX_GAP = 7.0


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
        self._n_searches = max(1, min(MAX_SEARCHES, _SEARCHED_LATENTS // max(density.n_latents, 1)))
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
        others : sequence of ndarray
        """
        own_rng = np.random.default_rng(deepcopy(rng).integers(2**63))
        first = self._search(starts, {}, others)
        if self._prior is not None:
            self._prior.reseed(own_rng)
        found = []
        for j in range(self._density.n_classes):
            modes = [first.rows([j])]
            for start in self._given:
                self._add(modes, j, start, others)
            if self._n_prior_draws:
                draws = self._add_dispersed(modes, j, starts[0], own_rng, others)
                found.append(self._within_prior(_best_modes(modes), j, draws, own_rng, others))
            else:
                found.append(_best_modes(modes))
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
        self, modes: list[Modes], class_index: int, start: np.ndarray, others: Sequence[np.ndarray]
    ) -> None:
        """Add the mode that a start leads to, if there is one and it is new."""
        place = np.array([class_index])
        mode = self._search(start[None], {}, others, classes=place)
        # A point where a search got stuck, or a saddle point, is not a mode.
        if mode.status[0] is ModeStatus.CONVERGED and not any(
            _are_one(known, mode) for known in modes
        ):
            modes.append(mode)

    def _add_dispersed(
        self,
        modes: list[Modes],
        class_index: int,
        start: np.ndarray,
        rng: np.random.Generator,
        others: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Add the modes that prior draws lead to, and return the draws."""
        points = self._drawn(class_index, start, rng, others)
        drawn = points = np.array(
            [self._density.without_inactive(class_index, point) for point in points]
        ).reshape(len(points), len(start))

        def evaluate(where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self._search.at_points(class_index, where, others)

        spread = _spread(points)
        if len(points) > N_CLIMBING:
            # Few draws hit a narrow hill, but those are high. Draws on a wide hill are often low,
            # and are found among the others.
            heights, _ = _evaluated(evaluate, points / spread, spread)
            order = np.argsort(-heights, kind="stable")
            highest, rest = np.split(order, [N_CLIMBING // 2])
            chosen = np.concatenate([highest, np.sort(rest)[: N_CLIMBING - len(highest)]])
            points = points[chosen]

        def leads_to_known(ends: np.ndarray, heights: np.ndarray) -> np.ndarray:
            found = np.zeros(len(ends), dtype=bool)
            for mode in modes:
                # the first one may be a saddle point, from which points climb away
                if mode.status[0] is ModeStatus.CONVERGED:
                    found |= _leads_to(mode, ends, heights)
            return found

        ends, heights = climb(evaluate, points, spread, leads_to_known)
        order = np.argsort(-heights, kind="stable")
        ends, heights = ends[order], heights[order]
        for _ in range(self._n_searches):
            apart = np.isfinite(heights) & ~leads_to_known(ends, heights)
            if not apart.any():
                break
            place = int(np.argmax(apart))
            self._add(modes, class_index, ends[place], others)
            # No search starts there again, whether or not it found a mode.
            heights[place] = -np.inf
        return drawn

    def _drawn(
        self,
        class_index: int,
        start: np.ndarray,
        rng: np.random.Generator,
        others: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return the finite ones of `n_prior_draws` draws as starts ``(n_starts, n_latents)``."""
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
        found: np.ndarray = drawn[np.isfinite(drawn).all(axis=1)]
        return found


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


def climb(
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    points: np.ndarray,
    spread: np.ndarray,
    leads_to_known: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    n_iterations: int = 40,
    tolerance: float = 2e-3,
) -> tuple[np.ndarray, np.ndarray]:
    """Move many points up a log-density together, to near its modes.

    The steps are those of Broyden, Fletcher, Goldfarb and Shanno in units of `spread`, at most one
    unit long, so that a point usually ends on the hill on which it begins.

    Parameters
    ----------
    evaluate : callable
        Takes points ``(n, d)`` and returns log-densities ``(n,)`` and gradients ``(n, d)``.
    points : ndarray of shape (n, d)
    spread : ndarray of shape (d,)
    leads_to_known : callable, optional
        Takes points ``(n, d)`` and their log-densities ``(n,)`` and returns which of them are near
        a known mode, ``(n,)``. These stop.
    n_iterations : int
    tolerance : float
        A point stops when its next step promises a smaller gain in log-density.

    Returns
    -------
    ends : ndarray of shape (n, d)
    heights : ndarray of shape (n,)
        Log-densities at `ends`, minus infinity for points that began outside the support.

    Examples
    --------
    >>> ends, _ = climb(
    ...     lambda x: (-0.5 * (x**2).sum(axis=1), -x), np.array([[3.0], [-2.0]]), np.ones(1)
    ... )
    >>> bool(np.abs(ends).max() < 0.5)
    True
    """
    n, d = points.shape
    z = points / spread
    heights, slopes = _evaluated(evaluate, z, spread)
    inverse = np.tile(np.eye(d), (n, 1, 1))
    is_first = np.ones(n, dtype=bool)
    size = np.ones(n)
    moving = np.isfinite(heights)
    for _ in range(n_iterations):
        rows = np.flatnonzero(moving)
        if not rows.size:
            break
        direction = np.einsum("nab,nb->na", inverse[rows], slopes[rows])
        length = np.linalg.norm(direction, axis=1)
        direction *= np.minimum(1.0, 1.0 / np.maximum(length, 1e-300))[:, None]
        promised = (direction * slopes[rows]).sum(axis=1)
        step = size[rows, None] * direction
        new_heights, new_slopes = _evaluated(evaluate, z[rows] + step, spread)
        better = new_heights >= heights[rows] + 1e-4 * size[rows] * promised
        up = rows[better]
        bend = slopes[up] - new_slopes[better]
        inverse[up] = _updated(inverse[up], step[better], bend, is_first[up])
        is_first[up] = False
        z[up] += step[better]
        heights[up], slopes[up] = new_heights[better], new_slopes[better]
        size[up] = 1.0
        size[rows[~better]] *= 0.25
        moving[rows] = np.where(better, 0.5 * promised > tolerance, size[rows] > 1e-6)
        if leads_to_known is not None:
            moving[rows] &= ~leads_to_known(z[rows] * spread, heights[rows])
    return z * spread, heights


def _evaluated(
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    z: np.ndarray,
    spread: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return heights, minus infinity if not finite, and slopes in units of `spread`."""
    if not len(z):
        return np.zeros(0), np.zeros_like(z)
    values, slopes = evaluate(z * spread)
    is_fine = np.isfinite(values) & np.isfinite(slopes).all(axis=1)
    return np.where(is_fine, values, -np.inf), np.where(is_fine[:, None], slopes * spread, 0.0)


def _updated(
    inverse: np.ndarray, step: np.ndarray, bend: np.ndarray, is_first: np.ndarray
) -> np.ndarray:
    """Return updated inverse curvatures, unchanged where the density is convex."""
    product = (step * bend).sum(axis=1)
    squares = (bend**2).sum(axis=1)
    is_fine = product > 1e-10 * np.sqrt((step**2).sum(axis=1) * squares)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(is_first & is_fine, product / squares, 1.0)
        rho = np.where(is_fine, 1.0 / product, 0.0)
    identity = np.eye(step.shape[1])
    now = np.where((is_first & is_fine)[:, None, None], first[:, None, None] * identity, inverse)
    across = np.einsum("nab,nb->na", now, bend)
    both = np.einsum("na,nb->nab", step, across)
    weight = rho * (1.0 + rho * (across * bend).sum(axis=1))
    found: np.ndarray = (
        now
        - rho[:, None, None] * (both + np.swapaxes(both, 1, 2))
        + weight[:, None, None] * np.einsum("na,nb->nab", step, step)
    )
    return found


def _spread(points: np.ndarray) -> np.ndarray:
    """Return a scale of points in each coordinate, from their interquartile range."""
    if not len(points):
        return np.ones(points.shape[1])
    low, high = np.quantile(points, [0.25, 0.75], axis=0)
    found = (high - low) / 1.35
    usual: np.ndarray = np.where(found > 1e-10 * np.maximum(1.0, np.abs(high)), found, 1.0)
    return usual


def _leads_to(mode: Modes, ends: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Return which ends are near a mode and as high as its normal approximation there."""
    away = ends - mode.mean[0]
    squares = np.einsum("na,ab,nb->n", away, mode.precision[0], away)
    expected = mode.log_density[0] - 0.5 * squares
    with np.errstate(invalid="ignore"):  # for a class without density
        found: np.ndarray = (squares < 1.0) & (np.abs(heights - expected) < 0.5)
    return found


def _are_one(one: Modes, two: Modes) -> bool:
    """Return whether two modes are less than a standard deviation apart under both curvatures."""
    away = one.mean[0] - two.mean[0]
    return all(float(away @ mode.precision[0] @ away) < 1.0 for mode in (one, two))


def _best_modes(modes: list[Modes]) -> Modes:
    """Return the modes to keep, in order of decreasing evidence; the first may not be a mode."""
    head, *rest = modes
    evidence = np.array([float(mode.log_evidence[0]) for mode in modes])
    if head.status[0] is not ModeStatus.CONVERGED and rest:
        # Drop the point where the first search got stuck if another mode is as good.
        if not evidence[0] > evidence[1:].max():
            modes, evidence = rest, evidence[1:]
    if len(modes) == 1:
        return modes[0]
    order = np.argsort(-evidence, kind="stable")[:MAX_MODES]
    order = order[evidence[order] > evidence[order[0]] - MAX_GAP]
    return Modes.joined([modes[place] for place in order])


def given_starts(density: ClassDensity, starts: Sequence[Mapping[str, Any]] | None) -> np.ndarray:
    """Return starts given by names of latents as positions ``(n_starts, n_latents)``.

    Raises
    ------
    ValueError
        If a start names a variable that is not a latent, or has a value of another shape or outside
        the support.
    """
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
