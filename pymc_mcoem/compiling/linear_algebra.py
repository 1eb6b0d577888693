"""Products of matrices and vectors in forms that compile fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import deep_copy_op
from pytensor.graph.basic import Constant

from pymc_mcoem.compiling.inlined_operators import PlainGraph

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = [
    "computed_once",
    "matrix_product",
    "matrix_vector",
    "quadratic_form",
    "symmetric_inverse",
    "transposed_product",
]


def matrix_vector(matrix: Any, vector: Any) -> TensorVariable:
    """Return the product ``(..., m)`` of a matrix ``(..., m, n)`` and a vector ``(..., n)``.

    Written as a product and a sum, it is fused with its neighbors into one loop. ``pt.dot`` has a
    BLAS wrapper for every combination of memory layouts, and on the numba back end those took most
    of the first compilation of a burst.

    Examples
    --------
    >>> import numpy as np
    >>> matrix_vector(np.eye(2), np.array([1.0, 2.0])).eval()
    array([1., 2.])
    """
    matrix, vector = pt.as_tensor_variable(matrix), pt.as_tensor_variable(vector)
    return (matrix * vector[..., None, :]).sum(axis=-1)


def transposed_product(matrix: Any, vector: Any) -> TensorVariable:
    """Return the product of the transpose of a matrix ``(..., m, n)`` and a vector ``(..., m)``.

    The sum runs down the columns of the matrix as stored: a sum along rows cannot use vector
    instructions when it must be taken in the order in which it is written.

    Examples
    --------
    >>> import numpy as np
    >>> transposed_product(np.array([[1.0, 2.0], [0.0, 3.0]]), np.array([1.0, 1.0])).eval()
    array([1., 5.])
    """
    matrix, vector = pt.as_tensor_variable(matrix), pt.as_tensor_variable(vector)
    return (matrix * vector[..., :, None]).sum(axis=-2)


class MatrixProduct(PlainGraph):
    """(left, right) → left right."""

    def plain(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the product."""
        left, right = inputs
        return [pt.dot(left, right)]

    def for_numba(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the product by numba's BLAS call."""
        # Imported here because numba takes a second to import.
        from pymc_mcoem.compiling.linear_algebra_numba import BlasProduct

        return [BlasProduct()(*inputs)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[TensorVariable]:
        """Return the cotangents of both factors, which are products too."""
        (left, right), (cotangent,) = inputs, cotangents
        return [
            matrix_product(cotangent, _transposed(right)),
            matrix_product(_transposed(left), cotangent),
        ]


def matrix_product(left: Any, right: Any) -> TensorVariable:
    """Return the product of two matrices.

    The numba back end takes some 15 seconds to compile each ``pt.dot`` for the first time, which
    was most of the wait for a first mode search. This function takes one second.

    Examples
    --------
    >>> import numpy as np
    >>> matrix_product(np.eye(2), np.array([[1.0], [2.0]])).eval()
    array([[1.],
           [2.]])
    """
    inputs = [pt.as_tensor_variable(left), pt.as_tensor_variable(right)]
    product: TensorVariable = MatrixProduct(inputs)(*inputs)
    return product


class QuadraticForm(PlainGraph):
    """(M, v) → vᵀ M v of a symmetric M; shapes as in `quadratic_form`."""

    def plain(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the sum."""
        matrix, vector = inputs
        return [(vector * transposed_product(matrix, vector)).sum(axis=-1)]

    def for_jax(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the form by a product of matrices, which for many vectors is one."""
        matrix, vector = inputs
        return [(vector * pt.dot(vector, matrix)).sum(axis=-1)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[TensorVariable]:
        """Return the cotangents; that of the vector reuses the product in the value."""
        (matrix, vector), (cotangent,) = inputs, cotangents
        outer = cotangent[..., None, None] * vector[..., :, None] * vector[..., None, :]
        return [
            outer.sum(axis=tuple(range(vector.type.ndim - 1))),
            2.0 * cotangent[..., None] * transposed_product(matrix, vector),
        ]


def quadratic_form(matrix: Any, vector: Any) -> TensorVariable:
    """Return vᵀ M v, ``(...,)``, for a symmetric matrix ``(n, n)`` and vectors ``(..., n)``.

    Its gradient 2 M v reuses the product M v of the value. A gradient by PyTensor would compute the
    products by rows and by columns separately, because it does not know that M is symmetric.

    Examples
    --------
    >>> import numpy as np
    >>> quadratic_form(2 * np.eye(2), np.array([1.0, 3.0])).eval()
    array(20.)
    """
    inputs = [pt.as_tensor_variable(matrix), pt.as_tensor_variable(vector)]
    form: TensorVariable = QuadraticForm(inputs)(*inputs)
    return form


def symmetric_inverse(matrix: np.ndarray) -> np.ndarray:
    """Return the inverse of a symmetric NumPy matrix, symmetric to the last bit."""
    inverse = np.linalg.inv(matrix)
    found: np.ndarray = (inverse + inverse.T) / 2.0
    return found


def computed_once(factor: TensorVariable) -> TensorVariable:
    """Return the factor as one that is computed once, not fused into every product with it."""
    copied: TensorVariable = deep_copy_op(factor)
    return copied


def _transposed(matrix: TensorVariable) -> TensorVariable:
    """Return the transpose; that of a constant is contiguous in memory."""
    if isinstance(matrix, Constant):
        return pt.constant(np.ascontiguousarray(matrix.data.T))
    return matrix.T
