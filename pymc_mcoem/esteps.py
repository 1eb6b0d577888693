"""E-steps, and the building blocks of a custom E-step."""

from pymc_mcoem.em.esteps.auxiliary_chains import AuxiliaryChains
from pymc_mcoem.em.esteps.base import (
    CompiledChains,
    CompiledClassWeights,
    CompiledEStep,
    EStep,
    EStepResult,
)
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from pymc_mcoem.em.esteps.plain_gibbs import PlainGibbs
from pymc_mcoem.em.esteps.posterior_mode import PosteriorMode

__all__ = [
    "AuxiliaryChains",
    "CarlinChibBurst",
    "CompiledChains",
    "CompiledClassWeights",
    "CompiledEStep",
    "EStep",
    "EStepResult",
    "Exact",
    "FixedLatents",
    "LaplaceGaussian",
    "PlainGibbs",
    "PosteriorMode",
]
