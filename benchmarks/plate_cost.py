"""What a sweep of a plate costs by its number of rows.

A mixture of three normals with an index and a latent in each row. For every size: milliseconds a
sweep of `CarlinChib.step`, two random-walk moves included, and microseconds a row; the same of the
search for all modes, which is made when a chain starts. Sizes take turns, and medians are reported.

    python benchmarks/plate_cost.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pymc as pm
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits
from versions import tell_versions

import pymc_mcoem as mcoem

WEIGHTS, CENTRES = np.array([0.5, 0.3, 0.2]), np.array([-1.5, 0.0, 2.0])


class Plate:
    """A step method on a plate of `n_rows` indices, and where its chain is."""

    def __init__(self, n_rows: int, rng: np.random.Generator) -> None:
        truth = rng.choice(3, p=WEIGHTS, size=n_rows)
        y = CENTRES[truth] + rng.normal(0.0, np.sqrt(0.36 + 0.25), size=n_rows)
        with pm.Model() as model:
            k = pm.Categorical("k", WEIGHTS, shape=n_rows)
            latent = pm.Normal("latent", pm.math.stack(list(CENTRES))[k], 0.6, shape=n_rows)
            pm.Normal("y", latent, 0.5, observed=y)
            self.step = mcoem.CarlinChib(within_class=mcoem.RandomWalk(n_moves=2))
        self.step.setup_chain(rng, 20, 1_000)
        self.point = model.initial_point(0)
        self.sweeps(20)
        self.step.stop_tuning()

    def sweeps(self, n: int) -> None:
        for _ in range(n):
            self.point, _ = self.step.step(self.point)

    def fit(self) -> None:
        self.step._engine.fit(self.step.rng, [])


def milliseconds(function: Callable[[], None]) -> float:
    began = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 500, 2_000, 5_000])
    parser.add_argument("--sweeps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    tell_versions()

    rng = np.random.default_rng(1)
    plates = {n: Plate(n, rng) for n in arguments.rows}
    sweep: dict[int, list[float]] = {n: [] for n in plates}
    fit: dict[int, list[float]] = {n: [] for n in plates}
    with threadpool_limits(limits=1):
        for _ in range(arguments.rounds):
            for n, plate in plates.items():
                spent = milliseconds(lambda plate=plate: plate.sweeps(arguments.sweeps))
                sweep[n].append(spent / arguments.sweeps)
                fit[n].append(milliseconds(plate.fit))

    table = Table(title="A plate, three classes, one latent a row, two moves a sweep")
    for column in ("rows", "ms a sweep", "µs a row", "ms a fit", "µs a row and fit"):
        table.add_column(column, justify="right")
    for n in plates:
        each, modes = statistics.median(sweep[n]), statistics.median(fit[n])
        cells = (each, 1e3 * each / n, modes, 1e3 * modes / n)
        table.add_row(f"{n:,}", *(f"{value:.2f}" for value in cells))
    console = Console()
    console.print(table)
    sizes, medians = zip(*((n, statistics.median(sweep[n])) for n in plates), strict=True)
    slope, fixed = np.polyfit(sizes, medians, 1)
    console.print(f"a line through all: {fixed:.3f} ms and {1e3 * slope:.2f} µs a row")


if __name__ == "__main__":
    main()
