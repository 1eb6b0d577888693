"""Density, derivatives and statistics of images under templates, compiled once for all of them.

What `model` declares as a graph stands here as loops, for templates on an evenly spaced grid that a
rigid motion, a field of displacements on a grid, or both move. Nothing depends on the number of
classes, pixels or kernels but how long loops are.

numba compiles a function again for every number that is written in a call of it, and again within
whatever calls it. So there is one door, vectors alone are passed around (matrices as their rows one
after another), and what is called takes what it is told from arrays. Inner loops run along rows and
add up nothing within one: they are vector instructions although sums are taken as they are written.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_mcoem.compiling.compiled_once import compiled_once
from pymc_mcoem.compiling.flat_functions_numba import FUNCTION

__all__ = ["ARRAYS", "FAR", "SIZES", "evaluate", "exponentials", "kernels"]

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
) = range(len(SIZES))
_N_SIZES = len(SIZES)

#: The arrays in the real numbers, in order; their places stand in the integers.
ARRAYS = (
    "grid",  # starts, spacings and bandwidth; shape, rate and log-constant of the scale's prior
    "points",  # coordinates, an axis after the other
    "field_first",  # kernels of the field along each axis, and the same transposed
    "field_first_transposed",
    "field_second",
    "field_second_transposed",
    "pairs_first",  # products of two of them, of each pair once
    "pairs_second_transposed",
    "mean",
    "precision",
    "deviations",
    "log_prior",
    "noise_variance",
    "templates",
    "values",
    "mask",
)

#: Bandwidths from a center beyond which its kernel is zero.
FAR = 27.0
#: As in `model`.
_MISSING_WEIGHT = 1e-200


@compiled_once(inner=True)
def product(
    left: np.ndarray, right: np.ndarray, n_rows: int, n_inner: int, n_columns: int, out: np.ndarray
) -> None:
    """Add to a matrix the product of two."""
    for i in range(0, n_rows, 2):
        # two rows at a time, for what they share; the last of an odd number alone
        row, other = out[i * n_columns : (i + 1) * n_columns], out[(i + 1) * n_columns :]
        of_row, of_other = left[i * n_inner :], left[(i + 1) * n_inner :]
        if i + 1 == n_rows:
            of_other, other = of_row, np.zeros(n_columns)
        for t in range(0, n_inner - 3, 4):
            a, b, c, d = of_row[t], of_row[t + 1], of_row[t + 2], of_row[t + 3]
            e, f, g, h = of_other[t], of_other[t + 1], of_other[t + 2], of_other[t + 3]
            first, second = right[t * n_columns :], right[(t + 1) * n_columns :]
            third, fourth = right[(t + 2) * n_columns :], right[(t + 3) * n_columns :]
            for j in range(row.size):
                w, x, y, z = first[j], second[j], third[j], fourth[j]
                row[j] += a * w + b * x + c * y + d * z
                other[j] += e * w + f * x + g * y + h * z
        for t in range(n_inner - n_inner % 4, n_inner):
            a, e, first = of_row[t], of_other[t], right[t * n_columns :]
            for j in range(row.size):
                row[j] += a * first[j]
                other[j] += e * first[j]


@compiled_once(inner=True)
def exponentials(values: np.ndarray, out: np.ndarray) -> None:
    """Write exp of a vector, within a unit in the last place; exp(−708) for anything below −708.

    ``np.exp`` calls a library number by number. This is a polynomial and a shift of bits, which
    are compiled to vector instructions. Values must be below 709; what is not a number stays so.
    """
    powers = np.empty(values.size)
    bits = powers.view(np.int64)
    for s in range(values.size):
        x = max(values[s], -708.0) if values[s] == values[s] else values[s]
        # x / log 2 rounded, in the last bits: adding 1.5 · 2⁵² leaves no room for a fraction
        shifted = x * 1.4426950408889634 + 6755399441055744.0
        powers[s] = shifted
        k = shifted - 6755399441055744.0
        # log 2 in two parts, the first of so few bits that its product is exact
        r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10
        # Taylor's polynomial of degree 13 on |r| ≤ log(2) / 2, by fours
        r2 = r * r
        r4 = r2 * r2
        a = (1 / 6 + r * (1 / 24)) + r2 * (1 / 120 + r * (1 / 720))
        b = (1 / 5040 + r * (1 / 40320)) + r2 * (1 / 362880 + r * (1 / 3628800))
        c = (1 / 39916800 + r * (1 / 479001600)) + r2 * (1 / 6227020800)
        out[s] = 1.0 + (r + (0.5 * r2 + r2 * r * (a + r4 * (b + r4 * c))))
    for s in range(values.size):
        bits[s] = (bits[s] + 1023) << 52
    for s in range(values.size):
        out[s] *= powers[s]


@compiled_once(inner=True)
def kernels(column: np.ndarray, start: float, spacing: float, bandwidth: float, out: Any) -> None:
    """Write exp(−(r_a − u_s)² / ν²) of evenly spaced centers r_a, (length, n_points).

    In blocks of neighboring centers. From the middle one outwards each kernel is the one before
    times a ratio, and the ratio itself times a constant. A block ends eight bandwidths from its
    middle, so that nothing that matters underflows there.
    """
    n = column.size
    length, scaled = out.size // n, spacing / bandwidth
    half = min(int(8.0 / abs(scaled)), 16)
    away, exponent, ratio, moving = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    first_ratio, change = np.exp(-scaled * scaled), np.exp(-2.0 * scaled * scaled)
    for begin in range(0, length, 2 * half + 1):
        end = min(begin + 2 * half + 1, length)
        middle = begin + (end - begin) // 2
        for s in range(n):
            distance = (column[s] - (start + middle * spacing)) / bandwidth
            # Beyond it kernels are zero, and ratios must not become infinite. NaN stays NaN.
            distance = FAR if distance > FAR else distance
            distance = -FAR if distance < -FAR else distance
            away[s] = 2.0 * distance * scaled
            exponent[s] = -distance * distance
        exponentials(exponent, out[middle * n : (middle + 1) * n])
        exponentials(away, ratio)
        for direction in range(-1, 2, 2):
            for s in range(n):
                moving[s] = first_ratio * (ratio[s] if direction > 0 else 1.0 / ratio[s])
            for a in range(middle + direction, end if direction > 0 else begin - 1, direction):
                before, after = out[(a - direction) * n :], out[a * n : (a + 1) * n]
                for s in range(n):
                    after[s] = before[s] * moving[s]
                    moving[s] *= change


@compiled_once(inner=True)
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
        table = np.zeros(both * n_columns)
        product(x[at:], field_second, both, second, n_columns, table)
        for axis in range(2):
            own = table[axis * first * n_columns :]
            product(field_first_transposed, own, n_rows, first, n_columns, out[axis * n :])


@compiled_once(inner=True)
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
    for a in range(n_first):
        for b in range(n_second):
            value, center = template[a * n_second + b], b * grid[3] - middle_second
            for power in range(n_tables):
                table[(power * n_first + a) * n_second + b] = value
                value *= center
    for a in range(n_tables * n_first * n):
        summed[a] = 0.0
    product(table, right, n_tables * n_first, n_second, n, summed)
    for s in range(out.size):
        out[s] = 0.0
    for a in range(n_first):
        kernel, center, at = left[a * n : (a + 1) * n], a * grid[2] - middle_first, 0
        for power in range(n_tables):
            row, weight = summed[(power * n_first + a) * n :], 1.0
            for _ in range(n_tables - power):
                into = out[at : at + n]
                for s in range(n):
                    into[s] += weight * kernel[s] * row[s]
                weight *= center
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


@compiled_once(inner=True)
def affine(x: np.ndarray, out: np.ndarray) -> None:
    """Write the derivatives of a rigid motion by its parameters, (6, 2, 3).

    As coefficients of 1 and the coordinates of a point, an axis after the other.
    """
    sine, cosine, zoom = np.sin(x[0]), np.cos(x[0]), x[1]
    first, second = x[4] - x[2], x[5] - x[3]
    for a in range(out.size):
        out[a] = 0.0
    out[0], out[1], out[2] = -(sine * first + cosine * second), -sine * zoom, -cosine * zoom
    out[3], out[4], out[5] = cosine * first - sine * second, cosine * zoom, -sine * zoom
    out[7], out[8], out[10], out[11] = cosine, -sine, sine, cosine
    out[12], out[15], out[18], out[21] = 1.0 - cosine, -sine, sine, 1.0 - cosine
    out[24], out[27], out[30], out[33] = cosine, sine, -sine, cosine


@compiled_once(inner=True)
def along_field(
    weights: np.ndarray,
    n: int,
    sizes: np.ndarray,
    field_first: np.ndarray,
    field_second_transposed: np.ndarray,
    n_first: int,
    n_second: int,
    out: np.ndarray,
) -> None:
    """Add Σ_s w_i(s) ψ_l(u_s) of n rows of weights, for n_first × n_second kernels, to n rows."""
    n_rows, n_columns = sizes[_N_ROWS], sizes[_N_COLUMNS]
    table = np.empty(n_first * n_columns)
    for i in range(n):
        for a in range(table.size):
            table[a] = 0.0
        product(field_first, weights[i * n_rows * n_columns :], n_first, n_rows, n_columns, table)
        own = out[i * n_first * n_second :]
        product(table, field_second_transposed, n_first, n_columns, n_second, own)


@compiled_once(inner=True)
def bend_motion(
    x: np.ndarray,
    slopes: np.ndarray,
    bends: np.ndarray,
    points: np.ndarray,
    sizes: np.ndarray,
    field_first: np.ndarray,
    field_second_transposed: np.ndarray,
    by: np.ndarray,
    matrix: np.ndarray,
    n_latents: int,
    factor: float,
) -> None:
    """Add the second derivatives by the rigid motion, and by it and the field, times a factor.

    The motion is linear in all its parameters but the angle, with which it turns.
    """
    n, at, field = points.size // 2, sizes[_MOTION_AT], sizes[_FIELD_AT]
    six = by.size // 6
    # Σ_s w(s) of 1 and the coordinates, and of their products
    of_slopes, of_bends, monomials = np.zeros(six), np.zeros(by.size), np.ones(3)
    for s in range(n):
        monomials[1], monomials[2] = points[s], points[n + s]
        for p in range(3):
            of_slopes[p] += slopes[s] * monomials[p]
            of_slopes[3 + p] += slopes[n + s] * monomials[p]
            for q in range(3):
                pair = monomials[p] * monomials[q]
                for axis in range(2):
                    for other in range(2):
                        place = (3 * axis + p) * 6 + 3 * other + q
                        of_bends[place] += bends[(axis + other) * n + s] * pair
    half = np.zeros(by.size)
    product(by, of_bends, six, six, six, half)
    for i in range(6):
        for j in range(6):
            total = 0.0
            for p in range(6):
                total += half[6 * i + p] * by[6 * j + p]
            matrix[(at + i) * n_latents + at + j] += factor * total
    sine, cosine = np.sin(x[at]), np.cos(x[at])
    along, across = of_slopes[1] + of_slopes[5], of_slopes[4] - of_slopes[2]
    turns = np.zeros(six)
    for p in range(3):
        turns[0] += 0.5 * (of_slopes[3 + p] * by[p] - of_slopes[p] * by[3 + p])
    turns[1] = cosine * across - sine * along
    turns[4] = cosine * of_slopes[3] - sine * of_slopes[0]
    turns[5] = -(cosine * of_slopes[0] + sine * of_slopes[3])
    turns[2], turns[3] = -turns[4], -turns[5]
    for i in range(6):
        matrix[at * n_latents + at + i] += factor * turns[i]
        matrix[(at + i) * n_latents + at] += factor * turns[i]
    if field < 0:
        return
    first, second = sizes[_LANDMARKS_FIRST], sizes[_LANDMARKS_SECOND]
    landmarks = first * second
    weighted = np.empty(2 * six * n)
    for axis in range(2):
        for p in range(3):
            for other in range(2):
                into, of = weighted[((3 * axis + p) * 2 + other) * n :], bends[(axis + other) * n :]
                for s in range(n):
                    into[s] = of[s] if p == 0 else of[s] * points[(p - 1) * n + s]
    sums, crossed = np.zeros(2 * six * landmarks), np.zeros(2 * six * landmarks)
    twelve = six + six
    along_field(weighted, twelve, sizes, field_first, field_second_transposed, first, second, sums)
    product(by, sums, six, six, landmarks + landmarks, crossed)
    for i in range(6):
        for b in range(2 * landmarks):
            value = factor * crossed[i * 2 * landmarks + b]
            matrix[(at + i) * n_latents + field + b] += value
            matrix[(field + b) * n_latents + at + i] += value


@compiled_once(inner=True)
def bend_field(
    sums: np.ndarray, sizes: np.ndarray, matrix: np.ndarray, n_latents: int, factor: float
) -> None:
    """Add the second derivatives by the field, times a factor.

    ψ_p ψ_q of landmarks on a grid is a product of one factor an axis, the same for (p, q) and
    (q, p). `sums` has one for every pair of axes and such pairs: each goes where it belongs.
    """
    at, first, second = sizes[_FIELD_AT], sizes[_LANDMARKS_FIRST], sizes[_LANDMARKS_SECOND]
    n_first, n_second = first * (first + 1) // 2, second * (second + 1) // 2
    for axis in range(2):
        for other in range(2):
            own = sums[(axis + other) * n_first * n_second :]
            for p in range(first):
                for q in range(first):
                    low, high = min(p, q), max(p, q)
                    of_first = (low * (2 * first - low + 1)) // 2 + high - low
                    for r in range(second):
                        row = (at + (axis * first + p) * second + r) * n_latents
                        for t in range(second):
                            low, high = min(r, t), max(r, t)
                            of_second = (low * (2 * second - low + 1)) // 2 + high - low
                            column = at + (other * first + q) * second + t
                            matrix[row + column] += factor * own[of_first * n_second + of_second]


@compiled_once(inner=True)
def kernel_sums(
    points: np.ndarray,
    weights: np.ndarray,
    grid: np.ndarray,
    share: float,
    n_first: int,
    n_second: int,
    scratch: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write Σ_s w_s φ_l(u_s) of kernels on a grid of a share of the spacing.

    With a half of it the bandwidth is smaller by √2: the product of two kernels is one halfway
    between them.
    """
    n, bandwidth = weights.size, grid[4] * np.sqrt(share)
    # rows that are as long as a few vector instructions
    width = (n_second + 7) // 8 * 8
    left, scratch = scratch[: n_first * n], scratch[n_first * n :]
    right, scratch = scratch[: n_second * n], scratch[n_second * n :]
    kernels(points[:n], grid[0], share * grid[2], bandwidth, left)
    kernels(points[n:], grid[1], share * grid[3], bandwidth, right)
    turned, sums = scratch[: n * width], np.zeros(n_first * width)
    for s in range(n * width):
        turned[s] = 0.0
    for s in range(n):
        for b in range(n_second):
            turned[s * width + b] = weights[s] * right[b * n + s]
    product(left, turned, n_first, n, width, sums)
    for a in range(n_first):
        for b in range(n_second):
            out[a * n_second + b] = sums[a * width + b]


