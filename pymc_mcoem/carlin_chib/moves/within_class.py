"""Moves of the latents within their class: step (ii) of Algorithm 2 (label ``alg:MCMC``).

A move is a graph of (position, noise). The noise is standard normal and is passed in, so that
every back end makes the same move from the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_mcoem.compiling.linear_algebra import matrix_vector

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.density.plate import PlateDensity

__all__ = [
    "ClassProposal",
    "CompiledKernel",
    "Independence",
    "MoveResult",
    "RandomWalk",
    "WithinClassMove",
    "active_scale",
    "log_uniform",
    "require_a_move",
    "require_share",
]


def log_uniform(pair: Any) -> Any:
    """Return the logarithm of a uniform variable made from two standard normal ones.

    Parameters
    ----------
    pair : array or TensorVariable whose first axis has length 2

    Returns
    -------
    Same type without the first axis.

    Notes
    -----
    Half the squared norm of two standard normals is exponential with mean one, so its negative
    is exactly log U. All randomness of a sweep is therefore one vector of standard normals: a
    generator gives the same numbers row by row or all at once.
    """
    return -0.5 * (pair[0] ** 2 + pair[1] ** 2)


@dataclass(frozen=True)
class MoveResult:
    """Symbolic outcome of a within-class move.

    Attributes
    ----------
    position : TensorVariable of shape ``(*rows, n_latents)``
    acceptance : TensorVariable of shape ``(*rows,)``
        Share of the proposals that were accepted.
    error : TensorVariable of shape ``(*rows,)``, or None
        What the logarithm of the step size grows by; None: the acceptance minus its target.
    """

    position: TensorVariable
    acceptance: TensorVariable
    error: TensorVariable | None = None

    def step_size_error(self, target_acceptance: float) -> Any:
        """Return what adaptation adds to the logarithm of the step size, apart from the gain.

        It is 0 if the move has no acceptance.
        """
        error = self.acceptance - target_acceptance if self.error is None else self.error
        return pt.switch(pt.isnan(error), 0.0, error)


@dataclass(frozen=True)
class ClassProposal:
    """Pseudo-prior of the present class, in the form that moves use.

    Attributes
    ----------
    scale : TensorVariable of shape ``(*rows, n_latents, n_latents)``
        A square root of its covariance.
    mean : TensorVariable of shape ``(*rows, n_latents)``, or None
    whiten : TensorVariable of shape ``(*rows, n_latents, n_latents)``, or None
        Inverse of the scale. `RandomWalk` needs the scale alone.
    """

    scale: TensorVariable
    mean: TensorVariable | None = None
    whiten: TensorVariable | None = None


@dataclass(frozen=True)
class CompiledKernel:
    """A move that `sweeps_numba` implements, so that numba need not compile its graph.

    Attributes
    ----------
    name : str
        Name of the function in `sweeps_numba`.
    settings : tuple of float
        What the function reads after step size and target acceptance.
    moves_all : bool
        Whether coordinates that are inactive in a class are moved too.
    """

    name: str
    settings: tuple[float, ...]
    needs_gradient: bool = False
    moves_all: bool = False


class WithinClassMove(Protocol):
    """A transition that leaves π(· | y, I = j) invariant for every class j.

    Numba compiles a move faster if it has an attribute ``kernel``, a `CompiledKernel`.
    """

    @property
    def target_acceptance(self) -> float:
        """Acceptance that the step size is tuned to."""
        ...

    def noise_size(self, n_latents: int) -> int:
        """Return how many standard normals one move consumes."""
        ...

    def initial_log_step(self, n_latents: int) -> float:
        """Return the logarithm of the step size to start from."""
        ...

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
        """Build the move's graph."""
        ...


