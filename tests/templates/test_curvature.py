"""Second derivatives that are written out, against automatic differentiation."""

from functools import cache
from itertools import product

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_mcoem.em.esteps.class_fits import family_density
from pymc_mcoem.templates import (
    Deformation,
    DisplacementField,
    GaussianBasis,
    RigidMotion,
    TemplateMixture,
    TimeWarp,
)
from pymc_mcoem.templates.warps.deformations import SumOfDeformations
from tests.helpers.representatives import by_default

SIDE, N_CLASSES = 5, 3
AXES = [np.linspace(-1, 1, SIDE)] * 2
POINTS = np.stack([part.ravel() for part in np.meshgrid(*AXES, indexing="ij")], axis=1)
SCATTERED = np.random.default_rng(4).uniform(-1, 1, size=(7, 2))
UNEVEN = [np.array([-1.0, -0.7, 0.1, 1.0]), np.array([-1.0, 0.4, 0.9])]
AGES = np.array([1.0, 3.0, 4.5, 8.0, 13.0, 18.0])


def images(**options):
    return TemplateMixture.for_images((SIDE, SIDE), N_CLASSES, n_landmarks=2, **options)


def curves(**options):
    return TemplateMixture.for_curves(
        AGES, N_CLASSES, n_landmarks=6, n_warp_kernels=5, coefficients="real", **options
    )


def mixture_of(deformation, basis=None, points=POINTS, **options):
    basis = GaussianBasis.regular(AXES, bandwidth=0.5) if basis is None else basis
    return TemplateMixture(points, basis, deformation, N_CLASSES, **options)


def correlation(n_points):
    """Return the correlation of noise that halves from a point to the next."""
    return 0.5 ** np.abs(np.subtract.outer(np.arange(n_points), np.arange(n_points)))


def field(landmarks=POINTS[::6], correlation=0.0):
    return DisplacementField(landmarks, width=0.6, correlation=correlation)


class Turned(RigidMotion):
    """With second derivatives of its own, and what joins others left to its parent."""

    def warped(self, points, beta):
        return super().warped(points, beta)[::-1]

    def jacobian(self, points, beta, gradient):
        return super().jacobian(points, beta, pt.as_tensor_variable(gradient)[:, ::-1])

    def derivatives(self, points, beta):
        return super().derivatives(points, beta)[::-1]

    def second_derivatives(self, points, beta, slopes, bends):
        swapped = [row[::-1] for row in bends[::-1]]
        return super().second_derivatives(points, beta, slopes[::-1], swapped)


class Joining(Turned):
    """That says that what joins others is made of its derivatives."""

    warped, derivatives = Turned.warped, Turned.derivatives
    second_derivatives, jacobian = Turned.second_derivatives, Turned.jacobian
    cross_derivatives = Deformation.cross_derivatives


class Mirrored:
    """Makes a warp one of its own, of which it does not say more than it must."""

    def warped(self, points, beta):
        first, second = super().warped(points, beta)
        return [-first, second]

    def jacobian(self, points, beta, gradient):
        gradient = pt.as_tensor_variable(gradient) * np.array([-1.0, 1.0])
        return super().jacobian(points, beta, gradient)


class MirroredMotion(Mirrored, RigidMotion):
    """Whose second derivatives are not its parent's."""


class MirroredField(Mirrored, DisplacementField):
    """Whose products with its derivatives are not its parent's."""


