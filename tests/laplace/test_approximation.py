"""Mode and curvature against closed forms, and every way in which a search can fail, by name."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.laplace.approximation import LaplaceApproximation
from pymc_mcoem.laplace.modes import (
    Modes,
    ModeStatus,
    cholesky_factors,
    positive_definite,
    square_roots,
)
from pymc_mcoem.laplace.schedule import Race
from pymc_mcoem.laplace.search import ModeSearch
from tests.helpers.models import N_CLASSES, ScaledMixture, SkewedMixture

pytestmark = pytest.mark.usefixtures("module_without_compiler")


def search_of(model, latents, class_index=None, **settings):
    """Return a search with the model's data as they are."""
    search = ModeSearch(ClassDensity(model, class_index, latents), **settings)
    return lambda starts, **given: search(np.asarray(starts, dtype=np.float64), {}, **given)


# -- exact where the posterior is normal ------------------------------------------------------


class LinearNormal:
    """x | k ~ Normal(mean_k, covariance_k),  y | x ~ Normal(A x, noise²): all in closed form."""

    weights = np.array([0.2, 0.5, 0.3])
    means = np.array([[0.0, 1.0], [2.0, -1.0], [-1.0, 0.5]])
    factors = np.array(
        [[[1.0, 0.0], [0.5, 0.8]], [[0.4, 0.0], [-0.3, 1.2]], [[2.0, 0.0], [1.0, 1.0]]]
    )
    design = np.array([[1.0, 0.5], [0.0, 2.0], [1.0, -1.0]])
    noise = 0.6
    y = np.array([0.7, -0.4, 1.9])

    def __init__(self):
        with pm.Model() as self.model:
            # As data, for PyTensor holds literals in single precision.
            means, factors = pm.Data("means", self.means), pm.Data("factors", self.factors)
            k = pm.Categorical("k", pm.Data("weights", self.weights))
            x = pm.MvNormal("x", means[k], chol=factors[k], shape=2)
            pm.Normal("y", self.design @ x, pm.Data("noise", self.noise), observed=self.y)

    def posterior(self, k):
        covariance = self.factors[k] @ self.factors[k].T
        prior_precision = np.linalg.inv(covariance)
        precision = prior_precision + self.design.T @ self.design / self.noise**2
        mean = np.linalg.solve(
            precision, prior_precision @ self.means[k] + self.design.T @ self.y / self.noise**2
        )
        marginal = stats.multivariate_normal(
            self.design @ self.means[k],
            self.design @ covariance @ self.design.T + self.noise**2 * np.eye(3),
        )
        return mean, precision, np.log(self.weights[k]) + marginal.logpdf(self.y)


@pytest.fixture(scope="module")
def linear_normal(module_without_compiler):
    exact = LinearNormal()
    return exact, search_of(exact.model, [exact.model["x"]], exact.model["k"], tolerance=1e-20)


def test_modes_of_a_normal_posterior_are_exact(linear_normal):
    exact, search = linear_normal
    modes = search([[5.0, -5.0]])
    assert modes.status == (ModeStatus.CONVERGED,) * 3
    assert modes.troubles() == {}
    for k in range(3):
        mean, precision, log_evidence = exact.posterior(k)
        np.testing.assert_allclose(modes.mean[k], mean, atol=1e-9)
        np.testing.assert_allclose(modes.precision[k], precision, rtol=1e-9)
        assert modes.log_evidence[k] == pytest.approx(log_evidence, abs=1e-9)
    assert (modes.gradient_norm < 1e-9).all()


def test_only_the_classes_asked_for_are_searched(linear_normal):
    exact, search = linear_normal
    modes = search([[0.0, 0.0]], classes=np.array([2]))
    assert modes.mean.shape == (1, 2)
    np.testing.assert_allclose(modes.mean[0], exact.posterior(2)[0], atol=1e-9)


