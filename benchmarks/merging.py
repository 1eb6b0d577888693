"""Measure what merging gains: runs over parts of a stream, merged, beside one run over all of it.

A mixture of three normals with a closed-form E-step shows the error of θ over many streams. On
scikit-learn's digits, with ten templates and Laplace's approximation, it is the mean log-evidence
of 300 other images, if runs begin with one θ, learned from 197 more, and if each finds its own.

    python benchmarks/merging.py             # 100 streams, three orders of the digits
    python benchmarks/merging.py --quick     # ten streams, one order
"""

from __future__ import annotations

import itertools

import numpy as np
import pymc as pm
from scipy.special import softmax
from timing import begin, tell_table

import pymc_mcoem as mcoem

MEANS, WEIGHTS = np.array([-3.0, 0.0, 2.5]), np.array([0.5, 0.3, 0.2])
GAINS = {"1/n": mcoem.schedules.StepSize(exponent=1), "the default": mcoem.schedules.StepSize()}


class Normals(mcoem.Family):
    """Three normals of variance 1."""

    observation = ("value",)

    def __init__(self) -> None:
        with pm.Model(coords={"class": range(3)}) as self.model:
            weights = pm.Data("weights", np.full(3, 1 / 3), dims="class")
            means = pm.Data("means", [-2.0, 0.0, 2.0], dims="class")
            value = pm.Data("value", 0.0)
            self.class_index = pm.Categorical("class_index", p=weights)
            pm.Normal("y", means[self.class_index], 1.0, observed=value)
        self.statistics = {"value": value}

    def maximize(self, statistics, *, effective_size):
        means = statistics["value"] / statistics["class_weight"]
        return {"weights": statistics["class_weight"], "means": means}

    def exact(self, data, parameters):
        distance = (data["value"] - parameters["means"]) ** 2
        weight = softmax(np.log(parameters["weights"]) - distance / 2)
        return {"class_weight": weight, "value": weight * data["value"]}


def tell_normals(n_streams: int, n_parts: int = 4) -> None:
    """Print root mean squared errors of θ."""
    family, rows = Normals(), []

    def learn(values, step_size):
        settings = {"e_step": mcoem.esteps.Exact(), "random_seed": 1, "progressbar": False}
        theta = family.declared_parameters()
        em = mcoem.OnlineEM(family, parameters=theta, step_size=step_size, **settings)
        return em.partial_fit(values)

    def squared_error(em):
        away = [em.parameters["means"] - MEANS, em.parameters["weights"] - WEIGHTS]
        return np.mean(np.square(away))

    for (gain, step_size), size in itertools.product(GAINS.items(), (75, 250)):
        errors = []
        for seed in range(n_streams):
            rng = np.random.default_rng([size, seed])
            values = rng.normal(MEANS[rng.choice(3, size=n_parts * size, p=WEIGHTS)])
            parts = [learn(part, step_size) for part in np.split(values, n_parts)]
            others = (mcoem.merge_runs(parts), learn(values, step_size))
            errors.append((np.mean([*map(squared_error, parts)]), *map(squared_error, others)))
        mean = np.mean(errors, axis=0)
        spread = np.std(errors, axis=0, ddof=1) / np.sqrt(4 * n_streams * mean)
        cells = zip(np.sqrt(mean), spread, strict=True)
        rows.append((f"{gain}, {n_parts} × {size}", *(f"{a:.3f} ± {b:.3f}" for a, b in cells)))
    tell_table(("gain, observations", "parts", "merged", "whole"), rows, "Error of θ")


def tell_digits(n_orders: int) -> None:
    """Print mean log-evidence of other images."""
    images = mcoem.datasets.load_digits().images.values
    mixture, e_step = (
        mcoem.TemplateMixture.for_images(
            (8, 8), 10, rigid_weight=None, priors=mcoem.TemplatePriors()
        ),
        mcoem.esteps.LaplaceGaussian(),
    )
    compiled, rows = e_step.compile(mixture), []

    def learn(part, theta=None):
        settings = {"e_step": e_step, "random_seed": order, "progressbar": False}
        return mcoem.OnlineEM(mixture, parameters=theta, **settings).partial_fit(part)

    def told(em, tested):
        theta = mixture.check_parameters(em.parameters)
        given = theta, np.random.default_rng(0), compiled.initial_state()
        found = [compiled(mixture.encode(image), *given, draws=1, tune=0) for image in tested]
        return np.mean([each.log_evidence for each in found]), float(theta["noise_variance"])

    for order in range(n_orders):
        drawn = np.random.default_rng(order).permutation(images)
        learned, more, tested, first = np.split(drawn, [1_200, 1_300, 1_600])
        for start, theta in (("one", learn(first).parameters), ("own", None)):
            whole = learn(learned, theta)
            for n_parts in (2, 4):
                parts = [learn(part, theta) for part in np.split(learned, n_parts)]
                later = mcoem.merge_runs(parts).partial_fit(more)
                cells = [np.mean([told(part, tested) for part in parts], axis=0)]
                cells += [told(em, tested) for em in (mcoem.merge_runs(parts), whole, later)]
                name = f"{order}, {start}, {n_parts}"
                rows.append((name, *(f"{a:.2f}, {b:.4f}" for a, b in cells)))
    headings = "order, start, parts", "parts", "merged", "whole", "merged, 100 more"
    tell_table(headings, rows, "Log-evidence of 300 other digits, and variance of the noise")


def main() -> None:
    """Learn, merge and print."""
    given = begin(__doc__, quick=(False, "ten streams, one order"))
    tell_normals(10 if given.quick else 100)
    tell_digits(1 if given.quick else 3)


if __name__ == "__main__":
    main()
