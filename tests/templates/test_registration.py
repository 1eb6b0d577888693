"""Registration against sums over a grid, closed forms, and known warps."""

from __future__ import annotations

from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.templates import DisplacementField, GaussianBasis, TemplateMixture
from pymc_mcoem.templates.registration import averaged_moments
from tests.helpers.interpreted import interpreted

AGES = np.linspace(2, 18, 9)
#: Draws of a few thousand sweeps are worth at least so many independent ones.
EFFECTIVE = 800.0
#: In standard errors; one comparison in two million is further off by chance.
LIMIT = 5.0


def make_mixture(n_classes, **options):
    return TemplateMixture.for_curves(AGES, n_classes, n_landmarks=8, n_warp_kernels=2, **options)


@pytest.fixture(scope="module")
def toy():
    """A mixture with three latents, θ, and a curve that could be of either class."""
    mixture = make_mixture(2, own_points=12)
    rng = np.random.default_rng(8)
    theta = {
        "weights": np.array([0.65, 0.35]),
        "templates": rng.uniform(1, 4, size=(2, 8)),
        "noise_variance": np.array(0.8),
        "deformation_variance": np.array([0.03, 0.08]),
    }
    curve = mixture.mean_design() @ theta["templates"].mean(axis=0)
    curve = curve + rng.normal(0, 0.6, size=AGES.size)
    curve[4] = np.nan
    return mixture, mixture.check_parameters(theta), curve


@pytest.fixture(scope="module")
def found(toy):
    mixture, theta, curve = toy
    return mixture.register(curve, theta, draws=4_000, tune=200, random_seed=3)


def brute_force(mixture, theta, curve):
    """Class probabilities and, for each class, moments by sums over a grid of β and log λ."""
    seen, settings = ~np.isnan(curve), mixture.settings
    log_scale = np.linspace(-1.4, 1.0, 31)
    scales = np.exp(log_scale)
    log_mass, moments = [], []
    for index in range(2):
        spread = np.sqrt(theta["deformation_variance"][index])
        axis = 1 + np.linspace(-5, 5, 31) * spread
        betas = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        times = settings.deformation.evaluate(AGES, betas)
        values = settings.basis.matrix(times.reshape(-1, 1)) @ theta["templates"][index]
        mean = scales[:, None, None] * values.reshape(times.shape)
        log = stats.norm(mean[..., seen], np.sqrt(theta["noise_variance"])).logpdf(curve[seen])
        log = log.sum(axis=-1) + stats.norm(1, spread).logpdf(betas).sum(axis=1)
        log += (stats.gamma(10, scale=0.1).logpdf(scales) + log_scale)[:, None]
        log_mass.append(logsumexp(log) + 2 * np.log(spread) + np.log(theta["weights"][index]))
        mass = np.exp(log - logsumexp(log))
        targets = settings.deformation.evaluate(AGES, settings.deformation.mean)
        whence = settings.deformation.inverse(targets, betas)
        aligned = np.stack([np.interp(row, AGES[seen], curve[seen]) for row in whence])
        moments.append(
            {
                "warp": weighted(mass.sum(axis=0), times),
                "template": weighted(mass.ravel(), mean.reshape(-1, AGES.size)),
                "scale": weighted(mass.sum(axis=1), scales),
                "deformation": weighted(mass.sum(axis=0), betas),
                "inverse": weighted(mass.sum(axis=0), whence),
                "aligned": weighted(
                    mass.ravel(), (aligned / scales[:, None, None]).reshape(-1, AGES.size)
                ),
            }
        )
    return np.exp(np.array(log_mass) - logsumexp(log_mass)), moments


def weighted(mass, values):
    mean = np.tensordot(mass, values, axes=1)
    return mean, np.sqrt(np.tensordot(mass, np.square(values - mean), axes=1))


def test_moments_are_the_brute_forces(toy, found):
    mixture, theta, curve = toy
    probability, moments = brute_force(mixture, theta, curve)
    # means of probabilities, of which single ones are between 0 and 1
    np.testing.assert_allclose(
        found["class_probability"], probability, atol=LIMIT * 0.5 / np.sqrt(EFFECTIVE)
    )
    for name in moments[0]:
        for index in range(2):
            mean, sd = moments[index][name]
            got = found[f"{name}_mean"][index], found[f"{name}_sd"][index]
            # where an age may fall off the observed range draws without data are left out, which
            # the sums above do not do
            inside = slice(1, -1) if name == "aligned" else slice(None)
            error = np.atleast_1d(sd / np.sqrt(EFFECTIVE))[inside]
            away = np.abs(np.atleast_1d(got[0] - mean)[inside])
            assert (away < LIMIT * error + 1e-12).all(), (name, index)
            # a standard deviation has the error sd/√2n for normal draws; twice that for others
            spread = np.abs(np.atleast_1d(got[1] - sd)[inside])
            assert (spread < LIMIT * np.sqrt(2.0) * error + 1e-12).all(), (name, index)


