"""The normal approximation of a posterior around its mode.

Model: a log-density log p(y, I = j, x) on the scale on which PyMC samples x (transformed,
Jacobian included). Around its mode x*_j it is replaced by a normal density with precision P_j,

    p(y, I = j, x) ≈ p(y, I = j, x*_j) exp(−(x − x*_j)ᵀ P_j (x − x*_j) / 2),

where P_j is minus the Hessian, or a Gauss-Newton matrix that is positive definite everywhere.
Mode and curvature belong to the *same* density. ``pm.find_MAP`` leaves out the Jacobian of the
transformations and ``pm.find_hessian`` includes it, so on constrained variables the two do not
match; without them they are the reference that tests compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pymc.initial_point import make_initial_point_fn
from scipy.linalg.lapack import dtrtri

from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.laplace.modes import Modes, ModeStatus
from pymc_mcoem.laplace.schedule import Cooling, Race
from pymc_mcoem.laplace.search import ModeSearch

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["Cooling", "LaplaceApproximation", "ModeSearch", "ModeStatus", "Modes", "Race"]


@dataclass(frozen=True)
class LaplaceApproximation:
    """Normal approximation of a posterior around its mode.

    Attributes
    ----------
    mean : ndarray of shape (n_latents,)
        The mode, on the scale on which PyMC samples the latents.
    covariance : ndarray of shape (n_latents, n_latents)
        Inverse of the precision at the mode.
    log_density : float
        Unnormalized log-density at the mode.
    point : dict of str to ndarray
        The mode by value-variable name.
    status : ModeStatus

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", 0.0, 1.0)
    ...     y = pm.Normal("y", x, 1.0, observed=2.0)
    >>> approximation = LaplaceApproximation.fit(model)
    >>> float(approximation.mean[0].round(6)), float(approximation.covariance[0, 0].round(6))
    (1.0, 0.5)
    """

    mean: np.ndarray
    covariance: np.ndarray
    log_density: float
    point: dict[str, np.ndarray]
    status: ModeStatus

    @classmethod
    def fit(
        cls,
        model: pm.Model,
        *,
        initvals: Mapping[str, Any] | None = None,
        tolerance: float = 1e-12,
        max_iterations: int = 200,
    ) -> LaplaceApproximation:
        """Approximate the posterior of all continuous free variables of `model`.

        Parameters
        ----------
        model : pymc.Model
        initvals : mapping of str to array, optional
            Starting values by variable name, as in ``pm.sample``. Discrete variables keep these
            values. Default: the model's initial point.
        tolerance, max_iterations
            As in `ModeSearch`.

        Returns
        -------
        LaplaceApproximation

        Raises
        ------
        ValueError
            If the model has no continuous free variable.
        """
        latents, start = continuous_variables(model, initvals)
        density = ClassDensity(model, None, latents)
        search = ModeSearch(density, tolerance=tolerance, max_iterations=max_iterations)
        others = [
            np.asarray(start[value.name], dtype=value.dtype) for value in density.other_values
        ]
        modes = search(density.ravel(start)[None], {}, others)
        return cls(
            modes.mean[0],
            np.linalg.inv(modes.precision[0]),
            float(modes.log_density[0]),
            density.unravel(modes.mean[0]),
            modes.status[0],
        )


def continuous_variables(
    model: pm.Model, initvals: Mapping[str, Any] | None
) -> tuple[list[TensorVariable], dict[str, np.ndarray]]:
    """Return the continuous free variables of a model and the point to start from."""
    latents = [rv for rv in model.free_RVs if rv.dtype in pm.pytensorf.continuous_types]
    if not latents:
        raise ValueError("model: it has no continuous free variable; there is no mode to find.")
    initial_point = make_initial_point_fn(model=model, overrides=dict(initvals or {}))
    return latents, dict(initial_point(0))


def square_roots(factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (scale, whiten) of normal densities given by the factors of their precisions.

    Parameters
    ----------
    factors : ndarray of shape (n, d, d)
        Factors as from `pymc_mcoem.laplace.modes.cholesky_factors`.

    Returns
    -------
    scale, whiten : ndarray of shape (n, d, d)
        scale scaleᵀ is the covariance, and whiten is the inverse of scale.
    """
    whiten = np.ascontiguousarray(np.swapaxes(factors, 1, 2))
    # A transpose has the memory order that LAPACK needs; its inverse is transposed back.
    scale = np.stack([dtrtri(upper.T, lower=True)[0].T for upper in whiten])
    return scale, whiten
