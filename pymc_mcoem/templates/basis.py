"""Fixed dictionaries of Gaussian kernels, in which templates are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph

from pymc_mcoem.numbers import is_number
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
        if not (is_number(bandwidth) and bandwidth > 0):
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
        points : tensor_like of shape (n_points, n_dims), or list of n_dims vectors
            The points, or their coordinates one axis after the other.
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
        moments = pt.dot(weighted, self.centres) - weighted.sum(axis=1)[:, None] * points
        return (2.0 / self.bandwidth**2) * moments

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
            pt.sqr(column[:, None] - self.centres[None, :, axis])
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

    def _coordinates(self, points: Any) -> list[TensorVariable]:
        """Return the coordinates of points, one vector an axis."""
        if isinstance(points, list):
            return [pt.as_tensor_variable(column) for column in points]
        points = pt.as_tensor_variable(points)
        return [points[:, axis] for axis in range(self.n_dims)]

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

    def _factor(self, axis: int, coordinates: TensorVariable) -> TensorVariable:
        """Return the kernels of one axis at coordinates, (axis length, n_points)."""
        away = self.axes[axis][:, None] - coordinates[None, :]
        return pt.exp(pt.sqr(away) * (-1.0 / self.bandwidth**2))

    def _factors(self, points: Any) -> list[TensorVariable]:
        """Return one matrix (axis length, n_points) an axis, whose products are the kernels."""
        return [self._factor(axis, column) for axis, column in enumerate(self._coordinates(points))]

    def evaluate(self, points: Any, coefficients: Any) -> TensorVariable:
        coefficients = pt.as_tensor_variable(coefficients)
        if len(self.axes) != 2:
            return self._contract(self._factors(points), coefficients)
        # Derivatives by the points are written out, not left to the automatic ones: then values,
        # derivatives and Gauss-Newton matrix share both matrix products, of which each further
        # one is another BLAS wrapper to compile.
        inputs = [*self._coordinates(points), coefficients]
        operator = OpFromGraph(
            inputs,
            [self._evaluate_plane(*inputs)],
            inline=True,
            pullback=self._pull_back,
            name="evaluate",
        )
        values: TensorVariable = operator(*inputs)
        return values

    def _evaluate_plane(
        self, first: TensorVariable, second: TensorVariable, coefficients: TensorVariable
    ) -> TensorVariable:
        factors = [self._factor(0, first), self._factor(1, second)]
        return (factors[1] * self._summed_over_first(factors[0], coefficients)).sum(axis=0)

    def _pull_back(
        self, inputs: Sequence[TensorVariable], outputs: Any, cotangents: Any
    ) -> list[TensorVariable]:
        (*columns, coefficients), cotangent = inputs, _only(cotangents)
        slopes = self._slopes(columns, coefficients)
        factors = [self._factor(axis, column) for axis, column in enumerate(columns)]
        return [*(cotangent * slope for slope in slopes), _product(factors, cotangent)]

    def _summed_over_first(
        self, first: TensorVariable, coefficients: TensorVariable
    ) -> TensorVariable:
        """Return Σ_a α_ab φ_a(u_s), (second axis length, n_points).

        The coefficients are put in order, not transposed: all products of this class then have
        operands of one and the same memory layout, and are compiled once.
        """
        n_first, n_second = (axis.size for axis in self.axes)
        order = np.arange(self.n_basis).reshape(n_first, n_second).T.ravel()
        return pt.dot(coefficients[order].reshape((n_second, n_first)), first)

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
        coefficients = pt.as_tensor_variable(coefficients)
        return pt.stack(self._slopes(self._coordinates(points), coefficients), axis=1)

    def _slopes(
        self, columns: Sequence[TensorVariable], coefficients: TensorVariable
    ) -> list[TensorVariable]:
        """Return ∂f/∂u_k at the points whose coordinates are the columns, (n_points,) each."""
        factors = [self._factor(axis, column) for axis, column in enumerate(columns)]
        steep = [
            factor * ((-2.0 / self.bandwidth**2) * (column[None, :] - axis[:, None]))
            for axis, column, factor in zip(self.axes, columns, factors, strict=True)
        ]
        if len(self.axes) == 2:
            grid = coefficients.reshape(tuple(axis.size for axis in self.axes))
            return [
                (steep[0] * pt.dot(grid, factors[1])).sum(axis=0),
                (steep[1] * self._summed_over_first(factors[0], coefficients)).sum(axis=0),
            ]
        return [
            self._contract([*factors[:index], slope, *factors[index + 1 :]], coefficients)
            for index, slope in enumerate(steep)
        ]

    def design(self, points: Any) -> TensorVariable:
        factors = self._factors(points)
        if len(factors) == 1:
            return factors[0].T
        # Each factor is spread over all kernels by its rows' numbers. A plain product of
        # exponentials would be rewritten as the exponential of a sum: n_points × n_basis of
        # them, which took as long as ΦᵀΦ itself.
        indices = np.indices([axis.size for axis in self.axes]).reshape(len(self.axes), -1)
        spread = [factor[where] for factor, where in zip(factors, indices, strict=True)]
        return pt.mul(*spread).T

    def project(self, points: Any, weights: Any) -> TensorVariable:
        if len(self.axes) != 2:
            return super().project(points, weights)
        return _product(self._factors(points), pt.as_tensor_variable(weights))


def _product(factors: Sequence[TensorVariable], weights: TensorVariable) -> TensorVariable:
    """Return Σ_s w_s φ_l(u_s) of two factors, (n_basis,)."""
    first, second = factors
    return pt.dot(first * weights[None, :], second.T).ravel()


def _only(cotangents: Any) -> TensorVariable:
    """Return the cotangent of the one output, which PyTensor hands over in a list or bare."""
    if isinstance(cotangents, (list, tuple)):
        (cotangent,) = cotangents
        return cotangent
    return cotangents
