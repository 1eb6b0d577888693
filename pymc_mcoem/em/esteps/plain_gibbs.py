"""Gibbs sampling of (class, latents) as they are: the E-step that does not work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp, softmax

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk, WithinClassMove
from pymc_mcoem.carlin_chib.pseudo_priors.base import N_STARTS, PseudoPriorRule, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.sweeps import Sweeps
from pymc_mcoem.compiling.backends import pytensor_mode, require_backend
from pymc_mcoem.em.burst import WeightedStatistics, adaptation_gains
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.class_fits import (
    family_density,
    fit_to_keep,
    kept_fit,
    own_chain,
    require_density,
    require_moves,
)
from pymc_mcoem.em.esteps.gibbs import GibbsChain

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["CompiledPlainGibbs", "PlainGibbs"]


@dataclass(frozen=True)
class PlainGibbs:
    """Statistics averaged over Gibbs sweeps of class and latents, kept to show why they fail.

    Parameters
    ----------
    proposals : PseudoPriorRule
        What within-class moves are shaped like, and where the chain starts; the class is drawn
        without them. Default: `Laplace`.
    within_class : WithinClassMove
        Default: `RandomWalk`.
    backend : str or None
        ``"numba"``, ``"c"`` or ``"jax"``, as in ``pm.sample``; see `CarlinChibBurst`.

    Notes
    -----
    A sweep draws the class given the latents that the present class has,

        P(I = j | X, y) ∝ p(y, I = j, X),

    and then moves X within the class drawn. It leaves the posterior invariant, and on classes
    that share their latents it is as good as any. But the latents of one class are rarely
    plausible in another: in d dimensions P(I = j | X, y) falls like exp(−c d), and the chain
    stays where it began, however long it is: of 12 digits under four classes with 78 latents, 10
    were in a wrong class for all of 200 sweeps after 100 of burn-in. Carlin and Chib's remedy is to
    draw latents for every class (`CarlinChibBurst`).

    The chain starts in a class drawn with equal probabilities, with up to fifty draws of latents
    where the density has edges, and not by the proposals' estimate
    of evidence: a chain that never leaves its first class would then be right on average, by
    Laplace's merit. Where all sweeps are in one class, and independent draws from that estimate
    would be less than once in a thousand times, the result's troubles say so; the evidence
    reported is that estimate.

    Cost: a sweep evaluates the density once for each class and once for each random-walk move,
    as a Carlin-Chib sweep does.

    Examples
    --------
    Classes around −2 and 2 are near enough for 4,000 sweeps, around −8 and 8 they are not; by
    symmetry both weights are 1/2:

    >>> import pymc as pm
    >>> from pymc_mcoem.em.family import Family
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
    ...     found = e_step(data, theta, rng, state, draws=4000, burn_in=50)
    ...     print(found.statistics["class_weight"].round(1), list(found.troubles))
    [0.5 0.5] []
    [1. 0.] ['class index did not move']
    """

    proposals: PseudoPriorRule = field(default_factory=Laplace)
    within_class: WithinClassMove = field(default_factory=RandomWalk)
    backend: str | None = None

    def __post_init__(self) -> None:
        require_backend(self.backend)

    def compile(self, family: Family) -> CompiledPlainGibbs:
        """Compile proposals, sweeps and statistics for `family`."""
        with family.as_declared():
            return CompiledPlainGibbs(self, family)


class CompiledPlainGibbs:
    """A `PlainGibbs` compiled for one family.

    Parameters
    ----------
    settings : PlainGibbs
    family : Family
    """

    def __init__(self, settings: PlainGibbs, family: Family) -> None:
        mode = pytensor_mode(settings.backend)
        density, move = family_density(family), settings.within_class
        require_moves(move, density)
        self.proposals = settings.proposals.compile(density, family.geometry, mode)
        self.statistics = WeightedStatistics(family, density, mode=mode)
        self.chain = GibbsChain(density, move, mode=mode)

    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the step sizes that a run starts with: ``log_step`` of shape (n_classes,)."""
        return {"log_step": self.chain.initial_log_step.copy()}

    def __call__(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        state: Mapping[str, np.ndarray],
        *,
        draws: int,
        burn_in: int,
    ) -> EStepResult:
        """Return mean statistics over `draws` sweeps kept after `burn_in` sweeps.

        Parameters
        ----------
        data : mapping of str to ndarray
            The encoded observation.
        parameters : mapping of str to ndarray
            θ by ``pm.Data`` name.
        rng : numpy.random.Generator
        state : mapping of str to ndarray
            As from `initial_state` or the last result.
        draws, burn_in : int

        Returns
        -------
        EStepResult
        """
        values = {**parameters, **data}
        proposals, found = self._run(values, rng, state["log_step"], draws, burn_in)
        return self._summed(proposals, found, burn_in, values)

    def resume(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        chain: Mapping[str, np.ndarray],
        *,
        gains: np.ndarray,
        refit: bool,
        keep_fit: bool,
    ) -> EStepResult:
        """Go on with the chain of an observation, or begin it; see `CompiledChains.resume`.

        The chain is ``position`` (n_latents,) and ``log_step`` (n_classes,), and with `keep_fit`
        the proposals, ``2 n_classes n_latents**2`` numbers.
        """
        values = {**parameters, **data}
        log_steps = self.chain.initial_log_step
        n = self.chain.density.n_latents
        chain = own_chain(chain, position=(n,), log_step=log_steps.shape)
        fitted = None if refit else kept_fit(chain)
        proposals = self.proposals(values, rng) if fitted is None else fitted
        found = None
        if chain:
            log_steps = chain["log_step"]
            found = self.chain(rng, chain["position"], log_steps, proposals, gains, values)
        # where parameters have moved a hard edge past the chain, it begins anew
        if found is None or not _has_density(found):
            found = self._begun(rng, log_steps, proposals, gains, values)
        result = self._summed(proposals, found, 0, values)
        following = {"position": found.position[-1].copy(), "log_step": found.log_step}
        if keep_fit:
            following |= fit_to_keep(proposals)
        return replace(result, chain=following)

    def class_probability(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        draws: int,
        burn_in: int,
    ) -> np.ndarray:
        """Return the class probabilities of one encoded observation, ``(n_classes,)``.

        The mean over the kept sweeps of those that the index was drawn from.
        """
        values = {**parameters, **data}
        _, found = self._run(values, rng, self.chain.initial_log_step, draws, burn_in)
        require_density(found.log_weight[burn_in:], "plain Gibbs")
        mean: np.ndarray = softmax(found.log_weight[burn_in:], axis=1).mean(axis=0)
        return mean

    def _run(
        self,
        values: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        log_step: np.ndarray,
        draws: int,
        burn_in: int,
    ) -> tuple[PseudoPriors, Sweeps]:
        proposals = self.proposals(values, rng)
        gains = adaptation_gains(burn_in + draws, burn_in)
        return proposals, self._begun(rng, log_step, proposals, gains, values)

    def _begun(
        self,
        rng: np.random.Generator,
        log_step: np.ndarray,
        proposals: PseudoPriors,
        gains: np.ndarray,
        values: Mapping[str, np.ndarray],
    ) -> Sweeps:
        """Run a chain from a draw of a proposal, and from others where there is no density."""
        for _ in range(N_STARTS):
            start = _start(proposals, rng)
            found = self.chain(rng, start, log_step, proposals, gains, values)
            if _has_density(found):
                break
        return found

    def _summed(
        self,
        proposals: PseudoPriors,
        found: Sweeps,
        burn_in: int,
        values: Mapping[str, np.ndarray],
    ) -> EStepResult:
        require_density(found.log_weight[burn_in:], "plain Gibbs")
        indices = found.class_index[burn_in:]
        acceptance = float(np.mean(found.acceptance[burn_in:]))
        troubles = dict(proposals.troubles)
        if acceptance == 0.0:
            troubles["chain did not move within its class"] = 1
        expected = softmax(proposals.log_evidence)[indices[0]]
        # Not a number where the rule estimates no evidence: then there is nothing to compare with.
        if (indices == indices[0]).all() and expected ** len(indices) < 1e-3:
            troubles["class index did not move"] = 1
        return EStepResult(
            self.statistics(
                indices, found.position[burn_in:], np.full(len(indices), 1 / len(indices)), values
            ),
            class_index=indices,
            acceptance=acceptance,
            log_evidence=float(logsumexp(proposals.log_evidence)),
            troubles=troubles,
            state={"log_step": found.log_step},
        )


def _has_density(found: Sweeps) -> bool:
    """Say whether there was a class with density at every sweep."""
    return bool(np.isfinite(found.log_weight.max(axis=1)).all())


def _start(proposals: PseudoPriors, rng: np.random.Generator) -> np.ndarray:
    """Draw the first latents from the proposal of a class that is drawn with equal odds."""
    unknown = np.full(len(proposals.mean), np.nan)
    return replace(proposals, log_evidence=unknown).start(rng)[1]