@pytest.fixture(scope="module")
def regression(module_without_compiler):
    """A normal regression, unconstrained, and the closed form of its posterior."""
    rng = np.random.default_rng(12)
    design = rng.normal(size=(20, 3))
    y = design @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=20)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0.0, 1.0, shape=2)
        level = pm.Normal("level", 0.0, 1.0)
        pm.Normal("y", design[:, :2] @ slope + design[:, 2] * level, 0.5, observed=y)
    precision = np.eye(3) + design.T @ design / 0.25
    return model, np.linalg.solve(precision, design.T @ y / 0.25), np.linalg.inv(precision)


def test_approximation_of_a_normal_posterior_is_exact(regression):
    model, mean, covariance = regression
    found = LaplaceApproximation.fit(model)
    assert found.status is ModeStatus.CONVERGED
    # 1e-7: literals of the model are held in single precision.
    np.testing.assert_allclose(found.mean, mean, atol=1e-7)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-7, atol=1e-9)
    assert found.log_density == pytest.approx(float(model.compile_logp()(found.point)))
    np.testing.assert_array_equal(found.point["slope"], found.mean[:2])
    assert found.point["level"].shape == ()


# -- beside PyMC's own functions ---------------------------------------------------------------


def of_pymc(model):
    """Return mode, as vector and as point, and covariance by PyMC's own two functions."""
    with warnings.catch_warnings():
        # PyMC 6.4 warns of a new return type and jitter, which do not matter here.
        warnings.simplefilter("ignore", FutureWarning)
        found = pm.find_MAP(model=model, progressbar=False)
    point = {value.name: np.asarray(found[value.name]) for value in model.value_vars}
    precision = -pm.find_hessian(point, model=model, negate_output=False)
    mean = np.concatenate([np.ravel(value) for value in point.values()])
    return SimpleNamespace(mean=mean, covariance=np.linalg.inv(precision), point=point)


def gradient_at(model, point):
    """Return the gradient of the density that PyMC samples, Jacobian included."""
    return model.compile_dlogp(jacobian=True)(point)


def test_pymc_agrees_where_nothing_is_constrained(regression):
    model, _, covariance = regression
    ours, theirs = LaplaceApproximation.fit(model), of_pymc(model)
    # find_MAP stops when its gradient is small, not zero: a Newton step from there says by how
    # much it is off, exactly so on a normal density.
    missing = covariance @ gradient_at(model, theirs.point)
    np.testing.assert_allclose(theirs.mean + missing, ours.mean, atol=1e-7)
    assert np.abs(missing).max() < 1e-4
    np.testing.assert_allclose(theirs.covariance, ours.covariance, rtol=1e-6, atol=1e-9)


def test_pymc_agrees_on_a_density_that_is_not_normal():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=2)
        pm.Poisson("y", pm.math.exp(x[0] + np.array([0.0, 1.0]) * x[1]), observed=[3, 9])
    ours, theirs = LaplaceApproximation.fit(model), of_pymc(model)
    missing = ours.covariance @ gradient_at(model, theirs.point)
    size = np.abs(missing).max()
    # Newton's error is of the order of the square of its step.
    np.testing.assert_allclose(theirs.mean + missing, ours.mean, atol=1e-7 + 10 * size**2)
    np.testing.assert_allclose(theirs.covariance, ours.covariance, atol=1e-6 + 10 * size)


@pytest.fixture(scope="module")
def rate_model(module_without_compiler):
    """A Gamma prior with Poisson counts: the posterior of the rate is Gamma(shape, rate)."""
    counts = [4, 7, 3]
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2.0, 1.0)
        pm.Poisson("counts", rate, observed=counts)
    return model, 2.0 + sum(counts), 1.0 + len(counts)


