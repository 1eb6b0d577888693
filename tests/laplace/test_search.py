"""Cooling, curvature that is written out, and where damped steps go; against grids and by hand."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.prior_covariance import PriorCovariance
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.geometry import Curvature, LatentGeometry
from pymc_mcoem.em.esteps.class_fits import family_density
from pymc_mcoem.laplace.modes import ModeStatus
from pymc_mcoem.laplace.schedule import Cooling, Race
from pymc_mcoem.laplace.search import ModeSearch
from pymc_mcoem.templates import TemplateMixture, TemplatePriors
from tests.helpers.representatives import by_default

GRID = np.linspace(-12, 12, 200_001)


# first, for `module_without_compiler` holds from where it is first used
@pytest.mark.parametrize("backend", by_default(["numba", "jax", "cvm"], {"numba"}))
def test_image_searches_end_at_modes_in_every_back_end(backend, run_apart, c_compiler):
    """Of a small mixture: gradients vanish, and cooled searches are as high as cold ones."""
    run_apart(search_images, backend)


def search_images(backend):
    """Search for the modes of a small image; see the test above."""
    rng = np.random.default_rng(2)
    mixture = TemplateMixture.for_images(
        (6, 6), n_classes=3, n_landmarks=3, priors=TemplatePriors()
    )
    theta = mixture.model_parameters()
    theta["templates"] = rng.normal(size=theta["templates"].shape)
    theta["noise_variance"] = np.array(0.05)
    data = {**theta, **mixture.encode(rng.normal(size=(6, 6)))}
    density, geometry = family_density(mixture), mixture.geometry
    settings = {
        "curvature": geometry.curvature,
        "noise_variance": geometry.noise_variance,
        "max_iterations": 200,
        "tolerance": 1e-10,
        "mode": backend.upper(),
    }
    cooled = ModeSearch(density, cooling=Cooling(), **settings)(mixture.geometry.starts, data)
    cold = ModeSearch(density, **settings)(mixture.geometry.starts, data)
    assert set(cooled.status) | set(cold.status) == {ModeStatus.CONVERGED}
    assert cooled.gradient_norm.max() < 1e-3
    assert cold.gradient_norm.max() < 1e-3
    assert cooled.log_density.sum() >= cold.log_density.sum() - 1.0
    # classes step together: each goes where it would go alone
    alone = [
        ModeSearch(density, **settings)(mixture.geometry.starts, data, classes=np.array([k]))
        for k in range(3)
    ]
    np.testing.assert_array_equal(cold.n_iterations, [one.n_iterations[0] for one in alone])
    np.testing.assert_allclose(cold.log_density, [one.log_density[0] for one in alone], rtol=1e-12)
    np.testing.assert_allclose(cold.mean, [one.mean[0] for one in alone], rtol=0, atol=1e-7)


@pytest.fixture(scope="module")
def wavy(module_without_compiler):
    """Two classes of a density with ten modes, of which noise thirty times larger leaves one.

    The mean is x + sin(5x/2)/2: its wiggles matter as long as the noise is smaller than they are.
    """
    with pm.Model() as model:
        noise = pm.Data("noise", 0.3)
        y = pm.Data("y", 3.0)
        k = pm.Categorical("k", [0.6, 0.4])
        x = pm.Normal("x", 0.0, 2.0)
        mean = x + 0.5 * pt.sin(2.5 * x) + 1.5 * k
        pm.Normal("seen", mean, pt.sqrt(noise), observed=y)
    slope, bend = 1.0 + 1.25 * pt.cos(2.5 * x), -3.125 * pt.sin(2.5 * x)
    share = pt.scalar("share", dtype="float64")
    matrix = (0.25 + (slope**2 - share * (y - mean) * bend) / noise).reshape((1, 1))
    return ClassDensity(model, k, [x]), Curvature(matrix, share)


def height(x, k, noise=0.3, y=3.0):
    mean = x + 0.5 * np.sin(2.5 * x) + 1.5 * k
    prior = -0.5 * x**2 / 4 - 0.5 * np.log(2 * np.pi * 4) + np.log([0.6, 0.4][k])
    return prior - 0.5 * (y - mean) ** 2 / noise - 0.5 * np.log(2 * np.pi * noise)


def gauss_newton(x):
    return 0.25 + (1 + 1.25 * np.cos(2.5 * x)) ** 2 / 0.3


@pytest.mark.parametrize("start", [-6.0, -2.0, 0.3, 5.0])
def test_a_written_out_curvature_finds_the_same_modes_with_gauss_newtons_precision(wavy, start):
    density, curvature = wavy
    found = ModeSearch(density, curvature=curvature, tolerance=1e-14)([[start]], {})
    plain = ModeSearch(density, tolerance=1e-14)([[start]], {})
    assert found.status == (ModeStatus.CONVERGED,) * 2
    np.testing.assert_allclose(found.mean, plain.mean, atol=1e-6)
    for k in (0, 1):
        x = found.mean[k, 0]
        assert found.log_density[k] == pytest.approx(height(x, k))
        assert found.precision[k, 0, 0] == pytest.approx(gauss_newton(x), rel=1e-9)


def n_modes(heights):
    inner = heights[1:-1]
    return int(((inner > heights[:-2]) & (inner > heights[2:])).sum())


def test_a_cooled_search_ends_in_one_mode_wherever_it_starts(wavy):
    density, curvature = wavy
    settings = {"curvature": curvature, "max_iterations": 100}
    cold = ModeSearch(density, **settings)
    slowly = Cooling((30.0, 5.0), n_iterations=40)
    cooled = ModeSearch(density, **settings, noise_variance="noise", cooling=slowly)
    assert min(n_modes(height(GRID, k)) for k in (0, 1)) > 5
    assert [n_modes(height(GRID, k, noise=30 * 0.3)) for k in (0, 1)] == [1, 1]
    starts = np.linspace(-9, 9, 7)
    found = [cooled([[start]], {}) for start in starts]
    without = [cold([[start]], {}) for start in starts]
    for k in (0, 1):
        positions = np.array([each.mean[k, 0] for each in found])
        np.testing.assert_allclose(positions, positions[0], atol=1e-3)
        # modes and heights are of the density itself, not of a hotter one
        assert found[0].status[k] is ModeStatus.CONVERGED
        assert found[0].log_density[k] == pytest.approx(height(positions[0], k))
        # searches without end wherever they begin, on average far below
        assert np.ptp([each.mean[k, 0] for each in without]) > 5.0
        behind = found[0].log_density[k] - np.mean([each.log_density[k] for each in without])
        assert behind > 10.0


def test_without_a_name_for_the_noise_nothing_is_cooled(wavy):
    density, curvature = wavy
    plain = ModeSearch(density, curvature=curvature)
    search = ModeSearch(density, curvature=curvature, cooling=Cooling())
    assert search.cooling is None
    np.testing.assert_array_equal(search([[5.0]], {}).mean, plain([[5.0]], {}).mean)


def test_iterations_of_all_stages_are_counted(wavy):
    density, curvature = wavy
    search = ModeSearch(
        density,
        curvature=curvature,
        noise_variance="noise",
        cooling=Cooling((50.0, 10.0, 2.0), n_iterations=3),
        max_iterations=4,
        tolerance=1e-300,
    )
    assert (search([[4.0]], {}).n_iterations == 3 * 3 + 4).all()


def test_a_class_that_was_left_behind_hot_is_described_as_it_is_cold(wavy):
    density, curvature = wavy
    search = ModeSearch(
        density,
        curvature=curvature,
        noise_variance="noise",
        cooling=Cooling((30.0,), n_iterations=40),
        race=Race(n_iterations=2, margins=(0.01,)),
    )
    found = search([[-6.0], [4.0]], {})
    assert ModeStatus.OUT_OF_RACE in found.status
    for k in (0, 1):
        x = found.mean[k, 0]
        assert found.log_density[k] == pytest.approx(height(x, k))
        assert found.precision[k, 0, 0] == pytest.approx(gauss_newton(x), rel=1e-9)


def test_the_first_start_cools_and_the_others_begin_as_they_are(wavy):
    density, curvature = wavy
    settings = {"curvature": curvature, "tolerance": 1e-12, "max_iterations": 200}
    cold = ModeSearch(density, **settings)
    settings |= {"noise_variance": "noise", "cooling": Cooling((30.0, 5.0), n_iterations=40)}
    for race in (None, Race(4, (np.inf,))):
        search = ModeSearch(density, **settings, race=race)
        for starts in ([2.0, -1.0, 5.0], [-8.0, 2.0, 0.5]):
            found = search(np.array(starts)[:, None], {})
            parts = [search([starts[:1]], {}), *(cold([[start]], {}) for start in starts[1:])]
            heights = np.array([part.log_density for part in parts])
            if race is None:
                np.testing.assert_allclose(found.log_density, heights.max(axis=0), rtol=1e-9)
            else:  # which start is ahead after the race need not be the one that ends highest
                assert all(
                    np.isclose(found.log_density[k], heights[:, k], rtol=1e-9).any() for k in (0, 1)
                )


def test_a_start_that_is_a_mode_already_is_one(wavy):
    density, curvature = wavy
    for settings in (
        {},
        {"race": Race()},
        {"noise_variance": "noise", "cooling": Cooling()},
        {"noise_variance": "noise", "cooling": Cooling(), "race": Race()},
    ):
        search = ModeSearch(density, curvature=curvature, **settings)
        modes = search([[0.3]], {})
        again = search(modes.mean[:, None], {})
        assert again.status == (ModeStatus.CONVERGED,) * 2, settings
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=2)
    found = ModeSearch(ClassDensity(model, None, [x]))([[0.0, 0.0]], {})
    assert found.status == (ModeStatus.CONVERGED,)
    assert found.n_iterations[0] < 8


def test_a_race_of_one_iteration_believes_what_a_step_promises():
    """A class whose start is far from its mode is not judged by where it starts."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 0.0, 100.0)
        pm.Normal("y", x - 20.0 * k, 0.5, observed=0.1)
    search = ModeSearch(ClassDensity(model, k, [x]), race=Race(1, (100.0,)))
    assert search([[0.0]], {}).status == (ModeStatus.CONVERGED,) * 2


