"""Draws of one class for ArviZ, and averages over classes of weighed draws."""

from __future__ import annotations

import arviz_base as azb
import arviz_stats as azs
import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.density.class_index import index_key
from pymc_mcoem.diagnostics import class_draws
from tests.helpers.markov import MarkovChain, as_tree

CHAIN = MarkovChain.dar(0.3, [0.7, 0.3])
BLOCKS = {0: ["a", "both"], 1: ["b", "both"]}


@pytest.fixture
def tree(rng):
    """Return a tree of two classes, whose latents are far off while their class is off."""
    codes = CHAIN.draw(rng, 4, 500)
    noise = rng.standard_normal((3, *codes.shape))
    tree = as_tree(
        codes,
        a=np.where(codes == 0, noise[0], 100.0),
        b=np.where(codes == 1, 5.0 + noise[1], -100.0),
        both=codes + 0.1 * noise[2],
    )
    dims = ("chain", "draw", "point")
    replicated = np.repeat(codes[..., None], 3, axis=-1)
    tree["posterior_predictive"] = xr.DataTree(xr.Dataset({"y": (dims, replicated)}))
    tree["observed_data"] = xr.DataTree(xr.Dataset({"y": ("point", np.arange(3))}))
    return tree


def test_draws_are_those_of_the_class_in_every_group(tree):
    for label, mean in ((0, 0.0), (1, 5.0)):
        found = class_draws(tree, label, blocks=BLOCKS)
        name = "ab"[label]
        assert set(found["posterior"].data_vars) == {name, "both"}
        values = found["posterior"][name]
        assert abs(float(values.mean()) - mean) < 5 / np.sqrt(values.size)
        assert float(values.min()) > mean - 6
        assert (found["posterior_predictive"]["y"] == label).all()
        assert found["posterior_predictive"].sizes["draw"] == values.sizes["draw"]
        np.testing.assert_array_equal(found["observed_data"]["y"], np.arange(3))
        fewest = (tree["posterior"]["class_index"] == label).sum("draw").min()
        assert values.sizes == {"chain": 4, "draw": int(fewest)}


def test_tables_of_arviz_hold_for_the_class(tree):
    table = azs.summary(class_draws(tree, 1, blocks=BLOCKS), kind="all", round_to="none")
    assert abs(table.loc["b", "mean"] - 5.0) < 4 * table.loc["b", "mcse_mean"]
    assert table["r_hat"].max() < 1.02 and table["ess_bulk"].min() > 300
    # over all draws the mean is nowhere
    assert azs.summary(tree, var_names=["b"], round_to="none").loc["b", "mean"] < -50


def test_chains_that_hardly_saw_the_class_are_left_out(tree):
    posterior = tree["posterior"].to_dataset()
    posterior["class_index"][2, 3:] = 0
    tree["posterior"] = xr.DataTree(posterior)
    found = class_draws(tree, 1)
    assert found["posterior"]["chain"].values.tolist() == [0, 1, 3]


def test_what_has_no_draws_of_one_class_is_refused(tree):
    with pytest.raises(ValueError, match=r"label: got 7, and class_index has the classes \[0, 1\]"):
        class_draws(tree, 7)
    with pytest.raises(TypeError, match="data: got a Dataset; give a DataTree"):
        class_draws(tree["posterior"].to_dataset(), 1)
    with pytest.raises(ValueError, match=r"class_index is a plate.*class_latents"):
        class_draws(as_tree(np.zeros((2, 10, 3), dtype=int)), 0)
    never = as_tree(np.zeros((2, 10), dtype=int), np.log(np.full((2, 10, 2), 0.5)))
    with pytest.raises(ValueError, match="class 1 of class_index was never visited"):
        class_draws(never, 1)


def test_averages_over_classes_of_weighed_draws_are_those_of_the_posterior(rng):
    """The idiom of the documentation: draws of equalized visits, resampled by their weights."""
    share = np.array([0.9, 0.1])
    codes = MarkovChain.dar(0.0, [0.5, 0.5]).draw(rng, 4, 5_000)
    tree = as_tree(codes)
    dims = ("chain", "draw")
    stats = {
        "class_of": (dims, np.full(codes.shape, index_key("class_index"))),
        "class_log_weight": ((*dims, "class"), np.log(np.full((*codes.shape, 2), 0.5))),
        "class_log_importance": (dims, np.log(share)[codes]),
    }
    tree["sample_stats"] = xr.DataTree(xr.Dataset(stats))
    weight = np.exp(tree["sample_stats"]["class_log_importance"])
    weight = weight / weight.mean("draw")
    drawn = azb.extract(
        tree, weights=(weight / weight.sum()).values.ravel(), num_samples=5_000, random_seed=1
    )
    assert abs(float(np.mean(drawn == 1)) - 0.1) < 5 * np.sqrt(0.09 / 5_000)
