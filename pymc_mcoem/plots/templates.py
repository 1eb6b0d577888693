"""Plot of learned templates as curves or images, with the weights of their classes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from arviz_base.labels import BaseLabeller
from arviz_plots.plot_collection import PlotCollection

from pymc_mcoem.plots.drawing import (
    BAND,
    draw_band,
    draw_colors,
    draw_curve,
    draw_pixels,
    frame_image,
    is_color,
    shade_levels,
)
from pymc_mcoem.plots.layers import (
    Layers,
    labels,
    make_grid,
    make_wrap,
    plain_label,
    with_unit,
    with_unit_of_channel,
)
from pymc_mcoem.templates.images import template_images

if TYPE_CHECKING:
    from pymc_mcoem.templates.mixture import TemplateMixture

__all__ = ["plot_templates"]

_VISUALS = ("curve", "band", "image", "title", "xlabel", "ylabel", "legend", "ticks")


def plot_templates(
    parameters: xr.Dataset,
    mixture: TemplateMixture,
    *,
    template_sd: xr.DataArray | None = None,
    coords: Mapping[Any, Any] | None = None,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    labeller: BaseLabeller | None = None,
    aes_by_visuals: Mapping[str, Sequence[str]] | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw the templates of all classes, each with the weight of its class.

    Curves share one plot and differ in color and line style. Images have a plot each and a common
    scale of shades, dark for the smallest value of all templates and bright for the largest. Images
    of three channels are drawn in color, their channels as red, green and blue on that scale. Of
    other channels each has a plot: of curves with the lines of all classes, of images in the row of
    its class, with shades of its own.

    Parameters
    ----------
    parameters : Dataset
        Parameters θ; ``templates`` (class, basis) and ``weights`` (class) are used.
    mixture : TemplateMixture
    template_sd : DataArray of shape ``(class, *grid)``, optional
        Standard errors of the templates, as ``refine_templates(...).templates.template_sd``. Curves
        then have bands of two of them on either side; images are drawn without.
    coords : mapping, optional
        Classes to draw, as ``{"class": [0, 2]}``.
    plot_collection : PlotCollection, optional
        For images with facet dimension ``class``, and with that of channels if each has a plot.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    labeller : labeller, optional
        Labels the classes.
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Default: all aesthetics for ``curve``, none for the others.
    visuals : mapping of {str : mapping or bool}, optional
        False omits a visual. Valid keys:

        * curve -> passed to the back end's ``line``
        * band -> passed to ``fill_between_y``; curves only
        * image -> passed to ``contourf``; ``cmap`` is "viridis" by default. In color passed to
          matplotlib's ``imshow``, bokeh's ``image_rgba``, or plotly's ``Image``
        * title -> passed to ``title``; images, and curves of several channels
        * xlabel, ylabel -> passed to ``xlabel`` and ``ylabel``; curves only
        * legend -> passed to `arviz_plots.PlotCollection.add_legend`; curves only
        * ticks -> False keeps the axes of images
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError, ValueError
        If `parameters` is not a Dataset with weights, the templates do not have the mixture's size
        or have more than two axes, `template_sd` is not one of these templates, or a key of a
        visual is not valid.

    Notes
    -----
    The templates are those of `template_images`, on the observation's axes at the mean warp and
    scale. Compare figures ``fig:template`` of the paper.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((4, 6), n_classes=2, n_landmarks=2)
    >>> collection = plot_templates(mixture.parameters, mixture, backend="none")
    >>> [title.item()["string"] for title in collection.viz["title"]["template"]]
    ['class 0, weight 0.5', 'class 1, weight 0.5']
    """
    layers = Layers(_VISUALS, visuals, aes_by_visuals)
    templates = template_images(parameters, mixture)
    if not isinstance(parameters, xr.Dataset):
        raise TypeError(
            f"parameters: got a {type(parameters).__name__}; give a Dataset as em.parameters."
        )
    if "weights" not in parameters:
        raise ValueError(
            f"parameters: has {list(parameters)} and no 'weights'; give all of em.parameters."
        )
    labeled = parameters["weights"]
    if "class" in labeled.coords:
        templates = templates.assign_coords({"class": labeled["class"].values})
    if template_sd is not None:
        template_sd = _like(template_sd, templates)
    chosen = {name: np.atleast_1d(value) for name, value in (coords or {}).items()}
    templates, weights = templates.sel(chosen), labeled.sel(chosen)
    axes = require_drawable(mixture)
    words = {
        label: f"class {text}, weight {weight:.2g}"
        for label, text, weight in zip(
            templates["class"].values.tolist(),
            labels(templates, "class", labeller),
            weights.values,
            strict=True,
        )
    }
    data = xr.Dataset({"template": templates})
    if len(axes) == 1:
        if template_sd is not None:
            data["template_sd"] = template_sd.sel(chosen)
        channel = mixture.settings.channel_name
        return _draw_curves(
            data, axes[0], channel, words, layers, plot_collection, backend, pc_kwargs
        )
    every = (*axes, *mixture.settings.channel_dims)
    over = every[2:] if not is_color(templates, every) else ()
    if plot_collection is None and over:
        plot_collection = make_grid(
            data, backend, pc_kwargs, rows=["class"], cols=list(over), square=True
        )
    elif plot_collection is None:
        plot_collection = make_wrap(data, backend, pc_kwargs, cols=["class"], square=True)
    draw_images(layers, plot_collection, data, every)
    first = {dim: plain_label(templates[dim].values[0]) for dim in over}
    layers.write(
        plot_collection,
        "title",
        # the first plot of a row of channels has the text of the class
        lambda _, sel: "\n".join(
            [words[plain_label(sel["class"])]] * all(sel[dim] == first[dim] for dim in over)
            + [with_unit_of_channel(data, dim, sel[dim]) for dim in over]
        ),
    )
    return plot_collection


