"""Templates that vary by factors: templates that are added with scores of each observation."""

import pickle

import numpy as np
import pymc as pm
import pytest
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

import pymc_mcoem as mcoem
from pymc_mcoem import OnlineEM, TemplateMixture, template_images
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.datasets import simulate_images
from pymc_mcoem.templates import GaussianBasis, RigidMotion, TemplatePriors
from pymc_mcoem.templates.bases.factors import BasisWithFactors
from pymc_mcoem.templates.first_factors import first_factors
from pymc_mcoem.templates.warps.scores import DeformationWithScores

SIDE = 7
FAST = mcoem.esteps.LaplaceGaussian()


def blots(n_classes=2, n_factors=1, **options):
    settings = {"n_landmarks": 2, "rigid_variance": 0.01, "rigid_weight": None}
    return TemplateMixture.for_images(
        (SIDE, SIDE), n_classes, n_factors=n_factors, **settings | options
    )


def random_theta(mixture, rng, size=0.5):
    theta = {name: np.array(value) for name, value in mixture.model_parameters().items()}
    theta["templates"] = size * rng.normal(size=theta["templates"].shape)
    theta["weights"] = rng.dirichlet(np.full(mixture.n_classes, 5.0))
    theta["noise_variance"] = np.array(0.3)
    return theta


def designs(mixture, beta):
    """Return the kernels at the points that β moves, (n_points, n_kernels)."""
    settings = mixture.settings
    warped = settings.deformation.within.warp(settings.points, beta).eval()
    return settings.basis.kernels.matrix(warped)


def parts(mixture, templates):
    """Return the template's coefficients and those of the factors, (n_factors, n_kernels)."""
    table = templates.reshape(1 + mixture.settings.basis.n_factors, -1)
    return table[0], table[1:]


def log_integral(log_density):
    """Return the log of the integral of a density of two scores, whose log is quadratic."""
    zero, *ones = np.zeros(2), *np.eye(2)
    at = log_density(zero)
    slope = np.array([(log_density(one) - log_density(-one)) / 2 for one in ones])
    bend = np.diag([log_density(one) + log_density(-one) - 2 * at for one in ones])
    bend[0, 1] = bend[1, 0] = log_density(np.ones(2)) - at - sum(slope) - np.trace(bend) / 2
    _, log_determinant = np.linalg.slogdet(-bend)
    return at + slope @ np.linalg.solve(-bend, slope) / 2 + np.log(2 * np.pi) - log_determinant / 2


def test_scores_that_are_summed_out_leave_a_low_rank_covariance(rng):
    mixture = blots(3, 2)
    theta, warp = random_theta(mixture, rng), mixture.settings.deformation.within
    beta = warp.mean + 0.1 * rng.normal(size=warp.n_parameters)
    template, factors = parts(mixture, theta["templates"][1])
    found, expected = [], []
    for _ in range(2):
        values = rng.normal(size=(SIDE, SIDE))
        values.flat[3] = np.nan
        seen = ~np.isnan(values.ravel())
        design = designs(mixture, beta)[seen]
        rows = design @ factors.T
        normal = multivariate_normal(design @ template, 0.3 * np.eye(len(rows)) + rows @ rows.T)
        expected.append(normal.logpdf(values.ravel()[seen]))
        logp = mixture.condition(values, theta).compile_logp(mode=interpreted_mode())

        def log_density(scores, logp=logp):
            return logp({"class_index": 1, "deformation": np.concatenate([beta, scores])})

        found.append(log_integral(log_density))
    # what depends on neither is the same for both observations
    assert found[0] - found[1] == pytest.approx(expected[0] - expected[1], rel=1e-8)


def test_statistics_are_those_of_designs_with_scores(rng, without_compiler):
    mixture = blots(2, 2)
    theta, values = random_theta(mixture, rng), rng.normal(size=(SIDE, SIDE))
    values[2, 4] = np.nan
    mixture.set_model_parameters(theta)
    for name, value in mixture.encode(values).items():
        mixture.model.set_data(name, value)
    position = mixture.settings.deformation.mean + 0.2 * rng.normal(size=6 + 8 + 2)
    given = {mixture.model["deformation"]: position}
    found = {
        name: mixture.statistics[name].eval(given)
        for name in ("template_projection", "template_gram")
    }
    scores = np.concatenate([[1.0], position[-2:]])
    design = designs(mixture, position[:-2])
    design = np.concatenate([score * design for score in scores], axis=1)
    seen = ~np.isnan(values.ravel())
    projection = design[seen].T @ values.ravel()[seen]
    gram = design[seen].T @ design[seen]
    warped = mixture.settings.deformation.warp(mixture.settings.points, position)
    np.testing.assert_allclose(mixture.settings.basis.design(warped).eval(), design, atol=1e-12)
    np.testing.assert_allclose(found["template_projection"], projection, atol=1e-12)
    basis = mixture.settings.basis
    np.testing.assert_allclose(basis.unpack_gram(found["template_gram"]), gram, atol=1e-12)
    np.testing.assert_allclose(
        basis.gram_bands(found["template_gram"], 0)[:, 0], np.diag(gram), atol=1e-12
    )


