"""What a user sees of `TemplateMixture`: settings, data in, parameters, starts, clones."""

from __future__ import annotations

import pickle
from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pymc.model_graph import ModelGraph

from pymc_mcoem.templates import (
    DisplacementField,
    GaussianBasis,
    RigidMotion,
    TemplateMixture,
    TemplatePriors,
    image_priors,
    template_images,
)
from tests.helpers.image_oracle import ImageOracle


def small(n_classes=2, **options):
    return TemplateMixture.for_images((5, 5), n_classes, n_landmarks=2, **options)


@pytest.fixture(scope="module")
def mixture():
    return small()


def blobs(rng, n_images, noise=0.1):
    """Images of one of two blobs, which k-means tells apart."""
    axis = np.linspace(-1, 1, 5)
    rows, columns = np.meshgrid(axis, axis, indexing="ij")
    means = np.stack([np.exp(-(rows**2) / 0.3), np.exp(-(columns**2) / 0.3)])
    labels = rng.integers(2, size=n_images)
    return means[labels] + noise * rng.normal(size=(n_images, 5, 5)), labels, means


def test_the_papers_settings_for_digits():
    settings = TemplateMixture.for_images((16, 16), n_classes=4).settings
    assert settings.points.shape == (256, 2)
    np.testing.assert_allclose(settings.points[[0, -1]], [[-1, -1], [1, 1]])
    np.testing.assert_allclose(settings.points[1] - settings.points[0], [0, 2 / 15])
    assert settings.basis.n_basis == 256
    assert settings.basis.bandwidth == pytest.approx(0.2)
    rigid, field = settings.deformation.terms
    assert rigid.variance == 0.1
    assert settings.deformation.n_parameters == 78
    assert field.landmarks.shape == (36, 2)
    np.testing.assert_allclose(field.landmarks.min(axis=0), -0.5)
    np.testing.assert_allclose(field.landmarks.max(axis=0), 0.5)
    assert field.width**2 == pytest.approx(0.16)


@pytest.mark.parametrize(
    ("shape", "n_landmarks", "expected"),
    [((8, 8), None, (4, 4)), ((28, 28), None, (6, 6)), ((5, 9), None, (3, 4)), ((6, 6), 3, (3, 3))],
)
def test_other_sizes_adapt(shape, n_landmarks, expected):
    mixture = TemplateMixture.for_images(shape, 1, n_landmarks=n_landmarks)
    settings = mixture.settings
    spacing = 2 / (max(shape) - 1)
    half = [spacing * (side - 1) / 2 for side in shape]
    np.testing.assert_allclose(settings.points.max(axis=0), half)
    np.testing.assert_allclose(settings.points.min(axis=0), np.negative(half))
    kernel_spacing = 2 / (min(max(shape), 20) - 1)
    assert settings.basis.bandwidth == pytest.approx(1.5 * kernel_spacing)
    field = settings.deformation.terms[1]
    assert len(field.landmarks) == expected[0] * expected[1]
    np.testing.assert_allclose(field.landmarks.max(axis=0), np.array(half) / 2)
    assert np.linalg.eigvalsh(settings.deformation.covariance)[0] > 0


@pytest.mark.parametrize(
    ("options", "dims"),
    [
        ({}, {"deformation_variance": ("class",), "noise_variance": ()}),
        ({"noise": "class"}, {"noise_variance": ("class",)}),
        ({"covariance": "diagonal"}, {"deformation_variance": ("class", "learned_coordinate")}),
        (
            {"covariance": "full"},
            {
                "deformation_covariance": (
                    "class",
                    "learned_coordinate",
                    "learned_coordinate_column",
                )
            },
        ),
    ],
)
def test_parameters_are_labeled_data_of_the_model(options, dims):
    mixture = small(3, **options)
    parameters = mixture.parameters
    expected = {"weights": ("class",), "templates": ("class", "basis"), **dims}
    for name, labels in expected.items():
        assert parameters[name].dims == labels
    assert set(mixture.parameter_names) == set(parameters.data_vars)
    assert mixture.n_classes == 3
    assert mixture.observation == ("observed_values", "observed_mask")
    assert mixture.model.named_vars_to_dims["observation"] == ("row", "column")
    labels = mixture.model.coords["deformation_coordinate"]
    assert labels[:2] == ("angle", "zoom")
    checked = mixture.check_parameters(parameters)
    assert all(value.dtype == np.float64 for value in checked.values())


