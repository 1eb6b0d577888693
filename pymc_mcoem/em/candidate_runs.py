"""Runs of several families over the same observations, each made as one call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.progress import CountProgress
from pymc_mcoem.em.revival import Revival
from pymc_mcoem.runs.executor import Dispatcher
from pymc_mcoem.runs.failed_records import said
from pymc_mcoem.runs.workers import ExecutorError, Order, Workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.callbacks import Callback, Update
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.history import History
    from pymc_mcoem.em.run_state import OnlineState

__all__ = ["Bench", "Learned", "learn_all", "scored_observations"]


@dataclass(frozen=True)
class Learned:
    """Result of a run: its history and state, and its predictions of the scored observations."""

    history: History
    state: OnlineState
    log_evidence: np.ndarray
    assigned: np.ndarray
    probability: np.ndarray
    filled: int


@dataclass
class Bench:
    """Families, observations and options of the runs, the same in all processes."""

    families: dict[int, Family]
    held: list[Any]
    n_start: int
    begin: int
    options: dict[str, Any]

    @cached_property
    def executors(self) -> dict[int, Dispatcher]:
        """Executors of the candidates, shared by runs so that E-steps are compiled once."""
        return {number: self.driver(number, 0, False).run.executor for number in self.families}

    def driver(
        self, number: int, seed: int | list[int], progressbar: bool, *callbacks: Callback
    ) -> OnlineEM:
        """Return a run that has seen nothing."""
        settings: dict[str, Any] = {
            "random_seed": seed,
            "progressbar": progressbar,
            "callbacks": callbacks,
        }
        return OnlineEM(self.families[number], **settings, **self.options)


def learn(bench: Bench, words: list[int], number: int, start: int) -> Learned | str:
    """Let a run learn all observations, and return what it learned, or why it could not."""
    # starts in pairs have the two halves of one order, the same for all candidates
    order = np.random.default_rng([*words, start // 2]).permutation(bench.n_start)
    half = sorted(order[start % 2 :: 2])
    evidence: list[float] = []
    weights: list[np.ndarray] = []

    def note(update: Update) -> None:
        evidence.extend(each.log_evidence for each in update)
        weights.extend(each.class_weight for each in update)

    em = bench.driver(number, [*words, number, start], False, note)
    em.run.executor = bench.executors[number]
    try:
        em.run.begin(em.run.initial_parameters([bench.held[at] for at in half]))
        em.partial_fit(bench.held)
    except ExecutorError:
        raise
    except (ArithmeticError, RuntimeError) as error:
        return said(error)
    scored = np.array(evidence[bench.begin :])
    if np.isnan(scored).any():
        raise ValueError(
            "e_step: it reports no evidence, which decides; give one that does, such as "
            "CarlinChibBurst with Laplace or PriorCovariance pseudo-priors."
        )
    shares = np.array(weights[bench.begin :])
    filled = int((~Revival().is_empty(shares.mean(axis=0))).sum())
    return Learned(
        em.run.history, em.run.state, scored, shares.argmax(axis=1), shares.max(axis=1), filled
    )


def learn_all(
    bench: Bench,
    words: list[int],
    keys: list[tuple[int, int]],
    executor: Executor | int | Workers | None,
    progressbar: bool,
) -> dict[tuple[int, int], Learned | str]:
    """Make the runs, those with most classes first, since they take longest."""
    dispatcher = Dispatcher(partial(_same, bench), executor)
    keys = sorted(keys, reverse=True)
    found: dict[tuple[int, int], Learned | str] = {}
    orders = (Order(learn, (words, *key)) for key in keys)
    with (
        dispatcher.closing(),
        telling(progressbar),
        CountProgress(progressbar, len(keys), "Runs learned") as progress,
    ):
        for key, each in zip(keys, dispatcher.answers(orders), strict=True):
            found[key] = each
            progress.advance()
    return dict(sorted(found.items()))


def _same(bench: Bench) -> Bench:
    """Return what workers call."""
    return bench


def scored_observations(
    learned: dict[tuple[int, int], Learned], candidates: list[int], n_starts: int, begin: int
) -> xr.Dataset:
    """Return evidence and classes of the scored observations of all runs, NaN of those that failed.

    If a mini-batch is incomplete, the last observations are held and not scored.
    """
    n = min(len(each.log_evidence) for each in learned.values())
    dims = ("n_classes", "start", "observation")
    shape = len(candidates), n_starts, n
    found = xr.Dataset(
        {
            "log_evidence": (dims, np.full(shape, np.nan)),
            "assigned": (dims, np.full(shape, -1)),
            "probability": (dims, np.full(shape, np.nan)),
        },
        coords={
            "n_classes": candidates,
            "start": np.arange(n_starts),
            "observation": begin + 1 + np.arange(n),
        },
    )
    for (number, start), each in learned.items():
        for name, values in found.items():
            values[candidates.index(number), start] = getattr(each, str(name))[:n]
    return found
