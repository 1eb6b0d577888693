"""Plot of one observation registered to each class, with data, template and warp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from arviz_base.labels import BaseLabeller
from arviz_plots.plot_collection import PlotCollection

from pymc_mcoem.plots.drawing import (
    BAND,
    draw_arrows,
    draw_band,
    draw_colors,
    draw_curve,
    draw_pixels,
    draw_points,
    frame_image,
    is_color,
    shade_levels,
)
from pymc_mcoem.plots.layers import (
    Layers,
    labels,
    make_grid,
    plain_label,
    with_unit,
    with_unit_of_channel,
)
from pymc_mcoem.validation import is_whole

__all__ = ["plot_registration"]

_VISUALS = (
    "observation",
    "template",
    "warped",
    "warped_band",
    "warp",
    "warp_band",
    "identity",
    "aligned",
    "aligned_band",
    "arrows",
    "title",
    "xlabel",
    "ylabel",
    "ticks",
)


def plot_registration(
    registration: xr.Dataset,
    observation: Any = None,
    templates: xr.DataArray | None = None,
    *,
    coords: Mapping[Any, Any] | None = None,
    max_arrows: int = 10,
    plot_collection: PlotCollection | None = None,
    backend: str | None = None,
    labeller: BaseLabeller | None = None,
    aes_by_visuals: Mapping[str, Sequence[str]] | None = None,
    visuals: Mapping[str, Mapping[str, Any] | bool] | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Draw how one observation is registered to each class, with a row of plots for each class.

    For curves a row has the data with the warped template; the warp, from the observation's time
    to the template's; and the observation aligned on the common clock. Bands have two posterior
    standard deviations on either side. For images a row has the data, the template, the template
    warped onto the data, and the displacement field, with arrows from points of the image to their
    places on the template. Images of three channels are drawn in color. Of other channels choose
    one, as ``registration.sel(lead="II")``, and that of the observation and the templates.

    Parameters
    ----------
    registration : Dataset
        Result of `TemplateMixture.register`.
    observation : array_like of the shape of one observation, optional
        The data; curves with points of their own as (2, n), points above values. Default: not
        drawn.
    templates : DataArray of shape ``(class, *grid)``, optional
        The templates before they are warped, see `template_images`. Default: not drawn.
    coords : mapping, optional
        Classes to draw, as ``{"class": [0, 2]}``.
    max_arrows : int
        Largest number of arrows along each side of an image.
    plot_collection : PlotCollection, optional
        With facet dimensions ``class`` and ``panel``.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
    labeller : labeller, optional
        Labels the classes.
    aes_by_visuals : mapping of {str : sequence of str}, optional
        Default: none for any visual.
    visuals : mapping of {str : mapping or bool}, optional
        False omits a visual. Valid keys:

        * observation -> passed to the back end's ``scatter``, for images to ``contourf``
        * template, warped -> passed to ``line``, for images to ``contourf``
        * warp, identity, aligned -> passed to ``line``; curves only
        * warped_band, warp_band, aligned_band -> passed to ``fill_between_y``; curves only
        * arrows -> passed to ``line``; images only
        * title -> passed to ``title``
        * xlabel, ylabel -> passed to ``xlabel`` and ``ylabel``
        * ticks -> False keeps the axes of images
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.grid`.

    Returns
    -------
    PlotCollection

    Raises
    ------
    TypeError
        If `templates` is not a DataArray.
    ValueError
        If `registration` is not a registration of a curve or an image or has no classes, the shape
        of the observation or the templates is wrong, or `max_arrows` is less than 1.

    Notes
    -----
    Labels ``modelFunc`` and ``locDef_H`` of the paper. A row shows the posterior given its class:
    an improbable class may fit badly and still have narrow bands.

    Examples
    --------
    >>> ages = np.linspace(2.0, 18.0, 5)
    >>> pair = {"class": [0, 1], "age": ages}
    >>> values = xr.DataArray(np.zeros((2, 5)), pair)
    >>> registration = xr.Dataset({"class_probability": ("class", [0.9, 0.1])}, pair)
    >>> for name in ("template", "warp", "aligned"):
    ...     registration[f"{name}_mean"] = registration[f"{name}_sd"] = values
    >>> collection = plot_registration(registration, np.zeros(5), backend="none")
    >>> collection.viz["plot"].sizes["class"], collection.viz["plot"].panel.values
    (2, array(['data', 'warp', 'aligned'], dtype='<U7'))
    """
    layers = Layers(_VISUALS, visuals, aes_by_visuals)
    axes = _axes(registration)
    if not is_whole(max_arrows) or max_arrows < 1:
        raise ValueError(
            f"max_arrows: got {max_arrows!r}; give a whole number of at least 1, or "
            "visuals={'arrows': False} for none."
        )
    chosen = {name: np.atleast_1d(value) for name, value in (coords or {}).items()}
    found = registration.sel(chosen)
    if templates is not None:
        if not isinstance(templates, xr.DataArray):
            raise TypeError(
                f"templates: got {type(templates).__name__}; give what "
                "template_images(parameters, mixture) returned."
            )
        if templates.sizes != registration["template_mean"].sizes:
            raise ValueError(
                f"templates: has sizes {dict(templates.sizes)}, and the registration "
                f"{dict(registration['template_mean'].sizes)}; give "
                "template_images(parameters, mixture) of the same mixture."
            )
        templates = templates.assign_coords(registration["template_mean"].coords).sel(chosen)
    texts = labels(found, "class", labeller)
    names = {
        label: f"class {text}, probability {_share(float(probability))}"
        for label, text, probability in zip(
            found["class"].values.tolist(), texts, found["class_probability"].values, strict=True
        )
    }
    is_image = len(axes) > 1
    if is_image:
        content = _image_panels(found, observation, templates, axes, names, max_arrows)
    else:
        is_default = not (layers.options("warped") or layers.options("template"))
        content = _curve_panels(found, observation, templates, axes[0], names, is_default)
    if plot_collection is None:
        plot_collection = make_grid(
            _frame(found, content.panels),
            backend,
            pc_kwargs,
            rows=["class"],
            cols=["panel"],
            square=is_image,
        )
    for visual, draw, values, panel, options in content.drawings:
        data = values.reset_coords(drop=True).to_dataset(name="registration")
        layers.draw(plot_collection, visual, draw, data, at={"panel": panel}, **options)
    if is_image:
        frame = partial(
            _frame_as, image=found["template_mean"].transpose("class", *axes), axes=axes[:2]
        )
        layers.draw(plot_collection, "ticks", frame, store=False)
    for visual, of in content.texts.items():
        layers.write(plot_collection, visual, partial(_text, of=of))
    return plot_collection


