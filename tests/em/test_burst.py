"""The burst and its E-step: exact expectations, the step method's own draws, adaptation."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

import pymc_mcoem.density.prior_starts as prior_starts
from pymc_mcoem.carlin_chib import sweeps_numba
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.em import sums_numba
from pymc_mcoem.em.burst import Burst, WeightedStatistics, adaptation_gains
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.plain_gibbs import PlainGibbs
from pymc_mcoem.em.family import Family
from pymc_mcoem.em.online import OnlineEM
from tests.helpers.checks import LIMIT, agreement
from tests.helpers.compiled import N_MOVES, compiled, skewed_step
from tests.helpers.interpreted import interpreted
from tests.helpers.models import N_CLASSES, ScaledMixture, SkewedMixture
from tests.helpers.toy_families import NormalMixture


@pytest.fixture(scope="module", params=[SkewedMixture, ScaledMixture], ids=["skewed", "scaled"])
def case(request):
    return compiled(request.param)


@pytest.fixture(scope="module")
def skewed():
    return compiled(SkewedMixture)


def e_step_of(case, *, rao_blackwell):
    """Return the compiled E-step with or without Rao-Blackwell statistics."""
    e_step = copy(case.e_step)
    e_step.settings = replace(e_step.settings, rao_blackwell=rao_blackwell)
    return e_step


def split(case):
    """Return (observation, parameters) as a driver holds them."""
    values = case.family.values
    observation = {name: values.pop(name) for name in case.family.observation}
    return observation, values


def run(e_step, case, rng, *, draws=1000, tune=100, state=None):
    return e_step(*split(case), rng, state or e_step.initial_state(), draws=draws, tune=tune)


# -- expectations --------------------------------------------------------------------------------


@pytest.mark.parametrize("rao_blackwell", [False, True])
def test_statistics_are_the_exact_expectations(case, rng, rao_blackwell):
    e_step = e_step_of(case, rao_blackwell=rao_blackwell)
    results = [run(e_step, case, rng).statistics for _ in range(100)]
    exact = case.quadrature.statistics()
    assert set(results[0]) == set(exact)
    for name, expected in exact.items():
        values = np.array([result[name] for result in results])
        assert values.shape[1:] == expected.shape
        found = agreement(values.reshape(100, -1), expected.ravel())
        assert found.largest_z < LIMIT, name


def test_rao_blackwell_statistics_vary_less(skewed, rng):
    def spread(rao_blackwell):
        e_step = e_step_of(skewed, rao_blackwell=rao_blackwell)
        weights = [run(e_step, skewed, rng).statistics["class_weight"] for _ in range(100)]
        return np.std(weights, axis=0)

    assert (spread(True) < spread(False)).all()


def test_class_probability_is_exact(case, rng):
    values = [
        case.e_step.class_probability(*split(case), rng, draws=1000, tune=100) for _ in range(50)
    ]
    assert np.sum(values, axis=1) == pytest.approx(1.0)
    assert agreement(np.array(values), case.quadrature.class_probability).largest_z < LIMIT


def test_statistics_are_averages_over_the_kept_draws(case):
    """Against sums in NumPy over the very draws of the burst."""
    pseudo_priors = case.pseudo_priors("laplace")
    rng = np.random.default_rng(4)
    draws = case.burst(
        rng,
        pseudo_priors.draw_start(rng),
        case.burst.initial_log_step,
        pseudo_priors,
        adaptation_gains(250, 50),
        case.data,
    )
    member = draws.class_index[50:, None] == np.arange(N_CLASSES)
    plain = run(
        e_step_of(case, rao_blackwell=False), case, np.random.default_rng(4), draws=200, tune=50
    )
    np.testing.assert_array_equal(plain.class_index, draws.class_index[50:])
    np.testing.assert_allclose(plain.statistics["class_weight"], member.mean(axis=0), rtol=1e-12)
    for name, value in case.family.statistics_of(draws.position[50:]).items():
        expected = np.tensordot(member, value, axes=(0, 0)) / 200
        np.testing.assert_allclose(plain.statistics[name], expected, rtol=1e-10, atol=1e-12)
    log_weight = draws.log_weight[50:]
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    blackwell = run(
        e_step_of(case, rao_blackwell=True), case, np.random.default_rng(4), draws=200, tune=50
    )
    # Weights below 1e-9 are left out.
    np.testing.assert_allclose(blackwell.statistics["class_weight"], weight.mean(axis=0), atol=1e-8)
    for name, value in case.family.statistics_of(draws.auxiliaries[50:]).items():
        expected = np.einsum("tj,tj...->j...", weight, value) / 200
        np.testing.assert_allclose(blackwell.statistics[name], expected, atol=1e-7)
    assert plain.acceptance == blackwell.acceptance == pytest.approx(draws.acceptance[50:].mean())


def test_weighted_statistics_are_weighted_sums(case, rng):
    k, x = case.family.draw_posterior(rng, 60)
    weight = rng.uniform(size=60)
    found = case.e_step.statistics(k, x, weight, case.data)
    for j in range(N_CLASSES):
        assert found["class_weight"][j] == pytest.approx(weight[k == j].sum())
        for name, value in case.family.statistics_of(x[k == j]).items():
            expected = np.tensordot(weight[k == j], value, axes=(0, 0))
            np.testing.assert_allclose(found[name][j], expected, rtol=1e-10, atol=1e-12)


def test_a_class_without_draws_has_statistics_of_zero(case, rng):
    _, x = case.family.draw_posterior(rng, 5)
    found = case.e_step.statistics(np.ones(5, dtype=int), x, np.ones(5), case.data)
    for name, value in found.items():
        assert (value[[0, 2]] == 0).all(), name
        assert value.shape == case.quadrature.statistics()[name].shape


def test_statistics_may_depend_on_the_class(skewed, rng):
    family = copy(skewed.family)
    with family.model as model:
        center = model["center"][family.class_index]
        family.statistics = {"centered": (family.latents[0] - center) * np.ones(2)}
    k, x = family.draw_posterior(rng, 30)
    weight = rng.uniform(size=30)
    with interpreted():
        statistics = WeightedStatistics(family, skewed.e_step.density)
        found = statistics(k, x, weight, skewed.data)["centered"]
    centered = x[:, 0] - family.values["center"][k]
    expected = np.bincount(k, weights=weight * centered, minlength=N_CLASSES)
    np.testing.assert_allclose(found, np.stack([expected, expected], axis=1), rtol=1e-10)


def test_a_family_may_have_no_statistics_but_the_class_weight(skewed, rng):
    family = copy(skewed.family)
    family.statistics = {}
    k, x = family.draw_posterior(rng, 10)
    found = WeightedStatistics(family, skewed.e_step.density)(k, x, np.full(10, 0.1), skewed.data)
    assert list(found) == ["class_weight"]
    assert found["class_weight"].sum() == pytest.approx(1.0)


# -- what a driver relies on -----------------------------------------------------------------


def test_a_result_says_what_happened(case, rng):
    result = run(case.e_step, case, rng, draws=70, tune=30)
    assert result.class_index.shape == (70,)
    assert set(result.class_index) <= set(range(N_CLASSES))
    assert 0 < result.acceptance < 1
    assert result.troubles == {}
    assert set(result.state) == {"log_step"}
    evidence = np.logaddexp.reduce(case.quadrature.log_evidence)
    # Laplace's estimate: right to a fraction, and no Monte Carlo in it.
    assert result.log_evidence == pytest.approx(evidence, abs=0.5)


def test_a_chain_that_does_not_move_is_named(skewed, rng):
    state = {"log_step": np.full(N_CLASSES, 40.0)}
    result = run(skewed.e_step, skewed, rng, draws=50, tune=0, state=state)
    assert result.acceptance == 0.0
    assert result.troubles == {"chain did not move within its class": 1}


def test_parameters_without_density_are_an_error(skewed, rng):
    observation, parameters = split(skewed)
    e_step = skewed.e_step
    for noise in (np.nan, 0.0):
        wrong = parameters | {"noise": np.asarray(noise)}
        with pytest.raises(FloatingPointError, match="burst: the log-density is not finite"):
            e_step(observation, wrong, rng, e_step.initial_state(), draws=5, tune=5)
    # And the E-step is as usable as before.
    assert run(e_step, skewed, rng, draws=20, tune=5).troubles == {}


def test_the_same_generator_gives_the_same_result(case):
    first, second, third = (
        run(case.e_step, case, np.random.default_rng(seed), draws=50, tune=10) for seed in (1, 1, 2)
    )
    for name, value in first.statistics.items():
        np.testing.assert_array_equal(value, second.statistics[name])
        assert not np.array_equal(value, third.statistics[name])
    np.testing.assert_array_equal(first.state["log_step"], second.state["log_step"])


def test_observation_and_parameters_are_inputs(skewed, rng):
    """Another θ and observation, the model left as it is."""
    other = SkewedMixture()
    other.model["value"].set_value(2.5)
    other.model["weights"].set_value(np.array([0.1, 0.7, 0.2]))
    other.model["center"].set_value(np.array([0.5, 0.0, 1.5]))
    exact = compiled(SkewedMixture).quadrature.__class__(other, 1000).class_probability
    before = skewed.family.values
    values = other.values
    observation = {"value": values.pop("value")}
    e_step = skewed.e_step
    found = [
        e_step(observation, values, rng, e_step.initial_state(), draws=1000, tune=100)
        for _ in range(50)
    ]
    weights = np.array([result.statistics["class_weight"] for result in found])
    assert agreement(weights, exact).largest_z < LIMIT
    for name, value in skewed.family.values.items():
        np.testing.assert_array_equal(value, before[name])


def test_nothing_that_is_handed_in_is_changed(skewed, rng):
    observation, parameters = split(skewed)
    state = {"log_step": np.array([0.1, 0.2, 0.3])}
    for array in (*observation.values(), *parameters.values(), *state.values()):
        array.setflags(write=False)
    skewed.e_step(observation, parameters, rng, state, draws=20, tune=10)
    np.testing.assert_array_equal(state["log_step"], [0.1, 0.2, 0.3])


def compilations(*functions):
    """Return how many machine codes numba has made of compiled functions."""
    return [len(function.signatures) for function in functions]


def test_no_layout_of_an_array_compiles_anything_anew(case, rng):
    """Transposed, strided and read-only arrays, as maximizers and memory maps make them."""
    e_step = case.e_step
    functions = sweeps_numba.sweeps, sums_numba.weighted_sum
    run(e_step, case, rng, draws=20, tune=10)
    before = compilations(*functions)

    def awkward(array):
        if array.ndim == 2:
            array = np.asfortranarray(array)
        elif array.ndim == 1:
            array = np.repeat(array, 2)[::2]
        array = array[...]
        array.setflags(write=False)
        return array

    observation, parameters = (
        {name: awkward(np.asarray(value)) for name, value in part.items()} for part in split(case)
    )
    state = {"log_step": awkward(e_step.initial_state()["log_step"])}
    e_step(observation, parameters, rng, state, draws=20, tune=10)
    pseudo_priors = case.pseudo_priors("good")
    fixed = replace(pseudo_priors, scale=pseudo_priors.scale.swapaxes(1, 2).copy().swapaxes(1, 2))
    e_step.burst(
        rng,
        (0, awkward(fixed.mean[0])),
        state["log_step"],
        fixed,
        np.zeros(3),
        parameters | observation,
    )
    assert compilations(*functions) == before


# -- adaptation ----------------------------------------------------------------------------------


def test_gains_fall_in_burn_in_and_are_zero_after():
    gains = adaptation_gains(6, 4)
    np.testing.assert_allclose(gains[:4], 2 / np.sqrt([1, 2, 3, 4]))
    np.testing.assert_array_equal(gains[4:], 0.0)
    np.testing.assert_array_equal(adaptation_gains(5, 0), 0.0)


def test_step_sizes_do_not_move_after_burn_in(case):
    def log_step(draws):
        result = run(case.e_step, case, np.random.default_rng(7), draws=draws, tune=40)
        return result.state["log_step"]

    np.testing.assert_array_equal(log_step(1), log_step(300))
    assert not np.array_equal(log_step(1), case.e_step.initial_state()["log_step"])


@pytest.mark.parametrize("log_step", [-4.0, 3.0])
def test_acceptance_is_tuned_to_two_fifths(case, rng, log_step):
    """From steps far too small and far too large."""
    state = {"log_step": np.full(N_CLASSES, log_step)}
    found = [
        run(case.e_step, case, rng, draws=500, tune=1500, state=state).acceptance for _ in range(30)
    ]
    # The last step sizes scatter around the right ones, which bends the mean acceptance a little.
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - 0.4) < LIMIT * error + 0.01
    assert error < 0.01


def test_adaptation_is_handed_on(skewed):
    """A burst without tuning keeps the step sizes that it was given, and uses them."""
    accepted = {}
    for size in (-4.0, 3.0):
        state = {"log_step": np.full(N_CLASSES, size)}
        result = run(
            skewed.e_step, skewed, np.random.default_rng(0), draws=400, tune=0, state=state
        )
        np.testing.assert_array_equal(result.state["log_step"], state["log_step"])
        accepted[size] = result.acceptance
    assert accepted[-4.0] > 0.9
    assert accepted[3.0] < 0.2


# -- one kernel, two doors -------------------------------------------------------------------


def expected_draws(skewed, rng, tune, draws, start=None):
    """Return what a chain of the step method has to draw from `rng`, by the burst."""
    pseudo_priors = skewed.e_step.pseudo_priors(skewed.data, rng)
    return skewed.burst(
        rng,
        pseudo_priors.draw_start(rng) if start is None else start,
        skewed.burst.initial_log_step,
        pseudo_priors,
        adaptation_gains(tune + draws, tune),
        skewed.data,
    )


def test_the_step_method_draws_what_the_burst_draws(skewed):
    tune, draws = 60, 140
    expected = expected_draws(skewed, np.random.default_rng(11), tune, draws)
    step = skewed_step()
    step.setup_chain(np.random.default_rng(11), tune, draws)
    point = skewed.family.model.initial_point(0)
    for t in range(tune + draws):
        if t == tune:
            step.stop_tuning()
        point, (stats,) = step.step(point)
        assert point["class_index"] == expected.class_index[t]
        np.testing.assert_allclose(point["level"], expected.position[t, 0], rtol=1e-9)
        assert stats["class_acceptance"] == pytest.approx(expected.acceptance[t])
        log_weight = expected.log_weight[t] - np.logaddexp.reduce(expected.log_weight[t])
        np.testing.assert_allclose(stats["class_log_weight"], log_weight, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(step.chain.log_step, expected.log_step, rtol=1e-9)


@pytest.mark.parametrize("initvals", [None, {"class_index": 2, "level": 1.3}])
def test_pm_sample_draws_what_the_burst_draws(skewed, initvals):
    tune, draws, seed = 50, 100, 20260101
    with skewed.family.model:
        found = pm.sample(
            tune=tune,
            draws=draws,
            chains=1,
            step=skewed_step(),
            random_seed=seed,
            initvals=initvals,
            progressbar=False,
            compute_convergence_checks=False,
        )
    # As pm.sample makes the generator of a chain: one spawned for each, and one integer drawn
    # from it for the initial point.
    (rng,) = np.random.default_rng(seed).spawn(1)
    rng.integers(2**30)
    start = None if initvals is None else (2, np.array([1.3]))
    expected = expected_draws(skewed, rng, tune, draws, start)
    posterior = found["posterior"]
    np.testing.assert_array_equal(posterior["class_index"][0], expected.class_index[tune:])
    np.testing.assert_allclose(posterior["level"][0], expected.position[tune:, 0], rtol=1e-9)
    np.testing.assert_allclose(
        found["sample_stats"]["class_acceptance"][0], expected.acceptance[tune:]
    )


def test_a_burst_without_auxiliaries_draws_the_same(skewed):
    """And without a compiler: the kernel has no randomness that a back end could make its own."""
    with interpreted():
        plain = Burst(skewed.e_step.density, RandomWalk(N_MOVES))
        pseudo_priors = skewed.pseudo_priors("good")

        def draw(burst):
            return burst(
                np.random.default_rng(3),
                (0, np.array([-0.5])),
                burst.initial_log_step,
                pseudo_priors,
                adaptation_gains(40, 20),
                skewed.data,
            )

        found, expected = draw(plain), draw(skewed.burst)
    assert found.auxiliaries is None
    np.testing.assert_array_equal(found.class_index, expected.class_index)
    np.testing.assert_allclose(found.position, expected.position, rtol=1e-9)
    np.testing.assert_allclose(found.log_weight, expected.log_weight, rtol=1e-9, atol=1e-9)


# -- settings --------------------------------------------------------------------------------


def test_the_papers_settings():
    settings = CarlinChibBurst.as_in_paper()
    assert settings.pseudo_priors == PilotMoments(n_steps=100)
    assert settings.within_class == RandomWalk(n_moves=20, target_acceptance=0.4)
    changed = CarlinChibBurst.as_in_paper(within_class=RandomWalk(n_moves=3), rao_blackwell=True)
    assert changed.within_class.n_moves == 3
    assert changed.rao_blackwell
    assert changed.pseudo_priors == settings.pseudo_priors


def test_a_family_without_latents_is_refused():
    with pytest.raises(ValueError, match="latents: there are none that jump with the class"):
        CarlinChibBurst().compile(NormalMixture())


def test_a_rule_of_ones_own_and_no_moves(skewed, rng):
    """Pseudo-priors from elsewhere, and latents that move by the class draw alone."""
    pseudo_priors = skewed.pseudo_priors("good")

    class Given:
        def compile(self, density, geometry, mode=None):
            assert geometry == LatentGeometry()
            return lambda data, rng, others=(): pseudo_priors

    settings = CarlinChibBurst(pseudo_priors=Given(), within_class=RandomWalk(0))
    with interpreted():
        e_step = settings.compile(skewed.family)
        result = run(e_step, skewed, rng, draws=20, tune=5)
    assert np.isnan(result.acceptance)
    np.testing.assert_array_equal(result.state["log_step"], e_step.initial_state()["log_step"])
    assert result.class_index.shape == (20,)


# -- hard edges ------------------------------------------------------------------------------------


class Edged(Family):
    """A latent that lies within half a unit of the observation: two classes about 0 and 1."""

    observation = ("value",)

    def __init__(self) -> None:
        with pm.Model() as self.model:
            value = pm.Data("value", 0.4)
            self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
            x = pm.Normal("x", 1.0 * self.class_index, 1.0)
            pm.Uniform("seen", x - 0.5, x + 0.5, observed=value)
        self.statistics = {"x": x}


def test_a_start_beyond_a_hard_edge_is_drawn_again(without_compiler):
    """Most draws of Laplace's approximation, which sees no edge, have no density here."""
    settings = CarlinChibBurst(pseudo_priors=Laplace(race=None), within_class=RandomWalk(n_moves=1))
    family = Edged()
    e_step = settings.compile(family)
    # a search that ends at an edge the step would follow by a fit to prior draws, and a burst not
    without = Laplace(race=None, n_prior_draws=0)
    with family.model:
        step = CarlinChib(pseudo_priors=without, within_class=RandomWalk(n_moves=1))
    data, theta = family.encode(0.4), family.model_parameters()
    values = e_step._values(data, theta)
    n_beyond = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        pseudo_priors = e_step.pseudo_priors(values, rng)
        start = pseudo_priors.draw_start(rng)
        gains = adaptation_gains(1, 0)
        tried = e_step.burst(
            rng, start, e_step.burst.initial_log_step, pseudo_priors, gains, values
        )
        n_beyond += not np.isfinite(tried.log_weight).any()
        _, found = e_step.with_draws(
            data, theta, np.random.default_rng(seed), e_step.initial_state(), draws=5, tune=0
        )
        assert np.isfinite(found.log_weight.max(axis=1)).all()
        assert (np.abs(found.position - 0.4) <= 0.5).all()
        # the step method's own draws, here too
        step.setup_chain(np.random.default_rng(seed), tune=0, draws=5)
        point, drawn = family.model.initial_point(), []
        for _ in range(5):
            point, _ = step.step(point)
            drawn.append(float(point["x"]))
        np.testing.assert_allclose(found.position[:, 0], drawn, rtol=1e-9)
    assert n_beyond >= 3


