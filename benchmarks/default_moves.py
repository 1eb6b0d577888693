"""Compare moves within a class: which is the default of `pm.sample`, and which that of bursts?

``pm.sample(step=CarlinChib(within_class=...))`` samples models with a class index: counts with one
latent, logistic regressions with ten and forty, a funnel with six. Bursts sample one curve and one
image. Effective draws a second, of the class index and of the latent that mixes worst, are medians
over rounds in which the moves take turns. Compiling is not counted.

    python benchmarks/default_moves.py --quick
    python benchmarks/default_moves.py
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from timing import begin, medians, tell_table

import pymc_mcoem as mcoem

MOVES = {
    "5 moves": mcoem.moves.RandomWalk(n_moves=5),
    "20 moves": mcoem.moves.RandomWalk(n_moves=20),
    "Hamiltonian": mcoem.moves.Hamiltonian(n_moves=1, n_leapfrog=8),
}
WEIGHTS = [0.5, 0.3, 0.2]

#: Returns draws and the seconds that they took.
Sampler = Callable[[], tuple[xr.DataTree, float]]


def counts() -> pm.Model:
    """Return twenty counts, whose rate has a prior by class."""
    y = np.random.default_rng(1).poisson(3.0, size=20)
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS)
        x = pm.Normal("x", pm.math.constant([0.5, 1.0, 1.5])[k], 0.5)
        pm.Poisson("y", pm.math.exp(x), observed=y)
    return model


def logistic(n: int = 10) -> pm.Model:
    """Return a logistic regression of n coefficients, whose priors' widths are the classes."""
    rng = np.random.default_rng(1)
    design = rng.normal(size=(10 * n, n))
    y = rng.random(10 * n) < 1 / (1 + np.exp(-design @ rng.normal(size=n)))
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS)
        x = pm.Normal("x", 0.0, pm.math.constant([0.5, 1.0, 2.0])[k], shape=n)
        pm.Bernoulli("y", logit_p=pm.math.dot(design, x), observed=y)
    return model


def funnel() -> pm.Model:
    """Return a funnel: the spread of five latents is the exponential of a sixth."""
    with pm.Model() as model:
        k = pm.Categorical("k", WEIGHTS)
        log_spread = pm.Normal("log_spread", pm.math.constant([-1.0, 0.0, 1.0])[k], 1.0)
        pm.Normal("x", 0.0, pm.math.exp(log_spread), shape=5)
    return model


def by_step(make: Callable[[], pm.Model], move: Any, draws: int) -> Sampler:
    """Return a function that samples a model with `pm.sample`."""
    model = make()
    step = mcoem.CarlinChib(within_class=move, model=model)

    def sample() -> tuple[xr.DataTree, float]:
        settings = {"tune": 500, "chains": 4, "cores": 1, "random_seed": 1, "progressbar": False}
        tree = pm.sample(
            draws, step=step, model=model, compute_convergence_checks=False, **settings
        )
        return tree, float(tree["posterior"].attrs["sampling_time"])

    return sample


def by_burst(
    mixture: mcoem.TemplateMixture, theta: Any, observation: Any, move: Any, draws: int
) -> Sampler:
    """Return a function that samples the class and the warp of one observation."""
    e_step = mcoem.esteps.CarlinChibBurst(within_class=move)

    def sample() -> tuple[xr.DataTree, float]:
        began = time.perf_counter()
        tree = mcoem.sample_burst(
            mixture,
            observation,
            theta,
            e_step=e_step,
            draws=draws,
            random_seed=1,
            progressbar=False,
        )
        return tree, time.perf_counter() - began

    return sample


@functools.cache
def learned_curves() -> tuple[mcoem.TemplateMixture, xr.Dataset, xr.DataArray]:
    """Return three classes of curves, templates learned from two hundred, and another curve."""
    curves = mcoem.datasets.simulate_curves(
        201, n_classes=3, noise_variance=0.2, random_seed=1
    ).curves
    mixture = mcoem.TemplateMixture.for_curves(curves.point, 3)
    em = mcoem.OnlineEM(mixture, random_seed=1, progressbar=False).partial_fit(curves[:200])
    return mixture, em.parameters, curves[200]


@functools.cache
def learned_images() -> tuple[mcoem.TemplateMixture, xr.Dataset, np.ndarray]:
    """Return one class of images with 128 displacements, its template, and another image."""
    digits = mcoem.datasets.load_digits()
    images = digits.images.values[digits.labels.values == 3]
    mixture = mcoem.TemplateMixture.for_images(
        images.shape[1:], 1, n_landmarks=8, rigid_weight=None, priors=mcoem.TemplatePriors()
    )
    em = mcoem.OnlineEM(mixture, random_seed=1, progressbar=False).partial_fit(images[:30])
    return mixture, em.parameters, images[30]


PROBLEMS: Mapping[str, Callable[[Any, int], Sampler]] = {
    "pm.sample: counts": lambda move, draws: by_step(counts, move, draws),
    "pm.sample: logistic, 10": lambda move, draws: by_step(logistic, move, draws),
    "pm.sample: logistic, 40": lambda move, draws: by_step(lambda: logistic(40), move, draws),
    "pm.sample: funnel": lambda move, draws: by_step(funnel, move, draws),
    "burst: curve": lambda move, draws: by_burst(*learned_curves(), move, draws),
    "burst: image": lambda move, draws: by_burst(*learned_images(), move, draws),
}


def effective(tree: xr.DataTree) -> tuple[float, float]:
    """Return the effective sizes of the index, by its worst class, and of the worst latent."""
    posterior = tree["posterior"].to_dataset()
    (index,) = (each for each in posterior.data_vars if posterior[each].dtype.kind in "iu")
    classes = [c for c in np.unique(posterior[index]) if 0 < (posterior[index] == c).mean() < 1]
    of_index = [float(az.ess((posterior[index] == c).astype(float).values)) for c in classes]
    latents = az.ess(posterior.drop_vars([index]))
    worst = min(float(each.min()) for each in latents.data_vars.values())
    return min(of_index, default=np.nan), worst


def main() -> None:
    """Measure and print the table."""
    options = begin(__doc__, quick=False, rounds=3, only=[""])
    draws, rounds = (500, 1) if options.quick else (1_000, options.rounds)
    warnings.filterwarnings("ignore")
    rows = []
    for name, make in PROBLEMS.items():
        if not any(each in name for each in options.only):
            continue
        samplers = {move: make(settings, draws) for move, settings in MOVES.items()}
        rates: dict[str, list[tuple[float, float]]] = {move: [] for move in samplers}
        for number in range(rounds + 1):
            for move, sample in samplers.items():
                tree, seconds = sample()
                if number:  # the first one compiles
                    rates[move].append(tuple(size / seconds for size in effective(tree)))
        index, latent = (medians({m: [r[i] for r in rates[m]] for m in rates}) for i in range(2))
        rows.append(
            [
                name,
                *(
                    f"{'–' if np.isnan(index[move]) else f'{index[move]:,.0f}'} {latent[move]:,.0f}"
                    for move in MOVES
                ),
            ]
        )
    tell_table(["effective draws a second, index and worst latent", *MOVES], rows)


if __name__ == "__main__":
    main()
