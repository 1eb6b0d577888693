"""Learn better pseudo-priors while tuning, from pilot chains within the classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.learned import (
    LearnedMap,
    LearnedPseudoPriors,
    candidate_maps,
)

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.engines import Engine
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors

__all__ = ["Learned", "learn", "overlap"]

#: Draws of a pseudo-prior from which a pilot chain's start is chosen.
_N_STARTS = 200

#: Pilot chains of a class, their sweeps, and the first share of them that is left out.
_N_CHAINS = 4
_N_SWEEPS = 1_000
_N_SWEEPS_A_LATENT = 25
_BURN_IN = 0.2

#: Draws by which pseudo-priors are compared.
_N_COMPARED = 400

#: Most rounds of learning: the chains of a second one explore further, by draws of what the first
#: one learned.
_N_ROUNDS = 3

#: A learned pseudo-prior has to overlap so many times as much as the one before.
_LEAST_GAIN = 1.2


@dataclass(frozen=True)
class Learned:
    """A pseudo-prior that was learned.

    Attributes
    ----------
    class_number : int
    name : str
        What kind of map it is.
    before, after : float
        Overlap of the pseudo-prior with the class's posterior.
    """

    class_number: int
    name: str
    before: float
    after: float

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
    """Return pseudo-priors that are learned in some of the classes, where that is better."""
    maps: dict[int, LearnedMap] = {}
    found = []
    for j in classes:
        present, name, first = pseudo_priors, "", 0.0
        for number in range(_N_ROUNDS):
            draws = _pilot_draws(engine, rng, present, others, log_step, j)
            half = len(draws) // 2
            before = overlap(engine, rng, present, others, j, draws[half:])
            first = first if number else before
            best = _LEAST_GAIN * before
            for kind, learned in _candidates(engine, draws[:half], j):
                given = _with(pseudo_priors, {j: learned})
                after = overlap(engine, rng, given, others, j, draws[half:])
                if after > best:
                    best, maps[j], name = after, learned, kind
            if best == _LEAST_GAIN * before:
                # no better one was found: `before` is what the present one has with fresh draws
                break
            present = _with(pseudo_priors, {j: maps[j]})
        if name:
            found.append(Learned(j, name, first, max(best / _LEAST_GAIN, before) if best == _LEAST_GAIN * before else best))
    return (_with(pseudo_priors, maps) if maps else pseudo_priors), found


def _candidates(
    engine: Engine, draws: np.ndarray, class_number: int
) -> Iterator[tuple[str, LearnedMap]]:
    active = engine.density.active
    own = np.ones(draws.shape[1], bool) if active is None else active[class_number]
    return candidate_maps(draws, own, seed=class_number)


def _with(before: PseudoPriors, maps: dict[int, LearnedMap]) -> PseudoPriors:
    return replace(before, mixtures=LearnedPseudoPriors(before, maps))


def overlap(
    engine: Engine,
    rng: np.random.Generator,
    pseudo_priors: PseudoPriors,
    others: Sequence[np.ndarray],
    class_number: int,
    held_out: np.ndarray,
) -> float:
    """Return how often a draw of a pseudo-prior would replace a draw of its class's posterior.

    It is the expected acceptance of an independent proposal, 1 if they are the same.
    """
    chosen = held_out[np.linspace(0, len(held_out) - 1, _N_COMPARED).astype(int)]
    drawn = np.array([pseudo_priors.draw(rng)[class_number] for _ in range(_N_COMPARED)])
    points = np.concatenate([chosen, drawn])
    log_p = engine.log_densities(class_number, points, others)
    at = np.repeat(points[:, None, :], len(pseudo_priors.mean), axis=1)
    log_ratio = log_p - pseudo_priors.log_density(at)[:, class_number]
    log_ratio = np.where(np.isnan(log_ratio), -np.inf, log_ratio)
    here, there = log_ratio[:_N_COMPARED], log_ratio[_N_COMPARED:]
    with np.errstate(over="ignore"):
        return float(np.exp(np.minimum(there[:, None] - here, 0.0)).mean())


def _pilot_draws(
    engine: Engine,
    rng: np.random.Generator,
    pseudo_priors: PseudoPriors,
    others: Sequence[np.ndarray],
    log_step: np.ndarray,
    class_number: int,
) -> np.ndarray:
    """Return draws of chains that stay within a class, ``(n_draws, n_latents)``."""
    n_classes, n = engine.auxiliaries_shape
    only = np.where(np.arange(n_classes) == class_number, 0.0, -np.inf)
    n_sweeps = max(_N_SWEEPS, _N_SWEEPS_A_LATENT * n)
    drawn = np.array([pseudo_priors.draw(rng)[class_number] for _ in range(_N_STARTS)])
    log_p = engine.log_densities(class_number, drawn, others)
    at = np.repeat(drawn[:, None, :], n_classes, axis=1)
    log_ratio = log_p - pseudo_priors.log_density(at)[:, class_number]
    log_ratio = np.where(np.isnan(log_ratio), -np.inf, log_ratio)
    weight = np.exp(log_ratio - log_ratio.max())
    starts = rng.choice(len(drawn), size=_N_CHAINS, p=weight / weight.sum())
    found = []
    for start in starts:
        position, step = drawn[start], log_step.copy()
        for t in range(n_sweeps):
            swept = engine.sweep(
                rng,
                2.0 / np.sqrt(t + 1),
                np.asarray(class_number),
                position,
                step,
                pseudo_priors,
                others,
                equalizing_log_weight=only,
                jumps=False,
            )
            position, step = swept.position, swept.log_step
            if t >= _BURN_IN * n_sweeps:
                found.append(position)
    return np.array(found)[rng.permutation(len(found))]
