"""The step method keeps PyMC's contract: chains, states, statistics, bars, processes, errors."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.step_methods.compound import Competence
from pymc.step_methods.state import equal_dataclass_values
from rich.progress import Progress
from scipy import stats

import pymc_mcoem.carlin_chib.step as step_module
from pymc_mcoem.carlin_chib import engines
from pymc_mcoem.carlin_chib.chain_starts import DefaultStart
from pymc_mcoem.carlin_chib.moves.defaults import step_move
from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.progress_columns import progress_columns
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.compiling.backends import mode_of
from pymc_mcoem.density.geometry import LatentGeometry, declare_geometry
from tests.helpers.checks import LIMIT, agreement, chain_agreement, features, largest_share_error
from tests.helpers.compiled import skewed_step
from tests.helpers.interpreted import interpreted
from tests.helpers.models import SkewedMixture, two_indices_that_share_a_latent

EVIDENCE = np.array([0.3, 0.7])


@dataclass(frozen=True)
class Given:
    """A rule of one's own: pseudo-priors from elsewhere, and how often they were asked for."""

    pseudo_priors: PseudoPriors
    calls: list[tuple[np.ndarray, ...]]

    def compile(self, density, geometry, mode=None):
        def rule(data, rng, others=()):
            self.calls.append(tuple(np.array(other) for other in others))
            return self.pseudo_priors

        return rule


#: Where no step is made.
NOT_NEEDED = Given(PseudoPriors.from_covariance(np.zeros((1, 1)), np.ones((1, 1, 1))), [])


@pytest.fixture
def without_sweep(monkeypatch):
    """Make step methods that cannot step, for tests of what they are made of."""
    monkeypatch.setattr(engines, "compile_sweeps", lambda *_, **__: None)


@pytest.fixture(scope="module")
def model(skewed):
    return skewed.family.model


@pytest.fixture
def step(skewed):
    """Return the step method, set up for a new chain as a driver does."""
    step = skewed_step()
    step.setup_chain(np.random.default_rng(1), tune=20, draws=20)
    return step


def sample(model, step, *, chains=2, cores=1, tune=30, draws=40, seed=5, **options):
    with model:
        return pm.sample(
            step=step,
            tune=tune,
            draws=draws,
            chains=chains,
            cores=cores,
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
            **options,
        )


def run(step, point, n):
    points = []
    for _ in range(n):
        point, _ = step.step(point)
        points.append(point)
    return points


# -- chains --------------------------------------------------------------------------------------


def test_chains_have_the_exact_posterior(skewed, model, rng):
    found = sample(
        model, skewed_step(), chains=2, tune=300, draws=4000, seed=int(rng.integers(2**31))
    )["posterior"]
    assert found["level"].shape == (2, 4000)
    for chain in range(2):
        agreed = chain_agreement(
            found["class_index"].values[chain],
            found["level"].values[chain][:, None],
            skewed.quadrature,
        )
        assert agreed.largest_z < LIMIT
        assert agreed.effective_sample_size > 400


def test_nothing_leaks_from_chain_to_chain(model, skewed):
    """The second of two chains is what it is alone."""
    seed, tune, draws = 17, 30, 40
    both = sample(model, skewed_step(), seed=seed, tune=tune, draws=draws)["posterior"]
    rng = np.random.default_rng(seed).spawn(2)[1]
    rng.integers(2**30)
    step = skewed_step()
    step.setup_chain(rng, tune, draws)
    point = model.initial_point(0)
    for t in range(tune + draws):
        if t == tune:
            step.stop_tuning()
        point, _ = step.step(point)
        if t >= tune:
            assert point["level"] == both["level"][1, t - tune]


def test_a_new_chain_forgets_the_last(step, model):
    run(step, model.initial_point(0), 10)
    adapted = step.chain.log_step.copy()
    step.setup_chain(np.random.default_rng(1), tune=20, draws=20)
    assert step.tune
    assert (step.chain.n_steps, step.n_switches, step.chain.pseudo_priors) == (0, 0, None)
    assert not np.array_equal(step.chain.log_step, adapted)
    step.setup_chain(np.random.default_rng(1), tune=0, draws=20)
    assert not step.tune
    before = step.chain.log_step.copy()
    run(step, model.initial_point(0), 10)
    np.testing.assert_array_equal(step.chain.log_step, before)


