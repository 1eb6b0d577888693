"""Shares, Monte Carlo error, effective size and R-hat against chains with exact moments."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from pymc_mcoem.diagnostics import class_shares, rao_blackwell_shares, read_chains
from tests.helpers.markov import CYCLIC, SAME_AUTOCORRELATION, TWO_STATES, as_array, as_tree

N_RUNS, N_CHAINS, N_DRAWS = 60, 4, 1000


# Splitting and truncation cost ESS some percent. Where it stops summing is right for reversible
# chains only: of the cyclic one, whose autocorrelation swings, the error comes out too large.
@pytest.mark.parametrize(
    ("chain", "bias"),
    [(TWO_STATES, 0.05), (SAME_AUTOCORRELATION, 0.05), (CYCLIC, 0.15)],
    ids=["two", "three", "cyclic"],
)
def test_effective_size_and_error_are_those_of_the_exact_chain(chain, bias, rng):
    runs = [
        class_shares(read_chains(as_array(chain.draw(rng, N_CHAINS, N_DRAWS))))
        for _ in range(N_RUNS)
    ]
    n = N_CHAINS * N_DRAWS
    share = np.stack([run["share"] for run in runs])
    exact = chain.mcse(n)
    # The mean of the runs' shares, in exact standard errors.
    assert np.all(np.abs(share.mean(axis=0) - chain.share) < 4 * exact / np.sqrt(N_RUNS))
    for name, wanted in {"mcse": exact, "ess": n * chain.effective_share()}.items():
        ratio = np.stack([run[name] for run in runs]) / wanted
        error = ratio.std(axis=0, ddof=1) / np.sqrt(N_RUNS)
        assert np.all(np.abs(ratio.mean(axis=0) - 1) < 4 * error + bias), name
    rhat = np.stack([run["rhat"] for run in runs])
    assert np.all(np.abs(rhat - 1) < 0.02)


def test_the_exact_answers_are_the_textbook_ones():
    # Two states: autocorrelation (1 - a - b)^lag. DAR: phi^lag, so (1 - phi)/(1 + phi).
    np.testing.assert_allclose(TWO_STATES.share, [2 / 3, 1 / 3])
    np.testing.assert_allclose(TWO_STATES.effective_share(), (1 - 0.7) / (1 + 0.7))
    np.testing.assert_allclose(SAME_AUTOCORRELATION.effective_share(), 1 / 3)


def test_ranks_change_nothing(rng):
    codes = TWO_STATES.draw(rng, 4, 401)
    shares = class_shares(read_chains(as_array(codes)))
    for k in range(2):
        indicator = (codes == k).astype(float)
        axes = {"chain_axis": 0, "draw_axis": 1}
        assert shares["rhat"][k] == pytest.approx(array_stats.rhat(indicator, **axes))
        assert shares["ess"][k] == pytest.approx(array_stats.ess(indicator, **axes))


def test_a_constant_indicator_tells_nothing():
    shares = class_shares(read_chains(as_array(np.zeros((4, 50), dtype=int)), classes=[0, 1]))
    np.testing.assert_array_equal(shares["share"], [1.0, 0.0])
    for name in ("mcse", "ess", "rhat"):
        assert np.isnan(shares[name]).all(), name


def test_chains_each_in_a_class_of_its_own_disagree():
    codes = np.repeat([[0], [0], [1], [1]], 50, axis=1)
    shares = class_shares(read_chains(as_array(codes)))
    np.testing.assert_array_equal(shares["rhat"], np.inf)
    np.testing.assert_array_equal(shares["ess"], 4.0)
    np.testing.assert_allclose(shares["mcse"], 0.25)


def test_one_chain_has_no_rhat(rng):
    shares = class_shares(read_chains(as_array(TWO_STATES.draw(rng, 1, 200))))
    assert np.isnan(shares["rhat"]).all()
    assert np.isfinite(shares["ess"]).all()


def test_mean_probabilities_have_their_error(rng):
    probability = rng.dirichlet([5.0, 3.0, 0.5], size=(4, 500))
    codes = (rng.random((4, 500, 1)) > probability.cumsum(axis=-1)).sum(axis=-1).clip(max=2)
    chains = read_chains(as_tree(codes, np.log(probability)))
    found = rao_blackwell_shares(chains)
    np.testing.assert_allclose(found["weight"], probability.mean(axis=(0, 1)))
    wanted = probability.std(axis=(0, 1)) / np.sqrt(2000)
    np.testing.assert_allclose(found["weight_mcse"], wanted, rtol=0.25)
    with pytest.raises(ValueError, match="without the classes' log-weights"):
        rao_blackwell_shares(read_chains(as_array(codes)))
