"""Pareto k against ratios whose tail index is known."""

import numpy as np
import pytest

from pymc_mcoem.diagnostics import jump_pareto_k, pareto_k, read_chains
from tests.helpers.markov import as_array, as_tree
from tests.helpers.toy_carlin_chib import toy_carlin_chib


@pytest.mark.parametrize("index", [0.2, 0.5, 0.9])
def test_k_of_a_generalized_pareto_distribution(index, rng):
    # exp of an exponential variable with mean k is Pareto with tail index k.
    runs = [pareto_k(rng.exponential(index, size=(4, 2500, 1)))[0] for _ in range(20)]
    # The tail has 300 of 10000 draws: standard error (1 + k)/sqrt(300).
    error = (1 + index) / np.sqrt(300 * len(runs))
    # ArviZ pulls k toward 0.5 with the weight of ten draws.
    assert abs(np.mean(runs) - index) < 4 * error + 10 / 310 * abs(0.5 - index)


def test_a_narrow_pseudo_prior_has_a_known_k():
    # Target N(0, 1), pseudo-prior N(0, s²): the ratio's tail index is 1 - s².
    rng = np.random.default_rng(8)
    for spread, bad in ((0.9, False), (0.4, True)):
        x = rng.normal(0, spread, size=(4, 2500, 1))
        log_ratio = -0.5 * x**2 + 0.5 * (x / spread) ** 2
        assert (pareto_k(log_ratio)[0] > 0.7) == bad


def test_perfect_and_missing_ratios():
    log_ratio = np.zeros((2, 100, 3))
    log_ratio[..., 1] = np.nan
    log_ratio[..., 2] = -np.inf
    k = pareto_k(log_ratio)
    assert k[0] == -np.inf
    assert np.isnan(k[1:]).all()
    assert np.isnan(pareto_k(log_ratio[:, :5]).astype(float)).all()


def test_draws_without_density_do_not_hide_the_tail(rng):
    log_ratio = rng.exponential(0.9, size=(4, 1000, 1))
    holes = np.where(rng.random(log_ratio.shape) < 0.3, -np.inf, log_ratio)
    assert pareto_k(holes)[0] == pytest.approx(pareto_k(log_ratio)[0], abs=0.25)


def test_k_of_jumps_tells_the_bad_pseudo_prior(rng):
    codes, log_weight, _, log_ratio = toy_carlin_chib(
        rng, 4, 1000, evidence=[0.5, 0.3, 0.2], mean=[0, 0, 4], spread=[1.1, 1.0, 0.5]
    )
    by_jumps = jump_pareto_k(read_chains(as_tree(codes, log_weight)))[0]
    by_ratio = pareto_k(log_ratio)
    for k in (by_jumps, by_ratio):
        assert np.all(k[:2] < 0.7)
        assert k[2] > 0.7
    thinned = as_tree(codes, log_weight).isel(draw=slice(None, None, 2))
    assert np.isnan(jump_pareto_k(read_chains(thinned))).all()


def test_what_is_refused():
    with pytest.raises(ValueError, match="log_ratio: got an array of shape"):
        pareto_k(np.zeros((2, 50)))
    with pytest.raises(ValueError, match="log_ratio"):
        pareto_k(np.full((2, 50, 1), np.inf))
    with pytest.raises(ValueError, match="without the classes' log-weights"):
        jump_pareto_k(read_chains(as_array([[0, 1]])))