def test_chains_start_in_classes_of_their_own(two_steps):
    """By the pseudo-priors' estimates of evidence; initial values of the user's are kept."""
    model, step, _ = two_steps

    def started(seed, point):
        step.setup_chain(np.random.default_rng(seed), tune=0, draws=1)
        new, (stats,) = step.step(point)
        # Of two classes the other one, if it switched.
        return int(new["k"]) ^ int(stats["class_switched"])

    n = 50
    own = np.mean([started(seed, model.initial_point(0)) for seed in range(n)])
    assert abs(own - EVIDENCE[1]) < LIMIT * np.sqrt(EVIDENCE[0] * EVIDENCE[1] / n)
    given = {"spread_log__": np.asarray(0.0), "k": np.asarray(1), "x": np.asarray(0.7)}
    assert {started(seed, given) for seed in range(20)} == {1}


def test_a_default_start_is_known_after_the_data_were_changed(two_steps):
    model, step, _ = two_steps
    model["center"].set_value(7.0)
    assert model.initial_point(0)["x"] == 7.0
    started = set()
    for seed in range(20):
        step.setup_chain(np.random.default_rng(seed), tune=0, draws=1)
        new, (stats,) = step.step(model.initial_point(0))
        started.add(int(new["k"]) ^ int(stats["class_switched"]))
    assert started == {0, 1}


@cache
def following():
    """Return a model whose latents start where another variable is, and its step."""
    with interpreted(), pm.Model() as model:
        mu = pm.Normal("mu")
        k = pm.Categorical("k", [0.6, 0.4])
        x = pm.Normal("x", mu, 1.0)
        pair = pm.Normal("pair", shape=2, initval=np.array([0.0, 1.0]))
        scale = pm.HalfNormal("scale", pm.math.exp(mu), initval="prior")
        pm.Normal("y", x + k + pair.sum(), scale, observed=1.5)
        given = PseudoPriors.from_covariance(
            np.zeros((2, 4)), np.tile(np.eye(4), (2, 1, 1)), np.log(EVIDENCE)
        )
        step = CarlinChib(
            [k, x, pair, scale], pseudo_priors=Given(given, []), within_class=RandomWalk(2)
        )
    return model, step


@pytest.mark.parametrize(
    ("initvals", "own"),
    [
        ({}, True),
        ({"mu": 1.0}, True),  # x follows, and nobody said where
        ({"x": 0.3}, False),
        ({"mu": 1.0, "x": 0.0}, True),  # as where a step has moved mu since
        ({"k": 1}, False),
    ],
)
def test_initial_values_are_told_from_the_models_own(without_compiler, initvals, own):
    model, step = following()
    starts = pm.initial_point.make_initial_point_fn(model=model, overrides=initvals)(5)
    assert step.chain._default_start.holds(starts) is own
    assert step.chain._default_start.holds(starts) is own  # the next chain


@pytest.mark.parametrize("shape", [None, 3])
@pytest.mark.parametrize(("initval", "own"), [(None, True), ("prior", True), (1, False)])
def test_what_a_model_says_of_its_index_holds_for_all_chains(shape, initval, own):
    value = initval if shape is None or not isinstance(initval, int) else np.full(shape, initval)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=shape, initval=value)
        x = pm.Normal("x", shape=shape)
    default = DefaultStart(model, k, [x])
    start = pm.initial_point.make_initial_point_fn(model=model)
    assert {default.holds(start(seed)) for seed in range(8)} == {own}


def test_a_start_in_single_precision_is_known():
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        s = pm.HalfNormal("s")
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", s)
    default = DefaultStart(model, k, [x])
    for seed in range(10):
        overrides = {"s": np.float32(np.random.default_rng(seed).gamma(2.0))}
        start = pm.initial_point.make_initial_point_fn(model=model, overrides=overrides)(0)
        assert default.holds(start)


def test_after_tuning_the_kernel_is_fixed(step, model):
    points = run(step, model.initial_point(0), 20)
    step.stop_tuning()
    log_step, pseudo_priors = step.chain.log_step.copy(), step.chain.pseudo_priors
    run(step, points[-1], 30)
    np.testing.assert_array_equal(step.chain.log_step, log_step)
    assert step.chain.pseudo_priors is pseudo_priors


