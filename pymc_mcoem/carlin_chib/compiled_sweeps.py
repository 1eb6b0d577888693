"""Results of sweeps of the Carlin-Chib kernel, in one form for all back ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Sweeps"]


@dataclass(slots=True)  # a frozen one takes five times as long to make, at every draw
class Sweeps:
    """Results of consecutive sweeps.

    Attributes
    ----------
    class_index : ndarray of int of shape (n_sweeps, *rows)
        On a plate ``*rows`` is (n_rows,), else nothing.
    position : ndarray of shape (n_sweeps, *rows, n_latents)
    log_weight : ndarray of shape (n_sweeps, *rows, n_classes)
        Logarithms of the weights from which the class index was drawn, not normalized.
    auxiliaries : ndarray of shape (n_sweeps, n_classes, *rows, n_latents) or None
        The U_j that `log_weight` belongs to, if requested.
    acceptance : ndarray of shape (n_sweeps, *rows)
    log_step : ndarray of shape (n_classes,)
        Logarithms of the step sizes after the last sweep.
    """

    class_index: np.ndarray
    position: np.ndarray
    log_weight: np.ndarray
    auxiliaries: np.ndarray | None
    acceptance: np.ndarray
    log_step: np.ndarray

    @classmethod
    def joined(cls, sweeps: Sequence[Sweeps]) -> Sweeps:
        """Join consecutive sweeps into one object."""
        auxiliaries = [each.auxiliaries for each in sweeps if each.auxiliaries is not None]
        return cls(
            np.concatenate([each.class_index for each in sweeps]),
            np.concatenate([each.position for each in sweeps]),
            np.concatenate([each.log_weight for each in sweeps]),
            np.concatenate(auxiliaries) if auxiliaries else None,
            np.concatenate([each.acceptance for each in sweeps]),
            sweeps[-1].log_step,
        )
