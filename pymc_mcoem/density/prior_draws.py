"""Draws of the latents from their prior, given a class and the model's other variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.type import RandomType

from pymc_mcoem.compiling.data_functions import compile_with_data

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.density.plate import PlateDensity

__all__ = ["PriorDraws"]


class PriorDraws:
    """Compiled draws of the latents from their prior, on the scale on which PyMC samples them.

    Parameters
    ----------
    density : ClassDensity or PlateDensity
        Each draw from a plate has all rows, ``(n_rows, n_latents)``, each in one class.

    Examples
    --------
    >>> from pymc_mcoem.density.class_density import ClassDensity
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     x = pm.Normal("x", 5.0 * k, 0.1)
    >>> draws = PriorDraws(ClassDensity(model, k, [x]))
    >>> draws.reseed(np.random.default_rng(1))
    >>> draws(1, [], 3).round().ravel()
    array([5., 5., 5.])
    """

    def __init__(self, density: ClassDensity | PlateDensity, mode: Any = None) -> None:
        model = density.model
        n_axes = 0 if density.class_index is None else density.class_index.ndim
        k = pt.tensor("class_index", dtype="int64", shape=(None,) * n_axes)
        replacement: dict[Any, Any] = dict(density.data_replacement)
        if density.class_index is not None:
            replacement[density.class_index] = pt.cast(k, density.class_index.dtype)
        for value in density.other_values:
            rv = model.values_to_rvs[value]
            transform = model.rvs_to_transforms[rv]
            replacement[rv] = (
                value if transform is None else transform.backward(value, *rv.owner.inputs)
            )
        rows = []
        for rv in density.latents:
            transform = model.rvs_to_transforms[rv]
            drawn = rv if transform is None else transform.forward(rv, *rv.owner.inputs)
            row = drawn.reshape((drawn.shape[0], -1)) if n_axes else drawn.ravel()
            rows.append(pt.cast(row, "float64"))
        vector = clone_replace(pt.concatenate(rows, axis=n_axes), replacement, rebuild_strict=False)
        self._draw = compile_with_data(density, [k], vector, mode)

    def reseed(self, rng: np.random.Generator) -> None:
        """Seed the following draws with one number drawn from a generator."""
        pm.pytensorf.reseed_rngs(
            [
                each
                for each in self._draw.function.get_shared()
                if isinstance(each.type, RandomType)
            ],
            int(rng.integers(2**31)),
        )

    def __call__(
        self, class_index: int | np.ndarray, values: Sequence[np.ndarray], n_draws: int
    ) -> np.ndarray:
        """Draw ``(n_draws, n_latents)`` in a class, given the result of `ClassDensity.arguments`.

        For a plate, draw ``(n_draws, n_rows, n_latents)`` given the classes of all rows and the
        model's other values.
        """
        k = np.asarray(class_index)
        return np.stack([self._draw(k, *values) for _ in range(n_draws)])
