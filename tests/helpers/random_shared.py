"""Plates made at random beside a parameter that all rows share and other steps draw.

Given the parameter rows are independent, so that the oracle integrates each over its latent and
sums over its classes, and then integrates the product of all rows over the parameter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from scipy import stats
from scipy.special import logsumexp

from tests.helpers.random_models import LIKELIHOODS, PRIORS, RandomModel, by_class, nodes, walk

#: Where the parameter is: PyMC's prior of it, SciPy's, and whether latents' priors must have mu.
PLACES: dict[str, tuple[Any, Any, bool]] = {
    "mean of the latents": (lambda: pm.Normal("t", 0.0, 0.7), stats.norm(0.0, 0.7), True),
    "shift of what is seen": (lambda: pm.Normal("t", 0.0, 0.7), stats.norm(0.0, 0.7), False),
    "scale of what is seen": (lambda: pm.LogNormal("t", 0.0, 0.4), stats.lognorm(0.4), False),
    "weight of a class": (lambda: pm.Beta("t", 2.0, 2.0), stats.beta(2.0, 2.0), False),
}

_N_VALUES = 161


def plate_beside_a_parameter(rng: np.random.Generator, n_rows: int = 8) -> RandomModel:
    """Make a plate of two or three classes and a parameter by NUTS, slice or Metropolis steps."""
    place = rng.choice(list(PLACES))
    declare, prior_of_t, located = PLACES[place]
    prior = rng.choice([n for n, (_, ranges, _) in PRIORS.items() if not located or "mu" in ranges])
    prior = "Normal" if located and prior in ("LogNormal", "TruncatedNormal") else prior
    make, ranges, frozen = PRIORS[prior]
    # gradients know nothing of hard edges
    other = rng.choice(["NUTS", "Slice", "Metropolis"])
    likelihood = rng.choice([n for n in LIKELIHOODS if n != "Uniform"])
    observe, seen = LIKELIHOODS[likelihood]
    n_classes = 2 if place == "weight of a class" else int(rng.integers(2, 4))
    tables = {n: rng.uniform(*ends, size=(n_classes, n_rows)) for n, ends in ranges.items()}
    p = rng.dirichlet(np.full(n_classes, 3.0))

    def weights(t: Any) -> Any:
        return [1.0 - t, t] if place == "weight of a class" else list(p)

    def shown(x: Any, t: Any) -> Any:
        if place == "scale of what is seen":
            return x * t
        return x + t if place == "shift of what is seen" else x

    t = prior_of_t.rvs(random_state=rng)
    truth = rng.choice(n_classes, p=weights(t), size=n_rows)
    mine = [table[truth, np.arange(n_rows)] for table in tables.values()]
    latent = frozen(*mine).rvs(size=n_rows, random_state=rng) + (t if located else 0.0)
    y = seen(shown(latent, t)).rvs(size=n_rows, random_state=rng)

    with pm.Model() as model:
        shared = declare()
        k = pm.Categorical("k", pt.stack(weights(shared)), shape=n_rows)
        given = {n: pt.constant(table)[k, np.arange(n_rows)] for n, table in tables.items()}
        if located:
            given["mu"] = given["mu"] + shared
        observe(shown(make("x", shape=n_rows, **given), shared), observed=y)

    # of each row, class and value of t the evidence, and the integral of tanh(x) with it
    values = np.linspace(*prior_of_t.ppf([1e-7, 1 - 1e-7]), _N_VALUES)
    each = np.empty((n_rows, n_classes, 2, _N_VALUES))
    for row, j in np.ndindex(n_rows, n_classes):
        x, weight = nodes(frozen(*(table[j, row] for table in tables.values())), y[row])
        for i, t in enumerate(values):
            of_y = seen(shown(x + (t if located else 0.0), t))
            density = of_y.pmf(y[row]) if hasattr(of_y.dist, "pmf") else of_y.pdf(y[row])
            mass = weights(t)[j] * weight * density
            each[row, j, :, i] = mass.sum(), (mass * np.tanh(x + (t if located else 0.0))).sum()
    of_row = each[:, :, 0].sum(axis=1)
    log_p = prior_of_t.logpdf(values) + np.log(of_row).sum(axis=0)
    share = np.exp(log_p - logsumexp(log_p))
    found = (each / of_row[:, None, None]) @ share

    def functions(posterior: xr.Dataset) -> np.ndarray:
        rows = by_class(posterior, n_classes)
        return np.concatenate([rows, np.tanh(posterior["t"].values)[..., None]], axis=-1)

    def steps() -> Any:
        step = walk(vars=["k", "x"])
        return step if other == "NUTS" else [step, getattr(pm, other)([model["t"]])]

    words = f"{prior} prior, {likelihood} likelihood, {n_classes} classes, {place} by {other}"
    return RandomModel(
        model,
        words,
        ("k",),
        steps,
        functions,
        np.append(found.ravel(), share @ np.tanh(values)),
        np.append(np.repeat(found[..., 0].ravel(), 2), 0.5),
    )
