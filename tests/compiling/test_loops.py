"""Loops around a density: the same numbers and steps on every back end, data read at every call."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_mcoem.compiling.backends import without_jax
from pymc_mcoem.compiling.loops import compile_loop
from pymc_mcoem.density.class_density import ClassDensity


def shared_density():
    """Return a density whose data are the model's, not arguments."""
    with pm.Model() as model:
        center = pm.Data("center", 2.0)
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", center + k, 1.0)
    return ClassDensity(model, k, [x])


def walked(mode):
    """Return a loop's outputs for two lengths, and for the first after data have been set."""
    density = shared_density()
    steps = pt.tensor("steps", dtype="float64", shape=(None, 1))
    start = pt.tensor("start", dtype="float64", shape=(1,))
    k = pt.scalar("k", dtype="int64")

    def body(step, x, count, k):
        moved = pt.specify_shape(x + step, (1,))
        return [moved, count + 1, density.log_density(k, moved)]

    function = compile_loop(
        density,
        body,
        inputs=[k, steps, start],
        sequences=[steps],
        carried=[start, pt.constant(0, dtype="int64")],
        n_emitted=1,
        fixed=[k],
        last={1},
        mode=mode,
    )
    found = [function(np.array(1), np.ones((4, 1)), np.zeros(1))]
    found.append(function(np.array(1), np.ones((2, 1)), np.zeros(1)))
    with density.model:
        pm.set_data({"center": -1.0})
    # as long as the first: JAX does not trace it again
    found.append(function(np.array(0), np.ones((4, 1)), np.zeros(1)))
    assert all(value.flags.writeable for outputs in found for value in outputs)
    return found


@pytest.mark.parametrize("mode", ["NUMBA", "CVM", "JAX"])
def test_a_loop_walks(run_apart, c_compiler, mode):
    (positions, count, densities), (fewer, few, _), (_, again, others) = run_apart(walked, mode)
    np.testing.assert_array_equal(positions, [[1.0], [2.0], [3.0], [4.0]])
    np.testing.assert_array_equal(fewer, positions[:2])
    assert (count, few, again) == (4, 2, 4)
    normal = np.log(0.5 / np.sqrt(2 * np.pi))
    np.testing.assert_allclose(densities, normal - 0.5 * np.array([2.0, 1.0, 0.0, 1.0]) ** 2)
    np.testing.assert_allclose(others, normal - 0.5 * np.array([2.0, 3.0, 4.0, 5.0]) ** 2)


def said_in_a_fork(mode):
    """Return what a forked process says of JAX, which this one has used."""
    walked(mode)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=say, args=(there, mode))
    child.start()
    said = here.recv() if here.poll(60) else "nothing: it hangs"
    child.kill()
    return said


def say(connection, mode):
    try:
        walked(mode)
    except RuntimeError as error:
        connection.send(str(error))


def test_jax_is_refused_in_a_fork_where_it_would_hang(run_apart):
    assert "does not work in a process that was forked" in run_apart(said_in_a_fork, "JAX")


def said_of_single_precision(mode):
    """Return what is said where somebody has turned double precision off."""
    import jax

    walked(mode)
    jax.config.update("jax_enable_x64", False)
    try:
        walked(mode)
    except ValueError as error:
        return str(error)
    finally:
        jax.config.update("jax_enable_x64", True)


def test_jax_is_refused_in_single_precision(run_apart):
    assert "single precision" in run_apart(said_of_single_precision, "JAX")


def test_what_jax_cannot_compile_is_left_to_numba():
    assert [without_jax(mode) for mode in (None, "CVM", "JAX")] == [None, "CVM", "NUMBA"]
