"""Pseudo-priors of a plate, found for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn
from scipy.special import softmax

from pymc_mcoem.carlin_chib.pseudo_priors.base import Mixtures, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.plate_modes import RowModes, distinct_modes
from pymc_mcoem.carlin_chib.pseudo_priors.plate_valleys import (
    PlateHeights,
    affordable_draws,
    is_beyond_valley,
)
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.density.evaluations import by_diagonal
from pymc_mcoem.density.prior_draws import PriorDraws
from pymc_mcoem.interrupts import require_own_fault
from pymc_mcoem.laplace.modes import positive_definite
from pymc_mcoem.laplace.newton import Searches, iterate
from pymc_mcoem.laplace.prior_bounds import bounded_rows
from pymc_mcoem.laplace.search import BY_CURVATURE

if TYPE_CHECKING:
    from pymc_mcoem.density.plate import PlateDensity

__all__ = ["PlateLaplace", "PlatePseudoPriors"]

#: Searches from prior draws in every class, each in all rows at once; the second number applies if
#: one of the first has led some row to another mode.
_N_DRAWS, _N_DRAWS_OF_SEVERAL = 4, 16

#: Largest number of searches in a class from draws behind valleys, each in all rows at once, and of
#: consecutive ones that lead no row to a mode that matters.
_N_BEHIND_VALLEYS, _N_FRUITLESS = 12, 2

#: Draws of the prior whose density is evaluated.
_N_LOOKED_AT = 128

#: A class takes over another class's mode if its density there is the first number of nats above
#: what its pseudo-prior expects, unless the evidence there is the second below the class's.
_UNCOVERED, _SMALL = 5.0, 7.0

#: A search from behind a valley was useful if it adds more to a row's log evidence.
_MORE = 1e-3


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
    tolerance : float
        A search ends when the expected gain of a step, in units of the log-density, is smaller.
    max_iterations : int
        Most iterations of a search.
    n_prior_draws : int
        Largest number of prior draws that are evaluated in every class.

    Notes
    -----
    Each class is searched in all rows at once from the model's initial point and, given a
    generator, from a few draws of its prior, which each chain makes for itself; there are more
    draws if one of these has led some row to another mode. From many further draws, the density is
    evaluated along the lines to the modes found. Searches start from the draws from which it falls
    before it rises, the highest of each row first. Distinct modes of a row become a mixture of
    normals. Their number cannot be known: if modes of a row are hard to find, usually only some
    chains miss one, and R-hat shows it.

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
        n_prior_draws: int = _N_LOOKED_AT,
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
        self._heights = PlateHeights(density)
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
        rng : numpy.random.Generator or None
            The chain's generator, whose state is not changed.
        """
        start = self.density.ravel(self._initial_point(0))
        own_rng = None if rng is None else np.random.default_rng(deepcopy(rng).integers(2**63))
        classes = range(self.density.n_classes)
        found, missed_share = [], np.zeros((len(classes), len(start)))
        for j in classes:
            ends = self._ends(j, start, own_rng, others)
            if own_rng is not None and self._prior is not None and self.n_prior_draws:
                n_draws = affordable_draws(start.shape, self.n_prior_draws)
                draws = self._drawn(j, start, own_rng, others, n_draws)
                missed_share[j] = self._add_behind_valleys(ends, j, draws, others)
                precision = bounded_rows(np.stack([each[1] for each in ends]), draws)
                ends = [
                    (mean, own, *more)
                    for (mean, _, *more), own in zip(ends, precision, strict=True)
                ]
            found.append(distinct_modes(RowModes.of(ends)))
        found = self._with_modes_of_others(found, others)
        log_evidence = np.stack([each.total for each in found])
        # a class far below a row's best class needs no converged mode
        matters = log_evidence > log_evidence.max(axis=0) - 20.0
        missed = int((~np.stack([each.converged[0] for each in found]) & matters).sum())
        whiten = np.stack([each.whiten[0] for each in found])
        # only what has weight in its own row matters
        with np.errstate(invalid="ignore"):  # of a row without density
            weight = np.nan_to_num(softmax(log_evidence, axis=0))
        return PlatePseudoPriors(
            np.stack([each.mean[0] for each in found]),
            np.ascontiguousarray(np.linalg.inv(whiten)),
            np.ascontiguousarray(whiten),
            np.stack([each.log_normalizer[0] for each in found]),
            log_evidence,
            {"mode search: not converged": missed} if missed else {},
            _mixtures(found),
            missed_share * weight,
        )

    def _ends(
        self,
        j: int,
        start: np.ndarray,
        rng: np.random.Generator | None,
        others: Sequence[np.ndarray],
    ) -> list[tuple[np.ndarray, ...]]:
        """Search class j in all rows from the given start, then from prior draws."""
        found = [self._search(j, start, others)]
        if rng is not None:
            for number in range(min(self.n_prior_draws, _N_DRAWS_OF_SEVERAL)):
                if number == _N_DRAWS and not distinct_modes(RowModes.of(found)).is_mixed.any():
                    break
                (drawn,) = self._drawn(j, start, rng, others, 1)
                found.append(self._search(j, drawn, others))
        return found

    def _add_behind_valleys(
        self,
        ends: list[tuple[np.ndarray, ...]],
        j: int,
        draws: np.ndarray,
        others: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Add ends of searches from draws that valleys separate from the modes found in their rows.

        Returns
        -------
        ndarray of shape (n_rows,)
            Share of a row's evidence in missed modes, if each remaining draw would add as much as
            the last searches did.
        """
        n_rows = draws.shape[1]
        at_draws = self._heights(j, draws, others)
        rows, apart = np.arange(n_rows), np.isfinite(at_draws)
        known = distinct_modes(RowModes.of(ends))
        tops = list(known.mean[: known.n_modes.max()])
        n_fruitless, growth = 0, np.zeros(n_rows)
        for number in range(_N_BEHIND_VALLEYS + 1):
            for top in tops:
                apart &= is_beyond_valley(self._heights, j, draws, at_draws, top, others)
            is_left = apart.any(axis=0)
            if not is_left.any() or n_fruitless == _N_FRUITLESS:
                return np.zeros(n_rows)
            if number == _N_BEHIND_VALLEYS:
                break
            highest = np.where(apart, at_draws, -np.inf).argmax(axis=0)
            begin = np.where(is_left[:, None], draws[highest, rows], known.mean[0])
            ends.append(self._search(j, begin, others))
            before, known = known, distinct_modes(RowModes.of(ends))
            more = known.n_modes > before.n_modes
            with np.errstate(invalid="ignore"):  # of a row without density
                more |= known.total > before.total + _MORE  # a mode may displace others
            n_fruitless = 0 if more.any() else n_fruitless + 1
            with np.errstate(invalid="ignore"):  # of a row without density
                added = np.nan_to_num(-np.expm1(np.minimum(before.total - known.total, 0.0)))
            growth = np.maximum(added, 0.5 * growth)
            # A draw on the same hill as an earlier start is not new, whatever that search found.
            tops = [ends[-1][0], begin]
        odds = growth * apart.sum(axis=0)
        missed_share: np.ndarray = odds / (1.0 + odds)
        return missed_share

    def _with_modes_of_others(
        self, found: list[RowModes], others: Sequence[np.ndarray]
    ) -> list[RowModes]:
        """Return the modes of each class, with those of other classes that they do not cover.

        All classes of a row may have a hill near the data, which the search misses in some:
        Newton's steps do not end at the tip of a cusp, and tails of a prior bend upward.
        """
        first = list(found)
        for j, other in permutations(range(len(found)), 2):
            top = first[other].mean[0]
            here = self._heights(j, top[None], others)[0]
            with np.errstate(invalid="ignore"):  # of a row without density
                evidence = here - first[other].log_normalizer[0]
                covered = here - found[j].log_density(top) < found[j].total + _UNCOVERED
                small = evidence < found[j].total - _SMALL
            evidence = np.where(covered | small | ~np.isfinite(evidence), -np.inf, evidence)
            if np.isfinite(evidence).any():
                found[j] = found[j].with_mode(first[other], evidence)
        return found

    def _drawn(
        self,
        j: int,
        start: np.ndarray,
        rng: np.random.Generator,
        others: Sequence[np.ndarray],
        n_draws: int,
    ) -> np.ndarray:
        """Draw starts of all rows in class j from the prior, or around `start` if that fails."""
        drawn = start + rng.standard_cauchy((n_draws, *start.shape))
        if self._prior is not None:
            try:
                self._prior.reseed(rng)
                drawn = self._prior(np.full(len(start), j), others, n_draws)
            except Exception as error:
                require_own_fault(error)
        return np.where(np.isfinite(drawn).all(axis=2, keepdims=True), drawn, start)

    def _search(
        self, j: int, start: np.ndarray, others: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        """Return mean, precision, log-density and convergence of every row in class j."""
        rows = np.arange(len(start))

        def evaluate(places: np.ndarray, positions: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
            x = start.copy()
            x[places] = positions
            # a density may overflow somewhere
            with np.errstate(all="ignore"):
                found = self._function(np.asarray(j), x, *others)
            log_p, gradient, curvature = (np.asarray(each)[places] for each in found)
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


def _mixtures(found: Sequence[RowModes]) -> RowMixtures | None:
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
