"""Rigid motions whose variances are learned, one of each coordinate for all classes."""

import pickle

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.templates import DisplacementField, RigidMotion, TemplateMixture, TemplatePriors
from pymc_mcoem.templates.maximization import maximize_templates
from pymc_mcoem.templates.scoring import ScoringStep

SIDE = 8
COORDINATES = ["angle", "zoom", "translation[0]", "translation[1]"]
#: Variances of the four coordinates, and others for each of two labels, as `Classifier` joins them.
SHARED = np.array([0.06, 0.001, 0.004, 0.015])
VARIANCES = np.array([[0.08, 0.001, 0.002, 0.002], [0.004, 0.001, 0.02, 0.02]])

FAST = mcoem.esteps.LaplaceGaussian()


def strokes(n_classes=2, **options):
    settings = {"rigid_variance": 0.02, "rigid_weight": 5.0, "n_landmarks": 2}
    return TemplateMixture.for_images((SIDE, SIDE), n_classes, **settings | options)


def truth(mixture):
    """Return θ of two strokes with motions of variances `SHARED`, and hardly a warp."""
    found = mixture.parameters
    rows, columns = np.meshgrid(*[np.linspace(-1, 1, SIDE)] * 2, indexing="ij")
    images = [
        np.exp(-((rows - columns) ** 2) / 0.1 - (rows**2 + columns**2) / 0.5),
        np.exp(-((columns - 0.2) ** 2) / 0.05 - ((rows + 0.2) ** 2) / 0.2),
    ]
    images = np.stack([each.ravel() for each in images])
    design = mixture.mean_design()
    found["templates"][:] = np.linalg.lstsq(design, images.T, rcond=None)[0].T
    found["rigid_variance"][:] = SHARED
    found["deformation_variance"][:] = 1e-5
    found["noise_variance"][...] = 0.02**2
    return found


def test_they_are_parameters_with_names():
    found = strokes(3).parameters["rigid_variance"]
    assert found.dims == ("class", "rigid_coordinate")
    assert found["rigid_coordinate"].values.tolist() == COORDINATES
    np.testing.assert_array_equal(found, 0.02)


def test_they_are_learned_by_default_from_the_papers_variance():
    mixture = TemplateMixture.for_images((SIDE, SIDE), 2)
    assert mixture.settings.deformation.rigid_weight == 3.0
    np.testing.assert_array_equal(mixture.parameters["rigid_variance"], 0.1)


def test_they_start_at_what_a_user_tells():
    motion = {"degrees": 20, "percent": 10, "pixels": 1}
    mixture = strokes(rigid=motion)
    spacing = 2.0 / (SIDE - 1)
    expected = [(np.deg2rad(20) / 2) ** 2, 0.05**2, *[(0.5 * spacing) ** 2] * 2]
    np.testing.assert_allclose(mixture.parameters["rigid_variance"], [expected] * 2)


def test_nothing_is_learned_without_a_weight():
    mixture = strokes(rigid_weight=None)
    assert "rigid_variance" not in mixture.parameters
    assert "rigid_squares" not in mixture.statistics
    assert mixture.describe() != strokes().describe()


