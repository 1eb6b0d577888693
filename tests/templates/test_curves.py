"""Mixtures of curves: density and statistics against plain NumPy, and their doors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import cloudpickle
import numpy as np
import pytensor
import pytest
from pytensor.graph.replace import clone_replace
from scipy import stats

from pymc_mcoem.esteps import LaplaceGaussian
from pymc_mcoem.pseudo_priors import Laplace
from pymc_mcoem.templates import TemplateMixture, TemplatePriors, TimeWarp
from pymc_mcoem.templates.curves import CurveGrid, curve_priors, starting_slopes

AGES = np.array([2.0, 4.0, 7.0, 8.0, 11.0, 12.5, 14.0, 18.0])
N_CLASSES, N_LANDMARKS, N_KERNELS = 2, 9, 4
N_NODES = 201


class CurveOracle:
    """The paper's model of a curve, in loops."""

    def __init__(self, scale=(10.0, 10.0)):
        self.scale = scale
        spacing = 16 / (N_LANDMARKS - 3)
        self.landmarks = 2 + spacing * np.arange(-1, N_LANDMARKS - 1)
        self.bandwidth = 1.5 * spacing
        self.nodes = np.linspace(0, 20, N_NODES)

    def warp(self, ages, beta):
        centers = np.linspace(0, 20, N_KERNELS)
        speed = [
            np.exp(
                sum(
                    b * np.exp(-((v - q) ** 2) / 5.0**2) for b, q in zip(beta, centers, strict=True)
                )
            )
            for v in self.nodes
        ]
        return [2 + 16 * self.area(u, speed) / self.area(20.0, speed) for u in ages]

    def area(self, end, speed):
        """The integral of the broken line up to `end`, trapezium by trapezium."""
        total = 0.0
        for left, right, a, b in zip(
            self.nodes[:-1], self.nodes[1:], speed[:-1], speed[1:], strict=True
        ):
            if end <= left:
                break
            share = min((end - left) / (right - left), 1.0)
            middle = a + (b - a) * share
            total += share * (right - left) * (a + middle) / 2
        return total

    def design(self, ages, beta):
        return np.array(
            [
                [np.exp(-((d - r) ** 2) / self.bandwidth**2) for r in self.landmarks]
                for d in self.warp(ages, beta)
            ]
        )

    def log_density(self, theta, index, beta, scale, ages, values):
        seen = ~np.isnan(values)
        mean = scale * self.design(ages, beta) @ theta["templates"][index]
        deviation = np.sqrt(theta["noise_variance"])
        total = np.log(theta["weights"][index])
        total += stats.norm(mean[seen], deviation).logpdf(values[seen]).sum()
        spread = np.sqrt(theta["deformation_variance"][index])
        total += stats.norm(1.0, spread).logpdf(beta).sum()
        if self.scale is not None:
            shape, rate = self.scale
            total += stats.gamma(shape, scale=1 / rate).logpdf(scale) + np.log(scale)
        return total


def make_mixture(**options):
    return TemplateMixture.for_curves(
        AGES, N_CLASSES, n_landmarks=N_LANDMARKS, n_warp_kernels=N_KERNELS, **options
    )


@dataclass
class Case:
    mixture: TemplateMixture
    oracle: CurveOracle
    theta: dict
    own: bool

    def curve(self, rng):
        """Return ages, values with gaps, and the observation that says so."""
        ages = np.sort(rng.uniform(0, 20, size=5)) if self.own else AGES
        values = rng.uniform(2, 10, size=len(ages))
        values[rng.integers(len(ages))] = np.nan
        return ages, values, (ages, values) if self.own else values

    def point(self, rng, index):
        beta = 1 + 0.4 * rng.normal(size=N_KERNELS)
        scale = np.exp(0.3 * rng.normal()) if self.oracle.scale else 1.0
        return beta, scale, [np.array(index), beta, *([scale] if self.oracle.scale else [])]

    def set(self, observation):
        for name, value in {**self.mixture.encode(observation), **self.theta}.items():
            self.mixture.model.set_data(name, value)

    def compile(self):
        model = self.mixture.model
        values = [model.rvs_to_values[rv] for rv in model.free_RVs]
        density = pytensor.function(values, model.logp(), mode="FAST_COMPILE")
        variables = {rv: rv.type() for rv in model.free_RVs}
        outputs = self.mixture.statistics
        function = pytensor.function(
            list(variables.values()),
            clone_replace(list(outputs.values()), variables),
            mode="FAST_COMPILE",
            on_unused_input="ignore",
        )
        self.log_density = lambda index, beta, *scale: float(
            density(index, beta, *map(np.log, scale))
        )
        self.expressions = lambda *at: dict(zip(outputs, function(*at), strict=True))
        return self


