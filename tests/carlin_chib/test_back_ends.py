"""Numba, C and JAX make the same draws from the same generator, are reseeded, and go on."""

from __future__ import annotations

from functools import cache
from itertools import product

import cloudpickle
import numpy as np
import pytest

from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump
from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import Independence, RandomWalk
from pymc_mcoem.carlin_chib.step import CarlinChib
from tests.helpers.count_plate import counts_model
from tests.helpers.nested_blocks import BLOCKS, nested_model
from tests.helpers.representatives import by_default
from tests.helpers.step_shapes import shared_model

N_TUNE, N_DRAWS = 15, 25


CASES = {
    "random walk, tilted": (shared_model, {"within_class": RandomWalk(3), "equalize_visits": True}),
    "hamiltonian, jumps": (
        shared_model,
        {
            "within_class": Hamiltonian(n_leapfrog=3),
            "jump": AnnealedJump(n_temperatures=3, n_leapfrog=2),
        },
    ),
    "blocks, frozen": (
        nested_model,
        {"blocks": BLOCKS, "within_class": Independence(2), "auxiliaries": "frozen"},
    ),
    "blocks, frozen, hamiltonian, jumps": (
        nested_model,
        {
            "blocks": BLOCKS,
            "within_class": Hamiltonian(n_leapfrog=3),
            "auxiliaries": "frozen",
            "jump": AnnealedJump(n_temperatures=3, n_leapfrog=2),
        },
    ),
    "plate, frozen, metropolized": (
        counts_model,
        {"within_class": RandomWalk(2), "index_move": "metropolized", "auxiliaries": "frozen"},
    ),
}


@cache
def make(name, mode):
    """Make a step for one of PyTensor's modes, once in each process."""
    build, options = CASES[name]
    model = build()
    with model:
        return model, CarlinChib(compile_kwargs={"mode": mode}, **options)


def chain(model, step, seed):
    """Return all values of one chain, (n_steps, n_values)."""
    step.setup_chain(np.random.default_rng(seed), tune=N_TUNE, draws=N_DRAWS)
    point = model.initial_point(0)
    rows = []
    for t in range(N_TUNE + N_DRAWS):
        if t == N_TUNE:
            step.stop_tuning()
        point = step.step(point)[0]
        rows.append(np.concatenate([np.ravel(value) for value in point.values()]))
    return np.array(rows)


def chains(name, mode):
    """Return the chains of seeds 5, 6 and again 5, of one step."""
    model, step = make(name, mode)
    return [chain(model, step, seed) for seed in (5, 6, 5)]


def stopped_and_going_on(name, mode):
    """Return five draws of a step, and the same five of a copy that takes over its state."""
    model, step = make(name, mode)
    step.setup_chain(np.random.default_rng(2), tune=5, draws=20)
    point = model.initial_point(0)
    for _ in range(8):
        point = step.step(point)[0]
    state, copied = step.sampling_state, cloudpickle.dumps(step)
    other = cloudpickle.loads(copied)
    other.setup_chain(np.random.default_rng(99), tune=5, draws=20)
    other.sampling_state = state
    found = []
    for each in (step, other):
        there = point
        for _ in range(5):
            there, [stats] = each.step(there)
            told = [stats.get("class_equalizing_log_weight", 0.0), stats["class_log_weight"]]
            found.append(np.concatenate([np.ravel(value) for value in (*there.values(), *told)]))
    return np.array(found[:5]), np.array(found[5:])


@pytest.mark.parametrize(
    ("mode", "name"),
    by_default(
        product(["FAST_COMPILE", "CVM", "JAX"], CASES),
        {("JAX", "blocks, frozen, hamiltonian, jumps")},
    ),
)
def test_every_back_end_draws_the_same(run_apart, request, name, mode):
    if mode == "CVM":
        request.getfixturevalue("c_compiler")
    reference = chain(*make(name, "NUMBA"), seed=5)
    first, another, again = run_apart(chains, name, mode)
    np.testing.assert_allclose(first, reference, rtol=1e-6, atol=1e-9)
    # another seed gives another chain, and the first seed the first chain again
    assert not np.allclose(another, reference)
    np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize(
    ("mode", "name"),
    by_default(
        product(["NUMBA", "CVM", "JAX"], CASES),
        {
            ("NUMBA", "random walk, tilted"),
            ("NUMBA", "blocks, frozen, hamiltonian, jumps"),
            ("NUMBA", "plate, frozen, metropolized"),
            ("JAX", "blocks, frozen, hamiltonian, jumps"),
        },
    ),
)
def test_a_state_goes_on_as_if_never_stopped(run_apart, c_compiler, name, mode):
    expected, found = run_apart(stopped_and_going_on, name, mode)
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(expected[0], expected[-1])
