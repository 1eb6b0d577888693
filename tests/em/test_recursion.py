"""What the recursion computes: against batch statistics and batch EM."""

from __future__ import annotations

import numpy as np
import pytest
import threadpoolctl

from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.family import Family
from pymc_mcoem.em.schedules import StepSize, UpdateSchedule
from tests.helpers.toy_families import Noisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import THETA
from tests.helpers.toy_runs import driver as any_driver


@pytest.fixture
def stream(rng):
    return mixture_stream(rng, 130)


def driver(family, **settings):
    return any_driver(family, **({"e_step": Exact()} | settings))


def arrays(dataset):
    return {str(name): dataset[name].values for name in dataset.data_vars}


def test_equals_batch_statistics_at_every_prefix(family, stream):
    em = driver(
        family,
        parameters=THETA,
        step_size=StepSize(exponent=1),
        update_schedule=UpdateSchedule.never(),
    )
    for n, value in enumerate(stream, start=1):
        em.partial_fit(value)
        state = em.run.state
        batch = family.batch(stream[:n], THETA)
        for name, expected in batch.items():
            np.testing.assert_allclose(state.statistics[name], expected, rtol=1e-11, atol=1e-13)
        assert state.effective_size == pytest.approx(n)
        # Reading answers with the M-step of these, though none was due: that is batch EM.
        if n % 30 == 0:
            expected = family.maximize(batch, effective_size=n)
            for name, found in arrays(em.parameters).items():
                np.testing.assert_allclose(found, expected[name], rtol=1e-9)


@pytest.mark.parametrize("batch_size", [2, 7])
def test_mini_batches_equal_batch_statistics(family, stream, batch_size):
    em = driver(
        family,
        parameters=THETA,
        batch_size=batch_size,
        step_size=StepSize(exponent=1),
        update_schedule=UpdateSchedule.never(),
    )
    em.partial_fit(stream)
    whole = len(stream) // batch_size * batch_size
    state = em.run.state
    assert (state.n_learned, state.n_seen) == (whole, len(stream))
    assert state.effective_size == pytest.approx(whole)
    for name, expected in family.batch(stream[:whole], THETA).items():
        np.testing.assert_allclose(state.statistics[name], expected, rtol=1e-11, atol=1e-13)


def test_repeated_passes_land_at_batch_em(family, rng):
    values = mixture_stream(rng, 200)
    point = {"weights": np.full(3, 1 / 3), "means": np.array([-3.0, 0.0, 3.0])}
    point["noise_variance"] = np.array(1.0)
    for _ in range(4000):
        # The toy's prior is worth 1/n*: none in an endless stream.
        point = family.maximize(family.batch(values, point), effective_size=np.inf)
    em = driver(family, parameters=THETA, average_from=2000)
    for _ in range(30):
        em.partial_fit(rng.permutation(values))
    for name, found in arrays(em.parameters).items():
        np.testing.assert_allclose(found, point[name], atol=0.03)
    # The last parameters swing around that point with the gain.
    assert not np.allclose(em.last_parameters["means"], em.parameters["means"], atol=1e-6)


def test_average_is_the_mean_of_the_path(family, stream):
    em = driver(family, parameters=THETA, average_from=40)
    em.partial_fit(stream[:39])
    assert em.parameters.identical(em.last_parameters)
    em.partial_fit(stream[39:])
    path = em.history["steps"].to_dataset().sel(step=slice(40, None))
    for name, found in arrays(em.parameters).items():
        np.testing.assert_allclose(found, path[name].mean("step"), rtol=1e-12)
    np.testing.assert_array_equal(em.last_parameters["means"], path["means"].isel(step=-1))
    assert float(em.parameters["weights"].sum()) == pytest.approx(1)


def test_average_without_any_update_holds_the_maximized_last_term(family, stream):
    em = driver(family, parameters=THETA, average_from=1, update_schedule=UpdateSchedule.never())
    em.partial_fit(stream[:10])
    last = arrays(em.last_parameters)
    for name, found in arrays(em.parameters).items():
        np.testing.assert_allclose(found, (9 * THETA[name] + last[name]) / 10, rtol=1e-12)


