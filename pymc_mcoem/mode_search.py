"""Search for mode and curvature of a log-density in every class of a model, compiled once.

Damped Newton steps: (P + μ D) δ = g of gradient g and curvature P, which is minus the Hessian where
that is written out, else a Gauss-Newton matrix where one is given, else minus the Hessian by
automatic differentiation; D is its absolute diagonal. μ follows the ratio of what a step
gained and what it was to gain, and grows at once where P + μ D is not positive definite. One
search is one compiled loop.

Applicability: continuous latents, a density with a gradient. Cost: an iteration evaluates density,
gradient and curvature once and solves one linear system; five to fifty iterations are usual. A
multimodal density needs several starting points, or a noise that is first enlarged (`Cooling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import deep_copy_op
from pytensor.conditional.op import ifelse
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph

from pymc_mcoem.backends import backend_of
from pymc_mcoem.density import ClassDensity, as_argument
from pymc_mcoem.loops import compile_search
from pymc_mcoem.modes import Modes, ModeStatus, positive_definite

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.carlin_chib.geometry import Curvature

__all__ = ["Cooling", "ModeSearch", "Race"]

#: Damping that a search begins with, and the least that stands in for one that failed.
_FIRST_DAMPING, _LEAST_RAISED = 1e-3, 1e-2


@dataclass(frozen=True)
class Cooling:
    """Searches that begin with more noise than there is, under which densities have fewer modes.

    At each temperature, the hottest first, searches run `n_iterations` with the variance of the
    observation's noise multiplied by it; then they go on at 1. Only for models that name that
    variance (`Family.noise_variance`), as template mixtures do. From several starting points only
    the first cools, for under much noise all would end in one point; the others begin as they are.

    Parameters
    ----------
    temperatures : tuple of float
        Above 1, falling.
    n_iterations : int
        At each of them.

    Raises
    ------
    ValueError
        If there is no temperature, they do not fall or are not above 1, or `n_iterations` is not
        positive.
    """

    temperatures: tuple[float, ...] = (30.0, 5.0)
    n_iterations: int = 8

    def __post_init__(self) -> None:
        falling = all(a > b for a, b in zip(self.temperatures, self.temperatures[1:], strict=False))
        if not self.temperatures or not falling or not self.temperatures[-1] > 1:
            raise ValueError(
                f"temperatures: got {self.temperatures}; give at least one, above 1 and falling."
            )
        if self.n_iterations < 1:
            raise ValueError(f"n_iterations: got {self.n_iterations}; give at least 1.")


@dataclass(frozen=True)
class Race:
    """How classes and starting points compete before modes are sought in earnest.

    Every starting point of every class runs `n_iterations`, and the best start of a class goes on.
    Classes go on only while their log-density is within `margin` of the best class's, or would be
    with twice what the next Newton step promises: a search that is still far from its mode is not
    judged by where it is. Searches that cool are held to the same margin at each temperature. A
    class that is left behind keeps its unfinished point: as a pseudo-prior that costs mixing where
    the class deserved better, never correctness (``benchmarks/mode_race.py``).

    Parameters
    ----------
    n_iterations : int
    margin : float
        In units of the log-density.

    Raises
    ------
    ValueError
        If either is not positive.
    """

    n_iterations: int = 8
    margin: float = 100.0

    def __post_init__(self) -> None:
        if self.n_iterations < 1:
            raise ValueError(f"n_iterations: got {self.n_iterations}; give at least 1.")
        if not self.margin > 0:
            raise ValueError(f"margin: got {self.margin}; give a positive number or infinity.")


@dataclass
class _Searches:
    """Searches under way, one row each."""

    classes: np.ndarray
    position: np.ndarray
    damping: np.ndarray
    log_density: np.ndarray
    gradient: np.ndarray
    matrix: np.ndarray
    done: np.ndarray
    n_iterations: np.ndarray

    @classmethod
    def begin(cls, classes: np.ndarray, starts: np.ndarray) -> _Searches:
        """Return searches from starts ``(n_classes, n_starts, n_latents)``, class by class."""
        rows = np.repeat(classes, starts.shape[1])
        n, size = len(rows), starts.shape[2]
        return cls(
            rows,
            starts.reshape(n, size).copy(),
            np.full(n, _FIRST_DAMPING),
            np.full(n, -np.inf),
            np.zeros((n, size)),
            np.tile(np.eye(size), (n, 1, 1)),
            np.zeros(n, dtype=bool),
            np.zeros(n, dtype=int),
        )

    def within(self, rows: np.ndarray, margin: float) -> np.ndarray:
        """Return those rows that may still come within a margin of the highest of them.

        One that is further behind may, if twice what its next Newton step promises would do.
        """
        height = self.log_density[rows]
        height = np.where(np.isfinite(height), height, -np.inf)
        least = height.max(initial=-np.inf) - margin
        kept = [
            value >= least or value + 2.0 * self._promised(row) >= least
            for row, value in zip(rows, height, strict=True)
        ]
        found: np.ndarray = rows[np.array(kept, dtype=bool)]
        return found

    def _promised(self, row: int) -> float:
        """Return what the next Newton step of a search promises; 0 if nothing."""
        gradient, matrix = self.gradient[row], self.matrix[row]
        if not (np.isfinite(gradient).all() and np.isfinite(matrix).all()):
            return 0.0
        precision, _ = positive_definite(matrix)
        return 0.5 * float(gradient @ np.linalg.solve(precision, gradient))

    def best(self, rows: np.ndarray) -> int:
        """Return the one of some rows with the highest density."""
        height = self.log_density[rows]
        return int(rows[np.argmax(np.where(np.isnan(height), -np.inf, height))])


class ModeSearch:
    """Compiled search for the mode and curvature of a `ClassDensity` at given classes.

    Parameters
    ----------
    density : ClassDensity
    gauss_newton : TensorVariable or None
        Matrix ``(n_latents, n_latents)`` in variables of the model that replaces minus the Hessian.
    max_iterations : int
        At the density itself; what cooling takes comes before.
    tolerance : float
        The search ends when the expected gain of the next step, δᵀg / 2, is below it: an
        error of the log-density, hence without units.
    race : Race or None
        How starts and classes compete first; None: every search runs to its end.
    curvature : Curvature or None
        Minus the Hessian written out; the precision that is returned is then the Gauss-Newton
        matrix that it contains, and `gauss_newton` is not used.
    noise_variance : str or None
        Name of the ``pm.Data`` that cooling multiplies.
    cooling : Cooling or None
        Without a `noise_variance` there is none.
    mode : str or None
        PyTensor's compilation mode.

    Raises
    ------
    ValueError
        If `max_iterations` or `tolerance` is not positive, or `noise_variance` names no
        ``pm.Data`` of the model.
    """

    def __init__(
        self,
        density: ClassDensity,
        gauss_newton: TensorVariable | None = None,
        *,
        max_iterations: int = 50,
        tolerance: float = 1e-8,
        race: Race | None = None,
        curvature: Curvature | None = None,
        noise_variance: str | None = None,
        cooling: Cooling | None = None,
        mode: Any = None,
    ) -> None:
        if max_iterations < 1:
            raise ValueError(f"max_iterations: got {max_iterations}; give at least 1.")
        if not tolerance > 0:
            raise ValueError(f"tolerance: got {tolerance}; give a positive number.")
        self.density = density
        self.max_iterations = max_iterations
        self.tolerance = tolerance
        self.race = race
        self.cooling = None if noise_variance is None else cooling
        n = density.n_latents
        # numba factorises what is chosen alone; other back ends take long to choose
        choose = ifelse if backend_of(mode) == "numba" else pt.switch
        identity = pt.constant(np.eye(n))
        # tolerance, temperature, share of the residuals: a vector, for numba is slow to take in
        # arrays without an axis
        settings = pt.tensor("settings", dtype="float64", shape=(3,))

        def evaluate(k: Any, x: Any, settings: Any) -> tuple[Any, Any, Any]:
            if curvature is not None:
                matrix = density.place(curvature.matrix, k, x)
            elif gauss_newton is not None:
                matrix = density.place(gauss_newton, k, x)
            else:
                matrix = density.negative_hessian(k, x)
            # Operators with written-out gradients are opened before the loop is made: its
            # rewrites would otherwise leave values and gradients with separate matrix products.
            # And all are brought to one form, for the curvature was not derived from the density:
            # what they share would else be computed for either.
            found = [density.log_density(k, x), density.gradient(k, x), matrix]
            found = clone_replace(found, self._replaced(settings, noise_variance, curvature))
            for rewrites in (("inline_ofg_expansion",), ("merge",), ("canonicalize",), ("merge",)):
                found = rewrite_graph(found, include=rewrites)
            log_p, gradient, matrix = found
            return log_p, gradient, matrix

        def improve(
            x: Any,
            log_p: Any,
            gradient: Any,
            matrix: Any,
            damping: Any,
            growth: Any,
            k: Any,
            settings: Any,
        ) -> Any:
            scale = pt.maximum(pt.abs(pt.diagonal(matrix)), 1e-10)
            raised = pt.maximum(10.0 * damping, _LEAST_RAISED)
            low, high = (
                pt.linalg.cholesky(
                    matrix + identity * (each * scale)[None, :], lower=True, on_error="nan"
                )
                for each in (damping, raised)
            )
            indefinite = pt.isnan(low[0, 0])
            factor = choose(indefinite, high, low)
            used = pt.switch(indefinite, raised, damping)
            step = pt.linalg.cho_solve((factor, True), gradient, check_finite=False)
            first = pt.isinf(log_p)
            step = pt.switch(first, pt.zeros_like(step), step)
            solved = pt.invert(pt.isnan(step[0]))
            candidate = pt.switch(solved, x + step, x)
            new_log_p, new_gradient, new_matrix = evaluate(k, candidate, settings)
            finite = pt.invert(pt.isnan(new_log_p) | pt.isinf(new_log_p))
            gain = 0.5 * pt.sum(gradient * step)
            # δᵀg − δᵀPδ / 2, of (P + μD) δ = g
            expected = gain + 0.5 * used * pt.sum(scale * pt.sqr(step))
            before = pt.switch(first, 0.0, log_p)
            gained = pt.switch(finite, new_log_p, before) - before
            # what is lost in the rounding of the density is believed
            rounding = 1e-14 * (1.0 + pt.abs(before))
            better = solved & finite & (first | pt.ge(gained, -rounding))
            told = pt.gt(expected, rounding)
            ratio = pt.clip(gained / pt.switch(told, expected, 1.0), -1e3, 1e3)
            ratio = pt.switch(told, ratio, 1.0)
            # where the density is as quadratic as a nearly free step takes it to be, damping only
            # delays
            free = pt.lt(pt.abs(ratio - 1.0), 0.05) & pt.lt(used, 1e-2)
            least = pt.switch(free, 0.0, 0.2)
            trusted = used * pt.maximum(least, 1.0 - (2.0 * ratio - 1.0) ** 3)
            lowered = pt.switch(pt.lt(trusted, 1e-6), 0.0, trusted)
            # A damped step promises too little: only a nearly free one may end the search.
            done = solved & pt.invert(first) & pt.lt(gain, settings[0]) & pt.lt(used, 1e-2)
            stuck = pt.gt(used, 1e12)
            failed = pt.maximum(used, 1e-3) * growth
            return [
                pt.specify_shape(pt.switch(better, candidate, x), (n,)),
                pt.switch(better, new_log_p, log_p),
                # the copy is contiguous as the zeros of the start are: else the loop's body
                # would be compiled twice, for either kind of array
                deep_copy_op(pt.specify_shape(pt.switch(better, new_gradient, gradient), (n,))),
                pt.specify_shape(pt.switch(better, new_matrix, matrix), (n, n)),
                pt.switch(first & finite, damping, pt.switch(better, lowered, failed)),
                pt.switch(better, 2.0, 2.0 * growth),
                done,
            ], done | stuck

        k = pt.scalar("class_index", dtype="int64")
        start = pt.tensor("start", dtype="float64", shape=(n,))
        damping = pt.tensor("damping", dtype="float64", shape=(1,))
        limit = pt.scalar("max_iterations", dtype="int64")
        self._function = compile_search(
            density,
            improve,
            inputs=[k, start, damping, settings, limit],
            limit=limit,
            carried=[
                start,
                pt.constant(-np.inf, dtype="float64"),
                pt.zeros((n,)),
                pt.eye(n),
                damping[0],
                pt.constant(2.0, dtype="float64"),
            ],
            n_emitted=1,
            fixed=[k, settings],
            mode=mode,
        )

    def _replaced(
        self, settings: Any, noise_variance: str | None, curvature: Curvature | None
    ) -> dict[Any, Any]:
        """Return what stands in for symbols of the model: more noise, the residuals' share."""
        replaced = {}
        if noise_variance is not None:
            known = {variable.name: variable for variable in self.density.model.data_vars}
            if noise_variance not in known:
                raise ValueError(
                    f"noise_variance: got {noise_variance!r}, which is no pm.Data of the model; "
                    f"choose from {sorted(known)}, or None for searches that do not cool."
                )
            shared: Any = known[noise_variance]
            noise = self.density.data_inputs.get(noise_variance, shared)
            replaced[noise] = noise * settings[1]
        if curvature is not None:
            replaced[curvature.residual_share] = settings[2]
        return replaced

    def __call__(
        self,
        starts: np.ndarray,
        data: Mapping[str, np.ndarray],
        others: Sequence[np.ndarray] = (),
        *,
        classes: np.ndarray | None = None,
    ) -> Modes:
        """Search from every start in every class and keep the highest mode of each class.

        Parameters
        ----------
        starts : ndarray of shape (n_starts, n_latents) or (n_classes, n_starts, n_latents)
            Never the present latents of a chain whose pseudo-priors these modes make.
        data : mapping of str to ndarray
            Values of the density's `data_inputs`.
        others : sequence of ndarray
            Values of the density's `other_values`.
        classes : ndarray of int of shape (n,), optional
            Classes to search in; by default all of them.

        Returns
        -------
        Modes
            One for each of `classes`.
        """
        asked = np.arange(self.density.n_classes) if classes is None else np.asarray(classes)
        starts = np.asarray(starts, dtype=np.float64)
        if starts.ndim == 2:
            starts = np.broadcast_to(starts, (len(asked), *starts.shape))
        arguments = tuple(self.density.arguments(data, others))
        searches = _Searches.begin(asked, as_argument(starts))
        rows = np.arange(len(searches.classes)).reshape(len(asked), -1)
        alive, cold = rows.ravel(), rows[:, 1:].ravel()
        if self.cooling is not None:
            # Under much noise all starts of a class would end in one point: only the first cools.
            alive = rows[:, 0]
            for temperature in self.cooling.temperatures:
                self._run(searches, alive, self.cooling.n_iterations, arguments, temperature)
                if self.race is not None:
                    alive = searches.within(alive, self.race.margin)
            alive = np.sort(np.concatenate([alive, cold]))
        if self.race is not None:
            self._run(searches, alive, self.race.n_iterations, arguments)
            # not those left behind under more noise, whose densities are others
            alive = np.intersect1d(self._ahead(searches, rows, alive), alive)
            alive = searches.within(alive, self.race.margin)
        self._run(searches, alive[~searches.done[alive]], self.max_iterations, arguments)
        chosen = self._ahead(searches, rows, alive)
        return self._modes(searches, chosen, np.isin(chosen, alive), arguments)

    @staticmethod
    def _ahead(searches: _Searches, rows: np.ndarray, alive: np.ndarray) -> np.ndarray:
        """Return the best row of each class, of those alive where there is one."""
        found = []
        for own in rows:
            living = own[np.isin(own, alive)]
            found.append(searches.best(living) if living.size else own[0])
        return np.array(found)

    def _run(
        self,
        searches: _Searches,
        rows: np.ndarray,
        limit: int,
        arguments: tuple[Any, ...],
        temperature: float = 1.0,
    ) -> None:
        """Let searches go on for so many iterations, or to where they end."""
        settings = np.array([self.tolerance, temperature, 1.0])
        for row in rows:
            outputs = self._function(
                np.asarray(searches.classes[row], dtype=np.int64),
                searches.position[row],
                searches.damping[row : row + 1],
                settings,
                np.asarray(limit),
                *arguments,
            )
            position, log_density, gradient, matrix, damping, _, done, n_iterations = outputs
            searches.position[row] = position
            searches.log_density[row] = log_density
            searches.gradient[row] = gradient
            searches.matrix[row] = matrix
            searches.done[row] = done and temperature == 1
            # with another noise trust begins anew
            searches.damping[row] = damping if temperature == 1 else _FIRST_DAMPING
            searches.n_iterations[row] += int(n_iterations)

    def _modes(
        self,
        searches: _Searches,
        rows: np.ndarray,
        followed: np.ndarray,
        arguments: tuple[Any, ...],
    ) -> Modes:
        """Evaluate the density where searches ended, and name how they did.

        Those that were left behind may have been under more noise, and where the curvature is
        written out precisions are those of Gauss and Newton.
        """
        settings = np.array([self.tolerance, 1.0, 0.0])
        found = [
            self._function(
                np.asarray(searches.classes[row], dtype=np.int64),
                searches.position[row],
                np.array([_FIRST_DAMPING]),
                settings,
                np.asarray(1),
                *arguments,
            )
            for row in rows
        ]
        log_density, gradient, precision = (
            np.stack([outputs[place] for outputs in found]) for place in (1, 2, 3)
        )
        status = []
        for place, row in enumerate(rows):
            precision[place], ridged = positive_definite(precision[place])
            if not np.isfinite(log_density[place]):
                status.append(ModeStatus.NO_DENSITY)
            elif ridged:
                status.append(ModeStatus.INDEFINITE)
            elif not followed[place]:
                status.append(ModeStatus.OUT_OF_RACE)
            elif not searches.done[row]:
                status.append(ModeStatus.NOT_CONVERGED)
            else:
                status.append(ModeStatus.CONVERGED)
        return Modes(
            searches.position[rows],
            precision,
            log_density,
            np.abs(gradient).max(axis=1, initial=0.0),
            searches.n_iterations[rows],
            tuple(status),
        )
