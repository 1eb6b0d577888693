"""Templates behind noisy, warped, partly missing curves and images, learnt one at a time."""

from importlib.metadata import version

from pymc_mcoem import datasets
from pymc_mcoem.carlin_chib.pseudo_priors import Laplace, PilotMoments, PriorCovariance
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.carlin_chib.within_class import Hamiltonian, Independence, RandomWalk
from pymc_mcoem.classify import Classifier, majority_labels
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.family import Family
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.schedules import BurstLength, StepSize, UpdateSchedule
from pymc_mcoem.em.starts import compete
from pymc_mcoem.laplace import LaplaceApproximation
from pymc_mcoem.templates import (
    DisplacementField,
    GaussianBasis,
    RigidMotion,
    TemplateMixture,
    TemplatePriors,
    TimeWarp,
    drop_missing_points,
    template_images,
)

__version__ = version("pymc_mcoem")

__all__ = [
    "BurstLength",
    "CarlinChib",
    "CarlinChibBurst",
    "Classifier",
    "DisplacementField",
    "Exact",
    "Family",
    "FixedLatents",
    "GaussianBasis",
    "Hamiltonian",
    "Independence",
    "Laplace",
    "LaplaceApproximation",
    "OnlineEM",
    "PilotMoments",
    "PriorCovariance",
    "RandomWalk",
    "RigidMotion",
    "StepSize",
    "TemplateMixture",
    "TemplatePriors",
    "TimeWarp",
    "UpdateSchedule",
    "compete",
    "datasets",
    "drop_missing_points",
    "majority_labels",
    "template_images",
]
