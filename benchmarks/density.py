"""Compare the cost of one evaluation of the digits' log-density and gradient with loops by hand.

The model has 16 × 16 pixels, 256 kernels, 78 latents and four classes. All versions evaluate the
same 500 positions in one call, so that the time of a call from Python does not count. Compiled by
numba:

* by hand, two loops over pixels as one would write them first, with ``np.exp``;
* by hand, as fast as we can: the package's own recurrences along the axes, BLAS products;
* the model's own graph without the operators of `pymc_mcoem.templates.bases.separable_numba`;
* the model's own graph as bursts use it, and its gradient.

And by JAX, if it is installed, on the processor:

* the model's own graph and its gradient, in the loop that bursts run with ``backend="jax"``.

They take turns, all in one thread, and medians over the rounds are reported.

    python benchmarks/density.py
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from threadpoolctl import threadpool_limits
from timing import begin, console, in_turn, medians, tell_table

import pymc_mcoem as mcoem
from pymc_mcoem.compiling.loops import compile_loop
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.em.esteps.class_fits import family_density
from pymc_mcoem.templates.bases.separable_numba import kernel_factor

N_POSITIONS, N_CLASSES, SIDE = 500, 4, 16
JAX_FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def constants(mixture: mcoem.TemplateMixture, theta: Any, image: np.ndarray) -> tuple[Any, ...]:
    """Return the arguments of loops by hand beside positions, as plain arrays and numbers."""
    settings = mixture.settings
    field = settings.deformation.terms[1]
    away = field.landmarks[:, None, :] - settings.points[None, :, :]
    kernels = np.exp(-np.square(away).sum(axis=-1) / field.width**2)
    # Landmarks and points are on grids that are the same on both axes.
    marks, points = np.unique(field.landmarks[:, 0]), np.unique(settings.points[:, 0])
    along = np.exp(-np.square(marks[:, None] - points[None, :]) / field.width**2)
    base = np.array(settings.deformation.covariance)
    factor = np.linalg.cholesky(base)
    return (
        np.ascontiguousarray(settings.points[:, 0]),
        np.ascontiguousarray(settings.points[:, 1]),
        kernels,
        along,
        settings.basis.axes[0],
        settings.basis.bandwidth,
        settings.deformation.mean,
        np.linalg.inv(factor),
        np.log(np.diagonal(factor)).sum(),
        theta["weights"],
        theta["templates"],
        theta["deformation_variance"],
        float(theta["noise_variance"]),
        image.ravel(),
    )


@numba.njit
def by_hand_simple(
    positions, classes, xs, ys, kernels, along, axis, bandwidth, mean, whiten, log_det, weights,
    templates, variances, noise, image,
):  # fmt: skip
    """Loop over pixels."""
    out = np.empty(len(positions))
    n, side, n_marks = xs.size, axis.size, kernels.shape[0]
    across, down = np.empty(side), np.empty(side)
    for t in range(len(positions)):
        beta, j = positions[t], classes[t]
        cosine, sine = np.cos(beta[0]), np.sin(beta[0])
        total = 0.0
        for s in range(n):
            dx, dy = 0.0, 0.0
            for k in range(n_marks):
                dx += beta[6 + k] * kernels[k, s]
                dy += beta[6 + n_marks + k] * kernels[k, s]
            a = beta[1] * xs[s] + beta[4] - beta[2]
            b = beta[1] * ys[s] + beta[5] - beta[3]
            x = cosine * a - sine * b + beta[2] + dx
            y = sine * a + cosine * b + beta[3] + dy
            for c in range(side):
                down[c] = np.exp(-((x - axis[c]) ** 2) / bandwidth**2)
                across[c] = np.exp(-((y - axis[c]) ** 2) / bandwidth**2)
            value = 0.0
            for c in range(side):
                row = 0.0
                for d in range(side):
                    row += templates[j, c * side + d] * across[d]
                value += row * down[c]
            total += (image[s] - value) ** 2
        out[t] = -0.5 * total / noise - 0.5 * n * np.log(2 * np.pi * noise) + np.log(weights[j])
        spread = np.sqrt(variances[j])
        square = 0.0
        for a in range(beta.size):
            entry = 0.0
            for b in range(a + 1):
                entry += whiten[a, b] * (beta[b] - mean[b]) / (1.0 if b < 6 else spread)
            square += entry**2
        out[t] += -0.5 * square - log_det - 0.5 * beta.size * np.log(2 * np.pi)
        out[t] -= 2 * n_marks * np.log(spread)
    return out


@numba.njit(fastmath={"contract", "reassoc"})
def by_hand_fast(
    positions, classes, xs, ys, kernels, along, axis, bandwidth, mean, whiten, log_det, weights,
    templates, variances, noise, image,
):  # fmt: skip
    """Loop over vectors."""
    out = np.empty(len(positions))
    n, side, n_marks = xs.size, axis.size, kernels.shape[0]
    x, y, standard = np.empty(n), np.empty(n), np.empty(mean.size)
    spacing = (axis[-1] - axis[0]) / (side - 1)
    across_axis = along.T.copy()
    for t in range(len(positions)):
        beta, j = positions[t], classes[t]
        cosine, sine = np.cos(beta[0]), np.sin(beta[0])
        table = np.dot(beta[6:].reshape((2 * len(along), len(along))), along)
        moved = np.empty((2, n))
        for d in range(2):
            rows = table[d * len(along) : (d + 1) * len(along)]
            moved[d] = np.dot(across_axis, rows).ravel()
        for s in range(n):
            a = beta[1] * xs[s] + beta[4] - beta[2]
            b = beta[1] * ys[s] + beta[5] - beta[3]
            x[s] = cosine * a - sine * b + beta[2] + moved[0, s]
            y[s] = sine * a + cosine * b + beta[3] + moved[1, s]
        down = kernel_factor(x, axis[0], spacing, side, bandwidth)
        across = kernel_factor(y, axis[0], spacing, side, bandwidth)
        summed = np.dot(templates[j].reshape((side, side)), across)
        values = np.zeros(n)
        for c in range(side):
            first, second = down[c], summed[c]
            for s in range(n):
                values[s] += first[s] * second[s]
        total = 0.0
        for s in range(n):
            total += (image[s] - values[s]) ** 2
        out[t] = -0.5 * total / noise - 0.5 * n * np.log(2 * np.pi * noise) + np.log(weights[j])
        spread = np.sqrt(variances[j])
        for a in range(beta.size):
            standard[a] = (beta[a] - mean[a]) / (1.0 if a < 6 else spread)
        white = np.dot(whiten, standard)
        out[t] += -0.5 * np.dot(white, white) - log_det - 0.5 * beta.size * np.log(2 * np.pi)
        out[t] -= 2 * n_marks * np.log(spread)
    return out


def compiled(
    density: ClassDensity, what: Callable[..., Any], mode: Any
) -> Callable[..., np.ndarray]:
    """Return a function of positions, classes and the model's data that sums an expression."""
    positions = pt.tensor("positions", shape=(None, density.n_latents))
    classes = pt.lvector("classes")
    found = pytensor.scan(
        lambda k, x: what(k, x).sum(), sequences=[classes, positions], return_updates=False
    )
    return pytensor.function([positions, classes, *density.data_inputs.values()], found, mode=mode)


