"""Annealed jumps alone lead from the exact posterior to it, and with one fault they do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_mcoem.carlin_chib.moves.annealed as annealed
from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump, proposal_weights
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.density.blocks import BlockDensity
from tests.helpers import count_plate as plate
from tests.helpers import nested_blocks as blocks
from tests.helpers.checks import LIMIT, agreement, invariance
from tests.helpers.models import N_CLASSES, ScaledMixture, SkewedMixture
from tests.helpers.representatives import by_default

#: What a broken jump has to exceed.
CLEARLY = 8.0
#: Of so many the jump that is broken least is off by 9 or 10 standard errors.
N_CHAINS = 2_500
#: Of so many it still exceeds `LIMIT`, which a right one is held to.
N_RIGHT = 1_200
AT_ONCE = AnnealedJump(n_temperatures=1)
IN_STAGES = AnnealedJump(n_temperatures=5, n_leapfrog=2)


class TooWide:
    """Pseudo-priors four times as wide as the classes are."""

    def compile(self, density, geometry, mode=None):
        fixed = PseudoPriors.from_covariance(
            np.array([[0.2], [2.2]]), np.full((2, 1, 1), 3.0), np.zeros(2)
        )
        return lambda data, rng, others=(): fixed


def kernel(case, kind, jump, log_step=-0.3):
    """Return annealed jumps, and nothing else, of many chains."""
    density = case.e_step.density
    compiled = jump.compile(density, "NUMBA")
    # known to be far from alike, so that leaving their ratio out shows
    fixed = replace(case.pseudo_priors(kind), log_evidence=np.log([0.9, 0.02, 0.08]))
    values = density.arguments(case.data, ())

    def make(rng, class_index, position):
        index, moved = class_index.copy(), position.copy()
        for row in range(len(index)):
            made = compiled(
                rng, 0.0, index[row], moved[row], log_step, fixed, values, np.zeros(N_CLASSES)
            )
            index[row], moved[row] = made.class_index, made.position
            assert made.log_step == log_step
        return index, moved

    return make


def z_of(case, rng, kind, jump, n=N_CHAINS):
    found = invariance(kernel(case, kind, jump), case.family, case.quadrature, rng, n)
    return found.largest_z


#: A family is told by its short name in the name of a test.
FAMILIES = {SkewedMixture: "skewed", ScaledMixture: "scaled"}
ALL = list(product(FAMILIES, ["laplace", "good", "poor"]))


def each_family(*chosen):
    return pytest.mark.parametrize(
        ("case", "kind"), by_default(ALL, chosen), indirect=["case"], ids=FAMILIES.get
    )


@each_family((ScaledMixture, "good"), (SkewedMixture, "poor"))
def test_carrying_over_leaves_the_posterior_invariant(case, rng, kind):
    assert z_of(case, rng, kind, AT_ONCE, N_RIGHT) < LIMIT


@each_family((ScaledMixture, "poor"), (SkewedMixture, "laplace"))
def test_stages_leave_the_posterior_invariant(case, rng, kind):
    assert z_of(case, rng, kind, IN_STAGES, N_RIGHT) < LIMIT


def test_stages_reach_more_than_carrying_over(skewed, rng):
    """Where pseudo-priors are poor, more chains arrive."""
    shares, n = [], 2_000
    for jump in (AT_ONCE, IN_STAGES):
        k, x = skewed.family.draw_posterior(rng, n)
        shares.append(np.mean(kernel(skewed, "poor", jump)(rng, k, x)[0] != k))
    error = np.sqrt(np.sum(np.multiply(shares, np.subtract(1, shares))) / n)
    assert shares[1] - shares[0] > LIMIT * error


def test_the_step_size_is_tuned_to_its_acceptance(skewed, rng):
    """Whatever it starts from."""
    jump = IN_STAGES.compile(skewed.e_step.density, "NUMBA")
    fixed, values = (
        skewed.pseudo_priors("laplace"),
        skewed.e_step.density.arguments(skewed.data, ()),
    )
    k, x = (part[0] for part in skewed.family.draw_posterior(rng, 1))
    ends = []
    for log_step in (-4.0, 2.0):
        for n in range(1, 400):
            made = jump(rng, 2 / np.sqrt(n), k, x, log_step, fixed, values, np.zeros(N_CLASSES))
            k, x, log_step = made.class_index, made.position, made.log_step
        ends.append(log_step)
    assert abs(ends[0] - ends[1]) < 0.5


def test_a_bridge_out_of_the_support_is_not_crossed(skewed):
    """A class without density at what is carried over is never entered."""
    jump = AnnealedJump(n_temperatures=3, n_leapfrog=2)
    compiled = jump.compile(skewed.e_step.density, "NUMBA")
    compiled._function = lambda index, x, *others: (
        (0.0, np.zeros_like(x)) if index[0] == 0 else (np.nan, np.full_like(x, np.nan))
    )
    for seed in range(20):
        made = compiled(
            np.random.default_rng(seed),
            0.1,
            np.asarray(0),
            np.zeros(1),
            0.0,
            skewed.pseudo_priors("good"),
            (),
            np.zeros(N_CLASSES),
        )
        assert int(made.class_index) == 0
        np.testing.assert_array_equal(made.position, np.zeros(1))
        assert np.isfinite(made.log_step)


# -- faults that must show ----------------------------------------------------------------------


def test_a_proposal_ratio_left_out_fails(skewed, rng, monkeypatch):
    """As if classes were proposed alike, while they are not."""
    monkeypatch.setattr(annealed, "log_proposal_ratio", lambda proposed, here, there: 0.0)
    assert z_of(skewed, rng, "good", AT_ONCE) > CLEARLY


def test_a_volume_left_out_fails(skewed, rng, monkeypatch):
    """What is carried over is stretched: the pseudo-priors' widths belong to the ratio."""
    at = annealed.Bridge.at

    def without(self, z):
        found = at(self, z)
        volume = self.pseudo_priors.log_normalizer[list(self.classes)]
        return replace(found, log_target=found.log_target + volume)

    monkeypatch.setattr(annealed.Bridge, "at", without)
    assert z_of(skewed, rng, "good", AT_ONCE) > CLEARLY


