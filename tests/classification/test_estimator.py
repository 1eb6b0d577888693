"""Template mixtures as estimators of scikit-learn."""

from __future__ import annotations

import pickle
import warnings
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from pymc_mcoem.classification.estimator import TemplateClustering, _mixture
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.schedules import BurstLength
from pymc_mcoem.templates import TemplateMixture

POINTS = np.arange(10.0)
SHORT = {"burst_length": BurstLength(5, tune=5), "n_start": 10}


def bumps(rng, n, *, strays=0.6):
    """Return curves with one bump or two, each on a clock of its own, and which have two."""
    two = rng.random(n) < 0.5
    at = POINTS + rng.normal(0, strays, size=(n, 1)) * np.sin(np.pi * POINTS / 9)
    one = 3 * np.exp(-np.square(at - 4.5) / 2)
    other = 3 * np.exp(-np.square(at - 2.0)) + 3 * np.exp(-np.square(at - 7.0))
    return np.where(two[:, None], other, one) + 0.1 * rng.normal(size=(n, 10)), two.astype(int)


def make(n_classes):
    return TemplateMixture.for_curves(
        POINTS, n_classes, n_landmarks=12, n_warp_kernels=4, scale=None, coefficients="real"
    )


def estimator(**options):
    given = {"make_mixture": make, "em_options": SHORT, "draws": 10, "tune": 5, "random_seed": 1}
    return TemplateClustering(**{**given, **options})


@pytest.fixture(scope="module")
def curves():
    return bumps(np.random.default_rng(3), 60)


@pytest.fixture(scope="module")
def fitted(curves):
    return estimator().fit(curves[0])


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_scikit_learn_takes_it_for_an_estimator(every):
    tiny = TemplateClustering(
        draws=2, tune=0, random_seed=0, em_options={**SHORT, "burst_length": BurstLength(2)}
    )
    checks = list(estimator_checks_generator(tiny))
    assert len(checks) > 40
    skipped = set()
    for each, check in checks[::every]:
        try:
            check(each)
        except SkipTest:
            skipped.add(check.func.__name__)
    # it needs a variable of the environment that SciPy reads when it is imported
    assert skipped <= {"check_array_api_input"}


def test_shapes_are_told_apart_and_aligned(fitted, rng):
    rows, two = bumps(rng, 30)
    rows[::3, 8:] = np.nan
    found = fitted.predict(rows)
    assert adjusted_rand_score(two, found) > 0.85
    shares = fitted.predict_proba(rows)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_array_equal(shares.argmax(axis=1), found)
    aligned = fitted.transform(rows)
    assert np.isfinite(aligned).all()
    whole = ~np.isnan(rows).any(axis=1)
    for label in (0, 1):
        inside = whole & (two == label)
        spread, before = (np.var(each[inside], axis=0).mean() for each in (aligned, rows))
        assert spread < 0.6 * before
    # where a row has ended, it goes on as the template
    rest = np.concatenate([aligned[~whole & (two == label), 9] for label in (0, 1)])
    assert np.abs(rest).max() < 1.0


def test_it_stands_in_a_pipeline_and_in_a_search(curves):
    rows, two = curves
    rows = np.where(np.random.default_rng(0).random(rows.shape) < 0.05, np.nan, rows)
    pipeline = make_pipeline(estimator(), PCA(1)).fit(rows)
    scores = pipeline.transform(rows)[:, 0]
    assert adjusted_rand_score(two, scores > np.median(scores)) > 0.5
    search = GridSearchCV(estimator(), {"n_classes": [1, 2]}, cv=2).fit(rows)
    assert search.best_params_ == {"n_classes": 2}
    named = pd.DataFrame(rows, columns=[f"age {age:g}" for age in POINTS])
    out = estimator().set_output(transform="pandas").fit(named).transform(named[:2])
    assert list(out.columns) == list(named.columns)


def test_clones_share_what_is_compiled(fitted, curves):
    again = estimator(random_seed=1).fit(curves[0])
    assert again.mixture_ is fitted.mixture_
    assert again.parameters_.equals(fitted.parameters_)
    # runs of one mixture do not learn from each other
    other = estimator(random_seed=2).fit(curves[0][:30])
    assert not other.parameters_.equals(fitted.parameters_)
    np.testing.assert_array_equal(again.predict_proba(curves[0]), fitted.predict_proba(curves[0]))


def test_rows_come_in_parts_and_runs_go_on_elsewhere(curves):
    rows = curves[0][:24]
    whole = estimator().partial_fit(rows)
    parts = estimator().partial_fit(rows[:15])
    parts = pickle.loads(pickle.dumps(parts)).partial_fit(rows[15:])
    assert parts.parameters_.equals(whole.parameters_)
    assert parts.em_.n_seen == 24
    np.testing.assert_array_equal(parts.score_samples(rows), whole.score_samples(rows))
    assert parts.fit(rows).em_.n_seen == 24
    assert estimator(n_passes=2).fit(rows).em_.n_seen == 48