@dataclass(frozen=True)
class RandomWalk:
    """Random-walk Metropolis moves with increments shaped like the class's pseudo-prior.

    Parameters
    ----------
    n_moves : int
        Number r of moves per sweep; 0 leaves the latents to other step methods.
    target_acceptance : float
        Acceptance that the increments are tuned to (0.4 in the paper).

    Raises
    ------
    ValueError
        If `n_moves` is negative or `target_acceptance` is not between 0 and 1.

    Notes
    -----
    The increment is ``exp(log_step[I]) * scale[I] @ z``, where ``scale[I]`` is a square root of the
    pseudo-prior's covariance and z is standard normal. It is symmetric, so the acceptance ratio is
    the ratio of densities. Cost: one density evaluation per move. While `CarlinChib` tunes, with a
    single index, the covariance of the chain's draws in a class replaces the pseudo-prior's in the
    increments there, once there are five draws for each latent.

    Examples
    --------
    >>> RandomWalk(n_moves=20).noise_size(n_latents=3)
    100
    """

    n_moves: int = 20
    target_acceptance: float = 0.4

    def __post_init__(self) -> None:
        if self.n_moves < 0:
            raise ValueError(f"n_moves: got {self.n_moves}; give 0 or a positive number of moves.")
        require_share(self.target_acceptance)

    @property
    def kernel(self) -> CompiledKernel:
        """Its name and settings among the compiled kernels."""
        return CompiledKernel("random_walk", (self.n_moves,))

    def noise_size(self, n_latents: int) -> int:
        """Return ``n_moves * (n_latents + 2)``: an increment and a log-uniform per move."""
        return self.n_moves * (n_latents + 2)

    def initial_log_step(self, n_latents: int) -> float:
        """Return the logarithm of 1.7 / sqrt(n_latents).

        On a high-dimensional normal target 2.38 / sqrt(d) gives an acceptance of 0.23; an
        acceptance of 0.4 needs a smaller step.
        """
        return math.log(1.7 / math.sqrt(max(n_latents, 1)))

    def build(
        self,
        density: ClassDensity | PlateDensity,
        class_index: TensorVariable,
        position: TensorVariable,
        log_density: TensorVariable,
        noise: TensorVariable,
        proposal: ClassProposal,
        log_step: TensorVariable,
    ) -> MoveResult:
        """Build `n_moves` Metropolis moves as one inner scan.

        Parameters
        ----------
        density : ClassDensity or PlateDensity
        class_index : tensor of shape ``(*rows,)``
        position : tensor of shape ``(*rows, n_latents)``
        log_density : tensor of shape ``(*rows,)``
            Log-density at `position`.
        noise : tensor of shape ``(*rows, noise_size)``
        proposal : ClassProposal
            Pseudo-prior of the class.
        log_step : tensor of shape ``(*rows,)``
            Logarithm of the class's step size.

        Notes
        -----
        For a single index there are no rows: ``*rows`` is nothing. On a plate it is (n_rows,), and
        all rows move at once.
        """
        *rows, n = density.position_shape
        if self.n_moves == 0:
            return MoveResult(position, pt.constant(np.full(rows, np.nan)))
        moves = pt.moveaxis(noise.reshape((*rows, self.n_moves, n + 2)), -2, 0)
        scale = active_scale(density, class_index, proposal.scale)
        increments = pt.exp(log_step)[..., None] * matrix_vector(scale, moves[..., :n])
        log_uniforms = log_uniform(pt.moveaxis(moves[..., n:], -1, 0))

        def move(
            increment: Any, log_u: Any, x: Any, log_p: Any, accepted: Any, k: Any
        ) -> list[Any]:
            proposal = x + increment
            proposed = density.log_density(k, proposal)
            accept = pt.lt(log_u, proposed - log_p)
            return [
                pt.specify_shape(pt.switch(accept[..., None], proposal, x), (*rows, n)),
                pt.specify_shape(pt.switch(accept, proposed, log_p), rows),
                pt.specify_shape(accepted + accept, rows),
            ]

        positions, _, accepted = pytensor.scan(
            move,
            sequences=[increments, log_uniforms],
            outputs_info=[
                pt.specify_shape(position, (*rows, n)),
                pt.specify_shape(log_density, rows),
                pt.constant(np.zeros(rows)),
            ],
            non_sequences=[class_index],
            return_updates=False,
        )
        return MoveResult(positions[-1], accepted[-1] / self.n_moves)


