"""Warps with the scores of factors as further coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.templates.warps.deformations import Deformation

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["DeformationWithScores"]


class DeformationWithScores(Deformation):
    """A warp u ↦ (D(u, β), z), with scores z ~ Normal(0, 1) that are the same at all points.

    The parameters are those of the warp and then the scores. A `BasisWithFactors` takes the points.

    Parameters
    ----------
    warp : Deformation
        What moves points.
    n_factors : int
        Number of scores.

    Attributes
    ----------
    within : Deformation
        The warp.
    n_scores : int

    Examples
    --------
    >>> from pymc_mcoem.templates import RigidMotion
    >>> DeformationWithScores(RigidMotion(), 1).labels[-2:]
    ('translation[1]', 'factor 0')
    """

    def __init__(self, warp: Deformation, n_factors: int) -> None:
        self.within, self.n_scores = warp, int(n_factors)
        self.n_dims = warp.n_dims + self.n_scores
        self.mean = np.concatenate([warp.mean, np.zeros(n_factors)])
        size = warp.n_parameters
        self.covariance = np.eye(size + self.n_scores)
        self.covariance[:size, :size] = warp.covariance
        self.learned = np.concatenate([warp.learned, np.zeros(n_factors, dtype=bool)])
        self.labels = (*warp.labels, *(f"factor {k}" for k in range(self.n_scores)))
        self.rigid_weight = warp.rigid_weight

    @property
    def rigid(self) -> np.ndarray:
        """Which coordinates have a learned variance each, ndarray of bool (n_parameters,)."""
        return np.concatenate([self.within.rigid, np.zeros(self.n_scores, dtype=bool)])

    def warped(self, points: np.ndarray, beta: TensorVariable) -> list[TensorVariable]:
        """Return the warped points, a vector for each dimension, and a number for each score."""
        own, scores = self._split(beta)
        return [*self.within.warped(points, own), *scores]

    def warp(self, points: np.ndarray, beta: Any) -> TensorVariable:
        """Return D(u_s, β) and the scores, shape (n_points, n_dims)."""
        columns = self.coordinates(points, beta)
        return pt.stack([each + pt.zeros_like(columns[0]) for each in columns], axis=1)

    def jacobian(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return the derivatives of f(D(u_s, β), z) by β and z, (n_parameters, n_points)."""
        own, _ = self._split(beta)
        n = self.within.n_dims
        rows = self.within.jacobian(points, own, gradient[:, :n])
        return pt.concatenate([rows, gradient[:, n:].T], axis=0)

    def second_derivatives(
        self,
        points: np.ndarray,
        beta: Any,
        slopes: Sequence[TensorVariable],
        bends: Sequence[Sequence[TensorVariable]],
    ) -> TensorVariable | None:
        """Return the second derivatives by β and z, or None if the warp knows none by β."""
        own, _ = self._split(beta)
        n, axes = self.within.n_dims, range(self.within.n_dims)
        by_warp = self.within.second_derivatives(
            points, own, slopes[:n], [[bends[k][m] for m in axes] for k in axes]
        )
        if by_warp is None:
            return None
        scores = range(n, self.n_dims)
        mixed = [
            self.within.jacobian(points, own, pt.stack([bends[k][m] for k in axes], axis=1)).sum(
                axis=1
            )
            for m in scores
        ]
        border = pt.stack(mixed, axis=1)
        corner = pt.stack([pt.stack([bends[k][m].sum() for m in scores]) for k in scores])
        return pt.concatenate(
            [
                pt.concatenate([by_warp, border], axis=1),
                pt.concatenate([border.T, corner], axis=1),
            ],
            axis=0,
        )

    def starts(self) -> np.ndarray:
        """Return the warp's starting points, with scores of zero."""
        own = self.within.starts()
        return np.concatenate([own, np.zeros((len(own), self.n_scores))], axis=1)

    def _split(self, beta: Any) -> tuple[TensorVariable, list[TensorVariable]]:
        beta = pt.as_tensor_variable(beta)
        size = self.within.n_parameters
        return beta[:size], [beta[size + k] for k in range(self.n_scores)]
