"""Hamiltonian moves: there and back, the Metropolis rule, steps that vary, the longest step."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.op import Op

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.family import Family
from tests.helpers.models import N_CLASSES, ScaledMixture
from tests.helpers.moves import SCALE, compile_move, pair_of

pytestmark = pytest.mark.usefixtures("module_without_compiler")

N_LEAPFROG = 5
SHORTEST, LONGEST = 0.5, 1.5


@pytest.fixture(scope="module")
def family(module_without_compiler):
    return ScaledMixture()


@pytest.fixture(scope="module")
def density(family):
    return ClassDensity(family.model, family.class_index, family.latents)


@pytest.fixture(scope="module")
def one_move(density):
    return compile_move(density, Hamiltonian(1, N_LEAPFROG))


@pytest.fixture(scope="module")
def gradient(density):
    k, x = pt.scalar("k", dtype="int64"), pt.vector("x", shape=(density.n_latents,))
    return pytensor.function([k, x], density.gradient(k, x))


def trajectory(gradient, k, x, p, step):
    """Return where a trajectory ends, and with what momentum: drift, kick, drift."""
    for _ in range(N_LEAPFROG):
        x = x + 0.5 * step * SCALE @ p
        p = p + step * SCALE.T @ gradient(np.int64(k), x)
        x = x + 0.5 * step * SCALE @ p
    return x, p


def row(momentum, log_u, u):
    """Return the noise of one move: momentum, acceptance, and the step's place between 0 and 1."""
    return np.concatenate([momentum, pair_of(log_u), pair_of(math.log(u))])


def drawn(rng):
    """Return class, position, momentum, the logarithm of a step below the longest, and u."""
    k, x = int(rng.integers(N_CLASSES)), rng.normal(scale=0.5, size=3)
    return k, x, rng.normal(size=3), rng.uniform(-2.5, math.log(2 / N_LEAPFROG)), rng.uniform()


def test_the_metropolis_rule_on_both_branches(family, one_move, gradient, rng):
    met = set()
    for _ in range(20):
        k, x, p, log_step, u = drawn(rng)
        step = math.exp(log_step) * (SHORTEST + u)
        end, last = trajectory(gradient, k, x, p, step)
        log_ratio = family.log_density(k, end) - family.log_density(k, x)
        log_ratio += 0.5 * (p @ p - last @ last)
        for log_u in (log_ratio - 1e-6, log_ratio + 1e-6, -1e-9, -30.0):
            if log_u >= 0:
                continue
            moved, acceptance, _ = one_move(np.int64(k), x, row(p, log_u, u), SCALE, log_step)
            accept = log_u < log_ratio
            np.testing.assert_allclose(moved, end if accept else x, rtol=1e-10, atol=1e-10)
            assert acceptance == float(accept)
            met.add((accept, log_ratio > 0))
    assert met == {(True, False), (False, False), (True, True)}


def test_the_way_back_takes_the_opposite_momentum_and_the_same_step(one_move, gradient, rng):
    """With the rule above, and a step that looks at nothing, that is detailed balance."""
    for _ in range(20):
        k, x, p, log_step, u = drawn(rng)
        _, last = trajectory(gradient, k, x, p, math.exp(log_step) * (SHORTEST + u))
        there, *_ = one_move(np.int64(k), x, row(p, -500.0, u), SCALE, log_step)
        back, *_ = one_move(np.int64(k), there, row(-last, -500.0, u), SCALE, log_step)
        np.testing.assert_allclose(back, x, rtol=0, atol=1e-10)
        assert np.abs(there - x).max() > 1e-3


@pytest.mark.parametrize(("u", "factor"), [(1e-12, SHORTEST), (0.5, 1.0), (1.0, LONGEST)])
def test_the_step_of_a_trajectory_is_drawn_for_it(one_move, gradient, rng, u, factor):
    k, x, p, log_step, _ = drawn(rng)
    end, _ = trajectory(gradient, k, x, p, factor * math.exp(log_step))
    moved, *_ = one_move(np.int64(k), x, row(p, -500.0, u), SCALE, log_step)
    np.testing.assert_allclose(moved, end, rtol=1e-8)


