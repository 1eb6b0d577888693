"""Other moves within a class and another draw of the index: the same exact posterior."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.special import softmax

from pymc_mcoem.carlin_chib.kernel import draw_other_class
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.carlin_chib.within_class import Hamiltonian, Independence, RandomWalk
from tests.carlin_chib import test_blocks as blocks
from tests.carlin_chib import test_plate as plate
from tests.helpers.checks import LIMIT, chain_agreement

VARIANTS = {
    "hamiltonian": {"within_class": Hamiltonian(n_moves=1, n_leapfrog=4)},
    "independence": {"within_class": Independence(n_moves=3)},
    "metropolised": {"within_class": RandomWalk(n_moves=3), "index_move": "metropolised"},
}


def positions(posterior, chain):
    return posterior["class_index"].values[chain], posterior["level"].values[chain][:, None]


def sampled(model, step, rng, draws):
    with model:
        return pm.sample(
            step=step,
            tune=300,
            draws=draws,
            chains=2,
            cores=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            compute_convergence_checks=False,
        )


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_shared_latents_have_the_exact_posterior(skewed, rng, options):
    model = skewed.family.model
    tree = sampled(model, CarlinChib(model=model, **options), rng, 8_000)
    for chain in range(2):
        found = chain_agreement(*positions(tree["posterior"], chain), skewed.quadrature)
        assert found.largest_z < LIMIT
        assert found.effective_sample_size > 400
    acceptance = float(tree["sample_stats"]["class_acceptance"].mean())
    move = options["within_class"]
    if isinstance(move, Independence):
        # proposals of a pseudo-prior that is nearly the posterior
        assert acceptance > 0.5
    else:
        assert abs(acceptance - move.target_acceptance) < 0.15


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_blocks_have_the_exact_posterior(rng, options):
    model = blocks.nested_model()
    with model:
        step = CarlinChib(blocks=blocks.BLOCKS, **options)
    assert blocks.largest_z(blocks.sample(step, model, rng)) < LIMIT


def test_rows_of_a_plate_have_their_exact_posterior(rng):
    model = plate.counts_model()
    with model:
        step = CarlinChib(**VARIANTS["metropolised"])
    assert plate.largest_z(step, model, rng) < LIMIT


def test_nuts_moves_the_latents_between_jumps(rng):
    """``within_class=None``: exact all the same, for the index moves the latents with it."""
    model = blocks.nested_model()
    with model:
        step = [
            CarlinChib(blocks=blocks.BLOCKS, within_class=None),
            pm.NUTS([model["level"], model["line"], model["spread"]]),
        ]
    assert blocks.largest_z(blocks.sample(step, model, rng, draws=4_000)) < LIMIT


# -- the index alone ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metropolised():
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


def test_the_metropolised_index_has_its_transition_probabilities(metropolised, rng):
    log_weight, n = np.log([0.6, 0.3, 0.1]) + 700.0, 6_000
    w = softmax(log_weight)
    expected = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            if i != j:
                expected[i, j] = w[j] / (1 - w[i]) * min(1.0, (1 - w[i]) / (1 - w[j]))
        expected[i, i] = 1 - np.delete(expected[i], i).sum()
    np.testing.assert_allclose(w @ expected, w)  # detailed balance leaves the weights
    found = transitions(metropolised, log_weight, rng, n) / n
    error = np.sqrt(np.maximum(expected * (1 - expected), 1e-6) / n)
    assert (np.abs(found - expected) < LIMIT * error).all()


def test_the_metropolised_index_stays_where_nothing_else_has_weight(metropolised, rng):
    log_weight = np.array([-np.inf, 0.0, -np.inf])
    assert {int(metropolised(log_weight, 1, z)) for z in rng.standard_normal((200, 4))} == {1}
    assert {int(metropolised(log_weight, 0, z)) for z in rng.standard_normal((200, 4))} == {1}


def test_an_acceptance_that_is_left_out_is_noticed(rng, monkeypatch):
    """Always taking the proposed class is another chain: its weights come out wrong."""
    import pymc_mcoem.carlin_chib.kernel as kernel

    def always(log_weight, class_index, pairs):
        others = pt.set_subtensor(log_weight[class_index], -np.inf)
        return kernel.draw_class(others, pairs[:2])

    monkeypatch.setattr(kernel, "draw_other_class", always)
    model = blocks.nested_model()
    with model:
        step = CarlinChib(blocks=blocks.BLOCKS, **VARIANTS["metropolised"])
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
