"""Many observations in one call of JAX get what each gets alone, on numba.

JAX traces for seconds whatever it has not met in its process. So what is compiled is shared, and
whatever nothing depends on is the same everywhere: numbers of sweeps, and of observations that go
together, of which all chunks are full.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_mcoem as mcoem
from pymc_mcoem.em.burst import adaptation_gains
from pymc_mcoem.em.esteps.burst_calls import BurstCall
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.runs import workers
from tests.helpers.executors import AtOnce
from tests.helpers.linear_normal import LinearNormal
from tests.helpers.representatives import by_default

WALK, SWING = mcoem.moves.RandomWalk(3), mcoem.moves.Hamiltonian(2, 3)
MOVES = {"walk": WALK, "swing": SWING}
N, DRAWS, TUNE = 10, 20, 10


class Bounded(LinearNormal):
    """A linear model whose latents have no density if the first value lies beyond 50."""

    def __init__(self):
        super().__init__()
        with self.model:
            is_beyond = self.model["value"][0] > 50.0
            edge = pt.switch(is_beyond, -np.inf, 0.0 * self.model["x"].sum())
            pm.Potential("edge", edge)


@cache
def bounded():
    """Return the one family of its kind in a process."""
    return Bounded()


@cache
def small_images():
    """Return a mixture of small images, whose third class has no weight where a test says so."""
    return mcoem.TemplateMixture.for_images(
        (4, 4), n_classes=3, n_landmarks=2, priors=mcoem.TemplatePriors()
    )


def alone_and_together(settings, backend):
    """Return the E-step of settings, and whether it explains together."""
    given = {**settings, "backend": backend, **({"at_once": 2} if backend == "jax" else {})}
    return mcoem.esteps.CarlinChibBurst(**given), backend == "jax"


def generators(seed, n=N):
    return [np.random.default_rng([seed, at]) for at in range(n)]


def results(settings, backend, seed=4):
    """Return results for the observations of a linear model."""
    family = bounded()
    stream = family.draw(np.random.default_rng(3), N)
    burst, is_together = alone_and_together(settings, backend)
    e_step, theta = compiled_for(family, burst), family.declared_parameters()
    data, state = [family.encode(y) for y in stream], e_step.initial_state()
    lengths = {"draws": DRAWS, "tune": TUNE}
    if is_together:
        return e_step.run_all(data, theta, generators(seed), state, **lengths)
    return [
        e_step(each, theta, rng, state, **lengths)
        for each, rng in zip(data, generators(seed), strict=True)
    ]


def assert_alike(found, expected, rtol=1e-9, atol=1e-10):
    """Check that every field of results is the same."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert list(one.statistics) == list(other.statistics)
        for name, value in other.statistics.items():
            assert one.statistics[name].dtype == value.dtype
            np.testing.assert_allclose(one.statistics[name], value, rtol=rtol, atol=atol)
        np.testing.assert_array_equal(one.class_index, other.class_index)
        assert one.class_index.dtype == other.class_index.dtype
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-5)
        assert one.acceptance == pytest.approx(other.acceptance)
        assert one.troubles == other.troubles
        for part in ("state", "chain"):
            mine, theirs = getattr(one, part), getattr(other, part)
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                np.testing.assert_allclose(mine[name], value, rtol=rtol, atol=atol)


# templates swing
@pytest.mark.parametrize("move", by_default(MOVES, {"walk"}))
def test_observations_get_together_what_each_gets_alone(run_apart, move):
    settings = {"within_class": MOVES[move]}
    assert_alike(run_apart(results, settings, "jax"), results(settings, "numba"))


def visited(settings, backend):
    """Return results of three visits to observations, whose fits are kept from the first on."""
    family = bounded()
    stream = family.draw(np.random.default_rng(3), N)
    burst, is_together = alone_and_together(settings, backend)
    e_step, theta = compiled_for(family, burst), family.declared_parameters()
    data, chains, found = [family.encode(y) for y in stream], [{}] * N, []
    # those visited for the first time adapt at the same time as others go on
    sweeps = DRAWS + TUNE
    gains = [adaptation_gains(sweeps, TUNE if at % 2 else sweeps) for at in range(N)]
    for visit in range(3):
        refit, rngs = [visit == 0 or at % 3 == 0 for at in range(N)], generators(visit)
        if is_together:
            results = e_step.resume_all(
                data, theta, rngs, chains, gains=gains, refit=refit, keep_fit=True
            )
        else:
            results = [
                e_step.resume(
                    data[at],
                    theta,
                    rngs[at],
                    chains[at],
                    gains=gains[at],
                    refit=refit[at],
                    keep_fit=True,
                )
                for at in range(N)
            ]
        chains = [result.chain for result in results]
        found += results
    return found


