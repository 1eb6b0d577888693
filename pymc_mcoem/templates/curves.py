"""Grid of points and kernels of a curve mixture, and its default priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.templates.bases.gaussian import GaussianBasis
from pymc_mcoem.templates.observations import goes_below_zero
from pymc_mcoem.templates.priors import TemplatePriors
from pymc_mcoem.templates.settings import CHANNEL, OWN_POINT, PART
from pymc_mcoem.templates.warps.time_warp import TimeWarp
from pymc_mcoem.validation import as_numbers, require_whole

__all__ = ["CurveGrid", "CurveSource", "curve_priors", "starting_slopes"]

#: Bandwidth of the templates' kernels in landmark spacings; see `CurveGrid`.
BANDWIDTH = 1.5
#: Default standard deviation of clocks, in lengths of the interval, and number of curves that the
#: prior is worth; see `curve_priors`.
STRAY, CURVES = 1 / 40, 200
#: Step between slopes of clocks from which searches start, and most clocks on either side of the
#: mean.
SLOPE, MOST_CLOCKS = 0.2, 3
#: First curves that tell sign and unit of all: as many as set a start.
FIRST = 50
#: Points of a mixture whose curves have points of their own.
N_OWN = 50

_CURVES_NOT_POINTS = (
    "If these are curves, give for_curves what datasets.read_curves makes of them; it takes "
    "tables, arrays, pairs of times and values, and a DataArray."
)


class CurveGrid:
    r"""Design points of curves, and landmarks and bandwidth of the templates behind them.

    Parameters
    ----------
    points : array_like of shape (n_points,)
        Increasing design points, at least four.
    interval : tuple of (float, float), optional
        Ends of the templates' axis; the first and the last point by default.
    n_landmarks : int
        Number of landmarks, at least four.
    bandwidth : float, optional
        ν; 1.5 landmark spacings by default.

    Attributes
    ----------
    points : ndarray of shape (n_points, 1)
    interval : tuple of (float, float)
    landmarks : ndarray of shape (n_landmarks,)
        Equally spaced, one beyond either end of the interval.
    bandwidth : float

    Raises
    ------
    ValueError
        If the points do not increase, are too few, or lie outside the interval by more than an
        eighth of its length; if a number is out of its range.

    Notes
    -----
    Section ``subsec:5:1`` of the paper, except for the bandwidth. The rule printed there, ν² =
    −d²/log ε with d the distance from a landmark to the nearest design point and ε = 0.1, makes
    the kernel small at the nearest point. With landmarks half a year apart and points 0.53
    years apart ν is then at most 0.35 spacings inside the interval (0.66 for the two landmarks
    beyond it), and zero where a landmark is a design point: kernels do not overlap, a template is
    a row of separate bumps, and warping it moves bumps, not growth.

    Here ν = c h with the landmarks' spacing h, and c is chosen by the effect of coefficients on a
    template. By Poisson's summation formula Σ_l φ(u − l h), the template of equal coefficients,
    is constant up to a ripple of 2 exp(−π²c²) of its level. Alternating coefficients α(1 ± 1),
    which vary fastest, leave a wave of 2 exp(−π²c²/4) of the level; the condition number of the
    kernels' gram matrix is the inverse of that.

    ===== ============== ================= ==================
    c     ripple         alternating wave  condition number
    ===== ============== ================= ==================
    0.35  0.60           (bumps)           1.0
    0.75  0.0078         0.50              2.0
    1     1.0e-4         0.17              5.9
    1.5   4.6e-10        0.0078            129
    2     1.4e-17        1.0e-4            9,700
    ===== ============== ================= ==================

    c = 1.5 is the smallest simple number at which noise from one coefficient to the next changes
    a template by less than a hundredth of its level, while gram matrices are still solved without
    loss. The paper's 35 landmarks half a year apart then give ν = 0.75 years, kernels of
    standard deviation 0.53: narrower than a growth spurt.

    Examples
    --------
    >>> grid = CurveGrid(np.linspace(2, 18, 31))
    >>> grid.landmarks[[0, 1, -1]], grid.bandwidth
    (array([ 1.5,  2. , 18.5]), 0.75)
    """

    def __init__(
        self,
        points: Any,
        interval: tuple[float, float] | None = None,
        n_landmarks: int = 35,
        bandwidth: float | None = None,
    ) -> None:
        try:
            points = as_numbers("points", points)
        except ValueError as error:
            raise ValueError(f"{error} {_CURVES_NOT_POINTS}") from None
        if points.ndim != 1 or points.size < 4:
            raise ValueError(
                f"points has shape {points.shape}; give a vector of at least four, as fewer do not "
                f"show how a curve is warped. {_CURVES_NOT_POINTS}"
            )
        if not np.isfinite(points).all():
            raise ValueError(f"points is {points}, which is not finite; drop those points.")
        if not (np.diff(points) > 0).all():
            raise ValueError(
                f"points is {points}, which does not increase; sort the points and the curves' "
                "columns with them, and drop duplicates."
            )
        ends = as_numbers("interval", (points[0], points[-1]) if interval is None else interval)
        if ends.shape != (2,) or not np.isfinite(ends).all() or not ends[0] < ends[1]:
            raise ValueError(f"interval is {interval!r}; give two numbers, the smaller first.")
        self.interval = (float(ends[0]), float(ends[1]))
        length = self.interval[1] - self.interval[0]
        if points[0] < ends[0] - length / 8 or points[-1] > ends[1] + length / 8:
            raise ValueError(
                f"points reach from {points[0]:.6g} to {points[-1]:.6g}, more than an eighth of "
                f"its length outside the templates' interval {self.interval}; widen the interval "
                "or drop those points."
            )
        require_whole("n_landmarks", n_landmarks, 4)
        spacing = length / (n_landmarks - 3)
        self.points = points[:, None]
        self.landmarks = self.interval[0] + spacing * np.arange(-1, n_landmarks - 1)
        # GaussianBasis refuses a bandwidth that is not a positive number
        self.bandwidth = BANDWIDTH * spacing if bandwidth is None else bandwidth


@dataclass(frozen=True)
class CurveSource:
    """Where curves are measured, under which names, and what the first of them are like.

    Attributes
    ----------
    points : object
        Design points, as `CurveGrid` takes them.
    name : str
        Name of their axis.
    units : dict of str to str
        Units by name, of the axis and of the values.
    own_points : int or None
        Most points that a curve has, if curves have points of their own.
    first : ndarray of shape (n_curves, n_points) or (n_curves, n_points, n_channels) or None
        Values of the first curves, NaN where they are missing; None where no curves were given.
    channels : object
        Channels, as `TemplateMixture` takes them.
    """

    points: Any
    name: str = "time"
    units: dict[str, str] = field(default_factory=dict)
    own_points: int | None = None
    first: np.ndarray | None = None
    channels: Any = None

    @classmethod
    def of(cls, given: Any, channels: Any = None) -> CurveSource:
        """Return the source of points, or of curves (observation, point) in a DataArray.

        Curves of several channels are (observation, point, channel), or have a dim that `channels`
        names.

        Curves with points of their own are (observation, 2, own_point), points above values, as
        `pymc_mcoem.datasets.read_curves` makes them, with a row for each of several channels.

        Examples
        --------
        >>> curves = xr.DataArray(np.eye(4), {"ms": [0, 20, 40, 60]}, ("beat", "ms"), name="ECG")
        >>> CurveSource.of(curves).name, CurveSource.of(curves).units, CurveSource.of([0, 1]).name
        ('ms', {'ms': '', 'ECG': ''}, 'time')
        """
        if not isinstance(given, xr.DataArray) or given.ndim < 2:
            # an Index, a Series and a DataArray have names
            name = getattr(given, "name", None)
            attributes = getattr(given, "attrs", {})
            if isinstance(channels, str):
                raise ValueError(
                    f"channels is {channels!r}, and points are no curves that have such a dim; "
                    "give the number of channels or their labels."
                )
            if name is None:
                return cls(given, channels=channels)
            return cls(given, str(name), _units_of(name, attributes), channels=channels)
        if given.dims[1:] == (PART, OWN_POINT):
            own = cls._own(given)
            if isinstance(channels, str) and own.channels is not None:
                channels = {channels: next(iter(own.channels.values()))}
            return own if channels is None else replace(own, channels=channels)
        given, channels = _channels_last(given, channels)
        axis = given.dims[1]
        units = _units_of(axis, given[axis].attrs)
        if given.name is not None or "units" in given.attrs:
            units |= _units_of(given.name or "value", given.attrs)
        if given.ndim == 3 and f"{given.dims[-1]}_units" in given.coords:
            own = given.coords[f"{given.dims[-1]}_units"].values
            # the labels that the mixture's channels will have
            labels = given[given.dims[-1]].values
            if isinstance(channels, Mapping):
                labels = np.asarray(next(iter(channels.values())))
            units |= {str(label): str(unit) for label, unit in zip(labels, own, strict=True)}
        first = np.asarray(given[:FIRST].values, dtype=np.float64)
        return cls(given[axis].values, str(axis), units, None, first, channels)

    @classmethod
    def _own(cls, given: xr.DataArray) -> CurveSource:
        names = [str(name) for name in given[PART].values]
        units = [*given.attrs.get("units", [""] * len(names))]
        places = given[:, 0]
        ends = np.linspace(float(places.min()), float(places.max()), N_OWN)
        first = np.asarray(given[:FIRST, 1:].values, dtype=np.float64)
        source = cls(ends, names[0], dict(zip(names, units, strict=True)), given.sizes[OWN_POINT])
        if len(names) == 2:
            return replace(source, first=first[:, 0])
        of_values = {str(given.name or "value"): units[1]} if given.name or units[1] else {}
        if len(set(units[1:])) > 1:
            of_values = dict(zip(names[1:], units[1:], strict=True))
        return replace(
            source,
            units={names[0]: units[0], **of_values},
            first=np.moveaxis(first, 1, -1),
            channels={given.attrs.get(CHANNEL, CHANNEL): names[1:]},
        )

    @property
    def coefficients(self) -> str:
        """Range of templates' coefficients: that of the values, if these are known."""
        # each channel by itself, as they may differ in size
        curves = np.empty((0, 1)) if self.first is None else np.moveaxis(self.first, 1, -1)
        rows = curves.reshape(-1, curves.shape[-1])
        has_negative = any(goes_below_zero(row) for row in rows if not np.isnan(row).all())
        return "real" if has_negative else "nonnegative"

    def fit_priors(
        self, priors: TemplatePriors, basis: GaussianBasis, coefficients: str, has_offset: bool
    ) -> TemplatePriors:
        """Return priors in the unit of the first curves, at their level if they have a sign.

        Templates without a sign are near the mean of the values where nothing is observed; others
        are zero there. Of several channels each has its unit and level; one without two different
        values has the median unit of the others. If curves have offsets, these are no part of the
        unit.
        """
        if self.first is None:
            return priors
        has_channels = self.first.ndim == 3
        seen = list(np.moveaxis(self.first, -1, 0)) if has_channels else [self.first]
        found = [_center_and_spread(each, has_offset) for each in seen]
        means, spread = (np.array(each) for each in zip(*found, strict=True))
        if not (spread > 0).any():
            return priors
        spread = np.where(spread > 0, spread, np.median(spread[spread > 0]))
        priors = priors.in_unit(spread if has_channels else float(spread[0]))
        if coefficients != "real":
            return priors
        # equal coefficients make a level, but for the ends
        level = basis.matrix(basis.centers.mean(axis=0, keepdims=True)).sum()
        if has_channels:
            return replace(priors, template_mean=means[:, None] / level)
        return replace(priors, template_mean=float(means[0] / level))


