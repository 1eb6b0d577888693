"""Bias of mode EM, Laplace-Gaussian EM and burst EM against the level of noise.

Streams from two shifted templates (`shifted_curves`) at several noise levels. Online EM starts
from the truth, so what it walks away to is bias, and takes its E-step exactly, from the posterior's
mode, from normal approximations and from bursts. Reported at the end of the streams, as mean and
standard error over seeds: learnt over true variance of the shifts, learnt over true noise variance,
the weight of the smaller class, which is one half in truth, and the root mean squared distance of
the learnt templates to the true ones.

For a linear model with mode statistics the variance of the shifts that is learnt solves
g = (g / (g + s))² (γ² + s), where s = σ² / ‖f'‖² is the variance of the shift given the curve
alone. It is too small at every noise level, and there is no solution but zero where γ² < 3 s. The
picture has it as a dotted line.

    python benchmarks/mode_bias.py --quick     # two seeds, 600 curves
    python benchmarks/mode_bias.py             # ten minutes
    python benchmarks/mode_bias.py --longer    # bursts of 50 and 500 draws, four times the curves
    python benchmarks/mode_bias.py --single-start    # mode searches start at shift zero alone
    python benchmarks/mode_bias.py --draw      # tables and picture of the last run again

It writes ``mode_bias.nc`` and ``mode_bias.png`` to ``output/``, with ``--longer``
``mode_bias_longer.nc`` and no picture.
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
    GRAM,
    N_POINTS,
    TRUTH,
    ShiftedCurves,
    free_vector,
    simulate,
)

import pymc_mcoem as mcoem

matplotlib.use("Agg")
import matplotlib.pyplot as plt

#: Standard deviations of the noise; the templates have one of 0.82 around their means.
NOISES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.4)
MOVE = mcoem.RandomWalk(n_moves=1)
#: Where mode searches start.
STARTS = (-0.6, 0.0, 0.6)
E_STEPS = {
    "exact": mcoem.Exact(),
    "burst, 50 draws": mcoem.CarlinChibBurst(within_class=MOVE),
    "Laplace-Gaussian": mcoem.LaplaceGaussian(),
    "mode": mcoem.PosteriorMode(),
}
#: What ``--longer`` compares: is what a burst has beside the exact E-step bias, or noise?
LONGER = {
    "exact": E_STEPS["exact"],
    "burst, 50 draws": E_STEPS["burst, 50 draws"],
    "burst, 500 draws": E_STEPS["burst, 50 draws"],
}
LONGER_NOISES, LONGER_CHECKPOINTS = (0.2, 1.0, 1.4), (1_000, 2_000, 4_000, 8_000)
COLOURS = {"exact": "k", "burst, 50 draws": "C0", "Laplace-Gaussian": "C1", "mode": "C3"}

console = Console(width=130, highlight=False)


def truth_at(noise: float) -> dict[str, np.ndarray]:
    """Return two templates that differ by their second harmonic, under such noise."""
    return {
        "weights": np.array([0.5, 0.5]),
        "templates": np.asarray(TRUTH["templates"])[:2],
        "noise_variance": np.array(noise**2),
        "shift_variance": np.array(0.16),
    }


def learn(
    family: ShiftedCurves,
    e_step: tuple[str, object],
    noise: float,
    checkpoints: tuple[int, ...],
    seed: int,
) -> np.ndarray:
    """Return θ, averaged from half of the stream on, at the checkpoints."""
    truth, (name, settings) = truth_at(noise), e_step
    draws = 500 if "500" in name else 50
    curves = simulate(truth, checkpoints[-1], np.random.default_rng([seed, 0]))
    em = mcoem.OnlineEM(
        family,
        parameters=truth,
        e_step=settings,
        update_schedule=mcoem.UpdateSchedule.at([50]),
        burst_length=mcoem.BurstLength(draws=draws, burn_in=10),
        random_seed=[seed, 2],
        progressbar=False,
        keep=10_000,
    )
    path = em.partial_fit(curves).history["online_em"].to_dataset()
    vectors = free_vector({part: path[part].values for part in truth})
    return np.array([vectors[n // 2 : n + 1].mean(axis=0) for n in checkpoints])


def run(
    checkpoints: tuple[int, ...],
    n_seeds: int,
    starts: tuple[float, ...],
    file: Path,
    noises: tuple[float, ...] = NOISES,
    e_steps: dict[str, object] = E_STEPS,
) -> xr.DataArray:
    """Learn from all streams; what is there is saved after each."""
    family = ShiftedCurves(truth_at(1.0), starts)
    tasks = [(noise, seed) for noise in noises for seed in range(n_seeds)]
    shape = (len(noises), n_seeds, len(e_steps), len(checkpoints), 13)
    paths = xr.DataArray(
        np.full(shape, np.nan),
        dims=("noise", "seed", "e_step", "n", "parameter"),
        coords={"noise": list(noises), "e_step": list(e_steps), "n": list(checkpoints)},
    )
    for noise, seed in track(tasks, "Streams", console=console):
        for e_step in e_steps.items():
            paths.loc[{"noise": noise, "seed": seed, "e_step": e_step[0]}] = learn(
                family, e_step, noise, checkpoints, seed
            )
        paths.to_netcdf(file, engine="h5netcdf")
    return paths


def template_distance(templates: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return ‖f̂ − f‖ / ‖f‖ over both classes, ``(...)``, of coefficients ``(..., 10)``."""
    gram = np.tile(GRAM, 2)
    found: np.ndarray = np.sqrt((gram * (templates - truth) ** 2).sum(axis=-1))
    return found / np.sqrt((gram * truth**2).sum())


