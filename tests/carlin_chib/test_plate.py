"""A plate of class indices: every row has its exact posterior; rows must be independent."""

from __future__ import annotations

import re
from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import ImputationWarning
from scipy import stats
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.carlin_chib.pseudo_priors.plate import PlateLaplace, PlatePseudoPriors
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.density.plate import PlateDensity
from tests.helpers.checks import LIMIT, agreement
from tests.helpers.count_plate import (
    CENTER,
    N_ROWS,
    PLACES,
    counts_model,
    exact,
    largest_z,
)
from tests.helpers.interpreted import judged_by_few_sweeps


@pytest.fixture(scope="module")
def plate():
    model = counts_model()
    with model:
        return model, CarlinChib(within_class=RandomWalk(n_moves=5))


def test_every_row_of_every_chain_has_its_exact_posterior(plate, rng):
    weight, _ = exact()
    assert weight.max(axis=1).min() < 0.6  # classes overlap
    assert largest_z(plate[1], plate[0], rng, chains=2) < LIMIT


def test_pseudo_priors_that_are_not_divided_by_are_noticed(plate, rng, monkeypatch):
    model, step = plate
    fit = step._engine.fit

    def without_normalizer(rng, others):
        found = fit(rng, others)
        return replace(found, log_normalizer=np.zeros_like(found.log_normalizer))

    monkeypatch.setattr(step._engine, "fit", without_normalizer)
    assert largest_z(step, model, rng, draws=3_000) > 2 * LIMIT


def test_poor_pseudo_priors_change_nothing(plate, rng, monkeypatch):
    model, step = plate
    fit = step._engine.fit

    def wide(rng, others):
        found = fit(rng, others)
        return replace(
            found,
            mean=found.mean + 0.2,
            scale=1.5 * found.scale,
            whiten=found.whiten / 1.5,
            log_normalizer=found.log_normalizer - 3 * np.log(1.5),
        )

    monkeypatch.setattr(step._engine, "fit", wide)
    assert largest_z(step, model, rng) < LIMIT


def test_modes_and_curvatures_of_all_rows(plate):
    """In the plane all is normal: mode, precision and, with the counts' part, evidence."""
    density = plate[1]._density
    found = PlateLaplace(density)([])
    assert not found.troubles
    precision = 1 / 0.6**2 + 1 / 0.8**2
    expected = (CENTER[:, None] / 0.6**2 + PLACES[None] / 0.8**2) / precision
    np.testing.assert_allclose(found.mean[:, :, 1:], expected, atol=0.02)
    np.testing.assert_allclose(found.whiten[:, :, 1, 1], np.sqrt(precision), rtol=1e-6)
    np.testing.assert_allclose(
        found.scale @ found.whiten, np.broadcast_to(np.eye(3), found.scale.shape), atol=1e-12
    )
    weight, _ = exact()
    laplace = np.exp(found.log_evidence - logsumexp(found.log_evidence, axis=0)).T
    np.testing.assert_allclose(laplace, weight, atol=0.05)


def test_modes_that_are_not_found_are_named(plate):
    """One step from a common start reaches the modes of no row of counts."""
    found = PlateLaplace(plate[1]._density, max_iterations=1)([])
    (name, count), *others = found.troubles.items()
    assert (name, others) == ("mode search: not converged", [])
    assert 0 < count <= 3 * N_ROWS
    # what there is is a pseudo-prior all the same
    np.testing.assert_allclose(
        found.scale @ found.whiten, np.broadcast_to(np.eye(3), found.scale.shape), atol=1e-12
    )


@pytest.mark.slow
def test_nuts_moves_the_latents_of_a_plate_between_jumps(rng):
    """``within_class=None``: exact all the same, for the index moves the latents with it.

    By default `test_variants` has it of blocks.
    """
    model = counts_model()
    with model:
        step = [CarlinChib(within_class=None), pm.NUTS([model["rate"], model["place"]])]
    assert largest_z(step, model, rng, draws=3_000) < LIMIT


# -- what is refused ------------------------------------------------------------------------------


def refused(model, message, **options):
    with model, pytest.raises(ValueError, match=message):
        CarlinChib(**options)


