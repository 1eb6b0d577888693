"""Separate boys and girls by 93 unlabeled growth curves, and compare with other methods.

The data are velocities of the Berkeley growth study at 31 ages from 2 to 18 years, drawn with
replacement; there are two templates. The table has for every seed the share of children in their
own sex's group, up to a swap of the groups; the adjusted Rand index; the ages of the templates'
spurts, on the age axis at each class's mean posterior warp; γ² of both classes; and the seconds of
learning without the first seed's compilation.

    python benchmarks/growth.py                  # five random-walk moves a sweep, θ averaged
    python benchmarks/growth.py --plain          # OnlineEM(mixture), nothing set
    python benchmarks/growth.py --paper          # OnlineEM.as_in_paper: random starts, long bursts
    python benchmarks/growth.py --random         # random starts
    python benchmarks/growth.py --compete 5      # five random starts compete by evidence
    python benchmarks/growth.py --weak-priors    # weak priors, so the likelihood dominates
    python benchmarks/growth.py --deformation-variance 0.04

    python benchmarks/growth.py --seeds 0        # other methods alone

scikit-fda, tslearn and fdasrsf take part if they are installed: ``pip install '.[peers]'``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import time
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from timing import begin, console

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.compiled_cache import compiled_for

AGES = np.linspace(2.0, 18.0, 31)
FINE = np.linspace(8.0, 17.0, 901)
#: Observations of a competition, and the weight of the prior on γ² in coordinates of time warps.
FIRST, WEIGHT = 200, 4_000.0
#: Smallest share of children in their own sex's group at which a run has found the sexes.
GOOD = 0.88


def share(groups: np.ndarray, sex: np.ndarray) -> float:
    """Return the share of children in their own sex's group, up to a swap."""
    own = float(np.mean(groups == sex))
    return max(own, 1.0 - own)


