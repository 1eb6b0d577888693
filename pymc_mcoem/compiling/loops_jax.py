"""JAX's loops around bodies that PyTensor turns into JAX; see `pymc_mcoem.compiling.loops`.

Importing this module imports JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pymc_mcoem.compiling.data_functions import Density
from pymc_mcoem.compiling.graphs_jax import JaxGraph, require_own_process
from pymc_mcoem.compiling.messages import AnnouncedCompilation

__all__ = ["jax_loop"]


def jax_loop(
    density: Density,
    body: Callable[..., Sequence[Any]],
    *,
    inputs: Sequence[Any],
    sequences: Sequence[Any],
    carried: Sequence[Any],
    fixed: Sequence[Any],
    last: Collection[int],
) -> Callable[..., list[Any]]:
    """Compile a loop as long as its sequences; parameters as in `compile_loop`."""
    rows = [variable.type.clone(shape=variable.type.shape[1:])() for variable in sequences]
    state = [variable.type() for variable in carried]
    within = [variable.type() for variable in fixed]
    first = JaxGraph(density, inputs, carried)
    step = JaxGraph(density, [*rows, *state, *within], body(*rows, *state, *within))
    gone_through = [inputs.index(variable) for variable in sequences]
    held = [inputs.index(variable) for variable in fixed]

    @jax.jit
    def run(arguments: list[Any], of_first: list[Any], of_step: list[Any]) -> list[Any]:
        data = arguments[len(inputs) :]
        constant = [*[arguments[place] for place in held], *data, *of_step]

        def go_on(at: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            found = step(*row, *at, *constant)
            stacked = [value for place, value in enumerate(found) if place not in last]
            return _alike(found[: len(at)], at), stacked

        start = first(*arguments, *of_first)
        end, stacked = jax.lax.scan(go_on, start, [arguments[place] for place in gone_through])
        others = iter(stacked)
        n_outputs = len(stacked) + len(last)
        return [end[place] if place in last else next(others) for place in range(n_outputs)]

    announced = AnnouncedCompilation(run, "the model for JAX")

    def call(*arguments: Any) -> list[Any]:
        require_own_process()
        return _arrays(announced(list(arguments), first.shared(), step.shared()))

    return call


def _alike(found: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """Return values cast to the dtypes of others, since carried values must keep theirs."""
    return [jnp.asarray(value, dtype=like.dtype) for value, like in zip(found, wanted, strict=True)]


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Return the values as writable NumPy arrays."""
    return [np.array(value) for value in values]
