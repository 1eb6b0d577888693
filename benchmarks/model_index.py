"""Compare `CarlinChib` with nothing set with the exact answers of models that others published.

The models and their answers are in `published_models.py` and `published_on_grids.py`. Each is
sampled as its user would: 1,000 draws in four chains after the step's default of 500 for tuning,
and nothing is set except the blocks. A run is

* ``right`` if the share of each class of all chains together is within the larger of four Monte
  Carlo errors and 0.02 of the exact probability, and that of each chain within four of its own;
* ``right, flagged`` if `class_index_summary` warns nevertheless, and ``wrong, flagged`` if the run
  is wrong and the summary says in words that it can't be trusted;
* ``WRONG AND APPROVED`` if it is wrong and the summary finds no problem.

A chain's error is at least that of independent draws. Seconds are those of making the step, with
what compilation it takes, and of sampling, both for the first seed; effective draws a second are
those of the worst class of 0.02 to 0.98, over the time of sampling. For one model alone there are
also the seconds from the start of Python to the first seed's draws, without those that the exact
answer takes: other models have compiled and imported before.

    python benchmarks/model_index.py                              # some minutes
    python benchmarks/model_index.py --only pines coin --seeds 20
    python benchmarks/model_index.py --only coin --rivals

``--rivals`` runs ``pm.sample`` with nothing set, NumPyro's two samplers of mixed models where it is
installed (otherwise the output says that they are left out), and ``pm.sample_smc`` on each class
alone, whose evidences give the probabilities of the classes; its errors are those between its
chains.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import arviz_stats
import numpy as np
import pymc as pm
import xarray as xr
from numpyro_rivals import NUMPYRO_SAMPLERS, sample_by_numpyro
from published_models import MODELS as WRITTEN
from published_models import PublishedModel, capture_recapture
from published_on_grids import MODELS as ON_GRIDS
from scipy.special import logsumexp
from timing import begin, console, seconds_since_start, tell_table

import pymc_mcoem as mcoem

MODELS = WRITTEN | ON_GRIDS
N_CHAINS = 4
#: Largest error of a share that is right whatever the Monte Carlo error.
TOLERANCE = 0.02
VERDICTS = ("right", "right, flagged", "wrong, flagged", "WRONG AND APPROVED")


@dataclass(frozen=True)
class Shares:
    """Shares of the classes of one index, and what the summary says about it.

    Attributes
    ----------
    chains, chain_errors : ndarray of shape (n_chains, n_classes)
    pooled, error : ndarray of shape (n_classes,)
    ess : float
        Of the worst class that is neither rare nor nearly certain; infinite if there is none.
    flags : tuple of str
    """

    chains: np.ndarray
    chain_errors: np.ndarray
    pooled: np.ndarray
    error: np.ndarray
    ess: float
    flags: tuple[str, ...]

    def is_right(self, exact: np.ndarray) -> bool:
        """Return whether all shares are as near to exact probabilities as their errors say."""
        all_near = np.abs(self.pooled - exact) <= np.maximum(4 * self.error, TOLERANCE)
        each_near = np.abs(self.chains - exact) <= 4 * self.chain_errors
        return bool(all_near.all() and each_near.all())


@dataclass(frozen=True)
class Run:
    """Shares by index, with the seconds of making the steps and of sampling."""

    found: dict[str, Shares]
    making: float
    sampling: float

    def verdict(self, problem: PublishedModel) -> str:
        """Return one of `VERDICTS`."""
        right = all(each.is_right(problem.exact[name]) for name, each in self.found.items())
        flagged = any(each.flags for each in self.found.values())
        return VERDICTS[2 * (not right) + (flagged if right else not flagged)]

    def speed(self) -> float:
        """Return effective draws a second of the worst index."""
        return min(each.ess for each in self.found.values()) / self.sampling


def read(data: xr.DataTree, name: str, exact: np.ndarray) -> Shares:
    """Return the shares of the classes of one index."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags = mcoem.class_index_summary(data, name, classes=range(len(exact))).flags
    codes = data["posterior"][name].values
    member = (codes[..., None] == np.arange(len(exact))).astype(float)
    # Of independent draws, for shares that do not vary.
    of_draws = np.sqrt(exact * (1 - exact) / codes.shape[1])

    def figure(what: str, values: np.ndarray) -> float:
        data = xr.DataArray(np.atleast_2d(values), dims=("chain", "draw"))
        with np.errstate(all="ignore"):
            if what == "mcse":
                return float(arviz_stats.mcse(data, method="mean"))
            return float(arviz_stats.ess(data, method="mean"))

    classes = range(len(exact))
    errors = np.array([[figure("mcse", chain[:, j]) for j in classes] for chain in member])
    pooled = np.array([figure("mcse", member[..., j]) for j in classes])
    likely = np.flatnonzero((exact > 0.02) & (exact < 0.98))
    frozen = (np.ptp(member, axis=1) == 0).any(axis=0)
    ess = [0.0 if frozen[j] else figure("ess", member[..., j]) for j in likely]
    return Shares(
        member.mean(axis=1),
        np.fmax(errors, of_draws),
        member.mean(axis=(0, 1)),
        np.fmax(pooled, of_draws / np.sqrt(len(codes))),
        min(ess, default=np.inf),
        tuple(flags),
    )


