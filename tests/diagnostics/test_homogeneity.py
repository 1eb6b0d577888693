"""Tests of equal distributions: a value by hand, exact levels, power."""

import numpy as np
import pytest
from scipy.stats import binom, chi2, chi2_contingency

from pymc_mcoem.diagnostics import homogeneity_test, within_chain_tests
from tests.helpers.markov import CYCLIC, SAME_AUTOCORRELATION, MarkovChain

# One class hardly ever entered or left, the two others mixing fast.
METASTABLE = MarkovChain([[0.5, 0.49, 0.01], [0.49, 0.5, 0.01], [0.02, 0.02, 0.96]])


def rejections(chain, rng, dependence, level, n_runs=200):
    """Count p-values below a level, of 200 runs with equal distributions."""
    p = [
        homogeneity_test(chain.draw(rng, 4, 1000), 3, dependence=dependence).p_value
        for _ in range(n_runs)
    ]
    return int(np.sum(np.array(p) < level))


def test_a_value_by_hand():
    codes = np.array([[0] * 20 + [1] * 10, [0] * 12 + [1] * 18])
    test = homogeneity_test(codes, 2, dependence="ndarma")
    # 56 of 58 steps stay; shares are 32/60 and 28/60.
    phi = 1 + 1 / 30 - (1 - 56 / 58) / (1 - (32 / 60) ** 2 - (28 / 60) ** 2)
    assert test.inflation == pytest.approx((1 + phi) / (1 - phi))
    # Chains that hardly switch: fewer than five effective draws of a class in each.
    assert np.isnan(test.p_value)


def test_independent_draws_have_pearsons_test(rng):
    codes = rng.choice(3, p=[0.5, 0.3, 0.2], size=(4, 2000))
    table = np.stack([np.bincount(chain, minlength=3) for chain in codes])
    pearson = chi2_contingency(table, correction=False)
    test = homogeneity_test(codes, 3, dependence="ndarma")
    assert test.degrees_of_freedom == pearson.dof == 6
    assert test.statistic * test.inflation == pytest.approx(pearson.statistic)
    assert test.p_value == pytest.approx(chi2.sf(test.statistic, 6))
    assert test.inflation == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("level", [0.01, 0.05])
@pytest.mark.parametrize("dependence", ["ndarma", "markov"])
def test_the_level_is_kept_for_chains_of_one_autocorrelation(dependence, level, rng):
    found = rejections(SAME_AUTOCORRELATION, rng, dependence, level)
    low, high = binom(200, level).ppf([0.0005, 0.9995])
    assert low <= found <= high


@pytest.mark.parametrize("chain", [METASTABLE, CYCLIC], ids=["metastable", "cyclic"])
def test_the_transition_matrix_keeps_the_level_of_other_chains(chain, rng):
    assert rejections(chain, rng, "markov", 0.05) <= binom(200, 0.05).ppf(0.9995)


def test_one_autocorrelation_for_all_classes_does_not(rng):
    # Why the summary asks for "markov": of healthy runs the other rejects most.
    assert rejections(METASTABLE, rng, "ndarma", 0.05, n_runs=50) > 25


def test_both_agree_where_both_hold(rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 4, 20_000)
    first, second = (homogeneity_test(codes, 3, dependence=way) for way in ("ndarma", "markov"))
    assert first.inflation == pytest.approx(3.0, rel=0.1)
    assert second.inflation == pytest.approx(3.0, rel=0.1)
    assert first.statistic == pytest.approx(second.statistic, rel=0.2)


@pytest.mark.parametrize("dependence", ["ndarma", "markov"])
def test_a_chain_with_another_distribution_is_found(dependence, rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 4, 1000)
    codes[3] = MarkovChain.dar(0.5, [0.2, 0.3, 0.5]).draw(rng, 1, 1000)
    assert homogeneity_test(codes, 3, dependence=dependence).p_value < 1e-6


@pytest.mark.parametrize("dependence", ["ndarma", "markov"])
def test_a_chain_that_changes_is_found(dependence, rng):
    steady = SAME_AUTOCORRELATION.draw(rng, 2, 1000)
    steady[1, :400] = MarkovChain.dar(0.5, [0.2, 0.3, 0.5]).draw(rng, 1, 400)
    first, second = within_chain_tests(steady, 3, dependence=dependence)
    assert first.p_value > 1e-3
    assert second.p_value < 1e-3


@pytest.mark.parametrize("dependence", ["ndarma", "markov"])
def test_names_of_classes_do_not_matter(dependence, rng):
    codes = CYCLIC.draw(rng, 4, 500)
    found = homogeneity_test(codes, 3, dependence=dependence)
    renamed = homogeneity_test(np.array([2, 0, 1])[codes], 3, dependence=dependence)
    assert renamed.statistic == pytest.approx(found.statistic)


def test_rare_classes_are_taken_together(rng):
    codes = rng.choice(4, p=[0.6, 0.39, 0.005, 0.005], size=(2, 300))
    assert homogeneity_test(codes, 4).degrees_of_freedom == 1


@pytest.mark.parametrize(
    "codes",
    [np.zeros((4, 50), dtype=int), np.repeat([[0], [1]], 50, axis=1), np.array([[0, 1] * 25])],
    ids=["one class", "stuck", "one chain"],
)
@pytest.mark.parametrize("dependence", ["ndarma", "markov"])
def test_nothing_to_test(codes, dependence):
    assert np.isnan(homogeneity_test(codes, 2, dependence=dependence).p_value)


def test_what_is_refused():
    with pytest.raises(ValueError, match="codes: got an array of shape"):
        homogeneity_test(np.zeros(5, dtype=int), 2)
    with pytest.raises(ValueError, match="dependence: got 'none'"):
        homogeneity_test(np.zeros((2, 5), dtype=int), 2, dependence="none")
    with pytest.raises(ValueError, match=r"fraction: got 0.7"):
        within_chain_tests(np.zeros((2, 5), dtype=int), 2, fraction=0.7)
