"""Kernels on an evenly spaced grid: recurrences against the plain graphs, and what they share."""

from itertools import product

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import verify_grad

from pymc_mcoem.compiling import linear_algebra_numba as products_numba
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.em.esteps.class_fits import family_density
from pymc_mcoem.templates import (
    GaussianBasis,
    TemplateMixture,
    curve_loops_numba,
    image_loops_numba,
    template_loops_numba,
)
from pymc_mcoem.templates.bases import bands as bands_of
from pymc_mcoem.templates.bases import separable_numba
from pymc_mcoem.templates.bases.even_grid import EvenGrid
from pymc_mcoem.templates.bases.separable import (
    KernelBends,
    KernelSlopes,
    KernelSums,
    KernelValues,
)
from pymc_mcoem.templates.bases.separable_numba import (
    RecurrentSlopes,
    RecurrentValues,
    kernel_factor,
)
from pymc_mcoem.templates.template_loops_numba import exponentials
from tests.helpers.interpreted import interpreted
from tests.helpers.representatives import by_default

NUMBA = pytensor.compile.mode.get_mode("NUMBA")
PLAIN = interpreted_mode()
#: Lengths, spacing in bandwidths: one kernel, digits, many blocks, wide apart, crowded, by halves.
GRIDS = {
    "digits": ((16, 16), 0.667),
    "one": ((1, 1), 0.667),
    "line": ((1, 7), 0.4),
    "long": ((70, 3), 0.667),
    "sparse": ((5, 6), 9.0),
    "apart": ((9, 8), 3.0),
    "crowded": ((12, 30), 0.05),
    "backwards": ((9, 5), -0.667),
    "elsewhere": ((9, 5), 0.667),
}
#: Where the middles of the grids lie, where it is not at zero.
MIDDLES = {"elsewhere": 1e4}


def make_grid(name):
    length, ratio = GRIDS[name]
    spacing = (0.2 * ratio, 0.15 * ratio)
    middle = MIDDLES.get(name, 0.0)
    start = tuple(middle - (n - 1) * step / 2 for n, step in zip(length, spacing, strict=True))
    return EvenGrid(start, spacing, length, 0.2)


def make_points(grid, rng, n=50):
    """Points on the grid, on its edges, and ever further away from it."""
    far = 10.0 ** rng.uniform(-1, 3, size=5)
    columns = []
    for axis in (0, 1):
        centers = np.sort(grid.axis(axis))
        inside = rng.uniform(centers[0] - 0.3, centers[-1] + 0.3, size=n - 10)
        columns.append(np.concatenate([inside, rng.choice(centers, 5), far * rng.choice([-1, 1])]))
    return columns


def both(expression, inputs, values):
    """Return an expression's values by recurrences and by the plain graph."""
    return [pytensor.function(inputs, expression, mode=mode)(*values) for mode in (NUMBA, PLAIN)]


def operators(function):
    return {type(node.op).__name__ for node in function.maker.fgraph.apply_nodes}


BUILD = {
    "values": KernelValues.of,
    "slopes": KernelSlopes.of,
    "bends": KernelBends.of,
    "sums": KernelSums.of,
    "moments": lambda grid, points, weights: KernelSums.of(grid.halved(), points, weights),
}
KERNELS = list(BUILD)


@pytest.mark.parametrize(
    ("kind", "name"),
    by_default(
        product(KERNELS, GRIDS),
        {
            *product(KERNELS, ["digits"]),
            *product(["slopes"], ["one", "apart", "backwards"]),
            ("bends", "crowded"),
            ("moments", "long"),
        },
    ),
)
def test_recurrences_are_the_plain_graph(name, kind, rng):
    grid = make_grid(name)
    first, second = make_points(grid, rng)
    x, y, w = pt.vectors("xyw")
    per_kernel = kind in ("values", "slopes", "bends")
    weights = rng.normal(size=np.prod(grid.length) if per_kernel else first.size)
    build = BUILD[kind]
    found, expected = both(build(grid, [x, y], w), [x, y, w], [first, second, weights])
    # far from zero the coordinates themselves have lost digits
    rounding = 1e-12 * (1.0 + MIDDLES.get(name, 0.0))
    scale = np.abs(weights).sum() if not per_kernel else np.abs(weights).max()
    scale /= grid.bandwidth ** {"slopes": 1, "bends": 2}.get(kind, 0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding * scale)