def test_the_average_is_the_mixtures(found):
    probability = found["class_probability"]
    for name in ("warp", "inverse", "template", "scale", "deformation", "aligned"):
        mean, sd = found[f"{name}_mean"], found[f"{name}_sd"]
        expected = (probability * mean).sum("class", skipna=False)
        np.testing.assert_allclose(found[f"{name}_mean_averaged"], expected, rtol=1e-12)
        square = (probability * (sd**2 + mean**2)).sum("class", skipna=False) - expected**2
        np.testing.assert_allclose(found[f"{name}_sd_averaged"] ** 2, square, rtol=1e-6)


def test_an_average_needs_no_more_than_the_classes_that_count():
    mean, sd = np.array([[1.0, 2.0], [np.nan, 4.0]]), np.zeros((2, 2))
    np.testing.assert_array_equal(averaged_moments(np.array([1.0, 0.0]), mean, sd)[0], [1.0, 2.0])
    np.testing.assert_array_equal(
        averaged_moments(np.array([0.5, 0.5]), mean, sd)[0], [np.nan, 3.0]
    )


def test_labels(toy, found):
    mixture, _, _ = toy
    assert found["warp_mean"].dims == found["aligned_sd"].dims == ("class", "time")
    assert found["template_mean_averaged"].dims == ("time",)
    assert found["scale_mean"].dims == ("class",)
    np.testing.assert_array_equal(found["time"], AGES)
    assert list(found["deformation_coordinate"].values) == list(mixture.settings.deformation.labels)
    assert found.attrs == {"draws": 4_000, "tune": 200, "troubles": ""}
    assert (found["class_probability"] > 0.1).all()


def test_one_seed_one_result_and_the_model_is_left_alone(toy):
    mixture, theta, curve = toy
    before = mixture.parameters.copy(deep=True)
    first, second, other = (
        mixture.register(curve, theta, draws=20, tune=5, random_seed=seed) for seed in (1, 1, 2)
    )
    assert first.equals(second)
    assert not first.equals(other)
    assert before.equals(mixture.parameters)


def test_a_mixture_that_has_registered_can_be_pickled(toy, found):
    mixture, _, _ = toy
    assert mixture._registrars
    copied = cloudpickle.loads(cloudpickle.dumps(mixture))
    assert copied.parameters.equals(mixture.parameters)
    assert mixture._registrars


def test_troubles_are_named_and_logged_once(toy, found, caplog, monkeypatch):
    mixture, theta, curve = toy
    within = mixture._registrars[None]._within
    with_draws = within.with_draws

    def troubled(*arguments, **options):
        result, sweeps = with_draws(*arguments, **options)
        return replace(result, troubles={"mode search: not converged": 1, "never met": 0}), sweeps

    monkeypatch.setattr(within, "with_draws", troubled)
    for seed in (1, 2):
        each = mixture.register(curve, theta, draws=5, tune=0, random_seed=seed)
        named = "class 0: mode search: not converged; class 1: mode search: not converged"
        assert each.attrs["troubles"] == named
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "register: class 0: mode search: not converged. Further ones" in told[0]


def test_the_common_clock_may_be_given(toy):
    """On the clock of its own mean warp a curve is aligned with itself."""
    mixture, theta, curve = toy
    sure = {**theta, "deformation_variance": np.full(2, 1e-8), "noise_variance": np.array(1e-2)}
    clock = mixture.settings.deformation
    there = mixture.register(curve, sure, draws=20, tune=5, reference=clock.mean)
    np.testing.assert_allclose(
        (there["aligned_mean"] * there["scale_mean"])[0, [1, 2, 6, 7]],
        curve[[1, 2, 6, 7]],
        rtol=0.02,
    )
    later = mixture.register(curve, sure, draws=20, tune=5, reference=np.array([0.4, 1.6]))
    moved = clock.inverse(clock.evaluate(AGES, [0.4, 1.6]), clock.mean)
    seen = ~np.isnan(curve)
    expected = np.interp(moved, AGES[seen], curve[seen], np.nan, np.nan)
    got = (later["aligned_mean"] * later["scale_mean"])[0]
    inside = ~np.isnan(expected) & ~np.isnan(got.values)
    assert inside.sum() >= 6
    np.testing.assert_allclose(got[inside], expected[inside], rtol=0.02)


