"""Measure what a few labels are worth: postal digits, ten of each labeled and the others not.

The images are those of `usps_error`: 16 × 16 pixels with Normal(0, 0.2²) noise, 1,000 of them to
test. One mixture with two classes for each digit learns in one pass

- the labeled images alone, the label of a digit allowing its two classes,
- the labeled images and then the others (``OnlineEM.partial_fit(images, labels)``),
- all images without labels, from a start by k-means of ten images a class; the labeled images then
  name the classes (``Classifier.fit``),
- all images with labels, with ``--all``.

Priors and the search are the same for all: a prior on γ² worth 2,000 observations near 0.005, rigid
motions of variance 0.1, steps of n^−0.9, and Laplace's approximation to learn and to name.

    python benchmarks/some_labels.py --seeds 3                        # 10 labeled, 290 others
    python benchmarks/some_labels.py --others 90 --step-exponent 0.6
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from timing import be_silent, begin, console, tell_table
from usps_error import BY_LAPLACE, Job, Settings, make_mixture, split

import pymc_mcoem as mcoem

DIGITS = np.arange(10)
CLASSES_A_DIGIT = 2
#: The digit of each class, where classes belong to digits.
DIGIT_OF_CLASS = np.repeat(DIGITS, CLASSES_A_DIGIT)
ALONE, SOME, NONE, ALL = "labeled alone", "labeled and others", "none labeled", "all labeled"


@dataclass(frozen=True)
class Images:
    """Learning images of a draw with their digits, in the order in which they are learned."""

    labeled: np.ndarray
    labels: np.ndarray
    others: np.ndarray
    labels_of_others: np.ndarray


def learning_images(job: Job, n_labeled: int) -> Images:
    """Return the learning images of all digits, mixed; the first of every digit are labeled."""
    images, rng = split(job)["learn"], np.random.default_rng([job.seed, 5])
    found = []
    for part in (images[:, :n_labeled], images[:, n_labeled:]):
        order = rng.permutation(part.shape[0] * part.shape[1])
        digits = np.repeat(DIGITS, part.shape[1])
        found += [part.reshape(-1, 16, 16)[order], digits[order]]
    return Images(*found)


def classes_of(digits: np.ndarray) -> list[list[int]]:
    """Return labels: the classes of each digit."""
    return [np.flatnonzero(DIGIT_OF_CLASS == digit).tolist() for digit in digits]


def learn(way: str, job: Job, images: Images) -> mcoem.OnlineEM:
    """Return a driver that has learned in one pass."""
    every = np.concatenate([images.labeled, images.others])
    em = mcoem.OnlineEM(
        make_mixture(job.settings),
        e_step=BY_LAPLACE,
        burst_length=mcoem.schedules.BurstLength(draws=20, tune=5),
        step_size=mcoem.schedules.StepSize(job.settings.step_exponent),
        n_start=min(10 * len(DIGIT_OF_CLASS), len(every)) if way == NONE else len(images.labeled),
        random_seed=job.seed,
        progressbar=False,
    )
    if way == NONE:
        return em.partial_fit(every[np.random.default_rng([job.seed, 6]).permutation(len(every))])
    em.partial_fit(images.labeled, classes_of(images.labels))
    if way == SOME:
        em.partial_fit(images.others)
    elif way == ALL:
        em.partial_fit(images.others, classes_of(images.labels_of_others))
    return em


def error(way: str, job: Job, n_labeled: int) -> tuple[float, float, float]:
    """Return the error on test images in percent, and seconds an image learned and named."""
    images, data = learning_images(job, n_labeled), split(job)
    began = time.perf_counter()
    em = learn(way, job, images)
    learned = time.perf_counter() - began
    classifier = mcoem.Classifier(
        make_mixture(job.settings),
        em.parameters,
        labels=None if way == NONE else DIGIT_OF_CLASS,
        e_step=BY_LAPLACE,
        random_seed=job.seed,
        progressbar=False,
    )
    if way == NONE:
        classifier.fit(images.labeled, images.labels)
    began = time.perf_counter()
    named = classifier.predict(data["test"])
    seconds = time.perf_counter() - began
    wrong = float(np.mean(named != data["truth"]))
    return 100 * wrong, learned / em.n_seen, seconds / len(named)


def main() -> None:
    """Learn, classify and print."""
    given = begin(
        __doc__,
        labeled=(10, "labeled images of a digit"),
        others=(290, "images of a digit without labels"),
        step_exponent=(0.9, "κ of the step size n^-κ"),
        seeds=(1, "learning draws"),
        test=(1_000, "test images"),
        all=(False, "learn all images with their labels too"),
        workers=2,
    )
    settings = Settings(len(DIGIT_OF_CLASS), 0.005, step_exponent=given.step_exponent)
    size = given.labeled + given.others
    ways = [ALONE, SOME, NONE, *([ALL] if given.all else [])]
    errors: dict[str, list[float]] = {way: [] for way in ways}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, context, initializer=be_silent) as pool:
        asked = {}
        for seed in range(1, given.seeds + 1):
            job = Job(seed, size, given.test, False, False, Path(), settings)
            for way in ways:
                asked[pool.submit(error, way, job, given.labeled)] = seed, way
        for future in as_completed(asked):
            seed, way = asked[future]
            found, learned, named = future.result()
            console.print(
                f"seed {seed}, {way}: error {found:.1f} %, "
                f"{learned:.2f} s an image learned, {named:.2f} s named"
            )
            errors[way].append(found)
    tell_table(
        ("way", "error, %"),
        [(way, f"{np.mean(found):.1f}") for way, found in errors.items()],
        f"{given.labeled} labeled images a digit and {given.others} others, {given.seeds} draws",
    )


if __name__ == "__main__":
    main()
