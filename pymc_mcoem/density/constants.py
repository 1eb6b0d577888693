"""Data and prior constants as inputs of compiled functions instead of parts of them.

A compiled function that contains the numbers of a model is compiled again when one of them changes,
and numba does not cache a function on disk that contains a megabyte of them. Here shared variables
take their place, whose values PyTensor passes at every call. Models that differ only in their
numbers share their compiled functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.utils import replace_rvs_by_values
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import Add, Mul, Pow, Sub, TrueDiv
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.rewriting.basic import topo_unconditional_constant_folding
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor
from pytensor.tensor.type import TensorType

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["SharedConstants"]


class SharedConstants:
    """Shared variables in place of a model's constants.

    Every constant has a variable of its own, so that a change of one of two equal constants does
    not change the graph. Replaced are

    - parameters of distributions,
    - real numbers in the model's expressions, but not exponents, because a power with a known
      exponent is compiled as a product, nor a one in sums and quotients or minus one, because
      log(1 - p) and 1 / (1 + exp(-x)) are rewritten to be exact,
    - observed data, and other arrays.

    Whole numbers in expressions stay constants, because they may be sizes.

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
        return [shared for shared, _ in self._shared.values()]

    @cached_property
    def graphs(self) -> dict[TensorVariable, TensorVariable]:
        """The model's random variables and potentials: copies with shared numbers, by original."""
        rvs = self.model.basic_RVs
        originals = [*rvs, *self.model.potentials]
        cloned = self._with_shared_numbers(originals)
        for rv, clone in zip(rvs, cloned, strict=False):
            clone.name = rv.name
        return dict(zip(originals, cloned, strict=True))

    def log_densities(self, *, indices: bool = False) -> dict[TensorVariable, TensorVariable]:
        """Return the log-density of every random variable and potential of the model.

        Densities are on the scale on which PyMC samples, Jacobian included, as expressions in the
        model's value variables.

        Parameters
        ----------
        indices : bool
            Whether arrays by which others are indexed are replaced too. Proofs need to see them.

        Raises
        ------
        ValueError
            If a variable's values and parameters have shapes that do not fit.
        """
        model = self.model
        rvs = model.basic_RVs
        values = {self.graphs[rv]: self._value(rv) for rv in rvs}
        transforms = {self.graphs[rv]: model.rvs_to_transforms[rv] for rv in rvs}
        try:
            terms = transformed_conditional_logp(
                rvs=list(values), rvs_to_values=values, rvs_to_transforms=transforms
            )
        except ValueError:
            self._require_fitting_data()
            raise
        potentials = replace_rvs_by_values(
            [self.graphs[each] for each in model.potentials],
            rvs_to_values=values,
            rvs_to_transforms=transforms,
        )
        found = self.arrays_replaced([*terms, *potentials], indices=indices)
        return dict(zip([*rvs, *model.potentials], found, strict=True))

    def _require_fitting_data(self) -> None:
        """Raise an error that names a variable whose data and parameters do not fit."""
        for rv in self.model.observed_RVs:
            data = self.model.rvs_to_values[rv]
            try:
                pm.logp(rv, data, warn_rvs=False)
            except ValueError as error:
                raise ValueError(
                    f"model: {rv.name} has data of shape {data.type.shape}, which its parameters "
                    f"do not fit: {error}. Give its parameters one entry for each observation, or "
                    "one for all; the index of a plate has one for each."
                ) from error

    def arrays_replaced(
        self, graphs: Sequence[TensorVariable], *, indices: bool = False
    ) -> list[TensorVariable]:
        """Return copies of graphs with shared variables in place of arrays of numbers.

        What is computed from arrays alone, such as ln y! of counts, is computed once, here.

        Parameters
        ----------
        graphs : sequence of TensorVariable
            Expressions in variables of the model. They are not changed.
        indices : bool
            Whether arrays by which others are indexed are replaced too.
        """
        graphs = clone_replace(list(graphs), {})
        nodes = list(io_toposort([], graphs))
        # Variables made of constants alone, and whether numbers of an array are among these.
        known: dict[Variable, bool] = {}
        for node in nodes:
            known |= {each: _is_array(each) for each in node.inputs if isinstance(each, Constant)}
            if all(each in known for each in node.inputs):
                of_numbers = not isinstance(node.op, (Shape, Shape_i))
                holds = of_numbers and any(known[each] for each in node.inputs)
                known |= {
                    each: holds or (_is_array(each) and _is_real(each)) for each in node.outputs
                }
        # Those that no other of them uses are replaced by their value or by a shared variable.
        is_shared = {each: known[each] and _is_real(each) for each in graphs if each in known}
        for node in nodes:
            if node.outputs[0] not in known:
                # Whole numbers are data in arithmetic, and may be sizes elsewhere.
                whole = isinstance(node.op, Elemwise) or (
                    indices and isinstance(node.op, (AdvancedSubtensor, AdvancedIncSubtensor))
                )
                for each in filter(known.__contains__, node.inputs):
                    data = known[each] and (_is_real(each) or (whole and _is_array(each)))
                    is_shared[each] = data or is_shared.get(each, False)
        replacement = {}
        for each, value in zip(is_shared, _folded(list(is_shared)), strict=True):
            replacement[each] = value
            if is_shared[each] and isinstance(value, Constant):
                replacement[each] = self._of(value.data, each if each.owner else id(value.data))
        found: list[TensorVariable] = clone_replace(graphs, replacement)
        return found

    def own(self, name: str, value: Any) -> Any:
        """Return a shared variable for a named value.

        Parameters
        ----------
        name : str
        value : array_like of real numbers
        """
        return self._of(np.asarray(value), name)

    def _value(self, rv: TensorVariable) -> TensorVariable:
        """Return the value variable, which is shared if it is a single number that was observed."""
        value = self.model.rvs_to_values[rv]
        if not isinstance(value, Constant) or value.data.size != 1:
            return value
        found: TensorVariable = self._of(value.data, rv)
        return found

    def _with_shared_numbers(self, graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return graphs with shared variables in place of single numbers."""
        made: dict[Variable, Variable] = {}
        known: set[Variable] = set()  # made of constants alone
        for node in io_toposort([], graphs):
            known |= {each for each in node.inputs if isinstance(each, Constant)}
            if known.issuperset(node.inputs):
                known |= set(node.outputs)
                continue
            inputs = [made.get(each, each) for each in node.inputs]
            replaceable = _replaceable(node, known)
            # A whole number may be a size, which a variable cannot replace.
            real = {at: each for at, each in replaceable.items() if _is_real(node.inputs[at])}
            for chosen in (replaceable, real, {}):
                shared = {at: self._of(value, (node, at)) for at, value in chosen.items()}
                given = [shared.get(at, each) for at, each in enumerate(inputs)]
                with suppress(TypeError, ValueError):
                    again = node.clone_with_new_inputs(given, strict=False)
                    break
            made.update(zip(node.outputs, again.outputs, strict=True))
        return [made.get(graph, graph) for graph in graphs]

    def _of(self, value: np.ndarray, key: Any) -> Any:
        """Return the shared variable of a key, made from a value at the first call."""
        if key not in self._shared:
            # The value is kept, because the key of an array is its place in memory.
            self._shared[key] = pytensor.shared(value, shape=value.shape), value
        return self._shared[key][0]


def _replaceable(node: Apply, known: set[Variable]) -> dict[int, np.ndarray]:
    """Return the single numbers that shared variables can replace, by their place in a node."""
    op, n = node.op, len(node.inputs)
    is_continuous = _is_real(node.outputs[-1])
    if isinstance(op, RandomVariable):
        places = range(n - len(op.dist_params(node)), n)
    elif isinstance(op, Elemwise) and is_continuous:
        places = range(1 if isinstance(op.scalar_op, Pow) else n)
    elif isinstance(op, (SymbolicRandomVariable, MakeVector)):
        places = range(n)
    else:
        return {}
    unchanged: tuple[float, ...] = ()
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, (Add, Sub, TrueDiv, Mul)):
        unchanged = (-1.0,) if isinstance(op.scalar_op, Mul) else (-1.0, 1.0)
    found = {}
    for at in places:
        each = node.inputs[at]
        if each not in known or not (isinstance(op, RandomVariable) or _is_real(each)):
            continue
        value = _computed(each)
        # PyMC's transforms of bounded variables ask whether a bound is infinite.
        if value.size == 1 and np.isfinite(value).all() and value.item() not in unchanged:
            # Always in double precision, which PyTensor gives only to some numbers.
            is_double = not isinstance(op, SymbolicRandomVariable) and (
                _is_real(each) or is_continuous
            )
            found[at] = value.astype(pytensor.config.floatX) if is_double else value
    return found


def _computed(variable: Variable) -> np.ndarray:
    """Return the value of an expression of constants, in double precision if possible."""
    if isinstance(variable, Constant):
        return np.asarray(variable.data)
    single = [each for each in ancestors([variable]) if each.dtype == "float32" and not each.owner]
    double = {each: pt.constant(each.data.astype("float64")) for each in single}
    with suppress(TypeError):  # an operator of single precision alone
        (variable,) = clone_replace([variable], double, rebuild_strict=False)
    return np.asarray(constant_fold([variable])[0])


def _folded(graphs: Sequence[Variable]) -> list[Any]:
    """Return copies of graphs with expressions of constants computed."""
    folded = FunctionGraph(outputs=clone_replace(list(graphs), {}), clone=False, copy_inputs=False)
    topo_unconditional_constant_folding.apply(folded)
    return list(folded.outputs)


def _is_array(variable: Variable) -> bool:
    """Return whether a variable is an array of more than one number."""
    return isinstance(variable.type, TensorType) and any(n != 1 for n in variable.type.shape)


def _is_real(variable: Variable) -> bool:
    return getattr(variable.type, "dtype", "").startswith("float")
