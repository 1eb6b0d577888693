"""Measure what Monte Carlo E-steps cost in the convergence rate of online EM.

The streams come from a mixture of shifted curves with an exact E-step (`shifted_curves`) and three
overlapping classes. On each stream online EM runs with the exact E-step and with bursts of several
lengths, with one random-walk move per sweep and ten sweeps of tuning. Reported along n are the
distance of θ to the truth, which no estimator can bring below about n^−1/2, and its distance to the
θ of the exact E-step on the same stream, which is the Monte Carlo error alone. Both are in units of
the Fisher information, √(dᵀ I d / number of parameters): an efficient estimator has 1/√n.

The factor f that theory predicts is measured from bursts at the true θ (``burst_noise.py``).

    python benchmarks/convergence_rate.py --quick      # three streams, in three minutes
    python benchmarks/convergence_rate.py              # 50 streams, under an hour
    python benchmarks/convergence_rate.py --draw       # tables and picture of the last run again

It writes ``convergence_rate.nc`` after every stream, ``burst_noise.nc`` and
``convergence_rate.png`` to ``output/``.
"""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from burst_noise import E_STEPS, TUNE, at_truth, make_family, read, tell_bursts
from rich.progress import track
from shifted_curves import (
    TRUTH,
    ShiftedCurves,
    free_vector,
    information,
    perturbed,
    simulate,
)
from timing import console, make_table, tell_versions

import pymc_mcoem as mcoem

matplotlib.use("Agg")
import matplotlib.pyplot as plt

#: Numbers of observations after which θ is averaged and after which slopes are fitted.
AVERAGE_FROM, FIT_FROM = 100, 300
CHECKPOINTS = (100, 150, 200, 300, 450, 700, 1_000, 1_500)
#: A stream with a larger n × squared error has gone to another optimum. It is 1 to 6 otherwise.
LOST = 30.0


@dataclass(frozen=True)
class Setting:
    """A way to learn: draws per burst (0 for the exact E-step), its form, the step size."""

    draws: int
    rao_blackwell: bool = False
    exponent: float = 0.6

    @property
    def burst(self) -> str:
        return f"{self.draws} draw{'s' * (self.draws > 1)}" if self.draws else "exact"

    def __str__(self) -> str:
        also = ", Rao-Blackwell" if self.rao_blackwell else ""
        return f"{self.burst}{also}, n^−{self.exponent}"


PLAIN = tuple(Setting(draws) for draws in (0, 1, 10, 50, 200, 500))
SETTINGS = (
    *PLAIN,
    *(Setting(draws, rao_blackwell=True) for draws in (10, 50, 200, 500)),
    Setting(0, exponent=0.75),
    Setting(10, exponent=0.75),
)


def learn(family: ShiftedCurves, setting: Setting, curves: np.ndarray, seed: int) -> np.ndarray:
    """Return last and averaged θ at the checkpoints, ``(2, n_checkpoints, n_free)``."""
    em = mcoem.OnlineEM(
        family,
        parameters=perturbed(TRUTH, np.random.default_rng([seed, 1])),
        e_step=E_STEPS[setting.rao_blackwell] if setting.draws else mcoem.esteps.Exact(),
        step_size=mcoem.schedules.StepSize(setting.exponent),
        update_schedule=mcoem.schedules.UpdateSchedule.at([50]),
        burst_length=mcoem.schedules.BurstLength(draws=max(setting.draws, 1), tune=TUNE),
        average_from=AVERAGE_FROM,
        random_seed=[seed, 2],
        progressbar=False,
        keep=200,
    )
    found = []
    for n in CHECKPOINTS:
        em.partial_fit(curves[em.n_seen : n])
        found.append([free_vector(em.last_parameters), free_vector(em.parameters)])
    return np.moveaxis(np.array(found), 1, 0)


def run_seeds(n_seeds: int, file: Path, *, resume: bool) -> xr.DataArray:
    """Learn from all streams and save the results after each."""
    family, found = make_family(), []
    if resume and file.exists():
        found = list(read(file).values)
    for seed in track(range(len(found), n_seeds), "Streams", console=console):
        curves = simulate(TRUTH, CHECKPOINTS[-1], np.random.default_rng([seed, 0]))
        found.append([learn(family, setting, curves, seed) for setting in SETTINGS])
        paths = xr.DataArray(
            np.array(found),
            dims=("seed", "setting", "kind", "n", "parameter"),
            coords={
                "setting": [str(setting) for setting in SETTINGS],
                "kind": ["last", "average"],
                "n": list(CHECKPOINTS),
            },
            name="paths",
        )
        paths.to_netcdf(file, engine="h5netcdf")
    return paths


def squared(difference: xr.DataArray, fisher: np.ndarray) -> xr.DataArray:
    """Return dᵀ I d / number of parameters."""
    matrix = xr.DataArray(fisher, dims=("parameter", "other"))
    other = difference.rename(parameter="other")
    return xr.dot(difference, matrix, other, dim=["parameter", "other"]) / len(fisher)


def slope(errors: xr.DataArray) -> tuple[float, float]:
    """Return the slope of log √(mean squared error) on log n, and its standard error.

    The standard error is from a bootstrap over seeds, because errors along a stream are dependent.
    """
    late = errors.sel(n=slice(FIT_FROM, None))
    log_n, values = np.log(late["n"].values), late.transpose("seed", "n").values
    rng = np.random.default_rng(0)
    drawn = [
        np.polyfit(log_n, 0.5 * np.log(values[rows].mean(axis=0)), 1)[0]
        for rows in rng.integers(len(values), size=(500, len(values)))
    ]
    fitted = np.polyfit(log_n, 0.5 * np.log(values.mean(axis=0)), 1)[0]
    return float(fitted), float(np.std(drawn))


