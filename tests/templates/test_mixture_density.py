"""The model's density, statistics and prior covariance against plain NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor
import pytest
from pytensor.graph.replace import clone_replace
from scipy.special import polygamma

from pymc_mcoem.templates import TemplateMixture
from tests.helpers.image_oracle import ImageOracle

SIDE, N_CLASSES, RIGID = 5, 3, 0.05
CORRELATION = 0.6 ** np.abs(np.subtract.outer(np.arange(25), np.arange(25)))
CASES = {
    "scaled": {},
    "scale": {"scale": (10.0, 8.0)},
    "diagonal": {"covariance": "diagonal"},
    "full": {"covariance": "full", "scale": (10.0, 8.0)},
    "noise-class": {"noise": "class"},
    "correlated": {"noise_correlation": CORRELATION, "scale": (10.0, 8.0)},
}


@dataclass
class Case:
    """A mixture with its oracle and parameters, its functions compiled when first asked for."""

    mixture: TemplateMixture
    oracle: ImageOracle
    parameters: dict

    @property
    def has_scale(self):
        return self.oracle.scale is not None

    def point(self, rng, index, spread=1.0):
        """Return (class index, β, λ) and the arguments of the compiled functions."""
        away = spread * rng.normal(size=self.oracle.mean.size) * 0.1
        beta, scale = self.oracle.mean + away, (np.exp(0.2 * rng.normal()) if self.has_scale else 1)
        return beta, scale, [np.array(index), beta, *([np.array(scale)] if self.has_scale else [])]

    def set(self, image):
        for name, value in {**self.mixture.encode(image), **self.parameters}.items():
            self.mixture.model.set_data(name, value)

    @cached_property
    def log_density(self):
        model = self.mixture.model
        values = [model.rvs_to_values[rv] for rv in model.free_RVs]
        return pytensor.function(values, model.logp(), mode="FAST_COMPILE")

    def log_density_at(self, arguments):
        index, beta, *scale = arguments
        return float(self.log_density(index, beta, *map(np.log, scale)))

    @cached_property
    def expressions(self):
        """Statistics, Gauss-Newton precision and prior covariance as one compiled function."""
        variables = {rv: rv.type() for rv in self.mixture.model.free_RVs}
        outputs = {
            **self.mixture.statistics,
            "gauss_newton": self.mixture.geometry.gauss_newton,
            "prior_covariance": self.mixture.geometry.prior_covariance,
        }
        function = pytensor.function(
            list(variables.values()),
            clone_replace(list(outputs.values()), variables),
            mode="FAST_COMPILE",
            on_unused_input="ignore",
        )

        def found(*arguments):
            values = dict(zip(outputs, function(*arguments), strict=True))
            gram = self.mixture.settings.basis.unpack_gram(values["template_gram"])
            return {**values, "template_gram": gram}

        return found


@pytest.fixture(scope="module", params=list(CASES))
def case(request):
    options = CASES[request.param]
    rng = np.random.default_rng(3)
    mixture = TemplateMixture.for_images(
        (SIDE, SIDE), N_CLASSES, rigid_variance=RIGID, rigid_weight=None, n_landmarks=2, **options
    )
    parameters = {
        "weights": np.array([0.5, 0.3, 0.2]),
        "templates": rng.normal(size=(N_CLASSES, SIDE**2)),
        "noise_variance": np.array([0.1, 0.2, 0.3]) if "noise" in options else np.array(0.1),
    }
    covariance = options.get("covariance", "scaled")
    if covariance == "full":
        roots = rng.normal(size=(N_CLASSES, 8, 8))
        parameters["deformation_covariance"] = 0.01 * (roots @ roots.transpose(0, 2, 1) + np.eye(8))
    else:
        shape = (N_CLASSES, 8) if covariance == "diagonal" else N_CLASSES
        parameters["deformation_variance"] = rng.uniform(0.01, 0.05, size=shape)
    oracle = ImageOracle(
        SIDE,
        2,
        RIGID,
        scale=options.get("scale"),
        correlation=options.get("noise_correlation"),
    )
    return Case(mixture, oracle, mixture.check_parameters(parameters))


def make_image(rng, missing):
    image = rng.normal(size=(SIDE, SIDE))
    if missing:
        image[rng.random(size=image.shape) < 0.4] = np.nan
    return image


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
def test_log_density_is_the_oracles(case, missing, rng):
    image = make_image(rng, missing)
    case.set(image)
    for index in range(N_CLASSES):
        beta, scale, arguments = case.point(rng, index)
        expected = case.oracle.log_likelihood(case.parameters, index, beta, scale, image)
        expected += case.oracle.log_prior(case.parameters, index, beta, scale)
        assert case.log_density_at(arguments) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
def test_statistics_are_the_oracles(case, missing, rng):
    image = make_image(rng, missing)
    case.set(image)
    beta, scale, arguments = case.point(rng, 1)
    found = case.expressions(*arguments)
    expected = case.oracle.statistics(beta, scale, image)
    assert set(expected) == set(case.mixture.statistics)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


def test_log_density_is_an_inner_product_with_the_statistics(case, rng):
    """Label ``exp_model``: θ meets the data through S alone."""
    image = make_image(rng, missing=True)
    case.set(image)
    theta = case.parameters
    constants = []
    for index in (0, 1, 2, 2):
        _, _, arguments = case.point(rng, index)
        s = case.expressions(*arguments)
        alpha = theta["templates"][index]
        variance = case.oracle.noise_variance(theta, index)
        covariance = case.oracle.deformation_covariance(theta, index)[6:, 6:]
        residual = (
            s["squared_norm"]
            - 2 * alpha @ s["template_projection"]
            + alpha @ s["template_gram"] @ alpha
        )
        total = (
            np.log(theta["weights"][index])
            - 0.5 * residual / variance
            - 0.5 * s["observed_points"] * np.log(variance)
            - 0.5 * np.trace(np.linalg.solve(covariance, s["deformation_outer"]))
            - 0.5 * np.linalg.slogdet(covariance)[1]
        )
        if case.has_scale:
            shape, rate = case.oracle.scale
            total += shape * s["log_scale"] - rate * s["scale"]
        # the rigid motion's own prior does not hold any parameter
        rigid = arguments[1][:6] - case.oracle.mean[:6]
        total -= 0.5 * rigid @ rigid / RIGID
        constants.append(case.log_density_at(arguments) - total)
    np.testing.assert_allclose(constants, constants[0], atol=1e-8)


def test_gauss_newton_is_positive_definite_anywhere(case, rng):
    case.set(make_image(rng, missing=True))
    for index in range(N_CLASSES):
        _, _, arguments = case.point(rng, index, spread=5.0)
        matrix = case.expressions(*arguments)["gauss_newton"]
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-8)
        assert np.linalg.eigvalsh(matrix)[0] > 0


def test_prior_covariance_is_that_of_the_class(case, rng):
    case.set(make_image(rng, missing=False))
    for index in range(N_CLASSES):
        _, _, arguments = case.point(rng, index)
        found = case.expressions(*arguments)["prior_covariance"]
        expected = case.oracle.deformation_covariance(case.parameters, index)
        np.testing.assert_allclose(found[:14, :14], expected, rtol=1e-12)
        if case.has_scale:
            assert found.shape == (15, 15)
            assert found[14, 14] == pytest.approx(polygamma(1, case.oracle.scale[0]))
            assert not found[14, :14].any()


def test_starts_fit_the_latents(case):
    size = sum(14 if rv.name == "deformation" else 1 for rv in case.mixture.latents)
    assert [rv.name for rv in case.mixture.latents] == ["deformation", "scale"][
        : 1 + case.has_scale
    ]
    assert case.mixture.geometry.starts.shape == (1, size)
    if case.has_scale:
        np.testing.assert_allclose(case.mixture.geometry.starts[:, -1], np.log(10 / 8))


def test_compiled_for_speed_is_the_same(rng):
    """The default mode rewrites the graph far more than the one of the tests above."""
    options = {"n_landmarks": 2, "rigid_variance": RIGID}
    mixture = TemplateMixture.for_images((SIDE, SIDE), 2, **options)
    image = make_image(rng, missing=True)
    parameters = mixture.model_parameters()
    parameters["templates"] = rng.normal(size=(2, 25))
    model = mixture.condition(image, parameters)
    fast = model.compile_logp()
    oracle = ImageOracle(SIDE, 2, RIGID)
    for index in range(2):
        beta = oracle.mean + 0.1 * rng.normal(size=14)
        expected = oracle.log_likelihood(parameters, index, beta, 1.0, image)
        expected += oracle.log_prior(parameters, index, beta, 1.0)
        point = {"class_index": np.array(index), "deformation": beta}
        assert float(fast(point)) == pytest.approx(expected, rel=1e-9)
