# What `pymc_mcoem` has, and where it is loaded from when it is first asked for.

from . import datasets as datasets
from . import diagnostics as diagnostics
from . import esteps as esteps
from . import moves as moves
from . import pseudo_priors as pseudo_priors
from . import schedules as schedules
from . import templates as templates
from .carlin_chib.step import CarlinChib as CarlinChib
from .classification.classifier import Classifier as Classifier
from .classification.error_rate import live_error_rate as live_error_rate
from .classification.estimator import TemplateClustering as TemplateClustering
from .classification.labels import majority_labels as majority_labels
from .classification.prequential import predict_then_learn as predict_then_learn
from .density.joint_index import join_indices as join_indices
from .diagnostics.latents import class_latents as class_latents
from .diagnostics.model_comparison import bayes_factors as bayes_factors
from .diagnostics.summary import class_index_summary as class_index_summary
from .diagnostics.visits import class_draws as class_draws
from .em.burst_chains import sample_burst as sample_burst
from .em.competition import compete as compete
from .em.drift import DriftAlarm as DriftAlarm
from .em.family import Family as Family
from .em.merging import merge_runs as merge_runs
from .em.number_of_classes import choose_classes as choose_classes
from .em.online import OnlineEM as OnlineEM
from .em.passes import Passes as Passes
from .em.revival import Revival as Revival
from .em.saem import SAEM as SAEM
from .laplace.approximation import LaplaceApproximation as LaplaceApproximation
from .plots.class_count import plot_class_count as plot_class_count
from .plots.class_index import plot_class_index as plot_class_index
from .plots.class_weights import plot_class_weights as plot_class_weights
from .plots.error_rate import plot_error_rate as plot_error_rate
from .plots.live import LivePlot as LivePlot
from .plots.parameter_history import plot_parameter_history as plot_parameter_history
from .plots.pseudo_prior import plot_pseudo_prior as plot_pseudo_prior
from .plots.registration import plot_registration as plot_registration
from .plots.template_history import plot_template_history as plot_template_history
from .plots.templates import plot_templates as plot_templates
from .runs.checkpoint import Checkpoint as Checkpoint
from .runs.workers import ExecutorError as ExecutorError
from .runs.workers import Workers as Workers
from .templates.bases.gaussian import GaussianBasis as GaussianBasis
from .templates.images import template_images as template_images
from .templates.mixture import TemplateMixture as TemplateMixture
from .templates.observations import drop_missing_points as drop_missing_points
from .templates.priors import TemplatePriors as TemplatePriors
from .templates.refinement import RefinedTemplates as RefinedTemplates
from .templates.refinement import refine_templates as refine_templates
from .templates.warps.displacement_field import DisplacementField as DisplacementField
from .templates.warps.rigid_motion import RigidMotion as RigidMotion
from .templates.warps.time_warp import TimeWarp as TimeWarp

__version__: str
__all__: list[str]
