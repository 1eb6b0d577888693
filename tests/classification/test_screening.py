"""Classes left out of a classification: by how much that may change it, and what it saves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import norm

import pymc_mcoem as mcoem
from pymc_mcoem.classification.screening import SIZES, SLACK, ScreenedClassWeights, keep_plausible
from tests.helpers.checks import LIMIT
from tests.helpers.interpreted import interpreted
from tests.helpers.representatives import by_default

POINTS = np.linspace(-1, 1, 8)
N_CLASSES = 20
BANDWIDTH, WIDTH = 0.5, 0.8
AMOUNTS = (1e-3, 1e-2, 0.05)


@pytest.fixture(scope="module")
def mixture():
    return mcoem.TemplateMixture(
        POINTS,
        mcoem.GaussianBasis.regular([POINTS], bandwidth=BANDWIDTH),
        mcoem.DisplacementField([[0.0]], width=WIDTH),
        n_classes=N_CLASSES,
    )


def make_parameters(mixture, noise, variance):
    """Return peaks along the axis, of two heights: neighbors are hard to tell apart."""
    peaks = np.tile(np.linspace(-0.9, 0.9, 10), 2)
    heights = np.repeat([1.0, 1.6], 10)
    targets = heights[:, None] * np.exp(-((POINTS - peaks[:, None]) ** 2) / 0.1)
    return mixture.to_dataset(
        {
            "weights": np.linspace(1, 3, N_CLASSES) / np.linspace(1, 3, N_CLASSES).sum(),
            "templates": np.linalg.lstsq(mixture.mean_design(), targets.T, rcond=None)[0].T,
            "noise_variance": np.array(noise),
            "deformation_variance": np.full(N_CLASSES, variance),
        }
    )


@pytest.fixture(scope="module")
def parameters(mixture):
    return make_parameters(mixture, noise=0.03, variance=0.02)


def log_joint(parameters, curve):
    """Return log p(curve, class, displacement) on an even grid, but for constants."""
    spread = np.sqrt(parameters["deformation_variance"].values)
    grid = np.linspace(-9, 9, 2001) * spread.max()
    warped = POINTS + grid[:, None] * np.exp(-(POINTS**2) / WIDTH**2)
    design = np.exp(-((warped[:, :, None] - POINTS) ** 2) / BANDWIDTH**2)
    residuals = curve[:, None] - design @ parameters["templates"].values.T
    log_likelihood = -0.5 * (residuals**2).sum(axis=1) / float(parameters["noise_variance"])
    log_prior = norm.logpdf(grid[:, None], 0, spread)
    return log_likelihood + log_prior + np.log(parameters["weights"].values)


def simulated(mixture, parameters, n_curves):
    """Return curves drawn from the model and log-densities of each, ``(n_curves, grid, class)``."""
    with interpreted():
        drawn = mcoem.datasets.simulate_images(mixture, parameters, n_curves, random_seed=3)
    curves = drawn["images"].values
    return curves, np.stack([log_joint(parameters, curve) for curve in curves])


def exact_probabilities(log_densities):
    return softmax(logsumexp(log_densities, axis=1), axis=1)


def one_mode_a_class(log_densities):
    """Tell for which curves no class has a second mode within 10 of the highest of all."""
    inner = log_densities[:, 1:-1]
    is_mode = (inner > log_densities[:, :-2]) & (inner > log_densities[:, 2:])
    high = inner > inner.max(axis=(1, 2), keepdims=True) - 10
    return (is_mode & high).sum(axis=1).max(axis=1) <= 1


@pytest.fixture(scope="module")
def curves(mixture, parameters):
    return simulated(mixture, parameters, 60)[0]


def probabilities(mixture, parameters, curves, **options):
    classifier = mcoem.Classifier(mixture, parameters, progressbar=False, **options)
    return classifier, classifier.class_probabilities(curves)


@dataclass(frozen=True)
class AsIfDrawn:
    """Laplace's evidence from an E-step that is not known to draw nothing, so it is screened."""

    search: mcoem.pseudo_priors.Laplace = field(default_factory=mcoem.pseudo_priors.Laplace)

    def compile(self, family):
        return mcoem.esteps.LaplaceGaussian(search=self.search).compile(family)


@pytest.fixture(scope="module")
def by_evidence(mixture, parameters, curves):
    """Return probabilities by Laplace's evidence, and a classifier that screens."""
    _, full = probabilities(mixture, parameters, curves, e_step=mcoem.esteps.LaplaceGaussian())
    return full, mcoem.Classifier(
        mixture, parameters, screening=0.5, e_step=AsIfDrawn(), progressbar=False
    )


@pytest.mark.parametrize("amount", [1e-6, 1e-3, 0.2])
def test_by_laplaces_evidence_nothing_changes(by_evidence, curves, amount):
    """Laplace's shares among few classes are those among all: nothing here is left to chance."""
    full, screened = by_evidence
    screened.executor.compiled.amount, screened.executor.compiled.slack = amount, 0.0
    found = screened.class_probabilities(curves)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_allclose(found, full, rtol=1e-9, atol=1e-12)
    assert np.abs(np.sort(full, axis=1)[:, :-16]).max() < 1e-3  # there is something to leave out
    assert set(screened.executor.compiled._compiled) <= {*SIZES, N_CLASSES}
    assert set(screened.executor.compiled._compiled) != {N_CLASSES}