def test_chains_go_on_together_as_alone(run_apart):
    settings = {"within_class": WALK}
    assert_alike(run_apart(visited, settings, "jax"), visited(settings, "numba"))


def weights(settings, backend):
    """Return class probabilities of all observations."""
    family = bounded()
    data = [family.encode(y) for y in family.draw(np.random.default_rng(3), N)]
    burst, is_together = alone_and_together(settings, backend)
    e_step, theta = compiled_for(family, burst), family.declared_parameters()
    lengths = {"draws": DRAWS, "tune": TUNE}
    if is_together:
        return e_step.class_probability_all(data, theta, generators(6), **lengths)
    return [
        e_step.class_probability(each, theta, rng, **lengths)
        for each, rng in zip(data, generators(6), strict=True)
    ]


def test_class_probabilities_are_the_same_together(run_apart):
    settings = {"within_class": WALK}
    found, expected = run_apart(weights, settings, "jax"), weights(settings, "numba")
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def explained_templates(kind, settings, backend):
    """Return what images or curves get, with missing points and a class that none can be of."""
    if kind != "curves":
        mixture, shape = small_images(), (4, 4)
        if kind == "correlated":
            steps = np.abs(np.subtract.outer(np.arange(36), np.arange(36)))
            mixture, shape = (
                mcoem.TemplateMixture.for_images((6, 6), n_classes=3, noise_correlation=0.5**steps),
                (6, 6),
            )
    else:
        grid = np.linspace(0, 1, 12)
        mixture, shape = mcoem.TemplateMixture.for_curves(grid, n_classes=3), (12,)
    rng = np.random.default_rng(6)
    theta = mixture.initialize(rng.uniform(size=(9, *shape)), rng, "random")
    theta["weights"] = np.array([0.6, 0.4, 0.0])
    observations = rng.uniform(size=(4, *shape))
    observations[:, 2:4] = np.where(rng.random((4, *shape))[:, 2:4] < 0.5, np.nan, 0.3)
    burst, is_together = alone_and_together(settings, backend)
    e_step = compiled_for(mixture, burst)
    data, state = list(map(mixture.encode, observations)), e_step.initial_state()
    if is_together:
        return e_step.run_all(data, theta, generators(8, 4), state, draws=DRAWS, tune=TUNE)
    return [
        e_step(each, theta, rng, state, draws=DRAWS, tune=TUNE)
        for each, rng in zip(data, generators(8, 4), strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "move"),
    by_default(
        [(kind, move) for kind in ("images", "curves", "correlated") for move in MOVES],
        {("images", "swing")},
    ),
)
def test_templates_get_together_what_they_get_alone(run_apart, kind, move):
    settings = {"within_class": MOVES[move]}
    found = run_apart(explained_templates, kind, settings, "jax")
    expected = explained_templates(kind, settings, "numba")
    assert_alike(found, expected, rtol=1e-6, atol=1e-7)
    assert all(result.statistics["class_weight"][2] == 0 for result in found)


def learned(settings, executor, backend):
    """Return θ of runs in mini-batches, by workers too, with a record that has no density."""
    family = bounded()
    stream = family.draw(np.random.default_rng(5), 15)
    stream[8, 0] = 60.0
    common = {
        "e_step": alone_and_together(settings, backend)[0],
        "parameters": family.declared_parameters(),
        "random_seed": 3,
        "on_error": "skip",
        "progressbar": False,
    }
    found = {}
    for by in (None, executor) if backend == "jax" else (None,):
        em = mcoem.OnlineEM(
            family,
            burst_length=mcoem.schedules.BurstLength(DRAWS, TUNE),
            update_schedule=mcoem.schedules.UpdateSchedule([4], every=2),
            batch_size=6,
            executor=AtOnce() if by == "at once" else by,
            **common,
        )
        if by == "at once":
            # what is sent goes through the wire, but a copy of the family need not be compiled
            alone = found["online", None].run.executor
            workers._made[em.run.executor._parcel.token] = alone.compiled
        found["online", by] = em.partial_fit(stream, labels=[None, 1, (0, 2)] * 5)
    saem = mcoem.SAEM(family, batch_size=6, draws=DRAWS + TUNE, refit_every=2, **common)
    found["saem", None] = saem.fit(stream, n_iterations=3)
    told = {}
    for key, driver in found.items():
        theta = {name: np.array(value) for name, value in driver.parameters.items()}
        reason = driver.history["skipped"]["reason"]
        told[key] = (
            theta,
            [int(at) for at in reason["position"]],
            [str(each) for each in reason.values],
        )
    return told


