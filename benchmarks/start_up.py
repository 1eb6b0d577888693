"""From starting Python to the first observation explained: the very first time, and later.

Every figure is one of a fresh process that imports the package, declares a mixture of templates of
16 × 16 pixels with four classes and 78 latents, and explains one image by a burst:

* numba, nothing compiled yet, by one process;
* the same, where a second process compiles the sweeps meanwhile (`pymc_mcoem.em.compile_ahead`), as
  drivers do;
* numba, in a later process, which finds on disk what was compiled;
* JAX, with nothing on disk, and with its own cache on disk: search for modes, burst and statistics
  of `accelerator`, where JAX is installed.

What takes a minute is machine code, so no other work should be on the cores.

    python benchmarks/start_up.py            # five to ten minutes
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import track
from rich.table import Table

NUMBA = """
import sys
import numpy as np
from accelerator import observations, setting
import pymc_mcoem as mcoem
from pymc_mcoem.em import compile_ahead

if "alone" in sys.argv:
    compile_ahead.cpu_count = lambda: 1
mixture, theta, _ = setting()
em = mcoem.OnlineEM(mixture, parameters=theta, n_start=1, random_seed=1, progressbar=False)
em.partial_fit(observations(1))
"""
JAX = """
import jax
jax.config.update("jax_enable_x64", True)
from accelerator import BURN_IN, DRAWS, JaxBurst, observations

burst = JaxBurst()
data = burst.encode(observations(1))
found = burst.run(DRAWS, BURN_IN, jax.random.key(1), burst.find_modes(data), data)
jax.block_until_ready(found)
"""


def seconds(program: str, folder: Path, *arguments: str) -> float:
    """Run a program in a fresh process whose compilers keep their work in a folder."""
    environment = {
        **os.environ,
        "PYTENSOR_FLAGS": f"base_compiledir={folder}",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    began = perf_counter()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        cwd=Path(__file__).parent,
        env=environment,
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return perf_counter() - began


def main() -> None:
    """Start, in turn, as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in track(range(given.rounds), "Rounds"):
        with tempfile.TemporaryDirectory() as name:
            alone, together, jax = (Path(name) / part for part in ("alone", "together", "jax"))
            runs = {
                "numba, the first time, one process": (NUMBA, alone, "alone"),
                "numba, the first time, two processes": (NUMBA, together),
                "numba, later": (NUMBA, together),
            }
            if find_spec("jax") is not None:
                runs |= {"JAX, the first time": (JAX, jax), "JAX, later": (JAX, jax)}
            for what, (program, folder, *arguments) in runs.items():
                found.setdefault(what, []).append(seconds(program, folder, *arguments))
    table = Table(title="Seconds from starting Python to the first observation explained")
    table.add_column("")
    table.add_column("seconds", justify="right")
    table.add_column("over the first", justify="right")
    medians = {what: statistics.median(each) for what, each in found.items()}
    first = next(iter(medians.values()))
    for what, median in medians.items():
        table.add_row(what, f"{median:.1f}", f"{median / first:.2f}")
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
