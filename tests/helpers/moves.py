"""One move within a class as a function, and noise chosen for it."""

from __future__ import annotations

import math

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.moves.within_class import ClassProposal

#: Not symmetric and not triangular: a transposed square root would show.
SCALE = np.array([[0.5, 0.1, -0.2], [-0.3, 0.4, 0.2], [0.1, 0.2, 0.6]])


def compile_move(density, move):
    """Return a function of (class, position, noise, scale, log step) to what a move gives.

    That is position, acceptance, and what the step size would be tuned by.
    """
    n = density.n_latents
    k = pt.scalar("k", dtype="int64")
    x = pt.vector("x", shape=(n,))
    noise = pt.vector("noise", shape=(move.noise_size(n),))
    scale = pt.matrix("scale", shape=(n, n))
    log_step = pt.scalar("log_step")
    log_p, proposal = density.log_density(k, x), ClassProposal(scale)
    moved = move.build(density, k, x, log_p, noise, proposal, log_step)
    return pytensor.function(
        [k, x, noise, scale, log_step],
        [moved.position, moved.acceptance, moved.step_size_error(move.target_acceptance)],
        on_unused_input="ignore",
    )


def pair_of(log_u):
    """Return two normals whose `log_uniform` is `log_u`, up to rounding."""
    return np.array([math.sqrt(-2 * log_u), 0.0])
