"""Compare errors of templates and of rivals on postal digits by the number of learning images.

Images have 16 × 16 pixels in [0, 1] with Normal(0, 0.2²) noise. Every seed draws 1,000 test images
from the whole file, so that digits are as frequent among them as in the file, and from the others
the learning images of every digit. A small learning set is the beginning of a larger one. Rivals
get the same images.

    python benchmarks/usps_error.py                            # 10, 30, 100 and 300 per digit
    python benchmarks/usps_error.py --images 30 --seeds 1
    python benchmarks/usps_error.py --bursts                   # learn by Carlin-Chib bursts
    python benchmarks/usps_error.py --unsupervised             # 500 images of all digits, no labels
    python benchmarks/usps_error.py --rivals                   # rivals alone

Templates are one mixture for each digit, learned by online EM in one pass, and the classifier over
all of their classes (`Classifier`). Every learning set chooses its own priors, step size, naming
rule and number of classes by cross-validation on itself (with 100 or more images per digit, by
naming one quarter), one after the other in the order of `CHOICES`, from the values there: another
value replaces the first if fewer images are named wrongly. All but the number of classes are chosen
on the first 30 images of a digit, with two classes; the number of classes by Laplace's evidence,
for every rule. The number of passes, the mode search, the bounds on a class's images (`A_CLASS`)
and the paper's updates are fixed. The values to choose from, the search and the bounds were found
on 500 labeled images that are in no test set.

Without labels (``--unsupervised``) four mixtures of 15 classes learn 500 images in two passes, from
different starts by k-means, and the one with most evidence in the second pass is kept (`compete`).
Each class is named by the digit that weighs most in it among these images. Priors, and then the
rule, are chosen by the share of these same images that is named wrongly, so that labels affect the
choice, but not learning. Rivals start several times too, have 15 centers, and choose nothing by
labels.

Results are kept in ``output/usps_error/``, by a digest of this file and of the package; an
interrupted run continues from there.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.progress import track
from timing import console, make_table, tell_versions
from usps_rivals import rivals, unsupervised_rivals

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.compiled_cache import compiled_for

NOISE = 0.2
SIZES = (10, 30, 100, 300)
#: Numbers of classes, learning images and competing mixtures, without labels.
N_CLASSES, N_UNLABELED, N_RUNS = 15, 500, 4
#: Settings to choose, in this order, and their values; see `Settings`.
CHOICES: dict[bool, dict[str, tuple[Any, ...]]] = {
    False: {
        "deformation_variance": (None, 0.005, 0.0015),
        "rigid_variance": (0.1, 0.03),
        "step_exponent": (0.6, 0.9),
        "rule": ("laplace", "importance", "expected_likelihood"),
        "n_classes": (2, 1, 3, 4, 6, 10),
    },
    True: {  # without labels
        "deformation_variance": (None, 0.005, 0.0015),
        "rigid_variance": (0.1, 0.03),
        "weight_concentration": (2.0, 10.0),
        "rule": ("laplace", "importance", "expected_likelihood"),
    },
}
#: Images of a digit by which all settings but the number of classes are chosen.
N_FIRST = 30
#: Fewest and most images per class for which a number of classes is tried.
A_CLASS = (5, 75)
#: The paper's, for digits.
FIRST_UPDATES = (10, 15, 20)
#: Number of test images that are classified at a time.
BLOCK = 100
SEARCH = mcoem.pseudo_priors.Laplace()
BY_LAPLACE = mcoem.esteps.LaplaceGaussian(search=SEARCH)
BY_IMPORTANCE = mcoem.esteps.LaplaceGaussian(importance=True, search=SEARCH)
#: Kept draws of every class and sweeps before them, for rules that name images by draws.
DRAWS, TUNE = 100, 10
BY_BURSTS = mcoem.esteps.CarlinChibBurst(
    pseudo_priors=SEARCH, within_class=mcoem.moves.RandomWalk(n_moves=5)
)


@dataclass(frozen=True)
class Settings:
    """Settings that a learning set chooses.

    Attributes
    ----------
    n_classes : int
    deformation_variance : float or None
        Prior value of γ², with the weight of 2,000 observations; None means the package's weak
        prior.
    rigid_variance : float
        Variance of rotation, zoom and shift.
    step_exponent : float
        Exponent κ of the step size n^-κ.
    weight_concentration : float
        Concentration of the Dirichlet prior on weights.
    rule : {"laplace", "importance", "expected_likelihood"}
        Rule that names images: evidence by Laplace's approximation or with importance weights, or
        the paper's rule.
    """

    n_classes: int = 2
    deformation_variance: float | None = None
    rigid_variance: float = 0.1
    step_exponent: float = 0.6
    weight_concentration: float = 2.0
    rule: str = "laplace"

    def __str__(self) -> str:
        """Describe the settings of learning, without the naming rule."""
        variance = self.deformation_variance or "weak"
        return (
            f"C={self.n_classes} γ²={variance} rigid={self.rigid_variance} "
            f"κ={self.step_exponent} ω={self.weight_concentration}"
        )


@dataclass(frozen=True)
class Job:
    """A learning set: the number of images of each digit, or of images without labels.

    Attributes
    ----------
    fold : (int, int) or None
        Number of folds of the learning images, and the fold that is named. None means that the
        test images are named.
    """

    seed: int
    n_images: int
    n_test: int
    unsupervised: bool
    bursts: bool
    folder: Path
    settings: Settings = Settings()
    fold: tuple[int, int] | None = None

    @property
    def groups(self) -> range:
        """Numbers of the mixtures to learn."""
        return range(1 if self.unsupervised else 10)

    def file(self, name: str) -> Path:
        """Return the file of a part of the work."""
        kind = "unsupervised" if self.unsupervised else "digits"
        how = "bursts" if self.bursts else "laplace"
        fold = "" if self.fold is None else f"_fold_{self.fold[1]}_of_{self.fold[0]}"
        stem = f"{kind}_{how}_{self.n_images}_of_seed_{self.seed}_test_{self.n_test}{fold}"
        return self.folder / f"{stem}_{zlib.crc32(str(self.settings).encode()):08x}_{name}"

    def block(self, kind: str, begin: int) -> Path:
        """Return the file of the label probabilities of a block of images."""
        rule = self.settings.rule
        return self.file(
            f"{kind}_{begin}.npz" if rule == "laplace" else f"{kind}_{rule}_{begin}.npz"
        )


@cache
def make_mixture(settings: Settings) -> mcoem.TemplateMixture:
    """Return the paper's digits settings with other priors, one for all digits and seeds."""
    priors = mcoem.TemplatePriors(weight_concentration=settings.weight_concentration)
    if settings.deformation_variance is not None:
        priors = priors.with_deformation_variance(settings.deformation_variance, weight=2_000)
    return mcoem.TemplateMixture.for_images(
        (16, 16), settings.n_classes, rigid_variance=settings.rigid_variance, priors=priors
    )


