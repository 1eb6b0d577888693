"""Compare three regressions of unequal dimension in one PyMC model.

A straight line, a bend and a wave are fitted to the same points. The model is a plain ``switch``,
and ``CarlinChib(blocks=...)`` assigns the coefficients to the classes. The shares of the three
classes in the chain estimate their posterior probabilities. They are printed beside the exact ones,
which linear regressions have in closed form.

    python examples/model_choice.py
"""

from __future__ import annotations

import numpy as np
import pymc as pm
from rich.console import Console
from rich.table import Table
from scipy import stats
from scipy.special import logsumexp

import pymc_mcoem as mcoem

NAMES = ("line", "bend", "wave")
NOISE = 0.4


def main() -> None:
    """Sample the class index with its coefficients, and compare with closed forms."""
    console = Console()
    rng = np.random.default_rng(4)
    x = np.linspace(-1.0, 1.0, 24)
    y = 0.3 + 0.8 * x + 0.25 * np.sin(4 * x) + rng.normal(0.0, NOISE, size=len(x))
    designs = {
        "line": np.stack([np.ones_like(x), x], axis=1),
        "bend": np.stack([np.ones_like(x), x, x**2], axis=1),
        "wave": np.stack([np.ones_like(x), x, np.sin(4 * x), np.cos(4 * x)], axis=1),
    }

    with pm.Model(coords={"model": NAMES}):
        k = pm.Categorical("k", np.full(3, 1 / 3))
        parts = {name: pm.Normal(name, shape=designs[name].shape[1]) for name in NAMES}
        curves = {name: pm.math.dot(designs[name], parts[name]) for name in NAMES}
        later = pm.math.switch(pm.math.eq(k, 1), curves["bend"], curves["wave"])
        mean = pm.math.switch(pm.math.eq(k, 0), curves["line"], later)
        pm.Normal("y", mean, NOISE, observed=y)
        step = mcoem.CarlinChib(blocks={0: ["line"], 1: ["bend"], 2: ["wave"]})
        posterior = pm.sample(draws=4_000, step=step, random_seed=4)["posterior"]

    evidence = np.array(
        [
            stats.multivariate_normal.logpdf(
                y, np.zeros(len(x)), design @ design.T + NOISE**2 * np.eye(len(x))
            )
            for design in designs.values()
        ]
    )
    exact = np.exp(evidence - logsumexp(evidence))
    table = Table(title="Posterior probability of each model")
    for column in ("model", "exact", "in all chains", "lowest chain", "highest chain"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for j, name in enumerate(NAMES):
        shares = (posterior["k"] == j).mean("draw").values
        table.add_row(
            name, *(f"{v:.3f}" for v in (exact[j], shares.mean(), shares.min(), shares.max()))
        )
    console.print(table)
    switches = (np.diff(posterior["k"].values, axis=1) != 0).sum(axis=1)
    console.print(f"Switches of the index in each chain: {', '.join(map(str, switches))}.")


if __name__ == "__main__":
    main()
