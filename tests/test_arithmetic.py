"""Sums are taken as they are written, wherever a function is compiled."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode

from pymc_mcoem.arithmetic import StrictNumbaLinker, strict_mode
from pymc_mcoem.backends import backend_of
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.carlin_chib.test_processes import SHAPES


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
    build, settings = SHAPES[shape]
    with build() as model:
        step = CarlinChib(model=model, **settings)
    for made in (step, cloudpickle.loads(cloudpickle.dumps(step))):
        engine = made._engine
        if shape == "blocks":
            function = engine._inactive._function
            assert isinstance(function.maker.mode.linker, StrictNumbaLinker)
            assert fast_math(function) is False
        flat = engine._sweep._flat if shape == "plate" else engine._sweeps._value
        assert flat.function.targetoptions["fastmath"] is False


FACTORS = """
import numpy as np
from pymc_mcoem.newton_numba import factorise

rng = np.random.default_rng(1)
for n in [*range(3, 21)] * 5:
    root, upper = rng.standard_normal((n, n)), np.zeros((n, n))
    assert factorise(root @ root.T, np.eye(n), 0.02, upper)
    print(n, np.triu(upper).tobytes().hex())
"""


def test_a_factor_has_the_same_bits_where_its_function_is_found_compiled(tmp_path):
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "PYTENSOR_FLAGS": ",".join([*filter(None, [flags]), f"base_compiledir={tmp_path}"]),
    }
    found = [
        subprocess.run(
            [sys.executable, "-c", FACTORS], capture_output=True, text=True, env=environment
        )
        for _ in range(2)
    ]
    assert found[0].stdout, found[0].stderr
    assert found[0].stdout == found[1].stdout
