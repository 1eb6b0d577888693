"""Class weights against quadrature, labels, and what the classifier refuses."""

import logging
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import pymc_mcoem as mcoem
from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.runs import executor as executor_module
from pymc_mcoem.runs import workers
from tests.helpers.bad_records import Unreadable, source_of
from tests.helpers.executors import AtOnce, lives
from tests.helpers.pressing import hang

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


def make_classifier(mixture, by_label, e_step=None):
    return mcoem.Classifier(
        mixture,
        by_label,
        label_weights={"left": 2.0, "right": 1.0},
        e_step=e_step,
        draws=400,
        tune=50,
        progressbar=False,
    )


@pytest.fixture(scope="module")
def classifier(mixture, by_label):
    return make_classifier(mixture, by_label)


def exact_moments(mixture, by_label, curve):
    """∫ g p and ∫ g² p of each class over the one displacement, by quadrature."""
    observed = ~np.isnan(curve)
    kernel = np.exp(-(POINTS**2) / WIDTH**2)
    evidence = []
    for parameters in by_label.values():
        for j in range(2):
            spread = np.sqrt(float(parameters["deformation_variance"][j]))
            grid = np.linspace(-9, 9, 4001) * spread
            warped = POINTS[None, :] + grid[:, None] * kernel[None, :]
            design = np.exp(-((warped[:, :, None] - POINTS[None, None, :]) ** 2) / 0.6**2)
            mean = design @ parameters["templates"].values[j]
            noise = np.sqrt(float(parameters["noise_variance"]))
            log_likelihood = norm.logpdf(curve, mean, noise)[:, observed].sum(axis=1)
            density = np.exp(log_likelihood) * norm.pdf(grid, 0, spread)
            square = np.exp(log_likelihood) * density
            evidence.append((np.trapezoid(density, grid), np.trapezoid(square, grid)))
    return np.array(evidence).T


def exact_class_weights(mixture, by_label, label_weights, curve):
    """Posterior class weights by quadrature."""
    weights = np.concatenate([label_weights[k] * by_label[k]["weights"].values for k in by_label])
    evidence = weights * exact_moments(mixture, by_label, curve)[0]
    return evidence / np.sum(evidence)


def simulate(mixture, by_label, label_weights, n_curves, rng):
    """Draw curves from the model: label, class, displacement, noise."""
    total = sum(label_weights.values())
    curves = []
    for _ in range(n_curves):
        label = rng.choice(list(by_label), p=[label_weights[k] / total for k in by_label])
        parameters = by_label[label]
        j = rng.choice(2, p=parameters["weights"].values)
        displacement = rng.normal(0, np.sqrt(float(parameters["deformation_variance"][j])))
        warped = POINTS + displacement * np.exp(-(POINTS**2) / WIDTH**2)
        design = np.exp(-((warped[:, None] - POINTS) ** 2) / 0.6**2)
        noise = np.sqrt(float(parameters["noise_variance"])) * rng.standard_normal(POINTS.size)
        curves.append(design @ parameters["templates"].values[j] + noise)
    return np.array(curves)


@pytest.mark.parametrize(
    "e_step",
    [None, mcoem.esteps.LaplaceGaussian(importance=True)],
    ids=["bursts", "importance weights"],
)
def test_probabilities_of_simulated_curves_agree_with_quadrature(mixture, by_label, rng, e_step):
    """Deformation variances of 0.02 to 0.2 and noise of 0.15 and 0.25: one mode a class.

    Looser warps under less noise have several, which one start misses; see
    ``test_more_starts_find_the_modes_that_one_misses`` of test_screening.py.
    """
    weights = {"left": 2.0, "right": 1.0}
    curves = simulate(mixture, by_label, weights, 10, rng)
    curves[1, 2] = np.nan
    exact = np.stack([exact_class_weights(mixture, by_label, weights, curve) for curve in curves])
    assert np.ptp(exact, axis=0).min() > 0.3  # the curves are of all kinds
    repeats = 10
    classifier = make_classifier(mixture, by_label, e_step)
    found = classifier.class_probabilities(np.tile(curves, (repeats, 1)))
    found = found.reshape(repeats, len(curves), 4)
    error = found.std(axis=0, ddof=1) / np.sqrt(repeats)
    off = np.abs(found.mean(axis=0) - exact)
    assert np.all(off < 5 * error + 1e-3)
    # so that the tolerance says something: Laplace's evidences do not pass
    assert np.quantile(error, 0.9) < 0.005
    laplace = make_classifier(mixture, by_label, mcoem.esteps.LaplaceGaussian())
    assert np.any(np.abs(laplace.class_probabilities(curves) - exact) > 5 * error + 1e-3)


