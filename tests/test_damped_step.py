"""The damped step as one operator: against NumPy, on every back end, and where there is none."""

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_mcoem.damped_step import MOST_DAMPING, DampedStep, damped_step

LEAST, RAISING = 0.1, 3.0


def compiled(mode):
    inputs = [
        pt.matrix("matrix", dtype="float64"),
        pt.matrix("metric", dtype="float64"),
        pt.vector("gradient", dtype="float64"),
        pt.scalar("damping", dtype="float64"),
    ]
    outputs = damped_step(*inputs, least=LEAST, raising=RAISING, mode=mode)
    return pytensor.function(inputs, outputs, mode=mode)


def by_hand(matrix, metric, gradient, damping):
    """The rule in words of NumPy; eigenvalues in place of a factorisation."""
    while damping <= MOST_DAMPING:
        damped = matrix + damping * metric
        if np.linalg.eigvalsh(damped).min() > 0:
            step = np.linalg.solve(damped, gradient)
            return step, damping, step @ metric @ step
        damping = max(RAISING * damping, LEAST)
    return np.full(len(gradient), np.nan), damping, np.nan


def problem(rng, n, lowest):
    """A matrix whose eigenvalues begin at `lowest` of the metric, a metric, and a gradient."""
    factor = rng.normal(size=(n, n)) + 2.0 * np.eye(n)
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    values = np.linspace(lowest, lowest + 5.0, n)
    metric = factor @ factor.T
    matrix = factor @ basis @ np.diag(values) @ basis.T @ factor.T
    return (matrix + matrix.T) / 2, (metric + metric.T) / 2, rng.normal(size=n)


def check(mode):
    """Compare with NumPy for all sizes around the blocks, definite and indefinite."""
    made, rng = compiled(mode), np.random.default_rng(4)

    def function(*given):
        step, used, length = made(*given)
        return np.asarray(step), float(used), float(length)

    seen = set()
    for n in (*range(1, 11), 23, 78):
        for lowest in (0.5, -0.05, -0.7, -40.0):
            for damping in (0.0, 0.02, 2.0):
                given = (*problem(rng, n, lowest), np.float64(damping))
                step, used, length = function(*given)
                expected = by_hand(*given)
                np.testing.assert_allclose(step, expected[0], rtol=1e-6, atol=1e-9)
                assert used == pytest.approx(expected[1], rel=1e-12)
                assert length == pytest.approx(expected[2], rel=1e-6)
                seen.add(used > damping)
    assert seen == {True, False}
    for n in (1, 2, 4, 5, 9):
        matrix, metric, gradient = problem(rng, n, 1.0)
        for wrong in (np.nan, np.inf, -np.inf):
            for i, j in itertools.combinations_with_replacement(range(n), 2):
                broken = matrix.copy()
                broken[i, j] = broken[j, i] = wrong
                step, used, _ = function(broken, metric, gradient, np.float64(0.0))
                assert np.isnan(step).all()
                assert used > MOST_DAMPING
    matrix, metric, gradient = problem(rng, 5, 1.0)
    # what is not to be computed at all
    step, used, _ = function(matrix, metric, gradient, np.float64(np.inf))
    assert np.isnan(step).all()
    assert used == np.inf
    step, used, length = function(matrix, metric, np.zeros(5), np.float64(0.0))
    assert (used, length) == (0.0, 0.0)
    assert not step.any()


@pytest.mark.parametrize("backend", ["numba", "jax", "cvm"])
def test_steps_are_those_of_numpy_on_every_back_end(backend, run_apart):
    run_apart(check, backend.upper())


def test_the_step_goes_uphill_whatever_the_curvature(rng):
    function = compiled("CVM")
    for _ in range(20):
        matrix, metric, gradient = problem(rng, 6, -3.0)
        step, _, _ = function(matrix, metric, gradient, np.float64(0.0))
        assert step @ gradient > 0


def test_what_is_no_matrix_or_of_single_precision_is_refused():
    vector, scalar = pt.vector("v", dtype="float64"), pt.scalar("s", dtype="float64")
    matrix = pt.matrix("m", dtype="float64")
    for given in (
        (vector, matrix, vector, scalar),
        (matrix, matrix, vector, vector),
        (matrix, matrix.astype("float32"), vector, scalar),
    ):
        with pytest.raises(TypeError, match="damped_step: got"):
            DampedStep(LEAST, RAISING)(*given)


@pytest.mark.parametrize("settings", [(0.0, 3.0), (0.1, 1.0), (float("nan"), 3.0)])
def test_damping_that_would_not_grow_is_refused(settings):
    with pytest.raises(ValueError, match=r"least, raising: got .*; damping would not grow"):
        DampedStep(*settings)


def test_shapes_are_known_before_anything_is_computed():
    matrix = pt.matrix("m", dtype="float64", shape=(4, 4))
    gradient = pt.tensor("g", dtype="float64", shape=(4,))
    step, used, length = damped_step(
        matrix,
        matrix,
        gradient,
        pt.constant(0.0, dtype="float64"),
        least=1.0,
        raising=2.0,
        mode=None,
    )
    assert (step.type.shape, used.type.ndim, length.type.ndim) == ((4,), 0, 0)
    size = pytensor.function([matrix, gradient], step.shape, mode="CVM", on_unused_input="ignore")
    assert size(np.eye(4), np.ones(4)).tolist() == [4]


COMPILED_ELSEWHERE = """
import pickle, sys, warnings
import numpy as np
import pytensor
warnings.simplefilter("error")  # numba's word that it would call Python
inputs, outputs, given, mode = pickle.load(sys.stdin.buffer)
found = pytensor.function(inputs, outputs, mode=mode)(*given)
print(*(float(number).hex() for number in np.hstack(found)))
"""


@pytest.mark.parametrize("mode", ["NUMBA", "JAX", "CVM"])
def test_a_process_that_only_unpickles_the_graph_compiles_the_same(mode):
    # as the worker of a spawned chain does: it imports nothing but what the pickle names
    if mode == "JAX":
        pytest.importorskip("jax")
    inputs = [pt.dmatrix(), pt.dmatrix(), pt.dvector(), pt.dscalar()]
    outputs = damped_step(*inputs, least=LEAST, raising=RAISING, mode=mode)
    given = (*problem(np.random.default_rng(8), 7, -0.5), np.float64(0.01))
    here = np.hstack(
        [np.asarray(each) for each in pytensor.function(inputs, outputs, mode=mode)(*given)]
    )
    there = subprocess.run(
        [sys.executable, "-c", COMPILED_ELSEWHERE],
        input=pickle.dumps((inputs, outputs, given, mode)),
        capture_output=True,
        check=True,
    )
    assert there.stdout.decode().split() == [float(number).hex() for number in here]
