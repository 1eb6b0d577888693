"""A stream whose templates change: which step sizes follow it, and what that costs.

Images of 8 × 8 pixels from two templates, means of scikit-learn's digits, each image warped and
noisy. For a while nothing changes; then one template turns slowly, at constant speed, from one
digit into another, while the other stays as it is; then both rest. Each run begins at the truth: a
template learnt from nothing settles a little shifted against its warps, which is another error. For
every step size and several streams: the root mean squared difference, over pixels, of the tracked
template and the true one at that moment, for the template that moves and for the one that rests;
and the share of observations after the change that are given to the class that moved, half of them
in truth. Where it is far less, the template was so far behind that the other class took them over.

A gain of f forgets with time constant 1/f, so a tracked template is as far behind as its class
moves in about (1 − f)/f observations, of either class; and it is noisy as a mean of (2 − f)/f
observations. A gain that falls as n^−0.6 is behind by more and more. What that sum leaves out: a
template and its warps may move together, and with large gains they wander.

    python benchmarks/drift.py             # three streams
    python benchmarks/drift.py --streams 1
    python benchmarks/drift.py --draw      # table and picture of the last run again

It writes ``drift.nc`` and ``drift.png`` to ``output/``.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from rich.console import Console
from rich.progress import track
from rich.table import Table

import pymc_mcoem as mcoem

matplotlib.use("Agg")
import matplotlib.pyplot as plt

#: The digit that the moving template is at first, what it becomes, and the digit at rest.
FROM, TO, RESTING = 0, 6, 1
#: Observations before the change, to its end, and in all.
BEGIN, END, TOTAL = 500, 700, 1_000
NOISE = 0.1
SHAPE = (8, 8)


@dataclass(frozen=True)
class Constant:
    """A gain that is the same from the `after`-th step on, and the running mean before."""

    gain: float
    after: int = 20

    def __call__(self, n: int) -> float:
        return 1 / n if n <= self.after else self.gain


STEP_SIZES: dict[str, Callable[[int], float]] = {
    "n^−0.6, the default": mcoem.StepSize(),
    "n^−0.75": mcoem.StepSize(0.75),
    "1/n": mcoem.StepSize(1.0),
    "floor 0.05": mcoem.StepSize(floor=0.05),
    "floor 0.1": mcoem.StepSize(floor=0.1),
    "floor 0.2": mcoem.StepSize(floor=0.2),
    "constant 0.05": Constant(0.05),
}

console = Console(width=120, highlight=False)


def make_mixture(n_classes: int) -> mcoem.TemplateMixture:
    """As in ``examples/digits.py``."""
    priors = mcoem.TemplatePriors(weight_concentration=10.0).with_deformation_variance(
        0.0025, weight=2_000
    )
    return mcoem.TemplateMixture.for_images(SHAPE, n_classes, rigid_variance=0.05, priors=priors)


def digit_templates() -> np.ndarray:
    """Return coefficients of the means of the three digits, (3, n_basis)."""
    digits = mcoem.datasets.load_digits()
    images, labels = digits["images"].values, digits["labels"].values
    mixture, rng = make_mixture(1), np.random.default_rng(0)
    return np.concatenate(
        [
            mixture.initialize(list(images[labels == digit]), rng, "kmeans")["templates"]
            for digit in (FROM, TO, RESTING)
        ]
    )


def true_templates(ends: np.ndarray) -> np.ndarray:
    """Return both templates' coefficients at every observation, (n, 2, n_basis)."""
    share = np.clip((np.arange(TOTAL) - BEGIN) / (END - BEGIN), 0, 1)[:, None]
    moving = (1 - share) * ends[0] + share * ends[1]
    return np.stack([moving, np.broadcast_to(ends[2], moving.shape)], axis=1)


def first_parameters(mixture: mcoem.TemplateMixture, truth: np.ndarray) -> dict[str, np.ndarray]:
    """Return θ at the first observation."""
    return mixture.declared_parameters() | {
        "templates": truth[0],
        "noise_variance": np.array(NOISE**2),
        "deformation_variance": np.full(2, 0.0025),
    }


def make_stream(mixture: mcoem.TemplateMixture, truth: np.ndarray, seed: int) -> np.ndarray:
    """Return images, each a warp of one of the templates of its moment, (n, 8, 8)."""
    drawn = mcoem.datasets.simulate_images(
        mixture, first_parameters(mixture, truth), TOTAL, random_seed=[seed, 0]
    )
    settings, rng = mixture.settings, np.random.default_rng([seed, 1])
    beta = pt.vector("beta")
    warp = pytensor.function([beta], settings.deformation.warp(settings.points, beta))
    deformations, classes = drawn["deformation"].values, drawn["class_index"].values
    images = np.stack(
        [settings.basis.matrix(warp(deformations[n])) @ truth[n, classes[n]] for n in range(TOTAL)]
    )
    return (images + NOISE * rng.standard_normal(images.shape)).reshape(-1, *SHAPE)


