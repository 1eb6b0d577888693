"""How often classes jump in 78 dimensions, by pseudo-prior and by how it is used.

A mixture of four templates is learnt from 60 handwritten twos of 16 × 16 pixels; then single
images, on which two classes have much the same evidence by Laplace's approximation, are looked at
with θ held fixed. The variance of the deformations is that learnt, and parts of it: the smaller it
is, the closer posteriors are to normal.

How often a chain jumps depends on the weights of its classes, which here nobody knows. So every
sampler is asked what its jumps would do if the two classes weighed the same. A chain is held in one
class and then in the other, and tells the logarithms of its acceptance ratios, both ways. They are
shifted until as many jumps lead there as back (Bennett 1976). What is printed is the share of
attempts that then succeed, and their number per second of sampling; fits, tuning and compilation
are not counted. Chains start at modes, which random walks leave slowly: their figures flatter them.

    python benchmarks/pseudo_priors.py --images 3
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from rich.console import Console
from rich.table import Table
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit
from versions import tell_versions

import pymc_mcoem as mcoem
from pymc_mcoem.carlin_chib.moves.annealed import Bridge
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors

HAMILTONIAN = mcoem.Hamiltonian(n_moves=1, n_leapfrog=8)

#: The sampler whose auxiliaries have tails of this many degrees of freedom; they are drawn here.
TAILED, FREEDOM = "Laplace's place and shape, Student's t", 10.0


@dataclass(frozen=True)
class Widened:
    """Laplace pseudo-priors with all variances so many times larger."""

    factor: float

    def compile(self, density: Any, geometry: Any, mode: Any = None) -> Any:
        """Compile Laplace's rule, and widen what it finds."""
        rule = mcoem.Laplace(race=None).compile(density, geometry, mode)

        def widened(data: Any, rng: Any, others: Any = ()) -> PseudoPriors:
            found = rule(data, rng, others)
            covariance = self.factor * found.scale @ np.swapaxes(found.scale, 1, 2)
            return PseudoPriors.from_covariance(found.mean, covariance, found.log_evidence)

        return widened


@dataclass(frozen=True)
class BestOfMany:
    """Laplace pseudo-priors at the best of many searches, from points around the first start."""

    n_searches: int

    def compile(self, density: Any, geometry: Any, mode: Any = None) -> Any:
        """Compile Laplace's rule with more starting points."""
        first = geometry.starts_of(density)[:1]
        away = 0.3 * np.random.default_rng(0).standard_normal((self.n_searches - 1, first.shape[1]))
        starts = np.concatenate([first, first + away])
        return mcoem.Laplace(race=None).compile(density, replace(geometry, starts=starts), mode)


#: Options of the step, and how many attempts are made from each class.
SAMPLERS = {
    "Laplace, 20 random-walk moves": ({"within_class": mcoem.RandomWalk(n_moves=20)}, 400),
    "Laplace, Hamiltonian": ({"within_class": HAMILTONIAN}, 400),
    "Laplace, variances × 1.2": (
        {"within_class": HAMILTONIAN, "pseudo_priors": Widened(1.2)},
        400,
    ),
    "Laplace, variances × 1.5": (
        {"within_class": HAMILTONIAN, "pseudo_priors": Widened(1.5)},
        400,
    ),
    "Laplace, the best of ten searches": (
        {"within_class": HAMILTONIAN, "pseudo_priors": BestOfMany(10)},
        400,
    ),
    "Laplace's place and shape, Student's t": ({"within_class": HAMILTONIAN}, 400),
    "prior covariance": (
        {"within_class": HAMILTONIAN, "pseudo_priors": mcoem.PriorCovariance()},
        400,
    ),
    "carried over at once": (
        {"within_class": HAMILTONIAN, "jump": mcoem.AnnealedJump(n_temperatures=1)},
        400,
    ),
    "annealed over 30": (
        {"within_class": HAMILTONIAN, "jump": mcoem.AnnealedJump(n_temperatures=30)},
        60,
    ),
    "annealed over 200": (
        {"within_class": HAMILTONIAN, "jump": mcoem.AnnealedJump(n_temperatures=200)},
        30,
    ),
    "annealed over 1,000": (
        {"within_class": HAMILTONIAN, "jump": mcoem.AnnealedJump(n_temperatures=1_000)},
        15,
    ),
}

#: Parts of the deformations' variance that was learnt.
PARTS = (0.05, 0.4, 1.0)
N_TUNE = 150
#: Sweeps between two annealed attempts, so that they do not all start at one place.
N_BETWEEN = 10


@dataclass(frozen=True)
class Held:
    """A chain held in class `here`: log acceptance ratios to class `there`, and their price."""

    log_ratio: np.ndarray
    seconds: float


class Tails:
    """Ratios of a density and pseudo-priors with Student's t in place of the normal."""

    def __init__(self, density: Any) -> None:
        k, x = pt.lscalar("k"), pt.dvector("x")
        self._log_p = pytensor.function([k, x], density.log_density(k, x))

    def log_ratio(
        self, fitted: PseudoPriors, here: int, there: int, x: np.ndarray, rng: np.random.Generator
    ) -> float:
        """Return what a jump from `x` to a draw in class `there` would be accepted by."""
        n = len(x)
        spread = math.sqrt(FREEDOM / rng.chisquare(FREEDOM))
        drawn = fitted.mean[there] + spread * fitted.scale[there] @ rng.standard_normal(n)

        def ratio(j: int, at: np.ndarray) -> float:
            z = fitted.whiten[j] @ (at - fitted.mean[j])
            tail = stats.multivariate_t(np.zeros(n), np.eye(n), df=FREEDOM).logpdf(z)
            log_det = np.log(np.abs(np.diag(fitted.whiten[j]))).sum()
            return float(self._log_p(j, at) - tail - log_det)

        return ratio(there, drawn) - ratio(here, x)


