"""Batch stochastic approximation EM as a function from one state of a run to the next.

As in `recursion`, a state is never changed in place: an iteration that fails, or is interrupted,
leaves the run where it stood before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.em.contributions import Contribution
from pymc_mcoem.em.crew import Crew
from pymc_mcoem.em.esteps.calls import Visit, compile_e_step, visit
from pymc_mcoem.em.maximization import count_waiting, maximize_family
from pymc_mcoem.em.run_state import STARTS, ObservationRecord, StepReport
from pymc_mcoem.em.threads import one_blas_thread
from pymc_mcoem.em.validation import check_statistics
from pymc_mcoem.em.workers import ExecutorError, Order

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import CompiledEStep, EStep, EStepResult
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.run_state import Arrays

__all__ = ["SAEMRecursion", "SAEMSettings", "SAEMState", "fingerprint"]


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

    def __post_init__(self) -> None:
        """Check the values."""
        if self.start not in STARTS:
            raise ValueError(f"start: got {self.start!r}; choose one of {STARTS}.")
        whole = {"sweeps": 1, "refit_every": 1, "n_start": 1, "keep": 2, "thin": 1}
        for name, least in whole.items():
            value = getattr(self, name)
            if value is None and name in ("n_start", "keep"):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
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
    n_iterations, n_visits : int
    fingerprint : str
        Of the observations that the chains belong to.
    troubles : dict of str to int
        Troubles met so far, by name.
    """

    parameters: Arrays | None = None
    statistics: Arrays | None = None
    mean: Arrays | None = None
    contributions: tuple[Contribution, ...] = ()
    chains: tuple[Arrays, ...] = ()
    n_sweeps: tuple[int, ...] = ()
    n_iterations: int = 0
    n_visits: int = 0
    fingerprint: str = ""
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


def fingerprint(encoded: Sequence[Mapping[str, np.ndarray]]) -> str:
    """Return a short text that other observations, or another order of them, do not have.

    Examples
    --------
    >>> fingerprint([{"y": np.zeros(2)}]) == fingerprint([{"y": np.ones(2)}])
    False
    """
    digest = hashlib.sha256()
    for data in encoded:
        for name in sorted(data):
            array = np.ascontiguousarray(data[name])
            digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


