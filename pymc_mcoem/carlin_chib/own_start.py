"""Whether a chain starts where the model puts it, or where somebody said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor
from pymc.initial_point import make_initial_point_fn
from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["DefaultStart"]


class DefaultStart:
    """Where a model starts some of its variables, given the others and its present data.

    Parameters
    ----------
    model : pymc.Model
    index : TensorVariable
    latents : sequence of TensorVariable

    Examples
    --------
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     x = pm.Normal("x", mu)
    >>> default = DefaultStart(model, k, [x])
    >>> start = {"mu": np.array(2.0), "k": np.array(0), "x": np.array(2.0)}
    >>> default.holds(start), default.holds({**start, "mu": np.array(0.0)})
    (True, False)
    """

    def __init__(
        self, model: pm.Model, index: TensorVariable, latents: Sequence[TensorVariable]
    ) -> None:
        self._model = model
        own = {index, *latents}
        self._others = [rv for rv in model.free_RVs if rv not in own]
        said = model.rvs_to_initial_values
        #: A model that says where its index starts has said so for every chain.
        self._index_is_said = said.get(index) not in (None, "support_point", "prior")
        self._index = model.rvs_to_values[index].name
        # where one drawn from its prior starts is nobody's wish
        self._latents = [model.rvs_to_values[rv].name for rv in latents if said.get(rv) != "prior"]
        # As a function, for the initial point may depend on data that are set later.
        self._initial_point = make_initial_point_fn(model=model)
        self._following: Any = None

    def holds(self, point: Mapping[str, np.ndarray], *, of_latents: bool = True) -> bool:
        """Say whether a point has the index, and the latents, where the model puts them.

        Parameters
        ----------
        point : dict of str to ndarray
            By value-variable name.
        of_latents : bool
            Whether the latents are asked, too.
        """
        if self._index_is_said:
            return False
        default = self._initial_point(0)
        if not np.array_equal(point[self._index], default[self._index]):
            return False
        if not (of_latents and self._latents):
            return True
        others = [self._model.rvs_to_values[rv].name for rv in self._others]
        expected = default if _alike(point, default, others) else self._given(point)
        return _alike(point, expected, self._latents)

    def _given(self, point: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the model's initial point where other variables have the point's values."""
        values = [self._model.rvs_to_values[rv] for rv in self._others]
        if self._following is None:
            # In Python, for it is called once in a chain.
            natural = pm.pytensorf.compile(
                values,
                self._model.replace_rvs_by_values(self._others),
                mode=Mode(VMLinker(c_thunks=False), "fast_compile"),
                on_unused_input="ignore",
            )
            held: dict[Any, Any] = {
                rv: pytensor.shared(np.zeros([0] * rv.ndim, rv.dtype), shape=(None,) * rv.ndim)
                for rv in self._others
            }
            self._following = (
                natural,
                held,
                make_initial_point_fn(model=self._model, overrides=held),
            )
        natural, held, initial_point = self._following
        found = natural(*(point[value.name] for value in values))
        for rv, value in zip(self._others, found, strict=True):
            held[rv].set_value(np.asarray(value, dtype=rv.dtype))
        started: dict[str, np.ndarray] = initial_point(0)
        return started


def _alike(
    point: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], names: Sequence[str]
) -> bool:
    return all(np.allclose(point[name], other[name], rtol=1e-12, atol=0.0) for name in names)
