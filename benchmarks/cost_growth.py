"""How the time of an observation grows with the number of classes and of pixels.

Images of 16 × 16 pixels under 2, 5, 10, 20 and 50 classes, of which few are plausible for each
observation: a template is three discs at random places, and each image is one of them with noise.
Then images of 8 × 8, 28 × 28 and 64 × 64 pixels under two classes. For each: milliseconds of the
mode searches, of the sweeps, of their statistics and of the M-step, medians over observations, and
the memory of the process. What compiling took is told apart.

    python benchmarks/cost_growth.py
    python benchmarks/cost_growth.py --classes 2 5 --sides 8 16
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits
from versions import tell_versions

import pymc_mcoem as mcoem
from pymc_mcoem.em.burst import adaptation_gains

BURN_IN, DRAWS = 25, 50
PARTS = ("modes", "sweeps", "statistics", "M-step")

console = Console(highlight=False)


def discs(side: int, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return images ``(n_classes, side, side)`` of three discs each, at random places."""
    axis = np.linspace(-1, 1, side)
    centres = rng.uniform(-0.7, 0.7, size=(n_classes, 3, 2, 1, 1))
    squares = (axis[:, None] - centres[:, :, 0]) ** 2 + (axis[None, :] - centres[:, :, 1]) ** 2
    return np.exp(-squares / 0.06).sum(axis=1).clip(max=1.0)


def theta_of(mixture: mcoem.TemplateMixture, images: np.ndarray) -> dict[str, np.ndarray]:
    """Return parameters whose templates show the images, ``(n_classes, side, side)``."""
    theta = {name: np.array(value) for name, value in mixture.parameters.items()}
    # kernels sit on the pixels
    design = mixture.settings.basis.matrix(mixture.settings.points)
    theta["templates"] = np.linalg.solve(
        design + 1e-3 * np.eye(len(design)), images.reshape(len(images), -1).T
    ).T.copy()
    theta["noise_variance"] = np.array(0.04)
    theta["deformation_variance"] = np.full(len(images), 0.002)
    return theta


def measure(side: int, n_classes: int, n_observations: int) -> list[str]:
    """Return a row of the table."""
    rng = np.random.default_rng(1)
    mixture = mcoem.TemplateMixture.for_images((side, side), n_classes=n_classes)
    images = discs(side, n_classes, rng)
    shown = images[rng.integers(n_classes, size=n_observations + 1)]
    shown = shown + 0.2 * rng.standard_normal(shown.shape)
    theta = theta_of(mixture, images)
    began = time.perf_counter()
    compiled = mcoem.CarlinChibBurst().compile(mixture)
    total = compiled.statistics.zeros() | {"class_weight": np.zeros(n_classes)}
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    plausible = []
    gains = adaptation_gains(BURN_IN + DRAWS, BURN_IN)
    for index, image in enumerate(shown):
        values = {**theta, **mixture.encode(image)}
        marks = [time.perf_counter()]
        pseudo_priors = compiled.pseudo_priors(values, rng)
        marks.append(time.perf_counter())
        found = compiled.burst(
            rng,
            pseudo_priors.start(rng),
            compiled.burst.initial_log_step,
            pseudo_priors,
            gains,
            values,
        )
        marks.append(time.perf_counter())
        weights = np.full(DRAWS, 1.0 / DRAWS)
        result = compiled.statistics(
            found.class_index[BURN_IN:], found.position[BURN_IN:], weights, values
        )
        marks.append(time.perf_counter())
        total = {name: total[name] + value / len(shown) for name, value in result.items()}
        mixture.maximize(total, effective_size=float(len(shown)))
        marks.append(time.perf_counter())
        if index:  # the first one compiles
            for part, spent in zip(PARTS, np.diff(marks), strict=True):
                seconds[part].append(spent)
            evidence = pseudo_priors.log_evidence
            plausible.append(int((evidence > evidence.max() - 10).sum()))
        else:
            compiling = marks[-1] - began
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    each = [1e3 * statistics.median(seconds[part]) for part in PARTS]
    return [
        f"{side} × {side}",
        str(n_classes),
        f"{statistics.median(plausible):.0f}",
        *(f"{value:.1f}" for value in each),
        f"{sum(each):.0f}",
        f"{compiling:.0f}",
        f"{pages * 4096 / 2**20:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="*", default=[2, 5, 10, 20, 50])
    parser.add_argument("--sides", type=int, nargs="*", default=[8, 28, 64])
    parser.add_argument("--observations", type=int, default=12)
    given = parser.parse_args()
    tell_versions()
    table = Table(title=f"Milliseconds an observation, {BURN_IN} + {DRAWS} sweeps")
    for heading in ("pixels", "C", "plausible", *PARTS, "all", "compiling, s", "MiB"):
        table.add_column(heading, justify="right")
    with threadpool_limits(1):
        cases = [(16, n) for n in given.classes] + [(side, 2) for side in given.sides]
        for side, n_classes in cases:
            row = measure(side, n_classes, given.observations)
            console.print(*row)
            table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
