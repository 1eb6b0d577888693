"""Operators that carry a plain graph and may have a faster replacement on a back end.

On the numba back end the operator is replaced by the graph of its `for_numba`, on JAX by that of
`for_jax`. Elsewhere, or if there is none, its plain graph is inlined.
"""

from __future__ import annotations

import inspect
import sys
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytensor.compile import optdb
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.gradient import DisconnectedType, pullback
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["PlainGraph", "version_of"]


class PlainGraph(OpFromGraph):
    """An operator defined by its plain graph.

    Parameters
    ----------
    inputs : sequence of TensorVariable
        The variables that it will be applied to. Only their types are used.
    """

    def __init__(self, inputs: Sequence[TensorVariable]) -> None:
        symbols = [variable.type() for variable in inputs]
        super().__init__(symbols, self.plain(*symbols), name=type(self).__name__)

    def plain(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the outputs as a graph of elementary operators."""
        raise NotImplementedError

    def for_numba(self, *inputs: TensorVariable) -> list[TensorVariable] | None:
        """Return the outputs as the numba back end computes them; None to inline the graph."""
        return None

    def for_jax(self, *inputs: TensorVariable) -> list[TensorVariable] | None:
        """Return the outputs as JAX computes them; None to inline the graph."""
        return None

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[TensorVariable]:
        """Return the cotangents of the inputs, through the plain graph."""
        plain = self.plain(*inputs)
        known = [
            output.zeros_like() if isinstance(cotangent.type, DisconnectedType) else cotangent
            for output, cotangent in zip(plain, cotangents, strict=True)
        ]
        found: list[TensorVariable] = pullback(plain, list(inputs), known)
        return found


def version_of(module: str) -> int:
    """Return a checksum of a module's name and source, used as a cache key of compiled code.

    PyTensor caches code compiled by numba on disk, by the operator's type and a number that must
    change with its code.
    """
    return zlib.crc32(f"{module}{inspect.getsource(sys.modules[module])}".encode())


@node_rewriter([PlainGraph])
def _inline(fgraph: Any, node: Any) -> Any:
    return inline_ofg_node(node)


@node_rewriter([PlainGraph])
def _for_numba(fgraph: Any, node: Any) -> Any:
    if any(variable.type.dtype != "float64" for variable in node.inputs):
        return None
    return node.op.for_numba(*node.inputs)


@node_rewriter([PlainGraph])
def _for_jax(fgraph: Any, node: Any) -> Any:
    if any(variable.type.dtype != "float64" for variable in node.inputs):
        return None
    return node.op.for_jax(*node.inputs)


# After PyTensor's own inlining, at −0.01, and before the first merge, at 0.
optdb.register("mcoem_for_numba", dfs_rewriter(_for_numba), "numba", position=-0.009)
optdb.register("mcoem_for_jax", dfs_rewriter(_for_jax), "jax", position=-0.009)
optdb.register("mcoem_inline", dfs_rewriter(_inline), "fast_run", "fast_compile", position=-0.008)
