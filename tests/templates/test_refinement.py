"""Refined templates: the score against quadrature, information, and what a common warp leaves."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.special import logsumexp
from scipy.stats import gamma, multivariate_normal

import pymc_mcoem as mcoem
from pymc_mcoem.esteps import CarlinChibBurst
from pymc_mcoem.templates.noise import masked_correlation
from pymc_mcoem.templates.scoring import Linearized, ScoringStep, Sums, stepped

TIMES = np.linspace(0.0, 1.0, 9)
SHAPES = np.array([[0.0, 1.0, 3.0, 1.0, 0.0], [0.5, 2.0, 2.0, 0.0, 1.0], [0.0, 2.5, 1.0, 1.0, 0.0]])
FEW = {"draws": 10, "tune": 5, "progressbar": False}


def toy(n_classes=3, variance=0.3, noise_variance=0.04, **options):
    """Return a mixture of overlapping classes with two latents or three, and θ."""
    mixture = mcoem.TemplateMixture.for_curves(
        TIMES,
        n_classes,
        n_landmarks=5,
        n_warp_kernels=2,
        **{"coefficients": "real", "scale": None, **options},
    )
    theta = {name: np.array(value) for name, value in mixture.model_parameters().items()}
    shown = SHAPES[:n_classes]
    if mixture.settings.channel_shape:
        shown = np.stack([shown, 1.0 - 0.5 * shown], axis=1)
    theta["templates"] = shown
    theta["weights"] = np.array([0.5, 0.3, 0.2])[:n_classes] / sum([0.5, 0.3, 0.2][:n_classes])
    theta["noise_variance"] = np.broadcast_to(noise_variance, theta["noise_variance"].shape).copy()
    if "deformation_covariance" in theta:
        theta["deformation_covariance"] = np.tile(variance * np.eye(2), (n_classes, 1, 1))
    else:
        theta["deformation_variance"] = np.full_like(theta["deformation_variance"], variance)
    return mixture, theta


def drawn(mixture, theta, n, seed=1):
    """Return observations of a mixture with one variance of warps."""
    settings, rng = mixture.settings, np.random.default_rng(seed)
    warp = settings.deformation
    classes = rng.choice(len(theta["weights"]), p=theta["weights"], size=n)
    variance = np.ravel(theta.get("deformation_variance", 0.3))[0]
    warped = warp.evaluate(
        TIMES, warp.mean + np.sqrt(variance) * rng.normal(size=(n, warp.n_parameters))
    )
    design = settings.basis.matrix(warped.reshape(-1, 1)).reshape(*warped.shape, -1)
    templates = theta["templates"].reshape(len(theta["weights"]), settings.n_channels, -1)
    values = np.einsum("npl,ncl->npc", design, templates[classes])
    if settings.scale is not None:
        values *= rng.gamma(settings.scale[0], 1 / settings.scale[1], size=(n, 1, 1))
    covariance = np.eye(len(TIMES))
    if settings.noise_covariance is not None:
        covariance = settings.noise_covariance
    noise = rng.normal(size=values.shape)
    values += np.sqrt(np.max(theta["noise_variance"])) * np.einsum(
        "qp,npc->nqc", np.linalg.cholesky(covariance), noise
    )
    return values if settings.channel_shape else values[..., 0]


def log_likelihood(mixture, theta, data, n_nodes=25):
    """Return log p(y) by quadrature over the warp and the scale."""
    settings = mixture.settings
    warp, basis = settings.deformation, settings.basis
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    betas = warp.mean + np.sqrt(0.3) * np.array(list(product(nodes, nodes)))
    log_weights = np.log(np.outer(weights, weights).ravel() / weights.sum() ** 2)
    scales, log_scales = np.ones(1), np.zeros(1)
    if settings.scale is not None:
        shares = (np.arange(40) + 0.5) / 40
        scales = gamma.ppf(shares, settings.scale[0], scale=1 / settings.scale[1])
        log_scales = np.full(40, -np.log(40))
    points = data["own_points"] if settings.own_points is not None else TIMES
    shape = (len(points), settings.n_channels)
    values, mask = (np.reshape(data[name], shape) for name in ("observed_values", "observed_mask"))
    warped = warp.evaluate(points, betas)
    designs = basis.matrix(warped.reshape(-1, 1)).reshape(*warped.shape, -1)
    by_class = []
    for j, weight in enumerate(theta["weights"]):
        found = 0.0
        for c, template in enumerate(np.atleast_2d(theta["templates"][j])):
            noise = np.asarray(theta["noise_variance"])
            own = noise[j] if settings.noise == "class" else noise
            variance = np.atleast_1d(own)[c]
            seen = mask[:, c] > 0
            covariance = variance * np.eye(seen.sum())
            if settings.noise_covariance is not None:
                covariance = variance * settings.noise_covariance[np.ix_(seen, seen)]
            means = scales[:, None, None] * (designs @ template)[None]
            away = values[:, c][seen] - means[..., seen]
            found = found + multivariate_normal.logpdf(away, np.zeros(seen.sum()), covariance)
        found = np.reshape(found, (len(scales), len(betas)))
        by_class.append(np.log(weight) + logsumexp(found + log_weights + log_scales[:, None]))
    return logsumexp(by_class)


def exact_score(mixture, theta, data):
    """Return the derivative of log p(y) by all coefficients, (n_classes, n_coefficients)."""
    found = np.zeros(theta["templates"].shape)
    for place in np.ndindex(found.shape):
        sides = []
        for step in (1e-4, -1e-4):
            moved = theta["templates"].copy()
            moved[place] += step
            sides.append(log_likelihood(mixture, {**theta, "templates": moved}, data))
        found[place] = (sides[0] - sides[1]) / 2e-4
    return found.reshape(len(found), -1)


def burst_scores(mixture, theta, data, rng, n=8, draws=200):
    """Return scores of several bursts, (n, n_classes, n_coefficients)."""
    step, found = ScoringStep(mixture, CarlinChibBurst()), []
    for _ in range(n):
        sums = Sums(mixture)
        step.add(sums, data, theta, rng, draws, 50)
        found.append(sums.scores)
    return np.array(found)


SETTINGS = {
    "plain": {},
    "scale": {"scale": (20.0, 20.0)},
    "own points": {"own_points": 11},
    "channels": {"channels": ["a", "b"]},
    "noise of each class": {"noise": "class"},
    "offset": {"offset": 2.0},
    "correlated": {"noise_correlation": 0.5 ** np.abs(np.subtract.outer(range(9), range(9)))},
}


def z_scores(scores, exact):
    error = scores.std(axis=0, ddof=1) / np.sqrt(len(scores))
    # differences of logarithms of sums over nodes have an error of about a thousandth
    return (scores.mean(axis=0) - exact) / np.hypot(error, 2e-3 * np.abs(exact).max())


def observation(mixture, theta, name):
    values = drawn(mixture, theta, 1, seed=3)[0] if name != "own points" else None
    if name == "own points":
        points = np.linspace(0.05, 0.9, 7)
        return mixture.encode(np.stack([points, 2.0 * np.exp(-np.square((points - 0.5) / 0.2))]))
    values[2] = np.nan
    return mixture.encode(values)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("noise_variance", [0.04, 0.5])
def test_scores_are_derivatives_of_the_likelihood(name, noise_variance, rng):
    mixture, theta = toy(noise_variance=noise_variance, **SETTINGS[name])
    data = observation(mixture, theta, name)
    z = z_scores(burst_scores(mixture, theta, data, rng), exact_score(mixture, theta, data))
    assert np.abs(z).max() < 5.0


@pytest.mark.parametrize("name", ["plain", "scale"])
def test_the_control_variate_leaves_little_monte_carlo_error(name, rng, monkeypatch):
    mixture, theta = toy(**SETTINGS[name])
    data = observation(mixture, theta, name)
    spread = burst_scores(mixture, theta, data, rng, draws=50).std(axis=0)
    monkeypatch.setattr(Linearized, "response", lambda self, slope: 0.0)
    plain = burst_scores(mixture, theta, data, rng, draws=50).std(axis=0)
    assert np.linalg.norm(spread) < 0.7 * np.linalg.norm(plain)


def test_a_wrong_control_variate_is_seen(rng, monkeypatch):
    """Twice the response would double errors, and a response to something else would bias."""
    mixture, theta = toy()
    data = observation(mixture, theta, "plain")
    right = ScoringStep._slope
    monkeypatch.setattr(
        ScoringStep,
        "_slope",
        lambda self, data, theta, j, positions: 1.0 + right(self, data, theta, j, positions),
    )
    z = z_scores(burst_scores(mixture, theta, data, rng), exact_score(mixture, theta, data))
    assert np.abs(z).max() > 20.0


def test_scores_of_other_templates_are_seen(rng, monkeypatch):
    mixture, theta = toy()
    data = observation(mixture, theta, "plain")
    right = ScoringStep._score

    def wrong(self, statistics, theta, j):
        return right(self, statistics, {**theta, "templates": theta["templates"][::-1]}, j)

    monkeypatch.setattr(ScoringStep, "_score", wrong)
    z = z_scores(burst_scores(mixture, theta, data, rng), exact_score(mixture, theta, data))
    assert np.abs(z).max() > 20.0


@pytest.mark.parametrize("name", ["plain", "scale", "channels", "offset", "correlated"])
def test_the_information_is_the_spread_of_scores(name):
    """At the truth scores of observations have the information as their covariance."""
    mixture, theta = toy(n_classes=1, variance=0.05, **SETTINGS[name])
    step, sums = ScoringStep(mixture, CarlinChibBurst()), Sums(mixture)
    rng = np.random.default_rng(8)
    n = 400
    for values in drawn(mixture, theta, n, seed=4):
        step.add(sums, mixture.encode(values), theta, rng, 25, 10)
    # eigenvalues of outer · information⁻¹ are those of a Wishart matrix of n degrees of freedom
    whiten = np.linalg.inv(np.linalg.cholesky(sums.information[0]))
    spread = np.linalg.eigvalsh(whiten @ sums.outer[0] @ whiten.T)
    edge = np.sqrt(len(spread) / n)
    assert spread.max() < (1 + edge) ** 2 + 0.15
    assert spread.min() > (1 - edge) ** 2 - 0.15
    # the information as if latents were known would fail this
    known = step._linearized(
        mixture.encode(values), theta, 0, [*mixture.settings.deformation.mean, 0.0]
    ).whole
    spread = np.linalg.eigvalsh(np.linalg.solve(n * known, sums.outer[0]).real)
    assert spread.min() < (1 - edge) ** 2 - 0.15


def test_a_common_warp_is_corrected_where_em_is_slow(rng):
    mixture, theta = toy(n_classes=1, variance=0.05, noise_variance=4e-4)
    mixture = mixture.with_classes(1, priors=mixture.priors.with_deformation_variance(0.05, 1_000))
    stream = drawn(mixture, theta, 200)
    warp, design = mixture.settings.deformation, mixture.mean_design()
    # the template as if all curves were later by the same warp
    late = warp.evaluate(TIMES, warp.mean + np.array([0.12, -0.12]))
    values = mixture.settings.basis.matrix(late[:, None]) @ theta["templates"][0]
    begin = {**theta, "templates": np.linalg.lstsq(design, values, rcond=None)[0][None]}

    def away(parameters):
        return design @ (np.asarray(parameters["templates"])[0] - theta["templates"][0])

    step, sums = ScoringStep(mixture, CarlinChibBurst()), Sums(mixture)
    for values in stream:
        step.add(sums, mixture.encode(values), begin, rng, 20, 10)
    means = {name: value / sums.n for name, value in sums.statistics.items()}
    by_em = away(mixture.maximize(means, effective_size=float(sums.n)))
    found = mcoem.refine_templates(begin, mixture, stream, draws=20, progressbar=False)
    errors = found.templates.template_sd.values[0]
    assert np.linalg.norm(by_em) > 0.7 * np.linalg.norm(away(begin))
    assert np.linalg.norm(away(found.parameters)) < 0.2 * np.linalg.norm(away(begin))
    # the refined template is within its bands, that of the EM step is not
    assert np.all(np.abs(away(found.parameters)) < 4.0 * errors)
    assert np.any(np.abs(by_em) > 5.0 * errors)


def test_names_dims_and_units_are_kept():
    mixture, theta = toy(units={"time": "ms", "a": "mV"}, channels={"lead": ["a", "b"]})
    found = mcoem.refine_templates(
        mixture.to_dataset(theta), mixture, drawn(mixture, theta, 12), rounds=1, **FEW
    )
    templates = found.templates
    assert templates.template_sd.dims == ("class", "time", "lead")
    assert templates.template_sd.time.attrs == templates.template.time.attrs
    assert templates.last_step.dims == ("class",)
    np.testing.assert_array_equal(
        templates.template, mcoem.template_images(found.parameters, mixture)
    )
    mixture.check_parameters(found.parameters)
    assert templates.attrs == {"rounds": 1, "draws": 10, "tune": 5, "observations": 12}


def test_images_are_refined(rng):
    reach = {"degrees": 5, "pixels": 0.3, "percent": 3}
    mixture = mcoem.TemplateMixture.for_images((5, 5), 2, n_landmarks=2, rigid=reach)
    theta = mixture.check_parameters(mixture.parameters)
    theta["noise_variance"] = np.array(0.01)
    theta["templates"] = rng.normal(size=theta["templates"].shape)
    stream = mcoem.template_images(theta, mixture).values[[0, 1, 1, 0, 1] * 30]
    stream = stream + rng.normal(0, 0.1, size=stream.shape)
    found = mcoem.refine_templates(theta, mixture, stream, rounds=1, **FEW)
    assert found.templates.template_sd.dims == ("class", "row", "column")
    assert np.mean(found.templates.template_sd > 0) > 0.8


def different(**options):
    """Return a toy in which classes, coordinates and channels differ in everything, and θ."""
    mixture, theta = toy(**options)
    for name in ("noise_variance", "deformation_variance"):
        if name in theta:
            size = theta[name].size
            theta[name] = np.linspace(0.03, 0.09, size).reshape(theta[name].shape)
    if "deformation_covariance" in theta:
        factors = np.random.default_rng(6).normal(size=(3, 2, 2))
        theta["deformation_covariance"] = factors @ factors.transpose(0, 2, 1) + np.eye(2) / 9
    return mixture, theta


ALL = {
    **SETTINGS,
    "diagonal": {"covariance": "diagonal"},
    "full": {"covariance": "full"},
    "noise of each class and channel": {"noise": "class", "channels": ["a", "b"]},
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("j", [0, 2])
def test_information_is_that_of_the_linear_model(name, j):
    """Latents that are normal add J'ΓJ to the covariance of the noise, by which X is weighted."""
    mixture, theta = different(**ALL[name])
    settings, data = mixture.settings, observation(mixture, theta, name)
    warp, basis = settings.deformation, settings.basis
    beta, scale = warp.mean + np.array([0.1, -0.2]), 1.0
    position = beta
    if settings.scale is not None:
        scale, position = 1.3, np.append(beta, np.log(1.3))
    points = data["own_points"] if settings.own_points is not None else TIMES
    mask = np.reshape(data["observed_mask"], (len(points), -1))
    templates = np.atleast_2d(theta["templates"][j])

    def design(beta):
        return scale * basis.matrix(warp.evaluate(points, beta)[:, None])

    if settings.covariance == "full":
        prior = theta["deformation_covariance"][j]
    elif settings.covariance == "diagonal":
        prior = np.diag(theta["deformation_variance"][j])
    else:
        prior = theta["deformation_variance"][j] * np.eye(2)
    steps = [1e-5 * np.eye(2)[k] for k in range(2)]
    blocks, slopes, noises = [], [], []
    for c, template in enumerate(templates):
        seen = mask[:, c] > 0
        columns = [(design(beta + step) - design(beta - step)) @ template / 2e-5 for step in steps]
        if settings.scale is not None:
            columns.append(design(beta) @ template)
        noise = theta["noise_variance"][j] if settings.noise == "class" else theta["noise_variance"]
        correlation = np.eye(len(points))
        if settings.noise_covariance is not None:
            correlation = settings.noise_covariance
        blocks.append(design(beta)[seen])
        slopes.append(np.array(columns).T[seen])
        noises.append(np.atleast_1d(noise)[c] * correlation[np.ix_(seen, seen)])
    if settings.scale is not None:
        prior = block_diag(prior, 1 / (settings.scale[1] * scale))
    slope, whole = np.concatenate(slopes), block_diag(*blocks)
    covariance = slope @ prior @ slope.T + block_diag(*noises)
    wanted = whole.T @ np.linalg.solve(covariance, whole)
    found = ScoringStep(mixture, CarlinChibBurst())._linearized(data, theta, j, position)
    np.testing.assert_allclose(found.information, wanted, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["channels", "noise of each class", "scale"])
