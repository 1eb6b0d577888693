"""Registration of observations: places of their points on each template, with errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
import xarray as xr

from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.runs.settings import seed_entropy
from pymc_mcoem.templates.warps.time_warp import TimeWarp
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.templates.family import TemplateFamily

__all__ = ["Registrar", "averaged_moments"]

_log = logging.getLogger("pymc_mcoem")

#: Share of the draws that must have data at a point of an aligned curve; NaN elsewhere.
ENOUGH = 0.5
#: Classes less probable than this may lack values without a gap in the average.
NEGLIGIBLE = 1e-6


class Registrar:
    """Register observations to the classes of a mixture, with functions compiled once.

    Parameters
    ----------
    mixture : TemplateMixture
    alone : TemplateMixture
        The same mixture with one class, whose statistics are replaced here.
    e_step : CarlinChibBurst, optional
        Settings of the bursts. Default: as in `OnlineEM`.

    Notes
    -----
    Class probabilities come from a burst that jumps between the classes. The registration to a
    class comes from a burst in the mixture of that class alone, since p(β, λ | I = j, y) does not
    depend on ω. An improbable class is therefore registered as accurately as any other, although
    a jumping chain visits it rarely or never. `TemplateMixture.register` uses this class.
    """

    def __init__(
        self,
        mixture: TemplateFamily,
        alone: TemplateFamily,
        e_step: CarlinChibBurst | None = None,
    ) -> None:
        settings = CarlinChibBurst() if e_step is None else e_step
        self.mixture = mixture
        self._jumping = settings.compile(mixture) if mixture.n_classes > 1 else None
        alone.statistics = _statistics(alone)
        self._within = settings.compile(alone)
        self._told: set[str] = set()
        # Points warped by the prior mean of β; moments are of the displacement from there.
        self._middle = np.asarray(
            alone.settings.deformation.warp(
                alone.settings.points, alone.settings.deformation.mean
            ).eval(mode="FAST_COMPILE")
        )

    def __call__(
        self,
        observation: Any,
        parameters: Mapping[str, Any] | xr.Dataset | None = None,
        *,
        reference: Any = None,
        draws: int = 200,
        tune: int = 100,
        random_seed: int | Sequence[int] = 0,
    ) -> xr.Dataset:
        """Register one observation; see `TemplateMixture.register`."""
        mixture = self.mixture
        for name, count, least in (("draws", draws, 2), ("tune", tune, 0)):
            require_whole(name, count, least)
        entropy = seed_entropy(random_seed)
        clocks = self._clocks(reference)
        theta = (
            mixture.model_parameters()
            if parameters is None
            else mixture.check_parameters(parameters)
        )
        data = mixture.encode(observation)
        seeds = np.random.SeedSequence(entropy).spawn(mixture.n_classes + 1)
        troubles: list[str] = []
        with one_blas_thread():
            probability = np.ones(1)
            if self._jumping is not None:
                probability = self._jumping.class_probability(
                    data, theta, np.random.default_rng(seeds[0]), draws=draws, tune=tune
                )
            found = [
                self._within_class(j, data, theta, seeds[j + 1], clocks, draws, tune, troubles)
                for j in range(mixture.n_classes)
            ]
        moments = {
            name: tuple(np.stack([each[name][part] for each in found]) for part in (0, 1))
            for name in found[0]
        }
        result = self._labeled(probability, moments)
        result.attrs = {"draws": draws, "tune": tune, "troubles": "; ".join(troubles)}
        return result

    def _clocks(self, reference: Any) -> np.ndarray | None:
        """Return the β of the common clock of each class, (n_classes, n_parameters)."""
        deformation = self.mixture.settings.deformation
        if not isinstance(deformation, TimeWarp):
            if reference is not None:
                raise ValueError(
                    f"reference: a {type(deformation).__name__} has no inverse to align "
                    "observations by; leave reference out and use the template's mean."
                )
            return None
        size = (self.mixture.n_classes, deformation.n_parameters)
        beta = deformation.mean if reference is None else np.asarray(reference, np.float64)
        if beta.shape not in (size, size[1:]) or not np.isfinite(beta).all():
            raise ValueError(
                f"reference has shape {beta.shape}; give finite β, one for all classes "
                f"{size[1:]} or one for each {size}."
            )
        return np.broadcast_to(beta, size)

    def _within_class(
        self,
        j: int,
        data: Mapping[str, np.ndarray],
        theta: Mapping[str, np.ndarray],
        seed: np.random.SeedSequence,
        clocks: np.ndarray | None,
        draws: int,
        tune: int,
        troubles: list[str],
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return means and standard deviations of class j; append its problems to `troubles`."""
        settings = self.mixture.settings
        rows = {*self.mixture.class_parameters, *self.mixture.weight_parameters}
        alone = {name: value[j : j + 1] if name in rows else value for name, value in theta.items()}
        alone["weights"] = np.ones(1)
        result, sweeps = self._within.with_draws(
            data,
            alone,
            np.random.default_rng(seed),
            self._within.initial_state(),
            draws=draws,
            tune=tune,
        )
        for trouble in sorted(name for name, count in result.troubles.items() if count):
            troubles.append(f"class {j}: {trouble}")
            if trouble not in self._told:
                self._told.add(trouble)
                _log.warning(
                    "register: class %d: %s. Further ones are only named in the results' attrs.",
                    j,
                    trouble,
                )
        sums = {name: value[0] for name, value in result.statistics.items()}
        positions = sweeps.position[tune:]
        n_parameters = settings.deformation.n_parameters
        beta, scale = positions[:, :n_parameters], np.ones(draws)
        way, way_sd = _moments(sums["way"], sums["way_square"])
        found = {
            "warp": (way + self._middle, way_sd),
            "template": _moments(sums["template"], sums["template_square"]),
            "deformation": (beta.mean(axis=0), beta.std(axis=0)),
        }
        if settings.scale is not None:
            # the position contains log λ, as PyMC samples a Gamma on the log scale
            scale = np.exp(positions[:, n_parameters])
            found["scale"] = (np.asarray(scale.mean()), np.asarray(scale.std()))
        if clocks is not None:
            found["aligned"] = self._aligned(data, beta, scale, clocks[j])
        return found

    def _aligned(
        self, data: Mapping[str, np.ndarray], beta: np.ndarray, scale: np.ndarray, clock: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return moments of y(D⁻¹(D(u, reference), β)) / λ at the mixture's ages."""
        settings = self.mixture.settings
        warp = settings.deformation
        assert isinstance(warp, TimeWarp)
        ages = settings.points[:, 0]
        seen = data["observed_mask"] > 0
        given = data["own_points"] if settings.own_points is not None else ages
        whence = warp.inverse(warp.evaluate(ages, clock), beta)
        values = np.stack(
            [
                np.interp(row, given[seen], data["observed_values"][seen], np.nan, np.nan) / each
                for row, each in zip(whence, scale, strict=True)
            ]
        )
        count = (~np.isnan(values)).sum(axis=0)
        enough = count >= ENOUGH * len(values)
        total = np.where(enough, np.nansum(values, axis=0), np.nan)
        mean = total / np.maximum(count, 1)
        square = np.nansum(np.square(values - mean), axis=0) / np.maximum(count, 1)
        return mean, np.where(enough, np.sqrt(square), np.nan)

    def _labeled(
        self,
        probability: np.ndarray,
        moments: Mapping[str, tuple[np.ndarray, ...]],
    ) -> xr.Dataset:
        """Return a labeled Dataset of moments by class and averaged over the classes."""
        settings = self.mixture.settings
        grid, shape = settings.dim_names, settings.grid_shape
        dims: dict[str, tuple[str, ...]] = dict.fromkeys(("warp", "template", "aligned"), grid)
        dims |= {"deformation": ("deformation_coordinate",), "scale": ()}
        coords: dict[str, Any] = {
            "class": np.arange(self.mixture.n_classes),
            "deformation_coordinate": list(settings.deformation.labels),
            **dict(zip(grid, settings.dim_coords, strict=True)),
        }
        n_dims = settings.points.shape[1]
        if n_dims > 1:
            dims["warp"] = (*grid, "coordinate")
            coords["coordinate"] = list(grid) if len(grid) == n_dims else np.arange(n_dims)
            # Points in the unit of the warp; labels of the axes may have another unit.
            coords["point"] = (dims["warp"], settings.points.reshape(*shape, n_dims))
        variables: dict[str, Any] = {"class_probability": (("class",), probability)}
        for name, pair in moments.items():
            sizes = [len(coords[dim]) for dim in dims[name]]
            mean, sd = (values.reshape(-1, *sizes) for values in pair)
            variables[f"{name}_mean"] = (("class", *dims[name]), mean)
            variables[f"{name}_sd"] = (("class", *dims[name]), sd)
            for moment, values in zip(
                ("mean", "sd"), averaged_moments(probability, mean, sd), strict=True
            ):
                variables[f"{name}_{moment}_averaged"] = (dims[name], values)
        return xr.Dataset(variables, coords=coords)


def averaged_moments(
    probability: np.ndarray, mean: np.ndarray, sd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of a mixture from those of its classes.

    Parameters
    ----------
    probability : ndarray of shape (n_classes,)
    mean, sd : ndarray of shape (n_classes, ...)
        NaN where a class has no value. The average is then NaN too, unless the class is less
        probable than a millionth.

    Returns
    -------
    mean, sd : ndarray of shape (...)

    Examples
    --------
    >>> mean, sd = averaged_moments(np.full(2, 0.5), np.array([0.0, 2.0]), np.ones(2))
    >>> float(mean), round(float(sd), 3)
    (1.0, 1.414)
    """
    counts = probability >= NEGLIGIBLE
    weight = probability[counts] / probability[counts].sum()
    middle = np.tensordot(weight, mean[counts], axes=1)
    spread = np.square(sd[counts]) + np.square(mean[counts] - middle)
    return middle, np.sqrt(np.tensordot(weight, spread, axes=1))


def _statistics(alone: TemplateFamily) -> dict[str, TensorVariable]:
    """Return first and second moments of warp and template at the mixture's points.

    There need not be data at these points, even if the observation has points of its own.
    """
    model, settings = alone.model, alone.settings
    warped = settings.deformation.coordinates(settings.points, model["deformation"])
    template = settings.basis.evaluate(warped, model["templates"][alone.class_index])
    if settings.scale is not None:
        template = model["scale"] * template
    middle = settings.deformation.warp(settings.points, settings.deformation.mean)
    way = pt.stack(warped, axis=1) - middle.eval(mode="FAST_COMPILE")
    return {
        "way": way,
        "way_square": pt.sqr(way),
        "template": template,
        "template_square": pt.sqr(template),
    }


def _moments(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation from E[x] and E[x²]."""
    return first, np.sqrt(np.maximum(second - np.square(first), 0.0))