def learn(
    mixture: mcoem.TemplateMixture,
    start: dict[str, np.ndarray],
    e_step: mcoem.CarlinChibBurst,
    step_size: Any,
    images: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return templates after every observation, (n, 2, n_basis), and class weights, (n, 2)."""
    em = mcoem.OnlineEM(
        mixture,
        parameters=start,
        e_step=e_step,
        burst_length=mcoem.BurstLength(draws=25, burn_in=10),
        step_size=step_size,
        random_seed=[seed, 2],
        progressbar=False,
        keep=TOTAL + 1,
    ).partial_fit(images)
    history = em.history
    weights = history["observations"]["class_weight"].values
    return history["online_em"]["templates"].values[1:], weights


def run(n_streams: int, file: Path) -> xr.Dataset:
    """Learn every stream with every step size, and save the templates as images."""
    mixture = make_mixture(2)
    truth = true_templates(digit_templates())
    e_step = mcoem.CarlinChibBurst(within_class=mcoem.RandomWalk(n_moves=5))
    start, design = first_parameters(mixture, truth), mixture.mean_design()
    tracked = np.empty((n_streams, len(STEP_SIZES), TOTAL, 2, np.prod(SHAPE)))
    weights = np.empty(tracked.shape[:-1])
    for seed in track(range(n_streams), "Streams", console=console):
        images = make_stream(mixture, truth, seed)
        for row, step_size in enumerate(STEP_SIZES.values()):
            found, weights[seed, row] = learn(mixture, start, e_step, step_size, images, seed)
            tracked[seed, row] = found @ design.T
    found = xr.Dataset(
        {
            "tracked": (("stream", "step_size", "n", "class", "pixel"), tracked),
            "weight": (("stream", "step_size", "n", "class"), weights),
            "truth": (("n", "class", "pixel"), truth @ design.T),
        },
        coords={
            "step_size": list(STEP_SIZES),
            "n": np.arange(1, TOTAL + 1),
            "class": ["moving", "resting"],
        },
    )
    found.to_netcdf(file, engine="h5netcdf")
    return found


def tell(found: xr.Dataset) -> None:
    """Print errors before, late in and after the change, with their standard errors."""
    error = np.sqrt(((found["tracked"] - found["truth"]) ** 2).mean("pixel"))
    change = found["truth"].sel({"class": "moving"})
    whole = float(np.sqrt(((change[-1] - change[0]) ** 2).mean()))
    console.print(
        f"From first to last the moving template changes by {whole:.3f}, in {END - BEGIN} "
        f"observations of both classes; noise of a pixel {NOISE}."
    )
    parts = {
        f"moving, {BEGIN - 200 + 1} to {BEGIN}": ("moving", BEGIN - 200, BEGIN),
        f"{END - 100 + 1} to {END}": ("moving", END - 100, END),
        f"{TOTAL - 100 + 1} to {TOTAL}": ("moving", TOTAL - 100, TOTAL),
        f"resting, {BEGIN + 1} to {TOTAL}": ("resting", BEGIN, TOTAL),
    }
    table = Table(title="Error of tracked templates × 1,000, root mean square over pixels")
    table.add_column("step size")
    for name in parts:
        table.add_column(name, justify="right")
    table.add_column(f"given to it, {END + 1} to {TOTAL}", justify="right")
    given = found["weight"].sel({"class": "moving"}).isel(n=slice(END, None)).mean("n")
    for name in found["step_size"].values:
        cells = []
        for which, begin, end in parts.values():
            here = error.sel(step_size=name).sel({"class": which}).isel(n=slice(begin, end))
            values = 1_000 * here.mean("n").values
            spread = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
            cells.append(f"{values.mean():.0f} ± {spread:.0f}")
        share = given.sel(step_size=name).values
        table.add_row(str(name), *cells, f"{share.mean():.2f} (least {share.min():.2f})")
    console.print(table)


def draw(found: xr.Dataset, file: Path) -> None:
    """Draw errors against n, and the moving template as it is and as it is tracked."""
    error = np.sqrt(((found["tracked"] - found["truth"]) ** 2).mean("pixel")).mean("stream")
    names = found["step_size"].values
    moments = (BEGIN, *np.linspace(BEGIN, END, 5).astype(int)[1:], *range(END + 50, END + 201, 50))
    shown = [names[0], "1/n", "floor 0.1"]
    figure = plt.figure(figsize=(10, 6.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    axes = top.subplots(1, 2, sharey=True)
    for axis, which in zip(axes, ("moving", "resting"), strict=True):
        for number, name in enumerate(names):
            line = error.sel(step_size=name).sel({"class": which})
            style = "--" if str(name).startswith("constant") else "-"
            axis.plot(found["n"], line, style, color=f"C{number}", linewidth=1.2, label=str(name))
        axis.axvspan(BEGIN, END, color="0.93", zorder=0)
        axis.set(xlabel="observations seen", xlim=(60, TOTAL), ylim=(0, None))
        axis.set_title(f"The template that is {which}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("error, root mean square over pixels")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    panels = bottom.subplots(1 + len(shown), len(moments))
    rows = {"truth": found["truth"]}
    rows |= {name: found["tracked"].isel(stream=0).sel(step_size=name) for name in shown}
    for line, (name, images) in zip(panels, rows.items(), strict=True):
        for axis, moment in zip(line, moments, strict=True):
            image = images.sel({"class": "moving", "n": moment}).values.reshape(SHAPE)
            axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            if name == "truth":
                axis.set_title(f"n = {moment}", fontsize=8, pad=3)
        line[0].set_ylabel(str(name).partition(",")[0], rotation=0, ha="right", va="center")
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main() -> None:
    """Learn, tell, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--draw", action="store_true", help="only tell and draw the last run")
    parser.add_argument("--output", type=Path, default=Path("output"))
    arguments = parser.parse_args()
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    arguments.output.mkdir(parents=True, exist_ok=True)
    began, file = time.perf_counter(), arguments.output / "drift.nc"
    found = xr.load_dataset(file) if arguments.draw else run(arguments.streams, file)
    tell(found)
    draw(found, file.with_suffix(".png"))
    console.print(f"{file.with_suffix('.png')} is written; {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
