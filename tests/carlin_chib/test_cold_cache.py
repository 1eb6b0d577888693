"""The process that compiles a step, its workers and a later process draw the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.step_shapes import SHAPES

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import hashlib
import logging
import sys

import numpy as np
from tests.helpers.step_shapes import sample

if __name__ == "__main__":
    logging.getLogger("pymc").setLevel(logging.ERROR)
    one = sample(sys.argv[1], cores=1)
    several = sample(sys.argv[1], cores=2, mp_ctx="spawn")
    for group in ("posterior", "sample_stats"):
        for variable in one[group].data_vars:
            if group == "posterior" or variable.startswith("class_"):
                np.testing.assert_array_equal(
                    one[group][variable], several[group][variable], err_msg=variable
                )
    draws = [one["posterior"][name].values.tobytes() for name in one["posterior"].data_vars]
    print("the same", hashlib.sha256(b"".join(draws)).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_who_compiles_draws_as_those_who_find_it_compiled(name, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTENSOR_FLAGS": ",".join([*filter(None, [flags]), f"base_compiledir={tmp_path}"]),
    }
    first, later = (
        subprocess.run(
            [sys.executable, str(script), name],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        for _ in range(2)
    )
    assert "the same" in first.stdout, first.stderr
    assert later.stdout == first.stdout, later.stderr