def test_the_m_step_is_ridge_regression_on_kernels_and_kernels_times_scores(rng):
    mixture = blots(2, 2)
    settings, n, sigma = mixture.settings, 40, 0.2
    theta = random_theta(mixture, rng)
    scores, labels = rng.normal(size=(n, 2)), np.arange(n) % 2
    betas = settings.deformation.within.mean + 0.1 * rng.normal(size=(n, 14))
    rows = [designs(mixture, beta) for beta in betas]
    rows = [
        np.concatenate([row, z[0] * row, z[1] * row], axis=1)
        for row, z in zip(rows, scores, strict=True)
    ]
    values = [
        row @ theta["templates"][j] + sigma * rng.normal(size=SIDE**2)
        for row, j in zip(rows, labels, strict=True)
    ]
    member = np.eye(2)[labels]
    statistics = {
        "class_weight": member.mean(axis=0),
        "template_projection": np.stack(
            [
                sum(m * r.T @ y for m, r, y in zip(each, rows, values, strict=True))
                for each in member.T
            ]
        )
        / n,
        "template_gram": np.stack(
            [sum(m * r.T @ r for m, r in zip(each, rows, strict=True)) for each in member.T]
        )
        / n,
        "squared_norm": member.T @ np.square(values).sum(axis=1) / n,
        "observed_points": SIDE**2 * member.mean(axis=0),
        "deformation_outer": np.tile(np.eye(8), (2, 1, 1)),
    }
    found = mixture.maximize(statistics, effective_size=float(n))
    kernels, strength = settings.basis.kernels.gram(), mixture.priors.template_strength
    precision = strength * block_diag(kernels, 10.0 * kernels, 10.0 * kernels)
    precision += strength * 1e-6 * np.eye(len(precision))
    squares = 0.0
    for j in range(2):
        own = np.concatenate([row for row, label in zip(rows, labels, strict=True) if label == j])
        seen = np.concatenate([y for y, label in zip(values, labels, strict=True) if label == j])
        expected = np.linalg.solve(own.T @ own + precision, own.T @ seen)
        np.testing.assert_allclose(found["templates"][j], expected, rtol=1e-6, atol=1e-8)
        squares += np.square(seen - own @ expected).sum() + expected @ precision @ expected
    # the template's own coefficients count for the noise, those of factors do not
    below = n * SIDE**2 + 2 * SIDE**2 + 2 * (mixture.priors.noise_shape + 1)
    noise = (squares + 2 * mixture.priors.noise_rate) / below
    assert found["noise_variance"] == pytest.approx(noise, rel=1e-8)


def still(n_classes, n_factors):
    """Return a mixture whose templates hardly move."""
    return blots(
        n_classes,
        n_factors,
        rigid_variance=1e-8,
        priors=TemplatePriors().with_deformation_variance(1e-8, weight=1e6),
    )


def exact_probabilities(mixture, theta, values):
    """Return the probabilities of classes without warps, by the scores' normal integral."""
    design, logs = designs(mixture, mixture.settings.deformation.within.mean), []
    for weight, own in zip(theta["weights"], theta["templates"], strict=True):
        template, factors = parts(mixture, own)
        rows = design @ factors.T
        covariance = theta["noise_variance"] * np.eye(len(rows)) + rows @ rows.T
        normal = multivariate_normal(design @ template, covariance)
        logs.append(np.log(weight) + normal.logpdf(values.ravel()))
    logs = np.array(logs)
    return np.exp(logs - np.logaddexp.reduce(logs))


