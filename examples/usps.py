"""Learn templates of U.S. postal digits, one mixture per digit, and classify with them.

This is the paper's partially supervised study (section 5.2) on 16 × 16 images in [0, 1] with
Normal(0, 0.2²) noise added. Each digit has its own mixture of four classes, learned in one pass
over 100 images, with first M-steps at 10, 15 and 20, then at every image. Then 1,000 other images
are classified by posterior class weight over all digits' classes.

    PYMC_MCOEM_DATA=folder/with/the/data python examples/usps.py

It prints the error of every seed and writes the templates as a picture to ``output/``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from rich.console import Console
from rich.progress import track

import pymc_mcoem as mcoem

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NOISE = 0.2
N_CLASSES = 4
E_STEP = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(n_moves=10))
console = Console()


@cache
def make_mixture() -> mcoem.TemplateMixture:
    """Make a mixture of the paper's digits settings, with priors against one dominant class."""
    priors = mcoem.TemplatePriors(weight_concentration=5.0).with_deformation_variance(
        0.005, weight=2_000
    )
    return mcoem.TemplateMixture.for_images(
        (16, 16), n_classes=N_CLASSES, rigid_weight=None, priors=priors
    )


@cache
def split(seed: int, n_images: int, n_test: int) -> dict[str, np.ndarray]:
    """Draw learning images of every digit and test images among the others, noise added."""
    data = mcoem.datasets.load_usps()
    images, labels = data["images"].values, data["labels"].values
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(images))
    learn = np.concatenate([shuffled[labels[shuffled] == digit][:n_images] for digit in range(10)])
    rest = shuffled[~np.isin(shuffled, learn)][:n_test]
    noisy = images + NOISE * rng.standard_normal(images.shape)
    return {
        "learn": noisy[learn].reshape(10, n_images, 16, 16),
        "test": noisy[rest],
        "truth": labels[rest],
    }


def learn(task: tuple[int, int, int, int]) -> xr.Dataset:
    """Learn one digit's mixture in one pass."""
    seed, n_images, n_test, digit = task
    em = mcoem.OnlineEM(
        make_mixture(),
        e_step=E_STEP,
        burst_length=mcoem.schedules.BurstLength(draws=40, tune=20),
        random_seed=[seed, digit],
        progressbar=False,
    )
    return em.partial_fit(split(seed, n_images, n_test)["learn"][digit]).parameters


@cache
def make_classifier(seed: int, files: tuple[str, ...]) -> mcoem.Classifier:
    """Return the classifier over all digits' classes, made once in every worker."""
    parameters = {digit: xr.load_dataset(file) for digit, file in enumerate(files)}
    return mcoem.Classifier(
        make_mixture(), parameters, draws=30, tune=10, random_seed=seed, progressbar=False
    )


def classify(task: tuple[int, int, int, tuple[str, ...], int, int]) -> np.ndarray:
    """Classify a block of test images."""
    seed, n_images, n_test, files, begin, end = task
    images = split(seed, n_images, n_test)["test"][begin:end]
    return make_classifier(seed, files).predict(images)


def draw(parameters: list[xr.Dataset], file: Path) -> None:
    """Draw four templates of each digit with their weights."""
    figure, axes = plt.subplots(N_CLASSES, 10, figsize=(10, 1.3 * N_CLASSES))
    for digit, found in enumerate(parameters):
        images = mcoem.template_images(found, make_mixture())
        order = np.argsort(-found["weights"].values)
        for axis, j in zip(axes[:, digit], order, strict=True):
            axis.imshow(images.isel({"class": j}), cmap="gray_r", vmin=0, vmax=1)
            axis.set_title(f"{float(found['weights'][j]):.2f}", fontsize=7, pad=2)
            axis.set_axis_off()
    figure.suptitle("Four templates of each digit, with their weights", fontsize=10)
    figure.tight_layout(h_pad=1.0, w_pad=0.2, rect=(0, 0, 1, 0.98))
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Learn, draw, classify."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100, help="learning images a digit")
    parser.add_argument("--test", type=int, default=1_000, help="other images to classify")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("output"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)

    source = mcoem.datasets.load_usps().attrs.get("source", "unknown")
    console.print(f"Images from {source}.")
    errors = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
        for seed in range(1, arguments.seeds + 1):
            began = time.perf_counter()
            tasks = [(seed, arguments.images, arguments.test, digit) for digit in range(10)]
            found = list(track(pool.map(learn, tasks), f"Seed {seed}: learning", total=10))
            learned = time.perf_counter()
            draw(found, arguments.output / f"usps_templates_{seed}.png")
            files = []
            for digit, parameters in enumerate(found):
                files.append(str(arguments.output / f"usps_{seed}_{digit}.nc"))
                parameters.to_netcdf(files[-1], engine="h5netcdf")
            edges = range(0, arguments.test, 50)
            blocks = [
                (seed, arguments.images, arguments.test, tuple(files), begin, begin + 50)
                for begin in edges
            ]
            labels = track(pool.map(classify, blocks), "Classifying", total=len(blocks))
            predicted = np.concatenate(list(labels))
            truth = split(seed, arguments.images, arguments.test)["truth"]
            errors.append(100 * float(np.mean(predicted != truth)))
            console.print(
                f"seed {seed}: error {errors[-1]:.1f} % on {len(truth)} images; learned in "
                f"{learned - began:.0f} s, classified in {time.perf_counter() - learned:.0f} s"
            )
    console.print(
        f"mean error of {len(errors)} seeds: {np.mean(errors):.2f} %; templates in "
        f"{arguments.output / 'usps_templates_1.png'}"
    )


if __name__ == "__main__":
    main()
