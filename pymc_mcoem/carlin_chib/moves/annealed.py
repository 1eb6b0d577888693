"""Jumps between two classes along a bridge of densities, for pseudo-priors that fit poorly.

A position is carried over to another class in standardized form, the z in x = m_j + L_j z. On the
way it is moved under densities between those of the two classes.

The bridge is crossed in Python, one compiled evaluation of density and gradient after another. A
single graph of nested loops took minutes to compile and three times as long to run.

Notes
-----
The steps of a trajectory begin and end with half a kick, unlike those of `hamiltonian`, since the
evaluation at the end then gives the log-density as well: ten latents and twenty temperatures make
203 draws a second with them, and 173 with the steps of `hamiltonian`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from scipy.special import softmax

from pymc_mcoem.carlin_chib.moves.within_class import require_share
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["AnnealedJump", "CompiledJump", "Jumped", "proposal_weights"]


@dataclass(frozen=True)
class AnnealedJump:
    """Annealed jump: another class is proposed and reached in stages.

    Parameters
    ----------
    n_temperatures : int
        Number T of pieces that the bridge is cut into, at least one. With one piece the latents
        are carried over at once, without moves on the way.
    n_leapfrog : int
        Leapfrog steps of the Hamiltonian move between two pieces, at least one.
    target_acceptance : float
        Acceptance of these moves that their step size is tuned to.

    Raises
    ------
    ValueError
        If a number is less than one or `target_acceptance` is not between 0 and 1.

    Notes
    -----
    From class i at standardized latents z a class j is proposed. At each t = 1/T, ..., (T - 1)/T
    a move is made that is reversible with respect to the density log p_t = (1 - t) log p_i(z)
    + t log p_j(z). With log w = (1/T) Σ (log p_j - log p_i), taken before each move and after the
    last, the arrival is accepted with probability min(1, w q(i | j) / q(j | i)), where q is the
    probability of a proposal: annealed importance sampling inside a reversible jump (Karagiannis
    and Andrieu 2013). The jump is exact, because the way back makes the same moves in reverse.
    With T = 1 it is a jump along the map between the two normal approximations.

    Cost: 2 (T - 1) n_leapfrog + 2 evaluations of density and gradient. It pays off where
    draws from pseudo-priors hardly ever hit. On nine images of 16 × 16 pixels with 78 latents, and
    with equal weights for the two likeliest classes, more than 0.05 of the attempts would succeed
    on seven images with 200 temperatures and on four with draws from Laplace approximations.

    Examples
    --------
    >>> AnnealedJump(n_temperatures=100).n_leapfrog
    4
    """

    n_temperatures: int = 50
    n_leapfrog: int = 4
    target_acceptance: float = 0.8

    def __post_init__(self) -> None:
        for name in ("n_temperatures", "n_leapfrog"):
            require_whole(name, getattr(self, name), 1)
        require_share(self.target_acceptance)

    def compile(self, density: ClassDensity, mode: Any = None) -> CompiledJump:
        """Compile for `density`."""
        return CompiledJump(self, density, mode)


@dataclass(frozen=True)
class Jumped:
    """End of a jump, which is its start if the jump is not accepted.

    Attributes
    ----------
    class_index : ndarray of int, shape ()
    position : ndarray of shape (n_latents,)
    log_step : float
        Logarithm of the adapted step size of the moves on the way.
    acceptance : float
        Share of these moves accepted; nan without any, or if the bridge leaves the support.
    """

    class_index: np.ndarray
    position: np.ndarray
    log_step: float
    acceptance: float


def proposal_weights(log_evidence: np.ndarray) -> np.ndarray:
    """Return the probabilities of proposing each class, before the present one is excluded.

    Parameters
    ----------
    log_evidence : ndarray of shape (n_classes,)
        Estimates of log p(y, I = j); nan where there are none.

    Returns
    -------
    ndarray of shape (n_classes,)
        Half of it follows the estimates and half is uniform, because the estimates may err.

    Examples
    --------
    >>> proposal_weights(np.log([0.75, 0.25])).round(3)
    array([0.625, 0.375])
    """
    uniform = np.full(len(log_evidence), 1 / len(log_evidence))
    if not np.isfinite(log_evidence).any():
        return uniform
    believed = softmax(np.where(np.isnan(log_evidence), -np.inf, log_evidence))
    mixed: np.ndarray = 0.5 * (believed + uniform)
    return mixed


class CompiledJump:
    """An `AnnealedJump` compiled for one density.

    Parameters
    ----------
    density : ClassDensity
        Density with at least two classes.
    """

    def __init__(self, settings: AnnealedJump, density: ClassDensity, mode: Any = None) -> None:
        if density.n_classes == 1:
            raise ValueError(
                f"jump: got {settings!r}, but there is one class and nowhere to jump; leave it out."
            )
        self.settings = settings
        self.density = density
        self.initial_log_step = -0.25 * math.log(density.n_latents)
        # a vector of length one, because numba is slow to receive arrays without an axis
        index = pt.tensor("class_index", dtype="int64", shape=(1,))
        x = pt.tensor("position", dtype="float64", shape=(density.n_latents,))
        self._function = compile_with_data(
            density,
            [index, x],
            [density.log_density(index[0], x), density.gradient(index[0], x)],
            mode,
        )

    def __call__(
        self,
        rng: np.random.Generator,
        gain: float,
        class_index: np.ndarray,
        position: np.ndarray,
        log_step: float,
        pseudo_priors: PseudoPriors,
        others: Sequence[np.ndarray],
        equalizing_log_weight: np.ndarray,
    ) -> Jumped:
        """Propose another class, cross the bridge to it, and accept or stay.

        Parameters
        ----------
        gain : float
            Gain of the step-size adaptation; 0 once the kernel must not change.
        class_index : ndarray of int, shape ()
        position : ndarray of shape (n_latents,)
        pseudo_priors : PseudoPriors
            Pseudo-priors that standardize the latents.
        equalizing_log_weight : ndarray of shape (n_classes,)
            Added to the logarithms of the classes' prior probabilities.
        """
        here = int(class_index)
        proposed = proposal_weights(pseudo_priors.log_evidence + equalizing_log_weight)
        there = propose(rng, proposed, here)
        z = pseudo_priors.standardized((here,), position)
        if self.density.active is not None:
            # latents that are inactive in the class are standard normal, and are carried over so
            inactive = ~self.density.active[here]
            z = np.where(inactive, rng.standard_normal(len(z)), z)
        bridge = Bridge(self._function, pseudo_priors, (here, there), equalizing_log_weight, others)
        arrived, log_work, acceptance = self._cross(bridge, rng, z, math.exp(log_step))
        log_ratio = log_proposal_ratio(proposed, here, there)
        if not math.isnan(acceptance):
            log_step = log_step + gain * (acceptance - self.settings.target_acceptance)
        # nan, where the bridge leaves a support, is not accepted
        if -rng.standard_exponential() < log_work + log_ratio:
            return Jumped(np.asarray(there), bridge.place(1, arrived), log_step, acceptance)
        return Jumped(np.asarray(here), position, log_step, acceptance)

    def _cross(
        self, bridge: Bridge, rng: np.random.Generator, z: np.ndarray, step: float
    ) -> tuple[np.ndarray, float, float]:
        """Return the end of the bridge, log w, and the share of moves accepted (nan: no moves)."""
        n_temperatures, accepted = self.settings.n_temperatures, 0
        with np.errstate(invalid="ignore", over="ignore"):
            there = bridge.at(z)
            log_work = there.difference
            if not math.isfinite(log_work):
                # the class cannot be reached, and nothing is learned about the step size
                return z, log_work, math.nan
            for t in np.arange(1, n_temperatures) / n_temperatures:
                moved = self._trajectory(bridge, rng, there, t, step)
                accepted += moved is not there
                there = moved
                log_work += there.difference
        share = accepted / (n_temperatures - 1) if n_temperatures > 1 else math.nan
        return there.z, log_work / n_temperatures, share

    def _trajectory(
        self, bridge: Bridge, rng: np.random.Generator, start: OnBridge, t: float, step: float
    ) -> OnBridge:
        """Make a Hamiltonian move at temperature t."""
        momentum = rng.standard_normal(len(start.z))
        now, p = start, momentum
        for _ in range(self.settings.n_leapfrog):
            half = p + 0.5 * step * now.slope(t)
            now = bridge.at(now.z + step * half)
            p = half + 0.5 * step * now.slope(t)
        change = now.log_density(t) - start.log_density(t) - 0.5 * (p @ p - momentum @ momentum)
        return now if -rng.standard_exponential() < change else start


@dataclass(frozen=True, eq=False)
class OnBridge:
    """Point of the bridge, with the log-densities and gradients of the two classes there.

    Attributes
    ----------
    z : ndarray of shape (n_latents,)
    log_target : ndarray of shape (2,)
        log p(y, I, z) in the class that is left and in the other, up to a common constant.
    gradient : ndarray of shape (2, n_latents)
    """

    z: np.ndarray
    log_target: np.ndarray
    gradient: np.ndarray

    @property
    def difference(self) -> float:
        """Return the log-density of the class ahead minus that of the class left."""
        return float(self.log_target[1] - self.log_target[0])

    def log_density(self, t: float) -> float:
        """Return the logarithm of the density at temperature t."""
        return float((1 - t) * self.log_target[0] + t * self.log_target[1])

    def slope(self, t: float) -> np.ndarray:
        """Return the gradient of `log_density`, ``(n_latents,)``."""
        found: np.ndarray = (1 - t) * self.gradient[0] + t * self.gradient[1]
        return found


@dataclass(frozen=True)
class Bridge:
    """The densities of two classes on the scale on which their pseudo-priors are standard normal.

    Attributes
    ----------
    function : callable
        Maps class index, position and other values to log-density and gradient.
    classes : tuple of two int
        The class that is left, and the other.
    equalizing_log_weight : ndarray of shape (n_classes,)
    """

    function: Any
    pseudo_priors: PseudoPriors
    classes: tuple[int, int]
    equalizing_log_weight: np.ndarray
    others: Sequence[np.ndarray]

    def place(self, end: int, z: np.ndarray) -> np.ndarray:
        """Return the position of standardized latents in the class at an end, 0 or 1."""
        j = self.classes[end]
        placed: np.ndarray = self.pseudo_priors.mean[j] + self.pseudo_priors.scale[j] @ z
        return placed

    def at(self, z: np.ndarray) -> OnBridge:
        """Evaluate both classes at z."""
        log_target, gradient = np.empty(2), np.empty((2, len(z)))
        for end, j in enumerate(self.classes):
            log_p, slope = self.function(np.array([j]), self.place(end, z), *self.others)
            # the change of volume by standardizing, as in a pseudo-prior's density
            log_target[end] = (
                log_p - self.pseudo_priors.log_normalizer[j] + self.equalizing_log_weight[j]
            )
            gradient[end] = self.pseudo_priors.scale[j].T @ np.asarray(slope)
        log_target[np.isnan(log_target)] = -np.inf
        return OnBridge(z, log_target, gradient)


def propose(rng: np.random.Generator, proposed: np.ndarray, here: int) -> int:
    """Draw a class other than `here`, with probabilities proportional to `proposed`."""
    weight = proposed.copy()
    weight[here] = 0.0
    return int(rng.choice(len(weight), p=weight / weight.sum()))


def log_proposal_ratio(proposed: np.ndarray, here: int, there: int) -> float:
    """Return log q(i | j) / q(j | i), where i is `here` and j is `there`."""

    def log_probability(origin: int, goal: int) -> float:
        return math.log(proposed[goal] / np.delete(proposed, origin).sum())

    return log_probability(there, here) - log_probability(here, there)
