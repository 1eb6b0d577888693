"""Graphs of PyTensor as functions that JAX can trace.

Importing this module imports JAX.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

from pymc_mcoem.compiling.data_functions import Density, compile_with_data

__all__ = ["JaxGraph", "compiled", "precision", "require_own_process"]

#: Process in which JAX was imported.
_PROCESS = os.getpid()
#: Whether single precision was asked for.
_is_single: ContextVar[bool] = ContextVar("pymc_mcoem_single", default=False)


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Let JAX compute in a precision while the block runs, in this thread.

    Graphs that are made in the block compute in it too, and only in such blocks.

    Parameters
    ----------
    dtype : {"float64", "float32"}
    """
    if dtype == "float64":
        yield
        return
    # older versions of JAX have it elsewhere
    place: Any = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
    token = _is_single.set(True)
    try:
        with place.enable_x64(False):
            yield
    finally:
        _is_single.reset(token)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Return a function that JAX compiles, on a processor for the widest vectors that it has.

    XLA uses half of their width otherwise: bursts then take 1.2 to 1.4 times as long.
    """
    if jax.default_backend() == "cpu":
        options["compiler_options"] = {"xla_cpu_prefer_vector_width": 512}
    return jax.jit(function, **options)


class JaxGraph:
    """A graph as a function that JAX can trace.

    Shared data of the model, which are not arguments, are read at every call.

    Parameters
    ----------
    density : Density
        Its data and other values are arguments after `inputs`.

    Raises
    ------
    ValueError
        If JAX computes in single precision.
    RuntimeError
        In a process that was forked from one in which JAX had been imported.
    """

    def __init__(self, density: Density, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        require_own_process()
        function = compile_with_data(density, list(inputs), list(outputs), "JAX").function
        if not (jax.config.jax_enable_x64 or _is_single.get()):
            raise ValueError(
                "backend: JAX computes in single precision here, but searches and sweeps "
                "need double precision; set PyTensor's floatX to float64, or jax.config's "
                "jax_enable_x64."
            )
        n_given = len(inputs) + len(density.data_inputs) + len(density.other_values)
        self._function = function.vm.jit_fn
        self._shared = function.input_storage[n_given:]

    def shared(self) -> list[Any]:
        """Return the values of the shared data, the last of the arguments."""
        return [container.storage[0] for container in self._shared]

    def __call__(self, *arguments: Any) -> list[Any]:
        """Return the graph's outputs; the arguments are its inputs, the data, the shared values."""
        # The function of a graph without outputs returns None.
        return list(self._function(*arguments) or ())


def require_own_process() -> None:
    """Raise an error in a forked process, where JAX would wait for threads that do not exist."""
    if os.getpid() != _PROCESS:
        raise RuntimeError(
            "backend: JAX does not work in a process that was forked; pass mp_ctx='spawn' to "
            "pm.sample. As executor, give a number of processes, or one whose workers are started "
            "by multiprocessing.get_context('spawn')."
        )
