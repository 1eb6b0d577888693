"""A density as one function of flat arrays, which compiled loops call without knowing the model.

numba compiles a loop again for every function that it calls, and types everything called within it
at every level of calls. Here the graph of a density becomes a function of one type for all models.
Its arguments are the class, the position, a vector of real numbers and a vector of integers that
hold everything else, and the output vector. Loops take such functions as arguments, so they are
compiled once for all models and cached on disk. A model then compiles its density alone, or nothing
where its density is written out for a kind of models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol
from warnings import catch_warnings, filterwarnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.scalar import ScalarType, get_scalar_type, int64
from pytensor.tensor.type import TensorType

from pymc_mcoem.compiling.arithmetic import strict_arithmetic, strict_mode
from pymc_mcoem.compiling.data_functions import Density
from pymc_mcoem.compiling.messages import compiling

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["N_SETTINGS", "FlatFunction", "NotFlatError", "WrittenOut"]

#: The real numbers begin with: the temperature of the noise, and the share of the residuals in the
#: curvature.
N_SETTINGS = 2


class NotFlatError(Exception):
    """Raised for a density that needs something other than arrays of numbers."""


class WrittenOut(Protocol):
    """A density, its derivatives and sufficient statistics, as functions of flat arrays.

    Attributes
    ----------
    model : pymc.Model
        The model of the density.
    matrix, metric : TensorVariable
        Graphs of the curvature and of the metric of the steps.
    statistics : dict of str to TensorVariable
        Graphs of the statistics, in the order in which they are written.
    """

    model: pm.Model
    matrix: TensorVariable
    metric: TensorVariable
    statistics: dict[str, TensorVariable]

    @property
    def function(self) -> Any:
        """Compiled by numba, of the type `pymc_mcoem.compiling.flat_functions_numba.FUNCTION`.

        Returns the log-density, and writes the gradient where there is room for it.
        """
        ...

    def metrics(self, reals: np.ndarray) -> np.ndarray:
        """Return the metric of steps in each class, (n_classes, n_latents, n_latents)."""
        ...

    def evaluate(
        self,
        classes: np.ndarray,
        positions: np.ndarray,
        reals: np.ndarray,
        integers: np.ndarray,
        metrics: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        """Return log-densities, gradients and curvatures.

        Of a position (n_latents,) in each of n classes: (n,), (n, n_latents) and
        (n, n_latents, n_latents). `metrics` are those of `reals`.
        """
        ...

    def sums(
        self, weights: np.ndarray, positions: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return Σ_t w_t S(x_t) of draws (n_draws, n_latents), in the statistics' order.

        `values` are data of the model by name.
        """
        ...

    def unobserved(self, values: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return data of the model by name, with all values of the observation missing."""
        ...

    def pack(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the two vectors, settings first, from the model's data by name."""
        ...


class FlatFunction:
    """A graph of a density as a function of (class, position, reals, integers, out).

    Parameters
    ----------
    build : callable
        Takes a class, a position and the vector of settings, and returns the outputs.
    what : str
        Name shown while it is compiled.
    returns : bool
        Whether the first output is a scalar to return, which sufficient statistics do not have.
        All other outputs are raveled and written one after another.
    written_out : WrittenOut or None
        Function that computes the same, if there is one. Nothing is compiled then.

    Attributes
    ----------
    function : callable
        Compiled by numba. Takes class, position, the two vectors and the output vector.

    Raises
    ------
    NotFlatError
        If the density needs something other than arrays of numbers.
    """

    def __init__(
        self,
        density: Density,
        build: Callable[..., Sequence[Any]],
        what: str,
        *,
        returns: bool = True,
        written_out: WrittenOut | None = None,
    ) -> None:
        self._settings = np.ones(N_SETTINGS)
        self._density, self._written_out = density, written_out
        self._shared: list[Any] = []
        self._packed: tuple[np.ndarray, np.ndarray] | None = None
        with compiling(what):
            if written_out is not None:
                self.function = written_out.function
            else:
                self._compile(build, returns)

    def _compile(self, build: Callable[..., Sequence[Any]], returns: bool) -> None:
        # imported where it is used: numba takes a second to import
        from pymc_mcoem.compiling.scalars_numba import WITH_WRITTEN_SCALARS

        density = self._density
        shape = density.position_shape
        k: Any = int64("class_index")
        index: Any = pt.tensor_from_scalar(k)
        if len(shape) == 2:  # a plate
            k = index = pt.tensor("class_index", dtype="int64", shape=shape[:1])
        x = pt.tensor("position", dtype="float64", shape=shape)
        settings = pt.tensor("settings", dtype="float64", shape=(N_SETTINGS,))
        outputs = list(build(index, x, settings))
        if returns:
            outputs[0] = pt.scalar_from_tensor(outputs[0])
        own = [k, x, settings]
        # Single numbers are passed as scalars: numba compiles arrays without an axis slowly.
        given = density.inputs
        single = [
            variable
            for variable in graph_inputs([*outputs, *given])
            if isinstance(variable, SharedVariable) and _is_single(variable)
        ]
        passed = {
            variable: get_scalar_type(variable.dtype)(variable.name)
            for variable in [*filter(_is_single, given), *single]
        }
        outputs = clone_replace(
            outputs, {each: pt.tensor_from_scalar(passed[each]) for each in passed}
        )
        with catch_warnings():
            # where there is no C compiler, PyTensor fuses no more than NumPy's functions could take
            filterwarnings("ignore", message="Loop fusion failed")
            function = pm.pytensorf.compile(
                [*own, *(passed.get(each, each) for each in [*given, *single])],
                outputs,
                mode=strict_mode("NUMBA").including(WITH_WRITTEN_SCALARS),
                on_unused_input="ignore",
            )
        graph = function.maker.fgraph
        rest = graph.inputs[len(own) :]
        odd = [variable for variable in rest if not _is_plain(variable)]
        if odd:
            raise NotFlatError(f"density: {odd} are not arrays of numbers.")
        self._kinds = [np.dtype(variable.type.dtype) for variable in rest]
        # Storage of the model's shared data, which come last.
        arrays = function.input_storage[len(own) + len(given) + len(single) :]
        self._storage = [*(variable.container for variable in single), *arrays]
        with strict_arithmetic():
            self.function = _compiled(graph, rest, returns)

    def pack(self, values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the two vectors from the values of the density's `inputs`.

        Returns
        -------
        reals : ndarray of float of shape (N_SETTINGS + n,)
            The settings of the unchanged density, then all real numbers.
        integers : ndarray of int64 of shape (m,)
            The start and shape of each array, then the integers themselves.

        Notes
        -----
        Without values, the vectors of the last call are returned again while the model's data are
        the same objects: an array of a model that is changed in place is not noticed, and
        nobody may write into these vectors.
        """
        if self._written_out is not None:
            return self._pack_by_name(self._written_out, values)
        shared = [container.storage[0] for container in self._storage]
        if len(values):
            return self._pack([*values, *shared])
        # A chain without variables of other steps has the same data at every draw.
        if self._packed is None or not all(map(is_, shared, self._shared)):
            self._shared, self._packed = shared, self._pack(shared)
        return self._packed

    def _pack(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        reals, integers, header = [self._settings], [], []
        n_reals = n_integers = 0
        for given, kind in zip(arrays, self._kinds, strict=True):
            array = np.asarray(given)
            if kind.kind == "f":
                header.append(N_SETTINGS + n_reals)
                n_reals += array.size
                reals.append(array.ravel())
            else:
                header.append(n_integers)
                n_integers += array.size
                integers.append(array.ravel())
            header += array.shape
        return np.concatenate(reals), np.concatenate([header, *integers]).astype(np.int64)

    def _pack_by_name(
        self, written_out: WrittenOut, values: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        density: Any = self._density
        named = dict(zip(density.data_inputs, values, strict=True))
        for variable in density.model.data_vars:
            if variable.name not in named:
                named[variable.name] = variable.get_value(borrow=True)
        reals, integers = written_out.pack(named)
        reals[:N_SETTINGS] = self._settings
        return reals, integers


def _is_plain(variable: Any) -> bool:
    is_array = isinstance(variable.type, (TensorType, ScalarType))
    return is_array and np.dtype(variable.type.dtype).kind in "fiub"


def _is_single(variable: Any) -> bool:
    """Return whether a variable is a scalar of the dtype of one of the two vectors."""
    kind = variable.type
    return isinstance(kind, TensorType) and kind.ndim == 0 and kind.dtype in ("float64", "int64")


def _compiled(graph: Any, rest: Sequence[Any], returns: bool) -> Callable[..., Any]:
    """Return the function of flat arrays that calls a graph compiled by numba."""
    from numba import njit, types
    from pytensor.link.numba.cache import compile_numba_function_src
    from pytensor.link.numba.dispatch.basic import numba_funcify_ensure_cache

    from pymc_mcoem.compiling.linear_algebra_numba import replace_products

    replace_products(graph)
    # PyTensor caches every operator separately, so numba compiles one more function for each. Here
    # the whole is cached, under the key that it has that way. PyTensor's flag holds for the whole
    # process: nothing else is compiled or imported while it is off.
    _, key = numba_funcify_ensure_cache(graph)
    with pytensor.config.change_flags(numba__cache=False):
        inner, _ = numba_funcify_ensure_cache(graph)
    n_header = sum(1 + variable.type.ndim for variable in rest)
    lines, arrays, at = [], [], 0
    for place, variable in enumerate(rest):
        is_real = np.dtype(variable.type.dtype).kind == "f"
        shape = [f"integers[{at + 1 + axis}]" for axis in range(variable.type.ndim)]
        start = f"integers[{at}]" if is_real else f"integers[{at}] + {n_header}"
        part = f"{'reals' if is_real else 'integers'}[{start}"
        if isinstance(variable.type, ScalarType):
            part += "]"
        else:
            part += f" :][: {' * '.join(shape) or '1'}]"
            if len(shape) != 1:
                part += f".reshape(({', '.join(shape)}))"
            if variable.type.dtype not in ("float64", "int64"):
                part += f".astype(np.{variable.type.dtype})"
        lines.append(f"a_{place} = {part}")
        arrays.append(f"a_{place}")
        at += 1 + variable.type.ndim
    found = [f"found_{place}" for place in range(len(graph.outputs))]
    given = ["k", "x", f"reals[:{N_SETTINGS}]", *arrays]
    lines += [f"({', '.join(found)},) = inner({', '.join(given)})", "at = 0"]
    for each in found[returns:]:
        lines += [f"out[at : at + {each}.size] = {each}.ravel()", f"at += {each}.size"]
    lines.append(f"return {found[0] if returns else '0.0'}")
    source = "\n    ".join(["def flat_function(k, x, reals, integers, out):", *lines])
    # Compiled code names the module that it was made in and cannot be loaded without it.
    whole = None if key is None else sha256(f"{__name__}{source}{key}".encode()).hexdigest()
    function = compile_numba_function_src(
        source, "flat_function", {"__name__": __name__, "np": np, "inner": inner}, cache_key=whole
    )
    signature = types.float64(
        *(_numba_type(variable) for variable in graph.inputs[:2]),
        types.float64[::1],
        types.int64[::1],
        types.float64[::1],
    )
    compiled: Callable[..., Any] = njit(
        signature, cache=whole is not None, fastmath=False, error_model="numpy"
    )(function)
    return compiled


def _numba_type(variable: Any) -> Any:
    from numba import from_dtype, types

    kind = from_dtype(np.dtype(variable.type.dtype))
    rank = getattr(variable.type, "ndim", 0)
    return types.Array(kind, rank, "C") if rank else kind
