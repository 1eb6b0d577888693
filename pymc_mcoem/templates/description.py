"""Description of a template mixture in words and numbers that tell it from others."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pymc_mcoem.templates.priors import TemplatePriors
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["describe_mixture"]


def describe_mixture(settings: TemplateSettings, priors: TemplatePriors) -> dict[str, str]:
    """Return a description of a mixture that differs from those of other mixtures.

    Arrays are described by a weighted sum of their entries with six digits, which differs between
    arrays and does not depend on rounding.

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
    # no entry of mixtures of one channel, whose files are older than channels
    channels = (
        {}
        if settings.channel_labels is None
        else {"channels": f"{settings.channel_name}: {list(map(str, settings.channel_labels))}"}
    )
    return {
        **channels,
        **({} if settings.offset is None else {"offset": str(settings.offset)}),
        **({"rigid_weight": str(deformation.rigid_weight)} if settings.rigid.size else {}),
        "points": _digest(settings.points),
        "basis": f"{basis!r}, {_digest(basis.matrix(settings.points))}",
        "deformation": f"{deformation!r}, {_digest(warped)}, {_digest(deformation.covariance)}",
        "scale": str(settings.scale),
        "coefficients": settings.coefficients,
        "covariance": settings.covariance,
        "noise": settings.noise,
        "noise_correlation": "None" if correlation is None else _digest(correlation),
        "own_points": str(settings.own_points),
        "priors": ", ".join(
            f"{field.name} {_digest(getattr(priors, field.name))}" for field in fields(priors)
        ),
    }


def _pattern(size: int) -> np.ndarray:
    return np.asarray(np.cos(np.arange(1.0, size + 1.0)))


def _digest(value: Any) -> str:
    if value is None or isinstance(value, str):
        return str(value)
    array = np.asarray(value, dtype=np.float64).ravel()
    number = array[0] if array.size == 1 else array @ _pattern(array.size)
    return f"{float(number):.6g}"
