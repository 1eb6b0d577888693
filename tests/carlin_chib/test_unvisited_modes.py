"""Modes and joint values that a chain did not visit: found where it was not, nowhere else."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.carlin_chib.unvisited_modes import UnvisitedModes
from pymc_mcoem.diagnostics import ClassIndexWarning, class_index_summary

APART = np.concatenate([np.linspace(-5.0, -3.0, 4), np.linspace(3.0, 5.0, 5)])
NEAR = np.array([-2.1, -0.9, 0.3, 0.8, 1.7, -0.4])


def groups_apart(values=APART):
    """Rows of class 0 share a location, others lie anywhere: it may be that of either group."""
    mu = pm.Normal("mu", 0.0, 5.0, initval=4.0)
    k = pm.Categorical("k", [0.5, 0.5], shape=len(values))
    center, spread = mu * pt.eq(k, 0), pt.constant([0.7, 5.0])[k]
    x = pm.Normal("x", center, spread, shape=len(values), initval=values)
    pm.Normal("y", x, 0.5, observed=values)


def exact_log_odds():
    """Log-odds of a negative location against a positive one."""
    mu = np.linspace(-20.0, 20.0, 8_001)[:, None]
    near = stats.norm.logpdf(APART, mu, np.hypot(0.7, 0.5))
    far = np.broadcast_to(stats.norm.logpdf(APART, 0.0, np.hypot(5.0, 0.5)), near.shape)
    log_p = np.logaddexp(near, far).sum(axis=1) + stats.norm.logpdf(mu[:, 0], 0.0, 5.0)
    return logsumexp(log_p[mu[:, 0] < 0]) - logsumexp(log_p[mu[:, 0] > 0])


def folded_location():
    """A single index beside a location of which only the distance from zero is seen."""
    mu = pm.Normal("mu", 0.5, 3.0, initval=3.0)
    k = pm.Categorical("k", [0.5, 0.5])
    x = pm.Normal("x", 0.3 * mu * k, 1.0)
    pm.Normal("distance", pt.abs(mu), 0.15, observed=3.0)
    pm.Normal("y", x, 0.5, observed=-2.0)


def exact_log_odds_of_folded_location():
    mu = np.linspace(-6.0, 6.0, 24_001)
    log_p = stats.norm.logpdf(mu, 0.5, 3.0) + stats.norm.logpdf(3.0, np.abs(mu), 0.15)
    seen = [stats.norm.logpdf(-2.0, 0.3 * mu * k, np.hypot(1.0, 0.5)) for k in (0, 1)]
    log_p = log_p + np.logaddexp(*seen)
    return logsumexp(log_p[mu < 0]) - logsumexp(log_p[mu > 0])


def one_group():
    groups_apart(NEAR + 4.0)


def classes_that_overlap():
    mu = pm.Normal("mu", 0.0, 5.0)
    k = pm.Categorical("k", [0.5, 0.5], shape=6)
    x = pm.Normal("x", mu + pt.constant([-2.0, 2.0])[k], 0.5, shape=6)
    pm.Normal("y", x, 2.0, observed=NEAR)


def classes_without_order():
    mu = pm.Normal("mu", 0.0, 5.0, shape=2, initval=[4.0, -4.0])
    k = pm.Categorical("k", [0.5, 0.5], shape=9)
    x = pm.Normal("x", mu[k], 0.7, shape=9, initval=APART)
    pm.Normal("y", x, 0.5, observed=APART)


def hierarchy():
    mu, spread, p = pm.Normal("mu"), pm.HalfNormal("spread"), pm.Beta("p", 2.0, 2.0)
    k = pm.Bernoulli("k", p, shape=6)
    x = pm.Normal("x", mu + pt.constant([-1.0, 1.0])[k], spread, shape=6)
    pm.Normal("y", x, 0.5, observed=NEAR)


#: Joint values of four indices: of those with weight, one is two changes away from all others.
PATH = {(0, 0, 0, 0): 0.14, (1, 0, 0, 0): 0.14, (1, 1, 0, 0): 0.14, (1, 1, 1, 0): 0.14}
PATH |= {(1, 1, 1, 1): 0.14}
AWAY = (0, 1, 0, 1)


def four_indices(share_away=0.3):
    """Return four indices, each with a latent."""
    log_weight = np.full((2,) * 4, -60.0)
    for values, share in PATH.items():
        log_weight[values] = np.log(share)
    log_weight[AWAY] = np.log(share_away)
    indices = [pm.Bernoulli(f"k{i}", 0.5) for i in range(4)]
    latents = [pm.Normal(f"x{i}", 2.0 * index, 1.0) for i, index in enumerate(indices)]
    pm.Potential("weight", pt.constant(log_weight)[tuple(indices)])
    return list(zip(indices, latents, strict=True))


def searched(declare, rng, visited=()):
    """Return the log-odds of what a chain at the model's start has not visited, nor `visited`."""
    with pm.Model() as model:
        declare()
        step = CarlinChib(vars=["k", "x"])
    search, point = UnvisitedModes(step._engine), model.initial_point(random_seed=0)
    seen = [step._density.others(point), *([np.array(value)] for value in visited)]
    before = rng.bit_generator.state
    found = search.log_odds(point, seen, rng)
    assert rng.bit_generator.state == before
    return found


