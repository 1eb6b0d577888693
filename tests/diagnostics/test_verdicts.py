"""Models of which a summary once approved wrongly, or which it once alarmed about for nothing.

At full size they are sampled as a user does; the short forms have walks of a step or two.
"""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.diagnostics import ClassIndexWarning, class_index_summary
from tests.helpers.models import two_indices_that_share_a_latent

slow = pytest.mark.slow


def sampled(model, step, rng, *, draws, chains=4, tune=200):
    with model:
        return pm.sample(
            step=step,
            tune=tune,
            draws=draws,
            chains=chains,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            quiet=True,
            compute_convergence_checks=False,
        )


def judged(tree, name, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        return class_index_summary(tree, name, **options)


def settings(is_short):
    """Return what of the step is not left as it is."""
    return {"within_class": RandomWalk(n_moves=2)} if is_short else {}


def one_step_each(k_latent, j_latent, **options):
    return [
        CarlinChib(["k", k_latent], class_index="k", **options),
        CarlinChib(["j", j_latent], class_index="j", **options),
    ]


# -- two indices ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_seeds", "draws"), [(1, 60), pytest.param(10, 1_000, marks=slow)])
def test_two_indices_that_only_move_together_are_flagged_or_right(n_seeds, draws, rng):
    """What fits is (0, 0) and (1, 1); between them lie twenty of their standard deviations."""
    noise = np.sqrt(0.3**2 + 0.3**2 + 0.1**2)
    options = settings(n_seeds == 1)
    with pm.Model() as model:
        k, j = pm.Categorical("k", [0.55, 0.45]), pm.Categorical("j", [0.92, 0.08])
        x, z = pm.Normal("x", 9.0 * k, 0.3), pm.Normal("z", -9.0 * j, 0.3)
        pm.Normal("y", x + z, 0.1, observed=0.1)
        steps = one_step_each("x", "z", **options)
        runs = [
            sampled(model, steps, rng, draws=draws, chains=2, tune=draws) for _ in range(n_seeds)
        ]
    mean = 9.0 * np.subtract.outer(np.arange(2), np.arange(2))
    exact = np.outer([0.55, 0.45], [0.92, 0.08]) * stats.norm.pdf(0.1, mean, noise)
    share = (exact.sum(axis=0) / exact.sum())[1]
    assert share == pytest.approx(0.066, abs=1e-3)
    for tree in runs:
        assert np.ptp(tree["posterior"]["j"].values, axis=1).max() == 0
        for name in "kj":
            summary = judged(tree, name, ess_min=40)
            off = np.abs(summary.table["share"].values[1] - share)
            # a constant indicator has no error at all
            known = off < 5 * np.nan_to_num(summary.table["mcse"].values[1])
            assert known or not summary.ok, summary


@slow
def test_two_indices_that_share_a_latent_have_most_of_their_draws(rng):
    """The effective sample size was 71 to 800 of 10,000 where a fit was at one other value.

    The short form of this is about switches, in the tests of the step.
    """
    model = two_indices_that_share_a_latent()
    with model:
        steps = one_step_each("x", "x")
    tree = sampled(model, steps, rng, draws=2_500)
    weight = np.array([0.6, 0.4]) * stats.norm.pdf(0.2, [0.0, 0.5], np.hypot(0.25, 0.5))
    for name, exact in (("k", weight[1] / weight.sum()), ("j", 0.5)):
        summary = judged(tree, name)
        assert summary.overall["ess"] > 5_000
        error = summary.table["mcse"].values[1]
        assert np.abs(summary.table["share"].values[1] - exact) < 5 * error


# -- heavy tails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_seeds", [1, pytest.param(20, marks=slow)])
def test_cauchy_tails_that_are_off_are_flagged(n_seeds, rng):
    exact = 0.5 * 2 * stats.cauchy.sf(5.0)
    assert exact == pytest.approx(0.063, abs=5e-4)
    # an approved run has four hundred effective draws; three errors of so many are off
    off = 3 * np.sqrt(exact * (1 - exact) / 400)
    options = settings(n_seeds == 1)
    size = {"chains": 2, "draws": 400, "tune": 50} if n_seeds == 1 else {"draws": 700, "tune": 300}
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        pm.Cauchy("x", 0.0, 1.0)
        pm.Normal("y", 1.0 * k, 1.0, observed=0.5)
        step = CarlinChib(**options)
        runs = [sampled(model, step, rng, **size) for _ in range(n_seeds)]
    for tree in runs:
        far = (tree["posterior"]["k"].values == 1) & (np.abs(tree["posterior"]["x"].values) > 5)
        summary = judged(tree, "k")
        assert not summary.ok or abs(far.mean() - exact) < off, (far.mean(), summary)


# -- healthy plates -------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, pytest.param(False, marks=slow)], ids=["dims", "no dims"])
@pytest.mark.parametrize(
    ("n_rows", "n_runs", "draws"), [(20, 1, 150), pytest.param(500, 3, 500, marks=slow)]
)
def test_healthy_plates_are_approved_of(n_rows, n_runs, draws, named, rng):
    place = {"dims": "row"} if named else {"shape": n_rows}
    truth = np.where(rng.random(n_rows) < 0.5, 1.0, -1.0)
    y = truth + rng.normal(0.0, np.hypot(0.8, 0.8), size=n_rows)
    options = settings(n_rows < 500)
    with pm.Model(coords={"row": np.arange(n_rows)} if named else None) as model:
        k = pm.Categorical("k", [0.5, 0.5], **place)
        x = pm.Normal("x", 2.0 * k - 1.0, 0.8, **place)
        pm.Normal("y", x, 0.8, observed=y)
        step = CarlinChib(**options)
        runs = [sampled(model, step, rng, draws=draws, tune=draws // 2) for _ in range(n_runs)]
    for tree in runs:
        summary = judged(tree, "k", ess_min=400 if n_rows == 500 else 100)
        assert "latent_rhat" in summary.table
        assert summary.ok, summary.flags


# -- classes that no chain visited -----------------------------------------------------------------


def beside_a_mean(n_away):
    """Return a model whose last class has weight where a mean beside the step would have to go."""
    centers = np.array([0.0, 0.5, n_away])
    with pm.Model() as model:
        k = pm.Categorical("k", [0.3, 0.3, 0.4], initval=0)
        mu = pm.Normal("mu", -n_away / 2, 6.0, initval=0.0)
        x = pm.Normal("x", pm.math.stack(list(centers))[k] + mu, 0.3)
        pm.Normal("y", x, 0.3, observed=0.0)
    weight = np.array([0.3, 0.3, 0.4])
    weight *= stats.norm.pdf(0.0, centers - n_away / 2, np.sqrt(36 + 0.18))
    return model, weight / weight.sum()


@pytest.mark.parametrize(("n_seeds", "draws"), [(1, 60), pytest.param(5, 1_000, marks=slow)])
def test_a_class_that_needs_another_step_to_move_is_flagged(n_seeds, draws, rng):
    """Given the mean that NUTS draws, the third class is forty standard deviations away."""
    options = settings(n_seeds == 1)
    model, exact = beside_a_mean(-12.0)
    for _ in range(n_seeds):
        with model:
            step = CarlinChib(["k", "x"], **options)
        summary = judged(sampled(model, step, rng, draws=draws, chains=2, tune=draws), "k")
        share = summary.table["share"].values
        assert not summary.ok or np.abs(share - exact).max() < 0.05, summary
        if share[2] == 0:
            told = next(flag for flag in summary.flags if "class 2 was never" in flag)
            # by Laplace's approximation, given the two others
            assert 0.2 < float(told.split("about ")[1].split(":")[0]) < 0.6


@pytest.mark.parametrize(("n_seeds", "draws"), [(1, 60), pytest.param(5, 1_000, marks=slow)])
def test_a_class_without_weight_anywhere_is_not_flagged(n_seeds, draws, rng):
    """The mean could go there, but its prior does not let it."""
    options = settings(n_seeds == 1)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.3, 0.3, 0.4], initval=0)
        mu = pm.Normal("mu", 0.0, 0.5)
        x = pm.Normal("x", pm.math.stack([0.0, 0.5, -12.0])[k] + mu, 0.3)
        pm.Normal("y", x, 0.3, observed=0.0)
    for _ in range(n_seeds):
        with model:
            step = CarlinChib(["k", "x"], **options)
        tree = sampled(model, step, rng, draws=draws, chains=2, tune=draws)
        summary = judged(tree, "k", ess_min=5, rhat_max=1.2)
        assert summary.table["share"].values[2] == 0
        assert not any("never visited" in flag for flag in summary.flags), summary


@pytest.mark.parametrize(("n_seeds", "draws"), [(1, 60), pytest.param(5, 1_000, marks=slow)])
def test_classes_that_need_another_index_are_flagged_though_chains_move(n_seeds, draws, rng):
    """Both indices go between their first two classes, and reach their third ones only together."""
    options = settings(n_seeds == 1)
    centers, weights = [0.0, 0.5, 9.0], [0.35, 0.35, 0.3]
    with pm.Model() as model:
        k, j = (pm.Categorical(name, weights, initval=0) for name in "kj")
        x = pm.Normal("x", pm.math.stack(centers)[k], 0.3)
        z = pm.Normal("z", -pm.math.stack(centers)[j], 0.3)
        pm.Normal("y", x + z, 0.3, observed=0.0)
        steps = one_step_each("x", "z", **options)
        for _ in range(n_seeds):
            tree = sampled(model, steps, rng, draws=draws, chains=2, tune=draws)
            for name in "kj":
                summary = judged(tree, name)
                assert np.ptp(tree["posterior"][name].values, axis=1).min() > 0
                assert summary.table["share"].values[2] == 0
                assert any("class 2 was never visited" in flag for flag in summary.flags), summary


@pytest.mark.parametrize(("n_seeds", "draws"), [(1, 60), pytest.param(5, 1_000, marks=slow)])
def test_rows_that_need_those_of_another_plate_are_flagged_though_they_move(n_seeds, draws, rng):
    """As of two single indices: rows reach their third classes only together."""
    options = settings(n_seeds == 1)
    centers, weights, y = [0.0, 0.3, 6.0], [0.35, 0.35, 0.3], np.array([0.2, -0.1])
    start = {"shape": len(y), "initval": np.zeros(len(y), dtype=int)}
    with pm.Model() as model:
        k, j = (pm.Categorical(name, weights, **start) for name in "kj")
        x = pm.Normal("x", pm.math.stack(centers)[k], 0.1, shape=len(y))
        z = pm.Normal("z", -pm.math.stack(centers)[j], 0.1, shape=len(y))
        pm.Normal("y", x + z, 0.3, observed=y)
        steps = one_step_each("x", "z", **options)
    mean = np.subtract.outer(centers, centers)[None]
    exact = np.outer(weights, weights) * stats.norm.pdf(y[:, None, None], mean, np.sqrt(0.11))
    share = exact[:, 2].sum(axis=1) / exact.sum(axis=(1, 2))
    assert (share > 0.15).all()
    for _ in range(n_seeds):
        tree = sampled(model, steps, rng, draws=draws, chains=2, tune=draws)
        for name in "kj":
            assert np.ptp(tree["posterior"][name].values, axis=1).min() > 0
            assert (tree["posterior"][name].values < 2).all()
            flags = judged(tree, name).flags
            assert any("were never visited, and neither did" in flag for flag in flags), flags


@slow
def test_a_class_hardly_visited_for_another_index_is_flagged_of_both(rng):
    """(1, 1) is four standard deviations away, so that chains get there once in a thousand."""
    weights, c = np.array([0.93, 0.07]), 4.0
    with pm.Model() as model:
        k, j = pm.Categorical("k", [0.5, 0.5]), pm.Categorical("j", weights)
        x, z = pm.Normal("x", c * k, 1.0), pm.Normal("z", -c * j, 1.0)
        pm.Normal("y", x + z, 0.5, observed=0.0)
        steps = one_step_each("x", "z")
    mean = c * np.subtract.outer(np.arange(2), np.arange(2))
    exact = 0.5 * weights * stats.norm.pdf(0.0, mean, 1.5)
    exact /= exact.sum()
    n_far = 0
    for _ in range(6):
        tree = sampled(model, steps, rng, draws=1_000, tune=500, chains=2)
        for name, share in (("k", exact.sum(axis=1)[1]), ("j", exact.sum(axis=0)[1])):
            summary = judged(tree, name)
            off = abs(summary.table["share"].values[1] - share)
            n_far += off > 0.04
            assert off < 0.04 or not summary.ok, summary
    assert n_far > 0
