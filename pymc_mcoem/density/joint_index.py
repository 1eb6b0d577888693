"""Several class indices of a model as one index of their joint classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model.fgraph import clone_model
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_mcoem.density.class_index import count_classes, is_class_index, require_class_index

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["join_indices"]

#: Most joint classes. Each costs a step its own density, search and pseudo-prior.
MOST_CLASSES = 1_024


def join_indices(
    model: pm.Model,
    indices: Sequence[TensorVariable | str] | None = None,
    name: str | None = None,
) -> pm.Model:
    """Return a copy of a model in which several class indices are one index of joint classes.

    One step of `CarlinChib` then draws all of them at once, together with the latents. The joint
    index has a class for each combination of values, the last index varying fastest; the indices
    themselves become Deterministics, which the trace still holds under their names.

    Parameters
    ----------
    model : pymc.Model
        It is left as it is. Data are set in the copy, as ``with joint: pm.set_data(...)``.
    indices : sequence of (TensorVariable or str), optional
        Two or more free Categorical or Bernoulli variables of one shape, () or (n_rows,), joined in
        the model's order. Default: all of the model.
    name : str, optional
        Name of the joint index. Default: the names of the indices, joined by underscores.

    Returns
    -------
    pymc.Model
        Its density is that of `model`.

    Raises
    ------
    ValueError
        If there are fewer than two indices, their shapes differ, there are more than 1,024 joint
        classes, the name is taken, the probabilities of one index depend on another through
        further random variables, or the model has initial values of its own, which PyMC cannot
        copy.

    Notes
    -----
    The joint probability is the product of the indices' own; those of an index may depend on the
    indices before it. Blocks and statistics of the step refer to joint classes; name variables by
    strings there, since those of the copy are others. The number of rows of a plate is fixed in the
    copy.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     first = pm.Categorical("first", [0.3, 0.7])
    ...     second = pm.Categorical("second", pm.math.stack([[0.5, 0.5], [0.9, 0.1]])[first])
    ...     x = pm.Normal("x", 2.0 * first - second, 1.0)
    >>> joint = join_indices(model)
    >>> joint["first_second"].owner.inputs[-1].eval().round(2)
    array([0.15, 0.15, 0.63, 0.07])
    >>> [variable.name for variable in joint.free_RVs + joint.deterministics]
    ['first_second', 'x', 'second', 'first']
    """
    joined = _named(model, indices)
    name = "_".join(str(index.name) for index in joined) if name is None else name
    if name in model.named_vars:
        raise ValueError(f"name: the model has a variable {name!r} already; give another.")
    try:
        copy = clone_model(model)
    except NotImplementedError as error:
        given = [rv.name for rv, value in model.rvs_to_initial_values.items() if value is not None]
        raise ValueError(
            f"model: PyMC cannot copy models with initial values, as {given} have; give them to "
            "pm.sample's initvals instead of initval=."
        ) from error
    joined = [copy[str(index.name)] for index in joined]
    counts = [count_classes(index) for index in joined]
    probabilities = _joint_probabilities(copy, joined, counts)
    with copy:
        joint = pm.Categorical(
            name, probabilities, dims=copy.named_vars_to_dims.get(joined[0].name)
        )
    values = {
        index: pt.cast(
            joint // int(np.prod(counts[position + 1 :])) % counts[position], index.dtype
        )
        for position, index in enumerate(joined)
    }
    return pm.do(copy, values)


def _named(model: pm.Model, indices: Sequence[TensorVariable | str] | None) -> list[TensorVariable]:
    """Return the indices to join, in the model's order."""
    if isinstance(indices, str):
        raise ValueError(f"indices: got {indices!r}; give a list of two or more, or leave it out.")
    unknown = [each for each in indices or () if isinstance(each, str) and each not in model]
    if unknown:
        raise ValueError(
            f"indices: got {unknown}, and the model has {[rv.name for rv in model.free_RVs]}; name "
            "some of them."
        )
    if indices is None:
        chosen = [rv for rv in model.free_RVs if is_class_index(rv)]
    else:
        chosen = [model[each] if isinstance(each, str) else each for each in indices]
    for index in chosen:
        require_class_index(model, index)
    found = [rv for rv in model.free_RVs if rv in chosen]
    if len(found) < 2:
        raise ValueError(
            f"indices: got {[rv.name for rv in found]}; there must be two or more to join."
        )
    shapes = {rv.name: _shape(rv) for rv in found}
    if len({*shapes.values()}) > 1:
        raise ValueError(f"indices: their shapes differ ({shapes}); join those of one shape.")
    n_classes = int(np.prod([count_classes(rv) for rv in found]))
    if n_classes > MOST_CLASSES:
        raise ValueError(
            f"indices: {[rv.name for rv in found]} have {n_classes} joint classes, more than "
            f"{MOST_CLASSES}; join those that depend on each other."
        )
    return found


def _joint_probabilities(
    model: pm.Model, indices: list[TensorVariable], counts: list[int]
) -> TensorVariable:
    """Return the probabilities ``(*rows, n_joint_classes)`` of all combinations of values."""
    rows = _shape(indices[0])
    table: TensorVariable = pt.ones((*rows, 1))
    for position, (index, n_classes) in enumerate(zip(indices, counts, strict=True)):
        own, before = _probabilities(index), indices[:position]
        variables = set(ancestors([own], blockers=model.basic_RVs)) & set(model.basic_RVs)
        parents = [each for each in before if each in variables]
        through = [rv for rv in variables - set(parents) if set(indices) & set(ancestors([rv]))]
        if through:
            raise ValueError(
                f"indices: the probabilities of {index.name} depend on another of them through "
                f"{through[0].name}; give {index.name} a step of its own."
            )
        if parents:  # a row for each combination of earlier values, the last varying fastest
            combinations = np.ndindex(*counts[:position])
            given = [_given(own, dict(zip(before, each, strict=True))) for each in combinations]
            own = pt.stack([pt.broadcast_to(p, (*rows, n_classes)) for p in given], axis=-2)
        else:
            own = pt.broadcast_to(own, (*rows, n_classes))[..., None, :]
        table = (table[..., None] * own).reshape((*rows, -1), ndim=len(rows) + 1)
    return table


def _probabilities(index: TensorVariable) -> TensorVariable:
    p = index.owner.inputs[-1]
    return pt.stack([1.0 - p, p], axis=-1) if index.owner.op.name == "bernoulli" else p


def _given(graph: TensorVariable, values: dict[TensorVariable, int]) -> TensorVariable:
    """Return an expression at values of the indices, which are the same in all rows."""
    constants = {
        index: index.type.filter_variable(pt.constant(np.full(_shape(index), value, index.dtype)))
        for index, value in values.items()
    }
    found: TensorVariable = graph_replace(graph, constants, strict=False)
    return found


def _shape(index: TensorVariable) -> tuple[int, ...]:
    return tuple(index.shape.eval(mode="FAST_COMPILE").tolist())
