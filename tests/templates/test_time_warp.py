"""Identities of the monotone warp."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.integrate import quad

from pymc_mcoem.templates import GaussianBasis, TimeWarp

CLOCKS = {
    "paper": TimeWarp((2.0, 18.0)),
    "no-margin": TimeWarp((0.0, 1.0), outer=(0.0, 1.0), n_kernels=5, width=0.25, mean=0.0),
    "lopsided": TimeWarp((-1.0, 3.0), outer=(-1.5, 8.0), n_kernels=7, n_nodes=50),
}


@pytest.fixture(params=list(CLOCKS))
def clock(request):
    return CLOCKS[request.param]


def some_beta(clock, rng, spread=1.0):
    return clock.mean + spread * rng.normal(size=clock.n_parameters)


def compiled(clock, points):
    beta = pt.vector("beta")
    warped = clock.coordinates(points[:, None], beta)[0]
    return pytensor.function([beta], warped, mode="FAST_COMPILE")


def test_symbols_and_numbers_agree(clock, rng):
    points = rng.uniform(*clock.outer, size=9)
    beta = some_beta(clock, rng)
    found = compiled(clock, points)(beta)
    np.testing.assert_allclose(found, clock.evaluate(points, beta), rtol=1e-13)
    many = np.stack([beta, clock.mean])
    np.testing.assert_allclose(clock.evaluate(points, many)[0], found, rtol=1e-13)


def test_points_may_be_symbols(clock, rng):
    points = rng.uniform(*clock.outer, size=(9, 1))
    beta = some_beta(clock, rng)
    where, gradient = pt.matrix("points"), pt.matrix("gradient")
    outputs = [
        clock.coordinates(where, beta)[0],
        clock.jacobian(where, beta, gradient),
        clock.jacobian(points, beta, gradient),
    ]
    function = pytensor.function([where, gradient], outputs, mode="FAST_COMPILE")
    warped, found, expected = function(points, rng.normal(size=(9, 1)))
    np.testing.assert_allclose(warped, clock.evaluate(points, beta), rtol=1e-13)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_the_warp_increases_strictly(clock, rng):
    points = np.linspace(*clock.outer, 1_000)
    for spread in (0.1, 1.0, 3.0):
        assert (np.diff(clock.evaluate(points, some_beta(clock, rng, spread))) > 0).all()


def test_the_outer_interval_is_mapped_onto_the_interval(clock, rng):
    beta = some_beta(clock, rng)
    np.testing.assert_allclose(clock.evaluate(clock.outer, beta), clock.interval, rtol=1e-13)
    inside = clock.evaluate(clock.interval, beta)
    assert clock.interval[0] <= inside[0] < inside[1] <= clock.interval[1] + 1e-12


def test_a_constant_speed_is_a_straight_line(clock):
    zero = np.zeros(clock.n_parameters)
    points = np.linspace(*clock.outer, 7)
    expected = np.linspace(*clock.interval, 7)
    np.testing.assert_allclose(clock.evaluate(points, zero), expected, rtol=1e-12, atol=1e-12)


def test_warp_then_inverse_is_the_identity(clock, rng):
    betas = np.stack([some_beta(clock, rng) for _ in range(3)])
    points = np.concatenate([clock.outer, clock.nodes[3:5], rng.uniform(*clock.outer, size=20)])
    for beta in betas:
        back = clock.inverse(clock.evaluate(points, beta), beta)
        np.testing.assert_allclose(back, points, atol=1e-9)
    values = rng.uniform(*clock.interval, size=20)
    there = clock.inverse(values, betas)
    assert there.shape == (3, 20)
    for beta, row in zip(betas, there, strict=True):
        np.testing.assert_allclose(clock.evaluate(row, beta), values, atol=1e-10)


def test_the_quadrature_is_near_the_integral(rng):
    clock = CLOCKS["paper"]
    for spread, tolerance in ((0.3, 3e-5), (1.0, 1e-3)):
        beta = some_beta(clock, rng, spread)

        def speed(v, beta=beta):
            return np.exp(beta @ np.exp(-np.square(v - clock.centers)))

        points = np.array([2.0, 7.3, 11.0, 18.0])
        whole = quad(speed, 0, 20, limit=500)[0]
        exact = [2 + 16 * quad(speed, 0, u, limit=500)[0] / whole for u in points]
        np.testing.assert_allclose(clock.evaluate(points, beta), exact, atol=16 * tolerance)
        finer = TimeWarp((2, 18), n_nodes=401)
        errors = [np.abs(each.evaluate(points, beta) - exact).max() for each in (clock, finer)]
        assert errors[1] == pytest.approx(errors[0] / 4, rel=0.1)


def test_jacobian_is_the_derivative_of_the_warped_template(clock, rng):
    points = rng.uniform(*clock.outer, size=(6, 1))
    basis = GaussianBasis(np.linspace(*clock.interval, 8), np.ptp(clock.interval) / 5)
    coefficients = rng.normal(size=8)
    beta, weights = pt.vector("beta"), pt.vector("weights")
    warped = clock.coordinates(points, beta)
    curve = basis.evaluate(warped, coefficients)
    jacobian = clock.jacobian(points, beta, basis.gradient(warped, coefficients))
    automatic = pt.grad(pt.dot(weights, curve), beta)
    evaluate = pytensor.function([beta, weights], [jacobian, automatic, curve], mode="FAST_COMPILE")
    at = some_beta(clock, rng, 0.3)
    found = evaluate(at, np.zeros(6))[0]
    assert found.shape == (clock.n_parameters, 6)
    for column, direction in enumerate(np.eye(6)):
        np.testing.assert_allclose(found[:, column], evaluate(at, direction)[1], atol=1e-12)
    for row, shift in enumerate(1e-6 * np.eye(clock.n_parameters)):
        plus, minus = (evaluate(at + sign * shift, np.zeros(6))[2] for sign in (1, -1))
        np.testing.assert_allclose(found[row], (plus - minus) / 2e-6, atol=1e-8)


def test_the_papers_clock():
    clock = CLOCKS["paper"]
    assert clock.outer == (0.0, 20.0)
    assert clock.n_parameters == 20
    np.testing.assert_allclose(clock.centers[[0, -1]], [0, 20])
    np.testing.assert_array_equal(clock.mean, np.ones(20))
    np.testing.assert_array_equal(clock.covariance, np.eye(20))
    assert clock.learned.all()
    assert len(set(clock.labels)) == 20
    # at the mean, about 2 + 0.8 u
    points = np.linspace(2, 18, 9)
    assert np.abs(clock.evaluate(points, clock.mean) - (2 + 0.8 * points)).max() < 0.25


def test_starts_are_the_mean_an_early_and_a_late_clock():
    clock = CLOCKS["paper"]
    starts = clock.starts()
    np.testing.assert_array_equal(starts[0], clock.mean)
    middle = clock.evaluate([10.0], starts)[:, 0]
    np.testing.assert_allclose(middle - 10, [0, -16 / 12, 16 / 12], atol=0.3)


def test_starts_slope_the_log_speed_as_they_are_told():
    starts = TimeWarp((0, 1), n_kernels=5, slopes=[0.0, 0.5]).starts()
    np.testing.assert_array_equal(starts, [[1.0] * 5, [0.5, 0.75, 1.0, 1.25, 1.5]])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TimeWarp((3, 2)), r"interval is \(3, 2\); give two finite"),
        (lambda: TimeWarp((0, np.inf)), "interval is"),
        (lambda: TimeWarp((0, 1), outer=(0.5, 2)), "outer is .* widen it"),
        (lambda: TimeWarp((0, 1), n_kernels=1), "n_kernels: got 1"),
        (lambda: TimeWarp((0, 1), n_nodes=2.5), "n_nodes: got 2.5"),
        (lambda: TimeWarp((0, 1), width=0.0), "width is 0.0"),
        (lambda: TimeWarp((0, 1), slopes=[]), r"slopes is \[\]; give finite numbers"),
        (lambda: TimeWarp((0, 1), slopes=[np.nan]), r"slopes is \[nan\]"),
        (lambda: TimeWarp((0, 1), slopes=0.2), "slopes is 0.2"),
        (lambda: TimeWarp((0, 1), mean=[1.0, 2.0]), r"mean has shape \(2,\)"),
        (lambda: TimeWarp((0, 1), mean=np.nan), "mean is nan"),
        (lambda: TimeWarp((0, 1)).evaluate([5.0], np.ones(20)), "points reach .* widen outer"),
        (lambda: TimeWarp((0, 1)).evaluate([0.5], np.ones(3)), r"beta has shape \(3,\)"),
        (lambda: TimeWarp((0, 1)).inverse([1.1], np.ones(20)), "values reach from 1.1"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_identities_hold_on_any_interval(rng):
    for _ in range(300):
        begin, length = rng.normal(scale=10), rng.exponential(10)
        clock = TimeWarp((begin, begin + length), n_kernels=int(rng.integers(2, 25)))
        beta = some_beta(clock, rng)
        points = np.sort([*clock.outer, *rng.uniform(*clock.outer, size=5)])
        there = clock.evaluate(points, beta)
        assert there[0] == clock.interval[0] and (np.diff(there) > 0).all()
        assert there[-1] <= clock.interval[1]
        np.testing.assert_allclose(there[-1], clock.interval[1], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(clock.inverse(there, beta), points, atol=1e-8 * length)


def test_wild_clocks_overflow_nowhere(clock, rng):
    beta = some_beta(clock, rng, spread=1000.0)
    there = clock.evaluate(np.linspace(*clock.outer, 50), beta)
    assert np.isfinite(there).all() and (np.diff(there) >= 0).all()
    assert np.isfinite(clock.inverse(there, beta)).all()


@pytest.mark.parametrize("method", ["evaluate", "inverse"])
def test_a_clock_that_is_no_number_is_refused(clock, method):
    with pytest.raises(ValueError, match="beta holds 1 values that are not finite; drop"):
        beta = clock.mean.copy()
        beta[0] = np.nan
        getattr(clock, method)([clock.interval[0]], beta)
