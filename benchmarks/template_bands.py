"""Measure whether refined templates are nearer the truth, and inside their bands as often as told.

Observations are drawn from template mixtures with templates that are known. One pass of online EM
over them, averaged from their first quarter on, gives templates; `refine_templates` moves these and
tells their standard errors. Errors are root mean squares over points and classes, and "inside" is
the share of true values within 1.645 standard errors, 0.90 if these were right.

- curves of three kinds with two bumps each, without and with a scale, warps of the prior's
  variance, or of four times it, with a prior that says so;
- images of 8 × 8 and of 12 × 12 pixels, three kinds of strokes.

    python benchmarks/template_bands.py --seeds 5
    python benchmarks/template_bands.py --only curves --rounds 1
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
from number_of_classes import PRIORS, RIGID, VARIANCE, drawn_strokes
from timing import begin, console, tell_table

import pymc_mcoem as mcoem

WEIGHTS = np.array([0.5, 0.3, 0.2])
NOISE = 0.01
#: Heights of the bumps at 0.35 and 0.7 of each kind of curves.
HEIGHTS = ((1.0, 0.4), (0.5, 1.2), (1.0, -0.8))


def with_truth(
    mixture: mcoem.TemplateMixture, shown: np.ndarray
) -> tuple[mcoem.TemplateMixture, dict[str, np.ndarray]]:
    """Return a mixture and θ with templates that are nearest to values on its points."""
    theta = {name: np.array(value) for name, value in mixture.model_parameters().items()}
    design = mixture.mean_design()
    theta["templates"] = np.linalg.lstsq(design, shown.T, rcond=1e-3)[0].T
    theta["noise_variance"] = np.array(NOISE)
    theta["weights"] = WEIGHTS
    return mixture, theta


def curves(
    scale: tuple[float, float] | None = None, variance: float | None = None
) -> tuple[mcoem.TemplateMixture, dict[str, np.ndarray]]:
    """Return a mixture of curves and its true θ."""
    time_axis = np.linspace(0.0, 1.0, 41)
    mixture = mcoem.TemplateMixture.for_curves(time_axis, 3, scale=scale, coefficients="real")
    if variance is not None:
        priors = mixture.priors.with_deformation_variance(variance, 200)
        mixture = mixture.with_classes(3, priors=priors)
    bumps = [np.exp(-np.square((time_axis - at) / 0.09)) for at in (0.35, 0.7)]
    return with_truth(mixture, np.array(HEIGHTS) @ bumps)


def images(side: int) -> tuple[mcoem.TemplateMixture, dict[str, np.ndarray]]:
    """Return a mixture of images and its true θ."""
    mixture = mcoem.TemplateMixture.for_images(
        (side, side), 3, rigid=RIGID, rigid_weight=None, priors=PRIORS
    )
    mixture, theta = with_truth(mixture, drawn_strokes(3, side=side).reshape(3, -1))
    theta["deformation_variance"] = np.full(3, VARIANCE)
    return mixture, theta


DATA: dict[str, tuple[Callable[[], tuple[mcoem.TemplateMixture, dict[str, np.ndarray]]], int]] = {
    "curves": (curves, 300),
    "curves, few": (curves, 60),
    "curves, many": (curves, 1_500),
    "curves with a scale": (lambda: curves((10.0, 10.0)), 300),
    "curves, strong warps": (lambda: curves(variance=0.05), 300),
    "images 8 × 8": (lambda: images(8), 300),
    "images 12 × 12": (lambda: images(12), 300),
}


def main() -> None:
    """Draw, learn, refine and print."""
    given = begin(
        __doc__,
        seeds=(3, "streams of each"),
        first_seed=1,
        only={"nargs": "+", "choices": list(DATA), "default": list(DATA)},
        rounds=(2, "rounds of refinement"),
        draws=(50, "draws of each burst of a round"),
        observations=(0, "observations; 0 for the default of each"),
    )
    warnings.simplefilter("ignore")
    rows = []
    for name in given.only:
        make, number = DATA[name]
        number = given.observations or number
        found = []
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            mixture, truth = make()
            drawn = mcoem.datasets.simulate_images(mixture, truth, number, random_seed=seed)
            stream = drawn.images.values
            began = time.perf_counter()
            em = mcoem.OnlineEM(
                mixture,
                random_seed=seed,
                progressbar=False,
                burst_length=mcoem.schedules.BurstLength(25, 10),
                n_start=min(60, number),
                start="exemplars",
                average_from=number // 4,
            ).partial_fit(stream)
            learned = time.perf_counter() - began
            began = time.perf_counter()
            refined = mcoem.refine_templates(
                em.parameters,
                mixture,
                stream,
                rounds=given.rounds,
                draws=given.draws,
                random_seed=seed,
                progressbar=False,
            )
            seconds = time.perf_counter() - began
            order = mixture.class_distances(truth, mixture.check_parameters(em.parameters))
            order = order.argmin(axis=1)
            true = mcoem.template_images(truth, mixture).values
            before = mcoem.template_images(em.parameters, mixture).values[order] - true
            after = refined.templates.template.values[order] - true
            errors = refined.templates.template_sd.values[order]
            sizes = [float(np.sqrt(np.mean(np.square(x)))) for x in (before, after, errors)]
            inside = [float(np.mean(np.abs(x) < 1.645 * errors)) for x in (after, before)]
            found.append([*sizes, *inside, learned, seconds])
            console.print(
                f"{name}, seed {seed}, classes {order}: error {sizes[0]:.3f}, "
                f"refined {sizes[1]:.3f}, standard error {sizes[2]:.3f}, "
                f"inside {inside[0]:.2f} ({inside[1]:.2f} before), "
                f"last step {refined.templates.last_step.values.round(2)}, "
                f"{learned:.0f} s and {seconds:.0f} s"
            )
        middle = np.mean(found, axis=0)
        rows.append(
            (
                f"{name}, {number}",
                *(f"{value:.3f}" for value in middle[:3]),
                *(f"{value:.2f}" for value in middle[3:5]),
                *(f"{value:.0f}" for value in middle[5:]),
            )
        )
    tell_table(
        (
            "data",
            "error",
            "refined",
            "standard error",
            "inside",
            "before",
            "s learned",
            "s refined",
        ),
        rows,
        f"means of {given.seeds} streams",
    )


if __name__ == "__main__":
    main()
