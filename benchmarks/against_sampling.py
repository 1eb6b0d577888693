"""Compare the time of a burst as E-step with `pm.sample` called for one observation after another.

Without this package a PyMC user writes the E-step as a loop: the model is built once,
``pm.set_data`` gives it the next observation and θ, ``pm.sample`` samples it, and the draws are
averaged. Every call makes the default steps again, Gibbs for the class index and NUTS for the
latents: it compiles them or reads them from the cache. The contestants take turns on the same
observations:

* ``CarlinChibBurst().compile(family)``, called for each observation; and the same with twenty
  random-walk moves per sweep in place of its Hamiltonian move;
* that loop; and the same with the steps made once and given as ``step=``, which gives the same
  draws;
* a loop over a model with the class summed out by hand, NUTS alone, both ways (curves only);
* NumPyro's NUTS on the package's own density with the class summed out, compiled once by JAX, if
  NumPyro is installed (`with_numpyro`);
* the loop with ``step=CarlinChib()`` on the user's model, both ways.

Each runs one chain on one core. Loops have two times: the total, and that of sampling alone as PyMC
reports it in the posterior's attributes. First calls, which compile, are not counted.

A mean over m independent draws would have the variance of one over m, so

    worth = variance of one draw / squared error of the mean, summed over observations,

is the number of independent draws that a result is worth; "all" is the harmonic mean over the
statistics. The result is the time of each loop over that of a burst worth as much in "all",
interpolated between the bursts' lengths on log axes. It is a lower bound where the shortest burst
is enough, and 0 where the longest is not. In brackets are 5 and 95 % quantiles over resampled
observations.

The first data are the shifted curves of `shifted_curves`, whose E-step is exact, each under the
true θ and under another. The second are postal digits of 16 × 16 pixels, with four classes, 78
latents and θ after 20 images. Their posteriors have many modes, and the exact means are unknown.
The reference is two long runs, whose own worth is printed. They are Carlin-Chib chains, so if NUTS
finds another mode this counts against it, right or wrong; the mean log joint density of the draws
shows where.

    python benchmarks/against_sampling.py --quick    # two curves, one image: two minutes
    python benchmarks/against_sampling.py            # half an hour
    python benchmarks/against_sampling.py --contestants NumPyro    # ten minutes
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pymc as pm
from burst_accuracy import flat, images, seconds_until, truth
from rich.progress import track
from scipy.special import softmax
from shifted_curves import (
    GRAM,
    REACH,
    TIMES,
    TRUTH,
    ShiftedCurves,
    design,
    perturbed,
    posterior,
    simulate,
)
from threadpoolctl import threadpool_limits
from timing import console, make_table, tell_versions
from with_numpyro import NumPyroLoop

import pymc_mcoem as mcoem

BURST, LOOP, OURS, SUMMED = "burst", "pm.sample, defaults", "pm.sample, CarlinChib()", "summed out"
MADE_ONCE, WALK = ", made once", "burst, random walk"
NUMPYRO = "NumPyro, class summed out" + MADE_ONCE
#: Number of lengths of each contestant with ``--quick``, one by default.
QUICK = {BURST: 5, WALK: 0}
#: (tune, draws) of each contestant.
SHORT, MIDDLE, LONG = [(25, 25), (100, 100)], [(500, 500)], [(2_000, 2_000)]
CURVES = {
    BURST: [(10, 5), (10, 20), (50, 100), (50, 500), (50, 2_000)],
    WALK: [(10, 20), (50, 100), (50, 500)],
    LOOP: SHORT + MIDDLE + LONG,
    LOOP + MADE_ONCE: SHORT + MIDDLE + LONG,
    SUMMED: MIDDLE,
    SUMMED + MADE_ONCE: SHORT + MIDDLE,
    OURS: [(200, 500)],
    OURS + MADE_ONCE: [(25, 25), (200, 500), (200, 2_000)],
    NUMPYRO: SHORT + MIDDLE,
}
DIGITS = {
    BURST: [(2, 4), (5, 15), (10, 40), (50, 100), (50, 1_000), (50, 4_000)],
    WALK: [(10, 40), (50, 100), (50, 1_000)],
    LOOP: [(200, 200)],
    LOOP + MADE_ONCE: [(50, 50), (200, 200), (1_000, 1_000)],
    OURS: [(200, 200)],
    OURS + MADE_ONCE: [(200, 200), (200, 1_000)],
    NUMPYRO: [(50, 50), (200, 200), (1_000, 1_000)],
}
#: Statistics by which curves are compared, as columns: δ, δ ΦᵀY and δ x²; and those for digits.
PARTS = {"δ": slice(0, 1), "ΦᵀY": slice(1, 6), "x²": slice(6, 7)}
DIGIT_PARTS = {"ΦᵀY": "template_projection", "ΦᵀΦ": "template_gram", "ββᵀ": "deformation_outer"}

Values = Mapping[str, np.ndarray]
Length = tuple[int, int]


@dataclass(frozen=True)
class Found:
    """Result of a contestant for one observation: means, class indices and latents, seconds."""

    statistics: dict[str, np.ndarray]
    chain: tuple[np.ndarray, np.ndarray]
    seconds: float
    sampling: float


def loop(
    model: pm.Model, average: Callable[[Any, Values], Any], make: Callable[[], Any], once: bool
) -> Callable[[Values, Length, int], Found]:
    """Return a user's E-step, with steps from `make` (None: PyMC's choice), or made `once`."""
    with model:
        kept = make() if once else None

    def explain(values: Values, length: Length, seed: int) -> Found:
        began = time.perf_counter()
        with model:
            pm.set_data(dict(values))
            tree = pm.sample(
                tune=length[0],
                draws=length[1],
                step=kept if once else make(),
                chains=1,
                cores=1,
                random_seed=seed,
                progressbar=False,
                quiet=True,
                compute_convergence_checks=False,
            )
        draws = tree["posterior"].dataset.isel(chain=0)
        statistics, chain = average(draws, values)
        seconds = time.perf_counter() - began
        return Found(statistics, chain, seconds, float(draws.attrs["sampling_time"]))

    return explain


def bursts(
    family: mcoem.Family, arranged: Callable[[Values], Any], **settings: Any
) -> Callable[[Values, Length, int], Found]:
    """Return bursts, whose step sizes are passed from one to the next, as in learning."""
    e_step = mcoem.esteps.CarlinChibBurst(**settings).compile(family)
    state = e_step.initial_state()

    def explain(values: Values, length: Length, seed: int) -> Found:
        nonlocal state
        began = time.perf_counter()
        rng, data = np.random.default_rng(seed), {name: values[name] for name in family.observation}
        result, found = e_step.with_draws(data, values, rng, state, tune=length[0], draws=length[1])
        seconds = time.perf_counter() - began
        state = result.state
        chain = found.class_index[length[0] :], found.position[length[0] :]
        return Found(arranged(result.statistics), chain, seconds, seconds)

    return explain


def contestants(
    family: mcoem.Family, average: Callable[[Any, Values], Any], arranged: Callable[[Values], Any]
) -> dict[str, Any]:
    model, index = family.model, family.class_index

    def defaults() -> list[Any]:
        latents = [variable for variable in model.free_RVs if variable is not index]
        return [pm.CategoricalGibbsMetropolis([index]), pm.NUTS(latents)]

    return {
        BURST: bursts(family, arranged),
        WALK: bursts(family, arranged, within_class=mcoem.moves.RandomWalk()),
        LOOP: loop(model, average, lambda: None, False),
        LOOP + MADE_ONCE: loop(model, average, defaults, True),
        OURS: loop(model, average, mcoem.CarlinChib, False),
        OURS + MADE_ONCE: loop(model, average, mcoem.CarlinChib, True),
    }


def numpyro_loop(
    family: mcoem.Family, average: Callable[[Any, Values], Any], *, with_index: bool
) -> dict[str, Any]:
    """Return NumPyro's E-step by its name, if it is installed."""
    if find_spec("numpyro") is None:
        return {}
    sampler = NumPyroLoop(family, average, with_index=with_index)

    def explain(values: Values, length: Length, seed: int) -> Found:
        statistics, chain, seconds = sampler(values, length, seed)
        return Found(statistics, chain, seconds, seconds)

    return {NUMPYRO: explain}


