"""Labels of new observations from the classes that were learned."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import xarray as xr

from pymc_mcoem.classification.labels import as_labels, majority_labels, unique_labels
from pymc_mcoem.classification.merged_classes import merge_parameters, merged_mixture
from pymc_mcoem.classification.scores import (
    Unclassified,
    attempt,
    check_sweeps,
    checked,
    compile_class_weights,
    compile_expected_likelihood,
    joined,
)
from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import OneAtATime, one_blas_thread
from pymc_mcoem.em.progress import CountProgress
from pymc_mcoem.em.stream import Unreadable, count_observations, read
from pymc_mcoem.interrupts import deferred, require_readable
from pymc_mcoem.labeling import require_parameters
from pymc_mcoem.runs.executor import Dispatcher, WorkerLost
from pymc_mcoem.runs.failed_records import ON_ERROR, named, refusal
from pymc_mcoem.runs.order_groups import answers_in_groups
from pymc_mcoem.runs.settings import seed_entropy
from pymc_mcoem.runs.workers import Order, Workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import CompiledClassWeights, EStep
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.templates.mixture import TemplateMixture

__all__ = ["Classifier"]

_log = logging.getLogger("pymc_mcoem")


class Classifier:
    """Classify observations by a mixture whose classes have labels, or by a mixture per label.

    Parameters
    ----------
    mixture : TemplateMixture
        The mixture whose parameters were learned.
    parameters : Dataset, or mapping of label to Dataset
        Parameters of one mixture, or of one mixture for each label. Numbers of classes may differ
        between labels.
    labels : sequence, optional
        With one mixture: a label for each class. Default: the number of the class, until `fit`
        names the classes by labeled observations. Must be None with a mixture per label.
    label_weights : mapping of label to float, optional
        Prior weights of labels, with a mixture per label; equal by default.
    rule : {"evidence", "expected_likelihood"}
        ``"evidence"``: posterior class probabilities, computed by `e_step`.
        ``"expected_likelihood"``: the paper's rule, `ExpectedLikelihood` of each class, without
        the classes' weights.
    e_step : EStep, optional
        Computes posterior class probabilities: `CarlinChibBurst` (default), `LaplaceGaussian` (by
        Laplace's evidence, or with importance weights), or any other that has a
        ``class_probability``.
    draws, tune : int
        Sweeps that are used, and sweeps before them.
    screening : float
        Hopeless classes are excluded before the sweeps or draws if this changes no class or label
        probability by more than `screening`, apart from Monte Carlo error. Sweeps and draws then
        cost as much as for four or sixteen classes. With 0 no class is excluded. The bound holds
        while Laplace's approximation errs by no more than 20 in the log-evidence of one class
        against another's; see `pymc_mcoem.classification.screening.ScreenedClassWeights`. Screening
        saves sweeps but no mode searches: with 40 classes bursts of 500 sweeps take half the time,
        bursts of 50 sweeps as much as before. An `e_step` that draws nothing, such as
        ``LaplaceGaussian()``, is not screened.
    random_seed : int or sequence of int
        Observation i of a call has a generator of its own, made from the seed and i. The default
        is not None, so that the same image always gets the same label. None draws a seed, which
        the attribute `random_seed` has.
    progressbar : bool
    executor : concurrent.futures.Executor, int or Workers, optional
        Executor that computes the probabilities, as for `OnlineEM`. They are bitwise identical for
        any executor.
    on_error : {"raise", "skip"}
        How to handle observations that cannot be read, that the family refuses or whose
        probabilities fail. ``"raise"``: the call ends with an error that names the observation.
        ``"skip"``: its probabilities are NaN, its label is None, and `skipped` has the reason.

    Attributes
    ----------
    classes_ : ndarray of shape (n_labels,)
        The labels, sorted if they can be compared, as in scikit-learn.
    class_labels : tuple of length n_classes
        Label of each class.
    skipped : dict of int to str
        Reasons why observations of the last call have no label, by their positions from 0.

    Raises
    ------
    ValueError
        If labels do not fit classes, weights are not positive, a parameter has a wrong shape, or
        `rule` is unknown.

    Notes
    -----
    A mixture per label becomes one mixture of all their classes. The weight of a class is that of
    its label times that within the label, and each class has its own noise variance. The cost of
    an observation is a mode search in every class that stays in the race, and ``draws + tune``
    sweeps; by the paper's rule (label ``classif1``) both in every class.

    If warps are loose and noise is low, a class's posterior has several modes. A search from one
    starting point may miss the best, and bursts and importance weights are then wrong too. For
    60 curves simulated from 20 classes (noise variance 0.03), bursts of 500 sweeps were off by at
    most 0.01, 0.15 and 0.91 with deformation variances of 0.02, 0.1 and 0.3, and by more than 0.1
    for 0, 1 and 6 curves, with searches from three clocks; from nine by at most 0.01, 0.02 and
    0.05. `TemplateMixture.for_curves` now has up to seven, by the prior's mode of γ².

    Examples
    --------
    Two labeled images name the classes:

    >>> from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    >>> theta = mixture.parameters
    >>> theta["templates"][:] = np.linalg.solve(
    ...     mixture.mean_design(), np.outer(np.ones(9), [0.1, 0.9])
    ... ).T
    >>> classifier = Classifier(mixture, theta, e_step=FixedLatents(), progressbar=False)
    >>> classifier.fit([np.zeros((3, 3)), np.ones((3, 3))], ["dark", "bright"]).class_labels
    ('dark', 'bright')
    >>> classifier.classes_
    array(['bright', 'dark'], dtype='<U6')
    >>> classifier.predict_proba(np.full((1, 3, 3), 0.5)).round(6)
    array([[0.5, 0.5]])
    >>> classifier.predict([np.zeros((3, 3)), np.full((3, 3), 0.6)])
    array(['dark', 'bright'], dtype='<U6')
    >>> classifier.score([np.zeros((3, 3)), np.ones((3, 3))], ["dark", "dark"])
    0.5
    """

    def __init__(
        self,
        mixture: TemplateMixture,
        parameters: xr.Dataset | Mapping[Hashable, xr.Dataset],
        labels: Sequence[Hashable] | None = None,
        *,
        label_weights: Mapping[Hashable, float] | None = None,
        rule: Literal["evidence", "expected_likelihood"] = "evidence",
        e_step: EStep | None = None,
        draws: int = 50,
        tune: int = 10,
        screening: float = 0.0,
        random_seed: int | Sequence[int] | None = 0,
        progressbar: bool = True,
        executor: Executor | int | Workers | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error: got {on_error!r}; choose one of {ON_ERROR}.")
        check_sweeps(draws, tune)
        if rule not in ("evidence", "expected_likelihood"):
            raise ValueError(f"rule is {rule!r}; give 'evidence' or 'expected_likelihood'.")
        if rule == "expected_likelihood" and e_step is not None:
            raise ValueError(
                f"e_step is {e_step!r}, which the rule 'expected_likelihood' does not use; leave "
                "it out, or give rule='evidence'."
            )
        if not 0 <= screening < 1:
            raise ValueError(f"screening is {screening}; give a probability from 0 to below 1.")
        if screening and rule != "evidence":
            raise ValueError(
                f"screening is {screening}, but the rule {rule!r} does not weigh classes by "
                "evidence; leave it out, or give rule='evidence'."
            )
        self._has_own_labels = not isinstance(parameters, xr.Dataset)
        if isinstance(parameters, xr.Dataset):
            if label_weights is not None:
                raise ValueError("label_weights: one mixture has its own weights; leave them out.")
            self.family: Family = mixture
            self._parameters = mixture.check_parameters(parameters)
            of_class = list(range(mixture.n_classes)) if labels is None else list(labels)
            if len(of_class) != mixture.n_classes:
                raise ValueError(
                    f"labels: got {len(of_class)} for {mixture.n_classes} classes; give one for "
                    "each class."
                )
        else:
            if labels is not None:
                raise ValueError(
                    "labels: with a mixture per label the mapping's keys are the labels; leave "
                    "them out."
                )
            of_class = self._merge(mixture, parameters, label_weights)
        self.class_labels: tuple[Hashable, ...] = tuple(of_class)
        self.draws = draws
        self.tune = tune
        self.screening = screening
        self.random_seed = seed_entropy(random_seed)
        self.progressbar = progressbar
        self.rule = rule
        self.on_error = on_error
        self.skipped: dict[int, str] = {}
        self._alone = OneAtATime("Classifier")
        # The paper's rule uses the weights of labels, but not those of classes.
        prior = {} if label_weights is None else label_weights
        log_label_weight = np.log([float(prior.get(label, 1.0)) for label in of_class])
        make: Callable[[], CompiledClassWeights] = (
            partial(compile_class_weights, self.family, e_step, screening)
            if rule == "evidence"
            else partial(compile_expected_likelihood, self.family, log_label_weight)
        )
        self.executor = Dispatcher(make, executor)
        self._group_size = 1 if screening else getattr(e_step, "group_size", 1)

    def _merge(
        self,
        mixture: TemplateMixture,
        parameters: Mapping[Hashable, xr.Dataset],
        label_weights: Mapping[Hashable, float] | None,
    ) -> list[Hashable]:
        """Set family and parameters of all classes together; return the label of each."""
        require_parameters(parameters, "of each label to one")
        if not parameters:
            raise ValueError(
                "parameters: got no label; give the parameters of at least one mixture."
            )
        checked_parameters = {}
        of_class: list[Hashable] = []
        for label, dataset in parameters.items():
            if not isinstance(dataset, xr.Dataset):
                raise TypeError(
                    f"parameters: of label {label!r} are a {type(dataset).__name__}; give a "
                    "Dataset, as OnlineEM.parameters is."
                )
            n_classes = int(dataset.sizes["class"])
            own = mixture if n_classes == mixture.n_classes else mixture.with_classes(n_classes)
            checked_parameters[label] = own.check_parameters(dataset)
            of_class += [label] * n_classes
        merged = merge_parameters(checked_parameters, label_weights)
        self.family = merged_mixture(mixture, len(of_class))
        self._parameters = self.family.check_parameters(merged)
        return of_class

    @property
    def classes_(self) -> np.ndarray:
        """Labels, ``(n_labels,)``, in the order of the columns of `predict_proba`."""
        return as_labels(unique_labels(self.class_labels))

    def fit(self, observations: Any, labels: Sequence[Hashable] | np.ndarray) -> Self:
        """Name the classes of one mixture by labeled observations.

        Each class gets the label that has the largest weight in it, see `majority_labels`. The
        learned parameters do not change.

        Parameters
        ----------
        observations : array_like or iterable
            As `OnlineEM.partial_fit` takes them.
        labels : sequence of length n

        Returns
        -------
        Classifier
            The classifier itself.

        Raises
        ------
        ValueError
            If the classifier has a mixture per label, so that classes already have labels, or
            there are more or fewer labels than observations.
        """
        if self._has_own_labels:
            raise ValueError(
                "labels: with a mixture per label the classes have labels; do not call fit."
            )
        self.class_labels = tuple(majority_labels(self.class_probabilities(observations), labels))
        return self

    def class_probabilities(self, observations: Any) -> np.ndarray:
        """Return class probabilities, ``(n, n_classes)``.

        With the rule ``"expected_likelihood"`` they are the classes' scores divided by their sum.

        Parameters
        ----------
        observations : array_like or iterable
            As `OnlineEM.partial_fit` takes them.

        Raises
        ------
        ValueError, TypeError
            If there is no observation, or the family refuses one. The error names it.
        FloatingPointError, RuntimeError
            If the probabilities of an observation fail. The error names it. A RuntimeError also
            if another thread calls at the same time.
        Exception
            Any exception that the source raises.
        """
        with (
            deferred("observations") as interrupts,
            self._alone.call(),
            telling(self.progressbar),
        ):
            return self._class_probabilities(observations, interrupts.between)

    def _class_probabilities(self, observations: Any, between: Callable[[], None]) -> np.ndarray:
        found: dict[int, np.ndarray] = {}
        self.skipped = {}
        total = count_observations(self.family, observations)
        with (
            CountProgress(self.progressbar, total, "Classified") as progress,
            one_blas_thread(),
        ):
            for index, answer in self._answers(observations, total):
                if isinstance(answer, Unclassified):
                    self.skipped[index] = f"classifying it failed: {answer.reason}"
                else:
                    found[index] = answer
                progress.advance()
                between()
        # Observations may be refused before earlier ones have their answer.
        self.skipped = dict(sorted(self.skipped.items()))
        n = len(found) + len(self.skipped)
        if not n:
            raise ValueError("observations: got none; pass at least one observation.")
        if self.skipped:
            _log.warning(
                "%d of %d observations have no label. The first is number %d, counted from 0: %s",
                *(len(self.skipped), n, *next(iter(self.skipped.items()))),
            )
        missing = np.full(self.family.n_classes, np.nan)
        return np.stack([found.get(index, missing) for index in range(n)])

    def _answers(
        self, observations: Any, total: int | None
    ) -> Iterator[tuple[int, np.ndarray | Unclassified]]:
        """Yield the index of each observation that is not refused, and its probabilities."""
        orders = self._orders(observations)
        sent: deque[tuple[int, Order]] = deque()
        group_size = self._group_size

        def send() -> Iterator[Order]:
            yield from [order for _, order in sent]
            for index, order in orders:
                sent.append((index, order))
                yield order

        # Compiling comes first, because its failures are not due to an observation.
        self.executor.prepare()
        while True:
            try:
                for answer in answers_in_groups(
                    self.executor, send(), group_size, joined, total=total
                ):
                    yield sent.popleft()[0], answer
                return
            except WorkerLost as error:
                index, _ = sent.popleft()
                group_size = 1
                if self.on_error == "raise":
                    raise RuntimeError(
                        f"observation {index}, counted from 0, cannot be classified: {error} "
                        "Leave it out, or give on_error='skip'."
                    ) from error
                yield index, Unclassified(named(error))

    def _orders(self, observations: Any) -> Iterator[tuple[int, Order]]:
        """Yield the index and the call for each observation, reading one only when needed."""
        for index, observation in enumerate(read(self.family, observations)):
            if isinstance(observation, Unreadable):
                if self.on_error == "raise":
                    raise observation.error
                self.skipped[index] = f"reading it failed: {named(observation.error)}"
                continue
            try:
                data = self.family.encode(observation)
            except Exception as error:
                require_readable(error)
                if self.on_error == "skip":
                    self.skipped[index] = f"refused: {named(error)}"
                    continue
                raise refusal(error, index) from error
            call = attempt if self.on_error == "skip" else checked
            sweeps = self.random_seed, self.draws, self.tune
            yield index, Order(call, (index, data, self._parameters, *sweeps))

    def predict_proba(self, observations: Any) -> np.ndarray:
        """Return label probabilities, ``(n, n_labels)``, in the order of `classes_`.

        Parameters
        ----------
        observations : array_like or iterable
        """
        by_class = self.class_probabilities(observations)
        names = unique_labels(self.class_labels)
        codes = [names.index(label) for label in self.class_labels]
        return by_class @ np.eye(len(names))[codes]

    def predict(self, observations: Any) -> np.ndarray:
        """Return the most probable label of each observation, ``(n,)``.

        Parameters
        ----------
        observations : array_like or iterable

        Returns
        -------
        ndarray of shape (n,)
            With ``on_error="skip"`` an array of objects, None where classification failed.
        """
        found = self.classes_[self.predict_proba(observations).argmax(axis=1)]
        if self.on_error == "skip":
            # An array of text or numbers cannot hold None.
            found = found.astype(object)
            found[list(self.skipped)] = None
        return found

    def score(self, observations: Any, labels: Sequence[Hashable] | np.ndarray) -> float:
        """Return the share of observations whose most probable label is the given one.

        Observations that could not be classified count as wrong.

        Parameters
        ----------
        observations : array_like or iterable
        labels : sequence of length n

        Raises
        ------
        ValueError
            If there are more or fewer labels than observations.
        """
        found = self.predict(observations)
        given = as_labels(labels)
        if given.shape != found.shape:
            raise ValueError(
                f"labels: got shape {given.shape} for {len(found)} observations; give one label "
                "for each."
            )
        right = [bool(one == other) for one, other in zip(found, given, strict=True)]
        return float(np.mean(right))