def test_moves_at_the_wrong_end_of_the_bridge_fail(skewed, rng, monkeypatch):
    """At 1 - t instead of t, with the work as if at t."""
    trajectory = annealed.CompiledJump._trajectory

    def at_other_end(self, bridge, rng, start, t, step):
        return trajectory(self, bridge, rng, start, 1 - t, step)

    monkeypatch.setattr(annealed.CompiledJump, "_trajectory", at_other_end)
    assert z_of(skewed, rng, "poor", IN_STAGES) > CLEARLY


def test_moves_that_are_not_reversible_fail(skewed, rng, monkeypatch):
    """Trajectories that are never refused."""

    def always(self, bridge, rng, start, t, step):
        momentum = rng.standard_normal(len(start.z))
        return bridge.at(start.z + 2 * step * (momentum + start.slope(t)))

    monkeypatch.setattr(annealed.CompiledJump, "_trajectory", always)
    assert z_of(skewed, rng, "good", IN_STAGES) > CLEARLY


# -- in the step --------------------------------------------------------------------------------

JUMPS = {
    "at once": {"jump": AT_ONCE, "within_class": RandomWalk(n_moves=3)},
    "in stages": {"jump": IN_STAGES, "within_class": RandomWalk(n_moves=2)},
    "tilted": {"jump": AT_ONCE, "within_class": RandomWalk(n_moves=3), "equalize_visits": True},
}


@pytest.mark.parametrize("name", by_default(["at once", "in stages"], {"in stages"}))
def test_blocks_have_the_exact_posterior(rng, name):
    with blocks.nested() as model:
        step = CarlinChib(blocks=blocks.BLOCKS, pseudo_priors=blocks.laplace(), **JUMPS[name])
    assert blocks.largest_z(blocks.sample(step, model, rng, draws=1_500)) < LIMIT


