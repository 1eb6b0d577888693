"""Plots to the contract of arviz-plots: each returns a PlotCollection, on any of its back ends."""

from pymc_mcoem.plots.class_index import plot_class_index

__all__ = ["plot_class_index"]
