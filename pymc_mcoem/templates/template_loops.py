"""What the loops that are written out for images and for curves have in common.

They compute what `pymc_mcoem.templates.model` declares as a graph: one observation's log-density
and derivatives in the latents, and the sufficient statistics of draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln

from pymc_mcoem.compiling.flat_functions import N_SETTINGS
from pymc_mcoem.compiling.linear_algebra import symmetric_inverse

if TYPE_CHECKING:
    from pymc_mcoem.templates.model import TemplateModel
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["TemplateFunctions", "has_simple_noise", "scale_prior_constants"]

#: The arrays that follow the tables of a mixture in the real numbers.
_OF_DATA = (
    "precision",
    "deviations",
    "log_prior",
    "noise_variance",
    "templates",
    "values",
    "mask",
    "further",
)


def has_simple_noise(settings: TemplateSettings, built: TemplateModel) -> bool:
    """Return whether a mixture has the noise and the basis for which loops are written."""
    return (
        settings.basis.is_own_kind
        and settings.noise_correlation is None
        and built.geometry.curvature is not None
    )


class TemplateFunctions(ABC):
    """Log-density, derivatives and statistics of a template mixture, of flat arrays.

    It is a `pymc_mcoem.compiling.flat_functions.WrittenOut`.

    Parameters
    ----------
    settings : TemplateSettings
    built : TemplateModel
    sizes : sequence of int
        What the integers begin with, before the places of the arrays in the real numbers.
    tables : sequence of ndarray
        Arrays that are the same for all observations. The mean of the deformation comes after
        them.
    n_further : int
        Numbers that follow the mask: what depends on the observation, then scratch.

    Attributes
    ----------
    model, matrix, metric, statistics
        The model, and graphs of what the loops compute.
    """

    #: Derivatives of the template at each point, the value among them.
    n_derivatives: int

    def __init__(
        self,
        settings: TemplateSettings,
        built: TemplateModel,
        sizes: Sequence[int],
        tables: Sequence[np.ndarray],
        n_further: int,
    ) -> None:
        geometry = built.geometry
        assert geometry.curvature is not None
        self.model, self.statistics = built.model, dict(built.statistics)
        self.matrix, self.metric = geometry.curvature.matrix, geometry.prior_precision
        self._settings, self._n_points = settings, int(np.prod(settings.observation_shape))
        base = settings.whole_covariance
        self._log_deviations = np.log(np.diagonal(np.linalg.cholesky(base)))
        self._precision, self._n_further = symmetric_inverse(base), n_further
        fixed = [*tables, settings.deformation.mean]
        self._fixed = np.concatenate([table.ravel() for table in fixed])
        n_classes, n_points = settings.n_classes, self._n_points
        lengths = [table.size for table in fixed]
        lengths.append(base.size * (n_classes if self._has_precisions else 1))
        lengths += [n_classes * len(base), n_classes, n_classes]
        lengths += [n_classes * settings.basis.n_basis, n_points, n_points]
        places = N_SETTINGS + np.concatenate([[0], np.cumsum(lengths)])
        self._integers = np.concatenate([sizes, places]).astype(np.int64)
        self._places = dict(zip(_OF_DATA, places[len(fixed) :].tolist(), strict=True))
        self._scale_at = -1 if settings.scale is None else settings.deformation.n_parameters

    @property
    @abstractmethod
    def function(self) -> Any:
        """What numba compiled, once for all mixtures of the kind."""

    @abstractmethod
    def _add_curvature(
        self,
        positions: np.ndarray,
        derivatives: np.ndarray,
        away: np.ndarray,
        weights: np.ndarray,
        reals: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Add minus the second derivatives of −Σ_s w_s (y_s − λ f_s)² / 2 to matrices.

        Parameters
        ----------
        positions : ndarray of shape (n, n_latents)
        derivatives : ndarray of shape (n, n_derivatives, n_points)
            λ f at the points and its derivatives there.
        away, weights : ndarray of shape (n, n_points)
            y − λ f, and w.
        reals : ndarray
            As `pack` returns it.
        out : ndarray of shape (n, n_latents, n_latents)
        """

    @abstractmethod
    def _kernel_sums(
        self,
        positions: np.ndarray,
        once: np.ndarray,
        twice: np.ndarray,
        values: Mapping[str, np.ndarray],
    ) -> Sequence[np.ndarray]:
        """Return weighted sums of kernels and of their products, as the basis makes them.

        `once` and `twice`, (n_draws, n_points), are the weights.
        """

    def _further(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return what depends on the observation and follows its mask."""
        return np.zeros(0)

    def evaluate(
        self,
        classes: np.ndarray,
        positions: np.ndarray,
        reals: np.ndarray,
        integers: np.ndarray,
        metrics: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        """Return log-densities, gradients and curvatures, of each position."""
        settings, d, function = self._settings, len(self._precision), self.function
        n, n_latents = positions.shape
        found = np.empty((n, n_latents + self.n_derivatives * self._n_points))
        log_density = np.array(
            [
                function(k, x, reals, integers, out)
                for k, x, out in zip(classes.tolist(), positions, found, strict=True)
            ]
        )
        gradient = found[:, :n_latents]
        derivatives = found[:, n_latents:].reshape((n, self.n_derivatives, -1))
        noise, values = self._array(reals, "noise_variance"), self._array(reals, "values")
        matrix = metrics[classes]
        if settings.scale is not None:
            matrix[:, d, d] = settings.scale[1] * np.exp(positions[:, d])
        weights = self._array(reals, "mask") / (reals[0] * noise[classes, None])
        away = values - derivatives[:, 0]
        self._add_curvature(positions, derivatives, away, weights, reals, matrix)
        return log_density, gradient, matrix

    def metrics(self, reals: np.ndarray) -> np.ndarray:
        """Return what measures steps in each class, (n_classes, n_latents, n_latents)."""
        settings, d = self._settings, len(self._precision)
        n = d if settings.scale is None else d + 1
        shares = 1.0 / self._array(reals, "deviations").reshape((-1, d))
        precision = self._array(reals, "precision").reshape((-1, d, d))
        found = np.zeros((len(shares), n, n))
        found[:, :d, :d] = shares[:, :, None] * precision * shares[:, None]
        if settings.scale is not None:
            found[:, d, d] = settings.scale[0]
        return found

    def sums(
        self, weights: np.ndarray, positions: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return Σ_t w_t S(x_t) of draws (n_draws, n_latents), in the statistics' order."""
        settings = self._settings
        mask = np.ravel(values["observed_mask"])
        response = np.ravel(values["observed_values"]) * mask
        scales = np.ones(len(weights))
        if settings.scale is not None:
            scales = np.exp(positions[:, self._scale_at])
        once, twice = weights * scales, weights * scales**2
        sums = self._kernel_sums(positions, once[:, None] * response, twice[:, None] * mask, values)
        away = positions[:, settings.learned] - settings.deformation.mean[settings.learned]
        total = weights.sum()
        found = [*sums, (weights * away.T) @ away, total * (response @ response)]
        found.append(total * mask.sum())
        if settings.scale is not None:
            found += [once.sum(), weights @ positions[:, self._scale_at]]
        return [np.asarray(each) for each in found]

    def pack(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the two vectors that the loops take, from θ and an observation by name."""
        n_classes = self._settings.n_classes
        precision, deviations, log_normalizer = self._prior(values)
        with np.errstate(divide="ignore"):
            log_weights = np.log(values["weights"])
        further = self._further(values)
        arrays = [
            np.ones(N_SETTINGS),
            self._fixed,
            precision,
            deviations,
            log_weights + log_normalizer,
            np.broadcast_to(values["noise_variance"], (n_classes,)),
            values["templates"],
            values["observed_values"],
            values["observed_mask"],
            further,
            np.empty(self._n_further - further.size),
        ]
        return np.concatenate([np.ravel(array) for array in arrays]), self._integers

    def _array(self, reals: np.ndarray, name: str) -> np.ndarray:
        """Return one of the arrays that follow the tables, but not the last one."""
        begin = self._places[name]
        return reals[begin : self._places[_OF_DATA[_OF_DATA.index(name) + 1]]]

    @property
    def _has_precisions(self) -> bool:
        """Whether each class has a precision of its own, not one times its own deviations."""
        return self._settings.covariance == "full" and self._settings.learned.size > 0

    def _prior(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return precision, deviations and log-normalizers of the deformations' prior.

        Of shapes (d, d) or (n_classes, d, d), (n_classes, d) and (n_classes,).
        """
        settings, precision, d = self._settings, self._precision, len(self._precision)
        learned, constant = settings.learned, 0.5 * d * np.log(2.0 * np.pi)
        deviations = np.ones((settings.n_classes, d))
        if self._has_precisions:
            factors = np.linalg.cholesky(values["deformation_covariance"])
            whiten = np.linalg.inv(factors)
            precision = np.tile(precision, (settings.n_classes, 1, 1))
            precision[:, learned[:, None], learned] = whiten.transpose((0, 2, 1)) @ whiten
            log_deviations = np.log(np.diagonal(factors, 0, 1, 2)).sum(axis=1)
            log_deviations += np.delete(self._log_deviations, learned).sum()
            return precision, deviations, -log_deviations - constant
        if learned.size:
            own = np.sqrt(values["deformation_variance"])
            deviations[:, learned] = own if settings.covariance == "diagonal" else own[:, None]
        log_deviations = np.log(deviations).sum(axis=1) + self._log_deviations.sum()
        return precision, deviations, -log_deviations - constant


def scale_prior_constants(settings: TemplateSettings) -> list[float]:
    """Return shape, rate and log-constant of the gamma density of the scale."""
    a, b = (1.0, 1.0) if settings.scale is None else settings.scale
    return [a, b, float(a * np.log(b) - gammaln(a))]
