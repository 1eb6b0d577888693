"""Models made at random: whatever is approved of is right.

What a summary calls sound has to agree with quadrature. What it flags is honest, and counted: of
models that are nothing special it must be no more than chance allows.
"""

from __future__ import annotations

import warnings
import zlib

import numpy as np
import pymc as pm
import pytest
from scipy.stats import binom

from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.diagnostics import ClassIndexWarning, class_index_summary, read_chains
from tests.helpers.checks import agreement
from tests.helpers.random_models import (
    HEAVY,
    TWO_MODES,
    coupled_plate,
    random_model,
    with_blocks,
    with_shared_covariance,
    with_two_indices,
)
from tests.helpers.random_shared import plate_beside_a_parameter
from tests.helpers.representatives import by_default

#: Of a t distribution with 39 degrees of freedom: once in three million comparisons.
LIMIT = 6.0

#: Shares known by fewer visits are not compared: their errors are not normal.
MIN_VISITS = 60

N_BATCHES = 20

#: Of each kind: how it is made of a generator, and whether nothing about it is difficult.
KINDS = {
    "plate": (lambda rng: random_model(rng, 12), True),
    "single": (lambda rng: random_model(rng, None), True),
    "data": (lambda rng: random_model(rng, None, as_data=True), True),
    "plate of data": (lambda rng: random_model(rng, 12, as_data=True), True),
    "plate beside a parameter": (plate_beside_a_parameter, True),
    "tilted": (lambda rng: random_model(rng, None, tilted=True), True),
    "blocks": (lambda rng: with_blocks(rng), True),
    "covariance": (lambda rng: with_shared_covariance(rng, folded=False, apart=False), True),
    "scale apart": (lambda rng: with_shared_covariance(rng, folded=False, apart=True), True),
    "one latent of two": (lambda rng: with_two_indices(rng, shared=True), False),
    "two latents of two": (lambda rng: with_two_indices(rng, shared=False), False),
    "folded": (lambda rng: random_model(rng, None, likelihoods=TWO_MODES), False),
    "folded blocks": (lambda rng: with_blocks(rng, likelihoods=TWO_MODES), False),
    "folded vector": (lambda rng: with_shared_covariance(rng, folded=True, apart=False), False),
    "folded of two": (
        lambda rng: with_two_indices(rng, shared=True, likelihoods=TWO_MODES),
        False,
    ),
    "folded, tilted": (
        lambda rng: random_model(rng, None, likelihoods=TWO_MODES, tilted=True),
        False,
    ),
    "folded data": (
        lambda rng: random_model(rng, None, likelihoods=TWO_MODES, as_data=True),
        False,
    ),
    "folded plate": (lambda rng: random_model(rng, 12, likelihoods=TWO_MODES), False),
    "heavy": (lambda rng: random_model(rng, None, priors=HEAVY), False),
    "heavy plate": (lambda rng: random_model(rng, 12, priors=HEAVY), False),
}


def looked_at(made, rng, n_draws=500):
    """Return how far off the chains of a model are, and what summaries flag of them."""
    with made.model, warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        tree = pm.sample(
            step=made.steps(),
            tune=150,
            draws=n_draws,
            chains=2,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )
        # An R-hat of 1.01 is passed by chance where two chains are worth forty draws.
        summaries = [
            class_index_summary(tree, name, ess_min=40, rhat_max=1.05) for name in made.indices
        ]
    flags = [flag for summary in summaries for flag in summary.flags]
    count = 2 * n_draws * made.weight
    often = (count > MIN_VISITS) & (2 * n_draws - count > MIN_VISITS)
    if not often.any():
        return 0.0, flags
    # what is left over of draws that are weighed back, all alike where nothing is tilted
    weight = read_chains(tree, made.indices[0]).weights[..., None]
    left = weight * (made.values(tree["posterior"].to_dataset()) - made.expected)[..., often]
    batches = left.reshape(2 * N_BATCHES, -1, left.shape[-1]).mean(axis=1)
    return agreement(batches, np.zeros(batches.shape[1])).largest_z, flags


def outcomes(kind, numbers, **options):
    """Return of each number what the model is, how far off its chains are, and its flags."""
    make, _ = KINDS[kind]
    for number in numbers:
        rng = np.random.default_rng(zlib.crc32(f"{kind} {number}".encode()))
        made = make(rng)
        yield number, made.words, *looked_at(made, rng, **options)


def check(kind, numbers, **options):
    found = list(outcomes(kind, numbers, **options))
    flagged = [(number, words, flags) for number, words, _, flags in found if flags]
    print(f"{kind}: {len(found)} models, {len(flagged)} flagged")
    wrong = [(number, words, z) for number, words, z, flags in found if z > LIMIT and not flags]
    assert not wrong, wrong
    return len(found), flagged


@pytest.mark.parametrize("kind", by_default(["plate", "single", "folded", "blocks"], {"plate"}))
def test_what_is_approved_of_is_right(kind):
    check(kind, [0], n_draws=200)


#: That one model is flagged by chance: 0.01 of the tests of chains, 0.01 of R-hat of latents.
FALSE_ALARMS = 0.02

#: Of a kind: those with too few effective draws, which are flagged as that, make up the rest.
MOST_FLAGGED = 0.2


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_models_that_are_approved_of_are_right(kind):
    n, flagged = check(kind, range(1, 16))
    if KINDS[kind][1]:
        alarms = [each for each in flagged if not any("effective" in flag for flag in each[2])]
        assert len(alarms) <= binom(n, FALSE_ALARMS).ppf(0.9995), alarms
        assert len(flagged) <= MOST_FLAGGED * n, flagged


@pytest.mark.parametrize(
    "numbers", [range(12), pytest.param(range(12, 300), marks=pytest.mark.slow)]
)
def test_coupled_plates_are_refused(numbers):
    for number in numbers:
        model, words = coupled_plate(np.random.default_rng(zlib.crc32(f"c {number}".encode())))
        with model, pytest.raises(ValueError, match=r"not independent"):
            CarlinChib(vars=None, class_index="k")
            pytest.fail(f"{number}: {words} was not refused")