def test_points_of_its_own_are_registered_as_the_grids_are(toy):
    """The same curve, with its ages or without, and ages between those of the mixture."""
    mixture, theta, curve = toy
    theta = {name: value[:1] if value.shape[:1] == (2,) else value for name, value in theta.items()}
    theta["weights"] = np.ones(1)
    own = mixture.with_classes(1)
    seen = ~np.isnan(curve)
    plain = own.register(curve, theta, draws=40, tune=20)
    paired = own.register((AGES[seen], curve[seen]), theta, draws=40, tune=20)
    with interpreted():
        on_grid = make_mixture(1).register(curve, theta, draws=40, tune=20)
    assert paired["aligned_mean"].dims == ("class", "time")
    for name in ("warp_mean", "template_sd", "aligned_mean", "scale_mean"):
        np.testing.assert_allclose(paired[name], plain[name], rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(on_grid[name], plain[name], rtol=1e-6, err_msg=name)
    # ages of its own between the grid's; the result is told at the grid's all the same
    between = (AGES[1:] + AGES[:-1]) / 2
    values = np.interp(between, AGES[seen], curve[seen])
    found = own.register((between, values), theta, draws=40, tune=20)
    assert found["aligned_mean"].shape == (1, AGES.size)
    assert np.isfinite(found["aligned_mean"].values[0, 2:-2]).all()


def test_curves_on_grids_of_their_own_with_known_warps_are_registered(toy, rng):
    """The true warp lies in its posterior as often as it should, a fifth of the values missing."""
    mixture, theta, _ = toy
    theta = {name: value[:1] if value.shape[:1] == (2,) else value for name, value in theta.items()}
    theta["weights"], theta["noise_variance"] = np.ones(1), np.array(0.04)
    own = mixture.with_classes(1)
    settings = own.settings
    squares, narrow = [], []
    for seed in range(60):
        beta = 1 + np.sqrt(theta["deformation_variance"][0]) * rng.normal(size=2)
        ages = np.sort(rng.uniform(2, 18, size=12))
        times = settings.deformation.evaluate(ages, beta)
        values = (
            rng.gamma(10, 1 / 10) * settings.basis.matrix(times[:, None]) @ theta["templates"][0]
        )
        values = values + rng.normal(0, 0.2, size=12)
        values[rng.random(12) < 0.2] = np.nan
        found = own.register((ages, values), theta, draws=300, tune=50, random_seed=seed)
        true = settings.deformation.evaluate(AGES, beta)[4]
        mean, sd = (float(found[f"warp_{part}"][0, 4]) for part in ("mean", "sd"))
        squares.append(((true - mean) / sd) ** 2)
        narrow.append(sd)
    # squares of standard normals: their mean of 60 has the error √(2/60); the Monte Carlo error of
    # 300 draws adds some percent to it
    assert abs(np.mean(squares) - 1.0) < LIMIT * np.sqrt(2 / 60)
    # and the curves say something: the prior alone leaves the middle a wider spread
    prior = settings.deformation.evaluate(
        AGES, 1 + np.sqrt(theta["deformation_variance"][0]) * rng.normal(size=(2_000, 2))
    )[:, 4].std()
    assert np.median(narrow) < 0.8 * prior


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 1}, "draws: got 1; give a whole number from 2"),
        ({"tune": -1}, "tune: got -1"),
        ({"random_seed": -2}, "random_seed: got -2"),
        ({"reference": np.ones(3)}, r"reference has shape \(3,\); give finite β"),
        ({"reference": [np.nan, 1.0]}, "reference has shape"),
        ({"observation": np.full(9, np.nan)}, "all its points missing"),
    ],
)
def test_bad_arguments_are_named(toy, options, message):
    mixture, theta, curve = toy
    given = {"observation": curve, "parameters": theta, "draws": 20, **options}
    with pytest.raises(ValueError, match=message):
        mixture.register(**given)


@pytest.fixture(scope="module")
def images():
    """A linear warp of 6 × 6 pixels by four landmarks, without a scale."""
    axis = np.linspace(-1, 1, 6)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    field = DisplacementField.on_grid([np.array([-0.5, 0.5])] * 2, 1.0, 0.2)
    mixture = TemplateMixture(
        points, GaussianBasis.regular([axis, axis], 0.6), field, 1, grid_shape=(6, 6)
    )
    e_step = CarlinChibBurst(within_class=RandomWalk(10))
    return mixture, field, e_step


