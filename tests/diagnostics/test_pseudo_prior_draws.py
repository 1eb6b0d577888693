"""Draws of pseudo-priors against posteriors that are normal, and known."""

from __future__ import annotations

import json

import numpy as np
import pymc as pm
import pytest

from pymc_mcoem.diagnostics import pseudo_prior_draws

N = 2000


def test_where_the_posterior_is_normal_they_are_draws_of_it():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 3.0 * k, 1.0)
        pm.LogNormal("scale", 0.5 * k, 0.4)
        pm.Normal("y", x, 1.0, observed=1.0)
    found = pseudo_prior_draws(model, draws=N, random_seed=3)
    assert dict(found.sizes) == {"class": 2, "sample": N}
    # x given k is Normal((3 k + 1) / 2, 1 / 2); log scale is normal on the scale of sampling
    for name, mean, sd in (("x", [0.5, 2.0], np.sqrt(0.5)), ("scale", [0.0, 0.5], 0.4)):
        values = np.log(found[name]) if name == "scale" else found[name]
        error = 5 * sd / np.sqrt(N)
        np.testing.assert_allclose(values.mean("sample"), mean, atol=error)
        np.testing.assert_allclose(values.std("sample"), sd, atol=error)


def test_blocks_leave_latents_out():
    with pm.Model(coords={"term": ["a", "b"]}) as model:
        k = pm.Categorical("k", [0.5, 0.5])
        level = pm.Normal("level")
        line = pm.Normal("line", dims="term")
        mean = pm.math.switch(pm.math.eq(k, 0), level, line[0] + line[1])
        pm.Normal("y", mean, 1.0, observed=1.0)
    found = pseudo_prior_draws(model, blocks={0: [level], 1: [line]}, draws=10)
    again = pseudo_prior_draws(
        model,
        blocks={0: [level], 1: [line]},
        draws=10,
        random_seed=json.loads(found.attrs["random_seed"]),
    )
    assert again.identical(found)
    assert found["line"].dims == ("class", "sample", "term")
    assert found["term"].values.tolist() == ["a", "b"]
    for name, active in (("level", 0), ("line", 1)):
        assert np.isfinite(found[name].sel({"class": active})).all()
        assert np.isnan(found[name].sel({"class": 1 - active})).all()


def test_what_they_are_not_for_is_refused():
    with pm.Model() as model:
        pm.Categorical("k", [0.5, 0.5], shape=3)
    with pytest.raises(ValueError, match="plate"):
        pseudo_prior_draws(model)
    with pytest.raises(ValueError, match="draws: got 1"):
        pseudo_prior_draws(model, draws=1)
