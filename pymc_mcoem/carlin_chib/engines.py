"""Engines of the step method: one interface for a single index and for a plate of indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pymc_mcoem.carlin_chib.inactive import InactiveDraw
from pymc_mcoem.carlin_chib.kernel import noise_size
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk, WithinClassMove
from pymc_mcoem.carlin_chib.plate_sweeps import PlateSweep
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriorRule, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.plate import PlateLaplace, PlatePseudoPriors
from pymc_mcoem.carlin_chib.sweeps import compile_sweeps
from pymc_mcoem.compiling.backends import without_jax
from pymc_mcoem.density.blocks import BlockDensity
from pymc_mcoem.density.class_density import as_argument
from pymc_mcoem.density.plate import PlateDensity

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.density.geometry import LatentGeometry

__all__ = ["Engine", "PlateEngine", "ScalarEngine", "Swept"]


@dataclass(frozen=True)
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


class Engine(Protocol):
    """Sweeps and pseudo-priors compiled for one model."""

    density: Any
    initial_log_step: np.ndarray
    auxiliaries_shape: tuple[int, ...]

    def fit(self, rng: np.random.Generator, others: Sequence[np.ndarray]) -> Any:
        """Return pseudo-priors given the values of all other variables."""
        ...

    def sweep(
        self,
        rng: np.random.Generator,
        gain: float,
        class_index: np.ndarray,
        position: np.ndarray,
        log_step: np.ndarray,
        pseudo_priors: Any,
        others: Sequence[np.ndarray],
        *,
        equalizing_log_weight: np.ndarray,
        auxiliaries: np.ndarray | None = None,
        jumps: bool = True,
        moves: Any = None,
    ) -> Swept:
        """Make one sweep from fresh auxiliaries, or from given ones, which it updates in place."""
        ...


class ScalarEngine:
    """One class index; latents shared by all classes, or in blocks.

    Parameters
    ----------
    density : ClassDensity
    geometry : LatentGeometry
    pseudo_priors : PseudoPriorRule or None
    move : WithinClassMove
    mode : str or None
        PyTensor's compilation mode.
    metropolised : bool
        Draw the index by Metropolized Gibbs.
    jump : AnnealedJump or None
        Jump to make after every sweep.
    """

    def __init__(
        self,
        density: ClassDensity,
        geometry: LatentGeometry,
        pseudo_priors: PseudoPriorRule | None,
        move: WithinClassMove,
        mode: Any,
        *,
        metropolised: bool = False,
        jump: AnnealedJump | None = None,
    ) -> None:
        density.require_latents()
        n_classes, n = density.n_classes, density.n_latents
        self.density = density
        self.auxiliaries_shape: tuple[int, ...] = (n_classes, n)
        self.initial_log_step = np.array([move.initial_log_step(size) for size in density.n_active])
        self._noise_size = noise_size(n_classes, n, move, metropolised)
        # There is one fit per chain, so every mode search can afford to run to its end.
        rule = Laplace(race=None) if pseudo_priors is None else pseudo_priors
        self._fit = rule.compile(density, geometry, mode)
        self._inactive = (
            InactiveDraw(density, without_jax(mode)) if isinstance(density, BlockDensity) else None
        )
        self._jump = None if jump is None else jump.compile(density, without_jax(mode))
        if self._jump is not None:
            # its step size is tuned with those of the classes, and comes after them
            self.initial_log_step = np.append(self.initial_log_step, self._jump.initial_log_step)
        self._sweeps = compile_sweeps(density, move, metropolised=metropolised, mode=mode)

    def fit(self, rng: np.random.Generator, others: Sequence[np.ndarray]) -> PseudoPriors:
        """Return pseudo-priors given the values of all other variables."""
        found = self._fit({}, rng, others)
        active = self.density.active
        return found if active is None else found.restricted(active)

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

        Given auxiliaries, and jumps, use only the heaviest component of a mixture. `moves` are
        normals whose covariances moves within a class use instead of the pseudo-priors'.
        """
        through = pseudo_priors if moves is None else moves
        here = int(class_index)
        position = as_argument(self.density.without_inactive(here, position))
        noise = rng.standard_normal(self._noise_size)
        log_weight_excess = equalizing_log_weight
        if auxiliaries is not None:
            noise[: auxiliaries.size] = auxiliaries.ravel()
            if moves is not None:
                heaviest = replace(pseudo_priors, mixtures=None)
                log_weight_excess = equalizing_log_weight + self._placed(
                    here, position, noise, heaviest, through
                )
            auxiliaries[here] = pseudo_priors.whiten[here] @ (position - pseudo_priors.mean[here])
        elif pseudo_priors.mixtures is not None:
            position, log_excess = self._mixed(
                rng, here, position, noise, pseudo_priors, through, others
            )
            log_weight_excess = equalizing_log_weight + log_excess
        elif moves is not None:
            log_excess = self._placed(here, position, noise, pseudo_priors, through)
            log_weight_excess = equalizing_log_weight + log_excess
        made = self._sweeps(
            noise[None],
            np.array([gain]),
            here,
            position,
            log_step[: self.density.n_classes],
            log_weight_excess,
            through,
            others,
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
            log_weight = log_ratio - np.logaddexp.reduce(log_ratio)
        return Swept(
            index,
            moved,
            new_log_step,
            log_weight,
            log_ratio,
            float(made.acceptance[0]),
            jump_acceptance,
        )

    def _placed(
        self,
        here: int,
        position: np.ndarray,
        noise: np.ndarray,
        pseudo_priors: PseudoPriors,
        through: PseudoPriors,
    ) -> np.ndarray:
        """Rewrite `noise` so that a sweep with other normals draws the same auxiliaries.

        Returns
        -------
        log_excess : ndarray of shape (n_classes,)
            To be added to the logarithms of the sweep's weights.
        """
        n_auxiliary = pseudo_priors.mean.size
        standard = noise[:n_auxiliary].reshape(pseudo_priors.mean.shape)
        drawn = pseudo_priors.mean + np.einsum("jab,jb->ja", pseudo_priors.scale, standard)
        drawn[here] = position
        placed, log_excess = pseudo_priors.placed_in(through, drawn)
        noise[:n_auxiliary] = placed.ravel()
        return log_excess

    def _mixed(
        self,
        rng: np.random.Generator,
        here: int,
        position: np.ndarray,
        noise: np.ndarray,
        pseudo_priors: PseudoPriors,
        through: PseudoPriors,
        others: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the auxiliaries from mixtures, and write to `noise` the values that give them.

        A sweep maps noise by the heaviest components, whichever component an auxiliary came from.
        Its moves within a class therefore use one covariance, which depends on the fit and not on
        the chain's position: with the covariance of the mode that the chain is at, moves to
        another mode and back would not be equally likely.

        Such moves do not lead from one mode of a class to another. Before the sweep the chain is
        therefore proposed a draw of its own class's mixture, in a Metropolis-Hastings step.

        Returns
        -------
        position : ndarray of shape (n_latents,)
            The chain's position after this step.
        log_excess : ndarray of shape (n_classes,)
            To be added to the logarithms of the sweep's weights.
        """
        assert pseudo_priors.mixtures is not None
        drawn = pseudo_priors.draw(rng)
        proposed = drawn[here].copy()
        drawn[here] = position
        placed, log_excess = pseudo_priors.placed_in(through, drawn)
        if pseudo_priors.mixtures.is_mixed[here]:
            drawn[here] = proposed
            placed_there, log_excess_there = pseudo_priors.placed_in(through, drawn)
            log_p = self._sweeps.log_densities(here, np.stack([position, proposed]), others)
            # up to the constant of the normals
            log_kappa = [
                -0.5 * (z[here] ** 2).sum() - excess[here]
                for z, excess in ((placed, log_excess), (placed_there, log_excess_there))
            ]
            # nan, where the density cannot be evaluated, is not accepted
            with np.errstate(invalid="ignore"):
                log_ratio = log_p[1] - log_kappa[1] - (log_p[0] - log_kappa[0])
            if -rng.standard_exponential() < log_ratio:
                position, placed, log_excess = proposed, placed_there, log_excess_there
        noise[: placed.size] = placed.ravel()
        return position, log_excess


class PlateEngine:
    """A plate of class indices.

    Parameters
    ----------
    density : PlateDensity
    pseudo_priors : PseudoPriorRule or None
        `Laplace` or None.
    move : WithinClassMove
        `RandomWalk`.
    mode : str or None
    metropolised : bool

    Raises
    ------
    ValueError
        If another rule or move, or a rule with starts, is given.
    """

    def __init__(
        self,
        density: PlateDensity,
        pseudo_priors: PseudoPriorRule | None,
        move: WithinClassMove,
        mode: Any,
        *,
        metropolised: bool = False,
    ) -> None:
        rule = Laplace() if pseudo_priors is None else pseudo_priors
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
        self.density = density
        self.auxiliaries_shape: tuple[int, ...] = (
            density.n_rows,
            density.n_classes,
            density.n_latents,
        )
        self.initial_log_step = np.full(density.n_classes, move.initial_log_step(density.n_latents))
        self._fit = PlateLaplace(
            density,
            tolerance=rule.tolerance,
            max_iterations=rule.max_iterations,
            n_prior_draws=rule.n_prior_draws,
        )
        self._sweep = PlateSweep(density, move, mode, metropolised=metropolised)

    def fit(self, rng: np.random.Generator, others: Sequence[np.ndarray]) -> PlatePseudoPriors:
        """Return pseudo-priors given the values of all other variables."""
        return self._fit(others, rng)

    def sweep(
        self,
        rng: np.random.Generator,
        gain: float,
        class_index: np.ndarray,
        position: np.ndarray,
        log_step: np.ndarray,
        pseudo_priors: PlatePseudoPriors,
        others: Sequence[np.ndarray],
        *,
        equalizing_log_weight: np.ndarray,
        auxiliaries: np.ndarray | None = None,
        jumps: bool = True,
        moves: None = None,
    ) -> Swept:
        """Make one sweep of all rows, without equalizing weights or an adapted shape of moves."""
        standard, normals = auxiliaries, pseudo_priors
        if pseudo_priors.mixtures is not None and auxiliaries is None:
            position, standard, normals = self._mixed(
                rng, class_index, position, pseudo_priors, others
            )
        found = self._sweep(rng, gain, class_index, position, log_step, normals, others, standard)
        index, moved, new_log_step, log_weight, log_ratio, acceptance = map(np.asarray, found)
        if auxiliaries is not None:
            rows = np.arange(len(position))
            auxiliaries[rows, class_index] = pseudo_priors.standardised(class_index, rows, position)
        new_log_step = as_argument(new_log_step)
        return Swept(index, moved, new_log_step, log_weight, log_ratio, float(np.mean(acceptance)))

    def _mixed(
        self,
        rng: np.random.Generator,
        class_index: np.ndarray,
        position: np.ndarray,
        pseudo_priors: PlatePseudoPriors,
        others: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray, PlatePseudoPriors]:
        """Draw auxiliaries, from mixtures in classes and rows with several modes.

        As in `ScalarEngine`, rows whose own class has a mixture are first proposed a draw of it in
        a Metropolis-Hastings step. A sweep divides by normals, so the excess of the normals over
        the mixtures goes into their normalizers.

        Returns
        -------
        position : ndarray of shape (n_rows, n_latents)
            The chain's position after this step.
        standard : ndarray of shape (n_rows, n_classes, n_latents)
            The auxiliaries, in units of the normals.
        normals : PlatePseudoPriors
        """
        assert pseudo_priors.mixtures is not None
        classes, rows = pseudo_priors.mixtures.classes, pseudo_priors.mixtures.rows
        standard = rng.standard_normal(self.auxiliaries_shape)
        drawn = pseudo_priors.mixtures.mixtures.draw(rng)
        own = classes == class_index[rows]
        if own.any():
            here, proposed = position[rows], position.copy()
            proposed[rows[own]] = drawn[own]
            log_p, log_p_there = (
                self._sweep.log_densities(class_index, x, others)[rows]
                for x in (position, proposed)
            )
            mixture = pseudo_priors.mixtures.mixtures
            # nan, where the density cannot be evaluated, is not accepted
            with np.errstate(invalid="ignore"):
                log_ratio = log_p_there - mixture.log_density(drawn)
                log_ratio -= log_p - mixture.log_density(here)
                accepted = own & (-rng.standard_exponential(len(rows)) < log_ratio)
            position = position.copy()
            position[rows[accepted]] = drawn[accepted]
            drawn[own] = position[rows[own]]
        standard[rows, classes] = pseudo_priors.standardised(classes, rows, drawn)
        log_normalizer = pseudo_priors.log_normalizer.copy()
        log_normalizer[classes, rows] -= pseudo_priors.log_excess(drawn)
        return position, standard, replace(pseudo_priors, log_normalizer=log_normalizer)
