"""Fit a Gaussian mixture with a latent variable by online EM in three ways.

An observation y measures a latent x with known noise. x comes from one of three classes, whose
weights, means and variances are unknown. Monte Carlo online EM (a burst of Carlin-Chib sweeps for
each observation), exact online EM (the same driver with an E-step in closed form) and batch EM (a
few lines of NumPy) are compared with the maximum likelihood point.

    python examples/gaussian_mixture.py
"""

from __future__ import annotations

import time

import numpy as np
import pymc as pm
from sklearn.cluster import KMeans

import pymc_mcoem as mcoem

NOISE = 0.5


class MeasuredMixture(mcoem.Family):
    """y ~ Normal(x, NOISE), x ~ Normal(means[k], variance), k ~ Categorical(weights)."""

    observation = ("y",)

    def __init__(self, n_classes: int = 3) -> None:
        with pm.Model(coords={"class": range(n_classes)}) as self.model:
            weights = pm.Data("weights", np.full(n_classes, 1 / n_classes), dims="class")
            means = pm.Data("means", np.zeros(n_classes), dims="class")
            variance = pm.Data("variance", 1.0)
            y = pm.Data("y", 0.0)
            k = self.class_index = pm.Categorical("class_index", p=weights)
            x = pm.Normal("x", means[k], variance**0.5)
            pm.Normal("measured", x, NOISE, observed=y)
        self.statistics = {"x": x, "square": x**2}

    def maximize(self, statistics, *, effective_size):
        weights = np.maximum(statistics["class_weight"], 1e-12)
        means = statistics["x"] / weights
        variance = np.sum(statistics["square"] - weights * means**2)
        return {"weights": weights, "means": means, "variance": variance}

    def initialize(self, observations, rng, start):
        clusters = KMeans(self.n_classes, n_init=10, random_state=int(rng.integers(2**31)))
        centers = clusters.fit(np.reshape(observations, (-1, 1))).cluster_centers_
        return self.declared_parameters() | {"means": np.sort(centers.ravel())}

    def exact(self, data, parameters):  # only for comparison; OnlineEM does not need it
        return posterior_means(data["y"], parameters)


def posterior_means(y, parameters):
    """Return the means of δ, δx and δx² given y, for one y or, in the last axis, many."""
    y = np.asarray(y)[..., None]
    means, variance = parameters["means"], parameters["variance"]
    spread = variance + NOISE**2
    log_odds = np.log(parameters["weights"]) - 0.5 * (y - means) ** 2 / spread
    odds = np.exp(log_odds - log_odds.max(axis=-1, keepdims=True))
    weight = odds / odds.sum(axis=-1, keepdims=True)
    x = means + variance / spread * (y - means)
    square = x**2 + variance * NOISE**2 / spread
    return {"class_weight": weight, "x": weight * x, "square": weight * square}


def batch_em(family, ys, parameters, n_iterations=20_000, tolerance=1e-10):
    """Return the maximum likelihood point, found by batch EM."""
    for _ in range(n_iterations):
        statistics = {
            name: values.mean(axis=0) for name, values in posterior_means(ys, parameters).items()
        }
        found = family.maximize(statistics, effective_size=len(ys))
        change = max(np.abs(found[name] - parameters[name]).max() for name in found)
        parameters = found
        if change < tolerance:
            break
    return parameters


def free_vector(parameters):
    """Return all weights but the last, the means, and the variance, in one vector."""
    parts = (parameters["weights"][:-1], parameters["means"], parameters["variance"])
    return np.concatenate([np.atleast_1d(part) for part in parts])


def log_likelihood(vector, ys):
    """Return log p(y) of each y at a vector as from `free_vector`."""
    n_classes = len(vector) // 2
    weights = np.append(vector[: n_classes - 1], 1 - vector[: n_classes - 1].sum())
    means, spread = vector[n_classes - 1 : -1], vector[-1] + NOISE**2
    density = np.exp(-0.5 * (ys[:, None] - means) ** 2 / spread) / np.sqrt(2 * np.pi * spread)
    return np.log(density @ weights)


