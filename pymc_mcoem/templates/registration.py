"""Registration of observations: places of their points on each template, with errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.templates.alignment import GridFrame, gapped_moments
from pymc_mcoem.templates.warps.time_warp import TimeWarp

if TYPE_CHECKING:
    from pymc_mcoem.templates.family import TemplateFamily

__all__ = ["Registered", "Registrar", "averaged_moments"]

type Arrays = Mapping[str, np.ndarray]
type Pair = tuple[np.ndarray, np.ndarray]

_log = logging.getLogger("pymc_mcoem")

#: Most points at which a template is evaluated in one call, for the memory of its kernels.
AT_ONCE = 20_000

#: Classes less probable than this may lack values without a gap in the average.
NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Registered:
    """One observation registered to each class.

    Attributes
    ----------
    probability : ndarray of shape (n_classes,)
    moments : dict of str to (ndarray, ndarray)
        Posterior means and standard deviations by name, each (n_classes, ...).
    troubles : list of str
        Problems of single classes.
    """

    probability: np.ndarray
    moments: dict[str, Pair]
    troubles: list[str] = field(default_factory=list)


class Registrar:
    """Register observations to the classes of a mixture, with functions compiled once.

    Class probabilities come from a burst that jumps between the classes. The registration to a
    class comes from a burst in the mixture of that class alone, `alone`, since p(β, λ | I = j, y)
    does not depend on ω. An improbable class is therefore registered as accurately as any other,
    although a jumping chain visits it rarely or never. The statistics of `alone` are left out here.
    """

    def __init__(
        self,
        mixture: TemplateFamily,
        alone: TemplateFamily,
        e_step: CarlinChibBurst | None = None,
    ) -> None:
        settings = CarlinChibBurst() if e_step is None else e_step
        self.mixture = mixture
        self._jumping = compiled_for(mixture, settings) if mixture.n_classes > 1 else None
        # moments of draws come from interpreted functions: nothing is compiled for the points
        alone.statistics = {}
        self._within = settings.compile(alone)
        self._told: set[str] = set()
        self._frame = GridFrame.from_points(mixture.settings.points, mixture.settings.grid_shape)

    def __call__(
        self,
        data: Arrays,
        theta: Arrays,
        seed: np.random.SeedSequence,
        clocks: np.ndarray,
        *,
        draws: int,
        tune: int,
    ) -> Registered:
        """Register one encoded observation at θ.

        Parameters
        ----------
        seed : numpy.random.SeedSequence
            One that has spawned nothing.
        clocks : ndarray of shape (n_classes, n_parameters)
            As from `clocks`.
        """
        n_classes = self.mixture.n_classes
        seeds = seed.spawn(n_classes + 1)
        troubles: list[str] = []
        probability = np.ones(1)
        if self._jumping is not None:
            probability = self._jumping.class_probability(
                data, theta, np.random.default_rng(seeds[0]), draws=draws, tune=tune
            )
        found = [
            self._within_class(j, data, theta, seeds[j + 1], clocks, draws, tune, troubles)
            for j in range(n_classes)
        ]
        moments = {
            name: (
                np.stack([each[name][0] for each in found]),
                np.stack([each[name][1] for each in found]),
            )
            for name in found[0]
        }
        return Registered(probability, moments, troubles)

    def clocks(self, reference: Any) -> np.ndarray:
        """Return the β of the common frame of each class, (n_classes, n_parameters)."""
        deformation = self.mixture.settings.deformation
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
        data: Arrays,
        theta: Arrays,
        seed: np.random.SeedSequence,
        clocks: np.ndarray,
        draws: int,
        tune: int,
        troubles: list[str],
    ) -> dict[str, Pair]:
        """Return means and standard deviations of class j; append its problems to `troubles`."""
        settings = self.mixture.settings
        # shared by all classes, rigid variances have a row for each all the same
        own, weights = self.mixture.class_parameters, self.mixture.weight_parameters
        rows = {*own, *weights, "rigid_variance"}
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
        positions = sweeps.position[tune:]
        n_parameters = settings.deformation.n_parameters
        beta, scale = positions[:, :n_parameters], np.ones(draws)
        found = {"deformation": _moments(beta)}
        if settings.scale is not None:
            # the position contains log λ, as PyMC samples a Gamma on the log scale
            scale = np.exp(positions[:, n_parameters])
            found["scale"] = _moments(scale)
        warped = self._warped(beta)
        factor = scale.reshape((-1, *[1] * (1 + len(settings.channel_shape))))
        shown = factor * self._of_channels(warped, alone["templates"][0])
        noise = np.reshape(alone["noise_variance"], settings.channel_shape)
        offset: Any = 0.0
        template, template_sd = _moments(shown)
        if settings.offset is not None:
            at_data = shown
            if settings.own_points is not None:
                at_data = factor * self._of_channels(
                    self._warped(beta, data["own_points"]), alone["templates"][0]
                )
            offset, variance = self._offsets(data, at_data, noise)
            offset = offset[:, None]
            middle, spread = _moments(offset[:, 0])
            found["offset"] = middle, np.sqrt(np.square(spread) + variance)
            template, template_sd = _moments(shown + offset)
            template_sd = np.sqrt(np.square(template_sd) + variance)
        n_dims = settings.points.shape[1]  # what comes after are scores
        found |= {
            "warp": _moments(warped[..., :n_dims]),
            "template": (template, template_sd),
            "predicted": (template, np.sqrt(np.square(template_sd) + noise)),
        }
        places = self._places(beta, warped, clocks[j])
        if places is not None:
            found["inverse"] = gapped_moments(places)
            aligned = self._aligned(data, places)
            if settings.offset is not None:
                aligned = aligned - offset
            found["aligned"] = gapped_moments(aligned / factor)
        return found

    def _places(self, beta: np.ndarray, warped: np.ndarray, clock: np.ndarray) -> np.ndarray | None:
        """Return D⁻¹(D(u_s, clock), β) for each draw of β, (n_draws, n_points, ...).

        None if the warp is known neither in closed form nor on a grid.
        """
        warp = self.mixture.settings.deformation
        if isinstance(warp, TimeWarp):
            ages = self.mixture.settings.points[:, 0]
            return warp.inverse(warp.evaluate(ages, clock), beta)
        if self._frame is None:
            return None
        n_dims = len(self._frame.axes)  # what comes after are scores
        clocks = self._warped(clock[None])[0]
        places = self._frame.inverse(warped[..., :n_dims], clocks[:, :n_dims])
        return places[..., 0] if places.shape[-1] == 1 else places

    def _aligned(self, data: Arrays, places: np.ndarray) -> np.ndarray:
        """Return the observation at places (n_draws, n_points, ...), NaN where it has no data.

        Channels come last.
        """
        values, mask = data["observed_values"], data["observed_mask"]
        if not self.mixture.settings.channel_shape:
            return self._resampled(values, mask, data, places)
        channels = range(self.mixture.settings.n_channels)
        return np.stack(
            [self._resampled(values[..., c], mask[..., c], data, places) for c in channels], axis=-1
        )

    def _resampled(
        self, values: np.ndarray, mask: np.ndarray, data: Arrays, places: np.ndarray
    ) -> np.ndarray:
        """Return the values of one channel at places, (n_draws, n_points)."""
        settings = self.mixture.settings
        if places.ndim == 3:
            assert self._frame is not None
            return self._frame.resample(values, mask, places)
        seen = mask > 0
        if not seen.any():  # another channel has values
            return np.full(places.shape, np.nan)
        given = data["own_points"] if settings.own_points is not None else settings.points[:, 0]
        return np.stack(
            [np.interp(row, given[seen], values[seen], np.nan, np.nan) for row in places]
        )

    def _offsets(
        self, data: Arrays, shown: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return means of offsets given each draw, (n_draws, ...), and their variance given it.

        Both have an axis of channels if there is one. `shown` are templates at the data's points.
        An offset has the prior Normal(0, r²σ²), and its posterior given all else is normal.
        """
        settings = self.mixture.settings
        assert settings.offset is not None
        shape = (-1, settings.n_channels)
        values, mask = (
            np.reshape(data[name], shape) for name in ("observed_values", "observed_mask")
        )
        away = values - shown.reshape(len(shown), *values.shape)
        means, shares = np.zeros((len(shown), settings.n_channels)), np.zeros(settings.n_channels)
        for c, seen in enumerate(mask.T > 0):
            weights = np.ones(int(seen.sum()))
            if settings.noise_correlation is not None:
                weights = np.linalg.solve(settings.noise_correlation[np.ix_(seen, seen)], weights)
            shares[c] = 1.0 / (settings.offset**-2 + weights.sum())
            means[:, c] = shares[c] * (away[:, seen, c] @ weights)
        variance: np.ndarray = noise * shares.reshape(settings.channel_shape)
        return means.reshape(len(shown), *settings.channel_shape), variance

    def _warped(self, beta: np.ndarray, points: np.ndarray | None = None) -> np.ndarray:
        """Return D at the mixture's points for each row of β, (n_rows, n_points, n_dims).

        There need not be data at these points, even if the observation has `points` of its own:
        D is given there if these are passed, as a `TimeWarp` is the only warp that has them.
        """
        settings = self.mixture.settings
        warp = settings.deformation
        if isinstance(warp, TimeWarp):
            return warp.evaluate(settings.points[:, 0] if points is None else points, beta)[
                ..., None
            ]
        if points is not None:
            return np.stack([warp.warp(points[:, None], row).eval() for row in beta])
        return np.stack([self._warp(row) for row in beta])

    def _of_channels(self, warped: np.ndarray, template: np.ndarray) -> np.ndarray:
        """Return the templates of one class at warped points, with channels last."""
        if template.ndim == 1:
            return self._shown(warped, template)
        return np.stack([self._shown(warped, each) for each in template], axis=-1)

    def _shown(self, warped: np.ndarray, template: np.ndarray) -> np.ndarray:
        """Return a template (n_basis,) at warped points (n_draws, n_points, n_dims)."""
        n_draws, n_points, n_dims = warped.shape
        pieces = np.array_split(warped, -(-n_draws * n_points // AT_ONCE))
        shown = [
            self._evaluate(piece.reshape(-1, n_dims), template) for piece in pieces if piece.size
        ]
        values: np.ndarray = np.concatenate(shown).reshape(n_draws, n_points)
        return values

    @cached_property
    def _warp(self) -> Any:
        """Function from β to D at the mixture's points."""
        settings = self.mixture.settings
        beta = pt.vector("deformation", dtype="float64")
        warped = settings.deformation.warp(settings.points, beta)
        return pytensor.function([beta], warped, mode=interpreted_mode())

    @cached_property
    def _evaluate(self) -> Any:
        """Function from points and the coefficients of a template to its values there."""
        points = pt.matrix("points", dtype="float64")
        coefficients = pt.vector("coefficients", dtype="float64")
        values = self.mixture.settings.basis.evaluate(points, coefficients)
        return pytensor.function([points, coefficients], values, mode=interpreted_mode())


def averaged_moments(
    probability: np.ndarray, mean: np.ndarray, sd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of a mixture from those of its classes, (n_classes, ...).

    They are NaN where a class has no value, unless it is less probable than a millionth.

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


def _moments(draws: np.ndarray) -> Pair:
    """Return mean and standard deviation along the first axis."""
    return np.asarray(draws.mean(axis=0)), np.asarray(draws.std(axis=0))
