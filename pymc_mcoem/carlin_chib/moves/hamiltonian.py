"""Hamiltonian moves of the latents within their class, on the scale of its pseudo-prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytensor
import pytensor.tensor as pt

from pymc_mcoem.carlin_chib.moves.within_class import (
    ClassProposal,
    CompiledKernel,
    MoveResult,
    active_scale,
    log_uniform,
    require_a_move,
    require_share,
)
from pymc_mcoem.compiling.linear_algebra import matrix_vector, transposed_product

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["Hamiltonian"]

#: Longest tuned trajectory on the scale on which the pseudo-prior is standard normal, where a
#: quarter of a turn is π/2 and half a turn is π.
_LONGEST = 2.0


@dataclass(frozen=True)
class Hamiltonian:
    """Hamiltonian moves with the metric of the class's pseudo-prior.

    Parameters
    ----------
    n_moves : int
        Number of trajectories per sweep, at least one.
    n_leapfrog : int
        Leapfrog steps of a trajectory, at least one.
    target_acceptance : float
        Acceptance that the step size is tuned to.

    Raises
    ------
    ValueError
        If a number is less than one or `target_acceptance` is not between 0 and 1; also when the
        move is compiled for a density without a gradient.

    Notes
    -----
    On the scale on which the pseudo-prior is standard normal the momentum is standard normal too,
    so with Laplace pseudo-priors all directions are about equally long. There a trajectory on a
    normal density swings like a pendulum: it returns to its start after a length of 2π and
    reaches the mirror image after π, so trajectories of such a length go nowhere. A tuned
    trajectory is therefore at most 2 long, and every trajectory has its own step size, the tuned
    one times a random number between 1/2 and 3/2. The number of steps is fixed and does not
    depend on the density. A step is half a move, a kick by the gradient in the middle, and half a
    move, so that no gradient is computed twice.

    Cost per move: `n_leapfrog` gradients, each with two products with the scale, and one density
    evaluation.

    Examples
    --------
    >>> Hamiltonian(n_moves=2, n_leapfrog=8).noise_size(n_latents=3)
    14
    """

    n_moves: int = 1
    n_leapfrog: int = 8
    target_acceptance: float = 0.8

    def __post_init__(self) -> None:
        require_a_move(self.n_moves)
        if self.n_leapfrog < 1:
            raise ValueError(f"n_leapfrog: got {self.n_leapfrog}; give at least 1.")
        require_share(self.target_acceptance)

    @property
    def kernel(self) -> CompiledKernel:
        """Its name and settings among the compiled kernels."""
        settings = (self.n_moves, self.n_leapfrog, self.longest_log_step)
        return CompiledKernel("hamiltonian", settings, needs_gradient=True)

    def noise_size(self, n_latents: int) -> int:
        """Return ``n_moves * (n_latents + 4)``: momentum, log-uniform and step per move."""
        return self.n_moves * (n_latents + 4)

    def initial_log_step(self, n_latents: int) -> float:
        """Return log n_latents^(-1/4), as for a standard normal target, or less."""
        return min(-0.25 * math.log(max(n_latents, 1)), self.longest_log_step)

    @property
    def longest_log_step(self) -> float:
        """Logarithm of the longest tuned step."""
        return math.log(_LONGEST / self.n_leapfrog)

    def build(
        self,
        density: ClassDensity,
        class_index: TensorVariable,
        position: TensorVariable,
        log_density: TensorVariable,
        noise: TensorVariable,
        proposal: ClassProposal,
        log_step: TensorVariable,
    ) -> MoveResult:
        """Build the moves; the parameters are those of `RandomWalk.build`."""
        n = density.n_latents
        rows = noise.reshape((self.n_moves, n + 4))
        scale = active_scale(density, class_index, proposal.scale)
        tuned = pt.exp(pt.minimum(log_step, self.longest_log_step))
        steps = tuned * (0.5 + pt.exp(log_uniform(rows[:, n + 2 :].T)))

        def leapfrog(z: Any, p: Any, k: Any, scale: Any, step: Any, x: Any) -> list[Any]:
            # in the coordinates z of x + scale z, where a move needs no matrix product
            middle = z + 0.5 * step * p
            gradient = density.gradient(k, x + matrix_vector(scale, middle))
            kicked = p + step * transposed_product(scale, gradient)
            return [
                pt.specify_shape(middle + 0.5 * step * kicked, (n,)),
                pt.specify_shape(kicked, (n,)),
            ]

        def move(
            momentum: Any, log_u: Any, step: Any, x: Any, log_p: Any, done: Any, k: Any, scale: Any
        ) -> list[Any]:
            zs, ps = pytensor.scan(
                leapfrog,
                outputs_info=[
                    pt.zeros((n,), dtype="float64"),
                    pt.specify_shape(momentum, (n,)),
                ],
                non_sequences=[k, scale, step, x],
                n_steps=self.n_leapfrog,
                return_updates=False,
            )
            proposed = x + matrix_vector(scale, zs[-1])
            log_p_new = density.log_density(k, proposed)
            kinetic = 0.5 * (momentum**2).sum() - 0.5 * (ps[-1] ** 2).sum()
            # nan, where a trajectory has left the density's support, is not accepted
            accept = pt.lt(log_u, log_p_new - log_p + kinetic)
            return [
                pt.specify_shape(pt.switch(accept, proposed, x), (n,)),
                pt.switch(accept, log_p_new, log_p),
                done + accept,
            ]

        momenta, log_uniforms = rows[:, :n], log_uniform(rows[:, n : n + 2].T)
        start, none = pt.specify_shape(position, (n,)), pt.constant(0.0, dtype="float64")
        if self.n_moves == 1:  # one loop less to compile
            moved, _, accepted = move(
                momenta[0], log_uniforms[0], steps[0], start, log_density, none, class_index, scale
            )
        else:
            positions, _, counts = pytensor.scan(
                move,
                sequences=[momenta, log_uniforms, steps],
                outputs_info=[start, log_density, none],
                non_sequences=[class_index, scale],
                return_updates=False,
            )
            moved, accepted = positions[-1], counts[-1]
        acceptance = accepted / self.n_moves
        error = acceptance - self.target_acceptance
        at_the_end = pt.ge(log_step, self.longest_log_step)
        return MoveResult(moved, acceptance, pt.switch(at_the_end, pt.minimum(error, 0.0), error))
