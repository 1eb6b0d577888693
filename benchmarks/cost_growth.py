"""Measure how time and memory grow with classes, pixels and rows, and at the paper's settings.

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

    python benchmarks/cost_growth.py
    python benchmarks/cost_growth.py --only images --classes 2 5 --sides 8 16
    python benchmarks/cost_growth.py --only plate
    python benchmarks/cost_growth.py --only paper
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits
from timing import console, in_turn, make_table, medians, resident_mebibytes, tell_versions

import pymc_mcoem as mcoem
from pymc_mcoem.em.burst import adaptation_gains

TUNE, DRAWS = 25, 50
PARTS = ("modes", "sweeps", "statistics", "M-step")
#: Numbers of sweeps and searches of a plate that are timed together.
PLATE_SWEEPS = 50
WEIGHTS, CENTERS = np.array([0.5, 0.3, 0.2]), np.array([-1.5, 0.0, 2.0])
#: Seconds per iteration in the paper, by number of classes.
PAPER = {2: 20, 15: 170}


def discs(side: int, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return images ``(n_classes, side, side)`` of three discs each, at random places."""
    axis = np.linspace(-1, 1, side)
    centers = rng.uniform(-0.7, 0.7, size=(n_classes, 3, 2, 1, 1))
    squares = (axis[:, None] - centers[:, :, 0]) ** 2 + (axis[None, :] - centers[:, :, 1]) ** 2
    return np.exp(-squares / 0.06).sum(axis=1).clip(max=1.0)


def theta_of(mixture: mcoem.TemplateMixture, images: np.ndarray) -> dict[str, np.ndarray]:
    """Return parameters whose templates show the images, ``(n_classes, side, side)``."""
    theta = {name: np.array(value) for name, value in mixture.parameters.items()}
    # Kernels are centered on the pixels.
    design = mixture.settings.basis.matrix(mixture.settings.points)
    theta["templates"] = np.linalg.solve(
        design + 1e-3 * np.eye(len(design)), images.reshape(len(images), -1).T
    ).T.copy()
    theta["noise_variance"] = np.array(0.04)
    theta["deformation_variance"] = np.full(len(images), 0.002)
    return theta


def measure(side: int, n_classes: int, n_observations: int) -> list[str]:
    """Return a row of the table."""
    rng = np.random.default_rng(1)
    mixture = mcoem.TemplateMixture.for_images((side, side), n_classes=n_classes)
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
        rows.append(measure(side, n_classes, given.observations))
        console.print(*rows[-1])
    headings = ("pixels", "C", "plausible", *PARTS, "all", "compiling, s", "MiB")
    title = f"Milliseconds an observation, {TUNE} + {DRAWS} sweeps"
    console.print(make_table(headings, rows, title))


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
    title = "A plate, three classes, one latent a row, two moves a sweep"
    console.print(make_table(headings, rows, title))
    slope, fixed = np.polyfit(list(plates), each_sweep, 1)
    console.print(f"a line through all: {fixed:.3f} ms and {1e3 * slope:.2f} µs a row")


def moving_disc(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return noisy images ``(n, 16, 16)`` of a disc; their content does not matter."""
    axis = np.linspace(-1, 1, 16)
    x, y = rng.uniform(-0.4, 0.4, (n, 2)).T[:, :, None, None]
    squares = (axis[:, None] - x) ** 2 + (axis[None, :] - y) ** 2
    return np.exp(-squares / 0.15) + 0.2 * rng.standard_normal((n, 16, 16))


def tell_paper(given: argparse.Namespace) -> None:
    """Print seconds per iteration at the paper's settings, and the memory of a run."""
    rng = np.random.default_rng(1)
    for n_classes, paper in PAPER.items():
        mixture = mcoem.TemplateMixture.for_images((16, 16), n_classes=n_classes)
        em = mcoem.OnlineEM.as_in_paper(
            mixture,
            burst_length=mcoem.schedules.BurstLength(draws=400, tune=100),
            update_schedule=mcoem.schedules.UpdateSchedule.at([1]),
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
        mcoem.TemplateMixture.for_images((16, 16), n_classes=2),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["images", "plate", "paper"])
    parser.add_argument("--classes", type=int, nargs="*", default=[2, 5, 10, 20, 50])
    parser.add_argument("--sides", type=int, nargs="*", default=[8, 28, 64])
    parser.add_argument("--observations", type=int, default=12, help="of each case of images")
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 500, 2_000, 5_000])
    parser.add_argument("--rounds", type=int, default=15, help="of plates")
    parser.add_argument("--iterations", type=int, default=15, help="at the paper's settings")
    given = parser.parse_args()
    tell_versions()
    with threadpool_limits(1):
        if given.only in (None, "images"):
            tell_images(given)
        if given.only in (None, "plate"):
            tell_plates(given)
    if given.only in (None, "paper"):
        tell_paper(given)


if __name__ == "__main__":
    main()