def _center_and_spread(curves: np.ndarray, has_offset: bool) -> tuple[float, float]:
    """Return mean and standard deviation of the values of curves, without offsets if they have any.

    Both are zero without values.
    """
    curves = curves[np.isfinite(curves).any(axis=1)]
    if not len(curves):
        return 0.0, 0.0
    away = curves - np.nanmean(curves, axis=1, keepdims=True) if has_offset else curves
    return float(np.nanmean(curves)), float(np.nanstd(away))


def _channels_last(given: xr.DataArray, channels: Any) -> tuple[xr.DataArray, Any]:
    """Return curves with channels along the last of three dims, and what these are.

    Curves of two dims have one channel, and may not be told otherwise.
    """
    name = channels if isinstance(channels, str) else None
    if given.ndim == 2 and channels is None:
        return given, None
    if given.ndim != 3 or (name is not None and name not in given.dims):
        raise ValueError(
            f"points: curves have the dims {given.dims}, and channels is {channels!r}; give curves "
            "(curve, point, channel), and channels as the name of their dim."
        )
    name = CHANNEL if name is None and CHANNEL in given.dims else name
    last = given.dims[-1] if name is None else name
    given = given.transpose(..., last)
    own = {str(last): given[last].values if last in given.coords else given.sizes[last]}
    return given, own if channels is None or isinstance(channels, str) else channels


