"""Chains that never switched: nowhere to go, or unable to go."""

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.density.class_index import index_key
from pymc_mcoem.diagnostics import (
    ClassIndexWarning,
    class_index_summary,
    read_chains,
    unmoved_chains,
)
from pymc_mcoem.diagnostics.switching import unvisited_flags
from tests.helpers.markov import TWO_STATES, MarkovChain, as_array, as_tree
from tests.helpers.toy_carlin_chib import toy_carlin_chib

GOOD = {"mean": [0, 0, 0], "spread": [1.05, 1.05, 1.05]}
GOOD_TWO = {"mean": [0, 0], "spread": [1.05, 1.05]}


def verdicts(codes, log_weight=None):
    chains = read_chains(as_tree(codes, log_weight))
    return [each.verdict for each in unmoved_chains(chains)]


def test_chains_that_move_are_not_named(rng):
    assert verdicts(TWO_STATES.draw(rng, 4, 100)) == []


def test_no_weight_elsewhere_and_sound_pseudo_priors(rng):
    codes, log_weight, *_ = toy_carlin_chib(rng, 4, 500, evidence=[1, 1e-9, 1e-12], **GOOD)
    assert verdicts(codes, log_weight) == ["no weight"]
    # Without the step's weights nobody can know.
    assert verdicts(codes) == ["unknown"]


@pytest.mark.parametrize(
    ("mean", "spread"), [(8.0, 1.0), (8.0, 0.3), (30.0, 0.1)], ids=["far", "narrow", "needle"]
)
def test_pseudo_priors_in_the_wrong_place(mean, spread, rng):
    codes, log_weight, *_ = toy_carlin_chib(
        rng, 4, 500, evidence=[0.5, 0.5, 1e-9], mean=[0, mean, 0], spread=[1.05, spread, 1.05]
    )
    assert not np.diff(codes).any()
    assert verdicts(codes, log_weight) == ["stuck"]


def test_false_alarms_of_sound_pseudo_priors(rng):
    # Pareto k above 0.7 by chance, in four chains together: none of a hundred runs.
    codes, log_weight, *_ = toy_carlin_chib(rng, 4 * 100, 200, evidence=[1, 1e-9, 1e-9], **GOOD)
    runs = codes.reshape(100, 4, 200), log_weight.reshape(100, 4, 200, 3)
    found = [verdicts(*run) for run in zip(*runs, strict=True)]
    assert found.count(["no weight"]) >= 99


def test_a_class_that_the_model_excludes_has_no_weight(rng):
    codes = np.zeros((4, 100), dtype=int)
    log_weight = np.zeros((4, 100, 2))
    log_weight[..., 1] = -np.inf
    assert verdicts(codes, log_weight) == ["no weight"]


def test_too_few_draws_to_tell(rng):
    codes, log_weight, *_ = toy_carlin_chib(rng, 1, 10, evidence=[1, 1e-9, 1e-9], **GOOD)
    assert verdicts(codes, log_weight) == ["stuck"]


def test_chains_in_different_classes(rng):
    codes, log_weight, *_ = toy_carlin_chib(
        rng, 4, 200, [0.5, 0.5], mean=[9, 9], spread=[0.5, 0.5], start=[0, 0, 1, 1]
    )
    assert verdicts(codes, log_weight) == ["stuck"]
    assert verdicts(codes) == ["stuck"]


def test_a_rare_class_may_be_missed_by_chance(rng):
    # Half a visit a chain: some chains never leave the frequent class, and nothing is wrong.
    rare = MarkovChain.dar(0.0, [0.999, 0.001])
    codes = rare.draw(rng, 8, 500)
    still = ~codes.any(axis=1)
    assert 0 < still.sum() < 8
    assert verdicts(codes) == ["chance"]


def test_a_plate_names_its_rows(rng):
    codes = np.stack([TWO_STATES.draw(rng, 2, 100), np.ones((2, 100), dtype=int)], axis=-1)
    (found,) = unmoved_chains(read_chains(as_array(codes)))
    assert found.row == 1


def test_a_chain_that_others_contradict_is_stuck_whatever_its_own_weights_say(rng):
    """Its pseudo-prior is narrow and far away, so that by its own weights the class is nothing."""
    codes = TWO_STATES.draw(rng, 4, 500)
    codes[3] = 0
    log_weight = np.log(np.full((4, 500, 2), 0.5))
    log_weight[3] = [0.0, -30.0]
    (found,) = unmoved_chains(read_chains(as_tree(codes, log_weight)))
    assert (found.verdict, found.chains) == ("stuck", (3,))
    assert found.reason == "other chains left that class"


def test_expected_switches_of_all_chains_count_together():
    codes = np.zeros((4, 401), dtype=int)
    log_weight = np.log(np.broadcast_to([0.99, 0.01], (4, 401, 2)))
    # four switches in each of four chains: that none came has probability exp(-16)
    assert verdicts(codes, log_weight) == ["stuck"]
    # in one chain it has exp(-4), which is no surprise
    assert verdicts(codes[:1], log_weight[:1]) == ["no weight"]


def test_many_chains_without_a_rare_class_are_no_surprise(rng):
    """Of a hundred chains with three expected switches, five without any are to be expected."""
    codes = MarkovChain.dar(0.0, [0.997, 0.003]).draw(rng, 100, 500)
    assert (~codes.any(axis=1)).sum() > 5
    assert verdicts(codes) == ["chance"]


