"""Whose statistics are whose, where chains hold more than one index, or jumps without weight."""

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


def test_draws_weigh_by_the_tilted_index_whatever_is_summarised(two_indices):
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
    # older runs do not say whose a tilt is
    stats = one_tilted["sample_stats"].to_dataset().drop_vars("class_of")
    joined = np.stack([stats[f"class_log_weight_{name}"].values for name in ("k", "j")], axis=2)
    stats["class_log_weight"] = (("chain", "draw", "step", "class"), joined)
    with pytest.raises(ValueError, match="2 steps drew class indices, of which 1 with"):
        read_statistics(stats, own.codes)


def test_indices_that_stood_still_alike_keep_their_own_weights(rng):
    """Two indices with the same draws: the statistics say whose they are, or nobody knows."""
    codes = np.zeros((N_CHAINS, N_DRAWS), dtype=int)
    both = np.log(np.stack([np.full((*codes.shape, 2), 0.5), np.full((*codes.shape, 2), 0.1)], 2))
    key = np.broadcast_to([index_key("k"), index_key("j")], (*codes.shape, 2))
    dims = ("chain", "draw", "step")
    kept = xr.Dataset(
        {
            "class_log_weight": ((*dims, "class"), both),
            "class_drawn": (dims, np.stack([codes, codes], axis=-1)),
        }
    )
    named = kept.assign(class_of=(dims, key))
    for step, name in enumerate("kj"):
        found = read_statistics(named, codes[None], name).log_weight
        np.testing.assert_array_equal(found[0], both[:, :, step])
    assert read_statistics(named, codes[None], "another").log_weight is None
    assert read_statistics(kept, codes[None], "k").log_weight is None


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


def statistics(codes, log_weight, **more):
    dims = ("chain", "draw")
    return xr.Dataset(
        {
            "class_log_weight": ((*dims, "class"), log_weight),
            **{n: (dims, v) for n, v in more.items()},
        }
    )


def test_a_jump_to_where_there_was_no_weight_keeps_the_tilt(rng):
    """Annealed jumps end where the draw by weight before them could not."""
    codes = rng.integers(2, size=(N_CHAINS, N_DRAWS))
    log_weight = np.log(np.full((N_CHAINS, N_DRAWS, 2), 0.5))
    log_weight[0, 3, codes[0, 3]] = -np.inf
    tilt = np.empty(codes.shape, dtype=object)
    for place in np.ndindex(codes.shape):
        tilt[place] = np.array([0.0, 1.5])
    kept = statistics(codes, log_weight, class_equalizing_log_weight=tilt, class_drawn=codes)
    found = read_statistics(kept, codes[None])
    np.testing.assert_array_equal(found.log_importance, -1.5 * codes)
    assert found.log_weight is not None and found.equalizing_log_weight is not None
    # without the index beside them it is not known whose they are
    assert read_statistics(kept.drop_vars("class_drawn"), codes[None]).log_weight is None


def test_rows_of_a_plate_are_told_from_several_steps(rng):
    codes = rng.integers(3, size=(2, N_CHAINS, N_DRAWS))
    by_draw = np.moveaxis(codes, 0, -1)
    log_weight = np.log(np.full((N_CHAINS, N_DRAWS, 6), 1 / 3))
    dims = ("chain", "draw")
    kept = xr.Dataset(
        {
            "class_log_weight": ((*dims, "entry"), log_weight),
            "class_drawn": ((*dims, "row"), by_draw.astype(object)),
        }
    )
    assert read_statistics(kept, codes).log_weight.shape == (2, N_CHAINS, N_DRAWS, 3)
    assert read_statistics(kept, codes[::-1]).log_weight is None