def _units_of(name: Any, attributes: Any) -> dict[str, str]:
    return {str(name): str(attributes.get("units", ""))}


def curve_priors(warp: TimeWarp, covariance: str = "scaled") -> TemplatePriors:
    """Return the default priors of curve mixtures.

    γ² is held near the value at which the middle of a curve's clock has a standard deviation of a
    fortieth of the interval. This prior is worth 200 curves; the others are those of
    `TemplatePriors`.

    Parameters
    ----------
    warp : TimeWarp
    covariance : {"scaled", "diagonal", "full"}
        As for `TemplateMixture`.

    Returns
    -------
    TemplatePriors

    Notes
    -----
    The paper has no priors on θ and finds γ² of 0.08 and 0.07: clocks that stray by a year, as
    those of children do. The likelihood, with weak priors (``TemplatePriors()``) or none, finds
    such values here too, and loses the groups: a template of early spurts with a late clock looks
    like the other template, so each class takes members of the other. Templates that differ in
    when they rise stay apart only if a clock can hardly turn one into the other. This is a choice
    that the likelihood does not make. On the velocities of the growth study, whose sexes grow two
    years apart (``benchmarks/growth.py``, 1,000 draws with replacement):

    ========================= ======== =========== =================== =====
    γ²                        strays   as found    own sex's group     seeds
    ========================= ======== =========== =================== =====
    weak prior                         0.08, 0.16  0.84 to 0.86        4
    held near 0.08            1.0 year 0.08, 0.08  0.54 to 0.86        4
    held near 0.04            0.7      0.04, 0.04  0.85 to 0.91        4
    held near 0.02            0.5      0.02, 0.02  0.90 to 0.93        4
    the default, 0.0124       0.4      0.01, 0.01  0.91 to 0.94        10
    held near 0.005           0.25     0.01, 0.01  0.88 to 0.89        4
    ========================= ======== =========== =================== =====

    The default was thus chosen with the sexes of that study in view, on a broad optimum.
    Log-evidence does not choose it: it rises with γ², as curves are followed more closely. If the
    kinds of curves differ in shape and not in time, looser clocks do no harm: pass
    ``TemplatePriors().with_deformation_variance(value, weight)``. The table was made when searches
    started from three clocks under all of these priors.

    Examples
    --------
    >>> round(curve_priors(TimeWarp((2, 18))).deformation_variance, 4)
    0.0124
    """
    learned = warp.n_parameters if covariance == "scaled" else 1
    weak = TemplatePriors(covariance_degrees=float(CURVES))
    return weak.with_deformation_variance(_straying_variance(warp), weight=CURVES * learned)


