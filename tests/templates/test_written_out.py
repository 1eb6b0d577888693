"""The loops that are written out for images and curves, against the graphs of their model."""

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import clone_replace

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.classification.expected_likelihood import ExpectedLikelihood, log_likelihood
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.compiling.flat_functions import FlatFunction
from pymc_mcoem.density.log_densities import LogDensities
from pymc_mcoem.em.burst import Burst, WeightedStatistics
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.class_fits import family_density
from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from pymc_mcoem.em.esteps.posterior_mode import PosteriorMode
from pymc_mcoem.templates import (
    DisplacementField,
    GaussianBasis,
    RigidMotion,
    TemplateMixture,
    TimeWarp,
)
from pymc_mcoem.templates.bases.factors import BasisWithFactors
from pymc_mcoem.templates.warps.scores import DeformationWithScores
from tests.helpers.requested import requested

SHAPE = (6, 7)
AXES = [np.linspace(-1, 1, side) for side in SHAPE]
POINTS = np.stack([part.ravel() for part in np.meshgrid(*AXES, indexing="ij")], axis=1)
BASIS = GaussianBasis.regular([np.linspace(-1, 1, 7), np.linspace(-1, 1, 5)], 0.5)
SCATTERED = np.random.default_rng(1).uniform(-1, 1, size=(42, 2))


def field():
    return DisplacementField.on_grid([np.linspace(-1, 1, 2), np.linspace(-1, 1, 3)], 0.6, 0.1)


def mixture_of(deformation, points=POINTS, basis=BASIS, **options):
    return TemplateMixture(points, basis, deformation, 3, grid_shape=SHAPE, **options)


MIXTURES = {
    "both": lambda: mixture_of(RigidMotion() + field()),
    "field": lambda: mixture_of(field()),
    "motion": lambda: mixture_of(RigidMotion()),
    "motion of scattered points": lambda: mixture_of(RigidMotion(), SCATTERED),
    "everything": lambda: mixture_of(
        field() + RigidMotion(), scale=(9.0, 10.0), noise="class", covariance="diagonal"
    ),
    "scaled": lambda: mixture_of(RigidMotion() + field(), scale=(9.0, 10.0)),
    "learned motion": lambda: mixture_of(RigidMotion(0.2, weight=5.0)),
    "field and learned motion": lambda: mixture_of(
        field() + RigidMotion([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], weight=5.0), covariance="diagonal"
    ),
    "full and learned motion": lambda: mixture_of(
        RigidMotion(0.2, weight=5.0) + field(), covariance="full"
    ),
    "learned motion with a scale": lambda: mixture_of(
        RigidMotion(0.2, weight=5.0) + field(), scale=(9.0, 10.0)
    ),
    "full": lambda: mixture_of(RigidMotion() + field(), scale=(9.0, 10.0), covariance="full"),
    "factors": lambda: mixture_of(
        DeformationWithScores(RigidMotion(0.2, weight=5.0) + field(), 2),
        basis=BasisWithFactors(BASIS, 2),
        noise="class",
    ),
    "factors in colors": lambda: mixture_of(
        DeformationWithScores(field() + RigidMotion(), 2),
        basis=BasisWithFactors(BASIS, 2),
        channels=3,
    ),
    "factor of a full field": lambda: mixture_of(
        DeformationWithScores(field(), 1), basis=BasisWithFactors(BASIS, 1), covariance="full"
    ),
}


TIMES = np.linspace(2.0, 9.0, 12)


def curves(n_classes=3, **options):
    settings = {"n_landmarks": 6, "n_warp_kernels": 4, "scale": None, "coefficients": "real"}
    return TemplateMixture.for_curves(TIMES, n_classes, **settings | options)


def correlation(points):
    """Return the correlation of noise that fades within half a unit."""
    return np.exp(-2.0 * np.abs(points[:, None] - points).sum(axis=-1))


