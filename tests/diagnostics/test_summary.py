"""The summary: what it flags and what it does not, under any names, of our own step too."""

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from scipy.stats import binom, norm

from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.diagnostics import (
    ClassIndexWarning,
    class_index_summary,
    class_latents,
    pareto_k,
    read_chains,
    unmoved_chains,
)
from tests.helpers.markov import CYCLIC, SAME_AUTOCORRELATION, MarkovChain, as_array, as_tree
from tests.helpers.toy_carlin_chib import toy_carlin_chib

#: Runs in which false alarms are counted.
N_HEALTHY = 60


def flagged(data, **options):
    """Return the summary of chains that are to be flagged."""
    with pytest.warns(ClassIndexWarning):
        summary = class_index_summary(data, **options)
    assert not summary.ok
    return summary


# -- what is flagged -----------------------------------------------------------------------------


def test_healthy_chains_are_not_flagged(rng):
    n_flagged = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        runs = SAME_AUTOCORRELATION.draw(rng, 4 * N_HEALTHY, 1000).reshape(N_HEALTHY, 4, 1000)
        for codes in runs:
            n_flagged += not class_index_summary(as_array(codes)).ok
    # The tests' level is 0.01 together. R-hat passes 1.01 where half-chains vary 11 times as much
    # as independent ones, 3 being due: the chi-square of 7 says 0.0006 a class.
    assert n_flagged <= binom(N_HEALTHY, 0.01 + 3 * 0.0006).ppf(0.9995)


@pytest.mark.parametrize("stay", [[0, 0, 0, 0], [0, 0, 1, 1]], ids=["same", "different"])
def test_frozen_chains_are_flagged(stay):
    codes = np.repeat(np.array(stay)[:, None], 1000, axis=1)
    summary = flagged(as_array(codes))
    assert "never switched" in summary.flags[0]
    assert summary.chains["n_switches"].sum() == 0


@pytest.mark.parametrize("attempt", range(20))
def test_sticky_chains_are_flagged(attempt, rng):
    codes = MarkovChain.dar(0.99, [0.5, 0.3, 0.2]).draw(rng, 4, 1000)
    summary = flagged(as_array(codes))
    assert any("effective sample size" in flag for flag in summary.flags)


@pytest.mark.parametrize("stuck_in", [0, 1, 2])
def test_one_chain_stuck_of_four_is_flagged(stuck_in, rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 4, 1000)
    codes[3] = stuck_in
    summary = flagged(as_array(codes))
    assert summary.flags[0].startswith("chain 3 never switched and could not")
    assert any("R-hat" in flag for flag in summary.flags)
    assert any("chains differ" in flag for flag in summary.flags)


def test_a_chain_that_comes_late_is_flagged(rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 4, 1000)
    codes[0, :300] = 2
    assert any("beginning and end" in flag for flag in flagged(as_array(codes)).flags)


def test_one_draw_elsewhere_says_how_little_is_known():
    codes = np.zeros((4, 1000), dtype=int)
    codes[0, 500] = 1
    summary = class_index_summary(as_array(codes))
    # The error is as large as the share.
    assert summary.table["mcse"][1] == pytest.approx(float(summary.table["share"][1]), rel=0.1)
    assert "by chance" in summary.notes[0]


def test_stuck_is_told_from_nowhere_to_go(rng):
    good = {"mean": [0, 0], "spread": [1.05, 1.05]}
    codes, log_weight, *_ = toy_carlin_chib(rng, 4, 500, evidence=[1, 1e-9], **good)
    summary = class_index_summary(as_tree(codes, log_weight))
    assert summary.ok
    assert "the other classes have no weight" in summary.notes[0]
    assert "no fault of the pseudo-priors is seen" in repr(summary)
    bad = {"mean": [0, 9], "spread": [1.05, 0.5]}
    codes, log_weight, *_ = toy_carlin_chib(rng, 4, 500, evidence=[0.5, 0.5], **bad)
    summary = flagged(as_tree(codes, log_weight))
    assert "pseudo-priors do not show the weight of classes [1]" in summary.flags[0]


def test_the_warning_says_it_all_once(rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 4, 500)
    codes[1] = 0
    with pytest.warns(ClassIndexWarning) as caught:
        class_index_summary(as_array(codes, name="k"))
    assert len(caught) == 1
    assert str(caught[0].message).startswith("k: chain 1 never switched")
    assert caught[0].filename == __file__


