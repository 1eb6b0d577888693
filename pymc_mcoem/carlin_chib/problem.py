"""Determine the kind of a problem: shared latents, blocks, or a plate."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pymc.util import get_value_vars_from_user_vars
from pytensor.graph.traversal import ancestors

from pymc_mcoem.density.blocks import BlockDensity
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.class_index import (
    count_classes,
    find_class_index,
    is_class_index,
    require_class_index,
)
from pymc_mcoem.density.data_forms import require_all_data
from pymc_mcoem.density.geometry import LatentGeometry, geometry_of
from pymc_mcoem.density.plate import PlateDensity
from pymc_mcoem.density.unused_latents import blocks_of_use

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = [
    "density_of",
    "find_index",
    "named_variables",
    "other_indices",
    "require_settings",
    "structure_of",
]

_log = logging.getLogger("pymc_mcoem")


def named_variables(model: pm.Model, vars: Any) -> list[TensorVariable]:
    """Return the random variables of one or many variables, value variables or names."""
    given = list(vars) if isinstance(vars, (list, tuple)) else [vars]
    unknown = [each for each in given if isinstance(each, str) and each not in model.named_vars]
    if unknown:
        raise ValueError(
            f"vars: got {unknown}, and the model has {[rv.name for rv in model.free_RVs]}; name "
            "some of them."
        )
    found = [model[each] if isinstance(each, str) else each for each in given]
    return [model.values_to_rvs.get(each, each) for each in found]


def find_index(
    model: pm.Model,
    class_index: TensorVariable | str | None,
    vars: Sequence[TensorVariable] | None,
) -> TensorVariable:
    """Return the given or named class index, or the only one in `vars` or in the model."""
    if isinstance(class_index, str):
        if class_index not in model.named_vars:
            raise ValueError(
                f"class_index: got {class_index!r}, and the model has "
                f"{[rv.name for rv in model.free_RVs]}; name one of them."
            )
        return model[class_index]
    if class_index is not None:
        return class_index
    discrete = [rv for rv in vars or () if rv.dtype not in pm.pytensorf.continuous_types]
    return discrete[0] if len(discrete) == 1 else find_class_index(model)


def other_indices(density: ClassDensity, most: int) -> dict[int, int]:
    """Return which of a density's other values are class indices, and their numbers of classes.

    Parameters
    ----------
    most : int
        Most joint values that they may take; if there are more, none is returned.

    Returns
    -------
    dict of int to int
        By position among `other_values`; only single indices that the density depends on.
    """
    looked_at = set(ancestors([density.log_density(0, np.zeros(density.n_latents))]))
    found = {}
    for position, value in enumerate(density.other_values):
        rv = density.model.values_to_rvs[value]
        if value in looked_at and rv.ndim == 0 and is_class_index(rv):
            found[position] = count_classes(rv)
    return found if np.prod([*found.values()], dtype=int) <= most else {}


def require_settings(
    index: TensorVariable,
    pseudo_priors: Any,
    within_class: Any,
    index_move: str,
    auxiliaries: str,
    jump: Any,
    equalize_visits: bool,
) -> None:
    """Require valid settings of `CarlinChib` that suit the index."""
    is_default = isinstance(within_class, str) and within_class == "default"
    move = None if is_default else within_class
    for name, value, method, examples in (
        ("pseudo_priors", pseudo_priors, "compile", "Laplace(), PriorCovariance()"),
        ("within_class", move, "build", "RandomWalk(), Hamiltonian()"),
        ("jump", jump, "compile", "AnnealedJump()"),
    ):
        is_class = isinstance(value, type)
        if value is not None and (is_class or not callable(getattr(value, method, None))):
            raise TypeError(f"{name}: got {value!r}; give an object, as {examples}, or None.")
    if index_move not in ("gibbs", "metropolized"):
        raise ValueError(f"index_move: got {index_move!r}; choose 'gibbs' or 'metropolized'.")
    if auxiliaries not in ("refreshed", "frozen"):
        raise ValueError(f"auxiliaries: got {auxiliaries!r}; choose 'refreshed' or 'frozen'.")
    if equalize_visits and index.ndim:
        raise ValueError(
            f"equalize_visits: {index.name} is a plate, whose rows differ in the classes they "
            "seldom visit; leave it out."
        )
    if jump is not None and index.ndim:
        raise ValueError(f"jump: got {jump!r}; {index.name} is a plate, which takes None.")


def density_of(
    model: pm.Model,
    index: TensorVariable,
    vars: Sequence[TensorVariable] | None,
    blocks: Mapping[int, Sequence[TensorVariable | str]] | None,
) -> tuple[ClassDensity | PlateDensity, LatentGeometry]:
    """Return the density for the kind of problem, and the declared geometry of its latents.

    `vars` and `blocks` are as `CarlinChib` takes them.
    """
    require_class_index(model, index)
    require_all_data(model)
    named = None if vars is None else _named(model, index, vars)
    if blocks is not None:
        if index.ndim:
            raise ValueError(
                f"blocks: {index.name} is a plate of indices; blocks go with one index. Write "
                "latents along the plate that all classes share."
            )
        density = BlockDensity(model, index, blocks)
        if named is not None and set(named) != set(density.latents):
            raise ValueError(
                f"vars: {[rv.name for rv in named]} are not the variables of the blocks, "
                f"{[rv.name for rv in density.latents]}; with blocks leave vars out, for they name "
                "all that the step moves."
            )
        return density, LatentGeometry()
    continuous = _continuous(model, index)
    if index.ndim:
        if named is None:
            point = model.initial_point(random_seed=0)
            n_rows = np.shape(point[model.rvs_to_values[index].name])[:1]
            named = [
                rv
                for rv in continuous
                if np.shape(point[model.rvs_to_values[rv].name])[:1] == n_rows
            ]
        return PlateDensity(model, index, named), LatentGeometry()
    latents = continuous if named is None else named
    everything = [rv for rv in model.free_RVs if rv is not index]
    # A family's declarations concern all its latents in their order.
    geometry = geometry_of(model) if latents == everything else LatentGeometry()
    shared = ClassDensity(model, index, latents, turns=True)
    if in_use := blocks_of_use(shared):
        _log.warning(
            "CarlinChib: some latents have no effect in some classes of %s. The chain is exact, "
            "but jumps and moves carry them along; leave them out by blocks=%s.",
            index.name,
            in_use,
        )
    return shared, geometry


def _named(
    model: pm.Model, index: TensorVariable, vars: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Return the latents among the variables given to the step, in the model's order."""
    chosen = {model.values_to_rvs[v] for v in get_value_vars_from_user_vars(list(vars), model)}
    if index not in chosen:
        raise ValueError(
            f"vars: {[v.name for v in vars]} leave out the class index {index.name}; "
            "add it, since index and latents jump together."
        )
    found = [rv for rv in model.free_RVs if rv in chosen and rv is not index]
    others = [rv.name for rv in _continuous(model, index)]
    if not found and others:
        raise ValueError(
            f"vars: got the class index {index.name} alone; add the latents that jump with it, "
            f"[{index.name}, ...], of {others}, or leave vars out. If there are none, leave it to "
            "pm.CategoricalGibbsMetropolis."
        )
    return found


def _continuous(model: pm.Model, index: TensorVariable) -> list[TensorVariable]:
    """Return the free continuous variables of a model."""
    kinds = pm.pytensorf.continuous_types
    return [rv for rv in model.free_RVs if rv is not index and rv.dtype in kinds]


def structure_of(model: pm.Model) -> tuple[tuple[str, ...], ...]:
    """Return the names of the variables and potentials in a model's density."""
    kinds = (model.free_RVs, model.observed_RVs, model.potentials)
    return tuple(tuple(str(variable.name) for variable in kind) for kind in kinds)
