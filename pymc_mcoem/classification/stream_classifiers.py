"""What was learnt so far of a stream, as it classifies the next observation and learns it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pymc_mcoem.classification.classifier import Classifier
from pymc_mcoem.classification.scores import weigh
from pymc_mcoem.compiling.threads import one_blas_thread, one_call_at_a_time
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.run_state import Pending, RunState, StepError
from pymc_mcoem.templates.mixture import TemplateMixture

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.online_run import OnlineRun
    from pymc_mcoem.em.run_state import StepReport
    from pymc_mcoem.labelling import Arrays

__all__ = ["Guess", "Learnt", "MixtureOfEachLabel", "NamedClasses"]

#: In what mixtures of one classifier may differ: their numbers of classes, and what learning alone
#: makes use of. Noise variances of a mixture are spread over its classes.
OWN = ("priors", "noise")


@dataclass(frozen=True)
class Guess:
    """A predicted label, and whether mixtures predicted it."""

    label: Hashable
    classified: bool


class Learnt(Protocol):
    """What was learnt so far: it classifies, and learns more."""

    family: Family
    learners: list[OnlineRun]
    classifier: Classifier

    def check_label(self, label: Hashable, index: int) -> None:
        """Complain about a label that nothing can be done with."""
        ...

    def predict(self, data: Arrays, index: int) -> Guess | None:
        """Return the label of one encoded observation; None where nothing is known."""
        ...

    def warm_up(self, observation: Any, label: Hashable) -> None:
        """Have compiled, at a driver's first observation, what compiles when it is called."""
        ...

    def learn(self, observation: Any, label: Hashable, index: int, *, counts: bool) -> None:
        """Learn one observation; `counts` says whether its label is one that was seen."""
        ...


class _Counts:
    """How often each label came, in the order in which they came first."""

    def __init__(self, seen: Mapping[Hashable, int]) -> None:
        self._seen = dict(seen)

    def add(self, label: Hashable) -> None:
        """Count one more."""
        self._seen[label] = self._seen.get(label, 0) + 1

    def guess(self) -> Guess | None:
        """Return the most frequent label; the first of several."""
        if not self._seen:
            return None
        return Guess(max(self._seen, key=self._seen.__getitem__), classified=False)


class MixtureOfEachLabel:
    """A driver for each label; the classes of all make one mixture, which classifies.

    Parameters
    ----------
    drivers : mapping of label to OnlineEM
    settings : mapping of str to object
        Arguments of `Classifier`.

    Raises
    ------
    ValueError, TypeError
        If the drivers' mixtures cannot be united.
    """

    def __init__(self, drivers: Mapping[Hashable, OnlineEM], settings: Mapping[str, Any]) -> None:
        mixture = _alike(drivers)
        self.family: Family = mixture
        self._learner = {label: driver.run for label, driver in drivers.items()}
        self.learners = list(self._learner.values())
        sizes = {label: driver.family.n_classes for label, driver in drivers.items()}
        # What it is made with stands for parameters that are not learnt yet, and is never used.
        parts = {label: mixture.with_classes(size).parameters for label, size in sizes.items()}
        self.classifier = Classifier(mixture, parts, **settings)
        ends = np.cumsum(list(sizes.values()))
        self._rows = {
            label: slice(int(end) - size, int(end))
            for (label, size), end in zip(sizes.items(), ends, strict=True)
        }
        self._united = {name: np.array(v) for name, v in self.classifier._parameters.items()}
        self._unknown = set(drivers)
        self._warm: set[Hashable] = set()
        for label in drivers:
            self._take(label)
        self._counts = _Counts(
            {label: driver.n_seen for label, driver in drivers.items() if driver.n_seen}
        )

    def check_label(self, label: Hashable, index: int) -> None:
        """Complain about a label without a driver."""
        if label not in self._learner:
            raise ValueError(
                f"labels: observation {index} (counted from 0) has label {label!r}, and learners "
                f"have {list(self._learner)}; give a driver for it, or leave it out."
            )

    def predict(self, data: Arrays, index: int) -> Guess | None:
        """Return the label whose classes weigh most together."""
        if self._unknown:
            return self._counts.guess()
        # those of each label sum to one: labels are equally probable beforehand
        weights = self._united["weights"]
        parameters = self._united | {"weights": weights / weights.sum()}
        names = self.classifier.class_labels
        return _heaviest(_probabilities(self.classifier, data, parameters, index), names)

    def warm_up(self, observation: Any, label: Hashable) -> None:
        """Try out the driver of the label, once."""
        if label not in self._warm:
            _try_out(self._learner[label], observation)
            self._warm.add(label)

    def learn(self, observation: Any, label: Hashable, index: int, *, counts: bool) -> None:
        """Let the driver of the label learn."""
        learner = self._learner[label]
        learner.accept(observation, index)
        if counts:
            self._counts.add(label)
        if [*learner.learn()]:
            self._take(label)

    def _take(self, label: Hashable) -> None:
        """Put what a driver knows now into the rows of its classes."""
        parameters = _current(self._learner[label])
        if parameters is None:
            # before its start
            self._unknown.add(label)
            return
        self._unknown.discard(label)
        for name, value in parameters.items():
            self._united[name][self._rows[label]] = value


