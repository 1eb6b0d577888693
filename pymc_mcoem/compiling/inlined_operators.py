"""Operators that carry the plain graph of what they compute, for back ends that can do better.

Where the numba back end compiles such an operator, it names what takes its place; everywhere else
its plain graph is inlined, as if it had been written there.
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
        What it will be applied to; their types are taken.
    """

    def __init__(self, inputs: Sequence[TensorVariable]) -> None:
        symbols = [variable.type() for variable in inputs]
        super().__init__(symbols, self.plain(*symbols), name=type(self).__name__)

    def plain(self, *inputs: TensorVariable) -> list[TensorVariable]:
        """Return the outputs as a graph of elementary operators."""
        raise NotImplementedError

    def for_numba(self, *inputs: TensorVariable) -> list[TensorVariable] | None:
        """Return the outputs as the numba back end computes them; None to inline the graph."""
        raise NotImplementedError

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
    """Return a number for a module's name and source, under which its compiled code may be kept.

    PyTensor keeps what numba compiled on disk, by the operator's type and a number that is to
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


# After what is inlined by default, at −0.01, and before the first merge, at 0.
optdb.register("mcoem_for_numba", dfs_rewriter(_for_numba), "numba", position=-0.009)
optdb.register("mcoem_inline", dfs_rewriter(_inline), "fast_run", "fast_compile", position=-0.008)
