"""Independence of a plate's rows is proved on the graph; what couples them is refused by name."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import ordered

from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.density.plate import PlateDensity
from pymc_mcoem.density.row_operations import Coupled
from pymc_mcoem.density.rows import by_row

N = 4
ZEROS, WIDE = np.zeros(N), np.zeros((N, 3))
COUNTS = np.zeros(N, dtype=int)
TABLE = np.array([[0.3, 1.0, 2.0], [1.5, 0.2, 1.0], [0.7, 2.0, 0.4]])


def index():
    return pm.Categorical("k", [0.5, 0.3, 0.2], shape=N)


def numbers(*more, k=None, **options):
    """Return the latents ``x``, (N, *more)."""
    k = index() if k is None else k
    center = 1.0 * k.reshape((N, *(1 for _ in more)))
    return k, pm.Normal("x", center, 1.0, shape=(N, *more), **options)


def seen(mean, shape=(N,), **options):
    pm.Normal("y", mean, 1.0, observed=np.zeros(shape), **options)


# -- rows that are independent --------------------------------------------------------------------


def gathered():
    k = index()
    seen(pm.Normal("x", pt.constant(TABLE)[k], 1.0, shape=(N, 3)), (N, 3))


def gathered_from_latents():
    k, x = numbers(3)
    seen(x[np.arange(N), k])


def gathered_from_a_stack_of_latents():
    k, x = numbers(3)
    seen(pt.stack([x[:, 2], x[:, 0], x[:, 1]])[k, pt.arange(N)])


def gathered_along_an_axis():
    k, x = numbers(3)
    seen(pt.take_along_axis(x, k[:, None], 1)[:, 0])


def switched():
    k, x = numbers()
    spread = pm.HalfNormal("spread")
    seen(pm.math.switch(pm.math.eq(k, 0), spread * x, pm.math.switch(pm.math.eq(k, 1), -x, x**2)))


def multivariate():
    k = index()
    x = pm.MvNormal("x", pt.constant(TABLE[:, :2])[k], np.eye(2), shape=(N, 2))
    pm.MvNormal("y", x, np.array([[2.0, 0.3], [0.3, 1.0]]), observed=np.zeros((N, 2)))


def covariances_by_class():
    k = index()
    covariance = pt.constant(np.stack([np.eye(2), 2 * np.eye(2), 3 * np.eye(2)]))
    pm.MvNormal("x", np.zeros(2), covariance[k], shape=(N, 2))


def shared_covariance():
    _, x = numbers(2)
    chol, _, _ = pm.LKJCholeskyCov("chol", eta=2.0, n=2, sd_dist=pm.Exponential.dist(1.0))
    pm.MvNormal("y", x, chol=chol, observed=np.zeros((N, 2)))


def shares():
    k = index()
    x = pm.Dirichlet("x", pt.constant(TABLE)[k], shape=(N, 3))
    pm.Multinomial("y", 5, x, observed=np.tile([5, 0, 0], (N, 1)))
    pm.Categorical("z", x, observed=COUNTS)


def in_order():
    _, x = numbers(3, transform=ordered, initval=np.tile([0.0, 1.0, 2.0], (N, 1)))
    seen(x.sum(axis=-1))


def counted():
    x = pm.Gamma("x", 1.0 + index(), 1.0, shape=N)
    pm.Poisson("y", x, observed=COUNTS)
    pm.NegativeBinomial("z", x, 2.0, observed=COUNTS)
    pm.ZeroInflatedPoisson("w", 0.5, x, observed=COUNTS)


def a_spread_that_may_be_negative():
    _, x = numbers()
    pm.Normal("y", 0.0, x, observed=ZEROS)


def bounds_from_rows():
    x = pm.Uniform("x", 0.0, 1.0 + index(), shape=N)
    pm.Uniform("y", x - 3.0, x + 3.0, observed=ZEROS)


def mixed_censored_truncated():
    _, x = numbers()
    parts = [pm.Normal.dist(x, 1.0, shape=N), pm.Normal.dist(-x, 1.0, shape=N)]
    pm.Mixture("y", [0.5, 0.5], parts, observed=ZEROS)
    pm.Censored("z", pm.Normal.dist(x, 1.0, shape=N), lower=0.0, upper=2.0, observed=ZEROS)
    pm.Truncated("w", pm.Normal.dist(x, 1.0, shape=N), lower=-1.0, observed=ZEROS)


def binary():
    k = pm.Bernoulli("k", 0.5, shape=N)
    x = pm.StudentT("x", 3.0, mu=1.0 * k, sigma=1.0, shape=N)
    pm.Bernoulli("y", logit_p=x, observed=COUNTS)


def regressed():
    _, x = numbers(2)
    weights = pm.Normal("weights", shape=(2, 3))
    seen(x @ weights, (N, 3))
    pm.Normal("z", pt.dot(x, weights[:, 0]), 1.0, observed=ZEROS)
    pm.Normal("u", pt.einsum("nd,dp->np", x, weights), 1.0, observed=WIDE)


def data_set_later():
    _, x = numbers(2)
    design = pm.Data("design", np.ones((N, 2)))
    pm.Normal("y", (design * x).sum(axis=1), 1.0, observed=pm.Data("values", ZEROS))


def walks_within_rows():
    k = index()
    x = pm.GaussianRandomWalk(
        "x", mu=pt.constant(TABLE[0])[k], sigma=1.0, init_dist=pm.Normal.dist(), shape=(N, 3)
    )
    seen(pt.cumsum(x, axis=1), (N, 3))


def chosen_by_scores():
    _, x = numbers(3)
    pm.Categorical("y", logit_p=x, observed=COUNTS)
    pm.OrderedLogistic("z", eta=x[:, 0], cutpoints=[-1.0, 1.0], observed=COUNTS)
    pm.Potential("u", pt.logsumexp(x, axis=-1) + pt.special.log_softmax(x, axis=1)[:, 1])


def curves():
    k, x = numbers()
    seen(pt.constant(TABLE)[k] * pt.exp(-x[:, None] * np.linspace(0, 1, 3)), (N, 3))


def parts_put_together():
    _, x = numbers(2)
    wide = pt.set_subtensor(pt.zeros((N, 3))[:, 1], x[:, 0])
    seen(wide + pt.concatenate([x, x[:, ::-1][:, :1]], axis=1), (N, 3))


def flattened():
    _, x = numbers(2, 3)
    seen(x.reshape((N, 6)) + x.flatten(2), (N, 6))


def rows_along_the_last_axis():
    _, x = numbers()
    seen(x[None, :], (3, N))


def couplings_of_others():
    """What the step does not move may look at whatever it likes."""
    _, x = numbers()
    other = pm.Normal("other", shape=N)
    seen(x + other[::-1].sum() + pt.cumsum(other))


INDEPENDENT = [
    gathered,
    gathered_from_latents,
    gathered_from_a_stack_of_latents,
    gathered_along_an_axis,
    switched,
    multivariate,
    covariances_by_class,
    shared_covariance,
    shares,
    in_order,
    counted,
    a_spread_that_may_be_negative,
    bounds_from_rows,
    mixed_censored_truncated,
    binary,
    regressed,
    data_set_later,
    walks_within_rows,
    chosen_by_scores,
    curves,
    parts_put_together,
    flattened,
    rows_along_the_last_axis,
    couplings_of_others,
]


@pytest.mark.parametrize("declare", INDEPENDENT, ids=lambda f: f.__name__)
def test_independent_rows_are_accepted_and_are(declare, rng, without_compiler):
    """That they are is looked at by numbers too: other rows move and a row's density stays."""
    with pm.Model() as model:
        declare()
    density = PlateDensity(model, model["k"], [model["x"]])
    k, x = pt.lvector("class_index"), pt.dmatrix("position")
    function = compile_with_data(density, [k, x], [density.log_density(k, x)], "FAST_COMPILE")
    point = model.initial_point(random_seed=0)
    others = density.others(point)
    classes = rng.integers(density.n_classes, size=(2, N))
    places = density.ravel(point) + rng.standard_normal((2, N, density.n_latents))
    one, other = (function(*given, *others)[0] for given in zip(classes, places, strict=True))
    assert one.shape == (N,)
    assert np.isfinite(one).any()
    for moved in range(N):
        mixed = np.arange(N) == moved
        found = function(
            np.where(mixed, classes[1], classes[0]),
            np.where(mixed[:, None], places[1], places[0]),
            *others,
        )[0]
        np.testing.assert_array_equal(found, np.where(mixed, other, one))


