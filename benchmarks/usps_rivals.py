"""Rivals of the templates of ``usps_error.py``, on the same images.

With labels: k-means and Gaussian mixtures with two centers per digit, a support vector machine, and
the nearest neighbor by two-sided tangent distance (``tangent_distance.py``). Their settings
(covariance and principal components, penalty and kernel width, smoothing and ridge) are chosen by
cross-validation on the learning images. Without labels: k-means and Gaussian mixtures with several
starts, whose clusters are named by majority.
"""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC
from tangent_distance import nearest_labels

import pymc_mcoem as mcoem


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
