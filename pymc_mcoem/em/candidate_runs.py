"""Runs of several families over the same observations, each made as one call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.em.merge_and_split import Chosen, ClassEvidence, from_other_runs
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

__all__ = ["Bench", "Learned", "better_of", "learn_all", "scored_observations"]


#: Number of classes and start of a run.
type Key = tuple[int, int]

#: Columns of `ClassCount.origins`.
ORIGINS = ("n_classes", "start", "gain", "kept", "class", "from_n_classes", "from_class")


@dataclass(frozen=True)
class Learned:
    """Result of a run: its history and state, and its predictions of the scored observations.

    `halfway` has what each class predicted before these, and θ then, if classes may be merged and
    split; `classes` says where those of a run came from that began with the classes of others.
    """

    history: History
    state: OnlineState
    log_evidence: np.ndarray
    assigned: np.ndarray
    probability: np.ndarray
    filled: int
    seed: list[int]
    halfway: ClassEvidence | None = None
    classes: tuple[tuple[int, int], ...] = ()


@dataclass
class Bench:
    """Families, observations and options of the runs, the same in all processes.

    The first `n_start` observations set the starts, and those from number `begin` on are scored. If
    classes are merged and split, `class_parameters` are the parameters with a row for each.
    """

    families: dict[int, Family]
    held: list[Any]
    n_start: int
    begin: int
    options: dict[str, Any]
    class_parameters: tuple[str, ...] | None = None

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


def learn(
    bench: Bench, words: list[int], number: int, start: int, chosen: Chosen | None = None
) -> Learned | str:
    """Let a run learn all observations, and return what it learned, or why it could not."""
    evidence: list[float] = []
    weights: list[np.ndarray] = []

    def note(update: Update) -> None:
        evidence.extend(each.log_evidence for each in update)
        weights.extend(each.class_weight for each in update)

    callbacks: list[Callback] = [note]
    halfway = None
    if bench.class_parameters is not None and chosen is None:
        halfway = ClassEvidence(bench.families[number], bench.begin // 2 + 1, bench.begin)
        callbacks.append(halfway)
    seed = [*words, number, start] if chosen is None else [*words, number, start, 1]
    em = bench.driver(number, seed, False, *callbacks)
    em.run.executor = bench.executors[number]
    try:
        if chosen is None:
            # starts in pairs have the two halves of one order, the same for all candidates
            order = np.random.default_rng([*words, start // 2]).permutation(bench.n_start)
            half = [bench.held[at] for at in sorted(order[start % 2 :: 2])]
            parameters = em.run.initial_parameters(half)
        else:
            parameters = chosen.parameters
        if halfway is not None:
            halfway.begin(parameters)
        em.run.begin(parameters)
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
    return Learned(
        history=em.run.history,
        state=em.run.state,
        log_evidence=scored,
        assigned=shares.argmax(axis=1),
        probability=shares.max(axis=1),
        filled=int((~Revival().is_empty(shares.mean(axis=0))).sum()),
        seed=seed,
        halfway=halfway,
        classes=() if chosen is None else chosen.classes,
    )


def learn_all(
    bench: Bench,
    words: list[int],
    n_starts: int,
    executor: Executor | int | Workers | None,
    progressbar: bool,
) -> tuple[dict[Key, Learned | str], dict[Key, Learned | str]]:
    """Make the runs, those with most classes first, since they take longest.

    Return them by number of classes and start, and those from the classes of other runs with the
    same start, if classes are merged and split.
    """
    dispatcher = Dispatcher(partial(_same, bench), executor)
    keys = [(number, start) for number in bench.families for start in range(n_starts)]
    twice = bench.class_parameters is not None
    with (
        dispatcher.closing(),
        telling(progressbar),
        CountProgress(progressbar, len(keys) * (1 + twice), "Runs learned") as progress,
    ):

        def made(starts: dict[Key, Chosen | None]) -> dict[Key, Learned | str]:
            calls, found = sorted(starts, reverse=True), {}
            orders = (Order(learn, (words, *key, starts[key])) for key in calls)
            for key, each in zip(calls, dispatcher.answers(orders), strict=True):
                found[key] = each
                progress.advance()
            return dict(sorted(found.items()))

        first = made(dict.fromkeys(keys))
        if not twice:
            return first, {}
        starts = _starts_from_others(bench, first)
        for _ in range(len(keys) - len(starts)):
            progress.advance()
        return first, made(starts)


def _starts_from_others(bench: Bench, first: dict[Key, Learned | str]) -> dict[Key, Chosen | None]:
    """Return the starts from the classes of other runs, where these explain more than the run.

    Runs with different starts keep apart, so that they still tell whether starts agree.
    """
    noted = {
        key: each.halfway
        for key, each in first.items()
        if isinstance(each, Learned) and each.halfway is not None
    }
    least = min((len(each.rows) for each in noted.values()), default=0)
    starts: dict[Key, Chosen | None] = {}
    for number, start in noted if least else ():
        same = {n: each for (n, at), each in noted.items() if at == start}
        chosen = from_other_runs(
            bench.families[number],
            bench.class_parameters or (),
            {n: np.stack(each.rows[:least]) for n, each in same.items()},
            {n: each.parameters for n, each in same.items()},
        )
        if chosen is not None:
            starts[number, start] = chosen
    return starts


def better_of(
    first: dict[Key, Learned], second: dict[Key, Learned]
) -> tuple[dict[Key, Learned], pd.DataFrame]:
    """Return the better of two runs with the same start, and `ClassCount.origins`."""
    found, rows = dict(first), []
    for key, each in second.items():
        n = min(len(each.log_evidence), len(first[key].log_evidence))
        gain = float(np.mean(each.log_evidence[:n] - first[key].log_evidence[:n]))
        if gain > 0:
            found[key] = each
        rows += [(*key, gain, gain > 0, at, *origin) for at, origin in enumerate(each.classes)]
    return found, pd.DataFrame(rows, columns=list(ORIGINS))


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
