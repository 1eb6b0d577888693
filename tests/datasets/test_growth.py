"""The growth study's heights, and velocities from heights.

Where files are looked for, and what is said of a wrong one, is tested for the digits.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import rdata
from scipy.interpolate import BSpline

from pymc_mcoem.datasets import digits, growth, growth_velocity, load_growth

AGES = np.array([1, 1.25, 1.5, 1.75, *range(2, 9), *np.arange(8.5, 18.1, 0.5)])


def test_heights_from_a_folder(data_directory: Path) -> None:
    data = load_growth(data_directory)
    assert dict(data.sizes) == {"child": 93, "age": 31}
    np.testing.assert_allclose(data.age, AGES)
    assert (data.sex == "male").sum() == 39
    assert (data.sex == "female").sum() == 54
    assert data.child.values[[0, -1]].tolist() == ["boy01", "girl54"]
    assert data.attrs["source"] == "berkeley_growth.csv"
    # adults: boys are taller by some 13 cm
    adult = data.height.sel(age=18).groupby("sex").mean()
    assert 10 < float(adult.sel(sex="male") - adult.sel(sex="female")) < 15
    first = data.height.sel(child="boy01")
    assert first.values[:2].tolist() == [81.3, 84.2]


def test_heights_from_the_public_source(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boys, girls = rng.uniform(80, 180, size=(31, 3)), rng.uniform(80, 180, size=(31, 2))
    path = tmp_path / growth.GROWTH_SOURCE
    rdata.write_rda(path, {"growth": {"hgtm": boys, "hgtf": girls, "age": AGES}})
    with pytest.raises(ValueError, match=r"growth\.rda is not the file .* sha256"):
        load_growth(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(growth, "GROWTH_SOURCE_SHA256", digest)
    data = load_growth(tmp_path)
    np.testing.assert_array_equal(data.height, np.concatenate([boys.T, girls.T]))
    assert data.sex.values.tolist() == ["male"] * 3 + ["female"] * 2
    assert data.child.values.tolist() == ["boy01", "boy02", "boy03", "girl01", "girl02"]


@pytest.mark.parametrize("smoother", ["spline", "monotone"])
def test_straight_lines_keep_their_slope(smoother: str) -> None:
    heights = np.stack([70 + 6 * AGES, 50 + 5 * AGES])
    found = growth_velocity(heights, AGES, [2.0, 9.3, 18.0], smoother=smoother)
    np.testing.assert_allclose(found, np.tile([[6.0], [5.0]], 3), atol=1e-6)
    one = growth_velocity(heights[0], AGES, [2.0, 9.3, 18.0], smoother=smoother)
    np.testing.assert_allclose(one, found[0], atol=1e-9)


@pytest.mark.parametrize("smoother", ["spline", "monotone"])
def test_a_spurt_is_found_through_noise_and_gaps(smoother: str, rng: np.random.Generator) -> None:
    at = np.linspace(2, 17, 61)

    def velocity(age: np.ndarray) -> np.ndarray:
        return 5 + 4 * np.exp(-np.square((age - 12) / 1.5))

    fine = np.linspace(1, 18, 20_001)
    height = np.concatenate([[0], np.cumsum(velocity(fine)[1:] * np.diff(fine))])
    noisy = np.interp(AGES, fine, height) + rng.normal(0, 0.3, size=(40, AGES.size))
    noisy[rng.random(noisy.shape) < 0.1] = np.nan
    found = growth_velocity(noisy, AGES, at, smoother=smoother)
    # measured: root mean square error 0.46 cm a year with either smoother
    assert np.sqrt(np.mean(np.square(found - velocity(at)))) < 0.7
    peak = at[np.argmax(found.mean(axis=0))]
    assert abs(peak - 12) <= 0.5


def test_the_monotone_smoother_never_falls(rng: np.random.Generator) -> None:
    height = 100 + 5 * np.minimum(AGES, 13) + rng.normal(0, 0.5, size=AGES.size)
    at = np.linspace(1, 18, 500)
    assert growth_velocity(height, AGES, at).min() < 0
    assert growth_velocity(height, AGES, at, smoother="monotone").min() >= 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ages": AGES[::-1]}, "does not increase"),
        ({"heights": np.zeros(4), "ages": np.arange(4.0)}, "at least five ages"),
        ({"heights": np.zeros((2, 3))}, "heights has shape"),
        ({"heights": np.full(31, np.nan)}, "child 0, counted from 0, has 0 heights"),
        ({"heights": np.full(31, np.inf)}, "infinite"),
        ({"at": [0.5]}, "at is .* from 1 to 18"),
        ({"smoother": "loess"}, "smoother is 'loess'"),
        ({"smoothing": 0.0}, "smoothing is 0.0"),
    ],
)
def test_bad_arguments_are_named(change: dict, message: str) -> None:
    given = {"heights": 70 + 6 * AGES, "ages": AGES, "at": [3.0]} | change
    with pytest.raises(ValueError, match=message):
        growth_velocity(given.pop("heights"), given.pop("ages"), given.pop("at"), **given)


@pytest.mark.parametrize(
    "digest",
    [
        growth.GROWTH_SHA256,
        growth.GROWTH_SOURCE_SHA256,
        digits.USPS_SHA256,
        digits.USPS_SOURCE_SHA256,
    ],
)
def test_pinned_digests_are_whole(digest: str) -> None:
    assert re.fullmatch("[0-9a-f]{64}", digest)


@pytest.mark.parametrize("smoother", ["spline", "monotone"])
def test_nothing_is_made_up_beyond_a_childs_own_heights(smoother: str) -> None:
    heights = np.stack([70 + 6 * AGES, 70 + 6 * AGES])
    heights[0, AGES > 14] = np.nan
    heights[1, AGES < 6] = np.nan
    at = [2.0, 6.0, 10.0, 14.0, 14.1, 18.0]
    found = growth_velocity(heights, AGES, at, smoother=smoother)
    np.testing.assert_array_equal(np.isnan(found[0]), [False, False, False, False, True, True])
    np.testing.assert_array_equal(np.isnan(found[1]), [True, False, False, False, False, False])
    np.testing.assert_allclose(found[~np.isnan(found)], 6.0, atol=1e-6)


def test_the_monotone_penalty_is_the_integral_of_the_squared_bend(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that nnls sees, against quadrature."""
    seen: dict[str, np.ndarray] = {}

    def watched(design: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
        seen["design"] = design
        return np.ones(design.shape[1]), 0.0

    monkeypatch.setattr(growth, "nnls", watched)
    knots = np.sort(rng.uniform(0, 10, size=7))
    growth._monotone(knots, np.arange(7.0), knots, 0.3)
    rows = seen["design"][7:]
    padded = np.concatenate([[knots[0]] * 2, knots, [knots[-1]] * 2])
    slopes = BSpline(padded, np.eye(rows.shape[1]), 2).derivative()
    # v' is linear between knots: two Gauss points a piece integrate its square exactly
    half, middle = np.diff(knots) / 2, (knots[1:] + knots[:-1]) / 2
    expected = sum(
        slopes(where).T @ (half[:, None] * slopes(where))
        for where in (middle - half / np.sqrt(3), middle + half / np.sqrt(3))
    )
    np.testing.assert_allclose(rows.T @ rows, 0.3 * expected, atol=1e-9)


def test_where_growth_is_fast_the_smoothers_agree(data_directory: Path) -> None:
    heights = load_growth(data_directory).height.values
    at = np.linspace(3, 10, 29)
    spline, monotone = (
        growth_velocity(heights, AGES, at, smoother=name) for name in ("spline", "monotone")
    )
    # cubic against quadratic velocity pieces: measured 0.02 cm a year where growth is 5 to 9
    assert np.sqrt(np.mean(np.square(spline - monotone))) < 0.05


def test_the_default_smoothing_is_near_the_best(rng: np.random.Generator) -> None:
    """Errors on simulated spurts: half of those at a tenth of the smoothing, peaks kept."""
    at = np.linspace(2, 17, 301)
    fine = np.linspace(1, 18, 20_001)

    def velocity(age: np.ndarray) -> np.ndarray:
        return 5 + 4 * np.exp(-np.square((age - 12) / 1.5))

    height = np.concatenate([[0], np.cumsum(velocity(fine)[1:] * np.diff(fine))])
    noisy = np.interp(AGES, fine, height) + rng.normal(0, 0.3, size=(200, AGES.size))

    def error(smoothing: float | None) -> float:
        found = growth_velocity(noisy, AGES, at, smoothing=smoothing)
        return float(np.sqrt(np.mean(np.square(found - velocity(at)))))

    assert error(None) == error(0.03)
    assert error(None) < 0.65 * error(0.003)
    clean = growth_velocity(np.interp(AGES, fine, height), AGES, at)
    assert 0.94 * 9 < clean.max() < 0.995 * 9
    wide = growth_velocity(np.interp(AGES, fine, height), AGES, at, smoothing=0.3)
    assert wide.max() < clean.max() - 0.2


def test_four_heights_are_too_few() -> None:
    height = np.full(AGES.size, np.nan)
    height[:4] = [80.0, 82.0, 84.0, 86.0]
    with pytest.raises(ValueError, match="has 4 heights; leave out children with fewer than five"):
        growth_velocity(height, AGES, [1.2])
    height[4] = 88.0
    assert np.isfinite(growth_velocity(height, AGES, [1.2])).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((0, AGES.size)), AGES, [2.0]), "give at least one child's"),
        (("high", AGES, [2.0]), "heights is 'high'; give real numbers"),
        ((np.ones(AGES.size), np.where(AGES > 17, np.nan, AGES), [2.0]), "not finite; drop"),
    ],
)
def test_what_is_no_height_or_age_is_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        growth_velocity(*arguments)


def test_smoothing_in_words_is_refused() -> None:
    with pytest.raises(ValueError, match="smoothing is 'much'; give one positive number"):
        growth_velocity(70 + 6 * AGES, AGES, [2.0], smoothing="much")
