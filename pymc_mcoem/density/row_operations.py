"""How operations move the axis of the rows of a plate, for `rows`.

Each function takes the row axis of every input, None for an input that depends on no row. It
returns the row axis of every output, or raises `Coupled` with the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.ops import TypeCastingOp
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc, ARange, ExtractDiag, Join, Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp, Repeat
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)

__all__ = ["Axis", "Coupled", "named", "rows_of"]


class Coupled(Exception):
    """Raised if rows are or may be combined in an operation, which the message names."""


#: Row axis of an operation's output, or None if it depends on no row.
Axis = int | None


@singledispatch
def rows_of(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    """Return the axis of the rows in each output of an operation, given those of its inputs.

    Parameters
    ----------
    axes : sequence of int or None
        None for an input that depends on no row.
    """
    raise Coupled(f"of {named(node)} it is not known whether it keeps rows apart")


def _register(*kinds: Any) -> Callable[[Any], Any]:
    def registered(function: Any) -> Any:
        for kind in kinds:
            rows_of.register(kind, function)
        return function

    return registered


@_register(Elemwise, Blockwise)
def _batchwise(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    n_batch = op.batch_ndim(node) if isinstance(op, Blockwise) else node.outputs[0].type.ndim
    if isinstance(op, Blockwise) and isinstance(op.core_op, Dot):
        core = [None if axis is None or axis < n_batch else axis - n_batch for axis in axes]
        if core != [None, None]:
            (place,) = rows_of(op.core_op, node, core, n_rows)
            if axes.count(None) == 1 and place is not None:
                return [n_batch + place]
    found: Axis = None
    for variable, axis in zip(node.inputs, axes, strict=True):
        if axis is None:
            continue
        if axis >= n_batch:
            raise Coupled(f"{named(node)} works on several rows at once")
        found = _same(node, found, axis)
        _require_unspread(node, variable, axis, node.outputs[0], axis)
    return [found] * len(node.outputs)


@_register(DimShuffle)
def _shuffled(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    axis = _only_first(node, axes)
    if axis not in op.new_order:
        raise Coupled(f"{named(node)} drops the axis of the rows")
    return [op.new_order.index(axis)]


@_register(CAReduce, Argmax)
def _reduced(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    axis, ndim = _only_first(node, axes), node.inputs[0].type.ndim
    gone = range(ndim) if op.axis is None else [i % ndim for i in np.atleast_1d(op.axis)]
    if axis in gone:
        raise Coupled(f"{named(node)} brings rows together")
    return [axis - sum(i < axis for i in gone)] * len(node.outputs)


@_register(CumOp, SortOp, ArgSortOp, Repeat, Split)
def _along(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    """Return the axis unchanged if the operation works along another one."""
    along, axis = getattr(op, "axis", None), _only_first(node, axes)
    if along is None or along % node.inputs[0].type.ndim == axis:
        raise Coupled(f"{named(node)} works along the rows")
    return [axis] * len(node.outputs)


@_register(Join)
def _joined(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    found: Axis = None
    for axis in axes:
        found = found if axis is None else _same(node, found, axis)
    along = getattr(op, "axis", None)
    if along is None or along % node.outputs[0].type.ndim == found:
        raise Coupled(f"{named(node)} works along the rows")
    return [found]


@_register(Dot)
def _product(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    if axes in ([0, None], [None, 1]):
        return [0 if axes[0] == 0 else 1]
    raise Coupled(f"{named(node)} brings rows together")


@_register(SpecifyShape, TypeCastingOp)
def _unchanged(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    return [_only_first(node, axes)]


@_register(Alloc)
def _spread(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    value, (output,), axis = node.inputs[0], node.outputs, _only_first(node, axes)
    place = axis + output.type.ndim - value.type.ndim
    _require_unspread(node, value, axis, output, place)
    return [place]


@_register(ExtractDiag)
def _diagonal(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    axis, gone = _only_first(node, axes), (op.axis1, op.axis2)
    if axis in gone:
        raise Coupled(f"{named(node)} works along the rows")
    return [axis - sum(i < axis for i in gone)]


@_register(JoinDims)
def _flattened(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    axis, together = _only_first(node, axes), op.axis_range
    if axis in together and len(together) > 1:
        raise Coupled(f"{named(node)} flattens the axis of the rows with others")
    return [axis if axis < op.start_axis + op.n_axes else axis - op.n_axes + 1]


@_register(SplitDims)
def _unflattened(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    axis = _only_first(node, axes)
    if axis == op.axis:
        raise Coupled(f"{named(node)} splits the axis of the rows")
    more = node.outputs[0].type.ndim - node.inputs[0].type.ndim
    return [axis if axis < op.axis else axis + more]


@_register(Reshape)
def _reshaped(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    """Return the new place of the axis if as many numbers precede it as before."""
    axis = _only_first(node, axes)
    before, after = node.inputs[0].type.shape, node.outputs[0].type.shape
    if before[axis] in (None, n_rows) and None not in before[:axis]:
        for place, length in enumerate(after):
            if None in after[:place]:
                break
            if length == n_rows and np.prod(after[:place]) == np.prod(before[:axis]):
                return [place]
    raise Coupled(f"it is not known whether {named(node)} keeps the axis of the rows")


@_register(Subtensor, AdvancedSubtensor)
def _taken(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    value, *indices = node.inputs
    entries = _entries(node, value, indices)
    layout = _layout(entries)
    found: Axis = None
    width = _width(entries)
    for index, axis in zip(indices, axes[1:], strict=True):
        if axis is not None:
            place = layout.index(("index", axis + width - index.type.ndim))
            found = _same(node, found, place)
            _require_unspread(node, index, axis, node.outputs[0], place)
    if axes[0] is not None:
        entry = entries[axes[0]]
        if isinstance(entry, slice):
            if not _is_whole(entry, n_rows):
                raise Coupled(f"{named(node)} takes rows apart")
            place = layout.index(("value", axes[0]))
        else:
            own = _each_row(entry)
            # Some of the rows would be mistaken for all of them later.
            if own is None or entry.type.shape[own] not in (None, n_rows):
                raise Coupled(f"{named(node)} takes rows apart")
            place = layout.index(("index", own + width - entry.type.ndim))
        found = _same(node, found, place)
    return [found]


@_register(IncSubtensor, AdvancedIncSubtensor)
def _put(op: Any, node: Any, axes: Sequence[Axis], n_rows: int) -> list[Axis]:
    value, part, *indices = node.inputs
    entries = _entries(node, value, indices)
    if any(axis is not None for axis in axes[2:]):
        raise Coupled(f"{named(node)} puts rows where other rows may be")
    found = axes[0]
    if axes[1] is not None:
        layout = _layout(entries)
        kind, place = layout[axes[1] + len(layout) - part.type.ndim]
        if kind != "value":
            raise Coupled(f"{named(node)} puts rows where other rows may be")
        found = _same(node, found, place)
        _require_unspread(node, part, axes[1], value, place)
    assert found is not None
    entry = entries[found]
    if not (isinstance(entry, slice) and _is_whole(entry, n_rows)):
        raise Coupled(f"{named(node)} takes rows apart")
    return [found]


def _entries(node: Any, value: Any, indices: Sequence[Any]) -> list[Any]:
    """Return the index of each axis, slices of everything included."""
    given = list(indices_from_subtensor(indices, node.op.idx_list))
    if any(getattr(each, "dtype", None) == "bool" for each in given):
        raise Coupled(f"{named(node)} indexes by a mask, so its rows are not known")
    return given + [slice(None)] * (value.type.ndim - len(given))


def _width(entries: Sequence[Any]) -> int:
    """Return the number of axes that all non-slice indices make together."""
    return max((e.type.ndim for e in entries if not isinstance(e, slice)), default=0)


def _layout(entries: Sequence[Any]) -> list[tuple[str, int]]:
    """Return for each axis of the result whether it is from the value or from the indices."""
    picked = [i for i, entry in enumerate(entries) if not isinstance(entry, slice)]
    from_value = [("value", i) for i in range(len(entries)) if i not in picked]
    if not picked:
        return from_value
    together = picked == list(range(picked[0], picked[-1] + 1))
    start = picked[0] if together else 0
    return from_value[:start] + [("index", i) for i in range(_width(entries))] + from_value[start:]


def _is_whole(entry: slice, n_rows: int) -> bool:
    start, stop, step = (_number(part) for part in (entry.start, entry.stop, entry.step))
    return (
        (entry.start is None or start == 0)
        and (entry.stop is None or (stop is not None and stop >= n_rows))
        and (entry.step is None or step == 1)
    )


def _number(part: Any) -> int | None:
    if isinstance(part, Constant):
        return int(np.asarray(part.data))
    return int(part) if isinstance(part, (int, np.integer)) else None


def _each_row(index: Any) -> Axis:
    """Return the axis along which an index is 0, 1, 2, ..., or None if there is none."""
    if isinstance(index, Constant):
        data = np.asarray(index.data)
        for axis, length in enumerate(data.shape):
            if length == data.size and np.array_equal(data.ravel(), np.arange(length)):
                return axis
        return None
    node = index.owner
    if node is None:
        return None
    if isinstance(node.op, ARange):
        start, _, step = (_number(each) for each in node.inputs)
        return 0 if (start, step) == (0, 1) else None
    if isinstance(node.op, (Reshape, SplitDims)):
        # take_along_axis makes its index this way.
        inner = _each_row(node.inputs[0]) if node.inputs[0].type.ndim == 1 else None
        long = [i for i, length in enumerate(index.type.shape) if length != 1]
        return long[0] if inner is not None and len(long) == 1 else None
    inner = _each_row(node.inputs[0]) if len(node.inputs) == 1 else None
    if inner is not None and isinstance(node.op, DimShuffle):
        return int(node.op.new_order.index(inner))
    is_cast = isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, ps.Cast)
    return inner if is_cast else None


def _only_first(node: Any, axes: Sequence[Axis]) -> int:
    """Return the axis of the first input, which must be the only one that depends on rows."""
    if axes[0] is None or any(axis is not None for axis in axes[1:]):
        raise Coupled(f"what {named(node)} does depends on rows")
    return axes[0]


def _same(node: Any, found: Axis, axis: int) -> int:
    if found is not None and found != axis:
        raise Coupled(f"{named(node)} sets rows against one another")
    return axis


def _require_unspread(node: Any, variable: Any, axis: int, output: Any, place: int) -> None:
    """Raise an error if one row is broadcast over several."""
    if variable.type.shape[axis] == 1 and output.type.shape[place] != 1:
        raise Coupled(f"{named(node)} spreads a row over several")


def named(node: Any) -> str:
    """Return the name of an operation and of its inputs."""
    known = [v for v in node.inputs if not isinstance(v, Constant)]
    names: list[str] = []
    for variable in known:
        if variable.name:
            names.append(variable.name)
        else:
            inside = ancestors([variable])
            names += [v.name for v in inside if v.owner is None and v.name]
    unique = sorted({name for name in names if name})
    return f"{node.op} of {', '.join(unique)}" if unique else str(node.op)
