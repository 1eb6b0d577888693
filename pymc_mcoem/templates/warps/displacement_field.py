"""Small displacements around landmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_mcoem.compiling.linear_algebra import matrix_product
from pymc_mcoem.templates.warps.deformations import Deformation
from pymc_mcoem.validation import is_number

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["DisplacementField"]


class DisplacementField(Deformation):
    """Small displacements around landmarks: D(u) = u + Σ_k δ_k ψ_k(u).

    ψ_k(u) = exp(−|u − q_k|² / width²). β is δ axis by axis (all first coordinates, then all
    second ones), with mean zero and base covariance M = Id ⊗ M_K, where M_K has ones on the
    diagonal and `correlation` where two landmarks are neighbors: on a common line parallel to an
    axis with no landmark between. Landmarks that are diagonal to one another, or share no such
    line, are uncorrelated. All of β is learned.

    Parameters
    ----------
    landmarks : array_like of shape (n_landmarks, n_dims)
        The points q_k. A vector means landmarks on the line.
    width : float
        Width of the ψ_k, in the unit of the landmarks (0.4 for the paper's digits, whose
        kernels are exp(−|u − q|² / 0.16)).
    correlation : float, default 0.2
        Correlation of neighboring landmarks' displacements.

    Raises
    ------
    ValueError
        If the landmarks are not finite, the width is not positive, or M is not positive definite
        with this correlation.

    Notes
    -----
    Section ``subsec:5:2`` of the paper. On a grid in two dimensions M is positive definite for
    every correlation in [−0.25, 0.25] and any number of landmarks.

    Examples
    --------
    >>> field = DisplacementField([[0, 0], [0, 1]], width=1.0)
    >>> field.labels
    ('displacement[0,0]', 'displacement[0,1]', 'displacement[1,0]', 'displacement[1,1]')
    >>> field.covariance[:2, :2]
    array([[1. , 0.2],
           [0.2, 1. ]])
    """

    def __init__(self, landmarks: Any, width: float, correlation: float = 0.2) -> None:
        array = np.array(landmarks, dtype=np.float64)
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2 or 0 in array.shape or not np.isfinite(array).all():
            raise ValueError(
                f"landmarks has shape {np.shape(landmarks)}; give finite numbers, one row per "
                "landmark, (n_landmarks, n_dims)."
            )
        if not (is_number(width) and width > 0):
            raise ValueError(f"width is {width!r}; give one positive number.")
        self.landmarks = array
        self._axes = _axes_of_grid(array)
        self.width = float(width)
        self.correlation = float(correlation)
        n_landmarks, self.n_dims = array.shape
        block = np.eye(n_landmarks) + self.correlation * _neighbors(array)
        smallest = float(np.linalg.eigvalsh(block)[0])
        if not smallest > 1e-10:
            raise ValueError(
                f"correlation is {correlation!r}: the covariance of the displacements has the "
                f"eigenvalue {smallest:.3g}; give a correlation nearer to zero."
            )
        self.mean = np.zeros(self.n_dims * n_landmarks)
        self.covariance = np.kron(np.eye(self.n_dims), block)
        self.learned = np.ones(self.mean.size, dtype=bool)
        self.labels = tuple(
            f"displacement[{axis},{landmark}]"
            for axis in range(self.n_dims)
            for landmark in range(n_landmarks)
        )

    @classmethod
    def on_grid(
        cls, axes: Sequence[Any], width: float, correlation: float = 0.2
    ) -> DisplacementField:
        """Return the field whose landmarks are all combinations of coordinates on the axes.

        Parameters
        ----------
        axes : sequence of array_like
            The landmarks' coordinates on each axis; the last axis runs fastest.
        width, correlation : float
            As for the class.
        """
        mesh = np.meshgrid(*axes, indexing="ij")
        return cls(np.stack([part.ravel() for part in mesh], axis=-1), width, correlation)

    def _kernels(self, points: np.ndarray) -> np.ndarray:
        """Return ψ_k(u_s), shape (n_landmarks, n_points)."""
        difference = self.landmarks[:, None, :] - points[None, :, :]
        values: np.ndarray = np.exp(-np.square(difference).sum(axis=-1) / self.width**2)
        return values

    def displacement_variance(self, points: np.ndarray) -> np.ndarray:
        """Return the variance of the displacement of points along each axis, with γ² = 1.

        Parameters
        ----------
        points : ndarray of shape (n_points, n_dims)

        Returns
        -------
        ndarray of shape (n_points,)

        Examples
        --------
        >>> field = DisplacementField([[0, 0], [0, 1]], width=1.0)
        >>> field.displacement_variance(field.landmarks).round(3)
        array([1.282, 1.282])
        """
        kernels, n = self._kernels(points), len(self.landmarks)
        found: np.ndarray = np.einsum("ka,kl,la->a", kernels, self.covariance[:n, :n], kernels)
        return found

    def warped(self, points: np.ndarray, beta: TensorVariable) -> list[TensorVariable]:
        """Return the warped points, one vector for each dimension."""
        factors = self.factors(points)
        if factors is None:
            kernels = self._kernels(points)
            both = matrix_product(beta.reshape((self.n_dims, len(self.landmarks))), kernels)
            moved = [both[axis] for axis in range(self.n_dims)]
        else:
            # Sums along one axis, then along the other, take a quarter of the work at 16 × 16
            # points, and need no constant of size points × landmarks.
            first, second = factors
            table = matrix_product(beta.reshape((-1, len(second))), second)
            table = table.reshape((2, len(first), second.shape[1]))
            moved = [matrix_product(first.T.copy(), table[axis]).ravel() for axis in (0, 1)]
        return [points[:, axis] + moved[axis] for axis in range(self.n_dims)]

    def jacobian(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return the derivatives of f(D(u_s, β)), shape (n_parameters, n_points)."""
        kernels = self._kernels(np.asarray(points, np.float64))
        gradient = pt.as_tensor_variable(gradient)
        return pt.concatenate(
            [kernels * gradient[None, :, axis] for axis in range(self.n_dims)], axis=0
        )

    def derivatives(self, points: np.ndarray, beta: Any) -> list[TensorVariable]:
        """Return ∂D_k(u_s, β)/∂β, a matrix (n_parameters, n_points) for each axis."""
        kernels = self._kernels(np.asarray(points, np.float64))
        axes = np.eye(self.n_dims)
        return [
            pt.as_tensor_variable(np.kron(axes[:, [axis]], kernels)) for axis in range(self.n_dims)
        ]

    def contract(
        self, points: np.ndarray, beta: Any, rows: Sequence[TensorVariable]
    ) -> TensorVariable:
        """Return Σ_k rows_k (∂D_k/∂β)ᵀ for a matrix (n, n_points) per axis, (n, n_parameters)."""
        factors = self.factors(points)
        if factors is None:
            kernels = self._kernels(np.asarray(points, np.float64)).T.copy()
            return pt.concatenate([matrix_product(row, kernels) for row in rows], axis=1)
        first, second = (len(each) for each in factors)
        both = pt.concatenate(list(rows), axis=0)
        table = _along_both(both, *factors).reshape((first, 2, -1, second))
        return table.transpose(2, 1, 0, 3).reshape((-1, self.n_parameters))

    def second_derivatives(
        self,
        points: np.ndarray,
        beta: Any,
        slopes: Sequence[TensorVariable],
        bends: Sequence[Sequence[TensorVariable]],
    ) -> TensorVariable:
        """Return the second derivatives by β of Σ_s g_s(D(u_s, β)); D is linear in β."""
        axes = range(self.n_dims)
        above = [(k, m) for k in axes for m in axes if k <= m]
        factors = self.factors(points)
        if factors is not None:
            # ψ_p ψ_q of landmarks on a grid is a product of one factor per axis, the same for
            # (p, q) and (q, p). Of the 36² sums over 256 points for each pair of axes, summing over
            # rows first leaves a twentieth of the work; one indexing step puts them in place.
            pairs = [np.triu_indices(len(each)) for each in factors]
            pairwise = (each[p] * each[q] for each, (p, q) in zip(factors, pairs, strict=True))
            sums = _along_both(pt.stack([bends[k][m] for k, m in above]), *pairwise)
            places = _places_of_pairs(*(len(each) for each in factors))
            return sums.ravel()[places.ravel()].reshape(places.shape)
        kernels = self._kernels(np.asarray(points, np.float64))
        found = {
            (k, m): matrix_product(kernels * bends[k][m][None, :], kernels.T) for k, m in above
        }
        rows = [[found[min(k, m), max(k, m)] for m in axes] for k in axes]
        return pt.concatenate([pt.concatenate(row, axis=1) for row in rows], axis=0)

    def factors(self, points: Any) -> list[np.ndarray] | None:
        """Return ψ on each axis, (n_landmarks, n_points) of the axis, or None without grids."""
        axes = None if isinstance(points, Variable) else _axes_of_grid(np.asarray(points))
        if self._axes is None or axes is None:
            return None
        return [
            np.exp(-np.square(landmarks[:, None] - axis[None, :]) / self.width**2)
            for landmarks, axis in zip(self._axes, axes, strict=True)
        ]


