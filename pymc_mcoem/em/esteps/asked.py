"""What a burst of many observations is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors

__all__ = ["Explained", "ToExplain"]


@dataclass(frozen=True)
class ToExplain:
    """An observation to explain.

    Attributes
    ----------
    values : mapping of str to ndarray
        The density's data, as compiled functions take them.
    log_step : ndarray of shape (n_classes,)
        Logarithms of the step sizes to begin with.
    gains : ndarray of shape (n_sweeps,)
    start : (int, ndarray of shape (n_latents,)), optional
        Class and position where its chain goes on. None: a draw of the pseudo-priors.
    fit : PseudoPriors, optional
        Kept from an earlier visit. None: they are fitted.
    """

    values: Mapping[str, np.ndarray]
    rng: np.random.Generator
    log_step: np.ndarray
    gains: np.ndarray
    start: tuple[int, np.ndarray] | None = None
    fit: PseudoPriors | None = None


@dataclass(frozen=True)
class Explained:
    """What the burst of an observation found.

    Attributes
    ----------
    statistics : dict of str to ndarray
        Mean statistics over the draws, each ``(n_classes, *shape)``; empty if none were asked for.
    found : Sweeps
        All sweeps, but of the positions only the last if statistics were asked for.
    log_evidence : ndarray of shape (n_classes,)
    troubles : dict of str to int
        Those of the pseudo-priors.
    fit : PseudoPriors or None
        If they were asked for.
    """

    statistics: dict[str, np.ndarray]
    found: Sweeps
    log_evidence: np.ndarray
    troubles: dict[str, int]
    fit: PseudoPriors | None = None
