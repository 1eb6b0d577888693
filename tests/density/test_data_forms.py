"""Models as people write them: refusals by name, and forgotten blocks that are told."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_mcoem.carlin_chib.problem import density_of
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
        density_of(model, k, None, None)


def test_data_that_do_not_fit_are_named():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=5)
        x = pm.Normal("x", 2.0 * k, 1.0)
        pm.Normal("other", 0.0, 1.0, observed=np.ones(3))
        pm.Normal("y", x, 1.0, observed=np.ones(4))
    with pytest.raises(ValueError, match=r"model: y has data of shape \(4,\).*\(4,\), \(5,\)"):
        density_of(model, k, None, None)


@pytest.mark.filterwarnings("ignore:Data in y contains missing")
def test_missing_values_beside_blocks_have_their_density():
    """The missing points are a latent of another step, under the mean of the class."""
    missing = U > 0.4
    model = level_or_line(np.where(missing, np.nan, 0.3 * U))
    blocks = {0: ["a", "noise"], 1: ["b", "noise"]}
    density = BlockDensity(model, model["k"], blocks)
    a, b, log_noise = 0.4, np.array([-0.2, 0.7]), -0.3
    points = np.where(missing, [0.0, 0, 0, 0, 0, 0.9, -0.8, 0.1], 0.3 * U)
    point = {"a": a, "b": b, "noise_log__": log_noise}
    x = np.concatenate([np.atleast_1d(point[value.name]) for value in density.latent_values])
    value = model.rvs_to_values[model["y_unobserved"]]
    for j, mean in enumerate([np.full(8, a), b[0] + b[1] * U]):
        # Latents that are off have a standard normal in place of their prior, which is one too.
        priors = stats.norm.logpdf([a, *b]).sum() + np.log(0.5)
        priors += stats.halfnorm.logpdf(np.exp(log_noise)) + log_noise
        expected = priors + stats.norm.logpdf(points, mean, np.exp(log_noise)).sum()
        found = density.log_density(j, x).eval({value: points[missing]})
        np.testing.assert_allclose(found, expected)


def test_blocks_that_were_forgotten_are_told(caplog):
    model = level_or_line()
    with caplog.at_level("WARNING", "pymc_mcoem"):
        density_of(model, model["k"], None, None)
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


@pytest.mark.parametrize("shape", [None, 3])
@pytest.mark.parametrize("axis", [0, -1])
def test_latents_that_are_put_together_and_chosen_by_the_index_need_blocks(shape, axis):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a, b, c = (pm.Normal(name, shape=shape) for name in "abc")
        together = pm.math.stack([a, b], axis=axis)
        chosen = together[..., k] if axis else together[k]
        pm.Normal("y", chosen + c, 1.0, observed=np.full(3, 0.3))
    expected = {0: ["a", "c"], 1: ["b", "c"]}
    assert blocks_of_use(ClassDensity(model, k, [a, b, c])) == expected


def test_a_latent_under_the_prior_of_another_belongs_to_its_blocks():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        scale = pm.HalfNormal("scale")
        a = pm.Normal("a", 0.0, scale)
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 1), a, 0.0), 1.0, observed=U)
    found = blocks_of_use(ClassDensity(model, k, [scale, a]))
    # the prior of a looks at its scale in both classes
    assert found == {0: ["scale"], 1: ["scale", "a"]}
