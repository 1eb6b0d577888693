"""Schedules of mode searches: cooling, and the race of classes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cooling", "Race"]


@dataclass(frozen=True)
class Cooling:
    """Cooling of mode searches: they begin with more noise, under which densities have fewer modes.

    At each temperature, the hottest first, searches run `n_iterations` with the variance of the
    observation's noise multiplied by it; then they go on at 1. Only for models that name that
    variance (`LatentGeometry.noise_variance`), as template mixtures do. From several starting
    points only the first cools, because under much noise all would end in one point; the others
    begin at 1.

    Parameters
    ----------
    temperatures : tuple of float
        Temperatures above 1, falling.
    n_iterations : int
        Number of iterations at each of them.

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
    """Race of mode searches: short rounds, after which those far behind the best stop.

    Every starting point of every class runs `n_iterations`, and the best start of a class goes on.
    Classes go on only while their log-density is within the first of the `margins` of the best
    class's, or would be with `trust` times the expected gain of the next Newton step, so that a
    search far from its mode is not stopped for its present density. Then the next round is run,
    with the next margin. The first margin also applies at each temperature of cooling. A class that
    is stopped keeps its unfinished point: as a pseudo-prior that may cost mixing, never correctness
    (``docs/tried.md``).

    Parameters
    ----------
    n_iterations : int
        Number of iterations of each round.
    margins : tuple of float
        In units of the log-density, one for each round.
    trust : float
        Multiple of the expected gain; 0 compares log-densities alone, which is quicker and loses
        more classes.

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
