"""Measure what races and cooling of mode searches save, and what they lose.

The data are postal digits of 16 × 16 pixels with noise 0.2; there are four classes and 78 latents.
θ is learned from 20, 100 and 300 images, by Laplace's approximation without a race. Then 60 other
images are searched in different ways: from the undeformed template or also from two that are
turned; to the end or with races of different lengths and margins; with a higher noise at first or
without. The reference is the longest search, cooled from the first of three points to the end.
Reported are the time; how far the evidence of the best class is below the reference, on average and
at most; and on how many images class probabilities by Laplace's evidence are off by more than 0.1.
Any search may win by chance, because there are many modes.

    python benchmarks/mode_race.py           # three minutes
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from rich.progress import track
from scipy.special import softmax
from timing import console, in_turn, make_table, tell_versions

import pymc_mcoem as mcoem
from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.em.esteps.class_fits import family_density
from pymc_mcoem.laplace.approximation import Cooling, Race

LEARNED = (20, 100, 300)
ONE: dict[str, Any] = {"n_searches": 1, "max_iterations": 60}
SEARCHES = {
    "three points, cooled, no race": mcoem.pseudo_priors.Laplace(race=None, max_iterations=60),
    "three points, no race": mcoem.pseudo_priors.Laplace(
        race=None, cooling=None, max_iterations=60
    ),
    "one point, no race": mcoem.pseudo_priors.Laplace(race=None, cooling=None, **ONE),
    "one, cooled, no race": mcoem.pseudo_priors.Laplace(race=None, **ONE),
    "one, cooled for 8, race 8, margin 100": mcoem.pseudo_priors.Laplace(
        race=Race(8, (100.0,)), cooling=Cooling(n_iterations=8), **ONE
    ),
    "one, cooled twice, race 6, margins 100, 50": mcoem.pseudo_priors.Laplace(
        race=Race(6, (100.0, 50.0)), cooling=Cooling((30.0, 5.0), 5), **ONE
    ),
    "one, cooled for 6, race 6, margins 100, 50": mcoem.pseudo_priors.Laplace(
        race=Race(6, (100.0, 50.0)), cooling=Cooling(n_iterations=6), **ONE
    ),
    "one, not cooled, the default's race": mcoem.pseudo_priors.Laplace(n_searches=1, cooling=None),
    "one, cooled for 3, race 3, margins 100, 50: the default": mcoem.pseudo_priors.Laplace(
        n_searches=1
    ),
    "one, cooled for 2, race 2, margins 50, 30, 20": mcoem.pseudo_priors.Laplace(
        n_searches=1, race=Race(2, (50.0, 30.0, 20.0)), cooling=Cooling(n_iterations=2)
    ),
    "three, the default's cooling and race": mcoem.pseudo_priors.Laplace(),
}
MOST = next(iter(SEARCHES))
#: Angles of the two turned starting points, in radians.
ANGLE = 0.35


def thetas(mixture: mcoem.TemplateMixture, images: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Return the parameters after each of `LEARNED` images."""
    em = mcoem.OnlineEM(
        mixture,
        n_start=LEARNED[0],
        e_step=mcoem.esteps.LaplaceGaussian(search=mcoem.pseudo_priors.Laplace(race=None)),
        burst_length=mcoem.schedules.BurstLength(draws=20, tune=0),
        random_seed=1,
        progressbar=False,
    )
    found = []
    for begin, end in zip((0, *LEARNED), LEARNED, strict=False):
        em.partial_fit(images[begin:end])
        found.append({str(name): value.values for name, value in em.parameters.items()})
    return found


def evidences(mixture: mcoem.TemplateMixture, images: np.ndarray, found: Any) -> Any:
    """Return log-evidences by search and stage, (n_images, n_classes), and seconds per image."""
    log_evidence, seconds = {}, {}
    with strict_arithmetic(), mixture.as_declared(), one_blas_thread():
        density, geometry = family_density(mixture), mixture.geometry
        turned = np.zeros((3, density.n_latents))
        turned[1:, 0] = -ANGLE, ANGLE
        geometry = replace(geometry, starts=mixture.geometry.starts[:1] + turned)
        fits = {name: search.compile(density, geometry, None) for name, search in SEARCHES.items()}
        encoded = [mixture.encode(image) for image in images]
        for stage, theta in enumerate(track(found, "Searching")):
            rng = np.random.default_rng(0)
            for name, fit in fits.items():
                fit({**theta, **encoded[0]}, rng)
                seconds[name, stage] = 0.0
            rows: dict[str, list[np.ndarray]] = {name: [] for name in fits}
            for data in encoded:
                ways = {name: partial(fit, {**theta, **data}, rng) for name, fit in fits.items()}
                turns = in_turn(ways, 1, warm_up=False)
                for name in fits:
                    rows[name].append(turns.results[name].log_evidence)
                    seconds[name, stage] += turns.seconds[name][0] / len(images)
            log_evidence |= {(name, stage): np.array(each) for name, each in rows.items()}
    return log_evidence, seconds


def main() -> None:
    """Learn, search, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=60)
    given = parser.parse_args()
    tell_versions()
    mixture = mcoem.TemplateMixture.for_images((16, 16), n_classes=4)
    rng = np.random.default_rng(0)
    images = mcoem.datasets.load_usps()["images"].values
    noisy = (images + 0.2 * rng.standard_normal(images.shape))[rng.permutation(len(images))]
    found = thetas(mixture, noisy)
    log_evidence, seconds = evidences(mixture, noisy[1_000 : 1_000 + given.images], found)
    headings = ("search", "ms", "over the first", "short of it, mean", "most", "off by 0.1")
    rows = []
    for name in SEARCHES:
        ms, ratio, mean, most, off = [], [], [], [], []
        for stage in range(len(LEARNED)):
            without, own = log_evidence[MOST, stage], log_evidence[name, stage]
            short = without.max(axis=1) - own.max(axis=1)
            apart = np.abs(softmax(without, axis=1) - softmax(own, axis=1)).sum(axis=1) / 2
            ms.append(f"{1e3 * seconds[name, stage]:.1f}")
            ratio.append(f"{seconds[name, stage] / seconds[MOST, stage]:.2f}")
            mean.append(f"{short.mean():.2f}")
            most.append(f"{short.max():.1f}")
            off.append(str(int((apart > 0.1).sum())))
        rows.append((name, *(", ".join(each) for each in (ms, ratio, mean, most, off))))
    title = f"{given.images} images; θ after {', '.join(map(str, LEARNED))} images"
    console.print(make_table(headings, rows, title))


if __name__ == "__main__":
    main()
