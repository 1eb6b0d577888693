"""Searches under way: what they carry from phase to phase, and who goes on."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.laplace.modes import ModeStatus
from pymc_mcoem.laplace.newton import Searches
from pymc_mcoem.laplace.schedule import Cooling, Race
from pymc_mcoem.laplace.search import ModeSearch


def under_way(heights, gradients, curvatures):
    """Three searches with one latent each, as after some iterations at temperature 1."""
    searches = Searches.begin(np.arange(3), np.zeros((3, 1, 1)), damping=2.0)
    searches.heat(np.arange(3), 1.0, measured_by_prior=True)
    searches.log_density[:] = heights
    searches.gradient[:, 0] = gradients
    searches.matrix[:, 0, 0] = curvatures
    return searches


def test_those_within_the_margin_go_on_and_those_whose_step_promises_enough():
    searches = under_way([0.0, -40.0, -60.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    assert searches.within({0, 1, 2}, 50.0, 2.0) == {0, 1}
    # twice g² / 2P: 12.5 where 10 are missing, then 8
    searches.gradient[2, 0] = 5.0
    searches.matrix[2] = 2.0
    assert searches.within({0, 1, 2}, 50.0, 2.0) == {0, 1, 2}
    searches.gradient[2, 0] = 4.0
    assert searches.within({0, 1, 2}, 50.0, 2.0) == {0, 1}


@pytest.mark.parametrize("curvature", [np.nan, np.inf])
def test_a_curvature_that_is_no_number_promises_nothing(curvature):
    searches = under_way([0.0, -60.0, -np.inf], [0.0, 1e3, np.nan], [1.0, curvature, 1.0])
    assert searches.within({0, 1, 2}, 50.0, 2.0) == {0}


def test_an_indefinite_curvature_promises_what_a_ridge_leaves_of_it():
    # P = −1, and a ridge of 10 is the first that makes it a precision: g² / 18
    searches = under_way([0.0, -60.0, -60.0], [0.0, 9.6, 9.4], [1.0, -1.0, -1.0])
    assert searches.within({0, 1, 2}, 50.0, 2.0) == {0, 1}
    assert searches.within({0, 1, 2}, 50.0, 0.0) == {0}


def test_where_no_density_is_finite_all_go_on():
    searches = under_way([-np.inf, np.nan, -np.inf], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    assert searches.within({0, 1, 2}, 50.0, 2.0) == {0, 1, 2}


def test_the_best_start_of_a_class_is_of_those_that_are_alive():
    searches = under_way([-3.0, -1.0, -2.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    rows = np.array([[0, 1, 2]])
    assert searches.ahead(rows, {0, 1, 2}) == [1]
    assert searches.ahead(rows, {0, 2}) == [2]
    assert searches.ahead(rows, set()) == [1]


def test_a_class_left_behind_is_described_by_its_best_cold_start():
    searches = under_way([-3.0, -1.0, 5.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    searches.temperature[2] = 10.0
    assert searches.ahead(np.array([[0, 1, 2]]), set()) == [1]
    searches.temperature[:] = 10.0
    assert searches.ahead(np.array([[0, 1, 2]]), set()) == [0]


def test_damping_begins_anew_where_nothing_was_found():
    searches = under_way([-np.inf, 0.0, np.nan], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    searches.damping[:] = 1e13
    searches.heat(np.arange(3), 10.0, measured_by_prior=True)
    np.testing.assert_allclose(searches.damping, [2.0, 1e12, 2.0])


def test_damping_is_the_same_in_units_of_what_falls_with_the_noise():
    searches = under_way([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [4.0, 4.0, 4.0])
    searches.done[:] = True
    searches.heat(np.array([0]), 10.0, measured_by_prior=True)
    searches.heat(np.array([1]), 10.0, measured_by_prior=False)
    np.testing.assert_allclose(searches.damping, [0.2, 2.0, 2.0])
    # what was known is of another temperature
    np.testing.assert_array_equal(searches.log_density, [-np.inf, -np.inf, 0.0])
    np.testing.assert_array_equal(searches.gradient[:, 0], [0.0, 0.0, 1.0])
    assert searches.done.tolist() == [False, False, True]


@pytest.fixture(scope="module")
def skewed(module_without_compiler):
    """Three latents under a log-density with a single mode that is far from quadratic."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 2.0 * k, [0.5, 1.0, 2.0], shape=3)
        pm.Poisson("y", pt.exp(x), observed=[7, 1, 30])
    return ClassDensity(model, k, [x]), pt.diag(pt.constant([4.0, 1.0, 0.25], dtype="float64"))


def test_a_search_in_rounds_is_the_search_without(skewed):
    """From round to round it goes on from what it knows: no point is evaluated twice."""
    density, precision = skewed
    settings = {"metric": precision, "tolerance": 1e-10, "max_iterations": 60}
    whole = ModeSearch(density, **settings)([[-1.0, 0.0, 0.0]], {})
    rounds = ModeSearch(density, race=Race(2, (np.inf,) * 3), **settings)
    found = rounds([[-1.0, 0.0, 0.0]], {})
    assert whole.status == found.status == (ModeStatus.CONVERGED,) * 2
    assert whole.n_iterations.min() > 6
    np.testing.assert_array_equal(found.n_iterations, whole.n_iterations)
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-12)


