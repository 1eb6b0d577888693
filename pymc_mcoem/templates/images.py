"""Coordinates of the pixels and landmarks of an image mixture, and images of its templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from pymc_mcoem.templates.family import TemplateFamily

__all__ = ["ImageGrid", "template_images"]


class ImageGrid:
    """Coordinates of an image's pixels and of the landmarks that warp it.

    Parameters
    ----------
    shape : tuple of (int, int)
        Rows and columns, at least two each.
    n_landmarks : int or tuple of (int, int) or None
        Landmarks on each side, at least two. None: two more than a quarter of the side, at most
        six.

    Attributes
    ----------
    shape : tuple of (int, int)
    axes : list of ndarray
        Coordinates of rows and of columns. The longer side spans −1 to 1; both have the same
        spacing.
    points : ndarray of shape (n_pixels, 2)
    bandwidth : float
        1.5 pixel spacings.
    landmarks : list of ndarray
        Coordinates of the landmarks on each axis: the inner half of each side.
    width : float
        Twice the larger spacing of the landmarks.

    Raises
    ------
    ValueError
        If the shape or the number of landmarks is too small.

    Notes
    -----
    Section ``subsec:5:2`` of the paper.

    Examples
    --------
    >>> grid = ImageGrid((16, 16))
    >>> round(grid.bandwidth, 6), round(grid.width**2, 6), len(grid.landmarks[0])
    (0.2, 0.16, 6)
    """

    def __init__(
        self, shape: tuple[int, int], n_landmarks: int | tuple[int, int] | None = None
    ) -> None:
        self.shape = _image_shape(shape)
        counts = _landmark_counts(n_landmarks, self.shape)
        spacing = 2.0 / (max(self.shape) - 1)
        self.bandwidth = 1.5 * spacing
        self.axes = [spacing * (np.arange(side) - (side - 1) / 2.0) for side in self.shape]
        rows, columns = np.meshgrid(*self.axes, indexing="ij")
        self.points = np.stack([rows.ravel(), columns.ravel()], axis=-1)
        self.landmarks = [
            np.linspace(axis[0] / 2.0, axis[-1] / 2.0, count)
            for axis, count in zip(self.axes, counts, strict=True)
        ]
        self.width = 2.0 * max(float(axis[1] - axis[0]) for axis in self.landmarks)


def template_images(
    parameters: Mapping[str, Any] | xr.Dataset, mixture: TemplateFamily
) -> xr.DataArray:
    """Return the templates on the observation's own axes, f_j∘D(·, prior mean).

    Parameters
    ----------
    parameters : Dataset or mapping of str to array_like
        Parameters θ; only ``templates`` is used.
    mixture : TemplateMixture

    Returns
    -------
    DataArray of shape ``(class, *grid)``
        At the mean scale, if the mixture has one.

    Raises
    ------
    ValueError
        If the templates do not have the mixture's size.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((4, 6), n_classes=2, n_landmarks=2)
    >>> template_images(mixture.parameters, mixture).dims
    ('class', 'row', 'column')
    """
    settings = mixture.settings
    templates = np.asarray(parameters["templates"], dtype=np.float64)
    if templates.ndim != 2 or templates.shape[1] != settings.basis.n_basis:
        raise ValueError(
            f"parameters: templates has shape {templates.shape}; the mixture needs "
            f"(n_classes, {settings.basis.n_basis})."
        )
    images = (templates @ mixture.mean_design().T).reshape(-1, *settings.grid_shape)
    coords = dict(zip(settings.dim_names, settings.dim_coords, strict=True))
    return xr.DataArray(
        images,
        dims=("class", *settings.dim_names),
        coords={"class": np.arange(len(images)), **coords},
        name="templates",
    )


def _image_shape(shape: Any) -> tuple[int, int]:
    sides = tuple(shape) if isinstance(shape, (tuple, list, np.ndarray)) else ()
    if len(sides) != 2 or any(int(side) != side or side < 2 for side in sides):
        raise ValueError(f"shape is {shape!r}; give (rows, columns), at least two each.")
    return int(sides[0]), int(sides[1])


def _landmark_counts(
    n_landmarks: int | tuple[int, int] | None, sides: tuple[int, int]
) -> tuple[int, int]:
    if n_landmarks is None:
        return min(6, 2 + sides[0] // 4), min(6, 2 + sides[1] // 4)
    given: tuple[int, ...] = (
        tuple(n_landmarks) if isinstance(n_landmarks, (tuple, list)) else (n_landmarks,) * 2
    )
    if len(given) != 2 or any(int(count) != count or count < 2 for count in given):
        raise ValueError(
            f"n_landmarks is {n_landmarks!r}; give one number of landmarks per side or a pair, at "
            "least two."
        )
    return int(given[0]), int(given[1])