def test_the_model_can_be_drawn():
    graph = ModelGraph(small(scale=(10.0, 10.0)).model)
    parents = graph.make_compute_graph()
    assert parents["observation"] >= {"class_index", "deformation", "scale", "observed_mask"}
    assert "class_index" in parents["deformation"]


def test_networkx_draws_it():
    networkx = pytest.importorskip("networkx")
    assert isinstance(pm.model_to_networkx(small().model), networkx.DiGraph)


def test_graphviz_draws_it():
    pytest.importorskip("graphviz")
    drawing = pm.model_to_graphviz(small().model).source
    assert "MaskedNormal" in drawing
    assert "deformation" in drawing


def test_any_points_and_a_curve_will_do(rng):
    times = np.linspace(0, 1, 7)
    mixture = TemplateMixture(
        times,
        GaussianBasis(np.linspace(0, 1, 4), 0.4),
        DisplacementField([0.2, 0.8], 0.5),
        2,
        scale=(5.0, 5.0),
        dim_names=["age"],
        dim_coords=[times],
    )
    image = mixture.encode(rng.normal(size=7))
    assert image["observed_values"].shape == (7,)
    # every coordinate is learned, and Normal data with it
    assert mixture.statistics["deformation_outer"].type.ndim == 2
    shown = template_images(mixture.parameters, mixture)
    np.testing.assert_allclose(shown["age"], times)
    model = mixture.condition(rng.normal(size=7))
    assert np.isfinite(model.compile_logp(mode="FAST_COMPILE")(model.initial_point()))


def test_a_deformation_without_learned_coordinates_will_do(rng):
    axes = [np.linspace(-1, 1, 4)] * 2
    basis = GaussianBasis.regular(axes, 1.0)
    for covariance in ("scaled", "diagonal", "full"):
        mixture = TemplateMixture(
            basis.centers, basis, RigidMotion(0.1), 2, covariance=covariance, grid_shape=(4, 4)
        )
        parameters = mixture.initialize(list(rng.normal(size=(6, 4, 4))), rng)
        model = mixture.condition(rng.normal(size=(4, 4)), parameters)
        assert np.isfinite(model.compile_logp(mode="FAST_COMPILE")(model.initial_point()))


def test_encode_separates_values_and_mask(mixture, rng):
    image = rng.normal(size=(5, 5))
    image[1, 2] = np.nan
    data = mixture.encode(image)
    assert data["observed_values"][1, 2] == 0.0
    assert data["observed_mask"].sum() == 24
    masked = mixture.encode(np.ma.masked_invalid(image))
    again = mixture.encode(data)
    labeled = mixture.encode(xr.DataArray(image))
    for other in (masked, again, labeled):
        for name, value in data.items():
            np.testing.assert_array_equal(other[name], value)
    whole = mixture.encode(np.arange(25, dtype=np.uint8).reshape(5, 5).tolist())
    assert whole["observed_values"].dtype == np.float64


@pytest.mark.parametrize(
    ("observation", "error", "message"),
    [
        (np.zeros((4, 5)), ValueError, r"shape \(4, 5\).*resize"),
        (np.zeros((3, 5, 5)), ValueError, r"shape \(3, 5, 5\).*iterable"),
        (np.full((5, 5), np.inf), ValueError, "25 infinite values.*NaN"),
        (np.full((5, 5), np.nan), ValueError, "all its points missing.*leave it out"),
        (np.ma.masked_all((5, 5)), ValueError, "all its points missing"),
        (np.zeros((5, 5), dtype=complex), TypeError, "complex128.*real numbers"),
        (np.full((5, 5), "x"), TypeError, "real numbers"),
        ([[None] * 5] * 5, TypeError, "object.*real numbers"),
        ({"values": np.zeros((5, 5))}, ValueError, "observed_mask"),
    ],
)
def test_bad_observations_are_refused(mixture, observation, error, message):
    with pytest.raises(error, match=message):
        mixture.encode(observation)


