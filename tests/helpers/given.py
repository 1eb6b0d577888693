"""A rule that fits nothing: to compile a search for modes takes longer than most chains do."""

from __future__ import annotations

from dataclasses import dataclass

from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors


@dataclass(frozen=True)
class Given:
    """A rule that returns pseudo-priors that somebody made."""

    made: PseudoPriors

    def compile(self, density, geometry, mode=None):
        return lambda data, rng, others=(): self.made
