"""Histories, error rates and pseudo-priors, by the structure of what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem import live_error_rate
from pymc_mcoem.plots import (
    plot_class_weights,
    plot_error_rate,
    plot_parameter_history,
    plot_pseudo_prior,
)
from tests.helpers.drawn_alike import draws_alike
from tests.helpers.histories import path_of
from tests.helpers.representatives import by_default


@pytest.fixture
def history(rng):
    theta = xr.Dataset(
        {
            "weights": ("class", [0.25, 0.75]),
            "templates": (("class", "basis"), np.zeros((2, 100))),
            "noise_variance": ((), 0.5),
        },
        {"class": [0, 1]},
    )
    return path_of(theta, rng)


def values(visual, name):
    return visual[name].values


def test_parameters_have_a_plot_each_and_classes_a_color(history):
    collection = plot_parameter_history(history, backend="none")
    # templates have more numbers than a plot can tell apart
    assert set(collection.viz["plot"].data_vars) == {"weights", "noise_variance", "gain"}
    lines = values(collection.viz["path"], "weights")
    assert lines[0]["color"] != lines[1]["color"]
    np.testing.assert_array_equal(lines[1]["y"][:-1], 0.75)
    gain = collection.viz["shared_path"]["gain"].item()
    np.testing.assert_allclose(gain["y"][1:-1], np.arange(1, 41) ** -0.6)
    np.testing.assert_array_equal(gain["x"][:-1], np.arange(41))
    assert collection.viz["title"]["gain"].item()["string"] == "gain"


def test_parameters_are_chosen(history):
    collection = plot_parameter_history(
        history, ["templates"], coords={"class": [1], "step": slice(10, None)}, backend="none"
    )
    (line,) = values(collection.viz["path"], "templates")
    # a line a number, a gap after each
    assert np.isnan(line["y"]).sum() == 100
    assert len(line["x"]) == 100 * 32 and np.nanmin(line["x"]) == 10
    with pytest.raises(KeyError, match="nothing"):
        plot_parameter_history(history, ["nothing"], backend="none")


def test_weights_and_what_the_last_observations_weigh(history):
    collection = plot_class_weights(history, window=4, backend="none")
    learned, recent = (
        values(collection.viz[name], "weight")[0] for name in ("weights", "observed")
    )
    np.testing.assert_array_equal(learned["y"][:-1], 0.25)
    seen = history["observations"]["class_weight"].values[:, 0]
    assert np.isnan(recent["y"][0])
    np.testing.assert_allclose(recent["y"][3], seen[:4].mean())
    np.testing.assert_allclose(recent["y"][39], seen[-4:].mean())
    assert learned["color"] == recent["color"]
    with pytest.raises(ValueError, match="window: got 0"):
        plot_class_weights(history, window=0, backend="none")


def test_error_rates_of_two_runs(rng):
    actual = rng.integers(3, size=60)
    rates = {
        "good": live_error_rate(actual, actual, window=20),
        "short": live_error_rate((actual[:30] + 1) % 3, actual[:30], window=20),
    }
    collection = plot_error_rate(rates, backend="none")
    recent, band = (values(collection.viz[name], "error_rate") for name in ("recent", "band"))
    assert not recent[0]["y"].any()
    # the short run ends where it ends, and its band with it
    np.testing.assert_array_equal(recent[1]["x"], np.arange(1, 31))
    assert len(band[1]["x"]) == 30 and (band[1]["y_top"] == 1).all()
    label = collection.viz["ylabel"]["error_rate"].item()["string"]
    assert label == "error rate, last 20 observations"
    one = plot_error_rate(rates["good"], backend="none")
    assert "legend" not in one.viz.children
    with pytest.raises(ValueError, match="live_error_rate"):
        plot_error_rate({"a": rates["good"].drop_vars("recent")}, backend="none")
    with pytest.raises(ValueError, match="got none"):
        plot_error_rate({}, backend="none")


def test_error_rates_against_time(rng):
    actual, other = rng.integers(3, size=(2, 60))
    seconds = np.cumsum(rng.random(60))
    often = live_error_rate(other, actual, seconds=seconds)
    # a run of which every fourth observation was classified, whose labels are of another kind
    seldom = live_error_rate(list("ab" * 5), list("abbbb" * 2), seconds=10 * np.arange(10.0))
    seldom = seldom.assign_coords(observation=np.arange(4, 41, 4)).assign(
        predicted=("observation", list("ab" * 5))
    )
    runs = {"often": often, "seldom": seldom}
    for x, expected in (
        ("seconds", (seconds, 10 * np.arange(10.0))),
        ("observation", (np.arange(1, 61), np.arange(4, 41, 4))),
    ):
        collection = plot_error_rate(runs, x=x, backend="none")
        for visual, name, height in (
            ("recent", "recent", "y"),
            ("cumulative", "cumulative", "y"),
            ("band", "upper", "y_top"),
        ):
            drawn = values(collection.viz[visual], "error_rate")
            for line, places, run in zip(drawn, expected, runs.values(), strict=True):
                np.testing.assert_array_equal(line["x"], places)
                np.testing.assert_array_equal(line[height], run[name])
    label = plot_error_rate(often, x="seconds", backend="none").viz["xlabel"]["error_rate"]
    assert label.item()["string"].startswith("seconds of learning")
    untimed = runs | {"untimed": live_error_rate(other, actual)}
    with pytest.raises(ValueError, match=r"x: got 'seconds', and the rate of 'untimed' has none"):
        plot_error_rate(untimed, x="seconds", backend="none")
    assert plot_error_rate(untimed, backend="none").viz["recent"].sizes["run"] == 3
    with pytest.raises(ValueError, match="x: got 'hours'; give one of"):
        plot_error_rate(often, x="hours", backend="none")


def drawn_and_guessed(rng):
    k = rng.choice(3, p=[0.6, 0.395, 0.005], size=(2, 400))
    vector = ("chain", "draw", "kernel")
    draws = xr.Dataset(
        {
            "k": (("chain", "draw"), k),
            "x": (("chain", "draw"), 5.0 * k + rng.normal(size=k.shape)),
            "v": (vector, rng.normal(size=(*k.shape, 2))),
        },
        {"kernel": ["a", "b"]},
    )
    guess = xr.Dataset(
        {
            "x": (("class", "sample"), 5.0 * np.arange(3)[:, None] + rng.normal(size=(3, 300))),
            "v": (("class", "sample", "kernel"), rng.normal(size=(3, 300, 2))),
        },
        {"class": [0, 1, 2], "kernel": ["a", "b"]},
    )
    return draws, guess


def test_chain_and_pseudo_prior_have_a_plot_for_each_class_and_latent(rng):
    draws, guess = drawn_and_guessed(rng)
    collection = plot_pseudo_prior(draws, guess, backend="none")
    plots = collection.viz["plot"]
    assert plots.latent.values.tolist() == ["x", "v[a]", "v[b]"] and plots.sizes["class"] == 3
    for visual in ("chain", "pseudo_prior"):
        curve = collection.viz[visual]["density"].sel({"class": 1, "latent": "x"}).item()
        assert abs(curve["x"][np.argmax(curve["y"])] - 5) < 1
        np.testing.assert_allclose(np.trapezoid(curve["y"], curve["x"]), 1, atol=0.05)
    # a class with hardly a draw has no density of the chain
    rare = collection.viz["chain"]["density"].sel({"class": 2, "latent": "x"}).item()
    assert rare is None
    some = plot_pseudo_prior(
        draws, guess, latents=["v"], coords={"class": [0], "kernel": ["b"]}, backend="none"
    )
    assert some.viz["plot"].latent.values.tolist() == ["v[b]"]
    with pytest.raises(KeyError, match="w"):
        plot_pseudo_prior(draws, guess, latents=["w"], backend="none")


def test_visuals_are_left_out_and_changed(history, rng):
    collection = plot_class_weights(
        history, backend="none", visuals={"observed": False, "weights": {"width": 7}}
    )
    assert "observed" not in collection.viz.children
    assert values(collection.viz["weights"], "weight")[0]["width"] == 7
    with pytest.raises(ValueError, match="weihgts"):
        plot_class_weights(history, backend="none", visuals={"weihgts": False})
    filled = plot_class_weights(history, plot_collection=collection, backend="none")
    assert filled is collection and "observed" in filled.viz.children


@pytest.mark.parametrize("backend", by_default(["matplotlib", "bokeh", "plotly"], {"bokeh"}))
def test_other_back_ends_draw_the_same_visuals(backend, tmp_path, history, rng):
    actual = rng.integers(3, size=60)
    rate = live_error_rate(rng.integers(3, size=60), actual, seconds=np.arange(60.0))
    two = {"long": rate, "short": rate.isel(observation=slice(2, 30, 3))}
    draws, guess = drawn_and_guessed(rng)
    draws_alike(
        {
            "parameters": lambda **kw: plot_parameter_history(history, **kw),
            "weights": lambda **kw: plot_class_weights(history, **kw),
            "error_rate": lambda **kw: plot_error_rate(rate, **kw),
            "error_against_time": lambda **kw: plot_error_rate(two, x="seconds", **kw),
            "pseudo_prior": lambda **kw: plot_pseudo_prior(draws, guess, latents=["x"], **kw),
        },
        backend,
        tmp_path,
    )