def _axes_of_grid(points: np.ndarray) -> list[np.ndarray] | None:
    """Return the axes of points (n, 2) if they are a grid in the plane in C order, else None."""
    if points.shape[1] != 2:
        return None
    axes = [np.unique(points[:, axis]) for axis in (0, 1)]
    mesh = np.meshgrid(*axes, indexing="ij")
    grid = np.stack([part.ravel() for part in mesh], axis=-1)
    return axes if np.array_equal(points, grid) else None


def _along_both(weights: TensorVariable, first: np.ndarray, second: np.ndarray) -> TensorVariable:
    """Return Σ_st first[a, s] weights[i, (s, t)] second[b, t] as a matrix (a, i b)."""
    n_first, n_second = first.shape[1], second.shape[1]
    along_second = matrix_product(weights.reshape((-1, n_second)), second.T.copy())
    table = along_second.reshape((-1, n_first, len(second))).transpose(1, 0, 2)
    return matrix_product(first, table.reshape((n_first, -1)))


def _places_of_pairs(n_first: int, n_second: int) -> np.ndarray:
    """Return where each entry is among the sums of `DisplacementField.second_derivatives`.

    The sums are numbered by the pair of landmarks on the first axis, then the pair of axes, then
    the pair of landmarks on the second.
    """
    axes, first, second = (_number_of_pair(n) for n in (2, n_first, n_second))
    table = (
        first[None, :, None, None, :, None] * (axes.max() + 1) + axes[:, None, None, :, None, None]
    )
    table = table * (second.max() + 1) + second[None, None, :, None, None, :]
    n_parameters = 2 * n_first * n_second
    # A small type, because numba writes the array into the code, and does not cache code with a
    # megabyte of it on disk.
    places: np.ndarray = table.reshape((n_parameters, n_parameters))
    return places.astype(np.min_scalar_type(table.max()))


def _number_of_pair(n: int) -> np.ndarray:
    """Return the index of each unordered pair in ``np.triu_indices(n)``, shape (n, n)."""
    found = np.zeros((n, n), dtype=np.int64)
    above = np.triu_indices(n)
    found[above] = np.arange(len(above[0]))
    both: np.ndarray = np.maximum(found, found.T)
    return both


def _neighbors(landmarks: np.ndarray) -> np.ndarray:
    """Return 1 where two landmarks are neighbors on a line parallel to an axis, else 0."""
    n_landmarks, n_dims = landmarks.shape
    adjacent = np.zeros((n_landmarks, n_landmarks))
    tolerance = 1e-9 * max(float(np.ptp(landmarks)), 1e-300)
    for axis in range(n_dims):
        others = np.delete(landmarks, axis, axis=1)
        for index in range(n_landmarks):
            on_line = (np.abs(others - others[index]) <= tolerance).all(axis=1)
            ahead = landmarks[:, axis] - landmarks[index, axis]
            candidates = np.flatnonzero(on_line & (ahead > tolerance))
            if candidates.size:
                nearest = candidates[np.argmin(ahead[candidates])]
                adjacent[index, nearest] = adjacent[nearest, index] = 1.0
    return adjacent
