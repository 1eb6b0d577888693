"""The one log-density that everything reads, against oracles that know nothing of PyMC."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.density.class_density import ClassDensity, as_argument
from tests.helpers.models import N_CLASSES, ScaledMixture, SkewedMixture

pytestmark = pytest.mark.usefixtures("module_without_compiler")


def density_of(family):
    """Return a family's density with all its data as inputs, and its data in that order."""
    names = (*family.parameter_names, *family.observation)
    density = ClassDensity(family.model, family.class_index, family.latents, inputs=names)
    return density, [np.asarray(family.values[name], dtype=np.float64) for name in names]


def compile_on(density, build):
    """Compile an expression of (class index, position) with the density's data."""
    k = pt.scalar("k", dtype="int64")
    x = pt.vector("x", shape=(density.n_latents,))
    return pytensor.function(
        [k, x, *density.data_inputs.values(), *density.other_values],
        build(k, x),
        on_unused_input="ignore",
    )


@pytest.fixture(scope="module", params=[SkewedMixture, ScaledMixture])
def family(request, module_without_compiler):
    return request.param()


@pytest.fixture(scope="module")
def functions(family):
    """Return log-density, gradient and negative Hessian as functions of (class, position)."""
    density, data = density_of(family)
    value, gradient, curvature = (
        compile_on(density, build)
        for build in (density.log_density, density.gradient, density.negative_hessian)
    )
    return tuple(lambda k, x, f=f: f(np.int64(k), x, *data) for f in (value, gradient, curvature))


def random_positions(rng, family, n=5):
    low, high = family.bounds.T
    return rng.uniform(low / 2, high / 2, size=(n, family.n_latents))


def test_log_density_is_that_of_the_oracle(family, functions, rng):
    for k in range(N_CLASSES):
        for x in random_positions(rng, family):
            expected = family.log_density(k, x)
            assert functions[0](k, x) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_log_density_is_that_of_pymc(family, functions, rng):
    logp = family.model.compile_logp(jacobian=True)
    density, _ = density_of(family)
    for x in random_positions(rng, family, n=2):
        point = {"class_index": np.asarray(2), **density.unravel(x)}
        assert functions[0](2, x) == pytest.approx(float(logp(point)), rel=1e-12)


def test_gradient_is_that_of_finite_differences(family, functions, rng):
    # Central differences: h² f''' / 6 of truncation and 1e-16 |f| / h of rounding.
    h = 1e-5
    for x in random_positions(rng, family, n=2):
        for k in range(N_CLASSES):
            steps = h * np.eye(family.n_latents)
            expected = (family.log_density(k, x + steps) - family.log_density(k, x - steps)) / (
                2 * h
            )
            np.testing.assert_allclose(functions[1](k, x), expected, rtol=1e-6, atol=1e-6)


def test_curvature_is_that_of_finite_differences(family, functions, rng):
    h = 1e-5
    _, gradient, curvature = functions
    for x in random_positions(rng, family, n=2):
        found = curvature(1, x)
        expected = [
            (gradient(1, x - step) - gradient(1, x + step)) / (2 * h)
            for step in h * np.eye(family.n_latents)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found, found.T, rtol=1e-12, atol=1e-12)


def test_data_are_inputs_of_density_and_gradient(rng):
    family = SkewedMixture()
    density, _ = density_of(family)
    value = compile_on(density, density.log_density)
    gradient = compile_on(density, density.gradient)
    changed = SkewedMixture()
    changed.model["value"].set_value(-0.7)
    changed.model["weights"].set_value(np.array([0.1, 0.1, 0.8]))
    changed.model["noise"].set_value(0.3)
    data = [np.asarray(changed.values[name]) for name in density.data_inputs]
    x = np.array([0.4])
    assert value(np.int64(1), x, *data) == pytest.approx(changed.log_density(1, x), rel=1e-12)
    h = 1e-6
    slope = (changed.log_density(1, x + h) - changed.log_density(1, x - h)) / (2 * h)
    assert gradient(np.int64(1), x, *data)[0] == pytest.approx(slope, rel=1e-6)


