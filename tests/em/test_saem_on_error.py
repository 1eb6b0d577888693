"""Observations that batch SAEM leaves out: what is left of them, what is kept, what is said."""

from __future__ import annotations

import logging
import re
from itertools import product

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.runs import workers
from pymc_mcoem.runs.failed_records import MOST_IN_A_ROW
from pymc_mcoem.templates import TemplateMixture
from tests.helpers.bad_records import BAD, Disk, Spoilt, Unreadable, source_of
from tests.helpers.executors import AtOnce
from tests.helpers.representatives import by_default
from tests.helpers.toy_families import Failing, NormalMixture, Towering, mixture_stream
from tests.helpers.toy_runs import THETA

WAYS = {
    "all": {},
    "mini-batches": {"batch_size": 0.4},
    "small mini-batches": {"batch_size": 0.05, "refit_every": 2},
    "own start": {"parameters": None, "n_start": 9},
}


@pytest.fixture
def values(rng):
    return mixture_stream(rng, 40)


def run(family, **settings):
    given = {"parameters": THETA, "random_seed": 1, "progressbar": False, "draws": 5}
    return SAEM(family, **(given | settings))


def assert_same(found, expected):
    xr.testing.assert_identical(found.parameters, expected.parameters)
    for group in ("steps", "observations"):
        left, right = found.history[group].to_dataset(), expected.history[group].to_dataset()
        xr.testing.assert_identical(left.drop_vars("seconds"), right.drop_vars("seconds"))
    one, other = found.run.state.statistics, expected.run.state.statistics
    assert one.keys() == other.keys()
    for key in other:
        assert one[key].tobytes() == other[key].tobytes()


@pytest.mark.parametrize(
    ("way", "kind"),
    by_default(
        product(WAYS, BAD),
        {*product(["own start"], BAD), *product(WAYS, ["unreadable", "not finite"])},
    ),
)
def test_an_observation_left_out_leaves_no_trace_but_in_the_history(family, values, way, kind):
    bad, reason = BAD[kind]
    records = [*values[:25], bad, *values[25:31], bad, *values[31:]]
    saem = run(family, e_step=Failing(), on_error="skip", **WAYS[way])
    saem.fit(source_of(records), 6)
    assert_same(saem, run(family, e_step=Failing(), **WAYS[way]).fit(values, 6))
    skipped = saem.history["skipped"]["reason"]
    assert skipped["position"].values.tolist() == [25, 32]
    for found in skipped.values:
        assert re.match(reason, str(found)), found


@pytest.mark.parametrize("way", by_default(WAYS, {"own start", "mini-batches"}))
def test_all_kinds_at_once_over_files_and_whoever_works(family, values, way, tmp_path, monkeypatch):
    records = list(values)
    for number, (bad, _) in enumerate(BAD.values()):
        # what fails only when it is learned has a part in the start
        records.insert(3 * number + 11, bad)
    clean = run(family, e_step=Failing(), **WAYS[way]).fit(values, 7)
    settings = {"e_step": Failing(), "on_error": "skip", **WAYS[way]}
    whole = run(family, **settings).fit(source_of(records), 7)
    assert_same(whole, clean)
    monkeypatch.setattr(workers, "_made", type(workers._made)())
    assert_same(run(family, executor=AtOnce(), **settings).fit(source_of(records), 7), clean)
    cut = run(family, **settings).fit(source_of(records), 2)
    for _ in range(5):
        cut.save(tmp_path / "run.nc")
        cut = SAEM.load(tmp_path / "run.nc", family, e_step=Failing(), progressbar=False)
        cut.fit(source_of(records), 1)
    assert_same(cut, clean)
    assert cut.history["skipped"].identical(whole.history["skipped"])
    places = [3 * number + 11 for number in range(len(BAD))]
    assert cut.history["skipped"]["position"].values.tolist() == places


