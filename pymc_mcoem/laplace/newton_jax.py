"""Damped Newton steps and factors of precisions for many searches at once, in JAX.

Importing this module imports JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pymc_mcoem.laplace.newton import MOST_DAMPING

__all__ = ["by_differences", "damped_steps", "regular_factors"]


def by_differences(
    slope: Callable[[Any], tuple[Any, Any]], x: Any, guess: Any
) -> tuple[Any, Any, Any, Any]:
    """Return log-density, gradient, curvature and its diagonal at x, by differences of gradients.

    As `pymc_mcoem.density.evaluations.Evaluations` makes them.

    Parameters
    ----------
    slope : callable
        Returns the log-density and the gradient at a point ``(n,)``.
    x : array of shape (n,)
    guess : array of shape (n, n)
        Guess of the curvature, which sets the distances of the differences.
    """
    size, bend = jnp.maximum(1.0, jnp.abs(x)), jnp.abs(jnp.diagonal(guess))
    spread = jnp.where(bend > 0.0, 1.0 / jnp.sqrt(bend), size)
    # the cube root of a rounding is best
    share = 1e-4 if x.dtype == np.float64 else 5e-3
    steps = share * jnp.minimum(jnp.maximum(spread, 1e-6 * size), size)
    n = len(x)
    points = jnp.concatenate([x[None], x + jnp.diag(steps), x - jnp.diag(steps)])
    heights, slopes = jax.vmap(slope)(points)
    forward = (slopes[0] - slopes[1 : n + 1]) / steps[:, None]
    backward = (slopes[n + 1 :] - slopes[0]) / steps[:, None]
    ahead, behind = jnp.abs(jnp.diagonal(forward)), jnp.abs(jnp.diagonal(backward))
    apart = jnp.abs(ahead - behind) > 0.5 * jnp.maximum(ahead, behind)
    here, there = jnp.isfinite(heights[1 : n + 1]), jnp.isfinite(heights[n + 1 :])
    weight = jnp.where(apart, ahead < behind, 0.5)
    weight = jnp.where(here == there, weight, here)[:, None]
    bent = jnp.where(weight > 0, weight * forward, 0.0)
    bent += jnp.where(weight < 1, (1 - weight) * backward, 0.0)
    matrix = 0.5 * (bent + bent.T)
    lengths = jnp.diag(jnp.maximum(jnp.abs(jnp.diagonal(matrix)), 1e-10))
    return heights[0], slopes[0], matrix, lengths


def damped_steps(
    matrix: Any, lengths: Any, gradient: Any, damping: Any, least: float, raising: float
) -> tuple[Any, Any]:
    """Return damped steps and the damping that each took, infinite where none helps.

    The gradient g is the last row of the matrix that is factorized, so that the factor's last row
    is L⁻¹ g: a try costs one factor, and the other half of the solution is computed once.
    """
    used = jnp.where(damping <= MOST_DAMPING, damping, jnp.inf)
    n = gradient.shape[-1]
    # above any sum of squares, so that the last pivot is a number
    corner = jnp.full((len(gradient), 1), np.finfo(gradient.dtype).max)
    border = jnp.concatenate([gradient, corner], axis=1)[:, None]

    def factorize(used: Any) -> tuple[Any, Any]:
        known = jnp.where(used < jnp.inf, used, 0.0)
        damped = matrix + known[:, None, None] * lengths
        # above the diagonal nothing is read
        bordered = jnp.concatenate([jnp.pad(damped, ((0, 0), (0, 0), (0, 1))), border], axis=1)
        factor = jax.lax.linalg.cholesky(bordered, symmetrize_input=False)
        return factor, ~jnp.isfinite(factor[:, n]).all(axis=1) & (used < jnp.inf)

    def raise_it(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        used, factor, fails = state
        raised = jnp.where(fails, jnp.maximum(raising * used, least), used)
        raised = jnp.where(raised > MOST_DAMPING, jnp.inf, raised)
        again, still = factorize(raised)
        return raised, jnp.where(fails[:, None, None], again, factor), fails & still

    factor, fails = factorize(used)
    begun = used, factor, fails
    used, factor, _ = jax.lax.while_loop(lambda state: state[2].any(), raise_it, begun)
    half = factor[:, n].at[:, n].set(0.0)
    step = jax.lax.linalg.triangular_solve(
        factor, half[..., None], left_side=True, lower=True, transpose_a=True
    )
    return step[:, :n, 0], used


def regular_factors(precision: Any) -> tuple[Any, Any]:
    """Return lower factors, and where a ridge was needed; see `modes.positive_definite`."""
    identity = jnp.eye(precision.shape[1], dtype=precision.dtype)
    symmetric = 0.5 * (precision + jnp.swapaxes(precision, 1, 2))
    is_known = jnp.isfinite(symmetric).all(axis=(1, 2))
    symmetric = jnp.where(is_known[:, None, None], symmetric, identity)
    size = jnp.maximum(jnp.abs(jnp.diagonal(symmetric, axis1=1, axis2=2)).max(axis=1), 1e-8)

    def factorize(matrix: Any) -> tuple[Any, Any]:
        factor = jax.lax.linalg.cholesky(matrix, symmetrize_input=False)
        return factor, ~jnp.isfinite(factor).all(axis=(1, 2))

    def ridge(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        power, factor, fails = state
        added = (size * 10.0**power)[:, None, None] * identity
        again, still = factorize(symmetric + added)
        return power + 1.0, jnp.where(fails[:, None, None], again, factor), fails & still

    factor, fails = factorize(symmetric)
    begun = jnp.asarray(-6.0, precision.dtype), factor, fails
    _, factor, failed = jax.lax.while_loop(
        lambda state: state[2].any() & (state[0] < 3.0), ridge, begun
    )
    last = jnp.sqrt(size)[:, None, None] * identity
    return jnp.where(failed[:, None, None], last, factor), fails | ~is_known
