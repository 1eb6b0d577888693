"""Compiled rules that weigh the classes of an observation, and calls that a worker can make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.classification.expected_likelihood import (
    CompiledExpectedLikelihood,
    ExpectedLikelihood,
)
from pymc_mcoem.classification.merged_classes import merged_mixture
from pymc_mcoem.classification.screening import ScreenedClassWeights
from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.em.esteps.base import CompiledClassWeights
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from pymc_mcoem.em.esteps.posterior_mode import PosteriorMode
from pymc_mcoem.em.esteps.together import TogetherEStep
from pymc_mcoem.interrupts import require_own_fault
from pymc_mcoem.runs.failed_records import named
from pymc_mcoem.runs.workers import Failed, Order

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStep
    from pymc_mcoem.em.family import Family

__all__ = [
    "Unclassified",
    "attempt",
    "check_sweeps",
    "checked",
    "compile_class_weights",
    "compile_expected_likelihood",
    "generator_of",
    "joined",
]

type Arrays = Mapping[str, np.ndarray]


def check_sweeps(draws: int, tune: int) -> None:
    """Check numbers of sweeps."""
    if draws < 1 or tune < 0:
        raise ValueError(
            f"draws is {draws} and tune {tune}; give at least one draw and no negative tune."
        )


def generator_of(random_seed: int | Sequence[int], index: int) -> np.random.Generator:
    """Return the generator of observation `index`, counted from 0."""
    return np.random.default_rng(np.random.SeedSequence(random_seed, spawn_key=(index,)))


def compile_class_weights(
    family: Any, e_step: EStep | None = None, screening: float = 0.0
) -> CompiledClassWeights:
    """Compile posterior class probabilities, with hopeless classes excluded on request.

    An E-step without sweeps or draws is not screened, because finding hopeless classes costs as
    much as the E-step.
    """
    if e_step is None:
        e_step = CarlinChibBurst()
    if screening and not _draws_nothing(e_step):
        with strict_arithmetic():
            compile_for = partial(_compile_for, family, e_step)
            return ScreenedClassWeights(family, compile_for, screening, _search_of(e_step))
    return _compile_for(family, e_step, family.n_classes)


def _draws_nothing(e_step: EStep) -> bool:
    """Return whether an E-step finds class probabilities without sweeps or draws."""
    if isinstance(e_step, LaplaceGaussian):
        return not e_step.importance
    return isinstance(e_step, FixedLatents | PosteriorMode)


def _search_of(e_step: EStep) -> Laplace:
    """Return the mode search that an E-step begins with; a thorough one if it has none."""
    for name in ("search", "pseudo_priors"):
        search = getattr(e_step, name, None)
        if isinstance(search, Laplace):
            return search
    return Laplace(race=None)


def _compile_for(family: Any, e_step: EStep, n_classes: int) -> CompiledClassWeights:
    """Compile class weights for a family with `n_classes` of the classes."""
    if n_classes != family.n_classes:
        family = merged_mixture(family, n_classes)
    compiled = compiled_for(family, e_step)
    if not isinstance(compiled, CompiledClassWeights):
        raise TypeError(
            f"e_step: {e_step!r} gives no class probabilities; give CarlinChibBurst() or "
            "LaplaceGaussian()."
        )
    return compiled


def compile_expected_likelihood(
    family: Family, log_label_weight: np.ndarray
) -> CompiledClassWeights:
    """Compile the paper's rule, with the logarithm of the label's weight for each class."""
    return _ExpectedLikelihoods(compiled_for(family, ExpectedLikelihood()), log_label_weight)


@dataclass(frozen=True)
class _ExpectedLikelihoods:
    """Each class's expected likelihood divided by the sum of all."""

    compiled: CompiledExpectedLikelihood
    log_label_weight: np.ndarray

    def class_probability(
        self,
        data: Arrays,
        parameters: Arrays,
        rng: np.random.Generator,
        *,
        draws: int,
        tune: int,
    ) -> np.ndarray:
        scores = self.compiled.log_scores(data, parameters, rng, draws=draws, tune=tune)
        return np.asarray(softmax(scores + self.log_label_weight))


@dataclass(frozen=True)
class Unclassified:
    """Placeholder for class probabilities that could not be computed, with the reason."""

    reason: str


def checked(
    rule: CompiledClassWeights,
    index: int,
    data: Arrays,
    parameters: Arrays,
    random_seed: int | Sequence[int],
    draws: int,
    tune: int,
) -> np.ndarray:
    """Return the class probabilities of observation `index`, ``(n_classes,)``.

    Raises
    ------
    FloatingPointError, RuntimeError
        If they are not finite or computing them fails. The error names the observation.
    """
    rng = generator_of(random_seed, index)
    try:
        found = rule.class_probability(data, parameters, rng, draws=draws, tune=tune)
        _require_finite(found)
    except Exception as error:
        require_own_fault(error)
        raise _error_of(index, error) from error
    return found


def joined(orders: Sequence[Order]) -> Order:
    """Return several calls of `checked`, or of `attempt`, as one.

    It returns a list with the result of each call, or `Failed` in its place.
    """
    skips = orders[0].function is attempt
    return Order(_checked_all, (skips, tuple(order.arguments for order in orders)))


def _checked_all(
    rule: CompiledClassWeights, skips: bool, arguments: Sequence[tuple[Any, ...]]
) -> list[np.ndarray | Unclassified | Failed]:
    """Make calls of `checked`, or of `attempt` if it skips, for the same θ together."""
    indices, data, parameters, seeds, draws, tune = zip(*arguments, strict=True)
    if not isinstance(rule, TogetherEStep):
        raise TypeError(f"e_step: {rule!r} does not take several observations in one call.")
    rngs = list(map(generator_of, seeds, indices))
    found = rule.class_probability_all(data, parameters[0], rngs, draws=draws[0], tune=tune[0])
    answers: list[np.ndarray | Unclassified | Failed] = []
    for index, each in zip(indices, found, strict=True):
        try:
            if isinstance(each, Exception):
                raise each
            _require_finite(each)
            answers.append(each)
        except Exception as error:
            require_own_fault(error)
            raised = _error_of(index, error)
            raised.__cause__ = error
            answers.append(Unclassified(named(error)) if skips else Failed(raised, made=True))
    return answers


def _require_finite(found: np.ndarray) -> None:
    if not np.isfinite(found).all():
        raise FloatingPointError(f"its class probabilities are not finite: {found}.")


def _error_of(index: int, error: Exception) -> Exception:
    """Return the error that names the observation."""
    kind = FloatingPointError if isinstance(error, ArithmeticError) else RuntimeError
    return kind(
        f"observation {index}, counted from 0, cannot be classified: {error} Leave it out, or let "
        "a Classifier skip it (on_error='skip')."
    )


def attempt(rule: CompiledClassWeights, *arguments: Any) -> np.ndarray | Unclassified:
    """Return what `checked` returns, or the reason why it fails."""
    try:
        return checked(rule, *arguments)
    except (FloatingPointError, RuntimeError) as error:
        cause = error.__cause__
        return Unclassified(named(cause if isinstance(cause, Exception) else error))
