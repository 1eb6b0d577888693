"""The sweep as a function of (state, noise): its algebra, part by part, at chosen noise.

What is tested is the burst that runs in production, one sweep long.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

from pymc_mcoem.carlin_chib.kernel import draw_class, noise_size
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.carlin_chib.sweeps import compile_sweeps
from tests.helpers.checks import LIMIT, class_draw_asymmetry, invariance
from tests.helpers.compiled import N_MOVES
from tests.helpers.interpreted import interpreted
from tests.helpers.models import N_CLASSES, ScaledMixture, SkewedMixture
from tests.helpers.reference_kernel import CompiledKernel, GivenNoise, ReferenceKernel
from tests.helpers.representatives import by_default

KINDS = ("laplace", "good", "poor")


def one_sweep(case, pseudo_priors, k, x, noise, *, log_step=None, gain=0.0):
    """Make one sweep with the compiled burst at given noise ``(noise_size,)``."""
    log_step = case.burst.initial_log_step if log_step is None else log_step
    return case.burst(
        GivenNoise(noise[None]), (k, x), log_step, pseudo_priors, np.array([gain]), case.data
    )


def log_pseudo_priors(pseudo_priors: PseudoPriors, auxiliaries: np.ndarray) -> np.ndarray:
    """Return log κ_j(U_j) by SciPy, from the covariances alone."""
    return np.array(
        [
            stats.multivariate_normal(mean, scale @ scale.T).logpdf(u)
            for mean, scale, u in zip(
                pseudo_priors.mean, pseudo_priors.scale, auxiliaries, strict=True
            )
        ]
    )


def noise_for(case, pseudo_priors, auxiliaries, rng):
    """Return the noise of a sweep whose auxiliaries are the ones given."""
    noise = rng.standard_normal(case.burst.noise_size)
    drawn = np.einsum("jab,jb->ja", pseudo_priors.whiten, auxiliaries - pseudo_priors.mean)
    noise[: drawn.size] = drawn.ravel()
    return noise


def random_auxiliaries(case, pseudo_priors, rng, n):
    """Draw what a chain meets: all U_j from the pseudo-priors, ``(n, n_classes, d)``."""
    z = rng.standard_normal((n, N_CLASSES, case.family.n_latents))
    return pseudo_priors.mean + np.einsum("jab,njb->nja", pseudo_priors.scale, z)


# -- refresh and class draw ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_auxiliaries_and_weights_are_those_of_the_oracle(case, rng, kind):
    pseudo_priors = case.pseudo_priors(kind)
    for x in random_auxiliaries(case, pseudo_priors, rng, 10)[:, 0]:
        for k in range(N_CLASSES):
            noise = rng.standard_normal(case.burst.noise_size)
            z = noise[: N_CLASSES * len(x)].reshape(N_CLASSES, -1)
            expected = pseudo_priors.mean + np.einsum("jab,jb->ja", pseudo_priors.scale, z)
            expected[k] = x
            swept = one_sweep(case, pseudo_priors, k, x, noise)
            np.testing.assert_allclose(swept.auxiliaries[0], expected, rtol=1e-12, atol=1e-12)
            log_weight = case.family.log_density(np.arange(N_CLASSES), expected)
            log_weight = log_weight - log_pseudo_priors(pseudo_priors, expected)
            np.testing.assert_allclose(swept.log_weight[0], log_weight, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_refresh_and_class_draw_are_reversible(case, rng, kind):
    pseudo_priors = case.pseudo_priors(kind)

    def log_weight(i, u):
        noise = noise_for(case, pseudo_priors, u, rng)
        return one_sweep(case, pseudo_priors, i, u[i], noise).log_weight[0]

    asymmetry = class_draw_asymmetry(
        log_weight,
        lambda i, u: log_pseudo_priors(pseudo_priors, u),
        case.family.log_density,
        random_auxiliaries(case, pseudo_priors, rng, 50),
    )
    assert asymmetry < 1e-10


@pytest.fixture(scope="module")
def choose() -> Iterator:
    """Return `draw_class` as a function of (log weights, pair of normals)."""
    with interpreted():
        log_weight, pair = pt.vector("log_weight"), pt.vector("pair")
        yield pytensor.function([log_weight, pair], draw_class(log_weight, pair))


def pair_of(uniform):
    return np.array([0.0, np.sqrt(-2 * np.log(uniform))])


@pytest.mark.parametrize("shift", [0.0, -1e4, 1e4])
def test_a_class_is_drawn_where_its_share_of_the_uniform_lies(choose, shift):
    log_weight = np.log([0.2, 0.5, 0.3]) + shift
    edges = {0.0: 0, 0.2: 1, 0.7: 2}
    for edge, index in edges.items():
        assert choose(log_weight, pair_of(edge + 1e-9)) == index
        if edge:
            assert choose(log_weight, pair_of(edge - 1e-9)) == index - 1
    assert choose(log_weight, np.zeros(2)) == 2
    # So small a uniform is zero in double precision.
    assert choose(log_weight, np.array([40.0, 40.0])) == 0


@pytest.mark.parametrize("without", range(N_CLASSES))
def test_a_class_without_weight_is_never_drawn(choose, without):
    log_weight = np.log([0.2, 0.5, 0.3])
    log_weight[without] = -np.inf
    uniforms = [1e-300, 1e-12, 0.1, 0.2, 0.4, 0.625, 0.7, 0.9, 1 - 1e-12, 1.0]
    drawn = {int(choose(log_weight, pair_of(uniform))) for uniform in uniforms}
    assert drawn == set(range(N_CLASSES)) - {without}


def test_an_auxiliary_without_density_has_no_weight(case):
    """At such noise the density of class 1 overflows, or is not a number; the chain goes on."""
    pseudo_priors = case.pseudo_priors("good")
    k, x = 0, pseudo_priors.mean[0]
    d = len(x)
    for size in (1e3, 1e6):
        noise = np.full(case.burst.noise_size, 0.1)
        noise[d : 2 * d] = size
        swept = one_sweep(case, pseudo_priors, k, x, noise)
        assert swept.log_weight[0, 1] == -np.inf
        assert np.isfinite(swept.log_weight[0, [0, 2]]).all()
        assert swept.class_index[0] != 1
        assert np.isfinite(swept.position).all()


# -- the sweep as a whole ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_sweep_is_the_reference_sweep(case, rng, kind):
    pseudo_priors = case.pseudo_priors(kind)
    log_step = np.array([0.3, -0.5, -1.0])
    reference = ReferenceKernel(case.family.log_density, pseudo_priors, log_step, N_MOVES)
    assert reference.noise_size == case.burst.noise_size
    k, x = case.family.draw_posterior(rng, 300)
    noise = rng.standard_normal((300, reference.noise_size))
    expected = reference.sweep(k, x, noise)
    seen = set()
    for row in range(300):
        swept = one_sweep(case, pseudo_priors, k[row], x[row], noise[row], log_step=log_step)
        assert swept.class_index[0] == expected.class_index[row]
        np.testing.assert_allclose(swept.position[0], expected.position[row], atol=1e-12)
        np.testing.assert_allclose(swept.log_weight[0], expected.log_weight[row], atol=1e-9)
        assert swept.acceptance[0] == pytest.approx(expected.acceptance[row])
        seen.add((int(k[row]), int(swept.class_index[0]), float(swept.acceptance[0]) > 0))
    # Every class was left for every other, and moves were accepted and all rejected.
    assert {pair[:2] for pair in seen} == {(i, j) for i in range(3) for j in range(3)}
    assert {pair[2] for pair in seen} == {True, False}


def test_the_sweep_leaves_the_posterior_invariant(case, rng):
    """With Laplace pseudo-priors; `test_broken_kernels` has the others."""
    kernel = CompiledKernel(
        case.burst, case.pseudo_priors("laplace"), case.burst.initial_log_step, case.data
    )
    found = invariance(kernel, case.family, case.quadrature, rng, 4_000)
    assert found.largest_z < LIMIT


def test_a_burst_is_its_sweeps_one_after_another(case, rng):
    pseudo_priors = case.pseudo_priors("good")
    noise = rng.standard_normal((8, case.burst.noise_size))
    gains = np.array([2.0, 1.0, 0.5, 0.2, 0.0, 0.0, 0.0, 0.0])
    k, x = 1, pseudo_priors.mean[1]
    log_step = case.burst.initial_log_step
    whole = case.burst(GivenNoise(noise), (k, x), log_step, pseudo_priors, gains, case.data)
    for row in range(8):
        part = one_sweep(case, pseudo_priors, k, x, noise[row], log_step=log_step, gain=gains[row])
        k, x, log_step = part.class_index[0], part.position[0], part.log_step
        assert k == whole.class_index[row]
        np.testing.assert_allclose(x, whole.position[row], rtol=1e-12, atol=1e-12)
        assert part.acceptance[0] == whole.acceptance[row]
    np.testing.assert_allclose(log_step, whole.log_step, rtol=1e-12)


# -- adaptation --------------------------------------------------------------------------------


def test_the_step_size_of_the_chosen_class_follows_its_acceptance(case, rng):
    pseudo_priors = case.pseudo_priors("good")
    before = np.array([0.1, 0.2, 0.3])
    for k, x in zip(*case.family.draw_posterior(rng, 20), strict=True):
        noise = rng.standard_normal(case.burst.noise_size)
        swept = one_sweep(case, pseudo_priors, k, x, noise, log_step=before, gain=0.7)
        expected = before.copy()
        expected[swept.class_index[0]] += 0.7 * (swept.acceptance[0] - 0.4)
        np.testing.assert_allclose(swept.log_step, expected, rtol=1e-14)


# -- classes without weight ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "shared_latents"),
    by_default(
        product([SkewedMixture, ScaledMixture], [False, True]),
        [(SkewedMixture, True), (ScaledMixture, False)],
    ),
    indirect=["case"],
    ids={SkewedMixture: "skewed", ScaledMixture: "scaled"}.get,
)
def test_loops_and_graph_keep_out_of_classes_without_weight(case, rng, shared_latents):
    """With latents that all classes share (plain Gibbs) and with auxiliaries of their own."""
    density, move = case.burst.density, RandomWalk(N_MOVES)
    both = [
        compile_sweeps(density, move, shared_latents=shared_latents, mode=mode)
        for mode in ("NUMBA", "FAST_COMPILE")
    ]
    n, start = density.n_latents, case.pseudo_priors("good").mean[2]
    size = noise_size(N_CLASSES, n, move, shared_latents=shared_latents)
    nowhere = np.full(n, 1e4)
    for offset, position in (
        ([0.0, 0.0, 0.0], start),
        ([0.3, -np.inf, 0.0], start),
        ([-np.inf, -np.inf, 0.0], start),
        ([-np.inf, -np.inf, 0.0], nowhere),
        # it stays, and moves within its class
        ([-np.inf, -np.inf, -np.inf], start),
    ):
        noise = rng.standard_normal((20, size))
        loops, graph = (
            sweeps(
                noise,
                np.linspace(1.0, 0.0, 20),
                2,
                position,
                case.burst.initial_log_step,
                np.array(offset),
                case.pseudo_priors("good"),
                density.arguments(case.data),
            )
            for sweeps in both
        )
        np.testing.assert_array_equal(loops.class_index, graph.class_index)
        for name in ("position", "log_weight", "acceptance", "log_step"):
            np.testing.assert_allclose(getattr(loops, name), getattr(graph, name), rtol=1e-9)
        entered = np.isfinite(offset)
        assert entered[loops.class_index].all() or not entered.any()
        assert (loops.log_weight[:, ~entered] == -np.inf).all()
        if shared_latents and position is start:
            # weights are the densities of where the chain was
            before = np.concatenate([start[None], loops.position[:-1]])[:, None]
            expected = case.family.log_density(np.arange(N_CLASSES), before) + offset
            np.testing.assert_allclose(loops.log_weight, expected, rtol=1e-10)
        if position is nowhere or not entered.any():
            assert np.isneginf(loops.log_weight).all()
            assert (loops.class_index == 2).all()
    assert not np.array_equal(loops.position[-1], start)
