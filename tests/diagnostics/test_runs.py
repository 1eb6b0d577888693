"""Running evidence, when a run could stop, and runs compared by what they predicted."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.diagnostics import compare_runs, running_evidence, stopping_hint
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.saem import SAEM
from tests.helpers.toy_families import NormalMixture, mixture_stream
from tests.helpers.toy_runs import THETA, driver


def history(evidence, level=None, keep=None):
    """Return a history whose one parameter follows `level`."""
    n = np.arange(1, len(evidence) + 1)
    level = np.ones(len(n)) if level is None else level
    kept = n if keep is None else keep
    path = xr.Dataset(
        {"level": ("step", level[kept - 1]), "gain": ("step", kept**-0.6)},
        coords={"step": kept},
    ).assign(observation=("step", kept))
    records = xr.Dataset({"log_evidence": ("observation", evidence)}, coords={"observation": n})
    return xr.DataTree.from_dict({"steps": path, "observations": records})


def test_the_running_evidence_is_a_mean_of_the_last():
    values = np.array([0.0, 2.0, np.nan, 4.0, 6.0])
    found = running_evidence(history(values), window=3)
    np.testing.assert_allclose(found, [0.0, 1.0, 1.0, 3.0, 5.0])
    assert found.dims == ("observation",)


def test_a_run_that_still_predicts_better_should_go_on(rng):
    evidence = np.linspace(-10.0, -6.0, 400) + rng.normal(size=400)
    hint = stopping_hint(history(evidence), window=100)
    assert not hint.could_stop
    assert "evidence still grows" in hint.reason
    assert hint.gain == pytest.approx(1.0, abs=5 * hint.gain_mcse)
    assert hint.gain_mcse == pytest.approx(np.sqrt(2 / 100), rel=0.3)


def test_a_run_whose_parameters_move_should_go_on(rng):
    level = np.linspace(1.0, 1.4, 400)
    hint = stopping_hint(history(rng.normal(size=400), level), window=100)
    assert not hint.could_stop
    assert "level still moves" in hint.reason
    expected = level[300:].mean() / level[200:300].mean() - 1
    assert hint.change == pytest.approx(expected)


def test_a_run_at_rest_could_stop_and_seldom_is_told_to_go_on(rng):
    hints = [stopping_hint(history(rng.normal(size=400)), window=100) for _ in range(200)]
    # one in 44 by the limit of two errors: 4.5 of 200 to be expected
    assert sum(not hint.could_stop for hint in hints) < 14
    assert all(hint.change == 0 for hint in hints)


def test_too_little_is_said_to_be_too_little(rng):
    hint = stopping_hint(history(rng.normal(size=150)), window=100)
    assert not hint.could_stop
    assert "150 observations are fewer than two windows" in hint.reason
    thinned = history(rng.normal(size=400), keep=np.array([100, 400]))
    assert "raise keep=" in stopping_hint(thinned, window=100).reason


def test_by_default_the_halves_of_a_short_run_are_compared(rng):
    for n, window in ((300, 150), (1_000, 200)):
        tree = history(rng.normal(size=n))
        assert stopping_hint(tree) == stopping_hint(tree, window=window)
    assert "15 observations are fewer" in stopping_hint(history(rng.normal(size=15))).reason


def test_what_cannot_be_judged_is_refused(rng):
    tree = history(rng.normal(size=40))
    with pytest.raises(ValueError, match="window: got 3"):
        stopping_hint(tree, window=3)
    with pytest.raises(ValueError, match="tolerance: got 0"):
        stopping_hint(tree, tolerance=0)
    with pytest.raises(ValueError, match="window: got 1"):
        running_evidence(tree, window=1)
    with pytest.raises(ValueError, match="no group 'observations'"):
        running_evidence(xr.DataTree())
    with pytest.raises(ValueError, match="nothing was learned"):
        running_evidence(driver(NormalMixture(), parameters=THETA))


def test_runs_are_compared_observation_by_observation(rng):
    common = 5.0 * rng.normal(size=300)
    good, poor = common + 0.1 * rng.normal(size=300), common - 0.2 + 0.1 * rng.normal(size=300)
    found = compare_runs({"poor": history(poor), "good": history(good)}, first=101)
    assert found.index.name == "run" and found.index.tolist() == ["good", "poor"]
    assert (found["n_observations"] == 200).all()
    difference = (poor - good)[100:]
    assert found.loc["poor", "difference"] == pytest.approx(difference.mean())
    assert found.loc["poor", "difference_mcse"] == pytest.approx(
        difference.std(ddof=1) / np.sqrt(200)
    )
    assert found.loc["good", "difference"] == 0
    np.testing.assert_allclose(found["bic"], 200 * found["log_evidence"] - 0.5 * np.log(200))


def test_runs_that_cannot_be_compared_are_refused(rng):
    run = history(rng.normal(size=20))
    with pytest.raises(ValueError, match="runs: got 1"):
        compare_runs({"one": run})
    with pytest.raises(ValueError, match="no two observations from number 20 on"):
        compare_runs({"a": run, "b": run}, first=20)
    with pytest.raises(ValueError, match=r"runs: \['b'\] have observations without evidence"):
        compare_runs({"a": run, "b": history(np.full(20, np.nan))})


def test_a_run_of_the_driver_can_be_handed_over(rng):
    em = driver(NormalMixture(), parameters=THETA).partial_fit(mixture_stream(rng, 30))
    hint = stopping_hint(em, window=10)
    assert np.isfinite(hint.change)
    assert hint.change == stopping_hint(em.history, window=10).change


def test_runs_of_saem_are_judged_by_iterations_and_never_compared(rng):
    family = NormalMixture()
    ys = mixture_stream(rng, 30)
    saem = SAEM(family, parameters=THETA, e_step=Exact(), random_seed=1, progressbar=False)
    saem.fit(ys, 15)
    assert stopping_hint(saem, window=10).reason == "15 iterations are fewer than two windows of 10"
    hint = stopping_hint(saem.fit(ys, 200), window=50)
    assert hint.change < 0.01
    em = driver(family, parameters=THETA).partial_fit(ys)
    with pytest.raises(ValueError, match=r"runs: \['batch'\] are of SAEM"):
        compare_runs({"stream": em, "batch": saem})
