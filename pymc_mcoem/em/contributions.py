"""What each observation of a finite set contributes to the mean statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pymc_mcoem.em.family import CLASS_WEIGHT

if TYPE_CHECKING:
    from pymc_mcoem.labelling import Arrays

__all__ = ["Contribution"]


@dataclass(frozen=True, eq=False)
class Contribution:
    """Statistics of one observation, of the classes alone that have a part in it.

    A chain of some sweeps visits one class or two of many, and the statistics of the others are
    zeros that need no room.

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
    >>> found.add_to(total, 0.5)
    >>> total["y"]
    array([0. , 1.5])
    """

    classes: np.ndarray
    rows: Arrays

    @classmethod
    def of(cls, statistics: Mapping[str, np.ndarray]) -> Self:
        """Keep the rows of `statistics`, each ``(n_classes, *shape)``, that are not zero."""
        classes = np.flatnonzero(statistics[CLASS_WEIGHT])
        return cls(classes, {name: np.array(value[classes]) for name, value in statistics.items()})

    def add_to(self, total: Arrays, factor: float) -> None:
        """Add `factor` times these statistics to `total`, in place."""
        with np.errstate(over="ignore", invalid="ignore"):  # refused when all are added
            for name, rows in self.rows.items():
                total[name][self.classes] += factor * rows

    @classmethod
    def joined(cls, contributions: Sequence[Self]) -> Arrays:
        """Return many contributions as a few arrays, for a file."""
        joined = {
            f"rows:{name}": np.concatenate([each.rows[name] for each in contributions])
            for name in contributions[0].rows
        }
        joined["classes"] = np.concatenate([each.classes for each in contributions])
        joined["lengths"] = np.array([len(each.classes) for each in contributions])
        return joined

    @classmethod
    def parted(cls, joined: Mapping[str, np.ndarray]) -> tuple[Self, ...]:
        """Undo `joined`."""
        ends = np.cumsum(joined["lengths"])[:-1]
        classes = np.split(joined["classes"], ends)
        rows = {
            name.removeprefix("rows:"): np.split(value, ends)
            for name, value in joined.items()
            if name.startswith("rows:")
        }
        return tuple(
            cls(each, {name: parts[number] for name, parts in rows.items()})
            for number, each in enumerate(classes)
        )