MIXTURES = {
    "images": images,
    "scale": lambda: images(scale=(10.0, 8.0)),
    "diagonal": lambda: images(covariance="diagonal"),
    "full": lambda: images(covariance="full"),
    "noise-class": lambda: images(noise="class"),
    "rigid": lambda: mixture_of(RigidMotion(variance=0.1)),
    "landmarks-anywhere": lambda: mixture_of(field()),
    "points-anywhere": lambda: mixture_of(RigidMotion() + field(), points=SCATTERED),
    "field-first": lambda: mixture_of(field() + RigidMotion()),
    "two-fields": lambda: mixture_of(field() + field(SCATTERED) + RigidMotion()),
    "kernels-anywhere": lambda: mixture_of(RigidMotion(), GaussianBasis(SCATTERED, 0.5)),
    "uneven-kernels": lambda: mixture_of(RigidMotion(), GaussianBasis.regular(UNEVEN, 0.6)),
    "line": lambda: mixture_of(
        DisplacementField([2.0, 9.0, 15.0], width=4.0),
        GaussianBasis.regular([[0.0, 5.0, 9.0, 18.0]], 4.0),
        AGES[:, None],
    ),
    "clock": lambda: mixture_of(
        TimeWarp((0, 20), n_kernels=5), GaussianBasis(np.linspace(0, 20, 6), 4.0), AGES[:, None]
    ),
    "curves": lambda: curves(),
    "curves-scale": lambda: curves(scale=(10.0, 10.0)),
    "own-points": lambda: curves(own_points=8),
    "own-points-channels": lambda: curves(own_points=8, channels=2),
    "correlated": lambda: images(noise_correlation=correlation(SIDE**2)),
    "correlated-curves-scale": lambda: curves(
        scale=(10.0, 10.0), noise_correlation=correlation(len(AGES))
    ),
    "correlated-own-warp": lambda: mixture_of(
        Turned(), scale=(10.0, 8.0), noise_correlation=correlation(SIDE**2)
    ),
    "own-warp": lambda: mixture_of(Turned()),
    "own-joins": lambda: mixture_of(Joining() + field()),
}


def at_random(mixture, rng):
    """Return an observation with gaps, θ, and latents away from their means."""
    model = mixture.model
    shape = model["observed_values"].get_value().shape
    theta = mixture.model_parameters()
    theta["templates"] = rng.normal(size=theta["templates"].shape)
    theta["noise_variance"] = 0.3 * np.ones_like(theta["noise_variance"])
    values = rng.normal(size=shape)
    values[rng.random(size=shape) < 0.2] = np.nan
    observation = values
    if "own_points" in mixture.observation:
        observation = (np.sort(rng.uniform(1, 18, size=len(values))), values)
    data = {**theta, **mixture.encode(observation)}
    start = mixture.geometry.starts[0]
    return data, start + 0.2 * rng.normal(size=start.size)


@cache
def compiled(name, mode):
    """Return a mixture, its density, and a function of class, latents, share and data.

    Its values are the curvature, Gauss and Newton's matrix, the Hessian with its sign turned, and
    the prior precision.
    """
    mixture = MIXTURES[name]()
    density = family_density(mixture)
    k = pt.scalar("k", dtype="int64")
    x = pt.tensor("x", dtype="float64", shape=(density.n_latents,))
    share = mixture.geometry.curvature.residual_share
    function = pytensor.function(
        [k, x, share, *density.data_inputs.values()],
        [
            density.place(mixture.geometry.curvature.matrix, k, x),
            density.place(mixture.geometry.gauss_newton, k, x),
            density.negative_hessian(k, x),
            density.place(mixture.geometry.prior_precision, k, x),
        ],
        mode=mode,
        on_unused_input="ignore",
    )
    return mixture, density, function


#: Between them all that the curvature has a term for.
BY_DEFAULT = {
    "scale",
    "full",
    "noise-class",
    "field-first",
    "points-anywhere",
    "uneven-kernels",
    "own-points",
    "correlated-curves-scale",
    "correlated-own-warp",
    "own-joins",
}


# in numba one, for it takes half a minute to compile each
@pytest.mark.parametrize(
    ("name", "mode"),
    by_default(
        [*product(MIXTURES, ["FAST_COMPILE"]), ("images", "NUMBA")],
        set(product(BY_DEFAULT, ["FAST_COMPILE"])),
    ),
)
def test_the_curvature_is_the_hessian_and_without_residuals_gauss_newtons(name, mode, rng):
    mixture, density, function = compiled(name, mode)
    data, position = at_random(mixture, rng)
    arguments = density.arguments(data)
    for index in (0, 2):
        exact, approximate, expected, _ = function(index, position, 1.0, *arguments)
        without = function(index, position, 0.0, *arguments)[0]
        size = np.abs(expected).max()
        np.testing.assert_allclose(exact, expected, rtol=0, atol=1e-10 * size)
        np.testing.assert_allclose(without, approximate, rtol=0, atol=1e-10 * size)
        # and the two differ, or neither comparison would say anything
        assert np.abs(exact - approximate).max() > 1e-3 * size


