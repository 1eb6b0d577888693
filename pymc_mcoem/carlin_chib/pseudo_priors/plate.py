"""Pseudo-priors of all rows of a plate, and how they are found at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn

from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.density.prior_draws import PriorDraws

if TYPE_CHECKING:
    from pymc_mcoem.density.plate import PlateDensity

__all__ = ["PlateLaplace", "PlatePseudoPriors"]

#: By how many nats of evidence a mode that a prior draw led to may be below the first.
_NEARLY = 3.0


@dataclass(frozen=True, eq=False)
class PlatePseudoPriors:
    """Normal pseudo-priors of all classes and rows.

    Attributes
    ----------
    mean : ndarray of shape (n_classes, n_rows, n_latents)
    scale, whiten : ndarray of shape (n_classes, n_rows, n_latents, n_latents)
    log_normalizer, log_evidence : ndarray of shape (n_classes, n_rows)
    troubles : dict of str to int
    """

    mean: np.ndarray
    scale: np.ndarray
    whiten: np.ndarray
    log_normalizer: np.ndarray
    log_evidence: np.ndarray
    troubles: dict[str, int] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlatePseudoPriors):
            return NotImplemented
        return self.troubles == other.troubles and all(
            np.array_equal(mine, theirs, equal_nan=True)
            for mine, theirs in zip(self.as_list(), other.as_list(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def as_list(self) -> list[np.ndarray]:
        """Return the arrays in the order in which compiled functions take them."""
        return [self.mean, self.scale, self.whiten, self.log_normalizer]

    def start(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw a class for every row by evidence, and a position from its pseudo-prior."""
        n_classes, n_rows, n = self.mean.shape
        best = self.log_evidence.max(axis=0)
        weight = np.exp(self.log_evidence - np.where(np.isfinite(best), best, 0.0))
        cumulative = np.cumsum(weight, axis=0)
        drawn = (cumulative < rng.random(n_rows) * cumulative[-1]).sum(axis=0)
        index = np.minimum(drawn, n_classes - 1)
        rows = np.arange(n_rows)
        noise = rng.standard_normal((n_rows, n))
        moved = np.einsum("iab,ib->ia", self.scale[index, rows], noise)
        return index, self.mean[index, rows] + moved


