"""Log-density, gradient and curvature at points, as searches for modes need them.

Where a search is made a few times, as when a chain of ``pm.sample`` starts, PyTensor interprets the
density: nothing is compiled. Where it is made for every observation (the density has data as
inputs) the density is compiled. A curvature that is not written out is made of differences of
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Split

from pymc_mcoem.compiling.backends import backend_of, interpreted_mode
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.compiling.flat_functions import N_SETTINGS, FlatFunction, NotFlatError

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.density.class_density import ClassDensity

__all__ = ["Evaluations", "by_diagonal", "compile_evaluations"]

#: Points at which a density is evaluated together.
N_POINTS = 32


class Evaluations:
    """Evaluations of a density, compiled or interpreted.

    Parameters
    ----------
    written_out, metric : TensorVariable or None
        Curvature and metric of steps, matrices ``(n_latents, n_latents)`` in variables of the
        model. Without the first: differences of gradients, and their diagonal.
    replaced : callable
        Takes settings (temperature of the noise, share of the residuals) and returns replacements
        of symbols of the model.
    """

    def __init__(
        self,
        density: ClassDensity,
        written_out: TensorVariable | None,
        metric: TensorVariable | None,
        replaced: Callable[[Any], dict[Any, Any]],
    ) -> None:
        self._density = density
        self._written_out, self._metric, self._replaced = written_out, metric, replaced
        self._is_bent = written_out is not None

    def at(self, arguments: Sequence[np.ndarray]) -> Callable[..., tuple[np.ndarray, ...]]:
        """Return `newton.iterate`'s function for what `ClassDensity.arguments` returns."""
        return partial(self._evaluate, self._prepared(arguments))

    @property
    def takes_many_points(self) -> bool:
        """Whether `at_points` works: if nothing is compiled and no curvature is given."""
        return not (self._is_bent or self._density.data_inputs)

    def at_points(
        self,
        arguments: Sequence[np.ndarray],
        class_index: int,
        points: np.ndarray,
        settings: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log-densities ``(n,)`` and gradients ``(n, n_latents)`` at points."""
        # a density may overflow or have no logarithm somewhere
        with np.errstate(all="ignore"):
            return self._slopes(self._prepared(arguments), class_index, points, settings)

    def graphs(self, k: Any, x: Any, settings: Any) -> list[Any]:
        """Return log-density and gradient and, if written out, curvature and metric of steps."""
        density = self._density
        found: list[Any] = [density.log_density(k, x), density.gradient(k, x)]
        if self._written_out is not None:
            matrix = density.place(self._written_out, k, x)
            if self._metric is None:
                lengths = pt.diag(pt.maximum(pt.abs(pt.diagonal(matrix)), 1e-10))
            else:
                lengths = density.place(self._metric, k, x)
            found += [matrix, lengths]
        return list(clone_replace(found, self._replaced(settings)))

    def _prepared(self, arguments: Sequence[np.ndarray]) -> Any:
        """Return the arguments as evaluations take them."""
        raise NotImplementedError

    def _evaluate(
        self,
        prepared: Any,
        classes: np.ndarray,
        positions: np.ndarray,
        guesses: np.ndarray,
        settings: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        """Evaluate the density at a position in each of some classes; see `newton.iterate`."""
        each = [
            self._written(prepared, k, x, settings)
            if self._is_bent
            else self._by_differences(prepared, k, x, guess, settings)
            for k, x, guess in zip(classes.tolist(), positions, guesses, strict=True)
        ]
        return tuple(np.array(part) for part in zip(*each, strict=True))

    def _written(self, prepared: Any, k: int, x: np.ndarray, settings: np.ndarray) -> Sequence[Any]:
        """Evaluate a density whose curvature is written out."""
        raise NotImplementedError

    def _slopes(
        self, prepared: Any, k: int, points: np.ndarray, settings: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log-densities and gradients at points ``(n, n_latents)``."""
        raise NotImplementedError

    def _by_differences(
        self, prepared: Any, k: int, x: np.ndarray, guess: np.ndarray, settings: np.ndarray
    ) -> Sequence[Any]:
        """Evaluate a density and its curvature by differences of gradients."""
        # distances of the differences
        size, bend = np.maximum(1.0, np.abs(x)), np.abs(guess)
        with np.errstate(divide="ignore"):
            spread = np.where(bend > 0.0, 1.0 / np.sqrt(bend), size)
        steps = 1e-4 * np.minimum(np.maximum(spread, 1e-6 * size), size)
        points = np.concatenate([x[None], x + np.diag(steps), x - np.diag(steps)])
        # a density may overflow or have no logarithm where a step has gone too far
        with np.errstate(all="ignore"):
            values, slopes = self._slopes(prepared, k, points, settings)
            n = len(x)
            forward = (slopes[0] - slopes[1 : n + 1]) / steps[:, None]
            backward = (slopes[n + 1 :] - slopes[0]) / steps[:, None]
            ahead, behind = np.abs(np.diagonal(forward)), np.abs(np.diagonal(backward))
            # If a kink or a bound makes the sides differ, the smaller difference is used.
            apart = np.abs(ahead - behind) > 0.5 * np.maximum(ahead, behind)
            is_in = np.isfinite(values[1 : n + 1]), np.isfinite(values[n + 1 :])
            weight = np.where(apart, ahead < behind, 0.5)
            weight = np.where(is_in[0] == is_in[1], weight, is_in[0])[:, None]
            bend = np.where(weight > 0, weight * forward, 0.0)
            bend += np.where(weight < 1, (1 - weight) * backward, 0.0)
        matrix = 0.5 * (bend + bend.T)
        return values[0], slopes[0], matrix, by_diagonal(matrix)


def by_diagonal(matrices: np.ndarray) -> np.ndarray:
    """Return the default metric of steps for one or many curvatures."""
    diagonal = np.maximum(np.abs(np.diagonal(matrices, axis1=-2, axis2=-1)), 1e-10)
    # a curvature that overflows, as in the neck of a funnel, makes NaN, which searches refuse
    with np.errstate(invalid="ignore"):
        found: np.ndarray = diagonal[..., None] * np.eye(matrices.shape[-1])
    return found


class _FlatEvaluations(Evaluations):
    """Evaluations of a density that numba compiles, point by point."""

    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        self._made_of = made_of
        what = "gradient and curvature" if self._is_bent else "the gradient"
        known = self._density.written_out
        if known is not None and self._is_bent:
            is_its = self._written_out is known.matrix
            if not (is_its and (self._metric is None or self._metric is known.metric)):
                known = None
        self._flat = FlatFunction(self._density, self.graphs, what, written_out=known)
        self._known = known if self._is_bent else None

    def __reduce__(self) -> Any:
        # compiled code contains addresses of this process
        return _FlatEvaluations, self._made_of

    def _prepared(self, arguments: Sequence[np.ndarray]) -> Any:
        n, (reals, integers) = self._density.n_latents, self._flat.pack(arguments)
        if self._known is not None:
            return reals, integers, self._known.metrics(reals)
        # `_call` writes its settings into the first of them.
        return reals.copy(), integers, np.empty(n + 2 * n * n)

    def _call(
        self, prepared: Any, k: int, x: np.ndarray, settings: np.ndarray, out: np.ndarray
    ) -> float:
        reals, integers, _ = prepared
        reals[:2] = settings[1:3]
        value: float = self._flat.function(k, x, reals, integers, out)
        return value

    def _evaluate(
        self,
        prepared: Any,
        classes: np.ndarray,
        positions: np.ndarray,
        guesses: np.ndarray,
        settings: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        if self._known is None:
            return super()._evaluate(prepared, classes, positions, guesses, settings)
        reals, integers, metrics = prepared
        reals[:2] = settings[1:3]
        # a density may overflow somewhere
        with np.errstate(all="ignore"):
            found = self._known.evaluate(classes, positions, reals, integers, metrics)
        return *found, metrics[classes] if self._metric is not None else by_diagonal(found[-1])

    def _written(self, prepared: Any, k: int, x: np.ndarray, settings: np.ndarray) -> Sequence[Any]:
        n, out = len(x), prepared[2]
        value = self._call(prepared, k, x, settings, out)
        # copies, for the next call writes to the same place
        gradient, (matrix, lengths) = out[:n].copy(), out[n:].reshape((2, n, n)).copy()
        return (
            value,
            gradient,
            matrix,
            lengths if self._metric is not None else by_diagonal(matrix),
        )

    def _slopes(
        self, prepared: Any, k: int, points: np.ndarray, settings: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = np.empty(len(points)), np.empty_like(points)
        for place, point in enumerate(points):
            values[place] = self._call(prepared, k, point, settings, slopes[place])
        return values, slopes


class _GraphEvaluations(Evaluations):
    """Evaluations of a density that PyTensor interprets or another back end compiles."""

    def __init__(self, *made_of: Any, mode: Any) -> None:
        super().__init__(*made_of)
        density = self._density
        k = pt.scalar("class_index", dtype="int64")
        x = pt.tensor("position", dtype="float64", shape=(density.n_latents,))
        settings = pt.tensor("settings", dtype="float64", shape=(N_SETTINGS,))
        graphs = self.graphs(k, x, settings)
        if not self._is_bent:
            points = pt.tensor("positions", dtype="float64", shape=(None, density.n_latents))
            graphs = vectorize_graph(_with_known_splits(graphs), {x: points})
            x = points
        self._function = compile_with_data(density, [k, x, settings], graphs, mode)

    def _prepared(self, arguments: Sequence[np.ndarray]) -> Any:
        return arguments

    def _call(self, prepared: Any, k: int, x: np.ndarray, settings: np.ndarray) -> list[np.ndarray]:
        own = settings[1:3]
        return [np.asarray(each) for each in self._function(np.asarray(k), x, own, *prepared)]

    def _written(self, prepared: Any, k: int, x: np.ndarray, settings: np.ndarray) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            return self._call(prepared, k, x, settings)

    def _slopes(
        self, prepared: Any, k: int, points: np.ndarray, settings: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        # in chunks, because arrays grow with the number of points
        chunks = [
            self._call(prepared, k, points[first : first + N_POINTS], settings)
            for first in range(0, len(points), N_POINTS)
        ]
        values, slopes = (np.concatenate(part) for part in zip(*chunks, strict=True))
        return values, slopes


def _with_known_splits(graphs: Sequence[Any]) -> list[Any]:
    """Return graphs in which arrays are split at constants wherever types tell the sizes.

    Gradients of ``stack`` split by the shapes of its arguments, which may depend on the position.
    PyTensor runs a split of many positions as a loop over them, unless the sizes do not.
    """
    known = {}
    for variable in ancestors(graphs):
        node = variable.owner
        if node is not None and isinstance(node.op, Split):
            sizes = [each.type.shape[node.op.axis] for each in node.outputs]
            if None not in sizes:
                known[node.inputs[1]] = pt.constant(sizes, dtype="int64")
    return list(clone_replace(list(graphs), known))


def compile_evaluations(
    density: ClassDensity,
    written_out: TensorVariable | None,
    metric: TensorVariable | None,
    replaced: Callable[[Any], dict[Any, Any]],
    mode: Any,
) -> Evaluations:
    """Return the evaluations of a density; see `Evaluations`.

    Parameters
    ----------
    density, written_out, metric, replaced
        As in `Evaluations`.
    mode : str or None
        PyTensor's compilation mode, where the density has data as inputs.
    """
    made_of = density, written_out, metric, replaced
    if not density.data_inputs:
        return _GraphEvaluations(*made_of, mode=interpreted_mode())
    if backend_of(mode) == "numba":
        try:
            return _FlatEvaluations(*made_of)
        except NotFlatError:  # the density needs something that is not an array of numbers
            pass
    return _GraphEvaluations(*made_of, mode=mode)
