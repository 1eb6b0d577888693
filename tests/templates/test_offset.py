"""A constant of each observation's own, summed out of the density."""

import numpy as np
import pytest
import xarray as xr
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.metrics import adjusted_rand_score

from pymc_mcoem import OnlineEM, TemplateMixture, template_images
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.datasets import simulate_images
from pymc_mcoem.templates import TemplatePriors
from pymc_mcoem.templates.bases.bands import symmetric_bands
from pymc_mcoem.templates.maximization import maximize_templates
from pymc_mcoem.templates.starts import template_precision

TIMES = np.linspace(0.0, 1.0, 25)


def curves_mixture(n_classes=2, **options):
    settings = {"coefficients": "real", "n_landmarks": 20, "n_warp_kernels": 6, "offset": 12.0}
    return TemplateMixture.for_curves(TIMES, n_classes, **{**settings, **options})


@pytest.mark.parametrize("channels", [None, 2])
@pytest.mark.parametrize("is_correlated", [False, True])
def test_density_is_that_of_the_sum_of_noise_and_a_constant(channels, is_correlated, rng):
    distance = np.abs(np.subtract.outer(TIMES, TIMES))
    correlation = np.exp(-distance / 0.1) if is_correlated else np.eye(25)
    given = correlation if is_correlated else None
    mixture = curves_mixture(scale=None, channels=channels, noise_correlation=given, offset=3.0)
    settings, theta = mixture.settings, mixture.model_parameters()
    theta["templates"] = rng.normal(size=theta["templates"].shape)
    theta["noise_variance"] = rng.uniform(0.1, 0.5, size=theta["noise_variance"].shape)
    y = rng.normal(size=settings.observation_shape)
    y[4:7] = y.ravel()[0] = np.nan
    beta = settings.deformation.mean + 0.1 * rng.normal(size=6)
    design = settings.basis.matrix(settings.deformation.warp(settings.points, beta).eval())
    mean = design @ theta["templates"][1].reshape(-1, settings.basis.n_basis).T
    covariance = theta["deformation_variance"][1] * settings.deformation.covariance
    expected = multivariate_normal.logpdf(beta, settings.deformation.mean, covariance)
    expected += np.log(theta["weights"][1])
    for c, values in enumerate(y.reshape(25, -1).T):
        seen = ~np.isnan(values)
        joint = np.ravel(theta["noise_variance"])[c] * (correlation + 9.0)[np.ix_(seen, seen)]
        expected += multivariate_normal.logpdf(values[seen], mean[seen, c], joint)
    logp = mixture.condition(y, theta).compile_logp(mode=interpreted_mode())
    assert logp({"class_index": 1, "deformation": beta}) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("channels", [None, 2])
def test_curves_are_drawn_without_a_word(channels, caplog):
    mixture = curves_mixture(channels=channels, offset=3.0)
    theta = {**mixture.model_parameters(), "deformation_variance": np.full(2, 1e-12)}
    drawn = simulate_images(mixture, theta, 200, random_seed=1).images.values.reshape(200, 25, -1)
    assert not caplog.records
    noise = np.mean(theta["noise_variance"])
    # what differs between neighboring points is noise alone, and level changes with the offsets
    assert (drawn.mean(axis=1).var(axis=0, ddof=1) > 4.0 * noise).all()
    assert np.diff(drawn, axis=1).var() < 4.0 * noise


def recordings(n, rng):
    """Return curves of two kinds that begin anywhere, the kinds, and where they begin."""
    kinds = rng.integers(2, size=n)
    middles = np.array([0.35, 0.6])[kinds] + 0.02 * rng.normal(size=n)
    heights = 1.0 + 0.1 * rng.normal(size=n)
    bumps = np.exp(-np.square((TIMES - middles[:, None]) / 0.12))
    offsets = 0.5 * rng.normal(size=n)
    noise = 0.04 * rng.normal(size=bumps.shape)
    return heights[:, None] * bumps + offsets[:, None] + noise, kinds, offsets


def test_kinds_are_found_that_begin_anywhere(rng):
    curves, kinds, offsets = recordings(150, rng)
    curves[3, 4:8] = np.nan
    mixture = curves_mixture()
    em = OnlineEM(mixture, random_seed=1, progressbar=False).partial_fit(curves)
    found = mixture.register(curves[:50], em.parameters, draws=20, tune=10, progressbar=False)
    labels = found.class_probability.values.argmax(axis=1)
    assert adjusted_rand_score(kinds[:50], labels) > 0.95
    assert float(np.sqrt(em.parameters.noise_variance)) == pytest.approx(0.04, rel=0.15)
    templates = template_images(em.parameters, mixture).values
    np.testing.assert_allclose(np.ptp(templates, axis=1), 1.0, atol=0.1)
    aligned = found.aligned_mean_averaged.values
    for j in range(2):
        own = labels == j
        # up to what all constants of a class share, which the template has
        away = found.offset_mean_averaged.values[own] - offsets[:50][own]
        assert np.std(away) < 0.05
        assert np.nanmax(np.abs(aligned[own] - templates[j])) < 0.35
    assert (found.offset_sd_averaged > 0).all()


