"""What a classifier asks of a compiled rule, as functions that a worker can import and call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.classification.expected_likelihood import (
    CompiledExpectedLikelihood,
    ExpectedLikelihood,
)
from pymc_mcoem.classification.screening import ScreenedClassWeights
from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.em.esteps.base import CompiledClassWeights
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from pymc_mcoem.em.esteps.posterior_mode import PosteriorMode
from pymc_mcoem.interrupts import require_own_fault
from pymc_mcoem.runs.failed_records import named

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStep
    from pymc_mcoem.em.family import Family

__all__ = [
    "Unclassified",
    "attempt",
    "checked",
    "compile_class_weights",
    "compile_expected_likelihood",
    "weigh",
    "weigh_expected",
]

type Arrays = Mapping[str, np.ndarray]


def compile_class_weights(
    family: Any, e_step: EStep, screening: float = 0.0
) -> CompiledClassWeights | ScreenedClassWeights:
    """Compile posterior class probabilities, with hopeless classes left out where asked for.

    An E-step that draws nothing is not screened: to find out which classes are hopeless costs as
    much as all its work.

    Raises
    ------
    TypeError
        If the E-step gives none.
    """
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
    """Return the search for modes that an E-step begins with; a thorough one if it has none."""
    for name in ("search", "pseudo_priors"):
        search = getattr(e_step, name, None)
        if isinstance(search, Laplace):
            return search
    return Laplace(race=None)


def _compile_for(family: Any, e_step: EStep, n_classes: int) -> CompiledClassWeights:
    """Compile class weights for as many of the classes."""
    if n_classes != family.n_classes:
        starts = family.geometry.starts
        family = family.with_classes(n_classes, noise="class", priors=None)
        # whoever gave the family other starts than its own wants them among few classes too
        family.geometry = replace(family.geometry, starts=starts)
    compiled = compiled_for(family, e_step)
    if not isinstance(compiled, CompiledClassWeights):
        raise TypeError(
            f"e_step: {e_step!r} gives no class probabilities; give CarlinChibBurst() or "
            "LaplaceGaussian()."
        )
    return compiled


def compile_expected_likelihood(family: Family) -> CompiledExpectedLikelihood:
    """Compile the paper's rule."""
    return compiled_for(family, ExpectedLikelihood())


def weigh(
    compiled: CompiledClassWeights | ScreenedClassWeights,
    data: Arrays,
    parameters: Arrays,
    rng: np.random.Generator,
    draws: int,
    burn_in: int,
) -> np.ndarray:
    """Return posterior class probabilities of one encoded observation, ``(n_classes,)``."""
    return compiled.class_probability(data, parameters, rng, draws=draws, burn_in=burn_in)


def weigh_expected(
    compiled: CompiledExpectedLikelihood,
    data: Arrays,
    parameters: Arrays,
    rng: np.random.Generator,
    draws: int,
    burn_in: int,
    log_label_weight: np.ndarray,
) -> np.ndarray:
    """Return what each class's expected likelihood is of all, ``(n_classes,)``."""
    scores = compiled.log_scores(data, parameters, rng, draws=draws, burn_in=burn_in)
    weighed: np.ndarray = softmax(scores + log_label_weight)
    return weighed


def checked(compiled: Any, function: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray:
    """Return what `function` gives.

    Raises
    ------
    FloatingPointError
        If that is not finite.
    """
    found = function(compiled, *arguments)
    if not np.isfinite(found).all():
        raise FloatingPointError(f"its class probabilities are not finite: {found}.")
    return found


@dataclass(frozen=True)
class Unclassified:
    """Stands for class probabilities that there are none of, and says why."""

    reason: str


def attempt(
    compiled: Any, function: Callable[..., np.ndarray], *arguments: Any
) -> np.ndarray | Unclassified:
    """Return what `function` gives, or why it gives nothing.

    Examples
    --------
    >>> attempt(None, lambda _: 1 / 0)
    Unclassified(reason='ZeroDivisionError: division by zero')
    """
    try:
        return checked(compiled, function, *arguments)
    except Exception as error:
        require_own_fault(error)
        return Unclassified(named(error))
