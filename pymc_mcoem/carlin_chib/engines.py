"""The engine of the step method: sweeps and pseudo-priors of a single index or a plate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.carlin_chib.inactive import InactiveDraw
from pymc_mcoem.carlin_chib.kernel import noise_size
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk, WithinClassMove
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriorRule, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.sweeps import compile_sweeps
from pymc_mcoem.compiling.backends import without_jax
from pymc_mcoem.density.angles import TURNS, principal
from pymc_mcoem.density.blocks import BlockDensity
from pymc_mcoem.density.class_density import as_argument
from pymc_mcoem.density.plate import PlateDensity

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
    from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump
    from pymc_mcoem.density.geometry import LatentGeometry

__all__ = ["Engine", "Swept"]


@dataclass(slots=True)  # a frozen one takes five times as long to make, at every draw
class Swept:
    """Outcome of one sweep.

    Attributes
    ----------
    class_index : ndarray of int, shape () or (n_rows,)
    position : ndarray of shape (n_latents,) or (n_rows, n_latents)
    log_step : ndarray of shape (n_classes,)
    log_weight : ndarray of shape (n_classes,) or (n_rows, n_classes)
        Logarithms of the index's full conditional probabilities given the auxiliaries.
    log_ratio : ndarray of shape (n_classes,) or (n_rows, n_classes)
        log p(y, I = j, U_j) / κ_j(U_j), plus the equalizing log-weight.
    acceptance : float
        Share of the within-class moves accepted; nan without any.
    jump_acceptance : float
        Share of the moves along an annealed jump accepted; nan without any.
    """

    class_index: np.ndarray
    position: np.ndarray
    log_step: np.ndarray
    log_weight: np.ndarray
    log_ratio: np.ndarray
    acceptance: float
    jump_acceptance: float = float("nan")


class Engine:
    """Sweeps and pseudo-priors compiled for one model.

    It has one class index, with latents shared by all classes or in blocks; or a plate of indices,
    where all arrays have an axis for the rows. Below, ``*rows`` is nothing or (n_rows,).

    Parameters
    ----------
    pseudo_priors : PseudoPriorRule or None
        On a plate `Laplace` or None.
    move : WithinClassMove
        On a plate `RandomWalk`.
    metropolized : bool
        Draw the index by Metropolized Gibbs.
    jump : AnnealedJump or None
        Jump to make after every sweep; None on a plate.

    Attributes
    ----------
    walks : bool
        Whether the moves within a class are a random walk's.
    initial_log_step : ndarray of shape (n_classes,), with a jump (n_classes + 1,)
    auxiliaries_shape : tuple of int
        ``(*rows, n_classes, n_latents)``.
    angle_modes : ndarray of shape (n_classes, n_latents) or None
        What `center_angles` was last given.
    """

    def __init__(
        self,
        density: Any,
        geometry: LatentGeometry,
        pseudo_priors: PseudoPriorRule | None,
        move: WithinClassMove,
        mode: Any,
        *,
        metropolized: bool,
        jump: AnnealedJump | None,
    ) -> None:
        # There is one fit per chain, so every mode search can afford to run to its end.
        rule = Laplace(race=None) if pseudo_priors is None else pseudo_priors
        if isinstance(density, PlateDensity):
            _require_for_plate(rule, move)
        else:
            density.require_latents()
        n_classes, (*rows, n) = density.n_classes, density.position_shape
        self.density = density
        self.angle_modes: np.ndarray | None = None
        self.walks = isinstance(move, RandomWalk)
        self.auxiliaries_shape = (*rows, n_classes, n)
        self.initial_log_step = np.array([move.initial_log_step(size) for size in density.n_active])
        # Index of the rows, next to that of the class in arrays.
        self._rows: tuple[Any, ...] = tuple(map(np.arange, rows))
        self._no_excess = np.zeros((n_classes, *rows))
        self._noise_shape = (*rows, noise_size(n_classes, n, move, metropolized))
        self._fit = rule.compile(density, geometry, mode)
        self._inactive = (
            InactiveDraw(density, without_jax(mode)) if isinstance(density, BlockDensity) else None
        )
        self._jump = None if jump is None else jump.compile(density, without_jax(mode))
        if self._jump is not None:
            # its step size is tuned with those of the classes, and comes after them
            self.initial_log_step = np.append(self.initial_log_step, self._jump.initial_log_step)
        self._sweeps = compile_sweeps(density, move, metropolized=metropolized, mode=mode)

    def fit(self, rng: np.random.Generator, others: Sequence[np.ndarray]) -> PseudoPriors:
        """Return pseudo-priors given the values of all other variables."""
        found = self._fit({}, rng, others)
        active = self.density.active
        return found if active is None else found.restricted(active)

    def log_densities(
        self, class_index: Any, points: np.ndarray, others: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return log p(y, I, X) of a class at points ``(n, n_latents)``, shape ``(n,)``."""
        found: np.ndarray = self._sweeps.log_densities(class_index, points, others)
        return found

    def center_angles(self, modes: np.ndarray | None) -> None:
        """Give the turns of angles most weight about a mode of each class, or about 0 with None.

        No other turn has weight there, and searches start from it too. Rows of a plate keep 0.

        Parameters
        ----------
        modes : ndarray of shape (n_classes, n_latents) or None
        """
        if self._rows or not self.density.angles:
            return
        self.angle_modes = modes
        centers = np.zeros((self.density.n_classes, self.density.n_latents))
        self.density.found_starts = centers[:0]
        if modes is not None and np.isfinite(modes).all():
            own = np.isin(np.arange(self.density.n_latents), self.density.angles)
            centers[:, own] = principal(modes[:, own])
            self.density.found_starts = np.where(own, centers, modes)
        self.density.angle_centers.set_value(centers)

    def turned(
        self,
        rng: np.random.Generator,
        class_index: np.ndarray,
        position: np.ndarray,
        others: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return a position whose angles have turns drawn given everything else.

        An angle stays the same, so that it does not matter how other steps have turned it.
        """
        here: Any = class_index if self._rows else int(class_index)
        for coordinate in self.density.angles:
            turns = TURNS.reshape(-1, *(1 for _ in self._rows))
            points = np.repeat(position[None], len(TURNS), axis=0)
            points[..., coordinate] = principal(position[..., coordinate]) + turns
            log_p = self._sweeps.log_densities(here, points, others)
            log_p = np.where(np.isfinite(log_p), log_p, -np.inf)
            log_p[len(TURNS) // 2, ~np.isfinite(log_p).any(axis=0)] = 0.0  # no density: no turn
            chosen = np.argmax(log_p + rng.gumbel(size=log_p.shape), axis=0)
            position = points[(chosen, *self._rows)]
        return position

    def sweeps_within(
        self,
        class_number: int,
        rng: np.random.Generator,
        gains: np.ndarray,
        position: np.ndarray,
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        others: Sequence[np.ndarray],
    ) -> Sweeps:
        """Make ``len(gains)`` sweeps that stay within a class; not on a plate."""
        only = np.where(np.arange(self.density.n_classes) == class_number, 0.0, -np.inf)
        return self._sweeps(
            rng.standard_normal((len(gains), *self._noise_shape)),
            gains,
            class_number,
            position,
            log_step,
            only,
            pseudo_priors,
            others,
        )

    def sweep(
        self,
        rng: np.random.Generator,
        gain: float,
        class_index: np.ndarray,
        position: np.ndarray,
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        others: Sequence[np.ndarray],
        *,
        equalizing_log_weight: np.ndarray,
        auxiliaries: np.ndarray | None = None,
        jumps: bool = True,
        moves: PseudoPriors | None = None,
    ) -> Swept:
        """Make one sweep, then draw inactive latents from their priors.

        Auxiliaries are drawn from the pseudo-priors, or given and updated in place. Given
        auxiliaries, and jumps, use only the heaviest component of a mixture. `moves` are normals
        whose covariances moves within a class use instead of the pseudo-priors'; None on a plate.
        """
        here: Any = class_index if self._rows else int(class_index)
        if self.density.active is not None:
            position = self.density.without_inactive(here, position)
        noise = rng.standard_normal(self._noise_shape)
        n_auxiliary = self.auxiliaries_shape[-1] * self.auxiliaries_shape[-2]
        standard, log_excess = None, self._no_excess
        if auxiliaries is not None:
            standard = auxiliaries.copy()
            auxiliaries[(*self._rows, here)] = pseudo_priors.standardized(
                (here, *self._rows), position
            )
        elif pseudo_priors.mixtures is not None:
            position, standard, log_excess = self._mixed(rng, here, position, pseudo_priors, others)
        if standard is not None:
            noise[..., :n_auxiliary] = standard.reshape(*noise.shape[:-1], -1)
        if self._rows:
            equalizing_log_weight = equalizing_log_weight.reshape(-1, *(1 for _ in self._rows))
        made = self._sweeps(
            noise[None],
            np.array([gain]),
            here,
            position,
            log_step[: self.density.n_classes],
            equalizing_log_weight + log_excess,
            pseudo_priors,
            others,
            None if moves is None else moves.scale,
        )
        index, moved = np.asarray(made.class_index[0]), np.asarray(made.position[0])
        new_log_step, log_ratio = as_argument(made.log_step), np.asarray(made.log_weight[0])
        jump_acceptance = float("nan")
        if self._jump is not None and jumps:
            jumped = self._jump(
                rng, gain, index, moved, log_step[-1], pseudo_priors, others, equalizing_log_weight
            )
            if auxiliaries is not None:
                # the auxiliary of the class that was entered becomes that of the class left
                auxiliaries[int(index)] = auxiliaries[int(jumped.class_index)]
            index, moved = jumped.class_index, jumped.position
            jump_acceptance = jumped.acceptance
            new_log_step = np.append(new_log_step, jumped.log_step)
        if self._inactive is not None:
            moved = self._inactive(int(index), moved, others, rng)
        with np.errstate(invalid="ignore"):  # where no class has any density
            log_weight = log_ratio - np.logaddexp.reduce(log_ratio, axis=-1, keepdims=True)
        return Swept(
            index,
            moved,
            new_log_step,
            log_weight,
            log_ratio,
            float(made.acceptance[0].mean()) if self._rows else float(made.acceptance[0]),
            jump_acceptance,
        )

    def _mixed(
        self,
        rng: np.random.Generator,
        here: Any,
        position: np.ndarray,
        pseudo_priors: PseudoPriors,
        others: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw the auxiliaries from mixtures, and return the noise that gives them.

        A sweep maps noise by the heaviest components, whichever component an auxiliary came from.
        Its moves within a class therefore use one covariance, which depends on the fit and not on
        the chain's position: with the covariance of the mode that the chain is at, moves to
        another mode and back would not be equally likely.

        Such moves do not lead from one mode of a class to another. A Metropolis-Hastings step
        before the sweep therefore proposes a draw from the mixture of the chain's class; on a
        plate, in each row whose class has one.

        Returns
        -------
        position : ndarray of shape (*rows, n_latents)
            The chain's position after this step.
        standard : ndarray of shape (*rows, n_classes, n_latents)
        log_excess : ndarray of shape (n_classes, *rows)
            To be added to the logarithms of the sweep's weights.
        """
        at = (here, *self._rows)
        drawn = pseudo_priors.draw(rng)
        proposed = drawn[at].copy()
        drawn[at] = position
        is_mixed = pseudo_priors.is_mixed[at]
        if not is_mixed.any():
            noise, log_excess = pseudo_priors.noise_of(drawn)
        else:
            # the chain where it is, and at the proposal
            either = np.stack([drawn, drawn])
            either[(1, *at)] = np.where(is_mixed[..., None], proposed, position)
            there = (slice(None), *at)
            log_p = self._sweeps.log_densities(here, either[there], others)
            noises, log_excesses = pseudo_priors.noise_of(either)
            # up to the constant of the normals
            log_kappa = -0.5 * (noises[there] ** 2).sum(axis=-1) - log_excesses[there]
            # nan, where the density cannot be evaluated, is not accepted
            with np.errstate(invalid="ignore"):
                log_ratio = log_p[1] - log_kappa[1] - (log_p[0] - log_kappa[0])
            accepts = is_mixed & (-rng.standard_exponential(is_mixed.shape) < log_ratio)
            taken = (accepts.astype(np.intp), *at)
            position, noise, log_excess = either[taken], noises[0], log_excesses[0]
            noise[at], log_excess[at] = noises[taken], log_excesses[taken]
        return position, noise.swapaxes(0, 1) if self._rows else noise, log_excess


def _require_for_plate(rule: PseudoPriorRule, move: WithinClassMove) -> None:
    """Raise `ValueError` for a rule or a move that a plate does not take."""
    if not isinstance(rule, Laplace):
        raise ValueError(
            f"pseudo_priors: got {rule!r}; a plate of indices takes Laplace pseudo-priors only."
        )
    if not isinstance(move, RandomWalk):
        raise ValueError(
            f"within_class: got {move!r}; a plate of indices takes RandomWalk or None."
        )
    if rule.starts is not None:
        raise ValueError(
            f"pseudo_priors: got {rule!r}; a plate of indices is searched from the model's "
            "initial point: leave out starts, and give latents an initval in the model."
        )
