"""Quadratic forms: values, derivatives of both orders, and one product for value and gradient."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.math import Dot

from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.linear_algebra import quadratic_form
from pymc_mcoem.compiling.linear_algebra_numba import replace_products

N = 5


@pytest.fixture
def symmetric(rng):
    factor = rng.normal(size=(N, N))
    return factor + factor.T


def evaluate(graph, given, mode="FAST_COMPILE"):
    return pytensor.function(list(given), graph, mode=mode)(*given.values())


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_values_and_gradients_are_those_of_numpy(symmetric, shape, mode, rng):
    vector = pt.tensor("v", dtype="float64", shape=(*shape, N))
    form = quadratic_form(symmetric, vector)
    value = rng.normal(size=(*shape, N))
    found, slope = evaluate([form, pt.grad(form.sum(), vector)], {vector: value}, mode)
    np.testing.assert_allclose(found, np.einsum("...i,ij,...j", value, symmetric, value))
    np.testing.assert_allclose(slope, 2 * value @ symmetric, atol=1e-12)


def test_second_derivatives_are_twice_the_matrix(symmetric, rng):
    vector = pt.tensor("v", dtype="float64", shape=(N,))
    bend = pt.hessian(quadratic_form(symmetric, vector), vector)
    np.testing.assert_allclose(evaluate(bend, {vector: rng.normal(size=N)}), 2 * symmetric)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_the_gradient_by_the_matrix_is_the_outer_product(symmetric, shape, rng):
    matrix = pt.tensor("M", dtype="float64", shape=(N, N))
    value, weight = rng.normal(size=(*shape, N)), rng.normal(size=shape)
    slope = pt.grad((weight * quadratic_form(matrix, value)).sum(), matrix)
    expected = np.einsum("k,ki,kj", np.ravel(weight), *[value.reshape(-1, N)] * 2)
    np.testing.assert_allclose(evaluate(slope, {matrix: symmetric}), expected)


def test_value_and_gradient_share_their_product(symmetric):
    """Of sums over the matrix there is one in what is compiled."""
    vector = pt.tensor("v", dtype="float64", shape=(N,))
    form = quadratic_form(pt.constant(symmetric), vector)
    function = pytensor.function([vector], [form, pt.grad(form, vector)], mode=interpreted_mode())
    over_columns = [
        node
        for node in function.maker.fgraph.apply_nodes
        if any(each.type.ndim == 2 for each in node.inputs) and node.outputs[0].type.ndim == 1
    ]
    assert len(over_columns) == 1


def test_products_of_any_layout_are_those_of_pytensor(rng):
    """What numba compiles in place of PyTensor's own product."""
    left, right, v = rng.normal(size=(4, 6)), rng.normal(size=(6, 3)), rng.normal(size=6)
    a, b, u = pt.matrix("a"), pt.matrix("b"), pt.vector("u")
    outputs = [a @ b, a @ u, a[:, ::2] @ b[::2], (u @ b), (b.T @ a.T), a[:, 1:4] @ u[::-2]]
    given = {a: left, b: right, u: v}
    expected = evaluate(outputs, given)
    graph = pytensor.function(list(given), outputs, mode="NUMBA").maker.fgraph.clone()
    replace_products(graph)
    assert not [node for node in graph.apply_nodes if isinstance(node.op, Dot)]
    found = pytensor.function(graph.inputs, graph.outputs, mode="NUMBA")(*given.values())
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
