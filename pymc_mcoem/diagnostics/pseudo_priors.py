"""Quality of pseudo-priors: Pareto k of target over pseudo-prior, and draws for plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
import xarray as xr

from pymc_mcoem.carlin_chib.pareto import pareto_k as tail_index
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.density.blocks import BlockDensity
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.class_index import find_class_index
from pymc_mcoem.density.geometry import LatentGeometry, geometry_of
from pymc_mcoem.density.model_scale import ModelScale
from pymc_mcoem.diagnostics.chains import IndexChains
from pymc_mcoem.labeling import dataset_of
from pymc_mcoem.runs.settings import seed_entropy
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriorRule

__all__ = ["FINITE_VARIANCE", "GOOD_PARETO_K", "jump_pareto_k", "pareto_k", "pseudo_prior_draws"]

#: Above this, importance ratios are unreliable (Vehtari, Simpson, Gelman, Yao and Gabry 2024).
GOOD_PARETO_K = 0.7

#: Above this, importance ratios have no variance.
FINITE_VARIANCE = 0.5


def pareto_k(log_ratio: np.ndarray) -> np.ndarray:
    """Return Pareto k of importance ratios for each class.

    Parameters
    ----------
    log_ratio : array_like of shape (n_chains, n_draws, n_classes)
        log p(y, k, x) - log q_k(x) at draws x of the pseudo-prior q_k, up to a constant for each
        class. NaN, as for the active class, is skipped; minus infinity is a draw without density.

    Returns
    -------
    ndarray of shape (n_classes,)
        Values below 0.5 are good; above 0.7 the pseudo-prior misses some of its class's posterior.
        Minus infinity if all ratios are equal, as for a perfect pseudo-prior; NaN with fewer than
        25 draws.

    Raises
    ------
    ValueError
        If the array has not three dimensions, or a ratio is plus infinity.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, Journal
    of Machine Learning Research 25.

    Examples
    --------
    >>> z = np.random.default_rng(4).normal(size=(4, 500, 1))
    >>> good, bad = pareto_k(0.1 * z), pareto_k(0.9 * z**2)
    >>> bool(good[0] < 0.5), bool(bad[0] > 0.7)
    (True, True)
    """
    ratios = np.asarray(log_ratio, dtype=np.float64)
    if ratios.ndim != 3 or np.isposinf(ratios).any():
        raise ValueError(
            f"log_ratio: got an array of shape {ratios.shape}; give finite logarithms, or minus "
            "infinity or NaN, of shape (n_chains, n_draws, n_classes)."
        )
    return np.array([tail_index(ratios[..., k].ravel()) for k in range(ratios.shape[-1])])


def jump_pareto_k(chains: IndexChains) -> np.ndarray:
    """Return Pareto k of the odds of jumping into each class, from the step's weights.

    While the chain is in class a, the odds that the step gives to class j are
    p(j, u_j)/q_j(u_j) times q_a(x)/p(a, x), with u_j from the pseudo-prior of j and x from the
    posterior of a: an importance ratio for the odds of the two classes. For each j, a is
    the other class that the chains visited most often.

    Parameters
    ----------
    chains : IndexChains
        Chains with log-weights.

    Returns
    -------
    ndarray of shape (n_rows, n_classes)
        Values as from `pareto_k`. A large value points to the pseudo-prior of j or of a. All are
        NaN if draws were thinned, because the class before each draw is then not known.

    Raises
    ------
    ValueError
        If the chains have no log-weights.
    """
    log_weight = chains.require_log_weight()
    found = np.full((len(chains.codes), chains.n_classes), np.nan)
    if not chains.consecutive:
        return found
    for row, codes in enumerate(chains.codes):
        before = codes[:, :-1]
        of_row = log_weight[row, :, 1:]
        visits = np.bincount(before.ravel(), minlength=chains.n_classes)
        for j in range(chains.n_classes):
            others = visits.copy()
            others[j] = 0
            if not others.any():
                continue
            here = before == others.argmax()
            found[row, j] = tail_index(of_row[here, j] - of_row[here, others.argmax()])
    return found


def pseudo_prior_draws(
    model: pm.Model | None = None,
    pseudo_priors: PseudoPriorRule | None = None,
    *,
    class_index: TensorVariable | str | None = None,
    blocks: Mapping[int, Sequence[TensorVariable | str]] | None = None,
    draws: int = 500,
    random_seed: int | Sequence[int] | None = None,
) -> xr.Dataset:
    """Draw the latents of each class from its pseudo-prior, fitted as `CarlinChib` does.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the context. It has one class index, not a plate, and no other discrete
        variable.
    pseudo_priors : PseudoPriorRule, optional
        The rule; by default `Laplace` with complete mode searches.
    class_index, blocks
        As for `CarlinChib`.
    draws : int
        Number of draws for each class.
    random_seed : int or sequence of int, optional
        None takes a seed from the operating system, which the result's attribute ``random_seed``
        records.

    Returns
    -------
    Dataset
        The latents by name, with dims ``class``, ``sample`` and their own; NaN if a class's block
        does not contain the latent.

    Raises
    ------
    ValueError
        If the class index is a plate, a variable is discrete, or `draws` is less than 2.

    Notes
    -----
    Section ``subsec:pseudo`` of the paper. Pseudo-priors are normal on the scale on which PyMC
    samples; their draws are transformed back to the model's scale. The cost is one fit.

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
    require_whole("draws", draws, 2)
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
    entropy = seed_entropy(random_seed)
    rng = np.random.default_rng(entropy)
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
    ).assign_attrs(random_seed=json.dumps(entropy))
