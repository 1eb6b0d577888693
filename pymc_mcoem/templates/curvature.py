"""Curvature of a template model's log-density in the latents, exact and Gauss-Newton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytensor.tensor as pt

from pymc_mcoem.compiling.linear_algebra import computed_once, matrix_product
from pymc_mcoem.density.geometry import Curvature
from pymc_mcoem.templates.warps.deformations import Deformation

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["CurvatureInputs", "curvature", "gauss_newton"]


@dataclass(frozen=True)
class CurvatureInputs:
    """Expressions from which the curvature of one observation's model is computed.

    Attributes
    ----------
    settings : TemplateSettings
    values, mask : TensorVariable of shape (n_points,)
        The observation, and a mask that is one where a point is observed.
    whiten : callable
        Masks columns ``(anything, n_points)`` and removes the correlation of the noise.
    weigh : callable
        Multiplies a vector ``(n_points,)`` by the precision P of noise of variance one: by the
        mask, where noise is not correlated.
    precision : TensorVariable of shape (n_parameters, n_parameters)
        Precision of the deformation's prior.
    beta : TensorVariable of shape (n_parameters,)
    scale : TensorVariable or None
    points, warped, template, template_values, noise_variance
        u_s, D(u_s, β), the class's coefficients, f(D(u_s, β)) without the scale, σ².
    """

    settings: TemplateSettings
    values: TensorVariable
    mask: TensorVariable
    whiten: Callable[[TensorVariable], TensorVariable]
    weigh: Callable[[TensorVariable], TensorVariable]
    precision: TensorVariable
    beta: TensorVariable
    scale: TensorVariable | None
    points: Any
    warped: list[TensorVariable]
    template: TensorVariable
    template_values: TensorVariable
    noise_variance: TensorVariable


def gauss_newton(inputs: CurvatureInputs) -> TensorVariable:
    """Return JᵀΣ⁻¹J + prior precision, for (deformation, log scale)."""
    settings, scale = inputs.settings, inputs.scale
    gradient = settings.basis.gradient(inputs.warped, inputs.template)
    # `computed_once` makes it one quotient instead of one for every entry
    inverse = computed_once(1.0 / inputs.noise_variance)
    rows = settings.deformation.jacobian(inputs.points, inputs.beta, gradient)
    precision = inputs.precision
    if scale is not None and settings.scale is not None:
        rows = scale * pt.concatenate([rows, inputs.template_values[None, :]], axis=0)
        # −∂² of the log-density of log λ, which is a log λ − bλ with the Jacobian
        precision = _bordered(precision, None, settings.scale[1] * scale)
    rows = inputs.whiten(rows)
    return matrix_product(rows, rows.T) * inverse + precision


def curvature(inputs: CurvatureInputs) -> Curvature | None:
    """Return minus the second derivatives by (deformation, log scale), with a weight of residuals.

    Return None if the deformation does not know its second derivatives, or if a derived class
    redefines values (of the warp or the basis) without the derivatives that belong to them.
    A point's log-density is g = −m (y − λf)² / 2σ². Its derivatives by the warped point
    are m (y − λf) λ∇f / σ² and m ((y − λf) λ∇²f − λ²∇f∇fᵀ) / σ²; Gauss-Newton omits
    the terms with the residual y − λf. Where noise is correlated, P (y − λf) stands for
    m (y − λf), and the terms without the residual, which join points, are Gauss-Newton's matrix.
    """
    settings, deformation = inputs.settings, inputs.settings.deformation
    if not _is_known(settings):
        return None
    share = pt.scalar("residual_share", dtype="float64")
    scale: Any = 1.0 if inputs.scale is None else inputs.scale
    seen: Any = inputs.mask
    precision: Any = inputs.precision
    bent: Any = 0.0 if settings.scale is None else settings.scale[1] * scale
    if settings.noise_correlation is not None:
        seen = precision = bent = 0.0
    fitted = scale * inputs.template_values
    residual = share * inputs.weigh(inputs.values - fitted)
    gradient = settings.basis.gradient(inputs.warped, inputs.template)
    columns = [scale * gradient[:, axis] for axis in range(deformation.n_dims)]
    bends = settings.basis.second_derivatives(inputs.warped, inputs.template)
    axes = range(deformation.n_dims)
    slopes = [computed_once(residual * column) for column in columns]
    weights = {
        (k, m): computed_once(residual * (scale * bends[k][m]) - seen * columns[k] * columns[m])
        for k in axes
        for m in axes
        if k <= m
    }
    found = deformation.second_derivatives(
        inputs.points,
        inputs.beta,
        slopes,
        [[weights[min(k, m), max(k, m)] for m in axes] for k in axes],
    )
    if found is None:
        return None
    inverse = computed_once(1.0 / inputs.noise_variance)
    matrix = precision - found * inverse
    if inputs.scale is not None:
        # ∂g by log λ is m (y − λf) λf / σ², and this its derivatives by place and by log λ
        both = (residual - seen * fitted)[:, None] * pt.stack(columns, axis=1)
        rows = deformation.jacobian(inputs.points, inputs.beta, both)
        border = -rows.sum(axis=1) * inverse
        bent = bent + pt.sum((seen * fitted - residual) * fitted) * inverse
        matrix = _bordered(matrix, border, bent)
    if settings.noise_correlation is not None:
        matrix = gauss_newton(inputs) + matrix
    return Curvature(matrix, share)


def _is_known(settings: TemplateSettings) -> bool:
    """Return whether the second derivatives were written for the values that are computed."""
    warps = [settings.deformation, *getattr(settings.deformation, "terms", ())]
    asked = ["second_derivatives"]
    if len(warps) > 1:  # methods that join them
        asked += ["derivatives", "contract", "cross_derivatives"]
    return _belong(settings.basis, "evaluate", ["_bends"]) and all(
        _belong(each, "warped", asked) for each in warps
    )


def _belong(made: Any, values: str, derived: Sequence[str]) -> bool:
    """Return whether methods were written for the values of an object's own class.

    Methods of `Deformation` itself always were: they call the others.
    """
    known = _definer(type(made), values)
    definers = [_definer(type(made), name) for name in derived]
    return all(each is Deformation or issubclass(each, known) for each in definers)


def _definer(kind: type, name: str) -> type:
    """Return the class that defines a method: `kind` or one of its bases."""
    return next(each for each in kind.__mro__ if name in vars(each))


def _bordered(
    matrix: TensorVariable, border: TensorVariable | None, corner: TensorVariable
) -> TensorVariable:
    """Return a symmetric matrix with one more row and column; a border of None is zero."""
    size = pt.shape(matrix)[0] if matrix.type.shape[0] is None else matrix.type.shape[0]
    wider = pt.set_subtensor(pt.zeros((size + 1, size + 1))[:size, :size], matrix)
    wider = pt.set_subtensor(wider[size, size], corner)
    if border is None:
        return wider
    wider = pt.set_subtensor(wider[size, :size], border)
    return pt.set_subtensor(wider[:size, size], border)