def test_a_point_is_not_changed(step, model):
    point = {"class_index": np.asarray(1), "level": np.asarray(0.2), "other": np.asarray(3.0)}
    before = {name: value.copy() for name, value in point.items()}
    for value in point.values():
        value.setflags(write=False)
    new, _ = step.step(point)
    assert {name: float(value) for name, value in point.items()} == {
        name: float(value) for name, value in before.items()
    }
    assert new is not point
    # Variables that are not the step's own are handed on.
    assert new["other"] is point["other"]
    assert new["class_index"].dtype == np.int64
    assert new["level"].shape == ()


def test_a_start_without_any_density_is_refused(without_compiler):
    """After fifty draws of the pseudo-priors and the model's own start; or one that is given."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0 * k, 1.0)
        pm.Potential("nowhere", pm.math.switch(x < 100, -np.inf, 0.0))
        given = PseudoPriors.from_covariance(np.zeros((2, 1)), np.ones((2, 1, 1)))
        step = CarlinChib(pseudo_priors=Given(given, []), within_class=RandomWalk(1))
    for start in (model.initial_point(0), {"k": np.asarray(1), "x": np.asarray(0.5)}):
        step.setup_chain(np.random.default_rng(0), tune=0, draws=1)
        message = rf"initvals: the log-density is not finite .* k = {start['k']}"
        with pytest.raises(ValueError, match=message):
            step.step(start)


def test_nan_in_a_covariate_is_named(without_compiler):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0 * k, 1.0)
        pm.Normal("y", x * np.array([np.nan, 1.0]), 1.0, observed=[1.0, 2.0])
        given = PseudoPriors.from_covariance(np.zeros((2, 1)), np.ones((2, 1, 1)))
        step = CarlinChib(pseudo_priors=Given(given, []), within_class=RandomWalk(1))
    step.setup_chain(np.random.default_rng(0), tune=0, draws=1)
    with pytest.raises(ValueError, match=r"drop or fill in the NaN in an array of shape \(2,\)\.$"):
        step.step(model.initial_point(0))


@pytest.mark.parametrize("in_data", [False, True])
def test_inf_in_observed_data_is_named(in_data, without_compiler):
    observed = [[1.0, 2.0], [2.0, np.inf]]
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0 * k, 1.0)
        pm.Normal("y", x, 1.0, observed=pm.Data("given", observed) if in_data else observed)
        given = PseudoPriors.from_covariance(np.zeros((2, 1)), np.ones((2, 1, 1)))
        step = CarlinChib(pseudo_priors=Given(given, []), within_class=RandomWalk(1))
    step.setup_chain(np.random.default_rng(0), tune=0, draws=1)
    with pytest.raises(ValueError, match=r"^observed: y has inf at index \[1, 1\], where"):
        step.step(model.initial_point(0))


@pytest.mark.parametrize(
    ("taken", "message"),
    [(np.s_[:, 0], "^initvals: the log-density"), (np.s_[1, 1], "^observed: y has inf, where")],
)
def test_only_inf_that_is_observed_is_named(taken, message, without_compiler):
    with pm.Model() as model:
        given = pm.Data("given", [[1.0, 2.0], [2.0, np.inf]])
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0 * k, 1.0)
        pm.Normal("y", x, 1.0, observed=given[taken])
        pm.Potential("nowhere", pm.math.switch(x < 100, -np.inf, 0.0))
        given = PseudoPriors.from_covariance(np.zeros((2, 1)), np.ones((2, 1, 1)))
        step = CarlinChib(pseudo_priors=Given(given, []), within_class=RandomWalk(1))
    step.setup_chain(np.random.default_rng(0), tune=0, draws=1)
    with pytest.raises(ValueError, match=message):
        step.step(model.initial_point(0))


def test_what_goes_wrong_in_a_fit_is_logged(skewed, step, model, caplog, monkeypatch):
    troubled = replace(skewed.pseudo_priors("good"), troubles={"mode search: indefinite": 2})
    monkeypatch.setattr(step._engine, "fit", lambda rng, others: troubled)
    with caplog.at_level("WARNING", "pymc_mcoem"):
        run(step, model.initial_point(0), 5)
    # Once a chain.
    assert caplog.text.count("mode search: indefinite in 2 of 3 pseudo-priors") == 1


# -- states --------------------------------------------------------------------------------------


def test_a_state_brings_back_the_chain(step, model):
    """Set a state, step, restore it, step again: the same points and the same state after."""
    point = run(step, model.initial_point(0), 7)[-1]
    state = step.sampling_state
    first, after = run(step, point, 5), step.sampling_state
    step.sampling_state = state
    second = run(step, point, 5)
    for one, other in zip(first, second, strict=True):
        assert equal_dataclass_values(one, other)
    for field in fields(after):
        assert equal_dataclass_values(
            getattr(after, field.name), getattr(step.sampling_state, field.name)
        ), field.name


def test_a_state_is_restored_before_pseudo_priors_are_known(step, model):
    state = step.sampling_state
    first = run(step, model.initial_point(0), 3)
    step.sampling_state = state
    assert equal_dataclass_values(first, run(step, model.initial_point(0), 3))


def test_a_state_is_a_copy(step, model):
    run(step, model.initial_point(0), 2)
    state = step.sampling_state
    log_step = state.chain.log_step.copy()
    run(step, model.initial_point(0), 5)
    np.testing.assert_array_equal(state.chain.log_step, log_step)


def test_a_state_of_another_model_is_refused(step, without_sweep):
    with pm.Model():
        k = pm.Categorical("class_index", np.full(4, 0.25))
        pm.Normal("level", 1.0 * k, 1.0)
        other = CarlinChib(pseudo_priors=NOT_NEEDED, within_class=RandomWalk(0))
    with pytest.raises(ValueError, match="frozen"):
        step.sampling_state = other.sampling_state


# -- statistics and bars -------------------------------------------------------------------------


def test_statistics_arrive_with_their_dimensions(model):
    stats = sample(model, skewed_step(), chains=2, tune=10, draws=15)["sample_stats"]
    assert stats["class_switched"].dims == ("chain", "draw")
    assert stats["class_switched"].dtype == bool
    assert stats["class_acceptance"].shape == (2, 15)
    log_weight = stats["class_log_weight"]
    assert log_weight.shape == (2, 15, 3)
    np.testing.assert_allclose(np.exp(log_weight.values.astype(float)).sum(axis=-1), 1.0)


def test_switches_are_those_of_the_class_index(step, model):
    point = model.initial_point(0)
    point, _ = step.step(point)
    seen, total = set(), step.n_switches
    for _ in range(40):
        new, (stats,) = step.step(point)
        switched = bool(new["class_index"] != point["class_index"])
        total += switched
        assert stats["class_switched"] == switched
        assert stats["class_switches"] == total
        seen.add(switched)
        point = new
    assert seen == {True, False}
    assert set(stats) == set(CarlinChib.stats_dtypes_shapes)


def test_the_progress_bar_counts_switches():
    columns, initial = progress_columns(2, compiles=False)
    (update,) = CarlinChib._make_progressbar_update_functions()
    assert initial == {"switches": [0, 0], "acceptance": [0.0, 0.0]}
    # One function serves all chains: each brings its own count.
    assert update({"class_switches": 3, "class_acceptance": 0.4}) == {
        "switches": 3,
        "acceptance": 0.4,
    }
    assert update({"class_switches": 1, "class_acceptance": np.nan})["switches"] == 1
    with Progress(*columns, disable=True) as progress:
        task = progress.add_task("", switches=3, acceptance=0.41)
        rendered = [str(column.render(progress.tasks[task])) for column in columns]
    assert rendered == ["3", "0.41"]


def test_the_progress_bar_counts_seconds_while_processes_compile():
    columns, _ = progress_columns(2, compiles=True)
    now = 100.0
    fields = {"switches": 3, "acceptance": 0.4}
    with Progress(*columns, disable=True, get_time=lambda: now) as progress:
        first, second = (progress.add_task("", start=False, total=5, **fields) for _ in range(2))

        def cells():
            return [str(columns[0](progress.tasks[task])) for task in (first, second)]

        assert cells() == ["0 s", "0 s"]
        now = 102.0
        assert cells() == ["2 s", "2 s"]
        progress.start_task(first)
        progress.update(first, completed=1)
        assert cells() == ["3", "3"]  # the first bar moves, and the second waits for its process
        progress.update(first, completed=5)
        assert cells() == ["3", "0 s"]
        now = 103.0
        assert cells() == ["3", "1 s"]


def test_sampling_with_a_progress_bar(model, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    with model:
        pm.sample(
            step=skewed_step(),
            tune=5,
            draws=5,
            chains=2,
            cores=1,
            random_seed=1,
            progressbar=True,
            compute_convergence_checks=False,
        )
    shown = capsys.readouterr().out
    assert "Switches" in shown
    assert "Acceptance" in shown


# -- variables -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide():
    """A model with more than the step's own: another index, a weight, a count, a data-free rate."""
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(2))
        k = pm.Categorical("k", weights)
        other = pm.Categorical("other", [0.5, 0.5])
        count = pm.Poisson("count", 2.0)
        rate = pm.Gamma("rate", 2.0, 1.0)
        x = pm.Normal("x", 2.0 * k + other, 1.0, shape=2)
        pm.Normal("y", x.sum() + rate + count, 1.0, observed=1.0)
    return model


