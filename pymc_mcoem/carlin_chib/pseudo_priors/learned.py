"""Pseudo-priors learned from draws within a class, where normal approximations fit poorly."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from pymc_mcoem.carlin_chib.pseudo_priors.base import Mixtures, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.conditional_scale import ConditionalScale
from pymc_mcoem.carlin_chib.pseudo_priors.sinh_arcsinh import SinhArcsinh

__all__ = ["LearnedMap", "LearnedPseudoPriors", "candidate_maps", "with_maps"]

#: Share of a learned map in its class's pseudo-prior; the rest is the former pseudo-prior, so that
#: no importance ratio becomes much larger than it was.
_SHARE = 0.9

#: Most normals of a mixture, and most latents for which there is one.
_MOST_NORMALS = 8
_MOST_MIXED = 20

#: Most draws that a mixture is fitted to.
_MOST_FITTED = 1_500

#: Share of a wide normal among them. Its covariance has the further factor 1 + _WIDER /
#: sqrt(n_latents): the more latents there are, the less wide each may be for draws to hit.
_WIDE_SHARE = 0.1
_WIDER = 3.0


@dataclass(frozen=True, eq=False)
class LearnedMap:
    """Normals transformed by invertible maps.

    Attributes
    ----------
    active : ndarray of bool, shape (n_latents,)
        Coordinates that are mapped; the others are independent standard normals.
    layers : sequence of SinhArcsinh or ConditionalScale
        Maps that, applied one after another, make draws closer to normal.
    normals : Mixtures
        A mixture for one class in these coordinates.
    moments : PseudoPriors
        The normal with the moments of the class's draws in active coordinates, with outliers pulled
        in. It gives random walks their shape.
    """

    active: np.ndarray
    layers: Sequence[SinhArcsinh | ConditionalScale]
    normals: Mixtures
    moments: PseudoPriors

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
        return [self.active, *of_layers, *self.normals.arrays(), *self.moments.as_list()]


def candidate_maps(
    draws: np.ndarray, held_out: np.ndarray, active: np.ndarray, seed: int
) -> Iterator[tuple[str, LearnedMap]]:
    """Yield maps fitted to draws of a class, by name, if the draws suffice for them.

    Parameters
    ----------
    draws, held_out : ndarray of shape (n_draws, n_latents)
        Covariances are shrunk so that held-out draws are the most probable.
    active : ndarray of bool, shape (n_latents,)
    seed : int
        Seed of the mixtures' starts.
    """
    own = draws[:, active]
    n = own.shape[1]

    def scaled() -> list[SinhArcsinh | ConditionalScale]:
        scale = ConditionalScale.fitted(own)
        return [scale, SinhArcsinh.fitted(scale.to_normal(own)[0])] if len(scale.drivers) else []

    ways: dict[str, Callable[[], list[SinhArcsinh | ConditionalScale]]] = {
        "mixture of normals": lambda: [ConditionalScale.plain(own)],
        "sinh-arcsinh": lambda: [SinhArcsinh.fitted(own)],
        "conditional scales and sinh-arcsinh": scaled if n > 1 else list,
    }
    for name, way in ways.items():
        try:
            layers, z, other_z = way(), own, held_out[:, active]
            if not layers:
                continue
            for layer in layers:
                (z, _), (other_z, _) = layer.to_normal(z), layer.to_normal(other_z)
            normals = _fitted_normals(z, other_z, seed)
            found = LearnedMap(active, tuple(layers), normals, _moments(own))
        except (np.linalg.LinAlgError, ValueError):
            # too few different draws, or collinear ones
            continue
        yield name, found


def _moments(draws: np.ndarray) -> PseudoPriors:
    """Return the normal with the moments of the draws, with outliers pulled in."""
    low, middle, high = np.quantile(draws, [0.16, 0.5, 0.84], axis=0)
    reach = 1.5 * (high - low)
    inner = np.clip(draws, middle - reach, middle + reach)
    n = draws.shape[1]
    covariance = np.cov(inner.T).reshape(n, n)
    covariance += 1e-9 * np.diag(np.diagonal(covariance))
    return PseudoPriors.from_covariance(inner.mean(axis=0)[None], covariance[None])


def with_maps(before: PseudoPriors, maps: dict[int, LearnedMap]) -> PseudoPriors:
    """Return pseudo-priors with learned maps in some classes.

    A sweep writes draws as m + L z. In classes with maps, m and L are moments of the draws: a mode
    may be so narrow that z would lose its digits.
    """
    mean, scale, whiten, log_normalizer = (array.copy() for array in before.as_list())
    for j, learned in maps.items():
        within = np.ix_(learned.active, learned.active)
        mean[j, learned.active] = learned.moments.mean[0]
        scale[j][within] = learned.moments.scale[0]
        whiten[j][within] = learned.moments.whiten[0]
        n_off = np.count_nonzero(~learned.active)
        log_normalizer[j] = learned.moments.log_normalizer[0] - 0.5 * n_off * np.log(2 * np.pi)
    return replace(
        before,
        mean=mean,
        scale=scale,
        whiten=whiten,
        log_normalizer=log_normalizer,
        mixtures=LearnedPseudoPriors(before, maps),
    )


def _fitted_normals(z: np.ndarray, held_out: np.ndarray, seed: int) -> Mixtures:
    """Fit a normal or, for few latents, a mixture sized by the Bayesian information criterion."""
    n = z.shape[1]
    mean, share = z.mean(axis=0)[None], np.ones(1)
    covariances = shrunk = _shrunk(np.atleast_2d(np.cov(z.T)), held_out - mean)[None]
    if n <= _MOST_MIXED:
        # imported where it is used: it takes a second
        from sklearn.mixture import GaussianMixture

        least, thinned = np.inf, z[:: -(-len(z) // _MOST_FITTED)]
        for n_normals in range(1, _MOST_NORMALS + 1):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few draws, or no convergence
                fit = GaussianMixture(
                    n_normals, reg_covar=1e-4, init_params="k-means++", random_state=seed
                ).fit(thinned)
            criterion = fit.bic(thinned)
            if criterion >= least:
                break
            least, share, mean, covariances = criterion, fit.weights_, fit.means_, fit.covariances_
    # A wide component, so that the chain does not stay where the tails are heavier than the map's.
    wide = (1 + _WIDER / np.sqrt(n)) * shrunk
    share = np.append((1 - _WIDE_SHARE) * share, _WIDE_SHARE)
    mean = np.concatenate([mean, z.mean(axis=0)[None]])
    covariances = np.concatenate([covariances, wide])
    return Mixtures(np.log(share)[None], PseudoPriors.from_covariance(mean, covariances))


def _shrunk(covariance: np.ndarray, away: np.ndarray) -> np.ndarray:
    """Return a covariance with correlations shrunk so that held-out deviations are most probable.

    Correlated draws of many latents say little about most of their correlations.
    """
    best, found = -np.inf, covariance
    for share in (1.0, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.1, 0.0):
        tried = share * covariance + (1 - share) * np.diag(np.diagonal(covariance))
        tried += 1e-9 * np.eye(len(tried)) * np.trace(tried) / len(tried)
        factor = np.linalg.cholesky(tried)
        standard = solve_triangular(factor, away.T, lower=True)
        log_p = -np.log(np.diagonal(factor)).sum() - 0.5 * (standard**2).sum(axis=0).mean()
        if log_p > best:
            best, found = log_p, tried
    return found


@dataclass(frozen=True, eq=False)
class LearnedPseudoPriors:
    """Pseudo-priors with learned maps in some classes, for `PseudoPriors.mixtures`.

    Attributes
    ----------
    before : PseudoPriors
        The former pseudo-priors, for the other classes and for a tenth of each learned one.
    maps : dict of int to LearnedMap
        By class.
    """

    before: PseudoPriors
    maps: dict[int, LearnedMap]

    @cached_property
    def is_mixed(self) -> np.ndarray:
        """Whether draws of a class's pseudo-prior are proposed in it, ``(n_classes,)``."""
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
            with np.errstate(invalid="ignore"):  # draws beyond what numbers can hold
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

    def restricted(self, active: np.ndarray) -> LearnedPseudoPriors:
        """Return the same: maps know which latents are active."""
        return LearnedPseudoPriors(self.before.restricted(active), self.maps)

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays that are equal in equal pseudo-priors."""
        mixtures = self.before.mixtures
        before = [] if mixtures is None else mixtures.arrays()
        of_maps = [array for each in self.maps.values() for array in each.arrays()]
        return [*before, np.array([*self.maps]), *of_maps]
