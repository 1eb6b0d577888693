"""Labels of observations: the class of each, or the classes that are possible, if known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pymc_mcoem.laplace.modes import ModeStatus
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["Classes", "allowed_classes", "among", "labels_of", "without_excluded"]

#: The classes that are possible for an observation; None: all of them.
type Classes = tuple[int, ...] | None

#: Values of a label that say nothing, besides None and NaN.
UNKNOWN = -1


def labels_of(family: Family, labels: Any, n_observations: int | None) -> Iterator[Classes]:
    """Return the possible classes of each observation, None where all are possible.

    Parameters
    ----------
    labels : None, or sequence of length n_observations
        For each observation the number of its class, counted from 0, or several such numbers of
        which one is right; None, NaN or -1 where the class is unknown. For a single observation
        also its label alone.
    n_observations : int or None
        Length of the source; None if it is not known.

    Raises
    ------
    ValueError
        If there is not one label for each observation, or one is no class of the family.
    TypeError
        If the family's class weights are not a parameter.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((2, 2), n_classes=3, n_landmarks=2)
    >>> list(labels_of(mixture, [2, None, {0, 1}, -1], 4))
    [(2,), None, (0, 1), None]
    >>> next(labels_of(mixture, [3], 1))
    Traceback (most recent call last):
        ...
    ValueError: labels: got 3 for observation 0; classes are 0 to 2, and None, NaN or -1 ...
    """
    if labels is None:
        return repeat(None)
    _weights(family)
    if n_observations == 1 and (np.ndim(labels) == 0 or isinstance(labels, Set)):
        labels = [labels]
    labels = labels.to_numpy() if hasattr(labels, "to_numpy") else labels
    if not isinstance(labels, Iterable) or (isinstance(labels, np.ndarray) and not labels.ndim):
        raise ValueError(
            f"labels: got {labels!r}; give a sequence, with one for each observation and None "
            "where it is unknown."
        )
    given = list(labels)
    if isinstance(labels, np.ndarray):
        _require_numbers(labels, family.n_classes)
    if len(given) != n_observations:
        found = "an unknown number of" if n_observations is None else n_observations
        raise ValueError(
            f"labels: got {len(given)} labels for {found} observations; give one for each, None "
            "where it is unknown, and observations of known length, as a list or an array."
        )
    return iter([_classes(label, at, family.n_classes) for at, label in enumerate(given)])


def among(
    family: Family, parameters: Mapping[str, np.ndarray], classes: Classes
) -> dict[str, np.ndarray]:
    """Return θ with the weights of all classes but these set to zero.

    Given these weights, an E-step gives the posterior given the label as well. If none of the
    classes has any weight, they have equal ones.

    Parameters
    ----------
    parameters : mapping of str to ndarray
        θ.
    classes : tuple of int or None
        None: θ is returned as it is.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((2, 2), n_classes=4, n_landmarks=2)
    >>> among(mixture, {"weights": np.array([0.4, 0.2, 0.1, 0.3])}, (1, 3))
    {'weights': array([0. , 0.4, 0. , 0.6])}
    """
    found = dict(parameters)
    if classes is not None:
        name, chosen = _weights(family), list(classes)
        left = np.zeros_like(found[name])
        mass = found[name][chosen]
        left[chosen] = mass / mass.sum() if mass.sum() > 0 else 1.0 / len(chosen)
        found[name] = left
    return found


def without_excluded(
    troubles: Mapping[str, int], classes: Classes, n_classes: int
) -> dict[str, int]:
    """Return troubles without those of searches in the classes that a label rules out.

    Such a class has no density anywhere, which its search reports.

    Examples
    --------
    >>> without_excluded({"mode search: no density": 3, "mode search: not converged": 1}, (1,), 4)
    {'mode search: not converged': 1}
    """
    found, name = dict(troubles), ModeStatus.NO_DENSITY.trouble
    if classes is not None and name in found:
        found[name] -= n_classes - len(classes)
    return {name: count for name, count in found.items() if count > 0}


def allowed_classes(labels: Sequence[Classes], n_classes: int) -> np.ndarray | None:
    """Return which classes labels allow, ``(n_labels, n_classes)``; None if no label excludes any.

    Examples
    --------
    >>> allowed_classes([None, (1,)], 2)
    array([[ True,  True],
           [False,  True]])
    """
    if all(label is None for label in labels):
        return None
    allowed = np.ones((len(labels), n_classes), dtype=bool)
    for row, label in zip(allowed, labels, strict=True):
        if label is not None:
            row[:] = False
            row[list(label)] = True
    return allowed


def _weights(family: Family) -> str:
    """Return the name of the parameter that holds the class weights."""
    probabilities = family.class_index.owner.inputs[-1]
    for name in family.weight_parameters:
        if family.model[name] is probabilities:
            return name
    raise TypeError(
        f"labels: the probabilities of {family.class_index.name} are not a parameter of "
        f"{type(family).__name__}; declare them as one: weights = pm.Data('weights', ...), "
        "pm.Categorical(..., p=weights)."
    )


def _require_numbers(labels: np.ndarray, n_classes: int) -> None:
    """Refuse rows of indicators, which would be read as sets of the classes 0 and 1."""
    if labels.shape[1:] == (n_classes,) and n_classes > 1:
        if np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all():
            raise ValueError(
                f"labels: got indicators of shape {labels.shape}; give the numbers of the classes, "
                "labels.argmax(axis=1)."
            )


def _classes(label: Any, at: int, n_classes: int) -> Classes:
    """Return the classes that a label allows."""
    several = isinstance(label, Set) or np.ndim(label) > 0
    if not several and (pd.isna(label) or label == UNKNOWN):
        return None
    members = list(label) if several else [label]
    for member in members:
        whole = is_whole(member) or (
            isinstance(member, (float, np.floating)) and float(member).is_integer()
        )
        if not whole or not 0 <= member < n_classes:
            members = []
    if not members:
        raise ValueError(
            f"labels: got {label!r} for observation {at}; classes are 0 to {n_classes - 1}, and "
            "None, NaN or -1 stands for an unknown one."
        )
    found = tuple(sorted({int(member) for member in members}))
    return None if len(found) == n_classes else found
