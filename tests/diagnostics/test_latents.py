"""Latents are summarized where their class is active, with the error that gaps bring."""

import warnings

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.density.class_index import index_key
from pymc_mcoem.diagnostics import ClassIndexWarning, class_index_summary, class_latents
from tests.helpers.markov import SAME_AUTOCORRELATION, as_tree
from tests.helpers.toy_carlin_chib import toy_carlin_chib


def test_draws_of_other_classes_do_not_enter(rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 4, 1000)
    means = np.array([-3.0, 0.0, 5.0])
    x = rng.normal(means[codes])
    found = class_latents(as_tree(codes, x=x))
    np.testing.assert_allclose(found["active"], [np.mean(codes == k) for k in range(3)])
    for k in range(3):
        here = x[codes == k]
        table = found["x"].sel({"class": k})
        assert table.sel(summary="mean") == pytest.approx(here.mean())
        assert table.sel(summary="sd") == pytest.approx(here.std(ddof=1))
        bounds = table.sel(summary=["lower", "upper"])
        np.testing.assert_allclose(bounds, np.quantile(here, [0.03, 0.97]))
        # Draws are independent given the class: the error is that of as many draws.
        assert table.sel(summary="mcse_mean") == pytest.approx(1 / np.sqrt(len(here)), rel=0.3)


def test_the_error_is_that_of_repeated_runs(rng):
    # A latent that stays as long as its class does not: dependence within visits counts.
    means, errors = [], []
    for _ in range(60):
        codes = SAME_AUTOCORRELATION.draw(rng, 4, 400)
        fresh = rng.normal(size=codes.shape)
        same = np.diff(codes, axis=1, prepend=-1) == 0
        x = fresh.copy()
        for t in range(1, codes.shape[1]):
            x[:, t] = np.where(same[:, t], x[:, t - 1], fresh[:, t])
        found = class_latents(as_tree(codes, x=x))["x"]
        means.append(found.sel(summary="mean").values)
        errors.append(found.sel(summary="mcse_mean").values)
    spread = np.std(means, axis=0, ddof=1)
    # A standard deviation of 60 runs is known to 4 / sqrt(118) at four standard errors.
    np.testing.assert_allclose(np.mean(errors, axis=0), spread, rtol=4 / np.sqrt(118))


def test_latents_of_blocks_and_of_arrays(rng):
    codes = rng.integers(2, size=(2, 50))
    tree = as_tree(codes, a=rng.normal(size=codes.shape), b=rng.normal(size=(*codes.shape, 3)))
    found = class_latents(tree, blocks={0: ["a"], 1: ["b"]})
    assert found["b"].dims == ("class", "summary", "b_dim_0")
    assert np.isfinite(found["a"].sel({"class": 0})).all()
    assert np.isnan(found["a"].sel({"class": 1})).all()
    assert np.isnan(found["b"].sel({"class": 0})).all()
    wanted = tree["posterior"]["b"].values[codes == 1].mean(axis=0)
    np.testing.assert_allclose(found["b"].sel({"class": 1, "summary": "mean"}), wanted)


def test_a_plate_masks_each_row_by_its_own_index(rng):
    codes = rng.integers(2, size=(2, 40, 3))
    x = xr.DataArray(rng.normal(size=(2, 40, 3)), dims=("chain", "draw", "row"))
    tree = as_tree(codes, z=rng.normal(size=(2, 40)))
    tree["posterior"] = tree["posterior"].to_dataset().assign(x=x)
    found = class_latents(tree)
    assert set(found) == {"active", "x"}
    assert found["x"].dims == ("row", "class", "summary")
    wanted = x.values[..., 1][codes[..., 1] == 0].mean()
    assert found["x"].sel({"row": 1, "class": 0, "summary": "mean"}) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="latents: got 'z'"):
        class_latents(tree, latents=["z"])
    with pytest.raises(ValueError, match="latents: got 'z'"):
        class_index_summary(tree, latents=["z"])


@pytest.mark.parametrize("names", [("k_dim_0", "x_dim_0"), ("row", "x_dim_0"), ("k_dim_0", "row")])
def test_a_plate_whose_dimensions_have_no_names(names, rng):
    """PyMC names them by number, the index's otherwise than the latent's."""
    k, x = rng.integers(2, size=(2, 40, 3)), rng.normal(size=(2, 40, 3, 2))
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(
                {
                    "k": (("chain", "draw", names[0]), k),
                    "x": (("chain", "draw", names[1], "x_dim_1"), x),
                    # along something else
                    "z": (("chain", "draw", "z_dim_0"), x[:, :, :2, 0]),
                },
            )
        }
    )
    found = class_latents(tree, "k")
    assert set(found) == {"active", "x"}
    assert found["x"].dims == (names[0], "class", "summary", "x_dim_1")
    wanted = x[:, :, 1, 1][k[..., 1] == 0].mean()
    mean = found["x"].sel({"class": 0, "summary": "mean"}).isel({names[0]: 1, "x_dim_1": 1})
    assert mean == pytest.approx(wanted)


