"""Compare what `CarlinChib` chooses by itself with annealed jumps, by measured jumps a second.

The posteriors are those that normal pseudo-priors fit poorly:

* ``banana``: five pairs of latents, each pair bent along a parabola, under a sign that depends on
  the class;
* ``hierarchy``: the logarithm of a scale, Normal(0, 0.8), and four effects; in the second class the
  sign of the logarithm is reversed;
* ``funnel``: the same with Normal(0, 1.5) and nine effects;
* ``digit``: the ambiguous digit of `class_index_samplers.py`, with 78 latents;
* ``loose digit``: the same with eight times the deformation variance, two fifths of what was
  learned.

The classes of the first three have probabilities of a half and latents of their own, in blocks. By
``--shared`` they share one vector of latents, so that a jump can carry positions over.

Each sampler tunes for `--tune` draws and then draws for `--seconds` of processor time or more.
Reported are the seconds of tuning, draws a second, jumps a second (changes of the class, from draw
to draw), and the shares of the classes. Compilation is not counted.

    python benchmarks/annealed_jumps.py
    python benchmarks/annealed_jumps.py --only funnel --shared
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from class_index_samplers import ambiguous_digit
from timing import begin, console, tell_table

import pymc_mcoem as mcoem

#: Signs of the two classes.
SIGNS = (1.0, -1.0)


def banana(name: str, sign: pt.TensorVariable | float) -> list[pt.TensorVariable]:
    """Declare five pairs, the second of each along a parabola of the first."""
    first = pm.Normal(f"first{name}", shape=5)
    return [first, pm.Normal(f"second{name}", sign * 1.5 * (first**2 - 1), 0.3)]


def funnel(
    name: str, sign: pt.TensorVariable | float, spread: float = 1.5, n_effects: int = 9
) -> list[pt.TensorVariable]:
    """Declare a height, and effects as wide as its exponential says."""
    height = pm.Normal(f"height{name}", 0, spread)
    width = pm.math.exp(sign * height)
    return [height, pm.Normal(f"effects{name}", 0, width, shape=n_effects)]


def hierarchy(name: str, sign: pt.TensorVariable | float) -> list[pt.TensorVariable]:
    """Declare a funnel that is less steep."""
    return funnel(name, sign, spread=0.8, n_effects=4)


def pair(
    latents: Callable[[str, pt.TensorVariable | float], list[pt.TensorVariable]], shared: bool
) -> tuple[pm.Model, dict[str, object]]:
    """Return two classes of probability one half, with latents each, and the step's blocks."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        if shared:
            latents("", pt.constant(SIGNS)[k])
            return model, {}
        blocks = {j: latents(f"_{j}", sign) for j, sign in enumerate(SIGNS)}
    return model, {"blocks": blocks}


def problems(shared: bool) -> dict[str, Callable[[], tuple[pm.Model, dict[str, object]]]]:
    """Return functions that make each model and the step's options for it."""
    return {
        "banana": lambda: pair(banana, shared),
        "hierarchy": lambda: pair(hierarchy, shared),
        "funnel": lambda: pair(funnel, shared),
        "digit": lambda: (ambiguous_digit(0.05), {}),
        "loose digit": lambda: (ambiguous_digit(0.4), {}),
    }


def samplers() -> dict[str, dict[str, object]]:
    """Return the options of each sampler; those of the first are the defaults."""
    moves = {"within_class": mcoem.moves.Hamiltonian(n_moves=1, n_leapfrog=8)}
    found: dict[str, dict[str, object]] = {
        "defaults": {},
        "defaults, Hamiltonian moves": dict(moves),
    }
    for n in (1, 30, 200):
        jump = {"jump": mcoem.moves.AnnealedJump(n_temperatures=n)}
        found[f"annealed over {n}"] = jump
        found[f"annealed over {n}, Hamiltonian moves"] = jump | moves
    return found


def sample(
    step: mcoem.CarlinChib, model: pm.Model, seed: int, tune: int, seconds: float
) -> tuple[float, float, np.ndarray]:
    """Return the processor seconds of tuning and of drawing, and the classes drawn."""
    name = step.vars[0].name
    step.setup_chain(np.random.default_rng(seed), tune=tune, draws=1)
    point, began = model.initial_point(0), time.process_time()
    for _ in range(tune):
        point = step.step(point)[0]
    step.stop_tuning()
    tuned, classes = time.process_time() - began, []
    began = time.process_time()
    while (taken := time.process_time() - began) < seconds:
        point = step.step(point)[0]
        classes.append(int(point[name]))
    return tuned, taken, np.array(classes)


def main() -> None:
    """Let the samplers take turns on each model."""
    given = begin(
        __doc__,
        only={"nargs": "+", "choices": list(problems(False))},
        shared=False,
        tune=500,
        seconds=(5.0, "of drawing"),
        seeds=[1, 2],
        skip={"nargs": "+", "default": []},
    )
    warnings.simplefilter("ignore")
    for name, make in problems(given.shared).items():
        if given.only and name not in given.only:
            continue
        model, options = make()
        steps = {}
        for sampler, settings in samplers().items():
            if sampler not in given.skip:
                with model:
                    steps[sampler] = mcoem.CarlinChib(**options, **settings)
                sample(steps[sampler], model, 0, 10, 0.1)  # compiles
        found: dict[str, list[tuple[float, float, np.ndarray]]] = {each: [] for each in steps}
        for seed in given.seeds:
            for sampler, step in steps.items():
                found[sampler].append(sample(step, model, seed, given.tune, given.seconds))
                console.print(f"{name}, seed {seed}, {sampler}: {words(found[sampler][-1])}")
        n_classes = step.n_classes
        rows = []
        for sampler, runs in found.items():
            classes = [run[2] for run in runs]
            shares = [np.bincount(each, minlength=n_classes) / len(each) for each in classes]
            rows.append(
                (
                    sampler,
                    ", ".join(f"{run[0]:.1f}" for run in runs),
                    ", ".join(f"{len(run[2]) / run[1]:.0f}" for run in runs),
                    ", ".join(f"{jumps(run[2]) / run[1]:.3g}" for run in runs),
                    "; ".join(" ".join(f"{share:.2f}" for share in each) for each in shares),
                )
            )
        headings = ("sampler", "tuning, s", "draws a second", "jumps a second", "shares")
        title = f"{name}{', shared latents' * given.shared}: by seed"
        tell_table(headings, rows, title)


def jumps(classes: np.ndarray) -> int:
    """Return how often the class changed."""
    return int((np.diff(classes) != 0).sum())


def words(run: tuple[float, float, np.ndarray]) -> str:
    """Return what is told of one run."""
    tuned, taken, classes = run
    return (
        f"tuned in {tuned:.1f} s, {len(classes) / taken:.0f} draws and "
        f"{jumps(classes) / taken:.3g} jumps a second, "
        f"{np.bincount(classes) / len(classes)}"
    )


if __name__ == "__main__":
    main()
