"""The scale of observations and the height of templates: which of them has which share."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import logsumexp

from pymc_mcoem.datasets.simulators import simulate_curves
from pymc_mcoem.diagnostics import align_classes
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.maximization import maximize_family
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.em.schedules import StepSize
from pymc_mcoem.templates import TemplateMixture, template_images
from tests.helpers.toy_families import NormalMixture

POINTS = np.linspace(0, 1, 8)
SHAPE, RATE = 6.0, 3.0
#: Nodes of λ for the exact posterior of a scale without warps.
NODES = np.linspace(0.005, 9.0, 1000)


def make_mixture(scale, n_classes=1):
    return TemplateMixture.for_curves(
        POINTS, n_classes, n_landmarks=6, n_warp_kernels=2, scale=scale, coefficients="real"
    )


def scales_given(curves, theta, design):
    """Return the log-likelihood of curves with scales of their own, and moments of the scales."""
    mean = design @ theta["templates"][0]
    deviation = np.sqrt(theta["noise_variance"])
    log = stats.norm(NODES[:, None] * mean, deviation).logpdf(curves[:, None]).sum(axis=-1)
    log += stats.gamma(SHAPE, scale=1 / RATE).logpdf(NODES) + np.log(NODES[1] - NODES[0])
    total = logsumexp(log, axis=1)
    mass = np.exp(log - total[:, None])
    return total.sum(), mass @ NODES, mass @ NODES**2


def statistics_of(curves, design, first, second):
    n = len(curves)
    return {
        "class_weight": np.ones(1),
        "template_projection": (first @ curves @ design)[None] / n,
        "template_gram": (second.mean() * design.T @ design)[None],
        "deformation_outer": 0.01 * np.eye(2)[None],
        "squared_norm": np.square(curves).sum(keepdims=True)[0] / n,
        "observed_points": np.array([float(len(POINTS))]),
        "scale": np.array([first.mean()]),
    }


def learned(curves, mixture, theta, n_steps, rescaled):
    """Return θ, log-likelihoods and the mean scale after steps of exact EM without priors."""
    design = mixture.settings.basis.matrix(POINTS[:, None])
    found = []
    for _ in range(n_steps):
        likelihood, first, second = scales_given(curves, theta, design)
        found.append(likelihood)
        statistics = statistics_of(curves, design, first, second)
        theta = mixture.maximize(statistics, effective_size=1e12)
        if rescaled:
            theta = mixture.rescale(theta, statistics, ready=np.array([True]), share=1.0)
    return theta, np.array(found), first.mean()


def test_em_with_rescaling_finds_the_same_maximum_sooner(rng):
    """From templates at half their height: EM alone is nearly as far off after 30 steps."""
    mixture = make_mixture((SHAPE, RATE))
    design = mixture.settings.basis.matrix(POINTS[:, None])
    template = rng.normal(3.0, 1.0, size=6)
    scales = rng.gamma(SHAPE, 1 / RATE, size=40)
    curves = scales[:, None] * (design @ template) + 0.5 * rng.normal(size=(40, len(POINTS)))
    start = {**mixture.model_parameters(), "templates": 0.5 * template[None]}
    theta, path, mean = learned(curves, mixture, start, 30, rescaled=True)
    assert (np.diff(path) > -1e-6).all()
    assert mean == pytest.approx(SHAPE / RATE, rel=1e-6)

    _, slower_path, slow_mean = learned(curves, mixture, start, 30, rescaled=False)
    assert slow_mean > 1.5 * SHAPE / RATE
    assert slower_path[-1] < path[-1] - 1
    # at the maximum plain EM stays where it is
    still, last_path, _ = learned(curves, mixture, theta, 30, rescaled=False)
    np.testing.assert_allclose(still["templates"], theta["templates"], rtol=1e-5)
    assert last_path[-1] == pytest.approx(path[-1], abs=1e-6)


def test_the_factor_is_the_maximum_of_the_wider_model(rng):
    mixture = make_mixture((SHAPE, RATE), n_classes=3)
    mass, scale = np.array([0.5, 0.3, 0.2]), rng.uniform(0.5, 2.0, size=3)
    theta = {"templates": rng.normal(size=(3, 6)), "weights": mass}
    given = {"class_weight": mass, "scale": scale}
    ready = np.array([True, True, False])
    found = mixture.rescale(theta, given, ready=ready, share=1.0)
    for j in range(2):

        def against(c, j=j):
            """Minus the expected log-density of scales under Gamma(a, b/c)."""
            return mass[j] * SHAPE * np.log(c) + RATE / c * scale[j]

        best = optimize.minimize_scalar(against, bounds=(1e-3, 50), options={"xatol": 1e-9}).x
        np.testing.assert_allclose(found["templates"][j], best * theta["templates"][j], rtol=1e-5)
    # a class that waits keeps its template
    np.testing.assert_array_equal(found["templates"][2], theta["templates"][2])
    assert set(found) == set(theta)
    half = mixture.rescale(theta, given, ready=ready, share=0.5)["templates"]
    np.testing.assert_allclose(half**2, found["templates"] * theta["templates"], rtol=1e-12)


def test_without_a_scale_nothing_moves(rng):
    mixture = make_mixture(None)
    theta = {"templates": rng.normal(size=(1, 6))}
    assert mixture.rescale(theta, {}, ready=np.array([True]), share=1.0) is theta


class Watched(NormalMixture):
    """A family that notes how far it is told to go."""

    def __init__(self):
        super().__init__(2)
        self.told = []

    def rescale(self, parameters, statistics, *, ready, share):
        self.told.append(share)
        return super().rescale(parameters, statistics, ready=ready, share=share)


@pytest.mark.parametrize(
    ("step_size", "expected"),
    [(lambda n: 1 / n, lambda n: 1.0), (StepSize(), lambda n: n**-0.4), (None, lambda n: n**-0.4)],
)
def test_a_step_counts_as_one_of_all(step_size, expected, rng):
    """What a step finds has the weight 1/n at any step size; its gain is the rest of it."""
    family = Watched()
    OnlineEM(
        family,
        e_step=Exact(),
        step_size=step_size,
        parameters=family.model_parameters(),
        update_schedule=lambda n: True,
        random_seed=1,
        progressbar=False,
    ).partial_fit(rng.normal(size=20))
    np.testing.assert_allclose(family.told, [expected(n) for n in range(1, 21)], rtol=1e-12)


def test_iterations_over_all_observations_go_the_whole_way(rng):
    family = Watched()
    start = family.model_parameters()
    saem = SAEM(family, parameters=start, e_step=Exact(), random_seed=1, progressbar=False)
    saem.fit(rng.normal(size=12), n_iterations=3)
    assert family.told == [1.0] * 3


def test_what_is_rescaled_is_checked(rng):
    family = NormalMixture(2)
    statistics = {"class_weight": np.array([0.5, 0.5]), "value": np.zeros(2), "square": np.ones(2)}
    family.rescale = lambda parameters, *_, **__: {**parameters, "means": np.full(2, np.nan)}
    with pytest.raises(ValueError, match="means holds values that are not finite"):
        maximize_family(family, statistics, effective_size=5.0, present=None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_peaks_are_those_of_the_simulator(seed):
    """One look at each of 300 curves whose scales have a standard deviation of 0.32."""
    simulated = simulate_curves(
        300, 3, scale_variance=0.1, deformation_variance=0.05, random_seed=seed
    )
    mixture = TemplateMixture.for_curves(simulated.point, 3, coefficients="real")
    em = OnlineEM(mixture, random_seed=seed, progressbar=False).partial_fit(simulated.curves)
    found = template_images(em.parameters, mixture)
    match = align_classes(simulated.templates, found)
    # what a template of mean scale one has to be is known from the scales that were drawn
    scales = simulated.scale.groupby(simulated.class_index).mean().values
    peaks = found.max(found.dims[1]).values[match.order]
    np.testing.assert_allclose(peaks, scales * simulated.templates.max("point"), rtol=0.05)
