"""A whole vector of class indices: mixtures whose every observation has its index and latents.

Given everything else the rows of a plate are independent, so the density of all rows in one class
is one evaluation. That they are is checked by moving some of them, near and far, and seeing that
the others' densities stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from pymc_mcoem.arithmetic import strict_mode
from pymc_mcoem.density import as_argument, count_classes, require_class_index

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable


__all__ = ["PlateDensity"]


class PlateDensity:
    """Row by row log-density of a vector of class indices and latents along the same plate.

    Parameters
    ----------
    model : pymc.Model
    class_index : TensorVariable of shape (n_rows,)
        Free Categorical or Bernoulli variable of `model`.
    latents : sequence of TensorVariable
        Free continuous variables whose first axis is the plate.

    Attributes
    ----------
    n_rows, n_classes, n_latents : int
        `n_latents` is the number of latents of one row.
    other_values : tuple of TensorVariable
        Value variables of the model that are neither; all functions take them as inputs.

    Raises
    ------
    ValueError
        If a latent is discrete or has another first axis, or rows are not independent.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5], shape=3)
    ...     x = pm.Normal("x", 2.0 * k, 1.0, shape=3)
    ...     y = pm.Normal("y", x, 1.0, observed=np.zeros(3))
    >>> density = PlateDensity(model, k, [x])
    >>> density.n_rows, density.n_latents
    (3, 1)
    """

    def __init__(
        self, model: pm.Model, class_index: TensorVariable, latents: Sequence[TensorVariable]
    ) -> None:
        require_class_index(model, class_index)
        if class_index.ndim != 1:
            raise ValueError(
                f"class_index: {class_index.name} has {class_index.ndim} axes; a plate is one "
                "variable with one axis."
            )
        point = model.initial_point(random_seed=0)
        self.model = model
        self.class_index = class_index
        self.latents = tuple(latents)
        self.index_value = model.rvs_to_values[class_index]
        self.latent_values = tuple(model.rvs_to_values[rv] for rv in self.latents)
        self.n_rows = int(np.shape(point[self.index_value.name])[0])
        self.n_classes = count_classes(class_index)
        self._shapes = [np.shape(point[value.name]) for value in self.latent_values]
        for rv, shape in zip(self.latents, self._shapes, strict=True):
            if rv.dtype not in pm.pytensorf.continuous_types:
                raise ValueError(
                    f"vars: {rv.name} is discrete ({rv.dtype}); give it a step method of its own."
                )
            if not shape or shape[0] != self.n_rows:
                raise ValueError(
                    f"vars: {rv.name} has shape {shape}, but {class_index.name} has "
                    f"{self.n_rows} rows; name only latents along that plate, and leave the others "
                    "to other step methods."
                )
        self._sizes = [int(np.prod(shape[1:], dtype=int)) for shape in self._shapes]
        self.n_latents = sum(self._sizes)
        if self.n_latents == 0:
            raise ValueError(
                "vars: there are no latents along the plate; a class index alone is better summed "
                "out, or sampled with pm.CategoricalGibbsMetropolis."
            )
        own = {self.index_value, *self.latent_values}
        self.other_values = tuple(value for value in model.value_vars if value not in own)
        self._density = self._by_row(own)
        self._require_independent_rows(point)

    def _by_row(self, own: set[Any]) -> TensorVariable:
        terms = []
        for variable in [*self.model.basic_RVs, *self.model.potentials]:
            (term,) = self.model.logp(vars=[variable], sum=False)
            if not own & set(ancestors([term])):
                continue
            shape = self._shape(term)
            if not shape or shape[0] != self.n_rows:
                raise ValueError(
                    f"class_index: the density of {variable.name} has shape {shape}, not one value "
                    f"for each of the {self.n_rows} rows of {self.class_index.name}: rows are not "
                    "independent. Write it with the plate as first axis."
                )
            terms.append(term.sum(axis=tuple(range(1, term.ndim))) if term.ndim > 1 else term)
        return pt.add(*terms) if len(terms) > 1 else terms[0]

    def _shape(self, term: TensorVariable) -> tuple[int, ...]:
        """Return the shape of a term, which with ``pm.Data`` is known only where it has values."""
        if None not in term.type.shape:
            return tuple(term.type.shape)
        function = self.model.compile_fn(
            term.shape,
            inputs=self.model.value_vars,
            mode="FAST_COMPILE",
            on_unused_input="ignore",
        )
        return tuple(map(int, function(self.model.initial_point(random_seed=0))))

    def _require_independent_rows(self, point: dict[str, np.ndarray]) -> None:
        """Move some rows and see that the others keep their density, bit for bit."""
        k = pt.vector("class_index", dtype="int64")
        x = pt.matrix("position", dtype="float64")
        function = self.compile([k, x], [self.log_density(k, x)])
        others = self.others(point)
        rng = np.random.default_rng(0)
        rows = np.arange(self.n_rows)
        shape = (self.n_rows, self.n_latents)
        start = self.ravel(point)
        # By every bit of the rows' numbers, so that any two rows are parted at least once.
        bits = [
            rows >> bit & 1 == flag for bit in range(self.n_rows.bit_length()) for flag in (0, 1)
        ]
        # all rows in one class too: a factor may look at just that
        alike = [(1.0, np.full(self.n_rows, j)) for j in range(self.n_classes)]
        for distance, given in [*((size, None) for size in (0.01, 0.1, 1.0, 10.0)), *alike]:
            drawn = rng.integers(self.n_classes, size=self.n_rows)
            index = drawn if given is None else given
            position = start + distance * rng.standard_normal(shape)
            before = function(index, position, *others)[0]
            for moved in bits:
                other = rng.integers(self.n_classes, size=self.n_rows)
                away = position + distance * rng.standard_normal(shape)
                after = function(
                    np.where(moved, other, index),
                    np.where(moved[:, None], away, position),
                    *others,
                )[0]
                same = (after == before) | (np.isnan(before) & np.isnan(after))
                touched = np.flatnonzero(~moved & ~same)
                if touched.size:
                    raise ValueError(
                        f"class_index: the density of row {touched[0]} of "
                        f"{self.class_index.name} changes when other rows move, so rows are not "
                        "independent; give the step only latents that are, or leave the index to "
                        "pm.CategoricalGibbsMetropolis."
                    )

    def compile(self, inputs: list[Any], outputs: list[Any], mode: Any = None) -> Any:
        """Compile a function of `inputs`, then of the other values."""
        function = pm.pytensorf.compile(
            [*inputs, *self.other_values],
            outputs,
            mode=strict_mode(mode),
            on_unused_input="ignore",
        )
        function.trust_input = True
        return function

    def _split(self, x: Any) -> list[Any]:
        stops = [int(stop) for stop in np.cumsum(self._sizes)]
        return [
            x[:, stop - size : stop].reshape(shape)
            for stop, size, shape in zip(stops, self._sizes, self._shapes, strict=True)
        ]

    def log_density(self, class_index: Any, position: Any) -> TensorVariable:
        """Return log p(y_i, I_i, x_i) of every row, ``(n_rows,)``.

        Parameters
        ----------
        class_index : int vector of shape (n_rows,)
        position : matrix of shape (n_rows, n_latents)
        """
        replacement: dict[Any, Any] = {
            self.index_value: pt.cast(class_index, self.index_value.dtype)
        }
        for value, part in zip(self.latent_values, self._split(position), strict=True):
            replacement[value] = pt.cast(part, value.dtype)
        density: TensorVariable = clone_replace(self._density, replacement, rebuild_strict=False)
        return density

    def others(self, point: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the values of a point that are neither index nor latents."""
        return [as_argument(point[value.name], value.dtype) for value in self.other_values]

    def ravel(self, point: Mapping[str, Any]) -> np.ndarray:
        """Return the latents of a point, ``(n_rows, n_latents)``."""
        return np.concatenate(
            [
                np.asarray(point[value.name], dtype=np.float64).reshape(self.n_rows, -1)
                for value in self.latent_values
            ],
            axis=1,
        )

    def unravel(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Return latents ``(n_rows, n_latents)`` as values by value-variable name."""
        return {
            value.name: np.asarray(part, dtype=value.dtype)
            for value, part in zip(self.latent_values, self._split(position), strict=True)
        }
