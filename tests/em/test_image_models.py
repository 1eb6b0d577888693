"""Bursts and online EM on image models: against another sampler, known truth, and themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.prior_covariance import PriorCovariance
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.schedules import BurstLength
from pymc_mcoem.templates import TemplateMixture, template_images
from tests.helpers.image_oracle import ImageOracle, design_matrix
from tests.helpers.independent_sampler import (
    ImagePosterior,
    burst_features,
    importance_sampling,
    simulate,
)
from tests.helpers.representatives import by_default
from tests.helpers.toy_runs import assert_same

SIDE = 8
BURST = CarlinChibBurst(within_class=RandomWalk(5))
#: A right burst is further off once in half a million comparisons (Student's t, 80 repeats
#: against 40 batches); there are 2,700 of them, most of them nearly the same as others.
LIMIT = 5.0
N_REPEATS = 80
DRAWS, TUNE = 250, 50


def coefficients(oracle, images):
    """Return the templates ``(n_classes, n_basis)`` whose values on the grid are `images`."""
    gram = design_matrix(oracle.points, oracle.points, oracle.bandwidth)
    return np.linalg.solve(gram, np.reshape(images, (len(images), -1)).T).T


def make_mixture(n_classes, rigid_variance):
    return TemplateMixture.for_images(
        (SIDE, SIDE), n_classes, n_landmarks=2, rigid_variance=rigid_variance, rigid_weight=None
    )


# -- class posterior and E[S | Y], against another sampler ------------------------------------


class Overlapping:
    """Three blobs that warps turn into one another, two noisy images, and their posteriors."""

    rigid_variance = 0.02

    def __init__(self):
        rng = np.random.default_rng(1)
        self.oracle = ImageOracle(SIDE, 2, self.rigid_variance)
        # height, extent of rows, extent of columns
        shapes = ((1.0, 0.65, 0.45), (0.95, 0.55, 0.55), (1.0, 0.45, 0.65))
        rows, columns = self.oracle.points.T
        blobs = [a * np.exp(-((rows / b) ** 2) - (columns / c) ** 2) for a, b, c in shapes]
        self.parameters = {
            "weights": np.array([0.5, 0.3, 0.2]),
            "templates": coefficients(self.oracle, blobs),
            "noise_variance": np.array(0.1),
            "deformation_variance": np.array([0.005, 0.02, 0.01]),
        }
        _, (complete, missing) = simulate(self.oracle, self.parameters, rng, 2)
        missing[rng.random(missing.shape) < 1 / 3] = np.nan
        self.images = {"complete": complete, "missing": missing}
        # where the gram matrix is looked at: the templates, and anywhere
        anywhere = rng.normal(size=(8, SIDE**2)) / SIDE
        self.directions = np.concatenate([self.parameters["templates"], anywhere])
        self.references = {
            name: importance_sampling(self.posterior(name), rng, self.directions)
            for name in self.images
        }
        self.mixture = make_mixture(3, self.rigid_variance)

    def posterior(self, name):
        return ImagePosterior(self.oracle, self.parameters, self.images[name])

    def bursts(self, e_step, name, rng):
        """Return the statistics of independent bursts, a list of dicts, gram matrices whole."""
        data = self.mixture.encode(self.images[name])
        found = [
            e_step(
                data, self.parameters, rng, e_step.initial_state(), draws=DRAWS, tune=TUNE
            ).statistics
            for _ in range(N_REPEATS)
        ]
        unpack = self.mixture.settings.basis.unpack_gram
        return [{**each, "template_gram": unpack(each["template_gram"])} for each in found]


@pytest.fixture(scope="module")
def overlapping():
    return Overlapping()


def compare(bursts, reference, directions):
    """Return deviations in standard errors and effective sizes, ``(n_classes, n_features)``."""
    features = np.array([burst_features(each, directions) for each in bursts])
    error = features.std(axis=0, ddof=1) / np.sqrt(len(features))
    deviation = (features.mean(axis=0) - reference.mean) / np.hypot(error, reference.error)
    return deviation, reference.variance / error**2


@pytest.mark.parametrize("name", ["complete", "missing"])
def test_the_reference_is_of_the_oracles_density(overlapping, name, rng):
    posterior, oracle = overlapping.posterior(name), overlapping.oracle
    parameters, image = overlapping.parameters, overlapping.images[name]
    betas = oracle.mean + 0.2 * rng.normal(size=(5, oracle.mean.size))
    for index in range(3):
        expected = [
            oracle.log_likelihood(parameters, index, beta, 1.0, image)
            + oracle.log_prior(parameters, index, beta, 1.0)
            for beta in betas
        ]
        found = posterior.log_likelihood(index, betas) + posterior.log_prior(index, betas)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        one = {
            name: value[None]
            for name, value in oracle.statistics(betas[0], 1.0, image).items()
            if np.ndim(value)
        }
        np.testing.assert_allclose(
            posterior.features(index, betas, overlapping.directions)[0],
            burst_features(one | {"class_weight": np.ones(1)}, overlapping.directions)[0],
            rtol=1e-9,
            atol=1e-12,
        )


@pytest.mark.parametrize("name", ["complete", "missing"])
def test_the_reference_is_precise_and_no_class_is_certain(overlapping, name):
    reference = overlapping.references[name]
    assert (reference.mean[:, 0] > 0.02).all()
    assert (reference.mean[:, 0] < 0.9).all()
    assert (reference.effective_size > 2000).all()
    assert (reference.variance > 1000 * reference.error**2).all()


@pytest.mark.parametrize(
    ("name", "settings"),
    by_default(
        [
            ("complete", {}),
            ("missing", {}),
            ("complete", {"rao_blackwell": True}),
            ("missing", {"rao_blackwell": True}),
            ("missing", {"pseudo_priors": PriorCovariance()}),
        ],
        [("complete", {}), ("missing", {"rao_blackwell": True})],
    ),
    ids=["complete", "missing", "complete-rao-blackwell", "missing-rao-blackwell", "prior-cov"],
)
def test_bursts_agree_with_another_sampler(overlapping, name, settings, rng):
    e_step = replace(BURST, **settings).compile(overlapping.mixture)
    bursts = overlapping.bursts(e_step, name, rng)
    deviation, size = compare(bursts, overlapping.references[name], overlapping.directions)
    assert np.abs(deviation).max() < LIMIT
    assert size[:, 0].min() > 1000
    assert size.min() > 100
    values = overlapping.images[name][~np.isnan(overlapping.images[name])]
    for each in bursts:
        weight = each["class_weight"]
        np.testing.assert_allclose(weight.sum(), 1.0, rtol=1e-12)
        np.testing.assert_allclose(each["squared_norm"], weight * (values @ values), rtol=1e-10)
        np.testing.assert_allclose(each["observed_points"], weight * values.size, rtol=1e-10)


def test_a_wrong_pseudo_prior_density_is_noticed(overlapping, monkeypatch, rng):
    e_step = BURST.compile(overlapping.mixture)
    right = e_step.pseudo_priors

    def wrong(*arguments):
        found = right(*arguments)
        return replace(found, log_normalizer=found.log_normalizer - np.log([1.0, 1.0, 1.3]))

    monkeypatch.setattr(e_step, "pseudo_priors", wrong)
    bursts = overlapping.bursts(e_step, "complete", rng)
    deviation, _ = compare(bursts, overlapping.references["complete"], overlapping.directions)
    assert np.abs(deviation[:, 0]).max() > LIMIT


# -- online EM --------------------------------------------------------------------------------


class Distinct:
    """A bar and a ring, little noise, and warps that an average image does not blur away."""

    rigid_variance = 0.004

    def __init__(self):
        self.oracle = ImageOracle(SIDE, 2, self.rigid_variance)
        rows, columns = self.oracle.points.T
        bar = np.exp(-((rows / 0.8) ** 2) - (columns / 0.35) ** 2)
        ring = np.exp(-(((np.hypot(rows, columns) - 0.6) / 0.4) ** 2))
        self.images = np.array([bar, ring]).reshape(2, SIDE, SIDE)
        self.parameters = {
            "weights": np.array([0.65, 0.35]),
            "templates": coefficients(self.oracle, self.images),
            "noise_variance": np.array(0.01),
            "deformation_variance": np.array([0.0015, 0.0007]),
        }
        self.mixture = make_mixture(2, self.rigid_variance)


@pytest.fixture(scope="module")
def distinct():
    return Distinct()


def driver(family, seed, **settings):
    return OnlineEM(
        family,
        e_step=BURST,
        burst_length=BurstLength(draws=30, tune=20),
        random_seed=seed,
        progressbar=False,
        **settings,
    )


@pytest.mark.parametrize("missing", by_default([0.0, 1 / 3], [1 / 3]), ids=["complete", "missing"])
def test_parameters_are_recovered_from_images(distinct, missing, rng):
    truth, n_classes = distinct.parameters, 2
    classes, images = simulate(distinct.oracle, truth, rng, 1000)
    images[rng.random(images.shape) < missing] = np.nan
    em = driver(distinct.mixture, 1).partial_fit(images)
    found = template_images(em.parameters, distinct.mixture).to_numpy()

    def rms(difference):
        return np.sqrt(np.square(difference).mean(axis=(-2, -1)))

    distance = rms(found[:, None] - distinct.images[None])
    order = distance.argmin(axis=0)
    assert set(order) == {0, 1}
    steps = em.history["steps"].to_dataset().isel(step=slice(1, None))
    size = float(steps["effective_size"][-1])
    n_seen = (1 - missing) * SIDE**2

    # What the same gains make of the labels, had they been known: one image's worth for the
    # prior, and one for an image read as of the other class while templates were young.
    weights = em.parameters["weights"].to_numpy()[order]
    labeled = np.zeros(n_classes)
    for gain, index in zip(steps["gain"].to_numpy(), classes, strict=True):
        labeled += gain * (np.eye(n_classes)[index] - labeled)
    assert np.abs(weights - labeled).max() < 2 / size
    binomial = np.sqrt(truth["weights"] * (1 - truth["weights"]) / size)
    assert (np.abs(weights - truth["weights"]) < 4 * binomial).all()

    # A template is told as well as a mean of as many pixels, warps and noise included.
    spread = np.array([np.nanvar(images[classes == j], axis=0).mean() for j in range(n_classes)])
    tolerance = 3 * np.sqrt(spread / (truth["weights"] * size * (1 - missing)))
    assert (tolerance < np.sqrt(truth["noise_variance"])).all()
    assert (tolerance < rms(distinct.images[0] - distinct.images[1]) / 4).all()
    assert (distance[order, np.arange(n_classes)] < tolerance).all()

    # Templates take up the residuals of as many pixels as they have coefficients, and their
    # prior's normalizing constant counts as many again; its quadratic form and the prior of
    # the noise add a little.
    ratio = float(em.parameters["noise_variance"] / truth["noise_variance"])
    error = np.sqrt(2 / (size * n_seen))
    priors = distinct.mixture.priors
    form = (truth["templates"] * distinct.images.reshape(n_classes, -1)).sum()
    pull = (priors.template_strength * form + 2 * priors.noise_rate) / truth["noise_variance"]
    assert ratio > 1 - 2 * truth["templates"].size / (size * n_seen) - 4 * error
    assert ratio < 1 + pull / (size * n_seen) + 4 * error


@pytest.fixture(scope="module")
def holey(distinct):
    """Thirty-two images with a third of their pixels missing."""
    rng = np.random.default_rng(2)
    _, images = simulate(distinct.oracle, distinct.parameters, rng, 32)
    images[rng.random(images.shape) < 1 / 3] = np.nan
    return images


@pytest.fixture(scope="module")
def never_stopped(distinct, holey):
    return driver(distinct.mixture, 3, n_start=12, average_from=20).partial_fit(holey)


def test_stopped_saved_and_loaded_is_never_stopped(distinct, holey, never_stopped, tmp_path):
    path = tmp_path / "run.nc"
    driver(distinct.mixture, 3, n_start=12, average_from=20).partial_fit(holey[:7]).save(path)
    # as another process would have it: a mixture of its own, compiled anew
    mixture = make_mixture(2, distinct.rigid_variance)
    OnlineEM.load(path, mixture, progressbar=False).partial_fit(holey[7:23]).save(path)
    em = OnlineEM.load(path, distinct.mixture, progressbar=False).partial_fit(holey[23:])
    assert_same(em, never_stopped)


def test_cutting_the_stream_changes_nothing(distinct, holey, never_stopped):
    em = driver(distinct.mixture, 3, n_start=12, average_from=20)
    em.partial_fit(holey[0]).partial_fit(holey[1:9])
    assert em.parameters.sizes["class"] == 2  # as if the stream ended here
    em.partial_fit(image for image in holey[9:20])
    em.partial_fit(xr.DataArray(holey[20:31], dims=("image", "row", "column")))
    em.partial_fit(np.ma.masked_invalid(holey[31]))
    assert_same(em, never_stopped)
