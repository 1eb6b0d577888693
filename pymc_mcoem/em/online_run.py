"""A run of `OnlineEM`: the queue of observations, and the steps of algorithm 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.em.addresses import Address, Seen
from pymc_mcoem.em.contributions import added
from pymc_mcoem.em.esteps.worker_calls import simulate
from pymc_mcoem.em.labels import Classes, allowed_classes, among, without_excluded
from pymc_mcoem.em.predicted import Predicted
from pymc_mcoem.em.recursion import followed, maximized
from pymc_mcoem.em.revival import is_record
from pymc_mcoem.em.run import Run, timed
from pymc_mcoem.em.run_state import (
    ObservationRecord,
    OnlineSettings,
    OnlineState,
    Pending,
    StepError,
    StepReport,
)
from pymc_mcoem.em.stream import Unreadable
from pymc_mcoem.interrupts import raise_if_interrupted, require_own_fault, require_readable
from pymc_mcoem.runs.failed_records import MOST_IN_A_ROW, FailedRecord, named, refusal
from pymc_mcoem.runs.outliers import (
    RefusedInARow,
    absurd_among,
    largest,
    remembered,
    require_plausible,
    span,
)
from pymc_mcoem.runs.workers import Order

if TYPE_CHECKING:
    import xarray as xr

    from pymc_mcoem.em.esteps.base import EStepResult
    from pymc_mcoem.em.storage import SavedRun
    from pymc_mcoem.labeling import Arrays

__all__ = ["OnlineRun", "call_size"]

#: Largest number of observations in a call, and smallest number of calls of several.
CALL_SIZE, CALLS = 8, 512


class OnlineRun(Run[OnlineState, OnlineSettings]):
    """The implementation of `OnlineEM`; parameters as for `Run`.

    `accept` appends an observation to the queue in the state; `learn` takes enough of its first
    ones for a start or a whole mini-batch. Observations are held in the same way for the start, for
    a mini-batch, and after an interrupt.
    """

    driver = "OnlineEM"
    method = "partial_fit"
    settings_class = OnlineSettings
    state_class = OnlineState
    unit = "observation"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._failures = 0
        self._refused = RefusedInARow()
        self._predicted = Predicted(self.family)
        # The state whose parameters were read last, and that state as if the stream ended there.
        self._read: tuple[OnlineState, OnlineState] | None = None
        # The state before the first of the observations that are held by their addresses.
        self._before = self.state

    def restore(self, saved: SavedRun, tree: xr.DataTree) -> None:
        """Continue from a saved run, after a check that it fits the family."""
        super().restore(saved, tree)
        state, n = self.state, self.family.n_classes
        for item in state.pending:
            item.encoded(self.family)
            if not all(0 <= at < n for at in item.classes or ()):
                raise ValueError(f"it holds an observation of the classes {item.classes}")
        spans = [np.shape(rows)[1:] == (3,) for rows in (state.recent or {}).values()]
        if not (all(spans) and (state.fit is None or is_record(state.fit, n))):
            raise ValueError("its ranges of recent observations have other names or shapes")

    def accept(self, observation: Any, index: int, classes: Classes = None) -> None:
        """Append an observation to the queue, or refuse it.

        Parameters
        ----------
        observation : array_like, mapping, Seen, or Unreadable
        index : int
            Number of the record in the call, counted from 0.
        classes : tuple of int or None
            Classes that its label allows; None: all of them.

        Raises
        ------
        ValueError, TypeError
            If the family refuses it.
        Exception
            The exception that the source raised instead of a record; it is then not counted.
        """
        state = self.state
        if isinstance(observation, Unreadable):
            self.leave_out(self.unreadable(observation, state.position))
            self.state = replace(state, position=state.position + 1)
            return
        try:
            item, encoded, spanned = self.admit(observation, state.position)
            require_plausible(
                spanned,
                state.recent,
                self.settings.refuse_beyond,
                None if state.parameters is None else largest(state.parameters),
            )
            if state.parameters is not None and self.settings.refuse_beyond is not None:
                self._predicted.require(
                    encoded, state.recent, state.parameters, self.settings.refuse_beyond
                )
        except Exception as error:
            require_readable(error)
            self._refused.count(error, state.position)
            observation = observation.address if isinstance(observation, Seen) else observation
            self.leave_out(FailedRecord(state.position, f"refused: {named(error)}", observation))
            self.state = replace(state, position=state.position + 1)
            if self.settings.on_error != "raise":
                return
            # After earlier calls, the position in the stream differs from the index in the call.
            also = "" if index == state.position else f", {state.position} of the whole stream"
            raise refusal(error, index, also) from error
        # Compiling may fail too. That is not due to the observation, so compile before counting it.
        self.executor.prepare()
        self._refused.count(None, state.position)
        if isinstance(item.observation, Address) and not state.holds_addresses:
            self._before = state
        self.state = replace(
            state,
            recent=remembered(state.recent, spanned),
            pending=(*state.pending, replace(item, classes=classes)),
            position=state.position + 1,
        )

    @property
    def state_to_save(self) -> OnlineState:
        """The state, or that before the first observation of which only the address is held."""
        return self._before if self.state.holds_addresses else self.state

    def learn(self) -> Iterator[StepReport[OnlineState]]:
        """Learn the queue in whole mini-batches, yielding after each step.

        Raises
        ------
        FloatingPointError, RuntimeError
            If a step fails. The observations that caused it are dropped.
        ExecutorError
            If workers fail for reasons other than an observation. The observations stay held.
        """
        while self._started() and len(self.state.pending) >= self.settings.batch_size:
            # Compiling may fail too; that is not due to an observation.
            self.executor.prepare()
            try:
                report = self.step(self.state)
            except StepError as failure:
                self.leave_out(*failure.failed_records())
                self.state = self.state.without(failure.positions)
                self._failures += len(failure.culprits)
                if self.settings.on_error != "raise" and self._failures <= MOST_IN_A_ROW:
                    continue
                raise failure.user_error("is skipped; those before it stay") from failure.causes[0]
            self.take(report)
            self._failures = 0
            yield report

    def _started(self) -> bool:
        """Set the start if enough observations are held, and return whether the run has one.

        Raises
        ------
        ValueError
            If observations for the start lie too far from the others. They are skipped.
        RuntimeError
            If the start cannot be set. If it can be set without one of the observations, that one
            is skipped.
        """
        while self.state.parameters is None and len(self.state.pending) >= self.settings.n_start:
            try:
                parameters = self._first_parameters(self.state)
            except StepError as failure:
                first = [item.position for item in self.state.pending[: self.settings.n_start]]
                positions = (item.position for item in failure.culprits)
                refused = dict(zip(positions, failure.causes, strict=True))
                RefusedInARow().count_all(first, refused)
                self.leave_out(*failure.failed_records("refused"))
                self.state = self.state.without(failure.positions)
                if self.settings.on_error == "raise":
                    raise failure.user_error("was refused") from failure.causes[0]
                continue
            except RuntimeError as error:
                spoiler = self._spoiler()
                if spoiler is None:
                    raise
                reason = f"the start fails with it: {named(error)}"
                self.leave_out(FailedRecord(spoiler.position, reason, spoiler.observation))
                self.state = self.state.without({spoiler.position})
                if self.settings.on_error == "raise":
                    raise RuntimeError(
                        f"observation {spoiler.position} of the stream, counted from 0, is "
                        f"skipped, since without it the start can be set. {error}"
                    ) from error
                continue
            self.begin(parameters)
        return self.state.parameters is not None

    def _first_parameters(self, state: OnlineState) -> Arrays:
        """Return starting parameters found from the first held observations.

        Raises
        ------
        StepError
            If any lie too far from the others. The first ten were accepted unchecked.
        RuntimeError
            If the family finds no start.
        """
        first = state.pending[: self.settings.n_start]
        absurd = absurd_among(
            {item.position: span(item.observation) for item in first},
            self.settings.refuse_beyond,
            largest(self.family.declared_parameters()),
        )
        if absurd:
            spoilers = [item for item in first if item.position in absurd]
            raise StepError(spoilers, list(absurd.values()))
        held: list[Any] = [item.observation for item in first]
        allowed = allowed_classes([item.classes for item in first], self.family.n_classes)
        try:
            parameters = self.initial_parameters(held, allowed)
        except Exception as error:
            require_own_fault(error)
            raise RuntimeError(
                f"start: {self.settings.start!r} from the {len(held)} observations that are held "
                f"failed ({error}); make the driver anew with parameters=, another start or "
                "another n_start."
            ) from error
        # the result of an interrupted call may look complete
        raise_if_interrupted()
        return parameters

    def _spoiler(self) -> Pending | None:
        """Return the first observation whose removal lets the start be set, if there is one."""
        for item in self.state.pending[: self.settings.n_start]:
            with suppress(RuntimeError, StepError):
                self._first_parameters(self.state.without({item.position}))
                return item
        return None

    def ended_state(self) -> OnlineState:
        """Return the state as if the stream ended here, without changing the run."""
        state = self.state
        is_ended = not state.pending and (state.n_updates or not state.n_learned)
        if state.parameters is not None and is_ended:
            return state
        if self._read is None or self._read[0] is not state:
            self._read = (state, self._ended(state))
        return self._read[1]

    def prepare(self, observation: Any = None) -> None:
        """Compile the E-step and, given an observation, run a step and discard it."""
        self.executor.prepare()
        if observation is not None:
            parameters = self.state.parameters or self.family.declared_parameters()
            trial = OnlineState(parameters=parameters, pending=(Pending.of(observation, 0),))
            # An observation that fails here fails again when it is learned.
            with suppress(StepError):
                self.step(trial)

    def without_held(self) -> OnlineState | None:
        """Return the state as if no observation were held; None before the start."""
        if self.state.parameters is None:
            return None
        return self.ended(replace(self.state, pending=()))

    def _ended(self, state: OnlineState) -> OnlineState:
        try:
            return self.ended(state)
        except StepError as failure:
            if self.settings.on_error == "raise":
                raise failure.user_error("is held, and cannot be learned") from failure.causes[0]
            return self._ended(state.without(failure.positions))

    def ended(self, state: OnlineState) -> OnlineState:
        """Return a state as if the stream ended there.

        Held observations are learned, an incomplete mini-batch as a smaller one. The parameters
        are maximized if any were held or if there was no update before.
        """
        if state.parameters is None:
            if not state.pending:
                raise ValueError(
                    "parameters: there are none, since nothing was seen and none were given; "
                    "call partial_fit first, or pass parameters= to OnlineEM."
                )
            state = replace(state, parameters=self._first_parameters(state))
        if not state.pending and state.n_learned and not state.n_updates:
            return state.with_last(maximized(self.family, self.settings, state).parameters)
        while state.pending:
            last = len(state.pending) <= self.settings.batch_size
            state = self.step(state, last=last).state
        return state

    def step(self, state: OnlineState, *, last: bool = False) -> StepReport[OnlineState]:
        """Learn one mini-batch of pending observations.

        Parameters
        ----------
        state : OnlineState
            A started state with at least one pending observation.
        last : bool
            Whether the stream ends here. The parameters are then maximized in any case.

        Raises
        ------
        StepError
            If the E-step or the M-step fails or gives values that are not finite.
        KeyboardInterrupt, SystemExit, MemoryError, OSError
            If it fails for reasons other than an observation.
        """
        batch = state.pending[: self.settings.batch_size]
        # Errors of the user's schedules are not due to an observation, so call these first.
        gain = self.settings.gain(state.n_steps + 1)
        learned_as = range(state.n_learned + 1, state.n_learned + len(batch) + 1)
        lengths = [self.settings.burst_length(number) for number in learned_as]
        for number in learned_as:
            self.settings.update_schedule(number)

        def order(failed: int, index: int) -> Order:
            at = index - failed
            arguments = (
                batch[index].encoded(self.family),
                among(self.family, state.parameters or {}, batch[index].classes),
                self.generator(learned_as[at]),
                state.e_step_state,
                lengths[at].draws,
                lengths[at].tune,
            )
            return Order(simulate, arguments)

        begun = perf_counter()
        records: list[ObservationRecord] = []
        results: list[EStepResult] = []
        total: Arrays = {}
        part: Arrays = {}
        failures: dict[int, Exception] = {}
        slim = self.settings.revival is None
        together = call_size(len(batch)) if slim else 1
        with one_blas_thread():
            for index, result, seconds in self.e_step_results(
                range(len(batch)), order, state.statistics, together
            ):
                if isinstance(result, Exception):
                    failures[index] = result
                    if self.settings.on_error == "raise":
                        break
                    continue
                records.append(ObservationRecord.of(learned_as[len(records)], result, seconds))
                part = added(part, result.to_add)
                # in the same parts if calls are made one by one, after a worker was lost
                if together > 1 and (index + 1 == len(batch) or not (index + 1) % together):
                    total, part = added(total, part), {}
                troubles = without_excluded(
                    result.troubles, batch[index].classes, self.family.n_classes
                )
                result = replace(result, troubles=troubles)
                # Only the sum over a mini-batch is held, not the statistics of each observation.
                results.append(replace(result, statistics={}, summed=None) if slim else result)
            if failures:
                raise StepError([batch[at] for at in failures], list(failures.values()))
            try:
                report = followed(
                    self.family,
                    self.settings,
                    state,
                    records,
                    results,
                    total or part,
                    gain,
                    last=last,
                )
            except Exception as error:
                require_own_fault(error)
                raise StepError(batch, [error] * len(batch)) from error
        return replace(report, observations=timed(records, begun))


def call_size(batch_size: int) -> int:
    """Return how many observations of a mini-batch share a call, which adds their statistics.

    Calls of several let the driver keep more workers busy, if there are enough calls for all. The
    number does not depend on the workers, so that the sums have the same bits for any.

    Examples
    --------
    >>> [call_size(number) for number in (1, 1_000, 1_600, 4_000, 16_000)]
    [1, 1, 2, 4, 8]
    """
    most = min(CALL_SIZE, batch_size // CALLS)
    # a power of two: batches of four or sixteen times as many as workers are then shared equally
    return 1 << max(most.bit_length() - 1, 0)
