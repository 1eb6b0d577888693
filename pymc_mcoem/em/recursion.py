"""Algorithm 1 as a function from one state of a run to the next, without doors.

A state is never changed in place: a step returns a new one, so that a step that fails, or is
interrupted, leaves nothing half done, and the answer "as if the stream ended here" needs no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.em.checks import check_shapes
from pymc_mcoem.em.esteps.worker_calls import Explainer, simulate
from pymc_mcoem.em.maximization import count_revived, count_waiting, maximize_family
from pymc_mcoem.em.run_state import Begun, ObservationRecord, RunState, StepError, StepReport
from pymc_mcoem.em.schedules import update_is_due
from pymc_mcoem.interrupts import raise_if_interrupted, require_own_fault
from pymc_mcoem.runs.executor import Crew, Workers
from pymc_mcoem.runs.workers import ExecutorError, Order

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import CompiledEStep, EStepResult
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.run_state import Pending, RunSettings
    from pymc_mcoem.em.schedules import BurstSize
    from pymc_mcoem.labelling import Arrays

__all__ = ["Recursion"]

#: Observations for each class until which it is no trouble that one waits.
PATIENCE = 25


#: What a run with `Revival` counts where its E-step gives nothing to go by.
NO_EVIDENCE = "no evidence from the E-step, so no class can be revived"


class Recursion:
    """Online EM for one family and one set of settings.

    Parameters
    ----------
    family : Family
        The model and its M-step.
    settings : RunSettings
        Schedules and E-step.
    entropy : int or sequence of int
        The seed. Observation number n has a generator of its own, made from the seed and n, so
        that going on later needs no more than the two.
    executor : concurrent.futures.Executor, int or None
        Who makes the E-steps of a mini-batch; see `Crew`.
    """

    def __init__(
        self,
        family: Family,
        settings: RunSettings,
        entropy: int | Sequence[int],
        executor: Executor | int | Workers | None = None,
    ) -> None:
        self.family = family
        self.settings = settings
        self.entropy = entropy
        self.crew = Crew(partial(Explainer.of, family, settings.e_step), executor)

    @property
    def e_step(self) -> CompiledEStep:
        """The E-step compiled here; made at its first use, which can take seconds."""
        compiled: CompiledEStep = self.crew.compiled.e_step
        return compiled

    def generator(self, number: int) -> np.random.Generator:
        """Return the generator of observation `number`; number 0 is the start."""
        return np.random.default_rng(
            np.random.SeedSequence(entropy=self.entropy, spawn_key=(number,))
        )

    def may_start(self, state: RunState) -> bool:
        """Say whether enough is held to set the start."""
        return state.parameters is None and len(state.pending) >= self.settings.n_start

    def may_step(self, state: RunState) -> bool:
        """Say whether a whole mini-batch is waiting to be learnt."""
        return state.parameters is not None and len(state.pending) >= self.settings.batch_size

    def start(self, state: RunState) -> RunState:
        """Return the state with the start set from the first observations that are held."""
        first = state.pending[: self.settings.n_start]
        held: list[Any] = [item.observation for item in first]
        try:
            with strict_arithmetic(), one_blas_thread():
                parameters = self.family.initialize(held, self.generator(0), self.settings.start)
            checked = self.family.check_parameters(parameters)
        except Exception as error:
            require_own_fault(error)
            raise RuntimeError(
                f"start: {self.settings.start!r} from the {len(held)} observations that are held "
                f"failed ({error}); make the driver anew with parameters=, another start or "
                "another n_start."
            ) from error
        # what was interrupted in mid-call may look whole
        raise_if_interrupted()
        return replace(state, parameters=checked, start=first)

    def step(
        self, state: RunState, begun: Begun | None = None, *, last: bool = False
    ) -> StepReport[RunState]:
        """Learn one mini-batch of pending observations.

        Parameters
        ----------
        state : RunState
            A started state with at least one pending observation.
        begun : Begun, optional
            Of a step that failed: what it holds is not computed again, where it fits.
        last : bool
            Whether the stream ends here: the parameters are then maximised, due or not.

        Raises
        ------
        StepError
            If the E-step or the M-step fails or gives values that are not finite.
        KeyboardInterrupt, SystemExit, MemoryError, OSError
            If it fails by no fault of an observation.
        """
        if state.parameters is None or not state.pending:
            raise ValueError("state: nothing can be learnt before the start, or from nothing.")
        batch = state.pending[: self.settings.batch_size]
        # What the settings' own functions raise is no observation's fault, and comes first.
        gain = self._gain(state.n_steps + 1)
        numbers = range(state.n_learnt + 1, state.n_learnt + len(batch) + 1)
        lengths = [self.settings.burst_length(number) for number in numbers]
        for number in numbers:
            self.settings.update_schedule(number)
        started = perf_counter()
        known = begun if begun is not None and begun.fits(state) else Begun(state)
        records, results = list(known.records), list(known.results)
        total: Arrays = {name: value.copy() for name, value in known.total.items()}
        left = batch[len(records) :]
        with one_blas_thread():
            # Every order is made when it is handed out, one where this process works itself.
            behind = slice(len(records), None)
            orders = (
                self._order(state, item, number, length)
                for item, number, length in zip(left, numbers[behind], lengths[behind], strict=True)
            )
            answers = self.crew.answers(orders, window=len(left))
            for item in left:
                before = perf_counter()
                try:
                    result = next(answers)
                    check_shapes(result.statistics, state.statistics or total)
                    sums = _added(total, result)
                except ExecutorError:
                    raise
                except Exception as error:
                    require_own_fault(error)
                    found = Begun(state, tuple(records), tuple(results), total)
                    raise StepError([item], error, found) from error
                # Workers overlap: there each observation has an equal part of the step's time.
                seconds = 0.0 if self.crew.is_remote else perf_counter() - before
                number = state.n_learnt + len(records) + 1
                records.append(ObservationRecord.of(number, result, seconds))
                total = sums
                # A step of many observations holds their sum, not all their statistics.
                slim = self.settings.revival is None
                results.append(replace(result, statistics={}) if slim else result)
            try:
                report = self._follow(state, batch, records, results, total, gain, last=last)
            except Exception as error:
                require_own_fault(error)
                raise StepError(batch, error) from error
        raise_if_interrupted()
        # The M-step's time belongs to the observations of the step in equal parts.
        spent = sum(record.seconds for record in records[len(known.records) :])
        rest = (perf_counter() - started - spent) / len(batch)
        timed = tuple(replace(record, seconds=record.seconds + rest) for record in records)
        return replace(report, observations=timed)

    def ended(self, state: RunState, begun: Begun | None = None) -> RunState:
        """Return the state as if the stream ended here.

        What is held is learnt, an incomplete mini-batch as a smaller one, and the parameters are
        maximised if anything was held or they never were.
        """
        if state.parameters is None:
            state = self.start(state)
        if state.pending:
            while state.pending:
                last = len(state.pending) <= self.settings.batch_size
                state = self.step(state, begun, last=last).state
        elif state.n_learnt and not state.n_updates:
            state = self._average_again(state, self._maximized(state)[0])
        return state

    def _gain(self, number: int) -> float:
        """Return ϱ_n of a step."""
        gain = float(self.settings.step_size(number))
        if not 0 < gain <= 1 or (number == 1 and gain != 1):
            raise ValueError(
                f"step_size: gave {gain} for step {number}; gains lie in (0, 1], the first is 1."
            )
        return gain

    def _order(self, state: RunState, item: Pending, number: int, length: BurstSize) -> Order:
        """Return the simulation step for one observation, as a call to be made."""
        arguments = (
            self.family.encode(item.observation),
            state.parameters or {},
            self.generator(number),
            state.e_step_state,
            length.draws,
            length.burn_in,
        )
        return Order(simulate, arguments)

    def _follow(
        self,
        state: RunState,
        batch: tuple[Pending, ...],
        records: list[ObservationRecord],
        results: list[EStepResult],
        total: Arrays,
        gain: float,
        *,
        last: bool,
    ) -> StepReport[RunState]:
        """Stochastic approximation and, where due, maximisation (label ``alg:MCoEM``)."""
        size = len(batch)
        number = state.n_steps + 1
        running: Arrays = {}
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
            for name, mean in total.items():
                mean /= size
                if state.statistics is not None:
                    mean -= state.statistics[name]
                    mean *= gain
                    mean += state.statistics[name]
                running[name] = mean
        troubles = dict(state.troubles)
        revival, fit = self.settings.revival, state.fit
        if revival is not None:
            revived = revival.after(
                running, fit, results, gain=gain, n_learnt=state.n_learnt + size
            )
            running, fit = revived.statistics, revived.record
            count_revived(self.family, troubles, revived.classes)
            if not any(np.isfinite(result.log_evidence) for result in results):
                troubles[NO_EVIDENCE] = troubles.get(NO_EVIDENCE, 0) + 1
        # Each observation's were finite; their sum may not be, and no M-step need be due to see it.
        for name, value in running.items():
            if not np.isfinite(value).all():
                raise FloatingPointError(
                    f"the running mean of the statistics {name!r} is not finite; its terms are "
                    "finite and too large: scale the observations."
                )
        for result in results:
            for name, count in result.troubles.items():
                if count:
                    troubles[name] = troubles.get(name, 0) + int(count)
        following = replace(
            state,
            statistics=running,
            fit=fit,
            # All of a mini-batch start from one adaptation; that of its last goes on.
            e_step_state={name: np.array(value) for name, value in results[-1].state.items()},
            pending=state.pending[size:],
            start=_still_needed(state.start, state.pending[size:]),
            n_learnt=state.n_learnt + size,
            n_steps=number,
            inverse_effective_size=(
                (1 - gain) ** 2 * state.inverse_effective_size + gain**2 / size
            ),
            troubles=troubles,
        )
        due = last or update_is_due(
            self.settings.update_schedule,
            state.n_learnt,
            following.n_learnt,
            n_updates=state.n_updates,
            all_ready=state.n_updates == 0 and bool(self._ready(following).all()),
        )
        waiting: tuple[int, ...] = ()
        if due:
            parameters, waiting = self._maximized(following)
            if following.n_learnt >= PATIENCE * self.family.n_classes:
                troubles = count_waiting(self.family, troubles, waiting)
            following = replace(
                following,
                parameters=parameters,
                n_updates=state.n_updates + 1,
                troubles=troubles,
            )
        return StepReport(
            state=self._averaged(following),
            observations=tuple(records),
            gain=gain,
            updated=due,
            waiting=len(waiting),
        )

    def _ready(self, state: RunState) -> np.ndarray:
        ready = self.family.ready(state.statistics or {}, effective_size=state.effective_size)
        return np.asarray(ready, dtype=bool)

    def _maximized(self, state: RunState) -> tuple[Arrays, tuple[int, ...]]:
        """Return the M-step's parameters and the classes that wait."""
        found = maximize_family(
            self.family,
            state.statistics or {},
            effective_size=state.effective_size,
            present=state.parameters,
        )
        return found.parameters, found.waiting

    def _averaged(self, state: RunState) -> RunState:
        """Add θ_n to the Polyak-Ruppert average, once that has begun."""
        begin = self.settings.average_from
        if begin is None or state.n_learnt < begin or state.parameters is None:
            return state
        count = state.n_averaged + 1
        average = {
            name: value.copy()
            if state.average is None
            else state.average[name] + (value - state.average[name]) / count
            for name, value in state.parameters.items()
        }
        return replace(state, average=average, n_averaged=count)

    @staticmethod
    def _average_again(state: RunState, parameters: Arrays) -> RunState:
        """Replace θ, and the last term of the average with it."""
        average = state.average
        if average is not None and state.parameters is not None:
            average = {
                name: value + (parameters[name] - state.parameters[name]) / state.n_averaged
                for name, value in average.items()
            }
        return replace(state, parameters=parameters, average=average)


def _still_needed(start: tuple[Pending, ...], left: tuple[Pending, ...]) -> tuple[Pending, ...]:
    """Return what the start was set from, as long as some of it is still to be learnt."""
    waiting = {item.position for item in left}
    return () if waiting.isdisjoint(item.position for item in start) else start


def _added(total: Arrays, result: EStepResult) -> Arrays:
    """Return a sum with an observation's statistics added."""
    with np.errstate(over="ignore"):  # what overflows is refused when all are added
        return {
            name: total[name] + value if name in total else np.array(value, dtype=np.float64)
            for name, value in result.statistics.items()
        }
