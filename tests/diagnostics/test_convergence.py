"""Hints for when to stop, on made-up runs and on a real one."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from pymc_mcoem.diagnostics import compare_evidence, convergence
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from tests.helpers.toy_families import NormalMixture, mixture_stream


def run(means, log_evidence, n_classes=1):
    """Return a history with one parameter and these records."""
    n = len(log_evidence)
    path = xr.Dataset(
        {
            "mean": ("step", np.concatenate([means[:1], means])),
            "weights": (("step", "class"), np.full((n + 1, n_classes), 1 / n_classes)),
            "observation": ("step", np.arange(n + 1)),
        },
        {"step": np.arange(n + 1)},
    )
    seen = xr.Dataset(
        {"log_evidence": ("observation", log_evidence)}, {"observation": np.arange(1, n + 1)}
    )
    return xr.DataTree.from_dict({"online_em": path, "observations": seen})


def test_numbers_by_hand():
    evidence = np.concatenate([np.tile([-3.0, -1.0], 20), np.tile([-1.5, -0.5], 20)])
    means = np.concatenate([np.full(40, 2.0), np.full(40, 4.0)])
    found = convergence(run(means, evidence), window=40)
    assert found.log_evidence == pytest.approx(-1)
    assert found.evidence_gain == pytest.approx(1)
    # variances (n - 1 in the denominator) 40/39 and 10/39 over 40 observations each
    assert found.evidence_gain_se == pytest.approx(np.sqrt((40 + 10) / 39 / 40))
    assert float(found.change["mean"]) == pytest.approx(0.5)
    assert not found.settled
    assert str(found).startswith("Not settled") and "mean changed most, by 0.5" in found.hint


def test_each_condition_counts_alone(rng):
    level, noise = np.ones(400), 0.1 * rng.normal(size=400)
    rising = np.linspace(-2, 0, 400)
    assert convergence(run(level, np.tile([-0.1, 0.1], 200))).settled
    assert not convergence(run(level, rising + noise)).settled
    assert not convergence(run(1 + np.linspace(0, 5, 400), np.tile([-0.1, 0.1], 200))).settled


def test_false_alarms_on_stationary_runs(rng):
    n_runs = 400
    level = np.ones(200)
    unsettled = sum(
        not convergence(run(level, rng.normal(size=200))).settled for _ in range(n_runs)
    )
    # Beyond two standard errors, of 50 observations each: t with 98 degrees of freedom.
    chance = stats.t(98).sf(2)
    assert stats.binomtest(unsettled, n_runs, chance).pvalue > 1e-5


def test_without_evidence_the_parameters_decide():
    found = convergence(run(np.ones(100), np.full(100, np.nan)))
    assert found.settled and np.isnan(found.evidence_gain)
    assert "nothing is known of the evidence" in found.hint


def test_a_real_run_settles(rng):
    em = OnlineEM(NormalMixture(), e_step=Exact(), random_seed=1, progressbar=False)
    em.partial_fit(mixture_stream(rng, 100))
    early = convergence(em.history, window=40)
    em.partial_fit(mixture_stream(rng, 3000))
    late = convergence(em.history)
    assert set(late.change) == {"weights", "means", "noise_variance"}
    assert float(late.change["means"]) < float(early.change["means"])


def test_what_is_no_run_is_refused():
    history = run(np.ones(40), np.zeros(40))
    with pytest.raises(TypeError, match=r"em\.history"):
        convergence(history["online_em"].to_dataset())
    with pytest.raises(ValueError, match="no groups"):
        convergence(history["online_em"])
    with pytest.raises(ValueError, match="window: of 30"):
        convergence(history, window=30)
    with pytest.raises(ValueError, match="tolerance"):
        convergence(history, tolerance=0)


def test_evidence_is_compared_observation_by_observation(rng):
    common = rng.normal(size=200)
    histories = {
        1: run(np.ones(200), common - 1, n_classes=1),
        2: run(np.ones(200), common + 0.1 * np.tile([-1, 1], 100), n_classes=2),
    }
    table = compare_evidence(histories)
    assert table.index.tolist() == [2, 1]
    assert table.loc[2, "log_evidence"] == pytest.approx(common[100:].mean())
    assert table.loc[1, "difference"] == pytest.approx(-1)
    # the noise that both have in common is no part of the error
    assert table.loc[1, "difference_se"] == pytest.approx(0.1 * np.sqrt(100 / 99 / 100))
    # a mean, and one weight less than there are classes
    assert table["n_parameters"].to_dict() == {2: 2, 1: 1}
    penalty = table["log_evidence"] - table["penalised"]
    np.testing.assert_allclose(penalty, np.array([2, 1]) * np.log(200) / 400)


def test_the_penalty_turns_a_tie():
    level = np.tile([-1.0, 1.0], 50)
    histories = {n: run(np.ones(100), level, n_classes=n) for n in (3, 1, 2)}
    assert compare_evidence(histories).index.tolist() == [1, 2, 3]


def test_runs_that_cannot_be_compared_are_refused():
    first = run(np.ones(40), np.zeros(40))
    with pytest.raises(ValueError, match="at least two runs"):
        compare_evidence({1: first})
    with pytest.raises(ValueError, match="the same ones"):
        compare_evidence({1: first, 2: run(np.ones(30), np.zeros(30))})
    with pytest.raises(ValueError, match="no evidence"):
        compare_evidence({1: first, 2: run(np.ones(40), np.full(40, np.nan))})
    with pytest.raises(ValueError, match="window: got 0"):
        compare_evidence({1: first, 2: first}, window=0)
