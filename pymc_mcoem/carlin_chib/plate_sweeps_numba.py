"""The sweep of all rows of a plate on the numba back end: a loop around the density of all rows.

It makes the same draws from the same noise as the graph of `plate_sweeps`, and is compiled once
for all models: see `sweeps_numba`.

Importing this module imports numba.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba import types
from numba.experimental import structref

from pymc_mcoem.carlin_chib import sweeps_numba
from pymc_mcoem.carlin_chib.sweeps_numba import copy, draw_class, log_uniform
from pymc_mcoem.compiling.compiled_once import compiled_once
from pymc_mcoem.compiling.flat_functions_numba import INTEGERS, REALS

__all__ = ["PlateFunctions", "hold", "sweep"]

#: (classes, positions, reals, integers) → 0; writes the log-densities of all rows.
ROWS = types.FunctionType(
    types.float64(
        types.int64[::1],
        types.float64[:, ::1],
        REALS,
        INTEGERS,
        REALS,
    )
)


@structref.register
class _FunctionsType(types.StructRef):
    """Type of `PlateFunctions`."""


class PlateFunctions(structref.StructRefProxy):
    """The function that a plate's sweep calls."""


structref.define_boxing(_FunctionsType, PlateFunctions)
_FUNCTIONS = _FunctionsType([("rows", ROWS)])


@compiled_once(_FUNCTIONS(ROWS))
def hold(rows: Any) -> Any:
    """Store a function so that no call has to look up its address."""
    held = structref.new(_FUNCTIONS)
    held.rows = rows
    return held


@compiled_once(uses=[sweeps_numba, sys.modules[__name__]])
def sweep(
    held: Any,
    metropolised: bool,
    n_moves: int,
    target_acceptance: float,
    noise: np.ndarray,
    gain: float,
    class_index: np.ndarray,
    position: np.ndarray,
    initial_log_step: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
    whiten: np.ndarray,
    log_normalizer: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
) -> Any:
    """Make one sweep of all rows.

    Parameters
    ----------
    held : PlateFunctions
    metropolised : bool
    n_moves, target_acceptance
        Settings of the random walk.
    noise : ndarray of shape (n_rows, noise_size)
    gain : float
    class_index, position, initial_log_step, mean, scale, whiten, log_normalizer
        As `PlateSweep` takes them.
    reals, integers : ndarray
        As `pymc_mcoem.compiling.flat_functions.FlatFunction.pack` returns them.

    Returns
    -------
    tuple
        Class indices (n_rows,), positions (n_rows, n_latents), step sizes, logarithms of the
        weights (n_rows, n_classes), and acceptance (n_rows,).
    """
    rows = held.rows
    n_classes, n_rows, n = mean.shape
    n_index = 4 if metropolised else 2
    split = n_classes * n
    auxiliaries = np.empty((n_classes, n_rows, n))
    log_target = np.empty((n_classes, n_rows))
    log_weight = np.empty((n_rows, n_classes))
    here, found = np.empty(n_rows, dtype=np.int64), np.empty(n_rows)
    for j in range(n_classes):
        drawn = auxiliaries[j]
        for i in range(n_rows):
            z = noise[i, j * n : (j + 1) * n]
            squares = 0.0
            if class_index[i] == j:
                for a in range(n):
                    standard = 0.0
                    for b in range(n):
                        standard += whiten[j, i, a, b] * (position[i, b] - mean[j, i, b])
                    squares += standard**2
                    drawn[i, a] = position[i, a]
            else:
                for a in range(n):
                    moved = 0.0
                    for b in range(n):
                        moved += scale[j, i, a, b] * z[b]
                    squares += z[a] ** 2
                    drawn[i, a] = mean[j, i, a] + moved
            log_weight[i, j] = 0.5 * squares - log_normalizer[j, i]
        for i in range(n_rows):
            here[i] = j
        rows(here, drawn, reals, integers, found)
        for i in range(n_rows):
            log_target[j, i] = -np.inf if np.isnan(found[i]) else found[i]
            log_weight[i, j] += log_target[j, i]
    chosen, x = np.empty(n_rows, dtype=np.int64), np.empty((n_rows, n))
    log_p, weight = np.empty(n_rows), np.empty(n_classes)
    for i in range(n_rows):
        own = noise[i, split:]
        k = draw_class(log_weight[i], class_index[i], own, metropolised, weight)
        chosen[i], log_p[i] = k, log_target[k, i]
        copy(x[i], auxiliaries[k, i])
    acceptance = np.full(n_rows, np.nan)
    log_step = initial_log_step.copy()
    if n_moves == 0:
        return chosen, x, log_step, log_weight, acceptance
    for i in range(n_rows):
        acceptance[i] = 0.0
    proposed = np.empty((n_rows, n))
    for move in range(n_moves):
        at = split + n_index + move * (n + 2)
        for i in range(n_rows):
            k = chosen[i]
            size = np.exp(log_step[k])
            for a in range(n):
                moved = 0.0
                for b in range(n):
                    moved += scale[k, i, a, b] * noise[i, at + b]
                proposed[i, a] = x[i, a] + size * moved
        rows(chosen, proposed, reals, integers, found)
        for i in range(n_rows):
            if log_uniform(noise[i, at + n], noise[i, at + n + 1]) < found[i] - log_p[i]:
                copy(x[i], proposed[i])
                log_p[i] = found[i]
                acceptance[i] += 1.0 / n_moves
    error, members = np.zeros(n_classes), np.zeros(n_classes)
    for i in range(n_rows):
        error[chosen[i]] += acceptance[i] - target_acceptance
        members[chosen[i]] += 1.0
    for j in range(n_classes):
        log_step[j] += gain * error[j] / max(members[j], 1.0)
    return chosen, x, log_step, log_weight, acceptance