def test_latents_off_the_plate_are_refused():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=4)
        shared = pm.Normal("shared")
        pm.Normal("x", shared + 1.0 * k, 1.0, shape=4)
    refused(model, r"vars: shared has shape \(\), but k has 4 rows", vars=[k, shared])


GROUP = np.array([0, 0, 1, 2])


def latents_of_groups():
    k = pm.Categorical("k", [0.5, 0.5], shape=4)
    pm.Normal("y", pm.Normal("x", shape=3)[GROUP] + k, 1.0, observed=np.zeros(4))


def rows_of_groups():
    k = pm.Categorical("k", [0.5, 0.5], shape=3)
    pm.Normal("y", pm.Normal("x", k, 1.0, shape=3)[GROUP], 1.0, observed=np.zeros(4))


def rows_that_are_columns():
    k = pm.Categorical("k", [0.5, 0.5], shape=4)
    pm.Normal("y", pm.Normal("x", k, 1.0, shape=(2, 4)), 1.0, observed=np.zeros((2, 4)))


def rows_that_have_an_axis():
    k = pm.Categorical("k", [0.5, 0.5], shape=(4, 1))
    pm.Normal("y", pm.Normal("x", k, 1.0, shape=(4, 1)), 1.0, observed=np.zeros((4, 1)))


def values_that_are_missing():
    k = pm.Categorical("k", [0.5, 0.5], shape=4)
    x = pm.Normal("x", k, 1.0, shape=4)
    with pytest.warns(ImputationWarning):
        pm.Normal("y", x[:, None], 1.0, observed=VALUES)


def one_row_and_latents_off_it():
    k = pm.Categorical("k", [0.5, 0.5], shape=1)
    pm.Normal("y", pm.Normal("x", k, 1.0, shape=5), 1.0, observed=np.zeros(5))


VALUES = np.array([[0.0, np.nan], [1.0, 2.0], [0.5, -1.0], [np.nan, 1.0]])
IN_ITS_PLACE = 'pm.Potential("y", pt.where(seen, pm.logp(pm.Normal.dist(mu, sigma), filled), 0.0))'
REFUSED = {
    latents_of_groups: "none of {'x': (3,)} has the 4 rows of k. Sum a class index alone out",
    rows_of_groups: "x[:, None], 1.0, observed=values) with values of shape (3, m) in place of x[",
    rows_that_are_columns: "x has shape (2, 4), but k has 4 rows; the plate is the first axis of "
    "every latent: declare x with shape=(4, 2), and write x.T where",
    rows_that_have_an_axis: "k has shape (4, 1), and a plate has one axis; declare "
    "pm.Categorical('k', p, shape=4), and write k[:, None]",
    values_that_are_missing: IN_ITS_PLACE,
    one_row_and_latents_off_it: "x has shape (5,), but k has 1 rows; declare k without a shape",
}


@pytest.mark.parametrize("declare", REFUSED, ids=lambda f: f.__name__)
def test_a_refusal_says_what_to_write(declare):
    with pm.Model() as model:
        declare()
    refused(model, re.escape(REFUSED[declare]))


def test_missing_values_left_out_as_is_said_are_accepted():
    seen, filled = ~np.isnan(VALUES), np.nan_to_num(VALUES)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=4)
        mu, sigma = pm.Normal("x", k, 1.0, shape=4)[:, None], pm.HalfNormal("sigma")
        exec(IN_ITS_PLACE, {"pm": pm, "pt": pt}, locals())
    density = PlateDensity(model, k, [model["x"]])
    found = density.log_density(pt.zeros(4, dtype=int), pt.zeros((4, 1)))
    sigma = {density.other_values[0]: 0.0}
    likelihood = np.where(seen, stats.norm.logpdf(filled), 0.0).sum(axis=1)
    expected = np.log(0.5) + stats.norm.logpdf(0.0) + likelihood
    np.testing.assert_allclose(found.eval(sigma, mode="FAST_COMPILE"), expected)