@dataclass
class _Content:
    """Panels of a row, the drawings in each, and texts by visual, class and panel."""

    panels: list[str]
    drawings: list[tuple[str, Callable[..., Any], xr.DataArray, str, dict[str, Any]]]
    texts: dict[str, Callable[[Any, str], str | None]] = field(default_factory=dict)


def _curve_panels(
    found: xr.Dataset,
    observation: Any,
    templates: xr.DataArray | None,
    age: str,
    names: Mapping[Any, str],
    is_default: bool,
) -> _Content:
    panels = ["data", "warp", *(["aligned"] if "aligned_mean" in found else [])]
    content = _Content(panels, [])
    solid, dashed = {"x": age, "color": "C0"}, {"x": age, "color": "B2", "linestyle": "C1"}
    of_panel = {"data": ("warped", "template"), "warp": ("warp",) * 2, "aligned": ("aligned",) * 2}
    for panel in panels:
        visual, name = of_panel[panel]
        mean, spread = found[f"{name}_mean"], BAND * found[f"{name}_sd"]
        bounds = xr.concat([mean - spread, mean + spread], "bound", coords="minimal")
        bounds = bounds.assign_coords(bound=["lower", "upper"])
        content.drawings += [
            (f"{visual}_band", draw_band, bounds, panel, solid),
            (visual, draw_curve, mean, panel, solid),
        ]
    if templates is not None:
        content.drawings += [
            ("template", draw_curve, templates, panel, dashed)
            for panel in panels
            if panel != "warp"
        ]
    identity = found[age].broadcast_like(found["warp_mean"])
    content.drawings.append(("identity", draw_curve, identity, "warp", dashed))
    if observation is not None:
        curve = _curve(observation, found, age)
        content.drawings.append(
            ("observation", draw_points, curve, "data", {"x": age, "color": "B1"})
        )
    titles = {"warp": "warp", "aligned": "aligned on the common clock"}
    time = with_unit(found[age], age)
    value = with_unit(found["template_mean"], "value")
    chosen = [str(each) for each in found.coords if f"{each}_units" in found.coords]
    if chosen:
        value = with_unit_of_channel(found, chosen[0], found[chosen[0]].item())
    lines = "solid: warped template; dashed: template"
    below = {
        "data": f"{time}\n({'line: warped template' if templates is None else lines})",
        "warp": f"{time}\n(dashed: no warp)",
        "aligned": f"{time} on the common clock",
    }
    if not is_default:
        below["data"] = time  # The default text may not describe lines with the caller's options.
    beside = {"data": value, "warp": f"{time} of the template", "aligned": value}
    last = found["class"].values.tolist()[-1]
    content.texts = {
        "title": lambda label, panel: titles.get(panel, names[label]),
        "xlabel": lambda label, panel: below[panel] if label == last else None,
        "ylabel": lambda _, panel: beside[panel],
    }
    return content


