"""Latents are summarised where their class is active, with the error that gaps bring."""

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.diagnostics import class_latents
from tests.helpers.markov import SAME_AUTOCORRELATION, as_tree


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


def test_a_class_hardly_visited_has_no_summary(rng):
    codes = np.zeros((2, 20), dtype=int)
    codes[0, 3] = 1
    found = class_latents(as_tree(codes, x=rng.normal(size=codes.shape)))
    assert np.isnan(found["x"].sel({"class": 1})).all()
    assert found["active"].sel({"class": 1}) == pytest.approx(1 / 40)


def test_what_is_refused(rng):
    tree = as_tree(rng.integers(2, size=(2, 20)), x=rng.normal(size=(2, 20)))
    with pytest.raises(ValueError, match=r"probability: got 1.5"):
        class_latents(tree, probability=1.5)
    with pytest.raises(ValueError, match=r"blocks: got classes \[7\]"):
        class_latents(tree, blocks={7: ["x"]})
    with pytest.raises(ValueError, match="latents: got 'y'"):
        class_latents(tree, latents=["y"])