@pytest.mark.parametrize("kind", ["values", "slopes", "bends", "sums"])
def test_numba_takes_the_recurrence_jax_polynomials_and_others_the_plain_graph(kind):
    x, y, w = pt.vectors("xyw")
    graph = BUILD[kind](make_grid("digits"), [x, y], w)
    name = f"Recurrent{kind.capitalize()}"
    assert name in operators(pytensor.function([x, y, w], graph, mode=NUMBA))
    for mode in ("CVM", "FAST_COMPILE", "JAX"):
        if mode == "JAX":
            pytest.importorskip("jax")
        found = operators(pytensor.function([x, y, w], graph, mode=mode))
        by_polynomials = mode == "JAX" and kind in ("values", "slopes")
        expected = {"KernelPolynomial"} if by_polynomials else set()
        assert {each for each in found if each.startswith(("Recurrent", "Kernel"))} == expected


@pytest.mark.parametrize(
    ("mode", "kind"),
    by_default(
        product(["recurrence", "interpreted"], KERNELS[:-1]),
        set(product(["interpreted"], KERNELS[:-1])),
    ),
)
def test_derivatives(mode, kind, rng):
    grid = EvenGrid((-0.5, -0.4), (0.25, 0.2), (5, 4), 0.3)
    points = [rng.uniform(-0.6, 0.6, size=6) for _ in range(2)]
    weights = rng.normal(size=6 if kind == "sums" else 20)

    def total(x, y, w):
        found = BUILD[kind](grid, [x, y], w)
        parts = found if isinstance(found, list) else [found]
        # unequal weights, so that no derivative cancels
        return sum((part * (index + 1.0)).sum() for index, part in enumerate(parts)) + sum(
            pt.sqr(part).sum() for part in parts
        )

    modes = {"recurrence": NUMBA, "interpreted": PLAIN}
    verify_grad(total, [*points, weights], rng=rng, mode=modes[mode])


def test_values_and_slopes_share_their_kernels(rng):
    x, y, w = pt.vectors("xyw")
    grid = make_grid("digits")
    values = KernelValues.of(grid, [x, y], w)
    loss = pt.sqr(values).sum()
    function = pytensor.function([x, y, w], [loss, *pt.grad(loss, [x, y])], mode=NUMBA)
    used = operators(function)
    assert "RecurrentSlopes" in used
    assert "RecurrentValues" not in used
    arguments = [*rng.uniform(-1, 1, size=(2, 30)), rng.normal(size=256)]
    plain_function = pytensor.function([x, y, w], [loss, *pt.grad(loss, [x, y])], mode=PLAIN)
    for found, expected in zip(function(*arguments), plain_function(*arguments), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-9)


