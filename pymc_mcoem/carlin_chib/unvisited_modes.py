"""Weight that a chain has not seen: other modes of the variables that other steps draw."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn
from scipy.special import logsumexp, softmax

from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.interrupts import require_own_fault

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.engines import Engine

__all__ = ["UnvisitedModes"]

_log = logging.getLogger("pymc_mcoem")

#: Prior draws from which searches start, and evaluations of the density with its gradient: of one
#: search and of all.
N_STARTS, MAX_ITERATIONS, MAX_EVALUATIONS = 8, 60, 500
#: Most numbers that the rows share.
MOST_SHARED = 50
#: Two modes are distinct if the density between them is lower by so many nats than at both.
LEAST_DIP = 2.0
#: Places between two modes at which the density is looked at.
BETWEEN = (0.25, 0.5, 0.75)
#: A chain has visited a mode if it came so near, in squares of its width for each number that the
#: rows share: farther than all but one of a thousand draws of one number.
NEAR = 11.0
#: Modes of which one has the classes of the other under other names are as heavy up to this.
MAX_UNLIKE = 0.1


#: The log-density of what rows share, and evidence by class and row.
type _Evidence = tuple[float, np.ndarray]


@dataclass(frozen=True, eq=False)
class _Mode:
    """A mode of what rows share, ``(n,)``, and its precision with the latents summed out."""

    place: np.ndarray
    precision: np.ndarray

    def is_near(self, places: np.ndarray) -> bool:
        away = places - self.place
        squares = np.einsum("ia,ab,ib->i", away, self.precision, away)
        return bool(squares.min() < NEAR * len(self.place))

    @property
    def log_width(self) -> float:
        return -0.5 * float(np.linalg.slogdet(self.precision)[1])


class UnvisitedModes:
    """Odds of modes that a chain has not visited, of the variables that other steps draw.

    A location of two groups of data that lie apart stays at the group at which it began. Here all
    continuous variables climb together from prior draws, with the classes summed out, on a plate
    those of all rows. Where they end in a mode that the chain did not come near, it is compared
    with that of the chain by the evidence of all rows and classes that the step's own
    pseudo-priors estimate. A single index is a plate of one row.

    Parameters
    ----------
    engine : Engine

    Notes
    -----
    The search is interpreted, made once a chain, and draws nothing from its generator. It ends
    without an answer where the climb from the chain's own place finds no mode, as in hierarchies
    whose density has none, with blocks, and if other discrete variables stand beside the index. On
    a plate a mode with the classes of the chain's own mode under other names is left out: it says
    the same.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._density: Any = engine.density
        self._functions: Any = None
        self._shapes: list[tuple[int, ...]] = []
        self._n_left = 0
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
            The variables beside the step at sweeps of the chain.
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
        # an optional part must not end a run: distributions of others' own may raise anything
        try:
            return self._log_odds(point, np.stack([_flat(each) for each in seen]), rng)
        except Exception as error:
            require_own_fault(error)
            _log.debug("CarlinChib: no search for modes that were not visited: %s", error)
            return float("nan")

    def _log_odds(
        self, point: Mapping[str, np.ndarray], seen: np.ndarray, rng: np.random.Generator
    ) -> float:
        self._n_left = MAX_EVALUATIONS
        first = self._searched(point, [])
        if first is None:
            return float("nan")
        known, draw = [first], self._made()[1]
        for _ in range(N_STARTS):
            found = self._searched(draw(int(rng.integers(2**31))), known)
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
        """Return whether less lies between two modes, and classes are not merely renamed."""
        heights = _height(evidence), _height(of_own)
        log_odds = heights[0] + mode.log_width - heights[1] - own.log_width
        if self._is_plate and abs(log_odds) < MAX_UNLIKE and _renamed(evidence[1], of_own[1]):
            return False
        between = [self._evidence((1 - t) * own.place + t * mode.place, rng) for t in BETWEEN]
        return min(heights) - min(map(_height, between)) > LEAST_DIP

    def _made(self) -> tuple[Any, Any]:
        """Return the density with its gradient, and draws of the whole model from its prior."""
        if self._functions is None:
            density, position = self._density, pt.dmatrix("position")
            at = position if self._is_plate else position[0]
            classes = [density.log_density(j, at) for j in range(density.n_classes)]
            shared = density.shared_log_density
            log_p = pt.logsumexp(pt.stack(classes), axis=0).sum() + shared
            inputs = [*density.other_values, position]
            slopes = pytensor.grad(log_p, inputs, disconnected_inputs="ignore")
            outputs = [log_p, shared, *slopes]
            function = compile_with_data(density, [position], outputs, interpreted_mode())
            model = density.model
            prior = dict.fromkeys(model.free_RVs, "prior")
            draw = make_initial_point_fn(model=model, overrides=prior)
            self._functions = function, draw
        found: tuple[Any, Any] = self._functions
        return found

    def _others(self, place: np.ndarray) -> list[np.ndarray]:
        shapes = self._shapes
        ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1]
        return [
            part.reshape(shape) for part, shape in zip(np.split(place, ends), shapes, strict=True)
        ]

    def _evidence(self, place: np.ndarray, rng: np.random.Generator) -> _Evidence:
        """Return the evidence of all rows where the variables that they share are at a place."""
        others, density = self._others(place), self._density
        position = np.zeros((1, *density.position_shape)[-2:])
        evidence = self._engine.fit(rng, others).log_evidence
        return float(self._made()[0](position, *others)[1]), evidence.reshape(len(evidence), -1)

    def _searched(self, point: Mapping[str, np.ndarray], known: Sequence[_Mode]) -> _Mode | None:
        """Return the mode that a climb leads to; None if there is none, or if it is known."""
        from scipy.optimize import minimize  # imported here because the import takes a while

        density = self._density
        others = density.others(point)
        self._shapes = [np.shape(each) for each in others]
        start = np.concatenate([_flat(others), density.ravel(point).ravel()])
        n_rows, n_latents = (1, *density.position_shape)[-2:]
        n = len(start) - n_rows * n_latents
        if self._n_left < MAX_ITERATIONS + 2 * (n + n_latents) + 1:
            return None
        function = self._made()[0]

        def descent(x: np.ndarray) -> tuple[float, np.ndarray]:
            self._n_left -= 1
            log_p, _, *slopes = function(x[n:].reshape(n_rows, n_latents), *self._others(x[:n]))
            slope = _flat(slopes)
            if not (np.isfinite(log_p) and np.isfinite(slope).all()):
                return 1e300, np.zeros_like(x)
            return -float(log_p), -slope

        def curvature(step: np.ndarray) -> np.ndarray:
            change: np.ndarray = descent(end + step)[1] - descent(end - step)[1]
            return change

        with np.errstate(all="ignore"):
            limits = {"maxiter": MAX_ITERATIONS, "maxfun": MAX_ITERATIONS}
            ended = minimize(descent, start, jac=True, method="L-BFGS-B", options=limits)
            end = ended.x
            if not ended.success or any(mode.is_near(end[None, :n]) for mode in known):
                return None
            width = 1e-4 * (1.0 + np.abs(end))
            border = np.stack([curvature(step) / (2 * step.max()) for step in np.diag(width)[:n]])
            blocks = np.empty((n_rows, n_latents, n_latents))
            for a in range(n_latents):
                # rows are independent, so that all of them can be moved at once
                step = np.zeros_like(end)
                step[n + a :: n_latents] = width[n + a :: n_latents]
                moved = curvature(step)[n:].reshape(n_rows, n_latents)
                blocks[:, a] = moved / (2 * width[n + a :: n_latents, None])
            across = border[:, n:].reshape(n, n_rows, n_latents)
            try:
                for block in blocks:
                    np.linalg.cholesky(block)
                inside = np.linalg.inv(blocks)
                precision = border[:, :n] - np.einsum("ari,rij,brj->ab", across, inside, across)
                np.linalg.cholesky((precision + precision.T) / 2)
            except np.linalg.LinAlgError:
                return None
        return _Mode(end[:n], (precision + precision.T) / 2)


def _flat(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(each) for each in values])


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
