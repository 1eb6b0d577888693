"""Drawing of templates, observations and warps as curves, bands, pixels and arrows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots.plot_collection import backend_from_object

__all__ = [
    "BAND",
    "arrow_path",
    "draw_arrows",
    "draw_band",
    "draw_colors",
    "draw_curve",
    "draw_pixels",
    "draw_points",
    "frame_image",
    "is_color",
    "shade_levels",
]

#: Number of shades between the darkest and the brightest value.
N_SHADES = 32
#: Channels that are drawn together: red, green and blue.
N_COLORS = 3
#: Standard deviations on either side of the mean in bands.
BAND = 2.0


def shade_levels(*images: xr.DataArray) -> np.ndarray:
    """Return `N_SHADES` + 1 bounds of shades that all images share, whose NaN are ignored.

    They reach from slightly below the smallest to slightly above the largest value.

    Examples
    --------
    >>> shade_levels(xr.DataArray([0.0, 1.0]))[[0, -1]].round(3)
    array([-0.,  1.])
    """
    values = np.concatenate([np.ravel(image.values) for image in images])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    # Back ends omit values on the outermost bounds.
    more = 1e-6 * max(high - low, abs(high), 1e-12)
    return np.linspace(low - more, high + more, N_SHADES + 1)


def draw_pixels(
    da: xr.DataArray, target: Any, *, axes: Sequence[Hashable], levels: Any, **options: Any
) -> Any:
    """Draw an image of pixels with one shade each, and rows from top to bottom.

    The back ends of arviz-plots draw no pixels but filled contours, which look like pixels if each
    value is given at all four corners.
    """
    image = da.transpose(*axes)
    (top, left), values = (_edges(image[dim].values) for dim in axes), image.values
    blocks = np.repeat(np.repeat(values, 2, axis=0), 2, axis=1)
    back_end = backend_from_object(target)
    defaults: dict[str, Any] = {"cmap": "viridis"}
    if back_end.__name__.startswith("arviz_plots.backend.plotly"):
        # by default plotly rounds corners and uses fewer shades
        size = float(levels[1] - levels[0])
        bounds = {"start": float(levels[0]), "end": float(levels[-1]), "size": size}
        defaults |= {"contours": bounds, "line_smoothing": 0}
    # contours are given as x by y, and y points upwards
    return back_end.contourf(left, -top, blocks.T, target, levels=levels, **(defaults | options))


def is_color(images: xr.DataArray, axes: Sequence[Hashable]) -> bool:
    """Return whether images have three channels, along a third axis, and are drawn in color."""
    return len(axes) == 3 and images.sizes[axes[2]] == N_COLORS


def draw_colors(
    da: xr.DataArray, target: Any, *, axes: Sequence[Hashable], levels: Any, **options: Any
) -> Any:
    """Draw an image whose third axis has red, green and blue, and rows from top to bottom.

    The smallest of `levels` is black, and the largest is full brightness, for all three. Where a
    channel is missing the pixel is transparent. The back ends of arviz-plots draw no colors: this
    calls what is behind them.
    """
    image = da.transpose(*axes).values
    low, high = float(levels[0]), float(levels[-1])
    known = np.isfinite(image).all(axis=-1)
    shares = np.clip((np.where(known[..., None], image, low) - low) / (high - low), 0.0, 1.0)
    pixels = np.round(255 * np.dstack([shares, known])).astype(np.uint8)
    top, left = (_edges(da[axis].values) for axis in axes[:2])
    left_end, right_end, bottom, upper = (
        float(each) for each in (left[0], left[-1], -top[-1], -top[0])
    )
    name = backend_from_object(target).__name__
    if name.startswith("arviz_plots.backend.matplotlib"):
        extent = left_end, right_end, bottom, upper
        defaults: dict[str, Any] = {"extent": extent, "interpolation": "nearest", "aspect": "equal"}
        return target.imshow(pixels, **(defaults | options))
    if name.startswith("arviz_plots.backend.bokeh"):
        # rows go upwards, and a pixel is one number
        packed = np.ascontiguousarray(pixels[::-1]).view(np.uint32)[..., 0]
        place = {"x": left_end, "y": bottom, "dw": right_end - left_end, "dh": upper - bottom}
        return target.image_rgba(image=[packed], **(place | options))
    if name.startswith("arviz_plots.backend.plotly"):
        graph_objects = import_module("plotly.graph_objects")
        n_rows, n_columns = pixels.shape[:2]
        down, across = (bottom - upper) / n_rows, (right_end - left_end) / n_columns
        place = {"x0": left_end + across / 2, "dx": across, "y0": upper + down / 2, "dy": down}
        opaque = pixels * np.array([1, 1, 1, 1.0 / 255])
        trace = graph_objects.Image(z=opaque, colormodel="rgba", **(place | options))
        target.add_trace(trace)
        return trace
    drawn = {"function": "image", "pixels": pixels, "x": left, "y": -top, **options}
    target.append(drawn)
    return drawn


def frame_image(da: xr.DataArray, target: Any, *, axes: Sequence[Hashable], **_: Any) -> None:
    """Remove margins and ticks of an image."""
    back_end = backend_from_object(target)
    top, left = (_edges(da[dim].values) for dim in axes[:2])
    back_end.xlim((float(left[0]), float(left[-1])), target)
    back_end.ylim((float(-top[-1]), float(-top[0])), target)
    back_end.xticks([], [], target)
    back_end.yticks([], [], target)


def draw_curve(da: xr.DataArray, target: Any, *, x: Hashable, **options: Any) -> Any:
    """Draw values along the coordinate `x` as a line."""
    return backend_from_object(target).line(
        np.asarray(da[x].values, dtype=np.float64), da.values, target, **options
    )


def draw_points(da: xr.DataArray, target: Any, *, x: Hashable, **options: Any) -> Any:
    """Draw values along the coordinate `x` as points, without NaN."""
    known = np.isfinite(da.values)
    return backend_from_object(target).scatter(
        np.asarray(da[x].values, dtype=np.float64)[known], da.values[known], target, **options
    )


def draw_band(da: xr.DataArray, target: Any, *, x: Hashable, **options: Any) -> Any:
    """Fill between the rows ``lower`` and ``upper`` of the dimension ``bound``."""
    lower, upper = (da.sel(bound=bound).values for bound in ("lower", "upper"))
    known = np.isfinite(lower) & np.isfinite(upper)
    return backend_from_object(target).fill_between_y(
        np.asarray(da[x].values, dtype=np.float64)[known],
        lower[known],
        upper[known],
        target,
        **{"alpha": 0.25, **options},
    )


def draw_arrows(da: xr.DataArray, target: Any, *, axes: Sequence[Hashable], **options: Any) -> Any:
    """Draw displacements by ``end`` (from, to) and ``coordinate`` as arrows on an image."""
    ends = da.transpose("end", ..., "coordinate").values.reshape(2, -1, 2)
    # rows point downwards
    begin, end = (np.stack([each[:, 1], -each[:, 0]], axis=-1) for each in ends)
    x, y = arrow_path(begin, end).T
    return backend_from_object(target).line(x, y, target, **options)


def arrow_path(begin: np.ndarray, end: np.ndarray, head: float = 0.35) -> np.ndarray:
    """Return one broken line that draws arrows from points (n, 2) to others, NaN between them.

    `head` is the length of an arrow's head as a share of the arrow.

    Examples
    --------
    >>> arrow_path(np.zeros((1, 2)), np.array([[1.0, 0.0]]), head=0.5)[:3]
    array([[0.  , 0.  ],
           [1.  , 0.  ],
           [0.5 , 0.25]])
    """
    way = end - begin
    across = np.stack([-way[:, 1], way[:, 0]], axis=-1)
    left = end - head * way + 0.5 * head * across
    right = end - head * way - 0.5 * head * across
    gap = np.full_like(begin, np.nan)
    return np.stack([begin, end, left, end, right, gap], axis=1).reshape(-1, 2)


def _edges(centers: np.ndarray) -> np.ndarray:
    """Return the edges of pixels from their centers, with each inner edge twice."""
    centers = np.asarray(centers, dtype=np.float64)
    middle = (centers[1:] + centers[:-1]) / 2
    first, last = 1.5 * centers[0] - 0.5 * centers[1], 1.5 * centers[-1] - 0.5 * centers[-2]
    edges = np.concatenate([[first], np.repeat(middle, 2), [last]])
    return edges
