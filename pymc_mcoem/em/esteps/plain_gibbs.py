"""Plain Gibbs sampling of class and latents, an E-step that usually fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from pymc_mcoem.carlin_chib.moves.defaults import BURST_MOVE
from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriorRule, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.compiling.backends import require_backend
from pymc_mcoem.em.burst import Burst
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.class_fits import require_moves
from pymc_mcoem.em.esteps.compiled import SweepEStep

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["CompiledPlainGibbs", "PlainGibbs"]


@dataclass(frozen=True)
class PlainGibbs:
    """Statistics averaged over plain Gibbs sweeps of class and latents, to show why they fail.

    Parameters
    ----------
    proposals : PseudoPriorRule
        They shape the within-class moves and give the chain its start; the class is drawn without
        them. Default: `Laplace`.
    within_class : WithinClassMove
        Default: `Hamiltonian`, as in `CarlinChibBurst`.
    backend : str or None
        ``"numba"``, ``"c"`` or ``"jax"``, as in ``pm.sample``; see `CarlinChibBurst`.

    Notes
    -----
    A sweep draws the class given the latents of the present class,

        P(I = j | X, y) ∝ p(y, I = j, X),

    and then moves X within the drawn class. This leaves the posterior invariant and works well if
    classes share their latents. But the latents of one class are rarely plausible in another: in
    d dimensions P(I = j | X, y) falls like exp(−c d), and even a long chain stays where it began.
    Of 12 digits under four classes with 78 latents, 10 were in a wrong class for all of 200 sweeps
    after 100 of tuning. Carlin and Chib's remedy is to draw latents for every class
    (`CarlinChibBurst`).

    The chain starts in a class drawn with equal probabilities, with up to fifty draws of latents
    if the density has edges. It does not start by the proposals' estimate of evidence, because a
    chain that never leaves its first class would then be right on average, thanks to Laplace's
    approximation. The result reports a trouble if all sweeps are in one class and independent draws
    by that estimate would be with probability below 1/1000; the evidence reported is that estimate.

    Cost: as for Carlin-Chib, a sweep evaluates the density once for each class, plus the cost of
    its moves.

    Examples
    --------
    With 4,000 sweeps the chain switches between classes around −2 and 2, but not around −8 and 8;
    by symmetry both true weights are 1/2:

    >>> import pymc as pm
    >>> from pymc_mcoem.em.family import Family
    >>> from pymc_mcoem.moves import RandomWalk
    >>> class Pair(Family):
    ...     observation = ("y",)
    ...
    ...     def __init__(self):
    ...         with pm.Model() as self.model:
    ...             means = pm.Data("means", [-2.0, 2.0])
    ...             y = pm.Data("y", 0.0)
    ...             self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
    ...             x = pm.Normal("x", means[self.class_index], 1.0)
    ...             pm.Normal("value", x, 1.0, observed=y)
    ...         self.statistics = {"x": x}
    >>> family, rng = Pair(), np.random.default_rng(1)
    >>> e_step = PlainGibbs(within_class=RandomWalk(n_moves=2)).compile(family)
    >>> data, state = family.encode(0.0), e_step.initial_state()
    >>> for means in ([-2.0, 2.0], [-8.0, 8.0]):
    ...     theta = {"means": np.array(means)}
    ...     found = e_step(data, theta, rng, state, draws=4000, tune=50)
    ...     print(found.statistics["class_weight"].round(1), list(found.troubles))
    [0.5 0.5] []
    [1. 0.] ['class index did not move']
    """

    proposals: PseudoPriorRule = field(default_factory=Laplace)
    within_class: WithinClassMove = BURST_MOVE
    backend: str | None = None

    def __post_init__(self) -> None:
        require_backend(self.backend)

    def compile(self, family: Family) -> CompiledPlainGibbs:
        """Compile proposals, sweeps and statistics for `family`."""
        with family.as_declared():
            return CompiledPlainGibbs(self, family)


class CompiledPlainGibbs(SweepEStep):
    """A `PlainGibbs` compiled for one family."""

    name = "plain Gibbs"

    def __init__(self, settings: PlainGibbs, family: Family) -> None:
        super().__init__(family, settings.backend, settings.proposals)
        require_moves(settings.within_class, self.density)
        # the class given the latents, then the latents given the class
        self.burst = Burst(self.density, settings.within_class, shared_latents=True, mode=self.mode)
        self.initial_log_step = self.burst.initial_log_step

    def _chain_start(
        self, pseudo_priors: PseudoPriors, rng: np.random.Generator
    ) -> tuple[int, np.ndarray]:
        """Draw the first class with equal odds, and latents from its proposal."""
        unknown = np.full(self.density.n_classes, np.nan)
        return replace(pseudo_priors, log_evidence=unknown).draw_start(rng)

    def _summed(
        self,
        pseudo_priors: PseudoPriors,
        found: Sweeps,
        tune: int,
        rng: np.random.Generator,
        values: Mapping[str, np.ndarray],
    ) -> EStepResult:
        result = super()._summed(pseudo_priors, found, tune, rng, values)
        indices = found.class_index[tune:]
        expected = softmax(pseudo_priors.log_evidence)[indices[0]]
        # nan, so that no trouble is counted, if the rule does not estimate evidence
        if (indices == indices[0]).all() and expected ** len(indices) < 1e-3:
            result.troubles["class index did not move"] = 1
        return result
