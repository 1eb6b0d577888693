"""Draws from pseudo-priors on the scale of the model, to look at beside a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
import xarray as xr

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.density.blocks import BlockDensity
from pymc_mcoem.density.class_density import ClassDensity, find_class_index
from pymc_mcoem.density.geometry import LatentGeometry, geometry_of
from pymc_mcoem.density.model_scale import ModelScale
from pymc_mcoem.labelling import dataset_of

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriorRule

__all__ = ["pseudo_prior_draws"]


def pseudo_prior_draws(
    model: pm.Model | None = None,
    pseudo_priors: PseudoPriorRule | None = None,
    *,
    class_index: TensorVariable | str | None = None,
    blocks: Mapping[int, Sequence[TensorVariable | str]] | None = None,
    draws: int = 500,
    random_seed: int = 0,
) -> xr.Dataset:
    """Draw latents from the pseudo-prior of each class, as `CarlinChib` would fit it.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the context. One class index, not a plate, and no other discrete
        variable.
    pseudo_priors : PseudoPriorRule, optional
        The rule; by default `Laplace` with every mode search run to its end.
    class_index, blocks
        As `CarlinChib` takes them.
    draws : int
        For each class.
    random_seed : int

    Returns
    -------
    Dataset
        The latents by name, with dims ``class``, ``sample`` and their own; NaN where a block
        leaves a latent out of a class.

    Raises
    ------
    ValueError
        If the class index is a plate, a variable is discrete, or `draws` is less than 2.

    Notes
    -----
    Section ``subsec:pseudo`` of the paper. Pseudo-priors are normal on the scale on which PyMC
    samples; here their draws are taken back to the model's own. Cost: one fit.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     k = pm.Categorical("k", [0.5, 0.5])
    ...     x = pm.Gamma("x", 2.0 + 3.0 * k, 1.0)
    >>> found = pseudo_prior_draws(model, draws=50)  # doctest: +SKIP
    >>> dict(found.sizes)  # doctest: +SKIP
    {'class': 2, 'sample': 50}
    """
    model = pm.modelcontext(model)
    if isinstance(draws, bool) or not isinstance(draws, (int, np.integer)) or draws < 2:
        raise ValueError(f"draws: got {draws!r}; give a whole number of at least 2.")
    index = find_class_index(model) if class_index is None else class_index
    index = model[index] if isinstance(index, str) else index
    if index.ndim:
        raise ValueError(
            f"class_index: {index.name} is a plate; condition the model on all rows but one."
        )
    density: ClassDensity
    if blocks is not None:
        density, geometry = BlockDensity(model, index, blocks), LatentGeometry()
    else:
        latents = [rv for rv in model.free_RVs if rv is not index]
        density, geometry = ClassDensity(model, index, latents), geometry_of(model)
    if density.other_values:
        names = [value.name for value in density.other_values]
        raise ValueError(
            f"model: {names} are sampled by other steps, and the pseudo-priors depend on them; "
            "condition the model on them, as by pm.do."
        )
    rng = np.random.default_rng(random_seed)
    rule = Laplace(race=None) if pseudo_priors is None else pseudo_priors
    found = rule.compile(density, geometry)({}, rng)
    to_model = ModelScale(density)
    shown: dict[str, list[np.ndarray]] = {str(rv.name): [] for rv in density.latents}
    for j in range(density.n_classes):
        if found.mixtures is None:
            noise = rng.standard_normal((draws, density.n_latents))
            positions = found.mean[j] + noise @ found.scale[j].T
        else:
            positions = np.stack([found.draw(rng)[j] for _ in range(draws)])
        drawn = to_model(np.full(draws, j), positions, {})
        active = np.ones(density.n_latents) if density.active is None else density.active[j]
        known = density.unravel(np.where(active, 1.0, np.nan))
        for value, (name, column) in zip(density.latent_values, drawn.items(), strict=True):
            there = np.isfinite(known[value.name]).all()
            shown[name].append(column if there else np.full_like(column, np.nan))
    return dataset_of(
        model,
        {name: np.stack(columns) for name, columns in shown.items()},
        before=("class", "sample"),
        coords={"class": np.arange(density.n_classes)},
    )
