"""The class index of a model: which variable it is, its classes, and their prior probabilities."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, indices_from_subtensor

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = [
    "class_prior",
    "count_classes",
    "find_class_index",
    "index_key",
    "is_class_index",
    "require_class_index",
]


def _distribution(rv: TensorVariable) -> str | None:
    return getattr(rv.owner.op, "name", None)


def is_class_index(rv: TensorVariable) -> bool:
    """Return whether a variable is Categorical or Bernoulli."""
    return _distribution(rv) in ("categorical", "bernoulli")


def count_classes(class_index: TensorVariable) -> int:
    """Return how many classes a Categorical or Bernoulli variable has."""
    if _distribution(class_index) == "bernoulli":
        return 2
    probabilities = class_index.owner.inputs[-1]
    known = probabilities.type.shape[-1]
    # Evaluated here because data may change the number, and without compiling.
    return int(known if known is not None else probabilities.shape[-1].eval(mode="FAST_COMPILE"))


def class_prior(model: pm.Model, class_index: TensorVariable) -> np.ndarray:
    """Return the prior probabilities of the classes if they are constants.

    Returns
    -------
    ndarray of shape (n_classes,)
        All nan if the probabilities depend on random variables, or differ along a plate.
    """
    n_classes = count_classes(class_index)
    p = class_index.owner.inputs[-1]
    if set(model.basic_RVs) & set(ancestors([p])):
        return np.full(n_classes, np.nan)
    value = np.asarray(p.eval(mode="FAST_COMPILE"), dtype=np.float64)
    if _distribution(class_index) == "bernoulli":
        value = np.stack([1.0 - value, value], axis=-1)
    rows = value.reshape(-1, n_classes)
    return rows[0].copy() if (rows == rows[0]).all() else np.full(n_classes, np.nan)


def index_key(name: str) -> int:
    """Return the number that stands for an index's name in sampler statistics.

    PyMC does not store strings at every draw.

    Examples
    --------
    >>> index_key("k")
    140662621
    """
    return zlib.crc32(name.encode())


def require_class_index(model: pm.Model, class_index: TensorVariable) -> None:
    """Raise an error if a variable is not a class index of a model."""
    if class_index in model.observed_RVs and is_class_index(class_index):
        raise ValueError(
            f"class_index: {class_index.name} is observed, so that there is no class to draw; "
            "leave out the step, or observed=."
        )
    if class_index not in model.free_RVs:
        raise ValueError(
            f"class_index: {class_index.name} is not a free variable of the model; choose from "
            f"{[rv.name for rv in model.free_RVs]}."
        )
    if not is_class_index(class_index):
        kind = _distribution(class_index) or type(class_index.owner.op).__name__
        raise ValueError(
            f"class_index: {class_index.name} is {kind}, not Categorical or Bernoulli; an index "
            "has to say how many classes there are. Declare it as pm.Categorical, with the "
            "probabilities of 0, 1, 2, ... (of an unbounded one, up to where they are "
            "negligible)."
        )
    _require_values_for_all(model, class_index)


def _require_values_for_all(model: pm.Model, class_index: TensorVariable) -> None:
    """Refuse a model in which an array that the index picks from is too short for some class."""
    n_classes = count_classes(class_index)
    for variable in ancestors([*model.basic_RVs, *model.potentials]):
        node = variable.owner
        if node is None or not isinstance(node.op, (Subtensor, AdvancedSubtensor)):
            continue
        array, *given = node.inputs
        is_shared = isinstance(array, SharedVariable)
        shape = array.get_value(borrow=True).shape if is_shared else array.type.shape
        indices = indices_from_subtensor(given, node.op.idx_list)
        if any(getattr(index, "dtype", None) == "bool" for index in indices):
            continue  # a mask may take several axes
        for axis, index in enumerate(indices):
            owner = getattr(index, "owner", None)
            if owner is not None and isinstance(owner.op, ScalarFromTensor):
                (index,) = owner.inputs
            length = shape[axis]
            if index is class_index and length is not None and length < n_classes:
                raise ValueError(
                    f"class_index: {class_index.name} has {n_classes} classes, and picks from "
                    f"{array.name or 'an array'} of shape {shape} along axis {axis}; give it a "
                    "value for each class, or Categorical fewer probabilities."
                )


def find_class_index(model: pm.Model) -> TensorVariable:
    """Return the one free Categorical variable of a model, or else the one free Bernoulli."""
    for kind in ("categorical", "bernoulli"):
        found = [rv for rv in model.free_RVs if _distribution(rv) == kind]
        if found:
            break
    if len(found) != 1:
        if found:
            raise ValueError(
                f"class_index: the model has {len(found)} {kind.capitalize()} variables "
                f"({[rv.name for rv in found]}); give each a step, as in step=[CarlinChib(["
                f"{found[0].name}, ...]), ...], or all of them one step, by "
                "pymc_mcoem.join_indices(model)."
            )
        observed = [rv.name for rv in model.observed_RVs if is_class_index(rv)]
        others = [rv.name for rv in model.free_RVs if rv.dtype not in pm.pytensorf.continuous_types]
        raise ValueError(
            "class_index: the model has 0 Categorical and 0 Bernoulli variables that are free; "
            + (
                f"{observed} are observed, so that there is no class to draw: leave out the step, "
                "or observed=."
                if observed and not others
                else "declare the index as k = pm.Categorical('k', p), with the probabilities p of "
                f"the classes 0, 1, 2, ... (the model has the discrete variables {others})."
            )
        )
    return found[0]
