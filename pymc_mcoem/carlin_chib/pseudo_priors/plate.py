"""Pseudo-priors of a plate, found for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn

from pymc_mcoem.carlin_chib.pseudo_priors.base import Mixtures, PseudoPriors
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.density.prior_draws import PriorDraws
from pymc_mcoem.laplace.dispersed_starts import MAX_GAP, MAX_MODES

if TYPE_CHECKING:
    from pymc_mcoem.density.plate import PlateDensity

__all__ = ["PlateLaplace", "PlatePseudoPriors"]

#: Searches from prior draws in every class, each in all rows at once; the second number holds if
#: one of the first has led some row to another mode.
_N_DRAWS, _N_DRAWS_OF_SEVERAL = 4, 16


@dataclass(frozen=True, eq=False)
class RowMixtures:
    """Mixtures for the classes and rows that have several modes.

    Attributes
    ----------
    classes, rows : ndarray of int, shape (n_mixed,)
    mixtures : Mixtures
        Mixtures of n_mixed "classes", one for each pair of class and row.
    """

    classes: np.ndarray
    rows: np.ndarray
    mixtures: Mixtures

    def as_list(self) -> list[np.ndarray]:
        """Return the arrays that are equal in equal objects."""
        return [self.classes, self.rows, *self.mixtures.arrays()]


@dataclass(frozen=True, eq=False)
class PlatePseudoPriors:
    """Pseudo-priors of all classes and rows: normals, and mixtures of them where necessary.

    Attributes
    ----------
    mean : ndarray of shape (n_classes, n_rows, n_latents)
        This and the next three describe the only or heaviest normal of a class and row.
    scale, whiten : ndarray of shape (n_classes, n_rows, n_latents, n_latents)
    log_normalizer, log_evidence : ndarray of shape (n_classes, n_rows)
    troubles : dict of str to int
    mixtures : RowMixtures or None
    """

    mean: np.ndarray
    scale: np.ndarray
    whiten: np.ndarray
    log_normalizer: np.ndarray
    log_evidence: np.ndarray
    troubles: dict[str, int] = field(default_factory=dict)
    mixtures: RowMixtures | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlatePseudoPriors):
            return NotImplemented
        mine, theirs = (
            [*each.as_list(), *(each.mixtures.as_list() if each.mixtures else [])]
            for each in (self, other)
        )
        return (
            self.troubles == other.troubles
            and len(mine) == len(theirs)
            and all(
                np.array_equal(one, two, equal_nan=True)
                for one, two in zip(mine, theirs, strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]

    def as_list(self) -> list[np.ndarray]:
        """Return the arrays in the order in which compiled functions take them."""
        return [self.mean, self.scale, self.whiten, self.log_normalizer]

    def draw_start(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
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
        position = self.mean[index, rows] + moved
        if self.mixtures is not None:
            mixed = self.mixtures
            own = mixed.classes == index[mixed.rows]
            position[mixed.rows[own]] = mixed.mixtures.draw(rng)[own]
        return index, position

    def standardised(self, classes: Any, rows: Any, position: np.ndarray) -> np.ndarray:
        """Standardize positions ``(n, n_latents)`` by the normals of some classes and rows."""
        away = position - self.mean[classes, rows]
        found: np.ndarray = np.einsum("iab,ib->ia", self.whiten[classes, rows], away)
        return found

    def log_excess(self, position: np.ndarray) -> np.ndarray:
        """Return the log-density of the normals minus that of the mixtures.

        Parameters
        ----------
        position : ndarray of shape (n_mixed, n_latents)
            Position in each class and row that has a mixture.

        Returns
        -------
        ndarray of shape (n_mixed,)
        """
        assert self.mixtures is not None
        of = self.mixtures.classes, self.mixtures.rows
        squares = (self.standardised(*of, position) ** 2).sum(axis=1)
        normals = self.log_normalizer[of] - 0.5 * squares
        found: np.ndarray = normals - self.mixtures.mixtures.log_density(position)
        return found


class PlateLaplace:
    """Laplace pseudo-priors of all rows at once, by damped Newton steps.

    Parameters
    ----------
    density : PlateDensity
    tolerance : float
        A search ends when the expected gain of a step, in units of the log-density, is smaller.
    max_iterations : int
        Most iterations of a search.
    n_prior_draws : int
        Most prior draws that searches start from, in every class.

    Notes
    -----
    Each class is searched in all rows at once from the model's initial point and, given a
    generator, from a few draws of its prior, which each chain makes for itself; there are more
    draws if one of these has led some row to another mode. Distinct modes of a row become a
    mixture of normals. Their number cannot be known: if modes of a row are hard to find, usually
    only some chains miss one, and R-hat shows it.

    The search is interpreted: a fit makes a few dozen evaluations, each of all rows at once. The
    rows are independent, so the gradient of the summed density holds all rows' gradients, and
    n_latents more backward passes give all their Hessians: the cost of an iteration is linear in
    the number of rows.
    """

    def __init__(
        self,
        density: PlateDensity,
        *,
        tolerance: float = 1e-3,
        max_iterations: int = 60,
        n_prior_draws: int = _N_DRAWS_OF_SEVERAL,
    ) -> None:
        self.density = density
        self.n_prior_draws = n_prior_draws
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
        # A function, because the initial point may depend on data that are set later.
        self._initial_point = make_initial_point_fn(model=density.model)
        self._prior: PriorDraws | None = None
        # A distribution that cannot be drawn from may raise anything: the model itself is sound.
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
            The chain's generator, whose state is not changed.
        """
        start = self.density.ravel(self._initial_point(0))
        own_rng = None if rng is None else np.random.default_rng(deepcopy(rng).integers(2**63))
        classes = range(self.density.n_classes)
        found = [_distinct(self._ends(j, start, own_rng, others)) for j in classes]
        log_evidence = np.stack([np.logaddexp.reduce(each.log_evidence) for each in found])
        # a class far below a row's best class needs no converged mode
        matters = log_evidence > log_evidence.max(axis=0) - 20.0
        missed = int((~np.stack([each.converged[0] for each in found]) & matters).sum())
        whiten = np.stack([each.whiten[0] for each in found])
        return PlatePseudoPriors(
            np.stack([each.mean[0] for each in found]),
            np.ascontiguousarray(np.linalg.inv(whiten)),
            np.ascontiguousarray(whiten),
            np.stack([each.log_normalizer[0] for each in found]),
            log_evidence,
            {"mode search: not converged": missed} if missed else {},
            _mixtures(found),
        )

    def _ends(
        self,
        j: int,
        start: np.ndarray,
        rng: np.random.Generator | None,
        others: Sequence[np.ndarray],
    ) -> _Ends:
        """Search class j in all rows from the given start, then from prior draws."""
        found = [self._search(j, start, others)]
        if rng is not None:
            for number in range(min(self.n_prior_draws, _N_DRAWS_OF_SEVERAL)):
                if number == _N_DRAWS and not _distinct(_Ends.of(found)).is_mixed.any():
                    break
                found.append(self._search(j, self._drawn(j, start, rng, others), others))
        return _Ends.of(found)

    def _drawn(
        self, j: int, start: np.ndarray, rng: np.random.Generator, others: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Draw starts of all rows in class j from the prior, or around `start` if that fails."""
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
        # a row without density has no curvature either
        known = np.isfinite(curvature).all(axis=(1, 2)) & np.isfinite(log_p)
        curvature = np.where(known[:, None, None], curvature, np.eye(x.shape[1]))
        values, vectors = np.linalg.eigh(curvature)
        largest = np.maximum(values.max(axis=1, keepdims=True), 1e-8)
        definite = values.min(axis=1) > 1e-10 * largest[:, 0]
        # a curvature that is not positive definite is made so: any normal density will do
        values = np.maximum(np.abs(values), 1e-6 * largest)
        bent = np.einsum("iab,ib,icb->iac", vectors, values, vectors)
        precision = np.where(definite[:, None, None], curvature, bent)
        return x, precision, log_p, converged & definite


@dataclass(frozen=True, eq=False)
class _Ends:
    """Ends of searches, or distinct modes, of one class in all rows; the first axis counts them."""

    mean: np.ndarray  # (n, n_rows, n_latents)
    precision: np.ndarray  # (n, n_rows, n_latents, n_latents), like the next
    whiten: np.ndarray
    log_normalizer: np.ndarray  # (n, n_rows), like the next two
    log_evidence: np.ndarray
    converged: np.ndarray

    @classmethod
    def of(cls, searches: Sequence[tuple[np.ndarray, ...]]) -> _Ends:
        """Make an instance from the results of searches."""
        mean, precision, log_p, converged = (np.stack(part) for part in zip(*searches, strict=True))
        whiten = np.swapaxes(np.linalg.cholesky(precision), -1, -2)
        half_log_det = np.log(np.diagonal(whiten, axis1=-2, axis2=-1)).sum(axis=-1)
        log_normalizer = half_log_det - 0.5 * mean.shape[-1] * np.log(2 * np.pi)
        log_evidence = np.where(np.isfinite(log_p), log_p - log_normalizer, -np.inf)
        return cls(mean, precision, whiten, log_normalizer, log_evidence, converged)

    @property
    def is_mixed(self) -> np.ndarray:
        """Whether each row has several distinct modes, ``(n_rows,)``."""
        found: np.ndarray = np.isfinite(self.log_evidence).sum(axis=0) > 1
        return found


def _distinct(ends: _Ends) -> _Ends:
    """Return the distinct modes of each row, in order of decreasing evidence.

    Places beyond a row's last mode have evidence minus infinity. Two modes count as one if they are
    less than a standard deviation apart under either curvature; the first of them is kept.
    """
    n_ends = len(ends.mean)
    kept = ends.converged & np.isfinite(ends.log_evidence)
    for one in range(n_ends):
        for two in range(one + 1, n_ends):
            away = ends.mean[two] - ends.mean[one]
            squares = [
                np.einsum("ia,iab,ib->i", away, ends.precision[place], away) for place in (one, two)
            ]
            kept[two] &= ~(kept[one] & (np.min(squares, axis=0) < 1.0))
    # if no search has found a mode, the end of the first is better than nothing
    kept[0] |= ~kept.any(axis=0)
    log_evidence = np.where(kept, ends.log_evidence, -np.inf)
    log_evidence[log_evidence < log_evidence.max(axis=0) - MAX_GAP] = -np.inf
    order = np.argsort(-log_evidence, axis=0, kind="stable")[:MAX_MODES]
    rows = np.arange(order.shape[1])
    return _Ends(
        ends.mean[order, rows],
        ends.precision[order, rows],
        ends.whiten[order, rows],
        ends.log_normalizer[order, rows],
        log_evidence[order, rows],
        ends.converged[order, rows],
    )


def _mixtures(found: Sequence[_Ends]) -> RowMixtures | None:
    """Return the mixtures of the classes and rows that have several modes, None if there are none.

    Shares are computed as in `PseudoPriors.from_modes`.
    """
    of = [(j, i) for j, each in enumerate(found) for i in np.flatnonzero(each.is_mixed)]
    if not of:
        return None
    n = max(int(np.isfinite(each.log_evidence).sum(axis=0).max()) for each in found)
    log_share = np.full((len(of), n), -np.inf)
    means, precisions = [], []
    for place, (j, i) in enumerate(of):
        evidence = found[j].log_evidence[:, i]
        evidence = evidence[np.isfinite(evidence)]
        n_own = len(evidence)
        believed = np.exp(evidence - np.logaddexp.reduce(evidence))
        log_share[place, :n_own] = np.log(0.9 * believed + 0.1 / n_own)
        padded = [*range(n_own), *[0] * (n - n_own)]
        means.append(found[j].mean[padded, i])
        precisions.append(found[j].precision[padded, i])
    normals = PseudoPriors.from_precision(np.concatenate(means), np.concatenate(precisions))
    classes, rows = np.array(of).T
    return RowMixtures(classes, rows, Mixtures(log_share, normals))


def _newton(
    curvature: np.ndarray, gradient: np.ndarray, damping: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return damped steps of all rows, their expected gains, and whether they were computed."""
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