def _image_panels(
    found: xr.Dataset,
    observation: Any,
    templates: xr.DataArray | None,
    axes: tuple[str, ...],
    names: Mapping[Any, str],
    max_arrows: int,
) -> _Content:
    warped = found["template_mean"].transpose("class", *axes)
    images: dict[str, xr.DataArray] = {}
    if observation is not None:
        data = np.asarray(observation, dtype=np.float64)
        if data.shape != warped.shape[1:]:
            raise ValueError(
                f"observation: has shape {data.shape}, the registration is of images of shape "
                f"{warped.shape[1:]}; give the image that was registered."
            )
        images["observation"] = warped.copy(data=np.broadcast_to(data, warped.shape))
    if templates is not None:
        images["template"] = templates.transpose("class", *axes)
    images["warped"] = warped
    titles = {
        "observation": "data",
        "template": "template",
        "warped": "warped template",
        "arrows": "displacement",
    }
    content = _Content([titles[name] for name in [*images, "arrows"]], [])
    shades = {"axes": axes, "levels": shade_levels(*images.values())}
    draw = draw_pixels if len(axes) == 2 else draw_colors
    content.drawings = [
        (visual, draw, image, titles[visual], shades) for visual, image in images.items()
    ]
    axes = axes[:2]
    strides = {axis: slice(None, None, -(-found.sizes[axis] // max_arrows)) for axis in axes}
    ends = _ends(found["warp_mean"], axes).isel(strides)
    content.drawings.append(
        ("arrows", draw_arrows, ends, titles["arrows"], {"axes": axes, "color": "B1"})
    )
    first, left = found["class"].values.tolist()[0], content.panels[0]
    content.texts = {
        "title": lambda label, panel: panel if label == first else None,
        "ylabel": lambda label, panel: names[label].replace(", ", "\n") if panel == left else None,
    }
    return content


def _axes(registration: Any) -> tuple[str, ...]:
    """Return the names of the observation's axes."""
    needed = {"class_probability", "template_mean", "template_sd", "warp_mean", "warp_sd"}
    if not isinstance(registration, xr.Dataset) or not needed <= set(registration.data_vars):
        raise ValueError(
            f"registration: got {type(registration).__name__} without some of {sorted(needed)}; "
            "give what TemplateMixture.register returned."
        )
    if "class" not in registration.dims:
        raise ValueError(
            "registration: has no dimension 'class'; to draw one class keep the dimension, and "
            "name the class in coords, as {'class': [0]}."
        )
    for over in set(registration["class_probability"].dims) - {"class"}:
        raise ValueError(
            f"registration: has {registration.sizes[over]} observations; choose one, as "
            f"registration.isel({over}=0)."
        )
    axes = tuple(str(dim) for dim in registration["template_mean"].dims if dim != "class")
    channels = [dim for dim in axes if dim not in registration["warp_mean"].dims]
    if channels and not (len(axes) == 3 and is_color(registration["template_mean"], axes)):
        raise ValueError(
            f"registration: has several channels along {channels[0]!r}; choose one, as "
            f"registration.sel({channels[0]}={plain_label(registration[channels[0]].values[0])!r})."
        )
    if len(axes) - len(channels) > 2 or (len(axes) == 2 and "point" not in registration.coords):
        raise ValueError(f"registration: has the axes {axes}; only curves and images are drawn.")
    return axes


def _ends(warp: xr.DataArray, axes: tuple[str, ...]) -> xr.DataArray:
    """Return the start and end points of arrows, in the unit of the labels along `axes`."""
    point = warp["point"].transpose(*axes, "coordinate")
    ways = []
    for position, axis in enumerate(axes):
        ticks = np.asarray(warp[axis].values, dtype=np.float64)
        rim = point.isel({"coordinate": position, axis: [0, -1]}).mean(set(axes) - {axis}).values
        slope = (ticks[-1] - ticks[0]) / (rim[1] - rim[0])
        both = [
            ticks[0] + slope * (each.isel(coordinate=position) - rim[0])
            for each in (point.broadcast_like(warp), warp)
        ]
        ways.append(xr.concat([each.reset_coords(drop=True) for each in both], "end"))
    ends: xr.DataArray = xr.concat(ways, "coordinate")
    return ends


def _curve(observation: Any, found: xr.Dataset, age: str) -> xr.DataArray:
    """Return the points of a curve along `age`, for each class."""
    values = np.asarray(observation, dtype=np.float64)
    if values.ndim == 2 and len(values) == 2:
        points, values = values
    elif values.shape == found[age].shape:
        points = found[age].values
    else:
        raise ValueError(
            f"observation: has shape {values.shape}; give ({found.sizes[age]},), or (2, n) with "
            "points above values."
        )
    curve = xr.DataArray(values, dims=age, coords={age: points})
    return curve.expand_dims({"class": found["class"].values})


def _frame_as(
    da: xr.DataArray, target: Any, *, image: xr.DataArray, axes: Sequence[str], **_: Any
) -> None:
    frame_image(image, target, axes=axes)


def _frame(found: xr.Dataset, panels: Sequence[str]) -> xr.Dataset:
    blank = np.zeros((found.sizes["class"], len(panels)))
    coords = {"class": found["class"].values, "panel": list(panels)}
    return xr.Dataset({"registration": (("class", "panel"), blank)}, coords)


def _text(_: str, sel: Mapping[Any, Any], *, of: Callable[[Any, str], str | None]) -> str | None:
    label = sel["class"]
    return of(label.item() if isinstance(label, np.generic) else label, str(sel["panel"]))


def _share(value: float) -> str:
    return "<0.001" if value < 0.0005 else ">0.999" if value > 0.9995 else f"{value:.3f}"