# -- names of classes ----------------------------------------------------------------------------


@pytest.mark.parametrize("names", [[2, 0, 1], [5, 9, 1], ["cat", "ant", "bee"]])
@pytest.mark.filterwarnings("ignore::pymc_mcoem.diagnostics.ClassIndexWarning")
def test_renaming_the_classes_changes_no_number(names, rng):
    codes = CYCLIC.draw(rng, 4, 500)
    found = class_index_summary(as_array(codes))
    renamed = class_index_summary(as_array(np.array(names)[codes]))
    back = renamed.table.loc[names].set_axis(found.table.index)
    pd.testing.assert_frame_equal(back, found.table)
    xr.testing.assert_allclose(renamed.overall, found.overall)
    pairs = {"class_from": names, "class_to": names}
    np.testing.assert_array_equal(
        renamed.transitions["count"].sel(pairs), found.transitions["count"]
    )
    np.testing.assert_allclose(renamed.chains["p_within"], found.chains["p_within"])
    assert renamed.flags == found.flags


# -- shapes --------------------------------------------------------------------------------------


def test_a_plate_is_looked_at_index_by_index(rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 12, 1000).reshape(3, 4, 1000)
    single = class_index_summary(as_array(codes[1]))
    plate = class_index_summary(as_array(np.moveaxis(codes, 0, -1)))
    assert plate.table.index.names == ["row", "class"]
    pd.testing.assert_frame_equal(plate.table.loc[1], single.table)
    assert "3 indices: 4 chains" in repr(plate)
    codes[2, 1] = 0
    summary = flagged(as_array(np.moveaxis(codes, 0, -1)))
    assert "chain 1 of [row=2] never switched" in summary.flags[0]


def test_a_large_plate_prints_some_of_its_rows(rng):
    codes = rng.integers(3, size=(2, 500, 20))
    summary = class_index_summary(as_array(codes), significance=1e-6, rhat_max=1.1)
    assert "... and 20 rows more" in repr(summary)
    assert len(summary.table) == 60


def test_classes_never_visited_are_shown_if_named():
    summary = class_index_summary(as_array([[0, 1] * 400] * 2), classes=[0, 1, 2], ess_min=1)
    assert summary.table.loc[2, "share"] == 0.0
    assert np.isnan(summary.table.loc[2, "rhat"])


def test_bad_pseudo_priors_are_noted(rng):
    codes, log_weight, *_ = toy_carlin_chib(
        rng, 4, 1000, [0.5, 0.5], mean=[0, 2], spread=[1.05, 0.4]
    )
    summary = class_index_summary(
        as_tree(codes, log_weight), ess_min=1, rhat_max=2, significance=1e-9
    )
    bad = [label for label in (0, 1) if summary.table["pareto_k"][label] > 0.7]
    assert 1 in bad
    named = ", ".join(map(str, bad))
    assert f"Pareto k above 0.7: classes {named}; jumps are rarer" in summary.notes[-1]


def test_the_table_prints_with_a_row_a_class(rng):
    summary = class_index_summary(as_array(SAME_AUTOCORRELATION.draw(rng, 4, 1000)))
    lines = repr(summary).splitlines()
    assert lines[0].startswith("class_index: 4 chains of 1000 draws; switches per chain ")
    assert lines[1].split()[:4] == ["share", "mcse", "ess", "rhat"]
    assert [line.split()[0] for line in lines[3:6]] == ["0", "1", "2"]
    assert lines[-1] == "No problem found in what 4 chains visited."
    html = summary._repr_html_()
    assert html.count("<tr") == 5
    assert "No problem found in what 4 chains visited." in html


# -- our own step --------------------------------------------------------------------------------