def test_masked_entries_survive_a_stack(mixture, rng):
    images = np.ma.masked_greater(rng.normal(size=(3, 5, 5)), 0.5)
    found = [mixture.encode(image)["observed_mask"] for image in mixture.iterate(images)]
    np.testing.assert_array_equal(found, ~images.mask)
    assert len(list(mixture.iterate(images[0]))) == 1
    assert len(list(mixture.iterate(image for image in images.data))) == 3


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weights", [0.6, 0.6], "sums to 1.2"),
        ("weights", [-0.5, 1.5], "weights"),
        ("noise_variance", 0.0, "noise_variance is 0.0"),
        ("deformation_variance", [0.1, -0.1], "deformation_variance"),
        ("templates", np.zeros((3, 25)), r"templates has shape \(3, 25\)"),
        ("templates", np.full((2, 25), np.nan), "not finite"),
    ],
)
def test_bad_parameters_are_refused(mixture, name, value, message):
    parameters = {**mixture.model_parameters(), name: np.asarray(value)}
    with pytest.raises(ValueError, match=message):
        mixture.check_parameters(parameters)
    parameters.pop(name)
    with pytest.raises(ValueError, match="give each of"):
        mixture.check_parameters(parameters)


def test_a_covariance_must_be_positive_definite():
    mixture = small(covariance="full")
    parameters = mixture.model_parameters()
    parameters["deformation_covariance"][1, 0, 0] = -1.0
    with pytest.raises(ValueError, match="class 1 is not symmetric positive definite"):
        mixture.check_parameters(parameters)


@pytest.mark.parametrize("covariance", ["scaled", "diagonal", "full"])
@pytest.mark.parametrize("noise", ["shared", "class"])
def test_kmeans_start_finds_the_groups(covariance, noise, rng):
    mixture = small(covariance=covariance, noise=noise)
    images, labels, means = blobs(rng, 60)
    images[rng.random(size=images.shape) < 0.2] = np.nan
    parameters = mixture.check_parameters(mixture.initialize(list(images), rng, "kmeans"))
    shown = template_images(parameters, mixture).values
    order = [0, 1] if np.abs(shown[0] - means[0]).mean() < 0.1 else [1, 0]
    np.testing.assert_allclose(shown[order], means, atol=0.2)
    share = np.bincount(labels, minlength=2) / 60
    np.testing.assert_allclose(parameters["weights"][order], share, atol=0.03)
    np.testing.assert_allclose(parameters["noise_variance"], 0.01, rtol=0.5)
    variance = mixture.priors.deformation_variance
    if covariance == "full":
        expected = variance * mixture.settings.base_covariance
        np.testing.assert_allclose(parameters["deformation_covariance"][0], expected, rtol=1e-6)
    else:
        np.testing.assert_allclose(parameters["deformation_variance"], variance)


def share_apart(size, noise, rng):
    """Return the share of images of two bars that go with their own kind at the start."""
    axis = np.linspace(-1, 1, size)
    means = np.stack([np.exp(-(axis[:, None] ** 2) / 0.05) + 0 * axis, np.zeros((size, size))])
    means[1] = means[0].T
    labels = np.arange(40) % 2
    images = means[labels] + rng.normal(0, noise, (40, size, size))
    images[:, 0, :2] = np.nan
    mixture = TemplateMixture.for_images((size, size), 2, n_landmarks=2)
    parameters = mixture.initialize(list(images), rng, "kmeans")
    first, second = template_images(mixture.check_parameters(parameters), mixture).values
    fits = np.nansum((images - first) ** 2 - (images - second) ** 2, axis=(1, 2)) < 0
    return max(np.mean(fits == labels), np.mean(fits != labels))


def test_of_large_images_kmeans_does_not_see_the_noise_of_pixels(rng, monkeypatch):
    assert share_apart(32, 2.0, rng) >= 0.95
    monkeypatch.setattr("pymc_mcoem.templates.clusters._LONGEST_SHARP", 32)
    assert share_apart(32, 2.0, rng) < 0.95


def test_small_images_are_compared_as_they_are(rng, monkeypatch):
    monkeypatch.setattr("pymc_mcoem.templates.clusters._SMOOTHING", 1.0)
    assert share_apart(16, 0.3, rng) == 1.0


