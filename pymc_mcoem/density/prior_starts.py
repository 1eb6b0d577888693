"""Starts of chains where pseudo-priors have no density, as in models with hard edges."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.density.prior_draws import PriorDraws
from pymc_mcoem.interrupts import require_own_fault

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.density.plate import PlateDensity

__all__ = ["PriorStarts"]

_log = logging.getLogger("pymc_mcoem")

#: Number of draws from the prior; for a plate there are more, because rows begin one by one.
N_DRAWS, N_OF_PLATE = 200, 2_000
#: In each class: draws among which a climb begins, and its steps.
N_BEGUN, N_STEPS = 50, 500
#: Steps are as large as the prior's spread times 10 to a power between this and zero.
SMALLEST = -4.0


class PriorStarts:
    """Find starts for chains by draws from the prior, and then by climbing to where density is.

    A climb goes from the best of some draws, by random steps of all sizes, to where fewer terms of
    the log-density are infinite: each of many observations may allow an interval that few draws
    hit in common. For a plate there are draws only.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_mcoem.density.class_density import ClassDensity
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     x = pm.Normal("x", k, 1.0)
    ...     y = pm.Uniform("y", x - 0.1, x + 0.1, observed=[2.0, 2.19])
    >>> *_, (class_index, position) = PriorStarts(ClassDensity(model, k, [x]))(
    ...     np.random.default_rng(1), []
    ... )
    >>> bool(2.09 <= position[0] <= 2.1)
    True
    """

    def __init__(self, density: ClassDensity | PlateDensity) -> None:
        self._density = density
        self._prior: PriorDraws | None = None
        self._finite: Any = None

    def __call__(
        self, rng: np.random.Generator, values: Sequence[np.ndarray], shape: tuple[int, ...] = ()
    ) -> Iterator[tuple[Any, np.ndarray]]:
        """Return starts, a class and a position each; none if there are no draws from the prior.

        Parameters
        ----------
        values : sequence of ndarray
            As `PriorDraws` takes them.
        shape : tuple of int
            Shape of a plate.
        """
        # priors that cannot be drawn from may raise anything
        try:
            if self._prior is None:
                self._prior = PriorDraws(self._density, interpreted_mode(in_place=True))
            self._prior.reseed(rng)
            n_classes = self._density.n_classes
            for t in range(N_OF_PLATE if shape else N_DRAWS):
                index = rng.integers(n_classes, size=shape) if shape else t % n_classes
                yield index, self._prior(index, values, 1)[0]
            if not shape:
                for t in rng.permutation(n_classes).tolist():
                    yield t, self._climbed(rng, t, self._prior(t, values, N_BEGUN), values)
        except Exception as error:
            require_own_fault(error)
            _log.debug("no starts from the prior: %s", error)

    def _climbed(
        self, rng: np.random.Generator, k: int, drawn: np.ndarray, values: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return the position at which the most terms of the density are finite."""
        counts = [self._count(k, x, values) for x in drawn]
        most = max(counts)
        position, spread = drawn[counts.index(most)], drawn.std(axis=0)
        for size in 10.0 ** rng.uniform(SMALLEST, 0.0, N_STEPS):
            tried = position + size * spread * rng.standard_normal(spread.shape)
            count = self._count(k, tried, values)
            if count >= most:
                position, most = tried, count
        found: np.ndarray = position
        return found

    def _count(self, k: int, x: np.ndarray, values: Sequence[np.ndarray]) -> int:
        density: Any = self._density
        if self._finite is None:
            index = pt.scalar("class_index", dtype="int64")
            position = pt.tensor("position", dtype="float64", shape=(density.n_latents,))
            terms = density.terms.values()
            finite = pt.add(*[pt.lt(pt.abs(term), np.inf).sum() for term in terms], 0)
            placed = density.place([finite], index, position)
            self._finite = compile_with_data(density, [index, position], placed, interpreted_mode())
        return int(self._finite(np.asarray(k), x, *values)[0])