def test_the_statistics_of_the_step_are_used():
    weights, means, prior_sd, noise, y = [0.5, 0.3, 0.2], [-1.0, 0.0, 1.5], 0.7, 0.5, 0.4
    with pm.Model():
        index = pm.Categorical("k", weights)
        x = pm.Normal("x", pm.math.stack(means)[index], prior_sd)
        pm.Normal("y", x, noise, observed=y)
        data = pm.sample(
            step=CarlinChib(),
            tune=100,
            draws=600,
            chains=4,
            cores=1,
            progressbar=False,
            random_seed=11,
            compute_convergence_checks=False,
        )
    summary = class_index_summary(data)
    assert summary.ok
    assert summary.name == "k"
    exact = np.array(weights) * norm.pdf(y, means, np.hypot(prior_sd, noise))
    exact /= exact.sum()
    error = np.abs(summary.table["share"] - exact)
    assert np.all(error < 4 * summary.table["mcse"])
    # Laplace pseudo-priors are exact here: every weight is the posterior probability.
    np.testing.assert_allclose(summary.table["weight"], exact, atol=1e-6)
    np.testing.assert_array_equal(summary.table["pareto_k"], -np.inf)
    jumps = summary.transitions["jump_probability"]
    np.testing.assert_allclose(jumps, np.broadcast_to(exact, (3, 3)), atol=1e-6)
    posterior = np.asarray(means) + (y - np.asarray(means)) * prior_sd**2 / (prior_sd**2 + noise**2)
    found = class_latents(data)["x"]
    gap = np.abs(found.sel(summary="mean") - posterior)
    assert np.all(gap < 4 * found.sel(summary="mcse_mean"))


def test_a_plate_of_the_step(rng):
    y = np.array([-0.4, 0.1, 0.5, 9.0])
    with pm.Model(coords={"person": list("abcd")}):
        index = pm.Categorical("class_index", [0.5, 0.5], shape=4, dims="person")
        x = pm.Normal("x", pm.math.stack([-1.0, 1.0])[index], 0.5, dims="person")
        pm.Normal("y", x, 0.5, observed=y, dims="person")
        data = pm.sample(
            step=CarlinChib(),
            tune=50,
            draws=400,
            chains=2,
            cores=1,
            progressbar=False,
            random_seed=12,
            compute_convergence_checks=False,
        )
    summary = class_index_summary(data, significance=1e-4, rhat_max=1.05)
    assert summary.table.index.names == ["person", "class"]
    exact = norm.pdf(y[:, None], [-1.0, 1.0], np.hypot(0.5, 0.5))
    exact /= exact.sum(axis=1, keepdims=True)
    # Pseudo-priors of a plate are Gaussian to the accuracy of their mode search.
    np.testing.assert_allclose(summary.table["weight"], exact.ravel(), atol=1e-3)
    # Person d is of class 1 beyond doubt: a note, not a warning.
    assert summary.ok
    assert "[person=d] never switched: the other classes have no weight" in summary.notes[0]


def test_chains_too_short_to_be_judged_are_not_approved_of(rng):
    codes = rng.integers(2, size=(4, 3))
    codes[:, :2] = [0, 1]
    with pytest.warns(ClassIndexWarning, match="chains of 3 draws are too short to be checked"):
        assert not class_index_summary(as_array(codes)).ok


def test_one_chain_alone_is_said_to_have_no_r_hat(rng):
    summary = class_index_summary(as_array(CYCLIC.draw(rng, 1, 2_000)))
    assert summary.ok
    assert any("one chain alone has no R-hat" in note for note in summary.notes)


def test_classes_may_be_named(rng):
    names = ["peak", "step", "wave"]
    codes = CYCLIC.draw(rng, 4, 500)
    plain, named = (
        class_index_summary(as_array(codes)),
        class_index_summary(as_array(codes), classes=names),
    )
    assert named.table.index.tolist() == names
    np.testing.assert_array_equal(named.table["share"], plain.table["share"])
    with pytest.raises(ValueError, match="give a name for each code from 0 on"):
        class_index_summary(as_array(codes), classes=names[:2])


def test_the_limit_of_the_tests_is_printed(rng):
    summary = class_index_summary(as_array(CYCLIC.draw(rng, 4, 500)))
    # one test between the chains, and one within each
    assert summary.overall.attrs["p_limit"] == pytest.approx(0.01 / 5)
    assert "(flagged below 0.002)" in repr(summary)


@pytest.mark.parametrize(
    ("chain", "n_chains", "rate"),
    [
        (MarkovChain.dar(0.5, [0.5, 0.3, 0.2]), 2, 0.062),
        (MarkovChain.dar(0.3, [0.98, 0.02]), 4, 0.047),
    ],
    ids=["two chains", "a rare class"],
)
def test_false_alarms_of_two_chains_and_of_a_rare_class(chain, n_chains, rate, rng):
    """Two chains or a rare class raise more of them than four chains of three classes do."""
    flagged = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassIndexWarning)
        runs = chain.draw(rng, n_chains * N_HEALTHY, 2_000).reshape(N_HEALTHY, n_chains, 2_000)
        for codes in runs:
            flagged += not class_index_summary(as_array(codes)).ok
    assert flagged <= binom(N_HEALTHY, rate).ppf(0.9995), flagged


