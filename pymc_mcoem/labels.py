"""Labels of observations and classes: numbers, words, tuples or anything else that is hashable."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

__all__ = ["as_labels"]


def as_labels(labels: Sequence[Hashable] | np.ndarray) -> np.ndarray:
    """Return labels as an array with one entry for each, of objects where NumPy has no kind.

    Parameters
    ----------
    labels : sequence or array
        Arrays stay as they are.

    Returns
    -------
    ndarray
        Of one axis, unless an array with more was given.

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