def test_data_that_are_not_inputs_stay_the_models_own():
    family = SkewedMixture()
    density = ClassDensity(family.model, family.class_index, family.latents)
    value = compile_on(density, density.log_density)
    x = np.array([0.1])
    before = value(np.int64(0), x)
    family.model["value"].set_value(3.0)
    assert value(np.int64(0), x) == pytest.approx(family.log_density(0, x), rel=1e-12)
    assert value(np.int64(0), x) != before


def test_arguments_are_in_the_inputs_order_and_layout():
    family = ScaledMixture()
    density, data = density_of(family)
    given = {name: np.asfortranarray(value) for name, value in family.values.items()}
    for value in given.values():
        value.setflags(write=False)
    found = density.arguments(given | {"unknown": np.zeros(3)})
    for argument, expected in zip(found, data, strict=True):
        assert argument.flags.carray
        np.testing.assert_array_equal(argument, expected)


def test_an_argument_is_copied_only_where_it_has_to_be():
    fine = np.arange(6.0).reshape(2, 3)
    assert as_argument(fine) is fine
    assert as_argument(fine, np.int64).dtype == np.int64
    for awkward in (fine.T, fine[:, ::2], np.broadcast_to(1.0, (2, 3)), [[1, 2], [3, 4]], 2.0):
        found = as_argument(awkward)
        assert found.flags.carray
        np.testing.assert_array_equal(found, awkward)


def test_expressions_are_placed_on_the_natural_scale(rng):
    family = ScaledMixture()
    density, data = density_of(family)
    names = list(family.statistics)
    function = compile_on(
        density, lambda k, x: density.place([family.statistics[name] for name in names], k, x)
    )
    x = random_positions(rng, family, n=1)[0]
    expected = family.statistics_of(x)
    for name, found in zip(names, function(np.int64(0), x, *data), strict=True):
        np.testing.assert_allclose(found, expected[name], rtol=1e-12)


def test_one_expression_is_placed_as_one():
    family = ScaledMixture()
    density, _ = density_of(family)
    placed = density.place(family.statistics["scale"], 0, np.array([0.0, 0.0, 1.0]))
    assert float(placed.eval()) == pytest.approx(np.e, rel=1e-12)


@pytest.fixture(scope="module")
def shaped_model(module_without_compiler):
    """A model with latents of every shape, and variables that are none of the kernel's."""
    with pm.Model() as model:
        k = pm.Categorical("k", logit_p=np.zeros(4))
        other = pm.Gamma("other", 2.0, 1.0)
        pm.Normal("apart", other, 1.0)
        matrix = pm.Normal("matrix", 1.0 * k, 1.0, shape=(2, 2))
        simplex = pm.Dirichlet("simplex", np.ones(3))
        positive = pm.HalfNormal("positive", other)
        pm.Normal("y", matrix.sum() + positive + simplex[0], 1.0, observed=1.0)
    return model


@pytest.fixture(scope="module")
def shaped(shaped_model):
    model = shaped_model
    names = ("matrix", "simplex", "positive")
    return ClassDensity(model, model["k"], [model[name] for name in names])


def test_sizes_are_those_of_the_transformed_values(shaped):
    # A simplex of three has two free values.
    assert (shaped.n_classes, shaped.n_latents) == (4, 4 + 2 + 1)


def test_ravel_and_unravel_are_inverse(shaped, rng):
    x = rng.normal(size=shaped.n_latents)
    point = shaped.unravel(x)
    assert {name: value.shape for name, value in point.items()} == {
        "matrix": (2, 2),
        "simplex_simplex__": (2,),
        "positive_log__": (),
    }
    np.testing.assert_array_equal(shaped.ravel(point), x)
    np.testing.assert_array_equal(point["matrix"].ravel(), x[:4])