# -- many rows -----------------------------------------------------------------------------------


def test_a_healthy_plate_is_not_flagged(rng):
    """Of three hundred rows some pass an R-hat of 1.01 by chance; one that is stuck is found."""
    # rows stay with probabilities of their own, and else are drawn anew by shares of their own
    stay, share = rng.uniform(0, 0.4, size=300), rng.dirichlet([8, 5], size=300)[:, 0]
    codes = (rng.random((4, 400, 300)) > share).astype(int)
    for t in range(1, 400):
        codes[:, t] = np.where(rng.random((4, 300)) < stay, codes[:, t - 1], codes[:, t])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ClassIndexWarning)
        summary = class_index_summary(as_array(codes))
    assert summary.ok
    assert summary.overall["rhat"].max() > 1.01
    lines = repr(summary).splitlines()
    assert lines[1] == "No problem found in what 4 chains visited."
    codes[1, :, 77] = MarkovChain.dar(0.2, [0.9, 0.1]).draw(rng, 1, 400)[0]
    codes[[0, 2, 3], :, 77] = MarkovChain.dar(0.2, [0.4, 0.6]).draw(rng, 3, 400)
    summary = flagged(as_array(codes))
    assert any("R-hat" in flag and "[row=77]" in flag for flag in summary.flags)
    assert repr(summary).splitlines()[1].startswith("Warning: ")


def test_latents_of_a_plate_without_names_are_looked_at(rng):
    codes = rng.integers(2, size=(4, 1000, 2))
    x = rng.standard_normal((4, 1000, 2))
    x[..., 1] = np.where(codes[..., 1] == 1, slow(rng, 0.995), x[..., 1])
    tree = as_tree(codes, x=x)
    assert "x_dim_0" in tree["posterior"]["x"].dims
    summary = flagged(tree)
    assert any(flag.startswith("x of [row=1] in class 1 has") for flag in summary.flags)
    assert not any("[row=0]" in flag for flag in summary.flags)


def test_what_was_not_looked_at_is_said(rng):
    codes = rng.integers(2, size=(4, 1000, 2))
    summary = class_index_summary(as_tree(codes, z=rng.standard_normal((4, 1000))))
    assert any("no latent was checked, because none of ['z'] lies" in n for n in summary.notes)


def test_effective_sizes_of_many_rows_are_allowed_their_number(rng):
    """Rows worth 600 draws are not all estimated above 400; one worth a tenth of it is found."""
    chain = MarkovChain.dar(0.54, [0.85, 0.15])
    assert 2_000 * chain.effective_share()[0] == pytest.approx(600, abs=10)
    codes = chain.draw(rng, 4 * 150, 500).reshape(150, 4, 500)
    codes = np.moveaxis(codes, 0, -1)
    summary = class_index_summary(as_array(codes))
    assert summary.overall["ess"].min() < 400
    assert summary.ok
    codes[..., 7] = MarkovChain.dar(0.96, [0.5, 0.5]).draw(rng, 4, 500)
    summary = flagged(as_array(codes))
    assert any("effective sample size" in f and "[row=7]" in f for f in summary.flags)


