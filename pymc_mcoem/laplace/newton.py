"""Damped Newton steps toward a mode of a log-density.

A step δ solves (P + μ M) δ = g for gradient g and curvature P, and M measures its length. μ follows
the ratio of actual to expected gain of a step, and grows at once where P + μ M is not positive
definite.

All searches take a step before any takes the next, so that NumPy can compute their densities
together. The loop is in Python: an iteration costs some twenty microseconds besides the evaluation,
and numba took longer to compile the loop than a first image should wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.lapack import dposv

__all__ = ["MOST_DAMPING", "Searches", "iterate", "solve"]

#: Damping beyond which no step is tried.
MOST_DAMPING = 1e12


@dataclass
class Searches:
    """Searches under way, one row each.

    Attributes
    ----------
    classes : ndarray of int of shape (n,)
    position, gradient : ndarray of shape (n, n_latents)
    damping, growth, log_density : ndarray of shape (n,)
        `growth` is the factor by which damping grows if a step fails.
    matrix, lengths : ndarray of shape (n, n_latents, n_latents)
        Curvature and metric of the next step.
    temperature : ndarray of shape (n,)
        Temperature of the stored evaluation; nan before the first one.
    done : ndarray of bool of shape (n,)
    n_iterations : ndarray of int of shape (n,)
    """

    classes: np.ndarray
    position: np.ndarray
    damping: np.ndarray
    growth: np.ndarray
    temperature: np.ndarray
    log_density: np.ndarray
    gradient: np.ndarray
    matrix: np.ndarray
    lengths: np.ndarray
    done: np.ndarray
    n_iterations: np.ndarray
    first_damping: float

    @classmethod
    def begin(cls, classes: np.ndarray, starts: np.ndarray, damping: float) -> Searches:
        """Return searches from starts ``(n_classes, n_starts, n_latents)``, class by class."""
        rows = np.repeat(classes, starts.shape[1])
        n, size = len(rows), starts.shape[2]
        return cls(
            rows,
            starts.reshape(n, size).copy(),
            np.full(n, damping),
            np.full(n, 2.0),
            np.full(n, np.nan),
            np.full(n, -np.inf),
            np.zeros((n, size)),
            np.tile(np.eye(size), (n, 1, 1)),
            np.tile(np.eye(size), (n, 1, 1)),
            np.zeros(n, dtype=bool),
            np.zeros(n, dtype=int),
            damping,
        )

    def heat(self, rows: np.ndarray, temperature: float, measured_by_prior: bool) -> None:
        """Continue searches at another temperature, from where they are.

        A prior does not get wider with the noise, so the multiple of its precision falls as the
        temperature rises; a curvature falls by itself.
        """
        is_known = np.isfinite(self.log_density[rows])
        ratio = self.temperature[rows] / temperature if measured_by_prior else 1.0
        # also without density, where the damping reached so far says nothing
        self.damping[rows] = np.where(is_known, self.damping[rows] * ratio, self.first_damping)
        self.temperature[rows], self.log_density[rows] = temperature, -np.inf
        self.gradient[rows], self.matrix[rows] = 0.0, np.eye(self.matrix.shape[1])
        self.done[rows] = False

    def know(
        self,
        rows: Any,
        log_density: np.ndarray,
        gradient: np.ndarray,
        matrix: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        """Store an evaluation at the positions of searches, minus infinity for no density."""
        self.log_density[rows] = np.where(np.isfinite(log_density), log_density, -np.inf)
        self.gradient[rows], self.matrix[rows], self.lengths[rows] = gradient, matrix, lengths

    def bends(self, rows: Any) -> np.ndarray:
        """Return the diagonals of the curvatures of some searches, (n, n_latents)."""
        found: np.ndarray = np.diagonal(self.matrix, axis1=1, axis2=2)[rows]
        return found

    def within(self, rows: set[int], margin: float, trust: float) -> set[int]:
        """Return the rows that may still come within a margin of the highest.

        A row further behind may if `trust` times the expected gain of its next Newton step
        suffices.
        """
        candidates = np.array(sorted(rows), dtype=np.int64)
        height = np.where(np.isfinite(self.log_density), self.log_density, -np.inf)[candidates]
        least = height.max(initial=-np.inf) - margin
        behind = height < least
        if trust > 0 and behind.any():
            height[behind] += trust * self._promised(candidates[behind])
        return set(candidates[height >= least].tolist())

    def _promised(self, rows: np.ndarray) -> np.ndarray:
        """Return the expected gains of next Newton steps, with a ridge where needed."""
        gradient, matrix = self.gradient[rows], self.matrix[rows]
        known = np.isfinite(gradient).all(axis=1) & np.isfinite(matrix).all(axis=(1, 2))
        gradient, matrix = gradient[known], matrix[known]
        size = np.abs(np.diagonal(matrix, axis1=1, axis2=2)).max(axis=1, initial=1e-8)
        ridge = size[:, None, None] * np.eye(matrix.shape[1])
        none, every = np.zeros(len(size)), np.arange(len(size))
        step, used, _ = solve(matrix, ridge, every, gradient, none, 1e-2, 10.0)
        found = np.zeros(len(rows))
        found[known] = np.where(used < np.inf, 0.5 * (gradient * step).sum(axis=1), 0.0)
        return found

    def ahead(self, rows: np.ndarray, alive: set[int]) -> list[int]:
        """Return the row with the highest density of each class, among those alive if any is.

        Otherwise it is among those that were searched at temperature 1.

        Parameters
        ----------
        rows : ndarray of int of shape (n_classes, n_starts)
        """
        height = np.where(np.isnan(self.log_density), -np.inf, self.log_density)
        found = []
        for own in rows.tolist():
            living = [row for row in own if row in alive]
            # otherwise those at temperature 1, if any got so far
            comparable = living or [row for row in own if self.temperature[row] == 1.0]
            found.append(max(comparable or own[:1], key=lambda row: height[row]))
        return found


def iterate(
    evaluate: Callable[..., tuple[np.ndarray, ...]],
    searches: Searches,
    rows: np.ndarray,
    settings: np.ndarray,
    limit: int,
    *,
    together: bool = False,
) -> None:
    """Continue searches by Newton steps, all of them a step at a time.

    Parameters
    ----------
    evaluate : callable
        Takes classes (n,), positions (n, n_latents), a guess of the diagonals of P there, and
        `settings`; returns log-densities (n,), gradients, and P and M, (n, n_latents, n_latents).
    searches : Searches
        Changed in place.
    rows : ndarray of int
        Searches to continue, whose density is evaluated already; those that are done stay.
    settings : ndarray of float
        Tolerance, temperature, share of the residuals; then `least`, `raising` and `free` of
        `Damping`.
    limit : int
        Largest number of evaluations of each.
    together : bool
        Solve for the steps of all searches together, which is faster for hundreds of searches with
        few latents each.
    """
    tolerance, _, _, least, raising, free = settings.tolist()
    for _ in range(limit):
        rows = rows[~searches.done[rows]]
        gradient, damping = searches.gradient[rows], searches.damping[rows]
        step, used, length = solve(
            searches.matrix,
            searches.lengths,
            rows,
            gradient,
            damping,
            least,
            raising,
            together=together,
        )
        if not (helps := used < np.inf).all():
            rows, step, used, gradient = rows[helps], step[helps], used[helps], gradient[helps]
            length = length[helps]
        if not rows.size:
            return
        candidate, log_p = searches.position[rows] + step, searches.log_density[rows]
        guess = searches.bends(rows)
        value, *found = evaluate(searches.classes[rows], candidate, guess, settings)
        searches.n_iterations[rows] += 1
        gain = 0.5 * (gradient * step).sum(axis=1)
        # δᵀg − δᵀPδ / 2, of (P + μM) δ = g
        expected = gain + 0.5 * used * length
        gained = np.where(np.isfinite(value), value - log_p, -np.inf)
        # an expected gain below the rounding of the density is taken as made
        rounding = 1e-14 * (1.0 + np.abs(log_p))
        ratio = np.ones(len(rows))
        np.divide(gained, expected, out=ratio, where=expected > rounding)
        # The gain of a damped step is too small a measure: only a step that damping hardly shortens
        # may end the search. A zero gradient says nothing, because a saddle has one too.
        hardly = (used * length <= 0.2 * gain) & (gain > 0.0)
        searches.done[rows] = (gain < tolerance) & (hardly | (used < free))
        # where the density is nearly quadratic along a nearly undamped step, damping only delays
        lowest = np.where((np.abs(ratio - 1.0) < 0.05) & (used < free), 0.0, 0.2)
        lower = used * np.maximum(lowest, 1.0 - (2.0 * ratio.clip(-1e3, 1e3) - 1.0) ** 3)
        taken = gained >= -rounding
        growth = searches.growth[rows]
        searches.damping[rows] = np.where(
            taken, np.where(lower < 1e-6, 0.0, lower), np.maximum(used, 1e-3) * growth
        )
        searches.growth[rows] = np.where(taken, 2.0, 2.0 * growth)
        own = slice(None) if taken.all() else taken
        searches.position[rows[own]] = candidate[own]
        searches.know(rows[own], value[own], *(each[own] for each in found))


def solve(
    matrices: np.ndarray,
    lengths: np.ndarray,
    rows: np.ndarray,
    gradient: np.ndarray,
    damping: np.ndarray,
    least: float,
    raising: float,
    *,
    together: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return damped steps δ of some searches, the damping that each took, and δᵀMδ; see `iterate`.

    Damping is infinite where none helps. All matrices (n, n_latents, n_latents), of which `rows`
    are those of the searches, are symmetric.
    """
    step, used = np.zeros_like(gradient), np.where(damping <= MOST_DAMPING, damping, np.inf)
    left = np.flatnonzero(used < np.inf)
    damped = np.empty(matrices.shape[1:])
    while left.size:
        if together:
            own = rows[left]
            shifted = matrices[own] + used[left, None, None] * lengths[own]
            step[left] = _solved_together(shifted, gradient[left])
        else:
            # one after another, in place: copies of all matrices take as long as the solution
            for place, row in zip(left.tolist(), rows[left].tolist(), strict=True):
                np.multiply(lengths[row], used[place], out=damped)
                damped += matrices[row]
                # the transpose is the same matrix in the order that LAPACK takes without a copy
                _, found, failed = dposv(damped.T, gradient[place], lower=True, overwrite_a=True)
                step[place] = np.nan if failed else found
        left = left[~np.isfinite(step[left]).all(axis=1)]
        used[left] = np.maximum(raising * used[left], least)
        used[used > MOST_DAMPING] = np.inf
        left = left[used[left] < np.inf]
    if together:
        return step, used, np.einsum("na,nab,nb->n", step, lengths[rows], step)
    pairs = zip(rows.tolist(), step, strict=True)
    return step, used, np.array([each @ (lengths[row] @ each) for row, each in pairs])


def _solved_together(matrices: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return solutions ``(n, n_latents)``, nan where a matrix is not positive definite."""
    known = np.isfinite(matrices).all(axis=(1, 2))
    identity = np.eye(matrices.shape[1])
    helps = np.linalg.eigvalsh(np.where(known[:, None, None], matrices, -identity))[:, 0] > 0
    found = np.full_like(gradient, np.nan)
    found[helps] = np.linalg.solve(matrices[helps], gradient[helps][..., None])[..., 0]
    return found
