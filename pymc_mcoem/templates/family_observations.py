"""Observations of a mixture of warped templates: missing points, and points of their own."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.family_observations import ModelObservations
from pymc_mcoem.em.stream import is_single
from pymc_mcoem.templates.observations import (
    encode_observation,
    encode_own_points,
    goes_below_zero,
)
from pymc_mcoem.templates.settings import OWN_POINT, PART

if TYPE_CHECKING:
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["TemplateObservations"]


class TemplateObservations(ModelObservations):
    """The observations of a `TemplateMixture`."""

    settings: TemplateSettings
    _warned_of_negative_values: bool

    def encode(self, observation: Any) -> dict[str, np.ndarray]:
        """Check one observation and return its values and its mask.

        Parameters
        ----------
        observation : array_like of the shape of one observation
            NaN, or an entry masked in a masked array, is a missing point. A result of this
            method is accepted too. With ``own_points`` it may also be increasing points above
            values, of shape (2, n) with n up to ``own_points``, or a mapping
            ``{"points": ..., "values": ...}``. Values of several channels are (n, n_channels), in
            a mapping or a pair ``(points, values)``, or a row for each channel below the points.

        Returns
        -------
        dict of str to ndarray
            ``observed_values`` with zeros where points are missing and ``observed_mask`` with
            ones where they are not, both of the shape of one observation. With ``own_points``
            these and ``own_points`` have that length; points that fill it up are missing.

        Raises
        ------
        TypeError
            If the values are not real numbers.
        ValueError
            If the shape is wrong, a value is infinite, all points are missing, or own points
            do not increase or lie where the warp is not defined.

        Warns
        -----
        UserWarning
            Once, if coefficients are not negative but values are below zero by more than a tenth
            of the observation's largest: no template follows them there.

        Examples
        --------
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> mixture = TemplateMixture.for_images((2, 2), n_classes=1)
        >>> mixture.encode([[0.5, np.nan], [1.0, 0.0]])["observed_mask"]
        array([[1., 0.],
               [1., 1.]])
        """
        settings = self.settings
        if isinstance(observation, xr.DataArray):
            observation = self.in_order(observation)
        if settings.own_points is None:
            encoded = encode_observation(
                observation, settings.value_shape, bool(settings.channel_shape)
            )
        else:
            encoded = encode_own_points(
                observation,
                settings.points[:, 0],
                settings.own_points,
                settings.deformation.check_points,
                settings.channel_shape,
            )
        if settings.coefficients == "nonnegative" and not self._warned_of_negative_values:
            values = encoded["observed_values"].reshape(-1, settings.n_channels).T
            low = [channel.min() for channel in values if goes_below_zero(channel)]
            if low:
                warnings.warn(
                    f"observation has values down to {min(low):.4g}, which templates with "
                    "coefficients='nonnegative' cannot follow; pass coefficients='real' if they "
                    "are more than noise.",
                    stacklevel=2,
                )
                # set after the warning, which comes again if it is turned into an error
                self._warned_of_negative_values = True
        return encoded

    def in_order(self, observations: xr.DataArray) -> xr.DataArray:
        """Return a DataArray with the model's dims last and in the model's order.

        Of curves with points of their own, as `pymc_mcoem.datasets.read_curves` gives them, points
        above values are last.
        """
        if {PART, OWN_POINT} <= set(observations.dims):
            return observations.transpose(..., PART, OWN_POINT)
        return super().in_order(observations)

    def as_source(self, observations: Any) -> Any:
        """Return observations in the form in which they are read; masked entries become NaN.

        Raises
        ------
        TypeError
            With ``own_points``, if they are a bare tuple, or two rows whose first increases within
            the range of points: points and values of one curve would be taken for two curves.
        """
        if _is_one_with_points(observations):
            values = observations[1:].values.T
            values = values if self.settings.channel_shape else values[:, 0]
            return {"points": observations[0].values, "values": values}
        if self.settings.own_points is not None and (
            isinstance(observations, tuple) or self._looks_like_points_above_values(observations)
        ):
            raise TypeError(
                f"observations: got a {type(observations).__name__} whose first row could be the "
                "points of the second; pass a list of (points, values) pairs, or one observation "
                "as {'points': ..., 'values': ...}."
            )
        if isinstance(observations, np.ma.MaskedArray) and observations.dtype.kind in "biuf":
            return np.ma.filled(observations.astype(np.float64), np.nan)
        return observations

    def is_batch(self, record: Any) -> bool:
        """Return whether a record of an iterable is an array of several observations.

        With ``own_points`` that is an array (n, 2, n_points), as one observation is points above
        values.
        """
        if self.settings.own_points is None:
            return super().is_batch(record)
        return hasattr(record, "shape") and getattr(record, "ndim", None) == 3

    def is_single(self, observations: Any) -> bool:
        """Return whether something is one observation, as `encode` takes it, and not several.

        Nested lists count as the arrays that they make. With ``own_points``, a tuple of two
        vectors is the points and values of one curve; so are two rows of which the first could be
        the points of the second, or whose length is not the mixture's number of points.

        Parameters
        ----------
        observations : array_like, mapping, or iterable

        Examples
        --------
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> ages = [2.0, 8.0, 14.0, 18.0]
        >>> curves = TemplateMixture.for_curves(ages, n_classes=1, own_points=4)
        >>> curves.is_single([7.0, 6.0, 5.0, 4.0]), curves.is_single([[7.0, 6.0, 5.0, 4.0]])
        (True, False)
        >>> curves.is_single((ages[:2], [7.0, 6.0])), curves.is_single([(ages[:2], [7.0, 6.0])])
        (True, False)
        """
        if self.settings.own_points is not None and self._are_two_rows(observations):
            return (
                isinstance(observations, tuple)
                or len(observations[0]) != len(self.settings.points)
                or self._looks_like_points_above_values(observations)
            )
        if _is_one_with_points(observations):
            return True
        depth = _depth(observations)
        if depth is None:
            return is_single(self, observations)
        return 0 < depth <= len(self.settings.observation_shape)

    def _are_two_rows(self, observations: Any) -> bool:
        channels = self.settings.channel_shape
        if isinstance(observations, np.ndarray):
            return not channels and observations.ndim == 2 and len(observations) == 2
        if not isinstance(observations, (list, tuple)) or len(observations) != 2:
            return False
        n_axes = [_depth(row) or getattr(row, "ndim", 0) for row in observations]
        return n_axes == [1, 1 + len(channels)]

    def _looks_like_points_above_values(self, observations: Any) -> bool:
        if isinstance(observations, tuple) or not self._are_two_rows(observations):
            return False
        points = np.asarray(observations[0])
        if points.dtype.kind not in "iuf" or len(points) < 2 or not (np.diff(points) > 0).all():
            return False
        try:
            self.settings.deformation.check_points(points[:, None])
        except ValueError:
            return False
        return True


def _is_one_with_points(value: Any) -> bool:
    """Return whether this is one curve of those that `read_curves` gives points of their own."""
    return isinstance(value, xr.DataArray) and value.dims == (PART, OWN_POINT)


def _depth(value: Any) -> int | None:
    """Return the number of axes of nested lists of numbers or arrays; None of anything else.

    Zero for a list that is empty, or of other things, such as mappings.
    """
    if not isinstance(value, (list, tuple)):
        return None
    depth, inner = 0, value
    while isinstance(inner, (list, tuple)) and len(inner):
        depth, inner = depth + 1, inner[0]
    n_axes = 0 if isinstance(inner, (Real, str)) or inner is None else getattr(inner, "ndim", None)
    return 0 if n_axes is None else depth + n_axes