def test_rows_of_a_plate_that_rightly_never_switch_are_notes(rng):
    """Of many sound pseudo-priors, of Pareto k 0.44, some are estimated at more than 0.7."""
    n_rows = 150
    spread = [1.05, 0.75]
    codes, log_weight, *_ = toy_carlin_chib(
        rng, 4 * n_rows, 200, evidence=[1.0, 1e-20], mean=[0, 0], spread=spread
    )
    parts = log_weight.reshape(n_rows, 4, 200, 2)
    codes = np.moveaxis(codes.reshape(n_rows, 4, 200), 0, -1)
    log_weight = np.moveaxis(parts, 0, 2).reshape(4, 200, -1)
    moving = rng.integers(2, size=(4, 200, 1))
    codes = np.concatenate([codes, moving], axis=-1)
    log_weight = np.concatenate([log_weight, np.full((4, 200, 2), np.log(0.5))], axis=-1)
    chains = read_chains(as_tree(codes, log_weight))
    k = np.array([pareto_k(np.diff(part[:, 1:], axis=-1))[0] for part in parts])
    assert (k > 0.7).any()
    assert {each.verdict for each in unmoved_chains(chains)} == {"no weight"}
    # one whose pseudo-prior lies elsewhere is not among them
    far = toy_carlin_chib(rng, 4, 200, evidence=[0.5, 0.5], mean=[0, 8], spread=[1.05, 0.5])
    codes[..., 5], log_weight[..., 10:12] = far[0], far[1]
    stuck = [
        each for each in unmoved_chains(read_chains(as_tree(codes, log_weight))) if each.row == 5
    ]
    assert [each.verdict for each in stuck] == ["stuck"]


# -- latents within classes ----------------------------------------------------------------------


def with_latent(rng, latent_of_class_1):
    """Return chains of two classes whose index is drawn anew each time, and a latent."""
    codes = rng.integers(2, size=(4, 1000))
    return as_tree(codes, x=np.where(codes == 1, latent_of_class_1, rng.standard_normal((4, 1000))))


def slow(rng, phi, n_chains=4, n_draws=1000):
    """Return chains of a normal autoregression."""
    x = np.empty((n_chains, n_draws))
    x[:, 0] = rng.standard_normal(n_chains)
    for t in range(1, n_draws):
        x[:, t] = phi * x[:, t - 1] + np.sqrt(1 - phi**2) * rng.standard_normal(n_chains)
    return x


def test_latents_that_mix_within_their_classes_are_approved_of(rng):
    for _ in range(20):
        summary = class_index_summary(with_latent(rng, slow(rng, 0.3)), significance=1e-4)
        assert summary.ok, summary.flags
        assert (summary.table["latent_ess"] > 400).all()
        assert (summary.table["latent_rhat"] < 1.03).all()


def test_latents_that_do_not_mix_are_flagged(rng):
    summary = flagged(with_latent(rng, slow(rng, 0.99)))
    assert any("x in class 1 has" in flag and "effective draws" in flag for flag in summary.flags)
    assert not any("class 0" in flag for flag in summary.flags)
    # but for them nothing is wrong
    assert class_index_summary(with_latent(rng, slow(rng, 0.99)), latents=[]).ok


def test_chains_that_stay_in_modes_of_their_own_are_flagged(rng):
    modes = np.array([-3.0, 3.0, 3.0, 3.0])[:, None]
    summary = flagged(with_latent(rng, modes + rng.standard_normal((4, 1000))))
    assert any("x in class 1 has an R-hat of" in flag for flag in summary.flags)


def test_tails_that_are_hardly_reached_are_flagged(rng):
    """A walk of small steps in a Cauchy distribution: seldom far out, and then for long."""
    x, walks = np.zeros(4), []
    for _ in range(1000):
        for _ in range(20):
            there = x + 1.5 * rng.standard_normal(4)
            accept = rng.random(4) < (1 + x**2) / (1 + there**2)
            x = np.where(accept, there, x)
        walks.append(x)
    summary = flagged(with_latent(rng, np.stack(walks, axis=1)))
    assert any("effective draws of its tails" in flag for flag in summary.flags)


def test_classes_seldom_visited_have_as_many_draws_due_as_their_share(rng):
    codes = (rng.random((4, 1000)) < 0.05).astype(int)
    tree = as_tree(codes, x=rng.standard_normal((4, 1000)))
    assert class_index_summary(tree, significance=1e-4).ok


@pytest.mark.parametrize(("beside", "expected"), [([], False), (["diverging"], True)])
def test_variables_of_other_steps_are_mentioned(beside, expected, rng):
    """Their modes are not searched for, so that no verdict speaks for them."""
    draws = rng.integers(2, size=(4, 500))
    statistics = {name: np.zeros((4, 500)) for name in ["class_acceptance", *beside]}
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"k": (("chain", "draw"), draws)}),
            "sample_stats": xr.Dataset(
                {name: (("chain", "draw"), values) for name, values in statistics.items()}
            ),
        }
    )
    notes = class_index_summary(tree, "k").notes
    assert any("other steps draw variables" in note for note in notes) is expected
