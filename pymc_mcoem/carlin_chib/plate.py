"""A whole vector of class indices: mixtures whose every observation has its index and latents.

Given everything else the rows of a plate are independent, so the sweep of
`pymc_mcoem.carlin_chib.kernel` is made for all rows at once: the density of all rows in one
class is one evaluation, and a sweep costs as many evaluations as with a single index, each
linear in the number of rows. That rows are independent is checked by moving some of them, near and
far, and seeing that the others' densities stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from pymc_mcoem.carlin_chib.kernel import draw_class, draw_other_class, index_noise_size
from pymc_mcoem.carlin_chib.within_class import log_uniform
from pymc_mcoem.density import as_argument, count_classes, require_class_index
from pymc_mcoem.products import matrix_vector

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.carlin_chib.within_class import RandomWalk

__all__ = ["PlateDensity", "PlateLaplace", "PlatePseudoPriors", "PlateSweep"]


class PlateDensity:
    """Row by row log-density of a vector of class indices and latents along the same plate.

    Parameters
    ----------
    model : pymc.Model
    class_index : TensorVariable of shape (n_rows,)
        Free Categorical or Bernoulli variable of `model`.
    latents : sequence of TensorVariable
        Free continuous variables whose first axis is the plate.

    Attributes
    ----------
    n_rows, n_classes, n_latents : int
        `n_latents` is the number of latents of one row.
    other_values : tuple of TensorVariable
        Value variables of the model that are neither; all functions take them as inputs.

    Raises
    ------
    ValueError
        If a latent is discrete or has another first axis, or rows are not independent.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5], shape=3)
    ...     x = pm.Normal("x", 2.0 * k, 1.0, shape=3)
    ...     y = pm.Normal("y", x, 1.0, observed=np.zeros(3))
    >>> density = PlateDensity(model, k, [x])
    >>> density.n_rows, density.n_latents
    (3, 1)
    """

    def __init__(
        self, model: pm.Model, class_index: TensorVariable, latents: Sequence[TensorVariable]
    ) -> None:
        require_class_index(model, class_index)
        if class_index.ndim != 1:
            raise ValueError(
                f"class_index: {class_index.name} has {class_index.ndim} axes; a plate is one "
                "variable with one axis."
            )
        point = model.initial_point(random_seed=0)
        self.model = model
        self.class_index = class_index
        self.latents = tuple(latents)
        self.index_value = model.rvs_to_values[class_index]
        self.latent_values = tuple(model.rvs_to_values[rv] for rv in self.latents)
        self.n_rows = int(np.shape(point[self.index_value.name])[0])
        self.n_classes = count_classes(class_index)
        self._shapes = [np.shape(point[value.name]) for value in self.latent_values]
        for rv, shape in zip(self.latents, self._shapes, strict=True):
            if rv.dtype not in pm.pytensorf.continuous_types:
                raise ValueError(
                    f"vars: {rv.name} is discrete ({rv.dtype}); give it a step method of its own."
                )
            if not shape or shape[0] != self.n_rows:
                raise ValueError(
                    f"vars: {rv.name} has shape {shape}, but {class_index.name} has "
                    f"{self.n_rows} rows; name only latents along that plate, and leave the others "
                    "to other step methods."
                )
        self._sizes = [int(np.prod(shape[1:], dtype=int)) for shape in self._shapes]
        self.n_latents = sum(self._sizes)
        if self.n_latents == 0:
            raise ValueError(
                "vars: there are no latents along the plate; a class index alone is better summed "
                "out, or sampled with pm.CategoricalGibbsMetropolis."
            )
        own = {self.index_value, *self.latent_values}
        self.other_values = tuple(value for value in model.value_vars if value not in own)
        self._density = self._by_row(own)
        self._require_independent_rows(point)

    def _by_row(self, own: set[Any]) -> TensorVariable:
        terms = []
        for variable in [*self.model.basic_RVs, *self.model.potentials]:
            (term,) = self.model.logp(vars=[variable], sum=False)
            if not own & set(ancestors([term])):
                continue
            shape = self._shape(term)
            if not shape or shape[0] != self.n_rows:
                raise ValueError(
                    f"class_index: the density of {variable.name} has shape {shape}, not one value "
                    f"for each of the {self.n_rows} rows of {self.class_index.name}: rows are not "
                    "independent. Write it with the plate as first axis."
                )
            terms.append(term.sum(axis=tuple(range(1, term.ndim))) if term.ndim > 1 else term)
        return pt.add(*terms) if len(terms) > 1 else terms[0]

    def _shape(self, term: TensorVariable) -> tuple[int, ...]:
        """Return the shape of a term, which with ``pm.Data`` is known only where it has values."""
        if None not in term.type.shape:
            return tuple(term.type.shape)
        function = self.model.compile_fn(
            term.shape,
            inputs=self.model.value_vars,
            mode="FAST_COMPILE",
            on_unused_input="ignore",
        )
        return tuple(map(int, function(self.model.initial_point(random_seed=0))))

    def _require_independent_rows(self, point: dict[str, np.ndarray]) -> None:
        """Move some rows and see that the others keep their density, bit for bit."""
        k = pt.vector("class_index", dtype="int64")
        x = pt.matrix("position", dtype="float64")
        function = self.compile([k, x], [self.log_density(k, x)])
        others = self.others(point)
        rng = np.random.default_rng(0)
        rows = np.arange(self.n_rows)
        shape = (self.n_rows, self.n_latents)
        start = self.ravel(point)
        # By every bit of the rows' numbers, so that any two rows are parted at least once.
        bits = [
            rows >> bit & 1 == flag for bit in range(self.n_rows.bit_length()) for flag in (0, 1)
        ]
        # all rows in one class too: a factor may look at just that
        alike = [(1.0, np.full(self.n_rows, j)) for j in range(self.n_classes)]
        for distance, given in [*((size, None) for size in (0.01, 0.1, 1.0, 10.0)), *alike]:
            drawn = rng.integers(self.n_classes, size=self.n_rows)
            index = drawn if given is None else given
            position = start + distance * rng.standard_normal(shape)
            before = function(index, position, *others)[0]
            for moved in bits:
                other = rng.integers(self.n_classes, size=self.n_rows)
                away = position + distance * rng.standard_normal(shape)
                after = function(
                    np.where(moved, other, index),
                    np.where(moved[:, None], away, position),
                    *others,
                )[0]
                same = (after == before) | (np.isnan(before) & np.isnan(after))
                touched = np.flatnonzero(~moved & ~same)
                if touched.size:
                    raise ValueError(
                        f"class_index: the density of row {touched[0]} of "
                        f"{self.class_index.name} changes when other rows move, so rows are not "
                        "independent; give the step only latents that are, or leave the index to "
                        "pm.CategoricalGibbsMetropolis."
                    )

    def compile(self, inputs: list[Any], outputs: list[Any], mode: Any = None) -> Any:
        """Compile a function of `inputs`, then of the other values."""
        function = pm.pytensorf.compile(
            [*inputs, *self.other_values], outputs, mode=mode, on_unused_input="ignore"
        )
        function.trust_input = True
        return function

    def _split(self, x: Any) -> list[Any]:
        stops = [int(stop) for stop in np.cumsum(self._sizes)]
        return [
            x[:, stop - size : stop].reshape(shape)
            for stop, size, shape in zip(stops, self._sizes, self._shapes, strict=True)
        ]

    def log_density(self, class_index: Any, position: Any) -> TensorVariable:
        """Return log p(y_i, I_i, x_i) of every row, ``(n_rows,)``.

        Parameters
        ----------
        class_index : int vector of shape (n_rows,)
        position : matrix of shape (n_rows, n_latents)
        """
        replacement: dict[Any, Any] = {
            self.index_value: pt.cast(class_index, self.index_value.dtype)
        }
        for value, part in zip(self.latent_values, self._split(position), strict=True):
            replacement[value] = pt.cast(part, value.dtype)
        density: TensorVariable = clone_replace(self._density, replacement, rebuild_strict=False)
        return density

    def others(self, point: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the values of a point that are neither index nor latents."""
        return [as_argument(point[value.name], value.dtype) for value in self.other_values]

    def ravel(self, point: Mapping[str, Any]) -> np.ndarray:
        """Return the latents of a point, ``(n_rows, n_latents)``."""
        return np.concatenate(
            [
                np.asarray(point[value.name], dtype=np.float64).reshape(self.n_rows, -1)
                for value in self.latent_values
            ],
            axis=1,
        )

    def unravel(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Return latents ``(n_rows, n_latents)`` as values by value-variable name."""
        return {
            value.name: np.asarray(part, dtype=value.dtype)
            for value, part in zip(self.latent_values, self._split(position), strict=True)
        }


@dataclass(frozen=True, eq=False)
class PlatePseudoPriors:
    """Normal pseudo-priors of all classes and rows.

    Attributes
    ----------
    mean : ndarray of shape (n_classes, n_rows, n_latents)
    scale, whiten : ndarray of shape (n_classes, n_rows, n_latents, n_latents)
    log_normalizer, log_evidence : ndarray of shape (n_classes, n_rows)
    troubles : dict of str to int
    """

    mean: np.ndarray
    scale: np.ndarray
    whiten: np.ndarray
    log_normalizer: np.ndarray
    log_evidence: np.ndarray
    troubles: dict[str, int] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlatePseudoPriors):
            return NotImplemented
        return self.troubles == other.troubles and all(
            np.array_equal(mine, theirs, equal_nan=True)
            for mine, theirs in zip(self.as_list(), other.as_list(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def as_list(self) -> list[np.ndarray]:
        """Return the arrays in the order in which compiled functions take them."""
        return [self.mean, self.scale, self.whiten, self.log_normalizer]

    def start(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw a class for every row by evidence, and a position from its pseudo-prior."""
        n_classes, n_rows, n = self.mean.shape
        best = self.log_evidence.max(axis=0)
        weight = np.exp(self.log_evidence - np.where(np.isfinite(best), best, 0.0))
        cumulative = np.cumsum(weight, axis=0)
        drawn = (cumulative < rng.random(n_rows) * cumulative[-1]).sum(axis=0)
        index = np.minimum(drawn, n_classes - 1)
        rows = np.arange(n_rows)
        noise = rng.standard_normal((n_rows, n))
        moved = np.einsum("iab,ib->ia", self.scale[index, rows], noise)
        return index, self.mean[index, rows] + moved


class PlateLaplace:
    """Laplace pseudo-priors of all rows at once, by damped Newton steps.

    Parameters
    ----------
    density : PlateDensity
    tolerance : float
        Of the expected gain of a step, in units of the log-density.
    max_iterations : int
    mode : str or None
        PyTensor's compilation mode.

    Notes
    -----
    Rows being independent, the gradient of the summed density holds all rows' gradients, and
    n_latents more backward passes all their Hessians: the cost of an iteration is linear in the
    number of rows.
    """

    def __init__(
        self,
        density: PlateDensity,
        *,
        tolerance: float = 1e-3,
        max_iterations: int = 60,
        mode: Any = None,
    ) -> None:
        self.density = density
        self.tolerance = tolerance
        self.max_iterations = max_iterations
        k = pt.vector("class_index", dtype="int64")
        x = pt.tensor("position", dtype="float64", shape=(density.n_rows, density.n_latents))
        log_p = density.log_density(k, x)
        gradient = pt.grad(log_p.sum(), x)
        hessian = [pt.grad(gradient[:, a].sum(), x) for a in range(density.n_latents)]
        self._function = density.compile(
            [k, x], [log_p, gradient, -pt.stack(hessian, axis=1)], mode
        )
        self._start = density.ravel(density.model.initial_point(random_seed=0))

    def __call__(self, others: Sequence[np.ndarray]) -> PlatePseudoPriors:
        """Return pseudo-priors given the other values."""
        found = [self._search(j, others) for j in range(self.density.n_classes)]
        mean, precision, log_p, converged = (np.stack(part) for part in zip(*found, strict=True))
        whiten = np.swapaxes(np.linalg.cholesky(precision), -1, -2)
        half_log_det = np.log(np.diagonal(whiten, axis1=-2, axis2=-1)).sum(axis=-1)
        log_normalizer = half_log_det - 0.5 * mean.shape[-1] * np.log(2 * np.pi)
        log_evidence = np.where(np.isfinite(log_p), log_p - log_normalizer, -np.inf)
        # a class far below a row's best need not have a good mode
        matters = log_evidence > log_evidence.max(axis=0) - 20.0
        missed = int((~converged & matters).sum())
        return PlatePseudoPriors(
            mean,
            np.ascontiguousarray(np.linalg.inv(whiten)),
            np.ascontiguousarray(whiten),
            log_normalizer,
            log_evidence,
            {"mode search: not converged": missed} if missed else {},
        )

    def _search(self, j: int, others: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return mean, precision, log-density and convergence of every row in class j."""
        n_rows = len(self._start)
        index = np.full(n_rows, j, dtype=np.int64)
        x = self._start.copy()
        log_p, gradient, curvature = self._function(index, x, *others)
        damping = np.full(n_rows, 1e-3)
        converged = np.zeros(n_rows, dtype=bool)
        for _ in range(self.max_iterations):
            steps, gain, solved = _newton(curvature, gradient, damping)
            converged |= solved & (gain < self.tolerance) & (damping < 1e-2)
            candidate = np.where((solved & ~converged)[:, None], x + steps, x)
            if converged.all():
                break
            new_log_p, new_gradient, new_curvature = self._function(index, candidate, *others)
            better = solved & ~converged & (new_log_p >= log_p)
            x = np.where(better[:, None], candidate, x)
            log_p = np.where(better, new_log_p, log_p)
            gradient = np.where(better[:, None], new_gradient, gradient)
            curvature = np.where(better[:, None, None], new_curvature, curvature)
            lowered = np.where(damping < 1e-6, 0.0, damping / 8)
            damping = np.where(better, lowered, np.minimum(np.maximum(damping * 8, 1e-4), 1e12))
        # where there is no density there is no curvature either
        known = np.isfinite(curvature).all(axis=(1, 2)) & np.isfinite(log_p)
        curvature = np.where(known[:, None, None], curvature, np.eye(x.shape[1]))
        values, vectors = np.linalg.eigh(curvature)
        largest = np.maximum(values.max(axis=1, keepdims=True), 1e-8)
        definite = values.min(axis=1) > 1e-10 * largest[:, 0]
        # a curvature that is no precision is bent until it is one: it only has to be a density
        values = np.maximum(np.abs(values), 1e-6 * largest)
        bent = np.einsum("iab,ib,icb->iac", vectors, values, vectors)
        precision = np.where(definite[:, None, None], curvature, bent)
        return x, precision, log_p, converged & definite


def _newton(
    curvature: np.ndarray, gradient: np.ndarray, damping: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return damped steps of all rows, what each promises, and whether it could be computed."""
    diagonal = np.maximum(np.abs(np.diagonal(curvature, axis1=1, axis2=2)), 1e-10)
    identity = np.eye(curvature.shape[-1])
    matrix = curvature + (damping[:, None] * diagonal)[:, :, None] * identity
    finite = np.isfinite(matrix).all(axis=(1, 2)) & np.isfinite(gradient).all(axis=1)
    safe = np.where(finite[:, None, None], matrix, identity)
    solved = finite & (np.linalg.eigvalsh(safe)[:, 0] > 0)
    safe = np.where(solved[:, None, None], safe, identity)
    steps = np.linalg.solve(safe, np.where(solved[:, None], gradient, 0.0)[..., None])[..., 0]
    gain = 0.5 * np.einsum("ia,ia->i", steps, np.where(solved[:, None], gradient, 0.0))
    return steps, gain, solved


class PlateSweep:
    """One compiled Carlin-Chib sweep of all rows.

    Parameters
    ----------
    density : PlateDensity
    move : RandomWalk
    mode : str or None
        PyTensor's compilation mode.
    metropolised : bool
        Draw indices by Metropolised Gibbs.

    Attributes
    ----------
    noise_size : int
        Standard normals of one row: the auxiliaries of all classes, those of the index, and an
        increment and two more for each random-walk move.
    """

    def __init__(
        self,
        density: PlateDensity,
        move: RandomWalk,
        mode: Any = None,
        *,
        metropolised: bool = False,
    ) -> None:
        n_classes, n_rows, n = density.n_classes, density.n_rows, density.n_latents
        n_index = index_noise_size(metropolised)
        self.noise_size = n_classes * n + n_index + move.n_moves * (n + 2)
        noise = pt.tensor("noise", dtype="float64", shape=(n_rows, self.noise_size))
        gain = pt.scalar("gain", dtype="float64")
        index = pt.tensor("class_index", dtype="int64", shape=(n_rows,))
        position = pt.tensor("position", dtype="float64", shape=(n_rows, n))
        log_step = pt.tensor("log_step", dtype="float64", shape=(n_classes,))
        mean = pt.tensor("mean", dtype="float64", shape=(n_classes, n_rows, n))
        scale = pt.tensor("scale", dtype="float64", shape=(n_classes, n_rows, n, n))
        whiten = pt.tensor("whiten", dtype="float64", shape=(n_classes, n_rows, n, n))
        log_normalizer = pt.tensor("log_normalizer", dtype="float64", shape=(n_classes, n_rows))

        rows = np.arange(n_rows)
        split = n_classes * n
        fresh = noise[:, :split].reshape((n_rows, n_classes, n)).transpose((1, 0, 2))
        drawn = mean + matrix_vector(scale, fresh)
        auxiliaries = pt.set_subtensor(drawn[index, rows], position)
        standard = matrix_vector(whiten[index, rows], position - mean[index, rows])
        squares = pt.set_subtensor((fresh**2).sum(axis=-1)[index, rows], (standard**2).sum(axis=-1))
        log_target = pytensor.scan(
            lambda j, u: density.log_density(pt.full((n_rows,), j, dtype="int64"), u),
            sequences=[pt.arange(n_classes), auxiliaries],
            return_updates=False,
        )
        log_target = pt.switch(pt.isnan(log_target), -np.inf, log_target)
        log_weight = log_target - (log_normalizer - 0.5 * squares)
        pairs = noise[:, split : split + n_index].T
        if metropolised:
            chosen = draw_other_class(log_weight, index, pairs)
        else:
            chosen = draw_class(log_weight, pairs)
        chosen = pt.cast(chosen, "int64")

        x, acceptance = auxiliaries[chosen, rows], pt.full((n_rows,), np.nan)
        new_log_step = log_step
        if move.n_moves:
            walk = noise[:, split + n_index :].reshape((n_rows, move.n_moves, n + 2))
            walk = walk.transpose((1, 0, 2))
            increments = matrix_vector(scale[chosen, rows], walk[:, :, :n])
            increments = pt.exp(log_step[chosen])[None, :, None] * increments

            def one_move(step: Any, log_u: Any, x: Any, log_p: Any, accepted: Any, k: Any) -> Any:
                proposed = density.log_density(k, x + step)
                accept = pt.lt(log_u, proposed - log_p)
                return [
                    pt.specify_shape(pt.switch(accept[:, None], x + step, x), (n_rows, n)),
                    pt.specify_shape(pt.switch(accept, proposed, log_p), (n_rows,)),
                    pt.specify_shape(accepted + accept, (n_rows,)),
                ]

            positions, _, counts = pytensor.scan(
                one_move,
                sequences=[increments, log_uniform(walk[:, :, n:].transpose((2, 0, 1)))],
                outputs_info=[
                    pt.specify_shape(x, (n_rows, n)),
                    log_target[chosen, rows],
                    pt.zeros((n_rows,)),
                ],
                non_sequences=[chosen],
                return_updates=False,
            )
            x, acceptance = positions[-1], counts[-1] / move.n_moves
            member = pt.eq(pt.arange(n_classes)[:, None], chosen[None, :])
            error = (member * (acceptance - move.target_acceptance)[None, :]).sum(axis=1)
            new_log_step = log_step + gain * error / pt.maximum(member.sum(axis=1), 1)
        self._function = density.compile(
            [noise, gain, index, position, log_step, mean, scale, whiten, log_normalizer],
            [
                chosen,
                x,
                new_log_step,
                pt.special.log_softmax(log_weight.T, axis=-1),
                log_weight.T,
                acceptance,
            ],
            mode,
        )
        self.n_rows = n_rows

    def __call__(
        self,
        rng: np.random.Generator,
        gain: float,
        class_index: np.ndarray,
        position: np.ndarray,
        log_step: np.ndarray,
        pseudo_priors: PlatePseudoPriors,
        others: Sequence[np.ndarray],
        auxiliaries: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Return index, position, log steps, normalised and raw log-weights and acceptance."""
        noise = rng.standard_normal((self.n_rows, self.noise_size))
        if auxiliaries is not None:
            noise[:, : auxiliaries[0].size] = auxiliaries.reshape(self.n_rows, -1)
        found: list[np.ndarray] = self._function(
            noise,
            np.asarray(gain),
            as_argument(class_index, np.int64),
            as_argument(position),
            log_step,
            *pseudo_priors.as_list(),
            *others,
        )
        return found
