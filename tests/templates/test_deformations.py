from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_mcoem.templates import DisplacementField, GaussianBasis, RigidMotion
from tests.helpers.image_oracle import neighbor_correlation, warp_of_images

LANDMARKS = np.array([[row, column] for row in (-0.5, 0.0, 0.5) for column in (-0.5, 0.0, 0.5)])


def cases():
    field = DisplacementField(LANDMARKS, 0.8)
    line = DisplacementField([0.0, 0.5, 1.0], 0.6)
    return {
        "rigid": RigidMotion(0.1),
        "field": field,
        "line": line,
        "rigid+field": RigidMotion(0.1) + field,
        "field+rigid+field": field + (RigidMotion(0.1) + field),
    }


@pytest.fixture(params=list(cases()))
def deformation(request):
    return cases()[request.param]


def test_rigid_motion_plus_field_is_the_papers_warp(rng):
    points, beta = rng.normal(size=(7, 2)), rng.normal(size=24)
    warped = (RigidMotion() + DisplacementField(LANDMARKS, 0.8)).warp(points, beta)
    np.testing.assert_allclose(
        warped.eval(mode="FAST_COMPILE"), warp_of_images(points, LANDMARKS, 0.8, beta), rtol=1e-12
    )


def test_displacements_of_parts_add_up(rng):
    rigid, field = RigidMotion(), DisplacementField(LANDMARKS, 0.8)
    points, beta = rng.normal(size=(7, 2)), rng.normal(size=24)
    parts = [rigid.warp(points, beta[:6]), field.warp(points, beta[6:])]
    total = sum(part.eval(mode="FAST_COMPILE") - points for part in parts)
    for combined, order in ((rigid + field, beta), (field + rigid, np.roll(beta, 18))):
        warped = combined.warp(points, order).eval(mode="FAST_COMPILE")
        np.testing.assert_allclose(warped - points, total, atol=1e-12)


def test_the_mean_leaves_points_where_they_are(deformation, rng):
    points = rng.normal(size=(5, deformation.n_dims))
    warped = deformation.warp(points, deformation.mean).eval(mode="FAST_COMPILE")
    np.testing.assert_allclose(warped, points, atol=1e-14)


def test_jacobian_is_the_derivative_of_the_warped_template(deformation, rng):
    points = rng.normal(size=(6, deformation.n_dims))
    basis = GaussianBasis(rng.normal(size=(8, deformation.n_dims)), 1.1)
    coefficients = rng.normal(size=8)
    beta = pt.vector("beta")
    warped = deformation.warp(points, beta)
    curve = basis.evaluate(warped, coefficients)
    jacobian = deformation.jacobian(points, beta, basis.gradient(warped, coefficients)).T
    evaluate = pytensor.function([beta], [curve, jacobian], mode="FAST_COMPILE")
    at = deformation.mean + 0.3 * rng.normal(size=deformation.n_parameters)
    differences = []
    for shift in 1e-6 * np.eye(deformation.n_parameters):
        differences.append((evaluate(at + shift)[0] - evaluate(at - shift)[0]) / 2e-6)
    np.testing.assert_allclose(evaluate(at)[1], np.transpose(differences), atol=1e-7)


def test_jacobian_equals_automatic_differentiation(rng):
    deformation = RigidMotion(0.1) + DisplacementField(LANDMARKS, 0.8)
    points = rng.normal(size=(6, 2))
    basis = GaussianBasis.regular([np.linspace(-1, 1, 4)] * 2, 0.9)
    coefficients = rng.normal(size=16)
    beta = pt.vector("beta")
    warped = deformation.warp(points, beta)
    weights = pt.vector("weights")
    automatic = pt.grad(pt.dot(weights, basis.evaluate(warped, coefficients)), beta)
    jacobian = deformation.jacobian(points, beta, basis.gradient(warped, coefficients)).T
    ours = pt.dot(weights, jacobian)
    evaluate = pytensor.function([beta, weights], [automatic, ours], mode="FAST_COMPILE")
    at = deformation.mean + 0.3 * rng.normal(size=24)
    for direction in np.eye(6):
        expected, found = evaluate(at, direction)
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_prior_is_a_proper_gaussian_with_labels(deformation):
    size = deformation.n_parameters
    assert deformation.mean.shape == (size,)
    assert deformation.covariance.shape == (size, size)
    np.testing.assert_array_equal(deformation.covariance, deformation.covariance.T)
    assert np.linalg.eigvalsh(deformation.covariance)[0] > 0
    assert deformation.learned.shape == (size,)
    assert len(set(deformation.labels)) == size
    # nothing joins learned and fixed coordinates
    across = deformation.covariance[np.ix_(deformation.learned, ~deformation.learned)]
    assert not across.any()


