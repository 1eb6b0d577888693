"""What is read as chains of a class index, and what is refused."""

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.density.class_index import index_key
from pymc_mcoem.diagnostics import read_chains
from tests.helpers.markov import as_array, as_tree

CODES = np.array([[0, 2, 2, 0, 1], [1, 1, 0, 0, 2]])


@pytest.fixture
def log_weight():
    return np.log(np.full((*CODES.shape, 4), 0.25))


def test_arrays_datasets_and_trees_read_the_same():
    tree = as_tree(CODES)
    for data in (as_array(CODES), tree, tree["posterior"].to_dataset()):
        chains = read_chains(data)
        np.testing.assert_array_equal(chains.codes, CODES[None])
        np.testing.assert_array_equal(chains.classes, [0, 1, 2])
        assert chains.log_weight is None


def test_classes_are_all_those_the_step_weighed(log_weight):
    chains = read_chains(as_tree(CODES, log_weight))
    np.testing.assert_array_equal(chains.classes, [0, 1, 2, 3])
    assert chains.log_weight.shape == (1, 2, 5, 4)
    assert chains.consecutive
    assert not read_chains(as_tree(CODES, log_weight).isel(draw=slice(None, None, 2))).consecutive


def test_weights_of_something_else_are_left_alone(log_weight):
    tree = as_tree(CODES, log_weight)
    tree["sample_stats"]["class_of"][:] = index_key("another")
    assert read_chains(tree).log_weight is None
    assert read_chains(as_tree(CODES, log_weight[..., :2])).log_weight is None


def test_a_plate_has_a_row_for_each_index(rng):
    codes = rng.integers(3, size=(2, 6, 4))
    log_weight = np.log(rng.dirichlet(np.ones(3), size=(2, 6, 4)))
    chains = read_chains(as_tree(codes, log_weight.reshape(2, 6, 12)))
    np.testing.assert_array_equal(chains.codes, np.moveaxis(codes, 2, 0))
    np.testing.assert_allclose(chains.log_weight, np.moveaxis(log_weight, 2, 0))
    labeled = chains.label(np.zeros((4, 2, 3)), "chain", "class")
    assert labeled.dims == ("row", "chain", "class")
    assert chains.row_label(2) == "[row=2]"


def test_labels_may_be_any(rng):
    names = np.array(["b", "c", "a"])
    chains = read_chains(as_array(names[CODES]), classes=["a", "b", "c", "d"])
    np.testing.assert_array_equal(np.array(["a", "b", "c", "d"])[chains.codes[0]], names[CODES])
    np.testing.assert_array_equal(read_chains(as_array(CODES.astype(float))).codes[0], CODES)
    np.testing.assert_array_equal(read_chains(as_array(CODES > 0)).classes, [0, 1])
    chains = read_chains(as_array(CODES), classes=[2, 0, 1])
    np.testing.assert_array_equal(chains.classes[chains.codes[0]], CODES)


def test_the_only_integer_variable_is_the_index(rng, log_weight):
    posterior = as_tree(CODES, x=rng.normal(size=CODES.shape))["posterior"].to_dataset()
    renamed = posterior.rename(class_index="k")
    assert read_chains(renamed).name == "k"
    with pytest.raises(ValueError, match=r"var_name: got none, and there are 2 integer variables"):
        read_chains(renamed.assign(j=renamed["k"]))
    tree = as_tree(CODES, log_weight)
    tree["posterior"] = (
        tree["posterior"].to_dataset().rename(class_index="k").assign(j=as_array(CODES))
    )
    tree["sample_stats"]["class_of"][:] = index_key("k")
    assert read_chains(tree).name == "k"  # which a step drew
    with pytest.raises(ValueError, match=r"0 integer variables, \[\]; give draws that have a"):
        read_chains(renamed[["x"]])


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (CODES, {}, TypeError, "data: got a ndarray; give a DataTree"),
        (as_tree(CODES), {"var_name": "z"}, ValueError, "var_name: got 'z'"),
        (as_tree(CODES), {"group": "prior"}, ValueError, "group: got 'prior'"),
        (as_array(CODES), {"classes": [0, 1]}, ValueError, r"classes: got \[0, 1\]"),
        (as_array(CODES), {"classes": [0, 1, 2, 2]}, ValueError, "give every class once"),
        (as_array(CODES[:, :1]), {}, ValueError, "2 chains of 1 draws"),
        (as_array(CODES + 0.5), {}, TypeError, "not whole numbers"),
        (xr.DataArray(CODES, dims=("a", "draw")), {}, ValueError, "name those of chains"),
    ],
)
def test_what_is_refused(data, options, error, message):
    with pytest.raises(error, match=message):
        read_chains(data, **options)
