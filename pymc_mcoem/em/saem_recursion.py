"""Batch stochastic approximation EM as a function from one state of a run to the next.

As in `recursion`, a state is never changed in place: an iteration that fails, or is interrupted,
leaves the run where it stood before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.em.checks import check_shapes, check_statistics
from pymc_mcoem.em.contributions import Contribution
from pymc_mcoem.em.esteps.worker_calls import Explainer, Visit, visit
from pymc_mcoem.em.maximization import count_waiting, maximize_family
from pymc_mcoem.em.run_state import ObservationRecord, StepReport
from pymc_mcoem.em.saem_state import SAEMSettings, SAEMState, fingerprint
from pymc_mcoem.interrupts import raise_if_interrupted, require_own_fault
from pymc_mcoem.runs.executor import Crew, Workers
from pymc_mcoem.runs.failed_records import PATIENCE, named
from pymc_mcoem.runs.workers import ExecutorError, Order

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import CompiledEStep, EStepResult
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labelling import Arrays

__all__ = ["SAEMRecursion"]


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

    def generator(self, *key: int) -> np.random.Generator:
        """Return the generator of an iteration, or of an observation in it; 0 is the start."""
        return np.random.default_rng(np.random.SeedSequence(entropy=self.entropy, spawn_key=key))

    def start(self, observations: list[Any]) -> Arrays:
        """Return the parameters that a run over `observations` starts from."""
        held = observations[: self.settings.n_start]
        with strict_arithmetic(), one_blas_thread():
            found = self.family.initialize(held, self.generator(0), self.settings.start)
        return self.family.check_parameters(found)

    def begin(
        self, state: SAEMState, encoded: Mapping[int, Arrays], n_records: int, parameters: Arrays
    ) -> SAEMState:
        """Return a state with a chain to come for each observation, by its position."""
        return replace(
            state,
            parameters=parameters,
            chains=({},) * len(encoded),
            n_sweeps=(0,) * len(encoded),
            positions=tuple(encoded),
            fingerprints=tuple(map(fingerprint, encoded.values())),
            n_records=n_records,
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
        encoded: Mapping[int, Arrays],
        visited: Callable[[ObservationRecord], None],
    ) -> tuple[StepReport[SAEMState], dict[int, str]]:
        """Make one iteration: simulation, stochastic approximation, maximisation.

        Parameters
        ----------
        state : SAEMState
            A state that `begin` made, or an iteration.
        encoded : mapping of int to mapping of str to ndarray
            All observations by their positions, as `Family.encode` gives them.
        visited : callable
            Told of each observation once it has been visited.

        Returns
        -------
        report : StepReport
        left_out : dict of int to str
            Why observations are left out from now on, by their positions. In the first iteration
            nothing is left of them: what follows is what a run without them would have been.

        Raises
        ------
        FloatingPointError, RuntimeError
            If a visit fails and is not to be skipped, or the M-step fails.
        """
        assert state.parameters is not None
        begun = perf_counter()
        number, n = state.n_iterations + 1, len(state.chains)
        gain = self._gain(number)
        simulated = self._annealed(state.parameters, number)
        # Without what each contributed before there is nothing to exchange.
        chosen = self.batch(number, n) if state.contributions else np.arange(n)
        chains: dict[int, Arrays] = {}
        records: list[ObservationRecord] = []
        troubles = dict(state.troubles)
        # All observations: their mean is formed anew. A batch: its part in the mean is exchanged.
        total: Arrays | None = None
        keeps, exchanges = self.settings.batch_fraction < 1, len(chosen) < n
        contributions = list(state.contributions) if exchanges else []
        if exchanges and state.mean is not None:
            total = {name: n * value for name, value in state.mean.items()}
        left_out: dict[int, str] = {}
        with one_blas_thread():
            for i, result, seconds in self._visits(state, simulated, encoded, chosen, gain):
                if isinstance(result, Exception):
                    left_out[state.positions[i]] = f"learning it failed: {named(result)}"
                    if exchanges and total is not None:
                        contributions[i].add_to(total, -1.0)
                    continue
                if total is None:
                    total = {name: np.zeros(np.shape(v)) for name, v in result.statistics.items()}
                contribution = Contribution.of(result.statistics)
                if exchanges:
                    contributions[i].add_to(total, -1.0)
                    contributions[i] = contribution
                elif keeps:
                    contributions.append(contribution)
                contribution.add_to(total, 1.0)
                for name, count in result.troubles.items():
                    troubles[name] = troubles.get(name, 0) + int(count)
                chains[i] = result.chain
                record = ObservationRecord.of(state.n_visits + len(records) + 1, result, seconds)
                records.append(record)
                visited(record)
            if not records:
                # nothing came of a whole mini-batch: another is drawn from the others
                report, more = self.iterate(state.without(left_out), encoded, visited)
                return report, left_out | more
            assert total is not None
            kept = [i for i, place in enumerate(state.positions) if place not in left_out]
            if exchanges:
                contributions = [contributions[i] for i in kept]
            mean = {name: value / len(kept) for name, value in total.items()}
            mean = self._sound(mean, contributions if exchanges else ())
            last = mean if state.statistics is None else state.statistics
            statistics = {
                name: last[name] + gain * (value - last[name]) for name, value in mean.items()
            }
            found = maximize_family(
                self.family,
                statistics,
                effective_size=float(len(kept)),
                present=state.parameters,
            )
        raise_if_interrupted()
        sweeps = self.settings.sweeps
        following = replace(
            state,
            parameters=found.parameters,
            statistics=statistics,
            mean=mean if keeps else None,
            contributions=tuple(contributions),
            chains=tuple(chains.get(i, state.chains[i]) for i in kept),
            n_sweeps=tuple(state.n_sweeps[i] + (sweeps if i in chains else 0) for i in kept),
            positions=tuple(state.positions[i] for i in kept),
            fingerprints=tuple(state.fingerprints[i] for i in kept),
            n_iterations=number,
            n_visits=state.n_visits + len(records),
            troubles=count_waiting(self.family, troubles, found.waiting),
        )
        rest = perf_counter() - begun - sum(record.seconds for record in records)
        timed = (replace(each, seconds=each.seconds + rest / len(records)) for each in records)
        report = StepReport(
            state=following,
            observations=tuple(timed),
            gain=gain,
            updated=True,
            waiting=len(found.waiting),
        )
        return report, left_out

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

    def _sound(self, mean: Arrays, contributions: Sequence[Contribution]) -> Arrays:
        """Return the mean of contributions that was kept up to date, or formed anew.

        What is exchanged again and again leaves rounding errors, and a class that has lost all of
        its observations nothing else.

        Raises
        ------
        FloatingPointError
            If the mean is none that observations can have, also when it is formed anew.
        """
        try:
            check_statistics(self.family, mean)
            return mean
        except (ValueError, ArithmeticError) as error:
            if not contributions:
                raise _not_sound(error) from error
        total = {name: np.zeros_like(value) for name, value in mean.items()}
        for each in contributions:
            each.add_to(total, 1.0)
        anew = {name: value / len(contributions) for name, value in total.items()}
        try:
            check_statistics(self.family, anew)
        except (ValueError, ArithmeticError) as error:
            raise _not_sound(error) from error
        return anew

    def _visits(
        self,
        state: SAEMState,
        parameters: Arrays,
        encoded: Mapping[int, Arrays],
        chosen: np.ndarray,
        gain: float,
    ) -> Iterator[tuple[int, EStepResult | Exception, float]]:
        """Yield which observation was visited, what that gave, and how long it took.

        Raises
        ------
        FloatingPointError, RuntimeError
            If a visit fails and is not to be skipped, if too many in a row do, or all.
        """
        number, n = state.n_iterations + 1, len(state.chains)
        waiting, failures, lost = deque(chosen.tolist()), 0, 0
        while waiting:
            # Behind an observation that is left out generators are those of a run without it, so
            # that what was handed out is handed out again.
            orders = self._orders(state, parameters, encoded, tuple(waiting), lost, gain)
            answers = self.crew.answers(orders, window=n)
            while waiting:
                begun = perf_counter()
                i = waiting.popleft()
                try:
                    result: EStepResult = next(answers)
                    check_shapes(result.statistics, state.statistics)
                except ExecutorError:
                    raise
                except Exception as error:
                    require_own_fault(error)
                    failures, lost = failures + 1, lost + 1
                    skips = self.settings.on_error != "raise"
                    if not skips or failures > PATIENCE or lost == n:
                        raise self._failure(error, state.positions[i], number) from error
                    yield i, error, 0.0
                    break
                failures = 0
                # Workers overlap: there each visit has an equal part of the iteration's time.
                yield i, result, 0.0 if self.crew.is_remote else perf_counter() - begun

    def _failure(self, error: Exception, position: int, number: int) -> Exception:
        kind = FloatingPointError if isinstance(error, ArithmeticError) else RuntimeError
        return kind(
            f"observation {position}, counted from 0, failed in iteration {number}: {error} The "
            "run stands as after the iteration before; to go on without the observation save it "
            "and load it with on_error='skip'."
        )

    def _orders(
        self,
        state: SAEMState,
        parameters: Arrays,
        encoded: Mapping[int, Arrays],
        indices: Iterable[int],
        lost: int,
        gain: float,
    ) -> Iterator[Order]:
        """Yield the visits to observations behind `lost` that are left out, as calls to be made."""
        for index in indices:
            how = Visit(
                sweeps=self.settings.sweeps,
                done=state.n_sweeps[index],
                refit_every=self.settings.refit_every,
                # Moves adapt while the gain is 1: what is averaged later needs a fixed kernel. A
                # chain that begins anew then, of a run with another E-step, adapts at its start.
                adapts=gain == 1 or state.n_sweeps[index] == 0,
            )
            data = encoded[state.positions[index]]
            rng = self.generator(state.n_iterations + 1, index - lost)
            yield Order(visit, (data, parameters, rng, state.chains[index], how))


def _not_sound(error: Exception) -> FloatingPointError:
    return FloatingPointError(
        f"statistics: their mean over the observations is none that can be: {error} The run stands "
        "as after the iteration before."
    )
