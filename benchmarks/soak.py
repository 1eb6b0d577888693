"""Measure whether a run of a million observations grows, in memory or in time an observation.

The family is as cheap as families are: numbers from three normals, with the E-step in closed form,
so that the driver itself is what is measured. While the million is learned, a row is printed for
every 25,000: memory of the process from the kernel's count of pages, objects that Python's
collector knows, rows in the history, bytes of a saved run, and processor time. The stream is a
generator, and no more than one observation of it exists at a time. The run is saved as ``soak.nc``
in ``output/`` when `--minutes` have passed; the same command then goes on from there.

At the end three runs learn 2,000 observations each in turn: a new one its first, one that has
learned 20,000, whose history is full, its next, and the long one its next. Times are processor
times, so that time that the process was not given does not count. Reported are medians, and medians
of the ratio to the new run's time in the same round.

    python benchmarks/soak.py               # a million observations, 25 minutes of one core
    python benchmarks/soak.py --size 50000  # a glance
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pymc as pm
from timing import console, make_table, resident_mebibytes, tell_versions

import pymc_mcoem as mcoem

TRUTH = np.array([-3.0, 0.0, 2.5])
START = {"weights": np.full(3, 1 / 3), "means": np.array([-2.0, 0.0, 2.0])}
#: Observations that each run learns in a round, those after which a history is full, and those of a
#: row.
ROUND, FULL, PIECE = 2_000, 20_000, 25_000


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


def seconds_of(run: mcoem.OnlineEM, values: list[float]) -> float:
    begun = time.process_time()
    run.partial_fit(iter(values))
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=60.0)
    given = parser.parse_args()
    tell_versions()
    family = ThreeNormals()
    long = learn_long(family, given.size, given.minutes, Path("output") / "soak.nc")
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
            seconds[name].append(seconds_of(runs[name], values))
    first = np.array(seconds["the first"])
    rows = []
    for name, found in seconds.items():
        ratio = np.array(found) / first
        low, high = np.quantile(ratio, [0.25, 0.75])
        rows.append(
            (
                name,
                f"{1e6 * statistics.median(found) / ROUND:.1f}",
                f"{np.median(ratio):.3f} ({low:.3f} to {high:.3f})",
            )
        )
    console.print(
        make_table(
            (f"{ROUND:,} observations", "µs an observation", "times the first (quartiles)"), rows
        )
    )


if __name__ == "__main__":
    main()