def test_images_are_rows_of_pixels(rng):
    images = rng.normal(0, 0.1, size=(14, 4, 3))
    images[::2, 1:3, 1] += 2.0
    rows = images.reshape(14, 12)
    rows[3, 5] = np.nan
    found = TemplateClustering(shape=(4, 3), e_step=FixedLatents(), random_seed=1).fit(rows)
    assert found.em_.run.settings.e_step == FixedLatents()
    labels = found.predict(rows)
    assert (labels[::2] == labels[0]).all()
    assert (labels[1::2] != labels[0]).all()
    assert found.parameters_.sizes["basis"] == 12
    with pytest.raises(ValueError, match=r"X has 11 columns, and images of shape \(4, 3\) have 12"):
        TemplateClustering(shape=(4, 3)).fit(rows[:, :11])


@pytest.mark.parametrize("unit", [3e-4, 1e4])
@pytest.mark.parametrize("shape", [None, (4, 2), (2, 2, 2)])
def test_the_default_mixture_has_the_unit_of_the_rows(unit, shape, curves):
    """All numbers in the unit of the rows are multiplied by it, and labels are the same."""
    rows, two = curves
    rows = rows[:, 1:9] - 1.0
    default = TemplateClustering(shape=shape, e_step=FixedLatents(), random_seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small, large = (clone(default).fit(size * rows) for size in (1.0, unit))
    np.testing.assert_allclose(
        large.parameters_["templates"], unit * small.parameters_["templates"], rtol=1e-6
    )
    np.testing.assert_array_equal(large.predict(unit * rows), small.predict(rows))
    assert adjusted_rand_score(two, large.predict(unit * rows)) > 0.5


def test_the_sign_of_the_default_mixture_is_that_of_the_curves(curves):
    rows = np.abs(curves[0])
    # the first half has one sign
    for given, expected in ((rows, "nonnegative"), (np.vstack([rows, -rows]), "real")):
        found = TemplateClustering(e_step=FixedLatents(), random_seed=1).fit(given)
        assert found.mixture_.settings.coefficients == expected
    # rows that come later may have another sign
    found = TemplateClustering(e_step=FixedLatents(), random_seed=1).partial_fit(rows)
    assert found.mixture_.settings.coefficients == "real"


def test_images_are_dark_where_none_has_a_pixel(rng):
    rows = 1e-3 * np.abs(rng.normal(5.0, 1.0, size=(20, 9)))
    options = {"shape": (3, 3), "e_step": FixedLatents(), "random_seed": 1}
    found = TemplateClustering(**options).fit(rows)
    assert np.all(found.mixture_.priors.template_mean == 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_classes": 0}, "n_classes: got 0"),
        ({"draws": 0}, "draws is 0"),
        ({"random_seed": -1}, "random_seed: got -1"),
        ({"make_mixture": lambda n: make(n + 1)}, "make_mixture: got TemplateMixture.* as many"),
        (
            {"make_mixture": lambda n: TemplateMixture.for_curves(POINTS, n, own_points=12)},
            "make_mixture: its curves have points of their own",
        ),
        ({"make_mixture": lambda n: None}, "make_mixture: got None for 2 classes"),
        (
            {"make_mixture": lambda n: TemplateMixture.for_curves(POINTS[:9], n)},
            r"X has 10 columns, and the mixture of make_mixture observations of shape \(9,\)",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(options, message, curves):
    with pytest.raises((ValueError, TypeError), match=message):
        estimator(**options).fit(curves[0])


def test_what_fails_to_fit_leaves_what_was_learned(curves):
    found = estimator().fit(curves[0][:20])
    before = found.predict_proba(curves[0][:5])
    bad = curves[0][:20].copy()
    bad[7] = np.nan
    with pytest.raises(ValueError, match="refused"):
        found.fit(bad)
    np.testing.assert_array_equal(found.predict_proba(curves[0][:5]), before)


def test_what_cannot_be_answered_is_said(fitted, curves):
    with pytest.raises(NotFittedError):
        estimator().predict(curves[0])
    empty = curves[0][:3].copy()
    empty[1] = np.nan
    for call in (fitted.predict, fitted.transform, fitted.score):
        with pytest.raises(ValueError, match=r"observation 1 .* was refused: .* missing"):
            call(empty)
    with pytest.raises(ValueError, match="n_features = 1; a curve has at least two points"):
        TemplateClustering().fit(np.ones((5, 1)))
    silent = pickle.loads(pickle.dumps(fitted)).set_params(e_step=CarlinChibBurst.as_in_paper())
    with pytest.raises(ValueError, match=r"e_step: .* gives no evidence; give another"):
        silent.score(curves[0][:2])


def test_mixtures_are_made_once():
    assert _mixture(make, (10,), 2) is _mixture(make, (10,), 2)
    assert _mixture(None, (6,), 2) is not _mixture(None, (6,), 3)
