"""Settings of the structure of a template mixture, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from pymc_mcoem.templates.bases.gaussian import GaussianBasis
from pymc_mcoem.templates.warps.deformations import Deformation
from pymc_mcoem.validation import as_numbers, is_number, is_whole, require_whole

__all__ = ["TemplateSettings", "check_settings", "read_channels"]

Covariance = Literal["scaled", "diagonal", "full"]
Noise = Literal["shared", "class"]
Coefficients = Literal["real", "nonnegative"]

#: Offsets that are larger, in standard deviations of the noise, leave few digits to the rest.
LARGEST_OFFSET = 1000.0
#: Dimension of observations that have points of their own.
OWN_POINT = "own_point"
#: Dimension of curves that bring their points: these above the values.
PART = "part"
#: Name of the last axis of observations with several channels, unless another one is given.
CHANNEL = "channel"
#: Names of dimensions and variables of the model, which no axis of an observation may have.
RESERVED = {
    *("class", "basis", "deformation_coordinate", "learned_coordinate", "rigid_coordinate"),
    *("learned_coordinate_column", "chain", "draw", "sample"),
    *("class_index", "deformation", "scale", "offset", "observation", "weights", "templates"),
    *("noise_variance", "deformation_variance", "deformation_covariance", "rigid_variance"),
    *("observed_values", "observed_mask", "own_points", OWN_POINT),
}
#: Names in statistics, histories and results too, which parameters with channels are beside.
RESERVED_BESIDE_CHANNELS = RESERVED | {
    *("acceptance", "class_acceptance", "class_log_weight", "class_of", "class_probability"),
    *("class_weight", "deformation_outer", "effective_size", "gain", "log_evidence", "log_scale"),
    *("observed_points", "rigid_squares", "seconds", "squared_norm", "step", "template_gram"),
    *("reason", "trouble", "template_projection", "updated", "waiting", "basis_row"),
    *("basis_column", "coordinate"),
    *(
        f"{name}_{kind}"
        for name in ("aligned", "deformation", "inverse", "offset", "scale", "template", "warp")
        for kind in ("mean", "sd", "mean_averaged", "sd_averaged")
    ),
}


@dataclass(frozen=True)
class TemplateSettings:
    """Structure of a template mixture; see `TemplateMixture` for the arguments that it is made of.

    Attributes
    ----------
    points : ndarray of shape (n_points, n_dims)
    grid_shape : tuple of int
        Shape of one observation, or of one of its channels, with ``prod(grid_shape) == n_points``.
    dim_names : tuple of str
        Name of each axis of that.
    dim_coords : tuple of ndarray
        Labels along those axes.
    scale : tuple of float or None
        Shape a and rate b of the Gamma prior of λ.
    own_points : int or None
        Largest number of points of an observation that has points of its own.
    units : dict of str to str
        Units by name: of axes, of channels by label, and under one name more of the values.
    offset : float or None
        Standard deviation of an observation's own constant, in those of the noise.
    channel_name : str or None
        Name of the last axis of an observation, along which channels are; None where there is none.
    channel_labels : ndarray of shape (n_channels,) or None
    """

    points: np.ndarray
    grid_shape: tuple[int, ...]
    dim_names: tuple[str, ...]
    dim_coords: tuple[np.ndarray, ...]
    basis: GaussianBasis
    deformation: Deformation
    n_classes: int
    scale: tuple[float, float] | None
    covariance: Covariance
    noise: Noise
    noise_correlation: np.ndarray | None
    coefficients: Coefficients = "real"
    own_points: int | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    offset: float | None = None
    channel_name: str | None = None
    channel_labels: np.ndarray | None = None

    @cached_property
    def noise_covariance(self) -> np.ndarray | None:
        """Covariance of noise of variance one and of offsets; None where points are independent.

        Of shape (n, n) with as many points as an observation may have, for each channel.
        """
        if self.offset is None:
            return self.noise_correlation
        size = len(self.points) if self.own_points is None else self.own_points
        noise = np.eye(size) if self.noise_correlation is None else self.noise_correlation
        found: np.ndarray = noise + self.offset**2
        return found

    @property
    def channel_shape(self) -> tuple[int, ...]:
        """Number of channels, or nothing where observations have no such axis."""
        return () if self.channel_labels is None else (len(self.channel_labels),)

    @property
    def n_channels(self) -> int:
        """Number of values at each point."""
        return 1 if self.channel_labels is None else len(self.channel_labels)

    @property
    def channel_dims(self) -> tuple[str, ...]:
        """Name of the axis of channels, or nothing."""
        return () if self.channel_name is None else (self.channel_name,)

    @property
    def value_dims(self) -> tuple[str, ...]:
        """Names of the axes of values at the mixture's points."""
        return (*self.dim_names, *self.channel_dims)

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of values at the mixture's points."""
        return (*self.grid_shape, *self.channel_shape)

    @property
    def labeled_coords(self) -> dict[str, tuple[str, np.ndarray, dict[str, str]]]:
        """Labels of the grid and of channels as xarray takes coordinates, with their units."""
        found = {
            name: (name, labels, self.attributes_of(name))
            for name, labels in zip(self.dim_names, self.dim_coords, strict=True)
        }
        if self.channel_name is not None and self.channel_labels is not None:
            found[self.channel_name] = (self.channel_name, self.channel_labels, {})
            labels = [str(label) for label in self.channel_labels]
            if set(labels) & set(self.units):
                units = np.array([self.units.get(label, "") for label in labels])
                found[f"{self.channel_name}_units"] = (self.channel_name, units, {})
        return found

    def attributes_of(self, axis: str) -> dict[str, str]:
        """Return attributes of what is measured along an axis."""
        unit = self.units.get(axis, "")
        return {"units": unit} if unit else {}

    @property
    def value_attributes(self) -> dict[str, str]:
        """Attributes of what is measured in the unit of the observations."""
        others = {*self.dim_names}
        if self.channel_labels is not None:
            others |= {str(label) for label in self.channel_labels}
        for name, unit in self.units.items():
            if name not in others:
                return {"long_name": name, **({"units": unit} if unit else {})}
        return {}

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of the data of one observation."""
        if self.own_points is None:
            return self.value_shape
        return (self.own_points, *self.channel_shape)

    @property
    def observation_dims(self) -> tuple[str, ...]:
        """Names of the axes of one observation."""
        if self.own_points is None:
            return self.value_dims
        return (OWN_POINT, *self.channel_dims)

    @property
    def observation_coords(self) -> tuple[np.ndarray, ...]:
        """Labels along the axes of one observation."""
        own = self.own_points
        places = self.dim_coords if own is None else (np.arange(own),)
        return places if self.channel_labels is None else (*places, self.channel_labels)

    @property
    def learned(self) -> np.ndarray:
        """Indices of the learned coordinates of β, shape (n_learned,)."""
        return np.flatnonzero(self.deformation.learned)

    @property
    def rigid(self) -> np.ndarray:
        """Indices of the coordinates of β that have a learned variance each, shape (n_rigid,)."""
        return np.flatnonzero(self.deformation.rigid)

    @property
    def rigid_prior(self) -> tuple[np.ndarray, float]:
        """Mode (n_rigid,) and weight, in observations, of the prior of the rigid variances."""
        modes = np.diagonal(self.deformation.covariance)[self.rigid]
        return modes, self.deformation.rigid_weight or 0.0

    @property
    def base_covariance(self) -> np.ndarray:
        """Learned block of M, shape (n_learned, n_learned); the identity where it is diagonal."""
        if self.covariance == "diagonal":
            return np.eye(self.learned.size)
        return self.deformation.covariance[np.ix_(self.learned, self.learned)]

    @property
    def whole_covariance(self) -> np.ndarray:
        """M with `base_covariance` as its learned block, shape (n_parameters, n_parameters).

        Variances of rigid coordinates are one, as they are parameters.
        """
        found = np.array(self.deformation.covariance)
        found[self.rigid, self.rigid] = 1.0
        found[np.ix_(self.learned, self.learned)] = self.base_covariance
        return found


def check_settings(
    points: Any,
    basis: GaussianBasis,
    deformation: Deformation,
    n_classes: int,
    options: Mapping[str, Any],
) -> TemplateSettings:
    """Check the arguments of `TemplateMixture`, the optional ones by name, and return settings."""
    if not isinstance(basis, GaussianBasis):
        raise TypeError(f"basis is a {type(basis).__name__}; pass a GaussianBasis.")
    if not isinstance(deformation, Deformation):
        raise TypeError(
            f"deformation is a {type(deformation).__name__}; pass a TimeWarp, a RigidMotion, a "
            "DisplacementField or a sum of them."
        )
    locations = np.array(points, dtype=np.float64)
    if locations.ndim == 1:
        locations = locations[:, None]
    if locations.ndim != 2 or locations.size == 0 or not np.isfinite(locations).all():
        raise ValueError(
            f"points has shape {np.shape(points)}; give finite numbers, one row per point, "
            "(n_points, n_dims)."
        )
    dims = {locations.shape[1] + deformation.n_scores, basis.n_dims, deformation.n_dims}
    if len(dims) != 1:
        raise ValueError(
            f"points have {locations.shape[1]} dimensions, the basis {basis.n_dims}, the "
            f"deformation {deformation.n_dims}; give all three the same."
        )
    require_whole("n_classes", n_classes, 1)
    for name, choices in (
        ("covariance", ("scaled", "diagonal", "full")),
        ("noise", ("shared", "class")),
        ("coefficients", ("real", "nonnegative")),
    ):
        if options[name] not in choices:
            raise ValueError(f"{name} is {options[name]!r}; choose from {choices}.")
    if (deformation.rigid & deformation.learned).any() or (
        deformation.rigid.any() and deformation.rigid_weight is None
    ):
        raise ValueError(
            f"deformation: coordinates {np.array(deformation.labels)[deformation.rigid].tolist()} "
            "are rigid; they may not be learned too, and rigid_weight must be a number."
        )
    if deformation.n_scores:
        _check_beside_factors(options)
    shape, names, coords = _grid(len(locations), options)
    channel_name, channel_labels = read_channels(options["channels"])
    _check_channels(channel_name, names, options)
    return TemplateSettings(
        points=locations,
        grid_shape=shape,
        dim_names=names,
        dim_coords=coords,
        basis=basis,
        deformation=deformation,
        n_classes=int(n_classes),
        scale=_scale(options["scale"]),
        covariance=options["covariance"],
        noise=options["noise"],
        noise_correlation=_correlation(options["noise_correlation"], len(locations)),
        coefficients=options["coefficients"],
        own_points=_own_points(options, locations),
        units=_units(options["units"], names, channel_labels),
        offset=_offset(options["offset"]),
        channel_name=channel_name,
        channel_labels=channel_labels,
    )


def _check_beside_factors(options: Mapping[str, Any]) -> None:
    """Refuse what mixtures with factors do not take."""
    given = {name: options[name] for name in ("scale", "offset", "noise_correlation")}
    if options["coefficients"] != "real":
        given["coefficients"] = options["coefficients"]
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name} is {value!r}, which does not go with factors; leave {name} out, or "
                "n_factors."
            )


def read_channels(channels: Any) -> tuple[str | None, np.ndarray | None]:
    """Return name and labels of the axis of channels, from what a user says of them.

    Parameters
    ----------
    channels : int, sequence, mapping of str to sequence or int, or None
        Their number, their labels, or either by the name of their axis.

    Examples
    --------
    >>> read_channels(3)
    ('channel', array([0, 1, 2]))
    >>> read_channels({"lead": ["II", "V1"]})
    ('lead', array(['II', 'V1'], dtype='<U2'))
    """
    if channels is None:
        return None, None
    name: Any = CHANNEL
    given = channels
    if isinstance(channels, Mapping):
        name, given = next(iter(channels.items())) if len(channels) == 1 else (None, None)
    labels = np.arange(given) if is_whole(given) and given > 0 else np.asarray(given)
    is_vector = labels.ndim == 1 and labels.size > 0 and labels.dtype.kind in "iufUS"
    if not (isinstance(name, str) and is_vector and len(np.unique(labels)) == len(labels)):
        raise ValueError(
            f"channels is {channels!r}; give their number, or different labels, as 3 or "
            "['II', 'V1'], or either under the name of their axis, as {'lead': ['II', 'V1']}."
        )
    return name, labels


def _check_channels(name: str | None, names: tuple[str, ...], options: Mapping[str, Any]) -> None:
    if name is None:
        return
    if name in names or name in RESERVED_BESIDE_CHANNELS:
        raise ValueError(
            f"channels: their axis is called {name!r}, as another one is; give it a name of its "
            f"own, other than {names} and {sorted(RESERVED_BESIDE_CHANNELS)}."
        )


def _units(units: Any, names: tuple[str, ...], channel_labels: np.ndarray | None) -> dict[str, str]:
    units = {} if units is None else units
    known = {*names, *([] if channel_labels is None else map(str, channel_labels))}
    if not isinstance(units, Mapping) or len(set(map(str, units)) - known) > 1:
        raise ValueError(
            f"units is {units!r}; give units by name, of the axes {names}, of channels by their "
            "labels, and under one name more of the values."
        )
    return {str(name): str(unit) for name, unit in units.items()}


def _own_points(options: Mapping[str, Any], points: np.ndarray) -> int | None:
    most = options["own_points"]
    if most is None:
        return None
    if points.shape[1] != 1 or options["noise_correlation"] is not None:
        raise ValueError(
            f"own_points is {most!r}: points of their own are for observations on a line with "
            "uncorrelated noise; leave own_points out."
        )
    require_whole("own_points", most, 1)
    return int(most)


def _grid(
    n_points: int, options: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[np.ndarray, ...]]:
    given = options["grid_shape"]
    shape = (n_points,) if given is None else tuple(int(side) for side in given)
    if int(np.prod(shape)) != n_points:
        raise ValueError(
            f"grid_shape is {shape}, which holds {int(np.prod(shape))} points; there are "
            f"{n_points} points."
        )
    defaults = {1: ("point",), 2: ("row", "column")}
    default = defaults.get(len(shape), tuple(f"axis_{k}" for k in range(len(shape))))
    names = tuple(options["dim_names"] or default)
    if len(names) != len(shape) or len(set(names)) < len(names) or RESERVED & set(names):
        raise ValueError(
            f"dim_names is {names}; give one name of its own for each of the {len(shape)} axes, "
            f"other than {sorted(RESERVED)}."
        )
    labels = options["dim_coords"]
    coords = (
        tuple(np.arange(n) for n in shape) if labels is None else tuple(map(np.asarray, labels))
    )
    if tuple(len(label) for label in coords) != shape:
        raise ValueError(
            f"dim_coords has lengths {[len(label) for label in coords]}; the axes have {shape}."
        )
    return shape, names, coords


def _offset(offset: Any) -> float | None:
    if offset is None:
        return None
    if isinstance(offset, bool) or not (is_number(offset) and 0 < offset <= LARGEST_OFFSET):
        raise ValueError(
            f"offset is {offset!r}; give its standard deviation in those of the noise, above 0 and "
            f"up to {LARGEST_OFFSET:g}, such as 10, or None."
        )
    return float(offset)


def _scale(scale: Any) -> tuple[float, float] | None:
    if scale is None:
        return None
    try:
        pair = as_numbers("scale", scale)
    except ValueError:
        pair = np.empty(0)
    if pair.shape != (2,) or not (np.isfinite(pair).all() and (pair > 0).all()):
        raise ValueError(
            f"scale is {scale!r}; give shape and rate of its Gamma prior, two positive numbers, "
            "or None."
        )
    return float(pair[0]), float(pair[1])


def _correlation(correlation: Any, n_points: int) -> np.ndarray | None:
    if correlation is None:
        return None
    matrix = as_numbers("noise_correlation", correlation)
    if matrix.shape != (n_points, n_points):
        raise ValueError(
            f"noise_correlation has shape {matrix.shape}; give ({n_points}, {n_points})."
        )
    if not (np.allclose(matrix, matrix.T) and np.allclose(np.diagonal(matrix), 1.0)):
        raise ValueError(
            "noise_correlation is not a symmetric matrix with ones on its diagonal; divide the "
            "covariance by its standard deviations."
        )
    smallest = float(np.linalg.eigvalsh(matrix)[0])
    if not smallest > 0:
        raise ValueError(
            f"noise_correlation has the eigenvalue {smallest:.3g}; give a positive definite "
            "matrix, or add a little to its diagonal and rescale."
        )
    return matrix
