"""Measure the cost of a burst relative to its density evaluations.

The result is the time of a burst over (its number of density evaluations × the time of one compiled
evaluation of the model's log-density), at the paper's digits settings: 16 × 16 pixels, 78 latents,
20 random-walk moves per sweep. The two take turns. Medians are reported for the chain with the
cheap statistics, with ΦᵀΦ added, and with the mode search added.

    python benchmarks/burst_overhead.py
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytensor
from threadpoolctl import threadpool_limits
from timing import console, in_turn, medians, tell_versions

import pymc_mcoem as mcoem
from pymc_mcoem.em.burst import WeightedStatistics, adaptation_gains

#: Evaluations of the log-density that are timed together.
EVALUATIONS = 2_000


class WithoutGram:
    """A family whose statistics leave out ΦᵀΦ."""

    def __init__(self, family: mcoem.Family) -> None:
        self.statistics = {
            name: value for name, value in family.statistics.items() if name != "template_gram"
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    tell_versions()

    mixture = mcoem.TemplateMixture.for_images((16, 16), n_classes=arguments.classes)
    move = mcoem.moves.RandomWalk(n_moves=20)
    compiled = mcoem.esteps.CarlinChibBurst(within_class=move).compile(mixture)
    cheap = WeightedStatistics(WithoutGram(mixture), compiled.density)
    rng = np.random.default_rng(1)
    parameters = mixture.initialize([rng.random((16, 16)) for _ in range(20)], rng, "random")
    data = mixture.encode(rng.random((16, 16)))
    values = {
        name: np.asarray({**parameters, **data}[name], dtype=symbol.dtype)
        for name, symbol in compiled.density.data_inputs.items()
    }

    # The reference: the model's own log-density with its data, compiled as a user would.
    model = mixture.condition(rng.random((16, 16)), parameters)
    density = pytensor.function(model.value_vars, model.logp(), on_unused_input="ignore")
    density.trust_input = True
    start = model.initial_point()
    point = [np.asarray(start[value.name]) for value in model.value_vars]

    gains = adaptation_gains(arguments.sweeps, arguments.sweeps // 2)
    n_evaluations = arguments.sweeps * (arguments.classes + move.n_moves)
    log_step = compiled.burst.initial_log_step

    weights = np.full(arguments.sweeps, 1.0 / arguments.sweeps)
    made: dict[str, Any] = {}  # results that one part passes to the next

    def evaluate() -> None:
        for _ in range(EVALUATIONS):
            density(*point)

    def find_modes() -> None:
        made["pseudo_priors"] = compiled.pseudo_priors(values, rng)

    def sweep() -> None:
        found = made["pseudo_priors"]
        draws = compiled.burst(rng, (0, found.mean[0]), log_step, found, gains, values)
        cheap(draws.class_index, draws.position, weights, values)
        made["draws"] = draws

    def average() -> None:
        draws = made["draws"]
        compiled.statistics(draws.class_index, draws.position, weights, values)

    parts = {"evaluations": evaluate, "modes": find_modes, "chain": sweep, "gram": average}
    with threadpool_limits(1):
        spent = medians(in_turn(parts, arguments.rounds).seconds)
    evaluation = spent["evaluations"] / EVALUATIONS
    reference = n_evaluations * evaluation
    console.print(
        f"one compiled evaluation: {1e6 * evaluation:.1f} µs; {n_evaluations} evaluations a burst"
    )
    for name, seconds in (
        ("burst with the cheap statistics", spent["chain"]),
        ("... and ΦᵀΦ of every sweep", spent["chain"] + spent["gram"]),
        ("... and the mode search of every class", sum(spent.values()) - spent["evaluations"]),
    ):
        console.print(
            f"{name}: {1e3 * seconds:.1f} ms / {1e3 * reference:.1f} ms = {seconds / reference:.2f}"
        )


if __name__ == "__main__":
    main()
