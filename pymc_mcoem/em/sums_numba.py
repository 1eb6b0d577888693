"""Sums over draws on the numba back end, compiled once for all statistics.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.experimental import structref

from pymc_mcoem.compiling.compiled_once import compiled_once
from pymc_mcoem.compiling.flat_functions_numba import FUNCTION

__all__ = ["StatisticsFunction", "hold", "weighted_sum"]


@structref.register
class _FunctionsType(types.StructRef):
    """Type of `StatisticsFunction`."""


class StatisticsFunction(structref.StructRefProxy):
    """The function whose values are summed."""


structref.define_boxing(_FunctionsType, StatisticsFunction)
_FUNCTIONS = _FunctionsType([("statistics", FUNCTION)])


@compiled_once(_FUNCTIONS(FUNCTION))
def hold(statistics: Any) -> Any:
    """Return a function, held so that a call costs no search for its address."""
    held = structref.new(_FUNCTIONS)
    held.statistics = statistics
    return held


@compiled_once()
def weighted_sum(
    held: Any,
    k: int,
    weights: np.ndarray,
    positions: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
    size: int,
) -> Any:
    """Return Σ_t w_t S(x_t), (size,), over positions (n_draws, n_latents)."""
    statistics = held.statistics
    total, one = np.zeros(size), np.empty(size)
    for draw in range(len(weights)):
        statistics(k, positions[draw], reals, integers, one)
        weight = weights[draw]
        for a in range(size):
            total[a] += weight * one[a]
    return total