class NamedClasses:
    """One driver, whose classes are named by the labels of what they explained.

    Parameters
    ----------
    driver : OnlineEM
    settings : mapping of str to object
        Arguments of `Classifier`.

    Raises
    ------
    TypeError
        If it is something else.
    """

    def __init__(self, driver: Any, settings: Mapping[str, Any]) -> None:
        if not isinstance(driver, OnlineEM):
            raise TypeError(
                f"learners: got {type(driver).__name__}; give an OnlineEM, or a mapping of label "
                "to OnlineEM."
            )
        self.family = driver.family
        self._learner = driver.run
        self.learners = [self._learner]
        declared = self.family.to_dataset(self.family.declared_parameters())
        # Classifier asks for what every family has, and for no template.
        self.classifier = Classifier(self.family, declared, **settings)  # type: ignore[arg-type]
        self._parameters = _current(self._learner)
        self._counts = _Counts({})
        self._warm = False
        # Weight of each label in each class, by label.
        self._mass: dict[Hashable, np.ndarray] = {}
        # Labels of what is held, by position; of what was held before the call none is known.
        state = self._learner.state
        self._held: dict[int, Hashable] = dict.fromkeys(_held(state))
        # Observations learnt before the first of these.
        self._before = state.n_learnt

    def check_label(self, label: Hashable, index: int) -> None:
        """Take any."""

    def predict(self, data: Arrays, index: int) -> Guess | None:
        """Return the label that weighs most among the names of the classes."""
        usual = self._counts.guess()
        if usual is None or self._parameters is None:
            return usual
        probabilities = _probabilities(self.classifier, data, self._parameters, index)
        return _heaviest(probabilities, self._names(usual.label))

    def _names(self, usual: Hashable) -> list[Hashable]:
        """Return the label of each class."""
        if not self._mass:
            return [usual] * self.family.n_classes
        labels, mass = list(self._mass), np.array(list(self._mass.values()))
        return [
            labels[winner] if weight > 0 else usual
            for winner, weight in zip(mass.argmax(axis=0), mass.max(axis=0), strict=True)
        ]

    def warm_up(self, observation: Any, label: Hashable) -> None:
        """Try out the driver, once."""
        if not self._warm:
            _try_out(self._learner, observation)
            self._warm = True

    def learn(self, observation: Any, label: Hashable, index: int, *, counts: bool) -> None:
        """Let the driver learn, and name classes by the label afterwards."""
        learner = self._learner
        position = learner.state.position
        learner.accept(observation, index)
        if counts:
            self._counts.add(label)
        self._held[position] = label
        reports = 0
        for report in learner.learn():
            self._name(report)
            reports += 1
        state = learner.state
        if reports:
            self._parameters = _current(learner)
        # what was refused, left out or learnt for good is held no more
        held = _held(state)
        self._held = {each: name for each, name in self._held.items() if each in held}
        self._before = state.n_learnt

    def _name(self, report: StepReport[RunState]) -> None:
        """Give the labels of what a step learnt their weights in the classes."""
        skipped = self._learner.history.skipped
        labels = [label for position, label in self._held.items() if position not in skipped]
        for record in report.observations:
            label = labels[record.number - 1 - self._before]
            if label is not None:
                self._mass[label] = self._mass.get(label, 0.0) + record.class_weight


