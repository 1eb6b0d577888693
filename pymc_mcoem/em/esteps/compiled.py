"""Base classes of compiled E-steps: density and statistics of a family, chains that continue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from pymc_mcoem.carlin_chib.pseudo_priors.base import N_STARTS, PseudoPriors
from pymc_mcoem.compiling.backends import pytensor_mode
from pymc_mcoem.density.class_density import as_argument
from pymc_mcoem.density.prior_starts import PriorStarts
from pymc_mcoem.em.burst import Burst, WeightedStatistics, adaptation_gains
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.burst_calls import BurstResult
from pymc_mcoem.em.esteps.class_fits import continued_chain, family_density, fit_to_keep, stored_fit

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.class_chains import ClassDraws
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriorRule
    from pymc_mcoem.em.family import Family

__all__ = ["ChainEStep", "DensityEStep", "SweepEStep"]

type Arrays = Mapping[str, np.ndarray]


class DensityEStep(ABC):
    """A compiled E-step that evaluates the family's density and statistics."""

    def __init__(self, family: Family, backend: str | None, *, needs_latents: bool = True) -> None:
        self.mode = pytensor_mode(backend)
        self.density = family_density(family, needs_latents=needs_latents)
        self.statistics = WeightedStatistics(family, self.density, mode=self.mode)

    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the adaptation that a run starts with; empty if nothing adapts."""
        return {}

    def __call__(
        self,
        data: Arrays,
        parameters: Arrays,
        rng: np.random.Generator,
        state: Arrays,
        *,
        draws: int,
        tune: int,
    ) -> EStepResult:
        """Return the mean statistics of one observation; see `CompiledEStep`."""
        return self._run_e_step(self._values(data, parameters), rng, state, draws, tune)

    def class_probability(
        self,
        data: Arrays,
        parameters: Arrays,
        rng: np.random.Generator,
        *,
        draws: int,
        tune: int,
    ) -> np.ndarray:
        """Return class probabilities, ``(n_classes,)``; see `CompiledClassWeights`."""
        return self._class_weights(self._values(data, parameters), rng, draws, tune)

    def _values(self, data: Arrays, parameters: Arrays) -> dict[str, np.ndarray]:
        """Return the values of the density's inputs in the form for compiled functions."""
        given = {**parameters, **data}
        return {
            name: as_argument(given[name], symbol.dtype)
            for name, symbol in self.density.data_inputs.items()
        }

    @abstractmethod
    def _run_e_step(
        self, values: Arrays, rng: np.random.Generator, state: Arrays, draws: int, tune: int
    ) -> EStepResult: ...

    @abstractmethod
    def _class_weights(
        self, values: Arrays, rng: np.random.Generator, draws: int, tune: int
    ) -> np.ndarray: ...


class ChainEStep[Drawn: (Sweeps, ClassDraws)](DensityEStep):
    """A compiled E-step with Markov chains, whose starts and moves depend on pseudo-priors.

    Attributes
    ----------
    initial_log_step : ndarray of shape (n_classes,)
        Logarithms of the step sizes that a run starts with; set by derived classes.
    """

    initial_log_step: np.ndarray

    def __init__(self, family: Family, backend: str | None, rule: PseudoPriorRule) -> None:
        super().__init__(family, backend)
        self.pseudo_priors = rule.compile(self.density, family.geometry, self.mode)

    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the step sizes that a run starts with: ``log_step`` of shape (n_classes,)."""
        return {"log_step": self.initial_log_step.copy()}

    def resume(
        self,
        data: Arrays,
        parameters: Arrays,
        rng: np.random.Generator,
        chain: Arrays,
        *,
        gains: np.ndarray,
        refit: bool,
        keep_fit: bool,
    ) -> EStepResult:
        """Continue the chain of an observation, or start it; see `CompiledChains.resume`.

        A chain consists of its position and ``log_step`` (n_classes,) and, with `keep_fit`, of
        the pseudo-priors, ``2 n_classes n_latents**2`` numbers.
        """
        values = self._values(data, parameters)
        chain = continued_chain(chain, **self._place_shapes(), log_step=self.initial_log_step.shape)
        fitted = None if refit else stored_fit(chain)
        pseudo_priors = self.pseudo_priors(values, rng) if fitted is None else fitted
        log_step = chain.get("log_step", self.initial_log_step)
        found = self._sweeps(rng, chain, log_step, pseudo_priors, gains, values)
        result = self._summed(pseudo_priors, found, 0, rng, values)
        following = {**self._place(found), "log_step": np.array(found.log_step)}
        if keep_fit:
            following |= fit_to_keep(pseudo_priors)
        return replace(result, chain=following)

    def _run_e_step(
        self, values: Arrays, rng: np.random.Generator, state: Arrays, draws: int, tune: int
    ) -> EStepResult:
        pseudo_priors, found = self._run(values, rng, state["log_step"], draws, tune)
        return self._moved(self._summed(pseudo_priors, found, tune, rng, values))

    @staticmethod
    def _moved(result: EStepResult) -> EStepResult:
        """Return a result with a trouble if its chain did not move."""
        if result.acceptance == 0.0:
            result.troubles["chain did not move within its class"] = 1
        return result

    def _run(
        self,
        values: Arrays,
        rng: np.random.Generator,
        log_step: np.ndarray,
        draws: int,
        tune: int,
    ) -> tuple[PseudoPriors, Drawn]:
        pseudo_priors = self.pseudo_priors(values, rng)
        gains = adaptation_gains(tune + draws, tune)
        return pseudo_priors, self._sweeps(rng, {}, log_step, pseudo_priors, gains, values)

    @abstractmethod
    def _place_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays that `_place` returns."""

    @abstractmethod
    def _place(self, found: Drawn) -> dict[str, np.ndarray]:
        """Return the last position of a chain."""

    @abstractmethod
    def _sweeps(
        self,
        rng: np.random.Generator,
        chain: Arrays,
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        gains: np.ndarray,
        values: Arrays,
    ) -> Drawn:
        """Run ``len(gains)`` sweeps from where a chain is, or from draws of the pseudo-priors."""

    @abstractmethod
    def _summed(
        self,
        pseudo_priors: PseudoPriors,
        found: Drawn,
        tune: int,
        rng: np.random.Generator,
        values: Arrays,
    ) -> EStepResult:
        """Return mean statistics over the sweeps after `tune`."""


