"""Coordinates of an image mixture's pixels, kernels and landmarks, and images of its templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.labeling import require_parameters
from pymc_mcoem.templates.bases.factors import BasisWithFactors
from pymc_mcoem.templates.priors import TemplatePriors
from pymc_mcoem.templates.settings import read_channels
from pymc_mcoem.templates.warps.displacement_field import DisplacementField
from pymc_mcoem.templates.warps.rigid_motion import OFF, RigidMotion
from pymc_mcoem.validation import as_numbers, is_number

if TYPE_CHECKING:
    from pymc_mcoem.templates.family import TemplateFamily

__all__ = ["ImageGrid", "image_priors", "split_shape", "template_images"]

#: Most kernels on a side that is not told how many it has. With so many, an observation's time
#: grows no faster than its pixels, and templates of larger images lose nothing that was measured.
MOST_KERNELS = 20
#: How far a landmark strays, in the longer side of an image, and how many images the prior that
#: says so is worth; see `image_priors`.
STRAY, IMAGES = 0.04, 30
#: How far a rigid motion may go at most, by what it is told in.
UNITS = {"degrees": 180.0, "pixels": np.inf, "percent": 100.0}
#: Degrees from a searched angle within which a turned template is found. Of 180 images of strokes
#: that were turned by up to 180 degrees, 176 were found with 40, 175 with 20, and 170 with 60.
REACH = 40.0


class ImageGrid:
    """Coordinates of an image's pixels, of its template's kernels and of the landmarks of a warp.

    Arguments are those of `TemplateMixture.for_images`, section ``subsec:5:2`` of the paper.

    Attributes
    ----------
    shape : tuple of (int, int)
    axes : list of ndarray
        Coordinates of rows and of columns. The longer side spans −1 to 1; both have the same
        spacing.
    points : ndarray of shape (n_pixels, 2)
    kernel_axes : list of ndarray
        Coordinates of the kernels on each axis, from the first pixel to the last.
    bandwidth : float
        1.5 spacings of the kernels, of the wider ones if the axes differ.
    landmarks : list of ndarray
        Coordinates of the landmarks on each axis: the inner half of each side.
    width : float
        Twice the larger spacing of the landmarks.
    spacing : float
        Distance of neighboring pixels.

    Examples
    --------
    >>> grid = ImageGrid((16, 16))
    >>> round(grid.bandwidth, 6), round(grid.width**2, 6), len(grid.landmarks[0])
    (0.2, 0.16, 6)
    >>> [len(axis) for axis in ImageGrid((64, 32)).kernel_axes]
    [20, 10]
    """

    def __init__(
        self,
        shape: tuple[int, int],
        n_landmarks: int | tuple[int, int] | None = None,
        n_kernels: int | tuple[int, int] | str | None = None,
    ) -> None:
        self.shape = _image_shape(shape)
        counts = _landmark_counts(n_landmarks, self.shape)
        spacing = 2.0 / (max(self.shape) - 1)
        self.axes = [spacing * (np.arange(side) - (side - 1) / 2.0) for side in self.shape]
        kernels = _kernel_counts(n_kernels, self.shape)
        self.kernel_axes = [
            # the pixels themselves where there is one on each: to the last bit as they are
            axis if count == len(axis) else np.linspace(axis[0], axis[-1], count)
            for axis, count in zip(self.axes, kernels, strict=True)
        ]
        self.bandwidth = 1.5 * max(
            spacing if count == side else (side - 1) * spacing / (count - 1)
            for side, count in zip(self.shape, kernels, strict=True)
        )
        rows, columns = np.meshgrid(*self.axes, indexing="ij")
        self.points = np.stack([rows.ravel(), columns.ravel()], axis=-1)
        self.landmarks = [
            np.linspace(axis[0] / 2.0, axis[-1] / 2.0, count)
            for axis, count in zip(self.axes, counts, strict=True)
        ]
        self.width = 2.0 * max(float(axis[1] - axis[0]) for axis in self.landmarks)
        self.spacing = spacing

    def rigid_motion(
        self, variance: float, reach: Mapping[str, float] | None, weight: float | None = None
    ) -> RigidMotion:
        """Return rigid motions that reach so many degrees, pixels and percent.

        Each is two standard deviations of the prior. What is left out has `variance`. Searches
        start from as many angles as it takes that none within reach is farther than `REACH`. With a
        `weight` the variances are learned; see `RigidMotion`.

        Examples
        --------
        >>> motion = ImageGrid((16, 16)).rigid_motion(0.1, {"degrees": 90, "pixels": 2})
        >>> np.sqrt(np.diag(motion.covariance)).round(3)
        array([0.785, 0.316, 0.133, 0.133, 0.133, 0.133])
        >>> np.rad2deg(motion.angles)
        array([  0.,  60., -60.])
        """
        if reach is None:
            return RigidMotion(variance, weight=weight)
        _check_reach(reach)
        one = {"degrees": np.deg2rad(1.0), "percent": 0.01, "pixels": self.spacing}
        variances = {
            unit: max((0.5 * reach[unit] * one[unit]) ** 2, OFF) if unit in reach else variance
            for unit in UNITS
        }
        degrees = reach.get("degrees", 0.0)
        more = max(int(np.ceil(degrees / (2 * REACH) - 0.5)), 0)
        steps = np.arange(1, more + 1) * np.deg2rad(degrees) / (more + 0.5)
        return RigidMotion(
            [variances["degrees"], variances["percent"], *[variances["pixels"]] * 4],
            angles=[0.0, *np.column_stack([steps, -steps]).ravel()],
            weight=weight,
        )


def template_images(
    parameters: Mapping[str, Any] | xr.Dataset,
    mixture: TemplateFamily,
    scores: Sequence[float] | None = None,
) -> xr.DataArray:
    """Return the templates on the observation's own axes, f_j∘D(·, prior mean).

    Parameters
    ----------
    parameters : Dataset or mapping of str to array_like
        Parameters θ; only ``templates`` is used.
    mixture : TemplateMixture
    scores : sequence of float, optional
        Of a mixture with factors: those of each factor, such as ``[2, 0]`` for the template and two
        standard deviations of its first factor. Default: zeros.

    Returns
    -------
    DataArray of shape ``(class, *grid)``, or ``(class, *grid, channel)``
        At the mean scale, if the mixture has one.

    Raises
    ------
    ValueError
        If the templates do not have the mixture's size, or there are not as many scores as factors.
    TypeError
        If `parameters` is neither a mapping nor a Dataset.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((4, 6), n_classes=2, n_landmarks=2)
    >>> template_images(mixture.parameters, mixture).dims
    ('class', 'row', 'column')
    """
    require_parameters(parameters)
    settings = mixture.settings
    templates = np.asarray(parameters["templates"], dtype=np.float64)
    needed = (*settings.channel_shape, settings.basis.n_basis)
    if templates.shape[1:] != needed:
        raise ValueError(
            f"parameters: templates has shape {templates.shape}; the mixture needs "
            f"(n_classes, {', '.join(map(str, needed))})."
        )
    design = mixture.mean_design()
    if scores is not None:
        basis, given = settings.basis, as_numbers("scores", scores)
        count = settings.deformation.n_scores
        if not count or given.shape != (count,) or not np.isfinite(given).all():
            raise ValueError(
                f"scores is {scores!r}; give a finite number for each of {count} factors, see "
                "n_factors of TemplateMixture.for_images."
            )
        assert isinstance(basis, BasisWithFactors)
        own = design[:, : basis.kernels.n_basis]
        design = np.concatenate([own, *(score * own for score in given)], axis=1)
    images = templates @ design.T
    if settings.channel_shape:
        images = images.swapaxes(1, 2)
    images = images.reshape(-1, *settings.value_shape)
    return xr.DataArray(
        images,
        dims=("class", *settings.value_dims),
        coords={"class": np.arange(len(images)), **settings.labeled_coords},
        name="templates",
        attrs=settings.value_attributes,
    )


def image_priors(field: DisplacementField, covariance: str = "scaled") -> TemplatePriors:
    """Return the default priors of image mixtures.

    γ² is held near the value at which landmarks are displaced by 4 % of the image's longer side
    (standard deviation along each axis). This prior is worth 30 images, with ``covariance="full"``
    the least that is proper; the others are those of `TemplatePriors`.

    Parameters
    ----------
    field : DisplacementField
        In coordinates in which the longer side has length two.
    covariance : {"scaled", "diagonal", "full"}
        As for `TemplateMixture`.

    Returns
    -------
    TemplatePriors

    Notes
    -----
    The paper has no priors on θ. With weak ones (``TemplatePriors()``) γ² grows along the stream,
    and templates take in images of other kinds, which loose warps make of them. On scikit-learn's
    digits, 8 × 8 pixels with noise of variance 0.01, motions of variance 0.1 (400 images without
    labels and ten templates; and two templates a digit from 30 images, four from 100, with 500
    test images):

    =================== ======================== ============ ============
    γ²                  adjusted Rand, 3 streams error %, 30  error %, 100
    =================== ======================== ============ ============
    weak prior          0.36, 0.39, 0.57         6.8, 8.4     5.4, 6.2
    held near 0.005     –, 0.57, 0.68            6.2, 7.4     2.8, 4.8
    held near 0.0025    0.62, 0.63, 0.65         4.4, 6.6     2.6, 2.4
    held near 0.0016    0.65, 0.72, 0.63         3.6, 6.2     2.6, 2.0
    held near 0.001     –, 0.73, 0.69            3.8, 5.2     2.4, 2.8
    =================== ======================== ============ ============

    k-means has 0.62, 0.57 and 0.62; the default is 0.0010 at this size. On postal digits, 16 × 16
    pixels, values near the default's 0.0008 name better than 0.0025 (``docs/tried.md``, "Stiffer
    warps"). Log-evidence does not choose the default: it rises with γ², as images are followed more
    closely (by 45 nats an image on digits enlarged to 28 × 28). If images of one kind differ more
    than that, pass ``TemplatePriors().with_deformation_variance(value, weight)``.

    Examples
    --------
    >>> grid = ImageGrid((16, 16))
    >>> field = DisplacementField.on_grid(grid.landmarks, grid.width, 0.2)
    >>> round(float(image_priors(field).deformation_variance), 4)
    0.0008
    """
    variance = (2.0 * STRAY) ** 2 / field.displacement_variance(field.landmarks).mean()
    learned = field.n_parameters if covariance == "scaled" else 1
    return TemplatePriors().with_deformation_variance(variance, weight=IMAGES * learned)


def split_shape(shape: Any, channels: Any) -> tuple[Any, Any]:
    """Return the sides of images and their channels, of a shape that may have both.

    Examples
    --------
    >>> split_shape((16, 16, 3), None), split_shape((16, 16), ["red", "infrared"])
    (((16, 16), 3), ((16, 16), ['red', 'infrared']))
    """
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        return shape, channels
    if channels is None:
        return tuple(shape[:2]), shape[2]
    _, labels = read_channels(channels)
    if labels is None or len(labels) != shape[2]:
        raise ValueError(
            f"channels is {channels!r}, and shape is {tuple(shape)}; give as many channels as the "
            "shape has, or rows and columns alone."
        )
    return tuple(shape[:2]), channels


def _image_shape(shape: Any) -> tuple[int, int]:
    sides = tuple(shape) if isinstance(shape, (tuple, list, np.ndarray)) else ()
    if len(sides) != 2 or any(int(side) != side or side < 2 for side in sides):
        found = f"an array of shape {shape.shape}" if np.ndim(shape) > 1 else repr(shape)
        raise ValueError(
            f"shape is {found}; give (rows, columns), at least two each, and of color images "
            "(rows, columns, channels)."
        )
    return int(sides[0]), int(sides[1])


def _check_reach(reach: Any) -> None:
    if not isinstance(reach, Mapping) or not set(reach) <= set(UNITS):
        raise ValueError(
            f"rigid is {reach!r}; give how far images go by unit, as "
            "{'degrees': 40, 'pixels': 2, 'percent': 10}."
        )
    for unit, most in UNITS.items():
        value = reach.get(unit, 0.0)
        if not (is_number(value) and 0 <= value <= most and value < np.inf):
            limit = "" if most == np.inf else f", at most {most:g}"
            raise ValueError(f"rigid: {unit} is {value!r}; give a number from 0{limit}.")


def _landmark_counts(
    n_landmarks: int | tuple[int, int] | None, sides: tuple[int, int]
) -> tuple[int, int]:
    if n_landmarks is None:
        return min(6, 2 + sides[0] // 4), min(6, 2 + sides[1] // 4)
    counts = _pair("n_landmarks", n_landmarks, "one number of landmarks per side or a pair")
    if any(count > side for count, side in zip(counts, sides, strict=True)):
        raise ValueError(
            f"n_landmarks is {n_landmarks!r}, more than the pixels of a side of {sides}; give at "
            "most as many."
        )
    return counts


def _kernel_counts(
    n_kernels: int | tuple[int, int] | str | None, sides: tuple[int, int]
) -> tuple[int, int]:
    if n_kernels == "pixels":
        return sides
    if n_kernels is None:
        n_kernels = min(max(sides), MOST_KERNELS)
    accepted = "the number of kernels of the longer side, a pair, or 'pixels'"
    first, second = _pair("n_kernels", n_kernels, accepted)
    if isinstance(n_kernels, (tuple, list)):
        return first, second
    spacing = (max(sides) - 1) / (first - 1)
    shorter = max(2, round((min(sides) - 1) / spacing) + 1)
    return (first, shorter) if sides[0] >= sides[1] else (shorter, first)


def _pair(name: str, given: Any, accepted: str) -> tuple[int, int]:
    """Return two whole numbers of at least two, of a pair or of one number."""
    pair = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    whole = all(isinstance(each, (int, np.integer)) and each >= 2 for each in pair)
    if len(pair) != 2 or not whole:
        raise ValueError(f"{name} is {given!r}; give {accepted}, at least two.")
    return int(pair[0]), int(pair[1])
