"""Functions of a place and of scores, for templates that vary by factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from scipy.linalg import block_diag

from pymc_mcoem.templates.bases.bands import symmetric_bands
from pymc_mcoem.templates.bases.gaussian import GaussianBasis
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["BasisWithFactors"]

#: Precision of the prior of factors, in that of templates.
FACTOR_STRENGTH = 10.0


class BasisWithFactors(GaussianBasis):
    """Functions φ_l(u) and z_k φ_l(u), of a place u and the scores z of an observation.

    A template with factors is f + Σ_k z_k f_k. Its coefficients are those of f, then those of each
    f_k in turn.

    Parameters
    ----------
    kernels : GaussianBasis
        The φ_l.
    n_factors : int
        Number of factors. A point has as many coordinates more, which come last: its scores. A
        `DeformationWithScores` gives them, the same ones for all points of an observation.

    Raises
    ------
    ValueError
        If `n_factors` is not positive.

    Examples
    --------
    >>> basis = BasisWithFactors(GaussianBasis([0.0, 1.0], bandwidth=1.0), n_factors=1)
    >>> basis.matrix(np.array([[0.0, -2.0]])).round(3)
    array([[ 1.   ,  0.368, -2.   , -0.736]])
    """

    def __init__(self, kernels: GaussianBasis, n_factors: int) -> None:
        require_whole("n_factors", n_factors, 1)
        self.kernels, self.n_factors = kernels, int(n_factors)
        super().__init__(np.tile(kernels.centers, (1 + n_factors, 1)), kernels.bandwidth)

    @property
    def n_dims(self) -> int:
        """Dimension of the space on which the functions are defined, with the scores."""
        return self.kernels.n_dims + self.n_factors

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs k ≤ m of the template, which is 0, and its factors."""
        return [(k, m) for k in range(1 + self.n_factors) for m in range(k, 1 + self.n_factors)]

    def evaluate(self, points: Any, coefficients: Any) -> TensorVariable:
        """Return f(u_s) + Σ_k z_k f_k(u_s), of shape (n_points,)."""
        places, scores = self._split(points)
        own, *factors = self._by_factor(coefficients)
        if scores[0].ndim == 0:
            return self.kernels.evaluate(places, _joined(own, factors, scores))
        by_factor = zip(scores, factors, strict=True)
        moved = (score * self.kernels.evaluate(places, each) for score, each in by_factor)
        return pt.add(self.kernels.evaluate(places, own), *moved)

    def gradient(self, points: Any, coefficients: Any) -> TensorVariable:
        """Return the derivatives by places and by scores, (n_points, n_dims).

        Scores are the same at all points: numbers, not vectors.
        """
        places, scores = self._split(points)
        own, *factors = self._by_factor(coefficients)
        by_place = self.kernels.gradient(places, _joined(own, factors, scores))
        by_score = [self.kernels.evaluate(places, each)[:, None] for each in factors]
        return pt.concatenate([by_place, *by_score], axis=1)

    def _bends(
        self, columns: Sequence[TensorVariable], coefficients: TensorVariable
    ) -> dict[tuple[int, int], TensorVariable]:
        n, n_dims = self.kernels.n_dims, self.n_dims
        places, scores = self._split(list(columns))
        own, *factors = self._by_factor(coefficients)
        bends = self.kernels.second_derivatives(places, _joined(own, factors, scores))
        found = {(k, m): bends[k][m] for k in range(n) for m in range(k, n)}
        for index, each in enumerate(factors, start=n):
            slopes = self.kernels.gradient(places, each)
            found |= {(k, index): slopes[:, k] for k in range(n)}
            found |= {(index, m): pt.zeros_like(slopes[:, 0]) for m in range(index, n_dims)}
        return found

    def design(self, points: Any) -> TensorVariable:
        """Return the design matrix, (n_points, n_basis)."""
        places, scores = self._split(points)
        own = self.kernels.design(places)
        columns = [score[:, None] if score.ndim else score for score in scores]
        return pt.concatenate([own, *(score * own for score in columns)], axis=1)

    def project(self, points: Any, weights: Any) -> TensorVariable:
        """Return Φᵀw, (n_basis,). Scores are the same at all points: numbers, not vectors."""
        places, scores = self._split(points)
        sums = self.kernels.project(places, weights)
        return pt.concatenate([sums, *(score * sums for score in scores)])

    def gram_sums(self, points: Any, weights: Any) -> TensorVariable:
        """Return Σ_s w_s φ(u_s) φ(u_s)ᵀ z_k z_m of each of `pairs`, z_0 = 1, one below the other.

        Scores are the same at all points: numbers, not vectors.
        """
        places, scores = self._split(points)
        sums = self.kernels.gram_sums(places, weights)
        factors: list[Any] = [1.0, *scores]
        return pt.concatenate([factors[k] * factors[m] * sums for k, m in self.pairs])

    def unpack_gram(self, sums: np.ndarray) -> np.ndarray:
        """Return the matrices (..., n_basis, n_basis) of what `gram_sums` returns."""
        sums = np.asarray(sums, dtype=np.float64)
        if sums.shape[-2:] == (self.n_basis, self.n_basis):
            return sums
        blocks, n = self.kernels.unpack_gram(self._by_pair(sums)), self.kernels.n_basis
        whole = np.empty((*sums.shape[:-2], self.n_basis, self.n_basis))
        for index, (k, m) in enumerate(self.pairs):
            rows, columns = slice(k * n, (k + 1) * n), slice(m * n, (m + 1) * n)
            whole[..., rows, columns] = whole[..., columns, rows] = blocks[..., index, :, :]
        return whole

    def gram_bands(self, sums: np.ndarray, width: int) -> np.ndarray:
        """Return the same by bands, (..., n_basis, width + 1)."""
        if width > 0 or np.shape(sums)[-2:] == (self.n_basis, self.n_basis):
            return symmetric_bands(self.unpack_gram(sums), width)
        # the diagonal alone, which is wanted after each observation
        own = [index for index, (k, m) in enumerate(self.pairs) if k == m]
        blocks = self._by_pair(np.asarray(sums, dtype=np.float64))[..., own, :, :]
        diagonals = self.kernels.gram_bands(blocks, 0)
        return diagonals.reshape((*diagonals.shape[:-3], self.n_basis, 1))

    def matrix(self, points: np.ndarray) -> np.ndarray:
        """Return the design matrix; scores that points (n_points, kernels.n_dims) lack are zero."""
        points, n = np.asarray(points, dtype=np.float64), self.kernels.n_dims
        own = self.kernels.matrix(points[:, :n])
        scores = points[:, n:] if points.shape[1] > n else np.zeros((len(points), self.n_factors))
        return np.concatenate([own, *(score[:, None] * own for score in scores.T)], axis=1)

    def gram(self) -> np.ndarray:
        """Return K of the kernels for the template, and `FACTOR_STRENGTH` times it for factors."""
        own = self.kernels.gram()
        found: np.ndarray = block_diag(own, *[FACTOR_STRENGTH * own] * self.n_factors)
        return found

    def _split(self, points: Any) -> tuple[list[TensorVariable], list[TensorVariable]]:
        """Return the coordinates of places and the scores."""
        columns = self._coordinates(points)
        return columns[: self.kernels.n_dims], columns[self.kernels.n_dims :]

    def _by_factor(self, coefficients: Any) -> list[TensorVariable]:
        """Return the coefficients of the template and of each factor."""
        table = pt.as_tensor_variable(coefficients).reshape((1 + self.n_factors, -1))
        return [table[k] for k in range(1 + self.n_factors)]

    def _by_pair(self, sums: np.ndarray) -> np.ndarray:
        """Return what `gram_sums` put one below the other along an axis of `pairs`."""
        return sums.reshape((*sums.shape[:-2], len(self.pairs), -1, sums.shape[-1]))

    def __repr__(self) -> str:
        """Return the kernels and the number of factors."""
        return f"{self.kernels!r} with {self.n_factors} factors"


def _joined(
    own: TensorVariable, factors: Sequence[TensorVariable], scores: Sequence[TensorVariable]
) -> TensorVariable:
    """Return the coefficients of a template with the scores of an observation, numbers."""
    by_factor = zip(scores, factors, strict=True)
    found: TensorVariable = pt.add(own, *(score * each for score, each in by_factor))
    return found
