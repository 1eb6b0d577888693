"""Bursts whose draws are kept: against quadrature, by whoever, and what is refused."""

import json
import logging

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_mcoem as mcoem
from pymc_mcoem.em import burst, burst_chains
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.runs.executor import Dispatcher
from tests.helpers.checks import LIMIT, chain_agreement
from tests.helpers.models import N_CLASSES, ScaledMixture
from tests.helpers.quadrature import Quadrature

# as in `tests.helpers.compiled`
E_STEP = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(3))


@pytest.fixture(scope="module")
def family():
    """Three latents, one of them positive, and classes that overlap."""
    return ScaledMixture()


@pytest.fixture(scope="module")
def quadrature(family):
    return Quadrature(family, 80)


def sample(family, seed, **options):
    given = {"e_step": E_STEP, "draws": 60, "tune": 20, "chains": 2, "progressbar": False}
    return mcoem.sample_burst(
        family, family.values["value"], random_seed=seed, **{**given, **options}
    )


def positions(found):
    """Draws on the scale on which they were sampled, (chain, draw, n_latents)."""
    posterior = found["posterior"]
    return np.stack([posterior["first"], posterior["second"], np.log(posterior["scale"])], axis=-1)


def test_chains_have_the_exact_posterior(family, quadrature, rng):
    found = sample(family, rng.integers(2**32), draws=20_000, tune=500, chains=1)
    for index, position in zip(
        found["posterior"]["class_index"].values, positions(found), strict=True
    ):
        judged = chain_agreement(index, position, quadrature)
        assert judged.largest_z < LIMIT
        assert judged.effective_sample_size > 1_000


def test_a_chain_at_another_theta_has_another_posterior(family, quadrature, rng):
    # so that the test above could fail
    theta = family.to_dataset(family.model_parameters())
    theta["weights"][:] = [0.2, 0.35, 0.45]
    found = sample(family, rng.integers(2**32), draws=20_000, tune=500, chains=1, parameters=theta)
    index = found["posterior"]["class_index"].values[0]
    assert chain_agreement(index, positions(found)[0], quadrature).largest_z > LIMIT


def test_a_seed_that_was_drawn_is_recorded(family):
    found = sample(family, None)
    again = sample(family, json.loads(found["posterior"].attrs["random_seed"]))
    assert again["posterior"].to_dataset().identical(found["posterior"].to_dataset())


def test_a_chain_is_a_burst_of_the_e_step(family):
    found = sample(family, 3, chains=1)
    seed = np.random.SeedSequence(3).spawn(1)[0]
    compiled = compiled_for(family, E_STEP)
    _, sweeps = compiled.with_draws(
        family.encode(family.values["value"]),
        family.model_parameters(),
        np.random.default_rng(seed),
        compiled.initial_state(),
        draws=60,
        tune=20,
    )
    np.testing.assert_array_equal(found["posterior"]["class_index"][0], sweeps.class_index[20:])
    np.testing.assert_allclose(positions(found)[0], sweeps.position[20:], rtol=1e-12)
    np.testing.assert_array_equal(
        found["sample_stats"]["class_acceptance"][0], sweeps.acceptance[20:]
    )
    weight = np.exp(sweeps.log_weight[20:] - sweeps.log_weight[20:].max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        np.exp(found["sample_stats"]["class_log_weight"][0]),
        weight / weight.sum(axis=1, keepdims=True),
        rtol=1e-10,
    )


def test_the_step_method_agrees(family, rng):
    """Means of two samplers of one posterior, with their Monte Carlo errors."""
    found = sample(family, rng.integers(2**32), draws=1_500, tune=300)
    with family.model:
        step = mcoem.CarlinChib(within_class=mcoem.moves.RandomWalk(2))
        drawn = pm.sample(
            1_500,
            tune=300,
            chains=2,
            cores=1,
            step=step,
            progressbar=False,
            random_seed=int(rng.integers(2**32)),
            compute_convergence_checks=False,
        )
    for name in ("class_index", "first", "second", "scale"):
        ours, theirs = found["posterior"][name].values, drawn["posterior"][name].values
        error = np.hypot(*(float(np.asarray(az.mcse(each))) for each in (ours, theirs)))
        assert abs(ours.mean() - theirs.mean()) < LIMIT * error


def test_the_length_of_a_block_changes_nothing(family, monkeypatch):
    whole = sample(family, 5)
    monkeypatch.setattr(burst, "_AT_ONCE", 7)
    parts = sample(family, 5)
    assert whole["posterior"].to_dataset().identical(parts["posterior"].to_dataset())
    assert whole["sample_stats"].to_dataset().identical(parts["sample_stats"].to_dataset())


def test_draws_are_the_same_whoever_makes_them(family):
    # one worker suffices: each compiles for seconds
    alone = sample(family, 5, chains=3)
    shared = sample(family, 5, chains=3, executor=1)
    assert alone.identical(shared)


def test_statistics_that_are_not_asked_for_change_no_draw(family):
    averaged = mcoem.esteps.CarlinChibBurst(
        within_class=mcoem.moves.RandomWalk(3), rao_blackwell=True
    )
    assert sample(family, 5).identical(sample(family, 5, e_step=averaged))


@pytest.mark.slow
def test_jax_makes_the_same_draws(family, run_apart):
    theirs = run_apart(draws_of, "jax")
    for ours, other in zip(draws_of("numba"), theirs, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-9, atol=1e-12)


