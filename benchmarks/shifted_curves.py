"""A template mixture that is small enough for an exact E-step: periodic curves shifted in time.

    curve(t) = f_k(t − x) + noise,   x ~ Normal(0, shift_variance),   k ~ Categorical(weights),

at eight equally spaced times of one period, where f_k is a mean and two harmonics. Class index and
shift are the latents, as class index and warp are in the paper's model. The posterior of the shift
is not normal, so that a burst's pseudo-priors are as imperfect as elsewhere. But it has one
dimension, so that sums over a fine grid give E-step, likelihood and Fisher information to rounding
error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

import pymc_mcoem as mcoem
from pymc_mcoem.density.geometry import LatentGeometry

N_POINTS = 8
TIMES = 2 * np.pi * np.arange(N_POINTS) / N_POINTS
#: ΦᵀΦ, the same at every shift since the times are equally spaced around the period.
GRAM = N_POINTS * np.array([1.0, 0.5, 0.5, 0.5, 0.5])
#: Half-width of the grid of shifts in prior standard deviations.
REACH = 6.0

Parameters = Mapping[str, np.ndarray]

#: Three classes that overlap: the most probable one has probability 0.85 on average.
TRUTH: Parameters = {
    "weights": np.array([0.4, 0.35, 0.25]),
    "templates": np.array(
        [[0.0, 1.0, 0.0, 0.6, 0.0], [0.0, 1.0, 0.0, -0.6, 0.0], [0.4, -0.2, 0.7, 0.0, 0.3]]
    ),
    "noise_variance": np.array(0.8),
    "shift_variance": np.array(0.16),
}


def design(away: Any, library: Any = np) -> list[Any]:
    """Return the basis functions, one array each, at times `away`."""
    return [
        1.0 + 0.0 * away,
        library.cos(away),
        library.sin(away),
        library.cos(2 * away),
        library.sin(2 * away),
    ]


class ShiftedCurves(mcoem.Family):
    """Mixture of periodic templates under random shifts.

    `truth` declares the parameters. Mode searches start at the shifts `starts`: if there is little
    noise, a shift has several modes, and a single start at zero finds the wrong one for about one
    curve in a thousand.
    """

    observation = ("curve",)
    class_parameters = ("templates",)

    def __init__(self, truth: Parameters, starts: Sequence[float] | None = None) -> None:
        with pm.Model(
            coords={
                "class": range(len(truth["weights"])),
                "time": TIMES,
                "basis": ["mean", "cos", "sin", "cos 2", "sin 2"],
            }
        ) as self.model:
            weights = pm.Data("weights", truth["weights"], dims="class")
            templates = pm.Data("templates", truth["templates"], dims=("class", "basis"))
            noise_variance = pm.Data("noise_variance", truth["noise_variance"])
            shift_variance = pm.Data("shift_variance", truth["shift_variance"])
            curve = pm.Data("curve", np.zeros(N_POINTS), dims="time")
            k = self.class_index = pm.Categorical("class_index", p=weights)
            x = pm.Normal("shift", 0.0, shift_variance**0.5)
            basis = design(TIMES - x, pm.math)
            mean = sum(templates[k, which] * part for which, part in enumerate(basis))
            pm.Normal("y", mean, noise_variance**0.5, observed=curve, dims="time")
        self.geometry = LatentGeometry(
            starts=None if starts is None else np.reshape(starts, (-1, 1)),
            prior_covariance=pm.math.stack([[shift_variance]]),
        )
        self.statistics = {
            "projection": pm.math.stack([(part * curve).sum() for part in basis]),
            "shift_square": x**2,
            "energy": (curve**2).sum(),
        }

    def maximize(self, statistics, *, effective_size):
        mass = np.maximum(statistics["class_weight"], 1e-12)
        templates = statistics["projection"] / (mass[:, None] * GRAM)
        # Kept away from zero, to which modes can drive them.
        noise = (statistics["energy"].sum() - mass @ (templates**2 @ GRAM)) / N_POINTS
        return {
            "weights": mass / mass.sum(),
            "templates": templates,
            "noise_variance": np.array(max(noise, 1e-6)),
            "shift_variance": np.array(max(statistics["shift_square"].sum(), 1e-6)),
        }

    def exact(self, data, parameters):
        found = posterior(data["curve"][None], parameters).statistics
        return {name: value[0] for name, value in found.items()}


@dataclass(frozen=True)
class Posterior:
    """Exact posterior of n curves.

    Attributes
    ----------
    statistics : dict of str to ndarray
        Posterior means of δ_{k,j} S, ``(n, n_classes, *shape)``.
    log_likelihood : ndarray of shape (n,)
    """

    statistics: dict[str, np.ndarray]
    log_likelihood: np.ndarray


def posterior(curves: np.ndarray, parameters: Parameters) -> Posterior:
    """Return class probabilities and moments of `curves`, ``(n, 8)``, by sums over a grid."""
    deviation = float(parameters["shift_variance"]) ** 0.5
    noise, templates = float(parameters["noise_variance"]), parameters["templates"]
    # Points are half a posterior standard deviation apart. The trapezoidal rule is then exact to
    # rounding for a normal density, and nearly so for others that are as smooth.
    slope = 0.5 * N_POINTS * ((templates[:, 1:] * [1, 1, 2, 2]) ** 2).sum(axis=1).max()
    spacing = 0.5 / np.sqrt(1 / deviation**2 + slope / noise)
    n_grid = max(81, int(2 * REACH * deviation / spacing))
    grid = REACH * deviation * np.linspace(-1.0, 1.0, n_grid)
    projection = np.stack(
        [
            curves @ np.moveaxis(part, 1, 0)
            for part in np.broadcast_arrays(*design(TIMES - grid[:, None]))
        ],
        axis=-1,
    )  # (n, grid, basis)
    energy = (curves**2).sum(axis=1)
    prior = np.exp(-0.5 * (grid / deviation) ** 2)
    log_joint = (
        np.log(parameters["weights"])[:, None]
        + np.log(prior / prior.sum())
        + np.moveaxis(projection @ templates.T, 2, 1) / noise
        - 0.5 * (templates**2 @ GRAM)[:, None] / noise
    )  # (n, class, grid), without terms that depend on the noise alone
    top = log_joint.max(axis=(1, 2), keepdims=True)
    joint = np.exp(log_joint - top)
    total = joint.sum(axis=(1, 2), keepdims=True)
    joint /= total
    weight = joint.sum(axis=2)
    return Posterior(
        statistics={
            "class_weight": weight,
            "projection": joint @ projection,
            "shift_square": joint @ grid**2,
            "energy": weight * energy[:, None],
        },
        log_likelihood=(top + np.log(total))[:, 0, 0]
        - 0.5 * energy / noise
        - 0.5 * N_POINTS * np.log(2 * np.pi * noise),
    )


def scores(statistics: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return scores ``(n, n_free)`` from mean statistics, by Fisher's identity.

    The score is the posterior mean of the complete-data score, which is linear in the statistics;
    the order is that of `free_vector`.
    """
    weights, templates = parameters["weights"], parameters["templates"]
    noise, shift = float(parameters["noise_variance"]), float(parameters["shift_variance"])
    mass, projection = statistics["class_weight"], statistics["projection"]
    residual = (
        statistics["energy"].sum(axis=1)
        - 2 * (projection * templates).sum(axis=(1, 2))
        + mass @ (templates**2 @ GRAM)
    )
    parts = (
        mass[:, :-1] / weights[:-1] - mass[:, -1:] / weights[-1],
        ((projection - mass[:, :, None] * (GRAM * templates)) / noise).reshape(len(mass), -1),
        (-0.5 * N_POINTS / noise + 0.5 * residual / noise**2)[:, None],
        (-0.5 / shift + 0.5 * statistics["shift_square"].sum(axis=1) / shift**2)[:, None],
    )
    return np.concatenate(parts, axis=1)