class PlateLaplace:
    """Laplace pseudo-priors of all rows at once, by damped Newton steps.

    Parameters
    ----------
    density : PlateDensity
    tolerance : float
        Of the expected gain of a step, in units of the log-density.
    max_iterations : int

    Notes
    -----
    One normal for each class and row. Each is searched from the model's initial point and, where
    there is a generator, from a draw of its prior: where that leads to another mode of nearly as
    much evidence or more, it is this that a chain has. Chains that begin on different modes then
    disagree, for the random walk alone gets from one to another.

    Interpreted: a fit evaluates a few dozen times, each time all rows at once.
    Rows being independent, the gradient of the summed density holds all rows' gradients, and
    n_latents more backward passes all their Hessians: the cost of an iteration is linear in the
    number of rows.
    """

    def __init__(
        self,
        density: PlateDensity,
        *,
        tolerance: float = 1e-3,
        max_iterations: int = 60,
    ) -> None:
        self.density = density
        self.tolerance = tolerance
        self.max_iterations = max_iterations
        k = pt.vector("class_index", dtype="int64")
        x = pt.tensor("position", dtype="float64", shape=(density.n_rows, density.n_latents))
        log_p = density.log_density(k, x)
        gradient = pt.grad(log_p.sum(), x)
        hessian = [pt.grad(gradient[:, a].sum(), x) for a in range(density.n_latents)]
        self._function = density.compile(
            [k, x], [log_p, gradient, -pt.stack(hessian, axis=1)], interpreted_mode()
        )
        # As a function, for the initial point may depend on data that are set later.
        self._initial_point = make_initial_point_fn(model=density.model)
        self._prior: PriorDraws | None = None
        # Whatever a distribution raises that cannot be drawn from: the model itself is sound.
        with suppress(Exception):
            self._prior = PriorDraws(density, interpreted_mode())

    def __call__(
        self, others: Sequence[np.ndarray], rng: np.random.Generator | None = None
    ) -> PlatePseudoPriors:
        """Return pseudo-priors given the other values.

        Parameters
        ----------
        others : sequence of ndarray
        rng : numpy.random.Generator or None
            The chain's, which is not moved on.
        """
        start = self.density.ravel(self._initial_point(0))
        found = [self._search(j, start, others) for j in range(self.density.n_classes)]
        if rng is not None:
            own_rng = np.random.default_rng(deepcopy(rng).integers(2**63))
            found = [
                _nearly_best(each, self._search(j, self._drawn(j, start, own_rng, others), others))
                for j, each in enumerate(found)
            ]
        mean, precision, log_p, converged = (np.stack(part) for part in zip(*found, strict=True))
        whiten = np.swapaxes(np.linalg.cholesky(precision), -1, -2)
        half_log_det = np.log(np.diagonal(whiten, axis1=-2, axis2=-1)).sum(axis=-1)
        log_normalizer = half_log_det - 0.5 * mean.shape[-1] * np.log(2 * np.pi)
        log_evidence = np.where(np.isfinite(log_p), log_p - log_normalizer, -np.inf)
        # a class far below a row's best need not have a good mode
        matters = log_evidence > log_evidence.max(axis=0) - 20.0
        missed = int((~converged & matters).sum())
        return PlatePseudoPriors(
            mean,
            np.ascontiguousarray(np.linalg.inv(whiten)),
            np.ascontiguousarray(whiten),
            log_normalizer,
            log_evidence,
            {"mode search: not converged": missed} if missed else {},
        )

    def _drawn(
        self, j: int, start: np.ndarray, rng: np.random.Generator, others: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Draw starts of all rows in class j, from around the given ones without a prior."""
        drawn = start + rng.standard_cauchy(start.shape)
        if self._prior is not None:
            with suppress(Exception):
                self._prior.reseed(rng)
                (drawn,) = self._prior(np.full(len(start), j), others, 1)
        return np.where(np.isfinite(drawn).all(axis=1, keepdims=True), drawn, start)

    def _search(
        self, j: int, start: np.ndarray, others: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        """Return mean, precision, log-density and convergence of every row in class j."""
        n_rows = len(start)
        index = np.full(n_rows, j, dtype=np.int64)
        x = start.copy()
        log_p, gradient, curvature = self._function(index, x, *others)
        damping = np.full(n_rows, 1e-3)
        converged = np.zeros(n_rows, dtype=bool)
        for _ in range(self.max_iterations):
            steps, gain, solved = _newton(curvature, gradient, damping)
            converged |= solved & (gain < self.tolerance) & (damping < 1e-2)
            candidate = np.where((solved & ~converged)[:, None], x + steps, x)
            if converged.all():
                break
            new_log_p, new_gradient, new_curvature = self._function(index, candidate, *others)
            better = solved & ~converged & (new_log_p >= log_p)
            x = np.where(better[:, None], candidate, x)
            log_p = np.where(better, new_log_p, log_p)
            gradient = np.where(better[:, None], new_gradient, gradient)
            curvature = np.where(better[:, None, None], new_curvature, curvature)
            lowered = np.where(damping < 1e-6, 0.0, damping / 8)
            damping = np.where(better, lowered, np.minimum(np.maximum(damping * 8, 1e-4), 1e12))
        # where there is no density there is no curvature either
        known = np.isfinite(curvature).all(axis=(1, 2)) & np.isfinite(log_p)
        curvature = np.where(known[:, None, None], curvature, np.eye(x.shape[1]))
        values, vectors = np.linalg.eigh(curvature)
        largest = np.maximum(values.max(axis=1, keepdims=True), 1e-8)
        definite = values.min(axis=1) > 1e-10 * largest[:, 0]
        # a curvature that is no precision is bent until it is one: it only has to be a density
        values = np.maximum(np.abs(values), 1e-6 * largest)
        bent = np.einsum("iab,ib,icb->iac", vectors, values, vectors)
        precision = np.where(definite[:, None, None], curvature, bent)
        return x, precision, log_p, converged & definite


def _nearly_best(first: tuple[np.ndarray, ...], second: tuple[np.ndarray, ...]) -> Any:
    """Return, row by row, the first search's end, or the second's if it is a mode worth as much.

    It is one where it is a standard deviation or more away under the curvatures of both, and has
    no more than three nats less of Laplace's evidence.
    """
    (mean, precision, log_p, converged), (there, other_precision, other_log_p, found) = (
        first,
        second,
    )
    away = there - mean
    squares = [np.einsum("ia,iab,ib->i", away, each, away) for each in (precision, other_precision)]
    with np.errstate(invalid="ignore"):  # of rows without density
        gain = other_log_p - log_p
        gain -= 0.5 * (np.linalg.slogdet(other_precision)[1] - np.linalg.slogdet(precision)[1])
    is_other = np.min(squares, axis=0) > 1.0
    taken = found & (~converged | (is_other & (gain > -_NEARLY)))
    return tuple(
        np.where(taken.reshape(-1, *[1] * (one.ndim - 1)), two, one)
        for one, two in zip(first, second, strict=True)
    )


def _newton(
    curvature: np.ndarray, gradient: np.ndarray, damping: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return damped steps of all rows, what each promises, and whether it could be computed."""
    diagonal = np.maximum(np.abs(np.diagonal(curvature, axis1=1, axis2=2)), 1e-10)
    identity = np.eye(curvature.shape[-1])
    matrix = curvature + (damping[:, None] * diagonal)[:, :, None] * identity
    finite = np.isfinite(matrix).all(axis=(1, 2)) & np.isfinite(gradient).all(axis=1)
    safe = np.where(finite[:, None, None], matrix, identity)
    solved = finite & (np.linalg.eigvalsh(safe)[:, 0] > 0)
    safe = np.where(solved[:, None, None], safe, identity)
    steps = np.linalg.solve(safe, np.where(solved[:, None], gradient, 0.0)[..., None])[..., 0]
    gain = 0.5 * np.einsum("ia,ia->i", steps, np.where(solved[:, None], gradient, 0.0))
    return steps, gain, solved
