"""Runs that learned parts of a stream, merged, beside one run over all of it."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
import xarray as xr

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.schedules import StepSize
from tests.helpers.toy_families import EvidentMixture, Noisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import image_mixture

#: So far apart that class weights are 0 and 1 up to 1e-80, whatever θ a run is at.
FAR = np.array([-40.0, 0.0, 40.0])
THETA = {
    "weights": np.array([0.5, 0.3, 0.2]),
    "means": np.array([-2.0, 0.3, 2.0]),
    "noise_variance": np.array(1.3),
}
RUNNING = {"e_step": Exact(), "progressbar": False, "step_size": StepSize(exponent=1)}


def far_stream(rng, size):
    return FAR[rng.choice(3, size=size, p=[0.5, 0.3, 0.2])] + rng.normal(size=size)


def far_run(values, order=(0, 1, 2), **settings):
    theta = THETA | {"means": FAR[list(order)], "weights": THETA["weights"][list(order)]}
    em = mcoem.OnlineEM(NormalMixture(), **(RUNNING | {"parameters": theta} | settings))
    return em.partial_fit(values)


def assert_alike(one, other, **tolerance):
    xr.testing.assert_allclose(one.parameters, other.parameters, **tolerance)


@pytest.mark.parametrize("orders", [[(0, 1, 2)] * 3, [(0, 1, 2), (2, 0, 1), (1, 0, 2)]])
def test_with_known_classes_it_is_one_run_over_all(orders, rng):
    values = far_stream(rng, 300)
    # the last is the largest and gives the order of the classes
    parts = np.split(values, [60, 130])
    runs = [far_run(part, order) for part, order in zip(parts, orders, strict=True)]
    before = [run.parameters.copy(deep=True) for run in runs]
    merged, whole = mcoem.merge_runs(runs), far_run(values, orders[-1])
    # the variance has a prior worth one observation, which counts once
    assert_alike(merged, whole, rtol=1e-9)
    assert merged.run.state.effective_size == pytest.approx(300)
    assert (merged.n_seen, merged.position) == (300, 300)
    more = far_stream(rng, 50)
    assert_alike(merged.partial_fit(more), whole.partial_fit(more), rtol=1e-9)
    assert merged.history["steps"]["gain"].values[-1] == pytest.approx(1 / 350)
    for run, found in zip(runs, before, strict=True):
        assert run.parameters.identical(found)


def test_a_prior_that_counts_once_a_run_fails_this_check(rng):
    values = far_stream(rng, 300)
    runs = [far_run(part) for part in np.split(values, 3)]
    whole = float(far_run(values).parameters["noise_variance"])
    mean = np.mean([float(run.parameters["noise_variance"]) for run in runs])
    assert float(mcoem.merge_runs(runs).parameters["noise_variance"]) == pytest.approx(whole)
    assert abs(mean - whole) > 1e-3 * whole


def test_runs_of_runs_merge_alike(rng):
    runs = [far_run(part) for part in np.split(far_stream(rng, 300), [150, 250])]
    at_once = mcoem.merge_runs(runs)
    in_turn = mcoem.merge_runs([mcoem.merge_runs(runs[:2]), runs[2]])
    assert_alike(at_once, in_turn, rtol=1e-9)
    alone = mcoem.merge_runs({"day 1": runs[0]})
    assert_alike(alone, runs[0], rtol=1e-12)


def error_of(em):
    """Return the error of weights and means against the truth, whatever the order of classes."""
    found = em.parameters.isel({"class": np.argsort(em.parameters["means"].values)})
    away = [found["means"].values - [-3.0, 0.0, 2.5], found["weights"].values - [0.5, 0.3, 0.2]]
    return float(np.sqrt(np.mean(np.square(away))))


def errors(rng, step_size, n_repeats, n_parts=4, size=250):
    """Return errors of parts (mean over them), of the merged run, and of one run over all."""
    rows = []
    for _ in range(n_repeats):
        values = mixture_stream(rng, n_parts * size)

        def run(part, number):
            em = mcoem.OnlineEM(
                FAMILY, e_step=Exact(), step_size=step_size, random_seed=number, progressbar=False
            )
            return em.partial_fit(part)

        parts = [run(part, number) for number, part in enumerate(np.split(values, n_parts))]
        apart = np.sqrt(np.mean([error_of(part) ** 2 for part in parts]))
        rows.append((apart, error_of(mcoem.merge_runs(parts)), error_of(run(values, 0))))
    return np.array(rows)


FAMILY = NormalMixture()


def surplus(one, other):
    """Return by how many standard errors the squared errors of one exceed those of another."""
    paired = one**2 - other**2
    return paired.mean() / (paired.std(ddof=1) / np.sqrt(len(paired)))


def test_it_errs_less_than_parts(rng):
    apart, merged, whole = errors(rng, StepSize(exponent=1), n_repeats=12, size=75).T
    assert surplus(apart, merged) > 4
    # no better than one run but for chance
    assert surplus(merged, whole) > -4


@pytest.mark.slow
def test_it_errs_less_than_parts_with_the_default_gain(rng):
    # The last θ of several runs is less noisy than that of one, so the merged run may be the best.
    apart, merged, _ = errors(rng, StepSize(), n_repeats=24).T
    assert surplus(apart, merged) > 4


def test_a_kind_of_one_site_alone_takes_an_empty_class(rng):
    # Each site has two of three kinds, and the third class of neither has an observation.
    seen = [FAR[rng.choice(kinds, size=80)] + rng.normal(size=80) for kinds in ([0, 1], [1, 2])]
    starts = [np.array([-40.0, 0.0, 500.0]), np.array([300.0, 40.0, 0.0])]
    runs = [
        far_run(values, parameters=THETA | {"means": means})
        for values, means in zip(seen, starts, strict=True)
    ]
    merged = mcoem.merge_runs(runs)
    np.testing.assert_allclose(np.sort(merged.parameters["means"].values), FAR, atol=1.0)
    assert "troubles" not in merged.history["steps"]


def test_classes_that_were_not_found_by_both_are_a_trouble(rng, caplog):
    runs = [
        far_run(far_stream(rng, 90)),
        # two classes share what is one for the other, and one has what are two
        far_run(np.array([-41.0, -39.0, 20.0] * 20), parameters=THETA | {"means": [-41, -39, 20]}),
    ]
    with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
        merged = mcoem.merge_runs({"Monday": runs[0], "Tuesday": runs[1]})
    (told,) = [record.message for record in caplog.records if "merge_runs" in record.message]
    assert "of run 'Tuesday' was merged with class" in told
    (name,) = merged.run.state.troubles
    assert name in told
    merged.partial_fit(far_stream(rng, 1))
    assert name in merged.history["steps"]["trouble"].values


def test_what_runs_hold_is_held(rng):
    values = far_stream(rng, 94)
    settings = {"batch_size": 10}
    runs = [far_run(part, **settings) for part in np.split(values, [47])]
    assert [len(run.run.state.pending) for run in runs] == [7, 7]
    merged = mcoem.merge_runs(runs)
    assert (merged.n_seen, merged.position) == (94, 94)
    assert [each.position for each in merged.run.state.pending] == [*range(40, 47), *range(87, 94)]
    more = far_stream(rng, 6)
    merged.partial_fit(more)
    assert not merged.run.state.pending
    assert_alike(merged, far_run(np.concatenate([values, more]), **settings), rtol=1e-9)


def test_a_class_that_is_known_of_what_is_held_keeps_its_meaning(rng):
    order = [2, 0, 1]
    runs = [
        far_run(far_stream(rng, 50), batch_size=10),
        far_run(far_stream(rng, 40), order, batch_size=10),
    ]
    # class 0 of the second run is at FAR[2], its class 1 at FAR[0]
    runs[1].partial_fit(FAR[[2, 2, 0]], labels=[0, {0, 1}, None])
    held = mcoem.merge_runs(runs).run.state.pending
    assert [each.classes for each in held] == [(2,), (0, 2), None]
    assert [each.position for each in held] == [90, 91, 92]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"e_step": Noisy(troubled=True), "revival": mcoem.Revival(), "average_from": 5},
        {"batch_size": 4},
    ],
    ids=["plain", "troubled", "batches"],
)
def test_it_is_saved_and_goes_on_to_the_same_bytes(settings, rng, tmp_path):
    runs = [far_run(far_stream(rng, 50), random_seed=seed, **settings) for seed in (1, 2)]
    merged = mcoem.merge_runs(runs)
    if "average_from" in settings:
        assert sum(merged.run.state.troubles.values()) == 4 * 7
        assert merged.run.state.n_averaged == 0
    merged.save(tmp_path / "run.nc")
    loaded = mcoem.OnlineEM.load(
        tmp_path / "run.nc", merged.family, e_step=runs[0].run.settings.e_step
    )
    more = far_stream(rng, 30)
    one, other = merged.partial_fit(more), loaded.partial_fit(more)
    assert one.parameters.identical(other.parameters)
    assert one.n_seen == 130
    xr.testing.assert_identical(
        one.history["steps"].to_dataset().drop_vars("seconds"),
        other.history["steps"].to_dataset().drop_vars("seconds"),
    )


def test_templates_are_matched_on_their_points(rng):
    mixture, _, theta = image_mixture(rng)
    order = [2, 0, 1]
    turned = {
        name: value[order] if value.shape[:1] == (3,) else value for name, value in theta.items()
    }
    distances = mixture.class_distances(theta, turned)
    assert (distances.argmin(axis=1) == np.argsort(order)).all()
    images = mcoem.template_images(theta, mixture).values.reshape(3, -1)
    expected = np.mean((images[:, None] - images[order]) ** 2, axis=2)
    np.testing.assert_allclose(distances, expected, rtol=1e-10, atol=1e-14)


def test_other_families_are_matched_by_all_that_classes_have():
    family = NormalMixture()
    distances = family.class_distances(THETA, THETA | {"means": THETA["means"][[1, 2, 0]]})
    assert distances.argmin(axis=1).tolist() == [2, 0, 1]
    # in no unit
    scaled = {name: 100 * value for name, value in THETA.items()}
    np.testing.assert_allclose(
        family.class_distances(scaled, scaled), family.class_distances(THETA, THETA)
    )


def test_what_cannot_be_merged_is_refused_by_name(rng):
    values = far_stream(rng, 30)
    run = far_run(values)
    other = far_run(values, step_size=StepSize())
    for wrong, message in (
        ([], "runs: got none"),
        ([run, run], "run 0 and run 1 are the same run, given twice"),
        ({"a": run, "b": copy.deepcopy(run)}, "run 'a' and run 'b' are the same run, given twice"),
        ([run, mcoem.OnlineEM(NormalMixture(), **RUNNING)], "run 1 has learned nothing"),
        ([run, other], r"run 1 differs from run 0 in \['step_size'"),
        (
            {"a": run, "b": far_run(values, batch_size=2, thin=2)},
            r"run 'b' differs from run 'a' in \['batch_size'\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            mcoem.merge_runs(wrong)
    for wrong in (None, run):
        with pytest.raises(TypeError, match=r"^runs: got .*; give a list of OnlineEM"):
            mcoem.merge_runs(wrong)
    saem = mcoem.SAEM(NormalMixture(), e_step=Exact(), random_seed=1, progressbar=False)
    with pytest.raises(TypeError, match="run 1 is a SAEM; give an OnlineEM"):
        mcoem.merge_runs([run, saem])


def test_a_file_that_is_loaded_twice_is_refused(rng, tmp_path):
    values = far_stream(rng, 30)
    far_run(values, random_seed=1).save(tmp_path / "run.nc")
    family = NormalMixture()
    loaded = [mcoem.OnlineEM.load(tmp_path / "run.nc", family) for _ in range(2)]
    with pytest.raises(ValueError, match="run 0 and run 1 are the same run"):
        mcoem.merge_runs(loaded)
    # runs of one seed over other observations are two
    mcoem.merge_runs([loaded[0], far_run(far_stream(rng, 30), random_seed=1)])


def test_another_family_is_refused_with_what_differs(rng):
    values = far_stream(rng, 30)
    two = mcoem.OnlineEM(NormalMixture(2), n_start=10, **RUNNING).partial_fit(values)
    with pytest.raises(ValueError, match="number of classes is 3 in run 0, 2 in run 1"):
        mcoem.merge_runs([far_run(values), two])
    other = mcoem.OnlineEM(EvidentMixture(), parameters=THETA, **RUNNING).partial_fit(values)
    with pytest.raises(ValueError, match="class is NormalMixture in run 0, EvidentMixture in run"):
        mcoem.merge_runs([far_run(values), other])