def test_plates_have_no_blocks_and_one_rule():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=4)
        x = pm.Normal("x", 1.0 * k, 1.0, shape=4)
        pm.Normal("y", x, 1.0, observed=np.zeros(4))
    refused(model, r"blocks: k is a plate of indices", blocks={0: [x], 1: [x]})
    refused(model, r"pseudo_priors: got PilotMoments", pseudo_priors=PilotMoments())
    refused(model, r"within_class: got Hamiltonian", within_class=Hamiltonian())


def test_discrete_latents_of_a_plate_are_refused():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=4)
        count = pm.Poisson("count", 1.0 + k, shape=4)
        pm.Normal("y", count, 1.0, observed=np.zeros(4))
    refused(model, r"vars: count is discrete \(int64\)", vars=[k, count])


def test_processes_back_ends_and_states_make_no_difference_to_several_modes():
    """Two chains in one process, in two, and of the graph: the same draws, also resumed.

    `test_processes` and `test_back_ends` have plates whose rows have one mode.
    """

    def fresh(**options):
        with folded_model(4) as model:
            return model, CarlinChib(within_class=RandomWalk(n_moves=2), **options)

    def draws(model, step, cores=1):
        with model, judged_by_few_sweeps():
            return pm.sample(
                step=step,
                tune=20,
                draws=30,
                chains=2,
                cores=cores,
                random_seed=3,
                progressbar=False,
                compute_convergence_checks=False,
            )

    model, step = fresh()
    one, two = draws(model, step), draws(model, step, cores=2)
    other = draws(*fresh(compile_kwargs={"mode": "FAST_COMPILE"}))
    for name, values in one["posterior"].data_vars.items():
        np.testing.assert_array_equal(values, two["posterior"][name])
        np.testing.assert_allclose(values, other["posterior"][name], rtol=1e-7)
    log_weight = one["sample_stats"]["class_log_weight"].values.astype(float)
    rows = np.exp(log_weight.reshape(2, 30, -1, 2)).sum(axis=-1)
    np.testing.assert_allclose(rows, 1.0)
    switched = np.diff(one["posterior"]["k"].values.reshape(2, 30, -1), axis=1) != 0
    counted = one["sample_stats"]["class_n_switched"].values[:, 1:]
    np.testing.assert_array_equal(switched.sum(axis=2), counted)

    step.setup_chain(np.random.default_rng(0), tune=5, draws=5)
    point = step.step(model.initial_point(0))[0]
    state = step.sampling_state
    first = step.step(point)[0]
    copied = cloudpickle.loads(cloudpickle.dumps(step))
    copied.sampling_state = state
    for name, values in copied.step(point)[0].items():
        np.testing.assert_array_equal(values, first[name])


def test_an_observed_index_is_refused():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], observed=[0, 1, 1])
        x = pm.Normal("x", 1.0 * k, 1.0, shape=3)
    with pytest.raises(ValueError, match="class_index: k is observed, so that there is no"):
        PlateDensity(model, k, [x])


def test_data_with_other_rows_than_the_plate_are_named():
    with pm.Model():
        seen = pm.Data("y", np.zeros(12))  # three for each row
        k = pm.Categorical("k", [0.5, 0.5], shape=4)
        x = pm.Normal("x", k, 1.0, shape=4)
        pm.Normal("seen", pm.math.concatenate([x, x, x]), 1.0, observed=seen)
        with pytest.raises(
            ValueError,
            match=r"not independent in the density of seen.*Reshape\{1\} of x keeps the axis",
        ):
            CarlinChib()


