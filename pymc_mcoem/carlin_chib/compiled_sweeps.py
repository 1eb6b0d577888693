"""What compiled sweeps of the Carlin-Chib kernel take and return, however they were compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
    from pymc_mcoem.carlin_chib.pseudo_priors.plate import PlatePseudoPriors

__all__ = ["CompiledSweeps", "Sweeps"]


@dataclass(frozen=True)
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


class CompiledSweeps(Protocol):
    """Function that makes sweeps of one density."""

    def __call__(
        self,
        noise: np.ndarray,
        gains: np.ndarray,
        class_index: int | np.ndarray,
        position: np.ndarray,
        log_step: np.ndarray,
        log_offset: np.ndarray | None,
        pseudo_priors: PseudoPriors | PlatePseudoPriors,
        arguments: Sequence[np.ndarray],
        move_scale: np.ndarray | None = None,
    ) -> Sweeps:
        """Make as many sweeps as there is noise for.

        Parameters
        ----------
        noise : ndarray of shape (n_sweeps, *rows, noise_size)
        gains : ndarray of shape (n_sweeps,)
        class_index : int, or ndarray of int of shape (n_rows,)
        position : ndarray of shape (*rows, n_latents)
        log_step : ndarray of shape (n_classes,)
            Logarithms of the step sizes.
        log_offset : ndarray of shape (n_classes, *rows) or None
            Added to the logarithms of the weights.
        arguments : sequence of ndarray
            Values of the density's `inputs`.
        move_scale : ndarray of shape (n_classes, *rows, n_latents, n_latents), optional
            Scales that moves within a class use in place of the pseudo-priors'.
        """
        ...

    def log_densities(
        self,
        class_index: int | np.ndarray,
        points: np.ndarray,
        arguments: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return log p(y, I, X) at points ``(n, *rows, n_latents)``, shape ``(n, *rows)``."""
        ...
