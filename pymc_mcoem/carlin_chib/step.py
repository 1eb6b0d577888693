"""The PyMC step method: a class index and its latents jump together."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import field
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pymc as pm
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state

from pymc_mcoem.carlin_chib.chain import Chain
from pymc_mcoem.carlin_chib.chain_starts import DefaultStart
from pymc_mcoem.carlin_chib.engines import Engine
from pymc_mcoem.carlin_chib.moves.defaults import step_move
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.problem import (
    density_of,
    find_index,
    named_variables,
    other_indices,
    require_settings,
    structure_of,
)
from pymc_mcoem.carlin_chib.progress_columns import progress_columns, progress_update
from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.carlin_chib.step_statistics import SweepStatistics
from pymc_mcoem.carlin_chib.unvisited import UnvisitedClasses
from pymc_mcoem.carlin_chib.unvisited_modes import UnvisitedModes
from pymc_mcoem.compiling.backends import mode_of, uses_jax
from pymc_mcoem.compiling.messages import telling, waiting
from pymc_mcoem.density.class_index import class_prior, count_classes, is_class_index
from pymc_mcoem.interrupts import as_interrupts, raise_if_interrupted

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriorRule

__all__ = ["CarlinChib"]

_log = logging.getLogger("pymc_mcoem")
#: PyMC's logger, in which `pymc.sample` says what it does.
_pymc_log = logging.getLogger("pymc")

#: Most joint values of the model's other class indices for which each value has its own fit.
MAX_FITS = 16
#: Number of last sweeps of tuning that show which modes of other variables a chain visited.
N_SEEN = 500


@dataclass_state
class CarlinChibState(StepMethodState):
    """State that a chain carries besides its point."""

    tune: bool
    n_switches: int
    n_visits: np.ndarray
    unvisited_log_odds: np.ndarray
    unvisited_mode_log_odds: np.ndarray
    chain: Any
    n_classes: int = field(metadata={"frozen": True})


class CarlinChib(BlockedStep):
    r"""Carlin-Chib moves of a class index together with continuous latents.

    Every sweep draws the latents of the inactive classes from pseudo-priors, then the class
    index from its full conditional on that extended space, then moves the latents of the chosen
    class by Metropolis moves. The model is left as the user wrote it: auxiliary draws
    stay inside the step.

    There are three kinds of problems: latents shared by all classes (the default); separate
    latents for each class, named by `blocks`, as in model choice; and a plate, which is a vector
    of indices, each with its own latents along the same first axis.

    Parameters
    ----------
    vars : list of (TensorVariable or str), optional
        The class index and the latents. Default: the model's only Categorical variable and all
        free continuous variables; on a plate only those whose first axis is the plate, and with
        `blocks` only those in a block. Other steps of the same ``pm.sample`` sample the other
        variables.
    class_index : TensorVariable or str, optional
        The class index, if `vars` and the model have several candidates. Shape () or (n_rows,).
    blocks : mapping of int to list of (TensorVariable or str), optional
        The latents of every class, as in ``{0: [a], 1: [b, c]}``; blocks may overlap, and a class
        without latents has ``[]``. In a class whose block does not have a latent, only the latent's
        prior may depend on it: write the model with ``pm.math.switch``. The trace then holds prior
        draws of the latent.
    pseudo_priors : PseudoPriorRule
        `Laplace` (default; it runs every mode search to its end), `PriorCovariance`,
        `PilotMoments`, or a custom rule. A plate accepts only `Laplace`. If a class has several
        modes, `Laplace` makes a mixture of those that it finds; it also accepts starting points.
        By default better pseudo-priors are learned during tuning where these are poor; a rule that
        is given here is kept.
    within_class : WithinClassMove, "default" or None
        By default ``RandomWalk(n_moves=20)`` where no class has more than 15 latents, on plates and
        with `PilotMoments`; else ``Hamiltonian()``, which needs a gradient. `Independence` is
        another move.
        None leaves the latents between jumps to other step methods, as in
        ``step=[CarlinChib(within_class=None), pm.NUTS([x])]``.
    index_move : {"gibbs", "metropolized"}
        How the index is drawn given its weights: by Gibbs, or by proposing one of the other
        classes (Dellaportas, Forster and Ntzoufras 2002), which leaves a class at least as often.
    auxiliaries : {"refreshed", "frozen"}
        Whether the latents of the inactive classes are drawn anew from their pseudo-priors at
        every sweep, or stay where they are until their class is chosen (the frozen sampler of
        Douc, Maire and Olsson 2015). Frozen latents are stored standardized: with
        :math:`\kappa_j` = Normal(m, L Lᵀ), the z in :math:`U_j = m + L z` stays the same.
    jump : AnnealedJump or None
        A jump made after every sweep: another class is proposed and reached in stages. It helps
        with classes that draws from a pseudo-prior hardly ever hit. Not available on a plate.
    equalize_visits : bool
        Multiply the classes' prior probabilities by weights, adapted during tuning and then kept,
        under which all classes are visited equally often. The chain then samples the posterior
        times the weight of the class, so that every draw has the importance weight
        ``exp(-class_equalizing_log_weight[index])``, which `class_index_summary` and
        `class_latents` apply. Not available on a plate.
    model : pymc.Model, optional
    rng, initial_point, compile_kwargs, blocked
        As PyMC passes them. ``compile_kwargs={"backend": ...}`` chooses the back end, "numba" (the
        default), "c" or "jax", as `pymc.sample` does for the steps that it makes itself (its own
        ``backend`` does not reach a step that is given to it); ``{"mode": ...}`` chooses one of
        PyTensor's modes. All of them make the same draws. Parts that JAX cannot compile, such as
        annealed jumps, are left to numba. JAX uses threads: pass ``mp_ctx="spawn"`` to
        `pymc.sample` or sample on one core.

    Raises
    ------
    ValueError
        If the model has no class index, or has several and none is named; if a latent is
        discrete, in no block, or not free although its block says so; if rows of a plate are not
        independent; if the density is not finite where the chain starts; or if the model has
        changed since the step was made.
    TypeError
        If `pseudo_priors`, `within_class` or `jump` is of another kind.

    Notes
    -----
    Label ``alg:MCMC`` of the paper. Pseudo-priors are fitted when a chain starts, refitted
    during tuning if other steps move variables that the latents depend on, and frozen
    afterward. If the density depends on other single class indices, there is a separate fit for
    each of their joint values, up to sixteen. A chain whose index and latents start at the
    model's default, given the other variables, first draws a class and latents. Initial
    values given to ``pm.sample`` are used if they differ from the default; to begin in exactly
    the model's default class, say so in the model: ``pm.Categorical(..., initval=0)``. With
    ``within_class=None`` only the index is compared with the default, because steps before this
    one may have moved the latents. Trouble in a fit is logged by name.

    PyMC samples an angle on the line, where its density is periodic. Here it is multiplied by
    weights that add up to one over all turns of an angle, and a turn is drawn at every sweep: the
    posterior on the circle is exact, and has no edge at ±π.

    If pseudo-priors are mixtures, auxiliaries are drawn from all components, and before each
    sweep the chain is proposed a draw from its class's mixture, which takes it from one mode
    of the class to another. With frozen auxiliaries, and in a `jump`, only the heaviest
    component is used. In a class with a mixture, moves use the covariance of the heaviest
    component wherever the chain is: with a covariance that depends on the position, moves back
    would not be equally likely. In other classes the increments of a random walk take the shape
    of the chain's draws during tuning.

    If the first half of tuning shows that the default pseudo-prior of a class hardly overlaps with
    the chain's draws there, or if a class was never visited, pilot chains explore such classes. A
    mixture of normals is fitted to their draws, where it helps in sinh-arcsinh coordinates and with
    widths that depend on other latents, as in hierarchies. It becomes the larger part of the
    pseudo-prior if it overlaps at least twice as much with draws that were held out, which is
    logged at the level INFO. Small models then make fewer draws a second, and better ones. Learning
    takes some seconds for each class, with hundreds of latents ten; with many latents and random
    walks, up to minutes. If other steps move variables, it comes after seven eighths of tuning and
    only if the chain has stayed in one class; with several class indices, at the present value of
    the others. Plates, frozen auxiliaries, a `jump` and ``within_class=None`` keep the fitted
    pseudo-priors.

    Making the step compiles it, which takes seconds. One step serves many calls of ``pm.sample``,
    also with other data: every chain begins anew. A draw evaluates the density once for each class
    and each random-walk move, or the gradient eight times for a Hamiltonian move; on a plate of all
    rows, with blocks of the whole model.

    Sampler statistics: ``class_of`` (a number made from the index's name), ``class_switched``
    (whether the index switched; on a plate, whether any did), ``class_n_switched`` (how many
    switched), ``class_switches`` (how many since the chain began, tuning included),
    ``class_acceptance`` (share of within-class moves accepted), ``class_log_weight`` of shape
    (n_classes,), on a plate (n_rows * n_classes,), row after row (the logarithms of the index's
    full conditional probabilities given the auxiliaries), and ``class_believed_elsewhere`` (the
    probability of the other classes by the pseudo-priors' evidence; nan without, and on a plate).
    Of shape (n_classes,) are ``class_prior`` (the prior probabilities, by which `bayes_factors`
    divides; nan if they depend on other variables or differ along a plate),
    ``class_unvisited_log_odds`` (of classes that tuning hardly visited, by a search over all
    variables if other steps move some; nan for the others, and on a plate) and
    ``class_missed_share`` (the share of each class's evidence in modes that its pseudo-prior
    misses, on a plate the largest of all rows). A number is ``class_unvisited_mode_log_odds`` (of
    modes of other steps' variables, or joint values of three or more indices, that tuning did not
    visit; nan without an answer). With `jump` there is also ``class_jump_acceptance`` (share of the
    moves along the jump accepted, which should be near the jump's target), and with
    `equalize_visits` there are ``class_equalizing_log_weight`` of shape (n_classes,) (what was
    added to the logarithms of the prior probabilities), ``class_log_importance`` (the logarithm of
    the draw's weight) and ``class_equalizing_of`` (the index that they belong to). If the model has
    several class indices, the names of vectors end in that of the index, as ``class_log_weight_k``,
    since netCDF takes no vectors of one name.

    At the end of tuning the pseudo-priors are checked by the auxiliaries drawn from them since they
    were fitted, and poor ones are named in the log with their Pareto k and effective share; a class
    far below the others is ignored. Where there are few such draws, 500 extra sweeps are made that
    do not affect the chain (on a plate, only with frozen auxiliaries).

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
    default_tune_steps = 500
    _state_class = CarlinChibState
    stats_dtypes_shapes: ClassVar[dict[str, Any]] = SweepStatistics.ALWAYS

    def __init__(
        self,
        vars: Sequence[TensorVariable] | None = None,
        *,
        class_index: TensorVariable | str | None = None,
        blocks: Mapping[int, Sequence[TensorVariable | str]] | None = None,
        pseudo_priors: PseudoPriorRule | None = None,
        within_class: WithinClassMove | Literal["default"] | None = "default",
        index_move: Literal["gibbs", "metropolized"] = "gibbs",
        auxiliaries: Literal["refreshed", "frozen"] = "refreshed",
        jump: AnnealedJump | None = None,
        equalize_visits: bool = False,
        model: pm.Model | None = None,
        rng: Any = None,
        initial_point: Mapping[str, np.ndarray] | None = None,
        compile_kwargs: Mapping[str, Any] | None = None,
        blocked: bool = True,
    ) -> None:
        if not blocked:
            raise ValueError(
                "blocked: got False; an index and the latents that jump with it move together. "
                "Leave it out."
            )
        model = pm.modelcontext(model)
        vars = None if vars is None else named_variables(model, vars)
        index = find_index(model, class_index, vars)
        require_settings(
            index, pseudo_priors, within_class, index_move, auxiliaries, jump, equalize_visits
        )
        mode = mode_of(compile_kwargs)
        with telling(), waiting("Preparing the model"):
            density, geometry = density_of(model, index, vars, blocks)
            if within_class is None:
                move: WithinClassMove = RandomWalk(n_moves=0)
            else:
                # those who look for moments by a pilot chain may have no gradient
                walks = isinstance(pseudo_priors, PilotMoments)
                move = step_move(density, walks) if within_class == "default" else within_class
            self._engine = Engine(
                density,
                geometry,
                pseudo_priors,
                move,
                mode,
                metropolized=index_move == "metropolized",
                jump=jump,
            )
        self._density = self._engine.density
        self.vars = [self._density.index_value, *self._density.latent_values]
        self.rng = pm.util.get_random_generator(rng)
        self.n_classes = self._density.n_classes
        self.tune = True
        self._forget()
        # Other moves use the pseudo-prior as a proposal or as a metric; a plate has too many rows
        # for a covariance each, and a single latent has no shape beyond its step size, which is
        # tuned.
        adapts_shape = isinstance(move, RandomWalk) and bool(
            move.n_moves and not index.ndim and self._density.n_latents > 1
        )
        # A rule that was given stays; jumps and frozen auxiliaries use normals only.
        learns = (
            pseudo_priors is None
            and within_class is not None
            and jump is None
            and auxiliaries == "refreshed"
            and not index.ndim
        )
        self.chain = Chain(
            self._engine,
            DefaultStart(model, index, self._density.latents),
            {} if index.ndim else other_indices(self._density, MAX_FITS),
            adapts_shape=adapts_shape,
            learns=learns,
            equalizes_visits=equalize_visits,
            is_frozen=auxiliaries == "frozen",
            moves_latents=within_class is not None,
        )
        if equalize_visits:
            # logged here, in the user's own process: messages of workers may go unseen
            _log.warning(
                "CarlinChib: equalize_visits: chains visit classes of little weight more often "
                "than in the posterior, and so do averages over their draws; weigh each draw by "
                "exp(-class_equalizing_log_weight[%s]), as class_index_summary and class_latents "
                "do.",
                index.name,
            )
        self._statistics = SweepStatistics(
            str(index.name),
            is_alone=sum(is_class_index(rv) for rv in model.free_RVs) == 1,
            jumps=jump is not None,
            equalizes_visits=equalize_visits,
        )
        self.stats_dtypes_shapes = self._statistics.dtypes_shapes  # type: ignore[misc]
        self.stats_dtypes = [{name: kind for name, (kind, _) in self.stats_dtypes_shapes.items()}]
        self._class_prior = np.full(self.n_classes, np.nan)
        looks = not (index.ndim or equalize_visits)  # equalized visits say nothing of weights
        self._unvisited = UnvisitedClasses(model, self._density) if looks else None
        self._unvisited_modes = None if equalize_visits else UnvisitedModes(self._engine)
        self._made_for = structure_of(model)
        start = model.initial_point(random_seed=0)
        self._made_for_shapes = {value.name: np.shape(start[value.name]) for value in self.vars}
        self._compiles_again = uses_jax(mode)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, and log what that process does first."""
        if self._compiles_again and parent_process() is None:
            _pymc_log.info(
                "CarlinChib: each process compiles for JAX before its first draw; the column "
                "Switches of the progress bar counts the seconds."
            )
        return self.__dict__

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Reset tuning, counters and pseudo-priors, which belong to one chain."""
        self.chain.begin(tune)  # first, because it refuses another thread
        super().setup_chain(rng, tune, draws)
        self.tune = tune > 0
        self._forget()

    def _forget(self) -> None:
        self.n_switches = 0
        self.n_visits = np.zeros(self.n_classes, dtype=np.int64)
        self.unvisited_log_odds = np.full(self.n_classes, np.nan)
        self.unvisited_mode_log_odds = np.full(1, np.nan)
        self._last_point: dict[str, np.ndarray] | None = None
        self._seen: deque[list[np.ndarray]] = deque(maxlen=N_SEEN)
        self._joint_visits: Counter[tuple[int, ...]] = Counter()

    def stop_tuning(self) -> None:
        """Stop tuning, and log the pseudo-priors that have proved poor."""
        super().stop_tuning()
        with as_interrupts():
            poor = self.chain.poor_pseudo_priors(self.rng)
            last, classes, modes = self._last_point, self._unvisited, self._unvisited_modes
            if last is not None and classes is not None:
                self.unvisited_log_odds = classes.log_odds(
                    last, self.n_visits, self.chain.pseudo_priors, self._class_prior
                )
            if last is not None and modes is not None:
                self.unvisited_mode_log_odds[0] = modes.log_odds(last, self._seen, self.rng)
            if last is not None and classes is not None and classes.is_joint:
                found = classes.joint_log_odds(last, self._joint_visits)
                self.unvisited_mode_log_odds = np.fmax(self.unvisited_mode_log_odds, found)
        if poor:
            _log.warning(
                "CarlinChib: %s: poor pseudo-priors of %s. The chain stays exact, but jumps there "
                "are rare: look at the switches, and try a parametrization in which the latents "
                "are closer to normal, other pseudo_priors or jump=AnnealedJump().",
                self._density.index_value.name,
                ", ".join(map(str, poor)),
            )

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

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C inside compiled code, which raises a `SystemError`; ``pm.sample`` then
            returns the draws that it has.
        """
        try:
            if self.chain.n_steps:  # without context managers, which every draw would pay for
                return self._step(point)
            # JAX compiles at the first call; the workers of a run share its terminal.
            with telling(parent_process() is None):
                return self._step(point)
        except Exception as error:
            raise_if_interrupted(error)
            raise

    def _step(self, point: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[Any]]:
        if self.chain.pseudo_priors is None:
            self._require_unchanged(point)
            self._class_prior = class_prior(self._density.model, self._density.class_index)
        made = self.chain.sweep(self.rng, point, self.tune)
        swept = made.swept
        new = dict(point)
        index_value = self._density.index_value
        new[index_value.name] = np.asarray(swept.class_index, dtype=index_value.dtype)
        new.update(self._density.unravel(swept.position))
        switched = swept.class_index != made.started_at
        n_switched = int(np.count_nonzero(switched)) if np.ndim(switched) else int(switched)
        self.n_switches += n_switched
        if self.tune:
            self.n_visits += np.bincount(np.ravel(swept.class_index), minlength=self.n_classes)
            self._last_point = new
            if self._unvisited_modes is not None:
                self._seen.append(self._density.others(new))
            if self._unvisited is not None and self._unvisited.is_joint:
                self._joint_visits[self._unvisited.joint_values(new)] += 1
        stats = self._statistics.of_sweep(
            made,
            n_switched,
            self.n_switches,
            self._class_prior,
            self.unvisited_log_odds,
            self.unvisited_mode_log_odds,
        )
        return new, [stats]

    def _require_unchanged(self, point: Mapping[str, np.ndarray]) -> None:
        """Raise `ValueError` if the model has changed since the step was made for it."""
        shapes = {value.name: np.shape(point[value.name]) for value in self.vars}
        if (
            structure_of(self._density.model) != self._made_for
            or shapes != self._made_for_shapes
            or count_classes(self._density.class_index) != self.n_classes
        ):
            raise ValueError(
                "model: it has other variables, shapes or classes than when CarlinChib was made "
                "for it; make the step anew."
            )

    def _progressbar_config(self, n_chains: int = 1) -> Any:
        return progress_columns(n_chains, compiles=self._compiles_again)

    @staticmethod
    def _make_progressbar_update_functions() -> Any:
        # One function serves all chains of a run, so the chain itself has to supply the counts.
        return (progress_update,)

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Return that PyMC must not assign this step by itself: it takes several variables."""
        return Competence.INCOMPATIBLE