def test_a_class_without_density_is_soon_given_up():
    with pm.Model() as model:
        k = pm.Categorical("k", [1.0, 0.0])
        x = pm.Normal("x", 1.0 * k, 1.0)
        pm.Normal("y", x, 1.0, observed=0.5)
    found = ModeSearch(ClassDensity(model, k, [x]))([[0.0]], {})
    assert found.status == (ModeStatus.CONVERGED, ModeStatus.NO_DENSITY)
    assert found.n_iterations[1] < 20


def test_a_noise_that_the_model_does_not_have_is_refused(wavy):
    density, _ = wavy
    for name in ("nose", "x"):  # a variable is no data either
        with pytest.raises(ValueError, match=f"noise_variance: got '{name}', which is no pm.Data"):
            ModeSearch(density, noise_variance=name, cooling=Cooling())


def test_who_was_left_behind_hot_does_not_judge_the_others():
    """Under much noise a class that fits badly may have a higher density than any has without."""
    with pm.Model() as model:
        noise = pm.Data("noise", 0.01)
        k = pm.Categorical("k", [0.4, 0.3, 0.3])
        x = pm.Normal("x", 0.0, 1.0)
        offset = pt.as_tensor_variable(np.array([0.0, 0.1, 40.0]))[k]
        values = np.tile([6.0, -6.0], 20)
        pm.Normal("y", x + offset, pt.sqrt(noise), observed=values)
    search = ModeSearch(
        ClassDensity(model, k, [x]),
        noise_variance="noise",
        cooling=Cooling((30.0,), n_iterations=10),
        race=Race(n_iterations=4, margins=(50.0,)),
    )
    found = search([[0.0]], {})
    assert found.status == (ModeStatus.CONVERGED, ModeStatus.CONVERGED, ModeStatus.OUT_OF_RACE)
    # what makes it a trap: hot, with x moved all the way, the last class is above the others cold
    hot = stats.norm(0, np.sqrt(0.3)).logpdf(values).sum() + stats.norm.logpdf(40.0)
    assert found.log_density[:2].max() < hot - 10_000


