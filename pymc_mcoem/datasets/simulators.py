"""Simulated curves and images whose templates, warps and classes are known."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import xarray as xr

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from pymc_mcoem.templates.mixture import TemplateMixture

__all__ = ["simulate_curves", "simulate_images"]


def simulate_curves(
    n_observations: int,
    n_classes: int = 2,
    *,
    points: ArrayLike | None = None,
    weights: Sequence[float] | None = None,
    noise_variance: float = 0.01,
    deformation_variance: float = 0.2,
    scale_variance: float = 0.0,
    missing: float = 0.0,
    random_seed: int | np.random.Generator | None = None,
) -> xr.Dataset:
    r"""Draw noisy, warped curves whose template in class j has j bumps.

    No warp turns one bump into two, so the classes can be told apart even with strong warps.

    Parameters
    ----------
    n_observations : int
        Number of curves, at least 1.
    n_classes : int
        Number of templates, at least 1.
    points : array_like of shape (n_points,), optional
        Increasing design points, at least 2; warps do not move the first and the last. Default:
        50 equally spaced points from 0 to 1.
    weights : sequence of float of shape (n_classes,), optional
        Probabilities of the classes. Default: equal.
    noise_variance : float
        Variance of the noise on every point, at least 0.
    deformation_variance : float
        Variance of the five coefficients of a warp, at least 0; 0 for no warp.
    scale_variance : float
        Variance of the Gamma-distributed factor of mean 1 that multiplies a curve, at least 0; 0
        for no factor.
    missing : float in [0, 1)
        Probability that a point is missing (NaN). A curve that would lose all its points keeps
        one.
    random_seed : int, Generator or None
        Seed or source of the draws.

    Returns
    -------
    xarray.Dataset
        ``curves`` ``(observation, point)``; their latents ``class_index`` ``(observation,)``,
        ``deformation`` ``(observation, coefficient)``, ``scale`` ``(observation,)``; ``warps``
        ``(observation, point)``, the place of each point on the template's axis; and
        ``templates`` ``(class, point)``, not warped. ``point`` is labeled with `points`.

    Raises
    ------
    TypeError
        If a number has another type than given above.
    ValueError
        If a number is out of the range given above.

    Notes
    -----
    With time t running over [0, 1] between the first and the last point, template j = 0, 1, ...
    is the sum over k = 1..j + 1 of :math:`\exp(-((t - k/(j + 2)) (j + 2) / 0.3)^2)`, and a curve is

    .. math:: y(t) = \lambda f_j(D(t)) + \varepsilon(t), \qquad
        D(t) = \frac{\int_0^t \exp \sum_k \beta_k \psi_k}{\int_0^1 \exp \sum_k \beta_k \psi_k},

    with five Gaussian :math:`\psi_k(t) = \exp(-((t - (k - 1)/4)/0.25)^2)` and independent normal
    :math:`\beta_k`: the paper's model (label ``modelFunc``) and its monotone warp
    (section ``subsec:5:1``).

    Examples
    --------
    >>> simulated = simulate_curves(100, n_classes=3, missing=0.1, random_seed=1)
    >>> simulated.curves.sizes["point"], simulated.templates.sizes["class"]
    (50, 3)
    >>> bool((simulated.warps.diff("point") > 0).all())
    True
    """
    n_observations = _at_least_one("n_observations", n_observations)
    n_classes = _at_least_one("n_classes", n_classes)
    points = _increasing("points", np.linspace(0.0, 1.0, 50) if points is None else points)
    probabilities = _probabilities("weights", weights, n_classes)
    noise_variance = _not_negative("noise_variance", noise_variance)
    deformation_variance = _not_negative("deformation_variance", deformation_variance)
    scale_variance = _not_negative("scale_variance", scale_variance)
    missing = _share("missing", missing)

    rng = np.random.default_rng(random_seed)
    class_index = rng.choice(n_classes, size=n_observations, p=probabilities)
    deformation = rng.normal(0.0, np.sqrt(deformation_variance), size=(n_observations, 5))
    scale = np.ones(n_observations)
    if scale_variance > 0.0:
        scale = rng.gamma(1.0 / scale_variance, scale_variance, size=n_observations)
    time = (points - points[0]) / (points[-1] - points[0])
    warped_time = _monotone_warps(time, deformation)
    curves = np.stack(
        [
            factor * _bumps(warp, n_bumps=label + 1)
            for factor, warp, label in zip(scale, warped_time, class_index, strict=True)
        ]
    )
    curves += rng.normal(0.0, np.sqrt(noise_variance), size=curves.shape)
    curves[_missing_points(curves.shape, missing, rng)] = np.nan
    return xr.Dataset(
        {
            "curves": (("observation", "point"), curves),
            "class_index": ("observation", class_index),
            "deformation": (("observation", "coefficient"), deformation),
            "scale": ("observation", scale),
            "warps": (
                ("observation", "point"),
                points[0] + (points[-1] - points[0]) * warped_time,
            ),
            "templates": (
                ("class", "point"),
                np.stack([_bumps(time, n_bumps=label + 1) for label in range(n_classes)]),
            ),
        },
        coords={"point": points, "class": np.arange(n_classes)},
    )


def simulate_images(
    mixture: TemplateMixture,
    parameters: Mapping[str, Any] | xr.Dataset | None,
    n_observations: int,
    *,
    random_seed: int | np.random.Generator | None = None,
    missing: float = 0.0,
) -> xr.Dataset:
    """Draw observations and their latents from the model of a mixture.

    Parameters
    ----------
    mixture : TemplateMixture
        A mixture of images, or of other observations on a grid.
    parameters : Dataset, mapping of str to array_like, or None
        θ of `mixture`; None for the current values in its model.
    n_observations : int
        Number of images, at least 1.
    random_seed : int, Generator or None
        Seed or source of the draws.
    missing : float in [0, 1)
        Probability that a pixel is missing (NaN). An image that would lose all its pixels keeps
        one.

    Returns
    -------
    xarray.Dataset
        ``images`` ``(observation, *grid)``, on the grid of `mixture`, that is
        ``(observation, row, column)`` for images, with channels last if there are several;
        ``class_index`` ``(observation,)``;
        ``deformation`` ``(observation, deformation_coordinate)``; and, if the mixture has one,
        ``scale`` ``(observation,)``.

    Raises
    ------
    TypeError
        If `mixture` or a number has another type than given above.
    ValueError
        If `parameters` do not fit `mixture`, or a number is out of the range given above.

    Notes
    -----
    Every call compiles the model's draws again, which takes longer than thousands of draws: draw
    all observations in one call. The model is labels ``modelFunc`` and ``mixtModelVect`` of the
    paper. `pymc_mcoem.template_images` returns the templates of `parameters`.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((4, 4), n_classes=2, n_landmarks=2)
    >>> simulated = simulate_images(mixture, mixture.parameters, 10, random_seed=1)
    >>> dict(simulated.sizes)
    {'observation': 10, 'row': 4, 'column': 4, 'deformation_coordinate': 14}
    """
    from pymc_mcoem.templates.mixture import TemplateMixture

    if not isinstance(mixture, TemplateMixture):
        raise TypeError(f"mixture: got {type(mixture).__name__}; give a TemplateMixture.")
    n_observations = _at_least_one("n_observations", n_observations)
    missing = _share("missing", missing)

    settings = mixture.settings
    rng = np.random.default_rng(random_seed)
    model = mixture.condition(np.zeros(settings.observation_shape), parameters)
    names = ["observation", *(variable.name for variable in model.free_RVs)]
    draws = pm.draw([model[name] for name in names], draws=n_observations, random_seed=rng)
    if n_observations == 1:  # a single draw comes without its axis
        draws = [draw[np.newaxis] for draw in draws]
    dims = {name: model.named_vars_to_dims.get(name, ()) for name in names}
    variables = {
        name: (("observation", *dims[name]), draw) for name, draw in zip(names, draws, strict=True)
    }
    grid, images = variables.pop("observation")
    images[_missing_points(images.shape, missing, rng)] = np.nan
    return xr.Dataset(
        {"images": (grid, images), **variables},
        coords={label: list(model.coords[label]) for labels in dims.values() for label in labels},
    )


def _bumps(time: np.ndarray, *, n_bumps: int) -> np.ndarray:
    """Return the template with `n_bumps` equal bumps at times of shape ``(n_points,)``."""
    spacing = 1.0 / (n_bumps + 1)
    centers = spacing * np.arange(1, n_bumps + 1)
    distance = (time[:, np.newaxis] - centers) / (0.3 * spacing)
    bumps: np.ndarray = np.exp(-(distance**2)).sum(axis=-1)
    return bumps


def _monotone_warps(time: np.ndarray, deformation: np.ndarray) -> np.ndarray:
    """Return D(t), ``(n_observations, n_points)``, at times ``(n_points,)`` in [0, 1]."""
    grid = np.linspace(0.0, 1.0, 1001)
    centers = np.linspace(0.0, 1.0, deformation.shape[1])
    kernels = np.exp(-(((grid[:, np.newaxis] - centers) / 0.25) ** 2))
    speed = np.exp(deformation @ kernels.T)
    # The trapezoidal rule on a fixed grid, so that the warp does not depend on the design points.
    steps = 0.5 * (speed[:, 1:] + speed[:, :-1])
    distance = np.concatenate([np.zeros((len(speed), 1)), steps.cumsum(axis=1)], axis=1)
    distance /= distance[:, -1:]
    return np.stack([np.interp(time, grid, row) for row in distance])


def _missing_points(shape: tuple[int, ...], missing: float, rng: np.random.Generator) -> np.ndarray:
    """Return a mask of missing points of `shape` that leaves every observation one point."""
    mask = rng.random(shape) < missing
    rows = mask.reshape(shape[0], -1)
    spared = rng.integers(rows.shape[1], size=len(rows))
    lost = np.flatnonzero(rows.all(axis=1))
    rows[lost, spared[lost]] = False
    return mask


def _at_least_one(name: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: got {value!r}; give a whole number of at least 1.") from None
    if number < 1:
        raise ValueError(f"{name}: got {number}; give a whole number of at least 1.")
    return number


def _real(name: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: got {value!r}; give a real number.") from None


def _not_negative(name: str, value: float) -> float:
    number = _real(name, value)
    if not 0.0 <= number < np.inf:
        raise ValueError(f"{name}: got {number}; give a finite number of at least 0.")
    return number


def _share(name: str, value: float) -> float:
    number = _real(name, value)
    if not 0.0 <= number < 1.0:
        raise ValueError(f"{name}: got {number}; give a probability of at least 0 and below 1.")
    return number


def _increasing(name: str, value: ArrayLike) -> np.ndarray:
    points = np.asarray(value, dtype=np.float64)
    if points.ndim != 1 or len(points) < 2:
        raise ValueError(f"{name}: got shape {points.shape}; give a vector of two or more.")
    if not np.isfinite(points).all() or not (np.diff(points) > 0.0).all():
        raise ValueError(
            f"{name}: got {points}; sort them, and drop duplicates and values that are not finite."
        )
    return points


def _probabilities(name: str, value: Sequence[float] | None, n_classes: int) -> np.ndarray:
    if value is None:
        return np.full(n_classes, 1.0 / n_classes)
    weights = np.asarray(value, dtype=np.float64)
    if weights.shape != (n_classes,):
        raise ValueError(
            f"{name}: got shape {weights.shape}; give one number for each of {n_classes} classes."
        )
    if not (weights >= 0.0).all() or not np.isclose(weights.sum(), 1.0):
        raise ValueError(
            f"{name}: got {weights}, which sum to {weights.sum()}; give numbers of at least 0 that "
            "sum to one."
        )
    return weights / weights.sum()
