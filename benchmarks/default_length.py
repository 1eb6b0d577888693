"""What runs lose with shorter bursts: digits and growth curves learnt with bursts of many lengths.

Everything else is the default of ``OnlineEM``. Four streams, each learnt from the same starts with
every length:

- **postal digits**, labels known: a mixture of four templates for each of ten digits, 100 noisy
  images each, priors of ``examples/usps.py``;
- **small digits**, no labels: ``make demo``'s mixture of 15 templates, 1,200 images;
- **growth**: boys and girls as in ``growth.py --plain``, 1,000 draws with return;
- **twice**: 450 noisy images each of the digits 2, 3 and 7, a mixture of four templates for each,
  learnt twice; here lengths also fall with what a class has seen.

For each: the mean log-evidence of other observations, by Laplace's approximation,
as a difference to that of the first length, with its standard error over seeds; the
share of other images named wrongly (of children not in their own sex's group); classes lost, of
weight below a fifth of the mean; milliseconds an observation.

    python benchmarks/default_length.py --only postal        # or small, growth, twice
    python benchmarks/default_length.py --only growth --seeds 10
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import xarray as xr
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.special import logsumexp
from versions import tell_versions

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.em.schedules import BurstSize

ALWAYS = np.inf


@dataclass(frozen=True)
class Length:
    """Draws and burn-in of bursts, that may fall with the observations that a class has seen.

    Each step is (until so many observations for each class, draws, burn-in).
    """

    steps: tuple[tuple[float, int, int], ...]

    @classmethod
    def constant(cls, draws: int, burn_in: int) -> Length:
        return cls(((ALWAYS, draws, burn_in),))

    def of(self, n_classes: int) -> Callable[[int], BurstSize]:
        def size(n: int) -> BurstSize:
            chosen = next(step for step in self.steps if n <= step[0] * n_classes)
            return BurstSize(draws=chosen[1], burn_in=chosen[2])

        return size

    def __str__(self) -> str:
        return ", then ".join(f"{draws} after {burn_in}" for _, draws, burn_in in self.steps)


#: The first is what others are compared with.
LENGTHS = tuple(Length.constant(*size) for size in ((100, 50), (50, 20), (25, 10), (10, 5), (4, 0)))
_LONG = ((25, 100, 50), (50, 50, 20))
FALLING = (
    LENGTHS[0],
    LENGTHS[2],
    LENGTHS[4],
    Length((*_LONG, (100, 25, 10), (ALWAYS, 10, 0))),
    Length((*_LONG, (100, 25, 10), (ALWAYS, 4, 0))),
    Length((*_LONG, (ALWAYS, 25, 10))),
)
NOISE, N_TEST = 0.2, 300
AGES = np.linspace(2.0, 18.0, 31)
JUDGE = mcoem.LaplaceGaussian()

console = Console(highlight=False, width=120)


@dataclass(frozen=True)
class Outcome:
    """What a run is worth on observations that it has not seen."""

    evidence: float
    wrong: float
    lost: int
    milliseconds: float


@dataclass(frozen=True)
class Learnt:
    """Parameters after one pass, and its seconds."""

    parameters: xr.Dataset
    seconds: float


def learn(
    mixture: mcoem.TemplateMixture, stream: np.ndarray, length: Length, seed: object
) -> Learnt:
    """Learn a stream, all but the length of bursts by default."""
    em = mcoem.OnlineEM(
        mixture,
        burst_length=length.of(mixture.n_classes),
        random_seed=seed,
        progressbar=False,
    )
    began = time.perf_counter()
    em.partial_fit(stream)
    return Learnt(em.parameters, time.perf_counter() - began)


def class_evidence(
    mixture: mcoem.TemplateMixture, parameters: xr.Dataset, observations: np.ndarray
) -> np.ndarray:
    """Return log-evidence with weight of every class, ``(n, n_classes)``."""
    search = compiled_for(mixture, JUDGE).approximation
    theta, rng = mixture.check_parameters(parameters), np.random.default_rng(0)
    found = [search({**theta, **mixture.encode(each)}, rng) for each in observations]
    return np.array([each.log_evidence for each in found])


def lost_classes(parameters: xr.Dataset) -> int:
    """Return how many classes weigh less than a fifth of the mean."""
    weights = parameters["weights"].values
    return int(np.sum(weights < 0.2 / len(weights)))


@cache
def postal_mixture() -> mcoem.TemplateMixture:
    """Four templates of a digit, as in ``examples/usps.py``."""
    priors = mcoem.TemplatePriors(weight_concentration=5.0).with_deformation_variance(
        0.005, weight=2_000
    )
    return mcoem.TemplateMixture.for_images((16, 16), n_classes=4, priors=priors)


def postal(length: Length, seed: int, n_images: int = 100) -> Outcome:
    """Learn a mixture for each digit, and tell other images' digits by evidence."""
    data, mixture = mcoem.datasets.load_usps(), postal_mixture()
    images, labels = data["images"].values, data["labels"].values
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(images))
    noisy = images + NOISE * rng.standard_normal(images.shape)
    own = [shuffled[labels[shuffled] == digit][:n_images] for digit in range(10)]
    test = shuffled[~np.isin(shuffled, np.concatenate(own))][:N_TEST]
    found = [learn(mixture, noisy[own[digit]], length, [seed, digit]) for digit in range(10)]
    evidence = np.stack(
        [logsumexp(class_evidence(mixture, each.parameters, noisy[test]), 1) for each in found], 1
    )
    return Outcome(
        float(evidence[np.arange(N_TEST), labels[test]].mean()),
        float(np.mean(evidence.argmax(axis=1) != labels[test])),
        sum(lost_classes(each.parameters) for each in found),
        1_000 * sum(each.seconds for each in found) / (10 * n_images),
    )


