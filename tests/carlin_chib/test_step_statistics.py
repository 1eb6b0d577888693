"""Whose statistics are whose, where chains hold more than one index."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_mcoem as mcoem
from pymc_mcoem.carlin_chib.step_statistics import read_prior, read_statistics
from pymc_mcoem.density.class_index import index_key
from pymc_mcoem.diagnostics import class_index_summary, read_chains

N_CHAINS, N_DRAWS = 2, 30


def sample(step, draws=60):
    return pm.sample(
        step=step,
        tune=40,
        draws=draws,
        chains=N_CHAINS,
        random_seed=3,
        cores=1,
        progressbar=False,
        compute_convergence_checks=False,
    )


@pytest.fixture(scope="module")
def two_indices():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.9, 0.1])
        x = pm.Normal("x", 1.0 * k, 1.0)
        j = pm.Categorical("j", [0.25, 0.75])
        z = pm.Normal("z", 1.0 * j, 1.0)
        pm.Normal("y", x + z, 1.0, observed=0.5)
    return model, (k, x), (j, z)


def make(variables, **options):
    return mcoem.CarlinChib(
        list(variables),
        class_index=variables[0],
        within_class=mcoem.moves.RandomWalk(n_moves=1),
        **options,
    )


def test_weights_are_those_of_the_index_that_was_drawn_by_them(two_indices):
    model, first, second = two_indices
    with model:
        tree = sample(
            [make(first), pm.CategoricalGibbsMetropolis([second[0]]), pm.NUTS([second[1]])]
        )
    assert read_chains(tree, "k").log_weight is not None
    assert read_chains(tree, "j").log_weight is None


def test_draws_weigh_by_the_tilted_index_whatever_is_summarized(two_indices):
    model, first, second = two_indices
    with model:
        step = make(first, equalize_visits=True)
        tree = sample([step, pm.CategoricalGibbsMetropolis([second[0]]), pm.NUTS([second[1]])])
    own, other = read_chains(tree, "k"), read_chains(tree, "j")
    assert own.equalizing_log_weight is not None and other.equalizing_log_weight is None
    k = tree["posterior"]["k"].values
    tilt = np.array(
        tree["sample_stats"]["class_equalizing_log_weight"].values.tolist(), dtype=float
    )
    weight = np.exp(-np.take_along_axis(tilt, k[..., None], axis=-1)[..., 0])
    expected = weight / weight.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(own.weights, expected)
    np.testing.assert_allclose(other.weights, expected)
    share = (expected * (tree["posterior"]["j"].values == 0)).mean()
    with pytest.warns(UserWarning, match="effective sample size"):
        table = class_index_summary(tree, "j").table
    np.testing.assert_allclose(table["share"][0], share)


def test_two_steps_keep_their_own(two_indices, tmp_path):
    model, first, second = two_indices
    with model:
        tree = sample([make(first), make(second)])
    # PyMC makes objects of vectors under one name, which no file takes
    tree.to_netcdf(tmp_path / "two.nc", engine="h5netcdf")
    tree = xr.open_datatree(tmp_path / "two.nc", engine="h5netcdf").load()
    priors = {"k": [0.9, 0.1], "j": [0.25, 0.75]}
    for name, prior in priors.items():
        np.testing.assert_allclose(read_prior(tree["sample_stats"], tree["posterior"][name]), prior)
    weights = {name: read_chains(tree, name).log_weight for name in ("k", "j")}
    assert all(found.shape == (1, N_CHAINS, 60, 2) for found in weights.values())
    assert not np.allclose(weights["k"], weights["j"])
    with model:
        one_tilted = sample([make(first), make(second, equalize_visits=True)])
    own, other = read_chains(one_tilted, "j"), read_chains(one_tilted, "k")
    assert own.equalizing_log_weight is not None and other.equalizing_log_weight is None
    np.testing.assert_array_equal(own.weights, other.weights)


def test_indices_that_stood_still_alike_keep_their_own_weights():
    codes = np.zeros((N_CHAINS, N_DRAWS), dtype=int)
    both = np.log(np.stack([np.full((*codes.shape, 2), 0.5), np.full((*codes.shape, 2), 0.1)], 2))
    key = np.broadcast_to([index_key("k"), index_key("j")], (*codes.shape, 2))
    dims = ("chain", "draw", "step")
    stats = xr.Dataset({"class_log_weight": ((*dims, "class"), both), "class_of": (dims, key)})
    for step, name in enumerate("kj"):
        found = read_statistics(stats, codes[None], name).log_weight
        np.testing.assert_array_equal(found[0], both[:, :, step])
    for name in ("another", None):
        assert read_statistics(stats, codes[None], name).log_weight is None


def test_a_plate_beside_a_single_index(without_compiler):
    with pm.Model():
        rows = pm.Categorical("rows", [0.5, 0.5], shape=3)
        x = pm.Normal("x", 1.0 * rows, 1.0, shape=3)
        j = pm.Categorical("j", [0.25, 0.75])
        z = pm.Normal("z", 1.0 * j, 1.0)
        pm.Normal("y", x + z, 1.0, observed=np.zeros(3))
        tree = sample([make((rows, x)), make((j, z))], draws=5)
    assert read_chains(tree, "rows").log_weight.shape == (3, N_CHAINS, 5, 2)
    assert read_chains(tree, "j").log_weight.shape == (1, N_CHAINS, 5, 2)
