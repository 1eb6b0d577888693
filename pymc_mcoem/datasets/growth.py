"""Heights of children in the Berkeley growth study, and velocities from heights."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr
from scipy.interpolate import BSpline, make_smoothing_spline
from scipy.optimize import nnls

from pymc_mcoem.datasets.r_files import find_data, read_r_file, require_rdata
from pymc_mcoem.validation import as_numbers, is_number

__all__ = ["growth_velocity", "load_growth"]

GROWTH_FILE = "berkeley_growth.csv"
GROWTH_SHA256 = "ebda09a1dd54fc13e0f105a8d91db4d79461642fa34f24a178e2aad895d71d18"
GROWTH_SOURCE = "growth.rda"
GROWTH_SOURCE_SHA256 = "c060bcd755598a42ca2e30dff86479d45e4f9552901d3fbf5e7d88d86cb3ab45"
GROWTH_SOURCE_URL = (
    "https://raw.githubusercontent.com/cran/fda/"
    "b21dd5c1e007887bfe15b1bc4f21ee8f6b7040a7/data/growth.rda"
)


def load_growth(directory: str | os.PathLike[str] | None = None) -> xr.Dataset:
    """Return the heights of 39 boys and 54 girls at 31 ages from 1 to 18 years.

    They are from the Berkeley growth study, in one of two files: ``berkeley_growth.csv``, or
    ``growth.rda`` of the R package fda, the public source. If a folder has both, the first is read;
    both contain the same numbers.

    Parameters
    ----------
    directory : path_like, optional
        Folder with one of the two files. Default: the folder that the environment variable
        ``PYMC_MCOEM_DATA`` names; if this is not set or has neither file, the public source is
        downloaded once, checked, and kept in pooch's cache.

    Returns
    -------
    xarray.Dataset
        ``height`` in centimeters, float of shape ``(93, 31)`` and dims ``(child, age)``; the
        coordinates ``age`` in years, ``child`` (``boy01`` ... ``girl54``) and ``sex`` (``"male"``
        or ``"female"``) along ``child``. The attribute ``source`` names the file.

    Raises
    ------
    ValueError
        If a file does not have the expected checksum.
    FileNotFoundError
        If `directory` has neither file, or if none was found and the download failed.
    ModuleNotFoundError
        If ``growth.rda`` has to be read or downloaded and the package rdata is missing.

    Notes
    -----
    Tuddenham and Snyder (1954), "Physical growth of California boys and girls from
    birth to eighteen years", *University of California Publications in Child Development* 1,
    183-364. The data of section ``subsec:5:1`` of the paper.

    Examples
    --------
    >>> growth = load_growth()  # doctest: +SKIP
    >>> girls = growth.height[growth.sex == "female"]  # doctest: +SKIP
    """
    digests = {GROWTH_FILE: GROWTH_SHA256, GROWTH_SOURCE: GROWTH_SOURCE_SHA256}
    path = find_data("load_growth", directory, digests, GROWTH_SOURCE_URL)
    ages, children, sexes, heights = _read_csv(path) if path.suffix == ".csv" else _read_rda(path)
    return xr.Dataset(
        {"height": (("child", "age"), heights, {"units": "cm"})},
        coords={
            "age": ("age", ages, {"units": "years"}),
            "child": children,
            "sex": ("child", sexes),
        },
        attrs={"source": path.name},
    )


def growth_velocity(
    heights: Any,
    ages: Any,
    at: Any,
    *,
    smoother: Literal["spline", "monotone"] = "spline",
    smoothing: float | None = None,
) -> np.ndarray:
    """Return the velocities of growth curves by smoothing the heights.

    Parameters
    ----------
    heights : array_like of shape (n_ages,) or (n_children, n_ages)
        NaN where a height is missing.
    ages : array_like of shape (n_ages,)
        Increasing ages, at least five.
    at : array_like of shape (n_points,)
        Ages at which velocities are computed, from the first to the last of `ages`.
    smoother : {"spline", "monotone"}
        ``"spline"``: the derivative of SciPy's cubic smoothing spline
        (``make_smoothing_spline``). ``"monotone"``: the velocity is a quadratic spline with
        coefficients that are not negative, one knot per age, so that heights never fall; it has
        the same roughness penalty, and ``nnls`` finds the coefficients.
    smoothing : float, optional
        Weight of the integrated squared second derivative of the height against the sum of
        squared residuals, in years³. Default: 0.03, for the half-yearly heights of growth
        studies. In simulations with errors of 0.3 cm velocities are then off by 0.3 cm a year
        (root mean square) and a spurt loses 2 to 4 % of its peak; at 0.003, which predicts
        held-out heights best, errors double.

    Returns
    -------
    ndarray of shape (n_points,) or (n_children, n_points)
        In units of height per unit of age. NaN before a child's first height and after the last
        one; a curve mixture takes these as missing.

    Raises
    ------
    ValueError
        If shapes do not fit, ages do not increase, a curve has fewer than five heights, points
        are outside the ages, or `smoother` or `smoothing` is out of range.

    Notes
    -----
    The height h minimizes Σ_s (h_s − h(u_s))² + smoothing ∫ h''(u)² du among cubic splines, or,
    with ``"monotone"``, among integrals of quadratic splines that are nowhere negative. The weight
    has the unit of `ages` to the power three: 0.03 is for years, and would hardly smooth in months.

    Examples
    --------
    >>> ages = np.arange(2.0, 12.0)
    >>> growth_velocity(80.0 + 6.0 * ages, ages, [3.0, 7.5]).round(6)
    array([6., 6.])
    """
    table, ages, points = _checked(heights, ages, at)
    if smoother not in ("spline", "monotone"):
        raise ValueError(f"smoother is {smoother!r}; give 'spline' or 'monotone'.")
    weight = 0.03 if smoothing is None else smoothing
    if not (is_number(weight) and weight > 0):
        raise ValueError(f"smoothing is {smoothing!r}; give one positive number.")
    velocities = np.empty((len(table), len(points)))
    for row, height in zip(velocities, table, strict=True):
        known = ~np.isnan(height)
        if smoother == "spline":
            smooth = make_smoothing_spline(ages[known], height[known], lam=weight)
            row[:] = smooth.derivative()(points)
        else:
            row[:] = _monotone(ages[known], height[known], ages, float(weight))(points)
        first, last = ages[known][[0, -1]]
        row[(points < first) | (points > last)] = np.nan
    return velocities[0] if np.ndim(heights) == 1 else velocities


def _monotone(ages: np.ndarray, height: np.ndarray, knots: np.ndarray, weight: float) -> BSpline:
    """Return a velocity that is nowhere negative, fitted to heights (n,) at ages (n,)."""
    degree = 2
    padded = np.concatenate([np.repeat(knots[0], degree), knots, np.repeat(knots[-1], degree)])
    size = len(padded) - degree - 1
    basis = BSpline(padded, np.eye(size), degree)
    # the height at the first age is free, so it is subtracted on both sides
    rise = basis.antiderivative()(ages) - basis.antiderivative()(knots[0])
    # ∫ v'² exactly: v' is linear between knots, so Simpson's rule has no error
    left, right = knots[:-1], knots[1:]
    slope, roughness = basis.derivative(), []
    for place, share in ((0.0, 1 / 6), (0.5, 4 / 6), (1.0, 1 / 6)):
        # the right end belongs to the next piece, so it is approached from inside
        where = left + (right - left) * min(place, 1.0 - 1e-12)
        roughness.append(np.sqrt(weight * share * (right - left))[:, None] * slope(where))
    centered = rise - rise.mean(axis=0)
    design = np.concatenate([centered, *roughness])
    target = np.concatenate([height - height.mean(), np.zeros(len(design) - len(height))])
    coefficients, _ = nnls(design, target)
    return BSpline(padded, coefficients, degree)


def _checked(heights: Any, ages: Any, at: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.atleast_2d(as_numbers("heights", heights))
    ages, points = as_numbers("ages", ages), np.atleast_1d(as_numbers("at", at))
    if not table.size:
        raise ValueError(f"heights has shape {np.shape(heights)}; give at least one child's.")
    if ages.ndim != 1 or ages.size < 5 or table.ndim != 2 or table.shape[1] != ages.size:
        raise ValueError(
            f"heights has shape {np.shape(heights)} and ages {ages.shape}; give one height for "
            "each of at least five ages, with one row per child."
        )
    if not np.isfinite(ages).all():
        raise ValueError(f"ages is {ages}, which is not finite; drop those ages and heights.")
    if not (np.diff(ages) > 0).all():
        raise ValueError(f"ages is {ages}, which does not increase; sort it and the heights.")
    if np.isinf(table).any():
        raise ValueError("heights holds infinite values; mark missing ones with NaN.")
    counts = (~np.isnan(table)).sum(axis=1)
    if counts.min() < 5:
        raise ValueError(
            f"heights: child {int(counts.argmin())}, counted from 0, has {int(counts.min())} "
            "heights; leave out children with fewer than five."
        )
    if points.ndim != 1 or not ((points >= ages[0]) & (points <= ages[-1])).all():
        raise ValueError(f"at is {at}; give a vector of ages from {ages[0]:.6g} to {ages[-1]:.6g}.")
    return table, ages, points


def _read_csv(path: Path) -> tuple[np.ndarray, list[str], list[str], np.ndarray]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    sexes = {row["subject"]: row["sex"] for row in rows}
    ages = np.unique([float(row["age_years"]) for row in rows])
    heights = np.array([float(row["height_cm"]) for row in rows]).reshape(len(sexes), len(ages))
    return ages, list(sexes), list(sexes.values()), heights


def _read_rda(path: Path) -> tuple[np.ndarray, list[str], list[str], np.ndarray]:
    require_rdata("load_growth", GROWTH_FILE)
    source = read_r_file(path)["growth"]
    boys, girls = (np.asarray(source[name], np.float64).T for name in ("hgtm", "hgtf"))
    names = [f"boy{k:02d}" for k in range(1, len(boys) + 1)]
    names += [f"girl{k:02d}" for k in range(1, len(girls) + 1)]
    sexes = ["male"] * len(boys) + ["female"] * len(girls)
    ages = np.asarray(source["age"], np.float64)
    return ages, names, sexes, np.concatenate([boys, girls])