def test_only_displacements_are_learned():
    both = RigidMotion(0.3) + DisplacementField(LANDMARKS, 0.8)
    np.testing.assert_array_equal(both.learned, [False] * 6 + [True] * 18)
    np.testing.assert_allclose(both.covariance[:6, :6], 0.3 * np.eye(6))


def test_neighbors_are_correlated_axis_by_axis():
    field = DisplacementField(LANDMARKS, 0.8, correlation=0.2)
    expected = np.kron(np.eye(2), neighbor_correlation(9, 0.2))
    np.testing.assert_allclose(field.covariance, expected)
    line = DisplacementField([1.0, 0.0, 2.0], 0.8, correlation=0.1)
    np.testing.assert_allclose(line.covariance, [[1, 0.1, 0.1], [0.1, 1, 0], [0.1, 0, 1]])


def test_scattered_landmarks_are_uncorrelated(rng):
    field = DisplacementField(rng.normal(size=(5, 2)), 0.8)
    np.testing.assert_array_equal(field.covariance, np.eye(10))


def test_the_first_start_is_undeformed(deformation):
    """Searches cool from the first one."""
    starts = deformation.starts()
    assert starts.shape[1] == deformation.n_parameters
    np.testing.assert_array_equal(starts[0], deformation.mean)


def test_starts_of_a_sum_are_all_combinations():
    class Turned(RigidMotion):
        def starts(self):
            return self.mean + np.array([[0.0] * 6, [0.35] + [0.0] * 5])

    starts = (Turned() + Turned()).starts()
    assert starts.shape == (4, 12)
    assert len(np.unique(starts, axis=0)) == 4


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RigidMotion(0.0), "variance is 0.0"),
        (lambda: RigidMotion(np.nan), "variance is nan"),
        (lambda: DisplacementField(np.zeros((0, 2)), 1.0), "landmarks has shape"),
        (lambda: DisplacementField([[0.0, np.nan]], 1.0), "landmarks has shape"),
        (lambda: DisplacementField([[0.0, 0.0]], -1.0), "width is -1.0"),
        (lambda: DisplacementField(LANDMARKS, 1.0, correlation=0.9), "correlation is 0.9"),
        (lambda: RigidMotion() + DisplacementField([0.0], 1.0), "dimensions"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


POINTS = np.stack([part.ravel() for part in np.meshgrid(*[np.linspace(-1, 1, 7)] * 2)][::-1], -1)


def grid_field(width=0.5):
    axes = [np.linspace(-0.5, 0.5, 3), np.linspace(-0.4, 0.5, 4)]
    return DisplacementField.on_grid(axes, width)


SCATTERED = np.random.default_rng(4).normal(size=(9, 2))
FIELDS = {
    "grid": (grid_field(), POINTS),
    "rectangle": (grid_field(), POINTS.reshape(7, 7, 2)[:4].reshape(-1, 2)),
    "scattered points": (grid_field(), SCATTERED),
    "turned grid": (grid_field(), POINTS[::-1].copy()),
    "scattered landmarks": (DisplacementField(SCATTERED[:5], 0.5), POINTS),
}


@pytest.mark.parametrize("name", FIELDS)
def test_sums_of_a_field_are_those_of_its_derivatives(name, rng):
    """On a grid they are taken one axis after the other."""
    field, points = FIELDS[name]
    gradient = rng.normal(size=(len(points), 2)) * (rng.uniform(size=(len(points), 1)) < 0.8)
    bends = [[first * second for second in gradient.T] for first in gradient.T]
    rows = field.jacobian(points, field.mean, gradient).eval()
    found = field.second_derivatives(points, field.mean, gradient.T, bends)
    np.testing.assert_allclose(found.eval(), rows @ rows.T, rtol=0, atol=1e-11)
    others = rng.normal(size=(2, 3, len(points)))
    each = [derivative.eval() for derivative in field.derivatives(points, field.mean)]
    found = field.contract(points, field.mean, list(map(pt.as_tensor_variable, others)))
    expected = sum(row @ one.T for row, one in zip(others, each, strict=True))
    np.testing.assert_allclose(found.eval(), expected, rtol=0, atol=1e-11)
