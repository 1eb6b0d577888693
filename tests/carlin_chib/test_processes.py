"""One process, and several of every kind: the same draws under one seed."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.carlin_chib.test_back_ends import shared_model
from tests.carlin_chib.test_blocks import BLOCKS, nested_model
from tests.carlin_chib.test_plate import counts_model

SHAPES = {
    "shared": (shared_model, {"jump": AnnealedJump(3, n_leapfrog=2)}),
    "blocks": (nested_model, {"blocks": BLOCKS, "auxiliaries": "frozen"}),
    "plate": (counts_model, {}),
}


def sample(name, **options):
    build, settings = SHAPES[name]
    model = build()
    with model:
        return pm.sample(
            step=CarlinChib(within_class=RandomWalk(2), **settings),
            tune=20,
            draws=30,
            chains=2,
            random_seed=11,
            progressbar=False,
            compute_convergence_checks=False,
            **options,
        )


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("mp_ctx", ["fork", "spawn", "forkserver"])
def test_one_process_and_several_draw_the_same(name, mp_ctx):
    one, several = sample(name, cores=1), sample(name, cores=2, mp_ctx=mp_ctx)
    for group in ("posterior", "sample_stats"):
        for variable in one[group].data_vars:
            if group == "posterior" or variable.startswith("class_"):
                np.testing.assert_array_equal(one[group][variable], several[group][variable])
    # and the chains are not each other's copies
    index = one["posterior"]["k"].values
    assert not np.array_equal(index[0], index[1])
