"""Coordinates in which skewed and heavy-tailed draws are closer to normal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

__all__ = ["SinhArcsinh"]

#: Bounds of the skewness and of the logarithm of the tail parameter, and of the work of one fit.
_MOST_SKEW = 4.0
_MOST_LOG_TAIL = 1.5
_MOST_DRAWS = 2_000
_MOST_ITERATIONS = 60


@dataclass(frozen=True, eq=False)
class SinhArcsinh:
    """x = place + width sinh((arcsinh(z) + skew) / tail), coordinate by coordinate.

    Jones and Pewsey's (2009) family: with a standard normal z, `skew` makes x asymmetric, and its
    tails are heavier than normal ones where `tail` is less than one.

    Attributes
    ----------
    place, width, skew, tail : ndarray of shape (n,)

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> x = np.sinh(np.arcsinh(rng.standard_normal((2_000, 1))) / 0.7)
    >>> SinhArcsinh.fitted(x).tail.round(1)
    array([0.7])
    """

    place: np.ndarray
    width: np.ndarray
    skew: np.ndarray
    tail: np.ndarray

    @classmethod
    def fitted(cls, draws: np.ndarray) -> SinhArcsinh:
        """Fit draws ``(n_draws, n)`` by maximum likelihood, with any mean and covariance of z.

        All coordinates are fitted together: where they are correlated, a map of each by itself
        would bend the ridge that they lie on.
        """
        # imported where it is used: importing it takes as long as the fit
        from scipy.optimize import minimize

        x = draws[:: -(-len(draws) // _MOST_DRAWS)]
        low, middle, high = np.quantile(x, [0.16, 0.5, 0.84], axis=0)
        spread = np.maximum((high - low) / 2, 1e-12 * np.maximum(np.abs(middle), 1.0))
        standard, n = (x - middle) / spread, x.shape[1]
        limits = [(-10, 10), (-6, 6), (-_MOST_SKEW, _MOST_SKEW), (-_MOST_LOG_TAIL, _MOST_LOG_TAIL)]
        found = minimize(
            _loss,
            np.zeros(4 * n),
            args=(standard,),
            jac=True,
            method="L-BFGS-B",
            bounds=np.repeat(limits, n, axis=0),
            options={"maxiter": _MOST_ITERATIONS, "ftol": 1e-7},
        )
        place, log_width, skew, log_tail = found.x.reshape(4, n)
        return cls(middle + spread * place, spread * np.exp(log_width), skew, np.exp(log_tail))

    def to_normal(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return z and the logarithm of |dz/dx| summed over coordinates, of x ``(..., n)``."""
        u = (x - self.place) / self.width
        t = self.tail * np.arcsinh(u) - self.skew
        log_slope = np.log(self.tail / self.width) + _log_cosh(t) - 0.5 * np.log1p(u**2)
        # far outside, where it would overflow, z has no density anyway
        return np.sinh(np.clip(t, -300, 300)), log_slope.sum(axis=-1)

    def from_normal(self, z: np.ndarray) -> np.ndarray:
        """Return x of z ``(..., n)``."""
        found: np.ndarray = self.place + self.width * np.sinh(
            (np.arcsinh(z) + self.skew) / self.tail
        )
        return found


def _log_cosh(t: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.abs(t) + np.log1p(np.exp(-2 * np.abs(t))) - np.log(2)
    return found


def _loss(values: np.ndarray, x: np.ndarray) -> tuple[float, np.ndarray]:
    """Return minus the mean log-likelihood, with mean and covariance of z at their best, and slope.

    Parameters
    ----------
    values : ndarray of shape (4 * n,)
        Places, logarithms of widths, skewness, and logarithms of tails.
    x : ndarray of shape (n_draws, n)
    """
    n_draws, n = x.shape
    place, log_width, skew, log_tail = values.reshape(4, n)
    width, tail = np.exp(log_width), np.exp(log_tail)
    u = (x - place) / width
    s = np.arcsinh(u)
    t = np.clip(tail * s - skew, -50, 50)
    z = np.sinh(t)
    away = z - z.mean(axis=0)
    factor = np.linalg.cholesky(away.T @ away / n_draws + 1e-9 * np.eye(n))
    weighted = cho_solve((factor, True), away.T).T
    log_slope = log_tail - log_width + _log_cosh(t) - 0.5 * np.log1p(u**2)
    # as if one draw more of each parameter were standard normal
    prior = 0.5 * (skew @ skew + log_tail @ log_tail) / n_draws
    loss = prior + np.log(np.diagonal(factor)).sum() - log_slope.sum(axis=1).mean()
    by_t = np.tanh(t) - weighted * np.cosh(t)
    by_u = by_t * tail / np.sqrt(1 + u**2) - u / (1 + u**2)
    slopes = np.stack([-by_u / width, -by_u * u - 1, -by_t, by_t * tail * s + 1]).mean(axis=1)
    slopes[2] -= skew / n_draws
    slopes[3] -= log_tail / n_draws
    return loss, -slopes.ravel()
