"""Learn the growth of boys and girls from 93 unlabeled curves, each with its own clock.

This is the first study of the paper: velocities of the Berkeley growth study at 31 ages from 2 to
18 years, drawn with replacement, two templates, and no labels of sex. It writes four pictures: the
curves and the two templates as they grow; one child registered to both templates; the posterior
class of every child; averages of registered and of unregistered curves.

Run it with ``python examples/growth.py``; the pictures go to ``output/``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pymc as pm
import xarray as xr
from rich.console import Console

import pymc_mcoem as mcoem

matplotlib.use("Agg")
import matplotlib.pyplot as plt

AGES = np.linspace(2.0, 18.0, 31)
FINE = np.linspace(2.0, 18.0, 801)
#: Colors of the early class and of the late class.
COLORS = ("#c1440e", "#1f4e79")
NAMES = ("early class", "late class")

console = Console(highlight=False)


class Learned:
    """Data for the pictures: θ with the early class first, and every child registered."""

    def __init__(
        self, mixture: mcoem.TemplateMixture, em: mcoem.OnlineEM, curves: np.ndarray
    ) -> None:
        self.mixture = mixture
        self.parameters = em.parameters
        first = self.register(curves, None)
        self.probability = first["class_probability"].values
        mass = first["class_probability"]
        #: Mean posterior warp of each class, the clock on which its template is shown.
        self.mean_beta = (
            (mass * first["deformation_mean"]).sum("child") / mass.sum("child")
        ).values
        #: Registrations of all children on that clock.
        self.children = self.register(curves, self.mean_beta)
        self.mean_scale = ((mass * first["scale_mean"]).sum("child") / mass.sum("child")).values
        spurts = FINE[np.argmax(np.where(FINE > 8, self.templates(), -np.inf), axis=1)]
        self.order = np.argsort(spurts)
        self.spurts = spurts[self.order]

    def register(self, curves: np.ndarray, reference: np.ndarray | None) -> xr.Dataset:
        """Return the registrations of all children, with the dim ``child`` first."""
        return xr.concat(
            [
                self.mixture.register(
                    curve, self.parameters, reference=reference, random_seed=number
                )
                for number, curve in enumerate(curves)
            ],
            dim="child",
        )

    def times(self, beta: np.ndarray, ages: np.ndarray = FINE) -> np.ndarray:
        """Return D(age, β), template time."""
        return self.mixture.settings.deformation.evaluate(ages, beta)

    def velocity(self, j: int, times: np.ndarray, coefficients: Any = None) -> np.ndarray:
        """Return template j at template times."""
        chosen = self.parameters["templates"] if coefficients is None else coefficients
        return self.mixture.settings.basis.matrix(times[:, None]) @ np.asarray(chosen)[j]

    def templates(self, coefficients: Any = None) -> np.ndarray:
        """Return all templates on the age axis, each at its class's mean warp and scale."""
        return np.stack(
            [
                scale * self.velocity(j, self.times(beta), coefficients)
                for j, (beta, scale) in enumerate(zip(self.mean_beta, self.mean_scale, strict=True))
            ]
        )


