"""Other moves, draws of the index and auxiliaries, tilted weights: the same exact posterior."""

from __future__ import annotations

from types import FunctionType, SimpleNamespace

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import softmax

from pymc_mcoem.carlin_chib import plate_sweeps_numba, sweeps_numba
from pymc_mcoem.carlin_chib.equal_visits import (
    initial_equalizing_log_weight,
    next_equalizing_log_weight,
)
from pymc_mcoem.carlin_chib.kernel import draw_other_class
from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import Independence, RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.carlin_chib.pseudo_priors.prior_covariance import PriorCovariance
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.compiling.compiled_once import compiled_once
from tests.helpers import count_plate as plate
from tests.helpers import nested_blocks as blocks
from tests.helpers.checks import LIMIT, agreement, chain_agreement
from tests.helpers.given import Given
from tests.helpers.representatives import by_default

VARIANTS = {
    "hamiltonian": {"within_class": Hamiltonian(n_moves=1, n_leapfrog=4)},
    "independence": {"within_class": Independence(n_moves=3)},
    "metropolized": {"within_class": RandomWalk(n_moves=3), "index_move": "metropolized"},
    "frozen": {"within_class": RandomWalk(n_moves=3), "auxiliaries": "frozen"},
}
#: Were one of the two wrong, both together would be.
BOTH = {"metropolized and frozen": VARIANTS["metropolized"] | VARIANTS["frozen"]}


def positions(posterior):
    """Return class indices and latents of the chain."""
    return posterior["class_index"].values[0], posterior["level"].values[0][:, None]


def sampled(model, step, rng, draws):
    """Return one long chain: that chains differ and are right alike is shown in `test_step`."""
    with model:
        return pm.sample(
            step=step,
            tune=300,
            draws=draws,
            chains=1,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            compute_convergence_checks=False,
        )


@pytest.mark.parametrize("name", VARIANTS)
def test_shared_latents_have_the_exact_posterior(skewed, rng, name):
    model, options = skewed.family.model, VARIANTS[name]
    given = Given(skewed.pseudo_priors("laplace"))
    tree = sampled(model, CarlinChib(model=model, pseudo_priors=given, **options), rng, 8_000)
    found = chain_agreement(*positions(tree["posterior"]), skewed.quadrature)
    assert found.largest_z < LIMIT
    assert found.effective_sample_size > 400
    acceptance = float(tree["sample_stats"]["class_acceptance"].mean())
    move = options["within_class"]
    if isinstance(move, Independence):
        # proposals of a pseudo-prior that is nearly the posterior
        assert acceptance > 0.5
    elif isinstance(move, Hamiltonian):
        # more where trajectories are as long as they may be
        assert acceptance > move.target_acceptance - 0.15
    else:
        assert abs(acceptance - move.target_acceptance) < 0.15


@pytest.mark.parametrize("name", by_default(VARIANTS | BOTH, BOTH))
def test_blocks_have_the_exact_posterior(rng, name):
    model, options = blocks.nested(), (VARIANTS | BOTH)[name]
    with model:
        step = CarlinChib(blocks=blocks.BLOCKS, pseudo_priors=blocks.laplace(), **options)
    assert blocks.largest_z(blocks.sample(step, model, rng)) < LIMIT


@pytest.mark.parametrize("name", by_default(["metropolized", "frozen", *BOTH], BOTH))
def test_rows_of_a_plate_have_their_exact_posterior(rng, name):
    model = plate.counts_model()
    with model:
        step = CarlinChib(**(VARIANTS | BOTH)[name])
    assert plate.largest_z(step, model, rng) < LIMIT


@pytest.mark.parametrize(
    "rule", by_default([PriorCovariance(n_prior_draws=500), PilotMoments()], [PilotMoments()])
)
def test_blocks_with_other_pseudo_priors_have_the_exact_posterior(rng, rule):
    model = blocks.nested()
    with model:
        step = CarlinChib(blocks=blocks.BLOCKS, pseudo_priors=rule)
    assert blocks.largest_z(blocks.sample(step, model, rng)) < LIMIT


# -- frozen auxiliaries ---------------------------------------------------------------------------


def frozen_step(skewed, chain=0):
    step = CarlinChib(
        model=skewed.family.model,
        pseudo_priors=Given(skewed.pseudo_priors("laplace")),
        auxiliaries="frozen",
        within_class=RandomWalk(n_moves=3),
    )
    step.setup_chain(np.random.default_rng(chain), tune=10, draws=50)
    return step


