"""The number of classes, chosen by the predictions of candidates that learn one stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_mcoem.em.candidate_runs import (
    Bench,
    Learned,
    better_of,
    learn_all,
    scored_observations,
)
from pymc_mcoem.em.class_count_scores import (
    candidate_table,
    doubts,
    doubts_of_data,
    in_words,
    splits_of,
)
from pymc_mcoem.em.family import Family
from pymc_mcoem.em.merge_and_split import require_weights
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.run_state import Pending
from pymc_mcoem.runs.settings import seed_entropy
from pymc_mcoem.validation import is_number, is_whole, require_whole

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.runs.workers import Workers


__all__ = ["ClassCount", "choose_classes"]

_log = logging.getLogger("pymc_mcoem")

#: Options of `OnlineEM` that would make runs differ in what they see, or that are given otherwise.
NOT_OPTIONS = ("parameters", "on_error", "callbacks", "keep", "thin")


@dataclass(frozen=True, repr=False)
class ClassCount:
    """Result of `choose_classes`. Printing it says which number is named, and how sure.

    Attributes
    ----------
    number : int
        The number of classes that is named: those of `winner` that are not empty.
    winner : OnlineEM
        The best run with that number; continue it with `OnlineEM.partial_fit`.
    table : DataFrame
        A row for each candidate, ``n_classes``: ``log_evidence``, the mean over scored
        observations of its best start, in nats; ``difference`` from the number that is named, and
        its standard error ``error``; ``between_starts``, the range of the mean over starts;
        ``rand``, the adjusted Rand index of the best start and the one most like it;
        ``least_class``, the share that the two have in common of the class on which they agree
        least; ``filled``, the number of classes that are not empty; ``between``, the share of
        observations whose most probable class has a probability below 0.9; ``agrees`` and
        ``apart``, whether ``least_class`` and ``between`` allow the candidate to be named; its
        ``attrs`` have the limits.
    splits : DataFrame
        A row for each class of a candidate that the next one divides: ``n_classes`` of the first,
        ``split``, the class; ``into``, the classes of the next candidate, which are one here;
        ``gain`` in nats an observation, and its ``error``.
    origins : DataFrame
        A row for each class of a run that began with the classes of others, if `merge_and_split`:
        ``n_classes`` and ``start`` of the run; its ``gain`` on the run with its own start, in nats
        a scored observation, and whether it was therefore ``kept``; the ``class``, and where it
        came from, ``from_n_classes`` and ``from_class``.
    scored : Dataset
        ``log_evidence``, the most probable class, ``assigned``, and its ``probability``, by
        ``n_classes``, ``start`` and ``observation``, counted from 1.
    runs : dict of int to OnlineEM
        The best run of each candidate.
    failures : dict of (int, int) to str
        Errors of the runs that failed, by number of classes and start.
    unsure : tuple of str
        Reasons to doubt the number; empty if there are none.
    """

    number: int
    winner: OnlineEM
    table: pd.DataFrame
    splits: pd.DataFrame
    origins: pd.DataFrame
    scored: xr.Dataset
    runs: dict[int, OnlineEM]
    failures: dict[tuple[int, int], str]
    unsure: tuple[str, ...]

    def __repr__(self) -> str:
        """Say in words which number, by how much, and how sure."""
        scored = self.scored["log_evidence"].sizes
        about = (
            "Differences are in nats an observation, ± one standard error, over the last "
            f"{scored['observation']} observations, each predicted before it was learned, by the "
            f"best of {scored['start']} starts."
        )
        named = self.winner.family.n_classes
        return in_words(self.number, named, self.table, self.unsure, about)


def choose_classes(
    make_mixture: Callable[[int], Family],
    observations: Any,
    n_classes: Sequence[int] = range(1, 9),
    *,
    n_starts: int = 2,
    n_start: int | None = None,
    n_scored: int | None = None,
    merge_and_split: bool = False,
    least_agreement: float = 0.75,
    most_between: float = 0.05,
    executor: Executor | int | Workers | None = None,
    random_seed: int | Sequence[int] | None = None,
    progressbar: bool = True,
    **options: Any,
) -> ClassCount:
    """Learn one stream with several numbers of classes side by side, and name one number.

    Each candidate learns the stream from several starts. What counts is how well it predicted each
    observation before learning it, and whether its starts found the same classes.

    Parameters
    ----------
    make_mixture : callable
        Returns a family for a number of classes, as ``partial(TemplateMixture.for_images,
        (16, 16))``. All settings but the number should be the same.
    observations : array_like or iterable
        The first observations of the stream, as `OnlineEM.partial_fit` takes them. There must be
        finitely many; they are held in memory.
    n_classes : sequence of int
        The candidates, at least two different ones. Candidates beyond the truth are needed to see
        that they are not better.
    n_starts : int
        Number of starts of each candidate, at least two.
    n_start : int, optional
        Number of first observations that set the starts: each is found from one half of them, so
        that the first two starts have none in common. It is ``"exemplars"`` for template mixtures
        unless `options` have another ``start=``, else ``"kmeans"``. Default: 200, or half of a
        shorter stream.
    n_scored : int, optional
        Number of observations, the last ones, that are scored. Default: half of them.
    merge_and_split : bool
        Whether a second run follows each whose classes can be chosen better. It begins with the
        classes that together explained best the second half of the observations before the scored
        ones, chosen among those of the runs with the same start that have fewer classes, as many,
        and more. So two classes become one, or one becomes two, where that predicts better. The
        better of both runs is kept. The family needs a parameter of class weights.
    least_agreement : float from 0 to 1
        A candidate can be named if two of its starts, one of them the best, have at least this
        share of each class in common. 0: starts need not agree.
    most_between : float from 0 to 1
        A candidate can be named if at most this share of the observations lies between classes: no
        class has a probability of 0.9. 1: classes may overlap.
    executor : concurrent.futures.Executor, int or Workers, optional
        Executor that makes the runs, each of which is a single call; a number stands for a pool of
        as many processes. The result does not depend on it, except for the last digits where
        processors differ. A time limit of `Workers` is that of a whole run.
    random_seed : int or sequence of int, optional
        Start k of the candidate C has the seed ``(random_seed, C, k)``, a run that follows it
        ``(random_seed, C, k, 1)``. None takes a seed from the operating system.
    progressbar : bool
        Whether a bar counts the runs; the runs that are returned keep it.
    **options
        Further arguments of `OnlineEM` for all runs, as ``burst_length=``; none of ``parameters``,
        ``on_error``, ``callbacks``, ``keep`` and ``thin``.

    Returns
    -------
    ClassCount

    Raises
    ------
    TypeError
        If `make_mixture` is no function or returns no family, or an option is not one of these.
    ValueError
        If there are fewer than two candidates, or one is not a number of classes; if
        `make_mixture` returns another number of classes; if there are no observations or a number
        is out of its range; if the E-step reports no evidence.
    RuntimeError
        If all runs fail, or the executor does. If some fail, the number is `unsure`.

    See Also
    --------
    pymc_mcoem.compete : Several starts of one family.
    pymc_mcoem.plot_class_count : A picture of the result.
    pymc_mcoem.diagnostics.compare_runs : Runs of one's own over one stream.

    Notes
    -----
    **The rule.** A candidate's score is the mean log-evidence of its best start over the scored
    observations, each under the parameters before it was learned. Candidates can be named if their
    starts agree and their classes are apart. Of these, the fewest classes are named whose score is
    at most one error below the best. If others predict decisively better although their starts
    disagree, some starts have missed a kind: the best of these is then named, and the result is
    unsure. Decisively is by ln 100 nats for each observation of the j-th class, a j-th of all. A
    class with less than a tenth of the mean weight among the scored observations is empty and not
    counted.

    Evidence alone hardly tells when to stop: no model fits exactly, and if a kind is split in two,
    each half fits a little better. But starts split a kind in different ways, or along a line that
    many observations lie on. Starts agree if the share #(A ∩ B) / #(A ∪ B) that each class A of one
    has in common with the most similar class B of the other is at least `least_agreement`, both
    ways; 0.75 is what Hennig calls valid.

    **Errors** are standard errors of the mean difference over the same observations, with a window
    of n^{1/3} lags for autocorrelation (Newey and West), and with the variance between starts: the
    median over candidates of the variance of their scores.

    **Limits.** The evidence is the E-step's own estimate, Laplace's approximation for bursts. It is
    good enough to compare candidates of one make on the same observations; it does not choose
    priors on warps, of which it prefers the loose ones. Under a prior that is tighter than the
    warps, the same shape in two warps is two kinds, and starts may agree on it. Kinds that are rare
    among the `n_start` first observations are missed, as they are if kinds come one after another.

    **Cost.** Learning the stream ``n_starts * len(n_classes)`` times, up to twice that with
    `merge_and_split`, and compiling each candidate in each process.

    References
    ----------
    Hennig (2007), Cluster-wise assessment of cluster stability, Computational Statistics & Data
    Analysis 52, 258-271.

    Newey and West (1987), A simple, positive semi-definite, heteroskedasticity and autocorrelation
    consistent covariance matrix, Econometrica 55, 703-708.

    Examples
    --------
    >>> from functools import partial
    >>> from pymc_mcoem import TemplateMixture
    >>> from pymc_mcoem.esteps import FixedLatents
    >>> rng = np.random.default_rng(1)
    >>> images = rng.choice([0.2, 0.8], size=60)[:, None, None] + rng.normal(0, 0.1, (60, 3, 3))
    >>> make = partial(TemplateMixture.for_images, (3, 3), n_landmarks=2)
    >>> found = choose_classes(
    ...     make, images, range(1, 4), e_step=FixedLatents(), random_seed=1, progressbar=False
    ... )
    >>> found.number, found.winner.n_seen
    (2, 60)
    """
    families = _families(make_mixture, n_classes)
    require_whole("n_starts", n_starts, 2)
    for name, share in (("least_agreement", least_agreement), ("most_between", most_between)):
        if not is_number(share) or not 0 <= share <= 1:
            raise ValueError(f"{name}: got {share!r}; give a share from 0 to 1.")
    if refused := sorted(set(options) & set(NOT_OPTIONS)):
        raise TypeError(f"{refused[0]}: not an option here; leave it out.")
    # copies, like those in the queue of a run, because an iterable may reuse its arrays
    first = next(iter(families.values()))
    held = [Pending.of(each, 0).observation for each in first.iterate(observations)]
    if len(held) < 4:
        raise ValueError(f"observations: got {len(held)}; give the first hundreds of the stream.")
    half = len(held) // 2
    n_start = min(200, half) if n_start is None else n_start
    n_scored = len(held) - half if n_scored is None else n_scored
    for name, value, least, most in (
        ("n_start", n_start, 2, len(held) - 2),
        ("n_scored", n_scored, 2, len(held) - n_start if is_whole(n_start) else 0),
    ):
        if not is_whole(value) or not least <= value <= most:
            raise ValueError(
                f"{name}: got {value!r}; give a whole number from {least} to {most}, as there are "
                f"{len(held)} observations, and the scored ones set no start."
            )
    entropy = seed_entropy(random_seed)
    words = entropy if isinstance(entropy, list) else [entropy]
    if "exemplars" in first.start_names:
        options.setdefault("start", "exemplars")
    rows = require_weights(families) if merge_and_split else None
    bench = Bench(families, held, n_start, len(held) - n_scored, options, rows)
    bench.driver(next(iter(families)), words, False)  # a wrong option is refused before the work
    found, again = learn_all(bench, words, n_starts, executor, progressbar)
    learned = {key: each for key, each in found.items() if isinstance(each, Learned)}
    failures = {key: each for key, each in found.items() if isinstance(each, str)}
    if not learned:
        raise RuntimeError(
            f"choose_classes: all {len(found)} runs failed, the first with: "
            f"{next(iter(failures.values()))} Try other settings with one OnlineEM."
        )
    for (number, start), reason in failures.items():
        _log.warning("Start %d of %d classes dropped out: %s", start, number, reason)
    second = {key: each for key, each in again.items() if isinstance(each, Learned)}
    for (number, start), each in again.items():
        if isinstance(each, str):
            _log.warning("Start %d of %d classes, merged and split: %s", start, number, each)
    learned, origins = better_of(learned, second)
    scored = scored_observations(learned, list(families), n_starts, bench.begin)
    filled = {key: each.filled for key, each in learned.items()}
    table, between, named = candidate_table(scored, filled, least_agreement, most_between)
    runs: dict[int, OnlineEM] = {}
    for number in table.index.tolist():
        start = int(table.loc[number, "start"])
        run = runs[number] = bench.driver(number, learned[number, start].seed, progressbar)
        run.run.history, run.run.state = (
            learned[number, start].history,
            learned[number, start].state,
        )
        run.run.executor = bench.executors[number]
        run.run.show_parameters()
    return ClassCount(
        number=int(table.loc[named, "filled"]),
        winner=runs[named],
        table=table,
        splits=splits_of(table, scored, between),
        origins=origins,
        scored=scored,
        runs=runs,
        failures=failures,
        unsure=(*doubts(table, named), *doubts_of_data(failures, scored.sizes["observation"])),
    )


def _families(make_mixture: Any, n_classes: Any) -> dict[int, Family]:
    """Return the family of each candidate, fewest classes first."""
    if not callable(make_mixture):
        raise TypeError(
            f"make_mixture: got {make_mixture!r}; give a function of the number of classes, as "
            "lambda n: TemplateMixture.for_images((16, 16), n)."
        )
    candidates = list(n_classes) if np.iterable(n_classes) else [n_classes]
    if not all(is_whole(each) and each >= 1 for each in candidates) or len(set(candidates)) < 2:
        raise ValueError(
            f"n_classes: got {n_classes!r}; give at least two whole numbers from 1, as range(1, 9)."
        )
    families: dict[int, Family] = {}
    for number in sorted({int(each) for each in candidates}):
        family = families[number] = make_mixture(number)
        if not isinstance(family, Family):
            raise TypeError(
                f"make_mixture: returned a {type(family).__name__}; return a Family, such as a "
                "TemplateMixture."
            )
        if family.n_classes != number:
            raise ValueError(
                f"make_mixture: returned {family.n_classes} classes for {number}; pass on the "
                "number that it is given."
            )
    return families
