"""Fixed dictionaries of Gaussian kernels, in which templates are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.products import matrix_vector

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["GaussianBasis"]


class GaussianBasis:
    """Gaussian kernels φ_l(u) = exp(−|u − r_l|² / ν²) around given centres.

    Parameters
    ----------
    centres : array_like of shape (n_basis, n_dims)
        Centres r_l, anywhere. A vector stands for centres on the line, ``n_dims = 1``.
    bandwidth : float
        The bandwidth ν, in the unit of the centres.

    Attributes
    ----------
    centres : ndarray of shape (n_basis, n_dims)
    bandwidth : float
    n_basis, n_dims : int

    Raises
    ------
    ValueError
        If the centres are not finite or not one or two dimensional, or the bandwidth is not
        positive.

    See Also
    --------
    GaussianBasis.regular : the same functions on a regular grid, much cheaper to evaluate.

    Notes
    -----
    Label ``modelFunc`` of the paper, with the sign of the exponent set right.

    Examples
    --------
    >>> import numpy as np
    >>> basis = GaussianBasis([0.0, 1.0], bandwidth=1.0)
    >>> basis.matrix(np.array([[0.0]])).round(3)
    array([[1.   , 0.368]])
    """

    centres: np.ndarray
    bandwidth: float

    def __init__(self, centres: Any, bandwidth: float) -> None:
        array = np.array(centres, dtype=np.float64)
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2 or 0 in array.shape:
            raise ValueError(
                f"centres has shape {np.shape(centres)}; give one row a kernel, (n_basis, n_dims)."
            )
        if not np.isfinite(array).all():
            raise ValueError("centres holds values that are not finite; drop or repair them.")
        if not (np.ndim(bandwidth) == 0 and np.isfinite(bandwidth) and bandwidth > 0):
            raise ValueError(f"bandwidth is {bandwidth!r}; give one positive number.")
        self.centres = array
        self.bandwidth = float(bandwidth)

    @classmethod
    def regular(cls, axes: Sequence[Any], bandwidth: float) -> GaussianBasis:
        """Return the kernels whose centres are all combinations of coordinates on the axes.

        A Gaussian in several dimensions is a product of Gaussians in one, so a template on
        such a grid is evaluated by small matrix products and never by the design matrix.

        Parameters
        ----------
        axes : sequence of array_like
            The coordinates on every axis, ``n_dims`` vectors.
        bandwidth : float
            The bandwidth ν.

        Returns
        -------
        GaussianBasis
            With ``n_basis`` the product of the axes' lengths. Coefficients are in C order: the
            last axis runs fastest, as in ``coefficient_grid.ravel()`` of a grid indexed
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
    def n_basis(self) -> int:
        """Number of kernels."""
        return int(self.centres.shape[0])

    @property
    def n_dims(self) -> int:
        """Dimension of the space that the functions live on."""
        return int(self.centres.shape[1])

    def evaluate(self, points: Any, coefficients: Any) -> TensorVariable:
        """Return f(u_s) = Σ_l α_l φ_l(u_s).

        Parameters
        ----------
        points : tensor_like of shape (n_points, n_dims)
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
        points : tensor_like of shape (n_points, n_dims)
        coefficients : tensor_like of shape (n_basis,)

        Returns
        -------
        TensorVariable of shape (n_points, n_dims)
        """
        points = pt.as_tensor_variable(points)
        weighted = self.design(points) * pt.as_tensor_variable(coefficients)
        # Σ_l α_l φ_l (r_l − u) 2/ν², with the sum over l taken before the difference
        moments = pt.dot(weighted, self.centres) - weighted.sum(axis=1)[:, None] * points
        return (2.0 / self.bandwidth**2) * moments

    def design(self, points: Any) -> TensorVariable:
        """Return the design matrix Φ[s, l] = φ_l(u_s).

        Parameters
        ----------
        points : tensor_like of shape (n_points, n_dims)

        Returns
        -------
        TensorVariable of shape (n_points, n_basis)
        """
        points = pt.as_tensor_variable(points)
        squares = [
            pt.sqr(points[:, axis, None] - self.centres[None, :, axis])
            for axis in range(self.n_dims)
        ]
        return pt.exp(pt.add(*squares) * (-1.0 / self.bandwidth**2))

    def project(self, points: Any, weights: Any) -> TensorVariable:
        """Return Σ_s w_s φ_l(u_s), that is Φᵀw.

        Parameters
        ----------
        points : tensor_like of shape (n_points, n_dims)
        weights : tensor_like of shape (n_points,)

        Returns
        -------
        TensorVariable of shape (n_basis,)
        """
        return matrix_vector(self.design(points).T, weights)

    def matrix(self, points: np.ndarray) -> np.ndarray:
        """Return the design matrix as numbers.

        Parameters
        ----------
        points : ndarray of shape (n_points, n_dims)

        Returns
        -------
        ndarray of shape (n_points, n_basis)
        """
        difference = np.asarray(points, dtype=np.float64)[:, None, :] - self.centres[None, :, :]
        values: np.ndarray = np.exp(-np.square(difference).sum(axis=-1) / self.bandwidth**2)
        return values

    def gram(self) -> np.ndarray:
        """Return K, the kernels at one another's centres: K[p, q] = exp(−|r_p − r_q|² / ν²).

        Returns
        -------
        ndarray of shape (n_basis, n_basis)

        Examples
        --------
        >>> GaussianBasis([0.0, 1.0], bandwidth=1.0).gram().round(3)
        array([[1.   , 0.368],
               [0.368, 1.   ]])
        """
        return self.matrix(self.centres)

    def __repr__(self) -> str:
        """Return the number of kernels and the bandwidth."""
        return (
            f"GaussianBasis({self.n_basis} kernels in {self.n_dims} dimensions, "
            f"bandwidth={self.bandwidth:.4g})"
        )


