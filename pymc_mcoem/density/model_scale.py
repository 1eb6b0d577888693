"""Conversion of positions on the scale on which PyMC samples to the scale of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import vectorize_graph

from pymc_mcoem.compiling.data_functions import compile_with_data

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["ModelScale"]


class ModelScale:
    """Convert many positions to the scale of the model at once.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_mcoem.density.class_density import ClassDensity
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     x = pm.HalfNormal("x")
    >>> to_model = ModelScale(ClassDensity(model, k, [x]))
    >>> to_model(np.array([0, 1]), np.log([[2.0], [3.0]]), {})
    {'x': array([2., 3.])}
    """

    def __init__(self, density: ClassDensity) -> None:
        self._density = density
        k, x = pt.scalar("class_index", dtype="int64"), pt.dvector("position")
        placed = density.place(list(density.latents), k, x)
        indices, positions = pt.lvector("class_indices"), pt.dmatrix("positions")
        together = vectorize_graph(placed, {k: indices, x: positions})
        # It is called seldom, so that thorough compilation is not worthwhile.
        self._function = compile_with_data(density, [indices, positions], together, "FAST_COMPILE")

    def __call__(
        self,
        class_index: np.ndarray,
        position: np.ndarray,
        data: Mapping[str, np.ndarray],
        others: Sequence[np.ndarray] = (),
    ) -> dict[str, np.ndarray]:
        """Return latents by name, each ``(n, *shape)``.

        Parameters
        ----------
        class_index : ndarray of int of shape (n,)
            Classes of the positions. A transform may depend on them.
        position : ndarray of shape (n, n_latents)
        data : mapping of str to ndarray
            Values of the density's `data_inputs`.
        """
        found = self._function(
            np.asarray(class_index, dtype=np.int64),
            np.asarray(position, dtype=np.float64),
            *self._density.arguments(data, others),
        )
        return {str(rv.name): value for rv, value in zip(self._density.latents, found, strict=True)}
