"""Templates behind noisy, warped, partly missing curves and images, learnt one at a time."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pymc_mcoem import datasets
from pymc_mcoem.burst_chains import sample_burst
from pymc_mcoem.carlin_chib.annealed import AnnealedJump
from pymc_mcoem.carlin_chib.chain_moments import ChainMoments
from pymc_mcoem.carlin_chib.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.pilot_moments import PilotMoments
from pymc_mcoem.carlin_chib.prior_covariance import PriorCovariance
from pymc_mcoem.carlin_chib.pseudo_priors import Laplace
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.carlin_chib.within_class import Independence, RandomWalk
from pymc_mcoem.classify import Classifier
from pymc_mcoem.em.checkpoint import Checkpoint
from pymc_mcoem.em.esteps.auxiliary_chains import AuxiliaryChains
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from pymc_mcoem.em.esteps.plain_gibbs import PlainGibbs
from pymc_mcoem.em.esteps.posterior_mode import PosteriorMode
from pymc_mcoem.em.family import Family
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.revival import Revival
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.em.schedules import (
    Annealing,
    BurstLength,
    PhasedStepSize,
    StepSize,
    UpdateSchedule,
)
from pymc_mcoem.em.sources import Passes
from pymc_mcoem.em.starts import compete
from pymc_mcoem.labels import majority_labels
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

if TYPE_CHECKING:
    from pymc_mcoem.diagnostics import (
        ClassIndexSummary,
        ClassIndexWarning,
        adjusted_rand_index,
        align_classes,
        class_index_summary,
        class_latents,
        compare_runs,
        running_evidence,
        stopping_hint,
    )
    from pymc_mcoem.plots import (
        plot_class_index,
        plot_class_weights,
        plot_error_rate,
        plot_parameter_history,
        plot_pseudo_prior,
        plot_registration,
        plot_template_history,
        plot_templates,
    )
    from pymc_mcoem.prequential import predict_then_learn

__version__ = version("pymc_mcoem")

__all__ = [
    "SAEM",
    "AnnealedJump",
    "Annealing",
    "AuxiliaryChains",
    "BurstLength",
    "CarlinChib",
    "CarlinChibBurst",
    "ChainMoments",
    "Checkpoint",
    "ClassIndexSummary",
    "ClassIndexWarning",
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
    "LaplaceGaussian",
    "OnlineEM",
    "Passes",
    "PhasedStepSize",
    "PilotMoments",
    "PlainGibbs",
    "PosteriorMode",
    "PriorCovariance",
    "RandomWalk",
    "Revival",
    "RigidMotion",
    "StepSize",
    "TemplateMixture",
    "TemplatePriors",
    "TimeWarp",
    "UpdateSchedule",
    "adjusted_rand_index",
    "align_classes",
    "class_index_summary",
    "class_latents",
    "compare_runs",
    "compete",
    "datasets",
    "drop_missing_points",
    "live_error_rate",
    "majority_labels",
    "plot_class_index",
    "plot_class_weights",
    "plot_error_rate",
    "plot_parameter_history",
    "plot_pseudo_prior",
    "plot_registration",
    "plot_template_history",
    "plot_templates",
    "predict_then_learn",
    "pseudo_prior_draws",
    "running_evidence",
    "sample_burst",
    "stopping_hint",
    "template_images",
]

#: What brings ArviZ along, which takes most of a second to import; loaded when first asked for.
_ON_DEMAND = {
    "ClassIndexSummary": "pymc_mcoem.diagnostics",
    "ClassIndexWarning": "pymc_mcoem.diagnostics",
    "adjusted_rand_index": "pymc_mcoem.diagnostics",
    "align_classes": "pymc_mcoem.diagnostics",
    "class_index_summary": "pymc_mcoem.diagnostics",
    "class_latents": "pymc_mcoem.diagnostics",
    "compare_runs": "pymc_mcoem.diagnostics",
    "running_evidence": "pymc_mcoem.diagnostics",
    "stopping_hint": "pymc_mcoem.diagnostics",
    "live_error_rate": "pymc_mcoem.diagnostics",
    "plot_class_index": "pymc_mcoem.plots",
    "plot_class_weights": "pymc_mcoem.plots",
    "plot_error_rate": "pymc_mcoem.plots",
    "plot_parameter_history": "pymc_mcoem.plots",
    "plot_pseudo_prior": "pymc_mcoem.plots",
    "plot_registration": "pymc_mcoem.plots",
    "plot_template_history": "pymc_mcoem.plots",
    "plot_templates": "pymc_mcoem.plots",
    "predict_then_learn": "pymc_mcoem.prequential",
    "pseudo_prior_draws": "pymc_mcoem.diagnostics",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_ON_DEMAND[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND})
