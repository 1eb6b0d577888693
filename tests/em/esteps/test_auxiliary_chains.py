"""A chain in every class: weights by the reciprocal formula, statistics from the chains."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import Independence, RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.em.esteps.auxiliary_chains import AuxiliaryChains
from pymc_mcoem.em.esteps.base import CompiledChains
from pymc_mcoem.em.saem import SAEM
from tests.helpers.checks import LIMIT, agreement
from tests.helpers.e_step_runs import assert_runs_and_is_stored, largest_z, repeated, split
from tests.helpers.interpreted import interpreted
from tests.helpers.linear_normal import SEPARATED, LinearNormal
from tests.helpers.models import SkewedMixture
from tests.helpers.quadrature import Quadrature

SETTINGS = AuxiliaryChains(within_class=RandomWalk(3))


@pytest.fixture(scope="module")
def skewed():
    family = SkewedMixture()
    return family, Quadrature(family, 1000), SETTINGS.compile(family)


@pytest.fixture(scope="module")
def linear():
    family = LinearNormal()
    return family, SETTINGS.compile(family)


# -- expectations --------------------------------------------------------------------------------


def test_statistics_are_the_exact_expectations(skewed, rng):
    family, quadrature, e_step = skewed
    results = repeated(e_step, split(family), rng, draws=1000)
    for name, z in largest_z(results, quadrature.statistics()).items():
        assert z < LIMIT, name
    evidence = np.array([result.log_evidence for result in results])
    exact = logsumexp(quadrature.log_evidence)
    assert abs(evidence.mean() - exact) < LIMIT * evidence.std() / np.sqrt(len(evidence))
    assert all(result.troubles == {} for result in results)
    assert results[0].class_index is None
    assert np.mean([result.acceptance for result in results]) == pytest.approx(0.4, abs=0.02)


def test_class_probability_is_exact(skewed, rng):
    family, quadrature, e_step = skewed
    found = np.array(
        [e_step.class_probability(*split(family), rng, draws=1000, tune=100) for _ in range(50)]
    )
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert agreement(found, quadrature.class_probability).largest_z < LIMIT


def test_statistics_of_several_latents_are_exact(linear, rng):
    family, e_step = linear
    results = repeated(e_step, family.case, rng)
    for name, z in largest_z(results, family.exact(*family.case)).items():
        assert z < LIMIT, name


def test_classes_far_apart_are_no_hindrance(linear, rng):
    """Where plain Gibbs never leaves its first class."""
    family, e_step = linear
    data = {"value": np.zeros(3)}
    results = repeated(e_step, (data, SEPARATED), rng)
    for name, z in largest_z(results, family.exact(data, SEPARATED)).items():
        assert z < LIMIT, name


@pytest.mark.parametrize("move", [Independence(2), Hamiltonian(n_moves=1, n_leapfrog=3)])
def test_any_move_within_a_class_will_do(move, rng):
    family = SkewedMixture()
    e_step = AuxiliaryChains(within_class=move).compile(family)
    results = repeated(e_step, split(family), rng, repeats=12, draws=60, tune=20)
    for name, z in largest_z(results, Quadrature(family, 1000).statistics()).items():
        assert z < LIMIT + 1, name  # of few repeats, so Student's tails


# -- a class drawn, as by its authors ------------------------------------------------------------


def test_a_drawn_class_and_its_last_position_have_the_exact_expectations(linear, rng):
    """A call gives one draw of class and latents, whatever the sweeps; their means are right."""
    family, _ = linear
    drawn = AuxiliaryChains(within_class=RandomWalk(3), draw_class=True).compile(family)
    results = repeated(drawn, family.case, rng, repeats=400, draws=100, tune=20)
    for name, z in largest_z(results, family.exact(*family.case)).items():
        assert z < LIMIT, name
    for result in results:
        weight = np.zeros(len(result.statistics["class_weight"]))
        weight[result.class_index] = 1
        assert result.class_index.shape == (1,)
        np.testing.assert_array_equal(result.statistics["class_weight"], weight)


def test_saem_lives_on_one_draw_a_visit(rng):
    """Each fills one class; the chains of all classes go on."""
    family = LinearNormal()
    e_step = AuxiliaryChains(within_class=RandomWalk(3), draw_class=True)
    start = family.model_parameters()
    saem = SAEM(family, e_step=e_step, draws=10, parameters=start, random_seed=1)
    saem.fit(rng.normal(size=(60, 3)), 2)
    assert {chain["position"].shape for chain in saem.run.state.chains} == {(3, 2)}
    weights = saem.history["observations"]["class_weight"].values
    assert np.isin(weights, [0.0, 1.0]).all()
    assert (weights.mean(axis=0) > 0).sum() > 1


# -- the reciprocal formula ----------------------------------------------------------------------


def test_a_whole_pseudo_prior_that_is_the_posterior_has_no_error(rng):
    family = LinearNormal()
    with interpreted():
        e_step = AuxiliaryChains(within_class=RandomWalk(1), coverage=1.0).compile(family)
        found = e_step(*family.case, rng, e_step.initial_state(), draws=5, tune=2)
    weight = family.exact(*family.case)["class_weight"]
    np.testing.assert_allclose(found.statistics["class_weight"], weight, atol=1e-9)
    assert found.log_evidence == pytest.approx(family.log_evidence(*family.case), abs=1e-9)


def test_cutting_pseudo_priors_is_worth_its_while(skewed, rng):
    """On a posterior that ends sooner than a normal density the whole one leaves no variance.

    Over 800 calls the weights varied by 0.0156 with it and by 0.0056 with the cut one, and with it
    by 0.009 to 0.030 from hundred to hundred.
    """
    family, _, cut = skewed
    whole = AuxiliaryChains(within_class=RandomWalk(3), coverage=1.0).compile(family)

    def spread(e_step):
        results = repeated(e_step, split(family), rng, draws=1000)
        return np.std([result.statistics["class_weight"] for result in results], axis=0).max()

    assert spread(whole) > 1.3 * spread(cut)


class Elsewhere:
    """Pseudo-priors at a given place with a given width, whatever the data."""

    def __init__(self, place, width):
        self.place, self.width = place, width

    def compile(self, density, geometry, mode=None):
        n = density.n_latents
        covariance = np.tile(self.width**2 * np.eye(n), (3, 1, 1))
        fixed = PseudoPriors.from_covariance(np.full((3, n), self.place), covariance)
        return lambda data, rng, others=(): fixed


def test_pseudo_priors_that_no_draw_is_near_are_named(rng):
    family = SkewedMixture()
    with interpreted():
        far = AuxiliaryChains(Elsewhere(-3.0, 0.05), RandomWalk(5), coverage=0.5).compile(family)
        state = {"log_step": np.full(3, np.log(20.0))}
        found = far(*split(family), rng, state, draws=20, tune=0)
    assert "reciprocal importance: no draw near the pseudo-prior" in found.troubles
    assert np.isfinite(found.statistics["class_weight"]).all()
    assert found.statistics["class_weight"].sum() == pytest.approx(1.0)


def test_few_draws_that_count_are_named(rng):
    family = LinearNormal()
    with interpreted():
        narrow = AuxiliaryChains(Elsewhere(0.2, 0.02), RandomWalk(3), coverage=1.0).compile(family)
        state = {"log_step": np.full(3, np.log(30.0))}
        found = narrow(*family.case, rng, state, draws=40, tune=0)
    assert "reciprocal importance: few draws count" in found.troubles


@pytest.mark.parametrize("coverage", [0.0, 1.1, np.nan])
def test_coverage_is_a_probability(coverage):
    with pytest.raises(ValueError, match="coverage: got"):
        AuxiliaryChains(coverage=coverage)


# -- what drivers rely on ----------------------------------------------------------------------


def test_online_em_runs_and_is_stored(rng, tmp_path):
    assert_runs_and_is_stored(SETTINGS, rng, tmp_path / "run.nc")


def test_chains_are_kept_alive(linear, rng):
    """Short visits in a row, without tuning, are together one long chain of the right target."""
    family, e_step = linear
    assert isinstance(e_step, CompiledChains)
    data, theta = family.case
    chain, held = {}, []
    for visit in range(400):
        result = e_step.resume(
            data, theta, rng, chain, gains=np.zeros(50), refit=visit == 0, keep_fit=True
        )
        chain = result.chain
        weight = result.statistics["class_weight"]
        held.append(result.statistics["x"] / weight[:, None])
    _, means, _ = family.posterior(data, theta)
    # Batches of visits: neighbors are correlated.
    batches = np.array(held).reshape(40, 10, -1).mean(axis=1)
    assert agreement(batches, means.ravel()).largest_z < LIMIT
    assert set(chain) >= {"position", "log_step", "mean", "scale", "log_evidence"}
    fresh = e_step.resume(data, theta, rng, {}, gains=np.ones(3), refit=False, keep_fit=False)
    assert set(fresh.chain) == {"position", "log_step"}


class InTurn:
    """Stands where a generator stands, and hands out arrays that it was given, one by one."""

    def __init__(self, *arrays):
        self.arrays = list(arrays)

    def standard_normal(self, shape):
        assert self.arrays[0].shape == tuple(shape)
        return self.arrays.pop(0)


def test_two_visits_are_one_longer_visit(linear, rng):
    """Cut where one likes, chains go on from where they are and with the step sizes they have.

    Noise comes class by class, so each sweep of a class is given its own.
    """
    family, e_step = linear
    data, theta = family.case
    starts, gains = rng.standard_normal((3, 2)), 2.0 / np.sqrt(np.arange(1, 61))
    noise = rng.standard_normal((3, 60, e_step.chains.noise_size))

    def visits(*cuts):
        chain, sums = {}, 0.0
        for first, last in itertools.pairwise([0, *cuts, 60]):
            given = InTurn(*([] if chain else [starts]), *noise[:, first:last])
            result = e_step.resume(
                data, theta, given, chain, gains=gains[first:last], refit=False, keep_fit=True
            )
            assert not given.arrays
            chain, found = result.chain, result.statistics
            sums = sums + (last - first) * found["x"] / found["class_weight"][:, None]
        return sums / 60, chain

    (mean, end), (mean_of_parts, end_of_parts) = visits(), visits(20, 35)
    np.testing.assert_allclose(mean_of_parts, mean, rtol=1e-11, atol=1e-13)
    assert end.keys() == end_of_parts.keys()
    for name, value in end.items():
        np.testing.assert_array_equal(end_of_parts[name], value)


def test_batch_learning_goes_on_with_the_chains(rng):
    family = LinearNormal()
    options = {"parameters": family.declared_parameters(), "draws": 5, "random_seed": 1}
    values = family.draw(rng, 6)
    saem = SAEM(family, e_step=SETTINGS, progressbar=False, **options).fit(values, 3)
    assert not np.allclose(saem.parameters["center"], family.declared_parameters()["center"])


def test_the_same_generator_gives_the_same_result_and_changes_nothing(linear):
    family, e_step = linear
    data, theta = family.case
    state = e_step.initial_state()
    for array in (*data.values(), *theta.values(), *state.values()):
        array.setflags(write=False)
    one, other = (
        e_step(data, theta, np.random.default_rng(5), state, draws=20, tune=10) for _ in range(2)
    )
    for name, value in one.statistics.items():
        np.testing.assert_array_equal(value, other.statistics[name])
    assert not np.array_equal(one.state["log_step"], state["log_step"])


def test_a_class_without_density_hands_its_step_size_on(linear, rng):
    """A label may rule out a class that the next observation is of."""
    family, e_step = linear
    data, parameters = family.case
    without = {**parameters, "weights": np.array([0.6, 0.0, 0.4])}
    state = e_step.initial_state()
    found = e_step(data, without, rng, state, draws=20, tune=20).state["log_step"]
    kept = found == state["log_step"]
    assert kept.tolist() == [False, True, False]


def test_no_density_anywhere_is_an_error(linear, rng):
    family, e_step = linear
    data, theta = family.case
    wrong = theta | {"noise": np.array(np.nan)}
    with pytest.raises(FloatingPointError, match="auxiliary chains: the log-density is not fin"):
        e_step(data, wrong, rng, e_step.initial_state(), draws=5, tune=2)


def test_no_moves_are_refused():
    with pytest.raises(ValueError, match=r"within_class: RandomWalk\(n_moves=0"):
        AuxiliaryChains(within_class=RandomWalk(0)).compile(LinearNormal())
