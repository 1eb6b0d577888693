"""Measure how time and memory grow: by classes, pixels and rows, at the paper's sizes, in a run.

``images``: images of 16 × 16 pixels under 2, 5, 10, 20 and 50 classes, of which few are plausible
for each observation: a template is three discs at random places, and each image is one of them with
noise. Then images of 8 × 8, 28 × 28 and 64 × 64 pixels under two classes. The table has
milliseconds of the mode searches, of the sweeps, of their statistics and of the M-step, as medians
over observations, and the memory of the process. Seconds of compilation are printed separately.

``plate``: a mixture of three normals with an index and a latent in each row. For every number of
rows the table has milliseconds per sweep of `CarlinChib.step`, two random-walk moves included, and
milliseconds of the search for all modes, which is made when a chain starts. Sizes take turns.

``paper``: seconds per iteration at the paper's digits settings: 16 × 16 pixels, 78 latents, bursts
of 500 sweeps with 100 of tuning, 20 random-walk moves per sweep, pilot-chain pseudo-priors, two
classes and fifteen. The paper reports 20 and 170 seconds on its authors' machine. Then the memory
of the process after 100 and after 2,000 observations with bursts of two sweeps (memory does not
depend on the length of past bursts).

``run``: whether a run of a million observations grows. The family is as cheap as possible,
numbers from three normals with the E-step in closed form, so that the driver itself is measured. A
row for every 25,000 has the memory of the process, objects that Python's garbage collector tracks,
rows in the history, bytes of a saved run, and processor time. The stream is a generator, of
which one observation exists at a time. The run is saved as ``run.nc`` in ``output/`` when
`--minutes` have passed; the same command then goes on from there. At the end three runs learn 2,000
observations each in turn: a new one its first, one that has learned 20,000, whose history is full,
its next, and the long one its next. Reported are medians of processor times, and of the ratio to
the new run's time in the same round.

    python benchmarks/cost_growth.py                    # all but the run
    python benchmarks/cost_growth.py --only images --classes 2 5 --sides 8 16
    python benchmarks/cost_growth.py --only images --classes --sides 64 --kernels 64
    python benchmarks/cost_growth.py --only plate
    python benchmarks/cost_growth.py --only paper
    python benchmarks/cost_growth.py --only run         # 25 minutes of one core
    python benchmarks/cost_growth.py --only run --size 50000
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits
from timing import begin, console, in_turn, medians, resident_mebibytes, tell_table

import pymc_mcoem as mcoem
from pymc_mcoem.em.burst import adaptation_gains

TUNE, DRAWS = 25, 50
PARTS = ("modes", "sweeps", "statistics", "M-step")
#: Numbers of sweeps and searches of a plate that are timed together.
PLATE_SWEEPS = 50
WEIGHTS, CENTERS = np.array([0.5, 0.3, 0.2]), np.array([-1.5, 0.0, 2.0])
#: Seconds per iteration in the paper, by number of classes.
PAPER = {2: 20, 15: 170}
#: The long run: means of the stream's normals, and θ at its beginning.
TRUTH = np.array([-3.0, 0.0, 2.5])
START = {"weights": np.full(3, 1 / 3), "means": np.array([-2.0, 0.0, 2.0])}
#: Observations that each run learns in a round, those after which a history is full, and those of a
#: row.
ROUND, FULL, PIECE = 2_000, 20_000, 25_000


def discs(side: int, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return images ``(n_classes, side, side)`` of three discs each, at random places."""
    axis = np.linspace(-1, 1, side)
    centers = rng.uniform(-0.7, 0.7, size=(n_classes, 3, 2, 1, 1))
    squares = (axis[:, None] - centers[:, :, 0]) ** 2 + (axis[None, :] - centers[:, :, 1]) ** 2
    return np.exp(-squares / 0.06).sum(axis=1).clip(max=1.0)


def theta_of(mixture: mcoem.TemplateMixture, images: np.ndarray) -> dict[str, np.ndarray]:
    """Return parameters whose templates show the images, ``(n_classes, side, side)``."""
    theta = {name: np.array(value) for name, value in mixture.parameters.items()}
    design = mixture.settings.basis.matrix(mixture.settings.points)
    theta["templates"] = np.linalg.solve(
        design.T @ design + 1e-3 * np.eye(design.shape[1]),
        design.T @ images.reshape(len(images), -1).T,
    ).T.copy()
    theta["noise_variance"] = np.array(0.04)
    theta["deformation_variance"] = np.full(len(images), 0.002)
    return theta


