"""Base class of log-densities, derivatives and statistics of mixtures as written-out loops.

Images and curves have a derived class each. It computes what `pymc_mcoem.templates.model` declares
as a graph: one observation's log-density and derivatives in the latents, and the sufficient
statistics of draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from pymc_mcoem.compiling.flat_functions import N_SETTINGS
from pymc_mcoem.compiling.linear_algebra import symmetric_inverse
from pymc_mcoem.templates.noise import masked_correlation

if TYPE_CHECKING:
    from pymc_mcoem.templates.bases.gaussian import GaussianBasis
    from pymc_mcoem.templates.model import TemplateModel
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["TemplateFunctions", "is_written_out", "scale_prior_constants"]

#: The arrays that follow the tables of a mixture in the real numbers.
_OF_DATA = (
    "precision",
    "deviations",
    "log_prior",
    "noise_variance",
    "templates",
    "values",
    "mask",
    "noise_precision",
    "further",
)


def is_written_out(basis: GaussianBasis, built: TemplateModel) -> bool:
    """Return whether a mixture has the basis and the derivatives for which loops are written."""
    return basis.is_own_kind and built.geometry.curvature is not None


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
        Numbers that come last: what depends on the observation, then scratch.

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
        self._settings, self._n_channels = settings, settings.n_channels
        self._n_points = int(np.prod(settings.observation_shape)) // self._n_channels
        base = settings.whole_covariance
        self._log_deviations = np.log(np.diagonal(np.linalg.cholesky(base)))
        self._precision, self._n_further = symmetric_inverse(base), n_further
        fixed = [*tables, settings.deformation.mean]
        self._fixed = np.concatenate([table.ravel() for table in fixed])
        n_classes, n_points, n_channels = settings.n_classes, self._n_points, self._n_channels
        lengths = [table.size for table in fixed]
        lengths.append(base.size * (n_classes if self._has_precisions else 1))
        lengths += [n_classes * len(base), n_classes, n_classes * n_channels]
        lengths.append(n_classes * n_channels * settings.basis.n_basis)
        lengths += [n_channels * n_points, n_channels * n_points]
        lengths.append(0 if settings.noise_covariance is None else n_channels * n_points**2)
        places = N_SETTINGS + np.concatenate([[0], np.cumsum(lengths)])
        self._integers = np.concatenate([sizes, places]).astype(np.int64)
        self._places = dict(zip(_OF_DATA, places[len(fixed) :].tolist(), strict=True))
        self._scale_at = -1 if settings.scale is None else settings.deformation.n_parameters
        # of the last mask: observations without gaps have the same
        self._last_noise: tuple[np.ndarray, np.ndarray, float] | None = None

    @property
    @abstractmethod
    def function(self) -> Any:
        """The function that numba compiled, once for all mixtures of the kind."""

    @abstractmethod
    def _add_curvature(
        self,
        positions: np.ndarray,
        derivatives: np.ndarray,
        weights: np.ndarray,
        residual: np.ndarray,
        reals: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Add Σ_s w_s J_s J_sᵀ − r_s H_s, of J_s and H_s the derivatives of λ f_s by the latents.

        The sum is over channels too.

        Parameters
        ----------
        positions : ndarray of shape (n, n_latents)
        derivatives : ndarray of shape (n, n_channels, n_derivatives, n_points)
            λ f at the points and its derivatives there.
        weights, residual : ndarray of shape (n, n_channels, n_points)
            w and r.
        reals : ndarray
            As `pack` returns it.
        out : ndarray of shape (n, n_latents, n_latents)
        """

    @abstractmethod
    def _jacobian(
        self, positions: np.ndarray, derivatives: np.ndarray, reals: np.ndarray
    ) -> np.ndarray:
        """Return J of one channel, (n, n_latents, n_points); arguments as of `_add_curvature`."""

    @abstractmethod
    def _warped(self, positions: np.ndarray, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return where latents (n, n_latents) take the points to, (n, n_dims, n_points)."""

    @abstractmethod
    def _kernel_sums(
        self, positions: np.ndarray, warped: np.ndarray, once: np.ndarray, twice: np.ndarray
    ) -> Sequence[np.ndarray]:
        """Return weighted sums of kernels and of their products, as the basis makes them.

        At points (n_draws, n_dims, n_points), where latents (n_draws, n_latents) take them. `once`
        and `twice`, (n_channels, n_draws, n_points), are the weights. Sums have an axis of
        channels in front. `twice` may be of one channel alone, if all have the same.
        """

    def _further(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return what depends on the observation and comes after its noise."""
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
        n_channels, n_points = self._n_channels, self._n_points
        found = np.empty((n, n_latents + n_channels * self.n_derivatives * n_points))
        log_density = np.array(
            [
                function(k, x, reals, integers, out)
                for k, x, out in zip(classes.tolist(), positions, found, strict=True)
            ]
        )
        gradient = found[:, :n_latents]
        derivatives = found[:, n_latents:].reshape((n, n_channels, self.n_derivatives, -1))
        noise, values, mask = (
            self._array(reals, name).reshape((-1, n_channels, *axis))
            for name, axis in (
                ("noise_variance", ()),
                ("values", (n_points,)),
                ("mask", (n_points,)),
            )
        )
        matrix = metrics[classes]
        if settings.scale is not None:
            matrix[:, d, d] = settings.scale[1] * np.exp(positions[:, d])
        variance, away = reals[0] * noise[classes][..., None], values - derivatives[:, :, 0]
        weights = mask / variance
        residual = reals[1] * weights * away
        if settings.noise_covariance is not None:
            weights = np.zeros(away.shape)
            joined = self._array(reals, "noise_precision").reshape((n_channels, n_points, -1))
            for c, precision in enumerate(joined):
                rows, over = self._jacobian(positions, derivatives[:, c], reals), variance[:, c]
                matrix += rows @ precision @ rows.transpose((0, 2, 1)) / over[:, :, None]
                residual[:, c] = reals[1] * (away[:, c] @ precision) / over
        self._add_curvature(positions, derivatives, weights, residual, reals, matrix)
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
        mask = self._by_channel(values["observed_mask"])
        response = self._by_channel(values["observed_values"]) * mask
        scales = np.ones(len(weights))
        if settings.scale is not None:
            scales = np.exp(positions[:, self._scale_at])
        once, twice = weights * scales, weights * scales**2
        warped, weighted = self._warped(positions, values), response
        if settings.noise_covariance is None:
            own = mask[:1] if (mask == mask[:1]).all() else mask
            sums = self._kernel_sums(
                positions, warped, once[:, None] * response[:, None], twice[:, None] * own[:, None]
            )
        else:
            precisions, _ = self._noise(values)
            weighted = np.stack(
                [each @ own for each, own in zip(precisions, response, strict=True)]
            )
            sums_of_channels = [
                self._joined_sums(warped, once, twice, own, precision)
                for own, precision in zip(weighted, precisions, strict=True)
            ]
            sums = [np.stack(each) for each in zip(*sums_of_channels, strict=True)]
        away = positions[:, settings.learned] - settings.deformation.mean[settings.learned]
        total = weights.sum()
        squares = np.array([one @ other for one, other in zip(response, weighted, strict=True)])
        of_channels = [*sums, total * squares, total * mask.sum(axis=1)]
        if not settings.channel_shape:
            of_channels = [each[0] for each in of_channels]
        projection, gram, squares, counts = of_channels
        if settings.channel_shape and len(gram) < self._n_channels:
            gram = np.repeat(gram, self._n_channels, axis=0)
        found = [projection, gram, (weights * away.T) @ away, squares, counts]
        if settings.rigid.size:
            moved = positions[:, settings.rigid] - settings.deformation.mean[settings.rigid]
            found.append(weights @ moved**2)
        if settings.scale is not None:
            found += [once.sum(), weights @ positions[:, self._scale_at]]
        return [np.asarray(each) for each in found]

    def unobserved(self, values: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the model's data by name, in which no value of the observation is observed."""
        return {**values, "observed_mask": np.zeros_like(values["observed_mask"])}

    def pack(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the two vectors that the loops take, from θ and an observation by name."""
        n_classes = self._settings.n_classes
        precision, deviations, log_normalizer = self._prior(values)
        with np.errstate(divide="ignore"):
            log_weights = np.log(values["weights"])
        noise_precision, log_determinant = self._noise(values)
        further = self._further(values)
        noise = np.asarray(values["noise_variance"])
        if self._settings.noise == "shared":
            noise = np.broadcast_to(noise, (n_classes, *noise.shape))
        arrays = [
            np.ones(N_SETTINGS),
            self._fixed,
            precision,
            deviations,
            log_weights + log_normalizer - log_determinant,
            noise,
            values["templates"],
            self._by_channel(values["observed_values"]),
            self._by_channel(values["observed_mask"]),
            noise_precision,
            further,
            np.empty(self._n_further - further.size),
        ]
        return np.concatenate([np.ravel(array) for array in arrays]), self._integers

    def _by_channel(self, values: np.ndarray) -> np.ndarray:
        """Return an observation's values, (n_channels, n_points)."""
        found = np.reshape(values, (self._n_points, self._n_channels))
        return np.ascontiguousarray(found.T)

    def _noise(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, float]:
        """Return what correlation makes of noise of variance one, for the points that are seen.

        That is its precision, (n_channels, n_points, n_points), zero for the others, and the
        log-determinant of its Cholesky factors. Uncorrelated noise has no matrix.
        """
        covariance = self._settings.noise_covariance
        if covariance is None:
            return np.empty((0, 0, 0)), 0.0
        masks, last = self._by_channel(values["observed_mask"]), self._last_noise
        if last is None or not np.array_equal(last[0], masks):
            found, log_determinant = np.empty((len(masks), *covariance.shape)), 0.0
            for mask, precision in zip(masks, found, strict=True):
                factor = np.linalg.cholesky(masked_correlation(covariance, mask))
                log_determinant += float(np.log(np.diagonal(factor)).sum())
                # as a product of a matrix and its transpose no rounding makes it indefinite
                whiten = solve_triangular(factor, np.diag(mask), lower=True)
                precision[:] = whiten.T @ whiten
            self._last_noise = last = masks, found, log_determinant
        return last[1:]

    def _joined_sums(
        self,
        warped: np.ndarray,
        once: np.ndarray,
        twice: np.ndarray,
        weighted: np.ndarray,
        precision: np.ndarray,
    ) -> Sequence[np.ndarray]:
        """Return what `_kernel_sums` returns, of points that correlated noise joins.

        `once` and `twice` are weights of draws, `weighted` is the observation times the precision.
        """
        basis = self._settings.basis
        projection, gram = np.zeros(basis.n_basis), np.zeros((basis.n_basis, basis.n_basis))
        for points, weight, product_weight in zip(warped, once, twice, strict=True):
            design = basis.matrix(points.T)
            projection += weight * (weighted @ design)
            gram += product_weight * (design.T @ (precision @ design))
        return projection, gram

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
        if settings.rigid.size:
            deviations[:, settings.rigid] = np.sqrt(values["rigid_variance"])
        if self._has_precisions:
            factors = np.linalg.cholesky(values["deformation_covariance"])
            whiten = np.linalg.inv(factors)
            precision = np.tile(precision, (settings.n_classes, 1, 1))
            precision[:, learned[:, None], learned] = whiten.transpose((0, 2, 1)) @ whiten
            log_deviations = np.log(np.diagonal(factors, 0, 1, 2)).sum(axis=1)
            log_deviations += np.delete(self._log_deviations, learned).sum()
            log_deviations += np.log(deviations).sum(axis=1)
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