@pytest.mark.parametrize("covariance", ["scaled", "diagonal", "full"])
def test_the_density_of_the_deformation_has_the_variances_of_the_class(covariance, rng):
    mixture = strokes(covariance=covariance)
    theta = {**mixture.model_parameters(), "rigid_variance": VARIANCES}
    gamma = np.array([0.3, 0.7])
    if covariance == "full":
        gamma = gamma[:, None, None] * (np.eye(8) + 0.2)
        theta["deformation_covariance"] = gamma
    else:
        gamma = gamma[:, None] * np.ones(8) if covariance == "diagonal" else gamma
        theta["deformation_variance"] = gamma
    mixture.set_model_parameters(theta)
    settings = mixture.settings
    logp = mixture.model.compile_logp(vars=[mixture.model["deformation"]])
    for j in range(2):
        matrix = np.array(settings.deformation.covariance)
        block = np.ix_(settings.learned, settings.learned)
        own = {"scaled": matrix[block] * gamma[j], "full": gamma[j]}
        matrix[block] = own.get(covariance, np.diag(np.atleast_1d(gamma[j])))
        # angle, zoom, center, translation
        matrix[[0, 1, 4, 5], [0, 1, 4, 5]] = VARIANCES[j]
        beta = rng.normal(size=len(matrix))
        expected = stats.multivariate_normal(settings.deformation.mean, matrix).logpdf(beta)
        found = logp({"class_index": j, "deformation": beta})
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_draws_have_the_variances_of_their_class():
    n = 4000
    mixture = strokes()
    mixture.set_model_parameters({**mixture.model_parameters(), "rigid_variance": VARIANCES})
    with mixture.model:
        prior = pm.sample_prior_predictive(
            n, var_names=["class_index", "deformation"], random_seed=1
        ).prior.dataset.squeeze("chain")
    away = prior["deformation"].values - mixture.settings.deformation.mean
    for j in range(2):
        own = away[prior["class_index"].values == j][:, [0, 1, 4, 5]]
        # n s² / τ² has a variance of 2 n
        z = ((own**2).mean(axis=0) / VARIANCES[j] - 1.0) * np.sqrt(len(own) / 2)
        assert np.abs(z).max() < 4.5


def test_the_m_step_is_the_mode_under_an_inverse_gamma_prior(rng):
    modes, weight, n = np.array([0.1, 0.02, 0.3, 0.4]), 3.0, 20.0
    mixture = strokes()
    size = mixture.settings.basis.n_basis
    mass = np.array([0.3, 0.7])
    squares = mass[:, None] * rng.uniform(0.01, 0.2, size=(2, 4))
    statistics = {
        "class_weight": mass,
        "template_projection": np.zeros((2, size)),
        "template_gram": mass[:, None, None] * np.eye(size),
        "deformation_outer": mass[:, None, None] * np.eye(8),
        "rigid_squares": squares,
        "squared_norm": mass,
        "observed_points": mass * 64,
    }
    found = maximize_templates(
        statistics,
        effective_size=n,
        priors=TemplatePriors(),
        gram=mixture.gram,
        base_covariance=np.eye(8),
        rigid_prior=(modes, weight),
    )["rigid_variance"]
    np.testing.assert_array_equal(found[0], found[1])

    def objective(variance):
        likelihood = -0.5 * n * (mass[:, None] * np.log(variance) + squares / variance).sum(axis=0)
        # the inverse gamma with this mode that is worth `weight` observations
        prior = stats.invgamma(weight / 2 - 1, scale=weight * modes / 2)
        return likelihood + prior.logpdf(variance)

    for factor in (1.02, 1 / 1.02):
        assert (objective(found[0]) > objective(factor * found[0])).all()
    # without observations it is the prior's
    np.testing.assert_allclose(
        maximize_templates(
            {name: 0 * each for name, each in statistics.items()},
            effective_size=n,
            priors=TemplatePriors(),
            gram=mixture.gram,
            base_covariance=np.eye(8),
            rigid_prior=(modes, weight),
        )["rigid_variance"],
        [modes, modes],
    )


@pytest.fixture(scope="module")
def learned():
    mixture = strokes()
    drawn = mcoem.datasets.simulate_images(mixture, truth(mixture), 500, random_seed=5)
    em = mcoem.OnlineEM(
        mixture,
        e_step=FAST,
        step_size=mcoem.schedules.StepSize(0.9),
        random_seed=1,
        progressbar=False,
    )
    em.partial_fit(drawn.images.values, drawn.class_index.values)
    return mixture, em, drawn


def test_a_stream_teaches_them(learned):
    """From the prior's 0.02, each to its own side of it; 500 images have an error of 6 %."""
    _, em, _ = learned
    found = em.parameters["rigid_variance"].values
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0, 0] > 0.04 and (found[0, 1:3] < 0.01).all()


