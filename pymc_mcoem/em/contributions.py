"""Contributions of observations to the running means of the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from pymc_mcoem.em.family import CLASS_WEIGHT
from pymc_mcoem.labeling import Arrays

__all__ = ["Contribution", "added", "blended"]


@dataclass(frozen=True, eq=False)
class Contribution:
    """Statistics of one observation, stored only for the classes with weight.

    A chain of a few sweeps visits one or two classes of many; the statistics of the others are
    zero and are not stored.

    Attributes
    ----------
    classes : ndarray of int of shape (n_visited,)
    rows : dict of str to ndarray of shape (n_visited, *shape)

    Examples
    --------
    >>> found = Contribution.of({"class_weight": np.array([0.0, 1.0]), "y": np.array([0.0, 3.0])})
    >>> found.classes, found.rows["y"]
    (array([1]), array([3.]))
    >>> total = {"class_weight": np.zeros(2), "y": np.zeros(2)}
    >>> found.add_to(total)
    >>> total["y"]
    array([0., 3.])
    """

    classes: np.ndarray
    rows: Arrays

    @classmethod
    def of(cls, statistics: Mapping[str, np.ndarray]) -> Self:
        """Return the rows of `statistics`, each ``(n_classes, *shape)``, that have weight."""
        classes = np.flatnonzero(statistics[CLASS_WEIGHT])
        return cls(classes, {name: np.array(value[classes]) for name, value in statistics.items()})

    def require_like(self, total: Mapping[str, np.ndarray]) -> None:
        """Raise `ValueError` unless these statistics can be added to `total`."""
        known = np.isin(np.arange(len(total.get(CLASS_WEIGHT, ()))), self.classes)
        shapes = {name: rows.shape for name, rows in self.rows.items()}
        n = len(self.classes)
        if not np.array_equal(np.flatnonzero(known), self.classes) or shapes != {
            name: (n, *sums.shape[1:]) for name, sums in total.items()
        }:
            raise ValueError(
                f"contributions: got rows of classes {self.classes} with shapes {shapes}; they do "
                "not fit the statistics of the run."
            )

    def add_to(self, total: Arrays) -> None:
        """Add these statistics to `total`, in place."""
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the sum
            for name, rows in self.rows.items():
                total[name][self.classes] += rows


def added(total: Arrays, statistics: Mapping[str, np.ndarray]) -> Arrays:
    """Return `total` plus the statistics of observations; both may be empty."""
    with np.errstate(over="ignore"):  # overflow is refused when all are added
        return total | {
            name: total[name] + value if name in total else np.array(value, dtype=np.float64)
            for name, value in statistics.items()
        }


def blended(
    running: Arrays | None, total: Mapping[str, np.ndarray], size: int, gain: float
) -> Arrays:
    """Return running means of the statistics after a step of stochastic approximation.

    Parameters
    ----------
    running : dict of str to ndarray, or None
        Running means before the step, each ``(n_classes, *shape)``; None before the first step.
    total : mapping of str to ndarray
        Sums over the observations of the step.
    size : int
        Number of observations in the step.
    """
    found: Arrays = {}
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is refused below
        for name, value in total.items():
            mean = value / size
            if running is not None:
                mean -= running[name]
                mean *= gain
                mean += running[name]
            found[name] = mean
    # The statistics of each observation are finite, but their sum may not be, and there may be no
    # M-step in this step to notice it.
    for name, value in found.items():
        if not np.isfinite(value).all():
            raise FloatingPointError(
                f"the running mean of the statistics {name!r} is not finite; its terms are "
                "finite but too large: scale the observations."
            )
    return found
