"""Base class of bursts that take many observations in one call, if settings allow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.compiling.backends import known_mode, uses_jax
from pymc_mcoem.em.burst import adaptation_gains
from pymc_mcoem.em.esteps.burst_calls import BurstCall, BurstResult, by_kind
from pymc_mcoem.em.esteps.class_fits import continued_chain, fit_to_keep, stored_fit
from pymc_mcoem.em.esteps.compiled import SweepEStep
from pymc_mcoem.interrupts import require_own_fault

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStepResult
    from pymc_mcoem.em.esteps.batch_jax import LockstepBursts
    from pymc_mcoem.em.family import Family

__all__ = ["TogetherEStep", "allow_shared_calls"]

type Arrays = Mapping[str, np.ndarray]


def allow_shared_calls(settings: Any) -> bool:
    """Return whether the settings of a burst allow many observations in one call.

    They must be JAX, the pseudo-priors `Laplace`, and the moves `RandomWalk` or `Hamiltonian`.
    """
    move = settings.within_class
    return (
        settings.backend is not None
        and uses_jax(known_mode(settings.backend))
        # subclasses may search or move otherwise
        and type(settings.pseudo_priors) is Laplace
        and type(move) in (RandomWalk, Hamiltonian)
        and move.noise_size(1) > 0
        and not settings.rao_blackwell
    )


class TogetherEStep(SweepEStep):
    """A compiled burst that takes many observations in one call, if its settings allow it.

    Attributes
    ----------
    family : Family
        Set by derived classes, like ``settings``.
    """

    settings: Any
    family: Family

    @cached_property
    def in_step(self) -> LockstepBursts | None:
        """The bursts in lockstep, made at first use; None if settings do not allow them."""
        density = self.density
        if (
            not allow_shared_calls(self.settings)
            or density.active is not None
            or density.other_values
        ):
            return None
        return self.lockstep_bursts(self.settings.at_once)

    def lockstep_bursts(self, at_once: int | None = None, **options: Any) -> LockstepBursts:
        """Make the bursts in lockstep, with options of `LockstepBursts`."""
        # importing JAX takes a second, and many never need it
        from pymc_mcoem.em.esteps.batch_jax import LockstepBursts

        settings, family = self.settings, self.family
        # searches start from the declared parameters, not from those learned since
        with strict_arithmetic(), family.as_declared():
            search, starts = settings.pseudo_priors.compile_search(
                self.density, family.geometry, self.mode
            )
            return LockstepBursts(
                self.density,
                search,
                starts,
                settings.within_class,
                family.statistics,
                family.observation,
                at_once=at_once,
                dtype=settings.dtype,
                **options,
            )

    def run_all(
        self,
        data: Sequence[Arrays],
        parameters: Arrays,
        rngs: Sequence[np.random.Generator],
        state: Arrays,
        *,
        draws: int,
        tune: int,
    ) -> list[EStepResult | Exception]:
        """Return the mean statistics of many observations; see `CompiledTogether.run_all`."""
        gains = adaptation_gains(tune + draws, tune)
        calls = [
            BurstCall(self._values(each, parameters), rng, state["log_step"], gains)
            for each, rng in zip(data, rngs, strict=True)
        ]

        def alone(at: int) -> EStepResult:
            one = calls[at]
            return super(TogetherEStep, self)._run_e_step(one.values, one.rng, state, draws, tune)

        def from_burst(at: int, burst: BurstResult) -> EStepResult:
            return self._moved(self._result(burst, tune))

        return self._all(calls, alone, from_burst, tune)

    def resume_all(
        self,
        data: Sequence[Arrays],
        parameters: Arrays,
        rngs: Sequence[np.random.Generator],
        chains: Sequence[Arrays],
        *,
        gains: Sequence[np.ndarray],
        refit: Sequence[bool],
        keep_fit: bool,
    ) -> list[EStepResult | Exception]:
        """Continue the chains of many observations; see `CompiledTogether.resume_all`."""
        shapes = {**self._place_shapes(), "log_step": self.initial_log_step.shape}
        calls = []
        for each, rng, chain, gain, again in zip(data, rngs, chains, gains, refit, strict=True):
            one = BurstCall(self._values(each, parameters), rng, self.initial_log_step, gain)
            if own := continued_chain(chain, **shapes):
                start = int(own["class_index"]), own["position"]
                fit = None if again else stored_fit(own)
                one = replace(one, log_step=own["log_step"], start=start, fit=fit)
            calls.append(one)

        def alone(at: int) -> EStepResult:
            return self.resume(
                data[at],
                parameters,
                rngs[at],
                chains[at],
                gains=gains[at],
                refit=refit[at],
                keep_fit=keep_fit,
            )

        def from_burst(at: int, burst: BurstResult) -> EStepResult:
            found, fit = burst.found, calls[at].fit or burst.fit
            chain = {**self._place(found), "log_step": np.array(found.log_step)}
            if fit is not None and keep_fit:
                chain |= fit_to_keep(fit)
            return replace(self._result(burst, 0), chain=chain)

        return self._all(calls, alone, from_burst, 0, keeps_fit=keep_fit)

    def class_probability_all(
        self,
        data: Sequence[Arrays],
        parameters: Arrays,
        rngs: Sequence[np.random.Generator],
        *,
        draws: int,
        tune: int,
    ) -> list[np.ndarray | Exception]:
        """Return class probabilities of many observations, ``(n_classes,)`` each."""
        gains = adaptation_gains(tune + draws, tune)
        calls = [
            BurstCall(self._values(each, parameters), rng, self.initial_log_step, gains)
            for each, rng in zip(data, rngs, strict=True)
        ]

        def alone(at: int) -> np.ndarray:
            return self._class_weights(calls[at].values, rngs[at], draws, tune)

        def from_burst(at: int, burst: BurstResult) -> np.ndarray:
            log_weight = burst.found.log_weight[tune:]
            return np.asarray(softmax(log_weight, axis=1).mean(axis=0))

        return self._all(calls, alone, from_burst, tune, summed=False)

    def _run_e_step(
        self, values: Arrays, rng: np.random.Generator, state: Arrays, draws: int, tune: int
    ) -> EStepResult:
        if self.settings.dtype == "float64":
            return super()._run_e_step(values, rng, state, draws, tune)
        # only bursts in lockstep have another precision
        (found,) = self.run_all([values], {}, [rng], state, draws=draws, tune=tune)
        if isinstance(found, Exception):
            raise found
        return found

    def _all[Found](
        self,
        calls: Sequence[BurstCall],
        alone: Callable[[int], Found],
        from_burst: Callable[[int, BurstResult], Found],
        tune: int,
        **options: bool,
    ) -> list[Found | Exception]:
        """Run the bursts in lockstep, and one by one those that have to be run alone."""
        begun = [each.rng.bit_generator.state for each in calls]
        bursts: Sequence[BurstResult | None] = [None] * len(calls)
        if (in_step := self.in_step) is not None:
            bursts = by_kind(
                [(each.fit is None, len(each.gains)) for each in calls],
                lambda some: in_step([calls[at] for at in some], tune, **options),
            )
        answers: list[Found | Exception] = []
        for at, each in enumerate(bursts):
            try:
                if each is None:
                    calls[at].rng.bit_generator.state = begun[at]
                answers.append(alone(at) if each is None else from_burst(at, each))
            except Exception as error:
                require_own_fault(error)
                answers.append(error)
        return answers
