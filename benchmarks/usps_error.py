"""Compare errors of templates and of rivals on postal digits by the number of learning images.

Images have 16 × 16 pixels in [0, 1] with Normal(0, 0.2²) noise. Every seed draws 1,000 test images
from the whole file, so that digits are as frequent among them as in the file, and from the others
the learning images of every digit. A small learning set is the beginning of a larger one. Rivals
get the same images.

    python benchmarks/usps_error.py                            # 10, 30, 100 and 300 per digit
    python benchmarks/usps_error.py --images 30 --seeds 1
    python benchmarks/usps_error.py --plain                    # nothing is chosen
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

With ``--plain`` nothing is chosen: the default mixture with motions that begin at the variance
0.02, two passes with the step size n^-0.75, and the numbers of classes and factors in `PLAIN`;
without labels, the default mixture and step size.

Without labels (``--unsupervised``) four mixtures of 15 classes learn 500 images in two passes, from
different starts by k-means, and the one with most evidence in the second pass is kept (`compete`).
Each class is named by the digit that weighs most in it among these images. Priors, and then the
rule, are chosen by the share of these same images that is named wrongly, so that labels affect the
choice, but not learning. Rivals start several times too, have 15 centers, and choose nothing by
labels.

Parts of the work are kept in ``output/usps_error/``, by a digest of this file and of the package;
an interrupted run continues from there. Rivals need ten images of a digit or more.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.progress import track
from timing import be_silent, begin, console, tell_table
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
#: Classes and factors by the number of a digit's images, where nothing is chosen.
PLAIN = {10: (1, 0), 30: (2, 0), 100: (4, 2), 300: (8, 0)}
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
    deformation_variance : float or None or "default"
        Prior value of γ², with the weight of 2,000 observations; None means the package's weak
        prior, "default" that of images.
    rigid_variance : float
        Variance of rotation, zoom and shift, or the mode of their prior.
    rigid_weight : float or None
        Weight of that prior, if variances are learned. The default mixture has 3.
    n_factors : int
    step_exponent : float
        Exponent κ of the step size n^-κ.
    n_passes : int
        Passes over the learning images, each in another order.
    weight_concentration : float
        Concentration of the Dirichlet prior on weights.
    rule : {"laplace", "importance", "expected_likelihood"}
        Rule that names images: evidence by Laplace's approximation or with importance weights, or
        the paper's rule.
    """

    n_classes: int = 2
    deformation_variance: float | str | None = None
    rigid_variance: float = 0.1
    rigid_weight: float | None = None
    n_factors: int = 0
    step_exponent: float = 0.6
    n_passes: int = 1
    weight_concentration: float = 2.0
    rule: str = "laplace"

    def __str__(self) -> str:
        """Describe the settings of learning, without the naming rule."""
        variance = self.deformation_variance or "weak"
        return (
            f"C={self.n_classes} γ²={variance} rigid={self.rigid_variance} "
            f"weight={self.rigid_weight} factors={self.n_factors} "
            f"κ={self.step_exponent} passes={self.n_passes} ω={self.weight_concentration}"
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

    @property
    def learning(self) -> Job:
        """The job with the same mixtures for every rule of naming."""
        return replace(self, settings=replace(self.settings, rule="laplace"))


#: A part of the work: a function of a job and of what else tells parts apart.
Task = tuple[Callable[..., Any], Job, *tuple[Any, ...]]


def done(task: Task) -> Any:
    """Return the result of a part of the work, which is kept in a file and done once."""
    function, job, *others = task
    digest = hashlib.sha256(repr((job, others)).encode()).hexdigest()[:20]
    file = job.folder / f"{function.__name__}_{digest}.pickle"
    if not file.exists():
        content = pickle.dumps(function(job, *others))
        beside = file.with_suffix(".partial")
        beside.write_bytes(content)
        os.replace(beside, file)
    return pickle.loads(file.read_bytes())


def all_done(pool: ProcessPoolExecutor, tasks: list[Task], name: str) -> list[Any]:
    """Return the results of all tasks, and show their progress."""
    found = pool.map(done, tasks)
    return list(track(found, name, total=len(tasks), console=console))


@cache
def make_mixture(settings: Settings) -> mcoem.TemplateMixture:
    """Return the paper's digits settings with other priors, one for all digits and seeds."""
    variance, priors = settings.deformation_variance, None
    if not isinstance(variance, str):
        priors = mcoem.TemplatePriors(weight_concentration=settings.weight_concentration)
        if variance is not None:
            priors = priors.with_deformation_variance(variance, weight=2_000)
    return mcoem.TemplateMixture.for_images(
        (16, 16),
        settings.n_classes,
        rigid_variance=settings.rigid_variance,
        rigid_weight=settings.rigid_weight,
        n_factors=settings.n_factors,
        priors=priors,
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


def learn(job: Job, group: int) -> tuple[xr.Dataset, float]:
    """Return the parameters of one mixture, and the seconds of learning it."""
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
    orders = np.random.default_rng([job.seed, 2])
    more = [images[orders.permutation(len(images))] for _ in range(job.settings.n_passes - 1)]
    stream = np.concatenate([images, *more])
    if job.unsupervised:
        em = mcoem.compete(
            mixture,
            stream,
            n_runs=N_RUNS,
            start="kmeans",
            n_start=10 * N_CLASSES,
            random_seed=job.seed,
            **options,
        ).winner
    else:
        em = mcoem.OnlineEM(
            mixture,
            # The paper's updates; with fewer images the first one is after the first pass.
            update_schedule=mcoem.schedules.UpdateSchedule(
                sorted({min(n, len(images)) for n in FIRST_UPDATES})
            ),
            n_start=min(50, len(images)),
            random_seed=[job.seed, group],
            **options,
        ).partial_fit(stream)
    return em.parameters, time.perf_counter() - began


@cache
def make_classifier(job: Job) -> mcoem.Classifier:
    """Return the classifier over all classes of all mixtures, made once in every process."""
    found = {group: done((learn, job.learning, group))[0] for group in job.groups}
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


def classify(job: Job, kind: str, first: int) -> tuple[np.ndarray, float]:
    """Return the label probabilities of a block of images, and the seconds that they took."""
    images = split(job)[kind].reshape(-1, 16, 16)[first : first + BLOCK]
    classifier = make_classifier(job)
    classifier.predict_proba(images[:1])  # compiled before the clock starts
    began = time.perf_counter()
    found = classifier.predict_proba(images)
    return found, time.perf_counter() - began


def errors(
    jobs: list[Job], pool: ProcessPoolExecutor, name: str, *, choosing: bool = False
) -> list[dict[str, float]]:
    """Return errors in percent and seconds for each job.

    If settings are chosen without labels, test images are not used.
    """
    kinds = ["learn", "test"] if jobs[0].unsupervised else ["test"]
    kinds = kinds[:1] if choosing else kinds
    learning = [(learn, job.learning, group) for job in jobs for group in job.groups]
    all_done(pool, list(dict.fromkeys(learning)), f"{name}: learning")
    blocks = {
        (job, kind): [(classify, job, kind, first) for first in range(0, n_images, BLOCK)]
        for job in jobs
        for kind in kinds
        for n_images in [split(job)[kind].size // 256]
    }
    all_done(pool, [task for tasks in blocks.values() for task in tasks], f"{name}: naming")
    results = []
    for job in jobs:
        data, names = split(job), np.arange(10)
        named = {kind: list(map(done, blocks[job, kind])) for kind in kinds}
        found = {}
        if job.unsupervised:
            truth = data["learn_labels"][0]
            weights = np.concatenate([each for each, _ in named["learn"]])
            names = np.array(mcoem.majority_labels(weights, truth))
            wrong = names[weights.argmax(axis=1)] != truth
            found["of learning images"] = 100 * np.mean(wrong)
        if "test" in kinds:
            n_learned, n_named = (data[kind].size // 256 for kind in ("learn", "test"))
            labels = names[np.concatenate([each for each, _ in named["test"]]).argmax(axis=1)]
            spent = sum(done((learn, job.learning, group))[1] for group in job.groups)
            found["error"] = 100 * np.mean(labels != data["truth"])
            found["seconds an image learned"] = spent / n_learned
            found["seconds an image named"] = sum(each for _, each in named["test"]) / n_named
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


def plain(job: Job) -> Job:
    """Return a job with settings that no image chose."""
    if job.unsupervised:
        return replace(job, settings=Settings(N_CLASSES, "default", rigid_weight=3.0, n_passes=2))
    n_classes, n_factors = PLAIN[job.n_images]
    settings = Settings(
        n_classes,
        deformation_variance="default",
        rigid_variance=0.02,
        rigid_weight=3.0,
        n_factors=n_factors,
        step_exponent=0.75,
        n_passes=2,
    )
    return replace(job, settings=settings)


def compare(job: Job) -> dict[str, float]:
    """Return the errors of rivals on the images of a job."""
    warnings.simplefilter("ignore", UserWarning)
    if job.unsupervised:
        return unsupervised_rivals(split(job), job.seed, N_CLASSES)
    return rivals(split(job), job.seed)


def main() -> None:
    """Learn, classify, compare, and print."""
    given = begin(
        __doc__,
        images=({"type": int, "nargs": "+"}, "learning images of a digit"),
        seeds=(3, "learning draws"),
        test=(1_000, "test images"),
        unsupervised=(False, "one mixture, no labels"),
        bursts=(False, "learn by Carlin-Chib bursts"),
        rivals=(False, "rivals alone"),
        plain=(False, "choose nothing"),
        first_seed=(1, "first draw"),
        workers=2,
        output=Path("output"),
    )
    sources = [Path(__file__), *sorted(Path(mcoem.__file__).parent.rglob("*.py"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    folder = given.output / "usps_error" / digest[:8]
    folder.mkdir(parents=True, exist_ok=True)
    sizes = given.images or ([N_UNLABELED] if given.unsupervised else list(SIZES))
    first = Settings(N_CLASSES, n_passes=2) if given.unsupervised else Settings()
    jobs = [
        Job(seed, size, given.test, given.unsupervised, given.bursts, folder, first)
        for size in sorted(sizes, reverse=True)
        for seed in range(given.first_seed, given.first_seed + given.seeds)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, context, initializer=be_silent) as pool:
        results: list[dict[str, float]] = [{} for _ in jobs]
        if not given.rivals:
            jobs = [plain(job) for job in jobs] if given.plain else choose(jobs, pool)
            results = errors(jobs, pool, "Test images")
        others: list[dict[str, float]] = [{} for _ in jobs]
        if not given.plain:
            others = all_done(pool, [(compare, job) for job in jobs], "Rivals")
    of_size: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for job, found, rival in zip(jobs, results, others, strict=True):
        told = ", ".join(f"{name} {value:.3g}" for name, value in (found | rival).items())
        console.print(
            f"seed {job.seed}, {job.n_images} images, {job.settings}, {job.settings.rule}: {told}"
        )
        of_size[job.n_images].append(found | rival)
    rows = []
    for name in of_size[sizes[0]][0]:
        means = [np.mean([found[name] for found in of_size[size]]) for size in sizes]
        digits = 3 if "seconds" in name else 1
        shown = "templates" if name == "error" else name
        rows.append((shown, *(f"{mean:.{digits}f}" for mean in means)))
    tell_table(
        ("learning images" + ("" if given.unsupervised else " a digit"), *map(str, sizes)),
        rows,
        f"Means of {given.seeds} draws: error in percent on {given.test} images",
    )


if __name__ == "__main__":
    main()
