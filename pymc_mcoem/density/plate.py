"""Density of a vector of class indices, for mixtures with an index and latents per observation.

The rows of a plate are independent given everything else, so one evaluation gives the density of
all rows in one class. Independence is proved on the model's graph (`pymc_mcoem.density.rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace

from pymc_mcoem.density.angles import are_angles, log_turn_weight, require_no_angles
from pymc_mcoem.density.class_density import as_argument
from pymc_mcoem.density.class_index import count_classes, require_class_index
from pymc_mcoem.density.constants import SharedConstants
from pymc_mcoem.density.row_operations import Coupled
from pymc_mcoem.density.rows import by_row

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor.variable import TensorVariable


__all__ = ["PlateDensity"]


class PlateDensity:
    """Log-density by row of a vector of class indices and latents along the same plate.

    Parameters
    ----------
    class_index : TensorVariable of shape (n_rows,)
        Free Categorical or Bernoulli variable of `model`.
    latents : sequence of TensorVariable
        Free continuous variables whose first axis is the plate.

    Attributes
    ----------
    n_rows, n_classes, n_latents : int
        `n_latents` is the number of latents of one row.
    other_values : tuple of TensorVariable
        Value variables of the model that are neither the index nor latents. All functions take them
        as inputs.

    Raises
    ------
    ValueError
        If a latent is discrete or has another first axis, or if the graph does not prove that rows
        are independent.

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
        point = model.initial_point(random_seed=0)
        if class_index.ndim != 1:
            name, shape = class_index.name, np.shape(point[model.rvs_to_values[class_index].name])
            raise ValueError(
                f"class_index: {name} has shape {shape}, and a plate has one axis; declare "
                f"pm.Categorical({name!r}, p, shape={np.prod(shape)}), and write {name}[:, None] "
                "where its rows have columns."
            )
        self.model = model
        self.class_index = class_index
        self.latents = tuple(latents)
        self.index_value = model.rvs_to_values[class_index]
        self.latent_values = tuple(model.rvs_to_values[rv] for rv in self.latents)
        self.n_rows = int(np.shape(point[self.index_value.name])[0])
        self.n_classes = count_classes(class_index)
        self._latent_shapes = [np.shape(point[value.name]) for value in self.latent_values]
        for rv, shape in zip(self.latents, self._latent_shapes, strict=True):
            if rv.dtype not in pm.pytensorf.continuous_types:
                raise ValueError(
                    f"vars: {rv.name} is discrete ({rv.dtype}); give it a step method of its own."
                )
            if not shape or shape[0] != self.n_rows:
                raise ValueError(self._off_the_plate(rv.name, shape))
        require_no_angles(model, self.latents, chained_alone=True)
        self.latent_sizes = [int(np.prod(shape[1:], dtype=int)) for shape in self._latent_shapes]
        self.n_latents = sum(self.latent_sizes)
        is_angle = are_angles(model, self.latents, self.latent_sizes)
        self.angles: list[int] = np.flatnonzero(is_angle).tolist()
        if self.n_latents == 0:
            others = {
                rv.name: np.shape(point[value.name])
                for rv, value in model.rvs_to_values.items()
                if rv in model.free_RVs and rv.dtype in pm.pytensorf.continuous_types
            }
            along = [name for name, shape in others.items() if shape[:1] == (self.n_rows,)]
            for name, shape in others.items():
                if not along and self.n_rows in (1, *shape):
                    raise ValueError(self._off_the_plate(name, shape))
            raise ValueError(
                "vars: there are no latents along the plate: "
                + (f"{along} have" if along else f"none of {others} has")
                + f" the {self.n_rows} rows of {class_index.name}"
                + (", and are left out. " if along else ". ")
                + "Sum a class index alone out, as "
                f"pymc_extras.marginalize(model, [{class_index.name!r}]) does, or leave it to "
                "pm.CategoricalGibbsMetropolis. Where all observations that share a latent, as "
                "x[group], are of one class, give the index a row for each group."
            )
        own = {self.index_value, *self.latent_values}
        self.other_values = tuple(value for value in model.value_vars if value not in own)
        # Attributes of `ClassDensity` that prior draws and sweeps use.
        self.data_replacement: dict[Any, Any] = {}
        self.data_inputs: dict[str, Any] = {}
        self.active, self.written_out = None, None
        self._shared: list[TensorVariable] = []
        self._density = self._by_row()

    def _by_row(self) -> TensorVariable:
        """Return the density of each row, proved not to depend on other rows."""
        rows: dict[Variable, int] = dict.fromkeys((self.index_value, *self.latent_values), 0)
        terms = []
        for variable, term in SharedConstants(self.model).log_densities().items():
            try:
                found = by_row(term, rows, self.n_rows)
            except Coupled as coupled:
                raise ValueError(
                    f"class_index: rows of {self.class_index.name} are not independent in the "
                    f"density of {variable.name}, or cannot be shown to be: {coupled}. "
                    + self._remedy(variable.name)
                ) from None
            if found is None:
                self._shared.append(term.sum())
                continue
            shape = self._shape(found)
            if shape != (self.n_rows,):
                raise ValueError(
                    f"class_index: the density of {variable.name} has {shape[0]} rows, not the "
                    f"{self.n_rows} of {self.class_index.name}."
                )
            terms.append(found)
        for value in self.latent_values:
            if are_angles(self.model, [self.model.values_to_rvs[value]], [1]).any():
                weight = log_turn_weight(value).reshape((self.n_rows, -1))
                terms.append(weight.sum(axis=1))
        return pt.add(*terms) if len(terms) > 1 else terms[0]

    def _off_the_plate(self, name: str, shape: tuple[int, ...]) -> str:
        """Return what is wrong with a latent whose first axis is not the plate."""
        wrong = (
            f"vars: {name} has shape {shape}, but {self.class_index.name} has {self.n_rows} rows; "
        )
        if self.n_rows == 1:
            return wrong + (
                f"declare {self.class_index.name} without a shape, and all variables can be its "
                "latents."
            )
        if self.n_rows in shape:
            place = shape.index(self.n_rows)
            moved = self.n_rows, *shape[:place], *shape[place + 1 :]
            return wrong + (
                f"the plate is the first axis of every latent: declare {name} with shape={moved}, "
                f"and write {name}.T where the rows are columns."
            )
        return wrong + (
            "name only latents along that plate, and leave the others to other step methods, or, "
            f"where all observations that share a row of {name} are of one class, give the index "
            f"the rows of {name}."
        )

    def _remedy(self, name: str) -> str:
        """Return what to write in place of a density whose rows may be coupled."""
        observed = name.removesuffix("_unobserved").removesuffix("_observed")
        if observed != name and f"{observed}_unobserved" in self.model.named_vars:
            return (
                f"{observed} has missing values, which PyMC draws as one variable for all rows. "
                "Leave them out: with seen = ~np.isnan(values) and "
                "filled = np.nan_to_num(values), write in place of "
                f'pm.Normal("{observed}", mu, sigma, observed=values) pm.Potential("{observed}", '
                "pt.where(seen, pm.logp(pm.Normal.dist(mu, sigma), filled), 0.0))."
            )
        n = self.n_rows
        return (
            f"Write it with operations that keep the {n} rows apart, which are the first axis, as "
            f'pm.Normal("y", x[:, None], 1.0, observed=values) with values of shape ({n}, m) in '
            "place of x[group]; name in vars only latents whose rows are apart, or leave the index "
            "to pm.CategoricalGibbsMetropolis."
        )

    def _shape(self, term: TensorVariable) -> tuple[int, ...]:
        """Return the shape of a term, evaluated if ``pm.Data`` leave it unknown in the graph."""
        if None not in term.type.shape:
            return tuple(term.type.shape)
        function = self.model.compile_fn(
            term.shape,
            inputs=self.model.value_vars,
            mode="FAST_COMPILE",
            on_unused_input="ignore",
        )
        return tuple(map(int, function(self.model.initial_point(random_seed=0))))

    @property
    def inputs(self) -> list[TensorVariable]:
        """Inputs of compiled functions besides indices and positions."""
        return list(self.other_values)

    @property
    def n_active(self) -> list[int]:
        """Number of active coordinates of each class: all of them."""
        return [self.n_latents] * self.n_classes

    @property
    def position_shape(self) -> tuple[int, ...]:
        """Shape of the positions of all rows."""
        return (self.n_rows, self.n_latents)

    def split(self, position: Any) -> list[Any]:
        """Return the latents of a position ``(n_rows, n_latents)``, each in its own shape."""
        stops = [int(stop) for stop in np.cumsum(self.latent_sizes)]
        return [
            position[:, stop - size : stop].reshape(shape)
            for stop, size, shape in zip(stops, self.latent_sizes, self._latent_shapes, strict=True)
        ]

    def log_density(self, class_index: Any, position: Any) -> TensorVariable:
        """Return log p(y_i, I_i, x_i) of every row, ``(n_rows,)``.

        Parameters
        ----------
        class_index : int vector of shape (n_rows,), or scalar
        position : matrix of shape (n_rows, n_latents)
        """
        index = pt.as_tensor_variable(class_index)
        if index.ndim == 0:
            index = pt.full((self.n_rows,), index)
        replacement: dict[Any, Any] = {self.index_value: pt.cast(index, self.index_value.dtype)}
        for value, part in zip(self.latent_values, self.split(position), strict=True):
            replacement[value] = pt.cast(part, value.dtype)
        density: TensorVariable = clone_replace(self._density, replacement, rebuild_strict=False)
        return density

    @property
    def shared_log_density(self) -> TensorVariable:
        """Log-density of all terms that depend on no row."""
        found: TensorVariable = pt.add(*self._shared, pt.constant(0.0), pt.constant(0.0))
        return found

    def gradient(self, class_index: Any, position: Any) -> TensorVariable:
        """Return the gradient ``(n_rows, n_latents)`` of each row's `log_density` in its position.

        Rows are independent, so that it is the gradient of the sum over rows. The position is a
        variable.
        """
        found: TensorVariable = pt.grad(self.log_density(class_index, position).sum(), position)
        return found

    def negative_hessian(self, class_index: Any, position: Any) -> TensorVariable:
        """Return minus each row's Hessian ``(n_rows, n_latents, n_latents)``.

        It takes n_latents more backward passes: the cost is linear in the number of rows.
        """
        gradient = self.gradient(class_index, position)
        rows = [pt.grad(gradient[:, a].sum(), position) for a in range(self.n_latents)]
        return -pt.stack(rows, axis=1)

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
            for value, part in zip(self.latent_values, self.split(position), strict=True)
        }
