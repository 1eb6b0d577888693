"""A run: its settings, state, history, generators and E-steps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import xarray as xr

from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.compiling.threads import OneAtATime, one_blas_thread
from pymc_mcoem.em.addresses import Address, Seen
from pymc_mcoem.em.checks import check_layout, check_shapes
from pymc_mcoem.em.esteps.worker_calls import CheckedEStep, joined, summed
from pymc_mcoem.em.family import CLASS_WEIGHT
from pymc_mcoem.em.family_record import describe_family
from pymc_mcoem.em.history import History
from pymc_mcoem.em.read_by_workers import read_by
from pymc_mcoem.em.run_state import ObservationRecord, Pending, RunSettings, RunState, StepReport
from pymc_mcoem.em.storage import SavedRun, run_bytes
from pymc_mcoem.em.stream import Unreadable
from pymc_mcoem.interrupts import raise_if_interrupted, require_own_fault, with_retries
from pymc_mcoem.runs.codec import is_of
from pymc_mcoem.runs.executor import Dispatcher, WorkerLost
from pymc_mcoem.runs.failed_records import ON_ERROR, FailedRecord, named, pass_on
from pymc_mcoem.runs.order_groups import answers_in_groups
from pymc_mcoem.runs.outliers import span
from pymc_mcoem.runs.settings import run_attributes, seed_entropy
from pymc_mcoem.runs.workers import ExecutorError, Order, Workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import CompiledEStep, EStepResult
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labeling import Arrays

__all__ = ["Run", "timed"]

_log = logging.getLogger("pymc_mcoem")


class Run[State: RunState, Settings: RunSettings]:
    """A run: its settings, its state and its history.

    The state is never changed in place. A step makes a new one, so that a step that fails or is
    interrupted leaves the old one as it was.

    Parameters
    ----------
    random_seed : int, sequence of int, or None
        Every observation has its own generator, made from the seed and the observation's number,
        so that a run can be continued from these two.
    executor : concurrent.futures.Executor, int, Workers or None
        Executor that runs the E-steps; see `Dispatcher`.
    """

    #: The driver's name, its method that takes observations, and the classes of settings and state.
    driver: ClassVar[str]
    method: ClassVar[str]
    settings_class: ClassVar[type[RunSettings]]
    state_class: ClassVar[type[Any]]
    #: Unit that log messages count in.
    unit: ClassVar[str]

    def __init__(
        self,
        family: Family,
        settings: Settings,
        random_seed: int | Sequence[int] | None,
        executor: Executor | int | Workers | None = None,
    ) -> None:
        self.family = family
        self.settings = settings
        self.state: State = self.state_class()
        self.random_seed = seed_entropy(random_seed)
        self.executor = Dispatcher(partial(CheckedEStep.of, family, settings.e_step), executor)
        self.history = History(family, settings.keep, settings.thin)
        self.alone = OneAtATime(f"{self.driver}.{self.method}")
        #: Files that this run is saved in.
        self.files: set[Path] = set()

    @property
    def state_to_save(self) -> State:
        """The state that a file gets."""
        return self.state

    @property
    def e_step(self) -> CompiledEStep:
        """The E-step, compiled in this process at its first use, which can take seconds."""
        compiled: CompiledEStep = self.executor.compiled.e_step
        return compiled

    def generator(self, *key: int) -> np.random.Generator:
        """Return the generator of an observation by its number; number 0 is for the start."""
        return np.random.default_rng(np.random.SeedSequence(self.random_seed, spawn_key=key))

    def without_held(self) -> State | None:
        """Return the state as if no observation were held; None before the start."""
        return self.state

    def begin(self, parameters: Arrays) -> None:
        """Start from `parameters`."""
        self.history.begin(parameters)
        self.state = replace(self.state, parameters=parameters)

    def initial_parameters(
        self, observations: list[Any], allowed: np.ndarray | None = None
    ) -> Arrays:
        """Return the family's starting parameters, found from some observations.

        `allowed`, ``(n_observations, n_classes)``, says which classes are possible; None: all of
        them.
        """
        given = observations, self.generator(0), self.settings.start
        with strict_arithmetic(), one_blas_thread():
            if allowed is None:
                found = self.family.initialize(*given)
            else:
                found = self.family.initialize_labeled(*given, allowed)
        return self.family.check_parameters(found)

    def admit(self, observation: Any, position: int) -> tuple[Pending, Arrays, Arrays]:
        """Return an observation as it is held and as it is encoded, and its ranges.

        A `Seen` was encoded elsewhere; the encoded form is then empty.
        """
        if isinstance(observation, Seen):
            if observation.refusal is not None:
                raise observation.refusal
            return Pending(observation.address, position), {}, observation.spanned
        encoded = with_retries(partial(self.family.encode, observation))
        # the result of an interrupted call may look complete
        raise_if_interrupted()
        if isinstance(observation, Mapping) and len(self.family.observation) == 1:
            (observation,) = observation.values()
        item = Pending.of(observation, position)
        return item, encoded, span(item.observation)

    def e_step_results[Item](
        self,
        items: Sequence[Item],
        order: Callable[[int, Item], Order],
        running: Mapping[str, np.ndarray] | None,
        call_size: int = 1,
    ) -> Iterator[tuple[Item, EStepResult | Exception, float]]:
        """Yield the E-step's result for each observation, and how long it took.

        Parameters
        ----------
        items : sequence
            Identify the observations.
        order : callable
            Takes the number of items that have failed so far and a later item, and returns the
            call to be made. The item has the generator of a run without the failed ones.
        running : mapping of str to ndarray, or None
            Statistics of earlier observations. The results must have the same shapes.
        call_size : int
            Number of observations of a call that adds their statistics; see `EStepResult.summed`.
            An E-step that takes several at once has its own number, and adds nothing.

        Yields
        ------
        result : EStepResult or Exception
            The exception if the E-step failed.
        seconds : float
            0 with workers, whose times overlap, and for observations that share a call.

        Raises
        ------
        ExecutorError, KeyboardInterrupt, SystemExit, MemoryError, OSError
            Failures that are not due to an observation.
        """
        waiting, failed = deque(items), 0
        group_size, as_one = min(getattr(self.settings.e_step, "group_size", 1), len(items)), joined
        # with a time limit an observation that hangs is found at its own call
        if group_size == 1 < call_size and not self.executor.has_timeout:
            group_size, as_one = call_size, summed
        while waiting:
            orders = map(partial(order, failed), tuple(waiting))
            answers = answers_in_groups(
                self.executor, orders, group_size, as_one, window=len(items)
            )
            while waiting:
                begun = perf_counter()
                item = waiting.popleft()
                try:
                    result: EStepResult = next(answers)
                    check_shapes(result.to_add, running)
                except ExecutorError:
                    raise
                except Exception as error:
                    require_own_fault(error)
                    failed += 1
                    group_size = 1 if isinstance(error, WorkerLost) else group_size
                    yield item, error, 0.0
                    break
                running = running or result.to_add
                overlaps = self.executor.is_remote or group_size > 1
                yield item, result, 0.0 if overlaps else perf_counter() - begun

    def unreadable(self, record: Unreadable, position: int) -> FailedRecord:
        """Return an unreadable record to skip, or raise the source's exception."""
        if self.settings.on_error == "raise":
            raise record.error
        return FailedRecord(position, f"reading it failed: {named(record.error)}")

    def leave_out(self, *records: FailedRecord) -> None:
        """Pass failed records to `on_error`, keep the reasons, and log the first if not raised."""
        on_error, first = self.settings.on_error, not self.history.skipped
        if on_error not in ON_ERROR:
            records = tuple(map(self._with_values, records))
        for record in records:
            pass_on(record, on_error)
        for record in records:
            self.history.skip(record.position, record.reason)
        if first and on_error != "raise" and records:
            _log.warning(
                "Record %d, counted from 0, is skipped: %s Further ones are only counted, with "
                "their reasons in history.",
                records[0].position,
                records[0].reason,
            )

    def _with_values(self, record: FailedRecord) -> FailedRecord:
        """Return a record with its observation's values instead of its address."""
        if not isinstance(record.observation, Address):
            return record
        (found,) = read_by(self.executor, [record.observation], in_whole=True)
        return replace(record, observation=None if isinstance(found, Unreadable) else found)

    def take(self, report: StepReport[State]) -> None:
        """Move to the state of a step's report, and log new troubles."""
        for name in sorted(report.state.troubles.keys() - self.state.troubles.keys()):
            _log.warning(
                "%s %d: %s. Further ones are only counted, in history.",
                self.unit.capitalize(),
                report.state.n_learned if self.unit == "observation" else report.state.n_steps,
                name,
            )
        self.history.append(report)
        self.state = report.state

    def show_parameters(self) -> None:
        """Write the last θ, once there is one, into the model's ``pm.Data``."""
        if self.state.parameters is not None:
            self.family.set_model_parameters(self.state.parameters)

    def history_at(self, state: State) -> xr.DataTree:
        """Return the history up to a state; see `OnlineEM.history`."""
        attributes = run_attributes(self.driver, self.random_seed, self.settings)
        return self.history.to_datatree(state, attributes)

    def file_content(self, written_by: str = "checkpoint") -> bytes:
        """Return the bytes of a file with the saved run."""
        state = self.state_to_save  # read once, because another thread may change it
        strides = {
            "path_stride": self.history.path.stride,
            "observation_stride": self.history.observations.stride,
        }
        saved = SavedRun(state, self.random_seed, describe_family(self.family), strides)
        return run_bytes(self.driver, saved, self.history_at(state), written_by)

    def restore(self, saved: SavedRun, tree: xr.DataTree) -> None:
        """Continue from a saved run."""
        state: Any = saved.state
        if not is_of(state, self.state_class):
            raise ValueError(f"its state has values of other kinds than a run of {self.driver}")
        for arrays in (state.parameters, getattr(state, "average", None)):
            if arrays is not None:
                self.family.check_parameters(arrays)
        counts = [each for each in vars(state).values() if isinstance(each, int)]
        counts += state.troubles.values()
        if not all(0 <= each < 2**63 for each in counts):
            raise ValueError(f"it counts {min(counts)} to {max(counts)} of something")
        if state.n_steps and (state.parameters is None or state.statistics is None):
            raise ValueError(f"it has made {state.n_steps} steps without parameters or statistics")
        if state.statistics is not None:
            check_layout(self.family, state.statistics)
            if state.statistics[CLASS_WEIGHT].min() < 0:
                raise ValueError("it has classes whose mean weights are less than zero")
        self.history.restore(tree, **saved.strides)
        self.history.to_datatree(state, {})
        self.state = state


def timed(records: Sequence[ObservationRecord], begun: float) -> tuple[ObservationRecord, ...]:
    """Return records with the rest of the step's time added to their seconds in equal parts."""
    raise_if_interrupted()
    rest = (perf_counter() - begun - sum(record.seconds for record in records)) / len(records)
    return tuple(replace(record, seconds=record.seconds + rest) for record in records)