class Tiring(NormalMixture):
    """A family whose E-step fails for 8.88 from its third visit on."""

    def __init__(self):
        super().__init__()
        self.visits = 0

    def exact(self, data, parameters):
        if data["value"] == 8.88:
            self.visits += 1
            if self.visits > 2:
                raise np.linalg.LinAlgError("singular")
        return super().exact(data, parameters)


def test_one_that_fails_later_leaves_the_mean_and_the_run_goes_on(values):
    records = np.insert(values, 17, 8.88)
    settings = {"e_step": Exact(), "step_size": lambda k: 1.0}
    saem = run(Tiring(), on_error="skip", **settings).fit(records, 2)
    before = {name: value.values for name, value in saem.parameters.items()}
    # what was learned with it stays
    assert_same(saem, run(NormalMixture(), **settings).fit(records, 2))
    saem.fit(records, 1)
    expected = NormalMixture().batch(values, before)
    for name, value in expected.items():
        np.testing.assert_allclose(saem.run.state.statistics[name], value, rtol=1e-12)
    assert saem.history["steps"]["effective_size"].values[1:].tolist() == [41, 41, 40]
    assert saem.history["steps"]["observation"].values.tolist() == [0, 41, 82, 122]
    (reason,) = saem.history["skipped"]["reason"].values
    assert str(reason) == "learning it failed: LinAlgError: singular"
    # later calls are given it again, and leave it out
    assert saem.fit(records, 3).n_iterations == 6
    assert len(saem.run.state.chains) == len(saem.run.state.positions) == 40
    assert 17 not in saem.run.state.positions


@pytest.mark.parametrize("fraction", [0.02, 0.3, 0.9])
def test_one_that_fails_later_leaves_the_mean_of_mini_batches(values, fraction):
    records = np.insert(values, 17, 8.88)
    settings = {"e_step": Exact(), "step_size": lambda k: 1.0, "batch_size": fraction}
    saem = run(Tiring(), on_error="skip", **settings)
    for _ in range(400):
        saem.fit(records, 1)
        state = saem.run.state
        n = len(state.chains)
        total = {name: np.zeros_like(value) for name, value in state.statistics.items()}
        for each in state.contributions:
            each.add_to(total)
        for name, value in total.items():
            np.testing.assert_allclose(state.statistics[name], value / n, rtol=1e-9, atol=1e-9)
        if n == 40:
            break
    # a mini-batch of it alone is drawn anew, and the iteration made
    assert n == 40
    assert saem.fit(records, 1).n_iterations == state.n_steps + 1


@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_what_cannot_be_read_any_more_is_left_out_from_then_on(family, values, fraction):
    disk = Disk(values, broken=[])
    settings = {"e_step": Exact(), "batch_size": fraction}
    saem = run(family, on_error="skip", **settings).fit(disk, 2)
    disk.broken |= {3, 30}
    saem.fit(disk, 2)
    assert saem.history["skipped"]["position"].values.tolist() == [3, 30]
    assert len(saem.run.state.chains) == 38
    # one that can be read again stays away
    disk.broken.clear()
    assert len(saem.fit(disk, 1).run.state.chains) == 38
    # and with an error nothing has changed
    strict = run(family, **settings).fit(disk, 2)
    disk.broken |= {3}
    before = strict.run.state
    with pytest.raises(OSError, match="sector 3"):
        strict.fit(disk, 1)
    assert strict.run.state is before


def test_others_than_those_of_the_run_are_refused_by_number(family, values):
    records = [*values[:5], np.inf, *values[5:]]
    saem = run(family, e_step=Exact(), on_error="skip").fit(records, 1)
    before = saem.run.state
    other = [*records[:9], 0.25, *records[10:]]
    with pytest.raises(ValueError, match=r"these 41 are not the 41 .*observation 9, counted from"):
        saem.fit(other, 1)
    with pytest.raises(ValueError, match="these 42 are not the 41"):
        saem.fit([*records, 1.0], 1)
    # what was left out is not looked at again
    assert saem.run.state is before
    assert saem.fit([*records[:5], 0.1, *records[6:]], 1).n_iterations == 2


