"""mpi4py's executor, in a job of three processes: the same bytes as one process alone."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.toy_families import mixture_stream

ROOT = Path(__file__).resolve().parents[2]
BESIDE = Path(sys.executable).parent / "mpiexec"
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"
    ),
    pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec, of MPICH or Open MPI"),
]

SCRIPT = """
import signal
import sys

import numpy as np
from mpi4py.futures import MPIPoolExecutor

from pymc_mcoem.em.saem import SAEM
from tests.helpers.pressing import Pressing
from tests.helpers.toy_families import Failing
from tests.helpers.toy_families import NormalMixture
from tests.helpers.toy_runs import THETA, assert_same, driver


def online(values, executor):
    settings = {"parameters": THETA, "batch_size": 6, "on_error": "skip", "e_step": Failing()}
    return driver(NormalMixture(), **settings, executor=executor).partial_fit(values)


def batch(values, executor):
    settings = {"parameters": THETA, "on_error": "skip", "e_step": Failing(), "random_seed": 1}
    saem = SAEM(NormalMixture(), **settings, progressbar=False, executor=executor)
    return saem.fit(values, 4)


def interrupted(values, executor):
    # Ctrl-C reaches the driver as it reads, and each worker in compiled code
    pressed = {"in the driver": 0, "raised": 0}

    class Source:
        def __len__(self):
            return len(values)

        def __getitem__(self, index):
            if index in (13, 40) and pressed["in the driver"] < 2:
                pressed["in the driver"] += 1
                signal.raise_signal(signal.SIGINT)
            return values[index]

    settings = {"parameters": THETA, "batch_size": 6, "on_error": "skip"}
    run = driver(NormalMixture(), **settings, e_step=Pressing(presses={9: 1}), executor=executor)
    while run.position < len(values):
        try:
            run.partial_fit(Source(), skip=run.position)
        except KeyboardInterrupt:
            pressed["raised"] += 1
    assert pressed["in the driver"] == 2 and 2 <= pressed["raised"] <= 4, pressed
    assert_same(run, driver(NormalMixture(), **settings).partial_fit(values))


if __name__ == "__main__":
    values = np.load(sys.argv[1])
    with MPIPoolExecutor() as executor:
        found, fitted = online(values, executor), batch(values, executor)
        n_workers = executor.num_workers
    assert_same(found, online(values, None))
    assert found.history["skipped"].identical(online(values, None).history["skipped"])
    assert fitted.parameters.identical(batch(values, None).parameters)
    with MPIPoolExecutor() as executor:
        interrupted(values[values < 800], executor)
    print("the same with", n_workers)
"""


def test_a_job_of_three_gives_the_same_bytes(rng, tmp_path):
    values = mixture_stream(rng, 60)
    # one that a worker fails at
    np.save(tmp_path / "values.npy", np.insert(values, 20, 888.0))
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [MPIEXEC, "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    found = subprocess.run(
        [*command, str(tmp_path / "script.py"), str(tmp_path / "values.npy")],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.strip().endswith("the same with 2")