def _held(state: RunState) -> list[int]:
    """Return the positions of what a run holds to be learnt."""
    return [item.position for item in state.pending]


def _alike(drivers: Mapping[Hashable, OnlineEM]) -> TemplateMixture:
    """Return the first mixture, or complain about drivers that make no classifier together."""
    if not drivers:
        raise ValueError("learners: got no label; give an OnlineEM for at least one.")
    first: TemplateMixture | None = None
    for label, driver in drivers.items():
        if not isinstance(driver, OnlineEM):
            raise TypeError(
                f"learners: of label {label!r} is a {type(driver).__name__}; give an OnlineEM."
            )
        if not isinstance(driver.family, TemplateMixture):
            raise TypeError(
                f"learners: of label {label!r} learns a {type(driver.family).__name__}; a driver "
                "for each label takes a TemplateMixture. Give one driver for all labels."
            )
        first = driver.family if first is None else first
        if driver.family is first:
            continue
        ours, theirs = first.describe(), driver.family.describe()
        other = [name for name in ours if name not in OWN and ours[name] != theirs[name]]
        if other:
            raise ValueError(
                f"learners: the mixture of label {label!r} differs from the first in {other}; "
                f"give mixtures that differ in their numbers of classes, {' and '.join(OWN)} alone."
            )
    if len({id(driver) for driver in drivers.values()}) < len(drivers):
        raise ValueError("learners: one driver has several labels; give each label its own.")
    assert first is not None
    return first


def _try_out(learner: OnlineRun, observation: Any) -> None:
    """Make a step of a driver and forget it: the state is not the driver's."""
    parameters = learner.state.parameters or learner.family.declared_parameters()
    state = RunState(parameters=parameters, pending=(Pending.of(observation, 0),))
    # what fails here fails again, and is dealt with, when it is learnt
    with suppress(StepError):
        learner.step(state)


def _current(learner: OnlineRun) -> Arrays | None:
    """Return the parameters that an observation which comes now is classified by.

    They are those of `OnlineEM.parameters` without what is held: learning that for every
    observation anew would cost more than the run.
    """
    state = replace(learner.state, pending=())
    if state.parameters is None:
        return None
    state = learner.ended(state)
    return state.average or state.parameters


def _probabilities(
    classifier: Classifier, data: Arrays, parameters: Arrays, index: int
) -> np.ndarray:
    """Return class probabilities of observation `index`, ``(n_classes,)``."""
    seed = np.random.SeedSequence(classifier.random_seed, spawn_key=(index,))
    rng = np.random.default_rng(seed)
    with one_call_at_a_time(), one_blas_thread():
        return weigh(
            classifier.executor.compiled,
            data,
            parameters,
            rng,
            classifier.draws,
            classifier.burn_in,
        )


def _heaviest(probabilities: np.ndarray, names: Sequence[Hashable]) -> Guess:
    """Return the label whose classes weigh most together."""
    weight: dict[Hashable, float] = {}
    for name, probability in zip(names, probabilities, strict=True):
        weight[name] = weight.get(name, 0.0) + float(probability)
    return Guess(max(weight, key=weight.__getitem__), classified=True)
