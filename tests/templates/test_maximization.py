"""The closed-form M-step against a general-purpose optimizer, and its edge cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.templates import TemplateMixture, TemplatePriors
from pymc_mcoem.templates.maximization import maximize_templates
from pymc_mcoem.templates.starts import template_precision
from tests.helpers.image_oracle import ImageOracle

C, L, D = 2, 4, 3
COVARIANCES, NOISES = ("scaled", "diagonal", "full"), ("shared", "class")
GRAM = np.exp(-(np.subtract.outer(np.arange(L), np.arange(L)) ** 2) / 1.5**2)
BASE = np.eye(D) + 0.2 * (np.abs(np.subtract.outer(np.arange(D), np.arange(D))) == 1)


def random_statistics(rng):
    """Running means of complete-data statistics, of data that some draws could have given."""
    labels = rng.integers(C, size=30)
    designs = rng.normal(size=(30, 6, L))
    values = designs @ rng.normal(size=L) + 0.5 * rng.normal(size=(30, 6))
    away = 0.3 * rng.normal(size=(30, D))
    each = {
        "class_weight": np.ones(30),
        "template_projection": np.einsum("nsl,ns->nl", designs, values),
        "template_gram": np.einsum("nsl,nsk->nlk", designs, designs),
        "deformation_outer": np.einsum("nk,nl->nkl", away, away),
        "squared_norm": np.square(values).sum(axis=1),
        "observed_points": np.full(30, 6.0),
    }
    member = (labels[:, None] == np.arange(C)) / 30
    return {name: np.tensordot(member.T, value, axes=1) for name, value in each.items()}


def objective(theta, s, priors, n, covariance):
    """Return Σ_j E log p(y, x, j) + (log-prior of θ) / n, up to constants."""
    variance = np.broadcast_to(theta["noise_variance"], C)
    alpha = theta["templates"]
    precision, mean = priors.precision(GRAM), priors.mean(C, L)
    total = (s["class_weight"] + (priors.concentration(C) - 1) / n) @ np.log(theta["weights"])
    for j in range(C):
        residual = (
            s["squared_norm"][j]
            - 2 * alpha[j] @ s["template_projection"][j]
            + alpha[j] @ s["template_gram"][j] @ alpha[j]
        )
        total -= residual / (2 * variance[j]) + s["observed_points"][j] * np.log(variance[j]) / 2
        away = alpha[j] - mean[j]
        total -= (away @ precision @ away / variance[j] + L * np.log(variance[j])) / (2 * n)
        if covariance == "full":
            gamma = theta["deformation_covariance"][j]
            scale, degrees = priors.wishart(BASE)
            total -= (degrees + D + 1) * np.linalg.slogdet(gamma)[1] / (2 * n)
            total -= np.trace(np.linalg.solve(gamma, scale)) / (2 * n)
        else:
            gammas = theta["deformation_variance"][j]
            gamma = np.diag(gammas) if covariance == "diagonal" else gammas * BASE
            a, b = priors.deformation_shape, priors.deformation_rate
            total -= ((a + 1) * np.log(gammas) + b / gammas).sum() / n
        total -= s["class_weight"][j] * np.linalg.slogdet(gamma)[1] / 2
        total -= np.trace(np.linalg.solve(gamma, s["deformation_outer"][j])) / 2
    a, b = priors.noise_shape, priors.noise_rate
    total -= ((a + 1) * np.log(theta["noise_variance"]) + b / theta["noise_variance"]).sum() / n
    return float(total)


def unpack(x, covariance, noise):
    """Return θ at an unconstrained vector."""
    blocks = {"weights": C, "templates": C * L, "noise_variance": C if noise == "class" else 1}
    learned = {"scaled": 1, "diagonal": D, "full": D * (D + 1) // 2}[covariance]
    parts = np.split(x, np.cumsum([*blocks.values()]))
    weights = np.exp(parts[0] - parts[0].max())
    theta = {
        "weights": weights / weights.sum(),
        "templates": parts[1].reshape(C, L),
        "noise_variance": np.exp(parts[2] if noise == "class" else parts[2][0]),
    }
    if covariance == "full":
        roots = np.zeros((C, D, D))
        roots[:, *np.tril_indices(D)] = parts[3].reshape(C, learned)
        for root in roots:
            root[np.diag_indices(D)] = np.exp(np.diagonal(root))
        theta["deformation_covariance"] = roots @ roots.transpose(0, 2, 1)
    else:
        shape = (C, D) if covariance == "diagonal" else (C,)
        theta["deformation_variance"] = np.exp(parts[3]).reshape(shape)
    return theta, sum(blocks.values()) + C * learned


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_closed_form_is_the_numerical_maximum(covariance, noise, rng):
    statistics = random_statistics(rng)
    n = 7.0
    priors = TemplatePriors(
        template_mean=rng.normal(size=L),
        template_strength=0.5,
        noise_shape=3.0,
        noise_rate=0.7,
        weight_concentration=np.array([1.5, 4.0]),
        deformation_shape=2.0,
        deformation_rate=0.4,
    )

    def negative(x):
        return -objective(unpack(x, covariance, noise)[0], statistics, priors, n, covariance)

    sizes = {"scaled": 1, "diagonal": D, "full": D * (D + 1) // 2}[covariance]
    size = C + C * L + (C if noise == "class" else 1) + C * sizes
    assert unpack(np.zeros(size), covariance, noise)[1] == size
    numerical = optimize.minimize(
        negative, np.zeros(size), method="BFGS", options={"gtol": 1e-7, "maxiter": 5000}
    )
    found = maximize_templates(
        statistics,
        effective_size=n,
        priors=priors,
        gram=GRAM,
        base_covariance=BASE if covariance != "diagonal" else np.eye(D),
        covariance=covariance,
        noise=noise,
    )
    value = objective(found, statistics, priors, n, covariance)
    assert value >= -numerical.fun - 1e-10
    expected = unpack(numerical.x, covariance, noise)[0]
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert np.shape(found[name]) == np.shape(array)
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_without_priors_it_is_maximum_likelihood(covariance, rng):
    statistics = random_statistics(rng)
    arguments = {
        "gram": GRAM,
        "base_covariance": BASE if covariance != "diagonal" else np.eye(D),
        "covariance": covariance,
        "priors": TemplatePriors(),
    }
    found = maximize_templates(statistics, effective_size=np.inf, **arguments)
    mass = statistics["class_weight"]
    np.testing.assert_allclose(found["weights"], mass)
    for j in range(C):
        np.testing.assert_allclose(
            statistics["template_gram"][j] @ found["templates"][j],
            statistics["template_projection"][j],
            atol=1e-10,
        )
    residual = sum(
        statistics["squared_norm"][j] - found["templates"][j] @ statistics["template_projection"][j]
        for j in range(C)
    )
    points = statistics["observed_points"].sum()
    np.testing.assert_allclose(found["noise_variance"], residual / points)
    outer = statistics["deformation_outer"] / mass[:, None, None]
    if covariance == "full":
        np.testing.assert_allclose(found["deformation_covariance"], outer)
    elif covariance == "diagonal":
        expected = np.diagonal(outer, axis1=1, axis2=2)
        np.testing.assert_allclose(found["deformation_variance"], expected)
    else:
        expected = np.einsum("kl,jkl->j", np.linalg.inv(BASE), outer) / D
        np.testing.assert_allclose(found["deformation_variance"], expected)
    near = maximize_templates(statistics, effective_size=1e12, **arguments)
    for name, array in found.items():
        np.testing.assert_allclose(near[name], array, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_class_without_mass_falls_back_on_its_priors(covariance, noise, rng):
    statistics = random_statistics(rng)
    for value in statistics.values():
        value[1] = 0.0
    statistics["class_weight"][0] = 1.0
    priors = TemplatePriors(template_mean=0.3)
    found = maximize_templates(
        statistics,
        effective_size=5.0,
        priors=priors,
        gram=GRAM,
        base_covariance=BASE,
        covariance=covariance,
        noise=noise,
    )
    assert all(np.isfinite(value).all() for value in found.values())
    np.testing.assert_allclose(found["templates"][1], 0.3)
    np.testing.assert_allclose(found["weights"], [6 / 7, 1 / 7])
    assert (found["noise_variance"] > 0).all()
    if covariance == "full":
        np.testing.assert_allclose(found["deformation_covariance"][1], 0.01 * BASE)
    else:
        np.testing.assert_allclose(found["deformation_variance"][1], 0.01)


def test_a_class_without_mass_and_without_priors_is_refused(rng):
    statistics = random_statistics(rng)
    for value in statistics.values():
        value[1] = 0.0
    with pytest.raises(ValueError, match="class 1 has mass 0 and its template"):
        maximize_templates(
            statistics,
            effective_size=np.inf,
            priors=TemplatePriors(),
            gram=GRAM,
            base_covariance=BASE,
        )


def test_a_strong_prior_holds_the_deformation_variance(rng):
    statistics = random_statistics(rng)
    arguments = {"effective_size": 100.0, "gram": GRAM, "base_covariance": BASE}
    free = maximize_templates(statistics, priors=TemplatePriors(), **arguments)
    priors = TemplatePriors().with_deformation_variance(0.005, weight=1e6)
    held = maximize_templates(statistics, priors=priors, **arguments)
    assert (free["deformation_variance"] > 0.03).all()
    np.testing.assert_allclose(held["deformation_variance"], 0.005, rtol=0.01)


def test_the_weight_of_the_prior_counts_coordinates(rng):
    """A prior worth as many coordinates as were seen ends in the middle."""
    statistics = random_statistics(rng)
    n, mass = 50.0, statistics["class_weight"]
    likelihood = np.einsum("kl,jkl->j", np.linalg.inv(BASE), statistics["deformation_outer"])
    likelihood /= D * mass
    weight = float(n * D * mass[0])
    priors = TemplatePriors().with_deformation_variance(0.001, weight=weight)
    found = maximize_templates(
        statistics, effective_size=n, priors=priors, gram=GRAM, base_covariance=BASE
    )
    assert found["deformation_variance"][0] == pytest.approx((likelihood[0] + 0.001) / 2)


IMAGES = {
    "default": {},
    "identity": {"priors": TemplatePriors(template_precision="identity")},
    "given precision": {"priors": TemplatePriors(template_precision=np.eye(144) + 0.01)},
    "offset": {"offset": 1.0},
    "correlated noise": {
        "noise_correlation": 0.9 ** np.abs(np.subtract.outer(np.arange(144), np.arange(144)))
    },
}


@pytest.mark.parametrize("kind", IMAGES)
def test_the_m_step_of_images_is_that_of_whole_matrices(kind, rng):
    """Their matrices are by bands, as wide as the kernels reach or as the prior or noise joins."""
    mixture = TemplateMixture.for_images(
        (12, 12), 1, rigid_weight=None, n_landmarks=2, **IMAGES[kind]
    )
    settings, n = mixture.settings, 9.0
    design = settings.basis.matrix(settings.points + 0.02 * rng.normal(size=(144, 2)))
    right = design.T @ rng.normal(size=144)
    gram = design.T @ design
    if kind == "correlated noise":
        gram = design.T @ np.linalg.solve(settings.noise_covariance, design)
    statistics = {
        "class_weight": np.ones(1),
        "template_projection": right[None],
        "template_gram": gram[None],
        "deformation_outer": np.eye(len(settings.base_covariance))[None],
        "squared_norm": np.array([300.0]),
        "observed_points": np.array([144.0]),
    }
    precision = template_precision(settings, mixture.priors, mixture.gram)
    found = mixture.maximize(statistics, effective_size=n)["templates"][0]
    expected = np.linalg.solve(gram + precision / n, right)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.abs(expected).max())
    assert mixture.ready(statistics, effective_size=n).all()
    mixture.check_statistics(statistics)
    statistics["template_gram"] = gram[None] - 2.0 * np.eye(144)
    with pytest.raises(ValueError, match="template_gram of class 0 is not positive semidefinite"):
        mixture.check_statistics(statistics)
    statistics["template_gram"] = gram[None] + 0.1 * np.triu(gram, 1)
    with pytest.raises(ValueError, match="template_gram of class 0 is not positive semidefinite"):
        mixture.check_statistics(statistics)


@pytest.mark.parametrize("effective_size", [0.0, -1.0, np.nan])
def test_effective_size_must_be_positive(effective_size, rng):
    with pytest.raises(ValueError, match="effective_size"):
        maximize_templates(
            random_statistics(rng),
            effective_size=effective_size,
            priors=TemplatePriors(),
            gram=GRAM,
            base_covariance=BASE,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_shape": -2.0}, "noise_shape is -2.0"),
        ({"noise_rate": -1.0}, "noise_rate is -1.0"),
        ({"template_strength": np.inf}, "template_strength is inf"),
        ({"weight_concentration": 0.5}, "weight_concentration is 0.5"),
        ({"template_precision": "smooth"}, "template_precision is 'smooth'"),
    ],
)
def test_priors_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TemplatePriors(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template_precision": np.eye(3)}, "template_precision has shape"),
        ({"template_mean": np.zeros(3)}, "template_mean has shape"),
        ({"weight_concentration": np.ones(5)}, "weight_concentration has shape"),
    ],
)
def test_priors_of_another_size_are_refused_by_the_mixture(options, message):
    with pytest.raises(ValueError, match=message):
        TemplateMixture.for_images((4, 4), 2, n_landmarks=2, priors=TemplatePriors(**options))


def test_missing_pixels_leave_the_noise_unbiased(rng):
    """With a third of the pixels missing, latents known: 5 standard errors."""
    side, truth, n_images = 5, 0.04, 150
    oracle = ImageOracle(side, 2, 0.02)
    mixture = TemplateMixture.for_images((side, side), 2, rigid_weight=None, n_landmarks=2)
    templates = rng.normal(size=(2, side**2))
    labels = rng.integers(2, size=n_images)
    totals = {}
    for label in labels:
        beta = oracle.mean + 0.1 * rng.normal(size=14)
        image = oracle.design(beta) @ templates[label] + np.sqrt(truth) * rng.normal(size=side**2)
        image[rng.random(size=side**2) < 1 / 3] = np.nan
        for name, value in {"class_weight": 1.0, **oracle.statistics(beta, 1.0, image)}.items():
            totals.setdefault(name, np.zeros((2, *np.shape(value))))[label] += value / n_images
    found = mixture.maximize(totals, effective_size=np.inf)["noise_variance"]
    points = n_images * totals["observed_points"].sum()
    assert 0.6 < points / (n_images * side**2) < 0.73
    # maximum likelihood has lost the coefficients' degrees of freedom
    unbiased = found * points / (points - 2 * side**2)
    assert abs(unbiased / truth - 1) < 5 * np.sqrt(2 / points)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_classes_that_wait_keep_their_rows_and_the_noise_is_maximized_given_them(
    covariance, noise, rng
):
    statistics, priors, n = random_statistics(rng), TemplatePriors(), 30.0
    options = dict(
        effective_size=n,
        priors=priors,
        gram=GRAM,
        base_covariance=BASE,
        covariance=covariance,
        noise=noise,
    )
    everything = maximize_templates(statistics, **options)
    present = {name: 1.5 * value for name, value in everything.items()}
    ready = np.array([True, False])
    found = maximize_templates(statistics, **options, ready=ready, present=present)
    for name in set(found) - {"weights", "noise_variance"}:
        np.testing.assert_array_equal(found[name][1], present[name][1])
        np.testing.assert_allclose(found[name][0], everything[name][0], rtol=1e-12)
    if noise == "class":
        assert found["noise_variance"][1] == present["noise_variance"][1]
        return

    def loss(log_variance):
        theta = {**found, "noise_variance": np.exp(log_variance)}
        return -objective(theta, statistics, priors, n, covariance)

    best = optimize.minimize_scalar(loss, bounds=(-12, 12), method="bounded")
    np.testing.assert_allclose(found["noise_variance"], np.exp(best.x), rtol=1e-4)
    assert found["noise_variance"] > everything["noise_variance"]


def test_classes_that_wait_need_something_to_keep(rng):
    with pytest.raises(ValueError, match="present"):
        maximize_templates(
            random_statistics(rng),
            effective_size=30.0,
            priors=TemplatePriors(),
            gram=GRAM,
            base_covariance=BASE,
            ready=np.array([True, False]),
        )


def test_without_priors_a_class_without_mass_waits_and_the_others_go_on(rng):
    mixture = TemplateMixture.for_images(
        (3, 3),
        n_classes=2,
        n_landmarks=2,
        priors=TemplatePriors(template_strength=0.0, weight_concentration=1.0, noise_shape=-0.5),
    )
    away = {**mixture.model_parameters(), "templates": np.stack([np.zeros(9), np.full(9, 50.0)])}
    em = OnlineEM(
        mixture,
        parameters=away,
        e_step=FixedLatents(),
        random_seed=1,
        progressbar=False,
    ).partial_fit(rng.normal(size=(30, 3, 3)))
    assert em.n_seen == 30
    # every kernel is seen, so the first class is maximized; nothing ever made the second one
    assert not np.array_equal(em.parameters["templates"][0], away["templates"][0])
    np.testing.assert_array_equal(em.parameters["templates"][1], away["templates"][1])
    assert float(em.parameters["noise_variance"]) > 0