def test_an_observation_without_density_is_still_refused(without_compiler, monkeypatch):
    monkeypatch.setattr(prior_starts, "N_DRAWS", 20)
    monkeypatch.setattr(prior_starts, "N_STEPS", 20)
    e_step = CarlinChibBurst(
        pseudo_priors=PilotMoments(n_steps=5), within_class=RandomWalk(n_moves=1)
    ).compile(Edged())
    values = e_step._values({"value": np.array(1e6)}, {})
    beyond = PseudoPriors.from_covariance(np.zeros((2, 1)), np.ones((2, 1, 1)))
    gains, log_step = adaptation_gains(3, 0), e_step.burst.initial_log_step
    with pytest.raises(FloatingPointError, match="not finite for any class"):
        e_step._begin(np.random.default_rng(0), log_step, beyond, gains, values)


class EdgedMeans(Family):
    """As `Edged`, with the two classes' means to be learned."""

    observation = ("value",)

    def __init__(
        self, centers: tuple[float, float], spread: float, width: float, n_values: int = 1
    ) -> None:
        with pm.Model(coords={"class": range(2)}) as self.model:
            means = pm.Data("means", centers, dims="class")
            value = pm.Data("value", 0.4 if n_values == 1 else np.full(n_values, 0.4))
            self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
            x = pm.Normal("x", means[self.class_index], spread)
            pm.Uniform("seen", x - width, x + width, observed=value)
        self.statistics = {"x": x}

    def maximize(self, statistics, *, effective_size):
        mass = np.maximum(statistics["class_weight"], 1e-6)
        return {"means": statistics["x"] / mass}


