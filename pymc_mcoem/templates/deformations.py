"""Warps D(·, β) of the plane or the line: what moves a template's points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_mcoem.numbers import is_number
from pymc_mcoem.products import matrix_product

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["Deformation", "DisplacementField", "RigidMotion", "SumOfDeformations"]


class Deformation:
    """A warp u ↦ D(u, β) with parameters β ~ Normal(m, Γ).

    Γ is the base covariance M, of which the block of the learned coordinates is scaled or
    replaced class by class; the other coordinates keep theirs. No covariance joins the two.
    Warps add up with ``+``: D(u) = u + Σ (D_i(u) − u).

    Attributes
    ----------
    n_dims : int or None
        Dimension of the space that is warped.
    mean : ndarray of shape (n_parameters,)
        Prior mean m.
    covariance : ndarray of shape (n_parameters, n_parameters)
        Base covariance M.
    learned : ndarray of bool, shape (n_parameters,)
        Which coordinates have a covariance that is learnt.
    labels : tuple of str, length n_parameters
        Names of the coordinates of β.
    """

    n_dims: int
    mean: np.ndarray
    covariance: np.ndarray
    learned: np.ndarray
    labels: tuple[str, ...]

    @property
    def n_parameters(self) -> int:
        """Number of coordinates of β."""
        return int(self.mean.size)

    def warp(self, points: np.ndarray, beta: Any) -> TensorVariable:
        """Return D(u_s, β).

        Parameters
        ----------
        points : ndarray of shape (n_points, n_dims)
        beta : tensor_like of shape (n_parameters,)

        Returns
        -------
        TensorVariable of shape (n_points, n_dims)
        """
        return pt.stack(self.coordinates(points, beta), axis=1)

    def coordinates(self, points: np.ndarray, beta: Any) -> list[TensorVariable]:
        """Return D(u_s, β) as `warp` does, but one vector (n_points,) for each axis.

        It is what bases take most readily: nothing is put together to be taken apart again.
        """
        if not isinstance(points, Variable):
            points = np.asarray(points, np.float64)
        return self._columns(points, pt.as_tensor_variable(beta))

    def jacobian(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return the derivatives of f(D(u_s, β)) with respect to β, from those of f.

        Parameters
        ----------
        points : ndarray of shape (n_points, n_dims)
        beta : tensor_like of shape (n_parameters,)
        gradient : tensor_like of shape (n_points, n_dims)
            ∇f at the warped points.

        Returns
        -------
        TensorVariable of shape (n_parameters, n_points)
            Columns Σ_k ∇f_k(D(u_s, β)) ∂D_k(u_s, β)/∂β.
        """
        raise NotImplementedError

    def curvature(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return J Jᵀ of the rows J of `jacobian`, shape (n_parameters, n_parameters).

        Parameters
        ----------
        points, beta, gradient
            As for `jacobian`. Points whose gradient is zero take no part.
        """
        rows = self.jacobian(points, beta, gradient)
        return matrix_product(rows, rows.T)

    def products(
        self, points: np.ndarray, beta: Any, gradient: Any, rows: TensorVariable
    ) -> TensorVariable:
        """Return rows (n, n_points) times the transpose of `jacobian`, (n, n_parameters)."""
        return matrix_product(rows, self.jacobian(points, beta, gradient).T)

    def starts(self) -> np.ndarray:
        """Return where searches for the mode of β start, shape (n_starts, n_parameters)."""
        return self.mean[None, :].copy()

    def check_points(self, points: np.ndarray) -> None:
        """Raise ValueError where D is not defined at points (n_points, n_dims); here never."""

    def _columns(self, points: np.ndarray, beta: TensorVariable) -> list[TensorVariable]:
        """Return the warped points, one vector a dimension."""
        raise NotImplementedError

    def __add__(self, other: Deformation) -> SumOfDeformations:
        """Return the warp that moves points by both displacements."""
        if not isinstance(other, Deformation):
            return NotImplemented
        return SumOfDeformations((self, other))

    def __repr__(self) -> str:
        """Return the kind and the number of parameters."""
        return f"{type(self).__name__}({self.n_parameters} parameters)"


class RigidMotion(Deformation):
    """Rotation, zoom and translation of the plane: D(u) = R_φ(ϱ u + t − c) + c.

    β = (angle φ, zoom ϱ, centre c (2), translation t (2)) ~ Normal((0, 1, 0, 0, 0, 0),
    variance · Id), which is not learnt. The angle turns the first axis towards the second.

    Parameters
    ----------
    variance : float, default 0.1
        Prior variance of each of the six coordinates.

    Raises
    ------
    ValueError
        If the variance is not positive.

    Notes
    -----
    Section ``subsec:5:2`` of the paper; angle and zoom are Gaussian on the whole line.

    Examples
    --------
    >>> import numpy as np
    >>> motion = RigidMotion(variance=0.02)
    >>> quarter_turn = np.array([np.pi / 2, 1, 0, 0, 0, 0])
    >>> (motion.warp(np.array([[1.0, 0.0]]), quarter_turn).eval() + 0.0).round(6)
    array([[0., 1.]])
    """

    n_dims = 2

    def __init__(self, variance: float = 0.1) -> None:
        if not (is_number(variance) and variance > 0):
            raise ValueError(
                f"variance is {variance!r}; give one positive number (a tiny one, as 1e-6, "
                "switches rigid motions off)."
            )
        self.variance = float(variance)
        self.mean = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        self.covariance = self.variance * np.eye(6)
        self.learned = np.zeros(6, dtype=bool)
        self.labels = (
            "angle",
            "zoom",
            "centre[0]",
            "centre[1]",
            "translation[0]",
            "translation[1]",
        )

    def _columns(self, points: np.ndarray, beta: TensorVariable) -> list[TensorVariable]:
        cosine, sine = pt.cos(beta[0]), pt.sin(beta[0])
        first, second = (
            beta[1] * points[:, axis] + (beta[4 + axis] - beta[2 + axis]) for axis in (0, 1)
        )
        # sin(−φ), not −sin φ: a difference would be rearranged with what a basis subtracts, in
        # one way for values and in another for slopes, which then share nothing.
        return [
            cosine * first + pt.sin(-beta[0]) * second + beta[2],
            sine * first + cosine * second + beta[3],
        ]

    def jacobian(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return the derivatives of f(D(u_s, β)), shape (6, n_points)."""
        beta = pt.as_tensor_variable(beta)
        gradient = pt.as_tensor_variable(gradient)
        cosine, sine = pt.cos(beta[0]), pt.sin(beta[0])
        first, second = (
            beta[1] * points[:, axis] + (beta[4 + axis] - beta[2 + axis]) for axis in (0, 1)
        )
        # ∇f turned back by R_φᵀ: the derivative with respect to what R_φ is applied to
        back = [
            cosine * gradient[:, 0] + sine * gradient[:, 1],
            cosine * gradient[:, 1] - sine * gradient[:, 0],
        ]
        return pt.stack(
            [
                back[1] * first - back[0] * second,
                back[0] * points[:, 0] + back[1] * points[:, 1],
                gradient[:, 0] - back[0],
                gradient[:, 1] - back[1],
                back[0],
                back[1],
            ],
            axis=0,
        )

    def starts(self) -> np.ndarray:
        """Return the mean with the angles −0.35, 0 and 0.35, shape (3, 6)."""
        rows = np.repeat(self.mean[None, :], 3, axis=0)
        rows[:, 0] += [-0.35, 0.0, 0.35]
        return rows


class DisplacementField(Deformation):
    """Small displacements around landmarks: D(u) = u + Σ_k δ_k ψ_k(u).

    ψ_k(u) = exp(−|u − q_k|² / width²). β is δ axis by axis (all first coordinates, then all
    second ones), with mean zero and base covariance M = Id ⊗ M_K, where M_K has ones on the
    diagonal and `correlation` where two landmarks are next to one another: on a common line
    parallel to an axis with no landmark between. Landmarks diagonal to one another, and
    landmarks that share no such line with another, are uncorrelated. All of β is learnt.

    Parameters
    ----------
    landmarks : array_like of shape (n_landmarks, n_dims)
        The points q_k. A vector stands for landmarks on the line.
    width : float
        Width of the ψ_k, in the unit of the landmarks (0.4 for the paper's digits, whose
        kernels are exp(−|u − q|² / 0.16)).
    correlation : float, default 0.2
        Correlation of neighbouring landmarks' displacements.

    Raises
    ------
    ValueError
        If the landmarks are not finite, the width is not positive, or the correlation makes M
        not positive definite.

    Notes
    -----
    Section ``subsec:5:2`` of the paper. On a grid in two dimensions M is positive definite for
    every correlation in [−0.25, 0.25], whatever the number of landmarks.

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
                f"landmarks has shape {np.shape(landmarks)}; give finite numbers, one row a "
                "landmark, (n_landmarks, n_dims)."
            )
        if not (is_number(width) and width > 0):
            raise ValueError(f"width is {width!r}; give one positive number.")
        self.landmarks = array
        self._axes = _axes_of_grid(array)
        self.width = float(width)
        self.correlation = float(correlation)
        n_landmarks, self.n_dims = array.shape
        block = np.eye(n_landmarks) + self.correlation * _neighbours(array)
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
            The landmarks' coordinates on every axis; the last axis runs fastest.
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

    def _columns(self, points: np.ndarray, beta: TensorVariable) -> list[TensorVariable]:
        factors = self._factors(points)
        if factors is None:
            kernels = self._kernels(points)
            both = matrix_product(beta.reshape((self.n_dims, len(self.landmarks))), kernels)
            moved = [both[axis] for axis in range(self.n_dims)]
        else:
            # Sums along one axis, then along the other: a quarter of the work at 16 × 16 points,
            # and no constant that grows with their number times that of landmarks.
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

    def curvature(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return J Jᵀ, shape (n_parameters, n_parameters)."""
        factors = self._factors(points)
        if factors is None:
            return super().curvature(points, beta, gradient)
        # ψ_k ψ_l of landmarks on a grid is a product of one factor an axis: of the 36² sums over
        # 256 points for each pair of coordinates, sums over rows first leave a tenth of the work.
        gradient = pt.as_tensor_variable(gradient)
        weights = pt.stack([gradient[:, i] * gradient[:, j] for i in (0, 1) for j in (0, 1)])
        pairs = [
            (each[:, None, :] * each[None, :, :]).reshape(-1, each.shape[1]) for each in factors
        ]
        sums = _along_both(weights, *pairs)
        first, second = (len(each) for each in factors)
        table = sums.reshape((first, first, 2, 2, second, second)).transpose(2, 0, 4, 3, 1, 5)
        return table.reshape((self.n_parameters, self.n_parameters))

    def products(
        self, points: np.ndarray, beta: Any, gradient: Any, rows: TensorVariable
    ) -> TensorVariable:
        """Return rows (n, n_points) times the transpose of `jacobian`, (n, n_parameters)."""
        factors = self._factors(points)
        if factors is None:
            return super().products(points, beta, gradient, rows)
        gradient = pt.as_tensor_variable(gradient)
        first, second = (len(each) for each in factors)
        both = pt.concatenate([rows * gradient[None, :, axis] for axis in (0, 1)], axis=0)
        table = _along_both(both, *factors).reshape((first, 2, -1, second))
        return table.transpose(2, 1, 0, 3).reshape((-1, self.n_parameters))

    def _factors(self, points: Any) -> list[np.ndarray] | None:
        """Return ψ on each axis, (n_landmarks, n_points) of the axis, where all are on grids."""
        axes = None if isinstance(points, Variable) else _axes_of_grid(np.asarray(points))
        if self._axes is None or axes is None:
            return None
        return [
            np.exp(-np.square(landmarks[:, None] - axis[None, :]) / self.width**2)
            for landmarks, axis in zip(self._axes, axes, strict=True)
        ]


class SumOfDeformations(Deformation):
    """Warps whose displacements add up: D(u) = u + Σ_i (D_i(u) − u).

    β is the parts' parameters one after the other. Written ``a + b``.

    Parameters
    ----------
    parts : sequence of Deformation
        Sums among them are taken apart.

    Raises
    ------
    ValueError
        If there is no part, or the parts warp spaces of different dimensions.

    Examples
    --------
    >>> both = RigidMotion() + DisplacementField([[0.0, 0.0]], width=0.4)
    >>> both.n_parameters, both.starts().shape, int(both.learned.sum())
    (8, (3, 8), 2)
    """

    def __init__(self, parts: Sequence[Deformation]) -> None:
        flat: list[Deformation] = []
        for part in parts:
            flat.extend(part.parts if isinstance(part, SumOfDeformations) else [part])
        dims = {part.n_dims for part in flat}
        if len(dims) != 1:
            raise ValueError(
                f"parts warp spaces of dimensions {sorted(dims)}; add warps of one and the same "
                "space."
            )
        self.parts: tuple[Deformation, ...] = tuple(flat)
        self.n_dims = dims.pop()
        self.mean = np.concatenate([part.mean for part in flat])
        self.covariance = np.zeros((self.mean.size, self.mean.size))
        for part, where in zip(flat, self._slices(), strict=True):
            self.covariance[where, where] = part.covariance
        self.learned = np.concatenate([part.learned for part in flat])
        labels = [label for part in flat for label in part.labels]
        if len(set(labels)) < len(labels):
            labels = [
                f"{index}:{label}" for index, part in enumerate(flat) for label in part.labels
            ]
        self.labels = tuple(labels)

    def _slices(self) -> list[slice]:
        ends = np.cumsum([part.n_parameters for part in self.parts])
        return [
            slice(int(end) - part.n_parameters, int(end))
            for part, end in zip(self.parts, ends, strict=True)
        ]

    def _columns(self, points: np.ndarray, beta: TensorVariable) -> list[TensorVariable]:
        each = [
            part._columns(points, beta[where])
            for part, where in zip(self.parts, self._slices(), strict=True)
        ]
        surplus = (len(each) - 1) * points
        return [
            pt.add(*columns) - surplus[:, axis] if len(each) > 1 else columns[0]
            for axis, columns in enumerate(zip(*each, strict=True))
        ]

    def jacobian(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return the parts' derivatives one below the other, shape (n_parameters, n_points)."""
        beta = pt.as_tensor_variable(beta)
        return pt.concatenate(
            [
                part.jacobian(points, beta[where], gradient)
                for part, where in zip(self.parts, self._slices(), strict=True)
            ],
            axis=0,
        )

    def curvature(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return J Jᵀ, block by block, shape (n_parameters, n_parameters)."""
        beta = pt.as_tensor_variable(beta)
        coordinates = [beta[where] for where in self._slices()]
        blocks: list[list[TensorVariable]] = []
        for index, (part, own) in enumerate(zip(self.parts, coordinates, strict=True)):
            row = [blocks[before][index].T for before in range(index)]
            row.append(part.curvature(points, own, gradient))
            if index + 1 < len(self.parts):
                rows = part.jacobian(points, own, gradient)
                row += [
                    other.products(points, theirs, gradient, rows)
                    for other, theirs in zip(
                        self.parts[index + 1 :], coordinates[index + 1 :], strict=True
                    )
                ]
            blocks.append(row)
        return pt.concatenate([pt.concatenate(row, axis=1) for row in blocks], axis=0)

    def starts(self) -> np.ndarray:
        """Return all combinations of the parts' starts, shape (n_starts, n_parameters)."""
        return np.array(
            [np.concatenate(rows) for rows in itertools.product(*(p.starts() for p in self.parts))]
        )


def _axes_of_grid(points: np.ndarray) -> list[np.ndarray] | None:
    """Return the axes of points (n, 2) that are a grid in the plane in C order, or None."""
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


def _neighbours(landmarks: np.ndarray) -> np.ndarray:
    """Return 1 where two landmarks are next to one another on a line parallel to an axis."""
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
