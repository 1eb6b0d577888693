"""Measure the time from starting Python to a first answer, without and with compiled code.

Every figure is from a fresh process, which takes turns with ``pm.sample`` with default settings on
the same model: four chains of 1,000 draws after 1,000, in two processes. P is the time of
``pm.sample`` on README's first model when nothing is compiled. "After an edit" is a model that was
compiled before with other data and other constants in its priors.

With ``--against`` and a folder with another version of the package, its figures are printed beside
these. ``backends`` is README's model by each back end, with all chains in one process, and images
by JAX; ``demo`` is `examples/digits.py`, and ``import`` is the time of ``import pymc_mcoem`` after
``import pymc``, and that of its three main classes after it.

    python benchmarks/start_up.py                          # ten minutes
    python benchmarks/start_up.py --only README images
    python benchmarks/start_up.py --only demo import       # README's pm.sample too, for P
    python benchmarks/start_up.py --only backends          # three minutes more

One of these processes alone, with the functions that numba compiles in it and their seconds:

    python benchmarks/start_up.py --alone README ours
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import pymc as pm
from rich.progress import track
from timing import begin, tell_table

HERE = Path(__file__).parents[1]
#: The word before the figures of a process.
FIGURES = "figures"


def readme(edited: bool) -> dict:
    """Return README's first model: three curves, one index."""
    u = np.linspace(-1, 1, 25)
    rng = np.random.default_rng(2 if edited else 1)
    y = 0.4 + 1.1 * np.exp(-((u - 0.2) ** 2) / 0.1) + rng.normal(0, 0.5, 25)
    shape = pm.Categorical("shape", [0.3, 0.4, 0.3])
    level = pm.Normal("level", 0, 1.3 if edited else 1)
    height = pm.Gamma("height", 2, beta=1)
    place = pm.Normal("place", 0, 0.4 if edited else 0.5)
    v = u - place
    curves = pm.math.stack([pm.math.exp(-(v**2) / 0.1), pm.math.sigmoid(9 * v), pm.math.sin(4 * v)])
    pm.Normal("curve", level + height * curves[shape], 0.5, observed=y)
    return {}


def identical(edited: bool) -> dict:
    """Return two identical models with an index (pymc issue 1534)."""
    y = np.random.default_rng(2 if edited else 1).normal(0.5, 1.0, size=100)
    k = pm.Categorical("k", [0.5, 0.5])
    mean = [pm.Normal(f"mean_{j}", 0.0, 80.0 if edited else 100.0) for j in range(2)]
    log_sd = [pm.Normal(f"log_sd_{j}", 0.0, 1.0) for j in range(2)]
    first = pm.math.eq(k, 0)
    spread = pm.math.exp(pm.math.switch(first, *log_sd))
    pm.Normal("y", pm.math.switch(first, *mean), spread, observed=y)
    return {"blocks": {j: [mean[j], log_sd[j]] for j in range(2)}}


def regressions(edited: bool) -> dict:
    """Return polynomials of degree 0 to 4, each with its own coefficients."""
    x = np.linspace(-1.0, 1.0, 40)
    rng = np.random.default_rng(2 if edited else 1)
    y = 0.3 + 0.5 * x + 0.9 * x**2 + rng.normal(0.0, 1.0, size=len(x))
    k = pm.Categorical("k", [0.1, 0.15, 0.2, 0.25, 0.3])
    center, blocks = 0.0, {}
    for j in range(5):
        design = np.stack([x**power for power in range(j + 1)], axis=1)
        own = pm.Normal(f"coefficients_{j}", 0.0, 1.2 if edited else 1.0, shape=j + 1)
        center = center + pm.math.switch(pm.math.eq(k, j), pm.math.dot(design, own), 0.0)
        blocks[j] = [own]
    pm.Normal("y", center, 1.0, observed=y)
    return {"blocks": blocks}


