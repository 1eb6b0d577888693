"""The interface of E-steps: from one observation and θ to mean sufficient statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = [
    "CompiledChains",
    "CompiledClassWeights",
    "CompiledEStep",
    "CompiledTogether",
    "EStep",
    "EStepResult",
]


@dataclass(frozen=True)
class EStepResult:
    """Result of an E-step for one observation.

    Attributes
    ----------
    statistics : dict of str to ndarray
        Posterior means of δ_{I,j} S, each ``(n_classes, *shape)``; ``"class_weight"`` of shape
        ``(n_classes,)`` is the posterior class probability. If `summed` is not None, only that.
    class_index : ndarray of shape (n_draws,) or None
        Draws of the class index after tuning, if the E-step makes any.
    acceptance : float
        Share of within-class moves accepted; nan if there are none.
    log_evidence : float
        Estimate of log p(y); nan if there is none.
    troubles : dict of str to int
        Counts of troubles, by name.
    state : dict of str to ndarray
        Adaptation that the next observation starts from.
    chain : dict of str to ndarray
        State of the observation's chain, from E-steps that can continue it.
    summed : dict of str to ndarray, or None
        Sums of the statistics over the observations of a call that adds them, with the last of its
        results; empty with the others. None: nothing was added.
    """

    statistics: dict[str, np.ndarray]
    class_index: np.ndarray | None = None
    acceptance: float = float("nan")
    log_evidence: float = float("nan")
    troubles: dict[str, int] = field(default_factory=dict)
    state: dict[str, np.ndarray] = field(default_factory=dict)
    chain: dict[str, np.ndarray] = field(default_factory=dict)
    summed: dict[str, np.ndarray] | None = None

    @property
    def to_add(self) -> dict[str, np.ndarray]:
        """What the call adds to the sums of a mini-batch with this result."""
        return self.statistics if self.summed is None else self.summed

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle the result for sending: without rows of zeros in the statistics."""
        sums = {"statistics": self.statistics, "summed": self.summed}
        sent = {name: _SentRows.of(found) for name, found in sums.items() if found}
        given = {name: value for name, value in vars(self).items() if name not in sent}
        return _whole, (given, sent)


@dataclass(frozen=True)
class _SentRows:
    """Rows of the statistics of some classes; those of the others are zero.

    Attributes
    ----------
    classes : ndarray of int of shape (n_sent,)
    rows : dict of str to ndarray of shape (n_sent, *shape)
    """

    classes: np.ndarray
    rows: dict[str, np.ndarray]
    n_classes: int

    @classmethod
    def of(cls, statistics: dict[str, np.ndarray]) -> _SentRows:
        n_classes = len(next(iter(statistics.values())))
        # Only rows whose bits are all zero are omitted, so that the result is restored bitwise: a
        # row with negative zeros is sent.
        empty = np.ones(n_classes, dtype=bool)
        for value in statistics.values():
            bits = np.ascontiguousarray(value).reshape(n_classes, -1).view(np.uint8)
            empty &= ~bits.any(axis=1)
        classes = np.flatnonzero(~empty)
        rows = {name: np.asarray(value)[classes] for name, value in statistics.items()}
        return cls(classes, rows, n_classes)

    def whole(self) -> dict[str, np.ndarray]:
        found = {}
        for name, sent in self.rows.items():
            found[name] = np.zeros((self.n_classes, *sent.shape[1:]), dtype=sent.dtype)
            found[name][self.classes] = sent
        return found


def _whole(given: dict[str, Any], sent: dict[str, _SentRows]) -> EStepResult:
    """Return the result that was sent, with the rows of all classes."""
    return EStepResult(**(given | {name: rows.whole() for name, rows in sent.items()}))


class CompiledEStep(Protocol):
    """An E-step compiled for one family; calling it compiles nothing more.

    It keeps no state between calls, so that runs of one family can share it.
    """

    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the adaptation that a run starts with."""
        ...

    def __call__(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        state: Mapping[str, np.ndarray],
        *,
        draws: int,
        tune: int,
    ) -> EStepResult:
        """Return the statistics of one encoded observation at θ.

        `state` is that of `initial_state` or of the last result. Statistics are averaged over
        `draws` sweeps, after `tune` others; an E-step without sweeps ignores both numbers.
        """
        ...


@runtime_checkable
class CompiledChains(Protocol):
    """A compiled E-step whose chains can be kept alive between visits to an observation."""

    def resume(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        chain: Mapping[str, np.ndarray],
        *,
        gains: np.ndarray,
        refit: bool,
        keep_fit: bool,
    ) -> EStepResult:
        """Continue a chain, or start one if `chain` is empty.

        Parameters
        ----------
        data, parameters, rng
            As for a call of `CompiledEStep`.
        chain : mapping of str to ndarray
            `EStepResult.chain` of the last visit; empty at the first.
        gains : ndarray of shape (n_sweeps,)
            Gains of the adaptation of step sizes; all sweeps enter the statistics.
        refit : bool
            Whether pseudo-priors are fitted again at θ. They always are if `chain` has none.
        keep_fit : bool
            Whether the result's `chain` includes them for the next visit.
        """
        ...


@runtime_checkable
class CompiledTogether(Protocol):
    """A compiled E-step that takes many observations in one call.

    Each result equals that of a call with this observation alone, up to rounding or, if the
    generators differ, up to Monte Carlo error.
    """

    def run_all(
        self,
        data: Sequence[Mapping[str, np.ndarray]],
        parameters: Mapping[str, np.ndarray],
        rngs: Sequence[np.random.Generator],
        state: Mapping[str, np.ndarray],
        *,
        draws: int,
        tune: int,
    ) -> list[EStepResult | Exception]:
        """Return the statistics of encoded observations at θ.

        Parameters
        ----------
        data : sequence of mapping of str to ndarray
            Encoded observations.
        parameters : mapping of str to ndarray
            θ, the same for all.
        rngs : sequence of numpy.random.Generator
            One for each observation.
        state : mapping of str to ndarray
            As for a call of `CompiledEStep`, the same for all.

        Returns
        -------
        list of EStepResult or Exception
            The exception in place of an observation that fails. The others are not affected.
        """
        ...

    def resume_all(
        self,
        data: Sequence[Mapping[str, np.ndarray]],
        parameters: Mapping[str, np.ndarray],
        rngs: Sequence[np.random.Generator],
        chains: Sequence[Mapping[str, np.ndarray]],
        *,
        gains: Sequence[np.ndarray],
        refit: Sequence[bool],
        keep_fit: bool,
    ) -> list[EStepResult | Exception]:
        """Continue chains, or start them where `chains` are empty.

        Parameters
        ----------
        data, parameters, rngs
            As for `run_all`.
        chains, gains, refit : sequence
            One for each observation, as for `CompiledChains.resume`.
        """
        ...


@runtime_checkable
class CompiledClassWeights(Protocol):
    """A compiled E-step that gives class probabilities without the statistics."""

    def class_probability(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        draws: int,
        tune: int,
    ) -> np.ndarray:
        """Return posterior class probabilities of one encoded observation, ``(n_classes,)``."""
        ...


class EStep(Protocol):
    """Settings of an E-step; `compile` turns them into functions for one family."""

    def compile(self, family: Family) -> CompiledEStep:
        """Compile for `family`."""
        ...
