"""The observations that a family's model takes: checked, put in order, and read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.stream import Unreadable, as_values, read
from pymc_mcoem.validation import LARGEST

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["ModelObservations"]


class ModelObservations:
    """The observations of a model, held by the ``pm.Data`` named in `observation`.

    Attributes
    ----------
    model : pymc.Model
    observation : tuple of str
        Names of the ``pm.Data`` that hold one observation.
    """

    model: pm.Model
    observation: tuple[str, ...]

    def encode(self, observation: Any) -> dict[str, np.ndarray]:
        """Check one observation and return the values of the ``pm.Data`` that hold it.

        Parameters
        ----------
        observation : array_like
            One observation, of the shape of the ``pm.Data`` that holds it. A family with several
            observation data takes a mapping by name.

        Returns
        -------
        dict of str to ndarray

        Raises
        ------
        ValueError
            If the shape is wrong or a value is not finite.
        TypeError
            If the values are not real numbers.
        """
        if not isinstance(observation, Mapping):
            if isinstance(observation, xr.DataArray):
                observation = self.in_order(observation)
            observation = {self.observation[0]: observation}
        if set(observation) != set(self.observation):
            raise ValueError(
                f"observation: got values for {sorted(observation)}; give one value for each of "
                f"{sorted(self.observation)}."
            )
        return {name: self._encode_data(name, value) for name, value in observation.items()}

    def _encode_data(self, name: str, value: Any) -> np.ndarray:
        expected = self.model[name].get_value(borrow=True).shape
        if isinstance(value, xr.DataArray):
            dims = self.model.named_vars_to_dims.get(name) or ()
            if set(value.dims) == set(dims) and value.dims != tuple(dims):
                raise ValueError(
                    f"observation: {name} has dims {value.dims}, the model {tuple(dims)}; "
                    "transpose it."
                )
        array = as_values(f"observation: {name}", value)
        if np.ma.is_masked(array):
            raise ValueError(
                f"observation: {name} has {int(np.ma.count_masked(array))} masked values, which "
                f"{type(self).__name__} does not support; drop the observation or fill them."
            )
        if array.shape != expected:
            raise ValueError(
                f"observation: {name} has shape {array.shape}, the model expects {expected}; "
                "reshape it, or pass several observations as an iterable of such arrays."
            )
        plain = np.array(array.filled(np.nan))
        if not np.isfinite(plain).all():
            raise ValueError(
                f"observation: {name} holds {int((~np.isfinite(plain)).sum())} values that are "
                "not finite; drop the observation or repair it."
            )
        if np.abs(plain).max(initial=0.0) > LARGEST:
            raise ValueError(
                f"observation: {name} holds {float(np.abs(plain).max()):.3g}; beyond {LARGEST:g} "
                "sums of squares may not be finite. Scale the observation, or drop it."
            )
        return plain

    def in_order(self, observations: xr.DataArray) -> xr.DataArray:
        """Return a DataArray with the model's dims last and in the model's order.

        Parameters
        ----------
        observations : DataArray
            One observation, or several with one more dim. If it has none of the model's dim
            names, its axes are taken in the given order.

        Raises
        ------
        ValueError
            If it has some of these dims but not all, or other labels along a dim without numbers.

        Examples
        --------
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> mixture = TemplateMixture.for_images((2, 3), n_classes=1, n_landmarks=2)
        >>> mixture.in_order(xr.DataArray(np.ones((3, 5, 2)), dims=("column", "n", "row"))).dims
        ('n', 'row', 'column')
        """
        dims = self.model.named_vars_to_dims.get(self.observation[0]) or ()
        found = [dim for dim in dims if dim in observations.dims]
        if not found:
            return observations
        if len(found) < len(dims):
            raise ValueError(
                f"observations: a DataArray with dims {observations.dims}; the model has {dims}: "
                "name all of these dims, or none."
            )
        for dim in found:
            ours, theirs = self.model.coords.get(dim), observations.coords.get(dim)
            if ours is None or theirs is None or np.asarray(ours).dtype.kind not in "US":
                continue  # points may be written with other digits
            expected, given = np.asarray(ours).tolist(), theirs.values.tolist()
            if given != expected:
                raise ValueError(
                    f"observations: along {dim} a DataArray has {given}; the model has {expected}: "
                    "select these, in this order."
                )
        return observations.transpose(..., *dims)

    def iterate(self, observations: Any) -> Iterator[Any]:
        """Yield single observations, lazily.

        Parameters
        ----------
        observations : array_like, mapping, or iterable
            One observation (an array of the shape of the first ``pm.Data`` in `observation`, or
            a mapping by name), an array, DataArray or DataFrame with one more axis in front, or
            any iterable or sequence. The axes of a DataArray are identified by name; see
            `in_order`.

        Raises
        ------
        TypeError
            If `observations` is none of these.
        ValueError
            If it is an array of unknown length.

        Notes
        -----
        Arrays that are not in memory are read one observation at a time. Dask and Zarr read a
        whole chunk for each, so they are cheapest with chunks of one observation.

        If the first record of an iterable has one more axis than an observation, as with a
        ``DataLoader`` of PyTorch, the records are batches and are split into observations. If the
        first record is a single observation, `encode` refuses later ones with one more axis.
        """
        for record in read(self, observations):
            if isinstance(record, Unreadable):
                raise record.error
            yield record

    def as_source(self, observations: Any) -> Any:
        """Return the given observations in the form in which they are read.

        Override this to refuse ambiguous input. By default, they are returned unchanged.

        Parameters
        ----------
        observations : object
            As `iterate` takes them.
        """
        return observations

    def is_batch(self, record: Any) -> bool:
        """Return whether a record of an iterable is an array of several observations.

        Parameters
        ----------
        record : object
            A record as the iterable yields it.

        Returns
        -------
        bool
            By default, whether it is an array with one more axis than the first ``pm.Data`` in
            `observation`.
        """
        n_axes = self.model[self.observation[0]].get_value(borrow=True).ndim
        return hasattr(record, "shape") and getattr(record, "ndim", None) == n_axes + 1
