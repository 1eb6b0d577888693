"""A proof on the graph that each row of a density depends on its own row alone.

The proof assigns a row axis to every variable between the index and latents of a plate and a factor
of the density. Along this axis the variable has one value for each row, made from that row only.
`pymc_mcoem.density.row_operations` lists the operations that keep such an axis and the conditions
under which they do. Nothing is proved for other operations. The proof uses no values, so that it
holds for every state of the chain and all data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Join, MakeVector, ScalarFromTensor
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.shape import Shape, Shape_i

from pymc_mcoem.density.row_operations import Axis, Coupled, named, rows_of

if TYPE_CHECKING:
    from pytensor.graph.basic import Apply
    from pytensor.tensor.variable import TensorVariable

__all__ = ["by_row"]


def by_row(
    term: TensorVariable, rows: Mapping[Variable, int], n_rows: int
) -> TensorVariable | None:
    """Return a factor of a density as one value for each row, made from that row alone.

    Parameters
    ----------
    term : TensorVariable
        A log-density, not summed.
    rows : mapping of variable to int
        The variables that a row consists of, and the row axis of each.

    Returns
    -------
    TensorVariable of shape (n_rows,), or None
        None if the term depends on no row. A row with parameters out of their range is minus
        infinity, and other rows are not affected.

    Raises
    ------
    Coupled
        If it cannot be proved that rows do not depend on one another.

    Examples
    --------
    >>> x = pt.tensor("x", shape=(3, 2))
    >>> by_row(x**2, {x: 0}, 3).eval({x: np.ones((3, 2))})
    array([2., 2., 2.])
    >>> by_row(x - x[::-1], {x: 0}, 3)
    Traceback (most recent call last):
    ...
    pymc_mcoem.density.row_operations.Coupled: Subtensor{::step} of x takes rows apart
    """
    if n_rows == 1:
        # there is no other row, and what it is broadcast to is its own
        return term.sum()[None] if set(rows) & set(ancestors([term])) else None
    proof = _Proof(rows, n_rows)
    proof.follow([term])
    axis = proof.axis_of(term)
    if axis is None:
        return None
    rewritten = proof.now(term)
    others = tuple(i for i in range(rewritten.ndim) if i != axis)
    return rewritten.sum(axis=others) if others else rewritten


class _Proof:
    """Row axes of all variables of a graph, found from its inputs to its outputs."""

    def __init__(self, rows: Mapping[Variable, int], n_rows: int) -> None:
        self.n_rows = n_rows
        self._axes: dict[Variable, int] = dict(rows)
        self._why: dict[Variable, str] = {}
        self._inputs = set(rows)
        self._now: dict[Variable, Variable] = {}

    def follow(self, outputs: Sequence[Variable]) -> None:
        """Find the axes of all variables up to the outputs, or the reason why there is none."""
        for node in toposort(list(outputs), blockers=list(self._inputs)):
            met = [v for v in node.inputs if v in self._axes or v in self._why]
            if not met:
                continue
            if isinstance(node.op, (Shape, Shape_i)) and node.inputs[0] not in self._why:
                # It depends on the number of rows, not on their values.
                continue
            try:
                self._look_at(node)
            except Coupled as coupled:
                for output in node.outputs:
                    self._why[output] = str(coupled)

    def _look_at(self, node: Apply[Any, Any]) -> None:
        op = node.op
        is_check = isinstance(op, CheckAndRaise)
        for variable in node.inputs[:1] if is_check else node.inputs:
            if variable in self._why:
                raise Coupled(self._why[variable])
        if is_check:
            found = [self._axes.get(node.inputs[0])]
        elif isinstance(op, OpFromGraph):
            found = self._inside(node)
        else:
            axes = [self._axes.get(variable) for variable in node.inputs]
            found = rows_of(op, node, axes, self.n_rows)
        of_rows = any(v in self._axes or v in self._why for v in node.inputs[1:])
        if isinstance(op, CheckParameterValue) and op.can_be_replaced_by_ninf and of_rows:
            self._now[node.outputs[0]] = self._checked_by_row(node, found[0])
        elif any(v in self._now for v in node.inputs):
            again = node.clone_with_new_inputs([self.now(v) for v in node.inputs])
            self._now.update(zip(node.outputs, again.outputs, strict=True))
        for output, axis in zip(node.outputs, found, strict=True):
            if axis is not None:
                self._axes[output] = axis

    def _inside(self, node: Apply[Any, Any]) -> list[Axis]:
        """Return the axes of the outputs of an operation that is a graph itself."""
        inner = {
            inside: self._axes[outside]
            for inside, outside in zip(node.op.inner_inputs, node.inputs, strict=True)
            if outside in self._axes
        }
        proof = _Proof(inner, self.n_rows)
        proof.follow(node.op.inner_outputs)
        if proof._now:
            raise Coupled(f"{named(node)} checks parameters of all rows together")
        try:
            return [proof.axis_of(output) for output in node.op.inner_outputs]
        except Coupled as coupled:
            raise Coupled(f"{coupled} (inside of {named(node)})") from None

    def axis_of(self, variable: Variable) -> Axis:
        """Return the axis of a variable, or None if it depends on no row."""
        if variable in self._why:
            raise Coupled(self._why[variable])
        return self._axes.get(variable)

    def now(self, variable: Any) -> Any:
        """Return a variable whose parameter checks are made row by row."""
        return self._now.get(variable, variable)

    def _checked_by_row(self, node: Apply[Any, Any], axis: Axis) -> Variable:
        """Return a checked expression in which a parameter out of range affects its own row only.

        PyMC sets the whole expression, with all rows, to minus infinity if any parameter is out of
        its range.
        """
        expression, *conditions = node.inputs
        shared = [c for c in conditions if c not in self._axes and c not in self._why]
        own = [self._condition(c) for c in conditions if c not in shared]
        if axis is None:
            raise Coupled(f"{named(node)} checks rows in an expression that depends on none")
        order: list[Any] = ["x"] * expression.type.ndim
        order[axis] = 0
        checked = self.now(expression)
        for condition in own:
            checked = pt.switch(condition.dimshuffle(*order), checked, -np.inf)
        return node.op(checked, *shared) if shared else checked

    def _condition(self, condition: Any) -> Any:
        """Return a condition on all rows as a vector of conditions on each row."""
        if condition in self._axes:
            others = tuple(i for i in range(condition.type.ndim) if i != self._axes[condition])
            found = self.now(condition)
            return pt.all(found, axis=others) if others else found
        if condition not in self._why:
            return pt.all(condition)
        # PyMC writes it as all of several conditions, each over all elements.
        node = condition.owner
        op = None if node is None else node.op
        is_all = isinstance(op, All) and condition.type.ndim == 0
        is_and = isinstance(op, Elemwise) and isinstance(op.scalar_op, ps.AND)
        is_list = isinstance(op, (MakeVector, Join)) and condition.type.ndim == 1
        is_entry = isinstance(op, ScalarFromTensor) or (
            isinstance(op, DimShuffle) and node.inputs[0].type.ndim == 0
        )
        if not (is_all or is_and or is_list or is_entry):
            raise Coupled(self._why[condition])
        whole, *more = (self._condition(each) for each in node.inputs)
        for each in more:
            whole = pt.and_(whole, each)
        return whole
