"""Starts of runs from the classes of others: two are merged, or one is split, as evidence says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pymc_mcoem.em.callbacks import Update
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labeling import Arrays

__all__ = ["Chosen", "ClassEvidence", "best_columns", "from_other_runs", "require_weights"]

#: Share of evidences below which all count the same, so that no odd observation decides.
_ODD = 0.05

#: Nats that classes of others have to explain more than a run's own, all observations together.
_LEAST_GAIN = 1.0


def require_weights(families: Mapping[int, Family]) -> tuple[str, ...]:
    """Return the parameters with a row for each class, of families that differ in their number.

    Raises
    ------
    ValueError
        If class weights are not one parameter of shape (n_classes,), without which the evidence of
        a class is not known.
    """
    for number, family in families.items():
        names = family.weight_parameters
        if [np.shape(family.model[name].get_value()) for name in names] != [(number,)]:
            raise ValueError(
                f"merge_and_split: the class weights of {type(family).__name__} are given by "
                f"{list(names)}; it needs one parameter of shape (n_classes,). Leave it False."
            )
    # a parameter that all classes share may have as many rows as there are classes, once
    rows = [set(family.class_parameters) for family in families.values()]
    return tuple(sorted(set.intersection(*rows)))


class ClassEvidence:
    """A callback: log-evidence of observations under each class, before they were learned.

    Parameters
    ----------
    family : Family
        With one parameter of class weights.
    first, last : int
        Numbers of the first and the last observation that are noted, counted from 1.

    Attributes
    ----------
    rows : list of ndarray of shape (n_classes,)
        log p(y | I = j, θ) = log p(y | θ) + log P(I = j | y, θ) − log P(I = j | θ); −∞ for classes
        that the E-step gave no weight.
    parameters : dict of str to ndarray
        θ after the last of them.
    """

    def __init__(self, family: Family, first: int, last: int) -> None:
        (self._weights,) = family.weight_parameters
        self._first, self._last = first, last
        self._before: Arrays = {}
        self.rows: list[np.ndarray] = []
        self.parameters: Arrays = {}

    def begin(self, parameters: Arrays) -> None:
        """Take the parameters that the run begins with."""
        self._before = parameters

    def __call__(self, update: Update) -> None:
        """Note the observations of a step."""
        state = update.driver.run.state
        for record in update:
            if self._first <= record.number <= self._last:
                with np.errstate(divide="ignore"):
                    odds = np.log(record.class_weight) - np.log(self._before[self._weights])
                self.rows.append(record.log_evidence + odds)
        if state.n_learned <= self._last or not self.parameters:
            self.parameters = state.parameters
        self._before = state.parameters


@dataclass(frozen=True)
class Chosen:
    """A start from the classes of other runs.

    Attributes
    ----------
    parameters : dict of str to ndarray
    classes : tuple of (int, int)
        For each class the number of classes of the run that it is from, and the class there.
    """

    parameters: Arrays
    classes: tuple[tuple[int, int], ...]


def from_other_runs(
    family: Family,
    class_parameters: Sequence[str],
    evidence: Mapping[int, np.ndarray],
    parameters: Mapping[int, Arrays],
) -> Chosen | None:
    """Return a start from the classes of three runs: with fewer classes, as many, and more.

    Parameters
    ----------
    family : Family
        The family to start, of C classes.
    class_parameters : sequence of str
        Names of the parameters with a row for each class.
    evidence : mapping of int to ndarray of shape (n_observations, n_classes)
        For each number of classes, the log-evidence of the same observations under each class
        before they were learned. What is below the twentieth part of all counts as that, so that a
        kind with few observations may be left out.
    parameters : mapping of int to dict
        θ of these runs.

    Returns
    -------
    Chosen or None
        None if the classes of the run with C classes explain the observations as well, or if there
        is no such run.
    """
    number, candidates = family.n_classes, sorted(evidence)
    if number not in candidates:
        return None
    at = candidates.index(number)
    near = [number, *candidates[max(at - 1, 0) : at], *candidates[at + 1 : at + 2]]
    columns = np.concatenate([evidence[each] for each in near], axis=1)
    classes = [(each, j) for each in near for j in range(each)]
    best = best_columns(columns, number)
    chosen = tuple(classes[column] for column in best)
    values = np.maximum(columns, _least(columns))
    gain = values[:, best].max(axis=1) - values[:, :number].max(axis=1)
    if gain.sum() <= _LEAST_GAIN:
        return None
    sizes = np.bincount(columns[:, best].argmax(axis=1), minlength=number)
    found = {name: value.copy() for name, value in parameters[number].items()}
    for name in class_parameters:
        found[name] = np.concatenate([parameters[each][name] for each in near])[best]
    found[family.weight_parameters[0]] = (1.0 + sizes) / (number + sizes.sum())
    return Chosen(found, chosen)


def best_columns(evidence: np.ndarray, n_classes: int) -> list[int]:
    """Return which columns of evidence ``(n_observations, n)`` explain the observations best.

    The sum over observations of the largest log-evidence is maximized by adding one after another,
    and then by exchanges, as for medoids. The first `n_classes` columns are tried as well.

    Examples
    --------
    >>> evidence = np.array([[-9.0, -9.0, 0.0, -5.0], [-9.0, -8.0, -1.0, 0.0]])
    >>> best_columns(evidence, 2)
    [2, 3]
    """
    values = np.maximum(evidence, _least(evidence))
    places = range(values.shape[1])

    def total(columns: list[int]) -> float:
        return float(values[:, columns].max(axis=1).sum())

    added: list[int] = []
    for _ in range(n_classes):
        left = [place for place in places if place not in added]
        added.append(max(left, key=lambda place: total([*added, place])))
    return max(
        (_exchanged(each, places, total) for each in (added, [*range(n_classes)])), key=total
    )


def _least(evidence: np.ndarray) -> float:
    """Return the evidence below which all counts the same."""
    known = evidence[np.isfinite(evidence)]
    return float(np.quantile(known, _ODD)) if known.size else 0.0


def _exchanged(
    columns: list[int], places: Sequence[int], total: Callable[[list[int]], float]
) -> list[int]:
    """Return columns after exchanges for others, as long as one makes the total larger."""
    best, gains = columns, True
    while gains:
        ways = [
            [place if at == out else own for at, own in enumerate(best)]
            for out in range(len(best))
            for place in places
            if place not in best
        ]
        following = max(ways, key=total, default=best)
        gains = total(following) > total(best) + 1e-9
        best = following if gains else best
    return best
