"""Plot of pseudo-priors beside the chain that used them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_base.labels import BaseLabeller
from arviz_plots.plot_collection import PlotCollection, backend_from_object
from arviz_stats.base import array_stats

from pymc_mcoem.diagnostics.chains import read_chains
from pymc_mcoem.plots.layers import Layers, make_grid, plain_label

__all__ = ["plot_pseudo_prior"]

_VISUALS = ("chain", "pseudo_prior", "title", "xlabel", "ylabel", "legend")

#: Smallest number of draws of a class for which a density is drawn.
_MIN_DRAWS = 20
_LEGEND = {"chain": "C0", "pseudo_prior": "C1"}


def plot_pseudo_prior(
    data: Any,
    pseudo_prior: xr.Dataset,
    var_name: str | None = None,
    *,
    latents: str | Sequence[str] | None = None,
    coords: Mapping[Any, Any] | None = None,
    group: str = "posterior",
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    labeller: BaseLabeller | None = None,
    aes_by_visuals: Mapping[str, Sequence[str]] | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw densities of the chain within each class and of the pseudo-prior, for each latent.

    If the two densities are far apart, or the dashed pseudo-prior is narrower, jumps to the
    class are rare: the chain remains correct, but mixes slowly.

    Parameters
    ----------
    data : DataTree, Dataset or DataArray
        Draws of the class index and the latents, see `class_index_summary`.
    pseudo_prior : Dataset
        Result of `pseudo_prior_draws` for the same model.
    var_name : str, optional
        The class index.
    latents : str or sequence of str, optional
        Latents to draw; by default all in `pseudo_prior`.
    coords : mapping, optional
        Coordinates of classes and latents to draw, as ``{"class": [0], "kernel": [3, 4]}``.
    group : str
        Group of the DataTree.
    plot_collection : PlotCollection, optional
        With facet dimensions ``class`` and ``latent``.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    labeller : labeller, optional
        Labels the latents.
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Default: none for any visual.
    visuals : mapping of {str : mapping or bool}, optional
        False omits a visual. Valid keys:

        * chain, pseudo_prior -> passed to the back end's ``line``
        * title -> passed to ``title``; first row only
        * xlabel -> passed to ``xlabel``; last row only
        * ylabel -> passed to ``ylabel``
        * legend -> False omits the title of the first plot, which explains the lines
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.grid`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        As `class_index_summary`; if `pseudo_prior` is not a Dataset, no latent is left, the index
        is a plate, or there are more plots than ArviZ's ``plot.max_subplots``.
    KeyError
        If a latent is not in both.

    Notes
    -----
    Densities are kernel estimates, not normal curves, because the pseudo-prior is normal on
    another scale than the model's. A class with fewer than 20 draws has no line for the chain.
    Only margins are shown; a wrong dependence between latents in the pseudo-prior is visible in
    Pareto k only.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> k = rng.integers(2, size=(2, 100))
    >>> draws = xr.Dataset(
    ...     {"k": (("chain", "draw"), k), "x": (("chain", "draw"), k + rng.normal(size=k.shape))}
    ... )
    >>> guess = xr.Dataset({"x": (("class", "sample"), rng.normal(size=(2, 50)))})
    >>> guess = guess.assign_coords({"class": [0, 1]})
    >>> collection = plot_pseudo_prior(draws, guess, backend="none")
    >>> dict(collection.viz["plot"].sizes)
    {'class': 2, 'latent': 1}
    """
    layers = Layers(_VISUALS, visuals, aes_by_visuals)
    if not isinstance(pseudo_prior, xr.Dataset):
        raise TypeError(
            f"pseudo_prior: got {type(pseudo_prior).__name__}; give what pseudo_prior_draws "
            "returned for the same model."
        )
    if latents is None:
        names = [str(name) for name in pseudo_prior.data_vars]
    else:
        names = [latents] if isinstance(latents, str) else list(latents)
    if not names:
        raise ValueError(
            f"latents: got none; name some of {[str(name) for name in pseudo_prior.data_vars]}."
        )
    dataset = data[group].to_dataset() if isinstance(data, xr.DataTree) else data
    missing = [name for name in names if name not in dataset or name not in pseudo_prior]
    if missing:
        both = [str(name) for name in pseudo_prior.data_vars if name in dataset]
        raise KeyError(
            f"latents: {missing} are not in both the draws and the pseudo-prior; {both} are."
        )
    chains = read_chains(data, var_name, classes=pseudo_prior["class"].values.tolist(), group=group)
    if len(chains.codes) > 1:
        raise ValueError("data: the class index is a plate; select one of its indices.")
    codes = chains.codes[0].ravel()
    chosen = {name: np.atleast_1d(value) for name, value in (coords or {}).items()}
    guess = _columns(_select(pseudo_prior[names], chosen), ["class", "sample"], labeller)
    drawn = _columns(
        _select(dataset[names], {k: v for k, v in chosen.items() if k != "class"}),
        ["chain", "draw"],
        labeller,
    )
    drawn = drawn.transpose("latent", "chain", "draw")
    flat = drawn.values.reshape(drawn.sizes["latent"], -1)
    labels = chains.classes.tolist()
    active = {label: int((codes == position).sum()) for position, label in enumerate(labels)}
    curves = {
        "chain": xr.DataArray(
            [
                [
                    _density(row[codes == labels.index(label)])
                    if np.isfinite(guess.sel({"class": label, "latent": latent})).all()
                    else _nothing()
                    for latent, row in zip(drawn["latent"].values, flat, strict=True)
                ]
                for label in guess["class"].values.tolist()
            ],
            dims=("class", "latent", "axis", "point"),
            coords={"class": guess["class"].values, "latent": drawn["latent"].values},
        ),
        "pseudo_prior": xr.apply_ufunc(
            _density,
            guess,
            input_core_dims=[["sample"]],
            output_core_dims=[["axis", "point"]],
            vectorize=True,
        ),
    }
    frame = xr.Dataset({"density": xr.zeros_like(guess.isel(sample=0, drop=True))})
    if plot_collection is None:
        plot_collection = make_grid(frame, backend, pc_kwargs, rows=["class"], cols=["latent"])
    for visual, values in curves.items():
        layers.draw(
            plot_collection,
            visual,
            _draw_density,
            values.to_dataset(name="density"),
            color=_LEGEND[visual],
            linestyle="C0" if visual == "chain" else "C1",
        )
    first, last = guess["class"].values[0], guess["class"].values[-1]
    corner = guess["latent"].values[0]
    layers.write(
        plot_collection,
        "ylabel",
        lambda _, sel: (
            f"class {sel['class']}\n{active[plain_label(sel['class'])]} draws"
            if sel["latent"] == corner
            else None
        ),
    )
    layers.write(
        plot_collection,
        "xlabel",
        lambda _, sel: str(sel["latent"]) if sel["class"] == last else None,
    )
    if layers.options("legend") is not None:
        layers.write(
            plot_collection,
            "title",
            lambda _, sel: (
                "line: chain; dashed: pseudo-prior"
                if sel["latent"] == corner and sel["class"] == first
                else None
            ),
        )
    return plot_collection


