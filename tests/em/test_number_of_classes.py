"""The number of classes: named where starts agree and prediction gains, and doubted elsewhere."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pymc_mcoem.em.class_count_scores import (
    agreement_of_starts,
    candidate_table,
    doubts,
    mean_error,
    shared_of_classes,
)
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.number_of_classes import choose_classes
from pymc_mcoem.em.online import OnlineEM
from tests.helpers.toy_families import EvidentMixture, NormalMixture
from tests.helpers.toy_runs import assert_same

OPTIONS = {"e_step": Exact(), "progressbar": False, "random_seed": 3}


def values_of(rng, kinds, n=240):
    return 6.0 * rng.integers(kinds, size=n) + rng.normal(0, 0.5, size=n)


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_the_number_of_kinds_is_named(kinds, rng):
    found = choose_classes(EvidentMixture, values_of(rng, kinds), range(1, 6), **OPTIONS)
    assert found.number == kinds
    assert found.winner.family.n_classes == kinds
    assert found.table.index.tolist() == [1, 2, 3, 4, 5]
    assert found.table.loc[kinds, "difference"] == 0
    fewer = found.table.loc[found.table.index < kinds]
    assert (fewer["difference"] < -5 * fewer["error"]).all()
    assert not found.unsure
    assert str(found).startswith(f"{kinds} class")


@pytest.mark.parametrize(
    ("options", "known", "expected"),
    [
        ({}, ("kmeans", "random", "exemplars"), "exemplars"),
        ({"start": "kmeans"}, ("kmeans", "random", "exemplars"), "kmeans"),
        ({}, ("kmeans", "random"), "kmeans"),
    ],
)
def test_families_that_know_exemplars_start_with_them(options, known, expected, monkeypatch, rng):
    used, initialize = [], EvidentMixture.initialize

    def spied(self, observations, rng, start):
        used.append(start)
        return initialize(self, observations, rng, "kmeans")

    monkeypatch.setattr(EvidentMixture, "initialize", spied)
    monkeypatch.setattr(EvidentMixture, "start_names", known)
    choose_classes(EvidentMixture, values_of(rng, 2, 20), [1, 2], **OPTIONS, **options)
    assert set(used) == {expected}


def test_evidence_alone_would_name_more(rng):
    """What is no mixture of normals is predicted better by several, but they are no kinds."""
    values = rng.uniform(-3, 3, size=400)
    found = choose_classes(EvidentMixture, values, range(1, 5), **OPTIONS)
    broken = {"least_agreement": 0.0, "most_between": 1.0}
    by_evidence = choose_classes(EvidentMixture, values, range(1, 5), **broken, **OPTIONS)
    assert found.number == 1
    assert by_evidence.number > 1


def test_the_winner_is_an_ordinary_run_that_goes_on(rng, tmp_path):
    values, more = values_of(rng, 2), values_of(rng, 2, 20)
    found = choose_classes(EvidentMixture, values, [1, 2, 3], **OPTIONS)
    winner = found.winner
    assert found.runs[2] is winner
    start = winner.history["steps"].isel(step=0)
    alone = OnlineEM(
        EvidentMixture(2),
        parameters={name: start[name].values for name in winner.parameters},
        **OPTIONS | {"random_seed": winner.run.random_seed},
    )
    winner.save(tmp_path / "run.nc")
    loaded = OnlineEM.load(tmp_path / "run.nc", EvidentMixture(2))
    assert_same(winner.partial_fit(more), alone.partial_fit(values).partial_fit(more))
    assert_same(winner, loaded.partial_fit(more))


def test_scores_are_of_the_last_observations_before_they_were_learned(rng):
    values = values_of(rng, 2)
    found = choose_classes(EvidentMixture, values, [1, 2], n_scored=50, n_start=100, **OPTIONS)
    assert found.scored["observation"].values.tolist() == list(range(191, 241))
    records = found.winner.history["observations"].to_dataset()
    start = int(found.table.loc[2, "start"])
    ours = found.scored.sel(n_classes=2, start=start)
    np.testing.assert_array_equal(ours["log_evidence"], records["log_evidence"][-50:])
    np.testing.assert_array_equal(ours["assigned"], records["class_weight"].argmax("class")[-50:])
    assert found.table.loc[2, "log_evidence"] == pytest.approx(float(ours["log_evidence"].mean()))
    assert found.splits.iloc[0].tolist()[:3] == [1, 0, (0, 1)]
    assert found.splits.iloc[0]["gain"] == pytest.approx(-found.table.loc[1, "difference"])
    row = found.table.loc[1]
    assert f"\nFewer: 1 worse by {-row['difference']:.2f} ± {row['error']:.2f}" in str(found)


def test_a_generator_and_workers_give_the_same(rng, pool):
    values = values_of(rng, 2, 60)
    here = choose_classes(EvidentMixture, iter(values.tolist()), [1, 2], **OPTIONS)
    there = choose_classes(EvidentMixture, values, [2, 1], executor=pool, **OPTIONS)
    xr.testing.assert_identical(here.scored, there.scored)
    pd.testing.assert_frame_equal(here.table, there.table)
    assert_same(here.winner, there.winner)


def test_few_observations_are_doubted(rng):
    found = choose_classes(EvidentMixture, values_of(rng, 2, 40), [1, 2, 3], **OPTIONS)
    assert found.unsure[-1] == "only 20 observations are scored; give hundreds"


class Fragile(EvidentMixture):
    """A family of which some numbers of classes cannot start."""

    breaks = (3,)

    def initialize(self, observations, rng, start):
        if self.n_classes in self.breaks:
            raise RuntimeError("as asked for")
        return super().initialize(observations, rng, start)


def test_candidates_that_fail_are_left_out(rng, caplog):
    values = values_of(rng, 2)
    with caplog.at_level("WARNING"):
        found = choose_classes(Fragile, values, [1, 2, 3, 4], **OPTIONS)
    assert found.number == 2
    assert found.table.index.tolist() == [1, 2, 4]
    assert list(found.failures) == [(3, 0), (3, 1)]
    assert "Start 0 of 3 classes dropped out: as asked for" in caplog.text
    # the number may have been among them
    assert found.unsure == ("runs with 3 classes failed, as the log says",)
    assert str(found).startswith("2 classes, but unsure.")

    class Broken(Fragile):
        breaks = (1, 2)

    with pytest.raises(RuntimeError, match="all 4 runs failed, the first with: as asked for"):
        choose_classes(Broken, values, [1, 2], **OPTIONS)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_classes": range(0)}, ValueError, r"n_classes: got range\(0, 0\)"),
        ({"n_classes": [2]}, ValueError, "at least two whole numbers"),
        ({"n_classes": [0, 1]}, ValueError, "whole numbers from 1"),
        ({"n_classes": 3}, ValueError, "n_classes: got 3"),
        ({"make_mixture": 3}, TypeError, "make_mixture: got 3; give a function"),
        ({"make_mixture": lambda n: n}, TypeError, "make_mixture: returned a int"),
        (
            {"make_mixture": lambda n: EvidentMixture(2)},
            ValueError,
            "make_mixture: returned 2 classes for 1",
        ),
        ({"observations": []}, ValueError, "observations: got 0"),
        ({"n_starts": 1}, ValueError, "n_starts: got 1"),
        ({"n_start": 1}, ValueError, "n_start: got 1"),
        ({"n_start": 239}, ValueError, "n_start: got 239"),
        ({"n_scored": 121}, ValueError, "n_scored: got 121; .* from 2 to 120"),
        ({"least_agreement": 1.5}, ValueError, "least_agreement: got 1.5"),
        ({"most_between": None}, ValueError, "most_between: got None"),
        ({"on_error": "skip"}, TypeError, "on_error: not an option here"),
        ({"nothing": 1}, TypeError, "nothing"),
        ({"executor": 0}, ValueError, "executor: got 0"),
        ({"make_mixture": NormalMixture}, ValueError, "e_step: it reports no evidence"),
    ],
)
def test_bad_arguments_are_named_and_leave_nothing(change, error, message, rng):
    made = []

    def make(n):
        made.append(EvidentMixture(n))
        return made[-1]

    given = {"make_mixture": make, "observations": values_of(rng, 2), "n_classes": [1, 2]}
    given |= OPTIONS | change
    positional = [given.pop(name) for name in ("make_mixture", "observations", "n_classes")]
    with pytest.raises(error, match=message):
        choose_classes(*positional, **given)
    for family in made:
        declared = family.declared_parameters()
        for name, value in family.model_parameters().items():
            np.testing.assert_array_equal(value, declared[name])


def test_an_observation_that_is_refused_is_named(rng):
    values = [*values_of(rng, 2, 20), np.inf]
    with pytest.raises(ValueError, match="observation 20"):
        choose_classes(EvidentMixture, values, [1, 2], **OPTIONS)


def test_errors_allow_for_autocorrelation(rng):
    """Of an AR(1) series with coefficient φ, a mean's error is √((1 + φ)/(1 − φ)) times larger."""
    noise = rng.normal(size=20_000)
    series = np.zeros(20_000)
    for t in range(1, len(series)):
        series[t] = 0.5 * series[t - 1] + noise[t]
    plain = series.std() / np.sqrt(len(series))
    assert mean_error(series) == pytest.approx(np.sqrt(3.0) * plain, rel=0.1)
    assert mean_error(noise) == pytest.approx(noise.std() / np.sqrt(len(noise)), rel=0.1)


