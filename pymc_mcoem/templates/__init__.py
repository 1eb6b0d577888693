"""Template mixtures: dictionaries, deformations, the model and its M-step."""

from pymc_mcoem.templates.bases.gaussian import GaussianBasis
from pymc_mcoem.templates.curves import CurveGrid, curve_priors
from pymc_mcoem.templates.images import image_priors, template_images
from pymc_mcoem.templates.mixture import TemplateMixture
from pymc_mcoem.templates.observations import drop_missing_points
from pymc_mcoem.templates.priors import TemplatePriors
from pymc_mcoem.templates.warps.deformations import Deformation, SumOfDeformations
from pymc_mcoem.templates.warps.displacement_field import DisplacementField
from pymc_mcoem.templates.warps.rigid_motion import RigidMotion
from pymc_mcoem.templates.warps.time_warp import TimeWarp

__all__ = [
    "CurveGrid",
    "Deformation",
    "DisplacementField",
    "GaussianBasis",
    "RigidMotion",
    "SumOfDeformations",
    "TemplateMixture",
    "TemplatePriors",
    "TimeWarp",
    "curve_priors",
    "drop_missing_points",
    "image_priors",
    "template_images",
]
