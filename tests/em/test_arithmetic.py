"""The bytes of a run do not depend on what the compiler's cache on disk holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytensor
import pytest

from pymc_mcoem.classification import scores as class_scores
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.templates import TemplateMixture
from tests.helpers.toy_families import Noisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import driver

ROOT = Path(__file__).resolve().parents[2]


class Asking:
    """An E-step, and a family, that note how PyTensor would compile for them."""

    def __init__(self):
        self.found = []

    def compile(self, family):
        self.found.append(pytensor.config.numba__fastmath)
        return Noisy().compile(family)

    def class_probability(self, *_, **__):
        raise NotImplementedError


def test_whatever_is_compiled_keeps_sums_as_they_are_written(rng, monkeypatch):
    values, asking = mixture_stream(rng, 20), Asking()

    class Starting(NormalMixture):
        def initialize(self, *arguments):
            asking.found.append(pytensor.config.numba__fastmath)
            return super().initialize(*arguments)

    with pytensor.config.change_flags(numba__fastmath=True):
        driver(Starting(), e_step=asking, n_start=5).partial_fit(values)
        SAEM(Starting(), e_step=asking, progressbar=False).fit(values, 1)
        compiled_for(NormalMixture(), asking)
        mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        with pytest.raises(TypeError, match="gives no class probabilities"):
            asking.compile = lambda family: asking.found.append(pytensor.config.numba__fastmath)
            class_scores.compile_class_weights(mixture, asking)
        assert asking.found == [False] * 6
        assert pytensor.config.numba__fastmath


SCRIPT = """
import hashlib
import sys

import numpy as np
from tests.helpers.template_runs import templates

rng = np.random.default_rng(5)
images = rng.normal(size=(24, 6, 6)) + rng.choice([0.0, 2.0], size=(24, 1, 1))
images[5, 2:4] = np.nan
state = templates("none.nc").partial_fit(images).run.state
for arrays in (state.parameters, state.statistics):
    together = b"".join(arrays[name].tobytes() for name in sorted(arrays))
    print(hashlib.sha256(together).hexdigest())
"""


@pytest.mark.slow
def test_a_process_that_finds_everything_compiled_ends_with_the_same_bytes(tmp_path):
    """The first compiles all, which takes minutes; the second finds most of it in the cache."""
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTENSOR_FLAGS": ",".join([*filter(None, [flags]), f"base_compiledir={tmp_path}"]),
    }
    found = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            cwd=tmp_path,
        ).stdout
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == 2