def sample(problem: PublishedModel, steps: list[Any] | None, seed: int, making: float) -> Run:
    """Return a run of default lengths; without steps, of PyMC's own choice."""
    with problem.model:
        data = pm.sample(
            step=steps,
            chains=N_CHAINS,
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return run_of(data, problem, making)


def run_of(data: xr.DataTree, problem: PublishedModel, making: float) -> Run:
    """Return the shares of all indices, and the seconds."""
    seconds = float(data["posterior"].attrs["sampling_time"])
    found = {name: read(data, name, exact) for name, exact in problem.exact.items()}
    return Run(found, making, seconds)


def by_numpyro(kernel: str, problem: PublishedModel, seed: int) -> Run | None:
    """Return NumPyro's run, or None for a model with other discrete variables."""
    data = sample_by_numpyro(kernel, problem.model, list(problem.exact), N_CHAINS, seed)
    return None if data is None else run_of(data, problem, 0.0)


def by_evidences(problem: PublishedModel, seed: int) -> Run | None:
    """Return class probabilities from ``pm.sample_smc`` in each class, for a single index."""
    if len(problem.exact) > 1:
        return None
    (name, exact), began = next(iter(problem.exact.items())), time.perf_counter()
    evidence = np.empty((N_CHAINS, len(exact)))
    for j in range(len(exact)):
        # The prior probability of the class is part of the evidence.
        with pm.observe(problem.model, {name: j}):
            data = pm.sample_smc(chains=N_CHAINS, random_seed=seed, progressbar=False)
        # Of each stage; a chain's are a list where chains have different numbers of stages.
        values = data["sample_stats"]["log_marginal_likelihood"].values
        evidence[:, j] = [np.asarray([*chain][-1], dtype=float).ravel()[-1] for chain in values]
    shares = np.exp(evidence - logsumexp(evidence, axis=1, keepdims=True))
    spread = shares.std(axis=0, ddof=1)
    seconds = time.perf_counter() - began
    error = spread / np.sqrt(N_CHAINS)
    # a chain's tolerance, four of its errors, is no less than that of all chains together
    alone = np.tile(np.maximum(spread, TOLERANCE / 4), (N_CHAINS, 1))
    found = Shares(shares, alone, shares.mean(axis=0), error, np.nan, ())
    return Run({name: found}, 0.0, seconds)


def rows(name: str, problem: PublishedModel, run: Run) -> list[list[str]]:
    """Return one row for each class; of an index of two, for its second class alone."""
    found = []
    for index, exact in problem.exact.items():
        each = run.found[index]
        for j in range(len(exact)) if len(exact) > 2 else [1]:
            chains = " ".join(
                f"{share:.3f}±{error:.3f}"
                for share, error in zip(each.chains[:, j], each.chain_errors[:, j], strict=True)
            )
            pooled = f"{each.pooled[j]:.4f}±{each.error[j]:.4f}"
            found.append(["", f"{index} = {j}", f"{exact[j]:.4f}", chains, pooled, "", "", ""])
    found[0][0] = name
    found[0][-3:] = [
        run.verdict(problem),
        f"{run.making:.1f} + {run.sampling:.1f}",
        f"{run.speed():.3g}",
    ]
    return found


def share_words(found: Shares) -> str:
    """Return the shares of all chains together, with their errors."""
    pairs = zip(found.pooled, found.error, strict=True)
    return " ".join(f"{share:.3f}±{error:.3f}" for share, error in pairs)


def refused(make: Callable[[], pm.Model]) -> str:
    """Return the step's error for a model that it does not support."""
    with make():
        try:
            mcoem.CarlinChib()
        except ValueError as error:
            return str(error)
    return "not refused"


def main() -> None:
    """Sample the models and print the table of the first seed and the verdicts of all."""
    given = begin(
        __doc__,
        only={"nargs": "+", "choices": list(MODELS), "default": list(MODELS)},
        seeds=1,
        first_seed=1,
        rivals=False,
    )
    table, counts, from_start = [], [], ""
    if given.rivals and not NUMPYRO_SAMPLERS:
        console.print(
            "NumPyro is not installed, so its DiscreteHMCGibbs and MixedHMC are left out: "
            "pip install numpyro"
        )
    for name in given.only:
        began = time.perf_counter()
        problem = MODELS[name]()
        answering = time.perf_counter() - began
        began = time.perf_counter()
        steps = problem.steps()
        making = time.perf_counter() - began
        runs = []
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            runs.append(sample(problem, steps, seed, making))
            verdict = runs[-1].verdict(problem)
            flags = {flag for each in runs[-1].found.values() for flag in each.flags}
            shares = ", ".join(share_words(each) for each in runs[-1].found.values())
            told = f"{name}, seed {seed}: {verdict}; {runs[-1].sampling:.1f} s; {shares}"
            console.print(told, *sorted(flags), sep="\n    ")
            if len(given.only) == len(runs) == 1:
                from_start = f"{seconds_since_start() - answering:.1f}"
                console.print(f"{from_start} s since Python was started")
        table += rows(name, problem, runs[0])
        if given.rivals:
            ways: dict[str, Callable[[], Run | None]] = {
                "pm.sample": partial(sample, problem, None, given.first_seed, 0.0),
                "pm.sample_smc": partial(by_evidences, problem, given.first_seed),
            }
            for kernel in NUMPYRO_SAMPLERS:
                ways[f"NumPyro {kernel}"] = partial(by_numpyro, kernel, problem, given.first_seed)
            for rival, way in ways.items():
                try:
                    run = way()
                except Exception as error:
                    console.print(f"{name}, {rival}: {type(error).__name__}: {error}"[:200])
                    continue
                if run is None:
                    continue
                shares = ", ".join(share_words(each) for each in run.found.values())
                flagged = any(each.flags for each in run.found.values())
                console.print(
                    f"{name}, {rival}: {shares}{', flagged' if flagged else ''}; "
                    f"{run.sampling:.1f} s"
                )
                table += rows(f"  {rival}", problem, run)
        verdicts = Counter(run.verdict(problem) for run in runs)
        counts.append(
            (
                name,
                *(str(verdicts[each]) for each in VERDICTS),
                f"{np.median([run.sampling for run in runs]):.1f}",
                f"{np.median([run.speed() for run in runs]):.3g}",
                from_start,
            )
        )
    headings = ("model", "class", "exact", "four chains", "together", "verdict", "seconds", "ESS/s")
    tell_table(headings, table, f"Seed {given.first_seed}")
    headings = ("model", *VERDICTS, "sampling, s", "ESS/s", "from start, s")
    tell_table(headings, counts, f"{given.seeds} seeds")
    console.print(f"An index alone, capture and recapture: {refused(capture_recapture)}")


if __name__ == "__main__":
    main()
