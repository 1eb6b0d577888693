"""The parameters θ that a family's model holds in ``pm.Data``: names, values, checks, labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors

from pymc_mcoem.compiling.threads import one_call_at_a_time
from pymc_mcoem.labeling import dataset_of, require_parameters
from pymc_mcoem.validation import as_numbers

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["ModelParameters"]


class ModelParameters:
    """The parameters of a model: every ``pm.Data`` that does not hold the observation.

    Attributes
    ----------
    model : pymc.Model
    class_index : TensorVariable
    observation : tuple of str
        As for `Family`.
    """

    model: pm.Model
    class_index: TensorVariable
    observation: tuple[str, ...]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the ``pm.Data`` that hold the parameters θ."""
        names = (variable.name for variable in self.model.data_vars)
        return tuple(name for name in names if name not in self.observation)

    @cached_property
    def n_classes(self) -> int:
        """Number of classes: the length of the class index's probabilities."""
        probabilities = self.class_index.owner.inputs[-1]
        if isinstance(probabilities, SharedVariable):
            return int(probabilities.get_value(borrow=True).shape[-1])
        return int(probabilities.shape[-1].eval())

    @property
    def weight_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the class index depends on."""
        behind = set(ancestors([self.class_index]))
        return tuple(name for name in self.parameter_names if self.model[name] in behind)

    @property
    def class_dim(self) -> str:
        """Name of the class dim: the dim of the weights, or ``"class"``."""
        dims = self.model.named_vars_to_dims
        named = [dims[name][0] for name in self.weight_parameters if dims.get(name)]
        return str(named[0]) if named else "class"

    @property
    def class_parameters(self) -> tuple[str, ...]:
        """Names of the parameters with a row for each class, without the weights.

        Their rows do not change while a class is not `ready`. By default, these are the
        parameters whose first dim is that of the weights or, where dims are not named, whose
        first axis has that length.
        """
        weights = self.weight_parameters
        dims = self.model.named_vars_to_dims
        all_named = any(dims.get(name) for name in weights)
        found = []
        for name in self.parameter_names:
            shape = self.model[name].get_value(borrow=True).shape
            if name in weights or not shape or shape[0] != self.n_classes:
                continue
            if not all_named or not dims.get(name) or dims[name][0] == self.class_dim:
                found.append(name)
        return tuple(found)

    def declared_parameters(self) -> dict[str, np.ndarray]:
        """Return a copy of the parameters that the model held before a driver wrote its own."""
        declared: dict[str, np.ndarray] | None = self.__dict__.get("_declared")
        if declared is None:
            return self.model_parameters()
        return {name: value.copy() for name, value in declared.items()}

    def model_parameters(self) -> dict[str, np.ndarray]:
        """Return a copy of the parameters that the model's ``pm.Data`` hold now."""
        return {
            name: np.array(self.model[name].get_value(), dtype=np.float64)
            for name in self.parameter_names
        }

    def set_model_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Write parameters into the model's ``pm.Data``.

        Drivers call this at the end of their work, so that the model is ready for ``pm.sample``;
        they never read the values back. The declared values are kept; see `declared_parameters`.
        """
        with one_call_at_a_time():  # another thread may be compiling with the model's values
            if "_declared" not in self.__dict__:
                self.__dict__["_declared"] = self.model_parameters()
            self._write(parameters)

    @contextmanager
    def as_declared(self) -> Iterator[None]:
        """Set the model to the parameters it was declared with, within a context.

        E-steps are compiled this way, because the model's initial point must not depend on
        earlier drivers.
        """
        present = self.model_parameters()
        self._write(self.declared_parameters())
        try:
            yield
        finally:
            self._write(present)

    def _write(self, parameters: Mapping[str, np.ndarray]) -> None:
        for name in self.parameter_names:
            variable = self.model[name]
            variable.set_value(np.array(parameters[name], dtype=variable.type.dtype))

    def check_parameters(self, parameters: Mapping[str, Any] | xr.Dataset) -> dict[str, np.ndarray]:
        """Check parameters given from outside and return them as float64 arrays by name.

        Raises
        ------
        ValueError
            If a name is missing or unknown, a shape is wrong, or a value is not finite.
        TypeError
            If `parameters` is neither a mapping nor a Dataset.
        """
        require_parameters(parameters)
        names = set(parameters.data_vars if isinstance(parameters, xr.Dataset) else parameters)
        if names != set(self.parameter_names):
            raise ValueError(
                f"parameters: got {sorted(map(str, names))}; give each of "
                f"{sorted(self.parameter_names)} and nothing else."
            )
        checked = {}
        for name in self.parameter_names:
            array = as_numbers(f"parameters: {name}", parameters[name])
            expected = self.model[name].get_value(borrow=True).shape
            if array.shape != expected:
                raise ValueError(
                    f"parameters: {name} has shape {array.shape}, the model expects {expected}; "
                    "use the parameters of a family of the same size."
                )
            if not np.isfinite(array).all():
                raise ValueError(
                    f"parameters: {name} holds values that are not finite: {array}; go back to "
                    "parameters that were finite."
                )
            if self.model[name] is self.class_index.owner.inputs[-1] and not (
                (array >= 0).all() and abs(float(array.sum()) - 1.0) < 1e-6
            ):
                raise ValueError(
                    f"parameters: {name} is {array}, which sums to {float(array.sum()):.6g}; give "
                    "class weights that are not negative and sum to one."
                )
            checked[name] = array
        return checked

    def class_distances(
        self, parameters: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return squared distances between the classes of two θ, by which classes are matched.

        Parameters
        ----------
        parameters, others : mapping of str to ndarray

        Returns
        -------
        ndarray of shape (n_classes, n_classes)
            By default, mean squared differences of `class_parameters`, each divided by its variance
            over the classes of both.
        """
        total = np.zeros((self.n_classes, self.n_classes))
        for name in self.class_parameters:
            ours, theirs = (
                np.reshape(each[name], (self.n_classes, -1)) for each in (parameters, others)
            )
            scale = np.concatenate([ours, theirs]).var(axis=0).mean()
            if scale > 0:
                total += np.mean((ours[:, None] - theirs) ** 2, axis=2) / scale
        return total

    def to_dataset(self, parameters: Mapping[str, np.ndarray]) -> xr.Dataset:
        """Label parameters with the model's dims and coords."""
        return dataset_of(self.model, parameters)