def test_gauss_and_newtons_matrix_is_that_of_a_warps_own_jacobian(rng):
    warp = MirroredField(POINTS[::6], width=0.6, correlation=0.0)
    mixture = mixture_of(RigidMotion() + warp)
    assert mixture.geometry.curvature is None
    density = family_density(mixture)
    data, position = at_random(mixture, rng)
    k, x = pt.constant(0), pt.constant(position)
    beta = pt.constant(position)
    coordinates = mixture.settings.deformation.coordinates(mixture.settings.points, beta)
    mean = mixture.settings.basis.evaluate(coordinates, data["templates"][0])
    slopes = pt.jacobian(mean, beta).eval(mode="FAST_COMPILE")
    seen = data["observed_mask"].ravel()
    expected = (slopes * seen[:, None]).T @ slopes / data["noise_variance"]
    found = density.place(mixture.geometry.gauss_newton - mixture.geometry.prior_precision, k, x)
    found = pytensor.function(
        list(density.data_inputs.values()), found, mode="FAST_COMPILE", on_unused_input="ignore"
    )(*density.arguments(data))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_where_it_is_not_known_there_is_none():
    class Shift(Deformation):
        """A user's own, that says no more than it must."""

        n_dims, labels = 2, ("first", "second")

        def __init__(self):
            self.mean, self.covariance = np.zeros(2), np.eye(2)
            self.learned = np.ones(2, dtype=bool)

        def warped(self, points, beta):
            return [points[:, axis] + beta[axis] for axis in (0, 1)]

        def jacobian(self, points, beta, gradient):
            return pt.as_tensor_variable(gradient).T

    class Odd(SumOfDeformations):
        """A sum of its own."""

        def warped(self, points, beta):
            return super().warped(points, beta)[::-1]

    class Halved(GaussianBasis):
        """Values of its own."""

        def evaluate(self, points, coefficients):
            return 0.5 * super().evaluate(points, coefficients)

    for deformation in (
        Shift(),
        RigidMotion() + Shift(),
        Shift() + RigidMotion(),
        MirroredMotion(),
        MirroredMotion() + field(),
        Turned() + field(),
        field() + Turned(),
        Odd((RigidMotion(), field())),
    ):
        assert mixture_of(deformation).geometry.curvature is None
    assert mixture_of(Turned()).geometry.curvature is not None
    assert mixture_of(Joining() + field()).geometry.curvature is not None
    assert mixture_of(RigidMotion(), Halved(SCATTERED, 0.5)).geometry.curvature is None
    assert mixture_of(RigidMotion(), GaussianBasis(SCATTERED, 0.5)).geometry.curvature is not None


@pytest.mark.parametrize(
    "basis",
    [
        GaussianBasis(SCATTERED, 0.5),
        GaussianBasis.regular(AXES, 0.5),
        GaussianBasis.regular(UNEVEN, 0.6),
        GaussianBasis.regular([[0.0, 0.3, 1.0]], 0.5),
    ],
    ids=["anywhere", "even", "uneven", "line"],
)
def test_second_derivatives_of_templates(basis, rng):
    columns = pt.matrix("points")
    coefficients = rng.normal(size=basis.n_basis)
    parts = [columns[axis] for axis in range(basis.n_dims)]
    values = basis.evaluate(parts, coefficients)
    # a point's value depends on its own coordinates alone
    slopes = pt.grad(values.sum(), columns)
    expected = [pt.grad(slopes[axis].sum(), columns) for axis in range(basis.n_dims)]
    found = basis.second_derivatives(parts, coefficients)
    function = pytensor.function(
        [columns],
        [pt.stack([pt.stack(row) for row in found]), pt.stack(expected)],
        mode="FAST_COMPILE",
    )
    one, other = function(rng.uniform(-1.5, 1.5, size=(basis.n_dims, 9)))
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", by_default(MIXTURES, BY_DEFAULT))
def test_the_prior_precision_is_minus_the_second_derivatives_of_the_prior(name, rng):
    """Of the density of an observation of which nothing is seen, at the prior's mode."""
    mixture, density, function = compiled(name, "FAST_COMPILE")
    data, _ = at_random(mixture, rng)
    data["observed_mask"] = np.zeros_like(data["observed_mask"])
    # of log scale too, where its Gamma density with the Jacobian peaks
    mode = mixture.geometry.starts[0]
    for index in (0, 2):
        *_, expected, precision = function(index, mode, 1.0, *density.arguments(data))
        np.testing.assert_allclose(precision, expected, atol=1e-9 * np.abs(expected).max())
        np.linalg.cholesky(precision)
