"""Measure how errors of templates of warped images fall along a stream, by E-step.

Images of three kinds of strokes are drawn from a mixture that is known, and online EM starts there,
with the default step size n^-0.6. The tables have root mean squared errors of the templates, over
pixels and classes, of the last θ and of θ averaged from observation 50 on; geometric means over
streams.

- Stiff: images of 8 × 8, motions and warps of `number_of_classes.py`. A warp's posterior has one
  mode that counts.
- Loose: images of 12 × 12, turned by up to 30 degrees and moved by up to two pixels, γ² = 0.003.
  "From seven" searches to the end from there and from six motions, which finds higher modes.

    python benchmarks/image_rate.py
    python benchmarks/image_rate.py --loose --observations 1600
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from typing import Any

import numpy as np
from number_of_classes import RIGID, VARIANCE, drawn_strokes
from template_bands import with_truth
from timing import begin, console, tell_table

import pymc_mcoem as mcoem

#: Pixels a side, motions, and variance of warps.
STIFF = (8, RIGID, VARIANCE)
LOOSE = (12, {"degrees": 30, "pixels": 2, "percent": 5}, 0.003)
#: Angle, and shift down and right, of other starts of searches.
ELSEWHERE = {0: 0.35, 2: 0.15, 3: 0.15}
FIRST = 50


def ways() -> dict[str, tuple[Any, int, int, bool]]:
    """Return the E-steps with their draws and tuning, and whether searches have seven starts."""
    whole = mcoem.pseudo_priors.Laplace(race=None)
    burst, laplace = mcoem.esteps.CarlinChibBurst, mcoem.esteps.LaplaceGaussian
    return {
        "Laplace's approximation, 10 draws": (laplace(), 10, 0, False),
        "the same, from seven": (laplace(search=whole), 10, 0, True),
        "bursts of 4 draws": (burst(), 4, 0, False),
        "25 after 10": (burst(), 25, 10, False),
        "25 after 10, from seven": (burst(pseudo_priors=whole), 25, 10, True),
        "100 after 50": (burst(), 100, 50, False),
    }


def make(
    side: int, rigid: dict[str, float], variance: float, from_seven: bool
) -> tuple[mcoem.TemplateMixture, dict[str, np.ndarray]]:
    """Return a mixture and its true θ."""
    mixture = mcoem.TemplateMixture.for_images(
        (side, side),
        3,
        rigid=rigid,
        rigid_weight=None,
        priors=mcoem.TemplatePriors().with_deformation_variance(variance, 2_000),
    )
    mixture, theta = with_truth(mixture, drawn_strokes(3, side=side).reshape(3, -1))
    theta["deformation_variance"] = np.full(3, variance)
    if from_seven:
        starts = np.repeat(mixture.geometry.starts[:1], 7, axis=0)
        for row, (place, step) in enumerate(ELSEWHERE.items()):
            starts[2 * row + 1, place], starts[2 * row + 2, place] = step, -step
        mixture.geometry = dataclasses.replace(mixture.geometry, starts=starts)
    return mixture, theta


def main() -> None:
    """Learn streams, and print errors along them."""
    given = begin(
        __doc__,
        streams=3,
        observations=12_800,
        loose=(False, "images whose warps have several modes"),
        only={"nargs": "+", "choices": list(ways()), "default": list(ways())},
    )
    warnings.simplefilter("ignore")
    marks = [FIRST * 2**k for k in range(20) if FIRST * 2**k <= given.observations]
    rows: dict[str, list[tuple[str, ...]]] = {"the last θ": [], "the averaged θ": []}
    for name in given.only:
        e_step, draws, tune, from_seven = ways()[name]
        logs, began = [], time.perf_counter()
        for seed in range(1, given.streams + 1):
            mixture, truth = make(*(LOOSE if given.loose else STIFF), from_seven)
            stream = mcoem.datasets.simulate_images(mixture, truth, marks[-1], random_seed=seed)
            true = mcoem.template_images(truth, mixture).values
            em = mcoem.OnlineEM(
                mixture,
                e_step=e_step,
                burst_length=mcoem.schedules.BurstLength(draws, tune),
                parameters=truth,
                average_from=FIRST,
                random_seed=seed,
                progressbar=False,
            )
            errors = []
            for begun, mark in zip([0, *marks], marks, strict=False):
                em.partial_fit(stream.images.values[begun:mark])
                found = [
                    mcoem.template_images(theta, mixture).values
                    for theta in (em.last_parameters, em.parameters)
                ]
                errors.append(np.sqrt(np.mean(np.square(found - true), axis=(1, 2, 3))))
            logs.append(np.log(errors))
        seconds = (time.perf_counter() - began) / given.streams
        for what, means in zip(rows, np.exp(np.mean(logs, axis=0)).T, strict=True):
            rows[what].append((name, *(f"{mean:.4f}" for mean in means), f"{seconds:.0f}"))
            console.print(what, *rows[what][-1])
    for what, table in rows.items():
        tell_table(("E-step", *map(str, marks), "s a stream"), table, f"errors of {what}")


if __name__ == "__main__":
    main()