def test_data_that_are_inputs_are_cooled_too(wavy):
    density, curvature = wavy
    inputs = ClassDensity(density.model, density.class_index, density.latents, ["noise", "y"])
    settings = {"curvature": curvature, "noise_variance": "noise", "cooling": Cooling()}
    of_inputs = ModeSearch(inputs, **settings)
    shared = ModeSearch(density, **settings)
    data = {"noise": np.array(0.3), "y": np.array(3.0)}
    found, expected = of_inputs([[7.0]], data), shared([[7.0]], {})
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    wider = of_inputs([[7.0]], {**data, "noise": np.array(1.2)})
    assert wider.log_density[0] == pytest.approx(height(wider.mean[0, 0], 0, noise=1.2))


def test_a_search_leaves_what_is_nearly_a_saddle():
    """Newton's step alone would go to the saddle at the origin; damping must turn it away."""
    with pm.Model() as model:
        x = pm.Flat("x", shape=2)
        pm.Potential("two", -((x[0] ** 2 - 1.0) ** 2) - x[1] ** 2)
    search = ModeSearch(ClassDensity(model, None, [x]), max_iterations=100)
    for start in ([1e-3, 0.5], [-1e-3, -3.0], [0.2, 0.0]):
        found = search([start], {})
        assert found.status == (ModeStatus.CONVERGED,)
        np.testing.assert_allclose(found.mean, [[np.sign(start[0]), 0.0]], atol=1e-4)


def test_rules_cool_unless_they_are_told_not_to(wavy, rng):
    density, curvature = wavy
    geometry = LatentGeometry(
        starts=np.array([[-8.0]]), curvature=curvature, noise_variance="noise"
    )
    slowly = Cooling((30.0, 5.0), n_iterations=40)
    for rule in (
        Laplace(race=None, cooling=slowly),
        PriorCovariance(n_prior_draws=50, cooling=slowly),
    ):
        warm = rule.compile(density, geometry)({}, rng)
        cold = replace(rule, cooling=None).compile(density, geometry)({}, rng)
        for k in (0, 1):
            assert height(warm.mean[k, 0], k) > height(cold.mean[k, 0], k) + 5.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperatures": ()}, r"temperatures: got \(\); give at least one"),
        ({"temperatures": (5.0, 30.0)}, "above 1 and falling"),
        ({"temperatures": (5.0, 1.0)}, "above 1 and falling"),
        ({"temperatures": (float("nan"),)}, "above 1 and falling"),
        ({"n_iterations": 0}, "n_iterations: got 0; give at least 1"),
    ],
)
def test_settings_of_cooling_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Cooling(**settings)