@pytest.mark.parametrize(
    ("e_step", "screens"),
    [
        (mcoem.esteps.LaplaceGaussian(), False),
        (mcoem.esteps.FixedLatents(), False),
        (mcoem.esteps.PosteriorMode(), False),
        (mcoem.esteps.LaplaceGaussian(importance=True), True),
        (None, True),
    ],
    ids=["Laplace", "fixed latents", "posterior mode", "importance weights", "bursts"],
)
def test_what_draws_nothing_is_not_screened(mixture, parameters, without_compiler, e_step, screens):
    """There screening would search the modes twice, and spare nothing."""
    screened = mcoem.Classifier(mixture, parameters, e_step=e_step, screening=0.1)
    assert isinstance(screened.executor.compiled, ScreenedClassWeights) == screens
    if not screens:
        plain = mcoem.Classifier(mixture, parameters, e_step=e_step)
        assert screened.executor.compiled is plain.executor.compiled


def left_out(probability, amount):
    """Return the classes that Laplace's probabilities allow to leave out."""
    order = np.argsort(probability)
    for n_kept in (4, 16):
        if probability[order[:-n_kept]].sum() <= amount:
            return order[:-n_kept]
    return order[:0]


@pytest.fixture(scope="module")
def unlike_laplace(mixture):
    """Return parameters, curves, exact and Laplace's probabilities, which differ by 0.02 to 0.04.

    Of two curves most in a class beyond the best four, so that to keep no more is wrong; of the
    others, one for each amount, what is left out weighs most. A rule that misses modes is wrong
    without screening, so no class has two.
    """
    parameters = make_parameters(mixture, noise=0.1, variance=0.05)
    curves, log_densities = simulated(mixture, parameters, 60)
    plain = one_mode_a_class(log_densities)
    curves, exact = curves[plain], exact_probabilities(log_densities[plain])
    _, found = probabilities(mixture, parameters, curves, e_step=mcoem.esteps.LaplaceGaussian())
    beyond = found < np.sort(found, axis=1)[:, -4:-3]
    error = (np.abs(found - exact) * beyond).max(axis=1)
    assert np.sort(error)[-2] > 0.02
    most = []
    for amount in AMOUNTS:
        left = [left_out(by_laplace, amount) for by_laplace in found]
        most.append(np.argmax([of[classes].sum() for of, classes in zip(exact, left, strict=True)]))
    chosen = [*np.argsort(-error)[:2], *most]
    return parameters, curves[chosen], exact[chosen], found[chosen]


@pytest.mark.parametrize(
    ("e_step", "draws"),
    [
        pytest.param(None, 200, marks=pytest.mark.slow),
        (mcoem.esteps.LaplaceGaussian(importance=True), 200),
    ],
    ids=["bursts", "importance weights"],
)
def test_no_probability_changes_by_more_than_what_is_left_out(
    mixture, unlike_laplace, e_step, draws
):
    """But by chance, and without slack: by the amount, or by what the rule finds it to be.

    Probabilities of classes and of labels. The same check finds out who ignores the amount.
    """
    parameters, curves, exact, by_laplace = unlike_laplace
    screened = mcoem.Classifier(
        mixture, parameters, e_step=e_step, draws=draws, screening=0.5, progressbar=False
    )
    screened.executor.compiled.slack = 0.0
    repeats = 10
    sums = np.hstack([np.eye(N_CLASSES), np.repeat(np.eye(2), 10, axis=0)])

    def excess(amount):
        """Return how far errors exceed what chance allows, the greatest of each curve."""
        screened.executor.compiled.amount = amount
        found = screened.class_probabilities(np.tile(curves, (repeats, 1)))
        found = found.reshape(repeats, len(curves), N_CLASSES)
        # what has Laplace's probability each time was left out
        same = np.isclose(found, by_laplace, rtol=1e-9, atol=0).all(axis=0)
        assert (by_laplace * same).sum(axis=1).max() <= amount
        found = found @ sums
        error = found.std(axis=0, ddof=1) / np.sqrt(repeats)
        # two thousandths for the bias of bursts and of importance weights
        return (np.abs(found.mean(axis=0) - exact @ sums) - LIMIT * error - 2e-3).max(axis=1)

    for amount in AMOUNTS:
        left = [left_out(found, amount) for found in by_laplace]
        q = np.array([of[classes].sum() for of, classes in zip(exact, left, strict=True)])
        assert min(map(len, left)) > 0
        assert q.max() > 0.3 * amount
        assert (excess(amount) <= np.maximum(q, amount)).all()
    assert excess(0.9).max() > 2 * AMOUNTS[1]


