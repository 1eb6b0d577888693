"""Inverse warps on a grid against the warps themselves, and images between their pixels."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_mcoem.templates import DisplacementField, RigidMotion
from pymc_mcoem.templates.alignment import TOLERANCE, GridFrame, gapped_moments

ROWS, COLUMNS = np.linspace(-1, 1, 12), np.linspace(-0.8, 0.8, 10)


@pytest.fixture(scope="module")
def frame():
    return GridFrame((ROWS, COLUMNS))


@pytest.fixture(scope="module")
def warp():
    field = DisplacementField.on_grid([np.linspace(-0.5, 0.5, 3), np.linspace(-0.4, 0.4, 3)], 0.7)
    return RigidMotion() + field


def spacings(frame):
    return np.array([axis[1] - axis[0] for axis in frame.axes])


def test_what_is_inverted_and_warped_is_where_it_was(frame, warp, rng):
    """The warp itself, evaluated between the points of the grid, brings the places back."""
    betas = warp.mean + rng.normal(size=(8, warp.n_parameters)) * np.where(warp.learned, 0.08, 0.15)
    warped = np.stack([warp.warp(frame.points, beta).eval(mode="FAST_COMPILE") for beta in betas])
    places = frame.inverse(warped, frame.points)
    assert np.isfinite(places).all(axis=-1).mean() > 0.6
    for beta, place in zip(betas, places, strict=True):
        there = np.isfinite(place).all(axis=-1)
        away = np.abs(warp.warp(place[there], beta).eval(mode="FAST_COMPILE") - frame.points[there])
        # in tenths of a spacing, for what a spline through the points leaves out outside of them
        assert (away < 0.02 * spacings(frame)).mean() > 0.97
        assert (away < 0.1 * spacings(frame)).all()


def test_a_rigid_motion_has_the_inverse_that_it_has(frame):
    motion = RigidMotion()
    beta = np.array([0.4, 1.3, 0.1, -0.2, 0.15, 0.05])
    warped = motion.warp(frame.points, beta).eval(mode="FAST_COMPILE")
    turn = np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    center, translation = beta[2:4], beta[4:]
    expected = ((frame.points - center) @ turn - translation + center) / 1.3
    outside = (np.abs(expected) > [1 + 1 / 11, 0.8 + 0.8 / 9]).any(axis=1)
    expected[outside] = np.nan
    found = frame.inverse(warped[None], frame.points)[0]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE * spacings(frame).min())


def test_a_warp_that_folds_has_no_inverse_where_it_does(frame):
    """D(u) = u − 0.9 sin(πu)/π · 2 on the first axis turns back around the middle."""
    points = frame.points
    back = points.copy()
    back[:, 0] -= 1.8 * np.sin(np.pi * points[:, 0]) / np.pi
    found = frame.inverse(back[None], points)[0]
    there = np.isfinite(found).all(axis=1)
    assert not there.all()
    again = found[there, 0] - 1.8 * np.sin(np.pi * found[there, 0]) / np.pi
    np.testing.assert_allclose(again, points[there, 0], atol=0.05 * spacings(frame)[0])
    flat = np.column_stack([np.zeros(len(points)), points[:, 1]])
    assert np.isnan(frame.inverse(flat[None], points)).all()


def test_a_line_with_uneven_points(rng):
    frame = GridFrame((np.cumsum(rng.uniform(0.5, 1.5, size=30)),))
    warped = frame.points + 0.3 * np.sin(frame.points)
    found = frame.inverse(warped[None], frame.points)[0]
    there = np.isfinite(found[:, 0])
    assert there[1:-1].all()
    # straight lines between the points of the warp
    again = np.interp(found[there, 0], frame.axes[0], warped[:, 0])
    inside = (frame.points[there, 0] > warped[0, 0]) & (frame.points[there, 0] < warped[-1, 0])
    np.testing.assert_allclose(again[inside], frame.points[there, 0][inside], atol=2e-3)


def test_what_is_linear_is_found_between_pixels(frame, rng):
    def linear(points):
        return 2.0 * points[..., 0] - points[..., 1] + 3.0

    values, mask = linear(frame.points).reshape(frame.shape), np.ones(frame.shape)
    places = rng.uniform([-1, -0.8], [1, 0.8], size=(3, 50, 2))
    np.testing.assert_allclose(frame.resample(values, mask, places), linear(places))
    mask[5, 5] = 0
    values[5, 5] = 1e6
    found = frame.resample(values, mask, places)
    assert (np.abs(found - linear(places)) < 2 * 2.0 * spacings(frame).max()).all()
    near = np.array([[[ROWS[5], COLUMNS[5]], [ROWS[5], COLUMNS[6]], [1.05, 0.0], [1.5, 0.0]]])
    known = frame.resample(values, mask, near)[0]
    np.testing.assert_array_equal(np.isnan(known), [True, False, False, True])
    # up to half a spacing outside, the pixel at the edge is meant
    assert known[2] == pytest.approx(linear(np.array([1.0, 0.0])))


def test_points_that_are_no_grid_make_no_frame(frame, rng):
    assert GridFrame.from_points(frame.points, frame.shape).shape == frame.shape
    assert GridFrame.from_points(frame.points, (120,)) is None
    assert GridFrame.from_points(frame.points[::-1], frame.shape) is None
    assert GridFrame.from_points(rng.normal(size=(12, 2)), (3, 4)) is None


def test_moments_need_half_of_the_draws():
    values = np.array([[1.0, 1.0, np.nan], [2.0, np.nan, np.nan], [3.0, 5.0, 3.0], [4.0, 3.0, 1.0]])
    mean, sd = gapped_moments(values)
    np.testing.assert_allclose(mean, [2.5, 3.0, 2.0])
    np.testing.assert_allclose(sd, [np.sqrt(1.25), np.sqrt(8 / 3), 1.0])
    assert np.isnan(gapped_moments(values[:3])[0][2])
