"""The Carlin-Chib sweep a second time, in plain NumPy, for many chains at once.

`test_kernel` shows that it makes the same sweep from the same noise as the compiled kernel, to
rounding. The broken kernels are this one with a single method replaced: what they differ in from
the true kernel is that one fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.em.burst import Burst, adaptation_gains
from tests.helpers.models import N_CLASSES

#: Log-density of classes (...,) and positions (..., d).
LogDensity = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Drawing:
    """Normal densities to draw auxiliaries from, for every chain: axes (chain, class, …)."""

    mean: np.ndarray
    scale: np.ndarray
    whiten: np.ndarray

    def transform(self, noise: np.ndarray) -> np.ndarray:
        """Turn standard normals ``(n, n_classes, d)`` into auxiliaries."""
        return self.mean + np.einsum("njab,njb->nja", self.scale, noise)

    def log_density(self, auxiliaries: np.ndarray) -> np.ndarray:
        """Return log κ_j(U_j), ``(n, n_classes)``."""
        standard = np.einsum("njab,njb->nja", self.whiten, auxiliaries - self.mean)
        log_det = np.linalg.slogdet(self.whiten)[1]
        d = auxiliaries.shape[-1]
        return log_det - 0.5 * d * np.log(2 * np.pi) - 0.5 * (standard**2).sum(axis=-1)


@dataclass(frozen=True)
class ReferenceSweep:
    """Outcome of a sweep of n chains, as `Sweeps` has it."""

    class_index: np.ndarray
    position: np.ndarray
    auxiliaries: np.ndarray
    log_weight: np.ndarray
    acceptance: np.ndarray


class ReferenceKernel:
    """Carlin-Chib sweeps of many chains with fixed pseudo-priors and step sizes.

    Parameters
    ----------
    log_density : callable
        Of classes ``(...,)`` and positions ``(..., d)``.
    pseudo_priors : PseudoPriors
    log_step : ndarray of shape (n_classes,) or (n, n_classes)
        The same for all chains, or of each.
    n_moves : int
    """

    def __init__(
        self,
        log_density: LogDensity,
        pseudo_priors: PseudoPriors,
        log_step: np.ndarray,
        n_moves: int = 3,
    ) -> None:
        self.log_density = log_density
        self.pseudo_priors = pseudo_priors
        self.log_step = log_step
        self.n_moves = n_moves
        self.d = pseudo_priors.mean.shape[1]
        self.noise_size = N_CLASSES * self.d + 2 + n_moves * (self.d + 2)

    def drawing(self, class_index: np.ndarray, position: np.ndarray) -> Drawing:
        """Return what auxiliaries are drawn from when the chains are where they are."""
        fixed = self.pseudo_priors
        return Drawing(fixed.mean[None], fixed.scale[None], fixed.whiten[None])

    def log_target(self, auxiliaries: np.ndarray) -> np.ndarray:
        """Return log p(y, I = j, U_j), ``(n, n_classes)``; -inf where it is not a number."""
        found = self.log_density(np.arange(N_CLASSES), auxiliaries)
        return np.where(np.isnan(found), -np.inf, found)

    def log_weight(self, auxiliaries: np.ndarray, drawing: Drawing) -> np.ndarray:
        """Return the logarithms of the weights of the class draw, ``(n, n_classes)``."""
        return self.log_target(auxiliaries) - drawing.log_density(auxiliaries)

    def sweep(
        self, class_index: np.ndarray, position: np.ndarray, noise: np.ndarray
    ) -> ReferenceSweep:
        """Make one sweep of every chain.

        Parameters
        ----------
        class_index : ndarray of shape (n,)
        position : ndarray of shape (n, d)
        noise : ndarray of shape (n, noise_size)
        """
        n, d = position.shape
        chain = np.arange(n)
        split = N_CLASSES * d
        drawing = self.drawing(class_index, position)
        auxiliaries = drawing.transform(noise[:, :split].reshape(n, N_CLASSES, d))
        auxiliaries[chain, class_index] = position
        log_weight = self.log_weight(auxiliaries, drawing)
        share = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
        cumulative = np.cumsum(share, axis=1)
        uniform = np.exp(-0.5 * (noise[:, split : split + 2] ** 2).sum(axis=1))
        chosen = (cumulative < (uniform * cumulative[:, -1])[:, None]).sum(axis=1)
        x = auxiliaries[chain, chosen]
        log_p = self.log_density(chosen, x)
        scale = np.broadcast_to(drawing.scale, (n, N_CLASSES, d, d))[chain, chosen]
        log_step = np.broadcast_to(self.log_step, (n, N_CLASSES))[chain, chosen]
        scale = np.exp(log_step)[:, None, None] * scale
        accepted = np.zeros(n)
        for row in np.moveaxis(noise[:, split + 2 :].reshape(n, self.n_moves, d + 2), 1, 0):
            proposal = x + np.einsum("nab,nb->na", scale, row[:, :d])
            proposed = self.log_density(chosen, proposal)
            with np.errstate(invalid="ignore"):
                accept = -0.5 * (row[:, d:] ** 2).sum(axis=1) < proposed - log_p
            x = np.where(accept[:, None], proposal, x)
            log_p = np.where(accept, proposed, log_p)
            accepted += accept
        return ReferenceSweep(chosen, x, auxiliaries, log_weight, accepted / self.n_moves)

    def __call__(
        self, rng: np.random.Generator, class_index: np.ndarray, position: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Make five sweeps of every chain."""
        for _ in range(5):
            noise = rng.standard_normal((len(class_index), self.noise_size))
            moved = self.sweep(class_index, position, noise)
            class_index, position = moved.class_index, moved.position
        return class_index, position


@dataclass(frozen=True)
class CompiledKernel:
    """The compiled kernel with the same face: a burst for every chain.

    Parameters
    ----------
    burst : Burst
    pseudo_priors : PseudoPriors
    log_step : ndarray of shape (n_classes,)
    data : dict of str to ndarray
    n_sweeps : int
    tune : int
        Sweeps that adapt the step size.
    """

    burst: Burst
    pseudo_priors: PseudoPriors
    log_step: np.ndarray
    data: dict[str, np.ndarray]
    n_sweeps: int = 5
    tune: int = 0

    def __call__(
        self, rng: np.random.Generator, class_index: np.ndarray, position: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Make `n_sweeps` sweeps of every chain."""
        gains = adaptation_gains(self.n_sweeps, self.tune)
        moved_index, moved = np.empty_like(class_index), np.empty_like(position)
        for row, start in enumerate(zip(class_index, position, strict=True)):
            draws = self.burst(rng, start, self.log_step, self.pseudo_priors, gains, self.data)
            moved_index[row], moved[row] = draws.class_index[-1], draws.position[-1]
        return moved_index, moved


class GivenNoise:
    """Stands where a generator stands, and hands out the numbers that it was given."""

    def __init__(self, noise: np.ndarray) -> None:
        self.noise = noise

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the noise, whose shape must be the one asked for."""
        assert self.noise.shape == tuple(shape)
        return self.noise