def test_scores_of_classes_that_differ(name, rng):
    mixture, theta = different(**SETTINGS[name])
    theta["deformation_variance"] = np.full(3, 0.3)
    data = observation(mixture, theta, name)
    z = z_scores(burst_scores(mixture, theta, data, rng), exact_score(mixture, theta, data))
    assert np.abs(z).max() < 5.0


def test_an_observation_counts_by_its_share_of_the_draws():
    mixture, theta = toy(noise_variance=9.0)
    data = observation(mixture, theta, "plain")
    step, sums = ScoringStep(mixture, CarlinChibBurst()), Sums(mixture)
    step.add(sums, data, theta, np.random.default_rng(3), 60, 10)
    _, sweeps = step._burst.with_draws(
        data, theta, np.random.default_rng(3), step._burst.initial_state(), draws=60, tune=10
    )
    classes, positions = sweeps.class_index[10:], sweeps.position[10:]
    assert len(np.unique(classes)) == 3
    for j in range(3):
        place = positions[classes == j].mean(axis=0)
        linear = step._linearized(data, theta, j, place).information
        np.testing.assert_allclose(sums.information[j], np.mean(classes == j) * linear)


def test_a_step_and_its_errors_are_those_of_the_formulas(rng):
    mixture, theta = different(**ALL["noise of each class and channel"])
    step, sums = ScoringStep(mixture, CarlinChibBurst()), Sums(mixture)
    for values in drawn(mixture, theta, 30):
        step.add(sums, mixture.encode(values), theta, rng, 10, 5)
    for scale in (1.0, 1e4):  # in the second the errors by the scores are the larger
        sums.outer *= scale
        found = step.moved(sums, theta)
        for j in range(3):
            priors = [step._prior_precision / noise for noise in theta["noise_variance"][j]]
            prior = block_diag(*priors)
            inverse = np.linalg.inv(sums.information[j] + prior)
            after = theta["templates"][j].ravel() + inverse @ sums.scores[j]
            np.testing.assert_allclose(found.theta["templates"][j].ravel(), after)
            design = block_diag(*[mixture.mean_design()] * 2)
            variances = [
                np.diagonal(design @ each @ design.T)
                for each in (inverse, inverse @ (sums.outer[j] + prior) @ inverse)
            ]
            errors = np.sqrt(np.maximum(*variances)).reshape(2, -1).T
            np.testing.assert_allclose(found.errors[j], errors)
            shown = design @ (after - theta["templates"][j].ravel())
            length = np.sqrt(np.mean(np.square(shown / errors.T.ravel())))
            np.testing.assert_allclose(found.lengths[j], length)


