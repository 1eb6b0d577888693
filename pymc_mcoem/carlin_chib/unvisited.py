"""Estimate the weight of classes that a chain hardly visited, over all variables.

`Climb`, which searches for modes, serves `unvisited_modes` too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
from pymc.pytensorf import rewrite_pregrad
from scipy.special import expit, logsumexp

from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.density.class_index import count_classes, is_class_index
from pymc_mcoem.interrupts import require_own_fault

if TYPE_CHECKING:
    import pymc as pm

    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["Climb", "UnvisitedClasses"]

_log = logging.getLogger("pymc_mcoem")

#: Evaluations of the density with its gradient that a chain spends on all classes.
MAX_EVALUATIONS = 5_000
#: Those that it spends on joint values of all indices that were not visited.
MAX_JOINT_EVALUATIONS = 2_000
#: Most joint values of the model's indices that are tried.
MAX_JOINT_VALUES = 64
#: Smallest share of unvisited joint values that is reported.
LEAST_SHARE = 0.01
#: Number of expected visits by that share, so that a chain hardly misses all by chance.
LEAST_DUE = 10
MAX_ITERATIONS = 300
#: Classes with a smaller share of the visits are looked for.
RARE = 0.02
#: A search has ended if it is estimated to be at most this many nats below its mode.
MAX_BELOW = 0.1


class Climb:
    """Searches for modes of a log-density of several arrays, which count their evaluations.

    Parameters
    ----------
    function : callable
        Takes the arrays, and returns the log-density, its gradient in each, and possibly more.
    shapes : sequence of tuple of int
        Shapes of the arrays.
    n_left : int
        Evaluations that are left for all searches.
    """

    def __init__(
        self, function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], n_left: int
    ) -> None:
        self.n_left = n_left
        self._function = function
        self._shapes = shapes
        self._ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])

    def split(self, place: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of a flat place."""
        arrays = np.split(place, self._ends[:-1])
        return [part.reshape(shape) for part, shape in zip(arrays, self._shapes, strict=True)]

    def descent(self, place: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus the log-density, 1e300 where it is not finite, with its gradient."""
        self.n_left -= 1
        log_p, *slopes = self._function(*self.split(place))[: 1 + len(self._shapes)]
        slope = flat(slopes)
        if not (np.isfinite(log_p) and np.isfinite(slope).all()):
            return 1e300, np.zeros_like(place)
        return -float(log_p), -slope

    def ended(self, start: np.ndarray, **limits: int) -> Any:
        """Return the result of a search from a flat place, with limits as SciPy names them."""
        from scipy.optimize import minimize  # imported here because the import takes a while

        return minimize(self.descent, start, jac=True, method="L-BFGS-B", options=limits)

    def precision(self, end: np.ndarray, n: int, n_rows: int = 1) -> np.ndarray:
        """Return the precision of the first `n` numbers with all others integrated out.

        The others are independent rows given the first, so that all can be moved at once.

        Raises
        ------
        numpy.linalg.LinAlgError
            If the density is not that of a normal around `end`.
        """
        n_latents = (len(end) - n) // n_rows
        width = 1e-4 * (1.0 + np.abs(end))

        def change(step: np.ndarray) -> Any:
            return self.descent(end + step)[1] - self.descent(end - step)[1]

        border = np.stack([change(step) / (2 * step.max()) for step in np.diag(width)[:n]])
        across = border[:, n:].reshape(n, n_rows, n_latents)
        blocks = np.empty((n_rows, n_latents, n_latents))
        for a in range(n_latents):
            step = np.zeros_like(end)
            step[n + a :: n_latents] = width[n + a :: n_latents]
            moved = change(step)[n:].reshape(n_rows, n_latents)
            blocks[:, a] = moved / (2 * width[n + a :: n_latents, None])
        for block in blocks:
            np.linalg.cholesky(block)
        inside = np.linalg.inv(blocks)
        precision: np.ndarray = border[:, :n] - np.einsum("ari,rij,brj->ab", across, inside, across)
        precision = (precision + precision.T) / 2
        np.linalg.cholesky(precision)
        return precision


def flat(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays as one vector."""
    return np.concatenate([np.ravel(each) for each in values])


class UnvisitedClasses:
    """Laplace's approximation of the odds of classes that a chain hardly visited.

    The step weighs a class given the variables that other steps draw. A class may have no weight at
    their present values, and much at those that they would take if the class were chosen. Here all
    continuous variables are moved to the mode of their joint density given the class, at every
    value of the model's other class indices.

    Parameters
    ----------
    model : pymc.Model
    density : ClassDensity
        Density of a single index, no plate.

    Notes
    -----
    The search is interpreted and made at most once a chain, and only if a class was hardly visited
    and other steps draw variables. It takes a second for the function and at most 5,000 evaluations
    of it, so that the last classes may have no answer. It draws nothing, so it changes no chain.
    Where it fails, as in a hierarchy whose density has no mode, there is no answer.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
    >>> from pymc_mcoem.density.class_density import ClassDensity
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     mu = pm.Normal("mu", 0, 10)
    ...     x = pm.Normal("x", mu + 20.0 * k, 1.0)
    ...     y = pm.Normal("y", x, 1.0, observed=20.0)
    >>> unvisited = UnvisitedClasses(model, ClassDensity(model, k, [x]))
    >>> point = {"k": 1, "mu": np.array(0.0), "x": np.array(20.0)}
    >>> fitted = PseudoPriors.from_covariance(np.full((2, 1), 20.0), np.ones((2, 1, 1)))
    >>> log_odds = unvisited.log_odds(point, np.array([0, 50]), fitted, np.full(2, 0.5))
    >>> log_odds.round(2)  # -20² / 204
    array([-1.96,   nan])
    """

    def __init__(self, model: pm.Model, density: ClassDensity) -> None:
        self._model = model
        self._density = density
        self._beside = bool(density.other_values)
        indices = {
            value.name: count_classes(rv)
            for rv, value in model.rvs_to_values.items()
            if rv in model.free_RVs and rv.ndim == 0 and is_class_index(rv)
        }
        beside = {value.name for value in density.other_values}
        others = {name: count for name, count in indices.items() if name in beside}
        discrete = {value.name for value in density.other_values if value.dtype != "float64"}
        few = np.prod([*others.values()], dtype=float) <= MAX_JOINT_VALUES
        self._is_covered = few and discrete <= set(others)
        self._other_indices: dict[str, int] = others
        # with two indices a change of one leads to all pairs of values that both have visited
        self.is_joint = (
            self._is_covered
            and len(others) >= 2
            and np.prod([*indices.values()], dtype=float) <= MAX_JOINT_VALUES
            and density.index_value is not None
            and next(iter(indices)) == density.index_value.name  # one step of them searches
        )
        moved = set(model.continuous_value_vars)
        self._fixed = [value for value in model.value_vars if value not in moved]
        self._n_left = 0

    def log_odds(
        self,
        point: Mapping[str, np.ndarray],
        visits: np.ndarray,
        pseudo_priors: PseudoPriors,
        class_prior: np.ndarray,
    ) -> np.ndarray:
        """Return the log-odds of each class that was hardly visited against all that were.

        Parameters
        ----------
        point : mapping of str to ndarray
            Where the chain is, by value-variable name.
        visits : ndarray of int, shape (n_classes,)
        pseudo_priors : PseudoPriors
            Searches start from their means.
        class_prior : ndarray of shape (n_classes,)
            Prior probabilities of the classes; nan where they are not constants.

        Returns
        -------
        ndarray of shape (n_classes,)
            nan for classes that were visited more often, and where the search found no mode. All
            nan if no other step draws variables, or if other discrete variables are not class
            indices or have too many joint values. Minus infinity for classes of prior probability
            zero.
        """
        found = np.full(len(visits), np.nan)
        unseen = np.flatnonzero((visits <= RARE * visits.sum()) & (class_prior != 0.0)).tolist()
        if not (self._beside and self._is_covered) or len(unseen) == len(visits):
            return found
        found[class_prior == 0.0] = -np.inf
        if not unseen:
            return found
        usual, self._n_left = int(visits.argmax()), MAX_EVALUATIONS
        # an optional part must not end a run: gradients of custom operations may raise anything
        try:
            evidence = self._log_evidences(point, usual, pseudo_priors.mean[usual])
            # visits are of all modes of the class, and the search finds the heaviest
            shares = getattr(pseudo_priors.mixtures, "log_share", None)
            of_mode = 0.0 if shares is None else float(shares[usual].max())
            all_visited = logsumexp(evidence) - of_mode - np.log(visits[usual] / visits.sum())
            for j in unseen:
                each = self._log_evidences(point, j, pseudo_priors.mean[j])
                if not np.isnan(each).all():
                    found[j] = logsumexp(each[~np.isnan(each)]) - all_visited
        except Exception as error:
            require_own_fault(error)
            _log.debug("CarlinChib: no search for classes that were hardly visited: %s", error)
        return found

    def joint_values(self, point: Mapping[str, np.ndarray]) -> tuple[int, ...]:
        """Return the class at a point, and the values of the other indices."""
        assert self._density.index_value is not None
        return tuple(
            int(point[name]) for name in (self._density.index_value.name, *self._other_indices)
        )

    def joint_log_odds(
        self, point: Mapping[str, np.ndarray], visits: Mapping[tuple[int, ...], int]
    ) -> float:
        """Return the log-odds of joint values of all indices that no change of one index reaches.

        If each of three or more indices has its own step, a chain reaches joint values that differ
        in two indices from those it visits only through the values between.

        Parameters
        ----------
        point : mapping of str to ndarray
            Where the chain is, by value-variable name.
        visits : mapping of tuple of int to int
            How often each of the `joint_values` was visited.

        Returns
        -------
        float
            nan if their weight is negligible, if so few visits may have missed them by chance, and
            without an answer.
        """
        counts = (self._density.n_classes, *self._other_indices.values())
        apart = [
            values
            for values in product(*map(range, counts))
            if all(np.count_nonzero(np.subtract(values, each)) >= 2 for each in visits)
        ]
        if not apart:
            return float("nan")
        usual = max(visits, key=lambda values: visits[values])
        self._n_left = MAX_JOINT_EVALUATIONS
        try:
            evidence = self._at_joint_values(point, usual)
            found = np.array([self._at_joint_values(point, values) for values in apart])
        except Exception as error:
            require_own_fault(error)
            _log.debug("CarlinChib: no search for joint values that were not visited: %s", error)
            return float("nan")
        found = found[~np.isnan(found)]
        if np.isnan(evidence) or not found.size:
            return float("nan")
        n_visits = sum(visits.values())
        log_odds = float(logsumexp(found) - evidence + np.log(visits[usual] / n_visits))
        least = max(LEAST_SHARE, LEAST_DUE / n_visits)
        return log_odds if expit(log_odds) > least else float("nan")

    def _at_joint_values(self, point: Mapping[str, np.ndarray], values: tuple[int, ...]) -> float:
        assert self._density.index_value is not None
        names = (self._density.index_value.name, *self._other_indices)
        placed = {
            name: np.asarray(value, np.asarray(point[name]).dtype)
            for name, value in zip(names, values, strict=True)
        }
        return self._laplace({**point, **placed})

    def _log_evidences(
        self, point: Mapping[str, np.ndarray], class_number: int, start: np.ndarray
    ) -> np.ndarray:
        """Return log p(y, class) at each joint value of the other indices, nan without a mode."""
        index = self._density.index_value
        assert index is not None
        placed = {**point, **self._density.unravel(start)}
        placed[index.name] = np.asarray(class_number, index.dtype)
        found = []
        for values in product(*map(range, self._other_indices.values())):
            for name, value in zip(self._other_indices, values, strict=True):
                placed[name] = np.asarray(value, np.asarray(point[name]).dtype)
            found.append(self._laplace(placed))
        return np.array(found)

    def _laplace(self, point: Mapping[str, np.ndarray]) -> float:
        """Return Laplace's approximation around the mode that a search from a point finds."""
        values = self._model.continuous_value_vars
        start = flat([point[value.name] for value in values])
        # gradients at both ends of every axis, besides those of the search
        if self._n_left <= 2 * start.size + MAX_ITERATIONS:
            return float("nan")
        fixed = [point[value.name] for value in self._fixed]
        shapes = [np.shape(point[value.name]) for value in values]
        climb = Climb(lambda *moved: self._function(*moved, *fixed), shapes, self._n_left)
        try:
            with np.errstate(all="ignore"):
                ended = climb.ended(start, maxiter=MAX_ITERATIONS)
                if ended.fun >= 1e299:
                    return float("nan")
                factor = np.linalg.cholesky(climb.precision(ended.x, start.size))
                slope = climb.descent(ended.x)[1]
                below = 0.5 * np.sum(np.linalg.solve(factor, slope) ** 2)
        except np.linalg.LinAlgError:
            return float("nan")
        finally:
            self._n_left = climb.n_left
        if not below < MAX_BELOW:
            return float("nan")
        log_det = 2.0 * np.log(np.diag(factor)).sum()
        return float(-ended.fun + 0.5 * (start.size * np.log(2 * np.pi) - log_det))

    @cached_property
    def _function(self) -> Any:
        """The model's log-density with its gradient."""
        moved = self._model.continuous_value_vars
        log_p = rewrite_pregrad(self._model.logp())
        return self._model.compile_fn(
            [log_p, *pytensor.grad(log_p, moved, disconnected_inputs="ignore")],
            inputs=[*moved, *self._fixed],
            mode=interpreted_mode(),
            point_fn=False,
            on_unused_input="ignore",
        )
