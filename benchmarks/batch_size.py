"""Measure the cost of mini-batches: the error of θ after the same number of observations.

With ``batch_size=b`` the E-steps of b observations use the same θ, so that b workers can work at
the same time, but online EM takes b times fewer steps. The streams come from a mixture of shifted
curves with an exact E-step (`shifted_curves`) and three overlapping classes. Each is learned with
several batch sizes from the same start near the truth, with the first M-step after 100
observations. Reported are the root mean squared error of θ over the streams, in units of the Fisher
information, √(dᵀ I d / number of parameters), in which an efficient estimator has 1/√n; and its
ratio to that of batch size 1 on the same streams. Both are for the last θ and for its average from
observation 1,000 on.

The gain is a function of the number of steps, so a large batch is also another step size: with
n^−0.6 it is (b/N)^0.6 after N observations, while single observations have N^−0.6 each. The rows
"as fast" have min(1, b^0.4 n^−0.6), with which b observations are worth as much as they are singly.

The same is measured from a start far from the truth, where a large batch forgets more slowly, and
with Carlin-Chib bursts of ten draws, on shorter streams and, for bursts, fewer. A short stream has
six batches of 512, a long one 24.

    python benchmarks/batch_size.py             # 12 streams, ten minutes of one core
    python benchmarks/batch_size.py --quick     # three streams
    python benchmarks/batch_size.py --tell      # tables of the last run again

It writes ``batch_size.nc`` to ``output/``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr
from rich.progress import track
from shifted_curves import TRUTH, ShiftedCurves, free_vector, information, perturbed, simulate
from timing import begin, console, measured, tell_table

import pymc_mcoem as mcoem

#: Both are multiples of all batch sizes, so that no step is smaller than the others.
CHECKPOINTS = (3_072, 12_288)
FIRST_UPDATE, AVERAGE_FROM = 100, 1_000
#: A stream whose average has a larger n × squared error has gone to another optimum.
LOST = 100.0
#: Number of streams that bursts learn too, up to the first checkpoint.
BURST_SHARE = 0.6
BURST = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(n_moves=1))


@dataclass(frozen=True)
class AsFast:
    """A gain with which a batch is worth as much as its single observations."""

    batch_size: int

    def __call__(self, n: int) -> float:
        return min(1.0, self.batch_size**0.4 * n**-0.6)


@dataclass(frozen=True)
class Setting:
    """A way to learn."""

    batch_size: int
    bursts: bool = False
    as_fast: bool = False
    far: bool = False

    def __str__(self) -> str:
        return f"{self.batch_size}" + ", as fast" * self.as_fast

    @property
    def name(self) -> str:
        start = ", far start" * self.far
        return f"{'bursts' if self.bursts else 'exact'}{start}, {self}"

    @property
    def is_short(self) -> bool:
        """Whether the run ends at the first checkpoint."""
        return self.bursts or self.far

    @property
    def step_size(self) -> Callable[[int], float]:
        return AsFast(self.batch_size) if self.as_fast else mcoem.schedules.StepSize()


SIZES = (1, 8, 64, 512)
EXACT = (*(Setting(size) for size in SIZES), Setting(SIZES[-1], as_fast=True))
FAR = tuple(replace(setting, far=True) for setting in EXACT)
BURSTS = tuple(Setting(size, bursts=True) for size in SIZES)
TABLES = {
    "Exact E-step, from a start near the truth": EXACT,
    "Exact E-step, from a start far from it": FAR,
    "Bursts of ten draws after ten of tuning, from a start near the truth": BURSTS,
}


def start_of(setting: Setting, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the initial θ of a run; a far one has templates of half their height."""
    start = perturbed(TRUTH, rng)
    if setting.far:
        start["templates"] = start["templates"] - 0.5 * TRUTH["templates"]
    return start


def learn(family: ShiftedCurves, setting: Setting, curves: np.ndarray, seed: int) -> np.ndarray:
    """Return last and averaged θ at the checkpoints, ``(2, n_checkpoints, n_free)``."""
    em = mcoem.OnlineEM(
        family,
        parameters=start_of(setting, np.random.default_rng([seed, 1])),
        e_step=BURST if setting.bursts else mcoem.esteps.Exact(),
        step_size=setting.step_size,
        update_schedule=mcoem.schedules.UpdateSchedule([FIRST_UPDATE]),
        burst_length=mcoem.schedules.BurstLength(draws=10, tune=10),
        batch_size=setting.batch_size,
        average_from=AVERAGE_FROM,
        random_seed=[seed, 2],
        progressbar=False,
        keep=200,
    )
    found = np.full((2, len(CHECKPOINTS), free_vector(TRUTH).size), np.nan)
    for number, n in enumerate(CHECKPOINTS[:1] if setting.is_short else CHECKPOINTS):
        em.partial_fit(curves[em.n_seen : n])
        found[:, number] = free_vector(em.last_parameters), free_vector(em.parameters)
    return found