def test_the_same_observations_give_the_same_templates():
    mixture, theta = toy()
    stream = drawn(mixture, theta, 6)
    one, other = (
        mcoem.refine_templates(theta, mixture, each, rounds=1, **FEW)
        for each in (stream, list(stream))
    )
    assert one.parameters.identical(other.parameters)
    assert one.templates.identical(other.templates)


def test_a_class_without_observations_keeps_its_template():
    mixture, theta = toy()
    theta = {**theta, "weights": np.array([1.0 - 1e-300, 0.0, 1e-300])}
    found = mcoem.refine_templates(theta, mixture, drawn(mixture, theta, 5), rounds=2, **FEW)
    np.testing.assert_array_equal(found.parameters.templates[1:], theta["templates"][1:])
    assert np.isnan(found.templates.template_sd[1:]).all()
    assert np.isfinite(found.templates.template_sd[0]).all()


def test_nonnegative_coefficients_stay_so():
    mixture, theta = toy(n_classes=1, coefficients="nonnegative")
    found = mcoem.refine_templates(theta, mixture, drawn(mixture, theta, 30), **FEW)
    assert (found.parameters.templates >= 0).all()
    after, _ = stepped(
        np.array([1.0, 0.5]),
        np.array([0.0, -9.0]),
        np.array([[2.0, 1.0], [1.0, 2.0]]),
        nonnegative=True,
    )
    # the minimum of the quadratic form on the boundary, by hand
    np.testing.assert_allclose(after, [1.25, 0.0])
    # the bound makes no standard error zero
    theta = {**theta, "templates": np.zeros((1, 5))}
    found = mcoem.refine_templates(theta, mixture, np.zeros((30, 9)), rounds=1, **FEW)
    assert (found.parameters.templates == 0).all()
    assert (found.templates.template_sd > 0).all()
    assert found.templates.last_step == 0.0