def test_variables_default_to_all_that_are_continuous(wide, without_sweep):
    with wide:
        step = CarlinChib(
            class_index=wide["k"], pseudo_priors=NOT_NEEDED, within_class=RandomWalk(0)
        )
    names = [value.name for value in step.vars]
    assert names == ["k", "weights_simplex__", "rate_log__", "x"]


def test_variables_may_be_named_as_random_or_value_variables(wide, without_sweep):
    values = [wide.rvs_to_values[wide[name]] for name in ("x", "k")]
    for given in ((wide["x"], wide["k"]), values):
        with wide:
            step = CarlinChib(
                given,
                class_index=wide["k"],
                pseudo_priors=NOT_NEEDED,
                within_class=RandomWalk(0),
            )
        assert [value.name for value in step.vars] == ["k", "x"]
        assert all(value in wide.value_vars for value in step.vars)


@pytest.mark.parametrize(
    ("names", "index", "message"),
    [
        (["x"], "k", r"vars: \['x'\] leave out the class index k; add it"),
        (["k"], "k", r"vars: got the class index k alone; add .* \[k, \.\.\.\], of \['"),
        (["k", "count"], "k", "latents: count is discrete"),
        (["k", "other", "x"], None, r"2 Categorical variables \(\['k', 'other'\]\); give each"),
        (["k", "x"], "x", "class_index: x is normal, not Categorical or Bernoulli"),
        (["rate", "x"], "rate", "class_index: rate is .*, not Categorical or Bernoulli"),
    ],
)
def test_variables_that_are_refused(wide, without_compiler, names, index, message):
    with wide, pytest.raises(ValueError, match=message):
        CarlinChib(
            [wide[name] for name in names],
            class_index=None if index is None else wide[index],
        )