def measure(side: int, n_classes: int, n_observations: int, n_kernels: int | None) -> list[str]:
    """Return a row of the table."""
    rng = np.random.default_rng(1)
    mixture = mcoem.TemplateMixture.for_images(
        (side, side),
        n_classes=n_classes,
        n_kernels=n_kernels,
        rigid_weight=None,
        priors=mcoem.TemplatePriors(),
    )
    images = discs(side, n_classes, rng)
    shown = images[rng.integers(n_classes, size=n_observations + 1)]
    shown = shown + 0.2 * rng.standard_normal(shown.shape)
    theta = theta_of(mixture, images)
    began = time.perf_counter()
    compiled = mcoem.esteps.CarlinChibBurst().compile(mixture)
    total = compiled.statistics.zeros() | {"class_weight": np.zeros(n_classes)}
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    plausible = []
    gains = adaptation_gains(TUNE + DRAWS, TUNE)
    for index, image in enumerate(shown):
        values = {**theta, **mixture.encode(image)}
        marks = [time.perf_counter()]
        pseudo_priors = compiled.pseudo_priors(values, rng)
        marks.append(time.perf_counter())
        found = compiled.burst(
            rng,
            pseudo_priors.draw_start(rng),
            compiled.burst.initial_log_step,
            pseudo_priors,
            gains,
            values,
        )
        marks.append(time.perf_counter())
        weights = np.full(DRAWS, 1.0 / DRAWS)
        result = compiled.statistics(
            found.class_index[TUNE:], found.position[TUNE:], weights, values
        )
        marks.append(time.perf_counter())
        total = {name: total[name] + value / len(shown) for name, value in result.items()}
        mixture.maximize(total, effective_size=float(len(shown)))
        marks.append(time.perf_counter())
        if index:  # the first one compiles
            for part, spent in zip(PARTS, np.diff(marks), strict=True):
                seconds[part].append(spent)
            evidence = pseudo_priors.log_evidence
            plausible.append(int((evidence > evidence.max() - 10).sum()))
        else:
            compiling = marks[-1] - began
    each = [1e3 * statistics.median(seconds[part]) for part in PARTS]
    return [
        f"{side} × {side}",
        str(n_classes),
        f"{statistics.median(plausible):.0f}",
        *(f"{value:.1f}" for value in each),
        f"{sum(each):.0f}",
        f"{compiling:.0f}",
        f"{resident_mebibytes():.0f}",
    ]


def tell_images(given: argparse.Namespace) -> None:
    """Print the cost of an observation by classes and pixels."""
    cases = [(16, n) for n in given.classes] + [(side, 2) for side in given.sides]
    rows = []
    for side, n_classes in cases:
        rows.append(measure(side, n_classes, given.observations, given.kernels))
        console.print(*rows[-1])
    headings = ("pixels", "C", "plausible", *PARTS, "all", "compiling, s", "MiB")
    tell_table(headings, rows, f"Milliseconds an observation, {TUNE} + {DRAWS} sweeps")


class Plate:
    """A step method on a plate of `n_rows` indices, and the current point of its chain."""

    def __init__(self, n_rows: int, rng: np.random.Generator) -> None:
        truth = rng.choice(3, p=WEIGHTS, size=n_rows)
        y = CENTERS[truth] + rng.normal(0.0, np.sqrt(0.36 + 0.25), size=n_rows)
        with pm.Model() as model:
            k = pm.Categorical("k", WEIGHTS, shape=n_rows)
            latent = pm.Normal("latent", pm.math.stack(list(CENTERS))[k], 0.6, shape=n_rows)
            pm.Normal("y", latent, 0.5, observed=y)
            self.step = mcoem.CarlinChib(within_class=mcoem.moves.RandomWalk(n_moves=2))
        self.step.setup_chain(rng, 20, 1_000)
        self.point = model.initial_point(0)
        self.sweep(20)
        self.step.stop_tuning()

    def sweep(self, n_sweeps: int) -> None:
        for _ in range(n_sweeps):
            self.point, _ = self.step.step(self.point)

    def fit(self) -> None:
        self.step._engine.fit(self.step.rng, [])


