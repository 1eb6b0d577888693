"""Registration of many observations at once, and bands for what was not observed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pymc_mcoem.datasets import read_curves
from pymc_mcoem.templates import DisplacementField, GaussianBasis, TemplateMixture
from pymc_mcoem.templates.alignment import GridFrame
from pymc_mcoem.templates.register import _labeled
from pymc_mcoem.templates.registration import Registered

AGES = np.linspace(2, 18, 12)
FEW = {"draws": 5, "tune": 2, "progressbar": False}


@pytest.fixture(scope="module")
def toy():
    """Two classes of curves that may have points of their own, θ, and five curves."""
    mixture = TemplateMixture.for_curves(
        AGES, 2, n_landmarks=8, n_warp_kernels=5, own_points=14, scale=None, coefficients="real"
    )
    rng = np.random.default_rng(5)
    theta = mixture.check_parameters(
        {
            "weights": np.array([0.6, 0.4]),
            "templates": np.array([[0.0, 1, 3, 2, 1, 0, 4, 0], [2.0, 1, 0, 1, 3, 0, 3, 3]]),
            "noise_variance": np.array(0.05),
            "deformation_variance": np.array([0.06, 0.06]),
        }
    )
    curves = (mixture.mean_design() @ theta["templates"].T).T[[0, 1, 0, 1, 1]]
    curves = curves + rng.normal(0, 0.2, size=curves.shape)
    curves[1, 8:] = np.nan
    return mixture, theta, curves


def same(one, other):
    xr.testing.assert_identical(one, other)


def test_a_batch_is_its_curves_however_it_is_cut(toy):
    mixture, theta, curves = toy
    whole = mixture.register(curves, theta, random_seed=4, **FEW)
    assert whole["template_mean"].dims == ("observation", "class", "time")
    assert whole["class_probability"].dims == ("observation", "class")
    np.testing.assert_array_equal(whole["observation"], np.arange(5))
    parts = [
        mixture.register(part, theta, random_seed=4, **FEW) for part in (curves[:2], curves[2:])
    ]
    cut = xr.concat(parts, "observation", combine_attrs="override")
    same(cut.assign_coords(observation=whole["observation"]), whole)
    order = [3, 0, 4, 2, 1]
    turned = mixture.register(iter(curves[order]), theta, random_seed=4, **FEW)
    same(turned.assign_coords(observation=order).sortby("observation"), whole)
    # each has draws of its own, but for a curve that comes twice
    twice = mixture.register(curves[[0, 2, 0]], theta, random_seed=4, **FEW)
    values = twice["deformation_mean"].values
    np.testing.assert_array_equal(values[0], values[2])
    assert (values[0] != values[1]).all()
    other = mixture.register(curves, theta, random_seed=5, **FEW)
    assert (other["deformation_mean"] != whole["deformation_mean"]).all()


def test_one_has_no_dim_of_observations_and_else_the_same_variables(toy):
    mixture, theta, curves = toy
    alone = mixture.register(curves[0], theta, **FEW)
    whole = mixture.register(curves[:1], theta, **FEW)
    assert "observation" not in alone.dims
    assert "observation" not in alone.coords
    assert set(alone.data_vars) == set(whole.data_vars)
    one = whole.isel(observation=0)
    for name in alone.data_vars:
        assert alone[name].dims == one[name].dims, name
    assert alone.attrs == whole.attrs == {"draws": 5, "tune": 2, "troubles": ""}


def test_every_form_of_several_curves_is_registered_the_same(toy):
    mixture, theta, curves = toy
    two = curves[[0, 2]]
    expected = mixture.register(two, theta, **FEW)
    for form in (
        list(two),
        two.tolist(),
        [(AGES, curve) for curve in two],
        [{"points": AGES, "values": curve} for curve in two],
        [mixture.encode(curve) for curve in two],
        np.stack([np.stack([AGES, curve]) for curve in two]),
    ):
        same(mixture.register(form, theta, **FEW), expected)
    named = mixture.register(pd.DataFrame(two, index=["ann", "bob"], columns=AGES), theta, **FEW)
    assert named["observation"].values.tolist() == ["ann", "bob"]
    same(named.assign_coords(observation=[0, 1]), expected)
    labeled = xr.DataArray(two.T, dims=("place", "child"), coords={"child": [7, 9]})
    children = mixture.register(labeled.T, theta, **FEW)
    assert children["child"].values.tolist() == [7, 9]
    same(children.rename(child="observation").assign_coords(observation=[0, 1]), expected)
    named_index = pd.DataFrame(two, index=pd.Index(["ann", "bob"], name="who"), columns=AGES)
    assert mixture.register(named_index, theta, **FEW)["who"].values.tolist() == ["ann", "bob"]
    unnamed = pd.DataFrame(two, index=pd.Index(["ann", "bob"], name=5), columns=AGES)
    assert mixture.register(unnamed, theta, **FEW)["5"].values.tolist() == ["ann", "bob"]
    assert "observation" in mixture.register(xr.DataArray(two), theta, **FEW).dims
    for taken in ("class", "deformation_coordinate", "warp_mean"):
        found = mixture.register(labeled.T.rename(child=taken), theta, **FEW)
        assert found["observation"].values.tolist() == [7, 9]
    lengths = mixture.register(
        [(AGES[:5], curves[0, :5]), (AGES[3:9] + 0.1, curves[2, 3:9])], theta, **FEW
    )
    assert lengths["warp_mean"].shape == (2, 2, AGES.size)


def test_every_form_of_one_curve_is_one(toy):
    mixture, theta, curves = toy
    expected = mixture.register(curves[0], theta, **FEW)
    for form in (
        curves[0].tolist(),
        (AGES, curves[0]),
        [AGES.tolist(), curves[0].tolist()],
        np.stack([AGES, curves[0]]),
        {"points": AGES, "values": curves[0]},
        xr.DataArray(curves[0], dims="time"),
    ):
        same(mixture.register(form, theta, **FEW), expected)


def test_a_bad_observation_is_named(toy, monkeypatch):
    mixture, theta, curves = toy
    bad = curves.copy()
    bad[3] = np.nan
    with pytest.raises(
        ValueError, match=r"observation 3 .* was refused: .* all its points missing"
    ):
        mixture.register(bad, theta, **FEW)
    with pytest.raises(ValueError, match=r"observation 1 .* was refused: .* shape \(7,\)"):
        mixture.register([curves[0], curves[1, :7]], theta, **FEW)
    for nothing in ([], np.zeros((0, AGES.size)), iter(())):
        with pytest.raises(ValueError, match="observation: got none; pass at least one"):
            mixture.register(nothing, theta, **FEW)
    # what is wrong with the arguments is no observation's fault
    with pytest.raises(ValueError, match=r"^draws: got 1"):
        mixture.register(curves, theta, draws=1)
    within = mixture._registrars[None]._within
    with_draws, calls = within.with_draws, []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise FloatingPointError("the density is not finite.")
        return with_draws(*arguments, **options)

    monkeypatch.setattr(within, "with_draws", failing)
    with pytest.raises(FloatingPointError, match="observation 1, counted from 0, cannot be"):
        mixture.register(curves, theta, **FEW)


def test_the_end_of_a_curve_lies_in_its_bands(toy, rng):
    """Curves that have ended at two thirds, and what they went on to be."""
    mixture, theta, _ = toy
    n, beta_sd = 60, np.sqrt(theta["deformation_variance"])
    classes = rng.choice(2, size=n, p=theta["weights"])
    betas = 1.0 + beta_sd[classes, None] * rng.normal(size=(n, 5))
    settings = mixture.settings
    times = settings.deformation.evaluate(AGES, betas)
    design = settings.basis.matrix(times.reshape(-1, 1)).reshape(n, AGES.size, -1)
    truth = np.einsum("nsl,nl->ns", design, theta["templates"][classes])
    curves = truth + rng.normal(0, np.sqrt(theta["noise_variance"]), size=truth.shape)
    seen = curves.copy()
    seen[:, 8:] = np.nan
    found = mixture.register(seen, theta, draws=100, tune=30, progressbar=False)
    middle = found["template_mean_averaged"].values
    limit = 1.6449
    for name, values in (("template_sd_averaged", truth), ("predicted_sd_averaged", curves)):
        inside = np.abs(values - middle) < limit * found[name].values
        share = inside[:, 8:].mean(axis=1)
        # points of one curve err together: the error of the mean is that of independent curves;
        # 100 draws widen or narrow a band by a tenth, which averages out to a hundredth or two
        error = share.std() / np.sqrt(n)
        assert abs(share.mean() - 0.9) < 4 * error + 0.02, (name, share.mean(), error)
    # and they are narrower once the end is known
    whole = mixture.register(curves[:20], theta, draws=100, tune=30, progressbar=False)
    both = (each["template_sd_averaged"][:20, 8:].mean() for each in (found, whole))
    assert next(both) > 1.2 * next(both)
    np.testing.assert_allclose(
        found["predicted_sd"] ** 2, found["template_sd"] ** 2 + theta["noise_variance"]
    )


def test_images_are_registered_together():
    mixture = TemplateMixture.for_images((5, 4), 1, n_landmarks=2)
    theta = mixture.parameters
    rng = np.random.default_rng(1)
    theta["templates"][:] = rng.uniform(size=theta["templates"].shape)
    images = rng.uniform(size=(2, 5, 4))
    found = mixture.register(images, theta, **FEW)
    assert found["warp_mean"].dims == ("observation", "class", "row", "column", "coordinate")
    assert found["inverse_sd"].dims == found["warp_mean"].dims
    assert found["aligned_mean"].dims == ("observation", "class", "row", "column")
    assert found["point"].dims == ("row", "column", "coordinate")
    same(mixture.register(images.tolist(), theta, **FEW), found)
    assert mixture.register(images[0].tolist(), theta, **FEW)["aligned_mean"].shape == (1, 5, 4)


def test_points_that_are_no_grid_are_labeled_all_the_same(rng):
    """Such points have no inverse, and their dim has the name that their places have otherwise."""
    basis = GaussianBasis.regular([np.array([-0.5, 0.5])] * 2, 1.0)
    warp = DisplacementField([[0.0, 0.0]], width=1.0)
    settings = TemplateMixture(rng.uniform(-1, 1, size=(7, 2)), basis, warp, 1).settings
    assert GridFrame.from_points(settings.points, settings.grid_shape) is None
    moments = {"warp": (np.ones((1, 7, 2)),) * 2, "template": (np.ones((1, 7)),) * 2}
    found = _labeled(settings, [Registered(np.ones(1), moments)] * 3)
    assert found["warp_mean"].dims == ("observation", "class", "point", "coordinate")
    np.testing.assert_array_equal(found["place"], settings.points)


def test_aligned_curves_are_scikit_fdas(toy):
    skfda = pytest.importorskip("skfda")
    mixture, theta, curves = toy
    found = mixture.register(curves, theta, **FEW)
    aligned = found["aligned_mean_averaged"].dropna("time")
    names = {"argument_names": ["time (ms)"], "coordinate_names": ["potential (mV)"]}
    grid = skfda.FDataGrid(aligned.values, aligned["time"].values, **names)
    np.testing.assert_array_equal(grid.data_matrix[..., 0], aligned)
    again = read_curves(grid)
    assert (again.dims[1], again.name) == ("time (ms)", "potential (mV)")
