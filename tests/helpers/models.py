"""Small families with three overlapping classes, each written a second time in plain NumPy.

The second writing is the oracle: quadrature, exact draws and the reference kernel are made from
it, never from the model's own graph.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike

from pymc_mcoem.em.family import Family

N_CLASSES = 3


def normal_log_density(x: ArrayLike, mean: ArrayLike, spread: ArrayLike) -> np.ndarray:
    """Return log Normal(x; mean, spread²), element by element."""
    standard = (np.asarray(x) - mean) / spread
    return -0.5 * standard**2 - np.log(spread) - 0.5 * math.log(2 * math.pi)


class OracleFamily(Family):
    """A family whose log-density, prior draws and likelihood exist without PyMC too.

    Attributes
    ----------
    n_latents : int
    bounds : ndarray of shape (n_latents, 2)
        A box, on the scale on which the latents are sampled, with all but a negligible share of
        every class's posterior.
    """

    n_latents: int
    bounds: np.ndarray

    @property
    def values(self) -> dict[str, np.ndarray]:
        """Return what the model's ``pm.Data`` hold now."""
        return {variable.name: variable.get_value() for variable in self.model.data_vars}

    def log_prior(self, class_index: ArrayLike, position: np.ndarray) -> np.ndarray:
        """Return log p(I, x), Jacobian included, of classes ``(...,)``, positions ``(..., d)``."""
        raise NotImplementedError

    def log_likelihood(self, position: np.ndarray) -> np.ndarray:
        """Return log p(y | x) of positions ``(..., d)``."""
        raise NotImplementedError

    def log_density(self, class_index: ArrayLike, position: np.ndarray) -> np.ndarray:
        """Return log p(y, I, x) of classes ``(...,)`` and positions ``(..., d)``."""
        return self.log_prior(class_index, position) + self.log_likelihood(position)

    def draw_prior(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw classes ``(n,)`` and positions ``(n, d)`` from the prior."""
        raise NotImplementedError

    def draw_posterior(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw classes ``(n,)`` and positions ``(n, d)`` from the posterior, exactly.

        Prior draws are kept with probability p(y | x) / max p(y | ·).
        """
        kept: list[tuple[np.ndarray, np.ndarray]] = []
        while sum(len(k) for k, _ in kept) < n:
            k, x = self.draw_prior(rng, 20 * n)
            log_share = self.log_likelihood(x) - self.largest_log_likelihood
            chosen = np.log(rng.uniform(size=20 * n)) < log_share
            kept.append((k[chosen], x[chosen]))
        return np.concatenate([k for k, _ in kept])[:n], np.concatenate([x for _, x in kept])[:n]

    @property
    def largest_log_likelihood(self) -> float:
        """Return an upper bound of the log-likelihood: of a normal one, that at its mean."""
        size = np.size(self.values["value"])
        return float(normal_log_density(np.zeros(size), 0.0, self.values["noise"]).sum())


class SkewedMixture(OracleFamily):
    """One latent behind a curved mean: unconstrained, one-dimensional, far from normal.

    level | I ~ Normal(center[I], spread[I]²),  value | level ~ Normal(exp(level), noise²).
    """

    observation = ("value",)
    n_latents = 1
    bounds = np.array([[-7.0, 4.0]])

    def __init__(self) -> None:
        with pm.Model() as self.model:
            weights = pm.Data("weights", [0.5, 0.3, 0.2])
            center = pm.Data("center", [-0.8, 0.3, 1.0])
            spread = pm.Data("spread", [0.9, 0.5, 0.7])
            noise = pm.Data("noise", 0.8)
            value = pm.Data("value", 1.1)
            self.class_index = pm.Categorical("class_index", p=weights)
            level = pm.Normal("level", center[self.class_index], spread[self.class_index])
            pm.Normal("observed", pm.math.exp(level), noise, observed=value)
        self.statistics = {"level": level, "square": level**2}

    def log_prior(self, class_index, position):
        v, k = self.values, np.asarray(class_index)
        level = normal_log_density(position[..., 0], v["center"][k], v["spread"][k])
        return np.log(v["weights"])[k] + level

    def log_likelihood(self, position):
        v = self.values
        with np.errstate(over="ignore"):
            return normal_log_density(v["value"], np.exp(position[..., 0]), v["noise"])

    def draw_prior(self, rng, n):
        v = self.values
        k = rng.choice(N_CLASSES, size=n, p=v["weights"])
        return k, rng.normal(v["center"][k], v["spread"][k])[:, None]

    def statistics_of(self, position):
        """Return S of positions ``(..., 1)`` in plain NumPy."""
        return {"level": position[..., 0], "square": position[..., 0] ** 2}


class ScaledMixture(OracleFamily):
    """Three latents, one of them positive, with another prior covariance in every class.

    first | I ~ Normal(center[I, 0], spread[I, 0]²),
    second | first, I ~ Normal(center[I, 1] + slope[I] first, spread[I, 1]²),
    scale ~ Gamma(gamma[0], gamma[1]), sampled as its logarithm,
    value | … ~ Normal(scale (exp(first / 2), second, first + second), noise²).
    """

    observation = ("value",)
    n_latents = 3
    bounds = np.array([[-5.0, 5.0], [-4.0, 4.5], [-6.0, 2.5]])

    def __init__(self) -> None:
        with pm.Model() as self.model:
            weights = pm.Data("weights", [0.45, 0.35, 0.2])
            center = pm.Data("center", [[-0.5, 0.3], [0.5, -0.2], [0.2, 0.8]])
            spread = pm.Data("spread", [[0.8, 0.6], [0.5, 0.7], [1.0, 0.5]])
            slope = pm.Data("slope", [0.6, -0.8, 0.1])
            gamma = pm.Data("gamma", [3.0, 2.5])
            noise = pm.Data("noise", 0.7)
            value = pm.Data("value", [1.4, 0.4, 0.3])
            k = self.class_index = pm.Categorical("class_index", p=weights)
            first = pm.Normal("first", center[k, 0], spread[k, 0])
            second = pm.Normal("second", center[k, 1] + slope[k] * first, spread[k, 1])
            scale = pm.Gamma("scale", gamma[0], gamma[1])
            shape = pm.math.stack([pm.math.exp(first / 2), second, first + second])
            pm.Normal("observed", scale * shape, noise, observed=value)
        self.statistics = {"scale": scale, "pair": pm.math.stack([first, second * scale])}

    def log_prior(self, class_index, position):
        v, k = self.values, np.asarray(class_index)
        first, second, log_scale = np.moveaxis(position, -1, 0)
        center, spread = v["center"][k], v["spread"][k]
        shape, rate = v["gamma"]
        # Gamma's density, times the Jacobian exp(log_scale).
        log_gamma = shape * (math.log(rate) + log_scale) - math.lgamma(shape)
        with np.errstate(over="ignore"):
            log_gamma = log_gamma - rate * np.exp(log_scale)
        return (
            np.log(v["weights"])[k]
            + normal_log_density(first, center[..., 0], spread[..., 0])
            + normal_log_density(second, center[..., 1] + v["slope"][k] * first, spread[..., 1])
            + log_gamma
        )

    def log_likelihood(self, position):
        v = self.values
        first, second, log_scale = np.moveaxis(position, -1, 0)
        with np.errstate(over="ignore", invalid="ignore"):
            shape = np.stack([np.exp(first / 2), second, first + second], axis=-1)
            mean = np.exp(log_scale)[..., None] * shape
            return normal_log_density(v["value"], mean, v["noise"]).sum(axis=-1)

    def log_density_without_jacobian(self, class_index, position):
        """Return the log-density as it is where the Jacobian of log scale is forgotten."""
        return self.log_density(class_index, position) - position[..., 2]

    def draw_prior(self, rng, n):
        v = self.values
        k = rng.choice(N_CLASSES, size=n, p=v["weights"])
        center, spread = v["center"][k], v["spread"][k]
        first = rng.normal(center[:, 0], spread[:, 0])
        second = rng.normal(center[:, 1] + v["slope"][k] * first, spread[:, 1])
        scale = rng.gamma(v["gamma"][0], 1 / v["gamma"][1], size=n)
        return k, np.stack([first, second, np.log(scale)], axis=1)

    def statistics_of(self, position):
        """Return S of positions ``(..., 3)`` in plain NumPy."""
        first, second, log_scale = np.moveaxis(position, -1, 0)
        scale = np.exp(log_scale)
        return {"scale": scale, "pair": np.stack([first, second * scale], axis=-1)}


def two_indices_that_share_a_latent() -> pm.Model:
    """The latent is elsewhere where the second index is 1, by twelve of its standard deviations."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.6, 0.4])
        j = pm.Categorical("j", [0.5, 0.5])
        x = pm.Normal("x", 0.5 * k + 3.0 * j, 0.25)
        pm.Normal("y", x - 3.0 * j, 0.5, observed=0.2)
    return model
