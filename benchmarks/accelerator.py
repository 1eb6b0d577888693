"""Compare bursts of many observations in one call of JAX with the default back end in processes.

`CarlinChibBurst(backend="jax")` processes a mini-batch in one call: searches, sweeps and statistics
advance in step. That fills an accelerator; without one JAX runs the same on the processor. Images
of 16 × 16 pixels under four classes (``--side``, ``--classes``) show discs with noise 0.2. Bursts
have 100 draws after 50 of tuning, with the default Hamiltonian move (``--move swing``) or twenty
random-walk moves per sweep (``walk``).

First the results are compared: the evidence of each image and, from the same noise, its mean
statistics; then, with the device's own noise, means over many bursts of ambiguous images by their
Monte Carlo errors; then double and single precision. The table has observations a second for each
number of images in a call, from encoded images to results on the host, beside the E-step as
`OnlineEM` calls it in the given number of processes, in turn. A second table has milliseconds of
the parts of a call. Compilation comes before and is not counted.

    python benchmarks/accelerator.py                              # JAX's default device
    python benchmarks/accelerator.py --batches 256 1024
    python benchmarks/accelerator.py --batches 64 256 --side 64 --classes 30
    JAX_PLATFORMS=cpu python benchmarks/accelerator.py --batches 16 64 --rounds 2
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from cost_growth import discs, theta_of
from threadpoolctl import threadpool_limits
from timing import begin, console, tell_table

import pymc_mcoem as mcoem

SIZE = {"side": 16, "n_classes": 4}
NOISE = 0.2
DRAWS, TUNE = 100, 50
LENGTHS = {"draws": DRAWS, "tune": TUNE}
MOVES = {"walk": mcoem.moves.RandomWalk(), "swing": mcoem.moves.Hamiltonian()}


def choose(size: dict[str, int]) -> None:
    """Take this size in a worker too."""
    SIZE.update(size)


@cache
def setting() -> tuple[mcoem.TemplateMixture, dict[str, np.ndarray], np.ndarray]:
    """Return the mixture, θ at which its templates show discs, and these images."""
    rng = np.random.default_rng(1)
    side, n_classes = SIZE["side"], SIZE["n_classes"]
    mixture = mcoem.TemplateMixture.for_images(
        (side, side), n_classes=n_classes, rigid_weight=None, priors=mcoem.TemplatePriors()
    )
    shown = discs(side, n_classes, rng)
    return mixture, theta_of(mixture, shown), shown


def observations(n: int) -> np.ndarray:
    """Return noisy images, (n, side, side)."""
    rng = np.random.default_rng(2)
    _, _, shown = setting()
    clean = shown[rng.integers(len(shown), size=n)]
    return clean + NOISE * rng.standard_normal(clean.shape)


def encoded(images: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Return images as E-steps take them."""
    return list(map(setting()[0].encode, images))


def generators(seed: int, n: int) -> list[np.random.Generator]:
    """Return a generator for each of n observations."""
    return [np.random.default_rng([seed, number]) for number in range(n)]


@cache
def compiled(move: str, **settings: Any) -> Any:
    """Return an E-step, compiled once in every process."""
    return mcoem.esteps.CarlinChibBurst(within_class=MOVES[move], **settings).compile(setting()[0])


def run_e_step(move: str, images: np.ndarray, seed: int = 3) -> list[Any]:
    """Return the results of the default back end, one observation after the other."""
    e_step, theta = compiled(move), setting()[1]
    state = e_step.initial_state()
    with threadpool_limits(1):
        return [
            e_step(data, theta, rng, state, **LENGTHS)
            for data, rng in zip(encoded(images), generators(seed, len(images)), strict=True)
        ]


def count(move: str, images: np.ndarray) -> int:
    """Run the default back end; return the number of observations."""
    return len(run_e_step(move, images))


def together(e_step: Any, images: np.ndarray, seed: int = 3) -> list[Any]:
    """Return the results of JAX, all observations in one call."""
    rngs, state = generators(seed, len(images)), e_step.initial_state()
    found = e_step.run_all(encoded(images), setting()[1], rngs, state, **LENGTHS)
    failed = [each for each in found if isinstance(each, Exception)]
    if failed:
        raise failed[0]
    return list(found)


def off_by(found: list[Any], expected: list[Any]) -> tuple[float, float]:
    """Return the greatest differences of log-evidence, and of statistics over the largest one."""
    evidence, relative = 0.0, 0.0
    for one, other in zip(found, expected, strict=True):
        evidence = max(evidence, abs(one.log_evidence - other.log_evidence))
        for name, value in other.statistics.items():
            away = np.abs(one.statistics[name] - value).max() / np.abs(value).max()
            relative = max(relative, float(away))
    return evidence, relative


def check(e_step: Any, move: str, n: int = 4) -> str:
    """Compare results from the same noise with the default back end's."""
    images, bursts = observations(n), e_step.in_step
    before, bursts.own_noise = bursts.own_noise, True
    evidence, relative = off_by(together(e_step, images), run_e_step(move, images))
    bursts.own_noise = before
    return (
        f"log-evidence differs by at most {evidence:.1e}; mean statistics of {TUNE + DRAWS} sweeps "
        f"from the same noise by {relative:.1e} of the largest"
    )