def test_expected_likelihoods_agree_with_quadrature(mixture, by_label, rng):
    """The paper's rule: E[g(y | j, X) | y, I = j], whatever the classes weigh."""
    curves = np.exp(-((POINTS[None, :] - np.array([-0.2, 0.1, 0.3])[:, None]) ** 2) / 0.3)
    curves = curves + 0.3 * rng.standard_normal(curves.shape)
    curves[1, 2] = np.nan
    settings = {"draws": 400, "tune": 50, "progressbar": False, "rule": "expected_likelihood"}
    weights = {"left": 2.0, "right": 1.0}
    repeats = 20
    runs = [
        mcoem.Classifier(mixture, by_label, label_weights=weights, random_seed=s, **settings)
        for s in range(repeats)
    ]
    found = np.stack([run.class_probabilities(curves) for run in runs])
    by_class = np.array([2.0, 2.0, 1.0, 1.0])
    for number, curve in enumerate(curves):
        once, twice = exact_moments(mixture, by_label, curve)
        expected = by_class * twice / once
        expected = expected / expected.sum()
        error = found[:, number].std(axis=0, ddof=1) / np.sqrt(repeats)
        assert (np.abs(found[:, number].mean(axis=0) - expected) < 5 * error + 1e-6).all()
        # and it is another rule than the evidence
        other = exact_class_weights(mixture, by_label, weights, curve)
        assert np.abs(other - expected).max() > 0.02
    labeled = runs[0].predict_proba(curves)
    np.testing.assert_allclose(labeled[:, 0], found[0][:, :2].sum(axis=1))


def test_other_e_steps_weigh_classes_too(mixture, by_label, rng):
    """As they do when they are called themselves; each is tested on its own against quadrature."""
    curve = np.exp(-((POINTS - 0.1) ** 2) / 0.3) + 0.3 * rng.standard_normal(POINTS.size)
    for e_step in (mcoem.esteps.LaplaceGaussian(), mcoem.esteps.LaplaceGaussian(importance=True)):
        classifier = mcoem.Classifier(mixture, by_label, e_step=e_step, progressbar=False)
        found = classifier.class_probabilities([curve])[0]
        with strict_arithmetic():
            compiled = e_step.compile(classifier.family)
        expected = compiled.class_probability(
            classifier.family.encode(curve),
            classifier._parameters,
            np.random.default_rng(np.random.SeedSequence(0, spawn_key=(0,))),
            draws=50,
            tune=10,
        )
        np.testing.assert_array_equal(found, expected)
        assert found.sum() == pytest.approx(1.0)


def test_an_e_step_without_class_probabilities_is_named(mixture, by_label):
    class Silent:
        def compile(self, family):
            return object()

    classifier = mcoem.Classifier(mixture, by_label, e_step=Silent(), progressbar=False)
    with pytest.raises(TypeError, match="gives no class probabilities; give CarlinChibBurst"):
        classifier.predict([np.ones(POINTS.size)])


def test_score_is_the_share_of_right_labels(classifier, rng):
    curves = rng.normal(size=(4, POINTS.size))
    found = classifier.predict(curves)
    assert classifier.score(curves, found) == 1.0
    wrong = np.where(found == "left", "right", "left")
    assert classifier.score(curves, np.concatenate([found[:3], wrong[3:]])) == 0.75
    with pytest.raises(ValueError, match=r"labels: got shape \(3,\) for 4 observations"):
        classifier.score(curves, found[:3])


@pytest.mark.parametrize("e_step", [mcoem.esteps.FixedLatents(), mcoem.esteps.LaplaceGaussian()])
def test_permuted_labels_and_classes_change_names_only(mixture, by_label, without_compiler, e_step):
    """With E-steps that draw nothing there is no Monte Carlo error between the two."""
    curves = np.random.default_rng(3).normal(size=(5, POINTS.size))
    turned = {label: by_label[label].isel({"class": [1, 0]}) for label in ("right", "left")}
    plain, other = (make_classifier(mixture, each, e_step) for each in (by_label, turned))
    assert other.class_labels == ("right", "right", "left", "left")
    assert other.classes_.tolist() == ["left", "right"]
    np.testing.assert_allclose(other.predict_proba(curves), plain.predict_proba(curves), rtol=1e-9)


