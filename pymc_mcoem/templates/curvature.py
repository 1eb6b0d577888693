"""Curvature of a template model's log-density in the latents, exact and Gauss-Newton."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytensor.tensor as pt

from pymc_mcoem.compiling.linear_algebra import computed_once, matrix_product
from pymc_mcoem.density.geometry import Curvature
from pymc_mcoem.templates.bases.factors import BasisWithFactors
from pymc_mcoem.templates.warps.deformations import Deformation
from pymc_mcoem.templates.warps.scores import DeformationWithScores

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["ChannelInputs", "CurvatureInputs", "curvature", "gauss_newton"]


@dataclass(frozen=True)
class ChannelInputs:
    """Inputs of the curvature for one channel.

    Attributes
    ----------
    values, mask : TensorVariable of shape (n_points,)
        The observation, and a mask that is one where a point is observed.
    whiten : callable
        Masks columns ``(anything, n_points)`` and removes the correlation of the noise.
    weigh : callable
        Multiplies a vector ``(n_points,)`` by the precision P of noise of variance one: by the
        mask, where noise is not correlated.
    template, template_values, noise_variance
        The class's coefficients, f(D(u_s, β)) without the scale, σ².
    """

    values: TensorVariable
    mask: TensorVariable
    whiten: Callable[[TensorVariable], TensorVariable]
    weigh: Callable[[TensorVariable], TensorVariable]
    template: TensorVariable
    template_values: TensorVariable
    noise_variance: TensorVariable


@dataclass(frozen=True)
class CurvatureInputs:
    """Expressions from which the curvature of one observation's model is computed.

    Attributes
    ----------
    settings : TemplateSettings
    channels : sequence of ChannelInputs
    precision : TensorVariable of shape (n_parameters, n_parameters)
        Precision of the deformation's prior.
    beta : TensorVariable of shape (n_parameters,)
    scale : TensorVariable or None
    points, warped
        u_s, D(u_s, β).
    """

    settings: TemplateSettings
    channels: Sequence[ChannelInputs]
    precision: TensorVariable
    beta: TensorVariable
    scale: TensorVariable | None
    points: Any
    warped: list[TensorVariable]


def gauss_newton(inputs: CurvatureInputs) -> TensorVariable:
    """Return JᵀΣ⁻¹J + prior precision, for (deformation, log scale)."""
    settings, scale = inputs.settings, inputs.scale
    precision = inputs.precision
    if scale is not None and settings.scale is not None:
        # −∂² of the log-density of log λ, which is a log λ − bλ with the Jacobian
        precision = _bordered(precision, None, settings.scale[1] * scale)
    found = []
    for channel in inputs.channels:
        gradient = settings.basis.gradient(inputs.warped, channel.template)
        # `computed_once` makes it one quotient instead of one for every entry
        inverse = computed_once(1.0 / channel.noise_variance)
        rows = settings.deformation.jacobian(inputs.points, inputs.beta, gradient)
        if scale is not None:
            rows = scale * pt.concatenate([rows, channel.template_values[None, :]], axis=0)
        rows = channel.whiten(rows)
        found.append(matrix_product(rows, rows.T) * inverse)
    return _sum(found) + precision


def curvature(inputs: CurvatureInputs) -> Curvature | None:
    """Return minus the second derivatives by (deformation, log scale), with a weight of residuals.

    Return None if the deformation does not know its second derivatives, or if a derived class
    redefines values (of the warp or the basis) without the derivatives that belong to them.
    A point's log-density is g = −m (y − λf)² / 2σ². Its derivatives by the warped point
    are m (y − λf) λ∇f / σ² and m ((y − λf) λ∇²f − λ²∇f∇fᵀ) / σ²; Gauss-Newton omits
    the terms with the residual y − λf. Where noise is correlated, P (y − λf) stands for
    m (y − λf), and the terms without the residual, which join points, are Gauss-Newton's matrix.
    Channels are added at each point, before the warp's derivatives are taken: they move together.
    """
    settings, deformation = inputs.settings, inputs.settings.deformation
    if not _is_known(settings):
        return None
    share = pt.scalar("residual_share", dtype="float64")
    precision: Any = inputs.precision
    scale: Any = inputs.scale
    bent: Any = 0.0 if settings.scale is None else settings.scale[1] * scale
    if settings.noise_covariance is not None:
        precision = bent = 0.0
    points = [_point_terms(inputs, channel, share) for channel in inputs.channels]
    # σ² of a single channel is divided by once, at the end; those of several at each point
    inverse: Any = 1.0
    if len(points) == 1:
        inverse = computed_once(1.0 / inputs.channels[0].noise_variance)
    axes = range(deformation.n_dims)
    slopes = [computed_once(_sum([each.slopes[k] for each in points])) for k in axes]
    weights = {
        pair: computed_once(_sum([each.weights[pair] for each in points]))
        for pair in points[0].weights
    }
    found = deformation.second_derivatives(
        inputs.points,
        inputs.beta,
        slopes,
        [[weights[min(k, m), max(k, m)] for m in axes] for k in axes],
    )
    if found is None:
        return None
    matrix = precision - found * inverse
    if inputs.scale is not None:
        rows = deformation.jacobian(
            inputs.points, inputs.beta, _sum([each.by_scale for each in points])
        )
        border = -rows.sum(axis=1) * inverse
        bent = bent + _sum([each.corner for each in points]) * inverse
        matrix = _bordered(matrix, border, bent)
    if settings.noise_covariance is not None:
        matrix = gauss_newton(inputs) + matrix
    return Curvature(matrix, share)


@dataclass(frozen=True)
class _PointTerms:
    """Terms that one channel adds at each point; of several channels over σ².

    Attributes
    ----------
    slopes, weights
        Derivatives of g by the warped point: first ones by axis, second ones by pair of axes.
    by_scale, corner
        ∂g by log λ is m (y − λf) λf / σ², and these are its derivatives by place, (n_points,
        n_dims), and minus that by log λ, a number.
    """

    slopes: list[TensorVariable]
    weights: dict[tuple[int, int], TensorVariable]
    by_scale: TensorVariable
    corner: TensorVariable


def _point_terms(
    inputs: CurvatureInputs, channel: ChannelInputs, share: TensorVariable
) -> _PointTerms:
    settings, axes = inputs.settings, range(inputs.settings.deformation.n_dims)
    scale: Any = 1.0 if inputs.scale is None else inputs.scale
    seen: Any = channel.mask if settings.noise_covariance is None else 0.0
    fitted = scale * channel.template_values
    residual = share * channel.weigh(channel.values - fitted)
    gradient = settings.basis.gradient(inputs.warped, channel.template)
    columns = [scale * gradient[:, axis] for axis in axes]
    bends = settings.basis.second_derivatives(inputs.warped, channel.template)
    if len(inputs.channels) > 1:
        inverse = computed_once(1.0 / channel.noise_variance)
        residual, seen = residual * inverse, seen * inverse
    return _PointTerms(
        slopes=[residual * column for column in columns],
        weights={
            (k, m): residual * (scale * bends[k][m]) - seen * columns[k] * columns[m]
            for k in axes
            for m in axes
            if k <= m
        },
        by_scale=(residual - seen * fitted)[:, None] * pt.stack(columns, axis=1),
        corner=pt.sum((seen * fitted - residual) * fitted),
    )


def _sum(terms: Sequence[TensorVariable]) -> TensorVariable:
    """Return the sum of terms; a single one is left as it is."""
    return functools.reduce(operator.add, terms)


def _is_known(settings: TemplateSettings) -> bool:
    """Return whether the second derivatives were written for the values that are computed."""
    whole, basis = settings.deformation, settings.basis
    if isinstance(whole, DeformationWithScores) and isinstance(basis, BasisWithFactors):
        # their own derivatives are made of these
        whole, basis = whole.within, basis.kernels
    warps = [whole, *getattr(whole, "terms", ())]
    required = ["second_derivatives"]
    if len(warps) > 1:  # methods that join them
        required += ["derivatives", "contract", "cross_derivatives"]
    return _belong(basis, "evaluate", ["_bends"]) and all(
        _belong(each, "warped", required) for each in warps
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