@pytest.fixture(scope="module")
def with_or_without():
    """Return the density of a model whose class 1 has a latent that class 0 has not."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.6, 0.4])
        x = pm.Normal("x")
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 1), x, 0.0), 1.0, observed=0.8)
    return BlockDensity(model, k, {0: [], 1: [x]})


def arrivals(density, rng, n=5_000):
    """Return index and latent of n chains, one jump after the exact posterior, and its moments."""
    weight = np.array([0.6, 0.4]) * stats.norm.pdf(0.8, 0.0, [1.0, np.sqrt(2.0)])
    weight /= weight.sum()
    k = rng.choice(2, p=weight, size=n)
    x = np.where(k == 1, rng.normal(0.4, np.sqrt(0.5), size=n), 0.0)
    poor = PseudoPriors.from_covariance(np.array([[0.0], [-0.3]]), np.array([[[1.0]], [[2.0]]]))
    jump = AT_ONCE.compile(density, "NUMBA")
    for row in range(n):
        made = jump(rng, 0.0, k[row], x[row : row + 1], 0.0, poor, (), np.zeros(2))
        k[row], x[row] = made.class_index, made.position[0]
    found = np.stack([k, k * x, k * x**2], axis=1)
    return found, weight[1] * np.array([1.0, 0.4, 0.66])


def test_a_latent_that_a_class_lacks_is_carried_over_as_a_draw(with_or_without, rng, monkeypatch):
    assert agreement(*arrivals(with_or_without, rng)).largest_z < LIMIT
    # were it carried over as zero, the class would only be entered at its pseudo-prior's mean
    monkeypatch.setattr(with_or_without, "active", None)
    assert agreement(*arrivals(with_or_without, rng)).largest_z > CLEARLY


def test_a_tilted_chain_jumps_by_its_tilt(rng):
    """Two classes that jumps alone bring together: visited alike, and weighed back."""
    with pm.Model():
        k = pm.Categorical("k", [0.97, 0.03])
        x = pm.Normal("x", 6.0 * k, 0.5)
        pm.Normal("y", x, 3.0, observed=3.0)
        tree = pm.sample(
            step=CarlinChib(**JUMPS["tilted"]),
            tune=300,
            draws=2_000,
            chains=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            compute_convergence_checks=False,
        )
    index = tree["posterior"]["k"].values[0]
    tilt = np.stack(tree["sample_stats"]["class_equalizing_log_weight"].values[0]).astype(float)[0]
    weight = np.exp(-tilt[index])
    residual = (weight * (index - 0.03)).reshape(50, -1).mean(axis=1)
    assert agreement(residual[:, None], np.zeros(1)).largest_z < LIMIT
    assert 0.3 < index.mean() < 0.7


def far_apart():
    """Two classes with skewed pseudo-priors, and what the index and the latent are on average."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.55, 0.45])
        x = pm.Normal("x", 2.5 * k, 1.0)
        pm.Normal("y", x, 2.0, observed=1.0)
    weight = np.array([0.55, 0.45]) * stats.norm.pdf(1.0, [0.0, 2.5], np.sqrt(5.0))
    weight /= weight.sum()
    mean, variance = np.array([0.2, 2.2]), 0.8
    return model, np.array([weight[1], *(weight * mean), *(weight * (mean**2 + variance))])


