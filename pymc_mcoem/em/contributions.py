"""Contributions of single observations to the mean statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pymc_mcoem.em.family import CLASS_WEIGHT

if TYPE_CHECKING:
    from pymc_mcoem.labelling import Arrays

__all__ = ["Contribution"]


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

    def add_to(self, total: Arrays) -> None:
        """Add these statistics to `total`, in place."""
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the sum
            for name, rows in self.rows.items():
                total[name][self.classes] += rows
