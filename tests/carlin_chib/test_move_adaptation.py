"""Normals that the prior bounds, and walks that take the shape of the chain's own draws."""

import arviz_stats
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import logsumexp, softmax

from pymc_mcoem import CarlinChib
from pymc_mcoem.carlin_chib.moves.adaptation import ShapeOfMoves
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.geometry import LatentGeometry
from pymc_mcoem.laplace.modes import Modes, ModeStatus, cholesky_factors
from pymc_mcoem.laplace.prior_bounds import bounded, importance_fit
from pymc_mcoem.laplace.search import ModeSearch
from tests.helpers.checks import LIMIT


def covariance_and_effects() -> pm.Model:
    """Two classes that are alike; the joint density grows without end as all effects vanish."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.3, 0.7])
        packed = pm.LKJCholeskyCov(
            "packed", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0), compute_corr=False
        )
        factor = pm.math.expand_packed_triangular(2, packed)
        x = pm.MvNormal("x", np.zeros(2), chol=factor)
        pm.Normal("y", x + 0.0 * k, 0.5, observed=[0.6, -0.4])
    return model


def test_a_density_without_a_mode_has_a_pseudo_prior_where_its_mass_is(
    rng, monkeypatch, without_compiler
):
    model = covariance_and_effects()
    density = ClassDensity(model, model["k"], [model["packed"], model["x"]])
    rule = Laplace(race=None)
    search, _ = rule.compile_search(density, LatentGeometry())
    # making it takes most of the time: the rule is to take this one
    monkeypatch.setattr(ModeSearch, "by_geometry", lambda *_, **settings: search)
    fitted = rule.compile(density, LatentGeometry())({}, rng)
    # no search finds a mode; which of the two it then says is a matter of rounding in the spike
    assert set(fitted.troubles) <= {"mode search: not converged", "mode search: indefinite"}
    assert sum(fitted.troubles.values()) == 2
    variances = np.einsum("jab,jab->ja", fitted.scale, fitted.scale)
    # of log L₁₁ under the prior: log of an exponential variable has the variance π²/6
    assert variances.max() < 4 * np.pi**2 / 6
    for j in range(2):
        draws = np.stack([fitted.draw(rng)[j] for _ in range(400)])
        log_p, _ = search.at_points(j, draws, [])
        log_kappa = [fitted.log_density(np.tile(draw, (2, 1)))[j] for draw in draws]
        # Of the normal that a search into the spike ends with, all draws have density that is
        # hundreds of nats from the evidence; of a good one all but those in the tails are near.
        away = log_p - np.array(log_kappa) - fitted.log_evidence[j]
        assert np.mean(np.abs(away) < 3.0) > 0.5
    # with some 50 effective points each knows its own to a seventh, were tails not heavy
    gap = fitted.log_evidence[1] - fitted.log_evidence[0]
    assert gap == pytest.approx(np.log(0.7 / 0.3), abs=1.0)


@pytest.mark.slow
def test_classes_that_are_alike_share_by_their_prior(rng):
    with covariance_and_effects():
        trace = pm.sample(
            draws=2_000,
            tune=1_000,
            chains=4,
            cores=1,
            step=CarlinChib(),
            progressbar=False,
            compute_convergence_checks=False,
            random_seed=int(rng.integers(2**31)),
        )
    shares = (trace.posterior["k"] == 0).mean("draw").to_numpy()
    switches = trace.sample_stats["class_n_switched"].sum("draw").to_numpy()
    assert (switches > 100).all()
    # a chain that switches s times knows its share to √(0.3 · 0.7 · 2 / s) or so
    error = np.sqrt(0.42 / switches.sum())
    assert abs(shares.mean() - 0.3) < 4 * error


def test_no_covariance_is_wider_than_the_prior(rng):
    factor = np.array([[2.0, 0.0], [1.0, 0.5]])
    draws = rng.standard_normal((2_000, 2)) @ factor.T
    prior = np.linalg.inv(factor @ factor.T)
    flat = np.array([[1e-3, 0.0], [0.0, 50.0]])
    precision = np.stack([flat, prior])
    modes = Modes(
        np.zeros((2, 2)),
        precision,
        np.linalg.cholesky(precision),
        np.zeros(2),
        np.zeros(2),
        np.ones(2),
        (ModeStatus.CONVERGED,) * 2,
    )
    found = bounded(modes, draws)
    np.testing.assert_array_equal(found.precision[1], prior)
    in_units = np.linalg.eigvalsh(factor.T @ found.precision[0] @ factor)
    # of 2,000 draws a variance is known to √(2/2000), 3 %
    assert in_units[0] == pytest.approx(0.25, rel=0.15)
    np.testing.assert_allclose(found.factors[0] @ found.factors[0].T, found.precision[0])


def test_a_pseudo_prior_at_a_flat_mode_is_no_wider_than_the_prior_allows(rng):
    """The density is nearly exp(-x⁴/4); its curvature at 0 is that of a variance of 100."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x")
        pm.Potential("flat", 0.495 * x**2 - 0.25 * x**4 + 0.0 * k)
    density = ClassDensity(model, k, [x])
    fitted = Laplace(race=None).compile(density, LatentGeometry())({}, rng)
    assert fitted.mixtures is None and not fitted.troubles
    # four prior variances, which some hundred draws know to a third or so
    np.testing.assert_allclose(fitted.scale[:, 0, 0] ** 2, 4.0, rtol=0.6)