def test_an_image_that_says_nothing_leaves_the_prior(images):
    """Of a flat template nothing is learned: displacements are normal with known moments."""
    mixture, field, e_step = images
    theta = {**mixture.model_parameters(), "deformation_variance": np.array([0.04])}
    found = mixture.register(np.zeros((6, 6)), theta, draws=4_000, tune=100, e_step=e_step)
    columns = np.stack(
        [field.warp(mixture.settings.points, row).eval() for row in np.eye(field.n_parameters)]
    )
    rows = (columns - mixture.settings.points).reshape(field.n_parameters, -1)
    sd = np.sqrt(0.04 * np.einsum("ks,kl,ls->s", rows, field.covariance, rows)).reshape(6, 6, 2)
    away = found["warp_mean"][0] - mixture.settings.points.reshape(6, 6, 2)
    assert (np.abs(away) < LIMIT * sd / np.sqrt(EFFECTIVE)).all()
    np.testing.assert_allclose(found["warp_sd"][0], sd, rtol=LIMIT / np.sqrt(2 * EFFECTIVE))
    assert found["warp_mean"].dims == ("class", "row", "column", "coordinate")
    assert list(found["coordinate"].values) == ["row", "column"]
    assert "scale_mean" not in found


def test_an_image_with_a_known_warp_is_registered(images, rng):
    mixture, field, e_step = images
    settings = mixture.settings
    template = np.exp(-np.square(settings.basis.centers - [0.1, -0.2]).sum(axis=1) / 0.3)
    beta = 0.15 * rng.normal(size=field.n_parameters)
    warp = field.warp(settings.points, beta).eval()
    image = (settings.basis.matrix(warp) @ template).reshape(6, 6)
    theta = {
        "weights": np.ones(1),
        "templates": template[None],
        "noise_variance": np.array(1e-4),
        "deformation_variance": np.array([0.03]),
    }
    noisy = image + 0.01 * rng.normal(size=(6, 6))
    noisy[2, 3] = np.nan
    found = mixture.register(noisy, theta, draws=1_000, tune=200, e_step=e_step)
    np.testing.assert_array_equal(found["class_probability"], [1.0])
    # posterior means are within a few posterior standard deviations of what made the image
    for name, truth in (("warp", warp.reshape(6, 6, 2)), ("template", image)):
        away = np.abs(found[f"{name}_mean"][0] - truth)
        assert (away < 5 * found[f"{name}_sd"][0] + 1e-9).all(), name
    # and the data did tell: where the template has a slope, much more than the prior
    assert float(found["template_sd"].max()) < 0.02
    # what lies at a pixel of the template is found in the image, and the template itself there
    inverse = found["inverse_mean"].values[0]
    assert found["inverse_mean"].dims == found["warp_mean"].dims
    inside = np.isfinite(inverse).all(axis=-1)
    assert inside.sum() > 25
    there = field.warp(inverse[inside], beta).eval()
    sd = found["inverse_sd"].values[0][inside]
    away = np.abs(there - settings.points.reshape(6, 6, 2)[inside])
    assert (away < 5 * sd + 0.05 * (settings.points[1, 1] - settings.points[0, 1])).all()
    aligned = found["aligned_mean"].values[0]
    known = np.isfinite(aligned)
    assert known.sum() > 20
    assert not known[~inside].any()
    # straight lines between pixels leave out a curve of f'' h²/8 at most, on each axis
    flat = (settings.basis.matrix(settings.points) @ template).reshape(6, 6)
    bend = max(np.abs(np.diff(flat, 2, axis=axis)).max() for axis in (0, 1))
    assert np.abs(aligned - flat)[known].max() < 2 * bend / 8 * 1.5 + 0.05


def test_images_are_aligned_on_a_frame_that_is_given(images):
    """On the frame of its own warp an image lies as it is, with its missing pixel filled."""
    mixture, field, e_step = images
    points = mixture.settings.points
    template = np.exp(-np.square(mixture.settings.basis.centers).sum(axis=1) / 0.3)
    theta = {
        **mixture.model_parameters(),
        "templates": template[None],
        "noise_variance": np.array(1e-4),
        "deformation_variance": np.array([1e-8]),
    }
    image = (mixture.settings.basis.matrix(points) @ template).reshape(6, 6)
    image[1, 2] = np.nan
    shifted = np.repeat([0.2, 0.0], 4)
    options = {"draws": 20, "tune": 5, "e_step": e_step}
    plain = mixture.register(image, theta, **options)
    moved = mixture.register(image, theta, reference=shifted, **options)
    np.testing.assert_allclose(plain["inverse_mean"][0], plain["point"], atol=1e-2)
    # the missing pixel has no neighbor with half of the weight
    np.testing.assert_array_equal(np.isnan(plain["aligned_mean"][0]), np.isnan(image))
    np.testing.assert_allclose(plain["aligned_mean"][0], image, atol=1e-2)
    np.testing.assert_allclose(
        moved["inverse_mean"].values[0].reshape(-1, 2)[14],
        field.warp(points, shifted).eval()[14],
        atol=1e-2,
    )
    with pytest.raises(ValueError, match=r"reference has shape \(3,\); give finite β"):
        mixture.register(image, theta, reference=np.zeros(3), **options)
