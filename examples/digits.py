"""Learn templates of handwritten digits in one pass over a stream.

Of scikit-learn's 1,797 images of 8 × 8 pixels, 1,200 are streamed without their labels and the rest
are held out. Each class is then named by the digit that weighs most in it. The share of held-out
images whose class has the right name is compared with k-means and with the same model without
warps.

Run it with ``make demo`` or ``python examples/digits.py``. It writes a picture of the templates
after the first 150 images, another after all images, and the history of the run to ``output/``.
"""

from __future__ import annotations

import argparse
import logging
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table
from sklearn.cluster import KMeans, MiniBatchKMeans

import pymc_mcoem as mcoem

matplotlib.use("Agg")
import matplotlib.pyplot as plt

console = Console()

#: Images held for the k-means start, ten per template. They are learned like all others.
N_START = 150


def make_mixture(n_classes: int) -> mcoem.TemplateMixture:
    """Make the model of 8 × 8 digits."""
    return mcoem.TemplateMixture.for_images((8, 8), n_classes=n_classes)


def accuracy(train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray) -> float:
    """Return the share of test images whose class, named by its majority label, is right."""
    n_classes = 1 + int(max(train.max(), test.max()))
    names = np.array(mcoem.majority_labels(np.eye(n_classes)[train], labels))
    return float(np.mean(names[test] == truth))


def rivals(
    images: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    n_classes: int,
    seed: int,
) -> dict[str, float]:
    """Return the shares of held-out images that rivals with as many classes name correctly."""
    # Two processes share the terminal, so this one does not log.
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    mixture = make_mixture(n_classes)
    e_step = mcoem.esteps.FixedLatents()
    still = mcoem.OnlineEM(
        mixture,
        e_step=e_step,
        n_start=N_START,
        step_size=mcoem.schedules.StepSize(0.75),
        random_seed=seed,
        progressbar=False,
    ).partial_fit(images[train])
    warpless = mcoem.Classifier(mixture, still.parameters, e_step=e_step, progressbar=False)

    flat = images.reshape(len(images), -1)
    batch = KMeans(n_classes, n_init=10, random_state=seed).fit(flat[train])
    one_pass = MiniBatchKMeans(n_classes, random_state=seed)
    one_pass.partial_fit(flat[train[:50]])
    for begin in range(50, len(train), 10):
        one_pass.partial_fit(flat[train[begin : begin + 10]])

    found = {}
    for name, method, data in (
        ("same model without warps, one pass", warpless, images),
        ("mini-batch k-means, one pass", one_pass, flat),
        ("batch k-means, best of 10 starts", batch, flat),
    ):
        classes = method.predict(data[train]), method.predict(data[test])
        found[name] = accuracy(classes[0], labels[train], classes[1], labels[test])
    return found