def test_odds_of_the_mode_of_another_group_are_nearly_exact(rng):
    assert abs(searched(groups_apart, rng) - exact_log_odds()) < 0.2


def test_odds_of_a_mode_beside_a_single_index_are_nearly_exact(rng):
    assert abs(searched(folded_location, rng) - exact_log_odds_of_folded_location()) < 0.1


def test_beside_a_single_index_a_mode_that_was_visited_is_not_found(rng):
    assert searched(folded_location, rng, visited=[-3.0]) == -np.inf


@pytest.mark.parametrize(
    "declare", [one_group, classes_that_overlap, classes_without_order], ids=lambda f: f.__name__
)
def test_of_one_mode_or_one_by_another_name_nothing_is_found(declare, rng):
    assert searched(declare, rng) == -np.inf


def test_a_mode_that_was_visited_is_not_found(rng):
    assert searched(groups_apart, rng, visited=[-3.8]) == -np.inf


def test_where_the_density_has_no_mode_there_is_no_answer(rng):
    assert np.isnan(searched(hierarchy, rng))


@pytest.mark.parametrize("share", [0.3, 0.05, 1e-4])
def test_joint_values_to_which_no_single_index_leads_are_weighed_exactly(share):
    """The latents are normal, so that Laplace's approximation is exact."""
    with pm.Model() as model:
        (first, latent), (second, other), *_ = four_indices(share)
        steps = [CarlinChib([first, latent]), CarlinChib([second, other])]
    visits = {(0, 0, 0, 0): 200} | dict.fromkeys(list(PATH)[1:], 100)
    point = model.initial_point()
    found = steps[0]._unvisited.joint_log_odds(point, visits)
    exact = np.log(share) - np.log(0.14 / (2 / 6))  # against all visits, of which two are there
    assert np.isnan(found) if share == 1e-4 else abs(found - exact) < 1e-3
    # six draws may have missed it by chance
    few = {values: number // 100 for values, number in visits.items()}
    assert np.isnan(steps[0]._unvisited.joint_log_odds(point, few))
    visited = {**visits, (0, 1, 0, 0): 1}  # from which one change leads there
    assert np.isnan(steps[0]._unvisited.joint_log_odds(point, visited))
    assert steps[0]._unvisited.is_joint and not steps[1]._unvisited.is_joint


def test_a_summary_flags_joint_values_that_were_not_visited(rng):
    with pm.Model():
        tree = pm.sample(
            step=[CarlinChib(pair, class_index=pair[0].name) for pair in four_indices()],
            tune=200,
            draws=300,
            chains=2,
            cores=1,
            initvals={f"k{i}": 0 for i in range(4)},
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            compute_convergence_checks=False,
        )
    found = np.stack([tree["posterior"][f"k{i}"].values for i in range(4)], axis=-1)
    assert not (found == AWAY).all(axis=-1).any() and np.ptp(found, axis=(0, 1)).all()
    for name in ("k0", "k3"):
        with pytest.warns(ClassIndexWarning, match="which a chain did not visit"):
            class_index_summary(tree, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "declare", [groups_apart, one_group, folded_location], ids=lambda f: f.__name__
)
def test_a_summary_flags_shares_of_one_mode(declare, rng):
    with pm.Model() as model:
        declare()
        tree = pm.sample(
            step=[CarlinChib(vars=["k", "x"]), pm.Slice([model["mu"]])],
            tune=300,
            draws=500,
            chains=2,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            compute_convergence_checks=False,
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        summary = class_index_summary(tree, "k", ess_min=40, rhat_max=1.05)
    is_found = any("modes of those that other steps draw" in flag for flag in summary.flags)
    has_jumped = (tree["posterior"]["mu"].values < 0).any()
    assert declare is one_group or not has_jumped
    assert is_found == (declare is not one_group)
    assert not any("not looked for" in note for note in summary.notes)