@compiled_once(FUNCTION.signature)
def evaluate(
    k: int, x: np.ndarray, reals: np.ndarray, integers: np.ndarray, out: np.ndarray
) -> Any:
    """Return the log-density, and write what there is room for."""
    temperature, share = reals[0], reals[1]
    what = 0 if out.size == 0 else 1 if out.size == x.size else 2
    if reals[2] > 0.0:
        what = 3
    sizes, places = integers[:_N_SIZES], integers[_N_SIZES:]
    grid, points = reals[places[0] : places[1]], reals[places[1] : places[2]]
    field_first, field_first_transposed = reals[places[2] :], reals[places[3] :]
    field_second, field_second_transposed = reals[places[4] :], reals[places[5] :]
    mean, precision = reals[places[8] : places[9]], reals[places[9] :]
    n, d, n_latents = points.size // 2, mean.size, x.size
    values, mask = reals[places[14] : places[15]], reals[places[15] : places[16]]
    n_basis = (places[14] - places[13]) // (places[13] - places[12])
    template = reals[places[13] + k * n_basis : places[13] + (k + 1) * n_basis]
    n_first = sizes[_N_FIRST]
    n_second = n_basis // n_first
    first, second = sizes[_LANDMARKS_FIRST], sizes[_LANDMARKS_SECOND]
    scale_at, motion_at, field_at = sizes[_SCALE_AT], sizes[_MOTION_AT], sizes[_FIELD_AT]
    scale = np.exp(x[scale_at]) if scale_at >= 0 else 1.0
    # what is large is not allocated: memory that is given back and taken again is slow
    scratch = reals[places[16] :]

    warped = np.empty(2 * n)
    warp(x, sizes, points, field_first_transposed, field_second, warped)
    weights = np.empty(2 * n)
    if what == 3:
        squares, seen = 0.0, 0.0
        for s in range(n):
            weights[s] = scale * values[s] * mask[s]
            weights[n + s] = scale * scale * mask[s]
            squares += (values[s] * mask[s]) ** 2
            seen += mask[s]
        at = 0
        for round in range(2):
            rows, columns = (round + 1) * n_first - round, (round + 1) * n_second - round
            into = out[at : at + rows * columns]
            own = weights[round * n : (round + 1) * n]
            kernel_sums(warped, own, grid, 1.0 / (1 + round), rows, columns, scratch, into)
            at += into.size
        if field_at >= 0:
            learned = 2 * first * second
            z = np.empty(learned)
            for a in range(learned):
                z[a] = x[field_at + a] - mean[field_at + a]
            for a in range(learned):
                row = out[at : at + learned]
                for b in range(learned):
                    row[b] = z[a] * z[b]
                at += learned
        out[at], out[at + 1] = squares, seen
        if scale_at >= 0:
            out[at + 2], out[at + 3] = scale, x[scale_at]
        return 0.0

    # the prior and its gradient
    deviations = reals[places[10] + k * d :]
    standard, steep = np.empty(d), np.zeros(d)
    for a in range(d):
        standard[a] = (x[a] - mean[a]) / deviations[a]
    one = 1 + 0 * d
    product(standard, precision, one, d, d, steep)
    total = 0.0
    for a in range(d):
        total -= 0.5 * standard[a] * steep[a]
        steep[a] = -steep[a] / deviations[a]
    found = total + reals[places[11] + k]
    if scale_at >= 0:
        found += grid[7] + grid[5] * x[scale_at] - grid[6] * scale

    # the image given where its points are taken to
    left, scratch = scratch[: n_first * n], scratch[n_first * n :]
    right, summed = scratch[: n_second * n], scratch[n_second * n :]
    kernels(warped[:n], grid[0], grid[2], grid[4], left)
    kernels(warped[n:], grid[1], grid[3], grid[4], right)
    derivatives = np.empty((what + 1) * (what + 2) // 2 * n)
    template_values(left, right, warped, template, grid, n_first, what, summed, derivatives)
    if scale_at >= 0:
        for s in range(derivatives.size):
            derivatives[s] *= scale
    variance = temperature * reals[places[12] + k]
    inverse = 1.0 / variance
    squares, seen = 0.0, 0.0
    for s in range(n):
        weight, away = max(mask[s], _MISSING_WEIGHT), values[s] - derivatives[s]
        squares += weight * away * away
        seen += weight
    found -= 0.5 * (squares * inverse + seen * np.log(2.0 * np.pi * variance))
    if what == 0:
        return found

    ahead, aside = derivatives[n : 2 * n], derivatives[2 * n : 3 * n]
    by = np.empty(36)
    if motion_at >= 0:
        affine(x[motion_at:], by)
    # the gradient; then, of the curvature, the row of the scale
    for round in range(1 if what == 1 or scale_at < 0 else 2):
        of_scale = 0.0
        for s in range(n):
            residual = mask[s] * (values[s] - derivatives[s])
            if round == 1:
                residual = share * residual - mask[s] * derivatives[s]
            residual *= inverse
            weights[s], weights[n + s] = residual * ahead[s], residual * aside[s]
            of_scale += residual * derivatives[s]
        into = np.zeros(n_latents)
        if motion_at >= 0:
            for axis in range(2):
                total, by_row, by_column = 0.0, 0.0, 0.0
                for s in range(n):
                    total += weights[axis * n + s]
                    by_row += weights[axis * n + s] * points[s]
                    by_column += weights[axis * n + s] * points[n + s]
                for i in range(6):
                    into[motion_at + i] += (
                        by[6 * i + 3 * axis] * total
                        + by[6 * i + 3 * axis + 1] * by_row
                        + by[6 * i + 3 * axis + 2] * by_column
                    )
        if field_at >= 0:
            two = 2 + 0 * d
            along_field(
                weights,
                two,
                sizes,
                field_first,
                field_second_transposed,
                first,
                second,
                into[field_at:],
            )
        if round == 0:
            for a in range(d):
                out[a] = into[a] + steep[a]
            if scale_at >= 0:
                out[scale_at] = of_scale + grid[5] - grid[6] * scale
        else:
            curvature = out[n_latents:]
            for a in range(d):
                curvature[a * n_latents + scale_at] = -into[a]
                curvature[scale_at * n_latents + a] = -into[a]
            curvature[scale_at * n_latents + scale_at] = grid[6] * scale - of_scale
    if what == 1:
        return found

    curvature, metric = out[n_latents:], out[n_latents + n_latents * n_latents :]
    for a in range(d):
        for b in range(d):
            value = precision[a * d + b] / (deviations[a] * deviations[b])
            curvature[a * n_latents + b] = value
            metric[a * n_latents + b] = value
    if scale_at >= 0:
        for a in range(d):
            metric[a * n_latents + scale_at] = 0.0
            metric[scale_at * n_latents + a] = 0.0
        metric[scale_at * n_latents + scale_at] = grid[5]
    bends = np.empty(3 * n)
    for s in range(n):
        residual = share * mask[s] * (values[s] - derivatives[s])
        weights[s], weights[n + s] = residual * ahead[s], residual * aside[s]
        bends[s] = residual * derivatives[3 * n + s] - mask[s] * ahead[s] * ahead[s]
        bends[n + s] = residual * derivatives[4 * n + s] - mask[s] * ahead[s] * aside[s]
        bends[2 * n + s] = residual * derivatives[5 * n + s] - mask[s] * aside[s] * aside[s]
    if motion_at >= 0:
        bend_motion(
            x,
            weights,
            bends,
            points,
            sizes,
            field_first,
            field_second_transposed,
            by,
            curvature,
            n_latents,
            -inverse,
        )
    if field_at >= 0:
        n_first, n_second = first * (first + 1) // 2, second * (second + 1) // 2
        three = 3 + 0 * d
        sums = np.zeros(3 * n_first * n_second)
        along_field(
            bends,
            three,
            sizes,
            reals[places[6] :],
            reals[places[7] :],
            n_first,
            n_second,
            sums,
        )
        bend_field(sums, sizes, curvature, n_latents, -inverse)
    return found