def test_a_constrained_mode_is_that_of_the_density_that_is_sampled(rate_model):
    model, shape, rate = rate_model
    found = LaplaceApproximation.fit(model)
    assert list(found.point) == ["rate_log__"]
    assert gradient_at(model, found.point) == pytest.approx(0.0, abs=1e-6)
    # log of a Gamma variable: mode log(shape / rate), precision there shape.
    assert found.mean[0] == pytest.approx(np.log(shape / rate), abs=1e-7)
    assert found.covariance[0, 0] == pytest.approx(1 / shape, rel=1e-7)


def test_pymc_takes_mode_and_curvature_from_two_densities(rate_model):
    model, shape, rate = rate_model
    found = of_pymc(model)
    # The mode on the rate's own scale, Jacobian left out …
    assert found.mean[0] == pytest.approx(np.log((shape - 1) / rate), abs=1e-4)
    # … where the density that is sampled still rises, by the derivative of log rate's Jacobian.
    assert gradient_at(model, found.point) == pytest.approx(1.0, abs=1e-3)
    # And the curvature of the sampled density at that other point.
    assert found.covariance[0, 0] == pytest.approx(1 / (shape - 1), rel=1e-3)


def test_discrete_variables_keep_the_values_given():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        pm.Normal("x", 3.0 * k, 1.0)
    for chosen in (0, 1):
        found = LaplaceApproximation.fit(model, initvals={"k": chosen, "x": 1.0})
        assert found.mean == pytest.approx([3.0 * chosen], abs=1e-4)


def test_a_model_without_continuous_variables():
    with pm.Model() as model:
        pm.Categorical("k", [0.5, 0.5])
    with pytest.raises(ValueError, match="model: it has no continuous free variable"):
        LaplaceApproximation.fit(model)


# -- failures are named -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_modes(module_without_compiler):
    """y ~ Normal(x², 0.5) at y = 4, with a prior that prefers x near 2 to x near -2."""
    with pm.Model() as model:
        tilt = pm.Data("tilt", 0.0)
        x = pm.Normal("x", tilt, 3.0)
        pm.Normal("y", x**2, 0.5, observed=4.0)
    return model, search_of(model, [x])


def test_a_saddle_is_named_and_its_precision_mended(two_modes):
    _, search = two_modes
    modes = search([[0.0]])
    assert modes.mean[0, 0] == 0.0
    assert modes.status == (ModeStatus.INDEFINITE,)
    assert modes.troubles() == {"mode search: indefinite": 1}
    np.linalg.cholesky(modes.precision[0])
    assert np.isfinite(modes.log_evidence).all()


def test_several_starts_keep_the_highest_mode(two_modes):
    model, search = two_modes
    for tilt, highest in ((1.0, 2.0), (-1.0, -2.0)):
        model["tilt"].set_value(tilt)
        for starts in ([[-3.0], [3.0]], [[3.0], [0.0], [-3.0]]):
            modes = search(starts)
            assert modes.mean[0, 0] == pytest.approx(highest, abs=0.1)
            assert modes.status == (ModeStatus.CONVERGED,)
        assert search([[-highest]]).mean[0, 0] == pytest.approx(-highest, abs=0.1)
        # Starts of each class of its own.
        assert search([[[-3.0], [3.0]]]).mean[0, 0] == pytest.approx(highest, abs=0.1)
    model["tilt"].set_value(0.0)


@pytest.fixture(scope="module")
def half_line(module_without_compiler):
    """A density that is zero below 1, and not a number below -1."""
    with pm.Model() as model:
        x = pm.Normal("x", 3.0, 1.0)
        pm.Potential("bound", pm.math.switch(x < 1, -np.inf, 0.0) + 0.0 * pm.math.sqrt(x + 1))
    return search_of(model, [x])


@pytest.mark.parametrize("start", [0.0, -2.0], ids=["zero", "not a number"])
def test_a_start_without_density_is_named(half_line, start):
    modes = half_line([[start]])
    assert modes.status == (ModeStatus.NO_DENSITY,)
    assert modes.troubles() == {"mode search: no density": 1}
    assert modes.mean[0, 0] == start
    np.linalg.cholesky(modes.precision[0])


