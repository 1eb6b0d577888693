"""Labels: posteriors given them, their parsing, runs that hold them, and starts that heed them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pymc_mcoem.em.esteps.auxiliary_chains import AuxiliaryChains
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from pymc_mcoem.em.labels import among, labels_of, without_excluded
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.schedules import StepSize
from pymc_mcoem.laplace.modes import ModeStatus
from pymc_mcoem.templates import TemplateMixture
from pymc_mcoem.templates.clusters import allowed_labels
from tests.helpers.checks import LIMIT
from tests.helpers.e_step_runs import largest_z, repeated
from tests.helpers.executors import AtOnce
from tests.helpers.interpreted import interpreted
from tests.helpers.linear_normal import DESIGN, SEPARATED, LinearNormal
from tests.helpers.sources import Levels
from tests.helpers.toy_families import NormalMixture


def given_label(family, data, parameters, classes):
    """Return exact statistics of all classes, those of other classes dropped, scaled to one."""
    exact = family.exact(data, parameters)
    other = np.setdiff1d(np.arange(3), classes)
    for value in exact.values():
        value[other] = 0.0
    mass = exact["class_weight"].sum()
    return {name: value / mass for name, value in exact.items()}


@pytest.fixture(scope="module", params=[CarlinChibBurst(), LaplaceGaussian(), AuxiliaryChains()])
def e_step(request):
    return request.param.compile(LinearNormal())


def away_from(e_step, case, expected, classes, rng):
    """Return the largest deviation from exact statistics in some classes, in standard errors."""
    results = repeated(e_step, case, rng, repeats=40, draws=100, tune=20)
    rows = list(classes)
    found = [
        replace(each, statistics={name: each.statistics[name][rows] for name in ("x", "outer")})
        for each in results
    ]
    exact = {name: expected[name][rows] for name in ("x", "outer")}
    return max(largest_z(found, exact).values()), results


@pytest.mark.parametrize("classes", [(0, 2), (1,)])
def test_an_e_step_gives_the_posterior_given_the_label(e_step, classes, rng):
    family = LinearNormal()
    data, parameters = family.case
    expected = given_label(family, data, parameters, classes)
    labeled = data, among(family, parameters, classes)
    away, results = away_from(e_step, labeled, expected, classes, rng)
    assert away < LIMIT
    for result in results:
        weight = result.statistics["class_weight"]
        assert weight.sum() == pytest.approx(1.0)
        assert set(np.flatnonzero(weight)) <= set(classes)
    unlabeled, _ = away_from(e_step, family.case, expected, classes, rng)
    assert unlabeled > LIMIT


def test_a_label_against_all_evidence(rng):
    """The search does not give up a class because one that the label rules out is likelier."""
    family = LinearNormal()
    parameters = {**SEPARATED, "noise": np.array(0.1)}
    data = {"value": DESIGN @ SEPARATED["center"][2]}
    assert family.exact(data, parameters)["class_weight"][2] > 1 - 1e-9
    e_step = CarlinChibBurst().compile(family)
    given = among(family, parameters, (0,))
    found = e_step(data, given, rng, e_step.initial_state(), draws=50, tune=20)
    assert found.statistics["class_weight"] == pytest.approx([1.0, 0.0, 0.0])
    _, mean, covariance = family.posterior(data, parameters)
    error = np.sqrt(np.diag(covariance[0]))
    assert (np.abs(found.statistics["x"][0] - mean[0]) < 5 * error).all()


def test_classes_without_weight_get_equal_ones():
    found = among(NormalMixture(4), {"weights": np.array([1.0, 0.0, 0.0, 0.0])}, (1, 3))
    assert found["weights"].tolist() == [0.0, 0.5, 0.0, 0.5]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (1, (1,)),
        (np.int8(2), (2,)),
        (2.0, (2,)),
        (np.float32(2), (2,)),
        (np.float32(np.nan), None),
        (True, None),
        (None, None),
        (np.nan, None),
        (pd.NA, None),
        (-1, None),
        ({2, 0}, (0, 2)),
        ([1, 1], (1,)),
        (np.array([0, 1]), (0, 1)),
        ({0, 1, 2}, None),
    ],
)
def test_what_a_label_says(label, expected):
    if label is True:
        with pytest.raises(ValueError, match="labels: got True for observation 0"):
            labels_of(NormalMixture(), [label], 1)
        return
    assert list(labels_of(NormalMixture(), [label], 1)) == [expected]


@pytest.mark.parametrize("bad", [3, -2, 0.5, "two", {0, 3}, set(), [None]])
def test_a_label_that_is_no_class_is_refused_and_nothing_changes(bad):
    em = OnlineEM(NormalMixture(), e_step=Exact(), progressbar=False)
    with pytest.raises(ValueError, match=r"labels: got .* for observation 1; classes are 0 to 2"):
        em.partial_fit([0.1, 0.2, 0.3], [None, bad, None])
    assert em.position == 0


def test_labels_match_observations_of_known_number():
    em = OnlineEM(NormalMixture(), e_step=Exact(), progressbar=False)
    with pytest.raises(ValueError, match="got 2 labels for 3 observations"):
        em.partial_fit([0.1, 0.2, 0.3], [0, 1])
    with pytest.raises(ValueError, match="got 2 labels for an unknown number of observations"):
        em.partial_fit(iter([0.1, 0.2]), [0, 1])
    assert em.position == 0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (1, "got 1; give a sequence, with one for each observation"),
        (np.eye(3), r"got indicators of shape \(3, 3\); .*, labels.argmax\(axis=1\)"),
        (np.eye(3, dtype=bool), "got indicators"),
    ],
)
def test_labels_of_another_form_are_refused(labels, message):
    em = OnlineEM(NormalMixture(), e_step=Exact(), progressbar=False)
    with pytest.raises(ValueError, match=f"labels: {message}"):
        em.partial_fit([0.1, 0.2, 0.3], labels)
    assert em.position == 0


def test_labels_need_weights_that_are_a_parameter():
    em = OnlineEM(Levels(), e_step=Exact(), progressbar=False)
    with pytest.raises(TypeError, match="the probabilities of class_index are not a parameter"):
        em.partial_fit(np.zeros((2, 3)), [0, 1])


def labeled_stream(rng, n):
    labels = rng.integers(3, size=n)
    return np.array([-1.0, 0.0, 1.0])[labels] + rng.normal(size=n), labels


def run(**options):
    family = NormalMixture()
    given = {"parameters": family.declared_parameters(), **options}
    return OnlineEM(
        family, e_step=Exact(), step_size=StepSize(1.0), random_seed=1, progressbar=False, **given
    )


def test_with_all_labels_known_the_estimate_is_that_of_each_class_apart(rng):
    values, labels = labeled_stream(rng, 300)
    em = run().partial_fit(values, labels)
    found = em.parameters
    share = np.bincount(labels) / 300
    np.testing.assert_allclose(found["weights"], share, atol=1e-12)
    means = [values[labels == j].mean() for j in range(3)]
    np.testing.assert_allclose(found["means"], means, atol=1e-12)


def test_some_labels_are_worth_more_than_none(rng):
    """Classes a standard deviation apart, a third of the labels known."""
    n = 600
    values, labels = labeled_stream(rng, n)
    some = [label if i % 3 == 0 else None for i, label in enumerate(labels)]
    truth = [-1.0, 0.0, 1.0]
    error = {
        name: np.abs(run().partial_fit(values, known).parameters["means"].values - truth).max()
        for name, known in {"some": some, "none": None}.items()
    }
    # a class's labeled observations alone, n / 9 on average, would have this standard error
    assert error["some"] < LIMIT * np.sqrt(9 / n)
    assert error["some"] < error["none"]


def test_held_labels_are_saved_and_calls_may_be_divided(rng, tmp_path):
    values, labels = labeled_stream(rng, 20)
    known = [int(label) if i % 2 else None for i, label in enumerate(labels)]
    whole = run(batch_size=4).partial_fit(values, known)
    parts = run(batch_size=4).partial_fit(values[:6], known[:6])
    parts.save(tmp_path / "run.nc")
    loaded = OnlineEM.load(tmp_path / "run.nc", NormalMixture(), progressbar=False)
    loaded.partial_fit(values, known, skip=loaded.position)
    assert loaded.parameters.identical(whole.parameters)
    without = run(batch_size=4).partial_fit(values)
    assert not without.parameters.identical(whole.parameters)


def test_labels_reach_workers(rng):
    values, labels = labeled_stream(rng, 20)
    known = [int(label) if i % 2 else None for i, label in enumerate(labels)]
    here = run(batch_size=4).partial_fit(values, known)
    there = run(batch_size=4, executor=AtOnce()).partial_fit(values, known)
    assert there.parameters.identical(here.parameters)


def test_a_class_that_a_label_rules_out_is_no_trouble(rng):
    """A search there finds no density, as it should; others that find none count."""
    family = LinearNormal()
    em = OnlineEM(
        family,
        parameters=family.declared_parameters(),
        e_step=LaplaceGaussian(),
        random_seed=1,
        progressbar=False,
    ).partial_fit(family.draw(rng, 4), [0, (1, 2), None, -1])
    assert "troubles" not in em.history
    found = without_excluded({ModeStatus.NO_DENSITY.trouble: 2}, (0, 2), 3)
    assert found == {"mode search: no density": 1}


def test_a_single_observation_takes_its_label_alone():
    em = run().partial_fit(5.0, 0).partial_fit(5.0, {0, 1})
    weights = em.history["observations"]["class_weight"].values
    assert weights[0].tolist() == [1.0, 0.0, 0.0]
    assert weights[1, 2] == 0.0


def test_a_start_by_kmeans_heeds_labels(rng):
    """Each class begins where its labels are, and others take kinds that no label names."""
    kinds = np.eye(4).reshape(4, 2, 2)
    which = np.tile([3, 1, 0, 2], 10)
    images = kinds[which] + 0.1 * rng.normal(size=(40, 2, 2))
    labels = [None] * 40
    for at in range(8):
        if which[at] in (1, 2):
            labels[at] = int(which[at])
    labels[0] = {0, 3}
    mixture = TemplateMixture.for_images((2, 2), n_classes=4, n_landmarks=2)
    em = OnlineEM(mixture, n_start=41, e_step=FixedLatents(), random_seed=1, progressbar=False)
    with interpreted():
        em.partial_fit(images, labels)
    start = em.run._first_parameters(em.run.state)["templates"] @ mixture.mean_design().T
    nearest = np.square(start[:, None] - kinds.reshape(4, 4)).sum(axis=2).argmin(axis=1)
    assert nearest[[1, 2]].tolist() == [1, 2]
    assert sorted(nearest) == [0, 1, 2, 3]


def test_starting_classes_are_among_those_allowed(rng):
    values, mask = rng.normal(size=(30, 3)), np.ones((30, 3))
    allowed = rng.uniform(size=(30, 5)) < 0.4
    allowed[np.arange(30), rng.integers(5, size=30)] = True
    found = allowed_labels(values, mask, allowed, rng)
    assert allowed[np.arange(30), found].all()
