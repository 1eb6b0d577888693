"""A check that the transform of a latent reaches the whole support of its prior.

Inactive latents are drawn from their prior as written. A transform that the user sets may exclude
part of its support, as ``ordered`` does for independent normals and ``log`` for a normal. PyMC then
samples a truncated prior that is not normalized, with other draws and another integral.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors
from pytensor.link.vm import VMLinker

from pymc_mcoem.compiling.pymc_tables import default_transform

if TYPE_CHECKING:
    import numpy.typing as npt
    from pytensor.tensor.variable import TensorVariable

__all__ = ["latents_cut_off"]

#: Points this many nats below the densest trial point have negligible mass.
_NEGLIGIBLE = 300.0

#: Spreads of trial points for a distribution without a transform of its own and with one. On the
#: scale of its own transform every point of the support is at a moderate distance.
_PLAIN_SPREADS = (0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
_OWN_SPREADS = (0.1, 0.5, 1.0, 2.0, 4.0)
_N_POINTS = 20


def latents_cut_off(model: pm.Model, latents: Iterable[TensorVariable]) -> list[TensorVariable]:
    """Return the latents whose transforms do not reach their whole supports.

    Points of the support are made by the distribution's own transform, if it has one, and mapped
    forth and back by the latent's transform. Points with negligible prior density are skipped. A
    transform that is not the distribution's own is assumed to cut off if the prior has parameters
    that are variables or data, because their values are not known in advance.

    Parameters
    ----------
    latents : iterable of TensorVariable
        Free continuous variables of `model`.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     a = pm.HalfNormal("a")
    ...     b = pm.Normal("b", transform=pm.distributions.transforms.log, initval=1.0)
    >>> latents_cut_off(model, [a, b])
    [b]
    """
    point = model.initial_point(random_seed=0)
    return [rv for rv in latents if not _reaches_all(model, rv, point)]


def _reaches_all(model: pm.Model, rv: TensorVariable, point: Mapping[str, np.ndarray]) -> bool:
    transform = model.rvs_to_transforms[rv]
    own = None if transform is None else default_transform(rv)
    if transform is None or transform is own or _same_rule(transform, own):
        return True
    moving = set(model.free_RVs) | set(model.data_vars)
    inputs = list(rv.owner.inputs)
    # Limits may depend on variables or data that are not parameters of the prior.
    again = transform.backward(transform.forward(rv.type(), *inputs), *inputs)
    if not moving.isdisjoint(ancestors([*inputs, again])):
        return False
    # By order, because PyMC may rename a value whose transform changes nothing.
    others = list(point.values())
    values = [model.rvs_to_values[each] for each in model.free_RVs]
    size = max(np.size(others[model.free_RVs.index(rv)]), 1)
    on_own_scale = rv if own is None else own.forward(rv, *inputs)
    noise = pt.vector("noise", dtype="float64")
    shape = on_own_scale.shape
    free = noise[: pt.prod(shape, dtype="int64")].reshape(shape, ndim=on_own_scale.type.ndim)
    natural = free if own is None else own.backward(free, *inputs)
    log_density = pm.logp(rv, natural, warn_rvs=False)
    again = transform.backward(transform.forward(natural, *inputs), *inputs)
    # Interpreted, because it runs for a hundred points once.
    function = pm.pytensorf.compile(
        [noise, *values],
        model.replace_rvs_by_values([natural, again, pt.sum(log_density)]),
        mode=Mode(VMLinker(c_thunks=False), "fast_compile"),
        on_unused_input="ignore",
    )
    rng = np.random.default_rng(0)
    densities, comes_back = [], []
    for spread in _PLAIN_SPREADS if own is None else _OWN_SPREADS:
        for _ in range(_N_POINTS):
            # No transform reduces more than twice as many numbers to `size`.
            with np.errstate(all="ignore"):
                before, after, density = function(spread * rng.standard_normal(2 * size), *others)
            densities.append(float(density) if np.isfinite(density) else -np.inf)
            comes_back.append(_alike(before, after))
    dense = np.array(densities) > max(densities) - _NEGLIGIBLE
    return bool(np.array(comes_back)[dense].all())


def _same_rule(transform: Any, own: Any) -> bool:
    """Return whether two intervals compute their limits by the same function of the parameters.

    Distributions with limits make a new transform object at every request.
    """
    rules = [getattr(each, "args_fn", None) for each in (transform, own)]
    codes = [getattr(rule, "__code__", None) for rule in rules]
    if type(transform) is not type(own) or None in codes or codes[0] is not codes[1]:
        return False
    cells = [[cell.cell_contents for cell in rule.__closure__ or ()] for rule in rules]  # type: ignore[union-attr]
    return bool(cells[0] == cells[1])


def _alike(before: npt.ArrayLike, after: npt.ArrayLike) -> bool:
    scale = np.abs(before).max(initial=0.0)
    return np.allclose(before, after, rtol=1e-3, atol=1e-6 * scale)