def test_one_start_with_density_is_enough(half_line):
    modes = half_line([[0.0], [-2.0], [1.5]])
    assert modes.status == (ModeStatus.CONVERGED,)
    assert modes.mean[0, 0] == pytest.approx(3.0, abs=1e-4)


def test_a_search_that_ran_out_of_iterations_is_named():
    family = SkewedMixture()
    settings = {"latents": family.latents, "class_index": family.class_index}
    modes = search_of(family.model, max_iterations=2, **settings)([[-4.0]])
    assert modes.status == (ModeStatus.NOT_CONVERGED,) * N_CLASSES
    assert modes.troubles() == {"mode search: not converged": N_CLASSES}
    assert (modes.n_iterations == 2).all()


@pytest.mark.parametrize(
    ("behind", "status", "counted"),
    [
        (0.0, ModeStatus.NOT_CONVERGED, True),
        (19.0, ModeStatus.INDEFINITE, True),
        (21.0, ModeStatus.NOT_CONVERGED, False),
        # Without density or evidence nobody knows how far behind a class is.
        (np.inf, ModeStatus.NO_DENSITY, True),
        (np.nan, ModeStatus.NO_DENSITY, True),
        (0.0, ModeStatus.OUT_OF_RACE, False),
        (0.0, ModeStatus.CONVERGED, False),
    ],
)
def test_troubles_are_counted_where_a_class_matters(behind, status, counted):
    modes = Modes(
        mean=np.zeros((2, 1)),
        precision=np.ones((2, 1, 1)),
        factors=np.ones((2, 1, 1)),
        log_density=np.array([-100.0, -100.0 - behind]),
        gradient_norm=np.zeros(2),
        n_iterations=np.zeros(2, dtype=int),
        status=(ModeStatus.CONVERGED, status),
    )
    name = f"mode search: {status.name.lower().replace('_', ' ')}"
    assert modes.troubles() == ({name: 1} if counted else {})


def test_a_large_constant_does_not_hide_convergence():
    # Near the mode a step gains less than the rounding of the density's value, 1e-8 of 1e8.
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=3)
        pm.Poisson("y", pm.math.exp(x), observed=[3, 0, 200])
        pm.Potential("constant", pm.math.constant(1e8, dtype="float64"))
    found = LaplaceApproximation.fit(model, initvals={"x": np.array([-3.0, 2.0, 4.0])})
    assert found.status is ModeStatus.CONVERGED
    assert np.abs(gradient_at(model, found.point)).max() < 1e-3


# -- Gauss-Newton ------------------------------------------------------------------------------


def test_gauss_newton_finds_the_same_modes_with_its_own_precision():
    family = SkewedMixture()
    v = family.values
    with family.model as model:
        level = family.latents[0]
        precision = 1 / model["spread"][family.class_index] ** 2
        gauss_newton = (precision + (pm.math.exp(level) / model["noise"]) ** 2).reshape((1, 1))
    density = ClassDensity(model, family.class_index, family.latents)
    plain = ModeSearch(density, tolerance=1e-14)(np.array([[0.0]]), {})
    # At 3 the Hessian is positive definite, at -1 it is not, and the precision given always is.
    for start in (3.0, -1.0):
        found = ModeSearch(density, gauss_newton, tolerance=1e-14, max_iterations=200)(
            np.array([[start]]), {}
        )
        assert found.status == (ModeStatus.CONVERGED,) * N_CLASSES
        np.testing.assert_allclose(found.mean, plain.mean, atol=1e-6)
        expected = 1 / v["spread"] ** 2 + np.exp(2 * found.mean[:, 0]) / v["noise"] ** 2
        np.testing.assert_allclose(found.precision[:, 0, 0], expected, rtol=1e-9)
        assert not np.allclose(found.precision, plain.precision, rtol=0.01)


