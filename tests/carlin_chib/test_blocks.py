"""Latents of each class's own: exact posteriors, prior draws when inactive, refusals by name."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions import transforms
from scipy import stats
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.inactive import InactiveDraw
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.density.blocks import BlockDensity
from pymc_mcoem.density.supports import latents_cut_off
from tests.helpers.checks import LIMIT, agreement
from tests.helpers.nested_blocks import BLOCKS, exact, laplace, largest_z, nested, sample
from tests.helpers.representatives import by_default


@pytest.fixture(scope="module")
def model_and_step():
    with nested() as model:
        return model, CarlinChib(
            blocks=BLOCKS, pseudo_priors=laplace(), within_class=RandomWalk(n_moves=5)
        )


def test_every_chain_has_the_exact_posterior_and_priors_where_inactive(model_and_step, rng):
    model, step = model_and_step
    assert exact()["weight"].min() > 0.15
    assert largest_z(sample(step, model, rng, chains=2)) < LIMIT


def test_the_nested_model_is_left_as_it_was():
    """The step adds nothing to the model that is given to it."""
    model = nested()
    given = laplace()
    before = [variable.name for variable in model.named_vars.values()]
    with model:
        CarlinChib(blocks=BLOCKS, pseudo_priors=given, within_class=None)
    assert [variable.name for variable in model.named_vars.values()] == before


def test_inactive_latents_that_have_no_density_are_noticed(rng, monkeypatch):
    """Drawn like the others, but left out of the target: their pseudo-priors do not cancel."""

    def without_standard_normal(self, flags):
        parts = []
        for variable, term in self._factors().items():
            if variable in self.latents:
                column = flags[:, self.latents.index(variable)]
                term = pt.switch(pt.constant(column)[self.index_value], term, 0.0)
            parts.append(term.sum())
        return pt.add(*parts)

    given = laplace()
    monkeypatch.setattr(BlockDensity, "_joint", without_standard_normal)
    with nested() as model:
        step = CarlinChib(blocks=BLOCKS, pseudo_priors=given, within_class=RandomWalk(n_moves=5))
    assert largest_z(sample(step, model, rng)) > 2 * LIMIT


def test_hyperparameters_of_inactive_parts_are_exact(rng):
    """A common mean of both classes' levels, sampled beside the step by NUTS."""
    values, spread, weights = np.array([1.1, 0.2, 0.9]), 1.0, np.array([0.35, 0.65])
    with pm.Model() as model:
        k = pm.Categorical("k", weights)
        mean = pm.Normal("mean", 0.0, 1.0)
        a, b = pm.Normal("a", mean, 0.7), pm.Normal("b", -mean, 0.5)
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b), spread, observed=values)
        step = CarlinChib(blocks={0: [a], 1: [b]}, within_class=RandomWalk(n_moves=3))
    posterior = sample(step, model, rng, draws=2_000)
    # y = ±mean + latent + noise: jointly normal.
    log_weight, means = np.log(weights), np.empty(2)
    for j, (sign, variance) in enumerate([(1.0, 0.49), (-1.0, 0.25)]):
        covariance = (1.0 + variance) * np.ones((3, 3)) + np.eye(3)
        log_weight[j] += stats.multivariate_normal.logpdf(values, np.zeros(3), covariance)
        means[j] = sign * np.linalg.solve(covariance, values).sum()
    weight = np.exp(log_weight - logsumexp(log_weight))
    for chain in range(posterior.sizes["chain"]):
        k, mean = posterior["k"].values[chain], posterior["mean"].values[chain]
        rows = np.stack([k == 0, np.where(k == 0, mean, 0), np.where(k == 1, mean, 0)], axis=1)
        batches = rows.reshape(40, -1, 3).mean(axis=1)
        found = agreement(batches, np.array([weight[0], *(weight * means)]))
        assert found.largest_z < LIMIT