def twice(length: Length, seed: int, n_images: int = 450) -> Outcome:
    """Learn mixtures for three digits, and judge each by other images of its own."""
    data, mixture = mcoem.datasets.load_usps(), postal_mixture()
    images, labels = data["images"].values, data["labels"].values
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(images))
    noisy = images + NOISE * rng.standard_normal(images.shape)
    found, evidence = [], []
    for digit in (2, 3, 7):
        own = shuffled[labels[shuffled] == digit]
        first, others = own[:n_images], own[n_images:][:N_TEST]
        again = np.random.default_rng(seed).permutation(first)
        stream = noisy[np.concatenate([first, again])]
        found.append(learn(mixture, stream, length, [seed, digit]))
        there = class_evidence(mixture, found[-1].parameters, noisy[others])
        evidence.append(float(logsumexp(there, axis=1).mean()))
    return Outcome(
        float(np.mean(evidence)),
        np.nan,
        sum(lost_classes(each.parameters) for each in found),
        1_000 * sum(each.seconds for each in found) / (6 * n_images),
    )


@cache
def small_mixture() -> mcoem.TemplateMixture:
    """The mixture of ``make demo``."""
    priors = mcoem.TemplatePriors(weight_concentration=10.0).with_deformation_variance(
        0.0025, weight=2_000
    )
    return mcoem.TemplateMixture.for_images(
        (8, 8), n_classes=15, rigid_variance=0.05, priors=priors
    )


def small(length: Length, seed: int, n_images: int = 1_200) -> Outcome:
    """Learn one mixture of all digits, and name its classes by their majority."""
    digits, mixture = mcoem.datasets.load_digits(), small_mixture()
    images, labels = digits["images"].values, digits["labels"].values
    shuffled = np.random.default_rng(seed).permutation(len(images))
    train, test = shuffled[:n_images], shuffled[n_images:]
    found = learn(mixture, images[train], length, seed)
    named = class_evidence(mixture, found.parameters, images[train[-600:]]).argmax(axis=1)
    names = np.array(mcoem.majority_labels(np.eye(15)[named], labels[train[-600:]]))
    evidence = class_evidence(mixture, found.parameters, images[test])
    return Outcome(
        float(logsumexp(evidence, axis=1).mean()),
        float(np.mean(names[evidence.argmax(axis=1)] != labels[test])),
        lost_classes(found.parameters),
        1_000 * found.seconds / n_images,
    )


@cache
def growth_mixture() -> mcoem.TemplateMixture:
    """Two kinds of growth."""
    return mcoem.TemplateMixture.for_curves(AGES, n_classes=2)


def growth(length: Length, seed: int, n_curves: int = 1_000) -> Outcome:
    """Learn two kinds of growth, and see who is in their own sex's group."""
    data, mixture = mcoem.datasets.load_growth(), growth_mixture()
    sex = (data.sex.values == "male").astype(int)
    curves = mcoem.datasets.growth_velocity(data.height, data.age, AGES)
    order = np.random.default_rng(seed).integers(len(curves), size=n_curves)
    found = learn(mixture, curves[order], length, seed)
    evidence = class_evidence(mixture, found.parameters, curves)
    own = float(np.mean(evidence.argmax(axis=1) == sex))
    return Outcome(
        float(logsumexp(evidence, axis=1).mean()),
        1 - max(own, 1 - own),
        lost_classes(found.parameters),
        1_000 * found.seconds / n_curves,
    )


#: What learns a stream, with how many seeds, and the lengths.
STREAMS: dict[str, tuple[Callable[..., Outcome], int, tuple[Length, ...]]] = {
    "postal": (postal, 3, LENGTHS),
    "small": (small, 5, LENGTHS),
    "growth": (growth, 10, LENGTHS),
    "twice": (twice, 3, FALLING),
}


def tell(name: str, found: dict[Length, list[Outcome]]) -> None:
    """Print one table, of differences to the first."""
    table = Table(title=name)
    for column in ("draws after burn-in", "log-evidence", "wrong, %", "lost", "ms"):
        table.add_column(column, justify="right")
    first = np.array([each.evidence for each in next(iter(found.values()))])
    for length, outcomes in found.items():
        apart = np.array([each.evidence for each in outcomes]) - first[: len(outcomes)]
        wrong = 100 * np.array([each.wrong for each in outcomes])
        root = np.sqrt(len(outcomes))
        table.add_row(
            str(length),
            f"{apart.mean():+.2f} ± {apart.std(ddof=1) / root:.2f}",
            f"{wrong.mean():.1f} ± {wrong.std(ddof=1) / root:.1f}",
            f"{np.mean([each.lost for each in outcomes]):.1f}",
            f"{np.median([each.milliseconds for each in outcomes]):.1f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=STREAMS, nargs="*", default=list(STREAMS))
    parser.add_argument("--seeds", type=int, help="of each; at least two")
    given = parser.parse_args()
    tell_versions()
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    for name in given.only:
        run, n_seeds, lengths = STREAMS[name]
        run(Length.constant(2, 1), 1, 20)  # compiles
        found: dict[Length, list[Outcome]] = {length: [] for length in lengths}
        for seed in track(range(1, (given.seeds or n_seeds) + 1), name, console=console):
            for length, outcomes in found.items():
                outcomes.append(run(length, seed))
                console.print(seed, str(length), outcomes[-1])
        tell(name, found)


if __name__ == "__main__":
    main()
