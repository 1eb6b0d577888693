"""The noise of an observation: its density in the model, and whitening if it is correlated."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.linalg import cholesky, solve_triangular

from pymc_mcoem.compiling.linear_algebra import matrix_product

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["Whitener", "flat_channels", "masked_correlation", "observe", "of_channels"]

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
    """

    def __init__(self, settings: TemplateSettings, mask: TensorVariable) -> None:
        self.mask = mask
        self.factor = None
        if settings.noise_covariance is not None:
            self.factor = cholesky(masked_correlation(settings.noise_covariance, mask))

    def vector(self, values: TensorVariable) -> TensorVariable:
        """Return the transform of values at the points."""
        masked = values * self.mask
        if self.factor is None:
            return masked
        return solve_triangular(self.factor, masked, lower=True, b_ndim=1)

    def weighted(self, values: TensorVariable) -> TensorVariable:
        """Return values times the precision of the noise of variance one."""
        whitened = self.vector(values)
        if self.factor is None:
            return whitened
        back = solve_triangular(self.factor, whitened, trans="T", lower=True, b_ndim=1)
        return self.mask * back

    def columns(self, matrix: TensorVariable) -> TensorVariable:
        """Return the transform of each point's column of a matrix ``(anything, n_points)``."""
        masked = matrix * self.mask[None, :]
        if self.factor is None:
            return masked
        return solve_triangular(self.factor, masked.T, lower=True, b_ndim=2).T


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
    correlation = settings.noise_covariance
    if correlation is None:
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
    size, channels = len(correlation), settings.channel_shape
    factor = np.linalg.cholesky(correlation)

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
            lower = cholesky(masked_correlation(correlation, flags))
            residual = flags * away.reshape((size,))
            whitened = solve_triangular(lower, residual, lower=True, b_ndim=1)
            found.append(
                -0.5 * pt.sqr(whitened).sum() / variance
                - pt.log(pt.diagonal(lower)).sum()
                - 0.5 * flags.sum() * pt.log(2.0 * np.pi * variance)
            )
        return functools.reduce(operator.add, found)

    def dist(
        mean: TensorVariable, mask: TensorVariable, noise_variance: TensorVariable, size_: Any
    ) -> TensorVariable:
        # a column where there are no channels: the product is of two matrices
        noise = pm.Normal.dist(0.0, 1.0, shape=(size, *(channels or (1,))))
        colored = matrix_product(factor, noise).reshape(shape)
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