def figures(paths: xr.DataArray) -> xr.Dataset:
    """Return what is reported, ``(noise, seed, e_step, n)``."""
    truths = xr.DataArray(
        np.array([free_vector(truth_at(noise)) for noise in paths["noise"].values]),
        dims=("noise", "parameter"),
    )
    order = ("noise", "seed", "e_step", "n", "parameter")
    values, true = paths.transpose(*order).values, truths.values[:, None, None, None]
    weight = values[..., 0]
    return xr.Dataset(
        {
            "shift": (order[:-1], values[..., 12] / true[..., 12]),
            "variance": (order[:-1], values[..., 11] / true[..., 11]),
            "smaller": (order[:-1], np.minimum(weight, 1 - weight)),
            "distance": (order[:-1], template_distance(values[..., 1:11], true[..., 1:11])),
        },
        coords={name: paths[name] for name in ("noise", "e_step", "n")},
    )


def linear_theory(noises: np.ndarray) -> np.ndarray:
    """Return learnt over true variance of the shifts for mode statistics in a linear model."""
    truth = truth_at(1.0)
    gamma = float(truth["shift_variance"])
    slopes = (truth["templates"][:, 1:] * [1, 1, 2, 2]) ** 2
    s = noises**2 / (0.5 * N_POINTS * slopes.sum(axis=1).mean())
    root = (gamma - s) ** 2 - 4 * s**2
    return np.where(gamma > 3 * s, (gamma - s + np.sqrt(np.maximum(root, 0))) / 2 / gamma, 0.0)


def root_mean_square(values: xr.DataArray) -> xr.DataArray:
    return np.sqrt((values**2).mean("seed"))


def with_error(values: xr.DataArray) -> str:
    error = values.std("seed", ddof=1) / np.sqrt(values.sizes["seed"])
    return f"{float(values.mean('seed')):.3f} ± {float(error):.3f}"


def tell(found: xr.Dataset) -> None:
    """Print the table."""
    last = int(found["n"][-1])
    table = Table(
        title=f"After {last} curves, {found.sizes['seed']} seeds; true values are 1, 1, 0.5, 0"
    )
    for heading in (
        "noise",
        "E-step",
        "shift variance",
        "noise variance",
        "smaller weight",
        "templates",
    ):
        table.add_column(heading, justify="left" if heading == "E-step" else "right")
    for noise in found["noise"].values:
        for name in found["e_step"].values:
            here = found.sel(noise=noise, e_step=name, n=last)
            table.add_row(
                f"{noise}",
                str(name),
                with_error(here["shift"]),
                with_error(here["variance"]),
                with_error(here["smaller"]),
                f"{root_mean_square(here['distance']).item():.3f}",
            )
        table.add_section()
    console.print(table)
    path = Table(title="Root mean squared distance of the templates along the stream, noise 1.0")
    path.add_column("E-step")
    for n in found["n"].values:
        path.add_column(str(n), justify="right")
    for name in found["e_step"].values:
        here = root_mean_square(found["distance"].sel(noise=1.0, e_step=name))
        path.add_row(str(name), *(f"{value:.3f}" for value in here.values))
    console.print(path)


