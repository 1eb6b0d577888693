"""A step of the method of scoring for the templates of a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from scipy.linalg import LinAlgError, cho_solve, solve_triangular

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.linear_algebra import symmetric_inverse
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.interrupts import import_whole
from pymc_mcoem.templates.noise import masked_correlation
from pymc_mcoem.templates.starts import template_precision

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
    from pymc_mcoem.templates.mixture import TemplateMixture

__all__ = ["Linearized", "Moved", "ScoringStep", "Sums", "stepped"]

type Arrays = Mapping[str, np.ndarray]

#: Where the prior has more than this share of the variance, observations tell no template.
PRIOR_SHARE = 0.5


class Sums:
    """What one round adds over its observations.

    Attributes
    ----------
    n : int
    statistics : dict of str to ndarray
    scores : ndarray of shape (n_classes, n_coefficients)
        Coefficients are those of all channels.
    outer, information : ndarray of shape (n_classes, n_coefficients, n_coefficients)
    """

    def __init__(self, mixture: TemplateMixture) -> None:
        settings = mixture.settings
        size = settings.n_channels * settings.basis.n_basis
        self.n = 0
        self.statistics: dict[str, np.ndarray] = {}
        self.scores = np.zeros((settings.n_classes, size))
        self.outer = np.zeros((settings.n_classes, size, size))
        self.information = np.zeros((settings.n_classes, size, size))


@dataclass(frozen=True)
class Linearized:
    """Information of an observation on coefficients and latents, of a model that is linear in both.

    Attributes
    ----------
    whole : ndarray of shape (n_coefficients, n_coefficients)
        That on coefficients if latents were known.
    mixed : ndarray of shape (n_latents, n_coefficients)
    lower : ndarray of shape (n_latents, n_latents)
        Cholesky factor of that on latents, with their prior.
    """

    whole: np.ndarray
    mixed: np.ndarray
    lower: np.ndarray

    @property
    def information(self) -> np.ndarray:
        """Information on coefficients, (n_coefficients, n_coefficients)."""
        explained = solve_triangular(self.lower, self.mixed, lower=True)
        return np.asarray(self.whole - explained.T @ explained)

    def response(self, slope: np.ndarray) -> np.ndarray:
        """Return how the score changes with latents that make a mean slope of the log-density."""
        return np.asarray(self.mixed.T @ cho_solve((self.lower, True), slope))


@dataclass(frozen=True)
class Moved:
    """What a step makes.

    Attributes
    ----------
    theta : dict of str to ndarray
    errors : ndarray of shape (n_classes, *grid)
        Standard errors of templates.
    lengths : ndarray of shape (n_classes,)
        How far templates moved, in standard errors.
    """

    theta: dict[str, np.ndarray]
    errors: np.ndarray
    lengths: np.ndarray


class ScoringStep:
    """A step of the method of scoring for the templates of one mixture."""

    def __init__(self, mixture: TemplateMixture, e_step: CarlinChibBurst) -> None:
        self.mixture, self._settings = mixture, mixture.settings
        self._burst = compiled_for(mixture, e_step)
        density = self._burst.density
        self._search, _ = Laplace().compile_search(density, mixture.geometry, self._burst.mode)

    def add(
        self,
        sums: Sums,
        data: Arrays,
        theta: Arrays,
        rng: np.random.Generator,
        draws: int,
        tune: int,
    ) -> None:
        """Add an encoded observation's statistics, scores and information at θ."""
        result, sweeps = self._burst.with_draws(
            data, theta, rng, self._burst.initial_state(), draws=draws, tune=tune
        )
        found = result.statistics
        classes, positions = sweeps.class_index[tune:], sweeps.position[tune:]
        terms = []
        for j in np.unique(classes).tolist():
            own = positions[classes == j]
            share = len(own) / draws
            score = self._score(found, theta, j)
            linear = self._linearized(data, theta, j, own.mean(axis=0))
            # has the mean zero, and makes up for where the draws happen to be
            score -= share * linear.response(self._slope(data, theta, j, own))
            information = share * linear.information
            if not (np.isfinite(score).all() and np.isfinite(information).all()):
                raise FloatingPointError(f"the information on class {j} is not finite.")
            terms.append((j, score, information))
        for name, value in found.items():
            sums.statistics[name] = sums.statistics.get(name, 0.0) + value
        for j, score, information in terms:
            sums.scores[j] += score
            sums.outer[j] += np.outer(score, score)
            sums.information[j] += information
        sums.n += 1

    def moved(self, sums: Sums, theta: Arrays) -> Moved:
        """Make the step from θ."""
        settings, mixture = self._settings, self.mixture
        means = {name: value / sums.n for name, value in sums.statistics.items()}
        ready = mixture.ready(means, effective_size=float(sums.n))
        found = mixture.maximize_ready(
            means, effective_size=float(sums.n), ready=ready, present=theta
        )
        templates = np.array(theta["templates"])
        design = np.kron(np.eye(settings.n_channels), mixture.mean_design())
        errors = np.full((settings.n_classes, len(design)), np.nan)
        moved = np.full(settings.n_classes, np.nan)
        for j in np.flatnonzero(ready).tolist():
            prior = np.kron(
                np.eye(settings.n_channels) / self._noise(theta, j), self._prior_precision
            )
            before = templates[j].ravel()
            try:
                after, inverse = stepped(
                    before,
                    sums.scores[j],
                    sums.information[j] + prior,
                    nonnegative=settings.coefficients == "nonnegative",
                )
            except LinAlgError:
                raise ValueError(
                    f"observations: they do not determine the template of class {j}; give more "
                    "of them, or raise template_strength of the priors."
                ) from None
            rows = design @ inverse
            by_model = (rows * design).sum(axis=1)
            by_prior = ((rows @ prior) * rows).sum(axis=1)
            by_scores = ((rows @ sums.outer[j]) * rows).sum(axis=1) + by_prior
            own = np.sqrt(np.maximum(by_model, by_scores))
            # a prior that only smooths has no error to tell
            errors[j] = np.where(by_prior > PRIOR_SHARE * by_model, np.nan, own)
            lengths = (design @ (after - before)) / own
            moved[j] = np.sqrt(np.mean(np.square(lengths)))
            templates[j] = after.reshape(templates[j].shape)
        channels_last = errors.reshape(settings.n_classes, settings.n_channels, -1).swapaxes(1, 2)
        return Moved(
            {**found, "templates": templates},
            channels_last.reshape(settings.n_classes, *settings.value_shape),
            moved,
        )

    def _score(self, statistics: Arrays, theta: Arrays, j: int) -> np.ndarray:
        """Return the derivative of an observation's log-likelihood by the coefficients."""
        templates = np.atleast_2d(theta["templates"][j])
        projections = np.atleast_2d(statistics["template_projection"][j])
        packed = statistics["template_gram"][j]
        packed = packed.reshape(len(templates), *packed.shape[-2:])
        found = [
            (projection - self._settings.basis.unpack_gram(sums) @ template) / variance
            for projection, sums, template, variance in zip(
                projections, packed, templates, self._noise(theta, j), strict=True
            )
        ]
        return np.concatenate(found)

    def _slope(self, data: Arrays, theta: Arrays, j: int, positions: np.ndarray) -> np.ndarray:
        """Return the mean derivative of the log-density by the latents, (n_latents,)."""
        density = self._burst.density
        evaluate = self._search.evaluations.at(density.arguments({**data, **theta}))
        classes = np.full(len(positions), j)
        _, slopes, *_ = evaluate(classes, positions, positions, np.ones(3))
        return np.asarray(slopes.mean(axis=0))

    def _linearized(self, data: Arrays, theta: Arrays, j: int, position: np.ndarray) -> Linearized:
        """Return the model of an observation of class j, linear around a position."""
        settings = self._settings
        n_parameters = settings.deformation.n_parameters
        beta, scale = position[:n_parameters], 1.0
        if settings.scale is not None:
            scale = float(np.exp(position[n_parameters]))
        points = settings.points
        if settings.own_points is not None:
            points = np.reshape(data["own_points"], (-1, 1))
        shape = (len(points), settings.n_channels)
        mask = np.reshape(data["observed_mask"], shape)
        size, n_channels = settings.basis.n_basis, settings.n_channels
        whole = np.zeros((n_channels * size, n_channels * size))
        precision = self._latent_precision(theta, j, scale)
        mixed = np.zeros((len(precision), n_channels * size))
        templates = np.atleast_2d(theta["templates"][j])
        for c, (template, variance) in enumerate(
            zip(templates, self._noise(theta, j), strict=True)
        ):
            warped, rows = self._places(beta, template, points)
            matrix, rows = scale * settings.basis.matrix(warped), scale * rows
            if settings.scale is not None:
                rows = np.concatenate([rows, (matrix @ template)[None]])
            # columns of kernels, then of latents
            columns = self._whitened(np.concatenate([matrix, rows.T], axis=1), mask[:, c])
            products = columns.T @ columns / variance
            own = slice(c * size, (c + 1) * size)
            whole[own, own] = products[:size, :size]
            mixed[:, own] = products[size:, :size]
            precision += products[size:, size:]
        return Linearized(whole, mixed, np.linalg.cholesky(precision))

    def _whitened(self, columns: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return columns (n_points, n) without missing points and correlation of noise."""
        masked: np.ndarray = columns * mask[:, None]
        covariance = self._settings.noise_covariance
        if covariance is None:
            return masked
        factor = np.linalg.cholesky(masked_correlation(covariance, mask))
        return np.asarray(solve_triangular(factor, masked, lower=True))

    def _latent_precision(self, theta: Arrays, j: int, scale: float) -> np.ndarray:
        """Return the prior precision of (deformation, log scale) in class j."""
        settings = self._settings
        covariance, learned = settings.whole_covariance, settings.learned
        block = np.ix_(learned, learned)
        if settings.covariance == "full":
            covariance[block] = theta["deformation_covariance"][j]
        elif settings.covariance == "diagonal":
            covariance[block] = np.diag(theta["deformation_variance"][j])
        else:
            covariance[block] *= theta["deformation_variance"][j]
        if settings.rigid.size:
            covariance[settings.rigid, settings.rigid] = theta["rigid_variance"][j]
        size = len(covariance)
        precision = np.zeros((size + (settings.scale is not None),) * 2)
        precision[:size, :size] = symmetric_inverse(covariance)
        if settings.scale is not None:
            precision[size, size] = settings.scale[1] * scale
        return precision

    def _noise(self, theta: Arrays, j: int) -> np.ndarray:
        """Return the noise variances of class j, (n_channels,)."""
        noise = np.asarray(theta["noise_variance"])
        return np.atleast_1d(noise[j] if self._settings.noise == "class" else noise)

    @cached_property
    def _prior_precision(self) -> np.ndarray:
        mixture = self.mixture
        found: np.ndarray = template_precision(mixture.settings, mixture.priors, mixture.gram)
        return found

    @cached_property
    def _places(self) -> Any:
        """Function from β, a template and points of an observation's own to D and derivatives.

        D is (n_points, n_dims), and derivatives of the template by β are (n_parameters, n_points).
        """
        settings = self._settings
        beta, template, points = pt.vector("beta"), pt.vector("template"), pt.matrix("points")
        at: Any = settings.points if settings.own_points is None else points
        warped = settings.deformation.coordinates(at, beta)
        gradient = settings.basis.gradient(warped, template)
        rows = settings.deformation.jacobian(at, beta, gradient)
        return pytensor.function(
            [beta, template, points],
            [pt.stack(warped, axis=1), rows],
            mode=interpreted_mode(),
            on_unused_input="ignore",
        )


def stepped(
    template: np.ndarray, score: np.ndarray, information: np.ndarray, *, nonnegative: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients after a step, and the inverse of the information.

    Parameters
    ----------
    template, score : ndarray of shape (n,)
    information : ndarray of shape (n, n)
    nonnegative : bool
        Whether coefficients are kept from below zero.

    Examples
    --------
    >>> found, inverse = stepped(np.ones(2), np.array([2.0, -8.0]), 4 * np.eye(2), nonnegative=True)
    >>> found, inverse.diagonal()
    (array([1.5, 0. ]), array([0.25, 0.25]))
    """
    lower = np.linalg.cholesky(information)
    found = template + cho_solve((lower, True), score)
    if nonnegative and (found < 0).any():
        import_whole("scipy.optimize")
        from scipy.optimize import nnls

        found, _ = nnls(lower.T, lower.T @ found)
    return found, cho_solve((lower, True), np.eye(len(found)))