@cache
def split(job: Job) -> dict[str, np.ndarray]:
    """Draw test images from the whole file and learning images among the others, noise added."""
    data = mcoem.datasets.load_usps()
    images, labels = data["images"].values, data["labels"].values
    rng = np.random.default_rng(job.seed)
    shuffled = rng.permutation(len(images))
    noisy = images + NOISE * rng.standard_normal(images.shape)
    test, others = shuffled[: job.n_test], shuffled[job.n_test :]
    if job.unsupervised:
        learn = others[: job.n_images][None]
    else:
        learn = np.stack([others[labels[others] == digit][: job.n_images] for digit in range(10)])
    if job.fold is not None:
        n_folds, fold = job.fold
        held = np.arange(job.n_images) % n_folds == fold
        learn, test = learn[:, ~held], learn[:, held].ravel()
    return {
        "learn": noisy[learn],
        "learn_labels": labels[learn],
        "test": noisy[test],
        "truth": labels[test],
    }


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to, and move the finished file into its place."""
    beside = path.with_name(f"partial_{path.name}")
    yield beside
    os.replace(beside, path)


def learn(task: tuple[Job, int]) -> None:
    """Learn one mixture and save its parameters."""
    job, group = task
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    images = split(job)["learn"][group]
    e_step = BY_BURSTS if job.bursts else BY_LAPLACE
    mixture = make_mixture(job.settings)
    compiled_for(mixture, e_step)  # before the clock starts, but for what the first call compiles
    options = {
        "e_step": e_step,
        "burst_length": mcoem.schedules.BurstLength(draws=20, tune=5),
        "step_size": mcoem.schedules.StepSize(job.settings.step_exponent),
        "progressbar": False,
    }
    began = time.perf_counter()
    if job.unsupervised:
        order = np.random.default_rng([job.seed, 2]).permutation(len(images))
        em = mcoem.compete(
            mixture,
            np.concatenate([images, images[order]]),
            n_runs=N_RUNS,
            start="kmeans",
            n_start=10 * N_CLASSES,
            random_seed=job.seed,
            **options,
        ).winner
    else:
        em = mcoem.OnlineEM(
            mixture,
            # The paper's updates; with fewer images the first one is after all of them.
            update_schedule=mcoem.schedules.UpdateSchedule.at(
                sorted({min(n, len(images)) for n in FIRST_UPDATES})
            ),
            n_start=min(50, len(images)),
            random_seed=[job.seed, group],
            **options,
        ).partial_fit(images)
    found = em.parameters.assign_attrs(seconds=time.perf_counter() - began)
    with whole(job.file(f"mixture_{group}.nc")) as file:
        found.to_netcdf(file, engine="h5netcdf")


@cache
def make_classifier(job: Job) -> mcoem.Classifier:
    """Return the classifier over all classes of all mixtures, made once in every process."""
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    found = {group: xr.load_dataset(job.file(f"mixture_{group}.nc")) for group in job.groups}
    by_rule: dict[str, dict[str, Any]] = {
        "laplace": {"e_step": BY_LAPLACE},
        "importance": {"e_step": BY_IMPORTANCE},
        "expected_likelihood": {"rule": "expected_likelihood"},
    }
    return mcoem.Classifier(
        make_mixture(job.settings),
        found[0] if job.unsupervised else found,
        draws=DRAWS,
        tune=TUNE,
        random_seed=job.seed,
        progressbar=False,
        **by_rule[job.settings.rule],
    )


def classify(task: tuple[Job, str, int]) -> None:
    """Compute and save the label probabilities of a block of images."""
    job, kind, begin = task
    images = split(job)[kind].reshape(-1, 16, 16)[begin : begin + BLOCK]
    classifier = make_classifier(job)
    classifier.predict_proba(images[:1])  # compiled before the clock starts
    began = time.perf_counter()
    found = classifier.predict_proba(images)
    seconds = time.perf_counter() - began
    with whole(job.block(kind, begin)) as file:
        np.savez(file, found=found, seconds=seconds)


def blocks(job: Job, kind: str) -> list[tuple[Job, str, int]]:
    """Return the tasks that classify all images of a kind."""
    return [(job, kind, begin) for begin in range(0, split(job)[kind].size // 256, BLOCK)]


def read(job: Job, kind: str) -> tuple[np.ndarray, float]:
    """Return the saved label probabilities, and the seconds that they took."""
    kept = [np.load(job.block(kind, begin)) for _, _, begin in blocks(job, kind)]
    return np.concatenate([each["found"] for each in kept]), sum(
        float(each["seconds"]) for each in kept
    )


def work(
    pool: ProcessPoolExecutor, function: Callable[[Any], None], tasks: list[Any], name: str
) -> None:
    """Do all tasks, and show their progress."""
    if tasks:
        done = pool.map(function, tasks)
        for _ in track(done, name, total=len(tasks), console=console):
            pass


def label(job: Job, kind: str, names: np.ndarray | None = None) -> np.ndarray:
    """Return the labels found for all images of a kind."""
    predicted: np.ndarray = read(job, kind)[0].argmax(axis=1)
    return predicted if names is None else names[predicted]


def errors(
    jobs: list[Job], pool: ProcessPoolExecutor, name: str, *, choosing: bool = False
) -> list[dict[str, float]]:
    """Run the missing jobs; return errors in percent and seconds for each job.

    If settings are chosen without labels, test images are not used.
    """
    kinds = ["learn", "test"] if jobs[0].unsupervised else ["test"]
    kinds = kinds[:1] if choosing else kinds
    learning = [
        (job, group)
        for job in jobs
        for group in job.groups
        if not job.file(f"mixture_{group}.nc").exists()
    ]
    work(pool, learn, learning, f"{name}: learning")
    naming = [
        task
        for job in jobs
        for kind in kinds
        for task in blocks(job, kind)
        if not job.block(kind, task[2]).exists()
    ]
    work(pool, classify, naming, f"{name}: naming")
    results = []
    for job in jobs:
        data, names = split(job), None
        n_learned, n_named = (data[kind].size // 256 for kind in ("learn", "test"))
        found = {}
        if job.unsupervised:
            truth = data["learn_labels"][0]
            names = np.array(mcoem.majority_labels(read(job, "learn")[0], truth))
            found["of learning images"] = 100 * np.mean(label(job, "learn", names) != truth)
        if "test" not in kinds:
            results.append({key: float(value) for key, value in found.items()})
            continue
        learned = [
            xr.load_dataset(job.file(f"mixture_{g}.nc")).attrs["seconds"] for g in job.groups
        ]
        found |= {
            "error": 100 * np.mean(label(job, "test", names) != data["truth"]),
            "seconds an image learned": np.sum(learned) / n_learned,
            "seconds an image named": read(job, "test")[1] / n_named,
        }
        results.append({key: float(value) for key, value in found.items()})
    return results


def folds(n_images: int) -> list[tuple[int, int]]:
    """Return the folds by which settings are chosen: all for few images, one for many."""
    n_folds = 5 if n_images < N_FIRST else 3
    return [(n_folds, fold) for fold in range(n_folds)] if n_images <= N_FIRST else [(4, 0)]


def suits(n_classes: int, n_images: int) -> bool:
    """Return whether a number of classes is tried with a number of images."""
    return A_CLASS[0] <= n_images / n_classes <= A_CLASS[1]


def choose(jobs: list[Job], pool: ProcessPoolExecutor) -> list[Job]:
    """Return jobs with the settings that their own learning images choose."""
    unsupervised = jobs[0].unsupervised
    for name, values in CHOICES[unsupervised].items():
        trials: dict[Job, list[list[Job]]] = {}
        for job in jobs:
            n = job.n_images if unsupervised or name == "n_classes" else min(job.n_images, N_FIRST)
            trials[job] = []
            allowed = [v for v in values if name != "n_classes" or suits(v, n)] or values[:1]
            # Naming by draws takes seconds per image with a hundred classes.
            common = job.settings if name != "n_classes" else replace(job.settings, rule="laplace")
            for value in allowed:
                trial = replace(job, n_images=n, settings=replace(common, **{name: value}))
                if unsupervised:
                    trials[job].append([trial])
                else:
                    trials[job].append([replace(trial, fold=fold) for fold in folds(n)])
        every = {part: None for all_of in trials.values() for parts in all_of for part in parts}
        wrong_of = errors(list(every), pool, f"Choosing {name}", choosing=True)
        found = dict(zip(every, wrong_of, strict=True))
        judged = "of learning images" if unsupervised else "error"
        chosen = []
        for job in jobs:
            wrong = [np.mean([found[part][judged] for part in parts]) for parts in trials[job]]
            best = getattr(trials[job][int(np.argmin(np.round(wrong, 6)))][0].settings, name)
            told = ", ".join(
                f"{getattr(parts[0].settings, name)}: {value:.1f}"
                for parts, value in zip(trials[job], wrong, strict=True)
            )
            console.print(f"seed {job.seed}, {job.n_images} images, {name}: {told}")
            chosen.append(replace(job, settings=replace(job.settings, **{name: best})))
        jobs = chosen
    return jobs


def compare(task: tuple[Job, dict[str, Any]]) -> dict[str, float]:
    """Return the errors of rivals on the images of a job."""
    warnings.simplefilter("ignore", UserWarning)
    job, options = task
    method = unsupervised_rivals if job.unsupervised else rivals
    return method(split(job), job.seed, **options)


def main() -> None:
    """Learn, classify, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", help="learning images of a digit")
    parser.add_argument("--seeds", type=int, default=3, help="learning draws")
    parser.add_argument("--test", type=int, default=1_000, help="test images")
    parser.add_argument("--unsupervised", action="store_true", help="one mixture, no labels")
    parser.add_argument("--bursts", action="store_true", help="learn by Carlin-Chib bursts")
    parser.add_argument("--rivals", action="store_true", help="rivals alone")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("output"))
    given = parser.parse_args()
    tell_versions()
    sources = [Path(__file__), *sorted(Path(mcoem.__file__).parent.rglob("*.py"))]
    digest = zlib.crc32(b"".join(path.read_bytes() for path in sources))
    folder = given.output / "usps_error" / f"{digest:08x}"
    folder.mkdir(parents=True, exist_ok=True)
    sizes = given.images or ([N_UNLABELED] if given.unsupervised else list(SIZES))
    begin = Settings(N_CLASSES) if given.unsupervised else Settings()
    jobs = [
        Job(seed, size, given.test, given.unsupervised, given.bursts, folder, begin)
        for size in sorted(sizes, reverse=True)
        for seed in range(1, given.seeds + 1)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=context) as pool:
        results: list[dict[str, float]] = [{} for _ in jobs]
        if not given.rivals:
            jobs = choose(jobs, pool)
            results = errors(jobs, pool, "Test images")
        options = {"n_classes": N_CLASSES} if given.unsupervised else {}
        others = list(
            track(
                pool.map(compare, [(job, options) for job in jobs]),
                "Rivals",
                total=len(jobs),
                console=console,
            )
        )
    of_size: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for job, found, rival in zip(jobs, results, others, strict=True):
        told = ", ".join(f"{name} {value:.3g}" for name, value in (found | rival).items())
        console.print(
            f"seed {job.seed}, {job.n_images} images, {job.settings}, {job.settings.rule}: {told}"
        )
        of_size[job.n_images].append(found | rival)

    table = make_table(
        ("learning images" + ("" if given.unsupervised else " a digit"), *map(str, sizes)),
        title=f"Means of {given.seeds} draws: error in percent on {given.test} images",
    )
    for name in of_size[sizes[0]][0]:
        means = [np.mean([found[name] for found in of_size[size]]) for size in sizes]
        digits = 3 if "seconds" in name else 1
        shown = "templates" if name == "error" else name
        table.add_row(shown, *(f"{mean:.{digits}f}" for mean in means))
    console.print(table)


if __name__ == "__main__":
    main()