@pytest.mark.parametrize("spread", [1.1, 0.5], ids=["good", "narrow"])
def test_a_narrow_pseudo_prior_asks_more_of_the_mixing_of_its_latents(spread, rng):
    """The share of a class is only right then if its latents go everywhere by themselves."""
    codes, log_weight, _, _ = toy_carlin_chib(rng, 4, 4000, [0.9, 0.1], [0.0] * 2, [1.1, spread])
    slow = np.zeros(codes.shape)
    for t in range(1, codes.shape[1]):
        slow[:, t] = 0.98 * slow[:, t - 1] + 0.2 * rng.standard_normal(len(codes))
    x = np.where(codes == 1, slow, rng.standard_normal(codes.shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        found = class_index_summary(as_tree(codes, log_weight, x=x))
    # some 135 of 1,600 draws of the class are effective; 160 are asked of it, or a quarter of that
    is_asked = any(
        "x in class 1 has" in flag and "effective draws," in flag for flag in found.flags
    )
    assert is_asked == (spread < 1)


def test_a_class_hardly_visited_has_no_summary(rng):
    codes = np.zeros((2, 20), dtype=int)
    codes[0, 3] = 1
    found = class_latents(as_tree(codes, x=rng.normal(size=codes.shape)))
    assert np.isnan(found["x"].sel({"class": 1})).all()
    assert found["active"].sel({"class": 1}) == pytest.approx(1 / 40)


def test_a_latent_whose_tail_is_one_value_is_summarized(rng):
    """As of a chain that stood still at its end for a while."""
    codes = rng.integers(2, size=(4, 500))
    x = rng.normal(size=codes.shape)
    x[0, :400] = 9.0
    with pytest.warns(ClassIndexWarning, match="in class . has an R-hat"):
        summary = class_index_summary(as_tree(codes, x=x))
    assert (summary.table["latent_rhat"] > 1.1).all()


def test_what_is_refused(rng):
    tree = as_tree(rng.integers(2, size=(2, 20)), x=rng.normal(size=(2, 20)))
    with pytest.raises(ValueError, match=r"probability: got 1.5"):
        class_latents(tree, probability=1.5)
    with pytest.raises(ValueError, match=r"blocks: got classes \[7\]"):
        class_latents(tree, blocks={7: ["x"]})
    with pytest.raises(ValueError, match="latents: got 'y'"):
        class_latents(tree, latents=["y"])


def test_an_index_beside_a_tilted_one_is_weighed_back(rng):
    """The latent of j is near k's mean, and k, of weight 0.02 in its class 1, is visited evenly."""
    n_chains, n_draws, equalizing_log_weight = 4, 4_000, np.log(np.array([0.5 / 0.98, 0.5 / 0.02]))
    k = rng.integers(2, size=(n_chains, n_draws))
    j = rng.integers(2, size=k.shape)
    x = 10.0 * k + rng.standard_normal(k.shape)
    dims = ("chain", "draw")
    posterior = xr.Dataset({"k": (dims, k), "j": (dims, j), "x": (dims, x)})
    stats = xr.Dataset(
        {
            "class_log_weight": ((*dims, "class"), np.log(np.full((*k.shape, 2), 0.5))),
            "class_of": (dims, np.full(k.shape, index_key("k"))),
            "class_equalizing_of": (dims, np.full(k.shape, index_key("k"))),
            "class_log_importance": (dims, -equalizing_log_weight[k]),
            "class_equalizing_log_weight": (
                (*dims, "class"),
                np.tile(equalizing_log_weight, (*k.shape, 1)),
            ),
        }
    )
    tree = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})
    of_j = class_latents(tree, "j")["x"]
    error = of_j.sel(summary="mcse_mean")
    assert (np.abs(of_j.sel(summary="mean") - 0.2) < 5 * error).all()
    assert (error < 0.1).all()
    # ninety-seven in a hundred of the posterior are about zero
    assert (of_j.sel(summary="lower") > -3).all() and (of_j.sel(summary="upper") < 3).all()
    np.testing.assert_allclose(of_j.sel(summary="sd"), np.sqrt(1 + 100 * 0.98 * 0.02), rtol=0.15)
    # given its class, k itself needs no weighing
    of_k = class_latents(tree, "k")["x"].sel(summary="mean")
    np.testing.assert_allclose(of_k, [x[k == 0].mean(), x[k == 1].mean()], rtol=1e-6)


def test_an_index_that_is_tilted_itself_is_weighed_back_by_the_other_alone(rng):
    """Of four joint values all are visited evenly, and x is about 10 where j is in class 1."""
    joint = np.array([[0.90, 0.04], [0.04, 0.02]])
    tilt_k, tilt_j = (np.log(0.5 / joint.sum(axis=axis)) for axis in (1, 0))
    tilted = joint * np.exp(tilt_k[:, None] + tilt_j)
    drawn = rng.choice(4, p=(tilted / tilted.sum()).ravel(), size=(4, 4_000))
    k, j = drawn // 2, drawn % 2
    x = 10.0 * j + rng.standard_normal(k.shape)
    dims = ("chain", "draw", "tilted")
    # probabilities of k given j and of j given k, as the steps draw from
    of_k, of_j = (tilted / tilted.sum(axis=0)).T[j], (tilted / tilted.sum(axis=1)[:, None])[k]
    key = np.broadcast_to([index_key("k"), index_key("j")], (*k.shape, 2))
    stats = xr.Dataset(
        {
            "class_log_weight": ((*dims, "class"), np.log(np.stack([of_k, of_j], axis=2))),
            "class_of": (dims, key),
            "class_equalizing_of": (dims, key),
            "class_log_importance": (dims, np.stack([-tilt_k[k], -tilt_j[j]], axis=-1)),
            "class_equalizing_log_weight": (
                (*dims, "class"),
                np.broadcast_to([tilt_k, tilt_j], (*k.shape, 2, 2)),
            ),
        }
    )
    posterior = xr.Dataset({"k": (dims[:2], k), "j": (dims[:2], j), "x": (dims[:2], x)})
    tree = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})
    of_k = class_latents(tree, "k")["x"]
    exact = 10.0 * joint[:, 1] / joint.sum(axis=1)
    error = of_k.sel(summary="mcse_mean")
    assert (np.abs(of_k.sel(summary="mean") - exact) < 5 * error).all()
    assert (error < 0.2).all()
