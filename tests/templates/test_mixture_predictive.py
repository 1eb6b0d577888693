"""Draws and pointwise log-likelihoods, missing pixels included."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

from pymc_mcoem.templates import TemplateMixture, drop_missing_points, template_images
from tests.helpers.image_oracle import ImageOracle

QUICK = {"mode": "FAST_COMPILE"}
CORRELATION = 0.6 ** np.abs(np.subtract.outer(np.arange(25), np.arange(25)))


def mixture_with_parameters(**options):
    rng = np.random.default_rng(5)
    mixture = TemplateMixture.for_images(
        (5, 5), 2, n_landmarks=2, rigid_variance=0.02, scale=(10.0, 8.0), **options
    )
    parameters = mixture.model_parameters()
    parameters |= {
        "weights": np.array([0.7, 0.3]),
        "templates": rng.normal(size=(2, 25)),
        "noise_variance": np.array(0.04),
        "deformation_variance": np.array([0.01, 0.09]),
    }
    return mixture, parameters


@pytest.fixture(scope="module")
def image():
    rng = np.random.default_rng(6)
    mixture, parameters = mixture_with_parameters()
    image = template_images(parameters, mixture).values[0] + 0.2 * rng.normal(size=(5, 5))
    image[0, 1] = image[3, 2:4] = np.nan
    return image


@pytest.fixture(scope="module")
def conditioned(image):
    mixture, parameters = mixture_with_parameters()
    return mixture.condition(image, parameters), parameters


@pytest.fixture(scope="module")
def prior(conditioned):
    model, _ = conditioned
    with model:
        return pm.sample_prior_predictive(600, random_seed=1, compile_kwargs=QUICK)


@pytest.fixture(scope="module")
def posterior(prior):
    """Stand-in for posterior draws: near the truth, as wide as a posterior would be."""
    rng = np.random.default_rng(7)
    draws = prior["prior"].to_dataset().copy(deep=True)
    draws["class_index"][:] = 0
    draws["scale"][:] = 1.25 * np.exp(0.005 * rng.normal(size=(1, 600)))
    draws["deformation"][:] = ImageOracle(5, 2, 0.02).mean + 0.005 * rng.normal(size=(1, 600, 14))
    return xr.DataTree.from_dict(
        {"posterior": draws, "constant_data": prior["constant_data"].to_dataset()}
    )


def test_prior_draws_have_the_moments_of_the_prior(prior, conditioned):
    _, parameters = conditioned
    draws = prior["prior"].to_dataset().isel(chain=0)
    index = draws["class_index"].values
    assert index.mean() == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / index.size))
    scale = draws["scale"].values
    assert scale.mean() == pytest.approx(10 / 8, abs=5 * np.sqrt(10 / 64 / index.size))
    oracle = ImageOracle(5, 2, 0.02)
    for label in range(2):
        beta = draws["deformation"].values[index == label]
        covariance = oracle.deformation_covariance(parameters, label)
        whitened = (beta - oracle.mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
        error = 5 / np.sqrt(len(beta))
        np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=error)
        np.testing.assert_allclose(
            np.cov(whitened.T), np.eye(14), atol=1.6 * error, err_msg=f"class {label}"
        )


def test_prior_predictive_residuals_are_noise(prior, conditioned):
    _, parameters = conditioned
    draws = prior["prior"].to_dataset().isel(chain=0)
    observation = prior["prior_predictive"]["observation"].isel(chain=0)
    assert observation.dims == ("draw", "row", "column")
    oracle = ImageOracle(5, 2, 0.02)
    residuals = np.array(
        [
            observation.values[draw].ravel()
            - draws["scale"].values[draw]
            * oracle.design(draws["deformation"].values[draw])
            @ parameters["templates"][draws["class_index"].values[draw]]
            for draw in range(0, 600, 3)
        ]
    )
    variances = residuals.var(axis=0) / 0.04
    # missing pixels are drawn like the others
    np.testing.assert_allclose(variances, 1.0, atol=5 * np.sqrt(2 / 200))
    assert variances.mean() == pytest.approx(1.0, abs=5 * np.sqrt(2 / residuals.size))
    np.testing.assert_allclose(residuals.mean(axis=0), 0.0, atol=5 * 0.2 / np.sqrt(200))


def test_posterior_predictive_draws_missing_pixels_too(conditioned, posterior):
    model, _ = conditioned
    with model:
        drawn = pm.sample_posterior_predictive(
            posterior, random_seed=2, progressbar=False, compile_kwargs=QUICK
        )
    observation = drawn["posterior_predictive"]["observation"]
    assert observation.dims == ("chain", "draw", "row", "column")
    assert np.isfinite(observation).all()
    assert (observation.std(("chain", "draw")) > 0.15).all()


@pytest.fixture(scope="module")
def with_likelihood(conditioned, posterior):
    model, _ = conditioned
    with model:
        return pm.compute_log_likelihood(posterior.copy(), progressbar=False, compile_kwargs=QUICK)


def test_log_likelihood_is_pointwise_and_leaves_missing_pixels_out(
    with_likelihood, conditioned, image
):
    _, parameters = conditioned
    likelihood = with_likelihood["log_likelihood"]["observation"]
    assert likelihood.dims == ("chain", "draw", "row", "column")
    assert (np.abs(likelihood.values[..., np.isnan(image)]) < 1e-100).all()
    oracle = ImageOracle(5, 2, 0.02)
    draws = with_likelihood["posterior"].to_dataset().isel(chain=0)
    for draw in range(5):
        expected = oracle.log_likelihood(
            parameters,
            int(draws["class_index"][draw]),
            draws["deformation"].values[draw],
            float(draws["scale"][draw]),
            image,
        )
        assert float(likelihood[0, draw].sum()) == pytest.approx(expected, rel=1e-9)


def test_loo_works_with_missing_pixels(with_likelihood, image):
    everything = az.loo(with_likelihood, pointwise=True)
    elpd = everything.elpd_i.values.reshape(5, 5)
    assert np.isfinite(elpd).all()
    np.testing.assert_allclose(elpd[np.isnan(image)], 0.0, atol=1e-12)
    seen = drop_missing_points(with_likelihood)
    assert seen["log_likelihood"]["observation"].shape == (1, 600, 22)
    np.testing.assert_array_equal(
        seen["log_likelihood"]["observed_point"], np.flatnonzero(~np.isnan(image))
    )
    observed = az.loo(seen)
    assert observed.elpd == pytest.approx(everything.elpd)
    assert observed.n_data_points == 22


def test_drop_missing_points_says_what_it_needs(posterior):
    with pytest.raises(ValueError, match="compute_log_likelihood"):
        drop_missing_points(posterior)


def test_correlated_noise_is_drawn_correlated(image, rng):
    mixture, parameters = mixture_with_parameters(noise_correlation=CORRELATION)
    parameters["templates"] = np.zeros((2, 25))
    model = mixture.condition(image, parameters)
    with model:
        prior = pm.sample_prior_predictive(1000, random_seed=3, compile_kwargs=QUICK)
    draws = prior["prior_predictive"]["observation"].values.reshape(1000, 25)
    found = np.cov(draws.T) / 0.04
    np.testing.assert_allclose(found, CORRELATION, atol=5 * np.sqrt(2 / 1000))
    posterior = xr.DataTree.from_dict(
        {
            "posterior": prior["prior"].to_dataset().isel(draw=slice(20)),
            "constant_data": prior["constant_data"].to_dataset(),
        }
    )
    with model:
        likelihood = pm.compute_log_likelihood(posterior, progressbar=False, compile_kwargs=QUICK)
        drawn = pm.sample_posterior_predictive(
            posterior, random_seed=4, progressbar=False, compile_kwargs=QUICK
        )
    assert likelihood["log_likelihood"]["observation"].shape == (1, 20)
    assert drawn["posterior_predictive"]["observation"].shape == (1, 20, 5, 5)
    with pytest.raises(ValueError, match="no pointwise log-likelihood"):
        drop_missing_points(likelihood)
