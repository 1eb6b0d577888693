"""Loops around the body of a density, compiled for any back end.

numba and C run PyTensor's own loop. JAX accepts that loop only if the number of steps is known at
compile time, which it is not for a burst. For JAX, PyTensor compiles the body alone and a loop of
JAX calls it (`pymc_mcoem.compiling.loops_jax`). The bodies are the same graphs, so all back ends
compute the same numbers from the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytensor

from pymc_mcoem.compiling.backends import uses_jax
from pymc_mcoem.compiling.data_functions import Density, compile_with_data

__all__ = ["compile_loop"]


def compile_loop(
    density: Density,
    body: Callable[..., Sequence[Any]],
    *,
    inputs: Sequence[Any],
    sequences: Sequence[Any],
    carried: Sequence[Any] = (),
    n_emitted: int = 0,
    fixed: Sequence[Any] = (),
    last: Collection[int] = (),
    mode: Any = None,
) -> Callable[..., list[Any]]:
    """Compile a loop as long as its sequences.

    Parameters
    ----------
    density : Density
        Its data and other values are arguments after `inputs`.
    body : callable
        Takes one row of every sequence, the carried values and the fixed values. Returns the new
        carried values, then the values that are only emitted.
    inputs : sequence of TensorVariable
        Arguments of the function, in order.
    sequences, fixed : sequence of TensorVariable
        Taken from `inputs`. All sequences have the same length.
    carried : sequence of TensorVariable
        Initial values of the carried values, as graphs of `inputs`.
    n_emitted : int
        Number of outputs of `body` that are not carried.
    last : collection of int
        Outputs of which only the last value is returned.

    Returns
    -------
    callable
        From arrays to a list of arrays, one for each output, with steps along the first axis.

    Notes
    -----
    JAX compiles anew for each new length of the sequences.
    """
    if uses_jax(mode):
        from pymc_mcoem.compiling.loops_jax import jax_loop

        return jax_loop(
            density,
            body,
            inputs=inputs,
            sequences=sequences,
            carried=carried,
            fixed=fixed,
            last=last,
        )
    outputs = pytensor.scan(
        body,
        sequences=list(sequences),
        outputs_info=[*carried, *[None] * n_emitted],
        non_sequences=list(fixed),
        return_updates=False,
        return_list=True,
    )
    wanted = [output[-1] if place in last else output for place, output in enumerate(outputs)]
    function: Callable[..., list[Any]] = compile_with_data(density, list(inputs), wanted, mode)
    return function
