"""Labels of observations and classes: numbers, words, tuples or other hashable objects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

__all__ = ["as_labels", "majority_labels", "read_labels", "unique_labels"]


def as_labels(labels: Sequence[Hashable] | np.ndarray) -> np.ndarray:
    """Return labels as an array with one entry for each, of dtype object if no other fits.

    Examples
    --------
    >>> as_labels(["a", "b"]), as_labels([("a", 1), ("b", 2)]).shape, as_labels([1, "b"]).tolist()
    (array(['a', 'b'], dtype='<U1'), (2,), [1, 'b'])
    """
    if hasattr(labels, "__array__"):
        return np.asarray(labels)
    given = list(labels)
    kinds = {type(label) for label in given}
    if len(kinds) == 1 and issubclass(kinds.pop(), (bool, int, float, str, np.generic)):
        return np.array(given)
    array = np.empty(len(given), dtype=object)
    array[:] = given
    return array


def unique_labels(labels: Sequence[Hashable]) -> list[Hashable]:
    """Return each label once, sorted if labels can be compared, else in order of appearance.

    Examples
    --------
    >>> unique_labels(["b", "a", "b"]), unique_labels([1, "b", 1])
    (['a', 'b'], [1, 'b'])
    """
    names: list[Any] = list(dict.fromkeys(labels))
    with suppress(TypeError):
        names.sort()
    return names


def majority_labels(
    probabilities: np.ndarray, labels: Sequence[Hashable] | np.ndarray
) -> list[Hashable]:
    """Return for each class the label that has the largest weight in it.

    Parameters
    ----------
    probabilities : ndarray of shape (n, n_classes)
        Class probabilities of n labeled observations. Rows that are not finite, of observations
        that could not be classified, are ignored.
    labels : sequence of length n
        Numbers, words, tuples or other hashable objects.

    Returns
    -------
    list of length n_classes
        A class without weight gets the most frequent label.

    Raises
    ------
    ValueError
        If the lengths differ, there is no observation, or no row is finite.

    Examples
    --------
    >>> majority_labels(np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), ["a", "b", "a"])
    ['a', 'b']
    """
    if len(probabilities) != len(labels) or len(labels) == 0:
        raise ValueError(
            f"labels: got {len(labels)} labels for {len(probabilities)} observations; give one "
            "label for each of at least one observation."
        )
    found = np.asarray(probabilities)
    usable = np.isfinite(found).all(axis=1)
    if not usable.any():
        raise ValueError(
            f"probabilities: none of the {len(found)} rows is finite; give those of observations "
            "that were classified."
        )
    given = [label for label, use in zip(as_labels(labels).tolist(), usable, strict=True) if use]
    names = unique_labels(given)
    codes = np.array([names.index(label) for label in given])
    mass = np.eye(len(names))[codes].T @ found[usable]
    winners = np.where(mass.max(axis=0) > 0, mass.argmax(axis=0), np.bincount(codes).argmax())
    return [names[winner] for winner in winners]


def read_labels(
    labels: Any, total: int | None, check: Callable[[Hashable, int], None]
) -> Iterator[Hashable]:
    """Return an iterator over labels; all are checked now if their number is known."""
    if isinstance(labels, (str, bytes, Mapping)) or not hasattr(labels, "__iter__"):
        raise TypeError(
            f"labels: got {type(labels).__name__}; give a sequence or an iterable of labels."
        )
    checked = _checked(labels, check)
    try:
        number = len(labels)
    except TypeError:  # an iterator, possibly endless
        return checked
    if total is not None and number != total:
        raise ValueError(
            f"labels: got {number} labels for {total} observations; give one label for each."
        )
    return iter(list(checked))


def _checked(labels: Any, check: Callable[[Hashable, int], None]) -> Iterator[Hashable]:
    """Yield labels as plain objects that can be compared and counted."""
    for index, given in enumerate(labels):
        label = given.item() if getattr(given, "ndim", None) == 0 else given
        try:
            hash(label)
        except TypeError:
            raise TypeError(
                f"labels: observation {index} (counted from 0) has {label!r}, which cannot be "
                "hashed; give a number, a string or a tuple."
            ) from None
        if label is None or label != label:
            raise ValueError(
                f"labels: observation {index} (counted from 0) has {label!r}; leave out "
                "observations without a label."
            )
        check(label, index)
        yield label