@pytest.mark.parametrize(
    "told", by_default([True, False], [True]), ids=["blocks", "all latents shared"]
)
def test_the_model_of_pymc_issue_1534_is_right_in_every_chain(rng, told):
    """Vague priors, a hundred data: plain steps stay in one of two identical models for ever."""
    data = rng.normal(0.5, 1.0, size=100)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        mean = [pm.Normal(f"mean_{j}", 0.0, 100.0) for j in range(2)]
        log_sd = [pm.Normal(f"log_sd_{j}", 0.0, 1.0) for j in range(2)]
        first = pm.math.eq(k, 0)
        pm.Normal(
            "y",
            pm.math.switch(first, *mean),
            pm.math.exp(pm.math.switch(first, *log_sd)),
            observed=data,
        )
        blocks = {j: [mean[j], log_sd[j]] for j in range(2)} if told else None
        step = CarlinChib(blocks=blocks)
    k = sample(step, model, rng, draws=2_000, chains=2)["k"].values
    for chain in k:
        batches = chain.reshape(50, -1, 1).mean(axis=1)
        assert agreement(batches, np.array([0.5])).largest_z < LIMIT
        # of fair coins it would be half of the draws; one that freezes switches a dozen times
        assert (np.diff(chain) != 0).mean() > 0.4


# -- what is refused ------------------------------------------------------------------------------


@pytest.fixture
def pair():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b), 1.0, observed=0.3)
    return model, k, a, b


def test_a_latent_that_is_looked_at_while_off_is_refused(pair):
    model, _, a, b = pair
    with model:
        pm.Normal("z", b, 1.0, observed=0.1)
    message = r"blocks: b is not in the block of class 0, but the density of z depends on it"
    with model, pytest.raises(ValueError, match=message):
        CarlinChib(blocks={0: [a], 1: [b]})


def test_an_indicator_or_a_stack_in_place_of_switch_is_understood():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", pm.math.eq(k, 0) * a + pm.math.eq(k, 1) * b, 1.0, observed=0.3)
        pm.Normal("z", pm.math.stack([a, b])[k], 1.0, observed=0.2)
    assert BlockDensity(model, k, {0: [a], 1: [b]}).n_active == [1, 1]


def test_a_latent_that_gives_a_check_its_shape_alone_is_not_looked_at():
    """One rate against one for each of two times: PyMC checks that all rates are positive."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        one, each = pm.Exponential("one", 1.0), pm.Exponential("each", 1.0, shape=2)
        rate = pm.math.switch(pm.math.eq(k, 0), one, each[[0, 0, 1]])
        pm.Poisson("y", rate, observed=[1, 2, 0])
    density = BlockDensity(model, k, {0: [one], 1: [each]})
    assert density.n_active == [1, 2]
    expected = np.log(0.5) + stats.expon.logpdf(0.7) + np.log(0.7)
    expected += stats.poisson.logpmf([1, 2, 0], 0.7).sum() + stats.norm.logpdf([0.3, -3.0]).sum()
    found = density.log_density(0, [np.log(0.7), 0.3, -3.0]).eval()
    np.testing.assert_allclose(found, expected)


def test_a_latent_that_decides_a_shape_is_looked_at():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        one, each = pm.Exponential("one", 1.0), pm.Normal("each", shape=3)
        number = pt.second(each[each > 0], 1.0).sum()
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), one, each[0]) + number, observed=2.0)
    with pytest.raises(ValueError, match="each is not in the block of class 0"):
        BlockDensity(model, k, {0: [one], 1: [each]})


def test_inactive_variables_may_depend_on_one_another():
    """A hierarchy that is off as a whole is drawn from the top down."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a, top = pm.Normal("a"), pm.Normal("top", 3.0, 0.1)
        b = pm.Normal("b", 2 * top, 0.1)
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b), 1.0, observed=0.3)
    density = BlockDensity(model, k, {0: [a], 1: [top, b]})
    draw = InactiveDraw(density)
    rng = np.random.default_rng(0)
    draws = np.array([draw(0, np.array([0.7, 0.0, 0.0]), [], rng) for _ in range(200)])
    assert (draws[:, 0] == 0.7).all()
    assert abs(draws[:, 1].mean() - 3.0) < LIMIT * 0.1 / np.sqrt(200)
    np.testing.assert_allclose(draws[:, 2], 2 * draws[:, 1], atol=LIMIT * 0.1)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({0: ["a"]}, r"blocks: got the classes \[0\]; k has the classes 0 to 1"),
        ({0: ["a"], 1: ["b"], 2: ["b"]}, r"blocks: got the classes \[0, 1, 2\]"),
        ({0: ["a"], 1: ["c"]}, r"blocks: 'c', of class 1, is not a free variable"),
        ({0: ["a"], 1: "b"}, r"blocks: class 1 has 'b'; give a list"),
        ({0: ["a"], 1: ["k"]}, r"latents: k is discrete"),
        ([["a"], ["b"]], r"blocks: got \[\['a'\], \['b'\]\]; give a mapping"),
        ({"first": ["a"], 1: ["b"]}, r"blocks: got the classes \['first'\]; name classes by"),
        ({0: ["a"], 0.5: ["b"]}, r"blocks: got the classes \[0.5\]"),
        ({False: ["a"], True: ["b"]}, r"blocks: got the classes \[False, True\]"),
    ],
)
def test_blocks_that_make_no_sense_are_refused(pair, blocks, message):
    model = pair[0]
    with model, pytest.raises(ValueError, match=message):
        CarlinChib(blocks=blocks)