@pytest.mark.parametrize("broken", [False, True])
def test_bursts_have_the_exact_class_probabilities(broken, rng):
    """Three overlapping classes of unequal weight; scores half as large must fail."""
    mixture = still(3, 2)
    theta = random_theta(mixture, rng, size=0.2)
    theta["deformation_variance"][:] = 1e-8
    theta["noise_variance"] = np.array(2.0)
    theta["weights"] = np.array([0.2, 0.3, 0.5])
    n = mixture.settings.basis.kernels.n_basis
    theta["templates"][:, :n] = 0.3 * theta["templates"][:, :n] + theta["templates"][0, :n]
    images = simulate_images(mixture, theta, 8, random_seed=rng).images.values
    given = dict(theta)
    if broken:
        given["templates"] = theta["templates"].copy()
        given["templates"][:, n:] *= 0.5
    bursts = mcoem.esteps.CarlinChibBurst()
    named = mcoem.Classifier(
        mixture, mixture.to_dataset(given), e_step=bursts, draws=4000, tune=300, random_seed=1
    )
    found = np.asarray(named.class_probabilities(images))
    exact = np.array([exact_probabilities(mixture, theta, image) for image in images])
    assert ((exact > 0.02) & (exact < 0.98)).sum() > 6
    # 4,000 draws, taken for as few as a tenth of independent ones
    tolerance = 4.5 * np.sqrt(exact * (1 - exact) / 400) + 1e-3
    assert (np.abs(found - exact) < tolerance).all() != broken


def strokes(rng, n, thickness=0.4):
    """Return images of a blot whose height and a ring whose depth vary, kinds and scores."""
    rows, columns = np.meshgrid(*[np.linspace(-1, 1, SIDE)] * 2, indexing="ij")
    radius = np.hypot(rows, columns)
    means = [np.exp(-((radius / 0.4) ** 2)), np.exp(-(((radius - 0.7) / 0.25) ** 2))]
    factors = [np.exp(-(((rows - 0.5) / 0.3) ** 2)), np.exp(-(((columns + 0.4) / 0.3) ** 2))]
    kinds, scores = rng.integers(2, size=n), rng.normal(size=n)
    clean = np.stack(
        [means[k] + thickness * z * factors[k] for k, z in zip(kinds, scores, strict=True)]
    )
    return clean + 0.1 * rng.normal(size=clean.shape), kinds, scores, factors


def test_factors_scores_and_noise_are_found_again(rng):
    images, kinds, scores, factors = strokes(rng, 200)
    priors = TemplatePriors().with_deformation_variance(1e-4, weight=2000)
    mixture = blots(2, 1, rigid_variance=1e-4, priors=priors)
    em = OnlineEM(mixture, e_step=FAST, random_seed=1, progressbar=False)
    em.partial_fit(images).partial_fit(images)
    named = np.asarray(mcoem.Classifier(mixture, em.parameters, e_step=FAST).predict(images))
    ours = np.array([np.bincount(kinds[named == j], minlength=2).argmax() for j in range(2)])
    assert (ours[named] == kinds).mean() > 0.97
    drawn = template_images(em.parameters, mixture, scores=[1.0]) - template_images(
        em.parameters, mixture
    )
    for j, own in enumerate(drawn.values):
        expected = 0.4 * factors[ours[j]]
        own = own * np.sign((own * expected).sum())
        # gains of n^(−0.6) weigh 400 steps as 73, 36 of each kind, and the standard deviation of
        # as many scores errs by 0.12
        assert np.abs(own - expected).max() < 4 * 0.12 * 0.4
    assert np.sqrt(em.parameters["noise_variance"]) == pytest.approx(0.1, rel=0.06)
    one = int(np.flatnonzero(named == 0)[0])
    found = mixture.register(images[one], em.parameters, draws=200, tune=50, random_seed=1)
    assert found.deformation_mean.deformation_coordinate.values[-1] == "factor 0"
    told = found.deformation_mean.sel({"class": 0, "deformation_coordinate": "factor 0"})
    assert abs(float(told)) == pytest.approx(abs(scores[one]), abs=0.45)
    shown = found.template_mean.sel({"class": 0})
    assert np.sqrt(np.mean((shown - images[one]) ** 2)) < 0.13
    # without factors noise makes up for what varies
    plain = OnlineEM(
        blots(2, 0, rigid_variance=1e-4, priors=priors),
        e_step=FAST,
        random_seed=1,
        progressbar=False,
    ).partial_fit(images)
    assert np.sqrt(plain.parameters["noise_variance"]) > 0.15


