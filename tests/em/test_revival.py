"""Empty classes that get half of the class whose observations fit worst."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.revival import Revival
from tests.helpers.toy_families import NormalMixture
from tests.helpers.toy_runs import assert_same, driver


@dataclass(frozen=True)
class Judged:
    """The exact E-step, with the log-density of the value as its evidence."""

    silent: bool = False

    def compile(self, family):
        inner, silent = Exact().compile(family), self.silent

        class Compiled:
            initial_state = staticmethod(inner.initial_state)

            def __call__(self, data, parameters, *arguments, **options):
                found = inner(data, parameters, *arguments, **options)
                variance = parameters["noise_variance"]
                away = (data["value"] - parameters["means"]) ** 2
                density = parameters["weights"] * np.exp(-0.5 * away / variance)
                evidence = np.log(density.sum() / np.sqrt(2 * np.pi * variance))
                return found if silent else replace(found, log_evidence=float(evidence))

        return Compiled()


def result(weight, value, log_evidence):
    weight = np.array(weight, dtype=float)
    statistics = {
        "class_weight": weight,
        "value": weight * value,
        "square": weight * value**2,
    }
    return EStepResult(statistics, log_evidence=log_evidence)


RUNNING = {
    "class_weight": np.array([0.5, 0.49, 0.01]),
    "value": np.array([1.0, 2.0, 0.03]),
    "square": np.array([3.0, 9.0, 0.1]),
}
RECORD = {
    "class_weight": np.array([0.5, 0.49, 0.01]),
    "log_evidence": np.array([-1.0, -2.0, -0.01]),  # the second class fits worst
    "last": np.zeros(3, dtype=np.int64),
}


def after(results, n_learned=100, record=RECORD, **settings):
    revival = Revival(**({"wait": 10} | settings))
    return revival.after(RUNNING, record, results, gain=1e-9, n_learned=n_learned)


def test_mass_and_statistics_are_kept_and_the_observation_has_its_part():
    found = after([result([0.1, 0.8, 0.1], 7.0, -9.0)], novelty=0.25)
    assert found.classes == ((2, 1),)
    for name in ("class_weight",):
        np.testing.assert_allclose(found.statistics[name].sum(), RUNNING[name].sum())
    np.testing.assert_allclose(found.statistics["class_weight"], [0.5, 0.245, 0.255])
    # half of the donor, a quarter of that like the observation, beside what there was
    np.testing.assert_allclose(
        found.statistics["value"], [1.0, 1.0, 0.03 + 0.75 * 1.0 + 0.25 * 0.245 * 7.0]
    )
    np.testing.assert_array_equal(found.record["last"], [0, 100, 100])
    # what was given is as it was
    assert RUNNING["class_weight"].tolist() == [0.5, 0.49, 0.01]
    assert RECORD["last"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("results", "options"),
    [
        ([result([0.8, 0.1, 0.1], 7.0, -9.0)], {}),  # of another class than the donor
        ([result([0.1, 0.8, 0.1], 7.0, -1.0)], {}),  # fits better than its like
        ([result([0.1, 0.8, 0.1], 7.0, np.nan)], {}),  # nobody knows how well it fits
        ([result([0.1, 0.8, 0.1], 7.0, -9.0)], {"n_learned": 29}),  # too early
        ([result([0.1, 0.8, 0.1], 7.0, -9.0)], {"share": 0.01}),  # not empty
        ([result([0.1, 0.8, 0.1], 7.0, -9.0)], {"record": RECORD | {"last": np.array([0, 80, 0])}}),
    ],
)
def test_otherwise_nothing_happens(results, options):
    found = after(results, **options)
    assert found.classes == ()
    for name, value in RUNNING.items():
        np.testing.assert_array_equal(found.statistics[name], value)


def test_of_a_step_each_class_is_touched_once():
    worse = [result([0.1, 0.8, 0.1], value, -9.0) for value in (7.0, 8.0, 9.0)]
    assert after(worse).classes == ((2, 1),)


def test_a_lost_class_finds_its_observations(rng):
    """Three classes of values, two of them explained by one class, and a class far from all."""
    centers = np.array([-6.0, 0.0, 6.0])
    stream = rng.choice(centers, size=600) + 0.5 * rng.standard_normal(600)
    theta = {
        "weights": np.array([0.3, 0.6, 0.1]),
        "means": np.array([-6.0, 3.0, 60.0]),
        "noise_variance": np.array(4.0),
    }

    def learned(**options):
        settings = {"parameters": theta, "e_step": Judged(), "random_seed": 1} | options
        return OnlineEM(NormalMixture(), progressbar=False, **settings).partial_fit(stream)

    plain, revived = learned(), learned(revival=Revival())
    assert plain.parameters["weights"].values[2] < 1e-6
    np.testing.assert_allclose(np.sort(revived.parameters["means"].values), centers, atol=0.3)
    assert (revived.parameters["weights"].values > 0.25).all()
    names = [str(name) for name in revived.history["steps"]["trouble"].values]
    assert any(name.startswith("class 2 was empty and has half of class") for name in names)
    # an E-step without evidence revives nothing
    silent = learned(revival=Revival(), e_step=Judged(silent=True))
    np.testing.assert_array_equal(silent.parameters["means"], plain.parameters["means"])
    names = [str(name) for name in silent.history["steps"]["trouble"].values]
    assert "no evidence from the E-step, so no class can be revived" in names


def test_where_no_class_is_empty_nothing_changes(rng):
    stream = rng.choice([-3.0, 0.0, 2.5], size=200, p=[0.5, 0.3, 0.2]) + rng.standard_normal(200)
    plain = driver(NormalMixture(), e_step=Judged()).partial_fit(stream)
    watched = driver(NormalMixture(), e_step=Judged(), revival=Revival()).partial_fit(stream)
    assert_same(watched, plain)


@pytest.mark.parametrize("cut", [20, 45, 70])
def test_a_run_goes_on_over_a_revival(rng, tmp_path, cut):
    stream = rng.choice([-6.0, 0.0, 6.0], size=120) + 0.5 * rng.standard_normal(120)
    theta = {
        "weights": np.array([0.98, 0.01, 0.01]),
        "means": np.array([0.0, 60.0, -60.0]),
        "noise_variance": np.array(25.0),
    }
    options = {"parameters": theta, "e_step": Judged(), "revival": Revival(wait=8), "batch_size": 2}
    whole = driver(NormalMixture(), **options).partial_fit(stream)
    first = driver(NormalMixture(), **options).partial_fit(stream[:cut])
    first.save(tmp_path / "run.nc")
    em = OnlineEM.load(tmp_path / "run.nc", NormalMixture(), e_step=Judged(), progressbar=False)
    assert_same(em.partial_fit(stream, skip=em.position), whole)
    assert any("half of" in str(name) for name in whole.history["steps"]["trouble"].values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"share": 0.0}, r"share: got 0\.0; give a number between 0 and 1"),
        ({"novelty": 1.0}, r"novelty: got 1\.0; give"),
        ({"wait": 0}, "wait: got 0; give a whole number from 1"),
    ],
)
def test_what_is_no_revival_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Revival(**arguments)
    with pytest.raises(TypeError, match="revival: got True; give a Revival, or None"):
        driver(NormalMixture(), revival=True)
