"""Search for mode and curvature of a log-density in every class of a model, compiled once.

Damped Newton steps: (P + μ M) δ = g of gradient g and curvature P, which is minus the Hessian where
that is written out, else a Gauss-Newton matrix where one is given, else minus the Hessian by
automatic differentiation. M measures how long a step is: the precision of the latents' prior where
that is known, by which a step of length one is as far as the prior is wide, else the absolute
diagonal of P. μ follows the ratio of what a step gained and what it was to gain, and grows at once
where P + μ M is not positive definite. One search is one compiled loop.

Applicability: continuous latents, a density with a gradient. Cost: an iteration evaluates density,
gradient and curvature once and factorises one matrix, or up to half a dozen where the curvature
is indefinite; five to forty iterations are usual. A multimodal density needs several starting
points, or a noise that is first enlarged (`Cooling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import deep_copy_op
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph

from pymc_mcoem.damped_step import MOST_DAMPING, damped_step
from pymc_mcoem.density import ClassDensity, as_argument
from pymc_mcoem.loops import compile_search
from pymc_mcoem.mode_plan import Cooling, Race, Searches
from pymc_mcoem.modes import Modes, ModeStatus, positive_definite

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.carlin_chib.geometry import Curvature

__all__ = ["Cooling", "ModeSearch", "Race"]


@dataclass(frozen=True)
class _Damping:
    """Scales of μ: where searches begin, the least that helps and how it rises, and what is none.

    Where damping is below `free` and the density as quadratic as it was taken to be, it is dropped.
    """

    first: float
    least: float
    raising: float
    free: float


_BY_CURVATURE = _Damping(first=1e-3, least=1e-2, raising=10.0, free=1e-2)
#: On postal digits the prior's precision has to be taken some ten times.
_BY_PRIOR = _Damping(first=1.0, least=0.1, raising=3.0, free=0.1)


class ModeSearch:
    """Compiled search for the mode and curvature of a `ClassDensity` at given classes.

    Parameters
    ----------
    density : ClassDensity
    gauss_newton : TensorVariable or None
        Matrix ``(n_latents, n_latents)`` in variables of the model that replaces minus the Hessian.
    max_iterations : int
        At the density itself, after cooling and the rounds of a race.
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
    metric : TensorVariable or None
        Positive definite matrix ``(n_latents, n_latents)`` in variables of the model that steps
        are measured by: the precision of the latents' prior. None: the curvature's diagonal.
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
        metric: TensorVariable | None = None,
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
        self._measured_by_prior = metric is not None
        self._damping = _BY_PRIOR if self._measured_by_prior else _BY_CURVATURE
        self._compile(gauss_newton, curvature, noise_variance, metric, mode)

    def _compile(
        self,
        gauss_newton: TensorVariable | None,
        curvature: Curvature | None,
        noise_variance: str | None,
        metric: TensorVariable | None,
        mode: Any,
    ) -> None:
        """Make the loop that is one search, or a part of one."""
        density, scales = self.density, self._damping
        n = density.n_latents
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
            if metric is None:
                lengths = pt.diag(pt.maximum(pt.abs(pt.diagonal(matrix)), 1e-10))
            else:
                lengths = density.place(metric, k, x)
            # where nothing is known yet the point itself is evaluated; too much damping to try
            # any is how the step is not computed
            first = pt.isinf(log_p)
            step, used, length = damped_step(
                matrix,
                lengths,
                gradient,
                pt.switch(first, np.inf, damping),
                least=scales.least,
                raising=scales.raising,
                mode=mode,
            )
            step = pt.switch(first, pt.zeros_like(step), step)
            used = pt.switch(first, damping, used)
            solved = pt.invert(pt.isnan(step[0]))
            candidate = pt.switch(solved, x + step, x)
            new_log_p, new_gradient, new_matrix = evaluate(k, candidate, settings)
            finite = pt.invert(pt.isnan(new_log_p) | pt.isinf(new_log_p))
            gain = 0.5 * pt.sum(gradient * step)
            # δᵀg − δᵀPδ / 2, of (P + μM) δ = g
            expected = gain + 0.5 * used * length
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
            free = pt.lt(pt.abs(ratio - 1.0), 0.05) & pt.lt(used, scales.free)
            least = pt.switch(free, 0.0, 0.2)
            trusted = used * pt.maximum(least, 1.0 - (2.0 * ratio - 1.0) ** 3)
            lowered = pt.switch(pt.lt(trusted, 1e-6), 0.0, trusted)
            # A damped step promises too little: only one that damping hardly shortens may end the
            # search. Without a slope it says nothing, for on a saddle there is none either.
            hardly = pt.le(used * length, 0.2 * gain) & pt.gt(gain, 0.0)
            ends = pt.lt(gain, settings[0]) & (hardly | pt.lt(used, scales.free))
            done = solved & pt.invert(first) & ends
            stuck = pt.gt(used, MOST_DAMPING)
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
        start, slope = (pt.tensor(name, dtype="float64", shape=(n,)) for name in ("start", "slope"))
        bend = pt.tensor("bend", dtype="float64", shape=(n, n))
        # a vector, as the settings are
        height = pt.tensor("height", dtype="float64", shape=(1,))
        damping = pt.tensor("damping", dtype="float64", shape=(1,))
        limit = pt.scalar("max_iterations", dtype="int64")
        self._function = compile_search(
            density,
            improve,
            inputs=[k, start, height, slope, bend, damping, settings, limit],
            limit=limit,
            carried=[
                start,
                height[0],
                slope,
                bend,
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
        searches = Searches.begin(asked, as_argument(starts), self._damping.first)
        rows = np.arange(len(searches.classes)).reshape(len(asked), -1)
        alive = set(rows.ravel().tolist())
        if self.cooling is not None:
            # Under much noise all starts of a class would end in one point: only the first cools.
            first = set(rows[:, 0].tolist())
            cold = alive - first
            for temperature in self.cooling.temperatures:
                self._run(searches, first, self.cooling.n_iterations, arguments, temperature)
                if self.race is not None:
                    first = searches.within(first, self.race.margins[0], self.race.trust)
            alive = first | cold
        if self.race is not None:
            for margin in self.race.margins:
                self._run(searches, alive, self.race.n_iterations, arguments)
                # not those left behind under more noise, whose densities are others
                alive &= set(searches.ahead(rows, alive))
                alive = searches.within(alive, margin, self.race.trust)
        self._run(searches, alive, self.max_iterations, arguments)
        return self._modes(searches, searches.ahead(rows, alive), alive, arguments)

    def _run(
        self,
        searches: Searches,
        rows: set[int],
        limit: int,
        arguments: tuple[Any, ...],
        temperature: float = 1.0,
    ) -> None:
        """Let searches go on for so many iterations, or to where they end."""
        settings = np.array([self.tolerance, temperature, 1.0])
        for row in sorted(rows):
            if searches.temperature[row] != temperature:
                searches.heat(row, temperature, self._measured_by_prior)
            if searches.done[row]:
                continue
            outputs = self._function(
                np.asarray(searches.classes[row], dtype=np.int64),
                searches.position[row],
                searches.log_density[row : row + 1],
                searches.gradient[row],
                searches.matrix[row],
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
            searches.done[row] = done
            searches.damping[row] = damping
            searches.n_iterations[row] += int(n_iterations)

    def _modes(
        self,
        searches: Searches,
        rows: list[int],
        followed: set[int],
        arguments: tuple[Any, ...],
    ) -> Modes:
        """Evaluate the density where searches ended, and name how they did.

        Those that were left behind may have been under more noise, and where the curvature is
        written out precisions are those of Gauss and Newton.
        """
        settings = np.array([self.tolerance, 1.0, 0.0])
        n = self.density.n_latents
        found = [
            self._function(
                np.asarray(searches.classes[row], dtype=np.int64),
                searches.position[row],
                np.array([-np.inf]),
                np.zeros(n),
                np.eye(n),
                np.array([self._damping.first]),
                settings,
                np.asarray(1),
                *arguments,
            )
            for row in rows
        ]
        log_density, gradient, precision = (
            np.stack([outputs[place] for outputs in found]) for place in (1, 2, 3)
        )
        factors, status = np.empty_like(precision), []
        for place, row in enumerate(rows):
            regular = positive_definite(precision[place])
            precision[place], factors[place] = regular.matrix, regular.factor
            if not np.isfinite(log_density[place]):
                status.append(ModeStatus.NO_DENSITY)
            elif row not in followed:
                status.append(ModeStatus.OUT_OF_RACE)
            elif regular.ridged:
                status.append(ModeStatus.INDEFINITE)
            elif not searches.done[row]:
                status.append(ModeStatus.NOT_CONVERGED)
            else:
                status.append(ModeStatus.CONVERGED)
        return Modes(
            searches.position[rows],
            precision,
            factors,
            log_density,
            np.abs(gradient).max(axis=1, initial=0.0),
            searches.n_iterations[rows],
            tuple(status),
        )
