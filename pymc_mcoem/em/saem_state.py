"""State and settings of a run of `SAEM`, as frozen dataclasses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from pymc_mcoem.em.contributions import Contribution
from pymc_mcoem.em.run_state import RunSettings, RunState
from pymc_mcoem.validation import is_whole

__all__ = ["SAEMSettings", "SAEMState", "fingerprint"]


@dataclass(frozen=True, kw_only=True)
class SAEMSettings(RunSettings):
    """Settings of a run; `SAEM` describes each."""

    draws: int = 20
    refit_every: int = 1
    batch_size: int | float | None = None
    annealing: Callable[[int], float] | None = None

    unit: ClassVar[str] = "iteration"
    least: ClassVar[dict[str, int]] = {**RunSettings.least, "draws": 1, "refit_every": 1}

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        size = self.batch_size
        is_share = isinstance(size, (float, np.floating)) and 0 < size <= 1
        if not (size is None or is_share or (is_whole(size) and size >= 1)):
            raise ValueError(
                f"batch_size: got {size!r}; give a whole number of observations from 1, a share of "
                "them as a float in (0, 1], or None for all in every iteration."
            )
        if self.annealing is not None and not callable(self.annealing):
            raise TypeError(
                f"annealing: got {self.annealing!r}; give a schedule, or a function of the number "
                "of the iteration, counted from 1."
            )

    @property
    def visits_all(self) -> bool:
        """Whether every iteration visits all observations, by `batch_size`."""
        return self.batch_size is None or (not is_whole(self.batch_size) and self.batch_size == 1)

    def n_visited(self, n_observations: int) -> int:
        """Return how many of the observations a mini-batch has."""
        size = n_observations if self.batch_size is None else self.batch_size
        n = size if is_whole(size) else round(size * n_observations)
        return int(np.clip(n, 1, n_observations))


@dataclass(frozen=True)
class SAEMState(RunState):
    """Everything that a run of `SAEM` needs to continue, besides what `RunState` has.

    The observations are not in it. A step is an iteration.

    Attributes
    ----------
    contributions : tuple of Contribution
        Contribution of each observation at its last visit; with mini-batches only.
    chains : tuple of dict of str to ndarray
        `EStepResult.chain` of each observation, empty before its first visit.
    n_sweeps : tuple of int
        Number of sweeps made for each observation.
    positions : tuple of int
        Position of each observation among the given records, counted from 0, increasing. Records at
        other positions were skipped.
    fingerprints : tuple of str
        Fingerprints of the observations that the chains belong to.
    n_records : int
        Number of records given, including skipped ones.
    """

    contributions: tuple[Contribution, ...] = ()
    chains: tuple[dict[str, Any], ...] = ()
    n_sweeps: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    fingerprints: tuple[str, ...] = ()
    n_records: int = 0

    @property
    def effective_size(self) -> float:
        """Effective number of observations in the statistics: all of them."""
        return float(len(self.chains))

    def with_new_chains(self) -> Self:
        """Return the state with empty chains, for another E-step.

        Contributions stay.
        """
        n = len(self.chains)
        return replace(self, chains=tuple({} for _ in range(n)), n_sweeps=(0,) * n)

    def without(self, positions: Container[int]) -> Self:
        """Return the state without the observations at some positions and their contributions."""
        left = [i for i, position in enumerate(self.positions) if position not in positions]
        return replace(
            self,
            contributions=tuple(self.contributions[i] for i in left) if self.contributions else (),
            chains=tuple(self.chains[i] for i in left),
            n_sweeps=tuple(self.n_sweeps[i] for i in left),
            positions=tuple(self.positions[i] for i in left),
            fingerprints=tuple(self.fingerprints[i] for i in left),
        )


def fingerprint(data: Mapping[str, np.ndarray]) -> str:
    """Return a short text that identifies an observation.

    Examples
    --------
    >>> fingerprint({"y": np.zeros(2)}) == fingerprint({"y": np.ones(2)})
    False
    """
    digest = hashlib.sha256()
    for name in sorted(data):
        array = np.ascontiguousarray(data[name])
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
