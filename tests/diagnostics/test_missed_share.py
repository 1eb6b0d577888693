"""Flags of classes with modes that the step's pseudo-priors leave out."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.diagnostics import read_chains
from pymc_mcoem.diagnostics.switching import missed_share_flags


def chains_that_miss(weight, missed_share):
    """Return two chains of an index, given the weight of class 1 and what each chain leaves out."""
    codes = np.tile([0, 1], (2, 50))
    log_weight = np.broadcast_to(np.log([1.0 - weight, weight]), (1, 2, 100, 2))
    share = np.zeros((2, 100, 2))
    share[:, :, 1] = np.array(missed_share)[:, None]
    chains = read_chains(xr.DataArray(codes, dims=("chain", "draw"), name="k"))
    return replace(chains, log_weight=log_weight, missed_share=share)


@pytest.mark.parametrize(
    ("weight", "missed_share", "words"),
    [
        (0.5, (0.3, 0.0), "class 1 has more modes .* in 1 of 2 chains about 30% of its evidence"),
        (0.2, (0.5, 0.6), "in 2 of 2 chains about 60%"),
        # what seems to have no weight may have any
        (1e-6, (1.0, 1.0), "in 2 of 2 chains an unknown part of its evidence"),
    ],
)
def test_modes_with_weight_that_are_left_out_are_flagged(weight, missed_share, words):
    (flag,) = missed_share_flags(chains_that_miss(weight, missed_share))
    assert re.search(words, flag)


@pytest.mark.parametrize(
    ("weight", "missed_share"), [(0.5, (0.0, 0.0)), (0.5, (0.01, 0.01)), (1e-3, (0.5, 0.5))]
)
def test_modes_without_weight_are_not(weight, missed_share):
    assert missed_share_flags(chains_that_miss(weight, missed_share)) == []


def test_without_statistics_there_are_no_flags():
    chains = chains_that_miss(0.5, (0.5, 0.5))
    assert missed_share_flags(replace(chains, missed_share=None)) == []
    assert missed_share_flags(replace(chains, log_weight=None)) == []
