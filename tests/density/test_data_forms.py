"""Models as people write them: refusals by name, and forgotten blocks that are told."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_mcoem.carlin_chib.problem import make_engine
from pymc_mcoem.density.blocks import BlockDensity
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.unused_latents import blocks_of_use
from tests.helpers.models import SkewedMixture

U = np.linspace(-1, 1, 8)


def level_or_line(observed=0.3 * U):
    """Return a model of a level or a line, with noise of both."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a, b = pm.Normal("a"), pm.Normal("b", shape=2)
        noise = pm.HalfNormal("noise")
        mean = pm.math.switch(pm.math.eq(k, 0), a, b[0] + b[1] * U)
        pm.Normal("y", mean, noise, observed=observed)
    return model


def test_mini_batches_are_refused():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a = pm.Normal("a", k)
        batch = pm.Minibatch(U, batch_size=2)
        pm.Normal("y", a, 1.0, observed=batch, total_size=len(U))
    with pytest.raises(ValueError, match=r"model: y takes pm\.Minibatch.* all the data"):
        make_engine(model, k, None, None)


@pytest.mark.filterwarnings("ignore:Data in y contains missing")
def test_missing_values_beside_blocks_are_refused_with_a_remedy():
    model = level_or_line(np.where(U > 0.8, np.nan, U))
    message = r"blocks: y has missing values, NaN in observed.*Leave the missing points out"
    with pytest.raises(ValueError, match=message):
        BlockDensity(model, model["k"], {0: ["a", "noise"], 1: ["b", "noise"]})


def test_blocks_that_were_forgotten_are_told(caplog):
    model = level_or_line()
    with caplog.at_level("WARNING", "pymc_mcoem"):
        make_engine(model, model["k"], None, None)
    assert "blocks={0: ['a', 'noise'], 1: ['b', 'noise']}" in caplog.text


def test_a_model_that_does_not_choose_is_not_rewritten(monkeypatch):
    """Rewriting a large model once for each class would take seconds."""

    def rewritten(*_, **__):
        raise AssertionError("rewritten")

    monkeypatch.setattr("pymc_mcoem.density.unused_latents.rewrite_graph", rewritten)
    family = SkewedMixture()
    density = ClassDensity(family.model, family.class_index, family.model.free_RVs[1:])
    assert blocks_of_use(density) == {}
    model = level_or_line()
    with pytest.raises(AssertionError, match="rewritten"):
        blocks_of_use(ClassDensity(model, model["k"], model.free_RVs[1:]))


@pytest.mark.parametrize("choose", ["index", "switch of data"])
def test_latents_that_all_classes_share_need_no_blocks(choose):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 2.0 * k)
        mean = x * pm.math.stack([1.0, 2.0])[k]
        if choose == "switch of data":
            mean = pm.math.switch(U > 0, x, -x + k)
        pm.Normal("y", mean, 1.0, observed=U)
    assert blocks_of_use(ClassDensity(model, k, [x])) == {}


def test_a_latent_under_the_prior_of_another_belongs_to_its_blocks():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        scale = pm.HalfNormal("scale")
        a = pm.Normal("a", 0.0, scale)
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 1), a, 0.0), 1.0, observed=U)
    found = blocks_of_use(ClassDensity(model, k, [scale, a]))
    # the prior of a looks at its scale in both classes
    assert found == {0: ["scale"], 1: ["scale", "a"]}
