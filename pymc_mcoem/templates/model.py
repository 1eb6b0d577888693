"""The PyMC model of a template mixture, its sufficient statistics and its curvature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.linalg import cholesky, solve_triangular
from scipy.special import polygamma

from pymc_mcoem.compiling.linear_algebra import (
    computed_once,
    matrix_product,
    matrix_vector,
    quadratic_form,
    symmetric_inverse,
)
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.templates.curvature import (
    ChannelInputs,
    CurvatureInputs,
    curvature,
    gauss_newton,
)
from pymc_mcoem.templates.noise import Whitener, flat_channels, observe, of_channels
from pymc_mcoem.templates.observations import pad_points

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["TemplateModel", "build_template_model"]


@dataclass(frozen=True)
class TemplateModel:
    """A PyMC model with the expressions that its family needs."""

    model: pm.Model
    class_index: TensorVariable
    statistics: dict[str, TensorVariable]
    geometry: LatentGeometry


def build_template_model(
    settings: TemplateSettings, parameters: Mapping[str, np.ndarray]
) -> TemplateModel:
    """Build the model of one observation, with these initial values of θ.

    Labels ``modelFunc``, ``mixtModelVect`` and ``exp_model`` of the paper.
    """
    basis, deformation = settings.basis, settings.deformation
    with pm.Model(coords=_coords(settings)) as model:
        data = _parameter_data(settings, parameters)
        size, dims = settings.observation_shape, settings.observation_dims
        values = pm.Data("observed_values", np.zeros(size), dims=dims)
        mask = pm.Data("observed_mask", np.ones(size), dims=dims)
        points: Any = settings.points
        if settings.own_points is not None:
            own = pad_points(points[: size[0], 0], size[0])
            points = pm.Data("own_points", own, dims=dims[:1])[:, None]

        class_index = pm.Categorical("class_index", p=data["weights"])
        prior = _DeformationPrior(settings, data, class_index)
        beta = _deform(settings, prior)
        scale = None
        if settings.scale is not None:
            # PyTensor would store a Python float such as 10.0 in single precision, and compute
            # the density's normalizing constant in it
            shape, rate = np.float64(settings.scale[0]), np.float64(settings.scale[1])
            scale = pm.Gamma("scale", alpha=shape, beta=rate)

        template = data["templates"][class_index]
        noise_variance = data["noise_variance"]
        if settings.noise == "class":
            noise_variance = noise_variance[class_index]
        warped = deformation.coordinates(points, beta)
        templates = of_channels(settings, template)
        values_there = [basis.evaluate(warped, each) for each in templates]
        mean = pt.stack(values_there, axis=-1) if settings.channel_shape else values_there[0]
        mean = mean if scale is None else scale * mean
        observe(settings, mean, mask, noise_variance, values)

    whiteners = [Whitener(settings, each) for each in flat_channels(settings, mask)]
    seen = flat_channels(settings, values)
    channels = [
        ChannelInputs(
            values=own,
            mask=whitener.mask,
            whiten=whitener.columns,
            weigh=whitener.weighted,
            template=each,
            template_values=there,
            noise_variance=variance,
        )
        for own, whitener, each, there, variance in zip(
            seen,
            whiteners,
            templates,
            values_there,
            of_channels(settings, noise_variance),
            strict=True,
        )
    ]
    inputs = CurvatureInputs(
        settings=settings,
        channels=channels,
        precision=prior.precision(),
        beta=beta,
        scale=scale,
        points=points,
        warped=warped,
    )
    geometry = LatentGeometry(
        gauss_newton=gauss_newton(inputs),
        curvature=curvature(inputs),
        prior_covariance=_with_scale(settings, prior.covariance(), _log_scale_variance(settings)),
        prior_precision=_with_scale(settings, inputs.precision, _log_scale_precision(settings)),
        starts=_starts(settings),
        noise_variance="noise_variance",
    )
    statistics = _statistics(settings, whiteners, seen, beta, scale, warped)
    return TemplateModel(model, class_index, statistics, geometry)


def _starts(settings: TemplateSettings) -> np.ndarray:
    """Return starting points of mode searches: the deformation's, at the mode of the scale."""
    starts = settings.deformation.starts()
    if settings.scale is None:
        return starts
    shape, rate = settings.scale
    return np.column_stack([starts, np.full(len(starts), np.log(shape / rate))])