@pytest.mark.parametrize("executor", by_default(["at once", 1, 2], {"at once"}))
def test_runs_learn_in_mini_batches_what_they_learn_alone(run_apart, executor):
    """Labels and M-steps included; the record without density alone is left out, by name."""
    settings = {"within_class": WALK}
    found = run_apart(learned, settings, executor, "jax")
    expected = learned(settings, executor, "numba")
    for key, (theta, at, reasons) in expected.items():
        assert at == found[key][1] == [8]
        assert reasons == found[key][2]
        assert "the log-density is not finite for any class" in reasons[0]
        for name, value in theta.items():
            np.testing.assert_allclose(found[key][0][name], value, rtol=1e-7)
    for name, value in found["online", None][0].items():
        assert found["online", executor][0][name].tobytes() == value.tobytes()


@contextmanager
def chunks_of(e_step, size):
    """Let a compiled E-step have other chunks, of which none is compiled but for its size."""
    in_step = e_step.in_step
    before, in_step.at_once = in_step.at_once, size
    yield
    in_step.at_once = before


def in_other_ways(backend):
    """Return results in one chunk, in several, again, and in single precision."""
    family = bounded()
    data = list(map(family.encode, family.draw(np.random.default_rng(3), N)))
    theta, found = family.declared_parameters(), {}
    double, _ = alone_and_together({"within_class": WALK}, backend)
    ways = {
        "whole": (16, double),
        "chunks": (2, double),
        "single": (16, replace(double, dtype="float32")),
    }
    for name, (size, burst) in ways.items():
        e_step = compiled_for(family, burst)
        state = e_step.initial_state()
        with chunks_of(e_step, size):
            for time in ("first", "again"):
                found[name, time] = e_step.run_all(
                    data, theta, generators(4), state, draws=DRAWS, tune=TUNE
                )
    return found


def test_results_are_reproducible_and_do_not_depend_on_the_chunk(run_apart):
    found = run_apart(in_other_ways, "jax")
    for name in ("whole", "chunks", "single"):
        for one, other in zip(found[name, "first"], found[name, "again"], strict=True):
            for statistic, value in one.statistics.items():
                assert value.tobytes() == other.statistics[statistic].tobytes()
                assert value.dtype == np.float64
    assert_alike(found["chunks", "first"], found["whole", "first"], rtol=1e-12, atol=1e-12)
    # in single precision the evidence errs by a few roundings of the log-density
    double = np.array([each.log_evidence for each in found["whole", "first"]])
    single = np.array([each.log_evidence for each in found["single", "first"]])
    assert 0 < np.abs(single - double).max() < 2e-4


def learned_in_single_precision(backend):
    """Return drivers' parameters from bursts of fewer draws than latents."""
    images = np.random.default_rng(6).normal(size=(12, 4, 4))
    e_step = mcoem.esteps.CarlinChibBurst(within_class=WALK, backend=backend, dtype="float32")
    common = {"e_step": e_step, "batch_size": 6, "random_seed": 1, "progressbar": False}
    online = mcoem.OnlineEM(
        small_images(), burst_length=mcoem.schedules.BurstLength(5, 2), n_start=6, **common
    )
    saem = mcoem.SAEM(small_images(), draws=4, n_start=6, **common)
    drivers = online.partial_fit(images), saem.fit(images, n_iterations=2)
    return [{name: np.array(each.parameters[name]) for name in each.parameters} for each in drivers]


def test_drivers_learn_from_statistics_in_single_precision(run_apart):
    """Second moments of fewer draws than latents are semidefinite up to its rounding only."""
    for parameters in run_apart(learned_in_single_precision, "jax"):
        assert all(np.isfinite(value).all() for value in parameters.values())
        assert (np.linalg.norm(parameters["templates"], axis=-1) > 0).all()