def hold(
    step: mcoem.CarlinChib, here: int, there: int, n_attempts: int, tails: Tails | None = None
) -> Held:
    """Hold a chain in a class, and note what jumps to another would be worth."""
    engine, rng = step._engine, np.random.default_rng([here, there])
    fitted = engine.fit(rng, ())
    pinned = np.full(engine.density.n_classes, -1e6)
    pinned[here] = 0.0
    jump, engine._jump = engine._jump, None  # attempts are made here, not in the sweep
    n_sweeps = N_BETWEEN if jump else 1
    index, x, log_step = np.asarray(here), fitted.mean[here], engine.initial_log_step
    log_ratios, seconds = [], 0.0
    try:
        for attempt in range(N_TUNE // n_sweeps + n_attempts):
            tuning = max(N_TUNE // n_sweeps - attempt, 0)
            for turn in range(n_sweeps):
                gain = 2 / math.sqrt(attempt * n_sweeps + turn + 1) if tuning else 0.0
                began = time.perf_counter()
                swept = engine.sweep(rng, gain, index, x, log_step, fitted, (), log_tilt=pinned)
                price = time.perf_counter() - began
                x = swept.position
                log_step = np.append(swept.log_step, log_step[-1]) if jump else swept.log_step
            log_ratio = swept.log_ratio[there] - swept.log_ratio[here] - pinned[there]
            if tails is not None:
                log_ratio = tails.log_ratio(fitted, here, there, x, rng)
            if jump:
                began = time.perf_counter()
                none = np.zeros_like(pinned)
                bridge = Bridge(jump._function, fitted, (here, there), none, ())
                z = fitted.whiten[here] @ (x - fitted.mean[here])
                _, log_ratio, accepted = jump._cross(bridge, rng, z, math.exp(log_step[-1]))
                price += time.perf_counter() - began
                if tuning and not math.isnan(accepted):
                    log_step[-1] += (accepted - 0.8) / math.sqrt(attempt + 1)
            if not tuning:
                log_ratios.append(log_ratio)
                seconds += price
    finally:
        engine._jump = jump
    return Held(np.array(log_ratios), seconds / n_attempts)


def at_balance(
    step: mcoem.CarlinChib, classes: tuple[int, int], n_attempts: int, *, tailed: bool = False
) -> str:
    """Return the share of attempts that succeed if both classes weigh the same, and per second."""
    tails = Tails(step._engine.density) if tailed else None
    forth, back = (hold(step, *pair, n_attempts, tails) for pair in (classes, classes[::-1]))

    def surplus(shift: float) -> float:
        return expit(forth.log_ratio + shift).mean() - expit(back.log_ratio - shift).mean()

    shift = brentq(surplus, -1e4, 1e4)
    if step._engine._jump is None:
        share = expit(forth.log_ratio + shift).mean()
    else:
        share = np.exp(np.minimum(forth.log_ratio + shift, 0.0)).mean()
    return f"{share:.4f}, {2 * share / (forth.seconds + back.seconds):.2f}/s"


def main() -> None:
    """Learn the mixture, find images in doubt, ask every sampler."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=3, help="for each part of the variance")
    parser.add_argument("--data", help="folder of the USPS file")
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), help="only these")
    arguments = parser.parse_args()
    tell_versions()
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    digits = mcoem.datasets.load_usps("train", directory=arguments.data)
    rng = np.random.default_rng(2)
    images = digits["images"].values[digits["labels"].values == 2][:140]
    images = images + 0.2 * rng.standard_normal(images.shape)
    mixture = mcoem.TemplateMixture.for_images((16, 16), n_classes=4)
    walk = mcoem.CarlinChibBurst(within_class=mcoem.RandomWalk())
    em = mcoem.OnlineEM(mixture, e_step=walk, random_seed=1, progressbar=False)
    em.partial_fit(images[:60])
    learnt = em.parameters
    e_step = mcoem.CarlinChibBurst().compile(mixture)
    model = mixture.condition(images[60], learnt)
    with model:
        steps = {
            name: mcoem.CarlinChib(**options)
            for name, (options, _) in SAMPLERS.items()
            if name in (arguments.samplers or SAMPLERS)
        }

    console = Console(width=150)
    table = Table(title="jumps between two classes, were they of equal weight: share, per second")
    table.add_column("sampler")
    cells: dict[str, list[str]] = {name: [] for name in steps}
    for part in PARTS:
        parameters = learnt.assign(deformation_variance=part * learnt["deformation_variance"])
        theta = mixture.check_parameters(parameters)
        doubtful = []
        for number in range(60, len(images)):
            fitted = e_step.pseudo_priors(
                {**mixture.encode(images[number]), **theta}, np.random.default_rng(0)
            )
            second, first = np.argsort(fitted.log_evidence)[-2:]
            gap = fitted.log_evidence[first] - fitted.log_evidence[second]
            doubtful.append((float(gap), number, (int(first), int(second))))
        for _, number, classes in sorted(doubtful)[: arguments.images]:
            table.add_column(f"γ² × {part:g}, image {number}", justify="right")
            with model:
                pm.set_data({**mixture.encode(images[number]), **theta})
            for name, step in steps.items():
                cells[name].append(
                    at_balance(step, classes, SAMPLERS[name][1], tailed=name == TAILED)
                )
                console.print(f"γ² × {part:g}, image {number}, {name}: {cells[name][-1]}")
    for name, row in cells.items():
        table.add_row(name, *row)
    console.print(table)


if __name__ == "__main__":
    main()
