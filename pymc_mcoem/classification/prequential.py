"""Predict, then learn: the error rate of a classifier while it learns a stream."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.classification.error_rate import live_error_rate
from pymc_mcoem.classification.labels import as_labels, read_labels
from pymc_mcoem.classification.merged_classes import merge_parameters, merged_mixture
from pymc_mcoem.classification.scores import check_sweeps, checked, compile_class_weights
from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import one_blas_thread, one_call_at_a_time
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.progress import CountProgress
from pymc_mcoem.em.stream import Unreadable, count_observations, read
from pymc_mcoem.interrupts import deferred
from pymc_mcoem.templates.mixture import TemplateMixture
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStep
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.online_run import OnlineRun
    from pymc_mcoem.em.run_state import ObservationRecord, OnlineState, StepReport
    from pymc_mcoem.labeling import Arrays

    type Step = StepReport[OnlineState]

__all__ = ["predict_then_learn"]

#: Settings in which the mixtures of labels may differ, beside the number of classes: only learning
#: uses them, and classes of a merged mixture have a noise variance each.
MAY_DIFFER = ("priors", "noise")


def predict_then_learn(
    learners: OnlineEM | Mapping[Hashable, OnlineEM],
    observations: Any,
    labels: Any,
    *,
    every: int = 1,
    e_step: EStep | None = None,
    draws: int = 50,
    tune: int = 10,
    window: int = 100,
    random_seed: int | Sequence[int] = 0,
    progressbar: bool = True,
) -> xr.Dataset:
    """Classify each observation of a stream, then learn it.

    An observation is classified with parameters that were learned before it. The error rate along
    the stream therefore needs no held-out data and no second pass.

    Parameters
    ----------
    learners : OnlineEM, or mapping of label to OnlineEM
        With a mapping, an observation is classified by the mixtures of all labels, and
        then learned by that of its label. A single driver learns all observations; their labels
        only name its classes.
    observations : array_like, DataArray, or iterable
        As `OnlineEM.partial_fit` takes them. Consumed lazily, never read ahead.
    labels : array_like of shape (n,), or iterable
        One for each record of `observations`. A sequence is checked before anything is learned;
        the labels of an iterator are read one by one, each after its observation was classified.
    every : int
        Only observations `every`, 2 `every`, ... are classified; all are learned.
    e_step : EStep, optional
        Computes posterior class probabilities, as for `Classifier`.
    draws, tune : int
        Sweeps that are used, and sweeps before them.
    window : int
        Classified observations in ``recent``.
    random_seed : int or sequence of int
        Seed of classifying, as for `Classifier`; each run has its own. Observation i has a
        generator of its own, made from the seed and i.
    progressbar : bool

    Returns
    -------
    Dataset with dimension ``observation``, the number in the stream counted from 1
        What `live_error_rate` returns for the observations that were classified, and the labels
        ``predicted`` and ``actual``; ``seconds`` spent on learning in this call until the
        observation was classified, by all drivers together; ``classified``, false where there were
        no parameters and the most frequent label was predicted; ``log_evidence`` under the
        parameters before it was learned, of the driver that learned it: NaN where the E-step has
        none and where the observation is still held.

    Raises
    ------
    ValueError
        If there are more or fewer labels than observations, a label is not known, mixtures of the
        labels are not alike, or no observation was classified: there are fewer than `every`, or
        there is one and nothing was known before it. What was learned until then stays learned.
    TypeError
        If `learners` are not `OnlineEM`, those of labels do not learn a `TemplateMixture`, or
        `e_step` gives no class probabilities.
    Exception
        Any exception that the source or `OnlineEM.partial_fit` raises, with a note that gives the
        number of the record in this stream at which it came up. With ``on_error="skip"`` the
        stream goes on without a record that is refused or cannot be learned.

    Notes
    -----
    Observations are classified with `OnlineEM.learned_parameters`, which do not depend on
    observations that are still held. The predicted label has the largest sum of class
    probabilities. Mixtures of labels have equal prior weights. A class of a single driver has the
    label with the largest weight among the observations learned in this call, by the class weights
    of their E-steps. A class without weight has the most frequent label. Of labels with equal
    weight the first one seen wins.

    Until every driver has parameters (each holds its first `n_start` observations), the prediction
    is the most frequent label so far, including those that drivers saw before the call. A rare
    label therefore delays all: give its driver ``parameters=`` or a small `n_start`. An observation
    with no label before it is not in the result.

    Everything is compiled once, before it is needed, so that ``seconds`` contain no compilation.
    A run learns bitwise the same as with `OnlineEM.partial_fit`, and warns as it does when the
    evidence of what it learns falls; the warning counts the observations of that run alone.

    References
    ----------
    Gama, Sebastião and Rodrigues (2013), On evaluating stream learning algorithms, Machine
    Learning 90, 317-346.

    Examples
    --------
    >>> from pymc_mcoem import OnlineEM, TemplateMixture
    >>> from pymc_mcoem.esteps import FixedLatents
    >>> mixture = TemplateMixture.for_images((3, 3), n_classes=1, n_landmarks=2)
    >>> learners = {
    ...     name: OnlineEM(mixture, e_step=FixedLatents(), n_start=1, random_seed=1)
    ...     for name in ("dark", "bright")
    ... }
    >>> images = np.array([0.1, 0.9, 0.2, 0.8, 0.9])[:, None, None] * np.ones((3, 3))
    >>> labels = ["dark", "bright", "dark", "bright", "bright"]
    >>> rate = predict_then_learn(
    ...     learners, images, labels, e_step=FixedLatents(), progressbar=False
    ... )
    >>> rate["predicted"].values, rate["observation"].values
    (array(['dark', 'dark', 'bright', 'bright'], dtype='<U6'), array([2, 3, 4, 5]))
    >>> rate["cumulative"].values.round(2)
    array([1.  , 0.5 , 0.33, 0.25])
    """
    require_whole("every", every, 1)
    require_whole("window", window, 1)
    check_sweeps(draws, tune)
    classes: _LabelMixtures | _NamedClasses = (
        _LabelMixtures(learners) if isinstance(learners, Mapping) else _NamedClasses(learners)
    )
    total = count_observations(classes.family, observations)
    source = read_labels(labels, total, classes.check_label)
    for learner in classes.learners:
        learner.prepare()
    with telling(progressbar):
        rule = compile_class_weights(classes.family, e_step)

    counts = {label: n for label, n in classes.seen_before() if n}
    prepared: set[int] = set()
    rows: list[tuple[int, Hashable, Hashable, float, bool]] = []
    waiting = {id(each): _Waiting(each.run) for each in classes.learners}
    evidence: dict[int, float] = {}
    seconds, number, ends = 0.0, 0, False
    with (
        deferred("observations") as interrupts,
        ExitStack() as held,
        CountProgress(progressbar, total, "Predicted, learned") as progress,
    ):
        for learner in classes.learners:
            held.enter_context(learner.run.alone.call())
            held.callback(learner.run.show_parameters)
        for index, observation in enumerate(read(classes.family, observations)):
            number = index + 1
            data = _encoded(classes.family, observation)
            # The most frequent label, None if there is none yet; no label is None.
            guess = max(counts, key=counts.__getitem__) if counts else None
            is_due, is_classified = data is not None and number % every == 0, False
            if data is not None and is_due:
                parameters, names = classes.parameters(), classes.names(guess)
                if parameters is not None and None not in names:
                    with one_call_at_a_time(), one_blas_thread():
                        weights = checked(rule, index, data, parameters, random_seed, draws, tune)
                    guess, is_classified = _heaviest(weights, names), True
            try:
                label = next(source)
            except StopIteration:
                raise ValueError(
                    f"labels: there are {index}, and more observations; give one label "
                    f"for each. The first {index} observations are learned."
                ) from None
            learner = classes.learner(label)
            if data is not None and id(learner) not in prepared:
                learner.prepare(observation)
                prepared.add(id(learner))
            if is_due and guess is not None:
                rows.append((number, guess, label, seconds, is_classified))
            held_by = waiting[id(learner)]
            held_by.add(number, label)
            ends, begun = False, perf_counter()
            try:
                for report in classes.learn(observation, label, index):
                    seconds += perf_counter() - begun
                    for (learned, name), record in held_by.take(report.observations):
                        evidence[learned] = record.log_evidence
                        classes.learned(name, record)
                    ends = learner.tell(report)
                    begun = perf_counter()
                    if ends:
                        break
            except Exception as error:
                error.add_note(f"It came up at observation {index} of this stream, counted from 0.")
                raise
            seconds += perf_counter() - begun
            held_by.drop_skipped()
            if data is not None:
                counts[label] = counts.get(label, 0) + 1
            progress.advance()
            interrupts.between()
            if ends:
                break
    if not ends and next(source, None) is not None:
        raise ValueError(
            f"labels: there are more than the {number} observations, which are learned; give one "
            "label for each."
        )
    if not number:
        raise ValueError("observations: got none; pass at least one observation.")
    if not rows:
        raise ValueError(
            f"observations: of {number}, which are learned, none was classified; give at least "
            f"{max(every, 2)}, since the first has no label before it and every is {every}."
        )
    positions, guesses, given, times, known = zip(*rows, strict=True)
    both = as_labels([*guesses, *given])
    columns = {
        "predicted": both[: len(rows)],
        "actual": both[len(rows) :],
        "classified": np.array(known),
        "log_evidence": np.array([evidence.get(each, np.nan) for each in positions]),
    }
    rate = live_error_rate(columns["predicted"], columns["actual"], window=window, seconds=times)
    rate = rate.assign({name: ("observation", values) for name, values in columns.items()})
    return rate.assign_coords(observation=list(positions)).assign_attrs(every=int(every))


class _LabelMixtures:
    """A run for each label; one mixture with the classes of all of them classifies."""

    def __init__(self, learners: Mapping[Hashable, OnlineEM]) -> None:
        mixture = _require_alike(learners)
        self._learners = dict(learners)
        self.learners = list(learners.values())
        self._names = [
            label for label, each in learners.items() for _ in range(each.family.n_classes)
        ]
        self.family: Family = merged_mixture(mixture, len(self._names))
        self._learned: dict[Hashable, Arrays | None] = {}

    def seen_before(self) -> list[tuple[Hashable, int]]:
        """Return each label and how many observations its run saw before."""
        return [(label, each.n_seen) for label, each in self._learners.items()]

    def check_label(self, label: Hashable, index: int) -> None:
        """Refuse a label without a run."""
        if label not in self._learners:
            raise ValueError(
                f"labels: observation {index} (counted from 0) has label {label!r}, and learners "
                f"have {list(self._learners)}; give a driver for it, or leave it out."
            )

    def learner(self, label: Hashable) -> OnlineEM:
        """Return the run that learns observations of a label."""
        return self._learners[label]

    def parameters(self) -> Arrays | None:
        """Return the parameters of all classes, None while some are not known."""
        known: dict[Hashable, Arrays] = {}
        for label, learner in self._learners.items():
            if label not in self._learned:
                self._learned[label] = _learned(learner)
            found = self._learned[label]
            if found is None:
                return None
            known[label] = found
        return merge_parameters(known)

    def names(self, usual: Hashable) -> Sequence[Hashable]:
        """Return the label of each class."""
        return self._names

    def learn(self, observation: Any, label: Hashable, index: int) -> Iterator[Step]:
        """Let the run of the label learn, yielding after each step."""
        # Its parameters are read again when they are needed, even if learning fails.
        self._learned.pop(label, None)
        run = self._learners[label].run
        run.accept(observation, index)
        yield from run.learn()

    def learned(self, label: Hashable, record: ObservationRecord) -> None:
        """Do nothing: the classes have the label of their run."""


class _NamedClasses:
    """One run, whose classes are named by the labels of the observations in them."""

    def __init__(self, learner: Any) -> None:
        if not isinstance(learner, OnlineEM):
            raise TypeError(
                f"learners: got {type(learner).__name__}; give an OnlineEM, or a mapping of label "
                "to OnlineEM."
            )
        self.learners = [learner]
        self.family: Family = learner.family
        #: Weight of each label in each class.
        self._weights: dict[Hashable, np.ndarray] = {}

    def seen_before(self) -> list[tuple[Hashable, int]]:
        """Return nothing: labels of observations before this call are not known."""
        return []

    def check_label(self, label: Hashable, index: int) -> None:
        """Accept any label."""

    def learner(self, label: Hashable) -> OnlineEM:
        """Return the run."""
        return self.learners[0]

    def parameters(self) -> Arrays | None:
        """Return the run's parameters, None before its start."""
        return _learned(self.learners[0])

    def names(self, usual: Hashable) -> Sequence[Hashable]:
        """Return for each class the label with the largest weight in it, or the usual label."""
        if not self._weights:
            return [usual] * self.family.n_classes
        labels, weights = list(self._weights), np.array(list(self._weights.values()))
        return [
            labels[best] if largest > 0 else usual
            for best, largest in zip(weights.argmax(axis=0), weights.max(axis=0), strict=True)
        ]

    def learn(self, observation: Any, label: Hashable, index: int) -> Iterator[Step]:
        """Let the run learn, yielding after each step."""
        run = self.learners[0].run
        run.accept(observation, index)
        yield from run.learn()

    def learned(self, label: Hashable, record: ObservationRecord) -> None:
        """Add the class weights of a learned observation to its label."""
        self._weights[label] = self._weights.get(label, 0.0) + record.class_weight


