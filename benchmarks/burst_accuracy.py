"""Measure how many independent draws a burst is worth, against its time, by kind of burst.

The data are noisy postal digits of all kinds, with four classes and 78 latents; θ is taken after
20, 100 and 500 observations (early, middle, late), and 20 other images get bursts. Long runs
give the posterior means of class weights, ΦᵀY, ΦᵀΦ and ββᵀ of each image, twice, and the variance
of a single draw. Chains of bursts do not leave the modes where their pseudo-priors were fitted, so
long runs that began there would agree with them by construction. Long runs therefore begin at the
modes of highest evidence that a dozen searches find in each class, none of which is a search of the
compared bursts. Then every kind of burst runs at several lengths, several times for each image. A
mean over m independent draws would have the variance of one over m, so

    worth = variance of one draw / mean squared error of the burst, summed over images,

is the number of independent draws that a burst is worth, whatever the source of its error. The
result is the time in which each kind reaches the worth of the paper's burst (500 sweeps, 100 of
tuning, 20 random-walk moves a sweep, pilot chains), interpolated between its lengths on log axes,
as a ratio. It is a lower bound where the shortest length is enough, and 0 where the longest is not.
Long runs have an error too, and bursts that are worth more than the long runs cannot be compared.

    python benchmarks/burst_accuracy.py --quick
    python benchmarks/burst_accuracy.py

It writes ``burst_accuracy.nc`` to ``output/``.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.progress import track
from threadpoolctl import threadpool_limits
from timing import begin, console, measured, tell_table

import pymc_mcoem as mcoem
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.em.esteps.carlin_chib import CompiledCarlinChibBurst
from pymc_mcoem.laplace.schedule import Cooling, Race

N_CLASSES, NOISE = 4, 0.2
STAGES = {"early": 20, "middle": 100, "late": 500}
NAMES = ("class_weight", "template_projection", "template_gram", "deformation_outer")
PAPER = "paper"
#: Kind of burst: E-step, and its lengths as (tune, draws).
LENGTHS = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (0, 6), (2, 6), (5, 15)]
LENGTHS += [(10, 40), (25, 100), (50, 250)]
#: For long runs: the angle of two of three starting points, and the cooling of their searches.
ANGLE = 0.35
COOLINGS = [None, (30.0, 5.0), (3.0,), (100.0, 30.0, 10.0, 3.0)]
PATIENT = mcoem.pseudo_priors.Laplace(
    max_iterations=60,
    race=Race(n_iterations=6, margins=(100.0, 50.0)),
    cooling=Cooling(n_iterations=6),
)
HASTY = mcoem.pseudo_priors.Laplace.hasty()
HAMILTONIAN = mcoem.moves.Hamiltonian(n_moves=1, n_leapfrog=8)
KINDS: dict[str, tuple[Any, list[tuple[int, int]]]] = {
    PAPER: (mcoem.esteps.CarlinChibBurst.as_in_paper(), [(100, 400)]),
    **{
        kind: (mcoem.esteps.CarlinChibBurst(**options), LENGTHS)
        for kind, options in {
            "random walk, 20 moves": {"within_class": mcoem.moves.RandomWalk(20)},
            "random walk, 5 moves": {"within_class": mcoem.moves.RandomWalk(5)},
            "Hamiltonian, 8 steps": {"within_class": HAMILTONIAN},
            "Hamiltonian, 4 steps": {"within_class": mcoem.moves.Hamiltonian(1, 4)},
            "independence, 5 moves": {"within_class": mcoem.moves.Independence(5)},
            "Hamiltonian, Rao-Blackwell": {"within_class": HAMILTONIAN, "rao_blackwell": True},
            "Hamiltonian, patient modes": {"within_class": HAMILTONIAN, "pseudo_priors": PATIENT},
            "Hamiltonian, hasty modes": {"within_class": HAMILTONIAN, "pseudo_priors": HASTY},
            "Hamiltonian, prior covariance": {
                "within_class": HAMILTONIAN,
                "pseudo_priors": mcoem.pseudo_priors.PriorCovariance(),
            },
        }.items()
    },
    "Laplace, importance weights": (
        mcoem.esteps.LaplaceGaussian(importance=True),
        sorted({(0, tune + draws) for tune, draws in LENGTHS}),
    ),
}


@dataclass(frozen=True)
class Thorough:
    """The mode with the highest evidence of a dozen searches in each class."""

    def compile(self, density: Any, geometry: Any, mode: Any = None) -> Any:
        undeformed = geometry.starts_of(density)[0]
        starts = [undeformed, undeformed.copy(), undeformed.copy()]
        starts[1][0], starts[2][0] = ANGLE, -ANGLE
        searches = [
            mcoem.pseudo_priors.Laplace(
                race=None,
                max_iterations=200,
                cooling=None if hot is None else Cooling(hot, n_iterations=20),
            ).compile(density, replace(geometry, starts=start[None]), mode)
            for start, hot in itertools.product(starts, COOLINGS)
        ]

        def thorough(data: Any, rng: Any, others: Any = ()) -> PseudoPriors:
            found = [search(data, rng, others) for search in searches]
            best = np.argmax([each.log_evidence for each in found], axis=0)
            parts = ("mean", "scale", "whiten", "log_normalizer", "log_evidence")
            return PseudoPriors(
                *(
                    np.stack([getattr(found[b], part)[k] for k, b in enumerate(best)])
                    for part in parts
                )
            )

        return thorough


def images(n: int, seed: int) -> np.ndarray:
    data = mcoem.datasets.load_usps()
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(data["labels"]))[:n]
    found = data["images"].values[chosen]
    return found + NOISE * rng.standard_normal(found.shape)


def learned(mixture: Any, stream: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Return θ at each stage of one run."""
    e_step = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk())
    em = mcoem.OnlineEM(mixture, e_step=e_step, random_seed=1, progressbar=False)
    found = {}
    for stage, n in STAGES.items():
        em.partial_fit(stream[em.n_seen : n])
        found[stage] = {name: np.array(value) for name, value in em.parameters.items()}
    return found


