"""The normal approximation of a posterior around its mode.

Model: a log-density log p(y, I = j, x) on the scale on which PyMC samples x (transformed,
Jacobian included). Around its mode x*_j it is replaced by a normal density with precision P_j,

    p(y, I = j, x) ≈ p(y, I = j, x*_j) exp(−(x − x*_j)ᵀ P_j (x − x*_j) / 2),

where P_j is minus the Hessian, or a Gauss-Newton matrix that is positive definite everywhere.
Mode and curvature belong to the *same* density. ``pm.find_MAP`` omits the Jacobian of the
transformations and ``pm.find_hessian`` includes it, so on constrained variables the two do not
match; without constraints they are the reference of tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from pymc.initial_point import make_initial_point_fn

from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.laplace.modes import ModeStatus
from pymc_mcoem.laplace.search import ModeSearch

__all__ = ["LaplaceApproximation"]


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
        latents = [rv for rv in model.free_RVs if rv.dtype in pm.pytensorf.continuous_types]
        if not latents:
            raise ValueError("model: it has no continuous free variable; there is no mode to find.")
        start = make_initial_point_fn(model=model, overrides=dict(initvals or {}))(0)
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
