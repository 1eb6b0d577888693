"""Distinct modes of one class, as searches find them one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pymc_mcoem.laplace.modes import Modes, ModeStatus

__all__ = ["MAX_GAP", "MAX_MODES", "FoundModes"]

#: Most distinct modes that are kept for a class; with a single latent, which costs little, more.
MAX_MODES, _MOST_OF_FEW_LATENTS = 32, 128

#: A mode is dropped if its log evidence is this many nats below the best of its class.
MAX_GAP = 7.0


class FoundModes:
    """Collect the distinct modes of a class.

    Parameters
    ----------
    first : Modes
        One row: where the first search ended, which may be no mode.
    n_given : int
        Number of starts that the user gave. At least as many modes are kept.
    """

    def __init__(self, first: Modes, n_given: int = 0) -> None:
        self._modes = [first]
        n_latents = first.mean.shape[1]
        of_few = _MOST_OF_FEW_LATENTS // max(n_latents, 1) ** 2
        self._most = max(MAX_MODES, of_few, n_given + 1)

    def add(self, mode: Modes) -> bool:
        """Add what a search found if it is a new mode, and return whether it is one that matters.

        A point where a search got stuck, or a saddle point, is not a mode.
        """
        if mode.status[0] is not ModeStatus.CONVERGED:
            return False
        if any(_are_one(known, mode) for known in self._converged):
            return False
        head = self._modes[0]
        if head.status[0] is not ModeStatus.CONVERGED and _are_one(head, mode):
            # the first search stopped just before this mode
            self._modes[0] = mode
        else:
            self._modes.append(mode)
        return bool(mode.log_evidence[0] > self._evidence.max() - MAX_GAP)

    def explain(self, ends: np.ndarray, heights: np.ndarray) -> np.ndarray:
        """Return which points ``(n, n_latents)`` of known heights ``(n,)`` are near a mode."""
        found = np.zeros(len(ends), dtype=bool)
        # the first one may be a saddle point, from which points climb away
        for mode in self._converged:
            found |= _leads_to(mode, ends, heights)
        return found

    @property
    def n_that_matter(self) -> int:
        """Number of modes that are not negligible beside the best."""
        evidence = self._evidence
        return int((evidence > evidence.max(initial=-np.inf) - MAX_GAP).sum())

    @property
    def n_found(self) -> int:
        """Number of modes, negligible ones included."""
        return len(self._converged)

    def share_since(self, n_found: int) -> float:
        """Return the share of all modes' evidence in those after the first `n_found`."""
        evidence = self._evidence
        if not evidence[n_found:].size:
            return 0.0
        total = np.logaddexp.reduce(evidence)
        return float(np.exp(np.logaddexp.reduce(evidence[n_found:]) - total))

    def best(self, heights: np.ndarray, growth: float, *, is_countable: bool = True) -> Modes:
        """Return the modes to keep, in order of decreasing evidence; the first may not be a mode.

        Parameters
        ----------
        heights : ndarray of shape (n,)
            Log-densities of points that are near no known mode and were not searched from.
        growth : float
            Share of the evidence that the last draws added, which those not made would add again.
        is_countable : bool
            False if most draws led to different modes, so that there may be any number.

        Returns
        -------
        Modes
            `Modes.missed_share` is the share of the class's evidence that is in other modes: those
            beyond the largest number kept, and those that such points lead to, each assumed to be
            as wide as the known modes. It is 1 if there may be any number.
        """
        found = self._most_evident()
        own = self._evidence
        if not own.size:
            return found
        total = np.logaddexp.reduce(own)
        held = np.exp(found.log_evidence - total).sum()
        width = np.median([mode.log_evidence[0] - mode.log_density[0] for mode in self._converged])
        outside = np.exp(np.minimum(heights + width - total, 50.0))
        outside = outside[outside > np.exp(-MAX_GAP)].sum()
        beyond = 0.0
        if len(found.status) == self._most:
            beyond = max(1.0 - held, 0.0)
        missed = max(outside, growth) + beyond
        return replace(found, missed_share=float(missed / (held + missed)) if is_countable else 1.0)

    def _most_evident(self) -> Modes:
        modes = self._modes
        head, *rest = modes
        evidence = np.array([float(mode.log_evidence[0]) for mode in modes])
        if head.status[0] is not ModeStatus.CONVERGED and rest:
            # Drop the point where the first search got stuck if another mode is as good.
            if not evidence[0] > evidence[1:].max():
                modes, evidence = rest, evidence[1:]
        if len(modes) == 1:
            return modes[0]
        order = np.argsort(-evidence, kind="stable")[: self._most]
        order = order[evidence[order] > evidence[order[0]] - MAX_GAP]
        return Modes.joined([modes[place] for place in order])

    @property
    def _converged(self) -> list[Modes]:
        return [mode for mode in self._modes if mode.status[0] is ModeStatus.CONVERGED]

    @property
    def _evidence(self) -> np.ndarray:
        return np.array([mode.log_evidence[0] for mode in self._converged])


def _leads_to(mode: Modes, ends: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Return which ends are near a mode and as high as its normal approximation there."""
    away = ends - mode.mean[0]
    squares = np.einsum("na,ab,nb->n", away, mode.precision[0], away)
    expected = mode.log_density[0] - 0.5 * squares
    with np.errstate(invalid="ignore"):  # for a class without density
        found: np.ndarray = (squares < 1.0) & (np.abs(heights - expected) < 0.5)
    return found


def _are_one(one: Modes, two: Modes) -> bool:
    """Return whether two modes are less than a standard deviation apart under both curvatures."""
    away = one.mean[0] - two.mean[0]
    return all(float(away @ mode.precision[0] @ away) < 1.0 for mode in (one, two))
