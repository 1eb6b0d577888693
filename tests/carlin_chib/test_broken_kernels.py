"""Kernels that are wrong on purpose fail the checks that the true one passes.

The broken kernels are the reference kernel, which makes the compiled kernel's own sweeps
(`test_kernel`), with one fault each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pymc_mcoem.em.burst import adaptation_gains
from tests.helpers.broken_kernels import (
    AdaptsForEver,
    FittedWhereItStands,
    PseudoPriorsSwapped,
    RatioLeftOut,
    rao_blackwell_features,
)
from tests.helpers.checks import (
    LIMIT,
    agreement,
    class_draw_asymmetry,
    features,
    invariance,
    largest_departure,
)
from tests.helpers.reference_kernel import CompiledKernel, ReferenceKernel

#: What a broken kernel has to exceed: a right one is there once in 10¹⁵ comparisons.
CLEARLY = 8.0
N_CHAINS = 10_000
#: Compiled chains are moved one by one; of so many a broken kernel still exceeds `LIMIT`.
N_COMPILED = 4_000
KINDS = ("good", "poor")


def make(kernel, case, kind="good", log_density=None, **settings):
    return kernel(
        case.family.log_density if log_density is None else log_density,
        case.pseudo_priors(kind),
        case.burst.initial_log_step,
        **settings,
    )


def z_of(kernel, case, rng, n=N_CHAINS):
    return invariance(kernel, case.family, case.quadrature, rng, n).largest_z


# -- the distribution after a few sweeps from the exact posterior ----------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_true_kernel_passes(case, rng, kind):
    assert z_of(make(ReferenceKernel, case, kind), case, rng) < LIMIT
    compiled = CompiledKernel(
        case.burst, case.pseudo_priors(kind), case.burst.initial_log_step, case.data
    )
    assert z_of(compiled, case, rng, N_COMPILED) < LIMIT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broken", [RatioLeftOut, PseudoPriorsSwapped])
def test_a_class_draw_that_is_wrong_fails(case, rng, broken, kind):
    assert z_of(make(broken, case, kind), case, rng) > CLEARLY


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_jacobian_fails(scaled, rng, kind):
    density = scaled.family.log_density_without_jacobian
    kernel = make(ReferenceKernel, scaled, kind, log_density=density)
    assert z_of(kernel, scaled, rng) > CLEARLY


def test_a_mode_search_from_the_chains_own_latents_fails(skewed, rng):
    assert z_of(make(FittedWhereItStands, skewed), skewed, rng) > CLEARLY


def test_adaptation_that_goes_on_fails(skewed, rng):
    """A small bias: many chains, one move a sweep, and pseudo-priors too far off to refresh X."""
    mean, covariance = skewed.quadrature.moments()
    far = replace(skewed.pseudo_priors("good"), mean=mean + 8 * np.sqrt(covariance[:, :, 0]))

    log_step = skewed.burst.initial_log_step - 1.5

    def z(kernel):
        made = kernel(skewed.family.log_density, far, log_step, n_moves=1)
        return z_of(made, skewed, rng, n=250_000)

    assert z(ReferenceKernel) < LIMIT
    assert z(AdaptsForEver) > CLEARLY


# -- detailed balance, without sampling ------------------------------------------------------


def asymmetry(kernel, case, rng):
    """Return how far refresh and class draw of a reference kernel are from reversible."""
    fixed = kernel.pseudo_priors
    z = rng.standard_normal((50, 3, case.family.n_latents))
    auxiliaries = fixed.mean + np.einsum("jab,njb->nja", fixed.scale, z)

    def at(i, u):
        return kernel.drawing(np.array([i]), u[i][None])

    return class_draw_asymmetry(
        lambda i, u: kernel.log_weight(u[None], at(i, u))[0],
        lambda i, u: at(i, u).log_density(u[None])[0],
        case.family.log_density,
        auxiliaries,
    )


def test_the_true_class_draw_is_reversible(case, rng):
    assert asymmetry(make(ReferenceKernel, case), case, rng) < 1e-10


@pytest.mark.parametrize("broken", [RatioLeftOut, PseudoPriorsSwapped])
def test_a_class_draw_that_is_wrong_is_not_reversible(case, rng, broken):
    assert asymmetry(make(broken, case), case, rng) > 1


def test_a_class_draw_without_jacobian_is_not_reversible(scaled, rng):
    density = scaled.family.log_density_without_jacobian
    assert asymmetry(make(ReferenceKernel, scaled, log_density=density), scaled, rng) > 1


def test_a_class_draw_fitted_where_it_stands_is_not_reversible(skewed, rng):
    assert asymmetry(make(FittedWhereItStands, skewed), skewed, rng) > 1


# -- one kernel for all kept draws -----------------------------------------------------------


def test_kept_sweeps_are_all_of_one_kernel(case, rng):
    """With the step sizes at the end of tuning, every kept sweep is repeated on its own."""
    pseudo_priors = case.pseudo_priors("good")
    tune, n_sweeps = 30, 230
    noise = rng.standard_normal((n_sweeps, case.burst.noise_size))
    start = pseudo_priors.draw_start(rng)

    def departure(gains):
        return largest_departure(case.burst, case.data, pseudo_priors, start, noise, gains, tune)

    stopped = adaptation_gains(n_sweeps, tune)
    assert departure(stopped) < 1e-9
    for wrong in (adaptation_gains(n_sweeps, n_sweeps), np.full(n_sweeps, 0.1)):
        assert departure(wrong) > 0.01


# -- Rao-Blackwell statistics ----------------------------------------------------------------


@pytest.fixture(scope="module")
def bursts(skewed):
    """Return kept draws of many bursts, each independent of the others."""
    rng = np.random.default_rng(20)
    # Far from the posterior, so that the weights say much of the latents that they belong to.
    pseudo_priors = skewed.pseudo_priors("poor")
    gains = adaptation_gains(2100, 100)
    log_step = skewed.burst.initial_log_step
    made = []
    for _ in range(120):
        start = pseudo_priors.draw_start(rng)
        draws = skewed.burst(rng, start, log_step, pseudo_priors, gains, skewed.data)
        kept = {
            name: getattr(draws, name)[100:]
            for name in ("class_index", "position", "log_weight", "auxiliaries")
        }
        made.append(replace(draws, **kept))
    return made


def rao_blackwell_z(bursts, case, *, later_latents):
    values = [
        rao_blackwell_features(draws, features, later_latents=later_latents) for draws in bursts
    ]
    return agreement(np.array(values), case.quadrature.expectation(features)).largest_z


def test_rao_blackwell_averages_are_exact(skewed, bursts):
    assert rao_blackwell_z(bursts, skewed, later_latents=False) < LIMIT


def test_weights_from_before_with_latents_from_after_fail(skewed, bursts):
    assert rao_blackwell_z(bursts, skewed, later_latents=True) > CLEARLY