class _Waiting:
    """Numbers in this stream and labels of what a run holds, in the order in which it learns."""

    def __init__(self, run: OnlineRun) -> None:
        self._run = run
        # those of observations from before this call are not known
        self._held: dict[int, tuple[int, Hashable] | None] = {
            item.position: None for item in run.state.pending
        }

    def add(self, number: int, label: Hashable) -> None:
        """Add the observation that the run accepts next."""
        self._held[self._run.state.position] = number, label

    def take(
        self, records: Sequence[ObservationRecord]
    ) -> Iterator[tuple[tuple[int, Hashable], ObservationRecord]]:
        """Yield number and label of observations that were learned, with their records."""
        self.drop_skipped()
        for record in records:
            known = self._held.pop(next(iter(self._held)))
            if known is not None:
                yield known, record

    def drop_skipped(self) -> None:
        """Forget what was held and will not be learned, before the run's history forgets it."""
        skipped = self._run.history.skipped
        for position in [each for each in self._held if each in skipped]:
            del self._held[position]


def _require_alike(learners: Mapping[Hashable, Any]) -> TemplateMixture:
    """Return the mixture of the first label; refuse runs whose mixtures cannot be merged."""
    if not learners:
        raise ValueError("learners: got no label; give an OnlineEM for at least one.")
    for label, each in learners.items():
        if not isinstance(each, OnlineEM):
            raise TypeError(
                f"learners: of label {label!r} is a {type(each).__name__}; give an OnlineEM."
            )
        if not isinstance(each.family, TemplateMixture):
            raise TypeError(
                f"learners: of label {label!r} learns a {type(each.family).__name__}; a driver "
                "for each label takes a TemplateMixture. Give one driver for all labels."
            )
    first: TemplateMixture = next(iter(learners.values())).family
    ours = first.describe()
    for label, each in learners.items():
        theirs = ours if each.family is first else each.family.describe()
        other = [name for name in ours if name not in MAY_DIFFER and ours[name] != theirs[name]]
        if other:
            raise ValueError(
                f"learners: the mixture of label {label!r} differs from the first in {other}; give "
                f"mixtures that differ in their numbers of classes, {' and '.join(MAY_DIFFER)} "
                "alone."
            )
    if len({id(each) for each in learners.values()}) < len(learners):
        raise ValueError("learners: one driver has several labels; give each label its own.")
    return first


def _learned(learner: OnlineEM) -> Arrays | None:
    """Return the parameters that a run has learned, None before its start."""
    found = learner.learned_parameters
    return None if found is None else learner.family.check_parameters(found)


def _heaviest(weights: np.ndarray, names: Sequence[Hashable]) -> Hashable:
    """Return the label whose classes have the largest sum of weights."""
    total: dict[Hashable, float] = {}
    for name, weight in zip(names, weights, strict=True):
        total[name] = total.get(name, 0.0) + float(weight)
    return max(total, key=total.__getitem__)


def _encoded(family: Family, observation: Any) -> Arrays | None:
    """Return an encoded observation; None for one that the run will refuse."""
    if isinstance(observation, Unreadable):
        return None
    try:
        return family.encode(observation)
    except (TypeError, ValueError):
        return None