@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("start", ["kmeans", "random", "exemplars"])
def test_no_start_is_without_factors(start, channels, rng):
    images, *_ = strokes(rng, 4)
    if channels:
        images = images[..., None] * np.array([1.0, -0.5, 2.0])
    # four images have three principal components
    mixture = blots(2, 5, channels=channels)
    found = mixture.initialize(list(images), rng, start)
    table = found["templates"].reshape(2, channels or 1, 6, -1)
    assert (np.abs(table).max(axis=-1) > 1e-4).all()
    assert template_images(found, mixture).shape == (2, *images.shape[1:])


def test_exemplars_have_the_factors_of_kmeans(rng, monkeypatch):
    images, *_ = strokes(rng, 20)
    mixture = blots(2, 1)
    # the two that stand last, which are single images
    monkeypatch.setattr(
        "pymc_mcoem.templates.exemplars.best_columns",
        lambda evidence, n: np.arange(evidence.shape[1] - n, evidence.shape[1]),
    )
    seeds = np.random.default_rng(1), np.random.default_rng(1)
    chosen = mixture.initialize(list(images), seeds[0], "exemplars")["templates"]
    clustered = mixture.initialize(list(images), seeds[1], "kmeans")["templates"]
    n = mixture.settings.basis.kernels.n_basis
    assert not np.allclose(chosen[:, :n], clustered[:, :n])
    np.testing.assert_array_equal(chosen[:, n:], clustered[:, n:])


def test_first_factors_do_not_see_what_is_missing(rng):
    images, kinds, *_ = strokes(rng, 40)
    mixture = blots(2, 1)
    mask = (rng.uniform(size=images.shape) > 0.2).astype(float)
    found = [
        first_factors(
            mixture.settings.basis,
            mixture.model_parameters()["templates"],
            np.where(mask > 0, images, hidden).reshape(40, -1),
            mask.reshape(40, -1),
            kinds,
            mixture.mean_design(),
            np.random.default_rng(1),
        )
        for hidden in (0.0, 50.0)
    ]
    np.testing.assert_array_equal(*found)


def test_the_noise_of_a_start_does_not_count_factors(rng):
    images, *_ = strokes(rng, 20)
    with_factors, without = (
        blots(2, n).initialize(list(images), np.random.default_rng(1), "kmeans") for n in (4, 0)
    )
    assert with_factors["noise_variance"] == pytest.approx(without["noise_variance"], rel=1e-6)


def test_searches_start_where_those_of_the_warp_do():
    plain, own = blots(2, 0, rigid={"degrees": 180}), blots(2, 2, rigid={"degrees": 180})
    assert len(plain.geometry.starts) == 5
    np.testing.assert_array_equal(own.geometry.starts[:, :-2], plain.geometry.starts)
    assert not own.geometry.starts[:, -2:].any()


def test_what_is_registered_moves_as_without_factors(rng):
    """With factors of zeros all that is registered is as in a mixture without."""
    images, *_ = strokes(rng, 1)
    plain, own = blots(1, 0), blots(1, 2)
    theta = {**plain.model_parameters()}
    theta["templates"] = 0.3 * rng.normal(size=theta["templates"].shape)
    padded = np.concatenate([theta["templates"], np.zeros((1, 2 * SIDE**2))], axis=1)
    found, expected = (
        mixture.register(images[0], given, draws=1500, tune=200, random_seed=1)
        for mixture, given in ((own, {**theta, "templates": padded}), (plain, theta))
    )
    assert found.warp_mean.shape == expected.warp_mean.shape
    for name in ("warp", "inverse", "aligned"):
        one, other = found[f"{name}_mean"], expected[f"{name}_mean"]
        # of 1,500 draws of each, taken for a thirtieth of independent ones
        tolerance = 5 * np.sqrt(2 / 50) * expected[f"{name}_sd"].max()
        assert float(np.abs(one - other).max()) < tolerance, name
    assert float(found.inverse_sd.max()) > 1e-3


def test_derivatives_of_others_are_not_taken_for_ours(rng):
    """A derived warp or basis that knows no derivatives of its own has none with factors either."""

    class Bent(RigidMotion):
        def warped(self, points, beta):
            return [column**3 for column in super().warped(points, beta)]

    class Squared(GaussianBasis):
        def evaluate(self, points, coefficients):
            return super().evaluate(points, coefficients) ** 2

    settings = blots(2, 0).settings
    for warp, basis in (
        (Bent(), settings.basis),
        (Bent() + RigidMotion(), settings.basis),
        (RigidMotion(), Squared(settings.basis.centers, 0.5)),
    ):
        mixture = TemplateMixture(
            settings.points, BasisWithFactors(basis, 1), DeformationWithScores(warp, 1), 2
        )
        assert mixture.geometry.curvature is None
        assert mixture.written_out is None