def test_variables_may_be_named_by_text_and_say_which_index(wide, without_sweep):
    with wide:
        step = CarlinChib(["k", "x"], pseudo_priors=NOT_NEEDED, within_class=RandomWalk(0))
    assert [value.name for value in step.vars] == ["k", "x"]
    values = [wide.rvs_to_values[wide[name]] for name in ("k", "x")]
    with wide:
        step = CarlinChib(values, pseudo_priors=NOT_NEEDED, within_class=RandomWalk(0))
    assert [value.name for value in step.vars] == ["k", "x"]
    with wide, pytest.raises(ValueError, match=r"vars: got \['z'\], and the model has \['weights'"):
        CarlinChib(["k", "z"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jump": True}, "jump: got True; give an object, as AnnealedJump"),
        ({"within_class": "hmc"}, "within_class: got 'hmc'; give an object, as RandomWalk"),
        ({"within_class": RandomWalk}, "within_class: got <class"),
        ({"pseudo_priors": "laplace"}, "pseudo_priors: got 'laplace'; give an object, as Laplace"),
    ],
)
def test_settings_of_another_kind_are_refused(wide, without_compiler, options, message):
    with wide, pytest.raises(TypeError, match=message):
        CarlinChib(["k", "x"], **options)


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        (None, None),
        ({"mode": "FAST_COMPILE"}, "FAST_COMPILE"),
        ({"backend": "c"}, "CVM"),
        ({"backend": "numba"}, "NUMBA"),
    ],
)
def test_back_ends_are_chosen_by_either_name(given, mode):
    assert mode_of(given) == mode


