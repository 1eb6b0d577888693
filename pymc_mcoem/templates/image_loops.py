"""Log-density, derivatives and statistics of mixtures of images, by written-out loops.

There are loops for templates that stand on an evenly spaced grid and are moved by a rigid motion, a
displacement field on a grid, or both. All other mixtures are compiled from the model's graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.templates.bases.factors import BasisWithFactors
from pymc_mcoem.templates.image_curvature import Moments, Warp, kernel_sums
from pymc_mcoem.templates.template_loops import (
    TemplateFunctions,
    is_written_out,
    scale_prior_constants,
)
from pymc_mcoem.templates.warps.deformations import Deformation, SumOfDeformations
from pymc_mcoem.templates.warps.displacement_field import DisplacementField
from pymc_mcoem.templates.warps.rigid_motion import RigidMotion
from pymc_mcoem.templates.warps.scores import DeformationWithScores

if TYPE_CHECKING:
    from pymc_mcoem.templates.bases.gaussian import GaussianBasis
    from pymc_mcoem.templates.model import TemplateModel
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["ImageFunctions", "image_functions"]


def image_functions(settings: TemplateSettings, built: TemplateModel) -> ImageFunctions | None:
    """Return the loops that are written out for a mixture, or None where there are none.

    Kinds are compared, not asked for: a warp derived from one of ours may warp in another way.
    """
    warp, basis, _ = _without_factors(settings)
    terms = _terms(warp)
    kinds = [type(term) for term in terms]
    is_known = (
        type(warp) in (SumOfDeformations, *kinds)
        and len(set(kinds)) == len(kinds)
        and set(kinds) <= {RigidMotion, DisplacementField}
        and is_written_out(basis, built)
        and basis.grid is not None
        and basis.grid.overlaps
        and len(settings.points) > 1
    )
    fields = [term for term in terms if isinstance(term, DisplacementField)]
    if not is_known or any(field.factors(settings.points) is None for field in fields):
        return None
    return ImageFunctions(settings, built)


class ImageFunctions(TemplateFunctions):
    """The loops of `image_loops_numba` and the sums of `image_curvature` for one mixture."""

    def __init__(self, settings: TemplateSettings, built: TemplateModel) -> None:
        _, basis, self._n_factors = _without_factors(settings)
        assert basis.grid is not None
        self._grid = basis.grid
        # the value, its two derivatives and, of the template, its second ones (11, 12, 22)
        self.n_derivatives = 6 + 3 * self._n_factors
        sizes, tables = _sizes_and_tables(settings)
        # of kernels at points: one table of one axis, and as many of the other as derivatives
        first, second = basis.grid.length
        n_scratch = len(settings.points) * (4 * first + second)
        super().__init__(settings, built, sizes, tables, n_scratch)
        *_, motion_at, field_at, scale_at, _ = sizes
        self._score_at = settings.deformation.n_parameters - self._n_factors
        self._warp = Warp(settings.points, [tables[2], tables[4]], motion_at, field_at, scale_at)

    @property
    def function(self) -> Any:
        """The function that numba compiled, once for all images."""
        # imported where it is used: numba takes a second to import
        from pymc_mcoem.templates.image_loops_numba import evaluate

        return evaluate.function

    def _add_curvature(
        self,
        positions: np.ndarray,
        derivatives: np.ndarray,
        weights: np.ndarray,
        residual: np.ndarray,
        reals: np.ndarray,
        out: np.ndarray,
    ) -> None:
        moments = Moments.of(derivatives[:, :, :6], weights, residual, self._scale_at >= 0)
        self._warp.add_curvature(positions, moments, out)
        n, n_channels, _, n_points = derivatives.shape
        factors = derivatives[:, :, 6:].reshape((n, n_channels, self._n_factors, 3, n_points))
        for k in range(self._n_factors):
            # second derivatives by a score and the warp meet the residual; those by scores are zero
            weighted = weights * factors[:, :, k, 0]
            sloped = (
                weighted[:, :, None] * derivatives[:, :, 1:3]
                - residual[:, :, None] * factors[:, :, k, 1:]
            ).sum(axis=1)
            row = self._warp.row(positions, sloped)
            row[:, self._score_at :] = 0.5 * (weighted[:, :, None] * factors[:, :, :, 0]).sum(
                axis=(1, 3)
            )
            out[:, self._score_at + k] += row
            out[:, :, self._score_at + k] += row

    def _jacobian(
        self, positions: np.ndarray, derivatives: np.ndarray, reals: np.ndarray
    ) -> np.ndarray:
        return self._warp.jacobian(positions, derivatives)

    def _warped(self, positions: np.ndarray, values: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._warp(positions)

    def _kernel_sums(
        self, positions: np.ndarray, warped: np.ndarray, once: np.ndarray, twice: np.ndarray
    ) -> Sequence[np.ndarray]:
        if not self._n_factors:
            return kernel_sums(self._grid, warped, once, twice)
        basis = self._settings.basis
        assert isinstance(basis, BasisWithFactors)
        # one and the scores, as further weights
        scores = np.insert(positions[:, self._score_at :], 0, 1.0, axis=1).T[:, :, None]
        pairs = np.stack([scores[k] * scores[m] for k, m in basis.pairs])
        values, moments = kernel_sums(
            self._grid,
            warped,
            (once[:, None] * scores).reshape((-1, *once.shape[1:])),
            (twice[:, None] * pairs).reshape((-1, *twice.shape[1:])),
        )
        return (
            values.reshape((len(once), -1)),
            moments.reshape((len(twice), -1, moments.shape[-1])),
        )


def _without_factors(settings: TemplateSettings) -> tuple[Deformation, GaussianBasis, int]:
    """Return the warp and the basis without factors, and the number of factors."""
    warp, basis = settings.deformation, settings.basis
    # a derived class may do something else
    if type(warp) is DeformationWithScores and type(basis) is BasisWithFactors:
        return warp.within, basis.kernels, basis.n_factors
    return warp, basis, 0


def _terms(warp: Deformation) -> tuple[Deformation, ...]:
    """Return the warp, or what it is the sum of."""
    return warp.terms if isinstance(warp, SumOfDeformations) else (warp,)


def _sizes_and_tables(
    settings: TemplateSettings,
) -> tuple[list[int], list[np.ndarray]]:
    """Return numbers and arrays of `image_loops_numba` that are the same for all observations."""
    warp, basis, n_factors = _without_factors(settings)
    points = settings.points
    assert basis.grid is not None
    grid = basis.grid
    constants = [*grid.origin, *grid.spacing, grid.bandwidth, *scale_prior_constants(settings)]
    places, at = {RigidMotion: -1, DisplacementField: -1}, 0
    # without a field, points that are no grid are one row of one
    field = [np.zeros((0, 1)), np.zeros((0, len(points)))]
    for term in _terms(warp):
        places[type(term)], at = at, at + term.n_parameters
        if isinstance(term, DisplacementField):
            field = term.factors(points) or field
    tables = [
        np.array(constants),
        points.T,
        *(each for factor in field for each in (factor, factor.T)),
    ]
    scale_at = -1 if settings.scale is None else settings.deformation.n_parameters
    sizes = [
        *(each.shape[1] for each in field),
        grid.length[0],
        *(len(each) for each in field),
        places[RigidMotion],
        places[DisplacementField],
        scale_at,
        n_factors,
    ]
    return sizes, tables