MIXTURES |= {
    "curves": curves,
    "scaled curves": lambda: curves(scale=(9.0, 10.0), noise="class", covariance="diagonal"),
    "curves at points of their own": lambda: curves(own_points=15),
    "leads at points of their own": lambda: curves(
        own_points=15, channels=2, scale=(9.0, 10.0), offset=10.0
    ),
    "full curves": lambda: curves(covariance="full"),
    "correlated": lambda: mixture_of(
        RigidMotion() + field(), noise_correlation=correlation(POINTS)
    ),
    "everything correlated": lambda: mixture_of(
        field() + RigidMotion(),
        scale=(9.0, 10.0),
        noise="class",
        covariance="diagonal",
        noise_correlation=correlation(POINTS),
    ),
    "full correlated": lambda: mixture_of(
        RigidMotion(), SCATTERED, covariance="full", noise_correlation=correlation(SCATTERED)
    ),
    "colors": lambda: mixture_of(RigidMotion() + field(), channels=3),
    "everything in colors": lambda: mixture_of(
        field() + RigidMotion(),
        scale=(9.0, 10.0),
        noise="class",
        covariance="diagonal",
        channels=["red", "infrared"],
    ),
    "leads": lambda: curves(channels=2),
    "everything in leads": lambda: curves(
        scale=(9.0, 10.0), noise="class", covariance="full", channels={"lead": ["II", "V1"]}
    ),
    "offsets": lambda: mixture_of(RigidMotion() + field(), scale=(9.0, 10.0), offset=3.0),
    "offsets of leads": lambda: curves(channels=2, scale=(9.0, 10.0), noise="class", offset=10.0),
    "offsets at points of their own": lambda: curves(own_points=15, offset=10.0),
    "correlated colors with offsets": lambda: mixture_of(
        field(), channels=3, noise_correlation=correlation(POINTS), offset=0.5
    ),
    "correlated field": lambda: mixture_of(field(), noise_correlation=correlation(POINTS)),
    "correlated curves": lambda: curves(noise_correlation=correlation(TIMES[:, None])),
    "everything correlated in curves": lambda: curves(
        scale=(9.0, 10.0),
        noise="class",
        covariance="full",
        noise_correlation=correlation(TIMES[:, None]),
    ),
}


class Mirrored(RigidMotion):
    def warped(self, points, beta):
        return super().warped(points, beta)[::-1]


class Hastened(TimeWarp):
    def warped(self, points, beta):
        return [2.0 * column for column in super().warped(points, beta)]


def data_of(mixture, rng):
    """Return θ and an observation with missing points, by name."""
    theta = {name: np.array(value) for name, value in mixture.model_parameters().items()}
    theta["templates"] = rng.normal(size=theta["templates"].shape)
    theta["weights"] = np.array([0.2, 0.3, 0.5])
    noise = np.array([0.1, 0.2, 0.3])
    theta["noise_variance"] = noise if theta["noise_variance"].ndim else noise[0]
    if mixture.settings.channel_shape:
        size = mixture.model["noise_variance"].get_value().shape
        theta["noise_variance"] = rng.uniform(0.1, 0.3, size=size)
    if "deformation_variance" in theta:
        theta["deformation_variance"] = rng.uniform(
            0.1, 0.5, size=theta["deformation_variance"].shape
        )
    if "rigid_variance" in theta:
        theta["rigid_variance"] = rng.uniform(0.1, 0.5, size=theta["rigid_variance"].shape)
    if "deformation_covariance" in theta:
        size = theta["deformation_covariance"].shape
        factors = np.eye(size[-1]) + 0.1 * np.tril(rng.normal(size=size))
        theta["deformation_covariance"] = 0.2 * factors @ factors.transpose((0, 2, 1))
    return {**theta, **mixture.encode(observation_of(mixture, rng))}


def observation_of(mixture, rng):
    """Return an image or a curve with missing points, or a shorter curve at other points."""
    if mixture.settings.own_points is not None:
        n_rows = mixture.settings.n_channels
        return np.vstack([np.sort(rng.uniform(2.0, 9.0, size=13)), rng.normal(size=(n_rows, 13))])
    found = rng.normal(size=mixture.settings.observation_shape)
    found.flat[[2, 8, 9]] = np.nan
    return found


