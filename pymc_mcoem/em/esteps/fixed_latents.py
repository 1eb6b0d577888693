"""An E-step with fixed latents, that is, without warps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytensor
import pytensor.tensor as pt
from scipy.special import logsumexp, softmax

from pymc_mcoem.compiling.backends import backend_of, interpreted_mode, require_backend
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.compiling.flat_functions import FlatFunction, NotFlatError
from pymc_mcoem.density.class_density import as_argument
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.compiled import DensityEStep

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.em.family import Family

__all__ = ["CompiledFixedLatents", "FixedLatents"]


@dataclass(frozen=True)
class FixedLatents:
    """Exact class weights and statistics with the latents held at the model's initial point.

    For a template mixture that point is the prior mean of the warp, which gives an ordinary
    Gaussian mixture of unwarped templates, a baseline for warps. The prior of the latents does
    not enter the weights, since they are not random here.

    Parameters
    ----------
    backend : str or None
        ``"numba"``, ``"c"`` or ``"jax"``, as in ``pm.sample``; see `CarlinChibBurst`.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_mcoem.em.family import Family
    >>> class Shifted(Family):
    ...     observation = ("y",)
    ...
    ...     def __init__(self):
    ...         with pm.Model() as self.model:
    ...             means = pm.Data("means", [0.0, 2.0])
    ...             y = pm.Data("y", 0.0)
    ...             self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
    ...             shift = pm.Normal("shift")
    ...             pm.Normal("value", means[self.class_index] + shift, 1.0, observed=y)
    ...         self.statistics = {}
    >>> family, rng = Shifted(), np.random.default_rng(1)
    >>> e_step = FixedLatents().compile(family)
    >>> theta = family.model_parameters()
    >>> e_step(family.encode(1.0), theta, rng, {}, draws=1, tune=0).statistics
    {'class_weight': array([0.5, 0.5])}
    """

    backend: str | None = None

    def __post_init__(self) -> None:
        require_backend(self.backend)

    def compile(self, family: Family) -> CompiledFixedLatents:
        """Compile for `family`."""
        with family.as_declared():
            return CompiledFixedLatents(self, family)


class CompiledFixedLatents(DensityEStep):
    """A `FixedLatents` compiled for one family."""

    def __init__(self, settings: FixedLatents, family: Family) -> None:
        super().__init__(family, settings.backend, needs_latents=False)
        model, density = family.model, self.density
        self.position = as_argument(density.ravel(model.initial_point(random_seed=0)))
        terms = model.logp(vars=[family.class_index, *model.observed_RVs], sum=False)
        joint = pt.add(*[term.sum() for term in terms])
        if backend_of(self.mode) == "numba":
            with suppress(NotFlatError):
                self._log_weights = _one_by_one(density, joint, self.position)
                return
        position = pt.tensor("position", dtype="float64", shape=self.position.shape)
        log_weights = pytensor.scan(
            lambda k: density.place_values(joint, k, position),
            sequences=[pt.arange(density.n_classes)],
            return_updates=False,
        )
        function = compile_with_data(density, [position], log_weights, self.mode)
        self._log_weights = partial(function, self.position)

    def _run_e_step(
        self,
        values: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        state: Mapping[str, np.ndarray],
        draws: int,
        tune: int,
    ) -> EStepResult:
        log_weights = self._log_weights(*self.density.arguments(values))
        weights = softmax(log_weights)
        return EStepResult(
            self.statistics.at_one_position(self.position, weights, values),
            log_evidence=float(logsumexp(log_weights)),
        )

    def _class_weights(
        self, values: Mapping[str, np.ndarray], rng: np.random.Generator, draws: int, tune: int
    ) -> np.ndarray:
        weights: np.ndarray = softmax(self._log_weights(*self.density.arguments(values)))
        return weights


def _one_by_one(
    density: ClassDensity, joint: TensorVariable, position: np.ndarray
) -> Callable[..., np.ndarray]:
    """Return a function from the density's arguments to the logarithms of all class weights.

    It calls a compiled function for every class: numba takes three times as long to compile a loop.
    Hand-written loops give the density with the prior of the latents, which is subtracted.
    """
    written_out, prior = density.written_out, None
    if written_out is None:
        flat = FlatFunction(
            density, lambda k, x, _: [density.place_values(joint, k, x)], "the class weights"
        )
    else:
        flat = FlatFunction(
            density,
            lambda k, x, _: [density.log_density(k, x)],
            "the class weights",
            written_out=written_out,
        )
        k = pt.scalar("class_index", dtype="int64")
        of_latents = density.place_values(density.model.logp(vars=density.latents), k, position)
        prior = compile_with_data(density, [k], of_latents, interpreted_mode())
    nothing = np.zeros(0)

    def log_weights(*arguments: np.ndarray) -> np.ndarray:
        packed, classes = flat.pack(arguments), range(density.n_classes)
        found = np.array([flat.function(k, position, *packed, nothing) for k in classes])
        if prior is not None:
            found -= [prior(np.asarray(k), *arguments) for k in classes]
        return found

    return log_weights
