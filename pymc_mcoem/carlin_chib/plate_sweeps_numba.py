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

__all__ = ["hold", "sweeps", "work"]

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


def work(n_classes: int, n_rows: int, n_latents: int) -> list[np.ndarray]:
    """Return the arrays that `sweeps` overwrites."""
    return [
        np.empty((n_classes, n_rows)),
        np.empty((4, n_classes)),
        np.empty(n_rows, dtype=np.int64),
        np.empty((2, n_rows)),
        np.empty((n_rows, n_latents)),
    ]


@compiled_once(uses=[sweeps_numba, sys.modules[__name__]])
def sweeps(
    held: Any,
    metropolized: bool,
    settings: np.ndarray,
    noise: np.ndarray,
    gains: np.ndarray,
    indices: np.ndarray,
    positions: np.ndarray,
    log_step: np.ndarray,
    log_weights: np.ndarray,
    acceptance: np.ndarray,
    auxiliaries: np.ndarray,
    log_offset: np.ndarray,
    mean: np.ndarray,
    transposed: np.ndarray,
    whiten: np.ndarray,
    log_normalizer: np.ndarray,
    moved: np.ndarray,
    moved_transposed: np.ndarray,
    log_target: np.ndarray,
    of_classes: np.ndarray,
    here: np.ndarray,
    of_rows: np.ndarray,
    proposed: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
) -> None:
    """Make sweeps of all rows with random-walk moves.

    Parameters
    ----------
    settings : ndarray of float
        Settings of `sweeps_numba.random_walk`.
    noise : ndarray of shape (n_sweeps, n_rows, noise_size)
    gains : ndarray of shape (n_sweeps,)
    indices : ndarray of int of shape (n_sweeps + 1, n_rows)
        The class indices before the first sweep, then written here after each.
    positions : ndarray of shape (n_sweeps + 1, n_rows, n_latents)
        The same of the latents.
    log_step, log_offset, mean, transposed, whiten, log_normalizer, moved, moved_transposed
        As `sweeps_numba.sweeps` takes them; all but the first have an axis for the rows after that
        of the classes.
    log_weights : ndarray of shape (n_sweeps, n_rows, n_classes)
        Written here, as are the next two.
    acceptance : ndarray of shape (n_sweeps, n_rows)
    auxiliaries : ndarray of shape (n_sweeps, n_classes, n_rows, n_latents)
    log_target, of_classes, here, of_rows, proposed : ndarray
        Overwritten; as `work` makes them.
    reals, integers : ndarray
        As `pymc_mcoem.compiling.flat_functions.FlatFunction.pack` returns them.
    """
    rows, n_moves, target_acceptance = held.rows, int(settings[2]), settings[1]
    n_classes, n_rows, n = mean.shape
    n_index = 4 if metropolized else 2
    split = n_classes * n
    weight, size, error, members = of_classes[0], of_classes[1], of_classes[2], of_classes[3]
    found, log_p = of_rows[0], of_rows[1]
    for sweep in range(len(gains)):
        own, log_weight, accepted = noise[sweep], log_weights[sweep], acceptance[sweep]
        before, position = indices[sweep], positions[sweep]
        chosen, x = indices[sweep + 1], positions[sweep + 1]
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
                        squares += standard * standard
                        drawn[i, a] = position[i, a]
                else:
                    for a in range(n):
                        away = 0.0
                        for b in range(n):
                            away += transposed[j, i, b, a] * z[b]
                        squares += z[a] * z[a]
                        drawn[i, a] = mean[j, i, a] + away
                log_weight[i, j] = 0.5 * squares - log_normalizer[j, i]
                here[i] = j
            rows(here, drawn, reals, integers, found)
            for i in range(n_rows):
                log_target[j, i] = -np.inf if np.isnan(found[i]) else found[i]
                log_weight[i, j] += log_target[j, i]
                log_weight[i, j] += log_offset[j, i]
        for i in range(n_rows):
            k = draw_class(log_weight[i], before[i], own[i, split:], metropolized, weight)
            chosen[i], log_p[i], accepted[i] = k, log_target[k, i], 0.0
            copy(x[i], auxiliaries[sweep, k, i])
        for j in range(n_classes):
            size[j] = np.exp(log_step[j])
        for move in range(n_moves):
            at = split + n_index + move * (n + 2)
            for i in range(n_rows):
                k = chosen[i]
                for a in range(n):
                    away = 0.0
                    for b in range(n):
                        away += moved_transposed[k, i, b, a] * own[i, at + b]
                    proposed[i, a] = x[i, a] + size[k] * away
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
            if members[j] > 0.0:
                log_step[j] += gains[sweep] * error[j] / members[j]
