"""Density and gradient of images under templates, compiled once for all of them.

What `model` declares as a graph stands here as loops, for templates on an evenly spaced grid that a
rigid motion, a field of displacements on a grid, or both move. Nothing depends on the number of
classes, pixels or kernels but how long loops are.

numba compiles a function again for every number that is written in a call of it, and again within
whatever calls it. So there is one door, vectors alone are passed around (matrices as their rows one
after another), and what is called takes what it is told from arrays. Inner loops run along rows and
add up nothing within one: they are vector instructions although sums are taken as they are written.
What draws do not need, curvature and statistics, is not compiled: see `image_curvature`.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_mcoem.compiling.compiled_once import compiled_once
from pymc_mcoem.compiling.flat_functions_numba import FUNCTION
from pymc_mcoem.templates import template_loops_numba
from pymc_mcoem.templates.template_loops_numba import exponentials, likelihood, prior, product

__all__ = ["SIZES", "evaluate", "kernels", "template_values"]

#: What the integers begin with, before the places of the arrays. Where −1, there is none.
SIZES = (
    "n_rows",
    "n_columns",
    "n_first",
    "landmarks_first",
    "landmarks_second",
    "motion_at",
    "field_at",
    "scale_at",
    "n_factors",
)
(
    _N_ROWS,
    _N_COLUMNS,
    _N_FIRST,
    _LANDMARKS_FIRST,
    _LANDMARKS_SECOND,
    _MOTION_AT,
    _FIELD_AT,
    _SCALE_AT,
    _N_FACTORS,
) = range(len(SIZES))
_N_SIZES = len(SIZES)

# The real numbers, after the settings; their places stand in the integers:
#  0 grid: starts, spacings and bandwidth; shape, rate and log-constant of the scale's prior
#  1 points: coordinates, an axis after the other
#  2 to 5 kernels of the field along each axis, each followed by the same transposed
#  6 mean of the warp's prior
#  7 its precision, (n_parameters, n_parameters), one for all classes or one each
#  8 to 11 deviations, log-priors, noise variances and templates, a class after the other, within
#     it a channel after the other, and within that the factors after the template
#  12, 13 values and mask, a channel after the other
#  14 precision of correlated noise of variance one, (n_channels, n_points, n_points), or nothing
#  15 scratch

#: Bandwidths from a center beyond which its kernel is zero.
FAR = 27.0


@compiled_once(inner=True, uses=[template_loops_numba])
def kernels(column: np.ndarray, origin: float, spacing: float, bandwidth: float, out: Any) -> None:
    """Write exp(−(r_a − u_s)² / ν²) of evenly spaced centers r_a, (length, n_points).

    In blocks of neighboring centers. From the middle one outwards each kernel is the one before
    times a ratio, which is a constant times the ratio of the middle. A block ends eight bandwidths
    from its middle, so that nothing that matters underflows there.
    """
    n = column.size
    length, scaled = out.size // n, spacing / bandwidth
    half = min(int(8.0 / abs(scaled)), 16)
    away, exponent, ratio, inverse = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for begin in range(0, length, 2 * half + 1):
        end = min(begin + 2 * half + 1, length)
        middle = begin + (end - begin) // 2
        for s in range(n):
            distance = (column[s] - (origin + middle * spacing)) / bandwidth
            # Beyond it kernels are zero, and ratios must not become infinite. NaN stays NaN.
            distance = FAR if distance > FAR else distance
            distance = -FAR if distance < -FAR else distance
            away[s] = 2.0 * distance * scaled
            exponent[s] = -distance * distance
        exponentials(exponent, out[middle * n : (middle + 1) * n])
        exponentials(away, ratio)
        for s in range(n):
            inverse[s] = 1.0 / ratio[s]
        for direction in range(-1, 2, 2):
            outwards = ratio if direction > 0 else inverse
            for a in range(middle + direction, end if direction > 0 else begin - 1, direction):
                before, after = out[(a - direction) * n :], out[a * n : (a + 1) * n]
                constant = np.exp((1 - 2 * abs(a - middle)) * scaled * scaled)
                for s in range(n):
                    after[s] = before[s] * (constant * outwards[s])


@compiled_once(inner=True, uses=[template_loops_numba])
def warp(
    x: np.ndarray,
    sizes: np.ndarray,
    points: np.ndarray,
    field_first_transposed: np.ndarray,
    field_second: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write where points are taken to, an axis after the other."""
    n, n_rows, n_columns = points.size // 2, sizes[_N_ROWS], sizes[_N_COLUMNS]
    sine, cosine, zoom, along, across, center, middle = 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0
    at = sizes[_MOTION_AT]
    if at >= 0:
        sine, cosine, zoom = np.sin(x[at]), np.cos(x[at]), x[at + 1]
        center, middle = x[at + 2], x[at + 3]
        along, across = x[at + 4] - center, x[at + 5] - middle
    for s in range(n):
        u, v = zoom * points[s] + along, zoom * points[n + s] + across
        out[s] = cosine * u - sine * v + center
        out[n + s] = sine * u + cosine * v + middle
    at = sizes[_FIELD_AT]
    if at >= 0:
        first, second = sizes[_LANDMARKS_FIRST], sizes[_LANDMARKS_SECOND]
        both = first + first
        table, moved = np.empty(both * n_columns), np.empty(n)
        product(x[at:], field_second, both, second, n_columns, table)
        for axis in range(2):
            own, into = table[axis * first * n_columns :], out[axis * n :]
            product(field_first_transposed, own, n_rows, first, n_columns, moved)
            for s in range(n):
                into[s] += moved[s]


