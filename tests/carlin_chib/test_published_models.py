"""Models that others published, as they wrote them, against exact answers: the step as it is.

`benchmarks/model_index.py` samples all of them, with many seeds.
"""

from __future__ import annotations

import itertools

import numpy as np
import published_on_grids as on_grids
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import logsumexp

from benchmarks import published_models as published
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.checks import LIMIT, largest_share_error
from tests.helpers.nested_blocks import sample
from tests.helpers.representatives import by_default


@pytest.mark.parametrize(
    "name",
    by_default(
        [
            "coin",
            "identical",
            "pines",
            "horse kicks",
            "robust errors",
            "few predictors",
            "sinh-arcsinh",
            "robust subsets",
        ],
        ["coin"],
    ),
)
def test_every_chain_has_the_exact_probabilities(name, rng):
    problem = (published.MODELS | on_grids.MODELS)[name]()
    posterior = sample(problem.steps(), problem.model, rng, draws=4_000, chains=2)
    assert largest_share_error(problem.exact, posterior) < LIMIT


@pytest.mark.slow
def test_ten_indices_with_a_step_each_have_the_exact_probabilities(rng):
    problem = published.spike_and_slab()
    posterior = sample(problem.steps(), problem.model, rng, draws=4_000)
    assert largest_share_error(problem.exact, posterior) < LIMIT


def test_an_index_alone_is_refused_with_what_to_do():
    with (
        published.capture_recapture(),
        pytest.raises(ValueError, match=r"marginalize\(model, \['z'\]\)"),
    ):
        CarlinChib()


# -- the references --------------------------------------------------------------------------------


def test_published_evidences():
    pines = published.pines()
    np.testing.assert_allclose(pines.log_evidence, [-309.924, -301.435], atol=6e-4)
    assert pines.exact["k"][1] == pytest.approx(0.709, abs=6e-4)
    coin = published.coin()
    assert np.exp(coin.log_evidence[1] - coin.log_evidence[0]) == pytest.approx(4.91, abs=6e-3)


def test_published_evidences_of_change_points(monkeypatch):
    """They are those of the series with zeros for two years that PyMC leaves missing."""
    counts = published.DISASTERS.copy()
    counts[[39, 83]] = 0
    monkeypatch.setattr(published, "DISASTERS", counts)
    found = [published.change_point_evidence(j, distinct=True) for j in range(4)]
    np.testing.assert_allclose(found, [-205.923, -176.804, -175.400, -175.212], atol=6e-4)


@pytest.mark.parametrize("distinct", [True, False])
def test_change_points_are_enumerated(distinct, monkeypatch):
    """Every pair of places of a short series, one by one."""
    counts = np.array([3, 2, 0, 1, 0, 4])
    monkeypatch.setattr(published, "DISASTERS", counts)
    monkeypatch.setattr(published, "N_PLACES", len(counts) - 1)
    grid = np.linspace(1e-4, 40.0, 40_001)
    prior = -grid + np.log(grid[1] - grid[0])

    def evidence(stretch):
        return logsumexp(stats.poisson.logpmf(stretch[:, None], grid).sum(axis=0) + prior)

    places = range(1, len(counts))
    pairs = itertools.combinations(places, 2) if distinct else itertools.product(places, repeat=2)
    terms = [sum(map(evidence, np.split(counts, sorted(pair)))) for pair in pairs]
    found = published.change_point_evidence(2, distinct=distinct)
    assert found == pytest.approx(logsumexp(terms) - np.log(len(terms)), abs=0.01)


@pytest.mark.parametrize("n_changes", range(3))
def test_the_likelihood_of_rates_sums_over_places(n_changes, rng, monkeypatch):
    counts = np.array([3, 2, 0, 1, 0, 4, 1])
    monkeypatch.setattr(published, "DISASTERS", counts)
    monkeypatch.setattr(published, "N_PLACES", len(counts) - 1)
    rates = rng.exponential(size=n_changes + 1)
    terms = []
    for places in itertools.combinations(range(1, len(counts)), n_changes):
        stretch = np.searchsorted(places, np.arange(len(counts)), side="right")
        terms.append(stats.poisson.logpmf(counts, rates[stretch]).sum())
    found = published.log_likelihood_of_rates(pt.constant(rates), n_changes).eval()
    np.testing.assert_allclose(found, logsumexp(terms) - np.log(len(terms)))


# of models that are sampled with --runslow alone, but for one
@pytest.mark.parametrize(
    ("make", "more_nodes"),
    by_default(
        [
            (published.zero_inflated, 150),
            (published.robust_errors, 90),
            (published.pines, 300),
            (published.one_odd_group, 225),
            (published.filtration_condensation, 225),
        ],
        [(published.one_odd_group, 225)],
    ),
)
def test_quadratures_have_converged(make, more_nodes):
    np.testing.assert_allclose(
        make(more_nodes).log_evidence, make().log_evidence, rtol=0, atol=1e-6
    )


