# What `pymc_mcoem` has, and where it is loaded from when it is first asked for.

from . import datasets as datasets
from . import esteps as esteps
from . import moves as moves
from . import pseudo_priors as pseudo_priors
from . import schedules as schedules
from .carlin_chib.moves.annealed import AnnealedJump as AnnealedJump
from .carlin_chib.moves.hamiltonian import Hamiltonian as Hamiltonian
from .carlin_chib.moves.within_class import Independence as Independence
from .carlin_chib.moves.within_class import RandomWalk as RandomWalk
from .carlin_chib.pseudo_priors.laplace import Laplace as Laplace
from .carlin_chib.pseudo_priors.pilot_moments import PilotMoments as PilotMoments
from .carlin_chib.pseudo_priors.prior_covariance import PriorCovariance as PriorCovariance
from .carlin_chib.step import CarlinChib as CarlinChib
from .classification.classifier import Classifier as Classifier
from .classification.error_rate import live_error_rate as live_error_rate
from .classification.labels import majority_labels as majority_labels
from .classification.prequential import predict_then_learn as predict_then_learn
from .diagnostics.latents import class_latents as class_latents
from .diagnostics.pseudo_priors import pseudo_prior_draws as pseudo_prior_draws
from .diagnostics.runs import (
    adjusted_rand_index as adjusted_rand_index,
)
from .diagnostics.runs import (
    align_classes as align_classes,
)
from .diagnostics.runs import (
    compare_runs as compare_runs,
)
from .diagnostics.runs import (
    running_evidence as running_evidence,
)
from .diagnostics.runs import (
    stopping_hint as stopping_hint,
)
from .diagnostics.summary import (
    ClassIndexSummary as ClassIndexSummary,
)
from .diagnostics.summary import (
    ClassIndexWarning as ClassIndexWarning,
)
from .diagnostics.summary import (
    class_index_summary as class_index_summary,
)
from .em.burst_chains import sample_burst as sample_burst
from .em.competition import compete as compete
from .em.esteps.auxiliary_chains import AuxiliaryChains as AuxiliaryChains
from .em.esteps.carlin_chib import CarlinChibBurst as CarlinChibBurst
from .em.esteps.exact import Exact as Exact
from .em.esteps.fixed_latents import FixedLatents as FixedLatents
from .em.esteps.laplace_gaussian import LaplaceGaussian as LaplaceGaussian
from .em.esteps.plain_gibbs import PlainGibbs as PlainGibbs
from .em.esteps.posterior_mode import PosteriorMode as PosteriorMode
from .em.family import Family as Family
from .em.online import OnlineEM as OnlineEM
from .em.passes import Passes as Passes
from .em.revival import Revival as Revival
from .em.saem import SAEM as SAEM
from .em.schedules import (
    Annealing as Annealing,
)
from .em.schedules import (
    BurstLength as BurstLength,
)
from .em.schedules import (
    PhasedStepSize as PhasedStepSize,
)
from .em.schedules import (
    StepSize as StepSize,
)
from .em.schedules import (
    UpdateSchedule as UpdateSchedule,
)
from .laplace.approximation import LaplaceApproximation as LaplaceApproximation
from .plots.class_index import plot_class_index as plot_class_index
from .plots.class_weights import plot_class_weights as plot_class_weights
from .plots.error_rate import plot_error_rate as plot_error_rate
from .plots.parameter_history import plot_parameter_history as plot_parameter_history
from .plots.pseudo_prior import plot_pseudo_prior as plot_pseudo_prior
from .plots.registration import plot_registration as plot_registration
from .plots.template_history import plot_template_history as plot_template_history
from .plots.templates import plot_templates as plot_templates
from .runs.checkpoint import Checkpoint as Checkpoint
from .runs.executor import Workers as Workers
from .templates.bases.gaussian import GaussianBasis as GaussianBasis
from .templates.images import template_images as template_images
from .templates.mixture import TemplateMixture as TemplateMixture
from .templates.observations import drop_missing_points as drop_missing_points
from .templates.priors import TemplatePriors as TemplatePriors
from .templates.warps.displacement_field import DisplacementField as DisplacementField
from .templates.warps.rigid_motion import RigidMotion as RigidMotion
from .templates.warps.time_warp import TimeWarp as TimeWarp

__version__: str
__all__: list[str]
