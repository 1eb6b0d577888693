"""Plots of histories as a driver writes them: runs of toys, saved ones too."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.plots import (
    plot_class_weights,
    plot_parameter_history,
    plot_template_history,
    plot_templates,
)
from pymc_mcoem.templates import TemplateMixture
from tests.helpers.histories import path_of
from tests.helpers.toy_families import NormalMixture, mixture_stream
from tests.helpers.toy_runs import THETA, driver

PLOTS = (plot_parameter_history, plot_class_weights)


@pytest.fixture(scope="module")
def history():
    em = driver(NormalMixture(), parameters=THETA, batch_size=2)
    em.partial_fit(mixture_stream(np.random.default_rng(5), 80))
    return em.history


@pytest.fixture(scope="module")
def mixture():
    return TemplateMixture.for_images((4, 6), 3, n_landmarks=2)


def line_of(visual, **at):
    artist = visual.sel(at).item()
    known = np.isfinite(np.asarray(artist["y"], dtype=float))
    return np.asarray(artist["x"])[known], np.asarray(artist["y"])[known]


def test_paths_over_the_observations_of_mini_batches(history):
    path = history["steps"].to_dataset()
    collection = plot_parameter_history(history, backend="none")
    paths, shared = collection.viz["path"], collection.viz["shared_path"]
    assert set(paths.data_vars) == {"weights", "means"}
    assert set(shared.data_vars) == {"noise_variance", "gain"}
    for name in ("weights", "means"):
        for k in range(3):
            x, y = line_of(paths[name], **{"class": k})
            np.testing.assert_array_equal(x, np.arange(0, 81, 2))
            np.testing.assert_array_equal(y, path[name].sel({"class": k}))
    x, y = line_of(shared["gain"])
    np.testing.assert_array_equal(x, np.arange(2, 81, 2))
    np.testing.assert_array_equal(y, path["gain"][1:])


def test_learned_and_recent_weights_share_the_axis_of_observations(history):
    collection = plot_class_weights(history, window=4, backend="none")
    seen = history["observations"]["class_weight"]
    for k in range(3):
        x, y = line_of(collection.viz["weights"]["weight"], **{"class": k})
        np.testing.assert_array_equal(x, np.arange(0, 81, 2))
        x, y = line_of(collection.viz["observed"]["weight"], **{"class": k})
        assert x[-1] == 80
        np.testing.assert_allclose(y[-1], seen[-4:, k].mean())


def test_one_class_is_chosen_with_or_without_a_list(history):
    for given in (1, [1], slice(1, 1)):
        drawn = plot_class_weights(history, coords={"class": given}, backend="none")
        assert drawn.viz["weights"]["weight"]["class"].values.tolist() == [1]


def test_one_variable_is_chosen_with_or_without_a_list(history):
    for given in ("gain", ["gain"]):
        drawn = plot_parameter_history(history, given, backend="none")
        assert list(drawn.viz["shared_path"].data_vars) == ["gain"]
        assert "legend" not in drawn.viz.children


def test_a_family_without_weights_has_what_was_observed(history):
    path = history["steps"].to_dataset().drop_vars("weights")
    tree = xr.DataTree.from_dict(
        {"steps": path, "observations": history["observations"].to_dataset()}
    )
    collection = plot_class_weights(tree, backend="none")
    assert "weights" not in collection.viz.children
    assert collection.viz["observed"]["weight"].sizes["class"] == 3


def test_saved_runs_are_drawn_alike(history, tmp_path):
    history.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "run.nc", engine="h5netcdf") as saved:
        for plot in PLOTS:
            again, first = plot(saved.load(), backend="none"), plot(history, backend="none")
            assert set(again.viz.children) == set(first.viz.children)


def test_steps_are_chosen(mixture, rng):
    history = path_of(mixture.parameters, rng)
    drawn = plot_template_history(history, mixture, steps=[40, 3, 1000], backend="none")
    assert drawn.viz["image"]["snapshot"].values.tolist() == ["n = 3", "n = 40"]
    for wrong in ([], [0.5], [-1], 3):
        with pytest.raises(ValueError, match="steps: got"):
            plot_template_history(history, mixture, steps=wrong, backend="none")


def test_what_is_no_history_is_refused(history):
    path = history["steps"].to_dataset()
    for plot in PLOTS:
        with pytest.raises(TypeError, match="history: got a Dataset"):
            plot(path, backend="none")
        with pytest.raises(ValueError, match="history: has the groups"):
            plot(xr.DataTree(), backend="none")
        with pytest.raises(ValueError, match="partial_fit"):
            plot(driver(NormalMixture(), parameters=THETA).history, backend="none")
        with pytest.raises(ValueError, match="titel"):
            plot(history, backend="none", visuals={"titel": False})
    with pytest.raises(ValueError, match="no 'observations'"):
        plot_class_weights(xr.DataTree.from_dict({"steps": path}), backend="none")


def test_what_are_no_parameters_is_refused(mixture):
    theta = mixture.parameters
    with pytest.raises(TypeError, match="parameters: got a dict"):
        plot_templates(dict(theta), mixture, backend="none")
    with pytest.raises(ValueError, match="no 'weights'"):
        plot_templates(theta.drop_vars("weights"), mixture, backend="none")


def test_pixels_have_corners_and_all_shades_in_plotly(mixture):
    pytest.importorskip("plotly")
    pytest.importorskip("webcolors")
    (drawn, *_) = (
        plot_templates(mixture.parameters, mixture, backend="plotly")
        .viz["image"]["template"]
        .values
    )
    assert drawn.line.smoothing == 0
    shades = (drawn.contours.end - drawn.contours.start) / drawn.contours.size
    assert round(shades) == 32