class _RegularGaussianBasis(GaussianBasis):
    """Gaussian kernels on a regular grid: separable."""

    def __init__(self, axes: Sequence[Any], bandwidth: float) -> None:
        self.axes = tuple(np.array(axis, dtype=np.float64) for axis in axes)
        if not self.axes or any(axis.ndim != 1 or axis.size == 0 for axis in self.axes):
            raise ValueError(
                f"axes has shapes {[axis.shape for axis in self.axes]}; give a non-empty vector "
                "of coordinates for every dimension."
            )
        mesh = np.meshgrid(*self.axes, indexing="ij")
        super().__init__(np.stack([part.ravel() for part in mesh], axis=-1), bandwidth)

    def _factors(self, points: Any) -> list[TensorVariable]:
        """Return one matrix (n_points, axis length) an axis, whose products are the kernels."""
        points = pt.as_tensor_variable(points)
        rate = -1.0 / self.bandwidth**2
        return [
            pt.exp(pt.sqr(points[:, index, None] - axis[None, :]) * rate)
            for index, axis in enumerate(self.axes)
        ]

    def _contract(
        self, factors: Sequence[TensorVariable], coefficients: TensorVariable
    ) -> TensorVariable:
        """Return Σ over all axes of the product of the factors and the coefficient grid."""
        lengths = [axis.size for axis in self.axes]
        rest = int(np.prod(lengths[1:]))
        values = pt.dot(factors[0], coefficients.reshape((lengths[0], rest)))
        for length, factor in zip(lengths[1:], factors[1:], strict=True):
            rest //= length
            if rest == 1:
                values = (values * factor).sum(axis=1)
            else:
                values = (values.reshape((-1, length, rest)) * factor[:, :, None]).sum(axis=1)
        return values if len(lengths) > 1 else values[:, 0]

    def evaluate(self, points: Any, coefficients: Any) -> TensorVariable:
        return self._contract(self._factors(points), pt.as_tensor_variable(coefficients))

    def gradient(self, points: Any, coefficients: Any) -> TensorVariable:
        points = pt.as_tensor_variable(points)
        coefficients = pt.as_tensor_variable(coefficients)
        factors = self._factors(points)
        columns = []
        for index, axis in enumerate(self.axes):
            slope = (-2.0 / self.bandwidth**2) * (points[:, index, None] - axis[None, :])
            steep = [*factors[:index], factors[index] * slope, *factors[index + 1 :]]
            columns.append(self._contract(steep, coefficients))
        return pt.stack(columns, axis=1)

    def design(self, points: Any) -> TensorVariable:
        factors = self._factors(points)
        if len(factors) == 1:
            return factors[0]
        # Each factor is spread over all kernels by a constant matrix of zeros and ones. A plain
        # product of exponentials would be rewritten as the exponential of a sum: n_points ×
        # n_basis of them, which took as long as ΦᵀΦ itself.
        indices = np.indices([axis.size for axis in self.axes]).reshape(len(self.axes), -1)
        spread = [
            pt.dot(factor, np.eye(axis.size)[:, where])
            for factor, axis, where in zip(factors, self.axes, indices, strict=True)
        ]
        return pt.mul(*spread)

    def project(self, points: Any, weights: Any) -> TensorVariable:
        if len(self.axes) != 2:
            return super().project(points, weights)
        first, second = self._factors(points)
        weighted = first * pt.as_tensor_variable(weights)[:, None]
        return pt.dot(weighted.T, second).ravel()
