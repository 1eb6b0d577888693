"""Settings, state and step reports of a run, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from pymc_mcoem.em.addresses import Address
from pymc_mcoem.em.family import CLASS_WEIGHT
from pymc_mcoem.em.revival import Revival
from pymc_mcoem.labeling import Arrays
from pymc_mcoem.runs.failed_records import FailedRecord, check_on_error, named, said
from pymc_mcoem.runs.outliers import Absurd, check_refuse_beyond
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStep, EStepResult
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.schedules import BurstSize

__all__ = [
    "ObservationRecord",
    "OnlineSettings",
    "OnlineState",
    "Pending",
    "RunSettings",
    "RunState",
    "StepError",
    "StepReport",
]


STARTS = ("kmeans", "random", "exemplars")

#: What to write for a schedule, in messages.
SCHEDULES = {
    "step_size": "StepSize(0.6)",
    "update_schedule": "UpdateSchedule((10, 20))",
    "burst_length": "BurstLength(100)",
    "annealing": "Annealing()",
}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings that runs of all drivers have; `OnlineEM` describes each."""

    e_step: EStep
    step_size: Callable[[int], float]
    start: str = "kmeans"
    n_start: int | None = None
    keep: int | None = None
    thin: int = 1
    on_error: Any = "raise"
    refuse_beyond: float | None = 10_000.0

    #: Name of a step in error messages.
    unit: ClassVar[str] = "step"
    #: Smallest values of settings that are whole numbers, and which of these may be None.
    least: ClassVar[dict[str, int]] = {"n_start": 1, "keep": 2, "thin": 1}
    optional: ClassVar[frozenset[str]] = frozenset({"n_start", "keep"})
    #: Settings that are functions of a number counted from 1, without those that may be None.
    functions: ClassVar[tuple[str, ...]] = ("step_size",)

    def __post_init__(self) -> None:
        """Check the values."""
        if self.start not in STARTS:
            raise ValueError(f"start: got {self.start!r}; choose one of {STARTS}.")
        check_on_error(self.on_error)
        check_refuse_beyond(self.refuse_beyond)
        for name, least in self.least.items():
            value, also = getattr(self, name), " or None" if name in self.optional else ""
            if (value is not None or not also) and (not is_whole(value) or value < least):
                raise ValueError(f"{name}: got {value!r}; give a whole number from {least}{also}.")
        for name in self.functions:
            if not callable(getattr(self, name)):
                raise TypeError(
                    f"{name}: got {getattr(self, name)!r}; give a schedule, as "
                    f"{SCHEDULES[name]}, or a function of the number of the {self.unit}, counted "
                    "from 1."
                )
        self.gain(1)
        if isinstance(self.e_step, type) or not hasattr(self.e_step, "compile"):
            raise TypeError(
                f"e_step: got {self.e_step!r}; give an E-step such as CarlinChibBurst() or Exact()."
            )

    def gain(self, number: int) -> float:
        """Return the gain of step `number`, counted from 1."""
        gain = float(self.step_size(number))
        if not 0 < gain <= 1 or (number == 1 and gain != 1):
            raise ValueError(
                f"step_size: gave {gain} for {self.unit} {number}; gains lie in (0, 1], the first "
                "gain must be 1."
            )
        return gain


@dataclass(frozen=True, kw_only=True)
class OnlineSettings(RunSettings):
    """Settings of a run of `OnlineEM`."""

    update_schedule: Callable[[int], bool]
    burst_length: Callable[[int], BurstSize]
    n_start: int = 50
    batch_size: int = 1
    average_from: int | None = None
    revival: Revival | None = None

    least: ClassVar[dict[str, int]] = {**RunSettings.least, "batch_size": 1, "average_from": 1}
    optional: ClassVar[frozenset[str]] = frozenset({"keep", "average_from"})
    functions: ClassVar[tuple[str, ...]] = ("step_size", "update_schedule", "burst_length")

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.revival is not None and not isinstance(self.revival, Revival):
            raise TypeError(
                f"revival: got {self.revival!r}; give a Revival, or None to leave classes empty."
            )


@dataclass(frozen=True)
class Pending:
    """An observation that was seen and is not learned yet.

    Attributes
    ----------
    observation : ndarray or dict of str to ndarray, or Address
        The observation as given, in float64, or its address.
    position : int
        Position of its record in the stream, counted from 0.
    classes : tuple of int or None
        Classes that its label allows; None: all of them.
    """

    observation: np.ndarray | Arrays | Address
    position: int
    classes: tuple[int, ...] | None = None

    @classmethod
    def of(cls, observation: Any, position: int) -> Self:
        """Return a copy of an observation to hold, with masked values as NaN.

        Points and values of different shapes, as of several channels, are held by name.
        """
        if isinstance(observation, tuple) and len(set(map(np.shape, observation))) > 1:
            observation = dict(zip(("points", "values"), observation, strict=True))
        if isinstance(observation, Mapping):
            return cls({str(key): _copied(value) for key, value in observation.items()}, position)
        return cls(_copied(observation), position)

    def encoded(self, family: Family) -> Arrays | Address:
        """Return the encoded observation, or its address."""
        found = self.observation
        return found if isinstance(found, Address) else family.encode(found)


@dataclass(frozen=True)
class RunState:
    """The part of a run's state that all drivers have.

    Attributes
    ----------
    parameters : dict of str to ndarray, or None
        θ; None before the start is set.
    statistics : dict of str to ndarray, or None
        Running means s of δ_{I,j} S, each ``(n_classes, *shape)``.
    n_learned, n_steps : int
        Numbers of observations learned, or visited by `SAEM`, and of steps of the recursion.
    troubles : dict of str to int
        Counts of troubles so far, by name.
    """

    parameters: Arrays | None = None
    statistics: Arrays | None = None
    n_learned: int = 0
    n_steps: int = 0
    troubles: dict[str, int] = field(default_factory=dict)

    @property
    def n_seen(self) -> int:
        """Number of observations learned or held."""
        return self.n_learned

    @property
    def effective_size(self) -> float:
        """Effective number n* of observations in the statistics."""
        raise NotImplementedError


