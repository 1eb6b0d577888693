"""A smooth residual of each observation's own, summed out of the density."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from pymc_mcoem import TemplateMixture
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.datasets import simulate_images
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.esteps import CarlinChibBurst, LaplaceGaussian
from pymc_mcoem.templates.noise import shared_factor, smooth_columns

SHAPE = (10, 9)


def images_mixture(n_classes=3, **options):
    return TemplateMixture.for_images(SHAPE, n_classes, **{"smooth_residual": 0.8, **options})


def with_templates(mixture, rng):
    """Return parameters of different templates, weights and noise, with hardly any warps."""
    theta = mixture.model_parameters()
    theta["templates"] = 0.3 * rng.normal(size=theta["templates"].shape)
    theta["weights"] = np.array([0.5, 0.2, 0.3])
    theta["noise_variance"] = rng.uniform(0.1, 0.5, size=theta["noise_variance"].shape)
    theta["deformation_variance"] = np.full(3, 1e-10)
    theta["rigid_variance"] = np.full((3, 4), 1e-10)
    return theta


def means_of(mixture, theta):
    """Return templates at the pixels, (n_classes, n_points, n_channels)."""
    settings = mixture.settings
    design = settings.basis.matrix(settings.points)
    coefficients = np.reshape(theta["templates"], (3, -1, settings.basis.n_basis))
    return np.einsum("pl,jcl->jpc", design, coefficients)


def evidence(mixture, theta, y):
    """Return log P(class, y) where nothing is warped."""
    settings = mixture.settings
    columns = 0.8 * smooth_columns(settings.points)
    covariance = np.eye(len(columns)) + columns @ columns.T
    found = np.log(theta["weights"])
    means = means_of(mixture, theta)
    for c, values in enumerate(y.reshape(len(columns), -1).T):
        seen = ~np.isnan(values)
        own = np.ravel(theta["noise_variance"])[c] * covariance[np.ix_(seen, seen)]
        found = found + [
            multivariate_normal.logpdf(values[seen], mean[seen, c], own) for mean in means
        ]
    return found


def observation(mixture, theta, rng):
    """Return values near halfway between two templates, some of them missing."""
    between = means_of(mixture, theta)[:2].mean(axis=0)
    found = (between + 0.5 * rng.normal(size=between.shape)).reshape(
        mixture.settings.observation_shape
    )
    found.flat[[3, 17, 44]] = np.nan
    return found


def test_a_factor_is_the_inverse_of_what_points_share(rng):
    columns, mask = rng.normal(size=(12, 5)), (rng.random(12) < 0.7) * 1.0
    found, log_determinant = shared_factor(columns, mask)
    seen = mask > 0
    covariance = np.eye(int(seen.sum())) + (columns @ columns.T)[np.ix_(seen, seen)]
    expected = np.zeros((12, 12))
    expected[np.ix_(seen, seen)] = np.linalg.inv(covariance)
    np.testing.assert_allclose(np.diag(mask) - found.T @ found, expected, atol=1e-12)
    assert log_determinant == pytest.approx(0.5 * np.linalg.slogdet(covariance)[1])


@pytest.mark.parametrize("channels", [None, 2])
def test_density_is_that_of_the_sum_of_noise_and_a_residual(channels, rng):
    mixture = images_mixture(channels=channels)
    theta = with_templates(mixture, rng)
    y, deformation = observation(mixture, theta, rng), mixture.settings.deformation
    logp = mixture.condition(y, theta).compile_logp(mode=interpreted_mode())
    # nothing moves, so the prior of the warp is at its mode, the same in all classes
    found = [float(logp({"class_index": j, "deformation": deformation.mean})) for j in range(3)]
    expected = evidence(mixture, theta, y)
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-7)


@pytest.mark.parametrize("channels", [None, 2])
def test_bursts_find_the_exact_class_probabilities(channels, rng):
    mixture = images_mixture(channels=channels)
    theta = with_templates(mixture, rng)
    y = observation(mixture, theta, rng)
    exact = evidence(mixture, theta, y)
    exact = np.exp(exact - logsumexp(exact))
    assert 0.02 < np.sort(exact)[1] < np.sort(exact)[2] < 0.98
    values, n = mixture.check_parameters(theta), 4_000
    burst, laplace = (
        compiled_for(mixture, each).class_probability(
            mixture.encode(y), values, rng, draws=n, tune=20
        )
        for each in (CarlinChibBurst(), LaplaceGaussian())
    )
    np.testing.assert_allclose(laplace, exact, atol=1e-4)
    # pseudo-priors are exact where nothing is warped, so that draws are independent
    assert (np.abs(burst - exact) < 4.0 * np.sqrt(exact * (1.0 - exact) / n) + 1e-6).all()


def z_of_noise(drawn_with, read_with, rng, n=150):
    """Return by how many standard errors squares of noise are away from what θ says."""
    theta = with_templates(images_mixture(), rng)
    theta["deformation_variance"], theta["rigid_variance"] = np.full(3, 1e-3), np.full((3, 4), 1e-3)
    drawn = simulate_images(
        images_mixture(smooth_residual=drawn_with), theta, n, random_seed=7
    ).images.values
    mixture = images_mixture(smooth_residual=read_with)
    e_step, values = compiled_for(mixture, CarlinChibBurst()), mixture.check_parameters(theta)
    state, found = e_step.initial_state(), []
    for image in drawn:
        s = e_step(mixture.encode(image), values, rng, state, draws=40, tune=20).statistics
        explained = np.einsum(
            "jl,jlm,jm->j", theta["templates"], s["template_gram"], theta["templates"]
        )
        along = np.einsum("jl,jl->j", theta["templates"], s["template_projection"])
        found.append((s["squared_norm"] - 2.0 * along + explained).sum())
    expected = theta["noise_variance"] * drawn[0].size
    return (np.mean(found) - expected) / (np.std(found) / np.sqrt(n))


def test_at_the_truth_statistics_are_the_noise(rng):
    """E[E[|y − Φα|² | y]], measured by the precision of what points share, is σ² n."""
    assert abs(z_of_noise(0.8, 0.8, rng)) < 4.0


def test_another_residual_than_images_have_is_seen(rng):
    assert abs(z_of_noise(0.8, 0.3, rng)) > 4.0


def test_images_are_drawn_with_their_residuals(rng):
    mixture = images_mixture()
    theta = {
        **with_templates(mixture, rng),
        "templates": np.zeros((3, mixture.settings.basis.n_basis)),
    }
    n = 3_000
    drawn = simulate_images(mixture, theta, n, random_seed=3).images.values.reshape(n, -1)
    columns = 0.8 * smooth_columns(mixture.settings.points)
    expected = theta["noise_variance"] * (np.eye(len(columns)) + columns @ columns.T)
    size = np.sqrt(np.diag(expected))
    error = np.sqrt((np.outer(size, size) ** 2 + expected**2) / n)
    assert (np.abs(drawn.T @ drawn / n - expected) < 5.5 * error).all()


@pytest.mark.parametrize("given", [0.0, -0.3, True, np.inf, "some", 1e9])
def test_deviations_are_positive(given):
    with pytest.raises(ValueError, match="smooth_residual is"):
        images_mixture(smooth_residual=given)


@pytest.mark.parametrize(
    "others",
    [
        {"offset": 2.0},
        {"noise_correlation": np.eye(90)},
        {"n_factors": 1},
    ],
    ids=lambda others: next(iter(others)),
)
def test_what_does_not_go_with_it_is_named(others):
    with pytest.raises(ValueError, match="does not go with"):
        images_mixture(**others)
