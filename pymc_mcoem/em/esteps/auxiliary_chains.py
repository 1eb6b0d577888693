"""A chain of its own in every class: the E-step of Allassonnière and Kuhn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from scipy.special import chdtri, logsumexp, softmax

from pymc_mcoem.carlin_chib.pseudo_priors import (
    Laplace,
    PseudoPriorRule,
    PseudoPriors,
    compile_with_data,
)
from pymc_mcoem.carlin_chib.within_class import ClassProposal, RandomWalk, WithinClassMove
from pymc_mcoem.density import as_argument
from pymc_mcoem.em.burst import WeightedStatistics, adaptation_gains
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.parts import (
    FEW,
    effective_share,
    family_density,
    family_geometry,
    fit_to_keep,
    kept_fit,
    require_density,
    require_moves,
    statistics_of_draws,
)

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["AuxiliaryChains", "CompiledAuxiliaryChains"]


@dataclass(frozen=True)
class AuxiliaryChains:
    """Statistics averaged over a chain in every class, weighed by estimates of evidence.

    Parameters
    ----------
    pseudo_priors : PseudoPriorRule
        The densities κ_j of the estimates, where the chains start, and what moves are shaped
        like. Default: `Laplace`.
    within_class : WithinClassMove
        Default: `RandomWalk`.
    coverage : float
        Probability of the ellipsoid around its mean that each κ_j is cut down to; 1 leaves the
        pseudo-prior whole.
    mode : str or None
        PyTensor's compilation mode.

    Raises
    ------
    ValueError
        If `coverage` is not in (0, 1].

    Notes
    -----
    Allassonnière and Kuhn (2010). In class j a chain X_{j,1}, …, X_{j,T} has the target
    p(x | y, I = j), and since κ_j is a normalised density,

        1 / Z_j = E[κ_j(X) / p(y, I = j, X) | y, I = j]
                ≈ (1/T) Σ_t κ_j(X_{j,t}) / p(y, I = j, X_{j,t}),

    the reciprocal importance formula (Gelfand and Dey 1994) for Z_j = p(y, I = j). They draw a
    class from the estimates. Here the statistics of all classes are weighed by them,

        E[δ_{I,j} S | y] ≈ (Z_j / Σ_l Z_l) (1/T) Σ_t S(X_{j,t}),

    which has the same mean and a smaller variance: the chains have been run anyway.

    The estimate has a finite variance only if κ_j has lighter tails than the posterior, and a
    normal density has not where a posterior ends sooner. κ_j is therefore cut (Geweke 1999) to the
    ellipsoid that holds the share `coverage` of it: on a skewed posterior of three classes
    weights from 1,000 sweeps varied by 0.006 instead of 0.016. Where no draw is in the ellipsoid
    the whole κ_j is taken, and the result's troubles say so; and so they do where the effective
    share of the ratios, averaged over classes by weight, is below a tenth.

    Cost: in every class, with or without weight, one density evaluation a sweep and those of
    the moves: as many as n_classes bursts of plain Markov chains. The bias of the weights is of
    order 1/T, so chains of a few sweeps a visit, as `SAEM` may ask for, give poor ones.

    Examples
    --------
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
    >>> e_step = AuxiliaryChains(within_class=RandomWalk(n_moves=5)).compile(family)
    >>> theta, state = family.model_parameters(), e_step.initial_state()
    >>> found = e_step(family.encode(0.5), theta, rng, state, draws=4000, burn_in=50)
    >>> found.statistics["class_weight"].round(2), found.statistics["x"].round(1)
    (array([0.27, 0.73]), array([-0.2,  0.9]))
    """

    pseudo_priors: PseudoPriorRule = field(default_factory=Laplace)
    within_class: WithinClassMove = field(default_factory=RandomWalk)
    coverage: float = 0.9
    mode: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.coverage <= 1:
            raise ValueError(
                f"coverage: got {self.coverage}; give a probability above 0, at most 1."
            )

    def compile(self, family: Family) -> CompiledAuxiliaryChains:
        """Compile pseudo-priors, chain and statistics for `family`."""
        with family.as_declared():
            return CompiledAuxiliaryChains(self, family)


@dataclass(frozen=True)
class _Chains:
    """The chains of all classes, ``(n_classes, n_sweeps, ...)``, and the last step sizes."""

    position: np.ndarray
    log_density: np.ndarray
    acceptance: np.ndarray
    log_step: np.ndarray


class CompiledAuxiliaryChains:
    """An `AuxiliaryChains` compiled for one family.

    Parameters
    ----------
    settings : AuxiliaryChains
    family : Family
    """

    def __init__(self, settings: AuxiliaryChains, family: Family) -> None:
        self.settings = settings
        density = self.density = family_density(family)
        move, n = settings.within_class, density.n_latents
        require_moves(move, density)
        self.pseudo_priors = settings.pseudo_priors.compile(
            density, family_geometry(family), settings.mode
        )
        self.statistics = WeightedStatistics(family, density, mode=settings.mode)
        self.noise_size = move.noise_size(n)
        self.initial_log_step = np.full(density.n_classes, move.initial_log_step(n))
        inside = np.inf if settings.coverage == 1 else chdtri(n, 1 - settings.coverage)
        self._largest_square = float(inside)

        noise = pt.tensor("noise", dtype="float64", shape=(None, self.noise_size))
        gains = pt.tensor("gains", dtype="float64", shape=(None,))
        k = pt.scalar("class_index", dtype="int64")
        start = pt.tensor("start", dtype="float64", shape=(n,))
        log_step = pt.scalar("log_step", dtype="float64")
        mean = pt.tensor("mean", dtype="float64", shape=(n,))
        scale, whiten = (
            pt.tensor(name, dtype="float64", shape=(n, n)) for name in ("scale", "whiten")
        )

        def log_density(k: Any, x: Any) -> Any:
            value = density.log_density(k, x)
            # From where there is no density every move to where there is some is accepted.
            return pt.switch(pt.isnan(value), -np.inf, value)

        def sweep(
            noise: Any, gain: Any, x: Any, log_p: Any, log_step: Any, k: Any, *proposal: Any
        ) -> list[Any]:
            shaped = ClassProposal(*proposal)
            moved = move.build(density, k, x, log_p, noise, shaped, log_step)
            return [
                pt.specify_shape(moved.position, (n,)),
                log_density(k, moved.position),
                log_step + gain * (moved.acceptance - move.target_acceptance),
                moved.acceptance,
            ]

        positions, log_densities, log_steps, acceptance = pytensor.scan(
            sweep,
            sequences=[noise, gains],
            outputs_info=[start, log_density(k, start), log_step, None],
            non_sequences=[k, scale, mean, whiten],
            return_updates=False,
        )
        self._chain = compile_with_data(
            density,
            [noise, gains, k, start, log_step, scale, mean, whiten],
            [positions, log_densities, acceptance, log_steps[-1]],
            settings.mode,
        )

    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the step sizes that a run starts with: ``log_step`` of shape (n_classes,)."""
        return {"log_step": self.initial_log_step.copy()}

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
        """Return mean statistics over `draws` sweeps a class, kept after `burn_in` sweeps.

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
        pseudo_priors, chains = self._run(values, rng, state["log_step"], draws, burn_in)
        return self._summed(pseudo_priors, chains, burn_in, values)

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
        """Go on with the chains of an observation, or begin them; see `CompiledChains.resume`.

        They are ``position`` (n_classes, n_latents) and ``log_step`` (n_classes,), and with
        `keep_fit` the pseudo-priors, ``2 n_classes n_latents**2`` numbers.
        """
        values = {**parameters, **data}
        fitted = None if refit else kept_fit(chain)
        pseudo_priors = self.pseudo_priors(values, rng) if fitted is None else fitted
        starts = chain["position"] if chain else _starts(pseudo_priors, rng)
        log_step = chain["log_step"] if chain else self.initial_log_step
        found = self._swept(rng, starts, log_step, pseudo_priors, gains, values)
        result = self._summed(pseudo_priors, found, 0, values)
        following = {"position": found.position[:, -1].copy(), "log_step": found.log_step}
        if keep_fit:
            following |= fit_to_keep(pseudo_priors)
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
        """Return the class probabilities of one encoded observation, ``(n_classes,)``."""
        values = {**parameters, **data}
        pseudo_priors, chains = self._run(values, rng, self.initial_log_step, draws, burn_in)
        log_evidence, _, _ = self._log_evidence(pseudo_priors, chains, burn_in)
        probability: np.ndarray = softmax(log_evidence)
        return probability

    def _run(
        self,
        values: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        log_step: np.ndarray,
        draws: int,
        burn_in: int,
    ) -> tuple[PseudoPriors, _Chains]:
        pseudo_priors = self.pseudo_priors(values, rng)
        gains = adaptation_gains(burn_in + draws, burn_in)
        starts = _starts(pseudo_priors, rng)
        return pseudo_priors, self._swept(rng, starts, log_step, pseudo_priors, gains, values)

    def _swept(
        self,
        rng: np.random.Generator,
        starts: np.ndarray,
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        gains: np.ndarray,
        values: Mapping[str, np.ndarray],
    ) -> _Chains:
        arguments = self.density.arguments(values)
        # One class at a time: the noise of a long chain is many numbers.
        chains = [
            self._chain(
                rng.standard_normal((len(gains), self.noise_size)),
                as_argument(gains),
                np.asarray(j, dtype=np.int64),
                as_argument(starts[j]),
                as_argument(log_step[j]),
                as_argument(pseudo_priors.scale[j]),
                as_argument(pseudo_priors.mean[j]),
                as_argument(pseudo_priors.whiten[j]),
                *arguments,
            )
            for j in range(self.density.n_classes)
        ]
        return _Chains(*(np.stack(parts) for parts in zip(*chains, strict=True)))

    def _log_evidence(
        self, pseudo_priors: PseudoPriors, chains: _Chains, burn_in: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log Z_j by the reciprocal formula, effective shares, and which κ_j were whole."""
        positions = chains.position[:, burn_in:]
        centred = positions - pseudo_priors.mean[:, None]
        squares = (np.einsum("jab,jtb->jta", pseudo_priors.whiten, centred) ** 2).sum(axis=2)
        inside = squares <= self._largest_square
        whole = ~inside.any(axis=1)
        log_cut = np.where(whole, 0.0, np.log(self.settings.coverage))[:, None]
        log_kappa = pseudo_priors.log_normalizer[:, None] - 0.5 * squares - log_cut
        log_kappa = np.where(inside | whole[:, None], log_kappa, -np.inf)
        log_p = chains.log_density[:, burn_in:]
        # A chain that never found a density has no evidence, wherever its κ_j is.
        log_ratio = np.where(np.isneginf(log_p), np.inf, log_kappa - log_p)
        log_evidence = np.log(log_p.shape[1]) - logsumexp(log_ratio, axis=1)
        require_density(log_evidence, "auxiliary chains")
        return log_evidence, effective_share(log_ratio), whole

    def _summed(
        self,
        pseudo_priors: PseudoPriors,
        chains: _Chains,
        burn_in: int,
        values: Mapping[str, np.ndarray],
    ) -> EStepResult:
        log_evidence, shares, whole = self._log_evidence(pseudo_priors, chains, burn_in)
        weight = softmax(log_evidence)
        positions = chains.position[:, burn_in:]
        acceptance = float(weight @ chains.acceptance[:, burn_in:].mean(axis=1))
        troubles = dict(pseudo_priors.troubles)
        if weight @ whole > FEW:
            troubles["reciprocal importance: no draw near the pseudo-prior"] = 1
        if weight @ shares < FEW:
            troubles["reciprocal importance: few draws count"] = 1
        if acceptance == 0.0:
            troubles["chain did not move within its class"] = 1
        draws = positions.shape[1]
        weights = np.repeat(weight[:, None] / draws, draws, axis=1)
        return EStepResult(
            statistics_of_draws(self.statistics, positions, weights, values),
            acceptance=acceptance,
            log_evidence=float(logsumexp(log_evidence)),
            troubles=troubles,
            state={"log_step": chains.log_step},
        )


def _starts(pseudo_priors: PseudoPriors, rng: np.random.Generator) -> np.ndarray:
    """Draw where each class's chain starts, from its pseudo-prior."""
    noise = rng.standard_normal(pseudo_priors.mean.shape)
    starts: np.ndarray = pseudo_priors.mean + np.einsum("jab,jb->ja", pseudo_priors.scale, noise)
    return starts
