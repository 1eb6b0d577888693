"""Merging of runs that have each learned a part of a stream."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.em.family import CLASS_WEIGHT
from pymc_mcoem.em.family_record import describe_family, differences
from pymc_mcoem.em.maximization import class_labels, count_troubles, maximize_family
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.read_by_workers import read_held
from pymc_mcoem.em.revival import Revival
from pymc_mcoem.runs.codec import encode_settings

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.run_state import OnlineState, Pending
    from pymc_mcoem.labeling import Arrays

__all__ = ["merge_runs"]

_log = logging.getLogger("pymc_mcoem")

#: Settings in which runs may differ, since statistics do not depend on them.
MAY_DIFFER = ("start", "n_start", "keep", "thin", "on_error", "refuse_beyond")


def merge_runs(runs: Sequence[OnlineEM] | Mapping[Hashable, OnlineEM]) -> OnlineEM:
    """Merge runs that have each learned a part of a stream, as one run per day or site.

    The classes of the runs are matched. The statistics are averaged, with the number of
    observations that each run has learned as its weight. θ is then maximized once, so that the
    priors count once.

    Parameters
    ----------
    runs : sequence of OnlineEM, or mapping of name to OnlineEM
        They need the same family and the same settings, except for seeds, starts, and settings of
        records and the history. They are not changed.

    Returns
    -------
    OnlineEM
        A new run, which continues as if it had learned all observations: its next gain is the one
        after as many steps. It has the order of classes, the other settings, the seed and the
        adaptation of the E-step of the run that has learned most, and it holds the observations
        that the runs hold. Its history begins with the merged θ as step 0; an average
        (``average_from=``) begins anew.

    Raises
    ------
    TypeError
        If they are not a list or a mapping, or one is not an `OnlineEM`.
    ValueError
        If there is none, one is given twice (also as a copy, or loaded twice) or has learned
        nothing, or families or settings differ; the message names the run and what differs.

    See Also
    --------
    pymc_mcoem.compete : Keep the best of several runs over the same observations.

    Notes
    -----
    With n_k observations learned by run k and n = Σ n_k, the statistics are s = Σ (n_k/n) s_k,
    and their effective size is n* = 1 / Σ (n_k/n)²/n*_k. With gains 1/n, a single run over all
    observations has the same statistics, except that it takes every E-step at its own θ.

    Runs are merged one by one, the largest first. Classes are matched so that the sum of their
    squared distances (`Family.class_distances`) is smallest. A class with less than a tenth of the
    mean weight is empty. A class that only the other run has takes its place, unless that class
    is nearer to another class than any two classes of one run are to each other. If a class is
    merged although another is nearer, the history counts a trouble and the log says so. The runs
    have then found different classes, and no match is right. Runs with the same start
    (``parameters=``) prevent this. Templates that are moved or warped against each other blur where
    they are averaged: let the merged run learn some hundred observations before you use it.

    Examples
    --------
    >>> from pymc_mcoem import TemplateMixture
    >>> from pymc_mcoem.esteps import FixedLatents
    >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    >>> images = np.array([0.1, 0.9, 0.2, 0.8] * 10)[:, None, None] * np.ones((3, 3))
    >>> days = [
    ...     OnlineEM(mixture, e_step=FixedLatents(), random_seed=day, n_start=4, progressbar=False)
    ...     for day in range(2)
    ... ]
    >>> merged = merge_runs([run.partial_fit(images) for run in days])
    >>> merged.partial_fit(images[:5]).n_seen
    85
    """
    if not isinstance(runs, Iterable):
        raise TypeError(
            f"runs: got {runs!r}; give a list of OnlineEM, or a mapping of name to OnlineEM, as "
            "merge_runs([monday, tuesday])."
        )
    named: dict[Hashable, OnlineEM] = dict(
        runs.items() if isinstance(runs, Mapping) else enumerate(runs)
    )
    _require_alike(named)
    names = sorted(named, key=lambda name: -named[name].n_learned)
    first = named[names[0]]
    states = {name: read_held(each.run.state, each.run.executor) for name, each in named.items()}
    state = states[names[0]]
    for name in names[1:]:
        state = _merged(first.family, state, states[name], name)
    merged = OnlineEM(
        first.family,
        random_seed=first.run.random_seed,
        progressbar=first.progressbar,
        **vars(first.run.settings),
    )
    merged.run.begin(state.parameters or {})
    merged.run.state = replace(state, average=None, n_averaged=0)
    merged.run.show_parameters()
    return merged


@dataclass(frozen=True)
class _Match:
    """For each class of the first run: its match in the other, and a nearer one or -1."""

    order: np.ndarray
    nearer: np.ndarray


def _merged(family: Family, state: OnlineState, other: OnlineState, name: Hashable) -> OnlineState:
    """Return the state of two runs merged, with the classes of the first."""
    total = state.n_learned + other.n_learned
    share = other.n_learned / total
    match = _match(family, state, other)

    def mean(ours: Arrays, theirs: Arrays) -> Arrays:
        return {key: ours[key] + share * (theirs[key][match.order] - ours[key]) for key in ours}

    statistics = mean(state.statistics or {}, other.statistics or {})
    fit = None
    if state.fit is not None and other.fit is not None:
        # as if all classes had just been revived, so that each waits
        fit = mean(state.fit, other.fit) | {"last": np.full(family.n_classes, total)}
    troubles = dict(state.troubles)
    count_troubles(troubles, other.troubles)
    labels = class_labels(family)
    for ours, nearer in enumerate(match.nearer):
        if nearer >= 0:
            doubt = (
                f"class {labels[match.order[ours]]} of run {name!r} was merged with class "
                f"{labels[ours]}, though class {labels[nearer]} is nearer"
            )
            _log.warning("merge_runs: %s; have the runs found the same classes?", doubt)
            count_troubles(troubles, {doubt: 1})
    merged = replace(
        state,
        statistics=statistics,
        fit=fit,
        troubles=troubles,
        pending=(
            *state.pending,
            *(_held(each, state.position, match.order) for each in other.pending),
        ),
        position=state.position + other.position,
        n_learned=total,
        n_steps=state.n_steps + other.n_steps,
        n_updates=state.n_updates + other.n_updates + 1,
        inverse_effective_size=(
            (1 - share) ** 2 * state.inverse_effective_size
            + share**2 * other.inverse_effective_size
        ),
    )
    found = maximize_family(
        family,
        statistics,
        effective_size=merged.effective_size,
        present=state.parameters,
    )
    return replace(merged, parameters=found.parameters)


def _held(item: Pending, before: int, order: np.ndarray) -> Pending:
    """Return an observation of the other run, with its position and classes in the merged run."""
    classes = item.classes
    if classes is not None:
        classes = tuple(ours for ours, theirs in enumerate(order) if theirs in classes)
    return replace(item, position=before + item.position, classes=classes)


def _match(family: Family, state: OnlineState, other: OnlineState) -> _Match:
    """Match the classes of two runs by the distances of their parameters."""
    # imported where it is used: scipy.optimize takes a quarter of a second
    from scipy.optimize import linear_sum_assignment

    ours, theirs = state.parameters or {}, other.parameters or {}
    distances = family.class_distances(ours, theirs)
    empty = [Revival().is_empty((each.statistics or {})[CLASS_WEIGHT]) for each in (state, other)]
    apart = [
        family.class_distances(each, each)[np.ix_(~gone, ~gone)][np.triu_indices((~gone).sum(), 1)]
        for each, gone in zip((ours, theirs), empty, strict=True)
    ]
    # Where a class is empty in either run, two others are merged only if they are nearer than any
    # two of one run are.
    cost = np.where(
        empty[0][:, None] != empty[1],
        np.concatenate(apart).min(initial=np.inf) / 2,
        np.where(empty[0][:, None] & empty[1], 0.0, distances),
    )
    _, order = linear_sum_assignment(cost)
    # an empty class raises no doubt
    candidates = np.where(empty[0][:, None], np.inf, distances)
    own = distances[np.arange(len(order)), order]
    doubtful = ~empty[0] & ~empty[1][order] & (candidates.min(axis=0)[order] < own)
    nearest = candidates.argmin(axis=0)[order]
    return _Match(np.asarray(order), np.where(doubtful, nearest, -1))


def _are_one(run: OnlineEM, other: OnlineEM) -> bool:
    """Return whether two drivers are one run, perhaps copied or loaded from the same file."""
    ours, theirs = run.run.state, other.run.state
    if run is other:
        return True
    if (run.run.random_seed, ours.position) != (other.run.random_seed, theirs.position):
        return False
    return all(
        one.keys() == another.keys()
        and all(np.array_equal(one[name], another[name], equal_nan=True) for name in one)
        for one, another in (
            (ours.parameters or {}, theirs.parameters or {}),
            (ours.statistics or {}, theirs.statistics or {}),
        )
    )


def _require_alike(runs: Mapping[Hashable, Any]) -> None:
    """Refuse runs that cannot be merged."""
    if not runs:
        raise ValueError("runs: got none; give at least one OnlineEM.")
    for name, run in runs.items():
        if not isinstance(run, OnlineEM):
            raise TypeError(f"runs: run {name!r} is a {type(run).__name__}; give an OnlineEM.")
        if not run.n_learned:
            raise ValueError(
                f"runs: run {name!r} has learned nothing; leave it out, or let it learn first."
            )
    for (name, run), (other_name, other_run) in itertools.combinations(runs.items(), 2):
        if _are_one(run, other_run):
            raise ValueError(
                f"runs: run {name!r} and run {other_name!r} are the same run, given twice; leave "
                "one out, since its observations would count twice."
            )
    names = list(runs)
    first: OnlineEM = runs[names[0]]
    if len(runs) > 1 and first.family.reason_not_to_merge is not None:
        raise ValueError(
            f"runs: got {len(runs)}, and {first.family.reason_not_to_merge}; learn one run."
        )
    settings = json.loads(encode_settings(first.run.settings))
    for name in names[1:]:
        other: OnlineEM = runs[name]
        if other.family is not first.family:
            found = differences(
                describe_family(first.family),
                describe_family(other.family),
                (f"in run {names[0]!r}", f"in run {name!r}"),
            )
            if found:
                raise ValueError(
                    f"runs: families differ: {'; '.join(found)}. Give runs with families made in "
                    "the same way."
                )
        others = json.loads(encode_settings(other.run.settings))
        unlike = [each for each in settings if settings[each] != others[each]]
        unlike = [each for each in unlike if each not in MAY_DIFFER]
        if unlike:
            raise ValueError(
                f"runs: run {name!r} differs from run {names[0]!r} in {unlike}; give runs with "
                "the same settings, and the same objects where these are functions."
            )