def test_bends_share_them_too(rng):
    x, y, w = pt.vectors("xyw")
    grid = make_grid("digits")
    kinds = KernelValues.of, KernelSlopes.of, KernelBends.of
    wanted = [each for kind in kinds for each in np.atleast_1d(kind(grid, [x, y], w))]
    arguments = [*rng.uniform(-1, 1, size=(2, 30)), rng.normal(size=256)]
    function = pytensor.function([x, y, w], wanted, mode=NUMBA)
    used = [name for name in operators(function) if name.startswith("Recurrent")]
    assert used == ["RecurrentBends"]
    plain_function = pytensor.function([x, y, w], wanted, mode=PLAIN)
    for found, expected in zip(function(*arguments), plain_function(*arguments), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_values_at_other_points_are_not_shared():
    x, y, w = pt.vectors("xyw")
    grid = make_grid("digits")
    there = KernelValues.of(grid, [y, x], w)
    function = pytensor.function([x, y, w], [there, *KernelSlopes.of(grid, [x, y], w)], mode=NUMBA)
    assert {"RecurrentSlopes", "RecurrentValues"} <= operators(function)


def test_not_a_number_stays_so_and_infinite_points_are_far_away():
    grid = make_grid("digits")
    x, y, w = pt.vectors("xyw")
    function = pytensor.function([x, y, w], KernelValues.of(grid, [x, y], w), mode=NUMBA)
    found = function([np.nan, 0.1, np.inf, -np.inf], [0.1, np.nan, 0.1, 0.1], np.ones(256))
    assert np.isnan(found[:2]).all()
    np.testing.assert_allclose(found[2:], 0, atol=1e-12)


def written(function, values):
    """Return what a function of a vector writes to another."""
    out = np.empty(values.size)
    function(values, out)
    return out


def test_exponentials_are_those_of_numpy(rng):
    @numba.njit
    def called(values, out):  # only compiled functions can call it
        exponentials(values, out)

    values = np.concatenate([rng.uniform(-700, 700, 5_000), rng.uniform(-1, 1, 5_000), [0.0]])
    relative = written(called, values) / np.exp(values) - 1.0
    assert np.abs(relative).max() < 4.5e-16
    assert written(called, np.array([0.0]))[0] == 1.0
    assert written(called, np.array([-1e9, -np.inf])).max() < 1e-307
    assert np.isnan(written(called, np.array([np.nan]))).all()


@pytest.mark.parametrize(
    "module",
    [
        separable_numba,
        products_numba,
        image_loops_numba,
        curve_loops_numba,
        template_loops_numba,
    ],
    ids=lambda m: m.__name__,
)
def test_compiled_helpers_have_flags_of_their_own(module):
    """Without, they take over those of the first function that compiles them."""
    helpers = [each for each in vars(module).values() if hasattr(each, "targetoptions")]
    assert helpers
    for helper in helpers:
        assert helper.targetoptions["fastmath"] is False, helper


def test_exponentials_are_right_when_another_function_compiles_them(rng):
    """PyTensor's flags let sums be reordered, which undoes the rounding to whole powers of two."""
    fresh = numba.jit(**exponentials.targetoptions)(exponentials.py_func)

    @numba.njit(fastmath={"arcp", "contract", "afn", "reassoc", "nsz"})
    def caller(values, out):
        fresh(values, out)

    values = rng.uniform(-700, 700, 1_000)
    assert np.abs(written(caller, values) / np.exp(values) - 1.0).max() < 4.5e-16
    # and the test can fail: without flags of its own a copy is wrong
    bare = numba.njit(exponentials.py_func)

    @numba.njit(fastmath={"arcp", "contract", "afn", "reassoc", "nsz"})
    def careless(values, out):
        bare(values, out)

    assert np.abs(written(careless, values) / np.exp(values) - 1.0).max() > 1e-3


@pytest.mark.parametrize(
    ("spoilt", "kind"),
    by_default(
        product(["second", "weights"], ["values", "slopes", "bends", "sums"]),
        {("second", "slopes"), ("weights", "sums")},
    ),
)
def test_sizes_that_do_not_fit_are_refused(kind, spoilt):
    x, y, w = pt.vectors("xyw")
    graph = BUILD[kind](make_grid("line"), [x, y], w)
    function = pytensor.function([x, y, w], graph, mode=NUMBA)
    sizes = {"first": 10, "second": 10, "weights": 10 if kind == "sums" else 7}
    function(*map(np.ones, sizes.values()))
    with pytest.raises(ValueError, match=r"points|weights"):
        function(*map(np.ones, {**sizes, spoilt: 4}.values()))


def values_and_slopes(seed, dtype, back_end):
    """Return sums of kernels and their slopes at points of every grid, near it and far from it."""
    found = {}
    for name in GRIDS:
        grid, rng = make_grid(name), np.random.default_rng(seed)
        points = make_points(grid, rng)
        weights = rng.normal(size=grid.length[0] * grid.length[1])
        symbols = [pt.vector(shape=(len(points[0]),)) for _ in range(2)] + [pt.vector()]
        graphs = [KernelValues.of(grid, symbols[:2], symbols[2])]
        graphs += KernelSlopes.of(grid, symbols[:2], symbols[2])
        if back_end == "jax":
            from pymc_mcoem.compiling.graphs_jax import precision

            with precision(dtype):
                # without the check of PyTensor's function that arguments have its dtype
                function = pytensor.function(symbols, graphs, mode="JAX", trust_input=True)
                given = [np.asarray(each, dtype=dtype) for each in (*points, weights)]
                found[name] = [np.asarray(each) for each in function(*given)]
            assert all(each.dtype == dtype for each in found[name])
        else:
            found[name] = pytensor.function(symbols, graphs, mode=PLAIN)(*points, weights)
    return found


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-12), ("float32", 5e-4)])
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_polynomials_are_the_plain_sums(run_apart, rng, dtype, off):
    seed = int(rng.integers(2**31))
    found = run_apart(values_and_slopes, seed, dtype, "jax")
    expected = values_and_slopes(seed, dtype, "plain")
    for name, others in expected.items():
        for one, other in zip(found[name], others, strict=True):
            if dtype == "float64" or name != "elsewhere":  # 10,000 has no digits left for it
                np.testing.assert_allclose(one, other, atol=off * np.abs(other).max(), err_msg=name)


