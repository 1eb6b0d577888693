"""Plots in the style of arviz-plots: each returns a PlotCollection, for any of its back ends."""

from pymc_mcoem.plots.class_count import plot_class_count
from pymc_mcoem.plots.class_index import plot_class_index
from pymc_mcoem.plots.class_weights import plot_class_weights
from pymc_mcoem.plots.error_rate import plot_error_rate
from pymc_mcoem.plots.live import LivePlot
from pymc_mcoem.plots.parameter_history import plot_parameter_history
from pymc_mcoem.plots.pseudo_prior import plot_pseudo_prior
from pymc_mcoem.plots.registration import plot_registration
from pymc_mcoem.plots.template_history import plot_template_history
from pymc_mcoem.plots.templates import plot_templates

__all__ = [
    "LivePlot",
    "plot_class_count",
    "plot_class_index",
    "plot_class_weights",
    "plot_error_rate",
    "plot_parameter_history",
    "plot_pseudo_prior",
    "plot_registration",
    "plot_template_history",
    "plot_templates",
]