def draw_first(
    parameters: xr.Dataset, mixture: mcoem.TemplateMixture, n_seen: int, file: Path
) -> None:
    """Draw the templates after the first images, the heaviest first."""
    images = mcoem.template_images(parameters, mixture)
    order = np.argsort(-parameters["weights"].values)
    figure, axes = plt.subplots(-(-len(order) // 5), 5, figsize=(5, -(-len(order) // 5)))
    for axis in axes.ravel():
        axis.set_axis_off()
    for axis, j in zip(axes.ravel(), order, strict=False):
        axis.imshow(images.isel({"class": j}), cmap="gray_r", vmin=0, vmax=1)
    figure.suptitle(f"Templates after {n_seen} images", fontsize=9)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def draw(
    parameters: xr.Dataset,
    mixture: mcoem.TemplateMixture,
    names: list,
    path: xr.Dataset,
    file: Path,
) -> None:
    """Draw the templates with their weights, and how the six heaviest grew."""
    images = mcoem.template_images(parameters, mixture)
    weights = parameters["weights"].values
    order = np.argsort(-weights)
    n_columns = 10
    n_rows = -(-len(order) // n_columns)
    growing = order[:6]
    steps = np.unique(np.geomspace(1, path.sizes["step"], n_columns).astype(int) - 1)
    figure, axes = plt.subplots(
        n_rows + len(growing), n_columns, figsize=(n_columns, 1.18 * (n_rows + len(growing)))
    )
    for axis in axes.ravel():
        axis.set_axis_off()
    for axis, j in zip(axes.ravel(), order, strict=False):
        axis.imshow(images.isel({"class": j}), cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(f"{names[j]}: {100 * weights[j]:.1f} %", fontsize=7, pad=2)
    for column, step in zip(axes[n_rows:].T, steps, strict=False):
        grown = mcoem.template_images({"templates": path["templates"].isel(step=step)}, mixture)
        for axis, j in zip(column, growing, strict=True):
            axis.imshow(grown.isel({"class": j}), cmap="gray_r", vmin=0, vmax=1)
            axis.set_title(f"n = {int(path['step'][step])}", fontsize=6, pad=2)
    figure.suptitle("Templates with their weights, and how the six heaviest grew", fontsize=10)
    figure.tight_layout(rect=(0, 0, 1, 0.985), h_pad=0.6, w_pad=0.2)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Learn, compare, draw, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=15)
    parser.add_argument("--images", type=int, default=1_200, help="images streamed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("output"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)

    digits = mcoem.datasets.load_digits()
    images, labels = digits["images"].values, digits["labels"].values
    shuffled = np.random.default_rng(arguments.seed).permutation(len(images))
    train, test = shuffled[: arguments.images], shuffled[arguments.images :]

    console.print(
        f"Streaming {len(train)} images through {arguments.classes} templates, without labels. "
        "The first run compiles for some ten seconds; later ones start at once."
    )
    began = time.perf_counter()
    mixture = make_mixture(arguments.classes)
    e_step = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(n_moves=5))
    em = mcoem.OnlineEM(
        mixture,
        e_step=e_step,
        burst_length=mcoem.schedules.BurstLength(draws=25, tune=10),
        n_start=N_START,
        step_size=mcoem.schedules.StepSize(0.75),
        random_seed=arguments.seed,
    )
    em.partial_fit(images[train[:N_START]])
    first = arguments.output / "digits_first.png"
    draw_first(em.parameters, mixture, min(N_START, len(train)), first)
    console.print(f"{first} after {time.perf_counter() - began:.0f} s.")

    # The methods for comparison run in a separate process on the other core.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        waiting = other.submit(
            rivals, images, labels, train, test, arguments.classes, arguments.seed
        )
        if len(train) > N_START:
            em.partial_fit(images[train[N_START:]])
        learned = time.perf_counter() - began
        parameters = em.parameters

        # The class weights of the last images of the stream name the classes, so that no image is
        # seen twice.
        last = em.history["observations"]["class_weight"].values[-600:].argmax(axis=1)
        named = labels[train][-600:]
        names = mcoem.majority_labels(np.eye(arguments.classes)[last], named)
        classifier = mcoem.Classifier(mixture, parameters, e_step=e_step, draws=25)
        ours = accuracy(last, named, classifier.predict(images[test]), labels[test])
        shares = {"this model, one pass": ours, **waiting.result()}

    table = Table(title=f"Held-out images ({len(test)}) whose class is named correctly")
    table.add_column("method")
    table.add_column("share", justify="right")
    for name, share in shares.items():
        table.add_row(name, f"{share:.3f}")
    console.print(table)

    picture, history = arguments.output / "digits.png", arguments.output / "digits.nc"
    draw(parameters, mixture, names, em.history["steps"].to_dataset(), picture)
    em.history.to_netcdf(history, engine="h5netcdf")
    noise = float(np.sqrt(parameters["noise_variance"]))
    console.print(
        f"Noise {noise:.3f}; learned in {learned:.0f} s, all done in "
        f"{time.perf_counter() - began:.0f} s. Wrote {picture} and {history}."
    )


if __name__ == "__main__":
    main()
