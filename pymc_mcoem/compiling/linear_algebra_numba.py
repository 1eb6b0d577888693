"""Products of matrices for the numba back end, in place of `MatrixProduct`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from numba.extending import overload
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.tensor.math import Dot

from pymc_mcoem.compiling.inlined_operators import version_of

__all__ = ["BlasProduct", "replace_products"]


def in_order(matrix: np.ndarray) -> np.ndarray:
    """Return the matrix, copied to C order if its memory layout is not known to suit BLAS."""
    return np.ascontiguousarray(matrix)


@overload(in_order)
def _in_order(matrix):  # type: ignore[no-untyped-def]
    # No annotations here: numba takes them for part of the names of arguments.
    if matrix.layout in "CF":
        return lambda matrix: matrix
    return lambda matrix: np.ascontiguousarray(matrix)


@numba.njit(fastmath=False)
def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product of two matrices, compiled once for each pair of memory layouts."""
    found: np.ndarray = np.dot(in_order(left), in_order(right))
    return found


class BlasProduct(Op):
    """The product of two matrices of double precision."""

    __props__ = ()

    def make_node(self, left: Any, right: Any) -> Apply:
        """Return the node that multiplies two matrices."""
        left, right = pt.as_tensor_variable(left), pt.as_tensor_variable(right)
        shape = (left.type.shape[0], right.type.shape[1])
        return Apply(self, [left, right], [pt.tensor(dtype="float64", shape=shape)])

    def infer_shape(self, node: Any, shapes: Any) -> list[Any]:
        """Return the number of rows of the first and of columns of the second."""
        return [(shapes[0][0], shapes[1][1])]

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        """Compute the product when constants are folded."""
        outputs[0][0] = np.dot(*inputs)


@register_funcify_default_op_cache_key(BlasProduct)
def _compile(op: BlasProduct, node: Any = None, **kwargs: Any) -> Any:
    return product, version_of(__name__)


def replace_products(graph: Any) -> None:
    """Replace PyTensor's products of double-precision matrices by `BlasProduct`.

    numba takes some ten seconds to compile PyTensor's product for the first time.

    Parameters
    ----------
    graph : FunctionGraph
        Graph as rewritten for numba. It is changed in place.
    """
    for node in graph.toposort():
        is_real = all(variable.type.dtype == "float64" for variable in node.inputs)
        if isinstance(node.op, Dot) and is_real:
            graph.replace(node.outputs[0], BlasProduct()(*node.inputs), import_missing=True)
