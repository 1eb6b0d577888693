"""Burst length against number of observations, at equal time.

One endless stream of shifted curves from three overlapping classes (`shifted_curves`), a budget,
and a choice: many observations with short bursts, or few with long ones. Online EM runs with each
burst length until the largest budgets are used up; along the way the squared distance of the
averaged θ to the truth is noted, in units of the Fisher information (as in
``convergence_rate.py``), and read off where smaller budgets end. Time is counted twice: in seconds,
in which a burst has a fixed cost for mode searches and calls, and in density evaluations of the
sweeps, which is what counts where a density is dear and its modes are not.

Theory says n × squared error = 1 + c / m for m draws, and an observation costs a + b m, so that
the best m is √(a c / b) at every budget.

    python benchmarks/burst_length.py --quick     # two seeds, one second each and more
    python benchmarks/burst_length.py             # 12 seeds, four seconds and more: ten minutes
    python benchmarks/burst_length.py --draw      # tables and picture of the last run again

It writes ``burst_length.nc`` and ``burst_length.png`` to ``output/``.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shifted_curves import (
    TRUTH,
    ShiftedCurves,
    free_vector,
    information,
    perturbed,
    simulate,
)

import pymc_mcoem as mcoem

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LENGTHS = (1, 3, 10, 25, 50, 100, 200, 500)
BURN_IN = 10
FIRST_UPDATE, AVERAGE_FROM = 50, 100
#: Density evaluations after which errors are compared, and shares of the seconds.
EVALUATIONS = np.array([20_000, 40_000, 80_000, 160_000])
SHARES = np.array([0.125, 0.25, 0.5, 1.0])
#: Stretches between two looks at θ, as a factor of n.
STRETCH = 1.15
MOVE = mcoem.RandomWalk(n_moves=1)
#: A sweep evaluates the density in every class and at every move.
PER_SWEEP = len(TRUTH["weights"]) + MOVE.n_moves
E_STEP = mcoem.CarlinChibBurst(within_class=MOVE)

console = Console(width=130, highlight=False)


def learn(
    family: ShiftedCurves, draws: int, seed: int, seconds: float, fisher: np.ndarray
) -> np.ndarray:
    """Return n, seconds and squared error, ``(n_looks, 3)``, until both budgets are used up."""
    rng = np.random.default_rng([seed, 0])
    em = mcoem.OnlineEM(
        family,
        parameters=perturbed(TRUTH, np.random.default_rng([seed, 1])),
        e_step=E_STEP,
        update_schedule=mcoem.UpdateSchedule.at([FIRST_UPDATE]),
        burst_length=mcoem.BurstLength(draws=draws, burn_in=BURN_IN),
        average_from=AVERAGE_FROM,
        random_seed=[seed, 2],
        progressbar=False,
        keep=200,
    )
    looks, used, target = [], 0.0, FIRST_UPDATE
    while used < seconds or em.n_seen * (draws + BURN_IN) * PER_SWEEP < EVALUATIONS[-1]:
        curves = simulate(TRUTH, target - em.n_seen, rng)
        began = time.perf_counter()
        em.partial_fit(curves)
        used += time.perf_counter() - began
        away = free_vector(em.parameters) - free_vector(TRUTH)
        looks.append([em.n_seen, used, away @ fisher @ away / len(away)])
        target = int(np.ceil(STRETCH * target))
    return np.array(looks)


def run(n_seeds: int, seconds: float, file: Path) -> xr.Dataset:
    """Learn with every length from every stream; what is there is saved after each seed."""
    # one family for all runs, which share what is compiled for it
    family, fisher = ShiftedCurves(TRUTH), information(TRUTH)
    learn(family, 500, 0, 0.01, fisher)  # it is compiled before clocks run
    rows = []
    for seed in track(range(n_seeds), "Streams", console=console):
        for draws in LENGTHS:
            for n, used, error in learn(family, draws, seed, seconds, fisher):
                rows.append([seed, draws, n, used, error])
        table = np.array(rows)
        found = xr.Dataset(
            {
                name: ("look", table[:, column])
                for column, name in enumerate(("seed", "draws", "n", "seconds", "error"))
            },
            attrs={"budget": seconds},
        )
        found.to_netcdf(file, engine="h5netcdf")
    return found


def at_budgets(found: xr.Dataset, budgets: np.ndarray, measure: str) -> np.ndarray:
    """Return logarithms of errors ``(length, budget, seed)``, linear in that of time.

    A budget that ends before the first M-step, or goes beyond the run, has nan.
    """
    seeds = np.unique(found["seed"].values)
    errors = np.full((len(LENGTHS), len(budgets), len(seeds)), np.nan)
    for row, draws in enumerate(LENGTHS):
        for column, seed in enumerate(seeds):
            here = found.isel(
                look=(found["draws"].values == draws) & (found["seed"].values == seed)
            )
            spent = here["seconds"].values
            if measure == "evaluations":
                spent = here["n"].values * (draws + BURN_IN) * PER_SWEEP
            errors[row, :, column] = 0.5 * np.interp(
                np.log(budgets),
                np.log(spent),
                np.log(here["error"].values),
                left=np.nan,
                right=np.nan,
            )
    return errors


def tell(errors: np.ndarray, budgets: np.ndarray, measure: str) -> None:
    """Print geometric means of errors, which a lost stream does not dominate; * is the best."""
    table = Table(title=f"Error of averaged θ × 100 after {measure}")
    table.add_column("draws", justify="right")
    for budget in budgets:
        table.add_column(f"{budget:,g}", justify="right")
    mean = errors.mean(axis=2)  # nan where a run has no error: not compared
    best = np.array([np.nanargmin(column) for column in mean.T])
    for row, draws in enumerate(LENGTHS):
        cells = []
        for column in range(len(budgets)):
            value, values = mean[row, column], errors[row, column]
            if np.isnan(value):
                cells.append("")
                continue
            error = np.exp(value)
            half = error * values.std(ddof=1) / np.sqrt(len(values))
            star = "*" if row == best[column] else ""
            cells.append(f"{star}{100 * error:.1f} ± {100 * half:.1f}")
        table.add_row(str(draws), *cells)
    console.print(table)


def cost(found: xr.Dataset) -> tuple[float, float]:
    """Return milliseconds of an observation without sweeps, and of a sweep."""
    sweeps, each = [], []
    for draws in LENGTHS:
        here = found.isel(look=found["draws"].values == draws)
        last = here.isel(look=here["seconds"].values > 0.7 * found.attrs["budget"])
        sweeps.append(draws + BURN_IN)
        each.append(float(np.median(1_000 * last["seconds"] / last["n"])))
    slope, start = np.polyfit(sweeps, each, 1, w=1 / np.array(each))
    return float(start), float(slope)


def draw(parts: dict[str, tuple[np.ndarray, np.ndarray]], file: Path) -> None:
    """Draw error against burst length, one line a budget, for both ways to count time."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, (measure, (errors, budgets)) in zip(axes, parts.items(), strict=True):
        for number, budget in enumerate(budgets):
            values = errors[:, number]
            error = np.exp(values.mean(axis=1))
            half = error * values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
            axis.errorbar(LENGTHS, error, half, marker="o", ms=3, label=f"{budget:,g} {measure}")
        axis.set(xscale="log", yscale="log", xlabel="draws a burst")
        axis.legend(fontsize=7)
    axes[0].set_ylabel("error of averaged θ")
    figure.tight_layout()
    figure.savefig(file, dpi=92)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0, help="the largest budget")
    parser.add_argument("--quick", action="store_true", help="two seeds, one second")
    parser.add_argument("--draw", action="store_true", help="only tell and draw the last run")
    parser.add_argument("--output", type=Path, default=Path("output"))
    given = parser.parse_args()
    logging.getLogger("pymc_mcoem").setLevel(logging.CRITICAL)
    given.output.mkdir(parents=True, exist_ok=True)
    began, file = time.perf_counter(), given.output / "burst_length.nc"
    if given.draw:
        with xr.open_dataset(file, engine="h5netcdf") as stored:
            found = stored.load()
    else:
        found = run(2 if given.quick else given.seeds, 1.0 if given.quick else given.seconds, file)
    budgets = {
        "seconds": found.attrs["budget"] * SHARES,
        "evaluations": EVALUATIONS,
    }
    parts = {name: (at_budgets(found, values, name), values) for name, values in budgets.items()}
    for name, (errors, values) in parts.items():
        tell(errors, values, name)
    fixed, sweep = cost(found)
    console.print(f"An observation takes {fixed:.2f} ms and {1_000 * sweep:.1f} µs a sweep.")
    draw(parts, given.output / "burst_length.png")
    console.print(f"{time.perf_counter() - began:.0f} seconds; see {given.output}.")


if __name__ == "__main__":
    main()
