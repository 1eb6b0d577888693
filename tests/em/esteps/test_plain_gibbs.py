"""Gibbs on shared latents: right where classes overlap, and stuck where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.em.esteps.base import CompiledChains
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.plain_gibbs import PlainGibbs
from tests.helpers.checks import LIMIT, agreement
from tests.helpers.e_step_runs import assert_runs_and_is_stored, largest_z, repeated, split
from tests.helpers.linear_normal import SEPARATED, LinearNormal
from tests.helpers.models import SkewedMixture
from tests.helpers.quadrature import Quadrature

SETTINGS = PlainGibbs(within_class=RandomWalk(3))
STUCK = "class index did not move"


@pytest.fixture(scope="module")
def skewed():
    family = SkewedMixture()
    return family, Quadrature(family, 1000), SETTINGS.compile(family)


@pytest.fixture(scope="module")
def linear():
    family = LinearNormal()
    return family, SETTINGS.compile(family)


# -- where it works ------------------------------------------------------------------------------


def test_statistics_of_overlapping_classes_are_exact(skewed, rng):
    family, quadrature, e_step = skewed
    results = repeated(e_step, split(family), rng, draws=2000)
    for name, z in largest_z(results, quadrature.statistics()).items():
        assert z < LIMIT, name
    assert all(result.troubles == {} for result in results)
    assert results[0].class_index.shape == (2000,)


def test_class_probability_of_overlapping_classes_is_exact(skewed, rng):
    family, quadrature, e_step = skewed
    found = np.array(
        [e_step.class_probability(*split(family), rng, draws=2000, tune=100) for _ in range(50)]
    )
    assert agreement(found, quadrature.class_probability).largest_z < LIMIT


def test_statistics_of_several_latents_are_exact(linear, rng):
    family, e_step = linear
    results = repeated(e_step, family.case, rng, draws=1000)
    for name, z in largest_z(results, family.exact(*family.case)).items():
        assert z < LIMIT, name


# -- where it does not ---------------------------------------------------------------------------


def switches(results):
    return np.mean([np.mean(np.diff(result.class_index) != 0) for result in results])


def test_far_classes_are_never_left(linear, rng):
    """Two latents, centers eight standard deviations apart, weights 0.50, 0.30, 0.19.

    In 50 chains of 1,000 sweeps no switch, so that every weight is 0 or 1 and the mean over chains
    is one third, off by 0.17, however long they are; Carlin-Chib sweeps of the same cost switch
    at more than half of them, and are exact.
    """
    family, e_step = linear
    data = {"value": np.zeros(3)}
    exact = family.exact(data, SEPARATED)
    np.testing.assert_allclose(exact["class_weight"], [0.5035, 0.3021, 0.1944], atol=1e-4)
    stuck = repeated(e_step, (data, SEPARATED), rng, repeats=50, draws=1000)
    assert switches(stuck) == 0.0
    assert all(result.troubles == {STUCK: 1} for result in stuck)
    weights = np.array([result.statistics["class_weight"] for result in stuck])
    np.testing.assert_allclose(weights.max(axis=1), 1.0)
    error = np.sqrt(((weights - exact["class_weight"]) ** 2).mean(axis=0))
    assert (error > 0.39).all()

    burst = CarlinChibBurst(within_class=RandomWalk(3)).compile(family)
    found = repeated(burst, (data, SEPARATED), rng, repeats=50, draws=1000)
    assert switches(found) > 0.5
    for name, z in largest_z(found, exact).items():
        assert z < LIMIT, name
    weights = np.array([result.statistics["class_weight"] for result in found])
    error = np.sqrt(((weights - exact["class_weight"]) ** 2).mean(axis=0))
    assert (error < 0.03).all()


def test_switches_fall_off_with_distance(linear, rng):
    _, e_step = linear
    data = {"value": np.zeros(3)}
    rates = [
        switches(
            repeated(
                e_step,
                (data, SEPARATED | {"center": share * SEPARATED["center"]}),
                rng,
                repeats=20,
                draws=500,
            )
        )
        for share in (0.0, 0.15, 0.3, 0.6)
    ]
    assert (np.diff(rates) < 0).all()
    assert rates[0] > 0.5
    assert rates[-1] < 0.01


# -- what drivers rely on ----------------------------------------------------------------------


def test_online_em_runs_and_is_stored(rng, tmp_path):
    assert_runs_and_is_stored(SETTINGS, rng, tmp_path / "run.nc")


def test_a_chain_is_kept_alive(linear):
    """Two visits are one longer visit, cut where one likes."""
    family, e_step = linear
    assert isinstance(e_step, CompiledChains)
    data, theta = family.case

    def visits(*lengths):
        rng, chain, indices = np.random.default_rng(2), {}, []
        for length in lengths:
            result = e_step.resume(
                data, theta, rng, chain, gains=np.zeros(length), refit=False, keep_fit=True
            )
            chain = result.chain
            indices.append(result.class_index)
        return np.concatenate(indices), chain

    (whole, end), (parts, end_of_parts) = visits(60), visits(25, 35)
    np.testing.assert_array_equal(whole, parts)
    place = {"class_index", "position", "log_step"}
    assert set(end) == place | {"mean", "scale", "whiten", "log_normalizer", "log_evidence"}
    for name, value in end.items():
        np.testing.assert_array_equal(value, end_of_parts[name])
    rng = np.random.default_rng(0)
    result = e_step.resume(data, theta, rng, end, gains=np.ones(3), refit=True, keep_fit=False)
    assert set(result.chain) == place


def test_a_chain_that_does_not_move_is_named(linear, rng):
    family, e_step = linear
    result = e_step(*family.case, rng, {"log_step": np.full(3, 40.0)}, draws=50, tune=0)
    assert result.acceptance == 0.0
    assert "chain did not move within its class" in result.troubles


def test_no_density_anywhere_is_an_error(linear, rng):
    family, e_step = linear
    data, theta = family.case
    wrong = theta | {"noise": np.array(np.nan)}
    with pytest.raises(FloatingPointError, match="plain Gibbs: the log-density is not finite"):
        e_step(data, wrong, rng, e_step.initial_state(), draws=5, tune=2)


def test_no_moves_are_refused():
    with pytest.raises(ValueError, match=r"within_class: RandomWalk\(n_moves=0"):
        PlainGibbs(within_class=RandomWalk(0)).compile(LinearNormal())
