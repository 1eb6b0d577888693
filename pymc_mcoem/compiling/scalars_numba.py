"""Rewrites that leave numba less to compile where single numbers are computed.

PyTensor fuses elementwise operators, and numba then compiles two functions for each of them and one
that calls them. Here the common operators of a fused one are written out in one function, in
PyTensor's order, so that the results are the same. The others undo vectors of length one, such as
that of the index with which `pymc.Categorical` looks up its probability: numba takes half a second
to compile what they need.

Importing this module imports numba.
"""

from __future__ import annotations

import math
from hashlib import sha256
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor import scalar
from pytensor.compile import optdb
from pytensor.graph.basic import Constant
from pytensor.graph.rewriting.basic import copy_stack_trace, dfs_rewriter, node_rewriter
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_ensure_cache,
    numba_njit,
    register_funcify_and_cache_key,
)
from pytensor.scalar.basic import Composite
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.subtensor import AdvancedSubtensor

__all__ = ["WITH_WRITTEN_SCALARS", "WrittenScalars"]

#: Tag of the rewrites, for `Mode.including`.
WITH_WRITTEN_SCALARS = "mcoem_written_scalars"

_INFIX = {
    scalar.Add: "+",
    scalar.Mul: "*",
    scalar.Sub: "-",
    scalar.TrueDiv: "/",
}
_RELATIONS = {
    scalar.LT: "<",
    scalar.GT: ">",
    scalar.LE: "<=",
    scalar.GE: ">=",
    scalar.EQ: "==",
    scalar.NEQ: "!=",
}
_LOGIC = {scalar.AND: "&", scalar.OR: "|"}
_CALLS = {
    scalar.Neg: "-{}",
    scalar.Sqr: "{0} * {0}",
    scalar.Reciprocal: "1.0 / {}",
    scalar.Exp: "np.exp({})",
    scalar.Expm1: "np.expm1({})",
    scalar.Log: "np.log({})",
    scalar.Log1p: "np.log1p({})",
    scalar.Sqrt: "np.sqrt({})",
    scalar.Sin: "np.sin({})",
    scalar.Cos: "np.cos({})",
    scalar.Tanh: "np.tanh({})",
    scalar.Abs: "np.abs({})",
    scalar.IsNan: "np.isnan({})",
    scalar.Sigmoid: "1 / (1 + np.exp(-{}))",
    scalar.GammaLn: "math.lgamma({})",
}
_CHOICES = {
    scalar.Identity: "{}",
    scalar.Second: "{1}",
    scalar.Switch: "{1} if {0} else {2}",
    scalar.Clip: "{1} if {0} < {1} else {2} if {0} > {2} else {0}",
}


class WrittenScalars(Composite):
    """A fused elementwise operator that numba compiles as one function."""


@node_rewriter([Elemwise])
def _write_out(fgraph: Any, node: Any) -> Any:
    if type(node.op.scalar_op) is not Composite:
        return None
    fused = node.op.scalar_op
    graph = fused.fgraph.unfreeze()
    written = WrittenScalars(graph.inputs, graph.outputs, name=fused.name)
    outputs = Elemwise(written, inplace_pattern=node.op.inplace_pattern).make_node(*node.inputs)
    copy_stack_trace(node.outputs, outputs.outputs)
    return outputs.outputs


@node_rewriter([DimShuffle])
def _index_by_number(fgraph: Any, node: Any) -> Any:
    """Replace the only entry of ``x[[k]]`` by ``x[k]``."""
    taken = node.inputs[0]
    if node.outputs[0].ndim or not isinstance(taken.owner_op, AdvancedSubtensor):
        return None
    x, *indices = taken.owner.inputs
    if x.ndim != 1 or len(indices) != 1 or not isinstance(indices[0].owner_op, DimShuffle):
        return None
    index = indices[0].owner.inputs[0]
    if index.ndim or index.type.dtype == "bool":
        return None
    found = x[index]
    copy_stack_trace(node.outputs, found)
    return [found]


@node_rewriter([All])
def _all_of_few(fgraph: Any, node: Any) -> Any:
    """Replace the conjunction of a vector made of single values by one of these values."""
    given = node.inputs[0]
    if node.outputs[0].ndim or not isinstance(given.owner_op, MakeVector):
        return None
    if not given.owner.inputs:
        return None
    found = given.owner.inputs[0]
    for each in given.owner.inputs[1:]:
        found = pt.and_(found, each)
    if found.type != node.outputs[0].type:
        return None
    copy_stack_trace(node.outputs, found)
    return [found]