def graphs(mixture, density):
    """Return an interpreted function of the model's own graphs."""
    geometry = mixture.geometry
    k = pt.scalar("k", dtype="int64")
    x = pt.tensor("x", dtype="float64", shape=(density.n_latents,))
    settings = pt.tensor("settings", dtype="float64", shape=(2,))
    noise = density.data_inputs["noise_variance"]
    found = clone_replace(
        [
            density.log_density(k, x),
            density.gradient(k, x),
            density.place(geometry.curvature.matrix, k, x),
            density.place(geometry.prior_precision, k, x),
        ],
        {geometry.curvature.residual_share: settings[1], noise: noise * settings[0]},
    )
    statistics = density.place(list(mixture.statistics.values()), k, x)
    found += [pt.cast(each, "float64").ravel() for each in statistics]
    return compile_with_data(density, [k, x, settings], found, interpreted_mode())


@pytest.mark.parametrize("name", ["both", "everything correlated", "scaled curves"])
def test_a_likelihood_is_the_density_over_that_of_nothing_observed(name, rng):
    mixture = MIXTURES[name]()
    density, data = family_density(mixture), data_of(mixture, rng)
    k, x = (
        pt.scalar("k", dtype="int64"),
        pt.tensor("x", dtype="float64", shape=(density.n_latents,)),
    )
    graph = log_likelihood(density)(k, x)
    function = compile_with_data(density, [k, x], graph, interpreted_mode())
    log_densities, arguments = LogDensities(density), density.arguments(data)
    classes = np.array([0, 2, 1])
    x = mixture.geometry.starts[0] + 0.3 * rng.normal(size=(3, density.n_latents))
    unobserved = density.arguments(density.written_out.unobserved(data))
    found = log_densities(classes, x, arguments) - log_densities(classes, x, unobserved)
    expected = [
        function(np.asarray(j), each, *arguments) for j, each in zip(classes, x, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("name", MIXTURES)
def test_the_loops_compute_what_the_model_says(name, rng):
    mixture = MIXTURES[name]()
    density = family_density(mixture)
    assert density.written_out is not None
    function, arguments = graphs(mixture, density), density.arguments(data := data_of(mixture, rng))
    known, n = density.written_out, density.n_latents
    loops = FlatFunction(density, list, "", written_out=known)
    reals, integers = loops.pack(arguments)
    classes = np.array([0, 2, 1, 2])
    for temperature, share, spread in [(1.0, 1.0, 0.3), (3.0, 0.4, 0.3), (1.0, 0.0, 20.0)]:
        positions = mixture.geometry.starts[0] + spread * rng.normal(size=(4, n))
        reals[:2] = temperature, share
        metrics = known.metrics(reals)
        together = known.evaluate(classes, positions, reals, integers, metrics)
        for k, x, *found in zip(classes, positions, *together, strict=True):
            settings = np.array([temperature, share])
            expected = [
                np.asarray(each) for each in function(np.asarray(k), x, settings, *arguments)
            ]
            found.append(metrics[k])
            slope = np.empty(n)
            for into in (slope, np.empty(0)):
                seen = loops.function(k, x, reals, integers, into)
                np.testing.assert_allclose(seen, expected[0], rtol=1e-12)
            assert found[0] == seen
            np.testing.assert_array_equal(found[1], slope)
            sums = known.sums(np.array([0.5]), x[None], data)
            found += [2.0 * each.ravel() for each in sums]
            for part, whole in zip(found, expected, strict=True):
                scale = np.abs(whole).max(initial=0.0)
                np.testing.assert_allclose(part, whole, rtol=1e-9, atol=1e-12 * scale)


def test_correlated_noise_follows_the_gaps_of_an_observation(rng):
    """Of one after another with other gaps, as of each alone."""
    build = MIXTURES["correlated curves"]
    known, gaps = build().written_out, data_of(build(), rng)
    whole = {**gaps, **build().encode(rng.normal(size=12))}
    n_written = known.pack(gaps)[1][-1]
    for values in (gaps, whole, gaps):
        found, expected = known.pack(values)[0], build().written_out.pack(values)[0]
        np.testing.assert_array_equal(found[:n_written], expected[:n_written])
        sums = zip(
            *(
                each.sums(np.ones(1), np.zeros((1, 4)), values)
                for each in (known, build().written_out)
            ),
            strict=True,
        )
        for one, other in sums:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["curves", "scaled curves"])
def test_a_warp_that_overflows_has_no_gradient_of_another_point(name, rng):
    mixture = MIXTURES[name]()
    density = family_density(mixture)
    loops = FlatFunction(density, list, "", written_out=density.written_out)
    given = loops.pack(density.arguments(data_of(mixture, rng)))
    x = mixture.geometry.starts[0].copy()
    x[0] = 1e4
    for size in (0, len(x), len(x) + 3 * mixture.settings.points.size):
        out = np.ones(size)
        assert np.isnan(loops.function(0, x, *given, out))
        assert np.isnan(out).all()


@pytest.mark.parametrize(
    "name",
    [
        "both",
        "motion of scattered points",
        "everything",
        "field and learned motion",
        "everything correlated",
        "scaled curves",
        "correlated curves",
    ],
)
def test_sums_of_draws_are_those_of_each(name, rng):
    """Of more draws than are taken together."""
    mixture = MIXTURES[name]()
    known, data, n = mixture.written_out, data_of(mixture, rng), 70
    positions = mixture.geometry.starts[0] + 0.3 * rng.normal(
        size=(n, len(mixture.geometry.starts[0]))
    )
    weights = rng.uniform(size=n)
    whole = known.sums(weights, positions, data)
    each = [
        known.sums(weight[None], x[None], data)
        for weight, x in zip(weights, positions, strict=True)
    ]
    for part, parts in zip(whole, zip(*each, strict=True), strict=True):
        expected = sum(parts)
        scale = np.abs(expected).max(initial=0.0)
        np.testing.assert_allclose(part, expected, rtol=1e-9, atol=1e-12 * scale)


def test_sums_at_one_position_are_those_of_a_draw_in_every_class(rng):
    mixture = MIXTURES["both"]()
    data, n_classes = data_of(mixture, rng), mixture.settings.n_classes
    sums = WeightedStatistics(mixture, family_density(mixture))
    position, weights = mixture.geometry.starts[0], rng.dirichlet(np.ones(n_classes))
    weights[1] = 0.0
    found = sums.at_one_position(position, weights, data)
    wanted = sums(np.arange(n_classes), np.tile(position, (n_classes, 1)), weights, data)
    assert found.keys() == wanted.keys()
    # no negative zeros, which would be sent between processes
    assert not any(np.signbit(found[name][1]).any() for name in found if name != "class_weight")
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-13, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["both", "scaled curves", "everything correlated in curves"])
def test_a_burst_by_loops_makes_the_draws_of_one_by_graphs(name, rng):
    mixture = MIXTURES[name]()
    data = data_of(mixture, rng)
    found = []
    for by_loops in (True, False):
        density = family_density(mixture)
        if not by_loops:
            density.written_out = None
        fitted = Laplace().compile(density, mixture.geometry)(data, rng)
        burst = Burst(density, Hamiltonian())
        start = 0, fitted.mean[0].copy()
        generator = np.random.default_rng(1)
        found.append(burst(generator, start, burst.initial_log_step, fitted, np.zeros(5), data))
    np.testing.assert_array_equal(found[0].class_index, found[1].class_index)
    np.testing.assert_allclose(found[0].position, found[1].position, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[0].log_weight, found[1].log_weight, rtol=1e-3)


