"""Positions back on the model's scale: row by row what PyMC's own transforms give."""

import numpy as np
import pymc as pm
import pytest

from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.model_scale import ModelScale

N = 7


def interval():
    """Bounds by the class, by data and by another latent."""
    low, high = pm.Data("low", [-1.0, 2.0, 0.0]), pm.Data("high", [1.0, 5.0, 0.5])
    k = pm.Categorical("k", [0.2, 0.5, 0.3])
    a = pm.Normal("a", k)
    return k, [a, pm.Uniform("u", low[k], high[k] + a**2)]


def simplex():
    k = pm.Categorical("k", [0.2, 0.5, 0.3])
    return k, [pm.Dirichlet("share", np.ones((2, 4))), pm.HalfNormal("scale", shape=(2, 3))]


def ordered():
    k = pm.Bernoulli("k", 0.3)
    cuts = pm.Normal("cuts", shape=3, transform=pm.distributions.transforms.ordered)
    return k, [cuts, pm.ZeroSumNormal("effect", shape=4)]


def plain():
    k = pm.Categorical("k", [0.2, 0.5, 0.3])
    x = pm.Normal("x", k, shape=(2, 2))
    pm.Deterministic("square", x**2)
    return k, [x]


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("declare", [interval, simplex, ordered, plain])
def test_rows_are_those_of_the_models_own_transforms(declare, rng):
    with pm.Model() as model:
        k, latents = declare()
    density = ClassDensity(model, k, latents)
    values = [model.rvs_to_values[k], *density.latent_values]
    backward = model.compile_fn(
        model.replace_rvs_by_values(latents), inputs=values, on_unused_input="ignore"
    )
    index = rng.integers(density.n_classes, size=N)
    position = rng.normal(size=(N, density.n_latents))
    found = ModelScale(density)(index, position, {})
    assert list(found) == [rv.name for rv in latents]
    for row in range(N):
        point = density.unravel(position[row])
        point[values[0].name] = np.asarray(index[row], dtype=values[0].dtype)
        expected = backward(point)
        for name, value in zip(found, expected, strict=True):
            np.testing.assert_allclose(found[name][row], value, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("without_compiler")
def test_data_that_are_inputs_are_those_given(rng):
    with pm.Model() as model:
        k, latents = interval()
    density = ClassDensity(model, k, latents, inputs=["low"])
    to_model, position = ModelScale(density), rng.normal(size=(N, 2))
    index = np.zeros(N, dtype=int)
    near, far = (
        to_model(index, position, {"low": np.full(3, low)})["u"] for low in (-1.0, -1_000.0)
    )
    assert (near > -1.0).all()
    assert far.min() < -10.0
