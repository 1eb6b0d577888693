"""Coordinates in which places and widths do not depend on other latents: for hierarchies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["ConditionalScale"]

#: Largest number of drivers, and the least share of the other latents' sizes that a driver
#: explains: on average, or of one latent.
_MOST_DRIVERS = 4
_LEAST_MEAN_SHARE = 0.01
_LEAST_SHARE = 0.05

#: Ridges of the regressions, as shares of the number of draws.
_RIDGE_OF_LINES = 0.001
_RIDGE_OF_PRODUCTS = 0.03

#: The regressions are not extrapolated beyond this many standard deviations of a driver.
_REACH = 3.0


@dataclass(frozen=True, eq=False)
class ConditionalScale:
    """x_b = place_b(h) + width_b(h) r_b, where h are a few of the latents, the *drivers*.

    A driver has place zero and width one. Places, and logarithms of widths, are quadratic in the
    drivers. A funnel becomes normal in this way: in a hierarchy, the width of the effects depends
    on hyperparameters.

    Attributes
    ----------
    drivers : ndarray of int, shape (n_drivers,)
    center, unit : ndarray of shape (n_drivers,)
        Means and standard deviations of the drivers.
    place, log_width : ndarray of shape (n_features, n)
        Coefficients of the features, which are 1, the standardized drivers, and their products.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> h = rng.standard_normal(4_000)
    >>> x = np.exp(h) * rng.standard_normal(4_000)
    >>> found = ConditionalScale.fitted(np.stack([h, x], axis=1))
    >>> found.drivers, found.log_width[1, 1].round()
    (array([0]), np.float64(1.0))
    """

    drivers: np.ndarray
    center: np.ndarray
    unit: np.ndarray
    place: np.ndarray
    log_width: np.ndarray

    @classmethod
    def plain(cls, draws: np.ndarray) -> ConditionalScale:
        """Return coordinates without drivers, which standardize draws ``(n_draws, n)``."""
        none = np.zeros(0)
        place, log_width = draws.mean(axis=0), np.log(draws.std(axis=0))
        return cls(none.astype(int), none, none, place[None], log_width[None])

    @classmethod
    def fitted(cls, draws: np.ndarray) -> ConditionalScale:
        """Choose drivers and fit the regressions to draws ``(n_draws, n)``."""
        drivers = _find_drivers(draws)
        if not len(drivers):
            return cls.plain(draws)
        driving = draws[:, drivers]
        center, unit = driving.mean(axis=0), driving.std(axis=0)
        n_features = 1 + len(drivers) + len(drivers) * (len(drivers) + 1) // 2
        zeros = np.zeros((n_features, draws.shape[1]))
        features = cls(drivers, center, unit, zeros, zeros)._features(draws)
        driven = np.setdiff1d(np.arange(draws.shape[1]), drivers)
        place, log_width = zeros.copy(), zeros.copy()
        place[:, driven] = _regressed(features, draws[:, driven], len(drivers))
        rest = draws[:, driven] - features @ place[:, driven]
        size = np.log(rest**2 + 1e-12 * rest.var(axis=0))
        log_width[:, driven] = 0.5 * _regressed(features, size, len(drivers))
        # the mean of the logarithm of a squared standard normal is not zero; match the variance
        rest /= np.exp(features @ log_width[:, driven])
        log_width[0, driven] += np.log(rest.std(axis=0))
        return cls(drivers, center, unit, place, log_width)

    def _features(self, x: np.ndarray) -> np.ndarray:
        h = np.clip((x[..., self.drivers] - self.center) / self.unit, -_REACH, _REACH)
        first, second = np.triu_indices(len(self.drivers))
        ones = np.ones((*h.shape[:-1], 1))
        return np.concatenate([ones, h, h[..., first] * h[..., second]], axis=-1)

    def to_normal(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return r and the logarithm of |dr/dx| summed over coordinates, of x ``(..., n)``."""
        features = self._features(x)
        log_width = features @ self.log_width
        return (x - features @ self.place) * np.exp(-log_width), -log_width.sum(axis=-1)

    def from_normal(self, r: np.ndarray) -> np.ndarray:
        """Return x of r ``(..., n)``."""
        features = self._features(r)
        found: np.ndarray = features @ self.place + np.exp(features @ self.log_width) * r
        return found


def _regressed(features: np.ndarray, values: np.ndarray, n_drivers: int) -> np.ndarray:
    """Return coefficients by least squares, with a ridge on those of products.

    Correlated draws support few coefficients, and extrapolation should be linear.
    """
    ridge = np.full(features.shape[1], _RIDGE_OF_PRODUCTS)
    ridge[: n_drivers + 1] = _RIDGE_OF_LINES
    ridge[0] = 0.0
    gram = features.T @ features + len(features) * np.diag(ridge)
    found: np.ndarray = np.linalg.solve(gram, features.T @ values)
    return found


def _find_drivers(draws: np.ndarray) -> np.ndarray:
    """Return the coordinates that explain how widely others vary, the best first.

    Each coordinate is regressed on all others. A coordinate that explains the logarithms of the
    sizes of residuals is a driver. What the first driver explains is removed before the next one is
    sought.
    """
    n_draws, n = draws.shape
    standard = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    covariance = standard.T @ standard / n_draws
    precision = np.linalg.inv(covariance + 0.01 * np.eye(n))
    left = standard @ precision / np.diagonal(precision)
    size = np.log(left**2 + 1e-6)
    size = (size - size.mean(axis=0)) / size.std(axis=0)
    chosen: list[int] = []
    for _ in range(min(_MOST_DRIVERS, n - 1)):
        free = np.setdiff1d(np.arange(n), chosen)
        share = (standard[:, free].T @ size[:, free] / n_draws) ** 2  # (driver, driven)
        np.fill_diagonal(share, 0.0)
        best = int(np.argmax(share.sum(axis=1)))
        # by chance alone a share is one over the number of independent draws
        of_all, of_one = share[best].sum() / (len(free) - 1), share[best].max()
        if of_all < _LEAST_MEAN_SHARE and of_one < _LEAST_SHARE:
            break
        chosen.append(int(free[best]))
        known = standard[:, chosen]
        size = size - known @ np.linalg.lstsq(known, size)[0]
    return np.array(chosen, dtype=int)
