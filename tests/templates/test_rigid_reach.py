"""How far images are turned, shifted and enlarged, told in degrees, pixels and percent."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pymc_mcoem.datasets import simulate_images
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.templates import RigidMotion, TemplateMixture, template_images
from pymc_mcoem.templates.images import REACH, ImageGrid
from tests.helpers.bars import bar_images, with_templates

FAR = {"degrees": 40, "pixels": 2, "percent": 10}


def motion(shape=(16, 16), variance=0.1, **rigid):
    return ImageGrid(shape).rigid_motion(variance, rigid)


def deviations(motion):
    return dict(zip(motion.labels, np.sqrt(np.diag(motion.covariance)), strict=True))


@pytest.mark.parametrize("shape", [(16, 16), (9, 21)])
def test_two_standard_deviations_go_as_far_as_is_asked(shape):
    found = motion(shape, **FAR)
    two = {name: 2 * value for name, value in deviations(found).items()}
    points = ImageGrid(shape).points
    # what lies at a pixel is taken from two rows further
    beta = found.mean.copy()
    beta[4] = two["translation[0]"]
    moved = found.warp(points, beta).eval(mode="FAST_COMPILE").reshape(*shape, 2)
    np.testing.assert_allclose(moved[:-2], points.reshape(*shape, 2)[2:], atol=1e-12)
    beta = found.mean.copy()
    beta[5] = two["translation[1]"]
    moved = found.warp(points, beta).eval(mode="FAST_COMPILE").reshape(*shape, 2)
    np.testing.assert_allclose(moved[:, :-2], points.reshape(*shape, 2)[:, 2:], atol=1e-12)
    beta = found.mean.copy()
    beta[1] += two["zoom"]
    np.testing.assert_allclose(found.warp(points, beta).eval(mode="FAST_COMPILE"), 1.1 * points)
    assert np.rad2deg(two["angle"]) == pytest.approx(40)
    assert two["center[0]"] == two["center[1]"] == two["translation[0]"]


def test_what_is_left_out_has_the_variance():
    found = deviations(motion(variance=0.09, degrees=60))
    assert found["angle"] == pytest.approx(np.deg2rad(30))
    assert {round(found[name], 12) for name in found if name != "angle"} == {0.3}
    for rigid in (None, {}):
        same = ImageGrid((16, 16)).rigid_motion(0.05, rigid)
        np.testing.assert_array_equal(same.covariance, RigidMotion(0.05).covariance)
        np.testing.assert_array_equal(same.starts(), RigidMotion(0.05).starts())


def test_nothing_is_as_good_as_none():
    found = motion(degrees=0, pixels=0, percent=0)
    assert max(deviations(found).values()) <= 1e-3
    assert np.linalg.eigvalsh(found.covariance)[0] > 0


@pytest.mark.parametrize(
    ("degrees", "n"), [(0, 1), (10, 1), (40, 1), (41, 3), (120, 3), (121, 5), (180, 5)]
)
def test_searches_start_near_every_angle(degrees, n):
    angles = np.rad2deg(motion(degrees=degrees).angles)
    assert angles[0] == 0
    assert len(angles) == n
    asked = np.linspace(-degrees, degrees, 1001)
    assert np.abs(asked[:, None] - angles).min(axis=1).max() <= REACH + 1e-9
    starts = motion(degrees=degrees).starts()
    np.testing.assert_allclose(np.rad2deg(starts[:, 0]), angles)
    np.testing.assert_array_equal(starts[:, 1:], np.tile([1.0, 0, 0, 0, 0], (n, 1)))


@pytest.mark.parametrize(
    ("rigid", "message"),
    [
        ({"degree": 40}, "give how far images go by unit, as {'degrees': 40, 'pixels': 2, "),
        (40, "rigid is 40; give how far images go by unit"),
        ({"degrees": 200}, "rigid: degrees is 200; give a number from 0, at most 180."),
        ({"percent": 120}, "rigid: percent is 120; give a number from 0, at most 100."),
        ({"pixels": -1}, "rigid: pixels is -1; give a number from 0."),
        ({"pixels": np.inf}, "rigid: pixels is inf; give a number from 0."),
        ({"pixels": "two"}, "rigid: pixels is 'two'; give a number from 0."),
        ({"degrees": np.nan}, "rigid: degrees is nan; give a number from 0"),
    ],
)
def test_what_cannot_be_is_refused(rigid, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TemplateMixture.for_images((5, 5), 2, rigid=rigid)


def test_a_mixture_made_of_it_is_another_family():
    descriptions = [
        TemplateMixture.for_images((5, 5), 2, n_landmarks=2, rigid=rigid).describe()["deformation"]
        for rigid in (None, {"degrees": 40}, {"pixels": 1}, {"percent": 10})
    ]
    assert len(set(descriptions)) == 4


def test_six_variances_or_one():
    np.testing.assert_array_equal(
        RigidMotion([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).covariance.diagonal(),
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    )
    for wrong in ([0.1] * 5, [0.1] * 5 + [0.0], [[0.1] * 6]):
        with pytest.raises(ValueError, match=r"give one positive number .* or one for each of"):
            RigidMotion(wrong)
    for angles in ((), [np.nan], 0.3):
        with pytest.raises(ValueError, match="angles is"):
            RigidMotion(angles=angles)


def turned(degrees, n, seed):
    """Return a mixture of two turned shapes, its parameters, and images drawn from it."""
    rigid = {"degrees": degrees, "pixels": 1, "percent": 5}
    mixture = TemplateMixture.for_images((16, 16), 2, rigid=rigid)
    truth = with_templates(mixture, bar_images((16, 16), 2))
    return mixture, truth, simulate_images(mixture, truth, n, random_seed=seed)


def apart(found, angles):
    """Return by how many degrees angles differ, from -180 to 180."""
    return np.rad2deg(np.angle(np.exp(1j * (np.asarray(found) - np.asarray(angles)))))


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [90, 180])
def test_nine_of_ten_large_angles_are_found(rng, degrees):
    mixture, truth, simulated = turned(degrees, 60, rng)
    kinds, angles = simulated["class_index"].values, simulated["deformation"].values[:, 0]
    found = mixture.register(simulated["images"], truth, draws=2, tune=0, progressbar=False)
    of_kind = found["deformation_mean"].values[np.arange(60), kinds, 0]
    assert (np.abs(apart(of_kind, angles)) > 10).sum() <= 6
    assert (np.abs(apart(0.0, angles)) > 40).sum() > 15


@pytest.mark.slow
def test_shapes_turned_by_up_to_forty_degrees_are_learned_and_their_angles_found(rng):
    mixture, truth, simulated = turned(40, 150, rng)
    kinds, angles = simulated["class_index"].values, simulated["deformation"].values[:, 0]
    assert np.rad2deg(np.abs(angles)).max() > 40
    em = OnlineEM(mixture, random_seed=1, progressbar=False).partial_fit(simulated["images"])
    found = mixture.register(
        simulated["images"][:60], em.parameters, draws=20, tune=10, progressbar=False
    )
    labels = found["class_probability"].values.argmax(axis=1)
    of_kind = [np.bincount(labels[kinds[:60] == kind]).argmax() for kind in (0, 1)]
    assert set(of_kind) == {0, 1}
    assert np.mean(labels == np.take(of_kind, kinds[:60])) > 0.95
    for kind, label in enumerate(of_kind):
        chosen = np.flatnonzero((kinds[:60] == kind) & (labels == label))
        error = apart(found["deformation_mean_averaged"].values[chosen, 0], angles[chosen])
        # a template may itself lie turned, as the mean of the images that it was learned from
        offset = np.median(error)
        assert abs(offset) < 10
        assert np.sqrt(np.mean((error - offset) ** 2)) < 6
        back = mixture.settings.deformation.mean.copy()
        back[0] = -np.deg2rad(offset)
        warped = mixture.settings.deformation.warp(mixture.settings.points, back)
        design = mixture.settings.basis.matrix(warped.eval(mode="FAST_COMPILE"))
        expected = design @ truth["templates"].values[kind]
        learned = template_images(em.parameters, mixture).values[label].ravel()
        assert np.corrcoef(learned, expected)[0, 1] > 0.97