# -- the race ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def racing(module_without_compiler):
    """Two classes, the second of them far from the data; two modes in each."""
    with pm.Model() as model:
        distance = pm.Data("distance", 30.0)
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 0.5 + distance * k, 1.0)
        pm.Normal("y", x**2, 0.5, observed=4.0)
    density = ClassDensity(model, k, [x])
    return model, {
        "plain": ModeSearch(density),
        "race": ModeSearch(density, race=Race(n_iterations=4, margins=(50.0,))),
        "endless": ModeSearch(density, race=Race(n_iterations=4, margins=(np.inf,))),
    }


def test_a_class_far_behind_leaves_the_race(racing):
    _, searches = racing
    starts = np.array([[-3.0], [3.0]])
    plain, race = (searches[name](starts, {}) for name in ("plain", "race"))
    assert plain.log_density[1] < plain.log_density[0] - 100
    assert race.status == (ModeStatus.CONVERGED, ModeStatus.OUT_OF_RACE)
    # That it stopped was asked for: no trouble, and still a usable pseudo-prior.
    assert race.troubles() == {}
    np.linalg.cholesky(race.precision)
    assert race.mean[0] == pytest.approx(plain.mean[0], abs=1e-4)
    assert race.mean[0, 0] == pytest.approx(2.0, abs=0.1)
    assert race.n_iterations[1] == 4


def test_a_race_without_margin_ends_where_the_searches_end(racing):
    model, searches = racing
    starts = np.array([[-3.0], [3.0]])
    model["distance"].set_value(1.0)
    plain, race, endless = (searches[name](starts, {}) for name in ("plain", "race", "endless"))
    model["distance"].set_value(30.0)
    assert plain.status == race.status == endless.status == (ModeStatus.CONVERGED,) * 2
    for found in (race, endless):
        np.testing.assert_allclose(found.mean, plain.mean, atol=1e-4)
        np.testing.assert_allclose(found.precision, plain.precision, rtol=1e-3)


def test_a_race_without_density_anywhere(half_line):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0 * k, 1.0)
        pm.Potential("nowhere", pm.math.switch(x < 9, -np.inf, 0.0))
    search = search_of(model, [x], k, race=Race())
    assert search([[0.0]]).status == (ModeStatus.NO_DENSITY,) * 2


# -- settings, and the algebra below ---------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_iterations": 0}, "max_iterations: got 0; give at least 1"),
        ({"tolerance": 0.0}, "tolerance: got 0.0; give a positive number"),
        ({"tolerance": float("nan")}, "tolerance: got nan; give a positive number"),
    ],
)
def test_settings_of_a_search_that_are_refused(settings, message):
    family = SkewedMixture()
    density = ClassDensity(family.model, family.class_index, family.latents)
    with pytest.raises(ValueError, match=message):
        ModeSearch(density, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_iterations": 0}, "n_iterations: got 0; give at least 1"),
        ({"margins": (100.0, -1.0)}, r"margins: got \(100.0, -1.0\); give at least one, positive"),
        ({"margins": ()}, r"margins: got \(\); give at least one, positive"),
        ({"margins": 100.0}, r"margins: got 100.0; give a tuple, one for each round"),
        ({"trust": -1.0}, "trust: got -1.0; give a number, or 0 for none"),
    ],
)
def test_settings_of_a_race_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Race(**settings)


def test_a_positive_definite_matrix_is_left_as_it_is(rng):
    factor = rng.normal(size=(4, 4))
    matrix = factor @ factor.T + 0.1 * np.eye(4)
    found = positive_definite(matrix)
    assert not found.ridged
    np.testing.assert_allclose(found.matrix, matrix, rtol=1e-14)
    np.testing.assert_allclose(found.factor, np.linalg.cholesky(matrix), rtol=1e-12)


