"""Distinct modes of the rows of a plate, from the ends of searches in all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymc_mcoem.laplace.found_modes import MAX_GAP, MAX_MODES

__all__ = ["RowModes", "distinct_modes"]


@dataclass(frozen=True, eq=False)
class RowModes:
    """Ends of searches, or distinct modes, of one class in all rows; the first axis counts them."""

    mean: np.ndarray  # (n, n_rows, n_latents)
    precision: np.ndarray  # (n, n_rows, n_latents, n_latents), like the next
    whiten: np.ndarray
    log_normalizer: np.ndarray  # (n, n_rows), like the next two
    log_evidence: np.ndarray
    converged: np.ndarray

    @classmethod
    def of(cls, searches: Sequence[tuple[np.ndarray, ...]]) -> RowModes:
        """Make an instance from the results of searches."""
        mean, precision, log_p, converged = (np.stack(part) for part in zip(*searches, strict=True))
        whiten = np.swapaxes(np.linalg.cholesky(precision), -1, -2)
        half_log_det = np.log(np.diagonal(whiten, axis1=-2, axis2=-1)).sum(axis=-1)
        log_normalizer = half_log_det - 0.5 * mean.shape[-1] * np.log(2 * np.pi)
        log_evidence = np.where(np.isfinite(log_p), log_p - log_normalizer, -np.inf)
        return cls(mean, precision, whiten, log_normalizer, log_evidence, converged)

    @property
    def n_modes(self) -> np.ndarray:
        """Number of distinct modes of each row, ``(n_rows,)``, at least 1."""
        found: np.ndarray = np.isfinite(self.log_evidence).sum(axis=0).clip(min=1)
        return found

    @property
    def is_mixed(self) -> np.ndarray:
        """Whether each row has several distinct modes, ``(n_rows,)``."""
        found: np.ndarray = self.n_modes > 1
        return found

    @property
    def total(self) -> np.ndarray:
        """Log evidence of all distinct modes of each row, ``(n_rows,)``."""
        found: np.ndarray = np.logaddexp.reduce(self.log_evidence)
        return found

    def log_density(self, position: np.ndarray) -> np.ndarray:
        """Return the log-density of each row's mixture of modes at ``(n_rows, n_latents)``."""
        away = np.einsum("niab,nib->nia", self.whiten, position - self.mean)
        of_normals = self.log_normalizer - 0.5 * np.square(away).sum(axis=-1)
        with np.errstate(invalid="ignore"):  # of a row without density
            share = self.log_evidence - self.total
        found: np.ndarray = np.logaddexp.reduce(share + of_normals)
        return found

    def with_mode(self, other: RowModes, log_evidence: np.ndarray) -> RowModes:
        """Return these modes and the first of another class, with evidence ``(n_rows,)`` here.

        Rows without evidence do not get it.
        """
        joined = {
            name: np.concatenate([getattr(self, name), getattr(other, name)[:1]])
            for name in ("mean", "precision", "whiten", "log_normalizer", "converged")
        }
        evidence = np.concatenate([self.log_evidence, log_evidence[None]])
        order = np.argsort(-evidence, axis=0, kind="stable")
        rows = np.arange(order.shape[1])
        arranged = {name: part[order, rows] for name, part in joined.items()}
        return RowModes(**arranged, log_evidence=evidence[order, rows])


def distinct_modes(ends: RowModes) -> RowModes:
    """Return the distinct modes of each row, in order of decreasing evidence.

    Entries after a row's last mode have evidence minus infinity. Two modes count as one if they are
    less than a standard deviation apart under either curvature; the first of them is kept.
    """
    n_ends = len(ends.mean)
    distinct = ends.converged & np.isfinite(ends.log_evidence)
    for one in range(n_ends):
        for two in range(one + 1, n_ends):
            away = ends.mean[two] - ends.mean[one]
            squares = [
                np.einsum("ia,iab,ib->i", away, ends.precision[place], away) for place in (one, two)
            ]
            distinct[two] &= ~(distinct[one] & (np.min(squares, axis=0) < 1.0))
    # if no search has found a mode, the end of the first is better than nothing
    distinct[0] |= ~distinct.any(axis=0)
    log_evidence = np.where(distinct, ends.log_evidence, -np.inf)
    log_evidence[log_evidence < log_evidence.max(axis=0) - MAX_GAP] = -np.inf
    order = np.argsort(-log_evidence, axis=0, kind="stable")[:MAX_MODES]
    rows = np.arange(order.shape[1])
    return RowModes(
        ends.mean[order, rows],
        ends.precision[order, rows],
        ends.whiten[order, rows],
        ends.log_normalizer[order, rows],
        log_evidence[order, rows],
        ends.converged[order, rows],
    )
