"""How often classes jump in 78 dimensions, by pseudo-prior and by how it is used.

A mixture of four templates is learnt from 60 handwritten twos of 16 × 16 pixels; then single
images, on which at least two classes have much the same evidence by Laplace's approximation, are
sampled with θ held fixed. The variance of the deformations is that learnt, and parts of it:
the smaller it is, the closer posteriors are to normal. Samplers take turns; switches of the class
index per second of sampling are printed, fits and compilation not counted, and the effective share
of the pseudo-priors' draws as the step itself estimates it.

    python benchmarks/pseudo_priors.py --seconds 8
"""

from __future__ import annotations

import argparse
import logging
import time

import numpy as np
import pymc as pm
from rich.console import Console
from rich.table import Table

import pymc_mcoem as mcoem

HAMILTONIAN = mcoem.Hamiltonian(n_moves=1, n_leapfrog=8)

SAMPLERS = {
    "Laplace, 20 random-walk moves": {"within_class": mcoem.RandomWalk(n_moves=20)},
    "Laplace, Hamiltonian": {"within_class": HAMILTONIAN},
    "Laplace, Hamiltonian, frozen": {"within_class": HAMILTONIAN, "auxiliaries": "frozen"},
    "Laplace, Hamiltonian, 8 auxiliaries": {"within_class": HAMILTONIAN, "n_auxiliaries": 8},
    "Laplace, Hamiltonian, 32 auxiliaries": {"within_class": HAMILTONIAN, "n_auxiliaries": 32},
    "moments of 1,000 moves, Hamiltonian": {
        "within_class": HAMILTONIAN,
        "pseudo_priors": mcoem.ChainMoments(n_steps=1_000),
    },
    "moments of 4,000 moves, Hamiltonian": {
        "within_class": HAMILTONIAN,
        "pseudo_priors": mcoem.ChainMoments(n_steps=4_000),
    },
    "prior covariance, random walk": {"pseudo_priors": mcoem.PriorCovariance()},
    "Laplace, carried over at once": {
        "within_class": HAMILTONIAN,
        "jump": mcoem.AnnealedJump(n_temperatures=1),
    },
    "Laplace, annealed over 30": {
        "within_class": HAMILTONIAN,
        "jump": mcoem.AnnealedJump(n_temperatures=30),
    },
    "Laplace, annealed over 200": {
        "within_class": HAMILTONIAN,
        "jump": mcoem.AnnealedJump(n_temperatures=200),
    },
    "Laplace, annealed over 1,000": {
        "within_class": HAMILTONIAN,
        "jump": mcoem.AnnealedJump(n_temperatures=1_000),
    },
}

#: Parts of the deformations' variance that was learnt, and how many images for each.
PARTS, N_IMAGES = (0.05, 0.4, 1.0), 2


def main() -> None:
    """Learn the mixture, find images in doubt, let the samplers take turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="of sampling, each time")
    parser.add_argument("--data", help="folder of the USPS file")
    arguments = parser.parse_args()
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    digits = mcoem.datasets.load_usps("train", directory=arguments.data)
    rng = np.random.default_rng(2)
    images = digits["images"].values[digits["labels"].values == 2][:140]
    images = images + 0.2 * rng.standard_normal(images.shape)
    mixture = mcoem.TemplateMixture.for_images((16, 16), n_classes=4)
    em = mcoem.OnlineEM(mixture, random_seed=1, progressbar=False).partial_fit(images[:60])
    learnt = em.parameters
    e_step = mcoem.CarlinChibBurst().compile(mixture)
    model = mixture.condition(images[60], learnt)
    with model:
        steps = {name: mcoem.CarlinChib(**options) for name, options in SAMPLERS.items()}

    console = Console(width=150)
    table = Table(title=f"switches per second of sampling, {arguments.seconds:g} s each")
    table.add_column("sampler")
    cells: dict[str, list[str]] = {name: [] for name in steps}
    for part in PARTS:
        parameters = learnt.assign(deformation_variance=part * learnt["deformation_variance"])
        theta = mixture.check_parameters(parameters)
        doubtful = []
        for number in range(60, len(images)):
            fitted = e_step.pseudo_priors(
                {**mixture.encode(images[number]), **theta}, np.random.default_rng(0)
            )
            second, first = np.sort(fitted.log_evidence)[-2:]
            doubtful.append((first - second, number))
        for gap, number in sorted(doubtful)[:N_IMAGES]:
            table.add_column(f"γ² × {part:g}, image {number} (gap {gap:.1f})", justify="right")
            with model:
                pm.set_data({**mixture.encode(images[number]), **theta})
            for name, step in steps.items():
                speed, shares = measure(model, step, arguments.seconds)
                cells[name].append(f"{speed:.2f} ({' '.join(f'{s:.2f}' for s in shares)})")
                console.print(part, number, name, cells[name][-1])
    for name, row in cells.items():
        table.add_row(name, *row)
    console.print(table)


def measure(model: pm.Model, step: mcoem.CarlinChib, seconds: float) -> tuple[float, np.ndarray]:
    """Return switches a second after tuning, and the shares of the classes."""
    step.setup_chain(np.random.default_rng(0), tune=300, draws=300)
    point = model.initial_point(0)
    began = time.perf_counter()
    for _ in range(300):
        point = step.step(point)[0]
        if time.perf_counter() - began > seconds:
            # long jumps: their step size is tuned soon, for each is many moves
            break
    step.stop_tuning()
    began, index = time.perf_counter(), []
    while time.perf_counter() - began < seconds:
        point = step.step(point)[0]
        index.append(int(point["class_index"]))
    elapsed = time.perf_counter() - began
    return np.count_nonzero(np.diff(index)) / elapsed, np.bincount(index, minlength=4) / len(index)


if __name__ == "__main__":
    main()
