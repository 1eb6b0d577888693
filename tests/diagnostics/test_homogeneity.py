"""Tests of equal distributions: a value by hand, exact levels, power."""

import numpy as np
import pytest
from scipy.stats import binom, chi2, chi2_contingency

from pymc_mcoem.diagnostics import homogeneity_test, within_chain_tests
from tests.helpers.markov import CYCLIC, SAME_AUTOCORRELATION, MarkovChain

# One class hardly ever entered or left, the two others mixing fast.
METASTABLE = MarkovChain([[0.5, 0.49, 0.01], [0.49, 0.5, 0.01], [0.02, 0.02, 0.96]])


def rejections(chain, rng, level, n_runs=200):
    """Count p-values below a level, of 200 runs with equal distributions."""
    runs = chain.draw(rng, 4 * n_runs, 1000).reshape(n_runs, 4, 1000)
    p = [homogeneity_test(codes, 3).p_value for codes in runs]
    return int(np.sum(np.array(p) < level))


def test_a_value_by_hand():
    pairs = np.array([[0] * 4 + [1] * 4] * 25).ravel()
    codes = np.stack([pairs, np.r_[pairs[100:], 0 * pairs[:100]]])
    test = homogeneity_test(codes, 2)
    counts = np.zeros((2, 2))
    for chain in codes:
        np.add.at(counts, (chain[:-1], chain[1:]), 1)
    first, second = counts / counts.sum(axis=1, keepdims=True)
    # Autocorrelations of a chain of two classes are powers of this.
    phi = first[0] + second[1] - 1
    stationary = second[0] / (second[0] + first[1])
    variance = stationary * (1 - stationary) * (1 + phi) / (1 - phi)
    share = (codes == 0).mean(axis=1)
    expected = 200 * np.sum((share - share.mean()) ** 2) / variance
    assert test.statistic == pytest.approx(expected)
    assert test.degrees_of_freedom == 1
    assert test.p_value == pytest.approx(chi2.sf(expected, 1))
    assert test.inflation == pytest.approx(variance / (share.mean() * (1 - share.mean())))


def test_chains_that_hardly_switch_have_no_test():
    codes = np.array([[0] * 20 + [1] * 9 + [0], [0] * 12 + [1] * 18])
    # fewer than five effective draws of a class in each
    assert np.isnan(homogeneity_test(codes, 2).p_value)


def test_independent_draws_have_pearsons_test(rng):
    codes = rng.choice(3, p=[0.5, 0.3, 0.2], size=(4, 2000))
    table = np.stack([np.bincount(chain, minlength=3) for chain in codes])
    pearson = chi2_contingency(table, correction=False)
    test = homogeneity_test(codes, 3)
    assert test.degrees_of_freedom == pearson.dof == 6
    assert test.p_value == pytest.approx(chi2.sf(test.statistic, 6))
    # the variance is off by twice the autocorrelation, of which 8000 draws leave an error
    error = 5 * 2 / np.sqrt(8000)
    assert test.inflation == pytest.approx(1.0, abs=error)
    assert test.statistic == pytest.approx(pearson.statistic, rel=error)


@pytest.mark.parametrize("level", [0.01, 0.05])
def test_the_level_is_kept_for_chains_of_one_autocorrelation(level, rng):
    found = rejections(SAME_AUTOCORRELATION, rng, level)
    low, high = binom(200, level).ppf([0.0005, 0.9995])
    assert low <= found <= high


@pytest.mark.parametrize("chain", [METASTABLE, CYCLIC], ids=["metastable", "cyclic"])
def test_the_transition_matrix_keeps_the_level_of_other_chains(chain, rng):
    assert rejections(chain, rng, 0.05) <= binom(200, 0.05).ppf(0.9995)


def test_a_test_for_independent_draws_does_not(rng):
    """What the levels above are worth: Pearson's test rejects most healthy runs."""
    p = []
    for draws in METASTABLE.draw(rng, 4 * 50, 1000).reshape(50, 4, 1000):
        table = np.stack([np.bincount(chain, minlength=3) for chain in draws])
        p.append(chi2_contingency(table, correction=False).pvalue)
    assert np.sum(np.array(p) < 0.05) > 25


def test_inflation_is_that_of_the_autocorrelation(rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 4, 20_000)
    assert homogeneity_test(codes, 3).inflation == pytest.approx(3.0, rel=0.1)


def test_a_chain_with_another_distribution_is_found(rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 4, 1000)
    codes[3] = MarkovChain.dar(0.5, [0.2, 0.3, 0.5]).draw(rng, 1, 1000)
    assert homogeneity_test(codes, 3).p_value < 1e-6


def test_a_chain_that_changes_is_found(rng):
    steady = SAME_AUTOCORRELATION.draw(rng, 2, 1000)
    steady[1, :400] = MarkovChain.dar(0.5, [0.2, 0.3, 0.5]).draw(rng, 1, 400)
    first, second = within_chain_tests(steady, 3)
    assert first.p_value > 1e-3
    assert second.p_value < 1e-3


def test_names_of_classes_do_not_matter(rng):
    codes = CYCLIC.draw(rng, 4, 500)
    found = homogeneity_test(codes, 3)
    renamed = homogeneity_test(np.array([2, 0, 1])[codes], 3)
    assert renamed.statistic == pytest.approx(found.statistic)


def test_rare_classes_are_taken_together(rng):
    codes = rng.choice(4, p=[0.6, 0.39, 0.005, 0.005], size=(2, 300))
    assert homogeneity_test(codes, 4).degrees_of_freedom == 1


@pytest.mark.parametrize(
    "codes",
    [np.zeros((4, 50), dtype=int), np.repeat([[0], [1]], 50, axis=1), np.array([[0, 1] * 25])],
    ids=["one class", "stuck", "one chain"],
)
def test_nothing_to_test(codes):
    assert np.isnan(homogeneity_test(codes, 2).p_value)


def test_what_is_refused():
    with pytest.raises(ValueError, match="codes: got an array of shape"):
        homogeneity_test(np.zeros(5, dtype=int), 2)