def folded_model(n_rows: int) -> pm.Model:
    """In class 0 a row sees x, with one mode, and in class 1 its absolute value, with two."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=n_rows)
        x = pm.Normal("x", 0.5, 3.0, shape=n_rows)
        seen = pt.switch(pt.eq(k, 1), pt.abs(x), 0.6 * x)
        pm.Normal("y", seen, 0.15, observed=np.full(n_rows, 3.0))
    return model


def exact_of_folded() -> np.ndarray:
    """Return of a row P(k = 1), then P(k = 1, x < 0)."""
    x = np.linspace(-8.0, 8.0, 80_001)
    prior = stats.norm.pdf(x, 0.5, 3.0)
    zero, one = (prior * stats.norm.pdf(3.0, seen, 0.15) for seen in (0.6 * x, np.abs(x)))
    return np.array([one.sum(), one[x < 0].sum()]) / (zero.sum() + one.sum())


def test_rows_with_several_modes_have_mixtures_of_them(rng):
    model = folded_model(20)
    search = PlateLaplace(PlateDensity(model, model["k"], [model["x"]]))
    state, plain = rng.bit_generator.state, search([])
    found = search([], rng)
    # the chain's generator is left as it was
    assert rng.bit_generator.state == state
    assert found == search([], rng)
    assert plain.mixtures is None
    # of a class with one mode the first search's end is kept, to the last bit
    np.testing.assert_array_equal(found.mean[0], plain.mean[0])
    np.testing.assert_array_equal(found.mixtures.classes, np.ones(20))
    np.testing.assert_array_equal(found.mixtures.rows, np.arange(20))
    normals = found.mixtures.mixtures.normals
    np.testing.assert_allclose(normals.mean.reshape(20, 2), np.tile([3.0, -3.0], (20, 1)), atol=0.1)
    share, below = exact_of_folded()
    evidence = np.exp(found.log_evidence[:, 0])
    assert evidence[1] / evidence.sum() == pytest.approx(share, abs=0.01)
    believed = np.exp(found.mixtures.mixtures.log_share[0, 1])
    assert believed == pytest.approx(0.9 * below / share + 0.05, abs=0.01)


def largest_z_of_folded(step, rng) -> float:
    with step._density.model:
        posterior = pm.sample(
            draws=2_000,
            tune=100,
            chains=2,
            cores=1,
            step=step,
            progressbar=False,
            compute_convergence_checks=False,
            random_seed=int(rng.integers(2**31)),
        )["posterior"]
    one = posterior["k"].values == 1
    values = np.concatenate([one, one & (posterior["x"].values < 0)], axis=-1)
    batches = values.reshape(2 * 25, -1, values.shape[-1]).mean(axis=1)
    return agreement(batches, np.repeat(exact_of_folded(), 5)).largest_z


def test_rows_with_several_modes_have_their_exact_posterior(rng, monkeypatch):
    with folded_model(5):
        step = CarlinChib()
    assert largest_z_of_folded(step, rng) < LIMIT
    # divided by one mode's normal, a draw of the other would hardly ever be left
    monkeypatch.setattr(PlatePseudoPriors, "log_excess", lambda self, x: np.zeros(x.shape[:-1]))
    assert largest_z_of_folded(step, rng) > 2 * LIMIT


@pytest.mark.parametrize("n_rows", [0, 12])
def test_a_chain_begins_beyond_hard_edges_that_the_search_does_not_see(n_rows, rng):
    """Where a search starts, neither class of a row may have any density."""
    shape = (n_rows,) if n_rows else ()
    centers = np.array([-4.0, 4.0])
    truth = rng.integers(2, size=shape)
    y = centers[truth] + rng.normal(size=shape) + 0.5 * rng.uniform(-1, 1, size=shape)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=shape)
        x = pm.Normal("x", pm.math.stack(list(centers))[k], 1.0, shape=shape)
        pm.Uniform("y", x - 0.5, x + 0.5, observed=y)
        step = CarlinChib(within_class=RandomWalk(n_moves=1))
    step.setup_chain(rng, 0, 5)
    point = model.initial_point(0)
    for _ in range(5):
        point, _ = step.step(point)
        assert (np.abs(point["x"] - y) <= 0.5).all()
        np.testing.assert_array_equal(point["k"], truth)


def test_rows_far_out_in_their_prior_begin(rng):
    """One prior draw in five hundred of each such row has density; the others go on meanwhile."""
    y = np.array([2.8, 2.8, 2.8, 2.8, 0.5, 0.9])
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=6)
        x = pm.Normal("x", 0.2 * k, 1.0, shape=6)
        pm.Uniform("y", x - 0.1, x + 0.1, observed=y)
        step = CarlinChib(within_class=RandomWalk(n_moves=1))
    step.setup_chain(rng, 0, 5)
    point = model.initial_point(0)
    for _ in range(5):
        point, _ = step.step(point)
        assert (np.abs(point["x"] - y) <= 0.1).all()
