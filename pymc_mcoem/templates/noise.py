"""The noise of an observation: its density in the model, and whitening if it is correlated."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.linalg import cholesky, solve_triangular
from scipy.linalg import solve_triangular as solve_lower

from pymc_mcoem.compiling.linear_algebra import matrix_product, matrix_vector

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = [
    "Whitener",
    "flat_channels",
    "masked_correlation",
    "observe",
    "of_channels",
    "shared_factor",
    "smooth_columns",
]

#: Spacings of a smooth residual's kernels along the longest axis.
_N_SPACINGS = 6

#: Weight of a missing point in the pointwise log-density. Sums with an observed point, and their
#: gradients, are bitwise the same as with weight zero; but ArviZ's LOO refuses constant columns
#: of a log-likelihood, and gives columns far below one an elpd of zero.
_MISSING_WEIGHT = 1e-200


def of_channels(settings: TemplateSettings, variable: TensorVariable) -> list[TensorVariable]:
    """Return a variable's part of each channel, along its first axis, or all if it has none."""
    if not settings.channel_shape:
        return [variable]
    return [variable[c] for c in range(settings.n_channels)]


def flat_channels(settings: TemplateSettings, data: TensorVariable) -> list[TensorVariable]:
    """Return the data of each channel of an observation, (n_points,)."""
    if not settings.channel_shape:
        return [data.ravel()]
    return [data[..., c].ravel() for c in range(settings.n_channels)]


class Whitener:
    """Transform masked points to points with uncorrelated noise of variance σ².

    With a known correlation C and the mask m the noise of the observed points has the
    submatrix of C. It is embedded as C_eff = diag(m) C diag(m) + diag(1 − m), so that
    masked points, which are zero, have no effect and shapes stay fixed.

    With columns B that points share, C = Id + B Bᵀ, and nothing as large as C is made. Of the
    masked columns S and the Cholesky factor L of Id + SᵀS the transform is
    A = Id − S (L + Id)⁻ᵀ L⁻¹ Sᵀ, as AᵀA is the inverse of Id + S Sᵀ.
    """

    def __init__(self, settings: TemplateSettings, mask: TensorVariable) -> None:
        self.mask = mask
        self.joins_points = settings.joins_points
        self._factor: TensorVariable | None = None
        self._shared: TensorVariable | None = None
        if settings.noise_covariance is not None:
            self._factor = cholesky(masked_correlation(settings.noise_covariance, mask))
        elif settings.shared_noise is not None:
            self._shared = settings.shared_noise * mask[:, None]
            inner = matrix_product(self._shared.T, self._shared)
            self._factor = cholesky(inner + np.eye(settings.shared_noise.shape[1]))

    @property
    def log_determinant(self) -> TensorVariable:
        """Logarithm of the determinant of C_eff's Cholesky factor, where points are joined."""
        return pt.log(pt.diagonal(self._factor)).sum()

    def vector(self, values: TensorVariable) -> TensorVariable:
        """Return the transform of values at the points."""
        return self.columns(values[None, :])[0] if self.joins_points else values * self.mask

    def weighted(self, values: TensorVariable) -> TensorVariable:
        """Return values times the precision of the noise of variance one."""
        masked = values * self.mask
        if not self.joins_points:
            return masked
        if self._shared is not None:
            inner = matrix_vector(self._shared.T, masked)
            inner = solve_triangular(self._factor, inner, lower=True, b_ndim=1)
            inner = solve_triangular(self._factor, inner, trans="T", lower=True, b_ndim=1)
            return masked - matrix_vector(self._shared, inner)
        whitened = solve_triangular(self._factor, masked, lower=True, b_ndim=1)
        back = solve_triangular(self._factor, whitened, trans="T", lower=True, b_ndim=1)
        return self.mask * back

    def columns(self, matrix: TensorVariable) -> TensorVariable:
        """Return the transform of each point's column of a matrix ``(anything, n_points)``."""
        masked = matrix * self.mask[None, :]
        if not self.joins_points:
            return masked
        if self._shared is None:
            return solve_triangular(self._factor, masked.T, lower=True, b_ndim=2).T
        inner = matrix_product(masked, self._shared).T
        inner = solve_triangular(self._factor, inner, lower=True, b_ndim=2)
        wider = self._factor + pt.eye(self._shared.type.shape[1])
        inner = solve_triangular(wider, inner, trans="T", lower=True, b_ndim=2)
        return masked - matrix_product(inner.T, self._shared.T)