def tell_plates(given: argparse.Namespace) -> None:
    """Print the cost of a sweep and of a fit by the number of rows."""
    rng = np.random.default_rng(1)
    plates = {n: Plate(n, rng) for n in given.rows}
    sweeps = {(n, "sweep"): partial(each.sweep, PLATE_SWEEPS) for n, each in plates.items()}
    fits = {(n, "fit"): each.fit for n, each in plates.items()}
    seconds = medians(in_turn(sweeps | fits, given.rounds, warm_up=False).seconds)
    rows, each_sweep = [], []
    for n in plates:
        sweep, fit = 1e3 * seconds[n, "sweep"] / PLATE_SWEEPS, 1e3 * seconds[n, "fit"]
        each_sweep.append(sweep)
        cells = (sweep, 1e3 * sweep / n, fit, 1e3 * fit / n)
        rows.append((f"{n:,}", *(f"{value:.2f}" for value in cells)))
    headings = ("rows", "ms a sweep", "µs a row", "ms a fit", "µs a row and fit")
    tell_table(headings, rows, "A plate, three classes, one latent a row, two moves a sweep")
    slope, fixed = np.polyfit(list(plates), each_sweep, 1)
    console.print(f"a line through all: {fixed:.3f} ms and {1e3 * slope:.2f} µs a row")


def moving_disc(n: int, rng: np.random.Generator, side: int = 16) -> np.ndarray:
    """Return noisy images ``(n, side, side)`` of a disc; their content does not matter."""
    axis = np.linspace(-1, 1, side)
    x, y = rng.uniform(-0.4, 0.4, (n, 2)).T[:, :, None, None]
    squares = (axis[:, None] - x) ** 2 + (axis[None, :] - y) ** 2
    return np.exp(-squares / 0.15) + 0.2 * rng.standard_normal((n, side, side))


def tell_paper(given: argparse.Namespace) -> None:
    """Print seconds per iteration at the paper's settings, and the memory of a run."""
    rng = np.random.default_rng(1)
    for n_classes, paper in PAPER.items():
        mixture = mcoem.TemplateMixture.for_images(
            (16, 16), n_classes=n_classes, rigid_weight=None, priors=mcoem.TemplatePriors()
        )
        em = mcoem.OnlineEM.as_in_paper(
            mixture,
            burst_length=mcoem.schedules.BurstLength(draws=400, tune=100),
            update_schedule=mcoem.schedules.UpdateSchedule([1]),
            n_start=1,
            random_seed=1,
            progressbar=False,
        )
        stream = moving_disc(given.iterations + 2, rng)
        em.partial_fit(stream[:2])  # compiles
        seconds = []
        for image in stream[2:]:
            began = time.perf_counter()
            em.partial_fit(image)
            seconds.append(time.perf_counter() - began)
        median = statistics.median(seconds)
        console.print(
            f"C = {n_classes}: {median:.2f} s an iteration (paper {paper} s, "
            f"{paper / median:.0f} times as long)"
        )
    em = mcoem.OnlineEM(
        mcoem.TemplateMixture.for_images(
            (16, 16), n_classes=2, rigid_weight=None, priors=mcoem.TemplatePriors()
        ),
        burst_length=mcoem.schedules.BurstLength(draws=1, tune=1),
        random_seed=1,
        progressbar=False,
    )
    em.partial_fit(moving_disc(100, rng))
    first = resident_mebibytes()
    for _ in range(19):
        em.partial_fit(moving_disc(100, rng))
    console.print(
        f"memory: {first:.0f} MiB after 100 observations, {resident_mebibytes():.0f} MiB after "
        f"{em.n_seen}"
    )


class ThreeNormals(mcoem.Family):
    """Numbers from three normals of variance 1 with unknown weights and means."""

    observation = ("value",)

    def __init__(self) -> None:
        with pm.Model(coords={"class": range(3)}) as self.model:
            weights = pm.Data("weights", START["weights"], dims="class")
            means = pm.Data("means", START["means"], dims="class")
            value = pm.Data("value", 0.0)
            self.class_index = pm.Categorical("class_index", p=weights)
            pm.Normal("y", means[self.class_index], 1.0, observed=value)
        self.statistics = {"value": value}

    def maximize(self, statistics, *, effective_size):
        mass = statistics["class_weight"]
        return {"weights": mass / mass.sum(), "means": statistics["value"] / mass}

    def exact(self, data, parameters):
        distance = (data["value"] - parameters["means"]) ** 2
        odds = parameters["weights"] * np.exp(-0.5 * (distance - distance.min()))
        weight = odds / odds.sum()
        return {"class_weight": weight, "value": weight * data["value"]}