def test_auxiliaries_stay_until_their_class_is_left(skewed):
    """What an inactive class has is what the chain left there, or the first draw."""
    step = frozen_step(skewed)
    point = step.step(skewed.family.model.initial_point(0))[0]
    n_left = 0
    for _ in range(200):
        before, here = step.chain.frozen_auxiliaries.copy(), int(point["class_index"])
        mean, whiten = step.chain.pseudo_priors.mean, step.chain.pseudo_priors.whiten
        standard = whiten[here] @ (np.atleast_1d(point["level"]) - mean[here])
        point = step.step(point)[0]
        others = np.arange(3) != here
        np.testing.assert_array_equal(step.chain.frozen_auxiliaries[others], before[others])
        np.testing.assert_allclose(step.chain.frozen_auxiliaries[here], standard, rtol=1e-12)
        n_left += int(point["class_index"]) != here
    assert n_left > 20


def test_auxiliaries_of_a_class_that_was_left_must_be_kept(skewed, rng, monkeypatch):
    """A chain that puts old auxiliaries back where it was is noticed."""
    model = skewed.family.model
    step = frozen_step(skewed)
    sweep = step._engine.sweep

    def forgetful(*arguments, auxiliaries, **options):
        return sweep(*arguments, auxiliaries=auxiliaries.copy(), **options)

    monkeypatch.setattr(step._engine, "sweep", forgetful)
    tree = sampled(model, step, rng, 8_000)
    found = chain_agreement(*positions(tree["posterior"]), skewed.quadrature)
    assert found.largest_z > 2 * LIMIT


# -- tilted weights -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rare():
    """Return a model with a class of probability 0.002, and its exact class probabilities."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.6, 0.398, 0.002])
        x = pm.Normal("x", pt.constant([-1.0, 1.0, 0.5])[k], 0.7)
        pm.Normal("y", x, 0.8, observed=0.4)
    evidence = np.array([0.6, 0.398, 0.002]) * stats.norm.pdf(
        0.4, [-1.0, 1.0, 0.5], np.hypot(0.7, 0.8)
    )
    return model, evidence / evidence.sum()


def weighed_back(k, tilt, truth):
    """Compare visits, each with the weight that its class's tilt leaves it, with the truth."""
    weight = np.exp(-tilt[k])
    member = (k[:, None] == np.arange(3)) * weight[:, None]
    # ratio of means, by batches
    residual = (member - truth * weight[:, None]).reshape(50, -1, 3).mean(axis=1)
    return agreement(residual, np.zeros(3))


def test_a_tilt_that_the_sweep_does_not_know_is_noticed(rare, rng):
    model, truth = rare
    with model:
        step = CarlinChib(equalize_visits=True, within_class=RandomWalk(n_moves=2))
    sweep = step._engine.sweep

    def untilted(*arguments, equalizing_log_weight=None, **options):
        return sweep(*arguments, equalizing_log_weight=np.zeros(3), **options)

    step._engine.sweep = untilted
    tree = sampled(model, step, rng, 4_000)
    k = tree["posterior"]["k"].values[0]
    tilt = np.stack(tree["sample_stats"]["class_equalizing_log_weight"].values[0]).astype(float)[0]
    assert np.ptp(tilt) > 1.0
    assert weighed_back(k, tilt, truth).largest_z > 2 * LIMIT


def test_a_tilted_chain_visits_all_and_weighs_back(rare, rng, caplog):
    model, truth = rare
    with model:
        step = CarlinChib(equalize_visits=True, within_class=RandomWalk(n_moves=2))
    tree = sampled(model, step, rng, 8_000)
    assert (
        caplog.text.count("visit classes of little weight") == 1
    )  # where the step is made, not in workers
    k = tree["posterior"]["k"].values[0]
    tilt = np.stack(tree["sample_stats"]["class_equalizing_log_weight"].values[0]).astype(float)
    # frozen with tuning
    assert (tilt == tilt[0]).all()
    visits = np.bincount(k, minlength=3) / len(k)
    tilted = softmax(np.log(truth) + tilt[0])
    error = np.sqrt(0.25 / 400)  # of a share, with 400 effective draws at least
    np.testing.assert_allclose(visits, tilted, atol=LIMIT * error)
    np.testing.assert_allclose(visits, 1 / 3, atol=0.1)
    assert weighed_back(k, tilt[0], truth).largest_z < LIMIT
    log_weight = np.stack(tree["sample_stats"]["class_log_weight"].values[0]).astype(float)
    assert agreement(np.exp(log_weight).reshape(50, -1, 3).mean(axis=1), tilted).largest_z < LIMIT


def test_a_tilt_moves_against_what_has_weight():
    equalizing_log_weight = np.zeros(3)
    for n in range(1, 2_000):
        equalizing_log_weight = next_equalizing_log_weight(
            equalizing_log_weight,
            np.log(softmax(np.array([0.0, -3.0, -9.0]) + equalizing_log_weight)),
            n,
        )
    np.testing.assert_allclose(
        equalizing_log_weight - equalizing_log_weight[0], [0.0, 3.0, 9.0], atol=0.02
    )