class SAEMRecursion:
    """SAEM for one family and one set of settings.

    Parameters
    ----------
    family : Family
        The model and its M-step.
    settings : SAEMSettings
    entropy : int or sequence of int
        The seed. Observation i has a generator of its own in iteration k, made from the seed, k
        and i.
    executor : concurrent.futures.Executor, int or None
        Who makes the E-steps of an iteration; see `Crew`.
    """

    def __init__(
        self,
        family: Family,
        settings: SAEMSettings,
        entropy: int | Sequence[int],
        executor: Executor | int | None = None,
    ) -> None:
        self.family = family
        self.settings = settings
        self.entropy = entropy
        self.crew = Crew(partial(compile_e_step, family, settings.e_step), executor)

    @property
    def e_step(self) -> CompiledEStep:
        """The E-step compiled here; made at its first use, which can take a minute."""
        compiled: CompiledEStep = self.crew.compiled
        return compiled

    def generator(self, *key: int) -> np.random.Generator:
        """Return the generator of an iteration, or of an observation in it; 0 is the start."""
        return np.random.default_rng(np.random.SeedSequence(entropy=self.entropy, spawn_key=key))

    def start(self, observations: list[Any]) -> Arrays:
        """Return the parameters that a run over `observations` starts from."""
        held = observations[: self.settings.n_start]
        with one_blas_thread():
            found = self.family.initialize(held, self.generator(0), self.settings.start)
        return self.family.check_parameters(found)

    def begin(
        self, state: SAEMState, encoded: Sequence[Mapping[str, np.ndarray]], parameters: Arrays
    ) -> SAEMState:
        """Return a state with a chain to come for each observation."""
        return replace(
            state,
            parameters=parameters,
            chains=({},) * len(encoded),
            n_sweeps=(0,) * len(encoded),
            fingerprint=fingerprint(encoded),
        )

    def batch(self, number: int, n_observations: int) -> np.ndarray:
        """Return which observations iteration `number` visits, increasing; the first one all."""
        fraction = self.settings.batch_fraction
        if fraction == 1 or number == 1:
            return np.arange(n_observations)
        size = max(round(fraction * n_observations), 1)
        chosen = self.generator(number).choice(n_observations, size, replace=False)
        return np.sort(chosen)

    def iterate(
        self,
        state: SAEMState,
        encoded: Sequence[Mapping[str, np.ndarray]],
        visited: Callable[[ObservationRecord], None],
    ) -> StepReport[SAEMState]:
        """Make one iteration: simulation, stochastic approximation, maximisation.

        Parameters
        ----------
        state : SAEMState
            A state that `begin` made, or an iteration.
        encoded : sequence of mapping of str to ndarray
            All observations, as `Family.encode` gives them.
        visited : callable
            Told of each observation once it has been visited.

        Raises
        ------
        FloatingPointError, RuntimeError
            If a visit or the M-step fails.
        """
        assert state.parameters is not None
        begun = perf_counter()
        number, n = state.n_iterations + 1, len(encoded)
        gain = self._gain(number)
        simulated = self._annealed(state.parameters, number)
        chosen = self.batch(number, n)
        chains, contributions = list(state.chains), list(state.contributions)
        n_sweeps = list(state.n_sweeps)
        records: list[ObservationRecord] = []
        troubles = dict(state.troubles)
        # All observations: their mean is formed anew. A batch: its part in the mean is exchanged.
        total: Arrays | None = None
        keeps = self.settings.batch_fraction < 1
        if len(chosen) < n and state.mean is not None:
            total = {name: n * value for name, value in state.mean.items()}
        with one_blas_thread():
            answers = self.crew.answers(
                (
                    self._order(state, simulated, encoded[i], i, number, gain)
                    for i in chosen.tolist()
                ),
                window=n,
            )
            for order, i in enumerate(chosen.tolist(), start=1):
                record, result = self._received(state, answers, i, number, order)
                if total is None:
                    total = {name: np.zeros(np.shape(v)) for name, v in result.statistics.items()}
                contribution = Contribution.of(result.statistics)
                if len(chosen) < n:
                    contributions[i].add_to(total, -1.0)
                    contributions[i] = contribution
                elif keeps:
                    contributions.append(contribution)
                contribution.add_to(total, 1.0)
                chains[i] = result.chain
                n_sweeps[i] += self.settings.sweeps
                for name, count in result.troubles.items():
                    troubles[name] = troubles.get(name, 0) + int(count)
                records.append(record)
                visited(record)
            assert total is not None
            mean = {name: value / n for name, value in total.items()}
            last = mean if state.statistics is None else state.statistics
            statistics = {
                name: last[name] + gain * (value - last[name]) for name, value in mean.items()
            }
            found = maximize_family(
                self.family, statistics, effective_size=float(n), present=state.parameters
            )
        following = replace(
            state,
            parameters=found.parameters,
            statistics=statistics,
            mean=mean if keeps else None,
            contributions=tuple(contributions[-n:]) if keeps else (),
            chains=tuple(chains),
            n_sweeps=tuple(n_sweeps),
            n_iterations=number,
            n_visits=state.n_visits + len(chosen),
            troubles=count_waiting(self.family, troubles, found.waiting),
        )
        rest = perf_counter() - begun - sum(record.seconds for record in records)
        timed = (replace(each, seconds=each.seconds + rest / len(records)) for each in records)
        return StepReport(
            state=following,
            observations=tuple(timed),
            gain=gain,
            updated=True,
            waiting=len(found.waiting),
        )

    def _gain(self, number: int) -> float:
        gain = float(self.settings.step_size(number))
        if not 0 < gain <= 1 or (number == 1 and gain != 1):
            raise ValueError(
                f"step_size: gave {gain} for iteration {number}; gains lie in (0, 1], the first "
                "is 1."
            )
        return gain

    def _annealed(self, parameters: Arrays, number: int) -> Arrays:
        if self.settings.annealing is None:
            return parameters
        temperature = float(self.settings.annealing(number))
        if not 1 <= temperature < np.inf:
            raise ValueError(
                f"annealing: gave {temperature} for iteration {number}; temperatures are finite "
                "and at least 1."
            )
        if temperature == 1:
            return parameters
        return self.family.check_parameters(self.family.anneal(parameters, temperature))

    def _order(
        self,
        state: SAEMState,
        parameters: Arrays,
        data: Mapping[str, np.ndarray],
        index: int,
        number: int,
        gain: float,
    ) -> Order:
        """Return the visit to an observation, as a call to be made."""
        how = Visit(
            sweeps=self.settings.sweeps,
            done=state.n_sweeps[index],
            refit_every=self.settings.refit_every,
            # Moves adapt while the gain is 1: what is averaged later needs a fixed kernel.
            adapts=gain == 1,
        )
        rng = self.generator(number, index)
        return Order(visit, (data, parameters, rng, state.chains[index], how))

    def _received(
        self, state: SAEMState, answers: Iterator[Any], index: int, number: int, order: int
    ) -> tuple[ObservationRecord, EStepResult]:
        """Return what a visit gave, checked."""
        begun = perf_counter()
        try:
            result: EStepResult = next(answers)
            check_statistics(self.family, result.statistics, state.statistics)
        except ExecutorError:
            raise
        except Exception as error:
            kind = FloatingPointError if isinstance(error, ArithmeticError) else RuntimeError
            raise kind(
                f"observation {index}, counted from 0, failed in iteration {number}: {error} The "
                "run stands as after the iteration before; leave the observation out, in a new run."
            ) from error
        # Workers overlap: there each visit has an equal part of the iteration's time.
        seconds = 0.0 if self.crew.is_remote else perf_counter() - begun
        return ObservationRecord.of(state.n_visits + order, result, seconds), result
