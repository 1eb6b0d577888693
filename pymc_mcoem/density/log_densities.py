"""Log-densities at many points of several classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.compiling.backends import backend_of
from pymc_mcoem.compiling.flat_functions import FlatFunction, NotFlatError
from pymc_mcoem.compiling.loops import compile_loop
from pymc_mcoem.density.class_density import as_argument

if TYPE_CHECKING:
    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["LogDensities"]


class LogDensities:
    """Evaluate log p(y, I = k, X = x) at points that each have a class.

    Parameters
    ----------
    mode : str or None
        PyTensor's compilation mode. On numba a density with hand-written loops compiles nothing.
    part : callable, optional
        Takes a class and a position and returns the part of the log-density to evaluate in place of
        the whole. It is compiled.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_mcoem.density.class_density import ClassDensity
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.3, 0.7])
    ...     x = pm.Normal("x", 2.0 * k, 1.0)
    >>> log_densities = LogDensities(ClassDensity(model, k, [x]))
    >>> log_densities(np.array([0, 1]), np.array([[0.0], [2.0]]), []).round(2)
    array([-2.12, -1.28])
    """

    def __init__(
        self, density: ClassDensity, mode: Any = None, part: Callable[..., Any] | None = None
    ) -> None:
        self._flat: FlatFunction | None = None
        log_density = part or density.log_density
        if backend_of(mode) == "numba":
            try:
                self._flat = FlatFunction(
                    density,
                    lambda k, x, _: [log_density(k, x)],
                    "the log-density" if part is None else "a part of the log-density",
                    written_out=density.written_out if part is None else None,
                )
                return
            except NotFlatError:  # the density needs something that is not an array of numbers
                pass
        classes = pt.tensor("classes", dtype="int64", shape=(None,))
        positions = pt.tensor("positions", dtype="float64", shape=(None, density.n_latents))
        self._loop = compile_loop(
            density,
            lambda k, x: [log_density(k, x)],
            inputs=[classes, positions],
            sequences=[classes, positions],
            n_emitted=1,
            mode=mode,
        )

    def __call__(
        self, classes: np.ndarray, points: np.ndarray, arguments: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return log-densities ``(n,)`` at points ``(n, n_latents)`` of classes ``(n,)``.

        `arguments` are what `ClassDensity.arguments` returns.
        """
        points = as_argument(points)
        if self._flat is None:
            return np.asarray(self._loop(classes, points, *arguments)[0])
        value, packed, nothing = self._flat.function, self._flat.pack(arguments), np.zeros(0)
        pairs = zip(classes.tolist(), points, strict=True)
        return np.array([value(k, x, *packed, nothing) for k, x in pairs])