@pytest.mark.parametrize(("shape", "n_landmarks"), [((8, 8), 2), ((16, 16), 6), ((64, 32), 4)])
def test_the_default_prior_displaces_landmarks_by_as_much_on_every_grid(shape, n_landmarks, rng):
    mixture = TemplateMixture.for_images(shape, n_classes=2, n_landmarks=n_landmarks)
    _, field = mixture.settings.deformation.terms
    prior = image_priors(field)
    assert prior == mixture.priors
    n = len(field.landmarks)
    betas = rng.multivariate_normal(
        np.zeros(2 * n), prior.deformation_variance * field.covariance, 4000
    )
    moved = np.stack([betas[:, :n], betas[:, n:]], axis=-1)
    distances = np.square(field.landmarks[:, None] - field.landmarks).sum(axis=-1)
    displaced = np.einsum("bka,kl->bla", moved, np.exp(-distances / field.width**2))
    # 4,000 draws of some tens of correlated numbers
    assert np.sqrt(np.square(displaced).mean()) / 2.0 == pytest.approx(0.04, rel=0.05)


@pytest.mark.parametrize("noise", ["shared", "class"])
@pytest.mark.parametrize("n_images", [1, 2])
def test_fewer_observations_than_classes(n_images, noise, rng):
    mixture = small(4, noise=noise)
    images = [*blobs(rng, n_images)[0]] * 2  # the same image twice is no help
    parameters = mixture.check_parameters(mixture.initialize(images, rng, "kmeans"))
    templates = parameters["templates"]
    apart = np.abs(templates[:, None] - templates[None]).max(axis=-1) + np.eye(4)
    assert apart.min() > 1e-6


def test_random_start_is_the_papers(mixture, rng):
    images = list(blobs(rng, 10)[0])
    draws = [mixture.initialize(images, rng, "random") for _ in range(200)]
    mixture.check_parameters(draws[0])
    coefficients = np.concatenate([draw["templates"] for draw in draws])
    # α ~ Normal(0, K⁻¹): values at the centers have covariance K
    values = coefficients @ mixture.gram
    np.testing.assert_allclose(np.cov(values.T), mixture.gram, atol=5 * np.sqrt(2 / 400))
    np.testing.assert_allclose(draws[0]["weights"], 0.5)
    np.testing.assert_allclose(draws[0]["noise_variance"], np.var(images))


def test_a_start_depends_on_its_generator_alone(mixture, rng):
    images = list(blobs(rng, 10)[0])
    for start in ("kmeans", "random"):
        first, second = (
            mixture.initialize(images, np.random.default_rng(8), start) for _ in range(2)
        )
        for name, value in first.items():
            np.testing.assert_array_equal(second[name], value)


def test_bad_starts_are_refused(mixture, rng):
    with pytest.raises(ValueError, match="start is 'best'"):
        mixture.initialize([np.zeros((5, 5))], rng, "best")
    with pytest.raises(ValueError, match="observations is empty"):
        mixture.initialize([], rng, "kmeans")


def test_condition_gives_an_independent_clone(mixture, rng):
    before = mixture.model_parameters()
    image = rng.normal(size=(5, 5))
    image[0, 0] = np.nan
    parameters = mixture.model_parameters()
    parameters["templates"] = rng.normal(size=(2, 25))
    first = mixture.condition(image, mixture.to_dataset(parameters))
    second = mixture.condition(np.ones((5, 5)))
    np.testing.assert_array_equal(first["templates"].get_value(), parameters["templates"])
    assert first["observed_mask"].get_value()[0, 0] == 0.0
    assert second["observed_values"].get_value().sum() == 25.0
    second.set_data("templates", np.full((2, 25), 7.0))
    for name, value in before.items():
        np.testing.assert_array_equal(mixture.model[name].get_value(), value)
    assert mixture.model["observed_values"].get_value().sum() == 0.0
    assert not set(first.basic_RVs) & set(mixture.model.basic_RVs)
    with pytest.raises(ValueError, match="infinite"):
        mixture.condition(np.full((5, 5), np.inf))
    with pytest.raises(ValueError, match="sums to"):
        mixture.condition(image, {**parameters, "weights": np.ones(2)})


def test_template_images_are_the_templates_at_the_mean_warp(rng):
    mixture = small(scale=(10.0, 8.0))
    parameters = mixture.model_parameters()
    parameters["templates"] = rng.normal(size=(2, 25))
    images = template_images(mixture.to_dataset(parameters), mixture)
    assert images.dims == ("class", "row", "column")
    oracle = ImageOracle(5, 2, 0.1)
    expected = 10 / 8 * parameters["templates"] @ oracle.design(oracle.mean).T
    np.testing.assert_allclose(images.values.reshape(2, 25), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="templates has shape"):
        template_images({"templates": np.zeros((2, 9))}, mixture)