def compiled_by_jax(
    density: ClassDensity, what: Callable[..., Any]
) -> Callable[..., np.ndarray] | None:
    """Return the same function as a JAX loop, or None if JAX is not installed."""
    if importlib.util.find_spec("jax") is None:
        return None
    # JAX reads these when it is first used. All versions have one thread and no accelerator.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", JAX_FLAGS)
    positions = pt.tensor("positions", shape=(None, density.n_latents))
    classes = pt.lvector("classes")
    loop = compile_loop(
        density,
        lambda k, x: [what(k, x).sum()],
        inputs=[positions, classes],
        sequences=[classes, positions],
        n_emitted=1,
        mode="JAX",
    )
    return lambda *arguments: loop(*arguments)[0]


def main() -> None:
    given = begin(__doc__, rounds=25)
    mixture = mcoem.TemplateMixture.for_images((SIDE, SIDE), n_classes=N_CLASSES, rigid_weight=None)
    rng = np.random.default_rng(1)
    theta = mixture.initialize([rng.random((SIDE, SIDE)) for _ in range(20)], rng, "random")
    image = rng.random((SIDE, SIDE))
    density = family_density(mixture)
    data = density.arguments({**theta, **mixture.encode(image)})
    positions = mixture.settings.deformation.mean + 0.1 * rng.standard_normal((N_POSITIONS, 78))
    classes = rng.integers(N_CLASSES, size=N_POSITIONS)
    by_hand = (positions, classes, *constants(mixture, theta, image))
    plain = get_mode("NUMBA").excluding("mcoem_for_numba")
    own = compiled(density, density.log_density, "NUMBA")
    graph = compiled(density, density.log_density, plain)
    gradient = compiled(density, density.gradient, "NUMBA")
    graph_gradient = compiled(density, density.gradient, plain)
    in_jax = compiled_by_jax(density, density.log_density)
    gradient_in_jax = compiled_by_jax(density, density.gradient)
    ways = {
        "by hand, pixel by pixel": lambda: by_hand_simple(*by_hand),
        "by hand, vectors": lambda: by_hand_fast(*by_hand),
        "plain graph": lambda: graph(positions, classes, *data),
        "ours": lambda: own(positions, classes, *data),
        "gradient, plain graph": lambda: graph_gradient(positions, classes, *data),
        "gradient, ours": lambda: gradient(positions, classes, *data),
    }
    if in_jax and gradient_in_jax:
        ways["JAX"] = lambda: in_jax(positions, classes, *data)
        ways["gradient, JAX"] = lambda: gradient_in_jax(positions, classes, *data)
    with threadpool_limits(1):
        seconds, values = in_turn(ways, given.rounds)
    # A density may omit constants that do not depend on latents.
    for way, found in values.items():
        if way.startswith("gradient"):
            away = np.abs(found - values["gradient, ours"]).max()
            console.print(f"{way} − ours: {away:.1e}")
        else:
            console.print(f"{way} − ours, up to a constant: {np.ptp(found - values['ours']):.1e}")
    cost = {way: 1e6 * each / N_POSITIONS for way, each in medians(seconds).items()}
    rows = []
    for way, each in cost.items():
        reference = "gradient, ours" if way.startswith("gradient") else "ours"
        rows.append((way, f"{each:.2f}", f"{cost[reference] / each:.2f}"))
    if not in_jax:
        rows += [(way, "not installed", "") for way in ("JAX", "gradient, JAX")]
    title = f"One evaluation, median of {given.rounds} rounds"
    tell_table(("", "µs", "ours over it"), rows, title)
    console.print(f"gradient over density: {cost['gradient, ours'] / cost['ours']:.2f}")


if __name__ == "__main__":
    main()