def test_labels_sum_their_classes(classifier, rng):
    curves = rng.standard_normal((3, 6))
    by_class = classifier.class_probabilities(curves)
    by_label = classifier.predict_proba(curves)
    np.testing.assert_allclose(by_label[:, 0], by_class[:, :2].sum(axis=1))
    np.testing.assert_allclose(by_label.sum(axis=1), 1.0)
    assert classifier.classes_.tolist() == ["left", "right"]
    expected = np.array(["left", "right"])[by_label.argmax(axis=1)]
    assert (classifier.predict(curves) == expected).all()


def test_same_seed_same_answer_however_observations_come(classifier, rng):
    curves = rng.standard_normal((3, 6))
    np.testing.assert_array_equal(
        classifier.predict_proba(curves), classifier.predict_proba(iter(curves))
    )


def test_a_classifier_remembers_a_seed_that_was_drawn(mixture, by_label, rng):
    curves = rng.standard_normal((3, 6))
    drawn = mcoem.Classifier(mixture, by_label, random_seed=None, draws=2, progressbar=False)
    again = mcoem.Classifier(
        mixture, by_label, random_seed=drawn.random_seed, draws=2, progressbar=False
    )
    found = drawn.predict_proba(curves)
    np.testing.assert_array_equal(drawn.predict_proba(curves), found)
    np.testing.assert_array_equal(again.predict_proba(curves), found)


def test_one_mixture_labels_classes_by_number_or_by_name(mixture, by_label):
    parameters = by_label["left"]
    assert mcoem.Classifier(mixture, parameters).classes_.tolist() == [0, 1]
    named = mcoem.Classifier(mixture, parameters, labels=["a", "a"])
    assert named.classes_.tolist() == ["a"] and named.class_labels == ("a", "a")


def test_fit_names_the_classes_by_labeled_observations(mixture, by_label, rng, without_compiler):
    curves, labels = rng.normal(size=(12, POINTS.size)), list("ba" * 6)
    options = {"e_step": mcoem.esteps.FixedLatents(), "progressbar": False}
    classifier = mcoem.Classifier(mixture, by_label["left"], **options)
    weights = classifier.class_probabilities(curves)
    assert classifier.fit(curves, labels) is classifier
    assert list(classifier.class_labels) == mcoem.majority_labels(weights, labels)
    given = mcoem.Classifier(mixture, by_label["left"], classifier.class_labels, **options)
    np.testing.assert_array_equal(classifier.predict_proba(curves), given.predict_proba(curves))
    np.testing.assert_array_equal(classifier.predict(curves), given.predict(curves))
    with pytest.raises(ValueError, match="with a mixture per label the classes have labels"):
        mcoem.Classifier(mixture, by_label, **options).fit(curves, labels)


def test_columns_are_in_the_order_that_scikit_learn_expects(
    mixture, by_label, rng, without_compiler
):
    """Its metrics sort labels and take columns for sorted ones."""
    curves = rng.normal(size=(20, POINTS.size))
    options = {"e_step": mcoem.esteps.FixedLatents(), "progressbar": False}
    classifier = mcoem.Classifier(mixture, by_label["left"], ["b", "a"], **options)
    weights = classifier.class_probabilities(curves)
    np.testing.assert_array_equal(classifier.predict_proba(curves), weights[:, ::-1])
    assert classifier.classes_.tolist() == ["a", "b"]


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
    with pytest.raises(TypeError, match="parameters: got a list; give a Dataset, as OnlineEM"):
        mcoem.Classifier(mixture, [parameters, parameters])
    with pytest.raises(ValueError, match="draws is 0"):
        mcoem.Classifier(mixture, parameters, draws=0)
    with pytest.raises(ValueError, match="rule is 'best'; give 'evidence' or"):
        mcoem.Classifier(mixture, parameters, rule="best")
    with pytest.raises(ValueError, match="which the rule 'expected_likelihood' does not use"):
        mcoem.Classifier(
            mixture, parameters, rule="expected_likelihood", e_step=mcoem.esteps.FixedLatents()
        )
    with pytest.raises(ValueError, match="observations: got none"):
        classifier.predict([])
    with pytest.raises(ValueError, match="shape"):
        classifier.predict(np.zeros((2, 5)))


def test_majority_labels_weigh_probabilities():
    probabilities = np.array([[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.0, 1.0, 0.0]])
    assert mcoem.majority_labels(probabilities, [3, 3, 7]) == [3, 7, 3]
    with pytest.raises(ValueError, match="labels"):
        mcoem.majority_labels(probabilities, [1, 2])


