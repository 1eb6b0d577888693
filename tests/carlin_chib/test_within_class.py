"""The random walk: symmetric proposals, the Metropolis rule at chosen noise, both branches."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytest
from scipy import integrate

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk, log_uniform
from pymc_mcoem.density.class_density import ClassDensity
from tests.helpers.models import N_CLASSES, ScaledMixture
from tests.helpers.moves import SCALE, compile_move, pair_of

pytestmark = pytest.mark.usefixtures("module_without_compiler")


@pytest.fixture(scope="module")
def family(module_without_compiler):
    return ScaledMixture()


@pytest.fixture(scope="module")
def density(family):
    return ClassDensity(family.model, family.class_index, family.latents)


@pytest.fixture(scope="module")
def one_move(density):
    return compile_move(density, RandomWalk(1))


@pytest.fixture(scope="module")
def four_moves(density):
    return compile_move(density, RandomWalk(4))


@pytest.mark.parametrize("k", range(N_CLASSES))
def test_the_metropolis_rule_on_both_branches(family, one_move, rng, k):
    met = set()
    for _ in range(20):
        x, z = rng.normal(scale=0.7, size=3), rng.normal(size=3)
        log_step = rng.uniform(-1, 1)
        proposal = x + math.exp(log_step) * SCALE @ z
        log_ratio = family.log_density(k, proposal) - family.log_density(k, x)
        for log_u in (log_ratio - 1e-6, log_ratio + 1e-6, -1e-9, -30.0):
            if log_u >= 0:
                continue
            moved, acceptance, _ = one_move(
                np.int64(k), x, np.concatenate([z, pair_of(log_u)]), SCALE, log_step
            )
            accept = log_u < log_ratio
            np.testing.assert_allclose(moved, proposal if accept else x, rtol=1e-12, atol=1e-12)
            assert acceptance == float(accept)
            met.add((accept, log_ratio > 0))
    # Accepted and rejected downhill, accepted uphill; uphill nothing is ever rejected.
    assert met == {(True, False), (False, False), (True, True)}


def test_the_way_back_is_proposed_by_the_opposite_noise(family, one_move, rng):
    """With the rule above, and equal densities of z and -z, that is detailed balance."""
    for _ in range(20):
        k = int(rng.integers(N_CLASSES))
        x, z, log_step = rng.normal(scale=0.5, size=3), rng.normal(size=3), rng.uniform(-1, 0)
        there, *_ = one_move(np.int64(k), x, np.concatenate([z, pair_of(-500.0)]), SCALE, log_step)
        back, *_ = one_move(
            np.int64(k), there, np.concatenate([-z, pair_of(-500.0)]), SCALE, log_step
        )
        np.testing.assert_allclose(back, x, rtol=0, atol=1e-12)


def test_several_moves_are_single_moves_one_after_another(one_move, four_moves, rng):
    for _ in range(10):
        k, log_step = np.int64(rng.integers(N_CLASSES)), rng.uniform(-1, 0.5)
        x, noise = rng.normal(scale=0.5, size=3), rng.standard_normal((4, 5))
        expected, accepted = x, 0.0
        for row in noise:
            expected, share, _ = one_move(k, expected, row, SCALE, log_step)
            accepted += share
        moved, acceptance, _ = four_moves(k, x, noise.ravel(), SCALE, log_step)
        np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-12)
        assert acceptance == pytest.approx(accepted / 4)


def test_points_that_cannot_be_evaluated_are_never_accepted(one_move):
    # At log scale = 1000 Gamma's log-density is infinity minus infinity.
    x = np.zeros(3)
    noise = np.concatenate([[0.0, 0.0, 1.0], pair_of(-600.0)])
    moved, acceptance, _ = one_move(np.int64(0), x, noise, np.diag([1.0, 1.0, 1e3]), 0.0)
    np.testing.assert_array_equal(moved, x)
    assert acceptance == 0.0


def test_from_a_point_without_density_the_first_with_density_is_taken(one_move):
    # At a scale of exp(700) the square of the residual overflows.
    x = np.array([0.0, 0.0, 700.0])
    noise = np.concatenate([[0.0, 0.0, -700.0], pair_of(-1e-6)])
    moved, acceptance, _ = one_move(np.int64(0), x, noise, np.eye(3), 0.0)
    np.testing.assert_array_equal(moved, np.zeros(3))
    assert acceptance == 1.0


def test_no_moves_leave_the_latents_alone(density, rng):
    move = compile_move(density, RandomWalk(0))
    x = rng.normal(size=3)
    moved, acceptance, _ = move(np.int64(1), x, np.zeros(0), SCALE, 0.0)
    np.testing.assert_array_equal(moved, x)
    assert np.isnan(acceptance)


def test_half_a_squared_radius_is_the_logarithm_of_a_uniform():
    # P(log U < log t) = ∫∫ over the outside of a circle of the normal density, in polar form.
    for t in (0.01, 0.3, 0.9):
        radius = math.sqrt(-2 * math.log(t))
        outside, _ = integrate.quad(lambda r: r * math.exp(-(r**2) / 2), radius, np.inf)
        assert outside == pytest.approx(t, abs=1e-10)
        for angle in (0.0, 1.0, 4.0):
            pair = radius * np.array([math.cos(angle), math.sin(angle)])
            assert log_uniform(pair) == pytest.approx(math.log(t))


def test_the_first_step_size_falls_with_the_dimension():
    assert RandomWalk().initial_log_step(1) == pytest.approx(math.log(1.7))
    assert RandomWalk().initial_log_step(100) == pytest.approx(math.log(0.17))
    assert math.isfinite(RandomWalk().initial_log_step(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_moves": -1}, "n_moves: got -1; give 0 or a positive number"),
        ({"target_acceptance": 0.0}, "target_acceptance: got 0.0; give a share between"),
        ({"target_acceptance": 1.0}, "target_acceptance: got 1.0; give a share between"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RandomWalk(**settings)


def test_a_latent_of_one_dimension_moves_too():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0 * k, 1.0, shape=1)
    move = compile_move(ClassDensity(model, k, [x]), RandomWalk(2))
    noise = np.concatenate([[0.5], pair_of(-50.0), [-2.0], pair_of(-50.0)])
    moved, acceptance, _ = move(np.int64(0), np.array([0.1]), noise, np.array([[2.0]]), 0.0)
    assert moved == pytest.approx([0.1 + 2 * (0.5 - 2.0)])
    assert acceptance == 1.0
