"""Where searches for modes should start: at the family's points, or at modes found before.

Postal digits of all kinds with noise, four classes, 78 latents; θ after 20, 100 and 300 of them,
and 200 others, one after another. Of each image the modes of all classes are sought from

* three points, the undeformed template and it turned by −0.35 and 0.35;
* the first of them alone;
* the first of them with more noise at first (`Cooling`), which is the default;
* the mode that the class had for the image before;
* the mode that the class had for that one of the images before which is nearest pixel by pixel;
* the first starting point and that neighbour's mode.

No race: every search runs to its end, and the best of a class is kept. Told is how far the best
class's evidence by Laplace's approximation is behind that from three points, and the time over its.

    python benchmarks/warm_starts.py         # three minutes
"""

from __future__ import annotations

import argparse
import logging
import statistics
from time import perf_counter

import numpy as np
from burst_accuracy import images
from rich.console import Console
from rich.progress import track
from rich.table import Table
from threadpoolctl import threadpool_limits
from versions import tell_versions

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.class_fits import family_density
from pymc_mcoem.laplace.approximation import Cooling, ModeSearch

N_CLASSES = 4
STAGES = 20, 100, 300
COOLED = "the first, cooled"
KINDS = (
    "three points",
    "the first",
    COOLED,
    "the last mode",
    "a neighbour's",
    "the first and a neighbour's",
)


def starts_of(
    kind: str, points: np.ndarray, modes: list[np.ndarray], seen: np.ndarray, image: np.ndarray
) -> np.ndarray:
    """Return starting points, ``(n_classes, n_starts, n_latents)``."""
    first = np.broadcast_to(points[0], (N_CLASSES, 1, points.shape[1]))
    if kind == "three points":
        return np.broadcast_to(points, (N_CLASSES, *points.shape))
    if kind in ("the first", COOLED) or not modes:
        return first
    if kind == "the last mode":
        return modes[-1][:, None]
    nearest = int(np.argmin(((seen[: len(modes)] - image) ** 2).sum(axis=(1, 2))))
    near = modes[nearest][:, None]
    return near if kind == "a neighbour's" else np.concatenate([first, near], axis=1)


def main() -> None:
    """Learn, search, tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    given = parser.parse_args()
    tell_versions()
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    console = Console(highlight=False, width=120)
    mixture = mcoem.TemplateMixture.for_images((16, 16), n_classes=N_CLASSES)
    stream = images(max(STAGES) + given.images, seed=1)
    others = stream[max(STAGES) :]
    e_step = mcoem.CarlinChibBurst(within_class=mcoem.RandomWalk())
    em = mcoem.OnlineEM(mixture, e_step=e_step, random_seed=1, progressbar=False)
    density, geometry = family_density(mixture), mixture.geometry
    settings = {
        "curvature": geometry.curvature,
        "metric": geometry.step_metric(),
        "tolerance": 1e-3,
        "max_iterations": 60,
    }
    search = ModeSearch(density, **settings)
    cooled = ModeSearch(
        density, noise_variance=geometry.noise_variance, cooling=Cooling(), **settings
    )
    points = np.repeat(geometry.starts_of(density)[:1], 3, axis=0)
    points[1:, 0] += -0.35, 0.35
    table = Table(title="Evidence behind that from three points (best class), and time over its")
    for column in ("start", "θ after", "mean", "median", "90 %", "behind by 5", "time"):
        table.add_column(column, justify="left" if column == "start" else "right")
    for stage in STAGES:
        with threadpool_limits(1):
            em.partial_fit(stream[em.n_seen : stage])
            theta = {name: np.array(value) for name, value in em.parameters.items()}
            best = {kind: np.empty(len(others)) for kind in KINDS}
            seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
            modes: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
            for place, image in enumerate(track(others, f"θ after {stage}", console=console)):
                data = {**theta, **mixture.encode(image)}
                for kind in KINDS:
                    starts = starts_of(kind, points, modes[kind], others, image)
                    began = perf_counter()
                    found = (cooled if kind == COOLED else search)(starts, data)
                    seconds[kind].append(perf_counter() - began)
                    best[kind][place] = found.log_evidence.max()
                    modes[kind].append(found.mean)
        for kind in KINDS:
            behind = best[KINDS[0]] - best[kind]
            table.add_row(
                kind,
                str(stage),
                f"{behind.mean():.2f}",
                f"{np.median(behind):.2f}",
                f"{np.quantile(behind, 0.9):.2f}",
                f"{(behind > 5).mean():.2f}",
                f"{statistics.median(seconds[kind]) / statistics.median(seconds[KINDS[0]]):.2f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
