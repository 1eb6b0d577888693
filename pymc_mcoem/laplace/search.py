"""Search for mode and curvature of a log-density in every class of a model.

Steps are damped Newton steps (`pymc_mcoem.laplace.newton`). Their curvature P is minus the Hessian
if that is written out, else a Gauss-Newton matrix if one is given, else made of differences of
gradients. Their lengths are measured by the precision of the latents' prior if it is known, so that
a step of length one is as long as the prior is wide, else by the absolute diagonal of P.

Where a search is made a few times, as when a chain of ``pm.sample`` starts, PyTensor interprets
the density: nothing is compiled. Where it is made for every observation (the density has data as
inputs) the density is compiled; see `pymc_mcoem.density.evaluations`.

Applicability: continuous latents, a density with a gradient. Cost: an iteration evaluates density,
gradient and curvature once, by differences 2 n_latents + 1 gradients, and factorizes one matrix, or
up to half a dozen where the curvature is indefinite; five to forty iterations are usual. A
multimodal density needs several starting points, or a noise that is first enlarged (`Cooling`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.density.class_density import ClassDensity, as_argument
from pymc_mcoem.density.evaluations import compile_evaluations
from pymc_mcoem.laplace.modes import Modes, ModeStatus, positive_definite
from pymc_mcoem.laplace.newton import Searches, iterate
from pymc_mcoem.laplace.schedule import Cooling, Race

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.density.geometry import Curvature, LatentGeometry

__all__ = ["BY_CURVATURE", "Damping", "ModeSearch"]


@dataclass(frozen=True)
class Damping:
    """Scales of μ: first value, least value that helps, factor by which it rises, negligible value.

    Damping below `free` is dropped where the density is nearly quadratic.
    """

    first: float
    least: float
    raising: float
    free: float

    def settings(
        self, tolerance: float, temperature: float = 1.0, residual_share: float = 1.0
    ) -> np.ndarray:
        """Return the settings that `newton.iterate` takes."""
        return np.array(
            [tolerance, temperature, residual_share, self.least, self.raising, self.free]
        )


BY_CURVATURE = Damping(first=1e-3, least=1e-2, raising=10.0, free=1e-2)
#: On postal digits, steps need some ten times the prior's precision.
_BY_PRIOR = Damping(first=1.0, least=0.1, raising=3.0, free=0.1)


class ModeSearch:
    """Compiled search for the mode and curvature of a `ClassDensity` at given classes.

    Parameters
    ----------
    gauss_newton : TensorVariable or None
        Matrix ``(n_latents, n_latents)`` in variables of the model that replaces minus the Hessian.
    max_iterations : int
        Largest number of iterations after cooling and the rounds of a race.
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
        Not used without a `noise_variance`.
    metric : TensorVariable or None
        Positive definite matrix ``(n_latents, n_latents)`` in variables of the model that steps
        are measured by: the precision of the latents' prior. None, or where no curvature is
        written out: the curvature's diagonal.

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
        written_out = gauss_newton if curvature is None else curvature.matrix
        self.measured_by_prior = metric is not None and written_out is not None
        self.damping = _BY_PRIOR if self.measured_by_prior else BY_CURVATURE
        replaced = self._replaced(noise_variance, curvature)
        self.evaluations = compile_evaluations(density, written_out, metric, replaced, mode)

    @classmethod
    def by_geometry(
        cls, density: ClassDensity, geometry: LatentGeometry, **settings: Any
    ) -> ModeSearch:
        """Return a search with the declared geometry of the latents, and further settings."""
        return cls(
            density,
            geometry.gauss_newton,
            curvature=geometry.curvature,
            noise_variance=geometry.noise_variance,
            metric=geometry.step_metric(),
            **settings,
        )

    def _replaced(
        self, noise_variance: str | None, curvature: Curvature | None
    ) -> Callable[[Any], dict[Any, Any]]:
        """Return a function of the settings that gives replacements of the model's symbols.

        They are the multiplied noise variance and the residuals' share.
        """
        noise: Any = None
        if noise_variance is not None:
            known = {variable.name: variable for variable in self.density.model.data_vars}
            if noise_variance not in known:
                raise ValueError(
                    f"noise_variance: got {noise_variance!r}, which is no pm.Data of the model; "
                    f"choose from {sorted(known)}, or None for searches that do not cool."
                )
            noise = self.density.data_inputs.get(noise_variance, known[noise_variance])

        def replaced(settings: Any) -> dict[Any, Any]:
            found = {} if noise is None else {noise: noise * settings[0]}
            if curvature is not None:
                found[curvature.residual_share] = settings[1]
            return found

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
            Never the present latents of a chain that uses the modes as pseudo-priors.
        data : mapping of str to ndarray
            Values of the density's `data_inputs`.
        classes : ndarray of int of shape (n,), optional
            Classes to search in; by default all of them.

        Returns
        -------
        Modes
            One for each of `classes`.
        """
        searched = np.arange(self.density.n_classes) if classes is None else np.asarray(classes)
        starts = np.asarray(starts, dtype=np.float64)
        if starts.ndim == 2:
            starts = np.broadcast_to(starts, (len(searched), *starts.shape))
        evaluate = self.evaluations.at(self.density.arguments(data, others))
        searches = Searches.begin(searched, as_argument(starts), self.damping.first)
        rows = np.arange(len(searches.classes)).reshape(len(searched), -1)
        alive = set(rows.ravel().tolist())
        if self.cooling is not None:
            # Under much noise all starts of a class would end in one point: only the first cools.
            first = set(rows[:, 0].tolist())
            cold = alive - first
            for temperature in self.cooling.temperatures:
                self._run(searches, first, self.cooling.n_iterations, evaluate, temperature)
                if self.race is not None:
                    first = searches.within(first, self.race.margins[0], self.race.trust)
            alive = first | cold
        if self.race is not None:
            for margin in self.race.margins:
                self._run(searches, alive, self.race.n_iterations, evaluate)
                # not those stopped under more noise, whose densities differ
                alive &= set(searches.ahead(rows, alive))
                alive = searches.within(alive, margin, self.race.trust)
        self._run(searches, alive, self.max_iterations, evaluate)
        return self._modes(searches, searches.ahead(rows, alive), alive, evaluate)

    def at_points(
        self, class_index: int, points: np.ndarray, others: Sequence[np.ndarray] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log-densities ``(n,)`` and gradients ``(n, n_latents)`` at many points."""
        arguments = self.density.arguments({}, others)
        settings = self._settings(1.0, 1.0)
        return self.evaluations.at_points(arguments, class_index, as_argument(points), settings)

    def _run(
        self,
        searches: Searches,
        rows: set[int],
        limit: int,
        evaluate: Callable[..., tuple[np.ndarray, ...]],
        temperature: float = 1.0,
    ) -> None:
        """Continue searches for `limit` iterations, or until they end."""
        settings = self._settings(temperature, 1.0)
        ordered = np.array(sorted(rows))
        # all of them or none
        new = ordered[searches.temperature[ordered] != temperature]
        if new.size:
            searches.heat(new, temperature, self.measured_by_prior)
            there = searches.classes[new], searches.position[new], searches.bends(new)
            searches.know(new, *evaluate(*there, settings))
            searches.n_iterations[new] += 1
            limit -= 1
        known = ordered[searches.log_density[ordered] > -np.inf]
        iterate(evaluate, searches, known, settings, limit)

    def _settings(self, temperature: float, residual_share: float) -> np.ndarray:
        return self.damping.settings(self.tolerance, temperature, residual_share)

    def _modes(
        self,
        searches: Searches,
        rows: list[int],
        followed: set[int],
        evaluate: Callable[..., tuple[np.ndarray, ...]],
    ) -> Modes:
        """Evaluate the density where searches ended, and return modes with statuses.

        Stopped searches may have been under more noise. If the curvature is written out, precisions
        are Gauss-Newton matrices.
        """
        # the last curvature sets the distances of differences
        log_density, gradient, precision, _ = evaluate(
            searches.classes[rows],
            searches.position[rows],
            searches.bends(rows),
            self._settings(1.0, 0.0),
        )
        log_density = np.where(np.isfinite(log_density), log_density, -np.inf)
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