# -- rows that are not ----------------------------------------------------------------------------


def lagged_by_a_coefficient_that_starts_at_zero():
    _, x = numbers()
    rho = pm.Normal("rho", initval=0.0)
    seen(x + rho * pt.concatenate([[0.0], x[:-1]]))


def coupled_by_a_matrix_that_is_zero_as_yet():
    _, x = numbers()
    seen(x + pm.Data("matrix", np.zeros((N, N))) @ x)


def rolled():
    _, x = numbers()
    seen(x + pt.roll(x, 1))


def another_row():
    k, x = numbers()
    seen(x[k])


def one_row_for_two():
    _, x = numbers()
    seen(x[np.array([0, 0, 1, 2])])


def one_row_for_all():
    _, x = numbers()
    seen(x[0] + np.zeros(N))


def normal_together():
    k = index()
    pm.MvNormal("x", 2.0 * k, np.eye(N), shape=N)


def a_walk_along_rows():
    _, x = numbers()
    pm.Potential("steps", -(pt.diff(x) ** 2))


def in_order_along_rows():
    numbers(transform=ordered, initval=np.arange(N, dtype=float))


def summed_up():
    _, x = numbers()
    seen(pt.cumsum(x))


def each_with_each():
    _, x = numbers()
    pm.Potential("pairs", x[:, None] * x[None])