@pytest.mark.parametrize(
    "build",
    [
        lambda: mixture_of(Mirrored()),
        lambda: mixture_of(Mirrored() + field()),
        lambda: mixture_of(RigidMotion() + RigidMotion()),
        lambda: mixture_of(field(), SCATTERED),
        lambda: mixture_of(field(), basis=GaussianBasis(SCATTERED[:9], 0.5)),
        lambda: TemplateMixture(
            TIMES[:, None], GaussianBasis(TIMES, 1.0), Hastened((2.0, 9.0), n_kernels=3), 2
        ),
    ],
)
def test_what_is_not_written_out_is_compiled_from_its_graph(build):
    assert build().written_out is None


@pytest.mark.parametrize(
    "name", ["both", "everything", "everything correlated", "full", "scaled curves"]
)
def test_fixed_latents_weigh_classes_by_loops_as_by_the_graph(name, rng):
    mixture = MIXTURES[name]()
    data = data_of(mixture, rng)
    theta = {key: data.pop(key) for key in mixture.parameter_names}
    # classes that are hard to tell apart
    theta["templates"] *= 0.1
    theta["noise_variance"] = 10.0 * theta["noise_variance"]
    found, expected = (
        FixedLatents(backend=backend).compile(mixture)(data, theta, rng, {}, draws=1, tune=0)
        for backend in ("numba", "FAST_COMPILE")
    )
    assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-11)
    for key, value in expected.statistics.items():
        np.testing.assert_allclose(found.statistics[key], value, rtol=1e-9, atol=1e-9)
    assert (found.statistics["class_weight"] > 1e-3).sum() > 1