def plate(edited: bool) -> dict:
    """Return a mixture of three classes and 500 observations, each with an index and a latent."""
    rng = np.random.default_rng(2 if edited else 1)
    n, centers = 500, np.array([-1.5, 0.0, 2.0])
    y = centers[rng.choice(3, size=n, p=[0.5, 0.3, 0.2])] + rng.normal(0, 1.0, size=n)
    k = pm.Categorical("k", [0.5, 0.3, 0.2], shape=n)
    x = pm.Normal("x", pm.math.constant(centers)[k], 0.7 if edited else 0.8, shape=n)
    pm.Normal("y", x, 0.6, observed=y)
    return {}


MODELS = {"README": readme, "identical": identical, "regressions": regressions, "plate": plate}


def sample(name: str, sampler: str) -> list[float]:
    """Return the times at which the model was loaded, the step made, and the chains drawn."""
    with pm.Model():
        options = MODELS[name]("edited" in sampler)
        declared = perf_counter()
        step = None
        settings = {"random_seed": 1, "progressbar": False}
        if sampler.startswith("ours"):
            import pymc_mcoem as mcoem

            backend = sampler.split()[0].partition("-")[2]
            if backend:
                options["compile_kwargs"] = {"backend": backend}
                settings["mp_ctx"] = "spawn" if backend == "jax" else None
            step = mcoem.CarlinChib(**options)
        made = perf_counter()
        cores = 1 if "one process" in sampler else 2
        pm.sample(1_000, tune=1_000, chains=4, cores=cores, step=step, **settings)
    return [declared, made, perf_counter()]


def explain(sampler: str) -> list[float]:
    """Return the time of the first result for an image of 16 × 16 pixels, and of a later one."""
    from accelerator import observations, setting

    import pymc_mcoem as mcoem

    mixture, theta, _ = setting()
    em = mcoem.OnlineEM(
        mixture,
        e_step=mcoem.esteps.CarlinChibBurst(backend=sampler.partition("-")[2] or None),
        parameters=theta,
        n_start=1,
        update_schedule=mcoem.schedules.UpdateSchedule.never(),
        random_seed=1,
        progressbar=False,
    )
    images = observations(46)
    em.partial_fit(images[:1])
    first = perf_counter()
    em.partial_fit(images[1:6])
    began = perf_counter()
    em.partial_fit(images[6:])
    return [first, (perf_counter() - began) / 40]


def tell_functions(buffer: list) -> None:
    """Print the seconds of compiling each function, its callees included."""
    begun, seconds = {}, {}
    for at, each in buffer:
        if each.is_start:
            begun.setdefault(each.data["dispatcher"], []).append(at)
        else:
            name = each.data["dispatcher"].py_func.__qualname__
            spent = at - begun[each.data["dispatcher"]].pop()
            seconds[name] = seconds.get(name, 0.0) + spent
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1])[:12]:
        print(f"{spent:6.2f} s  {name}")


def environment(folder: Path, package: Path = HERE) -> dict[str, str]:
    """Return the environment of a process whose compilers cache in a folder."""
    return {
        **os.environ,
        "PYTHONPATH": str(package),
        "PYTENSOR_FLAGS": f"base_compiledir={folder}",
        "NUMBA_CACHE_DIR": str(folder / "numba_own"),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
    }


def started(folder: Path, package: Path, model: str, sampler: str) -> list[float]:
    """Return the figures of a fresh process; times are seconds since its start."""
    began = perf_counter()  # the same clock in every process
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--alone", model, sampler],
        env=environment(folder, package),
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    first, *others = (float(each) for each in done.stdout.split(FIGURES)[-1].split())
    if model == "images":
        return [first - began, *others]
    return [each - began for each in (first, *others)]


