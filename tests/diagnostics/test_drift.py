"""The alarm for drift: as many false alarms as are due, and a fall is found at once."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
from scipy import stats

import pymc_mcoem as mcoem
from pymc_mcoem.em.drift import _threshold, mean_run_length
from tests.helpers.toy_families import EvidentMixture, NormalMixture, mixture_stream

#: Scores of each kind, and one alarm in so many of them.
N, EVERY = 30_000, 100
SCORES = {
    "normal": lambda rng, n: rng.normal(size=n),
    "skew": lambda rng, n: -rng.chisquare(2, size=n),
    "heavy tails": lambda rng, n: rng.standard_cauchy(size=n),
    "ties": lambda rng, n: rng.integers(3, size=n).astype(float),
    "all alike": lambda rng, n: np.zeros(n),
}


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR, logger="pymc_mcoem")


def n_alarms(alarm, scores):
    return sum(alarm.update(score) for score in scores)


def too_many(found):
    """Return by how many standard errors alarms are more than are due.

    Alarms are renewals: waiting times vary no more than their mean does.
    """
    due = N / EVERY
    return (found - due) / np.sqrt(due)


@pytest.mark.parametrize(
    ("kind", "window"), [*((kind, 100) for kind in SCORES), ("skew", 1_000), ("skew", N)]
)
def test_false_alarms_are_as_frequent_as_is_said(kind, window, rng):
    alarm = mcoem.DriftAlarm(false_alarm_rate=1 / EVERY, window=window, warm_up=0)
    assert abs(too_many(n_alarms(alarm, SCORES[kind](rng, N)))) < 4


def test_a_threshold_for_half_as_many_alarms_fails_this_check(rng):
    alarm = mcoem.DriftAlarm(false_alarm_rate=1 / EVERY, warm_up=0)
    alarm.threshold = _threshold(0.5 / EVERY, 1.0)
    assert too_many(n_alarms(alarm, SCORES["normal"](rng, N))) < -4


@pytest.mark.slow
def test_false_alarms_at_the_default_rate(rng):
    alarm = mcoem.DriftAlarm()
    n = 2_000_000
    found = n_alarms(alarm, -rng.chisquare(5, size=n))
    assert abs(found - n * 1e-4) < 4 * np.sqrt(n * 1e-4)


@pytest.mark.parametrize(("drift", "threshold"), [(0.5, 2.0), (0.25, 3.0), (0.0, 1.0)])
def test_mean_run_lengths_by_simulation(drift, threshold, rng):
    n = 20_000
    level, length = np.zeros(n), np.zeros(n)
    running = np.ones(n, dtype=bool)
    while running.any():
        length[running] += 1
        steps = rng.normal(size=running.sum()) - drift
        level[running] = np.maximum(0, level[running] + steps)
        running &= level <= threshold
    error = length.std() / np.sqrt(n)
    assert abs(length.mean() - mean_run_length(threshold, drift)) < 4 * error


@pytest.mark.parametrize("rate", [1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("fall", [0.1, 1.0, 4.0])
def test_the_threshold_is_that_of_the_rate(rate, fall):
    alarm = mcoem.DriftAlarm(false_alarm_rate=rate, fall=fall)
    assert mean_run_length(alarm.threshold, fall / 2) == pytest.approx(1 / rate, rel=1e-4)


@pytest.mark.parametrize("begin", [600, 3_000])
def test_a_fall_is_found_and_told_once(begin, rng):
    late, since, more, n_runs = [], [], 0, 12
    for seed in range(n_runs):
        alarm = mcoem.DriftAlarm(random_seed=seed)
        # skew scores, as evidence is; their standard deviation is 2
        n_alarms(alarm, 5.0 - rng.chisquare(2, size=begin))
        alarm.alarms.clear()
        n_alarms(alarm, 1.0 - rng.chisquare(2, size=400))
        found, *others = alarm.alarms
        late.append(found.at - begin)
        since.append(found.since - begin)
        more += len(others)
    # A fall by two standard deviations takes z to −1.5 or less on average, so that the level grows
    # by 1 or more a score.
    assert 0 < min(late) <= max(late) < 5 * alarm.threshold
    assert np.mean(late) < alarm.threshold + 4 * np.std(late) / np.sqrt(len(late))
    assert abs(np.median(since) - 1) <= 2
    # afterward only false alarms, at their own rate
    due = n_runs * 400 * alarm.false_alarm_rate
    assert more < due + 4 * np.sqrt(due)


def test_a_rise_is_no_drift(rng):
    alarm = mcoem.DriftAlarm(false_alarm_rate=1e-4)
    scores = rng.normal(size=4_000) + np.linspace(0.0, 20.0, 4_000)
    assert not n_alarms(alarm, scores)


def run_over(values, *callbacks, random_seed=1, **settings):
    em = mcoem.OnlineEM(
        EvidentMixture(),
        e_step=mcoem.esteps.Exact(),
        n_start=20,
        random_seed=random_seed,
        progressbar=False,
        callbacks=callbacks,
        **settings,
    )
    return em.partial_fit(values)


def test_it_judges_the_evidence_before_learning_and_changes_nothing(rng):
    values = mixture_stream(rng, 300)
    alarm, seen = mcoem.DriftAlarm(), []
    em = run_over(values, lambda records: (alarm(records), seen.extend(records)))
    assert alarm.n_scores == 300
    np.testing.assert_array_equal(
        [record.log_evidence for record in seen], em.history["observations"]["log_evidence"]
    )
    # the evidence of observation n at θ after n − 1
    theta = em.history["steps"].to_dataset().isel(step=-2)
    found = em.family.exact({"value": values[-1]}, {k: theta[k].values for k in em.parameters})
    spread = np.sqrt(float(theta["noise_variance"]))
    by_hand = np.log(theta["weights"].values @ stats.norm.pdf(values[-1], theta["means"], spread))
    assert found["log_evidence"] == pytest.approx(by_hand, rel=1e-12)
    assert seen[-1].log_evidence == pytest.approx(by_hand, rel=1e-12)
    assert em.parameters.identical(run_over(values).parameters)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_stream_that_changes_raises_one_alarm_along_a_run(batch_size, rng):
    before, after = mixture_stream(rng, 700), mixture_stream(rng, 140) + 6.0
    alarm = mcoem.DriftAlarm()
    run_over(np.concatenate([before, after]), alarm, batch_size=batch_size)
    *early, found = alarm.alarms
    assert 700 < found.at < 760
    assert 690 <= found.since <= 720
    # false alarms before: 0.06 are due
    assert len(early) <= 2


def test_along_predict_then_learn(rng):
    values = np.concatenate([mixture_stream(rng, 400), mixture_stream(rng, 100) + 6.0])

    class Weighing(mcoem.esteps.Exact):
        def compile(self, family):
            return Weighed(super().compile(family))

    class Weighed:
        def __init__(self, exact):
            self.exact, self.initial_state = exact, exact.initial_state

        def __call__(self, *given, **options):
            return self.exact(*given, **options)

        def class_probability(self, data, parameters, rng, *, draws, tune):
            return self.exact.family.probabilities(data, parameters)

    alarm = mcoem.DriftAlarm()
    learned = []
    em = mcoem.OnlineEM(
        EvidentMixture(),
        e_step=Weighing(),
        n_start=20,
        random_seed=1,
        progressbar=False,
        callbacks=[alarm, lambda update: learned.append(update.driver.n_seen)],
    )
    rate = mcoem.predict_then_learn(
        em,
        values,
        np.where(values < 0, "low", "high"),
        e_step=Weighing(),
        progressbar=False,
    )
    assert alarm.n_scores == 500
    # each time before the next observation is taken
    assert learned == [20] * 20 + list(range(21, 501))
    assert 400 < alarm.alarms[-1].at < 460
    by_hand = mcoem.DriftAlarm()
    run_over(values, by_hand)
    assert by_hand.alarms == alarm.alarms
    # the evidence of each, also of those that were held for the start
    assert rate["observation"].values.tolist() == list(range(2, 501))
    learned_evidence = em.history["observations"]["log_evidence"].values
    np.testing.assert_array_equal(rate["log_evidence"], learned_evidence[1:])


def test_evidence_that_is_not_known_is_told_once(caplog, rng):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    alarm = mcoem.DriftAlarm()
    settings = {"e_step": mcoem.esteps.Exact(), "random_seed": 1, "progressbar": False}
    em = mcoem.OnlineEM(NormalMixture(), callbacks=[alarm], **settings)
    em.partial_fit(mixture_stream(rng, 80))
    assert sum("has no evidence" in record.message for record in caplog.records) == 1
    assert alarm.n_scores == 80
    # and does not hide a fall among others
    caplog.clear()
    alarm = mcoem.DriftAlarm()
    scores = np.concatenate([rng.normal(size=600), rng.normal(-4.0, size=60)])
    assert n_alarms(alarm, [each for score in scores for each in (score, np.nan)]) == 1
    (told,) = [record.message for record in caplog.records if "has fallen" in record.message]
    assert f"Observation {alarm.alarms[0].at}: " in told
    assert f"since about observation {alarm.alarms[0].since}" in told


def test_memory_is_bounded_and_a_copy_goes_on_alike(rng):
    alarm = mcoem.DriftAlarm(false_alarm_rate=0.01, window=50)
    n_alarms(alarm, rng.normal(size=3_000))
    assert len(alarm._recent) == len(alarm._sorted) <= 50
    assert alarm._sorted == sorted(alarm._recent)
    assert alarm.alarms.maxlen == 1_000
    copy = pickle.loads(pickle.dumps(alarm))
    scores = rng.normal(size=3_000)
    assert n_alarms(alarm, scores) == n_alarms(copy, scores) > 0
    assert alarm.alarms == copy.alarms


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("false_alarm_rate", 0.0),
        ("false_alarm_rate", 0.5),
        ("fall", -1.0),
        ("fall", np.nan),
        ("window", 5),
        ("window", 100.5),
        ("warm_up", -1),
    ],
)
def test_arguments_out_of_range_are_named(name, value):
    with pytest.raises(ValueError, match=f"^{name}: got"):
        mcoem.DriftAlarm(**{name: value})


def falls(caplog):
    return [record.message for record in caplog.records if "has fallen" in record.message]


def falling_stream(rng):
    return np.concatenate([mixture_stream(rng, 700), mixture_stream(rng, 140) + 6.0])


def test_a_run_that_was_given_no_alarm_warns_once_and_says_what_to_do(rng, caplog):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    values = falling_stream(rng)
    run_over(values[:700])
    assert not falls(caplog)
    run_over(values)
    (told,) = falls(caplog)
    assert 700 < int(told.split()[1].rstrip(":")) < 760
    for words in ("StepSize(floor=0.05)", "docs/streams.md", "100,000", "callbacks=[DriftAlarm"):
        assert words in told


def test_an_alarm_that_was_given_takes_its_place(rng, caplog):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    values = falling_stream(rng)
    run_over(values, mcoem.DriftAlarm(warm_up=10**15))
    assert not falls(caplog)
    run_over(values, mcoem.DriftAlarm(false_alarm_rate=1e-6))
    (told,) = falls(caplog)
    assert "1,000,000 observations" in told


@pytest.mark.parametrize("end", [400, 702])
@pytest.mark.parametrize("given", [False, True])
def test_a_run_that_was_loaded_warns_as_if_it_had_not_been(given, end, rng, caplog, tmp_path):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    values = falling_stream(rng)
    alarms = [mcoem.DriftAlarm(), mcoem.DriftAlarm()] if given else [None, None]
    callbacks = [[alarm] if given else [] for alarm in alarms]
    run_over(values, *callbacks[0])
    whole = falls(caplog)
    caplog.clear()
    run_over(values[:end]).save(tmp_path / "run.nc")
    loaded = mcoem.OnlineEM.load(
        tmp_path / "run.nc", EvidentMixture(), callbacks=callbacks[1], progressbar=False
    )
    loaded.partial_fit(values, skip=loaded.position)
    assert falls(caplog) == whole
    assert len(whole) == 1
    if given:
        assert alarms[0].alarms == alarms[1].alarms
        assert alarms[0]._recent == alarms[1]._recent


def test_what_was_told_before_a_run_was_saved_is_not_told_again(rng, caplog, tmp_path):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    values = falling_stream(rng)
    run_over(values[:800]).save(tmp_path / "run.nc")
    assert len(falls(caplog)) == 1
    caplog.clear()
    alarm = mcoem.DriftAlarm()
    loaded = mcoem.OnlineEM.load(
        tmp_path / "run.nc", EvidentMixture(), callbacks=[alarm], progressbar=False
    )
    loaded.partial_fit(values, skip=loaded.position)
    assert not falls(caplog)
    assert 700 < alarm.alarms[-1].at < 760


def test_a_long_history_that_is_thinned_fills_the_window(rng, caplog, tmp_path):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    values = falling_stream(rng)
    run_over(values[:700], thin=4).save(tmp_path / "run.nc")
    loaded = mcoem.OnlineEM.load(tmp_path / "run.nc", EvidentMixture(), progressbar=False)
    loaded.partial_fit(values, skip=loaded.position)
    (told,) = falls(caplog)
    assert 700 < int(told.split()[1].rstrip(":")) < 760


def test_a_run_without_evidence_is_not_warned_of(rng, caplog):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    settings = {"e_step": mcoem.esteps.Exact(), "random_seed": 1, "progressbar": False}
    mcoem.OnlineEM(NormalMixture(), **settings).partial_fit(mixture_stream(rng, 300))
    assert not [record for record in caplog.records if "evidence" in record.message]


def test_a_run_that_was_given_labels_has_no_alarm_of_its_own(rng, caplog):
    """With a label an observation has more evidence than those that follow without."""
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    values = falling_stream(rng)
    em = run_over(values[:400])
    every = set(range(em.family.n_classes))
    em.partial_fit(values[400:700], [every] * 300).partial_fit(values[700:])
    assert not falls(caplog)


def test_a_merged_run_counts_all_that_its_parts_learned(rng, caplog):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    values = falling_stream(rng)
    parts = [
        run_over(part, random_seed=seed) for seed, part in enumerate(np.split(values[:400], 2))
    ]
    merged = mcoem.merge_runs(parts)
    merged.partial_fit(values[400:])
    (told,) = falls(caplog)
    assert 700 < int(told.split()[1].rstrip(":")) < 760


def test_false_alarms_of_runs_that_were_given_none_are_rare():
    alarm = mcoem.DriftAlarm.of_run(50)
    assert mean_run_length(alarm.threshold, alarm.fall / 2) == pytest.approx(1e5, rel=1e-3)
    # observations of the start are not compared with
    assert [mcoem.DriftAlarm.of_run(n).warm_up for n in (50, 400)] == [100, 400]


@pytest.mark.parametrize("n_start", [20, 400])
def test_no_run_of_a_stream_that_rests_is_warned_of(n_start, rng, caplog):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    for seed in range(6):
        em = mcoem.OnlineEM(
            EvidentMixture(),
            e_step=mcoem.esteps.Exact(),
            n_start=n_start,
            random_seed=seed,
            progressbar=False,
        )
        em.partial_fit(mixture_stream(rng, 1_000))
    # 0.06 are due
    assert len(falls(caplog)) <= 1


def test_labels_along_predict_then_learn_have_an_alarm_each(rng, caplog):
    caplog.set_level(logging.WARNING, logger="pymc_mcoem")
    mixture = mcoem.TemplateMixture.for_images((3, 3), n_classes=1, n_landmarks=2)
    learners = {
        name: mcoem.OnlineEM(
            mixture, e_step=mcoem.esteps.LaplaceGaussian(), n_start=4, random_seed=1
        )
        for name in ("dark", "bright")
    }
    labels = np.array(["dark", "bright"])[np.arange(500) % 2]
    images = np.where(labels == "dark", 0.1, 0.9)[:, None, None] * np.ones((3, 3))
    images = images + 0.1 * rng.standard_normal(images.shape)
    images[np.arange(500) >= 400] += np.where(labels == "dark", 1.0, 0.0)[400:, None, None]
    rate = mcoem.predict_then_learn(
        learners, images, labels, e_step=mcoem.esteps.LaplaceGaussian(), progressbar=False
    )
    (told,) = falls(caplog)
    assert 200 < int(told.split()[1].rstrip(":")) < 230
    for name, learner in learners.items():
        found = rate["log_evidence"].values[rate["actual"].values == name]
        expected = learner.history["observations"]["log_evidence"].values
        np.testing.assert_array_equal(found, expected[-len(found) :])
