"""Pseudo-priors, and the building blocks of a custom rule."""

from pymc_mcoem.carlin_chib.pseudo_priors.base import (
    CompiledPseudoPriors,
    Mixtures,
    PseudoPriorRule,
    PseudoPriors,
)
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.carlin_chib.pseudo_priors.prior_covariance import PriorCovariance
from pymc_mcoem.density.geometry import Curvature, LatentGeometry

__all__ = [
    "CompiledPseudoPriors",
    "Curvature",
    "Laplace",
    "LatentGeometry",
    "Mixtures",
    "PilotMoments",
    "PriorCovariance",
    "PseudoPriorRule",
    "PseudoPriors",
]