def run(n_streams: int) -> xr.Dataset:
    """Learn all streams with all settings."""
    family, settings = ShiftedCurves(TRUTH), [each for part in TABLES.values() for each in part]
    n_bursts = max(round(BURST_SHARE * n_streams), 2)
    paths = xr.DataArray(
        np.nan,
        dims=("stream", "setting", "kind", "n", "parameter"),
        coords={
            "stream": range(n_streams),
            "setting": [setting.name for setting in settings],
            "kind": ["last", "average"],
            "n": list(CHECKPOINTS),
            "parameter": range(free_vector(TRUTH).size),
        },
        name="paths",
    )
    for seed in track(range(n_streams), "Streams", console=console):
        curves = simulate(TRUTH, CHECKPOINTS[-1], np.random.default_rng([seed, 0]))
        for setting in settings:
            if not setting.bursts or seed < n_bursts:
                found = learn(family, setting, curves, seed)
                paths.loc[{"stream": seed, "setting": setting.name}] = found
    return paths.to_dataset()


def squared_errors(paths: xr.DataArray, fisher: np.ndarray) -> xr.DataArray:
    """Return dᵀ I d / number of parameters, (stream, setting, kind, n)."""
    difference = paths - free_vector(TRUTH)
    matrix = xr.DataArray(fisher, dims=("parameter", "other"))
    both = (difference, matrix, difference.rename(parameter="other"))
    total = xr.dot(*both, dim=["parameter", "other"]) / len(fisher)
    return total.where(paths.notnull().all("parameter"))


def root_mean(values: np.ndarray, rng: np.random.Generator) -> str:
    """Return the root of the mean over streams, with its bootstrap standard error."""
    drawn = rng.integers(len(values), size=(2_000, len(values)))
    spread = np.sqrt(values[drawn].mean(axis=1)).std()
    return f"{np.sqrt(values.mean()):.4f} ± {spread:.4f}"


def ratio(values: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> str:
    """Return the ratio of two roots of means over the same streams, with its standard error."""
    drawn = rng.integers(len(values), size=(2_000, len(values)))
    spread = np.sqrt(values[drawn].mean(axis=1) / others[drawn].mean(axis=1)).std()
    return f"{np.sqrt(values.mean() / others.mean()):.2f} ± {spread:.2f}"


def tell(paths: xr.DataArray, fisher: np.ndarray) -> None:
    """Print a table for the exact E-step and one for bursts."""
    errors, rng = squared_errors(paths, fisher), np.random.default_rng(0)
    for title, settings in TABLES.items():
        part = errors.sel(setting=[setting.name for setting in settings])
        part = part.dropna("n", how="all").dropna("stream", how="any")
        last = part.isel(n=-1).sel(kind="average")
        gone = int(last["n"]) * last > LOST
        lost = {str(each): int(gone.sel(setting=each.name).sum()) for each in settings}
        part = part.isel(stream=~gone.any("setting").values)
        efficient = ", ".join(f"{n**-0.5:.4f} at {n}" for n in part["n"].values)
        console.print(
            f"\n[bold]{title}[/bold]: error of θ over {part.sizes['stream']} streams; an efficient "
            f"estimator has {efficient}. Lost to another optimum, and excluded everywhere: "
            f"{ {name: count for name, count in lost.items() if count} or 'none' }."
        )
        rows = []
        for setting in settings:
            cells = [str(setting)]
            for n, kind in itertools.product(part["n"].values, ("last", "average")):
                ours, base = (
                    part.sel(n=n, kind=kind, setting=which.name).values
                    for which in (setting, settings[0])
                )
                cells += [root_mean(ours, rng), ratio(ours, base, rng)]
            rows.append(cells)
        headings = ["batch size"]
        for n in part["n"].values:
            headings += [f"last θ at {n}", "ratio to 1", f"average at {n}", "ratio to 1"]
        tell_table(headings, rows)


def main() -> None:
    """Learn and print."""
    given = begin(
        __doc__,
        streams=12,
        quick=(False, "three streams"),
        tell=(False, "only print the last run again"),
        output=Path("output"),
    )
    began, n_streams = time.perf_counter(), 3 if given.quick else given.streams
    found = measured(given.output / "batch_size.nc", partial(run, n_streams), given.tell)
    tell(found["paths"], information(TRUTH))
    console.print(f"{time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
