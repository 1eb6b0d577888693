"""Angles on the line: a density that is proper, though PyMC's circular transform is periodic.

PyMC samples an angle as a number of which only the remainder modulo 2π matters. Its density there
is periodic and has no integral, so that no class has a probability. Here it is multiplied by
weights that add up to one over all numbers x + 2πm of an angle. All integrals over the angle stay
as they are, the density decays like a normal's, and there is no edge at ±π.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import ChainedTransform, CircularTransform

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["TURNS", "are_angles", "log_turn_weight", "principal", "require_no_angles"]

#: Standard deviation of the normal that weighs the turns. Smaller ones give one turn nearly all
#: weight if the angle is near the center; larger ones are closer to normal if it is not known.
SPREAD = 1.5
#: Terms of the series; the next is below 1e-17.
_N_TERMS = 5
#: Multiples of 2π by which an angle between -π and π is moved; all others together have a weight
#: below 1e-14.
TURNS = 2.0 * np.pi * np.arange(-2, 3)


def log_turn_weight(x: TensorVariable) -> TensorVariable:
    r"""Return the logarithm of the weight of each number x, beside those of all x + 2πm.

    It is :math:`φ(x) / \sum_m φ(x + 2πm)`, with φ the density of Normal(0, 1.5²). The sum is a
    series of cosines by Poisson's formula.

    Examples
    --------
    >>> x = 3.0 + 2.0 * np.pi * np.arange(-3, 4)
    >>> np.exp(log_turn_weight(pt.as_tensor(x)).eval()).round(3)
    array([0.   , 0.   , 0.402, 0.598, 0.   , 0.   , 0.   ])
    """
    waves = sum(
        2.0 * np.exp(-0.5 * (j * SPREAD) ** 2) * pt.cos(j * x) for j in range(1, _N_TERMS + 1)
    )
    return np.log(np.sqrt(2.0 * np.pi) / SPREAD) - 0.5 * (x / SPREAD) ** 2 - pt.log1p(waves)


def principal(angle: np.ndarray) -> np.ndarray:
    """Return angles between -π and π, in an array of the same shape."""
    found: np.ndarray = np.arctan2(np.sin(angle), np.cos(angle))
    return found


def are_angles(
    model: pm.Model, variables: Sequence[TensorVariable], sizes: Sequence[int]
) -> np.ndarray:
    """Return which coordinates of raveled variables, with these sizes, are angles, ``(n,)``."""
    flags = [isinstance(model.rvs_to_transforms.get(rv), CircularTransform) for rv in variables]
    return np.repeat(np.array(flags, dtype=bool), sizes)


def require_no_angles(
    model: pm.Model, latents: Sequence[TensorVariable], *, chained_alone: bool = False
) -> None:
    """Raise `ValueError` if a latent is an angle, or only if its transform is part of a chain.

    Without the weights of their turns angles have densities without an integral.
    """
    winds = _is_chained if chained_alone else _winds
    found = [rv.name for rv in latents if winds(model.rvs_to_transforms[rv])]
    if found:
        raise ValueError(
            f"vars: {found} are angles on PyMC's circular transform"
            + (
                " in a chain of transforms, which CarlinChib does not take; leave them to another "
                "step by naming the other latents in vars, or give them that transform alone."
                if chained_alone
                else ", under which no class has a probability together with them; CarlinChib "
                "takes them, but families and Laplace's approximation do not. Write an angle as "
                "pt.arctan2 of two normals."
            )
        )


def _winds(transform: Any) -> bool:
    """Return whether a transform is circular or has a circular one in its chain."""
    return isinstance(transform, CircularTransform) or _is_chained(transform)


def _is_chained(transform: Any) -> bool:
    return isinstance(transform, ChainedTransform) and any(map(_winds, transform.transform_list))