@pytest.mark.parametrize("given", [{"mode": "CVM", "backend": "c"}, {"gradient_backend": "jax"}])
def test_other_settings_of_the_compiler_are_refused(given):
    with pytest.raises(ValueError, match=r"compile_kwargs: got .* give 'backend' or"):
        mode_of(given)


def test_another_thread_cannot_use_a_step_at_work(step, model):
    """Neither begin while the step is at work, nor go on with a chain that another began."""
    point = model.initial_point(random_seed=0)
    step.setup_chain(np.random.default_rng(1), 10, 10)
    step.step(point)
    said = []

    def of_another_thread(call):
        def called():
            try:
                call()
            except RuntimeError as error:
                said.append(str(error))

        thread = threading.Thread(target=called)
        thread.start()
        thread.join()

    of_another_thread(lambda: step.step(point))
    assert len(said) == 1 and "make one for each thread" in said[0]
    step.chain._thread.enter()
    of_another_thread(lambda: step.setup_chain(np.random.default_rng(2), 10, 10))
    step.chain._thread.leave()
    assert len(said) == 2
    step.step(point)
    of_another_thread(lambda: step.setup_chain(np.random.default_rng(2), 10, 10))
    assert len(said) == 2
    with pytest.raises(RuntimeError, match="another thread is at work"):
        step.step(point)
    step.setup_chain(np.random.default_rng(1), 10, 10)


@pytest.mark.parametrize(
    ("shape", "n_active", "expected"),
    [
        ((15,), [15, 15], RandomWalk(n_moves=20)),
        ((30,), [14, 16], Hamiltonian()),
        ((16, 200), [200, 200], RandomWalk(n_moves=20)),  # a plate of 16 rows
    ],
)
def test_many_latents_have_a_hamiltonian_move(shape, n_active, expected):
    density = SimpleNamespace(position_shape=shape, n_active=n_active)
    assert step_move(density) == expected
    assert step_move(density, without_gradient=True) == RandomWalk(n_moves=20)


def test_without_a_gradient_many_latents_walk(without_sweep, without_compiler):
    with pm.Model():
        k = pm.Categorical("k", [0.4, 0.6])
        x = pm.Normal("x", 1.0 * k, 1.0, shape=20)
        pm.Potential("steps", -pt.floor(pt.abs(x)).sum())
        step = CarlinChib(pseudo_priors=PilotMoments())
    assert step._engine.walks


def test_many_latents_have_the_exact_class_probabilities(rng):
    """Three classes with priors of other widths for thirty latents; the evidence is normal."""
    weights, spread, y = [0.6, 0.3, 0.1], np.array([0.9, 1.1, 1.4]), rng.normal(0, 1.5, size=30)
    with pm.Model():
        k = pm.Categorical("k", weights)
        x = pm.Normal("x", 0.0, pt.constant(spread)[k], shape=30)
        pm.Normal("y", x, 1.0, observed=y)
        data = pm.sample(
            1_000,
            tune=300,
            step=CarlinChib(),
            chains=2,
            cores=1,
            progressbar=False,
            random_seed=rng,
        )
    # one move in a sweep, not twenty
    assert set(np.unique(data["sample_stats"]["class_acceptance"])) == {0.0, 1.0}
    log_p = np.log(weights) + stats.norm(0, np.hypot(spread, 1.0)[:, None]).logpdf(y).sum(axis=1)
    exact = np.exp(log_p - np.logaddexp.reduce(log_p))
    assert ((exact > 0.02) & (exact < 0.95)).all()
    posterior = data["posterior"].to_dataset()
    assert largest_share_error({"k": exact}, posterior) < LIMIT
    # given the class, the latents are normal too
    mean = y * (exact * spread**2 / (1 + spread**2)).sum()
    batches = posterior["x"].values.reshape(2 * 40, -1, 30).mean(axis=1)
    assert agreement(batches, mean).largest_z < LIMIT


def test_variables_of_one_block_cannot_be_parted(wide, without_compiler):
    with wide, pytest.raises(ValueError, match="blocked: got False; an index"):
        CarlinChib([wide["k"], wide["x"]], class_index=wide["k"], blocked=False)


