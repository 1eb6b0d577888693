"""Hints about a model's latents besides their density, and their declaration for a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn

if TYPE_CHECKING:
    import pymc as pm
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["Curvature", "LatentGeometry", "declare_geometry", "geometry_of"]


@dataclass(frozen=True)
class Curvature:
    """Minus the second derivatives of a log-density by the latents, written out.

    Attributes
    ----------
    matrix : TensorVariable of shape (n_latents, n_latents)
        Expression in variables of the model, on the scale on which latents are sampled.
    residual_share : TensorVariable
        A free scalar in `matrix`. At 1 the matrix is exact. At 0 it omits the contribution of the
        residuals and is the Gauss-Newton matrix, which is positive definite everywhere.
    """

    matrix: TensorVariable
    residual_share: TensorVariable


@dataclass(frozen=True)
class LatentGeometry:
    """Hints about the latents for Laplace's approximation.

    Matrices are expressions in variables of the model, for the raveled latents on the scale on
    which they are sampled (transformed, Jacobian included). A step method uses what is declared
    for its model (`declare_geometry`), an E-step what its family returns (`Family.geometry`).

    Attributes
    ----------
    gauss_newton : TensorVariable of shape (n_latents, n_latents) or None
        Positive definite precision that replaces the negative Hessian of the log-density. None
        means the Hessian itself.
    prior_covariance : TensorVariable of shape (n_latents, n_latents) or None
        Covariance of the latents given their class and no data. None means the moments of prior
        draws.
    starts : ndarray of shape (n_starts, n_latents) or None
        Starting points of mode searches. Searches with cooling use the first of them. None means
        the model's initial point.
    curvature : Curvature or None
        Minus the Hessian, written out, with a weight on the contribution of the residuals. Searches
        take fewer steps with it. The precision of pseudo-priors stays `gauss_newton`, or the
        curvature at share 0. None means that searches step by `gauss_newton`.
    noise_variance : str or None
        Name of the ``pm.Data`` that is the variance of the observation noise. Searches may begin
        with a multiple of it. None means that they never do.
    prior_precision : TensorVariable of shape (n_latents, n_latents) or None
        Inverse of the prior covariance, if the model has it available. Searches measure their steps
        by it. None means that they invert `prior_covariance`, or, if that is None too, measure
        steps by the curvature.
    """

    gauss_newton: TensorVariable | None = None
    prior_covariance: TensorVariable | None = None
    starts: np.ndarray | None = None
    curvature: Curvature | None = None
    noise_variance: str | None = None
    prior_precision: TensorVariable | None = None

    def step_metric(self) -> TensorVariable | None:
        """Return the matrix that measures lengths of steps, or None.

        A little variance is added for latents without prior variance.
        """
        if self.prior_precision is not None:
            return pt.as_tensor_variable(self.prior_precision).astype("float64")
        if self.prior_covariance is None:
            return None
        covariance = pt.as_tensor_variable(self.prior_covariance).astype("float64")
        little = 1e-9 * pt.max(pt.diagonal(covariance)) + 1e-30
        return pt.linalg.inv(covariance + little * pt.eye(covariance.shape[0]))

    def starts_of(self, density: ClassDensity) -> np.ndarray:
        """Return the starting points, ``(n_starts, n_latents)``."""
        if self.starts is not None:
            return np.asarray(self.starts, dtype=np.float64)
        return density.ravel(density.model.initial_point(random_seed=0))[None]

    def follow_starts(self, density: ClassDensity) -> Callable[[], np.ndarray]:
        """Return a function that gives the starting points at the time of its call.

        A model's initial point may depend on its data and so change with ``pm.set_data``. If data
        are inputs of the density, they are not set in the model and the starts stay.
        """
        if self.starts is not None or density.data_inputs:
            starts = self.starts_of(density)
            return lambda: starts
        initial_point = make_initial_point_fn(model=density.model)
        return lambda: np.concatenate([density.ravel(initial_point(0))[None], density.found_starts])


# A ready-made family knows more about its latents than a PyMC model can hold. The table has weak
# references to models, so that it keeps none of them alive.
_declared: WeakKeyDictionary[pm.Model, LatentGeometry] = WeakKeyDictionary()


def declare_geometry(model: pm.Model, geometry: LatentGeometry) -> None:
    """Declare the geometry of the latents of `model` for step methods made on it later."""
    _declared[model] = geometry


def geometry_of(model: pm.Model) -> LatentGeometry:
    """Return the declared geometry of `model`, or an empty one."""
    return _declared.get(model, LatentGeometry())
