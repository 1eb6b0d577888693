"""Sweeps and moves on the numba back end: loops around the functions of a density.

They make the same draws from the same noise as the graphs of `kernel`, `within_class` and
`hamiltonian`. The functions that they call have one type for all models
(`pymc_mcoem.compiling.flat_functions`), so the loops are compiled once and stored on disk for every
model, number of classes and size. Sums are taken in the order in which they are written.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.experimental import structref

from pymc_mcoem.compiling.compiled_once import compiled_once
from pymc_mcoem.compiling.flat_functions_numba import FUNCTION, INTEGERS, REALS

__all__ = [
    "FunctionsType",
    "SweepFunctions",
    "hamiltonian",
    "hold",
    "independence",
    "random_walk",
    "sweeps",
    "work",
]

_MATRIX = types.float64[:, ::1]

#: (value, slope, class, position, noise, mean, scale, its transpose, whiten, settings, result,
#: scratch, reals, integers): moves the position in place. `settings` begins with the logarithm of
#: the step size; `result` holds the log-density (read and then updated), acceptance and step-size
#: error; `scratch` has room for four positions.
MOVE = types.FunctionType(
    types.float64(
        FUNCTION,
        FUNCTION,
        types.int64,
        REALS,
        REALS,
        REALS,
        _MATRIX,
        _MATRIX,
        _MATRIX,
        REALS,
        REALS,
        REALS,
        REALS,
        INTEGERS,
    )
)


@structref.register
class FunctionsType(types.StructRef):
    """Type of `SweepFunctions`, by the names and types of the functions."""


class SweepFunctions(structref.StructRefProxy):
    """The functions that sweeps call, stored so that no call has to look up their addresses."""


structref.define_boxing(FunctionsType, SweepFunctions)
_FUNCTIONS = FunctionsType([("value", FUNCTION), ("slope", FUNCTION), ("move", MOVE)])


@compiled_once(_FUNCTIONS(FUNCTION, FUNCTION, MOVE))
def hold(value: Any, slope: Any, move: Any) -> Any:
    """Store the functions in one object."""
    held = structref.new(_FUNCTIONS)
    held.value, held.slope, held.move = value, slope, move
    return held


@compiled_once(inner=True)
def log_uniform(first: float, second: float) -> Any:
    """Return the logarithm of a uniform variable made from two standard normal ones."""
    return -0.5 * (first * first + second * second)


@compiled_once(inner=True)
def copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy a vector into another.

    For a slice assignment numba would spend a second and a half on compiling an error message.
    """
    for a in range(len(target)):
        target[a] = source[a]


@compiled_once(inner=True)
def add_product(target: np.ndarray, transposed: np.ndarray, vector: np.ndarray) -> None:
    """Add the product of a matrix, given by its transpose, and a vector to `target`.

    The loop goes through the rows of the transpose: an inner loop without a sum becomes vector
    instructions although sums are strict.
    """
    for b in range(len(vector)):
        value, row = vector[b], transposed[b]
        for a in range(row.size):
            target[a] += value * row[a]


@compiled_once(MOVE.signature, inner=True)
def random_walk(
    value: Any,
    slope: Any,
    k: int,
    x: np.ndarray,
    noise: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
    transposed: np.ndarray,
    whiten: np.ndarray,
    settings: np.ndarray,
    result: np.ndarray,
    scratch: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
) -> Any:
    """Make random-walk moves; settings: log step size, target acceptance, number of moves."""
    n, n_moves = len(x), int(settings[2])
    size = np.exp(settings[0])
    log_p, accepted = result[0], 0
    proposed = scratch[:n]
    for move in range(n_moves):
        row = noise[move * (n + 2) :]
        for a in range(n):
            proposed[a] = 0.0
        add_product(proposed, transposed, row[:n])
        for a in range(n):
            proposed[a] = x[a] + size * proposed[a]
        new_log_p = value(k, proposed, reals, integers, proposed[:0])
        if log_uniform(row[n], row[n + 1]) < new_log_p - log_p:
            copy(x, proposed)
            log_p = new_log_p
            accepted += 1
    result[0] = log_p
    result[1] = accepted / n_moves if n_moves else np.nan
    result[2] = result[1] - settings[1]
    return result[1]