def tell_apart(found: xr.Dataset) -> None:
    """Print what bursts have beside the exact E-step on the same streams, along these."""
    table = Table(title="Burst minus exact E-step, and what the exact one has itself")
    for heading in ("noise", "E-step", "n", "shift variance", "noise variance", "templates, error"):
        table.add_column(heading, justify="left" if heading == "E-step" else "right")
    for noise in found["noise"].values:
        for name in found["e_step"].values:
            for n in found["n"].values:
                here = found.sel(noise=noise, e_step=name, n=n)
                exact = found.sel(noise=noise, e_step="exact", n=n)
                apart = here if name == "exact" else here - exact
                table.add_row(
                    f"{noise}",
                    str(name),
                    str(n),
                    with_error(apart["shift"]),
                    with_error(apart["variance"]),
                    f"{root_mean_square(here['distance']).item():.4f}",
                )
        table.add_section()
    console.print(table)


def draw(found: xr.Dataset, file: Path) -> None:
    """Draw three biases against noise, and the template error against n."""
    last, noises = int(found["n"][-1]), found["noise"].values
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4))
    for name, colour in COLOURS.items():
        here = found.sel(e_step=name, n=last)
        for axis, part in zip(axes[0], ("shift", "variance"), strict=True):
            error = here[part].std("seed", ddof=1) / np.sqrt(found.sizes["seed"])
            axis.errorbar(
                noises, here[part].mean("seed"), error, color=colour, marker="o", ms=3, label=name
            )
        distance = root_mean_square(here["distance"])
        axes[1, 0].semilogy(noises, distance, "-o", color=colour, ms=3)
        path = root_mean_square(found["distance"].sel(noise=1.0, e_step=name))
        axes[1, 1].semilogy(found["n"], path, "-o", color=colour, ms=3, label=name)
    fine = np.linspace(0.05, noises[-1], 300)
    axes[0, 0].plot(fine, linear_theory(fine), "C3:", label="mode, linear theory")
    axes[0, 0].set(title="variance of the shifts, learnt / true", ylim=(-0.03, None))
    axes[0, 1].set(title="noise variance, learnt / true")
    axes[1, 0].set(title="relative error of the templates")
    axes[1, 1].set(title="the same along the streams, noise 1.0")
    for axis in (*axes[0], axes[1, 0]):
        axis.set_xlabel("standard deviation of the noise")
    axes[1, 1].set_xlabel("observations")
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=90)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="two seeds, 600 curves")
    parser.add_argument("--longer", action="store_true", help="longer streams, bursts and exact")
    parser.add_argument("--single-start", action="store_true", help="of mode searches, at zero")
    parser.add_argument("--draw", action="store_true", help="only tell and draw the last run")
    parser.add_argument("--output", type=Path, default=Path("output"))
    given = parser.parse_args()
    logging.getLogger("pymc_mcoem").setLevel(logging.CRITICAL)
    given.output.mkdir(parents=True, exist_ok=True)
    name = "mode_bias_longer.nc" if given.longer else "mode_bias.nc"
    began, file = time.perf_counter(), given.output / name
    if given.draw:
        with xr.open_dataarray(file, engine="h5netcdf") as stored:
            paths = stored.load()
    else:
        checkpoints = (100, 200, 300, 600) if given.quick else (125, 250, 500, 1_000, 2_000)
        starts = (0.0,) if given.single_start else STARTS
        seeds = 2 if given.quick else given.seeds
        if given.longer:
            paths = run(LONGER_CHECKPOINTS, seeds, starts, file, LONGER_NOISES, LONGER)
        else:
            paths = run(checkpoints, seeds, starts, file)
    found = figures(paths)
    if given.longer:
        tell_apart(found)
    else:
        tell(found)
        draw(found, given.output / "mode_bias.png")
    console.print(f"{time.perf_counter() - began:.0f} seconds; see {given.output}.")


if __name__ == "__main__":
    main()
