"""Another sampler for image mixtures: plain NumPy, no mode search, no code of the package.

The density is that of the tests' oracle, written once more for many warps at a time. For each
class a population starts in the prior and is tempered into the posterior by random-walk moves;
a heavy-tailed density fitted to it then proposes independent draws, whose importance weights
give class probabilities and expectations together, with honest standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_t

#: Warps evaluated at a time: what they need fits a processor's cache.
CHUNK = 64
#: Degrees of freedom of the proposal's tails.
DEGREES = 6.0
#: Share and width of the proposal's second, wider part.
WIDER_SHARE, WIDER = 0.2, 4.0


class ImagePosterior:
    """log p(y, I = j, β) of one image without scale, for many β.

    Parameters
    ----------
    oracle : ImageOracle
        Without scale and with uncorrelated noise.
    parameters : dict of str to ndarray
    image : ndarray of shape (side, side)
        NaN where pixels are missing.
    """

    def __init__(self, oracle, parameters, image):
        self.oracle, self.parameters = oracle, parameters
        values = np.ravel(image)
        seen = ~np.isnan(values)
        self.values, self.points = values[seen], oracle.points[seen]
        self.axis = np.unique(oracle.points[:, 0])
        squares = np.square(self.points[:, None] - oracle.landmarks).sum(axis=-1)
        self.landmark_kernels = np.exp(-squares / oracle.width**2)
        self.n_classes = len(parameters["weights"])
        self.covariances = [
            oracle.deformation_covariance(parameters, j) for j in range(self.n_classes)
        ]

    def kernels(self, betas):
        """Return exp(−(D(u)_k − r)²/ν²) on each axis k, ``(n, n_seen, side)`` each.

        A Gaussian of the plane is the product of two of the line, and the basis lies on a grid.
        """
        angle, zoom = betas[:, :1], betas[:, 1:2]
        center, shift = betas[:, 2:4], betas[:, 4:6]
        rows, columns = (
            zoom * self.points[:, k] + (shift - center)[:, k : k + 1] for k in range(2)
        )
        displacements = betas[:, 6:].reshape(len(betas), 2, -1) @ self.landmark_kernels.T
        cosine, sine = np.cos(angle), np.sin(angle)
        warped = (
            cosine * rows - sine * columns + center[:, :1] + displacements[:, 0],
            sine * rows + cosine * columns + center[:, 1:] + displacements[:, 1],
        )
        return [
            np.exp(-np.square((each[..., None] - self.axis) / self.oracle.bandwidth))
            for each in warped
        ]

    def log_likelihood(self, index, betas):
        """Return log p(y | I = j, β), ``(n,)``."""
        template = self.parameters["templates"][index].reshape(len(self.axis), -1)
        variance = self.oracle.noise_variance(self.parameters, index)
        found = np.empty(len(betas))
        for first in range(0, len(betas), CHUNK):
            rows, columns = self.kernels(betas[first : first + CHUNK])
            mean = (rows * (columns @ template.T)).sum(axis=-1)
            found[first : first + CHUNK] = np.square(self.values - mean).sum(axis=-1)
        return -0.5 * (found / variance + self.values.size * np.log(2 * np.pi * variance))

    def log_prior(self, index, betas):
        """Return log p(I = j, β), ``(n,)``."""
        covariance = self.covariances[index]
        away = np.linalg.solve(np.linalg.cholesky(covariance), (betas - self.oracle.mean).T)
        constant = np.linalg.slogdet(2 * np.pi * covariance)[1]
        log_weight = np.log(self.parameters["weights"][index])
        return log_weight - 0.5 * (np.square(away).sum(axis=0) + constant)

    def features(self, index, betas, directions):
        """Return `burst_features` of single draws, ``(n, n_features)``, without δ."""
        found = []
        for first in range(0, len(betas), CHUNK):
            chunk = betas[first : first + CHUNK]
            rows, columns = self.kernels(chunk)
            design = (rows[..., :, None] * columns[..., None, :]).reshape(*rows.shape[:2], -1)
            away = (chunk - self.oracle.mean)[:, 6:]
            above, below = np.triu_indices(away.shape[1])
            found.append(
                np.concatenate(
                    [
                        np.ones((len(chunk), 1)),
                        self.values @ design,
                        np.square(design).sum(axis=1),
                        np.square(design @ directions.T).sum(axis=1),
                        away[:, above] * away[:, below],
                    ],
                    axis=1,
                )
            )
        return np.concatenate(found)


def burst_features(statistics, directions):
    """Return what is compared of a burst's mean statistics, ``(n_classes, n_features)``.

    The class's weight, its template's projection, of its gram matrix the diagonal and the
    quadratic forms along `directions` ``(n, n_basis)``, and its deformation's outer product.
    """
    gram, outer = statistics["template_gram"], statistics["deformation_outer"]
    above, below = np.triu_indices(outer.shape[1])
    return np.concatenate(
        [
            statistics["class_weight"][:, None],
            statistics["template_projection"],
            np.diagonal(gram, axis1=1, axis2=2),
            np.einsum("vl,jlm,vm->jv", directions, gram, directions),
            outer[:, above, below],
        ],
        axis=1,
    )


def simulate(oracle, parameters, rng, n_images):
    """Draw classes ``(n_images,)`` and complete images ``(n_images, side, side)``."""
    classes = rng.choice(len(parameters["weights"]), size=n_images, p=parameters["weights"])
    side = round(np.sqrt(len(oracle.points)))
    grid = ImagePosterior(oracle, parameters, np.zeros((side, side)))
    images = np.empty((n_images, len(oracle.points)))
    for image, index in zip(images, classes, strict=True):
        beta = rng.multivariate_normal(oracle.mean, grid.covariances[index])
        rows, columns = grid.kernels(beta[None])
        template = parameters["templates"][index].reshape(side, side)
        image[:] = (rows * (columns @ template.T)).sum(axis=-1)[0]
    images += np.sqrt(parameters["noise_variance"]) * rng.standard_normal(images.shape)
    return classes, images.reshape(n_images, side, side)


def temper(posterior, index, rng, *, n_walkers=1000, n_moves=5, keep=0.5):
    """Return walkers ``(n_walkers, d)`` that were moved from the prior to the posterior of a class.

    Each temperature is the highest that leaves an effective share `keep` of the walkers; they
    are then resampled and moved by `n_moves` random-walk Metropolis steps.
    """
    mean, covariance = posterior.oracle.mean, posterior.covariances[index]
    walkers = rng.multivariate_normal(mean, covariance, size=n_walkers)
    likelihood = posterior.log_likelihood(index, walkers)
    prior = posterior.log_prior(index, walkers)
    temperature, step = 0.0, 2.38 / np.sqrt(mean.size)
    while temperature < 1.0:
        low, high = temperature, 1.0
        while effective_size((high - temperature) * likelihood) < keep * n_walkers:
            middle = 0.5 * (low + high)
            if high - low < 1e-3 * (high - temperature):
                break
            if effective_size((middle - temperature) * likelihood) < keep * n_walkers:
                high = middle
            else:
                low = middle
        chosen = rng.choice(n_walkers, n_walkers, p=shares((high - temperature) * likelihood))
        walkers, likelihood, prior = walkers[chosen], likelihood[chosen], prior[chosen]
        temperature = high
        factor = np.linalg.cholesky(np.cov(walkers.T))
        for _ in range(n_moves):
            proposed = walkers + step * rng.standard_normal(walkers.shape) @ factor.T
            there = posterior.log_likelihood(index, proposed)
            prior_there = posterior.log_prior(index, proposed)
            ratio = temperature * (there - likelihood) + prior_there - prior
            accepted = np.log(rng.random(n_walkers)) < ratio
            walkers[accepted] = proposed[accepted]
            likelihood[accepted], prior[accepted] = there[accepted], prior_there[accepted]
            step *= np.exp(0.3 * (accepted.mean() - 0.25))
    return walkers


@dataclass(frozen=True)
class Reference:
    """Posterior expectations with their standard errors.

    Attributes
    ----------
    mean, error, variance : ndarray of shape (n_classes, n_features)
        Of δ_{I,j} times each feature: its expectation, the standard error of that, and its
        variance under the posterior.
    effective_size : ndarray of shape (n_classes,)
        Of the weighted draws of each class.
    """

    mean: np.ndarray
    error: np.ndarray
    variance: np.ndarray
    effective_size: np.ndarray


def importance_sampling(posterior, rng, directions, *, n_batches=40, batch_size=500):
    """Return a `Reference` from ``n_batches * batch_size`` independent draws a class."""
    log_weights, draws = [], []
    size = n_batches * batch_size
    for index in range(posterior.n_classes):
        walkers = temper(posterior, index, rng)
        mean, covariance = walkers.mean(axis=0), np.cov(walkers.T)
        narrow, wide = (
            multivariate_t(mean, factor * covariance, df=DEGREES) for factor in (1.0, WIDER)
        )
        n_wide = rng.binomial(size, WIDER_SHARE)
        found = rng.permutation(
            np.concatenate(
                [narrow.rvs(size - n_wide, random_state=rng), wide.rvs(n_wide, random_state=rng)]
            )
        )
        log_proposal = np.logaddexp(
            np.log(1 - WIDER_SHARE) + narrow.logpdf(found),
            np.log(WIDER_SHARE) + wide.logpdf(found),
        )
        target = posterior.log_likelihood(index, found) + posterior.log_prior(index, found)
        log_weights.append(target - log_proposal)
        draws.append(found)
    # one scale for all classes: their evidences are compared by these very weights
    weights = np.exp(np.array(log_weights) - np.max(log_weights))
    shape = (n_batches, batch_size)
    sums, squares = [], []
    for index, (weight, found) in enumerate(zip(weights, draws, strict=True)):
        sums.append([])
        squares.append(0.0)
        for w, x in zip(weight.reshape(shape), found.reshape(*shape, -1), strict=True):
            values = posterior.features(index, x, directions)
            sums[index].append(w @ values)
            squares[index] = squares[index] + w @ np.square(values)
    above = np.array(sums).transpose(1, 0, 2)  # (batch, class, feature)
    below = weights.reshape(-1, *shape).sum(axis=(0, 2))
    mean = above.sum(axis=0) / below.sum()
    # the delta method for a ratio, over batches
    residuals = above - mean * below[:, None, None]
    error = residuals.std(axis=0, ddof=1) * np.sqrt(n_batches) / below.sum()
    variance = np.array(squares) / below.sum() - np.square(mean)
    return Reference(mean, error, variance, np.array([effective_size(w) for w in log_weights]))


def shares(log_weights):
    """Return weights that sum to one."""
    return np.exp(log_weights - logsumexp(log_weights))


def effective_size(log_weights):
    """Return (Σw)² / Σw²."""
    return 1.0 / np.square(shares(log_weights)).sum()