def compare(e_step: Any, move: str, n_together: int, n_alone: int = 24, n_images: int = 4) -> str:
    """Compare whole bursts on ambiguous images by their Monte Carlo errors.

    Nine pixels in ten are missing. The greatest difference of mean class weights and of mean
    statistics is given in standard errors.
    """
    images = observations(n_images)
    images[np.random.default_rng(5).random(images.shape) < 0.9] = np.nan
    n_runs = max(n_together // n_images, 8), n_alone
    sides = [
        together(e_step, np.repeat(images, n_runs[0], axis=0), 7),
        run_e_step(move, np.repeat(images, n_runs[1], axis=0), 8),
    ]
    worst = 0.0
    for name in sides[0][0].statistics:
        means, errors = [], []
        for side, n in zip(sides, n_runs, strict=True):
            values = np.array(
                [each.statistics[name].reshape(SIZE["n_classes"], -1).sum(1) for each in side]
            )
            values = values.reshape((n_images, n, -1))
            means.append(values.mean(axis=1))
            errors.append(values.var(axis=1, ddof=1) / n)
        least = 1e-9 * np.abs(means[1]).max()
        apart = np.abs(means[0] - means[1]) / np.maximum(np.sqrt(errors[0] + errors[1]), least)
        worst = max(worst, float(apart.max()))
    return (
        f"whole bursts of {n_images} images with 9 pixels of 10 missing, {n_runs[0]} and "
        f"{n_runs[1]} of each: means differ by at most {worst:.1f} standard errors"
    )


def single_precision(e_step: Any, move: str, n: int, at_once: int | None) -> str:
    """Say how single precision differs from double, and how long its calls take."""
    images = observations(n)
    single = compiled(move, backend="jax", at_once=at_once, dtype="float32")
    found = together(single, images)
    began = time.perf_counter()
    together(single, images, 4)
    seconds = time.perf_counter() - began
    expected, again = together(e_step, images), together(e_step, images, 4)
    apart, by_chance = (
        float(np.sqrt(np.mean([squared_distance(*pair) for pair in zip(*two, strict=True)])))
        for two in ((found, expected), (again, expected))
    )
    return (
        f"single precision, {n} images: {n / seconds:.0f} a second; log-evidence differs by at "
        f"most {off_by(found, expected)[0]:.1e}, mean statistics by {apart:.1e} (root mean square, "
        f"beside the largest), where double precision with other random numbers differs by "
        f"{by_chance:.1e}"
    )


def squared_distance(one: Any, other: Any) -> float:
    """Return the mean square of differences of statistics, beside the largest of each."""
    return float(
        np.mean(
            [
                np.mean(((one.statistics[name] - value) / np.abs(value).max()) ** 2)
                for name, value in other.statistics.items()
            ]
        )
    )


@contextmanager
def workers(n: int, move: str) -> Iterator[Callable[[np.ndarray], float]]:
    """Yield a function that runs E-steps in processes and returns observations per second."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n, spawned, choose, (SIZE,)) as pool:

        def measure(images: np.ndarray) -> float:
            began = time.perf_counter()
            done = sum(pool.map(count, [move] * n, np.array_split(images, n)))
            return done / (time.perf_counter() - began)

        measure(observations(2 * n))  # compiles
        yield measure


def main() -> None:
    """Check, measure in turn, and print."""
    given = begin(
        __doc__,
        batches=[16, 64, 256, 1_024],
        move={"choices": list(MOVES)},
        side=16,
        classes=4,
        processes=2,
        rounds=3,
        quick=(False, "measure only, without comparing"),
    )
    import jax

    SIZE.update(side=given.side, n_classes=given.classes)
    move = given.move or "swing"
    device = jax.devices()[0]
    on_processor = device.platform == "cpu"
    console.print(f"JAX {jax.__version__} on {device.device_kind} ({device.platform})")
    # a processor has chunks of its own size
    at_once = None if on_processor else max(given.batches)
    e_step = compiled(move, backend="jax", at_once=at_once)
    bursts = e_step.in_step
    first = min(given.batches)
    if not given.quick:
        console.print(check(e_step, move))
        console.print(compare(e_step, move, first))
        console.print(single_precision(e_step, move, first, at_once))
    rows, parts = [], []
    with workers(given.processes, move) as on_cores:
        for size in given.batches:
            images = observations(size)
            began = time.perf_counter()
            together(e_step, images)
            compiling = time.perf_counter() - began
            rates = []
            for round_ in range(given.rounds):
                began = time.perf_counter()
                together(e_step, images, round_)
                seconds = time.perf_counter() - began
                rates.append((size / seconds, on_cores(observations(8 * given.processes))))
            if size <= bursts.at_once:
                began = time.perf_counter()
                bursts.seconds = laps = {}
                together(e_step, images)
                laps["in all"] = time.perf_counter() - began
                parts.append((str(size), *(f"{1e3 * each:.0f}" for each in laps.values())))
                names, bursts.seconds = list(laps), None
            here, cores = (statistics.median(each) for each in zip(*rates, strict=True))
            mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            rows.append(
                (
                    str(size),
                    f"{compiling:.0f}",
                    f"{here:.1f}",
                    f"{cores:.1f}",
                    f"{here / cores:.1f}",
                    str(mebibytes),
                )
            )
            console.print(f"{size} images: {here:.1f} a second, {here / cores:.1f} times")
    pixels = f"{given.side} × {given.side} pixels"
    title = f"Bursts of {DRAWS} draws after {TUNE}, {pixels}, C = {given.classes}, {move}"
    headings = ("images", "first call, s", "a second", f"{given.processes} processes, a second")
    tell_table((*headings, "times", "peak memory, MiB"), rows, title)
    if parts:
        tell_table(("images", *names), parts, "Milliseconds of a call's parts")


if __name__ == "__main__":
    main()