def free_vector(parameters: Mapping[str, Any]) -> np.ndarray:
    """Return all weights but the last, templates, noise and shift variance, ``(..., n_free)``."""
    weights, templates, noise, shift = (
        np.asarray(parameters[name])
        for name in ("weights", "templates", "noise_variance", "shift_variance")
    )
    flat = templates.reshape(*templates.shape[:-2], -1)
    return np.concatenate([weights[..., :-1], flat, noise[..., None], shift[..., None]], axis=-1)


def simulate(truth: Parameters, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw curves ``(size, 8)``."""
    k = rng.choice(len(truth["weights"]), size=size, p=truth["weights"])
    x = rng.normal(0.0, float(truth["shift_variance"]) ** 0.5, size=size)
    basis = np.stack(design(TIMES - x[:, None]), axis=-1)
    mean = np.einsum("ntb,nb->nt", basis, truth["templates"][k])
    return mean + rng.normal(0.0, float(truth["noise_variance"]) ** 0.5, size=mean.shape)


def perturbed(truth: Parameters, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a start near `truth`, so that all runs end in the same optimum."""
    templates = truth["templates"]
    return {
        "weights": np.full(len(templates), 1 / len(templates)),
        "templates": templates + 0.15 * rng.normal(size=templates.shape),
        "noise_variance": 1.3 * truth["noise_variance"],
        "shift_variance": 1.3 * truth["shift_variance"],
    }


def information(truth: Parameters, size: int = 100_000, seed: int = 0) -> np.ndarray:
    """Return the Fisher information of one curve at `truth`, from the scores of `size` curves."""
    total, rng = 0.0, np.random.default_rng(seed)
    for _ in range(max(size // 1_000, 1)):
        found = posterior(simulate(truth, 1_000, rng), truth).statistics
        score = scores(found, truth)
        total = total + score.T @ score
    return np.asarray(total) / (1_000 * max(size // 1_000, 1))