def verdicts_of(tree):
    return [each.verdict for each in unmoved_chains(read_chains(tree, "class_index"))]


def two_indices_that_stood_still(rng, believed):
    """Return runs of k and j whose own weights say that neither has any elsewhere."""
    codes, log_weight, *_ = toy_carlin_chib(rng, 4, 500, evidence=[1, 1e-9, 1e-12], **GOOD)
    tree = as_tree(codes, log_weight)
    posterior, stats = tree["posterior"].to_dataset(), tree["sample_stats"].to_dataset()
    posterior = posterior.rename(class_index="k").assign(j=posterior["class_index"].copy())
    dims = ("chain", "draw", "step")
    both = np.broadcast_to([index_key("k"), index_key("j")], (*codes.shape, 2))
    weights = np.stack([log_weight, log_weight], axis=2)
    stats = stats.drop_vars("class_log_weight").assign(
        class_log_weight=((*dims, "class"), weights),
        class_of=(dims, both),
        class_believed_elsewhere=(dims, np.full(both.shape, believed)),
    )
    return posterior, stats


def test_two_indices_that_stood_still_are_not_called_sound(rng):
    """Together they may have weight elsewhere that neither has alone."""
    posterior, stats = two_indices_that_stood_still(rng, np.nan)
    tree = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})
    (found,) = unmoved_chains(read_chains(tree, "j"))
    assert found.verdict == "unknown"
    assert "where k was, which did not go through all its classes either" in found.reason
    # one that moved says that the weights were looked at from more than one place, not from all
    moved = posterior.assign(k=posterior["k"].copy())
    moved["k"][0, 3] = 2
    tree = xr.DataTree.from_dict({"posterior": moved, "sample_stats": stats})
    assert [each.verdict for each in unmoved_chains(read_chains(tree, "j"))] == ["unknown"]
    moved["k"][1, 5] = 1
    tree = xr.DataTree.from_dict({"posterior": moved, "sample_stats": stats})
    assert [each.verdict for each in unmoved_chains(read_chains(tree, "j"))] == ["no weight"]


def test_what_another_step_drew_and_never_changed_is_beside_the_index(rng):
    """Of an index that PyMC's own step drew nobody knows the classes; it stood still, though."""
    codes, log_weight, *_ = toy_carlin_chib(rng, 4, 500, evidence=[1, 1e-9], **GOOD_TWO)
    tree = as_tree(codes, log_weight, z=rng.integers(3, size=(4, 500)))
    assert verdicts_of(tree) == ["no weight"]
    # truth values are made of the index itself
    alone = as_tree(codes, log_weight, is_first=codes == 0)
    assert verdicts_of(alone) == ["no weight"]
    tree["posterior"]["z"][:] = 0
    assert verdicts_of(tree) == ["unknown"]
    # each in one of its own, but for one that was in both
    tree["posterior"]["z"][:] = np.array([0, 0, 1, 1])[:, None]
    tree["posterior"]["z"][0, 7] = 1
    assert verdicts_of(tree) == ["no weight"]
    tree["posterior"]["z"][0] = 0
    assert verdicts_of(tree) == ["unknown"]


def test_a_plate_of_which_one_row_moved_is_beside_an_index(rng):
    codes, log_weight, *_ = toy_carlin_chib(rng, 4, 500, evidence=[1, 1e-9], **GOOD_TWO)
    z = np.zeros((4, 500, 3), dtype=int)
    z[..., 0] = rng.integers(2, size=(4, 500))
    assert verdicts_of(as_tree(codes, log_weight, z=z)) == ["unknown"]
    # rows of a plate have those of another beside them
    plate = as_tree(np.stack([codes] * 3, axis=-1), np.concatenate([log_weight] * 3, axis=-1), z=z)
    assert verdicts_of(plate) == ["no weight", "unknown", "unknown"]


def test_rows_that_moved_may_reach_a_class_together_with_another_index(rng):
    codes, log_weight, *_ = toy_carlin_chib(rng, 4, 500, evidence=[0.5, 0.5, 1e-9], **GOOD)
    assert np.unique(codes).tolist() == [0, 1]
    rows, weights = np.stack([codes] * 3, axis=-1), np.concatenate([log_weight] * 3, axis=-1)
    moved = rng.integers(2, size=rows.shape)

    def told(z, weights=weights):
        flags = unvisited_flags(read_chains(as_tree(rows, weights, z=z)))
        return [flag for flag in flags if "may have weight together" in flag]

    assert told(moved) == []
    stood_still = np.where(np.arange(3) == 0, moved, 0)
    (flag,) = told(stood_still)
    assert flag.startswith("classes [2] of [row=1] were never visited, and neither did z go")
    assert flag.endswith("(likewise in 1 more indices of the plate)")
    # what the model excludes has no weight anywhere
    assert told(stood_still, np.where(np.arange(9) % 3 == 2, -np.inf, weights)) == []


def test_evidence_against_staying_is_not_called_sound(rng):
    posterior, stats = two_indices_that_stood_still(rng, 0.07)
    posterior["k"][0, 3:5] = [1, 2]
    tree = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})
    (found,) = unmoved_chains(read_chains(tree, "j"))
    assert found.verdict == "unknown"
    assert "by the evidence of its pseudo-priors 34.9" in found.reason
    with pytest.warns(ClassIndexWarning, match="never switched and may be stuck"):
        assert not class_index_summary(tree, "j").ok