def test_with_classes_keeps_everything_else():
    priors = TemplatePriors(noise_rate=0.5)
    mixture = small(scale=(10.0, 8.0), covariance="diagonal", priors=priors, rigid_variance=0.02)
    other = mixture.with_classes(5, noise="class")
    assert other.n_classes == 5
    assert other.settings.noise == "class"
    assert other.settings.scale == (10.0, 8.0)
    assert other.settings.covariance == "diagonal"
    assert other.priors is priors
    assert other.settings.dim_names == ("row", "column")
    np.testing.assert_array_equal(
        other.settings.deformation.covariance, mixture.settings.deformation.covariance
    )
    assert mixture.n_classes == 2
    with pytest.raises(ValueError, match="color"):
        mixture.with_classes(2, color="red")


def test_what_was_added_to_a_mixture_is_sent_with_it():
    class Marked(TemplateMixture):
        level = 1.0

    marked = Marked.for_images((3, 3), n_classes=2, n_landmarks=2)
    marked.level = 5.0
    marked.geometry = replace(marked.geometry, starts=marked.geometry.starts[:1] + 0.25)
    marked.set_model_parameters(marked.declared_parameters() | {"weights": np.array([0.1, 0.9])})
    copy = cloudpickle.loads(cloudpickle.dumps(marked))
    assert copy.level == 5.0
    np.testing.assert_array_equal(copy.geometry.starts, marked.geometry.starts)
    assert copy.parameters.identical(marked.parameters)
    np.testing.assert_array_equal(copy.declared_parameters()["weights"], [0.5, 0.5])


def test_a_mixture_and_its_clone_can_be_pickled(mixture):
    size = len(cloudpickle.dumps(mixture))
    mixture.mean_design()
    assert len(cloudpickle.dumps(mixture)) == size
    copy = pickle.loads(cloudpickle.dumps(mixture))
    xr.testing.assert_identical(copy.parameters, mixture.parameters)
    model = pickle.loads(cloudpickle.dumps(mixture.condition(np.ones((5, 5)))))
    expected = mixture.condition(np.ones((5, 5))).compile_logp(mode="FAST_COMPILE")
    point = model.initial_point()
    found = model.compile_logp(mode="FAST_COMPILE")(point)
    assert float(found) == pytest.approx(float(expected(point)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_classes": 0}, ValueError, "n_classes: got 0"),
        ({"n_classes": 1.5}, ValueError, "n_classes: got 1.5"),
        ({"coefficients": "integer"}, ValueError, "coefficients is 'integer'"),
        ({"covariance": "banded"}, ValueError, "covariance is 'banded'"),
        ({"noise": "none"}, ValueError, "noise is 'none'"),
        ({"scale": (1.0, 0.0)}, ValueError, "scale is"),
        ({"scale": 3.0}, ValueError, "scale is 3.0"),
        ({"priors": 3.0}, TypeError, "priors is a float"),
        ({"noise_correlation": np.eye(3)}, ValueError, "noise_correlation has shape"),
        ({"noise_correlation": 2 * np.eye(25)}, ValueError, "ones on its diagonal"),
        ({"noise_correlation": np.ones((25, 25))}, ValueError, "positive definite"),
        ({"n_landmarks": 1}, ValueError, "n_landmarks is 1"),
        ({"n_landmarks": 100}, ValueError, r"n_landmarks is 100, more than the pixels of a side"),
        (
            {"shape": np.ones((4, 5, 5))},
            ValueError,
            r"shape is an array of shape \(4, 5, 5\)",
        ),
        ({"n_kernels": 1}, ValueError, "n_kernels is 1"),
        ({"n_kernels": 4.5}, ValueError, "n_kernels is 4.5"),
        ({"n_kernels": (4, 4, 4)}, ValueError, r"n_kernels is \(4, 4, 4\)"),
        ({"n_kernels": "each"}, ValueError, "n_kernels is 'each'; give .* or 'pixels'"),
        ({"shape": (1, 5)}, ValueError, r"shape is \(1, 5\)"),
        ({"rigid_variance": -1.0}, ValueError, "variance is -1.0"),
    ],
)
def test_bad_options_are_named(options, error, message):
    arguments = {"shape": (5, 5), "n_classes": 2, **options}
    with pytest.raises(error, match=message):
        TemplateMixture.for_images(**arguments)


