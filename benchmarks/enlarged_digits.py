"""Compare templates on grids of fewer kernels than pixels, on digits that were enlarged.

Postal digits of 16 × 16 pixels are enlarged by cubic splines. One class a digit learns from labeled
images, in one pass, with every number of kernels in turn. The table has milliseconds an image, the
log-evidence of other images by Laplace's approximation, per pixel and above that of the first
column, and the share of them that is named wrongly.

    python benchmarks/enlarged_digits.py                                 # 28 × 28, half an hour
    python benchmarks/enlarged_digits.py --side 64 --kernels 20 64 --batch 10
    python benchmarks/enlarged_digits.py --learned 20 --tested 20 --kernels 14 20
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from scipy.ndimage import zoom
from threadpoolctl import threadpool_limits
from timing import begin, console, tell_table

import pymc_mcoem as mcoem

#: Standard deviation of the noise that is added to gray values in [0, 1], as in the paper.
NOISE = 0.2


def enlarged(n: int, side: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images (n, side, side) and the digits that they show."""
    data = mcoem.datasets.load_usps()
    chosen = rng.choice(len(data["labels"]), n, replace=False)
    images = data["images"].values[chosen]
    large = np.stack([zoom(image, side / 16, order=3) for image in images])
    return large + NOISE * rng.standard_normal(large.shape), data["labels"].values[chosen]


def explained(
    mixture: mcoem.TemplateMixture, theta: dict[str, np.ndarray], images: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-evidence of each image and its likeliest class, by Laplace's approximation."""
    e_step = mcoem.esteps.LaplaceGaussian().compile(mixture)
    rng, state = np.random.default_rng(0), e_step.initial_state()
    found = [e_step(mixture.encode(each), theta, rng, state, draws=1, tune=0) for each in images]
    evidence = np.array([each.log_evidence for each in found])
    return evidence, np.array([each.statistics["class_weight"].argmax() for each in found])


def main() -> None:
    given = begin(
        __doc__,
        side=28,
        kernels=([28, 20, 16], "on a side, in turn"),
        learned=300,
        tested=200,
        batch=(1, "images a step, since an M-step with a kernel on each pixel takes seconds"),
        seed=1,
    )
    rng = np.random.default_rng(given.seed)
    images, digits = enlarged(given.learned + given.tested, given.side, rng)
    (learned, tested), (labels, truth) = (
        np.split(each, [given.learned]) for each in (images, digits)
    )
    rows, first = [], None
    for n_kernels in given.kernels:
        mixture = mcoem.TemplateMixture.for_images(
            (given.side, given.side),
            n_classes=10,
            n_kernels=n_kernels,
            rigid_weight=None,
            priors=mcoem.TemplatePriors(),
        )
        em = mcoem.OnlineEM(
            mixture,
            random_seed=given.seed,
            n_start=len(learned),
            batch_size=given.batch,
            progressbar=False,
        )
        with threadpool_limits(1):
            began = perf_counter()
            em.partial_fit(learned, labels)
            seconds = perf_counter() - began
            theta = mixture.check_parameters(em.parameters)
            evidence, named = explained(mixture, theta, tested)
        per_pixel = evidence / given.side**2
        first = per_pixel if first is None else first
        away = per_pixel - first
        rows.append(
            [
                str(n_kernels),
                f"{1e3 * seconds / len(learned):.0f}",
                f"{per_pixel.mean():.4f}",
                f"{away.mean():+.5f} ± {away.std() / np.sqrt(len(away)):.5f}",
                f"{100 * np.mean(named != truth):.1f}",
            ]
        )
        console.print(*rows[-1])
    headings = ("kernels", "ms an image", "evidence a pixel", "more than the first", "wrong, %")
    title = f"{given.side} × {given.side} pixels, {given.learned} images learned"
    tell_table(headings, rows, title)


if __name__ == "__main__":
    main()