def test_no_probability_changes_by_more_than_the_amount(mixture):
    """Laplace's approximation has the slack to be wrong, and without it changes more.

    Against quadrature, with starting points that find the modes.
    """
    amount, variance = 1e-3, 0.3
    most, fewest = {0.0: 0.0, SLACK: 0.0}, {0.0: N_CLASSES, SLACK: N_CLASSES}
    family = mixture.with_classes(N_CLASSES)
    # the first one cools, the others begin where they are
    starts = np.r_[0.0, np.linspace(-2.5, 2.5, 5)][:, None] * np.sqrt(variance)
    family.geometry = replace(family.geometry, starts=starts)
    for noise in (0.03, 0.1):
        loose = make_parameters(mixture, noise=noise, variance=variance)
        curves, log_densities = simulated(mixture, loose, 60)
        exact = exact_probabilities(log_densities)
        _, by_laplace = probabilities(family, loose, curves, e_step=mcoem.esteps.LaplaceGaussian())
        for slack in most:
            for truth, found in zip(exact, by_laplace, strict=True):
                kept = keep_plausible(found, np.exp(-slack) * amount)
                most[slack] = max(most[slack], np.delete(truth, kept).sum())
                fewest[slack] = min(fewest[slack], len(kept))
    assert most[SLACK] < 1e-3 * amount < amount < most[0.0]
    assert fewest[SLACK] < N_CLASSES


def test_a_classifier_screens_with_slack(mixture, parameters, curves):
    """Where the slack makes a difference more classes are looked at, and exactly those."""
    _, found = probabilities(mixture, parameters, curves, e_step=mcoem.esteps.LaplaceGaussian())
    amount = 1e-3
    sizes = {
        slack: np.array([len(keep_plausible(one, np.exp(-slack) * amount)) for one in found])
        for slack in (0.0, SLACK)
    }
    curve = curves[np.flatnonzero(sizes[0.0] < sizes[SLACK])[0]]
    assert (sizes[0.0] < sizes[SLACK]).mean() > 0.2
    for slack in sizes:
        screened = mcoem.Classifier(
            mixture, parameters, e_step=AsIfDrawn(), screening=amount, progressbar=False
        )
        if slack == 0.0:
            screened.executor.compiled.slack = slack
        screened.class_probabilities(curve[None])
        (looked_at,) = screened.executor.compiled._compiled
        assert looked_at == sizes[slack][np.flatnonzero(sizes[0.0] < sizes[SLACK])[0]]


@pytest.mark.parametrize(
    ("e_step", "search"),
    [
        (None, mcoem.pseudo_priors.Laplace()),
        (
            mcoem.esteps.CarlinChibBurst(pseudo_priors=mcoem.pseudo_priors.Laplace(race=None)),
            mcoem.pseudo_priors.Laplace(race=None),
        ),
        (
            mcoem.esteps.CarlinChibBurst(pseudo_priors=mcoem.pseudo_priors.PilotMoments()),
            mcoem.pseudo_priors.Laplace(race=None),
        ),
        (
            mcoem.esteps.LaplaceGaussian(
                importance=True, search=mcoem.pseudo_priors.Laplace(tolerance=0.1)
            ),
            mcoem.pseudo_priors.Laplace(tolerance=0.1),
        ),
    ],
    ids=["default", "thorough bursts", "pilot moments", "rough importance weights"],
)
def test_classes_are_judged_by_the_modes_that_they_would_be_looked_at_from(
    mixture, parameters, without_compiler, e_step, search
):
    """A class that another search gave up may have all of the probability."""
    screened = mcoem.Classifier(mixture, parameters, e_step=e_step, screening=0.1)
    assert screened.executor.compiled.search == search


@pytest.mark.parametrize(
    ("n_starts", "amount"), by_default(product([1, 5], [0.0, 1e-3]), {(5, 1e-3)})
)
def test_more_starts_find_the_modes_that_one_misses(mixture, n_starts, amount):
    """Where warps are loose a class has several modes, and a burst stays where it began.

    Known of classifiers that start at one point, screened or not. The curves are those at which
    Laplace's evidences from one point are most wrong.
    """
    variance, repeats = 0.3, 8
    loose = make_parameters(mixture, noise=0.03, variance=variance)
    curves, log_densities = simulated(mixture, loose, 60)
    exact = exact_probabilities(log_densities)
    _, found = probabilities(mixture, loose, curves, e_step=mcoem.esteps.LaplaceGaussian())
    chosen = np.argsort(-np.abs(found - exact).max(axis=1))[:4]
    assert np.abs(found - exact)[chosen].max() > 0.8
    family = mixture
    if n_starts > 1:
        family = mixture.with_classes(N_CLASSES)
        starts = np.linspace(-2.5, 2.5, n_starts)[:, None] * np.sqrt(variance)
        family.geometry = replace(family.geometry, starts=starts)
    again = np.tile(curves[chosen], (repeats, 1))
    _, found = probabilities(family, loose, again, draws=150, tune=50, screening=amount)
    found = found.reshape(repeats, len(chosen), N_CLASSES)
    error = found.std(axis=0, ddof=1) / np.sqrt(repeats)
    off = np.abs(found.mean(axis=0) - exact[chosen])
    wrong = (off - LIMIT * error - amount).max()
    assert wrong > 0.8 if n_starts == 1 else wrong < 0.01


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
