"""Screening of classes: hopeless ones are excluded before the sweeps of a classification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.em.esteps.base import CompiledClassWeights
from pymc_mcoem.em.esteps.class_fits import family_density, require_density

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["SIZES", "SLACK", "ScreenedClassWeights", "keep_plausible"]

#: Numbers of classes for which weights are compiled; other numbers are rounded up to the next.
SIZES = (4, 16)
#: Allowed error of Laplace's approximation in the log-evidence of one class against another's.
SLACK = 20.0


def keep_plausible(probability: np.ndarray, amount: float) -> np.ndarray:
    """Return the most probable classes, so that the others have at most probability `amount`.

    Parameters
    ----------
    probability : ndarray of shape (n_classes,)

    Returns
    -------
    ndarray of int
        Most probable first. Their number is one of `SIZES`, or that of all classes.

    Examples
    --------
    >>> keep_plausible(np.array([0.1, 0.0, 0.0, 0.899, 0.0, 0.001]), 0.01)
    array([3, 0, 5, 1])
    """
    order = np.argsort(-probability, kind="stable")
    # Sums over each class and all that follow, not one minus a sum, which would lose digits.
    excluded = np.cumsum(probability[order][::-1])[::-1]
    for size in SIZES:
        if size < len(order) and excluded[size] <= amount:
            return order[:size]
    return order


class ScreenedClassWeights:
    """Class probabilities with sweeps or draws in plausible classes only.

    Parameters
    ----------
    compile_for : callable
        Maps a number of classes to class weights compiled for a family with that many.
    amount : float
        Largest change of class and label probabilities.
    search : Laplace
        Mode search. It should be that of the rule `compile_for` compiles, so that classes are
        screened by the modes from which their sweeps or draws would begin.
    slack : float
        Allowed error of Laplace's approximation in the log-evidence of one class against another's.

    Notes
    -----
    Excluded classes keep the probability that Laplace's approximation gives them, and the
    others share the rest in the proportions that `compile_for`'s rule finds among them. With p the
    class probabilities that this rule finds among all classes, l those by Laplace's approximation,
    L the excluded classes, q = p(L) and λ = l(L), the result is, apart from Monte Carlo
    error,

        l_j for j in L,    p_j (1 − λ) / (1 − q) for the others.

    The probability of any set A of classes, such as those of a label, changes by

        l(A ∩ L) − p(A ∩ L) + (q − λ) p(A without L) / (1 − q),

    which lies between −max(q, λ) and max(q, λ). The bound is sharp: a label whose classes are all
    excluded may lose all of q. If no class is excluded, nothing changes.

    Classes are excluded while λ ≤ exp(−`slack`) `amount`. If Laplace's approximation errs by no
    more than `slack` in the log-evidence of any class against any other's, then
    q ≤ exp(`slack`) λ ≤ `amount`, and no probability changes by more than `amount`. The
    log-evidence of hopeless classes is lower by tens to hundreds. For curves simulated from 20
    classes the approximation erred by at most 6 if five starting points found every mode. With one
    starting point, loose warps and low noise it missed modes and erred by up to 112: q may then be
    anything, but sweeps and draws, which begin at the same modes, are as wrong without screening.
    The same holds for a class that wrongly loses the race of the searches (`Race`): of 90 postal
    digits under 40 loosely warped templates one lost a class that had nearly all the probability,
    with any rule whose search has the default race. More starting points (`Family.geometry`) and
    ``Laplace(race=None)`` find more modes, here and in the sweeps.
    """

    def __init__(
        self,
        family: Family,
        compile_for: Callable[[int], CompiledClassWeights],
        amount: float,
        search: Laplace,
        slack: float = SLACK,
    ) -> None:
        density = family_density(family)
        self.amount = amount
        self.slack = slack
        self._n_classes = density.n_classes
        self._compile_for = compile_for
        self._compiled: dict[int, CompiledClassWeights] = {}
        self.search = search
        self._pseudo_priors = search.compile(density, family.geometry)

    def class_probability(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        draws: int,
        tune: int,
    ) -> np.ndarray:
        """Return the class probabilities of one encoded observation, ``(n_classes,)``."""
        fitted = self._pseudo_priors({**parameters, **data}, rng)
        require_density(fitted.log_evidence, "screening")
        found: np.ndarray = softmax(
            np.where(np.isnan(fitted.log_evidence), -np.inf, fitted.log_evidence)
        )
        plausible = keep_plausible(found, np.exp(-self.slack) * self.amount)
        if len(plausible) not in self._compiled:
            self._compiled[len(plausible)] = self._compile_for(len(plausible))
        if len(plausible) == self._n_classes:
            return self._compiled[len(plausible)].class_probability(
                data, parameters, rng, draws=draws, tune=tune
            )
        few = {
            name: value[plausible]
            if name != "weights"
            else value[plausible] / value[plausible].sum()
            for name, value in self._by_class(parameters).items()
        }
        among = self._compiled[len(plausible)].class_probability(
            data, few, rng, draws=draws, tune=tune
        )
        found[plausible] = among * found[plausible].sum()
        return found

    def _by_class(self, parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return parameters with a first axis of classes, including a shared noise variance."""
        return {
            name: np.broadcast_to(value, self._n_classes) if np.ndim(value) == 0 else value
            for name, value in parameters.items()
        }
