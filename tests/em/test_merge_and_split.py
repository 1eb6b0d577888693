"""Runs that start from the classes of others: which these are, and what they find."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

import pymc_mcoem as mcoem
from pymc_mcoem.em import candidate_runs
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.merge_and_split import ClassEvidence, from_other_runs, require_weights
from pymc_mcoem.em.number_of_classes import choose_classes
from pymc_mcoem.em.online import OnlineEM
from tests.helpers.toy_families import EvidentMixture
from tests.helpers.toy_runs import assert_same

OPTIONS = {"e_step": Exact(), "progressbar": False, "random_seed": 3}


class MissesAKind(EvidentMixture):
    """Of three classes, it puts two on the first of three kinds at 0, 6 and 12."""

    def initialize(self, observations, rng, start):
        found = super().initialize(observations, rng, start)
        if self.n_classes == 3:
            found["means"] = np.array([-0.2, 0.2, 9.0])
        return found


def values_of(rng, kinds=3, n=240):
    return 6.0 * rng.integers(kinds, size=n) + rng.normal(0, 0.5, size=n)


def test_a_kind_that_all_starts_miss_is_found_by_splitting_or_merging(rng):
    values = values_of(rng)
    alone = choose_classes(MissesAKind, values, [2, 3, 4], **OPTIONS)
    found = choose_classes(MissesAKind, values, [2, 3, 4], merge_and_split=True, **OPTIONS)
    twice = alone.runs[3].parameters["means"].values
    assert abs(twice[0] - twice[1]) < 0.1
    assert alone.number == 2
    assert found.number == 3 and not found.unsure
    means = np.sort(found.runs[3].parameters["means"].values)
    np.testing.assert_allclose(means, [0.0, 6.0, 12.0], atol=0.3)
    origins = found.origins[found.origins["n_classes"] == 3]
    assert origins["class"].tolist() == [0, 1, 2] * 2
    assert origins["start"].tolist() == [0] * 3 + [1] * 3
    assert (origins["from_n_classes"] != 3).any()
    assert origins["kept"].all()
    both = alone.scored["log_evidence"], found.scored["log_evidence"]
    before, after = (each.sel(n_classes=3).mean("observation").values for each in both)
    np.testing.assert_allclose(origins["gain"].iloc[[0, 3]], after - before)
    assert (after - before > 1.0).all()
    assert alone.origins.empty


def test_a_second_run_is_not_made_where_classes_cannot_be_chosen_better(rng):
    values = values_of(rng, 2)
    found = choose_classes(EvidentMixture, values, [1, 2, 3], merge_and_split=True, **OPTIONS)
    assert found.number == 2
    assert 2 not in set(found.origins["n_classes"])


def test_a_second_run_that_predicts_worse_is_not_kept(rng, monkeypatch):
    """Its start is spoiled: all classes lie at one place."""
    values = values_of(rng)
    chosen = candidate_runs.from_other_runs

    def spoiled(*given):
        found = chosen(*given)
        if found is not None:
            found.parameters["means"] = np.full(found.parameters["means"].shape, 40.0)
        return found

    monkeypatch.setattr(candidate_runs, "from_other_runs", spoiled)
    found = choose_classes(MissesAKind, values, [2, 3, 4], merge_and_split=True, **OPTIONS)
    own = found.origins[found.origins["n_classes"] == 3]
    assert len(own) == 6 and not own["kept"].any() and (own["gain"] < 0).all()
    alone = choose_classes(MissesAKind, values, [2, 3, 4], **OPTIONS)
    three = (each.scored.sel(n_classes=3) for each in (found, alone))
    xr.testing.assert_identical(*three)


def test_only_runs_of_one_start_are_chosen_from_and_nothing_that_is_scored(rng, monkeypatch):
    seen = []
    chosen = candidate_runs.from_other_runs

    def spied(family, names, evidence, parameters):
        seen.append((family.n_classes, evidence, parameters))
        return chosen(family, names, evidence, parameters)

    monkeypatch.setattr(candidate_runs, "from_other_runs", spied)
    values = values_of(rng, n=100)
    starts = OPTIONS | {"n_starts": 3, "n_scored": 40, "n_start": 20, "merge_and_split": True}
    found = choose_classes(MissesAKind, values, [2, 3], **starts)
    assert [number for number, _, _ in seen] == [2, 2, 2, 3, 3, 3]
    for at in range(3):
        (_, of_two, theta), (_, of_three, _) = seen[at], seen[3 + at]
        assert sorted(of_two) == [2, 3]
        # numbers 31 to 60 of a hundred, of which the last forty are scored
        assert of_two[2].shape == (30, 2) and of_two[3].shape == (30, 3)
        np.testing.assert_array_equal(of_two[2], of_three[2])
        own = OnlineEM(
            MissesAKind(2),
            parameters=_start_of_run(found, values, at),
            **OPTIONS | {"random_seed": [3, 2, at]},
        ).partial_fit(values[:60])
        np.testing.assert_allclose(theta[2]["means"], own.last_parameters["means"], rtol=1e-9)


def _start_of_run(found, values, at):
    """Return the parameters that a start of two classes begins with, from its observations."""
    order = np.random.default_rng([3, at // 2]).permutation(20)
    half = [float(values[k]) for k in sorted(order[at % 2 :: 2])]
    em = OnlineEM(MissesAKind(2), **OPTIONS | {"random_seed": [3, 2, at]})
    return em.run.initial_parameters(half)


def test_its_run_is_an_ordinary_one_in_workers_too(rng, pool):
    values, more = values_of(rng), values_of(rng, n=10)
    options = OPTIONS | {"merge_and_split": True}
    found = choose_classes(MissesAKind, values, [2, 3, 4], **options)
    there = choose_classes(MissesAKind, values, [2, 3, 4], executor=pool, **options)
    xr.testing.assert_identical(found.scored, there.scored)
    pd.testing.assert_frame_equal(found.origins, there.origins)
    run = found.runs[3]
    start = run.history["steps"].isel(step=0)
    again = OnlineEM(
        MissesAKind(3),
        parameters={name: start[name].values for name in run.parameters},
        **OPTIONS | {"random_seed": run.run.random_seed},
    )
    assert_same(run.partial_fit(more), again.partial_fit(values).partial_fit(more))


def test_the_evidence_is_that_of_each_class_before_the_observation_was_learned(rng):
    family, values = EvidentMixture(2), values_of(rng, 2, 30)
    noted, before = ClassEvidence(family, 11, 20), []

    def keep(update):
        before.append(update.driver.run.state.parameters)

    start = family.declared_parameters() | {"means": np.array([0.0, 5.0])}
    em = OnlineEM(family, parameters=start, callbacks=[noted, keep], **OPTIONS)
    noted.begin(em.run.state.parameters)
    em.partial_fit(values)
    assert len(noted.rows) == 10
    for at, row in zip(range(10, 20), noted.rows, strict=True):
        theta = before[at - 1]
        deviations = (values[at] - theta["means"]) ** 2 / theta["noise_variance"]
        expected = -0.5 * (deviations + np.log(2 * np.pi * theta["noise_variance"]))
        known = np.isfinite(row)
        assert known.any()
        np.testing.assert_allclose(row[known], expected[known], rtol=1e-6)
    for name, value in before[19].items():
        np.testing.assert_array_equal(noted.parameters[name], value)


def start_of(number, centers, names=("means",)):
    """Return a start from runs with classes at these places, by number of classes."""
    values = np.repeat([0.0, 6.0, 12.0], 20) + np.tile(np.linspace(-1, 1, 20), 3)
    evidence, parameters = {}, {}
    for each, places in centers.items():
        evidence[each] = -0.5 * (values[:, None] - np.array(places)) ** 2
        parameters[each] = {
            "weights": np.full(each, 1 / each),
            "means": np.array(places),
            "noise_variance": np.asarray(1.0 * each),
        }
    return from_other_runs(EvidentMixture(number), names, evidence, parameters)


def test_two_classes_are_merged_and_one_is_split_where_that_explains_more():
    merged = start_of(3, {3: [-1, 1, 9], 4: [0, 5.5, 6.5, 12]})
    assert sorted(merged.parameters["means"]) in ([0, 5.5, 12], [0, 6.5, 12])
    split = start_of(3, {3: [-1, 1, 9], 2: [0, 9], 4: [-1, 1, 6, 12]})
    assert sorted(split.parameters["means"]) == [0, 6, 12]
    assert split.parameters["noise_variance"] == 3.0
    np.testing.assert_allclose(split.parameters["weights"], 1 / 3)
    assert sorted(split.classes) == [(2, 0), (4, 2), (4, 3)]


def test_there_is_no_start_that_is_a_run_already_or_has_no_run_to_begin_with():
    assert start_of(3, {3: [0, 6, 12], 2: [0, 9], 4: [-1, 1, 6.5, 12.5]}) is None
    assert start_of(3, {2: [0, 9]}) is None
    # a class of a run with more is left out: that is a start of its own
    left_out = start_of(3, {3: [-1, 1, 9], 4: [0, 6, 12, 40]})
    assert sorted(left_out.parameters["means"]) == [0, 6, 12]


def test_neighbors_are_the_next_candidates():
    assert start_of(3, {1: [6], 3: [-1, 1, 9], 5: [0, 6, 12, 40, 50]}) is not None
    near = {3: [-1, 1, 9], 4: [-1, 1, 9, 40], 5: [0, 6, 12, 40, 50]}
    assert start_of(3, near) is None


def test_a_parameter_that_classes_share_stays_though_it_is_as_long(rng):
    class Shared(EvidentMixture):
        def __init__(self, n_classes):
            super().__init__(n_classes)
            with pm.Model() as self.model:
                weights = pm.Data("weights", np.full(n_classes, 1 / n_classes))
                means = pm.Data("means", np.zeros(n_classes))
                shared = pm.Data("shared", np.array([10.0, 20.0, 30.0]))
                value = pm.Data("value", 0.0)
                self.class_index = pm.Categorical("k", p=weights)
                pm.Normal("y", means[self.class_index], shared.sum(), observed=value)
            self.statistics = {"value": value}

    families = {number: Shared(number) for number in (2, 3, 4)}
    assert "shared" in families[3].class_parameters
    assert require_weights(families) == ("means",)


def test_a_family_without_a_parameter_of_weights_is_refused():
    class Fixed(EvidentMixture):
        def __init__(self, n_classes):
            super().__init__(n_classes)
            with pm.Model() as self.model:
                means = pm.Data("means", np.zeros(n_classes))
                variance = pm.Data("noise_variance", 1.0)
                value = pm.Data("value", 0.0)
                self.class_index = pm.Categorical("k", p=np.full(n_classes, 1 / n_classes))
                pm.Normal("y", means[self.class_index], variance**0.5, observed=value)
            self.statistics = {"value": value, "square": value**2}

    with pytest.raises(ValueError, match="merge_and_split: the class weights of Fixed"):
        choose_classes(Fixed, np.zeros(20), [1, 2], merge_and_split=True, **OPTIONS)


def test_all_rows_of_a_class_of_templates_come_along(rng):
    """Its template, deformations and noise; motions are the run's, weights by the observations."""

    def make(n_classes):
        return mcoem.TemplateMixture.for_images(
            (4, 4), n_classes, n_landmarks=2, noise="class", covariance="full"
        )

    families = {number: make(number) for number in (2, 3, 4)}
    rows = require_weights(families)
    parameters = {
        number: {
            name: rng.uniform(size=value.shape)
            for name, value in family.declared_parameters().items()
        }
        for number, family in families.items()
    }
    evidence = {number: np.full((12, number), -50.0) for number in parameters}
    evidence[3][:3, 1] = evidence[4][3:7, 3] = evidence[2][7:, 0] = 0.0
    found = from_other_runs(families[3], rows, evidence, parameters)
    assert sorted(found.classes) == [(2, 0), (3, 1), (4, 3)]
    for at, (number, own) in enumerate(found.classes):
        for name in ("templates", "deformation_covariance", "noise_variance"):
            row = parameters[number][name][own]
            np.testing.assert_array_equal(found.parameters[name][at], row)
        assert found.parameters["weights"][at] == (1 + {3: 3, 4: 4, 2: 5}[number]) / 15
    # all classes share it
    own = parameters[3]["rigid_variance"]
    np.testing.assert_array_equal(found.parameters["rigid_variance"], own)