def test_the_first_factors_are_principal_components(rng):
    images, kinds, _, factors = strokes(rng, 300, thickness=0.8)
    mixture = blots(1, 1)
    one = images[kinds == 0]
    found = mixture.initialize(list(one), rng, "kmeans")
    drawn = template_images(found, mixture, [1.0]) - template_images(found, mixture)
    expected = 0.8 * factors[0]
    own = drawn.values[0] * np.sign((drawn.values[0] * expected).sum())
    assert np.abs(own - expected).max() < 0.2


def test_a_saved_run_and_a_pickled_mixture_go_on_in_the_same_way(rng, tmp_path):
    images, *_ = strokes(rng, 30)
    mixture = blots(2, 1)
    settings = {"e_step": FAST, "random_seed": 3, "progressbar": False}
    whole = OnlineEM(mixture, **settings).partial_fit(images)
    first = OnlineEM(mixture, **settings).partial_fit(images[:20])
    first.save(tmp_path / "run.nc")
    copy = pickle.loads(pickle.dumps(mixture))
    rest = OnlineEM.load(tmp_path / "run.nc", copy).partial_fit(images[20:])
    np.testing.assert_array_equal(rest.parameters["templates"], whole.parameters["templates"])
    assert mixture.with_classes(3).settings.basis.n_factors == 1


def test_an_image_keeps_its_model_in_pymc(rng):
    mixture = blots(2, 2)
    values = rng.normal(size=(SIDE, SIDE))
    model = mixture.condition(values, random_theta(mixture, rng))
    labels = model.coords["deformation_coordinate"]
    assert labels[-2:] == ("factor 0", "factor 1")
    with model:
        drawn = pm.sample_prior_predictive(200, random_seed=1)
    scores = drawn.prior["deformation"].sel(deformation_coordinate=["factor 0", "factor 1"])
    np.testing.assert_allclose(scores.std(["chain", "draw"]), 1.0, atol=0.25)


def test_jax_and_numba_agree(rng):
    pytest.importorskip("jax")
    mixture = blots(2, 1)
    theta, images = random_theta(mixture, rng), rng.normal(size=(4, SIDE, SIDE))
    found = [
        np.asarray(
            mcoem.Classifier(
                mixture,
                mixture.to_dataset(theta),
                e_step=mcoem.esteps.CarlinChibBurst(backend=backend),
                draws=3000,
                tune=200,
                random_seed=1,
            ).class_probabilities(images)
        )
        for backend in ("numba", "jax")
    ]
    # 3,000 draws of each, taken for a tenth of independent ones
    spread = np.sqrt(found[0] * (1 - found[0]) * 2 / 300)
    assert (np.abs(found[0] - found[1]) < 4.5 * spread + 2e-3).all()


def test_what_has_no_meaning_is_refused(rng):
    images, *_ = strokes(rng, 12)
    mixture = blots(2, 1)
    with pytest.raises(ValueError, match="n_factors: got -1"):
        blots(2, -1)
    for options in (
        {"coefficients": "nonnegative"},
        {"scale": (9.0, 10.0)},
        {"offset": 2.0},
        {"noise_correlation": np.eye(SIDE**2)},
    ):
        (name,) = options
        with pytest.raises(ValueError, match=f"(?s){name} is .*leave {name} out, or"):
            blots(2, 1, **options)
    with pytest.raises(ValueError, match="zeros for the coefficients of factors"):
        blots(2, 1, priors=TemplatePriors(template_mean=0.5))
    for scores in ([1.0, 2.0], [np.nan], [[1.0]]):
        with pytest.raises(ValueError, match="give a finite number for each of 1 factors"):
            template_images(mixture.parameters, mixture, scores)
    with pytest.raises(ValueError, match="for each of 0 factors"):
        template_images(blots(2, 0).parameters, blots(2, 0), [1.0])
    with pytest.raises(ValueError, match="has factors, which are not refined"):
        mcoem.refine_templates(mixture.parameters, mixture, images)
    runs = [
        OnlineEM(mixture, e_step=FAST, n_start=12, random_seed=seed, progressbar=False).partial_fit(
            images
        )
        for seed in (1, 2)
    ]
    with pytest.raises(ValueError, match="got 2, and their templates have factors"):
        mcoem.merge_runs(runs)