def test_a_small_class_on_which_starts_disagree_is_seen(rng):
    first = np.repeat([0, 1, 2], [50, 45, 5])
    second = first.copy()
    second[[0, 1, 2, 3, 4]], second[95:] = 2, 1
    rand, shared = agreement_of_starts(np.stack([first, second]), 0)
    assert rand > 0.75
    assert shared < 0.2
    assert shared_of_classes(first, (first + 1) % 3) == 1.0
    assert np.isnan(agreement_of_starts(np.stack([first, np.full(100, -1)]), 0)).all()


def scored_of(levels, agree, between=None, n=200):
    """Return scored observations of two starts each, at levels, with or without agreement."""
    rng = np.random.default_rng(1)
    numbers = list(range(1, len(levels) + 1))
    noise = rng.normal(size=n)
    evidence = np.stack([np.stack([noise + level, noise + level - 0.01]) for level in levels])
    evidence += rng.normal(0, 0.05, size=evidence.shape)
    assigned = np.stack([np.stack([np.arange(n) % each] * 2) for each in numbers])
    for at, alike in enumerate(agree):
        if not alike:
            assigned[at, 1] = rng.permutation(assigned[at, 1])
    probability = np.ones_like(evidence)
    for at, share in enumerate(between or []):
        probability[at, :, : int(share * n)] = 0.6
    dims = ("n_classes", "start", "observation")
    parts = {"log_evidence": evidence, "assigned": assigned, "probability": probability}
    return xr.Dataset(
        {name: (dims, values) for name, values in parts.items()}, {"n_classes": numbers}
    )