def test_grids_have_converged():
    for n_components in (1, 2, 3):
        few, many = (on_grids.galaxy_evidence(n_components, n) for n in (24, 30))
        assert few == pytest.approx(many, abs=1e-3)


def test_one_component_of_galaxies_has_the_evidence_of_normal_data():
    n = len(on_grids.GALAXIES)
    covariance = np.full((n, n), 25.0) + on_grids.SPREAD**2 * np.eye(n)
    exact = stats.multivariate_normal.logpdf(on_grids.GALAXIES, np.full(n, 15.0), covariance)
    assert on_grids.galaxy_evidence(1, 24) == pytest.approx(exact, abs=1e-6)


def test_a_regression_on_nothing_but_outliers_has_the_evidence_of_normal_data(monkeypatch):
    x, y = on_grids.robust_data()
    monkeypatch.setattr(
        on_grids, "log_robust", lambda residuals: stats.norm.logpdf(residuals, 0, 9)
    )
    covariance = 100 * x @ x.T + 81 * np.eye(len(y))
    exact = stats.multivariate_normal.logpdf(y, np.zeros(len(y)), covariance)
    found, error = on_grids.robust_evidence(x, y)
    assert error < 0.01 and found == pytest.approx(exact, abs=5 * error)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_the_authors_evidences_of_robust_regressions_are_found_again(place):
    x, y = on_grids.robust_data()
    found, error = on_grids.robust_evidence(x[:, on_grids.SUBSETS[place]], y)
    # theirs have errors of 0.002 to 0.006
    assert error < 0.01
    assert found == pytest.approx(on_grids.BY_SMC[place], abs=5 * np.hypot(error, 0.006))


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_the_models_of_galaxies_and_outliers_have_the_likelihoods_of_the_grids(place, monkeypatch):
    monkeypatch.setattr(on_grids, "galaxy_evidence", lambda *_: 0.0)
    model = on_grids.galaxies().model
    point = model.initial_point(0) | {"k": place}
    lowest, gaps = 12.0, np.array([3.0, 8.0, 5.0])[:place]
    point[f"lowest_{place}"] = np.array(lowest)
    if place:
        point[f"gaps_{place}_log__"] = np.log(gaps)
    found = model.compile_logp(vars=model["velocities"], mode="FAST_COMPILE")(point)
    means = lowest + np.append(0, np.cumsum(gaps))
    density = stats.norm.pdf(on_grids.GALAXIES[:, None], means, on_grids.SPREAD).mean(axis=1)
    assert found == pytest.approx(np.log(density).sum())
    model = on_grids.robust_subsets().model
    slopes = np.array([0.5, -0.2, 0.7, 1.3])
    point = {f"slope_{a}": slopes[a] for a in range(4)} | {"k": place}
    found = model.compile_logp(vars=model["responses"], mode="FAST_COMPILE")(point)
    x, y = on_grids.robust_data()
    own = on_grids.SUBSETS[place]
    assert found == pytest.approx(on_grids.log_robust(y - x[:, own] @ slopes[own]).sum())


def test_evidences_of_subsets_are_those_of_normal_data(rng):
    x, y = published.regression_data(2)
    spread, log_weight = published.nodes(0.3, 4.0, 100)
    prior = log_weight + stats.halfnorm.logpdf(spread, 0, 2)
    log_evidence = [
        logsumexp(
            [
                stats.multivariate_normal.logpdf(
                    y, np.zeros(len(y)), s**2 * np.eye(len(y)) + x @ np.diag(subset) @ x.T
                )
                for s in spread
            ]
            + prior
        )
        for subset in itertools.product((0, 1), repeat=2)
    ]
    expected = np.exp(log_evidence - logsumexp(log_evidence))
    np.testing.assert_allclose(published.subset_probabilities(x, y).ravel(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "epsilon", "delta"), [("one", [-2.0], [1.0]), ("two", [1.5, -2.0], [1.0, 1.5])]
)
def test_the_skewed_densities_are_those_of_transformed_normals(name, epsilon, delta, rng):
    """The derivatives of the transform are taken by differences."""
    model = published.sinh_arcsinh().model
    n = len(epsilon)
    covariance = np.full((n, n), 0.99) + 0.01 * np.eye(n)

    def transformed(z):
        return np.sinh((np.arcsinh(z) + epsilon) / delta)

    z = rng.multivariate_normal(np.zeros(n), covariance)
    h = 1e-5 * np.eye(n)
    derivative = (transformed(z + h) - transformed(z - h)).diagonal() / 2e-5
    expected = stats.multivariate_normal.logpdf(z, np.zeros(n), covariance)
    found = pm.logp(model[name], transformed(z)).eval()
    np.testing.assert_allclose(found, expected - np.log(derivative).sum(), rtol=1e-6)
