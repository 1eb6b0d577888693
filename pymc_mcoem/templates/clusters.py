"""Labels of the first observations, by k-means."""

from __future__ import annotations

import warnings

import numpy as np

__all__ = ["allowed_labels", "kmeans_labels", "smoothed"]

#: Longest side in pixels of images that k-means compares pixel by pixel.
_LONGEST_SHARP = 16
#: Standard deviation by which k-means smooths larger images, as a share of their longest side.
_SMOOTHING = 0.03


def smoothed(
    values: np.ndarray, mask: np.ndarray, grid_shape: tuple[int, ...], n_channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return values with large images smoothed, and the mask of what is known then.

    Parameters
    ----------
    values, mask : ndarray of shape (n_observations, n_values)
        Channels in turn at each point; values are zero where `mask` is.
    grid_shape : tuple of int
        Shape of one channel. Only images have two axes.
    n_channels : int
    """
    if len(grid_shape) != 2 or max(grid_shape) <= _LONGEST_SHARP:
        return values, mask
    # imported here because the import takes a while
    from scipy.ndimage import gaussian_filter

    images = _filled(values, mask).reshape(-1, *grid_shape, n_channels)
    found = gaussian_filter(images, _SMOOTHING * max(grid_shape), axes=(1, 2), mode="nearest")
    return found.reshape(values.shape), np.ones_like(mask)


def kmeans_labels(
    values: np.ndarray, mask: np.ndarray, n_classes: int, rng: np.random.Generator
) -> np.ndarray:
    """Return labels below `n_classes`, fewer of them if there are fewer distinct observations.

    Observations (n_observations, n_points) have zeros where `mask` is zero. There the clustering
    takes the other observations' mean.
    """
    return _clusters(_filled(values, mask), n_classes, rng)


def allowed_labels(
    values: np.ndarray, mask: np.ndarray, allowed: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return a class for every observation, among those that it may be of.

    `allowed`, of bool, is (n_observations, n_classes). An observation gets the nearest of the class
    centers. Observations with the same label give as many centers as it allows classes, by k-means,
    narrow labels first. Centers of other classes are the observations farthest from all centers,
    one after another.
    """
    filled = _filled(values, mask)
    centers = np.full((allowed.shape[1], filled.shape[1]), np.inf)
    patterns, member = np.unique(allowed, axis=0, return_inverse=True)
    for pattern in np.argsort(patterns.sum(axis=1), kind="stable"):
        rows = filled[member == pattern]
        free = np.flatnonzero(patterns[pattern] & np.isinf(centers[:, 0]))
        if patterns[pattern].all():
            for j in free:
                centers[j] = rows[_distances(rows, centers).min(axis=1).argmax()]
        elif free.size:
            found = _clusters(rows, free.size, rng)
            for cluster in np.unique(found):
                centers[free[cluster]] = rows[found == cluster].mean(axis=0)
    distances = np.where(allowed, _distances(filled, centers), np.inf)
    # a class that is allowed but has no center is as far as any other
    return np.where(
        np.isinf(distances.min(axis=1)), allowed.argmax(axis=1), distances.argmin(axis=1)
    )


def _distances(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return squared distances (n_rows, n_centers), infinite where there is no center."""
    found = np.full((len(rows), len(centers)), np.inf)
    there = np.isfinite(centers[:, 0])
    found[:, there] = np.square(rows[:, None] - centers[there]).sum(axis=2)
    return found


def _filled(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return values with the other observations' mean where they are missing."""
    counts = mask.sum(axis=0)
    overall = values.sum() / max(counts.sum(), 1.0)
    point_mean = np.where(counts > 0, values.sum(axis=0) / np.maximum(counts, 1.0), overall)
    return np.where(mask > 0, values, point_mean)


def _clusters(rows: np.ndarray, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return labels by k-means, fewer if there are fewer distinct rows."""
    n_clusters = min(n_clusters, len(np.unique(rows, axis=0)))
    seed = int(rng.integers(2**31 - 1))
    # imported here because the import takes a second
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit = KMeans(n_clusters, n_init=10, random_state=seed).fit(rows)
    return np.asarray(fit.labels_, dtype=np.int64)
