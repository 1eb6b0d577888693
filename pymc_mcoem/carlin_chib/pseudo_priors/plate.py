"""Pseudo-priors of a plate, found for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn

from pymc_mcoem.carlin_chib.pseudo_priors.base import Mixtures, PseudoPriors
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.density.evaluations import by_diagonal
from pymc_mcoem.density.prior_draws import PriorDraws
from pymc_mcoem.interrupts import require_own_fault
from pymc_mcoem.laplace.found_modes import MAX_GAP, MAX_MODES
from pymc_mcoem.laplace.modes import positive_definite
from pymc_mcoem.laplace.newton import Searches, iterate
from pymc_mcoem.laplace.search import BY_CURVATURE

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

    @property
    def at(self) -> tuple[np.ndarray, np.ndarray]:
        """Index of these classes and rows in arrays of all of them."""
        return self.classes, self.rows

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that are equal in equal objects."""
        return [self.classes, self.rows, *self.mixtures.arrays()]


@dataclass(frozen=True, eq=False)
class PlatePseudoPriors(PseudoPriors):
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

    mixtures: RowMixtures | None = None  # type: ignore[assignment]

    def draw_start(self, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
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

    @property
    def is_mixed(self) -> np.ndarray:
        """Whether each class of each row has several components, ``(n_classes, n_rows)``."""
        found = np.zeros(self.mean.shape[:2], dtype=bool)
        if self.mixtures is not None:
            found[self.mixtures.at] = True
        return found

    def standardized(self, at: tuple[Any, ...], position: np.ndarray) -> np.ndarray:
        """Return positions ``(n, n_latents)`` in units of the normals of n classes and rows."""
        away = position - self.mean[at]
        found: np.ndarray = np.einsum("...ab,...b->...a", self.whiten[at], away)
        return found

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw from the pseudo-prior of every class and row, ``(n_classes, n_rows, n_latents)``."""
        noise = rng.standard_normal(self.mean.shape)
        drawn: np.ndarray = self.mean + np.einsum("jiab,jib->jia", self.scale, noise)
        if self.mixtures is not None:
            drawn[self.mixtures.at] = self.mixtures.mixtures.draw(rng)
        return drawn

    def noise_of(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `PseudoPriors.noise_of`, with an axis for the rows after that of the classes."""
        log_excess = np.zeros(positions.shape[:-1])
        if self.mixtures is not None:
            at = (..., *self.mixtures.at)
            log_excess[at] = self.log_excess(positions[(*at, slice(None))])
        return self.standardized((...,), positions), log_excess

    def log_excess(self, position: np.ndarray) -> np.ndarray:
        """Return the log-density of the normals minus that of the mixtures.

        Parameters
        ----------
        position : ndarray of shape (..., n_mixed, n_latents)
            Position in each class and row that has a mixture.

        Returns
        -------
        ndarray of shape (..., n_mixed)
        """
        assert self.mixtures is not None
        at = self.mixtures.at
        squares = (self.standardized(at, position) ** 2).sum(axis=-1)
        normals = self.log_normalizer[at] - 0.5 * squares
        found: np.ndarray = normals - self.mixtures.mixtures.log_density(position)
        return found


class PlateLaplace:
    """Laplace pseudo-priors of all rows, whose searches take their steps together.

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
    steps are those of all mode searches (`pymc_mcoem.laplace.newton`), with exact Hessians; the
    cost of an iteration is linear in the number of rows.
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
        k = pt.scalar("class_index", dtype="int64")
        x = pt.tensor("position", dtype="float64", shape=density.position_shape)
        derivatives = [density.gradient(k, x), density.negative_hessian(k, x)]
        self._function = compile_with_data(
            density, [k, x], [density.log_density(k, x), *derivatives], interpreted_mode()
        )
        # A function, because the initial point may depend on data that are set later.
        self._initial_point = make_initial_point_fn(model=density.model)
        self._prior: PriorDraws | None = None
        # A distribution that cannot be drawn from may raise anything: the model itself is sound.
        try:
            self._prior = PriorDraws(density, interpreted_mode(in_place=True))
        except Exception as error:
            require_own_fault(error)

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
            try:
                self._prior.reseed(rng)
                (drawn,) = self._prior(np.full(len(start), j), others, 1)
            except Exception as error:
                require_own_fault(error)
        return np.where(np.isfinite(drawn).all(axis=1, keepdims=True), drawn, start)

    def _search(
        self, j: int, start: np.ndarray, others: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        """Return mean, precision, log-density and convergence of every row in class j."""
        rows = np.arange(len(start))

        def evaluate(asked: np.ndarray, positions: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
            x = start.copy()
            x[asked] = positions
            # a density may overflow somewhere
            with np.errstate(all="ignore"):
                found = self._function(np.asarray(j), x, *others)
            log_p, gradient, curvature = (np.asarray(each)[asked] for each in found)
            return log_p, gradient, curvature, by_diagonal(curvature)

        # Each row is a search, whose "class" is its number.
        searches = Searches.begin(rows, start[:, None], BY_CURVATURE.first)
        searches.know(rows, *evaluate(rows, start))
        known = rows[searches.log_density > -np.inf]
        settings = BY_CURVATURE.settings(self.tolerance)
        iterate(evaluate, searches, known, settings, self.max_iterations, together=True)
        curvature = searches.matrix
        is_known = np.isfinite(curvature).all(axis=(1, 2))
        safe = np.where(is_known[:, None, None], curvature, 0.0)
        values = np.linalg.eigvalsh(safe)
        definite = values[:, 0] > 1e-10 * np.maximum(values[:, -1], 1e-8)
        for row in np.flatnonzero(~definite):
            # any normal density will do
            curvature[row] = positive_definite(curvature[row]).matrix
        return searches.position, curvature, searches.log_density, searches.done & definite


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
    distinct = ends.converged & np.isfinite(ends.log_evidence)
    for one in range(n_ends):
        for two in range(one + 1, n_ends):
            away = ends.mean[two] - ends.mean[one]
            squares = [
                np.einsum("ia,iab,ib->i", away, ends.precision[place], away) for place in (one, two)
            ]
            distinct[two] &= ~(distinct[one] & (np.min(squares, axis=0) < 1.0))
    # if no search has found a mode, the end of the first is better than nothing
    distinct[0] |= ~distinct.any(axis=0)
    log_evidence = np.where(distinct, ends.log_evidence, -np.inf)
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
