"""What takes the place of `pymc_mcoem.products.MatrixProduct` on the numba back end."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key

from pymc_mcoem.operators import version_of

__all__ = ["BlasProduct"]


@numba.njit(fastmath=False)
def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product of two matrices, compiled once for each pair of memory layouts."""
    found: np.ndarray = np.dot(left, right)
    return found


class BlasProduct(Op):
    """The product of two matrices of double precision."""

    __props__ = ()

    def make_node(self, left: Any, right: Any) -> Apply:
        """Return the node of two matrices."""
        left, right = pt.as_tensor_variable(left), pt.as_tensor_variable(right)
        shape = (left.type.shape[0], right.type.shape[1])
        return Apply(self, [left, right], [pt.tensor(dtype="float64", shape=shape)])

    def infer_shape(self, node: Any, shapes: Any) -> list[Any]:
        """Return rows of the first and columns of the second."""
        return [(shapes[0][0], shapes[1][1])]

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        """Compute, for constants that are folded."""
        outputs[0][0] = np.dot(*inputs)


@register_funcify_default_op_cache_key(BlasProduct)
def _compile(op: BlasProduct, node: Any = None, **kwargs: Any) -> Any:
    return product, version_of(__name__)
