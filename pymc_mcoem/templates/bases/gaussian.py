"""Fixed dictionaries of Gaussian kernels for templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from numpy.lib.stride_tricks import sliding_window_view

from pymc_mcoem.compiling.linear_algebra import matrix_product, matrix_vector
from pymc_mcoem.templates.bases.bands import symmetric_bands
from pymc_mcoem.templates.bases.even_grid import EvenGrid
from pymc_mcoem.templates.bases.separable import (
    KernelBends,
    KernelSlopes,
    KernelSums,
    KernelValues,
)
from pymc_mcoem.validation import is_number

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["GaussianBasis"]


class GaussianBasis:
    """Gaussian kernels φ_l(u) = exp(−|u − r_l|² / ν²) around given centers.

    Parameters
    ----------
    centers : array_like of shape (n_basis, n_dims)
        Centers r_l, anywhere. A vector means centers on the line, ``n_dims = 1``.
    bandwidth : float
        The bandwidth ν, in the unit of the centers.

    Attributes
    ----------
    centers : ndarray of shape (n_basis, n_dims)
    bandwidth : float
    n_basis, n_dims : int

    Raises
    ------
    ValueError
        If the centers are not finite or not an array of one or two dimensions, or the bandwidth
        is not positive.

    See Also
    --------
    GaussianBasis.regular : The same functions on a regular grid, much cheaper to evaluate.

    Notes
    -----
    Label ``modelFunc`` of the paper, with the sign of the exponent corrected.

    Examples
    --------
    >>> import numpy as np
    >>> basis = GaussianBasis([0.0, 1.0], bandwidth=1.0)
    >>> basis.matrix(np.array([[0.0]])).round(3)
    array([[1.   , 0.368]])
    """

    centers: np.ndarray
    bandwidth: float
    #: The centers as an evenly spaced grid in the plane, if they are one.
    grid: EvenGrid | None = None

    def __init__(self, centers: Any, bandwidth: float) -> None:
        array = np.array(centers, dtype=np.float64)
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2 or 0 in array.shape:
            raise ValueError(
                f"centers has shape {np.shape(centers)}; give one row per kernel (n_basis, n_dims)."
            )
        if not np.isfinite(array).all():
            raise ValueError("centers holds values that are not finite; drop or repair them.")
        if not (is_number(bandwidth) and bandwidth > 0):
            raise ValueError(f"bandwidth is {bandwidth!r}; give one positive number.")
        self.centers = array
        self.bandwidth = float(bandwidth)

    @classmethod
    def regular(cls, axes: Sequence[Any], bandwidth: float) -> GaussianBasis:
        """Return the kernels whose centers are all combinations of coordinates on the axes.

        A Gaussian in several dimensions is a product of Gaussians in one, so a template on
        such a grid is evaluated by small matrix products, without the design matrix.

        Parameters
        ----------
        axes : sequence of array_like
            Coordinates on each axis, ``n_dims`` vectors.
        bandwidth : float
            The bandwidth ν.

        Returns
        -------
        GaussianBasis
            ``n_basis`` is the product of the axes' lengths. Coefficients are in C order: the
            last axis runs fastest, as in ``coefficient_grid.ravel()`` for a grid indexed
            ``[axis 0, axis 1]``.

        Raises
        ------
        ValueError
            If an axis is empty, not a vector or not finite.

        Examples
        --------
        >>> GaussianBasis.regular([[0.0, 1.0], [0.0, 1.0, 2.0]], bandwidth=1.5).n_basis
        6
        """
        return _RegularGaussianBasis(axes, bandwidth)

    @property
    def is_own_kind(self) -> bool:
        """Whether the basis is a class of this module, not a class derived from it elsewhere."""
        return type(self) in (GaussianBasis, _RegularGaussianBasis)

    @property
    def n_basis(self) -> int:
        """Number of kernels."""
        return int(self.centers.shape[0])

    @property
    def n_dims(self) -> int:
        """Dimension of the space on which the functions are defined."""
        return int(self.centers.shape[1])

    def evaluate(self, points: Any, coefficients: Any) -> TensorVariable:
        """Return f(u_s) = Σ_l α_l φ_l(u_s).

        Parameters
        ----------
        points : tensor_like of shape (n_points, n_dims), or list of n_dims vectors
            The points, or a vector of coordinates for each axis.
        coefficients : tensor_like of shape (n_basis,)

        Returns
        -------
        TensorVariable of shape (n_points,)
        """
        return pt.dot(self.design(points), pt.as_tensor_variable(coefficients))

    def gradient(self, points: Any, coefficients: Any) -> TensorVariable:
        """Return ∇f(u_s), the derivatives of `evaluate` with respect to the points.

        Parameters
        ----------
        points : tensor_like of shape (n_points, n_dims), or list of n_dims vectors
        coefficients : tensor_like of shape (n_basis,)

        Returns
        -------
        TensorVariable of shape (n_points, n_dims)
        """
        points = pt.stack(self._coordinates(points), axis=1)
        weighted = self.design(points) * pt.as_tensor_variable(coefficients)
        # Σ_l α_l φ_l (r_l − u) 2/ν², with the sum over l taken before the difference
        moments = pt.dot(weighted, self.centers) - weighted.sum(axis=1)[:, None] * points
        return (2.0 / self.bandwidth**2) * moments

    def second_derivatives(self, points: Any, coefficients: Any) -> list[list[TensorVariable]]:
        """Return ∂²f/∂u_k∂u_l at the points, row by row of the symmetric matrix.

        Parameters
        ----------
        points : tensor_like of shape (n_points, n_dims), or list of n_dims vectors
        coefficients : tensor_like of shape (n_basis,)

        Returns
        -------
        list of n_dims lists of n_dims vectors (n_points,)

        Examples
        --------
        >>> basis = GaussianBasis([0.0], bandwidth=1.0)
        >>> float(basis.second_derivatives([[0.0]], [1.0])[0][0].eval()[0])
        -2.0
        """
        columns = [pt.as_tensor_variable(column) for column in self._coordinates(points)]
        found = self._bends(columns, pt.as_tensor_variable(coefficients))
        axes = range(self.n_dims)
        return [[found[min(k, m), max(k, m)] for m in axes] for k in axes]

    def _bends(
        self, columns: Sequence[TensorVariable], coefficients: TensorVariable
    ) -> dict[tuple[int, int], TensorVariable]:
        """Return ∂²f/∂u_k∂u_l for k ≤ l."""
        weighted = self.design(list(columns)) * coefficients
        steepness = 2.0 / self.bandwidth**2
        away = [
            self.centers[None, :, axis] - column[:, None] for axis, column in enumerate(columns)
        ]
        found = {}
        for k, first in enumerate(away):
            for m, second in enumerate(away[k:], start=k):
                factor = steepness**2 * first * second - (steepness if k == m else 0.0)
                found[k, m] = (weighted * factor).sum(axis=1)
        return found

    def design(self, points: Any) -> TensorVariable:
        """Return the design matrix Φ[s, l] = φ_l(u_s).

        Parameters
        ----------
        points : tensor_like of shape (n_points, n_dims), or list of n_dims vectors

        Returns
        -------
        TensorVariable of shape (n_points, n_basis)
        """
        squares = [
            pt.sqr(column[:, None] - self.centers[None, :, axis])
            for axis, column in enumerate(self._coordinates(points))
        ]
        return pt.exp(pt.add(*squares) * (-1.0 / self.bandwidth**2))

    def project(self, points: Any, weights: Any) -> TensorVariable:
        """Return Σ_s w_s φ_l(u_s), that is Φᵀw.

        Parameters
        ----------
        points : tensor_like of shape (n_points, n_dims), or list of n_dims vectors
        weights : tensor_like of shape (n_points,)

        Returns
        -------
        TensorVariable of shape (n_basis,)
        """
        return matrix_vector(self.design(points).T, weights)

    def gram_sums(self, points: Any, weights: Any) -> TensorVariable:
        """Return Σ_s w_s φ(u_s) φ(u_s)ᵀ, in the form that `unpack_gram` takes.

        Parameters
        ----------
        points : tensor_like of shape (n_points, n_dims), or list of n_dims vectors
        weights : tensor_like of shape (n_points,)

        Returns
        -------
        TensorVariable of shape (n_basis, n_basis)
            On an evenly spaced grid in the plane, of shape (2 n_first − 1, 2 n_second − 1): the
            product of two kernels is a constant times a kernel halfway between them, so that
            all pairs whose indices have the same sum share one entry.
        """
        design = self.design(points).T
        return matrix_product(design * pt.as_tensor_variable(weights)[None, :], design.T)

    def unpack_gram(self, sums: np.ndarray) -> np.ndarray:
        """Return the matrices that `gram_sums` represents by sums.

        Parameters
        ----------
        sums : ndarray of shape (..., n_basis, n_basis), or as `gram_sums` returns it
            Matrices are returned as they are.

        Returns
        -------
        ndarray of shape (..., n_basis, n_basis)

        Raises
        ------
        ValueError
            If the shape is neither of these.

        Examples
        --------
        >>> import numpy as np
        >>> basis = GaussianBasis.regular([[0.0, 1.0], [0.0, 1.0, 2.0]], bandwidth=1.5)
        >>> points = np.array([[0.3, 0.9], [0.8, 1.7]])
        >>> sums = basis.gram_sums(points, np.array([1.0, 0.5])).eval()
        >>> sums.shape
        (3, 5)
        >>> design = basis.matrix(points)
        >>> np.allclose(basis.unpack_gram(sums), design.T @ np.diag([1.0, 0.5]) @ design)
        True
        """
        sums = np.asarray(sums, dtype=np.float64)
        if sums.shape[-2:] != (self.n_basis, self.n_basis):
            raise ValueError(
                f"sums has shape {sums.shape}; give what gram_sums returns, or matrices (..., "
                f"{self.n_basis}, {self.n_basis})."
            )
        return sums

    def gram_bands(self, sums: np.ndarray, width: int) -> np.ndarray:
        """Return the same as `unpack_gram`, by bands; see `symmetric_bands`.

        Parameters
        ----------
        sums : ndarray of shape (..., n_basis, n_basis), or as `gram_sums` returns it
        width : int

        Returns
        -------
        ndarray of shape (..., n_basis, width + 1)
        """
        return symmetric_bands(self.unpack_gram(sums), width)

    def _coordinates(self, points: Any) -> list[TensorVariable]:
        """Return the coordinates of points, one vector for each axis."""
        if isinstance(points, list):
            return [pt.as_tensor_variable(column) for column in points]
        points = pt.as_tensor_variable(points)
        return [points[:, axis] for axis in range(self.n_dims)]

    def matrix(self, points: np.ndarray) -> np.ndarray:
        """Return the design matrix as a NumPy array.

        Parameters
        ----------
        points : ndarray of shape (n_points, n_dims)

        Returns
        -------
        ndarray of shape (n_points, n_basis)
        """
        difference = np.asarray(points, dtype=np.float64)[:, None, :] - self.centers[None, :, :]
        values: np.ndarray = np.exp(-np.square(difference).sum(axis=-1) / self.bandwidth**2)
        return values

    def gram(self) -> np.ndarray:
        """Return K, the kernels at one another's centers: K[p, q] = exp(−|r_p − r_q|² / ν²).

        Returns
        -------
        ndarray of shape (n_basis, n_basis)

        Examples
        --------
        >>> GaussianBasis([0.0, 1.0], bandwidth=1.0).gram().round(3)
        array([[1.   , 0.368],
               [0.368, 1.   ]])
        """
        return self.matrix(self.centers)

    def __repr__(self) -> str:
        """Return the number of kernels and the bandwidth."""
        return (
            f"GaussianBasis({self.n_basis} kernels in {self.n_dims} dimensions, "
            f"bandwidth={self.bandwidth:.4g})"
        )


class _RegularGaussianBasis(GaussianBasis):
    """Gaussian kernels on a regular grid, evaluated axis by axis."""

    def __init__(self, axes: Sequence[Any], bandwidth: float) -> None:
        self.axes = tuple(np.array(axis, dtype=np.float64) for axis in axes)
        if not self.axes or any(axis.ndim != 1 or axis.size == 0 for axis in self.axes):
            raise ValueError(
                f"axes has shapes {[axis.shape for axis in self.axes]}; give a non-empty vector "
                "of coordinates for every dimension."
            )
        mesh = np.meshgrid(*self.axes, indexing="ij")
        super().__init__(np.stack([part.ravel() for part in mesh], axis=-1), bandwidth)
        self.grid = EvenGrid.from_axes(self.axes, self.bandwidth)

    def _factors(self, points: Any) -> list[TensorVariable]:
        """Return a matrix (axis length, n_points) for each axis; their products are the kernels."""
        return [
            pt.exp(pt.sqr(axis[:, None] - column[None, :]) * (-1.0 / self.bandwidth**2))
            for axis, column in zip(self.axes, self._coordinates(points), strict=True)
        ]

    def evaluate(self, points: Any, coefficients: Any) -> TensorVariable:
        coefficients = pt.as_tensor_variable(coefficients)
        if self.grid is not None:
            values: TensorVariable = KernelValues.of(
                self.grid, self._coordinates(points), coefficients
            )
            return values
        return self._contract(self._factors(points), coefficients)

    def _contract(
        self, factors: Sequence[TensorVariable], coefficients: TensorVariable
    ) -> TensorVariable:
        """Return Σ over all axes of the product of the factors and the coefficient grid."""
        lengths = [axis.size for axis in self.axes]
        values = coefficients.reshape((*lengths, 1))
        for factor in factors:
            extra = (1,) * (values.ndim - 2)
            shape = (factor.shape[0], *extra, factor.shape[1])
            values = (values * factor.reshape(shape)).sum(axis=0)
        return values

    def gradient(self, points: Any, coefficients: Any) -> TensorVariable:
        columns, coefficients = self._coordinates(points), pt.as_tensor_variable(coefficients)
        if self.grid is not None:
            return pt.stack(KernelSlopes.of(self.grid, columns, coefficients), axis=1)
        slopes, factors = [], self._factors(columns)
        for at, (axis, column) in enumerate(zip(self.axes, columns, strict=True)):
            steep = factors[at] * ((-2.0 / self.bandwidth**2) * (column[None, :] - axis[:, None]))
            others = [*factors[:at], steep, *factors[at + 1 :]]
            slopes.append(self._contract(others, coefficients))
        return pt.stack(slopes, axis=1)

    def _bends(
        self, columns: Sequence[TensorVariable], coefficients: TensorVariable
    ) -> dict[tuple[int, int], TensorVariable]:
        if self.grid is not None:
            pairs = (0, 0), (0, 1), (1, 1)
            return dict(zip(pairs, KernelBends.of(self.grid, columns, coefficients), strict=True))
        if len(columns) > 1:
            return super()._bends(columns, coefficients)
        steepness = 2.0 / self.bandwidth**2
        away = columns[0][None, :] - self.axes[0][:, None]
        (factor,) = self._factors(list(columns))
        bent = factor * (steepness**2 * pt.sqr(away) - steepness)
        return {(0, 0): self._contract([bent], coefficients)}

    def design(self, points: Any) -> TensorVariable:
        factors = self._factors(points)
        if len(factors) == 1:
            return factors[0].T
        # Each factor is spread over all kernels by the indices of its rows. PyTensor would rewrite
        # a plain product of exponentials as the exponential of a sum: n_points × n_basis
        # exponentials, which took as long as ΦᵀΦ itself.
        indices = np.indices([axis.size for axis in self.axes]).reshape(len(self.axes), -1)
        spread = [factor[where] for factor, where in zip(factors, indices, strict=True)]
        return pt.mul(*spread).T

    def project(self, points: Any, weights: Any) -> TensorVariable:
        if self.grid is None:
            return super().project(points, weights)
        weights = pt.as_tensor_variable(weights)
        sums: TensorVariable = KernelSums.of(self.grid, self._coordinates(points), weights)
        return sums.ravel()

    def gram_sums(self, points: Any, weights: Any) -> TensorVariable:
        if self.grid is None:
            return super().gram_sums(points, weights)
        weights = pt.as_tensor_variable(weights)
        # entry (a, b) belongs to all pairs of kernels whose indices add up to a and b
        sums: TensorVariable = KernelSums.of(self.grid.halved(), self._coordinates(points), weights)
        return sums

    def unpack_gram(self, sums: np.ndarray) -> np.ndarray:
        sums = np.asarray(sums, dtype=np.float64)
        if self.grid is None or sums.shape[-2:] != self.grid.halved().length:
            return super().unpack_gram(sums)
        # entry (p, q) of the matrix belongs to the sum at p + q, so its rows are windows of sums,
        # times exp(−|r_p − r_q|² / 2ν²)
        first, second = (
            np.exp(-0.5 * np.square((axis[:, None] - axis[None, :]) / self.bandwidth))
            for axis in self.axes
        )
        windows = sliding_window_view(sums, self.grid.length, axis=(-2, -1))
        shared = windows * (first[:, None, :, None] * second[None, :, None, :])
        whole: np.ndarray = shared.reshape(*sums.shape[:-2], self.n_basis, self.n_basis)
        return whole

    def gram_bands(self, sums: np.ndarray, width: int) -> np.ndarray:
        if self.grid is None or sums.shape[-2:] != self.grid.halved().length:
            return super().gram_bands(sums, width)
        return self.grid.gram_bands(sums, width)
