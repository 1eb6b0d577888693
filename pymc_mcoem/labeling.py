"""Labeling of arrays with a model's dims and coords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["Arrays", "dataset_of", "require_parameters"]

#: Arrays by name: statistics, parameters, an observation.
type Arrays = dict[str, np.ndarray]


def dataset_of(
    model: pm.Model,
    values: Mapping[str, Any],
    *,
    before: Sequence[str] = (),
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Return arrays as a Dataset with the model's dims and coords.

    Parameters
    ----------
    model : pymc.Model
    values : mapping of str to array_like
        Arrays by name of the variable, each ``(*before, *shape)``. They are copied.
    before : sequence of str
        Names of the leading axes that all arrays have, such as ``("chain", "draw")``.
    dims : mapping of str to sequence of str, optional
        Names of the other axes for arrays that are not variables of the model.
    coords : mapping, optional
        Coords in addition to the model's.

    Returns
    -------
    Dataset
        An unnamed axis gets the name that PyMC would give it, ``x_dim_0``.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model(coords={"place": ["here", "there"]}) as model:
    ...     x = pm.Normal("x", dims="place")
    >>> dict(dataset_of(model, {"x": np.zeros((5, 2))}, before=("draw",)).sizes)
    {'draw': 5, 'place': 2}
    """
    known = {**model.named_vars_to_dims, **(dims or {})}
    variables = {}
    for name, value in values.items():
        array = np.array(value)
        own = known.get(name) or (None,) * (array.ndim - len(before))
        axes = (f"{name}_dim_{axis}" if dim is None else str(dim) for axis, dim in enumerate(own))
        variables[name] = ((*before, *axes), array)
    used = {dim for own, _ in variables.values() for dim in own}
    labels = {
        dim: list(named) for dim, named in model.coords.items() if dim in used and named is not None
    }
    return xr.Dataset(variables, coords={**labels, **(coords or {})})


def require_parameters(parameters: Any, content: str = "of names to arrays") -> None:
    """Require parameters to be a Dataset or a mapping, whose content a message names.

    Examples
    --------
    >>> require_parameters([1.0])
    Traceback (most recent call last):
        ...
    TypeError: parameters: got a list; give a Dataset, as OnlineEM.parameters is, or a mapping ...
    """
    if not isinstance(parameters, (Mapping, xr.Dataset)):
        raise TypeError(
            f"parameters: got a {type(parameters).__name__}; give a Dataset, as "
            f"OnlineEM.parameters is, or a mapping {content}."
        )
