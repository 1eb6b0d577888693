"""Switches and transition matrices against counts by hand and exact chains."""

import numpy as np
import pytest

from pymc_mcoem.diagnostics import class_transitions, count_transitions, read_chains
from tests.helpers.markov import CYCLIC, as_array, as_tree


def test_counts_by_hand():
    counts = count_transitions(np.array([[0, 1, 1, 2, 0], [2, 2, 2, 2, 2]]), 3)
    np.testing.assert_array_equal(counts[0], [[0, 1, 0], [0, 1, 1], [1, 0, 0]])
    np.testing.assert_array_equal(counts[1], np.diag([0, 0, 4]))


def test_a_chain_ends_before_the_next_begins():
    transitions = class_transitions(read_chains(as_array([[0, 0], [1, 1]])))
    np.testing.assert_array_equal(transitions["count"], np.eye(2))
    np.testing.assert_array_equal(transitions["n_switches"], [0, 0])


def test_probabilities_are_those_of_the_exact_chain(rng):
    transitions = class_transitions(read_chains(as_array(CYCLIC.draw(rng, 4, 5000))))
    rows = transitions["count"].sum("class_to").values[:, None]
    error = np.sqrt(CYCLIC.matrix * (1 - CYCLIC.matrix) / rows)
    assert np.all(np.abs(transitions["probability"] - CYCLIC.matrix) <= 4 * error)


def test_no_probability_from_a_class_never_visited():
    found = class_transitions(read_chains(as_array([[0, 0, 0]]), classes=[0, 1]))["probability"]
    np.testing.assert_array_equal(found, [[1.0, 0.0], [np.nan, np.nan]])


def test_jumps_have_the_probabilities_that_the_step_gave(rng):
    # The step's weights are the rows of the matrix: what follows depends on the class before.
    codes = CYCLIC.draw(rng, 3, 50)
    before = np.concatenate([codes[:, :1], codes[:, :-1]], axis=1)
    with np.errstate(divide="ignore"):
        log_weight = np.log(CYCLIC.matrix[before])
    log_weight[:, 0] = np.log(1 / 3)
    found = class_transitions(read_chains(as_tree(codes, log_weight)))
    np.testing.assert_allclose(found["jump_probability"], CYCLIC.matrix, atol=1e-12)
    thinned = as_tree(codes, log_weight).isel(draw=slice(None, None, 2))
    assert "jump_probability" not in class_transitions(read_chains(thinned))


@pytest.mark.parametrize("n_rows", [1, 3])
def test_a_plate_is_counted_row_by_row(n_rows, rng):
    codes = rng.integers(2, size=(2, 30, n_rows))
    found = class_transitions(read_chains(as_array(codes)))
    assert found["chain_count"].dims == ("row", "chain", "class_from", "class_to")
    for row in range(n_rows):
        wanted = count_transitions(codes[..., row], 2).sum(axis=0)
        np.testing.assert_array_equal(found["count"][row], wanted)