def draws_of(backend):
    """Draws of a chain that other back ends take in parts."""
    burst._AT_ONCE = 7
    e_step = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(2), backend=backend)
    try:
        found = sample(ScaledMixture(), 8, e_step=e_step, draws=15, tune=5, chains=1)
    finally:
        burst._AT_ONCE = 1_000
    return found["posterior"]["class_index"].values, positions(found)


def test_chains_differ_and_a_seed_makes_them_again(family):
    found, again, other = sample(family, 1), sample(family, 1), sample(family, 2)
    assert found.identical(again)
    first = found["posterior"]["first"].values
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, other["posterior"]["first"].values)


def test_more_chains_leave_the_first_ones_as_they_are(family):
    two, three = sample(family, 1), sample(family, 1, chains=3)
    assert np.array_equal(two["posterior"]["first"], three["posterior"]["first"][:2])


def test_arviz_and_the_class_diagnostics_read_it(family, quadrature):
    found = sample(family, 4, draws=1_500)
    assert 100 < float(az.ess(found)["first"]) < 6_000
    table = mcoem.class_index_summary(found).table
    exact = quadrature.class_probability
    assert (abs(table["weight"] - exact) < LIMIT * table["weight_mcse"]).all()
    latents = mcoem.class_latents(found, latents=["scale"])
    assert (latents["scale"].sel(summary="mean") > 0).all()
    assert latents.sizes["class"] == N_CLASSES


def test_axes_have_the_names_of_the_model():
    mixture = mcoem.TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    image = np.full((3, 3), np.nan)
    image[0] = 1.0
    found = mcoem.sample_burst(mixture, image, draws=4, tune=0, chains=1, progressbar=False)
    assert found["posterior"]["deformation"].dims == ("chain", "draw", "deformation_coordinate")
    labels = found["posterior"]["deformation_coordinate"].values.tolist()
    assert labels == list(mixture.settings.deformation.labels)
    assert found["sample_stats"]["class_log_weight"].dims == ("chain", "draw", "class")
    assert found["constant_data"]["templates"].dims == ("class", "basis")
    assert found["constant_data"]["observed_mask"].values.tolist() == [[1] * 3, [0] * 3, [0] * 3]


def test_troubles_of_pseudo_priors_are_told(family, caplog):
    hurried = mcoem.esteps.CarlinChibBurst(
        pseudo_priors=mcoem.pseudo_priors.Laplace(max_iterations=1, race=None),
        within_class=mcoem.moves.RandomWalk(2),
    )
    with caplog.at_level(logging.WARNING, "pymc_mcoem"):
        sample(family, 1, e_step=hurried)
    assert "mode search: not converged in 6 of 6 pseudo-priors" in caplog.text


def test_a_chain_that_does_not_move_is_named(family, caplog, monkeypatch):
    monkeypatch.setattr(mcoem.moves.RandomWalk, "initial_log_step", lambda self, n_latents: 25.0)
    far = mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(2))
    with caplog.at_level(logging.WARNING, "pymc_mcoem"):
        sample(family, 1, e_step=far, tune=0)
    assert "chains 0, 1 did not move within their class; give more tune" in caplog.text


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"draws": 0}, ValueError, "draws: got 0; give a whole number from 1"),
        ({"draws": 2.5}, ValueError, "draws: got 2.5"),
        ({"tune": -1}, ValueError, "tune: got -1; give a whole number from 0"),
        ({"chains": 0}, ValueError, "chains: got 0"),
        ({"executor": 0}, ValueError, "executor: got 0"),
        ({"executor": "two"}, TypeError, "executor: got 'two'"),
        (
            {"e_step": mcoem.esteps.Exact()},
            TypeError,
            "e_step: got a Exact; give a CarlinChibBurst",
        ),
        ({"parameters": {"weights": [1.0]}}, ValueError, "parameters: got"),
    ],
)
def test_what_cannot_be_is_refused(family, options, kind, message):
    with pytest.raises(kind, match=message):
        sample(family, 1, **options)


def test_a_seed_that_is_none_is_refused(family):
    with pytest.raises(ValueError, match="random_seed: got -1"):
        sample(family, -1)


def test_a_theta_without_density_is_an_error_of_its_name(family):
    theta = family.to_dataset(family.model_parameters())
    theta["noise"][...] = -1.0
    with pytest.raises(FloatingPointError, match="the log-density is not finite for any class"):
        sample(family, 1, parameters=theta)


def test_what_cannot_be_taken_back_fails_before_it_is_sampled(family, monkeypatch):
    def refuse(*_):
        raise NotImplementedError("no transform")

    monkeypatch.setattr(burst_chains, "ModelScale", refuse)
    monkeypatch.setattr(burst_chains, "Dispatcher", None)
    with pytest.raises(NotImplementedError, match="no transform"):
        sample(family, 1)


def test_workers_are_ended_by_an_interrupt(family, monkeypatch):
    closed = []

    class Interrupted(Dispatcher):
        def answers(self, *arguments, **options):
            raise KeyboardInterrupt

        def close(self):
            closed.append(self)

    monkeypatch.setattr(burst_chains, "Dispatcher", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample(family, 1, executor=2)
    assert len(closed) == 1


def test_an_observation_that_the_family_refuses_is_named(family):
    with pytest.raises(ValueError, match=r"shape \(7,\)"):
        mcoem.sample_burst(family, np.ones(7), e_step=E_STEP, progressbar=False)