def _select(dataset: xr.Dataset, chosen: Mapping[Hashable, Any]) -> xr.Dataset:
    return dataset.sel({dim: value for dim, value in chosen.items() if dim in dataset.dims})


def _columns(
    dataset: xr.Dataset, dims: Sequence[str], labeller: BaseLabeller | None
) -> xr.DataArray:
    """Return all elements of all variables side by side, by ``latent``."""
    maker = BaseLabeller() if labeller is None else labeller
    columns, names = [], []
    for name, values in dataset.data_vars.items():
        own = [dim for dim in values.dims if dim not in dims]
        for position in np.ndindex(*(values.sizes[dim] for dim in own)):
            isel = dict(zip(own, position, strict=True))
            part = values.isel(isel)
            sel = {dim: values[dim].values[i] for dim, i in isel.items()}
            names.append(maker.make_label_flat(str(name), sel, isel))
            columns.append(part.reset_coords(drop=True))
    return xr.concat(columns, dim="latent", coords="minimal").assign_coords(latent=names)


def _density(values: np.ndarray) -> np.ndarray:
    """Return a grid and the density on it; all NaN with too few or constant values."""
    known = values[np.isfinite(values)]
    if len(known) < _MIN_DRAWS or np.ptp(known) == 0:
        return _nothing()
    grid, density, _ = array_stats.kde(known)
    found: np.ndarray = np.stack([grid, density])
    return found


def _nothing() -> np.ndarray:
    return np.full((2, 512), np.nan)


def _draw_density(da: xr.DataArray, target: Any, **options: Any) -> Any:
    x, y = da.transpose("axis", "point").values
    return backend_from_object(target).line(x, y, target, **options)