def test_majority_labels_pass_over_what_could_not_be_classified():
    known = np.array([[0.9, 0.1], [0.1, 0.9], [0.95, 0.05]])
    rows = np.vstack([known, np.full((2, 2), np.nan)])
    assert mcoem.majority_labels(rows, ["a", "b", "a", "a", "c"]) == ["a", "b"]
    with pytest.raises(ValueError, match="none of the 2 rows is finite"):
        mcoem.majority_labels(rows[3:], ["a", "a"])


@pytest.mark.parametrize(
    "labels", [[("even", 1), ("even", 2), ("odd", 1)], [1, "b", None], [2.5, 1.5, 0.5]]
)
def test_labels_of_any_kind(mixture, by_label, labels, rng, without_compiler):
    probabilities = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    assert mcoem.majority_labels(probabilities, labels) == labels
    parameters = next(each for each in by_label.values() if each.sizes["class"] > 1)
    n_classes = parameters.sizes["class"]
    given = labels[:n_classes]
    options = {"e_step": mcoem.esteps.FixedLatents(), "progressbar": False}
    curves = rng.normal(size=(5, 6))
    numbers = mcoem.Classifier(mixture, parameters, **options).predict(curves)
    found = mcoem.Classifier(mixture, parameters, given, **options)
    expected = [given[number] for number in numbers]
    assert found.predict(curves).tolist() == expected
    assert found.score(curves, expected) == 1.0
    # a tuple that agrees in part is another label
    others = [("even", 9) if isinstance(label, tuple) else "none" for label in expected]
    assert found.score(curves, others) == 0.0


def test_fixed_latents_weigh_classes_by_their_likelihood(mixture, by_label, rng, without_compiler):
    parameters = mixture.check_parameters(by_label["left"])
    curve = np.exp(-((POINTS + 0.3) ** 2) / 0.3) + 0.2 * rng.standard_normal(6)
    curve[4] = np.nan
    step = mcoem.esteps.FixedLatents().compile(mixture)
    result = step(mixture.encode(curve), parameters, rng, step.initial_state(), draws=1, tune=0)
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


@dataclass(frozen=True)
class Picky:
    """Class probabilities that depend on draws, and fail where a curve begins with 7, 8 or 9."""

    folder: str = ""
    hangs: bool = False

    def compile(self, family):
        if self.hangs:
            hang.compile(())
        return CompiledPicky(family, self.folder, self.hangs)


@dataclass(frozen=True)
class CompiledPicky:
    family: object
    folder: str
    hangs: bool

    def class_probability(self, data, parameters, rng, *, draws, tune):
        first = float(data["observed_values"][0])
        if first == 7.0:
            raise np.linalg.LinAlgError("singular")
        if first == 9.0 and list(Path(self.folder).iterdir()):
            sorted(Path(self.folder).iterdir())[0].unlink()
            if self.hangs:
                hang()
            os.kill(os.getpid(), signal.SIGKILL)
        found = rng.dirichlet(np.ones(self.family.n_classes))
        return found * np.nan if first == 8.0 else found


def spoilt_curves(rng):
    curves = rng.normal(size=(9, POINTS.size))
    records = list(curves)
    records[2] = np.full(POINTS.size, 7.0)
    records[4] = np.zeros(5)
    records[5] = Unreadable()
    records[8] = np.full(POINTS.size, 8.0)
    return curves, records


REASONS = {
    2: "classifying it failed: LinAlgError: singular",
    4: "refused: ValueError: observation has shape (5,)",
    5: "reading it failed: OSError: bad sector",
    8: "classifying it failed: FloatingPointError: its class probabilities are not finite",
}