def test_variables_and_blocks_must_agree(pair):
    model, k, a, b = pair
    with model:
        with pytest.raises(
            ValueError, match=r"vars: \['a'\] are not .* blocks, \['a', 'b'\]; with"
        ):
            CarlinChib([k, a], blocks={0: [a], 1: [b]})
        with pytest.raises(
            ValueError, match=r"vars: \['a', 'b'\] are not .* blocks, \['a'\]; with"
        ):
            CarlinChib([k, a, b], blocks={0: [a], 1: [a]})


# -- priors of inactive latents --------------------------------------------------------------------


def inactive(model, blocks, position, others, rng, n=400):
    """Return draws in class 0, (n, n_latents)."""
    density = BlockDensity(model, model["k"], blocks)
    draw = InactiveDraw(density)
    return np.array([draw(0, np.array(position), others, rng) for _ in range(n)])


PRIORS = {
    "normal": (lambda: pm.Normal("b", 1.0, 2.0, shape=2), stats.norm(1.0, 2.0), None),
    "exponential": (lambda: pm.Exponential("b", 3.0), stats.expon(scale=1 / 3), np.exp),
    "half normal": (lambda: pm.HalfNormal("b", 0.5, shape=(2, 1)), stats.halfnorm(0, 0.5), np.exp),
    "uniform": (lambda: pm.Uniform("b", 0.0, 1.0), stats.uniform(), stats.logistic.cdf),
    # without a known quantile: it draws itself
    "wald": (lambda: pm.Wald("b", 1.0, 2.0), stats.invgauss(0.5, scale=2.0), np.exp),
}


@pytest.mark.parametrize("name", by_default(PRIORS, {"half normal", "uniform", "wald"}))
def test_inactive_draws_have_their_prior(rng, name):
    prior, expected, backward = PRIORS[name]
    with pm.Model() as model:
        k, a, b = pm.Categorical("k", [0.5, 0.5]), pm.Normal("a"), prior()
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b.sum()), 1.0, observed=0.3)
    density = BlockDensity(model, k, {0: [a], 1: [b]})
    draw = InactiveDraw(density)
    assert (draw._generators is None) == (name != "wald")
    position = np.full(density.n_latents, 0.1)
    draws = np.array([draw(0, position, [], rng)[1:] for _ in range(2_000)])
    draws = draws if backward is None else backward(draws)
    for column in draws.T:
        assert stats.kstest(column, expected.cdf).pvalue > 1e-5
    # coordinates are no copies of one another
    assert len(np.unique(draws)) == draws.size
    # and what is active stays
    assert (draw(0, position, [], rng)[0], *draw(1, position, [], rng)[1:]) == tuple(position)