def smooth_columns(points: np.ndarray) -> np.ndarray:
    """Return the kernels of a smooth residual at points, (n_points, n_kernels).

    Kernels exp(−|u − q|² / h²) stand h apart, a sixth of the longest extent. Squares sum to one at
    a point on average.

    Examples
    --------
    >>> columns = smooth_columns(np.linspace(0, 3, 50)[:, None])
    >>> columns.shape, float((columns**2).sum(axis=1).mean().round(12))
    ((50, 7), 1.0)
    """
    extent = np.ptp(points, axis=0)
    spacing = float(extent.max()) / _N_SPACINGS or 1.0
    counts = np.round(extent / spacing).astype(int) + 1
    middle = points.min(axis=0) + extent / 2.0
    axes = [
        center + spacing * (np.arange(count) - (count - 1) / 2.0)
        for center, count in zip(middle, counts, strict=True)
    ]
    centers = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    squares = np.square(points[:, None] - centers).sum(axis=-1)
    found = np.exp(-squares / spacing**2)
    whole: np.ndarray = found / np.sqrt(np.square(found).sum(axis=1).mean())
    return whole


def shared_factor(columns: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, float]:
    """Return W, (n_columns, n_points), and the log-determinant of noise that points share.

    The precision of the observed points is diag(m) − WᵀW; the second value is that of a Cholesky
    factor of Id + B Bᵀ, of the observed points' columns B.
    """
    seen = columns * mask[:, None]
    factor = np.linalg.cholesky(np.eye(columns.shape[1]) + seen.T @ seen)
    found = solve_lower(factor, seen.T, lower=True, check_finite=False)
    return np.ascontiguousarray(found), float(np.log(np.diagonal(factor)).sum())


def masked_correlation(correlation: np.ndarray, mask: Any) -> Any:
    """Return the correlation of points of which those without a mask are uncorrelated noise.

    Offsets may have been added to the correlation of the noise.
    """
    identity = np.eye(len(correlation))
    # without offsets the diagonal is one, so this is diag(m) C diag(m) + diag(1 − m)
    return (correlation - identity) * mask[:, None] * mask[None, :] + identity


def observe(
    settings: TemplateSettings,
    mean: TensorVariable,
    mask: TensorVariable,
    noise_variance: TensorVariable,
    values: TensorVariable,
) -> None:
    """Add the observed variable, in which missing points have draws but no density."""
    shape = settings.observation_shape
    if not settings.joins_points:
        pm.CustomDist(
            "observation",
            mean.reshape(shape),
            mask,
            noise_variance,
            logp=_pointwise_logp,
            dist=_pointwise_dist,
            class_name="MaskedNormal",
            observed=values,
            dims=settings.observation_dims,
        )
        return
    correlation, channels = settings.noise_covariance, settings.channel_shape
    if correlation is not None:
        color = np.linalg.cholesky(correlation)
    else:
        assert settings.shared_noise is not None
        color = np.hstack([np.eye(len(settings.shared_noise)), settings.shared_noise])
    size = len(color)

    def logp(
        value: TensorVariable,
        mean: TensorVariable,
        mask: TensorVariable,
        noise_variance: TensorVariable,
    ) -> TensorVariable:
        found = []
        for away, seen, variance in zip(
            *(flat_channels(settings, each) for each in (value - mean, mask)),
            of_channels(settings, noise_variance),
            strict=True,
        ):
            flags = seen.reshape((size,))
            whitener = Whitener(settings, flags)
            whitened = whitener.vector(away.reshape((size,)))
            found.append(
                -0.5 * pt.sqr(whitened).sum() / variance
                - whitener.log_determinant
                - 0.5 * flags.sum() * pt.log(2.0 * np.pi * variance)
            )
        return functools.reduce(operator.add, found)

    def dist(
        mean: TensorVariable, mask: TensorVariable, noise_variance: TensorVariable, size_: Any
    ) -> TensorVariable:
        # a column where there are no channels: the product is of two matrices
        noise = pm.Normal.dist(0.0, 1.0, shape=(color.shape[1], *(channels or (1,))))
        colored = matrix_product(color, noise).reshape(shape)
        return mean + 0.0 * mask + pt.sqrt(noise_variance) * colored

    axes = [f"g{axis}" for axis in range(len(shape))]
    letters, of_noise = ",".join(axes), ",".join(axes[len(axes) - len(channels) :])
    pm.CustomDist(
        "observation",
        mean.reshape(shape),
        mask,
        noise_variance,
        logp=logp,
        dist=dist,
        signature=f"({letters}),({letters}),({of_noise})->({letters})",
        class_name="MaskedMvNormal",
        observed=values,
        dims=settings.observation_dims,
    )


def _pointwise_logp(
    value: TensorVariable,
    mean: TensorVariable,
    mask: TensorVariable,
    noise_variance: TensorVariable,
) -> TensorVariable:
    return pt.maximum(mask, _MISSING_WEIGHT) * (
        pt.sqr(value - mean) * (-0.5 / noise_variance) - 0.5 * pt.log(2.0 * np.pi * noise_variance)
    )


def _pointwise_dist(
    mean: TensorVariable, mask: TensorVariable, noise_variance: TensorVariable, size: Any
) -> TensorVariable:
    # the mask is added so that shapes agree with the density; missing points are drawn too
    return pm.Normal.dist(mean + 0.0 * mask, pt.sqrt(noise_variance), size=size)