def test_errors_name_the_observation_and_the_way_on(family, values, tmp_path):
    records = [*values[:5], 888.0, *values[5:]]
    saem = run(family, e_step=Failing())
    with pytest.raises(RuntimeError, match=r"observation 5, .* iteration 1: singular.*on_error=.s"):
        saem.fit(records, 2)
    assert saem.n_iterations == 0
    assert "skipped" not in saem.history.children
    # that way works, and its setting is kept with the run
    saem.save(tmp_path / "run.nc")
    on = {"e_step": Failing(), "progressbar": False}
    saem = SAEM.load(tmp_path / "run.nc", family, **on, on_error="skip").fit(records, 2)
    saem.save(tmp_path / "run.nc")
    again = SAEM.load(tmp_path / "run.nc", family, **on).fit(records, 1)
    assert_same(again, run(family, e_step=Failing()).fit(values, 3))


def test_where_nothing_is_left_the_error_is_raised(family, values):
    saem = run(family, e_step=Failing(), on_error="skip")
    with pytest.raises(ValueError, match=r"none of these 3 can be learned \(refused: ValueError"):
        saem.fit([np.inf, np.nan, np.inf], 1)
    with pytest.raises(RuntimeError, match=r"observation 2, counted from 0, failed in iteration 1"):
        saem.fit([888.0] * 3, 1)
    saem = run(family, e_step=Failing(), on_error="skip")
    with pytest.raises(
        RuntimeError, match=f"observation {5 + MOST_IN_A_ROW}, .*failed in iteration 1"
    ):
        saem.fit([*values[:5], *[888.0] * 200], 1)
    assert saem.n_iterations == 0
    with pytest.raises(OSError, match="bad sector"):
        run(family, e_step=Failing(), on_error="skip").fit(source_of([Unreadable()] * 200), 1)


def test_the_first_is_told_once(family, values, caplog):
    with caplog.at_level(logging.WARNING, logger="pymc_mcoem"):
        run(family, e_step=Failing(), on_error="skip").fit([888.0, *values, np.inf], 3)
    assert sum("is skipped" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("deformation_outer", -1.0, "deformation_outer of class 1 is not positive semidefinite"),
        ("squared_norm", -50.0, "squared_norm is negative"),
        ("template_projection", np.inf, "template_projection from the E-step holds values that"),
    ],
)
@pytest.mark.parametrize("fraction", by_default([1.0, 0.5], {0.5}))
def test_statistics_that_cannot_be_never_reach_the_parameters(rng, name, value, reason, fraction):
    mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    compiled = FixedLatents().compile(mixture)
    images = rng.normal(size=(10, 3, 3))

    def learned(observations):
        saem = SAEM(
            mixture,
            parameters=mixture.parameters,
            e_step=Spoilt(compiled, name, value),
            on_error="skip",
            batch_size=fraction,
            random_seed=1,
            progressbar=False,
        )
        return saem.fit(observations, 4)

    saem = learned(np.insert(images, 6, np.ones((3, 3)), axis=0))
    assert saem.history["skipped"]["position"].values.tolist() == [6]
    assert reason in str(saem.history["skipped"]["reason"].values[0])
    assert saem.parameters.identical(learned(images).parameters)


@pytest.mark.parametrize("way", ["all", "mini-batches"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_sum_that_overflows_never_reaches_the_parameters(family, values, way, on_error):
    """Each square is finite, and their sum is not: no observation is to blame."""
    saem = run(family, e_step=Towering(), on_error=on_error, **WAYS[way])
    with pytest.raises(FloatingPointError, match=r"running mean of the statistics .* not finite"):
        saem.fit(np.append(values, [555.0] * 6), 2)
    assert saem.n_iterations == 0
    for name, value in THETA.items():
        np.testing.assert_array_equal(saem.parameters[name], value)