def test_what_was_observed_is_a_parent_like_any_other(rng):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        seen = pm.Normal("seen", 0.0, 10.0, observed=5.0)
        a, b = pm.Normal("a"), pm.Normal("b", seen, 0.1)
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b), 1.0, observed=0.3)
    draws = inactive(model, {0: [a], 1: [b]}, [0.7, 0.0], [], rng)[:, 1]
    assert abs(draws.mean() - 5.0) < LIMIT * 0.1 / np.sqrt(len(draws))
    assert draws.std() < 0.2


def test_other_variables_are_read_on_their_own_scale(rng):
    """The interval of ``other``, which NUTS would sample, ends at an active latent."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a = pm.Normal("a", 10.0, 3.0)
        other = pm.Uniform("other", 0.0, pm.math.abs(a))
        b = pm.Normal("b", other, 0.1)
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b), 1.0, observed=0.3)
    # In the middle of its interval, that is at 2.
    draws = inactive(model, {0: [a], 1: [a, b]}, [4.0, 0.0], [np.array(0.0)], rng)[:, 1]
    assert abs(draws.mean() - 2.0) < LIMIT * 0.1 / np.sqrt(len(draws))


def test_zero_times_what_is_off_is_zero():
    """log(b) is not a number for most standard normal b, and nobody looks at it."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a, b = pm.Normal("a"), pm.Normal("b", 5.0, 0.5)
        center = pm.math.eq(k, 0) * a + pm.math.eq(k, 1) * pm.math.log(b)
        pm.Normal("y", center, 1.0, observed=1.0)
    density = BlockDensity(model, k, {0: [a], 1: [b]})
    expected = np.log(0.5) + stats.norm.logpdf([0.2, 1.0 - 0.2, -3.0]).sum()
    np.testing.assert_allclose(density.log_density(0, [0.2, -3.0]).eval(), expected)
    np.testing.assert_allclose(density.gradient(0, [0.2, -3.0]).eval(), [0.6, 3.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: pm.Normal(
                "b", [-2, 2], shape=2, transform=transforms.ordered, initval=[0.0, 1.0]
            ),
            r"blocks: the transforms of \['b'\] do not reach all",
        ),
        (
            lambda: pm.Normal("b", 3.0, 1.0, transform=transforms.log, initval=1.0),
            r"blocks: the transforms of \['b'\] do not reach all",
        ),
        (
            lambda: pm.Uniform("b", default_transform=transforms.Interval(0, 0.9), initval=0.5),
            r"blocks: the transforms of \['b'\] do not reach all",
        ),
        (
            lambda: pm.Gamma("b", 0.001, 0.001),
            r"blocks: prior draws of \['b'\] are not finite on the scale of their transforms in",
        ),
        (lambda: pm.Flat("b"), r"blocks: inactive latents of class 0 cannot be drawn"),
    ],
    ids=["ordered", "log", "interval", "underflow", "flat"],
)
def test_priors_that_cannot_be_drawn_from_are_refused(make, message):
    with pm.Model():
        k = pm.Categorical("k", [0.5, 0.5])
        a, b = pm.Normal("a"), make()
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b.sum()), 1.0, observed=0.3)
        with pytest.raises(ValueError, match=message):
            CarlinChib(blocks={0: [a], 1: [b]})


