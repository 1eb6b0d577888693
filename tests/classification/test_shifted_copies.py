"""Class probabilities over copies of an image that are shifted by a pixel."""

import numpy as np
import pytest

import pymc_mcoem as mcoem
from pymc_mcoem.classification.shifted_copies import shifted_copies


def make_classifier(shifted, channels=None, **options):
    mixture = mcoem.TemplateMixture.for_images(
        (4, 5), n_classes=3, n_landmarks=2, channels=channels
    )
    theta = mixture.parameters
    theta["templates"][:] = np.random.default_rng(1).normal(size=theta["templates"].shape)
    theta["weights"][:] = [0.2, 0.5, 0.3]
    theta["noise_variance"] = 0.5 + 0 * theta["noise_variance"]
    return mcoem.Classifier(mixture, theta, shifted_copies=shifted, progressbar=False, **options)


def by_hand(image):
    """Return the image and its four copies, NaN where pixels come in."""
    copies = [np.full_like(image, np.nan) for _ in range(4)]
    copies[0][1:], copies[1][:-1] = image[:-1], image[1:]
    copies[2][:, 1:], copies[3][:, :-1] = image[:, :-1], image[:, 1:]
    return [image, *copies]


@pytest.mark.parametrize("channels", [None, 2])
def test_probabilities_are_the_means_over_copies(channels, rng):
    e_step = mcoem.esteps.LaplaceGaussian()
    image = rng.normal(size=(4, 5) if channels is None else (4, 5, channels))
    image[1, 2] = np.nan
    each = make_classifier(False, channels, e_step=e_step).class_probabilities(by_hand(image))
    assert np.ptp(each, axis=0).min() > 0.01  # copies differ, so that the mean is told apart
    found = make_classifier(True, channels, e_step=e_step).class_probabilities([image])
    np.testing.assert_allclose(found, [each.mean(axis=0)], rtol=1e-6)


def test_a_copy_without_a_pixel_is_left_out():
    image = np.full((4, 5), np.nan)
    image[0, 2] = 1.0  # shifted up it leaves the image
    mixture = mcoem.TemplateMixture.for_images((4, 5), n_classes=1, n_landmarks=2)
    places = [
        np.argwhere(copy["observed_mask"])[0] for copy in shifted_copies(mixture.encode(image))
    ]
    np.testing.assert_array_equal(places, [[0, 2], [1, 2], [0, 3], [0, 1]])


def test_workers_give_the_same_answer(rng):
    images = rng.normal(size=(3, 4, 5))
    alone = make_classifier(True, draws=5, tune=2).class_probabilities(images)
    workers = make_classifier(True, draws=5, tune=2, executor=1)
    np.testing.assert_array_equal(workers.class_probabilities(images), alone)


@pytest.mark.parametrize(
    "options",
    [
        {"screening": 0.01},
        {"rule": "expected_likelihood"},
        {"e_step": mcoem.esteps.CarlinChibBurst(backend="jax")},
    ],
    ids=["screening", "expected likelihood", "many at once"],
)
def test_other_rules_are_averaged_too(options, rng):
    """Copies share a generator, so that only the first of them is drawn as an image alone."""
    image = rng.normal(size=(4, 5))
    found = make_classifier(True, draws=5, tune=2, **options).class_probabilities([image])
    alone = make_classifier(False, draws=5, tune=2, **options).class_probabilities([image])
    np.testing.assert_allclose(found.sum(), 1.0)
    assert (found != alone).any()
    assert (found >= alone / 5 - 1e-12).all()


def test_curves_are_not_shifted():
    mixture = mcoem.TemplateMixture.for_curves(np.linspace(0, 1, 6), n_classes=2)
    with pytest.raises(ValueError, match=r"shifted_copies: got True, .* only images are shifted"):
        mcoem.Classifier(mixture, mixture.parameters, shifted_copies=True)