@dataclass(frozen=True)
class Independence:
    """Metropolis-Hastings moves that propose from the class's pseudo-prior.

    Parameters
    ----------
    n_moves : int
        Number of moves per sweep, at least one.

    Raises
    ------
    ValueError
        If `n_moves` is less than one.

    Notes
    -----
    With Laplace pseudo-priors these are the proposals of f-SAEM (Karimi, Lavielle, Moulines
    2020): the better the pseudo-prior, the more often they are accepted, and an accepted one does
    not depend on the position before. If the posterior has heavier tails than its pseudo-prior the
    chain sticks: keep `RandomWalk` then. Nothing is tuned. Cost: one density evaluation per move.

    Examples
    --------
    >>> Independence(n_moves=5).noise_size(n_latents=3)
    25
    """

    n_moves: int = 5

    def __post_init__(self) -> None:
        require_a_move(self.n_moves)

    @property
    def target_acceptance(self) -> float:
        """Return 1, which is not used: there is no step size to tune."""
        return 1.0

    @property
    def kernel(self) -> CompiledKernel:
        """Its name and settings among the compiled kernels."""
        return CompiledKernel("independence", (self.n_moves,), moves_all=True)

    def noise_size(self, n_latents: int) -> int:
        """Return ``n_moves * (n_latents + 2)``: a proposal and a log-uniform per move."""
        return self.n_moves * (n_latents + 2)

    def initial_log_step(self, n_latents: int) -> float:
        """Return 0, which is not used."""
        return 0.0

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
        assert proposal.mean is not None and proposal.whiten is not None
        rows = noise.reshape((self.n_moves, n + 2))
        proposals = proposal.mean + matrix_vector(proposal.scale, rows[:, :n])
        standard = matrix_vector(proposal.whiten, position - proposal.mean)

        def move(
            x_new: Any,
            log_k_new: Any,
            log_u: Any,
            x: Any,
            log_p: Any,
            log_k: Any,
            done: Any,
            k: Any,
        ) -> list[Any]:
            log_p_new = density.log_density(k, x_new)
            accept = pt.lt(log_u, log_p_new - log_p - (log_k_new - log_k))
            return [
                pt.switch(accept, x_new, x),
                pt.switch(accept, log_p_new, log_p),
                pt.switch(accept, log_k_new, log_k),
                done + accept,
            ]

        positions, _, _, accepted = pytensor.scan(
            move,
            sequences=[
                proposals,
                -0.5 * (rows[:, :n] ** 2).sum(axis=1),
                log_uniform(rows[:, n:].T),
            ],
            outputs_info=[
                pt.specify_shape(position, (n,)),
                log_density,
                -0.5 * (standard**2).sum(),
                pt.constant(0.0, dtype="float64"),
            ],
            non_sequences=[class_index],
            return_updates=False,
        )
        return MoveResult(positions[-1], accepted[-1] / self.n_moves)


def active_scale(density: ClassDensity | PlateDensity, class_index: Any, scale: Any) -> Any:
    """Return the scale with zero rows for coordinates that are inactive in the class.

    Parameters
    ----------
    scale : tensor of shape ``(*rows, n_latents, n_latents)``
    """
    if density.active is None:
        return scale
    return scale * pt.constant(density.active.astype("float64"))[class_index][:, None]


def require_a_move(n_moves: int) -> None:
    """Require at least one move."""
    if n_moves < 1:
        raise ValueError(f"n_moves: got {n_moves}; give at least 1.")


def require_share(target_acceptance: float) -> None:
    """Require an acceptance between 0 and 1."""
    if not 0 < target_acceptance < 1:
        raise ValueError(
            f"target_acceptance: got {target_acceptance}; give a share between 0 and 1."
        )
