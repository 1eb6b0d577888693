"""Pseudo-priors learned from draws within a class, where normal approximations fit poorly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.base import Mixtures, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.conditional_scale import ConditionalScale
from pymc_mcoem.carlin_chib.pseudo_priors.sinh_arcsinh import SinhArcsinh

__all__ = ["LearnedMap", "LearnedPseudoPriors", "candidate_maps"]

#: Share of a learned map in its class's pseudo-prior; the rest is what was there before, so that no
#: importance ratio becomes much larger than it was.
_SHARE = 0.9

#: Most normals of a mixture, and most latents for which there is one.
_MOST_NORMALS = 6
_MOST_MIXED = 20

#: Share of a wide normal among them. Its covariance is wider by the second over the root of the
#: number of latents: the more there are, the less may each be wider for draws to hit.
_WIDE_SHARE = 0.1
_WIDER = 3.0


@dataclass(frozen=True, eq=False)
class LearnedMap:
    """Normals carried along by invertible maps.

    Attributes
    ----------
    active : ndarray of bool, shape (n_latents,)
        Coordinates that the map is of; the others are independent standard normals.
    layers : sequence of SinhArcsinh or ConditionalScale
        Applied to draws one after another, they make them closer to normal.
    normals : Mixtures
        Of one class: a mixture in these coordinates.
    """

    active: np.ndarray
    layers: Sequence[SinhArcsinh | ConditionalScale]
    normals: Mixtures

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the log-density ``(...)`` at positions ``(..., n_latents)``."""
        z, off = x[..., self.active], x[..., ~self.active]
        found = -0.5 * (off**2 + np.log(2 * np.pi)).sum(axis=-1)
        with np.errstate(all="ignore"):
            for layer in self.layers:
                z, log_slope = layer.to_normal(z)
                found = found + log_slope
            found = found + self.normals.log_density(z[..., None, :])[..., 0]
        return np.where(np.isnan(found), -np.inf, found)

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return one draw ``(n_latents,)``."""
        found = rng.standard_normal(len(self.active))
        z = self.normals.draw(rng)[0]
        for layer in reversed(self.layers):
            z = layer.from_normal(z)
        found[self.active] = z
        return found

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that are equal in equal maps."""
        of_layers = [array for layer in self.layers for array in vars(layer).values()]
        return [self.active, *of_layers, *self.normals.arrays()]


def candidate_maps(
    draws: np.ndarray, active: np.ndarray, seed: int
) -> Iterator[tuple[str, LearnedMap]]:
    """Yield maps fitted to draws of a class, by name.

    Parameters
    ----------
    draws : ndarray of shape (n_draws, n_latents)
    active : ndarray of bool, shape (n_latents,)
    seed : int
        Of the mixtures' starts.
    """
    own = draws[:, active]
    scale = ConditionalScale.fitted(own) if own.shape[1] > 1 else None
    ways: dict[str, list[type[SinhArcsinh] | ConditionalScale]] = {
        "mixture of normals": [],
        "sinh-arcsinh": [SinhArcsinh],
    }
    if scale is not None and len(scale.drivers):
        ways["conditional scales and sinh-arcsinh"] = [scale, SinhArcsinh]
    for name, way in ways.items():
        layers, z = [], own
        for each in way:
            layer = each if isinstance(each, ConditionalScale) else each.fitted(z)
            layers.append(layer)
            z, _ = layer.to_normal(z)
        yield name, LearnedMap(active, tuple(layers), _fitted_normals(z, seed))


def _fitted_normals(z: np.ndarray, seed: int) -> Mixtures:
    """Fit a mixture of normals, its number by the Bayesian information criterion."""
    n_draws, n = z.shape
    mean, covariance = z.mean(axis=0)[None], np.atleast_2d(np.cov(z.T))
    # as if there were one draw more for each coordinate, independent of the others
    shrunk = (n_draws * covariance + n * np.diag(np.diagonal(covariance))) / (n_draws + n)
    share, covariances = np.ones(1), shrunk[None]
    if n <= _MOST_MIXED:
        # imported where it is used: it takes a second
        from sklearn.mixture import GaussianMixture

        least = np.inf
        for n_normals in range(1, _MOST_NORMALS + 1):
            fit = GaussianMixture(n_normals, random_state=seed).fit(z)
            criterion = fit.bic(z)
            if criterion >= least:
                break
            least, share, mean, covariances = criterion, fit.weights_, fit.means_, fit.covariances_
    # A wide component, so that the chain does not stay where the tails are heavier than the map's.
    wide = (1 + _WIDER / np.sqrt(n)) * shrunk
    share = np.append((1 - _WIDE_SHARE) * share, _WIDE_SHARE)
    mean = np.concatenate([mean, z.mean(axis=0)[None]])
    covariances = np.concatenate([covariances, wide[None]])
    return Mixtures(np.log(share)[None], PseudoPriors.from_covariance(mean, covariances))


@dataclass(frozen=True, eq=False)
class LearnedPseudoPriors:
    """Pseudo-priors of which some classes' are learned; as `PseudoPriors.mixtures`.

    Attributes
    ----------
    before : PseudoPriors
        What was there before, for the other classes and for a tenth of each learned one.
    maps : dict of int to LearnedMap
        By class.
    """

    before: PseudoPriors
    maps: dict[int, LearnedMap]

    @cached_property
    def is_mixed(self) -> np.ndarray:
        """Whether a draw of its own pseudo-prior is proposed in each class, ``(n_classes,)``."""
        found = self.before.is_mixed.copy()
        found[list(self.maps)] = True
        return found

    @property
    def has_several_modes(self) -> np.ndarray:
        """Whether each class was fitted at several modes, ``(n_classes,)``."""
        return self.before.has_several_modes

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """Return log κ_j(U_j), ``(..., n_classes)``, of ``(..., n_classes, n_latents)``."""
        found = self.before.log_density(positions)
        for j, learned in self.maps.items():
            log_p = learned.log_density(positions[..., j, :])
            found[..., j] = np.logaddexp(
                np.log(_SHARE) + log_p, np.log(1 - _SHARE) + found[..., j]
            )
        return found

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw from every class's pseudo-prior, ``(n_classes, n_latents)``."""
        found = self.before.draw(rng)
        for j, learned in self.maps.items():
            drawn = learned.draw(rng)
            if rng.random() < _SHARE:
                found[j] = drawn
        return found

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that are equal in equal pseudo-priors."""
        mixtures = self.before.mixtures
        before = [] if mixtures is None else mixtures.arrays()
        of_maps = [array for each in self.maps.values() for array in each.arrays()]
        return [*before, np.array([*self.maps]), *of_maps]