@pytest.mark.parametrize(
    ("centers", "spread", "width", "n_values", "n"),
    [
        ((-4.0, 4.0), 1.0, 0.5, 1, 6),
        ((0.0, 1.0), 3.0, 0.5, 30, 12),
        pytest.param((-4.0, 4.0), 1.0, 0.5, 1, 60, marks=pytest.mark.slow),
        pytest.param((0.0, 1.0), 1.0, 0.5, 1, 60, marks=pytest.mark.slow),
        pytest.param((0.0, 1.0), 3.0, 0.5, 1, 60, marks=pytest.mark.slow),
        pytest.param((0.0, 1.0), 1.0, 0.1, 1, 60, marks=pytest.mark.slow),
        pytest.param((0.0, 1.0), 1.0, 0.05, 8, 60, marks=pytest.mark.slow),
    ],
)
def test_no_good_record_is_left_out_for_a_hard_edge(centers, spread, width, n_values, n, rng):
    """Records that the model draws, also far from where searches start, or in narrow intervals."""
    x = rng.normal(rng.choice(centers, size=n), spread)
    shape = n if n_values == 1 else (n_values, n)
    records = list(rng.uniform(x - width, x + width, size=shape).T)
    family = EdgedMeans(centers, spread, width, n_values)
    em = OnlineEM(
        family,
        parameters=family.declared_parameters(),
        e_step=CarlinChibBurst(within_class=RandomWalk(n_moves=2)),
        on_error="skip",
        random_seed=int(rng.integers(2**31)),
        progressbar=False,
    ).partial_fit(records)
    assert em.n_seen == n
    assert "skipped" not in em.history.children


@pytest.mark.parametrize("kind", [CarlinChibBurst, PlainGibbs])
def test_a_chain_past_a_hard_edge_begins_anew(without_compiler, kind):
    """As of `SAEM`, whose parameters have moved since the chain was kept."""
    family = Edged()
    e_step = kind(within_class=RandomWalk(n_moves=1)).compile(family)
    kept = {"class_index": np.array(0), "position": np.array([7.0]), **e_step.initial_state()}
    for seed in range(5):
        result = e_step.resume(
            family.encode(0.4),
            family.model_parameters(),
            np.random.default_rng(seed),
            kept,
            gains=adaptation_gains(3, 0),
            refit=True,
            keep_fit=False,
        )
        assert abs(result.chain["position"][0] - 0.4) <= 0.5
