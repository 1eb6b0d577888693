"""Density and gradient of curves under templates, compiled once for all of them.

What `model` declares as a graph stands here as loops, for templates of Gaussian kernels on a line
that a `TimeWarp` moves. As in `image_loops_numba`, nothing depends on the number of classes,
points, kernels or nodes but how long loops are.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_mcoem.compiling.compiled_once import compiled_once
from pymc_mcoem.compiling.flat_functions_numba import FUNCTION
from pymc_mcoem.templates import template_loops_numba
from pymc_mcoem.templates.template_loops_numba import exponentials, likelihood, prior, product

__all__ = ["evaluate"]

# The real numbers, after the settings:
#  0 constants: start and length of the interval, bandwidth; shape, rate and log-constant of the
#    scale's prior
#  1, 2 kernels of the warp at its nodes, (n_nodes, n_parameters), and the same transposed
#  3 whole: weights of the nodes in the integral over the outer interval
#  4 centers of the template's kernels
#  5, 6 mean and precision of the warp's prior, one precision for all classes or one each
#  7 deviations  8 log_prior  9 noise_variance  10 templates, a class after the other, and within
#    it a channel after the other  11 values  12 mask, a channel after the other
# 13 precision of correlated noise of variance one, (n_channels, n_points, n_points), or nothing
# 14 weights of the nodes in the integrals up to the points, (n_nodes, n_points), then scratch


@compiled_once(inner=True, uses=[template_loops_numba])
def template_values(
    points: np.ndarray,
    template: np.ndarray,
    centers: np.ndarray,
    bandwidth: float,
    degree: int,
    table: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write f at points, from degree 1 on f′, for 2 f″.

    Parameters
    ----------
    table : ndarray of shape (2 * n_basis * n_points,)
        Overwritten.
    """
    n, steep = points.size, 2.0 / (bandwidth * bandwidth)
    exponent, kernels = table[: centers.size * n], table[centers.size * n :]
    for a in range(centers.size):
        row = exponent[a * n :]
        for s in range(n):
            away = (points[s] - centers[a]) / bandwidth
            row[s] = -away * away
    exponentials(exponent, kernels)
    for s in range(out.size):
        out[s] = 0.0
    for a in range(centers.size):
        row, weight = kernels[a * n :], template[a]
        for s in range(n):
            out[s] += weight * row[s]
        if degree > 0:
            slope = out[n:]
            for s in range(n):
                slope[s] += (weight * row[s]) * (steep * (centers[a] - points[s]))
        if degree > 1:
            bend = out[2 * n :]
            for s in range(n):
                way = steep * (centers[a] - points[s])
                bend[s] += (weight * row[s]) * (way * way - steep)


@compiled_once(FUNCTION.signature, uses=[template_loops_numba])
def evaluate(k: int, x: np.ndarray, reals: np.ndarray, places: np.ndarray, out: np.ndarray) -> Any:
    """Return the log-density, and write what there is room for."""
    # nothing, the gradient, or it and the template at the points with its derivatives
    degree = 0 if out.size == 0 else 1 if out.size == x.size else 2
    constants = reals[places[0] : places[1]]
    kernels, kernels_transposed = reals[places[1] :], reals[places[2] :]
    whole, centers = reals[places[3] : places[4]], reals[places[4] : places[5]]
    mean = reals[places[5] : places[6]]
    values, mask = reals[places[11] : places[12]], reals[places[12] : places[13]]
    n_channels = (places[10] - places[9]) // (places[9] - places[8])
    n, d, n_nodes, n_basis = values.size // n_channels, mean.size, whole.size, centers.size
    # one for all classes, or one each
    skipped = k * d * d if places[7] - places[6] > d * d else 0
    precision = reals[places[6] + skipped :]
    deviations = reals[places[7] + k * d :]
    template = reals[places[10] + k * n_channels * n_basis :]
    noise_precision = reals[places[13] : places[14]]
    weights, table = reals[places[14] :], reals[places[14] + n_nodes * n :]
    table = table[: 2 * n_basis * n]
    one = d // d
    has_scale = x.size > d
    scale = np.exp(x[d]) if has_scale else 1.0

    standard, steep = np.empty(d), np.empty(d)
    found = prior(x, mean, precision, deviations, standard, steep) + reals[places[8] + k]
    if has_scale:
        found += constants[5] + constants[3] * x[d] - constants[4] * scale

    # the points on the template's axis
    speed, points = np.empty(n_nodes), np.empty(n)
    exponent = np.empty(n_nodes)
    product(x, kernels_transposed, one, d, n_nodes, exponent)
    for i in range(n_nodes):
        # exponentials are not those of larger numbers
        if not exponent[i] < 700.0:
            # a trajectory that came here must not go on by the gradient of another point
            for a in range(out.size):
                out[a] = np.nan
            return np.nan
    exponentials(exponent, speed)
    area = 0.0
    for i in range(n_nodes):
        area += whole[i] * speed[i]
    product(speed, weights, one, n_nodes, n, points)
    for s in range(n):
        points[s] = constants[0] + constants[1] * (points[s] / area)

    length = (degree + 1) * n
    derivatives = out[x.size :] if degree == 2 else np.empty(n_channels * length)
    away, slope = np.empty(n), np.zeros(n)
    by_scale = constants[3] - constants[4] * scale
    for c in range(n_channels):
        own = derivatives[c * length : (c + 1) * length]
        coefficients = template[c * n_basis : (c + 1) * n_basis]
        template_values(points, coefficients, centers, constants[2], degree, table, own)
        if has_scale:
            for s in range(length):
                own[s] *= scale
        variance = reals[0] * reals[places[9] + k * n_channels + c]
        seen, joins = mask[c * n : (c + 1) * n], noise_precision[c * n * n : (c + 1) * n * n]
        found += likelihood(values[c * n : (c + 1) * n], seen, joins, own, variance, away)
        if degree == 0:
            continue
        for s in range(n):
            slope[s] += away[s] / variance * own[n + s]
        if has_scale:
            for s in range(n):
                by_scale += away[s] * own[s] / variance
    if degree == 0:
        return found

    moved, total = np.empty(n_nodes), 0.0
    for s in range(n):
        total += slope[s] * (points[s] - constants[0])
    product(weights, slope, n_nodes, n, one, moved)
    for i in range(n_nodes):
        moved[i] = speed[i] * (constants[1] * moved[i] - whole[i] * total) / area
    product(moved, kernels, one, n_nodes, d, out)
    for a in range(d):
        out[a] -= steep[a] / deviations[a]
    if has_scale:
        out[d] = by_scale
    return found
