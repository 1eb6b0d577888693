"""Classes left out of a classification: by how much that may change it, and what it saves."""

from __future__ import annotations

import numpy as np
import pytest

import pymc_mcoem as mcoem
from pymc_mcoem.screening import SIZES, keep_plausible
from tests.helpers.checks import LIMIT

POINTS = np.linspace(-1, 1, 8)
N_CLASSES = 20


@pytest.fixture(scope="module")
def mixture():
    return mcoem.TemplateMixture(
        POINTS,
        mcoem.GaussianBasis.regular([POINTS], bandwidth=0.5),
        mcoem.DisplacementField([[0.0]], width=0.8),
        n_classes=N_CLASSES,
    )


@pytest.fixture(scope="module")
def parameters(mixture):
    """Peaks that move along the axis, of two heights: neighbours are hard to tell apart."""
    peaks = np.tile(np.linspace(-0.9, 0.9, 10), 2)
    heights = np.repeat([1.0, 1.6], 10)
    targets = heights[:, None] * np.exp(-((POINTS - peaks[:, None]) ** 2) / 0.1)
    return mixture.to_dataset(
        {
            "weights": np.linspace(1, 3, N_CLASSES) / np.linspace(1, 3, N_CLASSES).sum(),
            "templates": np.linalg.lstsq(mixture.mean_design(), targets.T, rcond=None)[0].T,
            "noise_variance": np.array(0.03),
            "deformation_variance": np.full(N_CLASSES, 0.02),
        }
    )


@pytest.fixture(scope="module")
def curves(mixture, parameters):
    return mcoem.datasets.simulate_images(mixture, parameters, 60, random_seed=3)["images"].values


@pytest.fixture(scope="module")
def by_evidence(mixture, parameters, curves):
    """Return probabilities by Laplace's evidence, and a classifier that screens."""
    options = {"e_step": mcoem.LaplaceGaussian(), "progressbar": False}
    full = mcoem.Classifier(mixture, parameters, **options).class_probabilities(curves)
    return full, mcoem.Classifier(mixture, parameters, screening=0.5, **options)


def probabilities(mixture, parameters, curves, **options):
    classifier = mcoem.Classifier(mixture, parameters, progressbar=False, **options)
    return classifier, classifier.class_probabilities(curves)


@pytest.mark.parametrize("amount", [1e-6, 1e-3, 0.2])
def test_no_probability_changes_by_more_than_the_amount(by_evidence, curves, amount):
    full, screened = by_evidence
    screened._crew.compiled.amount = amount
    found = screened.class_probabilities(curves)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    # modes that are sought again among fewer classes agree to the search's tolerance
    assert np.abs(found - full).max() < amount + 1e-6
    assert np.abs(np.sort(full, axis=1)[:, :-16]).max() < 1e-3  # there is something to leave out
    assert set(screened._crew.compiled._compiled) <= {*SIZES, N_CLASSES}
    assert set(screened._crew.compiled._compiled) != {N_CLASSES}


@pytest.mark.slow
def test_sweeps_among_plausible_classes_find_what_sweeps_among_all_do(mixture, parameters, curves):
    options = {"draws": 400, "burn_in": 50}
    _, full = probabilities(mixture, parameters, curves[:15], **options)
    _, found = probabilities(mixture, parameters, curves[:15], screening=1e-4, **options)
    # of a share, with a tenth of the draws worth
    assert np.abs(found - full).max() < LIMIT * np.sqrt(2 * 0.25 / 40)
    np.testing.assert_array_equal(found.argmax(axis=1), full.argmax(axis=1))


def test_classes_stay_while_they_matter():
    probability = np.full(N_CLASSES, 1 / N_CLASSES)
    np.testing.assert_array_equal(keep_plausible(probability, 0.1), np.arange(N_CLASSES))
    assert len(keep_plausible(probability, 0.21)) == 16
    probability = np.eye(N_CLASSES)[7]
    assert keep_plausible(probability, 0.0)[0] == 7
    assert len(keep_plausible(probability, 0.0)) == 4
    np.testing.assert_array_equal(keep_plausible(np.array([0.3, 0.7]), 0.9), [1, 0])


def least_plausible(probability, amount):
    return np.argsort(probability)[:4]


@pytest.mark.parametrize("keep", [keep_plausible, least_plausible])
def test_no_more_is_left_out_than_the_amount(keep, rng):
    """With classes at random, some far ahead; whoever keeps the wrong ones is found out."""
    right = True
    for amount in (1e-6, 1e-3, 0.2):
        for probability in rng.dirichlet(np.full(N_CLASSES, 0.1), size=200):
            kept = keep(probability, amount)
            left_out = np.delete(probability, kept).sum()
            right &= left_out <= amount + 1e-12 and probability.argmax() in kept
    assert right == (keep is keep_plausible)


@pytest.mark.parametrize("screening", [-0.1, 1.0, np.nan])
def test_what_is_no_amount_is_refused(mixture, parameters, screening):
    with pytest.raises(ValueError, match=f"screening is {screening}; give a probability"):
        mcoem.Classifier(mixture, parameters, screening=screening)


def test_the_papers_rule_is_not_screened(mixture, parameters):
    with pytest.raises(ValueError, match="rule 'expected_likelihood' does not weigh classes"):
        mcoem.Classifier(mixture, parameters, screening=0.1, rule="expected_likelihood")