@pytest.fixture(scope="module", params=["grid", "own", "no-scale"])
def case(request):
    own = request.param == "own"
    scale = None if request.param == "no-scale" else (10.0, 10.0)
    mixture = make_mixture(scale=scale, **({"own_points": 9} if own else {}))
    rng = np.random.default_rng(5)
    theta = {
        "weights": np.array([0.7, 0.3]),
        "templates": rng.uniform(0, 5, size=(N_CLASSES, N_LANDMARKS)),
        "noise_variance": np.array(0.3),
        "deformation_variance": np.array([0.1, 0.2]),
    }
    theta = mixture.check_parameters(theta)
    return Case(mixture, CurveOracle(scale), theta, own).compile()


def test_log_density_is_the_oracles(case, rng):
    ages, values, observation = case.curve(rng)
    case.set(observation)
    for index in range(N_CLASSES):
        beta, scale, at = case.point(rng, index)
        expected = case.oracle.log_density(case.theta, index, beta, scale, ages, values)
        assert case.log_density(*at) == pytest.approx(expected, rel=1e-9)


def test_statistics_are_the_oracles(case, rng):
    ages, values, observation = case.curve(rng)
    case.set(observation)
    beta, scale, at = case.point(rng, 1)
    found = case.expressions(*at)
    seen = ~np.isnan(values)
    rows = scale * case.oracle.design(ages, beta)[seen]
    expected = {
        "template_projection": rows.T @ values[seen],
        "template_gram": rows.T @ rows,
        "deformation_outer": np.outer(beta - 1, beta - 1),
        "squared_norm": values[seen] @ values[seen],
        "observed_points": seen.sum(),
    }
    if case.oracle.scale:
        expected |= {"scale": scale, "log_scale": np.log(scale)}
    assert set(expected) == set(case.mixture.statistics)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


def test_one_grid_and_own_points_are_one_model(rng, without_compiler):
    """The same curve, given at the mixture's ages or bringing them, has the same density."""
    values = rng.uniform(2, 10, size=len(AGES))
    values[3] = np.nan
    mixture = make_mixture(own_points=12)
    theta = {**mixture.model_parameters(), "templates": rng.uniform(0, 5, size=(2, N_LANDMARKS))}
    seen = ~np.isnan(values)
    given = {
        "grid": values,
        "pair": (AGES, values),
        "short": np.stack([AGES[seen], values[seen]]),
        "mapping": {"points": AGES, "values": np.ma.masked_invalid(values)},
    }
    given["encoded"] = mixture.encode(values)
    density = mixture.model.compile_logp()
    point = {
        "class_index": np.array(1),
        "deformation": rng.normal(1, 0.2, N_KERNELS),
        "scale_log__": np.array(0.1),
    }
    found = {}
    for name, observation in given.items():
        for key, value in {**mixture.encode(observation), **theta}.items():
            mixture.model.set_data(key, value)
        found[name] = float(density(point))
    plain = make_mixture()
    for key, value in {**plain.encode(values), **theta}.items():
        plain.model.set_data(key, value)
    expected = float(plain.model.compile_logp()(point))
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-12)


