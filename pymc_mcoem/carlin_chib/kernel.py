"""The Carlin-Chib sweep as a PyTensor graph: Algorithm 2 of the paper (label ``alg:MCMC``).

The extended target is π(I, U_I | y) Π_{j≠I} κ_j(U_j). The auxiliaries U_j, j ≠ I, are drawn at
the start of every sweep and discarded at its end, so the state of the chain is only (I, X = U_I).
Nothing in this file draws a random number: a sweep is a function of (state, noise), where the
noise is standard normal. The caller owns the generator, so that the step method and the burst, on
numba and on C, all make the same draws from the same numbers, and a chain is reproduced from the
state of a NumPy generator.

On a plate the same graph sweeps all rows at once: arrays have an axis for the rows where shapes
below say ``*rows``, which is nothing for a single index and (n_rows,) for a plate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.moves.within_class import ClassProposal, WithinClassMove, log_uniform
from pymc_mcoem.compiling.linear_algebra import matrix_vector

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.density.plate import PlateDensity

__all__ = ["PseudoPriorSymbols", "SweepInfo", "SweepState", "build_sweep", "noise_size"]


@dataclass(frozen=True)
class SweepState:
    """State that one sweep passes to the next.

    Attributes
    ----------
    class_index : int64 tensor of shape (*rows,)
    position : tensor of shape (*rows, n_latents)
    log_step : vector of shape (n_classes,)
        Logarithm of each class's step size.
    """

    class_index: TensorVariable
    position: TensorVariable
    log_step: TensorVariable


@dataclass(frozen=True)
class SweepInfo:
    """Results of a sweep for the user or an E-step.

    Attributes
    ----------
    log_weight : tensor of shape (n_classes, *rows)
        log of p(y, I = j, U_j) / κ_j(U_j), not normalized. For j ≠ I its exponential is an
        unbiased estimate of p(y, I = j).
    auxiliaries : tensor of shape (n_classes, *rows, n_latents)
        The U_j for which `log_weight` was computed, before the within-class moves.
    acceptance : tensor of shape (*rows,)
        Share of within-class proposals accepted.
    """

    log_weight: TensorVariable
    auxiliaries: TensorVariable
    acceptance: TensorVariable


@dataclass(frozen=True)
class PseudoPriorSymbols:
    """Inputs that hold normal pseudo-priors κ_j = Normal(mean_j, scale_j scale_jᵀ).

    Attributes
    ----------
    mean : tensor of shape (n_classes, *rows, n_latents)
    scale, whiten : tensors of shape (n_classes, *rows, n_latents, n_latents)
        A square root of each covariance, and its inverse.
    log_normalizer : tensor of shape (n_classes, *rows)
        For each density, log det whiten − (n_latents / 2) log 2π.
    """

    mean: TensorVariable
    scale: TensorVariable
    whiten: TensorVariable
    log_normalizer: TensorVariable

    @classmethod
    def create(cls, n_classes: int, *position_shape: int) -> PseudoPriorSymbols:
        """Return new input variables for positions of shape ``(*rows, n_latents)``."""
        shape = (n_classes, *position_shape)
        square = (*shape, shape[-1])
        return cls(
            pt.tensor("mean", dtype="float64", shape=shape),
            pt.tensor("scale", dtype="float64", shape=square),
            pt.tensor("whiten", dtype="float64", shape=square),
            pt.tensor("log_normalizer", dtype="float64", shape=shape[:-1]),
        )

    def as_list(self) -> list[TensorVariable]:
        """Return the inputs in the order in which compiled functions take them."""
        return [self.mean, self.scale, self.whiten, self.log_normalizer]


def noise_size(
    n_classes: int,
    n_latents: int,
    move: WithinClassMove,
    metropolized: bool = False,
    shared_latents: bool = False,
) -> int:
    """Return how many standard normals one sweep consumes, on a plate in each row.

    These are, in order, those of the auxiliaries of all classes (none if latents are shared), of
    the class index, and of the within-class move.
    """
    auxiliaries = 0 if shared_latents else n_classes * n_latents
    return auxiliaries + index_noise_size(metropolized) + move.noise_size(n_latents)


def index_noise_size(metropolized: bool) -> int:
    """Return how many standard normals a draw of the index consumes: two for each uniform."""
    return 4 if metropolized else 2


def entries(density: ClassDensity | PlateDensity, class_index: Any) -> tuple[Any, ...]:
    """Return the index of a class, or of a class for each row, in ``(n_classes, *rows, ...)``."""
    rows = density.position_shape[:-1]
    return (class_index, np.arange(*rows)) if rows else (class_index,)


def auxiliaries_and_weights(
    density: ClassDensity | PlateDensity,
    class_index: TensorVariable,
    position: TensorVariable,
    noise: TensorVariable,
    pseudo_priors: PseudoPriorSymbols,
) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    """Refresh the auxiliaries and weigh every class: step (iii), then the weights of step (i).

    Parameters
    ----------
    class_index : int tensor of shape (*rows,)
    position : tensor of shape (*rows, n_latents)
    noise : tensor of shape (n_classes, *rows, n_latents)
        The entry of the current class is ignored.

    Returns
    -------
    auxiliaries : tensor of shape (n_classes, *rows, n_latents)
    log_target : tensor of shape (n_classes, *rows)
    log_weight : tensor of shape (n_classes, *rows)
    """
    here = entries(density, class_index)
    drawn = pseudo_priors.mean + matrix_vector(pseudo_priors.scale, noise)
    auxiliaries = pt.set_subtensor(drawn[here], position)
    # The active class comes with its position only: its standardized form has to be computed.
    standard = matrix_vector(pseudo_priors.whiten[here], position - pseudo_priors.mean[here])
    squares = pt.set_subtensor((noise**2).sum(axis=-1)[here], (standard**2).sum(axis=-1))
    log_pseudo_prior = pseudo_priors.log_normalizer - 0.5 * squares

    log_target = _log_targets(density, auxiliaries)
    return auxiliaries, log_target, log_target - log_pseudo_prior


def _log_targets(density: ClassDensity | PlateDensity, positions: TensorVariable) -> TensorVariable:
    """Return log p(y, I = j, U_j) of all classes at positions ``(n_classes, *rows, n_latents)``."""

    def one_class(j: Any, u: Any) -> Any:
        return density.log_density(j, u)

    log_target = pytensor.scan(
        one_class,
        sequences=[pt.arange(density.n_classes), positions],
        return_updates=False,
    )
    # A class whose density cannot be evaluated at its auxiliary has no weight; the chain itself
    # can never be at such a point, because it is never accepted.
    return pt.switch(pt.isnan(log_target), -np.inf, log_target)


def draw_class(log_weight: TensorVariable, pair: TensorVariable) -> TensorVariable:
    """Draw an index with probabilities ∝ exp(log_weight), from two standard normals.

    Parameters
    ----------
    log_weight : tensor of shape (n_classes,) or (n_classes, n_rows)
    pair : tensor of shape (2,) or (2, n_rows)
    """
    weight = pt.exp(log_weight - pt.max(log_weight, axis=0))
    cumulative = pt.cumsum(weight, axis=0)
    threshold = pt.exp(log_uniform(pair)) * cumulative[-1]
    return pt.minimum(pt.sum(pt.lt(cumulative, threshold), axis=0), log_weight.shape[0] - 1)


def draw_other_class(
    log_weight: TensorVariable, class_index: TensorVariable, pairs: TensorVariable
) -> TensorVariable:
    """Propose one of the other classes by weight, and accept or stay: Metropolized Gibbs.

    Parameters
    ----------
    log_weight : tensor of shape (n_classes,) or (n_classes, n_rows)
    class_index : int tensor of shape () or (n_rows,)
    pairs : tensor of shape (4,) or (4, n_rows)
        Standard normals.

    Notes
    -----
    See Liu (1996), and Dellaportas, Forster, Ntzoufras (2002) for model choice. From i the class j
    is proposed with probability w_j / (1 − w_i) and accepted with probability
    min(1, (1 − w_i) / (1 − w_j)). The index leaves a class at least as often as with Gibbs.
    """
    weight = pt.exp(log_weight - pt.max(log_weight, axis=0))
    here = (class_index,) if log_weight.ndim == 1 else (class_index, pt.arange(log_weight.shape[1]))
    others = pt.set_subtensor(weight[here], 0.0)
    cumulative = pt.cumsum(others, axis=0)
    threshold = pt.exp(log_uniform(pairs[:2])) * cumulative[-1]
    drawn = pt.minimum(pt.sum(pt.lt(cumulative, threshold), axis=0), log_weight.shape[0] - 1)
    there = (drawn,) if log_weight.ndim == 1 else (drawn, pt.arange(log_weight.shape[1]))
    # sum the remaining weights: one minus a weight near one would lose precision
    left_there = pt.set_subtensor(weight[there], 0.0).sum(axis=0)
    accept = pt.lt(log_uniform(pairs[2:]) + pt.log(left_there), pt.log(cumulative[-1]))
    return pt.switch(accept, drawn, class_index)


def build_sweep(
    density: ClassDensity | PlateDensity,
    state: SweepState,
    noise: TensorVariable,
    pseudo_priors: PseudoPriorSymbols,
    gain: TensorVariable,
    move: WithinClassMove,
    *,
    metropolized: bool = False,
    shared_latents: bool = False,
    log_offset: TensorVariable | None = None,
    move_scale: TensorVariable | None = None,
) -> tuple[SweepState, SweepInfo]:
    """Build one sweep of Algorithm 2.

    Parameters
    ----------
    noise : tensor of shape (*rows, noise_size)
        Standard normals, as many as `noise_size` says.
    gain : scalar
        Robbins-Monro gain of the step-size adaptation; 0 after tuning, where the kernel
        must not change.
    metropolized : bool
        Draw the index by `draw_other_class`.
    shared_latents : bool
        Whether all classes share the latents. The sweep is then plain Gibbs: it has no auxiliaries,
        and weights are p(y, I = j, X).
    log_offset : tensor of shape (n_classes, *rows), optional
        Added to the logarithms of the classes' prior probabilities and thereby of their weights.
        At minus infinity a class has no weight; if no class has any, the index stays.
    move_scale : tensor of shape (n_classes, *rows, n_latents, n_latents), optional
        Scales that moves within a class use in place of the pseudo-priors'.

    Notes
    -----
    Refresh and class draw together are reversible with respect to π(I, X | y); followed by the
    within-class move, the sweep leaves it invariant but is not reversible. On a plate the step
    size of a class moves by the mean error of the rows in the class. Cost: n_classes density
    evaluations plus those of the move; on a plate each is of all rows.
    """
    n_classes, (*rows, n) = density.n_classes, density.position_shape
    split = 0 if shared_latents else n_classes * n
    if shared_latents:
        auxiliaries = pt.repeat(state.position[None], n_classes, axis=0)
        log_target = log_weight = _log_targets(density, auxiliaries)
    else:
        auxiliaries, log_target, log_weight = auxiliaries_and_weights(
            density,
            state.class_index,
            state.position,
            pt.moveaxis(noise[..., :split].reshape((*rows, n_classes, n)), -2, 0),
            pseudo_priors,
        )
    if log_offset is not None:
        log_weight = pt.switch(pt.eq(log_offset, -np.inf), -np.inf, log_weight + log_offset)
    # Algorithm 2, (i): the index moves, and the latents of its new class with it.
    n_index = index_noise_size(metropolized)
    pairs = pt.moveaxis(noise[..., split : split + n_index], -1, 0)
    if metropolized:
        chosen = draw_other_class(log_weight, state.class_index, pairs)
    else:
        chosen = draw_class(log_weight, pairs)
    stays = pt.eq(pt.max(log_weight, axis=0), -np.inf)
    chosen = pt.cast(pt.switch(stays, state.class_index, chosen), "int64")
    # Algorithm 2, (ii): r moves within the class.
    there = entries(density, chosen)
    moved = move.build(
        density,  # type: ignore[arg-type]  # plates are refused with moves that do not take them
        chosen,
        auxiliaries[there],
        log_target[there],
        noise[..., split + n_index :],
        ClassProposal(
            (pseudo_priors.scale if move_scale is None else move_scale)[there],
            pseudo_priors.mean[there],
            pseudo_priors.whiten[there],
        ),
        state.log_step[chosen],
    )
    error = moved.step_size_error(move.target_acceptance)
    is_in = pt.eq(np.arange(n_classes)[:, None], chosen.reshape((1, -1)))
    errors = (is_in * error.reshape((1, -1))).sum(axis=1)
    log_step = state.log_step + gain * errors / pt.maximum(is_in.sum(axis=1), 1)
    return (
        SweepState(chosen, moved.position, log_step),
        SweepInfo(log_weight, auxiliaries, moved.acceptance),
    )
