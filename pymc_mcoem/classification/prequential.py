"""Predict, then learn: every observation of a stream is a test before it is a lesson."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.classification.error_rate import check_window, live_error_rate
from pymc_mcoem.classification.labels import as_labels
from pymc_mcoem.classification.stream_classifiers import (
    Guess,
    Learnt,
    MixtureOfEachLabel,
    NamedClasses,
)
from pymc_mcoem.em.progress import CountProgress
from pymc_mcoem.em.stream import Unreadable, count_observations, read
from pymc_mcoem.interrupts import deferred
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStep
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.online import OnlineEM
    from pymc_mcoem.labelling import Arrays

__all__ = ["predict_then_learn"]


def predict_then_learn(
    learners: OnlineEM | Mapping[Hashable, OnlineEM],
    observations: Any,
    labels: Any,
    *,
    every: int = 1,
    e_step: EStep | None = None,
    draws: int = 50,
    burn_in: int = 10,
    window: int = 100,
    random_seed: int = 0,
    progressbar: bool = True,
) -> xr.Dataset:
    """Classify each observation of a stream by what was learnt before it, then learn it.

    The error rate along the stream needs no data held back, and no second look at any.

    Parameters
    ----------
    learners : OnlineEM, or mapping of label to OnlineEM
        A driver for each label: an observation is classified by the mixtures of all labels, and
        then learnt by that of its own. One driver: it learns all observations without their
        labels, which only name its classes.
    observations : array_like, DataArray, or iterable
        As `OnlineEM.partial_fit` takes them, read lazily, one ahead of none.
    labels : array_like of shape (n,), or iterable
        One for each record of `observations`. Of an iterator each is read after its observation
        was classified; others are checked before anything is learnt.
    every : int
        Only observations `every`, 2 `every`, ... are classified; all are learnt.
    e_step : EStep, optional
        How posterior class probabilities are found, as for `Classifier`.
    draws, burn_in : int
        Sweeps that are kept, and sweeps before them.
    window : int
        Classified observations in ``recent``.
    random_seed : int
        Of classifying. Observation i has a generator of its own, made from the seed and i.
    progressbar : bool
        Whether the call shows how it proceeds; the drivers' own bars are not shown.

    Returns
    -------
    Dataset with dimension ``observation``, the number in the stream counted from 1
        What `live_error_rate` returns of the observations that were classified, and
        ``predicted`` and ``actual``, labels; ``seconds``, spent on learning until the observation
        was classified, in this call and by all drivers together; ``classified``, false where no
        mixture was asked and the most frequent label stood in.

    Raises
    ------
    ValueError
        If there are more or fewer labels than observations, a label is not known, mixtures of the
        labels are not alike, or no observation was classified: there are fewer than `every`, or
        there is one and nothing was known before it. What was learnt until then stays learnt.
    TypeError
        If `learners` are no `OnlineEM`, those of labels learn no `TemplateMixture`, or `e_step`
        gives no class probabilities.
    Exception
        What `OnlineEM.partial_fit` raises. With ``on_error="skip"`` the stream goes on without
        the record; its label is passed over.

    Notes
    -----
    The parameters that classify are those of the last update, or their average, as
    `OnlineEM.parameters` gives them; observations that are held have no part in them. The label
    is predicted that weighs most, labels being equally probable beforehand. One driver's classes
    have the label that weighs most among the observations learnt in this call, by the class
    weights that their E-steps gave; a class without weight has the most frequent label. Where
    labels tie, the one that came first wins.

    Until every driver has parameters (`n_start` observations of each are held), the prediction is
    the most frequent label until then, those that drivers saw before the call included. So a
    label that hardly comes delays all: give its driver ``parameters=`` or a small `n_start`. An
    observation with no label before it is left out.

    Everything is compiled once, and parameters are inputs. Each driver's E-step is tried out on its
    first observation, so that ``seconds`` are free of what compiles when it is called. A run learns
    the same as by `OnlineEM.partial_fit`, to the last bit.

    References
    ----------
    Gama, Sebastião and Rodrigues (2013), On evaluating stream learning algorithms, Machine
    Learning 90, 317-346.

    Examples
    --------
    >>> from pymc_mcoem import FixedLatents, OnlineEM, TemplateMixture
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
    if not is_whole(every) or every < 1:
        raise ValueError(f"every: got {every!r}; give a whole number of at least 1.")
    check_window(window)
    settings = {
        "e_step": e_step,
        "draws": draws,
        "burn_in": burn_in,
        "random_seed": random_seed,
        "progressbar": False,
    }
    learnt: Learnt = (
        MixtureOfEachLabel(learners, settings)
        if isinstance(learners, Mapping)
        else NamedClasses(learners, settings)
    )
    total = count_observations(learnt.family, observations)
    source = _read_labels(labels, total, learnt.check_label)
    # Compiling is no learning, and fails before anything is learnt.
    for learner in learnt.learners:
        learner.executor.prepare()
    learnt.classifier.executor.prepare()
    found = _Rows()
    seconds, number = 0.0, 0
    with (
        deferred("observations") as interrupts,
        ExitStack() as alone,
        CountProgress(progressbar, total, "Predicted, learnt") as progress,
    ):
        for learner in learnt.learners:
            alone.enter_context(learner.alone.call())
        try:
            for number, observation in enumerate(read(learnt.family, observations), start=1):
                data = _encoded(learnt.family, observation)
                guess = None
                if data is not None and number % every == 0:
                    guess = learnt.predict(data, number - 1)
                try:
                    label = next(source)
                except StopIteration:
                    raise ValueError(
                        f"labels: there are {number - 1}, and more observations; give one label "
                        f"for each. The first {number - 1} observations are learnt."
                    ) from None
                if data is not None:
                    learnt.warm_up(observation, label)
                begun = perf_counter()
                learnt.learn(observation, label, number - 1, counts=data is not None)
                if guess is not None:
                    found.add(number, guess, label, seconds)
                seconds += perf_counter() - begun
                progress.advance()
                interrupts.between()
        finally:
            for learner in learnt.learners:
                learner.show_parameters()
    if next(source, None) is not None:
        raise ValueError(
            f"labels: there are more than the {number} observations, which are learnt; give one "
            "label for each."
        )
    if not number:
        raise ValueError("observations: got none; pass at least one observation.")
    if not found.numbers:
        raise ValueError(
            f"observations: of {number}, which are learnt, none was classified; give at least "
            f"{max(every, 2)}, since the first has no label before it and every is {every}."
        )
    half = len(found.numbers)
    kept = as_labels([*found.predicted, *found.actual])
    predicted, actual = kept[:half], kept[half:]
    rate = live_error_rate(predicted, actual, window=window, seconds=found.seconds)
    rows = {"predicted": predicted, "actual": actual, "classified": np.array(found.classified)}
    rate = rate.assign({name: ("observation", values) for name, values in rows.items()})
    return rate.assign_coords(observation=found.numbers).assign_attrs(every=int(every))


