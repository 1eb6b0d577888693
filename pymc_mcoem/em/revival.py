"""Revival of empty classes by splitting the class whose observations fit worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pymc_mcoem.em.family import CLASS_WEIGHT
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStepResult
    from pymc_mcoem.labeling import Arrays

__all__ = ["Revival", "Revived", "is_record"]


@dataclass(frozen=True)
class Revived:
    """Result of the revival in one step.

    Attributes
    ----------
    statistics : dict of str to ndarray
        Running means after the revival.
    record : dict of str to ndarray
        How well each class's observations fit: running means ``class_weight`` and
        ``log_evidence`` of shape (n_classes,), and ``last``, the number of observations at which
        each class was last revived or split.
    classes : tuple of (int, int)
        Pairs of a revived class and the class that it was split from.
    """

    statistics: Arrays
    record: Arrays
    classes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Revival:
    """When a class counts as empty, and how it gets observations of another class.

    Parameters
    ----------
    share : float
        A class is empty while its weight is below this share of the mean weight 1/C.
    wait : int
        Number of observations per class until a class is first checked, and until it is checked
        again after it was revived or split.
    novelty : float
        Share that the triggering observation has in the new class, between 0 and 1. Near 0 the
        two halves are the same and stay so.

    Raises
    ------
    ValueError
        If a value is out of its range.

    Notes
    -----
    The donor is the class with the lowest mean log-evidence among those with at least the mean
    weight. When an observation belongs to it and has an even lower log-evidence, it is split: the
    donor and the empty class each get half of its statistics, and this observation gets the share
    `novelty` in those of the empty class. Statistics are means of δ_{I,j} S, so this is as if half
    of the donor's observations had been of the other class, for every family. With E-steps that
    give no evidence, nothing is revived.

    Examples
    --------
    >>> Revival(share=0.2).is_empty(np.array([0.01, 0.49, 0.5]))
    array([ True, False, False])
    """

    share: float = 0.1
    wait: int = 5
    novelty: float = 0.8

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("share", "novelty"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ValueError(f"{name}: got {value!r}; give a number between 0 and 1.")
        require_whole("wait", self.wait, 1)

    def is_empty(self, class_weight: np.ndarray) -> np.ndarray:
        """Return which classes are empty, ``(n_classes,)``, given their weights."""
        return np.asarray(class_weight) < self.share / len(class_weight)

    def after(
        self,
        statistics: Arrays,
        record: Arrays | None,
        results: Sequence[EStepResult],
        *,
        gain: float,
        n_learned: int,
    ) -> Revived:
        """Update the record with the observations of a step, and revive classes if possible.

        Parameters
        ----------
        statistics : dict of str to ndarray
            Running means after the step; not changed.
        record : dict of str to ndarray, or None
            `Revived.record` of the previous step.
        results : sequence of EStepResult
            Results for the observations of the step.
        gain : float
            ϱ_n of the step.
        n_learned : int
            Number of observations learned, including those of the step.
        """
        n_classes = len(statistics[CLASS_WEIGHT])
        record = _noted(record, results, gain, n_classes)
        found: list[tuple[int, int]] = []
        with np.errstate(divide="ignore", invalid="ignore"):
            fit = record["log_evidence"] / record[CLASS_WEIGHT]
        rested = n_learned - record["last"] >= self.wait * n_classes
        for result in results:
            weight = statistics[CLASS_WEIGHT]
            empty = np.flatnonzero(self.is_empty(weight) & rested)
            donors = np.flatnonzero((weight >= 1 / n_classes) & rested & np.isfinite(fit))
            if not empty.size or not donors.size:
                break
            donor = int(donors[np.argmin(fit[donors])])
            own = result.statistics[CLASS_WEIGHT]
            if int(np.argmax(own)) != donor or not result.log_evidence < fit[donor]:
                continue
            chosen = int(empty[np.argmin(weight[empty])])
            statistics = self._split(statistics, result, chosen, donor)
            record = self._split_record(record, chosen, donor, n_learned)
            rested[[chosen, donor]] = False
            found.append((chosen, donor))
        return Revived(statistics, record, tuple(found))

    def _split(self, statistics: Arrays, result: EStepResult, chosen: int, donor: int) -> Arrays:
        half = statistics[CLASS_WEIGHT][donor] / 2
        own = result.statistics[CLASS_WEIGHT][donor]
        split = {}
        for name, value in statistics.items():
            row = value[donor] / 2
            alone = result.statistics[name][donor] * (half / own)
            split[name] = value.copy()
            split[name][donor] = row
            split[name][chosen] += (1 - self.novelty) * row + self.novelty * alone
        return split

    @staticmethod
    def _split_record(record: Arrays, chosen: int, donor: int, n_learned: int) -> Arrays:
        split = {name: value.copy() for name, value in record.items()}
        for name in (CLASS_WEIGHT, "log_evidence"):
            split[name][donor] /= 2
            split[name][chosen] += split[name][donor]
        split["last"][[chosen, donor]] = n_learned
        return split


def is_record(record: Arrays, n_classes: int) -> bool:
    """Return whether arrays have the names and shapes of a `Revived.record`."""
    shapes = {name: np.shape(value) for name, value in record.items()}
    return shapes == dict.fromkeys((CLASS_WEIGHT, "log_evidence", "last"), (n_classes,))


def _noted(
    record: Arrays | None, results: Sequence[EStepResult], gain: float, n_classes: int
) -> Arrays:
    """Return the record with the mean of a step's observations blended in."""
    if record is None:
        zeros = np.zeros(n_classes)
        record = {
            CLASS_WEIGHT: zeros,
            "log_evidence": zeros,
            "last": np.zeros(n_classes, dtype=np.int64),
        }
    known = [result for result in results if np.isfinite(result.log_evidence)]
    if not known:
        return record
    weights = np.array([result.statistics[CLASS_WEIGHT] for result in known])
    evidence = np.array([result.log_evidence for result in known])
    new = {CLASS_WEIGHT: weights.mean(axis=0), "log_evidence": evidence @ weights / len(known)}
    return {
        "last": record["last"],
        **{name: record[name] + gain * (value - record[name]) for name, value in new.items()},
    }
