"""The template mixture once more, in plain NumPy and SciPy, loops and all."""

from __future__ import annotations

import numpy as np
from scipy import stats


def warp_of_images(points, landmarks, width, beta):
    """D(u) = R_φ(ϱ u + t − c) + c + Σ_k δ_k exp(−|u − q_k|²/width²), point by point."""
    angle, zoom, center, translation = beta[0], beta[1], beta[2:4], beta[4:6]
    displacements = beta[6:].reshape(2, len(landmarks))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    warped = []
    for point in points:
        moved = rotation @ (zoom * point + translation - center) + center
        for k, landmark in enumerate(landmarks):
            moved = moved + displacements[:, k] * np.exp(
                -np.sum((point - landmark) ** 2) / width**2
            )
        warped.append(moved)
    return np.array(warped)


def design_matrix(points, centers, bandwidth):
    """Φ[s, l] = exp(−|u_s − r_l|²/ν²)."""
    return np.array(
        [
            [np.exp(-np.sum((point - center) ** 2) / bandwidth**2) for center in centers]
            for point in points
        ]
    )


def neighbor_correlation(n_landmarks, correlation):
    """M_K of a square grid of landmarks, from their row and column numbers."""
    side = round(np.sqrt(n_landmarks))
    block = np.eye(n_landmarks)
    for first in range(n_landmarks):
        for second in range(n_landmarks):
            distance = abs(first // side - second // side) + abs(first % side - second % side)
            if distance == 1:
                block[first, second] = correlation
    return block


class ImageOracle:
    """Log-densities of an image mixture from `TemplateMixture.for_images`."""

    def __init__(self, side, n_landmarks, rigid_variance, *, scale=None, correlation=None):
        axis = np.linspace(-1, 1, side)
        self.points = np.array([[row, column] for row in axis for column in axis])
        self.bandwidth = 1.5 * (axis[1] - axis[0])
        inner = np.linspace(-0.5, 0.5, n_landmarks)
        self.landmarks = np.array([[row, column] for row in inner for column in inner])
        self.width = 2 * (inner[1] - inner[0])
        self.rigid_variance = rigid_variance
        self.scale = scale
        self.correlation = np.eye(side**2) if correlation is None else correlation
        self.mean = np.zeros(6 + 2 * n_landmarks**2)
        self.mean[1] = 1.0

    def deformation_covariance(self, parameters, index):
        block = np.kron(np.eye(2), neighbor_correlation(len(self.landmarks), 0.2))
        if "deformation_covariance" in parameters:
            learned = parameters["deformation_covariance"][index]
        elif parameters["deformation_variance"].ndim == 2:
            learned = np.diag(parameters["deformation_variance"][index])
        else:
            learned = parameters["deformation_variance"][index] * block
        covariance = np.zeros((self.mean.size, self.mean.size))
        covariance[:6, :6] = self.rigid_variance * np.eye(6)
        covariance[6:, 6:] = learned
        return covariance

    def design(self, beta):
        warped = warp_of_images(self.points, self.landmarks, self.width, beta)
        return design_matrix(warped, self.points, self.bandwidth)

    def noise_variance(self, parameters, index):
        return float(
            np.broadcast_to(parameters["noise_variance"], len(parameters["weights"]))[index]
        )

    def log_likelihood(self, parameters, index, beta, scale, image):
        """Log-density of the observed pixels, NaN being missing."""
        values = image.ravel()
        seen = ~np.isnan(values)
        mean = scale * self.design(beta) @ parameters["templates"][index]
        covariance = self.noise_variance(parameters, index) * self.correlation[np.ix_(seen, seen)]
        return stats.multivariate_normal(mean[seen], covariance).logpdf(values[seen])

    def log_prior(self, parameters, index, beta, scale):
        """Log-density of the class index, β and, on the log scale, λ."""
        total = np.log(parameters["weights"][index])
        covariance = self.deformation_covariance(parameters, index)
        total += stats.multivariate_normal(self.mean, covariance).logpdf(beta)
        if self.scale is not None:
            shape, rate = self.scale
            total += stats.gamma(shape, scale=1 / rate).logpdf(scale) + np.log(scale)
        return total

    def statistics(self, beta, scale, image):
        """S(x, y) of one draw."""
        values = image.ravel()
        seen = ~np.isnan(values)
        rows = scale * self.design(beta)[seen]
        precision = np.linalg.inv(self.correlation[np.ix_(seen, seen)])
        away = (beta - self.mean)[6:]
        result = {
            "template_projection": rows.T @ precision @ values[seen],
            "template_gram": rows.T @ precision @ rows,
            "deformation_outer": np.outer(away, away),
            "squared_norm": values[seen] @ precision @ values[seen],
            "observed_points": float(seen.sum()),
        }
        if self.scale is not None:
            result |= {"scale": scale, "log_scale": np.log(scale)}
        return result