@dataclass
class _Rows:
    """What is kept of observations that were classified."""

    numbers: list[int] = field(default_factory=list)
    predicted: list[Hashable] = field(default_factory=list)
    actual: list[Hashable] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    classified: list[bool] = field(default_factory=list)

    def add(self, number: int, guess: Guess, actual: Hashable, seconds: float) -> None:
        """Keep one."""
        self.numbers.append(number)
        self.predicted.append(guess.label)
        self.actual.append(actual)
        self.seconds.append(seconds)
        self.classified.append(guess.classified)


def _read_labels(
    labels: Any, total: int | None, check: Callable[[Hashable, int], None]
) -> Iterator[Hashable]:
    """Return an iterator over labels; all are checked now if there is a number of them."""
    if isinstance(labels, (str, bytes, Mapping)) or not hasattr(labels, "__iter__"):
        raise TypeError(
            f"labels: got {type(labels).__name__}; give a sequence or an iterable of labels."
        )
    if getattr(labels, "ndim", 1) != 1:
        raise ValueError(
            f"labels: have shape {tuple(labels.shape)}; give one label for each observation."
        )
    checked = _checked(labels, check)
    try:
        number = len(labels)
    except TypeError:  # what is read but once, and passes without an end
        return checked
    if total is not None and number != total:
        raise ValueError(
            f"labels: got {number} labels for {total} observations; give one label for each."
        )
    return iter(list(checked))


def _checked(labels: Any, check: Callable[[Hashable, int], None]) -> Iterator[Hashable]:
    """Yield labels as plain objects that can be compared and counted."""
    for index, given in enumerate(labels):
        if getattr(given, "ndim", 0):
            raise ValueError(
                f"labels: record {index} (counted from 0) has shape {tuple(given.shape)}; give "
                "labels one by one."
            )
        label = given.item() if hasattr(given, "item") else given
        try:
            hash(label)
        except TypeError:
            raise TypeError(
                f"labels: observation {index} (counted from 0) has {label!r}, which cannot be "
                "hashed; give a number, a string or a tuple."
            ) from None
        if label is None or label != label:
            raise ValueError(
                f"labels: observation {index} (counted from 0) has {label!r}; leave out "
                "observations without a label."
            )
        check(label, index)
        yield label


def _encoded(family: Family, observation: Any) -> Arrays | None:
    """Return an encoded observation; None for one that its driver is left to refuse."""
    if isinstance(observation, Unreadable):
        return None
    try:
        return family.encode(observation)
    except (TypeError, ValueError):
        return None