def test_rows_at_flat_modes_switch_as_often_as_others(rng):
    """In each row two classes that are alike have the density above: a class chosen is entered."""
    with pm.Model():
        k = pm.Categorical("k", [0.3, 0.7], shape=3)
        x = pm.Normal("x", 0.0 * k, 1.0, shape=3)
        pm.Potential("flat", 0.495 * x**2 - 0.25 * x**4)
        step = CarlinChib([k, x])
        fitted = step._engine.fit(rng, [])
        np.testing.assert_allclose(fitted.scale[..., 0, 0] ** 2, 4.0, rtol=0.6)
        idata = pm.sample(
            step=step,
            tune=300,
            draws=1_000,
            chains=1,
            random_seed=int(rng.integers(2**31)),
            progressbar=False,
            compute_convergence_checks=False,
        )
    found = idata["posterior"]["k"].values[0]
    switched = np.mean(found[1:] != found[:-1], axis=0)
    # of an auxiliary from the pseudo-prior and a latent from the density, both on a grid
    grid = np.linspace(-6.0, 6.0, 1_201)
    exact = softmax(-(grid**2) * 0.005 - 0.25 * grid**4)
    for row in range(3):
        pseudo = softmax(-0.5 * (grid / fitted.scale[1, row, 0, 0]) ** 2)
        ratio = exact / pseudo
        enters = 0.7 * ratio / (0.7 * ratio + 0.3 * ratio[:, None])
        due = 2 * 0.3 * np.einsum("x,xy,y->", exact, enters, pseudo)
        assert due > 0.2
        assert abs(switched[row] - due) < 5 * np.sqrt(due * (1 - due) / 1_000)


def pair() -> pm.Model:
    with pm.Model() as model:
        k = pm.Categorical("k", [0.4, 0.6])
        x = pm.Normal("x", 2.0 * k, 1.0, shape=2)
        pm.Normal("y", x, 1.0, observed=[1.0, 0.5])
    return model


@pytest.mark.parametrize("auxiliaries", ["refreshed", "frozen"])
def test_another_shape_of_moves_changes_no_weight(rng, auxiliaries):
    with pair():
        step = CarlinChib(within_class=None, auxiliaries=auxiliaries)
    engine = step._engine
    fitted = engine.fit(rng, [])
    moves = PseudoPriors.from_covariance(
        fitted.mean, np.tile([[3.0, 0.5], [0.5, 0.2]], (2, 1, 1)), fitted.log_evidence
    )
    frozen = rng.standard_normal((2, 2)) if auxiliaries == "frozen" else None
    seed, position = int(rng.integers(2**31)), rng.standard_normal(2)
    made = [
        engine.sweep(
            np.random.default_rng(seed),
            0.0,
            np.asarray(1),
            position,
            step.chain.log_step,
            fitted,
            [],
            equalizing_log_weight=np.zeros(2),
            auxiliaries=None if frozen is None else frozen.copy(),
            moves=each,
        )
        for each in (None, moves)
    ]
    np.testing.assert_allclose(made[0].log_ratio, made[1].log_ratio, rtol=1e-10)
    assert made[0].class_index == made[1].class_index
    np.testing.assert_allclose(made[0].position, made[1].position, rtol=1e-10)


