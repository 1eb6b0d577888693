"""The PyMC step method: a class index and its latents jump together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_value_vars_from_user_vars
from rich.progress import TextColumn
from rich.table import Column

from pymc_mcoem.carlin_chib.geometry import LatentGeometry, geometry_of
from pymc_mcoem.carlin_chib.kernel import (
    PseudoPriorSymbols,
    SweepState,
    build_sweep,
    noise_size,
)
from pymc_mcoem.carlin_chib.pseudo_priors import (
    Laplace,
    PseudoPriorRule,
    PseudoPriors,
    compile_with_data,
)
from pymc_mcoem.carlin_chib.within_class import RandomWalk, WithinClassMove
from pymc_mcoem.density import ClassDensity, as_argument, find_class_index

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["CarlinChib"]

_log = logging.getLogger("pymc_mcoem")

#: How often pseudo-priors are refitted while tuning, where other steps move what they depend on.
N_REFITS = 4


@dataclass_state
class CarlinChibState(StepMethodState):
    """What a chain carries besides its point."""

    tune: bool
    n_tune: int
    n_steps: int
    log_step: np.ndarray
    pseudo_priors: PseudoPriors | None
    n_classes: int = field(metadata={"frozen": True})


class CarlinChib(BlockedStep):
    r"""Carlin-Chib moves of a class index together with continuous latents.

    Every sweep draws the latents of the inactive classes from pseudo-priors, then the class
    index from its full conditional on that extended space, then moves the latents of the chosen
    class by random-walk Metropolis. The model is left as the user wrote it: auxiliary draws
    stay inside the step.

    Parameters
    ----------
    vars : list of TensorVariable, optional
        The class index and the latents. Default: the model's one Categorical variable and all
        free continuous variables.
    class_index : TensorVariable, optional
        The class index, where the model has more than one Categorical variable.
    pseudo_priors : PseudoPriorRule
        `Laplace` (default, every mode search run to its end), `PriorCovariance`, `PilotMoments`,
        or a rule of one's own.
    within_class : WithinClassMove
        Default: ``RandomWalk(n_moves=20)``. ``RandomWalk(n_moves=0)`` leaves the latents to
        other step methods.
    model : pymc.Model, optional
    rng, initial_point, compile_kwargs, blocked
        As PyMC passes them. ``compile_kwargs={"mode": ...}`` chooses the back end.

    Raises
    ------
    ValueError
        If the model has no class index or several of them and none is named, if a latent is
        discrete, or if the density is not finite where the chain starts.

    Notes
    -----
    Label ``alg:MCMC`` of the paper. Pseudo-priors are fitted when a chain starts, refitted
    while tuning if other steps move variables that the latents depend on, and frozen
    afterwards. A chain that starts at the model's own initial point draws a class of its own
    first; initial values given to ``pm.sample`` are kept where they differ from it. What goes
    wrong in a fit is logged by name.

    Cost of a draw: one density evaluation for each class and each random-walk move. Sampler
    statistics: ``class_switched``, ``class_acceptance`` (share of within-class moves accepted)
    and ``class_log_weight`` of shape (n_classes,), the logarithms of the probabilities from
    which the index was drawn.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.3, 0.2])
    ...     x = pm.Normal("x", 2.0 * k, 0.1)
    ...     y = pm.Normal("y", x, 1.0, observed=2.0)
    ...     step = CarlinChib(within_class=RandomWalk(n_moves=2))
    >>> [variable.name for variable in step.vars]
    ['k', 'x']
    """

    name = "carlin_chib"
    default_blocked = True
    default_tune_steps = 200
    _state_class = CarlinChibState
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = {
        "class_switched": (bool, []),
        "class_acceptance": (np.float64, []),
        "class_log_weight": (object, []),
    }

    def __init__(
        self,
        vars: Sequence[TensorVariable] | None = None,
        *,
        class_index: TensorVariable | None = None,
        pseudo_priors: PseudoPriorRule | None = None,
        within_class: WithinClassMove | None = None,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Mapping[str, np.ndarray] | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        model = pm.modelcontext(model)
        index = find_class_index(model) if class_index is None else class_index
        latents = self._choose_latents(model, index, vars)
        density = ClassDensity(model, index, latents)
        density.require_latents()
        geometry = geometry_of(model)
        continuous = [rv for rv in model.free_RVs if rv is not index]
        if latents != continuous:
            # What a family declares is about all its latents in their order.
            geometry = LatentGeometry()
        mode = dict(compile_kwargs or {}).get("mode")
        self.vars = [density.index_value, *density.latent_values]
        self.rng = pm.util.get_random_generator(rng)
        self.n_classes = density.n_classes
        self.tune = True
        self.n_tune = 0
        self.n_steps = 0
        self.pseudo_priors: PseudoPriors | None = None
        self._density = density
        move = within_class if within_class is not None else RandomWalk()
        self._noise_size = noise_size(density.n_classes, density.n_latents, move)
        self._initial_log_step = np.full(
            density.n_classes, move.initial_log_step(density.n_latents)
        )
        self.log_step = self._initial_log_step.copy()
        # One fit a chain: there is no hurry that would excuse a mode that is only half found.
        rule = pseudo_priors if pseudo_priors is not None else Laplace(race=None)
        self._fit = rule.compile(density, geometry, mode)
        self._sweep = self._compile_sweep(density, move, mode)
        # As a function, for the initial point may depend on data that are set later.
        self._initial_point = make_initial_point_fn(model=model)

    @staticmethod
    def _choose_latents(
        model: pm.Model, index: TensorVariable, vars: Sequence[TensorVariable] | None
    ) -> list[TensorVariable]:
        if vars is None:
            return [
                rv
                for rv in model.free_RVs
                if rv is not index and rv.dtype in pm.pytensorf.continuous_types
            ]
        given: list[Any] = list(vars) if isinstance(vars, (list, tuple)) else [vars]
        named = {model.values_to_rvs[v] for v in get_value_vars_from_user_vars(given, model)}
        if index not in named:
            raise ValueError(
                f"vars: {[v.name for v in given]} leave out the class index {index.name}; "
                "add it, since index and latents jump together."
            )
        return [rv for rv in model.free_RVs if rv in named and rv is not index]

    @staticmethod
    def _compile_sweep(density: ClassDensity, move: WithinClassMove, mode: Any) -> Any:
        n_classes, n = density.n_classes, density.n_latents
        noise = pt.tensor("noise", dtype="float64", shape=(noise_size(n_classes, n, move),))
        gain = pt.scalar("gain", dtype="float64")
        index = pt.scalar("class_index", dtype="int64")
        position = pt.tensor("position", dtype="float64", shape=(n,))
        log_step = pt.tensor("log_step", dtype="float64", shape=(n_classes,))
        symbols = PseudoPriorSymbols.create(n_classes, n)
        state, info = build_sweep(
            density, SweepState(index, position, log_step), noise, symbols, gain, move
        )
        return compile_with_data(
            density,
            [noise, gain, index, position, log_step, *symbols.as_list()],
            [
                state.class_index,
                state.position,
                state.log_step,
                pt.special.log_softmax(info.log_weight),
                info.acceptance,
            ],
            mode,
        )

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Forget the last chain: tuning, counters and pseudo-priors belong to one chain."""
        super().setup_chain(rng, tune, draws)
        self.tune = tune > 0
        self.n_tune = tune
        self.n_steps = 0
        self.log_step = self._initial_log_step.copy()
        self.pseudo_priors = None

    def step(self, point: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[Any]]:
        """Make one sweep.

        Parameters
        ----------
        point : dict of str to ndarray
            By value-variable name.

        Returns
        -------
        point : dict of str to ndarray
            A new dictionary.
        stats : list of one dict
        """
        others = self._density.arguments(
            {}, [point[value.name] for value in self._density.other_values]
        )
        assert self._density.index_value is not None
        index_name = self._density.index_value.name
        before = int(point[index_name])
        position = self._density.ravel(point)
        if self.pseudo_priors is None:
            self.pseudo_priors = self._fitted(others)
            default = self._initial_point(0)
            if all(np.array_equal(point[value.name], default[value.name]) for value in self.vars):
                before, position = self.pseudo_priors.start(self.rng)
        elif self._must_refit():
            self.pseudo_priors = self._fitted(others)
        self.n_steps += 1
        gain = 2.0 / np.sqrt(self.n_steps) if self.tune else 0.0
        index, position, self.log_step, log_weight, acceptance = self._sweep(
            self.rng.standard_normal(self._noise_size),
            np.asarray(gain),
            np.asarray(before, dtype=np.int64),
            position,
            self.log_step,
            *map(as_argument, self.pseudo_priors.as_list()),
            *others,
        )
        if not np.isfinite(log_weight).any():
            raise ValueError(
                f"initvals: the log-density is not finite for any class at {index_name} = "
                f"{before}; start the chain where the model has positive density."
            )
        new = dict(point)
        new[index_name] = np.asarray(index, dtype=self._density.index_value.dtype)
        new.update(self._density.unravel(position))
        stats = {
            "class_switched": bool(int(index) != before),
            "class_acceptance": float(acceptance),
            "class_log_weight": log_weight,
        }
        return new, [stats]

    def _fitted(self, others: Sequence[np.ndarray]) -> PseudoPriors:
        """Fit pseudo-priors for the chain's surroundings, and say what went wrong."""
        found = self._fit({}, self.rng, others)
        for trouble, count in found.troubles.items():
            _log.warning(
                "CarlinChib: %s in %d of %d classes; the chain stays exact, but these classes "
                "may be visited too seldom.",
                trouble,
                count,
                self.n_classes,
            )
        return found

    def _must_refit(self) -> bool:
        if not (self.tune and self._density.other_values):
            return False
        return self.n_steps % max(self.n_tune // N_REFITS, 1) == 0

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[Any]]]:
        columns = [
            TextColumn("{task.fields[switches]}", table_column=Column("Switches", ratio=1)),
            TextColumn(
                "{task.fields[acceptance]:0.2f}", table_column=Column("Acceptance", ratio=1)
            ),
        ]
        return columns, {"switches": [0] * n_chains, "acceptance": [0.0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[
        Callable[[Mapping[str, Any]], dict[str, Any]]
    ]:
        switches = 0

        def update(stats: Mapping[str, Any]) -> dict[str, Any]:
            nonlocal switches
            switches += int(stats["class_switched"])
            return {"switches": switches, "acceptance": stats["class_acceptance"]}

        return (update,)

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Say that PyMC does not choose this step by itself: it works on several variables."""
        return Competence.INCOMPATIBLE
