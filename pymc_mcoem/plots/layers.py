"""Selection of the visuals of a plot, with their keywords and aesthetics."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from colorsys import hsv_to_rgb
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import rcParams
from arviz_base.labels import BaseLabeller
from arviz_base.validate import validate_dict_argument
from arviz_plots.plot_collection import PlotCollection, backend_from_object
from arviz_plots.plots.utils import (
    filter_aes,
    get_visual_kwargs,
    set_grid_layout,
    set_wrap_layout,
)

__all__ = [
    "Layers",
    "class_colors",
    "labels",
    "make_grid",
    "make_wrap",
    "plain_label",
    "with_unit",
    "with_unit_of_channel",
    "write",
]


#: Petroff's ten colors, which are ArviZ's default and can be told apart by the color-blind.
_COLORS = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)


_DOTS_PER_INCH = 100


def class_colors(n: int) -> list[str]:
    """Return a color for each of n classes.

    The color-blind can tell up to ten apart. If there are more, neighbors differ in hue, by the
    golden ratio, and in brightness.

    Examples
    --------
    >>> class_colors(2), len(set(class_colors(50)))
    (['#3f90da', '#ffa90e'], 50)
    """
    if n <= len(_COLORS):
        return list(_COLORS[:n])
    found = []
    for k in range(n):
        hue, value = (k * 0.618034) % 1.0, 0.9 if k % 2 else 0.65
        red, green, blue = (round(255 * part) for part in hsv_to_rgb(hue, 0.75, value))
        found.append(f"#{red:02x}{green:02x}{blue:02x}")
    return found


class Layers:
    """Draw the visuals of one plot onto a collection, with the options of its caller.

    `valid` are the names of the visuals. In `visuals` False omits a visual, True draws it, and a
    mapping gives keywords. `aes_by_visuals` are the aesthetics of each visual, by default those
    given to `draw`.

    Examples
    --------
    >>> Layers(("curve", "title"), {"title": False}, None).options("title") is None
    True
    """

    def __init__(
        self,
        valid: Sequence[str],
        visuals: Mapping[str, Mapping[str, Any] | bool] | None,
        aes_by_visuals: Mapping[str, Sequence[str]] | None,
    ) -> None:
        self._visuals = validate_dict_argument(visuals, valid_keys=valid)
        self._aes = validate_dict_argument(aes_by_visuals, valid_keys=valid)

    def options(self, visual: str, default: bool = True) -> dict[str, Any] | None:
        """Return the keywords of a visual, or None if it is omitted."""
        found = get_visual_kwargs(self._visuals, visual, None if default else False)
        return None if found is False else dict(found)

    def draw(
        self,
        collection: PlotCollection,
        visual: str,
        function: Callable[..., Any],
        data: xr.Dataset | None = None,
        *,
        at: Mapping[str, Hashable] | None = None,
        aes: Sequence[str] = (),
        default: bool = True,
        store: bool = True,
        subset_info: bool = False,
        artist_dims: Mapping[Any, int] | None = None,
        **options: Any,
    ) -> None:
        """Map `function` over the plots of `collection`, unless the visual is omitted.

        `function` takes a DataArray and ``target``; `store`, `subset_info` and `artist_dims` are
        those of `PlotCollection.map`.

        Parameters
        ----------
        at : mapping, optional
            Coordinates of the plots to draw in. Default: all plots.
        aes : sequence of str
            Aesthetics of the visual, if the caller names none.
        default : bool
            Whether the visual is drawn by default.
        **options
            Default keywords, which those of the caller override.
        """
        given = self.options(visual, default)
        if given is None:
            return
        by_visual = {visual: list(aes), **self._aes}
        ignored = filter_aes(collection, by_visual, visual, [])[-1]
        collection.coords = None if at is None else dict(at)
        try:
            collection.map(
                function,
                visual,
                data=data,
                ignore_aes=ignored,
                store_artist=store,
                subset_info=subset_info,
                artist_dims=artist_dims,
                **{**options, **given},
            )
        finally:
            collection.coords = None

    def write(
        self,
        collection: PlotCollection,
        visual: str,
        text: Callable[[str, Mapping[Any, Any]], str | None],
    ) -> None:
        """Write a title or the label of an axis, returned by `text` of variable and selection."""
        writer = partial(write, visual=visual, text=text)
        self.draw(collection, visual, writer, subset_info=True)

    def add_legend(self, collection: PlotCollection, **defaults: Any) -> None:
        """Add the legend of the colors, unless it is omitted or there are no colors."""
        given = self.options("legend")
        if given is not None and "color" in collection.aes_set:
            collection.add_legend(**{**defaults, **given})


def write(
    da: xr.DataArray,
    target: Any,
    *,
    visual: str,
    text: Callable[[str, Mapping[Any, Any]], str | None],
    var_name: str,
    sel: Mapping[Any, Any],
    isel: Mapping[Any, Any],
    **options: Any,
) -> Any:
    """Write `text` as a title or the label of an axis; None writes nothing."""
    words = text(var_name, sel)
    if words is None:
        return None
    if visual == "title":
        options = {"color": "B1", **options}
    return getattr(backend_from_object(target), visual)(words, target, **options)


def make_wrap(
    data: xr.Dataset,
    backend: str | None,
    pc_kwargs: Mapping[str, Any],
    *,
    aes: Mapping[str, Sequence[Hashable]] | None = None,
    square: bool = False,
    **defaults: Any,
) -> PlotCollection:
    """Return an empty figure with plots one after the other in rows.

    `pc_kwargs` are arguments of `PlotCollection.wrap` from the caller, `defaults` those that they
    override, and `aes` default aesthetics and their dimensions. `square` plots are images, whose
    two axes have the same scale.
    """
    backend, kwargs = _prepared(data, backend, pc_kwargs, aes, defaults, square)
    back_end = import_module(f"arviz_plots.backend.{backend}")
    if square and "figsize" not in kwargs["figure_kwargs"]:
        n = int(
            np.prod([data.sizes[dim] for dim in kwargs["cols"] if dim in data.sizes], dtype=int)
        )
        n_cols = min(n, kwargs.setdefault("col_wrap", 4))
        _square(backend, kwargs["figure_kwargs"], -(-n // n_cols), n_cols)
    if list(kwargs["cols"]) == ["__variable__"] and "figsize" not in kwargs["figure_kwargs"]:
        n_cols = min(len(data.data_vars), kwargs.setdefault("col_wrap", 2))
        n_rows = -(-len(data.data_vars) // n_cols)
        # Rows need room for titles below the labels of the row above.
        _size(backend, kwargs["figure_kwargs"], 1.6 + 4.6 * n_cols, 0.6 + 2.4 * n_rows)
    if not kwargs["cols"] and "figsize" not in kwargs["figure_kwargs"]:
        _size(backend, kwargs["figure_kwargs"], 7.0, 3.8)
    kwargs = set_wrap_layout(kwargs, back_end, data)
    return PlotCollection.wrap(data, backend=backend, **kwargs)


def make_grid(
    data: xr.Dataset,
    backend: str | None,
    pc_kwargs: Mapping[str, Any],
    *,
    square: bool = False,
    **defaults: Any,
) -> PlotCollection:
    """Return an empty figure with rows and columns, without aesthetics; else like `make_wrap`."""
    backend, kwargs = _prepared(data, backend, pc_kwargs, None, defaults, square)
    back_end = import_module(f"arviz_plots.backend.{backend}")
    kwargs.setdefault("rows", [])
    if "figsize" not in kwargs["figure_kwargs"]:
        n_rows, n_cols = (
            int(np.prod([data.sizes[dim] for dim in kwargs[way] if dim in data.sizes], dtype=int))
            for way in ("rows", "cols")
        )
        if square:
            _square(backend, kwargs["figure_kwargs"], n_rows, n_cols)
        else:
            _size(backend, kwargs["figure_kwargs"], 3.6 * n_cols, 2.3 * n_rows + 0.4)
    kwargs = set_grid_layout(kwargs, back_end, data)
    return PlotCollection.grid(data, backend=backend, **kwargs)


def labels(
    data: xr.DataArray | xr.Dataset, dim: Hashable, labeller: BaseLabeller | None = None
) -> list[str]:
    """Return the labels of a dimension as text."""
    maker = BaseLabeller() if labeller is None else labeller
    return [
        maker.dim_coord_to_str(dim, value, position)
        for position, value in enumerate(data[dim].values)
    ]


def _prepared(
    data: xr.Dataset,
    backend: str | None,
    pc_kwargs: Mapping[str, Any],
    aes: Mapping[str, Sequence[Hashable]] | None,
    defaults: Mapping[str, Any],
    square: bool,
) -> tuple[str, dict[str, Any]]:
    backend = rcParams["plot.backend"] if backend is None else backend
    kwargs: dict[str, Any] = {**defaults, **pc_kwargs}
    kwargs["figure_kwargs"] = {
        **defaults.get("figure_kwargs", {}),
        **pc_kwargs.get("figure_kwargs", {}),
    }
    kwargs["aes"] = {**(aes or {}), **pc_kwargs.get("aes", {})}
    colored = kwargs["aes"].get("color", [])
    if len(colored) == 1 and colored[0] in data.dims:
        kwargs.setdefault("color", class_colors(data.sizes[colored[0]]))
    if backend == "matplotlib":
        # Without it titles, labels and legends overlap or are cut off.
        kwargs["figure_kwargs"].setdefault("layout", "constrained")
        if square:
            kwargs["figure_kwargs"].setdefault("subplot_kws", {"aspect": "equal"})
    return str(backend), kwargs


def _square(backend: str, figure_kwargs: dict[str, Any], n_rows: int, n_cols: int) -> None:
    side = 2.4 if n_cols < 5 else 1.6
    # Room for titles; plotly also has margins, and a wide gap below each row.
    margins, gap = ((1.6, 0.9), 0.55) if backend == "plotly" else ((0.0, 0.35), 0.15)
    _size(backend, figure_kwargs, side * n_cols + margins[0], (side + gap) * n_rows + margins[1])


def _size(backend: str, figure_kwargs: dict[str, Any], width: float, height: float) -> None:
    """Set the size of a figure in inches; back ends other than matplotlib count dots."""
    dots = 1 if backend in ("matplotlib", "none") else _DOTS_PER_INCH
    figure_kwargs["figsize"] = (dots * width, dots * height)
    figure_kwargs["figsize_units"] = "inches" if dots == 1 else "dots"


def with_unit(values: xr.DataArray, name: str) -> str:
    """Return the name of a quantity with its unit, from xarray's attributes.

    Examples
    --------
    >>> with_unit(xr.DataArray(0.0, attrs={"units": "ms"}), "time"), with_unit(xr.DataArray(), "u")
    ('time (ms)', 'u')
    """
    called, unit = values.attrs.get("long_name", name), values.attrs.get("units", "")
    return f"{called} ({unit})" if unit else str(called)


def with_unit_of_channel(values: xr.DataArray | xr.Dataset, axis: str, label: Any) -> str:
    """Return the axis and the label of a channel, with its unit if it has one of its own.

    Examples
    --------
    >>> coords = {"lead": ["II", "V1"], "lead_units": ("lead", ["mV", "µV"])}
    >>> with_unit_of_channel(xr.DataArray([0.0, 0.0], coords, "lead"), "lead", "V1")
    'lead V1 (µV)'
    """
    units = values.coords.get(f"{axis}_units")
    if units is None:
        return f"{axis} {label}"
    unit = units.sel({axis: label}) if units.ndim else units
    return f"{axis} {label} ({unit.item()})" if unit.item() else f"{axis} {label}"


def plain_label(value: Any) -> Any:
    """Return a label of a coordinate as a plain object of Python."""
    return value.item() if isinstance(value, np.generic) else value
