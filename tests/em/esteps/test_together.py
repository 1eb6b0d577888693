"""Many observations in one call of JAX get what each gets alone, on numba."""

from __future__ import annotations

import numpy as np
import pytest

import pymc_mcoem as mcoem
from pymc_mcoem.em.burst import adaptation_gains
from tests.helpers.linear_normal import LinearNormal
from tests.helpers.representatives import by_default

WALK, SWING = mcoem.moves.RandomWalk(3), mcoem.moves.Hamiltonian(2, 3)
MOVES = {"walk": WALK, "swing": SWING}
N, DRAWS, TUNE = 11, 20, 10


def alone_and_together(settings, backend):
    """Return the E-step of settings, and whether it explains together."""
    given = {**settings, "backend": backend, **({"at_once": 4} if backend == "jax" else {})}
    return mcoem.esteps.CarlinChibBurst(**given), backend == "jax"


def generators(seed, n=N):
    return [np.random.default_rng([seed, at]) for at in range(n)]


def results(settings, backend, seed=4):
    """Return results for the observations of a linear model, of one of which nothing is known."""
    family = LinearNormal()
    stream = family.draw(np.random.default_rng(3), N)
    burst, is_together = alone_and_together(settings, backend)
    e_step, theta = burst.compile(family), family.declared_parameters()
    data, state = [family.encode(y) for y in stream], e_step.initial_state()
    lengths = {"draws": DRAWS, "tune": TUNE}
    if is_together:
        return e_step.explain_all(data, theta, generators(seed), state, **lengths)
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


@pytest.mark.parametrize("move", MOVES)
def test_observations_get_together_what_each_gets_alone(run_apart, move):
    settings = {"within_class": MOVES[move]}
    assert_alike(run_apart(results, settings, "jax"), results(settings, "numba"))