def starting_slopes(warp: TimeWarp, variance: float) -> np.ndarray:
    """Return slopes of the clocks from which mode searches start; see `TimeWarp`.

    `variance` is the γ² that learning starts from. With the default these are 0, 0.2 and −0.2. If
    γ² is four times as large, clocks stray twice as far, and there are two more. There are at most
    seven.

    Examples
    --------
    >>> starting_slopes(TimeWarp((2, 18)), variance=0.05)
    array([ 0. ,  0.2, -0.2,  0.4, -0.4])
    """
    with np.errstate(divide="ignore"):  # clocks whose middle stands still
        strays = np.sqrt(variance / _straying_variance(warp))
    steps = SLOPE * np.arange(1, np.clip(round(float(strays)), 1, MOST_CLOCKS) + 1)
    return np.array([0.0, *np.column_stack([steps, -steps]).ravel()])


def _straying_variance(warp: TimeWarp) -> float:
    """Return the γ² at which the middle of the interval strays by STRAY under the mean clock."""
    begin, end = warp.interval
    middle = warp.evaluate([(begin + end) / 2.0], warp.mean)
    steps = 1e-4 * np.eye(warp.n_parameters)
    slopes = (warp.inverse(middle, warp.mean + steps) - warp.inverse(middle, warp.mean - steps)) / (
        2e-4
    )
    return float(np.square(STRAY * (end - begin)) / np.square(slopes).sum())