def transposed():
    _, x = numbers(N)
    seen(x + x.T, (N, N))


def parent_of_what_they_share():
    _, x = numbers()
    pm.Normal("mean", x.mean(), 1.0)


def how_many_are_positive():
    _, x = numbers()
    pm.Potential("many", pt.nonzero(x > 0)[0].shape[0] * np.ones(N))


def the_largest():
    _, x = numbers()
    pm.Potential("far", pm.math.switch(x.max() > 30, -5.0, 0.0) * np.ones(N))


def all_in_one_class():
    k, _ = numbers()
    pm.Potential("alike", pm.math.switch(pt.eq(k.sum(), 0), 0.9, 0.0) * np.ones(N))


def shares_of_the_whole():
    _, x = numbers()
    pm.Potential("shares", pt.special.log_softmax(x))


def folded_otherwise():
    _, x = numbers(2)
    seen(x.reshape((2, N)).sum(axis=0))


def neighbors():
    k = index()
    pm.CAR("x", 1.0 * k, W=np.ones((N, N)) - np.eye(N), alpha=0.5, tau=1.0, shape=N)


COUPLED = {
    lagged_by_a_coefficient_that_starts_at_zero: r"density of y.*Subtensor\{:stop\} of x takes",
    coupled_by_a_matrix_that_is_zero_as_yet: r"density of y.*Matmul of matrix, x brings rows",
    rolled: r"of x takes rows apart",
    another_row: r"of k, x takes rows apart",
    one_row_for_two: r"of x takes rows apart",
    one_row_for_all: r"of x takes rows apart",
    normal_together: r"density of x.*of k, x works on several rows at once",
    a_walk_along_rows: r"density of steps.*of x takes rows apart",
    in_order_along_rows: r"density of x.*of x_ordered__ takes rows apart",
    summed_up: r"Cumsum\{axis=0\} of x works along the rows",
    each_with_each: r"density of pairs.*Mul of x sets rows against one another",
    transposed: r"sets rows against one another",
    parent_of_what_they_share: r"density of mean.*Sum\{axes=None\} of x brings rows together",
    how_many_are_positive: r"of Nonzero of x it is not known whether it keeps rows apart",
    the_largest: r"Max\{axes=None\} of x brings rows together",
    all_in_one_class: r"Sum\{axes=None\} of k brings rows together",
    shares_of_the_whole: r"brings rows together \(inside of LogSoftmax.* of x\)",
    folded_otherwise: r"not known whether Reshape\{2\} of x keeps the axis of the rows",
    neighbors: r"density of x.*brings rows together",
}


