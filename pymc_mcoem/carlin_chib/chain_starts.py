"""Detect whether a chain starts at the model's default or at values that the user gave."""

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
    """A model's default start of some variables, given the others and its present data.

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
        strategies = model.rvs_to_initial_values
        # If the model says where its index starts, that holds for every chain.
        of_index = strategies.get(index)
        self._index_is_said = of_index is not None and not isinstance(of_index, str)
        # variables that start at prior draws have no start that the user chose
        given = [rv for rv in (index, *latents) if not _is_prior(strategies.get(rv))]
        self._index = [model.rvs_to_values[rv].name for rv in given if rv is index]
        self._latents = [model.rvs_to_values[rv].name for rv in given if rv is not index]
        # A function, because the initial point may depend on data that are set later.
        self._initial_point = make_initial_point_fn(model=model)
        self._following: Any = None

    def holds(self, point: Mapping[str, np.ndarray], *, of_latents: bool = True) -> bool:
        """Return whether the index and the latents of a point are at the model's default.

        Parameters
        ----------
        of_latents : bool
            Whether to compare the latents, too.
        """
        if self._index_is_said:
            return False
        default = self._initial_point(0)
        if not _alike(point, default, self._index):
            return False
        # Both count as the default, because earlier steps may have moved the other variables.
        return (
            not of_latents
            or _alike(point, default, self._latents)
            or _alike(point, self._given(point), self._latents)
        )

    def _given(self, point: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the model's initial point if the other variables have the values of `point`."""
        values = [self._model.rvs_to_values[rv] for rv in self._others]
        if self._following is None:
            # In Python, because it is called once per chain.
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


def _is_prior(strategy: Any) -> bool:
    return isinstance(strategy, str) and strategy == "prior"


def _alike(
    point: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], names: Sequence[str]
) -> bool:
    """Compare values that may have gone through a transform and back."""
    for name in names:
        kind = np.asarray(other[name]).dtype
        tolerance = 1e4 * np.finfo(kind if kind.kind == "f" else np.float64).eps
        if not np.allclose(point[name], other[name], rtol=tolerance, atol=tolerance):
            return False
    return True