def test_a_class_without_mass_keeps_its_rows(family, rng):
    far = THETA | {"means": np.array([-1.0, 1.0, 500.0])}
    em = driver(family, parameters=far, update_schedule=UpdateSchedule([5]))
    em.partial_fit(rng.normal(size=100))
    found = em.parameters
    assert float(found["means"][2]) == 500.0
    assert float(found["weights"][2]) < 1e-6
    assert (found["means"].values[:2] != [-1.0, 1.0]).all()
    path = em.history["steps"]
    assert path["waiting"].values[-1] == 1
    # It is a trouble only once 25 observations for each class have gone by.
    counts = path["troubles"].sel(trouble="class 2 not ready kept its parameters").values
    assert counts[74] == 0 and counts[100] == 26


def test_each_observation_has_its_own_generator(family, stream):
    drawn = []

    class Listening(Noisy):
        def compile(self, family):
            compiled = super().compile(family)

            def call(data, parameters, rng, state, *, draws, tune):
                drawn.append(rng.bit_generator.seed_seq)
                return compiled(data, parameters, rng, state, draws=draws, tune=tune)

            call.initial_state = compiled.initial_state
            return call

    driver(family, parameters=THETA, e_step=Listening(), random_seed=9).partial_fit(stream[:4])
    assert [(seed.entropy, seed.spawn_key) for seed in drawn] == [(9, (n,)) for n in (1, 2, 3, 4)]


def test_start_has_generator_zero(family, stream):
    seen = []

    class Starting(NormalMixture):
        def initialize(self, observations, rng, start):
            seen.append((rng.bit_generator.seed_seq.spawn_key, start, len(observations)))
            return super().initialize(observations, rng, start)

    em = driver(Starting(), start="random", n_start=8)
    em.partial_fit(stream[:20])
    assert seen == [((0,), "random", 8)]


def test_inputs_are_not_changed(family, stream):
    given = {name: value.copy() for name, value in THETA.items()}
    values = stream.copy()
    em = driver(family, parameters=given, e_step=Noisy())
    em.partial_fit(values)
    np.testing.assert_array_equal(values, stream)
    for name, value in given.items():
        np.testing.assert_array_equal(value, THETA[name])
    em.parameters["means"][:] = 0
    assert not (em.parameters["means"] == 0).any()


def test_exact_needs_a_closed_form(stream):
    class Open(NormalMixture):
        exact = Family.exact

    with pytest.raises(TypeError, match="e_step: Exact needs a closed form, and Open has none"):
        driver(Open(), parameters=THETA).partial_fit(stream)


def test_e_steps_are_compiled_for_the_declared_model(stream):
    family = NormalMixture()
    found = []

    class Looking(Noisy):
        def compile(self, family):
            found.append(family.model["means"].get_value())
            return super().compile(family)

    for _ in range(2):
        driver(family, parameters=THETA, e_step=Looking()).partial_fit(stream)
    np.testing.assert_array_equal(found, [[-2.0, 0.0, 2.0]] * 2)
    assert not np.array_equal(family.model["means"].get_value(), found[0])


def test_numerical_work_has_one_blas_thread_and_the_stream_has_all(family, stream):
    seen = {"inside": set(), "outside": set()}

    def count(where):
        pools = threadpoolctl.threadpool_info()
        seen[where] |= {pool["num_threads"] for pool in pools if pool["user_api"] == "blas"}

    class Counting(NormalMixture):
        def exact(self, data, parameters):
            count("inside")
            return super().exact(data, parameters)

        def maximize(self, statistics, *, effective_size):
            count("inside")
            return super().maximize(statistics, effective_size=effective_size)

    def lazy():
        for value in stream[:15]:
            count("outside")
            yield value

    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        driver(Counting(), parameters=THETA).partial_fit(lazy())
    assert seen["inside"] == {1}
    if seen["outside"] == {1}:
        pytest.skip("this machine's BLAS has one thread in any case")
    assert 1 not in seen["outside"]
