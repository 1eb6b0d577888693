"""Time one model in a fresh process of `start_up.py`, from starting Python to drawn chains.

    python benchmarks/first_draw.py README ours

prints the times at which the package and the model are loaded, the step is made, and the chains are
drawn; for ``images``, the time at which a first image is explained, and the seconds of a later one.
``ours-jax`` and ``ours-c`` are other back ends. ``--functions`` at the end prints the functions
that numba compiled in this process, and their seconds.
"""

from __future__ import annotations

import sys
from time import perf_counter

import numpy as np
import pymc as pm


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

            backend = sampler.partition("-")[2]
            if backend:
                options["compile_kwargs"] = {"backend": backend}
                settings["mp_ctx"] = "spawn" if backend == "jax" else None
            step = mcoem.CarlinChib(**options)
        made = perf_counter()
        pm.sample(1_000, tune=1_000, chains=4, cores=2, step=step, **settings)
    return [declared, made, perf_counter()]


def explain() -> list[float]:
    """Return the time of a first explained image of 16 × 16 pixels, and seconds of a later one."""
    from accelerator import observations, setting

    import pymc_mcoem as mcoem

    mixture, theta, _ = setting()
    em = mcoem.OnlineEM(
        mixture,
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


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == "--help":
        sys.exit(__doc__)
    from numba.core import event

    with event.install_recorder("numba:compile") as compiled:
        found = explain() if sys.argv[1] == "images" else sample(*sys.argv[1:3])
    if "--functions" in sys.argv:
        tell_functions(compiled.buffer)
    print("figures", *found)