class SweepEStep(ChainEStep[Sweeps]):
    """A compiled E-step whose chain draws class index and latents in turn.

    Attributes
    ----------
    burst : Burst
        Set by derived classes, like `initial_log_step`.
    name : str
        Name of the E-step in error messages.
    """

    burst: Burst
    name = "burst"
    _prior: PriorStarts | None = None

    def _place_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"class_index": (), "position": (self.density.n_latents,)}

    def _place(self, found: Sweeps) -> dict[str, np.ndarray]:
        return {
            "class_index": np.asarray(found.class_index[-1], dtype=np.int64),
            "position": found.position[-1].copy(),
        }

    def _chain_start(
        self, pseudo_priors: PseudoPriors, rng: np.random.Generator
    ) -> tuple[int, np.ndarray]:
        """Draw the start of a chain: a class by evidence, and latents from its pseudo-prior."""
        return pseudo_priors.draw_start(rng)

    def _begin(
        self,
        rng: np.random.Generator,
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        gains: np.ndarray,
        values: Arrays,
    ) -> Sweeps:
        """Run a burst from draws of pseudo-priors, which may reach beyond the density's support.

        If a sweep finds no density, another start is drawn, as many times as in `CarlinChib` and
        with the same random numbers. After that, starts are drawn from the prior: the search for a
        mode may have started where its class has no density, and its pseudo-prior may have none
        either.
        """
        start = self._chain_start(pseudo_priors, rng)
        before = rng.bit_generator.state
        found = self.burst(rng, start, log_step, pseudo_priors, gains, values)
        if _has_density(found):
            return found
        rng.bit_generator.state = before
        # from here on, a single sweep shows whether there is density
        for _ in range(N_STARTS - 1):
            tried = self.burst(rng, start, log_step, pseudo_priors, gains[:1], values)
            if _has_density(tried):
                rng.bit_generator.state = before
                break
            start = self._chain_start(pseudo_priors, rng)
            before = rng.bit_generator.state
        else:
            if self._prior is None:
                self._prior = PriorStarts(self.density)
            for drawn in self._prior(rng, self.density.arguments(values)):
                before = rng.bit_generator.state
                tried = self.burst(rng, drawn, log_step, pseudo_priors, gains[:1], values)
                if _has_density(tried):
                    start = drawn
                    rng.bit_generator.state = before
                    break
        found = self.burst(rng, start, log_step, pseudo_priors, gains, values)
        if not _has_density(found):
            raise FloatingPointError(
                f"{self.name}: the log-density is not finite for any class at some sweep; check "
                "the observation and the parameters, which lie where the model has no density."
            )
        return found

    def _sweeps(
        self,
        rng: np.random.Generator,
        chain: Arrays,
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        gains: np.ndarray,
        values: Arrays,
    ) -> Sweeps:
        if chain:
            start = int(chain["class_index"]), chain["position"]
            found = self.burst(rng, start, log_step, pseudo_priors, gains, values)
            # new parameters may have moved the edge of the support past the chain
            if _has_density(found):
                return found
        return self._begin(rng, log_step, pseudo_priors, gains, values)

    def _summed(
        self,
        pseudo_priors: PseudoPriors,
        found: Sweeps,
        tune: int,
        rng: np.random.Generator,
        values: Arrays,
    ) -> EStepResult:
        statistics = self._mean_statistics(found, slice(tune, None), values)
        evidence, troubles = pseudo_priors.log_evidence, pseudo_priors.troubles
        return self._result(BurstResult(statistics, found, evidence, troubles), tune)

    @staticmethod
    def _result(burst: BurstResult, tune: int) -> EStepResult:
        """Return the result of a burst, whose draws are those after tuning."""
        # SciPy's logsumexp takes a thirtieth of a short burst; pilot moments have nan
        with np.errstate(invalid="ignore"):
            total = float(np.logaddexp.reduce(burst.log_evidence))
        return EStepResult(
            burst.statistics,
            class_index=burst.found.class_index[tune:],
            acceptance=float(np.mean(burst.found.acceptance[tune:])),
            log_evidence=total,
            troubles=dict(burst.troubles),
            state={"log_step": burst.found.log_step},
        )

    def _mean_statistics(
        self, found: Sweeps, drawn: slice, values: Arrays
    ) -> dict[str, np.ndarray]:
        indices = found.class_index[drawn]
        weights = np.full(len(indices), 1.0 / len(indices))
        return self.statistics(indices, found.position[drawn], weights, values)

    def _class_weights(
        self, values: Arrays, rng: np.random.Generator, draws: int, tune: int
    ) -> np.ndarray:
        """Average the probabilities of the class index over the sweeps after tuning.

        This is the Rao-Blackwell form of the share of visits, at no cost.
        """
        _, found = self._run(values, rng, self.initial_log_step, draws, tune)
        mean: np.ndarray = softmax(found.log_weight[tune:], axis=1).mean(axis=0)
        return mean


def _has_density(found: Sweeps) -> bool:
    """Return whether there was a class with density at every sweep."""
    return bool(np.isfinite(found.log_weight.max(axis=1)).all())