def flat(statistics: dict[str, np.ndarray], mixture: Any) -> dict[str, np.ndarray]:
    """Return the compared statistics, each as one vector."""
    whole = {name: statistics[name] for name in NAMES}
    whole["template_gram"] = mixture.settings.basis.unpack_gram(whole["template_gram"])
    return {name: np.ravel(value) for name, value in whole.items()}


def truth(
    e_step: CompiledCarlinChibBurst, mixture: Any, theta: Any, image: np.ndarray, draws: int
) -> dict[str, dict[str, Any]]:
    """Return each statistic's mean, its error, and the variance of one draw, summed."""
    data = mixture.encode(image)
    halves, variances = [], []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        result, found = e_step.with_draws(
            data, theta, rng, e_step.initial_state(), draws=draws, tune=draws // 10
        )
        mean = flat(result.statistics, mixture)
        halves.append(mean)
        spread = dict.fromkeys(NAMES, 0.0)
        chosen = np.arange(draws // 10, draws + draws // 10, max(draws // 200, 1))
        for t in chosen:
            one = e_step.statistics(
                found.class_index[t : t + 1],
                found.position[t : t + 1],
                np.ones(1),
                {**theta, **data},
            )
            for name, value in flat(one, mixture).items():
                spread[name] += float(np.sum((value - mean[name]) ** 2)) / len(chosen)
        variances.append(spread)
    return {
        name: {
            "mean": (halves[0][name] + halves[1][name]) / 2,
            "error": float(np.sum((halves[0][name] - halves[1][name]) ** 2)) / 4,
            "variance": (variances[0][name] + variances[1][name]) / 2,
        }
        for name in NAMES
    }


def measure(given: argparse.Namespace) -> xr.Dataset:
    """Return sums over images of errors and variances, and median seconds, of every burst."""
    kinds = {kind: KINDS[kind] for kind in [PAPER, *(given.kinds or list(KINDS)[1:])]}
    mixture = mcoem.TemplateMixture.for_images(
        (16, 16), n_classes=N_CLASSES, rigid_weight=None, priors=mcoem.TemplatePriors()
    )
    stream = images(max(STAGES.values()) + given.images, seed=1)
    thetas = learned(mixture, stream)
    others = stream[max(STAGES.values()) :]
    long = mcoem.esteps.CarlinChibBurst(
        pseudo_priors=Thorough(), within_class=mcoem.moves.Hamiltonian(1, 10)
    ).compile(mixture)
    truths = {
        (stage, index): truth(long, mixture, theta, image, given.draws)
        for stage, theta in track(thetas.items(), "Long runs", console=console)
        for index, image in enumerate(others)
    }
    compiled = {kind: e_step.compile(mixture) for kind, (e_step, _) in kinds.items()}
    cases = [(kind, *length) for kind, (_, lengths) in kinds.items() for length in lengths]
    shape = (len(cases), len(STAGES), len(NAMES))
    errors, variances, noise = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    seconds: dict[tuple[int, int], list[float]] = {}
    for column, (stage, theta) in enumerate(thetas.items()):
        states = {}
        for kind, e_step in compiled.items():  # step sizes settle
            state = e_step.initial_state()
            for image in stream[:10]:
                rng = np.random.default_rng(0)
                data = mixture.encode(image)
                state = e_step(data, theta, rng, state, draws=1, tune=30).state
            states[kind] = state
        for repeat in track(range(given.repeats), f"Bursts, {stage} θ", console=console):
            for index, image in enumerate(others):
                data = mixture.encode(image)
                for row, (kind, tune, draws) in enumerate(cases):
                    rng = np.random.default_rng([repeat, index, row])
                    began = time.perf_counter()
                    result = compiled[kind](data, theta, rng, states[kind], draws=draws, tune=tune)
                    seconds.setdefault((row, column), []).append(time.perf_counter() - began)
                    found = flat(result.statistics, mixture)
                    for place, name in enumerate(NAMES):
                        known = truths[stage, index][name]
                        away = float(np.sum((found[name] - known["mean"]) ** 2))
                        errors[row, column, place] += away / given.repeats
                        variances[row, column, place] += known["variance"] / given.repeats
                        noise[row, column, place] += known["error"] / given.repeats
    middle = np.array(
        [
            [np.median(seconds[row, column]) for column in range(len(STAGES))]
            for row in range(len(cases))
        ]
    )
    dims = ("case", "stage", "statistic")
    return xr.Dataset(
        {
            "error": (dims, errors),
            "variance": (dims, variances),
            "truth_error": (dims, noise),
            "seconds": (dims[:2], middle),
        },
        coords={
            "kind": ("case", [kind for kind, _, _ in cases]),
            "tune": ("case", [tune for _, tune, _ in cases]),
            "draws": ("case", [draws for _, _, draws in cases]),
            "stage": list(STAGES),
            "statistic": list(NAMES),
        },
    )


def seconds_until(worth: np.ndarray, seconds: np.ndarray, wanted: float) -> float:
    """Return the interpolated time at which a kind reaches a worth, infinite if it does not."""
    order = np.argsort(seconds)
    log_worth = np.maximum.accumulate(np.log(worth[order]))
    log_seconds = np.log(seconds[order])
    if np.log(wanted) <= log_worth[0]:
        return float(np.exp(log_seconds[0]))
    if np.log(wanted) > log_worth[-1]:
        return np.inf
    return float(np.exp(np.interp(np.log(wanted), log_worth, log_seconds)))


def tell(found: xr.Dataset) -> None:
    """Print worth and times of every burst, and ratios to the paper's."""
    worth = found["variance"] / found["error"]
    stages, kinds = found["stage"].values, found["kind"].values
    for stage in stages:
        rows = []
        for case in range(found.sizes["case"]):
            at, draws = (each.isel(case=case).sel(stage=stage) for each in (found, worth))
            rows.append(
                (
                    str(at["kind"].values),
                    f"{int(at['tune'])} + {int(at['draws'])}",
                    f"{1e3 * float(at['seconds']):.1f}",
                    *(f"{float(draws.sel(statistic=name)):.2g}" for name in NAMES),
                )
            )
        title = f"{stage} θ: independent draws that one burst is worth"
        tell_table(("burst", "tune + draws", "ms", *NAMES), rows, title)
        limit = found["variance"].isel(case=0) / found["truth_error"].isel(case=0)
        limits = ", ".join(f"{float(limit.sel(stage=stage, statistic=n)):.0f}" for n in NAMES)
        console.print(f"the long runs themselves are worth {limits}")
    paper = int(np.flatnonzero(kinds == PAPER)[0])
    rows = []
    for kind in dict.fromkeys(kinds):
        row = [str(kind)]
        for stage, name in itertools.product(stages, NAMES):
            at = worth.sel(stage=stage, statistic=name).values
            spent = found["seconds"].sel(stage=stage).values
            needed = seconds_until(at[kinds == kind], spent[kinds == kind], at[paper])
            row.append(f"{spent[paper] / needed:.1f}")
        rows.append(row)
    headings = [f"{stage} {name.split('_')[1]}" for stage in stages for name in NAMES]
    title = "Time of the paper's burst over the time to be worth as much"
    tell_table(("burst", *headings), rows, title)


def main() -> None:
    given = begin(
        __doc__,
        images=20,
        repeats=4,
        draws=(10_000, "of each long run"),
        kinds=({"nargs": "+", "choices": list(KINDS)[1:]}, "beside the paper's"),
        quick=(False, "3 images, 2,000 draws, 2 repeats"),
        show=(False, "tables of the last run again"),
        output=Path("output"),
    )
    if given.quick:
        given.images, given.draws, given.repeats = 3, 2_000, 2
    with threadpool_limits(1):
        tell(measured(given.output / "burst_accuracy.nc", partial(measure, given), given.show))


if __name__ == "__main__":
    main()
