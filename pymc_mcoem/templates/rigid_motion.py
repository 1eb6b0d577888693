"""Rotation, zoom and translation of the plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.numbers import is_number
from pymc_mcoem.templates.deformations import Deformation

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["RigidMotion"]


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

    def derivatives(self, points: np.ndarray, beta: Any) -> list[TensorVariable]:
        """Return ∂D_k(u_s, β)/∂β, a matrix (6, n_points) an axis."""
        beta, points = pt.as_tensor_variable(beta), pt.as_tensor_variable(points)
        cosine, sine, across, along = self._turned(points, beta)
        one = pt.ones_like(points[:, 0])
        return [
            pt.stack(
                [
                    -along,
                    cosine * points[:, 0] - sine * points[:, 1],
                    (1.0 - cosine) * one,
                    sine * one,
                    cosine * one,
                    -sine * one,
                ],
                axis=0,
            ),
            pt.stack(
                [
                    across,
                    sine * points[:, 0] + cosine * points[:, 1],
                    -sine * one,
                    (1.0 - cosine) * one,
                    sine * one,
                    cosine * one,
                ],
                axis=0,
            ),
        ]

    def second_derivatives(
        self,
        points: np.ndarray,
        beta: Any,
        slopes: Sequence[TensorVariable],
        bends: Sequence[Sequence[TensorVariable]],
    ) -> TensorVariable:
        """Return the second derivatives by β of Σ_s g_s(D(u_s, β)), shape (6, 6)."""
        beta, points = pt.as_tensor_variable(beta), pt.as_tensor_variable(points)
        moved = self.derivatives(points, beta)
        rows = [
            pt.add(*(each[None, :] * part for each, part in zip(row, moved, strict=True)))
            for row in bends
        ]
        found = self.contract(points, beta, rows)
        # D is linear in all but the angle, with which it turns
        cosine, sine, across, along = self._turned(points, beta)
        total = [slope.sum() for slope in slopes]
        ahead, aside = (
            pt.sum(slopes[0] * points[:, 0] + slopes[1] * points[:, 1]),
            pt.sum(slopes[1] * points[:, 0] - slopes[0] * points[:, 1]),
        )
        forth = cosine * total[1] - sine * total[0]
        back = cosine * total[0] + sine * total[1]
        row = pt.concatenate(
            [
                -pt.sum(slopes[0] * across + slopes[1] * along, keepdims=True) / 2.0,
                cosine * aside - sine * ahead,
                -forth,
                back,
                forth,
                -back,
            ]
        )
        turning = pt.set_subtensor(pt.zeros((6, 6))[0], row)
        return found + turning + turning.T

    def _turned(self, points: Any, beta: TensorVariable) -> list[TensorVariable]:
        """Return cos φ and sin φ, (1,), and D(u_s, β) − c, R_φ(ϱ u + t − c), a vector an axis.

        Cosine and sine are others than those of `coordinates`: used for numbers too, the same ones
        would be rearranged there, and where D is computed would not be where its values are.
        """
        cosine, sine = pt.cos(beta[:1]), pt.sin(beta[:1])
        first, second = (
            beta[1] * points[:, axis] + (beta[4 + axis] - beta[2 + axis]) for axis in (0, 1)
        )
        return [cosine, sine, cosine * first - sine * second, sine * first + cosine * second]

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
