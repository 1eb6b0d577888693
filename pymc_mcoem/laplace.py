"""Mode and curvature of one log-density, for every class of a model, compiled once.

Model: a log-density log p(y, I = j, x) on the scale on which PyMC samples x (transformed,
Jacobian included). Around its mode x*_j it is replaced by a normal density with precision P_j,

    p(y, I = j, x) ≈ p(y, I = j, x*_j) exp(−(x − x*_j)ᵀ P_j (x − x*_j) / 2),

where P_j is minus the Hessian, or a Gauss-Newton matrix that is positive definite everywhere.
Mode and curvature belong to the *same* density: ``pm.find_MAP`` leaves the Jacobian of the
transformations out and ``pm.find_hessian`` puts it in, so on constrained variables the two do
not belong together. `LaplaceApproximation.from_pymc` calls them all the same: without
constrained variables they are the oracle of this module.

Applicability: continuous latents, a density with a gradient. Cost: an iteration of the search
evaluates density, gradient and curvature once and solves one linear system; five to fifteen
iterations are usual. A multimodal density needs several starting points.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_fn
from pytensor.compile.ops import deep_copy_op
from pytensor.graph.rewriting.utils import rewrite_graph
from scipy.linalg import solve_triangular

from pymc_mcoem.density import ClassDensity, as_argument
from pymc_mcoem.loops import compile_search

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["LaplaceApproximation", "ModeSearch", "ModeStatus", "Modes", "Race"]


class ModeStatus(enum.Enum):
    """How a mode search ended, in words."""

    CONVERGED = "the mode was found and its curvature is positive definite"
    NOT_CONVERGED = "the search ran out of iterations; its last point is used"
    INDEFINITE = "the curvature at the mode is not positive definite; a ridge was added"
    NO_DENSITY = "the density is not finite at the starting point"
    OUT_OF_RACE = "another class was far ahead, so the search stopped early, as it was asked to"


@dataclass(frozen=True)
class Modes:
    """Modes of a density, one for every class asked for.

    Attributes
    ----------
    mean : ndarray of shape (n, n_latents)
    precision : ndarray of shape (n, n_latents, n_latents)
        Positive definite always; `status` says where a ridge was needed.
    log_density : ndarray of shape (n,)
        At the mode.
    gradient_norm : ndarray of shape (n,)
        Largest absolute component of the gradient at the mode.
    n_iterations : ndarray of int of shape (n,)
    status : tuple of ModeStatus
    """

    mean: np.ndarray
    precision: np.ndarray
    log_density: np.ndarray
    gradient_norm: np.ndarray
    n_iterations: np.ndarray
    status: tuple[ModeStatus, ...]

    @property
    def log_evidence(self) -> np.ndarray:
        """Laplace's approximation of log ∫ exp(log-density), shape ``(n,)``."""
        n = self.mean.shape[1]
        half_log_det = np.log(np.diagonal(np.linalg.cholesky(self.precision), axis1=1, axis2=2))
        found: np.ndarray = (
            self.log_density + 0.5 * n * np.log(2 * np.pi) - half_log_det.sum(axis=1)
        )
        return found

    def troubles(self, margin: float = 20.0) -> dict[str, int]:
        """Count the searches that did not end as they should, by name.

        Parameters
        ----------
        margin : float
            Modes whose evidence is further than this below the best one's are not counted: a
            class without weight may have a mode that is only roughly found.
        """
        counts: dict[str, int] = {}
        log_evidence = self.log_evidence
        if np.isfinite(log_evidence).any():
            best = np.max(log_evidence[np.isfinite(log_evidence)])
        else:
            best = -np.inf
        for status, value in zip(self.status, log_evidence, strict=True):
            fine = status in (ModeStatus.CONVERGED, ModeStatus.OUT_OF_RACE)
            far = np.isfinite(value) and value < best - margin
            if not fine and not far:
                name = f"mode search: {status.name.lower().replace('_', ' ')}"
                counts[name] = counts.get(name, 0) + 1
        return counts


