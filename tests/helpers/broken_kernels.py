"""Kernels with one fault each, the likely ones: what a check is worth shows on them."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from tests.helpers.reference_kernel import Drawing, ReferenceKernel


class RatioLeftOut(ReferenceKernel):
    """Weighs the classes by their densities alone, without the pseudo-priors'."""

    def log_weight(self, auxiliaries, drawing):
        return self.log_target(auxiliaries)


class PseudoPriorsSwapped(ReferenceKernel):
    """Draws from κ_0 and κ_1, but weighs by κ_1 and κ_0."""

    def log_weight(self, auxiliaries, drawing):
        order = [1, 0, 2]
        swapped = Drawing(drawing.mean[:, order], drawing.scale[:, order], drawing.whiten[:, order])
        return self.log_target(auxiliaries) - swapped.log_density(auxiliaries)


class FittedWhereItStands(ReferenceKernel):
    """Fits every pseudo-prior anew at each sweep, one Newton step from the chain's own latents.

    One latent only. The curvature is held above a floor, as a mode search would.
    """

    def drawing(self, class_index, position):
        width = 1e-3
        offset = width * np.arange(-1, 2)
        at = position[:, None, None, :] + offset[None, None, :, None]
        low, middle, high = np.moveaxis(self.log_density(np.arange(3)[None, :, None], at), -1, 0)
        gradient = (high - low) / (2 * width)
        precision = np.maximum(-(high - 2 * middle + low) / width**2, 0.5)
        mean = position + gradient / precision
        square = (*mean.shape, 1, 1)
        return Drawing(
            mean[..., None],
            np.reshape(precision**-0.5, square),
            np.reshape(precision**0.5, square),
        )


class AdaptsForEver(ReferenceKernel):
    """Goes on tuning every chain's step size with the gains of tuning, 2/√t."""

    def __call__(self, rng, class_index, position):
        chain = np.arange(len(class_index))
        fixed = self.log_step
        self.log_step = np.tile(fixed, (len(chain), 1))
        for t in range(1, 6):
            noise = rng.standard_normal((len(chain), self.noise_size))
            moved = self.sweep(class_index, position, noise)
            class_index, position = moved.class_index, moved.position
            self.log_step[chain, class_index] += 2 / np.sqrt(t) * (moved.acceptance - 0.4)
        self.log_step = fixed
        return class_index, position


def rao_blackwell_features(draws: Sweeps, features, *, later_latents: bool) -> np.ndarray:
    """Return Σ_j w_j f(j, U_j) averaged over a burst, ``(n_features,)``.

    Parameters
    ----------
    draws : Sweeps
        With its auxiliaries.
    features : callable
        Of classes ``(n,)`` and positions ``(n, d)``, to ``(n, n_features)``.
    later_latents : bool
        The fault: the latents of the chosen class as they are after the within-class moves,
        beside weights from before.
    """
    n_sweeps, n_classes, d = draws.auxiliaries.shape
    auxiliaries = draws.auxiliaries.copy()
    if later_latents:
        auxiliaries[np.arange(n_sweeps), draws.class_index] = draws.position
    weight = np.exp(draws.log_weight - logsumexp(draws.log_weight, axis=1, keepdims=True))
    classes = np.tile(np.arange(n_classes), n_sweeps)
    values = features(classes, auxiliaries.reshape(-1, d))
    found: np.ndarray = weight.ravel() @ values / n_sweeps
    return found
