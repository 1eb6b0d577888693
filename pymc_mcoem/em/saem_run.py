"""A run of `SAEM`: reading its observations, and batch stochastic approximation EM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.em.contributions import Contribution, blended
from pymc_mcoem.em.esteps.worker_calls import visit
from pymc_mcoem.em.maximization import count_troubles, maximize_family, waiting_classes
from pymc_mcoem.em.run import Run, timed
from pymc_mcoem.em.run_state import ObservationRecord, StepReport
from pymc_mcoem.em.saem_state import SAEMSettings, SAEMState, fingerprint
from pymc_mcoem.em.storage import SavedRun
from pymc_mcoem.em.stream import Unreadable, read
from pymc_mcoem.interrupts import require_readable
from pymc_mcoem.runs.codec import stored_alike
from pymc_mcoem.runs.failed_records import MOST_IN_A_ROW, FailedRecord, named, refusal
from pymc_mcoem.runs.outliers import RefusedInARow, absurd_among, largest
from pymc_mcoem.runs.workers import Order

if TYPE_CHECKING:
    from pymc_mcoem.labeling import Arrays

__all__ = ["SAEMRun"]


class SAEMRun(Run[SAEMState, SAEMSettings]):
    """The implementation of `SAEM`; parameters as for `Run`.

    Observation i has its own generator in iteration k, made from the seed, k and i.
    """

    driver = "SAEM"
    method = "fit"
    settings_class = SAEMSettings
    state_class = SAEMState
    unit = "iteration"

    def restore(self, saved: SavedRun, tree: xr.DataTree) -> None:
        """Continue from a saved run; with another E-step, all chains start anew."""
        super().restore(saved, tree)
        for contribution in self.state.contributions:
            contribution.require_like(self.state.statistics or {})
        counts, positions = self.state.n_sweeps, (-1, *self.state.positions, 2**63)
        if not all(0 <= each < 2**63 for each in counts):
            raise ValueError(f"it counts {min(counts)} to {max(counts)} sweeps of observations")
        if {len(self.state.chains), len(counts), len(self.state.fingerprints)} != {
            len(self.state.positions)
        }:
            raise ValueError("it has chains, counts and fingerprints of other observations")
        if any(after <= before for before, after in pairwise(positions)):
            raise ValueError("positions of its observations do not increase, or pass 64 bits")
        e_step: Any = self.settings.e_step
        given = [e_step]
        is_recorded = getattr(e_step, "backend", "") == tree.attrs.get("backend")
        if is_recorded and is_dataclass(type(e_step)):
            alike: Any = replace
            given.append(alike(e_step, backend=None))  # as it may be in the file
        text = tree.attrs["settings"]
        if not any(stored_alike(text, {"e_step": each}, "e_step") for each in given):
            self.state = self.state.with_new_chains()

    def read(self, observations: Any, between: Callable[[], None]) -> dict[int, Arrays]:
        """Read the observations of a call, and begin with them or check that the run has the same.

        Parameters
        ----------
        observations : array_like, DataArray, or iterable
            As `SAEM.fit` takes them.
        between : callable
            Called as each is read; it raises to end the reading.

        Returns
        -------
        dict of int to dict of str to ndarray
            The observations to learn, encoded, by position.

        Raises
        ------
        ValueError, TypeError
            If the family refuses one that is not to be skipped, if none is left, or if they are
            not those of the run.
        Exception
            Any exception of the source.
        """
        taken = self._taken(observations, between)
        self.leave_out(*taken.lost)
        if self.state.chains:
            state = self.state.without({record.position for record in taken.lost})
            _require_same(taken, state)
            self.state = state
        else:
            if self.state.parameters is None:
                held = [*taken.held.values()][: self.settings.n_start]
                self.begin(self.initial_parameters(held))
            n = len(taken.encoded)
            self.state = replace(
                self.state,
                chains=({},) * n,
                n_sweeps=(0,) * n,
                positions=tuple(taken.encoded),
                fingerprints=tuple(map(fingerprint, taken.encoded.values())),
                n_records=taken.n_records,
            )
        between()
        return taken.encoded

    def _taken(self, observations: Any, between: Callable[[], None]) -> _Taken:
        """Read all observations, and set aside those that are skipped."""
        taken, state, known = _Taken(), self.state, frozenset(self.state.positions)
        spans: dict[int, Arrays] = {}
        on_error = self.settings.on_error
        for position, observation in enumerate(read(self.family, observations)):
            between()
            taken.n_records += 1
            if position < state.n_records and position not in known:
                continue
            if isinstance(observation, Unreadable):
                taken.lost.append(self.unreadable(observation, position))
                continue
            try:
                item, encoded, spanned = self.admit(observation, position)
            except Exception as error:
                require_readable(error)
                if on_error != "raise":
                    taken.lost.append(
                        FailedRecord(position, f"refused: {named(error)}", observation)
                    )
                    continue
                raise refusal(error, position) from error
            taken.encoded[position] = encoded
            if state.parameters is None:
                taken.held[position] = item.observation
            if not state.chains:
                spans[position] = spanned
        absurd = absurd_among(
            spans,
            self.settings.refuse_beyond,
            largest(state.parameters or self.family.declared_parameters()),
        )
        RefusedInARow().count_all(spans, absurd)
        for position, why in absurd.items():
            if on_error == "raise":
                raise refusal(why, position)
            observation = taken.encoded.pop(position)
            taken.lost.append(FailedRecord(position, f"refused: {named(why)}", observation))
            taken.held.pop(position, None)
        if not taken.n_records:
            raise ValueError("observations: got none; pass at least one observation.")
        if not taken.encoded:
            reason = taken.lost[0].reason if taken.lost else "they were skipped before"
            raise ValueError(
                f"observations: none of these {taken.n_records} can be learned ({reason}); check "
                "the source."
            )
        return taken

    def batch(self, number: int, n_observations: int) -> np.ndarray:
        """Return the sorted indices of the observations that iteration `number` visits."""
        if self.settings.visits_all or number == 1:
            return np.arange(n_observations)
        size = self.settings.n_visited(n_observations)
        chosen = self.generator(number).choice(n_observations, size, replace=False)
        return np.sort(chosen)

    def iterate(
        self, encoded: Mapping[int, Arrays], visited: Callable[[ObservationRecord], None]
    ) -> StepReport[SAEMState]:
        """Run one iteration, and move to its state."""
        report, failures = self.step(self.state, encoded, visited)
        lost = [
            FailedRecord(at, f"learning it failed: {named(error)}", encoded[at])
            for at, error in failures.items()
        ]
        self.leave_out(*lost)
        self.take(report)
        return report

    def step(
        self,
        state: SAEMState,
        encoded: Mapping[int, Arrays],
        visited: Callable[[ObservationRecord], None],
    ) -> tuple[StepReport[SAEMState], dict[int, Exception]]:
        """Run an iteration from a state: simulation, stochastic approximation and maximization.

        Returns
        -------
        failures : dict of int to Exception
            Errors of the observations that are skipped from now on, by position. If they fail in
            the first iteration, the run continues as a run without them would.
        """
        begun = perf_counter()
        number, n = state.n_steps + 1, len(state.chains)
        draws, refit_every = self.settings.draws, self.settings.refit_every
        gain = self.settings.gain(number)
        parameters = self._annealed(state.parameters or {}, number)
        # Observations that are not visited contribute the statistics of their last visit.
        contributions = list(state.contributions)
        keeps = not self.settings.visits_all
        chosen = self.batch(number, n) if contributions else np.arange(n)

        def order(failed: int, index: int) -> Order:
            done = state.n_sweeps[index]
            # Moves adapt while the gain is 1, since averaging later needs a fixed kernel. A chain
            # that starts anew later, because the E-step changed, adapts at first.
            adapts = gain == 1 or not done
            gains = 2.0 / np.sqrt(done + np.arange(1, draws + 1)) if adapts else np.zeros(draws)
            refit = done // draws % refit_every == 0
            rng = self.generator(number, index - failed)
            data = encoded[state.positions[index]]
            chain = state.chains[index]
            return Order(visit, (data, parameters, rng, chain, gains, refit, refit_every > 1))

        chains: dict[int, Arrays] = {}
        records: list[ObservationRecord] = []
        troubles = dict(state.troubles)
        total: Arrays = {}
        failures: dict[int, Exception] = {}
        in_a_row = 0
        with one_blas_thread():
            for i, result, seconds in self.e_step_results(chosen.tolist(), order, state.statistics):
                if isinstance(result, Exception):
                    failures[state.positions[i]] = result
                    in_a_row += 1
                    skips = self.settings.on_error != "raise"
                    if not skips or in_a_row > MOST_IN_A_ROW or len(failures) == n:
                        raise _failure(result, state.positions[i], number) from result
                    continue
                in_a_row = 0
                contribution = Contribution.of(result.statistics)
                total = total or _zeros(result.statistics)
                if not keeps:
                    contribution.add_to(total)
                elif state.contributions:
                    contributions[i] = contribution
                else:
                    contributions.append(contribution)
                count_troubles(troubles, result.troubles)
                chains[i] = result.chain
                record = ObservationRecord.of(state.n_learned + len(records) + 1, result, seconds)
                records.append(record)
                visited(record)
            if not records:
                # a whole mini-batch failed: draw another from the other observations
                report, more = self.step(state.without(failures), encoded, visited)
                return report, failures | more
            left = [i for i, place in enumerate(state.positions) if place not in failures]
            if keeps:
                if state.contributions:
                    contributions = [contributions[i] for i in left]
                for contribution in contributions:
                    contribution.add_to(total)
            statistics = blended(state.statistics, total, len(left), gain)
            found = maximize_family(
                self.family,
                statistics,
                effective_size=float(len(left)),
                present=state.parameters,
            )
        count_troubles(troubles, waiting_classes(self.family, found.waiting))
        following = replace(
            state,
            parameters=found.parameters,
            statistics=statistics,
            contributions=tuple(contributions) if keeps else (),
            chains=tuple(chains.get(i, state.chains[i]) for i in left),
            n_sweeps=tuple(state.n_sweeps[i] + (draws if i in chains else 0) for i in left),
            positions=tuple(state.positions[i] for i in left),
            fingerprints=tuple(state.fingerprints[i] for i in left),
            n_steps=number,
            n_learned=state.n_learned + len(records),
            troubles=troubles,
        )
        report = StepReport(
            state=following,
            observations=timed(records, begun),
            gain=gain,
            updated=True,
            waiting=len(found.waiting),
        )
        return report, failures

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


@dataclass(eq=False)
class _Taken:
    """The observations given to one call.

    Attributes
    ----------
    n_records : int
        Number of all records, including skipped ones.
    encoded : dict of int to dict of str to ndarray
        Encoded observations by position.
    held : dict of int to ndarray or dict of str to ndarray
        The observations as given, while there is no start.
    lost : list of FailedRecord
        Records that are skipped.
    """

    n_records: int = 0
    encoded: dict[int, Arrays] = field(default_factory=dict)
    held: dict[int, Any] = field(default_factory=dict)
    lost: list[FailedRecord] = field(default_factory=list)


def _require_same(taken: _Taken, state: SAEMState) -> None:
    """Refuse observations other than those of a run's chains."""
    where = ""
    if taken.n_records == state.n_records:
        found = dict(zip(state.positions, state.fingerprints, strict=True))
        other = [at for at, data in taken.encoded.items() if found[at] != fingerprint(data)]
        if not other:
            return
        where = f" (observation {other[0]}, counted from 0, is another)"
    raise ValueError(
        f"observations: these {taken.n_records} are not the {state.n_records} that the run's "
        f"chains belong to{where}; give the same ones in the same order, or make a new SAEM with "
        "parameters=saem.parameters."
    )


def _failure(error: Exception, position: int, number: int) -> Exception:
    kind = FloatingPointError if isinstance(error, ArithmeticError) else RuntimeError
    return kind(
        f"observation {position}, counted from 0, failed in iteration {number}: {error} The "
        "run stands as after the iteration before; to go on without the observation save it "
        "and load it with on_error='skip'."
    )


def _zeros(statistics: Mapping[str, np.ndarray]) -> Arrays:
    return {name: np.zeros(np.shape(value)) for name, value in statistics.items()}
