"""Compare the error rate of online EM by bursts with batch and mini-batch SAEM over time.

This is the paper's comparison (section 5.2), with the same model, kernel and M-step for all
methods. In the partially supervised study every digit has its own mixture of two classes, and other
images are classified over all digits' classes. In the unsupervised study one mixture of 15 classes
serves all digits, and each class is named by the digit that weighs most in it. All methods start
from the same parameters at t = 0 and have the same time for each mixture. Online EM repeats its
images in a new order when it has seen them all. Everything is compiled before the clock starts.
Test images are classified by Laplace's evidence for all methods.

    python examples/live_error_rate.py --quick                 # 8 × 8 digits, in 3 minutes
    export PYMC_MCOEM_DATA=folder/with/the/data                # else they are downloaded
    python examples/live_error_rate.py                         # postal digits, under an hour
    python examples/live_error_rate.py --unsupervised --quick

It prints errors and seconds, and writes ``live_error_rate.png``, ``live_templates.png``,
``live_weights.png`` and ``live_error_rate.nc`` to ``output/``.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from rich.console import Console
from rich.progress import track
from rich.table import Table

import pymc_mcoem as mcoem

matplotlib.use("Agg")
import matplotlib.pyplot as plt

console = Console()
SWEEPS = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(n_moves=10))
E_STEP = mcoem.esteps.LaplaceGaussian()
#: Seconds per iteration in the paper's two tables, on its authors' machine.
PAPER = {"online EM": (20, 170), "SAEM-50": (225, None), "SAEM-300": (1_570, None)}
PAPER |= {"SAEM-500": (None, 17_570)}
#: Seconds, images per mixture and test images, by (quick, unsupervised).
DEFAULTS = {
    (True, False): (2.0, 30, 150),
    (True, True): (20.0, 300, 150),
    (False, False): (40.0, 300, 1_000),
    (False, True): (300.0, 500, 1_000),
}


@dataclass(frozen=True)
class Method:
    """A method of learning, with its number of images and its settings."""

    n_images: int
    #: Batch size of SAEM; None for online EM.
    batch_size: float | None = None
    #: Whether classes without observations are revived; the paper does not do so.
    revival: bool = False


@dataclass(frozen=True)
class Setting:
    """A comparison: data, sizes and the seconds of learning for each mixture."""

    quick: bool
    unsupervised: bool
    seconds: float
    n_images: int
    n_test: int
    start: str
    seed: int

    @property
    def n_classes(self) -> int:
        return 15 if self.unsupervised else 2

    @property
    def groups(self) -> range:
        """Numbers of the mixtures to learn."""
        return range(1 if self.unsupervised else 10)

    @property
    def methods(self) -> dict[str, Method]:
        """The compared methods by name."""
        n = self.n_images
        if self.unsupervised:
            return {"online EM": Method(n), f"SAEM-{n}": Method(n, 1.0)}
        few = min(50, max(n // 3, 5))
        return {
            "online EM": Method(n),
            "online EM, revival": Method(n, revival=True),
            f"SAEM-{few}": Method(few, 1.0),
            f"SAEM-{n}": Method(n, 1.0),
            f"SAEM-{n}, tenths": Method(n, 0.1),
        }


@cache
def make_mixture(setting: Setting) -> mcoem.TemplateMixture:
    """Make a mixture of the paper's digits settings, with priors against one dominant class.

    One mixture serves all methods and digits, so that a process compiles once.
    """
    shape, variance = ((8, 8), 0.0025) if setting.quick else ((16, 16), 0.005)
    priors = mcoem.TemplatePriors(weight_concentration=5.0).with_deformation_variance(
        variance, weight=2_000
    )
    rigid = {"rigid_variance": 0.05} if setting.quick else {}
    return mcoem.TemplateMixture.for_images(
        shape, setting.n_classes, rigid_weight=None, priors=priors, **rigid
    )


@cache
def split(setting: Setting) -> dict[str, np.ndarray]:
    """Draw learning images, for every digit or for all, and test images among the others."""
    load = mcoem.datasets.load_digits if setting.quick else mcoem.datasets.load_usps
    data = load()
    images, labels = data["images"].values, data["labels"].values
    rng = np.random.default_rng(setting.seed)
    order = rng.permutation(len(images))
    if setting.unsupervised:
        learn = order[: setting.n_images][None]
    else:
        learn = np.stack([order[labels[order] == k][: setting.n_images] for k in range(10)])
    rest = order[~np.isin(order, learn)][: setting.n_test]
    noise = 0.0 if setting.quick else 0.2
    noisy = images + noise * rng.standard_normal(images.shape)
    return {
        "learn": noisy[learn],
        "learn_labels": labels[learn],
        "test": noisy[rest],
        "truth": labels[rest],
    }


def make_driver(setting: Setting, method: str, group: int) -> mcoem.OnlineEM | mcoem.SAEM:
    """Return the driver of a method at t = 0, where all methods have the same parameters."""
    mixture = make_mixture(setting)
    first = split(setting)["learn"][group][: 50 if setting.unsupervised else 10]
    rng = np.random.default_rng([setting.seed, group])
    common = {
        "parameters": mixture.initialize(list(first), rng, setting.start),
        "e_step": SWEEPS,
        "progressbar": False,
        "keep": 10_000,
        "random_seed": [setting.seed, group],
    }
    chosen = setting.methods[method]
    if chosen.batch_size is None:
        return mcoem.OnlineEM(
            mixture,
            burst_length=mcoem.schedules.BurstLength(draws=40, tune=20),
            revival=mcoem.Revival() if chosen.revival else None,
            **common,
        )
    return mcoem.SAEM(
        mixture,
        draws=20,
        # Mode searches take most of a visit, and chains continue without them: this favors SAEM.
        refit_every=5,
        step_size=mcoem.schedules.PhasedStepSize(n_constant=5 if chosen.batch_size == 1 else 50),
        batch_size=chosen.batch_size,
        **common,
    )


def learn(task: tuple[Setting, str, int]) -> xr.Dataset:
    """Learn one mixture by one method until its time is over; return its path."""
    setting, method, group = task
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    images = split(setting)["learn"][group][: setting.methods[method].n_images]
    rng = np.random.default_rng([setting.seed, group, 1])
    # A first driver compiles and is thrown away: compiled code stays with the mixture.
    unused = make_driver(setting, method, group)
    if isinstance(unused, mcoem.OnlineEM):
        unused.partial_fit(images[:2])
    else:
        unused.fit(images[:2], 1)
    driver = make_driver(setting, method, group)
    began = time.perf_counter()
    while time.perf_counter() - began < setting.seconds:
        if isinstance(driver, mcoem.OnlineEM):
            for image in images[rng.permutation(len(images))]:
                driver.partial_fit(image)
                if time.perf_counter() - began >= setting.seconds:
                    break
        else:
            driver.fit(images, 1)
    elapsed = time.perf_counter() - began
    path = driver.history["steps"].to_dataset()
    clock = np.nancumsum(path["seconds"].values)
    # The cost of calls outside of steps is spread over the steps.
    return path.assign_coords(clock=("step", clock * (elapsed / clock[-1])))


def at(path: xr.Dataset, seconds: float) -> xr.Dataset:
    """Return the parameters that a run had at some time."""
    step = int(np.searchsorted(path["clock"].values, seconds, side="right")) - 1
    names = ("weights", "templates", "noise_variance", "deformation_variance")
    return path.isel(step=step, drop=True)[list(names)].drop_vars("clock", errors="ignore")


def digest(parameters: list[xr.Dataset]) -> bytes:
    """Return a digest of parameters, one set for each mixture."""
    return b"".join(value.values.tobytes() for each in parameters for value in each.values())


def error(task: tuple[Setting, list[xr.Dataset]]) -> float:
    """Return the share of test images that parameters, one set for each mixture, name wrongly."""
    setting, parameters = task
    logging.getLogger("pymc_mcoem").setLevel(logging.ERROR)
    data, mixture = split(setting), make_mixture(setting)
    options = {"progressbar": False, "e_step": E_STEP, "draws": 1}
    if not setting.unsupervised:
        classifier = mcoem.Classifier(mixture, dict(enumerate(parameters)), **options)
        return 1.0 - classifier.score(data["test"], data["truth"])
    classifier = mcoem.Classifier(mixture, parameters[0], **options)
    weights = classifier.class_probabilities(data["learn"][0])
    names = np.array(mcoem.majority_labels(weights, data["learn_labels"][0]))
    return float(np.mean(names[classifier.predict(data["test"])] != data["truth"]))


def draw_errors(found: xr.DataArray, file: Path) -> None:
    """Draw error against time."""
    figure, axis = plt.subplots(figsize=(7, 4))
    for method in found["method"].values:
        axis.plot(found["time"], found.loc[method], marker="o", ms=4, label=str(method))
    axis.set(
        xlabel="seconds of learning for each mixture", ylabel="share of test images named wrongly"
    )
    axis.set_ylim(0, None)
    axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def draw_templates(setting: Setting, paths: dict[str, list[xr.Dataset]], file: Path) -> None:
    """Draw the final templates of each method, one row per method."""
    mixture = make_mixture(setting)
    n_columns = setting.n_classes * len(setting.groups)
    figure, axes = plt.subplots(
        len(paths), n_columns, figsize=(0.55 * n_columns + 1.6, 0.75 * len(paths)), squeeze=False
    )
    for row, (method, runs) in zip(axes, paths.items(), strict=True):
        learned = [at(run, setting.seconds) for run in runs]
        images = [mcoem.template_images(each, mixture).values for each in learned]
        for axis, image in zip(row, np.concatenate(images), strict=True):
            axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(method, rotation=0, ha="right", va="center", fontsize=8)
    figure.tight_layout(h_pad=0.3, w_pad=0.1)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def draw_weights(paths: dict[str, list[xr.Dataset]], file: Path) -> None:
    """Draw the class weights of the first mixture against time."""
    figure, axes = plt.subplots(1, len(paths), figsize=(3 * len(paths), 2.6), sharey=True)
    for axis, (method, runs) in zip(np.atleast_1d(axes), paths.items(), strict=True):
        axis.plot(runs[0]["clock"], runs[0]["weights"])
        axis.set_title(method, fontsize=9)
        axis.set_xlabel("seconds")
    np.atleast_1d(axes)[0].set_ylabel("weight")
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Learn by every method, classify along the way, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="8 × 8 digits and few seconds")
    parser.add_argument("--unsupervised", action="store_true", help="one mixture of 15 classes")
    parser.add_argument("--seconds", type=float, help="of learning for each mixture")
    parser.add_argument("--images", type=int, help="learning images of each mixture")
    parser.add_argument("--test", type=int, help="test images")
    parser.add_argument("--start", choices=["kmeans", "random"], help="at t = 0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("output"))
    given = parser.parse_args()
    quick, alone = given.quick, given.unsupervised
    setting = Setting(
        quick=quick,
        unsupervised=alone,
        seconds=given.seconds or DEFAULTS[quick, alone][0],
        n_images=given.images or DEFAULTS[quick, alone][1],
        n_test=given.test or DEFAULTS[quick, alone][2],
        start=given.start or ("kmeans" if alone else "random"),
        seed=given.seed,
    )
    given.output.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    times = np.concatenate([[0.0], setting.seconds * np.geomspace(0.02, 1, 5 if quick else 6)])
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=context) as pool:
        # Methods take turns, so that a busy machine affects all of them.
        tasks = [(setting, method, k) for k in setting.groups for method in setting.methods]
        runs = list(track(pool.map(learn, tasks), "Learning", total=len(tasks)))
        paths = {
            method: runs[place :: len(setting.methods)]
            for place, method in enumerate(setting.methods)
        }
        wanted = [
            [at(run, seconds) for run in group] for group in paths.values() for seconds in times
        ]
        # All methods have the same parameters until their first update, so these are tested once.
        keys = [digest(parameters) for parameters in wanted]
        jobs = {key: (setting, one) for key, one in zip(keys, wanted, strict=True)}
        errors = track(pool.map(error, jobs.values()), "Classifying", total=len(jobs))
        known = dict(zip(jobs, errors, strict=True))
        values = [known[key] for key in keys]
    found = xr.DataArray(
        np.reshape(values, (len(paths), len(times))),
        coords={"method": list(paths), "time": times},
        dims=("method", "time"),
        name="error",
    )
    table = Table(title=f"Share of {setting.n_test} test images named wrongly, after seconds")
    table.add_column("method", no_wrap=True)
    for seconds in times:
        table.add_column(f"{seconds:.2g}", justify="right", no_wrap=True)
    pace = Table(title="Iterations of a mixture; the paper's on its authors' machine")
    for heading in ("method", "made", "seconds each", "paper, seconds each"):
        pace.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for method, group in paths.items():
        table.add_row(method, *(f"{value:.2f}" for value in found.loc[method].values))
        n_steps = np.mean([run.sizes["step"] - 1 for run in group])
        each = np.mean([float(run["clock"][-1]) / (run.sizes["step"] - 1) for run in group])
        theirs = PAPER.get(method, (None, None))[int(alone)]
        pace.add_row(method, f"{n_steps:.0f}", f"{each:.3g}", str(theirs or ""))
    console.print(table)
    console.print(pace)
    draw_errors(found, given.output / "live_error_rate.png")
    draw_templates(setting, paths, given.output / "live_templates.png")
    draw_weights(paths, given.output / "live_weights.png")
    found.to_netcdf(given.output / "live_error_rate.nc", engine="h5netcdf")
    console.print(f"All done in {time.perf_counter() - began:.0f} s; see {given.output}.")


if __name__ == "__main__":
    main()
