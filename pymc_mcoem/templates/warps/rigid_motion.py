"""Rotation, zoom and translation of the plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.compiling.linear_algebra import matrix_product
from pymc_mcoem.templates.warps.deformations import Deformation
from pymc_mcoem.validation import as_numbers, is_number

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["OFF", "RigidMotion"]

#: A coordinate with this variance, or less, does not move.
OFF = 1e-6

#: Positions in the values of `RigidMotion._affine` of the derivatives by angle, zoom, center and
#: translation (rows): coefficients of 1 and the two coordinates for the first coordinate of D, then
#: for the second.
_AFFINE = np.array(
    [
        [5, 6, 7, 8, 9, 6],
        [0, 1, 3, 0, 2, 1],
        [4, 0, 0, 3, 0, 0],
        [2, 0, 0, 4, 0, 0],
        [1, 0, 0, 2, 0, 0],
        [3, 0, 0, 1, 0, 0],
    ]
)
#: Positions of products of two of 1 and the coordinates, for the first axis and then the second,
#: among the moments of three weights, which are those of the pairs of axes 11, 12 and 22.
_MOMENT_PLACES = np.kron([[0, 1], [1, 2]], np.full((3, 3), 6)) + np.tile(
    [[0, 1, 2], [1, 3, 4], [2, 4, 5]], (2, 2)
)


class RigidMotion(Deformation):
    """Rotation, zoom and translation of the plane: D(u) = R_φ(ϱ u + t − c) + c.

    β = (angle φ, zoom ϱ, center c (2), translation t (2)) ~ Normal((0, 1, 0, 0, 0, 0),
    diag(variance)). The angle, in radians, turns the first axis toward the second.
    `TemplateMixture.for_images` takes degrees, percent and pixels.

    Parameters
    ----------
    variance : float or array_like of shape (6,), default 0.1
        Prior variance of the six coordinates, in squared radians and squares of the points' unit.
    angles : sequence of float, default (0.0,)
        Angles from which mode searches start. A template that is turned by more than some forty
        degrees may not be found from 0. Each costs the time of a search.
    weight : float, optional
        Learn the variances of angle, zoom and translation, which all classes share. `variance` is
        then the mode of their prior, and `weight` the number of observations that the prior counts
        as. The variance of the center is not learned, because a small turn around another center is
        a turn and a shift; nor is a variance of 1e-6 or less. None: none is learned.

    Raises
    ------
    ValueError
        If a variance or the weight is not positive, or there are no angles.

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

    def __init__(
        self,
        variance: float | Sequence[float] = 0.1,
        *,
        angles: Sequence[float] = (0.0,),
        weight: float | None = None,
    ) -> None:
        each = as_numbers("variance", [variance] * 6 if is_number(variance) else variance)
        if each.shape != (6,) or not (np.isfinite(each).all() and (each > 0).all()):
            raise ValueError(
                f"variance is {variance!r}; give one positive number (a tiny one, as 1e-6, "
                "switches rigid motions off), or one for each of angle, zoom, center (2) and "
                "translation (2)."
            )
        #: One number if all six are equal.
        self.variance = float(each[0]) if (each == each[0]).all() else each
        self.angles = as_numbers("angles", angles)
        if self.angles.ndim != 1 or not self.angles.size or not np.isfinite(self.angles).all():
            raise ValueError(f"angles is {angles!r}; give at least one angle, in radians.")
        if weight is not None and (
            isinstance(weight, bool) or not is_number(weight) or weight <= 0
        ):
            raise ValueError(
                f"weight (rigid_weight of `for_images`) is {weight!r}; give a positive number of "
                "observations, as 3, or None for variances that are not learned."
            )
        self.rigid_weight = None if weight is None else float(weight)
        self.mean = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        self.covariance = np.diag(each)
        self.learned = np.zeros(6, dtype=bool)
        self.labels = (
            "angle",
            "zoom",
            "center[0]",
            "center[1]",
            "translation[0]",
            "translation[1]",
        )

    @property
    def rigid(self) -> np.ndarray:
        """Which coordinates have a learned variance each, ndarray of bool (6,)."""
        if self.rigid_weight is None:
            return np.zeros(6, dtype=bool)
        is_on = np.diagonal(self.covariance) > OFF
        return np.array([True, True, False, False, True, True]) & is_on

    def starts(self) -> np.ndarray:
        """Return starting points of mode searches: the mean, turned by each of the angles."""
        found = np.tile(self.mean, (self.angles.size, 1))
        found[:, 0] = self.angles
        return found

    def warped(self, points: np.ndarray, beta: TensorVariable) -> list[TensorVariable]:
        """Return the warped points, one vector for each dimension."""
        cosine, sine = pt.cos(beta[0]), pt.sin(beta[0])
        first, second = (
            beta[1] * points[:, axis] + (beta[4 + axis] - beta[2 + axis]) for axis in (0, 1)
        )
        # sin(−φ), not −sin φ: PyTensor would combine a difference with those that a basis
        # subtracts, differently for values and slopes, which could then share nothing.
        return [
            cosine * first + pt.sin(-beta[0]) * second + beta[2],
            sine * first + cosine * second + beta[3],
        ]

    def derivatives(self, points: np.ndarray, beta: Any) -> list[TensorVariable]:
        """Return ∂D_k(u_s, β)/∂β, a matrix (6, n_points) for each axis."""
        affine, linear = self._affine(beta), _monomials(points, 1).T.copy()
        return [matrix_product(affine[:, 3 * axis : 3 * axis + 3], linear) for axis in (0, 1)]

    def cross_derivatives(
        self,
        points: np.ndarray,
        beta: Any,
        bends: Sequence[Sequence[TensorVariable]],
        other: Deformation,
        theirs: Any,
    ) -> TensorVariable | None:
        """Return the second derivatives by β and another's parameters, (6, other.n_parameters).

        ∂D/∂β is affine in the points: all sums follow from six for each coordinate.
        """
        if other.derivatives(points, theirs) is None:
            return None
        linear = _monomials(points, 1).T.copy()
        rows = [
            pt.concatenate([each[None, :] * linear for each in column], axis=0)
            for column in zip(*bends, strict=True)
        ]
        return matrix_product(self._affine(beta), other.contract(points, theirs, rows))

    def second_derivatives(
        self,
        points: np.ndarray,
        beta: Any,
        slopes: Sequence[TensorVariable],
        bends: Sequence[Sequence[TensorVariable]],
    ) -> TensorVariable:
        """Return the second derivatives by β of Σ_s g_s(D(u_s, β)), shape (6, 6)."""
        affine = self._affine(beta)
        weights = [bends[0][0], bends[0][1], bends[1][1]]
        moments = matrix_product(pt.stack([*slopes, *weights]), _monomials(points, 2))
        bent = moments[2:].ravel()[_MOMENT_PLACES.ravel()].reshape((6, 6))
        found = matrix_product(matrix_product(affine, bent), affine.T)
        # D is linear in all coordinates except the angle
        along, across = -affine[0, :3], affine[0, 3:]
        cosine, sine = affine[4, :1], affine[4, 3:4]
        total, ahead, aside = (
            moments[:2, :1],
            moments[:1, 1] + moments[1:2, 2],
            moments[1:2, 1] - moments[:1, 2],
        )
        forth = cosine * total[1] - sine * total[0]
        back = cosine * total[0] + sine * total[1]
        turned = pt.sum(moments[0, :3] * across + moments[1, :3] * along, keepdims=True)
        row = pt.concatenate(
            [-turned / 2.0, cosine * aside - sine * ahead, -forth, back, forth, -back]
        )
        turning = pt.set_subtensor(pt.zeros((6, 6))[0], row)
        return found + turning + turning.T

    def _affine(self, beta: Any) -> TensorVariable:
        """Return ∂D/∂β as coefficients of 1 and the coordinates, (6, 6), three columns per axis.

        Cosine and sine are not the variables of `coordinates`. If they were, PyTensor would
        rearrange D there, and its values and derivatives would be computed at different points.
        """
        beta = pt.as_tensor_variable(beta)
        cosine, sine, zoom = pt.cos(beta[:1]), pt.sin(beta[:1]), beta[1:2]
        first, second = beta[4:5] - beta[2:3], beta[5:6] - beta[3:4]
        values = pt.concatenate(
            [
                np.zeros(1),
                cosine,
                sine,
                -sine,
                1.0 - cosine,
                -(sine * first + cosine * second),
                -sine * zoom,
                -cosine * zoom,
                cosine * first - sine * second,
                cosine * zoom,
            ]
        )
        return values[_AFFINE.ravel()].reshape((6, 6))

    def jacobian(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return the derivatives of f(D(u_s, β)), shape (6, n_points)."""
        beta = pt.as_tensor_variable(beta)
        gradient = pt.as_tensor_variable(gradient)
        cosine, sine = pt.cos(beta[0]), pt.sin(beta[0])
        first, second = (
            beta[1] * points[:, axis] + (beta[4 + axis] - beta[2 + axis]) for axis in (0, 1)
        )
        # ∇f turned back by R_φᵀ: the derivative with respect to the argument of R_φ
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


def _monomials(points: np.ndarray, degree: int) -> np.ndarray:
    """Return 1, u, v of points (n, 2), and for degree 2 also u², uv, v², (n, 3 or 6)."""
    first, second = np.asarray(points, dtype=np.float64).T
    columns = [np.ones_like(first), first, second]
    if degree == 2:
        columns += [first**2, first * second, second**2]
    return np.stack(columns, axis=1)