def test_walks_take_the_shape_of_the_draws_while_tuning_and_keep_it(rng):
    """Give pseudo-priors of another shape than the posterior's, whose variances are a half."""

    class Narrow:
        def compile(self, density, geometry, mode=None):
            mean = np.array([[0.5, 0.25], [1.5, 1.25]])
            covariance = np.tile(np.diag([0.5, 5e-3]), (2, 1, 1))
            return lambda *args: PseudoPriors.from_covariance(mean, covariance)

    with pair() as model:
        step = CarlinChib(pseudo_priors=Narrow(), within_class=RandomWalk(n_moves=5), rng=rng)
        step.setup_chain(rng, 600, 10)
        point = model.initial_point()
        for _ in range(600):
            point, _ = step.step(point)
        step.stop_tuning()
        kept = step.chain.moves[()].scale.copy()
        for _ in range(10):
            point, _ = step.step(point)
    np.testing.assert_array_equal(step.chain.moves[()].scale, kept)
    visited = step.chain.shape_of_moves.is_adapted
    assert visited.any()
    variances = np.einsum("jab,jab->ja", kept, kept)[visited]
    # some 400 draws, each worth a few: a variance to a quarter or so, less what is shrunk
    assert (variances > 0.2).all()
    assert (variances < 1.0).all()


def test_a_shape_narrower_than_rounding_is_taken_a_little_wider():
    """Let draws lie on a line, as along the neck of a hierarchy, about a narrow pseudo-prior."""
    narrow = PseudoPriors.from_factors(np.zeros((1, 2)), np.array([[[1e9, 0.0], [-1e9, 1.0]]]))
    own = narrow.scale @ np.swapaxes(narrow.scale, 1, 2)
    with pytest.raises(np.linalg.LinAlgError):
        cholesky_factors(np.linalg.inv(own))
    shape = ShapeOfMoves(1, 2)
    for x in np.linspace(-100.0, 100.0, 20):
        shape.see(0, np.array([x, x]))
    found = shape.adapted(narrow)
    variances = (found.scale[0] @ found.scale[0].T).diagonal()
    np.testing.assert_allclose(variances, shape.squares[0].diagonal() / 24, rtol=0.01)
    # and so are the pseudo-priors of blocks
    restricted = narrow.restricted(np.ones((1, 2), dtype=bool))
    np.testing.assert_allclose(restricted.whiten[0] @ restricted.scale[0], np.eye(2), atol=1e-6)


def test_with_few_draws_a_fit_without_a_mode_has_independent_coordinates(rng):
    """Give draws of a prior whose variances are four times those of the density."""
    mean, d = np.linspace(-1.0, 1.0, 40), 40
    draws = mean + 2.0 * rng.standard_normal((60, d))

    def evaluate(points):
        return -0.5 * ((points - mean) ** 2).sum(axis=1)

    found = importance_fit(evaluate, draws, 100, rng, ModeStatus.INDEFINITE)
    assert found.status == (ModeStatus.INDEFINITE,)
    precision = found.precision[0]
    np.testing.assert_array_equal(precision, np.diag(np.diagonal(precision)))
    variances = 1.0 / np.diagonal(precision)
    assert 0.5 < np.median(variances) < 3.5  # of 20 effective draws, between the two
    assert importance_fit(evaluate, draws[:19], 100, rng, ModeStatus.INDEFINITE) is None


@pytest.mark.slow
@pytest.mark.parametrize("n_groups", [20, 60])
def test_a_hierarchy_without_a_mode_has_the_exact_class_probabilities(rng, n_groups):
    """The density of effects and their spread is unbounded; without the effects it is a grid's."""
    weights, center, width = [0.5, 0.3, 0.2], np.array([-1.0, 0.0, 1.0]), np.array([0.5, 1.0, 2.0])
    y = rng.normal(rng.normal(size=n_groups), 1.5)
    with pm.Model():
        k = pm.Categorical("k", weights)
        mu = pm.Normal("mu", pt.constant(center)[k], 1.0)
        spread = pm.HalfNormal("spread", pt.constant(width)[k])
        x = pm.Normal("x", mu, spread, shape=n_groups)
        pm.Normal("y", x, 1.5, observed=y)
        data = pm.sample(
            1_000, step=CarlinChib(), chains=4, cores=1, progressbar=False, random_seed=rng
        )
    mus, spreads = np.linspace(-6.0, 6.0, 301)[:, None], np.linspace(1e-3, 9.0, 901)
    log_p = stats.norm(mus[..., None], np.hypot(spreads, 1.5)[:, None]).logpdf(y).sum(axis=-1)
    log_weight = np.log(weights) + [
        logsumexp(log_p + stats.norm(m).logpdf(mus) + stats.halfnorm(scale=w).logpdf(spreads))
        for m, w in zip(center, width, strict=True)
    ]
    exact = softmax(log_weight)
    assert ((exact > 0.02) & (exact < 0.98)).sum() >= 2
    # a chain is slow to forget the spread: batches of it would not be independent
    for j in range(3):
        member = data["posterior"]["k"] == j
        error = arviz_stats.mcse(member.astype(float), method="mean")
        assert abs(float(member.mean()) - exact[j]) < LIMIT * max(float(error), 1e-3)
        assert (member.any("draw")).all()  # no chain is stuck
