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
from pymc.logprob.transforms import ChainedTransform, CircularTransform, Transform

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["TURNS", "angle_coordinates", "proper_transform", "require_no_chained_angles"]

#: Standard deviation of the normal that weighs the turns. Smaller ones give one turn nearly all
#: weight if the angle is far from ±π; larger ones are closer to normal if it is not known at all.
SPREAD = 1.5
#: Terms of the series; the next is below 1e-17.
_N_TERMS = 5

#: Multiples of 2π by which an angle between -π and π is moved; all others together have a weight
#: below 1e-14.
TURNS = 2.0 * np.pi * np.arange(-2, 3)


class WeightedTurns(CircularTransform):
    r"""PyMC's circular transform with weights of the turns in place of its zero log-Jacobian.

    The weight of x is :math:`φ(x - c) / \sum_m φ(x - c + 2πm)`, with φ the density of
    Normal(0, 1.5²) and c the center. The sum is a series of cosines by Poisson's formula.

    Parameters
    ----------
    center : int or None
        Which input of the distribution is the center; None: 0.
    """

    def __init__(self, center: int | None) -> None:
        self._center = center

    def log_jac_det(self, value: TensorVariable, *inputs: Any) -> TensorVariable:
        """Return the logarithm of the weight of each value."""
        x = value
        if self._center is not None:
            x = value - self.backward(inputs[self._center])
        waves = sum(
            2.0 * np.exp(-0.5 * (j * SPREAD) ** 2) * pt.cos(j * x) for j in range(1, _N_TERMS + 1)
        )
        scale = np.log(np.sqrt(2.0 * np.pi) / SPREAD)
        return scale - 0.5 * (x / SPREAD) ** 2 - pt.log1p(waves)


def proper_transform(rv: TensorVariable, transform: Transform | None) -> Transform | None:
    """Return the transform of a variable, for an angle one with which its density is proper."""
    if not isinstance(transform, CircularTransform):
        return transform
    # of the inputs of a von Mises distribution, (rng, size, mu, kappa)
    return WeightedTurns(2 if getattr(rv.owner.op, "name", None) == "vonmises" else None)


def angle_coordinates(
    model: pm.Model, latents: Sequence[TensorVariable], sizes: Sequence[int]
) -> list[int]:
    """Return which coordinates of the raveled latents, with these sizes, are angles."""
    flags = [isinstance(model.rvs_to_transforms[rv], CircularTransform) for rv in latents]
    return np.flatnonzero(np.repeat(flags, sizes)).tolist()


def require_no_chained_angles(model: pm.Model, latents: Sequence[TensorVariable]) -> None:
    """Raise `ValueError` if a latent has a chain of transforms with a circular one."""
    found = [rv.name for rv in latents if _is_chained(model.rvs_to_transforms[rv])]
    if found:
        raise ValueError(
            f"vars: {found} have a chain of transforms with a circular one, under which no class "
            "has a probability; leave them to another step by naming the other latents in vars, or "
            "give them the circular transform alone."
        )


def _is_chained(transform: Any) -> bool:
    return isinstance(transform, ChainedTransform) and any(
        isinstance(each, CircularTransform) or _is_chained(each)
        for each in transform.transform_list
    )
