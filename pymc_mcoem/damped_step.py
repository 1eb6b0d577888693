"""One step of a damped Newton method, as one operator.

Of a matrix P that need not be positive definite, a metric M that is, and a gradient g the step is
δ = (P + μ M)⁻¹ g with the first μ of a rising sequence for which P + μ M is positive definite. How
long that sequence is nobody knows beforehand, so a graph of elementary operators would have to
factorise as often as it might ever be, or hold a loop that no back end is quick at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpotrf

from pymc_mcoem.backends import backend_of

__all__ = ["MOST_DAMPING", "DampedStep", "damped_step"]

#: Damping beyond which no step is tried.
MOST_DAMPING = 1e12


class DampedStep(Op):
    """(P, M, g, μ) → (δ, the μ that was used, δᵀ M δ).

    Parameters
    ----------
    least : float
        Where P + μ M is not positive definite, μ becomes at least this.
    raising : float
        And so many times what it was, until it is. Beyond `MOST_DAMPING` the step is nan.

    Raises
    ------
    ValueError
        If `least` is not positive or `raising` not above 1.
    """

    __props__ = ("least", "raising")

    def __init__(self, least: float, raising: float) -> None:
        if not (least > 0 and raising > 1):
            raise ValueError(
                f"least, raising: got {least}, {raising}; damping would not grow; give a positive "
                "number, and one above 1."
            )
        self.least = least
        self.raising = raising

    def make_node(self, matrix: Any, metric: Any, gradient: Any, damping: Any) -> Apply:
        """Return the node of two symmetric matrices, a vector and a scalar."""
        inputs = [pt.as_tensor_variable(each) for each in (matrix, metric, gradient, damping)]
        for variable, ndim in zip(inputs, (2, 2, 1, 0), strict=True):
            if variable.type.dtype != "float64" or variable.type.ndim != ndim:
                raise TypeError(f"damped_step: got {variable.type}, not {ndim}-d double precision.")
        scalar = pt.scalar(dtype="float64").type
        return Apply(self, inputs, [inputs[2].type(), scalar(), scalar()])

    def infer_shape(self, node: Any, shapes: Any) -> list[Any]:
        """Return the shape of the gradient, and none."""
        return [shapes[2], (), ()]

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        """Compute with LAPACK: what the C back end and PyTensor's interpreter do."""
        matrix, metric, gradient, damping = inputs
        used, step = float(damping), np.full(len(gradient), np.nan)
        while used <= MOST_DAMPING:
            factor, failed = dpotrf(matrix + used * metric, lower=True)
            if not failed and np.isfinite(factor).all():
                step = cho_solve((factor, True), gradient, check_finite=False)
                break
            used = max(self.raising * used, self.least)
        outputs[0][0] = step
        outputs[1][0] = np.asarray(used)
        outputs[2][0] = np.asarray(step @ metric @ step)


def damped_step(
    matrix: Any,
    metric: Any,
    gradient: Any,
    damping: Any,
    *,
    least: float,
    raising: float,
    mode: Any,
) -> list[Any]:
    """Return a damped step, the damping it took, and its squared length.

    Parameters
    ----------
    matrix, metric : TensorVariable of shape (n, n)
        Symmetric, the metric positive definite.
    gradient : TensorVariable of shape (n,)
    damping : TensorVariable
        A scalar.
    least, raising : float
        As in `DampedStep`.
    mode : str or None
        PyTensor's mode that the graph will be compiled in.

    Returns
    -------
    list of TensorVariable
        The step, nan where no damping makes one; the damping; the step's squared length in the
        metric.

    Examples
    --------
    A saddle, where Newton's own step would go up along the wrong axis:

    >>> saddle, gradient = np.diag([-1.0, 1.0]), np.array([0.2, 0.2])
    >>> found = damped_step(
    ...     saddle, np.eye(2), gradient, np.float64(0.0), least=0.5, raising=3.0, mode="CVM"
    ... )
    >>> [np.round(each.eval(mode="CVM"), 3).tolist() for each in found]
    [[0.4, 0.08], 1.5, 0.166]
    """
    found: list[Any] = _operator_of(backend_of(mode))(least, raising)(
        matrix, metric, gradient, damping
    )
    return found


def _operator_of(backend: str) -> type[DampedStep]:
    """Return the operator of a back end, imported where it is used.

    Numba takes a second to import, and JAX may not be there. A class of its own in a module of its
    own, so that a process that unpickles a graph knows how to compile it.
    """
    if backend == "numba":
        from pymc_mcoem.damped_step_numba import NumbaDampedStep

        return NumbaDampedStep
    if backend == "jax":
        from pymc_mcoem.damped_step_jax import JaxDampedStep

        return JaxDampedStep
    return DampedStep
