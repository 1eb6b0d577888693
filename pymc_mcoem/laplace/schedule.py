"""Which searches for modes run how long: cooling, the race of classes, and searches under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

__all__ = ["Cooling", "Race", "Searches"]


@dataclass(frozen=True)
class Cooling:
    """Searches that begin with more noise than there is, under which densities have fewer modes.

    At each temperature, the hottest first, searches run `n_iterations` with the variance of the
    observation's noise multiplied by it; then they go on at 1. Only for models that name that
    variance (`Family.noise_variance`), as template mixtures do. From several starting points only
    the first cools, for under much noise all would end in one point; the others begin as they are.

    Parameters
    ----------
    temperatures : tuple of float
        Above 1, falling.
    n_iterations : int
        At each of them.

    Raises
    ------
    ValueError
        If there is no temperature, they do not fall or are not above 1, or `n_iterations` is not
        positive.
    """

    temperatures: tuple[float, ...] = (10.0,)
    n_iterations: int = 3

    def __post_init__(self) -> None:
        falling = all(a > b for a, b in zip(self.temperatures, self.temperatures[1:], strict=False))
        if not self.temperatures or not falling or not self.temperatures[-1] > 1:
            raise ValueError(
                f"temperatures: got {self.temperatures}; give at least one, above 1 and falling."
            )
        if self.n_iterations < 1:
            raise ValueError(f"n_iterations: got {self.n_iterations}; give at least 1.")


@dataclass(frozen=True)
class Race:
    """How classes and starting points compete before modes are sought in earnest.

    Every starting point of every class runs `n_iterations`, and the best start of a class goes on.
    Classes go on only while their log-density is within the first of the `margins` of the best
    class's, or would be with `trust` times what the next Newton step promises: a search that is
    still far from its mode is not judged by where it is. Then the next round is run, with the next
    margin. Searches that cool are held to the first margin at each temperature. A class that is
    left behind keeps its unfinished point: as a pseudo-prior that costs mixing where the class
    deserved better, never correctness (``benchmarks/mode_race.py``).

    Parameters
    ----------
    n_iterations : int
        Of each round.
    margins : tuple of float
        In units of the log-density, one for each round.
    trust : float
        In promises; 0 judges by the log-density alone, which is quicker and loses more classes.

    Raises
    ------
    ValueError
        If `margins` is no tuple, there is none, or a number is not positive; `trust` may be 0.

    Examples
    --------
    A single round, after which all classes less than 100 behind go on:

    >>> Race(n_iterations=8, margins=(100.0,))
    Race(n_iterations=8, margins=(100.0,), trust=2.0)
    """

    n_iterations: int = 3
    margins: tuple[float, ...] = (100.0, 50.0)
    trust: float = 2.0

    def __post_init__(self) -> None:
        if self.n_iterations < 1:
            raise ValueError(f"n_iterations: got {self.n_iterations}; give at least 1.")
        if isinstance(self.margins, float | int):
            raise ValueError(f"margins: got {self.margins}; give a tuple, one for each round.")
        object.__setattr__(self, "margins", tuple(self.margins))
        if not self.margins or not all(margin > 0 for margin in self.margins):
            raise ValueError(
                f"margins: got {self.margins}; give at least one, positive or infinity."
            )
        if not self.trust >= 0:
            raise ValueError(f"trust: got {self.trust}; give a number, or 0 for none.")


@dataclass
class Searches:
    """Searches under way, one row each.

    Attributes
    ----------
    classes : ndarray of int of shape (n,)
    position, gradient : ndarray of shape (n, n_latents)
    damping, growth, log_density : ndarray of shape (n,)
        `growth` is by how much damping grows where a step fails.
    matrix, lengths : ndarray of shape (n, n_latents, n_latents)
        The curvature that the next step is made with, and what measures how long it is.
    temperature : ndarray of shape (n,)
        That what is known of the density was evaluated at; nan before it was.
    done : ndarray of bool of shape (n,)
    n_iterations : ndarray of int of shape (n,)
    first_damping : float
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
        """Let searches go on at another temperature, where they are.

        A prior does not get wider with the noise, so steps of the same trust take a multiple of its
        precision that falls as the temperature rises; a curvature falls with it by itself.
        """
        is_known = np.isfinite(self.log_density[rows])
        ratio = self.temperature[rows] / temperature if measured_by_prior else 1.0
        # also where nothing was found: what damping had grown to says nothing
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
        """Write down what an evaluation found where searches are, minus infinity for no density."""
        self.log_density[rows] = np.where(np.isfinite(log_density), log_density, -np.inf)
        self.gradient[rows], self.matrix[rows], self.lengths[rows] = gradient, matrix, lengths

    def within(self, rows: set[int], margin: float, trust: float) -> set[int]:
        """Return those rows that may still come within a margin of the highest of them.

        One that is further behind may, if `trust` times what its next Newton step promises would
        do.
        """
        height = np.where(np.isfinite(self.log_density), self.log_density, -np.inf)
        least = max((height[row] for row in rows), default=-np.inf) - margin
        return {
            row
            for row in rows
            if height[row] >= least
            or (trust > 0 and height[row] + trust * self._promised(row) >= least)
        }

    def _promised(self, row: int) -> float:
        """Return what the next Newton step promises, with a ridge where it needs one."""
        gradient, matrix = self.gradient[row], self.matrix[row]
        if not (np.isfinite(gradient).all() and np.isfinite(matrix).all()):
            return 0.0
        diagonal = np.diagonal(matrix)
        size = max(float(np.abs(diagonal).max(initial=0.0)), 1e-8)
        for ridge in (0.0, *(size * 10.0**power for power in range(-2, 3))):
            damped = matrix.copy()
            damped.flat[:: len(matrix) + 1] = diagonal + ridge
            # the transpose is the same matrix in the order that LAPACK takes without a copy
            factor, failed = dpotrf(damped.T, lower=True, clean=False, overwrite_a=True)
            if not failed:
                step, _ = dpotrs(factor, gradient, lower=True)
                return 0.5 * float(gradient @ step)
        return 0.0

    def ahead(self, rows: np.ndarray, alive: set[int]) -> list[int]:
        """Return the row with the highest density of each class, of those alive if any is.

        Else of those that were searched at temperature 1.

        Parameters
        ----------
        rows : ndarray of int of shape (n_classes, n_starts)
        alive : set of int
        """
        height = np.where(np.isnan(self.log_density), -np.inf, self.log_density)
        found = []
        for own in rows.tolist():
            living = [row for row in own if row in alive]
            # else of those whose density is that of the others, if any got so far
            comparable = living or [row for row in own if self.temperature[row] == 1.0]
            found.append(max(comparable or own[:1], key=lambda row: height[row]))
        return found
