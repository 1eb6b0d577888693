"""Find the kinds of published curves without labels, and compare with other methods.

The data come inside tslearn (Trace) and aeon (ACSF1, ArrowHead, GunPoint, ItalyPowerDemand,
OSULeaf), learning and test set together. Curves are standardized and have at most 100 points: every
third of Trace, say, and of ACSF1 means of fifteen. There are as many classes as kinds. Curves have
levels and heights of their own, and loose clocks, so that searches start from seven. Each seed
learns all curves in two passes, with one noise and with one for each class. Printed are accuracy
after the best matching of classes and kinds, adjusted Rand index, and the mean evidence of a curve,
all of the last pass. Evidence says which run is best.

    pip install tslearn
    python benchmarks/published_curves.py --data Trace
    pip download aeon --no-deps && unzip -q 'aeon-*.whl' 'aeon/datasets/data/*'
    python benchmarks/published_curves.py --data GunPoint ArrowHead
    python benchmarks/published_curves.py --data GunPoint --rivals

Rivals are aeon's k-means (version 1.6), also with dynamic time warping and with barycenters (DBA),
k-shape and k-SC, all from the same curves as first centers, the best of ten starts by their own
criterion. aeon needs older packages than this one: install it, tslearn, rich and xarray in an
environment of their own.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score
from timing import begin, console

#: Most points of a curve, and kernels of a template.
N_POINTS, N_KERNELS = 100, 70
#: Of curves with more points for each that is kept, means are taken.
MOST_LEFT_OUT = 10
N_PASSES = 2


def read(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return standardized curves ``(n_curves, n_points)`` and the numbers of their kinds."""
    if name == "Trace":
        from tslearn.datasets import CachedDatasets

        data = CachedDatasets().load_dataset(name)
        curves, kinds = (
            np.concatenate([data[0], data[2]])[..., 0],
            np.concatenate([data[1], data[3]]),
        )
    else:
        lines = [
            line.rsplit(":", 1)
            for part in ("TRAIN", "TEST")
            for line in (folder / name / f"{name}_{part}.ts")
            .read_text()
            .split("@data\n")[1]
            .split()
        ]
        curves = np.array([[float(value) for value in line[0].split(",")] for line in lines])
        kinds = np.array([line[1] for line in lines])
    curves = (curves - curves.mean(1, keepdims=True)) / curves.std(1, keepdims=True)
    step = -(-curves.shape[1] // N_POINTS)
    if step > MOST_LEFT_OUT:
        whole = curves[:, : curves.shape[1] // step * step]
        curves = whole.reshape(len(curves), -1, step).mean(axis=2)
    else:
        curves = curves[:, ::step]
    return curves, np.unique(kinds, return_inverse=True)[1]


def accuracy(kinds: np.ndarray, found: np.ndarray) -> float:
    """Return the share of curves whose class is that of their kind, by the best matching."""
    size = max(kinds.max(), found.max()) + 1
    table = np.zeros((size, size))
    np.add.at(table, (kinds, found), 1.0)
    return float(table[linear_sum_assignment(-table)].sum() / len(kinds))


def learned(curves: np.ndarray, n_kinds: int, noise: str, seed: int) -> Any:
    """Return the order of the curves in the last pass, their classes there, and their evidence."""
    import pymc_mcoem as mcoem

    points = np.linspace(0.0, 1.0, curves.shape[1])
    options: dict[str, Any] = {
        "coefficients": "real",
        "n_landmarks": min(N_KERNELS, len(points)),
        "scale": (30, 30),
        "offset": 10,
    }
    weak = mcoem.TemplateMixture.for_curves(points, n_kinds, **options).priors
    priors = weak.with_deformation_variance(0.1, weight=200)
    mixture = mcoem.TemplateMixture.for_curves(
        points, n_kinds, noise=noise, priors=priors, **options
    )
    search = mcoem.pseudo_priors.Laplace(race=None)
    em = mcoem.OnlineEM(
        mixture,
        e_step=mcoem.esteps.LaplaceGaussian(search=search),
        burst_length=mcoem.schedules.BurstLength(draws=10, tune=0),
        start="exemplars",
        n_start=min(200, len(curves)),
        random_seed=seed,
        progressbar=False,
    )
    rng = np.random.default_rng(seed)
    for _ in range(N_PASSES):
        order = rng.permutation(len(curves))
        em.partial_fit(curves[order])
    last = em.history["observations"].isel(observation=slice(-len(curves), None))
    return order, last["class_weight"].values.argmax(axis=1), last["log_evidence"].values


def ours(curves: np.ndarray, kinds: np.ndarray, given: Any) -> None:
    """Learn with every seed and print."""
    best = (-np.inf, "")
    for noise in given.noise:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            began = time.perf_counter()
            order, found, evidence = learned(curves, kinds.max() + 1, noise, seed)
            told = (
                f"accuracy {accuracy(kinds[order], found):.3f}, "
                f"adjusted Rand index {adjusted_rand_score(kinds[order], found):.3f}, "
                f"evidence {evidence.mean():.1f}, {time.perf_counter() - began:.0f} s"
            )
            console.print(f"noise {noise}, seed {seed}: {told}")
            best = max(best, (evidence.mean(), f"noise {noise}, seed {seed}: {told}"))
    console.print(f"best by evidence: {best[1]}")


def rivals(curves: np.ndarray, kinds: np.ndarray, n_seeds: int) -> None:
    """Fit other methods and print."""
    from aeon.clustering import KShape, KSpectralCentroid, TimeSeriesKMeans

    k = int(kinds.max()) + 1
    by_dtw = {"distance": "dtw", "n_init": 1}
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "k-means": (
            TimeSeriesKMeans,
            {"distance": "euclidean", "averaging_method": "mean", "n_init": 1},
        ),
        "k-means, DTW": (TimeSeriesKMeans, {**by_dtw, "averaging_method": "mean"}),
        "DBA": (TimeSeriesKMeans, {**by_dtw, "averaging_method": "ba"}),
        "k-shape": (KShape, {"n_init": 1}),
        "k-SC": (KSpectralCentroid, {"n_init": 1}),
    }
    for name, (make, options) in ways.items():
        began, rows = time.perf_counter(), []
        for seed in range(1, n_seeds + 1):
            first = np.random.default_rng(seed).choice(len(curves), k, replace=False)
            model = make(k, init=curves[first][:, None, :], random_state=seed, **options)
            labels = np.asarray(model.fit(curves[:, None, :]).labels_)
            rows.append(
                (model.inertia_, accuracy(kinds, labels), adjusted_rand_score(kinds, labels))
            )
        least = min(rows)
        console.print(
            f"{name}, best of {n_seeds} by its criterion: accuracy {least[1]:.3f}, adjusted Rand "
            f"index {least[2]:.3f}; mean {np.mean(rows, axis=0)[1]:.3f}, "
            f"{time.perf_counter() - began:.0f} s"
        )


def main() -> None:
    """Read the curves, learn or fit, and print."""
    given = begin(
        __doc__,
        seeds=10,
        first_seed=1,
        noise={"nargs": "+", "choices": ["shared", "class"], "default": ["shared", "class"]},
        folder=({"type": Path, "default": Path("aeon/datasets/data")}, "aeon's data"),
        rivals=(False, "other methods alone"),
        data={"nargs": "+", "default": ["Trace"]},
    )
    warnings.simplefilter("ignore")
    for name in given.data:
        curves, kinds = read(name, given.folder)
        console.print(
            f"{name}: {len(curves)} curves of {curves.shape[1]} points, {kinds.max() + 1} kinds"
        )
        if given.rivals:
            rivals(curves, kinds, given.seeds)
        else:
            ours(curves, kinds, given)


if __name__ == "__main__":
    main()
