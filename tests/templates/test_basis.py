from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_mcoem.templates import GaussianBasis
from tests.helpers.image_oracle import design_matrix

AXES = {
    1: [np.linspace(0, 2, 5)],
    2: [np.linspace(-1, 1, 4), np.linspace(0, 1, 3)],
    3: [np.linspace(-1, 1, 3), np.linspace(0, 1, 2), np.linspace(0, 2, 4)],
}


def value(expression):
    return expression.eval(mode="FAST_COMPILE")


@pytest.fixture(params=[1, 2, 3], ids="{}d".format)
def axes(request):
    return AXES[request.param]


def test_regular_grid_is_free_centers_in_c_order(axes, rng):
    regular = GaussianBasis.regular(axes, 0.7)
    free = GaussianBasis(regular.centers, 0.7)
    points = rng.normal(size=(6, len(axes)))
    coefficients = rng.normal(size=regular.n_basis)
    np.testing.assert_allclose(
        regular.centers, np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], -1)
    )
    expected = design_matrix(points, regular.centers, 0.7)
    for basis in (regular, free):
        np.testing.assert_allclose(value(basis.design(points)), expected, rtol=1e-12)
        np.testing.assert_allclose(basis.matrix(points), expected, rtol=1e-12)
        np.testing.assert_allclose(
            value(basis.evaluate(points, coefficients)), expected @ coefficients, rtol=1e-10
        )
    np.testing.assert_allclose(
        value(regular.gradient(points, coefficients)),
        value(free.gradient(points, coefficients)),
        atol=1e-12,
    )


def test_gradient_is_the_derivative_of_evaluate(axes, rng):
    points = rng.normal(size=(6, len(axes)))
    variable = pt.matrix("points")
    for basis in (
        GaussianBasis.regular(axes, 0.7),
        GaussianBasis(rng.normal(size=(7, len(axes))), 0.9),
    ):
        coefficients = rng.normal(size=basis.n_basis)
        automatic = pt.grad(basis.evaluate(variable, coefficients).sum(), variable)
        gradient = basis.gradient(variable, coefficients)
        given = {variable: points}
        np.testing.assert_allclose(
            gradient.eval(given, mode="FAST_COMPILE"),
            automatic.eval(given, mode="FAST_COMPILE"),
            atol=1e-12,
        )
        step = 1e-6
        for axis in range(len(axes)):
            shift = step * np.eye(len(axes))[axis]
            difference = (
                basis.matrix(points + shift) - basis.matrix(points - shift)
            ) @ coefficients
            np.testing.assert_allclose(
                gradient.eval(given, mode="FAST_COMPILE")[:, axis],
                difference / (2 * step),
                atol=1e-7,
            )


def test_gram_holds_the_kernels_at_their_centers(rng):
    centers = rng.normal(size=(5, 2))
    gram = GaussianBasis(centers, 0.8).gram()
    np.testing.assert_allclose(gram, design_matrix(centers, centers, 0.8))
    assert np.linalg.eigvalsh(gram)[0] > 0


def test_a_vector_is_centers_on_the_line():
    basis = GaussianBasis([0.0, 1.0, 2.0], 1.0)
    assert (basis.n_basis, basis.n_dims) == (3, 1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GaussianBasis(np.zeros((2, 2, 2)), 1.0), "centers has shape"),
        (lambda: GaussianBasis([], 1.0), "centers has shape"),
        (lambda: GaussianBasis([0.0, np.nan], 1.0), "centers holds"),
        (lambda: GaussianBasis([0.0], 0.0), "bandwidth is 0.0"),
        (lambda: GaussianBasis([0.0], [1.0, 2.0]), "bandwidth is"),
        (lambda: GaussianBasis.regular([], 1.0), "axes has shapes"),
        (lambda: GaussianBasis.regular([[[0.0]]], 1.0), "axes has shapes"),
        (lambda: GaussianBasis.regular([[0.0, np.inf]], 1.0), "centers holds"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("n_axes", [1, 2, 3])
def test_projection_is_the_transposed_design(n_axes, rng):
    axes = [np.linspace(-1, 1, 3 + k) for k in range(n_axes)]
    points, weights = rng.standard_normal((7, n_axes)), rng.standard_normal(7)
    regular = GaussianBasis.regular(axes, bandwidth=0.7)
    free = GaussianBasis(regular.centers, bandwidth=0.7)
    expected = free.matrix(points).T @ weights
    for basis in (regular, free):
        found = basis.project(points, weights).eval(mode="FAST_COMPILE")
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
        design = basis.design(points).eval(mode="FAST_COMPILE")
        np.testing.assert_allclose(design, free.matrix(points), rtol=1e-12, atol=1e-14)