@pytest.mark.parametrize("smallest", [-1e-7, -1e-3, -5.0])
def test_the_ridge_is_as_small_as_its_sequence_allows(rng, smallest):
    basis, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    matrix = basis @ np.diag([smallest, 0.5, 1.0, 2.0]) @ basis.T
    found = positive_definite(matrix)
    assert found.ridged
    np.testing.assert_allclose(found.factor @ found.factor.T, found.matrix, atol=1e-12)
    ridge = np.diagonal(found.matrix - matrix)
    np.testing.assert_allclose(ridge, ridge[0], rtol=1e-6)
    assert ridge[0] > -smallest
    # The sequence goes up in tens, from a millionth of the largest diagonal element.
    assert ridge[0] <= max(10.0 * -smallest, 1e-6 * np.diagonal(matrix).max()) * 1.001


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_precision_that_says_nothing_becomes_one_that_can_be_used(value):
    found = positive_definite(np.full((2, 2), value))
    assert found.ridged
    np.testing.assert_allclose(found.factor, np.linalg.cholesky(found.matrix), rtol=1e-12)


def test_square_roots_of_precisions(rng):
    factor = rng.normal(size=(3, 4, 4))
    precision = factor @ np.swapaxes(factor, 1, 2) + np.eye(4)
    scale, whiten = square_roots(cholesky_factors(precision))
    covariance = scale @ np.swapaxes(scale, 1, 2)
    np.testing.assert_allclose(covariance @ precision, np.tile(np.eye(4), (3, 1, 1)), atol=1e-12)
    np.testing.assert_allclose(whiten @ scale, np.tile(np.eye(4), (3, 1, 1)), atol=1e-12)


def test_the_mode_of_a_constrained_class_density_has_no_gradient():
    family = ScaledMixture()
    density = ClassDensity(family.model, family.class_index, family.latents)
    modes = ModeSearch(density, tolerance=1e-14)(np.zeros((1, 3)), {})
    gradient = family.model.compile_dlogp(vars=list(family.latents), jacobian=True)
    for k in range(N_CLASSES):
        point = density.unravel(modes.mean[k]) | {"class_index": np.asarray(k)}
        # The expected gain gᵀ P⁻¹ g / 2 of a further step was below 1e-14.
        np.testing.assert_allclose(gradient(point), 0.0, atol=1e-6)
        assert modes.log_density[k] == pytest.approx(family.log_density(k, modes.mean[k]))


def test_a_search_far_from_its_mode_does_not_lose_the_race():
    """Counts of fifty from log-rates around 0 and around 4: five steps do not reach the mode."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", pt.constant([4.0, 0.0])[k], 0.5, shape=6)
        pm.Poisson("y", pt.exp(x), observed=np.full(6, 50))
    density = ClassDensity(model, k, [x])
    # class 0 starts where its search takes long, class 1 at its mode
    at_mode = ModeSearch(density)(np.full((1, 6), 3.0), {}).mean
    starts = np.stack([np.full((1, 6), -6.0), at_mode[1:]])
    slow = ModeSearch(density, race=Race(n_iterations=2, margins=(1.0,)))
    found, expected = slow(starts, {}), ModeSearch(density)(starts, {})
    assert expected.log_density[0] > expected.log_density[1] + 10
    assert found.status[0] is ModeStatus.CONVERGED
    np.testing.assert_allclose(found.log_density[0], expected.log_density[0])


@pytest.mark.parametrize("kind", ["kink", "bound"])
def test_a_kink_or_a_bound_at_the_mode_is_no_curvature(kind):
    """Differences of gradients across it would be as large as they are close."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.3, 0.7])
        if kind == "kink":
            x = pm.Laplace("x", 0.0, 0.1)
        else:
            x = pm.Exponential("x", 1.0, default_transform=None)
        pm.Normal("y", x + k, 1.0, observed=0.3)
    modes = ModeSearch(ClassDensity(model, k, [x]))(np.array([[0.05]]), {})
    np.testing.assert_allclose(modes.mean.ravel(), 0.0, atol=1e-4)
    np.testing.assert_allclose(modes.precision.ravel(), 1.0, rtol=1e-6)
