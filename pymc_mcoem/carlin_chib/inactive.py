"""Draw inactive latents from their priors for the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.link.vm import VMLinker
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.random.type import RandomType

from pymc_mcoem.compiling.arithmetic import strict_mode
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.messages import compiling

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.density.blocks import BlockDensity

__all__ = ["InactiveDraw"]


class InactiveDraw:
    """Draw inactive latents from their priors, given the active ones and all other variables.

    These are the model's other free variables and its observed ones.

    Parameters
    ----------
    mode : str or None
        PyTensor's compilation mode, for priors that are drawn by quantiles.

    Notes
    -----
    Normal priors with constant parameters are drawn by NumPy, and nothing is compiled. If all
    priors are normal, or have quantiles that PyMC knows, the draws are a function of standard
    normals, compiled as sweeps are. Other priors are drawn in Python by their random variables,
    from generators made anew for each draw, which is several times slower.
    """

    def __init__(self, density: BlockDensity, mode: Any = None) -> None:
        self._n_latents = density.n_latents
        self._active = density.active
        self._generators: list[Any] | None = None
        self._moments = _known_moments(density)
        if self._moments is not None:
            self._try(density)
            return
        with compiling("draws of inactive latents"):
            self._compile(density, mode)
            self._try(density)

    def _compile(self, density: BlockDensity, mode: Any) -> None:
        try:
            self._function = self._by_quantiles(density, mode)
        except NotImplementedError:
            self._function = self._by_themselves(density)
            self._generators = [
                shared
                for shared in self._function.get_shared()
                if isinstance(shared.type, RandomType)
            ]
        self._function.trust_input = True

    def _by_quantiles(self, density: BlockDensity, mode: Any) -> Any:
        noise = pt.tensor("noise", dtype="float64", shape=(density.n_latents,))
        noise_of = dict(zip(density.latents, density.split(noise), strict=True))
        inputs, drawn = _graph(density, noise_of)
        return pm.pytensorf.compile(
            [*inputs, noise, *density.other_values],
            drawn,
            mode=strict_mode(mode),
            on_unused_input="ignore",
        )

    def _by_themselves(self, density: BlockDensity) -> Any:
        # In Python: numba takes longer to pass a generator than Python takes to draw, and there
        # is nothing to compile.
        inputs, drawn = _graph(density, None)
        return pm.pytensorf.compile(
            [*inputs, *density.other_values],
            drawn,
            mode=Mode(VMLinker(c_thunks=False), "fast_run").excluding("cxx_only"),
            on_unused_input="ignore",
        )

    def _try(self, density: BlockDensity) -> None:
        """Raise `ValueError` for priors without draws, or without finite transformed draws."""
        point = density.model.initial_point(random_seed=0)
        position, others = density.ravel(point), density.others(point)
        rng = np.random.default_rng(0)
        for j in range(density.n_classes):
            try:
                draws = np.array([self(j, position, others, rng) for _ in range(10)])
            except NotImplementedError as error:
                raise ValueError(
                    f"blocks: inactive latents of class {j} cannot be drawn from their prior "
                    f"({error}); give them proper priors that can be drawn from."
                ) from error
            odd = ~np.isfinite(draws).all(axis=0)
            if odd.any():
                owners = np.repeat([rv.name for rv in density.latents], density.latent_sizes)
                raise ValueError(
                    f"blocks: prior draws of {sorted(set(owners[odd].tolist()))} are not finite on "
                    f"the scale of their transforms in class {j}, where numbers overflow or "
                    "underflow; give them narrower priors."
                )

    def __call__(
        self,
        class_index: int,
        position: np.ndarray,
        others: Sequence[np.ndarray],
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return the position with its inactive coordinates drawn anew, ``(n_latents,)``."""
        if self._moments is not None:
            mean, spread = self._moments
            drawn = mean + spread * rng.standard_normal(self._n_latents)
            return np.where(self._active[class_index], position, drawn)
        index = np.array([class_index])
        if self._generators is None:
            found = self._function(index, position, rng.standard_normal(self._n_latents), *others)
            return np.asarray(found)
        # Generators are made anew at each call, so that `rng` holds all of the state.
        seeds = rng.integers(2**63, size=len(self._generators))
        for shared, seed in zip(self._generators, seeds, strict=True):
            shared.set_value(np.random.Generator(np.random.PCG64(int(seed))), borrow=True)
        return np.asarray(self._function(index, position, *others))


