"""Curves of any unit: names and units kept, and the same templates in each unit."""

from __future__ import annotations

import pickle
import warnings

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.plots import plot_registration, plot_template_history, plot_templates
from pymc_mcoem.templates import TemplateMixture, TemplatePriors, curve_priors, template_images
from tests.helpers.histories import path_of

PLACES = np.linspace(0, 600, 9)
SMALL = {"n_landmarks": 8, "n_warp_kernels": 2}


def beats(rng, unit=1.0, n=20):
    """Curves that go below zero, in milliseconds and some unit."""
    values = np.sin(PLACES / 90) + 0.1 * rng.normal(size=(n, PLACES.size))
    values[0, 3] = np.nan
    return xr.DataArray(
        unit * values,
        {"time": ("time", PLACES, {"units": "ms"})},
        ("beat", "time"),
        name="potential",
        attrs={"units": "µV"},
    )


def mixture_of(given, n_classes=2, **options):
    return TemplateMixture.for_curves(given, n_classes, **{**SMALL, **options})


def test_curves_bring_points_names_and_units(rng):
    mixture = mixture_of(beats(rng))
    np.testing.assert_array_equal(mixture.settings.points[:, 0], PLACES)
    for each in (mixture, mixture.with_classes(3), cloudpickle.loads(cloudpickle.dumps(mixture))):
        shown = template_images(each.parameters, each)
        assert shown.dims == ("class", "time")
        assert shown.attrs == {"long_name": "potential", "units": "µV"}
        assert shown["time"].attrs == {"units": "ms"}
        assert each.parameters["basis_time"].attrs == {"units": "ms"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (PLACES, "time"),
        (PLACES.tolist(), "time"),
        (xr.DataArray(PLACES, name="age"), "age"),
        (pd.Index(PLACES, name="wavelength"), "wavelength"),
        (pd.Series(PLACES), "time"),
    ],
)
def test_an_axis_has_the_name_of_its_points(given, name):
    assert mixture_of(given).settings.dim_names == (name,)


def test_the_sign_is_that_of_the_curves_unless_it_is_told(rng):
    curves = beats(rng)
    assert mixture_of(curves).settings.coefficients == "real"
    assert mixture_of(abs(curves)).settings.coefficients == "nonnegative"
    assert mixture_of(PLACES).settings.coefficients == "nonnegative"
    assert mixture_of(curves, coefficients="nonnegative").settings.coefficients == "nonnegative"


def test_priors_are_in_the_unit_and_at_the_level_of_the_curves(rng):
    curves = beats(rng) + 20
    mixture, deviation = mixture_of(curves, coefficients="real"), float(curves.std())
    weak = curve_priors(mixture.settings.deformation)
    assert mixture.priors.noise_rate == pytest.approx(weak.noise_rate * deviation**2)
    level = mixture.settings.basis.matrix(PLACES[4:5, None]) @ mixture.priors.mean(2, 8)[0]
    np.testing.assert_allclose(level, float(curves.mean()), rtol=1e-9)
    assert not mixture_of(curves).priors.mean(2, 8).any()
    # told, nothing is taken from the curves
    assert mixture_of(curves, priors=weak).priors == weak
    # curves that are all alike have no size
    assert mixture_of(xr.zeros_like(curves)).priors.noise_rate == weak.noise_rate


@pytest.mark.parametrize("start", ["kmeans", "random"])
@pytest.mark.parametrize("unit", [300.0, 1e-3])
def test_templates_are_the_same_in_every_unit(unit, start):
    """A whole run: all numbers in the curves' unit are multiplied by it, the others stay."""
    curves = (
        beats(np.random.default_rng(4))
        if start == "kmeans"
        else abs(beats(np.random.default_rng(4)))
    )
    found = []
    for factor in (1.0, unit):
        mixture = mixture_of(factor * curves)
        with warnings.catch_warnings():
            # a random start of templates that are not negative is in the unit of the curves
            warnings.filterwarnings("ignore", message=".*start='random'")
            em = OnlineEM(mixture, start=start, random_seed=1, progressbar=False)
            found.append(em.partial_fit(factor * curves).parameters)
    one, other = found
    for name, power in {"templates": 1, "noise_variance": 2}.items():
        np.testing.assert_allclose(other[name], unit**power * one[name], rtol=1e-6)
    for name in ("weights", "deformation_variance"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-6)


