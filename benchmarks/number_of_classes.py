"""Measure how often `choose_classes` names the number of kinds that a stream was drawn from.

Streams of curves and of images of 1 to 6 kinds, 500 observations each, are given to candidates of 1
to 8 classes with two starts each.

- Curves have as many bumps as the number of their kind (`simulate_curves`), on clocks whose
  coefficients have a variance of 0.05. Mixtures are those of ``TemplateMixture.for_curves`` without
  a scale, with its default priors.
- Images of 12 × 12 pixels are two or three strokes, turned by up to 10 degrees, shifted by up to a
  pixel and enlarged by up to 5 percent, 95 of 100 by less, and warped with γ² = 0.0005. Mixtures
  have the same priors.

Noise has a variance of 0.01. Bursts make 25 draws after 10. A stream is a call of `choose_classes`,
after one call on another stream that compiles.

    python benchmarks/number_of_classes.py --streams 10        # of each kind of data and number
    python benchmarks/number_of_classes.py --quick             # one stream each, 1 to 3 kinds
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from timing import begin, console, tell_table

import pymc_mcoem as mcoem

SIDE = 12
RIGID = {"degrees": 10, "pixels": 1, "percent": 5}
VARIANCE = 5e-4
PRIORS = mcoem.TemplatePriors().with_deformation_variance(VARIANCE, 2_000)
#: The strokes of each kind of image, from (row, column) to another, on [-1, 1]².
STROKES = (
    (((-0.6, 0.0), (0.6, 0.0)), ((-0.6, 0.0), (-0.3, 0.4))),
    (((0.0, -0.6), (0.0, 0.6)), ((0.0, 0.6), (0.5, 0.6))),
    (((-0.5, -0.5), (0.5, 0.5)), ((-0.5, 0.5), (0.5, -0.5))),
    (((-0.6, -0.5), (0.6, -0.5)), ((0.6, -0.5), (0.6, 0.5))),
    (((-0.6, -0.5), (-0.6, 0.5)), ((-0.6, 0.5), (0.6, -0.5)), ((0.6, -0.5), (0.6, 0.5))),
    (((-0.6, -0.4), (0.6, -0.4)), ((-0.6, 0.4), (0.6, 0.4)), ((0.0, -0.4), (0.0, 0.4))),
)


def make_curves(points: np.ndarray, n_classes: int) -> mcoem.TemplateMixture:
    """Return a mixture for the simulated curves."""
    return mcoem.TemplateMixture.for_curves(
        points, n_classes, scale=None, coefficients="nonnegative"
    )


def make_images(n_classes: int) -> mcoem.TemplateMixture:
    """Return a mixture for the simulated images."""
    return mcoem.TemplateMixture.for_images(
        (SIDE, SIDE), n_classes, rigid=RIGID, rigid_weight=None, priors=PRIORS
    )


def drawn_strokes(n_kinds: int, width: float = 0.16, side: int = SIDE) -> np.ndarray:
    """Return the images of the first kinds, ``(n_kinds, rows, columns)``, of 0 to 1."""
    axis = np.linspace(-1, 1, side)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)

    def stroke(start: tuple[float, float], end: tuple[float, float]) -> np.ndarray:
        way = np.subtract(end, start)
        along = np.clip((points - start) @ way / (way @ way), 0, 1)
        away = np.square(points - start - along[..., None] * way).sum(axis=-1)
        return np.exp(-away / (2 * width**2))

    return np.stack(
        [np.max([stroke(*each) for each in STROKES[k]], axis=0) for k in range(n_kinds)]
    )


def curves(
    n_kinds: int, n: int, seed: int
) -> tuple[Callable[..., mcoem.TemplateMixture], np.ndarray]:
    """Return how to make a mixture, and a stream."""
    drawn = mcoem.datasets.simulate_curves(
        n, n_kinds, deformation_variance=0.05, random_seed=[seed, n_kinds]
    )
    return partial(make_curves, drawn.point.values), drawn.curves.values


def images(
    n_kinds: int, n: int, seed: int
) -> tuple[Callable[..., mcoem.TemplateMixture], np.ndarray]:
    """Return how to make a mixture, and a stream."""
    mixture = make_images(n_kinds)
    truth = mixture.parameters.copy(deep=True)
    flat = drawn_strokes(n_kinds).reshape(n_kinds, -1)
    truth["templates"].values[:] = np.linalg.lstsq(mixture.mean_design(), flat.T, rcond=1e-3)[0].T
    truth["noise_variance"].values[...] = 0.01
    truth["deformation_variance"].values[...] = VARIANCE
    drawn = mcoem.datasets.simulate_images(mixture, truth, n, random_seed=[seed, n_kinds])
    return make_images, drawn.images.values


STREAMS = {"curves": curves, "images": images}


def main() -> None:
    """Draw streams, choose, and print."""
    given = begin(
        __doc__,
        streams=(10, "streams of each kind of data and number of kinds"),
        first_seed=(1, "seed of the first stream"),
        kinds=[1, 2, 3, 4, 5, 6],
        data={"nargs": "+", "choices": list(STREAMS), "default": list(STREAMS)},
        observations=500,
        most=(8, "classes of the largest candidate"),
        workers=(2, "processes; 0 for none"),
        start={"choices": ["kmeans", "random", "exemplars"], "default": "exemplars"},
        merge_and_split=(False, "a second run after each, from the classes of others"),
        quick=(False, "one stream of 1 to 3 kinds"),
    )
    warnings.simplefilter("ignore")
    kinds = [1, 2, 3] if given.quick else given.kinds
    seeds = range(given.first_seed, given.first_seed + (1 if given.quick else given.streams))
    rows = []
    for data in given.data:
        for n_kinds in kinds:
            names, unsure, seconds = [], [], []
            for seed in seeds:
                make, stream = STREAMS[data](n_kinds, given.observations, seed)
                began = time.perf_counter()
                found = mcoem.choose_classes(
                    make,
                    stream,
                    range(1, given.most + 1),
                    burst_length=mcoem.schedules.BurstLength(25, 10),
                    start=given.start,
                    merge_and_split=given.merge_and_split,
                    executor=given.workers or None,
                    random_seed=seed,
                    progressbar=False,
                )
                seconds.append(time.perf_counter() - began)
                names.append(found.number)
                unsure.append(bool(found.unsure))
                console.print(f"{data}, {n_kinds} kinds, seed {seed}, {seconds[-1]:.0f} s: {found}")
            right = np.equal(names, n_kinds)
            rows.append(
                (
                    f"{data}, {n_kinds}",
                    f"{right.sum()} of {len(right)}",
                    " ".join(map(str, names)),
                    f"{np.sum(unsure)}",
                    f"{np.sum(~right & ~np.array(unsure))}",
                    f"{np.median(seconds):.0f}",
                )
            )
    tell_table(
        ("kinds", "right", "named", "unsure", "wrong and not unsure", "seconds a stream"),
        rows,
        f"streams of {given.observations}, candidates 1 to {given.most}, two starts each",
    )


if __name__ == "__main__":
    main()