def positive_definite(precision: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return `precision`, with the smallest ridge of a geometric sequence where it needs one.

    Parameters
    ----------
    precision : ndarray of shape (n, n)

    Returns
    -------
    ndarray of shape (n, n)
    bool
        Whether a ridge was added.
    """
    symmetric = 0.5 * (precision + precision.T)
    if not np.isfinite(symmetric).all():
        return np.eye(len(symmetric)), True
    size = max(float(np.abs(np.diagonal(symmetric)).max(initial=0.0)), 1e-8)
    for ridge in (0.0, *(size * 10.0**power for power in range(-6, 3))):
        candidate = symmetric + ridge * np.eye(len(symmetric))
        try:
            np.linalg.cholesky(candidate)
        except np.linalg.LinAlgError:
            continue
        return candidate, ridge > 0
    return size * np.eye(len(symmetric)), True


@dataclass(frozen=True)
class Race:
    """How classes and starting points compete before modes are sought in earnest.

    Every starting point of every class runs `n_iterations`; the best start of a class goes on,
    and only in classes whose log-density is then within `margin` of the best class's, or would be
    with twice what the next Newton step promises: a search that is still far from its mode is not
    judged by where it is. A class that is left behind keeps its unfinished point: as a
    pseudo-prior that costs mixing where the class deserved better, never correctness. On postal
    digits with 78 latents and four classes a race of 20 iterations takes half the time of none, and
    class probabilities by Laplace's evidence were off by more than 0.1 on 8 of 180 images; of 12
    iterations two fifths, and 12 of 180 (``benchmarks/mode_race.py``).

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

    n_iterations: int = 20
    margin: float = 50.0

    def __post_init__(self) -> None:
        if self.n_iterations < 1:
            raise ValueError(f"n_iterations: got {self.n_iterations}; give at least 1.")
        if not self.margin > 0:
            raise ValueError(f"margin: got {self.margin}; give a positive number or infinity.")


@dataclass
class _Found:
    """Outputs of the compiled search, one row a search."""

    position: np.ndarray
    log_density: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray
    done: np.ndarray
    n_iterations: np.ndarray

    def promised(self) -> np.ndarray:
        """Return what the next Newton step of each search promises, ``(n,)``; 0 if nothing."""
        gains = np.zeros(len(self.log_density))
        for row, (gradient, curvature) in enumerate(
            zip(self.gradient, self.curvature, strict=True)
        ):
            if np.isfinite(gradient).all() and np.isfinite(curvature).all():
                precision, _ = positive_definite(curvature)
                gains[row] = 0.5 * float(gradient @ np.linalg.solve(precision, gradient))
        return gains


class ModeSearch:
    """Compiled search for the mode and curvature of a `ClassDensity` at given classes.

    Damped Newton steps: (P + μ D) δ = g, with P minus the Hessian or the Gauss-Newton matrix, D
    its absolute diagonal and μ lowered after a step that raises the density and raised after one
    that does not. One search is one compiled loop.

    Parameters
    ----------
    density : ClassDensity
    gauss_newton : TensorVariable or None
        Matrix ``(n_latents, n_latents)`` in variables of the model that replaces minus the Hessian.
    max_iterations : int
    tolerance : float
        The search ends when the expected gain of the next step, δᵀg / 2, is below it: an
        error of the log-density, hence without units.
    race : Race or None
        How starts and classes compete first; None: every search runs to its end.
    mode : str or None
        PyTensor's compilation mode.

    Raises
    ------
    ValueError
        If `max_iterations` or `tolerance` is not positive.
    """

    def __init__(
        self,
        density: ClassDensity,
        gauss_newton: TensorVariable | None = None,
        *,
        max_iterations: int = 50,
        tolerance: float = 1e-8,
        race: Race | None = None,
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
        n = density.n_latents

        def evaluate(k: Any, x: Any) -> tuple[Any, Any, Any]:
            if gauss_newton is None:
                curvature = density.negative_hessian(k, x)
            else:
                curvature = density.place(gauss_newton, k, x)
            # Operators with written-out gradients are opened before the loop is made: its
            # rewrites would otherwise leave values and gradients with separate matrix products.
            # And all are brought to one form, for the curvature was not derived from the density:
            # what they share would else be computed for either.
            found = [density.log_density(k, x), density.gradient(k, x), curvature]
            for rewrites in (("inline_ofg_expansion", "canonicalize"), ("merge",)):
                found = rewrite_graph(found, include=rewrites)
            log_p, gradient, curvature = found
            return log_p, gradient, curvature

        def improve(
            x: Any, log_p: Any, gradient: Any, curvature: Any, damping: Any, k: Any, tol: Any
        ) -> Any:
            scale = pt.maximum(pt.abs(pt.diagonal(curvature)), 1e-10)
            factor = pt.linalg.cholesky(
                curvature + pt.diag(damping * scale), lower=True, on_error="nan"
            )
            half = pt.linalg.solve_triangular(factor, gradient, lower=True, check_finite=False)
            step = pt.linalg.solve_triangular(factor, half, lower=True, trans=1, check_finite=False)
            first = pt.isinf(log_p)
            step = pt.switch(first, pt.zeros_like(step), step)
            candidate = pt.switch(pt.isnan(step), x, x + step)
            new_log_p, new_gradient, new_curvature = evaluate(k, candidate)
            solved = pt.invert(pt.isnan(step[0]))
            finite = pt.invert(pt.isnan(new_log_p) | pt.isinf(new_log_p))
            better = solved & finite & pt.ge(new_log_p, log_p)
            gain = 0.5 * pt.sum(gradient * step)
            # A damped step promises too little: only a nearly free one may end the search.
            done = solved & pt.invert(first) & pt.lt(gain, tol) & pt.lt(damping, 1e-2)
            stuck = pt.gt(damping, 1e12)
            lowered = pt.switch(pt.lt(damping, 1e-6), 0.0, damping / 8)
            raised = pt.maximum(damping * 8, 1e-4)
            return [
                pt.specify_shape(pt.switch(better, candidate, x), (n,)),
                pt.switch(better, new_log_p, log_p),
                # the copy is contiguous as the zeros of the start are: else the loop's body
                # would be compiled twice, for either kind of array
                deep_copy_op(pt.specify_shape(pt.switch(better, new_gradient, gradient), (n,))),
                pt.specify_shape(pt.switch(better, new_curvature, curvature), (n, n)),
                pt.switch(better, lowered, raised),
                done,
            ], done | stuck

        k = pt.scalar("class_index", dtype="int64")
        start = pt.tensor("start", dtype="float64", shape=(n,))
        tol = pt.scalar("tolerance", dtype="float64")
        limit = pt.scalar("max_iterations", dtype="int64")
        self._function = compile_search(
            density,
            improve,
            inputs=[k, start, tol, limit],
            limit=limit,
            carried=[
                start,
                pt.constant(-np.inf, dtype="float64"),
                pt.zeros((n,)),
                pt.eye(n),
                pt.constant(1e-3, dtype="float64"),
            ],
            n_emitted=1,
            fixed=[k, tol],
            mode=mode,
        )

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
        if self.race is None:
            found = self._best(asked, starts, self.max_iterations, arguments)
            return self._modes(found, np.ones(len(asked), dtype=bool))
        found = self._best(asked, starts, self.race.n_iterations, arguments)
        log_p = np.where(np.isfinite(found.log_density), found.log_density, -np.inf)
        go_on = log_p + 2.0 * found.promised() >= log_p.max() - self.race.margin
        ahead = self._best(
            asked[go_on], found.position[go_on][:, None], self.max_iterations, arguments
        )
        for name in ("position", "log_density", "gradient", "curvature", "done"):
            getattr(found, name)[go_on] = getattr(ahead, name)
        found.n_iterations[go_on] += ahead.n_iterations
        return self._modes(found, go_on)

    def _best(
        self, classes: np.ndarray, starts: np.ndarray, limit: int, arguments: tuple[Any, ...]
    ) -> _Found:
        """Search from every start, ``(n, n_starts, n_latents)``; keep the best of each class."""
        n, n_starts = starts.shape[:2]
        tolerance = np.asarray(self.tolerance, dtype=np.float64)
        searches = [
            self._function(
                np.asarray(k, dtype=np.int64), start, tolerance, np.asarray(limit), *arguments
            )
            for k, of_class in zip(classes, as_argument(starts), strict=True)
            for start in of_class
        ]
        outputs = [np.stack(output) for output in zip(*searches, strict=True)]
        del outputs[4]  # damping
        grid = outputs[1].reshape(n, n_starts)
        best = np.arange(n) * n_starts + np.argmax(np.where(np.isnan(grid), -np.inf, grid), axis=1)
        return _Found(*(np.array(output[best]) for output in outputs))

    @staticmethod
    def _modes(found: _Found, followed: np.ndarray) -> Modes:
        """Make every precision positive definite and name how each search ended."""
        precision = found.curvature
        status = []
        for row, (log_p, done) in enumerate(zip(found.log_density, found.done, strict=True)):
            precision[row], ridged = positive_definite(precision[row])
            if not np.isfinite(log_p):
                status.append(ModeStatus.NO_DENSITY)
            elif ridged:
                status.append(ModeStatus.INDEFINITE)
            elif not followed[row]:
                status.append(ModeStatus.OUT_OF_RACE)
            elif not done:
                status.append(ModeStatus.NOT_CONVERGED)
            else:
                status.append(ModeStatus.CONVERGED)
        return Modes(
            found.position,
            precision,
            found.log_density,
            np.abs(found.gradient).max(axis=1, initial=0.0),
            found.n_iterations,
            tuple(status),
        )


@dataclass(frozen=True)
class LaplaceApproximation:
    """Normal approximation of a posterior around its mode.

    Attributes
    ----------
    mean : ndarray of shape (n_latents,)
        The mode, on the scale on which PyMC samples the latents.
    covariance : ndarray of shape (n_latents, n_latents)
        Inverse of the precision at the mode.
    log_density : float
        Unnormalised, at the mode; nan from `from_pymc`, whose mode is of another density.
    point : dict of str to ndarray
        The mode by value-variable name.
    status : ModeStatus

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", 0.0, 1.0)
    ...     y = pm.Normal("y", x, 1.0, observed=2.0)
    >>> approximation = LaplaceApproximation.fit(model)
    >>> float(approximation.mean[0].round(6)), float(approximation.covariance[0, 0].round(6))
    (1.0, 0.5)
    """

    mean: np.ndarray
    covariance: np.ndarray
    log_density: float
    point: dict[str, np.ndarray]
    status: ModeStatus

    @classmethod
    def fit(
        cls,
        model: pm.Model,
        *,
        initvals: Mapping[str, Any] | None = None,
        tolerance: float = 1e-12,
        max_iterations: int = 200,
    ) -> LaplaceApproximation:
        """Approximate the posterior of all continuous free variables of `model`.

        Parameters
        ----------
        model : pymc.Model
        initvals : mapping of str to array, optional
            Where to start, by variable name, as in ``pm.sample``; discrete variables keep the
            values it gives. Default: the model's initial point.
        tolerance, max_iterations
            As in `ModeSearch`.

        Returns
        -------
        LaplaceApproximation

        Raises
        ------
        ValueError
            If the model has no continuous free variable.
        """
        latents, start = continuous_variables(model, initvals)
        density = ClassDensity(model, None, latents)
        search = ModeSearch(density, tolerance=tolerance, max_iterations=max_iterations)
        others = [
            np.asarray(start[value.name], dtype=value.dtype) for value in density.other_values
        ]
        modes = search(density.ravel(start)[None], {}, others)
        return cls(
            modes.mean[0],
            np.linalg.inv(modes.precision[0]),
            float(modes.log_density[0]),
            density.unravel(modes.mean[0]),
            modes.status[0],
        )

    @classmethod
    def from_pymc(
        cls, model: pm.Model, *, initvals: Mapping[str, Any] | None = None
    ) -> LaplaceApproximation:
        """Approximate with ``pm.find_MAP`` and ``pm.find_hessian`` themselves.

        The short version that a notebook teaches, and the oracle of `fit` where no variable is
        constrained. It compiles at every call, and on constrained variables its mode leaves out
        the Jacobian that its curvature includes.

        Parameters
        ----------
        model : pymc.Model
        initvals : mapping of str to array, optional
            As in `fit`.

        Returns
        -------
        LaplaceApproximation
        """
        latents, start = continuous_variables(model, initvals)
        with warnings.catch_warnings():
            # PyMC 6.4 announces another return type and jitter; both are given by name there.
            warnings.simplefilter("ignore", FutureWarning)
            found = pm.find_MAP(
                start=dict(initvals or {}), vars=latents, model=model, progressbar=False
            )
        mode = {name: np.asarray(found.get(name, start[name])) for name in start}
        precision = -pm.find_hessian(mode, vars=latents, model=model, negate_output=False)
        names = [model.rvs_to_values[rv].name for rv in latents]
        fixed, ridged = positive_definite(np.asarray(precision))
        return cls(
            np.concatenate([np.ravel(mode[name]) for name in names]),
            np.linalg.inv(fixed),
            float("nan"),
            {name: mode[name] for name in names},
            ModeStatus.INDEFINITE if ridged else ModeStatus.CONVERGED,
        )


def continuous_variables(
    model: pm.Model, initvals: Mapping[str, Any] | None
) -> tuple[list[TensorVariable], dict[str, np.ndarray]]:
    """Return the continuous free variables of a model and the point to start from."""
    latents = [rv for rv in model.free_RVs if rv.dtype in pm.pytensorf.continuous_types]
    if not latents:
        raise ValueError("model: it has no continuous free variable; there is no mode to find.")
    initial_point = make_initial_point_fn(model=model, overrides=dict(initvals or {}))
    return latents, dict(initial_point(0))


def square_roots(precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (scale, whiten) of normal densities given by precisions.

    Parameters
    ----------
    precision : ndarray of shape (n, d, d)

    Returns
    -------
    scale, whiten : ndarray of shape (n, d, d)
        scale scaleᵀ is the covariance, and whiten its inverse factor.
    """
    whiten = np.swapaxes(np.linalg.cholesky(precision), 1, 2)
    identity = np.eye(precision.shape[-1])
    scale = np.stack([solve_triangular(upper, identity) for upper in whiten])
    return np.ascontiguousarray(scale), np.ascontiguousarray(whiten)
