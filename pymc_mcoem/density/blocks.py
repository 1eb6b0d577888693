"""Density with different latents in each class, for model choice with a plain ``switch``.

A block names the latents that are active in its class. Carlin and Chib's target for class j is
then p(y, I = j, x_active), with the inactive latents integrated out. This is exact and costs
nothing if an inactive latent appears in its prior only, which is proved on the model's graph.
Within a sweep an inactive coordinate is standard normal in both density and pseudo-prior, so it
cancels. The trace gets a draw from its prior given everything else, as the model defines it, never
a draw from a pseudo-prior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors

from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.supports import latents_cut_off
from pymc_mcoem.density.unused_latents import looked_at

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["BlockDensity"]


class BlockDensity(ClassDensity):
    """Log-density of (class index, latents) where each class has latents of its own.

    Parameters
    ----------
    class_index : TensorVariable
        Free scalar Categorical variable of `model`.
    blocks : mapping of int to sequence of (TensorVariable or str)
        The free continuous variables that are active in each class. Blocks may overlap and may be
        empty.

    Attributes
    ----------
    active : ndarray of bool, shape (n_classes, n_latents)
        Which coordinates are active in which class.

    Raises
    ------
    ValueError
        If the blocks do not name every class, if they name a variable that is not free and
        continuous, if a variable affects the density in a class whose block does not have it, or if
        its transform does not reach all values of its prior.

    Notes
    -----
    The density is log p(y, I = j, x_active) + log Normal(x_inactive; 0, 1). All coordinates have a
    density in every class, so that kernels, mode searches and evidences need no special case.

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
        named = {j: _variables(model, j, block) for j, block in _by_class(blocks).items()}
        union = {rv for block in named.values() for rv in block}
        super().__init__(
            model, class_index, [rv for rv in model.free_RVs if rv in union], turns=True
        )
        if sorted(named) != list(range(self.n_classes)):
            raise ValueError(
                f"blocks: got the classes {sorted(named)}; {class_index.name} has the classes 0 to "
                f"{self.n_classes - 1}: give a block for each, empty where a class has no latent."
            )
        flags = np.array(
            [[rv in named[j] for rv in self.latents] for j in range(self.n_classes)], dtype=bool
        ).reshape(self.n_classes, len(self.latents))
        self.active = np.repeat(flags, self.latent_sizes, axis=1)
        self._require_conditionally_free(flags)
        self._require_whole_priors(flags)
        self._log_density = self._joint(flags)

    def _factors(self) -> dict[TensorVariable, TensorVariable]:
        """Return the factors of the joint density that depend on the index or on latents."""
        own = {*self.latent_values, self.index_value}
        variables = [*self.model.basic_RVs, *self.model.potentials]
        terms = self.model.logp(vars=variables, sum=False)
        return {
            variable: term
            for variable, term in zip(variables, terms, strict=True)
            if own & set(ancestors([term]))
        }

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
                    # An inactive variable in this prior is drawn before this one.
                    continue
                seen = looked_at(term)
                for rv in off:
                    if self.model.rvs_to_values[rv] in seen:
                        raise ValueError(
                            f"blocks: {rv.name} is not in the block of class {j}, but the density "
                            f"of {name} depends on it; add it to that block, or write the "
                            f"model so that pm.math.switch({self.class_index.name} == ..., ...) "  # type: ignore[union-attr]
                            "leaves it out (this cannot be seen for arrays that are stacked "
                            "and then indexed)."
                        )

    def _require_whole_priors(self, flags: np.ndarray) -> None:
        off = [rv for rv, flag in zip(self.latents, flags.T, strict=True) if not flag.all()]
        cut = latents_cut_off(self.model, off)
        if cut:
            raise ValueError(
                f"blocks: the transforms of {[rv.name for rv in cut]} do not reach all values of "
                "their priors, or may not where the priors' parameters move, and they are drawn "
                "from these priors in classes whose blocks do not have them. Use the "
                "distributions' default transforms, or pm.Truncated."
            )

    def _joint(self, flags: np.ndarray) -> TensorVariable:
        # Nothing depends on inactive variables. They are still held at the model's initial point,
        # because zero times infinity would not be zero.
        start = self.model.initial_point(random_seed=0)
        safe, is_active = {}, {}
        for rv, column in zip(self.latents, flags.T, strict=True):
            if not column.all():
                value = self.model.rvs_to_values[rv]
                is_active[rv] = pt.constant(column)[self.index_value]
                still = self.constants.own(value.name, start[value.name])
                safe[value] = pt.switch(is_active[rv], value, pt.cast(still, value.dtype))
        own = {*self.latent_values, self.index_value}
        factors = {
            variable: term for variable, term in self.terms.items() if own & set(ancestors([term]))
        }
        terms = clone_replace(list(factors.values()), safe, rebuild_strict=False)
        sums = []
        for variable, term in zip(factors, terms, strict=True):
            if variable in is_active:
                value = self.model.rvs_to_values[variable]
                standard = (-0.5 * pt.sqr(value) - 0.5 * np.log(2 * np.pi)).sum()
                sums.append(pt.switch(is_active[variable], self._sum(variable, term), standard))
            else:
                sums.append(self._sum(variable, term))
        return pt.add(*sums) if len(sums) > 1 else sums[0]


def _by_class(blocks: Any) -> dict[int, Any]:
    """Return blocks by class number."""
    if not isinstance(blocks, Mapping):
        raise ValueError(f"blocks: got {blocks!r}; give a mapping, as {{0: [a], 1: [b, c]}}.")
    odd = [j for j in blocks if isinstance(j, bool) or not isinstance(j, (int, np.integer))]
    if odd:
        raise ValueError(
            f"blocks: got the classes {odd}; name classes by their numbers, as {{0: [a], 1: [b]}}."
        )
    return {int(j): block for j, block in blocks.items()}


def _variables(
    model: pm.Model, class_number: Any, block: Sequence[TensorVariable | str]
) -> list[TensorVariable]:
    """Return the variables of a block, which may contain names or variables."""
    if isinstance(block, str) or not isinstance(block, Sequence):
        raise ValueError(
            f"blocks: class {class_number} has {block!r}; give a list of variables, as [a, b]."
        )
    found = []
    for item in block:
        rv = model.named_vars.get(item) if isinstance(item, str) else item
        if rv not in model.free_RVs:
            raise ValueError(
                f"blocks: {getattr(item, 'name', item)!r}, of class {class_number}, is not a free "
                f"variable of the model; choose from {[rv.name for rv in model.free_RVs]}, by name "
                "if the model is a copy."
            )
        found.append(rv)
    return found
