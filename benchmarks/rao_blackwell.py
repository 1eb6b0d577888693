"""Variance times seconds of burst statistics, plain and Rao-Blackwell.

One noisy digit under a mixture of templates: independent bursts estimate class weights, ΦᵀY,
ΦᵀΦ and ββᵀ, once averaged over the chain's draws and once over all classes with the weights from
which the index was drawn. Reported is the ratio of (mean squared error × seconds), plain over
Rao-Blackwell, at each image: above one, Rao-Blackwell is worth its time.

    python benchmarks/rao_blackwell.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from threadpoolctl import threadpool_limits
from versions import tell_versions

import pymc_mcoem as mcoem

NAMES = ("class_weight", "template_projection", "template_gram", "deformation_outer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--bursts", type=int, default=30)
    parser.add_argument("--classes", type=int, default=6)
    arguments = parser.parse_args()
    tell_versions()
    digits = mcoem.datasets.load_digits()["images"].values
    rng = np.random.default_rng(1)
    digits = digits[rng.permutation(len(digits))] + 0.1 * rng.standard_normal(digits.shape)
    priors = mcoem.TemplatePriors().with_deformation_variance(0.005, weight=2_000)
    mixture = mcoem.TemplateMixture.for_images(
        (8, 8), n_classes=arguments.classes, rigid_variance=0.05, priors=priors
    )
    move = mcoem.RandomWalk(n_moves=5)
    steps = {
        kind: mcoem.CarlinChibBurst(within_class=move, rao_blackwell=kind).compile(mixture)
        for kind in (False, True)
    }
    parameters = mixture.initialize(list(digits[:200]), rng, "kmeans")

    ratios: dict[str, list[float]] = {name: [] for name in NAMES}
    with threadpool_limits(1):
        for image in digits[200 : 200 + arguments.images]:
            data = mixture.encode(image)
            found: dict[bool, dict[str, list[np.ndarray]]] = {}
            seconds: dict[bool, list[float]] = {False: [], True: []}
            for kind in steps:
                found[kind] = {name: [] for name in NAMES}
            for burst in range(arguments.bursts + 1):
                for kind, step in steps.items():
                    seed = np.random.default_rng([burst, int(kind)])
                    began = time.perf_counter()
                    result = step(
                        data, parameters, seed, step.initial_state(), draws=25, burn_in=10
                    )
                    if burst:  # the first may compile
                        seconds[kind].append(time.perf_counter() - began)
                        for name in NAMES:
                            found[kind][name].append(result.statistics[name])
            for name in NAMES:
                # both estimate the same mean, so the pooled mean is the better truth
                truth = np.mean([*found[False][name], *found[True][name]], axis=0)
                error = {
                    kind: float(
                        np.mean([np.sum((value - truth) ** 2) for value in found[kind][name]])
                    )
                    * statistics.median(seconds[kind])
                    for kind in steps
                }
                ratios[name].append(error[False] / max(error[True], 1e-300))
    print(f"mean squared error × seconds, plain over Rao-Blackwell, {arguments.images} images:")
    for name in NAMES:
        low, middle, high = np.quantile(ratios[name], [0.25, 0.5, 0.75])
        print(f"  {name}: median {middle:.2f}, quartiles {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