def _deform(settings: TemplateSettings, prior: _DeformationPrior) -> TensorVariable:
    """Add the deformation, Normal(m, Γ_j), to the model.

    ``pm.MvNormal`` factorizes its covariance at every evaluation. Only a full covariance needs
    this: the others are diag(s) M diag(s), whose density has a quadratic form with a constant
    matrix.
    """
    mean = settings.deformation.mean
    if prior.full is not None:
        return pm.MvNormal(
            "deformation", mu=mean, chol=prior.cholesky(), dims="deformation_coordinate"
        )
    factor = np.linalg.cholesky(prior.base)
    constant = -np.log(np.diagonal(factor)).sum() - 0.5 * prior.size * np.log(2 * np.pi)

    def logp(value: TensorVariable, deviations: TensorVariable) -> TensorVariable:
        squares = quadratic_form(prior.base_precision, (value - mean) / deviations)
        return constant - 0.5 * squares - pt.log(deviations).sum(axis=-1)

    def dist(deviations: TensorVariable, size: TensorVariable) -> TensorVariable:
        return pm.MvNormal.dist(mu=mean, chol=factor * deviations[..., :, None], size=size)

    return pm.CustomDist(
        "deformation",
        prior.deviations,
        logp=logp,
        dist=dist,
        signature="(n)->(n)",
        class_name="ScaledNormal",
        dims="deformation_coordinate",
    )


def _coords(settings: TemplateSettings) -> dict[str, Any]:
    coords: dict[str, Any] = {
        "class": np.arange(settings.n_classes),
        "basis": np.arange(settings.basis.n_basis),
        "deformation_coordinate": list(settings.deformation.labels),
    }
    learned = [settings.deformation.labels[index] for index in settings.learned]
    if settings.covariance != "scaled":
        coords["learned_coordinate"] = learned
    if settings.covariance == "full":
        coords["learned_coordinate_column"] = learned
    if settings.rigid.size:
        coords["rigid_coordinate"] = [settings.deformation.labels[k] for k in settings.rigid]
    if settings.channel_name is not None:
        coords[settings.channel_name] = settings.channel_labels
    coords.update(zip(settings.observation_dims, settings.observation_coords, strict=True))
    return coords


def _parameter_data(
    settings: TemplateSettings, parameters: Mapping[str, np.ndarray]
) -> dict[str, TensorVariable]:
    channel = settings.channel_dims
    dims: dict[str, tuple[str, ...]] = {
        "weights": ("class",),
        "templates": ("class", *channel, "basis"),
        "noise_variance": ("class", *channel) if settings.noise == "class" else channel,
    }
    if settings.covariance == "full":
        dims["deformation_covariance"] = (
            "class",
            "learned_coordinate",
            "learned_coordinate_column",
        )
    elif settings.covariance == "diagonal":
        dims["deformation_variance"] = ("class", "learned_coordinate")
    else:
        dims["deformation_variance"] = ("class",)
    if settings.rigid.size:
        dims["rigid_variance"] = ("class", "rigid_coordinate")
    return {
        name: pm.Data(name, np.asarray(parameters[name], dtype=np.float64), dims=labels or None)
        for name, labels in dims.items()
    }


class _DeformationPrior:
    """Γ_j of the current class, blockwise, as a Cholesky factor, a covariance or a precision.

    With s the vector of standard deviations (√γ² on learned coordinates, those of the class on
    rigid ones, one on the others),
    Γ = diag(s) M diag(s), whose Cholesky factor is diag(s) chol(M): the graph contains no
    factorization unless the covariance is full.
    """

    def __init__(
        self,
        settings: TemplateSettings,
        data: Mapping[str, TensorVariable],
        class_index: TensorVariable,
    ) -> None:
        learned = settings.learned
        self.base = settings.whole_covariance
        self.base_precision = symmetric_inverse(self.base)
        self.size = len(self.base)
        self.learned = learned
        self.full: TensorVariable | None = None
        self.deviations: TensorVariable | np.ndarray = np.ones(self.size)
        if settings.rigid.size:
            own = pt.sqrt(data["rigid_variance"][class_index])
            self.deviations = pt.set_subtensor(pt.ones(self.size)[settings.rigid], own)
        if learned.size == 0:
            return
        if settings.covariance == "full":
            self.full = data["deformation_covariance"][class_index]
            return
        deviation = pt.sqrt(data["deformation_variance"][class_index])
        if settings.covariance == "diagonal":
            others = pt.as_tensor_variable(self.deviations)
            self.deviations = pt.set_subtensor(others[learned], deviation)
        else:
            flags = settings.deformation.learned.astype(np.float64)
            self.deviations = flags * deviation + (1.0 - flags) * self.deviations

    def _block(self, others: TensorVariable, learned: TensorVariable) -> TensorVariable:
        rows, columns = np.ix_(self.learned, self.learned)
        return pt.set_subtensor(others[rows, columns], learned)

    def cholesky(self) -> TensorVariable:
        factor = pt.as_tensor_variable(np.linalg.cholesky(self.base)) * self.deviations[:, None]
        return factor if self.full is None else self._block(factor, cholesky(self.full))

    def covariance(self) -> TensorVariable:
        scaled = pt.as_tensor_variable(self.base) * self.deviations[:, None]
        found = scaled * self.deviations[None, :]
        return found if self.full is None else self._block(found, self.full)

    def precision(self) -> TensorVariable:
        # `computed_once` makes it n quotients instead of n²
        shares = computed_once(1.0 / pt.as_tensor_variable(self.deviations))
        found = self.base_precision * (shares[:, None] * shares[None, :])
        if self.full is None:
            return found
        factor = solve_triangular(
            cholesky(self.full), np.eye(self.learned.size), lower=True, b_ndim=2
        )
        return self._block(found, matrix_product(factor.T, factor))


