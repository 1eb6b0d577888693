"""Curvature and sufficient statistics of images under templates, in NumPy.

A search evaluates a curvature some forty times an image, and statistics are summed once: what numba
would save of either is less than the seconds in which it compiles them. Density, gradient and the
template's derivatives, which draws need thousands of times, are those of `image_loops_numba`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, sin

import numpy as np

from pymc_mcoem.templates.bases.even_grid import EvenGrid

__all__ = ["Moments", "Warp", "kernel_sums"]

#: Points whose kernels are taken together, few enough for a processor's cache.
_N_TOGETHER = 1024
#: Bandwidths from a center at which its kernel is zero in double precision.
_FAR = 28.0
#: Of two axes: where their second derivative stands among (11, 12, 22).
_PAIR = np.array([[0, 1], [1, 2]])


@dataclass(frozen=True)
class Moments:
    """Moments of values at points that a curvature needs, summed over channels.

    Attributes
    ----------
    bends : ndarray of shape (n, 3, n_points)
        w ∇f ∇fᵀ − r ∇²f, of axes (11, 12, 22), for weights w and residuals r.
    pull : ndarray of shape (n, 2, n_points)
        r ∇f.
    sloped : ndarray of shape (n, 2, n_points) or None
        (w f − r) ∇f; None without a scale.
    corner : ndarray of shape (n,) or None
        Half of Σ_s (w f − r) f.
    """

    bends: np.ndarray
    pull: np.ndarray
    sloped: np.ndarray | None
    corner: np.ndarray | None

    @classmethod
    def of(
        cls, derivatives: np.ndarray, weights: np.ndarray, residual: np.ndarray, has_scale: bool
    ) -> Moments:
        """Return the moments of values and derivatives at points.

        Parameters
        ----------
        derivatives : ndarray of shape (n, n_channels, 6, n_points)
            λ f at the points, its two derivatives there, and its second ones (11, 12, 22).
        weights, residual : ndarray of shape (n, n_channels, n_points)
            w and r.
        has_scale : bool
        """
        first, *others = (
            cls._of_channel(derivatives[:, c], weights[:, c], residual[:, c], has_scale)
            for c in range(weights.shape[1])
        )
        for other in others:
            first = first + other
        return first

    @classmethod
    def _of_channel(
        cls, derivatives: np.ndarray, weights: np.ndarray, residual: np.ndarray, has_scale: bool
    ) -> Moments:
        slope = derivatives[:, 1:3]
        weighted = weights[:, None] * slope
        bends = -residual[:, None] * derivatives[:, 3:]
        bends[:, :2] += weighted[:, :1] * slope
        bends[:, 2] += weighted[:, 1] * slope[:, 1]
        pull = residual[:, None] * slope
        if not has_scale:
            return cls(bends, pull, None, None)
        bent = weights * derivatives[:, 0] - residual
        corner = 0.5 * (bent * derivatives[:, 0]).sum(axis=1)
        return cls(bends, pull, bent[:, None] * slope, corner)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of two channels together."""
        bends, pull = self.bends + other.bends, self.pull + other.pull
        if self.sloped is None or other.sloped is None:
            return Moments(bends, pull, None, None)
        assert self.corner is not None
        assert other.corner is not None
        return Moments(bends, pull, self.sloped + other.sloped, self.corner + other.corner)