@pytest.mark.parametrize("declare", COUPLED, ids=lambda f: f.__name__)
def test_coupled_rows_are_refused_by_name(declare):
    with pm.Model() as model:
        declare()
    message = r"class_index: rows of k are not independent.*" + COUPLED[declare]
    with pytest.raises(ValueError, match=message):
        PlateDensity(model, model["k"], [model["x"]])


def test_a_parameter_out_of_range_ends_its_own_row(without_compiler):
    """PyMC makes minus infinity of the whole term; here other rows keep their density."""
    with pm.Model() as model:
        a_spread_that_may_be_negative()
    density = PlateDensity(model, model["k"], [model["x"]])
    k, x = pt.lvector("class_index"), pt.dmatrix("position")
    function = compile_with_data(density, [k, x], [density.log_density(k, x)], "FAST_COMPILE")
    found = function(np.zeros(N, dtype=int), np.array([[1.0], [-1.0], [2.0], [-3.0]]))[0]
    np.testing.assert_array_equal(np.isfinite(found), [True, False, True, False])


def test_one_row_that_is_spread_over_several_is_refused():
    x = pt.tensor("x", shape=(1,))
    with pytest.raises(Coupled, match=r"Add of x spreads a row over several"):
        by_row(x + np.zeros(4), {x: 0}, 4)


def test_a_plate_of_one_row_has_all_that_depends_on_it(without_compiler):
    x = pt.tensor("x", shape=(1,))
    found = by_row(pt.sort(x + np.arange(4.0)), {x: 0}, 1)
    assert found.eval({x: [0.5]}).tolist() == [8.0]
    assert by_row(pt.zeros(4), {x: 0}, 1) is None
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.3, 0.2], shape=1)
        x = pm.Normal("x", pt.constant([-1.0, 0.0, 2.0])[k], 1.0, shape=1)
        pm.Normal("y", x[:, None], 1.0, observed=[[0.6, 1.4]])
    density = PlateDensity(model, k, [x]).log_density([2], pt.constant([[0.4]]))
    expected = model.compile_logp(mode="FAST_COMPILE")({"k": np.array([2]), "x": np.array([0.4])})
    np.testing.assert_allclose(density.eval(mode="FAST_COMPILE"), [expected])


def test_a_term_without_rows_is_none_of_the_plates():
    x = pt.tensor("x", shape=(N,))
    assert by_row(pt.zeros(N) * x.shape[0], {x: 0}, N) is None


def test_fewer_than_all_rows_are_not_taken_for_all():
    """Three rows of four numbers laid out as four of three: sums of them mix rows."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], shape=4)
        x = pm.Normal("x", 1.0 * k[:, None], 1.0, shape=(4, 4))
        mixed = x[np.arange(3)].reshape((4, 3)).sum(axis=1)
        pm.Normal("y", mixed, 1.0, observed=np.zeros(4))
    with pytest.raises(ValueError, match="not independent"):
        PlateDensity(model, k, [x])