def stream(seed: int, size: int) -> Iterator[float]:
    """Yield numbers from the mixture, one by one."""
    rng = np.random.default_rng(seed)
    for _ in range(size):
        yield float(TRUTH[rng.integers(3)] + rng.normal())


def new_run(family: ThreeNormals) -> mcoem.OnlineEM:
    return mcoem.OnlineEM(
        family, parameters=START, e_step=mcoem.esteps.Exact(), random_seed=1, progressbar=False
    )


def row(run: mcoem.OnlineEM) -> tuple[int, float, int, int, int]:
    """Return what may grow: observations, MiB, objects, rows of the history, bytes of a file."""
    rows = sum(run.history[f"{name}s"].sizes[name] for name in ("step", "observation"))
    size = len(run.run.file_content())
    gc.collect()
    return run.n_seen, round(resident_mebibytes(), 1), len(gc.get_objects()), rows, size


def learn_long(family: ThreeNormals, size: int, minutes: float, path: Path) -> mcoem.OnlineEM:
    """Learn a stream up to `size`, or for some minutes, and print what may grow along it."""
    began = time.perf_counter()
    known = path.exists()
    run = mcoem.OnlineEM.load(path, family, progressbar=False) if known else new_run(family)
    console.print("observations, MiB, objects, rows of the history, bytes of a file, µs each")
    while run.n_seen < size and time.perf_counter() - began < 60 * minutes:
        n_new = min(PIECE, size - run.n_seen)
        begun = time.process_time()
        run.partial_fit(stream(run.n_seen, n_new))
        each = 1e6 * (time.process_time() - begun) / n_new
        console.print(*row(run), f"{each:.0f}", sep=", ")
    path.parent.mkdir(exist_ok=True)
    run.save(path)
    return run


def processor_seconds(run: mcoem.OnlineEM, values: list[float]) -> float:
    begun = time.process_time()
    run.partial_fit(iter(values))
    return time.process_time() - begun


def tell_run(given: argparse.Namespace) -> None:
    """Print what grows along a run, and the time of an observation in turn with a new run."""
    family = ThreeNormals()
    long = learn_long(family, given.size, given.minutes, given.output / "run.nc")
    if long.n_seen < given.size:
        return
    full = new_run(family).partial_fit(stream(1, FULL))
    names = ("the first", f"after {FULL:,}", f"after {given.size:,}")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(given.rounds):
        values = list(stream(100 + number, ROUND))
        runs = dict(zip(names, (new_run(family).prepare(0.0), full, long), strict=True))
        # each begins a round as often as the others
        for name in (*names[number % 3 :], *names[: number % 3]):
            seconds[name].append(processor_seconds(runs[name], values))
    rows = []
    for name, middle in medians(seconds).items():
        ratio = np.divide(seconds[name], seconds["the first"])
        low, high = np.quantile(ratio, [0.25, 0.75])
        quartiles = f"{np.median(ratio):.3f} ({low:.3f} to {high:.3f})"
        rows.append((name, f"{1e6 * middle / ROUND:.1f}", quartiles))
    headings = (f"{ROUND:,} observations", "µs an observation", "times the first (quartiles)")
    tell_table(headings, rows)


def main() -> None:
    given = begin(
        __doc__,
        only={"choices": ["images", "plate", "paper", "run"]},
        classes={"type": int, "nargs": "*", "default": [2, 5, 10, 20, 50]},
        sides={"type": int, "nargs": "*", "default": [8, 28, 64]},
        observations=(12, "of each case of images"),
        kernels={"type": int, "help": "a side, of images; by default the mixture chooses"},
        rows=[100, 500, 2_000, 5_000],
        rounds=(15, "of plates and of runs"),
        iterations=(15, "at the paper's settings"),
        size=(1_000_000, "observations of a run"),
        minutes=(60.0, "after which the run is saved"),
        output=Path("output"),
    )
    with threadpool_limits(1):
        if given.only in (None, "images"):
            tell_images(given)
        if given.only in (None, "plate"):
            tell_plates(given)
    if given.only in (None, "paper"):
        tell_paper(given)
    if given.only == "run":
        tell_run(given)


if __name__ == "__main__":
    main()
