"""Learn better pseudo-priors while tuning, from pilot chains within the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.learned import LearnedMap, candidate_maps, with_maps
from pymc_mcoem.compiling.threads import one_blas_thread

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.engines import Engine
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors

__all__ = ["Agreement", "Learned", "agreement", "learn"]

#: Draws of a pseudo-prior from which a pilot chain's start is chosen.
_N_STARTS = 200

#: Number of pilot chains of a class, and their sweeps. A random walk takes longer to forget than
#: other moves, and needs more sweeps for each latent.
_N_CHAINS = 4
_N_SWEEPS = 1_000
_N_SWEEPS_A_LATENT = 6
_N_SWEEPS_A_LATENT_OF_WALKS = 25

#: Sweeps between two proposals of the pseudo-prior, and the first share that is dropped.
_N_BETWEEN = 10
_BURN_IN = 0.2

#: Draws by which pseudo-priors are compared.
_N_COMPARED = 400

#: Largest number of rounds: chains of a second round explore further, by draws from the
#: pseudo-prior that the first round learned.
_N_ROUNDS = 5

#: A learned pseudo-prior is used if it multiplies the overlap by the first number, because a sweep
#: takes up to five times as long with it (few latents, on numba; hardly longer with a hundred), or
#: in a next round by the second. An overlap below the third is no help, one above the fourth is not
#: improved, and above the last the mean importance ratio estimates the evidence.
_LEAST_GAIN = 2.0
_LEAST_NEXT_GAIN = 1.05
_LEAST_OVERLAP = 0.02
_GOOD_OVERLAP = 0.4
_TRUSTED_OVERLAP = 0.3


@dataclass(frozen=True)
class Learned:
    """A pseudo-prior that was learned.

    Attributes
    ----------
    name : str
        Kind of map.
    before, after : float
        Overlap of the pseudo-prior with the class's posterior.
    learned_map : LearnedMap
    log_evidence : float
    """

    class_number: int
    name: str
    before: float
    after: float
    learned_map: LearnedMap
    log_evidence: float

    def __str__(self) -> str:
        return (
            f"learned a pseudo-prior of class {self.class_number} ({self.name}), which overlaps "
            f"with its posterior by {self.after:.2f} instead of {self.before:.2f}."
        )


def learn(
    engine: Engine,
    rng: np.random.Generator,
    pseudo_priors: PseudoPriors,
    others: Sequence[np.ndarray],
    log_step: np.ndarray,
    classes: Sequence[int],
) -> tuple[PseudoPriors, list[Learned]]:
    """Return pseudo-priors, learned in the classes where this is better.

    Parameters
    ----------
    engine : Engine
        Engine of a single index.
    pseudo_priors : PseudoPriors
        Pseudo-priors of the fit.
    log_step : ndarray of shape (n_classes,)
        Logarithms of the step sizes that the pilot chains start with.

    Returns
    -------
    PseudoPriors
        The same object if none is better.
    list of Learned
        By class.
    """
    with one_blas_thread():  # sums in another order have other last digits
        each = [_learn(engine, rng, pseudo_priors, others, log_step, j) for j in classes]
    found = [learned for learned in each if learned is not None]
    if not found:
        return pseudo_priors, []
    log_evidence = pseudo_priors.log_evidence.copy()
    for learned in found:
        # a mean of ratios says little where pseudo-prior and posterior hardly overlap
        if learned.after > _TRUSTED_OVERLAP:
            log_evidence[learned.class_number] = learned.log_evidence
    maps = {learned.class_number: learned.learned_map for learned in found}
    return with_maps(replace(pseudo_priors, log_evidence=log_evidence), maps), found


def _learn(
    engine: Engine,
    rng: np.random.Generator,
    pseudo_priors: PseudoPriors,
    others: Sequence[np.ndarray],
    log_step: np.ndarray,
    class_number: int,
) -> Learned | None:
    """Return a better pseudo-prior of a class, or None."""
    active = _active(engine, class_number)
    if not active.any():
        return None
    present, first, found = pseudo_priors, 0.0, None
    for number in range(_N_ROUNDS):
        chains = _pilot_draws(engine, rng, present, others, log_step, class_number)
        # chains may be at different modes: the end of each is held out
        draws = np.concatenate([chain[: -len(chain) // 4] for chain in chains])
        held_out = np.concatenate([chain[-len(chain) // 4 :] for chain in chains])
        if not (np.ptp(draws[:, active], axis=0) > 0).all():
            break
        before = agreement(engine, rng, present, others, class_number, held_out).overlap
        first = before if number == 0 else first
        if number == 0 and before > _GOOD_OVERLAP:
            break
        least = before * (_LEAST_GAIN if number == 0 else _LEAST_NEXT_GAIN)
        better = None
        for name, learned in candidate_maps(draws, held_out, active, seed=class_number):
            given = with_maps(pseudo_priors, {class_number: learned})
            after = agreement(engine, rng, given, others, class_number, held_out)
            if after.overlap > least:
                least, present = after.overlap, given
                better = Learned(
                    class_number, name, first, after.overlap, learned, after.log_evidence
                )
        if better is None:
            break
        found = better
    return found if found is not None and found.after > _LEAST_OVERLAP else None


def _active(engine: Engine, class_number: int) -> np.ndarray:
    """Return which coordinates are active in a class, ``(n_latents,)``."""
    active = engine.density.active
    if active is None:
        return np.ones(engine.density.n_latents, dtype=bool)
    found: np.ndarray = active[class_number]
    return found


@dataclass(frozen=True)
class Agreement:
    """Agreement of a pseudo-prior with its class's posterior.

    Attributes
    ----------
    overlap : float
        Acceptance rate of draws of one as independent proposals to the other: 1 if they are the
        same.
    log_evidence : float
        Logarithm of the mean importance ratio, whose expectation is p(y, I = j).
    """

    overlap: float
    log_evidence: float


def agreement(
    engine: Engine,
    rng: np.random.Generator,
    pseudo_priors: PseudoPriors,
    others: Sequence[np.ndarray],
    class_number: int,
    held_out: np.ndarray,
) -> Agreement:
    """Compare the pseudo-prior of a class with draws of its posterior ``(n_draws, n_latents)``."""
    chosen = held_out[np.linspace(0, len(held_out) - 1, _N_COMPARED).astype(int)]
    weigh = _Weigher(engine, pseudo_priors, others, class_number)
    here, there = weigh(chosen), weigh(weigh.draws(rng, _N_COMPARED))
    return Agreement(
        float(np.exp(np.minimum(there[:, None] - here, 0.0)).mean()),
        float(np.logaddexp.reduce(there) - np.log(_N_COMPARED)),
    )


@dataclass(frozen=True)
class _Weigher:
    """Draws of a class's pseudo-prior, and the logarithms of their importance ratios."""

    engine: Engine
    pseudo_priors: PseudoPriors
    others: Sequence[np.ndarray]
    class_number: int

    def draws(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return n draws ``(n, n_latents)``, with zeros where latents are inactive."""
        found = np.array([self.pseudo_priors.draw(rng)[self.class_number] for _ in range(n)])
        found[:, ~_active(self.engine, self.class_number)] = 0.0
        return found

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Return log p(y, I, U) - log κ(U) at points ``(n, n_latents)``; nan is minus infinity."""
        log_p = self.engine.log_densities(self.class_number, points, self.others)
        at = np.repeat(points[:, None, :], len(self.pseudo_priors.mean), axis=1)
        with np.errstate(invalid="ignore"):
            log_ratio = log_p - self.pseudo_priors.log_density(at)[:, self.class_number]
        return np.where(np.isnan(log_ratio), -np.inf, log_ratio)


def _pilot_draws(
    engine: Engine,
    rng: np.random.Generator,
    pseudo_priors: PseudoPriors,
    others: Sequence[np.ndarray],
    log_step: np.ndarray,
    class_number: int,
) -> list[np.ndarray]:
    """Return draws of chains that stay within a class, ``(n_draws, n_latents)`` of each.

    Every few sweeps a chain is proposed a draw of the pseudo-prior, which takes it to other modes
    and along tails.
    """
    n_active = engine.density.n_active[class_number]
    n_each = _N_SWEEPS_A_LATENT_OF_WALKS if engine.walks else _N_SWEEPS_A_LATENT
    n_proposals = max(_N_SWEEPS, n_each * n_active) // _N_BETWEEN
    gains = 2.0 / np.sqrt(np.arange(1, n_proposals * _N_BETWEEN + 1))
    weigh = _Weigher(engine, pseudo_priors, others, class_number)
    drawn = weigh.draws(rng, _N_STARTS)
    log_ratio = weigh(drawn)
    if not np.isfinite(log_ratio).any():
        return [drawn[:1].repeat(4, axis=0)]  # nowhere to start: a chain that stands still
    weight = np.exp(log_ratio - log_ratio.max())
    starts = rng.choice(len(drawn), size=_N_CHAINS, p=weight / weight.sum())
    found = []
    for start in starts:
        position, step, own_draws = drawn[start], log_step.copy(), []
        proposed = weigh.draws(rng, n_proposals)
        log_ratios = weigh(proposed)
        for index, own in enumerate(gains.reshape(n_proposals, -1)):
            made = engine.sweeps_within(
                class_number, rng, own, position, step, pseudo_priors, others
            )
            position, step = made.position[-1], made.log_step
            if index >= _BURN_IN * n_proposals:
                own_draws.append(made.position)
            (here,) = weigh(position[None])
            if -rng.standard_exponential() < log_ratios[index] - here:
                position = proposed[index]
        found.append(np.concatenate(own_draws))
    return found