@pytest.mark.parametrize(
    ("shape", "n_kernels", "counts"),
    [
        ((16, 16), None, (16, 16)),
        ((20, 12), None, (20, 12)),
        ((64, 64), None, (20, 20)),
        ((64, 32), None, (20, 10)),
        ((32, 64), None, (10, 20)),
        ((64, 2), None, (20, 2)),
        ((28, 28), "pixels", (28, 28)),
        ((28, 14), 14, (14, 7)),
        ((28, 28), (7, 14), (7, 14)),
    ],
)
def test_kernels_span_the_image_whatever_their_number(shape, n_kernels, counts):
    mixture = TemplateMixture.for_images(shape, n_classes=1, n_kernels=n_kernels)
    basis, points = mixture.settings.basis, mixture.settings.points
    places = [np.unique(axis) for axis in basis.centers.T]
    assert tuple(map(len, places)) == counts
    for place, axis in zip(places, points.T, strict=True):
        np.testing.assert_allclose(place[[0, -1]], [axis.min(), axis.max()])
    spacing = max(np.diff(place).max() for place in places)
    np.testing.assert_allclose(basis.bandwidth, 1.5 * spacing)


def test_few_kernels_show_what_one_a_pixel_shows(rng):
    """An image that is smooth on the scale of the kernels is in the span of either basis."""
    axis = np.linspace(-1, 1, 40)
    places, widths = rng.uniform(-0.6, 0.6, (5, 2)), rng.uniform(0.3, 0.5, 5)
    rows, columns = np.meshgrid(axis, axis, indexing="ij")
    image = sum(
        np.exp(-((rows - place[0]) ** 2 + (columns - place[1]) ** 2) / width**2)
        for place, width in zip(places, widths, strict=True)
    )
    found = {}
    for n_kernels in (None, "pixels", 4):
        mixture = TemplateMixture.for_images((40, 40), n_classes=1, n_kernels=n_kernels)
        design = mixture.mean_design()
        found[n_kernels] = design @ np.linalg.lstsq(design, image.ravel(), rcond=1e-10)[0]
    away = {key: np.abs(each - image.ravel()).max() for key, each in found.items()}
    assert max(away[None], away["pixels"]) < 1e-3 * image.max() < 0.02 * image.max() < away[4]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"points": np.zeros((4, 1))}, ValueError, "points have 1 dimensions"),
        ({"points": np.full((4, 2), np.nan)}, ValueError, "points has shape"),
        ({"basis": np.zeros((4, 2))}, TypeError, "basis is a ndarray"),
        ({"deformation": "rigid"}, TypeError, "deformation is a str"),
        ({"grid_shape": (3, 3)}, ValueError, r"grid_shape is \(3, 3\)"),
        ({"dim_names": ["class"]}, ValueError, "dim_names is"),
        ({"dim_names": ["a", "b"]}, ValueError, "dim_names is"),
        ({"dim_coords": [[0, 1]]}, ValueError, "dim_coords has lengths"),
    ],
)
def test_bad_parts_are_named(options, error, message):
    arguments = {
        "points": np.zeros((4, 2)),
        "basis": GaussianBasis(np.zeros((1, 2)), 1.0),
        "deformation": RigidMotion(),
        "n_classes": 2,
        **options,
    }
    with pytest.raises(error, match=message):
        TemplateMixture(**arguments)


@pytest.mark.parametrize(
    ("build", "kind", "message"),
    [
        (lambda: small(rigid_variance="a"), ValueError, "variance is 'a'"),
        (lambda: small(noise_correlation="a"), ValueError, "noise_correlation is 'a'; give real"),
        (lambda: TemplatePriors(noise_rate="a"), ValueError, "noise_rate is 'a'"),
        (lambda: TemplatePriors(weight_concentration="a"), ValueError, "concentration is 'a'"),
        (lambda: small().check_parameters(5), TypeError, "parameters: got a int; give a Dataset"),
        (
            lambda: small().check_parameters({**small().model_parameters(), "weights": "a"}),
            ValueError,
            "parameters: weights is 'a'; give real numbers",
        ),
        (
            lambda: small().check_parameters(
                {**small().model_parameters(), "weights": [np.nan] * 2}
            ),
            ValueError,
            "not finite: .*go back to parameters that were finite",
        ),
    ],
)
def test_what_is_no_number_is_named(build, kind, message):
    with pytest.raises(kind, match=message):
        build()
