"""Compilation of functions that take a density's data and other values as arguments."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import pymc as pm

from pymc_mcoem.compiling.arithmetic import strict_mode
from pymc_mcoem.compiling.backends import backend_of
from pymc_mcoem.compiling.messages import AnnouncedCompilation, compiling

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["Density", "compile_with_data"]


class Density(Protocol):
    """The part of a model's density by class that compiled functions need.

    Attributes
    ----------
    data_inputs : dict of str to TensorVariable
        The model's data, as inputs of compiled functions.
    other_values : tuple of TensorVariable
        Values of the variables that are neither class index nor latents.
    """

    model: pm.Model
    data_inputs: dict[str, TensorVariable]
    other_values: tuple[TensorVariable, ...]

    @property
    def inputs(self) -> list[TensorVariable]:
        """All arguments of compiled functions beside class and position."""
        ...

    @property
    def position_shape(self) -> tuple[int, ...]:
        """The shape of a position; that of a plate has two axes."""
        ...


def compile_with_data(
    density: Density, inputs: list[Any], outputs: Any, mode: Any
) -> AnnouncedCompilation:
    """Compile a function of `inputs`, then the density's data, then its other values.

    With numba, sums are taken in the order in which they are written; see `strict_mode`.
    """
    with compiling("the model") if mode is None or isinstance(mode, str) else nullcontext():
        function = pm.pytensorf.compile(
            [*inputs, *density.data_inputs.values(), *density.other_values],
            outputs,
            mode=strict_mode(mode),
            on_unused_input="ignore",
        )
    function.trust_input = True
    # numba and JAX compile when a function is first called
    waits = backend_of(mode) in ("numba", "jax")
    return AnnouncedCompilation(function, "the model" if waits else None)
