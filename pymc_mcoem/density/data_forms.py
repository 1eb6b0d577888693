"""Refusals of observed data in forms that a class index cannot be drawn with, by name."""

from __future__ import annotations

import pymc as pm
from pymc.data import MinibatchOp
from pytensor.graph.traversal import ancestors

__all__ = ["data_with_missing_values", "require_all_data"]


def require_all_data(model: pm.Model) -> None:
    """Raise an error if a model looks at random mini-batches of its data.

    Parameters
    ----------
    model : pymc.Model

    Raises
    ------
    ValueError
        If a variable depends on ``pm.Minibatch``: its density is another one at every evaluation.
    """
    for rv in model.basic_RVs:
        for variable in ancestors([rv, model.rvs_to_values[rv]]):
            if variable.owner is not None and isinstance(variable.owner.op, MinibatchOp):
                raise ValueError(
                    f"model: {rv.name} takes pm.Minibatch, under which each evaluation of the "
                    "density sees other data, so that no Markov chain has the posterior; give it "
                    "all the data as observed, without total_size."
                )


def data_with_missing_values(model: pm.Model, name: str) -> str | None:
    """Return the name of the data whose missing or present values a variable stands for.

    Parameters
    ----------
    model : pymc.Model
    name : str
        Name of the variable.

    Returns
    -------
    str or None
        None for any variable but the two that PyMC makes of ``observed`` with NaN.
    """
    whole = name.removesuffix("_unobserved").removesuffix("_observed")
    pair = {f"{whole}_unobserved", f"{whole}_observed"}
    return whole if name in pair and pair | {whole} <= set(model.named_vars) else None