def test_a_first_tilt_needs_evidence():
    np.testing.assert_array_equal(
        initial_equalizing_log_weight(np.array([np.nan, np.nan])), [0.0, 0.0]
    )
    np.testing.assert_array_equal(
        initial_equalizing_log_weight(np.array([1.0, np.nan, 5.0])), [2.0, 0.0, -2.0]
    )


def test_what_is_no_variant_is_refused(rare):
    with rare[0]:
        with pytest.raises(ValueError, match="auxiliaries: got 'thawed'; choose"):
            CarlinChib(auxiliaries="thawed")
    with plate.counts_model(), pytest.raises(ValueError, match="equalize_visits: k is a plate"):
        CarlinChib(equalize_visits=True)


def test_nuts_moves_the_latents_between_jumps(rng):
    """``within_class=None``: exact all the same, for the index moves the latents with it."""
    model = blocks.nested()
    with model:
        step = [
            CarlinChib(blocks=blocks.BLOCKS, pseudo_priors=blocks.laplace(), within_class=None),
            pm.NUTS([model["level"], model["line"], model["spread"]]),
        ]
    assert blocks.largest_z(blocks.sample(step, model, rng, draws=2_000)) < LIMIT


def test_metropolis_and_slice_move_what_lies_beside_the_step(rng):
    """A count and a spread, on which latents and pseudo-priors depend, have steps of their own."""
    levels, y = np.array([-1.5, 0.0, 2.0]), 1.3
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.3, 0.2])
        count, spread = pm.Poisson("count", 1.5), pm.HalfNormal("spread", 1.0)
        x = pm.Normal("x", pt.constant(levels)[k] + 0.6 * count, 0.8)
        pm.Normal("y", x, 0.3 + spread, observed=y)
        step = [CarlinChib([k, x]), pm.Metropolis([count]), pm.Slice([spread])]
    posterior = blocks.sample(step, model, rng, draws=2_000)
    # x is normal given all else, counts are few, and spreads lie on a line
    counts, spreads = np.arange(25), np.linspace(0.0, 8.0, 4_001)
    deviation = np.hypot(0.8, 0.3 + spreads)[:, None, None]
    mean = levels + 0.6 * counts[:, None]
    weight = (
        np.array([0.5, 0.3, 0.2])
        * stats.poisson.pmf(counts, 1.5)[:, None]
        * stats.halfnorm.pdf(spreads)[:, None, None]
        * stats.norm.pdf(y, mean, deviation)
    )
    weight /= weight.sum()
    latent = mean + (0.8 / deviation) ** 2 * (y - mean)
    expected = np.array(
        [
            *weight.sum(axis=(0, 1)),
            weight.sum(axis=(0, 2)) @ counts,
            weight.sum(axis=(1, 2)) @ spreads,
            (weight * latent).sum(),
        ]
    )
    k, *others = (posterior[name].values[0] for name in ("k", "count", "spread", "x"))
    values = np.stack([*(k == j for j in range(3)), *others], axis=1).astype(float)
    assert agreement(values.reshape(50, -1, 6).mean(axis=1), expected).largest_z < LIMIT


# -- moves that are wrong on purpose --------------------------------------------------------------


class Forgetful(Independence):
    """It forgets how likely its proposals were: as if every one were as likely as where it is."""

    def build(self, density, class_index, position, log_density, noise, proposal, log_step):
        def log_proposed(x):
            return -0.5 * (pt.dot(proposal.whiten, x - proposal.mean) ** 2).sum()

        # what is added to the target cancels what is to be left out
        blind = SimpleNamespace(
            n_latents=density.n_latents,
            log_density=lambda k, x: density.log_density(k, x) + log_proposed(x),
        )
        there = log_density + log_proposed(position)
        return super().build(blind, class_index, position, there, noise, proposal, log_step)


@compiled_once(sweeps_numba.MOVE.signature, inner=True)
def forgetful(
    value,
    slope,
    k,
    x,
    noise,
    mean,
    scale,
    transposed,
    whiten,
    settings,
    result,
    scratch,
    reals,
    integers,
):
    """The same as a loop, of which there is one more: the graph takes long to compile."""
    n, n_moves, proposed = len(x), int(settings[2]), scratch[: len(x)]
    result[1] = 0.0
    for move in range(n_moves):
        row = noise[move * (n + 2) :]
        sweeps_numba.copy(proposed, mean)
        sweeps_numba.add_product(proposed, transposed, row[:n])
        new_log_p = value(k, proposed, reals, integers, proposed[:0])
        if sweeps_numba.log_uniform(row[n], row[n + 1]) < new_log_p - result[0]:
            sweeps_numba.copy(x, proposed)
            result[0] = new_log_p
            result[1] += 1 / n_moves
    result[2] = 0.0
    return result[1]


