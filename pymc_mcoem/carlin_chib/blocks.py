"""Different latents in each class: model choice with a model written as a plain ``switch``.

A block names the latents that are active in its class. Carlin and Chib's target for class j is
then p(y, I = j, x_active), with the inactive latents integrated out; that is exact and free where
nothing but its own prior looks at a latent while its class is off, and this is proved on the
model's graph. Inside a sweep an inactive coordinate is standard normal in density and
pseudo-prior alike, so it cancels; what enters the trace for it is a draw from its prior given
everything else, as the model says, never from a pseudo-prior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.link.vm import VMLinker
from pytensor.tensor.random.type import RandomType

from pymc_mcoem.density import ClassDensity

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["BlockDensity", "InactiveDraw"]


class BlockDensity(ClassDensity):
    """Log-density of (class index, latents) where each class has latents of its own.

    Parameters
    ----------
    model : pymc.Model
    class_index : TensorVariable
        Free scalar Categorical variable of `model`.
    blocks : mapping of int to sequence of (TensorVariable or str)
        For every class the free continuous variables that are active in it. Blocks may overlap,
        and may be empty.

    Attributes
    ----------
    active : ndarray of bool, shape (n_classes, n_latents)
        Which coordinates are active in which class.

    Raises
    ------
    ValueError
        If the blocks do not name every class, name a variable that is not a free continuous one,
        or if a variable is not conditionally free in a class whose block leaves it out.

    Notes
    -----
    log p(y, I = j, x_active) + log Normal(x_inactive; 0, 1): all coordinates have a density in
    every class, so that kernels, mode searches and evidences need no special case.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     a, b = pm.Normal("a"), pm.Normal("b", 0.0, 2.0)
    ...     y = pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b), 1.0, observed=0.3)
    >>> BlockDensity(model, k, {0: [a], 1: [b]}).active
    array([[ True, False],
           [False,  True]])
    """

    active: np.ndarray

    def __init__(
        self,
        model: pm.Model,
        class_index: TensorVariable,
        blocks: Mapping[int, Sequence[TensorVariable | str]],
    ) -> None:
        named = {int(j): _variables(model, j, block) for j, block in blocks.items()}
        union = {rv for block in named.values() for rv in block}
        super().__init__(model, class_index, [rv for rv in model.free_RVs if rv in union])
        if sorted(named) != list(range(self.n_classes)):
            raise ValueError(
                f"blocks: got the classes {sorted(named)}; {class_index.name} has the classes 0 to "
                f"{self.n_classes - 1}: give a block for each, empty where a class has no latent."
            )
        flags = np.array(
            [[rv in named[j] for rv in self.latents] for j in range(self.n_classes)], dtype=bool
        ).reshape(self.n_classes, len(self.latents))
        self.active = np.repeat(flags, self._sizes, axis=1)
        self._require_conditionally_free(flags)
        self._log_density = self._joint(flags)

    def _factors(self) -> dict[TensorVariable, TensorVariable]:
        """Return the factors of the joint density in which index or latents appear."""
        own = {*self.latent_values, self.index_value}
        factors = {}
        for variable in [*self.model.basic_RVs, *self.model.potentials]:
            (term,) = self.model.logp(vars=[variable], sum=False)
            if own & set(ancestors([term])):
                factors[variable] = term
        return factors

    def _require_conditionally_free(self, flags: np.ndarray) -> None:
        factors = self._factors()
        names = [variable.name for variable in factors]
        for j in range(self.n_classes):
            off = [rv for rv, flag in zip(self.latents, flags[j], strict=True) if not flag]
            if not off:
                continue
            index = pt.constant(j, dtype=self.index_value.dtype)  # type: ignore[union-attr]
            placed = clone_replace(
                list(factors.values()), {self.index_value: index}, rebuild_strict=False
            )
            simple = rewrite_graph(placed, include=("canonicalize",))
            for variable, name, term in zip(factors, names, simple, strict=True):
                if variable in off:
                    # what another inactive variable's prior looks at is drawn before it
                    continue
                seen = set(ancestors([term]))
                for rv in off:
                    if self.model.rvs_to_values[rv] in seen:
                        raise ValueError(
                            f"blocks: {rv.name} is not in the block of class {j}, but the density "
                            f"of {name} looks at it there; add it to that block, or write the "
                            f"model so that switch({self.class_index.name} == ..., ...) "  # type: ignore[union-attr]
                            "leaves it out."
                        )

    def _joint(self, flags: np.ndarray) -> TensorVariable:
        # What is inactive is looked at by nothing; it is held at the model's initial point all
        # the same, for zero times infinity would not be zero.
        start = self.model.initial_point(random_seed=0)
        safe, is_active = {}, {}
        for rv, column in zip(self.latents, flags.T, strict=True):
            if not column.all():
                value = self.model.rvs_to_values[rv]
                is_active[rv] = pt.constant(column)[self.index_value]
                still = pt.constant(np.asarray(start[value.name], dtype=value.dtype))
                safe[value] = pt.switch(is_active[rv], value, still)
        factors = self._factors()
        terms = clone_replace(list(factors.values()), safe, rebuild_strict=False)
        parts = []
        for variable, term in zip(factors, terms, strict=True):
            if variable in is_active:
                value = self.model.rvs_to_values[variable]
                standard = (-0.5 * pt.sqr(value) - 0.5 * np.log(2 * np.pi)).sum()
                parts.append(pt.switch(is_active[variable], term.sum(), standard))
            else:
                parts.append(term.sum())
        return pt.add(*parts) if len(parts) > 1 else parts[0]


class InactiveDraw:
    """Draws of the inactive latents from their priors, given the active ones and all others.

    Others are the model's other free variables, and what it has observed.

    Parameters
    ----------
    density : BlockDensity

    Raises
    ------
    ValueError
        If a prior cannot be drawn from, or its draws have no place on the scale of a transform.
    """

    def __init__(self, density: BlockDensity) -> None:
        model = density.model
        k = pt.scalar("class_index", dtype="int64")
        position = pt.tensor("position", dtype="float64", shape=(density.n_latents,))
        replacement: dict[Any, Any] = {density.class_index: pt.cast(k, density.index_value.dtype)}  # type: ignore[union-attr]
        for rv in model.observed_RVs:
            replacement[rv] = model.rvs_to_values[rv]
        where = dict(zip(density.latents, density._split(position), strict=True))
        starts = np.cumsum([0, *density._sizes])
        firsts = dict(zip(density.latents, starts[:-1], strict=True))
        parts = []
        # In the order of the model: parents come before what depends on them.
        for rv in model.free_RVs:
            if rv is density.class_index:
                continue
            if rv not in where:
                replacement[rv] = _natural(model, rv, model.rvs_to_values[rv], replacement)
                continue
            drawn = clone_replace([rv], replacement, rebuild_strict=False)[0]
            is_active = pt.constant(density.active[:, firsts[rv] : firsts[rv] + 1].all(axis=1))[k]
            given = _natural(model, rv, pt.cast(where[rv], rv.dtype), replacement)
            now = pt.switch(is_active, given, drawn)
            transform = model.rvs_to_transforms[rv]
            if transform is not None:
                inputs = clone_replace(list(rv.owner.inputs), replacement, rebuild_strict=False)
                drawn = transform.forward(drawn, *inputs)
            parts.append(pt.switch(is_active, where[rv], pt.cast(drawn, "float64")).ravel())
            replacement[rv] = now
        # In Python: numba takes longer to hand over a generator than this takes to draw, and
        # there is nothing to compile.
        self._function = pm.pytensorf.compile(
            [k, position, *density.other_values],
            pt.concatenate(parts),
            mode=Mode(VMLinker(c_thunks=False), "fast_run").excluding("cxx_only"),
            on_unused_input="ignore",
        )
        self._function.trust_input = True
        self._generators = [
            shared for shared in self._function.get_shared() if isinstance(shared.type, RandomType)
        ]
        self._try(density)

    def _try(self, density: BlockDensity, n_draws: int = 10) -> None:
        """Refuse priors that cannot be drawn from, or not on the scale of their transforms."""
        point = density.model.initial_point(random_seed=0)
        position, others = density.ravel(point), density.others(point)
        rng = np.random.default_rng(0)
        for j in range(density.n_classes):
            try:
                draws = np.array([self(j, position, others, rng) for _ in range(n_draws)])
            except NotImplementedError as error:
                raise ValueError(
                    f"blocks: what is inactive in class {j} cannot be drawn from its prior "
                    f"({error}); give it a proper prior with draws of its own."
                ) from error
            odd = ~np.isfinite(draws).all(axis=0)
            if odd.any():
                owners = np.repeat([rv.name for rv in density.latents], density._sizes)
                raise ValueError(
                    f"blocks: prior draws of {sorted(set(owners[odd].tolist()))} leave the support "
                    f"of their transforms in class {j}; take the distributions' own transforms."
                )

    def __call__(
        self,
        class_index: int,
        position: np.ndarray,
        others: Sequence[np.ndarray],
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return the position with its inactive coordinates drawn anew, ``(n_latents,)``."""
        # Generators are made anew at each call: all state is that of the one handed in.
        seeds = rng.integers(2**63, size=len(self._generators))
        for shared, seed in zip(self._generators, seeds, strict=True):
            shared.set_value(np.random.Generator(np.random.PCG64(int(seed))), borrow=True)
        drawn: np.ndarray = self._function(np.asarray(class_index), position, *others)
        return drawn


def _natural(
    model: pm.Model, rv: TensorVariable, value: TensorVariable, replacement: Mapping[Any, Any]
) -> TensorVariable:
    """Return a value on the scale of its random variable."""
    transform = model.rvs_to_transforms[rv]
    if transform is None:
        return value
    inputs = clone_replace(list(rv.owner.inputs), replacement, rebuild_strict=False)
    natural: TensorVariable = transform.backward(value, *inputs)
    return natural


def _variables(
    model: pm.Model, class_number: Any, block: Sequence[TensorVariable | str]
) -> list[TensorVariable]:
    """Return the variables of a block, named or given."""
    if isinstance(block, str) or not isinstance(block, Sequence):
        raise ValueError(
            f"blocks: class {class_number} has {block!r}; give a list of variables, as [a, b]."
        )
    found = []
    for item in block:
        rv = model.named_vars.get(item) if isinstance(item, str) else item
        if rv not in model.free_RVs:
            raise ValueError(
                f"blocks: {getattr(item, 'name', item)!r}, of class {class_number}, is no free "
                f"variable of the model; choose from {[rv.name for rv in model.free_RVs]}."
            )
        found.append(rv)
    return found
