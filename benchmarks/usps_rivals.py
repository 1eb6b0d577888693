"""Rivals of the templates of ``usps_error.py``, on the same images.

With labels: k-means and Gaussian mixtures with two centers per digit, a support vector machine, and
the nearest neighbor by two-sided tangent distance. Their settings (covariance and principal
components, penalty and kernel width, smoothing and ridge) are chosen by cross-validation on the
learning images. Without labels: k-means and Gaussian mixtures with several starts, whose clusters
are named by majority.

Tangent distance (Simard, LeCun and Denker, 1993): an image is smoothed. Shifts, rotation, scaling,
two hyperbolic deformations and thickening turn it, to first order, into a plane ``x + a Tx``. The
distance of two images is that of their planes, the minimum of ``‖x + a Tx - y - b Ty‖² + ridge
(‖a‖² + ‖b‖²)``. The smoothing width and the ridge are chosen on the learning images alone, from
`WIDTHS` times `RIDGES`, to minimize the number of images with another label than the nearest of the
others. The choice to smooth the images as well as the tangents was made by the errors on 600 images
that are in no test set of seeds 1 to 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC

import pymc_mcoem as mcoem

#: Standard deviations of the smoothing kernel, in pixels.
WIDTHS = (0.5, 0.7, 0.9, 1.1, 1.4)
#: Ridges, relative to squared gradients of images in [0, 1], summed over pixels.
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0)
#: Number of nearest neighbors by smoothed images that are compared by tangent distance. Among 2,700
#: learning images they included the nearest of all for each of 300 others, in 1/20 of the time.
N_NEAR = 200
#: Black pixels around an image, which smoothing mixes in and shifts bring into the frame.
MARGIN = 4
N_TANGENTS = 7


@dataclass(frozen=True)
class Planes:
    """Smoothed images (n, pixels) and their tangents (n, 7, pixels), whitened."""

    points: np.ndarray
    tangents: np.ndarray


def smoothed_and_tangents(images: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, height, width) smoothed, (n, pixels), and tangents, (n, 7, pixels)."""
    n, *shape = images.shape
    padded = np.pad(images, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    smooth = gaussian_filter(padded, (0, width, width))
    inside = (slice(None), slice(MARGIN, -MARGIN), slice(MARGIN, -MARGIN))
    down, right = (each[inside] for each in np.gradient(smooth, axis=(1, 2)))
    y, x = (axis - axis.mean() for axis in np.mgrid[: shape[0], : shape[1]])
    # In this unit every deformation moves pixels by one on average, so that one ridge suits all.
    unit = np.sqrt(np.mean(x**2 + y**2))
    x, y = x / unit, y / unit
    squared = down**2 + right**2
    size = np.sqrt(np.mean(squared, axis=(1, 2)) / np.mean(squared**2, axis=(1, 2)))
    tangents = [
        down,
        right,
        y * right - x * down,  # rotation
        x * right + y * down,  # scaling
        x * right - y * down,  # hyperbolic, along the axes
        y * right + x * down,  # hyperbolic, along the diagonals
        size[:, None, None] * squared,  # thickness
    ]
    return smooth[inside].reshape(n, -1), np.stack(tangents, axis=1).reshape(n, N_TANGENTS, -1)


def planes(images: np.ndarray, width: float, ridge: float) -> Planes:
    """Return the planes that touch images (n, height, width)."""
    points, tangents = smoothed_and_tangents(images, width)
    # In coordinates in which Gram matrices with their ridge are the identity, a pair needs only the
    # products between its two images.
    gram = tangents @ tangents.transpose(0, 2, 1) + ridge * np.eye(N_TANGENTS)
    return Planes(points, np.linalg.solve(np.linalg.cholesky(gram), tangents))


def squared_distances(
    point: np.ndarray, tangents: np.ndarray, others: np.ndarray, other_tangents: np.ndarray
) -> np.ndarray:
    """Return squared distances (k) of a plane, (pixels) and (7, pixels), from k others."""
    difference = point - others
    own = difference @ tangents.T
    cross = other_tangents @ tangents.T
    # The part that the other tangents explain beyond this image's own is a Schur complement.
    rest = other_tangents @ difference[:, :, None] - cross @ own[:, :, None]
    schur = np.eye(N_TANGENTS) - cross @ cross.transpose(0, 2, 1)
    explained = np.sum(rest * np.linalg.solve(schur, rest), axis=(1, 2))
    return np.sum(difference**2, axis=1) - np.sum(own**2, axis=1) - explained


def nearest(asked: Planes, learned: Planes, n_near: int = N_NEAR) -> np.ndarray:
    """Return the index of the nearest learned plane, other than itself, for every plane."""
    apart = np.sum(learned.points**2, axis=1) - 2 * asked.points @ learned.points.T
    if asked is learned:
        np.fill_diagonal(apart, np.inf)
    n_near = min(n_near, len(learned.points) - (asked is learned))
    near = np.argpartition(apart, n_near - 1, axis=1)[:, :n_near]
    found = [
        np.argmin(squared_distances(point, tangents, learned.points[k], learned.tangents[k]))
        for point, tangents, k in zip(asked.points, asked.tangents, near, strict=True)
    ]
    return near[np.arange(len(near)), found]


def best_settings(images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Choose width and ridge by leaving out each image of (n, height, width) in turn."""
    wrong = {}
    for width, ridge in product(WIDTHS, RIDGES):
        learned = planes(images, width, ridge)
        wrong[width, ridge] = np.sum(labels[nearest(learned, learned)] != labels)
    return min(wrong, key=wrong.__getitem__)


def nearest_labels(images: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return labels (m) of test images (m, height, width) by learning images (n, height, width)."""
    settings = best_settings(images, labels)
    return labels[nearest(planes(test, *settings), planes(images, *settings))]


class DigitMixtures:
    """A Gaussian mixture for each digit, on pixels or on principal components of all digits."""

    def __init__(self, kind: str, n_components: int | None, seed: int) -> None:
        self.kind, self.n_components, self.seed = kind, n_components, seed

    def fit(self, images: np.ndarray, labels: np.ndarray) -> DigitMixtures:
        self.axes = PCA(self.n_components).fit(images) if self.n_components else None
        self.mixtures = [
            GaussianMixture(
                2,
                covariance_type=self.kind,
                n_init=5,
                reg_covar=0.01,
                random_state=self.seed,
            ).fit(self.project(images[labels == digit]))
            for digit in range(10)
        ]
        return self

    def project(self, images: np.ndarray) -> np.ndarray:
        return images if self.axes is None else self.axes.transform(images)

    def predict(self, images: np.ndarray) -> np.ndarray:
        projected = self.project(images)
        scores = [mixture.score_samples(projected) for mixture in self.mixtures]
        return np.argmax(scores, axis=0)


def best_mixtures(images: np.ndarray, labels: np.ndarray, seed: int) -> DigitMixtures:
    """Choose covariance and components of the Gaussian mixtures by three-fold cross-validation."""
    choices = [("spherical", None), ("diag", 10), ("diag", 20), ("diag", 40), ("tied", 10)]
    choices += [("tied", 20), ("tied", 40), ("full", 10), ("full", 20)]
    folds = list(StratifiedKFold(3, shuffle=True, random_state=seed).split(images, labels))
    wrong = []
    for choice in choices:
        count = 0
        for fit, held in folds:
            model = DigitMixtures(*choice, seed).fit(images[fit], labels[fit])
            count += int(np.sum(model.predict(images[held]) != labels[held]))
        wrong.append(count)
    return DigitMixtures(*choices[int(np.argmin(wrong))], seed).fit(images, labels)


def rivals(data: dict[str, np.ndarray], seed: int) -> dict[str, float]:
    """Return the errors of methods that use labels, in percent."""
    images, test = data["learn"].reshape(-1, 256), data["test"].reshape(-1, 256)
    labels, truth = data["learn_labels"].ravel(), data["truth"]

    def error(predicted: np.ndarray) -> float:
        return 100 * float(np.mean(predicted != truth))

    centers = np.concatenate(
        [
            KMeans(2, n_init=10, random_state=seed).fit(images[labels == d]).cluster_centers_
            for d in range(10)
        ]
    )
    by_tangents = nearest_labels(images.reshape(-1, 16, 16), labels, data["test"])
    nearest = np.square(test[:, None] - centers).sum(axis=2).argmin(axis=1) // 2
    grid = {"C": [1.0, 10.0, 100.0], "gamma": [0.001, 0.003, 0.006, 0.012, 0.025]}
    machine = GridSearchCV(SVC(), grid, cv=StratifiedKFold(3, shuffle=True, random_state=seed))
    return {
        "k-means, 2 a digit": error(nearest),
        "Gaussian mixture, 2 a digit": error(best_mixtures(images, labels, seed).predict(test)),
        "support vector machine": error(machine.fit(images, labels).predict(test)),
        "nearest neighbor, two-sided tangent distance": error(by_tangents),
    }


def unsupervised_rivals(data: dict[str, np.ndarray], seed: int, n_classes: int) -> dict[str, float]:
    """Return the errors of clusterings whose clusters are named by majority, in percent."""
    images, test = data["learn"].reshape(-1, 256), data["test"].reshape(-1, 256)
    labels, truth = data["learn_labels"].ravel(), data["truth"]
    axes = PCA(20).fit(images)
    models = {
        f"k-means, {n_classes}": (KMeans(n_classes, n_init=10, random_state=seed), None),
        "Gaussian mixture, spherical": (
            GaussianMixture(n_classes, covariance_type="spherical", n_init=5, random_state=seed),
            None,
        ),
        "Gaussian mixture, 20 components, diagonal": (
            GaussianMixture(
                n_classes, covariance_type="diag", n_init=5, reg_covar=0.01, random_state=seed
            ),
            axes,
        ),
    }
    found = {}
    for name, (model, projection) in models.items():
        learn, other = (
            part if projection is None else projection.transform(part) for part in (images, test)
        )
        groups = model.fit_predict(learn)
        names = np.array(mcoem.majority_labels(np.eye(n_classes)[groups], labels))
        found[name] = 100 * float(np.mean(names[model.predict(other)] != truth))
    return found
