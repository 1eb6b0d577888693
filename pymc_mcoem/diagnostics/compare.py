"""Comparing runs whose classes carry other labels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

__all__ = ["ClassAlignment", "adjusted_rand_index", "align_classes"]


class ClassAlignment(NamedTuple):
    """Which class of one run is which of another.

    Attributes
    ----------
    order : ndarray of int, shape (n_classes_a,)
        ``templates_b[order]`` are the templates of b in the order of a; -1 for a class of a
        that has no partner, where b has fewer classes.
    distance : ndarray of shape (n_classes_a,)
        From each template of a to its partner; NaN without one.
    """

    order: np.ndarray
    distance: np.ndarray


def align_classes(
    templates_a: xr.DataArray | ArrayLike,
    templates_b: xr.DataArray | ArrayLike,
    *,
    metric: str = "euclidean",
) -> ClassAlignment:
    """Match the classes of two runs by the distance of their templates.

    Of all one-to-one matches the one with the least sum of distances.

    Parameters
    ----------
    templates_a, templates_b : DataArray with dimension class, or array_like (n_classes, ...)
        On one grid, as `template_images` returns them.
    metric : str
        A distance that ``scipy.spatial.distance.cdist`` knows.

    Returns
    -------
    ClassAlignment

    Raises
    ------
    ValueError
        If grids differ or a value is not finite.

    Notes
    -----
    There is always a best match, even of runs that found other classes: look at `distance`.

    Examples
    --------
    >>> a = np.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
    >>> align_classes(a, a[[2, 0, 1]] + 0.1).order
    array([1, 2, 0])
    """
    first, second = _as_rows(templates_a, "templates_a"), _as_rows(templates_b, "templates_b")
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(
            f"templates_b: got templates of shape {second.shape[1:]}, and templates_a has "
            f"{first.shape[1:]}; give both on one grid."
        )
    distances = cdist(first.reshape(len(first), -1), second.reshape(len(second), -1), metric=metric)
    rows, columns = linear_sum_assignment(distances)
    order = np.full(len(first), -1)
    distance = np.full(len(first), np.nan)
    order[rows], distance[rows] = columns, distances[rows, columns]
    return ClassAlignment(order, distance)


def adjusted_rand_index(classes_a: ArrayLike, classes_b: ArrayLike) -> float:
    """Return how far two groupings of the same observations agree, whatever their labels.

    Parameters
    ----------
    classes_a, classes_b : array_like of shape (n,)
        A class or label for each observation.

    Returns
    -------
    float
        1 for the same grouping, about 0 for unrelated ones; may be negative.

    Raises
    ------
    ValueError
        If there is no observation or their numbers differ.

    References
    ----------
    Hubert and Arabie (1985), Comparing partitions, Journal of Classification 2, 193-218.

    Examples
    --------
    >>> adjusted_rand_index([0, 0, 1, 1], ["b", "b", "a", "a"])
    1.0
    """
    first, second = np.asarray(classes_a), np.asarray(classes_b)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ValueError(
            f"classes_b: got shape {second.shape}, and classes_a has {first.shape}; give one "
            "class for each of the same observations."
        )
    codes = [np.unique(given, return_inverse=True)[1] for given in (first, second)]
    # imported where it is used: it takes a second to import
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*codes))


def _as_rows(templates: Any, name: str) -> np.ndarray:
    if isinstance(templates, xr.DataArray):
        if "class" not in templates.dims:
            raise ValueError(
                f"{name}: got dimensions {templates.dims}; give a DataArray with dimension 'class'."
            )
        templates = templates.transpose("class", ...).values
    values = np.asarray(templates, dtype=np.float64)
    if values.ndim < 2 or not np.isfinite(values).all():
        raise ValueError(
            f"{name}: got an array of shape {values.shape}; give finite values of shape "
            "(n_classes, ...)."
        )
    return values
