"""What a burst costs beside its density evaluations.

Time of a burst over (its number of density evaluations × the time of one compiled evaluation of
the model's log-density), at the paper's digits settings: 16 × 16 pixels, 78 latents, 20
random-walk moves a sweep. The two are measured in turn and medians are reported: of the chain
with the cheap statistics, with ΦᵀΦ added, with the mode search added.

    python benchmarks/burst_overhead.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import pytensor
from threadpoolctl import threadpool_limits
from versions import tell_versions

import pymc_mcoem as mcoem
from pymc_mcoem.em.burst import WeightedStatistics, adaptation_gains


class WithoutGram:
    """A family whose statistics leave ΦᵀΦ out."""

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
    move = mcoem.RandomWalk(n_moves=20)
    compiled = mcoem.CarlinChibBurst(within_class=move).compile(mixture)
    cheap = WeightedStatistics(WithoutGram(mixture), compiled.density)
    rng = np.random.default_rng(1)
    parameters = mixture.initialize([rng.random((16, 16)) for _ in range(20)], rng, "random")
    data = mixture.encode(rng.random((16, 16)))
    values = {
        name: np.asarray({**parameters, **data}[name], dtype=symbol.dtype)
        for name, symbol in compiled.density.data_inputs.items()
    }

    # The reference: the model's own log-density, compiled as a user would, its data in place.
    model = mixture.condition(rng.random((16, 16)), parameters)
    density = pytensor.function(model.value_vars, model.logp(), on_unused_input="ignore")
    density.trust_input = True
    start = model.initial_point()
    point = [np.asarray(start[value.name]) for value in model.value_vars]

    gains = adaptation_gains(arguments.sweeps, arguments.sweeps // 2)
    n_evaluations = arguments.sweeps * (arguments.classes + move.n_moves)
    log_step = compiled.burst.initial_log_step

    def one_evaluation() -> float:
        began = time.perf_counter()
        for _ in range(2_000):
            density(*point)
        return (time.perf_counter() - began) / 2_000

    times: dict[str, list[float]] = {"evaluation": [], "chain": [], "gram": [], "modes": []}
    with threadpool_limits(1):
        for round_ in range(arguments.rounds + 1):
            evaluation = one_evaluation()
            began = time.perf_counter()
            pseudo_priors = compiled.pseudo_priors(values, rng)
            found_modes = time.perf_counter()
            draws = compiled.burst(
                rng, (0, pseudo_priors.mean[0]), log_step, pseudo_priors, gains, values
            )
            weights = np.full(arguments.sweeps, 1.0 / arguments.sweeps)
            cheap(draws.class_index, draws.position, weights, values)
            chain = time.perf_counter()
            compiled.statistics(draws.class_index, draws.position, weights, values)
            full = time.perf_counter()
            if round_:  # the first round compiles
                times["evaluation"].append(evaluation)
                times["chain"].append(chain - found_modes)
                times["gram"].append(full - chain)
                times["modes"].append(found_modes - began)

    evaluation = statistics.median(times["evaluation"])
    reference = n_evaluations * evaluation
    chain, gram, modes = (statistics.median(times[name]) for name in ("chain", "gram", "modes"))
    print(
        f"one compiled evaluation: {1e6 * evaluation:.1f} µs; {n_evaluations} evaluations a burst"
    )
    for name, seconds in (
        ("burst with the cheap statistics", chain),
        ("... and ΦᵀΦ of every sweep", chain + gram),
        ("... and the mode search of every class", chain + gram + modes),
    ):
        print(
            f"{name}: {1e3 * seconds:.1f} ms / {1e3 * reference:.1f} ms = {seconds / reference:.2f}"
        )


if __name__ == "__main__":
    main()