def whole_mixture(options, seed, back_end):
    """Return log-density, gradient, curvature and statistics of a mixture somewhere."""
    rng = np.random.default_rng(seed)
    mixture = TemplateMixture.for_images((8, 8), 3, n_landmarks=2, **options)
    density = family_density(mixture)
    k, x = pt.lscalar("k"), pt.vector("x", shape=(density.n_latents,))
    statistics = [pt.as_tensor_variable(each) for each in mixture.statistics.values()]
    outputs = [
        density.log_density(k, x),
        density.gradient(k, x),
        density.place(mixture.geometry.gauss_newton, k, x),
        *density.place(statistics, k, x),
    ]
    images = rng.uniform(size=(20, 8, 8))
    images[0, 2, 3:6] = np.nan
    theta = mixture.initialize(list(images[1:]), rng, "random")
    arguments = density.arguments({**theta, **mixture.encode(images[0])})
    at = 0.1 * rng.normal(size=density.n_latents)
    at[1] += 1.0
    inputs = [k, x, *density.data_inputs.values()]
    mode = {"plain": PLAIN, "numba": NUMBA}.get(back_end, "JAX")
    function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
    return [np.asarray(found) for found in function(1, at, *arguments)]


OPTIONS = {"": {}, "scale": {"scale": (4.0, 4.0), "noise": "class"}}


@pytest.mark.parametrize(
    ("kind", "back_end"),
    by_default(product(OPTIONS, ["numba", "jax"]), {("scale", "jax")}),
)
def test_a_whole_mixture_is_the_plain_graph(run_apart, kind, rng, back_end):
    seed = int(rng.integers(2**31))
    found = run_apart(whole_mixture, OPTIONS[kind], seed, back_end)
    expected = whole_mixture(OPTIONS[kind], seed, "plain")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10 * np.abs(other).max())


def everywhere(options, seed, back_end):
    """Return log-densities and gradients at points of every class, of images whole and not."""
    rng = np.random.default_rng(seed)
    mixture = TemplateMixture.for_images((16, 16), 4, **options)
    density = family_density(mixture)
    k, x = pt.lscalar("k"), pt.vector("x", shape=(density.n_latents,))
    images = rng.uniform(size=(20, 16, 16))
    images[1, 3:8, 2:11] = np.nan  # a patch
    images[2, rng.uniform(size=(16, 16)) < 0.3] = np.nan  # here and there
    theta = mixture.initialize(list(images[3:]), rng, "random")
    outputs = [density.log_density(k, x), density.gradient(k, x)]
    inputs = [k, x, *density.data_inputs.values()]
    if back_end == "interpreted":
        with interpreted():
            function = pytensor.function(inputs, outputs)
    else:
        function = pytensor.function(inputs, outputs, mode=back_end.upper())
    found = []
    for image in images[:3]:
        arguments = density.arguments({**theta, **mixture.encode(image)})
        for label in range(4):
            for spread in (0.1, 1.0):
                at = spread * rng.normal(size=density.n_latents)
                at[:6] += mixture.settings.deformation.mean[:6]
                found.append([np.array(each) for each in function(label, at, *arguments)])
    return found


@pytest.mark.parametrize(
    ("kind", "back_end"),
    by_default(product(OPTIONS, ["numba", "jax"]), {("", "numba")}),
)
def test_density_and_gradient_are_the_interpreters_everywhere(run_apart, kind, rng, back_end):
    seed = int(rng.integers(2**31))
    found = run_apart(everywhere, OPTIONS[kind], seed, back_end)
    expected = everywhere(OPTIONS[kind], seed, "interpreted")
    assert len(expected) == 24
    for one, other in zip(found, expected, strict=True):
        for here, there in zip(one, other, strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-10, atol=1e-10)


def test_kernels_do_not_vanish_far_from_the_middle_of_a_long_axis():
    """One recurrence from the middle would: exp(−d²/ν²) is zero from 27 bandwidths on."""
    centers = 0.05 * np.arange(400)
    factor = kernel_factor(centers.copy(), 0.0, 0.05, 400, 0.07)
    np.testing.assert_allclose(np.diagonal(factor), 1.0, rtol=1e-13)
    expected = np.exp(-(np.subtract.outer(centers, centers) ** 2) / 0.07**2)
    np.testing.assert_allclose(factor, expected, rtol=0, atol=1e-13)


def test_no_points_and_constants_that_are_folded(rng):
    grid = make_grid("digits")
    empty = pt.constant(np.zeros(0))
    weights = pt.constant(rng.normal(size=256))
    assert KernelValues.of(grid, [empty, empty], weights).eval(mode=NUMBA).shape == (0,)
    points = pt.constant(rng.uniform(-1, 1, size=7))
    for build in (KernelValues.of, KernelSlopes.of):
        graph = pt.as_tensor_variable(build(grid, [points, points], weights))
        folded = pytensor.function([], graph, mode=NUMBA)()
        np.testing.assert_allclose(folded, pytensor.function([], graph, mode=PLAIN)(), atol=1e-12)