def test_pymc_never_chooses_the_step_by_itself(wide):
    for rv in wide.free_RVs:
        assert CarlinChib.competence(rv, True) is Competence.INCOMPATIBLE


# -- beside other steps ----------------------------------------------------------------------


@cache
def beside_a_spread():
    """Return a model whose spread another step samples, its step, and calls of pseudo-priors."""
    with interpreted(), pm.Model() as model:
        spread = pm.HalfNormal("spread", 1.0)
        k = pm.Categorical("k", [0.6, 0.4])
        x = pm.Normal("x", pm.Data("center", 0.0) + 2.0 * k, spread)
        pm.Normal("y", x, 1.0, observed=1.5)
    calls: list[tuple[np.ndarray, ...]] = []
    given = PseudoPriors.from_covariance(
        np.array([[0.5], [1.5]]), np.full((2, 1, 1), 1.0), np.log(EVIDENCE)
    )
    with interpreted(), model:
        step = CarlinChib([k, x], pseudo_priors=Given(given, calls), within_class=RandomWalk(2))
    return model, step, calls


@pytest.fixture
def two_steps(without_compiler):
    """Return that model and step, made once, with its data and the calls as they were."""
    model, step, calls = beside_a_spread()
    model["center"].set_value(0.0)
    calls.clear()
    return model, step, calls


def test_pseudo_priors_follow_other_variables_while_tuning_only(two_steps):
    _, step, calls = two_steps
    step.setup_chain(np.random.default_rng(0), tune=20, draws=20)
    point = {"spread_log__": np.asarray(0.0), "k": np.asarray(0), "x": np.asarray(0.1)}
    for t in range(40):
        if t == 20:
            step.stop_tuning()
        point = dict(point, spread_log__=np.asarray(0.01 * t))
        point, _ = step.step(point)
    # At the start, then every fifth tuning step; never from the kernel's own latents.
    assert [float(others[0]) for others in calls] == pytest.approx([0.0, 0.05, 0.10, 0.15])
    assert all(len(others) == 1 for others in calls)


def test_the_other_variables_enter_the_density(two_steps):
    _, step, _ = two_steps
    weights = []
    for spread in (0.0, 1.0):
        step.setup_chain(np.random.default_rng(0), tune=0, draws=1)
        point = {"spread_log__": np.asarray(spread), "k": np.asarray(0), "x": np.asarray(0.1)}
        _, (stats,) = step.step(point)
        weights.append(stats["class_log_weight"])
    assert not np.allclose(weights[0], weights[1])


def test_what_a_family_declares_is_used_for_all_its_latents_only(without_sweep):
    seen = []

    class Recorder:
        def compile(self, density, geometry, mode=None):
            seen.append(geometry)

    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0 * k, 1.0)
        pm.Normal("z", x, 1.0)
        declared = LatentGeometry(starts=np.zeros((1, 2)))
        declare_geometry(model, declared)
        CarlinChib(pseudo_priors=Recorder(), within_class=RandomWalk(0))
        CarlinChib([k, x], pseudo_priors=Recorder(), within_class=RandomWalk(0))
    assert seen[0] is declared
    assert seen[1] == LatentGeometry()


# -- back ends -----------------------------------------------------------------------------------


def test_features_tell_the_prior_from_the_posterior(skewed, rng):
    """The comparison that all of these tests rest on can fail."""
    prior = features(*skewed.family.draw_prior(rng, 4000))
    assert agreement(prior, skewed.quadrature.expectation(features)).largest_z > 2 * LIMIT


def test_the_model_of_the_tests_is_as_it_was(skewed):
    fresh = SkewedMixture().values
    for name, value in skewed.family.values.items():
        np.testing.assert_array_equal(value, fresh[name])


# -- starts and changes ---------------------------------------------------------------------------


