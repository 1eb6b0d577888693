"""Sums are taken as they are written, wherever a function is compiled."""

from __future__ import annotations

import pickle

import cloudpickle
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode

from pymc_mcoem.compiling.arithmetic import StrictNumbaLinker, strict_mode
from pymc_mcoem.compiling.backends import backend_of
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
def test_other_modes_are_as_they_were(mode):
    if backend_of(mode) != "numba":
        assert strict_mode(mode) is mode
    assert backend_of(strict_mode(mode)) == backend_of(mode)


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
