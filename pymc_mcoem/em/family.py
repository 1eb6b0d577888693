"""The base class of families: a model with its statistics and its M-step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.em.family_observations import ModelObservations
from pymc_mcoem.em.family_parameters import ModelParameters
from pymc_mcoem.runs.registrations import find_registrations, register_again

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.compiling.flat_functions import WrittenOut

__all__ = ["CLASS_WEIGHT", "Family"]

#: Name of the statistic that every family has: the running mean of δ_{I,j}.
CLASS_WEIGHT = "class_weight"

#: Fields of `Family.geometry`, which have no meaning as attributes of a family.
_HINTS = {hint.name for hint in fields(LatentGeometry)}

#: How far rounding errors may move a class weight below zero.
ROUNDING = 1e-9
#: How far the sum of the class weights of an observation may differ from one.
UNITY = 1e-6


#: Attributes that are made again when they are needed.
_NOT_PICKLED = ("_compiled", "_mean_design")


class Family(ModelParameters, ModelObservations):
    """A model whose complete-data likelihood is a curved exponential family.

    To define your own family, derive from this class, set `model`, `class_index`, `observation`
    and `statistics`, usually in ``__init__``, and define the method `maximize`. Everything else
    has a default.

    Attributes
    ----------
    model : pymc.Model
        One observation's model. Its parameters θ and the observation are ``pm.Data``.
    class_index : TensorVariable
        The free Categorical variable of `model` that says which class made the observation.
    observation : tuple of str
        Names of the ``pm.Data`` that hold the observation; every other ``pm.Data`` is a parameter.
    statistics : dict of str to TensorVariable
        Complete-data sufficient statistics S(X, Y) of *one* draw given its class, as expressions
        in the variables of `model`. The driver multiplies them by δ_{I,j} and averages, so that
        the running arrays are ``(n_classes, *shape)``. The statistic ``"class_weight"``, the
        running mean of δ_{I,j} itself, is always included and must not be given.
    latents : tuple of TensorVariable
        The continuous variables that jump with the class index. Default: every free variable
        of the model but `class_index`.
    start_names : tuple of str
        Values of a driver's argument ``start`` that `initialize` knows. If ``"exemplars"`` is among
        them, `pymc_mcoem.choose_classes` starts with it. Default: ``("kmeans", "random")``.
    geometry : LatentGeometry
        Knowledge of the latents besides their density that makes Laplace's approximation better
        or cheaper: starting points, prior covariance, curvature. Default: none. Use
        ``dataclasses.replace(family.geometry, starts=...)`` for other starting points.

    Raises
    ------
    TypeError
        If a subclass or an instance sets a field of its geometry, such as ``starts``, as an
        attribute of the family.

    Notes
    -----
    Label ``exp_model`` of the paper.

    Examples
    --------
    A mixture of two normals around a latent location, whose only unknowns are the weights:

    >>> import numpy as np, pymc as pm
    >>> class Weights(Family):
    ...     def __init__(self):
    ...         with pm.Model() as self.model:
    ...             weights = pm.Data("weights", [0.5, 0.5])
    ...             y = pm.Data("y", 0.0)
    ...             self.class_index = pm.Categorical("class_index", p=weights)
    ...             location = pm.Normal("location", 4.0 * self.class_index, 1.0)
    ...             pm.Normal("value", location, 1.0, observed=y)
    ...         self.observation = ("y",)
    ...         self.statistics = {}
    ...
    ...     def maximize(self, statistics, *, effective_size):
    ...         return {"weights": statistics["class_weight"]}
    >>> family = Weights()
    >>> family.n_classes, family.parameter_names
    (2, ('weights',))
    """

    statistics: dict[str, TensorVariable]
    geometry: LatentGeometry = LatentGeometry()
    start_names: tuple[str, ...] = ("kmeans", "random")
    #: Hand-written loops for the density, its derivatives and the statistics, if there are any.
    written_out: WrittenOut | None = None
    #: Why statistics of runs that were learned apart may not be added, see `merge_runs`; else None.
    reason_not_to_merge: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse attributes of the class that belong in its geometry."""
        super().__init_subclass__(**options)
        for name in vars(cls):
            _require_no_hint(cls, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless it belongs in the geometry."""
        _require_no_hint(type(self), name)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, with the registrations that PyMC needs for the model."""
        state = {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}
        return {**state, "_registrations": find_registrations(self.model)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state."""
        register_again(state.pop("_registrations"))
        self.__dict__.update(state)

    @cached_property
    def _compiled(self) -> OrderedDict[Any, Any]:
        """E-steps compiled for this family; see `pymc_mcoem.em.esteps.compiled_cache`."""
        return OrderedDict()

    @cached_property
    def latents(self) -> tuple[TensorVariable, ...]:
        """Continuous variables that jump with the class index, in the model's order."""
        return tuple(rv for rv in self.model.free_RVs if rv is not self.class_index)

    def maximize(
        self, statistics: Mapping[str, np.ndarray], *, effective_size: float
    ) -> dict[str, np.ndarray]:
        """Return the parameters that maximize the expected log-likelihood.

        Parameters
        ----------
        statistics : mapping of str to ndarray
            Running means of δ_{I,j} S, each ``(n_classes, *shape)``, with ``"class_weight"`` of
            shape ``(n_classes,)`` among them.
        effective_size : float
            Effective number n* of observations in the running means. Priors are weighed against it.

        Returns
        -------
        dict of str to ndarray
            Every parameter by its ``pm.Data`` name.

        Notes
        -----
        Label ``mstep_curvedExp``.
        """
        raise TypeError(
            f"{type(self).__name__} has no maximize: define maximize(statistics, *, "
            "effective_size) that returns every parameter by name."
        )

    def maximize_ready(
        self,
        statistics: Mapping[str, np.ndarray],
        *,
        effective_size: float,
        ready: np.ndarray,
        present: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Return the M-step in which classes that are not ready keep their parameters.

        Parameters
        ----------
        statistics, effective_size
            As for `maximize`.
        ready : ndarray of bool of shape (n_classes,)
            As returned by `ready`.
        present : mapping of str to ndarray
            θ before the M-step.

        Returns
        -------
        dict of str to ndarray
            By default, the result of `maximize` with the present rows of `class_parameters` put
            back. A family with parameters shared by all classes may do better, by maximizing
            those given the rows that the waiting classes keep.
        """
        found = {
            name: np.array(value, dtype=np.float64)
            for name, value in self.maximize(statistics, effective_size=effective_size).items()
        }
        for name in self.class_parameters:
            found[name][~ready] = present[name][~ready]
        return found

    def rescale(
        self,
        parameters: Mapping[str, np.ndarray],
        statistics: Mapping[str, np.ndarray],
        *,
        ready: np.ndarray,
        share: float,
    ) -> Mapping[str, np.ndarray]:
        """Return the M-step's parameters, moved where EM alone hardly moves them.

        A family whose latents and parameters can make up for one another, such as a template and
        the scales of its observations, may go here to where the latents agree with their prior.

        Parameters
        ----------
        parameters : mapping of str to ndarray
            As `maximize` or `maximize_ready` returned them.
        statistics : mapping of str to ndarray
            As for `maximize`.
        ready : ndarray of bool of shape (n_classes,)
            As returned by `ready`; the others' parameters stay.
        share : float in (0, 1]
            How far to go, as a power of the whole factor. It is below one if the running means
            forget early observations, so that the factors average over all observations.

        Returns
        -------
        mapping of str to ndarray
            By default, `parameters` as they are.
        """
        return parameters

    def ready(self, statistics: Mapping[str, np.ndarray], *, effective_size: float) -> np.ndarray:
        """Return for which classes the statistics suffice to maximize their own parameters.

        A class that is not ready keeps its rows of `class_parameters` at an update.

        Parameters
        ----------
        statistics : mapping of str to ndarray
            As for `maximize`.
        effective_size : float
            As for `maximize`.

        Returns
        -------
        ndarray of bool of shape (n_classes,)
            By default, whether the class has had the weight of one observation.
        """
        mass: np.ndarray = effective_size * np.asarray(statistics[CLASS_WEIGHT])
        # Running means carry rounding errors; a class that had exactly one is ready.
        return mass >= 1 - ROUNDING

    def check_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        """Refuse statistics that no observation can have, before they enter the running means.

        It is called wherever an E-step runs. Means of valid statistics are valid.

        Parameters
        ----------
        statistics : mapping of str to ndarray
            Posterior means of δ_{I,j} S of one observation, each ``(n_classes, *shape)``, finite.

        Raises
        ------
        ValueError
            By default, if a class weight is negative or the weights do not sum to one. The
            observation is then not learned.
        """
        weights = np.asarray(statistics[CLASS_WEIGHT])
        if not (weights >= -ROUNDING).all():
            raise ValueError(
                f"statistics: {CLASS_WEIGHT} is {weights.min():.3g} for class "
                f"{int(weights.argmin())}; weights are not negative. Check the E-step."
            )
        if not abs(weights.sum() - 1.0) <= UNITY:
            raise ValueError(
                f"statistics: {CLASS_WEIGHT} sums to {weights.sum():.6g} over the classes, not to "
                "one. Check the E-step, and the scale of the observation."
            )

    def anneal(
        self, parameters: Mapping[str, np.ndarray], temperature: float
    ) -> dict[str, np.ndarray]:
        """Return parameters at which the likelihood is raised to the power 1/T.

        Only `SAEM` with annealing calls this.

        Parameters
        ----------
        parameters : mapping of str to ndarray
            θ.
        temperature : float
            T, at least 1. For normal noise, the variance is multiplied by it.
        """
        raise TypeError(
            f"annealing: {type(self).__name__} has no anneal; define anneal(parameters, "
            "temperature) that returns every parameter by name, or leave annealing out."
        )

    def initialize(
        self, observations: list[np.ndarray], rng: np.random.Generator, start: str
    ) -> dict[str, np.ndarray]:
        """Return parameters to start from; by default, those that the model was declared with.

        Parameters
        ----------
        observations : list of ndarray
            The first observations of the stream, as given, in float64.
        rng : numpy.random.Generator
            Source of all randomness in the start.
        start : {"kmeans", "random", "exemplars"}
            The driver's argument `start`, one of `start_names` if the family looks at it.
        """
        return self.declared_parameters()

    def initialize_labeled(
        self,
        observations: list[np.ndarray],
        rng: np.random.Generator,
        start: str,
        allowed: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Return parameters to start from where labels are known; by default, without them.

        Parameters
        ----------
        observations, rng, start
            As for `initialize`.
        allowed : ndarray of bool of shape (n_observations, n_classes)
            Classes that may have made each observation.
        """
        return self.initialize(observations, rng, start)

    def paper_settings(self) -> dict[str, Any]:
        """Return arguments of `OnlineEM` that the paper sets for this kind of data.

        They override those that `OnlineEM.as_in_paper` takes from the paper's digits.
        """
        return {}

    def describe(self) -> dict[str, str]:
        """Return settings of the family that its names and shapes do not show.

        They are saved with a run, and a family with other settings is refused when the run is
        loaded. Default: none.
        """
        return {}

    def exact(
        self, data: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the exact posterior means of δ_{I,j} S, including ``"class_weight"``.

        It may also return log p(y) as ``"log_evidence"``.

        Raises
        ------
        TypeError
            If the family has no closed form.
        """
        raise TypeError(
            f"{type(self).__name__} has no closed-form E-step: define exact(data, parameters), "
            "or use another E-step, such as CarlinChibBurst."
        )


def _require_no_hint(family: type[Family], name: str) -> None:
    """Raise `TypeError` for an attribute that would be ignored."""
    if name in _HINTS:
        raise TypeError(
            f"{family.__name__}.{name}: hints about the latents belong in the family's geometry; "
            f"set geometry = LatentGeometry({name}=...), from pymc_mcoem.pseudo_priors."
        )