def test_what_no_observation_has_seen_has_no_band(caplog):
    mixture, theta = toy(n_classes=1, noise_variance=0.01)
    stream = drawn(mixture, theta, 30)
    stream[:, 5:] = np.nan
    found = mcoem.refine_templates(theta, mixture, stream, rounds=1, **FEW)
    errors = found.templates.template_sd.values[0]
    assert np.isfinite(errors[:4]).all() and np.isnan(errors[-1])
    caplog.clear()
    wrong = {**theta, "templates": theta["templates"][:, ::-1] + 1.0}
    mcoem.refine_templates(wrong, mixture, stream, rounds=1, **FEW)
    assert "moved the templates of classes [0] by more than their standard errors" in caplog.text


def test_levels_have_no_prior_where_observations_have_offsets():
    mixture, _ = toy(offset=2.0)
    step = ScoringStep(mixture, CarlinChibBurst())
    design = mixture.mean_design()
    level = np.linalg.lstsq(design, np.ones(len(design)), rcond=1e-6)[0]
    np.testing.assert_allclose(step._prior_precision @ level, 0.0, atol=1e-9)


def test_errors_name_what_is_wrong(monkeypatch):
    mixture, theta = toy()
    stream = drawn(mixture, theta, 3)
    for given, observations, words in (
        ({}, stream[0], "observations: got a single one"),
        ({}, [], "observations: got none"),
        ({"rounds": 0}, stream, "rounds"),
        ({"draws": 1}, stream, "draws"),
        ({}, np.full((2, 9), np.inf), "observation 0"),
    ):
        with pytest.raises(ValueError, match=words):
            mcoem.refine_templates(theta, mixture, observations, **{"progressbar": False, **given})
    monkeypatch.setattr(ScoringStep, "_score", lambda *_: np.full(5, np.nan))
    with pytest.raises(FloatingPointError, match=r"observation 0, .* cannot be used: the"):
        mcoem.refine_templates(theta, mixture, stream, **FEW)


def test_masks_of_correlated_noise_are_whitened():
    """Columns of what is not seen are zero, and the others' inner products are by the precision."""
    mixture, _ = toy(**SETTINGS["correlated"])
    mask = np.ones(9)
    mask[[1, 4]] = 0.0
    step = ScoringStep(mixture, CarlinChibBurst())
    columns = np.random.default_rng(3).normal(size=(9, 2))
    found = step._whitened(columns, mask)
    seen = mask > 0
    precision = np.linalg.inv(mixture.settings.noise_correlation[np.ix_(seen, seen)])
    np.testing.assert_allclose(found.T @ found, columns[seen].T @ precision @ columns[seen])
    assert masked_correlation(mixture.settings.noise_correlation, mask)[1, 4] == 0.0
