"""Pseudo-priors judged by the ratios at what was drawn from them, and named in the log."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_prior_checks import PseudoPriorCheck
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.checks import LIMIT
from tests.helpers.count_plate import counts_model


def judged(ratios, classes):
    check = PseudoPriorCheck(len(ratios))
    for k, row in zip(classes, ratios, strict=True):
        check.see(np.array(k), row)
    return check.verdicts()


def test_perfect_pseudo_priors_have_nothing_said_of_them(rng):
    ratios = np.tile([-1.0, -2.0, -3.0], (400, 1))
    assert judged(ratios, rng.integers(3, size=400)) == []


def test_the_effective_share_is_that_of_the_draws_of_inactive_classes(rng):
    """Ratios exp(s z) have an effective share of exp(−s²) in the limit: here of 0.027."""
    n, s = 4_000, 1.9
    classes = rng.integers(2, size=n)
    ratios = np.stack([np.zeros(n), s * rng.standard_normal(n) - s**2 / 2], axis=1)
    # what is not at a draw of the pseudo-prior must not be looked at
    ratios[classes == 1, 1] = 50.0
    (verdict,) = judged(ratios, classes)
    assert (verdict.class_number, verdict.n_rows) == (1, 1)
    assert verdict.n_draws == np.sum(classes == 0)
    weight = np.exp(ratios[classes == 0, 1])
    share = weight.sum() ** 2 / (weight**2).sum() / len(weight)
    assert verdict.effective_share == pytest.approx(share)
    assert 0.01 < share < 0.1
    assert f"Pareto k {verdict.pareto_k:.2f}" in str(verdict)


def test_classes_out_of_reach_and_few_draws_are_passed_over(rng):
    n = 400
    noise = 4.0 * rng.standard_normal(n)
    assert judged(np.stack([np.zeros(n), noise - 60.0], axis=1), np.zeros(n, int)) == []
    assert judged(np.stack([np.zeros(n), noise], axis=1)[:40], np.zeros(40, int)) == []
    assert len(judged(np.stack([np.zeros(n), noise], axis=1), np.zeros(n, int))) == 1


def test_rows_of_a_plate_are_counted(rng):
    n, n_rows = 300, 5
    ratios = np.zeros((n, n_rows, 3))
    ratios[:, :2, 2] = 5.0 * rng.standard_normal((n, 2))
    (verdict,) = judged(ratios, np.zeros((n, n_rows), dtype=int))
    assert (verdict.class_number, verdict.n_rows) == (2, 2)
    assert "in 2 rows" in str(verdict)


def test_no_more_than_asked_for_is_kept():
    check = PseudoPriorCheck(n_sweeps=3)
    for _ in range(5):
        check.see(np.array(0), np.zeros(2))
    assert len(check._ratios) == 3
    assert PseudoPriorCheck(0).verdicts() == []


# -- in the step ----------------------------------------------------------------------------------


class Astray:
    """A rule: normal pseudo-priors, that of class 1 beside its place."""

    def compile(self, density, geometry, mode=None):
        def rule(data, rng, others=()):
            mean = np.array([[-0.3, 0.0], [2.9, -1.3]])
            covariance = np.tile(np.eye(2) * 0.4, (2, 1, 1))
            return PseudoPriors.from_covariance(mean, covariance, np.zeros(2))

        return rule


def astray_step(**options):
    """Return a step with a pseudo-prior beside its class."""
    k = pm.Categorical("kind", [0.5, 0.5])
    x = pm.Normal("x", 2.0 * k - 1.0, 0.8, shape=2)
    pm.Normal("y", x, 1.0, observed=[0.1, 0.4])
    return CarlinChib(pseudo_priors=Astray(), within_class=RandomWalk(2), **options)


@pytest.mark.parametrize("auxiliaries", ["refreshed", "frozen"])
def test_a_poor_pseudo_prior_is_named_once_a_chain(caplog, auxiliaries):
    with pm.Model():
        step = astray_step(auxiliaries=auxiliaries)
        with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
            pm.sample(
                step=step,
                tune=400,
                draws=5,
                chains=2,
                cores=1,
                random_seed=4,
                progressbar=False,
                compute_convergence_checks=False,
            )
    said = [record.message for record in caplog.records if "poor" in record.message]
    assert len(said) == 2
    assert all("kind: poor pseudo-priors of class 1 (Pareto k" in each for each in said)


def judged_at_the_end(step, model, tune=20):
    """Return ratios, active classes and verdicts after a short chain has been tuned."""
    step.setup_chain(np.random.default_rng(0), tune=tune, draws=5)
    point = model.initial_point(0)
    for _ in range(tune):
        point = step.step(point)[0]
    before = step.sampling_state
    step.stop_tuning()
    after = step.sampling_state
    assert before.rng == after.rng
    np.testing.assert_array_equal(before.chain.frozen_auxiliaries, after.chain.frozen_auxiliaries)
    check = step.chain.fits._check
    return np.stack(check._ratios), np.stack(check._classes), check.verdicts()


def test_frozen_auxiliaries_are_judged_by_draws_made_for_it():
    """Independent ones of both pseudo-priors, whose ratios have a mean in closed form."""
    with pm.Model() as model:
        step = astray_step(auxiliaries="frozen")
    ratios, classes, (verdict,) = judged_at_the_end(step, model)
    np.testing.assert_array_equal(np.bincount(classes), [250, 250])
    assert verdict.class_number == 1
    # normal over normal, each of two coordinates: the ratio is exp of a quadratic form
    found = ratios[classes == 0, 1]
    assert len(np.unique(found)) == 250
    z = (found - found.mean()) / found.std()
    assert abs(np.mean(z[1:] * z[:-1])) < 5 / np.sqrt(250)
    precision = 1 / 0.8**2 + 1.0
    center = (1.0 / 0.8**2 + np.array([0.1, 0.4])) / precision
    away = center - np.array([2.9, -1.3])
    # log p − log κ at m + L e: its mean, up to the evidence, against the exact expectation
    log_evidence = np.log(0.5) + stats.norm.logpdf([0.1, 0.4], 1.0, np.hypot(0.8, 1.0)).sum()
    expected = log_evidence + np.sum(
        0.5 * np.log(precision * 0.4) + 0.5 - 0.5 * precision * (0.4 + away**2)
    )
    assert abs(found.mean() - expected) < LIMIT * found.std() / np.sqrt(250)


def test_good_pseudo_priors_have_nothing_said_of_them_where_they_are_frozen():
    """Normal classes, whose Laplace approximations are exact."""
    with pm.Model() as model:
        k = pm.Categorical("kind", [0.5, 0.5])
        x = pm.Normal("x", 2.0 * k - 1.0, 0.8, shape=2)
        pm.Normal("y", x, 1.0, observed=[0.1, 0.4])
        step = CarlinChib(within_class=RandomWalk(2), auxiliaries="frozen")
    assert judged_at_the_end(step, model)[2] == []


def test_a_chain_that_is_not_tuned_is_not_judged():
    """A driver stops tuning before the first draw."""
    with pm.Model():
        step = astray_step(auxiliaries="frozen")
    step.setup_chain(np.random.default_rng(0), tune=0, draws=5)
    step.stop_tuning()
    assert step.chain.fits._check.verdicts() == []


def test_no_jump_is_made_where_pseudo_priors_are_judged(monkeypatch):
    with pm.Model() as model:
        step = astray_step(auxiliaries="frozen", jump=AnnealedJump(n_temperatures=1))
    made = []
    jump = step._engine._jump
    monkeypatch.setattr(step._engine, "_jump", lambda *given: made.append(1) or jump(*given))
    _, _, (verdict,) = judged_at_the_end(step, model, tune=20)
    assert (verdict.n_draws, verdict.class_number) == (250, 1)
    assert len(made) == 20


class FarOff:
    """A rule: the pseudo-prior of class 0 is where nothing of the class is."""

    def compile(self, density, geometry, mode=None):
        def rule(data, rng, others=()):
            mean = np.array([[9.0, 9.0], [0.6, 0.7]])
            covariance = np.tile(np.eye(2) * 0.4, (2, 1, 1))
            return PseudoPriors.from_covariance(mean, covariance, np.zeros(2))

        return rule


def test_the_pseudo_prior_of_a_class_that_is_never_left_is_judged():
    """The chain begins in class 0: it is at fault, and no sweep draws from its pseudo-prior."""
    with pm.Model() as model:
        k = pm.Categorical("kind", [0.5, 0.5], initval=0)
        x = pm.Normal("x", 2.0 * k - 1.0, 0.8, shape=2)
        pm.Normal("y", x, 1.0, observed=[0.1, 0.4])
        step = CarlinChib(pseudo_priors=FarOff(), within_class=RandomWalk(2))
    _, _, verdicts = judged_at_the_end(step, model, tune=400)
    assert step.n_switches == 0
    assert [verdict.class_number for verdict in verdicts] == [0]


def test_where_one_class_has_everything_nothing_is_judged_anew():
    """Of two classes one is far below: no draws of the other are needed."""
    with pm.Model() as model:
        k = pm.Categorical("kind", [0.5, 0.5])
        x = pm.Normal("x", 40.0 * k, 0.8, shape=2)
        pm.Normal("y", x, 1.0, observed=[0.1, 0.4])
        step = CarlinChib(within_class=RandomWalk(2))
    ratios, classes, verdicts = judged_at_the_end(step, model, tune=150)
    assert (len(ratios), set(classes.tolist()), verdicts) == (150, {0}, [])


def test_the_last_of_short_tuning_is_judged_too():
    """Refits empty what was seen, and the quarter after the last has not draws enough."""
    with pm.Model() as model:
        pm.Normal("other")
        k = pm.Categorical("kind", [0.5, 0.5])
        x = pm.Normal("x", 2.0 * k - 1.0, 0.8, shape=2)
        pm.Normal("y", x, 1.0, observed=[0.1, 0.4])
        step = CarlinChib([k, x], pseudo_priors=Astray(), within_class=RandomWalk(2))
    _ratios, classes, (verdict,) = judged_at_the_end(step, model, tune=40)
    assert verdict.class_number == 1
    np.testing.assert_array_equal(np.bincount(classes), [250, 250])


@pytest.mark.parametrize("auxiliaries", ["refreshed", "frozen"])
def test_poor_rows_of_a_plate_are_named(caplog, monkeypatch, auxiliaries):
    model = counts_model()
    with model:
        step = CarlinChib(within_class=RandomWalk(n_moves=2), auxiliaries=auxiliaries)
    fit = step._engine.fit

    def astray(rng, others):
        found = fit(rng, others)
        return replace(found, mean=found.mean + np.array([0.0, 0.0, 2.5]))

    monkeypatch.setattr(step._engine, "fit", astray)
    step.setup_chain(np.random.default_rng(0), tune=200, draws=5)
    point = model.initial_point(0)
    for _ in range(200):
        point = step.step(point)[0]
    with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
        step.stop_tuning()
    assert "rows (effective share" in caplog.text
