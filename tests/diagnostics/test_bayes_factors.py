"""Bayes factors: exact answers, errors that cover, and no confident verdict on poor chains."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.special import betaln
from scipy.stats import binom

import pymc_mcoem as mcoem
from pymc_mcoem.density.class_index import class_prior, index_key
from pymc_mcoem.diagnostics import ClassIndexWarning, bayes_factors, log_odds
from pymc_mcoem.diagnostics.log_odds import errors_of_log_odds, log_mean
from tests.helpers.markov import SAME_AUTOCORRELATION, MarkovChain, as_array, as_tree
from tests.helpers.toy_carlin_chib import toy_carlin_chib

PRIOR = np.array([0.6, 0.3, 0.1])
EVIDENCE = np.array([1.0, 4.0, 0.5])
#: Logarithms of the Bayes factors of all pairs.
EXACT = np.log(EVIDENCE)[:, None] - np.log(EVIDENCE)


def toy_tree(rng, evidence, mean, spread, n_draws=1000, start=0):
    codes, log_weight, _, _ = toy_carlin_chib(rng, 4, n_draws, evidence, mean, spread, start)
    return as_tree(codes, log_weight)


def flagged(*args, **kwargs):
    with pytest.warns(ClassIndexWarning):
        return bayes_factors(*args, **kwargs)


# -- exact answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [1.05, 1.6], ids=["good pseudo-priors", "wide ones"])
def test_bayes_factors_are_the_exact_ones(spread, rng):
    found = bayes_factors(toy_tree(rng, PRIOR * EVIDENCE, [0.2] * 3, [spread] * 3), prior=PRIOR)
    assert found.ok, found.flags
    z = (found.pairs["log_bf"] - EXACT) / found.pairs["mcse"].where(found.pairs["mcse"] > 0)
    assert np.abs(z).max() < 4
    assert found.pairs["mcse"].max() < 0.1
    np.testing.assert_allclose(
        found.pairs["log_posterior_odds"] - found.pairs["log_prior_odds"], found.pairs["log_bf"]
    )
    np.testing.assert_allclose(
        found.pairs["log_prior_odds"], np.log(PRIOR)[:, None] - np.log(PRIOR)
    )
    assert np.abs(found.pairs["chain_log_bf"].mean("chain") - EXACT).max() < 0.3


def test_the_table_compares_with_the_most_probable_class_or_with_one_that_is_named(rng):
    tree = toy_tree(rng, PRIOR * EVIDENCE, [0.0] * 3, [1.1] * 3)
    table = bayes_factors(tree, prior=PRIOR).table
    assert table["against"].tolist() == [1, 1, 1]
    assert table["log_bf"][1] == 0.0
    named = bayes_factors(tree, prior=PRIOR, against=2)
    np.testing.assert_allclose(named.table["bf"], np.exp(named.pairs["log_bf"].sel(against=2)))
    assert (named.table["chain_low"] <= named.table["log_bf"]).all()
    assert (named.table["chain_high"] >= named.table["log_bf"]).all()
    assert "No problem found" in repr(named) and "<table" in named._repr_html_()


def test_weights_tell_more_than_visits(rng):
    """Draws of good pseudo-priors weigh a class at every sweep, visited or not."""
    tree = toy_tree(rng, PRIOR * EVIDENCE, [0.0] * 3, [1.1] * 3)
    visits = bayes_factors(tree["posterior"]["class_index"], prior=PRIOR)
    by_weights = bayes_factors(tree, prior=PRIOR)
    assert by_weights.table["mcse"][0] < 0.5 * visits.table["mcse"][0]


def test_names_of_classes_and_indices_of_a_plate(rng):
    codes = np.stack([SAME_AUTOCORRELATION.draw(rng, 4, 500) for _ in range(3)], axis=-1)
    names = ["a", "b", "c"]
    prior = np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    found = bayes_factors(as_array(codes), classes=names, prior=prior, against="a")
    assert found.pairs.sizes == {"row": 3, "class": 3, "against": 3, "chain": 4}
    expected = np.log(SAME_AUTOCORRELATION.share) - np.log(prior)
    away = found.table["log_bf"].to_numpy().reshape(3, 3) - (expected - expected[:, :1])
    error = found.table["mcse"].to_numpy().reshape(3, 3)
    assert np.abs(away[:, 1:] / error[:, 1:]).max() < 4
    assert found.table.loc[(1, "b"), "against"] == "a"


# -- errors that cover ---------------------------------------------------------------------------

N_REPLICATES = 200


def require_coverage(pairs, exact, probability):
    """Fail if intervals of independent replicates cover too seldom or too often to be chance."""
    for i, j in ((0, 1), (0, 2), (1, 2)):
        pair = pairs.sel({"class": i, "against": j})
        inside = (pair["lower"] <= exact[i, j]) & (exact[i, j] <= pair["upper"])
        n = int(inside.sum())
        assert not np.isnan(pair["mcse"]).any()
        # an error known to a tenth shifts the coverage by about 0.02
        low = binom.isf(1 - 1e-4, N_REPLICATES, probability - 0.02)
        high = binom.isf(1e-4, N_REPLICATES, min(probability + 0.02, 1.0))
        assert low <= n <= high, f"{n} of {N_REPLICATES} cover"


@pytest.fixture(scope="module")
def replicates():
    """Return 200 independent runs of sticky chains, as the rows of a plate."""
    chain = MarkovChain.dar(0.8, [0.5, 0.3, 0.2])
    rng = np.random.default_rng(8)
    codes = chain.draw(rng, 4 * N_REPLICATES, 500).reshape(N_REPLICATES, 4, 500)
    return as_array(np.moveaxis(codes, 0, -1)), np.log(chain.share)[:, None] - np.log(chain.share)


@pytest.mark.filterwarnings("ignore::pymc_mcoem.diagnostics.ClassIndexWarning")
def test_intervals_cover_the_truth_as_often_as_they_say(replicates):
    index, exact = replicates
    require_coverage(bayes_factors(index, prior=[1, 1, 1], probability=0.8).pairs, exact, 0.8)


@pytest.mark.filterwarnings("ignore::pymc_mcoem.diagnostics.ClassIndexWarning")
def test_intervals_that_ignore_autocorrelation_do_not_cover(replicates, monkeypatch):
    index, exact = replicates

    def as_if_independent(series):
        return float(series.std() / np.sqrt(series.size))

    monkeypatch.setattr(log_odds, "_mcse", as_if_independent)
    pairs = bayes_factors(index, prior=[1, 1, 1], probability=0.8).pairs
    with pytest.raises(AssertionError, match="cover"):
        require_coverage(pairs, exact, 0.8)


def test_intervals_from_weights_cover_too(rng):
    """The pseudo-prior of the last class is poor, so that the chains are sticky."""
    posterior, means, spreads = PRIOR * EVIDENCE, [0.0, 0.3, 0.0], [1.0, 1.3, 2.0]
    rows = [toy_carlin_chib(rng, N_REPLICATES, 400, posterior, means, spreads)[1] for _ in range(4)]
    inside = np.zeros(3)
    for log_weight in np.stack(rows, axis=1)[:, :, 20:]:
        log_share = log_mean(log_weight, (0, 1))
        error = errors_of_log_odds(log_weight, log_share, np.zeros(3, dtype=bool))[0]
        exact = np.log(posterior)[0] - np.log(posterior)
        inside += np.abs(log_share[0] - log_share - exact) <= 1.2816 * error
    low, high = binom.isf([1 - 1e-4, 1e-4], N_REPLICATES, [0.78, 0.82])
    assert (low <= inside[1:]).all() and (inside[1:] <= high).all(), inside


# -- never confidently wrong ---------------------------------------------------------------------


def test_chains_that_disagree_get_no_error():
    stuck = np.repeat([[0], [0], [1], [1]], 500, axis=1)
    found = flagged(as_tree(stuck), prior=[0.5, 0.5])
    assert found.table.loc[1, ["mcse", "lower", "upper"]].isna().all()
    assert any("no errors are given: chains disagree" in flag for flag in found.flags)
    assert "may be wrong by any factor" in repr(found)


def test_chains_that_differ_in_their_shares_get_no_error(rng):
    halves = [MarkovChain.dar(0.5, share).draw(rng, 2, 500) for share in ([0.8, 0.2], [0.3, 0.7])]
    found = flagged(as_tree(np.concatenate(halves)), prior=[0.5, 0.5])
    assert found.table["mcse"].isna().any() and np.isnan(found.table["mcse"][1 - _best(found)])


def _best(found):
    return int(found.table["against"].iloc[0])


def test_one_sticky_excursion_is_no_figure(rng):
    codes = np.zeros((4, 1000), dtype=int)
    codes[2, 300:450] = 1
    found = flagged(as_tree(codes), prior=[0.5, 0.5])
    assert not found.ok
    assert np.isnan(found.table["mcse"][1]) or found.table["mcse"][1] > 0.3


def test_a_class_of_no_weight_that_was_never_seen_has_its_figure_from_the_weights(rng):
    evidence = np.array([0.7, 0.3, 1e-20])
    found = bayes_factors(toy_tree(rng, evidence, [0.1] * 3, [1.2] * 3), prior=[1, 1, 1])
    assert found.ok, found.flags
    assert found.table["n_visits"][2] == 0
    z = (found.table["log_bf"][2] - np.log(1e-20 / 0.7)) / found.table["mcse"][2]
    assert abs(z) < 4 and found.table["mcse"][2] < 0.1
    assert any("class 2 was visited 0 times" in note for note in found.notes)


def test_a_class_never_seen_whose_weights_are_all_equal_is_the_one_that_is_noted(rng):
    """Its pseudo-prior is its posterior; the class that is always active has no such weights."""
    evidence = np.array([1.0, 1e-20])
    found = bayes_factors(toy_tree(rng, evidence, [0.0] * 2, [1.0] * 2), prior=[1, 1], against=0)
    assert found.ok and found.table["log_bf"][1] == pytest.approx(np.log(1e-20))
    (note,) = [note for note in found.notes if "its Bayes factor comes" in note]
    assert note.startswith("class 1 was visited 0 times") and "the weights are equal" in note


@pytest.mark.parametrize("spread", [[0.5, 1.1], [1.1, 0.5]], ids=["of the other", "its own"])
def test_weights_without_variance_have_the_error_of_the_visits_in_a_note(spread, rng):
    weights = np.array([0.8, 0.2]), [0.1] * 2, spread
    codes, log_weight, _, _ = toy_carlin_chib(rng, 4, 4000, *weights, 0)
    found = bayes_factors(as_tree(codes, log_weight), prior=[1, 1])
    visits = bayes_factors(as_tree(codes), prior=[1, 1]).table["mcse"][1]
    (note,) = [note for note in found.notes if "visits alone" in note]
    mcse = found.table["mcse"][1]
    assert "class 1, or of class 0, is" in note and f"{mcse:.2g}, is rough" in note
    assert f"visits alone give {visits:.2g}," in note and visits > mcse


def test_good_weights_have_no_such_note(rng):
    found = bayes_factors(toy_tree(rng, np.array([0.8, 0.2]), [0.1] * 2, [1.1] * 2), prior=[1, 1])
    assert not any("visits alone" in note for note in found.notes)


def test_indices_of_a_plate_that_rightly_stay_in_their_classes_raise_no_warning(rng):
    of_row = np.repeat(np.arange(30) % 2, 4)
    evidence = np.where(of_row[:, None] == [1, 0], 1.0, 1e-20)
    start = 1 - of_row
    codes, log_weight, *_ = toy_carlin_chib(rng, 120, 400, evidence, [0.1] * 2, [1.2] * 2, start)
    codes = np.moveaxis(codes.reshape(30, 4, 400), 0, -1)
    log_weight = np.moveaxis(log_weight.reshape(30, 4, 400, 2), 0, 2).reshape(4, 400, -1)
    tree = as_tree(codes, log_weight)
    assert mcoem.class_index_summary(tree).ok
    found = bayes_factors(tree, prior=[1, 1], against=0)
    z = (np.abs(found.table["log_bf"]) - np.log(1e20)) / found.table["mcse"]
    assert found.ok and np.abs(z[found.table["mcse"] > 0]).max() < 5
    text = repr(found).splitlines()
    assert text[1].startswith("No problem found") and len(text) < 60


def test_a_class_never_seen_through_a_poor_pseudo_prior_has_bounds(rng):
    """A narrow pseudo-prior far off weighs the class by draws that miss its posterior."""
    evidence = np.array([0.7, 0.3, 1e-6])
    found = flagged(toy_tree(rng, evidence, [0, 0, 0.0], [1, 1, 0.3]), prior=[1, 1, 1])
    row = found.table.loc[2]
    assert np.isnan(row["mcse"]) and row["lower"] < np.log(1e-6 / 0.7) < row["upper"]
    assert row["upper"] < -5
    assert any("Pareto k of its weights" in flag and "bounds" in flag for flag in found.flags)


def test_a_class_never_seen_has_an_upper_bound_without_weights(rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 4, 1000)
    found = flagged(as_tree(codes), prior=[1, 1, 1, 1], classes=range(4))
    row = found.table.loc[3]
    assert row["log_bf"] == row["lower"] == -np.inf
    # at most the logarithm of 1 / 0.03 over the share of the best class and a third of the draws
    assert -8 < row["upper"] < np.log(3.51 / 0.5 / 400)
    assert np.isfinite(found.table.loc[1, "mcse"])


def test_a_class_with_few_independent_visits_is_flagged(rng):
    codes = MarkovChain.dar(0.9, [0.99, 0.01]).draw(rng, 4, 1000)
    with pytest.warns(ClassIndexWarning):
        found = bayes_factors(as_tree(codes), prior=[0.5, 0.5])
    assert not found.ok


def test_draws_are_weighed_where_visits_were_equalized(rng):
    share, tilt = np.array([0.9, 0.1]), np.array([-1.0, 1.2])
    tilted = share * np.exp(tilt)
    codes = MarkovChain.dar(0.3, tilted / tilted.sum()).draw(rng, 4, 2000)
    dims, key = ("chain", "draw"), np.full(codes.shape, index_key("class_index"))
    stats = xr.Dataset(
        {
            "class_log_weight": ((*dims, "class"), np.log(np.full((*codes.shape, 2), 0.5))),
            "class_of": (dims, key),
            "class_log_importance": (dims, -tilt[codes]),
        }
    )
    tree = as_tree(codes)
    tree["sample_stats"] = xr.DataTree(stats)
    found = bayes_factors(tree, prior=[0.5, 0.5])
    error = found.table["mcse"][1]
    assert abs(found.table["log_bf"][1] - np.log(0.1 / 0.9)) < 4 * error
    assert error < 0.06  # nearly as precise as from plain draws of equal classes


# -- prior odds ----------------------------------------------------------------------------------


def test_the_step_records_the_prior_and_the_answers_are_exact():
    """Three priors of a coin of which 7 of 20 tosses were heads, with unequal probabilities."""
    a, b = np.array([1.0, 2.0, 6.0]), np.array([1.0, 5.0, 2.0])
    exact = betaln(a + 7, b + 13) - betaln(a, b)
    with pm.Model():
        k = pm.Categorical("k", pm.Data("prior", PRIOR))
        p = [pm.Beta(f"p{j}", a[j], b[j]) for j in range(3)]
        chosen = pm.math.switch(
            pm.math.eq(k, 0), p[0], pm.math.switch(pm.math.eq(k, 1), p[1], p[2])
        )
        pm.Binomial("heads", 20, chosen, observed=7)
        step = mcoem.CarlinChib(blocks={j: [each] for j, each in enumerate(p)})
        tree = pm.sample(step=step, chains=4, cores=1, random_seed=3, progressbar=False, quiet=True)
    found = bayes_factors(tree)
    assert found.ok, found.flags
    away = found.pairs["log_bf"].values - (exact[:, None] - exact)
    error = found.pairs["mcse"].values
    assert np.abs(away[error > 0] / error[error > 0]).max() < 4
    assert 0.0001 < error[0, 1] < 0.02
    np.testing.assert_allclose(found.pairs["log_prior_odds"][0], np.log(PRIOR[0] / PRIOR))


def test_priors_that_are_constants_are_read_from_the_model():
    with pm.Model() as model:
        w = pm.Data("w", [0.2, 0.8])
        k = pm.Categorical("k", w)
        b = pm.Bernoulli("b", logit_p=np.log(3.0))
        plate = pm.Categorical("plate", w, shape=5)
        rows = pm.Categorical("rows", [[0.2, 0.8], [0.5, 0.5]])
        random = pm.Categorical("random", pm.Dirichlet("p", [1.0, 1.0]))
        of_index = pm.Categorical("of_index", pm.math.switch(k, 0.3, 0.6) * np.ones(2) / 2)
        for variable, expected in ((k, [0.2, 0.8]), (b, [0.25, 0.75]), (plate, [0.2, 0.8])):
            np.testing.assert_allclose(class_prior(model, variable), expected)
        for variable in (rows, random, of_index):
            assert np.isnan(class_prior(model, variable)).all()
        model.set_data("w", [0.4, 0.6])
        np.testing.assert_allclose(class_prior(model, k), [0.4, 0.6])


def test_priors_are_refused_by_name(rng):
    tree = as_tree(SAME_AUTOCORRELATION.draw(rng, 4, 100))
    with pytest.raises(ValueError, match=r"prior: got none, and no prior .*prior=\[0.6, 0.4\]"):
        bayes_factors(tree)
    for bad in ([0.5, 0.5], [-1, 1, 1], 0.5, [np.nan, 1, 1]):
        with pytest.raises(ValueError, match="prior: got"):
            bayes_factors(tree, prior=bad)
    with pytest.raises(ValueError, match="against: got 7"):
        bayes_factors(tree, prior=[1, 1, 1], against=7)
    with pytest.raises(ValueError, match=r"probability: got 94"):
        bayes_factors(tree, prior=[1, 1, 1], probability=94)
    dims = ("chain", "draw")
    stats = xr.Dataset(
        {
            "class_log_weight": ((*dims, "class"), np.log(np.full((4, 100, 3), 1 / 3))),
            "class_of": (dims, np.full((4, 100), index_key("class_index"))),
            "class_prior": ((*dims, "class"), np.full((4, 100, 3), np.nan)),
        }
    )
    tree["sample_stats"] = xr.DataTree(stats)
    with pytest.raises(ValueError, match=r"depend on other random variables.*sample_prior"):
        bayes_factors(tree)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pymc_mcoem.diagnostics.ClassIndexWarning")
def test_what_is_not_flagged_is_right_on_random_problems(rng):
    """Evidences over twelve nats, and pseudo-priors that are narrow, wide and off."""
    approved, bounded = [], []
    for _ in range(300):
        evidence = np.exp(rng.uniform(-12, 0, 3))
        mean, spread = rng.uniform(-2.5, 2.5, 3), np.exp(rng.uniform(-1.2, 0.8, 3))
        tree = toy_tree(rng, evidence, mean, spread, n_draws=600, start=rng.choice(3, size=4))
        found = bayes_factors(tree, prior=[1, 1, 1])
        for i, j in ((0, 1), (0, 2), (1, 2)):
            pair = found.pairs.sel({"class": i, "against": j})
            exact = np.log(evidence[i] / evidence[j])
            if np.isfinite(pair["mcse"]) and found.ok:
                approved.append(float(abs(pair["log_bf"] - exact) / pair["mcse"]))
            elif np.isnan(pair["mcse"]) and np.isfinite(pair["upper"]):
                bounded.append(bool(pair["lower"] <= exact <= pair["upper"]))
    assert len(approved) > 300 and len(bounded) > 60
    # tails of weights whose variance is hardly finite are longer than those of normal errors
    assert np.mean(np.array(approved) > 4) < 0.02 and max(approved) < 8
    assert np.mean(bounded) > 0.94
