"""Searches for the modes of many observations in lockstep, in JAX.

The steps are those of `pymc_mcoem.laplace.search` and `pymc_mcoem.laplace.newton`: cooling, races
and damping are separate for each observation, whose modes are therefore those of a search alone, up
to rounding. A search is a row. Every round takes rows that have not ended, as many as there are
lanes, so that ended searches and classes out of the race cost nothing.

Importing this module imports JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from jax.scipy.linalg import solve_triangular

from pymc_mcoem.compiling.flat_functions import N_SETTINGS
from pymc_mcoem.compiling.graphs_jax import JaxGraph, compiled
from pymc_mcoem.laplace.modes import ModeStatus
from pymc_mcoem.laplace.newton_jax import by_differences, damped_steps, regular_factors

if TYPE_CHECKING:
    from pymc_mcoem.laplace.search import ModeSearch

__all__ = ["Fits", "LockstepSearch"]

#: Share of the rows that are evaluated together. Three of four classes often leave the race early,
#: and an accelerator takes all rows until then.
_SHARE = 4
#: Smallest number of rows that are evaluated together, if there are as many.
_FEWEST = 8


class Fits(NamedTuple):
    """Normals at the modes of n observations, as arrays of JAX.

    Attributes
    ----------
    mean : array of shape (n, n_classes, n_latents)
    scale, whiten : array of shape (n, n_classes, n_latents, n_latents)
    log_normalizer, log_evidence : array of shape (n, n_classes)
    status : array of int of shape (n, n_classes)
        Positions in `ModeStatus`.
    """

    mean: Any
    scale: Any
    whiten: Any
    log_normalizer: Any
    log_evidence: Any
    status: Any


class _Rows(NamedTuple):
    """Searches under way, one row each; see `newton.Searches`."""

    classes: Any
    observation: Any
    position: Any
    damping: Any
    growth: Any
    log_density: Any
    gradient: Any
    matrix: Any
    lengths: Any
    temperature: Any
    done: Any

    def at(self, places: Any) -> _Rows:
        """Return some rows; a place beyond the last gives the last."""
        return _Rows(*(each.at[places].get(mode="clip") for each in self))

    def known(self, value: Any, gradient: Any, matrix: Any, lengths: Any) -> _Rows:
        """Return these rows with an evaluation at their positions."""
        height = jnp.where(jnp.isfinite(value), value, -jnp.inf)
        return self._replace(log_density=height, gradient=gradient, matrix=matrix, lengths=lengths)


class LockstepSearch:
    """A `ModeSearch` for many observations at once.

    Parameters
    ----------
    search : ModeSearch
        Search of a density with data as inputs.
    starts : ndarray of shape (n_starts, n_latents)
    is_shared : tuple of bool
        Whether each of the density's data is the same for all observations.
    """

    def __init__(self, search: ModeSearch, starts: np.ndarray, is_shared: tuple[bool, ...]) -> None:
        density = search.density
        self._search, self._starts, self._is_shared = search, starts, is_shared
        self._n, self._n_classes = density.n_latents, density.n_classes
        k = pt.scalar("class_index", dtype="int64")
        x = pt.tensor("position", dtype="float64", shape=(self._n,))
        settings = pt.tensor("settings", dtype="float64", shape=(N_SETTINGS,))
        graphs = search.evaluations.graphs(k, x, settings)
        self.graph = JaxGraph(density, [k, x, settings], graphs)
        self._is_bent = len(graphs) > 2
        self._phase = compiled(self._run_phase, static_argnums=(0, 1, 2))
        self._first_share = _SHARE if jax.default_backend() == "cpu" else 1

    def __call__(self, n: int, values: list[Any], shared: list[Any]) -> Fits:
        """Find the modes of n observations.

        Each kind of phase is compiled once, and called with other limits and temperatures.

        Parameters
        ----------
        values : list of array
            The density's data, in its order: ``(n, ...)``, or the same for all observations.
        shared : list of array
            From `JaxGraph.shared` of `graph`.
        """
        search, race = self._search, self._search.race

        def phase(name: str, *arguments: Any) -> Any:
            return self._phase(name, n, share, values, shared, *arguments)

        share = self._first_share
        alive = np.ones((n, self._n_classes, len(self._starts)), dtype=bool)
        rows, temperature = phase("begin", self._starts), np.nan
        if search.cooling is not None:
            # of each class only the first start cools
            cold = alive.copy()
            cold[:, :, 0] = False
            first: Any = ~cold
            for temperature in search.cooling.temperatures:
                rows = phase("heat", rows, first, temperature)
                limit = search.cooling.n_iterations - 1
                rows = phase("run", rows, first, limit, temperature)
                if race is not None:
                    first = phase("within", rows, first, race.margins[0])
            alive = first | cold
        limits = [] if race is None else [race.n_iterations] * len(race.margins)
        for at, limit in enumerate([*limits, search.max_iterations]):
            if at == 0:
                rows, limit = phase("heat", rows, alive, 1.0), limit - 1
            rows = phase("run", rows, alive, limit, 1.0)
            if race is not None and at < len(race.margins):
                alive = phase("raced", rows, alive, race.margins[at])
                share = _SHARE
        found: Fits = phase("fits", rows, alive)
        return found

    def _run_phase(
        self, name: str, n: int, share: int, values: list[Any], shared: list[Any], *arguments: Any
    ) -> Any:
        return getattr(_Steps(self, n, share, values, shared), name)(*arguments)

    def evaluate(
        self, k: Any, x: Any, guess: Any, settings: Any, values: list[Any], shared: list[Any]
    ) -> tuple[Any, ...]:
        """Return log-density, gradient, curvature and metric of steps at one position."""
        if self._is_bent:
            return tuple(self.graph(k, x, settings, *values, *shared))

        def slope(point: Any) -> Any:
            return tuple(self.graph(k, point, settings, *values, *shared))

        return by_differences(slope, x, guess)


class _Steps:
    """The steps of a search for n observations, as functions of its rows."""

    def __init__(
        self, whole: LockstepSearch, n: int, share: int, values: list[Any], shared: list[Any]
    ) -> None:
        self._whole, self._values, self._shared = whole, values, shared
        self._n, self._n_classes = n, whole._n_classes
        self._search = whole._search
        self._n_rows = n * whole._n_classes * len(whole._starts)
        self._lanes = min(self._n_rows, max(self._n_rows // share, _FEWEST))
        self._dtype = jnp.zeros(()).dtype
        self._limits: Any = np.finfo(self._dtype)

    def begin(self, starts: Any) -> _Rows:
        """Return searches from all starts in all classes of all observations."""
        n, n_classes, (n_starts, size) = self._n, self._n_classes, starts.shape
        total = self._n_rows
        return _Rows(
            classes=jnp.tile(jnp.repeat(jnp.arange(n_classes), n_starts), n),
            observation=jnp.repeat(jnp.arange(n), n_classes * n_starts),
            position=jnp.tile(jnp.asarray(starts, self._dtype), (n * n_classes, 1)),
            damping=jnp.full(total, self._search.damping.first, self._dtype),
            growth=jnp.full(total, 2.0, self._dtype),
            log_density=jnp.full(total, -jnp.inf, self._dtype),
            gradient=jnp.zeros((total, size), self._dtype),
            matrix=jnp.tile(jnp.eye(size, dtype=self._dtype), (total, 1, 1)),
            lengths=jnp.tile(jnp.eye(size, dtype=self._dtype), (total, 1, 1)),
            temperature=jnp.full(total, jnp.nan, self._dtype),
            done=jnp.zeros(total, dtype=bool),
        )

    def _evaluate(self, rows: _Rows, x: Any, temperature: Any, share: float) -> tuple[Any, ...]:
        """Evaluate the densities of rows at positions x."""
        is_shared = self._whole._is_shared
        own = [
            value if same else value[rows.observation]
            for value, same in zip(self._values, is_shared, strict=True)
        ]
        axes = [None if same else 0 for same in is_shared]
        settings = jnp.stack([jnp.asarray(each, self._dtype) for each in (temperature, share)])

        def one(k: Any, at: Any, guess: Any, *values: Any) -> tuple[Any, ...]:
            return self._whole.evaluate(k, at, guess, settings, list(values), self._shared)

        return jax.vmap(one, in_axes=(0, 0, 0, *axes))(rows.classes, x, rows.matrix, *own)

    def _in_chunks(self, wanted: Any, change: Callable[[Any, Any], Any], held: Any) -> Any:
        """Apply `change` to `held` for all rows in `wanted`, as many at a time as there are lanes.

        `change` takes their indices, some of which may be beyond the last row, and `held`.
        """

        def go_on(state: tuple[Any, Any]) -> tuple[Any, Any]:
            left, held = state
            places = self._some(left)
            return left.at[places].set(False, mode="drop"), change(places, held)

        return jax.lax.while_loop(lambda state: state[0].any(), go_on, (wanted, held))[1]

    def _some(self, wanted: Any) -> Any:
        (places,) = jnp.nonzero(wanted, size=self._lanes, fill_value=self._n_rows)
        return places

    def heat(self, rows: _Rows, alive: Any, temperature: Any) -> _Rows:
        """Set another temperature of searches, and evaluate their densities at it."""
        found: _Rows = self._in_chunks(
            alive.ravel(), lambda at, held: self._heat(at, held, temperature), rows
        )
        return found

    def run(self, rows: _Rows, alive: Any, limit: Any, temperature: Any) -> _Rows:
        """Continue searches for `limit` iterations, or until they end."""
        left = jnp.where(alive.ravel() & (rows.log_density > -jnp.inf), limit, 0)

        def go_on(state: tuple[_Rows, Any]) -> tuple[_Rows, Any]:
            rows, left = state
            places = self._some((left > 0) & ~rows.done)
            own, helps = self._iterate(rows.at(places), temperature)
            left = left.at[places].set(jnp.where(helps, left.at[places].get() - 1, 0), mode="drop")
            return _put(rows, places, own), left

        def is_under_way(state: tuple[_Rows, Any]) -> Any:
            return ((state[1] > 0) & ~state[0].done).any()

        return jax.lax.while_loop(is_under_way, go_on, (rows, left))[0]

    def _heat(self, places: Any, rows: _Rows, temperature: Any) -> _Rows:
        """Set another temperature of rows and evaluate their densities; see `Searches.heat`."""
        own = rows.at(places)
        is_known = jnp.isfinite(own.log_density)
        ratio = own.temperature / temperature if self._search.measured_by_prior else 1.0
        first = self._search.damping.first
        own = own._replace(
            damping=jnp.where(is_known, own.damping * ratio, first),
            temperature=jnp.full_like(own.temperature, temperature),
            matrix=jnp.broadcast_to(jnp.eye(own.matrix.shape[1]), own.matrix.shape),
            done=jnp.zeros_like(own.done),
        )
        return _put(rows, places, own.known(*self._evaluate(own, own.position, temperature, 1.0)))

    def _iterate(self, rows: _Rows, temperature: Any) -> tuple[_Rows, Any]:
        """Take one step of each row; return also where some damping helped; see `newton`."""
        damping = self._search.damping
        step, used = damped_steps(
            rows.matrix, rows.lengths, rows.gradient, rows.damping, damping.least, damping.raising
        )
        helps = used < jnp.inf
        step = jnp.where(helps[:, None], step, 0.0)
        used = jnp.where(helps, used, 0.0)
        candidate = rows.position + step
        value, *found = self._evaluate(rows, candidate, temperature, 1.0)
        gain = 0.5 * (rows.gradient * step).sum(axis=1)
        length = (step * jnp.einsum("nab,nb->na", rows.lengths, step)).sum(axis=1)
        expected = gain + 0.5 * used * length
        gained = jnp.where(jnp.isfinite(value), value - rows.log_density, -jnp.inf)
        # 1e-14 in double precision
        rounding = 45.0 * float(self._limits.eps) * (1.0 + jnp.abs(rows.log_density))
        is_measurable = expected > rounding
        ratio = jnp.where(is_measurable, gained / jnp.where(is_measurable, expected, 1.0), 1.0)
        hardly = (used * length <= 0.2 * gain) & (gain > 0.0)
        done = (gain < self._search.tolerance) & (hardly | (used < damping.free))
        lowest = jnp.where((jnp.abs(ratio - 1.0) < 0.05) & (used < damping.free), 0.0, 0.2)
        lower = used * jnp.maximum(lowest, 1.0 - (2.0 * ratio.clip(-1e3, 1e3) - 1.0) ** 3)
        taken = gained >= -rounding
        raised = jnp.maximum(used, 1e-3) * rows.growth
        there = rows._replace(position=candidate).known(value, *found)
        moved = _chosen(taken & helps, there, rows)
        return moved._replace(
            damping=jnp.where(
                helps,
                jnp.where(taken, jnp.where(lower < 1e-6, 0.0, lower), raised),
                rows.damping,
            ),
            growth=jnp.where(helps, jnp.where(taken, 2.0, 2.0 * rows.growth), rows.growth),
            done=jnp.where(helps, done, rows.done),
        ), helps

    def raced(self, rows: _Rows, alive: Any, margin: Any) -> Any:
        """Return the rows that stay alive after a round: one start per class, within a margin."""
        # not those stopped under more noise, whose densities differ
        return self.within(rows, alive & self._best_of(self._ahead(rows, alive)), margin)

    def within(self, rows: _Rows, alive: Any, margin: Any) -> Any:
        """Return those alive that may still come within a margin; see `Searches.within`."""
        race = self._search.race
        assert race is not None
        finite = jnp.where(jnp.isfinite(rows.log_density), rows.log_density, -jnp.inf)
        height = jnp.where(alive, finite.reshape(alive.shape), -jnp.inf)
        least = height.max(axis=(1, 2), keepdims=True) - margin
        behind = alive & (height < least)
        if race.trust > 0:
            promised = self._in_chunks(
                behind.ravel(),
                lambda at, held: held.at[at].set(self._promised(rows.at(at)), mode="drop"),
                jnp.zeros(self._n_rows, self._dtype),
            )
            height = height + race.trust * promised.reshape(alive.shape)
        # where no search has a density, none is behind another
        return alive & ~(height < least)

    def _promised(self, rows: _Rows) -> Any:
        """Return the expected gains of next Newton steps, with a ridge where needed."""
        known = jnp.isfinite(rows.gradient).all(axis=1) & jnp.isfinite(rows.matrix).all(axis=(1, 2))
        identity = jnp.eye(rows.matrix.shape[1])
        matrix = jnp.where(known[:, None, None], rows.matrix, identity)
        gradient = jnp.where(known[:, None], rows.gradient, 0.0)
        size = jnp.abs(jnp.diagonal(matrix, axis1=1, axis2=2)).max(axis=1, initial=1e-8)
        ridge = size[:, None, None] * identity
        step, used = damped_steps(matrix, ridge, gradient, jnp.zeros_like(size), 1e-2, 10.0)
        promise = 0.5 * (gradient * jnp.where(used[:, None] < jnp.inf, step, 0.0)).sum(axis=1)
        return jnp.where(known, promise, 0.0)

    def _ahead(self, rows: _Rows, alive: Any) -> Any:
        """Return the start that leads in each class, (n, n_classes); see `Searches.ahead`."""
        height = rows.log_density.reshape(alive.shape)
        height = jnp.where(jnp.isnan(height), -jnp.inf, height)
        comparable = (rows.temperature == 1.0).reshape(alive.shape)
        first = jnp.zeros_like(alive).at[:, :, 0].set(True)
        any_alive = alive.any(axis=2, keepdims=True)
        any_comparable = comparable.any(axis=2, keepdims=True)
        compared = jnp.where(any_alive, alive, jnp.where(any_comparable, comparable, first))
        least = self._limits.min
        return jnp.argmax(jnp.where(compared, jnp.maximum(height, least), -jnp.inf), axis=2)

    def _best_of(self, leading: Any) -> Any:
        """Return which rows lead, (n, n_classes, n_starts)."""
        n_starts = self._n_rows // (self._n * self._n_classes)
        return jax.nn.one_hot(leading, n_starts, dtype=bool)

    def fits(self, rows: _Rows, alive: Any) -> Fits:
        """Return normals where the leading searches ended, with statuses."""
        leading = self._ahead(rows, alive)
        n, n_classes, n_starts = alive.shape
        size, dtype = rows.position.shape[1], self._dtype
        wanted = self._best_of(leading).ravel()
        held = {
            "height": jnp.full(self._n_rows, -jnp.inf, dtype),
            "factor": jnp.zeros((self._n_rows, size, size), dtype),
            "ridged": jnp.zeros(self._n_rows, dtype=bool),
        }

        def look(places: Any, held: dict[str, Any]) -> dict[str, Any]:
            own = rows.at(places)
            value, _, precision, _ = self._evaluate(own, own.position, 1.0, 0.0)
            factor, ridged = regular_factors(precision)
            height = jnp.where(jnp.isfinite(value), value, -jnp.inf)
            found = {"height": height, "factor": factor, "ridged": ridged}
            return {name: held[name].at[places].set(found[name], mode="drop") for name in held}

        held = self._in_chunks(wanted, look, held)
        places = jnp.arange(n * n_classes).reshape((n, n_classes)) * n_starts + leading
        height, factor = held["height"][places], held["factor"][places]
        status = jnp.select(
            [
                ~jnp.isfinite(height),
                ~alive.ravel()[places],
                held["ridged"][places],
                ~rows.done[places],
            ],
            [_place(each) for each in _FAILURES],
            _place(ModeStatus.CONVERGED),
        )
        whiten = jnp.swapaxes(factor, -1, -2)
        identity = jnp.broadcast_to(jnp.eye(size, dtype=dtype), whiten.shape)
        scale = solve_triangular(whiten, identity, lower=False)
        half_log_det = jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1)
        normalizer = half_log_det - 0.5 * size * np.log(2 * np.pi)
        return Fits(rows.position[places], scale, whiten, normalizer, height - normalizer, status)


#: In the order in which `ModeSearch` names them.
_FAILURES = (
    ModeStatus.NO_DENSITY,
    ModeStatus.OUT_OF_RACE,
    ModeStatus.INDEFINITE,
    ModeStatus.NOT_CONVERGED,
)


def _place(status: ModeStatus) -> int:
    return list(ModeStatus).index(status)


def _put(rows: _Rows, places: Any, own: _Rows) -> _Rows:
    """Return rows with some of them replaced."""
    return _Rows(
        *(
            each if name in ("classes", "observation") else each.at[places].set(new, mode="drop")
            for name, each, new in zip(_Rows._fields, rows, own, strict=True)
        )
    )


def _chosen(where: Any, there: _Rows, here: _Rows) -> _Rows:
    """Return the rows of one where a condition holds, else those of another."""

    def choose(one: Any, other: Any) -> Any:
        return jnp.where(where.reshape((-1, *[1] * (one.ndim - 1))), one, other)

    return _Rows(*map(choose, there, here))
