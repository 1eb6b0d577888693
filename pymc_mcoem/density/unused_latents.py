"""Find latents that have no effect in some classes, which blocks would omit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Second, Switch
from pytensor.tensor.elemwise import Elemwise

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
        by ``pm.math.switch`` or ``ifelse`` on the index.

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
        left += inputs[1:] if fills and None not in inputs[0].type.shape else inputs
    return found


def _chooses(variable: Any, index_value: Any) -> bool:
    """Return whether a variable chooses between others by a condition on the index."""
    if variable.owner is None:
        return False
    op = variable.owner.op
    is_switch = isinstance(op, Elemwise) and isinstance(op.scalar_op, Switch)
    # PyTensor moves the module of IfElse from one version to the next.
    is_choice = is_switch or type(op).__name__ == "IfElse"
    return is_choice and index_value in set(ancestors([variable.owner.inputs[0]]))
