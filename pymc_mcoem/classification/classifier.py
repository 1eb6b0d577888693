"""Labels of new observations by the classes that were learnt."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from pymc_mcoem.classification.labels import as_labels
from pymc_mcoem.classification.merged_classes import unite
from pymc_mcoem.classification.scores import (
    Unclassified,
    attempt,
    checked,
    compile_class_weights,
    compile_expected_likelihood,
    weigh,
    weigh_expected,
)
from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import OneAtATime, one_blas_thread
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.family import Family
from pymc_mcoem.em.progress import CountProgress, count_observations
from pymc_mcoem.em.reading import Unreadable, read
from pymc_mcoem.interrupts import deferred, require_own_fault, require_readable
from pymc_mcoem.runs.executor import Crew, Workers
from pymc_mcoem.runs.failed_records import ON_ERROR, named
from pymc_mcoem.runs.workers import ExecutorError, Order
from pymc_mcoem.templates.mixture import TemplateMixture

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import EStep

__all__ = ["Classifier"]

_log = logging.getLogger("pymc_mcoem")


class Classifier:
    """Weights of the classes for new observations, summed by label.

    Parameters
    ----------
    mixture : TemplateMixture
        The mixture whose parameters were learnt.
    parameters : Dataset, or mapping of label to Dataset
        Parameters of one mixture, or of one mixture per label; these may differ in their
        numbers of classes.
    labels : sequence or mapping, optional
        With one mixture: a label for each class (see `majority_labels`); None labels classes by
        their number. Not with a mixture per label.
    label_weights : mapping of label to float, optional
        Prior weights of labels, with a mixture per label; equal by default.
    rule : {"evidence", "expected_likelihood"}
        ``"evidence"``: posterior class probabilities, found by `e_step`.
        ``"expected_likelihood"``: the paper's rule, `ExpectedLikelihood` of each class, without
        the classes' weights.
    e_step : EStep, optional
        How posterior class probabilities are found: `CarlinChibBurst` (default),
        `LaplaceGaussian` (by Laplace's evidence, or with importance weights), or any other that
        has a ``class_probability``.
    draws, burn_in : int
        Sweeps that are kept, and sweeps before them.
    screening : float
        By how much a class or label probability may change, apart from Monte Carlo error, for
        hopeless classes to be left out before the sweeps or draws, which then cost as much as four
        or sixteen classes do; 0 leaves out none. It holds while Laplace's approximation errs by no
        more than 20 in the log-evidence of one class against another's; see the notes of
        `pymc_mcoem.classification.screening.ScreenedClassWeights`. It spares sweeps, not the search
        for modes: with 40 classes bursts of 500 sweeps take half the time, of 50 all of it
        (``benchmarks/screening.py``). An `e_step` that draws nothing, as ``LaplaceGaussian()``,
        has nothing to spare: it takes any amount, looks at all classes, and nothing changes.
    random_seed : int
        Observation i of an array has a generator of its own, made from the seed and i.
    progressbar : bool
    executor : concurrent.futures.Executor or int, optional
        Who classifies, as for `OnlineEM`. The probabilities are the same, to the last bit.
    on_error : {"raise", "skip"}
        What becomes of an observation that cannot be read, that the family refuses or whose
        probabilities fail: the call ends with an error that names it, or it keeps its place, with
        NaN for its probabilities and None for its label, and `skipped` says why.

    Attributes
    ----------
    labels : tuple of length n_labels
    class_labels : tuple of length n_classes
    skipped : dict of int to str
        Why observations of the last call have no label, by their places, counted from 0.

    Raises
    ------
    ValueError
        If labels do not fit classes, weights are not positive, a parameter has a wrong shape, or
        `rule` is another word.

    Notes
    -----
    A mixture per label becomes one mixture of all their classes, whose weights are those of
    the label times those within it, and whose noise variance differs from class to class. Cost of
    an observation: a mode search in every class that stays in the race, and ``draws + burn_in``
    sweeps; by the paper's rule (label ``classif1``) both in every class.

    Where warps are loose and noise is low, a class's posterior has several modes; a search that
    starts at one point may miss the best, and bursts and importance weights stay wrong with it. Of
    60 curves simulated from 20 classes (noise variance 0.03), bursts of 500 sweeps were off by 0.01
    at most for a deformation variance of 0.02, by 0.15 for 0.1 and by 0.91 for 0.3, with more than
    0.1 for 0, 1 and 6 curves; with nine starting points (``mixture.geometry``) by 0.01, 0.02 and
    0.05.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    >>> classifier = Classifier(mixture, mixture.parameters, labels=["dark", "bright"])
    >>> classifier.labels
    ('dark', 'bright')
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
        burn_in: int = 10,
        screening: float = 0.0,
        random_seed: int = 0,
        progressbar: bool = True,
        executor: Executor | int | Workers | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error: got {on_error!r}; choose one of {ON_ERROR}.")
        if draws < 1 or burn_in < 0:
            raise ValueError(
                f"draws is {draws} and burn_in {burn_in}; give at least one draw and no negative "
                "burn-in."
            )
        if rule not in ("evidence", "expected_likelihood"):
            raise ValueError(f"rule is {rule!r}; give 'evidence' or 'expected_likelihood'.")
        if rule == "expected_likelihood" and e_step is not None:
            raise ValueError(
                f"e_step is {e_step!r}, which the rule 'expected_likelihood' has no use for; leave "
                "it out, or give rule='evidence'."
            )
        if not 0 <= screening < 1:
            raise ValueError(f"screening is {screening}; give a probability from 0 to below 1.")
        if screening and rule != "evidence":
            raise ValueError(
                f"screening is {screening}, but the rule {rule!r} does not weigh classes by "
                "evidence; leave it out, or give rule='evidence'."
            )
        if isinstance(parameters, xr.Dataset):
            if label_weights is not None:
                raise ValueError(
                    "label_weights: with one mixture the weights are its own; leave them out."
                )
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
            self.family, self._parameters, of_class = unite(mixture, parameters, label_weights)
        self.labels: tuple[Hashable, ...] = tuple(dict.fromkeys(of_class))
        self.class_labels: tuple[Hashable, ...] = tuple(of_class)
        self.draws = draws
        self.burn_in = burn_in
        self.screening = screening
        self.random_seed = random_seed
        self.progressbar = progressbar
        self.rule = rule
        self.on_error = on_error
        self.skipped: dict[int, str] = {}
        self._alone = OneAtATime("Classifier")
        if rule == "evidence":
            chosen = CarlinChibBurst() if e_step is None else e_step
            make: Callable[[], Any] = partial(compile_class_weights, self.family, chosen, screening)
        else:
            make = partial(compile_expected_likelihood, self.family)
        self._crew = Crew(make, executor)
        # The paper's rule knows no weights of classes, but those of labels.
        prior = {} if label_weights is None else label_weights
        self._log_label_weight = np.log([float(prior.get(label, 1.0)) for label in of_class])

    def class_probabilities(self, observations: Any) -> np.ndarray:
        """Return class probabilities, ``(n, n_classes)``.

        By the rule ``"expected_likelihood"`` they are what each class's score is of all scores.

        Parameters
        ----------
        observations : array_like or iterable
            As `OnlineEM.partial_fit` takes them.

        Raises
        ------
        ValueError, TypeError
            If there is no observation, or the family refuses one, which is named.
        FloatingPointError, RuntimeError
            If the probabilities of one fail, which is named. A RuntimeError also where another
            thread calls while a call is at work.
        Exception
            What the source raises.
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
            for index, probabilities in self._answers(observations, total):
                found[index] = probabilities
                progress.advance()
                between()
        # some are refused as they are handed out, before others have their answer
        self.skipped = dict(sorted(self.skipped.items()))
        n = len(found) + len(self.skipped)
        if not n:
            raise ValueError("observations: got none; pass at least one observation.")
        if self.skipped:
            first = next(iter(self.skipped))
            _log.warning(
                "%d of %d observations have no label. The first is number %d, counted from 0: %s",
                len(self.skipped),
                n,
                first,
                self.skipped[first],
            )
        missing = np.full(self.family.n_classes, np.nan)
        return np.stack([found.get(index, missing) for index in range(n)])

    def _answers(self, observations: Any, total: int | None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield probabilities and whose they are, of the observations that have some."""
        orders = self._orders(observations)
        under_way: deque[tuple[int, Order]] = deque()
        of_the_source: list[Exception] = []

        def handed_out() -> Iterator[Order]:
            # what was handed out when a worker was lost comes first
            yield from [order for _, order in under_way]
            try:
                for index, order in orders:
                    under_way.append((index, order))
                    yield order
            except Exception as error:
                of_the_source.append(error)
                raise

        # What fails here is no observation's fault.
        self._crew.prepare()
        answers = self._crew.answers(handed_out(), total=total)
        while True:
            try:
                answer: np.ndarray | Unclassified = next(answers)
            except StopIteration:
                return
            except ExecutorError:
                raise
            except Exception as error:
                if of_the_source:
                    raise
                require_own_fault(error)
                answer = self._failed(under_way[0][0], error)
                answers = self._crew.answers(handed_out(), total=total)
            index, _ = under_way.popleft()
            if isinstance(answer, Unclassified):
                self.skipped[index] = f"classifying it failed: {answer.reason}"
            else:
                yield index, answer

    def _failed(self, index: int, error: Exception) -> Unclassified:
        """Return that an observation has failed, or raise it with its number."""
        if self.on_error == "skip":
            return Unclassified(named(error))
        kind = FloatingPointError if isinstance(error, ArithmeticError) else RuntimeError
        raise kind(
            f"observation {index}, counted from 0, cannot be classified: {error} Leave it out, or "
            "give on_error='skip'."
        ) from error

    def _orders(self, observations: Any) -> Iterator[tuple[int, Order]]:
        """Yield the calls to be made and for which, each made up when it is asked for."""
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
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"observation {index} (counted from 0) was refused: {error}") from error
            seed = np.random.SeedSequence(self.random_seed, spawn_key=(index,))
            given = (data, self._parameters, np.random.default_rng(seed), self.draws, self.burn_in)
            way = attempt if self.on_error == "skip" else checked
            if self.rule == "evidence":
                yield index, Order(way, (weigh, *given))
            else:
                yield index, Order(way, (weigh_expected, *given, self._log_label_weight))

    def predict_proba(self, observations: Any) -> np.ndarray:
        """Return label probabilities, ``(n, n_labels)``, in the order of `labels`.

        Parameters
        ----------
        observations : array_like or iterable

        Examples
        --------
        >>> from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
        >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        >>> theta = mixture.parameters
        >>> theta["templates"][:] = np.linalg.solve(
        ...     mixture.mean_design(), np.outer(np.ones(9), [0.1, 0.9])
        ... ).T
        >>> classifier = Classifier(
        ...     mixture, theta, ["dark", "bright"], e_step=FixedLatents(), progressbar=False
        ... )
        >>> classifier.predict_proba(np.full((1, 3, 3), 0.5)).round(6)
        array([[0.5, 0.5]])
        """
        by_class = self.class_probabilities(observations)
        codes = [self.labels.index(label) for label in self.class_labels]
        return by_class @ np.eye(len(self.labels))[codes]

    def predict(self, observations: Any) -> np.ndarray:
        """Return the most probable label of each observation, ``(n,)``.

        Parameters
        ----------
        observations : array_like or iterable

        Returns
        -------
        ndarray of shape (n,)
            With ``on_error="skip"`` of objects, None for what could not be classified.

        Examples
        --------
        >>> from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
        >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        >>> theta = mixture.parameters
        >>> theta["templates"][:] = np.linalg.solve(
        ...     mixture.mean_design(), np.outer(np.ones(9), [0.1, 0.9])
        ... ).T
        >>> classifier = Classifier(
        ...     mixture, theta, ["dark", "bright"], e_step=FixedLatents(), progressbar=False
        ... )
        >>> classifier.predict([np.zeros((3, 3)), np.full((3, 3), 0.6)])
        array(['dark', 'bright'], dtype='<U6')
        """
        found = as_labels(self.labels)[self.predict_proba(observations).argmax(axis=1)]
        if self.on_error == "skip":
            # whatever kind labels are of, none is none of them
            found = found.astype(object)
            found[list(self.skipped)] = None
        return found

    def score(self, observations: Any, labels: Sequence[Hashable] | np.ndarray) -> float:
        """Return the share of observations whose most probable label is the given one.

        What could not be classified counts as wrong.

        Parameters
        ----------
        observations : array_like or iterable
        labels : sequence of length n

        Raises
        ------
        ValueError
            If there are more or fewer labels than observations.

        Examples
        --------
        >>> from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
        >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        >>> theta = mixture.parameters
        >>> theta["templates"][:] = np.linalg.solve(
        ...     mixture.mean_design(), np.outer(np.ones(9), [0.1, 0.9])
        ... ).T
        >>> classifier = Classifier(
        ...     mixture, theta, ["dark", "bright"], e_step=FixedLatents(), progressbar=False
        ... )
        >>> classifier.score([np.zeros((3, 3)), np.ones((3, 3))], ["dark", "dark"])
        0.5
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
