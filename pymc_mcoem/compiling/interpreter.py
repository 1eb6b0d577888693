"""PyTensor's interpreter with less overhead for each elementwise operator.

PyTensor's interpreter takes ten microseconds around each call of a NumPy function, mostly to look
the function up, compare shapes and silence warnings. A search for modes makes tens of thousands of
such calls on arrays of a few numbers. Where PyTensor has no function of NumPy or SciPy, as for
log(1 + exp(x)), which every parameter in (0, 1) needs, it takes one number at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.link.vm import Loop, VMLinker
from pytensor.scalar.math import Log1mexp, Softplus, TriGamma
from pytensor.tensor.elemwise import Elemwise
from scipy.special import polygamma

__all__ = ["InterpretingLinker"]


def _softplus(x: np.ndarray) -> np.ndarray:
    """Return log(1 + exp(x)), by PyTensor's formulas."""
    small = np.where(x < -37.0, np.exp(x), np.log1p(np.exp(x)))
    found: np.ndarray = np.where(x < 18.0, small, np.where(x < 33.3, x + np.exp(-x), x))
    return found


def _log1mexp(x: np.ndarray) -> np.ndarray:
    """Return log(1 - exp(x)), by PyTensor's formulas."""
    found: np.ndarray = np.where(x < np.log(0.5), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))
    return found


def _trigamma(x: np.ndarray) -> np.ndarray:
    """Return the second derivative of the logarithm of the gamma function."""
    found: np.ndarray = polygamma(1, x)
    return found


#: What PyTensor computes one number at a time, for arrays in double precision.
_OF_ARRAYS: dict[type, Callable[[np.ndarray], np.ndarray]] = {
    Softplus: _softplus,
    Log1mexp: _log1mexp,
    TriGamma: _trigamma,
}


class InterpretingLinker(VMLinker):
    """PyTensor's linker for Python, whose elementwise operators call NumPy directly.

    Results are bitwise identical to those of the linker that it derives from.

    Examples
    --------
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> from pytensor.compile.mode import Mode
    >>> x = pt.dvector("x")
    >>> pytensor.function([x], pt.exp(x), mode=Mode(InterpretingLinker(), "fast_compile"))([0.0])
    array([1.])
    """

    def __init__(self, **settings: Any) -> None:
        # PyTensor gives all of its own settings to the linker of a second function
        super().__init__(**settings | {"use_cloop": False, "c_thunks": False})

    def make_vm(
        self, nodes: Any, thunks: Any, input_storage: Any, output_storage: Any, *further: Any
    ) -> Any:
        """Return PyTensor's virtual machine, with its thunks replaced if it runs all of them."""
        made = super().make_vm(nodes, thunks, input_storage, output_storage, *further)
        if type(made) is not Loop:
            return made
        made.thunks = [_direct(*each) or each[1] for each in zip(nodes, thunks, strict=True)]
        made.__class__ = _QuietLoop
        return made


class _QuietLoop(Loop):
    """Run the thunks with NumPy's warnings off, which PyTensor silences for each of them."""

    def __call__(self) -> Any:
        with np.errstate(all="ignore"):
            return super().__call__()


def _direct(node: Any, thunk: Any) -> Callable[[], None] | None:
    """Return the replacement of an elementwise operator's thunk, or None for any other.

    It is `Elemwise.perform` without the lookups that `Elemwise.prepare_node` has made before.
    """
    op = node.op
    if type(op) is not Elemwise or op.inplace_pattern or len(node.outputs) != 1:
        return None
    is_own = op.nfunc and len(node.inputs) == op.nfunc_spec[1]
    function: Any = op.nfunc if is_own else op.ufunc or getattr(node.tag, "ufunc", None)
    if all(each.type.dtype == "float64" for each in node.inputs):
        function = _OF_ARRAYS.get(type(op.scalar_op), function)
    if function is None:
        return None
    named = {"sig": node.tag.sig} if is_own and hasattr(node.tag, "sig") else {}
    dtype, cells, (out,) = np.dtype(node.outputs[0].dtype), thunk.inputs, thunk.outputs
    # Lengths that are one only at run time must not be stretched.
    flags = zip(*[variable.type.broadcastable for variable in node.inputs], strict=True)
    may_differ = any(flags_of_axis.count(False) > 1 for flags_of_axis in flags)

    def direct() -> None:
        inputs = [cell[0] for cell in cells]
        if may_differ and any(each.shape != inputs[0].shape for each in inputs):
            op._check_runtime_broadcast(node, inputs)
        found = np.asarray(function(*inputs, **named), dtype)
        # some functions return a view
        out[0] = found if found.flags.owndata else found.copy()

    for name in ("inputs", "outputs", "lazy", "perform"):
        setattr(direct, name, getattr(thunk, name))
    return direct