def judged(scored, filled=None):
    numbers = scored["n_classes"].values.tolist()
    counts = dict(zip(numbers, filled or numbers, strict=True))
    table, _, named = candidate_table(
        scored, {(each, k): counts[each] for each in numbers for k in range(2)}, 0.75, 0.05
    )
    return table, named


def test_the_fewest_classes_within_one_error_are_named():
    table, named = judged(scored_of([0.0, 5.0, 5.001, 4.9], [True] * 4))
    assert named == 2
    assert table["agrees"].all() and table["apart"].all()
    # and no more are taken where they predict better
    assert judged(scored_of([0.0, 5.0, 6.0, 6.001], [True] * 4))[1] == 3


def test_candidates_are_left_out_whose_starts_disagree_or_whose_classes_overlap():
    levels = [0.0, 5.0, 6.0]  # decisive for the third class would be ln(100) / 3 = 1.5
    assert judged(scored_of(levels, [True, True, False]))[1] == 2
    assert judged(scored_of(levels, [True] * 3, [0.0, 0.0, 0.2]))[1] == 2
    assert judged(scored_of(levels, [True] * 3, [0.0, 0.0, 0.02]))[1] == 3


def test_empty_classes_are_not_counted():
    """Of two candidates that fill as many classes, the better one is named."""
    table, named = judged(scored_of([0.0, 5.0, 8.0, 8.001], [True] * 4), [1, 2, 2, 2])
    assert named == 3
    assert table.loc[named, "filled"] == 2


def test_doubts_are_told():
    def doubted(*arguments):
        return " ".join(doubts(*judged(*arguments)))

    assert doubted(scored_of([0.0, 5.0, 5.0], [True, True, False])) == ""
    assert "3 can hardly be told from 2" in doubted(scored_of([0.0, 5.0, 5.0], [True] * 3))
    assert "no candidate with more than 3" in doubted(scored_of([0.0, 5.0, 9.0], [True] * 3))
    missed = scored_of([0.0, 5.0, 9.0, 9.5], [True, True, False, False])
    assert judged(missed)[1] == 3
    assert "the starts of 3 disagree, and it is named because 1 and 2 predict" in doubted(missed)
    overlap = doubted(scored_of([0.0, 5.0, 9.0], [True] * 3, [0.0, 0.0, 0.5]))
    assert "3 predict much better, by classes that overlap" in overlap
    none = doubted(scored_of([0.0, 5.0, 5.0], [False] * 3, [1.0] * 3))
    assert "prediction alone decides" in none
