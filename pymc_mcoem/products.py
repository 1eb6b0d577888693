"""Matrix times vector, in the form that compiles fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytensor.tensor as pt

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["matrix_vector"]


def matrix_vector(matrix: Any, vector: Any) -> TensorVariable:
    """Return the product of a matrix ``(..., m, n)`` and a vector ``(..., n)``, ``(..., m)``.

    Written as a product and a sum it is fused with its neighbours into one loop. As ``pt.dot``
    every combination of memory layouts is a BLAS wrapper of its own, and on the numba back end
    those were most of what the first compilation of a burst had to do.

    Examples
    --------
    >>> import numpy as np
    >>> matrix_vector(np.eye(2), np.array([1.0, 2.0])).eval()
    array([1., 2.])
    """
    matrix, vector = pt.as_tensor_variable(matrix), pt.as_tensor_variable(vector)
    return (matrix * vector[..., None, :]).sum(axis=-1)