def test_a_loop_that_forgets_the_density_of_proposals_is_noticed(skewed, rng, monkeypatch):
    monkeypatch.setattr(sweeps_numba, "independence", forgetful)
    model = skewed.family.model
    step = CarlinChib(model=model, pseudo_priors=PriorCovariance(), within_class=Independence())
    posterior = sampled(model, step, rng, 8_000)["posterior"]
    assert chain_agreement(*positions(posterior), skewed.quadrature).largest_z > 2 * LIMIT


@pytest.mark.parametrize(
    ("move", "right"),
    [(Independence(), True), pytest.param(Forgetful(), False, marks=pytest.mark.slow)],
)
def test_proposals_without_their_density_are_noticed(skewed, rng, move, right):
    model = skewed.family.model
    step = CarlinChib(model=model, pseudo_priors=PriorCovariance(), within_class=move)
    posterior = sampled(model, step, rng, 8_000)["posterior"]
    z = chain_agreement(*positions(posterior), skewed.quadrature).largest_z
    assert z < LIMIT if right else z > 2 * LIMIT, z


# -- the index alone ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metropolized():
    log_weight, k = pt.vector("log_weight"), pt.scalar("k", dtype="int64")
    pairs = pt.vector("pairs", shape=(4,))
    return pytensor.function([log_weight, k, pairs], draw_other_class(log_weight, k, pairs))


def transitions(draw, log_weight, rng, n=6_000):
    return np.array(
        [
            np.bincount([draw(log_weight, k, z) for z in rng.standard_normal((n, 4))], minlength=3)
            for k in range(3)
        ]
    )


def test_the_metropolised_index_has_its_transition_probabilities(metropolized, rng):
    log_weight, n = np.log([0.6, 0.3, 0.1]) + 700.0, 6_000
    w = softmax(log_weight)
    expected = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            if i != j:
                expected[i, j] = w[j] / (1 - w[i]) * min(1.0, (1 - w[i]) / (1 - w[j]))
        expected[i, i] = 1 - np.delete(expected[i], i).sum()
    np.testing.assert_allclose(w @ expected, w)  # detailed balance leaves the weights
    found = transitions(metropolized, log_weight, rng, n) / n
    error = np.sqrt(np.maximum(expected * (1 - expected), 1e-6) / n)
    assert (np.abs(found - expected) < LIMIT * error).all()


def test_the_metropolised_index_stays_where_nothing_else_has_weight(metropolized, rng):
    log_weight = np.array([-np.inf, 0.0, -np.inf])
    assert {int(metropolized(log_weight, 1, z)) for z in rng.standard_normal((200, 4))} == {1}
    assert {int(metropolized(log_weight, 0, z)) for z in rng.standard_normal((200, 4))} == {1}


@pytest.mark.parametrize("shape", by_default(["blocks", "plate"], {"plate"}))
def test_an_acceptance_that_is_left_out_is_noticed(rng, monkeypatch, shape):
    """Always taking the proposed class is another chain: its weights come out wrong."""

    @numba.njit
    def always(log_weight, here, noise, is_metropolized, weight):
        weight[:] = np.exp(log_weight - log_weight.max())
        weight[here] = 0.0
        return sweeps_numba.draw(weight, noise[0], noise[1])

    for module, name in ((sweeps_numba, "sweeps"), (plate_sweeps_numba, "sweeps")):
        whole = getattr(module, name).py_func
        broken = FunctionType(whole.__code__, {**whole.__globals__, "draw_class": always})
        monkeypatch.setattr(module, name, numba.njit(broken))
    if shape == "plate":
        model = plate.counts_model()
        with model:
            step = CarlinChib(**VARIANTS["metropolized"])
        assert plate.largest_z(step, model, rng) > 2 * LIMIT
        return
    model = blocks.nested()
    with model:
        step = CarlinChib(
            blocks=blocks.BLOCKS, pseudo_priors=blocks.laplace(), **VARIANTS["metropolized"]
        )
    assert blocks.largest_z(blocks.sample(step, model, rng)) > 2 * LIMIT


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Independence(0), "n_moves: got 0"),
        (lambda: Hamiltonian(n_moves=0), "n_moves: got 0"),
        (lambda: Hamiltonian(n_leapfrog=0), "n_leapfrog: got 0"),
        (lambda: Hamiltonian(target_acceptance=1.0), "target_acceptance: got 1.0"),
    ],
)
def test_moves_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_another_draw_of_the_index_is_refused(skewed):
    with pytest.raises(ValueError, match="index_move: got 'slice'; choose 'gibbs' or"):
        CarlinChib(model=skewed.family.model, index_move="slice")