def test_a_run_goes_on_with_a_mixture_kept_beside_it(rng, tmp_path):
    """Its size and sign were taken from curves that need not be at hand any more."""
    curves = beats(rng, 300.0)
    mixture = mixture_of(curves)
    em = OnlineEM(mixture, n_start=10, random_seed=1, progressbar=False).partial_fit(curves)
    em.save(tmp_path / "run.nc")
    kept = pickle.loads(pickle.dumps(mixture))
    loaded = OnlineEM.load(tmp_path / "run.nc", kept)
    more = beats(rng, 300.0)
    one, other = (each.partial_fit(more[:2]).parameters for each in (em, loaded))
    np.testing.assert_array_equal(one["templates"], other["templates"])
    with pytest.raises(ValueError, match="of another family"):
        OnlineEM.load(tmp_path / "run.nc", mixture_of(more))


def test_priors_in_another_unit():
    priors = TemplatePriors(template_mean=np.array([1.0, 2.0]), noise_rate=0.5).in_unit(10.0)
    np.testing.assert_array_equal(priors.template_mean, [10.0, 20.0])
    assert priors.noise_rate == 50.0
    assert TemplatePriors(template_mean=0.5).in_unit(4).template_mean == 2.0
    with pytest.raises(ValueError, match="unit is 0; give a positive number"):
        TemplatePriors().in_unit(0)


def test_observations_too_small_for_the_priors_are_told(rng):
    curves = 1e-3 * beats(rng).values
    mixture = mixture_of(PLACES, coefficients="real")
    with pytest.warns(UserWarning, match=r"0.000\d+, less than the 0.0707 .*for_curves.* or take"):
        mixture.initialize(list(curves), rng)
    fitting = mixture_of(PLACES, coefficients="real", priors=mixture.priors.in_unit(1e-3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitting.initialize(list(curves), rng)


def test_of_images_the_remedy_is_one_for_images(rng):
    images = 1e-3 * rng.random((5, 3, 3))
    mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    with pytest.warns(UserWarning, match=r"alone; take mixture.with_classes\(.*in_unit\(0.0003\)"):
        mixture.initialize(list(images), rng)
    fitting = mixture.with_classes(mixture.n_classes, priors=mixture.priors.in_unit(0.0003))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitting.initialize(list(images), rng)


def test_gray_values_to_255_are_told_of_a_random_start(rng):
    images = rng.integers(256, size=(5, 3, 3))
    mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    with pytest.warns(UserWarning, match="divide the observations by their largest value, such as"):
        mixture.initialize(list(images), rng, "random")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large = mixture.initialize(list(images), np.random.default_rng(0))
        small = mixture.initialize(list(images / 255), np.random.default_rng(0))
    np.testing.assert_allclose(large["templates"], 255 * small["templates"], rtol=1e-6)


def test_plots_have_names_and_units(rng):
    curves = beats(rng)
    mixture = mixture_of(curves)
    theta = mixture.parameters
    drawn = plot_templates(theta, mixture, backend="none").viz
    assert drawn["xlabel"]["template"].item()["string"] == "time (ms)"
    assert drawn["ylabel"]["template"].item()["string"] == "potential (µV)"
    history = path_of(theta, rng, n=3)
    drawn = plot_template_history(history, mixture, backend="none").viz
    texts = {each["string"] for each in np.ravel(drawn["xlabel"]["template"]) if each is not None}
    assert texts == {"time (ms)"}

    found = mixture.register(curves[1], theta, draws=5, tune=5)
    assert found["template_mean"].attrs["units"] == found["aligned_sd"].attrs["units"] == "µV"
    assert found["inverse_mean_averaged"].attrs["units"] == "ms"
    drawn = plot_registration(found, curves[1], backend="none").viz
    texts = {
        text["string"] for text in np.ravel(drawn["ylabel"]["registration"]) if text is not None
    }
    assert texts == {"potential (µV)", "time (ms) of the template"}


@pytest.mark.parametrize("units", ["ms", {"time": "ms", "a": "m", "b": "m"}])
def test_units_that_belong_to_nothing_are_refused(units):
    with pytest.raises(ValueError, match=r"units is .*; give units by name, of the axes"):
        mixture_of(PLACES, units=units)
