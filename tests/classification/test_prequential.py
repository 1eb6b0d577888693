"""Predict, then learn: against loops by hand, and without a look at what is predicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from time import sleep
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr

import pymc_mcoem as mcoem
from pymc_mcoem.compiling import messages
from pymc_mcoem.em.esteps.base import EStepResult
from tests.helpers.bad_records import Disk
from tests.helpers.toy_families import NormalMixture, mixture_stream
from tests.helpers.toy_runs import THETA, assert_same

# what is compiled here is called a few hundred times
pytestmark = pytest.mark.usefixtures("module_without_compiler")

POINTS = np.linspace(-1, 1, 6)
QUIET = {"progressbar": False}


@dataclass
class Weighing:
    """Closed form for `NormalMixture`; class probabilities carry noise from the generator."""

    noise: float = 0.0
    compiled: list = field(default_factory=list)

    def compile(self, family):
        self.compiled.append(family)
        return CompiledWeighing(family, self.noise)


@dataclass(frozen=True)
class CompiledWeighing:
    family: NormalMixture
    noise: float

    def initial_state(self):
        return {}

    def __call__(self, data, parameters, rng, state, *, draws, tune):
        return EStepResult(self.family.exact(data, parameters))

    def class_probability(self, data, parameters, rng, *, draws, tune):
        # an answer that depends on all that it is given
        odds = self.family.probabilities(data, parameters) + self.noise / draws * rng.random(3)
        return odds / odds.sum()


def toy(**settings):
    given = {"e_step": Weighing(), "random_seed": 1, "progressbar": False, "n_start": 10}
    return mcoem.OnlineEM(NormalMixture(), **(given | settings))


def toy_stream(rng, size=80):
    """Return scalars and labels that go with where they lie, a fifth of them wrong."""
    values = mixture_stream(rng, size)
    labels = np.array(["low", "middle", "high"])[np.digitize(values, [-1.5, 1.2])]
    return values, np.where(rng.random(size) < 0.2, "middle", labels)


@pytest.fixture(scope="module")
def mixture():
    """Curves at six points, one displacement."""
    return mcoem.TemplateMixture(
        POINTS,
        mcoem.GaussianBasis.regular([POINTS], bandwidth=0.6),
        mcoem.DisplacementField([[0.0]], width=0.8),
        n_classes=1,
    )


@pytest.fixture(scope="module")
def larger(mixture):
    return mixture.with_classes(2)


def unwarped(mixture, **settings):
    """Return a driver in closed form."""
    given = {
        "e_step": mcoem.esteps.FixedLatents(),
        "random_seed": 1,
        "progressbar": False,
        "n_start": 3,
    }
    return mcoem.OnlineEM(mixture, **(given | settings))


def curves(rng, size, noise=0.5):
    """Return curves with a peak on the left or on the right, and which."""
    labels = np.where(rng.random(size) < 0.4, "left", "right")
    peaks = np.where(labels == "left", -0.3, 0.3)[:, None]
    clean = np.exp(-((POINTS - peaks) ** 2) / 0.3)
    return clean + noise * rng.normal(size=clean.shape), labels


def most_frequent(labels):
    return Counter(labels).most_common(1)[0][0]


def test_a_mixture_for_each_label_as_by_hand(mixture, larger, rng):
    stream, labels = curves(rng, 24)
    settings = {"average_from": 4, "update_schedule": lambda n: True}

    def make():
        return {"left": unwarped(larger, **settings), "right": unwarped(mixture, **settings)}

    learners, others = make(), make()
    found = mcoem.predict_then_learn(
        learners, stream, labels, e_step=mcoem.esteps.FixedLatents(), window=7, **QUIET
    )
    predicted, asked = [], []
    for number, (curve, label) in enumerate(zip(stream, labels, strict=True)):
        known = all(em.n_seen >= 3 for em in others.values())
        if known:
            classifier = mcoem.Classifier(
                mixture,
                {name: em.parameters for name, em in others.items()},
                e_step=mcoem.esteps.FixedLatents(),
                **QUIET,
            )
            predicted.append(classifier.predict([curve])[0])
        elif number:
            predicted.append(most_frequent(labels[:number]))
        asked.append(known)
        others[label].partial_fit(curve)
    np.testing.assert_array_equal(found["predicted"], predicted)
    np.testing.assert_array_equal(found["actual"], labels[1:])
    np.testing.assert_array_equal(found["classified"], asked[1:])
    np.testing.assert_array_equal(found["observation"], np.arange(2, 25))
    expected = mcoem.live_error_rate(predicted, labels[1:], window=7)
    for name, values in expected.data_vars.items():
        np.testing.assert_array_equal(found[name].values, values.values)
    for name, em in learners.items():
        assert_same(em, others[name])
    assert 0 < sum(asked) < 24 and 0 < found["cumulative"][-1] < 0.5


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"parameters": THETA},
        {"batch_size": 4, "n_start": 12},
        {"average_from": 15},
    ],
)
def test_one_mixture_as_by_hand(settings, rng):
    values, labels = toy_stream(rng)
    e_step = Weighing(noise=20.0)
    em, other = toy(**settings), toy(**settings)
    found = mcoem.predict_then_learn(
        em, values, labels, e_step=e_step, draws=5, random_seed=8, **QUIET
    )
    compiled = e_step.compile(other.family)
    predicted, theta, size = [], settings.get("parameters"), settings.get("batch_size", 1)
    for number, value in enumerate(values):
        # parameters of whole mini-batches, after the start
        if (number and number >= other.run.settings.n_start) or "parameters" in settings:
            if number % size == 0 and number:
                theta = other.family.check_parameters(other.parameters)
        if number and theta is None:
            predicted.append(most_frequent(labels[:number]))
        elif number:
            history = other.history
            learned = history["observations"]["class_weight"].values
            names = np.array(mcoem.majority_labels(learned, labels[: len(learned)]))
            generator = np.random.default_rng(np.random.SeedSequence(8, spawn_key=(number,)))
            weights = compiled.class_probability(
                other.family.encode(value), theta, generator, draws=5, tune=10
            )
            sums = {name: weights[names == name].sum() for name in names}
            predicted.append(max(sums, key=sums.get))
        other.partial_fit(value)
    np.testing.assert_array_equal(found["predicted"], predicted)
    np.testing.assert_array_equal(found["actual"], labels[1:])
    assert_same(em, other)
    again = mcoem.predict_then_learn(
        toy(**settings), values, labels, e_step=e_step, draws=5, random_seed=9, **QUIET
    )
    assert (again["predicted"].values != found["predicted"].values).any()


def test_no_curve_has_a_part_in_its_own_prediction(mixture, rng):
    # each mixture is what it saw last, and labels have nothing to do with curves
    size = 150
    stream, labels = rng.normal(size=(size, 6)), rng.integers(2, size=size)
    settings = {"n_start": 1, "step_size": lambda n: 1.0, "update_schedule": lambda n: True}
    learners = {label: unwarped(mixture, **settings) for label in (0, 1)}
    e_step = mcoem.esteps.FixedLatents()
    rate = mcoem.predict_then_learn(learners, stream, labels, e_step=e_step, **QUIET)
    error = np.sqrt(0.25 / size)
    assert abs(rate["cumulative"][-1] - 0.5) < 5 * error
    # what has learned a curve before knows its label: here a leak leads to no error
    last = {label: np.flatnonzero(labels == label)[-1] for label in (0, 1)}
    classifier = mcoem.Classifier(
        mixture, {label: em.parameters for label, em in learners.items()}, e_step=e_step, **QUIET
    )
    assert classifier.score(stream[list(last.values())], list(last)) == 1


def test_no_label_has_a_part_in_its_own_prediction(rng):
    # every observation has a class of its own, which its label would name
    class Apart(NormalMixture):
        def maximize(self, statistics, *, effective_size):
            return self.declared_parameters()

    size = 120
    family = Apart(size)
    theta = family.declared_parameters() | {"means": 100.0 * np.arange(size)}
    labels = rng.integers(2, size=size)

    class Certain(Weighing):
        def compile(self, family):
            return CompiledCertain(family)

    class CompiledCertain(CompiledWeighing):
        def __init__(self, family):
            super().__init__(family, 0.0)

        def class_probability(self, data, parameters, rng, *, draws, tune):
            return self.family.probabilities(data, parameters)

    em = mcoem.OnlineEM(
        family, parameters=theta, e_step=Weighing(), update_schedule=lambda n: False, **QUIET
    )
    rate = mcoem.predict_then_learn(em, theta["means"], labels, e_step=Certain(), **QUIET)
    usual = [most_frequent(labels[:number]) for number in range(1, size)]
    np.testing.assert_array_equal(rate["predicted"], usual)
    assert rate["classified"].all() and rate["cumulative"][-1] > 0.2
    # the second time round every class has its name
    twice = mcoem.predict_then_learn(
        em, np.tile(theta["means"], 2), np.tile(labels, 2), e_step=Certain(), **QUIET
    )
    late = twice.sel(observation=slice(size + 1, None))
    np.testing.assert_array_equal(late["predicted"], late["actual"])


def test_labels_may_be_renamed_and_reordered(mixture, larger, rng):
    stream, labels = curves(rng, 30)
    renamed = {"left": 7, "right": 3}
    first = mcoem.predict_then_learn(
        {"left": unwarped(larger), "right": unwarped(mixture)},
        stream,
        labels,
        e_step=mcoem.esteps.FixedLatents(),
        **QUIET,
    )
    second = mcoem.predict_then_learn(
        {3: unwarped(mixture), 7: unwarped(larger)},
        stream,
        [renamed[label] for label in labels],
        e_step=mcoem.esteps.FixedLatents(),
        **QUIET,
    )
    values, names = toy_stream(rng)
    other = {"low": "z", "middle": "y", "high": "x"}
    third, fourth = (
        mcoem.predict_then_learn(toy(), values, each, e_step=Weighing(), **QUIET)
        for each in (names, [other[name] for name in names])
    )
    for one, two, mapping in ((first, second, renamed), (third, fourth, other)):
        there = [mapping[label] for label in one["predicted"].values]
        np.testing.assert_array_equal(there, two["predicted"])
        apart = ["predicted", "actual", "seconds"]
        xr.testing.assert_identical(one.drop_vars(apart), two.drop_vars(apart))


def test_records_and_labels_are_read_in_turn(rng):
    values, labels = toy_stream(rng, 30)
    em, read = toy(), []

    def recorded(what, source):
        for index, each in enumerate(source):
            read.append((what, index, em.n_seen))
            yield each

    found = mcoem.predict_then_learn(
        em, recorded("value", values), recorded("label", labels), e_step=Weighing(), **QUIET
    )
    # each record is read when those before it are learned, its label after it
    assert read == [(what, i, i) for i in range(30) for what in ("value", "label")]
    whole = mcoem.predict_then_learn(toy(), values, labels, e_step=Weighing(), **QUIET)
    xr.testing.assert_identical(found.drop_vars("seconds"), whole.drop_vars("seconds"))


def test_nothing_is_compiled_along_the_way(mixture, rng, monkeypatch):
    stream, labels = curves(rng, 20)
    compiled = []
    compile_once = mcoem.esteps.FixedLatents.compile

    def counted(self, family):
        compiled.append(family.n_classes)
        return compile_once(self, family)

    monkeypatch.setattr(mcoem.esteps.FixedLatents, "compile", counted)
    one, two = (mixture.with_classes(n_classes) for n_classes in (1, 2))
    learners = {"left": unwarped(two), "right": unwarped(one)}
    before = []

    def watched():
        for curve in stream:
            before.append(len(compiled))
            yield curve

    mcoem.predict_then_learn(
        learners, watched(), labels, e_step=mcoem.esteps.FixedLatents(), **QUIET
    )
    # the two that learn and the one that classifies, before the first record
    assert sorted(compiled) == [1, 2, 3] and before == [3] * 20


def test_some_observations_are_classified_and_all_learned(rng):
    values, labels = toy_stream(rng)
    e_step = Weighing(noise=2.0)
    all_of_them, em = toy(), toy()
    whole = mcoem.predict_then_learn(all_of_them, values, labels, e_step=e_step, **QUIET)
    some = mcoem.predict_then_learn(em, values, labels, e_step=e_step, every=3, **QUIET)
    np.testing.assert_array_equal(some["observation"], np.arange(3, 81, 3))
    same = whole.sel(observation=some["observation"])
    for name in ("predicted", "actual", "classified"):
        np.testing.assert_array_equal(some[name], same[name])
    wrong = some["predicted"] != some["actual"]
    np.testing.assert_allclose(some["cumulative"][-1], wrong.mean())
    assert some.attrs["every"] == 3
    assert_same(em, all_of_them)


def test_seconds_are_those_of_learning(rng):
    values, labels = toy_stream(rng, 40)
    em = toy()
    rate = mcoem.predict_then_learn(em, values, labels, e_step=Weighing(), **QUIET)
    seconds = rate["seconds"].values
    assert (np.diff(seconds) > 0).all() and seconds[0] > 0
    # the start, and what comes with a step, are no part of a step's own time
    steps = np.nancumsum(em.history["observations"]["seconds"].values)
    assert (seconds[10:] >= steps[10:-1]).all()


class Slow(Weighing):
    """Its first call takes half a second, as where functions are compiled when they are called."""

    def compile(self, family):
        return CompiledSlow(family, 0.0)


class CompiledSlow(CompiledWeighing):
    calls: ClassVar[list] = []

    def __call__(self, *given, **options):
        if not self.calls:
            sleep(0.5)
        self.calls.append(given)
        return super().__call__(*given, **options)


def test_compiling_at_the_first_call_is_no_learning(rng):
    values, labels = toy_stream(rng, 20)
    em = toy(e_step=Slow())
    rate = mcoem.predict_then_learn(em, values, labels, e_step=Weighing(), **QUIET)
    assert rate["seconds"][-1] < 0.5 and CompiledSlow.calls
    assert_same(em, toy().partial_fit(values))


def test_labels_of_any_kind(tmp_path, rng):
    values, labels = toy_stream(rng, 30)
    plain = mcoem.predict_then_learn(toy(), values, labels, e_step=Weighing(), **QUIET)
    kinds = {
        "list": labels.tolist(),
        "data array": xr.DataArray(labels, dims="n"),
        "tuple": [(label, 1) for label in labels.tolist()],
        "mixed": [0 if label == "low" else label for label in labels.tolist()],
    }
    for kind, given in kinds.items():
        found = mcoem.predict_then_learn(toy(), values, given, e_step=Weighing(), **QUIET)
        np.testing.assert_array_equal(found["cumulative"], plain["cumulative"], err_msg=kind)
    assert found["predicted"].dtype == object
    plain.to_netcdf(tmp_path / "rate.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "rate.nc", engine="h5netcdf") as read:
        np.testing.assert_array_equal(read["predicted"], plain["predicted"])
        collection = mcoem.plot_error_rate(read, x="seconds", backend="none")
    line = collection.viz["recent"]["error_rate"].item()
    np.testing.assert_array_equal(line["x"], plain["seconds"])


def test_passes_over_both_go_together(rng):
    values, labels = toy_stream(rng, 20)
    passes = (mcoem.Passes(each, 2, random_seed=3) for each in (values, labels))
    found = mcoem.predict_then_learn(toy(), *passes, e_step=Weighing(), **QUIET)
    pairs = set(zip(values, labels, strict=True))
    order = list(mcoem.Passes(values, 2, random_seed=3))
    assert set(zip(order[1:], found["actual"].values, strict=True)) <= pairs


def test_what_was_held_before_the_call_names_nothing(rng):
    values, labels = toy_stream(rng, 60)
    em = toy(n_start=15)
    em.partial_fit(values[:12])
    found = mcoem.predict_then_learn(em, values[12:], labels[12:], e_step=Weighing(), **QUIET)
    # three more make the start; until then there is no mixture to ask
    np.testing.assert_array_equal(found["classified"], np.arange(2, 49) > 3)
    assert set(found["predicted"].values) <= set(labels)
    weights = em.history["observations"]["class_weight"].values
    names = np.array(mcoem.majority_labels(weights[12:-1], labels[12:-1]))
    theta = toy(n_start=15).partial_fit(values[:-1]).parameters
    last = em.family.probabilities(em.family.encode(values[-1]), em.family.check_parameters(theta))
    sums = {name: last[names == name].sum() for name in names}
    assert found["predicted"].values[-1] == max(sums, key=sums.get)


def test_drivers_that_know_are_asked_at_once(mixture, rng):
    stream, labels = curves(rng, 60, noise=0.2)
    learners = {name: unwarped(mixture) for name in ("left", "right")}
    for name, em in learners.items():
        em.partial_fit(stream[:50][labels[:50] == name])
    rate = mcoem.predict_then_learn(
        learners, stream[50:], labels[50:], e_step=mcoem.esteps.FixedLatents(), **QUIET
    )
    np.testing.assert_array_equal(rate["observation"], np.arange(1, 11))
    assert rate["classified"].all()
    # while one holds, the label that was seen most often stands in
    learners["left"] = unwarped(mixture, n_start=30).partial_fit(stream[:2])
    rate = mcoem.predict_then_learn(
        learners, stream[50:], labels[50:], e_step=mcoem.esteps.FixedLatents(), **QUIET
    )
    assert not rate["classified"].any() and (rate["predicted"] == "right").all()


def test_what_is_held_has_no_part(mixture, rng):
    # four with their peak on the left, then two with theirs on the right
    peaks = np.array([-0.3] * 4 + [0.9] * 2)[:, None]
    before = np.exp(-((POINTS - peaks) ** 2) / 0.3)
    stream, _ = curves(rng, 100)
    every_step = {"update_schedule": lambda n: True, "batch_size": 4}

    def fed(size):
        start = {"parameters": mixture.parameters} | every_step
        return unwarped(mixture, **start).partial_fit(before[:size])

    theta = fed(4).parameters
    theta["templates"] = theta["templates"][:, ::-1]
    # one holds two of the six that it saw, the other all that come
    held = unwarped(mixture, parameters=theta, batch_size=1000)
    learners = {"held": held, "learned": fed(6)}
    e_step = mcoem.esteps.FixedLatents()
    rate = mcoem.predict_then_learn(learners, stream, ["held"] * 100, e_step=e_step, **QUIET)
    assert rate["classified"].all()

    def predicted(size):
        return mcoem.Classifier(
            mixture, {"held": theta, "learned": fed(size).parameters}, e_step=e_step, **QUIET
        ).predict(stream)

    np.testing.assert_array_equal(rate["predicted"], predicted(4))
    # what is held would tell
    assert (rate["predicted"].values != predicted(6)).any()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_records_that_are_refused(on_error, rng):
    values, labels = toy_stream(rng, 40)
    spoilt = values.copy()
    spoilt[[4, 30]] = np.nan
    em = toy(on_error=on_error)
    if on_error == "raise":
        with pytest.raises(ValueError, match=r"observation .* was refused") as caught:
            mcoem.predict_then_learn(em, spoilt, labels, e_step=Weighing(), **QUIET)
        assert caught.value.__notes__ == [
            "It came up at observation 4 of this stream, counted from 0."
        ]
        assert em.n_seen == 4
        return
    found = mcoem.predict_then_learn(em, spoilt, labels, e_step=Weighing(), **QUIET)
    numbers = np.delete(np.arange(1, 41), [4, 30])[1:]
    np.testing.assert_array_equal(found["observation"], numbers)
    np.testing.assert_array_equal(found["actual"], labels[numbers - 1])
    kept = np.delete(np.arange(40), [4, 30])
    clean = mcoem.predict_then_learn(toy(), values[kept], labels[kept], e_step=Weighing(), **QUIET)
    np.testing.assert_array_equal(found["predicted"], clean["predicted"])


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_records_that_cannot_be_read(on_error, rng):
    values, labels = toy_stream(rng, 40)
    em, source = toy(on_error=on_error), Disk(values, [4, 30])
    if on_error == "raise":
        with pytest.raises(OSError, match="sector 4"):
            mcoem.predict_then_learn(em, source, labels, e_step=Weighing(), **QUIET)
        assert em.n_seen == 4
        return
    found = mcoem.predict_then_learn(em, source, labels, e_step=Weighing(), **QUIET)
    kept = np.delete(np.arange(40), [4, 30])
    clean = mcoem.predict_then_learn(toy(), values[kept], labels[kept], e_step=Weighing(), **QUIET)
    np.testing.assert_array_equal(found["predicted"], clean["predicted"])
    assert set(em.run.history.skipped) == {4, 30}


def test_a_source_that_learns_too_is_refused(rng):
    values, labels = toy_stream(rng, 20)
    em = toy()

    def source():
        for number, value in enumerate(values):
            if number == 5:
                em.partial_fit([0.3])
            yield value

    with pytest.raises(RuntimeError, match=r"partial_fit"):
        mcoem.predict_then_learn(em, source(), labels, e_step=Weighing(), **QUIET)
    assert em.n_seen == 5


class Failing(Weighing):
    """Cannot learn one value."""

    def compile(self, family):
        return CompiledFailing(family, 0.0)


class CompiledFailing(CompiledWeighing):
    def __call__(self, data, *rest, **options):
        if data["value"] == 0.125:
            raise FloatingPointError("not this one")
        return super().__call__(data, *rest, **options)


@pytest.mark.parametrize("at", [3, 30])
@pytest.mark.parametrize("settings", [{"parameters": THETA, "batch_size": 4}, {"n_start": 10}])
def test_a_record_that_cannot_be_learned_names_nothing(at, settings, rng):
    values, labels = toy_stream(rng, 40)
    values[at] = 0.125
    changed = labels.copy()
    changed[at] = "low" if labels[at] != "low" else "high"
    found, other = (
        mcoem.predict_then_learn(
            toy(on_error="skip", e_step=Failing(), **settings),
            values,
            given,
            e_step=Weighing(),
            **QUIET,
        )
        for given in (labels, changed)
    )
    # it was predicted before that was known
    assert at + 1 in found["observation"]
    late = slice(12, None)
    np.testing.assert_array_equal(
        found["predicted"].sel(observation=late), other["predicted"].sel(observation=late)
    )


def test_a_record_held_before_that_cannot_be_learned_names_nothing(rng):
    values, labels = toy_stream(rng, 40)
    settings = {"parameters": THETA, "batch_size": 2, "on_error": "skip", "e_step": Failing()}
    found, other = toy(**settings).partial_fit([0.125]), toy(**settings)
    rates = [
        mcoem.predict_then_learn(em, values, labels, e_step=Weighing(), **QUIET)
        for em in (found, other)
    ]
    assert set(found.run.history.skipped) == {0}
    late = slice(4, None)
    np.testing.assert_array_equal(*(rate["predicted"].sel(observation=late) for rate in rates))
    assert len(set(rates[0]["predicted"].values)) > 1


@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_record_of_the_start_that_cannot_be_learned_changes_no_later_prediction(at, rng):
    """It stays in the start, and labels go with those that are learned."""
    values, labels = toy_stream(rng, 60)
    settings = {"on_error": "skip", "e_step": Failing(), "random_seed": 1}

    def late(values, labels, **start):
        found = mcoem.predict_then_learn(
            toy(**settings, **start), values, labels, e_step=Weighing(), **QUIET
        )
        return found["predicted"].values[-40:]

    spoilt = np.insert(values, at, 0.125), np.insert(labels, at, labels[at])
    generator = np.random.default_rng(np.random.SeedSequence(1, spawn_key=(0,)))
    start = toy().family.initialize(list(spoilt[0][:10]), generator, "kmeans")
    clean = late(values, labels, parameters=start)
    np.testing.assert_array_equal(late(*spoilt, n_start=10), clean)
    assert len(set(clean)) > 1


def test_lengths_that_differ(rng):
    values, labels = toy_stream(rng, 12)
    em = toy()
    for given in (labels[:5], np.append(labels, "low")):
        with pytest.raises(ValueError, match=f"labels: got {len(given)} labels for 12 obs"):
            mcoem.predict_then_learn(em, values, given, e_step=Weighing(), **QUIET)
    assert em.n_seen == 0
    with pytest.raises(ValueError, match="labels: there are 5, and more observations"):
        mcoem.predict_then_learn(em, values, iter(labels[:5]), e_step=Weighing(), **QUIET)
    assert em.n_seen == 5
    with pytest.raises(ValueError, match="labels: there are more than the 12 observations"):
        mcoem.predict_then_learn(
            em, iter(values), np.append(labels, "low"), e_step=Weighing(), **QUIET
        )
    assert em.n_seen == 17
    with pytest.raises(ValueError, match="observations: got none"):
        mcoem.predict_then_learn(em, [], [], e_step=Weighing(), **QUIET)
    for every, n in ((1, 1), (8, 7)):
        with pytest.raises(ValueError, match=f"of {n}, which are .* every is {every}"):
            mcoem.predict_then_learn(
                em, values[:n], labels[:n], e_step=Weighing(), every=every, **QUIET
            )


def test_labels_that_make_no_sense(mixture, rng):
    stream, labels = curves(rng, 8)
    learners = {name: unwarped(mixture) for name in ("left", "right")}
    wrong = labels.astype("<U6").tolist()
    wrong[5] = "up"
    message = r"observation 5 \(counted from 0\) has label 'up', and learners have \['left', 'rig"
    with pytest.raises(ValueError, match=message):
        mcoem.predict_then_learn(
            learners, stream, wrong, e_step=mcoem.esteps.FixedLatents(), **QUIET
        )
    assert not any(em.n_seen for em in learners.values())
    with pytest.raises(ValueError, match=message):
        mcoem.predict_then_learn(
            learners, stream, iter(wrong), e_step=mcoem.esteps.FixedLatents(), **QUIET
        )
    assert sum(em.n_seen for em in learners.values()) == 5
    for given, kind, message in (
        ("lr", TypeError, "labels: got str"),
        (3, TypeError, "labels: got int"),
        (np.zeros((2, 2)), TypeError, r"observation 0 .* array.* cannot be hashed"),
        ([["a"], ["b"]], TypeError, r"observation 0 .* \['a'\], which cannot be hashed"),
        ([1.0, np.nan], ValueError, "observation 1 .* has nan"),
        ([None, 1], ValueError, "observation 0 .* has None"),
    ):
        with pytest.raises(kind, match=message):
            mcoem.predict_then_learn(toy(), [1.0, 2.0], given, e_step=Weighing(), **QUIET)


def test_drivers_that_make_no_classifier(mixture, rng):
    em, stream = unwarped(mixture), np.zeros((2, 6))
    other = mcoem.TemplateMixture(
        POINTS,
        mcoem.GaussianBasis.regular([POINTS], bandwidth=0.5),
        mcoem.DisplacementField([[0.0]], width=0.8),
        n_classes=1,
    )
    for learners, kind, message in (
        (mixture, TypeError, "learners: got TemplateMixture; give an OnlineEM"),
        ({}, ValueError, "learners: got no label"),
        ({0: em, 1: mixture}, TypeError, "learners: of label 1 is a TemplateMixture"),
        ({0: em, 1: toy()}, TypeError, "learners: of label 1 learns a NormalMixture"),
        ({0: em, 1: em}, ValueError, "learners: one driver has several labels"),
        ({0: em, 1: unwarped(other)}, ValueError, r"of label 1 differs .* in \['basis'\]"),
    ):
        with pytest.raises(kind, match=message):
            mcoem.predict_then_learn(learners, stream, [0, 1], **QUIET)
    for options, message in (
        ({"every": 0}, "every: got 0"),
        ({"every": True}, "every: got True"),
        ({"window": 0}, "window: got 0"),
        ({"draws": 0}, "draws is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            mcoem.predict_then_learn({0: em}, stream, [0, 0], **options, **QUIET)
    with pytest.raises(TypeError, match="gives no class probabilities"):
        mcoem.predict_then_learn(toy(), [1.0, 2.0], [0, 1], e_step=mcoem.esteps.Exact(), **QUIET)
    assert em.n_seen == 0


def test_mixtures_may_differ_in_what_learning_alone_uses(mixture, rng):
    stream, labels = curves(rng, 20)
    learners = {
        "left": unwarped(mixture.with_classes(2, noise="class")),
        "right": unwarped(mixture),
    }
    found = mcoem.predict_then_learn(
        learners, stream, labels, e_step=mcoem.esteps.FixedLatents(), **QUIET
    )
    assert found["classified"].any()


def test_the_bar_counts_observations(rng, capsys):
    values, labels = toy_stream(rng, 15)
    mcoem.predict_then_learn(toy(), values, labels, e_step=Weighing())
    told = capsys.readouterr().out
    assert "Predicted, learned" in told and "15" in told


def test_learned_parameters_leave_out_what_is_held(rng):
    values = mixture_stream(rng, 10)
    settings = {"n_start": 3, "batch_size": 4}
    em = toy(**settings)
    assert em.learned_parameters is None
    assert em.partial_fit(values[:2]).learned_parameters is None
    em.partial_fit(values[2:6])
    whole = toy(**settings).partial_fit(values[:4])
    xr.testing.assert_identical(em.learned_parameters, whole.learned_parameters)
    xr.testing.assert_identical(em.learned_parameters, whole.parameters)
    assert not em.learned_parameters.identical(em.parameters)
    assert_same(em, toy(**settings).partial_fit(values[:6]))


def test_a_callback_has_the_record_of_each_observation(rng):
    values, records = mixture_stream(rng, 15), []
    em = toy(batch_size=2, callbacks=[records.extend]).partial_fit(values)
    # one of fifteen is held
    assert [record.number for record in records] == list(range(1, 15))
    found = np.array([record.class_weight for record in records])
    np.testing.assert_array_equal(found, em.history["observations"]["class_weight"])
    assert_same(em, toy(batch_size=2).partial_fit(values))


def test_runs_call_their_own_callbacks_and_one_ends_the_stream(rng):
    values, labels = toy_stream(rng)
    weighing = {"e_step": Weighing(), **QUIET}
    called = []
    em = toy(callbacks=[called.append])
    rate = mcoem.predict_then_learn(em, values, labels, **weighing)
    assert [update[0].number for update in called] == list(range(1, 81))
    assert {update.driver for update in called} == {em}

    def stop(update):
        if update[0].number == 30:
            raise StopIteration

    run = toy(callbacks=[stop])
    short = mcoem.predict_then_learn(run, values, labels, **weighing)
    assert run.position == 30
    assert_same(run, toy().partial_fit(values[:30]))
    begun = rate.isel(observation=slice(short.sizes["observation"]))
    assert begun["observation"][-1] == 30
    for name in ("predicted", "actual", "cumulative"):
        np.testing.assert_array_equal(short[name], begun[name])


def test_preparing_a_run_changes_nothing(rng):
    values = mixture_stream(rng, 15)
    em = toy().prepare()
    em.prepare(values[0]).partial_fit(values[:12]).prepare(values[3])
    assert_same(em.partial_fit(values[12:]), toy().partial_fit(values))


@pytest.mark.parametrize("progressbar", [True, False])
def test_what_is_compiled_first_is_told_where_a_bar_is_shown(rng, progressbar):
    told = []

    class Told(Weighing):
        def compile(self, family):
            told.append(messages._is_told.get())
            return super().compile(family)

    em, (values, labels) = toy(e_step=Told(), progressbar=progressbar), toy_stream(rng, 20)
    mcoem.predict_then_learn(em, values, labels, e_step=Told(), progressbar=progressbar)
    assert told == [progressbar] * 2
