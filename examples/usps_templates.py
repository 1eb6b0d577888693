"""Draw the paper's figure of templates of postal digits, in a run that can be stopped and resumed.

The figure has three panels (section 5.2, label ``fig:templates``) on 16 × 16 images in [0, 1] with
Normal(0, 0.2²) noise: (a) images as they are learned from; (b) for each digit its own mixture of
four templates, learned from 1,000 images; (c) one mixture of 20 templates, learned from 5,000
images of all digits without their labels. The file has fewer than 1,000 images of a digit, so
streams start again in another order when they end. The weight of each template is above it. In (c)
it is preceded by the digit that weighs most in the class; labels are used for nothing else.

    export PYMC_MCOEM_DATA=folder/with/the/data
    python examples/usps_templates.py --tenth     # a tenth of the images: minutes
    python examples/usps_templates.py             # at the paper's sizes
    python examples/usps_templates.py --draw      # learn nothing, draw what is saved

Each mixture is saved in ``output/`` after every twentieth of its images. You can stop the run at
any time and start it again: it ends with the same templates as without a stop. The picture is
``output/usps_figure.png`` (``usps_figure_tenth.png``).
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.progress import Progress, TextColumn

import pymc_mcoem as mcoem

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

NOISE = 0.2
E_STEP = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(n_moves=10))
#: Parts of a stream after each of which a run is saved, and the fewest images between two saves.
PARTS, LEAST = 20, 25
#: Number of last observations of the stream whose labels name the classes of panel (c).
N_NAMING = 1_000
console = Console(highlight=False)


@dataclass(frozen=True)
class Run:
    """The run of one mixture, of one digit or, if `digit` is None, of all."""

    digit: int | None
    n_images: int
    seed: int
    folder: Path

    @property
    def n_classes(self) -> int:
        return 20 if self.digit is None else 4

    @property
    def name(self) -> str:
        return "all digits" if self.digit is None else f"digit {self.digit}"

    @property
    def file(self) -> Path:
        kind = self.name.replace(" ", "_")
        return self.folder / f"usps_{kind}_{self.n_images}_{self.seed}.nc"


@cache
def make_mixture(n_classes: int) -> mcoem.TemplateMixture:
    """Make a mixture of the paper's digits settings, with priors against one dominant class.

    One mixture serves all digits, so that a process compiles once for each number of classes.
    """
    priors = mcoem.TemplatePriors(weight_concentration=5.0).with_deformation_variance(
        0.005, weight=2_000
    )
    return mcoem.TemplateMixture.for_images(
        (16, 16), n_classes=n_classes, rigid_weight=None, priors=priors
    )


@cache
def stream(digit: int | None, n_images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images and labels in the order of learning, repeated after the last.

    Noise is drawn anew each time that an image is repeated.
    """
    data = mcoem.datasets.load_usps()
    images, labels = data["images"].values, data["labels"].values
    own = np.arange(len(labels)) if digit is None else np.flatnonzero(labels == digit)
    rng = np.random.default_rng([seed, 10 if digit is None else digit])
    rounds = -(-n_images // len(own))
    order = np.concatenate([rng.permutation(own) for _ in range(rounds)])[:n_images]
    return images[order] + NOISE * rng.standard_normal((n_images, 16, 16)), labels[order]


def open_run(run: Run) -> mcoem.OnlineEM:
    """Return the saved run, or a new one."""
    mixture = make_mixture(run.n_classes)
    if run.file.exists():
        return mcoem.OnlineEM.load(run.file, mixture, e_step=E_STEP, progressbar=False)
    unlabeled = run.digit is None
    return mcoem.OnlineEM(
        mixture,
        e_step=E_STEP,
        burst_length=mcoem.schedules.BurstLength(draws=40, tune=20),
        step_size=mcoem.schedules.StepSize(0.75),
        n_start=200 if unlabeled else 50,
        random_seed=[run.seed, 10 if unlabeled else run.digit],
        progressbar=False,
    )


def learn(run: Run) -> tuple[Run, int]:
    """Learn the next part of a stream and save; return the number of images learned so far."""
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    em = open_run(run)
    images, _ = stream(run.digit, run.n_images, run.seed)
    part = images[em.position : em.position + max(run.n_images // PARTS, LEAST)]
    if len(part):
        em.partial_fit(part).save(run.file)
    return run, em.position


def learn_all(runs: list[Run], n_workers: int) -> None:
    """Learn all runs side by side, part by part."""
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(n_workers, mp_context=context) as pool,
        Progress(*Progress.get_default_columns(), TextColumn("{task.fields[name]}")) as progress,
    ):
        bar = progress.add_task("Learning", total=sum(run.n_images for run in runs), name="")
        learned = dict.fromkeys(runs, 0)
        # The run of all digits takes longest, so it starts first.
        waiting = {pool.submit(learn, run) for run in reversed(runs)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                run, learned[run] = future.result()
                progress.update(bar, completed=sum(learned.values()), name=run.name)
                if learned[run] < run.n_images:
                    waiting.add(pool.submit(learn, run))


def show(axis: Axes, image: Any, title: str = "") -> None:
    """Draw one image or template."""
    axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
    axis.set_title(title, fontsize=7, pad=2)
    axis.set_axis_off()


def panel(part: SubFigure, n_columns: int, title: str) -> Iterator[Axes]:
    """Make a panel of ten rows with a title; return its axes, row by row."""
    part.suptitle(title, fontsize=9, y=0.99)
    axes = part.subplots(
        10,
        n_columns,
        gridspec_kw={
            "left": 0.02,
            "right": 0.98,
            "bottom": 0.01,
            "top": 0.93,
            "hspace": 0.32,
            "wspace": 0.1,
        },
    )
    return iter(axes.ravel())


def majority(run: Run, em: mcoem.OnlineEM) -> list[Any] | None:
    """Name classes by the digits of the last images; learning itself used no labels."""
    weights = em.history["observations"]["class_weight"].values
    if not len(weights):  # all images are buffered for the start
        return None
    labels = stream(run.digit, run.n_images, run.seed)[1][: len(weights)]
    return mcoem.majority_labels(weights[-N_NAMING:], labels[-N_NAMING:])


def draw(runs: list[Run], file: Path) -> None:
    """Draw the three panels from the saved runs."""
    figure = plt.figure(figsize=(9.4, 10.2))
    parts = figure.subfigures(1, 3, width_ratios=[4, 4, 2], wspace=0.03)
    *digits, together = runs
    axes = panel(parts[0], 4, "(a) images, noise added\n")
    for run in digits:
        for image in stream(run.digit, run.n_images, run.seed)[0][:4]:
            show(next(axes), image)
    counts = []
    axes = panel(parts[1], 4, "")
    for run in digits:
        if not run.file.exists():
            for _ in range(4):
                next(axes).set_axis_off()
            continue
        em = open_run(run)
        counts.append(em.n_seen)
        draw_templates(axes, em)
    seen = f"{min(counts, default=0):,}"
    parts[1].suptitle(
        f"(b) a mixture for each digit, {seen} images each:\ntemplates with their weights",
        fontsize=9,
        y=0.99,
    )
    axes = panel(parts[2], 2, "")
    seen = "0"
    if together.file.exists():
        em = open_run(together)
        seen = f"{em.n_seen:,}"
        draw_templates(axes, em, majority(together, em))
    for axis in axes:
        axis.set_axis_off()
    parts[2].suptitle(f"(c) one mixture, {seen}\nimages without labels", fontsize=9, y=0.99)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def draw_templates(
    axes: Iterator[Axes], em: mcoem.OnlineEM, names: list[Any] | None = None
) -> None:
    """Draw the templates of a run, by digit where classes have names, the heaviest first."""
    parameters = em.parameters
    images = mcoem.template_images(parameters, em.family)
    weights = parameters["weights"].values
    order = np.lexsort((-weights, np.zeros(len(weights)) if names is None else names))
    for j in order:
        named = "" if names is None else f"{names[j]}: "
        show(next(axes), images.isel({"class": j}), f"{named}{weights[j]:.2f}")


def main() -> None:
    """Learn the rest of each run, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tenth", action="store_true", help="a tenth of the images")
    parser.add_argument("--draw", action="store_true", help="only draw what is saved")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("output"))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    part = 10 if given.tenth else 1
    runs = [Run(digit, 1_000 // part, given.seed, given.output) for digit in range(10)]
    runs.append(Run(None, 5_000 // part, given.seed, given.output))
    file = given.output / f"usps_figure{'_tenth' if given.tenth else ''}.png"
    began = time.perf_counter()
    if not given.draw:
        learn_all(runs, given.workers)
    draw(runs, file)
    console.print(f"All done in {time.perf_counter() - began:.0f} s; see {file}.")


if __name__ == "__main__":
    main()