def z_of_squares(drawn_from, theta, rng, n=200):
    """Return by how many standard errors mean statistics are away from what θ says, (2, 4)."""
    mixture = strokes()
    stream = mcoem.datasets.simulate_images(mixture, drawn_from, n, random_seed=11)
    e_step = compiled_for(mixture, mcoem.esteps.CarlinChibBurst())
    values = mixture.check_parameters(theta)
    state = e_step.initial_state()
    found = np.array(
        [
            e_step(mixture.encode(image), values, rng, state, draws=60, tune=20).statistics[
                "rigid_squares"
            ]
            for image in stream.images.values
        ]
    )
    expected = values["weights"][:, None] * values["rigid_variance"]
    return (found.mean(axis=0) - expected) / (found.std(axis=0) / np.sqrt(n))


def test_at_the_truth_statistics_are_the_parameters(rng):
    """E[E[δ (β − m)² | y]] = ω τ², whatever the data say of each image."""
    theta = truth(strokes())
    assert np.abs(z_of_squares(theta, theta, rng)).max() < 4.0


def test_other_variances_than_the_stream_has_are_seen(rng):
    theta = truth(strokes())
    wrong = theta.copy(deep=True)
    wrong["rigid_variance"] = 2.0 * theta["rigid_variance"]
    z = z_of_squares(theta, wrong, rng)
    # the angle and the translation along rows of the first stroke, which images show
    assert min(-z[0, 0], -z[0, 2]) > 4.0


def test_a_saved_run_goes_on_as_if_it_had_not_been(learned, tmp_path):
    _, em, drawn = learned
    em.save(tmp_path / "run.nc")
    loaded = mcoem.OnlineEM.load(tmp_path / "run.nc", strokes(rigid_weight=np.int64(5)))
    images = drawn.images.values[:5]
    found = []
    for run in (loaded, pickle.loads(pickle.dumps(em))):
        found.append(run.partial_fit(images).parameters)
        assert not found[-1]["rigid_variance"].equals(em.parameters["rigid_variance"])
    assert found[0].equals(found[1])


def test_each_label_keeps_its_own(learned):
    """Under the looser of two motions an upright image of the stroke is less probable."""
    mixture, em, _ = learned
    looser = em.parameters.copy(deep=True)
    looser["rigid_variance"] *= 100.0
    classifier = mcoem.Classifier(
        mixture,
        {"tight": em.parameters, "loose": looser},
        e_step=FAST,
        progressbar=False,
    )
    images = truth(mixture)["templates"].values @ mixture.mean_design().T
    assert (classifier.predict(images.reshape(-1, SIDE, SIDE)) == "tight").all()


def test_registration_has_the_row_of_each_class():
    """An image that says nothing leaves the prior, and 4,000 draws are worth 800 or more."""
    theta = truth(strokes())
    theta["templates"][:] = 0.0
    theta["rigid_variance"][:] = VARIANCES
    found = strokes().register(np.zeros((SIDE, SIDE)), theta, draws=4_000, tune=100)
    spread = found["deformation_sd"].sel(deformation_coordinate=COORDINATES)
    np.testing.assert_allclose(spread, np.sqrt(VARIANCES), rtol=4.5 / np.sqrt(2 * 800))


def test_runs_merge(learned):
    mixture, em, drawn = learned
    other = mcoem.OnlineEM(
        mixture,
        parameters=em.parameters,
        e_step=FAST,
        step_size=mcoem.schedules.StepSize(0.9),
        random_seed=2,
        progressbar=False,
    ).partial_fit(drawn.images.values[:200])
    found = [each.parameters["rigid_variance"] for each in (em, other)]
    merged = mcoem.merge_runs([em, other]).parameters["rigid_variance"]
    # between the two, but for the prior, which counts once
    assert (merged > 0.9 * np.minimum(*found)).all() and (merged < 1.1 * np.maximum(*found)).all()


def statistics_of(mixture, em, images):
    """Return mean statistics of some images at what a run has learned."""
    e_step, theta = compiled_for(mixture, FAST), mixture.check_parameters(em.parameters)
    state, rng = e_step.initial_state(), np.random.default_rng(1)
    found = [
        e_step(mixture.encode(each), theta, rng, state, draws=5, tune=0).statistics
        for each in images
    ]
    return {name: np.mean([each[name] for each in found], axis=0) for name in found[0]}