def in_turn(
    explainers: dict[str, Any], lengths: dict[str, Any], cases: list[Values], repeats: int
) -> dict[tuple[str, Length], list[list[Found]]]:
    """Return the results by contestant, length and case.

    Fast contestants run `repeats` times, those that make their steps at each call once.
    """
    lengths = {kind: each for kind, each in lengths.items() if kind in explainers}
    for kind in lengths:
        explainers[kind](cases[0], (5, 5), 0)
    results: dict[Any, Any] = {(kind, each): [] for kind in lengths for each in lengths[kind]}
    for place, values in enumerate(track(cases, "Observations", console=console)):
        for kind, length in results:
            n = repeats if MADE_ONCE in kind or BURST in kind else 1
            runs = [explainers[kind](values, length, 1_000 * place + r) for r in range(n)]
            results[kind, length].append(runs)
    return results


def number(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def tell(title: str, results: dict[Any, Any], answers: list[Any], group: int = 1) -> None:
    """Print times, worth and ratios; `answers` has (mean, variance) by name, case by case.

    Cases are resampled in groups of the given size.
    """
    names = list(answers[0])
    variance = np.array([[case[name][1] for name in names] for case in answers])
    seconds, errors = {}, {}
    for key, cases in results.items():
        every = [run for case in cases for run in case]
        seconds[key] = [np.median([getattr(r, n) for r in every]) for n in ("seconds", "sampling")]
        away = [
            [[np.sum((run.statistics[n] - known[n][0]) ** 2) for n in names] for run in case]
            for case, known in zip(cases, answers, strict=True)
        ]
        errors[key] = np.mean(away, axis=1)

    def worth(key: Any, chosen: Any = slice(None)) -> Any:
        return variance[chosen].sum(axis=0) / errors[key][chosen].sum(axis=0)

    def burst_seconds(key: Any, chosen: Any = slice(None)) -> float:
        own = [other for other in results if other[0] == BURST]
        draws = np.array([1 / np.mean(1 / worth(other, chosen)) for other in own])
        spent = np.array([seconds[other][0] for other in own])
        return seconds_until(draws, spent, 1 / np.mean(1 / worth(key, chosen)))

    n_groups = len(answers) // group
    again = np.random.default_rng(0).integers(n_groups, size=(400, n_groups, 1))
    resampled = [np.ravel(group * chosen + np.arange(group)) for chosen in again]
    headings = ("E-step", "tuning + draws", "ms", "sampling alone", *names, "all")
    table = make_table(
        (*headings, "ms over a burst's", "sampling over it"),
        title=f"{title}: milliseconds (medians), and independent draws they are worth",
    )
    for key in results:
        cells = []
        if key[0] != BURST:
            needed = np.array([burst_seconds(key, chosen) for chosen in resampled])
            for spent in seconds[key]:
                low, high = np.quantile(spent / needed, [0.05, 0.95])
                cells.append(f"{number(spent / burst_seconds(key))} ({number(low)}-{number(high)})")
        draws = [*worth(key), 1 / np.mean(1 / worth(key))]
        table.add_row(
            key[0],
            f"{key[1][0]} + {key[1][1]}",
            *(f"{1e3 * spent:.1f}" for spent in seconds[key]),
            *map(number, draws),
            *cells,
        )
    console.print(table)


def features(x: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """Return 1, ΦᵀY and x² at shifts `x`, ``(n, 7)``."""
    return np.column_stack([x**0, *(part @ curve for part in design(TIMES - x[:, None])), x**2])


def log_weights(x: np.ndarray, values: Values) -> np.ndarray:
    """Return log p(k, y | x) less a constant, ``(n, class)``."""
    templates = values["templates"]
    fit = features(x, values["curve"])[:, 1:6] @ templates.T - 0.5 * templates**2 @ GRAM
    logs: np.ndarray = np.log(values["weights"]) + fit / values["noise_variance"]
    return logs


def by_part(columns: np.ndarray) -> dict[str, np.ndarray]:
    return {name: columns[:, part] for name, part in PARTS.items()}


def mean_statistics(draws: Any, values: Values) -> Any:
    """Average over draws; without an index, weigh each class by its probability given the shift."""
    x = draws["shift"].values
    if "class_index" in draws:
        weight = np.eye(len(values["weights"]))[draws["class_index"].values]
    else:
        weight = softmax(log_weights(x, values), axis=1)
    mean = by_part(weight.T @ features(x, values["curve"]) / len(x))
    return mean, (weight.argmax(axis=1), x)


def exact(values: Values) -> dict[str, tuple[np.ndarray, float]]:
    """Return means of the statistics, and variances of one draw of them, summed."""
    deviation = float(values["shift_variance"]) ** 0.5
    x = REACH * deviation * np.linspace(-1, 1, 2_001)
    joint = softmax(log_weights(x, values) - 0.5 * (x / deviation)[:, None] ** 2)
    known = features(x, values["curve"])
    mean, square = by_part(joint.T @ known), by_part(joint.T @ known**2)
    checked = posterior(values["curve"][None], values).statistics
    np.testing.assert_allclose(mean["ΦᵀY"], checked["projection"][0], atol=1e-8)
    return {name: (mean[name], float(np.sum(square[name] - mean[name] ** 2))) for name in PARTS}


def summed_out(family: ShiftedCurves) -> pm.Model:
    """Return the model of the shift alone."""
    with pm.Model() as model:
        data = {v.name: pm.Data(v.name, v.get_value()) for v in family.model.data_vars}
        x = pm.Normal("shift", 0.0, data["shift_variance"] ** 0.5)
        means = data["templates"] @ pm.math.stack(design(TIMES - x, pm.math))
        error = ((data["curve"] - means) ** 2).sum(axis=1)
        logs = pm.math.log(data["weights"]) - 0.5 * error / data["noise_variance"]
        pm.Potential("y", pm.math.logsumexp(logs))
    return model


def curves(given: argparse.Namespace, lengths: dict[str, Any]) -> None:
    """Measure on shifted curves."""
    rng = np.random.default_rng(1)
    thetas = TRUTH, perturbed(TRUTH, rng)
    drawn = simulate(TRUTH, given.curves, rng)
    cases = [{**theta, "curve": curve} for curve in drawn for theta in thetas]
    family = ShiftedCurves(TRUTH)
    parts = "class_weight", "projection", "shift_square"
    found = contestants(
        family, mean_statistics, lambda s: by_part(np.column_stack([s[name] for name in parts]))
    )
    model = summed_out(family)
    found[SUMMED] = loop(model, mean_statistics, lambda: None, False)
    found[SUMMED + MADE_ONCE] = loop(model, mean_statistics, pm.NUTS, True)
    found |= numpyro_loop(family, mean_statistics, with_index=False)
    results = in_turn(found, lengths, cases, given.repeats)
    title = f"{given.curves} shifted curves under two θ"
    tell(title, results, [exact(values) for values in cases], group=len(thetas))


def digits(given: argparse.Namespace, lengths: dict[str, Any]) -> None:
    """Measure on digits, and print what the chains say."""
    mixture = mcoem.TemplateMixture.for_images((16, 16), n_classes=4)
    stream = images(20 + given.images, seed=1)
    e_step = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk())
    em = mcoem.OnlineEM(mixture, e_step=e_step, random_seed=1, progressbar=False)
    em.partial_fit(stream[:20])
    theta = {name: np.array(value) for name, value in em.parameters.items()}
    cases = [{**theta, **mixture.encode(image)} for image in stream[20:]]
    # A user writes the statistics too; the package's own take little time beside sampling.
    long = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.Hamiltonian(1, 10)).compile(
        mixture
    )

    def arranged(statistics: Any) -> dict[str, np.ndarray]:
        vectors = flat(statistics, mixture)
        return {part: vectors[name] for part, name in DIGIT_PARTS.items()}

    def average(draws: Any, values: Values) -> Any:
        index = draws["class_index"].values
        position = draws["deformation"].values.reshape(len(index), -1)
        equal = np.full(len(index), 1 / len(index))
        return arranged(long.statistics(index, position, equal, values)), (index, position)

    found = contestants(mixture, average, arranged)
    found |= numpyro_loop(mixture, average, with_index=True)
    results = in_turn(found, lengths, cases, given.repeats)
    truths = [truth(long, mixture, theta, image, given.draws) for image in stream[20:]]
    answers = [
        {part: (known[name]["mean"], known[name]["variance"]) for part, name in DIGIT_PARTS.items()}
        for known in truths
    ]
    tell(f"{given.images} digits, 78 latents", results, answers)
    own = [
        f"{np.divide(*np.sum([(t[n]['variance'], t[n]['error']) for t in truths], axis=0)):.1f}"
        for n in DIGIT_PARTS.values()
    ]
    console.print(f"The long runs themselves are worth {', '.join(own)}.")

    density = mixture.model.compile_logp()
    shape = mixture.model.initial_point()["deformation"].shape
    table = make_table(
        ("E-step", "tuning + draws", *(f"image {n + 1}" for n in range(len(cases)))),
        title="Mean log joint density of the draws; most visited class and its share",
    )
    for (kind, length), by_image in results.items():
        cells = []
        for runs, values in zip(by_image, cases, strict=True):
            with mixture.model:
                pm.set_data(values)
            logs = [
                density({"class_index": k, "deformation": x.reshape(shape)})
                for run in runs
                for k, x in zip(*run.chain, strict=True)
            ]
            visits = np.bincount(np.concatenate([run.chain[0] for run in runs]))
            share = visits.max() / visits.sum()
            cells.append(f"{np.mean(logs):.1f}; {visits.argmax()}, {share:.2f}")
        table.add_row(kind, f"{length[0]} + {length[1]}", *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", type=int, default=20)
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument(
        "--repeats", type=int, default=3, help="of all but what is made at each call"
    )
    parser.add_argument("--draws", type=int, default=10_000, help="of each long run on digits")
    parser.add_argument("--quick", action="store_true", help="2 curves, 1 image, fewer lengths")
    parser.add_argument("--only", choices=("curves", "digits"))
    parser.add_argument(
        "--contestants", nargs="+", help="beside bursts, those whose names begin so, as NumPyro"
    )
    given = parser.parse_args()
    tell_versions()
    if given.quick:
        given.curves, given.images, given.repeats, given.draws = 2, 1, 1, 1_000
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    with threadpool_limits(1):
        for name, measure, lengths in (("curves", curves, CURVES), ("digits", digits, DIGITS)):
            wanted = tuple(given.contestants or [""])
            asked = {k: each for k, each in lengths.items() if k.startswith((BURST, *wanted))}
            if given.only in (None, name):
                few = {k: each[: QUICK.get(k, 1)] for k, each in asked.items()}
                few = {k: each for k, each in few.items() if each}
                measure(given, few if given.quick else asked)
    console.print(
        "A short burst is limited by its searches for modes, a long one by its sweeps; pm.sample "
        "by making steps at each call, or if they are given by choosing steps and making starts "
        "and traces, then by calls from Python for each draw, and gradients where latents are many."
    )


if __name__ == "__main__":
    main()
