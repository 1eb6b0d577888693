"""Measure the time from starting Python to a first answer, without and with compiled code.

Every figure is from a fresh process (`first_draw.py`), which takes turns with ``pm.sample`` with
default settings on the same model: four chains of 1,000 draws after 1,000, in two processes. P is
the time of ``pm.sample`` on README's first model when nothing is compiled. ``edited`` is a model
that was compiled before with other data and other constants in its priors.

With ``--against`` and a folder with another version of the package, its figures are printed beside
these. ``backends`` is README's model by the other back ends, ``demo`` is `examples/digits.py`, and
``import`` is the time of ``import pymc_mcoem`` after ``import pymc``.

    python benchmarks/start_up.py                          # ten minutes
    python benchmarks/start_up.py --only README images
    python benchmarks/start_up.py --only demo import
    python benchmarks/start_up.py --only backends          # three minutes more
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep

from rich.progress import track
from timing import console, make_table, tell_versions

MODELS = ("README", "identical", "regressions", "plate")


def started(folder: Path, package: Path, *arguments: str) -> list[float]:
    """Run a fresh process whose compilers cache in a folder.

    Returns its figures; times are seconds since its start.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(package),
        "PYTENSOR_FLAGS": f"base_compiledir={folder}",
        "NUMBA_CACHE_DIR": str(folder / "numba_own"),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
    }
    began = perf_counter()  # the same clock in every process
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(Path(__file__).with_name("first_draw.py")),
            *arguments,
        ],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    figures = [float(each) for each in done.stdout.split("figures")[-1].split()]
    if arguments[0] == "images":
        return [figures[0] - began, figures[1]]
    return [each - began for each in figures]


def demonstrated(folder: Path) -> list[float]:
    """Return the seconds from starting the demo to its first picture, and to its end."""
    environment = {
        **os.environ,
        "PYTENSOR_FLAGS": f"base_compiledir={folder}",
        "NUMBA_CACHE_DIR": str(folder / "numba_own"),
    }
    script = Path(__file__).parents[1] / "examples" / "digits.py"
    output = folder / "output"
    began = perf_counter()
    demo = subprocess.Popen(
        [sys.executable, str(script), "--output", str(output)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while demo.poll() is None and not (output / "digits_first.png").exists():
        sleep(0.1)
    first = perf_counter() - began
    if demo.wait():
        raise RuntimeError(f"{script} ended with {demo.returncode}; run it by hand.")
    return [first, perf_counter() - began]


def imported(n_times: int = 5) -> list[float]:
    """Return the seconds of importing PyMC, and of the package after it, in turn."""
    code = (
        "from time import perf_counter as now; a = now(); import pymc; b = now(); "
        "import pymc_mcoem; from pymc_mcoem import CarlinChib, OnlineEM, TemplateMixture; "
        "print(b - a, now() - b)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        for _ in range(n_times)
    ]
    parts = [[float(each) for each in run.stdout.split()] for run in runs]
    return [statistics.median(each) for each in zip(*parts, strict=True)]


def main() -> None:
    """Start the processes in turn, for the requested number of rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[*MODELS, "images"])
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    tell_versions()
    here = Path(__file__).parents[1]
    packages = {"": here} | ({"before: ": given.against} if given.against else {})
    found: dict[tuple[str, str], list[list[float]]] = {}
    for _ in track(range(given.rounds), "Rounds"):
        with tempfile.TemporaryDirectory() as name:
            asked = [each for each in given.only if each in (*MODELS, "images")]
            for model in dict.fromkeys(["README", *asked]):
                runs = [(f"{who}first", package, "ours") for who, package in packages.items()]
                runs += [(f"{who}later", package, "ours") for who, package in packages.items()]
                if model != "images":
                    if model not in given.only:
                        runs = []
                    else:
                        runs.append(("after an edit", here, "ours edited"))
                    runs += [("pm.sample: first", here, "pymc")]
                    runs += [("pm.sample: later", here, "pymc")] if model in given.only else []
                for what, package, sampler in runs:
                    who = "pymc" if sampler == "pymc" else package.name
                    folder = Path(name) / f"{model}_{who}"
                    found.setdefault((model, what), []).append(
                        started(folder, package, model, sampler)
                    )
            for backend in ("jax", "c") if "backends" in given.only else ():
                folder = Path(name) / backend
                for when in ("first", "later"):
                    found.setdefault(("README", f"{backend}: {when}"), []).append(
                        started(folder, here, "README", f"ours-{backend}")
                    )
            if "demo" in given.only:
                folder = Path(name) / "demo"
                folder.mkdir()
                found.setdefault(("demo", "first picture; all done"), []).append(
                    demonstrated(folder)
                )
            if "import" in given.only:
                found.setdefault(("import", "pymc; ours after it"), []).append(imported())
    middle = {
        key: [statistics.median(each) for each in zip(*runs, strict=True)]
        for key, runs in found.items()
    }
    first = middle["README", "pm.sample: first"][-1]
    headings = ("model", "", "model there", "step made", "drawn", "over P", "over pm.sample")
    table = make_table(headings, title=f"Seconds from starting Python; P = {first:.1f} s")
    for (model, what), figures in middle.items():
        if model == "demo":
            over = " ".join(f"{each / first:.2f}" for each in figures)
            table.add_row(model, what, "", *(f"{each:.1f}" for each in figures), over, "")
            continue
        if model == "import":
            table.add_row(model, what, *(f"{each:.2f}" for each in figures), "", "", "")
            continue
        if model == "images":
            explained, each = figures
            parts = ["", "", f"{explained:.1f}", f"{explained / first:.2f}"]
            table.add_row(model, what, *parts, f"{1e3 * each:.1f} ms a later image")
            continue
        beside = "first" if what.endswith("first") else "later"
        rival = middle.get((model, f"pm.sample: {beside}"), [float("nan")])[-1]
        parts = [f"{each:.1f}" for each in figures]
        table.add_row(
            model, what, *parts, f"{figures[-1] / first:.2f}", f"{figures[-1] / rival:.2f}"
        )
    console.print(table)


if __name__ == "__main__":
    main()
