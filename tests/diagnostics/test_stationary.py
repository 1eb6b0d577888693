"""The posterior of a stationary distribution against quadrature and exact chains."""

import numpy as np
import pytest
from scipy.stats import beta

from pymc_mcoem.diagnostics import count_transitions, stationary_distribution
from pymc_mcoem.diagnostics.transitions import dirichlet_fit
from tests.helpers.markov import CYCLIC, SAME_AUTOCORRELATION, MarkovChain

N_SAMPLES = 4000


@pytest.mark.parametrize("counts", [[[20, 5], [3, 10]], [[2, 1], [1, 0]]])
def test_two_classes_against_quadrature(counts):
    # The share of class 0 is q/(p + q) of two independent Betas: those of leaving each class.
    counts = np.array(counts)
    leave = [
        beta(counts[0, 1] + 0.5, counts[0, 0] + 0.5),
        beta(counts[1, 0] + 0.5, counts[1, 1] + 0.5),
    ]

    # In uniform coordinates, where the integrand is bounded.
    nodes, weights = np.polynomial.legendre.leggauss(300)
    p, q = (law.ppf((nodes + 1) / 2) for law in leave)
    share = q / (p[:, None] + q)
    mean, square = (weights @ share**power @ weights / 4 for power in (1, 2))
    sd = np.sqrt(square - mean**2)
    found = stationary_distribution(counts, n_samples=N_SAMPLES)
    assert abs(found.mean[0] - mean) < 4 * sd / np.sqrt(N_SAMPLES)
    # The standard error of a standard deviation, for a distribution no heavier than the normal.
    assert abs(found.sd[0] / sd - 1) < 4 / np.sqrt(2 * N_SAMPLES)


def test_the_worked_value_of_a_sticky_chain():
    # 4000 draws, 17 switches, share 0.611: 0.579 ± 0.112 and 18.5 effective draws, as found with
    # the method before. Of a Beta, m (1 - m)/s² - 1 is the sum of parameters.
    found = stationary_distribution(np.array([[2435, 9], [8, 1547]]), n_samples=20_000)
    assert found.mean[0] == pytest.approx(0.579, abs=0.01)
    assert found.sd[0] == pytest.approx(0.112, abs=0.005)
    assert found.ess == pytest.approx(18.5, abs=1.0)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.85])
def test_effective_size_is_that_of_the_exact_chain(phi, rng):
    n, n_runs = 2000, 40
    chain = MarkovChain.dar(phi, [0.5, 0.3, 0.2])
    found = [
        stationary_distribution(count_transitions(chain.draw(rng, 1, n), 3)[0], random_seed=seed)
        for seed in range(n_runs)
    ]
    exact = n * (1 - phi) / (1 + phi)
    ratio = np.array([each.ess for each in found]) / exact
    # The prior brings 1/3 of a transition for each pair of classes.
    assert abs(ratio.mean() - 1) < 4 * ratio.std(ddof=1) / np.sqrt(n_runs) + 3 / exact
    mean = np.mean([each.mean for each in found], axis=0)
    assert np.all(np.abs(mean - chain.share) < 4 * chain.mcse(n * n_runs) + 3 / (n * (1 - phi)))


def test_independent_draws_count_as_the_paper_says(rng):
    # Heck et al. 2019, Figure 1: 96 of 100 independent draws, 8 of 100 dependent ones.
    def median(phi):
        chain = MarkovChain.dar(phi, [0.5, 0.3, 0.2])
        counts = [count_transitions(chain.draw(rng, 1, 100), 3)[0] for _ in range(40)]
        return np.median([stationary_distribution(matrix).ess for matrix in counts])

    assert 80 < median(0.0) < 120
    assert 6 < median(0.85) < 16


def test_the_mean_is_the_share_where_there_is_much_data():
    counts = 1e6 * CYCLIC.share[:, None] * CYCLIC.matrix
    np.testing.assert_allclose(stationary_distribution(counts).mean, CYCLIC.share, atol=1e-3)


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 0, 2], [2, 1, 0]])
def test_names_of_classes_do_not_matter(order, rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 1, 300)
    counts = count_transitions(codes, 3)[0]
    found = stationary_distribution(counts)
    renamed = stationary_distribution(counts[np.ix_(order, order)])
    np.testing.assert_allclose(renamed.mean, found.mean[order])
    np.testing.assert_allclose(renamed.sd, found.sd[order])
    assert renamed.ess == pytest.approx(found.ess)


def test_classes_never_visited_have_no_share():
    found = stationary_distribution(np.array([[5, 0, 1], [0, 0, 0], [1, 0, 5]]))
    np.testing.assert_array_equal(found.samples[:, 1], 0.0)
    np.testing.assert_allclose(found.samples.sum(axis=1), 1.0)


def test_a_chain_of_one_class():
    found = stationary_distribution(np.diag([0, 9]))
    np.testing.assert_array_equal(found.mean, [0.0, 1.0])
    assert np.isnan(found.ess)


def test_stuck_chains_are_worth_next_to_nothing():
    for n_classes in (2, 10):
        found = stationary_distribution(np.diag(np.full(n_classes, 999)))
        assert found.ess < n_classes
        assert np.isfinite(found.samples).all()


def test_a_dirichlet_is_fitted(rng):
    alpha = np.array([0.3, 2.0, 15.0])
    fits = np.array([dirichlet_fit(rng.dirichlet(alpha, size=2000)) for _ in range(20)])
    error = fits.std(axis=0, ddof=1) / np.sqrt(len(fits))
    assert np.all(np.abs(fits.mean(axis=0) - alpha) < 4 * error)


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        (np.ones((2, 3)), {}, "counts: got an array of shape"),
        (-np.eye(2), {}, "not negative"),
        (np.zeros((2, 2)), {}, "no transition"),
        (np.eye(2), {"prior": 0.0}, "prior: got 0.0"),
        (np.eye(2), {"n_samples": 1}, "n_samples: got 1"),
    ],
)
def test_what_is_refused(counts, options, message):
    with pytest.raises(ValueError, match=message):
        stationary_distribution(counts, **options)
