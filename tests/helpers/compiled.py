"""The small families compiled once a session: what takes most of these tests' time.

The first compilation of each ever takes up to a minute; PyTensor keeps it on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.em.burst import Burst
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst, CompiledCarlinChibBurst
from tests.helpers.models import OracleFamily, ScaledMixture, SkewedMixture
from tests.helpers.quadrature import Quadrature

N_MOVES = 3


@dataclass(frozen=True)
class Compiled:
    """A family, its exact posterior, and the E-step that a driver would use.

    Attributes
    ----------
    family : OracleFamily
    quadrature : Quadrature
    e_step : CompiledCarlinChibBurst
        With Laplace pseudo-priors, three random-walk moves, and the auxiliaries kept.
    """

    family: OracleFamily
    quadrature: Quadrature
    e_step: CompiledCarlinChibBurst

    @property
    def burst(self) -> Burst:
        """Return the compiled burst of sweeps."""
        return self.e_step.burst

    @property
    def data(self) -> dict[str, np.ndarray]:
        """Return observation and parameters, in the burst's order."""
        values = self.family.values
        return {
            name: np.asarray(values[name], dtype=symbol.dtype)
            for name, symbol in self.e_step.density.data_inputs.items()
        }

    def pseudo_priors(self, kind: str) -> PseudoPriors:
        """Return pseudo-priors: "laplace", "good" (the exact moments) or "poor"."""
        if kind == "laplace":
            return self.e_step.pseudo_priors(self.data, np.random.default_rng(0))
        made = {
            "good": self.quadrature.good_pseudo_priors,
            "poor": self.quadrature.poor_pseudo_priors,
        }
        return made[kind]()


@cache
def compiled(family: type[OracleFamily]) -> Compiled:
    """Return the compiled `SkewedMixture` or `ScaledMixture`."""
    made = family()
    n_points = {SkewedMixture: 1000, ScaledMixture: 80}[family]
    settings = CarlinChibBurst(within_class=RandomWalk(N_MOVES), rao_blackwell=True)
    return Compiled(made, Quadrature(made, n_points), settings.compile(made))


@cache
def skewed_step() -> CarlinChib:
    """Return a step method on the model of ``compiled(SkewedMixture)``, with the same settings."""
    made = compiled(SkewedMixture)
    return CarlinChib(
        model=made.family.model,
        pseudo_priors=made.e_step.settings.pseudo_priors,
        within_class=made.e_step.settings.within_class,
    )
