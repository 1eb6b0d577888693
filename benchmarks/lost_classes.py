"""Classes that early updates lose, and what bringing them back is worth.

The paper's fully unsupervised setting: 500 postal digits of all kinds with noise 0.2, one mixture
of 15 classes from a random start, one pass. Three ways to update, on the same images from the same
start: plain, which maximises every class at 10, 15, 20 and from then on; the default, where a class
that is not ready waits; and the default with `Revival`. E-step by Laplace's approximation.

For each: classes to which none of the 500 images belongs when the pass is over, classes to which
none of its second half belonged when it was learnt, and the share of other images that are named
wrongly when each class is named by the digit that weighs most in it among the 500. Results are
kept, and what is there is not run again. With ``--small`` they are the digits of scikit-learn,
8 × 8 pixels, with default priors: postal digits take minutes a run.

    python benchmarks/lost_classes.py --seeds 10
    python benchmarks/lost_classes.py --seeds 10 --small
    python benchmarks/lost_classes.py --seeds 10 --start kmeans    # not from random templates
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.compiled_cache import compiled_for

#: Priors of benchmarks/usps_error.py without labels: stiff warps, small classes held up.
DEFORMATION_VARIANCE, CONCENTRATION = 0.0015, 10.0
SEARCH = mcoem.Laplace()
N_IMAGES, N_TEST, N_CLASSES, NOISE = 500, 200, 15, 0.2


class Plain(mcoem.TemplateMixture):
    """A mixture whose classes are maximised whatever they have seen."""

    def ready(self, statistics, *, effective_size):
        return np.ones(self.n_classes, dtype=bool)


E_STEP = mcoem.LaplaceGaussian(search=SEARCH)
PLAIN = {"update_schedule": mcoem.UpdateSchedule.at([10, 15, 20])}
WAYS = {
    "plain": (Plain, PLAIN),
    "default": (mcoem.TemplateMixture, {}),
    "default and revival": (mcoem.TemplateMixture, {"revival": mcoem.Revival()}),
}


def draw(seed: int, small: bool) -> dict[str, np.ndarray]:
    """Draw learning and test images."""
    data = mcoem.datasets.load_digits() if small else mcoem.datasets.load_usps()
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(data["labels"]))[: N_IMAGES + N_TEST]
    images = data["images"].values[chosen]
    images = images + NOISE * rng.standard_normal(images.shape)
    labels = data["labels"].values[chosen]
    return {
        "images": images[:N_IMAGES],
        "labels": labels[:N_IMAGES],
        "test": images[N_IMAGES:],
        "truth": labels[N_IMAGES:],
    }


@cache
def make_mixture(kind: type[mcoem.TemplateMixture], small: bool) -> mcoem.TemplateMixture:
    """One of a kind for all runs, so that it is compiled for once."""
    stiff = mcoem.TemplatePriors(weight_concentration=CONCENTRATION)
    stiff = stiff.with_deformation_variance(DEFORMATION_VARIANCE, weight=2_000)
    shape, priors = ((8, 8), None) if small else ((16, 16), stiff)
    return kind.for_images(shape, N_CLASSES, priors=priors)


def run(seed: int, way: str, start: str, small: bool) -> dict[str, float]:
    """Learn, count lost classes, classify."""
    kind, options = WAYS[way]
    data, mixture = draw(seed, small), make_mixture(kind, small)
    compiled_for(mixture, E_STEP)  # before the clock starts, but for what the first call compiles
    began = time.perf_counter()
    em = mcoem.OnlineEM(
        mixture,
        e_step=E_STEP,
        burst_length=mcoem.BurstLength(draws=20, burn_in=5),
        start=start,
        random_seed=seed,
        progressbar=False,
        **options,
    ).partial_fit(data["images"])
    seconds = time.perf_counter() - began
    classifier = mcoem.Classifier(mixture, em.parameters, e_step=E_STEP, draws=1, progressbar=False)
    learnt = em.history["observations"]["class_weight"].values[N_IMAGES // 2 :]
    weights = classifier.class_probabilities(data["images"])
    names = np.array(mcoem.majority_labels(weights, data["labels"]))
    wrong = names[classifier.predict(data["test"])] != data["truth"]
    troubles = em.history["online_em"].get("trouble")
    revived = [] if troubles is None else [str(name) for name in troubles.values if "half" in name]
    return {
        "empty": int(N_CLASSES - len(np.unique(weights.argmax(axis=1)))),
        "empty while learnt": int(N_CLASSES - len(np.unique(learnt.argmax(axis=1)))),
        "error": float(wrong.mean()),
        "revived": len(revived),
        "seconds": seconds,
    }


def main() -> None:
    """Run what was not run before and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--start", choices=["random", "kmeans"], default="random")
    parser.add_argument("--way", choices=list(WAYS), action="append", help="these alone")
    parser.add_argument("--small", action="store_true", help="8 × 8 pixels")
    parser.add_argument("--output", type=Path, default=Path("output"))
    given = parser.parse_args()
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    console = Console()
    folder = given.output / "lost_classes"
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in given.way or WAYS}
    for seed in range(1, given.seeds + 1):
        for way in found:
            size = "small" if given.small else "whole"
            file = folder / f"{size}_{given.start}_{way.replace(' ', '_')}_seed_{seed}.json"
            if not file.exists():
                file.write_text(json.dumps(run(seed, way, given.start, given.small)))
            row = json.loads(file.read_text())
            found[way].append(row)
            console.print(f"seed {seed}, {way}: {row}", highlight=False)
    table = Table(title=f"{given.seeds} seeds, start {given.start}, {N_IMAGES} images")
    headings = ("", "empty", "runs", "while learnt", "error, %", "± s.e.", "better", "seconds")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    plain = [row["error"] for row in found.get("plain", [])]
    for way, rows in found.items():
        error = np.array([row["error"] for row in rows])
        spread = error.std(ddof=1) / np.sqrt(len(error)) if len(error) > 1 else np.nan
        better = f"{(error < plain).sum()} of {len(error)}" if plain else ""
        table.add_row(
            way,
            f"{np.mean([row['empty'] for row in rows]):.1f}",
            str(sum(row["empty"] > 0 for row in rows)),
            f"{np.mean([row['empty while learnt'] for row in rows]):.1f}",
            f"{100 * error.mean():.1f}",
            f"{100 * spread:.1f}",
            better,
            f"{np.median([row['seconds'] for row in rows]):.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
