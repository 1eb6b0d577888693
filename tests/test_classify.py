"""Class weights against quadrature, labels, and what the classifier refuses."""

import numpy as np
import pytest
from scipy.stats import norm

import pymc_mcoem as mcoem

POINTS = np.linspace(-1, 1, 6)
WIDTH = 0.8


@pytest.fixture(scope="module")
def mixture():
    """Curves at six points, one displacement: a single latent, so quadrature is easy."""
    return mcoem.TemplateMixture(
        POINTS,
        mcoem.GaussianBasis.regular([POINTS], bandwidth=0.6),
        mcoem.DisplacementField([[0.0]], width=WIDTH),
        n_classes=2,
    )


def make_parameters(mixture, peaks, noise, variance, weights):
    templates = np.exp(-((POINTS[None, :] - np.array(peaks)[:, None]) ** 2) / 0.3)
    return mixture.to_dataset(
        {
            "weights": np.array(weights),
            "templates": templates,
            "noise_variance": np.array(noise),
            "deformation_variance": np.array(variance),
        }
    )


@pytest.fixture(scope="module")
def by_label(mixture):
    return {
        "left": make_parameters(mixture, [-0.6, -0.1], 0.15, [0.05, 0.2], [0.7, 0.3]),
        "right": make_parameters(mixture, [0.2, 0.6], 0.25, [0.1, 0.02], [0.4, 0.6]),
    }


@pytest.fixture(scope="module")
def classifier(mixture, by_label):
    return mcoem.Classifier(
        mixture,
        by_label,
        label_weights={"left": 2.0, "right": 1.0},
        draws=400,
        burn_in=50,
        progressbar=False,
    )


def exact_class_weights(mixture, by_label, label_weights, curve):
    """Posterior class weights by quadrature over the one displacement."""
    observed = ~np.isnan(curve)
    kernel = np.exp(-(POINTS**2) / WIDTH**2)
    evidence = []
    for label, parameters in by_label.items():
        for j in range(2):
            spread = np.sqrt(float(parameters["deformation_variance"][j]))
            grid = np.linspace(-9, 9, 4001) * spread
            warped = POINTS[None, :] + grid[:, None] * kernel[None, :]
            design = np.exp(-((warped[:, :, None] - POINTS[None, None, :]) ** 2) / 0.6**2)
            mean = design @ parameters["templates"].values[j]
            noise = np.sqrt(float(parameters["noise_variance"]))
            log_likelihood = norm.logpdf(curve, mean, noise)[:, observed].sum(axis=1)
            density = np.exp(log_likelihood) * norm.pdf(grid, 0, spread)
            weight = label_weights[label] * float(parameters["weights"][j])
            evidence.append(weight * np.trapezoid(density, grid))
    return np.array(evidence) / np.sum(evidence)


def test_class_weights_agree_with_quadrature(mixture, by_label, classifier, rng):
    curves = np.exp(-((POINTS[None, :] - np.array([-0.2, 0.1, 0.3])[:, None]) ** 2) / 0.3)
    curves = curves + 0.3 * rng.standard_normal(curves.shape)
    curves[1, 2] = np.nan
    # independent repeats measure the Monte Carlo error that the tolerance is made of
    repeats = 8
    found = classifier.class_probabilities(np.concatenate([curves] * repeats))
    found = found.reshape(repeats, len(curves), 4)
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(repeats)
    for i, curve in enumerate(curves):
        exact = exact_class_weights(mixture, by_label, {"left": 2.0, "right": 1.0}, curve)
        assert exact.min() > 0.005 and exact.max() < 0.9  # all classes matter
        assert np.all(np.abs(mean[i] - exact) < 5 * error[i] + 1e-3)


def test_labels_sum_their_classes(classifier, rng):
    curves = rng.standard_normal((3, 6))
    by_class = classifier.class_probabilities(curves)
    by_label = classifier.predict_proba(curves)
    np.testing.assert_allclose(by_label[:, 0], by_class[:, :2].sum(axis=1))
    np.testing.assert_allclose(by_label.sum(axis=1), 1.0)
    assert classifier.labels == ("left", "right")
    expected = np.array(["left", "right"])[by_label.argmax(axis=1)]
    assert (classifier.predict(curves) == expected).all()


def test_same_seed_same_answer_however_observations_come(classifier, rng):
    curves = rng.standard_normal((3, 6))
    np.testing.assert_array_equal(
        classifier.predict_proba(curves), classifier.predict_proba(iter(curves))
    )


def test_one_mixture_labels_classes_by_number_or_by_name(mixture, by_label):
    parameters = by_label["left"]
    assert mcoem.Classifier(mixture, parameters).labels == (0, 1)
    named = mcoem.Classifier(mixture, parameters, labels=["a", "a"])
    assert named.labels == ("a",) and named.class_labels == ("a", "a")


def test_bad_arguments_are_refused_by_name(mixture, by_label, classifier):
    parameters = by_label["left"]
    with pytest.raises(ValueError, match=r"labels: got 3 for 2 classes"):
        mcoem.Classifier(mixture, parameters, labels=[0, 1, 2])
    with pytest.raises(ValueError, match="label_weights"):
        mcoem.Classifier(mixture, by_label, label_weights={"left": 1.0})
    with pytest.raises(ValueError, match="label_weights"):
        mcoem.Classifier(mixture, parameters, label_weights={0: 1.0})
    with pytest.raises(ValueError, match="labels"):
        mcoem.Classifier(mixture, by_label, labels=["a", "b", "c", "d"])
    with pytest.raises(ValueError, match="no label"):
        mcoem.Classifier(mixture, {})
    with pytest.raises(ValueError, match="draws is 0"):
        mcoem.Classifier(mixture, parameters, draws=0)
    with pytest.raises(ValueError, match="observations: got none"):
        classifier.predict([])
    with pytest.raises(ValueError, match="shape"):
        classifier.predict(np.zeros((2, 5)))


def test_majority_labels_weigh_probabilities():
    probabilities = np.array([[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.0, 1.0, 0.0]])
    assert mcoem.majority_labels(probabilities, [3, 3, 7]) == [3, 7, 3]
    with pytest.raises(ValueError, match="labels"):
        mcoem.majority_labels(probabilities, [1, 2])


def test_fixed_latents_weigh_classes_by_their_likelihood(mixture, by_label, rng):
    parameters = mixture.check_parameters(by_label["left"])
    curve = np.exp(-((POINTS + 0.3) ** 2) / 0.3) + 0.2 * rng.standard_normal(6)
    curve[4] = np.nan
    step = mcoem.FixedLatents().compile(mixture)
    result = step(mixture.encode(curve), parameters, rng, step.initial_state(), draws=1, burn_in=0)
    design = mixture.settings.basis.matrix(POINTS[:, None])
    seen = ~np.isnan(curve)
    residuals = (curve - parameters["templates"] @ design.T)[:, seen]
    noise = np.sqrt(parameters["noise_variance"])
    log_weight = np.log(parameters["weights"]) + norm.logpdf(residuals, 0, noise).sum(axis=1)
    expected = np.exp(log_weight - np.logaddexp.reduce(log_weight))
    np.testing.assert_allclose(result.statistics["class_weight"], expected, rtol=1e-9)
    np.testing.assert_allclose(result.log_evidence, np.logaddexp.reduce(log_weight), rtol=1e-9)
    np.testing.assert_allclose(result.statistics["deformation_outer"], 0.0)
    projection = design[seen].T @ curve[seen]
    np.testing.assert_allclose(
        result.statistics["template_projection"], expected[:, None] * projection, rtol=1e-9
    )
