"""The state of a run, its settings, and what a step reports: plain frozen data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from pymc_mcoem.em.family import CLASS_WEIGHT
from pymc_mcoem.em.revival import Revival
from pymc_mcoem.labelling import Arrays
from pymc_mcoem.runs.failed_records import check_on_error, said
from pymc_mcoem.runs.outliers import check_refuse_beyond
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStep, EStepResult
    from pymc_mcoem.em.schedules import BurstSize

__all__ = [
    "Begun",
    "ObservationRecord",
    "Pending",
    "RunPosition",
    "RunSettings",
    "RunState",
    "StepError",
    "StepReport",
]


STARTS = ("kmeans", "random")


@dataclass(frozen=True)
class RunSettings:
    """What a run was asked to do; see `OnlineEM` for each."""

    step_size: Callable[[int], float]
    update_schedule: Callable[[int], bool]
    burst_length: Callable[[int], BurstSize]
    e_step: EStep
    start: str = "kmeans"
    n_start: int = 50
    batch_size: int = 1
    average_from: int | None = None
    keep: int | None = None
    thin: int = 1
    on_error: Any = "raise"
    revival: Revival | None = None
    refuse_beyond: float | None = 10_000.0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.start not in STARTS:
            raise ValueError(f"start: got {self.start!r}; choose one of {STARTS}.")
        check_on_error(self.on_error)
        check_refuse_beyond(self.refuse_beyond)
        whole = ("n_start", "batch_size", "average_from", "keep", "thin")
        for name, least in zip(whole, (1, 1, 1, 2, 1), strict=True):
            value = getattr(self, name)
            optional = name in ("average_from", "keep")
            if value is None and optional:
                continue
            if not is_whole(value) or value < least:
                also = " or None" if optional else ""
                raise ValueError(f"{name}: got {value!r}; give a whole number from {least}{also}.")
        if self.revival is not None and not isinstance(self.revival, Revival):
            raise TypeError(
                f"revival: got {self.revival!r}; give a Revival, or None to leave classes empty."
            )
        for name in ("step_size", "update_schedule", "burst_length"):
            if not callable(getattr(self, name)):
                raise TypeError(
                    f"{name}: got {getattr(self, name)!r}; give a schedule, or a function of the "
                    "number n, counted from 1."
                )
        if float(self.step_size(1)) != 1:
            raise ValueError(
                f"step_size: gave {self.step_size(1)} for step 1; the first gain must be 1."
            )
        if not hasattr(self.e_step, "compile"):
            raise TypeError(
                f"e_step: got {self.e_step!r}; give an E-step such as CarlinChibBurst() or Exact()."
            )


@dataclass(frozen=True)
class Pending:
    """An observation that was seen and is still to be learnt.

    Attributes
    ----------
    observation : ndarray or dict of str to ndarray
        As it was given, in float64.
    position : int
        Which record of the stream it was, counted from 0.
    """

    observation: np.ndarray | Arrays
    position: int

    @classmethod
    def of(cls, observation: Any, position: int) -> Self:
        """Hold a copy of an observation; masked values become NaN."""
        if isinstance(observation, Mapping):
            return cls({str(key): _copied(value) for key, value in observation.items()}, position)
        return cls(_copied(observation), position)


@dataclass(frozen=True)
class RunState:
    """All that a run needs to go on.

    Attributes
    ----------
    parameters : dict of str to ndarray, or None
        θ; None before the start is set.
    statistics : dict of str to ndarray, or None
        Running means s of δ_{I,j} S, each ``(n_classes, *shape)``.
    average : dict of str to ndarray, or None
        Mean of the `n_averaged` last θ.
    e_step_state : dict of str to ndarray, or None
        Adaptation of the E-step.
    fit : dict of str to ndarray, or None
        How well each class's observations fit, where classes may be revived; see `Revived`.
    recent : dict of str to ndarray, or None
        What recent observations spanned; see `require_plausible`.
    pending : tuple of Pending
        Observations held for the start or for a mini-batch.
    start : tuple of Pending
        Observations that the start was set from, until all of them are learnt: without one that
        cannot be, it is set anew.
    n_learnt, n_steps, n_updates, n_averaged : int
        Observations learnt, steps of the recursion, M-steps, terms of the average.
    position : int
        Records taken from streams, refused ones too.
    inverse_effective_size : float
        q_n = (1 − ϱ_n)² q_{n−1} + ϱ_n²; its inverse is the effective size n*.
    troubles : dict of str to int
        Troubles met so far, by name.
    """

    parameters: Arrays | None = None
    statistics: Arrays | None = None
    average: Arrays | None = None
    e_step_state: Arrays | None = None
    fit: Arrays | None = None
    recent: Arrays | None = None
    pending: tuple[Pending, ...] = ()
    start: tuple[Pending, ...] = ()
    n_learnt: int = 0
    n_steps: int = 0
    n_updates: int = 0
    n_averaged: int = 0
    position: int = 0
    inverse_effective_size: float = 0.0
    troubles: dict[str, int] = field(default_factory=dict)

    @property
    def n_seen(self) -> int:
        """Observations learnt and held."""
        return self.n_learnt + len(self.pending)

    @property
    def effective_size(self) -> float:
        """Number n* of observations that the statistics are worth."""
        return 1 / self.inverse_effective_size if self.inverse_effective_size else 0.0

    def without(self, positions: Set[int]) -> RunState:
        """Return the state of a run over a stream without some of the pending records.

        If one of them had a part in the start, that is to be set anew, and all that were learnt
        since are to be learnt again: they are held, no more than the start was set from.
        """
        if positions.isdisjoint(item.position for item in self.start):
            left = (item for item in self.pending if item.position not in positions)
            return replace(self, pending=tuple(left))
        every = {item.position: item for item in (*self.start, *self.pending)}
        left = (item for position, item in every.items() if position not in positions)
        return RunState(recent=self.recent, pending=tuple(left), position=self.position)


@dataclass(frozen=True)
class ObservationRecord:
    """What one observation was like; ``class_weight`` has shape ``(n_classes,)``."""

    number: int
    class_weight: np.ndarray
    acceptance: float
    log_evidence: float
    seconds: float

    @classmethod
    def of(cls, number: int, result: EStepResult, seconds: float) -> Self:
        """Keep what an E-step's result says of observation or visit `number`."""
        return cls(
            number=number,
            class_weight=np.array(result.statistics[CLASS_WEIGHT], dtype=np.float64),
            acceptance=float(result.acceptance),
            log_evidence=float(result.log_evidence),
            seconds=seconds,
        )


