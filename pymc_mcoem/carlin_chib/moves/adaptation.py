"""Shape random walks within a class like the chain's draws there, during tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ShapeOfMoves"]

#: Fewest draws per latent of a class; with fewer, its walk keeps the pseudo-prior's shape.
_FEWEST_DRAWS = 5


class ShapeOfMoves:
    """Running covariances of a chain's draws in every class.

    Attributes
    ----------
    count : ndarray of shape (n_classes,)
    mean : ndarray of shape (n_classes, n_latents)
    squares : ndarray of shape (n_classes, n_latents, n_latents)
        Sums of products of deviations from the mean.
    is_adapted : ndarray of bool of shape (n_classes,)
        Whether the class's walk has taken the shape of its draws.

    Examples
    --------
    >>> shape = ShapeOfMoves(1, 1)
    >>> for x in [1.0, 3.0, 1.0, 3.0, 1.0, 3.0]:
    ...     shape.see(0, np.array([x]))
    >>> wide = PseudoPriors.from_covariance(np.zeros((1, 1)), np.full((1, 1, 1), 100.0))
    >>> shape.adapted(wide).scale.round(1)
    array([[[5.1]]])
    """

    def __init__(self, n_classes: int, n_latents: int) -> None:
        self.count = np.zeros(n_classes)
        self.mean = np.zeros((n_classes, n_latents))
        self.squares = np.zeros((n_classes, n_latents, n_latents))
        self.is_adapted = np.zeros(n_classes, dtype=bool)

    def __eq__(self, other: object) -> bool:
        # PyMC compares the states of step methods, which hold one, field by field.
        if not isinstance(other, ShapeOfMoves):
            return NotImplemented
        return all(
            np.array_equal(one, two)
            for one, two in zip(self._arrays(), other._arrays(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def _arrays(self) -> Sequence[np.ndarray]:
        return self.count, self.mean, self.squares, self.is_adapted

    def see(self, class_index: int, position: np.ndarray) -> None:
        """Add a draw ``(n_latents,)`` of a class."""
        self.count[class_index] += 1
        away = position - self.mean[class_index]
        self.mean[class_index] += away / self.count[class_index]
        self.squares[class_index] += np.outer(away, position - self.mean[class_index])

    def adapts(self, pseudo_priors: PseudoPriors) -> np.ndarray:
        """Return which classes have enough draws, ``(n_classes,)``.

        Classes with several modes are excluded: the distance between modes is no measure for
        moves within one.
        """
        enough = self.count >= _FEWEST_DRAWS * max(self.mean.shape[1], 1)
        found: np.ndarray = enough & ~pseudo_priors.has_several_modes
        return found

    def adapted(
        self, pseudo_priors: PseudoPriors, active: np.ndarray | None = None
    ) -> PseudoPriors:
        """Return normals with the pseudo-priors' means that give the moves their shapes.

        The pseudo-prior's covariance counts as much as two draws for each latent.

        Parameters
        ----------
        active : ndarray of bool of shape (n_classes, n_latents), optional
        """
        own = pseudo_priors.scale @ np.swapaxes(pseudo_priors.scale, 1, 2)
        n_own = 2.0 * self.mean.shape[1]
        count = self.count[:, None, None]
        blended = (self.squares + n_own * own) / (count + n_own)
        chosen = self.adapts(pseudo_priors)[:, None, None]
        found = PseudoPriors.from_covariance(
            pseudo_priors.mean, np.where(chosen, blended, own), pseudo_priors.log_evidence
        )
        return found if active is None else found.restricted(active)
