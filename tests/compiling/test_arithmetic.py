"""Sums are taken as they are written, wherever a function is compiled."""

from __future__ import annotations

import pickle

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from scipy import stats

from pymc_mcoem.compiling.arithmetic import StrictNumbaLinker, strict_mode
from pymc_mcoem.compiling.backends import backend_of, pytensor_mode
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.log_densities import LogDensities
from tests.helpers.step_shapes import made


def fast_math(function):
    """Return what the compiler may do with a function's sums."""
    return function.vm.jit_fn.targetoptions["fastmath"]


@pytest.mark.parametrize("mode", ["NUMBA", get_mode("NUMBA"), None])
def test_functions_stay_strict_when_they_are_sent_elsewhere(mode, rng):
    x = pt.vector("x")
    plain = pytensor.function([x], pt.exp(x).sum(), mode=mode)
    assert fast_math(plain)  # else there would be nothing to test
    strict = pytensor.function([x], pt.exp(x).sum(), mode=strict_mode(mode))
    sent = pickle.loads(pickle.dumps(strict))
    given = rng.normal(size=7)
    for function in (strict, sent):
        assert fast_math(function) is False
        np.testing.assert_allclose(function(given), np.exp(given).sum(), rtol=1e-13)


@pytest.mark.parametrize("mode", ["CVM", "JAX", "FAST_COMPILE"])
def test_other_modes_are_of_the_same_back_end(mode):
    if backend_of(mode) == "jax":
        assert strict_mode(mode) is mode
    assert backend_of(strict_mode(mode)) == backend_of(mode)


@pytest.mark.parametrize("backend", ["c", "numba", "jax"])
def test_an_integer_that_is_added_to_a_product_is_not_lost(backend, rng):
    x, y = rng.normal(size=(6, 2)), rng.normal(size=6)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.3, 0.3, 0.4])
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", pt.dot(pm.Data("x", x), b) + k, 1.5, observed=pm.Data("observed", y))
    b_value = rng.normal(size=2)
    density = LogDensities(ClassDensity(model, k, [b]), pytensor_mode(backend))
    classes = np.arange(3)
    found = density(classes, np.tile(b_value, (3, 1)), [])
    means = (x @ b_value)[:, None] + classes
    expected = stats.norm(means, 1.5).logpdf(y[:, None]).sum(axis=0)
    expected += np.log([0.3, 0.3, 0.4]) + stats.norm.logpdf(b_value).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("shape", ["shared", "blocks", "plate"])
def test_the_step_is_strict(shape):
    _, step = made(shape)
    for each in (step, cloudpickle.loads(cloudpickle.dumps(step))):
        engine = each._engine
        if shape == "blocks":
            function = engine._inactive._function
            assert isinstance(function.maker.mode.linker, StrictNumbaLinker)
            assert fast_math(function) is False
        flat = engine._sweeps._value
        assert flat.function.targetoptions["fastmath"] is False
