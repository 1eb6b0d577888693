"""A model of each shape that the step method takes: shared latents, blocks and a plate."""

from __future__ import annotations

from functools import cache

import pymc as pm

from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.count_plate import counts_model
from tests.helpers.nested_blocks import BLOCKS, nested_model


def shared_model() -> pm.Model:
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.3, 0.2])
        x = pm.Normal("x", 1.0 * k, 0.7, shape=2)
        s = pm.Gamma("s", 2.0, 1.0)
        pm.Normal("y", x.sum() * s, 1.0, observed=2.0)
    return model


SHAPES = {
    "shared": (shared_model, {"jump": AnnealedJump(3, n_leapfrog=2)}),
    "blocks": (nested_model, {"blocks": BLOCKS, "auxiliaries": "frozen"}),
    "plate": (counts_model, {}),
    "defaults": (shared_model, {"within_class": "default"}),
}


@cache
def made(name):
    """Return the model of a shape and its step, compiled once."""
    build, settings = SHAPES[name]
    model = build()
    with model:
        return model, CarlinChib(**{"within_class": RandomWalk(2)} | settings)


def sample(name, **options):
    """Return two short chains of one seed, drawn in the processes that `options` ask for."""
    model, step = made(name)
    with model:
        return pm.sample(
            step=step,
            tune=20,
            draws=30,
            chains=2,
            random_seed=11,
            progressbar=False,
            compute_convergence_checks=False,
            **options,
        )
