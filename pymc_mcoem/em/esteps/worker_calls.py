"""Calls of a compiled E-step, as functions that a worker can import.

Workers also check the statistics, which takes longer than everything else that a driver with
workers does for an observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pymc_mcoem.em.checks import check_statistics
from pymc_mcoem.em.esteps.base import CompiledChains
from pymc_mcoem.em.esteps.carlin_chib import CompiledCarlinChibBurst
from pymc_mcoem.em.esteps.compiled_cache import compiled_for

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import CompiledEStep, EStep, EStepResult
    from pymc_mcoem.em.esteps.carlin_chib import PosteriorChain
    from pymc_mcoem.em.family import Family

__all__ = ["Explainer", "Visit", "keep_draws", "simulate", "visit"]

type Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Explainer:
    """An E-step compiled for a family, and the family, which checks statistics."""

    family: Family
    e_step: CompiledEStep

    @classmethod
    def of(cls, family: Family, settings: EStep) -> Explainer:
        """Compile an E-step, or take it from the cache."""
        return cls(family, compiled_for(family, settings))

    def checked(self, result: EStepResult) -> EStepResult:
        """Return `result` after checking its statistics and its state.

        Raises
        ------
        ValueError, FloatingPointError
            If one is invalid; see `check_statistics`.
        """
        check_statistics(self.family, result.statistics)
        for name, value in result.state.items():
            if not np.isfinite(value).all():
                raise FloatingPointError(
                    f"state: {name}, which the E-step hands on to the next observation, holds "
                    "values that are not finite; the observation is not learned."
                )
        return result


def simulate(
    explainer: Explainer,
    data: Arrays,
    parameters: Arrays,
    rng: np.random.Generator,
    state: Arrays | None,
    draws: int,
    tune: int,
) -> EStepResult:
    """Return the statistics of one encoded observation.

    `state` is None in the first step. A state of another E-step, with which the run was saved, is
    not used.
    """
    e_step = explainer.e_step
    begun = e_step.initial_state()
    if state is not None and _array_shapes(state) == _array_shapes(begun):
        begun = dict(state)
    return explainer.checked(e_step(data, dict(parameters), rng, begun, draws=draws, tune=tune))


def _array_shapes(state: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(value) for name, value in state.items()}


def keep_draws(
    explainer: Explainer,
    data: Arrays,
    parameters: Arrays,
    rng: np.random.Generator,
    draws: int,
    tune: int,
) -> PosteriorChain:
    """Return draws of the class and the latents of one encoded observation."""
    e_step = explainer.e_step
    assert isinstance(e_step, CompiledCarlinChibBurst)
    return e_step.chain(data, parameters, rng, draws=draws, tune=tune)


@dataclass(frozen=True)
class Visit:
    """Settings of a visit to an observation, which continues its chain.

    Attributes
    ----------
    draws : int
        Number of sweeps to make now.
    done : int
        Number of sweeps made before.
    refit_every : int
        Number of visits until pseudo-priors are fitted again.
    adapts : bool
        Whether the moves within a class adapt.
    """

    draws: int
    done: int
    refit_every: int
    adapts: bool


def visit(
    explainer: Explainer,
    data: Arrays,
    parameters: Arrays,
    rng: np.random.Generator,
    chain: Arrays,
    how: Visit,
) -> EStepResult:
    """Return the statistics of one encoded observation, with `chain` for the next visit.

    Parameters
    ----------
    explainer, data, parameters, rng
        As for `simulate`.
    chain : mapping of str to ndarray
        `chain` of the last visit's result; empty at the first visit.
    how : Visit
    """
    if isinstance(explainer.e_step, CompiledChains):
        numbers = how.done + np.arange(1, how.draws + 1)
        return explainer.checked(
            explainer.e_step.resume(
                data,
                parameters,
                rng,
                chain,
                gains=2.0 / np.sqrt(numbers) if how.adapts else np.zeros(how.draws),
                refit=(how.done // how.draws) % how.refit_every == 0,
                keep_fit=how.refit_every > 1,
            )
        )
    result = simulate(explainer, data, parameters, rng, chain or None, how.draws, 0)
    return replace(result, chain=result.state)
