"""The recursion of online EM: a mini-batch enters the statistics, and an M-step follows if due."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pymc_mcoem.em.contributions import blended
from pymc_mcoem.em.maximization import (
    Maximized,
    count_troubles,
    maximize_family,
    revived_classes,
    waiting_classes,
)
from pymc_mcoem.em.run_state import ObservationRecord, OnlineSettings, OnlineState, StepReport
from pymc_mcoem.em.schedules import update_is_due

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStepResult
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labeling import Arrays

__all__ = ["followed", "maximized"]

#: Number of observations per class up to which a waiting class does not count as trouble.
UNTROUBLED = 25
#: The trouble that a run with `Revival` counts if its E-step gives no evidence.
NO_EVIDENCE = "no evidence from the E-step, so no class can be revived"


def followed(
    family: Family,
    settings: OnlineSettings,
    state: OnlineState,
    records: list[ObservationRecord],
    results: list[EStepResult],
    total: Arrays,
    gain: float,
    *,
    last: bool,
) -> StepReport[OnlineState]:
    """Make the stochastic approximation and, if due, the M-step (label ``alg:MCoEM``).

    Parameters
    ----------
    family : Family
    settings : OnlineSettings
    state : OnlineState
        State before the mini-batch, whose observations are the first of the pending ones.
    records, results : list
        Record and E-step result of each observation.
    total : dict of str to ndarray
        The sum of their statistics.
    gain : float
        ϱ_n of the step.
    last : bool
        Whether the M-step is made in any case.

    Raises
    ------
    Exception
        Any exception of the M-step or of a custom schedule.
    """
    size = len(records)
    running = blended(state.statistics, total, size, gain)
    troubles = dict(state.troubles)
    revival, fit = settings.revival, state.fit
    if revival is not None:
        revived = revival.after(running, fit, results, gain=gain, n_learned=state.n_learned + size)
        running, fit = revived.statistics, revived.record
        count_troubles(troubles, revived_classes(family, revived.classes))
        if not any(np.isfinite(result.log_evidence) for result in results):
            count_troubles(troubles, {NO_EVIDENCE: 1})
    for result in results:
        count_troubles(troubles, result.troubles)
    after = replace(
        state,
        statistics=running,
        fit=fit,
        # A mini-batch starts from one adaptation; that of its last observation is kept.
        e_step_state={name: np.array(value) for name, value in results[-1].state.items()},
        pending=state.pending[size:],
        n_learned=state.n_learned + size,
        n_steps=state.n_steps + 1,
        inverse_effective_size=((1 - gain) ** 2 * state.inverse_effective_size + gain**2 / size),
        troubles=troubles,
    )
    due = last or update_is_due(settings.update_schedule, state.n_learned, after.n_learned)
    waiting: tuple[int, ...] = ()
    if due:
        found = maximized(family, settings, after)
        waiting = found.waiting
        if after.n_learned >= UNTROUBLED * family.n_classes:
            count_troubles(troubles, waiting_classes(family, waiting))
        after = replace(after, parameters=found.parameters, n_updates=state.n_updates + 1)
    return StepReport(
        state=after.averaged(settings.average_from),
        observations=tuple(records),
        gain=gain,
        updated=due,
        waiting=len(waiting),
    )


def maximized(family: Family, settings: OnlineSettings, state: OnlineState) -> Maximized:
    """Return the M-step's parameters and the classes that wait."""
    return maximize_family(
        family,
        state.statistics or {},
        effective_size=state.effective_size,
        present=state.parameters,
        # with gains 1/n the means weigh all steps equally
        share=min(1.0, 1.0 / (settings.gain(state.n_steps) * state.n_steps)),
    )
