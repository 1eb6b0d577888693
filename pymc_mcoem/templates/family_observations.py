"""Observations of a mixture of warped templates: missing points, and points of their own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.family_observations import ModelObservations
from pymc_mcoem.templates.observations import encode_observation, encode_own_points

if TYPE_CHECKING:
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["TemplateObservations"]


class TemplateObservations(ModelObservations):
    """What `TemplateMixture` takes as observations.

    Attributes
    ----------
    settings : TemplateSettings
    """

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
            ``{"points": ..., "values": ...}``.

        Returns
        -------
        dict of str to ndarray
            ``observed_values`` with zeros where points are missing and ``observed_mask`` with
            ones where they are not, both of the shape of one observation. With ``own_points``
            these and ``own_points`` have that length; the points that fill it up are missing.

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
            encoded = encode_observation(observation, settings.grid_shape)
        else:
            encoded = encode_own_points(
                observation,
                settings.points[:, 0],
                settings.own_points,
                settings.deformation.check_points,
            )
        if settings.coefficients == "nonnegative" and not self._warned_of_negative_values:
            values = encoded["observed_values"]
            if values.min() < -0.1 * max(float(values.max()), 0.0):
                warnings.warn(
                    f"observation has values down to {values.min():.4g}, which templates with "
                    "coefficients='nonnegative' cannot follow; pass coefficients='real' if they "
                    "are more than noise.",
                    stacklevel=2,
                )
                # set after the warning, which comes again if it is turned into an error
                self._warned_of_negative_values = True
        return encoded

    def as_source(self, observations: Any) -> Any:
        """Return observations in the form in which they are read; masked entries become NaN.

        Raises
        ------
        TypeError
            With ``own_points``, if they are a bare tuple, or two rows whose first increases within
            the range of points: points and values of one curve would be taken for two curves.
        """
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

    def _looks_like_points_above_values(self, observations: Any) -> bool:
        if not isinstance(observations, (list, np.ndarray)) or len(observations) != 2:
            return False
        if any(isinstance(row, Mapping) or np.ndim(row) != 1 for row in observations):
            return False
        points = np.asarray(observations[0])
        if points.dtype.kind not in "iuf" or len(points) < 2 or not (np.diff(points) > 0).all():
            return False
        try:
            self.settings.deformation.check_points(points[:, None])
        except ValueError:
            return False
        return True
