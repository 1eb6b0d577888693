"""A run under way: the queue of observations, the state, the history."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import xarray as xr

from pymc_mcoem.compiling.threads import OneAtATime
from pymc_mcoem.em.family_record import describe_family
from pymc_mcoem.em.history import History
from pymc_mcoem.em.reading import Unreadable, admit
from pymc_mcoem.em.recursion import Recursion
from pymc_mcoem.em.run_state import Begun, Pending, RunSettings, RunState, StepError
from pymc_mcoem.em.storage import SavedRun
from pymc_mcoem.interrupts import require_readable
from pymc_mcoem.runs.failed_records import PATIENCE, LeftOut, leave_out, named, said
from pymc_mcoem.runs.outliers import (
    IN_A_ROW,
    Absurd,
    absurd_among,
    largest,
    remembered,
    require_plausible,
    span,
)
from pymc_mcoem.runs.settings import encode_settings, run_attributes

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.run_state import StepReport
    from pymc_mcoem.labelling import Arrays
    from pymc_mcoem.runs.executor import Workers

__all__ = ["Learner"]

_log = logging.getLogger("pymc_mcoem")


class Learner:
    """What `OnlineEM` does behind its doors.

    Every observation first joins the queue of the state, `accept`; `learn` takes from the front
    of it what makes a start or a whole mini-batch. Holding for the start, holding for a
    mini-batch, and holding what an interrupt left over are one and the same.

    Parameters
    ----------
    family : Family
        The model.
    settings : RunSettings
        What was asked for.
    entropy : int or list of int
        The seed.
    executor : concurrent.futures.Executor, int or None
        Who makes the E-steps.
    """

    def __init__(
        self,
        family: Family,
        settings: RunSettings,
        entropy: int | list[int],
        executor: Executor | int | Workers | None = None,
    ) -> None:
        self.family = family
        self.settings = settings
        self.entropy = entropy
        self.recursion = Recursion(family, settings, entropy, executor)
        self.history = History(family, settings.keep, settings.thin)
        self.state = RunState()
        self.alone = OneAtATime("OnlineEM.partial_fit")
        self._failures = 0
        self._absurd = 0
        # What those before an observation that failed gave: they are not explained again.
        self._begun: Begun | None = None
        # The state that was read last, and that state as if the stream had ended there.
        self._read: tuple[RunState, RunState] | None = None

    def begin(self, parameters: Arrays) -> None:
        """Start from `parameters`."""
        self.history.begin(parameters)
        self.state = replace(self.state, parameters=parameters)

    def accept(self, observation: Any, index: int) -> None:
        """Take an observation, the `index`-th of the call, into the queue, or refuse it.

        Parameters
        ----------
        observation : array_like, mapping, or Unreadable
        index : int
            Which record of the call it is, counted from 0.

        Raises
        ------
        ValueError, TypeError
            If the family refuses it.
        Exception
            What the source raised instead of a record; it is then not counted.
        """
        state = self.state
        if isinstance(observation, Unreadable):
            if self.settings.on_error == "raise":
                raise observation.error
            reason = f"reading it failed: {named(observation.error)}"
            self._leave_out(LeftOut(state.position, reason))
            self.state = replace(state, position=state.position + 1)
            return
        try:
            item, _ = admit(self.family, observation, state.position)
            spanned = span(item.observation)
            require_plausible(
                spanned,
                state.recent,
                self.settings.refuse_beyond,
                None if state.parameters is None else largest(state.parameters),
            )
        except Exception as error:
            require_readable(error)
            self._count_absurd(error)
            self._leave_out(LeftOut(state.position, f"refused: {named(error)}", observation))
            self.state = replace(state, position=state.position + 1)
            if self.settings.on_error != "raise":
                return
            kind = TypeError if isinstance(error, TypeError) else ValueError
            # In a run of several calls the index in the stream is another.
            also = "" if index == state.position else f", {state.position} of the whole stream"
            raise kind(
                f"observation {index} (counted from 0{also}) was refused: {error}"
            ) from error
        # Compiling may fail too: that is no observation's fault, and comes before it counts.
        self.recursion.crew.prepare()
        self._absurd = 0
        self.state = replace(
            state,
            recent=remembered(state.recent, spanned),
            pending=(*state.pending, item),
            position=state.position + 1,
        )

    def _count_absurd(self, error: Exception) -> None:
        """Say so when records are refused in a row for what came before them."""
        self._absurd = self._absurd + 1 if isinstance(error, Absurd) else 0
        if self._absurd == IN_A_ROW:
            _log.warning(
                "%d records in a row, the last of them %d, counted from 0, are refused, for they "
                "lie far from those before: the stream may have changed, its unit perhaps. %s",
                IN_A_ROW,
                self.state.position,
                error,
            )

    def learn(self) -> Iterator[StepReport[RunState]]:
        """Learn from the queue as far as it goes, yielding after each step.

        Raises
        ------
        FloatingPointError, RuntimeError
            If a step fails. Its observations are dropped.
        ExecutorError
            If workers fail by no fault of an observation. What was to be learnt stays held.
        """
        while self._started() and self.recursion.may_step(self.state):
            # Compiling may fail too: that is no observation's fault.
            self.recursion.crew.prepare()
            try:
                report = self.recursion.step(self.state, self._begun)
            except StepError as failure:
                culprits = sorted(failure.culprits, key=lambda item: item.position)
                reason = f"learning it failed: {named(failure.cause)}"
                lost = [LeftOut(item.position, reason, item.observation) for item in culprits]
                self._leave_out(*lost)
                self.state, self._begun = self.state.without(failure.positions), failure.begun
                self._failures += len(culprits)
                if self.settings.on_error != "raise" and self._failures <= PATIENCE:
                    continue
                if self.state.parameters is None:
                    _explain(failure, "is left out; the start is set anew without it")
                _explain(failure, "is left out; what was learnt before it stays")
            for name in sorted(report.state.troubles.keys() - self.state.troubles.keys()):
                _log.warning(
                    "Observation %d: %s. It is learnt all the same; further ones are only counted, "
                    "in history.",
                    report.state.n_learnt,
                    name,
                )
            self.history.append(report)
            self.state, self._failures, self._begun = report.state, 0, None
            yield report

    def _started(self) -> bool:
        """Say whether the run has a start; set it if enough is held.

        Raises
        ------
        RuntimeError
            If it cannot be set. An observation without which it can is left out.
        """
        while self.recursion.may_start(self.state):
            if self._drop_absurd():
                continue
            try:
                started = self.recursion.start(self.state)
            except RuntimeError as error:
                spoiler = self._spoiler()
                if spoiler is None:
                    raise
                reason = f"the start fails with it: {named(error)}"
                self._leave_out(LeftOut(spoiler.position, reason, spoiler.observation))
                self.state = self.state.without({spoiler.position})
                if self.settings.on_error == "raise":
                    raise RuntimeError(
                        f"observation {spoiler.position} of the stream, counted from 0, is left "
                        f"out, since without it the start can be set. {error}"
                    ) from error
                continue
            self.history.begin(started.parameters or {})
            self.state = started
        return self.state.parameters is not None

    def _drop_absurd(self) -> bool:
        """Leave out what lies too far from the others that the start is to be set from.

        Among the first ten it was taken as it came. Say whether there was any.

        Raises
        ------
        ValueError
            If it is not to be passed over.
        """
        held = self.state.pending[: self.settings.n_start]
        found = absurd_among([span(item.observation) for item in held], self.settings.refuse_beyond)
        lost = [
            LeftOut(held[index].position, f"refused: {named(error)}", held[index].observation)
            for index, error in found.items()
        ]
        if lost:
            self._leave_out(*lost)
            self.state = self.state.without({record.position for record in lost})
            if self.settings.on_error == "raise":
                raise ValueError(
                    f"observation {', '.join(str(record.position) for record in lost)} of the "
                    f"stream, counted from 0, was refused: {next(iter(found.values()))}"
                )
        return bool(lost)

    def _spoiler(self) -> Pending | None:
        """Return the first observation without which the start can be set."""
        for item in self.state.pending[: self.settings.n_start]:
            with suppress(RuntimeError):
                self.recursion.start(self.state.without({item.position}))
                return item
        return None

    def _leave_out(self, *records: LeftOut) -> None:
        """Hand records over and keep why; the first is told in the log, where none is raised."""
        on_error = self.settings.on_error
        leave_out(self.history, on_error, records, tell=on_error != "raise")

    def as_if_ended(self) -> RunState:
        """Return the state as it would be if the stream ended here; nothing changes.

        Raises
        ------
        ValueError
            If there is nothing to answer from.
        """
        state = self.state
        if not state.n_seen and state.parameters is None:
            raise ValueError(
                "parameters: there are none, since nothing was seen and none were given; call "
                "partial_fit first, or pass parameters= to OnlineEM."
            )
        if not state.pending and (state.n_updates or not state.n_learnt):
            return state
        read = self._read
        if read is None or read[0] is not state:
            self._read = read = (state, self._ended(state, self._begun))
        return read[1]

    def prepare(self, observation: Any = None) -> None:
        """Compile the E-step, and make a step with an observation that changes nothing."""
        self.recursion.crew.prepare()
        if observation is not None:
            parameters = self.state.parameters or self.family.declared_parameters()
            trial = RunState(parameters=parameters, pending=(Pending.of(observation, 0),))
            # What fails here fails again when it is learned.
            with suppress(StepError):
                self.recursion.step(trial)

    def without_held(self) -> RunState | None:
        """Return the state as if nothing were held, None before the start."""
        if self.state.parameters is None:
            return None
        return self.recursion.ended(replace(self.state, pending=()))

    def _ended(self, state: RunState, begun: Begun | None) -> RunState:
        try:
            return self.recursion.ended(state, begun)
        except StepError as failure:
            if self.settings.on_error == "raise":
                _explain(failure, "is held, and cannot be learnt")
            return self._ended(state.without(failure.positions), failure.begun)

    def history_at(self, state: RunState) -> xr.DataTree:
        """Return what happened until a state; see `OnlineEM.history`."""
        return self.history.to_datatree(
            state, run_attributes("OnlineEM", self.entropy, self.settings)
        )

    def saved(self) -> SavedRun:
        """Return what a file is to hold."""
        state = self.state  # once: another thread may be learning
        return SavedRun(
            state=state,
            settings=encode_settings(self.settings),
            entropy=self.entropy,
            family=describe_family(self.family),
            history=self.history_at(state),
            strides={
                "path": self.history.path.stride,
                "observations": self.history.observations.stride,
            },
        )

    def restore(self, run: SavedRun) -> None:
        """Go on from what a file held."""
        self.state, self._begun = run.state, None
        self.history.restore(
            run.history,
            path_stride=run.strides["path"],
            observation_stride=run.strides["observations"],
        )


def _explain(failure: StepError, what: str) -> NoReturn:
    kind = FloatingPointError if isinstance(failure.cause, ArithmeticError) else RuntimeError
    numbers = ", ".join(str(item.position) for item in failure.culprits)
    raise kind(
        f"observation {numbers} of the stream, counted from 0, {what}: {said(failure.cause)}"
    ) from failure.cause