def test_curves_may_have_fewer_points_than_the_mixture(rng, without_compiler):
    """Five points have one density, however many others a curve may have."""
    observation = (np.sort(rng.uniform(2, 18, size=5)), rng.uniform(2, 10, size=5))
    found = []
    for most in (5, 12):
        mixture = make_mixture(own_points=most)
        theta = mixture.model_parameters()
        theta["templates"] += np.linspace(0, 5, N_LANDMARKS)
        model = mixture.condition(observation, theta)
        point = {
            "class_index": np.array(1),
            "deformation": np.linspace(0.8, 1.3, N_KERNELS),
            "scale_log__": np.array(0.1),
        }
        found.append(float(model.compile_logp()(point)))
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    # the values at the mixture's own points are then too many, unless some are missing
    few = make_mixture(own_points=5)
    values = np.where(np.arange(8) < 4, 1.0, np.nan)
    assert few.encode(values)["observed_mask"].sum() == 4
    with pytest.raises(ValueError, match="has 8 values; the mixture takes up to 5: make it with"):
        few.encode(AGES)


def test_another_length_is_told_of_own_points():
    with pytest.raises(ValueError, match=r"make the mixture with own_points= and pass \(points"):
        make_mixture().encode(np.ones(5))


def test_the_papers_settings():
    mixture = TemplateMixture.for_curves(np.linspace(2, 18, 31), n_classes=2)
    settings = mixture.settings
    np.testing.assert_allclose(settings.basis.centers[:, 0], np.arange(1.5, 18.6, 0.5))
    assert settings.basis.bandwidth == 0.75
    assert isinstance(settings.deformation, TimeWarp)
    assert settings.deformation.outer == (0.0, 20.0)
    assert settings.scale == (10.0, 10.0)
    assert settings.coefficients == "nonnegative"
    assert mixture.parameters["deformation_variance"].dims == ("class",)


def test_the_bandwidths_table():
    """The three columns of `CurveGrid`, from kernels on a long row of landmarks."""
    landmarks = np.arange(401.0)
    fine = 200 + np.linspace(0, 1, 201)
    signs = (-1.0) ** np.arange(401)
    for c, ripple, wave, condition in (
        (0.75, 0.0078, 0.50, 2.0),
        (1.0, 1.03e-4, 0.17, 5.9),
        (1.5, 4.6e-10, 0.0078, 129),
        (2.0, None, 1.03e-4, 9_660),
    ):
        kernels = np.exp(-np.square((fine[:, None] - landmarks) / c))
        level = kernels.sum(axis=1)
        if ripple is not None:  # at c = 2 it is below the rounding of numbers
            assert np.ptp(level) / 2 / level.mean() == pytest.approx(ripple, rel=0.02)
        assert np.ptp(kernels @ signs) / 2 / level.mean() == pytest.approx(wave, rel=0.02)
        gram = np.exp(-np.square(np.subtract.outer(landmarks, landmarks) / c))
        assert np.linalg.cond(gram) == pytest.approx(condition, rel=0.02)


def test_units_of_age_do_not_matter():
    years, months = CurveGrid(AGES), CurveGrid(12 * AGES)
    np.testing.assert_allclose(months.landmarks, 12 * years.landmarks)
    assert months.bandwidth == pytest.approx(12 * years.bandwidth)


@pytest.mark.parametrize(
    "warp",
    [
        TimeWarp((2.0, 18.0)),
        TimeWarp((0.0, 1.0), n_kernels=6),
        TimeWarp((-3.0, 40.0), n_kernels=40, mean=0.3),
    ],
    ids=["paper", "few kernels", "many kernels"],
)
def test_by_default_clocks_stray_by_a_fortieth_of_the_interval(warp, rng):
    variance = curve_priors(warp).deformation_variance
    begin, end = warp.interval
    middle = warp.evaluate([(begin + end) / 2], warp.mean)
    betas = warp.mean + np.sqrt(variance) * rng.normal(size=(4_000, warp.n_parameters))
    strayed = warp.inverse(middle, betas)[:, 0].std() / (end - begin)
    # Monte Carlo error 1.1 %, and what is left out by taking the warp for linear in β
    assert strayed == pytest.approx(1 / 40, rel=0.08)