def demonstrated(folder: Path) -> list[float]:
    """Return the seconds from starting the demo to its first picture, and to its end."""
    output = folder / "output"
    began = perf_counter()
    demo = subprocess.Popen(
        [sys.executable, str(HERE / "examples" / "digits.py"), "--output", str(output)],
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while demo.poll() is None and not (output / "digits_first.png").exists():
        sleep(0.1)
    first = perf_counter() - began
    if demo.wait():
        raise RuntimeError(f"The demo ended with {demo.returncode}; run it by hand.")
    return [first, perf_counter() - began]


def imported(n_times: int = 5) -> list[float]:
    """Return the seconds of importing PyMC, and of the package after it, in turn."""
    code = (
        "from time import perf_counter as now; a = now(); import pymc; b = now(); "
        "import pymc_mcoem; c = now(); "
        "from pymc_mcoem import CarlinChib, OnlineEM, TemplateMixture; "
        "print(b - a, c - b, now() - c)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        for _ in range(n_times)
    ]
    parts = [[float(each) for each in run.stdout.split()] for run in runs]
    return [statistics.median(each) for each in zip(*parts, strict=True)]


def one_round(
    only: list[str], packages: dict[str, Path], folder: Path
) -> dict[tuple[str, str], list[float]]:
    """Return the figures of all processes, by what is started and when, each run once."""
    found: dict[tuple[str, str], list[float]] = {}
    asked = [each for each in only if each in (*MODELS, "images")]
    for model in dict.fromkeys(["README", *asked]):
        runs = []
        if model in only:
            runs += [
                (f"{who}{when}", package, "ours")
                for when in ("first", "later")
                for who, package in packages.items()
            ]
        if model in MODELS:
            runs += [("after an edit", HERE, "ours edited")] if model in only else []
            runs += [("pm.sample: first", HERE, "pymc")]
            runs += [("pm.sample: later", HERE, "pymc")] if model in only else []
        for what, package, sampler in runs:
            own = folder / f"{model}_{'pymc' if sampler == 'pymc' else package.name}"
            found[model, what] = started(own, package, model, sampler)
    for sampler in ("pymc", "ours", "ours-jax", "ours-c") if "backends" in only else ():
        for when in ("first", "later"):
            own = started(folder / f"alone_{sampler}", HERE, "README", f"{sampler} one process")
            who = "pm.sample" if sampler == "pymc" else sampler
            found["one process", f"{who}: {when}"] = own
            if sampler == "ours-jax":
                own = started(folder / "images", HERE, "images", sampler)
                found["images", f"jax: {when}"] = own
    if "demo" in only:
        (folder / "demo").mkdir()
        found["demo", "first picture; all done"] = demonstrated(folder / "demo")
    if "import" in only:
        found["import", "pymc; ours; its classes"] = imported()
    return found


def main() -> None:
    """Start the processes in turn, for the requested number of rounds."""
    given = begin(
        __doc__,
        rounds=1,
        only=[*MODELS, "images"],
        against=({"type": Path}, "folder of another version of the package"),
    )
    packages = {"": HERE} | ({"before: ": given.against} if given.against else {})
    rounds = []
    for _ in track(range(given.rounds), "Rounds"):
        with tempfile.TemporaryDirectory() as name:
            rounds.append(one_round(given.only, packages, Path(name)))
    middle = {
        key: [statistics.median(each) for each in zip(*(run[key] for run in rounds), strict=True)]
        for key in rounds[0]
    }
    first = middle["README", "pm.sample: first"][-1]
    rows = []
    for (model, what), figures in middle.items():
        seconds, beside = [f"{each:.1f}" for each in figures], ""
        over = f"{figures[-1] / first:.2f}"
        if model == "demo":
            seconds, over = ["", *seconds], " ".join(f"{each / first:.2f}" for each in figures)
        elif model == "import":
            seconds, over = [f"{each:.3f}" for each in figures], ""
        elif model == "images":
            seconds, over = ["", "", seconds[0]], f"{figures[0] / first:.2f}"
            beside = f"{1e3 * figures[1]:.1f} ms a later image"
        else:
            when = "first" if what.endswith("first") else "later"
            rival = middle.get((model, f"pm.sample: {when}"), [float("nan")])[-1]
            beside = f"{figures[-1] / rival:.2f}"
        rows.append((model, what, *seconds, over, beside))
    headings = ("model", "", "model there", "step made", "drawn", "over P", "over pm.sample")
    tell_table(headings, rows, f"Seconds from starting Python; P = {first:.1f} s")


def alone(model: str, sampler: str = "ours") -> None:
    """Answer as a process that was started for this, and print its figures last."""
    from numba.core import event

    with event.install_recorder("numba:compile") as compiled:
        found = explain(sampler) if model == "images" else sample(model, sampler)
    tell_functions(compiled.buffer)
    print(FIGURES, *found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        alone(*sys.argv[2:4])
    else:
        main()
