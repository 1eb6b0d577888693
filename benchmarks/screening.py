"""What leaving hopeless classes out saves a classifier, and by how much it changes its answers.

Ten postal digits with four templates each, 40 classes, learnt from 60 images a digit; other
images are then named by bursts and by importance weights, with all classes and with those screened
out that would have no more than the stated probability together were Laplace's approximation wrong
by 20. In turn, block by block. For each:
milliseconds an image, its share of the time with all classes, and the greatest change of a
label's probability. Both change by chance too: the change between two seeds is told beside it.
Laplace's evidence alone draws nothing and is not screened.

    export PYMC_MCOEM_DATA=folder/with/the/data
    python benchmarks/screening.py
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from versions import tell_versions

import pymc_mcoem as mcoem

NOISE, N_LEARNT, N_CLASSES = 0.2, 60, 4
ROUGH = mcoem.LaplaceGaussian()
RULES = {
    "bursts of 50": {"draws": 50, "burn_in": 10},
    "bursts of 500": {"draws": 500, "burn_in": 25},
    "importance weights, 500": {"e_step": mcoem.LaplaceGaussian(importance=True), "draws": 500},
}
AMOUNTS = (0.0, 1e-3, 1e-2)

console = Console(highlight=False, width=120)


def draw(n_test: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return learning images ``(10, N_LEARNT, 16, 16)`` and test images, noise added."""
    data = mcoem.datasets.load_usps()
    images, labels = data["images"].values, data["labels"].values
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    noisy = images + NOISE * rng.standard_normal(images.shape)
    test, others = order[:n_test], order[n_test:]
    learn = np.stack([others[labels[others] == digit][:N_LEARNT] for digit in range(10)])
    return noisy[learn], noisy[test]


def learn(mixture: mcoem.TemplateMixture, images: np.ndarray) -> dict[int, object]:
    """Return the parameters of a mixture for each digit."""
    return {
        digit: mcoem.OnlineEM(mixture, e_step=ROUGH, random_seed=digit, progressbar=False)
        .partial_fit(own)
        .parameters
        for digit, own in enumerate(track(images, "Learning", console=console))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--block", type=int, default=20, help="images of a block")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    tell_versions()
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    learnt, images = draw(given.blocks * given.block, given.seed)
    priors = mcoem.TemplatePriors(weight_concentration=5.0).with_deformation_variance(
        0.005, weight=2_000
    )
    mixture = mcoem.TemplateMixture.for_images((16, 16), N_CLASSES, priors=priors)
    parameters = learn(mixture, learnt)
    ways = {
        (rule, amount): mcoem.Classifier(
            mixture, parameters, screening=amount, progressbar=False, **settings
        )
        for rule, settings in RULES.items()
        for amount in AMOUNTS
    }
    again = {
        rule: mcoem.Classifier(mixture, parameters, random_seed=1, progressbar=False, **settings)
        for rule, settings in RULES.items()
    }
    seconds: dict[tuple[str, float], list[float]] = {way: [] for way in ways}
    found: dict[tuple[str, float], list[np.ndarray]] = {way: [] for way in ways}
    by_chance = dict.fromkeys(RULES, 0.0)
    for way in track(ways, "Compiling", console=console):
        ways[way].predict_proba(images[: given.block])
    for block in track(np.split(images, given.blocks), "Classifying", console=console):
        for way, classifier in ways.items():
            began = time.perf_counter()
            found[way].append(classifier.predict_proba(block))
            seconds[way].append(time.perf_counter() - began)
        for rule, classifier in again.items():
            change = np.abs(classifier.predict_proba(block) - found[rule, 0.0][-1]).max()
            by_chance[rule] = max(by_chance[rule], float(change))
    table = Table(title=f"{len(images)} images, {10 * N_CLASSES} classes; medians over blocks")
    for heading in ("rule", "amount", "ms an image", "time of all", "change", "by chance"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for (rule, amount), spent in seconds.items():
        ratio = statistics.median(np.array(seconds[rule, 0.0]) / np.array(spent))
        change = max(
            np.abs(ours - plain).max()
            for ours, plain in zip(found[rule, amount], found[rule, 0.0], strict=True)
        )
        table.add_row(
            rule,
            f"{amount:g}",
            f"{1e3 * statistics.median(spent) / given.block:.1f}",
            f"{1 / ratio:.2f}",
            f"{change:.1e}" if amount else "",
            f"{by_chance[rule]:.1e}" if not amount else "",
        )
    console.print(table)


if __name__ == "__main__":
    main()
