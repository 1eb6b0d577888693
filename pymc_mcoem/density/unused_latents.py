"""Find latents that have no effect in some classes, which blocks would omit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Second, Switch
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["blocks_of_use", "looked_at"]


def blocks_of_use(density: ClassDensity) -> dict[int, list[str]]:
    """Return the latents that have an effect in each class, if some have none in some classes.

    Parameters
    ----------
    density : ClassDensity
        Density of a model with a class index.

    Returns
    -------
    dict of int to list of str
        By class, the names of the latents on which the density of another variable depends. Empty
        if every latent that has an effect has one in every class, and if the model does not choose
        by ``pm.math.switch`` or ``ifelse`` on the index, or by the index from latents put together
        as ``pm.math.stack([a, b])[k]``.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_mcoem.density.class_density import ClassDensity
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     a, b = pm.Normal("a"), pm.Normal("b", 0.0, 2.0)
    ...     y = pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b), 1.0, observed=0.3)
    >>> blocks_of_use(ClassDensity(model, k, [a, b]))
    {0: ['a'], 1: ['b']}
    """
    model, index_value = density.model, density.index_value
    # The prior of the index checks whether its value is a class.
    others = [term for rv, term in density.terms.items() if rv is not density.class_index]
    # Rewriting takes time, and only such a choice can make a latent unused in a class.
    if index_value is None or not any(_chooses(each, index_value) for each in ancestors(others)):
        return {}
    # With its constants as numbers, which decide some of the choices.
    variables, terms = [*model.basic_RVs, *model.potentials], model.logp(sum=False)
    found: dict[int, list[str]] = {}
    for j in range(density.n_classes):
        index = pt.constant(j, dtype=index_value.dtype)
        placed = clone_replace(terms, {index_value: index}, rebuild_strict=False)
        simple = rewrite_graph(placed, include=("canonicalize",))
        seen = [looked_at(term) for term in simple]
        found[j] = [
            str(rv.name)
            for rv in density.latents
            if any(
                model.rvs_to_values[rv] in sees
                for variable, sees in zip(variables, seen, strict=True)
                if variable is not rv
            )
        ]
    used = set().union(*found.values())
    return {} if all(set(block) == used for block in found.values()) else found


def looked_at(term: Any) -> set[Any]:
    """Return the variables whose values a term depends on.

    PyMC's checks of parameters fill an array of a parameter's shape. Where that shape is
    known, the values that only give it do not matter.

    Parameters
    ----------
    term : Variable
        A simplified graph.

    Examples
    --------
    >>> x, y = pt.vector("x", shape=(3,)), pt.scalar("y")
    >>> looked_at(pt.second(x, y)) >= {x}
    False
    """
    found: set[Any] = set()
    left = [term]
    while left:
        variable = left.pop()
        if variable in found:
            continue
        found.add(variable)
        if variable.owner is None:
            continue
        op, inputs = variable.owner.op, variable.owner.inputs
        fills = isinstance(op, Elemwise) and isinstance(op.scalar_op, Second)
        if fills and None not in inputs[0].type.shape:
            inputs = inputs[1:]
        elif isinstance(op, Subtensor):
            inputs = [_taken_from(variable), *inputs[1:]]
        left += inputs
    return found


def _taken_from(entry: Any) -> Any:
    """Return the one of several joined variables to which an entry along their axis belongs.

    PyTensor simplifies entries of scalars that are put together, not rows of vectors.
    """
    joined, *places = entry.owner.inputs
    if joined.owner is None or not isinstance(joined.owner.op, Join):
        return joined
    axis, components = joined.owner.op.axis, joined.owner.inputs
    index = indices_from_subtensor(places, entry.owner.op.idx_list)
    lengths = [each.type.shape[axis] for each in components]
    place = index[axis] if axis < len(index) else None
    if None in lengths or not isinstance(place, Constant) or place.ndim:
        return joined
    ends = np.cumsum(lengths)
    return components[int(np.searchsorted(ends, int(place.data) % ends[-1], side="right"))]


def _chooses(variable: Any, index_value: Any) -> bool:
    """Return whether a variable chooses between others by the index, or a condition on it."""
    if variable.owner is None:
        return False
    op, inputs = variable.owner.op, variable.owner.inputs
    is_switch = isinstance(op, Elemwise) and isinstance(op.scalar_op, Switch)
    # PyTensor moves the module of IfElse from one version to the next.
    if is_switch or type(op).__name__ == "IfElse":
        return index_value in set(ancestors([inputs[0]]))
    if not isinstance(op, Subtensor) or inputs[0].owner is None:
        return False
    put_together = isinstance(inputs[0].owner.op, Join | MakeVector)
    return put_together and index_value in set(ancestors(inputs[1:]))