def draw_templates(
    learned: Learned, curves: np.ndarray, sex: np.ndarray, path: xr.Dataset, file: Path
) -> None:
    """Draw the curves, the templates over them, and how the templates grew."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), sharex=True, sharey=True)
    axes[0].plot(AGES, curves.T, color="0.35", linewidth=0.5, alpha=0.6)
    axes[0].set_title("93 children, sex unknown to the model", fontsize=10)
    templates = learned.templates()
    for position, (name, color, j) in enumerate(zip(NAMES, COLORS, learned.order, strict=True)):
        line = templates[j]
        peak = int(np.argmax(np.where(FINE > 8, line, -np.inf)))
        before = (FINE > 6) & (FINE < FINE[peak])
        dip = int(np.argmin(np.where(before, line, np.inf)))
        axes[1].plot(FINE, line, color=color, linewidth=2.2, label=f"{name}: template")
        plain = curves[sex == position].mean(axis=0)
        who = ("girls", "boys")[position]
        axes[1].plot(
            AGES,
            plain,
            color=color,
            linestyle=(0, (1, 1.2)),
            linewidth=1.4,
            label=f"{who}: average",
        )
        axes[1].plot(FINE[[dip, peak]], line[[dip, peak]], "o", color=color, markersize=4)
        for place, above, what in ((peak, 9, "spurt"), (dip, -16, "dip")):
            axes[1].annotate(
                f"{what} {FINE[place]:.1f}",
                (FINE[place], line[place]),
                textcoords="offset points",
                xytext=((-14, 8)[position], above),
                ha="center",
                color=color,
                fontsize=8,
            )
        console.print(
            f"{name}: spurt at {FINE[peak]:.1f} years ({line[peak]:.1f} cm a year), dip before it "
            f"at {FINE[dip]:.1f} ({line[dip]:.1f} cm a year)"
        )
    axes[1].legend(frameon=False, fontsize=8, loc="lower left")
    axes[1].set_title("Templates at their classes' mean warp and scale", fontsize=10)
    # The path holds θ at steps 0, 1, ..., if there are not more than it keeps.
    steps = [
        step for step in (0, 20, 100, 300, path.sizes["step"] - 1) if step < path.sizes["step"]
    ]
    for shade, step in zip(np.linspace(0.2, 1.0, len(steps)), steps, strict=True):
        then = learned.templates(path["templates"].values[step])
        for color, j in zip(COLORS, learned.order, strict=True):
            axes[2].plot(FINE, then[j], color=color, alpha=shade, linewidth=1 + shade)
    axes[2].set_title(f"After {', '.join(map(str, steps))} curves, pale to full", fontsize=10)
    for axis in axes:
        axis.set(xlabel="age (years)", xlim=(2, 18), ylim=(0, 15), xticks=range(2, 18, 2))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("growth velocity (cm a year)")
    save(figure, file)


def draw_registration(
    learned: Learned, curve: np.ndarray, name: str, seed: int, file: Path
) -> None:
    """Draw one child under both templates: warped templates, warps, chain of the class index."""
    model = learned.mixture.condition(curve, learned.parameters)
    with model:
        idata = pm.sample(
            draws=300,
            tune=100,
            chains=1,
            cores=1,
            step=mcoem.CarlinChib(),
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
    posterior = idata["posterior"].to_dataset().isel(chain=0)
    index = posterior["class_index"].values
    clock = learned.mixture.settings.deformation
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.4))
    for position, (axis, color, j) in enumerate(zip(axes[0], COLORS, learned.order, strict=True)):
        rows = np.flatnonzero(index == j)
        for draw in rows[:: max(1, len(rows) // 12)]:
            beta = posterior["deformation"].values[draw]
            warped = float(posterior["scale"][draw]) * learned.velocity(j, learned.times(beta))
            axis.plot(FINE, warped, color=color, linestyle="--", linewidth=0.7, alpha=0.6)
            stage = clock.inverse(learned.times(beta), learned.mean_beta[j])
            axes[1, 0].plot(FINE, stage, color=color, linewidth=0.7, linestyle="--", alpha=0.7)
        axis.plot(FINE, learned.templates()[j], color=color, linewidth=2.2, label="template")
        axis.plot([], [], color=color, linestyle="--", linewidth=0.9, label="warped and scaled")
        axis.plot(AGES, curve, "o", color="0.15", markersize=3.2, label=name)
        axis.set_title(f"{NAMES[position]}: {len(rows)} of 300 sweeps", fontsize=10)
        axis.set(xlabel="age (years)", ylim=(0, None), xlim=(2, 18))
        axis.legend(frameon=False, fontsize=8, loc="upper right")
    axes[0, 0].set_ylabel("growth velocity (cm a year)")
    limits = max(axis.get_ylim()[1] for axis in axes[0])
    for axis in axes[0]:
        axis.set_ylim(0, 1.15 * limits)
    axes[1, 0].plot(FINE, FINE, color="0.4", linewidth=1.2)
    axes[1, 0].set(
        xlabel="age (years)", ylabel="same stage in the class's mean", xlim=(2, 18), ylim=(2, 18)
    )
    axes[1, 0].set_title(f"Warps of {name} under both templates, years", fontsize=10)
    place = np.argsort(learned.order)[index]
    axes[1, 1].step(np.arange(1, 301), place, where="mid", color="0.25", linewidth=0.8)
    axes[1, 1].set_yticks([0, 1], NAMES)
    axes[1, 1].set(xlabel="sweep", ylim=(-0.2, 1.2), xlim=(0, 301))
    axes[1, 1].set_title("Class index, 300 sweeps", fontsize=10)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, file)


def draw_children(learned: Learned, sex: np.ndarray, names: np.ndarray, file: Path) -> None:
    """Draw the posterior probability of the late class for every child."""
    late = learned.probability[:, learned.order[1]]
    figure, axes = plt.subplots(2, 1, figsize=(10, 5), sharey=True)
    for axis, label, word in zip(axes, (0, 1), ("girls", "boys"), strict=True):
        rows = np.flatnonzero(sex == label)
        rows = rows[np.argsort(late[rows])]
        axis.bar(np.arange(len(rows)), late[rows], color=COLORS[1], width=0.85)
        axis.bar(
            np.arange(len(rows)), 1 - late[rows], bottom=late[rows], color=COLORS[0], width=0.85
        )
        axis.axhline(0.5, color="white", linewidth=0.8)
        axis.set_xticks(np.arange(len(rows)), [names[row][-2:] for row in rows], fontsize=6)
        axis.set(ylim=(0, 1), xlim=(-0.6, len(rows) - 0.4), ylabel="posterior probability")
        right = np.sum((late[rows] > 0.5) == label)
        side = NAMES[label]
        axis.set_title(f"{len(rows)} {word}, {right} of them in the {side}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.text(0.80, 0.955, NAMES[0], color=COLORS[0], fontsize=10)
    figure.text(0.90, 0.955, NAMES[1], color=COLORS[1], fontsize=10)
    save(figure, file)


def draw_averages(learned: Learned, curves: np.ndarray, file: Path) -> None:
    """Draw averages of curves as they are, and of curves on their class's common clock."""
    groups = learned.probability.argmax(axis=1)
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for axis, color, name, j in zip(axes, COLORS, NAMES, learned.order, strict=True):
        rows = np.flatnonzero(groups == j)
        moved = learned.children["aligned_mean"].values[rows, j]
        known = ~np.isnan(moved)
        moved = moved * float(learned.children["scale_mean"][rows, j].mean())
        # Near the ends some children have no data on the common clock.
        enough = known.mean(axis=0) > 0.5
        average = np.full(AGES.size, np.nan)
        average[enough] = np.nanmean(moved[:, enough], axis=0)
        plain = curves[rows].mean(axis=0)
        axis.plot(AGES, moved.T, color=color, linewidth=0.4, alpha=0.35)
        axis.plot(AGES, plain, color="0.1", linestyle=(0, (1, 1.2)), linewidth=2)
        axis.plot(AGES, average, color=color, linewidth=2.4)
        # Titles name the lines, so that no legend covers the curves.
        axis.set_title(
            f"{name}, {len(rows)} children: registered (full), as measured (dotted)", fontsize=9
        )
        rising = AGES > 8
        told = (np.nanmax(line[rising]) for line in (average, plain))
        before = (AGES > 6) & (AGES < AGES[rising][np.nanargmax(average[rising])])
        dips = (np.nanmin(line[before]) for line in (average, plain))
        console.print(
            "{}: registered average, spurt of {:.1f} cm a year after a dip of {:.1f}; "
            "as measured {:.1f} after {:.1f}".format(
                name, *(value for pair in zip(told, dips, strict=True) for value in pair)
            )
        )
        axis.set(xlabel="age (years)", xlim=(2, 18), ylim=(0, 14))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("growth velocity (cm a year)")
    save(figure, file)