@dataclass(frozen=True)
class OnlineState(RunState):
    """Everything that a run of `OnlineEM` needs to continue, besides what `RunState` has.

    Attributes
    ----------
    average : dict of str to ndarray, or None
        Mean of the `n_averaged` last θ.
    e_step_state : dict of str to ndarray, or None
        Adaptation of the E-step.
    fit : dict of str to ndarray, or None
        How well each class's observations fit, if classes may be revived; see `Revived`.
    recent : dict of str to ndarray, or None
        Ranges of recent observations; see `require_plausible`.
    pending : tuple of Pending
        Observations held for the start or for a mini-batch.
    n_updates, n_averaged : int
        Numbers of M-steps and of terms of the average.
    position : int
        Number of records taken from streams, including refused ones.
    inverse_effective_size : float
        q_n = (1 − ϱ_n)² q_{n−1} + ϱ_n²; its inverse is the effective size n*.
    """

    average: Arrays | None = None
    e_step_state: Arrays | None = None
    fit: Arrays | None = None
    recent: Arrays | None = None
    pending: tuple[Pending, ...] = ()
    n_updates: int = 0
    n_averaged: int = 0
    position: int = 0
    inverse_effective_size: float = 0.0

    @property
    def n_seen(self) -> int:
        """Number of observations learned or held."""
        return self.n_learned + len(self.pending)

    @property
    def effective_size(self) -> float:
        """Effective number n* of observations in the statistics."""
        return 1 / self.inverse_effective_size if self.inverse_effective_size else 0.0

    @property
    def holds_addresses(self) -> bool:
        """Whether only the address of some pending observation is held."""
        return any(isinstance(item.observation, Address) for item in self.pending)

    def without(self, positions: Set[int]) -> Self:
        """Return the state without some of the pending observations."""
        left = (item for item in self.pending if item.position not in positions)
        return replace(self, pending=tuple(left))

    def averaged(self, begin: int | None) -> Self:
        """Return the state with θ added to the Polyak-Ruppert average, which begins at `begin`."""
        if begin is None or self.n_learned < begin or self.parameters is None:
            return self
        count = self.n_averaged + 1
        average = {
            name: value.copy()
            if self.average is None
            else self.average[name] + (value - self.average[name]) / count
            for name, value in self.parameters.items()
        }
        return replace(self, average=average, n_averaged=count)

    def with_last(self, parameters: Arrays) -> Self:
        """Return the state with another θ, which replaces the last term of the average too."""
        average = self.average
        if average is not None and self.parameters is not None:
            average = {
                name: value + (parameters[name] - self.parameters[name]) / self.n_averaged
                for name, value in average.items()
            }
        return replace(self, parameters=parameters, average=average)


@dataclass(frozen=True)
class ObservationRecord:
    """Record of one observation for the history; ``class_weight`` has shape ``(n_classes,)``."""

    number: int
    class_weight: np.ndarray
    acceptance: float
    log_evidence: float
    seconds: float

    @classmethod
    def of(cls, number: int, result: EStepResult, seconds: float) -> Self:
        """Return the record of observation or visit `number`, from the E-step's result."""
        return cls(
            number=number,
            class_weight=np.array(result.statistics[CLASS_WEIGHT], dtype=np.float64),
            acceptance=float(result.acceptance),
            log_evidence=float(result.log_evidence),
            seconds=seconds,
        )


@dataclass(frozen=True)
class StepReport[State: RunState]:
    """Report of a driver's step: the new state and what happened.

    Attributes
    ----------
    state : OnlineState or SAEMState
        The state after the step.
    observations : tuple of ObservationRecord
        One for each observation of the step.
    gain : float
        ϱ_n of the step.
    updated : bool
        Whether the parameters were maximized.
    waiting : int
        Number of classes that were not ready then and kept their parameters.
    """

    state: State
    observations: tuple[ObservationRecord, ...]
    gain: float
    updated: bool
    waiting: int


class StepError(Exception):
    """A failed step: `culprits` are the pending observations that failed, `causes` the errors."""

    def __init__(self, culprits: Sequence[Pending], causes: Sequence[Exception]) -> None:
        super().__init__(said(causes[0]))
        self.culprits = tuple(culprits)
        self.causes = tuple(causes)
        self.positions = frozenset(item.position for item in self.culprits)

    def failed_records(self, what: str = "learning it failed") -> list[FailedRecord]:
        """Return the observations that failed with the reasons, for the history."""
        return [
            FailedRecord(item.position, f"{what}: {named(cause)}", item.observation)
            for item, cause in zip(self.culprits, self.causes, strict=True)
        ]

    def user_error(self, what: str) -> Exception:
        """Return the error that users see; `what` says what happens to the observations."""
        cause = self.causes[0]
        kind: type[Exception] = RuntimeError
        if isinstance(cause, ArithmeticError):
            kind = FloatingPointError
        elif isinstance(cause, Absurd):
            kind = ValueError
        positions = ", ".join(str(item.position) for item in self.culprits)
        return kind(f"observation {positions} of the stream, counted from 0, {what}: {said(cause)}")


def _copied(value: Any) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        return np.array(np.ma.filled(value.astype(np.float64), np.nan))
    return np.array(value, dtype=np.float64)