@pytest.mark.parametrize(
    "make",
    [
        lambda name: pm.HalfNormal(name, default_transform=transforms.log_exp_m1),
        lambda name: pm.HalfNormal(name, default_transform=None),
        lambda name: pm.Uniform(name, -2.0, pm.HalfNormal("top")),
        lambda name: pm.Dirichlet(name, np.ones(3)),
        lambda name: pm.TruncatedNormal(name, 0.0, 1.0, lower=-1.0),
        lambda name: pm.Normal(name, shape=(2, 2)),
        lambda name: pm.Beta(name, 2.0, 3.0, default_transform=transforms.Interval(0, 1)),
        lambda name: pm.VonMises(name, 0.0, 1.0),
        lambda name: pm.LKJCorr(name, n=3, eta=2.0),
        # no transform of their own, and positive all the same
        lambda name: pm.CustomDist(
            name,
            dist=lambda size: pt.exp(pm.Normal.dist(size=size)),
            transform=transforms.log,
            initval=1.0,
        ),
        # what is cut off has no mass
        lambda name: pm.Normal(name, transform=transforms.Interval(-60, 60), initval=0.0),
        lambda name: pm.TruncatedNormal(name, 0.0, 1.0),
    ],
)
def test_transforms_that_reach_all_of_a_prior_are_let_through(make):
    with pm.Model() as model:
        b = make("b")
    assert latents_cut_off(model, [b]) == []


@pytest.mark.parametrize("kind", ["variable", "data"])
def test_a_transform_that_fits_at_the_start_alone_is_not_let_through(kind):
    """At its initial point the limit is 1, where the transform ends; then it moves on."""
    with pm.Model() as model:
        top = pm.HalfNormal("top", initval=1.0) if kind == "variable" else pm.Data("top", 1.0)
        b = pm.Uniform("b", 0.0, top, default_transform=transforms.Interval(0, 1), initval=0.5)
    assert latents_cut_off(model, [b]) == [b]


def test_transforms_of_what_is_never_off_are_free():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        a = pm.Normal("a", shape=2, transform=transforms.ordered, initval=[0.0, 1.0])
        b = pm.Normal("b")
        pm.Normal("y", a.sum() + pm.math.switch(pm.math.eq(k, 0), 0.0, b), observed=0.3)
    BlockDensity(model, k, {0: [a], 1: [a, b]})


def test_limits_that_close_over_data_are_not_judged_by_their_present_values():
    with pm.Model() as model:
        width = pm.Data("width", 1e6)
        limits = pm.distributions.transforms.Interval(bounds_fn=lambda *_: (-width, width))
        b = pm.Normal("b", transform=limits)
    assert latents_cut_off(model, [b]) == [b]


@pytest.mark.parametrize(
    "bounds",
    by_default([{"lower": -1.9}, {"upper": 1.2}, {"lower": -1.9, "upper": 1.2}], [{"upper": 1.2}]),
)
def test_a_latent_with_one_bound_has_its_prior_where_inactive(bounds, rng):
    """An infinite bound is none: PyMC's transform of the other one asks for it as a constant."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.4, 0.6])
        a = pm.TruncatedNormal("a", -0.5, 0.9, **bounds)
        b = pm.Normal("b", 1.0, 1.0)
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 0), a, b), 0.7, observed=1.3)
        step = CarlinChib(blocks={0: [a], 1: [b]}, within_class=RandomWalk(n_moves=1))
    step.setup_chain(rng, 0, 500)
    point, drawn = model.initial_point(0), []
    (name,) = (value.name for value in model.value_vars if value.name.startswith("a"))
    for _ in range(500):
        point, _ = step.step(point)
        if point["k"] == 1:
            drawn.append(float(point[name]))
    value = model.rvs_to_values[a]
    natural = model.rvs_to_transforms[a].backward(value, *a.owner.inputs).eval
    found = np.array([natural({value: each}) for each in drawn])
    ends = [
        (bounds.get(end, sign * np.inf) + 0.5) / 0.9 for end, sign in (("lower", -1), ("upper", 1))
    ]
    assert len(found) > 200
    assert stats.kstest(found, stats.truncnorm(*ends, -0.5, 0.9).cdf).pvalue > 1e-4