# After the first merge, at 0, and before canonicalization, at 1.
optdb.register(
    "mcoem_single_numbers",
    dfs_rewriter(_index_by_number, _all_of_few),
    WITH_WRITTEN_SCALARS,
    position=0.9,
)
# Between PyTensor's own fusion with changes in place, at 50.5, and its fusion of indexing, at 100.
optdb.register(
    "mcoem_write_out_scalars", dfs_rewriter(_write_out), WITH_WRITTEN_SCALARS, position=99
)


@register_funcify_and_cache_key(WrittenScalars)
def _compile(op: WrittenScalars, node: Any, **kwargs: Any) -> Any:
    graph = op.fgraph
    names = {variable: f"a_{place}" for place, variable in enumerate(graph.inputs)}
    others: dict[str, Any] = {"math": math, "np": np}
    lines, keys = [], []
    for place, constant in enumerate(_narrow_constants(graph)):
        names[constant], others[f"c_{place}"] = f"c_{place}", constant.data
        keys.append(f"{constant.type.dtype} {constant.data}")
    for place, each in enumerate(graph.toposort()):
        given = [_literal(variable, names) for variable in each.inputs]
        code = _written(each, given, each.outputs[0] in graph.outputs)
        if code is None:
            others[f"f_{place}"], key = numba_funcify_ensure_cache(each.op, node=each, **kwargs)
            keys.append(key)
            code = f"f_{place}({', '.join(given)})"
        results = [f"b_{place}_{output}" for output in range(len(each.outputs))]
        names.update(zip(each.outputs, results, strict=True))
        lines.append(f"{', '.join(results)} = {code}")
    returned = ", ".join(_literal(variable, names) for variable in graph.outputs)
    lines.append(f"return {returned}")
    arguments = ", ".join(names[variable] for variable in graph.inputs)
    source = "\n    ".join([f"def written_scalars({arguments}):", *lines])
    function = compile_numba_function_src(source, "written_scalars", others)
    # of PyTensor's functions a division by zero is infinite, whoever calls them
    compiled = numba_njit(function, error_model="numpy")
    if None in keys:
        return compiled, None
    return compiled, sha256(f"{__name__}{source}{keys}".encode()).hexdigest()


def _narrow_constants(graph: Any) -> list[Any]:
    """Return the constants that have no type of Python's own."""
    given = [variable for node in graph.toposort() for variable in node.inputs]
    constants = [each for each in [*given, *graph.outputs] if isinstance(each, Constant)]
    wide = ("bool", "int64", "float64")
    return list(dict.fromkeys(each for each in constants if each.type.dtype not in wide))


def _literal(variable: Any, names: dict[Any, str]) -> str:
    """Return the name of a variable, or the value of a constant as Python writes it."""
    if variable in names:
        return names[variable]
    value = variable.data
    if np.isfinite(value):
        return f"({value.item()!r})"
    return "np.nan" if np.isnan(value) else "np.inf" if value > 0 else "(-np.inf)"


def _written(node: Any, given: list[str], is_returned: bool) -> str | None:
    """Return an operator's expression, or None if PyTensor's function has to be called.

    A subclass of an operator in the tables has another type, and stays a call.
    """
    kind = type(node.op)
    of = {variable.type.dtype for variable in node.inputs}
    own = node.outputs[0].type.dtype
    # Of a choice all but the first input can be the result, which then needs no conversion: the
    # first is a condition, is ignored, or, of a clip, is not narrower than its bounds.
    if own not in ("bool", "int64", "float64") and (
        is_returned or any(variable.type.dtype != own for variable in node.inputs[1:])
    ):
        return None  # PyTensor converts the result
    if kind in _RELATIONS and "bool" not in of:
        return f" {_RELATIONS[kind]} ".join(given)
    if kind in _LOGIC and of == {"bool"}:
        return f" {_LOGIC[kind]} ".join(given)
    if kind in _INFIX and "float64" in of and "bool" not in of:
        return f" {_INFIX[kind]} ".join(given)
    if kind in _CALLS and of == {"float64"}:
        return _CALLS[kind].format(*given)
    return _CHOICES[kind].format(*given) if kind in _CHOICES else None
