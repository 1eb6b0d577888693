"""A run that compiles, one that finds it compiled, and one in several processes learn the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import hashlib
import sys

import numpy as np
import pymc_mcoem as mcoem

if __name__ == "__main__":
    rng = np.random.default_rng(3)
    if sys.argv[1] == "images":
        mixture = mcoem.TemplateMixture.for_images((5, 4), n_classes=3, n_landmarks=2)
        stream = rng.normal(size=(10, 5, 4))
    else:
        mixture = mcoem.TemplateMixture.for_curves(np.arange(8.0), n_classes=2, coefficients="real")
        stream = rng.normal(size=(10, 8))
    em = mcoem.OnlineEM(
        mixture,
        random_seed=1,
        n_start=5,
        batch_size=5,
        burst_length=mcoem.schedules.BurstLength(10, 5),
        executor=int(sys.argv[2]) or None,
        progressbar=False,
    ).partial_fit(stream)
    learned = [np.ascontiguousarray(value).tobytes() for value in em.parameters.values()]
    print(hashlib.sha256(b"".join(learned)).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "curves"])
def test_who_compiles_learns_as_those_who_find_it_compiled(kind, tmp_path):
    (script := tmp_path / "script.py").write_text(SCRIPT)

    def learned(folder, n_workers):
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PYTENSOR_FLAGS": f"base_compiledir={tmp_path / folder}",
        }
        done = subprocess.run(
            [sys.executable, str(script), kind, str(n_workers)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr[-2_000:]
        return done.stdout.split()[-1]

    cold, warm, by_several = learned("one", 0), learned("one", 0), learned("another", 2)
    assert cold == warm == by_several