@pytest.mark.parametrize(("executor", "groups"), [(None, 16), ("at once", 16), ("at once", 3)])
def test_what_cannot_be_classified_keeps_its_place(
    mixture, by_label, rng, executor, groups, monkeypatch, caplog
):
    monkeypatch.setattr(executor_module, "GROUPS", groups)
    monkeypatch.setattr(workers, "_made", type(workers._made)())
    curves, records = spoilt_curves(rng)
    options = {"e_step": Picky(), "progressbar": False}
    chosen = None if executor is None else AtOnce()
    lenient = mcoem.Classifier(mixture, by_label, on_error="skip", executor=chosen, **options)
    with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
        found = lenient.predict_proba(source_of(records))
    assert "4 of 9 observations have no label. The first is number 2" in caplog.text
    assert list(lenient.skipped) == sorted(REASONS)
    for index, reason in REASONS.items():
        assert lenient.skipped[index].startswith(reason)
        assert np.isnan(found[index]).all()
    # the others have the numbers that they have among sound ones
    strict = mcoem.Classifier(mixture, by_label, **options)
    kept = [index for index in range(9) if index not in REASONS]
    np.testing.assert_array_equal(found[kept], strict.predict_proba(curves)[kept])
    labels = lenient.predict(source_of(records))
    assert [label for index, label in enumerate(labels) if index in REASONS] == [None] * 4
    assert (labels[kept] == strict.predict(curves)[kept]).all()
    assert lenient.score(source_of(records), strict.predict(curves)) == 5 / 9
    # sound observations are labeled as ever, and nothing is left of the last call
    assert (lenient.predict(curves) == strict.predict(curves)).all()
    assert lenient.skipped == {}


@pytest.mark.parametrize("executor", [None, "at once"])
@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        (2, RuntimeError, r"observation 2, counted from 0, cannot be classified: singular"),
        (4, ValueError, r"observation 4 \(counted from 0\) was refused: .*shape \(5,\)"),
        (5, OSError, "bad sector"),
        (8, FloatingPointError, r"observation 8, .*cannot be classified: .*not finite"),
    ],
)
def test_an_error_names_the_observation(
    mixture, by_label, rng, executor, monkeypatch, index, kind, message
):
    monkeypatch.setattr(workers, "_made", type(workers._made)())
    curves, records = spoilt_curves(rng)
    records = [records[index] if number == index else curves[number] for number in range(9)]
    chosen = None if executor is None else AtOnce()
    classifier = mcoem.Classifier(
        mixture, by_label, e_step=Picky(), progressbar=False, executor=chosen
    )
    with pytest.raises(kind, match=message):
        classifier.predict(source_of(records))
    with pytest.raises(ValueError, match="on_error: got 'ignore'; choose one of"):
        mcoem.Classifier(mixture, by_label, on_error="ignore")


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("groups", [16, 1])
@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_kills_or_holds_every_worker_is_named(
    mixture, by_label, rng, tmp_path, on_error, groups, hangs, monkeypatch
):
    monkeypatch.setattr(executor_module, "GROUPS", groups)
    monkeypatch.setattr(executor_module, "FIRST", 40.0)
    curves = rng.normal(size=(9, POINTS.size))
    records = curves.copy()
    records[3] = 9.0
    classifier = mcoem.Classifier(
        mixture,
        by_label,
        e_step=Picky(lives(tmp_path / "many", 100), hangs),
        progressbar=False,
        executor=workers.Workers(2, 3.0) if hangs else 2,
        on_error=on_error,
    )
    said = "gave no answer to this observation in 3 seconds" if hangs else "died each time"
    if on_error == "raise":
        with pytest.raises(RuntimeError, match=rf"observation 3, .*worker: it .*{said}"):
            classifier.class_probabilities(records)
        return
    found = classifier.class_probabilities(records)
    assert list(classifier.skipped) == [3] and said in classifier.skipped[3]
    clean = mcoem.Classifier(mixture, by_label, e_step=Picky(), progressbar=False)
    expected = clean.class_probabilities(curves)
    assert np.isnan(found[3]).all()
    np.testing.assert_array_equal(np.delete(found, 3, axis=0), np.delete(expected, 3, axis=0))


def test_a_mixture_for_each_label_takes_the_starting_points_over(by_label, rng, without_compiler):
    mixture = mcoem.TemplateMixture(
        POINTS,
        mcoem.GaussianBasis.regular([POINTS], bandwidth=0.6),
        mcoem.DisplacementField([[0.0]], width=WIDTH),
        n_classes=2,
    )
    one = mcoem.Classifier(mixture, by_label, e_step=mcoem.esteps.LaplaceGaussian())
    one.class_probabilities(rng.normal(size=(1, POINTS.size)))
    mixture.geometry = replace(mixture.geometry, starts=np.linspace(-1.0, 1.0, 5)[:, None])
    other = mcoem.Classifier(mixture, by_label, e_step=mcoem.esteps.LaplaceGaussian())
    np.testing.assert_array_equal(other.family.geometry.starts, mixture.geometry.starts)
    assert other.executor.compiled is not one.executor.compiled