@compiled_once(MOVE.signature, inner=True)
def independence(
    value: Any,
    slope: Any,
    k: int,
    x: np.ndarray,
    noise: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
    transposed: np.ndarray,
    whiten: np.ndarray,
    settings: np.ndarray,
    result: np.ndarray,
    scratch: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
) -> Any:
    """Propose from the pseudo-prior; settings: unused, target acceptance, number of moves."""
    n, n_moves = len(x), int(settings[2])
    log_p, accepted, log_k = result[0], 0, 0.0
    for a in range(n):
        standard = 0.0
        for b in range(n):
            standard += whiten[a, b] * (x[b] - mean[b])
        log_k -= 0.5 * (standard * standard)
    proposed = scratch[:n]
    for move in range(n_moves):
        row = noise[move * (n + 2) :]
        copy(proposed, mean)
        add_product(proposed, transposed, row[:n])
        new_log_k = 0.0
        for a in range(n):
            new_log_k -= 0.5 * (row[a] * row[a])
        new_log_p = value(k, proposed, reals, integers, proposed[:0])
        if log_uniform(row[n], row[n + 1]) < new_log_p - log_p - (new_log_k - log_k):
            copy(x, proposed)
            log_p, log_k = new_log_p, new_log_k
            accepted += 1
    result[0] = log_p
    result[1] = accepted / n_moves
    result[2] = result[1] - settings[1]
    return result[1]


@compiled_once(MOVE.signature, inner=True)
def hamiltonian(
    value: Any,
    slope: Any,
    k: int,
    x: np.ndarray,
    noise: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
    transposed: np.ndarray,
    whiten: np.ndarray,
    settings: np.ndarray,
    result: np.ndarray,
    scratch: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
) -> Any:
    """Make Hamiltonian moves.

    Settings: log step size, target acceptance, number of moves, leapfrog steps, longest log step.
    """
    n, n_moves, n_leapfrog = len(x), int(settings[2]), int(settings[3])
    tuned = np.exp(min(settings[0], settings[4]))
    log_p, accepted = result[0], 0
    z, p = scratch[:n], scratch[n : 2 * n]
    gradient, proposed = scratch[2 * n : 3 * n], scratch[3 * n : 4 * n]
    for move in range(n_moves):
        row = noise[move * (n + 4) :]
        step = tuned * (0.5 + np.exp(log_uniform(row[n + 2], row[n + 3])))
        kinetic = 0.0
        for a in range(n):
            z[a], p[a] = 0.0, row[a]
            kinetic += 0.5 * (row[a] * row[a])
        for _ in range(n_leapfrog):
            # in the coordinates z of x + scale z, where a move needs no matrix product
            for a in range(n):
                z[a] += 0.5 * step * p[a]
            copy(proposed, x)
            add_product(proposed, transposed, z)
            slope(k, proposed, reals, integers, gradient)
            for a in range(n):
                gradient[a] *= step
            add_product(p, scale, gradient)
            for a in range(n):
                z[a] += 0.5 * step * p[a]
        copy(proposed, x)
        add_product(proposed, transposed, z)
        new_log_p = value(k, proposed, reals, integers, proposed[:0])
        for a in range(n):
            kinetic -= 0.5 * (p[a] * p[a])
        # nan, where a trajectory has left the density's support, is not accepted
        if log_uniform(row[n], row[n + 1]) < new_log_p - log_p + kinetic:
            copy(x, proposed)
            log_p = new_log_p
            accepted += 1
    result[0] = log_p
    result[1] = accepted / n_moves
    result[2] = result[1] - settings[1]
    if settings[0] >= settings[4]:
        result[2] = min(result[2], 0.0)
    return result[1]


@compiled_once(inner=True)
def draw(weight: np.ndarray, first: float, second: float) -> Any:
    """Draw an index by weights, which need not sum to one, from two standard normals."""
    total = 0.0
    for j in range(len(weight)):
        total += weight[j]
    threshold = np.exp(log_uniform(first, second)) * total
    cumulative, chosen = 0.0, 0
    for j in range(len(weight)):
        cumulative += weight[j]
        if cumulative < threshold:
            chosen += 1
    return chosen if chosen < len(weight) else len(weight) - 1


@compiled_once(inner=True)
def draw_class(
    log_weight: np.ndarray, here: int, noise: np.ndarray, metropolized: bool, weight: np.ndarray
) -> Any:
    """Draw the index by Gibbs, or by Metropolized Gibbs from the present one."""
    best = log_weight[0]
    for j in range(1, len(log_weight)):
        if log_weight[j] > best:
            best = log_weight[j]
    if best == -np.inf:
        return here
    for j in range(len(log_weight)):
        weight[j] = np.exp(log_weight[j] - best)
    if not metropolized:
        return draw(weight, noise[0], noise[1])
    own = weight[here]
    weight[here] = 0.0
    left_here = 0.0
    for j in range(len(weight)):
        left_here += weight[j]
    there = draw(weight, noise[0], noise[1])
    # sum the remaining weights: one minus a weight near one would lose precision
    weight[here], weight[there] = own, 0.0
    if there == here:
        return here
    left_there = 0.0
    for j in range(len(weight)):
        left_there += weight[j]
    accepted = log_uniform(noise[2], noise[3]) + np.log(left_there) < np.log(left_here)
    return there if accepted else here


