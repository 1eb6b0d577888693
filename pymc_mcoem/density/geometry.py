"""What is known of a model's latents besides their density, and where a model declares it."""

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
        In variables of the model, on the scale on which latents are sampled.
    residual_share : TensorVariable
        A free scalar in `matrix`. At 1 the matrix is exact; at 0 what residuals contribute is
        left out, and it is the Gauss-Newton matrix, positive definite everywhere.
    """

    matrix: TensorVariable
    residual_share: TensorVariable


@dataclass(frozen=True)
class LatentGeometry:
    """What is known of the latents besides their density: hints for Laplace's approximation.

    Matrices are expressions in variables of the model, for the raveled latents on the scale on
    which they are sampled (transformed, Jacobian included). A step method knows what is declared
    of its model (`declare_geometry`), an E-step what its family says (`Family.geometry`).

    Attributes
    ----------
    gauss_newton : TensorVariable of shape (n_latents, n_latents) or None
        Positive definite precision that stands in for the negative Hessian of the log-density.
        None: the Hessian itself.
    prior_covariance : TensorVariable of shape (n_latents, n_latents) or None
        Covariance of the latents given their class and no data. None: the moments of prior draws.
    starts : ndarray of shape (n_starts, n_latents) or None
        Where searches for modes start; searches that cool do so from the first of them. None: the
        model's initial point.
    curvature : Curvature or None
        Minus the Hessian written out, with what residuals contribute to be weighed. With it
        searches take fewer steps, while `gauss_newton`, or its share 0, stays the precision of
        pseudo-priors. None: they step by `gauss_newton`.
    noise_variance : str or None
        Name of the ``pm.Data`` that is the variance of the observation's noise, a multiple of which
        searches may begin with. None: they never do.
    prior_precision : TensorVariable of shape (n_latents, n_latents) or None
        Inverse of the prior covariance, where the model has it at hand: searches measure their
        steps by it. None: they invert `prior_covariance`; without that they measure by the
        curvature.
    """

    gauss_newton: TensorVariable | None = None
    prior_covariance: TensorVariable | None = None
    starts: np.ndarray | None = None
    curvature: Curvature | None = None
    noise_variance: str | None = None
    prior_precision: TensorVariable | None = None

    def step_metric(self) -> TensorVariable | None:
        """Return the matrix that lengths of steps are measured by, if there is one.

        Latents without prior variance have none of their own: they are given a little.
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
        """Return a function to `starts_of`, as they are when it is called.

        A model's initial point may depend on its data, and so move with ``pm.set_data``. Where
        data are inputs of the density they are not set in the model, and starts stay.
        """
        if self.starts is not None or density.data_inputs:
            starts = self.starts_of(density)
            return lambda: starts
        initial_point = make_initial_point_fn(model=density.model)
        return lambda: density.ravel(initial_point(0))[None]


# A ready-made family knows more of its latents than PyMC has a place for in a model. The table
# holds models weakly, so that declaring keeps none of them alive.
_declared: WeakKeyDictionary[pm.Model, LatentGeometry] = WeakKeyDictionary()


def declare_geometry(model: pm.Model, geometry: LatentGeometry) -> None:
    """Say what is known of the latents of `model`, for step methods made on it later."""
    _declared[model] = geometry


def geometry_of(model: pm.Model) -> LatentGeometry:
    """Return what was declared of `model`, or a geometry that knows nothing."""
    return _declared.get(model, LatentGeometry())