def draw_images(
    layers: Layers, collection: PlotCollection, data: xr.Dataset, axes: Sequence[str]
) -> None:
    """Draw the images of the variable ``template``, with two or three axes, the last of channels.

    All have the same shades, and three channels together one color. Other channels have a plot and
    shades each.
    """
    templates = data["template"]
    grid: Any = axes[:2]
    if is_color(templates, axes):
        levels = shade_levels(templates)
        layers.draw(collection, "image", draw_colors, data, axes=axes, levels=levels)
    elif len(axes) == 3:
        for label in templates[axes[2]].values:
            place = {axes[2]: label}
            own = data.sel(place, drop=True)
            levels = shade_levels(own["template"])
            layers.draw(collection, "image", draw_pixels, own, at=place, axes=grid, levels=levels)
    else:
        levels = shade_levels(templates)
        layers.draw(collection, "image", draw_pixels, data, axes=grid, levels=levels)
    layers.draw(collection, "ticks", frame_image, data, axes=grid, store=False)


def _like(template_sd: Any, templates: xr.DataArray) -> xr.DataArray:
    """Return standard errors in the order of templates; refuse those of other templates."""
    if not isinstance(template_sd, xr.DataArray):
        raise TypeError(
            f"template_sd: got a {type(template_sd).__name__}; give the DataArray "
            "refine_templates(...).templates['template_sd']."
        )
    if dict(template_sd.sizes) != dict(templates.sizes):
        raise ValueError(
            f"template_sd has the sizes {dict(template_sd.sizes)}; give those of the templates, "
            f"{dict(templates.sizes)}, as refine_templates(...).templates['template_sd']."
        )
    for dim in templates.dims:
        if set(template_sd[dim].values.tolist()) != set(templates[dim].values.tolist()):
            raise ValueError(
                f"template_sd has other labels than the templates along {dim!r}; give those of "
                "the same mixture and classes."
            )
    if (template_sd < 0).any():
        raise ValueError("template_sd has negative values; give standard errors.")
    return template_sd.reindex_like(templates).transpose(*templates.dims)


def require_drawable(mixture: TemplateMixture) -> tuple[str, ...]:
    """Return the names of a mixture's axes but that of channels: one of curves, two of images."""
    axes = tuple(mixture.settings.dim_names)
    if len(axes) > 2:
        raise ValueError(
            f"mixture: its observations have the axes {axes}; only curves and images are drawn. "
            "Draw slices of template_images(parameters, mixture)."
        )
    return axes


def _draw_curves(
    data: xr.Dataset,
    axis: str,
    channel: str | None,
    words: Mapping[Any, str],
    layers: Layers,
    plot_collection: PlotCollection | None,
    backend: str | None,
    pc_kwargs: Mapping[str, Any],
) -> PlotCollection:
    # the legend takes its texts from the labels
    data = data.assign_coords({"class": list(words.values())})
    if plot_collection is None:
        aes: dict[str, list[Hashable]] = {"color": ["class"], "linestyle": ["class"]}
        cols = [] if channel is None else [channel]
        plot_collection = make_wrap(data, backend, pc_kwargs, aes=aes, cols=cols)
    aesthetics = list(plot_collection.aes_set)
    if "template_sd" in data:
        bounds = [data["template"] + side * data["template_sd"] for side in (-BAND, BAND)]
        # the plot takes the facets of a variable from its name
        band = xr.concat(bounds, pd.Index(["lower", "upper"], name="bound")).rename("template")
        layers.draw(
            plot_collection,
            "band",
            draw_band,
            band.to_dataset(),
            aes=[each for each in aesthetics if each != "linestyle"],
            x=axis,
        )
        data = data[["template"]]
    layers.draw(plot_collection, "curve", draw_curve, data, aes=aesthetics, x=axis)
    layers.write(plot_collection, "xlabel", lambda *_: with_unit(data[axis], axis))
    layers.write(plot_collection, "ylabel", lambda *_: with_unit(data["template"], "template"))
    if channel is not None:
        layers.write(
            plot_collection,
            "title",
            lambda _, sel: with_unit_of_channel(data, channel, sel[channel]),
        )
    layers.add_legend(plot_collection, dim="class", aes=["color", "linestyle"], title="")
    return plot_collection