def test_other_variables_are_inputs(shaped_model, shaped, rng):
    assert [value.name for value in shaped.other_values] == ["other_log__", "apart"]
    function = compile_on(shaped, shaped.log_density)
    logp = shaped_model.compile_logp(jacobian=True)

    def differences(other, apart):
        others = [np.asarray(other), np.asarray(apart)]
        rest = {"other_log__": others[0], "apart": others[1]}
        points = [shaped.unravel(x) | {"k": np.asarray(k)} | rest for k, x in starts]
        ours = [float(function(np.int64(k), x, *others)) for k, x in starts]
        return np.diff(ours), np.diff([float(logp(point)) for point in points])

    starts = [(k, rng.normal(size=shaped.n_latents)) for k in (0, 3, 1)]
    # Up to a constant, since the terms that the kernel does not change are left out …
    for values in ((0.0, 0.0), (-0.5, 2.0)):
        ours, theirs = differences(*values)
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    # … and only those: the scale of `positive` does depend on `other`.
    assert not np.allclose(differences(0.0, 0.0)[0], differences(-0.5, 0.0)[0])
    np.testing.assert_array_equal(differences(0.0, 0.0)[0], differences(0.0, 5.0)[0])


def test_a_model_may_have_one_class():
    with pm.Model() as model:
        # PyTensor holds a literal 2.0, and its logarithm, in single precision.
        x = pm.Normal("x", 1.0, np.float64(2.0))
    density = ClassDensity(model, None, [x])
    assert density.n_classes == 1
    expected = -0.5 * 0.25 - np.log(2) - 0.5 * np.log(2 * np.pi)
    assert float(density.log_density(0, [0.0]).eval()) == pytest.approx(expected, rel=1e-12)


def angles(shape=None, **options):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.7, 0.3], shape=shape)
        x = pm.VonMises("x", 1.0 * k, 2.0, shape=shape, **options)
        pm.Normal("y", pt.cos(x), 0.5, observed=np.ones(shape or ()))
    return model, k, x


@pytest.mark.parametrize("shape", [None, 3], ids=["single", "plate"])
def test_angles_in_a_chain_of_transforms_are_refused(shape):
    transforms = pm.distributions.transforms
    model, k, _ = angles(shape, default_transform=transforms.Chain([transforms.circular]))
    with model, pytest.raises(ValueError, match=r"vars: \['x'\] are angles .* in a chain"):
        CarlinChib()
    with model, pytest.raises(ValueError, match=r"there are no latents|leave it to pm.Cat"):
        CarlinChib([k])  # it may be left to another step


def test_families_refuse_angles():
    """Their searches and bursts draw no turns."""
    model, k, x = angles()
    with pytest.raises(ValueError, match=r"vars: \['x'\] .* families and Laplace's"):
        ClassDensity(model, k, [x])


@pytest.mark.parametrize("center", [0.0, 1.0, -3.0])
def test_an_angle_has_the_same_integral_on_the_line_as_on_the_circle(center):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.7, 0.3])
        x = pm.VonMises("x", center, 0.5)
        pm.Potential("y", (1.0 + k) * pt.sin(x))
    density = ClassDensity(model, k, [x], turns=True)
    density.angle_centers.set_value([[center], [center + 1.0]])
    function = compile_on(density, density.log_density)
    line, circle = np.linspace(-16, 16, 401), np.linspace(-np.pi, np.pi, 401)
    for j, weight in enumerate([0.7, 0.3]):
        on_line = np.trapezoid(np.exp([function(j, [each]) for each in line]), line)
        on_circle = stats.vonmises.pdf(circle, 0.5, loc=center) * np.exp((1 + j) * np.sin(circle))
        assert on_line == pytest.approx(weight * np.trapezoid(on_circle, circle), rel=1e-9)


def test_angles_on_an_interval_are_exact():
    model, k, x = angles(default_transform=pm.distributions.transforms.Interval(-np.pi, np.pi))
    density = ClassDensity(model, k, [x])
    function = compile_on(density, density.log_density)
    raw = np.linspace(-40.0, 40.0, 801)
    mass = [np.exp([function(np.int64(j), [z]) for z in raw]).sum() * 0.1 for j in range(2)]
    angle = np.linspace(-np.pi, np.pi, 20_001)
    seen = stats.norm.pdf(1.0, np.cos(angle), 0.5)
    exact = [
        np.trapezoid(w * stats.vonmises.pdf(angle, 2.0, loc=m) * seen, angle)
        for w, m in ((0.7, 0.0), (0.3, 1.0))
    ]
    np.testing.assert_allclose(mass, exact, rtol=1e-5)
