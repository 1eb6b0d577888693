"""Models as PyMC's users write them, against exact answers: the step with nothing set."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytest

from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.checks import LIMIT, largest_share_error
from tests.helpers.models_as_written import MODELS
from tests.helpers.nested_blocks import sample
from tests.helpers.representatives import by_default


@pytest.mark.parametrize("name", by_default(list(MODELS), ["joint_predictors"]))
def test_every_chain_has_the_exact_probabilities(name, rng):
    written = MODELS[name]()
    posterior = sample(written.steps(), written.model, rng, draws=4_000, chains=2)
    assert largest_share_error(written.exact, posterior) < LIMIT


def test_the_summed_out_model_agrees(rng):
    """`pymc_extras.marginalize` gives the same latents and the same class probabilities."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pmx = pytest.importorskip("pymc_extras")
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.3, 0.2])
        level = pm.Normal("level", 0.0, 1.5)
        shift = pm.math.stack([-1.0, 0.5, 2.0])[k]
        pm.Normal("y", level + shift, 0.7, observed=[0.2, 0.9, 0.4])
    options = {
        "tune": 500,
        "draws": 5_000,
        "chains": 2,
        "cores": 1,
        "random_seed": int(rng.integers(2**31)),
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    with model:
        ours = pm.sample(step=CarlinChib(), **options)["posterior"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        marginal = pmx.marginalize(model, ["k"])
        with marginal:
            theirs = pm.sample(nuts_sampler="pymc", **options)
            recovered = pmx.recover_marginals(theirs, random_seed=1)
    recovered = getattr(recovered, "posterior", recovered)
    for values in (
        lambda p: p["level"].values,
        lambda p: p["level"].values ** 2,
        *(lambda p, j=j: (p["k"].values == j).astype(float) for j in range(3)),
    ):
        means = []
        for posterior in (ours, recovered):
            batches = values(posterior).reshape(50, -1).mean(axis=1)
            means.append((batches.mean(), batches.std(ddof=1) / np.sqrt(50)))
        (a, error_a), (b, error_b) = means
        assert abs(a - b) < LIMIT * np.hypot(error_a, error_b)