def test_statistics_of_ones_own_are_summed_by_their_graph(rng):
    mixture = MIXTURES["field"]()
    mixture.statistics = {**mixture.statistics, "twice": 2.0 * mixture.statistics["squared_norm"]}
    data = data_of(mixture, rng)
    sums = WeightedStatistics(mixture, family_density(mixture))(
        np.array([1]), mixture.geometry.starts[:1], np.array([1.0]), data
    )
    assert sums["twice"][1] == pytest.approx(2.0 * sums["squared_norm"][1])


def explain(mixture, rng, settings=None):
    e_step = (settings or CarlinChibBurst()).compile(mixture)
    given = mixture.encode(observation_of(mixture, rng))
    if isinstance(settings, ExpectedLikelihood):
        return e_step.log_scores(given, mixture.model_parameters(), rng, draws=2, tune=1)
    return e_step(given, mixture.model_parameters(), rng, e_step.initial_state(), draws=2, tune=1)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("images", CarlinChibBurst()),
        ("curves", CarlinChibBurst()),
        ("images", LaplaceGaussian(importance=True)),
        ("curves", PosteriorMode()),
        ("images", ExpectedLikelihood()),
    ],
)
def test_another_mixture_of_the_kind_compiles_nothing(kind, settings, rng):
    """Neither the number of classes nor sizes, kernels, landmarks, priors or noise are compiled.

    Nor is anything read that an earlier run compiled for them.
    """
    first, others = {
        "images": (
            MIXTURES["both"],
            [
                lambda: TemplateMixture.for_images((5, 5), 2, n_landmarks=2),
                lambda: TemplateMixture.for_images((9, 8), 5, n_landmarks=2),
                MIXTURES["everything"],
                MIXTURES["everything correlated"],
                lambda: TemplateMixture.for_images(
                    (3, 4), 5, n_landmarks=2, noise_correlation=correlation(POINTS[:12])
                ),
            ],
        ),
        "curves": (
            MIXTURES["curves"],
            [
                lambda: TemplateMixture.for_curves(np.arange(12.0), 5, coefficients="real"),
                MIXTURES["scaled curves"],
                MIXTURES["curves at points of their own"],
                MIXTURES["everything correlated in curves"],
                lambda: curves(7, n_warp_kernels=3, noise_correlation=correlation(TIMES[:, None])),
            ],
        ),
    }[kind]
    explain(first(), rng, settings)
    with requested() as asked:
        for other in others:
            explain(other(), rng, settings)
    assert asked == []
