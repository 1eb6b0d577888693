"""Runs that compete: the best goes on, and who wins does not depend on the rest."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_mcoem.em.competition import compete
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.runs.workers import ExecutorError
from tests.helpers.executors import AtOnce
from tests.helpers.toy_families import NormalMixture
from tests.helpers.toy_runs import assert_same

MEANS = np.array([-4.0, 0.0, 4.0])


class Judged(NormalMixture):
    """A family whose exact E-step says its evidence, and whose starts may fail."""

    fail = ()

    def initialize(self, observations, rng, start):
        # the last word of a run's seed is its number
        if self.fail and rng.bit_generator.seed_seq.entropy[-1] in self.fail:
            raise ValueError("as asked for")
        return super().initialize(observations, rng, start)


class WithEvidence(Exact):
    """The exact E-step, with the log-density of the value as its evidence."""

    def compile(self, family):
        inner = super().compile(family)

        class Compiled:
            initial_state = staticmethod(inner.initial_state)

            def __call__(self, data, parameters, *arguments, **options):
                from dataclasses import replace

                result = inner(data, parameters, *arguments, **options)
                away = data["value"] - parameters["means"]
                variance = parameters["noise_variance"]
                density = np.exp(-0.5 * away**2 / variance) / np.sqrt(2 * np.pi * variance)
                return replace(result, log_evidence=float(np.log(parameters["weights"] @ density)))

        return Compiled()


@pytest.fixture
def values(rng):
    return rng.choice(MEANS, size=120) + rng.normal(0, 0.5, size=120)


OPTIONS = {"e_step": WithEvidence(), "progressbar": False, "random_seed": 3}


def test_the_winner_is_the_run_with_most_evidence(values):
    found = compete(Judged(), values, n_runs=6, **OPTIONS)
    assert found.log_evidence.shape == (6,)
    assert found.number == np.argmax(found.log_evidence)
    assert np.ptp(found.log_evidence) > 0.1  # some starts are worse than others
    assert found.winner.n_seen == 120
    assert not found.failures
    last = found.winner.history["observations"]["log_evidence"].values[-60:]
    assert last.mean() == pytest.approx(found.log_evidence.max())
    means = np.sort(found.winner.parameters["means"].values)
    np.testing.assert_allclose(means, MEANS, atol=0.5)


def test_the_winner_is_an_ordinary_run_that_goes_on(values):
    family = Judged()
    found = compete(family, values[:80], n_runs=4, n_scored=30, **OPTIONS)
    alone = OnlineEM(
        Judged(),
        start="random",
        n_start=50,
        **(OPTIONS | {"random_seed": [3, found.number]}),
    )
    alone.partial_fit(values)
    assert_same(found.winner.partial_fit(values[80:]), alone)
    np.testing.assert_array_equal(
        family.model["means"].get_value(), found.winner.last_parameters["means"]
    )


def test_a_generator_is_read_once(values):
    found = compete(Judged(), iter(values.tolist()), n_runs=2, **OPTIONS)
    same = compete(Judged(), values, n_runs=2, **OPTIONS)
    np.testing.assert_array_equal(found.log_evidence, same.log_evidence)


def test_a_run_that_fails_drops_out(values, caplog):
    family = Judged()
    family.fail = (1,)
    with caplog.at_level("WARNING"):
        found = compete(family, values, n_runs=3, **OPTIONS)
    assert found.log_evidence[1] == -np.inf
    assert list(found.failures) == [1]
    assert "Run 1 of 3 dropped out" in caplog.text
    family = Judged()
    family.fail = (0, 1)
    with pytest.raises(RuntimeError, match="all 2 runs failed"):
        compete(family, values, n_runs=2, **OPTIONS)


def test_an_executor_that_fails_is_no_runs_fault(values):
    failures = [OSError("no socket")]

    class FailingOnce(AtOnce):
        def submit(self, *arguments, **named):
            if failures:
                raise failures.pop()
            return super().submit(*arguments, **named)

    with FailingOnce() as executor, pytest.raises(ExecutorError, match="no socket"):
        compete(Judged(), values, n_runs=2, executor=executor, **OPTIONS)


def test_an_e_step_without_evidence_is_refused(values):
    with pytest.raises(ValueError, match="reports no evidence"):
        compete(Judged(), values, n_runs=2, **(OPTIONS | {"e_step": Exact()}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_runs": 0}, "n_runs: got 0"),
        ({"n_runs": True}, "n_runs: got True"),
        ({"n_scored": 121}, "n_scored: got 121; .* 120"),
        ({"n_scored": 0}, "n_scored: got 0"),
        ({"observations": []}, "observations: got none"),
    ],
)
def test_bad_arguments_are_named(change, message, values):
    given = {"observations": values, **OPTIONS} | change
    with pytest.raises(ValueError, match=message):
        compete(Judged(), given.pop("observations"), **given)
