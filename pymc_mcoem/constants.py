"""Data and priors' constants as inputs of compiled functions, not parts of them.

A compiled function that holds the numbers of a model is compiled anew when one of them changes, and
numba keeps no function on disk that holds a megabyte of them. What stands for them here is shared
variables, whose values PyTensor hands over at every call: models that differ in their numbers alone
share what was compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Pow
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.rewriting.basic import topo_unconditional_constant_folding

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["SharedConstants"]


class SharedConstants:
    """Shared variables in place of a model's constants, one for each value.

    Taken are the parameters of continuous distributions, and all arrays of real numbers. What
    counts or indexes stays a constant, for graphs are built and proved by it.

    Parameters
    ----------
    model : pymc.Model

    Examples
    --------
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", 0.0, 2.0)
    ...     y = pm.Normal("y", x, 1.0, observed=[1.0, 2.0, 3.0])
    >>> constants = SharedConstants(model)
    >>> terms = constants.log_densities()
    >>> sorted(float(shared.get_value().max()) for shared in constants.shared)
    [0.0, 1.0, 2.0, 3.0]
    """

    def __init__(self, model: pm.Model) -> None:
        self.model = model
        self._shared: dict[Any, Any] = {}

    @property
    def shared(self) -> list[Any]:
        """Shared variables made so far."""
        return list(self._shared.values())

    def log_densities(self) -> dict[TensorVariable, TensorVariable]:
        """Return the log-density of every random variable and potential of the model, by it.

        On the scale on which PyMC samples, Jacobian included, in values of the model.
        """
        model = self.model
        rvs = model.basic_RVs
        cloned = self._with_shared_parameters([*rvs, *model.potentials], rvs)
        values, transforms = {}, {}
        for rv, clone in zip(rvs, cloned, strict=False):
            clone.name = rv.name
            values[clone] = model.rvs_to_values[rv]
            transforms[clone] = model.rvs_to_transforms[rv]
        terms = transformed_conditional_logp(
            rvs=list(values), rvs_to_values=values, rvs_to_transforms=transforms
        )
        potentials = replace_rvs_by_values(
            cloned[len(rvs) :], rvs_to_values=values, rvs_to_transforms=transforms
        )
        found = self.arrays_replaced([*terms, *potentials])
        return dict(zip([*rvs, *model.potentials], found, strict=True))

    def _with_shared_parameters(
        self, graphs: Sequence[TensorVariable], rvs: Sequence[TensorVariable]
    ) -> list[TensorVariable]:
        """Return graphs with shared variables for the scalar parameters of distributions."""
        parameters = set(_parameters(rvs))
        # A whole number may be a size, which no real number replaces.
        real = {constant for constant in parameters if constant.data.dtype.kind == "f"}
        for chosen in (parameters, real):
            replacement = {constant: self._of(constant) for constant in chosen}
            with suppress(TypeError, ValueError):
                return list(clone_replace(list(graphs), replacement, rebuild_strict=False))
        return list(clone_replace(list(graphs), {}))

    def arrays_replaced(self, graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return graphs with shared variables where they had arrays of real numbers.

        Parameters
        ----------
        graphs : sequence of TensorVariable
            In variables of the model; they are left as they are.
        """
        # What is made of constants alone, as ln y! of counts, is computed here, once.
        folded = FunctionGraph(
            outputs=clone_replace(list(graphs), {}), clone=False, copy_inputs=False
        )
        topo_unconditional_constant_folding.apply(folded)
        arrays = [
            variable
            for variable in ancestors(folded.outputs)
            if isinstance(variable, Constant) and _is_array(variable)
        ]
        found: list[TensorVariable] = clone_replace(
            folded.outputs, {array: self._of(array) for array in arrays}
        )
        return found

    def _of(self, constant: Any) -> Any:
        """Return the variable that stands for a constant: one for equal ones, to be merged."""
        value = np.asarray(constant.data)
        if value.dtype.kind != "f" or value.ndim == 0:
            value = value.astype(pytensor.config.floatX)
        key = (value.dtype.str, constant.type.shape, value.tobytes())
        if key not in self._shared:
            self._shared[key] = pytensor.shared(value, shape=value.shape)
        return self._shared[key]


def _parameters(rvs: Sequence[TensorVariable]) -> Iterator[Any]:
    """Give the scalar constants that are parameters of continuous distributions, or in them."""
    for rv in rvs:
        # those made of a graph want constants of just their types
        is_plain = isinstance(rv.owner.op, RandomVariable)
        if is_plain and rv.dtype in pm.pytensorf.continuous_types:
            for parameter in rv.owner.op.dist_params(rv.owner):
                yield from _scalars(parameter, direct=True)


def _scalars(variable: Any, *, direct: bool) -> Iterator[Any]:
    """Give the scalar constants of an elementwise expression: real, or direct parameters."""
    if isinstance(variable, Constant):
        if variable.type.ndim == 0 and (direct or variable.data.dtype.kind == "f"):
            yield variable
    elif variable.owner is not None:
        op, inputs = variable.owner.op, variable.owner.inputs
        if isinstance(op, DimShuffle):
            yield from _scalars(inputs[0], direct=direct)
        elif isinstance(op, Elemwise) and variable.dtype in pm.pytensorf.continuous_types:
            # a power whose exponent is known is a product
            for each in inputs[:1] if isinstance(op.scalar_op, Pow) else inputs:
                yield from _scalars(each, direct=False)


def _is_array(constant: Any) -> bool:
    value = getattr(constant, "data", None)
    return isinstance(value, np.ndarray) and value.size > 1 and value.dtype.kind == "f"