def of_devices_noise(factors, backend):
    """Return statistics of many bursts of one observation with a device's noise.

    A kernel counts the pseudo-prior of the last class by each factor: all but 1 break it.
    """
    from pymc_mcoem.carlin_chib.sweeps_jax import LockstepSweeps
    from pymc_mcoem.em.esteps.batch_jax import LockstepBursts

    class Weighed(LockstepSweeps):
        factor = np.array(1.0)

        def shared(self):
            return super().shared(), np.log(self.factor)

        def __call__(self, chains, noise, gains, fits, values, shared):
            shared, added = shared
            weighed = fits._replace(log_normalizer=fits.log_normalizer.at[:, -1].add(added))
            return super().__call__(chains, noise, gains, weighed, values, shared)

    family = bounded()
    observation, theta = family.case
    e_step = compiled_for(family, alone_and_together({"within_class": WALK}, backend)[0])
    search, starts = e_step.settings.pseudo_priors.compile_search(e_step.density, family.geometry)
    made_of = e_step.density, search, starts, WALK, family.statistics, family.observation
    bursts = LockstepBursts(*made_of, at_once=256, own_noise=False, sweeps=Weighed)
    gains = adaptation_gains(50, 10)
    values = {**theta, **family.encode(observation["value"])}
    found = []
    for factor in factors:
        Weighed.factor = np.array(factor)
        calls = [
            BurstCall(values, rng, e_step.initial_log_step, gains) for rng in generators(9, 256)
        ]
        found.append([each.statistics for each in bursts(calls, 10)])
    return found


def errors_in_standard_errors(statistics):
    """Return by how many standard errors means of statistics are off, the greatest."""
    family = bounded()
    worst = 0.0
    for name, exact in family.exact(*family.case).items():
        values = np.stack([each[name] for each in statistics])
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        worst = max(worst, float((np.abs(values.mean(axis=0) - exact) / error).max()))
    return worst


def test_the_noise_of_a_device_gives_the_posterior_and_a_broken_kernel_does_not(run_apart):
    right, broken = run_apart(of_devices_noise, [1.0, 3.0], "jax")
    assert errors_in_standard_errors(right) < 5
    assert errors_in_standard_errors(broken) > 10


def labels_and_chains(executor, backend):
    """Return class probabilities of a classifier, by workers too if any, and draws of chains."""
    mixture = small_images()
    rng = np.random.default_rng(7)
    images = rng.uniform(size=(6, 4, 4))
    theta = mixture.to_dataset(mixture.initialize(images, rng, "random"))
    e_step = alone_and_together({"within_class": SWING}, backend)[0]
    found = [
        mcoem.Classifier(
            mixture, theta, e_step=e_step, draws=DRAWS, tune=TUNE, executor=each, progressbar=False
        ).predict_proba(images)
        for each in {None: None, executor: None}
    ]
    chains = mcoem.sample_burst(
        mixture,
        images[0],
        theta,
        e_step=e_step,
        draws=DRAWS,
        tune=TUNE,
        chains=4,
        random_seed=2,
        progressbar=False,
    )
    values = {**chains["posterior"].data_vars, **chains["sample_stats"].data_vars}
    return found, {name: np.array(value) for name, value in values.items()}


@pytest.mark.parametrize("executor", by_default([None, 2], {None}))
def test_classifiers_and_chains_get_together_what_they_get_alone(run_apart, executor):
    (found, chains), (expected, alone) = (
        run_apart(labels_and_chains, executor, "jax"),
        labels_and_chains(None, "numba"),
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    assert found[-1].tobytes() == found[0].tobytes()
    assert chains.keys() == alone.keys()
    for name, value in alone.items():
        if value.dtype.kind in "fiu":
            np.testing.assert_allclose(chains[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": None},
        {"backend": "numba"},
        {"rao_blackwell": True},
        {"within_class": mcoem.moves.Independence(2)},
        {"pseudo_priors": mcoem.pseudo_priors.PriorCovariance()},
    ],
    ids=str,
)
def test_other_settings_run_observations_alone(settings):
    burst = mcoem.esteps.CarlinChibBurst(**{"backend": "jax", **settings})
    assert burst.group_size == 1
    with pytest.raises(ValueError, match="dtype: 'float32' is for calls of JAX with many"):
        mcoem.esteps.CarlinChibBurst(**{"backend": "jax", **settings, "dtype": "float32"})


def test_settings_say_how_many_go_together():
    burst = mcoem.esteps.CarlinChibBurst
    assert (burst(backend="jax").group_size, burst(backend="jax", at_once=8).group_size) == (256, 8)
    with pytest.raises(ValueError, match="at_once: got 0"):
        burst(backend="jax", at_once=0)
    with pytest.raises(ValueError, match="dtype: got 'half'; give 'float64' or 'float32'"):
        burst(dtype="half")