@dataclass(frozen=True)
class Errors:
    """Squared errors ``(seed, kind, n)`` of one setting, on streams that were not lost."""

    to_truth: xr.DataArray
    to_exact: xr.DataArray
    n_lost: int

    @classmethod
    def of(cls, paths: xr.DataArray, setting: Setting, fisher: np.ndarray) -> Errors:
        ours = paths.sel(setting=str(setting))
        exact = paths.sel(setting=str(Setting(0, exponent=setting.exponent)))
        to_truth = squared(ours - free_vector(TRUTH), fisher)
        to_exact = squared(ours - exact, fisher)
        n = to_truth["n"].values
        reference = squared(exact - free_vector(TRUTH), fisher)
        lost = [
            (n[-1] * part.sel(kind="average").isel(n=-1)).values > LOST
            for part in (to_truth, reference)
        ]
        stayed = ~(lost[0] | lost[1])
        return cls(to_truth.isel(seed=stayed), to_exact.isel(seed=stayed), int(lost[0].sum()))


def tell(paths: xr.DataArray, bursts: xr.DataArray, fisher: np.ndarray) -> None:
    """Print the table of errors beside the predictions from bursts at the truth."""
    n_seeds, last = paths.sizes["seed"], int(paths["n"][-1])
    squared = ("n × E² of last θ", "average")
    distances = [(f"to {which}: last θ", "average", *squared) for which in ("truth", "exact")]
    table = make_table(
        ("E-step, step size", "lost", *distances[0], *distances[1], "predicted"),
        title=f"{n_seeds} streams: slopes from n = {FIT_FROM} on, n × squared error at {last}; "
        "streams that were lost are counted and left out",
    )
    for setting in SETTINGS:
        errors = Errors.of(paths, setting, fisher)
        row = [str(setting), str(errors.n_lost)]
        parts = (errors.to_truth, errors.to_exact) if setting.draws else (errors.to_truth,)
        for part in parts:
            row += [with_error(*slope(part.sel(kind=kind))) for kind in ("last", "average")]
            row += [scaled(part.sel(kind=kind, n=last), last) for kind in ("last", "average")]
        if setting.draws:
            row += [f"{factor(bursts, setting):.3f}"]
        table.add_row(*row)
    console.print(table)


def with_error(value: float, error: float) -> str:
    return f"{value:.2f} ± {error:.2f}"


def scaled(errors: xr.DataArray, n: int) -> str:
    """Return n × the mean over seeds, with its standard error."""
    values = n * errors.values
    return f"{values.mean():.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}"


def factor(bursts: xr.DataArray, setting: Setting) -> float:
    """Return the f predicted for a setting from bursts at the truth."""
    form = "Rao-Blackwell" if setting.rao_blackwell else "visits"
    chosen = (
        (bursts["form"] == form) & (bursts["tune"] == TUNE) & (bursts["draws"] == setting.draws)
    )
    return float(bursts.sel(figure="noise")[chosen.values].item())


def draw(paths: xr.DataArray, bursts: xr.DataArray, fisher: np.ndarray, file: Path) -> None:
    """Draw errors against n: to the truth, and to the exact E-step's θ."""
    n = paths["n"].values
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
    for number, setting in enumerate(PLAIN):
        errors, color = Errors.of(paths, setting, fisher), f"C{number}" if number else "k"
        label = setting.burst
        for kind, style in (("last", "--"), ("average", "-")):
            error = np.sqrt(errors.to_truth.sel(kind=kind).mean("seed"))
            left.loglog(n, error, style, color=color, label=label if style == "-" else None)
        if setting.draws:
            error = np.sqrt(errors.to_exact.sel(kind="average").mean("seed"))
            right.loglog(n, error, "-o", ms=3, color=color, label=label)
            right.loglog(n, np.sqrt(factor(bursts, setting) / n), ":", color=color)
        weighed = Setting(setting.draws, rao_blackwell=True)
        if weighed in SETTINGS:
            error = np.sqrt(
                Errors.of(paths, weighed, fisher).to_exact.sel(kind="average").mean("seed")
            )
            right.loglog(n, error, "--s", ms=3, mfc="none", color=color)
    left.loglog(n, n**-0.5, "k:", label="1/√n")
    left.set_title("to the truth; dashed: last θ, full: averaged θ", fontsize=9)
    right.set_title("to the exact E-step's; dashed: Rao-Blackwell; dotted: predicted", fontsize=9)
    left.set_ylabel("error")
    for axis in (left, right):
        axis.set_xlabel("observations")
        axis.legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(file, dpi=92)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--bursts", type=int, default=2_000, help="at the true θ, of each kind")
    parser.add_argument("--quick", action="store_true", help="three seeds, 300 bursts")
    parser.add_argument("--resume", action="store_true", help="go on with the last run")
    parser.add_argument("--draw", action="store_true", help="only tell and draw the last run")
    parser.add_argument("--output", type=Path, default=Path("output"))
    given = parser.parse_args()
    tell_versions()
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    given.output.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    fisher = information(TRUTH)
    runs, at = given.output / "convergence_rate.nc", given.output / "burst_noise.nc"
    if given.draw:
        paths, bursts = read(runs), read(at)
    else:
        if given.resume and at.exists():
            bursts = read(at)
        else:
            bursts = at_truth(300 if given.quick else given.bursts, fisher)
            bursts.to_netcdf(at, engine="h5netcdf")
        paths = run_seeds(3 if given.quick else given.seeds, runs, resume=given.resume)
    tell(paths, bursts, fisher)
    tell_bursts(bursts)
    draw(paths, bursts, fisher, given.output / "convergence_rate.png")
    console.print(f"{time.perf_counter() - began:.0f} seconds; see {given.output}.")


if __name__ == "__main__":
    main()
