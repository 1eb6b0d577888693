"""A density as one function of flat arrays, which compiled loops call without knowing the model.

numba compiles a loop anew for every function that it calls, and what it takes to compile is the
types of what is called within it, again at every level of calls. Here a graph of (class, position)
and all else that it needs becomes a function of one type for all models: class, position, and all
else in two vectors, one of real numbers and one of integers. Loops take such functions as
arguments, so they are compiled once and kept on disk for all models, and what a model compiles is
its density alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.scalar import int64
from pytensor.tensor.type import TensorType

from pymc_mcoem.arithmetic import strict_arithmetic, strict_mode
from pymc_mcoem.waiting import tell

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.plate import PlateDensity
    from pymc_mcoem.density import ClassDensity

__all__ = ["FlatFunction"]


class FlatFunction:
    """A graph of a density as a function of (class, position, reals, integers).

    Parameters
    ----------
    density : ClassDensity or PlateDensity
    build : callable
        Of a class, a position and `extra`; returns the outputs.
    what : str
        What it is called where somebody waits for it to be compiled.
    extra : sequence of TensorVariable
        Further arrays that it is a function of, after the position.
    returns : bool
        Whether the first output is a scalar that is returned. All others are written to arrays
        that are arguments.
    joined : bool
        Whether what is written goes, raveled, into one vector.

    Attributes
    ----------
    function : callable
        Compiled by numba; takes class, position, `extra`, the two vectors, and what is written to.

    Raises
    ------
    NotImplementedError
        If the density needs something that is no array of numbers.
    """

    def __init__(
        self,
        density: ClassDensity | PlateDensity,
        build: Callable[..., Sequence[Any]],
        what: str,
        *,
        extra: Sequence[Any] = (),
        returns: bool = True,
        joined: bool = False,
    ) -> None:
        tell(what)
        shape = density.position_shape
        k: Any = int64("class_index")
        index: Any = pt.tensor_from_scalar(k)
        if len(shape) == 2:  # a plate
            k = index = pt.tensor("class_index", dtype="int64", shape=shape[:1])
        x = pt.tensor("position", dtype="float64", shape=shape)
        outputs = list(build(index, x, *extra))
        if returns:
            outputs[0] = pt.scalar_from_tensor(outputs[0])
        own = [k, x, *extra]
        function = pm.pytensorf.compile(
            [*own, *density.inputs],
            outputs,
            mode=strict_mode("NUMBA"),
            on_unused_input="ignore",
        )
        graph = function.maker.fgraph
        rest = graph.inputs[len(own) :]
        odd = [variable for variable in rest if not _is_plain(variable)]
        if odd:
            raise NotImplementedError(f"density: {odd} are no arrays of numbers.")
        self._kinds = [variable.type.numpy_dtype for variable in rest]
        # of data that the model shares, which come last
        self._storage = function.input_storage[len(own) + len(density.inputs) :]
        with strict_arithmetic():
            self.function = _compiled(graph, len(own), returns, joined)

    def pack(self, values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the two vectors, from the values of the density's `inputs`.

        Returns
        -------
        reals : ndarray of float of shape (n,)
        integers : ndarray of int64 of shape (m,)
            Where each array starts, and its shape; then the integers themselves.
        """
        reals, integers, header = [_NOTHING], [], []
        n_reals = n_integers = 0
        arrays = [*values, *(container.storage[0] for container in self._storage)]
        for given, kind in zip(arrays, self._kinds, strict=True):
            array = np.asarray(given)
            if kind.kind == "f":
                header.append(n_reals)
                n_reals += array.size
                reals.append(array.ravel())
            else:
                header.append(n_integers)
                n_integers += array.size
                integers.append(array.ravel())
            header += array.shape
        return np.concatenate(reals), np.concatenate([header, *integers]).astype(np.int64)


_NOTHING = np.zeros(0)


def _is_plain(variable: Any) -> bool:
    return isinstance(variable.type, TensorType) and variable.type.numpy_dtype.kind in "fiub"


def _compiled(graph: Any, n_own: int, returns: bool, joined: bool) -> Callable[..., Any]:
    """Return the function of flat arrays around what numba makes of a graph."""
    from numba import njit, types
    from pytensor.link.numba.cache import compile_numba_function_src
    from pytensor.link.numba.dispatch.basic import numba_funcify_ensure_cache

    from pymc_mcoem.products_numba import replace_products

    replace_products(graph)
    inner, key = numba_funcify_ensure_cache(graph)
    own = [f"own_{place}" for place in range(n_own)]
    rest = graph.inputs[n_own:]
    n_header = sum(1 + variable.type.ndim for variable in rest)
    lines, arrays, at = [], [], 0
    for place, variable in enumerate(rest):
        is_real = variable.type.numpy_dtype.kind == "f"
        shape = [f"integers[{at + 1 + axis}]" for axis in range(variable.type.ndim)]
        start = f"integers[{at}]" if is_real else f"integers[{at}] + {n_header}"
        part = f"{'reals' if is_real else 'integers'}[{start} :][: {' * '.join(shape) or '1'}]"
        if len(shape) != 1:
            part += f".reshape(({', '.join(shape)}))"
        if variable.type.dtype not in ("float64", "int64"):
            part += f".astype(np.{variable.type.dtype})"
        lines.append(f"a_{place} = {part}")
        arrays.append(f"a_{place}")
        at += 1 + variable.type.ndim
    found = [f"found_{place}" for place in range(len(graph.outputs))]
    lines.append(f"({', '.join(found)},) = inner({', '.join([*own, *arrays])})")
    written = [f"out_{place}" for place in range(len(found) - returns)]
    if joined:
        written = ["out"]
        lines.append("at = 0")
        for each in found[returns:]:
            lines += [f"out[at : at + {each}.size] = {each}.ravel()", f"at += {each}.size"]
    else:
        lines += [f"{to}[:] = {each}" for to, each in zip(written, found[returns:], strict=True)]
    lines.append(f"return {found[0] if returns else '0.0'}")
    header = f"def flat_function({', '.join([*own, 'reals', 'integers', *written])}):"
    source = "\n    ".join([header, *lines])
    whole = None if key is None else sha256(f"{source}{key}".encode()).hexdigest()
    function = compile_numba_function_src(
        source, "flat_function", {"__name__": __name__, "np": np, "inner": inner}, cache_key=whole
    )
    ranks = [1] if joined else [variable.type.ndim for variable in graph.outputs[returns:]]
    signature = types.float64(
        *(_numba_type(variable) for variable in graph.inputs[:n_own]),
        types.float64[::1],
        types.int64[::1],
        *(types.Array(types.float64, rank, "C") for rank in ranks),
    )
    compiled: Callable[..., Any] = njit(
        signature, cache=whole is not None, fastmath=False, error_model="numpy"
    )(function)
    return compiled


def _numba_type(variable: Any) -> Any:
    from numba import from_dtype, types

    kind = from_dtype(np.dtype(variable.type.dtype))
    rank = getattr(variable.type, "ndim", 0)
    return types.Array(kind, rank, "C") if rank else kind