class RunPosition(Protocol):
    """What histories and progress bars read of a state, whichever driver's it is."""

    @property
    def parameters(self) -> Arrays | None: ...  # noqa: D102
    @property
    def statistics(self) -> Arrays | None: ...  # noqa: D102
    @property
    def troubles(self) -> dict[str, int]: ...  # noqa: D102
    @property
    def n_learnt(self) -> int: ...  # noqa: D102
    @property
    def n_seen(self) -> int: ...  # noqa: D102
    @property
    def n_steps(self) -> int: ...  # noqa: D102
    @property
    def effective_size(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class StepReport[State: RunPosition]:
    """A step of a driver: the state that it leads to and what happened.

    Attributes
    ----------
    state : RunState, or the driver's own
        The state after the step.
    observations : tuple of ObservationRecord
        One for each observation of the step.
    gain : float
        ϱ_n of the step.
    updated : bool
        Whether the parameters were maximised.
    waiting : int
        Classes that were not ready then and kept theirs.
    """

    state: State
    observations: tuple[ObservationRecord, ...]
    gain: float
    updated: bool
    waiting: int


@dataclass(frozen=True, eq=False)
class Begun:
    """What the first observations of a mini-batch gave, whose step failed at the next.

    Attributes
    ----------
    state : RunState
        Where the step began.
    records : tuple of ObservationRecord
        One for each of these observations.
    results : tuple of EStepResult
        As many, without the statistics where nothing asks for them.
    total : dict of str to ndarray
        Sum of their statistics.
    """

    state: RunState
    records: tuple[ObservationRecord, ...] = ()
    results: tuple[EStepResult, ...] = ()
    total: Arrays = field(default_factory=dict)

    def fits(self, state: RunState) -> bool:
        """Say whether a step from `state` would find the same again, to the last bit.

        The same observations are then at its front, with the same numbers, and so generators, at
        the same θ. Those behind the one that failed move up: theirs are others.
        """
        mine, size = self.state, len(self.records)
        front = zip(mine.pending[:size], state.pending, strict=False)
        return (
            mine.n_learnt == state.n_learnt
            and mine.parameters is state.parameters
            and mine.statistics is state.statistics
            and mine.e_step_state is state.e_step_state
            and size <= len(state.pending)
            and all(one is other for one, other in front)
        )


class StepError(Exception):
    """A step that failed, by the fault of the pending observations named in `culprits`."""

    def __init__(
        self, culprits: Sequence[Pending], cause: Exception, begun: Begun | None = None
    ) -> None:
        super().__init__(said(cause))
        self.culprits = tuple(culprits)
        self.positions = frozenset(item.position for item in self.culprits)
        self.cause = cause
        self.begun = begun


def _copied(value: Any) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        return np.array(np.ma.filled(value.astype(np.float64), np.nan))
    return np.array(value, dtype=np.float64)