def _statistics(
    settings: TemplateSettings,
    whiteners: Sequence[Whitener],
    values: Sequence[TensorVariable],
    beta: TensorVariable,
    scale: TensorVariable | None,
    warped: list[TensorVariable],
) -> dict[str, TensorVariable]:
    """Return S(x, y) of one draw given its class (label ``exp_model``)."""
    found = [
        _template_statistics(settings, whitener, own, scale, warped)
        for whitener, own in zip(whiteners, values, strict=True)
    ]
    of_channels = {
        name: pt.stack([each[name] for each in found]) if settings.channel_shape else found[0][name]
        for name in found[0]
    }
    away = (beta - settings.deformation.mean)[settings.learned]
    statistics = {
        "template_projection": of_channels["template_projection"],
        "template_gram": of_channels["template_gram"],
        "deformation_outer": away[:, None] * away[None, :],
        "squared_norm": of_channels["squared_norm"],
        "observed_points": of_channels["observed_points"],
    }
    if settings.rigid.size:
        moved = (beta - settings.deformation.mean)[settings.rigid]
        statistics["rigid_squares"] = pt.sqr(moved)
    if scale is not None:
        statistics["scale"] = scale
        statistics["log_scale"] = pt.log(scale)
    return statistics


def _template_statistics(
    settings: TemplateSettings,
    whitener: Whitener,
    values: TensorVariable,
    scale: TensorVariable | None,
    warped: list[TensorVariable],
) -> dict[str, TensorVariable]:
    """Return the statistics of one channel's template and noise."""
    basis, response = settings.basis, whitener.vector(values)
    if whitener.factor is None:
        # separable if the basis is: the design matrix is then not needed
        once = response if scale is None else scale * response
        twice = whitener.mask if scale is None else pt.sqr(scale) * whitener.mask
        projection = basis.project(warped, once)
        gram = basis.gram_sums(warped, twice)
    else:
        design = basis.design(warped).T
        columns = whitener.columns(design if scale is None else scale * design)
        projection = matrix_vector(columns, response)
        gram = matrix_product(columns, columns.T)
    return {
        "template_projection": projection,
        "template_gram": gram,
        "squared_norm": pt.sqr(response).sum(),
        "observed_points": whitener.mask.sum(),
    }


def _with_scale(
    settings: TemplateSettings, matrix: TensorVariable, corner: float
) -> TensorVariable:
    """Return a matrix of the deformation with another row and column if there is a log scale."""
    # it is an array if no coordinate of the deformation is learned
    matrix = pt.as_tensor_variable(matrix)
    if settings.scale is None:
        return matrix
    size = len(settings.deformation.mean)
    wider = np.zeros((size + 1, size + 1))
    wider[size, size] = corner
    return pt.set_subtensor(pt.as_tensor_variable(wider)[:size, :size], matrix)


def _log_scale_variance(settings: TemplateSettings) -> float:
    """Return the prior variance of log λ for λ with a gamma density."""
    return 1.0 if settings.scale is None else float(polygamma(1, settings.scale[0]))


def _log_scale_precision(settings: TemplateSettings) -> float:
    """Return minus the second derivative of the prior log-density of log λ at its mode."""
    return 1.0 if settings.scale is None else float(settings.scale[0])