def standard_errors(vector, ys, step=1e-5):
    """Return standard errors at the maximum, from the scores of all observations."""
    scores = np.stack(
        [
            (log_likelihood(vector + shift, ys) - log_likelihood(vector - shift, ys)) / (2 * step)
            for shift in step * np.eye(len(vector))
        ]
    )
    return np.sqrt(np.diag(np.linalg.inv(scores @ scores.T)))


def simulate(rng, size):
    """Return measurements from three classes that overlap a little."""
    k = rng.choice(3, size=size, p=[0.5, 0.3, 0.2])
    x = np.array([-4.0, 0.0, 4.0])[k] + rng.normal(size=size)
    return x + NOISE * rng.normal(size=size)


def one_pass(family, ys, e_step):
    """Return the estimate after one pass, averaged from a tenth of the measurements on."""
    em = mcoem.OnlineEM(
        family,
        e_step=e_step,
        burst_length=mcoem.schedules.BurstLength(draws=50, tune=25),
        average_from=len(ys) // 10,
        random_seed=1,
        progressbar=False,
    )
    return free_vector(em.partial_fit(ys).parameters)


def passes(family, ys, e_step, rng, n_passes=8, n_forgotten=2):
    """Return estimate and Monte Carlo error after repeated passes, each in a new order."""
    em = mcoem.OnlineEM(
        family,
        e_step=e_step,
        burst_length=mcoem.schedules.BurstLength(draws=50, tune=25),
        random_seed=2,
        progressbar=False,
    )
    for _ in range(n_passes):
        em.partial_fit(rng.permutation(ys))
    path = em.history["steps"].to_dataset().isel(step=slice(1, None))
    number = (path["observation"].values - 1) // len(ys)
    means = np.stack(
        [
            free_vector(path.isel(step=number == which).mean("step"))
            for which in range(n_forgotten, n_passes)
        ]
    )
    return means.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(len(means))


def compare(ys, rng, n_passes=8):
    """Return the best point, its standard errors, and the estimates of each method."""
    family = MeasuredMixture()
    start = family.initialize(list(ys[:50]), rng, "kmeans")
    best = free_vector(batch_em(family, ys, start))
    return {
        "best": best,
        "error": standard_errors(best, ys),
        "exact, one pass": one_pass(family, ys, mcoem.esteps.Exact()),
        "bursts, one pass": one_pass(family, ys, mcoem.esteps.CarlinChibBurst()),
        "exact, passes": passes(family, ys, mcoem.esteps.Exact(), rng, n_passes),
        "bursts, passes": passes(family, ys, mcoem.esteps.CarlinChibBurst(), rng, n_passes),
    }


def main() -> None:
    rng = np.random.default_rng(1)
    begun = time.perf_counter()
    found = compare(simulate(rng, 1_500), rng)
    best, error = found["best"], found["error"]
    names = ("weight 1", "weight 2", "mean 1", "mean 2", "mean 3", "variance")
    print("1,500 measurements; batch EM, and how far from it the others are\n")
    print(f"{'':10}{'batch EM':>18}   one pass, in std. errors eight passes, in Monte Carlo errors")
    print(f"{'':10}{'':18}   {'exact':>12}{'bursts':>12}   {'exact':>14}{'bursts':>18}")
    for index, name in enumerate(names):
        once = [
            (found[f"{way}, one pass"][index] - best[index]) / error[index]
            for way in ("exact", "bursts")
        ]
        often = [
            (found[f"{way}, passes"][0][index] - best[index]) / found[f"{way}, passes"][1][index]
            for way in ("exact", "bursts")
        ]
        print(
            f"{name:10}{best[index]:9.3f} ± {error[index]:.3f}    "
            f"{once[0]:12.2f}{once[1]:12.2f}   {often[0]:14.2f}{often[1]:18.2f}"
        )
    print(f"\n{time.perf_counter() - begun:.0f} seconds, compiling and starting included")


if __name__ == "__main__":
    main()
