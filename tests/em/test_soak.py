"""A long run over a bad stream, killed at random: the clean run's bytes, and nothing grows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from tests.helpers.toy_families import NormalMixture, mixture_stream

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, os, resource, sys
import numpy as np
from pymc_mcoem.em import history
from pymc_mcoem.runs.checkpoint import Checkpoint
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from tests.helpers.long_streams import measured, records
from tests.helpers.toy_families import NormalMixture

path, log, seed, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
family = NormalMixture()
# A history that is full after 10,000 records: what grows from there on has no bound.
history.MAX_OBSERVATIONS = 1_000
if os.path.exists(path):
    em = OnlineEM.load(path, family, progressbar=False)
else:
    em = OnlineEM(
        family, e_step=Exact(), random_seed=1, progressbar=False, on_error="skip", n_start=20,
        keep=1_000,
    )
print("ready", flush=True)
em.partial_fit(
    measured(records(seed, size), log, em.position), checkpoint=Checkpoint(path, observations=2_000)
)
"""


def soak(tmp_path, rng, size: int, kills: int):
    """Run the script until it ends, killed `kills` times; return its run and what was measured."""
    path, log = tmp_path / "run.nc", tmp_path / "log.txt"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, str(path), str(log), "5", str(size)]
    killed = 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"ready\n"
            if killed < kills:
                time.sleep(rng.uniform(1.0, 6.0))
                process.kill()
            process.wait()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        killed += 1
    em = OnlineEM.load(path, NormalMixture(), progressbar=False)
    return em, [json.loads(line) for line in log.read_text().splitlines()], killed


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_a_hundred_thousand_observations_with_kills_and_broken_records(tmp_path, rng):
    size = 100_000
    em, rows, killed = soak(tmp_path, rng, size, kills=6)
    assert killed >= 3
    assert em.n_seen == size
    n_broken = em.position - size
    assert 9_000 < n_broken < 11_000
    assert em.history["skipped"].sizes["position"] == 1_000

    clean = OnlineEM(NormalMixture(), e_step=Exact(), random_seed=1, progressbar=False, n_start=20)
    clean.partial_fit(mixture_stream(np.random.default_rng(5), size))
    assert em.parameters.identical(clean.parameters)

    # Of each process that lived long enough: no more memory at its end than after its first
    # 10,000 records, but for a tenth of what it has, and as many open files.
    judged = 0
    for pid in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == pid][2:]
        if len(own) > 2:
            judged += 1
            assert own[-1][2] < 1.1 * own[0][2]
            assert max(row[3] for row in own) <= own[0][3]
    assert judged
