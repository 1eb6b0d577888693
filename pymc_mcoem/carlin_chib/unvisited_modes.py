"""Estimate the weight of modes that a chain did not visit, of variables that other steps draw."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn
from scipy.special import logsumexp, softmax

from pymc_mcoem.carlin_chib.unvisited import Climb, flat
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.density.angles import are_angles, principal
from pymc_mcoem.interrupts import require_own_fault

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.engines import Engine

__all__ = ["UnvisitedModes"]

_log = logging.getLogger("pymc_mcoem")

#: Prior draws from which searches start, and evaluations of the density with its gradient: of one
#: search and of all.
N_STARTS, MAX_ITERATIONS, MAX_EVALUATIONS = 8, 60, 500
#: Largest number of coordinates that the rows share.
MOST_SHARED = 50
#: Two modes are distinct if the density between them is lower by this many nats than at both.
LEAST_DIP = 2.0
#: Places between two modes at which the density is evaluated.
BETWEEN = (0.25, 0.5, 0.75)
#: A chain has visited a mode if the squared distance to it, in units of its width, was below this
#: for each coordinate that the rows share; one in a thousand draws of one coordinate is farther.
NEAR = 11.0
#: Largest difference in log-weight, or in class probabilities, of modes with renamed classes.
MAX_UNLIKE = 0.1


#: The log-density of what rows share, and evidence by class and row.
type _Evidence = tuple[float, np.ndarray]


@dataclass(frozen=True, eq=False)
class _Mode:
    """A mode of what rows share, ``(n,)``, and its precision with the latents integrated out.

    Coordinates that are angles are the same after whole turns.
    """

    place: np.ndarray
    precision: np.ndarray
    is_angle: np.ndarray

    def is_near(self, places: np.ndarray) -> bool:
        away = places - self.place
        away = np.where(self.is_angle, principal(away), away)
        squares = np.einsum("ia,ab,ib->i", away, self.precision, away)
        return bool(squares.min() < NEAR * len(self.place))

    @property
    def log_width(self) -> float:
        return -0.5 * float(np.linalg.slogdet(self.precision)[1])


class UnvisitedModes:
    """Odds of modes that a chain has not visited, of the variables that other steps draw.

    If the data form two groups that lie apart, a location stays at the group where it began. Here
    all continuous variables climb together from prior draws, with the classes of all rows summed
    out. A mode that the chain did not come near is compared with that of the chain by the evidence
    of all rows and classes, which the step's pseudo-priors estimate. A single index is a plate of
    one row.

    Parameters
    ----------
    engine : Engine

    Notes
    -----
    The search is interpreted, made once a chain, and draws nothing from its generator. It gives no
    answer if the climb from the chain's position finds no mode, as in hierarchies whose density has
    none, with blocks, and if the model has other discrete variables. On a plate, a mode that is the
    chain's with renamed classes is ignored.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._density: Any = engine.density
        self._climb: Any = None
        self._is_plate = len(engine.density.position_shape) == 2

    def log_odds(
        self,
        point: Mapping[str, np.ndarray],
        seen: Sequence[Sequence[np.ndarray]],
        rng: np.random.Generator,
    ) -> float:
        """Return the log-odds of modes that were not visited against that of the chain.

        Parameters
        ----------
        point : mapping of str to ndarray
            Where the chain is, by value-variable name.
        seen : sequence of sequence of ndarray
            The variables of other steps at sweeps of the chain.
        rng : numpy.random.Generator
            Not advanced.

        Returns
        -------
        float
            Minus infinity if there are none, nan without an answer.
        """
        values = self._density.other_values
        n_shared = sum(np.size(point[value.name]) for value in values)
        discrete = any(value.dtype != "float64" for value in values)
        if not 0 < n_shared <= MOST_SHARED or discrete or self._density.active is not None:
            return float("nan")
        rng = np.random.default_rng(deepcopy(rng).integers(2**63))
        # an optional part must not end a run: custom distributions may raise anything
        try:
            return self._log_odds(point, np.stack([flat(each) for each in seen]), rng)
        except Exception as error:
            require_own_fault(error)
            _log.debug("CarlinChib: no search for modes that were not visited: %s", error)
            return float("nan")

    def _log_odds(
        self, point: Mapping[str, np.ndarray], seen: np.ndarray, rng: np.random.Generator
    ) -> float:
        others, rows = self._density.others(point), (1, *self._density.position_shape)[-2:]
        variables = [self._density.model.values_to_rvs[each] for each in self._density.other_values]
        self._is_angle = are_angles(self._density.model, variables, [*map(np.size, others)])
        self._climb = Climb(self._function, [*map(np.shape, others), rows], MAX_EVALUATIONS)
        first = self._searched(point, [])
        if first is None:
            return float("nan")
        known = [first]
        for _ in range(N_STARTS):
            found = self._searched(self._prior_draw(int(rng.integers(2**31))), known)
            known += [] if found is None else [found]
        visited = [mode for mode in known if mode.is_near(seen)]
        apart = [mode for mode in known if mode not in visited]
        if not (visited and apart):
            return -np.inf if visited else float("nan")
        own = {mode: self._evidence(mode.place, rng) for mode in visited}
        odds = []
        for mode in apart:
            evidence = self._evidence(mode.place, rng)
            if all(self._is_another(mode, evidence, each, own[each], rng) for each in visited):
                odds.append(_height(evidence) + mode.log_width)
        if not odds:
            return -np.inf
        return float(logsumexp(odds) - logsumexp([_height(own[m]) + m.log_width for m in visited]))

    def _is_another(
        self, mode: _Mode, evidence: _Evidence, own: _Mode, of_own: _Evidence, rng: Any
    ) -> bool:
        """Return whether the density dips between two modes, and classes are not merely renamed."""
        heights = _height(evidence), _height(of_own)
        log_odds = heights[0] + mode.log_width - heights[1] - own.log_width
        if self._is_plate and abs(log_odds) < MAX_UNLIKE and _renamed(evidence[1], of_own[1]):
            return False
        between = [self._evidence((1 - t) * own.place + t * mode.place, rng) for t in BETWEEN]
        return min(heights) - min(map(_height, between)) > LEAST_DIP

    @cached_property
    def _function(self) -> Any:
        """The density, its gradient, and its part beside latents."""
        density, position = self._density, pt.dmatrix("position")
        at = position if self._is_plate else position[0]
        classes = [density.log_density(j, at) for j in range(density.n_classes)]
        shared = density.shared_log_density
        log_p = pt.logsumexp(pt.stack(classes), axis=0).sum() + shared
        inputs = [*density.other_values, position]
        slopes = pytensor.grad(log_p, inputs, disconnected_inputs="ignore")
        outputs = [log_p, *slopes, shared]
        mode = interpreted_mode()
        return pm.pytensorf.compile(inputs, outputs, mode=mode, on_unused_input="ignore")

    @cached_property
    def _prior_draw(self) -> Any:
        model = self._density.model
        return make_initial_point_fn(model=model, overrides=dict.fromkeys(model.free_RVs, "prior"))

    def _evidence(self, place: np.ndarray, rng: np.random.Generator) -> _Evidence:
        """Return the evidence of all rows, with the variables that they share at a place."""
        latents = np.zeros(np.prod(self._density.position_shape, dtype=int))
        arrays = self._climb.split(np.concatenate([place, latents]))
        evidence = self._engine.fit(rng, arrays[:-1]).log_evidence
        return float(self._function(*arrays)[-1]), evidence.reshape(len(evidence), -1)

    def _searched(self, point: Mapping[str, np.ndarray], known: Sequence[_Mode]) -> _Mode | None:
        """Return the mode that a climb leads to; None if there is none or it was found before."""
        others = self._density.others(point)
        n, climb = sum(map(np.size, others)), self._climb
        start = np.concatenate([flat(others), self._density.ravel(point).ravel()])
        n_rows, n_latents = (1, *self._density.position_shape)[-2:]
        if climb.n_left < MAX_ITERATIONS + 2 * (n + n_latents) + 1:
            return None
        with np.errstate(all="ignore"):
            ended = climb.ended(start, maxiter=MAX_ITERATIONS, maxfun=MAX_ITERATIONS)
            place = ended.x[:n]
            place = np.where(self._is_angle, principal(place), place)
            if not ended.success or any(mode.is_near(place[None]) for mode in known):
                return None
            try:
                return _Mode(place, climb.precision(ended.x, n, n_rows), self._is_angle)
            except np.linalg.LinAlgError:
                return None


def _height(found: _Evidence) -> float:
    """Return the log-density of what rows share with all rows and classes summed out."""
    shared, evidence = found
    return shared + float(logsumexp(evidence, axis=0).sum())


def _renamed(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether rows have the same classes, under other names, by their evidence."""
    from scipy.optimize import linear_sum_assignment

    first, second = softmax(one, axis=0), softmax(other, axis=0)
    unlike = np.abs(first[:, None] - second[None]).mean(axis=-1)
    names, others = linear_sum_assignment(unlike)
    return bool((names != others).any() and unlike[names, others].max() < MAX_UNLIKE)
