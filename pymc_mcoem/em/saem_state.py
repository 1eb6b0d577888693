"""The state of a run of batch stochastic approximation EM, and its settings: plain frozen data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pymc_mcoem.em.contributions import Contribution
from pymc_mcoem.em.run_state import STARTS
from pymc_mcoem.runs.failed_records import check_on_error
from pymc_mcoem.runs.outliers import check_refuse_beyond
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStep
    from pymc_mcoem.labelling import Arrays

__all__ = ["SAEMSettings", "SAEMState", "fingerprint"]


@dataclass(frozen=True)
class SAEMSettings:
    """What a run was asked to do; see `SAEM` for each."""

    e_step: EStep
    step_size: Callable[[int], float]
    sweeps: int = 20
    refit_every: int = 1
    batch_fraction: float = 1.0
    annealing: Callable[[int], float] | None = None
    start: str = "kmeans"
    n_start: int | None = None
    keep: int | None = None
    thin: int = 1
    on_error: Any = "raise"
    refuse_beyond: float | None = 10_000.0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.start not in STARTS:
            raise ValueError(f"start: got {self.start!r}; choose one of {STARTS}.")
        check_on_error(self.on_error)
        check_refuse_beyond(self.refuse_beyond)
        whole = {"sweeps": 1, "refit_every": 1, "n_start": 1, "keep": 2, "thin": 1}
        for name, least in whole.items():
            value = getattr(self, name)
            if value is None and name in ("n_start", "keep"):
                continue
            if not is_whole(value) or value < least:
                raise ValueError(f"{name}: got {value!r}; give a whole number from {least}.")
        if not 0 < self.batch_fraction <= 1:
            raise ValueError(
                f"batch_fraction: got {self.batch_fraction!r}; give a share in (0, 1], 1 for all "
                "observations in every iteration."
            )
        for name in ("step_size", "annealing"):
            value = getattr(self, name)
            if not callable(value) and not (value is None and name == "annealing"):
                raise TypeError(
                    f"{name}: got {value!r}; give a schedule, or a function of the iteration's "
                    "number, counted from 1."
                )
        if float(self.step_size(1)) != 1:
            raise ValueError(
                f"step_size: gave {self.step_size(1)} for iteration 1; the first gain must be 1."
            )
        if not hasattr(self.e_step, "compile"):
            raise TypeError(
                f"e_step: got {self.e_step!r}; give an E-step such as CarlinChibBurst() or Exact()."
            )


@dataclass(frozen=True)
class SAEMState:
    """All that a run needs to go on, the observations apart.

    Attributes
    ----------
    parameters : dict of str to ndarray, or None
        θ; None before the start is set.
    statistics : dict of str to ndarray, or None
        s_k, each ``(n_classes, *shape)``.
    mean : dict of str to ndarray, or None
        Mean over all observations of what each contributed at its last visit; kept with
        mini-batches only.
    contributions : tuple of Contribution
        One for each observation; with mini-batches only.
    chains : tuple of dict of str to ndarray
        What the E-step left of each observation, empty before its first visit.
    n_sweeps : tuple of int
        Sweeps made for each observation.
    positions : tuple of int
        Which record of those given each observation is, counted from 0, increasing. What is
        not among them was left out.
    fingerprints : tuple of str
        Of the observations that the chains belong to.
    n_records : int
        Records given, those left out among them.
    n_iterations, n_visits : int
    troubles : dict of str to int
        Troubles met so far, by name.
    """

    parameters: Arrays | None = None
    statistics: Arrays | None = None
    mean: Arrays | None = None
    contributions: tuple[Contribution, ...] = ()
    chains: tuple[Arrays, ...] = ()
    n_sweeps: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    fingerprints: tuple[str, ...] = ()
    n_records: int = 0
    n_iterations: int = 0
    n_visits: int = 0
    troubles: dict[str, int] = field(default_factory=dict)

    @property
    def n_learnt(self) -> int:
        """Visits to observations."""
        return self.n_visits

    @property
    def n_seen(self) -> int:
        """Visits to observations."""
        return self.n_visits

    @property
    def n_steps(self) -> int:
        """Iterations."""
        return self.n_iterations

    @property
    def effective_size(self) -> float:
        """Observations that the statistics are worth: all there are."""
        return float(len(self.chains))

    def with_new_chains(self) -> Self:
        """Return the state in which no observation has been visited by the present E-step.

        What its last visit contributed stays.
        """
        n = len(self.chains)
        return replace(self, chains=tuple({} for _ in range(n)), n_sweeps=(0,) * n)

    def without(self, positions: Container[int]) -> Self:
        """Return the state without the observations at these positions and what they gave."""
        kept = [i for i, position in enumerate(self.positions) if position not in positions]
        if len(kept) == len(self.positions):
            return self
        total = self.mean
        if total is not None:
            total = {name: len(self.chains) * value for name, value in total.items()}
            for i in sorted(set(range(len(self.chains))) - set(kept)):
                self.contributions[i].add_to(total, -1.0)
            total = {name: value / len(kept) for name, value in total.items()}
        return replace(
            self,
            mean=total,
            contributions=tuple(self.contributions[i] for i in kept) if self.contributions else (),
            chains=tuple(self.chains[i] for i in kept),
            n_sweeps=tuple(self.n_sweeps[i] for i in kept),
            positions=tuple(self.positions[i] for i in kept),
            fingerprints=tuple(self.fingerprints[i] for i in kept),
        )


def fingerprint(data: Mapping[str, np.ndarray]) -> str:
    """Return a short text that another observation does not have.

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
