"""Log-density, derivatives and statistics of mixtures of curves, by written-out loops.

There are loops for Gaussian kernels on a line that are moved by a `TimeWarp`, at the same points or
at points of each curve's own. All other mixtures of curves are compiled from the model's graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.templates.template_loops import (
    TemplateFunctions,
    is_written_out,
    scale_prior_constants,
)
from pymc_mcoem.templates.warps.time_warp import TimeWarp

if TYPE_CHECKING:
    from pymc_mcoem.templates.model import TemplateModel
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["CurveFunctions", "curve_functions"]


def curve_functions(settings: TemplateSettings, built: TemplateModel) -> CurveFunctions | None:
    """Return the loops that are written out for a mixture, or None if there are none."""
    # a derived class may warp in another way
    is_known = type(settings.deformation) is TimeWarp and is_written_out(settings.basis, built)
    return CurveFunctions(settings, built) if is_known else None


class CurveFunctions(TemplateFunctions):
    """The loops of `curve_loops_numba`, with curvature and statistics in NumPy, for one mixture."""

    #: The value and its first two derivatives.
    n_derivatives = 3

    def __init__(self, settings: TemplateSettings, built: TemplateModel) -> None:
        warp, basis = settings.deformation, settings.basis
        assert isinstance(warp, TimeWarp)
        quadrature = warp.quadrature(settings.points[:, 0])
        self._kernels, self._whole = quadrature.kernels, quadrature.whole
        self._begin, self._length = warp.interval[0], warp.interval[1] - warp.interval[0]
        self._up_to = quadrature.up_to if settings.own_points is None else None
        tables = [
            np.array(
                [self._begin, self._length, basis.bandwidth, *scale_prior_constants(settings)]
            ),
            self._kernels,
            self._kernels.T,
            self._whole,
            basis.centers[:, 0],
        ]
        n_points = int(np.prod(settings.observation_shape)) // settings.n_channels
        n_further = (len(self._whole) + 2 * basis.n_basis) * n_points
        super().__init__(settings, built, [], tables, n_further)

    @property
    def function(self) -> Any:
        """The function that numba compiled, once for all curves."""
        # imported where it is used: numba takes a second to import
        from pymc_mcoem.templates.curve_loops_numba import evaluate

        return evaluate.function

    def _further(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._integrals(values).ravel()

    def _integrals(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the weights of the nodes in the integrals up to the points of a curve."""
        if self._up_to is not None:
            return self._up_to
        warp = self._settings.deformation
        assert isinstance(warp, TimeWarp)
        return warp.quadrature(np.ravel(values["own_points"])).up_to

    def _add_curvature(
        self,
        positions: np.ndarray,
        derivatives: np.ndarray,
        weights: np.ndarray,
        residual: np.ndarray,
        reals: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Add the curvature; see `TimeWarp.second_derivatives` for the formulas."""
        kernels, d = self._kernels, self._kernels.shape[1]
        up_to = self._up_to_in(reals)
        speed, area, share, mean, moved = self._moved(positions, up_to)
        rate = self._length / area
        has_scale = self._scale_at >= 0
        pull, bends, sloped, bent = _moments(derivatives, weights, residual, has_scale)
        own = (moved * bends[:, None]) @ moved.transpose((0, 2, 1))
        at_nodes = pull @ up_to.T - self._whole * (pull * share).sum(axis=1, keepdims=True)
        at_nodes *= speed * rate[:, None]
        own -= (kernels.T * at_nodes[:, None]) @ kernels
        together = (moved @ pull[:, :, None]) * (mean / area[:, None])[:, None]
        own += together + together.transpose((0, 2, 1))
        out[:, :d, :d] += own
        if has_scale:
            row = (moved @ sloped[:, :, None])[:, :, 0]
            out[:, d, :d] += row
            out[:, :d, d] += row
            out[:, d, d] += bent.sum(axis=1)

    def _jacobian(
        self, positions: np.ndarray, derivatives: np.ndarray, reals: np.ndarray
    ) -> np.ndarray:
        *_, moved = self._moved(positions, self._up_to_in(reals))
        rows: np.ndarray = moved * derivatives[:, 1:2]
        return rows if self._scale_at < 0 else np.concatenate([rows, derivatives[:, :1]], axis=1)

    def _up_to_in(self, reals: np.ndarray) -> np.ndarray:
        """Return what `_integrals` returned, of packed numbers."""
        begin, n_nodes = self._places["further"], len(self._kernels)
        return reals[begin : begin + n_nodes * self._n_points].reshape((n_nodes, -1))

    def _moved(self, positions: np.ndarray, up_to: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return how warps move points.

        That is speeds at the nodes, their integral, its share up to each point, integrals of the
        kernels times speed, and derivatives of each point by each parameter, (n, d, n_points).
        """
        kernels = self._kernels
        speed = np.exp(positions[:, : kernels.shape[1]] @ kernels.T)
        area = speed @ self._whole
        share = (speed @ up_to) / area[:, None]
        moments = kernels.T * speed[:, None]
        mean = moments @ self._whole
        moved = moments @ up_to - mean[:, :, None] * share[:, None]
        moved *= (self._length / area)[:, None, None]
        return speed, area, share, mean, moved

    def _warped(self, positions: np.ndarray, values: Mapping[str, np.ndarray]) -> np.ndarray:
        kernels = self._kernels
        speed = np.exp(positions[:, : kernels.shape[1]] @ kernels.T)
        share = (speed @ self._integrals(values)) / (speed @ self._whole)[:, None]
        warped: np.ndarray = self._begin + self._length * share
        return warped[:, None]

    def _kernel_sums(
        self, positions: np.ndarray, warped: np.ndarray, once: np.ndarray, twice: np.ndarray
    ) -> Sequence[np.ndarray]:
        design = self._settings.basis.matrix(warped.reshape((-1, 1)))
        return (
            np.stack([each.ravel() @ design for each in once]),
            np.stack([(each.reshape((-1, 1)) * design).T @ design for each in twice]),
        )


def _moments(
    derivatives: np.ndarray, weights: np.ndarray, residual: np.ndarray, has_scale: bool
) -> list[np.ndarray]:
    """Return what a curvature takes of values at points, (n, n_points), summed over channels.

    That is r ∇f, w ∇f² − r ∇²f, and with a scale (w f − r) ∇f and (w f − r) f.
    """
    found: list[np.ndarray] = []
    for c in range(weights.shape[1]):
        value, slope, bend = (derivatives[:, c, degree] for degree in range(3))
        w, r = weights[:, c], residual[:, c]
        own = [r * slope, w * slope**2 - r * bend]
        if has_scale:
            bent = w * value - r
            own += [bent * slope, bent * value]
        found = [one + other for one, other in zip(found, own, strict=True)] if found else own
    return found if has_scale else [*found, np.empty(0), np.empty(0)]
