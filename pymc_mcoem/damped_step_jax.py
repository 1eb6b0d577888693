"""`pymc_mcoem.damped_step.DampedStep` on the JAX back end.

Importing this module imports JAX.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from pytensor.link.jax.dispatch import jax_funcify

from pymc_mcoem.damped_step import MOST_DAMPING, DampedStep

__all__ = ["JaxDampedStep"]


class JaxDampedStep(DampedStep):
    """`DampedStep` with JAX's own loop."""


@jax_funcify.register(JaxDampedStep)
def _compile(op: JaxDampedStep, **kwargs: Any) -> Any:
    def step(matrix: Any, metric: Any, gradient: Any, damping: Any) -> Any:
        def factor_at(damping: Any) -> Any:
            return jnp.linalg.cholesky(matrix + damping * metric)

        def goes_on(at: Any) -> Any:
            damping, factor = at
            return ~jnp.isfinite(factor).all() & (damping <= MOST_DAMPING)

        def go_on(at: Any) -> Any:
            damping = jnp.maximum(op.raising * at[0], op.least)
            return damping, factor_at(damping)

        used, factor = jax.lax.while_loop(goes_on, go_on, (damping, factor_at(damping)))
        found = cho_solve((factor, True), gradient)
        found = jnp.where(used <= MOST_DAMPING, found, jnp.nan)
        return found, used, found @ metric @ found

    return step
