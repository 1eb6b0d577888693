"""Models made at random: whatever is approved of is right.

What a summary calls sound has to agree with quadrature. What it flags is honest, and counted: it
must be rare.
"""

from __future__ import annotations

import warnings
import zlib

import numpy as np
import pymc as pm
import pytest

from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.carlin_chib.within_class import RandomWalk
from pymc_mcoem.diagnostics import ClassIndexWarning, class_index_summary
from tests.helpers.checks import agreement
from tests.helpers.random_models import random_model

pytestmark = pytest.mark.usefixtures("without_compiler")

#: Of a t distribution with 39 degrees of freedom: once in three million comparisons.
LIMIT = 6.0

#: Shares known by fewer visits are not compared: their errors are not normal.
MIN_VISITS = 60

N_BATCHES = 20


def looked_at(n_rows, rng, n_draws=500):
    """Return what the model is, how far off its chains are, and what the summary flags."""
    made = random_model(rng, n_rows)
    with made.model, warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        tree = pm.sample(
            step=CarlinChib(within_class=RandomWalk(n_moves=4)),
            tune=150,
            draws=n_draws,
            chains=2,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
        summary = class_index_summary(tree, "k", ess_min=40)
    k, x = (tree["posterior"][name].values.reshape(2 * n_draws, -1) for name in "kx")
    member = k[:, :, None] == np.arange(made.weight.shape[1])
    values = np.stack([member, member * np.tanh(x)[..., None]], axis=-1)
    often = made.weight * 2 * n_draws > MIN_VISITS
    often &= (1 - made.weight) * 2 * n_draws > MIN_VISITS
    if not often.any():
        return made.words, 0.0, summary.flags
    expected = np.stack([made.weight, made.mean], axis=-1)[often].ravel()
    batches = values.reshape(2 * N_BATCHES, -1, *values.shape[1:]).mean(axis=1)[:, often]
    z = agreement(batches.reshape(2 * N_BATCHES, -1), expected).largest_z
    return made.words, z, summary.flags


def check(numbers, n_rows, name, most_flagged, **options):
    flagged = []
    for number in numbers:
        rng = np.random.default_rng(zlib.crc32(f"{name} {number}".encode()))
        words, z, flags = looked_at(n_rows, rng, **options)
        assert flags or z < LIMIT, (number, words, z)
        if flags:
            flagged.append((number, words, flags))
    assert len(flagged) <= most_flagged, flagged


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_plate_that_is_approved_of_is_right(number):
    check([number], 6, "plate", most_flagged=1, n_draws=200)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_index_that_is_approved_of_is_right(number):
    check([number], None, "single", most_flagged=1, n_draws=200)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(2))
def test_plates_that_are_approved_of_are_right(hundred):
    check(range(2 + 100 * hundred, 102 + 100 * hundred), 12, "plate", most_flagged=30)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(2))
def test_indices_that_are_approved_of_are_right(hundred):
    check(range(2 + 100 * hundred, 102 + 100 * hundred), None, "single", most_flagged=20)
