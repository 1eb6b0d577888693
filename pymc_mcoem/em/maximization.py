"""The M-step as drivers call it: classes that are not ready wait, and the result is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labeling import Arrays

__all__ = [
    "Maximized",
    "class_labels",
    "count_troubles",
    "maximize_family",
    "revived_classes",
    "waiting_classes",
]


@dataclass(frozen=True)
class Maximized:
    """Parameters of an M-step, and the numbers of the classes that kept theirs."""

    parameters: Arrays
    waiting: tuple[int, ...]


def maximize_family(
    family: Family,
    statistics: Mapping[str, np.ndarray],
    *,
    effective_size: float,
    present: Mapping[str, np.ndarray] | None,
    share: float = 1.0,
) -> Maximized:
    """Maximize the parameters of the classes that are ready, and check the result.

    Parameters
    ----------
    statistics : mapping of str to ndarray
        Means of δ_{I,j} S, each ``(n_classes, *shape)``; not changed.
    effective_size : float
        Effective number of observations in the means.
    present : mapping of str to ndarray, or None
        θ before the M-step; None if there is none.
    share : float in (0, 1]
        As for `Family.rescale`.
    """
    # A class without mass divides by zero in plain closed forms. Its rows are not used, and those
    # that are used are checked below.
    with np.errstate(divide="ignore", invalid="ignore"):
        copied = {name: value.copy() for name, value in statistics.items()}
        ready = np.asarray(family.ready(copied, effective_size=effective_size), dtype=bool)
        if ready.all() or present is None:
            found = family.maximize(copied, effective_size=effective_size)
        else:
            found = family.maximize_ready(
                copied, effective_size=effective_size, ready=ready, present=present
            )
        moved = family.rescale(found, copied, ready=ready, share=share)
    parameters = {name: np.array(value, dtype=np.float64) for name, value in moved.items()}
    return Maximized(family.check_parameters(parameters), tuple(np.flatnonzero(~ready).tolist()))


def count_troubles(troubles: dict[str, int], more: Mapping[str, int]) -> None:
    """Add numbers of troubles by name to `troubles`; zeros add no name."""
    for name, count in more.items():
        if count:
            troubles[name] = troubles.get(name, 0) + int(count)


def waiting_classes(family: Family, waiting: Sequence[int]) -> dict[str, int]:
    """Return one trouble for each class that waits, named by its label."""
    labels = class_labels(family)
    return {f"class {labels[number]} not ready kept its parameters": 1 for number in waiting}


def revived_classes(family: Family, revived: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Return one trouble for each revived class, named by its label and its donor's."""
    labels = class_labels(family)
    return {
        f"class {labels[chosen]} was empty and has half of class {labels[donor]}": 1
        for chosen, donor in revived
    }


def class_labels(family: Family) -> list[Any]:
    """Return the labels of the classes, or their numbers."""
    return list(family.model.coords.get(family.class_dim) or range(family.n_classes))
