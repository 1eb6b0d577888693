"""What a template mixture is made of, in words and numbers that fit into a file."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pymc_mcoem.templates.priors import TemplatePriors
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["describe_mixture"]


def describe_mixture(settings: TemplateSettings, priors: TemplatePriors) -> dict[str, str]:
    """Describe a mixture so that another one can be told from it.

    Parameters
    ----------
    settings : TemplateSettings
    priors : TemplatePriors

    Returns
    -------
    dict of str to str
        Arrays are told by a weighted sum of their entries in six digits: enough to see that two
        are not the same, and not so much that another machine's last digit differs.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    >>> describe_mixture(mixture.settings, mixture.priors)["covariance"]
    'scaled'
    """
    basis, deformation = settings.basis, settings.deformation
    beta = deformation.mean + 0.1 * _pattern(deformation.n_parameters)
    warped = deformation.warp(settings.points, beta).eval(mode="FAST_COMPILE")
    correlation = settings.noise_correlation
    return {
        "points": _told(settings.points),
        "basis": f"{basis!r}, {_told(basis.matrix(settings.points))}",
        "deformation": f"{deformation!r}, {_told(warped)}, {_told(deformation.covariance)}",
        "scale": str(settings.scale),
        "coefficients": settings.coefficients,
        "covariance": settings.covariance,
        "noise": settings.noise,
        "noise_correlation": "None" if correlation is None else _told(correlation),
        "own_points": str(settings.own_points),
        "priors": ", ".join(
            f"{field.name} {_told(getattr(priors, field.name))}" for field in fields(priors)
        ),
    }


def _pattern(size: int) -> np.ndarray:
    return np.asarray(np.cos(np.arange(1.0, size + 1.0)))


def _told(value: Any) -> str:
    if value is None or isinstance(value, str):
        return str(value)
    array = np.asarray(value, dtype=np.float64).ravel()
    number = array[0] if array.size == 1 else array @ _pattern(array.size)
    return f"{float(number):.6g}"