def _known_moments(density: BlockDensity) -> tuple[np.ndarray, np.ndarray] | None:
    """Return means and standard deviations of normal priors, each ``(n_latents,)``.

    It returns None if a prior is not normal, is transformed, or depends on any variable of the
    model, data included.
    """
    model, constants = density.model, density.constants
    known = {*constants.shared}
    normals: list[list[np.ndarray]] = []
    for rv, size in zip(density.latents, density.latent_sizes, strict=True):
        own = constants.graphs[rv]
        if not isinstance(own.owner.op, NormalRV) or model.rvs_to_transforms[rv] is not None:
            return None
        parameters = list(own.owner.op.dist_params(own.owner))
        if any(
            each.owner is None and each not in known and not isinstance(each, Constant)
            for each in ancestors(parameters)
        ):
            return None
        values = pm.pytensorf.compile([], parameters, mode=interpreted_mode())()
        shape = model.initial_point(random_seed=0)[str(model.rvs_to_values[rv].name)].shape
        normals.append([np.broadcast_to(value, shape).reshape(size) for value in values])
    mean, spread = (np.concatenate(part) for part in zip(*normals, strict=True))
    return mean, spread


def _graph(
    density: BlockDensity, noise: Mapping[TensorVariable, TensorVariable] | None
) -> tuple[list[TensorVariable], TensorVariable]:
    """Return the inputs (class index and position) and the position with its inactive part drawn.

    Parameters
    ----------
    noise : mapping of latent to tensor of its shape, or None
        Standard normals to draw each latent with; None leaves the draws to the random variables.
    """
    model, constants = density.model, density.constants
    # a vector of length one, because numba is slow to receive arrays without an axis
    index = pt.tensor("class_index", dtype="int64", shape=(1,))
    k = index[0]
    position = pt.tensor("position", dtype="float64", shape=(density.n_latents,))
    replacement: dict[Any, Any] = {
        constants.graphs[density.class_index]: pt.cast(k, density.index_value.dtype)  # type: ignore[union-attr]
    }
    for rv in model.observed_RVs:
        replacement[constants.graphs[rv]] = model.rvs_to_values[rv]
    where = dict(zip(density.latents, density.split(position), strict=True))
    starts = np.cumsum([0, *density.latent_sizes])
    firsts = dict(zip(density.latents, starts[:-1], strict=True))
    drawn_latents = []
    # In the model's order, parents come before the variables that depend on them.
    for rv in model.free_RVs:
        if rv is density.class_index:
            continue
        own = constants.graphs[rv]
        transform = model.rvs_to_transforms[rv]
        if rv not in where:
            replacement[own] = _natural(own, transform, model.rvs_to_values[rv], replacement)
            continue
        drawn = clone_replace([own], replacement, rebuild_strict=False)[0]
        if noise is not None:
            drawn = _quantile(drawn, noise[rv])
        is_active = pt.constant(density.active[:, firsts[rv] : firsts[rv] + 1].all(axis=1))[k]
        given = _natural(own, transform, pt.cast(where[rv], rv.dtype), replacement)
        replacement[own] = pt.switch(is_active, given, drawn)
        if transform is not None:
            inputs = clone_replace(list(own.owner.inputs), replacement, rebuild_strict=False)
            drawn = transform.forward(drawn, *inputs)
        drawn_latents.append(pt.cast(drawn, "float64").ravel())
    found = pt.switch(pt.constant(density.active)[k], position, pt.concatenate(drawn_latents))
    return [index, position], constants.arrays_replaced([found])[0]


def _quantile(rv: TensorVariable, noise: TensorVariable) -> TensorVariable:
    """Return a draw of a random variable as a function of standard normals of its shape."""
    if isinstance(rv.owner.op, NormalRV):
        mean, spread = rv.owner.op.dist_params(rv.owner)
        return mean + spread * noise
    return pm.icdf(rv, 0.5 * pt.erfc(-noise / np.sqrt(2.0)))


def _natural(
    rv: TensorVariable, transform: Any, value: TensorVariable, replacement: Mapping[Any, Any]
) -> TensorVariable:
    """Return an untransformed value, on the scale of its random variable."""
    if transform is None:
        return value
    inputs = clone_replace(list(rv.owner.inputs), replacement, rebuild_strict=False)
    natural: TensorVariable = transform.backward(value, *inputs)
    return natural