def work(n_classes: int, n_latents: int) -> list[np.ndarray]:
    """Return the arrays that `sweeps` overwrites."""
    return [np.empty(size) for size in (n_classes, n_classes, 3, 4 * n_latents)]


@compiled_once()
def sweeps(
    held: Any,
    metropolized: bool,
    shared_latents: bool,
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
    weight: np.ndarray,
    result: np.ndarray,
    scratch: np.ndarray,
    reals: np.ndarray,
    integers: np.ndarray,
) -> None:
    """Make sweeps of Algorithm 2, one for every row of noise.

    The caller makes all arrays, for numba takes a second to compile what makes them.

    Parameters
    ----------
    settings : ndarray of float
        Settings of the move; the first is set here to the logarithm of the step size.
    noise : ndarray of shape (n_sweeps, noise_size)
    gains : ndarray of shape (n_sweeps,)
    indices : ndarray of int of shape (n_sweeps + 1,)
        The class index before the first sweep, then written here after each.
    positions : ndarray of shape (n_sweeps + 1, n_latents)
        The same of the latents.
    log_step : ndarray of shape (n_classes,)
        Changed in place.
    log_weights : ndarray of shape (n_sweeps, n_classes)
        Written here: logarithms of the weights from which the index was drawn.
    acceptance : ndarray of shape (n_sweeps,)
        Written here.
    auxiliaries : ndarray of shape (n_sweeps, n_classes, n_latents)
        Written here; (n_sweeps, 0, n_latents) where latents are shared.
    log_offset, mean, whiten, log_normalizer
        As `build_sweep` takes them.
    transposed, moved, moved_transposed : ndarray of shape (n_classes, n_latents, n_latents)
        The transposes of the pseudo-priors' scales; the scales with zeros in the rows of latents
        that a class does not move, and their transposes.
    log_target, weight, result, scratch : ndarray
        Overwritten; as `work` makes them.
    reals, integers : ndarray
        As `pymc_mcoem.compiling.flat_functions.FlatFunction.pack` returns them.
    """
    value, slope, move = held.value, held.slope, held.move
    n_classes, n = mean.shape
    n_index = 4 if metropolized else 2
    split = 0 if shared_latents else n_classes * n
    for sweep in range(len(gains)):
        own, drawn = noise[sweep], auxiliaries[sweep]
        k, x = indices[sweep], positions[sweep]
        for j in range(n_classes):
            u, squares = x if shared_latents else drawn[j], 0.0
            if j == k and not shared_latents:
                copy(u, x)
            elif j != k and not shared_latents:
                z = own[j * n : (j + 1) * n]
                for a in range(n):
                    squares += z[a] * z[a]
                copy(u, mean[j])
                add_product(u, transposed[j], z)
            if log_offset[j] == -np.inf and j != k:
                # no weight, whatever the density is; where the chain is, its move needs it
                log_weights[sweep, j] = -np.inf
                continue
            log_p = value(j, u, reals, integers, x[:0])
            # A class whose density cannot be evaluated at its auxiliary has no weight; the chain
            # itself can never be at such a point, because it is never accepted.
            log_target[j] = -np.inf if np.isnan(log_p) else log_p
            if shared_latents:
                log_weights[sweep, j] = log_target[j] + log_offset[j]
                continue
            if j == k:
                for a in range(n):
                    standard = 0.0
                    for b in range(n):
                        standard += whiten[j, a, b] * (x[b] - mean[j, b])
                    squares += standard * standard
            log_weights[sweep, j] = (
                log_target[j] - (log_normalizer[j] - 0.5 * squares) + log_offset[j]
            )
        k = draw_class(log_weights[sweep], k, own[split:], metropolized, weight)
        chosen = x if shared_latents else drawn[k]
        x = positions[sweep + 1]
        copy(x, chosen)
        settings[0], result[0] = log_step[k], log_target[k]
        move(
            value,
            slope,
            k,
            x,
            own[split + n_index :],
            mean[k],
            moved[k],
            moved_transposed[k],
            whiten[k],
            settings,
            result,
            scratch,
            reals,
            integers,
        )
        if not np.isnan(result[2]):
            log_step[k] += gains[sweep] * result[2]
        indices[sweep + 1], acceptance[sweep] = k, result[1]