@pytest.mark.parametrize("operator", [RecurrentValues, RecurrentSlopes])
def test_operators_are_equal_where_their_grids_are(operator):
    assert operator(make_grid("digits")) == operator(make_grid("digits"))
    assert operator(make_grid("digits")) != operator(make_grid("line"))


@pytest.mark.parametrize("axes", [[5, 4], [1, 6], [16, 16]])
def test_packed_gram_matrices_are_whole_ones(axes, rng):
    basis = GaussianBasis.regular([np.linspace(-1, 1, n) if n > 1 else [0.3] for n in axes], 0.2)
    points, weights = rng.uniform(-1.2, 1.2, size=(40, 2)), rng.uniform(0, 2, size=40)
    packed = basis.gram_sums(points, weights).eval()
    assert packed.shape == tuple(2 * n - 1 for n in axes)
    design = basis.matrix(points)
    expected = (design * weights[:, None]).T @ design
    np.testing.assert_allclose(basis.unpack_gram(packed), expected, rtol=0, atol=1e-12)
    stacked = np.stack([packed, 2 * packed])
    np.testing.assert_allclose(basis.unpack_gram(stacked)[1], 2 * expected, rtol=0, atol=2e-12)
    np.testing.assert_array_equal(basis.unpack_gram(expected), expected)


@pytest.mark.parametrize("axes", [[5, 4], [1, 6], [6, 1], [16, 16], [30, 9]])
def test_bands_have_all_of_a_gram_matrix_but_rounding(axes, rng):
    basis = GaussianBasis.regular([np.linspace(-1, 1, n) if n > 1 else [0.3] for n in axes], 0.15)
    points, weights = rng.uniform(-1.2, 1.2, size=(40, 2)), rng.uniform(0, 2, size=40)
    packed, n = basis.gram_sums(points, weights).eval(), basis.n_basis
    whole = basis.unpack_gram(packed)
    assert np.abs(np.triu(whole, basis.grid.reach + 1)).max(initial=0) <= 1e-15 * whole.max()
    for width in {0, 1, basis.grid.reach, n - 1}:
        bands = basis.gram_bands(np.stack([0 * packed, packed]), min(width, n - 1))[1]
        assert bands.shape == (n, min(width, n - 1) + 1)
        for k, band in enumerate(bands.T):
            np.testing.assert_allclose(band[: n - k], np.diag(whole, k), rtol=0, atol=1e-12)
            np.testing.assert_array_equal(
                basis.gram_bands(whole, width)[: n - k, k], np.diag(whole, k)
            )


@pytest.mark.parametrize("width", [0, 2, 5])
def test_matrices_are_solved_by_their_bands(width, rng):
    upper = np.triu(np.tril(rng.normal(size=(6, 6)), width))
    upper[np.diag_indices(6)] = rng.uniform(1, 2, size=6)
    matrix, right = upper.T @ upper, rng.normal(size=6)
    bands = bands_of.symmetric_bands(matrix, width)
    np.testing.assert_allclose(bands_of.multiply(bands, right), matrix @ right, atol=1e-13)
    factor = bands_of.cholesky(bands.copy())
    np.testing.assert_allclose(bands_of.upper(factor), upper, atol=1e-13)
    np.testing.assert_allclose(matrix @ bands_of.solve(factor, right), right, atol=1e-12)
    with pytest.raises(np.linalg.LinAlgError):
        bands_of.cholesky(-bands)


def test_gram_matrices_of_other_bases_are_not_packed(rng):
    uneven = GaussianBasis.regular([[0.0, 1.0, 3.0], [0.0, 1.0]], 1.0)
    scattered = GaussianBasis(rng.normal(size=(6, 2)), 1.0)
    points, weights = rng.normal(size=(9, 2)), rng.uniform(size=9)
    for basis in (uneven, scattered):
        gram = basis.gram_sums(points, weights).eval()
        design = basis.matrix(points)
        np.testing.assert_allclose(gram, (design * weights[:, None]).T @ design, atol=1e-12)
        np.testing.assert_array_equal(basis.unpack_gram(gram), gram)


def test_gram_matrices_of_another_shape_are_refused():
    basis = GaussianBasis.regular([np.arange(3.0), np.arange(4.0)], 1.0)
    with pytest.raises(ValueError, match=r"sums has shape \(5, 5\).*\(\.\.\., 12, 12\)"):
        basis.unpack_gram(np.zeros((5, 5)))