def test_constants_of_a_class_have_mean_zero_whatever_the_level(rng):
    curves, *_ = recordings(60, rng)
    found = []
    for level in (0.0, 30.0):
        mixture = curves_mixture(n_classes=1, scale=None, priors=TemplatePriors())
        em = OnlineEM(mixture, random_seed=1, n_start=60, progressbar=False)
        em.partial_fit(curves + level)
        found.append(template_images(em.parameters, mixture).values[0] - level)
    np.testing.assert_allclose(*found, atol=0.02)
    registered = mixture.register(
        curves + level, em.parameters, draws=20, tune=10, progressbar=False
    )
    assert abs(float(registered.offset_mean_averaged.mean())) < 0.1
    np.testing.assert_allclose(found[0].mean(), curves.mean(), atol=0.1)


@pytest.mark.parametrize("own_points", [None, 12])
def test_registered_constants_are_the_conditional_normal(own_points, rng):
    mixture = curves_mixture(own_points=own_points, offset=2.0, scale=None)
    theta = mixture.model_parameters()
    theta["templates"] = rng.normal(size=theta["templates"].shape)
    theta["noise_variance"] = np.array(0.3)
    # warps that hardly move anything, so that templates are known
    theta["deformation_variance"] = np.full(2, 1e-12)
    points = TIMES if own_points is None else np.sort(rng.uniform(0, 1, size=10))
    values = rng.normal(size=points.size)
    values[2] = np.nan
    given = values if own_points is None else (points, values)
    found = mixture.register(given, theta, draws=5, tune=5)
    settings = mixture.settings
    warped = settings.deformation.evaluate(points, settings.deformation.mean)
    seen = ~np.isnan(values)
    for j in range(2):
        mean = settings.basis.matrix(warped[:, None]) @ theta["templates"][j]
        covariance = 0.3 * (np.eye(seen.sum()) + 4.0)
        weights = np.linalg.solve(covariance, np.full(seen.sum(), 0.3 * 4.0))
        expected = weights @ (values - mean)[seen]
        assert float(found.offset_mean[j]) == pytest.approx(expected, abs=1e-4)
        variance = 0.3 * 4.0 * (1.0 - weights.sum())
        assert float(found.offset_sd[j]) == pytest.approx(np.sqrt(variance), rel=1e-3)
        shown = mixture.mean_design() @ theta["templates"][j] + expected
        np.testing.assert_allclose(found.template_mean[j], shown, atol=1e-3)
        np.testing.assert_allclose(np.square(found.predicted_sd[j]), 0.3 + variance, rtol=1e-3)


def test_offsets_of_channels_are_their_own(rng):
    mixture = curves_mixture(channels=["a", "b"])
    theta = mixture.model_parameters()
    found = mixture.register(
        rng.normal(size=(25, 2)) + np.array([5.0, -3.0]), theta, draws=5, tune=5
    )
    assert found.offset_mean.dims == ("class", "channel")
    np.testing.assert_allclose(found.offset_mean_averaged, [5.0, -3.0], atol=1.0)


def test_m_step_with_a_free_level_is_the_direct_maximum(rng):
    mixture = curves_mixture(n_classes=1, n_landmarks=6)
    priors = TemplatePriors(template_mean=0.3, template_strength=0.5)
    precision = template_precision(mixture.settings, priors, mixture.gram)
    assert np.linalg.eigvalsh(precision)[0] == pytest.approx(0.0, abs=1e-12)
    designs, n = rng.normal(size=(20, 9, 6)), 20
    values = designs @ rng.normal(size=6) + 0.3 * rng.normal(size=(20, 9))
    statistics = {
        "class_weight": np.ones(1),
        "template_projection": np.einsum("nsl,ns->l", designs, values)[None] / n,
        "template_gram": np.einsum("nsl,nsk->lk", designs, designs)[None] / n,
        "deformation_outer": np.eye(6)[None],
        "squared_norm": np.array([np.square(values).sum() / n]),
        "observed_points": np.array([9.0]),
    }
    found = maximize_templates(
        statistics,
        effective_size=n,
        priors=priors,
        gram=mixture.gram,
        base_covariance=np.eye(6),
        precision=symmetric_bands(precision, 5),
        n_uncounted=1,
    )

    def negative(x):
        alpha, variance = x[:6], np.exp(x[6])
        squares = np.square(values - designs @ alpha).sum() + 2 * priors.noise_rate
        squares += (alpha - 0.3) @ precision @ (alpha - 0.3)
        count = values.size + 5 + 2 * (priors.noise_shape + 1)
        return (squares / variance + count * np.log(variance)) / n

    best = minimize(negative, np.zeros(7), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(best.x[:6], found["templates"][0], atol=1e-5)
    assert np.exp(best.x[6]) == pytest.approx(float(found["noise_variance"]), rel=1e-5)


@pytest.mark.parametrize("offset", [0.0, -1.0, np.nan, "large", 1e4, True])
def test_other_offsets_are_refused(offset):
    with pytest.raises(ValueError, match="offset is"):
        curves_mixture(offset=offset)


def test_the_unit_of_curves_is_without_their_offsets(rng):
    curves = rng.normal(0.0, 0.1, size=(60, 12))
    away = curves + 50.0 * rng.normal(size=(60, 1))
    options = {"coefficients": "real", "n_landmarks": 8, "n_warp_kernels": 4, "offset": 500.0}
    points = {"time": np.linspace(0.0, 1.0, 12)}
    rates = [
        TemplateMixture.for_curves(
            xr.DataArray(each, points, ("curve", "time")), 2, **options
        ).priors.noise_rate
        for each in (curves, away)
    ]
    assert rates[1] == pytest.approx(rates[0], rel=1e-9)