def test_measured_by_the_prior_or_not_the_mode_is_the_same(skewed):
    density, precision = skewed
    start = [[3.0, -2.0, 0.0]]
    plain = ModeSearch(density, tolerance=1e-12)(start, {})
    for metric in (precision, 100.0 * precision, 0.01 * precision):
        found = ModeSearch(density, tolerance=1e-12, metric=metric, max_iterations=200)(start, {})
        assert found.status == (ModeStatus.CONVERGED,) * 2
        np.testing.assert_allclose(found.mean, plain.mean, atol=1e-5)
        np.testing.assert_allclose(found.precision, plain.precision, rtol=1e-4)


@pytest.mark.parametrize("lowest", [-0.005, -0.015, -0.03, -0.2])
def test_a_search_measured_by_the_prior_leaves_a_saddle(lowest, module_without_compiler):
    """Damping that is small beside the prior is not small beside a saddle's curvature."""
    with pm.Model() as model:
        x = pm.Flat("x", shape=2)
        pm.Potential("saddle", -0.5 * lowest * x[0] ** 2 - 0.1 * x[0] ** 4 - 0.5 * x[1] ** 2)
    metric = pt.constant(np.eye(2), dtype="float64")
    search = ModeSearch(
        ClassDensity(model, None, [x]), metric=metric, tolerance=1e-9, max_iterations=200
    )
    found = search([[1e-3, 0.2]], {})
    assert found.status == (ModeStatus.CONVERGED,)
    np.testing.assert_allclose(found.mean, [[np.sqrt(-lowest / 0.4), 0.0]], atol=1e-3)


def test_a_flat_mode_is_reached_all_the_way(module_without_compiler):
    """Where the density is far flatter than the metric, damped steps are short: not the end."""
    with pm.Model() as model:
        x = pm.Flat("x", shape=1)
        pm.Potential("flat", -0.5e-3 * (x[0] - 10.0) ** 2)
    metric = pt.constant(np.eye(1), dtype="float64")
    found = ModeSearch(ClassDensity(model, None, [x]), metric=metric, tolerance=1e-4)([[0.0]], {})
    assert found.status == (ModeStatus.CONVERGED,)
    assert found.log_density[0] > -1e-4


def test_steps_by_an_approximate_curvature_end_at_the_mode(module_without_compiler):
    """Of a matrix half the Hessian the gains are never what was expected, and damping stays."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=3)
        pm.Normal("y", x**3 + x, 0.3, observed=[0.4, 2.0, -5.0])
    gauss_newton = pt.diag(1.0 + 0.5 * pt.sqr(3.0 * x**2 + 1.0) / 0.09)
    metric = pt.constant(np.eye(3), dtype="float64")
    search = ModeSearch(ClassDensity(model, None, [x]), gauss_newton, metric=metric)
    exact = ModeSearch(ClassDensity(model, None, [x]))
    found = search([[0.0, 0.0, 0.0]], {})
    assert found.status == (ModeStatus.CONVERGED,)
    np.testing.assert_allclose(found.mean, exact([[0.0, 0.0, 0.0]], {}).mean, atol=1e-3)


def test_a_density_that_is_nowhere_when_hot_is_searched_cold(module_without_compiler):
    with pm.Model() as model:
        noise = pm.Data("noise", 1.0)
        x = pm.Normal("x", 0.0, 1.0)
        pm.Potential("only_cold", pt.switch(noise > 5.0, -np.inf, -0.5 * (x - 1.0) ** 2 / noise))
    metric = pt.constant([[1.0]], dtype="float64")
    for settings in ({}, {"metric": metric}):
        search = ModeSearch(
            ClassDensity(model, None, [x]),
            noise_variance="noise",
            cooling=Cooling((10.0,), n_iterations=50),
            **settings,
        )
        found = search([[0.0]], {})
        assert found.status == (ModeStatus.CONVERGED,)
        assert found.mean[0, 0] == pytest.approx(0.5, abs=1e-4)


def test_the_measure_of_steps_is_the_precision_or_the_covariances_inverse():
    covariance = pt.constant([[2.0, 0.5], [0.5, 1.0]], dtype="float64")
    assert LatentGeometry().step_metric() is None
    precision = pt.constant(np.eye(2), dtype="float64")
    named = LatentGeometry(prior_covariance=covariance, prior_precision=precision)
    assert named.step_metric() is precision
    inverse = LatentGeometry(prior_covariance=covariance).step_metric()
    np.testing.assert_allclose(inverse.eval() @ covariance.data, np.eye(2), atol=1e-8)


def test_latents_without_prior_variance_do_not_stop_the_others():
    singular = LatentGeometry(prior_covariance=pt.constant(np.diag([2.0, 0.0]), dtype="float64"))
    metric = singular.step_metric().eval()
    assert np.isfinite(metric).all()
    assert metric[0, 0] == pytest.approx(0.5, rel=1e-6)
    assert metric[1, 1] > 1e6
    whole = LatentGeometry(prior_precision=np.eye(2, dtype=np.int64)).step_metric()
    assert whole.type.dtype == "float64"
