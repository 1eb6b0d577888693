"""Which template mixtures have loops written out, and what these loops are given.

They are those of images whose templates stand on an evenly spaced grid and are moved by a rigid
motion, a displacement field on a grid, or both. All others are compiled from the model's graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln

from pymc_mcoem.compiling.flat_functions import N_SETTINGS
from pymc_mcoem.compiling.linear_algebra import symmetric_inverse
from pymc_mcoem.templates.image_curvature import Warp, kernel_sums
from pymc_mcoem.templates.warps.deformations import Deformation, SumOfDeformations
from pymc_mcoem.templates.warps.displacement_field import DisplacementField
from pymc_mcoem.templates.warps.rigid_motion import RigidMotion

if TYPE_CHECKING:
    from pymc_mcoem.templates.model import TemplateModel
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["ImageFunctions", "image_functions"]


def image_functions(settings: TemplateSettings, built: TemplateModel) -> ImageFunctions | None:
    """Return the loops that are written out for a mixture, or None where there are none.

    Kinds are compared, not asked for: a warp derived from one of ours may warp in another way.
    """
    parts = _parts(settings)
    kinds = [type(part) for part in parts]
    is_known = (
        type(settings.deformation) in (SumOfDeformations, *kinds)
        and len(set(kinds)) == len(kinds)
        and set(kinds) <= {RigidMotion, DisplacementField}
        and settings.basis.is_own_kind
        and settings.basis.grid is not None
        and settings.basis.grid.overlaps
        and settings.covariance != "full"
        and settings.noise_correlation is None
        and len(settings.points) > 1
        and built.geometry.curvature is not None
    )
    fields = [part for part in parts if isinstance(part, DisplacementField)]
    if not is_known or any(field.factors(settings.points) is None for field in fields):
        return None
    return ImageFunctions(settings, built)


class ImageFunctions:
    """The loops of `image_loops_numba` and the sums of `image_curvature` for one mixture.

    It is a `pymc_mcoem.compiling.flat_functions.WrittenOut`.

    Attributes
    ----------
    model, matrix, metric, statistics
        The model, and graphs of what the loops compute.
    """

    def __init__(self, settings: TemplateSettings, built: TemplateModel) -> None:
        geometry = built.geometry
        assert geometry.curvature is not None
        self.model, self.statistics = built.model, dict(built.statistics)
        self.matrix, self.metric = geometry.curvature.matrix, geometry.prior_precision
        self._settings = settings
        base = settings.whole_covariance
        log_deviations = np.log(np.diagonal(np.linalg.cholesky(base))).sum()
        self._log_constant = -log_deviations - 0.5 * len(base) * np.log(2.0 * np.pi)
        precision = symmetric_inverse(base)
        sizes, fixed = _sizes_and_tables(settings, precision)
        self._fixed = np.concatenate([table.ravel() for table in fixed])
        n_classes, n_points = settings.n_classes, len(settings.points)
        lengths = [table.size for table in fixed]
        lengths += [n_classes * len(base), n_classes, n_classes]
        lengths += [n_classes * settings.basis.n_basis, n_points, n_points]
        places = N_SETTINGS + np.concatenate([[0], np.cumsum(lengths)])
        self._integers = np.concatenate([sizes, places]).astype(np.int64)
        assert settings.basis.grid is not None
        # of kernels at points: one table of one axis, and as many of the other as derivatives
        first, second = settings.basis.grid.length
        self._n_scratch = n_points * (4 * first + second)
        self._precision, self._places = precision, places
        *_, motion_at, field_at, self._scale_at = sizes
        self._warp = Warp(
            settings.points, [fixed[2], fixed[4]], motion_at, field_at, self._scale_at
        )

    @property
    def function(self) -> Any:
        """What numba compiled, once for all images."""
        # imported where it is used: numba takes a second to import
        from pymc_mcoem.templates.image_loops_numba import evaluate

        return evaluate.function

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
        found = np.empty((n, n_latents + 6 * len(settings.points)))
        log_density = np.array(
            [
                function(k, x, reals, integers, out)
                for k, x, out in zip(classes.tolist(), positions, found, strict=True)
            ]
        )
        gradient, derivatives = found[:, :n_latents], found[:, n_latents:].reshape((n, 6, -1))
        noise, values, mask = (self._part(reals, place) for place in (10, 12, 13))
        matrix = metrics[classes]
        if settings.scale is not None:
            matrix[:, d, d] = settings.scale[1] * np.exp(positions[:, d])
        weights = mask / (reals[0] * noise[classes, None])
        away = values - derivatives[:, 0]
        self._warp.add_curvature(positions, derivatives, away, weights, reals[1], matrix)
        return log_density, gradient, matrix

    def metrics(self, reals: np.ndarray) -> np.ndarray:
        """Return what measures steps in each class, (n_classes, n_latents, n_latents)."""
        settings, d = self._settings, len(self._precision)
        n = d if settings.scale is None else d + 1
        shares = 1.0 / self._part(reals, 8).reshape((-1, d))
        found = np.zeros((len(shares), n, n))
        found[:, :d, :d] = shares[:, :, None] * self._precision * shares[:, None]
        if settings.scale is not None:
            found[:, d, d] = settings.scale[0]
        return found

    def sums(
        self, weights: np.ndarray, positions: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return Σ_t w_t S(x_t) of draws (n_draws, n_latents), in the statistics' order."""
        settings = self._settings
        assert settings.basis.grid is not None
        mask = np.ravel(values["observed_mask"])
        response = np.ravel(values["observed_values"]) * mask
        scales = np.ones(len(weights))
        if settings.scale is not None:
            scales = np.exp(positions[:, self._scale_at])
        warped = self._warp(positions)
        once, twice = weights * scales, weights * scales**2
        sums = kernel_sums(
            settings.basis.grid, warped, once[:, None] * response, twice[:, None] * mask
        )
        away = positions[:, settings.learned] - settings.deformation.mean[settings.learned]
        total = weights.sum()
        found = [*sums, (weights * away.T) @ away, total * (response @ response)]
        found.append(total * mask.sum())
        if settings.scale is not None:
            found += [once.sum(), weights @ positions[:, self._scale_at]]
        return [np.asarray(each) for each in found]

    def _part(self, reals: np.ndarray, place: int) -> np.ndarray:
        return reals[self._places[place] : self._places[place + 1]]

    def pack(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the two vectors that the loops take, from θ and an observation by name."""
        settings = self._settings
        n_classes, deviations = settings.n_classes, self._deviations(values)
        with np.errstate(divide="ignore"):
            log_prior = np.log(values["weights"]) - np.log(deviations).sum(axis=1)
        parts = [
            np.ones(N_SETTINGS),
            self._fixed,
            deviations,
            log_prior + self._log_constant,
            np.broadcast_to(values["noise_variance"], (n_classes,)),
            values["templates"],
            values["observed_values"],
            values["observed_mask"],
            np.empty(self._n_scratch),
        ]
        return np.concatenate([np.ravel(part) for part in parts]), self._integers

    def _deviations(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        settings = self._settings
        found = np.ones((settings.n_classes, settings.deformation.n_parameters))
        if settings.learned.size:
            own = np.sqrt(values["deformation_variance"])
            found[:, settings.learned] = own if settings.covariance == "diagonal" else own[:, None]
        return found


def _parts(settings: TemplateSettings) -> tuple[Deformation, ...]:
    """Return the warp, or what it is the sum of."""
    warp = settings.deformation
    return warp.parts if isinstance(warp, SumOfDeformations) else (warp,)


def _sizes_and_tables(
    settings: TemplateSettings, precision: np.ndarray
) -> tuple[list[int], list[np.ndarray]]:
    """Return numbers and arrays of `image_loops_numba` that are the same for all observations."""
    basis, points = settings.basis, settings.points
    assert basis.grid is not None
    grid = basis.grid
    a, b = (1.0, 1.0) if settings.scale is None else settings.scale
    numbers = [*grid.origin, *grid.spacing, grid.bandwidth, a, b, a * np.log(b) - gammaln(a)]
    places, at = {RigidMotion: -1, DisplacementField: -1}, 0
    # without a field, points that are no grid are one row of one
    field = [np.zeros((0, 1)), np.zeros((0, len(points)))]
    for part in _parts(settings):
        places[type(part)], at = at, at + part.n_parameters
        if isinstance(part, DisplacementField):
            field = part.factors(points) or field
    tables = [
        np.array(numbers),
        points.T,
        *(each for factor in field for each in (factor, factor.T)),
        settings.deformation.mean,
        precision,
    ]
    scale_at = -1 if settings.scale is None else settings.deformation.n_parameters
    sizes = [
        *(each.shape[1] for each in field),
        grid.length[0],
        *(len(each) for each in field),
        places[RigidMotion],
        places[DisplacementField],
        scale_at,
    ]
    return sizes, tables
