"""Compare the work per second of one process and of two, in turn.

Images have 16 × 16 pixels (``--side``) under four classes. One process and an executor of two
processes, which have compiled already, do the same work: learning in mini-batches, classification,
one mixture for each of four labels, and two chains of ``sample_burst`` for one image. Two chains of
``pm.sample`` with ``CarlinChib`` for that image run with ``cores=1`` and ``cores=2``, including the
start of PyMC's processes. Reported are medians, their ratio, and whether the numbers are bitwise
identical. Both cores have to be free.

    python benchmarks/two_cores.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pymc as pm
import xarray as xr
from cost_growth import moving_disc
from joblib.externals.loky import get_reusable_executor
from threadpoolctl import threadpool_limits
from timing import begin, console, in_turn, medians

import pymc_mcoem as mcoem

N_CLASSES, N_LABELS = 4, 4


@cache
def own_mixture(side: int, n_classes: int) -> mcoem.TemplateMixture:
    """Return the process's mixture, which keeps its compiled functions."""
    return mcoem.TemplateMixture.for_images(
        (side, side), n_classes=n_classes, rigid_weight=None, priors=mcoem.TemplatePriors()
    )


def learned(stream: np.ndarray, n_classes: int) -> np.ndarray:
    """Return the templates that one pass over a label's images ``(n, side, side)`` learns."""
    mixture = own_mixture(stream.shape[1], n_classes)
    # The model has the parameters of the label before; every label starts as the first did.
    start = mixture.to_dataset(mixture.declared_parameters())
    em = mcoem.OnlineEM(mixture, parameters=start, random_seed=1, progressbar=False)
    templates: np.ndarray = em.partial_fit(stream).parameters["templates"].values
    return templates


def drawn(trace: xr.DataTree) -> np.ndarray:
    """Return all draws of all variables in one vector."""
    return np.concatenate([np.ravel(each) for each in trace["posterior"].data_vars.values()])


def main() -> None:
    # By name and not from the script, so that processes import it and keep what they compiled.
    from two_cores import learned

    given = begin(
        __doc__,
        side=(16, "pixels along an axis"),
        only={"choices": ["learning", "classifying", "labels", "bursts", "chains"]},
        observations=(160, "of each round"),
        batch_size=16,
        draws=(50_000, "of each of two chains"),
        rounds=3,
    )
    if (load := os.getloadavg()[0]) > 0.5:
        console.print(f"Other programs have {load:.1f} cores: the ratios are too small.")
    mixture = mcoem.TemplateMixture.for_images(
        (given.side, given.side),
        n_classes=N_CLASSES,
        rigid_weight=None,
        priors=mcoem.TemplatePriors(),
    )
    stream = moving_disc(given.observations, np.random.default_rng(1), given.side)
    pool = get_reusable_executor(max_workers=2, timeout=3_600)

    runs = {
        executor: mcoem.OnlineEM(
            mixture,
            parameters=mixture.parameters,
            batch_size=given.batch_size,
            executor=executor,
            random_seed=1,
            progressbar=False,
        )
        for executor in (None, pool)
    }
    classifiers = {
        executor: mcoem.Classifier(
            mixture, mixture.parameters, executor=executor, random_seed=1, progressbar=False
        )
        for executor in (None, pool)
    }

    def learn(executor: object) -> np.ndarray:
        return runs[executor].partial_fit(stream).parameters["templates"].values

    def classify(executor: object) -> np.ndarray:
        return classifiers[executor].predict_proba(stream)

    shares = [stream[label::N_LABELS] for label in range(N_LABELS)]

    def learn_labels(executor: object) -> np.ndarray:
        spread = map if executor is None else pool.map
        return np.stack(list(spread(learned, shares, [N_CLASSES] * N_LABELS)))

    with mixture.condition(stream[0]) as model:
        step = mcoem.CarlinChib()

    def draw(executor: object) -> np.ndarray:
        with model:
            trace = pm.sample(
                step=step,
                tune=500,
                draws=given.draws,
                chains=2,
                cores=1 if executor is None else 2,
                random_seed=1,
                progressbar=False,
                compute_convergence_checks=False,
            )
        return drawn(trace)

    def sample(executor: object) -> np.ndarray:
        return drawn(
            mcoem.sample_burst(
                mixture,
                stream[0],
                tune=500,
                draws=given.draws,
                chains=2,
                executor=executor,
                random_seed=1,
                progressbar=False,
            )
        )

    works: dict[str, tuple[Callable[[object], np.ndarray], int, str]] = {
        "learning": (learn, given.observations, "observations"),
        "classifying": (classify, given.observations, "observations"),
        "labels": (learn_labels, given.observations, "observations"),
        "bursts": (sample, 2 * (given.draws + 500), "draws"),
        "chains": (draw, 2 * (given.draws + 500), "draws"),
    }
    with threadpool_limits(1):
        for name, (work, size, unit) in works.items():
            if given.only not in (None, name):
                continue
            ways = {"one": partial(work, None), "two": partial(work, pool)}
            seconds, found = in_turn(ways, given.rounds)
            one, two = (size / spent for spent in medians(seconds).values())
            same = np.array_equal(found["one"], found["two"])
            console.print(
                f"{name}: {one:.1f} {unit} a second by one process, {two:.1f} by two: "
                f"{two / one:.2f} times; the same numbers: {same}"
            )


if __name__ == "__main__":
    main()
