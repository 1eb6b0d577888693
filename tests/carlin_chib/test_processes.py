"""One process, and several of every kind: the same draws under one seed."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.helpers.representatives import by_default
from tests.helpers.step_shapes import SHAPES, sample


@pytest.mark.parametrize(
    ("mp_ctx", "name"),
    by_default(
        product(["fork", "spawn", "forkserver"], SHAPES),
        # `test_plate` has two processes of the default kind
        {("spawn", "blocks")},
    ),
)
def test_one_process_and_several_draw_the_same(name, mp_ctx):
    one, several = sample(name, cores=1), sample(name, cores=2, mp_ctx=mp_ctx)
    for group in ("posterior", "sample_stats"):
        for variable in one[group].data_vars:
            if group == "posterior" or variable.startswith("class_"):
                np.testing.assert_array_equal(one[group][variable], several[group][variable])
    # and the chains are not each other's copies
    index = one["posterior"]["k"].values
    assert not np.array_equal(index[0], index[1])