def test_no_tuned_trajectory_is_longer_than_two(one_move, gradient, rng):
    longest = math.log(2 / N_LEAPFROG)
    k, x, p, *_ = drawn(rng)
    end, _ = trajectory(gradient, k, x, p, math.exp(longest))
    for log_step in (longest, longest + 5):
        moved, *_ = one_move(np.int64(k), x, row(p, -500.0, 0.5), SCALE, log_step)
        np.testing.assert_allclose(moved, end, rtol=1e-10)
    assert Hamiltonian(1, N_LEAPFROG).initial_log_step(1) == longest
    assert Hamiltonian(1, 2).initial_log_step(10_000) == pytest.approx(math.log(0.1))


def test_the_step_does_not_grow_beyond_the_longest(one_move, rng):
    longest = math.log(2 / N_LEAPFROG)
    k, x, p, *_ = drawn(rng)
    for log_step, log_u, expected in (
        (longest - 1e-9, -500.0, 0.2),
        (longest, -500.0, 0.0),
        (longest + 3, -500.0, 0.0),
        (longest + 3, -1e-12, None),
    ):
        if expected is None:  # where it is refused it shrinks, from wherever it is
            far = p * 50
            moved, acceptance, error = one_move(
                np.int64(k), x, row(far, log_u, 1.0), SCALE, log_step
            )
            np.testing.assert_array_equal(moved, x)
            assert (acceptance, error) == (0.0, -0.8)
        else:
            _, acceptance, error = one_move(np.int64(k), x, row(p, log_u, 0.5), SCALE, log_step)
            assert acceptance == 1.0
            assert error == pytest.approx(expected)


def test_several_moves_are_single_moves_one_after_another(density, one_move, rng):
    three = compile_move(density, Hamiltonian(3, N_LEAPFROG))
    for _ in range(5):
        k, x, _, log_step, _ = drawn(rng)
        noise = rng.standard_normal((3, 7))
        expected, accepted = x, 0.0
        for each in noise:
            expected, share, _ = one_move(np.int64(k), expected, each, SCALE, log_step)
            accepted += share
        moved, acceptance, _ = three(np.int64(k), x, noise.ravel(), SCALE, log_step)
        np.testing.assert_allclose(moved, expected, rtol=1e-10, atol=1e-12)
        assert acceptance == pytest.approx(accepted / 3)


def test_coordinates_that_are_not_active_stay(density, family, rng):
    class Part(ClassDensity):
        active = np.array([[True, False, True]] * N_CLASSES)

    part = Part(family.model, family.class_index, family.latents)
    move = compile_move(part, Hamiltonian(1, N_LEAPFROG))
    for _ in range(5):
        k, x, p, log_step, u = drawn(rng)
        moved, *_ = move(np.int64(k), x, row(p, -500.0, u), SCALE, log_step)
        assert moved[1] == x[1]
        assert moved[0] != x[0]


def test_a_trajectory_out_of_the_support_is_not_accepted(one_move):
    x, p = np.zeros(3), np.array([0.0, 0.0, 1e200])
    moved, acceptance, _ = one_move(np.int64(0), x, row(p, -1e300, 0.5), SCALE, -1.0)
    np.testing.assert_array_equal(moved, x)
    assert acceptance == 0.0


class Opaque(Op):
    """The identity, of which nobody knows the derivative."""

    itypes, otypes = [pt.dscalar], [pt.dscalar]

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.array(inputs[0])


class WithoutGradient(Family):
    observation = ("y",)

    def __init__(self):
        with pm.Model() as self.model:
            y = pm.Data("y", 0.0)
            k = self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
            x = pm.Normal("x", 1.0 * k, 1.0)
            pm.Normal("seen", Opaque()(x), 1.0, observed=y)
        self.statistics = {"x": x}


def test_a_density_without_gradient_is_refused_with_what_needs_none():
    with pytest.raises(ValueError, match=r"no gradient in the latents .*give pseudo_priors=Pilot"):
        CarlinChibBurst().compile(WithoutGradient())
