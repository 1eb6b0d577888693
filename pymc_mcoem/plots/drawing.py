"""Drawing of templates, observations and warps as curves, bands, pixels and arrows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots.plot_collection import backend_from_object

__all__ = [
    "arrow_path",
    "draw_arrows",
    "draw_band",
    "draw_curve",
    "draw_pixels",
    "draw_points",
    "frame_image",
    "shade_levels",
]

#: Number of shades between the darkest and the brightest value.
N_SHADES = 32


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


def frame_image(da: xr.DataArray, target: Any, *, axes: Sequence[Hashable], **_: Any) -> None:
    """Remove margins and ticks of an image."""
    back_end = backend_from_object(target)
    top, left = (_edges(da[dim].values) for dim in axes)
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
