"""Refusal of observed data in forms with which a class index cannot be drawn."""

from __future__ import annotations

import pymc as pm
from pymc.data import MinibatchOp
from pytensor.graph.traversal import ancestors

__all__ = ["require_all_data"]


def require_all_data(model: pm.Model) -> None:
    """Raise an error if a model uses random mini-batches of its data."""
    for rv in model.basic_RVs:
        for variable in ancestors([rv, model.rvs_to_values[rv]]):
            if variable.owner is not None and isinstance(variable.owner.op, MinibatchOp):
                raise ValueError(
                    f"model: {rv.name} takes pm.Minibatch, under which each evaluation of the "
                    "density sees other data, so that no Markov chain has the posterior; give it "
                    "all the data as observed, without total_size."
                )
