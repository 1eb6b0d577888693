"""The log-density of a model as a function of its class index and its raveled latents.

Everything that samples or optimizes (Laplace, Carlin-Chib, the burst) uses this one density, which
is on the scale on which PyMC samples the variables, Jacobian included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import NullTypeGradError
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from pymc_mcoem.density.angles import are_angles, log_turn_weight, require_no_angles
from pymc_mcoem.density.class_index import count_classes, require_class_index
from pymc_mcoem.density.constants import SharedConstants

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.compiling.flat_functions import WrittenOut

__all__ = [
    "ClassDensity",
    "as_argument",
]


def as_argument(value: Any, dtype: Any = np.float64) -> np.ndarray:
    """Return an array in the one layout that functions are compiled for.

    Numba compiles a function once for each combination of its arguments' layouts: an array that
    is transposed, strided or read-only would cost half a minute in the middle of a run. The array
    is copied only if its layout differs.

    Parameters
    ----------
    value : array_like

    Returns
    -------
    ndarray
        In C order and writeable.
    """
    array = np.asarray(value, dtype=dtype)
    # In C order, aligned and writeable.
    return array if array.flags.carray else array.copy(order="C")


class ClassDensity:
    """Log-density of (class index, latents) with everything else held fixed.

    Parameters
    ----------
    class_index : TensorVariable or None
        Free scalar Categorical or Bernoulli variable of `model`; None for a model of one class.
    latents : sequence of TensorVariable
        Free continuous variables of `model`, of any shape and transform.
    inputs : sequence of str
        Names of ``pm.Data`` that become inputs (`data_inputs`) of every expression; other data
        stay the model's shared variables.
    turns : bool
        Whether latents may be angles, whose turns somebody then draws.

    Attributes
    ----------
    n_classes, n_latents : int
        Number of classes, and total size of the raveled latents.
    latent_sizes : list of int
        Size of each raveled latent.
    data_inputs : dict of str to TensorVariable
        The variables that stand for the data named in `inputs`.
    angles : list of int
        The coordinates that are angles on PyMC's circular transform, whose turns are weighted.
    angle_centers : shared variable of shape (n_classes, n_latents)
        The angles whose turns have the largest weights, in each class; only with angles.
    found_starts : ndarray of shape (n, n_latents)
        Where mode searches start beside the model's initial point; empty without angles.
    active : ndarray of bool of shape (n_classes, n_latents), or None
        Which coordinates are active in which class. None means that all are active in every class.
    terms : dict of TensorVariable to TensorVariable
        Log-density of each random variable and potential of the model, in its own shape, as
        expressions in value variables with shared constants.
    other_values : tuple of TensorVariable
        Value variables of the model that are neither the index nor a latent; every compiled
        function takes them as inputs.

    Raises
    ------
    ValueError
        If the index is not a free scalar Categorical or Bernoulli variable of the model, or a
        latent is discrete or an angle on PyMC's circular transform, with `turns` only in a chain
        of transforms.

    Notes
    -----
    Density, gradient and curvature are built once on this object's symbols, and `place`
    replaces these by other variables: differentiate first, replace afterward.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.3, 0.7])
    ...     x = pm.Normal("x", 2.0 * k, 1.0)
    >>> density = ClassDensity(model, k, [x])
    >>> round(float(density.log_density(1, [2.0]).eval()), 4)
    -1.2756
    """

    active: np.ndarray | None = None
    #: Hand-written loops that compute the density, its gradient and a family's statistics.
    written_out: WrittenOut | None = None

    def __init__(
        self,
        model: pm.Model,
        class_index: TensorVariable | None,
        latents: Sequence[TensorVariable],
        inputs: Sequence[str] = (),
        *,
        turns: bool = False,
    ) -> None:
        if class_index is not None:
            require_class_index(model, class_index)
            if class_index.ndim != 0:
                raise ValueError(
                    f"class_index: {class_index.name} has {class_index.ndim} axes; name a variable "
                    "without shape, or give CarlinChib latents along the same plate."
                )
        for rv in latents:
            if rv.dtype not in pm.pytensorf.continuous_types:
                raise ValueError(
                    f"latents: {rv.name} is discrete ({rv.dtype}), and only continuous variables "
                    "jump with the index; leave it out, so that another step draws it, sum it out "
                    "of the likelihood with pm.math.logsumexp, or make its values classes of the "
                    "index."
                )
        require_no_angles(model, latents, chained_alone=turns)
        self.model = model
        self.class_index = class_index
        self.latents = tuple(latents)
        self.n_classes = 1
        self.index_value: TensorVariable | None = None
        if class_index is not None:
            self.n_classes = count_classes(class_index)
            self.index_value = model.rvs_to_values[class_index]
        self.latent_values = tuple(model.rvs_to_values[rv] for rv in self.latents)
        point = model.initial_point(random_seed=0)
        self._latent_shapes = [np.shape(point[value.name]) for value in self.latent_values]
        self.latent_sizes = [int(np.prod(shape, dtype=int)) for shape in self._latent_shapes]
        self.n_latents = sum(self.latent_sizes)

        own = {*self.latent_values, *([] if self.index_value is None else [self.index_value])}
        self.constants = SharedConstants(model)
        # Terms in which neither the index nor a latent appears are constants of the kernel.
        self.terms = self.constants.log_densities(indices=True)
        is_angle = are_angles(model, self.latents, self.latent_sizes)
        self.angles: list[int] = np.flatnonzero(is_angle).tolist()
        self.found_starts = np.zeros((0, self.n_latents))
        if self.angles:
            centers = np.zeros((self.n_classes, self.n_latents))
            self.angle_centers = self.constants.own("angle centers", centers)
        terms = [
            self._sum(variable, term)
            for variable, term in self.terms.items()
            if own & set(ancestors([term]))
        ]
        self._log_density = pt.add(*terms) if len(terms) > 1 else terms[0]
        self._gradient_graph: TensorVariable | None = None
        self._curvature_graph: TensorVariable | None = None
        self.data_inputs: dict[str, TensorVariable] = {}
        self.data_replacement: dict[Any, Any] = {}
        for name in inputs:
            shared = model[name]
            assert isinstance(shared, SharedVariable)
            symbol = pt.tensor(name, dtype=shared.dtype, shape=shared.get_value(borrow=True).shape)
            self.data_inputs[name] = symbol
            self.data_replacement[shared] = symbol
        self.other_values = tuple(value for value in model.value_vars if value not in own)

    def _sum(self, variable: TensorVariable, term: TensorVariable) -> TensorVariable:
        """Return the sum of a term, of an angle's prior with the weights of its turns."""
        total = term.sum()
        if variable not in self.latents or not are_angles(self.model, [variable], [1]).any():
            return total
        position = self.latents.index(variable)
        first = sum(self.latent_sizes[:position])
        mine = slice(first, first + self.latent_sizes[position])
        centers = self.angle_centers[0 if self.index_value is None else self.index_value, mine]
        return total + log_turn_weight(self.latent_values[position].ravel() - centers).sum()

    @property
    def inputs(self) -> list[TensorVariable]:
        """Inputs of compiled functions besides class and position: data, then other values."""
        return [*self.data_inputs.values(), *self.other_values]

    @property
    def position_shape(self) -> tuple[int, ...]:
        """Shape of a position."""
        return (self.n_latents,)

    @property
    def n_active(self) -> list[int]:
        """Number of active coordinates of each class."""
        if self.active is None:
            return [self.n_latents] * self.n_classes
        return [int(row.sum()) for row in self.active]

    def require_latents(self) -> None:
        """Raise an error if there are no latents, for kernels that move them."""
        if self.n_latents == 0:
            discrete = [
                rv.name
                for rv in self.model.free_RVs
                if rv is not self.class_index and rv.dtype not in pm.pytensorf.continuous_types
            ]
            raise ValueError(
                "latents: there are none that jump with the class index"
                + (f" ({discrete} are discrete, and cannot)" if discrete else "")
                + "; sum it out, as pymc_extras.marginalize does, leave it to "
                "pm.CategoricalGibbsMetropolis, or in EM use the E-step Exact."
            )

    # -- placing expressions -----------------------------------------------------------------

    def split(self, position: Any) -> list[Any]:
        """Return the latents of a position ``(n_latents,)``, each in its own shape."""
        latents, first = [], 0
        # No NumPy: this runs at every draw, and latents are few.
        for size, shape in zip(self.latent_sizes, self._latent_shapes, strict=True):
            latents.append(position[first : first + size].reshape(shape))
            first += size
        return latents

    def place_values(self, graph: Any, class_index: Any, position: Any) -> Any:
        """Replace the value variables of index and latents in a graph by `class_index`, `position`.

        Parameters
        ----------
        graph : TensorVariable or list of TensorVariable
            Expression in value variables of the model.
        position : vector of shape (n_latents,)
        """
        position = pt.as_tensor_variable(position, dtype="float64")
        replacement = dict(self.data_replacement)
        if self.index_value is not None:
            replacement[self.index_value] = pt.cast(
                pt.as_tensor_variable(class_index), self.index_value.dtype
            )
        for value, part in zip(self.latent_values, self.split(position), strict=True):
            replacement[value] = pt.cast(part, value.dtype)
        return clone_replace(graph, replacement, rebuild_strict=False)

    def place(self, expressions: Any, class_index: Any, position: Any) -> Any:
        """Replace the model's index and latents in expressions by `class_index` and `position`.

        Parameters
        ----------
        expressions : TensorVariable or list of TensorVariable
            Expressions in random variables and data of the model, as a user writes them.
        position : vector of shape (n_latents,)
        """
        single = not isinstance(expressions, (list, tuple))
        graphs = self.model.replace_rvs_by_values([expressions] if single else list(expressions))
        graphs = self.constants.arrays_replaced(graphs, indices=True)
        placed = self.place_values(graphs, class_index, position)
        return placed[0] if single else placed

    def log_density(self, class_index: Any, position: Any) -> TensorVariable:
        """Return the scalar log p(y, I, X) at a class and a position ``(n_latents,)``."""
        return self.place_values(self._log_density, class_index, position)

    @property
    def shared_log_density(self) -> TensorVariable:
        """Log-density of all terms in which neither the index nor a latent appears."""
        own = {*self.latent_values, self.index_value}
        rest = [term.sum() for term in self.terms.values() if not own & set(ancestors([term]))]
        found: TensorVariable = pt.add(*rest, pt.constant(0.0), pt.constant(0.0))
        return found

    def gradient(self, class_index: Any, position: Any) -> TensorVariable:
        """Return the gradient ``(n_latents,)`` of `log_density` in the position."""
        if self._gradient_graph is None:
            slopes = self._differentiated(pt.grad, self._log_density, list(self.latent_values))
            self._gradient_graph = pt.concatenate([part.ravel() for part in slopes])
        return self.place_values(self._gradient_graph, class_index, position)

    def negative_hessian(self, class_index: Any, position: Any) -> TensorVariable:
        """Return minus the Hessian ``(n_latents, n_latents)`` by automatic differentiation."""
        if self._curvature_graph is None:
            k = pt.scalar("class_index", dtype="int64")
            x = pt.tensor("position", dtype="float64", shape=(self.n_latents,))
            logp = self.place_values(self._log_density, k, x)
            self._curvature_graph = -self._differentiated(pt.hessian, logp, x)
            self._curvature_symbols = (k, x)
        k, x = self._curvature_symbols
        return clone_replace(
            self._curvature_graph,
            {
                k: pt.cast(pt.as_tensor_variable(class_index), k.dtype),
                x: pt.as_tensor_variable(position, dtype="float64"),
            },
            rebuild_strict=False,
        )

    @staticmethod
    def _differentiated(operation: Any, *arguments: Any) -> Any:
        try:
            return operation(*arguments)
        except (NotImplementedError, NullTypeGradError) as error:
            raise ValueError(
                f"model: its log-density has no gradient in the latents ({error}); give "
                "pseudo_priors=PilotMoments() and within_class=RandomWalk(), which need none."
            ) from error

    # -- arguments of compiled functions -----------------------------------------------------

    def arguments(self, data: Mapping[str, Any], others: Sequence[Any] = ()) -> list[np.ndarray]:
        """Return the `data_inputs`, then the `other_values`, as arguments of compiled functions.

        Parameters
        ----------
        data : mapping of str to array_like
            Values by name. Names that are not inputs are ignored.
        others : sequence of array_like
        """
        return [
            *(as_argument(data[name], symbol.dtype) for name, symbol in self.data_inputs.items()),
            *(
                as_argument(value, variable.dtype)
                for value, variable in zip(others, self.other_values, strict=True)
            ),
        ]

    # -- points ------------------------------------------------------------------------------

    def others(self, point: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the values of a point that are neither index nor latents."""
        return [as_argument(point[value.name], value.dtype) for value in self.other_values]

    def ravel(self, point: Mapping[str, Any]) -> np.ndarray:
        """Return the latents of a PyMC point as one vector ``(n_latents,)``."""
        return np.concatenate(
            [
                np.asarray(point[value.name], dtype=np.float64).ravel()
                for value in self.latent_values
            ]
            or [np.zeros(0)]
        )

    def without_inactive(self, class_index: int, position: np.ndarray) -> np.ndarray:
        """Return a position with zeros in the coordinates that are inactive in the class."""
        if self.active is None:
            return position
        return np.where(self.active[class_index], position, 0.0)

    def unravel(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Return a vector ``(n_latents,)`` as values by value-variable name."""
        return {
            value.name: np.asarray(part, dtype=value.dtype)
            for value, part in zip(self.latent_values, self.split(position), strict=True)
        }