@pytest.mark.parametrize("is_broken", [False, True])
def test_frozen_auxiliaries_change_places_with_a_jump(rng, is_broken):
    """The draw of the class that is entered becomes that of the class that is left."""
    model, expected = far_apart()
    with model:
        step = CarlinChib(
            jump=AT_ONCE,
            auxiliaries="frozen",
            within_class=RandomWalk(n_moves=1),
            pseudo_priors=TooWide(),
        )
    if is_broken:
        engine, sweep = step._engine, step._engine.sweep

        def forgets(*arguments, auxiliaries, **options):
            """Make the sweep and the jump, and keep what there was before the jump."""
            jump, kept = engine._jump, []

            def note(*given):
                kept.append(auxiliaries.copy())
                return jump(*given)

            engine._jump = note
            swept = sweep(*arguments, auxiliaries=auxiliaries, **options)
            engine._jump = jump
            if kept:  # none is made where pseudo-priors are judged
                auxiliaries[:] = kept[0]
            return swept

        engine.sweep = forgets
    step.setup_chain(rng, tune=300, draws=5_000)
    point = model.initial_point(0)
    draws = []
    for t in range(5_300):
        if t == 300:
            step.stop_tuning()
        point = step.step(point)[0]
        draws.append((int(point["k"]), float(point["x"])))
    k, x = np.array(draws[300:]).T
    found = np.stack([k, (1 - k) * x, k * x, (1 - k) * x**2, k * x**2], axis=1)
    z = agreement(found.reshape(100, -1, 5).mean(axis=1), expected).largest_z
    assert z > CLEARLY if is_broken else z < LIMIT


def test_a_class_without_density_does_not_spoil_the_step_size(rng):
    """No way leads there, whatever the step size."""
    log_steps = []
    for p in ([0.5, 0.5, 0.0], [0.5, 0.5]):
        with pm.Model() as model:
            k = pm.Categorical("k", p)
            x = pm.Normal("x", 2.0 * k, 1.0, shape=3)
            pm.Normal("y", x, 1.0, observed=np.ones(3))
            step = CarlinChib(**JUMPS["in stages"])
        step.setup_chain(rng, tune=400, draws=1)
        point = model.initial_point(0)
        for _ in range(400):
            point, (kept,) = step.step(point)
        log_steps.append(step.chain.log_step[-1])
    assert abs(log_steps[0] - log_steps[1]) < 0.7
    assert 0 <= kept["class_jump_acceptance"] <= 1


def test_a_chain_goes_on_with_the_step_size_of_its_jumps(skewed):
    """It is part of the sampling state."""
    model = skewed.family.model
    step = CarlinChib(model=model, **JUMPS["in stages"])
    step.setup_chain(np.random.default_rng(0), tune=20, draws=20)
    assert len(step.chain.log_step) == N_CLASSES + 1
    point = model.initial_point(0)
    for _ in range(15):
        point = step.step(point)[0]
    state, after = step.sampling_state, step.step(point)[0]
    assert state.chain.log_step[-1] != step._engine.initial_log_step[-1]
    other = cloudpickle.loads(cloudpickle.dumps(step))
    other.setup_chain(np.random.default_rng(1), tune=20, draws=20)
    other.sampling_state = state
    assert other.step(point)[0] == after


def test_what_makes_no_sense_is_refused(skewed):
    with pytest.raises(ValueError, match="n_temperatures: got 0; give a whole number"):
        AnnealedJump(n_temperatures=0)
    with pytest.raises(ValueError, match=r"n_temperatures: got 1.5; give a whole number"):
        AnnealedJump(n_temperatures=1.5)
    with pytest.raises(ValueError, match="n_leapfrog: got 0; give a whole number"):
        AnnealedJump(n_leapfrog=0)
    with pytest.raises(ValueError, match="target_acceptance: got 1"):
        AnnealedJump(target_acceptance=1)
    with plate.counts_model(), pytest.raises(ValueError, match=r"jump: got .* k is a plate"):
        CarlinChib(jump=AT_ONCE)
    with pm.Model():
        k = pm.Categorical("k", [1.0])
        pm.Normal("x", 1.0 * k)
        with pytest.raises(ValueError, match=r"jump: got .* there is one class"):
            CarlinChib(jump=AT_ONCE)


def test_proposals_are_half_by_belief():
    np.testing.assert_allclose(proposal_weights(np.array([np.nan, np.nan])), 0.5)
    found = proposal_weights(np.array([0.0, np.nan, -np.inf, 0.0]))
    np.testing.assert_allclose(found, [0.375, 0.125, 0.125, 0.375])