def save(figure: Any, file: Path) -> None:
    """Write a picture and close it."""
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Learn, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=11, help="as many draws as children in each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("output"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)

    growth = mcoem.datasets.load_growth()
    sex = (growth["sex"].values == "male").astype(int)
    curves = mcoem.datasets.growth_velocity(growth["height"], growth["age"], AGES)
    mixture = mcoem.TemplateMixture.for_curves(xr.DataArray(AGES, name="age"), n_classes=2)
    stream = mcoem.Passes(curves, arguments.passes, replace=True, random_seed=arguments.seed)
    e_step = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(n_moves=5))
    em = mcoem.OnlineEM(
        mixture,
        e_step=e_step,
        average_from=len(stream) // 2,
        random_seed=arguments.seed,
    )
    console.print("The first run compiles for a minute or two; later ones start in seconds.")
    began = time.perf_counter()
    em.partial_fit(stream)
    console.print(f"Learned from {em.n_seen} draws in {time.perf_counter() - began:.0f} s.")

    learned = Learned(mixture, em, curves)
    late = learned.probability[:, learned.order[1]]
    own = np.mean((late > 0.5) == sex)
    variances = em.parameters["deformation_variance"].values[learned.order]
    console.print(
        f"{own:.3f} of the children are in their own sex's class; γ² {variances[0]:.3f} and "
        f"{variances[1]:.3f}; σ {float(np.sqrt(em.parameters['noise_variance'])):.2f} cm a year"
    )
    output = arguments.output
    path = em.history["steps"].to_dataset()
    draw_templates(learned, curves, sex, path, output / "growth_templates.png")
    # The child with the least certain class shows both registrations.
    child = int(np.argmin(np.abs(late - 0.5)))
    name = str(growth["child"].values[child])
    draw_registration(
        learned, curves[child], name, arguments.seed, output / "growth_registration.png"
    )
    draw_children(learned, sex, growth["child"].values, output / "growth_children.png")
    draw_averages(learned, curves, output / "growth_averages.png")
    console.print(f"Wrote four pictures to {output}/, growth_*.png.")


if __name__ == "__main__":
    main()
