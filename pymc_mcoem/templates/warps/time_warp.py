"""Monotone warps of an interval, by which every curve has a clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_mcoem.compiling.linear_algebra import matrix_product, matrix_vector
from pymc_mcoem.templates.warps.deformations import Deformation
from pymc_mcoem.validation import as_numbers, is_number, require_whole

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["Quadrature", "TimeWarp"]


@dataclass(frozen=True)
class Quadrature:
    """Quadrature of the speed of a `TimeWarp`: kernels at the nodes, and weights.

    Attributes
    ----------
    kernels : ndarray of shape (n_nodes, n_parameters)
        Kernels of the log-speed at the nodes.
    whole : ndarray of shape (n_nodes,)
        Weights of the nodes in the integral over the outer interval.
    up_to : ndarray of shape (n_nodes, n_points)
        Their weights in the integrals up to points.
    """

    kernels: np.ndarray
    whole: np.ndarray
    up_to: np.ndarray


class TimeWarp(Deformation):
    r"""Monotone warp of an interval, whose speed is the exponential of a sum of kernels.

    .. math:: D(u, β) = u_i + (u_f − u_i) H(u, β), \qquad
        H(u, β) = \frac{\int_{u'_i}^{u} \exp \sum_k β_k ψ_k(v) dv}
                       {\int_{u'_i}^{u'_f} \exp \sum_k β_k ψ_k(v) dv},

    with ψ_k(v) = exp(−(v − q_k)²/τ²) around equally spaced q_k from u'_i to u'_f. D maps the outer
    interval [u'_i, u'_f] onto [u_i, u_f], so that warped points lie in [u_i, u_f] for any β.
    β ~ Normal((mean, …, mean), γ² Id), and all of it is learned.

    Parameters
    ----------
    interval : tuple of (float, float)
        Ends u_i < u_f of the template's axis.
    outer : tuple of (float, float), optional
        Ends u'_i ≤ u_i and u'_f ≥ u_f of the interval that is mapped onto it. Default: an eighth
        of the interval's length more on either side.
    n_kernels : int
        Number of the ψ_k, at least two.
    width : float, optional
        τ, in the unit of the interval. Default: the outer interval's length over `n_kernels`, a
        little less than the distance of neighboring q_k.
    mean : float or array_like of shape (n_kernels,)
        Prior mean of β.
    n_nodes : int
        Nodes of the quadrature, equally spaced on the outer interval, ends included.
    slopes : sequence of float, default (0.0, 0.2, -0.2)
        Clocks from which mode searches start. A slope s adds s to the last β_k, −s to the first
        and in proportion to those between: 0 is the mean clock, and with 20 kernels 0.2 moves the
        middle by a twelfth of the interval. Each costs the time of a search.
        `TemplateMixture.for_curves` chooses them.

    Attributes
    ----------
    slopes : ndarray of shape (n_starts,)
    interval, outer : tuple of (float, float)
    centers : ndarray of shape (n_kernels,)
        The q_k.
    width : float
    nodes : ndarray of shape (n_nodes,)

    Raises
    ------
    ValueError
        If an argument is out of the range given above.

    Notes
    -----
    Labels ``locDef_curves`` and ``locDef_H`` of the paper; with ``interval=(2, 18)`` the defaults
    are the paper's: outer interval (0, 20), 20 kernels, τ = 1, mean 1. At the prior mean D is not
    the identity but about u_i + (u − u'_i) (u_f − u_i)/(u'_f − u'_i): the axis of a template is
    not that of the observations.

    The speed is interpolated linearly between the nodes, and this broken line is integrated
    exactly. D therefore increases, its end points are exact except for rounding, its inverse has
    a closed form, and only one exponential for each node depends on β. (If β makes the speed
    differ by more than sixteen orders of magnitude, steps are lost in rounding and D has
    plateaus.) With the default of 201 nodes the error of the integral is at most 10⁻³ of the
    interval's length for β of standard deviation one (10⁻⁴ at 0.3); doubling the nodes divides it
    by four.

    Examples
    --------
    >>> import numpy as np
    >>> clock = TimeWarp((2, 18))
    >>> clock.outer, clock.n_parameters, clock.width
    ((0.0, 20.0), 20, 1.0)
    >>> clock.evaluate([0, 2, 10, 18, 20], clock.mean).round(1)
    array([ 2. ,  3.5, 10. , 16.5, 18. ])
    """

    n_dims = 1

    def __init__(
        self,
        interval: tuple[float, float],
        *,
        outer: tuple[float, float] | None = None,
        n_kernels: int = 20,
        width: float | None = None,
        mean: Any = 1.0,
        n_nodes: int = 201,
        slopes: Sequence[float] = (0.0, 0.2, -0.2),
    ) -> None:
        self.interval = _ends("interval", interval)
        begin, end = self.interval
        margin = (end - begin) / 8.0
        self.outer = _ends("outer", (begin - margin, end + margin) if outer is None else outer)
        if self.outer[0] > begin or self.outer[1] < end:
            raise ValueError(
                f"outer is {self.outer}, which does not contain the interval {self.interval}; "
                "widen it."
            )
        for name, count, least in (("n_kernels", n_kernels, 2), ("n_nodes", n_nodes, 3)):
            require_whole(name, count, least)
        width = (self.outer[1] - self.outer[0]) / n_kernels if width is None else width
        if not (is_number(width) and width > 0):
            raise ValueError(f"width is {width!r}; give one positive number.")
        self.width = float(width)
        self.centers = np.linspace(*self.outer, n_kernels)
        self.nodes = np.linspace(*self.outer, n_nodes)
        self._step = (self.outer[1] - self.outer[0]) / (n_nodes - 1)
        self._kernels = np.exp(
            -np.square((self.nodes[:, None] - self.centers[None, :]) / self.width)
        )
        # ∫ of the broken line over the outer interval: the trapezoidal rule
        self._whole = np.full(n_nodes, self._step)
        self._whole[[0, -1]] /= 2.0
        means = as_numbers("mean", mean)
        if means.shape not in ((), (n_kernels,)):
            raise ValueError(
                f"mean has shape {means.shape}; give one number or one for each of {n_kernels} "
                "kernels."
            )
        self.mean = np.array(np.broadcast_to(means, (n_kernels,)))
        if not np.isfinite(self.mean).all():
            raise ValueError(f"mean is {mean!r}; give finite numbers.")
        self.slopes = as_numbers("slopes", slopes)
        if self.slopes.ndim != 1 or not self.slopes.size or not np.isfinite(self.slopes).all():
            raise ValueError(f"slopes is {slopes!r}; give finite numbers, as (0.0, 0.2).")
        self.covariance = np.eye(n_kernels)
        self.learned = np.ones(n_kernels, dtype=bool)
        self.labels = tuple(f"log_speed[{k}]" for k in range(n_kernels))

    def starts(self) -> np.ndarray:
        """Return starting points of mode searches: the mean, with each slope added."""
        return self.mean + np.outer(self.slopes, np.linspace(-1.0, 1.0, self.n_parameters))

    def check_points(self, points: np.ndarray) -> None:
        """Raise ValueError if a point (n_points, 1) is outside the outer interval."""
        self._column(points)

    def quadrature(self, points: np.ndarray) -> Quadrature:
        """Return what integrates the speed up to points (n_points,) of the outer interval."""
        return Quadrature(self._kernels, self._whole, self._weights(points))

    def evaluate(self, points: Any, beta: Any) -> np.ndarray:
        """Return D(u_s, β) as a NumPy array, for one β or many.

        Parameters
        ----------
        points : array_like of shape (n_points,)
            In the outer interval.
        beta : array_like of shape (..., n_parameters)

        Returns
        -------
        ndarray of shape (..., n_points)

        Raises
        ------
        ValueError
            If a point is outside the outer interval, or `beta` has a wrong number of parameters or
            is not finite.

        Examples
        --------
        >>> clock = TimeWarp((0, 1))
        >>> fast_at_first = clock.mean + np.linspace(1, -1, 20)
        >>> bool(clock.evaluate([0.5], fast_at_first)[0] > clock.evaluate([0.5], clock.mean)[0])
        True
        """
        speed = self._speeds(beta)
        share = speed @ self._weights(self._column(points)) / (speed @ self._whole)[..., None]
        # rounding may exceed the upper end, beyond which `inverse` is not defined
        return np.asarray(np.minimum(self._stretched(share), self.interval[1]))

    def inverse(self, values: Any, beta: Any) -> np.ndarray:
        """Return the points u with D(u, β) = value.

        Parameters
        ----------
        values : array_like of shape (n_values,)
            On the template's axis, in the interval.
        beta : array_like of shape (..., n_parameters)

        Returns
        -------
        ndarray of shape (..., n_values)
            In the outer interval.

        Raises
        ------
        ValueError
            If a value is outside the interval, or `beta` has a wrong number of parameters or is
            not finite.

        Examples
        --------
        >>> clock = TimeWarp((0, 1))
        >>> beta = clock.mean + 0.5 * np.sin(np.arange(20))
        >>> clock.evaluate(clock.inverse([0.2, 0.7], beta), beta).round(12)
        array([0.2, 0.7])
        """
        targets = np.atleast_1d(np.asarray(values, dtype=np.float64))
        begin, end = self.interval
        if not ((targets >= begin) & (targets <= end)).all():
            raise ValueError(
                f"values reach from {targets.min():.6g} to {targets.max():.6g}; give values in "
                f"the template's interval, {begin:.6g} to {end:.6g}."
            )
        speeds = self._speeds(beta)
        shares = np.minimum((targets - begin) / (end - begin), 1.0)
        found = np.array([self._inverse(shares, row) for row in np.atleast_2d(speeds)])
        return found.reshape(*speeds.shape[:-1], targets.size)

    def _speeds(self, beta: Any) -> np.ndarray:
        """Return the speed at the nodes, (..., n_nodes), up to a factor for each β."""
        exponents = self._parameters(beta) @ self._kernels.T
        # the factor cancels in every ratio and prevents overflow
        return np.asarray(np.exp(exponents - exponents.max(axis=-1, keepdims=True)))

    def _inverse(self, shares: np.ndarray, speed: np.ndarray) -> np.ndarray:
        areas = self._step * (speed[1:] + speed[:-1]) / 2.0
        reached = np.concatenate([[0.0], np.cumsum(areas)])
        wanted = shares * reached[-1]
        cell = np.clip(np.searchsorted(reached, wanted, side="right") - 1, 0, len(areas) - 1)
        # Inside a cell the area is a t + (b − a) t²/2 for t in [0, 1], times the step. This form of
        # the root does not cancel if a and b are nearly equal.
        first, last = speed[cell], speed[cell + 1]
        rest = np.maximum(wanted - reached[cell], 0.0) / self._step
        root = np.sqrt(np.square(first) + 2.0 * (last - first) * rest)
        bottom = first + root
        # a cell in which the speed is lost in rounding has no area, and any of its points will do
        share = np.divide(2.0 * rest, bottom, out=np.zeros_like(rest), where=bottom > 0)
        return np.asarray(self.nodes[cell] + self._step * np.minimum(share, 1.0))

    def jacobian(self, points: Any, beta: Any, gradient: Any) -> TensorVariable:
        """Return the derivatives of f(D(u_s, β)) by β, shape (n_parameters, n_points)."""
        weights, speed = self._weights(self._column(points)), self._speed(beta)
        whole = (self._whole * speed).sum()
        share = (weights * speed[:, None]).sum(axis=0) / whole
        moments = pt.dot(self._kernels.T * speed, weights - self._whole[:, None] * share[None, :])
        length = self.interval[1] - self.interval[0]
        slope = pt.as_tensor_variable(gradient)[:, 0] * (length / whole)
        return moments * slope[None, :]

    def derivatives(self, points: Any, beta: Any) -> list[TensorVariable]:
        """Return ∂D(u_s, β)/∂β, a matrix (n_parameters, n_points) in a list."""
        column = pt.as_tensor_variable(self._column(points))
        return [self.jacobian(points, beta, pt.ones_like(column)[:, None])]

    def second_derivatives(
        self,
        points: Any,
        beta: Any,
        slopes: Sequence[TensorVariable],
        bends: Sequence[Sequence[TensorVariable]],
    ) -> TensorVariable:
        """Return the second derivatives by β of Σ_s g_s(D(u_s, β)).

        Let p_i = W_i v_i / Σ W v and q_is = w_is v_i / Σ W v with the speeds v = exp(Kβ) at the
        nodes, and μ = Σ_i p_i K_i. The share of the way is Σ_i q_is, its derivative is
        r_s = Σ_i (q_is − share_s p_i) K_i, and its second derivative is
        Σ_i (q_is − share_s p_i) K_i K_iᵀ − r_s μᵀ − μ r_sᵀ.
        """
        weights, speed = self._weights(self._column(points)), self._speed(beta)
        whole = (self._whole * speed).sum()
        share = (weights * speed[:, None]).sum(axis=0) / whole
        moved = self.derivatives(points, beta)[0]
        (slope,), ((bend,),) = slopes, bends
        length = self.interval[1] - self.interval[0]
        each = (weights - self._whole[:, None] * share[None, :]) * slope[None, :]
        at_nodes = speed * each.sum(axis=1) * (length / whole)
        mean = matrix_vector(self._kernels.T, speed * self._whole) / whole
        together = matrix_vector(moved, slope)
        crossed = together[:, None] * mean[None, :]
        return (
            matrix_product(moved * bend[None, :], moved.T)
            + matrix_product(self._kernels.T * at_nodes[None, :], self._kernels)
            - crossed
            - crossed.T
        )

    def warped(self, points: Any, beta: TensorVariable) -> list[TensorVariable]:
        """Return the warped points, one vector for each dimension."""
        weights, speed = self._weights(self._column(points)), self._speed(beta)
        share = (weights * speed[:, None]).sum(axis=0) / (self._whole * speed).sum()
        return [self._stretched(share)]

    def _speed(self, beta: Any) -> TensorVariable:
        return pt.exp(matrix_vector(self._kernels, pt.as_tensor_variable(beta)))

    def _stretched(self, share: Any) -> Any:
        return self.interval[0] + (self.interval[1] - self.interval[0]) * share

    def _column(self, points: Any) -> Any:
        """Return points as a vector; numbers are checked, symbolic points cannot be."""
        if isinstance(points, Variable):
            return points[:, 0]
        column = np.asarray(points, dtype=np.float64)
        column = column[:, 0] if column.ndim == 2 else np.atleast_1d(column)
        first, last = self.outer
        if not ((column >= first) & (column <= last)).all():
            raise ValueError(
                f"points reach from {column.min():.6g} to {column.max():.6g}; the warp is defined "
                f"from {first:.6g} to {last:.6g}: drop the others, or widen outer (interval of "
                "for_curves)."
            )
        return column

    def _weights(self, column: Any) -> Any:
        """Return ∫ from u'_i to u_s of the hat function of each node.

        The shape is (n_nodes, n_points); the result is symbolic if the points are.
        """
        clip = pt.clip if isinstance(column, Variable) else np.clip
        away = clip((column[None, :] - self.nodes[:, None]) / self._step, -1.0, 1.0)
        begun = np.zeros((self.nodes.size, 1))
        begun[0] = self._step / 2.0  # only the right half of the first hat counts
        return (self._step / 2.0) * (1.0 + away * (2.0 - abs(away))) - begun

    def _parameters(self, beta: Any) -> np.ndarray:
        array = np.asarray(beta, dtype=np.float64)
        if array.shape[-1:] != (self.n_parameters,):
            raise ValueError(
                f"beta has shape {array.shape}; its last axis must have {self.n_parameters} "
                "parameters."
            )
        if not np.isfinite(array).all():
            raise ValueError(
                f"beta holds {int((~np.isfinite(array)).sum())} values that are not finite; drop "
                "those draws."
            )
        return array

    def __repr__(self) -> str:
        """Return the interval and the number of kernels."""
        begin, end = self.interval
        return f"TimeWarp({begin:.4g} to {end:.4g}, {self.n_parameters} kernels)"


def _ends(name: str, ends: Any) -> tuple[float, float]:
    pair = as_numbers(name, ends)
    if pair.shape != (2,) or not np.isfinite(pair).all() or not pair[0] < pair[1]:
        raise ValueError(f"{name} is {ends!r}; give two finite numbers, the smaller first.")
    return float(pair[0]), float(pair[1])
