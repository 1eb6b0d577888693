"""Input and results of E-step calls for many observations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors

__all__ = ["BurstCall", "BurstResult", "by_kind"]


@dataclass(frozen=True)
class BurstCall:
    """Input of the E-step for one observation.

    Attributes
    ----------
    values : mapping of str to ndarray
        The density's data, as compiled functions take them.
    log_step : ndarray of shape (n_classes,)
        Logarithms of the step sizes to begin with.
    gains : ndarray of shape (n_sweeps,)
    start : (int, ndarray of shape (n_latents,)), optional
        Class and position from which its chain continues. None: a draw from the pseudo-priors.
    fit : PseudoPriors, optional
        Pseudo-priors of an earlier visit. None: they are fitted.
    """

    values: Mapping[str, np.ndarray]
    rng: np.random.Generator
    log_step: np.ndarray
    gains: np.ndarray
    start: tuple[int, np.ndarray] | None = None
    fit: PseudoPriors | None = None


@dataclass(frozen=True)
class BurstResult:
    """Results of the burst of one observation.

    Attributes
    ----------
    statistics : dict of str to ndarray
        Mean statistics over the draws, each ``(n_classes, *shape)``; empty if not requested.
    found : Sweeps
        All sweeps, with only the last position if statistics were requested.
    log_evidence : ndarray of shape (n_classes,)
    troubles : dict of str to int
        Troubles of the pseudo-priors.
    fit : PseudoPriors or None
        The pseudo-priors, if requested.
    """

    statistics: dict[str, np.ndarray]
    found: Sweeps
    log_evidence: np.ndarray
    troubles: dict[str, int]
    fit: PseudoPriors | None = None


def by_kind[Found](
    kinds: Sequence[Hashable], run: Callable[[list[int]], Sequence[Found]]
) -> list[Found]:
    """Run the E-step for all observations of a kind together; return results in order.

    Parameters
    ----------
    kinds : sequence
        For each observation, a key that observations of one call must share.
    run : callable
        Takes the indices of the observations of one kind, and returns their results.

    Examples
    --------
    >>> by_kind(["a", "b", "a"], lambda places: [f"{at} of {places}" for at in places])
    ['0 of [0, 2]', '1 of [1]', '2 of [0, 2]']
    """
    found: dict[int, Found] = {}
    for kind in dict.fromkeys(kinds):
        some = [at for at, other in enumerate(kinds) if other == kind]
        found.update(zip(some, run(some), strict=True))
    return [found[at] for at in range(len(kinds))]