class Warp:
    """A rigid motion, a displacement field on a grid, or both, of the points of an image.

    Parameters
    ----------
    points : ndarray of shape (n_points, 2)
    field : sequence of ndarray
        Kernels of the field along each axis, (n_landmarks, n_points) of that axis.
    motion_at, field_at, scale_at : int
        Where their latents begin; −1 where there are none.
    """

    def __init__(
        self,
        points: np.ndarray,
        field: Sequence[np.ndarray],
        motion_at: int,
        field_at: int,
        scale_at: int,
    ) -> None:
        self._points, self._field = np.ascontiguousarray(points.T), list(field)
        self._scale_at, self._has_motion, self._has_field = scale_at, motion_at >= 0, field_at >= 0
        self._motion = slice(motion_at, motion_at + 6)
        self._shape = tuple(each.shape[1] for each in field)
        lengths = [len(each) for each in field]
        n_landmarks = lengths[0] * lengths[1]
        self._of_field = slice(field_at, field_at + 2 * n_landmarks)
        # 1 and the coordinates, and their products
        self._monomials = np.stack([np.ones(len(points)), *self._points])
        self._squares = (self._monomials[:, None] * self._monomials).reshape((9, -1)).T.copy()
        # ψ_p ψ_q is a product of one factor an axis, the same for (p, q) and (q, p): one of each
        pairs = [np.triu_indices(length) for length in lengths]
        self._field_products = [
            each[p] * each[q] for each, (p, q) in zip(field, pairs, strict=True)
        ]
        first, second = (np.zeros((length, length), dtype=np.int64) for length in lengths)
        for table, (p, q) in zip((first, second), pairs, strict=True):
            table[p, q] = table[q, p] = np.arange(len(p))
        # where what stands in (i, j) of a matrix is among such sums: of the field, of the motion
        # (axis and monomial), of both
        pair = _PAIR[:, None, None, :, None, None]
        place = pair * len(pairs[0][0]) + first[:, None, None, :, None]
        place = place * len(pairs[1][0]) + second[:, None, None]
        self._places = place.reshape((2 * n_landmarks, 2 * n_landmarks))
        three, landmark = np.arange(3), np.arange(n_landmarks)
        place = _PAIR[:, None, :, None] * 9 + 3 * three[:, None, None] + three
        self._places_motion = place.reshape((6, 6))
        place = (_PAIR[:, None, :, None] * 3 + three[:, None, None]) * n_landmarks + landmark
        self._places_crossed = place.reshape((6, 2 * n_landmarks))

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Return where latents (n, n_latents) take the points to, (n, 2, n_points)."""
        found = np.broadcast_to(self._points, (len(positions), *self._points.shape))
        if self._has_motion:
            angle, zoom, *shifts = positions[:, self._motion].T
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            center, to = np.stack(shifts[:2], axis=1), np.stack(shifts[2:], axis=1)
            moved = zoom[:, None, None] * found + (to - center)[:, :, None]
            found = turn.transpose((2, 0, 1)) @ moved + center[:, :, None]
        if self._has_field:
            lengths = [len(each) for each in self._field]
            weights = positions[:, self._of_field].reshape((len(positions), 2, *lengths))
            found = found + (self._field[0].T @ weights @ self._field[1]).reshape(found.shape)
        return found

    def add_curvature(self, x: np.ndarray, moments: Moments, out: np.ndarray) -> None:
        """Add Σ_s w_s J_s J_sᵀ − r_s H_s, of J_s and H_s the derivatives of λ f_s by the latents.

        Parameters
        ----------
        x : ndarray of shape (n, n_latents)
        moments : Moments
        out : ndarray of shape (n, n_latents, n_latents)
        """
        bends, pull = moments.bends, moments.pull
        motion, field, n = self._motion, self._of_field, len(x)
        if self._has_field:
            out[:, field, field] += self._along(bends, *self._field_products).take(
                self._places, axis=1
            )
        if self._has_motion:
            by = _by_motion(x[:, motion])
            squares = (bends.reshape((3 * n, -1)) @ self._squares).reshape((n, -1))
            own = by @ squares.take(self._places_motion, axis=1) @ by.transpose((0, 2, 1))
            # it is linear in all its parameters but the angle, with which it turns
            along, across = (pull @ self._monomials.T).transpose((1, 0, 2))
            turns = (by @ np.concatenate([across, -along], axis=1)[:, :, None])[:, :, 0]
            turns[:, 2:4] = -turns[:, 4:]
            own[:, 0] -= turns
            own[:, 1:, 0] -= turns[:, 1:]
            out[:, motion, motion] += own
        if self._has_motion and self._has_field:
            spread = bends[:, :, None] * self._monomials
            crossed = by @ self._along(spread, *self._field).take(self._places_crossed, axis=1)
            out[:, motion, field] += crossed
            out[:, field, motion] += crossed.transpose((0, 2, 1))
        if self._scale_at >= 0:
            assert moments.sloped is not None
            row = self.row(x, moments.sloped)
            row[:, self._scale_at] = moments.corner
            out[:, self._scale_at] += row
            out[:, :, self._scale_at] += row

    def row(self, x: np.ndarray, sloped: np.ndarray) -> np.ndarray:
        """Return Σ_s v_s · ∂D_s of vectors (n, 2, n_points), zero for what moves no points.

        Parameters
        ----------
        x : ndarray of shape (n, n_latents)
        sloped : ndarray of shape (n, 2, n_points)

        Returns
        -------
        ndarray of shape (n, n_latents)
        """
        found = np.zeros(x.shape)
        if self._has_motion:
            moments = (sloped @ self._monomials.T).reshape((len(x), 6, 1))
            found[:, self._motion] = (_by_motion(x[:, self._motion]) @ moments)[:, :, 0]
        if self._has_field:
            found[:, self._of_field] = self._along(sloped, *self._field)
        return found

    def jacobian(self, x: np.ndarray, derivatives: np.ndarray) -> np.ndarray:
        """Return J, (n, n_latents, n_points), of derivatives (n, 6, n_points) as of `Moments`."""
        n, n_points = len(x), derivatives.shape[-1]
        found, slope = np.zeros((*x.shape, n_points)), derivatives[:, 1:3, None]
        if self._has_motion:
            moments = (slope * self._monomials).reshape((n, 6, n_points))
            found[:, self._motion] = _by_motion(x[:, self._motion]) @ moments
        if self._has_field:
            first, second = self._field
            kernels = (first[:, None, :, None] * second[:, None]).reshape((-1, n_points))
            found[:, self._of_field] = (slope * kernels).reshape((n, -1, n_points))
        if self._scale_at >= 0:
            found[:, self._scale_at] = derivatives[:, 0]
        return found

    def _along(self, weights: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return Σ_s w_i(s) ψ_l(u_s) of weights (n, ..., n_points), those of each in a row."""
        rows, columns = self._shape
        along_second = (weights.reshape((-1, columns)) @ second.T).reshape((-1, rows, len(second)))
        found: np.ndarray = (first @ along_second).reshape((len(weights), -1))
        return found