@pytest.mark.parametrize(
    ("times_as_far", "n_clocks"), [(0.3, 3), (1.0, 3), (1.6, 5), (3.0, 7), (50.0, 7)]
)
@pytest.mark.parametrize("n_warp_kernels", [6, 20])
def test_searches_start_from_more_clocks_if_the_prior_lets_them_stray_farther(
    times_as_far, n_clocks, n_warp_kernels
):
    held = curve_priors(TimeWarp((2, 18), n_kernels=n_warp_kernels)).deformation_variance
    priors = TemplatePriors().with_deformation_variance(times_as_far**2 * held, weight=200)
    mixture = TemplateMixture.for_curves(AGES, 2, n_warp_kernels=n_warp_kernels, priors=priors)
    slopes = mixture.settings.deformation.slopes
    farthest = 0.2 * (n_clocks // 2)
    np.testing.assert_allclose(np.sort(slopes), np.linspace(-farthest, farthest, n_clocks))
    assert slopes[0] == 0.0
    assert mixture.geometry.starts.shape == (n_clocks, n_warp_kernels + 1)
    for other in (mixture.with_classes(5), cloudpickle.loads(cloudpickle.dumps(mixture))):
        np.testing.assert_array_equal(other.geometry.starts, mixture.geometry.starts)


@pytest.mark.parametrize("covariance", ["scaled", "diagonal", "full"])
@pytest.mark.parametrize("n_warp_kernels", [6, 20, 40])
def test_a_prior_that_says_nothing_of_clocks_adds_no_starts(covariance, n_warp_kernels):
    by_default, weak = (
        TemplateMixture.for_curves(
            AGES, 2, n_warp_kernels=n_warp_kernels, covariance=covariance, priors=priors
        )
        for priors in (None, TemplatePriors(covariance_degrees=100.0))
    )
    np.testing.assert_array_equal(by_default.settings.deformation.slopes, [0.0, 0.2, -0.2])
    np.testing.assert_array_equal(weak.geometry.starts, by_default.geometry.starts)


def test_priors_of_another_type_are_refused():
    with pytest.raises(TypeError, match="priors is a str; pass a TemplatePriors"):
        TemplateMixture.for_curves(AGES, 2, priors="weak")


@pytest.mark.filterwarnings("error")
def test_clocks_whose_middle_stands_still_start_as_others():
    steep = TimeWarp((0, 1), mean=np.linspace(-30, 30, 20))
    np.testing.assert_array_equal(starting_slopes(steep, 0.1), [0.0, 0.2, -0.2])


def test_a_search_finds_a_clock_that_strays_far_if_the_prior_expects_it(without_compiler):
    points = np.linspace(0, 1, 40)
    bump = np.exp(-np.square((points - 0.35) / 0.03))

    def evidence_of(variance, n_searches=None):
        priors = TemplatePriors().with_deformation_variance(variance, weight=200)
        mixture = TemplateMixture.for_curves(points, 1, scale=None, priors=priors)
        basis = mixture.settings.basis.matrix(points[:, None])
        late = np.exp(-np.square((points - 0.65) / 0.03))
        theta = mixture.declared_parameters() | {
            "templates": np.linalg.lstsq(basis, late, rcond=1e-6)[0][None],
            "noise_variance": np.array(0.01),
        }
        rule = Laplace(race=None, n_searches=n_searches)
        e_step = LaplaceGaussian(search=rule).compile(mixture)
        data = {**mixture.encode(bump), **theta}
        return e_step.approximation(data, np.random.default_rng(1)).log_evidence[0]

    assert evidence_of(0.1) > evidence_of(0.1, n_searches=3) + 20.0


def test_the_default_prior_is_worth_as_many_curves_under_every_covariance():
    warp = TimeWarp((2.0, 18.0))
    scaled, diagonal = (curve_priors(warp, each) for each in ("scaled", "diagonal"))
    # weight: 2 (shape + 1) observed coordinates, 20 a curve under a scaled covariance
    assert 2 * (scaled.deformation_shape + 1) == pytest.approx(200 * 20)
    assert 2 * (diagonal.deformation_shape + 1) == pytest.approx(200)
    assert curve_priors(warp, "full").covariance_degrees == 200
    full = TemplateMixture.for_curves(AGES, 2, n_warp_kernels=3, covariance="full")
    assert full.priors.deformation_variance == pytest.approx(
        curve_priors(TimeWarp((2, 18), n_kernels=3)).deformation_variance
    )
    mine = make_mixture(priors=TemplatePriors()).priors
    assert mine == TemplatePriors()


def test_negative_values_are_warned_of_once():
    mixture = make_mixture()
    mixture.encode(np.linspace(8, -0.5, len(AGES)))  # noise
    with pytest.warns(UserWarning, match="values down to -3.*coefficients='real'"):
        mixture.encode(np.linspace(8, -3, len(AGES)))
    mixture.encode(np.linspace(8, -3, len(AGES)))
    make_mixture(coefficients="real").encode(np.linspace(8, -3, len(AGES)))
    strict = make_mixture()
    for _ in range(2):  # as an error it comes as often as it is met
        with pytest.raises(UserWarning, match="values down to -3"), warnings.catch_warnings():
            warnings.simplefilter("error")
            strict.encode(np.linspace(8, -3, len(AGES)))


@pytest.mark.parametrize("start", ["random", "kmeans"])
def test_starts_from_own_points_of_different_ranges(start, rng):
    mixture = make_mixture(own_points=9)
    curves = []
    for level in (2.0, 8.0) * 10:
        ages = np.sort(rng.uniform(*sorted(rng.choice([2.0, 9.0, 18.0], 2, replace=False)), 6))
        curves.append((ages, np.full(6, level)))
    found = mixture.initialize(curves, rng, start)
    assert all(np.isfinite(value).all() for value in found.values())
    if start == "kmeans":
        # values beyond a curve's own ages are missing, not those at its ends: levels are told apart
        levels = np.sort((found["templates"] @ mixture.mean_design().T).mean(axis=1))
        np.testing.assert_allclose(levels, [2.0, 8.0], rtol=0.05)
        np.testing.assert_allclose(found["weights"], 0.5, atol=0.05)


def test_random_starts_of_negative_curves_are_not_all_zero(rng):
    with pytest.warns(UserWarning, match="nonnegative"):
        found = make_mixture().initialize([np.full(len(AGES), -3.0)], rng, "random")
    assert not np.allclose(found["templates"][0], found["templates"][1])


def test_a_tuple_is_not_taken_for_two_curves():
    mixture = make_mixture(own_points=9)
    with pytest.raises(TypeError, match="observations: got a tuple whose first row"):
        list(mixture.iterate((AGES, AGES)))
    assert len(list(mixture.iterate([(AGES, AGES)]))) == 1
    falling = AGES[::-1].copy()
    for two in ([AGES, falling], np.stack([AGES, falling])):
        # the first row could be the points of the second
        with pytest.raises(TypeError, match="whose first row could be the points"):
            list(mixture.iterate(two))
    for two in ([falling, AGES], np.stack([falling, AGES]), [{"points": AGES, "values": AGES}] * 2):
        assert len(list(mixture.iterate(two))) == 2
    # on one grid there are no points of one's own to be taken for values
    assert len(list(make_mixture().iterate(np.stack([AGES, falling])))) == 2
    assert len(list(mixture.iterate({"points": AGES, "values": AGES}))) == 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TemplateMixture.for_curves(AGES[::-1], 2), "does not increase; sort the points"),
        (lambda: TemplateMixture.for_curves([2, 3, 18], 2), "at least four"),
        (lambda: TemplateMixture.for_curves(AGES, 2, interval=(5, 18)), "widen the interval"),
        (lambda: TemplateMixture.for_curves(AGES, 2, interval=(5, 5)), "interval is"),
        (lambda: TemplateMixture.for_curves(AGES, 2, n_landmarks=3), "n_landmarks: got 3"),
        (lambda: TemplateMixture.for_curves(AGES, 2, bandwidth=0), "bandwidth is 0"),
        (lambda: TemplateMixture.for_curves(AGES, 2, n_warp_kernels=1), ": n_kernels: got 1"),
        (lambda: TemplateMixture.for_curves(AGES, 2, warp_mean=[1, 2]), ": mean has shape"),
        (lambda: TemplateMixture.for_curves(AGES, 2, warp_mean="a"), "warp_mean: mean is 'a'"),
        (lambda: TemplateMixture.for_curves(AGES, 2, bandwidth="wide"), "bandwidth is 'wide'"),
        (lambda: TemplateMixture.for_curves(AGES, 2, interval="x"), "interval is 'x'"),
        (lambda: TemplateMixture.for_curves(AGES, 2, scale="a"), "scale is 'a'; give shape"),
        (lambda: TemplateMixture.for_curves(list("abcde"), 2), "points is .*give real numbers"),
        (lambda: TemplateMixture.for_curves([2, 3, np.nan, 5], 2), "not finite; drop"),
        (lambda: OWN.encode(([3.0, 4.0], [1.0])), r"points of shape \(2,\) and values of shape"),
        (lambda: OWN.encode({"points": [3.0, 4.0], "values": [1.0]}), "one value for each point"),
        (lambda: OWN.encode({**ENCODED, "own_points": np.arange(9) + 99.0}), "reach from 99"),
        (lambda: OWN.encode({**ENCODED, "own_points": np.ones(3)}), r"points of shape \(3,\) and"),
        (lambda: make_mixture(coefficients="integer"), "coefficients is 'integer'"),
        (lambda: make_mixture(own_points=0), "own_points: got 0"),
        (lambda: make_mixture(own_points=9, noise_correlation=np.eye(8)), "uncorrelated"),
        (lambda: make_mixture().encode(np.full(8, np.nan)), "all its points missing"),
        (lambda: OWN.encode(np.full(8, np.nan)), "all its points missing"),
        (lambda: OWN.encode(np.zeros((2, 0))), r"observation has shape \(2, 0\)"),
        (lambda: OWN.encode(np.stack([np.arange(3, 13), AGES[0] + np.zeros(10)])), "takes up to 9"),
        (lambda: OWN.encode(np.zeros(5)), r"shape \(5,\); give points above values"),
        (lambda: OWN.encode([[3.0, 2.0], [1.0, 1.0]]), "do not increase; sort them"),
        (lambda: OWN.encode([[3.0, 3.0], [1.0, 1.0]]), "do not increase"),
        (lambda: OWN.encode([[3.0, 21.0], [1.0, 1.0]]), "reach from 3 to 21"),
        (lambda: OWN.encode([[3.0, np.nan], [1.0, 1.0]]), "do not increase"),
        (lambda: OWN.encode([[3.0, 4.0], [1.0, np.inf]]), "infinite"),
        (lambda: OWN.encode({"points": [3.0]}), "give points and values"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_what_is_fixed_for_curves_is_no_option():
    with pytest.raises(TypeError, match="dim_names: the axis of curves is named as"):
        TemplateMixture.for_curves(AGES, 2, dim_names=("x",))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TemplateMixture.for_curves(AGES, 2, smoothness=3), "smoothness: for_curves does"),
        (lambda: TemplateMixture.for_images((5, 5), 2, mask=AGES), "missing with NaN. It takes"),
        (lambda: TemplateMixture.for_images((5, 5), 2, dim_names="xy"), "It takes .*'channels'"),
        (
            lambda: TemplateMixture.for_images((5, 5), 2, own_points=3),
            "own_points: for_images does",
        ),
        (
            lambda: TemplateMixture.for_curves(AGES, 2, k=3),
            r"It takes (?!.*dim_coords).*own_points",
        ),
    ],
)
def test_unknown_options_are_told_what_there_is(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("curves", [np.ones((50, 8)), [(AGES, AGES)] * 50])
def test_curves_in_place_of_points_are_told_of_read_curves(curves):
    with pytest.raises(ValueError, match=r"what datasets\.read_curves makes") as raised:
        TemplateMixture.for_curves(curves, 2)
    assert len(str(raised.value)) < 400


OWN = make_mixture(own_points=9)
ENCODED = OWN.encode(([3.0, 4.0], [1.0, 2.0]))