def explain(
    mixture: mcoem.TemplateMixture, e_step: Any, parameters: Any, curves: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return class probabilities (child, class) and mean β (class, parameter) at θ."""
    theta = mixture.check_parameters(parameters)
    weights, sums = [], 0.0
    for number, curve in enumerate(curves):
        found = e_step(
            mixture.encode(curve),
            theta,
            np.random.default_rng([17, number]),
            e_step.initial_state(),
            draws=200,
            tune=50,
        )
        weights.append(found.statistics["class_weight"])
        sums = sums + found.statistics["deformation"]
    probabilities = np.stack(weights)
    return probabilities, sums / np.maximum(probabilities.sum(axis=0), 1e-9)[:, None]


def spurts(mixture: mcoem.TemplateMixture, parameters: Any, warps: np.ndarray) -> np.ndarray:
    """Return the ages of the templates' highest velocity between 8 and 17, (class,)."""
    settings = mixture.settings
    times = settings.deformation.evaluate(FINE, warps)
    curves = [
        settings.basis.matrix(row[:, None]) @ template
        for row, template in zip(times, parameters["templates"].values, strict=True)
    ]
    return FINE[np.argmax(curves, axis=1)]


def others(curves: np.ndarray, sex: np.ndarray, seed: int) -> dict[str, float]:
    """Return the shares of other methods, of which only one sees labels."""
    scores = PCA(4).fit_transform(curves)
    found = {
        "k-means": share(KMeans(2, n_init=20, random_state=seed).fit_predict(curves), sex),
        "Gaussian mixture, 4 principal components": share(
            GaussianMixture(2, n_init=10, random_state=seed).fit_predict(scores), sex
        ),
        "linear discriminant analysis with the labels, 4 components, leave one out": share(
            cross_val_predict(LinearDiscriminantAnalysis(), scores, sex, cv=LeaveOneOut()), sex
        ),
    }
    if importlib.util.find_spec("tslearn"):
        from tslearn.clustering import TimeSeriesKMeans

        for metric in ("dtw", "softdtw"):
            model = TimeSeriesKMeans(2, metric=metric, n_init=3, random_state=seed)
            found[f"tslearn, {metric}"] = share(model.fit_predict(curves[..., None]), sex)
    if importlib.util.find_spec("fdasrsf"):
        import fdasrsf

        with contextlib.redirect_stdout(io.StringIO()):  # it prints every step
            groups = fdasrsf.kmeans_align(curves.T, AGES, 2, showplot=False)["labels"]
        found["fdasrsf, elastic k-means"] = share(np.asarray(groups), sex)
    if importlib.util.find_spec("skfda"):
        import skfda

        grid = skfda.FDataGrid(curves, AGES)
        aligned = skfda.preprocessing.registration.FisherRaoElasticRegistration()
        groups = skfda.ml.clustering.KMeans(n_clusters=2, random_state=seed)
        name = "scikit-fda, k-means after elastic registration"
        found[name] = share(groups.fit_predict(aligned.fit_transform(grid)), sex)
    return found


def tell_others(curves: np.ndarray, sex: np.ndarray) -> None:
    """Print the shares of the other methods."""
    for name, value in others(curves, sex, seed=0).items():
        console.print(f"{name}: {value:.3f}")


def main() -> None:
    given = begin(
        __doc__,
        seeds=(10, "0: other methods alone"),
        iterations=1_000,
        paper=(False, "OnlineEM.as_in_paper"),
        plain=(False, "OnlineEM(mixture), nothing set"),
        random=(False, "random starts"),
        compete=(0, "random starts that compete"),
        weak_priors=(False, "weak priors"),
        deformation_variance=({"type": float}, "γ² is held near this"),
    )
    growth = mcoem.datasets.load_growth()
    sex = (growth.sex.values == "male").astype(int)
    curves = mcoem.datasets.growth_velocity(growth.height, growth.age, AGES)
    if given.seeds == 0:
        tell_others(curves, sex)
        return
    priors = mcoem.TemplateMixture.for_curves(AGES, n_classes=2).priors
    if given.weak_priors:
        priors = mcoem.TemplatePriors()
    if given.deformation_variance:
        priors = priors.with_deformation_variance(given.deformation_variance, WEIGHT)
    mixture = mcoem.TemplateMixture.for_curves(AGES, n_classes=2, priors=priors)
    # Learning does not need this, but each class's mean warp does.
    mixture.statistics["deformation"] = mixture.model["deformation"]
    e_step = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(n_moves=5))
    make: Any = mcoem.OnlineEM
    options: dict[str, Any] = {}
    if given.paper:
        make = mcoem.OnlineEM.as_in_paper
        e_step = mixture.paper_settings()["e_step"]
    elif given.plain:
        e_step = mcoem.esteps.CarlinChibBurst()
    else:
        options["average_from"] = given.iterations // 2
        if given.random or given.compete:
            options["start"] = "random"
    # All runs use it too. It is compiled before the first seed's clock starts.
    compiled = compiled_for(mixture, e_step)
    options |= {"e_step": e_step, "progressbar": False}

    rows = []
    for seed in range(1, given.seeds + 1):
        order = np.random.default_rng(seed).integers(len(curves), size=given.iterations)
        stream = curves[order]
        began = time.perf_counter()
        if given.compete:
            em = mcoem.compete(
                mixture,
                stream[:FIRST],
                n_runs=given.compete,
                as_in_paper=given.paper,
                random_seed=seed,
                **options,
            ).winner.partial_fit(stream[FIRST:])
        else:
            em = make(mixture, random_seed=seed, **options).partial_fit(stream)
        seconds = time.perf_counter() - began
        parameters = em.parameters
        probabilities, warps = explain(mixture, compiled, parameters, curves)
        ages = spurts(mixture, parameters, warps)
        groups = probabilities.argmax(axis=1)
        early, late = np.argsort(ages)
        variances = parameters["deformation_variance"].values[[early, late]]
        row = (share(groups, sex), adjusted_rand_score(sex, groups), *ages[[early, late]])
        rows.append((*row, *variances, seconds))
        evidence = em.history["observations"]["log_evidence"].values[-200:].mean()
        console.print(
            f"seed {seed:2d}: own group {row[0]:.3f}, ARI {row[1]:.3f}, spurts {row[2]:.2f} and "
            f"{row[3]:.2f}, γ² {variances[0]:.3f} and {variances[1]:.3f}, "
            f"σ {float(np.sqrt(parameters['noise_variance'])):.3f}, log-evidence "
            f"{evidence:.2f}, {seconds:.0f} s"
        )
    table = np.array(rows)
    mean, least = table.mean(axis=0), table.min(axis=0)
    console.print(
        f"mean of {len(table)} seeds: own group {mean[0]:.3f} (least {least[0]:.3f}), ARI "
        f"{mean[1]:.3f}, spurts {mean[2]:.2f} and {mean[3]:.2f}, γ² {mean[4]:.3f} and "
        f"{mean[5]:.3f}, {mean[6]:.0f} s; {np.mean(table[:, 0] >= GOOD):.2f} of the seeds have at "
        f"least {GOOD} in their own group"
    )
    tell_others(curves, sex)


if __name__ == "__main__":
    main()