def kernel_sums(
    grid: EvenGrid, warped: np.ndarray, once: np.ndarray, twice: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of a grid's kernels at points, and of their products.

    Parameters
    ----------
    grid : EvenGrid
    warped : ndarray of shape (n, 2, n_points)
    once, twice : ndarray of shape (n_channels, n, n_points)
        Weights of kernels, and of products.

    Returns
    -------
    tuple of ndarray
        As `GaussianBasis.project` and `GaussianBasis.gram_sums` of all (n · n_points) points, for
        each channel: (n_channels, n_first · n_second) and
        (n_channels, 2 n_first − 1, 2 n_second − 1).
    """
    values = np.zeros((len(once), *grid.length))
    moments = np.zeros((len(twice), *grid.halved().length))
    once, twice = (each.reshape((len(each), -1)) for each in (once, twice))
    points = warped.swapaxes(0, 1).reshape((2, -1))
    for begin in range(0, once.shape[1], _N_TOGETHER):
        some = slice(begin, begin + _N_TOGETHER)
        first, second = (_kernels(grid, axis, points[axis, some]) for axis in range(2))
        weighted = np.empty_like(first)
        for own, into in zip(once, values, strict=True):
            np.multiply(first, own[some], out=weighted)
            into += weighted @ second.T
        halved = _halved(second, second).T
        for own, into in zip(twice, moments, strict=True):
            np.multiply(first, own[some], out=weighted)
            into += _halved(first, weighted) @ halved
    # the product of neighbors is a constant times the kernel halfway between them
    constants = np.exp(0.5 * np.square(np.array(grid.spacing) / grid.bandwidth))
    moments[:, 1::2] *= constants[0]
    moments[:, :, 1::2] *= constants[1]
    return values.reshape((len(values), -1)), moments


def _kernels(grid: EvenGrid, axis: int, column: np.ndarray) -> np.ndarray:
    """Return the kernels of an axis at coordinates, (length, n_points).

    As `image_loops_numba.kernels` does it: each is the one before it times a ratio.
    """
    length, scaled = grid.length[axis], grid.spacing[axis] / grid.bandwidth
    half = min(int(8.0 / abs(scaled)), 16)
    found = np.empty((length, column.size))
    constants = np.empty((length, 1))
    for begin in range(0, length, 2 * half + 1):
        end = min(begin + 2 * half + 1, length)
        middle = begin + (end - begin) // 2
        away = (column - (grid.origin[axis] + middle * grid.spacing[axis])) / grid.bandwidth
        away.clip(-_FAR, _FAR, out=away)
        np.exp(-away * away, out=found[middle])
        constants[begin:end, 0] = np.exp(-np.square(scaled * (np.arange(begin, end) - middle)))
        if half == 0:
            continue
        ratio = np.exp(2.0 * scaled * away)
        for a in range(middle + 1, end):
            np.multiply(found[a - 1], ratio, out=found[a])
        np.divide(1.0, ratio, out=ratio)
        for a in range(middle - 1, begin - 1, -1):
            np.multiply(found[a + 1], ratio, out=found[a])
    found *= constants
    return found


def _halved(factor: np.ndarray, weighted: np.ndarray) -> np.ndarray:
    """Return products of kernels with themselves and with their neighbors, in order of place."""
    found = np.empty((2 * len(factor) - 1, factor.shape[1]))
    np.multiply(factor, weighted, out=found[::2])
    np.multiply(factor[1:], weighted[:-1], out=found[1::2])
    return found


def _by_motion(x: np.ndarray) -> np.ndarray:
    """Return the derivatives of rigid motions (n, 6) by their parameters, (n, 6, 2 · 3).

    As coefficients of 1 and the coordinates of a point, an axis after the other.
    """
    found = []
    # row by row: of the few that a search has at a time Python makes them faster than NumPy
    for angle, zoom, *centers in x.tolist():
        s, c = sin(angle), cos(angle)
        first, second = centers[2] - centers[0], centers[3] - centers[1]
        by_angle = [-s * first - c * second, -s * zoom, -c * zoom]
        by_angle += [c * first - s * second, c * zoom, -s * zoom]
        by_zoom = [0.0, c, -s, 0.0, s, c]
        by_center = [1.0 - c, 0.0, 0.0, -s, 0.0, 0.0, s, 0.0, 0.0, 1.0 - c, 0.0, 0.0]
        by_target = [c, 0.0, 0.0, s, 0.0, 0.0, -s, 0.0, 0.0, c, 0.0, 0.0]
        found.append(by_angle + by_zoom + by_center + by_target)
    return np.array(found).reshape((-1, 6, 6))
