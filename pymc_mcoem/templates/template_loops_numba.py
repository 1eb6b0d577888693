"""Loops that densities of images and of curves call, compiled once for all of them.

Vectors alone are passed around, matrices as their rows one after another, so that numba compiles
each loop once.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_mcoem.compiling.compiled_once import compiled_once

__all__ = ["exponentials", "likelihood", "prior", "product"]

#: As in `model`.
_MISSING_WEIGHT = 1e-200


@compiled_once(inner=True)
def product(
    left: np.ndarray, right: np.ndarray, n_rows: int, n_inner: int, n_columns: int, out: np.ndarray
) -> None:
    """Write the product of two matrices, by BLAS."""
    np.dot(
        left[: n_rows * n_inner].reshape((n_rows, n_inner)),
        right[: n_inner * n_columns].reshape((n_inner, n_columns)),
        out[: n_rows * n_columns].reshape((n_rows, n_columns)),
    )


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
def prior(
    x: np.ndarray,
    mean: np.ndarray,
    precision: np.ndarray,
    deviations: np.ndarray,
    standard: np.ndarray,
    steep: np.ndarray,
) -> Any:
    """Return −zᵀPz / 2 of z = (x − mean) / deviations, and write z and Pz."""
    d = mean.size
    for a in range(d):
        standard[a] = (x[a] - mean[a]) / deviations[a]
    # not the number one itself, for which numba would compile the product again
    product(standard, precision, d // d, d, d, steep)
    found = 0.0
    for a in range(d):
        found -= 0.5 * standard[a] * steep[a]
    return found


@compiled_once(inner=True)
def likelihood(
    values: np.ndarray,
    mask: np.ndarray,
    noise_precision: np.ndarray,
    fitted: np.ndarray,
    variance: float,
    weighted: np.ndarray,
) -> Any:
    """Return the log-density of what is observed but for its correlation's determinant.

    Write the residuals times the precision of the noise of variance one, which is the mask where
    there is no `noise_precision`.
    """
    n, squares, seen = values.size, 0.0, 0.0
    for s in range(n):
        weight, away = max(mask[s], _MISSING_WEIGHT), values[s] - fitted[s]
        squares += weight * away * away
        seen += weight
        weighted[s] = mask[s] * away
    if noise_precision.size > 0:
        seen_alone = weighted.copy()
        product(noise_precision, seen_alone, n, n, n // n, weighted)
        squares = 0.0
        for s in range(n):
            squares += seen_alone[s] * weighted[s]
    return -0.5 * (squares / variance + seen * np.log(2.0 * np.pi * variance))