def test_kmeans_starts_at_the_mode(rng):
    mixture = strokes()
    found = mixture.initialize([rng.normal(size=(SIDE, SIDE)) for _ in range(6)], rng)
    np.testing.assert_allclose(found["rigid_variance"], 0.02)


def test_a_class_that_waits_has_them_too(learned):
    """They are all classes', as a shared noise is."""
    mixture, em, drawn = learned
    statistics = statistics_of(mixture, em, drawn.images.values[:20])
    present = mixture.check_parameters(em.parameters)
    found, all_ready = (
        mixture.maximize_ready(
            statistics, effective_size=50.0, ready=np.array([True, second]), present=present
        )
        for second in (False, True)
    )
    np.testing.assert_array_equal(found["rigid_variance"], all_ready["rigid_variance"])
    assert not np.array_equal(found["rigid_variance"], present["rigid_variance"])
    np.testing.assert_array_equal(found["templates"][1], present["templates"][1])


def test_negative_squares_are_refused(learned):
    mixture, em, drawn = learned
    statistics = statistics_of(mixture, em, drawn.images.values[:5])
    mixture.check_statistics(statistics)
    statistics["rigid_squares"][0, 1] = -0.1
    with pytest.raises(ValueError, match="statistics: rigid_squares is negative"):
        mixture.check_statistics(statistics)


def test_refined_templates_know_them(learned):
    """The prior precision of warps is the model's."""
    mixture, em, _ = learned
    theta = {name: np.asarray(value) for name, value in em.parameters.items()}
    mixture.set_model_parameters(theta)
    for j in range(2):
        expected = mixture.geometry.prior_precision.eval({mixture.class_index: j})
        found = ScoringStep(mixture, mcoem.esteps.CarlinChibBurst())._latent_precision(
            theta, j, 1.0
        )
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_what_is_told_not_to_move_is_not_learned():
    mixture = strokes(rigid={"degrees": 0, "percent": 10, "pixels": 0})
    assert mixture.parameters["rigid_coordinate"].values.tolist() == ["zoom"]
    still = strokes(rigid={"degrees": 0, "percent": 0, "pixels": 0})
    assert "rigid_variance" not in still.parameters


@pytest.mark.parametrize("weight", [0.0, -1.0, np.inf, "10", True])
def test_a_weight_that_cannot_be_is_refused(weight):
    with pytest.raises(ValueError, match=r"weight \(rigid_weight of `for_images`\) is .*give"):
        RigidMotion(weight=weight)


def test_motions_of_a_sum_agree_on_the_weight():
    field = DisplacementField([[0.0, 0.0]], width=0.4)
    with pytest.raises(ValueError, match=r"terms: rigid motions have the weights \['2.0', '3.0'\]"):
        RigidMotion(weight=2.0) + field + RigidMotion(weight=3.0)
    both = RigidMotion() + field + RigidMotion(weight=3.0)
    assert both.rigid_weight == 3.0
    assert both.rigid.tolist() == [False] * 8 + [True, True, False, False, True, True]


@pytest.mark.parametrize("wrong", ["no weight", "learned too"])
def test_a_warp_of_a_users_own_declares_them_rightly(wrong):
    class Zoom(RigidMotion):
        rigid = np.array([False, True, False, False, False, False])

    motion = Zoom(weight=None if wrong == "no weight" else 3.0)
    if wrong == "learned too":
        motion.learned = np.ones(6, dtype=bool)
    basis = strokes().settings.basis
    with pytest.raises(ValueError, match=r"coordinates \['zoom'\] are rigid; they may not be"):
        TemplateMixture(basis.centers, basis, motion, 2)


def test_a_variance_of_zero_is_refused():
    mixture = strokes()
    with pytest.raises(ValueError, match=r"rigid_variance is [^;]*; give variances"):
        mixture.check_parameters({**mixture.model_parameters(), "rigid_variance": np.zeros((2, 4))})
