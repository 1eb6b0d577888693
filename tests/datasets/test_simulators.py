"""Simulated data follow the model that they name."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

from pymc_mcoem.datasets import simulate_curves, simulate_images
from pymc_mcoem.templates import TemplateMixture


def test_curves_are_their_warped_templates() -> None:
    points = np.linspace(2.0, 18.0, 33)
    simulated = simulate_curves(
        50, 3, points=points, noise_variance=0.0, scale_variance=0.1, random_seed=1
    )
    # f_j(D(t)) by interpolation of the same template on a fine axis, drawn from another seed.
    fine = simulate_curves(1, 3, points=np.linspace(2.0, 18.0, 4001), random_seed=2)
    for n in range(50):
        one = simulated.isel(observation=n)
        expected = np.interp(
            one.warps, fine.point, fine.templates.sel({"class": int(one.class_index)})
        )
        np.testing.assert_allclose(one.curves, float(one.scale) * expected, atol=1e-5)


def test_warps_keep_the_ends_and_the_order() -> None:
    points = np.array([1.0, 1.5, 4.0, 9.0])
    simulated = simulate_curves(200, points=points, deformation_variance=4.0, random_seed=1)
    np.testing.assert_allclose(simulated.warps[:, [0, -1]], [[1.0, 9.0]] * 200)
    assert (np.diff(simulated.warps) > 0.0).all()
    straight = simulate_curves(3, points=points, deformation_variance=0.0, random_seed=1)
    np.testing.assert_allclose(straight.warps, [points] * 3)


def test_templates_have_as_many_bumps_as_they_say() -> None:
    templates = simulate_curves(1, 5, points=np.linspace(0, 1, 1001)).templates.values
    rises = np.diff(templates, axis=1) > 0.0
    bumps = (rises[:, :-1] & ~rises[:, 1:]).sum(axis=1)
    assert bumps.tolist() == [1, 2, 3, 4, 5]


def test_curves_have_the_moments_that_were_asked_for() -> None:
    n = 4000
    arguments = dict(n_observations=n, weights=(0.2, 0.8), random_seed=1)
    simulated = simulate_curves(
        noise_variance=0.09, deformation_variance=0.5, scale_variance=0.1, missing=0.3, **arguments
    )
    noiseless = simulate_curves(
        noise_variance=0.0, deformation_variance=0.5, scale_variance=0.1, **arguments
    )
    noise = (simulated.curves - noiseless.curves).values
    noise = noise[np.isfinite(noise)]
    # Five standard errors: of a variance σ²√(2/N), of a share √(p(1 − p)/N).
    assert abs(noise.var() - 0.09) < 5 * 0.09 * np.sqrt(2 / noise.size)
    assert abs(np.isnan(simulated.curves).mean() - 0.3) < 5 * np.sqrt(0.21 / (n * 50))
    assert abs(simulated.class_index.mean() - 0.8) < 5 * np.sqrt(0.16 / n)
    assert abs(simulated.deformation.var() - 0.5) < 5 * 0.5 * np.sqrt(2 / (5 * n))
    assert abs(simulated.scale.mean() - 1.0) < 5 * np.sqrt(0.1 / n)
    # The excess kurtosis of a Gamma variable of mean 1 and variance v is 6 v.
    assert abs(simulated.scale.var() - 0.1) < 5 * 0.1 * np.sqrt((2 + 0.6) / n)


def test_no_curve_loses_all_its_points() -> None:
    simulated = simulate_curves(300, points=[0.0, 0.5, 1.0], missing=0.95, random_seed=1)
    observed = np.isfinite(simulated.curves).sum("point")
    assert int(observed.min()) == 1


def test_one_seed_gives_one_set_of_curves() -> None:
    first, again, other = (
        simulate_curves(5, missing=0.2, random_seed=seed)
        for seed in (3, np.random.default_rng(3), 4)
    )
    assert first.identical(again)
    assert not first.equals(other)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_observations": 0}, ValueError, "n_observations: got 0"),
        ({"n_observations": 2.5}, TypeError, r"n_observations: got 2\.5"),
        ({"n_classes": 0}, ValueError, "n_classes: got 0"),
        ({"points": [1.0]}, ValueError, r"points: got shape \(1,\)"),
        ({"points": [0.0, 2.0, 1.0]}, ValueError, "points: .*sort"),
        ({"points": [0.0, np.nan]}, ValueError, "points: .*not finite"),
        ({"weights": [1.0]}, ValueError, r"weights: got shape \(1,\)"),
        ({"weights": [0.7, 0.7]}, ValueError, "weights: .*sum to one"),
        ({"weights": [1.5, -0.5]}, ValueError, "weights: .*at least 0"),
        ({"noise_variance": -1.0}, ValueError, r"noise_variance: got -1\.0"),
        ({"deformation_variance": np.inf}, ValueError, "deformation_variance: got inf"),
        ({"scale_variance": "much"}, TypeError, "scale_variance: got 'much'"),
        ({"missing": 1.0}, ValueError, r"missing: got 1\.0"),
        ({"missing": np.nan}, ValueError, "missing: got nan"),
    ],
)
def test_bad_arguments_of_the_curves_are_named(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        simulate_curves(**({"n_observations": 3} | arguments))


pytestmark = pytest.mark.usefixtures("module_without_compiler")


@pytest.fixture(scope="module")
def mixture() -> TemplateMixture:
    return TemplateMixture.for_images((4, 5), n_classes=3, n_landmarks=2, scale=(10.0, 10.0))


@pytest.fixture
def parameters(mixture: TemplateMixture, rng: np.random.Generator) -> xr.Dataset:
    """Unequal classes, each with its own template and looseness of warp."""
    parameters = mixture.parameters
    parameters["weights"][:] = [0.5, 0.3, 0.2]
    parameters["templates"][:] = rng.normal(size=parameters["templates"].shape)
    parameters["noise_variance"][...] = 0.04
    parameters["deformation_variance"][:] = [0.01, 0.02, 0.04]
    return parameters


def test_images_are_their_warped_templates(
    mixture: TemplateMixture, parameters: xr.Dataset
) -> None:
    parameters["noise_variance"][...] = 1e-20
    simulated = simulate_images(mixture, parameters, 8, random_seed=1)
    assert simulated.images.dims == ("observation", "row", "column")
    assert simulated.images.shape == (8, 4, 5)
    settings = mixture.settings
    beta = pt.vector("beta")
    warp = pytensor.function([beta], settings.deformation.warp(settings.points, beta))
    for n in range(8):
        one = simulated.isel(observation=n)
        warped = warp(one.deformation.values)
        template = parameters["templates"].sel({"class": int(one.class_index)}).values
        expected = float(one.scale) * settings.basis.matrix(warped) @ template
        np.testing.assert_allclose(one.images.values.ravel(), expected, rtol=0, atol=1e-8)


def test_images_have_the_moments_of_their_parameters(
    mixture: TemplateMixture, parameters: xr.Dataset
) -> None:
    n = 3000
    parameters["templates"][:] = 0.0  # which leaves the noise alone
    simulated = simulate_images(mixture, parameters, n, random_seed=1, missing=0.25)
    noise = simulated.images.values[np.isfinite(simulated.images.values)]
    # Five standard errors: of a variance σ²√(2/N), of a share √(p(1 − p)/N).
    assert abs(noise.var() - 0.04) < 5 * 0.04 * np.sqrt(2 / noise.size)
    assert abs(1.0 - noise.size / (n * 20) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / (n * 20))
    assert abs(simulated.scale.mean() - 1.0) < 5 * np.sqrt(0.1 / n)
    learned = mixture.settings.deformation.learned
    for label in range(3):
        rows = simulated.deformation.values[simulated.class_index == label]
        weight = float(parameters["weights"][label])
        assert abs(len(rows) / n - weight) < 5 * np.sqrt(weight * (1 - weight) / n)
        expected = float(parameters["deformation_variance"][label])
        # Neighbors are correlated by 0.2: allow as if coordinates were counted once a row.
        spread = rows[:, learned].var()
        assert abs(spread - expected) < 5 * expected * np.sqrt(2 / len(rows))


def test_one_seed_gives_one_set_of_images(mixture: TemplateMixture) -> None:
    first, again, other = (
        simulate_images(mixture, None, 1, random_seed=seed, missing=0.2)
        for seed in (3, np.random.default_rng(3), 4)
    )
    assert first.identical(again)
    assert not first.equals(other)


def test_drawing_images_leaves_the_mixture_as_it_was(
    mixture: TemplateMixture, parameters: xr.Dataset
) -> None:
    before = mixture.parameters
    simulate_images(mixture, parameters, 2, random_seed=1)
    assert mixture.parameters.identical(before)


def test_bad_arguments_of_the_images_are_named(mixture: TemplateMixture) -> None:
    with pytest.raises(TypeError, match="mixture: got Model; give a TemplateMixture"):
        simulate_images(mixture.model, None, 3)
    with pytest.raises(ValueError, match="n_observations: got 0"):
        simulate_images(mixture, None, 0)
    with pytest.raises(ValueError, match=r"missing: got -0\.1"):
        simulate_images(mixture, None, 3, missing=-0.1)
    with pytest.raises(ValueError, match="parameters: got"):
        simulate_images(mixture, {"weights": [1.0]}, 3)
