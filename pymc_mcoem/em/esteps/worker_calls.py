"""Calls of a compiled E-step, as functions that a worker can import.

Workers also check the statistics, which takes longer than everything else that a driver with
workers does for an observation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.em.addresses import Address
from pymc_mcoem.em.checks import check_shapes, check_statistics
from pymc_mcoem.em.contributions import added
from pymc_mcoem.em.esteps.base import CompiledChains, CompiledTogether
from pymc_mcoem.em.esteps.burst_calls import by_kind
from pymc_mcoem.em.esteps.carlin_chib import CompiledCarlinChibBurst
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.em.family import CLASS_WEIGHT
from pymc_mcoem.interrupts import require_own_fault
from pymc_mcoem.runs.workers import Failed, Order

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import CompiledEStep, EStep, EStepResult
    from pymc_mcoem.em.esteps.carlin_chib import PosteriorChain
    from pymc_mcoem.em.family import Family

__all__ = ["CheckedEStep", "joined", "keep_draws", "simulate", "summed", "visit"]

type Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CheckedEStep:
    """An E-step compiled for a family, and the family, which checks statistics."""

    family: Family
    e_step: CompiledEStep

    @classmethod
    def of(cls, family: Family, settings: EStep) -> CheckedEStep:
        """Compile an E-step, or take it from the cache."""
        return cls(family, compiled_for(family, settings))

    def encoded(self, data: Arrays | Address) -> Arrays:
        """Return an encoded observation, after reading it if only its address is given."""
        return self.family.encode(data.read()) if isinstance(data, Address) else data

    def checked(self, result: EStepResult) -> EStepResult:
        """Return `result` after checking its statistics and its state."""
        check_statistics(self.family, result.statistics)
        for name, value in result.state.items():
            if not np.isfinite(value).all():
                raise FloatingPointError(
                    f"state: {name}, which the E-step hands on to the next observation, holds "
                    "values that are not finite; the observation is not learned."
                )
        return result


def simulate(
    checked_e_step: CheckedEStep,
    data: Arrays | Address,
    parameters: Arrays,
    rng: np.random.Generator,
    state: Arrays | None,
    draws: int,
    tune: int,
) -> EStepResult:
    """Return the statistics of one observation, encoded or given by its address.

    `state` is None in the first step. A state of another E-step, with which the run was saved, is
    not used.
    """
    e_step, begun = checked_e_step.e_step, _begun(checked_e_step, state)
    data = checked_e_step.encoded(data)
    return checked_e_step.checked(
        e_step(data, dict(parameters), rng, begun, draws=draws, tune=tune)
    )


def _begun(checked_e_step: CheckedEStep, state: Arrays | None) -> dict[str, np.ndarray]:
    """Return the state to begin with."""
    begun = checked_e_step.e_step.initial_state()
    if state is not None and _array_shapes(state) == _array_shapes(begun):
        return dict(state)
    return begun


def _array_shapes(state: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(value) for name, value in state.items()}


def keep_draws(
    checked_e_step: CheckedEStep,
    data: Arrays,
    parameters: Arrays,
    rng: np.random.Generator,
    draws: int,
    tune: int,
) -> PosteriorChain:
    """Return draws of the class and the latents of one encoded observation."""
    e_step = checked_e_step.e_step
    assert isinstance(e_step, CompiledCarlinChibBurst)
    return e_step.chain(data, parameters, rng, draws=draws, tune=tune)


def visit(
    checked_e_step: CheckedEStep,
    data: Arrays,
    parameters: Arrays,
    rng: np.random.Generator,
    chain: Arrays,
    gains: np.ndarray,
    refit: bool,
    keep_fit: bool,
) -> EStepResult:
    """Return the statistics of one encoded observation, with `chain` for the next visit.

    The other arguments are those of `CompiledChains.resume`. An E-step without chains makes as many
    draws as there are gains.
    """
    e_step = checked_e_step.e_step
    if isinstance(e_step, CompiledChains):
        options: dict[str, Any] = {"gains": gains, "refit": refit, "keep_fit": keep_fit}
        return checked_e_step.checked(e_step.resume(data, parameters, rng, chain, **options))
    result = simulate(checked_e_step, data, parameters, rng, chain or None, len(gains), 0)
    return replace(result, chain=result.state)


def joined(orders: Sequence[Order]) -> Order:
    """Return several calls of `simulate`, of `visit` or of `keep_draws` as one.

    It returns a list with the result of each call, or `Failed` in its place.
    """
    arguments = tuple(order.arguments for order in orders)
    return Order(_TOGETHER[orders[0].function], (arguments,), size=len(orders))


def summed(orders: Sequence[Order]) -> Order:
    """Return several calls of `simulate` as one that adds their statistics.

    It returns a list with the result of each call; see `EStepResult.summed`. The first failure
    ends the list, with `Failed` in its place, because later observations are then simulated anew
    with other generators.
    """
    arguments = tuple(order.arguments for order in orders)
    return Order(_simulate_and_add, (arguments,), size=len(orders))


def _simulate_and_add(
    checked_e_step: CheckedEStep, arguments: Sequence[tuple[Any, ...]]
) -> list[EStepResult | Failed]:
    """Make calls of `simulate` one after another, and add their statistics."""
    results: list[EStepResult] = []
    total: dict[str, np.ndarray] = {}
    failed: list[Failed] = []
    for each in arguments:
        try:
            result = simulate(checked_e_step, *each)
            check_shapes(result.statistics, total)
        except Exception as error:
            require_own_fault(error)
            failed.append(Failed(error, made=True))
            break
        total = added(total, result.statistics)
        weight = {CLASS_WEIGHT: result.statistics[CLASS_WEIGHT]}
        results.append(replace(result, statistics=weight, summed={}))
    if results:
        results[-1] = replace(results[-1], summed=total)
    return [*results, *failed]


def _simulate_all(
    checked_e_step: CheckedEStep, arguments: Sequence[tuple[Any, ...]]
) -> list[EStepResult | Failed]:
    """Make calls of `simulate`, those with the same θ together."""
    e_step = checked_e_step.e_step
    assert isinstance(e_step, CompiledTogether)

    def run(some: list[int]) -> list[EStepResult | Exception]:
        data, parameters, rngs, states, draws, tune = zip(
            *(arguments[at] for at in some), strict=True
        )
        return e_step.run_all(
            [checked_e_step.encoded(each) for each in data],
            dict(parameters[0]),
            rngs,
            _begun(checked_e_step, states[0]),
            draws=draws[0],
            tune=tune[0],
        )

    kinds = [(_content(θ), _content(state), *lengths) for _, θ, _, state, *lengths in arguments]
    return [_checked(checked_e_step, found) for found in by_kind(kinds, run)]


def _visit_all(
    checked_e_step: CheckedEStep, arguments: Sequence[tuple[Any, ...]]
) -> list[EStepResult | Failed]:
    """Make calls of `visit`, those with the same θ together."""
    e_step = checked_e_step.e_step
    assert isinstance(e_step, CompiledTogether)

    def resume(some: list[int]) -> list[EStepResult | Exception]:
        own = zip(*(arguments[at] for at in some), strict=True)
        data, parameters, rngs, chains, gains, refit, keep_fit = own
        options: dict[str, Any] = {"gains": gains, "refit": refit, "keep_fit": keep_fit[0]}
        return e_step.resume_all(data, parameters[0], rngs, chains, **options)

    kinds = [_content(θ) for _, θ, *_ in arguments]
    return [_checked(checked_e_step, found) for found in by_kind(kinds, resume)]


def _keep_all(
    checked_e_step: CheckedEStep, arguments: Sequence[tuple[Any, ...]]
) -> list[PosteriorChain | Failed]:
    """Make calls of `keep_draws` for the same θ together."""
    e_step = checked_e_step.e_step
    assert isinstance(e_step, CompiledCarlinChibBurst)
    data, parameters, rngs, draws, tune = zip(*arguments, strict=True)
    found = e_step.chain_all(data, parameters[0], rngs, draws=draws[0], tune=tune[0])
    return [Failed(each, made=True) if isinstance(each, Exception) else each for each in found]


#: Functions that make several calls together, by the function that makes one.
_TOGETHER: dict[Callable[..., Any], Callable[..., Any]] = {
    simulate: _simulate_all,
    visit: _visit_all,
    keep_draws: _keep_all,
}


def _checked(checked_e_step: CheckedEStep, result: EStepResult | Exception) -> EStepResult | Failed:
    """Return a valid result, or `Failed`."""
    if isinstance(result, Exception):
        return Failed(result, made=True)
    try:
        return checked_e_step.checked(result)
    except Exception as error:
        require_own_fault(error)
        return Failed(error, made=True)


def _content(arrays: Arrays | None) -> Hashable:
    """Return a key that is equal for equal arrays."""
    if arrays is None:
        return None
    return tuple((name, np.asarray(value).tobytes()) for name, value in arrays.items())
