"""Templates, their growth, and registrations, by the structure of what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.plots import plot_registration, plot_template_history, plot_templates
from pymc_mcoem.templates import TemplateMixture, template_images
from tests.helpers.drawn_alike import draws_alike
from tests.helpers.histories import curve_registration, image_registration, path_of
from tests.helpers.representatives import by_default

AGES = np.linspace(2, 18, 9)


@pytest.fixture(scope="module")
def images():
    return TemplateMixture.for_images((4, 6), n_classes=3, n_landmarks=2)


@pytest.fixture(scope="module")
def curves():
    return TemplateMixture.for_curves(AGES, 2, n_landmarks=8, n_warp_kernels=2)


@pytest.fixture
def theta(images, rng):
    theta = images.parameters
    theta["templates"][:] = rng.normal(size=theta["templates"].shape)
    theta["weights"][:] = [0.2, 0.3, 0.5]
    return theta


def test_each_image_has_a_plot_and_the_weight_of_its_class(images, theta):
    collection = plot_templates(theta, images, backend="none")
    assert dict(collection.viz["plot"].sizes) == {"class": 3}
    titles = [title.item()["string"] for title in collection.viz["title"]["template"]]
    assert titles == ["class 0, weight 0.2", "class 1, weight 0.3", "class 2, weight 0.5"]
    assert "legend" not in collection.viz.children


def test_pixels_are_blocks_with_rows_from_top_to_bottom(images, theta):
    collection = plot_templates(theta, images, backend="none", coords={"class": 1})
    drawn = collection.viz["image"]["template"].item()
    wanted = template_images(theta, images).values[1]
    # each pixel at its four corners, x by y, y upwards
    density = drawn["density"]
    assert density.shape == (12, 8)
    np.testing.assert_array_equal(density[::2, ::2].T, wanted)
    np.testing.assert_array_equal(density[1::2, 1::2].T, wanted)
    np.testing.assert_allclose(drawn["x"][[0, 1, 2, -1]], [-0.5, 0.5, 0.5, 5.5])
    assert (np.diff(drawn["y"]) <= 0).all()
    np.testing.assert_allclose(drawn["y"][[0, -1]], [0.5, -3.5])


def test_images_have_one_scale_of_shades(images, theta):
    collection = plot_templates(theta, images, backend="none")
    levels = [each.item()["levels"] for each in collection.viz["image"]["template"]]
    values = template_images(theta, images).values
    for each in levels:
        np.testing.assert_array_equal(each, levels[0])
    assert levels[0][0] < values.min() and levels[0][-1] > values.max()


def test_curves_share_a_plot(curves, rng):
    theta = curves.parameters
    theta["templates"][:] = rng.gamma(2.0, size=theta["templates"].shape)
    collection = plot_templates(theta, curves, backend="none")
    lines = collection.viz["curve"]["template"].values
    assert len(collection.viz["plot"].sizes) == 0
    for line, wanted in zip(lines, template_images(theta, curves).values, strict=True):
        np.testing.assert_array_equal(line["x"], AGES)
        np.testing.assert_array_equal(line["y"], wanted)
    assert lines[0]["color"] != lines[1]["color"]
    assert lines[0]["linestyle"] != lines[1]["linestyle"]
    assert collection.viz["xlabel"]["template"].item()["string"] == "time"


def test_curves_have_bands_of_two_standard_errors(curves, rng):
    theta = curves.parameters
    theta["templates"][:] = rng.gamma(2.0, size=theta["templates"].shape)
    shown = template_images(theta, curves)
    errors = shown.copy(data=rng.gamma(1.0, size=shown.shape))
    drawn = {"backend": "none", "template_sd": errors.transpose("time", "class")}
    collection = plot_templates(theta, curves, **drawn)
    for band, line, middle, error in zip(
        collection.viz["band"]["template"].values,
        collection.viz["curve"]["template"].values,
        shown.values,
        errors.values,
        strict=True,
    ):
        np.testing.assert_allclose(band["y_bottom"], middle - 2 * error)
        np.testing.assert_allclose(band["y_top"], middle + 2 * error)
        assert band["color"] == line["color"]
    one = plot_templates(theta, curves, coords={"class": 1}, **drawn)
    assert one.viz["band"]["template"].size == 1
    assert "band" not in plot_templates(theta, curves, visuals={"band": False}, **drawn).viz
    turned = errors.isel({"class": [1, 0], "time": slice(None, None, -1)})
    again = plot_templates(theta, curves, backend="none", template_sd=turned)
    for one, other in zip(
        again.viz["band"]["template"].values, collection.viz["band"]["template"].values, strict=True
    ):
        np.testing.assert_array_equal(one["y_top"], other["y_top"])
    for wrong, kind, words in (
        (errors[0], ValueError, r"template_sd has the sizes \{'time': 9\}"),
        (errors.assign_coords({"class": [1, 2]}), ValueError, "other labels .* along 'class'"),
        (-errors, ValueError, "negative"),
        (errors.to_dataset(name="template_sd"), TypeError, "got a Dataset"),
    ):
        with pytest.raises(kind, match=words):
            plot_templates(theta, curves, template_sd=wrong)


def test_growing_images_have_a_row_a_class(images, theta, rng):
    history = path_of(theta, rng)
    collection = plot_template_history(history, images, n_snapshots=4, backend="none")
    assert dict(collection.viz["plot"].sizes) == {"class": 3, "snapshot": 4}
    # the start, the first M-step, one between by its logarithm, the last
    assert collection.viz["plot"].snapshot.values.tolist() == [
        "n = 0",
        "n = 10",
        "n = 20",
        "n = 40",
    ]
    last = collection.viz["image"]["template"].isel({"class": 2, "snapshot": -1}).item()
    wanted = template_images(history["steps"].to_dataset().isel(step=-1), images).values[2]
    np.testing.assert_array_equal(last["density"][::2, ::2].T, wanted)
    titles = collection.viz["title"]["template"].transpose("class", "snapshot").values
    assert [title["string"] for title in titles[0]] == ["n = 0", "n = 10", "n = 20", "n = 40"]
    assert titles[1, 0] is None


def test_growing_curves_get_darker(curves, rng):
    history = path_of(curves.parameters, rng)
    collection = plot_template_history(history, curves, n_snapshots=3, backend="none")
    assert dict(collection.viz["plot"].sizes) == {"class": 2}
    lines = collection.viz["curve"]["template"].isel({"class": 0}).values
    brightness = [sum(bytes.fromhex(line["color"][1:])) for line in lines]
    assert len(lines) == 3 and brightness == sorted(brightness, reverse=True)


def test_history_that_cannot_be_drawn_is_refused(images, theta, rng):
    with pytest.raises(TypeError, match=r"em\.history"):
        plot_template_history(theta, images, backend="none")
    history = path_of(theta, rng)
    with pytest.raises(ValueError, match="n_snapshots: got 1"):
        plot_template_history(history, images, n_snapshots=1, backend="none")
    with pytest.raises(ValueError, match="no path 'steps'"):
        plot_template_history(history["observations"], images, backend="none")


def test_registered_curve():
    found = curve_registration(AGES)
    curve = np.where(AGES == 10, np.nan, 1.5)
    collection = plot_registration(found, curve, found["template_mean"], backend="none")
    assert collection.viz["plot"].panel.values.tolist() == ["data", "warp", "aligned"]
    points = collection.viz["observation"]["registration"].values[1]
    np.testing.assert_array_equal(points["x"], AGES[AGES != 10])
    band = collection.viz["warped_band"]["registration"].values[1]
    np.testing.assert_allclose([band["y_bottom"], band["y_top"]], [[1.5] * 9, [2.5] * 9])
    warp = collection.viz["warp"]["registration"].values[0]
    np.testing.assert_allclose(warp["y"], 1.1 * AGES)
    identity = collection.viz["identity"]["registration"].values[0]
    np.testing.assert_allclose(identity["y"], AGES)
    title = collection.viz["title"]["registration"].isel({"class": 0, "panel": 0}).item()
    assert title["string"].startswith("class 0, probability")


def test_curve_with_points_of_its_own():
    points = np.array([[3.0, 4.5], [1.0, 2.0]])
    collection = plot_registration(curve_registration(AGES), points, backend="none")
    drawn = collection.viz["observation"]["registration"].values[0]
    np.testing.assert_array_equal([drawn["x"], drawn["y"]], points)
    assert "template" not in collection.viz.children


def test_displacements_are_arrows_in_pixels():
    # a shift by one pixel down and two to the right: 2/3 and 2 · 2/5 in the unit of the points
    found = image_registration((4, 6), (2 / 3, 4 / 5))
    collection = plot_registration(found, np.zeros((4, 6)), backend="none")
    assert collection.viz["plot"].panel.values.tolist() == [
        "data",
        "warped template",
        "displacement",
    ]
    arrows = collection.viz["arrows"]["registration"].values[0]
    begin, end = (np.array([arrows["x"], arrows["y"]]).T[k::6] for k in (0, 1))
    columns, rows = np.meshgrid(np.arange(6), np.arange(4))
    np.testing.assert_allclose(
        begin, np.stack([columns.ravel(), -rows.ravel()], axis=1), atol=1e-12
    )
    np.testing.assert_allclose(end - begin, np.broadcast_to([2, -1], (24, 2)), atol=1e-12)


def test_dims_may_be_in_any_order():
    found = curve_registration(AGES)
    turned = plot_registration(found.transpose("age", "class"), backend="none")
    straight = plot_registration(found, backend="none")
    for one, other in zip(
        turned.viz["warped"]["registration"].values.ravel(),
        straight.viz["warped"]["registration"].values.ravel(),
        strict=True,
    ):
        if one is not None:
            np.testing.assert_array_equal(one["y"], other["y"])


def test_what_does_not_fit_the_registration_is_refused():
    found = image_registration((4, 6), (0, 0))
    with pytest.raises(ValueError, match=r"observation: has shape \(3, 3\)"):
        plot_registration(found, np.zeros((3, 3)), backend="none")
    with pytest.raises(ValueError, match="registration: got Dataset without"):
        plot_registration(found.drop_vars("warp_mean"), backend="none")
    with pytest.raises(ValueError, match="templates: has sizes"):
        plot_registration(found, None, found["template_mean"].isel(row=[0]), backend="none")
    with pytest.raises(ValueError, match=r"registration: has 2 observations; .*\(picture=0\)"):
        plot_registration(xr.concat([found, found], "picture"), backend="none")


@pytest.mark.parametrize("backend", by_default(["matplotlib", "bokeh", "plotly"], {"plotly"}))
def test_other_back_ends_draw_the_same_visuals(backend, tmp_path, images, theta, rng):
    draws_alike(
        {
            "templates": lambda **kw: plot_templates(theta, images, **kw),
            "history": lambda **kw: plot_template_history(path_of(theta, rng), images, **kw),
            "curve": lambda **kw: plot_registration(curve_registration(AGES), np.ones(9), **kw),
            "image": lambda **kw: plot_registration(image_registration((4, 6), (0, 0.1)), **kw),
        },
        backend,
        tmp_path,
    )