@compiled_once(inner=True, uses=[template_loops_numba])
def template_values(
    left: np.ndarray,
    right: np.ndarray,
    points: np.ndarray,
    template: np.ndarray,
    grid: np.ndarray,
    n_first: int,
    degree: int,
    summed: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write f at points, from degree 1 its two derivatives, for 2 its second ones (11, 12, 22).

    Derivatives are the kernels times the way to their center, so sums that are weighted by the
    centers' coordinates give them: of 1, x, x², y, xy and y². From the middle of the grid, so that
    little cancels, and no further than kernels are not zero.
    """
    n, n_tables = points.size // 2, degree + 1
    n_second = template.size // n_first
    middle_first = 0.5 * grid[2] * (n_first - 1)
    middle_second = 0.5 * grid[3] * (n_second - 1)
    table = np.empty(n_tables * template.size)
    for a in range(template.size):
        table[a] = template[a]
    for power in range(1, n_tables):
        for a in range(n_first):
            at = (power * n_first + a) * n_second
            for b in range(n_second):
                center = b * grid[3] - middle_second
                table[at + b] = table[at - template.size + b] * center
    product(table, right, n_tables * n_first, n_second, n, summed)
    for s in range(out.size):
        out[s] = 0.0
    for a in range(0, n_first, 2):
        # two rows at a time, which is faster; of an odd number the last one has none beside it
        b, weight_beside = (a + 1, 1.0) if a + 1 < n_first else (a, 0.0)
        kernel, beside, at = left[a * n : (a + 1) * n], left[b * n : (b + 1) * n], 0
        center, center_beside = a * grid[2] - middle_first, b * grid[2] - middle_first
        for power in range(n_tables):
            at_row = power * n_first * n
            row, row_beside = summed[at_row + a * n :], summed[at_row + b * n :]
            weight, other = 1.0, weight_beside
            for _ in range(n_tables - power):
                into = out[at : at + n]
                for s in range(n):
                    into[s] += weight * kernel[s] * row[s] + other * beside[s] * row_beside[s]
                weight *= center
                other *= center_beside
                at += n
    if degree == 0:
        return
    steep = 2.0 / (grid[4] * grid[4])
    reach_first = abs(middle_first) + FAR * grid[4]
    reach_second = abs(middle_second) + FAR * grid[4]
    for s in range(n):
        x = min(max(points[s] - grid[0] - middle_first, -reach_first), reach_first)
        y = min(max(points[n + s] - grid[1] - middle_second, -reach_second), reach_second)
        value, by_first = out[s], out[n + s]
        by_second = out[(1 + degree) * n + s]
        out[n + s] = steep * (by_first - value * x)
        if degree == 1:
            out[2 * n + s] = steep * (by_second - value * y)
        else:
            twice_first = out[2 * n + s] - (2.0 * by_first - value * x) * x
            twice_second = out[5 * n + s] - (2.0 * by_second - value * y) * y
            both = out[4 * n + s] - by_first * y - by_second * x + value * x * y
            out[2 * n + s] = steep * (by_second - value * y)
            out[3 * n + s] = steep * (steep * twice_first - value)
            out[4 * n + s] = steep * steep * both
            out[5 * n + s] = steep * (steep * twice_second - value)


@compiled_once(inner=True, uses=[template_loops_numba])
def along_field(
    weights: np.ndarray,
    sizes: np.ndarray,
    field_first: np.ndarray,
    field_second_transposed: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add Σ_s w_i(s) ψ_l(u_s) of weights for two axes, to one after the other."""
    n_rows, n_columns = sizes[_N_ROWS], sizes[_N_COLUMNS]
    first, second = sizes[_LANDMARKS_FIRST], sizes[_LANDMARKS_SECOND]
    table, found = np.empty(first * n_columns), np.empty(first * second)
    for axis in range(2):
        product(field_first, weights[axis * n_rows * n_columns :], first, n_rows, n_columns, table)
        product(table, field_second_transposed, first, n_columns, second, found)
        own = out[axis * first * second :]
        for a in range(found.size):
            own[a] += found[a]


@compiled_once(FUNCTION.signature, uses=[template_loops_numba])
def evaluate(
    k: int, x: np.ndarray, reals: np.ndarray, integers: np.ndarray, out: np.ndarray
) -> Any:
    """Return the log-density, and write what there is room for."""
    # nothing, the gradient, or it and the template at the points with its derivatives
    degree = 0 if out.size == 0 else 1 if out.size == x.size else 2
    sizes, places = integers[:_N_SIZES], integers[_N_SIZES:]
    grid, points = reals[places[0] : places[1]], reals[places[1] : places[2]]
    field_first, field_first_transposed = reals[places[2] :], reals[places[3] :]
    field_second, field_second_transposed = reals[places[4] :], reals[places[5] :]
    mean = reals[places[6] : places[7]]
    n, d, n_latents = points.size // 2, mean.size, x.size
    # one for all classes, or one each
    skipped = k * d * d if places[8] - places[7] > d * d else 0
    precision = reals[places[7] + skipped :]
    values, mask = reals[places[12] : places[13]], reals[places[13] : places[14]]
    n_channels = (places[11] - places[10]) // (places[10] - places[9])
    n_basis = (places[12] - places[11]) // (places[11] - places[10])
    template = reals[places[11] + k * n_channels * n_basis :]
    # the scores of factors are the last of what the prior of the warp is for
    n_first, n_factors = sizes[_N_FIRST], sizes[_N_FACTORS]
    n_kernels, score_at = n_basis // (1 + n_factors), d - n_factors
    n_second = n_kernels // n_first
    scale_at, motion_at, field_at = sizes[_SCALE_AT], sizes[_MOTION_AT], sizes[_FIELD_AT]
    scale = np.exp(x[scale_at]) if scale_at >= 0 else 1.0
    # what is large is not allocated: memory that is given back and taken again is slow
    noise_precision, scratch = reals[places[14] : places[15]], reals[places[15] :]

    warped = np.empty(2 * n)
    warp(x, sizes, points, field_first_transposed, field_second, warped)

    deviations = reals[places[8] + k * d :]
    standard, steep = np.empty(d), np.empty(d)
    found = prior(x, mean, precision, deviations, standard, steep) + reals[places[9] + k]
    if scale_at >= 0:
        found += grid[7] + grid[5] * x[scale_at] - grid[6] * scale

    # the image given where its points are taken to
    left, scratch = scratch[: n_first * n], scratch[n_first * n :]
    right, summed = scratch[: n_second * n], scratch[n_second * n :]
    kernels(warped[:n], grid[0], grid[2], grid[4], left)
    kernels(warped[n:], grid[1], grid[3], grid[4], right)
    length = (degree + 1) * (degree + 2) // 2 * n
    # of each factor its value, and its two derivatives for a curvature
    of_factor = (0 if degree == 0 else 1 if degree == 1 else 3) * n
    stride = length + n_factors * of_factor
    derivatives = out[n_latents:] if degree == 2 else np.empty(n_channels * stride)
    away, weights, by_score = np.empty(n), np.zeros(2 * n), np.zeros(n_factors)
    coefficients = np.empty(n_kernels)
    by_scale = grid[5] - grid[6] * scale
    for c in range(n_channels):
        own = derivatives[c * stride : c * stride + length]
        for a in range(n_kernels):
            coefficients[a] = template[c * n_basis + a]
        for r in range(n_factors):
            at = c * n_basis + (1 + r) * n_kernels
            for a in range(n_kernels):
                coefficients[a] += x[score_at + r] * template[at + a]
        template_values(left, right, warped, coefficients, grid, n_first, degree, summed, own)
        if scale_at >= 0:
            for s in range(length):
                own[s] *= scale
        variance = reals[0] * reals[places[10] + k * n_channels + c]
        inverse = 1.0 / variance
        seen, joins = mask[c * n : (c + 1) * n], noise_precision[c * n * n : (c + 1) * n * n]
        found += likelihood(values[c * n : (c + 1) * n], seen, joins, own, variance, away)
        if degree == 0:
            continue
        for s in range(n):
            residual = inverse * away[s]
            weights[s] += residual * own[n + s]
            weights[n + s] += residual * own[2 * n + s]
        if scale_at >= 0:
            for s in range(n):
                by_scale += inverse * away[s] * own[s]
        for r in range(n_factors):
            at = c * n_basis + (1 + r) * n_kernels
            for a in range(n_kernels):
                coefficients[a] = template[at + a]
            own = derivatives[c * stride + length + r * of_factor :][:of_factor]
            template_values(
                left, right, warped, coefficients, grid, n_first, degree - 1, summed, own
            )
            for s in range(n):
                by_score[r] += inverse * away[s] * own[s]
    if degree == 0:
        return found

    for a in range(d):
        out[a] = -steep[a] / deviations[a]
    for r in range(n_factors):
        out[score_at + r] += by_score[r]
    if motion_at >= 0:
        ahead, aside, spread, spin = 0.0, 0.0, 0.0, 0.0
        for s in range(n):
            u, v = weights[s], weights[n + s]
            ahead += u
            aside += v
            spread += u * points[s] + v * points[n + s]
            spin += v * points[s] - u * points[n + s]
        motion, own = x[motion_at:], out[motion_at:]
        sine, cosine = np.sin(motion[0]), np.cos(motion[0])
        # as seen from before the turn
        along, across = cosine * ahead + sine * aside, cosine * aside - sine * ahead
        own[0] += (motion[4] - motion[2]) * across - (motion[5] - motion[3]) * along
        own[0] += motion[1] * (cosine * spin - sine * spread)
        own[1] += cosine * spread + sine * spin
        own[2] += ahead - along
        own[3] += aside - across
        own[4] += along
        own[5] += across
    if field_at >= 0:
        along_field(weights, sizes, field_first, field_second_transposed, out[field_at:])
    if scale_at >= 0:
        out[scale_at] = by_scale
    return found
