"""Arguments that cannot be drawn are named, with what to give instead."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem import live_error_rate
from pymc_mcoem.plots import plot_error_rate, plot_pseudo_prior, plot_registration
from tests.helpers.histories import curve_registration, image_registration


@pytest.fixture
def draws(rng):
    k = rng.integers(2, size=(2, 60))
    x = k + rng.normal(size=k.shape)
    return xr.Dataset({"k": (("chain", "draw"), k), "x": (("chain", "draw"), x)})


@pytest.fixture
def guess(rng):
    return xr.Dataset({"x": (("class", "sample"), rng.normal(size=(2, 50)))}, {"class": [0, 1]})


@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_arrows_are_counted(value):
    found = image_registration((4, 6), (0.1, 0.2))
    with pytest.raises(ValueError, match=f"max_arrows: got {value}; give a whole number"):
        plot_registration(found, max_arrows=value, backend="none")


def test_fewer_arrows_than_points():
    found = image_registration((4, 6), (0.1, 0.2))
    collection = plot_registration(found, max_arrows=1, backend="none")
    arrow = collection.viz["arrows"]["registration"].values[0]
    assert len(arrow["x"]) == 6


def test_a_registration_keeps_its_classes():
    found = curve_registration(np.linspace(2, 18, 9))
    with pytest.raises(ValueError, match=r"no dimension 'class'.*coords"):
        plot_registration(found.isel({"class": 0}), backend="none")
    one = plot_registration(found, coords={"class": 1}, backend="none")
    assert one.viz["plot"]["class"].values.tolist() == [1]


def test_templates_are_labeled():
    found = curve_registration(np.linspace(2, 18, 9))
    with pytest.raises(TypeError, match="templates: got ndarray; give what template_images"):
        plot_registration(found, templates=np.zeros((2, 9)), backend="none")


def test_rates_are_those_of_runs():
    rate = live_error_rate([1, 0], [1, 1])
    for given in (rate["recent"], [rate]):
        with pytest.raises(TypeError, match=r"rates: got .* live_error_rate"):
            plot_error_rate(given, backend="none")


def test_a_window_is_named_if_all_runs_have_it():
    rates = {window: live_error_rate([1, 0], [1, 1], window=window) for window in (1, 2)}
    label = plot_error_rate(rates, backend="none").viz["ylabel"]["error_rate"].item()["string"]
    assert label == "error rate, last observations"


def test_latents_are_named(draws, guess):
    one = plot_pseudo_prior(draws, guess, latents="x", backend="none")
    assert one.viz["plot"].latent.values.tolist() == ["x"]
    with pytest.raises(ValueError, match=r"latents: got none; name some of \['x'\]"):
        plot_pseudo_prior(draws, guess, latents=[], backend="none")
    with pytest.raises(KeyError, match=r"\['w'\] are not in both .*; \['x'\] are"):
        plot_pseudo_prior(draws, guess, latents=["w"], backend="none")
    with pytest.raises(TypeError, match="pseudo_prior: got dict; give what pseudo_prior_draws"):
        plot_pseudo_prior(draws, {}, backend="none")
