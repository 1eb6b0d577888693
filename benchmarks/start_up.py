"""From starting Python to the first observation explained, the very first time and later.

Every figure is one of a fresh process that imports the package, declares a mixture of templates of
16 × 16 pixels with four classes and 78 latents, and explains one image by a burst, then twenty
more:

* numba, nothing compiled yet, by one process;
* the same, where a second process compiles the sweeps meanwhile (`pymc_mcoem.em.compile_ahead`), as
  drivers do;
* numba, in a later process, which finds on disk what was compiled;
* JAX, ``CarlinChibBurst(backend="jax")``, with nothing on disk, and with its own cache on disk,
  where JAX is installed.

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
from versions import tell_versions

PROGRAM = """
import sys
from time import perf_counter

from accelerator import observations, setting
import pymc_mcoem as mcoem
from pymc_mcoem.em import compile_ahead

if "alone" in sys.argv:
    compile_ahead.cpu_count = lambda: 1
mixture, theta, _ = setting()
e_step = mcoem.CarlinChibBurst(backend="jax" if "jax" in sys.argv else None)
em = mcoem.OnlineEM(
    mixture,
    e_step=e_step,
    parameters=theta,
    n_start=1,
    update_schedule=mcoem.UpdateSchedule.never(),
    random_seed=1,
    progressbar=False,
)
images = observations(26)
em.partial_fit(images[:1])
explained = perf_counter()
em.partial_fit(images[1:6])
began = perf_counter()
em.partial_fit(images[6:])
print(explained, (perf_counter() - began) / 20)
"""


def started(folder: Path, *arguments: str) -> tuple[float, float]:
    """Run a fresh process whose compilers keep their work in a folder.

    Returns the seconds to the first observation explained, and those of a later one.
    """
    environment = {
        **os.environ,
        "PYTENSOR_FLAGS": f"base_compiledir={folder}",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    began = perf_counter()  # the same clock in every process
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments],
        cwd=Path(__file__).parent,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    explained, each = map(float, done.stdout.split()[-2:])
    return explained - began, each


def main() -> None:
    """Start, in turn, as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    tell_versions()
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in track(range(given.rounds), "Rounds"):
        with tempfile.TemporaryDirectory() as name:
            alone, together, jax = (Path(name) / part for part in ("alone", "together", "jax"))
            runs: dict[str, tuple[Path, *tuple[str, ...]]] = {
                "numba, the first time, one process": (alone, "alone"),
                "numba, the first time, two processes": (together,),
                "numba, later": (together,),
            }
            if find_spec("jax") is not None:
                runs |= {"JAX, the first time": (jax, "jax"), "JAX, later": (jax, "jax")}
            for what, (folder, *arguments) in runs.items():
                found.setdefault(what, []).append(started(folder, *arguments))
    table = Table(title="Seconds from starting Python to the first observation explained")
    table.add_column("")
    for column in ("seconds", "over the first", "ms a later observation"):
        table.add_column(column, justify="right")
    medians = {
        what: [statistics.median(each) for each in zip(*runs, strict=True)]
        for what, runs in found.items()
    }
    first = next(iter(medians.values()))[0]
    for what, (whole, each) in medians.items():
        table.add_row(what, f"{whole:.1f}", f"{whole / first:.2f}", f"{1e3 * each:.0f}")
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
