"""One chain of the step method: the state that it keeps between sweeps besides its point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_mcoem.carlin_chib.chain_fits import ChainFits
from pymc_mcoem.carlin_chib.equal_visits import (
    initial_equalizing_log_weight,
    next_equalizing_log_weight,
)
from pymc_mcoem.carlin_chib.moves.adaptation import ShapeOfMoves
from pymc_mcoem.carlin_chib.pseudo_priors.base import N_STARTS
from pymc_mcoem.compiling.threads import ThreadGuard
from pymc_mcoem.density.prior_starts import PriorStarts

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.chain_starts import DefaultStart
    from pymc_mcoem.carlin_chib.engines import Engine, Swept
    from pymc_mcoem.carlin_chib.pseudo_prior_checks import Verdict
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors

__all__ = ["Chain", "ChainState", "ChainSweep"]


#: Refits of the pseudo-priors during tuning, if other steps move variables that they depend on.
N_REFITS = 4


@dataclass_state
class ChainState(DataClassState):
    """State that a chain carries besides its point."""

    n_tune: int
    n_steps: int
    log_step: np.ndarray
    shape_of_moves: Any
    moves: Any
    pseudo_priors: Any
    fits: Any
    frozen_auxiliaries: Any
    equalizing_log_weight: np.ndarray
    angle_modes: Any


@dataclass(slots=True)  # a frozen one takes five times as long to make, at every draw
class ChainSweep:
    """A sweep that a chain made.

    Attributes
    ----------
    started_at : ndarray of int, shape () or (n_rows,)
        Class index before the sweep.
    equalizing_log_weight : ndarray of shape (n_classes,)
        Log-weights under which the sweep was made.
    believed_elsewhere : float
        Probability of the classes other than `started_at` by the pseudo-priors' evidence.
    missed_share : ndarray of shape (n_classes,)
        Share of each class's evidence in modes that its pseudo-prior misses.
    """

    started_at: np.ndarray
    swept: Swept
    equalizing_log_weight: np.ndarray
    believed_elsewhere: float
    missed_share: np.ndarray


class Chain(WithSamplingState):
    """A chain of sweeps: fits, step sizes and weights, tuned as it goes.

    Parameters
    ----------
    default_start : DefaultStart
        Detects a chain that begins at the model's default, which first draws a class and latents.
    other_indices : dict of int to int
        As `ChainFits` takes them.
    adapts_shape : bool
        Whether random walks take the shape of the chain's draws during tuning.
    learns : bool
        Whether to learn better pseudo-priors while tuning, where those of the fit are poor.
    equalizes_visits : bool
        Whether to adapt weights under which all classes are visited equally often.
    is_frozen : bool
        Whether auxiliaries stay where they are until their class is chosen.
    moves_latents : bool
        Whether the sweep moves the latents; otherwise other steps may have done so before.

    Attributes
    ----------
    n_tune, n_steps : int
        Sweeps of the tuning phase, and sweeps made so far.
    log_step : ndarray of shape (n_classes,), with a jump (n_classes + 1,)
    shape_of_moves : ShapeOfMoves or None
    moves : dict of tuple of int to PseudoPriors
        Normals whose covariances shape random walks, by the values of the other indices.
    pseudo_priors : PseudoPriors or None
        Pseudo-priors of the last sweep; None before the first.
    equalizing_log_weight : ndarray of shape (n_classes,)
    """

    _state_class = ChainState

    def __init__(
        self,
        engine: Engine,
        default_start: DefaultStart,
        other_indices: Mapping[int, int],
        *,
        adapts_shape: bool,
        learns: bool,
        equalizes_visits: bool,
        is_frozen: bool,
        moves_latents: bool,
    ) -> None:
        self._engine = engine
        self._default_start = default_start
        self._adapts_shape = adapts_shape
        self._learns = learns
        self._equalizes_visits = equalizes_visits
        self._is_frozen = is_frozen
        self._moves_latents = moves_latents
        self.fits = ChainFits(engine, other_indices, is_frozen)
        self._thread = ThreadGuard("CarlinChib")
        self.begin(0)

    def begin(self, n_tune: int) -> None:
        """Begin a new chain, with `n_tune` sweeps of tuning."""
        self._thread.begin()
        self.n_tune = n_tune
        self.n_steps = 0
        self.log_step = self._engine.initial_log_step.copy()
        self.shape_of_moves: Any = None
        self.moves: dict[tuple[int, ...], PseudoPriors] = {}
        self.fits.clear()
        self._engine.center_angles(None)
        self.pseudo_priors: Any = None
        self.frozen_auxiliaries: Any = None
        self.equalizing_log_weight = np.zeros(self._engine.density.n_classes)
        self._last: tuple[np.ndarray, np.ndarray, list[np.ndarray]] | None = None

    @property
    def angle_modes(self) -> np.ndarray | None:
        """Modes about which the turns of angles have most weight; see `Engine.center_angles`."""
        return self._engine.angle_modes

    @angle_modes.setter
    def angle_modes(self, modes: np.ndarray | None) -> None:
        self._engine.center_angles(modes)

    def sweep(
        self, rng: np.random.Generator, point: Mapping[str, np.ndarray], tune: bool
    ) -> ChainSweep:
        """Make one sweep from a point by value-variable name."""
        self._thread.enter()
        try:
            return self._sweep(rng, point, tune)
        finally:
            self._thread.leave()

    def _sweep(
        self, rng: np.random.Generator, point: Mapping[str, np.ndarray], tune: bool
    ) -> ChainSweep:
        density = self._engine.density
        others = density.others(point)
        before = np.asarray(point[density.index_value.name], dtype=np.int64)
        is_first = self.pseudo_priors is None
        must_refit = is_first or self._must_refit(tune)
        if is_first and self._engine.density.angles:
            self._engine.center_angles(self._engine.fit(rng, others).mean)
        if must_refit:
            self.fits.fit(rng, others)
        position = self._engine.turned(rng, before, density.ravel(point), others)
        learned = []
        if self._learns and tune and self._learns_now():
            learned = self.fits.learn(rng, others, self.log_step)
            # moves take the shape of the draws that pseudo-priors were learned from
            self.log_step = self.log_step.copy()
            self.log_step[learned] = self._engine.initial_log_step[learned]
        if self._adapts_shape and tune and (must_refit or learned or self._is_due()):
            self._adapt_shape()
        beside = self.fits.values(others)
        self.pseudo_priors = self.fits.by_values[beside]
        if is_first and self._equalizes_visits:
            self.equalizing_log_weight = initial_equalizing_log_weight(
                self.pseudo_priors.log_evidence
            )
        # earlier steps may have moved latents that they share with this one
        draws_start = is_first and self._default_start.holds(point, of_latents=self._moves_latents)
        self.n_steps += 1
        gain = 2.0 / np.sqrt(self.n_steps) if tune else 0.0

        def sweep(index: np.ndarray, x: np.ndarray) -> tuple[Swept, np.ndarray]:
            if self._is_frozen and (draws_start or self.frozen_auxiliaries is None):
                shape = self._engine.auxiliaries_shape
                self.frozen_auxiliaries = rng.standard_normal(shape)
            swept = self._engine.sweep(
                rng,
                gain,
                index,
                x,
                self.log_step,
                self.pseudo_priors,
                others,
                equalizing_log_weight=self.equalizing_log_weight,
                auxiliaries=self.frozen_auxiliaries,
                moves=self.moves.get(beside),
            )
            return swept, np.asarray(~np.isfinite(swept.log_weight).any(axis=-1))

        if draws_start:
            # A pseudo-prior may reach beyond the density's support: draw again if it did. On a
            # plate the rows that have begun go on meanwhile.
            given = index, _ = before, position
            before, position = self.pseudo_priors.draw_start(rng)
            swept, bad = sweep(before, position)
            starts = self._further_starts(rng, others, given)
            while bad.any() and (start := next(starts, None)) is not None:
                before = np.where(bad, start[0], swept.class_index)
                position = np.where(bad[..., None], start[1], swept.position)
                swept, bad = sweep(before, position)
        else:
            swept, bad = sweep(index := before, position)
        if bad.any():
            _require_finite_data(density.model)
            raise ValueError(
                "initvals: the log-density is not finite for any class at "
                f"{density.index_value.name} = {index}; start the chain where the model has "
                f"positive density{_but_for_nan(density.model)}."
            )
        self.log_step = swept.log_step
        if tune:
            self._last = before, position, others
            # the first draws may still be moving away from a poor start
            if self._adapts_shape and self.n_steps > self.n_tune // 8:
                here = int(swept.class_index)
                own = density.without_inactive(here, swept.position)
                self.shape_of_moves.see(here, own)
        self.fits.see(beside, before, swept.log_ratio)
        equalizing = self.equalizing_log_weight
        if self._equalizes_visits and tune:
            self.equalizing_log_weight = next_equalizing_log_weight(
                equalizing, swept.log_weight, self.n_steps
            )
        believed = self.fits.believed_elsewhere(self.pseudo_priors, before, equalizing)
        missed_share = self.fits.missed_share(self.pseudo_priors)
        return ChainSweep(before, swept, equalizing, believed, missed_share)

    def poor_pseudo_priors(self, rng: np.random.Generator) -> list[Verdict]:
        """Return verdicts on the pseudo-priors that have proved poor; `rng` is not advanced."""
        return self.fits.poor(rng, self._last, self.log_step, self.equalizing_log_weight)

    def _further_starts(
        self,
        rng: np.random.Generator,
        others: list[np.ndarray],
        given: tuple[np.ndarray, np.ndarray],
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield starts drawn from the pseudo-priors, then the model's, then draws from the prior.

        The last are needed if a search starts where its class has no density: the pseudo-prior that
        it makes has none either.
        """
        for _ in range(N_STARTS - 1):
            yield self.pseudo_priors.draw_start(rng)
        yield given
        density, shape = self._engine.density, np.shape(given[0])
        values = others if shape else density.arguments({}, others)
        yield from PriorStarts(density)(rng, values, shape)

    def _adapt_shape(self) -> None:
        """Give random walks the shapes of the chain's draws in the classes with enough of them."""
        density, fits = self._engine.density, self.fits.by_values
        if self.shape_of_moves is None:
            self.shape_of_moves = ShapeOfMoves(density.n_classes, density.n_latents)
        shape = self.shape_of_moves
        adapts = np.any([shape.adapts(found) for found in fits.values()], axis=0)
        if adapts.any():
            self.moves = {
                values: shape.adapted(found, density.active) for values, found in fits.items()
            }
        # a step size tuned to another shape does not suit this one
        begins = np.flatnonzero(adapts & ~shape.is_adapted)
        self.log_step = self.log_step.copy()
        self.log_step[begins] = self._engine.initial_log_step[begins]
        shape.is_adapted |= adapts

    def _must_refit(self, tune: bool) -> bool:
        return tune and bool(self._engine.density.other_values) and self._is_due()

    def _learns_now(self) -> bool:
        # once, when no refit follows
        share = 0.875 if self._engine.density.other_values else 0.5
        return self.n_steps == int(share * self.n_tune)

    def _is_due(self) -> bool:
        # The last quarter of tuning is for the step sizes, which depend on the pseudo-priors.
        due = self.n_steps % max(self.n_tune // N_REFITS, 1) == 0
        return due and self.n_steps <= 0.75 * self.n_tune


def _require_finite_data(model: pm.Model) -> None:
    """Raise an error that names observed data with infinite values, if there are some."""
    for rv in model.observed_RVs:
        value = np.asarray(model.rvs_to_values[rv].eval(mode="FAST_COMPILE"))
        if value.dtype.kind == "f" and np.isinf(value).any():
            place = np.argwhere(np.isinf(value))[0].tolist()
            where = f" at index {place}" if place else ""
            raise ValueError(
                f"observed: {rv.name} has inf{where}, where no class has a density; drop such "
                "values."
            )


def _array_of(variable: Variable) -> np.ndarray | None:
    """Return the real numbers that a constant or shared variable of a graph holds."""
    if not isinstance(variable, (Constant, SharedVariable)):
        return None
    value = variable.data if isinstance(variable, Constant) else variable.get_value()
    return value if isinstance(value, np.ndarray) and value.dtype.kind == "f" else None


def _but_for_nan(model: pm.Model) -> str:
    """Return what to do about arrays of a model that hold NaN; nothing if none does."""
    found = []
    for variable in ancestors([*model.basic_RVs, *model.potentials, *model.rvs_to_values.values()]):
        value = _array_of(variable)
        if value is not None and np.isnan(value).any():
            found.append(variable.name or f"an array of shape {value.shape}")
    if not found:
        return ""
    return f", and drop or fill in the NaN in {', '.join(found)}"
