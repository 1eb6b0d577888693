"""Sweeps of all rows of a plate on the numba back end: a loop around the density of all rows.

They make the same draws from the same noise as the graph of `kernel`, and are compiled once for all
models: see `sweeps_numba`, whose loops are around the density of one index.

Importing this module imports numba.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba import types
from numba.experimental import structref

from pymc_mcoem.carlin_chib import sweeps_numba
from pymc_mcoem.carlin_chib.sweeps_numba import FunctionsType, copy, draw_class, log_uniform
from pymc_mcoem.compiling.compiled_once import compiled_once
from pymc_mcoem.compiling.flat_functions_numba import INTEGERS, REALS

__all__ = ["hold", "sweeps"]

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


_FUNCTIONS = FunctionsType([("rows", ROWS)])


@compiled_once(_FUNCTIONS(ROWS))
def hold(rows: Any) -> Any:
    """Store a function so that no call has to look up its address."""
    held = structref.new(_FUNCTIONS)
    held.rows = rows
    return held


@compiled_once(uses=[sweeps_numba, sys.modules[__name__]])
def sweeps(
    held: Any,
    metropolised: bool,
    settings: np.ndarray,
    noise: np.ndarray,
    gains: np.ndarray,
    class_index: np.ndarray,
    start: np.ndarray,
    initial_log_step: np.ndarray,
    log_offset: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
    whiten: np.ndarray,
    log_normalizer: np.ndarray,
    active: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
) -> Any:
    """Make sweeps of all rows with random-walk moves.

    Parameters
    ----------
    held : SweepFunctions
    metropolised : bool
    settings : ndarray of float
        Settings of `sweeps_numba.random_walk`.
    noise : ndarray of shape (n_sweeps, n_rows, noise_size)
    gains : ndarray of shape (n_sweeps,)
    class_index, start, initial_log_step, log_offset, mean, scale, whiten, log_normalizer
        As `build_sweep` takes them.
    active : ndarray
        Not used: on a plate all coordinates are active in every class.
    reals, integers : ndarray
        As `pymc_mcoem.compiling.flat_functions.FlatFunction.pack` returns them.

    Returns
    -------
    tuple
        As `sweeps_numba.sweeps`, with an axis for the rows: class indices (n_sweeps, n_rows),
        positions (n_sweeps, n_rows, n_latents), the last step sizes, logarithms of the weights
        (n_sweeps, n_rows, n_classes), acceptance (n_sweeps, n_rows), and auxiliaries
        (n_sweeps, n_classes, n_rows, n_latents).
    """
    rows, n_moves, target_acceptance = held.rows, int(settings[2]), settings[1]
    n_sweeps, (n_classes, n_rows, n) = len(noise), mean.shape
    n_index = 4 if metropolised else 2
    split = n_classes * n
    indices = np.empty((n_sweeps, n_rows), dtype=np.int64)
    positions = np.empty((n_sweeps, n_rows, n))
    log_weights = np.empty((n_sweeps, n_rows, n_classes))
    acceptance = np.empty((n_sweeps, n_rows))
    auxiliaries = np.empty((n_sweeps, n_classes, n_rows, n))
    log_step, before, position = initial_log_step.copy(), class_index, start
    log_target, weight = np.empty((n_classes, n_rows)), np.empty(n_classes)
    here, found = np.empty(n_rows, dtype=np.int64), np.empty(n_rows)
    log_p, proposed, size = np.empty(n_rows), np.empty((n_rows, n)), np.empty(n_classes)
    error, members = np.empty(n_classes), np.empty(n_classes)
    for sweep in range(n_sweeps):
        own, log_weight = noise[sweep], log_weights[sweep]
        chosen, x, accepted = indices[sweep], positions[sweep], acceptance[sweep]
        for j in range(n_classes):
            drawn = auxiliaries[sweep, j]
            for i in range(n_rows):
                z = own[i, j * n : (j + 1) * n]
                squares = 0.0
                if before[i] == j:
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
                here[i] = j
            rows(here, drawn, reals, integers, found)
            for i in range(n_rows):
                log_target[j, i] = -np.inf if np.isnan(found[i]) else found[i]
                log_weight[i, j] += log_target[j, i]
                log_weight[i, j] += log_offset[j, i]
        for i in range(n_rows):
            k = draw_class(log_weight[i], before[i], own[i, split:], metropolised, weight)
            chosen[i], log_p[i], accepted[i] = k, log_target[k, i], 0.0
            copy(x[i], auxiliaries[sweep, k, i])
        before, position = chosen, x
        for j in range(n_classes):
            size[j] = np.exp(log_step[j])
        for move in range(n_moves):
            at = split + n_index + move * (n + 2)
            for i in range(n_rows):
                k = chosen[i]
                for a in range(n):
                    moved = 0.0
                    for b in range(n):
                        moved += scale[k, i, a, b] * own[i, at + b]
                    proposed[i, a] = x[i, a] + size[k] * moved
            rows(chosen, proposed, reals, integers, found)
            for i in range(n_rows):
                if log_uniform(own[i, at + n], own[i, at + n + 1]) < found[i] - log_p[i]:
                    copy(x[i], proposed[i])
                    log_p[i] = found[i]
                    accepted[i] += 1.0 / n_moves
        if n_moves == 0:
            for i in range(n_rows):
                accepted[i] = np.nan
            continue
        for j in range(n_classes):
            error[j], members[j] = 0.0, 0.0
        for i in range(n_rows):
            error[chosen[i]] += accepted[i] - target_acceptance
            members[chosen[i]] += 1.0
        for j in range(n_classes):
            log_step[j] += gains[sweep] * error[j] / max(members[j], 1.0)
    return indices, positions, log_step, log_weights, acceptance, auxiliaries