def test_a_chain_finds_a_start_inside_the_support():
    """A Laplace normal reaches beyond a boundary; no seed of forty may fail on it."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 0.2 * k, 1.0, initval=1.0)
        pm.Potential("inside", pm.math.switch(x > 0, 0.0, -np.inf))
        step = CarlinChib(within_class=RandomWalk(1))
    for seed in range(40):
        step.setup_chain(np.random.default_rng(seed), tune=0, draws=1)
        assert step.step(model.initial_point(0))[0]["x"] > 0


def test_a_model_that_changed_needs_a_new_step():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 1.0 * k, 1.0)
        step = CarlinChib(within_class=RandomWalk(1))
        pm.Normal("late", x, 0.1, observed=9.0)
    with pytest.raises(ValueError, match="model: it has other variables, shapes or"):
        step.step(model.initial_point(0))


@pytest.mark.parametrize("what", ["classes", "rows"])
def test_other_numbers_of_classes_or_rows_need_a_new_step(what, without_compiler):
    is_plate = what == "rows"
    with pm.Model(coords={"row": range(4)}) as model:
        p = pm.Data("p", [0.5, 0.5])
        k = pm.Categorical("k", p, dims="row" if is_plate else None)
        pm.Normal("x", 1.0 * k, 1.0, dims="row" if is_plate else None)
        step = CarlinChib(within_class=RandomWalk(1))
        if is_plate:
            model.set_dim("row", 6, range(6))
        else:
            pm.set_data({"p": [0.2, 0.3, 0.5]})
    step.setup_chain(np.random.default_rng(0), tune=1, draws=1)
    with pytest.raises(ValueError, match="shapes or classes than when CarlinChib was made"):
        step.step(model.initial_point(0))


def test_an_index_that_is_not_there_is_named():
    with pm.Model():
        pm.Normal("x", 1.0 * pm.Categorical("k", [0.5, 0.5]), 1.0)
        with pytest.raises(ValueError, match=r"class_index: got 'kind', and the model has"):
            CarlinChib(class_index="kind")


# -- two indices ----------------------------------------------------------------------------------


def shares_and_switches(chain_of_k):
    return chain_of_k.mean(), np.mean(np.diff(chain_of_k) != 0)


@pytest.mark.parametrize("fits", ["each", pytest.param("one", marks=pytest.mark.slow)])
def test_pseudo_priors_are_fitted_at_each_value_of_another_index(fits, rng, monkeypatch):
    """A fit at one value of the other index is of no use at the next: half of the switches."""
    if fits == "one":
        monkeypatch.setattr(step_module, "other_indices", lambda density, most: {})
    model = two_indices_that_share_a_latent()
    with model:
        k, j, x = model["k"], model["j"], model["x"]
        move = RandomWalk(n_moves=1)
        step = CarlinChib([k, x], class_index=k, within_class=move)
        other = CarlinChib([j, x], class_index=j, within_class=move)
        assert len(step.chain.fits._other_indices) == (fits == "each")
        draws = {"k": [], "j": []}
        for each in (step, other):
            each.setup_chain(np.random.default_rng(rng.integers(2**32)), tune=100, draws=600)
        point = model.initial_point()
        for t in range(700):
            if t == 100:
                step.stop_tuning()
                other.stop_tuning()
            for each in (step, other):
                point, _ = each.step(point)
            for name in draws:
                draws[name].append(int(point[name]))
    found = {name: shares_and_switches(np.array(values[100:])) for name, values in draws.items()}
    weight = np.array([0.6, 0.4]) * stats.norm.pdf(0.2, [0.0, 0.5], np.hypot(0.25, 0.5))
    exact = weight[1] / weight.sum()
    assert len(step.chain.fits.by_values) == (2 if fits == "each" else 1)
    # of draws that follow one another independently
    due = 2 * exact * (1 - exact)
    if fits == "each":
        assert found["k"][1] > 0.85 * due
        assert abs(found["k"][0] - exact) < 5 * np.sqrt(exact * (1 - exact) / 300)
        assert found["j"][1] > 0.4
    else:
        assert found["k"][1] < 0.7 * due


def test_indices_that_the_density_does_not_look_at_are_no_reason_for_more_fits(without_compiler):
    with pm.Model():
        k, x = pm.Categorical("k", [0.5, 0.5]), pm.Normal("x")
        j = pm.Categorical("j", [0.2] * 5)
        pm.Normal("y", x + k, 1.0, observed=0.0)
        pm.Normal("z", 1.0 * j, 1.0, observed=0.0)
        assert CarlinChib([k, x], class_index=k).chain.fits._other_indices == {}
