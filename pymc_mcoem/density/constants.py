"""Data and prior constants as inputs of compiled functions instead of parts of them.

A compiled function that contains the numbers of a model is compiled again when one of them changes,
and numba does not cache a function on disk that contains a megabyte of them. Here shared variables
take their place, whose values PyTensor passes at every call. Models that differ only in their
numbers share their compiled functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import Pow
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.basic import CategoricalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.rewriting.basic import topo_unconditional_constant_folding

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["SharedConstants"]


class SharedConstants:
    """Shared variables in place of a model's constants.

    The parameters of continuous distributions are replaced one by one. Real numbers in expressions
    of parameters and in arrays, and observed counts, are replaced by one variable for each value.
    Indices stay constants, because graphs are built and proofs made with them.

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

    @cached_property
    def graphs(self) -> dict[TensorVariable, TensorVariable]:
        """Copies with shared parameters of the model's random variables and potentials, by them."""
        rvs = self.model.basic_RVs
        originals = [*rvs, *self.model.potentials]
        cloned = self._with_shared_parameters(originals, rvs)
        for rv, clone in zip(rvs, cloned, strict=False):
            clone.name = rv.name
        return dict(zip(originals, cloned, strict=True))

    def log_densities(self) -> dict[TensorVariable, TensorVariable]:
        """Return the log-density of every random variable and potential of the model.

        Densities are on the scale on which PyMC samples, Jacobian included, as expressions in the
        model's value variables.
        """
        model = self.model
        rvs = model.basic_RVs
        values = {self.graphs[rv]: model.rvs_to_values[rv] for rv in rvs}
        transforms = {self.graphs[rv]: model.rvs_to_transforms[rv] for rv in rvs}
        terms = transformed_conditional_logp(
            rvs=list(values), rvs_to_values=values, rvs_to_transforms=transforms
        )
        potentials = replace_rvs_by_values(
            [self.graphs[each] for each in model.potentials],
            rvs_to_values=values,
            rvs_to_transforms=transforms,
        )
        found = self.arrays_replaced([*terms, *potentials])
        return dict(zip([*rvs, *model.potentials], found, strict=True))

    def _with_shared_parameters(
        self, graphs: Sequence[TensorVariable], rvs: Sequence[TensorVariable]
    ) -> list[TensorVariable]:
        """Return graphs with shared variables for the scalar parameters of distributions."""
        places = list(_parameters(rvs))
        # A whole number may be a size, which a real number cannot replace.
        real = [place for place in places if _constant_at(place).data.dtype.kind == "f"]
        for chosen in (places, real):
            with suppress(TypeError, ValueError):
                return _placed(graphs, {place[:2]: self._at(place) for place in chosen})
        return list(clone_replace(list(graphs), {}))

    def arrays_replaced(self, graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return copies of graphs with shared variables in place of arrays of real numbers.

        Parameters
        ----------
        graphs : sequence of TensorVariable
            Expressions in variables of the model. They are not changed.
        """
        # Expressions of constants alone, such as ln y! of counts, are computed once, here.
        folded = FunctionGraph(
            outputs=clone_replace(list(graphs), {}), clone=False, copy_inputs=False
        )
        topo_unconditional_constant_folding.apply(folded)
        counts = self._observed_counts
        arrays = [
            variable
            for variable in ancestors(folded.outputs)
            if isinstance(variable, Constant)
            and (_is_array(variable) or variable.signature() in counts)
        ]
        found: list[TensorVariable] = clone_replace(
            folded.outputs, {array: self._of(array) for array in arrays}
        )
        return found

    @cached_property
    def _observed_counts(self) -> set[Any]:
        """Signatures of observed arrays of whole numbers, such as counts and truth values.

        Values of a categorical variable index its probabilities and stay constants.
        """
        values = [
            self.model.rvs_to_values[rv]
            for rv in self.model.observed_RVs
            if not isinstance(rv.owner.op, CategoricalRV)
        ]
        return {
            value.signature()
            for value in values
            if isinstance(value, Constant) and value.type.ndim and value.data.dtype.kind in "iub"
        }

    def own(self, name: str, value: Any) -> Any:
        """Return a shared variable for a named value, which is not merged with equal values.

        Parameters
        ----------
        name : str
        value : array_like of real numbers
        """
        return self._of(pt.constant(value), name)

    def _at(self, place: _Place) -> Any:
        """Return the variable that stands for the constant at a place.

        Every parameter has a variable of its own. If two equal parameters shared one, changing one
        of them would change the graph.
        """
        node, at, is_parameter = place
        constant = _constant_at(place)
        return self._of(constant, (id(node), at) if is_parameter else None)

    def _of(self, constant: Any, place: Any = None) -> Any:
        """Return the variable that stands for a constant; equal constants share one."""
        value = np.asarray(constant.data)
        if value.ndim == 0:
            value = value.astype(pytensor.config.floatX)
        key = (value.dtype.str, constant.type.shape, value.tobytes(), place)
        if key not in self._shared:
            self._shared[key] = pytensor.shared(value, shape=value.shape)
        return self._shared[key]


#: A node, the position of one of its inputs, and whether that is itself a distribution's parameter.
_Place = tuple[Any, int, bool]


def _constant_at(place: _Place) -> Any:
    """Return the constant at a place, computed in double precision if it is an expression."""
    node, at, _ = place
    found = node.inputs[at]
    if found.owner is None:
        return found
    single = [each for each in ancestors([found]) if each.dtype == "float32" and not each.owner]
    double = {each: pt.constant(each.data.astype("float64")) for each in single}
    (value,) = constant_fold(clone_replace([found], double, rebuild_strict=False))
    return pt.constant(value)


def _is_known(variable: TensorVariable) -> bool:
    """Return whether a variable is made of constants alone."""
    return all(
        each.owner is not None or isinstance(each, Constant) for each in ancestors([variable])
    )


def _parameters(rvs: Sequence[TensorVariable]) -> Iterator[_Place]:
    """Yield the places of scalar constants in the parameters of continuous distributions."""
    for rv in rvs:
        # Distributions that are made of a graph require constants of exactly their types.
        op, node = rv.owner.op, rv.owner
        if isinstance(op, RandomVariable) and rv.dtype in pm.pytensorf.continuous_types:
            first = len(node.inputs) - len(op.dist_params(node))
            for at in range(first, len(node.inputs)):
                yield from _scalars(node, at, is_parameter=True)


def _scalars(node: Any, at: int, *, is_parameter: bool) -> Iterator[_Place]:
    """Yield scalar constants of an elementwise expression: real numbers and whole parameters."""
    variable = node.inputs[at]
    if isinstance(variable, Constant):
        # PyMC's transforms of bounded variables ask whether a bound is infinite.
        if not np.isfinite(variable.data).all():
            return
        if variable.type.ndim == 0 and (is_parameter or variable.data.dtype.kind == "f"):
            yield node, at, is_parameter
    elif variable.type.ndim == 0 and is_parameter and _is_known(variable):
        yield node, at, True  # For example a scale whose reciprocal is the rate.
    elif variable.owner is not None:
        op = variable.owner.op
        if isinstance(op, DimShuffle):
            yield from _scalars(variable.owner, 0, is_parameter=is_parameter)
        elif isinstance(op, Elemwise) and variable.dtype in pm.pytensorf.continuous_types:
            # A power with a known exponent is compiled as a product, so the exponent stays.
            n_inputs = 1 if isinstance(op.scalar_op, Pow) else len(variable.owner.inputs)
            for each in range(n_inputs):
                yield from _scalars(variable.owner, each, is_parameter=False)


def _placed(
    graphs: Sequence[TensorVariable], replacement: Mapping[tuple[Any, int], Any]
) -> list[TensorVariable]:
    """Return graphs with inputs replaced at places, which PyTensor does not do by place."""
    made: dict[Any, Any] = {}
    for node in io_toposort([], graphs):
        inputs = [
            replacement.get((node, at), made.get(each, each)) for at, each in enumerate(node.inputs)
        ]
        again = node.clone_with_new_inputs(inputs, strict=False)
        made.update(zip(node.outputs, again.outputs, strict=True))
    return [made.get(graph, graph) for graph in graphs]


def _is_array(constant: Any) -> bool:
    value = getattr(constant, "data", None)
    return isinstance(value, np.ndarray) and value.size > 1 and value.dtype.kind == "f"
